"""Predictions of Bayesian linear regressions, from the posterior of their weights."""

from __future__ import annotations

__all__ = ["AblrPosterior"]

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from botorch_structured.models.ablr_normals import (
    apply_weights,
    checked_noise,
    covariance_of_points,
    covariance_of_rows,
    joint,
    normal,
    stacked,
)
from botorch_structured.models.ablr_standardize import StandardizeTasks
from botorch_structured.models.checks import check_finite_points
from botorch_structured.models.outcome_scale import ScaledMultitaskNormal, ScaledNormal

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr_weights import AblrWeights as _Base
else:
    _Base = object


class AblrPosterior(_Base):
    """Posterior of a ``MultiTaskABLR``, equations (1) and (2)."""

    _noise_cache: Tensor | None = None

    # -- noise and scales -----------------------------------------------------------

    def _noise_levels(self) -> Tensor:
        """The noise variance of a new outcome of each task, ``T``.

        Where variances are given row by row: the mean over the task's rows; over all
        rows for a task without any. Of models conditioned on a batch: the first one's.

        Raises:
            ValueError: If no row says what it is.
        """
        if not isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return self.likelihood.noise.expand(self.num_tasks)
        if self._noise_cache is None:
            batch = self._conditioned_batch
            data = self._rows_of_batch((0,) * len(batch)) if batch else self._rows()
            assert data.noise is not None
            zeros = data.noise.new_zeros(self.num_tasks)
            total = self._group.sum(zeros.index_add(0, data.task, data.noise))
            ones = torch.ones_like(data.noise)
            count = self._group.sum(zeros.index_add(0, data.task, ones))
            if not count.any():
                raise ValueError(
                    "noise: expected the noise variances of new outcomes, since none "
                    "was given with a row; got None."
                )
            usual = total.sum() / count.sum()
            self._noise_cache = torch.where(count > 0, total / count, usual)
        return self._noise_cache

    def _scales(self) -> tuple[Tensor, Tensor] | None:
        """Shift and scale of each task's outcomes; None if that is not what is done."""
        transform = getattr(self, "outcome_transform", None)
        if type(transform) is StandardizeTasks:
            return transform.means, transform.stdvs
        return None

    # -- posterior ------------------------------------------------------------------

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        r"""Posterior at some points, joint over the ``q`` points.

        Args:
            X: ``batch_shape x q x d``, answered for ``output_tasks`` (or all signals),
                or ``batch_shape x q x (d + 1)`` with a task column: one output.
            output_indices: Task values, or indices of signals, to answer for instead.
                Not with a task column in ``X``.
            observation_noise: Whether to add the noise of each task. A tensor,
                ``batch_shape x q x m``, has variances on the standardised scale.
            posterior_transform: An optional transform.

        Raises:
            ValueError: For unknown tasks, the wrong number of columns, another dtype
                than that of the training data, and NaN or infinity in ``X``.
        """
        if self.training:
            self.eval()
        check_finite_points(X, self._train_targets.dtype)
        if self._has_task(X):
            if output_indices is not None:
                raise ValueError(
                    "`output_indices` must be None when `X` includes task features."
                )
            posterior: Any = self._row_posterior(X, observation_noise)
        else:
            outputs = self._output_tasks if output_indices is None else output_indices
            if not len(outputs):
                raise ValueError("output_indices: expected at least one, got none.")
            posterior = self._output_posterior(X, list(outputs), observation_noise)
        if posterior_transform is not None:
            return posterior_transform(posterior=posterior, X=X)
        return posterior

    def _latent_posterior(self, X: Tensor) -> MultivariateNormal:
        """On the standardised scale at transformed inputs: ``model(X)``."""
        if self.tasks is not None:
            mean, root, task = self._at_rows(X)
            return normal(mean, covariance_of_rows(root, task))
        which = list(range(self.num_tasks))
        mean, root = self._at_outputs([X], self.feature_map(X), which)
        if self.num_tasks == 1:
            mean, root = mean.squeeze(-2), root.squeeze(-3)
        return normal(mean, covariance_of_points(root))

    def _at_rows(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means, roots ``... x q x D`` and tasks of transformed rows with tasks."""
        assert self.tasks is not None
        plain, task = self.tasks.split(X)
        phi = self.feature_map(plain)
        which = task.unique().tolist()
        prior = self._prior_means(X).gather(-1, task.unsqueeze(-1)).squeeze(-1)
        mean = root = None
        for t, weights in zip(which, self._weights_of(which), strict=True):
            m, r = apply_weights(phi, weights)
            if mean is None or root is None:
                mean, root = m, r
            else:
                here = task == t
                mean = torch.where(here, m, mean)
                root = torch.where(here.unsqueeze(-1), r, root)
        if mean is None or root is None:  # no row at all
            mean, root = prior, phi
        return prior + mean, root, task

    def _row_posterior(self, X: Tensor, observation_noise: bool | Tensor) -> Any:
        mean, root, task = self._at_rows(self.transform_inputs(X))
        noise = None
        if torch.is_tensor(observation_noise):
            noise = checked_noise(observation_noise, X.shape[-2], 1).squeeze(-1)
        elif observation_noise:
            noise = self._noise_levels()[task]
        scales = self._scales()
        if scales is not None:
            shift, scale = scales[0][task], scales[1][task]
            mean, root = shift + scale * mean, scale.unsqueeze(-1) * root
            noise = None if noise is None else noise * scale**2
        unit = 1.0 if scales is None else scale**2
        covariance = covariance_of_rows(root, task, noise, unit)
        posterior = GPyTorchPosterior(normal(mean, covariance))
        if scales is None and hasattr(self, "outcome_transform"):
            return self.outcome_transform.untransform_posterior(posterior, X=X)
        return posterior

    def _at_outputs(
        self, inputs: list[Tensor], phi: Tensor, which: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Means ``... x W x q`` and roots ``... x W x q x D`` of some tasks.

        Args:
            inputs: Transformed inputs of each of them, or one for all.
            phi: Features, ``... x q x D`` for all or ``... x W x q x D``.
            which: Tasks or signals, by index.
        """
        found = self._weights_of(which)
        if len(inputs) == 1:
            phi = phi.unsqueeze(-3)
            prior = self._prior_means(inputs[0])[..., which].mT
        else:
            each = zip(inputs, which, strict=True)
            prior = torch.stack([self._prior_means(x)[..., t] for x, t in each], -2)
        mean, root = apply_weights(phi, stacked(found))
        return prior + mean, root

    def _output_posterior(
        self, X: Tensor, outputs: list[int], observation_noise: bool | Tensor
    ) -> Any:
        which = [self._index_of(t) for t in outputs]
        if self.tasks is None:
            inputs = [self.transform_inputs(X)]
            phi = self.feature_map(inputs[0])
        elif hasattr(self, "input_transform"):  # it may look at the task
            inputs = [self.transform_inputs(self.tasks.insert(X, t)) for t in outputs]
            plain = [self.tasks.without(x) for x in inputs]
            phi = torch.stack([self.feature_map(x) for x in plain], dim=-3)
            if len(outputs) == 1:
                phi = phi.squeeze(-3)
        else:
            inputs = [self.tasks.insert(X, outputs[0])]
            phi = self.feature_map(X)
        mean, root = self._at_outputs(inputs, phi, which)
        noise = None
        if torch.is_tensor(observation_noise):
            noise = checked_noise(observation_noise, X.shape[-2], len(which)).mT
        elif observation_noise:
            noise = self._noise_levels()[which].unsqueeze(-1)
        scales = self._scales()
        if scales is not None:
            shift, scale = (s[which].unsqueeze(-1) for s in scales)
            mean, root = shift + scale * mean, scale.unsqueeze(-1) * root
            noise = None if noise is None else noise * scale**2
        unit = 1.0 if scales is None else scale**2
        posterior: Any = joint(mean, covariance_of_points(root, noise, unit))
        if scales is None and hasattr(self, "outcome_transform"):
            return self._untransformed(posterior, X, outputs)
        return posterior

    def _untransformed(
        self, posterior: GPyTorchPosterior, X: Tensor, outputs: list[int]
    ) -> Posterior:
        """On the scale of the outcomes, for a transform that is not the default."""
        transform = self.outcome_transform
        if self.tasks is None:
            if outputs != list(range(self.num_tasks)):
                transform = transform.subset_output(outputs)
            return transform.untransform_posterior(posterior, X=X)
        # row by row, so that a transform that looks at tasks finds them
        rows = torch.cat([self.tasks.insert(X, t) for t in outputs], dim=-2)
        if len(outputs) == 1:
            return transform.untransform_posterior(posterior, X=rows)
        mvn = posterior.distribution
        mean = mvn.mean.mT.flatten(-2)
        stacked = GPyTorchPosterior(ScaledNormal(mean, mvn.lazy_covariance_matrix))
        return _columns(transform.untransform_posterior(stacked, X=rows), len(outputs))


def _columns(posterior: Posterior, m: int) -> Posterior:
    """One column for each of ``m`` outputs, which came one below the other."""

    def columns(values: Tensor) -> Tensor:
        return values.squeeze(-1).unflatten(-1, (m, -1)).mT

    def rows(values: Tensor) -> Tensor:
        return values.mT.flatten(-2).unsqueeze(-1)

    def moment(of: Callable[[Tensor, Tensor], Tensor] | None) -> Any:
        return None if of is None else lambda M, V: columns(of(rows(M), rows(V)))

    if isinstance(posterior, TransformedPosterior):  # each value by its own row
        transform = posterior._sample_transform
        return TransformedPosterior(
            _columns(posterior._posterior, m),
            sample_transform=lambda values: columns(transform(rows(values))),
            mean_transform=moment(posterior._mean_transform),
            variance_transform=moment(posterior._variance_transform),
        )
    assert isinstance(posterior, GPyTorchPosterior)
    mvn = posterior.distribution
    return GPyTorchPosterior(
        ScaledMultitaskNormal(
            columns(mvn.mean.unsqueeze(-1)),
            mvn.lazy_covariance_matrix,
            interleaved=False,
        )
    )
