import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
)
from botorch.models import SingleTaskGP
from numpy.typing import NDArray
from search_problems import make_problem
from torch import Tensor

from botorch_structured.optim.boxes import Boxes, whole_box
from botorch_structured.optim.climb import Evaluator, maximize_in_unit_box
from botorch_structured.optim.problem import KnownPoints
from botorch_structured.optim.walk import refine
from botorch_structured.spaces import ParameterTree

Array = NDArray[Any]


def whole(tree: ParameterTree, bounds: Tensor, **kwargs: object) -> Boxes:
    return whole_box(make_problem(bounds, tree, **kwargs))


def refined(acqf: AcquisitionFunction, box: Boxes, X: Tensor) -> tuple[Tensor, Tensor]:
    """Local maxima from some starts in one box."""
    evaluator, index = Evaluator(acqf).on(X[:1].numpy()), np.zeros(len(X), dtype=int)
    nothing, x = KnownPoints(box.problem, X[:0].numpy()), X.numpy()
    found = refine(evaluator, x, evaluator.values(x, index), box, index, nothing)
    return tuple(map(torch.from_numpy, found))


def make() -> tuple[LogExpectedImprovement, Tensor]:
    X = torch.rand(9, 2, dtype=torch.double)
    model = SingleTaskGP(X, X.sum(-1, keepdim=True))
    return LogExpectedImprovement(model, X.sum(-1).max()), torch.rand(23, 2).double()


def test_pieces_make_no_difference() -> None:
    acqf, X = make()
    whole, parts = Evaluator(acqf), Evaluator(acqf)
    parts.batch_limit = 5
    x, row = X.numpy(), np.arange(len(X))
    expected = acqf(X.unsqueeze(1)).detach().numpy()
    np.testing.assert_allclose(whole.values(x), expected)
    np.testing.assert_allclose(parts.values(x), expected)
    value, gradient = parts.value_and_gradient(x, row)
    leaf = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(acqf(leaf.unsqueeze(1)).sum(), leaf)
    np.testing.assert_allclose(value, expected)
    np.testing.assert_allclose(gradient, slope.numpy())
    assert parts.values(x[:0]).shape == (0,)


def test_nan_is_worst(peak) -> None:
    class Broken(peak):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, X: Tensor) -> Tensor:
            return X[..., 0, 0].sqrt()

    X = np.array([[-1.0], [4.0]])
    assert Evaluator(Broken()).values(X).tolist() == [-math.inf, 2.0]
    value, gradient = Evaluator(Broken()).value_and_gradient(X, np.arange(2))
    assert value.tolist() == [-math.inf, 2.0]
    assert gradient.tolist() == [[0.0], [0.25]]


@pytest.mark.parametrize("needs", ["nothing", "a parameter"])
def test_what_does_not_depend_on_a_point_has_no_slope(needs: str) -> None:
    class Flat(AcquisitionFunction):
        def __init__(self) -> None:
            super().__init__(model=torch.nn.Module())
            self.level = torch.nn.Parameter(torch.tensor(2.0).double())

        def forward(self, X: Tensor) -> Tensor:
            level = self.level if needs == "a parameter" else self.level.detach()
            return level.expand(len(X))

    X = np.random.default_rng(0).random((3, 2))
    value, gradient = Evaluator(Flat()).value_and_gradient(X, np.arange(3))
    assert value.tolist() == [2.0] * 3 and not gradient.any()


def objective(function: Callable[[Tensor, Tensor], Tensor]) -> tuple[Any, list[int]]:
    """What `maximize_in_unit_box` evaluates, calls counted; -inf is not admissible."""
    calls: list[int] = []

    def evaluate(U: Array, start: Array) -> tuple[Array, Array, Array]:
        calls.append(len(U))
        leaf = torch.from_numpy(U).requires_grad_()
        value = function(leaf, torch.from_numpy(start))
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        admissible = (value > -math.inf).numpy()
        return value.detach().numpy(), gradient.nan_to_num(0.0).numpy(), admissible

    return evaluate, calls


