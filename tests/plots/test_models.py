from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.transforms import Normalize, Standardize
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.contour import ContourSet
from torch import Tensor

from botorch_structured.models import DecomposedGP, MonotoneGP
from botorch_structured.models.treed.treed_gp import TreedGP
from botorch_structured.plots import plot_monotone_components, plot_partition


class Steps:
    """Three regions: two along the first column, the right one cut again.

    ::

        x1 <= 0.3: 0      x1 > 0.3 and last column <= 0.8: 1      else: 2
    """

    def leaf_index(self, X: Tensor) -> Tensor:
        return torch.where(X[..., 0] <= 0.3, 0, torch.where(X[..., -1] <= 0.8, 1, 2))


class TreedStandIn(SingleTaskGP):
    """Regions as the model's kernel sees the inputs, and a mean that jumps there."""

    partition = Steps()

    def posterior(self, X: Tensor, *args, **kwargs):
        posterior = super().posterior(X, *args, **kwargs)
        leaf = self.partition.leaf_index(self.transform_inputs(X))
        jump = 10.0 * leaf.unsqueeze(-1).to(X)
        moved = posterior.distribution
        moved = type(moved)(moved.mean + jump.squeeze(-1), moved.covariance_matrix)
        return type(posterior)(distribution=moved)


def data(d: int, n: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(d)
    X = torch.rand(n, d, generator=generator, dtype=torch.double)
    X[:2] = torch.tensor([[0.0], [1.0]])
    return X, 3 + 2 * torch.sin(5 * X).sum(-1, keepdim=True)


def borders(ax: Axes) -> np.ndarray:
    sets = [c for c in ax.collections if isinstance(c, ContourSet)]
    return np.concatenate([p.vertices for s in sets for p in s.get_paths()])


def dots(ax: Axes) -> list[PathCollection]:
    return [c for c in ax.collections if isinstance(c, PathCollection)]


def curves(ax: Axes) -> list[np.ndarray]:
    return [
        np.asarray(line.get_xydata()) for line in ax.lines if len(line.get_xydata()) > 2
    ]


def vertical(ax: Axes) -> list[float]:
    found = [np.asarray(line.get_xdata()) for line in ax.lines]
    return [float(x[0]) for x in found if len(x) == 2]


class TestOneDimension:
    def test_the_curve_is_the_posterior(self) -> None:
        model = TreedStandIn(*data(1))
        ax = plot_partition(model)
        (curve,) = curves(ax)
        with torch.no_grad():
            posterior = model.posterior(torch.as_tensor(curve[:, :1]).unsqueeze(-2))
        np.testing.assert_allclose(curve[:, 1], posterior.mean.flatten(), atol=1e-8)
        band = ax.collections[0].get_paths()[0].vertices[:, 1]
        high = (posterior.mean + 2 * posterior.variance.sqrt()).max().item()
        assert band.max() == pytest.approx(high, abs=1e-8)

    def test_observations_are_as_they_were_given(self) -> None:
        X, Y = data(1)
        low_high = torch.tensor([[-4.0], [6.0]], dtype=torch.double)
        inputs = 10 * X - 4
        model = TreedStandIn(inputs, Y, input_transform=Normalize(1, bounds=low_high))
        ax = plot_partition(model)
        (points,) = dots(ax)
        expected = torch.cat([inputs, Y], dim=-1)
        np.testing.assert_allclose(np.asarray(points.get_offsets()), expected)
        assert vertical(ax) == pytest.approx([-1.0, 4.0], abs=2e-4)


class TestTwoDimensions:
    def test_borders_are_lines_at_the_splits(self) -> None:
        ax = plot_partition(TreedStandIn(*data(2)))
        points = borders(ax)
        pixel = 1 / 600
        upright = np.abs(points[:, 0] - 0.3) < pixel
        across = np.abs(points[:, 1] - 0.8) < pixel
        assert (upright | across).all()
        # from edge to edge, and from the first border to the edge
        assert np.ptp(points[upright][:, 1]) == pytest.approx(1.0)
        assert points[across][:, 0].min() == pytest.approx(0.3, abs=pixel)
        assert points[across][:, 0].max() == pytest.approx(1.0)

    def test_the_surface_is_the_posterior(self) -> None:
        X, Y = data(2)
        model = TreedStandIn(X, Y, outcome_transform=Standardize(1))
        bounds = torch.tensor([[-1.0, 0.0], [1.0, 0.5]], dtype=torch.double)
        ax = plot_partition(model, bounds=bounds)
        (mesh,) = [c for c in ax.collections if isinstance(c, QuadMesh)]
        drawn = np.asarray(mesh.get_array()).reshape(121, 121)
        corners = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.5]]).double()
        with torch.no_grad():
            values = model.posterior(corners.unsqueeze(-2)).mean
        found = [drawn[0, 0], drawn[0, -1], drawn[-1, 0]]
        np.testing.assert_allclose(found, values.flatten(), atol=1e-6)
        np.testing.assert_allclose(np.asarray(dots(ax)[0].get_offsets()), X)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("x0", "x1")
        assert ax.figure.axes[1].get_ylabel() == "mean"


