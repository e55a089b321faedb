"""
Checks of the repository's structure: ``python -m tools.house --json``. It reads source files and imports, and starts
nothing.

Each figure is a count of findings that are not listed as exceptions:

* ``files_long``: files with more than 500 lines of code; ``classes_long``: classes with more than 300.
  Docstrings, comments and blank lines do not count as code. Tests, migrations and generated files are left out.
* ``circles``: circular imports among the modules and packages of one package.
* ``upward_arrows``: imports from a layer into a higher one or another of the same height, by the contract ``layers`` of
  pyproject.toml.
* ``product_imports_lab``: imports of the laboratory or the tools by the product.
* ``fmt_skips``: comments that switch the formatter off.
* ``dead_references`` in documents, comments and strings: a path, link or heading that does not exist; a name that its
  module does not define (``path.py: name``, or the name ``in`` the path, both in backticks); a cross-reference in a
  docstring (``:class:`` and the like) that does not resolve; a document outside the repository; an assumption that
  docs/paper.md does not list.
* ``doubled_shapes``: classes with fields (msgspec, pydantic, dataclass, NamedTuple, TypedDict) in different modules with
  the same set of at least three field names; every class after the first counts. Files whose docstring says that they
  are generated repeat shapes on purpose and do not count.

* ``thin_descriptions``: fields of REST's bodies (api/schemas) and parameters whose description has three words or
  fewer, or is another field's of the same body too.
* ``constructors_over_8``: classes of the product whose constructor takes more than eight arguments.

Two sizes are told beside them, and bound nothing: ``product_code``, lines of the product's Python code, and
``docs_words``, words of the documents without generated pages and logs of measurements.

``tools/house.toml`` lists the exceptions: a table for each figure, a line for each finding, with the reason. An
exception that matches no finding is an error, so the list stays current. The exit status is 1 where anything is found.
"""

import argparse
import ast
import builtins
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

import grimp

from lab.bench.report import ROOT, emit, progress

FILE_LINES: Final = 500
CLASS_LINES: Final = 300
#: Number of equal fields from which on two classes count as one shape written twice.
SHAPE_FIELDS: Final = 3
#: Words of the longest description that says nothing.
THIN_WORDS: Final = 3
ARGUMENTS: Final = 8
FIGURES: Final = (
    "files_long",
    "classes_long",
    "circles",
    "upward_arrows",
    "product_imports_lab",
    "fmt_skips",
    "dead_references",
    "doubled_shapes",
    "thin_descriptions",
    "constructors_over_8",
)
EXCEPTIONS: Final = Path("tools/house.toml")
PAPER: Final = "docs/paper.md"

#: Folders of what an installation needs to serve functions and to train, and of what studies it and keeps the repository.
PRODUCT: Final = ("api/", "client/", "migrations/", "ml/", "scheduler/", "smore/", "worker/", "zoo/")
BESIDE: Final = ("lab", "tools")
#: Documents that are generated, and logs.
NOT_WRITTEN: Final = ("docs/reference/", "docs/research/log/")
#: Folders whose files and classes may be of any length.
ANY_LENGTH: Final = ("tests/", "migrations/")
#: Folders of the repository whose packages are imported by names without the folder, as pyproject.toml (mypy_path) says.
PACKAGE_ROOTS: Final = ("client/",)
TEXT: Final = (".py", ".md", ".lua", ".yaml", ".yml", ".toml", ".ini", ".sh", "Makefile", "Dockerfile", ".env.example")
#: These look like paths of the repository and are not: the version in ``apiVersion`` of a function.yaml, a file that
#: ``smore predictor report`` writes, and folders of the wheel.
NO_PATHS: Final = frozenset({"smore/v1", "report.md", "smore/_tree", "smore/_tree/lab"})

