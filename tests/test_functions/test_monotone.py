"""Problems that are sums of parts which bend one way each."""

from __future__ import annotations

import copy
import gzip
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from botorch.utils.testing import (
    BaseTestProblemTestCaseMixIn,
    BotorchTestCase,
    SyntheticTestFunctionTestCaseMixin,
)
from sklearn.metrics import log_loss
from torch import Tensor

from botorch_structured.test_functions.digits_network import DigitsNetwork
from botorch_structured.test_functions.monotone_mixture import MonotoneMixture1D
from botorch_structured.test_functions.monotone_tuning import (
    ElasticNetTuning,
    ForestTuning,
    NetworkTuning,
    read_adult,
)


def small_forest(**arguments: Any) -> ForestTuning:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 6))
    noise = 0.5 * rng.standard_normal(300)
    labels = (features[:, 0] + features[:, 1] * features[:, 2] + noise) > 0
    return ForestTuning(features, labels, **arguments)


PROBLEMS: list[Any] = [MonotoneMixture1D, ElasticNetTuning, small_forest, NetworkTuning]
CHEAP = PROBLEMS[:3]


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

    def test_optimum(self) -> None:
        problem = MonotoneMixture1D()
        X = problem.optimizers.clone().requires_grad_(True)
        value = problem(X)
        assert value.item() == pytest.approx(problem.optimal_value, abs=1e-14)
        (gradient,) = torch.autograd.grad(value.sum(), X)
        assert gradient.abs().max() < 1e-9
        grid = torch.linspace(0, 1, 100_001, dtype=torch.double).unsqueeze(-1)
        assert problem(grid).min() >= problem.optimal_value
        assert MonotoneMixture1D(negate=True).optimal_value == -problem.optimal_value

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
            training, _ = problem._train((alpha, log2))
            strength = 2.0**log2
            beta = minimise_elastic_net(X, y, strength, alpha)
            expected = 0.5 * np.mean((y - X @ beta) ** 2)
            assert training == pytest.approx(expected, abs=1e-6)

    @pytest.mark.filterwarnings("error")
    def test_hardly_any_l1_penalty(self) -> None:
        """Where coordinate descent does not converge, and right above."""
        problem = ElasticNetTuning(seed=0)
        for log2 in (-10.0, 0.0):
            X = torch.tensor([[a, log2] for a in (0.0, 1e-12, 1e-7)]).double()
            parts = problem.components(X)
            assert torch.equal(parts[0], parts[1])
            assert (parts[2] - parts[0]).abs().max() < 1e-6

    def test_data_are_those_of_the_paper(self) -> None:
        data = ElasticNetTuning(seed=1)._data
        assert [X.shape for X, _ in data] == [(200, 100), (200, 100)]
        # two halves of one linear model with unit noise: both fit the same coefficients
        X, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
        beta, residual, *_ = np.linalg.lstsq(X, y, rcond=None)
        assert math.sqrt(residual[0] / 300) == pytest.approx(1.0, abs=0.15)
        assert beta.std() == pytest.approx(0.22 / math.sqrt(2), abs=0.05)

    @pytest.mark.parametrize("negate", [False, True])
    def test_parts_bend_one_way(self, negate: bool) -> None:
        problem = ElasticNetTuning(seed=0, negate=negate)
        at = problem.starts(7, 5)
        for i, signs in enumerate(problem.monotone):
            for column, sign in signs.items():
                change = sign * steps(problem, i, column, at)
                assert change.min() > -1e-3
                assert change.max() > 1e-2

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


