"""The one that fails, and says which, when a library that we build on has changed."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import pytest
import torch
from botorch.models import ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.transforms.outcome import Log, Standardize
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import NormalPrior

from botorch_structured._botorch_names import ATTRIBUTES

NAMES = [(kind, name) for kind, names in ATTRIBUTES.items() for name in names]


@cache
def instances() -> dict[str, Any]:
    """What sets some of its attributes in its constructor, by class."""
    X = torch.rand(4, 2, dtype=torch.float64)
    Y = X[:, :1].exp()
    T = torch.cat([X, X[:, :1].round()], dim=-1)
    model = SingleTaskGP(X, Y)
    log = SingleTaskGP(X, Y, outcome_transform=Log())
    standardize = Standardize(m=1)
    standardize(Y)
    made = {
        "botorch.models": [model, MultiTaskGP(T, Y, task_feature=2)],
        "botorch.models.transforms.outcome": [standardize],
        "botorch.posteriors": [log.posterior(X)],
        "gpytorch.distributions": [
            MultitaskMultivariateNormal(torch.zeros(3, 2), torch.eye(6))
        ],
        "gpytorch.kernels": [RBFKernel()],
        "gpytorch.likelihoods": [GaussianLikelihood()],
        "gpytorch.mlls": [ExactMarginalLogLikelihood(model.likelihood, model)],
        "gpytorch.priors": [NormalPrior(0.0, 1.0)],
    }
    found = {
        f"{module}.{type(x).__name__}": x for module, many in made.items() for x in many
    }
    found["botorch.models.ModelListGP"] = ModelListGP(model)
    found["gpytorch.kernels.Kernel"] = RBFKernel()
    found["gpytorch.models.ExactGP"] = found["torch.nn.Module"] = model
    assert "botorch.posteriors.TransformedPosterior" in found  # as Log makes one
    return found


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_is_there(kind: str, name: str) -> None:
    module, _, cls = kind.rpartition(".")
    found = instances().get(kind, getattr(importlib.import_module(module), cls))
    assert hasattr(found, name), f"{kind} has no {name} any more."
