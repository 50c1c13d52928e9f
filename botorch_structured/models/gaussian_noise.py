"""Which noise a likelihood adds.

A subclass of a Gaussian likelihood may do anything with the noise of its parent: what
its ``noise`` says is what it adds for the very classes that are known here, and of any
other one the likelihood itself must be asked.
"""

from __future__ import annotations

__all__ = ["check_noise", "check_own_objective", "noise_at", "noise_is_known"]

from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
)
from gpytorch.likelihoods.noise_models import (
    FixedGaussianNoise,
    HomoskedasticNoise,
    MultitaskHomoskedasticNoise,
)
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from linear_operator.operators import ZeroLinearOperator
from torch import Tensor

_NOISE = {
    GaussianLikelihood: HomoskedasticNoise,
    FixedNoiseGaussianLikelihood: FixedGaussianNoise,
    HadamardGaussianLikelihood: MultitaskHomoskedasticNoise,
}


def noise_is_known(likelihood: Likelihood, tasks: bool = False) -> bool:
    """Whether the noise variances are ``likelihood.noise``: one, or one for each row.

    Args:
        likelihood: Any likelihood; for subclasses the answer is False.
        tasks: Whether one for each task will do too.
    """
    kind = type(likelihood)
    known = kind in _NOISE and type(likelihood.noise_covar) is _NOISE[kind]
    return known and (tasks or kind is not HadamardGaussianLikelihood)


def noise_at(likelihood: Likelihood, X: Tensor, shape: torch.Size) -> Tensor:
    """The noise variances that a likelihood adds, differentiable in what it learns.

    Args:
        likelihood: A Gaussian likelihood, see ``check_noise``.
        X: Transformed training inputs, ``batch_shape x n x d``.
        shape: Of the outcomes, ``batch_shape x n``.
    """
    mean = X.new_zeros(shape)
    nothing = ZeroLinearOperator(*shape, shape[-1], dtype=X.dtype, device=X.device)
    noisy = likelihood(MultivariateNormal(mean, nothing), X)
    return noisy.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2).expand(shape)


def check_own_objective(
    model: ExactGP, mll: MarginalLogLikelihood, kwargs: dict[str, Any]
) -> None:
    """Raise a ``ValueError`` if an objective asks for another noise than a model has.

    For models whose evidence is their own business: a likelihood beside theirs, or
    arguments to one, would go unheard.

    Args:
        model: The model.
        mll: The objective.
        kwargs: Arguments of a call.
    """
    if mll.likelihood is not model.likelihood:
        raise ValueError(
            "mll: expected the likelihood of the model itself, got another "
            f"{type(mll.likelihood).__name__}; use "
            "ExactMarginalLogLikelihood(model.likelihood, model)."
        )
    if kwargs:
        raise ValueError(
            f"kwargs: expected no arguments to the likelihood of "
            f"{type(model).__name__}, got {sorted(kwargs)}."
        )


def check_noise(likelihood: Likelihood, X: Tensor, shape: torch.Size) -> None:
    """Raise a ``ValueError`` unless all a likelihood does is to add variances.

    Args:
        likelihood: Any likelihood.
        X: Transformed training inputs, ``batch_shape x n x d``.
        shape: Of the outcomes, ``batch_shape x n``.
    """
    if noise_is_known(likelihood):
        return
    with torch.no_grad():
        mean = X.new_ones(shape)
        # neither scaled nor shifted, and more on the diagonal only
        prior = mean.unsqueeze(-1) + torch.diag_embed(mean)
        noisy = likelihood(MultivariateNormal(mean, to_linear_operator(prior)), X)
        added = noisy.covariance_matrix - prior
        apart = torch.diag_embed(added.diagonal(dim1=-1, dim2=-2))
        if not (torch.allclose(noisy.mean, mean) and torch.allclose(added, apart)):
            raise ValueError(
                "likelihood: expected one that adds noise to each outcome by itself, "
                f"got {type(likelihood).__name__}, which does something else."
            )
