from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel
from matplotlib.axes import Axes
from torch import Tensor

from botorch_structured.kernels.laplace import LaplaceKernel
from botorch_structured.kernels.mondrian import MondrianKernel
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


class TestFiguresOfThePaper:
    """What sections III-A and IV say that Figures 2 to 4 show."""

    def pictures(self) -> dict[str, np.ndarray]:
        X = section_3a()
        imputed = TREE.impute(X)
        se = squared_exponential()
        laplace = LaplaceKernel().double()
        laplace.lengthscale = 0.75
        mondrian = MondrianKernel(1 / 0.75, num_trees=30, seed=0).double()
        kernels = {
            "dense": (se, X),
            "imputed": (se, imputed),
            "conditional": (ConditionalKernel(se, TREE), X),
            "laplace": (laplace, imputed),
            "mondrian": (mondrian, imputed),
        }
        return {k: drawn(plot_covariance(*v, TREE)) for k, v in kernels.items()}

    def test_they_look_as_described(self) -> None:
        pictures = self.pictures()
        paths = TREE.path_index(section_3a()).sort().values.numpy()
        same = paths[:, None] == paths[None, :]
        far = np.abs(paths[:, None] - paths[None, :]) == 2

        def contrast(picture: np.ndarray) -> float:
            return picture[same].mean() - picture[~same].mean()

        # "the imputation has a positive impact on discrimination"
        assert contrast(pictures["imputed"]) > contrast(pictures["dense"]) + 0.1
        # "still confusion between pairs a - b and b - c"
        assert pictures["imputed"][~same & ~far].mean() > 0.5
        # "enforces a null covariance", and is the imputed kernel elsewhere
        assert (pictures["conditional"][~same] == 0).all()
        np.testing.assert_allclose(
            pictures["conditional"][same], pictures["imputed"][same], atol=1e-12
        )
        # "at a quick glance they appear identical"
        a, b = pictures["laplace"], pictures["mondrian"]
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.95
        assert np.abs(a - b).max() < 0.35

    def test_equation_5(self) -> None:
        picture = drawn(plot_covariance(squared_exponential(), section_3a()))
        X = section_3a().numpy()
        squared = ((X[:, None] - X[None]) ** 2).sum(-1)
        np.testing.assert_allclose(picture, np.exp(-squared / 0.75), atol=1e-12)


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


def test_axes_colour_bar_and_matrices() -> None:
    X = section_3a(10)
    K = torch.eye(10, requires_grad=True)
    ax = plt.subplots()[1]
    assert plot_covariance(K, X, ax=ax, colorbar=False) is ax
    assert len(ax.figure.axes) == 1
    np.testing.assert_array_equal(drawn(ax), np.eye(10))
    assert len(plot_covariance(K, X).figure.axes) == 2


def test_wrong_arguments() -> None:
    X, kernel = section_3a(10), MaternKernel().double()
    with pytest.raises(ValueError, match=r"n x 4 points, got shape \(10, 2\)"):
        plot_covariance(kernel, X[:, :2], TREE)
    with pytest.raises(ValueError, match="kernel: expected a kernel .* got None"):
        plot_covariance(None, X)
    with pytest.raises(ValueError, match="tree: expected a tree or a space, got 3"):
        plot_covariance(kernel, X, 3)
    with pytest.raises(ValueError, match=r"X: expected n x d points, got \[\[1"):
        plot_covariance(kernel, [[1.0]])
    with pytest.raises(ValueError, match="n x d points"):
        plot_covariance(kernel, X[0])
    with pytest.raises(ValueError, match="names, labels: expected a tree"):
        plot_covariance(kernel, X, names=["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="names: expected 4 names.*got 2"):
        plot_covariance(kernel, X, TREE, names=["a", "b"])
    with pytest.raises(ValueError, match=r"labels\[0\]: expected 3 names"):
        plot_covariance(kernel, X, TREE, labels={0: ["a"]})
    with pytest.raises(ValueError, match="limits: expected two numbers in order"):
        plot_covariance(kernel, X, limits=(1.0, 0.0))
    with pytest.raises(ValueError, match="10 x 10 covariances"):
        plot_covariance(torch.eye(3), X)
    batched = MaternKernel(batch_shape=torch.Size([2])).double()
    with pytest.raises(ValueError, match=r"no batch shape, got \(2, 10, 10\)"):
        plot_covariance(batched, X)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"botorch-structured\[demo\]"):
        plot_covariance(MaternKernel().double(), section_3a(10))
