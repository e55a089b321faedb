"""
``python -m tests.support.light_training [SECONDS]``: a training that tracks its iterations, without torch, for tests of
what a worker does with any training. An iteration works for 1 ms and waits for 9 ms, or for so many seconds.
"""

import sys
import time

import smore

WORK_S, WAIT_S = 0.001, 0.009

if __name__ == "__main__":
    wait_s = float(sys.argv[1]) if sys.argv[1:] else WAIT_S
    with smore.track() as tracker:
        while True:
            until = time.perf_counter() + WORK_S
            while time.perf_counter() < until:
                pass
            time.sleep(wait_s)
            tracker.step()
