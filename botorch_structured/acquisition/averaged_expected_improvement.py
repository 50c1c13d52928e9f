r"""Expected improvement averaged over several models of one outcome.

Which one when: while data are few, several structures explain them about as well, and
the one that does best so far is often wrong. ``AveragedLogExpectedImprovement`` weighs
them, for instance by ``leave_one_out_weights``. With many data one model has all the
weight, and BoTorch's ``LogExpectedImprovement`` of that model does as well.

References:

.. [Yao2018stacking]
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman. Using Stacking to Average Bayesian
    Predictive Distributions. Bayesian Analysis 13(3), 2018.
"""

from __future__ import annotations

__all__ = ["AnyScaleLogExpectedImprovement", "AveragedLogExpectedImprovement"]

from collections.abc import Sequence

import torch
from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement
from botorch.models.model import Model
from botorch.utils.transforms import (
    average_over_ensemble_models,
    t_batch_mode_transform,
)
from torch import Tensor

from botorch_structured._botorch_names import log_ei_helper, scaled_improvement
from botorch_structured.acquisition.mixtures import read_weights, refuse_pending


class AnyScaleLogExpectedImprovement(LogExpectedImprovement):
    """``LogExpectedImprovement`` of outcomes of any scale.

    BoTorch's has a smallest variance of 1e-12. Where the standard deviation of the
    outcomes is 1e-6 or less this is larger than what is known about good points.
    """

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models
    def forward(self, X: Tensor) -> Tensor:
        """Values of ``b x 1 x d`` points, ``b``."""
        posterior = self.model.posterior(
            X, posterior_transform=self.posterior_transform
        )
        mean = posterior.mean.squeeze(-2).squeeze(-1)
        least = torch.finfo(mean.dtype).tiny
        sigma = posterior.variance.clamp_min(least).sqrt().view(mean.shape)
        u = scaled_improvement(mean, sigma, self.best_f.to(mean), self.maximize)
        return log_ei_helper(u) + sigma.log()


class AveragedLogExpectedImprovement(AcquisitionFunction):
    r"""Logarithm of the expected improvement under a mixture of models.

    .. math:: \log \sum_k w_k \, \mathrm{EI}_k(x)

    The expected improvement of a mixture is the weighted mean of the expected
    improvements of its parts, exactly: nothing is approximated ([Yao2018stacking]_ has
    weights that are "pseudo-BMA" in their words).

    Args:
        models: ``K`` single-output models of the same outcome, on the same scale.
        best_f: The best value observed so far: a number for all models, or ``K`` of
            them (the best mean of each, where observations have noise).
        weights: ``K`` numbers, at least 0, not all 0; they are divided by their sum.
            Default: equal ones.
        maximize: Whether larger outcomes are better.

    Raises:
        ValueError: No models, weights or ``best_f`` of another length, negative weights
            or ones that are not finite.

    Example:
        >>> models = [TreeStructuredGP(X, Y, space), ConditionalGP(X, Y, space)]
        >>> for model in models:
        ...     fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> acqf = AveragedLogExpectedImprovement(
        ...     models, best_f=Y.max(), weights=leave_one_out_weights(models)
        ... )
        >>> candidate, value = optimize_acqf_paths(acqf, space=space, X_avoid=X)
    """

    _log: bool = True

    def __init__(
        self,
        models: Sequence[Model],
        best_f: float | Tensor,
        weights: Tensor | Sequence[float] | None = None,
        maximize: bool = True,
    ) -> None:
        models = list(models)
        if not models:
            raise ValueError("models: expected at least one, got none.")
        super().__init__(model=models[0])
        # a Python number may need more digits than PyTorch's default dtype has
        dtype = best_f.dtype if torch.is_tensor(best_f) else torch.double
        best = torch.as_tensor(best_f, dtype=dtype).detach().reshape(-1)
        if len(best) not in (1, len(models)) or not best.isfinite().all():
            raise ValueError(
                f"best_f: expected a finite number or {len(models)} of them, got "
                f"{best.tolist()}."
            )
        shares = read_weights(weights, len(models))
        best = best.expand(len(models))
        self.parts = torch.nn.ModuleList(
            AnyScaleLogExpectedImprovement(model, best_f=best_f, maximize=maximize)
            for model, best_f in zip(models, best, strict=True)
        )
        self.register_buffer("log_weights", shares.log())

    @t_batch_mode_transform(expected_q=1)
    def forward(self, X: Tensor) -> Tensor:
        """Values of candidates.

        Args:
            X: ``b x 1 x d`` points.

        Returns:
            ``b`` values.
        """
        values = torch.stack([part(X) for part in self.parts], dim=-1)
        return (values + self.log_weights.to(values)).logsumexp(-1)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Raise for pending points, as BoTorch's analytic acquisition functions do.

        Raises:
            UnsupportedError: ``X_pending`` is given. Condition the models on values at
                these points (their means, say) instead, as `suggest` does.
        """
        refuse_pending(X_pending)
