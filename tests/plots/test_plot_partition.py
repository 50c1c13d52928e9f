from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, QuadMesh
from torch import Tensor

from botorch_structured.models.treed.treed_gp import TreedGP
from botorch_structured.plots import plot_partition


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


def segments(ax: Axes) -> np.ndarray:
    (lines,) = [c for c in ax.collections if isinstance(c, LineCollection)]
    return np.asarray(lines.get_segments()).reshape(-1, 2, 2)


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
    def test_borders_are_where_the_partition_changes(self) -> None:
        X, Y = data(1)
        ax = plot_partition(TreedStandIn(X, Y))
        assert vertical(ax) == pytest.approx([0.3, 0.8], abs=1e-9)
        counts = [int((X <= 0.3).sum()), 0, int((X > 0.8).sum())]
        counts[1] = len(X) - sum(counts)
        assert [t.get_text() for t in ax.texts] == [f"n = {c}" for c in counts]
        assert [t.xy[0] for t in ax.texts] == pytest.approx([0.15, 0.55, 0.9])

    def test_curves_are_the_posterior_and_stop_at_borders(self) -> None:
        X, Y = data(1)
        model = TreedStandIn(X, Y)
        ax = plot_partition(model, resolution=51)
        pieces = curves(ax)
        assert len(pieces) == 3
        ends = [(p[0, 0], p[-1, 0]) for p in pieces]
        assert np.ravel(ends) == pytest.approx([0, 0.3, 0.3, 0.8, 0.8, 1], abs=1e-8)
        assert pieces[0][-1, 0] <= 0.3 < pieces[1][0, 0]  # 0.3 itself is on the left
        for k, piece in enumerate(pieces):
            x = torch.as_tensor(piece[:, :1])
            with torch.no_grad():
                posterior = model.posterior(x.unsqueeze(-2))
            np.testing.assert_allclose(piece[:, 1], posterior.mean.flatten(), atol=1e-8)
            band = ax.collections[k].get_paths()[0].vertices[:, 1]
            high = (posterior.mean + 2 * posterior.variance.sqrt()).max().item()
            assert band.max() == pytest.approx(high, abs=1e-8)
        # ten higher in each region
        assert pieces[1][0, 1] - pieces[0][-1, 1] == pytest.approx(10, abs=1e-3)

    def test_observations_are_as_they_were_given(self) -> None:
        X, Y = data(1)
        low_high = torch.tensor([[-4.0], [6.0]], dtype=torch.double)
        inputs = 10 * X - 4
        model = TreedStandIn(inputs, Y, input_transform=Normalize(1, bounds=low_high))
        ax = plot_partition(model)
        (points,) = dots(ax)
        expected = torch.cat([inputs, Y], dim=-1)
        np.testing.assert_allclose(np.asarray(points.get_offsets()), expected)
        # 0.3 and 0.8 of what the transform makes of them
        assert vertical(ax) == pytest.approx([-1.0, 4.0], abs=1e-8)
        assert not dots(plot_partition(model, data=False))

    def test_a_plain_gp_is_one_region(self) -> None:
        ax = plot_partition(SingleTaskGP(*data(1)))
        assert len(curves(ax)) == 1
        assert not vertical(ax)
        assert not ax.texts

    def test_noise_widens_the_band(self) -> None:
        model = SingleTaskGP(*data(1))
        model.likelihood.noise = 0.5
        heights = []
        for noise in (False, True):
            ax = plot_partition(model, observation_noise=noise, data=False)
            heights.append(np.ptp(ax.collections[0].get_paths()[0].vertices[:, 1]))
        assert heights[1] > heights[0] + 0.5

    def test_narrow_regions_are_drawn_and_not_labelled(self) -> None:
        bounds = torch.tensor([[0.29], [2.0]], dtype=torch.double)
        ax = plot_partition(TreedStandIn(*data(1)), bounds=bounds)
        assert vertical(ax) == pytest.approx([0.3, 0.8], abs=1e-9)
        assert len(ax.texts) == 2
        assert ax.get_xlim() == pytest.approx((0.29, 2.0))


