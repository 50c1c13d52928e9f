"""Log densities of nodes between points where they are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from botorch_structured.linalg.correlations import CORRELATIONS, MATERN52, Correlation
from botorch_structured.models.treed.landscape import Landscape, Landscapes, place
from botorch_structured.models.treed.leaf_density import LeafDensity, LeafTerm

Array = NDArray[np.float64]


def node(d: int, known: bool, correlation: Correlation, n: int = 40) -> tuple[Any, Any]:
    """Interpolated, and by the plain definition."""
    rng = np.random.default_rng(0)
    X = rng.random((n, d))
    y = np.sin(5.0 * X[:, 0]) + 0.1 * rng.standard_normal(n)
    noise = 0.01 + 0.02 * rng.random(n) if known else None
    term = LeafTerm(X, y, noise, (n,), np.ones(1), None, (0,))
    nothing = np.zeros(d + 3)
    exact = LeafDensity([term], correlation, nothing, nothing, {})
    return Landscape(X, y, noise, correlation, {}), exact


def around(d: int, count: int, width: float) -> Array:
    rng = np.random.default_rng(1)
    centre = np.array([*[-1.0] * d, 0.3, 0.2, -3.0])
    return centre + width * rng.standard_normal((count, d + 3))


def both(landscape: Any, exact: Any, theta: Array) -> tuple[Array, Array, Array, Array]:
    lands = Landscapes([landscape], np.ones((1, len(theta))))
    values, gradients = lands(np.arange(len(theta)), theta)
    found = [exact(at) for at in theta]
    return (
        values,
        gradients,
        np.array([value for value, _ in found]),
        np.stack([slope for _, slope in found]),
    )


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_values_and_gradients_where_they_are_known(
    d: int, known: bool, correlation: Correlation
) -> None:
    """Whatever the mean is, and the noise with the same signal-to-noise ratio."""
    landscape, exact = node(d, known, correlation)
    theta = around(d, 1, 0.0)
    assert landscape.learn(place(theta, known))
    theta = np.tile(theta, (2, 1))
    theta[1, -2] += 1.0
    if not known:
        theta[1, [-3, -1]] += 0.7
    values, gradients, by_definition, slopes = both(landscape, exact, theta)
    np.testing.assert_allclose(values, by_definition, rtol=1e-8)
    np.testing.assert_allclose(gradients, slopes, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("n", [30, 150])
def test_blocks_of_rows_change_nothing(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    landscape, exact = node(2, False, MATERN52, n)
    theta = around(2, 1, 0.0)
    monkeypatch.setattr("botorch_structured.models.treed.landscape._BLOCK", 16)
    assert landscape.learn(place(theta, False))
    values, gradients, by_definition, slopes = both(landscape, exact, theta)
    np.testing.assert_allclose(values, by_definition, rtol=1e-8)
    np.testing.assert_allclose(gradients, slopes, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("d", [1, 3])
def test_the_variance_is_that_of_the_error(d: int) -> None:
    """Which is small between known points, and less so with fewer of them."""
    theta = around(d, 60, 0.2)
    errors = []
    for count in (6, 25):
        landscape, exact = node(d, False, MATERN52)
        assert landscape.learn(place(theta[:count], False))
        z = place(theta[30:], False)
        _, slopes = landscape.functions(z)
        wrong = []
        for at, slope in zip(z, slopes, strict=True):
            true = landscape._evaluate(at)
            assert true is not None
            wrong.append(slope - true[1])
        error = np.square(wrong)
        said = landscape.variances(z)[..., None] * landscape.scale
        ratio = np.median(error) / np.median(said)
        assert 0.01 < ratio < 20.0
        errors.append(np.median(error))
    assert errors[1] < 0.05 * errors[0]


def test_what_is_learned_is_where_leaves_are_in_doubt() -> None:
    landscape, exact = node(1, False, MATERN52)
    theta = around(1, 30, 0.3)
    lands = Landscapes([landscape], np.ones((1, len(theta))))
    assert lands.begin(theta.mean(0), np.full(4, 0.5))
    assert len(landscape.places) == 3
    curvature = np.tile(np.eye(4), (len(theta), 1, 1))
    counts = []
    for _ in range(8):
        count = lands.learn(theta, curvature, 1e-4)
        assert count is not None
        counts.append(count)
    # far fewer than leaves, and none in the end
    assert counts[-1] == 0
    assert sum(counts) < len(theta)
    _, gradients, _, slopes = both(landscape, exact, theta)
    assert 0.5 * np.square(gradients - slopes).sum() < 1e-3


def test_leaves_ask_only_nodes_above_them() -> None:
    parts = [node(1, False, MATERN52, n) for n in (20, 30)]
    theta = around(1, 3, 0.2)
    weights = np.array([[0.5, 0.0, 0.2], [0.0, 0.3, 0.4]])
    lands = Landscapes([land for land, _ in parts], weights)
    assert lands.begin(theta[0], np.full(4, 0.5))
    assert all(land.learn(place(theta[1:], False)) for land, _ in parts)
    leaves = np.array([2, 1])
    values, gradients = lands(leaves, theta[leaves])
    for k, leaf in enumerate(leaves):
        found = [exact(theta[leaf]) for _, exact in parts]
        value = sum(w * f[0] for w, f in zip(weights[:, leaf], found, strict=True))
        slope = sum(w * f[1] for w, f in zip(weights[:, leaf], found, strict=True))
        assert values[k] == pytest.approx(value, abs=1e-5)
        np.testing.assert_allclose(gradients[k], slope, atol=1e-4)


def test_without_a_factor_nothing_is_learned() -> None:
    landscape, _ = node(1, False, MATERN52)
    landscape.X = np.zeros_like(landscape.X)
    assert not landscape.learn(np.array([[0.0, 80.0]]))
