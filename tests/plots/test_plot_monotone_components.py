from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.transforms import Normalize
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from torch import Tensor

from botorch_structured.models import DecomposedGP, MonotoneGP, TreeStructuredGP
from botorch_structured.plots import plot_monotone_components


def data(d: int = 1, n: int = 6) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(d)
    X = torch.rand(n, d, generator=g, dtype=torch.double)
    return X, torch.stack([X.sum(-1).exp(), 3 - 2 * X[:, 0]], dim=-1)


def cost(X: Tensor) -> Tensor:
    return -X[..., :1]


def plain(d: int = 1) -> DecomposedGP:
    X, parts = data(d)
    known = GenericDeterministicModel(cost)
    first, second = (SingleTaskGP(X, part) for part in parts.split(1, dim=-1))
    return DecomposedGP(first, known, second)


def monotone(d: int = 1, **kwargs: Any) -> DecomposedGP:
    X, parts = data(d)
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


def curves(ax: Axes) -> list[np.ndarray]:
    return [np.asarray(line.get_xydata()) for line in ax.lines]


def dots(ax: Axes) -> list[PathCollection]:
    return [c for c in ax.collections if isinstance(c, PathCollection)]


def offsets(ax: Axes) -> np.ndarray:
    """Of the observations; triangles are last, where there are any."""
    return np.concatenate([np.asarray(c.get_offsets()) for c in dots(ax)[:2]])


def test_panels_are_the_components_and_their_sum() -> None:
    model = plain()
    axes = plot_monotone_components(model, resolution=11)
    assert [ax.get_title() for ax in axes] == ["f1", "f2 (known)", "f3", "sum"]
    X, parts = data()
    grid = torch.linspace(X.min().item(), X.max().item(), 11).double().unsqueeze(-1)
    shown = [*model.components, model]
    with torch.no_grad():
        for ax, part in zip(axes, shown, strict=True):
            (line,) = curves(ax)
            np.testing.assert_allclose(line[:, 0], grid.squeeze(-1), atol=1e-12)
            mean = part.posterior(grid.unsqueeze(-2)).mean.flatten()
            np.testing.assert_allclose(line[:, 1], mean, atol=1e-10)
        deviation = model.posterior(grid.unsqueeze(-2)).variance.sqrt().flatten()
    band = axes[-1].collections[0].get_paths()[0].vertices[:, 1]
    (line,) = curves(axes[-1])
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
    axes = plot_monotone_components(model, without=without, resolution=5)
    for ax, up in zip(axes[:2], (True, False), strict=True):
        triangles = dots(ax)[-1]
        at = np.asarray(triangles.get_offsets())
        np.testing.assert_allclose(at[:, 0], [1.0, 4.0, 9.0], atol=1e-9)
        tip = triangles.get_paths()[0].vertices[0]
        assert bool(tip[1] > 0) == up
        assert len(curves(ax)) == 2
    (legend,) = axes[0].figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["without monotonicity", "with monotonicity", "virtual points"]
    assert len(dots(axes[2])) == 2  # observations only
    x = np.sort(offsets(axes[0])[:, 0])
    np.testing.assert_allclose(x, np.sort(10 * data()[0].flatten()), atol=1e-9)


def test_a_slice_of_two_dimensions() -> None:
    model = plain(2)
    X, parts = data(2)
    best = int(parts.sum(-1).argmax())
    axes = plot_monotone_components(model, column=1, resolution=5)
    assert axes[0].get_xlabel() == "x1"
    hollow, filled = dots(axes[0])[:2]
    assert len(hollow.get_offsets()) == len(X) - 1
    np.testing.assert_allclose(
        np.asarray(filled.get_offsets()),
        [[X[best, 1].item(), parts[best, 0].item()]],
        atol=1e-9,
    )
    at = torch.tensor([0.2, 0.7], dtype=torch.double)
    low_high = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.double)
    axes = plot_monotone_components(
        model, column=0, at=at, bounds=low_high, resolution=5
    )
    (line,) = curves(axes[0])
    points = torch.tensor([[x, 0.7] for x in (0.0, 0.25, 0.5, 0.75, 1.0)]).double()
    with torch.no_grad():
        mean = model.models[0].posterior(points).mean.flatten()
    np.testing.assert_allclose(line[:, 1], mean, atol=1e-8)
    assert axes[0].get_xlim() == pytest.approx((0.0, 1.0))


def test_components_observed_at_different_points_have_no_observed_sum() -> None:
    X, parts = data()
    model = DecomposedGP(
        SingleTaskGP(X, parts[:, :1]), SingleTaskGP(X[:4], parts[:4, 1:])
    )
    axes = plot_monotone_components(model, resolution=5)
    assert [len(offsets(ax)) for ax in axes[:2]] == [6, 4]
    assert not dots(axes[2])


def test_the_model_is_left_as_it_was() -> None:
    X, parts = data()
    model = DecomposedGP(
        *(SingleTaskGP(X, p, input_transform=Normalize(1)) for p in parts.split(1, -1))
    )
    model.train()
    wide = torch.tensor([[-9.0], [9.0]], dtype=torch.double)
    plot_monotone_components(model, bounds=wide, resolution=5)
    assert model.training and model.models[0].training
    close = model.models[0].input_transform.bounds
    assert close.flatten().tolist() == pytest.approx([X.min().item(), X.max().item()])


def test_wrong_arguments() -> None:
    model = plain()
    X, parts = data()
    batch = SingleTaskGP(X.expand(2, -1, -1), parts[:, :1].expand(2, -1, -1))
    for arguments, message in (
        ({"without": SingleTaskGP(X, parts[:, :1])}, "a model of 3 components, got 1"),
        ({"column": 1}, "column: expected one of 0 to 0"),
        ({"names": ["a"]}, "names: expected 3"),
        ({"names": "abc"}, "names: expected 3 names, got 'abc'"),
        ({"at": torch.zeros(2)}, "at: expected a tensor of 1 values"),
        ({"at": 0.5}, "at: expected a tensor of 1 values, got 0.5"),
        ({"axes": [None]}, "axes: expected 4"),
        ({"bounds": torch.zeros(2, 2)}, "bounds: expected a 2 x 1"),
    ):
        figures = len(plt.get_fignums())
        with pytest.raises(ValueError, match=message):
            plot_monotone_components(model, **arguments)
        assert len(plt.get_fignums()) == figures
    with pytest.raises(ValueError, match="without a batch shape"):
        plot_monotone_components(batch)
    X = torch.tensor([[0, 0.1], [0, 0.9], [1, 0.3], [1, 0.6]], dtype=torch.double)
    tree = TreeStructuredGP(X, X.sum(-1, keepdim=True), {0: {0: [1], 1: []}})
    with pytest.raises(ValueError, match=r"column: .*decision 0, which .*\[0.0, 1.0\]"):
        plot_monotone_components(tree)
    assert len(plot_monotone_components(tree, column=1)) == 1
