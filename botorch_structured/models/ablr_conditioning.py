"""More data for Bayesian linear regressions: a rank-one update per outcome.

A conditioned model shares the training rows of the one it comes from, however many
these are, and appends its own only when somebody looks at them.
"""

from __future__ import annotations

__all__ = ["AblrConditioning"]

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import FantasizeMixin
from botorch.models.utils import fantasize as fantasize_flag
from botorch.sampling.base import MCSampler
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from botorch_structured.inference.ablr_posterior import update_weights
from botorch_structured.models.checks import check_finite_points, check_new_data

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr_posterior import AblrPosterior

    class _Base(AblrPosterior, FantasizeMixin): ...
else:
    _Base = object

# Of what was not observed: its weight is below rounding, and gradients stay finite.
_NOT_OBSERVED = 1e30


@dataclass(frozen=True)
class _Appended:
    """Rows a model was conditioned on, ``batch_shape x q x ...``."""

    X: Tensor  # as given
    transformed: Tensor
    targets: Tensor  # ``batch_shape x q``, or ``batch_shape x T x q`` for signals
    noise: Tensor  # of the same shape


class AblrConditioning(_Base):
    """Conditioning and fantasies of a ``MultiTaskABLR``, and its training data."""

    _appended: list[_Appended]
    _conditioned_batch: torch.Size
    _conditioned_tasks: frozenset[int]
    _train_inputs: Any
    _train_targets: Any
    _original_train_inputs: Any

    # -- conditioning -----------------------------------------------------------------

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Any:
        r"""A model with more data and the same hyperparameters.

        O(D^2) for each outcome, whatever the number of rows. Refit it, where Y is not a
        batch, with ``fit_gpytorch_mll``: the fit goes on from here. With a
        ``process_group``, all processes are conditioned on the same data; the first
        has the new rows.

        Args:
            X: ``batch_shape x q x d``, outcomes of ``output_tasks`` (or all signals);
                or ``batch_shape x q x (d + 1)`` with a task column.
            Y: ``batch_shape' x q x m``, with dimensions in front of X's for fantasies;
                NaN for what was not observed.
            noise: Noise variances on the standardised scale, of the shape of ``Y``.
                Default: the noise of each task.
            kwargs: Not used; BoTorch passes what its own models know.

        Raises:
            ValueError: If shapes do not fit together, tasks are unknown, numbers are
                not finite or variances negative, or an input transform makes other or
                more rows of observations than of training data.
        """
        self.eval()
        seen = fantasize_flag.off()  # else BoTorch made them
        if seen:
            check_finite_points(X, self._train_targets.dtype)
        with_task = self._has_task(X)
        outputs = [self._output_tasks[0]] if with_task else self._output_tasks
        if seen:
            m = len(outputs)
            check_new_data(X, Y, noise, m, self.batch_shape, missing=True)
        tasks = [self._index_of(t) for t in outputs]
        if with_task:
            assert self.tasks is not None
            tasks = self.tasks.index(X[..., self.tasks.column]).unique().tolist()
        # made now, not in each of the models to come
        self._weights_of(sorted({*tasks, *map(self._index_of, self._output_tasks)}))
        new = self._sharing_rows()
        if self.tasks is None or with_task:
            new._condition(X, Y, noise, with_task)
        else:
            for i, value in enumerate(outputs):
                own_noise = None if noise is None else noise[..., i : i + 1]
                rows = self.tasks.insert(X, value)
                new._condition(rows, Y[..., i : i + 1], own_noise, True)
        return new

    def get_fantasy_model(self, inputs: Any, targets: Tensor, **kwargs: Any) -> Any:
        """What ``ModelListGP.condition_on_observations`` calls.

        Use ``condition_on_observations`` otherwise.

        Args:
            inputs: ``batch_shape x q x d``, not transformed, with the task column if
                there is one.
            targets: ``batch_shape x q``, transformed.
            kwargs: ``noise`` is ``batch_shape x q``, transformed.

        Raises:
            UnsupportedError: For several outputs, which BoTorch joins to one.
        """
        if self._num_outputs > 1:
            raise UnsupportedError(
                "model: expected one with one output in a ModelListGP that is "
                f"conditioned, got {self._num_outputs}. Condition its models one by "
                "one: model.condition_on_observations(X, Y)."
            )
        X = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        Y, noise = targets.unsqueeze(-1), kwargs.get("noise")
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform.untransform(Y, X=X)
        noise = None if noise is None else noise.unsqueeze(-1)
        return self.condition_on_observations(X, Y, noise=noise)

    def fantasize(
        self,
        X: Tensor,
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Condition on outcomes drawn from the posterior, see ``FantasizeMixin``.

        Args:
            X: ``batch_shape x q x d``.
            sampler: Draws the outcomes.
            observation_noise: Noise variances on the standardised scale,
                ``1 x m`` or ``q x m``. Default: the noise of each task.
            kwargs: See ``condition_on_observations``.
        """
        given = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        with fantasize_flag():
            with_task = self._has_task(X)
        if observation_noise is None and given:
            levels = self._noise_levels()
            if with_task:
                assert self.tasks is not None
                task = self.tasks.index(X[..., self.tasks.column])
                observation_noise = levels[task].unsqueeze(-1)
            else:
                which = [self._index_of(t) for t in self._output_tasks]
                observation_noise = levels[which].unsqueeze(0)
            shape = (*X.shape[:-1], observation_noise.shape[-1])
            observation_noise = observation_noise.expand(shape)
        return super().fantasize(
            X, sampler, observation_noise=observation_noise, **kwargs
        )

    def _condition(
        self, X: Tensor, Y: Tensor, noise: Tensor | None, with_task: bool
    ) -> None:
        """Take in ``batch_shape x q`` rows, of one task each or of all signals."""
        transformed = self.transform_inputs(X)
        rows = (*X.shape[:-1], self._num_columns)
        if X.shape != rows or transformed.shape[:-1] != X.shape[:-1]:
            raise ValueError(
                "input_transform: expected one that treats new observations as it "
                "treats training rows, got "
                f"{type(self.input_transform).__name__}, which makes "
                f"{tuple(transformed.shape)} of {tuple(X.shape)} where training rows "
                f"have {self._num_columns} columns; use transform_on_train=True, or "
                "construct the model anew."
            )
        if hasattr(self, "outcome_transform"):
            transform, places = self.outcome_transform, self._output_tasks
            signals = not with_task and places != list(range(self.num_tasks))
            transform = transform.subset_output(places) if signals else transform
            Y, _ = transform(Y=Y, Yvar=None, X=transformed)
        features = (
            transformed if self.tasks is None else self.tasks.without(transformed)
        )
        phi = self.feature_map(features)
        prior = self._prior_means(transformed)
        if with_task:
            assert self.tasks is not None
            task = self.tasks.index(transformed[..., self.tasks.column])
            y = Y.squeeze(-1)
            variance = (
                self._noise_levels()[task] if noise is None else noise.squeeze(-1)
            )
            variance = variance.expand_as(y)
            for t in task.unique().tolist():
                mine = None if bool((task == t).all()) else task == t
                self._update(t, phi, y - prior[..., t], variance, mine)
            self._append(X, transformed, y, variance)
            return
        which = [self._index_of(t) for t in self._output_tasks]
        variances = self._noise_levels()[which] if noise is None else noise
        variances = variances.expand_as(Y)
        for i, t in enumerate(which):
            self._update(t, phi, Y[..., i] - prior[..., t], variances[..., i], None)
        if self.num_tasks == 1:
            self._append(X, transformed, Y.squeeze(-1), variances.squeeze(-1))
            return
        shape = (*Y.shape[:-1], self.num_tasks)
        targets, every = Y.new_full(shape, torch.nan), Y.new_ones(shape)
        targets[..., which], every[..., which] = Y.detach(), variances.detach()
        self._append(X, transformed, targets.mT, every.mT)

    def _update(
        self, t: int, phi: Tensor, y: Tensor, variance: Tensor, mine: Tensor | None
    ) -> None:
        observed = ~y.isnan() if mine is None else ~y.isnan() & mine
        if not observed.all():
            y = torch.where(observed, y, 0.0)
            variance = torch.where(observed, variance, _NOT_OBSERVED)
        (weights,) = self._weights_of([t])
        dtype = weights.mean.dtype
        updated = update_weights(
            weights._replace(mean=weights.mean.double(), root=weights.root.double()),
            phi.double(),
            y.double(),
            self._without_fantasy_dimension(variance.double(), phi),
        )
        self._conditioned_tasks |= {t}
        self._weights[t] = updated._replace(
            mean=updated.mean.to(dtype), root=updated.root.to(dtype)
        )

    @staticmethod
    def _without_fantasy_dimension(variance: Tensor, phi: Tensor) -> Tensor:
        """One covariance for all fantasies at a point, where their noise is one."""
        extra = variance.ndim - (phi.ndim - 1)
        if extra > 0 and all(s == 0 for s in variance.stride()[:extra]):
            return variance[(0,) * extra]
        return variance

    def _append(
        self, X: Tensor, transformed: Tensor, targets: Tensor, noise: Tensor
    ) -> None:
        lead = targets.shape[: targets.ndim - (2 if self._has_signals else 1)]
        self._conditioned_batch = torch.broadcast_shapes(
            self._conditioned_batch, lead, X.shape[:-2]
        )
        parts = (X, transformed, targets, noise)
        if not self._group.is_first:  # the sum over processes has them from there
            empty = slice(0, 0)
            parts = (
                X[..., empty, :],
                transformed[..., empty, :],
                targets[..., empty],
                noise[..., empty],
            )
        self._appended = [*self._appended, _Appended(*(p.detach() for p in parts))]
        self._rows_cache = None

    def _sharing_rows(self) -> Any:
        """A copy that has the same training data, not a copy of them."""
        shared = [
            *(self._train_inputs or ()),
            self._train_targets,
            self._original_train_inputs,
        ]
        new = deepcopy(self, {id(t): t for t in shared if t is not None})
        new._weights = dict(self._weights)
        new._noise_cache = self._noise_cache
        return new

    # -- training data -----------------------------------------------------------------

    @property
    def train_inputs(self) -> Any:
        """A tuple of the training inputs, those conditioned on included."""
        self._merge_appended()
        return self._train_inputs

    @train_inputs.setter
    def train_inputs(self, value: Any) -> None:
        object.__setattr__(self, "_train_inputs", value)

    @property
    def train_targets(self) -> Any:
        """The standardised outcomes, ``n``, or ``T x n`` for signals."""
        self._merge_appended()
        return self._train_targets

    @train_targets.setter
    def train_targets(self, value: Any) -> None:
        object.__setattr__(self, "_train_targets", value)

    @property
    def batch_shape(self) -> torch.Size:
        """Of the outcomes conditioned on; there is none without fantasies."""
        return self._conditioned_batch

    def _merge_appended(self) -> None:
        appended, self._appended = self.__dict__.get("_appended") or [], []
        if not appended:
            return
        batch = self._conditioned_batch

        def joined(first: Tensor, more: list[Tensor], own: int, dim: int) -> Tensor:
            parts = [p.expand(*batch, *p.shape[-own:]) for p in (first, *more)]
            return torch.cat(parts, dim=dim)

        transformed = self._has_transformed_inputs
        rows = [a.transformed if transformed else a.X for a in appended]
        self._train_inputs = (joined(self._train_inputs[0], rows, 2, -2),)
        if transformed:
            raw = [a.X for a in appended]
            self._original_train_inputs = joined(
                self._original_train_inputs, raw, 2, -2
            )
        own = 2 if self._has_signals else 1
        targets = [a.targets for a in appended]
        self.train_targets = joined(self._train_targets, targets, own, -1)
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            noise = [a.noise for a in appended]
            old = self.likelihood.noise
            self.likelihood.noise_covar.noise = joined(old, noise, own, -1)

    def _revert_to_original_inputs(self) -> None:
        self._merge_appended()  # the original ones are read before they are set
        super()._revert_to_original_inputs()

    def set_train_data(self, *args: Any, **kwargs: Any) -> None:
        """Replace the training data, see ``ExactGP.set_train_data``."""
        self._merge_appended()
        super().set_train_data(*args, **kwargs)
        self._conditioned_batch = self._train_inputs[0].shape[:-2]
        self._conditioned_tasks = frozenset(range(self.num_tasks))
        self._drop_caches()

    def _drop_caches(self) -> None:
        self._rows_cache = self._noise_cache = None
        self._weights = {}

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._weights = {}

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state, see ``GPyTorchModel.load_state_dict``."""
        self._drop_caches()
        result = super().load_state_dict(*args, **kwargs)
        self._drop_caches()
        return result

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        before = self._train_inputs[0]
        # BoTorch's analytic acquisitions call ``.to(X)`` on each evaluation: where that
        # changes nothing it must not cost the caches, nor join what is appended
        probe = before.new_empty(0)
        if fn(probe) is probe:
            return torch.nn.Module._apply(self, fn, *args, **kwargs)
        self._merge_appended()
        kept = {
            t: w._replace(mean=fn(w.mean), root=fn(w.root))
            for t, w in self._weights.items()
        }
        result = super()._apply(fn, *args, **kwargs)
        self._drop_caches()
        if self._conditioned_batch:
            self._weights = kept
        return result

    def __getstate__(self) -> dict[str, Any]:
        # caches are cheap to rebuild, but for a batch, one model after the other
        kept = {}
        if self._conditioned_batch:
            kept = {
                t: w._replace(mean=w.mean.detach(), root=w.root.detach())
                for t, w in self._weights.items()
            }
        caches = {"_rows_cache": None, "_noise_cache": None, "_common": None}
        return {**self.__dict__, **caches, "_weights": kept}
