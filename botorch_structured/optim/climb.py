"""Local maximisation by gradient, from many starts together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import copy

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import OptimizationGradientError
from botorch.generation import gen_candidates_scipy
from botorch.models.model import Model
from torch import Tensor

from botorch_structured.optim.boxes import Boxes
from botorch_structured.optim.problem import Array, KnownPoints
from botorch_structured.optim.view import View, view_on

# Most iterations of a climb.
_MAX_CLIMB = 40
# After so many iterations of a climb, or steps of a walk, a start ends, too, if it is
# behind the best one by more than so many times its next or last gain.
PATIENCE = 1
OPTIMISM = 3.0
# A climb ends where a gain is less, relative to the value.
_TOLERANCE = 1e-8
# The lengths of a step that are tried, in steps of Newton.
_LENGTHS = np.array([1.0, 0.5, 2.0, 0.2, 0.04, 5.0])
# Most points beside starts at which second derivatives begin.
_MOST_BESIDE = 256


class Evaluator:
    """An acquisition function on rows of a matrix, each a candidate of its own.

    Args:
        acq_function: Maps ``b x 1 x d`` to ``b``.
        device: Where it is evaluated.
    """

    def __init__(
        self,
        acq_function: AcquisitionFunction,
        device: torch.device | str = "cpu",
    ) -> None:
        self.acq_function = acq_function
        self.device = device
        self._view: View | None = None
        self.batch_limit = self._most_rows()

    def _most_rows(self) -> int:
        """Most rows in one call, by the numbers that it needs at once: at most 2^25.

        They are points times training points times Monte Carlo samples.
        """
        # training points of all members of an ensemble
        n = 1
        for module in self.acq_function.modules():
            tables = getattr(module, "train_inputs", None) or ()
            for table in tables if isinstance(module, Model) else ():
                if isinstance(table, Tensor):
                    n = max(n, table.shape[:-1].numel())
        shape = getattr(getattr(self.acq_function, "sampler", None), "sample_shape", ())
        # A Monte Carlo acquisition holds a joint sample with its baseline points.
        width = n + 16 * math.prod(shape) if shape else n
        return max(64, min(1 << 14, (1 << 25) // max(width, 1)))

    def on(self, rows: Array) -> Evaluator:
        """The same for points on the paths of some rows, ``m x d``."""
        new = copy(self)
        new._view = view_on(self.acq_function, torch.from_numpy(rows).to(self.device))
        return new

    def values(self, X: Array, row: Array | None = None) -> Array:
        """``n`` values of ``n x d`` points; -inf for NaN.

        Args:
            X: The points.
            row: For each, the number of the row of `on` whose path it is on; by default
                they are any points.
        """
        if row is None:
            return self.on(X).values(X, np.arange(len(X)))
        return self.value_and_gradient(X, row, gradient=False)[0]

    def value_and_gradient(
        self,
        X: Array,
        row: Array,
        gradient: bool = True,
    ) -> tuple[Array, Array]:
        """``n`` values and ``n x d`` gradients, zero where they are not finite."""
        if not len(X):
            return np.zeros(0, X.dtype), X
        size = self.batch_limit
        if len(X) > size:
            parts = [
                self.value_and_gradient(X[i : i + size], row[i : i + size], gradient)
                for i in range(0, len(X), size)
            ]
            values, slopes = zip(*parts, strict=True)
            return np.concatenate(values), np.concatenate(slopes)
        value, slope = (self._view or self._by_autograd)(X, row, gradient)
        value = np.where(np.isnan(value), -np.inf, value)
        if slope is None:
            return value, np.zeros_like(X)
        return value, np.where(np.isfinite(slope), slope, 0.0)

    def _by_autograd(
        self,
        X: Array,
        row: Array,
        gradient: bool,
    ) -> tuple[Array, Array | None]:
        leaf = torch.from_numpy(X).to(self.device).unsqueeze(-2)
        leaf.requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            value = self.acq_function(leaf).reshape(-1)
        slope = None
        if value.requires_grad and gradient:
            (slope,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
        values = value.detach().cpu().numpy()
        return values, None if slope is None else slope.squeeze(-2).cpu().numpy()


# Values, gradients, and which points may be proposed (None: all of them).
Answer = tuple[Array, Array, Array | None]


@np.errstate(invalid="ignore", over="ignore")  # of infinities, and of 1e300
def maximize_in_unit_box(
    evaluate: Callable[[Array, Array], Answer],
    U: Array,
    valid: Array,
    box: Array | None = None,
    patience: float = math.inf,
) -> tuple[Array, Array]:
    """Climb from every start to a local maximum in ``[0, 1]^k``, all of them together.

    An evaluation takes nearly as long for 60 points as for one. So the first one has
    the gradients beside the starts, too, whose differences are second derivatives; in
    each further one are several lengths of the step of every start, which moves to its
    best one and updates its derivatives (BFGS). A climb crosses regions that are not
    admissible, but does not end there: the best admissible point that was met is
    returned.

    Args:
        evaluate: Maps ``n x k`` points and the ``n`` numbers of the starts they came
            from to ``n`` values, ``n x k`` gradients, and whether the points are
            admissible.
        U: ``S x k`` starts.
        valid: ``S x k`` booleans; coordinates that are not valid do not move.
        box: ``S`` numbers: starts in the same box may lead to the same maximum.
            Default: every start has its own.
        patience: After so many iterations starts end that will not become the best.

    Returns:
        ``S x k`` points and ``S`` values; -inf where none is admissible.
    """
    count, k = U.shape
    start = np.arange(count)
    box = start if box is None else box
    few = max(1, _MOST_BESIDE // k)
    owner, column = valid[:few].nonzero()
    h = np.cbrt(np.finfo(U.dtype).eps)
    shift = np.where(U[owner, column] > 0.5, -h, h).astype(U.dtype)
    beside = U[owner]
    beside[np.arange(len(owner)), column] += shift
    value, slope, admissible = evaluate(
        np.concatenate([U, beside]), np.concatenate([start, owner])
    )
    second = np.zeros((count, k, k), U.dtype)
    second[owner, column] = (slope[count:] - slope[owner]) / shift[:, None]
    x = U
    value = value[:count]
    slope = slope[:count]
    best_x = U.copy()
    best = value.copy()
    if admissible is not None:
        best[~admissible[:count]] = -np.inf
    slope = np.where(valid, slope, 0.0)
    second = np.where(valid[:, None], second, 0.0)
    curvature = _curvature(second[:few], slope[:few])
    if few < count:  # the others begin as these do on average
        others = np.broadcast_to(curvature.mean(0), (count - few, k, k))
        curvature = np.concatenate([curvature, others])
    eye = np.eye(k)
    going = np.isfinite(value)
    for sweep in range(_MAX_CLIMB):
        # along a bound that it would cross a climb slides
        free = valid[start] & np.where(slope > 0.0, x < 1.0, x > 0.0)
        ascent = np.where(free, slope, 0.0)
        matrix = np.where(free[:, :, None] & free[:, None], curvature, eye)
        diagonal = matrix.reshape(len(matrix), -1)[:, :: k + 1]
        diagonal += 1e-10 * diagonal.sum(-1, keepdims=True)
        step = np.linalg.solve(matrix, ascent[:, :, None])[:, :, 0]
        expected = 0.5 * (step * ascent).sum(-1)
        going = going & (expected > _TOLERANCE * np.abs(value))
        if sweep >= patience:
            top = best.argmax()
            lead = best[top] - value
            going &= lead <= OPTIMISM * expected
            gap = np.abs(x + step - best_x[top]).max(-1)
            is_same = (box[start] == box[top]) & (gap <= 0.5 * np.abs(step).max(-1))
            going &= ~is_same | (lead <= 0.0)
        rows = going.nonzero()[0]
        if not len(rows):
            break
        if len(rows) < len(going):
            start = start[rows]
            x = x[rows]
            value = value[rows]
            slope = slope[rows]
            curvature = curvature[rows]
            step = step[rows]
        trial = x[:, None] + _LENGTHS[:, None] * step[:, None]
        trial = np.minimum(np.maximum(trial, 0.0), 1.0)  # faster than clip
        trial = trial.reshape(-1, k).astype(U.dtype, copy=False)
        owner = start.repeat(len(_LENGTHS))
        values, slopes, admissible = evaluate(trial, owner)
        values = np.where(np.isnan(values), -np.inf, values)
        top = values.reshape(-1, len(_LENGTHS)).argmax(-1)
        top += len(_LENGTHS) * np.arange(len(x))
        gain = values[top] - value
        better = gain > 0.0
        if admissible is not None:
            order = values.argsort()
            order = order[admissible[order] & (values[order] > best[owner[order]])]
            best[owner[order]] = values[order]
            best_x[owner[order]] = trial[order]
        moved = better[:, None]
        to = np.where(moved, trial[top], x)
        slope_there = np.where(moved, slopes[top], slope)
        fall = np.where(valid[start], slope - slope_there, 0.0)
        curvature = _updated(curvature, to - x, fall)
        curvature[~better] *= 100.0  # all steps were too long
        x = to
        slope = slope_there
        value = np.maximum(value, values[top])
        going = ~better | (gain > _TOLERANCE * np.abs(value))
        if admissible is None:
            best[start] = value
            best_x[start] = x
    return best_x, best


def _curvature(second: Array, slope: Array) -> Array:
    """Positive definite matrices with the sizes of curvatures, whatever their signs.

    So the steps of Newton lead upwards; in no direction are they longer than the box.

    Args:
        second: Second derivatives, ``S x k x k``.
        slope: Gradients, ``S x k``.
    """
    second = np.where(np.isfinite(second), second, 0.0)
    size, axes = np.linalg.eigh(0.5 * (second + second.swapaxes(1, 2)))
    along = (slope[:, None] @ axes)[:, 0]
    size = np.maximum(np.abs(size), np.abs(along))
    size = np.maximum(size, 1e-8 * size.max(-1, keepdims=True))
    size = np.maximum(size, np.finfo(size.dtype).tiny)
    return (axes * size[:, None]) @ axes.swapaxes(1, 2)


def _updated(curvature: Array, step: Array, fall: Array) -> Array:
    """The update of BFGS, where the slope has fallen along the step.

    Args:
        curvature: The negated second derivatives, ``S x k x k``.
        step: Steps, ``S x k``.
        fall: Gradients before less those behind it, ``S x k``.
    """
    product = (step * fall).sum(-1)
    length = np.square(step).sum(-1) * np.square(fall).sum(-1)
    fell = product > 1e-10 * np.sqrt(length)
    before = (curvature @ step[:, :, None])[:, :, 0]
    size = np.where(fell, (before * step).sum(-1), 1.0)[:, None, None]
    product = np.where(fell, product, 1.0)[:, None, None]
    more = fall[:, :, None] * fall[:, None] / product
    less = before[:, :, None] * before[:, None] / size
    return np.where(fell[:, None, None], curvature + more - less, curvature)


def has_border(starts: Boxes, avoid: KnownPoints) -> bool:
    """Whether a point that is not admissible may be beside one that is."""
    distant = starts.problem.min_distance > 0.0 and len(avoid.X) > 0
    return distant or is_cut(starts)


def is_cut(starts: Boxes) -> bool:
    """Whether constraints or ``feasible`` cut boxes in two: by a real column."""
    return bool((starts.continuous & starts.problem.restricting).any())


def climb(
    evaluator: Evaluator,
    X: Array,
    values: Array,
    starts: Boxes,
    row: Array,
    moving: Array,
    avoid: KnownPoints,
) -> tuple[Array, Array]:
    """By gradient: together in the unit box, or one by one under linear constraints.

    Args:
        evaluator: The acquisition function.
        X: ``S x d`` starts.
        values: Their ``S`` values.
        starts: Their boxes.
        row: ``S`` numbers of these for the evaluator.
        moving: ``S x d`` booleans: the columns that move.
        avoid: Known points.

    Returns:
        ``S x d`` points and their values, none worse than where its climb began.
    """
    bound: Array = np.zeros(len(X), dtype=bool)
    for c in starts.problem.constraints:
        binds = starts.active[:, c.columns].all(-1)
        bound |= binds & moving[:, c.columns].any(-1)
    X = X.copy()
    values = values.copy()
    rows = np.flatnonzero(~bound & moving.any(-1))
    if len(rows):
        ends, new = _climb_together(
            evaluator,
            X[rows],
            starts.take(rows),
            row[rows],
            moving[rows],
            avoid,
        )
        better = new > values[rows]
        X[rows[better]] = ends[better]
        values[rows[better]] = new[better]
    for i in bound.nonzero()[0][:4]:
        X[i], values[i] = _climb_constrained(
            evaluator,
            X[i],
            values[i],
            starts,
            i,
            row[i],
            moving[i],
        )
    return X, values


def _climb_together(
    evaluator: Evaluator,
    X: Array,
    starts: Boxes,
    row: Array,
    moving: Array,
    avoid: KnownPoints,
) -> tuple[Array, Array]:
    """The climbs of all starts in the unit box of the columns that move.

    See `climb` for the arguments.

    Returns:
        ``S x d`` points and their values, -inf where no admissible one was met.
    """
    problem = starts.problem
    bordered = has_border(starts, avoid)
    # Columns that move side by side, ``S x k``; a start that has fewer than others is
    # given real ones that do not move, which models without codes of categories know.
    order = np.where(moving, 0, 1 + problem.values.listed).argsort(-1, kind="stable")
    columns = order[:, : int(moving.sum(-1).max())]
    start = np.arange(len(X))
    at = start[:, None], columns
    valid = moving[at]
    lower = np.where(valid, starts.lower[at], X[at])
    upper = np.where(valid, starts.upper[at], X[at])
    logs = valid & problem.values.logarithmic[columns]
    any_logs = logs.any()
    least = np.log(lower, out=lower.copy(), where=logs)
    width = np.log(upper, out=upper.copy(), where=logs) - least

    def points(U: Array, start: Array) -> tuple[Array, Array]:
        """``n x d`` points, and the values of the columns that move, ``n x k``."""
        x = least[start] + U * width[start]
        if any_logs:
            np.exp(x, out=x, where=logs[start])
        top = upper[start]
        x = np.minimum(np.maximum(x, lower[start]), top)
        x = np.where(U < 1.0, x, top)  # exact at both bounds
        near = X[start]
        near[np.arange(len(near))[:, None], columns[start]] = x
        return near, x

    def evaluate(U: Array, start: Array) -> Answer:
        near, x = points(U, start)
        value, slope = evaluator.value_and_gradient(near, row[start])
        slope = slope[np.arange(len(near))[:, None], columns[start]] * width[start]
        if any_logs:
            slope = slope * np.where(logs[start], x, 1.0)  # dx / d log x = x
        if not bordered:
            return value, slope, None
        new = problem.admissible(near, starts.active[start])
        if problem.min_distance:
            new &= ~avoid.contains(near)
        return value, slope, new

    place = np.log(X[at], out=X[at], where=logs) - least
    U = np.where(valid, place / np.where(valid, width, 1.0), 0.5).clip(0.0, 1.0)
    best, values = maximize_in_unit_box(
        evaluate,
        U,
        valid,
        row,
        PATIENCE,
    )
    return points(best, start)[0], values


def _climb_constrained(
    evaluator: Evaluator,
    x: Array,
    value: float,
    starts: Boxes,
    i: int,
    row: int,
    moving: Array,
) -> tuple[Array, float]:
    """SLSQP from one start."""
    problem = starts.problem
    tensor = problem.tensor
    # SLSQP ends beyond a border by rounding: the border is within
    within = 1e-9 if x.itemsize == 8 else 1e-5
    constraints = [
        (
            tensor(np.array(c.columns)),
            c.coefficients.to(problem.device),
            c.rhs + within * (1.0 + abs(c.rhs)),
        )
        for c in problem.constraints
        if starts.active[i, c.columns].all() and moving[c.columns].any()
    ]
    fixed = {int(c): float(x[c]) for c in (~moving).nonzero()[0]}
    try:
        # BoTorch's warnings of an early end pass all filters: record them instead
        with warnings.catch_warnings(record=True):
            candidate, _ = gen_candidates_scipy(
                tensor(x[None, None]),
                evaluator.acq_function,
                lower_bounds=tensor(starts.lower[i]),
                upper_bounds=tensor(starts.upper[i]),
                inequality_constraints=constraints,
                fixed_features=fixed,
                options={"maxiter": 200, "ftol": 1e-12},
            )
    except OptimizationGradientError:
        return x, value
    end = candidate.detach().cpu().numpy().reshape(1, -1)
    end = np.where(moving, end, x).clip(starts.lower[i], starts.upper[i])
    if not problem.admissible(end, starts.active[i : i + 1]).all():
        return x, value
    (new,) = evaluator.values(end, np.array([row]))
    return (end[0], new) if new > value else (x, value)
