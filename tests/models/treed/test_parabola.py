"""Parabolas in place of what large nodes say, and what they learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from botorch_structured.models.treed.parabola import (
    NearbyDensity,
    Parabolas,
    damped_update,
)

Array = NDArray[np.float64]
P = 4


def bowl(seed: int = 0) -> Array:
    root = np.random.default_rng(seed).standard_normal((P, P))
    return root @ root.T + np.eye(P)


def parabolas(A: Array, scale: Array, curvature: Array, kin: list[int]) -> Parabolas:
    """Of ``-scale/2 x'Ax`` at random centres."""
    centre = np.random.default_rng(1).standard_normal((len(scale), P))
    slope = centre @ A
    return Parabolas(
        centre,
        -0.5 * scale * (slope * centre).sum(-1),
        -scale[:, None] * slope,
        curvature * scale[:, None, None],
        np.array(kin),
        scale,
    )


def test_with_the_right_curvature_a_parabola_is_exact() -> None:
    A, scale = bowl(), np.array([1.0, 0.3])
    large = parabolas(A, scale, A, [0, 0])
    x = np.random.default_rng(2).standard_normal((2, P))
    for leaf in range(2):
        value, slope = large.at(leaf, x[leaf])
        assert value == pytest.approx(-0.5 * scale[leaf] * x[leaf] @ A @ x[leaf])
        np.testing.assert_allclose(slope, -scale[leaf] * A @ x[leaf])
    fall = np.einsum("l,ij,lj->li", scale, A, x - large.centre)
    np.testing.assert_allclose(large.bent(x), fall)


def test_a_parabola_learns_along_its_own_step() -> None:
    A, scale = bowl(), np.ones(3)
    large = parabolas(A, scale, np.eye(P), [0, 1, 2])
    before, other = large.centre.copy(), large.curvature[1].copy()
    x = before[[0, 2]] + 0.1
    value = -0.5 * np.einsum("li,ij,lj->l", x, A, x)
    large.move(np.array([0, 2]), x, value, -x @ A)
    assert np.array_equal(large.centre[[0, 2]], x)
    assert large.at(0, x[0])[0] == value[0]
    for leaf in (0, 2):
        step = large.centre[leaf] - before[leaf]
        np.testing.assert_allclose(large.curvature[leaf] @ step, A @ step)
    # who did not move has not changed, and nobody here is its kin
    assert np.array_equal(large.centre[1], before[1])
    assert np.array_equal(large.curvature[1], other)


@pytest.mark.parametrize("related", [True, False])
def test_a_parabola_learns_from_its_kin(related: bool) -> None:
    """Each of several leaves has seen the same bowl, up to a factor, elsewhere."""
    A, L = bowl(), 12
    scale = np.linspace(0.5, 2.0, L)
    kin = [0] * L if related else [*range(L)]
    large = parabolas(A, scale, np.eye(P), kin)
    for k in range(3):
        x = np.random.default_rng(3 + k).standard_normal((L, P))
        value = -0.5 * scale * np.einsum("li,ij,lj->l", x, A, x)
        large.move(np.arange(L), x, value, -scale[:, None] * (x @ A))
    wrong = large.curvature / scale[:, None, None] - A
    error = float(np.abs(wrong).max() / np.abs(A).max())
    assert (error < 0.1) == related


def test_an_update_stays_positive_definite() -> None:
    """Where the gradient rises along the step, too."""
    rng = np.random.default_rng(0)
    curvature = np.tile(np.eye(P), (5, 1, 1))
    moved, fall = rng.standard_normal((2, 5, P))
    seen = np.array([True, True, True, True, False])
    found = damped_update(curvature, moved, -2.0 * moved + 0.1 * fall, seen)
    assert (np.linalg.eigvalsh(found) > 0.0).all()
    assert np.array_equal(found[4], curvature[4])
    assert not np.array_equal(found[0], curvature[0])


def test_an_update_can_be_solved_with_where_the_data_do_not_tell() -> None:
    """A component without curvature has next to none, not none, afterwards."""
    rng = np.random.default_rng(0)
    curvature = np.diag([1.0] * (P - 1) + [0.0])[None]
    moved, fall = rng.standard_normal((2, 1, P))
    moved[:, -1] = fall[:, -1] = 0.0
    found = damped_update(curvature, moved, fall, np.array([True]))
    assert np.isfinite(np.linalg.solve(found, moved[..., None])).all()
    np.testing.assert_allclose(found[0, -1], 0.0, atol=1e-9)


def test_small_nodes_are_exact_beside_a_parabola() -> None:
    A = bowl()
    large = parabolas(A, np.ones(1), A, [0])

    def small(x: Array) -> tuple[float, Array]:
        return -float(np.cosh(x).sum()), -np.sinh(x)

    density: Any = NearbyDensity(small, large, 0)  # type: ignore[arg-type]
    x = np.linspace(-1.0, 1.0, P)
    value, slope = density(x)
    assert value == pytest.approx(-np.cosh(x).sum() - 0.5 * x @ A @ x)
    np.testing.assert_allclose(slope, -np.sinh(x) - A @ x)