_LINK: Final = re.compile(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]+)?\)")
_DOCUMENT: Final = re.compile(r"(?<![\w/.@-])((?:\.\./)*(?:[\w-]+/)*[\w-]+\.md)\b")
_NAMED: Final = re.compile(r"(?:`|\()((?:[\w-]+/)*[\w-]+\.(?:py|lua)): ([A-Za-z_][\w.]*)(?=[`)\[(,])")
#: ``name`` in ``path``, and several names so.
_NAMES_IN: Final = re.compile(r"((?:`[A-Za-z_][\w.]*`(?:, | and | of )?)+) in `((?:[\w-]+/)*[\w-]+\.(?:py|lua))`")
_ROLE: Final = re.compile(r":(?:class|data|func|meth|attr|mod|exc):`~?([\w.]+)`")
_OUTSIDE: Final = re.compile(r"\b[Dd]igest [A\d][\d.]*|\b\w+ §\s?\d|\bshared/(?:design|papers)\b")
_ASSUMPTION: Final = re.compile(r"(?<![\w/.\"'-])A(\d{1,2})(?:\.\d)?(?![\w-])")
_SKIP: Final = re.compile(r"#\s*fmt:\s*(?:skip|off)")
_GENERATED: Final = re.compile(r"\b[Gg]enerated from\b.+\bby\b", re.DOTALL)
_WORD: Final = re.compile(r"\S*\w\S*")
_HEADING: Final = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``name`` identifies the finding in the list of exceptions, without a line number; ``detail`` says where it is."""

    figure: str
    name: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """Module ``importer`` imports module ``imported``."""

    importer: str
    imported: str


class Source:
    """One file of the tree. ``name``: its path from the root, with slashes."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.text = (root / name).read_text()

    @property
    def module(self) -> str:
        """Its name in imports."""
        name = self.name.removesuffix(".py").removesuffix("/__init__")
        for folder in PACKAGE_ROOTS:
            name = name.removeprefix(folder)
        return name.replace("/", ".")

    @cached_property
    def generated(self) -> bool:
        """Whether its docstring says ``Generated from ... by ...``."""
        return _GENERATED.search(ast.get_docstring(self.tree) or "") is not None

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def code(self) -> frozenset[int]:
        """Numbers of the lines with code, without blank lines, comments and docstrings."""
        quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in quiet:
                lines.update(range(token.start[0], token.end[0] + 1))
        for docstring in _docstrings(self.tree):
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
        blank = {number for number, line in enumerate(self.text.split("\n"), 1) if not line.strip()}
        return frozenset(lines - blank)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that the file defines or imports, at any depth, attributes of ``self`` included."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        return frozenset(names)

    @cached_property
    def headings(self) -> frozenset[str]:
        """Anchors of a Markdown file's headings, as GitHub makes them."""
        titles = _HEADING.findall(re.sub(r"^```.*?^```", "", self.text, flags=re.DOTALL | re.MULTILINE))
        return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.value


def long_files(sources: Iterable[Source]) -> Iterator[Finding]:
    for source in sources:
        if len(source.code) > FILE_LINES:
            yield Finding(figure="files_long", name=source.name, detail=f"{len(source.code)} lines of code")


def long_classes(sources: Iterable[Source]) -> Iterator[Finding]:
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                lines = len(source.code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
                if lines > CLASS_LINES:
                    name = f"{source.name}: {node.name}"
                    yield Finding(figure="classes_long", name=name, detail=f"{lines} lines of code")


def fmt_skips(sources: Iterable[Source]) -> Iterator[Finding]:
    for source in sources:
        tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
        lines = [token.start[0] for token in tokens if token.type == tokenize.COMMENT and _SKIP.match(token.string)]
        if lines:
            where = ", ".join(f"line {line}" for line in lines)
            yield Finding(figure="fmt_skips", name=source.name, detail=where)


def imports(roots: Sequence[str]) -> list[Import]:
    """Every import between modules of these top-level packages, including imports for type checking only."""
    graph = grimp.build_graph(*roots, cache_dir=None)
    return [
        Import(importer=importer, imported=imported)
        for importer in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(importer))
    ]


def circles(arrows: Iterable[Import]) -> Iterator[Finding]:
    """
    Circular imports among the modules and packages of each package, and among the top-level packages. An import counts
    for the package in which the two paths differ first, so each circle is found once.
    """
    levels: dict[str, dict[str, set[str]]] = {}
    for arrow in arrows:
        source, target = arrow.importer.split("."), arrow.imported.split(".")
        alike = [first == second for first, second in zip(source, target, strict=False)]
        shared = alike.index(False) if False in alike else len(alike)
        beside = levels.setdefault(".".join(source[:shared]), {})
        # The module of a package itself (__init__) is a node beside the modules in it.
        first = ".".join(source[: shared + 1]) + (".__init__" if shared == len(source) else "")
        second = ".".join(target[: shared + 1]) + (".__init__" if shared == len(target) else "")
        beside.setdefault(first, set()).add(second)
    for _, graph in sorted(levels.items()):
        for circle in _circles(graph):
            yield Finding(figure="circles", name=" ".join(circle), detail=f"{len(circle)} import each other")


