"""Names of the Lua scripts: every one that a script uses exists, every one that exists is used, and calls are packed."""

import re
from importlib import resources

import pytest

from smore.process.settings import QueueSettings
from smore.redis import records, scripts
from smore.redis.scripts import SHAPES, Call, pack

FOLDER = resources.files("smore.redis") / "lua"
COMMON = (FOLDER / "common.lua").read_text()


def lua(name: str) -> str:
    return "fk" if name == "function" else name


def names(of: str, text: str) -> set[str]:
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return set(re.findall(rf"(?<![\w.]){of}\.(\w+)", code))


def test_every_script_has_a_shape() -> None:
    files = {file.name for file in FOLDER.iterdir()}
    assert files == {f"{name}.lua" for name in SHAPES} | {"common.lua"}


@pytest.mark.parametrize("script", SHAPES)
def test_a_script_reads_its_arguments_and_no_other(script: str) -> None:
    text, shape = (FOLDER / f"{script}.lua").read_text(), SHAPES[script]
    used = names("arg", text)
    if "limited(fk, t, arg" in text:
        # The gate's two checks, in common.lua, read what is handed to them.
        used |= names("bounds", COMMON) | names("limits", COMMON)
    assert used == set(map(lua, shape.arguments))
    assert names("item", text) == set(map(lua, shape.items))


def test_fields_of_records_and_lists_exist() -> None:
    texts = [(FOLDER / f"{script}.lua").read_text() for script in SHAPES] + [COMMON]
    fields = set(map(lua, records.FIELDS))
    for text in texts:
        assert names("F", text) <= fields
        for arguments in re.findall(r"\bread\((?:[^()']|\([^()]*\))*,((?:\s*'\w+',?)+)\)", text):
            assert set(re.findall(r"'(\w+)'", arguments)) <= fields
    lists = {*scripts._LISTS, *(kind.__name__ for kind in scripts._MESSAGES)}
    assert set().union(*(names("list", text) for text in texts)) == lists


@pytest.mark.parametrize("script", SHAPES)
def test_a_script_has_the_definitions_that_it_uses_and_no_others(script: str) -> None:
    text = scripts.script_sources(QueueSettings())[script]
    code = re.sub(r"'[^']*'|\"[^\"]*\"|^ *--.*$", "", text, flags=re.MULTILINE)
    assert not re.findall(r"\b(?:F|list|FROM)\.|\bread\(", code), "names are written out"
    defined = [
        name
        for names in re.findall(r"^local (?:function )?([\w, ]+?)\s*[(=\n]", code, re.MULTILINE)
        for name in names.split(", ")
    ]
    shared = set(re.findall(r"^local (?:function )?(\w+)", COMMON, re.MULTILINE))
    called = set(re.findall(r"(?<![\w.:])(\w+)\(", code)) - {"tonumber", "ipairs", "pairs", "tostring", "unpack"}
    assert called & shared <= set(defined)
    for name in defined:
        assert len(re.findall(rf"(?<![\w.]){name}\b", code)) > 1 or name not in shared, name


def test_arguments_are_packed_by_name_in_the_order_of_the_shape() -> None:
    call = Call(
        "start",
        {"how": "", "lease_us": 5, "gpu": "g", "function": "p/f"},
        [{"attempt": 1, "id": "a"}, {"id": "b", "attempt": 2}],
    )
    assert pack(call) == ["p/f", "g", 5, "", "a", 1, "b", 2]
    with pytest.raises(KeyError):
        pack(Call("start", {"how": "", "lease_us": 5, "gpu": "g"}))


def test_an_invocation_of_the_revision_before_is_read() -> None:
    stored = {"f": b"p/f", "rev": b"3", "st": b"queued", "at": b"1", "dl": b"17", "acc": b"json", "rows": b"2"}
    record = records.invocation_record("i", [stored.get(field) for field in records.RECORD_FIELDS])
    assert record is not None
    assert (record.function, record.revision, record.state, record.attempt) == ("p/f", 3, "queued", 1)
    assert (record.deadline_us, record.rows, record.gate_us, record.trace) == (17, 2, 0, "")
    assert records.invocation_record("i", [None] * len(records.RECORD_FIELDS)) is None
