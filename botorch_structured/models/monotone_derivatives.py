"""What a monotone GP says of its derivatives, and where it should be told more."""

from __future__ import annotations

__all__ = ["DerivativePosterior"]

from typing import Any

import torch
from botorch.fit import _fit_fallback
from botorch.models.utils import add_output_dim
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator import to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.kernels.derivative_sites import partial_of_mean
from botorch_structured.kernels.derivative_stationary import StationaryDerivatives
from botorch_structured.models.checks import check_points
from botorch_structured.models.monotone_inference import (
    SiteInference,
    probability_positive,
)
from botorch_structured.models.outcome_scale import with_least_variance
from botorch_structured.models.structured_inference import with_variance_floor
from botorch_structured.models.virtual_points import (
    check_probability,
    signs_of,
    transformed_columns,
)
from botorch_structured.spaces.arguments import check_column, check_count


class DerivativePosterior(SiteInference):
    """Posterior of a partial derivative, and where its sign is in doubt."""

    monotone: dict[int, int]

    def derivative_posterior(self, X: Tensor, column: int) -> GPyTorchPosterior:
        r"""Joint posterior of the partial derivative along a column.

        Of raw outcomes with respect to raw inputs: transforms are undone by the chain
        rule.

        Args:
            X: ``batch_shape x n x d``, in the space of ``train_X``.
            column: Any column, monotone or not.

        Returns:
            A posterior over ``batch_shape x n x m``.

        Raises:
            ValueError: For points as in ``posterior``, a column out of range, a kernel
                without known derivatives, or an outcome transform that is not linear:
                under one a derivative is not Gaussian.
        """
        transform = getattr(self, "outcome_transform", None)
        if transform is not None and not transform._is_linear:
            raise ValueError(
                "outcome_transform: expected a linear one, such as Standardize, under "
                f"which a derivative is Gaussian, got {type(transform).__name__}."
            )
        column = check_column("column", column, self._raw_columns)
        mean, covariance, slope = self._derivative(X, column)
        if transform is not None:
            Y = self.train_targets.new_zeros(
                *self._input_batch_shape, 1, self._num_outputs
            )
            scale = transform.untransform(Y + 1.0)[0] - transform.untransform(Y)[0]
            scale = scale.squeeze(-1) if self._num_outputs == 1 else scale.mT
            slope = slope * scale
        mean = mean * slope
        covariance = with_variance_floor(covariance)
        covariance = covariance * slope.unsqueeze(-1) * slope.unsqueeze(-2)
        mvn = MultivariateNormal(mean, to_linear_operator(covariance))
        if self._num_outputs > 1:
            mvn = MultitaskMultivariateNormal.from_batch_mvn(mvn, task_dim=-1)
        return with_least_variance(GPyTorchPosterior(mvn), 0.0)

    def probability_monotone(self, X: Tensor, column: int) -> Tensor:
        r"""Probability, point by point, that the derivative has its sign.

        Args:
            X: ``batch_shape x n x d``, in the space of ``train_X``.
            column: A monotone column, for the sign it was given; for any other column
                the probability that outcomes increase.

        Returns:
            ``batch_shape x n x m``.

        Raises:
            ValueError: For points as in ``posterior``, a column out of range, or a
                kernel without known derivatives.
        """
        column = check_column("column", column, self._raw_columns)
        mean, covariance, slope = self._derivative(X, column)
        Y = self._in_columns(self.train_targets)
        transform = getattr(self, "outcome_transform", None)
        if transform is not None:
            order = signs_of(transform.untransform(Y)[0], Y, transform)
            order = order if self._num_outputs == 1 else order.unsqueeze(-1)
            slope = slope * order
        sign = self.monotone.get(column, 1) * slope.sign()
        probability = probability_positive(
            sign * mean, covariance.diagonal(dim1=-2, dim2=-1)
        )
        return probability.unsqueeze(-1) if self._num_outputs == 1 else probability.mT

    def add_virtual_points(self, count: int = 20, probability: float = 0.9) -> int:
        r"""Ask for signs where they are least probable, one point at a time.

        The sequential rule of Wang and Berger (2016, section 4): sites are estimated
        anew after each point, and no point is taken twice. Points of a model with
        ``virtual_X="adaptive"`` are chosen anew, by its ``min_probability``, when its
        hyperparameters or data change; what was added here is then gone.

        Args:
            count: At most so many.
            probability: Stop where no sign is less probable, among 256 points that fill
                the box.

        Returns:
            How many points were added.

        Raises:
            ValueError: If no column is monotone, for a ``count`` that is no positive
                integer, or for a ``probability`` outside (0, 1).
        """
        if not self.has_sites:
            raise ValueError("monotone: expected at least one sign, got none.")
        check_probability(probability, "probability")
        count = check_count("count", count)
        before = len(self.covar_module.sites.points)
        self._place_sites(before, before + count, probability)
        added = len(self.covar_module.sites.points) - before
        if added:
            self._warn_unless_converged()
        return added

    def custom_fit(
        self, mll: MarginalLogLikelihood, **kwargs: Any
    ) -> MarginalLogLikelihood:
        r"""BoTorch's fit; a second one if signs are fitted to and become more by it.

        ``fit_gpytorch_mll`` calls this; every argument of it is honoured. Not for
        direct use. Where signs are in doubt depends on the hyperparameters.
        """
        mll = _fit_fallback(mll, **kwargs)
        again = self.has_sites and self._adaptive and self.signs_in_fit
        if again and self.add_virtual_points(probability=self.min_probability):
            mll = _fit_fallback(mll, **kwargs)
        return mll

    @property
    def _raw_columns(self) -> int:
        """How many columns inputs have before they are transformed."""
        if getattr(self, "_has_transformed_inputs", False):
            return self._original_train_inputs.shape[-1]
        return self.train_inputs[0].shape[-1]

    def _in_columns(self, targets: Tensor) -> Tensor:
        """``aug_batch_shape x n`` to ``batch_shape x n x m``."""
        return targets.unsqueeze(-1) if self._num_outputs == 1 else targets.mT

    def _derivative(self, X: Tensor, column: int) -> tuple[Tensor, Tensor, Tensor]:
        """Moments on the model's axes, and the slope of the input transform.

        Returns:
            ``batch_shape (x m) x n``, ``batch_shape (x m) x n x n``, and
            ``batch_shape (x 1) x n``.
        """
        self.eval()
        check_points(X, self._raw_columns, self.train_targets.dtype)
        transform = getattr(self, "input_transform", None)
        place, slope = column, torch.ones_like(X[..., 0])
        x = self.transform_inputs(X)
        if transform is not None:
            raw = self._original_train_inputs
            place = transformed_columns({column: 1}, raw, transform)[column][0]
            with torch.enable_grad():
                at = X.detach().clone().requires_grad_(True)
                moved = self.transform_inputs(at)[..., place].sum()
                slope = torch.autograd.grad(moved, at)[0][..., column]
        if self._num_outputs > 1:
            x, _ = add_output_dim(x, original_batch_shape=self._input_batch_shape)
            slope = slope.unsqueeze(-2)
        mean, covariance = self._derivative_on_axes(x, place)
        return mean, covariance, slope

    def _derivative_on_axes(self, x: Tensor, column: int) -> tuple[Tensor, Tensor]:
        """Posterior of d_j f at transformed inputs: the joint Gaussian, conditioned."""
        if not self._sites_held:
            self._keep_current()
        X = self.train_inputs[0]
        base = self.covar_module.base_kernel if self.has_sites else self.covar_module
        prior = self.mean_module.base_mean if self.has_sites else self.mean_module
        k = StationaryDerivatives.of(base)
        gram = k.gram(x, [column])
        cross = k.cross(X, x, [column]).mT
        mean = partial_of_mean(prior, x, [column])
        if self.has_sites:
            sites, system = self.covar_module.sites, self.covar_module.system()
            to_sites = k.gram(x, [column], sites.points, sites.columns)
            explained = to_sites.to(system.root) @ system.root.mT
            train = self.covar_module.explained(X, system)
            gram = gram - explained @ explained.mT
            cross = cross - explained @ train.mT
            said = self.mean_module.residual(system).unsqueeze(-1)
            mean = mean + (explained @ said).squeeze(-1)
        K = to_dense(self.covar_module(X)).double()
        factor = psd_safe_cholesky(self._with_noise(K, X))
        error = (self.train_targets - self.mean_module(X)).double().unsqueeze(-1)
        white = torch.linalg.solve_triangular(factor, error, upper=False)
        half = torch.linalg.solve_triangular(factor, cross.double().mT, upper=False)
        mean = mean + (half.mT @ white).squeeze(-1)
        return mean.to(x), (gram - half.mT @ half).to(x)
