"""Problems that are sums of parts which bend one way each."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from botorch_structured.test_functions import ElasticNetTuning, MonotoneMixture1D

pytest.importorskip("sklearn")
PROBLEMS: list[Any] = [MonotoneMixture1D, ElasticNetTuning]


def steps(problem: Any, component: int, column: int, at: Tensor) -> Tensor:
    """Changes of a component along a column, from points elsewhere like ``at``."""
    low, high = problem.bounds
    line = at.unsqueeze(-2).repeat(1, 7, 1)
    line[..., column] = torch.linspace(low[column].item(), high[column].item(), 7)
    return problem.components(line)[..., component].diff(dim=-1)


class TestMixture:
    def test_is_its_definition(self) -> None:
        centres, width = (0.5351, 0.3412, 0.3061, 0.3325), 0.05

        def phi(y: float) -> float:
            return math.exp(-(y**2) / (2 * width**2)) / (width * math.sqrt(2 * math.pi))

        problem = MonotoneMixture1D(negate=True)
        for x in (0.0, 0.2, 0.3269, 0.34, 0.41, 0.5351, 1.0):
            f = 1 + sum(phi(x - c) for c in centres) / (4 * phi(0))
            f1 = sum(phi(max(x - c, 0)) for c in centres) / (4 * phi(0))
            f2 = sum(phi(min(x - c, 0)) for c in centres) / (4 * phi(0))
            X = torch.tensor([[x]], dtype=torch.double)
            assert problem(X).item() == pytest.approx(f, abs=1e-14)
            parts = problem.components(X)[0].tolist()
            assert parts == pytest.approx([f1, f2], abs=1e-14)
            assert MonotoneMixture1D()(X).item() == pytest.approx(-f, abs=1e-14)

    @pytest.mark.parametrize("negate", [False, True])
    def test_its_parts_are_monotone(self, negate: bool) -> None:
        problem = MonotoneMixture1D(negate=negate)
        grid = torch.linspace(0, 1, 2001, dtype=torch.double).unsqueeze(-1)
        parts = problem.components(grid)
        for i, signs in enumerate(problem.monotone):
            change = signs[0] * parts[:, i].diff()
            assert change.min() >= 0
            assert change.max() > 1e-3


class TestElasticNet:
    def test_stationary_where_it_says_it_is(self) -> None:
        """Subgradients of the loss of section 4.1 vanish at the fitted coefficients."""
        problem = ElasticNetTuning(seed=3)
        (X, y), _ = problem._data
        for alpha, log2 in ((0.3, -4.0), (1.0, -3.0), (0.0, -2.0)):
            training, _ = problem._train(alpha, log2)
            strength = 2.0**log2
            beta = minimise_elastic_net(X, y, strength, alpha)
            expected = 0.5 * np.mean((y - X @ beta) ** 2)
            assert training == pytest.approx(expected, abs=1e-6)

    def test_rank(self) -> None:
        problem = ElasticNetTuning(seed=2)
        values = problem(problem.starts(2, 100))
        ranks = problem.rank(values)
        assert sorted(ranks.tolist()) == list(range(1, 101))
        assert ranks[values.argmin()] == 1
        assert problem.rank(values.max() + 1.0) == 101
        assert problem.rank(values.min() - 1.0) == 1
        opposite = ElasticNetTuning(seed=2, negate=True)
        assert torch.equal(opposite.rank(-values), ranks)


def minimise_elastic_net(
    X: np.ndarray, y: np.ndarray, strength: float, alpha: float
) -> np.ndarray:
    """Proximal gradient steps on l(beta) as it is printed."""
    n = len(y)
    step = 1 / (np.linalg.norm(X, 2) ** 2 / n + strength)
    beta = np.zeros(X.shape[1])
    for _ in range(3000):
        gradient = X.T @ (X @ beta - y) / n + strength * (1 - alpha) * beta
        moved = beta - step * gradient
        shrunk = np.abs(moved) - step * strength * alpha
        beta = np.sign(moved) * np.maximum(shrunk, 0)
    return beta


@pytest.mark.parametrize("make", PROBLEMS)
@pytest.mark.parametrize("negate", [False, True])
def test_parts_add_up(make: Any, negate: bool) -> None:
    problem = make(negate=negate)
    X = problem.starts(0).reshape(2, 2, -1)
    parts = problem.components(X)
    assert parts.shape == (2, 2, 2)
    torch.testing.assert_close(parts.sum(-1), problem(X), rtol=0.0, atol=1e-15)
    opposite = make(negate=not negate)
    assert torch.equal(opposite.components(X), -parts)
    for signs, mirrored in zip(problem.monotone, opposite.monotone, strict=True):
        assert signs == {column: -sign for column, sign in mirrored.items()}
        assert set(signs) == set(range(problem.dim))


def test_wrong_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="seed: expected an integer from 0 on, got -1"):
        ElasticNetTuning(seed=-1)
    for make in PROBLEMS:
        with pytest.raises(ValueError, match="negate: expected True or False, got 3"):
            make(negate=3)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ImportError, match=r"botorch-structured\[demo\]"):
        ElasticNetTuning()
