"""MonotoneGP: degenerate data, odd transforms, and arguments of a wrong kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from botorch.models.transforms import Normalize
from botorch.models.transforms.outcome import OutcomeTransform, Power
from gpytorch.kernels import RBFKernel
from torch import Tensor

from botorch_structured.models import MonotoneGP
from botorch_structured.models.monotone import virtual_points
from botorch_structured.models.monotone.virtual_points import transformed_box

POINTS = torch.tensor([[0.1, 0.2], [0.8, 0.5]], dtype=torch.float64)


pytestmark = pytest.mark.usefixtures("double")


def make_data(n: int = 6) -> tuple[Tensor, Tensor]:
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0))
    return X, 1.0 + X[:, :1] + 0.1 * torch.sin(9.0 * X[:, 1:])


class _Reversed(OutcomeTransform):
    """Outcomes with the other sign."""

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return -Y, Yvar

    untransform = forward


@pytest.mark.parametrize("transform", [Power(-1.0), _Reversed()])
@pytest.mark.parametrize("rows", ["one", "constant"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_reversing_transform_of_outcomes_without_order(
    transform: OutcomeTransform, rows: str, outputs: int
) -> None:
    """Data cannot tell that the order is reversed; the transform can."""
    X, Y = make_data()
    X, Y = (X[:1], Y[:1]) if rows == "one" else (X, torch.full_like(Y, 2.0))
    Y = Y.expand(-1, outputs)
    model = MonotoneGP(
        X, Y, {0: 1, 1: -1}, outcome_transform=transform, virtual_X=POINTS
    )
    signs = torch.tensor([-1.0, -1.0, 1.0, 1.0])
    torch.testing.assert_close(model.site_signs, signs.expand_as(model.site_signs))
    for column in (0, 1):
        assert (model.probability_monotone(POINTS, column) > 0.7).all()


def test_no_virtual_point_is_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where data contradict the sign, so that it remains in doubt there."""
    monkeypatch.setattr(virtual_points, "_CANDIDATES", 8)
    X, _ = make_data()
    model = MonotoneGP(X, -3.0 * X[:, :1], {0: 1}, virtual_X="adaptive", nu=1.0)
    model.likelihood.noise = 1e-4
    model.eval()
    first = len(model.virtual_points)
    added = model.add_virtual_points()
    assert first + added == 8
    assert model.add_virtual_points() == 0
    assert len(model.virtual_points.unique(dim=0)) == 8


def test_batch_of_input_transforms() -> None:
    """Elements share virtual points on the model's axes, so these must agree."""
    X, Y = make_data()
    X, Y = torch.stack([X, 3.0 * X]), torch.stack([Y, Y])

    def transform() -> Normalize:
        return Normalize(2, batch_shape=torch.Size([2]))

    bounds = torch.tensor([[0.0, 0.0], [3.0, 3.0]])
    kwargs = {"virtual_X": "grid", "bounds": bounds}
    model = MonotoneGP(X, Y, {0: 1}, input_transform=transform(), **kwargs)
    one = transform()
    one(X)
    one.eval()
    corners = one(bounds.expand(2, 2, 2)).flatten(0, 1)
    torch.testing.assert_close(model.virtual_points.amax(0), corners.amax(0))
    torch.testing.assert_close(
        transformed_box(bounds, X, one),
        torch.stack([corners.amin(0), corners.amax(0)]),
    )
    with pytest.raises(ValueError, match="virtual_X: .* same for all elements of a ba"):
        MonotoneGP(X, Y, {0: 1}, input_transform=transform(), virtual_X=POINTS)
    # a batch whose elements are transformed alike may have them
    model = MonotoneGP(X, Y, {0: 1}, input_transform=Normalize(2), virtual_X=POINTS)
    assert model.virtual_points.shape == (2, 2)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"monotone": [0]}, r"monotone: expected {column: .*}, got a list: \[0\]"),
        ({"monotone": None}, "monotone: expected .*, got a NoneType"),
        ({"bounds": [[0.0, 0.0], [1.0, 1.0]]}, "bounds: expected a tensor, 2 x 2"),
        ({"virtual_X": np.zeros((3, 2))}, "virtual_X: expected a tensor, "),
        ({"nu": True}, "nu: expected a positive number, got True"),
        ({"signs_in_fit": "no"}, "signs_in_fit: expected True or False, got 'no'"),
        ({"signs_in_fit": 2}, "signs_in_fit: expected True or False, got 2"),
        ({"signs_in_fit": None}, "signs_in_fit: expected True or False, got None"),
    ],
)
def test_arguments_of_a_wrong_kind(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MonotoneGP(*make_data(), **({"monotone": {0: 1}} | kwargs))


def test_derivative_at_what_is_no_input() -> None:
    X, Y = make_data()
    model = MonotoneGP(
        X, Y, {0: 1}, covar_module=RBFKernel(active_dims=(0,)), virtual_X=POINTS
    )
    with pytest.raises(ValueError, match=r"expected a kernel that sees column 1, .*0"):
        model.derivative_posterior(X, 1)
    for wrong in (X[:, :1], X[0]):  # the former would be broadcast
        with pytest.raises(
            ValueError, match=r"X: expected ``batch_shape x q x 2``, got"
        ):
            model.probability_monotone(wrong, 0)
