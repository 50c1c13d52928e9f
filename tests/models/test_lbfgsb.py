"""The steps of L-BFGS-B are SciPy's, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize

from botorch_structured.models import lbfgsb
from botorch_structured.models.lbfgsb import minimize_lbfgsb

Array = NDArray[np.float64]


def rosenbrock(x: Array) -> tuple[float, Array]:
    return float(optimize.rosen(x)), optimize.rosen_der(x)


def kink(x: Array) -> tuple[float, Array]:
    """A gradient that is wrong ends a line search."""
    return float(np.abs(x).sum()), -np.sign(x) - 1.0


def unknown(x: Array) -> tuple[float, Array]:
    return np.nan, np.full_like(x, np.nan)


def check(function: Any, x: Array, bounds: Array, options: Any = None) -> str:
    """The reason for which both end."""
    ours, theirs = [], []

    def seen(points: list[Array]) -> Any:
        def call(x: Array) -> tuple[float, Array]:
            points.append(x.copy())
            return function(x)

        return call

    found = minimize_lbfgsb(seen(ours), x.copy(), bounds, options)
    same = optimize.minimize(
        seen(theirs), x, jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    if np.isfinite(theirs).all():  # else SciPy evaluates a point twice
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))
    np.testing.assert_array_equal(found.x, same.x)
    np.testing.assert_equal(found.fun, same.fun)
    for name in ("nit", "nfev", "success", "message"):
        assert found[name] == same[name], name
    return str(found.message)


def test_is_used() -> None:
    """In versions of SciPy with which it was tried."""
    version = tuple(map(int, scipy.__version__.split(".")[:2]))
    assert lbfgsb._is_known() == ((1, 15) <= version <= (1, 17))


@given(seed=st.integers(0, 2**20), k=st.integers(2, 12))
@example(seed=427, k=11)  # the solver asks for a point twice
def test_bounds(seed: int, k: int) -> None:
    g = np.random.default_rng(seed)
    bounds = np.sort(g.normal(scale=2.0, size=(k, 2)))
    bounds[g.random((k, 2)) < 0.4] = np.inf
    bounds[:, 0] = np.where(np.isinf(bounds[:, 0]), -np.inf, bounds[:, 0])
    check(rosenbrock, g.normal(scale=3.0, size=k), bounds)


FREE = np.tile([-np.inf, np.inf], (3, 1))
START = np.array([-1.0, 2.0, 0.5])


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (rosenbrock, None, "CONVERGENCE"),
        (rosenbrock, {"ftol": 1e-3, "maxcor": 20}, "CONVERGENCE"),
        (rosenbrock, {"maxiter": 3}, "REACHED LIMIT"),
        (rosenbrock, {"maxfun": 5}, "EXCEEDS LIMIT"),
        (kink, None, "ABNORMAL"),
        (unknown, None, ""),
    ],
)
def test_ends(function: Any, options: Any, reason: str) -> None:
    assert reason in check(function, START, FREE, options)


def test_what_scipy_does_itself() -> None:
    """Options that are not the solver's, and parameters that cannot move."""
    options = {"odd": 1}
    with pytest.warns(optimize.OptimizeWarning, match="Unknown solver options"):
        check(rosenbrock, START, FREE, options)
    held = FREE.copy()
    held[1] = 0.3
    check(rosenbrock, START, held)


def test_a_gradient_of_another_kind() -> None:
    """One that is not in one piece in memory, and one of another length."""

    def strided(x: Array) -> tuple[float, Array]:
        return rosenbrock(x)[0], np.repeat(rosenbrock(x)[1], 2)[::2]

    check(strided, START, FREE)
    if lbfgsb._is_known():
        with pytest.raises(ValueError, match=r"expected 3 slopes, got \(2,\)"):
            minimize_lbfgsb(lambda x: (0.0, x[:2]), START, FREE)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lbfgsb", None), ("lbfgsb", optimize), ("_TRIED", ((0, 1), (0, 2)))],
)
def test_another_scipy(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Without the solver, with another, or in a new version: SciPy's interface."""
    lbfgsb._is_known.cache_clear()
    monkeypatch.setattr(lbfgsb, name, value)
    assert not lbfgsb._is_known()
    check(rosenbrock, START, FREE)
    lbfgsb._is_known.cache_clear()