def test_starts_in_one_box_do_not_all_climb_to_its_maximum() -> None:
    """Two starts that lead to one maximum: the worse one ends, in the same box only."""

    def f(U: Tensor, start: Tensor) -> Tensor:
        return -((U - 0.4).square() + (U - 0.4) ** 4).sum(-1)

    rows = {}
    for name, box in {"same": [0, 0, 0], "others": [0, 1, 2]}.items():
        evaluate, calls = objective(f)
        U0 = np.array([[0.5, 0.5], [0.9, 0.8], [0.0, 0.2]])
        maximize_in_unit_box(
            evaluate, U0, np.ones((3, 2), dtype=bool), np.array(box), 1
        )
        rows[name] = sum(calls)
    assert rows["same"] < rows["others"]


def test_columns_at_bounds_do_not_slow_a_climb() -> None:
    """A narrow valley along a bound: the others are climbed as if it were not there."""
    H = torch.tensor([[1.0, 0.9, 0.5], [0.9, 1.0, 0.6], [0.5, 0.6, 1.0]]).double()
    centre = torch.tensor([-0.5, 0.2, 0.3]).double()
    evaluate, calls = objective(
        lambda U, start: -torch.einsum("ni,ij,nj->n", U - centre, H, U - centre)
    )
    U, _ = maximize_in_unit_box(
        evaluate, np.array([[0.6, 0.9, 0.8]]), np.ones((1, 3), dtype=bool)
    )
    assert U[0, 0] == 0.0 and len(calls) < 8
    _, slope, _ = evaluate(U, np.arange(1))
    inside = (U > 0.0) & (U < 1.0)
    assert (np.abs(slope[inside]) < 1e-5).all()


class Linear(AcquisitionFunction):
    """The sum of the columns."""

    def __init__(self) -> None:
        super().__init__(model=torch.nn.Module())

    def forward(self, X: Tensor) -> Tensor:
        return X.sum((-1, -2))


def test_a_border_is_walked_along() -> None:
    """To the corner of a box within the bounds that no gradient points to."""
    bounds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 5.0]]).double()

    def feasible(X: Tensor) -> Tensor:
        return (X[:, 0] < 0.7) & (X[:, 1] < 1.2)

    box = whole(ParameterTree(3), bounds, feasible=feasible)
    X = torch.tensor([[0.1, 0.3, 1.0], [0.6, 1.1, 4.0]]).double()
    found, value = refined(Linear(), box, X)
    assert feasible(found).all() and torch.equal(value, found.sum(-1))
    expected = torch.tensor([[0.7, 1.2, 5.0]]).double().expand(2, 3)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=3e-4)
    assert (found[:, 2] == 5.0).all()


def test_a_climb_ends_at_the_very_bounds() -> None:
    """Widths are rounded: -0.5 + (0.9 + 0.5) < 0.9, and 3.4 - (3.4 + 0.7) > -0.7."""
    bounds = torch.tensor([[-0.5, -0.7], [0.9, 3.4]], dtype=torch.double)
    box = whole(ParameterTree(2), bounds)

    class Down(Linear):
        def forward(self, X: Tensor) -> Tensor:
            return X[:, 0, 0] - X[:, 0, 1]

    found, _ = refined(Down(), box, bounds.mean(0, keepdim=True))
    assert found.tolist() == [[0.9, -0.7]]


@pytest.mark.parametrize("seed", [4, 11, 14])
def test_a_climb_comes_back_behind_a_constraint(seed: int) -> None:
    """Rounding leaves the maximum on it outside as often as inside."""
    weights = (
        0.2 + torch.rand(3, generator=torch.Generator().manual_seed(seed)).double()
    )
    limit = 0.35 * float(weights.sum())
    bounds = torch.tensor([[-1.0] * 3, [1.0] * 3]).double()
    given = [(torch.arange(3), -weights, -limit)]
    box = whole(ParameterTree(3), bounds, inequality_constraints=given)

    class Bowl(Linear):
        def forward(self, X: Tensor) -> Tensor:
            return -(X - 1.0).square().sum((-1, -2))

    found, _ = refined(Bowl(), box, bounds.mean(0, keepdim=True))
    assert found[0] @ weights <= limit
    nearest = 1.0 - weights * (weights.sum() - limit) / weights.square().sum()
    torch.testing.assert_close(found[0], nearest, rtol=0.0, atol=1e-5)
