"""Models and their fits, as methods, rows of speed and peers make them."""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator import to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


def objective(model: Any) -> ExactMarginalLogLikelihood:
    """What a fit maximises."""
    return ExactMarginalLogLikelihood(model.likelihood, model)


def fitted(model: Any, **options: Any) -> Any:
    """The model after its fit.

    Args:
        model: A model with a likelihood.
        **options: Of ``fit_gpytorch_mll``.
    """
    fit_gpytorch_mll(objective(model), **options)
    return model


def finite(Y: Tensor) -> Tensor:
    """``n x 1`` outcomes, the worst known one in the place of failures.

    Larger is better. Failures are NaN or infinite; 0 stands for all of them if nothing
    else is known.
    """
    good = Y.isfinite()
    worst = Y[good].min() if good.any() else Y.new_zeros(())
    return torch.where(good, Y, worst)


class PlainGP(SingleTaskGP):
    """``SingleTaskGP`` whose fit evaluates the same objective by plain PyTorch.

    BoTorch asks a model for ``compute_custom_loss``. Of its own evaluation two thirds
    of the time go to the lazy operators, which are of no use for a hundred points.
    """

    def compute_custom_loss(self, mll: ExactMarginalLogLikelihood) -> Tensor:
        """Minus the log evidence and log prior, per point."""
        Z = self.transform_inputs(self.train_inputs[0])
        covariance = to_dense(self.covar_module.forward(Z, Z))
        noise = torch.diag_embed(self.likelihood.noise.expand(len(Z)))
        factor = psd_safe_cholesky(covariance + noise)
        residual = (self.train_targets - self.mean_module(Z)).unsqueeze(-1)
        half = torch.linalg.solve_triangular(factor, residual, upper=False)
        value = -0.5 * (
            half.square().sum()
            + 2.0 * factor.diagonal().log().sum()
            + len(Z) * math.log(2.0 * math.pi)
        )
        for (
            _,
            module,
            prior,
            closure,
            _,
        ) in self.named_priors():  # the likelihood's, too
            value = value + prior.log_prob(closure(module)).sum()
        return -value / len(Z)
