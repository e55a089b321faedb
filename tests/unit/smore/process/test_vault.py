"""Secrets: sealed, bound to their name, hidden in what a runner says."""

import os
from pathlib import Path

import pytest

from smore.domain.errors import InvalidSpec
from smore.domain.function import parse_secret_name, parse_spec
from smore.messages.specs import pack_spec, unpack_spec
from smore.process.vault import NoKey, Sealed, Vault, make_key
from worker.frames import Answer, Failed, Predicted
from worker.pool.errors import LoadFailed
from worker.pool.secrets import Secrets
from worker.runner.masking import Mask


def test_what_is_sealed_comes_back_under_its_name_alone(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "key"
    make_key(file)
    assert file.stat().st_mode & 0o777 == 0o600 and os.listdir(file.parent) == ["key"]
    before = file.read_text()
    make_key(file)
    assert file.read_text() == before, "a key that is there stays: what it sealed would be lost"
    vault = Vault.open(file)
    sealed = vault.seal("p", "TOKEN", "geheim µ")
    assert b"geheim" not in sealed and sealed != vault.seal("p", "TOKEN", "geheim µ")
    assert vault.unseal("p", "TOKEN", sealed) == "geheim µ"
    for project, name in (("q", "TOKEN"), ("p", "OTHER")):
        with pytest.raises(Sealed):
            vault.unseal(project, name, sealed)
    for broken in (b"", sealed[:5], sealed[:-1], b"\x02" + sealed[1:]):
        with pytest.raises(Sealed):
            vault.unseal("p", "TOKEN", broken)
    make_key(tmp_path / "other")
    with pytest.raises(Sealed):
        Vault.open(tmp_path / "other").unseal("p", "TOKEN", sealed)


def test_without_a_whole_key_there_is_no_vault(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for text in (None, "", "zz", "ab" * 16):
        if text is not None:
            file.write_text(text)
        with pytest.raises(NoKey):
            Vault.open(file)


@pytest.mark.parametrize(
    "name", ["", "lower", "1A", "A-B", "A" * 65, "PATH", "LD_PRELOAD", "PYTHONPATH", "SMORE_HOME", "HOME", None]
)
def test_names_that_are_no_secrets_names(name: object) -> None:
    with pytest.raises(InvalidSpec):
        parse_secret_name(name)


def test_a_function_names_its_secrets() -> None:
    spec = parse_spec({"entrypoint": "m:C", "secrets": ["API_TOKEN", "DB"]})
    assert spec.secrets == ("API_TOKEN", "DB") and unpack_spec(pack_spec(spec)) == spec
    assert parse_spec({"entrypoint": "m:C"}).secrets == ()
    for wrong in ("API_TOKEN", ["A", "A"], [1], ["lower"]):
        with pytest.raises(InvalidSpec, match=r"spec\.secrets"):
            parse_spec({"entrypoint": "m:C", "secrets": wrong})


class FakeCatalog:
    def __init__(self, **sealed: bytes) -> None:
        self.sealed = sealed

    def secrets(self, project: str, names: list[str]) -> dict[str, bytes]:
        return {name: self.sealed[name] for name in names if name in self.sealed}


def test_a_worker_opens_what_the_function_names(tmp_path: Path) -> None:
    file = tmp_path / "key"
    make_key(file)
    vault = Vault.open(file)
    catalog = FakeCatalog(
        A=vault.seal("p", "A", "the first"), B=vault.seal("p", "B", "the second"), C=vault.seal("q", "C", "another's")
    )
    opened = Secrets(catalog, file)  # type: ignore[arg-type]

    def spec(*names: str) -> object:
        return parse_spec({"entrypoint": "m:C", "secrets": list(names)})

    assert opened.of("p/f", spec("A")) == {"A": "the first"}  # type: ignore[arg-type]
    assert opened.of("p/f", spec()) == {}  # type: ignore[arg-type]
    for names, reason in ((("A", "MISSING"), "MISSING"), (("C",), "cannot be opened")):
        with pytest.raises(LoadFailed, match=reason):
            opened.of("p/f", spec(*names))  # type: ignore[arg-type]
    with pytest.raises(LoadFailed, match="cannot be opened"):
        Secrets(catalog, tmp_path / "none").of("p/f", spec("A"))  # type: ignore[arg-type]


def test_what_a_runner_says_is_masked() -> None:
    mask = Mask(["hunter2-hunter2", "hunter2-hunter2-longer", "-----BEGIN-----\nsecond line\nend", "short"])
    printed = b"it is hunter2-hunter2-longer, hunter2-hunter2 and \xff second line, short\n"
    assert mask.printed(printed) == b"it is ***, *** and \xff ***, short\n"
    said = "ValueError: hunter2-hunter2"
    failed = mask.answer(Failed(cause="handler_error", message=said, traceback=f"Traceback\n{said}"))
    assert isinstance(failed, Failed) and failed.message == "ValueError: ***"
    assert failed.traceback == "Traceback\nValueError: ***"
    predicted = mask.answer(
        Predicted(answers=[Answer(form="error", message="no hunter2-hunter2"), Answer(form="json")])
    )
    assert isinstance(predicted, Predicted) and [one.message for one in predicted.answers] == ["no ***", ""]
