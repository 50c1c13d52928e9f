"""How a treed GP is fitted, predicts and takes in more data.

``forward`` is the dense prior with zero covariance between leaves, which is what
GPyTorch can know; the objective of a fit and the posterior are more than that prior and
a likelihood determine, and are computed here.
"""

from __future__ import annotations

__all__ = ["TreedInference"]

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from botorch.fit import _fit_fallback
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_structured.inference.cart import Rows, TreeNode
from botorch_structured.inference.surroundings import few_threads
from botorch_structured.inference.treed_evidence import (
    PathGroup,
    log_path_evidence,
    nested_groups,
    node_groups,
)
from botorch_structured.models.structured_inference import with_variance_floor
from botorch_structured.models.treed_climb import climb_leaves
from botorch_structured.models.treed_kernel import TreedKernel
from botorch_structured.models.treed_modules import LeafNoiseLikelihood
from botorch_structured.models.treed_prediction import TreedPredictor

# The objective is per data point: finer steps than these change no prediction.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-4, "maxiter": 200}

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models import SingleTaskGP

    from botorch_structured.inference.treed_partition import TreePartition

    class _Base(SingleTaskGP):
        partition: TreePartition
        levels: Tensor
        train_inputs: Any
        train_targets: Any
        likelihood: Any
else:
    _Base = object


@dataclass(frozen=True)
class _GroupData:
    """A group of terms of equation (2) and its data, ``B x m x d`` and ``B x m``."""

    group: PathGroup
    X: Tensor
    y: Tensor


def _with_objective(
    prior: MultivariateNormal, objective: Callable[[], Tensor]
) -> MultivariateNormal:
    """The prior in a fit: its log density of the data is the objective.

    ``ExactMarginalLogLikelihood`` adds noise and asks the result, which is of the same
    class, for the log density; then it adds the priors of hyperparameters.
    """

    class TrainingPrior(MultivariateNormal):
        def log_prob(self, value: Tensor) -> Tensor:
            return objective()

    return TrainingPrior(prior.mean, prior.lazy_covariance_matrix)


