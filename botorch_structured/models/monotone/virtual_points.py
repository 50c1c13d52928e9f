"""Virtual points, at which signs are imposed, and signs under transforms.

Up to three columns a grid, as in [Wang2018monotonicity]_ (sections 3.2, 4.1 and 4.2):
10 points, 10 x 10, 4 x 4 x 4. A grid grows exponentially with the number of columns, so
beyond three columns it is 64 points of a scrambled Sobol sequence.

References:

.. [Wang2018monotonicity]
    W. Wang and W. J. Welch. Bayesian Optimization Using Monotonicity Information and
    Its Application in Machine Learning Hyperparameter Tuning. arXiv:1802.03532, 2018.
.. [Riihimaki2010monotonicity]
    J. Riihimaki and A. Vehtari. Gaussian processes with monotonicity information.
    AISTATS 2010.
.. [WangBerger2016shape]
    X. Wang and J. O. Berger. Estimating Shape Constrained Functions Using Gaussian
    Processes. SIAM/ASA Journal on Uncertainty Quantification 4(1), 2016.
"""

from __future__ import annotations

__all__ = [
    "check_imposed",
    "check_monotone",
    "check_probability",
    "choose_points",
    "default_virtual_points",
    "signs_of",
    "transformed_box",
    "transformed_columns",
    "transformed_points",
]

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real

import numpy as np
import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from scipy.special import ndtr
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_structured.linalg.factor import Array
from botorch_structured.models.monotone.expectation_propagation import (
    EPRun,
    expectation_propagation,
)
from botorch_structured.spaces.arguments import check_column

_GRID_SIDE = {1: 10, 2: 10, 3: 4}
_SOBOL_POINTS = 64
# How many points signs are examined at.
_CANDIDATES = 256
# Two points are the same if each column differs by at most this share of the box.
_SAME = 1e-6
# Data are in [0, 1] if they are outside by no more than this.
_ROUNDING = 1e-6
_TINY = float(np.finfo(np.float64).tiny)
# Of 1 + |outcome|: the step by which the direction of a transform is found.
_STEP = 1e-2


def default_virtual_points(box: Tensor, count: int | None = None) -> Tensor:
    """A grid up to three columns, ends included, else scrambled Sobol points.

    Args:
        box: ``2 x d``, lower and upper.
        count: If given, this number of Sobol points, for any ``d``.

    Returns:
        ``v x d``, the same in each call.
    """
    d = box.shape[-1]
    if count is None and d in _GRID_SIDE:
        side = torch.linspace(0.0, 1.0, _GRID_SIDE[d], dtype=torch.float64)
        unit = torch.cartesian_prod(*[side] * d).reshape(-1, d)
    else:
        engine = SobolEngine(d, scramble=True, seed=0)
        unit = engine.draw(count or _SOBOL_POINTS, dtype=torch.float64)
    return box[0] + unit.to(box) * (box[1] - box[0])


def choose_points(
    slopes: Callable[[Tensor], tuple[Array, Array]],
    columns: int,
    nu: float,
    points: Tensor,
    box: Tensor,
    limit: int,
    probability: float,
    shared: bool = True,
) -> tuple[Tensor, list[EPRun]]:
    """Impose signs where one is least probable, at one more point after the other.

    Section 3.1 of [Riihimaki2010monotonicity]_, section 4 of [WangBerger2016shape]_.

    Args:
        slopes: Means and covariances of derivatives times their signs, given data, at
            ``v x d`` points, ``b x (k v)`` and ``b x (k v) x (k v)`` for ``b``
            processes and ``k`` columns, which are slowest.
        columns: With respect to how many columns.
        nu: Width of the probit sites.
        points: Those at which signs are imposed already.
        box: ``2 x d``, which the points to choose from fill.
        limit: The largest number of points.
        probability: Stop where no sign is less probable.
        shared: Whether all processes have signs at all points. Otherwise each chooses
            for itself, and its sites at the points of others have a precision of zero.

    Returns:
        All points, and expectation propagation with the signs there, for each process.
    """
    chosen = list(range(len(points)))
    new = default_virtual_points(box, _CANDIDATES)
    away = (new.unsqueeze(-2) - points).abs()
    near = (away <= _SAME * (box[1] - box[0])).all(-1).any(-1)
    points = torch.cat([points, new[~near]])
    mean, covariance = slopes(points)
    rule = columns, nu, limit, probability
    if shared or len(mean) == 1:
        chosen, runs = _choose(mean, covariance, chosen, *rule)
        return points[chosen], runs
    own = [
        _choose(m[None], S[None], chosen, *rule)
        for m, S in zip(mean, covariance, strict=True)
    ]
    every = list(dict.fromkeys(index for mine, _ in own for index in mine))
    runs = [
        _with_sites_elsewhere(run, [every.index(i) for i in mine], columns, len(every))
        for mine, (run,) in own
    ]
    return points[every], runs


