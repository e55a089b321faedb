"""
The inner loops of prewarming, compiled: what idle times and gaps say, and the replay of a function's instances under a
rule.

They are one module because compiled code is kept beside it and made anew only when this file changes. State of a
function is a handful of arrays, so that a rule that lives in the leader and a replay of hundreds of functions run the
same code:

=========== ============================ =======================================================================================
``hist``    [2, R + 1]                   idle times of the long and the short span by minute, place R: longer than the range
``log``     [N, 3]                       (minute, bin, times) of what is in ``hist``, a ring
``place``   [3]                          where the next entry goes; the oldest one within the long and the short span
``gaps``    [GROUPS, BINS + 1]           pauses of levels by age, the last place: longer than the last edge
``totals``  [GROUPS, 2]                  gaps that are known, and how many of them are new
``windows`` [2, GROUPS, WINDOWS, 2]      (from, until): ages at which an idle instance is held; unused ones (0, 0). First by the gaps
                                         alone, then for minutes that are forecast: up to the age of a minute
``rows``    [n, COLUMNS]                 (kind, level, from, until, asked) of an instance, seconds from the beginning of the trace
``tally``   [FIELDS]                     what rows amount to
=========== ============================ =======================================================================================
"""

import math
from typing import Final

import numpy as np

from scheduler.policy.kernel import Floats, Ints, compiled

#: Upper edges of the bins of age, seconds: fine where requests follow each other, half minutes to an hour, minutes to
#: four hours.
EDGES: Final[Floats] = np.concatenate(
    (
        [0.0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50],
        np.arange(60.0, 3600.0, 30.0),
        np.arange(3600.0, 14401.0, 60.0),
    )
)
BINS: Final = len(EDGES) - 1
#: How many of them end within a minute.
MINUTE_BIN: Final = int(np.searchsorted(EDGES, 60.0))
#: Groups of levels whose gaps are counted together: the first four alone, then half an octave each, up to 512
#: instances.
GROUPS: Final = 19
#: Windows of a level; only the first level may come back after it has gone.
WINDOWS: Final = 3
#: Gaps of a group after which all it knows counts half: the newest ones are worth most.
ENOUGH: Final = 1000.0
#: Share of new gaps after which windows are computed again.
STALE: Final = 0.05

#: Of a row. COLD, AHEAD: loading, caused by a request or by the rule; WAITS: the request waits for a load that began
#: before it came.
COLD, AHEAD, IDLE, BUSY, WAITS = range(5)
COLUMNS: Final = 5
#: What is counted of a function: requests by kind, loads by the rule, seconds by state. IDLE_ALONE_S: loaded or loading
#: while no instance of the function is at work. COLD_MINUTES, REQUEST_MINUTES: minutes with a cold start, with a
#: request; LAST_COLD, LAST_REQUEST: the newest of them plus one, so that :func:`reduce` counts each once.
(
    REQUESTS,
    COLDS,
    LATES,
    AHEADS,
    LOADING_S,
    IDLE_S,
    BUSY_S,
    WAIT_S,
    IDLE_ALONE_S,
    COLD_MINUTES,
    REQUEST_MINUTES,
    LAST_COLD,
    LAST_REQUEST,
) = range(13)
FIELDS: Final = 13
#: How a level is held after its work.
KEEP, HISTOGRAM, PRICED, ORACLE = range(4)
#: Instances of one function at once.
LEVELS: Final = 4096
#: What decided a histogram rule's window: the standard keep-alive for want of a pattern, the histogram, idle times
#: beyond the range.
STANDARD, PATTERN, SERIES = range(3)


# ---- idle times: HHP and LSTH ----------------------------------------------------------------------------------------


def no_idle_times(range_minutes: int, long_minutes: int) -> tuple[Ints, Ints, Ints]:
    """``hist``, ``log`` and ``place`` of a function that nobody has asked for. A minute has at most two bins: an idle time longer than
    it, and those below one minute."""
    return (
        np.zeros((2, range_minutes + 1), np.int64),
        np.zeros((3 * long_minutes + 8, 3), np.int64),
        np.zeros(3, np.int64),
    )


