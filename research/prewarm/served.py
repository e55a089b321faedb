"""
``python -m research.prewarm.served --since 24h --out page``: what keeping instances ready came to, and what other rules
would have made of it.

Two kinds of numbers that are never mixed: what was **measured** (lives of instances and cold starts, as workers and the
leader told them), and what rules would have done with the arrivals per minute that were **counted**, replayed by
``scheduler/simulation/instances.py`` without a limit of memory: never, fixed keep-alives, the rule of this platform at
several prices, and the oracle. What rules are worth is scored after the first fifth of the span, which they learn from;
minutes that nobody counted are taken to be without arrivals. The last line is one JSON object.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from research.replay.replay import span_s
from scheduler.policy.kernel import Floats, Ints
from scheduler.policy.prewarm.kernel import COLDS, IDLE_S, KEEP, LATES, LOADING_S, ORACLE, PRICED, REQUESTS
from scheduler.simulation.instances import Setup, Workload, score
from smore.domain.function import FunctionSpec
from smore.postgres.arrivals import MINUTE_S, FunctionAccount, Past, Prewarming
from smore.postgres.rows import make_engine
from smore.process.settings import Settings, settings
from smore.redis.catalog import Catalog
from smore.redis.connection import connect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Seconds that fixed keep-alives last, and GB-seconds that a cold start is worth to the rule of this platform.
KEEPS: Final = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
PRICES: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 1000.0)
#: Of the priced rule: what stands for gaps that are not known yet, and how their hazard falls.
BELIEFS: Final = (1.0, 0.3)
#: Part of the span that rules learn from before they are scored.
LEARNING: Final = 0.2
PAGE: Final = "index.html"
#: Beside the style that pages of reports share. The picture's inks are made for white paper: in the dark they are
#: turned round, hues kept.
LOOK: Final = """
figure svg { width: 100%; max-width: 700px; height: auto; display: block; margin: 0 auto; }
td.why { min-width: 32ch; }
.scroll td:first-child, .scroll th:first-child { position: sticky; left: 0; background: var(--card); white-space: nowrap; }
tr.ours td { font-weight: 600; }
@media (max-width: 600px) {
  main { padding: 20px 14px 48px; } h2 { margin-top: 36px; } figure { padding: 8px 4px; } th, td { padding: 6px 8px; }
}
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e4e8ef; --soft: #9aa5b8; --line: #333c4b; --back: #12161d; --card: #1b212b; --blue: #5cb3e6; }
  figure svg { filter: invert(1) hue-rotate(180deg) brightness(1.25); }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """
    One rule over the scored minutes, all functions: ``cold`` share of the requests that met no loaded instance,
    ``idle_gb_h`` loaded without work (loads included), ``avoided`` cold starts against never.
    """

    rule: str
    family: str
    requests: int
    cold: float
    idle_gb_h: float
    avoided: int

    @property
    def avoided_per_gb_h(self) -> float | None:
        return self.avoided / self.idle_gb_h if self.idle_gb_h > 0 else None


def workload(past: Past, specs: dict[str, FunctionSpec]) -> Workload:
    """
    What was counted, as a replay takes it; functions that the catalog does not know any more have the defaults of a
    spec.
    """
    names = tuple(sorted(past.counts))
    counts: Ints = np.zeros((len(names), len(past.known)), np.int64)
    for row, name in enumerate(names):
        for minute, count in past.counts[name].items():
            counts[row, minute] = count
    profiles = [(specs.get(name) or FunctionSpec(entrypoint="none:None")).profile for name in names]
    load_s = float(np.median([one.load_s for one in profiles])) if profiles else 1.0
    return Workload(
        name="counted",
        names=names,
        counts=counts,
        run_s=np.array([one.run_time_s(1) for one in profiles]),
        memory_gb=np.array([one.memory_mib / 1024 for one in profiles]),
        load_s=load_s,
    )


def since_counted(past: Past) -> Past:
    """From the first minute on of which anything is known: a platform is not judged by the time before it came up."""
    first = min(
        [minute for each in past.counts.values() for minute in each]
        + [minute for minute, known in enumerate(past.known) if known]
    )
    counts = {
        function: {minute - first: count for minute, count in minutes.items()}
        for function, minutes in past.counts.items()
    }
    return Past(from_at=past.from_at + first * MINUTE_S, known=past.known[first:], counts=counts)


