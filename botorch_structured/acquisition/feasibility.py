r"""The probability that constraints on outcomes hold.

Which one when: ``FeasibilityPrior`` weighs any logarithmic acquisition function; while
no feasible point is known there is nothing to improve on, and
``AveragedLogProbabilityOfFeasibility`` is the acquisition function.

References:

.. [Gardner2014constraints]
    J. Gardner, M. Kusner, Z. Xu, K. Weinberger and J. Cunningham. Bayesian Optimization
    with Inequality Constraints. ICML 2014.
"""

from __future__ import annotations

__all__ = ["AveragedLogProbabilityOfFeasibility", "FeasibilityPrior"]

from collections.abc import Sequence

import torch
from botorch.models.model import Model
from torch import Tensor

from botorch_structured.acquisition.mixtures import (
    MixtureAcquisition,
    MixturePrior,
    Mixtures,
)
from botorch_structured.spaces.arguments import check_number


class FeasibilityPrior(MixturePrior):
    r"""Logarithm of the probability that all constraints hold.

    .. math:: \log p(x) = \sum_k \log \sum_j w_{kj} \,
        \Phi\big((l_k - m_{kj}(x)) / s_{kj}(x)\big)

    of constraints ``c_k(x) <= l_k`` that are independent of each other, each with a
    mixture of models. Choose it with BoTorch's ``PriorGuidedAcquisitionFunction`` and
    exponent 1 around any logarithmic acquisition function: log EI becomes that of the
    constrained expected improvement ([Gardner2014constraints]_; with one model of each,
    BoTorch's ``LogConstrainedExpectedImprovement``). Its ``best_f`` is then the best
    value at a feasible point. With ``optimize_acqf_paths`` it costs no autograd through
    the posteriors.

    Args:
        models: For each constraint, models of its outcome.
        weights: For each constraint, the weights of its models. Default: equal ones.
        limits: The largest outcome of each constraint that is feasible. Default: 0.

    Raises:
        ValueError: An argument is not what it should be.

    Example:
        >>> memory = TreeStructuredGP(X, gigabytes, space)  # ... fit it
        >>> acqf = PriorGuidedAcquisitionFunction(
        ...     LogExpectedImprovement(model, best_f=Y[gigabytes <= 8.0].max()),
        ...     FeasibilityPrior([[memory]], limits=[8.0]), log=True,
        ... )
        >>> x, _ = optimize_acqf_paths(acqf, space=space, X_avoid=X)
    """

    limits: Tensor

    def __init__(
        self,
        models: Sequence[Sequence[Model]],
        weights: Sequence[Tensor | Sequence[float]] | None = None,
        limits: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(Mixtures(models, weights))
        num = len(self.outcomes.sizes)
        given = [0.0] * num if limits is None else list(limits)
        if len(given) != num:
            raise ValueError(f"limits: expected {num} numbers, got {len(given)}.")
        numbers = [check_number("limits", float(limit)) for limit in given]
        each = torch.tensor(numbers, dtype=torch.double)
        sizes = torch.tensor(self.outcomes.sizes)
        self.register_buffer("limits", each.repeat_interleave(sizes))

    def of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        z = (self.limits.to(mean) - mean) / variance.sqrt()
        logs = self.outcomes.mixed(torch.special.log_ndtr(z))
        return torch.stack(logs, dim=-1).sum(-1)


class AveragedLogProbabilityOfFeasibility(MixtureAcquisition):
    """``FeasibilityPrior`` alone: to look for a first feasible point.

    Choose it while no feasible point is known. With one model of each constraint it is
    BoTorch's ``LogProbabilityOfFeasibility``.

    Args:
        prior: The constraints.
    """

    def __init__(self, prior: FeasibilityPrior) -> None:
        super().__init__(prior.outcomes)
        self.prior = prior

    def of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        return self.prior.of_moments(mean, variance)
