"""
``python -m lab.research.prewarm.served --since 24h --out page``: a page with the results of prewarming, and with what other
rules would have achieved.

It has two kinds of numbers, never mixed. **Measured** are lifetimes of instances and cold starts, as workers and the
leader reported them. **Replayed** are rules on the counted arrivals per minute, by
``scheduler/backtest/instances.py`` without a memory limit: never, fixed keep-alives, the rule of this platform at
several prices, and the oracle. Rules are scored after the first fifth of the span, from which they learn. Uncounted
minutes are taken to have no arrivals. The last line of the output is one JSON object.
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

from lab.research.page import Column, document, table
from lab.research.replay.replay import span_s
from scheduler.backtest.instances import Setup, Workload, score
from scheduler.policy.kernel import Floats, Ints
from scheduler.policy.prewarm.kernel import COLDS, IDLE_S, KEEP, LATES, LOADING_S, ORACLE, PRICED, REQUESTS
from smore.domain.function import FunctionSpec
from smore.postgres.arrivals import MINUTE_S, ArrivalCounts, ArrivalStore, FunctionAccount
from smore.postgres.connection import make_engine
from smore.process.environment import settings
from smore.process.settings import Settings
from smore.redis.catalog import Catalog
from smore.redis.connection import connect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Fixed keep-alives, seconds, and prices of a cold start for the platform's rule, GB-seconds.
KEEPS: Final = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
PRICES: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 1000.0)
#: The priced rule's prior: its weight in gaps, and how the hazard falls with age.
BELIEFS: Final = (1.0, 0.3)
#: Share of the span that rules learn from before they are scored.
LEARNING: Final = 0.2
PAGE: Final = "index.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePoint:
    """
    One rule over the scored minutes and all functions. ``cold``: share of the requests without a loaded instance.
    ``idle_gb_h``: GB-hours loaded without work, loads included. ``avoided``: cold starts fewer than with the rule
    never.
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


def workload(past: ArrivalCounts, specs: dict[str, FunctionSpec]) -> Workload:
    """The counted arrivals as a workload. Functions that the catalog no longer has get the default profile."""
    names = tuple(sorted(past.counts))
    counts: Ints = np.zeros((len(names), len(past.counted)), np.int64)
    for row, name in enumerate(names):
        for minute, count in past.counts[name].items():
            counts[row, minute] = count
    profiles = [(specs.get(name) or FunctionSpec(entrypoint="none:None")).profile for name in names]
    load_s = float(np.median([profile.load_s for profile in profiles])) if profiles else 1.0
    return Workload(
        name="counted",
        names=names,
        counts=counts,
        run_s=np.array([profile.run_time_s(1) for profile in profiles]),
        memory_gb=np.array([profile.memory_mib / 1024 for profile in profiles]),
        load_s=load_s,
    )


def since_counted(past: ArrivalCounts) -> ArrivalCounts:
    """The past from its first counted minute on: the time before the platform started does not count."""
    first = min(
        [minute for minutes in past.counts.values() for minute in minutes]
        + [minute for minute, counted in enumerate(past.counted) if counted]
    )
    counts = {
        function: {minute - first: count for minute, count in minutes.items()}
        for function, minutes in past.counts.items()
    }
    return ArrivalCounts(from_at=past.from_at + first * MINUTE_S, counted=past.counted[first:], counts=counts)


def points(work: Workload, seed: int, price: float) -> list[RulePoint]:
    """Every rule on the same arrivals. ``price``: GB-seconds that a cold start costs in the present rule."""
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
    rule_points = []
    for family, name, tally in tallies:
        missed, requests = _missed(tally), int(tally[:, REQUESTS].sum())
        idle = float(((tally[:, IDLE_S] + tally[:, LOADING_S]) * work.memory_gb).sum()) / 3600
        rule_points.append(
            RulePoint(
                rule=name,
                family=family,
                requests=requests,
                cold=missed / max(1, requests),
                idle_gb_h=idle,
                avoided=never - missed,
            )
        )
    return rule_points


def _missed(tally: Floats) -> int:
    """Requests that waited for a load."""
    return int((tally[:, COLDS] + tally[:, LATES]).sum())


# ---- the page --------------------------------------------------------------------------------------------------------


def _priced(price: float) -> str:
    return f"priced {price:g} GB s"


def draw(rule_points: Sequence[RulePoint], price: float) -> "Figure":
    """Cold starts avoided against memory held idle; up and to the left is better. A ring marks the present price."""
    from matplotlib.figure import Figure

    from lab.research.style import BLUE, GREEN, GREY, ORANGE

    figure = Figure(figsize=(5.0, 3.7), layout="constrained")
    axes = figure.subplots()
    looks = {"keep-alive": (ORANGE, "s", "fixed keep-alives"), "priced": (BLUE, "o", "priced, at several prices")}
    for family, (colour, marker, label) in looks.items():
        line = sorted((point for point in rule_points if point.family == family), key=lambda point: point.idle_gb_h)
        axes.plot(
            [point.idle_gb_h for point in line],
            [point.avoided for point in line],
            color=colour,
            marker=marker,
            label=label,
            linewidth=1.4,
        )
    for family, colour, marker in (("never", GREY, "v"), ("oracle", GREEN, "*")):
        point = next(point for point in rule_points if point.family == family)
        axes.plot(
            [point.idle_gb_h],
            [point.avoided],
            color=colour,
            marker=marker,
            markersize=10,
            linestyle="none",
            label=family,
            clip_on=False,
        )
    ours = next(point for point in rule_points if point.rule == _priced(price))
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
    figure.legend(loc="outside upper left", ncols=2, fontsize=8)
    return figure


