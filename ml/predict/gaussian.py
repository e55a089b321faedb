"""
Gaussian-process regression of a quantity of pairs, in numpy (Rasmussen and Williams 2006, "Gaussian processes for
machine learning").

Columns describe the two sides of a pair and the pair itself. Columns of one kind form a group with one length scale, so
that few samples suffice to find which kinds matter. ``ml.predict.pairwise`` describes the covariance and its form.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ml.predict.samples import Floats, Ints

#: Samples on which hyperparameters are optimised; the process is conditioned on all samples.
SOUGHT_ON: Final = 200
ITERATIONS: Final = 40
#: Longest step in prior deviations: a line search that starts further out may overflow.
LONGEST_STEP: Final = 3.0
#: Prior deviation of a column of logarithms, and its weight in samples.
TYPICAL: Final = 0.5
PSEUDO: Final = 2.0
#: Deviations from the centre at which an input is clipped: the samples say nothing about inputs further out.
FAR: Final = 4.0
#: Terms of the covariance with an amplitude: victim, aggressor, both, pair, and linear in the pair's columns.
TERMS: Final = 5
#: Priors of logarithms (mean, deviation): weight of a group's distances, amplitude of a term and noise variance of a
#: standardised target.
WEIGHT: Final = (-1.0, 2.0)
AMPLITUDE: Final = (-2.0, 1.5)
NOISE: Final = (-3.0, 1.5)
#: Added to the noise variance (of a standardised target), so that the covariance of exact repeats can be inverted.
JITTER: Final = 1e-6
#: Rows that are predicted at a time: their covariances with the samples stay in the processor's cache.
CHUNK: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The column numbers of each group: groups of the victim, of the aggressor (as many) and of the pair."""

    victim: Sequence[Sequence[int]]
    aggressor: Sequence[Sequence[int]]
    pair: Sequence[Sequence[int]]

    @property
    def groups(self) -> list[Sequence[int]]:
        return [*self.victim, *self.aggressor, *self.pair]

    @property
    def line(self) -> list[int]:
        """The columns with a linear term in the covariance."""
        return [column for group in self.pair for column in group]

    @property
    def factors(self) -> tuple[slice, slice, slice]:
        """The positions in :attr:`groups` of each factor's groups."""
        first, second = len(self.victim), len(self.victim) + len(self.aggressor)
        return slice(0, first), slice(first, second), slice(second, len(self.groups))

    def prior(self) -> tuple[Floats, Floats]:
        """
        Means and deviations of the logarithms of all hyperparameters: one weight for each group, the amplitudes, the
        noise variance.
        """
        groups = len(self.groups)
        of_each = [WEIGHT] * groups + [AMPLITUDE] * TERMS + [NOISE]
        means, deviations = np.array(of_each).T
        return means, deviations


def _matern(squared: Floats) -> tuple[Floats, Floats]:
    """Matern 3/2 of a squared distance, and its derivative by that."""
    root = np.sqrt(3.0 * squared)
    decay = np.exp(-root)
    return (1.0 + root) * decay, -1.5 * decay


def _distances(first: Floats, second: Floats) -> Floats:
    """Squared distances of all rows [n, m]."""
    squares: Floats = (first**2).sum(1)[:, None] + (second**2).sum(1)[None] - 2.0 * (first @ second.T)
    return np.maximum(squares, 0.0)


def _products(first: Floats, second: Floats) -> Floats:
    """Mean products over columns of all rows [n, m]."""
    products: Floats = first @ second.T / first.shape[1]
    return products


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianProcess:
    """
    A process conditioned on samples.

    ``centre`` and ``scale`` standardise columns, ``level`` and ``unit`` the target. ``inputs``: standardised columns
    [n, c]. ``hyper``: logarithms as in :meth:`Layout.prior`. ``weights`` [n]: inverse covariance times target. ``root``
    [n, n]: inverse of the lower Cholesky factor of the covariance.
    """

    layout: Layout
    centre: Floats
    scale: Floats
    level: float
    unit: float
    inputs: Floats
    hyper: Floats
    weights: Floats
    root: Floats

    def mean(self, columns: Floats) -> Floats:
        """Expected value at each row of ``columns`` [m]."""
        inputs = _standard(columns, self.centre, self.scale)
        expected = np.concatenate([cross @ self.weights for cross in self._crosses(inputs)])
        return self.level + self.unit * expected

    def deviation(self, columns: Floats) -> Floats:
        """Standard deviation of a new measurement at each row of ``columns`` [m], its noise included."""
        inputs = _standard(columns, self.centre, self.scale)
        explained = np.concatenate([((self.root @ cross.T) ** 2).sum(0) for cross in self._crosses(inputs)])
        amplitudes, noise = _amplitudes(self.layout, self.hyper)
        itself = amplitudes[:-1].sum() + amplitudes[-1] * (inputs[:, self.layout.line] ** 2).mean(1)
        variance: Floats = np.maximum(itself - explained, 0.0) + noise
        return self.unit * np.sqrt(variance)

    def _crosses(self, inputs: Floats) -> Iterator[Floats]:
        """The covariances [<= CHUNK, n] of standardised inputs with the samples, CHUNK rows at a time."""
        sides = [_side(self.layout, self.hyper, factor, inputs, self.inputs) for factor in self.layout.factors[:2]]
        for begin in range(0, max(1, len(inputs)), CHUNK):
            chunk = slice(begin, begin + CHUNK)
            kernels = [kernel[which[chunk]] for kernel, which in sides]
            yield _together(self.layout, self.hyper, kernels, inputs[chunk], self.inputs)

    def left_out(self, parts: Sequence[Ints]) -> list[Floats]:
        """
        The residuals of each part (positions of samples) by the process conditioned on all other samples, in units of
        the deviation that this process gives them. Section 5.4.2 for whole blocks.
        """
        inverse = self.root.T @ self.root
        scores = []
        for part in parts:
            block = np.linalg.inv(inverse[np.ix_(part, part)])
            scores.append((block @ self.weights[part]) / np.sqrt(np.diag(block)))
        return scores