class TreedInference(_Base):
    """Objective and posterior of a GP with a ``TreedKernel``.

    With any other kernel, that is, with one leaf, everything is as in the class it is
    mixed into.
    """

    _share_all: bool  # in equation (2)
    _lend: bool  # a leaf predicts from its own data and what is lent to it

    _plan_cache: tuple[Tensor, Tensor, list[list[_GroupData]]] | None = None
    _predictor_cache: tuple[Tensor, Tensor, list[TreedPredictor]] | None = None

    @property
    def _is_treed(self) -> bool:
        return isinstance(self.covar_module, TreedKernel)

    def _elements(self, values: Tensor, own: int) -> Tensor:
        """``... x trees x own`` values as ``R x E x own``, E being the trees."""
        count = self.partition.tree_shape.numel()
        return values.reshape(-1, count, *values.shape[values.ndim - own :])

    # -- caches -------------------------------------------------------------------

    def _drop_caches(self) -> None:
        self._plan_cache = self._predictor_cache = None

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._predictor_cache = None

    def set_train_data(self, *args: Any, **kwargs: Any) -> None:
        """Replace the training data, see ``ExactGP.set_train_data``.

        The partition stays as it is.
        """
        super().set_train_data(*args, **kwargs)
        self._drop_caches()

    def _apply(self, fn: Any) -> Any:
        before = None if self.train_inputs is None else self.train_inputs[0]
        result = super()._apply(fn)
        # BoTorch's analytic acquisitions call ``.to(X)`` on each evaluation: where that
        # changes nothing it must not cost the caches
        if self.train_inputs is None or self.train_inputs[0] is not before:
            self._drop_caches()
        return result

    def __getstate__(self) -> dict[str, Any]:
        # caches are cheap to rebuild and large to store
        return {**self.__dict__, "_plan_cache": None, "_predictor_cache": None}

    # -- objective ----------------------------------------------------------------

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Minus the objective of ``mll`` per data point: BoTorch's hook for a fit.

        That is equation (2), summed over the leaves.

        Args:
            mll: An ``ExactMarginalLogLikelihood`` of this model.
            kwargs: Passed to ``mll`` where that is evaluated itself.

        Returns:
            A scalar, or ``batch_shape`` for a batched model.
        """
        # A subclass, or leaving one out, is another objective.
        exact = type(mll) is ExactMarginalLogLikelihood
        if self._is_treed and exact and mll.likelihood is self.likelihood:
            objective = mll._add_other_terms(self._log_path_evidence(), ())
            return -objective / self.train_targets.shape[-1]
        output = self(*self.train_inputs)
        transformed = (self.transform_inputs(t) for t in self.train_inputs)
        return -mll(output, self.train_targets, *transformed, **kwargs)

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""Fit by L-BFGS-B, retries included, from where each leaf has its maximum.

        ``fit_gpytorch_mll`` calls this; every argument of it is honoured. Not for
        direct use.
        """
        default = closure is None and "optimizer" not in kwargs
        rows = self.train_targets.shape[-1]
        if self._is_treed and default and not optimizer_kwargs:
            with few_threads(rows):
                climb_leaves(self)
        if self._is_treed and default and not self.partition.tree_shape:
            options = dict((optimizer_kwargs or {}).get("options") or {})
            optimizer_kwargs = {
                **(optimizer_kwargs or {}),
                "options": {**_FIT_OPTIONS, **options},
            }
        with few_threads(rows):
            return _fit_fallback(
                mll,
                closure=closure,
                closure_kwargs=closure_kwargs,
                optimizer_kwargs=optimizer_kwargs,
                **kwargs,
            )

    def _plan(self) -> list[list[_GroupData]]:
        """The terms of equation (2) with their data, tree by tree."""
        raw, y = self.train_inputs[0], self.train_targets
        cache = self._plan_cache
        if cache is None or cache[0] is not raw or cache[1] is not y:
            with torch.no_grad():
                X = self.transform_inputs(raw) if self.training else raw
            X = X.expand(*y.shape, X.shape[-1])
            plans = []
            for e, (x, t) in enumerate(
                zip(self._elements(X, 2)[0], self._elements(y, 1)[0], strict=True)
            ):
                tree = self.partition.element(e).tree(x.cpu().double().numpy())
                group = nested_groups if self._share_all else node_groups
                groups = [g.to(x) for g in group(tree, self._data_of)]
                plans.append([_GroupData(g, x[g.rows], t[g.rows]) for g in groups])
            self._plan_cache = cache = (raw, y, plans)
        return cache[2]

    def _data_of(self, node: TreeNode) -> Rows:
        return node.home if self._lend else node.rows

    def _log_path_evidence(self) -> Tensor:
        """The sum of equation (2) without the prior, ``batch_shape``."""
        totals = []
        for e, groups in enumerate(self._plan()):
            total = self.train_targets.new_zeros(())
            for data in groups:
                total = total + self._group_evidence(e, data).sum()
            totals.append(total)
        return torch.stack(totals).reshape(self.partition.tree_shape)

    def _group_evidence(self, element: int, data: _GroupData) -> Tensor:
        """Weighted evidences of the leaves of a group, ``B``."""
        group, X = data.group, data.X
        if group.node is None:
            variance = None
            mean = self.mean_module.leaf_mean(element, group.leaves, X)
            noise = self._noise_of_leaves(element, group.leaves, group.rows)
        else:
            levels = self.levels.reshape(-1, *self.levels.shape[-2:])
            variance, mean, noise = levels[element, group.node]
            variance = variance.expand(len(X))
            if not isinstance(self.likelihood, LeafNoiseLikelihood):
                noise = self._noise_of_leaves(element, group.leaves, group.rows)
            noise = noise.expand(data.y.shape)
        covariance = self.covar_module.leaf_covariance(
            element, group.leaves, X, variance=variance
        )
        return log_path_evidence(group, covariance, noise, data.y - mean)

    def _noise_of_leaves(self, element: int, leaves: Tensor, rows: Tensor) -> Tensor:
        """Noise variances of rows ``B x m`` of the training data."""
        likelihood = self.likelihood
        if isinstance(likelihood, LeafNoiseLikelihood):
            noise = likelihood.noise_covar.leaf_noise(element, leaves)
            return noise.unsqueeze(-1).expand(rows.shape)
        values = self._elements(self._known_noise(), 1)[0, element]
        return values[rows]

    def _known_noise(self) -> Tensor:
        """Noise variances of the training data under a common likelihood."""
        return self.likelihood.noise.expand(self.train_targets.shape)

    # -- prior and posterior ------------------------------------------------------

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior: that of each leaf, zero covariance between leaves.

        At the training inputs themselves, that of each leaf given what it borrows from
        others: BoTorch's leave-one-out formulas then are those of the leaf models (what
        is borrowed stays borrowed, whichever point is left out).
        """
        if not self._is_treed:
            return super().forward(x)
        prior = (
            self._borrowed_prior(x) if x is self.train_inputs[0] else super().forward(x)
        )
        if self.training:
            return _with_objective(prior, self._log_path_evidence)
        return prior

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Prior in training mode, posterior in evaluation mode."""
        if (
            self.training
            or not self._is_treed
            or settings.prior_mode.on()
            or self.train_inputs is None
            or len(args) != 1
        ):
            return super().__call__(*args, **kwargs)
        X = args[0]
        return self._treed_posterior(X.unsqueeze(-1) if X.ndim == 1 else X)

    def _predictors(self) -> list[TreedPredictor]:
        X, y = self.train_inputs[0], self.train_targets
        cache = self._predictor_cache
        # gradients flow to fantasies, not to hyperparameters: as in GPyTorch's caches
        graph = X.requires_grad or y.requires_grad or settings.detach_test_caches.off()
        if (
            cache is None
            or cache[0] is not X
            or cache[1] is not y
            or cache[2][0].graph != graph
        ):
            self._predictor_cache = cache = (X, y, self._new_predictors(X, graph))
        return cache[2]

    def _new_predictors(self, X: Tensor, graph: bool) -> list[TreedPredictor]:
        """One for each tree, from transformed training inputs."""
        y = self.train_targets
        shape = torch.broadcast_shapes(X.shape[:-2], y.shape[:-1])
        X_all = self._elements(X.expand(*shape, *X.shape[-2:]), 2)
        y_all = self._elements(y.expand(*shape, y.shape[-1]), 1)
        return [
            TreedPredictor(
                e,
                self.partition.element(e),
                self.covar_module,
                self.mean_module,
                self._noise_function(e),
                X_all[:, e],
                y_all[:, e],
                self._lend,
                graph,
            )
            for e in range(X_all.shape[1])
        ]

    def _noise_function(self, element: int) -> Callable[[int], Tensor]:
        likelihood = self.likelihood
        if isinstance(likelihood, LeafNoiseLikelihood):
            values = likelihood.noise_covar.leaf_noise(element, slice(None))
            return lambda leaf: values[leaf]
        known = self._elements(self._known_noise(), 1)[:, element]
        return lambda leaf: known

    def _treed_posterior(self, X: Tensor) -> MultivariateNormal:
        """Posterior at ``batch_shape x q x d`` transformed points."""
        data, y = self.train_inputs[0], self.train_targets
        predictors = self._predictors()
        shape = torch.broadcast_shapes(X.shape[:-2], data.shape[:-2], y.shape[:-1])
        q = X.shape[-2]
        points = self._elements(X.expand(*shape, *X.shape[-2:]), 2)
        found = [p(points[:, e]) for e, p in enumerate(predictors)]
        mean = torch.stack([m for m, _ in found], dim=1).reshape(*shape, q)
        covariance = torch.stack([c for _, c in found], dim=1).reshape(*shape, q, q)
        # a bare tensor would get no jitter when it is factorised for sampling
        return MultivariateNormal(
            mean, to_linear_operator(with_variance_floor(covariance))
        )

    def _borrowed_prior(self, X: Tensor) -> MultivariateNormal:
        if self.training:
            predictors = self._new_predictors(self.transform_inputs(X), graph=True)
        else:
            predictors = self._predictors()
        priors = [p.borrowed_prior() for p in predictors]
        shape, n = self.train_targets.shape[:-1], self.train_targets.shape[-1]

        def together(parts: list[Tensor], *own: int) -> Tensor:
            parts = [p.reshape(-1, *own) for p in parts]
            return torch.stack(parts, dim=1).reshape(*shape, *own)

        self._name_leaves(together([p.leaves for p in priors], n))
        return MultivariateNormal(
            together([p.mean for p in priors], n),
            to_linear_operator(together([p.covariance for p in priors], n, n)),
        )

    def _name_leaves(self, leaves: Tensor) -> None:
        """Leaves of the data, for calls of the likelihood that name no points."""
        if isinstance(self.likelihood, LeafNoiseLikelihood):
            self.likelihood.noise_covar.data_leaves = leaves

    # -- more data ----------------------------------------------------------------

    def get_fantasy_model(self, inputs: Any, targets: Tensor, **kwargs: Any) -> Any:
        """A model with more data, the same partition and hyperparameters.

        See ``ExactGP``. New data may have batch dimensions in front, of fantasies.
        """
        X = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        if not self._is_treed:
            if self.prediction_strategy is None and not self.training:
                super().__call__(self.train_inputs[0][..., :1, :])
            return super().get_fantasy_model(inputs, targets, **kwargs)
        old_X, old_y = self.train_inputs[0], self.train_targets
        shape = torch.broadcast_shapes(
            X.shape[:-2], targets.shape[:-1], old_X.shape[:-2], old_y.shape[:-1]
        )

        def appended(old: Tensor, new: Tensor, own: int) -> Tensor:
            both = [t.expand(*shape, *t.shape[t.ndim - own :]) for t in (old, new)]
            return torch.cat(both, dim=-own)

        # tensors with a history cannot be copied, and data are replaced anyhow
        likelihood = self.likelihood
        self._drop_caches()
        try:
            self.train_inputs = self.train_targets = None
            self.likelihood = None
            new = deepcopy(self)
        finally:
            self.train_inputs, self.train_targets = (old_X,), old_y
            self.likelihood = likelihood
        new.likelihood = likelihood.get_fantasy_likelihood(**kwargs)
        new.train_inputs = (appended(old_X, X, 2),)
        new.train_targets = appended(old_y, targets, 1)
        return new
