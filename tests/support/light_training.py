"""
``python -m tests.support.light_training``: a training that tracks its iterations, without torch, for tests of what a
worker does with any training. Half of an iteration is work.
"""

import time

import smore

HALF_S = 0.005

if __name__ == "__main__":
    with smore.track() as tracker:
        while True:
            until = time.perf_counter() + HALF_S
            while time.perf_counter() < until:
                pass
            time.sleep(HALF_S)
            tracker.step()