def _choose(
    mean: Array,
    covariance: Array,
    chosen: list[int],
    columns: int,
    nu: float,
    limit: int,
    probability: float,
) -> tuple[list[int], list[EPRun]]:
    """``choose_points`` by index, the same for all processes."""
    v = mean.shape[-1] // columns
    starts: list[Array | None] = [None] * len(mean)
    while True:
        at = (v * np.arange(columns)[:, None] + np.array(chosen, dtype=int)).ravel()
        runs = [
            expectation_propagation(m[at], S[np.ix_(at, at)], nu, start)
            for m, S, start in zip(mean, covariance, starts, strict=True)
        ]
        if len(chosen) >= min(limit, v):
            return chosen, runs
        lowest = np.full(v, np.inf)
        for m, S, ep in zip(mean, covariance, runs, strict=True):
            gone = np.square(ep.root @ S[at]).sum(axis=0)
            sd = np.sqrt(np.maximum(S.diagonal() - gone, _TINY))
            p = ndtr((m + ep.weight @ S[at]) / sd)
            lowest = np.minimum(lowest, p.reshape(columns, v).min(axis=0))
        lowest[chosen] = np.inf
        index = int(lowest.argmin())
        if lowest[index] >= probability:
            return chosen, runs
        # the fixed point is near that without the new sites
        starts = [_with_new_sites(ep.sites, columns) for ep in runs]
        chosen = [*chosen, index]


def _with_sites_elsewhere(
    run: EPRun, places: Sequence[int], columns: int, count: int
) -> EPRun:
    """Sites at some of that many points, as sites at all of them."""
    at = np.add.outer(count * np.arange(columns), np.array(places, dtype=int)).ravel()
    m = columns * count
    sites, weight, root = np.zeros((2, m)), np.zeros(m), np.zeros((m, m))
    sites[:, at] = run.sites.reshape(2, -1)
    weight[at] = run.weight
    root[np.ix_(at, at)] = run.root
    return run._replace(sites=sites.ravel(), weight=weight, root=root)


def _with_new_sites(sites: Array, columns: int) -> Array:
    """Precisions and shifts of sites, with those of one more point, which are zero."""
    old = sites.reshape(2, columns, -1)
    return np.concatenate([old, np.zeros((2, columns, 1))], axis=-1).ravel()


def transformed_box(
    bounds: Tensor | None, X: Tensor, transform: InputTransform | None
) -> Tensor:
    """The box that virtual points fill, on the axes of the model, ``2 x d``.

    Args:
        bounds: ``2 x d`` in the space of the training inputs. None: [0, 1] in each
            column whose transformed data are in [0, 1], else their range.
        X: Training inputs, ``batch_shape x n x d``.
        transform: Of the inputs.
    """
    if bounds is not None:
        corners = _moved(bounds, X, transform).flatten(0, 1)
        return torch.stack([corners.amin(0), corners.amax(0)])
    X = _apply_transform(X, transform)
    rows = X.reshape(-1, X.shape[-1])
    low, high = rows.amin(0), rows.amax(0)
    inside = (low > -_ROUNDING) & (high < 1.0 + _ROUNDING)
    return torch.stack([low.where(~inside, 0.0), high.where(~inside, 1.0)])


def _apply_transform(X: Tensor, transform: InputTransform | None) -> Tensor:
    """Transform inputs as training inputs are, without training the transform."""
    if transform is None:
        return X
    with torch.no_grad():
        return transform.preprocess_transform(X)


def transformed_points(
    virtual_X: Tensor, X: Tensor, transform: InputTransform | None
) -> Tensor:
    """Virtual points on the axes of the model, ``v x d``.

    Args:
        virtual_X: ``v x d`` in the space of the training inputs.
        X: Training inputs, ``batch_shape x n x d``.
        transform: Of the inputs.

    Raises:
        ValueError: If the transform differs between the elements of a batch.
    """
    points = _moved(virtual_X, X, transform)
    if not bool((points == points[:1]).all()):
        raise ValueError(
            "virtual_X: expected an input_transform that is the same for all elements "
            f"of a batch, got a {type(transform).__name__} that is not: the points are "
            "shared. Without virtual_X they are placed on the axes of the model."
        )
    return points[0]


def _moved(points: Tensor, X: Tensor, transform: InputTransform | None) -> Tensor:
    """``v x d`` points in each element of the batch of ``X``, ``b x v x d``."""
    points = points.to(X).expand(*X.shape[:-2], *points.shape)
    points = _apply_transform(points, transform)
    return points.reshape(-1, *points.shape[-2:])


