"""
A scripted newcomer, who runs the marked blocks of a document word by word in a copy of the checkout.

A mark is an HTML comment on the line before a fenced block:

* ``<!-- walk: quick -->``: the acceptance test runs the block (tests/acceptance/test_first_hour.py), and so does
  ``python -m tools.first_hour``.
* ``<!-- walk: long -->``: ``python -m tools.first_hour`` alone runs it.
* ``<!-- walk: output -->``: what the marked block before it prints. ``…`` stands for any text; the output may have more
  lines before and after.
* ``<!-- walk: quick, after `make up` -->``: a command that the text above has named comes first.

A block in ``sh`` is run by bash with ``-e``; the working folder and exported variables last until the end of the
document. A block in ``python`` or ``yaml`` whose first line is a comment with a path (``# twice/handler.py``) is written
to that file; another block in ``python`` is run as a program.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.bench.ports import free_port
from lab.bench.report import ROOT
from smore.local import machine

DOCUMENTS: Final = ("README.md", "docs/**/*.md")
KINDS: Final = ("quick", "long", "output")
#: Seconds that one block may take.
LIMIT_S: Final = 600.0
#: The port in the documents; a walk takes a free one, because a platform may run on this machine.
PORT: Final = 8400
#: The last step of `make install`. It takes a minute where nothing was compiled yet, else a few seconds.
INSTALLED: Final = ".venv/bin/python -m scheduler.policy"

_MARK: Final = re.compile(r"^<!-- walk: (\w+)(?:, after `([^`]+)`)? -->$")
_FENCE: Final = re.compile(r"^```(\w*)$")
_PATH: Final = re.compile(r"^# ([\w./-]+\.\w+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A marked block. ``line``: of its fence, from 1; ``output``: what the document promises, "" = nothing."""

    document: str
    line: int
    kind: str
    language: str
    text: str
    after: str = ""
    output: str = ""

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def file(self) -> str:
        """The path that the block is written to; "" where it is run."""
        first = self.text.partition("\n")[0]
        match = _PATH.match(first) if self.language in ("python", "yaml") else None
        return match[1] if match else ""

    def commands(self) -> list[str]:
        """The shell commands that somebody types: the one before it, and those of a block in ``sh``."""
        typed = [self.after] if self.after else []
        return typed + (commands(self.text) if self.language == "sh" else [])


def commands(text: str) -> list[str]:
    """The commands of a shell script: lines without comments, continued lines and here-documents as one."""
    typed: list[str] = []
    end = ""
    continued = False
    for line in text.splitlines():
        if end or continued:
            typed[-1] += f"\n{line}"
        elif line.strip() and not line.lstrip().startswith("#"):
            typed.append(line)
        else:
            continue
        if end:
            end = "" if line.strip() == end else end
        elif match := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", line):
            end = match[1]
        continued = not end and line.endswith("\\")
    return typed


def blocks(text: str, document: str) -> list[Block]:
    """
    The marked blocks of a document in their order. Raises ValueError for a mark of another kind, one that no block
    follows, an output without a block, and an ``after`` that the text above does not name.
    """
    lines = text.splitlines()
    marked: list[Block] = []
    for number, line in enumerate(lines):
        if not line.startswith("<!-- walk"):
            continue
        mark = _MARK.match(line)
        place = f"{document}:{number + 1}"
        if mark is None or mark[1] not in KINDS:
            raise ValueError(f"{place}: {line!r} is no mark")
        fence = _FENCE.match(lines[number + 1]) if number + 1 < len(lines) else None
        if fence is None:
            raise ValueError(f"{place}: no fenced block follows the mark")
        close = lines.index("```", number + 2)
        content = "\n".join(lines[number + 2 : close]) + "\n"
        kind, after = mark[1], mark[2] or ""
        if kind == "output":
            if not marked or marked[-1].output:
                raise ValueError(f"{place}: no block comes before this output")
            last = marked.pop()
            marked.append(
                Block(**{name: getattr(last, name) for name in last.__slots__ if name != "output"}, output=content)
            )
            continue
        if after and after not in "\n".join(above for above in lines[:number] if not above.startswith("<!--")):
            raise ValueError(f"{place}: the text above does not name `{after}`")
        marked.append(
            Block(document=document, line=number + 2, kind=kind, language=fence[1], text=content, after=after)
        )
    return marked


def documents(root: Path = ROOT) -> dict[str, list[Block]]:
    """The marked blocks of every document that has some. Raises ValueError as :func:`blocks`."""
    files = sorted({file for pattern in DOCUMENTS for file in root.glob(pattern)})
    names = [file.relative_to(root).as_posix() for file in files]
    marked = {name: blocks((root / name).read_text(), name) for name in names}
    return {name: of_document for name, of_document in marked.items() if of_document}