class TestTwoDimensions:
    def test_borders_are_lines_at_the_splits(self) -> None:
        ax = plot_partition(TreedStandIn(*data(2)), resolution=31)
        ends = segments(ax)
        upright = np.isclose(ends[:, 0, 0], ends[:, 1, 0])
        assert ends[upright][..., 0] == pytest.approx(0.3, abs=1e-9)
        across = ends[~upright]
        assert across[..., 1] == pytest.approx(0.8, abs=1e-9)
        cell = 1 / 30
        # from edge to edge, and from the first border to the edge, without a gap
        for line, start in ((ends[upright][..., 1], 0.0), (across[..., 0], 0.3)):
            line = np.sort(line, axis=-1)[line.min(-1).argsort()]
            np.testing.assert_allclose(line[1:, 0], line[:-1, 1], atol=1e-12)
            assert line[0, 0] == pytest.approx(start, abs=cell)
            assert line[-1, 1] == pytest.approx(1.0, abs=cell)

    @pytest.mark.parametrize("show", ["mean", "std"])
    def test_the_surface_is_the_posterior(self, show: str) -> None:
        X, Y = data(2)
        model = TreedStandIn(X, Y, outcome_transform=Standardize(1))
        bounds = torch.tensor([[-1.0, 0.0], [1.0, 0.5]], dtype=torch.double)
        ax = plot_partition(model, bounds=bounds, show=show, resolution=11)
        (mesh,) = [c for c in ax.collections if isinstance(c, QuadMesh)]
        drawn = np.asarray(mesh.get_array()).reshape(11, 11)
        corners = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.5]]).double()
        with torch.no_grad():
            posterior = model.posterior(corners.unsqueeze(-2))
        values = posterior.mean if show == "mean" else posterior.variance.sqrt()
        found = [drawn[0, 0], drawn[0, -1], drawn[-1, 0]]
        np.testing.assert_allclose(found, values.flatten(), atol=1e-6)
        np.testing.assert_allclose(np.asarray(dots(ax)[0].get_offsets()), X)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("x0", "x1")
        label = "mean" if show == "mean" else "standard deviation"
        assert ax.figure.axes[1].get_ylabel() == label

    def test_options(self) -> None:
        ax = plt.subplots()[1]
        model = SingleTaskGP(*data(2))
        drawn = plot_partition(
            model, ax, names=("depth", "width"), colorbar=False, resolution=5
        )
        assert drawn is ax
        assert ax.figure.axes == [ax]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("depth", "width")
        assert not len(segments(ax))


def test_a_treed_gp() -> None:
    """Two regimes with a step: borders and counts are those of its own nodes."""
    X = 10 * data(1, 40)[0]
    Y = torch.where(X <= 6, torch.sin(X / 3), 5 + torch.sin(6 * X))
    bounds = torch.tensor([[0.0], [10.0]], dtype=torch.double)
    model = TreedGP(X, Y, input_transform=Normalize(1, bounds=bounds), max_leaves=2)
    root, left, _ = model.partition.nodes
    ax = plot_partition(model, bounds=bounds)
    assert vertical(ax) == pytest.approx([10 * root.split.threshold])
    # the point at the border is in both nodes, and is predicted by the left one
    assert [t.get_text() for t in ax.texts] == [
        f"n = {left.size}",
        f"n = {len(X) - left.size}",
    ]
    assert len(curves(ax)) == 2


def test_the_model_is_left_as_it_was() -> None:
    """A transform that learns its bounds must not learn those of the picture."""
    X, Y = data(2)
    model = TreedStandIn(X, Y, input_transform=Normalize(2))
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    wide = torch.tensor([[-9.0, -9.0], [9.0, 9.0]], dtype=torch.double)
    ax = plot_partition(model, bounds=wide, resolution=9)
    assert model.training
    assert torch.equal(model.train_inputs[0], X)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    np.testing.assert_allclose(np.asarray(dots(ax)[0].get_offsets()), X)
    model.eval()
    again = plot_partition(model, bounds=wide, resolution=9)
    assert not model.training
    np.testing.assert_array_equal(segments(ax), segments(again))


def test_wrong_arguments() -> None:
    model = SingleTaskGP(*data(1))
    X, Y = data(3)
    for bad, arguments, message in (
        (SingleTaskGP(X, Y), {}, "one or two inputs to draw, got 3"),
        (SingleTaskGP(X[:, :1], torch.cat([Y, Y], -1)), {}, "without a batch shape"),
        (object(), {}, "with training data, got object"),
        (model, {"show": "median"}, "show: expected"),
        (model, {"names": ("a", "b")}, "names: expected 1 names"),
        (model, {"bounds": torch.tensor([[0.0, 1.0]])}, "bounds: expected a 2 x 1"),
        (model, {"bounds": torch.tensor([[1.0], [1.0]])}, "lower ones below"),
    ):
        figures = len(plt.get_fignums())
        with pytest.raises(ValueError, match=message):
            plot_partition(bad, **arguments)
        assert len(plt.get_fignums()) == figures
