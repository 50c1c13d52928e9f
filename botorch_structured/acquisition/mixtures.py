"""Acquisition functions of several models, as functions of their means and variances.

An outcome may have a mixture of models, and a criterion several outcomes, independent
of each other. What such a criterion is at a point then depends on mean and variance of
each model there, and on nothing else: it is written once, as a function of these. Where
the models know the gradients of their moments, no graph of a posterior is needed.
"""

from __future__ import annotations

__all__ = [
    "Array",
    "MixtureAcquisition",
    "MixturePrior",
    "Mixtures",
    "Near",
    "differentiated",
    "read_weights",
    "refuse_pending",
]

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions import UnsupportedError
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[Any]
Values = Callable[[Tensor, Tensor], Tensor]
Near = Callable[[Array, Array], tuple[Array, Array]]


def read_weights(weights: Tensor | Sequence[float] | None, num: int) -> Tensor:
    """``num`` weights with sum 1.

    Args:
        weights: ``num`` numbers, at least 0, not all 0. Default: equal ones.
        num: How many.

    Raises:
        ValueError: They are not.
    """
    given = torch.as_tensor([1.0] * num if weights is None else weights)
    given = given.to(torch.double).detach().reshape(-1)
    valid = given.isfinite().all() and (given >= 0).all() and given.sum() > 0
    if len(given) != num or not valid:
        raise ValueError(
            f"weights: expected {num} finite numbers of at least 0, not all of them "
            f"0, got {given.tolist()}."
        )
    return given / given.sum()


class Mixtures(nn.Module):
    """Outcomes that are independent of each other, each with weighted models of it.

    Args:
        models: For each outcome, its models, each with one output.
        weights: For each outcome, the weights of its models. Default: equal ones.

    Raises:
        ValueError: No outcome, an outcome without a model, a model with several
            outputs, or weights that do not fit.
    """

    log_weights: Tensor

    def __init__(
        self,
        models: Sequence[Sequence[Model]],
        weights: Sequence[Tensor | Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        by_outcome = [list(some) for some in models]
        flat = [model for some in by_outcome for model in some]
        single = [isinstance(m, Model) and m.num_outputs == 1 for m in flat]
        if not by_outcome or not all(by_outcome) or not all(single):
            raise ValueError(
                "models: expected for each outcome a list of models with one output, "
                f"got {[[type(m).__name__ for m in some] for some in by_outcome]}."
            )
        given = [None] * len(by_outcome) if weights is None else list(weights)
        if len(given) != len(by_outcome):
            raise ValueError(
                f"weights: expected those of {len(by_outcome)} outcomes, got "
                f"{len(given)}."
            )
        self.sizes = [len(some) for some in by_outcome]
        self.models = nn.ModuleList(flat)
        pairs = zip(given, self.sizes, strict=True)
        shares = torch.cat([read_weights(w, size) for w, size in pairs])
        self.register_buffer("log_weights", shares.log())

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of all models, each ``batch_shape x L``.

        Args:
            X: ``batch_shape x 1 x d`` points.
        """
        models: Sequence[Any] = list(self.models)
        posteriors = [model.posterior(X) for model in models]
        mean = torch.cat([p.mean.squeeze(-2) for p in posteriors], dim=-1)
        variance = torch.cat([p.variance.squeeze(-2) for p in posteriors], dim=-1)
        return mean, _positive(variance)

    def mixed(self, logs: Tensor) -> list[Tensor]:
        """Logarithms of the weighted means over the models of each outcome.

        Args:
            logs: ``... x L``, logarithms of each model's values.
        """
        weighted = logs + self.log_weights.to(logs)
        return [part.logsumexp(-1) for part in weighted.split(self.sizes, dim=-1)]

    def means(self, X: Tensor) -> Tensor:
        """Weighted means of each outcome, ``batch_shape x number of outcomes``.

        Args:
            X: ``batch_shape x 1 x d`` points.
        """
        mean = self.moments(X)[0]
        parts = (mean * self.log_weights.to(mean).exp()).split(self.sizes, dim=-1)
        return torch.stack([part.sum(-1) for part in parts], dim=-1)


class _MixtureFunction(ABC):
    """A function of the moments of mixtures, which no graph of a posterior needs."""

    outcomes: Mixtures

    @abstractmethod
    def of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        """``...`` values for ``... x L`` means and variances."""


class MixturePrior(_MixtureFunction, nn.Module):
    """A logarithmic prior for ``PriorGuidedAcquisitionFunction``.

    Args:
        outcomes: Those that it is a function of.
    """

    def __init__(self, outcomes: Mixtures) -> None:
        super().__init__()
        self.outcomes = outcomes

    def forward(self, X: Tensor) -> Tensor:
        """Log weights, ``batch_shape x q x d`` -> ``batch_shape x q``."""
        # points are independent of each other: each is a batch of its own
        return self.of_moments(*self.outcomes.moments(X.unsqueeze(-2)))


class MixtureAcquisition(_MixtureFunction, AcquisitionFunction):
    """A logarithmic acquisition function of one point.

    Args:
        outcomes: Those that it is a function of.
    """

    _log: bool = True

    def __init__(self, outcomes: Mixtures) -> None:
        super().__init__(model=outcomes.models[0])
        self.outcomes = outcomes

    @t_batch_mode_transform(expected_q=1)
    def forward(self, X: Tensor) -> Tensor:
        """Values of candidates.

        Args:
            X: ``b x 1 x d`` points.

        Returns:
            ``b`` values.
        """
        return self.of_moments(*self.outcomes.moments(X))

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


def _positive(variance: Tensor) -> Tensor:
    """At any scale of the outcomes."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny)


def differentiated(
    values: Values, moments: Sequence[Sequence[Any]]
) -> tuple[Array, Array | None]:
    """A function of means and variances, and its gradient by the chain rule.

    Args:
        values: Maps means and variances, ``... x L`` each, to ``...`` values.
        moments: For each of the ``L`` models the mean and the variance, ``...``, and
            the gradients of both, ``... x k``, or None in their place.

    Returns:
        Values ``...`` and gradients ``... x k``; None if those of moments are.
    """
    mean, variance = (
        torch.from_numpy(np.stack([part[i] for part in moments], axis=-1))
        for i in (0, 1)
    )
    variance = _positive(variance)
    if moments[0][2] is None:
        with torch.no_grad():
            return values(mean, variance).numpy(), None
    with torch.enable_grad():
        value = values(mean.requires_grad_(), variance.requires_grad_())
        by_mean, by_variance = torch.autograd.grad(value.sum(), (mean, variance))
    slope = sum(
        by_mean[..., k, None].numpy() * part[2]
        + by_variance[..., k, None].numpy() * part[3]
        for k, part in enumerate(moments)
    )
    return value.detach().numpy(), np.asarray(slope)