def _circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan), each sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for following in sorted(graph.get(node, ())):
            if following not in order:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], order[following])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                circles.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return circles


def upward_arrows(arrows: Iterable[Import], layers: Sequence[str]) -> Iterator[Finding]:
    """Imports against ``layers``: from the highest to the lowest, with ``|`` between packages of one layer."""
    floor = {name.strip(): number for number, names in enumerate(layers) for name in names.split("|")}
    for arrow in arrows:
        source, target = arrow.importer.partition(".")[0], arrow.imported.partition(".")[0]
        if source != target and source in floor and target in floor and floor[target] <= floor[source]:
            name = f"{arrow.importer} -> {arrow.imported}"
            yield Finding(figure="upward_arrows", name=name, detail="imports what is not below it")


def product_imports_lab(arrows: Iterable[Import]) -> Iterator[Finding]:
    for arrow in arrows:
        if arrow.imported.partition(".")[0] in BESIDE and arrow.importer.partition(".")[0] not in BESIDE:
            name = f"{arrow.importer} -> {arrow.imported}"
            yield Finding(figure="product_imports_lab", name=name, detail="an installation need not have it")


def dead_references(sources: Sequence[Source], files: Collection[str]) -> Iterator[Finding]:
    """References but those of :func:`dead_roles` that lead nowhere. ``files``: the paths of all files of the repository."""
    references = _References(sources, files)
    for source in sources:
        for number, line in enumerate(source.text.split("\n"), 1):
            for reference, fault in references.dead(source, line):
                name = f"{source.name}: {reference}"
                yield Finding(figure="dead_references", name=name, detail=f"line {number}: {fault}")


class _References:
    def __init__(self, sources: Sequence[Source], files: Collection[str]) -> None:
        self._sources = {source.name: source for source in sources}
        self._existing = {str(parent) for name in files for parent in (Path(name), *Path(name).parents)}
        #: Beginnings of names: ``docs/decisions/0013`` refers to the file whose name begins so.
        begun = {name[:end] for name in files for end in range(len(name)) if name[end] in "-."}
        self._known = self._existing | begun
        folders = sorted({name.partition("/")[0] for name in files if "/" in name and not name.startswith(".")})
        self._path = re.compile(rf"(?<![\w/.~$<>{{}}*:-])((?:{'|'.join(folders) or '(?!)'})/[\w./-]*\w)")
        paper = self._sources.get(PAPER)
        self._assumptions = set(re.findall(r"\bA(\d{1,2})\b", paper.text)) if paper else set()

    def dead(self, source: Source, line: str) -> Iterator[tuple[str, str]]:
        """The references of a line that lead nowhere, each with what is wrong."""
        if "/" in line:
            for path in self._path.findall(line):
                if path.rstrip("/") not in NO_PATHS and not self._exists(path.rstrip("/"), source.name):
                    yield path, "no such file"
        if source.name.endswith(".md"):
            for target, anchor in _LINK.findall(line):
                yield from self._link(source, target, anchor)
        if ".md" in line:
            for document in _DOCUMENT.findall(line):
                if document not in NO_PATHS and not self._is_document(document, source.name):
                    yield document, "no such document"
        for path, name in self._names(line):
            if not any(self._defines(file, name) for file in self._named(path)):
                yield f"{path}: {name}", "no such name there"
        for outside in _OUTSIDE.findall(line):
            yield outside, "a document outside the repository"
        if source.name.endswith((".py", ".yaml")):
            for number in _ASSUMPTION.findall(line):
                if number not in self._assumptions:
                    yield f"A{number}", f"no such assumption in {PAPER}"

    @staticmethod
    def _names(line: str) -> Iterator[tuple[str, str]]:
        """Each path with a name that a line says to be defined there."""
        yield from _NAMED.findall(line)
        if "` in `" in line:
            for names, path in _NAMES_IN.findall(line):
                yield from ((path, name) for name in names.replace("`", " ").split() if name not in {",", "and", "of"})

    def _is_document(self, document: str, beside: str) -> bool:
        if self._exists(document, beside):
            return True
        # A text that becomes part of another document names files by the ends of their paths.
        end = f"/{document.lstrip('./')}"
        return any(name.endswith(end) for name in self._sources)

    def _exists(self, path: str, beside: str) -> bool:
        near = os.path.normpath(f"{Path(beside).parent}/{path}")
        return not {path, near}.isdisjoint(self._known)

    def _link(self, source: Source, target: str, anchor: str) -> Iterator[tuple[str, str]]:
        path = os.path.normpath(f"{Path(source.name).parent}/{target}") if target else source.name
        if path not in self._existing:
            yield target, "no such file"
        elif anchor and path in self._sources and anchor[1:] not in self._sources[path].headings:
            yield f"{target}{anchor}", "no such heading"

    def _named(self, path: str) -> list[Source]:
        return [source for name, source in self._sources.items() if name == path or name.endswith(f"/{path}")]

    @staticmethod
    def _defines(source: Source, name: str) -> bool:
        if source.name.endswith(".py"):
            return set(name.rstrip(".").split(".")) <= source.names
        return name in source.text


