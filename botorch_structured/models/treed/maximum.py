r"""The maximum of equation (2), leaf by leaf, on NumPy arrays.

The hyperparameters of a leaf are ``theta = (log l_1, .., log l_d, log s^2, m, log v)``.
What equation (2) asks of them is a function of the leaf alone (``LeafDensity``), except
that all leaves may have one v. So a quasi-Newton method learns the curvature of each
leaf by itself (a partially separable problem, Griewank and Toint 1982): after the same
number of evaluations it is nearer the maximum than L-BFGS on all of them together. It
begins with the Fisher information of the nodes, one factorisation for each node where
all leaves start alike.
"""

from __future__ import annotations

__all__ = [
    "LeafProblem",
    "Maximum",
    "Quantity",
    "maximise",
]

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim.core import OptimizationResult, OptimizationStatus
from gpytorch import Module
from gpytorch.constraints import GreaterThan
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.priors import LogNormalPrior, NormalPrior, Prior
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize
from torch.nn import Parameter

from botorch_structured.linalg.correlations import Correlation
from botorch_structured.linalg.hyperparameter import LogInterval, QuickLogNormalPrior
from botorch_structured.models.treed.leaf_density import (
    LeafDensity,
    LeafTerm,
    NodePoints,
    Scratch,
)
from botorch_structured.models.treed.parabola import (
    NearbyDensity,
    Parabolas,
    damped_update,
)
from botorch_structured.models.treed.scoring import climb
from botorch_structured.models.treed.tree import Array

