from __future__ import annotations

import math

import torch
from botorch.acquisition import LogExpectedImprovement, PosteriorMean
from botorch.models import SingleTaskGP
from torch import Tensor

from botorch_structured.optim.evaluation import Evaluator


def make() -> tuple[LogExpectedImprovement, Tensor]:
    X = torch.rand(9, 2, dtype=torch.double)
    model = SingleTaskGP(X, X.sum(-1, keepdim=True))
    return LogExpectedImprovement(model, X.sum(-1).max()), torch.rand(23, 2).double()


def test_pieces_make_no_difference() -> None:
    acqf, X = make()
    whole, parts = Evaluator(acqf), Evaluator(acqf, batch_limit=5)
    expected = acqf(X.unsqueeze(1))
    assert torch.allclose(whole.values(X), expected)
    assert torch.allclose(parts.values(X), expected)
    assert not parts.values(X).requires_grad
    value, gradient = parts.value_and_gradient(X)
    leaf = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(acqf(leaf.unsqueeze(1)).sum(), leaf)
    assert torch.allclose(value, expected)
    assert torch.allclose(gradient, slope)
    assert parts.values(X[:0]).shape == (0,)


def test_nan_is_worst(peak) -> None:
    class Broken(peak):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, X: Tensor) -> Tensor:
            return X[..., 0, 0].sqrt()

    X = torch.tensor([[-1.0], [4.0]], dtype=torch.double)
    assert Evaluator(Broken()).values(X).tolist() == [-math.inf, 2.0]
    value, gradient = Evaluator(Broken()).value_and_gradient(X)
    assert value.tolist() == [-math.inf, 2.0]
    assert gradient.tolist() == [[0.0], [0.25]]


def test_parameters_are_frozen_for_a_while() -> None:
    acqf, X = make()
    raw = dict(acqf.model.named_parameters())
    next(iter(raw.values())).requires_grad_(False)
    before = {name: p.requires_grad for name, p in raw.items()}
    evaluator = Evaluator(PosteriorMean(acqf.model))
    try:
        with evaluator.frozen():
            assert not any(p.requires_grad for p in acqf.model.parameters())
            raise RuntimeError
    except RuntimeError:
        pass
    assert {name: p.requires_grad for name, p in raw.items()} == before
