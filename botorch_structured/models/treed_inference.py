"""How a treed GP predicts and takes in more data.

``forward`` is the dense prior with zero covariance between leaves, which is what
GPyTorch can know; the posterior is more than that, and is computed here.
"""

from __future__ import annotations

__all__ = ["TreedInference"]

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from botorch.models.utils import fantasize
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.models.structured_inference import with_variance_floor
from botorch_structured.models.treed_modules import LeafNoiseLikelihood
from botorch_structured.models.treed_objective import TreedObjective, with_objective
from botorch_structured.models.treed_prediction import TreedPredictor


class TreedInference(TreedObjective):
    """Prior and posterior of a GP with a ``TreedKernel``.

    With any other kernel, that is, with one leaf, everything is as in the class it is
    mixed into.
    """

    _predictor_cache: tuple[Tensor, Tensor, list[TreedPredictor]] | None = None
    # How many of the last rows are fantasies, and how many dimensions the data before
    # them have in front of those of the trees.
    _num_fantasies = 0
    _real_dims = 0

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
        self._num_fantasies = 0
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
            return with_objective(prior, self._log_path_evidence, self.train_targets)
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
            real = self._real(X, 2), self._real(y, 1)
            self._predictor_cache = cache = (X, y, self._new_predictors(*real, graph))
        return cache[2]

    def _real(self, values: Tensor, own: int) -> Tensor:
        """Without rows of fantasies, and the copy of the others for each fantasy."""
        if self._num_fantasies:
            values = values.narrow(-own, 0, values.shape[-own] - self._num_fantasies)
            kept = self._real_dims + len(self.partition.tree_shape) + own
            values = values[(0,) * (values.ndim - kept)]
        return values

    def _new_predictors(
        self, X: Tensor, y: Tensor, graph: bool
    ) -> list[TreedPredictor]:
        """One for each tree, from transformed training inputs and outcomes."""
        shape = torch.broadcast_shapes(X.shape[:-2], y.shape[:-1])
        X_all = self._elements(X.expand(*shape, *X.shape[-2:]), 2)
        y_all = self._elements(y.expand(*shape, y.shape[-1]), 1)
        return [
            TreedPredictor(
                e,
                self.partition.element(e),
                self.covar_module,
                self.mean_module,
                self._noise_function(e, y.shape),
                X_all[:, e],
                y_all[:, e],
                self._lend,
                graph,
            )
            for e in range(X_all.shape[1])
        ]

    def _noise_function(
        self, element: int, shape: torch.Size
    ) -> Callable[[int], Tensor]:
        likelihood = self.likelihood
        if isinstance(likelihood, LeafNoiseLikelihood):
            values = likelihood.noise_covar.leaf_noise(element, slice(None))
            return lambda leaf: values[leaf]
        noise = self._known_noise()
        noise = noise if noise.shape == shape else self._real(noise, 1)
        known = self._elements(noise, 1)[:, element]
        return lambda leaf: known

    def _treed_posterior(self, X: Tensor) -> MultivariateNormal:
        """Posterior at ``batch_shape x q x d`` transformed points."""
        data, y = self.train_inputs[0], self.train_targets
        predictors = self._predictors()
        shape = torch.broadcast_shapes(X.shape[:-2], data.shape[:-2], y.shape[:-1])
        X, count = X.expand(*shape, *X.shape[-2:]), self._num_fantasies
        if count:
            imagined = data[..., -count:, :].expand(*shape, -1, -1)
            X = torch.cat([X, imagined], dim=-2)
        q = X.shape[-2]
        points = self._elements(X, 2)
        found = [p(points[:, e]) for e, p in enumerate(predictors)]
        mean = torch.stack([m for m, _ in found], dim=1).reshape(*shape, q)
        covariance = torch.stack([c for _, c in found], dim=1).reshape(*shape, q, q)
        if count:
            mean, covariance = self._given_fantasies(mean, covariance, imagined)
        # a bare tensor would get no jitter when it is factorised for sampling
        return MultivariateNormal(
            mean, to_linear_operator(with_variance_floor(covariance))
        )

    def _given_fantasies(
        self, mean: Tensor, covariance: Tensor, X: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Condition a joint posterior on fantasies, which are its last points.

        Fantasies are drawn from that posterior. Leaves that took them for data, each
        under a model of its own, would on average predict something else than before.
        """
        q = mean.shape[-1] - X.shape[-2]
        if isinstance(self.likelihood, LeafNoiseLikelihood):
            noise = self.likelihood.noise_covar.at(X)
        else:
            noise = self._known_noise()[..., q - mean.shape[-1] :]
        noise = torch.diag_embed(noise.expand_as(mean[..., q:]))
        root = psd_safe_cholesky(covariance[..., q:, q:] + noise)
        residual = self.train_targets[..., q - mean.shape[-1] :] - mean[..., q:]
        both = torch.cat(
            [
                covariance[..., q:, :q],
                residual.expand_as(mean[..., q:]).unsqueeze(-1),
            ],
            dim=-1,
        )
        both = torch.linalg.solve_triangular(root, both, upper=False)
        gain, half = both[..., :q], both[..., q:]
        mean = mean[..., :q] + (gain.mT @ half).squeeze(-1)
        return mean, covariance[..., :q, :q] - gain.mT @ gain

    def _borrowed_prior(self, X: Tensor) -> MultivariateNormal:
        if self.training or self._num_fantasies:
            X = self.transform_inputs(X) if self.training else X
            predictors = self._new_predictors(X, self.train_targets, graph=True)
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

        Fantasies, that is, outcomes drawn by ``fantasize``, are not data that leaves
        are conditioned on, but condition the posterior that they were drawn from: the
        mean over them is the mean before. So does whatever comes after fantasies.
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
        if fantasize.on() or self._num_fantasies:
            if not self._num_fantasies:
                new._real_dims = old_y.ndim - 1 - len(self.partition.tree_shape)
            new._num_fantasies = self._num_fantasies + X.shape[-2]
        return new