_BLOCK = 128
_LARGEST_STEP = 2.0  # of a component of theta
_LARGEST_COMMON = 1.0  # of one that all leaves share
_LEAST_DESCENT = 1e-4  # of what the slope promises, for a step to be accepted
_SHRINK = 0.4
_ROUNDING = 1e-12
# Per data point: the least gain that a step has to promise.
_TOLERANCE = 1e-5
_MOST_STEPS = 100
# What all leaves share stays where it is unless it promises so much of what the rest
# does.
_HOLD = 0.3
# Up to so many rows leaves are fitted by short steps too.
_ROWS_OF_TWO_FITS, _SHORT_STEP = 100, 0.4
# Most steps that all leaves make together.
_COMMON_STEPS = 3
# Nodes with a larger share of the data are large; with few data the calls take longer.
_SMALL_SHARE, _FEW_ROWS = 0.3, 128
# Rounds of parabolas: by how much the least gain that a step has to promise is larger.
_ROUNDS = (1000.0, 100.0, 10.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
# Share of a parabola's fall that may be wrong.
_WRONG = 0.5
# A curvature of which steps are taken: its lowest eigenvalue, of the sum of all.
_DEFINITE = 1e-3

Density = Callable[[Array], tuple[float, Array]]


class Maximum(NamedTuple):
    """Where ``maximise`` ended.

    Attributes:
        theta: ``L x p``.
        values: Of the leaves, ``L``.
        steps: Steps, all leaves at once.
        evaluations: Of leaves.
        converged: Whether it ended before its last step, with a curvature that could
            tell.
        gradients: ``L x p``.
        curvature: What was learnt of it, ``L x p x p``.
    """

    theta: Array
    values: Array
    steps: int
    evaluations: int
    converged: bool
    gradients: Array
    curvature: Array


def maximise(
    densities: Sequence[Density],
    theta: Array,
    curvature: Array,
    lower: Array,
    upper: Array,
    free: NDArray[np.bool_],
    shared: bool,
    tolerance: float,
    max_steps: int,
    longest_step: float | Array = _LARGEST_STEP,
    here: tuple[Array, Array] | None = None,
) -> Maximum:
    """Maximise the sum of log densities by quasi-Newton steps between bounds.

    A step that does not lead up is tried again, shorter; what was seen there has
    improved the curvature by then.

    Args:
        densities: Of the leaves, ``L``.
        theta: Where to begin, ``L x p``, within the bounds.
        curvature: Minus the second derivatives there, roughly; positive definite,
            ``L x p x p``.
        lower: Bounds, ``p``.
        upper: Bounds, ``p``.
        free: What may change, ``L x p``.
        shared: Whether all leaves have the same last component.
        tolerance: The least gain that a step has to promise.
        max_steps: Most steps.
        longest_step: Largest change of a component in one step, of each leaf.
        here: Values and gradients at the start, ``L`` and ``L x p``, if known.

    Raises:
        NotPSDError: If a covariance has no factor at the start.
    """
    L, p = theta.shape
    value, gradient = here or _all_of(densities, theta)
    if not np.isfinite(value).all():
        raise NotPSDError("theta: expected covariances that are positive definite.")
    reach, common_reach = np.full(L, longest_step), _LARGEST_COMMON
    own = slice(p - 1) if shared else slice(p)
    evaluations, hold = 0 if here else L, _HOLD
    steps, converged = max_steps, False
    for step in range(max_steps):
        slope = gradient.copy()
        if shared:
            slope[:, -1] = gradient[:, -1].sum()
        held = ~free | ((theta <= lower) & (slope < 0))
        held |= (theta >= upper) & (slope > 0)
        fixed, pushed = np.zeros((2, L, p))
        for _ in range(p):  # what would leave the bounds goes to the bounds
            pull = gradient - np.einsum("lij,lj->li", curvature, pushed)
            moves, common = _newton_steps(pull, curvature, held | (fixed > 0), shared)
            common = min(max(common, -common_reach), common_reach)
            common = min(
                max(common, lower[-1] - theta[0, -1]), upper[-1] - theta[0, -1]
            )
            if common * slope[0, -1] < 0.0:  # of steps that the bounds forbid
                common = 0.0
            apart = hold * float((gradient[:, own] * moves[:, own, 0]).sum())
            waits = abs(common * slope[0, -1]) < apart
            if waits or abs(common * slope[0, -1]) < 0.25 * tolerance:
                common = 0.0
            way = pushed.copy()
            way += moves[..., 0]
            if shared:
                way -= common * moves[..., 1]
                way[:, -1] = 0.0
            inside = np.clip(theta + way, lower, upper) - theta
            past = (inside != way) & (fixed == 0)
            if not past.any():
                break
            fixed[past], pushed[past] = 1.0, inside[past]
        longest = np.abs(way).max(-1)
        way *= np.minimum(1.0, reach / np.maximum(longest, 1e-300))[:, None]
        if shared:
            way[:, -1] = common
        # uphill between the bounds, should that promise more
        plain = np.where(held, 0.0, gradient)
        plain /= np.trace(curvature, axis1=1, axis2=2)[:, None]
        plain = np.clip(theta + plain, lower, upper) - theta
        if shared:
            plain[:, -1] = common
        way = np.clip(theta + way, lower, upper) - theta
        better = _expected(gradient, curvature, plain) > _expected(
            gradient, curvature, way
        )
        moved = np.where(better[:, None], plain, way)
        trial = theta + moved
        # at a bound in spite of rounding
        trial = np.where(trial > upper - _ROUNDING, upper, trial)
        trial = np.where(trial < lower + _ROUNDING, lower, trial)
        promised = (gradient * moved).sum(-1)
        expected = _expected(gradient, curvature, moved)
        chosen = np.full(L, common != 0.0) | (expected > 0.5 * tolerance / L)
        moved[~chosen] = 0.0
        if not chosen.any() or expected.sum() < tolerance and not common:
            if waits:
                hold = 0.0
                continue
            # Newton's step that leads down between the bounds is no sign of an end
            steps, converged = step, not better.any()
            break
        hold = _HOLD
        # -- evaluate
        new_value, new_gradient = value.copy(), gradient.copy()
        for j in np.flatnonzero(chosen).tolist():
            new_value[j], new_gradient[j] = densities[j](trial[j])
        evaluations += int(chosen.sum())
        finite = np.isfinite(new_value)
        curvature = damped_update(
            curvature, moved, gradient - new_gradient, chosen & finite
        )
        # -- accept
        gain = new_value - value
        good = gain >= _LEAST_DESCENT * promised
        if common:
            # whether what the leaf did by itself was good, the common step apart
            by_itself = (gradient[:, own] * moved[:, own]).sum(-1)
            good = gain - expected >= -np.maximum(by_itself, tolerance / L)
            for j in np.flatnonzero(~good).tolist():
                trial[j, own] = theta[j, own]
                new_value[j], new_gradient[j] = densities[j](trial[j])
            evaluations += int((~good).sum())
        bad = chosen & ~good
        if common:
            good[:] = (new_value - value).sum() > 0.0
            if not good.any():
                common_reach = _SHRINK * abs(common)
            else:
                common_reach = min(
                    max(common_reach, 2.0 * abs(common)), _LARGEST_COMMON
                )
        length = np.abs(moved[:, own]).max(-1)
        reach = np.where(bad, _SHRINK * length, np.maximum(reach, 2.0 * length))
        np.minimum(reach, longest_step, out=reach)
        good &= chosen
        theta = np.where(good[:, None], trial, theta)
        value = np.where(good, new_value, value)
        gradient = np.where(good[:, None], new_gradient, gradient)
        if not good.any() and max(float(length.max()), abs(common)) < 1e-7:
            steps, converged = step, True
            break
    return Maximum(theta, value, steps, evaluations, converged, gradient, curvature)


def _all_of(densities: Sequence[Density], theta: Array) -> tuple[Array, Array]:
    """Values ``L`` and gradients ``L x p``."""
    found = [density(at) for density, at in zip(densities, theta, strict=True)]
    return np.array([value for value, _ in found]), np.stack([g for _, g in found])


def _expected(gradient: Array, curvature: Array, moved: Array) -> Array:
    """What steps gain if the curvature is right, ``L``."""
    bend = np.einsum("li,lij,lj->l", moved, curvature, moved)
    return (gradient * moved).sum(-1) - 0.5 * bend


def _newton_steps(
    gradient: Array, curvature: Array, held: NDArray[np.bool_], shared: bool
) -> tuple[Array, float]:
    """Solutions of ``curvature x = gradient`` among what is not held.

    Returns:
        ``L x p x 1`` steps; if the last component is shared, those of the others for a
        given one, ``L x p x 2``: what is left without it, and per unit of it. And its
        step.
    """
    p, free = gradient.shape[1], ~held
    solve: Callable[[Array, Array], Any] = np.linalg.solve
    A = curvature * (free[:, :, None] & free[:, None, :])
    A.reshape(len(A), -1)[:, :: p + 1] += held
    g = gradient * free
    if not shared:
        return solve(A, g[..., None]), 0.0
    cross = A[:, :-1, -1].copy()
    A[:, :-1, -1] = A[:, -1, :-1] = 0.0
    sides = np.zeros((*g.shape, 2))
    sides[:, :-1, 0], sides[:, :-1, 1] = g[:, :-1], cross
    found = solve(A, sides)
    if held[0, -1]:
        return found, 0.0
    rest = g[:, -1] - (cross * found[:, :-1, 0]).sum(-1)
    bend = A[:, -1, -1] - (cross * found[:, :-1, 1]).sum(-1)
    return found, float(rest.sum() / bend.sum())


# -- the hyperparameters of a model ----------------------------------------------------


class Quantity(NamedTuple):
    """A parameter of a module, and what a fit has to know of it.

    Attributes:
        parameter: A value, or its logarithm.
        of_value: Whether it is a positive value, of which theta has the logarithm.
        mode: Of the Gaussian prior of what theta has.
        precision: Inverse variance of that; zero without a prior.
        highest: Log density of the prior at its mode.
        bounds: Of what theta has.
    """

    parameter: Parameter
    of_value: bool
    mode: float
    precision: float
    highest: float
    bounds: tuple[float, float]

    @classmethod
    def of(cls, module: Module, priors: Sequence[Prior]) -> Quantity | None:
        """That of a module, or None if a Gaussian between bounds is not all it is.

        Args:
            module: With one parameter.
            priors: That are registered on it.
        """
        named = list(module.named_parameters(recurse=False))
        if len(named) != 1 or len(priors) > 1:
            return None
        ((name, parameter),) = named
        interval = module.constraint_for_parameter_name(name)
        kinds = [type(prior) for prior in priors]
        mode = precision = highest = 0.0
        bounds = -math.inf, math.inf
        if interval is None:
            positive = False
            if kinds not in ([], [NormalPrior]):
                return None
        else:
            positive = type(interval) is LogInterval or (
                type(interval) is GreaterThan and not interval.enforced
            )
            if not positive or kinds not in ([LogNormalPrior], [QuickLogNormalPrior]):
                return None
            lower, upper = interval.lower_bound, interval.upper_bound
            bounds = float(lower.log()), float(upper.log())
        for prior in priors:
            top: Any = prior.mode
            if prior.batch_shape.numel() != 1:
                return None
            mode = float(top.log() if positive else top)
            precision = float(prior.scale) ** -2.0
            highest = float(prior.log_prob(top))
        of_value = positive and type(interval) is not LogInterval
        return cls(parameter, of_value, mode, precision, highest, bounds)


class LeafProblem:
    """What a fit of a treed GP maximises, as a function of arrays.

    Args:
        quantities: Lengthscales ``L x d``, amplitudes ``L`` (None if they are one),
            means ``L`` and noise variances, ``L`` or one for all (None if known).
        terms: Of the leaves.
        correlation: Of their kernel.
        rows: n, by which the objective is divided.
    """

    def __init__(
        self,
        quantities: Sequence[Quantity | None],
        terms: Sequence[Sequence[LeafTerm]],
        correlation: Correlation,
        rows: int,
    ) -> None:
        self.rows = rows
        lengths = quantities[0]
        assert lengths is not None
        L, d = lengths.parameter.shape
        self.shape = L, d + 3
        # whether the nodes above a leaf have its hyperparameters
        self.alike = all(term.level is None for part in terms for term in part)
        places = [slice(d), *(slice(d + k, d + k + 1) for k in range(3))]
        self.columns = [
            (place, quantity)
            for place, quantity in zip(places, quantities, strict=True)
            if quantity is not None
        ]
        noise = quantities[3]
        self.shared = noise is not None and noise.parameter.numel() < L
        # where each leaf has its own, it goes far from where parabolas hold
        self.own_noise = noise is not None and not self.shared
        mode, precision = np.zeros(d + 3), np.zeros(d + 3)
        self.lower, self.upper = np.full(d + 3, -np.inf), np.full(d + 3, np.inf)
        self.free = np.zeros(self.shape, dtype=bool)
        self.constant = 0.0
        for place, quantity in self.columns:
            mode[place], precision[place] = quantity.mode, quantity.precision
            self.lower[place], self.upper[place] = quantity.bounds
            self.free[:, place] = quantity.parameter.requires_grad
            self.constant += quantity.highest * quantity.parameter.numel()
        if self.shared:  # each leaf has its part of the prior
            precision[-1] /= L
        scratch: dict[int, Scratch] = {}
        self.densities = [
            LeafDensity(part, correlation, mode, precision, scratch) for part in terms
        ]

    def theta(self) -> Array:
        """The parameters as they are, ``L x (d + 3)``, within their bounds."""
        found = np.zeros(self.shape)
        for place, quantity in self.columns:
            values = quantity.parameter.detach().double().numpy()
            if quantity.of_value:
                values = np.log(values)
            found[:, place] = values.reshape(-1, place.stop - (place.start or 0))
        return np.clip(found, self.lower, self.upper)

    def write(self, theta: Array) -> None:
        """Set the parameters that may change."""
        for place, quantity in self.columns:
            parameter = quantity.parameter
            if parameter.requires_grad:
                values = theta[:, place].reshape(-1)[: parameter.numel()]
                if quantity.of_value:
                    values = np.exp(values)
                with torch.no_grad():
                    parameter.copy_(torch.as_tensor(values).view_as(parameter))

    def loss_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """``compute_custom_loss`` and its derivatives, ``L x (d + 3)``."""
        found = [density(at) for density, at in zip(self.densities, theta, strict=True)]
        total = sum(value for value, _ in found) + self.constant
        return -total / self.rows, -np.stack([slope for _, slope in found]) / self.rows

    def maximum(self, tolerance: float, max_steps: int) -> Maximum:
        """Maximise, first over what all leaves have in common if they begin alike.

        Few data have several optima: then each leaf makes short steps too, and the
        better of the two is taken.

        Args:
            tolerance: The least gain that a step has to promise.
            max_steps: Most steps.
        """
        theta, points = self.theta(), NodePoints(self.densities)
        bounds = self.lower, self.upper
        free = self.free[0]
        alike = self.alike and len(theta) > 1 and bool((theta == theta[0]).all())
        if alike and free.all():
            together = climb(
                lambda at, least: points.common(at, *bounds),
                theta[0],
                _COMMON_STEPS,
                free,
            )
            if together is not None:
                theta = np.tile(np.clip(together[0], *bounds), (len(theta), 1))
        if alike and not self.own_noise and self.rows > _FEW_ROWS:
            found = self._climb_by_parts(points, theta, tolerance, max_steps)
        else:
            found = self._climb(points, theta, tolerance, max_steps)
        if self.shared or len(theta) == 1 or self.rows > _ROWS_OF_TWO_FITS:
            return found
        other = self._climb(points, theta, tolerance, max_steps, _SHORT_STEP)
        better = other.values > found.values
        return Maximum(
            np.where(better[:, None], other.theta, found.theta),
            np.where(better, other.values, found.values),
            found.steps + other.steps,
            found.evaluations + other.evaluations,
            found.converged and other.converged,
            np.where(better[:, None], other.gradients, found.gradients),
            np.where(better[:, None, None], other.curvature, found.curvature),
        )

    def _climb_by_parts(
        self, points: NodePoints, theta: Array, tolerance: float, max_steps: int
    ) -> Maximum:
        """From where all leaves are alike; of large nodes by rounds of parabolas.

        Large nodes take nearly all of the time, and of what a leaf asks for little: the
        weights of equation (2) fall with the distance from the leaf. So a climb has the
        small nodes exactly and parabolas in place of the others, with the true value
        and gradient where it begins, and the next one begins where it ended.

        Args:
            points: At the start all of them are known.
            theta: Where to begin.
            tolerance: The least gain that a step has to promise.
            max_steps: Most steps.
        """
        most = _SMALL_SHARE * self.rows
        whole, part = points.sums(theta), points.sums(theta, most)
        if whole is None or part is None:
            return self._climb(points, theta, tolerance, max_steps)
        value, gradient, curvature = first, _, _ = whole
        small = [density.up_to(most) for density in self.densities]
        kin, scale = points.kin(most)
        rest = [a - b for a, b in zip(whole, part, strict=True)]
        large = Parabolas(theta, rest[0], rest[1], rest[2], kin, scale)
        near = [NearbyDensity(at, large, j) for j, at in enumerate(small)]
        steps, evaluations, start = 0, 0, theta
        for promised in _ROUNDS:
            found = maximise(
                near,
                theta,
                curvature,
                self.lower,
                self.upper,
                self.free,
                self.shared,
                promised * tolerance,
                max_steps - steps,
                here=(value, gradient),
            )
            steps += found.steps
            theta, value, gradient, curvature = (
                found.theta,
                found.values.copy(),
                found.gradients.copy(),
                found.curvature,
            )
            # what is to be gained if the parabolas are so wrong
            error = _WRONG * large.bent(theta)
            gain = np.linalg.solve(curvature, error[..., None])[..., 0] * error
            gain = gain.sum(-1)
            order = np.argsort(gain)  # all but those with the least together
            doubtful = np.sort(order[np.cumsum(gain[order]) > tolerance])
            if not len(doubtful):
                if promised > 1.0:
                    continue
                if value.sum() < first.sum() or not found.converged:
                    break
                return found._replace(steps=steps, evaluations=evaluations)
            here = theta[doubtful]
            expected, by_expected = _all_of(
                [partial(large.at, j) for j in doubtful], here
            )
            inner = value[doubtful] - expected, gradient[doubtful] - by_expected
            value[doubtful], gradient[doubtful] = _all_of(
                [self.densities[j] for j in doubtful], here
            )
            evaluations += len(doubtful)
            if not np.isfinite(value).all():
                break
            before = large.curvature[doubtful]
            large.move(
                doubtful,
                here,
                value[doubtful] - inner[0],
                gradient[doubtful] - inner[1],
            )
            # the curvature of the sum changes by what that of the parabolas does
            changed = curvature[doubtful] + (large.curvature[doubtful] - before)
            lowest = np.linalg.eigvalsh(changed)[:, 0]
            definite = lowest > _DEFINITE * np.trace(changed, axis1=1, axis2=2)
            curvature[doubtful[definite]] = changed[definite]
        if not value.sum() > first.sum():
            theta = start
        return self._climb(points, theta, tolerance, max_steps)

    def _climb(
        self,
        points: NodePoints,
        theta: Array,
        tolerance: float,
        max_steps: int,
        longest_step: float = _LARGEST_STEP,
    ) -> Maximum:
        steps = evaluations = 0
        reached = -math.inf
        while True:
            found = maximise(
                self.densities,
                theta,
                points.informations(theta),
                self.lower,
                self.upper,
                self.free,
                self.shared,
                tolerance,
                max_steps - steps,
                longest_step,
            )
            steps += found.steps
            evaluations += found.evaluations
            gained = float(found.values.sum()) - reached
            # what was learnt of the curvature may mislead: on with the information
            if found.converged or steps >= max_steps or gained < tolerance:
                return found._replace(
                    steps=steps, evaluations=evaluations, converged=steps < max_steps
                )
            theta, reached = found.theta, float(found.values.sum())

    def optimize(self, mll: MarginalLogLikelihood, **kwargs: Any) -> OptimizationResult:
        """An ``optimizer`` of ``fit_gpytorch_mll``.

        Args:
            mll: The objective that the parameters are of.
            kwargs: Not used: BoTorch's closure.
        """
        start = time.monotonic()
        if any(quantity.of_value for _, quantity in self.columns):
            return self._minimise(start)
        found = self.maximum(_TOLERANCE * self.rows, _MOST_STEPS)
        self.write(found.theta)
        status = OptimizationStatus
        return OptimizationResult(
            step=found.steps,
            fval=-(float(found.values.sum()) + self.constant) / self.rows,
            status=status.SUCCESS if found.converged else status.STOPPED,
            runtime=time.monotonic() - start,
        )

    def _minimise(self, start: float) -> OptimizationResult:
        """By SciPy's L-BFGS-B from values, not logarithms, as BoTorch's own fit goes.

        A step in another scale may lead to another of several optima.
        """
        theta, free = self.theta(), self.free
        positive = np.zeros(self.shape, dtype=bool)
        for place, quantity in self.columns:
            positive[:, place] = quantity.of_value
        raised = positive[free]

        def loss(x: Array) -> tuple[float, Array]:
            theta[free] = np.where(raised, np.log(np.where(raised, x, 1.0)), x)
            value, gradient = self.loss_and_gradient(theta)
            if not math.isfinite(value):
                raise NotPSDError("theta: expected a positive definite covariance.")
            return value, gradient[free] / np.where(raised, x, 1.0)

        lower, upper, first = (
            np.where(raised, np.exp(np.where(raised, values, 0.0)), values)
            for values in (
                np.broadcast_to(self.lower, self.shape)[free],
                np.broadcast_to(self.upper, self.shape)[free],
                theta[free],
            )
        )
        found = minimize(
            loss, first, jac=True, method="L-BFGS-B", bounds=Bounds(lower, upper)
        )
        loss(found.x)
        self.write(theta)
        status = OptimizationStatus
        if not found.success:
            warnings.warn(
                f"L-BFGS-B: expected to converge, got {found.message}.",
                OptimizationWarning,
                stacklevel=2,
            )
        return OptimizationResult(
            step=found.nit,
            fval=float(found.fun),
            status=status.SUCCESS if found.success else status.FAILURE,
            message=str(found.message),
            runtime=time.monotonic() - start,
        )