def test_a_treed_gp() -> None:
    """Two regimes with a step: the border is that of its own nodes."""
    X = 10 * data(1, 40)[0]
    Y = torch.where(X <= 6, torch.sin(X / 3), 5 + torch.sin(6 * X))
    bounds = torch.tensor([[0.0], [10.0]], dtype=torch.double)
    model = TreedGP(X, Y, input_transform=Normalize(1, bounds=bounds), max_leaves=2)
    root = model.partition.nodes[0]
    ax = plot_partition(model, bounds=bounds)
    assert vertical(ax) == pytest.approx([10 * root.split.threshold], abs=2e-4)


def test_the_model_is_as_it_was_in_evaluation_mode() -> None:
    """A transform that learns its bounds must not learn those of the picture."""
    X, Y = data(2)
    model = TreedStandIn(X, Y, input_transform=Normalize(2))
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    wide = torch.tensor([[-9.0, -9.0], [9.0, 9.0]], dtype=torch.double)
    ax = plot_partition(model, bounds=wide)
    assert not model.training
    assert torch.equal(model.train().train_inputs[0], X)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    np.testing.assert_allclose(np.asarray(dots(ax)[0].get_offsets()), X)
    model.eval()
    again = plot_partition(model, bounds=wide)
    assert not model.training
    np.testing.assert_array_equal(borders(ax), borders(again))


def test_wrong_arguments_of_partitions() -> None:
    model = SingleTaskGP(*data(1))
    X, Y = data(3)
    for bad, arguments, message in (
        (SingleTaskGP(X, Y), {}, "one or two inputs to draw, got 3"),
        (SingleTaskGP(X[:, :1], torch.cat([Y, Y], -1)), {}, "without a batch shape"),
        (object(), {}, "with training data, got object"),
        (model, {"names": ("a", "b")}, "names: expected 1 names"),
        (model, {"bounds": torch.tensor([[0.0, 1.0]])}, "bounds: expected a 2 x 1"),
        (model, {"bounds": torch.tensor([[1.0], [1.0]])}, "lower ones below"),
    ):
        figures = len(plt.get_fignums())
        with pytest.raises(ValueError, match=message):
            plot_partition(bad, **arguments)
        assert len(plt.get_fignums()) == figures


def observed(d: int = 1, n: int = 6) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(d)
    X = torch.rand(n, d, generator=g, dtype=torch.double)
    return X, torch.stack([X.sum(-1).exp(), 3 - 2 * X[:, 0]], dim=-1)


def cost(X: Tensor) -> Tensor:
    return -X[..., :1]


def plain(d: int = 1) -> DecomposedGP:
    X, parts = observed(d)
    known = GenericDeterministicModel(cost)
    first, second = (SingleTaskGP(X, part) for part in parts.split(1, dim=-1))
    return DecomposedGP(first, known, second)


def monotone(d: int = 1, **kwargs: Any) -> DecomposedGP:
    X, parts = observed(d)
    X = 10 * X
    box = torch.tensor([[0.0] * d, [10.0] * d], dtype=torch.double)
    signs = ({0: 1}, {0: -1})
    models = [
        MonotoneGP(
            X,
            parts[:, i : i + 1],
            signs[i],
            bounds=box,
            input_transform=Normalize(d, bounds=box),
            **kwargs,
        )
        for i in range(2)
    ]
    return DecomposedGP(*models)


def lines(ax: Axes) -> list[np.ndarray]:
    return [np.asarray(line.get_xydata()) for line in ax.lines]


def offsets(ax: Axes) -> np.ndarray:
    """Of the observations; triangles are last, where there are any."""
    return np.asarray(dots(ax)[0].get_offsets())


