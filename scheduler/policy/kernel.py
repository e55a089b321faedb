"""
The inner loops of a decision, compiled: what one more batch would mean on each GPU instance, and which of them may have
it.

State is a few packed arrays, so that a call hands over a handful of pointers. A GPU instance's effects are computed
when something changes there, for every kind of batch at once and in the same call (:func:`begin`, :func:`end`,
:func:`refresh`); a decision then only reads them (:func:`weigh`). With N GPU instances, F revisions, K kinds of batches
and S slots:

=========== ===================== ====================================================================
``rows``    [ROW_FIELDS, N]       a GPU instance: memory in MiB, shares 0..1, times in epoch seconds
``cells``   [F, CELL_FIELDS, N]   a revision there: counts, and when the first busy instance is free
``effects`` [K, EFFECT_FIELDS, N] one more batch of a kind there: fractions (Eq. 3, Eq. 4), see Effect
``running`` [N, S, RUN_FIELDS]    the batches there, in the first ``USED`` places
=========== ===================== ====================================================================

The fields of one GPU instance lie side by side in memory (cluster.py), so that a batch that begins or ends touches few
cache lines.

Compiled code is kept beside the module, so that only the first process of an installation waits for the compiler.
"""

from math import gcd
from typing import Any, Final, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from smore.domain.degradation import K_MAX

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int8]
#: One fact along the GPU instances.
Row = Floats

_F = TypeVar("_F")


def compiled(function: _F) -> _F:
    """Typed, and compiled at the first call in an installation. No fastmath: NaN and infinity keep their meaning."""
    make: Any = njit(cache=True, nogil=True, error_model="numpy")
    return cast("_F", make(function))


def is_kept(function: Any) -> bool:
    """Whether a function's compiled code is there, of its present source. Numba says it nowhere else."""
    return bool(function._cache._cache_file._load_index())


# Facts of a GPU instance. SM_TRAINING: what all but functions used in the last interval, which is the training's share;
# SM: that, and what the functions that run now use by their profiles (A26). BUDGET: the smallest degradation budget of
# its trainings; TOKENS, REFILL, AT: seconds of training time that functions may still cost, what comes in for each
# second, and when it was counted; FACTOR: what a predicted loss is multiplied by (measured over predicted).
# REFUSAL: why no batch may go there, or OPEN; PROTECTED: unregistered processes compute there; TABLED: its training's
# row in the table of its place, -1 = none; VICTIM: that training's model there; TABLED_2, VICTIM_2: of a second
# training; YIELD: for how long a run of bulk work may go on there, seconds; LONG_AT: from when on a single invocation of it
# may run for longer all the same; BULK_USED: slots that bulk work has. The first eight are what a scan reads of every row: a cache line.
(
    REFUSAL,
    SM,
    JOBS,
    FACTOR,
    TOKENS,
    REFILL,
    AT,
    BUDGET,
    MEMORY_FREE,
    RESERVED,
    UTILISATION,
    SM_TRAINING,
    USED,
    SLOTS,
    ALIVE,
    PAUSED,
    PROTECTED,
    CLOSED,
    MEMORY_TOTAL,
    TABLED,
    VICTIM,
    TABLED_2,
    VICTIM_2,
    YIELD,
    LONG_AT,
    BULK_USED,
) = range(26)
ROW_FIELDS: Final = 26

# AWAY: the function is pinned to other GPU instances. PARKED: instances whose weights lie in host memory, as reported.
RESIDENT, LOADING, OUTSTANDING, FREE_AT, QUARANTINED, STATE, AWAY, PARKED = range(8)
CELL_FIELDS: Final = 8

# Of adding a batch: OWN slowdown of it, TRAINING loss of the training by all functions then (both with 90 % bounds),
# IMPACT (A27), KNOWN where all of it came from a table, HOLDS where every batch that runs there still meets its
# deadline (A28.3), MORE: by how much TRAINING exceeds the loss that is predicted for now. Of two trainings TRAINING and
# MORE are the larger ones, each for itself.
OWN, OWN_UPPER, TRAINING, TRAINING_UPPER, IMPACT, KNOWN, HOLDS, MORE = range(8)
EFFECT_FIELDS: Final = 8