def _standard(columns: Floats, centre: Floats, scale: Floats) -> Floats:
    """Standardised columns; an unknown value becomes the mean of its column."""
    return np.clip(np.nan_to_num((columns - centre) / scale, nan=0.0), -FAR, FAR)


def _amplitudes(layout: Layout, hyper: Floats) -> tuple[Floats, float]:
    groups = len(layout.groups)
    return np.exp(hyper[groups:-1]), float(np.exp(hyper[-1]) + JITTER)


def _kernel(layout: Layout, hyper: Floats, factor: slice, first: Floats, second: Floats) -> Floats:
    """The kernel of a factor's groups between all rows of two sets of inputs [n, m]."""
    columns = [column for group in layout.groups[factor] for column in group]
    weight = [
        np.exp(w / 2) / np.sqrt(len(group))
        for group, w in zip(layout.groups[factor], hyper[factor], strict=True)
        for _ in group
    ]
    return _matern(_distances(first[:, columns] * weight, second[:, columns] * weight))[0]


def _side(layout: Layout, hyper: Floats, factor: slice, first: Floats, second: Floats) -> tuple[Floats, Ints]:
    """
    The kernel of a side between each distinct row of ``first`` and all of ``second``, and the number of the distinct
    row of each row. All pairs of 100 workloads have 10,000 rows, but each side has only 100 distinct ones.
    """
    columns = [column for group in layout.groups[factor] for column in group]
    rows = np.ascontiguousarray(first[:, columns])
    _, position, which = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}").ravel(), return_index=True, return_inverse=True
    )
    return _kernel(layout, hyper, factor, first[position], second), which


def _together(layout: Layout, hyper: Floats, sides: Sequence[Floats], first: Floats, second: Floats) -> Floats:
    """The covariance, without noise, of all rows of two sets of inputs [n, m], from the kernels of the two sides."""
    victim, aggressor = sides
    a, _ = _amplitudes(layout, hyper)
    covariance: Floats = a[3] * _kernel(layout, hyper, layout.factors[2], first, second)
    covariance += a[0] * victim
    covariance += (a[1] + a[2] * victim) * aggressor
    covariance += a[4] * _products(first[:, layout.line], second[:, layout.line])
    return covariance


def _covariance(layout: Layout, hyper: Floats, first: Floats, second: Floats) -> Floats:
    """The covariance, without noise, of all rows of two sets of inputs [n, m]."""
    return _together(
        layout, hyper, [_kernel(layout, hyper, factor, first, second) for factor in layout.factors[:2]], first, second
    )


def _standards(columns: Floats) -> tuple[Floats, Floats]:
    """Centre and scale of each column [c]."""
    finite = np.isfinite(columns)
    count = finite.sum(0)
    centre = np.where(finite, columns, 0.0).sum(0) / np.maximum(count, 1)
    squares = np.where(finite, (columns - centre) ** 2, 0.0).sum(0)
    return centre, np.sqrt((squares + PSEUDO * TYPICAL**2) / (count + PSEUDO))


def log_marginal_likelihood(columns: Floats, target: Floats, layout: Layout) -> float:
    """
    Logarithm of the marginal likelihood (eq. 5.8, without its constant) of the centred ``target`` at the mean of the
    prior.
    """
    inputs = _standard(columns, *_standards(columns))
    hyper, _ = layout.prior()
    root = np.linalg.cholesky(
        _covariance(layout, hyper, inputs, inputs) + _amplitudes(layout, hyper)[1] * np.eye(len(target))
    )
    whitened = np.linalg.solve(root, target - target.mean())
    return float(-0.5 * whitened @ whitened - np.log(np.diag(root)).sum())