@compiled
def observe(hist: Ints, log: Ints, place: Ints, minute: int, idle_s: float) -> None:
    """One idle time ended in ``minute``."""
    size = log.shape[0]
    bin_ = min(int(idle_s / 60.0), hist.shape[1] - 1)
    hist[0, bin_] += 1
    hist[1, bin_] += 1
    for back in range(1, 3):
        if place[0] - back < max(place[1], place[2]):
            break
        entry = log[(place[0] - back) % size]
        if entry[0] == minute and entry[1] == bin_:
            entry[2] += 1
            return
    entry = log[place[0] % size]
    entry[0], entry[1], entry[2] = minute, bin_, 1
    place[0] += 1


@compiled
def forget(hist: Ints, log: Ints, place: Ints, minute: int, long_minutes: int, short_minutes: int) -> None:
    """Take out what is older than its span when ``minute`` begins."""
    size = log.shape[0]
    for span in range(2):
        limit = minute - (long_minutes if span == 0 else short_minutes)
        while place[1 + span] < place[0] and log[place[1 + span] % size, 0] < limit:
            entry = log[place[1 + span] % size]
            hist[span, entry[1]] -= entry[2]
            place[1 + span] += 1


@compiled
def window(
    counts: Ints, head: float, tail: float, margin: float, least: int, cv: float, beyond: float
) -> tuple[float, float, int]:
    """
    (seconds to stay unloaded after work, seconds to keep loaded from then on, what decided) of one

    ``head``, ``tail``: percentiles, rounded to the outer edges of their bins. A histogram is trusted where the
    coefficient of variation of its counts is at least ``cv``: then it is concentrated.
    """
    bins = counts.shape[0] - 1
    inside = 0
    squares = 0.0
    for bin_ in range(bins):
        inside += counts[bin_]
        squares += float(counts[bin_]) * counts[bin_]
    every = inside + counts[bins]
    if every >= least and counts[bins] > beyond * every:
        return 0.0, bins * 60.0, SERIES
    mean = inside / bins
    if every < least or inside == 0 or math.sqrt(max(0.0, squares / bins - mean * mean)) < cv * mean:
        return 0.0, bins * 60.0, STANDARD
    low = high = -1
    seen = 0
    for bin_ in range(bins):
        seen += counts[bin_]
        if low < 0 and seen * 100.0 >= head * inside and seen > 0:
            low = bin_
        if high < 0 and seen * 100.0 >= tail * inside:
            high = bin_ + 1
    unload = low * 60.0 * (1.0 - margin)
    return unload, high * 60.0 * (1.0 + margin) - unload, PATTERN


@compiled
def blended(
    hist: Ints,
    gamma: float,
    head: float,
    tail: float,
    margin: float,
    least: int,
    cv: float,
    beyond: float,
    stand_in: bool,
) -> tuple[float, float, int]:
    """``gamma`` times the window of the long span and 1 - ``gamma`` times that of the short one."""
    unload, keep, why = window(hist[0], head, tail, margin, least, cv, beyond)
    if gamma >= 1.0 or why == SERIES:
        return unload, keep, why
    short_unload, short_keep, short_why = window(hist[1], head, tail, margin, least, cv, beyond)
    if stand_in and short_why != PATTERN:
        return unload, keep, why
    return gamma * unload + (1.0 - gamma) * short_unload, gamma * keep + (1.0 - gamma) * short_keep, why


# ---- gaps of levels and their price ----------------------------------------------------------------------------------


@compiled
def group_of(level: int) -> int:
    if level <= 4:
        return level - 1
    return min(3 + math.ceil(2.0 * math.log2(level / 4.0) - 1e-9), GROUPS - 1)


@compiled
def count_gap(gaps: Floats, totals: Floats, group: int, seconds: float) -> None:
    """
    ``gaps`` [GROUPS, BINS + 1], the last place for longer ones; ``totals`` [GROUPS, 2]: all that is known, and what is
    new of it.
    """
    bin_ = min(np.searchsorted(EDGES, seconds, side="right") - 1, gaps.shape[1] - 1)
    gaps[group, bin_] += 1.0
    totals[group, 0] += 1.0
    totals[group, 1] += 1.0
    if totals[group, 0] >= ENOUGH:
        gaps[group] *= 0.5
        totals[group] *= 0.5