def points(work: Workload, seed: int, price: float) -> list[Point]:
    """Every rule on the same arrivals; ``price``: GB-seconds that a cold start is worth to the rule in force."""
    first = int(LEARNING * work.counts.shape[1])
    setups = [("never", Setup(name="never", how=KEEP, keep_s=0.0))]
    setups += [("keep-alive", Setup(name=f"keep-alive {keep:g} s", how=KEEP, keep_s=keep)) for keep in KEEPS]
    setups += [
        ("priced", Setup(name=_priced(price), how=PRICED, knobs=BELIEFS, price_s=price / work.memory_gb))
        for price in sorted({*PRICES, price})
    ]
    setups.append(("oracle", Setup(name="oracle", how=ORACLE)))
    tallies = [(family, setup.name, score(work, setup, seed, first)) for family, setup in setups]
    never = _missed(tallies[0][2])
    found = []
    for family, name, tally in tallies:
        missed, requests = _missed(tally), int(tally[:, REQUESTS].sum())
        idle = float(((tally[:, IDLE_S] + tally[:, LOADING_S]) * work.memory_gb).sum()) / 3600
        found.append(
            Point(
                rule=name,
                family=family,
                requests=requests,
                cold=missed / max(1, requests),
                idle_gb_h=idle,
                avoided=never - missed,
            )
        )
    return found


def _missed(tally: Floats) -> int:
    """Requests that waited for a load, whoever began it."""
    return int((tally[:, COLDS] + tally[:, LATES]).sum())


# ---- the page --------------------------------------------------------------------------------------------------------


def _priced(price: float) -> str:
    return f"priced {price:g} GB s"


def draw(found: Sequence[Point], price: float) -> "Figure":
    """
    Cold starts avoided against memory held idle: the further up and left, the better. A ring marks the price in force.
    """
    from matplotlib.figure import Figure

    from research.predictor.pictures import BLUE, GREEN, GREY, ORANGE

    figure = Figure(figsize=(5.0, 3.7), layout="constrained")
    axes = figure.subplots()
    looks = {"keep-alive": (ORANGE, "s", "fixed keep-alives"), "priced": (BLUE, "o", "priced, at several prices")}
    for family, (colour, marker, label) in looks.items():
        line = sorted((one for one in found if one.family == family), key=lambda one: one.idle_gb_h)
        axes.plot(
            [one.idle_gb_h for one in line],
            [one.avoided for one in line],
            color=colour,
            marker=marker,
            label=label,
            linewidth=1.4,
        )
    for family, colour, marker in (("never", GREY, "v"), ("oracle", GREEN, "*")):
        one = next(point for point in found if point.family == family)
        axes.plot(
            [one.idle_gb_h],
            [one.avoided],
            color=colour,
            marker=marker,
            markersize=10,
            linestyle="none",
            label=family,
            clip_on=False,
        )
    ours = next(point for point in found if point.rule == _priced(price))
    axes.plot(
        [ours.idle_gb_h],
        [ours.avoided],
        color=BLUE,
        marker="o",
        markersize=12,
        markerfacecolor="none",
        linestyle="none",
        label=f"the price in force, {price:g} GB s",
    )
    axes.set_xlabel("GB-hours loaded without work, loads included")
    axes.set_ylabel("cold starts avoided, against never")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.legend(loc="lower right", frameon=False)
    return figure


def picture(found: Sequence[Point], price: float) -> str:
    """As SVG, the same for the same points."""
    import io

    import matplotlib as mpl

    from research.predictor.pictures import STYLE

    with mpl.rc_context(STYLE):
        written = io.StringIO()
        draw(found, price).savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    return written.getvalue()


