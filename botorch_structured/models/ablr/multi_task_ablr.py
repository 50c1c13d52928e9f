r"""Bayesian linear regressions on shared features: a warm start that is linear in rows.

Which model when: ``MultiTaskABLR`` is for starting a search with what old ones taught,
from a hundred evaluations to hundreds of thousands, and for objectives observed
together with other signals. With a few hundred rows of a few tasks BoTorch's
``MultiTaskGP`` also transfers *levels* between tasks, which is more; its cost is cubic.

References:

.. [Perrone2017multiple]
    V. Perrone, R. Jenatton, M. Seeger and C. Archambeau. Multiple Adaptive Bayesian
    Linear Regression for Scalable Bayesian Optimization with Warm Start.
    arXiv:1712.02902, 2017.
"""

from __future__ import annotations

__all__ = [
    "AblrConditioning",
    "AblrFit",
    "AblrNewTask",
    "AblrPosterior",
    "AblrRows",
    "AblrSampling",
    "AblrWeights",
    "MultiTaskABLR",
    "RowData",
    "StandardizeTasks",
    "WeightPath",
    "apply_weights",
    "check_own_seed",
    "check_untouched",
    "checked_noise",
    "covariance_of_points",
    "covariance_of_rows",
    "default_network",
    "joint",
    "noise_model",
    "normal",
    "stacked",
    "task_column",
    "task_values",
    "weight_level",
]

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import _fit_fallback
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import fantasize as fantasize_flag
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean, MultitaskMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from linear_operator.operators import (
    BlockDiagLinearOperator,
    DiagLinearOperator,
    LinearOperator,
    RootLinearOperator,
)
from torch import Tensor, nn
from tqdm import tqdm

from botorch_structured.kernels.random_fourier_features import RandomFourierFeatures
from botorch_structured.linalg.hyperparameter import LogInterval
from botorch_structured.models.ablr.feature_maps import TanhNetwork, as_feature_map
from botorch_structured.models.ablr.hyperparameters import (
    ExchangeableLogNormalPrior,
    TaskLikelihood,
    WeightPrecision,
)
from botorch_structured.models.ablr.kernel import TaskFeatureKernel
from botorch_structured.models.ablr.learnt import (
    LearntFeatures,
    LearntInputs,
    LearntMean,
    UsualScale,
)
from botorch_structured.models.ablr.new_task import (
    Population,
    UsualOutcomes,
    most_probable_scale,
    population,
    usual,
)
from botorch_structured.models.ablr.processes import ProcessGroup
from botorch_structured.models.ablr.regressions import (
    WeightPosterior,
    summed_log_evidence,
    update_weights,
    weight_posterior,
)
from botorch_structured.models.ablr.rows import TaskRows
from botorch_structured.models.ablr.tasks import TaskColumn, UnknownTaskError
from botorch_structured.models.checks import (
    DataError,
    check_finite_points,
    check_modules,
    check_new_data,
    check_spread,
    check_training_data,
    is_constant,
)
from botorch_structured.models.gaussian_noise import check_own_objective, noise_is_known
from botorch_structured.models.input_transforms import (
    dataset_task,
    in_evaluation,
    leaves_alone,
    refuse_categories,
    refuse_dependencies,
)
from botorch_structured.models.outcome_scale import (
    ScaledMultitaskNormal,
    ScaledNormal,
    at_unit_scale,
    check_scale,
)
from botorch_structured.models.tree.leaf_model import with_variance_floor

# ----------------------------------------------------------------------
# What a ``MultiTaskABLR`` is built from, and whether a user's arguments fit.

_CHUNK_ROWS = 4_096
# With fewer rows the prior of the network's weights is narrower than what they were
# drawn from: 10 evaluations of each of 29 old tasks bear the full width, 20 of one new
# one do not.
_ROWS_FOR_A_NETWORK = 300
# Normalised columns of so many rows are not that narrow by chance.
_LARGEST_TASK = 2.0**53
_NARROW, _ROWS_TO_BE_NARROW = 0.1, 10


def _is_task(value: float) -> bool:
    """Whether it is an integer, of a size that floating-point numbers still count."""
    return abs(value) <= _LARGEST_TASK and value == int(value)


def check_own_seed(seed: object) -> None:
    """Raise a ``ValueError`` unless it is an integer."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed: expected an integer, got {seed!r}.")


def _check_task_list(name: str, values: object) -> None:
    """Raise a ``ValueError`` unless a user's task values are a list of integers."""
    if values is None:
        return
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ValueError(f"{name}: expected a list of integers, got {values!r}.")
    whole = [isinstance(v, int | float) and _is_task(v) for v in values]
    if not all(whole):
        raise ValueError(f"{name}: expected a list of integers, got {values}.")
    if not values:
        raise ValueError(f"{name}: expected at least one task, got none.")


def task_column(
    task_feature: int | None,
    X: Tensor,
    Y: Tensor,
    output_tasks: list[int] | None,
    all_tasks: list[int] | None,
) -> int | None:
    """The index of the task column, not negative; None for signals.

    Args:
        task_feature: What the user said.
        X: Inputs as the user has them: what a transform appends is no column to count
            from.
        Y: Outcomes.
        output_tasks: What the user said.
        all_tasks: What the user said.

    Raises:
        ValueError: If these do not fit together.
    """
    if task_feature is None:
        for name, value in (("output_tasks", output_tasks), ("all_tasks", all_tasks)):
            if value is not None:
                raise ValueError(
                    f"{name}: expected None without a task_feature, got {value}."
                )
        return None
    if isinstance(task_feature, bool) or not isinstance(task_feature, int):
        raise ValueError(
            f"task_feature: expected an integer or None, got {task_feature!r}."
        )
    _check_task_list("output_tasks", output_tasks)
    _check_task_list("all_tasks", all_tasks)
    if Y.shape[-1] != 1:
        raise ValueError(
            "train_Y: expected one column with a task_feature, got "
            f"{Y.shape[-1]}: several tasks and several signals at once are not built. "
            "Make one model for each signal (ModelListGP), or each pair of task and "
            "signal a task."
        )
    d = X.shape[-1] - 1
    if not -d - 1 <= task_feature <= d:
        raise ValueError(
            f"task_feature: expected a column from {-d - 1} to {d}, got {task_feature}."
        )
    if d == 0:
        raise ValueError("train_X: expected columns beside the task's, got none.")
    return task_feature % (d + 1)


def check_untouched(before: Tensor, after: Tensor, column: int) -> None:
    """Raise a ``ValueError`` if a transform has changed the task column."""
    if not leaves_alone([column], before, after):
        raise ValueError(
            "input_transform: expected one that leaves the task column "
            f"({column}) as it is, such as Normalize(..., indices=[...])."
        )


def task_values(
    column: Tensor, all_tasks: list[int] | None, group: ProcessGroup
) -> list[int]:
    """All task values, ascending.

    Args:
        column: Those of the rows.
        all_tasks: What the user said.
        group: The processes that share the rows.

    Raises:
        ValueError: If they are no integers, or not known to all processes.
        UnsupportedError: If ``all_tasks`` lacks one that has rows.
    """
    found = column.unique().tolist()
    if not all(map(_is_task, found)):
        raise ValueError(
            "train_X: expected integers in the task column, of at most 2^53, got "
            f"{found[:10]}."
        )
    inferred = [int(value) for value in found]
    if all_tasks is None:
        if group.is_shared:
            raise ValueError(
                "all_tasks: expected all task values with a process_group, since one "
                "process may have no row of a task; got None."
            )
        if not inferred:
            raise ValueError(
                "all_tasks: expected all task values where train_X has no row that "
                "says one, got None."
            )
        return inferred
    if not set(inferred).issubset(all_tasks):
        raise UnsupportedError(
            f"The provided {all_tasks=} does not contain all the task features "
            f"inferred from the training data {inferred=}."
        )
    return sorted(int(value) for value in set(all_tasks))


def default_network(X: Tensor, seed: int, group: ProcessGroup) -> TanhNetwork:
    """The network of the paper, with a prior as wide as the data can bear.

    Args:
        X: Transformed inputs, ``n x d``. Columns outside [0, 1] are scaled by their
            range.
        seed: Of its weights.
        group: The processes that share the rows.
    """
    d = X.shape[-1]
    far = X.new_full((1, d), torch.inf)
    low = group.min(torch.cat([X, far]).amin(0)).double()
    high = -group.min(torch.cat([-X, far]).amin(0)).double()
    unit = ~((low < 0.0) | (high > 1.0)) | (low == high)
    narrow = unit & (low < high) & (high - low < _NARROW)
    low, high = torch.where(unit, 0.0, low), torch.where(unit, 1.0, high)
    rows = group.sum_of_int(len(X), X.device)
    if rows >= _ROWS_TO_BE_NARROW and narrow.any():
        warnings.warn(
            f"train_X: columns {narrow.nonzero()[:, 0].tolist()} (without the task's) "
            f"are within [0, 1], which is taken to be normalised, but span less than "
            f"{_NARROW}: the network will hardly see them. Pass input_transform="
            "Normalize(...), and logarithms of what is on a log scale.",
            InputDataWarning,
            stacklevel=5,
        )
    scale = min(1.0, math.sqrt(max(rows, 1) / _ROWS_FOR_A_NETWORK))
    bounds = torch.stack([low, high]).cpu()
    return TanhNetwork(d, bounds=bounds, prior_scale=scale, seed=seed)


