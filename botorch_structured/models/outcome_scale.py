"""Outcomes of any scale: standardisation, checks, and smallest variances.

BoTorch does not standardise outcomes whose standard deviation is below 1e-8, and
GPyTorch rounds variances up to 1e-10, on the scale of the outcomes: if a loss has a
standard deviation of 1e-6, all its predicted standard deviations are 1e-5. Here both
limits are relative to the outcomes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from botorch.models.transforms.outcome import (
    ChainedOutcomeTransform,
    OutcomeTransform,
    Standardize,
    StratifiedStandardize,
)
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import LinearOperator, to_linear_operator
from linear_operator.operators import (
    BlockDiagLinearOperator,
    ConstantMulLinearOperator,
    DenseLinearOperator,
    RootLinearOperator,
)
from torch import Tensor

from botorch_structured.models.checks import DataError, extremes, is_constant
from botorch_structured.transforms import ClipTail

PosteriorT = TypeVar("PosteriorT", bound=Posterior)


class AnyScaleStandardize(Standardize):
    """``Standardize``, for outcomes of any scale: the default of models here.

    Outcomes are divided by their standard deviation unless they are equal up to
    rounding; ``Standardize`` has the absolute limit ``min_stdv`` instead. A deviation
    whose square is no number (below 1.5e-154, 1.1e-19 in single precision) counts as 0.
    """

    _min_stdv: Any

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardise; in training mode, first learn means and deviations.

        Args:
            Y: ``batch_shape x n x m``.
            Yvar: ``batch_shape x n x m`` variances of noise.
            X: Not used.

        Returns:
            Both transformed.
        """
        limit = self._min_stdv
        if self.training and Y.shape[-2]:
            # the square of a standard deviation must not underflow
            least = torch.full_like(Y[..., :1, :], torch.finfo(Y.dtype).tiny ** 0.5)
            self._min_stdv = least.masked_fill(is_constant(*extremes(Y)), torch.inf)
        try:
            return super().forward(Y, Yvar=Yvar, X=X)
        finally:
            self._min_stdv = limit

    def untransform_posterior(
        self, posterior: Posterior, X: Tensor | None = None
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Posterior on the scale of the outcomes, factorised on that of the targets.

        The jitter that is added to a covariance with negative eigenvalues is 1e-8 at
        any scale: for small outcomes it would be larger than the covariance.

        Args:
            posterior: The posterior of standardised outcomes.
            X: Not used.
        """
        plain = self._is_trained and self._outputs is None
        if not plain or type(posterior) is not GPyTorchPosterior:
            return super().untransform_posterior(posterior, X=X)
        normal: Any = posterior.distribution
        covariance = normal.lazy_covariance_matrix
        least = settings.min_variance.value(self.stdvs.dtype) * self._stdvs_sq
        scaled: Any
        if isinstance(covariance, BlockDiagLinearOperator):
            square = self._stdvs_sq.squeeze(-2)  # ``batch_shape x m``
            scaled = ScaledMultitaskNormal(
                self.means + self.stdvs * normal.mean,
                BlockDiagLinearOperator(_times(covariance.base_linear_op, square)),
                interleaved=normal._interleaved,
            )
        elif self.means.shape[-1] == 1 and type(normal) is MultivariateNormal:
            square = self._stdvs_sq[..., 0, 0]
            if covariance.shape[-1] == 1:  # a variance needs no jitter
                variance = covariance.to_dense() * square[..., None, None]
                covariance = DenseLinearOperator(variance)
            else:
                covariance = _times(covariance, square)
            mean = self.means[..., 0] + self.stdvs[..., 0] * normal.mean
            scaled = ScaledNormal(mean, covariance)
            least = least.squeeze(-1)
        else:
            return super().untransform_posterior(posterior, X=X)
        scaled.least = least
        return GPyTorchPosterior(scaled)


def _times(covariance: LinearOperator, square: Tensor) -> LinearOperator:
    return ConstantMulLinearOperator(
        covariance, square.expand(covariance.batch_shape).contiguous()
    )


def at_unit_scale(covariance: LinearOperator) -> LinearOperator:
    """The same covariance, as an operator that is factorised with largest variance 1.

    Args:
        covariance: ``batch_shape x n x n``; root operators are not changed.
    """
    if isinstance(covariance, RootLinearOperator) or 0 in covariance.shape:
        return covariance
    dense = covariance.to_dense()
    largest = dense.detach().diagonal(dim1=-1, dim2=-2).amax(dim=-1)
    largest = largest.clamp_min(torch.finfo(dense.dtype).tiny ** 0.5)
    return _times(to_linear_operator(dense / largest[..., None, None]), largest)


def linear_outcome(model: Any, X: Tensor) -> tuple[float, float] | None:
    """Scale and shift of the outcomes of a model, which is in evaluation mode then.

    None where outcomes have another transform or ``X`` another precision than the
    model, and on a device that the host would wait for.
    """
    targets = model.train_targets
    on_host = X.device.type == "cpu" and targets.device.type == "cpu"
    if not on_host or X.dtype != targets.dtype or targets.ndim > 1:
        return None
    transform = getattr(model, "outcome_transform", None)
    parts = [transform]
    if isinstance(transform, ChainedOutcomeTransform):
        parts = [*transform.values()]
    standardize = None
    for part in parts:
        if isinstance(part, Standardize) and standardize is None:
            standardize = part
        # predictions stay on the scale of a clipped tail
        elif part is not None and not isinstance(part, ClipTail):
            return None
    if model.training:
        model.eval()
    if standardize is None:
        return 1.0, 0.0
    return standardize.stdvs.item(), standardize.means.item()


def check_scale(train_Y: Tensor, targets: Tensor) -> None:
    """Raise for infinite targets and those small against GPyTorch's least variance.

    Args:
        train_Y: ``batch_shape x n x m``, as given.
        targets: ``batch_shape x n x m``, the transformed outcomes.

    Raises:
        ValueError: If a target is infinite, or a column of targets that are not all
            equal has a standard deviation below the root of GPyTorch's smallest
            variance (1e-10 in double precision, 1e-6 in single).
    """
    if targets.isinf().any():
        raise DataError(
            "train_Y: expected outcomes that are finite under this outcome_transform, "
            f"got {int(targets.isinf().sum())} of {targets.numel()} that are not; "
            "ClipTail takes infinitely bad outcomes for failures."
        )
    if targets.shape[-2] < 2:
        return
    spread = targets.std(dim=-2, keepdim=True)
    least = settings.min_variance.value(targets.dtype) ** 0.5
    # a transform may have made them equal; a tiny deviation may have no square
    differ = targets.amax(dim=-2, keepdim=True) > targets.amin(dim=-2, keepdim=True)
    small = (spread < least) & ~is_constant(*extremes(train_Y)) & differ
    if small.any():
        raise ValueError(
            "train_Y: expected outcomes with a standard deviation of about 1 under "
            f"this outcome_transform (at least {least:.0e}), got "
            f"{float(spread[small].min()):.1e}: leave outcome_transform at the "
            "default of this package, which divides by that deviation, or rescale them."
        )


class ScaledNormal(MultivariateNormal):
    """A normal distribution with its own smallest variance, without a warning.

    Rounding can make variances at data negative. GPyTorch warns of this, which does
    not help the user.
    """

    #: Broadcastable to ``variance``.
    least: Tensor | float = 0.0

    @property
    def variance(self) -> Tensor:
        """The variances, ``batch_shape x n``."""
        variance = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        variance = self._by_output(variance.expand(*self.batch_shape, -1))
        if torch.is_tensor(self.least):
            return torch.maximum(variance, self.least.to(variance))
        return variance.clamp_min(max(self.least, torch.finfo(variance.dtype).tiny))

    def _by_output(self, variance: Tensor) -> Tensor:
        return variance


class ScaledMultitaskNormal(ScaledNormal, MultitaskMultivariateNormal):
    """The same for several outputs: variances are ``batch_shape x n x m``."""

    def _by_output(self, variance: Tensor) -> Tensor:
        n, m = self.event_shape
        if self._interleaved:
            return variance.unflatten(-1, (n, m))
        return variance.unflatten(-1, (m, n)).mT


def with_least_variance(posterior: PosteriorT, least: Tensor | float) -> PosteriorT:
    """A posterior whose variances are at least these, without a warning.

    Args:
        posterior: Any posterior; one that is not Gaussian is returned unchanged.
        least: Broadcastable to the ``batch_shape x q x m`` variances.
    """
    if isinstance(posterior, TransformedPosterior):
        inner = posterior._posterior
        if isinstance(inner, GPyTorchPosterior):
            unit = settings.min_variance.value(inner.dtype)
            posterior._posterior = with_least_variance(inner, unit)
        return posterior
    if not isinstance(posterior, GPyTorchPosterior):
        return posterior
    mvn: Any = posterior.distribution
    normal: ScaledNormal
    if type(mvn) is ScaledNormal:
        least = least.squeeze(-1) if torch.is_tensor(least) else least
        mvn.least = least
        return posterior
    if isinstance(mvn, MultitaskMultivariateNormal):
        normal = ScaledMultitaskNormal(
            mvn.mean, mvn.lazy_covariance_matrix, interleaved=mvn._interleaved
        )
    else:
        normal = ScaledNormal(mvn.mean, mvn.lazy_covariance_matrix)
        least = least.squeeze(-1) if torch.is_tensor(least) else least
    normal.least = least
    return type(posterior)(normal)


def least_variance(
    transform: OutcomeTransform | None,
    like: Tensor,
    m: int = 1,
    output_indices: list[int] | None = None,
) -> Tensor | float:
    """GPyTorch's smallest variance, on the scale of the outcomes.

    Args:
        transform: The outcome transform.
        like: A tensor with their dtype and device, ``batch_shape x ...``.
        m: The number of outputs.
        output_indices: The outputs wanted; all if omitted. Ignored for one output, as
            in BoTorch, where a ``ModelListGP`` with noise variances passes to each
            model its index in the list.

    Returns:
        Broadcastable to ``batch_shape x q x m``.
    """
    unit = settings.min_variance.value(like.dtype)
    if transform is None or not transform._is_linear:
        return unit
    if any(
        isinstance(part, StratifiedStandardize) or getattr(part, "is_of_rows", False)
        for part in transform.modules()
    ):
        return unit  # the scale differs between rows
    if isinstance(transform, Standardize):
        square = transform._stdvs_sq
    else:
        zero = like.new_zeros(1, m)
        scale = transform.untransform(zero + 1.0)[0] - transform.untransform(zero)[0]
        square = scale.square()
    return unit * (square[..., output_indices] if output_indices and m > 1 else square)