# A batch under way: seconds of its run that remain, counted in time alone, at the moment SINCE (before which it does
# not run); its slowdown LOST; the column of its revision and when it was expected to end.
KIND, REMAINING, SINCE, LOST, DEADLINE, COLUMN, ENDS = range(7)
RUN_FIELDS: Final = 7

# The knobs that a scan needs.
(
    A_GUARD,
    A_SM_CAP,
    A_SM_RULE,
    A_BUDGET_RULE,
    A_TAU_FUNCTION,
    A_PROTECT,
    A_ACCEPT,
    A_BESIDE,
    A_CHOICE,
    A_UPPER,
    A_CAP_S,
    A_BULK,
    A_KEEPS,
) = range(13)
ASK_FIELDS: Final = 13

#: A_BULK: work that has users waiting; bulk work, whose runs are bounded; a single invocation of it, whose run may be
#: longer from LONG_AT on. A_KEEPS: bulk work of a function that has users waiting too, which keep one of several instances.
NOT_BULK, BULK, BULK_ROW = 0.0, 1.0, 2.0

#: A_SM_RULE: no test, all that is there, the training alone (EDF-util).
SM_NONE, SM_TOTAL, SM_TRAINING_ONLY = 0.0, 1.0, 2.0
#: A_BUDGET_RULE: no test, predicted loss within the budget at any moment (A28.1), within what the training's token
#: bucket holds.
BUDGET_NONE, BUDGET_INSTANT, BUDGET_BUCKET = 0.0, 1.0, 2.0
#: A_CHOICE: least impact (A27), least utilised (EDF-util).
LEAST_IMPACT, LEAST_UTILISED = 0.0, 1.0

# Why a row is refused; 0 = acceptable. ``decisions.Refusal`` gives them their words.
(
    OPEN,
    GONE,
    IS_PAUSED,
    NO_SLOT,
    IS_QUARANTINED,
    BUSY,
    NO_MEMORY,
    NO_SM,
    BESIDE_TRAINING,
    OVER_BUDGET,
    TOO_SLOW,
    BREAKS_OTHERS,
    TOO_LATE,
    IS_PROTECTED,
    IS_ELSEWHERE,
    IS_DRAINED,
    YIELDS,
) = range(17)
CODES: Final = 17
#: The fact PAUSED of a GPU instance that is open, paused, or drained.
NOT_PAUSED, HELD, DRAINED = 0.0, 1.0, 2.0
#: States below 0: no idle instance, but one could be loaded, or taken out of host memory.
COLD, HOST = -1, -2
#: In the place of a kind's column of the table: of a function with precedence; and what one of its runs adds to an iteration
#: of a training, so that its price is its run time.
WHOLE, STOPPED = -2, 1e6


@compiled
def set_refusal(rows: Floats, row: int) -> None:
    """Count afresh what refuses every batch on a row."""
    why = OPEN
    if rows[ALIVE, row] == 0.0:
        why = GONE
    elif rows[PAUSED, row] != NOT_PAUSED:
        why = IS_DRAINED if rows[PAUSED, row] == DRAINED else IS_PAUSED
    elif rows[PROTECTED, row] != 0.0:
        why = IS_PROTECTED
    elif rows[CLOSED, row] != 0.0:
        why = OVER_BUDGET
    elif rows[USED, row] >= rows[SLOTS, row]:
        why = NO_SLOT
    rows[REFUSAL, row] = why


@compiled
def _advance(running: Floats, row: int, used: int, now: float) -> None:
    """Count the progress of what runs there up to ``now``."""
    for s in range(used):
        passed = now - running[row, s, SINCE]
        if passed > 0.0:
            running[row, s, REMAINING] = max(0.0, running[row, s, REMAINING] - passed / (1.0 + running[row, s, LOST]))
            running[row, s, SINCE] = now


