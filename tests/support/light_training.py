"""
``python -m tests.support.light_training [SECONDS]``: a training that tracks its iterations, without torch, for tests of
what a worker does with any training. An iteration works for 5 ms and waits for 5 ms, or for so many seconds.
"""

import sys
import time

import smore

WORK_S = 0.005

if __name__ == "__main__":
    wait_s = float(sys.argv[1]) if sys.argv[1:] else WORK_S
    with smore.track() as tracker:
        while True:
            until = time.perf_counter() + WORK_S
            while time.perf_counter() < until:
                pass
            time.sleep(wait_s)
            tracker.step()
