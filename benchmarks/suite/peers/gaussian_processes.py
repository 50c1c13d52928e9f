"""Gaussian processes of BoTorch and GPyTorch on the columns of a conditional space.

Each has LogEI as its criterion and `optimize_acqf_paths` as its optimiser, so that a
difference is the model's: the optimiser proposes what the space allows, and no known
point. Models see columns that an `Encoding` makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.hierarchical import HierarchicalConditionalKernel
from botorch.models.transforms.input import InputTransform
from botorch.settings import validate_input_scaling
from gpytorch.kernels import ArcKernel, MaternKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from torch import Tensor

from benchmarks.fits import finite, fitted
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import Equals, In, SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, IntegerColumn
from botorch_structured.spaces.conditions import And

_INACTIVE = -1.0  # numbers that stand for active values are in [0, 1]
_SAME_CODE = 1e-6


class Encoding(InputTransform):
    """Numbers in [0, 1] from the columns of a space.

    Numeric columns are scaled, integers on a logarithmic scale after their logarithm is
    taken. A choice without an order is one-hot, or 0 and 1 if there are two. ``source``
    lists the column that each of the ``k`` new ones is made of.

    Args:
        space: The space of ``d`` columns.
        inactive: What inactive columns become: ``"filled"``, the space's fill values;
            ``"marked"``, -1; ``"kept"``, what they are.
        whole: Columns that are scaled although they are choices.
        told: Columns of which one more says, at the end, whether they are active.
    """

    is_one_to_many = False
    transform_on_train = True
    transform_on_eval = True
    transform_on_fantasize = True

    def __init__(
        self,
        space: SearchSpace,
        inactive: Literal["filled", "marked", "kept"] = "filled",
        whole: frozenset[int] = frozenset(),
        told: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.space, self.inactive, self.told = space, inactive, list(told)
        self.source: list[int] = []
        code: list[float] = []  # of the choice that a column is 1 for, else NaN
        columns: list[Any] = list(space.columns)
        for c, column in enumerate(columns):
            choices = isinstance(column, CategoricalColumn) and not column.ordered
            one_hot = choices and len(column.codes) > 2 and c not in whole
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
        filled = X if self.inactive == "kept" else self.space.impute(X)
        chosen = (filled[..., self.source] - self._code).abs() < _SAME_CODE
        scaled = self.scale(filled)[..., self.source]
        encoded = torch.where(self._code.isnan(), scaled, chosen.to(X))
        if self.inactive == "marked":
            active = self.space.tree.active_mask(X)[..., self.source]
            encoded = torch.where(active, encoded, _INACTIVE)
        if self.told:
            active = self.space.tree.active_mask(X)[..., self.told]
            encoded = torch.cat([encoded, active.to(encoded)], dim=-1)
        return encoded


def _suggest(
    problem: Any, X: Tensor, Y: Tensor, model: SingleTaskGP, steps: int | None = None
) -> Tensor:
    """Fit the model, in at most so many steps; the point of the largest LogEI."""
    options = {} if steps is None else {"options": {"maxiter": steps}}
    model = fitted(model, optimizer_kwargs=options)
    criterion = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(criterion, space=problem.space, X_avoid=X)[0]


def imputed(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``SingleTaskGP`` as it comes, inactive columns at their fill values."""
    Y = finite(Y)
    model = SingleTaskGP(X, Y, input_transform=Encoding(problem.space))
    return _suggest(problem, X, Y, model)


