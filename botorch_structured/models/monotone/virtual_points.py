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

import math
from collections.abc import Mapping, Sequence
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
from botorch_structured.models.monotone.site_kernel import SlopeMoments
from botorch_structured.spaces.arguments import check_column

# How many points signs are examined at.
_CANDIDATES = 256


def default_virtual_points(box: Tensor, count: int | None = None) -> Tensor:
    """A grid up to three columns, ends included, else scrambled Sobol points.

    Args:
        box: ``2 x d``, lower and upper.
        count: If given, this number of Sobol points, for any ``d``.

    Returns:
        ``v x d``, the same in each call.
    """
    d = box.shape[-1]
    side = {1: 10, 2: 10, 3: 4}.get(d)
    if count is None and side is not None:
        line = torch.linspace(0.0, 1.0, side, dtype=torch.float64)
        unit = torch.cartesian_prod(*[line] * d).reshape(-1, d)
    else:
        engine = SobolEngine(d, scramble=True, seed=0)
        unit = engine.draw(count or 64, dtype=torch.float64)
    return box[0] + unit.to(box) * (box[1] - box[0])


def candidates(points: Tensor, box: Tensor) -> Tensor:
    """Points, and 256 that fill a box without those among them already.

    Two points are the same if each column differs by at most 1e-6 of the box.

    Args:
        points: ``v x d``.
        box: ``2 x d``.
    """
    new = default_virtual_points(box, _CANDIDATES)
    away = (new.unsqueeze(-2) - points).abs()
    near = (away <= 1e-6 * (box[1] - box[0])).all(-1).any(-1)
    return torch.cat([points, new[~near]])


def choose_signs(
    moments: SlopeMoments,
    signs: Array,
    nu: float,
    chosen: Sequence[int],
    limit: int,
    probability: float,
    process: int | None = None,
) -> tuple[list[int], list[EPRun]]:
    """Impose signs where one is least probable, one after the other.

    Section 3.1 of [Riihimaki2010monotonicity]_, section 4 of [WangBerger2016shape]_.
    The covariance of all derivatives, which with many signs is large, is not formed:
    there is a row of it for each sign that is imposed.

    Args:
        moments: Of the derivatives at the points to choose from, of ``b`` processes.
        signs: The signs of these, ``b x m``.
        nu: Width of the probit sites.
        chosen: Those that are imposed already, by index.
        limit: The largest number of signs.
        probability: Stop where no sign is less probable.
        process: The process that signs are chosen for; None for the same signs in all.

    Returns:
        The signs that are imposed, by index, and expectation propagation with them, for
        each process.
    """
    chosen = list(chosen)
    count = len(signs)
    processes = slice(None) if process is None else slice(process, process + 1)
    signs = signs[processes]

    def array(values: Tensor) -> Array:
        return values.cpu().numpy().reshape(count, -1)[processes]

    def row(index: int) -> Array:
        column, point = divmod(index, moments.points.shape[-2])
        return signs[:, index, None] * signs * array(moments.row(point, column))

    mean = signs * array(moments.mean)
    variance = array(moments.variance())
    rows = [row(index) for index in chosen]
    starts: list[Array | None] = [None] * len(mean)
    while True:
        S = np.stack(rows, axis=1) if rows else np.zeros((*mean.shape[:1], 0, 1))
        S = np.broadcast_to(S, (len(mean), len(rows), mean.shape[1]))
        runs = [
            expectation_propagation(m[chosen], s[:, chosen], nu, start)
            for m, s, start in zip(mean, S, starts, strict=True)
        ]
        lowest = np.full(mean.shape[1], np.inf)
        for m, v, s, ep in zip(mean, variance, S, runs, strict=True):
            gone = np.square(ep.root @ s).sum(axis=0)
            sd = np.sqrt(np.maximum(v - gone, np.finfo(np.float64).tiny))
            lowest = np.minimum(lowest, ndtr((m + ep.weight @ s) / sd))
        lowest[chosen] = np.inf
        index = int(lowest.argmin())
        if len(chosen) >= limit or lowest[index] >= probability:
            return chosen, runs
        # the fixed point is near that without the new site
        starts = [_with_new_site(ep.sites) for ep in runs]
        chosen.append(index)
        rows.append(row(index))


def _with_new_site(sites: Array) -> Array:
    """Precisions and shifts of sites, with those of one more, which are zero."""
    return np.pad(sites.reshape(2, -1), ((0, 0), (0, 1))).ravel()


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
    low, high = X.reshape(-1, X.shape[-1]).aminmax(dim=0)
    inside = (low > -1e-6) & (high < 1.0 + 1e-6)
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
        low = X.clone()
        high = X.clone()
        smallest, largest = X[..., column].aminmax()
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
        start = transformed.detach()
        end = start + 1e-2 * (1.0 + start.abs())
        step = transform.untransform(end)[0] - transform.untransform(start)[0]
        step = step[..., :1, :]
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
