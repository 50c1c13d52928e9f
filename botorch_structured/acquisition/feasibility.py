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
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions import UnsupportedError
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor, nn

from botorch_structured.acquisition.mixtures import Array, Mixtures, Near
from botorch_structured.spaces.arguments import check_number


class FeasibilityPrior(nn.Module):
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
        super().__init__()
        self.outcomes = Mixtures(models, weights)
        num = len(self.outcomes.sizes)
        given = [0.0] * num if limits is None else list(limits)
        if len(given) != num:
            raise ValueError(f"limits: expected {num} numbers, got {len(given)}.")
        numbers = [check_number("limits", float(limit)) for limit in given]
        each = torch.tensor(numbers, dtype=torch.double)
        sizes = torch.tensor(self.outcomes.sizes)
        self.register_buffer("limits", each.repeat_interleave(sizes))

    def forward(self, X: Tensor) -> Tensor:
        """Log probability, ``batch_shape x q x d`` -> ``batch_shape x q``."""
        # points are independent of each other: each is a batch of its own
        return self._of_moments(*self.outcomes.moments(X.unsqueeze(-2)))

    def value_and_gradient(
        self, X: Tensor, gradient: bool = True
    ) -> tuple[Tensor, Tensor | None] | None:
        """``n`` log probabilities and ``n x d`` gradients; None: it cannot.

        Args:
            X: ``n x d``.
            gradient: Whether gradients are wanted; else None in their place.
        """
        return self.outcomes.value_and_gradient(X, self._of_moments, gradient)

    def near(self, X: Tensor, columns: Array) -> Near | None:
        """See `Mixtures.near`."""
        return self.outcomes.near(X, columns, self._of_moments)

    def _of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        z = (self.limits.to(mean) - mean) / variance.sqrt()
        logs = self.outcomes.mixed(torch.special.log_ndtr(z))
        return torch.stack(logs, dim=-1).sum(-1)


class AveragedLogProbabilityOfFeasibility(AcquisitionFunction):
    """``FeasibilityPrior`` alone: to look for a first feasible point.

    Choose it while no feasible point is known. With one model of each constraint it is
    BoTorch's ``LogProbabilityOfFeasibility``.

    Args:
        prior: The constraints.
    """

    _log: bool = True

    def __init__(self, prior: FeasibilityPrior) -> None:
        super().__init__(model=prior.outcomes.models[0])
        self.prior = prior

    @t_batch_mode_transform(expected_q=1)
    def forward(self, X: Tensor) -> Tensor:
        """Log probabilities of candidates.

        Args:
            X: ``b x 1 x d`` points.

        Returns:
            ``b`` values.
        """
        return self.prior(X).squeeze(-1)

    def value_and_gradient(
        self, X: Tensor, gradient: bool = True
    ) -> tuple[Tensor, Tensor | None] | None:
        """See `FeasibilityPrior.value_and_gradient`."""
        return self.prior.value_and_gradient(X, gradient)

    def near(self, X: Tensor, columns: Array) -> Near | None:
        """See `Mixtures.near`."""
        return self.prior.near(X, columns)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Raise for pending points, as BoTorch's analytic acquisition functions do.

        Raises:
            UnsupportedError: ``X_pending`` is given.
        """
        refuse_pending(X_pending)


def refuse_pending(X_pending: Tensor | None) -> None:
    """Raise for pending points: models are to be conditioned on values there.

    Raises:
        UnsupportedError: ``X_pending`` is given.
    """
    if X_pending is not None:
        raise UnsupportedError(
            "X_pending: expected None, as for all analytic acquisition functions; "
            "condition the models on values at pending points instead, as `suggest` "
            "does on their means."
        )