def dead_roles(sources: Iterable[Source]) -> Iterator[Finding]:
    """Cross-references in docstrings (``:class:`` and the like) that do not resolve."""
    python = [source for source in sources if source.name.endswith(".py")]
    modules = {source.module: source for source in python}
    for source in python:
        for number, line in enumerate(source.text.split("\n"), 1):
            for role in _ROLE.findall(line) if "`" in line else ():
                if not _resolves(modules, source, role):
                    name = f"{source.name}: {role}"
                    yield Finding(figure="dead_references", name=name, detail=f"line {number}: no such name")


def _resolves(modules: Mapping[str, Source], source: Source, name: str) -> bool:
    parts = name.split(".")
    if set(parts) <= source.names or hasattr(builtins, parts[0]):
        return True
    for end in range(len(parts), 0, -1):
        module = modules.get(".".join(parts[:end]))
        if module is not None:
            return set(parts[end:]) <= module.names
    # An imported class' member, or a module of a library.
    return parts[0] in source.names or parts[0] in sys.stdlib_module_names


def doubled_shapes(sources: Iterable[Source]) -> Iterator[Finding]:
    sources = list(sources)
    classes = {node.name: node for source in sources for node in _classes(source.tree).values()}
    shapes: dict[frozenset[str], list[tuple[Source, str]]] = {}
    for source in sources:
        for name, fields in _shapes({**classes, **_classes(source.tree)}, _classes(source.tree)):
            if len(fields) >= SHAPE_FIELDS:
                shapes.setdefault(fields, []).append((source, name))
    for fields, doubled in sorted(shapes.items(), key=lambda item: sorted(item[0])):
        first, *others = doubled
        for source, name in others:
            if source.name != first[0].name:
                detail = f"the fields of {first[0].name}: {first[1]} ({', '.join(sorted(fields))})"
                yield Finding(figure="doubled_shapes", name=f"{source.name}: {name}", detail=detail)


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _shapes(
    classes: Mapping[str, ast.ClassDef], wanted: Mapping[str, ast.ClassDef]
) -> Iterator[tuple[str, frozenset[str]]]:
    """
    Name and field names of each wanted class that has fields, including the fields of its bases. ``classes``: the
    classes among which bases are found, by name.
    """

    def bases(node: ast.ClassDef) -> list[str]:
        return [ast.unparse(base).rpartition(".")[2] for base in node.bases]

    def holds_fields(node: ast.ClassDef, derived: frozenset[str] = frozenset()) -> bool:
        decorated = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        kinds = {"Struct", "BaseModel", "BaseSettings", "NamedTuple", "TypedDict"}
        derived |= {node.name}
        return decorated or any(
            base in kinds or (base in classes and base not in derived and holds_fields(classes[base], derived))
            for base in bases(node)
        )

    def fields(node: ast.ClassDef, derived: frozenset[str] = frozenset()) -> frozenset[str]:
        derived |= {node.name}
        inherited = [fields(classes[base], derived) for base in bases(node) if base in classes and base not in derived]
        own = {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and "ClassVar" not in ast.unparse(item.annotation)
        }
        return frozenset(own).union(*inherited)

    for node in wanted.values():
        if holds_fields(node):
            yield node.name, fields(node)