def picture(rule_points: Sequence[RulePoint], price: float) -> str:
    """The picture as SVG; deterministic for the same points."""
    import matplotlib as mpl

    from lab.research.style import STYLE, svg

    with mpl.rc_context(STYLE):
        return svg(draw(rule_points, price))


def page(
    past: ArrivalCounts, accounts: Sequence[FunctionAccount], rule_points: Sequence[RulePoint], svg: str, price: float
) -> str:
    begin = datetime.fromtimestamp(past.from_at).astimezone()
    counted = f"{sum(past.counted)} of {len(past.counted)} minutes since {begin:%Y-%m-%d %H:%M %Z} were counted"
    attempts, cold, saved = (
        sum(getattr(account, name) for account in accounts) for name in ("invocations", "cold", "saved")
    )
    idle = sum(account.idle_gb_s for account in accounts) / 3600
    total = (
        f"{cold} of {attempts} attempts were cold, {saved} were saved a cold start, for {idle:.3f} GB-hours loaded"
        " without work"
    )
    columns = (
        Column(heading="function", number=False),
        *(
            Column(heading=heading)
            for heading in (
                "attempts",
                "cold",
                "hit",
                "late",
                "wasted",
                "failed",
                "saved",
                "GB s idle",
                "GB s wasted",
            )
        ),
        Column(heading="why cold", number=False),
    )
    measured = [
        [
            escape(account.function),
            *(
                str(getattr(account, name))
                for name in ("invocations", "cold", "hits", "late", "wasted", "failed", "saved")
            ),
            f"{account.idle_gb_s:.1f}",
            f"{account.wasted_gb_s:.1f}",
            escape(
                ", ".join(
                    f"{reason} {count}"
                    for reason, count in sorted(account.unforeseen.items(), key=lambda item: -item[1])
                )
            ),
        ]
        for account in accounts
    ]
    rule_columns = (
        Column(heading="rule", number=False),
        *(Column(heading=heading) for heading in ("cold starts", "avoided", "GB-hours idle", "avoided per GB-hour")),
    )
    rules = [
        [
            escape(point.rule),
            f"{100 * point.cold:.1f} %",
            str(point.avoided),
            f"{point.idle_gb_h:.3f}",
            f"{point.avoided_per_gb_h:.1f}" if point.avoided_per_gb_h is not None else "",
        ]
        for point in rule_points
    ]
    inner = svg[svg.index("<svg") :]
    body = (
        "<h2>What it came to</h2><p>Measured: instances that were loaded ahead, by outcome, and every cold start with"
        f" the reason why no instance was ready. {escape(total)}.</p>{table('', columns, measured)}<h2>What rules would have"
        " made of it</h2><p>Replayed from the arrivals per minute, without a limit of memory, arrivals uniform within"
        " their minute; scored after the first fifth of the span. These numbers say which rule suits the arrivals, not"
        ' what happened. The price in force is marked.</p><figure role="img" aria-label="Cold starts avoided against'
        f' GB-hours"><div class="picture">{inner}</div></figure>'
        + table("", rule_columns, rules, ours=escape(_priced(price)))
    )
    about = f"{counted}; the others are taken to be without arrivals in the replay."
    return document("SMore: kept ready", "Kept ready", about, "", body)


# ---- the command -----------------------------------------------------------------------------------------------------


def write(
    engine: Engine, specs: dict[str, FunctionSpec], since_s: float, out: Path, *, seed: int, now: float, price: float
) -> dict[str, object]:
    """
    Write the page into ``out`` and return a summary. ``price``: of the present rule. Raises ValueError if the span has
    no arrivals.
    """
    prewarming = ArrivalStore(engine)
    past, accounts = prewarming.past(now - since_s, now), prewarming.account(now - since_s, now)
    if not past.counts:
        raise ValueError("no arrivals were counted in that span")
    past = since_counted(past)
    rule_points = points(workload(past, specs), seed, price)
    svg = picture(rule_points, price)
    out.mkdir(parents=True, exist_ok=True)
    (out / "avoided.svg").write_text(svg)
    (out / PAGE).write_text(page(past, accounts, rule_points, svg, price))
    return {
        "page": str(out / PAGE),
        "functions": [asdict(account) for account in accounts],
        "rules": [asdict(point) for point in rule_points],
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="smore prewarm report", description="Write a page with the results of prewarming."
    )
    parser.add_argument(
        "--since", type=span_s, default=span_s("24h"), metavar="24h", help="length of the span up to now"
    )
    parser.add_argument("--out", type=Path, default=Path("prewarm-report"), help="folder of the page")
    parser.add_argument("--seed", type=int, default=0, help="seed of the arrival times within a minute")
    options = parser.parse_args(arguments)
    config: Settings = settings()
    if config.postgres.url is None or config.redis.url is None:
        print("SMORE_POSTGRES__URL and SMORE_REDIS__URL must be set", file=sys.stderr)
        return 3
    engine = make_engine(config.postgres.url, "prewarmed")
    try:
        with connect(config) as client:
            catalog = Catalog(client, config.redis.prefix)
            revisions = {
                key: catalog.revision(key, entry.revision)
                for key, entry in catalog.functions().items()
                if entry.revision
            }
        specs = {key: spec for key, spec in revisions.items() if spec is not None}
        summary = write(
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
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