@compiled
def _lost(
    weights: Floats,
    pairs: Floats,
    between: Floats,
    models: Ints,
    victim: int,
    training: int,
    victim_2: int,
    training_2: int,
    trainings: float,
    k: int,
    indices: Ints,
    declared: Floats,
    s: int,
    used: int,
) -> float:
    """
    Slowdown of the batch in place ``s`` by the trainings and by all others there: Eq. 4 as
    ``smore/domain/degradation.py`` states it, compiled. ``training`` and ``training_2`` -1: none that the table knows.
    """
    own = indices[s]
    if own < 0:
        strange: float = declared[s] * (trainings + used - 1)
        return strange
    lost: float = (
        weights[1, k, models[s], victim] * pairs[2, training, own] if training >= 0 else trainings * declared[s]
    )
    if training_2 >= 0:
        lost += weights[1, k, models[s], victim_2] * pairs[2, training_2, own]
    for other in range(used):
        if other != s:
            if indices[other] >= 0:
                lost += weights[2, k, models[s], models[other]] * between[0, own, indices[other]]
            else:
                lost += declared[s]
    return lost


@compiled
def _breaks(running: Floats, row: int, s: int, lost: float) -> bool:
    """Whether a batch that would meet its deadline misses it when it is slowed by ``lost`` from now on."""
    since, remaining, deadline = running[row, s, SINCE], running[row, s, REMAINING], running[row, s, DEADLINE]
    breaks: bool = (
        since + remaining * (1.0 + lost) > deadline and since + remaining * (1.0 + running[row, s, LOST]) <= deadline
    )
    return breaks