def weight_level(feature_map: nn.Module, X: Tensor, group: ProcessGroup) -> float:
    """The weight precision under which functions have a variance of one.

    Args:
        feature_map: ``n x d`` to ``n x D``.
        X: Transformed inputs of this process.
        group: The processes that share the rows.

    Raises:
        ValueError: If the features are not finite, all zero, or of another shape.
    """
    count = group.sum_of_int(len(X), X.device)
    squares = X.new_zeros((), dtype=torch.float64)
    with torch.no_grad():
        some = X if len(X) else X.new_zeros(1, X.shape[-1])
        for rows in some.split(_CHUNK_ROWS):
            try:
                phi = feature_map(rows)
            except RuntimeError as error:
                raise ValueError(
                    "feature_map: expected a map of inputs ``n x "
                    f"{rows.shape[-1]}`` (no task column); on {tuple(rows.shape)} it "
                    f"fails with: {error}"
                ) from error
            if (
                phi.ndim != 2
                or len(phi) != len(rows)
                or not phi.shape[-1]
                or not phi.isfinite().all()
            ):
                raise ValueError(
                    "feature_map: expected finite features ``n x D`` of inputs "
                    f"``n x d``, got shape {tuple(phi.shape)}, finite: "
                    f"{bool(phi.isfinite().all())}."
                )
            if len(X) or not count:
                squares += phi.double().square().sum()
    level = float(group.sum(squares)) / max(count, 1)
    if not level > 0.0:
        raise ValueError(
            "feature_map: expected features that are not all zero at the training rows."
        )
    return level


def noise_model(
    likelihood: Likelihood | None,
    targets: Tensor,
    noise: Tensor | None,
    num_tasks: int,
    tasks: TaskColumn | None,
    priors: bool,
) -> Likelihood:
    """The likelihood: the user's, known variances, or one to be learnt for each task.

    Args:
        likelihood: The user's.
        targets: Transformed outcomes, ``n`` or ``T x n``.
        noise: Known variances of transformed outcomes, ``n x m``.
        num_tasks: T.
        tasks: The task column.
        priors: Whether what is learnt has a prior.

    Raises:
        ValueError: If the user's is none of GPyTorch's own three, learns more noise
            beside what is given, or has another number of variances.
    """
    if likelihood is None and noise is None:
        return TaskLikelihood(num_tasks, tasks, prior=priors)
    if likelihood is None:
        assert noise is not None
        # what is not observed has no noise either, but GPyTorch wants a number
        noise = torch.where(targets.isnan(), 1.0, noise.mT.reshape(targets.shape))
        return FixedNoiseGaussianLikelihood(noise=noise)
    learnt = type(likelihood) is TaskLikelihood  # of another model
    if not (learnt or noise_is_known(likelihood, tasks=True)):
        raise ValueError(
            "likelihood: expected a GaussianLikelihood, HadamardGaussianLikelihood or "
            "FixedNoiseGaussianLikelihood, not a subclass, whose noise may be another, "
            f"got {type(likelihood).__name__}."
        )
    if getattr(likelihood, "second_noise_covar", None) is not None:
        raise ValueError(
            "likelihood: expected learn_additional_noise=False, since variances that "
            "are given row by row are not learnt here, got True."
        )
    fixed = isinstance(likelihood, FixedNoiseGaussianLikelihood)
    expected = targets.shape if fixed else torch.Size([num_tasks])
    shape = likelihood.noise.shape
    if shape != expected and (fixed or shape != torch.Size([1])):
        raise ValueError(
            f"likelihood: expected noise variances of shape {tuple(expected)}, one for "
            f"each {'outcome' if fixed else 'task'}, got {tuple(shape)}."
        )
    return likelihood


# ----------------------------------------------------------------------
# More data for Bayesian linear regressions: a rank-one update per outcome.
#
# A conditioned model shares the training rows of the one it comes from, however many
# these are, and appends its own only when somebody looks at them.

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr.multi_task_ablr import AblrPosterior

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


# ----------------------------------------------------------------------
# Normal distributions of functions, from those of their weights.


def stacked(weights: list[WeightPosterior]) -> WeightPosterior:
    """Of several tasks, ``... x W x D`` and ``... x W x D x D``.

    Some may have been conditioned on a batch of outcomes, and others not.

    Args:
        weights: Of each task.
    """
    means = torch.broadcast_tensors(*[w.mean for w in weights])
    roots = torch.broadcast_tensors(*[w.root for w in weights])
    return WeightPosterior(torch.stack(means, dim=-2), torch.stack(roots, dim=-3))


def normal(mean: Tensor, covariance: LinearOperator) -> MultivariateNormal:
    """A distribution whose covariance may lack dimensions of the mean.

    Fantasies at the same points differ in their means only.

    Args:
        mean: ``... x n``.
        covariance: ``... x n x n``.
    """
    if covariance.shape[:-1] != mean.shape:
        covariance = covariance.expand(*mean.shape, mean.shape[-1])
    return ScaledNormal(mean, at_unit_scale(covariance))


def apply_weights(phi: Tensor, weights: WeightPosterior) -> tuple[Tensor, Tensor]:
    """Mean and root of ``phi' w``, ``... x q`` and ``... x q x D``.

    Args:
        phi: Features, ``... x q x D``.
        weights: ``... x D`` and ``... x D x D``.
    """
    mean = (phi @ weights.mean.unsqueeze(-1)).squeeze(-1)
    return mean, phi @ weights.root


def covariance_of_points(
    root: Tensor, noise: Tensor | None = None, unit: Tensor | float = 1.0
) -> LinearOperator:
    """The covariance of ``root root'`` and noise, ``... x q x q``.

    With more points than features it is singular, and is sampled through the weights;
    a Cholesky factorisation would need jitter.

    Args:
        root: ``... x q x D``.
        noise: Variances that broadcast to ``... x q``.
        unit: Of variances, see ``with_variance_floor``.
    """
    if noise is None and root.shape[-2] >= root.shape[-1]:
        return RootLinearOperator(root)
    return _with_noise(with_variance_floor(root @ root.mT, unit), noise)


def covariance_of_rows(
    root: Tensor,
    task: Tensor,
    noise: Tensor | None = None,
    unit: Tensor | float = 1.0,
) -> LinearOperator:
    """The same for rows of tasks, which are independent of each other.

    Args:
        root: ``... x q x D``.
        task: The task of each row, ``... x q``.
        noise: Variances that broadcast to ``... x q``.
        unit: Of variances, see ``with_variance_floor``.
    """
    if not task.numel() or bool((task == task.reshape(-1)[0]).all()):
        return covariance_of_points(root, noise, unit)
    same = task.unsqueeze(-1) == task.unsqueeze(-2)
    return _with_noise(
        with_variance_floor(torch.where(same, root @ root.mT, 0.0), unit), noise
    )


def checked_noise(noise: Tensor, q: int, m: int) -> Tensor:
    """Noise variances of ``q`` points and ``m`` outputs, ``... x q x m``.

    Raises:
        ValueError: If they have another shape.
    """
    if noise.ndim < 2 or noise.shape[-1] != m or noise.shape[-2] not in (1, q):
        raise ValueError(
            f"observation_noise: expected ``batch_shape x {q} x {m}`` variances, got "
            f"shape {tuple(noise.shape)}."
        )
    return noise


def _with_noise(covariance: Tensor, noise: Tensor | None) -> LinearOperator:
    if noise is not None:
        shape = torch.broadcast_shapes(noise.shape, covariance.shape[:-1])
        covariance = covariance + torch.diag_embed(noise.expand(shape))
    # a bare tensor would get no jitter when it is factorised for sampling
    return to_linear_operator(covariance)


def joint(mean: Tensor, covariance: LinearOperator) -> GPyTorchPosterior:
    """One posterior of independent outputs.

    Args:
        mean: ``... x m x q``.
        covariance: ``... x m x q x q``.
    """
    if mean.shape[-2] == 1:
        return GPyTorchPosterior(normal(mean.squeeze(-2), covariance.squeeze(-3)))
    covariance = covariance.expand(*mean.shape, mean.shape[-1])
    blocks = BlockDiagLinearOperator(at_unit_scale(covariance), block_dim=-3)
    return GPyTorchPosterior(ScaledMultitaskNormal(mean.mT, blocks, interleaved=False))


# ----------------------------------------------------------------------
# Outcomes of each task, or signal, on its own scale.


