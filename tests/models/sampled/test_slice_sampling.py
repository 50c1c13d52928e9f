"""The slice sampler step by step; what it draws is in ``tests/test_fit.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from botorch_structured.linalg.blocks import finish
from botorch_structured.models.sampled.chains import (
    sample_chain,
    slice_update,
)


class Plain:
    """A target that is a function of the whole position."""

    def __init__(self, log_density: Callable[[np.ndarray], float]) -> None:
        self.function = log_density
        self.evaluations = 0

    def move_to(self, position: np.ndarray) -> float:
        self.position = position.copy()
        return self.function(position)

    def along(self, position: np.ndarray, axis: int) -> Callable[[float], float]:
        def log_density(value: float) -> float:
            self.evaluations += 1
            self.trial = position.copy()
            self.trial[axis] = value
            return self.function(self.trial)

        return log_density

    def accept(self) -> None:
        self.position = self.trial


def chain(*args: Any) -> Any:
    return finish([sample_chain(*args, lambda: None)])[0]


def update(*args: Any, **kwargs: Any) -> tuple[float, float]:
    return finish([slice_update(*args, **kwargs)])[0]


@pytest.mark.parametrize("max_steps", [1, 2, 3])
def test_the_first_interval_and_its_steps_are_placed_at_random(max_steps: int) -> None:
    """Else the interval found from the new value would not be as likely as this one."""
    ends, logs = np.array([0.0, 1.0, 2.0, 4.0]), np.array([0.0, -3.0, -0.5])
    mass = np.exp(logs) * np.diff(ends)
    below = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()

    def log_density(v: float) -> float:
        if not 0.0 <= v < 4.0:
            return -math.inf
        return 0.0 if v < 1.0 else (-3.0 if v < 2.0 else -0.5)

    rng = np.random.default_rng(0)
    x, lp, draws = 0.5, 0.0, []
    for _ in range(20_000):
        x, lp = update(log_density, x, lp, 2.5, rng, max_steps=max_steps)
        draws.append(x)
    distance = stats.kstest(draws, lambda v: np.interp(v, ends, below)).statistic
    # that of 3000 independent draws is above it in 1 % of cases
    assert distance < 0.03


def test_widths_are_tuned_to_the_slices() -> None:
    """Scales a million apart take as few evaluations as equal ones."""
    scales = np.array([1e-3, 1.0, 1e3])
    target = Plain(lambda z: -0.5 * float(((z / scales) ** 2).sum()))
    rng = np.random.default_rng(0)
    start = np.zeros(3)
    before = [start, np.full(3, 2.0), rng]
    positions, _, widths = chain(target, *before, 100, 1)
    # a slice of a normal distribution is about three standard deviations long
    assert (widths > 3 * scales).all() and (widths < 6 * scales).all()
    target.evaluations = 0
    after = [positions[-1], widths, rng]
    fixed = chain(target, *after, 0, 200)[2]
    assert target.evaluations / 600 < 5.5
    np.testing.assert_array_equal(fixed, widths)  # only warmup tunes them


def test_an_empty_slice_stays_where_it_is() -> None:
    """A log density that rounding has made too high at the current point."""
    rng = np.random.default_rng(0)
    assert update(lambda v: -1e9, 0.0, 0.0, 1.0, rng) == (0.0, 0.0)


def test_nan_counts_as_impossible() -> None:
    def log_density(v: float) -> float:
        return math.nan if v > 0.2 else -0.5 * v * v

    rng = np.random.default_rng(0)
    x, lp = 0.0, 0.0
    for _ in range(100):
        x, lp = update(log_density, x, lp, 1.0, rng)
        assert x <= 0.2


def test_step_out_ends_on_a_flat_density() -> None:
    """An improper density must not make it walk forever."""
    target = Plain(lambda z: 0.0)
    rng = np.random.default_rng(0)
    update(target.along(np.zeros(1), 0), 0.0, 0.0, 1.0, rng, max_steps=8)
    assert target.evaluations == 8


def test_a_start_without_density_raises() -> None:
    target = Plain(lambda z: -math.inf)
    with pytest.raises(ValueError, match="finite log density.*-inf"):
        chain(target, np.zeros(1), np.ones(1), np.random.default_rng(0), 50, 1)