def thin_descriptions(sources: Iterable[Source]) -> Iterator[Finding]:
    for source in sources:
        if not source.name.startswith("api/"):
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and source.name.startswith("api/schemas/"):
                texts = _field_texts(node)
                for field, text in texts.items():
                    if len(text.split()) <= THIN_WORDS or list(texts.values()).count(text) > 1:
                        name = f"{source.name}: {node.name}.{field}"
                        yield Finding(figure="thin_descriptions", name=name, detail=text or "it has none")
            elif isinstance(node, ast.keyword) and node.arg == "description" and isinstance(node.value, ast.Constant):
                text = str(node.value.value)
                if len(text.split()) <= THIN_WORDS:
                    yield Finding(figure="thin_descriptions", name=f"{source.name}: {text}", detail="of a parameter")


def _field_texts(node: ast.ClassDef) -> dict[str, str]:
    """The text below each field of a class, '' = there is none."""
    return {
        field.target.id: str(below.value.value)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        else ""
        for field, below in pairwise([*node.body, ast.Pass()])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if "ClassVar" not in ast.unparse(field.annotation)
    }


def constructors_over_8(sources: Iterable[Source]) -> Iterator[Finding]:
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and source.name.startswith(PRODUCT):
                taken = max(map(_arguments, node.body))
                if taken > ARGUMENTS:
                    name = f"{source.name}: {node.name}"
                    yield Finding(figure="constructors_over_8", name=name, detail=f"{taken} arguments")


def _arguments(node: ast.stmt) -> int:
    """Of a constructor, without ``self``; 0 of any other statement."""
    if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
        return 0
    return len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) - 1


def apply(findings: Iterable[Finding], exceptions: Mapping[str, Mapping[str, str]]) -> tuple[list[Finding], list[str]]:
    """
    The findings that are not listed as exceptions, and the errors of the list: a figure that does not exist, an
    exception without a reason, an exception that matches no finding.
    """
    left, needed = [], set()
    for finding in findings:
        if finding.name in exceptions.get(finding.figure, {}):
            needed.add((finding.figure, finding.name))
        else:
            left.append(finding)
    faults = []
    for figure, names in exceptions.items():
        if figure not in FIGURES:
            faults.append(f"{figure}: no such figure")
            continue
        for name, reason in names.items():
            if not reason.strip():
                faults.append(f"{figure}: {name}: no reason is given")
            if (figure, name) not in needed:
                faults.append(f"{figure}: {name}: the exception is not needed any more, remove it")
    return left, faults


def read(root: Path) -> tuple[list[Source], list[str]]:
    """The text files of the checkout that git knows, and the paths of all of its files."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    files = [name for name in listed.split("\n") if name and (root / name).is_file()]
    return [Source(root, name) for name in files if name.endswith(TEXT)], files


def sizes(sources: Iterable[Source]) -> dict[str, int]:
    """``product_code`` and ``docs_words``."""
    code = words = 0
    for source in sources:
        if source.name.endswith(".py") and source.name.startswith(PRODUCT):
            code += len(source.code)
        elif source.name.endswith(".md") and not source.name.startswith(NOT_WRITTEN):
            words += len(_WORD.findall(source.text))
    return {"product_code": code, "docs_words": words}


def measure(sources: Sequence[Source], files: Sequence[str], root: Path) -> list[Finding]:
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in contracts["contracts"] if contract["type"] == "layers")
    python = [source for source in sources if source.name.endswith(".py")]
    bounded = [source for source in python if not source.name.startswith(ANY_LENGTH) and not source.generated]
    arrows = imports(contracts["root_packages"])
    return [
        *long_files(bounded),
        *long_classes(bounded),
        *circles(arrows),
        *upward_arrows(arrows, layers),
        *product_imports_lab(arrows),
        *fmt_skips(python),
        *dead_references(sources, files),
        *dead_roles(sources),
        *doubled_shapes(bounded),
        *thin_descriptions(python),
        *constructors_over_8(python),
    ]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools.house", description="What the house measures of itself.")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON line")
    asked = parser.parse_args(words)
    exceptions = tomllib.loads((ROOT / EXCEPTIONS).read_text())
    sources, files = read(ROOT)
    left, faults = apply(measure(sources, files, ROOT), exceptions)
    for finding in left:
        progress(f"{finding.figure}: {finding.name} ({finding.detail})")
    for fault in faults:
        progress(f"{EXCEPTIONS}: {fault}")
    figures = {figure: sum(finding.figure == figure for finding in left) for figure in FIGURES} | sizes(sources)
    if asked.json:
        emit("python -m tools.house --json", figures, exceptions=sum(map(len, exceptions.values())))
    else:
        print(json.dumps(figures, indent=2))
    return 1 if left or faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
