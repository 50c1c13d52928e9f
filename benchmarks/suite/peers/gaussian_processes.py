"""``SingleTaskGP`` on the columns of a conditional space, with the package's search."""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from torch import Tensor

from benchmarks.fits import finite, fitted
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, IntegerColumn

_SAME_CODE = 1e-6


class Encoding(InputTransform):
    """Numbers in [0, 1] from the columns of a space.

    Numeric columns are scaled, integers on a logarithmic scale after their logarithm is
    taken. A choice without an order is one-hot, or 0 and 1 if there are two. ``source``
    lists the column that each of the ``k`` new ones is made of.

    Args:
        space: The space of ``d`` columns.
    """

    is_one_to_many = False
    transform_on_train = True
    transform_on_eval = True
    transform_on_fantasize = True

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self.space = space
        self.source: list[int] = []
        code: list[float] = []  # of the choice that a column is 1 for, else NaN
        columns: list[Any] = list(space.columns)
        for c, column in enumerate(columns):
            choices = isinstance(column, CategoricalColumn) and not column.ordered
            one_hot = choices and len(column.codes) > 2
            codes = column.codes if one_hot else [math.nan]
            self.source += [c] * len(codes)
            code += codes
        lo, hi = space.bounds
        self._logs = [
            c
            for c, column in enumerate(space.columns)
            if isinstance(column, IntegerColumn) and column.log
        ]
        self._lo = self._log(lo)
        width = self._log(hi) - self._lo
        self._width = torch.where(width > 0.0, width, 1.0)
        self._code = torch.tensor(code, dtype=torch.double)

    def _log(self, X: Tensor) -> Tensor:
        if not self._logs:
            return X
        X = X.clone()
        X[..., self._logs] = X[..., self._logs].clamp_min(0.5).log10()
        return X

    def scale(self, X: Tensor) -> Tensor:
        """``batch_shape x n x d`` points, each column in [0, 1] where it is active."""
        return (self._log(X) - self._lo) / self._width

    def transform(self, X: Tensor) -> Tensor:
        """``batch_shape x n x d`` points -> ``batch_shape x n x k``."""
        filled = self.space.impute(X)
        chosen = (filled[..., self.source] - self._code).abs() < _SAME_CODE
        scaled = self.scale(filled)[..., self.source]
        return torch.where(self._code.isnan(), scaled, chosen.to(X))


def imputed(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``SingleTaskGP`` as it comes, inactive columns at their fill values."""
    Y = finite(Y)
    model = fitted(SingleTaskGP(X, Y, input_transform=Encoding(problem.space)))
    criterion = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(criterion, space=problem.space, X_avoid=X)[0]
