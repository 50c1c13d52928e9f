"""Treed GPs that several test files share, and their formulas."""

import math
from typing import Any

import torch
from torch import Tensor

from botorch_structured.models.treed.treed_gp import TreedGP

PUBLISHED: dict[str, Any] = {
    "split_criterion": "variance",
    "path_sharing": "all",
    "condition_on": "all",
    "leaf_noise": False,
}


def step_data(n: int = 40, seed: int = 0, d: int = 2) -> tuple[Tensor, Tensor]:
    """Smooth and quiet on the left, wiggly and noisier on the right."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g)
    left = X[:, 0] < 0.5
    f = torch.where(left, 0.3 * X[:, -1], 4.0 + torch.sin(9.0 * X[:, -1]))
    noise = torch.where(left, 0.01, 0.3) * torch.randn(n, generator=g)
    return X, (f + noise).unsqueeze(-1)


def randomised(model: TreedGP, seed: int = 0) -> TreedGP:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
            if "noise" in name:
                p.clamp_(min=math.log(1e-3))
    return model


def stationary(
    A: Tensor, B: Tensor, length: Tensor, variance: Any, rbf: bool
) -> Tensor:
    """RBF or Matern-5/2, by the formula."""
    squared = ((A[:, None] - B) / length).square().sum(-1)
    if rbf:
        return variance * torch.exp(-0.5 * squared)
    r = squared.mul(5.0).clamp_min(1e-30).sqrt()
    return variance * (1.0 + r + r.square() / 3.0) * torch.exp(-r)


def kernel_of(
    model: TreedGP, A: Tensor, B: Tensor, length: Tensor, variance: Any
) -> Tensor:
    rbf = model.covar_module.correlation(0).name == "rbf"
    return stationary(A, B, length, variance, rbf)


def hyperparameters(model: TreedGP, leaf: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    noise = model.likelihood.noise
    return (
        model.covar_module.lengthscale_of_leaf.value[leaf],
        model.covar_module.variance_of_leaf.value[leaf],
        model.mean_module.constant[leaf],
        noise[leaf if len(noise) > 1 else 0],
    )


def leaf_prediction(
    model: TreedGP, leaf: int, rows: Tensor, X: Tensor
) -> tuple[Tensor, Tensor]:
    """A plain GP on some of the data."""
    data, y = model.train_inputs[0][rows], model.train_targets[rows]
    length, variance, mean, noise = hyperparameters(model, leaf)
    K = kernel_of(model, data, data, length, variance) + noise * torch.eye(len(data))
    k = kernel_of(model, X, data, length, variance)
    covariance = kernel_of(model, X, X, length, variance) - k @ torch.linalg.solve(
        K, k.mT
    )
    return mean + k @ torch.linalg.solve(K, y - mean), covariance
