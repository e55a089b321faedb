"""
A serverful training job: ``python -m zoo.train --model resnet50 --batch 16``.

It trains on the GPU that it sees, in the paper's size; where it sees none, on the CPU in the small one.

Real forward and backward passes and optimiser steps on synthetic data, on one thread. SIGTERM ends it after the
iteration at hand; at the end it prints one summary. Iterations are reported through ``smore.track``.

**Several ranks.** Where WORLD_SIZE is more than 1 it trains data-parallel with the other ranks: each has its own batches,
gradients are averaged (gloo on CPUs, NCCL on GPUs), and rank 0 reports the summary.

**Checkpoints.** With ``--checkpoint-every 100`` rank 0 writes one after so many iterations and at the end, into the folder
that the platform names. Started again by the platform, it goes on from the last one; ``--iterations`` counts those
before it too.

**Micro-batches.** It runs each batch in as many parts as the platform asks for (``tracker.micro_batches``), so that it
needs less memory. The models with batch statistics (resnet50, mobilenet, deepvit, segnet) train differently then.

**Input wait.** A training job on a GPU leaves it idle while it waits for its data; that idle time is what SMore gives
to functions. With ``--input-wait 0.4`` an iteration waits for its batch first, for such a time that the wait is 40 % of
an undisturbed iteration; ``card`` takes the model's own share, ``none`` waits for nothing; without the option a CPU
takes the card's and a GPU none. The time is set once, from the compute time of the first iterations, and stays: a
storage does not become slower because a neighbour takes the processor. So a neighbour stretches the computing part
only, and the job's degradation is what it would be. On a CPU the compute time is measured as CPU time of this process,
so that a neighbour which is there already hardly lengthens the wait (it costs cache); on a GPU as wall time.
``--input-wait-s`` gives the wait in seconds, for trainings that start together and are to be compared.
"""

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

import smore
from zoo.model import ModelCard, Tensors, card
from zoo.options import parser as options_of

#: Iterations whose times are not used: memory is taken and kernels are chosen in them.
WARM_UP = 2
#: Iterations after those, whose median sets the input wait.
CALIBRATION = 5
#: Prepared batches that the iterations take in turn.
BATCHES = 4

Batch = tuple[Tensors, Tensor]


