"""Fits of treed GPs on arrays: what they reach, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given
from hypothesis import strategies as st
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray

from botorch_structured.linalg.correlations import RBF
from botorch_structured.models.treed import maximum, objective
from botorch_structured.models.treed.maximum import LeafProblem, maximise
from botorch_structured.models.treed.objective import (
    LeafDensity,
    LeafTerm,
    NodeDensities,
)
from botorch_structured.models.treed.treed_gp import TreedGP
from botorch_structured.test_functions import RKHS1D
from tests.treed_models import PUBLISHED, step_data

Array = NDArray[np.float64]
seeds = st.integers(0, 10_000)


pytestmark = pytest.mark.usefixtures("double")


class Bowl:
    """-1/2 sum (x - top)' A (x - top) - sum log cosh(x - top), a leaf each."""

    def __init__(self, seed: int, p: int) -> None:
        rng = np.random.default_rng(seed)
        root = rng.standard_normal((p, p))
        self.A, self.top = root @ root.T, rng.standard_normal(p)

    def __call__(self, x: Array) -> tuple[float, Array]:
        z = x - self.top
        value = -0.5 * z @ self.A @ z - np.logaddexp(z, -z).sum()
        return float(value), -self.A @ z - np.tanh(z)


@given(seeds, st.booleans(), st.booleans())
def test_the_maximum_is_found_between_bounds(
    seed: int, shared: bool, held: bool
) -> None:
    """Where nothing leads up: of what is free, and of sums over leaves if shared."""
    rng = np.random.default_rng(seed)
    L, p = 1 + seed % 4, 2 + seed % 3
    bowls: Any = [Bowl(seed + j, p) for j in range(L)]
    lower = np.full(p, rng.uniform(-1.0, 0.7))
    upper = lower + 1.2
    free = np.ones((L, p), dtype=bool)
    free[:, 0] = not held
    start = np.tile(rng.uniform(lower, upper), (L, 1))
    curvature = np.tile(np.eye(p), (L, 1, 1))
    where: Any = {"within": (lower, upper), "free": free, "shared": shared}
    found = maximise(bowls, start, curvature, 1e-12, 500, **where)
    theta = found.theta
    assert found.converged
    assert ((theta >= lower) & (theta <= upper)).all()
    assert np.array_equal(theta[~free], start[~free])
    points = [bowl(x) for bowl, x in zip(bowls, theta, strict=True)]
    assert found.values.sum() == pytest.approx(sum(value for value, _ in points))
    slope = np.stack([slope for _, slope in points])
    if shared:
        assert (theta[:, -1] == theta[0, -1]).all()
        slope[:, -1] = slope[:, -1].sum()
    slope[~free] = 0.0
    slope[(theta <= lower) & (slope < 0)] = 0.0
    slope[(theta >= upper) & (slope > 0)] = 0.0
    assert np.abs(slope).max() < 1e-4


def test_a_step_that_leads_down_is_not_made() -> None:
    """With a curvature that is much too small the first steps are too long."""
    bowls: Any = [Bowl(k, 3) for k in range(3)]
    seen: list[float] = []

    def watched(j: int) -> Any:
        def density(x: Array) -> tuple[float, Array]:
            value, slope = bowls[j](100.0 * x)
            seen.append(value)
            return value, 100.0 * slope

        return density

    wide = np.full(3, 10.0)
    found = maximise(
        [watched(j) for j in range(3)],
        np.zeros((3, 3)),
        np.tile(np.eye(3), (3, 1, 1)),
        1e-10,
        500,
        within=(-wide, wide),
        free=np.ones((3, 3), dtype=bool),
        shared=True,
    )
    assert found.values.sum() >= sum(seen[:3])


def test_no_factor_at_the_start_is_an_error() -> None:
    def nowhere(x: Array) -> tuple[float, Array]:
        return -np.inf, np.zeros_like(x)

    with pytest.raises(NotPSDError):
        maximise(
            [nowhere],  # type: ignore[list-item]
            np.zeros((1, 2)),
            np.eye(2)[None],
            1e-6,
            10,
            within=(np.full(2, -1.0), np.ones(2)),
            free=np.ones((1, 2), dtype=bool),
            shared=False,
        )
    problem = published(24, 0)
    problem.densities[0] = nowhere
    with pytest.raises(NotPSDError):
        problem(problem.read())