class TestForest:
    def test_capacity(self) -> None:
        problem = small_forest()
        grown, stump = problem.components(
            torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).double()
        )
        assert grown[0] < 0.05 < stump[0]  # all splits fit the training rows
        assert grown[1] > stump[1]
        everyone = small_forest()(torch.tensor([[1.0, 1.0, 0.0]]).double())
        labels = problem._data[1][1]  # a leaf as large as the data: one class for all
        rates = (labels.mean(), 1 - labels.mean())
        assert min(abs(everyone.item() - rate) for rate in rates) < 1e-12

    def test_split(self) -> None:
        problem = small_forest(seed=4)
        assert [len(y) for _, y in problem._data] == [210, 90]
        x = torch.tensor([[0.5, 0.2, 0.5]]).double()
        assert not torch.equal(problem(x), small_forest(seed=5)(x))

    def test_adult(self, tmp_path: Path) -> None:
        rows = (
            "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
            "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K\n"
            "50, ?, 83311, Bachelors, 13, Married, Exec, Husband, White, Male, "
            "0, 0, 13, Cuba, >50K\n\n"
        )
        plain, packed = tmp_path / "adult.data", tmp_path / "adult.csv.gz"
        plain.write_text(rows)
        with gzip.open(packed, "wt") as file:
            file.write(rows)
        for path in (plain, packed):
            features, labels = read_adult(path)
            assert features.shape == (2, 14)
            assert labels.tolist() == [False, True]
            assert features[:, 0].tolist() == [39.0, 50.0]
            assert features[:, 1].tolist() == [1.0, 0.0]  # "?" comes first
            assert features[:, 13].tolist() == [1.0, 0.0]
        plain.write_text("1, 2, 3\n")
        with pytest.raises(ValueError, match="14 features and a label"):
            read_adult(plain)


class TestNetwork:
    def test_learns_and_penalties_keep_it_from_it(self) -> None:
        problem = NetworkTuning()
        X = torch.tensor([[0.0, 0.0, 8.0], [1.0, 0.0, 8.0], [0.0, 1.0, 8.0]]).double()
        parts = problem.components(X)
        assert parts[0, 0] < 0.2
        assert parts[0].sum() < 1.0
        chance = math.log(10.0)
        assert (parts[1:, 0] > 0.6 * chance).all()
        assert parts[0, 1] > parts[1:, 1].max()  # the gap is largest without them
        # a width between two is rounded
        again = problem.components(X[:1] + torch.tensor([0.0, 0.0, 0.3]).double())
        assert torch.equal(again, parts[:1])

    def test_split_and_state(self) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        state = torch.get_rng_state()
        network = DigitsNetwork(images, labels, seed=1)
        with torch.no_grad():  # as benchmarks may call it
            first = network.cross_entropies(1e-4, 1e-4, 4)
        assert network.cross_entropies(1e-4, 1e-4, 4) == first
        assert torch.equal(state, torch.get_rng_state())
        other = DigitsNetwork(images, labels, seed=2).cross_entropies(1e-4, 1e-4, 4)
        assert other != first
        # no information: the cross-entropy of what guesses at random
        assert network.cross_entropies(1.0, 1.0, 4)[1] == pytest.approx(
            log_loss(labels, np.full((len(labels), 10), 0.1)), abs=0.1
        )


@pytest.mark.parametrize("make", CHEAP)
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


@pytest.mark.parametrize("make", PROBLEMS)
def test_what_the_harness_needs(make: Any) -> None:
    problem = make()
    X = problem.starts(3)
    assert X.shape == (4, problem.dim)
    assert torch.equal(X, problem.starts(3))
    assert not torch.equal(X, problem.starts(4))
    assert problem.space.feasible(X).all()
    assert torch.equal(problem.starts(3, 2), X[:2])
    state = torch.get_rng_state()
    problem.starts(0), problem.space.sample(1, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(problem.space.bounds, problem.bounds)
    assert len(set(problem.space.names)) == problem.dim
    if make in CHEAP:
        value = problem(X)
        for same in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
            assert torch.equal(same(X), value)
        assert torch.equal(make()(X), value)


def test_noise() -> None:
    problem = MonotoneMixture1D(noise_std=0.5)
    X = problem.starts(0, 1).expand(4000, -1)
    noise = problem(X) - problem(X, noise=False)
    assert noise.std() == pytest.approx(0.5, rel=0.05)


def test_wrong_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="seed: expected an integer from 0 on, got -1"):
        ElasticNetTuning(seed=-1)
    for make in CHEAP:
        with pytest.raises(ValueError, match="negate: expected True or False, got 3"):
            make(negate=3)
    with pytest.raises(ValueError, match="n at least 10"):
        ForestTuning(np.zeros((5, 2)), np.zeros(5))
    with pytest.raises(ValueError, match="n labels"):
        ForestTuning(np.zeros((20, 2)), np.zeros(19))
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ImportError, match=r"botorch-structured\[demo\]"):
        ElasticNetTuning()


class TestAsBoTorchTestsItsOwn(
    BotorchTestCase, BaseTestProblemTestCaseMixIn, SyntheticTestFunctionTestCaseMixin
):
    functions = [
        MonotoneMixture1D(),
        MonotoneMixture1D(noise_std=0.1, negate=True),
    ]
