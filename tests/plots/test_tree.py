from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel
from matplotlib.axes import Axes
from matplotlib.text import Text
from torch import Tensor

from botorch_structured.plots import plot_covariance, plot_traces, plot_tree
from botorch_structured.spaces import Between, Equals, ParameterTree, SearchSpace
from botorch_structured.test_functions import JenattonTree

NUMERIC = ParameterTree(
    5,
    conditions={
        1: Between(0, 0.5, float("inf")),
        2: Equals(0, 0.2) | Equals(3, 1),
    },
    values={3: [0, 1]},
)
LEARNER = {0: {0.0: [1], 1.0: [1, 2], 2.0: []}}


def texts(ax: Axes) -> list[str]:
    return [t.get_text() for t in ax.texts if t.get_text()]


def overlaps(ax: Axes) -> list[tuple[str, str]]:
    ax.figure.draw_without_rendering()
    shown = [t for t in ax.texts if t.get_text()]
    boxes = [t.get_window_extent() for t in shown]

    def both(a: int, b: int) -> bool:
        x, y = boxes[a], boxes[b]
        wide = min(x.x1, y.x1) - max(x.x0, y.x0)
        high = min(x.y1, y.y1) - max(x.y0, y.y0)
        return wide > 0.5 and high > 0.25 * min(x.height, y.height)

    pairs = itertools.combinations(range(len(shown)), 2)
    return [(shown[a].get_text(), shown[b].get_text()) for a, b in pairs if both(a, b)]


def test_names_labels_and_columns_are_written() -> None:
    ax = plot_tree(
        ParameterTree(4, LEARNER),
        names=["learner", "svm:C", "gamma", "seed"],
        labels={0: ["svm", "rbf", "bayes"]},
    )
    assert texts(ax) == ["learner", "seed", "svm", "C", "rbf", "svm:C, gamma", "bayes"]


def test_a_space_brings_names_and_labels() -> None:
    space = JenattonTree(4, shared=True).space
    written = texts(plot_tree(space))
    assert {"x1", "x2", "x3", "x4", "x7", "r8", "0", "1"} <= set(written)


def test_integers_that_decide_are_written_as_they_are() -> None:
    bounds = torch.tensor([[-1.0, 0.0, 0.0], [9.0, 1.0, 1.0]])
    tree = ParameterTree(
        3, conditions={1: Between(0, 0.5, 2.5), 2: Between(0, 0.5, 3.5)}
    )
    space = SearchSpace(["n", "a", "b"], bounds, tree, integer_features=[0])
    assert {*texts(plot_tree(space))} >= {"-1 to 0", "1 to 2", "3", "4 to 9"}
    kernel = torch.eye(4).double()
    X = space.sample(4, seed=0)
    X[:, 0] = torch.tensor([-1.0, 1.0, 3.0, 5.0])
    ticks = plot_covariance(kernel, X, space).get_xticklabels()
    assert {t.get_text() for t in ticks} == {"-1 to 0", "1 to 2", "3", "4 to 9"}


def test_intervals_are_written_for_people() -> None:
    written = texts(plot_tree(NUMERIC))
    assert {"< 0.2", "= 0.2", "> 0.2 and < 0.5", "≥ 0.5"} <= set(written)


def test_counts_and_best_values_by_path() -> None:
    tree = ParameterTree(4, LEARNER)
    X = torch.tensor([[0.0, 0.1, 0.5, 0.5], [0.0, 0.2, 0.5, 0.5], [1.0, 0.3, 0.3, 0.5]])
    Y = torch.tensor([[0.25], [0.125], [float("nan")]])
    drawn = texts(plot_tree(tree, X=X.double(), Y=Y))
    assert {"2 (best 0.125)", "1", "0"} <= set(drawn)
    drawn = texts(plot_tree(tree, X=X.double(), Y=Y, minimize=False))
    assert "2 (best 0.25)" in drawn
    assert "2" in texts(plot_tree(tree, X=X.double()))
    odd = torch.cat([X, torch.tensor([[7.0, 0.0, 0.0, 0.0]])]).double()
    assert texts(plot_tree(tree, X=odd)) == texts(plot_tree(tree, X=X.double()))


@pytest.mark.parametrize("size", [None, (5.0, 3.0), (12.0, 8.0)])
def test_nothing_overlaps(size: tuple[float, float] | None) -> None:
    problem = JenattonTree(8, shared=True)
    X = problem.starts(0)
    ax = None if size is None else plt.subplots(figsize=size, layout="constrained")[1]
    drawn = plot_tree(problem.space, X=X, Y=problem(X), ax=ax)
    assert ax is None or drawn is ax
    assert overlaps(drawn) == []
    drawn.figure.draw_without_rendering()
    inside = drawn.figure.bbox
    for text in drawn.texts:
        if isinstance(text, Text) and text.get_text():
            box = text.get_window_extent()
            assert inside.x0 <= box.x0 and box.x1 <= inside.x1


