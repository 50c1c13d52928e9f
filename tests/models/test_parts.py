from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import nn

from botorch_structured.models import TreeStructuredGP
from botorch_structured.models.parts import named_parameters_of, named_parts
from botorch_structured.test_functions import JenattonTree


def shared() -> nn.Module:
    """A part and a parameter that are there twice, and a part that is None."""
    layer = nn.Linear(2, 2)
    other = nn.Linear(2, 2)
    other.weight = layer.weight
    module = nn.ModuleDict({"a": nn.Sequential(layer, nn.ReLU()), "b": other})
    module["c"] = layer
    module.register_module("none", None)
    module.register_parameter("no_parameter", None)
    module.own = nn.Parameter(torch.zeros(1))
    return module


def model() -> nn.Module:
    problem = JenattonTree()
    X = problem.space.starts(8, seed=0)
    fitted = TreeStructuredGP(X, problem(X).unsqueeze(-1), problem.space)
    return ExactMarginalLogLikelihood(fitted.likelihood, fitted)


def botorchs() -> nn.Module:
    X = torch.rand(4, 2, dtype=torch.double)
    return SingleTaskGP(X, X.sum(-1, keepdim=True))


@pytest.mark.parametrize("make", [shared, model, botorchs])
def test_are_those_of_torch_in_its_order(make: Callable[[], nn.Module]) -> None:
    module = make()
    assert named_parts(module) == list(module.named_modules())
    found, expected = named_parameters_of(module), dict(module.named_parameters())
    assert list(found) == list(expected)
    assert all(found[name] is expected[name] for name in expected)