@compiled
def _recount(
    now: float,
    row: int,
    first: int,
    rows: Floats,
    effects: Floats,
    running: Floats,
    pairs: Floats,
    between: Floats,
    weights: Floats,
    kinds: Ints,
    declared: Floats,
    shares: Floats,
) -> None:
    """
    Count the effects of one more batch of each kind from ``first`` on, on ``row`` as it is now: Eq. 3 and 4 as
    ``smore/domain/degradation.py`` states them, compiled; tests/unit/scheduler/policy/test_degradation.py holds both
    equal.

    ``pairs`` [4, J, F]: loss of a training by a function, its bound, slowdown of the function, its bound; ``between``
    [2, F, F]: slowdown of a function by another, its bound; ``weights`` [3, K_MAX + 1, M, M]: gamma, alpha, beta;
    ``kinds`` [2, K]: column of the table, -1 where it has none, and model; ``declared`` [>= K]; ``shares``: weights of
    the impact (training, the batch, the others).
    """
    used = int(rows[USED, row])
    # A training loses as much beside another one as alone; a function loses to each.
    has, trainings = min(rows[JOBS, row], 1.0), min(rows[JOBS, row], 2.0)
    training, victim = int(rows[TABLED, row]) if has > 0.0 else -1, int(rows[VICTIM, row])
    training_2, victim_2 = int(rows[TABLED_2, row]) if training >= 0 else -1, int(rows[VICTIM_2, row])
    known, both = training >= 0, training_2 >= 0
    # With one more there are used + 1; two functions without a training are the pair that was measured (weights stay
    # one). Of a function, a second training is one more neighbour.
    k = min(max(int(used + has), 1), K_MAX)
    k_now = min(max(int(used - 1 + has), 1), K_MAX)
    k_own = min(max(int(used + trainings), 1), K_MAX)
    k_own_now = min(max(int(used - 1 + trainings), 1), K_MAX)
    # Room is taken twice, not for each of them: that is a good part of what this costs.
    numbers, measures = np.empty((2, used), np.int64), np.empty((2, used), np.float64)
    indices, models = numbers[0], numbers[1]
    # Declared of each; what each would lose with one more there, that one left out.
    told, then = measures[0], measures[1]
    strange, base = 0, 0.0
    for s in range(used):
        kind = int(running[row, s, KIND])
        indices[s], models[s], told[s] = kinds[0, kind], kinds[1, kind], declared[kind]
        if indices[s] < 0:
            strange += 1
            base += told[s]
    _advance(running, row, used, now)
    others, others_upper, current = 0.0, 0.0, has * base
    others_2, others_upper_2, current_2 = 0.0, 0.0, base
    for s in range(used):
        if indices[s] >= 0:
            if known:
                others += weights[0, k, victim, models[s]] * pairs[0, training, indices[s]]
                others_upper += weights[0, k, victim, models[s]] * pairs[1, training, indices[s]]
                current += weights[0, k_now, victim, models[s]] * pairs[0, training, indices[s]]
            else:
                current += has * told[s]
            if both:
                others_2 += weights[0, k, victim_2, models[s]] * pairs[0, training_2, indices[s]]
                others_upper_2 += weights[0, k, victim_2, models[s]] * pairs[1, training_2, indices[s]]
                current_2 += weights[0, k_now, victim_2, models[s]] * pairs[0, training_2, indices[s]]
        running[row, s, LOST] = _lost(
            weights,
            pairs,
            between,
            models,
            victim,
            training,
            victim_2,
            training_2,
            trainings,
            k_own_now,
            indices,
            told,
            s,
            used,
        )
        then[s] = _lost(
            weights,
            pairs,
            between,
            models,
            victim,
            training,
            victim_2,
            training_2,
            trainings,
            k_own,
            indices,
            told,
            s,
            used,
        )
    set_refusal(rows, row)
    for kind in range(first, kinds.shape[1]):
        own, model, said = kinds[0, kind], kinds[1, kind], declared[kind]
        if own >= 0 and known:
            gamma = weights[0, k, victim, model]
            adds, adds_upper = gamma * pairs[0, training, own], gamma * pairs[1, training, own]
        else:
            adds = adds_upper = said * has
        if known:
            lost, lost_upper, costs = others + base + adds, others_upper + base + adds_upper, adds
        else:
            # A training that the table does not know loses to each function what was declared of this one.
            lost = has * ((used - strange) * said + base) + adds
            lost_upper = has * ((used - strange) * said + base) + adds_upper
            costs = said * trainings
        # No training goes on while a function with precedence runs: what is charged is the run.
        more = max(0.0, lost - current) if own != WHOLE else has * STOPPED
        if both and own != WHOLE:
            adds_2, adds_upper_2 = said, said
            if own >= 0:
                gamma = weights[0, k, victim_2, model]
                adds_2, adds_upper_2 = gamma * pairs[0, training_2, own], gamma * pairs[1, training_2, own]
            more = max(more, others_2 + base + adds_2 - current_2)
            lost = max(lost, others_2 + base + adds_2)
            lost_upper = max(lost_upper, others_upper_2 + base + adds_upper_2)
            costs += adds_2
        effects[kind, TRAINING, row], effects[kind, TRAINING_UPPER, row] = lost, lost_upper
        effects[kind, MORE, row] = more
        holds = 1.0
        if own < 0:
            slowed = slowed_upper = said * (trainings + used)
            to_others = said * used
            for s in range(used):
                if _breaks(running, row, s, then[s] + (told[s] if indices[s] < 0 else said)):
                    holds = 0.0
        else:
            slowed = weights[1, k_own, model, victim] * pairs[2, training, own] if known else trainings * said
            slowed_upper = weights[1, k_own, model, victim] * pairs[3, training, own] if known else trainings * said
            if both:
                slowed += weights[1, k_own, model, victim_2] * pairs[2, training_2, own]
                slowed_upper += weights[1, k_own, model, victim_2] * pairs[3, training_2, own]
            slowed += strange * said
            slowed_upper += strange * said
            to_others = strange * said
            for s in range(used):
                if indices[s] >= 0:
                    beta = weights[2, k_own, model, models[s]]
                    slowed += beta * between[0, own, indices[s]]
                    slowed_upper += beta * between[1, own, indices[s]]
                    suffers = weights[2, k_own, models[s], model] * between[0, indices[s], own]
                    to_others += suffers
                else:
                    suffers = told[s]
                if _breaks(running, row, s, then[s] + suffers):
                    holds = 0.0
        effects[kind, OWN, row], effects[kind, OWN_UPPER, row] = slowed, slowed_upper
        effects[kind, IMPACT, row] = shares[0] * costs + shares[1] * slowed + shares[2] * to_others
        effects[kind, KNOWN, row] = 1.0 if own >= 0 and strange == 0 and (known or has == 0.0) else 0.0
        effects[kind, HOLDS, row] = holds


@compiled
def refresh(
    now: float,
    row: int,
    rows: Floats,
    effects: Floats,
    running: Floats,
    pairs: Floats,
    between: Floats,
    weights: Floats,
    kinds: Ints,
    declared: Floats,
    shares: Floats,
) -> None:
    """Count the effects of one more batch of each kind on ``row`` as it is now."""
    _recount(now, row, 0, rows, effects, running, pairs, between, weights, kinds, declared, shares)