def transformed_columns(
    monotone: Mapping[int, int], X: Tensor, transform: InputTransform | None
) -> dict[int, tuple[int, int]]:
    """The column of the model for each monotone column, and whether it is reversed.

    Found by changing each column from its smallest to its largest training value.

    Args:
        monotone: Columns and signs.
        X: Training inputs, ``batch_shape x n x d``.
        transform: Of the inputs.

    Returns:
        Column of the model's inputs and +1 or -1, for each monotone column.

    Raises:
        ValueError: If this changes no column or several columns of the transformed
            inputs, or one in different directions: the sign then has no counterpart.
    """
    result = {}
    for column in monotone:
        if transform is None:
            result[column] = (column, 1)
            continue
        low, high = X.clone(), X.clone()
        smallest, largest = X[..., column].min(), X[..., column].max()
        low[..., column] = smallest
        high[..., column] = largest if largest > smallest else smallest + 1.0
        moved = _apply_transform(high, transform) - _apply_transform(low, transform)
        moved = moved.reshape(-1, moved.shape[-1])
        scale = moved.abs().amax().clamp_min(torch.finfo(X.dtype).tiny)
        columns = (moved.abs().amax(0) > 1e-9 * scale).nonzero().flatten().tolist()
        signs = set(moved[:, columns].sign().flatten().tolist())
        if len(columns) != 1 or len(signs) != 1:
            raise ValueError(
                f"monotone: expected an input_transform under which column {column} "
                "moves one column of the model, always in one direction; "
                f"{type(transform).__name__} moves {columns}."
            )
        result[column] = (columns[0], int(signs.pop()))
    return result


def signs_of(
    Y: Tensor, transformed: Tensor, transform: OutcomeTransform | None = None
) -> Tensor:
    """Whether an outcome transform keeps (+1) or reverses (-1) the order of outcomes.

    Equal outcomes have no order; for them a small step of the transformed outcomes is
    transformed back.

    Args:
        Y: ``batch_shape x n x m``.
        transformed: The same, transformed.
        transform: The transform. Without it the order of equal outcomes is +1.

    Returns:
        ``batch_shape x m``.
    """
    first = Y.argmin(dim=-2, keepdim=True)
    last = Y.argmax(dim=-2, keepdim=True)
    rise = transformed.gather(-2, last) - transformed.gather(-2, first)
    if transform is not None and bool((rise == 0.0).any()):
        here = transformed.detach()
        there = transform.untransform(here + _STEP * (1.0 + here.abs()))[0]
        step = (there - transform.untransform(here)[0])[..., :1, :]
        rise = torch.where(rise == 0.0, step, rise)
    return torch.where(rise < 0.0, -1.0, 1.0).to(Y).squeeze(-2)


def check_imposed(
    nu: float, virtual_X: Tensor | str, bounds: Tensor | None, d: int
) -> None:
    """Raise a ``ValueError`` for what says how, and where, signs cannot be imposed.

    Args:
        nu: Expected to be a positive number.
        virtual_X: Finite and ``v x d``, or a known word.
        bounds: None, or finite, ``2 x d``, and in order.
        d: Number of columns.
    """
    number = isinstance(nu, Real) and not isinstance(nu, bool)
    if not (number and math.isfinite(nu) and nu > 0.0):
        raise ValueError(f"nu: expected a positive number, got {nu!r}.")
    if isinstance(virtual_X, Tensor):
        if virtual_X.ndim != 2 or virtual_X.shape[-1] != d:
            raise ValueError(
                f"virtual_X: expected v x {d} like the columns of train_X, got "
                f"{tuple(virtual_X.shape)}."
            )
        if not bool(virtual_X.isfinite().all()):
            raise ValueError("virtual_X: expected finite values, got others.")
    elif not (isinstance(virtual_X, str) and virtual_X in ("adaptive", "grid")):
        raise ValueError(
            f'virtual_X: expected a tensor, "adaptive" or "grid", got {virtual_X!r}.'
        )
    if bounds is None:
        return
    got = tuple(bounds.shape) if isinstance(bounds, Tensor) else bounds
    if got != (2, d):
        raise ValueError(
            f"bounds: expected a tensor, 2 x {d} like the columns of train_X, got "
            f"{got!r}."
        )
    if not bool((bounds.isfinite() & (bounds[0] < bounds[1])).all()):
        raise ValueError(
            "bounds: expected finite lower bounds below upper ones, got "
            f"{bounds.tolist()}."
        )


def check_probability(probability: float, name: str) -> None:
    """Raise a ``ValueError`` unless it is in (0, 1)."""
    if not (isinstance(probability, Real) and 0.0 < probability < 1.0):
        raise ValueError(f"{name}: expected a number in (0, 1), got {probability!r}.")


def check_monotone(monotone: Mapping[int, int], d: int) -> dict[int, int]:
    """Check columns and signs, and sort them by column.

    Raises:
        ValueError: For other columns than those of the inputs, or other signs.
    """
    if not isinstance(monotone, Mapping):
        raise ValueError(
            "monotone: expected {column: +1 or -1}, got a "
            f"{type(monotone).__name__}: {monotone!r}."
        )
    signs = {check_column("monotone", j, d): sign for j, sign in monotone.items()}
    for column, sign in signs.items():
        if sign not in (1, -1):
            raise ValueError(
                f"monotone: expected +1 (increasing) or -1 (decreasing) for column "
                f"{column}, got {sign!r}."
            )
    return {column: int(signs[column]) for column in sorted(signs)}
