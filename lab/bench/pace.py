"""
The trainings of ``lab.bench.jobs``: light processes that step at a fixed pace and compute nothing.

``python -m lab.bench.pace --every 0.05 --iterations 200`` sleeps, tells each iteration by ``smore.track``, and writes a
checkpoint after every tenth; started again it goes on from the last one. Where WORLD_SIZE is more than 1 its ranks meet
over gloo and agree on every iteration, so that a rank without the others makes none.
"""

import argparse
import os
import time

import smore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=float, required=True, help="seconds of an iteration")
    parser.add_argument("--iterations", type=int, default=int(os.environ.get("SMORE_ITERATIONS", "0")))
    parser.add_argument("--checkpoint-every", type=int, default=10)
    options = parser.parse_args()
    gang = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if gang:
        # Only ranks of a gang pay for it.
        import torch

        torch.distributed.init_process_group("gloo")
    first = int(os.environ.get("RANK", "0")) == 0
    last = smore.last_checkpoint() if first else None
    done = last.iterations if last is not None else 0
    if gang:
        told = torch.tensor([done])
        torch.distributed.broadcast(told, src=0)
        done = int(told.item())
    with smore.track(iterations=options.iterations) as tracker:
        due = time.monotonic()
        while done < options.iterations:
            due = max(due + options.every, time.monotonic())
            time.sleep(due - time.monotonic() if due > time.monotonic() else 0.0)
            if gang:
                torch.distributed.all_reduce(torch.ones(1))
            done += 1
            tracker.step()
            if first and done % options.checkpoint_every == 0:
                with smore.checkpoint(done, extension=".txt") as path:
                    path.write_text(str(done))
    if gang:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
