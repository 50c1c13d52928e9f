"""Designs of virtual points, boxes they fill, and signs under transforms."""

from __future__ import annotations

import pytest
import torch
from botorch.models.transforms.input import (
    AffineInputTransform,
    ChainedInputTransform,
    FilterFeatures,
    Normalize,
    Round,
)

from botorch_structured.models.monotone.monotone_gp import (
    default_virtual_points,
    moved_column,
    transformed_box,
)

DOUBLE = {"dtype": torch.float64}


def test_grids() -> None:
    box = torch.tensor([[0.0, -1.0, 5.0], [2.0, 1.0, 6.0]], **DOUBLE)
    for d, side in ((1, 10), (2, 10), (3, 4)):
        points = default_virtual_points(box[:, :d])
        assert points.shape == (side**d, d)
        for j in range(d):
            expected = torch.linspace(box[0, j].item(), box[1, j].item(), side)
            values = points[:, j].unique()
            torch.testing.assert_close(values, expected.double(), rtol=1e-6, atol=1e-6)


def test_beyond_grids() -> None:
    box = torch.tensor([[-1.0] * 5, [3.0] * 5], **DOUBLE)
    points = default_virtual_points(box)
    assert points.shape == (64, 5)
    assert ((points > -1.0) & (points < 3.0)).all()
    # 64 points of a Sobol sequence: 32 in each half of each column
    assert ((points > 1.0).sum(0) == 32).all()
    assert torch.equal(points, default_virtual_points(box))
    assert default_virtual_points(box[:, :1], count=7).shape == (7, 1)


def test_boxes() -> None:
    X = torch.tensor([[0.2, 3.0], [0.7, 9.0], [1.0 + 1e-9, -4.0]], **DOUBLE)
    expected = torch.tensor([[0.0, -4.0], [1.0, 9.0]], **DOUBLE)
    assert torch.equal(transformed_box(None, X, None), expected)
    assert torch.equal(transformed_box(None, X.expand(2, 3, 2), None), expected)
    bounds = torch.tensor([[1.0, 2.0], [3.0, 6.0]], **DOUBLE)
    assert torch.equal(transformed_box(bounds, X, None), bounds)
    reverse = AffineInputTransform(
        2, torch.tensor([-1.0, 2.0], **DOUBLE), torch.zeros(2, **DOUBLE)
    )
    box = transformed_box(bounds, X, reverse)
    torch.testing.assert_close(box, torch.tensor([[-3.0, 1], [-1, 3]], **DOUBLE))


def test_columns() -> None:
    X = torch.tensor([[0.1, 2.0, 0.3], [0.4, 7.0, 0.8]], **DOUBLE)
    assert moved_column(2, X, None) == (2, 1)
    # a column is dropped before them, and one is reversed
    chain = ChainedInputTransform(
        drop=FilterFeatures(torch.tensor([1, 2])),
        integers=Round(integer_indices=[0]),
        turn=AffineInputTransform(
            2, torch.tensor([3.0, -1.0], **DOUBLE), torch.zeros(2, **DOUBLE)
        ),
    )
    assert moved_column(1, X, chain) == (0, 1)
    assert moved_column(2, X, chain) == (1, -1)
    # nothing is learned from the points it looks at
    normalize = Normalize(3).double()
    normalize(X)
    before = normalize.bounds.clone()
    same = X[:1].expand(2, 3)
    assert moved_column(0, same, normalize) == (0, 1)
    assert torch.equal(normalize.bounds, before)
    with pytest.raises(ValueError, match=r"column 0 .* FilterFeatures moves \[\]"):
        moved_column(0, X, FilterFeatures(torch.tensor([1, 2])))
