"""Fast inference for models whose covariance is a ``LeafKernel``.

The kernel is the one definition of the covariance and the dense path of BoTorch and
GPyTorch is always there; what is here gives the same numbers faster and is chosen by
size, never by the user: a fused evidence for fits, and predictions through the leaf of
each point.
"""

from __future__ import annotations

__all__ = [
    "StructuredInference",
    "ToleranceOfRounding",
    "with_gradient",
    "with_variance_floor",
]

from copy import deepcopy
from typing import TYPE_CHECKING, Any
from warnings import WarningMessage

import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import DEFAULT_WARNING_HANDLER, _fit_fallback
from botorch.models import SingleTaskGP
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_structured.linalg.leaf_layout import LeafLayout
from botorch_structured.models.gaussian_noise import noise_is_known
from botorch_structured.models.tree.evidence import log_evidence
from botorch_structured.models.tree.leaf_kernel import LeafKernel, Structure
from botorch_structured.models.tree.prediction import LeafPredictor

# Up to here a solve is cheaper than the bookkeeping around it.
_SMALL = 200
# GPyTorch's prediction copies the training data for each element of a t-batch, so that
# predictions by leaf pay for any number of rows unless weights dwarf them.
_MANY_WEIGHTS = 512


if TYPE_CHECKING:  # what it is mixed into
    from botorch.models import SingleTaskGP as _Base
else:
    _Base = object


