from __future__ import annotations

import math

import pytest
import torch
from botorch.test_functions.synthetic import SyntheticTestFunction

from botorch_structured.test_functions import RKHS1D, GramacyExponential2D

PROBLEMS = [RKHS1D, GramacyExponential2D]


def rkhs(x: float) -> float:
    """The definition, term by term."""
    s, a = [0.1, 0.15, 0.08, 0.3, 0.4], [4, -1, 2, -2, 1]
    t = "0.8 .85 .9 .95 .92 .74 .91 .89 .79 .88 .86 .96 .99 .82"
    b = [3, 4, 2, 1, -1, 2, 2, 3, 3, 2, -1, -2, 4, -3]
    value = 0.0
    for centre, weight in zip(s, a, strict=True):
        value += weight * math.exp(-((x - centre) ** 2) / (2 * 0.1**2))
    for centre, weight in zip(map(float, t.split()), b, strict=True):
        value += weight * math.exp(-((x - centre) ** 2) / (2 * 0.01**2))
    return value


def test_rkhs_is_its_definition() -> None:
    X = torch.linspace(0, 1, 301, dtype=torch.double).unsqueeze(-1)
    expected = torch.tensor([rkhs(x) for x in X.squeeze(-1).tolist()])
    torch.testing.assert_close(RKHS1D(negate=True)(X), expected.double())
    torch.testing.assert_close(RKHS1D()(X), -expected.double())


def test_rkhs_has_the_values_and_optima_recorded_elsewhere() -> None:
    """From a dense scan of the authors' function, and their README."""
    f = RKHS1D(negate=True)
    X = torch.tensor([0.0, 0.5, 1.0], dtype=torch.double).unsqueeze(-1)
    recorded = torch.tensor([3.531886, 0.335309, 2.425455], dtype=torch.double)
    torch.testing.assert_close(f(X), recorded, atol=1e-6, rtol=0.0)
    assert f.optimal_value == pytest.approx(5.73839, abs=1e-5)
    assert f.optimizers.item() == pytest.approx(0.89235, abs=2e-5)
    grid = torch.linspace(0, 1, 100_001, dtype=torch.double)
    y = f(grid.unsqueeze(-1))
    peak = (y[1:-1] > y[:-2]) & (y[1:-1] > y[2:])
    at = grid[1:-1][peak].tolist()
    assert at == pytest.approx(
        [0.0777, 0.4927, 0.7400, 0.7943, 0.8490, 0.89236, 0.9422, 0.9902], abs=1e-4
    )
    assert y[1:-1][peak].tolist() == pytest.approx(
        [4.9678, 0.3377, 2.0030, 5.1753, 3.4064, 5.738394, 0.2539, 3.9786], abs=1e-4
    )


def test_gramacy_is_its_definition() -> None:
    problem = GramacyExponential2D()
    assert problem.bounds.tolist() == [[-2.0, -2.0], [6.0, 6.0]]
    X = problem.space.sample(50, seed=0)
    expected = [a * math.exp(-(a**2) - b**2) for a, b in X.tolist()]
    torch.testing.assert_close(problem(X), torch.tensor(expected).double())
    assert problem.optimal_value == pytest.approx(-0.428882, abs=1e-6)
    mirrored = -problem.optimizers
    assert GramacyExponential2D(negate=True)(mirrored) == pytest.approx(-0.428882, 1e-6)


@pytest.mark.parametrize("make", PROBLEMS)
def test_the_optimum_is_one(make: type) -> None:
    problem = make()
    assert isinstance(problem, SyntheticTestFunction)
    X = problem.optimizers.clone().requires_grad_(True)
    value = problem(X)
    assert value.item() == pytest.approx(problem.optimal_value, abs=1e-14)
    (gradient,) = torch.autograd.grad(value.sum(), X)
    assert gradient.abs().max() < 1e-9
    X = problem.space.sample(20_000, seed=0)
    assert problem(X).min() >= problem.optimal_value
    assert make(negate=True).optimal_value == -problem.optimal_value