def page(past: Past, accounts: Sequence[FunctionAccount], found: Sequence[Point], svg: str, price: float) -> str:
    from research.compare.report import STYLE

    begin = datetime.fromtimestamp(past.from_at).astimezone()
    counted = f"{sum(past.known)} of {len(past.known)} minutes since {begin:%Y-%m-%d %H:%M %Z} were counted"
    attempts, cold, saved = (sum(getattr(one, name) for one in accounts) for name in ("invocations", "cold", "saved"))
    idle = sum(one.idle_gb_s for one in accounts) / 3600
    total = (
        f"{cold} of {attempts} attempts were cold, {saved} were saved a cold start, for {idle:.3f} GB-hours loaded"
        " without work"
    )
    measured = _table(
        (
            "function",
            "attempts",
            "cold",
            "hit",
            "late",
            "wasted",
            "failed",
            "saved",
            "GB s idle",
            "GB s wasted",
            "why cold",
        ),
        [
            (
                one.function,
                one.invocations,
                one.cold,
                one.hits,
                one.late,
                one.wasted,
                one.failed,
                one.saved,
                f"{one.idle_gb_s:.1f}",
                f"{one.wasted_gb_s:.1f}",
                ", ".join(
                    f"{reason} {count}" for reason, count in sorted(one.unforeseen.items(), key=lambda item: -item[1])
                ),
            )
            for one in accounts
        ],
    )
    rules = _table(
        ("rule", "cold starts", "avoided", "GB-hours idle", "avoided per GB-hour"),
        [
            (
                one.rule,
                f"{100 * one.cold:.1f} %",
                one.avoided,
                f"{one.idle_gb_h:.3f}",
                f"{one.avoided_per_gb_h:.1f}" if one.avoided_per_gb_h is not None else "",
            )
            for one in found
        ],
        ours=_priced(price),
    )
    inner = svg[svg.index("<svg") :]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport"'
        ' content="width=device-width, initial-scale=1"><title>SMore: kept'
        f' ready</title><style>{STYLE}{LOOK}</style></head><body><main><h1>Kept ready</h1><p class="soft">{counted};'
        " the others are taken to be without arrivals in the replay.</p><h2>What it came to</h2><p>Measured: instances"
        " that were loaded ahead by outcome, and every cold start with the reason why none stood ready."
        f" {total}.</p>{measured}<h2>What rules would have made of it</h2><p>Replayed from the arrivals per minute,"
        " without a limit of memory, arrivals uniform within their minute; scored after the first fifth of the span."
        " These numbers say which rule suits the arrivals, not what happened. The price in force is marked.</p><figure"
        f' role="img" aria-label="Cold starts avoided against GB-hours">{inner}</figure>{rules}</main></body></html>\n'
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], ours: str = "") -> str:
    """Numbers but for the first column, and for one that says why. The row that begins with ``ours`` stands out."""

    def line(tag: str, cells: Sequence[object]) -> str:
        looks = ["", *(' class="why"' if head.startswith("why") else ' class="n"' for head in heads[1:])]
        return "".join(f"<{tag}{look}>{escape(str(cell))}</{tag}>" for look, cell in zip(looks, cells, strict=True))

    head = line("th", heads)
    marks = (' class="ours"' if row[0] == ours else "" for row in rows)
    body = "".join(f"<tr{mark}>{line('td', row)}</tr>" for mark, row in zip(marks, rows, strict=True))
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


# ---- the command -----------------------------------------------------------------------------------------------------


def write(
    engine: Engine, specs: dict[str, FunctionSpec], since_s: float, out: Path, *, seed: int, now: float, price: float
) -> dict[str, object]:
    """
    The page into ``out``; what it says, in short. ``price``: of the rule in force. Raises ValueError where nothing came
    in the span.
    """
    door = Prewarming(engine)
    past, accounts = door.past(now - since_s, now), door.account(now - since_s, now)
    if not past.counts:
        raise ValueError("nothing was counted in that span")
    past = since_counted(past)
    found = points(workload(past, specs), seed, price)
    svg = picture(found, price)
    out.mkdir(parents=True, exist_ok=True)
    (out / "avoided.svg").write_text(svg)
    (out / PAGE).write_text(page(past, accounts, found, svg, price))
    return {
        "page": str(out / PAGE),
        "functions": [asdict(one) for one in accounts],
        "rules": [asdict(one) for one in found],
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="smore prewarm report", description="What keeping instances ready came to, as a page."
    )
    parser.add_argument("--since", type=span_s, default=span_s("24h"), metavar="24h", help="how far back, to now")
    parser.add_argument("--out", type=Path, default=Path("prewarm-report"), help="folder of the page")
    parser.add_argument("--seed", type=int, default=0, help="of the moments within a minute")
    options = parser.parse_args(arguments)
    config: Settings = settings()
    if config.postgres.url is None or config.redis.url is None:
        print("SMORE_POSTGRES__URL and SMORE_REDIS__URL must be set", file=sys.stderr)
        return 3
    engine = make_engine(config.postgres.url, "prewarmed")
    try:
        with connect(config) as client:
            catalog = Catalog(client, config.redis.prefix)
            known = {
                key: catalog.revision(key, entry.revision)
                for key, entry in catalog.functions().items()
                if entry.revision
            }
        specs = {key: spec for key, spec in known.items() if spec is not None}
        said = write(
            engine,
            specs,
            options.since,
            options.out,
            seed=options.seed,
            now=time.time(),
            price=config.prewarm.price_gb_s,
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except (OperationalError, OSError) as error:
        print(f"the platform cannot be reached: {error}", file=sys.stderr)
        return 3
    finally:
        engine.dispose()
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