@compiled
def refresh_all(
    which: Ints,
    first: int,
    rows: Floats,
    effects: Floats,
    running: Floats,
    pairs: Floats,
    between: Floats,
    weights: Floats,
    kinds: Ints,
    declared: Floats,
    shares: Floats,
) -> None:
    """
    :func:`refresh` of the rows ``which`` of one place, from kind ``first`` on; what runs there has not gone on
    meanwhile.
    """
    for row in which:
        _recount(0.0, row, first, rows, effects, running, pairs, between, weights, kinds, declared, shares)


@compiled
def slots(rows: Floats, n: int) -> tuple[float, float]:
    """(free ones on rows that are open, all there are)."""
    free, total = 0.0, 0.0
    for row in range(n):
        total += rows[SLOTS, row]
        if rows[REFUSAL, row] == OPEN:
            free += rows[SLOTS, row] - rows[USED, row]
    return free, total


@compiled
def set_state(cells: Floats, column: int, row: int, most: int) -> None:
    """
    Count a cell's state afresh: OPEN = an instance is idle, COLD or HOST = one could be loaded, of which ``most`` may
    be there.
    """
    cell = cells[column]
    outstanding, resident = cell[OUTSTANDING, row], cell[RESIDENT, row]
    if cell[QUARANTINED, row] != 0.0:
        state = IS_QUARANTINED
    elif cell[AWAY, row] != 0.0:
        state = IS_ELSEWHERE
    elif resident > max(outstanding, cell[LOADING, row]):
        state = OPEN
    elif max(resident, outstanding) >= most:
        state = BUSY
    elif cell[PARKED, row] > max(0.0, outstanding - resident):
        state = HOST  # one more than what is on its way takes
    else:
        state = COLD
    cell[STATE, row] = state


@compiled
def _coming(cells: Floats, column: int, row: int) -> float:
    """Batches on their way to a load: their memory is not in a report yet (docs/paper.md, A26)."""
    coming: float = max(0.0, cells[column, OUTSTANDING, row] - cells[column, RESIDENT, row])
    return coming


@compiled
def begin(
    now: float,
    row: int,
    column: int,
    kind: int,
    run_s: float,
    since: float,
    deadline: float,
    ends: float,
    memory: float,
    sm: float,
    most: int,
    rows: Floats,
    cells: Floats,
    effects: Floats,
    running: Floats,
    pairs: Floats,
    between: Floats,
    weights: Floats,
    kinds: Ints,
    declared: Floats,
    shares: Floats,
) -> None:
    """Give a batch the next slot of a row: what it will hold is reserved from now on; then :func:`refresh`."""
    used, before = int(rows[USED, row]), _coming(cells, column, row)
    running[row, used, KIND], running[row, used, REMAINING], running[row, used, SINCE] = kind, run_s, since
    running[row, used, LOST], running[row, used, DEADLINE] = 0.0, deadline
    running[row, used, COLUMN], running[row, used, ENDS] = column, ends
    rows[USED, row] = used + 1
    cells[column, OUTSTANDING, row] += 1.0
    cells[column, FREE_AT, row] = min(cells[column, FREE_AT, row], ends)
    rows[RESERVED, row] += memory * (_coming(cells, column, row) - before)
    rows[SM, row] += sm
    set_state(cells, column, row, most)
    _recount(now, row, 0, rows, effects, running, pairs, between, weights, kinds, declared, shares)


@compiled
def end(
    now: float,
    row: int,
    position: int,
    memory: float,
    sm: float,
    most: int,
    rows: Floats,
    cells: Floats,
    effects: Floats,
    running: Floats,
    pairs: Floats,
    between: Floats,
    weights: Floats,
    kinds: Ints,
    declared: Floats,
    shares: Floats,
) -> None:
    """Take the slot in ``position`` back, where the last one moves; then :func:`refresh`."""
    last, column = int(rows[USED, row]) - 1, int(running[row, position, COLUMN])
    before = _coming(cells, column, row)
    running[row, position] = running[row, last]
    rows[USED, row] = last
    free_at = np.inf
    for s in range(last):
        if running[row, s, COLUMN] == column:
            free_at = min(free_at, running[row, s, ENDS])
    cells[column, OUTSTANDING, row] -= 1.0
    cells[column, FREE_AT, row] = free_at
    # What is counted up and down ends at nothing, whatever was rounded.
    rows[RESERVED, row] = (
        max(0.0, rows[RESERVED, row] + memory * (_coming(cells, column, row) - before)) if last else 0.0
    )
    rows[SM, row] = max(rows[SM_TRAINING, row], rows[SM, row] - sm) if last else rows[SM_TRAINING, row]
    set_state(cells, column, row, most)
    _recount(now, row, 0, rows, effects, running, pairs, between, weights, kinds, declared, shares)