class StandardizeTasks(OutcomeTransform):
    """Zero mean and unit variance for each task by itself.

    Weights have a prior of mean zero, and tasks from different data sets have errors of
    different sizes: they must be standardised, and one by one. BoTorch's
    ``StratifiedStandardize`` does that for tasks with rows. Here a task with one row,
    or whose outcomes are all equal, has the geometric mean of the other tasks' standard
    deviations (1 if there are none); a task without rows has the average of the other
    tasks' means as well. Missing outcomes (NaN) stay missing.

    Args:
        num_tasks: The number T of tasks, or of signals.
        tasks: The task column; None for signals, the columns of the outcomes.
        group: The processes that share the rows.
    """

    means: Tensor
    stdvs: Tensor

    def __init__(
        self,
        num_tasks: int,
        tasks: TaskColumn | None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tasks = tasks
        self._group = group or ProcessGroup()
        self.register_buffer("means", torch.zeros(num_tasks, dtype=torch.float64))
        self.register_buffer("stdvs", torch.ones(num_tasks, dtype=torch.float64))
        self.register_buffer("_is_trained", torch.tensor(False))

    @property
    def _is_linear(self) -> bool:
        return True

    def _places(self, Y: Tensor, X: Tensor | None) -> Tensor:
        """The task of each outcome, broadcastable to ``batch_shape x n x m``."""
        if self.tasks is None:
            signals = len(self.means)
            if signals > 1 and Y.shape[-1] != signals:
                raise ValueError(
                    f"Y: expected {signals} columns, one for each signal, got shape "
                    f"{tuple(Y.shape)}. In a ModelListGP, condition its models one by "
                    "one: model.condition_on_observations(X, Y)."
                )
            return torch.arange(signals, device=Y.device)
        if X is None or X.shape[-1] != self.tasks.num_columns:
            raise ValueError(
                "X: expected inputs with their task column, since each task is "
                "standardised by itself, got "
                f"{'None' if X is None else tuple(X.shape)}."
            )
        places = self.tasks.index(X[..., self.tasks.column])
        # a ModelListGP leaves the one column out
        bare = Y.shape[-places.ndim :] == places.shape
        return places if bare else places.unsqueeze(-1)

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardise; in training mode, first learn the means and deviations.

        Args:
            Y: ``batch_shape x n x m`` outcomes, m = 1 with a task column.
            Yvar: Their noise variances.
            X: ``batch_shape x n x (d + 1)``, where tasks are a column.

        Returns:
            Both transformed.
        """
        places = self._places(Y, X)
        if self.training:
            self._learn(Y, places.expand_as(Y))
        mean, stdv = self.means[places], self.stdvs[places]
        return (Y - mean) / stdv, None if Yvar is None else Yvar / stdv**2

    def _learn(self, Y: Tensor, places: Tensor) -> None:
        observed = ~Y.isnan()
        y, task = Y[observed], places[observed]

        def total(values: Tensor) -> Tensor:
            sums = values.new_zeros(len(self.means)).index_add(0, task, values)
            return self._group.sum(sums)

        def least(values: Tensor) -> Tensor:
            none = values.new_full((len(self.means),), torch.inf)
            return self._group.min(none.scatter_reduce(0, task, values, "amin"))

        low, high = least(y), -least(-y)
        check_spread(low, high)
        count = total(torch.ones_like(y))
        means = total(y) / count.clamp_min(1.0)
        # twice: a mean of 1e6 loses the digits that the first sum has not
        means = means + total(y - means[task]) / count.clamp_min(1.0)
        squares = total((y - means[task]).square())
        stdvs = (squares / (count - 1.0).clamp_min(1.0)).sqrt()
        some = count > 0
        known = (count > 1) & ~is_constant(low, high)
        usual = stdvs[known].log().mean().exp() if known.any() else stdvs.new_tensor(1)
        average = means[some].mean() if some.any() else means.new_tensor(0.0)
        self.means = torch.where(some, means, average)
        self.stdvs = torch.where(known, stdvs, usual)
        self._is_trained = torch.tensor(True)

    def untransform(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The inverse of ``forward``, of the same shapes."""
        places = self._places(Y, X)
        mean, stdv = self.means[places], self.stdvs[places]
        return mean + stdv * Y, None if Yvar is None else Yvar * stdv**2

    def untransform_posterior(
        self, posterior: Posterior, X: Tensor | None = None
    ) -> GPyTorchPosterior | TransformedPosterior:
        """A posterior on the scale of the outcomes.

        Args:
            posterior: Of standardised outcomes, of one task per row or of all signals.
            X: ``batch_shape x q x (d + 1)``, where tasks are a column.
        """
        places = self._places(posterior.mean, X).expand(posterior.mean.shape)
        mean, stdv = self.means[places], self.stdvs[places]
        if type(posterior) is not GPyTorchPosterior:
            return TransformedPosterior(
                posterior=posterior,
                sample_transform=lambda s: mean + stdv * s,
                mean_transform=lambda m, v: mean + stdv * m,
                variance_transform=lambda m, v: stdv**2 * v,
            )
        mvn = posterior.distribution
        moved = mean + stdv * posterior.mean
        several = isinstance(mvn, MultitaskMultivariateNormal)
        if several:
            order = stdv if mvn._interleaved else stdv.mT
            scale = DiagLinearOperator(order.reshape(*stdv.shape[:-2], -1))
        else:
            moved, scale = moved.squeeze(-1), DiagLinearOperator(stdv.squeeze(-1))
        covariance = scale @ mvn.lazy_covariance_matrix @ scale
        kwargs = {"interleaved": mvn._interleaved} if several else {}
        return GPyTorchPosterior(type(mvn)(moved, covariance, **kwargs))

    def subset_output(self, idcs: list[int]) -> StandardizeTasks:
        """Of some of the signals; with a task column there is one output."""
        new = deepcopy(self)
        if self.tasks is None:
            new.means, new.stdvs = self.means[idcs], self.stdvs[idcs]
        return new


# ----------------------------------------------------------------------
# Predictions of Bayesian linear regressions, from the posterior of their weights.

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr.multi_task_ablr import AblrWeights as _Base
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


# ----------------------------------------------------------------------
# The training rows of Bayesian linear regressions, their prior and their evidence.

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models.gpytorch import MultiTaskGPyTorchModel

    from botorch_structured.models.ablr.processes import ProcessGroup
    from botorch_structured.models.ablr.tasks import TaskColumn

    class _Base(MultiTaskGPyTorchModel):
        tasks: TaskColumn | None
        num_tasks: int
        train_inputs: Any
        train_targets: Any
        likelihood: Any
        mean_module: Any
        covar_module: Any
        _group: ProcessGroup
        _conditioned_batch: torch.Size
else:
    _Base = object


@dataclass(frozen=True)
class RowData:
    """What was observed where, as inference takes it.

    Attributes:
        inputs: Transformed training inputs, task column included, ``n x d``.
        X: Those columns that features see, of the rows with an observation in the case
            of tasks.
        Y: Observed outcomes, ``m``.
        task: Their tasks or signals, ``m``.
        row: The row of ``inputs`` of each, ``m``; None: one after the other.
        rows: How they are arranged in chunks.
        noise: Their noise variances, where these are given, ``m``.
        total: Number of outcomes, those missing included, on all processes.
    """

    inputs: Tensor
    X: Tensor
    Y: Tensor
    task: Tensor
    row: Tensor | None
    rows: TaskRows
    noise: Tensor | None
    total: int


class AblrRows(_Base):
    """Rows, prior and evidence of a ``MultiTaskABLR``."""

    _rows_cache: RowData | None = None

    # -- rows ---------------------------------------------------------------------

    @property
    def _learns_transform(self) -> bool:
        transform = getattr(self, "input_transform", None)
        return transform is not None and any(
            p.requires_grad for p in transform.parameters()
        )

    def _transformed_rows(self) -> Tensor:
        """The training inputs as features see them, with a graph if one is learnt."""
        X = self.train_inputs[0]
        if X.ndim > 2:
            raise UnsupportedError(
                "A batch of conditioned models has no evidence of its own, and cannot "
                "be fitted. Condition on one set of outcomes instead."
            )
        return X if self._has_transformed_inputs else self.transform_inputs(X)

    def _rows(self) -> RowData:
        """Everything that does not change with the hyperparameters, made once."""
        if self._rows_cache is None:
            with torch.no_grad():
                inputs, noise = self._transformed_rows(), self._given_noise()
                self._rows_cache = self._made_rows(inputs, self.train_targets, noise)
        return self._rows_cache

    def _rows_of_batch(self, place: tuple[int, ...]) -> RowData:
        """The same for one of the models that were conditioned on a batch of outcomes.

        Args:
            place: Its indices in the batch.
        """
        batch, own = self._conditioned_batch, 2 if self._has_signals else 1

        def of_one(values: Tensor, own: int) -> Tensor:
            each = values.expand(*batch, *values.shape[values.ndim - own :])
            return each[place]

        inputs = of_one(self.train_inputs[0], 2)
        if not self._has_transformed_inputs:
            inputs = self.transform_inputs(inputs)
        noise = self._given_noise()
        noise = None if noise is None else of_one(noise, own)
        return self._made_rows(inputs, of_one(self.train_targets, own), noise)

    def _given_noise(self) -> Tensor | None:
        given = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        return self.likelihood.noise if given else None

    def _made_rows(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None
    ) -> RowData:
        observed = ~targets.isnan()
        row: Tensor | None
        if targets.ndim > 1:  # signals, which share rows
            task, row = observed.nonzero(as_tuple=True)
            X = inputs
            rows = TaskRows(task, self.num_tasks, rows=row, num_rows=len(inputs))
        else:
            if self.tasks is None:
                X, task = inputs, torch.zeros_like(targets, dtype=torch.long)
            else:
                X, task = self.tasks.split(inputs)
            row = None
            if not observed.all():
                (row,) = observed.nonzero(as_tuple=True)
                X, task = X[row], task[row]
            rows = TaskRows(task, self.num_tasks)
        return RowData(
            inputs=inputs,
            X=X,
            Y=targets[observed],
            task=task,
            row=row,
            rows=rows,
            noise=None if noise is None else noise.expand_as(targets)[observed],
            total=self._group.sum_of_int(targets.shape[-1], targets.device),
        )

    # -- prior --------------------------------------------------------------------

    def _prior_means(self, X: Tensor) -> Tensor:
        """Prior means of all tasks at transformed rows, ``batch_shape x n x T``.

        A ``MultitaskMean`` has one mean per task; of any other, rows with their task
        column have one value.
        """
        if type(self.mean_module) is ZeroMean:
            return X.new_zeros(1).expand(*X.shape[:-1], self.num_tasks)
        if isinstance(self.mean_module, MultitaskMean):
            return self.mean_module(X if self.tasks is None else self.tasks.without(X))
        return self.mean_module(X).unsqueeze(-1).expand(*X.shape[:-1], self.num_tasks)

    def _check_mean(self, X: Tensor) -> None:
        """Raise a ``ValueError`` if the user's mean is of another shape."""
        some, expected = X[:1], (len(X[:1]), self.num_tasks)
        try:
            shape: object = tuple(self._prior_means(some).shape)
        except RuntimeError as error:
            shape = str(error)
        if shape != expected:
            raise ValueError(
                "mean_module: expected one value for each row, or a MultitaskMean with "
                f"{self.num_tasks} of them, got {type(self.mean_module).__name__}: "
                f"{shape}."
            )

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior of function values at ``n x d`` rows; of signals, a batch of T."""
        if self.training:
            x = self.transform_inputs(x)
        means = self._prior_means(x)
        if self.tasks is not None:
            task = self.tasks.index(x[..., self.tasks.column])
            mean = means.gather(-1, task.unsqueeze(-1)).squeeze(-1)
        else:
            mean = means.mT if self.num_tasks > 1 else means.squeeze(-1)
        prior = MultivariateNormal(mean, self.covar_module(x))
        prior.rows = x  # which noise they have, for who passes a distribution only
        return prior

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Prior of the training rows in training mode, else the posterior."""
        if settings.prior_mode.on():
            return self.forward(*args)
        if not self.training:
            return self._latent_posterior(*args)
        X = self.train_inputs[0]
        if settings.debug.on() and not (args[0] is X or torch.equal(args[0], X)):
            raise RuntimeError("You must train on the training inputs!")
        return self._training_prior(self.forward(X))

    def _latent_posterior(self, X: Tensor) -> MultivariateNormal:
        raise NotImplementedError  # AblrPosterior has it

    def _training_prior(self, prior: MultivariateNormal) -> MultivariateNormal:
        """The prior in a fit: its log density of the outcomes is the evidence.

        ``ExactMarginalLogLikelihood`` adds noise, which changes nothing here: the
        density is that of outcomes, their noise included.
        """
        log_density = self._log_density

        class TrainingPrior(MultivariateNormal):
            def log_prob(self, value: Tensor) -> Tensor:
                return log_density(value)

            def with_noise(self) -> MultivariateNormal:
                return self

        return TrainingPrior(prior.mean, prior.lazy_covariance_matrix)

    # -- evidence -----------------------------------------------------------------

    def _log_density(self, value: Tensor) -> Tensor:
        if self._group.is_shared:
            raise ValueError(
                "mll(model(X), Y): one process has only some of the rows. Expected "
                "fit_gpytorch_mll, or model.compute_custom_loss(mll), which sum over "
                "all of them."
            )
        if value is self.train_targets:
            return self.log_evidence()
        if value.shape != self.train_targets.shape:
            raise ValueError(
                f"value: expected shape {tuple(self.train_targets.shape)}, got "
                f"{tuple(value.shape)}."
            )
        observed = ~value.isnan()
        if not torch.equal(observed, ~self.train_targets.isnan()):
            raise ValueError(
                "value: expected outcomes where training data have them, got others."
            )
        return self._evidence_of(value[observed])

    def log_evidence(self) -> Tensor:
        """Log evidence of the standardised outcomes, summed over tasks: minus (3).

        Natural logarithms, ``-N/2 log(2 pi)`` included, no priors of hyperparameters;
        over all processes that share the rows.

        Returns:
            A scalar, differentiable in all parameters.
        """
        return self._evidence_of(self._rows().Y)

    def _evidence_of(self, Y: Tensor) -> Tensor:
        data = self._rows()
        inputs, X = data.inputs, data.X
        if self._learns_transform and not self._has_transformed_inputs:
            inputs = self._transformed_rows()
            X = inputs if self.tasks is None else self.tasks.without(inputs)
            if data.row is not None and self.train_targets.ndim == 1:
                X = X[data.row]
        return summed_log_evidence(
            self.covar_module.feature_map,
            X,
            Y - self._prior_mean_of_outcomes(data, inputs),
            data.rows,
            None if data.noise is not None else self._log_alpha(),
            self.covar_module.weight_precision.raw_value,
            noise_variance=data.noise,
            **self._group.kwargs,
        )

    def _prior_mean_of_outcomes(self, data: RowData, inputs: Tensor) -> Tensor | float:
        if type(self.mean_module) is ZeroMean:
            return 0.0
        means = self._prior_means(inputs)
        if data.row is not None:
            return means[data.row, data.task]
        return means.gather(-1, data.task.unsqueeze(-1)).squeeze(-1)

    def _log_alpha(self) -> Tensor:
        return -self.likelihood.noise.log().expand(self.num_tasks)

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Minus the objective of ``mll`` per data point: BoTorch's hook for a fit.

        Args:
            mll: Of this model. What is not an ``ExactMarginalLogLikelihood`` is
                evaluated densely, as for any other model.
            kwargs: Passed to ``mll`` in that case.

        Raises:
            ValueError: If the likelihood of ``mll`` is not that of this model.
        """
        if type(mll) is ExactMarginalLogLikelihood:
            check_own_objective(self, mll, kwargs)
            evidence = mll._add_other_terms(self.log_evidence().clone(), ())
            return -evidence / max(1, self._rows().total)
        output = self(*self.train_inputs)
        transformed = (self.transform_inputs(t) for t in self.train_inputs)
        return -mll(output, self.train_targets, *transformed, **kwargs)

    # -- training data, as BoTorch reads and restores them --------------------------

    def _extract_targets_and_noise(self) -> tuple[Tensor, Tensor | None]:
        def columns(values: Tensor) -> Tensor:
            return values.mT if self._has_signals else values.unsqueeze(-1)

        given = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        noise = self.likelihood.noise if given else None
        Y = columns(self.train_targets)
        return Y, None if noise is None else columns(noise)

    def _restore_targets_and_noise(
        self, Y: Tensor, Yvar: Tensor | None, strict: bool
    ) -> None:
        def rows(values: Tensor) -> Tensor:
            return values.mT if self._has_signals else values.squeeze(-1)

        if Yvar is not None:
            self.likelihood.noise_covar.noise = rows(Yvar)
        self.set_train_data(targets=rows(Y), strict=strict)

    @property
    def _has_signals(self) -> bool:
        return self.tasks is None and self.num_tasks > 1


# ----------------------------------------------------------------------
# Posteriors of the weights of Bayesian linear regressions, each computed once.

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr.multi_task_ablr import AblrRows as _Base
else:
    _Base = object


class AblrWeights(_Base):
    """Weights of a ``MultiTaskABLR`` given its rows, by task."""

    _output_tasks: list[int]
    _weights: dict[int, WeightPosterior]
    _conditioned_tasks: frozenset[int]
    _columns_of_mode: dict[bool, int]
    _num_columns: int
    num_non_task_features: int

    def _weights_of(self, which: list[int]) -> list[WeightPosterior]:
        """The posterior of the weights of some tasks, by index; computed once."""
        missing = [t for t in which if t not in self._weights]
        if missing:
            outputs = [self._index_of(t) for t in self._output_tasks]
            extra = [t for t in outputs if t not in (*self._weights, *missing)]
            self._compute_weights([*missing, *extra])
        found, batch = [self._weights[t] for t in which], self._conditioned_batch
        if not batch:
            return found
        return [  # as many means as there are models, of tasks they have in common too
            w._replace(
                mean=w.mean.expand(
                    *torch.broadcast_shapes(w.mean.shape[:-1], batch), -1
                )
            )
            for w in found
        ]

    @torch.no_grad()
    def _compute_weights(self, which: list[int]) -> None:
        if self._group.is_shared:
            # together, so that the processes need not agree on who asks for what
            which = [t for t in range(self.num_tasks) if t not in self._weights]
        batch = self._conditioned_batch
        if not batch:
            self._weights.update(self._weights_from(self._rows(), which))
            return
        # of tasks that none of them was conditioned on, all have the same rows
        same = [t for t in which if t not in self._conditioned_tasks]
        own = [t for t in which if t in self._conditioned_tasks]
        places = list(product(*(range(n) for n in batch)))
        if same and places:
            self._weights.update(
                self._weights_from(self._rows_of_batch(places[0]), same)
            )
        if own:
            each = [
                self._weights_from(self._rows_of_batch(place), own) for place in places
            ]
            for t in own:
                mean, root = (
                    torch.stack([getattr(weights[t], name) for weights in each])
                    for name in ("mean", "root")
                )
                self._weights[t] = WeightPosterior(
                    mean.unflatten(0, batch), root.unflatten(0, batch)
                )

    def _weights_from(
        self, data: RowData, which: list[int]
    ) -> dict[int, WeightPosterior]:
        """Posteriors of the weights of some tasks, given some rows."""
        X, Y = data.X, data.Y - self._prior_mean_of_outcomes(data, data.inputs)
        arrangement: Any = data.rows
        noise = data.noise
        log_alpha = None if noise is not None else self._log_alpha()
        log_beta = self.covar_module.weight_precision.raw_value
        asked: list[int] | None = which
        if self._group.is_shared:
            asked = None
        elif self.tasks is not None and len(which) < self.num_tasks:
            # the features of other tasks' rows are not needed
            chosen = torch.tensor(which, device=X.device)
            keep = torch.isin(data.task, chosen)
            X, Y, task = X[keep], Y[keep], data.task[keep]
            noise = None if noise is None else noise[keep]
            place = torch.zeros(self.num_tasks, dtype=torch.long, device=X.device)
            place[chosen] = torch.arange(len(which), device=X.device)
            arrangement, asked = place[task], None
            log_alpha = None if log_alpha is None else log_alpha[chosen]
            log_beta = log_beta[chosen]
        mean, root = weight_posterior(
            self.covar_module.feature_map,
            X,
            Y,
            arrangement,
            log_alpha,
            log_beta,
            noise_variance=noise,
            tasks=asked,
            **self._group.kwargs,
        )
        places = which if self._group.is_shared else range(len(which))
        return {
            t: WeightPosterior(mean[i].to(X), root[i].to(X))
            for i, t in zip(places, which, strict=True)
        }

    def _has_task(self, X: Tensor) -> bool:
        """Whether inputs, ``batch_shape x q x ...``, have a task column.

        Raises:
            ValueError: If they have another shape.
        """
        if X.ndim < 2:
            raise ValueError(
                f"X: expected ``batch_shape x q x d``, got shape {tuple(X.shape)}."
            )
        columns = self._columns_with_task()
        if self.tasks is not None and X.shape[-1] == columns:
            return True
        if X.shape[-1] != columns - (self.tasks is not None):
            raise ValueError(
                f"X: expected {columns} columns"
                + (", or one less without tasks" if self.tasks is not None else "")
                + f", got {X.shape[-1]}."
            )
        return False

    def _columns_with_task(self) -> int:
        """How many an input has, the task's included: perhaps fewer than training rows.

        In ``fantasize`` other transforms may apply than in ``posterior``.
        """
        mode = fantasize_flag.on()
        if mode not in self._columns_of_mode:
            rows = self.train_targets.new_zeros(1, self._num_columns)
            transform = getattr(self, "input_transform", None)
            seen = self.num_non_task_features + (self.tasks is not None)
            before, _ = in_evaluation(transform, rows, seen, fantasize=mode)
            self._columns_of_mode[mode] = before.shape[-1]
        return self._columns_of_mode[mode]

    def _index_of(self, output: int) -> int:
        """The index of a task value, or of a signal.

        Raises:
            ValueError: If there is none.
        """
        if self.tasks is None:
            if not -self.num_tasks <= output < self.num_tasks:
                raise ValueError(
                    f"output_indices: expected signals below {self.num_tasks}, got "
                    f"{output}."
                )
            return output % self.num_tasks
        return self.tasks.index_of(output)

    def weight_posterior(self) -> MultivariateNormal:
        """Posterior of the weights w_t of each output, on the standardised scale.

        Returns:
            A distribution over ``num_outputs x D``, or ``D`` for one output.
        """
        self.eval()
        found = self._weights_of([self._index_of(t) for t in self._output_tasks])
        if len(found) == 1:
            return normal(found[0].mean, RootLinearOperator(found[0].root))
        mean, root = stacked(found)
        return normal(mean, RootLinearOperator(root))


# ----------------------------------------------------------------------
# One more task for Bayesian linear regressions that have learnt from many.

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr.multi_task_ablr import AblrWeights as _Base
else:
    _Base = object

# Standard deviations, where few tasks tell: of logarithms of scales and noise, and of
# levels in units of the usual scale.
_GUESSED_SPREAD = 1.0
_GUESSED_LEVELS = 3.0
_USUAL_NOISE = 1e-3  # of tasks whose noise was given
# How far weights are from mu is in Sigma: what a task's own precision adds to that.
_PRECISION_SPREAD = 0.5
# Bounds of a noise variance that is outside those of outcomes of variance one.
_NOISE_FACTOR = 100.0


class AblrNewTask(_Base):
    """Models of new tasks, from a ``MultiTaskABLR`` that was fitted to many."""

    _common: tuple[list[WeightPosterior], Population] | None = None

    def new_task(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        exclude_tasks: Sequence[int] = (),
    ) -> Any:
        r"""A regression for one more task whose prior is what the tasks have in common.

        Beside the features, which are held, it knows their usual *values*: with the
        weights of the T tasks a sample of ``N(mu, Sigma)`` (empirical Bayes, see
        ``inference.ablr_population``),

        .. math:: y = o + s \, (\phi_z(x)' w + \epsilon), \quad w \sim N(\mu, \Sigma),

        and level o, scale s and noise distributed as theirs (o = 0 and s = 1 without
        an outcome transform). Its mean without any row
        of the new task is the average task; two rows need not tell their own scale.
        Tasks of one row, which standardised is zero wherever it is, do not count.
        Costs O(T D^3) once and O(n D^2): make it anew for each evaluation of a search,
        and fit the features again (``fit_gpytorch_mll`` of the model of all tasks) now
        and then. Fitting the new model is for its noise and weight precision.

        This goes beyond Perrone et al. (2017), where tasks share features only.

        With a ``process_group`` all processes must call this, with the same rows; each
        has a model of its own.

        Args:
            train_X: ``n x d``, without a task column; n may be 0.
            train_Y: ``n x 1``, not standardised.
            train_Yvar: ``n x 1`` observed noise variances; inferred if None, or without
                an outcome.
            exclude_tasks: Task values that are not taken for a sample, such as that of
                earlier rows of the new task.

        Returns:
            A ``MultiTaskABLR`` of one task, ready to predict, to fit and to condition.
            It is a copy: it does not change with this model.

        Raises:
            ValueError: For signals, fantasies, a mean or an outcome transform of one's
                own, if no task is left that has two rows (one, without an outcome
                transform), or if data do not fit.
        """
        self._check_can_share()
        if isinstance(exclude_tasks, str) or not isinstance(exclude_tasks, Sequence):
            raise ValueError(
                "exclude_tasks: expected a list of task values, got "
                f"{type(exclude_tasks).__name__}: {exclude_tasks!r}."
            )
        check_training_data(train_X, train_Y, train_Yvar, missing=True, empty=True)
        if train_X.dtype != self.train_targets.dtype:
            raise DataError(
                "train_X: expected the dtype of the old tasks' rows, "
                f"{self.train_targets.dtype}, got {train_X.dtype}."
            )
        with torch.no_grad():
            some = self._tasks_with_rows(exclude_tasks)
            d = self._num_columns - 1
            if train_X.shape[1:] != (d,) or train_Y.shape[1:] != (1,):
                raise ValueError(
                    f"train_X, train_Y: expected ``n x {d}``, without the task column, "
                    f"and ``n x 1``, got {tuple(train_X.shape)} and "
                    f"{tuple(train_Y.shape)}."
                )
            common = self._population(some)
            outcomes = self._usual_outcomes(some)
            features = LearntFeatures(self, common.root)
            inputs = LearntInputs(self) if hasattr(self, "input_transform") else None
            known = ~train_Y.squeeze(-1).isnan()
            if not known.any():  # which would say nothing of the noise of later ones
                train_Yvar = None
            X = train_X[known]
            phi = features(X if inputs is None else inputs(X)).double()
            curve = common.root.inverse() @ common.mean
            own = most_probable_scale(
                phi[:, :-1],
                phi[:, :-1] @ curve,
                train_Y[known].squeeze(-1).double(),
                outcomes,
                None if train_Yvar is None else train_Yvar[known].squeeze(-1).double(),
            )
            features.level.fill_(outcomes.level[1] / own)
        new = type(self)(
            train_X,
            train_Y,
            task_feature=None,
            train_Yvar=train_Yvar,
            mean_module=LearntMean(features, curve),
            outcome_transform=UsualScale(outcomes.level[0], own),
            input_transform=inputs,
            feature_map=features,
            priors=self._has_priors,
        )
        new._set_usual(outcomes)
        new.to(train_X)
        return new.eval()

    def _check_can_share(self) -> None:
        if self.tasks is None:
            raise ValueError(
                "new_task: expected the model of the old tasks, with a task column, "
                "got one without: signals, or a single task, are no sample of tasks."
            )
        if self._conditioned_batch:
            raise ValueError(
                "new_task: expected a model without fantasies, got a batch of shape "
                f"{tuple(self._conditioned_batch)}."
            )
        if type(self.mean_module) is not ZeroMean:
            raise ValueError(
                "mean_module: expected none where tasks share their weights, got "
                f"{type(self.mean_module).__name__}."
            )
        transform = getattr(self, "outcome_transform", None)
        if transform is not None and type(transform) is not StandardizeTasks:
            raise ValueError(
                "outcome_transform: expected the default or None where tasks share "
                f"their scales, got {type(transform).__name__}."
            )
        self.eval()

    def _tasks_with_rows(self, exclude_tasks: Sequence[int]) -> list[int]:
        assert self.tasks is not None
        without = {self.tasks.index_of(value) for value in exclude_tasks}
        counts = torch.tensor(
            self._rows().rows.counts, device=self.train_targets.device
        )
        rows = self._group.sum(counts).tolist()
        # standardised, one outcome is zero, and its scale that of the others
        enough = 1 if getattr(self, "outcome_transform", None) is None else 2
        some = [t for t, n in enumerate(rows) if n >= enough and t not in without]
        if not some:
            raise ValueError(
                f"new_task: expected at least one task that has {enough} rows and is "
                f"not excluded, got none; exclude_tasks: {list(exclude_tasks)}."
            )
        return some

    def _population(self, some: list[int]) -> Population:
        """Computed once for a search: it is that of the same weights."""
        weights, known = self._weights_of(some), self._common
        if known is not None and len(known[0]) == len(weights):
            if all(a is b for a, b in zip(known[0], weights, strict=True)):
                return known[1]
        common = population(
            torch.stack([w.mean for w in weights]).double(),
            torch.stack([w.root for w in weights]).double(),
            self.covar_module.weight_precision.value[some].double(),
        )
        self._common = (weights, common)
        return common

    def _usual_outcomes(self, some: list[int]) -> UsualOutcomes:
        transform = getattr(self, "outcome_transform", None)
        like = self.covar_module.weight_precision.value
        if transform is None:  # the outcomes are on one scale, levels in the weights
            level = log_scale = (0.0, 0.0)
        else:
            log_scale = usual(transform.stdvs[some].log(), _GUESSED_SPREAD)
            guess = _GUESSED_LEVELS * math.exp(log_scale[0])
            level = usual(transform.means[some], guess)
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            noise = like.new_tensor([_USUAL_NOISE]).log()
        else:
            noise = self.likelihood.noise.expand(self.num_tasks)[some].log()
        return UsualOutcomes(level, log_scale, usual(noise, _GUESSED_SPREAD))

    def _set_usual(self, outcomes: UsualOutcomes) -> None:
        """Hyperparameters, and the priors of them, of a task that others tell about."""
        # not the bounds that the size of the features suggests: that of the constant
        # one says how far levels are apart
        precision = WeightPrecision(1, 1.0, prior=self._has_priors)
        self.covar_module.weight_precision = precision
        if self._has_priors:
            _center(precision.value_prior, 0.0, _PRECISION_SPREAD)
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return
        center, spread = outcomes.log_noise
        noise, noise_covar = math.exp(center), self.likelihood.noise_covar
        low, high = (float(bound) for bound in noise_covar.raw_noise_constraint)
        if not low <= noise <= high:  # of a likelihood of the user's
            bounds = LogInterval(noise / _NOISE_FACTOR, noise * _NOISE_FACTOR)
            noise_covar.register_constraint("raw_noise", bounds)
        self.likelihood.noise = noise
        if self._has_priors:
            _center(noise_covar.noise_prior, center, spread)


def _center(prior: ExchangeableLogNormalPrior, center: float, spread: float) -> None:
    """All of the spread is that of tasks: their level is known."""
    with torch.no_grad():
        prior.loc.fill_(center)
        prior.task_spread.fill_(spread)
        prior.spread.fill_(1e-3 * spread)


# ----------------------------------------------------------------------
# Whole functions drawn from the posterior of Bayesian linear regressions.
#
# A function is a vector of weights: drawn once it is known everywhere, exactly, with
# gradients, at the cost of its features. That is what Thompson sampling wants, and what
# for a GP takes an approximation (BoTorch's ``draw_matheron_paths``).

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr.multi_task_ablr import AblrPosterior as _Base
else:
    _Base = object


class WeightPath(SamplePath):
    """Functions of a model, given their weights.

    BoTorch's convention for sample paths: batch dimensions of the inputs are broadcast
    against those of the weights, and outputs are the last of these.

    Args:
        model: A ``MultiTaskABLR``; its features are used as they are when called.
        weights: ``sample_shape x batch_shape x m x D``; ``... x D`` for one output.
    """

    weights: Tensor

    def __init__(self, model: Any, weights: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("weights", weights)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing changes: this model is no ensemble."""

    def forward(self, x: Tensor) -> Tensor:
        """Function values.

        Args:
            x: ``... x n x d`` inputs, or with a task column, which must then say the
                task of the output; for several outputs ``... x 1 x n x d``.

        Returns:
            ``... x n``.
        """
        model = self.model
        model.eval()
        outputs = model._output_tasks
        which = [model._index_of(t) for t in outputs]
        if model._has_task(x):
            task = x[..., model.tasks.column]
            if len(outputs) > 1 or not (task == outputs[0]).all():
                raise ValueError(
                    f"Expected inputs of task {outputs[0]}, which the functions were "
                    f"drawn for (output_tasks={outputs}), or without a task column."
                )
            x = model.tasks.without(x)
        values, inputs = [], []
        for i, (output, t) in enumerate(zip(outputs, which, strict=True)):
            rows = x if len(outputs) == 1 else x.squeeze(-3)
            full = rows if model.tasks is None else model.tasks.insert(rows, output)
            full = model.transform_inputs(full)
            plain = full if model.tasks is None else model.tasks.without(full)
            weights = self.weights if len(outputs) == 1 else self.weights[..., i, :]
            phi = model.feature_map(plain)
            f = (phi @ weights.unsqueeze(-1)).squeeze(-1)
            values.append(f + model._prior_means(full)[..., t])
            inputs.append(full)
        stacked = torch.stack(values, dim=-2)
        result = self._untransformed(stacked, which, inputs)
        return result.squeeze(-2) if len(outputs) == 1 else result

    def _untransformed(
        self, values: Tensor, which: list[int], inputs: list[Tensor]
    ) -> Tensor:
        """From ``... x m x n`` standardised values at the inputs of each output."""
        transform = getattr(self.model, "outcome_transform", None)
        if transform is None:
            return values
        if type(transform) is StandardizeTasks:
            shift, scale = transform.means[which], transform.stdvs[which]
            return shift.unsqueeze(-1) + scale.unsqueeze(-1) * values
        if self.model.tasks is not None:  # one by one: it may look at the task
            return torch.cat(
                [
                    transform.untransform(v.unsqueeze(-1), X=X)[0].mT
                    for v, X in zip(values.unbind(-2), inputs, strict=True)
                ],
                dim=-2,
            )
        if which != list(range(self.model.num_tasks)):
            transform = transform.subset_output(which)
        return transform.untransform(values.mT, X=inputs[0])[0].mT


class AblrSampling(_Base):
    """Functions drawn from the posterior of a ``MultiTaskABLR``."""

    def sample_functions(self, num_samples: int, seed: int | None = None) -> _Functions:
        """Draw whole functions, for Thompson sampling.

        Args:
            num_samples: How many.
            seed: By default torch's global generator draws.

        Returns:
            A callable from ``batch_shape x q x d`` to ``num_samples x batch_shape x q x
            m``, differentiable. It uses the features as they are: draw anew after a
            fit.

        Example:
            >>> functions = model.sample_functions(10, seed=0)
            >>> best = X[functions(X).squeeze(-1).argmax(-1)]  # 10 x d
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        path = self._draw_path(torch.Size([num_samples]), generator)
        return _Functions(path, self._num_outputs)

    @torch.no_grad()
    def _draw_path(
        self, sample_shape: torch.Size, generator: torch.Generator | None
    ) -> WeightPath:
        self.eval()
        posterior = self.weight_posterior()
        mean, root = posterior.mean, posterior.lazy_covariance_matrix.root.to_dense()
        # on the CPU, so that a seed means the same on every device
        normal = torch.randn(
            *sample_shape, *mean.shape, generator=generator, dtype=torch.float64
        )
        deviation = (root @ normal.to(mean).unsqueeze(-1)).squeeze(-1)
        return WeightPath(self, mean + deviation)


class _Functions(torch.nn.Module):
    def __init__(self, path: WeightPath, num_outputs: int) -> None:
        super().__init__()
        self.path = path
        self.num_outputs = num_outputs

    def forward(self, X: Tensor) -> Tensor:
        """Function values, ``num_samples x batch_shape x q x m``."""
        # one batch dimension for each of the inputs', to the right of the samples
        weights = self.path.weights
        own = 2 if self.num_outputs > 1 else 1
        lead, rest = weights.shape[:1], weights.shape[1:]
        batch = rest[: len(rest) - own]
        missing = max(0, X.ndim - 2 - len(batch))
        shape = (*lead, *[1] * missing, *rest)
        several = self.num_outputs > 1
        path = WeightPath(self.path.model, weights.reshape(shape))
        values = path(X.unsqueeze(-3) if several else X)
        return values.mT if several else values.unsqueeze(-1)


# ----------------------------------------------------------------------
# How Bayesian linear regressions on shared features are fitted.

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr.multi_task_ablr import AblrRows as _Base
else:
    _Base = object

# The objective is per outcome: finer tolerances change no prediction. On exact data the
# cap ends a fit; a second one goes on from there.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-5, "maxiter": 300}
_NUM_STARTS = 3
_STEPS_OF_A_START = 15
# A bar for what is over before one can read it is noise.
_SECONDS_WITHOUT_BAR = 3.0


class AblrFit(_Base):
    """The fit of a ``MultiTaskABLR``."""

    _has_priors: bool

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        num_starts: int = _NUM_STARTS,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""Joint L-BFGS over features, noise and weight precisions.

        ``fit_gpytorch_mll(mll, num_starts=..., progress=...)`` calls this; every
        argument of it is honoured, retries included. Not for direct use.

        A network that is as it was drawn is first fitted in brief from ``num_starts``
        draws (random Fourier features: from as many bandwidths), and the one with the
        largest objective goes on. A model that was fitted
        before, or has the state of one that was, goes on from where it is: the warm
        restart of a search. Interrupted (``KeyboardInterrupt``), the model keeps the
        parameters of the last step, and is ready to predict.

        Args:
            mll: Of this model.
            closure: See ``fit_gpytorch_mll``; with one, or with an ``optimizer``, there
                is one start.
            closure_kwargs: See ``fit_gpytorch_mll``.
            optimizer_kwargs: See ``fit_gpytorch_mll``.
            num_starts: How many draws to try.
            progress: Whether there is a bar; None: when it takes more than 3 seconds.
            kwargs: See ``fit_gpytorch_mll``.
        """
        if num_starts < 1:
            raise ValueError(f"num_starts: expected at least 1, got {num_starts}.")
        given = {"closure": closure, "closure_kwargs": closure_kwargs, **kwargs}
        if closure is not None or "optimizer" in kwargs:
            fitted = _fit_fallback(mll, optimizer_kwargs=optimizer_kwargs, **given)
            self._fill_unobserved()
            return fitted
        settings = dict(optimizer_kwargs or {})
        options = {**_FIT_OPTIONS, **(settings.pop("options", None) or {})}
        shown = progress if self._group.is_first else False
        with _Steps(mll, settings.pop("callback", None), shown) as steps:

            def fit(maxiter: int) -> None:
                _fit_fallback(
                    mll,
                    optimizer_kwargs={
                        **settings,
                        "options": {**options, "maxiter": maxiter},
                        "callback": steps,
                    },
                    **given,
                )

            self._start(
                mll, fit, num_starts, min(_STEPS_OF_A_START, options["maxiter"])
            )
            fit(options["maxiter"])
        self._fill_unobserved()
        return mll.eval()

    def _start(
        self,
        mll: MarginalLogLikelihood,
        fit: Callable[[int], None],
        num_starts: int,
        maxiter: int,
    ) -> None:
        """Leave the model where the most promising of some brief fits ends."""
        network = self.covar_module.feature_map
        exact = type(mll) is ExactMarginalLogLikelihood
        if (
            num_starts == 1
            or not exact
            or not isinstance(network, (RandomFourierFeatures, TanhNetwork))
            or network.has_started()
        ):
            return
        before = deepcopy(mll.state_dict())
        best: tuple[float, dict[str, Any], int] | None = None
        for number in range(num_starts):
            mll.load_state_dict(before)
            network.restart(number)
            fit(maxiter)
            mll.train()
            with torch.no_grad():
                loss = float(self.compute_custom_loss(mll))
            if math.isfinite(loss) and (best is None or loss < best[0]):
                best = (loss, deepcopy(mll.state_dict()), number)
        if best is not None:
            mll.load_state_dict(best[1])
            network.number = best[2]

    def _fill_unobserved(self) -> None:
        """Tasks without rows have the hyperparameters that the others make probable.

        With priors the fit gets there too, in time; by maximum likelihood there is
        nothing that moves them, and they have the geometric mean.
        """
        if self.train_targets.ndim > 1:
            return
        counts = torch.tensor(
            self._rows().rows.counts, device=self.train_targets.device
        )
        empty = self._group.sum(counts) == 0
        if not empty.any() or empty.all():
            return
        modules = [(self.covar_module.weight_precision, "value")]
        if isinstance(self.likelihood, TaskLikelihood):
            modules.append((self.likelihood.noise_covar, "noise"))
        for module, name in modules:
            values = getattr(module, name).detach().clone()
            prior = getattr(module, f"{name}_prior", None)
            others = values[~empty]
            values[empty] = (
                others.log().mean().exp()
                if prior is None
                else prior.most_probable(others)
            )
            module.initialize(**{f"raw_{name}": values.log()})


class _Steps:
    """Follows an optimisation: a bar, and where it was when it was interrupted."""

    def __init__(
        self, mll: MarginalLogLikelihood, callback: Any, progress: bool | None
    ) -> None:
        self._mll, self._callback = mll, callback
        self._bar = tqdm(
            desc="ABLR fit",
            unit="step",
            disable=progress is False,
            delay=0.0 if progress else _SECONDS_WITHOUT_BAR,
            leave=False,
        )
        self._last: dict[str, Any] | None = None

    def __call__(self, parameters: dict[str, Any], result: Any) -> None:
        self._bar.update()
        if result.fval is not None:
            self._bar.set_postfix(loss=f"{float(result.fval):.4g}", refresh=False)
        self._last = {n: p.detach().clone() for n, p in parameters.items()}
        if self._callback is not None:
            self._callback(parameters, result)

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._bar.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._last:
            parameters = dict(self._mll.named_parameters())
            with torch.no_grad():
                for name, value in self._last.items():
                    parameters[name].copy_(value)
            self._mll.eval()


# ----------------------------------------------------------------------
# On so many a transform shows what it does to columns.
_SOME_ROWS = 100


class MultiTaskABLR(
    AblrNewTask,
    AblrSampling,
    AblrConditioning,
    AblrPosterior,
    AblrWeights,
    AblrFit,
    AblrRows,
    ExactGP,
    MultiTaskGPyTorchModel,
    FantasizeMixin,
):
    r"""Exact Bayesian linear regression per task on features that all tasks share.

    .. math:: y_t = \Phi_z(X_t) w_t + \epsilon, \quad w_t \sim N(0, I / \beta_t), \quad
        \epsilon \sim N(0, I / \alpha_t)

    ([Perrone2017multiple]_, section 2). ``fit_gpytorch_mll`` learns the features z and
    all alpha_t, beta_t together from the summed log evidence, equation (3). Time is
    linear in the number of rows and memory beyond the data does not depend on it.

    *Tasks.* With a ``task_feature``, as in BoTorch's ``MultiTaskGP``: a column says
    which task a row is of. What a new task learns from the others is the features and
    how large noise and weights usually are, not values: without rows its mean is flat.
    A task that comes after the fit starts from more, see ``new_task``: its prior is
    what the tasks' weights, levels and scales have in common.

    *Signals.* With ``task_feature=None`` the m columns of ``train_Y`` are signals
    observed together (section 3.3), each a regression of its own; NaN is a signal that
    was not observed. m = 1 is the plain model. Several tasks with several signals, the
    paper's future work, raise.

    *Differences from the paper*, all undone by ``MultiTaskABLR.as_published``. Outcomes
    are standardised, task by task. With few rows, maximising the evidence over all
    network weights overfits, so that the weights have a Gaussian prior around random
    ones, narrower below 300 rows, and alpha_t and beta_t exchangeable ones around a
    level common to all tasks. The network has biases, and scales its inputs to [-1, 1].
    The fit starts from the most promising of several networks, here as there.

    Args:
        train_X: ``n x d``, or ``n x (d + 1)`` with a task column. Columns within [0, 1]
            are taken to be normalised; the default network scales any others by their
            range.
        train_Y: ``n x m``; ``n x 1`` with a task column. NaN: not observed.
        task_feature: The index of the task column; None for signals.
        train_Yvar: ``n x m`` observed noise variances; inferred if None.
        mean_module: Added to the regressions. Default: zero.
        covar_module: A kernel with a method ``features`` in place of ``feature_map``,
            such as ``MondrianKernel``; another covariance is not possible.
        likelihood: Replaces the noise variances 1 / alpha_t: a ``GaussianLikelihood``
            (one for all tasks) or a ``HadamardGaussianLikelihood``, not a subclass.
        output_tasks: Task values that ``posterior`` answers for where its inputs have
            no task column; default: all.
        all_tasks: All task values; default: those in ``train_X``.
        outcome_transform: Default: each task, or signal, standardised by itself,
            whatever its scale.
        input_transform: It must leave the task column as it is.
        feature_map: None for a ``TanhNetwork`` with 3 layers of 50 units,
            ``RandomFourierFeatures(...)``, ``MondrianKernel(...).features``, or any
            module from ``n x d`` to ``n x D``.
        validate_task_values: Whether an unexpected task value raises; otherwise it is
            taken for the first of ``output_tasks``.
        priors: Whether noise and weight precisions have priors; False for the paper's
            maximum likelihood.
        seed: Of the networks that a fit starts from; nothing is drawn from torch's
            global generator.
        process_group: A ``torch.distributed`` group (``torch.distributed.group.WORLD``
            for all processes), each of which holds some of the rows. All must make,
            fit and first evaluate the model at the same time; all have the same result.

    Raises:
        ValueError: For a batch of data, infinite numbers or NaN inputs, several signals
            with a task column, unknown tasks, or modules that do not fit.
        UnsupportedError: If ``all_tasks`` lacks a task that has rows.

    Example:
        >>> old = MultiTaskABLR(old_X_and_task, old_Y, task_feature=-1)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(old.likelihood, old))
        >>> model = old.new_task(X, Y)  # ``n x d`` and ``n x 1``, n may be 0
    """

    _supports_batched_models = False
    _supports_cache_root = False

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        task_feature: int | None,
        train_Yvar: Tensor | None = None,
        mean_module: Mean | None = None,
        covar_module: nn.Module | None = None,
        likelihood: Likelihood | None = None,
        output_tasks: list[int] | None = None,
        all_tasks: list[int] | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        feature_map: nn.Module | Callable[[Tensor], Tensor] | None = None,
        validate_task_values: bool = True,
        priors: bool = True,
        seed: int = 0,
        process_group: Any = None,
    ) -> None:
        check_modules(
            likelihood=likelihood,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        check_training_data(
            train_X,
            train_Y,
            train_Yvar,
            outcome_transform=outcome_transform,
            missing=True,
            empty=True,
        )
        if train_X.ndim != 2:
            raise ValueError(
                "train_X: expected one data set, ``n x d``, since a batch of models "
                f"would not share its features; got shape {tuple(train_X.shape)}."
            )
        self._validate_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
        check_own_seed(seed)
        with torch.no_grad():
            X = self.transform_inputs(train_X, input_transform=input_transform)
        # on some rows a transform shows what it does to columns
        some = train_X[:_SOME_ROWS]
        some = some if len(some) else train_X.new_zeros(1, train_X.shape[-1])
        predicted = in_evaluation(input_transform, some, X.shape[-1])
        column = task_column(task_feature, train_X, train_Y, output_tasks, all_tasks)
        group = ProcessGroup(process_group)
        tasks, count = None, train_Y.shape[-1]
        if column is not None:
            check_untouched(train_X, X, column)
            check_untouched(*predicted, column)
            values = task_values(X[:, column], all_tasks, group)
            outputs = values if output_tasks is None else list(output_tasks)
            if set(outputs) - set(values):
                raise UnknownTaskError(
                    f"output_tasks: expected tasks among {values}, got {outputs}."
                )
            default = None if validate_task_values else outputs[0]
            tasks, count = TaskColumn(column, X.shape[-1], values, default), len(values)
            tasks.to(X.device)
        else:
            outputs = list(range(count))
        plain = X if tasks is None else tasks.without(X)
        made = as_feature_map(
            feature_map, covar_module, lambda: default_network(plain, seed, group)
        ).to(train_X)
        level = weight_level(made, plain, group)
        # the scale of a new task is a guess from others
        scaled = outcome_transform is DEFAULT or type(outcome_transform) is UsualScale
        given = train_Y
        if outcome_transform is DEFAULT:
            outcome_transform = StandardizeTasks(count, tasks, group).to(train_X)
        if outcome_transform is not None:
            outcome_transform.train()
            train_Y, train_Yvar = outcome_transform(Y=train_Y, Yvar=train_Yvar, X=X)
        if not scaled:
            check_scale(given, train_Y)
        targets = train_Y.mT if train_Y.shape[-1] > 1 else train_Y.squeeze(-1)
        likelihood = noise_model(likelihood, targets, train_Yvar, count, tasks, priors)
        object.__setattr__(self, "_appended", [])
        object.__setattr__(self, "_conditioned_batch", torch.Size())
        object.__setattr__(self, "_conditioned_tasks", frozenset())
        object.__setattr__(self, "_weights", {})
        ExactGP.__init__(self, train_X, targets, likelihood)
        self._num_columns = train_X.shape[-1]
        self._columns_of_mode = {False: predicted[0].shape[-1]}
        self.tasks = tasks
        self.num_tasks = count
        self.num_non_task_features = X.shape[-1] - (tasks is not None)
        self._task_feature = column
        self._output_tasks = outputs
        self._num_outputs = len(outputs)
        self._has_priors, self._group = priors, group
        self.mean_module = mean_module or ZeroMean()
        precision = WeightPrecision(count, level, prior=priors)
        self.covar_module = TaskFeatureKernel(made, precision, tasks)
        if input_transform is not None:
            self.input_transform = input_transform
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        self.to(train_X)
        self._check_mean(X)
        self._rows()  # what a fit needs, made here rather than within its first step

    @classmethod
    def as_published(
        cls,
        train_X: Tensor,
        train_Y: Tensor,
        task_feature: int | None,
        train_Yvar: Tensor | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> Self:
        r"""The model as published: maximum likelihood, a network without biases.

        That is ``MultiTaskABLR`` with ``priors=False`` (alpha_t, beta_t and z maximise
        equation (3) and nothing else), ``outcome_transform=None``, and as feature map
        the network of section 2.2, z = (Z_1, Z_2, Z_3), 50 tanh units a layer, inputs
        as they are, see [Perrone2017multiple]_. Choose it with hundreds of rows; with
        few of them it interpolates and is sure of what lies between.

        What the paper leaves open is as in the default: where the weights start, and
        that a fit takes the most promising of several starts.

        Args:
            train_X: ``n x d``, or ``n x (d + 1)`` with a task column.
            train_Y: ``n x m``; ``n x 1`` with a task column. NaN: not observed.
            task_feature: The index of the task column; None for signals.
            train_Yvar: ``n x m`` observed noise variances.
            seed: Of the networks that a fit starts from.
            kwargs: Other arguments of the constructor.

        Raises:
            TypeError: If one of those that are the paper's is given too: for a model in
                between, call the constructor.

        Example:
            >>> model = MultiTaskABLR.as_published(X_and_task, Y, task_feature=-1)
            >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        """
        transform, tasks = kwargs.get("input_transform"), ("output_tasks", "all_tasks")
        check_modules(input_transform=transform)
        check_training_data(train_X, train_Y, train_Yvar, missing=True, empty=True)
        task_column(task_feature, train_X, train_Y, *map(kwargs.get, tasks))
        check_own_seed(seed)
        X = train_X
        if transform is not None:
            with torch.no_grad():
                X = transform.to(train_X)(train_X)
        d = X.shape[-1] - (task_feature is not None)
        network = TanhNetwork(
            d,
            bounds=torch.tensor([[-1.0] * d, [1.0] * d]),  # inputs as they are
            prior_scale=None,
            seed=seed,
            bias=False,
        )
        return cls(
            train_X,
            train_Y,
            task_feature,
            train_Yvar,
            outcome_transform=None,
            feature_map=network,
            priors=False,
            seed=seed,
            **kwargs,
        )

    # -- what the model is made of ------------------------------------------------

    @property
    def feature_map(self) -> nn.Module:
        """The features, ``n x d`` to ``n x D``, of transformed inputs."""
        return self.covar_module.feature_map

    @property
    def noise_precision(self) -> Tensor:
        """The precisions alpha_t of inferred noise, ``T``, on the standardised scale.

        Raises:
            ValueError: If the noise variances of the rows were given.
        """
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            raise ValueError(
                "noise_precision: expected inferred noise, got a model whose noise "
                "variances are given row by row."
            )
        return self.likelihood.noise.expand(self.num_tasks).reciprocal()

    @property
    def weight_precision(self) -> Tensor:
        """The precisions beta_t of the weights, ``T``."""
        return self.covar_module.weight_precision.value

    @property
    def num_outputs(self) -> int:
        """Of ``posterior``, for inputs without a task column."""
        return self._num_outputs

    def subset_output(self, idcs: list[int]) -> MultiTaskABLR:
        """A model that answers for some of the outputs; it learns from all signals.

        Args:
            idcs: Indices of outputs.
        """
        if not idcs or not all(
            -len(self._output_tasks) <= i < self._num_outputs for i in idcs
        ):
            raise ValueError(
                f"idcs: expected indices of {self._num_outputs} outputs, got {idcs}."
            )
        new = self._sharing_rows()
        new._output_tasks = [self._output_tasks[i] for i in idcs]
        new._num_outputs = len(idcs)
        return new

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset | MultiTaskDataset,
        task_feature: int | None = None,
        output_tasks: list[int] | None = None,
        *,
        hierarchical_dependencies: Mapping[int, Mapping[float, Sequence[int]]]
        | None = None,
        categorical_features: Sequence[int] | None = None,
        fidelity_features: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        r"""Constructor arguments from a dataset, as BoTorch and Ax ask for them.

        Args:
            training_data: A ``SupervisedDataset`` or a ``MultiTaskDataset``.
            task_feature: The index of the task column. Default: that of a
                ``MultiTaskDataset``.
            output_tasks: Task values to answer for.
            hierarchical_dependencies: None or without inactive columns: features see
                all columns.
            categorical_features: None or empty: to features, columns are numbers.
            fidelity_features: Fidelities are ordinary columns of this model.

        Raises:
            ValueError: If a column depends on another, or has no order.
        """
        refuse_dependencies(cls, training_data, hierarchical_dependencies)
        refuse_categories(cls, *(categorical_features or ()))
        inputs = super().construct_inputs(training_data=training_data)
        several = isinstance(training_data, MultiTaskDataset)
        if several and training_data.task_feature_index is None:
            inputs["all_tasks"] = list(range(len(training_data.datasets)))
        inputs["task_feature"] = dataset_task(training_data, task_feature)
        if output_tasks is not None:
            inputs["output_tasks"] = output_tasks
        return inputs


@DrawMatheronPaths.register(MultiTaskABLR)
def _draw_matheron_paths(
    model: MultiTaskABLR, *, sample_shape: torch.Size, **strategies: Any
) -> WeightPath:
    """BoTorch's hook: exact draws here, whatever the strategies."""
    return model._draw_path(sample_shape, None)