@compiled
def smoothed(counts: Floats) -> Floats:
    """
    Each gap spread over ages that are a quarter, at most half a minute, shorter and longer: few gaps say little about
    single bins.
    """
    bins = EDGES.shape[0] - 1
    found = np.zeros(bins + 1)
    found[bins] = counts[bins]
    for bin_ in range(bins):
        if counts[bin_] == 0.0:
            continue
        middle = (EDGES[bin_] + EDGES[bin_ + 1]) / 2.0
        reach = min(0.25 * middle, 30.0)
        low, high = min(EDGES[bin_], middle - reach), max(EDGES[bin_ + 1], middle + reach)
        at = bin_
        while at > 0 and EDGES[at] > low:
            at -= 1
        while at < bins and EDGES[at] < high:
            found[at] += counts[bin_] * (min(high, EDGES[at + 1]) - max(low, EDGES[at])) / (high - low)
            at += 1
        if high > EDGES[bins]:
            found[bins] += counts[bin_] * (high - EDGES[bins]) / (high - low)
    return found


@compiled
def plan(
    counts: Floats, bins: int, first: bool, price_s: float, load_s: float, prior: float, tail: float, windows: Floats
) -> None:
    """
    Into ``windows`` [WINDOWS, 2]: (from, until) in seconds of age, in order, up to the end of bin ``bins``, behind
    which it makes no difference whether the level is loaded. ``first``: it may come back. ``counts`` [BINS + 1]: gaps,
    smoothed.

    More windows than there is room for are joined, the shortest pauses first.
    """
    cold = price_s + load_s
    loaded, gone = cold, cold
    at_risk = counts[bins:].sum()
    stays, loads = np.zeros(bins, np.bool_), np.zeros(bins, np.bool_)
    for bin_ in range(bins - 1, -1, -1):
        begin, end = EDGES[bin_], EDGES[bin_ + 1]
        at_risk += counts[bin_]
        expected = 1.0 - ((begin + 1.0) / (end + 1.0)) ** tail
        hazard = (counts[bin_] + prior * expected) / (at_risk + prior)
        width = end - begin
        stay = hazard * width / 2.0 + (1.0 - hazard) * (width + loaded)
        wait = hazard * cold + (1.0 - hazard) * gone
        if first and begin > load_s and load_s + stay < wait:
            loads[bin_] = True
            wait = load_s + stay
        stays[bin_] = stay < wait
        loaded, gone = min(stay, wait), wait
    found = np.zeros((bins + 1, 2))
    used = 0
    held = True
    for bin_ in range(bins):
        if not held and loads[bin_]:
            held = True
            found[used, 0] = EDGES[bin_]
        if held and not stays[bin_]:
            held = False
            found[used, 1] = EDGES[bin_]
            used += found[used, 1] > found[used, 0]
    if held:
        found[used, 1] = EDGES[bins]
        used += 1
    while used > windows.shape[0]:
        least = 1
        for which in range(2, used):
            if found[which, 0] - found[which - 1, 1] < found[least, 0] - found[least - 1, 1]:
                least = which
        found[least - 1, 1] = found[least, 1]
        for which in range(least, used - 1):
            found[which] = found[which + 1]
        used -= 1
    windows[:] = 0.0
    windows[:used] = found[:used]


@compiled
def replan(
    gaps: Floats, totals: Floats, windows: Floats, group: int, price_s: float, load_s: float, prior: float, tail: float
) -> None:
    """
    Compute the windows of one group anew if enough is new."""
    if totals[group, 1] == 0.0 or totals[group, 1] < STALE * totals[group, 0]:
        return
    totals[group, 1] = 0.0
    counts = smoothed(gaps[group])
    plan(counts, counts.shape[0] - 1, group == 0, price_s, load_s, prior, tail, windows[0, group])
    plan(counts, MINUTE_BIN, False, price_s, load_s, prior, tail, windows[1, group])


