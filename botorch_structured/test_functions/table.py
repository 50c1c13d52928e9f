"""A problem whose values stand in a table, and are known at its rows only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_columns
from botorch_structured.spaces.columns import FloatColumn
from botorch_structured.test_functions.base import ConditionalTestFunction

# Points this near, in widths of the bounds, are the same row: fits float32.
_SAME = 1e-6


class TableProblem(ConditionalTestFunction):
    r"""A lookup: the rows of a table are all the points that there are.

    For grids that others have computed, and for measurements where nobody
    can measure again (boreholes): a benchmark on real values that costs nothing.
    As in section 4 of Assael et al. (2014), an acquisition function is to be maximised
    over the rows:

        >>> problem = TableProblem(X, y, log_features=[1, 2])
        >>> train_X = problem.starts(seed=0)
        >>> train_Y = -problem(train_X).unsqueeze(-1)
        >>> x, value = optimize_acqf_discrete(
        ...     acqf, q=1, choices=problem.candidates, X_avoid=train_X
        ... )

    A point that is not a row, up to rounding, is a ``ValueError`` and not the value of
    some row nearby: two suggestions would then have one value, and nobody would know
    which was evaluated. For an optimiser that cannot be told about the rows, say which
    one is meant: ``problem(problem.nearest(x))``.

    ``space`` is that of the columns, in which there are more points than rows. To be
    minimised, unless ``negate``.
    """

    candidates: Tensor  # ``n x d``, all rows
    values: Tensor  # ``n``, to be minimised
    optimizers: Tensor

    def __init__(
        self,
        X: Any,
        y: Any,
        names: Sequence[str] | None = None,
        log_features: Sequence[int] = (),
        space: SearchSpace | None = None,
        maximize: bool = False,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            X: ``n x d`` numbers, the inputs as they stand in the table. A row that is
                repeated is one candidate, with the mean of its values.
            y: ``n`` values.
            names: Those of the columns. Default: ``x0, ..., x{d-1}``.
            log_features: Columns whose decimal logarithm a model sees. It
                stands in ``candidates`` and ``bounds``.
            space: For tables with integers, categories or conditions, in place of
                ``names`` and ``log_features``: ``X`` holds points of it then, as its
                ``encode`` makes them.
            maximize: Whether large values are the good ones. The problem then returns
                their negative, to be minimised.
            noise_std: Standard deviation of noise to add.
            negate: Whether to negate the function, for maximisation.
            dtype: The dtype of ``bounds``.

        Raises:
            ValueError: For shapes that do not fit, numbers that are not finite, a
                logarithm of a number that is not positive, or rows outside of the
                space.
        """
        X = np.asarray(X, dtype=float)
        y = np.asarray(y, dtype=float)
        finite = np.isfinite(X).all() and np.isfinite(y).all()
        if X.ndim != 2 or not X.size or y.shape != X.shape[:1] or not finite:
            raise ValueError(
                "X, y: expected finite numbers, n x d inputs and n values, at least "
                f"one of each, got shapes {X.shape} and {y.shape}, {finite=}."
            )
        if space is None:
            columns = _columns(X, names, log_features)
            space = SearchSpace.from_columns(columns, ParameterTree(len(columns)))
            encoded = [
                [column.encode(x) for x in values]
                for column, values in zip(columns, X.T.tolist(), strict=True)
            ]
            points = torch.tensor(encoded, dtype=torch.double).T
        elif names is not None or len(log_features):
            raise ValueError(
                "space: expected none beside names or log_features, got both."
            )
        else:
            space.check_points(torch.tensor(X))
            points = space.impute(torch.tensor(X))
        points, row = points.unique(dim=0, return_inverse=True)
        total = points.new_zeros(len(points)).index_add_(0, row, torch.from_numpy(y))
        values = total / row.bincount()
        if maximize:
            values = -values
        super().__init__(space, noise_std=noise_std, negate=negate, dtype=dtype)
        width = space.bounds[1] - space.bounds[0]
        self._scale = torch.where(width > 0, width, 1.0)
        for column, codes in space.categorical_features.items():
            # a different category is farther away than all other columns together
            gap = torch.tensor(sorted(codes), dtype=torch.double).diff()
            self._scale[column] = gap.min() / (2 * self.dim) if len(gap) else 1.0
        self._index = KDTree((points / self._scale).numpy())
        self._optimal_value = float(values.min())
        best = points[values == values.min()]
        self.register_buffer("candidates", points.to(self.bounds), persistent=False)
        self.register_buffer("values", values.to(self.bounds), persistent=False)
        self.register_buffer("optimizers", best.to(self.bounds))

    def nearest(self, X: Tensor) -> Tensor:
        r"""The candidate nearest to each point, distances in widths of the bounds.

        No category is near another: they stay as they are where there is such a row.

        Args:
            X: A ``batch_shape x d``-dim tensor within the bounds; what inactive
                columns hold does not matter.

        Returns:
            A ``batch_shape x d``-dim tensor of rows of ``candidates``.

        Raises:
            ValueError: For the wrong number of columns, or NaN where it matters.
        """
        if X.shape[-1] != self.dim:
            raise ValueError(
                f"X: expected shape `batch_shape x {self.dim}`, got {tuple(X.shape)}."
            )
        index, distance = self._nearest(X)
        if not distance.isfinite().all():
            raise ValueError("X: expected finite active columns, got NaN or inf.")
        return self.candidates[index].to(X)

    def _nearest(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest row and its distance, ``batch_shape``; infinite for NaN."""
        points = X.detach().to(self._scale).reshape(-1, self.dim)
        snapped = self.space._snap(points)
        points = torch.where(self._active(points), snapped, self.space.fill)
        points = points / self._scale
        wrong = ~points.isfinite().all(-1)
        distance, index = self._index.query(points.nan_to_num(0.0, 0.0, 0.0).numpy())
        far = torch.from_numpy(distance).masked_fill(wrong, math.inf)
        return torch.from_numpy(index).reshape(X.shape[:-1]), far.reshape(X.shape[:-1])

    def _evaluate_true(self, X: Tensor) -> Tensor:
        index, distance = self._nearest(X)
        if (distance > _SAME).any():
            worst = X.reshape(-1, self.dim)[distance.reshape(-1).argmax()]
            raise ValueError(
                f"X: expected rows of `candidates`, got {worst.tolist()}, which is "
                f"{float(distance.max()):.2g} widths of the bounds away from the "
                "nearest; see `nearest`."
            )
        return self.values[index.to(self.values.device)].to(X)

    def starts(
        self,
        seed: int,
        n: int | None = None,
    ) -> Tensor:
        r"""Different rows at random, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many. Default: one on each path where there are several, else
                ``max(5, 2 d)``, or all if there are fewer.

        Returns:
            An ``n x d``-dim tensor.
        """
        rng = np.random.default_rng(1000 + seed)
        X = self.candidates[torch.from_numpy(rng.permutation(len(self.candidates)))]
        if n is not None:
            if not 0 < n <= len(X):
                raise ValueError(f"n: expected 1 to {len(X)} rows, got {n}.")
            return X[:n]
        keys = self.tree.path_key(X).tolist()
        if len(set(keys)) == 1:
            return X[: max(5, 2 * self.dim)]
        return X[[keys.index(key) for key in dict.fromkeys(keys)]]


def _columns(
    X: np.ndarray,
    names: Sequence[str] | None,
    log_features: Sequence[int],
) -> list[FloatColumn]:
    d = X.shape[1]
    names = [f"x{j}" for j in range(d)] if names is None else list(names)
    if len(names) != d:
        raise ValueError(f"names: expected {d} names, got {names}.")
    logarithmic = check_columns("log_features", log_features, d)
    return [
        FloatColumn(names[j], float(x.min()), float(x.max()), log=j in logarithmic)
        for j, x in enumerate(X.T)
    ]
