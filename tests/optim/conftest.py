from collections.abc import Callable

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.spaces import ParameterTree


class Peak(AcquisitionFunction):
    """``bonus(x) - sum of (x_j - peak_j)^2`` over the active columns but decisions."""

    def __init__(
        self,
        tree: ParameterTree,
        peak: Tensor,
        bonus: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(model=torch.nn.Module())
        self.tree, self.peak, self.bonus = tree, peak, bonus
        self.listed = [
            c for c in tree.decision_columns if c not in tree.numeric_decisions
        ]
        self.calls = 0

    def forward(self, X: Tensor) -> Tensor:
        self.calls += 1
        X = X.squeeze(-2)
        weight = self.tree.active_mask(X).to(X)
        weight[..., self.listed] = 0.0
        value = -(weight * (X - self.peak.to(X)) ** 2).sum(-1)
        return value if self.bonus is None else value + self.bonus(X)


@pytest.fixture
def peak() -> type[Peak]:
    """An acquisition function with a known maximum on every path."""
    return Peak


@pytest.fixture
def learners() -> tuple[ParameterTree, Tensor]:
    """Four paths: own, shared, integer and categorical columns, and none at all.

    ::

        0: decision   1: own of 0      2: shared by 0, 1    3: integer, own of 1
        4: categorical, own of 2       5: own of 2          value 3 has no columns
    """
    tree = ParameterTree(6, {0: {0: [1, 2], 1: [2, 3], 2: [4, 5], 3: []}})
    bounds = torch.tensor(
        [[0.0, -1.0, 0.0, 1.0, 0.0, 0.0], [3.0, 1.0, 1.0, 200.0, 4.0, 1.0]],
        dtype=torch.double,
    )
    return tree, bounds


@pytest.fixture
def small() -> tuple[ParameterTree, Tensor]:
    """Three paths of a decision; column 3 is shared by two of them."""
    tree = ParameterTree(5, {0: {0: [1, 3], 1: [2, 3], 2: [4]}}, values={0: [0, 1, 2]})
    bounds = torch.zeros(2, 5, dtype=torch.double)
    bounds[1] = torch.tensor([2.0, 1, 1, 1, 1])
    return tree, bounds
