"""What tools.house counts, on small made-up trees."""

from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

import pytest

from tools.house import (
    CLASS_LINES,
    FILE_LINES,
    PAPER,
    Finding,
    Import,
    Source,
    apply,
    circles,
    constructors_over_8,
    dead_references,
    dead_roles,
    doubled_shapes,
    fmt_skips,
    imports,
    long_classes,
    long_files,
    product_imports_lab,
    upward_arrows,
)


def tree(root: Path, files: dict[str, str]) -> list[Source]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return [Source(root, name) for name in files]


def names(findings: Iterable[Finding]) -> list[str]:
    return [finding.name for finding in findings]


def arrows(*pairs: str) -> list[Import]:
    return [Import(importer=pair.split()[0], imported=pair.split()[1]) for pair in pairs]


def test_docstrings_comments_and_blank_lines_are_no_code(tmp_path: Path) -> None:
    [source] = tree(
        tmp_path,
        {
            "a.py": '''
            """
            A docstring.
            """

            # A comment.
            X = """
            text

            """  # counts: it is a value


            def f():
                """Another."""
                return (
                    1
                )
            '''
        },
    )

    # X (three lines of it, one is blank), def, return and the two lines after it.
    assert len(source.code) == 3 + 1 + 3


def test_a_file_and_a_class_are_long_beyond_the_bound(tmp_path: Path) -> None:
    def body(lines: int, indent: str) -> str:
        return "".join(f"{indent}x{number} = {number}\n" for number in range(lines))

    sources = tree(
        tmp_path,
        {
            "fits.py": body(FILE_LINES, ""),
            "long.py": body(FILE_LINES + 1, "") + "# no code\n",
            "classes.py": f"class Fits:\n{body(CLASS_LINES - 1, '    ')}class Long:\n{body(CLASS_LINES, '    ')}",
        },
    )

    assert names(long_files(sources)) == ["long.py", "classes.py"]
    assert names(long_classes(sources)) == ["classes.py: Long"]


def test_a_constructor_of_the_product_takes_eight_arguments(tmp_path: Path) -> None:
    def taking(count: int) -> str:
        given = ", ".join(f"x{number}" for number in range(count))
        return f"class Takes{count}:\n    def __init__(self, {given}): ...\n    def other(self, {given}): ...\n"

    product, beside = (f"{room}/a.py" for room in ("api", "lab"))
    sources = tree(tmp_path, {name: taking(8) + taking(9) for name in (product, beside)})

    assert names(constructors_over_8(sources)) == [f"{product}: Takes9"]


def test_only_comments_that_keep_the_formatter_away_are_skips(tmp_path: Path) -> None:
    skip = "# fmt: " + "skip"
    sources = tree(tmp_path, {"a.py": f"x = 1  {skip}\n", "b.py": f'x = "{skip}"\n', "c.py": "x = 1  # fmt\n"})

    assert names(fmt_skips(sources)) == ["a.py"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a.x a.y", "a.y a.z"], []),
        (["a.x a.y", "a.y a.z", "a.z a.x"], ["a.x a.y a.z"]),
        # Modules do not import each other in a circle, their packages do.
        (["a.b.x a.c.x", "a.c.y a.b.y"], ["a.b a.c"]),
        (["a.x b.x", "b.y a.y"], ["a b"]),
        # A package's own module.
        (["a a.b.x", "a.b.y a"], ["a.__init__ a.b"]),
        (["a.x a.y", "a.y a.x", "b.x b.y", "b.y b.x"], ["a.x a.y", "b.x b.y"]),
    ],
)
def test_circles_are_found_where_paths_part(given: list[str], expected: list[str]) -> None:
    assert names(circles(arrows(*given))) == expected


def test_an_arrow_leads_down(tmp_path: Path) -> None:
    given = arrows("top.x base.y", "base.y top.x", "left.x right.x", "left.x left.y", "right.x numpy")

    assert names(upward_arrows(given, ["top", "left | right", "base"])) == ["base.y -> top.x", "left.x -> right.x"]


def test_the_product_stands_without_what_studies_it() -> None:
    given = arrows("api.x lab.y", "lab.y api.x", "tools.z lab.y", "smore.s tools.z")

    assert names(product_imports_lab(given)) == ["api.x -> lab.y", "smore.s -> tools.z"]