@compiled
def cost_s(rows: Floats, row: int, effects: Floats, kind: int, seconds: float) -> float:
    """
    Training time in seconds that a batch of ``seconds`` alone is predicted to cost there: its duration times the share
    of the training's speed that it takes, times the cost correction. With the correction it may exceed the duration. Of
    two trainings, the one that loses more pays for both.
    """
    more = effects[kind, MORE, row]
    cost: float = seconds * (1.0 + effects[kind, OWN, row]) * more / (1.0 + more) * rows[FACTOR, row]
    return cost


@compiled
def tokens(rows: Floats, row: int, now: float, cap_s: float) -> float:
    """What the training's token bucket holds at ``now``, seconds: at most what comes in over ``cap_s``."""
    held: float = min(rows[TOKENS, row] + rows[REFILL, row] * max(0.0, now - rows[AT, row]), rows[REFILL, row] * cap_s)
    return held


@compiled
def take_tokens(rows: Floats, row: int, seconds: float, now: float, cap_s: float) -> None:
    """Take ``seconds`` of training time from the training's token bucket; a debt is allowed."""
    rows[TOKENS, row] = tokens(rows, row, now, cap_s) - seconds
    rows[AT, row] = now


@compiled
def _needed_tokens(cost: float, seconds: float, stretch: float, cap: float) -> float:
    """
    What a token bucket must hold before a batch that costs ``cost`` and runs for ``seconds`` may go. No run can be
    stopped, so the longest that was seen (``stretch``, seconds) may leave a debt of a full bucket. A batch that costs
    more than a full bucket may go when it is full.
    """
    longest = cost * stretch / seconds - cap if stretch > seconds > 0.0 else 0.0
    asked: float = min(max(cost, longest, 0.0), cap)
    return asked


@compiled
def reservation(
    rows: Floats,
    cells: Floats,
    effects: Floats,
    code: Codes,
    knobs: Row,
    n: int,
    column: int,
    kind: int,
    now: float,
    run_s: float,
    load_s: float,
    host_s: float,
    stretch: float,
    may_load: bool,
) -> tuple[int, float, float, float]:
    """
    Of the rows where only a token bucket refuses a batch: the one where it would end first if it started as soon as the
    bucket can pay for it (-1 = none); the seconds until it starts and until it ends, and what the bucket must hold by
    then.

    ``code`` as :func:`weigh` has left it for all ``n`` rows, with the same arguments; ``may_load``: also where it must
    be loaded first.
    """
    best, starts_s, ends_s, price = -1, np.inf, np.inf, 0.0
    slowed = effects[kind, OWN_UPPER] if knobs[A_UPPER] > 0.0 else effects[kind, OWN]
    for row in range(n):
        state = cells[column, STATE, row]
        if (
            code[row] != OVER_BUDGET
            or rows[REFUSAL, row] != OPEN
            or rows[REFILL, row] <= 0.0
            or (state < 0.0 and not may_load)
        ):
            continue
        if knobs[A_PROTECT] > 0.0 and effects[kind, HOLDS, row] == 0.0:
            continue
        refill, cap = rows[REFILL, row], rows[REFILL, row] * knobs[A_CAP_S]
        asked = _needed_tokens(
            cost_s(rows, row, effects, kind, run_s), run_s * (1.0 + effects[kind, OWN, row]), stretch, cap
        )
        wait_s = (asked - tokens(rows, row, now, knobs[A_CAP_S])) / refill
        whole_s = wait_s + run_s * (1.0 + knobs[A_GUARD]) * (1.0 + slowed[row])
        if state < 0.0:
            whole_s += host_s if state == HOST else load_s
        if whole_s < ends_s:
            best, starts_s, ends_s, price = row, wait_s, whole_s, asked
    return best, starts_s, ends_s, price


