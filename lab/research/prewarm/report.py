"""Reports an evaluation: figures by name, rows of tables, and plain text."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lab.research.prewarm.cases import LOADS_S, TraceEvaluation
from lab.research.prewarm.scores import brier, cold_rate, intervals, mase, rates
from scheduler.backtest.cost import waste_s
from scheduler.policy.prewarm.kernel import (
    AHEADS,
    LATES,
    REQUESTS,
)


def point(case: TraceEvaluation, name: str) -> tuple[float, float]:
    """(GB-seconds of waste, R_cs) of a rule over all functions."""
    tally = case.scores[name].tally
    return float((waste_s(tally) * case.work.memory_gb).sum()), cold_rate(tally, case.parts["overall"])


def above(case: TraceEvaluation) -> list[str]:
    """Baselines that beat ours: at their GB-seconds the curve of ours has a higher R_cs."""
    ours = sorted(point(case, name) for name in case.curves["ours"])
    spent, cold = (
        np.log([our_point[0] for our_point in ours]),
        np.minimum.accumulate([our_point[1] for our_point in ours]),
    )
    names = []
    for family, members in case.curves.items():
        if family not in ("ours", "gaps", "oracle", "counts-known", "always", "never", "default"):
            for name in members:
                theirs = point(case, name)
                if np.interp(np.log(theirs[0]), spent, cold, left=np.inf) > theirs[1] + 1e-9:
                    names.append(name)
    return names


def rows(case: TraceEvaluation) -> list[dict[str, Any]]:
    """One row per rule and class, as the tables show them."""
    table_rows = []
    for name, scored_rule in case.scores.items():
        for part, mask in case.parts.items():
            if not mask.any():
                continue
            total = scored_rule.tally[mask].sum(axis=0)
            table_rows.append(
                {
                    "rule": name,
                    "class": part,
                    "functions": int(mask.sum()),
                    "requests": float(total[REQUESTS]),
                    **asdict(case.rates(name, part)),
                    "waste_per_wall_s": float(waste_s(total)) / case.wall_s,
                    "gb_s": float((waste_s(scored_rule.tally[mask]) * case.work.memory_gb[mask]).sum()),
                    "late": float(total[LATES] / max(1.0, total[REQUESTS])),
                    "loads_ahead": float(total[AHEADS]),
                }
            )
    return table_rows


def forecast_rows(case: TraceEvaluation) -> list[dict[str, Any]]:
    """One row per forecaster and class, over the scored minutes: the mean Brier score and the median scaled error."""
    counts = case.work.counts.astype(float)
    since = case.from_minute
    table_rows = []
    for name, (mean, any_) in case.ahead.items():
        brier_scores, scaled_errors = brier(any_[:, since:], counts[:, since:]), mase(mean, counts, since)
        for part, mask in case.parts.items():
            if mask.any():
                table_rows.append(
                    {
                        "forecaster": name,
                        "class": part,
                        "brier": float(np.nanmean(brier_scores[mask])),
                        "mase": float(np.nanmedian(scaled_errors[mask])),
                    }
                )
    return table_rows


def figures(cases: Sequence[TraceEvaluation]) -> dict[str, float]:
    """
    ``<name>.<trace>[.5s].<all|bursty>.<time|crossfit>``, with the load time if it is not 1.5 s. ``time``: tuned on the
    training part of the same functions. ``crossfit``: with base prices from other functions, the mean over partitions;
    ``crossfit_worst``: the worst partition. ``default``: one default price with the live platform's forecasters, chosen on
    other functions; ``default.<name>``: its mean over partitions for all functions, the largest over the cases.
    """
    values_by_name: dict[str, float] = {}
    for case in cases:
        suffix = f".{case.work.name}" + ("" if case.work.load_s == LOADS_S[0] else f".{case.work.load_s:g}s")
        for part, called in (("overall", "all"), ("bursty", "bursty")):
            mask = case.parts[part]
            if not mask.any():
                continue
            theirs = case.rates(case.lsth, part)
            for split, scored_rules in (
                ("time", [case.scores["ours"]]),
                ("crossfit", case.crossfit),
                ("default", case.crossfit_default),
            ):
                ours = [rates(scored_rule.tally, mask, case.wall_s) for scored_rule in scored_rules]
                compared = {
                    "rcs_diff_to_lsth": [rate.r_cs - theirs.r_cs for rate in ours],
                    "rcs_minutes_diff_to_lsth": [rate.r_cs_minutes - theirs.r_cs_minutes for rate in ours],
                    "rrw_wall_ratio_to_lsth": [rate.r_rw / theirs.r_rw for rate in ours],
                    "rrw_alone_ratio_to_lsth": [rate.r_rw_alone / theirs.r_rw_alone for rate in ours],
                    "rrw_loaded_ratio_to_lsth": [rate.r_rw_loaded / theirs.r_rw_loaded for rate in ours],
                }
                for name, values in compared.items():
                    values_by_name[f"{name}{suffix}.{called}.{split}"] = float(np.mean(values))
                    if len(values) > 1:
                        values_by_name[f"{name}{suffix}.{called}.{split}_worst"] = max(values)
            floor = case.rates("oracle", part)
            values_by_name[f"rrw_wall_floor_to_lsth{suffix}.{called}"] = floor.r_rw / theirs.r_rw
            values_by_name[f"rrw_loaded_floor_to_lsth{suffix}.{called}"] = floor.r_rw_loaded / theirs.r_rw_loaded
        for ratio, share in case.gap_closed.items():
            values_by_name[f"gap_closed_{ratio}{suffix}"] = share
        values_by_name[f"above_pareto{suffix}"] = float(len(above(case)))
        values_by_name[f"base_price_gb_s{suffix}"] = case.base_price_gb_s
        values_by_name[f"default_price_gb_s{suffix}"] = case.default_price_gb_s
    for name in ("rcs_diff_to_lsth", "rrw_wall_ratio_to_lsth"):
        values_by_name[f"default.{name}"] = max(
            value for of, value in values_by_name.items() if of.startswith(name) and of.endswith(".all.default")
        )
    return values_by_name


def report(cases: Sequence[TraceEvaluation]) -> dict[str, Any]:
    return {
        "figures": figures(cases),
        "cases": [
            {
                "trace": case.work.name,
                "load_s": case.work.load_s,
                "functions": len(case.work.names),
                "base_price_gb_s": case.base_price_gb_s,
                "default_price_gb_s": case.default_price_gb_s,
                "prices_gb_s": {
                    f"{price:g}": int((case.prices_gb_s == price).sum())
                    for price in np.unique(case.prices_gb_s).tolist()
                },
                "lsth": case.lsth,
                "compression": 1,
                "sources": {name: case.sources.count(name) for name in sorted(set(case.sources))},
                "intervals": {
                    part: intervals(case.scores["ours"].tally, case.scores[case.lsth].tally, mask)
                    for part, mask in case.parts.items()
                    if mask.any()
                },
                "above_pareto": above(case),
                "gap_closed": case.gap_closed,
                "rows": rows(case),
                "forecasts": forecast_rows(case),
            }
            for case in cases
        ],
    }


def table(case: TraceEvaluation) -> str:
    """Plain text of one case."""
    lines = [
        f"{case.work.name}, cold start {case.work.load_s:g} s, base price {case.base_price_gb_s:.4g} GB-s, LSTH:"
        f" {case.lsth}"
    ]
    lines.append(
        f"{'rule':28} {'class':8} {'R_cs %':>8} {'minutes %':>9} {'R_rw %':>8} {'loaded %':>8} {'GB-s':>11}"
        f" {'late %':>7}"
    )
    for row in rows(case):
        lines.append(
            f"{row['rule']:28} {row['class']:8} {100 * row['r_cs']:8.3f} {100 * row['r_cs_minutes']:9.3f}"
            f" {100 * row['r_rw']:8.2f} {100 * row['r_rw_loaded']:8.2f} {row['gb_s']:11.4g} {100 * row['late']:7.3f}"
        )
    return "\n".join(lines)