def test_imports_are_read_from_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(
        tmp_path,
        {"made_up_floor/__init__.py": "", "made_up_floor/a.py": "import made_up_floor.b\n", "made_up_floor/b.py": ""},
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    assert imports(["made_up_floor"]) == arrows("made_up_floor.a made_up_floor.b")


#: In texts below stands for ``.md``, so that tools.house does not look for these files here.
MD = ".m" + "d"


@pytest.mark.parametrize(
    ("file", "text", "dead"),
    [
        ("pages/a{md}", "pkg/there.py and pkg/gone.py", ["pkg/gone.py"]),
        (
            "pages/a{md}",
            "pages/notes/0001 stands for the file that begins so, pages/notes/0002 for none",
            ["pages/notes/0002"],
        ),
        (
            "pages/a{md}",
            "[link](other{md}), [gone](gone{md}), [out](https://example.org/gone{md})",
            ["gone{md}", "gone{md}"],
        ),
        ("pages/a{md}", "[a heading](other{md}#some-words-10-) [none](other{md}#none)", ["other{md}#none"]),
        ("pages/a{md}", "`there.py: " + "Thing.run`, `pkg/there.py: " + "nothing`", ["pkg/there.py: nothing"]),
        (
            "pages/a{md}",
            "`nothing`, `LIMIT` and `run` of `Thing` " + "in `pkg/there.py`",
            ["pkg/there.py: nothing"],
        ),
        ("pkg/a.py", "# (there.py: " + "LIMIT) and (there.py: " + "Other)", ["there.py: Other"]),
        (
            "pkg/a.py",
            "# :" + "class:`Thing` :" + "func:`pkg.there.run_all` :" + "data:`json.dumps`",
            ["Thing", "pkg.there.run_all"],
        ),
        ("pkg/a.py", "# as dig" + "est A1 has it, and A" + "99", ["dig" + "est A1", "A" + "99"]),
        ("pkg/a.py", "# on an A100, in 'A9', A-B, A1", []),
    ],
)
def test_a_reference_leads_somewhere(tmp_path: Path, file: str, text: str, dead: list[str]) -> None:
    file, text = file.format(md=MD), text.format(md=MD)
    files = {
        "pkg/there.py": "LIMIT = 1\n\n\nclass Thing:\n    def run(self) -> None: ...\n",
        f"pages/other{MD}": "# Other\n\n## Some words: 10 %\n",
        PAPER: "**A1** An assumption.\n",
        f"pages/notes/0001-first{MD}": "# First\n",
        file: text + "\n",
    }
    sources = tree(tmp_path, files)

    found = names([*dead_references(sources, files), *dead_roles(sources)])
    assert found == [f"{file}: {reference.format(md=MD)}" for reference in dead]


def test_a_shape_is_doubled_in_another_module_only(tmp_path: Path) -> None:
    fields = "    a: int\n    b: int\n    c: int\n"
    sources = tree(
        tmp_path,
        {
            "one.py": f"class First(msgspec.Struct):\n{fields}\n\nclass Beside(msgspec.Struct):\n{fields}",
            "two.py": f"@dataclass(frozen=True)\nclass Second:\n{fields}    LIMIT: ClassVar[int] = 1\n",
            "three.py": "class Base(BaseModel):\n    a: int\n    b: int\n\n\nclass Third(Base):\n    c: int\n",
            "five.py": "class Fifth(Base):\n    c: int\n",
            "four.py": f"class Plain:\n{fields}\n\nclass Small(BaseModel):\n    a: int\n    b: int\n",
        },
    )

    assert names(doubled_shapes(sources)) == ["two.py: Second", "three.py: Third", "five.py: Fifth"]


def test_a_file_is_generated_that_says_so(tmp_path: Path) -> None:
    written, generated, generator = tree(
        tmp_path,
        {
            "a.py": '"""The answers."""\n',
            "b.py": '"""The answers. Generated from the document\nby c.py."""\n',
            "c.py": '"""Writes what is generated."""\n',
        },
    )
    assert [source.generated for source in (written, generated, generator)] == [False, True, False]


def test_a_package_in_a_folder_of_its_own_is_known_by_its_name(tmp_path: Path) -> None:
    folder = "client" + "/pkg"
    files = {
        f"{folder}/__init__.py": '"""See :' + "class:`pkg.one.First` and :" + 'class:`client.pkg.one.First`."""\n',
        f"{folder}/one.py": "class First: ...\n",
    }
    sources = tree(tmp_path, files)
    assert [source.module for source in sources] == ["pkg", "pkg.one"]
    assert names(dead_roles(sources)) == [f"{folder}/__init__.py: client.pkg.one.First"]


def test_exceptions_need_a_finding_and_a_reason() -> None:
    findings = [
        Finding(figure="fmt_skips", name="a.py", detail=""),
        Finding(figure="fmt_skips", name="b.py", detail=""),
    ]

    left, faults = apply(findings, {"fmt_skips": {"a.py": "a matrix", "gone.py": "a matrix"}, "files_long": {}})
    assert names(left) == ["b.py"]
    assert [fault.partition(": the")[0] for fault in faults] == ["fmt_skips: gone.py"]

    left, faults = apply(findings, {"fmt_skips": {"a.py": " "}, "no_figure": {"x": "y"}})
    assert faults == ["fmt_skips: a.py: no reason is given", "no_figure: no such figure"]