class StructuredInference(_Base):
    """Evidence and posterior of an ``ExactGP`` with a ``LeafKernel``."""

    _structure_cache: tuple[Tensor, LeafKernel, Structure] | None = None
    _predictor_cache: tuple[Structure, object, LeafPredictor] | None = None

    # -- what can be used ---------------------------------------------------------

    def _is_structured(self) -> bool:
        """Whether the structured algebra applies to the training data at all."""
        return (
            isinstance(self.covar_module, LeafKernel)
            and self.covar_module.is_by_leaf
            and noise_is_known(self.likelihood)
            and type(self).forward is SingleTaskGP.forward
            and self.train_inputs is not None
            and self.train_inputs[0].ndim == 2
            and self.train_targets.ndim == 1
            and not self.covar_module.batch_shape
        )

    def _evidence_pays(self, layout: LeafLayout) -> bool:
        """Whether leaves and weights are cheaper to factorise than everything."""
        cubes = sum(float(size) ** 3 for size in layout.sizes)
        weights = float(self.covar_module.num_weights)
        return cubes + weights**3 <= max(layout.num_rows, _SMALL) ** 3

    def _use_predictor(self) -> bool:
        if (
            self.training
            or settings.prior_mode.on()
            or settings.detach_test_caches.off()
            or not self._is_structured()
        ):
            return False
        X = self.train_inputs[0]
        if X.requires_grad or self.train_targets.requires_grad:
            return False
        return self.covar_module.num_weights <= max(len(X), _MANY_WEIGHTS)

    # -- caches -------------------------------------------------------------------

    def _structure(self, X: Tensor) -> Structure:
        cache = self._structure_cache
        kernel = self.covar_module
        if cache is None or cache[0] is not X or cache[1] is not kernel:
            self._structure_cache = cache = (X, kernel, kernel.structure(X))
        return cache[2]

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._predictor_cache = None

    def set_train_data(self, *args: Any, **kwargs: Any) -> None:
        """Replace the training data, see ``ExactGP.set_train_data``."""
        super().set_train_data(*args, **kwargs)
        self._structure_cache = self._predictor_cache = None

    def _apply(self, fn: Any) -> Any:
        before = None if self.train_inputs is None else self.train_inputs[0]
        result = super()._apply(fn)
        # BoTorch's analytic acquisitions call ``.to(X)`` on each evaluation: where that
        # changes nothing it must not cost the caches
        if self.train_inputs is None or self.train_inputs[0] is not before:
            self._structure_cache = self._predictor_cache = None
        return result

    def __getstate__(self) -> dict[str, Any]:
        # caches are cheap to rebuild and large to store
        return {**self.__dict__, "_structure_cache": None, "_predictor_cache": None}

    # -- evidence -----------------------------------------------------------------

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Minus the objective of ``mll`` per data point: BoTorch's hook for a fit.

        Args:
            mll: An ``ExactMarginalLogLikelihood`` of this model.
            kwargs: Passed to ``mll`` where the dense evaluation is used.

        Returns:
            A scalar, or ``batch_shape`` for a batched model.
        """
        X = self.train_inputs[0]
        # A subclass, or leaving one out, is another objective.
        exact = type(mll) is ExactMarginalLogLikelihood
        own = mll.likelihood is self.likelihood and not kwargs
        if exact and own and self._is_structured():
            # paths do not depend on the transform: decisions are left alone by it
            structure = self._structure(X)
            if self._evidence_pays(structure.layout):
                evidence = self._log_evidence(self.transform_inputs(X), structure)
                evidence = mll._add_other_terms(evidence, ())
                return -evidence / X.shape[0]
        output = self(*self.train_inputs)
        transformed = (self.transform_inputs(t) for t in self.train_inputs)
        return -mll(output, self.train_targets, *transformed, **kwargs)

    def _noise(self, n: int) -> Tensor:
        noise = self.likelihood.noise
        return noise.expand(n) if noise.shape[-1] == 1 else noise

    def _log_evidence(self, X: Tensor, structure: Structure) -> Tensor:
        """Log p(y), equation (3), from transformed inputs ``n x d``."""
        kernel = self.covar_module
        return log_evidence(
            kernel.block_tensors(X, structure),
            self._noise(X.shape[0]),
            self.train_targets - self.mean_module(X),
            kernel.num_weights,
        )

    # -- posterior ----------------------------------------------------------------

    def _predictor(self) -> LeafPredictor:
        kernel = self.covar_module
        X = self.train_inputs[0]
        structure = self._structure(X)
        cache = self._predictor_cache
        if cache is None or cache[0] is not structure or cache[1] is not kernel.variant:
            with torch.no_grad():
                predictor = LeafPredictor(
                    structure.layout,
                    kernel.block_tensors(X, structure),
                    self._noise(X.shape[0]),
                    self.train_targets - self.mean_module(X),
                    kernel.num_weights,
                )
            self._predictor_cache = cache = (structure, kernel.variant, predictor)
        return cache[2]

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Prior in training mode, posterior in evaluation mode."""
        if len(args) == 1 and not kwargs and self._use_predictor():
            x = args[0].unsqueeze(-1) if args[0].ndim == 1 else args[0]
            return self._leaf_posterior(x)
        return super().__call__(*args, **kwargs)

    def get_fantasy_model(self, inputs: Any, targets: Tensor, **kwargs: Any) -> Any:
        """A model with more data and the same hyperparameters, see ``ExactGP``.

        Fantasies in a batch share one dense factorisation, as GPyTorch does it; data
        without a batch dimension is simply appended, and stays structured.
        """
        X = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        if self.prediction_strategy is None and not self.training:
            if X.ndim == 2 and targets.ndim == 1 and self._use_predictor():
                return self._appended(X, targets, **kwargs)
            # GPyTorch needs its own caches, which predictions by leaf never made
            super().__call__(self.train_inputs[0][..., :1, :])
        return super().get_fantasy_model(inputs, targets, **kwargs)

    def _appended(self, X: Tensor, targets: Tensor, **kwargs: Any) -> Any:
        new = deepcopy(self)
        new.likelihood = self.likelihood.get_fantasy_likelihood(**kwargs)
        new.set_train_data(
            torch.cat([self.train_inputs[0], X]),
            torch.cat([self.train_targets, targets]),
            strict=False,
        )
        return new

    def _leaf_posterior(self, X: Tensor) -> MultivariateNormal:
        """Posterior through the leaves at ``batch_shape x q x d`` points."""
        kernel = self.covar_module
        rows = kernel.rows(X)
        batch, q = X.shape[:-2], X.shape[-2]

        def flat(values: Tensor) -> Tensor:
            width = values.shape[-1]  # may be zero
            return values.expand(*batch, q, width).reshape(batch.numel() * q, width)

        prediction = self._predictor()(
            rows.key.reshape(-1), flat(rows.points), flat(rows.features)
        )
        mean = self.mean_module(X) + prediction.mean.view(*batch, q)
        mean = with_gradient(mean, X)
        explained = prediction.explained.unflatten(0, (*batch, q))
        weight = prediction.weight.unflatten(0, (*batch, q))
        if q == 1:
            prior = rows.prior.expand(*batch, q)
            reduction = weight.square().sum(-1) - explained.square().sum(-1)
            variance = with_variance_floor((prior + reduction).unsqueeze(-1))
            return MultivariateNormal(mean, to_linear_operator(variance))
        leaf = prediction.leaf.view(*batch, q)
        same = leaf.unsqueeze(-1) == leaf.unsqueeze(-2)
        covariance = kernel.leaf_covariance(rows, rows) + weight @ weight.mT
        covariance = covariance - torch.where(same, explained @ explained.mT, 0.0)
        # a bare tensor would get no jitter when it is factorised for sampling
        return MultivariateNormal(
            mean, to_linear_operator(with_variance_floor(covariance))
        )