def differs(printed: str, promised: str) -> str:
    """Why the output is not what the document promises; "" where it is."""
    parts = [re.escape(part) for part in "\n".join(line.rstrip() for line in promised.strip().splitlines()).split("…")]
    plain = "\n".join(line.rstrip() for line in printed.splitlines())
    return "" if re.search(f"(?ms:^{'.*?'.join(parts)}$)", plain) else f"printed {printed!r}, promised {promised!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """A block that was run. ``problem``: why it failed, "" = it did not."""

    block: Block
    seconds: float
    problem: str


class Newcomer:
    """
    A copy of the checkout in ``folder``, installed, with a platform of its own; close it. ``compiled``: with the
    bytecode of the checkout too, which a newcomer's first start has to make.
    """

    def __init__(self, folder: Path, *, compiled: bool = False) -> None:
        self.folder = folder / "smore"
        self.home = self.folder / ".smore"
        self.port = free_port()
        _copy(self.folder, compiled)
        self._state = folder / "shell"
        self._state.mkdir()
        self._environment = _clean(os.environ) | {
            # Stands in for the editable installation, which names the checkout that this one was copied from.
            "PYTHONPATH": str(self.folder),
            "SMORE_API__PORT": str(self.port),
        }
        self.forget()
        self.shell(INSTALLED)

    def forget(self) -> None:
        """Begin a new shell."""
        for file in self._state.iterdir():
            file.unlink()

    def walk(self, marked: Sequence[Block]) -> list[Walked]:
        """Run the blocks of one document; those after one that fails are not run and count as failed."""
        self.forget()
        walked: list[Walked] = []
        for block in marked:
            if walked and walked[-1].problem:
                walked.append(Walked(block=block, seconds=0.0, problem="a block before it failed"))
                continue
            began = time.monotonic()
            problem = self._run(block)
            walked.append(Walked(block=block, seconds=time.monotonic() - began, problem=problem))
        return walked

    def _run(self, block: Block) -> str:
        text = block.text.replace(f":{PORT}", f":{self.port}")
        try:
            if block.after:
                self.shell(block.after)
            if block.file:
                target = self.folder / block.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text.partition("\n")[2])
                return ""
            if block.language == "python":
                program = self.folder / "block.py"
                program.write_text(text)
                printed = self.shell(f"{self.folder / '.venv' / 'bin' / 'python'} {program}")
            else:
                printed = self.shell(text)
        except RuntimeError as error:
            return str(error)
        return differs(printed, block.output) if block.output else ""

    def shell(self, script: str) -> str:
        """
        What a script prints; the next one goes on in its folder and with its variables. RuntimeError with its output
        where it fails or takes longer than LIMIT_S.
        """
        variables, where = self._state / "variables", self._state / "folder"
        # Bash's own variables cannot be set again; the errors say so and do not matter.
        go_on = f'[ ! -e {variables} ] || {{ . {variables}; cd "$(cat {where})"; }} 2>/dev/null\n'
        keep = f"trap 'export -p > {variables}; pwd > {where}' EXIT\n"
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", f"{go_on}{keep}{script}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            printed, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise RuntimeError(f"{script.strip()}: not finished within {LIMIT_S:g} s") from error
        if process.returncode:
            raise RuntimeError(f"{script.strip()}: status {process.returncode}: {printed[-1000:]}{errors[-2000:]}")
        return printed

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        """The operator's key, which the first start writes."""
        return (self.home / "key").read_text().strip()

    def remove_home(self) -> None:
        """Begin with an empty platform; it must not run."""
        shutil.rmtree(self.home, ignore_errors=True)

    def close(self) -> None:
        """End the platform."""
        machine.down(self.home)


def _clean(environment: "os._Environ[str]") -> dict[str, str]:
    """The environment without the platform's settings, and without this Python on the path: a newcomer sets both."""
    own = {str(Path(sys.prefix, "bin")), str(Path(sys.executable).parent)}
    path = [folder for folder in environment.get("PATH", "").split(os.pathsep) if folder not in own]
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("SMORE_") and name not in ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    }
    return kept | {"PATH": os.pathsep.join(path)}


def copy(folder: Path, compiled: bool = False) -> None:
    """The files of the checkout that git does not ignore; ``compiled``: with their bytecode."""
    # What `make install` has compiled of a file; what running it has.
    endings = ("nb?", "pyc") if compiled else ("nb?",)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, folder / name
        if not source.is_file():
            continue  # removed, and not committed yet
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        for ending in endings:
            for made in source.parent.glob(f"__pycache__/{source.stem}.*.{ending}"):
                target.with_name("__pycache__").mkdir(exist_ok=True)
                shutil.copy2(made, target.with_name("__pycache__"))


def _copy(folder: Path, compiled: bool) -> None:
    """:func:`copy` and its installation: a ``.venv`` that leads to this Python's."""
    copy(folder, compiled)
    installed = folder / ".venv"
    installed.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith(".installed"):
            (installed / entry.name).symlink_to(entry)
    # Newer than every file, so that `make` does not install again.
    for stamp in (".installed", ".installed-dev"):
        (installed / stamp).touch()