def fit(columns: Floats, target: Floats, layout: Layout, *, seed: int) -> GaussianProcess:
    """The process of ``target`` [n] over ``columns`` [n, c] with the most probable hyperparameters."""
    centre, scale = _standards(columns)
    inputs = _standard(columns, centre, scale)
    level, unit = float(target.mean()), float(target.std()) or 1.0
    standard = (target - level) / unit
    subset = np.random.default_rng(seed).permutation(len(target))[:SOUGHT_ON]
    hyper = _best_hyperparameters(inputs[subset], standard[subset], layout)
    _, noise = _amplitudes(layout, hyper)
    covariance = _covariance(layout, hyper, inputs, inputs) + noise * np.eye(len(target))
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    return GaussianProcess(
        layout=layout,
        centre=centre,
        scale=scale,
        level=level,
        unit=unit,
        inputs=inputs,
        hyper=hyper,
        weights=root.T @ (root @ standard),
        root=root,
    )


def _best_hyperparameters(inputs: Floats, target: Floats, layout: Layout) -> Floats:
    """Hyperparameters that maximise the marginal likelihood (eq. 5.8) times the prior."""
    n = len(target)
    means, deviations = layout.prior()
    distances = [
        _distances(inputs[:, list(group)], inputs[:, list(group)]).ravel() / len(group) for group in layout.groups
    ]
    parts = [np.stack(distances[factor]) for factor in layout.factors]
    linear = _products(inputs[:, layout.line], inputs[:, layout.line])
    identity = np.eye(n)

    def objective(hyper: Floats) -> tuple[float, Floats]:
        kernels, slopes = zip(
            *(
                _matern((np.exp(hyper[factor]) @ part).reshape(n, n))
                for factor, part in zip(layout.factors, parts, strict=True)
            ),
            strict=True,
        )
        victim, aggressor, pair = kernels
        a, noise = _amplitudes(layout, hyper)
        terms = (victim, aggressor, victim * aggressor, pair, linear)
        covariance = sum(amplitude * term for amplitude, term in zip(a, terms, strict=True)) + noise * identity
        root = np.linalg.cholesky(covariance)
        inverse = np.linalg.inv(covariance)
        weights = inverse @ target
        away = (hyper - means) / deviations
        value = 0.5 * float(target @ weights) + float(np.log(np.diag(root)).sum()) + 0.5 * float(away @ away)
        # Half of the trace of (inverse - weights weights') times the derivative of the covariance (eq. 5.9).
        pull = 0.5 * (inverse - np.outer(weights, weights))
        gradient = away / deviations
        by_distance = (
            slopes[0] * (a[0] + a[2] * aggressor),
            slopes[1] * (a[1] + a[2] * victim),
            slopes[2] * a[3],
        )
        for factor, part, slope in zip(layout.factors, parts, by_distance, strict=True):
            gradient[factor] += np.exp(hyper[factor]) * (part @ (pull * slope).ravel())
        groups = len(layout.groups)
        for position, term in enumerate(terms):
            gradient[groups + position] += a[position] * float((pull * term).sum())
        gradient[-1] += np.exp(hyper[-1]) * float(np.trace(pull))
        return value, gradient

    return minimum(objective, means, deviations)


def minimum(
    objective: Callable[[Floats], tuple[float, Floats]], start: Floats, unit: Floats, *, iterations: int = ITERATIONS
) -> Floats:
    """
    A local minimum of ``objective`` (value and gradient) from ``start`` by the BFGS method (Nocedal and Wright 2006,
    section 6.1) with backtracking. ``unit`` is the longest first step in each direction.
    """
    point, (value, gradient) = start, objective(start)
    curvature = np.diag(unit**2)
    curvature /= max(1.0, float(np.sqrt(gradient @ curvature @ gradient)))
    identity = np.eye(len(start))
    for _ in range(iterations):
        step = -curvature @ gradient
        step /= max(1.0, float(np.abs(step / unit).max()) / LONGEST_STEP)
        slope = float(step @ gradient)
        length = 1.0
        for _ in range(12):
            trial_point = point + length * step
            try:
                trial_value, trial_gradient = objective(trial_point)
            except np.linalg.LinAlgError:
                trial_value = np.inf
            if trial_value <= value + 1e-4 * length * slope:
                break
            length /= 2
        else:
            break
        moved, change = trial_point - point, trial_gradient - gradient
        gained = value - trial_value
        point, value, gradient = trial_point, trial_value, trial_gradient
        if gained < 1e-4:
            break
        product = float(moved @ change)
        if product > 1e-10:
            left = identity - np.outer(moved, change) / product
            curvature = left @ curvature @ left.T + np.outer(moved, moved) / product
    return point
