"""What searches are made of: problems, and views of acquisition functions."""

from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.optim.problem import Problem
from botorch_structured.optim.view import view_on
from botorch_structured.spaces import ParameterTree


class Nothing(AcquisitionFunction):
    """A function that is never evaluated."""

    def __init__(self) -> None:
        super().__init__(model=torch.nn.Module())

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Function(AcquisitionFunction):
    """Any function of ``n x d`` points; keeps the points."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model=torch.nn.Module())
        self.function = function
        self.seen: list[Tensor] = []

    def forward(self, X: Tensor) -> Tensor:
        assert X.dim() == 3 and X.shape[1] == 1
        self.seen.append(X.detach().squeeze(-2))
        return self.function(X.squeeze(-2))


def data(tree: ParameterTree, n: int = 16) -> tuple[Tensor, Tensor]:
    """Of the fixture ``small``: as many points on each of its three paths."""
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(n, tree.dim, generator=generator, dtype=torch.double)
    X[:, 0] = torch.arange(n) % 3
    X = tree.impute(X)
    return X, -((X - 0.4) ** 2).sum(-1, keepdim=True)


def make_problem(
    bounds: Any = None,
    tree: Any = None,
    integer_features: Any = None,
    categorical_features: Any = None,
    fill: Any = None,
    space: Any = None,
    acq_function: Any = None,
    **kwargs: Any,
) -> Problem:
    """The problem of an optimiser with these arguments."""
    if acq_function is None:
        kwargs.setdefault("X_start", torch.zeros(0, (tree or space.tree).dim))
    return Problem(
        [acq_function or Nothing()],
        bounds,
        tree,
        integer_features,
        categorical_features,
        fill,
        space,
        **kwargs,
    )


def in_view(function: Any, X: Tensor, gradient: bool) -> Any:
    """Values and gradients (or None) of what a search evaluates; None without a view.

    Of points that share paths, in an order of their own.
    """
    keys = X[:, :1].round()  # decisions stand first
    rows, row = keys.unique(dim=0, return_inverse=True)
    first = torch.stack([X[row == k][0] for k in range(len(rows))])
    view = view_on(function, first)
    if view is None:
        return None
    parts = view(X.detach().numpy(), row.numpy(), gradient)
    return tuple(part if part is None else torch.from_numpy(part) for part in parts)