def test_panels_are_the_components_and_their_sum() -> None:
    model = plain()
    axes = plot_monotone_components(model)
    assert [ax.get_title() for ax in axes] == ["f1", "f2 (known)", "f3", "sum"]
    X, parts = observed()
    grid = torch.linspace(X.min().item(), X.max().item(), 201).double().unsqueeze(-1)
    shown = [*model.components, model]
    with torch.no_grad():
        for ax, part in zip(axes, shown, strict=True):
            (line,) = lines(ax)
            np.testing.assert_allclose(line[:, 0], grid.squeeze(-1), atol=1e-12)
            mean = part.posterior(grid.unsqueeze(-2)).mean.flatten()
            np.testing.assert_allclose(line[:, 1], mean, atol=1e-10)
        deviation = model.posterior(grid.unsqueeze(-2)).variance.sqrt().flatten()
    band = axes[-1].collections[0].get_paths()[0].vertices[:, 1]
    (line,) = lines(axes[-1])
    assert band.max() == pytest.approx((line[:, 1] + 2 * deviation.numpy()).max())
    np.testing.assert_allclose(
        np.sort(offsets(axes[0])[:, 1]), np.sort(parts[:, 0]), atol=1e-12
    )
    total = (parts.sum(-1) + cost(X).squeeze(-1)).numpy()
    np.testing.assert_allclose(np.sort(offsets(axes[3])[:, 1]), np.sort(total))
    assert not dots(axes[1])  # nothing was observed of what is known


def test_virtual_points_stand_where_they_are_and_point_where_it_goes() -> None:
    places = torch.tensor([[1.0], [4.0], [9.0]], dtype=torch.double)
    model = monotone(virtual_X=places)
    given = [(m.train_inputs[0], m.train_targets[:, None]) for m in model.models]
    without = DecomposedGP(*(SingleTaskGP(X, Y) for X, Y in given))
    axes = plot_monotone_components(model, without=without)
    for ax, up in zip(axes[:2], (True, False), strict=True):
        triangles = dots(ax)[-1]
        at = np.asarray(triangles.get_offsets())
        np.testing.assert_allclose(at[:, 0], [1.0, 4.0, 9.0], atol=1e-9)
        tip = triangles.get_paths()[0].vertices[0]
        assert bool(tip[1] > 0) == up
        assert len(lines(ax)) == 2
    assert len(dots(axes[2])) == 1  # observations only


def test_a_slice_of_two_dimensions() -> None:
    model = plain(2)
    X, parts = observed(2)
    best = int((parts.sum(-1) + cost(X).squeeze(-1)).argmax())
    axes = plot_monotone_components(model, column=1)
    assert axes[0].get_xlabel() == "x1"
    points = dots(axes[0])[0]
    on_line = np.asarray(points.get_alpha()) == 1.0
    np.testing.assert_allclose(
        np.asarray(points.get_offsets())[on_line],
        [[X[best, 1].item(), parts[best, 0].item()]],
        atol=1e-9,
    )


def test_components_observed_at_different_points_have_no_observed_sum() -> None:
    X, parts = observed()
    model = DecomposedGP(
        SingleTaskGP(X, parts[:, :1]), SingleTaskGP(X[:4], parts[:4, 1:])
    )
    axes = plot_monotone_components(model)
    assert [len(offsets(ax)) for ax in axes[:2]] == [6, 4]
    assert not dots(axes[2])


def test_wrong_arguments_of_components() -> None:
    model = plain()
    X, parts = observed()
    batch = SingleTaskGP(X.expand(2, -1, -1), parts[:, :1].expand(2, -1, -1))
    for arguments, message in (
        ({"without": SingleTaskGP(X, parts[:, :1])}, "a model of 3 components, got 1"),
        ({"column": 1}, "column: expected columns from 0 to 0"),
        ({"names": ["a"]}, "names: expected 3"),
        ({"names": "abc"}, "names: expected 3 names, got 'abc'"),
        ({"axes": [None]}, "axes: expected 4"),
        ({"bounds": torch.zeros(2, 2)}, "bounds: expected a 2 x 1"),
    ):
        figures = len(plt.get_fignums())
        with pytest.raises(ValueError, match=message):
            plot_monotone_components(model, **arguments)
        assert len(plt.get_fignums()) == figures
    with pytest.raises(ValueError, match="without a batch shape"):
        plot_monotone_components(batch)
