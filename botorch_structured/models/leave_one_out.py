r"""How well a GP predicts each observation from all others, and weights from it.

.. math:: \log p(y_i \mid y_{-i}) = -\tfrac12 \log(2 \pi s_i^2)
    - \frac{(y_i - m_i)^2}{2 s_i^2}, \quad
    m_i = y_i - \frac{[K^{-1} y]_i}{[K^{-1}]_{ii}}, \quad
    s_i^2 = \frac{1}{[K^{-1}]_{ii}}

([Rasmussen2006gpml]_, equations (5.10) to (5.12)), K with the noise. Unlike the
evidence it does not depend on how wide the priors of different models are.

References:

.. [Rasmussen2006gpml]
    C. E. Rasmussen and C. K. I. Williams. Gaussian Processes for Machine Learning. MIT
    Press 2006.
.. [Yao2018stacking]
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman. Using Stacking to Average Bayesian
    Predictive Distributions. Bayesian Analysis 13(3), 2018.
"""

from __future__ import annotations

__all__ = ["leave_one_out_log_density", "leave_one_out_weights"]

import math
from collections.abc import Sequence

import torch
from botorch.models import SingleTaskGP
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


def leave_one_out_log_density(model: SingleTaskGP) -> Tensor:
    r"""Log density of each outcome given the others, with the fitted hyperparameters.

    One Cholesky factorisation of the ``n x n`` covariance, O(n^3).

    Args:
        model: A fitted GP with one outcome and no batches.

    Returns:
        ``n`` values, of the transformed outcomes.

    Raises:
        ValueError: Several outcomes, or batches.
    """
    targets = model.train_targets
    if targets.ndim != 1:
        raise ValueError(
            "model: expected one with one outcome and without batches, got targets of "
            f"shape {tuple(targets.shape)}."
        )
    model.eval()
    with torch.no_grad():
        prior = model.likelihood(model.forward(*model.train_inputs))
        inverse = torch.cholesky_inverse(psd_safe_cholesky(prior.covariance_matrix))
        precision = inverse.diagonal()
        error = inverse @ (targets - prior.mean) / precision
        squared = error.square() * precision
        return 0.5 * (precision.log() - squared - math.log(2.0 * math.pi))


def leave_one_out_weights(
    models: Sequence[SingleTaskGP], odds: Sequence[float] | None = None
) -> Tensor:
    r"""Weights of models of the same data: softmax of the summed log densities.

    "Pseudo-BMA" in [Yao2018stacking]_. With few data the weights are alike, with many
    one model has them all.

    Args:
        models: ``K`` fitted GPs of the same outcomes under the same transform.
        odds: ``K`` positive numbers, the weights without data. Default: the same.

    Returns:
        ``K`` weights with sum 1.

    Raises:
        ValueError: Several outcomes, or models of different outcomes.

    Example:
        >>> weights = leave_one_out_weights([tree_model, conditional_model])
    """
    models = list(models)
    first = models[0].train_targets
    for model in models[1:]:
        same = model.train_targets.shape == first.shape
        if not same or not torch.allclose(model.train_targets, first):
            raise ValueError(
                "models: expected the same outcomes under the same outcome_transform, "
                "or densities do not compare, got others."
            )
    if len(models) == 1:
        return first.new_ones(1)
    densities = [leave_one_out_log_density(model).sum() for model in models]
    log_odds = torch.as_tensor(odds or [1.0] * len(models)).to(first).log()
    return (torch.stack(densities) + log_odds).softmax(0)
