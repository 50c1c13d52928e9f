"""Moments by some columns of rows against those of the same rows in all columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputStandardize,
    Log10,
    Warp,
)
from hypothesis import assume, given
from leaf_models import random_model, some_points
from strategies import seeds
from torch import Tensor

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree.local_moments import ColumnScales
from botorch_structured.spaces import ParameterTree

pytestmark = pytest.mark.usefixtures("double")


TREE = ParameterTree(6, {0: {0.0: [1, 2], 1.0: [3], 2.0: []}})


def changed(X: Tensor, columns: Any, values: Any) -> Tensor:
    """All ``S w`` rows."""
    every = X.unsqueeze(1).repeat(1, values.shape[1], 1)
    index = torch.from_numpy(columns).unsqueeze(1).expand(values.shape)
    return every.scatter(-1, index, torch.from_numpy(values)).flatten(0, 1)


def check(near: Any, moments: Any, X: Tensor, columns: Any, values: Any) -> None:
    """All rows at once, some of them, and all of them again."""
    every = moments(changed(X, columns, values), gradient=True)
    expected = [t.detach().numpy().reshape(*values.shape[:2], -1) for t in every]
    for rows in (np.arange(len(X)), np.array([len(X) - 1, 0]), np.arange(len(X))):
        found = near(values[rows], rows)
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            b = b[rows]
            if k >= 2:
                b = np.take_along_axis(b, columns[rows][:, None], -1)
            np.testing.assert_allclose(a.reshape(b.shape), b, rtol=1e-9, atol=1e-9)


@given(seeds)
def test_of_random_trees(seed: int) -> None:
    model = random_model(seed)
    moments, tree = model._moments(), model.tree
    categorical = {*moments._codes}
    numeric = {*range(tree.dim)} - {*tree.decision_columns} - categorical
    assume(numeric)
    X = some_points(model, 5, seed)
    rng = np.random.default_rng(seed)
    k = min(3, len(numeric))
    columns = np.stack([rng.permutation(sorted(numeric))[:k] for _ in X])
    near = moments.near(X, columns, path=False)
    if tree.numeric_decisions:  # a path is not fixed by the values of decisions
        assert near is None
        return
    assert near is not None
    values = rng.uniform(-0.5, 1.5, (5, 4, k))
    check(near, moments, X, columns, values)
    if type(model) is TreeStructuredGP:
        of_weights = moments.near(X, columns, path=True)
        found = of_weights(values, np.arange(5))
        every = moments(changed(X, columns, values), gradient=True, path=True)
        np.testing.assert_allclose(found.mean.ravel(), every.mean, atol=1e-9)
        np.testing.assert_allclose(found.variance.ravel(), every.variance, atol=1e-9)


def transforms() -> dict[str, Any]:
    numbers = [1, 2, 3, 4, 5]
    normalize = Normalize(6, indices=numbers)
    return {
        "none": None,
        "normalize": normalize,
        "chain": ChainedInputTransform(log=Log10(indices=[2, 4]), normalize=normalize),
    }


@pytest.mark.parametrize("name", ["none", "normalize", "chain"])
@pytest.mark.parametrize("kind", [TreeStructuredGP, ConditionalGP])
@pytest.mark.parametrize("offset", ["random", "fixed"])
def test_on_the_scale_of_outcomes(name: str, kind: Any, offset: str) -> None:
    """With transforms of inputs and outcomes, and with a mean for each path."""
    g = torch.Generator().manual_seed(0)
    X = 0.1 + 4.0 * torch.rand(30, 6, generator=g)
    X[:, 0] = torch.randint(3, (30,), generator=g).double()
    Y = 30.0 + 7.0 * X[:, 1:].sin().sum(-1, keepdim=True)
    options = {} if kind is ConditionalGP else {"leaf_offset": offset}
    model = kind(X, Y, TREE, input_transform=transforms()[name], **options)
    if offset == "fixed" and kind is TreeStructuredGP:
        with torch.no_grad():
            model.mean_module.raw_offset += torch.arange(3.0)
    columns = np.array([[1, 2], [3, 4], [5, 1]])
    values = 0.2 + 3.0 * torch.rand(3, 4, 2, generator=g).numpy()
    near = model.moments_near(X[:3], columns)
    check(near, model.point_moments, X[:3], columns, values)


def test_what_transforms_are_known() -> None:
    X, columns = 0.1 + torch.rand(5, 6), np.tile(np.arange(6), (5, 1))
    bounds = torch.stack([X.amin(0), X.amax(0)])
    for transform in transforms().values():
        if transform is not None:
            transform(X)  # learns its bounds
            transform.eval()
        scales = ColumnScales.of(transform, 6)
        assert scales is not None
        found, rate = scales.near(columns)(X.numpy()[:, None], np.arange(5))
        leaf = X.clone().requires_grad_()
        expected = leaf if transform is None else transform(leaf)
        (slope,) = torch.autograd.grad(expected.sum(), leaf)
        np.testing.assert_allclose(found[:, 0], expected.detach(), atol=1e-12)
        np.testing.assert_allclose(np.broadcast_to(rate[:, 0], (5, 6)), slope)
    others = [
        InputStandardize(6),
        Normalize(6, reverse=True, bounds=bounds),
        Warp(6, indices=[1]),
        ChainedInputTransform(a=Normalize(6, bounds=bounds), log=Log10(indices=[1])),
    ]
    assert not any(ColumnScales.of(other, 6) for other in others)


def test_large_leaves_are_left_to_the_general_form() -> None:
    X = torch.rand(300, 6)
    X[:, 0] = 0.0
    model = TreeStructuredGP(X, X[:, 1:2].sin(), TREE)
    columns = np.array([[1, 2]]).repeat(16, 0)
    assert model.moments_near(X[:16], columns) is None
    assert model.moments_near(X[:2], columns[:2]) is not None
