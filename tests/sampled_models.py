"""Models with samples of hyperparameters, for tests of what averages over them."""

import copy
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from torch import Tensor

from botorch_structured.models import TreeStructuredGP
from botorch_structured.models.sampled.sampled_gp import SampledGP

S, N, D = 4, 14, 3
DEPENDENCIES = {0: {0.0: [1], 1.0: [2]}}
BOUNDS = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.double)


def data(seed: int = 0, n: int = N, m: int = 1, d: int = D) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.double)
    noise = 0.05 * torch.randn(n, m, generator=g, dtype=torch.double)
    phase = torch.arange(m, dtype=torch.double)
    return X, (4.0 * X.sum(-1, keepdim=True) + phase).sin() + noise


def points(*shape: int, seed: int = 9, d: int = D) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, d, generator=g, dtype=torch.double)


def samples(model: GPyTorchModel, num: int = S, seed: int = 0) -> list[GPyTorchModel]:
    """Copies of a model, each with hyperparameters of its own."""
    g = torch.Generator().manual_seed(seed)
    copies = []
    for _ in range(num):
        new = copy.deepcopy(model)
        for parameter in new.parameters():
            if parameter.requires_grad:
                step = torch.rand(parameter.shape, generator=g, dtype=torch.double)
                parameter.data.add_(0.4 * step.to(parameter))
        copies.append(new.eval())
    return copies


def sampled(seed: int = 0, **kwargs: Any) -> SampledGP:
    X, Y = data(seed)
    return SampledGP(samples(SingleTaskGP(X, Y, **kwargs), seed=seed))


def tree_model(seed: int = 0, n: int = N, **kwargs: Any) -> TreeStructuredGP:
    X, Y = data(seed, n)
    X[:, 0] = (X[:, 0] > 0.5).double()
    return TreeStructuredGP(X, Y, DEPENDENCIES, **kwargs)


def definition(model: SampledGP, X: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Means and covariances of the models one by one, and nothing of ``SampledGP``."""
    posteriors = [copy.deepcopy(m).posterior(X, **kwargs) for m in model.models]
    mean = torch.stack([p.mean for p in posteriors], dim=-3)
    covariance = [p.distribution.covariance_matrix for p in posteriors]
    return mean, torch.stack(covariance, dim=-3)


def assert_is_definition(
    model: SampledGP, X: Tensor, tol: float = 1e-8, **kwargs: Any
) -> None:
    posterior = model.posterior(X, **kwargs)
    assert isinstance(posterior, GaussianMixturePosterior)
    mean, covariance = definition(model, X, **kwargs)
    torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=tol)
    found = posterior.distribution.covariance_matrix
    torch.testing.assert_close(found, covariance, rtol=0, atol=tol)


def folds(model: SampledGP) -> bool:
    with torch.no_grad():
        model.posterior(model.models[0].train_inputs[0][..., :1, :])
    assert model._predictor is not None
    return model._predictor[1] is not None


def on_tree(X: Tensor) -> Tensor:
    X[..., 0] = X[..., 0].round()
    return X