X = torch.zeros(2, 4, dtype=torch.double)
WIDE = ParameterTree(40, {c: {0.0: [], 1.0: [c + 20]} for c in range(20)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tree": None}, "tree: expected a ParameterTree .* got None"),
        ({"tree": WIDE}, "at most 64 paths .* got 1048576"),
        ({"names": ["a", "b"]}, "names: expected 4 names.*got 2"),
        ({"labels": {0: ["a"]}}, r"labels\[0\]: expected 3 names"),
        ({"X": X[:, :2]}, "n x 4 points"),
        ({"X": [[1.0] * 4]}, r"n x 4 points, got \[\[1"),
        ({"X": X, "Y": torch.zeros(3)}, "one outcome for each of the 2 points"),
        ({"Y": torch.zeros(3)}, "got Y alone"),
    ],
)
def test_wrong_arguments_of_trees(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plot_tree(**({"tree": ParameterTree(4, LEARNER)} | arguments))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plot_tree(ParameterTree(4, LEARNER)),
        lambda: plot_traces({"a": [1.0]}),
        lambda: plot_covariance(torch.eye(2), X),
    ],
)
def test_without_matplotlib(
    draw: Callable[[], Axes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyplot", "textpath"):
        monkeypatch.setitem(sys.modules, f"matplotlib.{name}", None)
    with pytest.raises(ImportError, match=r"botorch-structured\[demo\]"):
        draw()


# Section III-A of Levesque et al.: a choice of three, and a parameter for each.
TREE = ParameterTree(4, {0: {0.0: [1], 0.5: [2], 1.0: [3]}})


def section_3a(n: int = 60) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 4, dtype=torch.double, generator=generator)
    X[:, 0] = torch.randint(3, (n,), generator=generator) / 2
    return X


def drawn(ax: Axes) -> np.ndarray:
    return np.asarray(ax.images[0].get_array())


def tick_texts(ax: Axes) -> list[str]:
    assert [t.get_text() for t in ax.get_xticklabels()] == [
        t.get_text() for t in ax.get_yticklabels()
    ]
    return [t.get_text() for t in ax.get_yticklabels()]


def test_rows_are_sorted_by_path_and_stable_within() -> None:
    X, kernel = section_3a(20), MaternKernel().double()
    order = np.argsort(TREE.path_index(X).numpy(), kind="stable")
    plain = drawn(plot_covariance(kernel, X))
    np.testing.assert_array_equal(plain, kernel(X).to_dense().detach().numpy())
    ax = plot_covariance(kernel, X, TREE)
    np.testing.assert_array_equal(drawn(ax), plain[order][:, order])
    counts = np.bincount(TREE.path_index(X).numpy())
    ends = np.cumsum(counts)[:-1] - 0.5
    lines = [line.get_data() for line in ax.lines]
    assert {y[0] for x, y in lines if x[0] != x[1]} == set(ends)
    assert {x[0] for x, y in lines if x[0] == x[1]} == set(ends)
    np.testing.assert_allclose(ax.get_yticks(), np.cumsum(counts) - (counts + 1) / 2)
    assert tick_texts(ax) == ["0", "0.5", "1"]
    assert not plot_covariance(kernel, X).lines


def test_labels_of_several_decisions() -> None:
    problem = JenattonTree(4)
    X = problem.starts(0)
    ax = plot_covariance(MaternKernel().double(), X, problem.space)
    assert tick_texts(ax)[0] == "x1=0, x2=0"
    tree = ParameterTree(
        2, conditions={1: Between(0, 0.5, float("inf"))}, values={1: [0, 1]}
    )
    X = torch.tensor([[0.1, 0.0], [0.9, 1.0], [0.9, 0.0]], dtype=torch.double)
    ax = plot_covariance(MaternKernel().double(), X, tree)
    assert tick_texts(ax) == [
        "x0 < 0.5",
        "x0 ≥ 0.5, x1=0",
        "x0 ≥ 0.5, x1=1",
    ]


def test_limits_and_signs() -> None:
    X = section_3a(10)
    image = plot_covariance(MaternKernel().double(), X).images[0]
    assert image.get_clim() == (0.0, 1.0)
    assert min(image.to_rgba(0.0)) > 0.95  # nearly white
    image = plot_covariance(LinearKernel().double(), X - 0.5).images[0]
    low, high = image.get_clim()
    assert low == -high < 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": section_3a(10)[:, :2]}, r"n x 4 points, got shape \(10, 2\)"),
        ({"kernel": None}, "kernel: expected a kernel .* got None"),
        ({"tree": 3}, "tree: expected a ParameterTree or a SearchSpace, got 3"),
        ({"X": [[1.0]], "tree": None}, r"X: expected n x d points, got \[\[1"),
        ({"X": section_3a(10)[0], "tree": None}, "n x d points"),
        ({"labels": {0: ["a"]}}, r"labels\[0\]: expected 3 names"),
        ({"limits": (1.0, 0.0)}, "limits: expected two numbers in order"),
        ({"kernel": torch.eye(3)}, "10 x 10 covariances"),
        (
            {"kernel": MaternKernel(batch_shape=torch.Size([2])).double()},
            r"no batch shape, got \(2, 10, 10\)",
        ),
    ],
)
def test_wrong_arguments_of_covariances(
    arguments: dict[str, Any], message: str
) -> None:
    given = {"kernel": MaternKernel().double(), "X": section_3a(10), "tree": TREE}
    with pytest.raises(ValueError, match=message):
        plot_covariance(**(given | arguments))