@pytest.mark.parametrize("n", [30, 300])
def test_blocks_of_rows_change_nothing(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One matrix at once, or rows that stay in the cache; and with no factor jitter."""
    rng = np.random.default_rng(0)
    term = LeafTerm(
        rng.random((n, 2)),
        rng.standard_normal(n),
        None,
        (0, 1),
        (n // 3, n),
        np.array([1.0, 0.3]),
        None,
    )
    density = LeafDensity([term], RBF, np.zeros(5), np.ones(5), {})
    theta = np.array([-1.0, -0.5, 0.2, 0.1, -3.0])
    expected = density(theta)
    monkeypatch.setattr(objective, "_BLOCK", 16)
    found = density(theta)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-9)
    # smooth and without noise: no factor but with jitter
    theta = np.array([2.0, 2.0, 2.0, 0.0, -60.0])
    assert np.isfinite(density(theta)[0])


def published(n: int, seed: int) -> LeafProblem:
    model = TreedGP.as_published(*step_data(n, seed=seed))
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    problem = model._leaf_problem(mll)
    assert problem is not None
    return problem


def test_few_nodes_sum_to_the_densities_of_leaves() -> None:
    """With the Fisher information; many and large nodes are represented by some."""
    problem = published(24, 0)
    theta = problem.theta()
    theta[:, -1] = -2.0
    nodes = NodeDensities(problem.densities)
    values, slopes, bends = nodes.sums(theta)
    for j, density in enumerate(problem.densities):
        value, slope = density(theta[j])
        prior, by_prior = density.prior(theta[j])
        assert values[j] + prior == pytest.approx(value)
        np.testing.assert_allclose(slopes[j] + by_prior, slope, rtol=1e-7, atol=1e-7)
        bends[j] += np.diag(density.precision)
    assert (np.linalg.eigvalsh(bends) > 0.0).all()
    summed = nodes.together(theta[0], *problem._within)
    assert summed is not None
    np.testing.assert_allclose(summed.information, bends.sum(0), rtol=1e-9, atol=1e-9)
    parts = [density(at) for density, at in zip(problem.densities, theta, strict=True)]
    assert summed.value == pytest.approx(sum(value for value, _ in parts))
    slope = sum(slope for _, slope in parts)
    np.testing.assert_allclose(summed.gradient, slope, rtol=1e-7, atol=1e-7)
    # the largest nodes only
    large, *_ = nodes.sums(theta, 10)
    small = [density.of_small_nodes(10) for density in problem.densities]
    for j, density in enumerate(small):
        assert large[j] + density(theta[j])[0] == pytest.approx(parts[j][0])


def test_a_fit_survives_many_damped_updates() -> None:
    """Steps of the noise that all leaves share go against what some of them ask for."""
    X = torch.rand(150, 4, generator=torch.Generator().manual_seed(6053))
    step = 3.0 * ((X[:, 1] > 0.5) & (X[:, 2] < 0.7)) * X[:, 3]
    Y = (5.0 * ((5.0 * X).sin().sum(-1) + step)).round().unsqueeze(-1)
    model = TreedGP.as_published(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(X).mean.isfinite().all()


@pytest.mark.parametrize("unit", [30.0, 1e4])
def test_outcomes_that_are_not_standardised(unit: float) -> None:
    """Their noise may be beyond the bounds: the fit begins at these."""
    X = torch.rand(60, 2, generator=torch.Generator().manual_seed(1))
    Y = unit * torch.randn(60, 1, generator=torch.Generator().manual_seed(2))
    with pytest.warns(InputDataWarning):
        model = TreedGP.as_published(X, Y, outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(X).mean.isfinite().all()


def test_parabolas_of_large_nodes_lead_to_the_same_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the rounds are too few."""
    tolerance, n = 1e-3, 140
    found = {}
    for name, few, rounds in (
        ("all nodes", n, maximum._ROUNDS),
        ("parabolas", 100, maximum._ROUNDS),
        ("too few rounds", 100, maximum._ROUNDS[:3]),
    ):
        monkeypatch.setattr(maximum, "_FEW_ROWS", few)
        monkeypatch.setattr(maximum, "_ROUNDS", rounds)
        problem = published(n, 0)
        found[name] = problem.maximum(tolerance, 100)
        at = zip(problem.densities, found[name].theta, strict=True)
        values = [density(theta)[0] for density, theta in at]
        assert found[name].values == pytest.approx(values, abs=2.0 * tolerance)
        assert found[name].converged
    best = max(float(at.values.sum()) for at in found.values())
    for at in found.values():
        assert best - float(at.values.sum()) < 0.02  # nats


def test_parabolas_that_lead_to_no_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit goes on from its start."""
    monkeypatch.setattr(maximum, "_FEW_ROWS", 100)
    expected = published(140, 0).maximum(1e-3, 100).values.sum()
    problem, bad = published(140, 0), list[Array]()
    original, whole = LeafDensity.__call__, problem.densities[0]

    def fails_there(self: LeafDensity, theta: Array) -> tuple[float, Array]:
        bad.extend([] if bad or self is not whole else [theta.copy()])
        value, slope = original(self, theta)
        return (-np.inf if bad and np.array_equal(theta, bad[0]) else value), slope

    monkeypatch.setattr(LeafDensity, "__call__", fails_there)
    assert problem.maximum(1e-3, 100).values.sum() == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("kwargs", [{}, PUBLISHED])
def test_the_optimum_is_that_of_l_bfgs_b_or_better(kwargs: dict[str, Any]) -> None:
    """From the same start, on the general path: options of the caller choose it."""
    gains = []
    for seed in range(6):
        values = []
        for options in (None, {"options": {"maxiter": 500, "maxcor": 30}}):
            model = TreedGP(*step_data(40, seed=seed), **kwargs)
            mll = ExactMarginalLogLikelihood(model.likelihood, model)
            fit_gpytorch_mll(mll, optimizer_kwargs=options)
            with torch.no_grad():
                loss = model.compute_custom_loss(mll.train())
            values.append(-40.0 * float(loss))
        gains.append(values[0] - values[1])
    # in nats; there may be several optima, and either may find a better one
    assert np.median(gains) > -1e-2
    assert sum(gain < -0.05 for gain in gains) <= 1


@pytest.mark.parametrize(("n", "seed"), [(200, 0), (50, 3)])
def test_a_fit_ends_at_an_optimum(n: int, seed: int) -> None:
    """Of data without noise, whose optimum is at bounds and steep next to them."""
    X = torch.rand(n, 1, generator=torch.Generator().manual_seed(seed))
    model = TreedGP(X, RKHS1D(negate=True)(X).unsqueeze(-1))
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    values = []
    # the general path begins where the first fit ended
    for options in (None, {"options": {"maxiter": 500, "maxcor": 30}}):
        fit_gpytorch_mll(mll, optimizer_kwargs=options)
        with torch.no_grad():
            values.append(-n * float(model.compute_custom_loss(mll.train())))
    assert model.partition.num_leaves > 1
    assert values[1] - values[0] < 0.05  # nats


@pytest.mark.parametrize("kwargs", [{}, PUBLISHED])
def test_a_fit_in_single_precision(kwargs: dict[str, Any]) -> None:
    """It goes by torch, and ends about as high as that in double precision."""
    values = []
    for dtype in (torch.float32, torch.float64):
        model = TreedGP(*step_data(24), **kwargs).to(dtype)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll)
        assert model.posterior(step_data(5)[0].to(dtype)).mean.isfinite().all()
        with torch.no_grad():
            values.append(-24 * float(model.double().compute_custom_loss(mll.train())))
    assert values[0] > values[1] - 1.0  # nats
