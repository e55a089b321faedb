"""The supervisor's client."""

import socket
from pathlib import Path

import pytest

from smore.local import supervision


def test_a_supervisor_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert supervision.running(tmp_path) is None
    monkeypatch.setattr(supervision, "ANSWER_S", 0.1)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as stopped:
        # The name of a socket is short.
        stopped.bind("supervisor.sock")
        stopped.listen()
        (tmp_path / "supervisor.pid").write_text("4711\n")
        with pytest.raises(TimeoutError, match=r"process 4711\) does not answer within 0.1 s.*kill -CONT 4711"):
            supervision.running(Path())