@compiled
def weigh(
    rows: Floats,
    cells: Floats,
    effects: Floats,
    code: Codes,
    finish: Row,
    looked: Ints,
    homes: Ints,
    knobs: Row,
    n: int,
    column: int,
    kind: int,
    now: float,
    deadline: float,
    run_s: float,
    load_s: float,
    host_s: float,
    memory: float,
    share: float,
    stretch: float,
    first: bool,
    start: int,
    stride: int,
    d: int,
) -> tuple[int, int, float, int, int]:
    """
    Weigh rows for one batch. Fills ``code`` (why not, or OPEN) and ``finish`` (when it would end) of those it looks at.

    ``run_s``, ``load_s``, ``memory``, ``share``: what the batch is expected to take, in seconds alone, MiB and a share
    of the SMs; ``host_s``: the load where it comes out of host memory; ``stretch``: the longest that its revision was
    seen to run, seconds.

    All ``n`` rows; or, where ``first``, at most ``d`` until one is acceptable: ``homes``, then ``start``, ``start +
    stride``, ... modulo ``n``, named in ``looked``. ``stride`` is raised until it has no common factor with ``n``: no
    row comes twice then, and each is as likely as any other.

    Returns the best warm row and the best cold one (-1 = none), the earliest end among rows that are refused for the
    deadline alone, the row of least impact among those, and how many were looked at. Best: least impact (or least
    utilised), then more free memory, then the lower row; of cold ones first of all where one comes out of host memory.
    """
    # Each fact by itself: a view costs nothing within the loop, where a call with so many arrays would.
    gates, free, reserved, jobs = rows[REFUSAL], rows[MEMORY_FREE], rows[RESERVED], rows[JOBS]
    sm = rows[SM_TRAINING] if knobs[A_SM_RULE] == SM_TRAINING_ONLY else rows[SM]
    budget, held, refill, at, factor = rows[BUDGET], rows[TOKENS], rows[REFILL], rows[AT], rows[FACTOR]
    states, effect = cells[column, STATE], effects[kind]
    own, training, holds, impact, adds = effect[OWN], effect[TRAINING], effect[HOLDS], effect[IMPACT], effect[MORE]
    slowed = effect[OWN_UPPER] if knobs[A_UPPER] > 0.0 else own
    keys = rows[UTILISATION] if knobs[A_CHOICE] == LEAST_UTILISED else impact
    guarded_s = run_s * (1.0 + knobs[A_GUARD])
    # What is within its room: EDF-util asks for strictly less (A51).
    sm_room = knobs[A_SM_CAP] - share if knobs[A_SM_RULE] != SM_NONE else np.inf
    strictly = knobs[A_SM_RULE] == SM_TRAINING_ONLY
    budgeted, tau, cap_s = knobs[A_BUDGET_RULE], knobs[A_TAU_FUNCTION], knobs[A_CAP_S]
    bulk, keeps = knobs[A_BULK], knobs[A_KEEPS] > 0.0
    residents, outstanding, loading = cells[column, RESIDENT], cells[column, OUTSTANDING], cells[column, LOADING]
    accept, protect, beside = knobs[A_ACCEPT] > 0.0, knobs[A_PROTECT] > 0.0, knobs[A_BESIDE] > 0.0
    best_warm, best_cold, late_row, seen, parked = -1, -1, -1, 0, False
    earliest, late_key, key_warm, key_cold = np.inf, np.inf, np.inf, np.inf
    warm = min(len(homes), d)
    while first and gcd(stride, n) != 1:
        stride += 1
    count = d if first else n
    for step in range(count):
        row = step
        if first:
            row = homes[step] if step < warm else (start + (step - warm) * stride) % n
            looked[step] = row
        seen += 1
        state = states[row]
        cold = state < 0.0
        ends = now + guarded_s * (1.0 + slowed[row])
        if cold:
            ends += host_s if state == HOST else load_s
        why = OPEN
        if gates[row] != OPEN:
            why = int(gates[row])
        elif state > 0.0:
            why = int(state)
        elif bulk != NOT_BULK and 1.0 < rows[SLOTS, row] <= rows[BULK_USED, row] + 1.0:
            why = NO_SLOT  # of several slots bulk work never has the last one
        elif keeps and state == OPEN and 1.0 < residents[row] <= max(outstanding[row], loading[row]) + 1.0:
            why = BUSY  # nor the last idle instance of several
        elif (
            bulk != NOT_BULK
            and guarded_s * (1.0 + slowed[row]) > rows[YIELD, row]
            and (bulk == BULK or now < rows[LONG_AT, row])
        ):
            why = YIELDS
        elif cold and free[row] - reserved[row] < memory:
            why = NO_MEMORY
        elif sm[row] > sm_room or (strictly and sm[row] == sm_room):
            why = NO_SM
        elif own[row] > tau:
            why = TOO_SLOW
        elif jobs[row] > 0.0:
            if not beside:
                why = BESIDE_TRAINING
            elif budgeted == BUDGET_INSTANT:
                if training[row] * factor[row] > budget[row]:
                    why = OVER_BUDGET
            elif budgeted == BUDGET_BUCKET:
                more = adds[row]
                cost, cap = run_s * (1.0 + own[row]) * more / (1.0 + more) * factor[row], refill[row] * cap_s
                if min(held[row] + refill[row] * max(0.0, now - at[row]), cap) < _needed_tokens(
                    cost, run_s * (1.0 + own[row]), stretch, cap
                ):
                    why = OVER_BUDGET
        if why == OPEN and protect and holds[row] == 0.0:
            why = BREAKS_OTHERS
        if why == OPEN and accept and ends > deadline:
            why = TOO_LATE
            earliest = min(earliest, ends)
            if impact[row] < late_key:
                late_row, late_key = row, impact[row]
        code[row] = why
        finish[row] = ends
        if why == OPEN:
            key = keys[row]
            if cold:
                here = state == HOST
                better = key < key_cold or (key == key_cold and free[row] > free[best_cold])
                if here if here != parked else better:
                    best_cold, key_cold, parked = row, key, here
            elif key < key_warm or (key == key_warm and free[row] > free[best_warm]):
                best_warm, key_warm = row, key
            if first:
                break
    return best_warm, best_cold, earliest, late_row, seen


