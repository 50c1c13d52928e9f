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

__all__ = ["AveragedLogExpectedImprovement"]

from collections.abc import Sequence

import torch
from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement
from botorch.exceptions import UnsupportedError
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor


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
        best = torch.as_tensor(best_f).detach().reshape(-1)
        if len(best) not in (1, len(models)) or not best.isfinite().all():
            raise ValueError(
                f"best_f: expected a finite number or {len(models)} of them, got "
                f"{best.tolist()}."
            )
        if weights is None:
            weights = [1.0] * len(models)
        given = torch.as_tensor(weights, dtype=torch.double).detach().reshape(-1)
        valid = given.isfinite().all() and (given >= 0).all() and given.sum() > 0
        if len(given) != len(models) or not valid:
            raise ValueError(
                f"weights: expected {len(models)} finite numbers of at least 0, not "
                f"all of them 0, got {given.tolist()}."
            )
        best = best.expand(len(models))
        self.parts = torch.nn.ModuleList(
            LogExpectedImprovement(model, best_f=best_f, maximize=maximize)
            for model, best_f in zip(models, best, strict=True)
        )
        self.register_buffer("log_weights", (given / given.sum()).log())

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
        if X_pending is not None:
            raise UnsupportedError(
                "X_pending: expected None, as for all analytic acquisition functions; "
                "condition the models on values at pending points instead."
            )
