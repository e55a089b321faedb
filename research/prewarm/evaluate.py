"""
Prewarming rules against real traces: ``python -m ml.prewarm_eval [--json] [--preset small|check|check-1d|full]
[--pictures DIR]``.

**Protocol.** The Azure Functions trace of 2019 in its publisher's files (``--traces``): 245 functions for 8 h with
their own run times (the median) and memory, and 557 functions for a day, to which the models of the paper's table I are
dealt out in the order of the rows. No time is compressed. The first 60 % of the minutes train and tune, the last 40 %
are scored once; within the training part the last 40 % again are what knobs, the price and each function's forecaster
are chosen on. Requests lie uniformly within their minute, five seeds; a cold start takes 1.5 s or 5 s. Forecasts of a
minute are made when it begins, from the past alone, and what they ask for begins to load then. Every load and every
idle second of a loaded instance is waste, for every rule.

**Rates.** R_cs = cold starts / requests (Eq. 7), pooled. R_rw = instance-seconds loaded, or loading, and not at work
over the total time (Eq. 6, A44), the mean over functions. Beside them, each under its own name: minutes with a cold
start of those with requests, seconds in which nothing of a function is at work although it is loaded over the total
time, and waste over the seconds loaded. Intervals by bootstrap over functions. Classes by the training part: dense (a
request in at least half of the minutes), sparse (in at most one of twenty), mid; bursty: a variance of the counts of
at least five times their mean.

**Ours** (``priced``): per function the gaps or the forecaster that cost least there, and a price of its own. One base
price is the smallest with which R_cs in the training part lies at most the tolerance above LSTH's, overall and of the
bursty class. A function whose own cold starts exceed LSTH's by more than half the tolerance of its requests, those of
a prior included, gets the smallest price with which they do not. ``crossfit`` says what that is worth on functions it
was not tuned on: the base price of each fold follows from the functions of the other folds. Beside it,
``product_price_gb_s``: the smallest one with which the live platform's forecasters leave no more cold starts there
than its default keep-alive.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from research.prewarm.cases import PRESETS, evaluate, report, table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m ml.prewarm_eval", description="Prewarming rules against real traces."
    )
    parser.add_argument("--json", action="store_true", help="end stdout with one line of JSON")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="full")
    parser.add_argument(
        "--traces", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data" / "azure2019"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep forecasts and replays here: a run that is cut goes on there"
    )
    parser.add_argument("--pictures", type=Path, help="draw figures 15 and 16 and the curves into this folder")
    options = parser.parse_args(arguments)
    preset = PRESETS[options.preset]

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    cases = [
        evaluate(preset, file, load_s, options.traces, options.keep, say)
        for file in preset.files
        for load_s in preset.loads_s
    ]
    if options.pictures is not None:
        from research.prewarm.pictures import draw

        draw(cases, options.pictures)
    if options.json:
        print(json.dumps({"command": "prewarm_eval", "preset": preset.name, **report(cases)}))
    else:
        print("\n\n".join(table(case) for case in cases))


if __name__ == "__main__":
    main()