# Of a candidate that is kept with a decision.
CANDIDATE_FIELDS: Final = 9


@compiled
def rank(
    cells: Floats,
    effects: Floats,
    column: int,
    kind: int,
    code: Codes,
    finish: Row,
    looked: Ints,
    seen: int,
    first: bool,
    chosen: int,
    best: Ints,
    out: Floats,
    counts: Ints,
) -> int:
    """
    The best of the rows that were looked at, ``chosen`` (-1 = none) before the others, acceptable ones before refused
    ones, warm ones before cold ones, then by impact: their numbers into ``best`` [C] and ``out`` [C, CANDIDATE_FIELDS];
    ``counts`` by code. How many.
    """
    counts[:] = 0
    limit, kept = len(best), 0
    impact, states = effects[kind, IMPACT], cells[column, STATE]
    keys = np.empty(limit)
    for step in range(seen):
        row = looked[step] if first else step
        why = code[row]
        counts[why] += 1
        # Impacts are degradations, far below these steps.
        key = (
            -np.inf
            if row == chosen
            else impact[row] + (1e6 if states[row] < 0.0 else 0.0) + (1e9 if why != OPEN else 0.0)
        )
        if kept == limit and key >= keys[limit - 1]:
            continue
        position = kept if kept < limit else limit - 1
        while position > 0 and keys[position - 1] > key:
            keys[position], best[position] = keys[position - 1], best[position - 1]
            position -= 1
        keys[position], best[position] = key, row
        kept = min(kept + 1, limit)
    for place in range(kept):
        row, effect = best[place], effects[kind]
        out[place, 0], out[place, 1], out[place, 2], out[place, 3] = code[row], states[row], finish[row], impact[row]
        out[place, 4], out[place, 5], out[place, 6] = effect[OWN, row], effect[OWN_UPPER, row], effect[TRAINING, row]
        out[place, 7], out[place, 8] = effect[TRAINING_UPPER, row], effect[KNOWN, row]
    return kept