def whole(batch: Batch) -> Iterable[tuple[Batch, float]]:
    """The batch as one part."""
    return [(batch, 1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to train and for how long; with neither ``iterations`` nor ``seconds`` until a signal."""

    model: str
    preset: str = "cpu"
    batch: int = 16
    iterations: int | None = None
    seconds: float | None = None
    #: As :func:`input_wait` takes it.
    input_wait: str | None = None
    #: Seconds of it, None = as many as make that share of what the first iterations compute.
    input_wait_s: float | None = None
    seed: int = 0
    device: str = "cpu"
    json: bool = False
    #: Iterations from one checkpoint to the next; None = it writes none.
    checkpoint_every: int | None = None
    rank: int = 0
    world: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """
    Times of whole iterations, waits included, without the warm-up, in seconds; losses of the first and the last one.
    ``iterations``: made here; ``resumed_at``: those of the checkpoint that it began with.
    """

    model: str
    preset: str
    batch: int
    iterations: int
    elapsed_s: float
    mean_s: float
    p50_s: float
    p99_s: float
    wait_s: float
    first_loss: float
    last_loss: float
    stopped: bool
    resumed_at: int = 0


def input_wait(asked: str | None, described: ModelCard, device: str) -> float:
    """
    The share of an undisturbed iteration that waits for input: a number of 0 to <1, ``card`` (the model's) or ``none``;
    None = the card's on a CPU, none on a GPU. Raises ValueError for anything else.
    """
    if asked is None:
        asked = "card" if device == "cpu" else "none"
    if asked in ("card", "none"):
        return described.input_wait if asked == "card" else 0.0
    share = float(asked)
    if not 0 <= share < 1:
        raise ValueError(f"a share of 0 up to, not including, 1 is expected, not {asked}")
    return share


class InputWait:
    """
    The wait for a batch: a fixed time, ``seconds``, or where that is None ``share / (1 - share)`` times the median compute
    time of the first iterations; until those are known it does not wait.
    """

    def __init__(self, share: float, seconds: float | None = None) -> None:
        self._share = share if seconds is None else 0.0
        self._computed: list[float] = []
        self.seconds = seconds or 0.0

    def observe(self, compute_s: float) -> None:
        """Take the compute time of one iteration."""
        if self._share == 0 or len(self._computed) == WARM_UP + CALIBRATION:
            return
        self._computed.append(compute_s)
        if len(self._computed) == WARM_UP + CALIBRATION:
            self.seconds = statistics.median(self._computed[WARM_UP:]) * self._share / (1 - self._share)


class Training:
    """One model with its optimiser and its batches, ready to take iterations."""

    def __init__(self, described: ModelCard, options: Options) -> None:
        torch.manual_seed(options.seed)  # dropout
        # Ranks begin with the same weights and train on batches of their own.
        generator = torch.Generator().manual_seed(options.seed + options.rank)
        self._loss = described.loss
        self._module = described.assemble(options.preset, device=options.device, seed=options.seed).train()
        self._optimizer = _optimizer(described, self._module)
        self._forward = nn.parallel.DistributedDataParallel(self._module) if options.world > 1 else self._module
        self._batches: list[Batch] = []
        for _ in range(BATCHES):
            inputs = described.sample(options.preset, options.batch, generator)
            labels = described.labels(options.preset, options.batch, generator)
            self._batches.append(
                ({name: t.to(options.device) for name, t in inputs.items()}, labels.to(options.device))
            )

    @property
    def module(self) -> nn.Module:
        return self._module

    def iterate(self, number: int, cut: Callable[[Batch], Iterable[tuple[Batch, float]]] = whole) -> float:
        """
        Forward, backward and step on batch ``number`` (they come round), in the weighted parts that ``cut`` makes of it;
        returns the loss when the device has done it all.
        """
        batch = self._batches[number % len(self._batches)]
        rows = 0
        losses: list[Tensor] = []
        self._optimizer.zero_grad(set_to_none=True)
        for (inputs, labels), weight in cut(batch):
            rows += len(labels)
            with self._averaging(rows == len(batch[1])):
                loss = self._loss(self._forward(**inputs), labels) * weight
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            losses.append(loss.detach())
        self._optimizer.step()
        return torch.stack(losses).sum().item()

    def _averaging(self, on: bool) -> AbstractContextManager[None]:
        """Whether the ranks average their gradients in this part: once a batch is enough."""
        if on or not isinstance(self._forward, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return self._forward.no_sync()

    def state(self, iterations: int) -> dict[str, Any]:
        """What a checkpoint after so many iterations holds."""
        return {
            "iterations": iterations,
            "module": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> int:
        """Go on from a checkpoint; how many iterations came before it."""
        self._module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        return int(state["iterations"])


def _optimizer(described: ModelCard, module: nn.Module) -> torch.optim.Optimizer:
    match described.optimizer:
        case "sgd":
            return torch.optim.SGD(module.parameters(), lr=described.learning_rate, momentum=0.9, weight_decay=1e-4)
        case "adam":
            return torch.optim.Adam(module.parameters(), lr=described.learning_rate)


class Stop:
    """
    Turned on by SIGTERM or SIGINT, for the loop to see. No Event: to set one in a handler can lock the thread it
    interrupts.
    """

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ask())

    def ask(self) -> None:
        self.asked = True


def train(options: Options, stop: Stop) -> Summary:
    """Run the job to its end; ``stop`` ends it after the iteration at hand."""
    described = card(options.model)
    training = Training(described, options)
    resumed_at = done = _resume(training, options)
    on_cpu = options.device == "cpu"
    wait = InputWait(input_wait(options.input_wait, described, options.device), options.input_wait_s)
    clock = time.process_time if on_cpu else time.perf_counter
    times: list[float] = []
    losses: list[float] = []
    began = time.perf_counter()
    with smore.track(iterations=options.iterations) as tracker:
        while done != options.iterations:
            start = time.perf_counter()
            out_of_time = options.seconds is not None and start - began >= options.seconds
            if _agreed(stop.asked or out_of_time, options):
                break
            time.sleep(wait.seconds)
            computing = clock()
            losses.append(training.iterate(done, tracker.micro_batches))
            wait.observe(clock() - computing)
            done += 1
            tracker.step()
            times.append(time.perf_counter() - start)
            if options.checkpoint_every and done % options.checkpoint_every == 0:
                _save(training, done, options)
    if options.checkpoint_every and times and done % options.checkpoint_every:
        _save(training, done, options)
    measured = times[WARM_UP:] or times or [0.0]
    return Summary(
        model=options.model,
        preset=options.preset,
        batch=options.batch,
        iterations=len(times),
        elapsed_s=time.perf_counter() - began,
        mean_s=statistics.fmean(measured),
        p50_s=statistics.median(measured),
        p99_s=sorted(measured)[-(-len(measured) * 99 // 100) - 1],
        wait_s=wait.seconds,
        first_loss=losses[0] if losses else 0.0,
        last_loss=losses[-1] if losses else 0.0,
        stopped=stop.asked,
        resumed_at=resumed_at,
    )


def _resume(training: Training, options: Options) -> int:
    """Go on from the last checkpoint; how many iterations came before it. Rank 0 alone need see the file."""
    last = smore.last_checkpoint() if options.rank == 0 else None
    state = torch.load(last.path, map_location="cpu", weights_only=True) if last is not None else None
    if options.world > 1:
        given = [state]
        torch.distributed.broadcast_object_list(given, src=0)
        state = given[0]
    return training.load(state) if state is not None else 0


def _save(training: Training, iterations: int, options: Options) -> None:
    if options.rank == 0:
        with smore.checkpoint(iterations) as path:
            torch.save(training.state(iterations), path)


def _agreed(ends: bool, options: Options) -> bool:
    """Whether the loop ends here: a rank that left alone would leave the others waiting for it."""
    if options.world == 1:
        return ends
    flag = torch.tensor([ends], dtype=torch.int32, device=options.device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())


def parse(arguments: Sequence[str]) -> Options:
    """Command line to options."""
    parser = options_of()
    asked = parser.parse_args(arguments)
    asked.rank, asked.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if asked.iterations is None and asked.seconds is None and "SMORE_ITERATIONS" in os.environ:
        asked.iterations = int(os.environ["SMORE_ITERATIONS"])
    # A job on a CPU partition sees no GPU, whatever the machine has.
    asked.device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if asked.device == "cuda" and asked.world > 1:
        asked.device = f"cuda:{os.environ['LOCAL_RANK']}"
    asked.preset = asked.preset or ("cpu" if asked.device == "cpu" else "paper")
    options = Options(**vars(asked))
    try:
        input_wait(options.input_wait, card(options.model), options.device)
    except ValueError as error:
        parser.error(f"--input-wait: {error}")
    if options.input_wait_s is not None and not 0 <= options.input_wait_s < 3600:
        parser.error("--input-wait-s must be at least 0 and less than an hour")
    if options.batch < 1:
        parser.error("--batch must be at least 1")
    if options.checkpoint_every is not None and options.checkpoint_every < 1:
        parser.error("--checkpoint-every must be at least 1")
    if options.checkpoint_every and "SMORE_CHECKPOINT" not in os.environ:
        parser.error("--checkpoint-every: SMORE_CHECKPOINT does not name a folder")
    return options


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    # One thread: a job on a CPU partition has its cores counted, and on a GPU the host's part is small.
    torch.set_num_threads(1)
    stop = Stop()
    stop.install()
    if options.world > 1:
        if options.device != "cpu":
            torch.cuda.set_device(options.device)
        torch.distributed.init_process_group("gloo" if options.device == "cpu" else "nccl")
    summary = train(options, stop)
    if options.world > 1:
        torch.distributed.destroy_process_group()
    if options.rank:
        return
    if options.json:
        print(json.dumps(asdict(summary)), flush=True)
    else:
        print(
            f"{summary.model} ({summary.preset}, batch {summary.batch}): "
            f"{summary.iterations} iterations in {summary.elapsed_s:.1f} s, "
            f"mean {summary.mean_s * 1e3:.1f} ms, p50 {summary.p50_s * 1e3:.1f} ms, p99 {summary.p99_s * 1e3:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
