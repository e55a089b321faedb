"""
Evaluates prewarming rules on real traces: ``python -m lab.research.prewarm.evaluate [--json] [--preset small|check|check-1d|full]
[--pictures DIR]``.

**Protocol.** The Azure Functions trace of 2019 in the published files (``--traces``): 245 functions over 8 h with their
own run times (the median) and memory, and 557 functions over a day, to which the models of the paper's table I are
assigned in the order of the rows. Time is not compressed. The first 60 % of the minutes are for training and tuning;
the last 40 % are scored once. Within the training part, the last 40 % choose the settings, the price and each
function's forecaster. Requests are uniform within their minute, with five seeds; a cold start takes 1.5 s or 5 s. A
minute's forecast is made at its start from earlier minutes only, and loads that it asks for begin then. For every rule,
all loads and all idle seconds of a loaded instance are waste.

**Rates.** R_cs = cold starts / requests (Eq. 7), pooled. R_rw = instance-seconds loaded or loading without work, over
the total time (Eq. 6; assumption A44: waste is counted per instance), the mean over functions. Three further rates: the
share of the minutes with requests that have a cold start, the seconds in which a function is loaded and none of its
instances works over the total time, and waste over the seconds loaded. Intervals are bootstrapped over functions.
Classes follow from the training part: dense (a request in at least half of the minutes), sparse (in at most one of
twenty), mid; bursty: the variance of the counts is at least five times their mean.

**Ours** (``priced``): for each function, the own gaps or the forecaster with the least cost in the training part, and a
price of its own. The base price is the smallest at which R_cs in the training part is at most the tolerance above
LSTH's, overall and for bursty functions. A function whose cold starts exceed LSTH's by more than half the tolerance of
its requests (plus the requests of a prior) gets the smallest price at which they do not. ``crossfit`` measures this
rule on functions that it was not tuned on: the base price of each fold follows from the other folds.
``default_price_gb_s`` is the highest price at which the live platform's forecasters, with one price for all functions,
waste at most 0.8 of LSTH's instance-seconds in the training part; ``default.*`` has such prices chosen on other folds.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.research.prewarm.cases import PRESETS, evaluate
from lab.research.prewarm.report import report, table
from smore.domain.errors import SmoreError
from smore.traces import public


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.research.prewarm.evaluate", description="Evaluate prewarming rules on real traces."
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of tables")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="full")
    parser.add_argument(
        "--traces",
        type=Path,
        default=public.BUNDLED / "azure2019",
        help="folder of the Azure trace's files; default: the bundled excerpt",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="store forecasts and replays here, so that an interrupted run continues",
    )
    parser.add_argument("--pictures", type=Path, help="draw figures 15 and 16 and the curves into this folder")
    options = parser.parse_args(arguments)
    preset = PRESETS[options.preset]

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        cases = [
            evaluate(preset, file, load_s, options.traces, options.keep, say)
            for file in preset.files
            for load_s in preset.loads_s
        ]
    except (SmoreError, OSError) as error:
        print(f"lab.research.prewarm.evaluate: {error}", file=sys.stderr)
        return 2
    if options.pictures is not None:
        from lab.research.prewarm.pictures import draw

        draw(cases, options.pictures)
    if options.json:
        print(json.dumps({"command": "prewarm_eval", "preset": preset.name, **report(cases)}))
    else:
        print("\n\n".join(table(case) for case in cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