def arc(
    problem: Any, X: Tensor, Y: Tensor, seed: int, steps: int | None = None
) -> Tensor:
    """``SingleTaskGP`` with GPyTorch's ``ArcKernel`` (Swersky et al. 2014).

    A column is a point on an arc where it is active and the centre of the circle where
    not. Angles and radii belong to the column; the base kernel is Matern-5/2, the prior
    of the radii that of GPyTorch's example. Angles have the kernel's limits and no
    prior: the example's puts mass beyond them. A fit takes hundreds of steps, as its
    objective is flat; ``steps`` is how many it may take.
    """
    Y = finite(Y)
    encoding = Encoding(problem.space, inactive="marked")
    kernel = _arc_kernel(len(encoding.source))
    with validate_input_scaling(False):  # -1 marks inactive columns
        model = SingleTaskGP(X, Y, covar_module=kernel, input_transform=encoding)
    return _suggest(problem, X, Y, model, steps)


def _arc_kernel(k: int) -> ScaleKernel:
    """The kernel over ``k`` columns, inactive where they are negative."""
    kernel = ArcKernel(
        MaternKernel(nu=2.5),
        delta_func=_is_active,
        radius_prior=GammaPrior(3.0, 2.0),
        ard_num_dims=k,
    )
    # As in the paper, radius and angle are the only parameters of a column.
    kernel.lengthscale = 1.0
    kernel.raw_lengthscale.requires_grad_(False)
    return ScaleKernel(kernel)


def _is_active(Z: Tensor) -> Tensor:
    return (Z >= 0.0).to(Z)


def hierarchical(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """BoTorch's ``HierarchicalConditionalKernelGP``, with its defaults.

    It is made as its constructor does, by the kernel, so that choices that are no
    decisions can be one-hot. Decisions are one number each, as BoTorch has them. A
    parameter can depend on one value of one other there: for those that are active
    under several values, or by another condition, a column of 0 and 1 is the decision.
    """
    Y, space = finite(Y), problem.space
    encoding, kernel = _hierarchical_kernel(space)
    model = SingleTaskGP(X, Y, covar_module=kernel, input_transform=encoding)
    return _suggest(problem, X, Y, model)


def _hierarchical_kernel(
    space: SearchSpace,
) -> tuple[Encoding, HierarchicalConditionalKernel]:
    """The columns of a space for BoTorch's kernel, and the kernel over them."""
    plain, others = _edges(space)
    decisions = frozenset(space.tree.decision_columns)
    told = [children[0] for children in others]
    encoding = Encoding(space, inactive="kept", whole=decisions, told=told)
    columns: dict[int, list[int]] = {}
    for j, c in enumerate(encoding.source):
        columns.setdefault(c, []).append(j)
    dependencies: dict[int, dict[float, list[int]]] = {}
    for parent, value, child in plain:
        point = space.fill.clone()
        point[parent] = value
        scaled = encoding.scale(point)[parent].item()
        below = dependencies.setdefault(columns[parent][0], {})
        below.setdefault(scaled, []).extend(columns[child])
    for j, children in enumerate(others, len(encoding.source)):
        dependencies[j] = {1.0: [k for c in children for k in columns[c]]}
    dim = len(encoding.source) + len(told)
    return encoding, HierarchicalConditionalKernel(dim, dependencies)


def _edges(
    space: SearchSpace,
) -> tuple[list[tuple[int, float, int]], list[list[int]]]:
    """Who depends on what.

    Returns:
        Parents, values and children where a column depends on one value of the deepest
        of its conditions (a conjunction is one of a parent and of what the parent
        itself depends on); and all other columns with conditions, those with the same
        condition together.
    """
    conditions = space.tree.conditions
    plain: list[tuple[int, float, int]] = []
    others: dict[Any, list[int]] = {}
    for child, condition in conditions.items():
        parts: Any = condition.parts if isinstance(condition, And) else (condition,)
        implied = {
            part
            for other in parts
            for above in other.columns()
            if above in conditions
            for part in (conditions[above],)
        }
        parts = [part for part in parts if part not in implied]
        (part, *more) = parts
        values = part.values if isinstance(part, In) else ()
        if isinstance(part, Equals):
            values = (part.value,)
        if more or len(values) != 1:
            others.setdefault(condition, []).append(child)
        else:
            plain.append((part.col, float(values[0]), child))
    return plain, list(others.values())
