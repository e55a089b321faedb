"""Table III of the paper, measured on a torch module: the twelve features of a workload (section III-A)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

#: Modules of each counted kind. ReLU is counted alone and among the activations, as table III lists both.
KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "activations": (
        nn.ReLU,
        nn.ReLU6,
        nn.GELU,
        nn.SiLU,
        nn.Tanh,
        nn.Sigmoid,
        nn.Softmax,
        nn.Hardswish,
        nn.ELU,
        nn.LeakyReLU,
    ),
    "conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d),
    "linear": (nn.Linear, nn.Bilinear),
    "norm": (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d),
    "relu": (nn.ReLU, nn.ReLU6),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "pooling": (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.MaxUnpool2d),
    "dropout": (nn.Dropout, nn.Dropout2d),
}

#: Names of copies and fills, which CUPTI lists among the kernels.
NO_KERNELS = ("Memcpy", "Memset")


def table_iii(module: nn.Module, batch: int, run: Callable[[], object], *, training: bool) -> dict[str, float]:
    """
    The features of a workload. ``run`` runs one iteration (training) or one inference of ``batch`` rows.

    FLOPs are counted over that run (a multiply-add counts as two). Memory is parameters and buffers, with
    gradients and the optimiser's first moment in a training, plus the bytes of all module outputs in the run; it is the
    same on every device.
    """
    weights = sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))
    with _outputs(module) as put_out, _flop_counter() as counter:
        run()
    counts = {name: float(sum(isinstance(part, kinds) for part in module.modules())) for name, kinds in KINDS.items()}
    return {
        "flops": float(counter.get_total_flops()),
        "parameters": float(sum(p.numel() for p in module.parameters())),
        "memory_bytes": float(weights * (3 if training else 1) + sum(put_out)),
        **counts,
        "batch": float(batch),
    }


def _flop_counter() -> FlopCounterMode:
    """Torch's counter, whose formula for the gradient of a convolution's weights ignores groups, without that error."""

    def backward(*shapes: Any, **_: object) -> int:
        """Each of the two gradients takes as many FLOPs as the convolution itself."""
        of_gradient, of_input, of_weight, _, _, _, _, transposed, _, _, wanted = shapes
        return int(conv_flop_count(of_input, of_weight, of_gradient, transposed) * sum(wanted[:2]))

    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: backward})


@contextmanager
def _outputs(module: nn.Module) -> Iterator[list[int]]:
    """Collects the output bytes of each leaf module while the block runs."""
    sizes: list[int] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    hooks = [part.register_forward_hook(note) for part in module.modules() if not any(part.children())]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


def kernel_profile(run: Callable[[], object], *, cuda: bool, runs: int = 3) -> dict[str, float]:
    """
    Kernels of one run by torch's profiler: ``per_run``, ``mean_us`` and ``longest_us``; operators if there is no GPU.

    The longest kernel is the longest stretch that nothing can interrupt on a GPU. Copies and fills are not counted: a
    copy from pageable memory is longer than most kernels. The profiler stays attached to the process unless
    ``TEARDOWN_CUPTI=1`` is in its environment.
    """
    from torch.profiler import ProfilerActivity, profile

    run()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for _ in range(runs):
            run()
        if cuda:
            torch.cuda.synchronize()
    events = [
        event for event in profiler.events() or () if not event.cpu_children and not event.name.startswith(NO_KERNELS)
    ]
    lengths = [float(event.device_time_total if cuda else event.cpu_time_total) for event in events]
    lengths = [length for length in lengths if length > 0]
    if not lengths:
        return {}
    return {"per_run": len(lengths) / runs, "mean_us": sum(lengths) / len(lengths), "longest_us": max(lengths)}
