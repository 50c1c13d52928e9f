"""Acquisition functions of several models, as functions of their means and variances.

An outcome may have a mixture of models, and a criterion several outcomes, independent
of each other. What such a criterion is at a point then depends on mean and variance of
each model there, and on nothing else: it is written once, as a function of these. Where
the models know the gradients of their moments, no graph of a posterior is needed.
"""

from __future__ import annotations

__all__ = ["Mixtures", "read_weights"]

from collections.abc import Callable, Sequence
from typing import Any

import torch
from botorch.models.model import Model
from torch import Tensor, nn

Values = Callable[[Tensor, Tensor], Tensor]


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
        # positive at any scale of the outcomes
        return mean, variance.clamp_min(torch.finfo(variance.dtype).tiny)

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

    def value_and_gradient(
        self, X: Tensor, values: Values, gradient: bool = True
    ) -> tuple[Tensor, Tensor | None] | None:
        """Values at points and their gradients, without a graph of the posteriors.

        Args:
            X: ``n x d``, each a point of its own.
            values: Maps means and variances, ``n x L`` each, to ``n`` values.
            gradient: Whether gradients are wanted.

        Returns:
            ``n`` values and ``n x d`` gradients (or None); None where the models do not
            know their moments' gradients.
        """
        if X.device.type != "cpu":
            return None
        found: list[Any] = []
        for model in self.models:
            moments_of = getattr(model, "point_moments", None)
            moments = None if moments_of is None else moments_of(X, gradient)
            if moments is None:
                return None
            found.append(moments)
        mean = torch.stack([part.mean for part in found], dim=-1)
        variance = torch.stack([part.variance for part in found], dim=-1)
        variance = variance.clamp_min(torch.finfo(variance.dtype).tiny)
        if not gradient:
            with torch.no_grad():
                return values(mean, variance), None
        mean.requires_grad_()
        variance.requires_grad_()
        with torch.enable_grad():
            value = values(mean, variance)
            by_mean, by_variance = torch.autograd.grad(value.sum(), (mean, variance))
        slopes = torch.stack([part.mean_gradient for part in found], dim=-1)
        slope = (slopes @ by_mean.unsqueeze(-1)).squeeze(-1)
        slopes = torch.stack([part.variance_gradient for part in found], dim=-1)
        slope = slope + (slopes @ by_variance.unsqueeze(-1)).squeeze(-1)
        return value.detach(), slope