@compiled
def minute_wanted(chance: float, mean: float, price_s: float, load_s: float, run_s: float) -> int:
    """
    Instances to hold for a minute in which ``mean`` requests are expected, at least one with ``chance``.

    A level is worth its seconds if the chance that it is needed times what it saves is more than a load and the time it
    would stand idle. The chance that level n is reached is that of a Poisson stream which finds n - 1 at work in the
    steady state (Little's law).
    """
    if not chance > 0.0:
        return 0
    saved = price_s + load_s
    idle_s = (1.0 - chance) * 60.0 + chance * 60.0 / (1.0 + max(1.0, mean / chance))
    if chance * saved <= load_s + idle_s:
        return 0
    load = mean * run_s / 60.0
    here = math.exp(-load)
    at_most = here
    level = 1
    while level < 512:
        here = here * load / level
        reached = 1.0 - math.exp(-mean * here)
        level += 1
        at_most += here
        if level - 1 >= load and reached * saved <= load_s + 60.0 * min(1.0, at_most):
            return level - 1
    return level


def no_gaps(price_s: float, load_s: float, prior: float, tail: float) -> tuple[Floats, Floats, Floats]:
    """``gaps``, ``totals`` and ``windows`` of a function that nobody has asked for: what the prior alone would hold."""
    gaps, totals, windows = np.zeros((GROUPS, BINS + 1)), np.zeros((GROUPS, 2)), np.zeros((2, GROUPS, WINDOWS, 2))
    for group in range(2):
        totals[group, 1] = 1.0
        replan(gaps, totals, windows, group, price_s, load_s, prior, tail)
    windows[:, 2:] = windows[:, 1:2]
    return gaps, totals, windows


@compiled
def level_window(windows: Floats, group: int, which: int, told: bool) -> tuple[float, float]:
    """
    (from, until), ages in seconds, of a level that falls idle; from = until: none. ``told``: its minute is forecast.

    A level is never held after its work for longer than those below, which fell idle later: else the lower ones would
    only seem gone.
    """
    part = 1 if told else 0
    first, until = windows[part, group, which, 0], windows[part, group, which, 1]
    if first == 0.0:
        for lower in range(group):
            until = min(until, windows[part, lower, 0, 1] if windows[part, lower, 0, 0] == 0.0 else 0.0)
    return first, until


# ---- instances -------------------------------------------------------------------------------------------------------


@compiled
def count_minute(tally: Floats, minutes: int, last: int, asked: float, since: float) -> None:
    """
    Add the minute of ``asked`` to ``tally[minutes]`` unless it is the one counted last. Requests come in order of time.
    """
    minute = math.floor(asked / 60.0) + 1.0
    if asked >= since and minute > tally[last]:
        tally[last] = minute
        tally[minutes] += 1.0


@compiled
def reduce(rows: Floats, used: int, tally: Floats, since: float, end: float) -> None:
    for place in range(used):
        kind, begin, until, asked = int(rows[place, 0]), rows[place, 2], rows[place, 3], rows[place, 4]
        span = max(0.0, min(until, end) - max(begin, since))
        if rows[place, 1] == 1.0 and kind in (COLD, AHEAD, IDLE):
            tally[IDLE_ALONE_S] += span
        if kind == BUSY:
            tally[BUSY_S] += span
            tally[REQUESTS] += asked >= since
            count_minute(tally, REQUEST_MINUTES, LAST_REQUEST, asked, since)
        elif kind == COLD:
            tally[LOADING_S] += span
            tally[COLDS] += asked >= since
            count_minute(tally, COLD_MINUTES, LAST_COLD, asked, since)
        elif kind == WAITS:
            tally[WAIT_S] += span
            tally[LATES] += asked >= since
        elif kind == AHEAD:
            tally[LOADING_S] += span
            tally[AHEADS] += since <= begin < end
        else:
            tally[IDLE_S] += span


@compiled
def emit(
    rows: Floats,
    used: int,
    tally: Floats,
    since: float,
    end: float,
    kind: int,
    level: int,
    begin: float,
    until: float,
    asked: float,
) -> int:
    if used == rows.shape[0]:
        reduce(rows, used, tally, since, end)
        used = 0
    row = rows[used]
    row[0], row[1], row[2], row[3], row[4] = kind, level, begin, until, asked
    return used + 1


