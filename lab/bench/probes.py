"""
Short checks of a machine with a GPU, stages of ``lab.bench.gpu``: ``python -m lab.bench.probes facts|cell|table|platform``.

* ``facts``: the answer of each NVML query for the first GPU, or its error, and the cost and counters of CUDA. NVML is
  only read.
* ``cell``: a runner on the device in four variants (as a user of its own, as the user of all runners, as nobody, and
  not sandboxed): whether it computes, and what it may do. It fails where the first variant cannot compute, or has
  root's group.
* ``table``: copies the rows of a profiling run to ``ml/data`` of the checkout.
* ``platform``: one platform; a tensor of 64 MiB to a function and back. On a GPU also an unregistered training:
  protected first, then allowed.

Each ends its stdout with one line of JSON. Exit status 3: it cannot run here, and the last line says why.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import pynvml

from lab.bench import report

#: The user id of ``nobody``.
NOBODY: Final = 65534
#: Seconds between two readings of the counters.
WINDOW_S: Final = 1.0
PAYLOAD_MIB: Final = 64
PATIENCE_S: Final = 30.0


# ---- facts -----------------------------------------------------------------------------------------------------------


def facts(out: Path) -> dict[str, float]:
    """
    Write all answers to ``out`` as JSON; the numbers among them are the figures. Raises NVMLError where NVML finds no
    GPU, and OSError.
    """
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    answers = {name: answer(ask, pynvml.NVMLError) for name, ask in questions(pynvml, handle).items()}
    namespace = os.stat("/proc/self/ns/pid").st_ino
    answers |= {
        "pid_namespace": namespace,
        "sees_all": namespace == 0xEFFFFFFC,
        "mps_programs": [name for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server") if shutil.which(name)],
        "nvidia_uvm": Path("/dev/nvidia-uvm").exists(),
        "cuda": cuda(pynvml, handle),
    }
    out.write_text(json.dumps(answers, indent=1, default=str))
    numbers = {name: value for name, value in answers.items() if name != "pid_namespace"}
    numbers |= {f"cuda_{name}": value for name, value in answers["cuda"].items()}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, bool | int | float)}


def answer(ask: Callable[[], Any], error: type[Exception]) -> Any:
    """The value that ``ask`` returns, or the text of the error where it raises ``error``."""
    try:
        value = ask()
    except error as wrong:
        return f"{type(wrong).__name__}: {wrong}"
    return value.decode() if isinstance(value, bytes) else value


def questions(nvml: Any, handle: Any) -> Mapping[str, Callable[[], Any]]:
    """The NVML queries for one GPU, by the name of the fact."""
    from smore.process.gpm import Gpm

    def mib(version: int | None, part: str) -> float:
        info = (
            nvml.nvmlDeviceGetMemoryInfo(handle)
            if version is None
            else nvml.nvmlDeviceGetMemoryInfo(handle, version=version)
        )
        return float(getattr(info, part) / 2**20)

    return {
        "driver": nvml.nvmlSystemGetDriverVersion,
        "cuda_driver": nvml.nvmlSystemGetCudaDriverVersion_v2,
        "gpus": nvml.nvmlDeviceGetCount,
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "mig_mode": lambda: list(nvml.nvmlDeviceGetMigMode(handle)),
        "compute_mode": lambda: nvml.nvmlDeviceGetComputeMode(handle),
        "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
        "ecc_mode": lambda: list(nvml.nvmlDeviceGetEccMode(handle)),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "total_mib": lambda: mib(None, "total"),
        "total_v2_mib": lambda: mib(nvml.nvmlMemory_v2, "total"),
        "reserved_mib": lambda: mib(nvml.nvmlMemory_v2, "reserved"),
        "free_mib": lambda: mib(nvml.nvmlMemory_v2, "free"),
        "events": lambda: nvml.nvmlDeviceGetSupportedEventTypes(handle),
        "computing": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        "computing_mps": lambda: len(nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)),
        "gpm": lambda: Gpm.supported(handle),
    }


def cuda(nvml: Any, handle: Any) -> dict[str, Any]:
    """
    Size of a context, counters idle and at full load, and run times before and after a kernel profile. Without CUDA
    only ``absent``, the reason.
    """
    import torch

    if not torch.cuda.is_available():
        return {"absent": f"torch {torch.__version__} finds no CUDA device"}
    from lab.measure.layers import kernel_profile
    from smore.process.gpm import Gpm

    def free_mib() -> float:
        return float(nvml.nvmlDeviceGetMemoryInfo(handle).free / 2**20)

    figures: dict[str, Any] = {"torch": torch.__version__, "build": torch.version.cuda}
    free = free_mib()
    began = time.perf_counter()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    figures |= {"context_s": time.perf_counter() - began, "context_mib": free - free_mib()}
    held = {process.pid: process.usedGpuMemory for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    # In a container NVML may name other process numbers, and no memory.
    figures |= {"own_pid_listed": os.getpid() in held, "own_memory_mib": (held.get(os.getpid()) or 0) / 2**20}
    figures["torch_total_mib"] = torch.cuda.get_device_properties(0).total_memory / 2**20
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()

    def run_us(runs: int = 200) -> float:
        began = time.perf_counter()
        for _ in range(runs):
            work()
        return (time.perf_counter() - began) / runs * 1e6

    work()
    gpm = Gpm(handle) if Gpm.supported(handle) else None
    for state, act in (("idle", None), ("full", work)):
        if gpm is not None:
            gpm.sample()
        until = time.monotonic() + WINDOW_S
        while time.monotonic() < until:
            act() if act is not None else time.sleep(0.01)
        shares = gpm.sample() if gpm is not None else None
        figures |= {f"gpm_{name}_{state}": value for name, value in (shares or {}).items()}
        figures[f"nvml_{state}"] = answer(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, nvml.NVMLError)
    if gpm is not None:
        gpm.close()
    figures["run_us_before_profile"] = run_us()
    figures |= {f"kernels_{name}": value for name, value in kernel_profile(work, cuda=True).items()}
    figures["run_us_after_profile"] = run_us()
    return figures


# ---- cell ------------------------------------------------------------------------------------------------------------

VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "own_user": {"shut": True, "own_users": True},
    "one_user": {"shut": True, "own_users": False},
    "nobody": {"shut": True, "own_users": False, "user": NOBODY},
    "open": {"shut": False, "own_users": False},
}


def variant(name: str, device: str) -> dict[str, Any]:
    """
    What a runner of this variant reports of itself (lab/bench/inside.py), or ``error``. This process must run as the
    variant's user.
    """
    from lab.bench import confinement
    from worker.frames import Item, Load, Results
    from worker.runner.runner_handle import RunnerDied, RunnerFailed, RunnerTimeout

    given = VARIANTS[name]
    with tempfile.TemporaryDirectory() as folder, confinement.nursery(Path(folder)) as place:
        zygote = confinement.zygote(
            Path(folder) / "home", place, shut=given["shut"], own_users=given["own_users"], device=device
        )
        try:
            runner = zygote.fork()
            began = time.perf_counter()
            runner.prepare(device, 60)
            context_ms = (time.perf_counter() - began) * 1e3
            most = Results(one=1 << 20, together=1 << 20)
            runner.load(
                Load(entrypoint="lab.bench.inside:Inside", device=device, memory_mib=2048, label=name, results=most), 60
            )
            ran = runner.predict([Item(encoding="json", accept="json", rows=1, length=4)], [b"null"], "", 60)
            reported: dict[str, Any] = json.loads(bytes(ran.results[0]))
            runner.unload()
        except (RunnerDied, RunnerFailed, RunnerTimeout) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            zygote.close()
    return reported | {"context_ms": context_ms}


def cell(device: str) -> tuple[dict[str, float], dict[str, Any]]:
    """Every variant in a process of its user; the figures, and what each variant reported."""
    variants: dict[str, Any] = {}
    for name, given in VARIANTS.items():
        user = given.get("user")
        if user is not None and os.geteuid() != 0:
            continue
        drop: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "lab.bench.probes", "variant", name, "--device", device],
                cwd=report.ROOT,
                capture_output=True,
                text=True,
                check=False,
                **drop,
            )
            variants[name] = json.loads(done.stdout.splitlines()[-1])
        except OSError as error:
            # The user ``nobody`` may not read this checkout or its Python: that variant cannot run here.
            variants[name] = {"error": str(error)}
        except (IndexError, ValueError):
            variants[name] = {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
        report.progress(f"{name}: {variants[name]}")
    good = {name: variant for name, variant in variants.items() if "error" not in variant}
    first = variants["own_user"]
    figures: dict[str, float] = {
        "variants": len(variants),
        "variants_ok": len(good),
        "own_user_ok": float("error" not in first),
    }
    if "error" not in first:
        figures |= {
            "root_group": float(0 in first["groups"] and first["user"] != 0),
            "threads": first["threads"],
            "unix_stream": float(first["unix_stream"]),
            "unix_packet": float(first["unix_packet"]),
            "context_ms": first["context_ms"],
        }
    return figures, variants


# ---- a platform ------------------------------------------------------------------------------------------------------


def table(rows: Path, device: str) -> tuple[dict[str, float], dict[str, Any]]:
    """Copy the rows to ``ml/data``; the numbers of rows. Raises ValueError for rows that cannot be used."""
    from ml.rows import Solo, profiles, read

    measured = read(rows)
    (profile,) = profiles(measured)
    figures = {
        "solo": float(sum(isinstance(row, Solo) for row in measured)),
        "colocations": float(len(profile.colocations)),
    }
    if device == "cpu":
        return figures, {"file": "rows of a rehearsal are not copied"}
    name = "-".join("".join(c if c.isalnum() else " " for c in profile.place.device.lower()).split())
    target = report.ROOT / "ml" / "data" / f"{name}.jsonl"
    shutil.copyfile(rows, target)
    return figures, {"file": target.name, "place": list(profile.place.key)}


def platform(device: str) -> dict[str, float]:
    """The checks on one platform. Raises RuntimeError where one fails."""
    import numpy as np

    from lab.bench import harvest
    from lab.bench.overload.rig import Rig
    from lab.bench.tensors import FUNCTION

    where = harvest.partition(device)
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="smore-probe-") as folder,
        Rig(
            Path(folder), [where], functions=(), environment={"SMORE_API__MAX_BODY_BYTES": str(2 * PAYLOAD_MIB << 20)}
        ) as rig,
    ):
        rig.prepare(table=False)
        bounds = {"resources": {"gpu_memory": "1GiB"}, "limits": {"payload": f"{2 * PAYLOAD_MIB}MiB"}}
        large = {**FUNCTION, "spec": {**cast("dict[str, Any]", FUNCTION["spec"]), **bounds}}
        rig.patiently("the function", lambda: rig.client.deploy(large))
        image = np.random.default_rng(0).random((PAYLOAD_MIB * 2**20 // (3 * 224 * 224 * 4), 3, 224, 224), np.float32)
        began = time.perf_counter()
        (mean,) = rig.client.invoke("means", {"image": image}, deadline_ms=30_000).output.values()
        figures |= {"payload_mib": image.nbytes / 2**20, "payload_ms": (time.perf_counter() - began) * 1e3}
        if not np.allclose(mean, image.mean(axis=(2, 3)), atol=1e-4):
            raise RuntimeError("the function's means differ from numpy's")
        if device == "cuda":
            figures |= stranger(rig, where)
    return figures


def stranger(rig: Any, where: Any) -> dict[str, float]:
    """An unregistered training: it is reported as protected until an operator allows it."""
    import httpx

    environment = os.environ | {"CUDA_VISIBLE_DEVICES": where.device, "PYTHONPATH": str(report.ROOT)}
    training = subprocess.Popen(
        [sys.executable, "-m", "zoo.train", "--model", "mobilenet", "--batch", "32"], env=environment
    )
    try:

        def seen() -> Any:
            return next(
                (
                    process
                    for gpu in rig.client.gpus()
                    for process in gpu.strangers or ()
                    if process.pid == training.pid
                ),
                None,
            )

        process = rig.patiently("the unregistered process in the report", seen)
        figures = {"stranger_mib": process.memory_mib, "stranger_protected": float(not process.allowed)}
        allowed = httpx.post(
            f"{rig.end.gateway_url}/v1/gpus/{where.gpu}/allow",
            json={"pid": training.pid},
            timeout=PATIENCE_S,
            headers={"Authorization": f"Bearer {rig.client.key}"},
        )
        allowed.raise_for_status()
        rig.patiently("the unregistered process allowed", lambda: (current := seen()) is not None and current.allowed)
        training.send_signal(signal.SIGTERM)
        training.wait(PATIENCE_S)
        rig.patiently("the end of the unregistered process", lambda: seen() is None)
        return figures | {"stranger_allowed": 1.0, "stranger_gone": 1.0}
    finally:
        training.kill()
        training.wait()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="lab.bench.probes", description="Short checks of a machine with a GPU; see the docstring."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("facts").add_argument("--out", type=Path, required=True)
    for name in ("cell", "variant", "table", "platform"):
        command = commands.add_parser(name)
        command.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
        if name == "variant":
            command.add_argument("name", choices=sorted(VARIANTS))
        if name == "table":
            command.add_argument("--rows", type=Path, required=True)
    asked = parser.parse_args(words)
    report.end_on_sigterm()
    if asked.command == "variant":
        print(json.dumps(variant(asked.name, asked.device)))
        return 0
    figures: dict[str, float]
    more: dict[str, Any] = {}
    match asked.command:
        case "facts":
            try:
                figures = facts(asked.out)
            except pynvml.NVMLError as error:
                print(f"NVML finds no GPU: {error}", file=sys.stderr)
                return 3
        case "cell":
            figures, more = cell(asked.device)
        case "table":
            figures, more = table(asked.rows, asked.device)
        case _:
            figures = platform(asked.device)
    report.emit(f"lab.bench.probes {asked.command}", figures, **more)
    return 1 if asked.command == "cell" and (not figures["own_user_ok"] or figures["root_group"]) else 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
