from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from botorch_structured.plots import plot_traces
from botorch_structured.plots.traces import best_so_far


def test_best_so_far_skips_failures() -> None:
    values = [math.nan, 3.0, math.nan, 2.0, 4.0]
    np.testing.assert_array_equal(best_so_far(values), [math.nan, 3, 3, 2, 2])
    np.testing.assert_array_equal(best_so_far(values, False), [math.nan, 3, 3, 3, 4])


def test_lines_are_medians_and_bands_quantiles() -> None:
    runs = np.array([[5.0, 1.0], [4.0, 4.5], [3.0, 2.0]])
    ax = plot_traces({"ours": runs, "one": torch.tensor([[2.0], [1.0]])})
    ours, one = ax.lines
    np.testing.assert_allclose(ours.get_ydata(), [4.0, 2.0])
    np.testing.assert_allclose(one.get_ydata(), [2.0, 1.0])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "ours (median of 3)",
        "one",
    ]
    (band,) = ax.collections
    low, high = np.quantile([5, 4, 3], [0.25, 0.75])
    drawn = band.get_paths()[0].vertices[:, 1]
    assert low in drawn and high in drawn


def test_gap_to_the_optimum_on_a_log_scale() -> None:
    ax = plot_traces({"ours": [1.1, 0.2, 0.1]}, optimum=0.1, num_starts=1)
    assert ax.get_yscale() == "log"
    gap = np.asarray(ax.lines[0].get_ydata())
    np.testing.assert_allclose(gap[:2], [1.0, 0.1])
    assert gap[2] > 0
    assert ax.get_legend().get_texts()[-1].get_text() == "common starts"
    up = plot_traces({"ours": [0.0, 0.5]}, optimum=1.0, minimize=False)
    np.testing.assert_allclose(up.lines[0].get_ydata(), [1.0, 0.5])


def test_runs_of_different_lengths_are_cut_and_axes_returned() -> None:
    ax = plt.subplots()[1]
    ax.set_xticks([1.0, 1.5])
    drawn = plot_traces({"ours": [[3.0, 2.0, 1.0], [4.0, 3.0]]}, ax=ax)
    assert drawn is ax and ax.get_xticks().tolist() == [1.0, 1.5]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [3.5, 2.5])


FAILED = [math.nan, math.nan]


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ({}, "traces: expected a mapping .* got {}"),
        ({"a": []}, r"traces\['a'\]: expected .* outcomes, .* got \[\]"),
        (None, "traces: expected a mapping .* got None"),
        ({"a": ["b", "c"]}, r"traces\['a'\]: expected .* outcomes"),
        ({"a": [["b"], ["c"]]}, r"traces\['a'\]: expected .* outcomes"),
        ({"a": FAILED}, r"traces\['a'\]: .* that is a number"),
        ({"a": [[1.0, 2.0], FAILED]}, r"traces\['a'\]: .* that is a number"),
    ],
)
def test_wrong_arguments(traces: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot_traces(traces)