def with_gradient(mean: Tensor, X: Tensor) -> Tensor:
    """``mean`` with a gradient, zero where it does not depend on ``X``.

    Optimisers ask for one on a path without data, too, where all is constant.

    Args:
        mean: ``batch_shape x n``.
        X: ``batch_shape x n x d``; inactive columns may hold anything.
    """
    return mean + X.masked_fill(torch.ones_like(X, dtype=torch.bool), 0.0).sum(-1)


def with_variance_floor(covariance: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """GPyTorch's own floor of variances, without its warning at points that are known.

    Args:
        covariance: ``batch_shape x n x n``.
        unit: Of variances: 1 where outcomes are standardised. Broadcastable to
            ``batch_shape x n``.
    """
    floor = settings.min_variance.value(covariance.dtype) * unit
    lack = (floor - covariance.diagonal(dim1=-1, dim2=-2)).clamp_min(0.0)
    return covariance + torch.diag_embed(lack)


# ----------------------------------------------------------------------
# MAP fits of models whose noise may be as small as rounding errors allow.

# The objective is per data point: finer steps than these change no prediction.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-4, "maxiter": 200}

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models import SingleTaskGP

    from botorch_structured.spaces import ParameterTree

    class _Base(SingleTaskGP):
        tree: ParameterTree
else:
    _Base = object


def _accept_rounding(warning: WarningMessage) -> bool:
    """BoTorch's own policy, but a line search that stops at rounding is no failure.

    At a noise of 1e-9 the evidence is known to eight digits or so; L-BFGS-B then ends
    with "ABNORMAL" where it cannot descend further, and a retry from random
    hyperparameters would throw the fit away.
    """
    if issubclass(warning.category, OptimizationWarning) and "ABNORMAL" in str(
        warning.message
    ):
        return True
    return DEFAULT_WARNING_HANDLER(warning)


class ToleranceOfRounding(_Base):
    """BoTorch's fit with tolerances and a warning policy for a small noise."""

    def custom_fit(
        self, mll: MarginalLogLikelihood, **kwargs: Any
    ) -> MarginalLogLikelihood:
        r"""Fit by L-BFGS-B, retries included.

        ``fit_gpytorch_mll`` calls this; every argument of it is honoured. Not for
        direct use.
        """
        return self._fit_map(mll, **kwargs)

    def _fit_map(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        batched = self._aug_batch_shape.numel() > 1  # BoTorch's batched L-BFGS-B
        if not self.tree.decision_columns:  # exactly a SingleTaskGP, its fit included
            return _fit_fallback(
                mll,
                closure=closure,
                closure_kwargs=closure_kwargs,
                optimizer_kwargs=optimizer_kwargs,
                **kwargs,
            )
        if closure is None and "optimizer" not in kwargs and not batched:
            options = dict((optimizer_kwargs or {}).get("options") or {})
            optimizer_kwargs = {
                **(optimizer_kwargs or {}),
                "options": {**_FIT_OPTIONS, **options},
            }
        kwargs.setdefault("warning_handler", _accept_rounding)
        return _fit_fallback(
            mll,
            closure=closure,
            closure_kwargs=closure_kwargs,
            optimizer_kwargs=optimizer_kwargs,
            **kwargs,
        )
