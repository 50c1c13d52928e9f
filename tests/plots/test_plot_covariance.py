from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel
from matplotlib.axes import Axes
from torch import Tensor

from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.plots import plot_covariance
from botorch_structured.spaces import Between, ParameterTree
from botorch_structured.test_functions import JenattonTree

# Section III-A of Levesque et al.: a choice of three, and a parameter for each.
TREE = ParameterTree(4, {0: {0.0: [1], 0.5: [2], 1.0: [3]}})


def section_3a(n: int = 60) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 4, dtype=torch.double, generator=generator)
    X[:, 0] = torch.randint(3, (n,), generator=generator) / 2
    return X


def squared_exponential() -> RBFKernel:
    """Equation (5), which has neither the 1/2 nor the square of a usual lengthscale."""
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.75 / 2, dtype=torch.double).sqrt()
    return kernel


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


def test_a_kernel_that_knows_its_tree_needs_no_other() -> None:
    kernel = ConditionalKernel(MaternKernel().double(), TREE)
    ax = plot_covariance(kernel, section_3a(20), labels={0: ["knn", "svm", "rf"]})
    assert tick_texts(ax) == ["knn", "svm", "rf"]


def test_labels_of_several_decisions() -> None:
    problem = JenattonTree(4)
    X = problem.starts(0)
    ax = plot_covariance(MaternKernel().double(), X, problem.space)
    assert tick_texts(ax)[0] == "x1=0, x2=0"
    tree = ParameterTree(
        2, conditions={1: Between(0, 0.5, float("inf"))}, values={1: [0, 1]}
    )
    X = torch.tensor([[0.1, 0.0], [0.9, 1.0], [0.9, 0.0]], dtype=torch.double)
    ax = plot_covariance(MaternKernel().double(), X, tree, names=["depth", "prune"])
    assert tick_texts(ax) == [
        "depth < 0.5",
        "depth ≥ 0.5, prune=0",
        "depth ≥ 0.5, prune=1",
    ]


def test_undeclared_values_and_small_blocks() -> None:
    X = section_3a(60)
    X[7, 0] = 7.25
    ax = plot_covariance(MaternKernel().double(), X, TREE)
    assert "7.25" not in tick_texts(ax)  # one of sixty: no room
    assert len(tick_texts(ax)) == 3
    ax = plot_covariance(MaternKernel().double(), X[:10], TREE)
    assert "7.25" in tick_texts(ax)


def test_limits_and_signs() -> None:
    X = section_3a(10)
    image = plot_covariance(MaternKernel().double(), X).images[0]
    assert image.get_clim() == (0.0, 1.0)
    assert image.to_rgba(0.0) == (1.0, 1.0, 1.0, 1.0)
    image = plot_covariance(LinearKernel().double(), X - 0.5).images[0]
    low, high = image.get_clim()
    assert low == -high < 0
    np.testing.assert_allclose(image.to_rgba(0.0), 1.0, atol=0.02)
    r, _, b, _ = image.to_rgba(low / 2)
    assert r > b
    given = plot_covariance(MaternKernel().double(), X, limits=(0, 4)).images[0]
    assert given.get_clim() == (0, 4)
    zero = plot_covariance(torch.zeros(10, 10), X).images[0]
    assert zero.to_rgba(0.0) == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": section_3a(10)[:, :2]}, r"n x 4 points, got shape \(10, 2\)"),
        ({"kernel": None}, "kernel: expected a kernel .* got None"),
        ({"tree": 3}, "tree: expected a ParameterTree or a SearchSpace, got 3"),
        ({"X": [[1.0]], "tree": None}, r"X: expected n x d points, got \[\[1"),
        ({"X": section_3a(10)[0], "tree": None}, "n x d points"),
        ({"tree": None, "names": ["a"] * 4}, "names, labels: expected a tree"),
        ({"names": ["a", "b"]}, "names: expected 4 names.*got 2"),
        ({"labels": {0: ["a"]}}, r"labels\[0\]: expected 3 names"),
        ({"limits": (1.0, 0.0)}, "limits: expected two numbers in order"),
        ({"kernel": torch.eye(3)}, "10 x 10 covariances"),
        (
            {"kernel": MaternKernel(batch_shape=torch.Size([2])).double()},
            r"no batch shape, got \(2, 10, 10\)",
        ),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    given = {"kernel": MaternKernel().double(), "X": section_3a(10), "tree": TREE}
    with pytest.raises(ValueError, match=message):
        plot_covariance(**(given | arguments))