@compiled
def settle(
    begin: float,
    was_loaded: bool,
    windows: Floats,
    base: Ints,
    close: Ints,
    closed: Floats,
    level: int,
    now: float,
    load_s: float,
    oracle: bool,
    spans: Floats,
    rows: Floats,
    used: int,
    tally: Floats,
    since: float,
    end: float,
) -> tuple[int, float]:
    """
    What a level did in a pause from ``begin`` to ``now``; then (rows used, when it is ready: inf = it is gone).

    ``spans``: scratch [T + WINDOWS, 2].
    """
    if oracle:
        begin_load = max(begin, now - load_s)
        if was_loaded and now - begin <= load_s:
            used = emit(rows, used, tally, since, end, IDLE, level, begin, now, math.nan)
        else:
            used = emit(rows, used, tally, since, end, AHEAD, level, begin_load, now, math.nan)
        return used, now
    count = 0
    if was_loaded:
        for place in range(windows.shape[0]):
            if windows[place, 1] > windows[place, 0]:
                early = load_s if windows[place, 0] > 0.0 else 0.0
                spans[count, 0] = max(begin, begin + windows[place, 0] - early)
                spans[count, 1] = begin + windows[place, 1]
                count += 1
    for minute in range(int(begin / 60.0), min(int(now / 60.0), base.shape[0] - 1) + 1):
        # Of a minute that is closed on count, what has worked in it stays until then.
        if base[minute] >= level or (was_loaded and close[minute] > 0 and minute == int(begin / 60.0)):
            begin_at, end_at = max(begin, 60.0 * minute), min(60.0 * (minute + 1), closed[minute])
            if end_at > begin_at or (end_at == begin_at and begin_at == begin):
                place = count
                while place > 0 and spans[place - 1, 0] > begin_at:
                    spans[place] = spans[place - 1]
                    place -= 1
                spans[place, 0], spans[place, 1] = begin_at, end_at
                count += 1
    ready = math.inf
    place = 0
    while place < count:
        first, last = spans[place, 0], spans[place, 1]
        place += 1
        while place < count and spans[place, 0] <= last:
            last = max(last, spans[place, 1])
            place += 1
        if first > now or last <= begin:
            continue
        whole = now <= last
        until = min(last, now)
        if was_loaded and first <= begin:
            used = emit(rows, used, tally, since, end, IDLE, level, begin, until, math.nan)
            if whole:
                ready = now
        else:
            loaded = first + load_s
            # One that a request waits for is carried to its end.
            used = emit(
                rows, used, tally, since, end, AHEAD, level, first, loaded if whole else min(loaded, until), math.nan
            )
            if loaded < until:
                used = emit(rows, used, tally, since, end, IDLE, level, loaded, until, math.nan)
            if whole:
                ready = max(now, loaded)
    return used, ready


