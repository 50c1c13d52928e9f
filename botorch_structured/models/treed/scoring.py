r"""Evidence of one GP on the data of a node of a tree, for the choice of splits.

Growing a tree asks for hundreds of evidences of small data sets, so this is written for
little overhead: a stationary kernel with *one* lengthscale, an amplitude, a mean and a
noise variance, theta = (log l, log s^2, m, log v), Gaussian priors on theta, the
maximum by damped Fisher scoring (the Fisher information costs one matrix product more
than the gradient, and six to ten steps do), and Laplace's approximation with the same
matrix.
"""

from __future__ import annotations

__all__ = [
    "FULL_STEPS",
    "NodeEvidence",
    "NodeFit",
    "NodePrior",
    "Point",
    "best_split_by_evidence",
    "climb",
    "thinned",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from botorch_structured.models.treed.tree import (
    Array,
    ChangePoint,
    Proposal,
    Rows,
    Split,
    TreeNode,
    split_by_variance,
)

_LOG_TWO_PI = math.log(2.0 * math.pi)
# steps of the logarithms and of the mean, in units of a factor of e
_LARGEST_STEP = 2.0
_CONVERGED = 1e-4  # nats that a step promises to gain
_MAX_DAMPING = 1e6
_LOG_BOUNDS = 12.0


@dataclass(frozen=True)
class NodePrior:
    """Gaussian priors on theta; inputs in [0, 1], outcomes standardised.

    Attributes:
        mode: Of (log l, log s^2, m, log v).
        scale: Standard deviations.
        noise_floor: Smallest noise variance.
    """

    mode: Array
    scale: Array
    noise_floor: float

    @staticmethod
    def of_dimension(d: int, noise_floor: float) -> NodePrior:
        """The default: log l grows with log(d) / 2, as distances do.

        The mode of the noise is small, its spread wide: most objectives have none, and
        in a search with few points wiggles must not pass for noise.
        """
        return NodePrior(
            mode=np.array([math.log(0.4) + 0.5 * math.log(d), 0.0, 0.0, -9.0]),
            scale=np.array([1.0, 1.5, 1.0, 3.0]),
            noise_floor=noise_floor,
        )


@dataclass(frozen=True)
class NodeFit:
    """What is known of a node.

    Attributes:
        theta: The mode of the posterior.
        log_evidence: Laplace's approximation.
    """

    theta: Array
    log_evidence: float

    @property
    def lengthscale(self) -> float:
        """The one lengthscale l."""
        return math.exp(self.theta[0])

    @property
    def variance(self) -> float:
        """The amplitude s^2."""
        return math.exp(self.theta[1])

    @property
    def mean(self) -> float:
        """The mean m."""
        return float(self.theta[2])

    def noise(self, floor: float) -> float:
        """The noise variance v."""
        return math.exp(self.theta[3]) + floor


@dataclass(frozen=True)
class Point:
    """A log density, its gradient and its (expected) curvature.

    Attributes:
        value: At some theta, ``-inf`` where it cannot be computed.
        gradient: Of the free components of theta.
        information: Of the same: positive definite, minus the expected Hessian.
    """

    value: float
    gradient: Array
    information: Array


def climb(
    evaluate: Callable[[Array], Point | None],
    start: Array,
    max_steps: int,
    free: NDArray[np.bool_],
    bounds: tuple[Array, Array] | None = None,
) -> tuple[Array, Point] | None:
    """Maximise by damped scoring.

    Args:
        evaluate: The log density at theta; None where it cannot be computed.
        start: Where to begin.
        max_steps: Most steps.
        free: Components of theta that are parameters.
        bounds: Lower and upper bounds of theta.

    Returns:
        The best theta, and the density there; None if the start is not possible.
    """
    theta = start.copy() if bounds is None else np.clip(start, *bounds)
    here = evaluate(theta)
    if here is None:
        return None
    places = np.flatnonzero(free)
    damping = 1e-2
    for _ in range(max_steps):
        gradient, curvature = here.gradient, here.information
        moving = places
        inner: NDArray[np.bool_] | None = None
        if bounds is not None:
            low, high = (b[places] for b in bounds)
            at = theta[places]
            blocked = (at <= low) & (gradient < 0) | (at >= high) & (gradient > 0)
            if blocked.any():
                inner = ~blocked
                if not inner.any():
                    break
                moving, gradient = places[inner], gradient[inner]
                curvature = curvature[np.ix_(inner, inner)]
        damped = curvature.copy()
        damped.flat[:: len(damped) + 1] *= 1.0 + damping
        step = np.linalg.solve(damped, gradient)
        largest = float(np.abs(step).max())
        if largest > _LARGEST_STEP:
            step *= _LARGEST_STEP / largest
        if float(step @ gradient) < _CONVERGED:
            break
        trial = theta.copy()
        trial[moving] += step
        if bounds is not None:
            trial = np.clip(trial, *bounds)
        there = evaluate(trial)
        if there is None or there.value <= here.value:
            damping *= 8.0
            if damping > _MAX_DAMPING:
                break
            continue
        damping = max(damping / 5.0, 1e-6)
        theta, here = trial, there
    return theta, here


class NodeEvidence:
    """Evidences of subsets of one data set.

    Args:
        X: ``n x d``.
        y: ``n``.
        prior: On theta.
        noise: Known noise variances, ``n``; inferred if None.
        categorical: Columns that count as equal or not.
        rbf: Whether the kernel is an RBF kernel instead of Matern-5/2.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        prior: NodePrior,
        noise: Array | None = None,
        categorical: Sequence[int] = (),
        rbf: bool = False,
    ) -> None:
        n, d = X.shape
        squared = np.zeros((n, n))
        for j in range(d):
            x = X[:, j]
            difference = x[:, None] - x
            squared += difference != 0 if j in categorical else difference**2
        self.scaled = np.sqrt(5.0 * squared)
        self.y, self.prior, self.known_noise = y, prior, noise
        self.rbf = rbf
        # known noise: log v is not a parameter
        self.free = np.array([True, True, True, noise is None])

    def fit(self, rows: Rows, starts: Sequence[Array], max_steps: int = 30) -> NodeFit:
        """The posterior mode of theta given some of the data, the best of several.

        Args:
            rows: Which data.
            starts: Where to begin, a theta each.
            max_steps: Steps from each start.
        """
        if len(rows) == 0:  # nothing was observed: the prior
            return NodeFit(self.prior.mode, 0.0)
        scaled = self.scaled[rows[:, None], rows]
        noise = None if self.known_noise is None else self.known_noise[rows]
        y = self.y[rows]
        best: tuple[Array, Point] | None = None
        for start in starts:
            found = climb(
                lambda theta: self._evaluate(theta, scaled, y, noise),
                start,
                max_steps,
                self.free,
            )
            if found is not None and (best is None or found[1].value > best[1].value):
                best = found
        if best is None:  # not even the prior mode can be factorised
            return NodeFit(self.prior.mode, -math.inf)
        theta, point = best
        p = int(self.free.sum())
        logdet = np.linalg.slogdet(point.information)[1]
        return NodeFit(theta, point.value + 0.5 * p * _LOG_TWO_PI - 0.5 * logdet)

    def _evaluate(
        self, theta: Array, scaled: Array, y: Array, noise: Array | None
    ) -> Point | None:
        """Log posterior of theta, its gradient and the Fisher information."""
        if np.abs(theta).max() > _LOG_BOUNDS + 3.0:
            return None
        n = len(y)
        prior = self.prior
        variance, mean = math.exp(theta[1]), theta[2]
        free_noise = math.exp(theta[3])
        v: NDArray[np.float64] | float
        v = free_noise + prior.noise_floor if noise is None else noise
        u = scaled * math.exp(-theta[0])
        if self.rbf:
            u *= u
            u *= 0.2  # r^2 / l^2
            covariance = np.exp(-0.5 * u)
            covariance *= variance
            d_length = u * covariance
        else:
            e = np.exp(-u)
            e *= variance
            slope = 1.0 + u
            slope *= e  # s^2 (1 + u) exp(-u)
            u *= u
            u *= 1.0 / 3.0
            covariance = u * e
            covariance += slope
            d_length = u
            d_length *= slope
        covariance.flat[:: n + 1] += v
        chol, info = lapack.dpotrf(covariance, lower=1, clean=1, overwrite_a=1)
        if info != 0:
            return None
        r = y - mean
        alpha = lapack.dpotrs(chol, r, lower=1)[0]
        value = -0.5 * float(r @ alpha) - 0.5 * n * _LOG_TWO_PI
        value -= float(np.log(chol.diagonal()).sum())
        inverse, info = lapack.dpotri(chol, lower=1)
        if info != 0:
            return None
        inverse += inverse.T  # the upper triangle was zero
        inverse.flat[:: n + 1] *= 0.5
        trace = inverse.diagonal()
        product = inverse @ d_length
        squares = inverse * inverse
        mixed = (product * inverse).sum(1)
        weighted = v * squares.sum(1) if noise is None else squares @ v
        trace_v = float((trace * v).sum())
        trace_length = float(product.trace())
        total_alpha = float(alpha.sum())
        gradient = np.array(
            [
                0.5 * (float(alpha @ (d_length @ alpha)) - trace_length),
                0.5 * (float(alpha @ (r - v * alpha)) - n + trace_v),
                total_alpha,
                0.5 * free_noise * (float(alpha @ alpha) - float(trace.sum())),
            ]
        )
        ll = 0.5 * float(np.vdot(product.T, product))
        ls = 0.5 * (trace_length - float((v * mixed).sum()))
        ln = 0.5 * free_noise * float(mixed.sum())
        ss = 0.5 * (n - 2.0 * trace_v + float((v * weighted).sum()))
        sn = 0.5 * free_noise * (float(trace.sum()) - float(weighted.sum()))
        nn = 0.5 * free_noise**2 * float(squares.sum())
        mm = float(inverse.sum())
        information = np.array(
            [
                [ll, ls, 0.0, ln],
                [ls, ss, 0.0, sn],
                [0.0, 0.0, mm, 0.0],
                [ln, sn, 0.0, nn],
            ]
        )
        z = (theta - prior.mode) / prior.scale
        free = self.free
        value -= 0.5 * float((z[free] ** 2).sum())
        value -= float(np.log(prior.scale[free]).sum()) + 0.5 * free.sum() * _LOG_TWO_PI
        gradient -= z / prior.scale
        information.flat[::5] += prior.scale**-2.0
        if not math.isfinite(value):
            return None
        if noise is not None:
            gradient, information = gradient[free], information[np.ix_(free, free)]
        return Point(value, gradient, information)


# ----------------------------------------------------------------------
# Which split of a node is best: where two GPs explain its data better than one does.
#
# Most of the thresholds are not worth a fit of two GPs. So a few are tried in each
# column, each by fits of a few steps; the best of them again, in earnest; then their
# neighbours. What a split must gain is set by a prior on trees that makes deep ones
# improbable (Chipman, George and McCulloch 1998).

_QUANTILES = 9  # thresholds tried in each column, besides CART's
_REFINE = 2  # points to either side of the best threshold that are tried then
_REFINE_ROUNDS = 2
# P(a node at depth k is split) = alpha (1 + k)^-beta
_ALPHA, _BETA = 0.5, 2.0
# nodes with more rows are scored on so many of them
_SCORED_ROWS = 150
_FINALISTS = 4
# thresholds that share the probability of being the change point
_CHANGES = 13
#: Steps of a fit that decides.
FULL_STEPS = 12
_QUICK = 3  # steps of a fit that finds out whether it may


def thinned(rows: Rows) -> Rows:
    """At most so many rows, the same ones each time: what decisions are made on.

    Args:
        rows: Any number of them.
    """
    if len(rows) <= _SCORED_ROWS:
        return rows
    chosen = np.random.default_rng(0).permutation(len(rows))[:_SCORED_ROWS]
    return rows[np.sort(chosen)]


def _log_prior_gain(depth: int, columns: int) -> float:
    """Log prior odds of splitting a node once, in one column, against no split."""
    here = _ALPHA * (1.0 + depth) ** -_BETA
    below = _ALPHA * (2.0 + depth) ** -_BETA
    odds = math.log(here) + 2.0 * math.log(1.0 - below) - math.log(1.0 - here)
    return odds - math.log(columns)


def best_split_by_evidence(
    node: TreeNode,
    X: Array,
    evidence: NodeEvidence,
    min_leaf_size: int,
    categorical: Sequence[int],
) -> Proposal | None:
    """The split that explains a node's data best, if it is better than none.

    Its children, and their fits, are part of it.

    Args:
        node: With its ``fit``.
        X: ``n x d``, all data.
        evidence: Of subsets of these data.
        min_leaf_size: Fewest points of a child, the shared one included.
        categorical: Columns without an order.
    """
    if len(node.rows) < 2 * min_leaf_size - 1:
        return None
    scored = thinned(node.home)
    base = node.fit
    if len(scored) < len(node.home):
        base = evidence.fit(scored, [node.fit.theta], FULL_STEPS)
    in_score = np.zeros(len(X), dtype=bool)
    in_score[scored] = True
    trials: dict[Split, _Trial] = {}

    def attempt(splits: Sequence[Split], like: _Trial | None, steps: int) -> None:
        """Score splits; fits begin where an earlier trial or the parent is."""
        starts = (base, base) if like is None else like.fits
        for split in splits:
            seen = trials.get(split)
            trial = _score(
                node,
                X,
                split,
                evidence,
                starts if seen is None else seen.fits,
                in_score,
                min_leaf_size,
                steps,
            )
            if trial is not None:
                trials[split] = trial

    def best_of(count: int) -> list[Split]:
        return sorted(trials, key=lambda split: -trials[split].value)[:count]

    attempt(_candidates(node, X, evidence.y, min_leaf_size, categorical), None, _QUICK)
    attempt(best_of(_FINALISTS), None, FULL_STEPS)
    if not trials:
        return None
    (best,) = best_of(1)
    values = np.unique(X[node.home, best.column])

    def place_of(split: Split) -> int:
        return int(np.searchsorted(values, split.threshold))

    if not best.categorical:
        for _ in range(_REFINE_ROUNDS):
            place = place_of(best)
            low, high = max(place - _REFINE, 0), place + _REFINE + 1
            near = [Split(best.column, float(v)) for v in values[low:high]]
            new = [split for split in near if split not in trials]
            attempt(new, trials[best], _QUICK)
            (best,) = best_of(1)
    attempt([best], None, FULL_STEPS)
    trial = trials[best]
    prior = _log_prior_gain(node.depth, X.shape[1]) - base.log_evidence
    if not trial.value + prior > 0:
        return None
    change = None
    if best.categorical:
        choices = len(np.unique(X[node.home, best.column]))
        value = trial.value - math.log(choices)
    else:
        low, high = (
            max(place_of(best) - _CHANGES // 2, 0),
            place_of(best) + _CHANGES // 2,
        )
        near = [Split(best.column, float(v)) for v in values[low : high + 1]]
        attempt([s for s in near if s not in trials], trial, _QUICK)
        value, change = _average(trials, best, values, low, high)
    gain = value + prior
    if not gain > 0:
        return None
    for child, fit in zip(trial.children, trial.fits, strict=True):
        child.fit = fit
        if len(scored) < len(node.home):
            child.fit = evidence.fit(child.home, [fit.theta], FULL_STEPS)
    return Proposal(gain, best, trial.children, change)


def _average(
    trials: dict[Split, _Trial], best: Split, values: Array, low: int, high: int
) -> tuple[float, ChangePoint]:
    """Evidence averaged over the thresholds of a column, and where the change is.

    Splits that were not tried have evidences in between those of their neighbours.

    Args:
        trials: What was tried.
        best: The best split.
        values: All thresholds of its column, ascending.
        low: First of those near the best.
        high: Last of those near the best.
    """
    tried = sorted(
        (split.threshold, trial.value)
        for split, trial in trials.items()
        if split.column == best.column
    )
    places = np.searchsorted(values, [threshold for threshold, _ in tried])
    admissible = np.arange(places[0], places[-1] + 1)
    evidence = np.interp(admissible, places, [value for _, value in tried])
    peak = float(evidence.max())
    average = peak + math.log(float(np.exp(evidence - peak).mean()))
    near = admissible[(admissible >= low) & (admissible <= high)]
    near = near[near + 1 < len(values)]
    weights = np.exp(evidence[near - admissible[0]] - peak)
    change = ChangePoint(values[near], values[near + 1], weights / weights.sum())
    return average, change


def _candidates(
    node: TreeNode,
    X: Array,
    y: Array,
    min_leaf_size: int,
    categorical: Sequence[int],
) -> list[Split]:
    found: list[Split] = []
    for column in range(X.shape[1]):
        values = np.unique(X[node.home, column])
        if column in categorical:
            found += [Split(column, float(v), True) for v in values]
            continue
        places = np.linspace(0, len(values) - 1, _QUANTILES + 2)[1:-1]
        chosen = values[np.unique(np.round(places).astype(int))]
        found += [Split(column, float(v)) for v in chosen]
    cart = split_by_variance(X[node.home], y[node.home], min_leaf_size, categorical)
    if cart is not None and cart[1] not in found:
        found.append(cart[1])
    return found


@dataclass(frozen=True)
class _Trial:
    """A split that was tried.

    Attributes:
        value: Sum of the log evidences of the children.
        children: What it would make.
        fits: Theirs.
    """

    value: float
    children: tuple[TreeNode, TreeNode]
    fits: tuple[NodeFit, NodeFit]


def _score(
    node: TreeNode,
    X: Array,
    split: Split,
    evidence: NodeEvidence,
    starts: tuple[NodeFit, NodeFit],
    in_score: np.ndarray,
    min_leaf_size: int,
    steps: int,
) -> _Trial | None:
    left, right = children = node.divided(X, split)
    # the point at the threshold counts as one of the right child, but is not at home
    if len(left.home) < min_leaf_size or len(right.home) < max(min_leaf_size - 1, 1):
        return None
    fits = []
    for child, start in zip(children, starts, strict=True):
        rows = child.home[in_score[child.home]]
        if len(rows) < 2:
            return None
        fits.append(evidence.fit(rows, [start.theta], steps))
    value = fits[0].log_evidence + fits[1].log_evidence
    if not math.isfinite(value):
        return None
    return _Trial(value, children, (fits[0], fits[1]))
