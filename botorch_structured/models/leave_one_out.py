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

__all__ = [
    "leave_one_out_log_density",
    "leave_one_out_weights",
    "stacking_weights",
]

import math
from collections.abc import Sequence

import numpy as np
import torch
from botorch.models import SingleTaskGP
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

# Of expectation maximisation, which takes some 40 steps.
_MOST_STEPS = 1000
_TOLERANCE = 1e-10


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
        factor = psd_safe_cholesky(prior.covariance_matrix)
        inverse = torch.cholesky_inverse(factor)
        precision = inverse.diagonal()
        error = inverse @ (targets - prior.mean) / precision
        squared = error.square() * precision
        return 0.5 * (precision.log() - squared - math.log(2.0 * math.pi))


def leave_one_out_weights(models: Sequence[SingleTaskGP]) -> Tensor:
    r"""Weights of models of the same data: softmax of the summed log densities.

    "Pseudo-BMA" in [Yao2018stacking]_. Choose them to find the model that predicts
    best: with few data the weights are alike, with many one model has them all. To
    predict with a mixture choose `stacking_weights`.

    Args:
        models: ``K`` fitted GPs of the same outcomes under the same transform.

    Returns:
        ``K`` weights with sum 1.

    Raises:
        ValueError: No models, several outcomes, or models of different outcomes.

    Example:
        >>> weights = leave_one_out_weights([tree_model, conditional_model])
    """
    return _densities(models).sum(0).softmax(-1)


def stacking_weights(models: Sequence[SingleTaskGP]) -> Tensor:
    r"""Weights of models of the same data: those of the mixture that predicts best.

    .. math:: w = \arg\max_{w \ge 0,\ \sum_k w_k = 1}
        \sum_i \log \sum_k w_k \, p_k(y_i \mid y_{-i}) + \sum_k \log w_k

    "Stacking" in [Yao2018stacking]_; the last sum, a Dirichlet prior with all
    parameters 2, keeps weights from 0. Choose them to predict with a mixture: of two
    models each of which is right about some observations, both have weight, where
    `leave_one_out_weights` looks for the one that is right about most.

    Args:
        models: ``K`` fitted GPs of the same outcomes under the same transform.

    Returns:
        ``K`` weights with sum 1.

    Raises:
        ValueError: No models, several outcomes, or models of different outcomes.

    Example:
        >>> weights = stacking_weights([tree_model, conditional_model])
    """
    densities = _densities(models)
    relative = densities - densities.amax(-1, keepdim=True)  # the weights are the same
    p = relative.exp().cpu().double().numpy()
    n, num_models = p.shape
    w = np.full(num_models, 1.0 / num_models)
    # expectation maximisation of a concave function
    for _ in range(_MOST_STEPS):
        shares = w * (p.T @ (1.0 / (p @ w)))
        last, w = w, (1.0 + shares) / (num_models + n)
        if np.abs(w - last).max() < _TOLERANCE:
            break
    return torch.from_numpy(w).to(densities)


def _densities(models: Sequence[SingleTaskGP]) -> Tensor:
    """Log densities, ``n x K``, of models whose densities compare."""
    models = list(models)
    if not models:
        raise ValueError("models: expected at least one, got none.")
    first = models[0].train_targets
    for model in models[1:]:
        same = model.train_targets.shape == first.shape
        if not same or not torch.allclose(model.train_targets, first):
            raise ValueError(
                "models: expected the same outcomes under the same outcome_transform, "
                "or densities do not compare, got others."
            )
    return torch.stack([leave_one_out_log_density(model) for model in models], -1)