@compiled
def replay(
    arrival: Floats,
    run_s: float,
    load_s: float,
    base: Ints,
    close: Ints,
    told: Ints,
    guard: bool,
    how: int,
    keep_s: float,
    price_s: float,
    knobs: Floats,
    hist: Ints,
    log: Ints,
    place: Ints,
    gaps: Floats,
    totals: Floats,
    plans: Floats,
    rows: Floats,
    tally: Floats,
    since: float,
) -> int:
    """One function; into ``tally`` [FIELDS] what lies from ``since`` on, rows that did not fit included. Returns how many rows lie in
    ``rows`` and are not yet counted there (:func:`reduce`)."""
    minutes = base.shape[0]
    end = 60.0 * minutes
    size = plans.shape[2]
    began = np.zeros(LEVELS + 1)
    was_loaded = np.zeros(LEVELS + 1, np.bool_)
    windows = np.zeros((LEVELS + 1, size, 2))
    closed = np.full(minutes, np.inf)
    spans = np.zeros((minutes + size + 1, 2))
    ends = np.zeros(LEVELS + 1)
    busy = highest = used = seen = 0
    minute_of_windows = minute_of_seen = -1
    unload, keep = 0.0, keep_s
    next_arrival = 0
    while True:
        arriving = next_arrival < arrival.shape[0] and (busy == 0 or arrival[next_arrival] < ends[0])
        if not arriving and busy == 0:
            break
        now = arrival[next_arrival] if arriving else ends[0]
        if now >= end:
            break
        minute = int(now / 60.0)
        if how == HISTOGRAM and minute != minute_of_windows:
            minute_of_windows = minute
            forget(hist, log, place, minute, int(knobs[9]), int(knobs[10]))
            unload, keep, _ = blended(
                hist, knobs[0], knobs[1], knobs[2], knobs[3], int(knobs[4]), knobs[5], knobs[6], knobs[7] > 0
            )
        if not arriving:
            # The earliest end goes; the heap is put right.
            last = ends[busy - 1]
            busy -= 1
            hole = 0
            while True:
                child = 2 * hole + 1
                if child >= busy:
                    break
                if child + 1 < busy and ends[child + 1] < ends[child]:
                    child += 1
                if ends[child] >= last:
                    break
                ends[hole] = ends[child]
                hole = child
            ends[hole] = last
            level = busy + 1
            began[level], was_loaded[level] = now, True
            windows[level] = 0.0
            if how == KEEP:
                windows[level, 0, 1] = keep_s
            elif how == HISTOGRAM:
                if busy == 0 or unload == 0.0:
                    windows[level, 0, 0], windows[level, 0, 1] = unload, unload + keep
            elif how == PRICED:
                group = group_of(level)
                replan(gaps, totals, plans, group, price_s, load_s, knobs[0], knobs[1])
                for which in range(size):
                    windows[level, which] = level_window(plans, group, which, told[minute] > 0)
            continue
        next_arrival += 1
        level = busy + 1
        if level > LEVELS:
            raise ValueError("more instances at once than a replay has levels")
        used, ready = settle(
            began[level],
            was_loaded[level],
            windows[level],
            base,
            close,
            closed,
            level,
            now,
            load_s,
            how == ORACLE,
            spans,
            rows,
            used,
            tally,
            since,
            end,
        )
        highest = max(highest, level)
        if was_loaded[level]:
            if how == HISTOGRAM and level == 1:
                observe(hist, log, place, minute, now - began[1])
            elif how == PRICED:
                count_gap(gaps, totals, group_of(level), now - began[level])
        if ready == np.inf:
            used = emit(rows, used, tally, since, end, COLD, level, now, now + load_s, now)
            ready = now + load_s
        elif ready > now:
            used = emit(rows, used, tally, since, end, WAITS, level, now, ready, now)
        until = ready + run_s
        used = emit(rows, used, tally, since, end, BUSY, level, ready, until, now)
        hole = busy
        while hole > 0 and ends[(hole - 1) // 2] > until:
            ends[hole] = ends[(hole - 1) // 2]
            hole = (hole - 1) // 2
        ends[hole] = until
        busy += 1
        if minute != minute_of_seen:
            minute_of_seen, seen = minute, 0
        seen += 1
        if (
            close[minute] > 0
            and seen >= close[minute]
            and closed[minute] == np.inf
            and not (guard and minute + 1 < minutes and base[minute + 1] > 0 and 60.0 * (minute + 1) - now < load_s)
        ):
            closed[minute] = now
    for minute in range(minutes):
        highest = max(highest, base[minute])
    if how != ORACLE:
        for level in range(busy + 1, highest + 1):
            used, _ = settle(
                began[level],
                was_loaded[level],
                windows[level],
                base,
                close,
                closed,
                level,
                end,
                load_s,
                False,
                spans,
                rows,
                used,
                tally,
                since,
                end,
            )
    return used


@compiled
def wanted(chance: Floats, mean: Floats, price_s: Floats, load_s: float, run_s: Floats) -> tuple[Ints, Ints]:
    """
    :func:`minute_wanted` of forecasts [F, T]: (instances, whether there is a forecast); ``price_s``, ``run_s`` [F].
    """
    instances, told = np.zeros(chance.shape, np.int64), np.zeros(chance.shape, np.int64)
    for function in range(chance.shape[0]):
        for minute in range(chance.shape[1]):
            if not (np.isnan(chance[function, minute]) or np.isnan(mean[function, minute])):
                told[function, minute] = 1
                instances[function, minute] = minute_wanted(
                    chance[function, minute], mean[function, minute], price_s[function], load_s, run_s[function]
                )
    return instances, told
