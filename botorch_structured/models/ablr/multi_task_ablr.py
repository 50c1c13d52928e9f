r"""Bayesian linear regressions on shared features: many tasks, linear in rows.

Which model when: ``MultiTaskABLR`` is for many tasks modelled jointly, from a hundred
evaluations to hundreds of thousands, and for objectives observed together with other
signals. For a new search after old ones of the same space, ``TransferGP`` and
``earlier`` of ``suggest`` need no fit of all rows for each new one. With a few hundred
rows of a few tasks BoTorch's ``MultiTaskGP`` also transfers *levels* between tasks; its
cost is cubic.

References:

.. [Perrone2017multiple]
    V. Perrone, R. Jenatton, M. Seeger and C. Archambeau. Multiple Adaptive Bayesian
    Linear Regression for Scalable Bayesian Optimization with Warm Start.
    arXiv:1712.02902, 2017.
"""

from __future__ import annotations

__all__ = ["MultiTaskABLR"]

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from operator import attrgetter, methodcaller
from typing import Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import fantasize as fantasize_flag
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from botorch.utils.types import DEFAULT
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean, MultitaskMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.models import ExactGP
from linear_operator.operators import RootLinearOperator
from torch import Tensor, nn

from botorch_structured._botorch_names import DefaultType
from botorch_structured.kernels.random_fourier_features import RandomFourierFeatures
from botorch_structured.models import checks
from botorch_structured.models.ablr import prediction
from botorch_structured.models.ablr.factors import TaskData
from botorch_structured.models.ablr.feature_maps import (
    TanhNetwork,
    as_feature_map,
    published_network,
    weight_level,
)
from botorch_structured.models.ablr.hyperparameters import (
    TaskFeatureKernel,
    TaskLikelihood,
    WeightPrecision,
    fill_without_rows,
    noise_model,
)
from botorch_structured.models.ablr.regressions import Regressions, WeightPosterior
from botorch_structured.models.ablr.rows import Processes, TaskRows
from botorch_structured.models.ablr.tasks import StandardizeTasks, find_tasks
from botorch_structured.models.contexts import progress_bar
from botorch_structured.models.fast_inference import (
    FastInference,
    check_own_objective,
    training_prior,
)
from botorch_structured.models.input_transforms import (
    dataset_task,
    in_evaluation,
    refuse_categories,
    refuse_dependencies,
)
from botorch_structured.models.map_fit import fit_map
from botorch_structured.models.outcome_scale import ScaledNormal, check_scale

# On this many rows a transform is tried, to see which columns it makes.
_SOME_ROWS = 100
# Noise variance of what was not observed: its weight is below rounding, and gradients
# stay finite.
_NOT_OBSERVED = 1e30
# The objective is per outcome: finer tolerances change no prediction. On exact data the
# cap ends a fit; a second one goes on from there.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-5, "maxiter": 300}
_STEPS_OF_A_START = 15


@dataclass(frozen=True)
class _TrainingRows:
    """The training rows, as long as hyperparameters change only.

    Attributes:
        inputs: Transformed inputs, task column included, ``n x d``.
        row: The row of each observed outcome, ``m``.
        data: What the regressions see of them.
        total: Number of outcomes, those missing included, on all processes.
    """

    inputs: Tensor
    row: Tensor
    data: TaskData
    total: int


@dataclass(frozen=True)
class _Appended:
    """Rows that a model was conditioned on, ``batch_shape x q x ...``.

    A conditioned model shares the training rows of the one it comes from, and appends
    its own only when they are asked for.
    """

    X: Tensor  # as given
    transformed: Tensor
    targets: Tensor  # ``batch_shape x q``, or ``batch_shape x T x q`` for signals
    noise: Tensor  # of the same shape


class MultiTaskABLR(FastInference, MultiTaskGPyTorchModel, FantasizeMixin):
    r"""Exact Bayesian linear regression per task on features that all tasks share.

    .. math:: y_t = \Phi_z(X_t) w_t + \epsilon, \quad w_t \sim N(0, I / \beta_t), \quad
        \epsilon \sim N(0, I / \alpha_t)

    ([Perrone2017multiple]_, section 2). ``fit_gpytorch_mll`` learns the features z and
    all alpha_t, beta_t together from the summed log evidence, equation (3). Time is
    linear in the number of rows and memory beyond the data does not depend on it.

    *Tasks.* With a ``task_feature``, as in BoTorch's ``MultiTaskGP``: a column says
    which task a row is of. Tasks share the features and the priors of noise and weight
    precisions, not values: the mean of a task without rows is flat. For a task that
    comes later, fit again with its rows included. With ``feature_map`` a deep copy of
    the last model's the fit goes on from there; without a copy it changes that model.

    *Signals.* With ``task_feature=None`` the m columns of ``train_Y`` are signals
    observed together (section 3.3), each a regression of its own; NaN is a signal that
    was not observed. m = 1 is the plain model. Several tasks with several signals, the
    paper's future work, raise.

    *Differences from the paper*, all undone by ``MultiTaskABLR.as_published``. Outcomes
    are standardised, task by task. With few rows, maximising the evidence over all
    network weights overfits, so the weights have a Gaussian prior around their initial
    values, narrower below 300 rows. The alpha_t and beta_t have exchangeable priors
    around a level common to all tasks. The network has biases, and scales its inputs to
    [-1, 1]. The fit starts from the best of several networks, also ``as_published``.

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
        >>> model = MultiTaskABLR(X_and_task, Y, task_feature=-1, output_tasks=[7])
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> posterior = model.posterior(X)  # of task 7, X without the task column
    """

    _supports_batched_models = False
    _supports_cache_root = False
    _data_caches = ("_rows_cache", "_noise_cache")
    _fit_caches = ("_weights",)
    _rows_cache: _TrainingRows | None = None
    _noise_cache: Tensor | None = None
    _weights: list[WeightPosterior] | None = None
    _appended: tuple[_Appended, ...] = ()
    _conditioned_batch = torch.Size()
    _train_inputs: Any
    _train_targets: Any
    _original_train_inputs: Any

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
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        feature_map: nn.Module | Callable[[Tensor], Tensor] | None = None,
        validate_task_values: bool = True,
        priors: bool = True,
        seed: int = 0,
        process_group: Any = None,
    ) -> None:
        checks.check_modules(
            likelihood=likelihood,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        checks.check_training_data(
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
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed: expected an integer, got {seed!r}.")
        with torch.no_grad():
            X = self.transform_inputs(train_X, input_transform=input_transform)
        # on some rows a transform shows what it does to columns
        some = train_X[:_SOME_ROWS]
        some = some if len(some) else train_X.new_zeros(1, train_X.shape[-1])
        predicted = in_evaluation(input_transform, some, X.shape[-1])
        group = Processes(process_group)
        tasks, outputs = find_tasks(
            task_feature,
            train_Y,
            [(train_X, X), predicted],
            output_tasks,
            all_tasks,
            group,
        )
        count = train_Y.shape[-1]
        if tasks is not None:
            tasks.default = None if validate_task_values else outputs[0]
            count = len(tasks.values)
        plain = X if tasks is None else tasks.without(X)
        made = as_feature_map(feature_map, covar_module, plain, seed, group).to(train_X)
        level = weight_level(made, plain, group)
        given, default = train_Y, outcome_transform is DEFAULT
        if default:
            outcome_transform = StandardizeTasks(count, tasks, group).to(train_X)
        if outcome_transform is not None:
            outcome_transform.train()
            train_Y, train_Yvar = outcome_transform(Y=train_Y, Yvar=train_Yvar, X=X)
        if not default:
            check_scale(given, train_Y)
        several = tasks is None and count > 1
        targets = train_Y.mT if several else train_Y.squeeze(-1)
        likelihood = noise_model(likelihood, targets, train_Yvar, count, tasks, priors)
        ExactGP.__init__(self, train_X, targets, likelihood)
        self._num_columns = train_X.shape[-1]
        self._columns_of_mode = {False: predicted[0].shape[-1]}
        self.tasks = tasks
        self.num_tasks = count
        self.num_non_task_features = X.shape[-1] - (tasks is not None)
        self._task_feature = None if tasks is None else tasks.column
        self._output_tasks = outputs
        self._num_outputs = len(outputs)
        self._group = group
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
        few of them it interpolates, with a variance between them that is far too small.

        Where the weights start, and that a fit takes the best of several starts, is not
        in the paper and as in the default.

        Args:
            train_X: ``n x d``, or ``n x (d + 1)`` with a task column.
            train_Y: ``n x m``; ``n x 1`` with a task column. NaN: not observed.
            task_feature: The index of the task column; None for signals.
            train_Yvar: ``n x m`` observed noise variances.
            seed: Of the networks that a fit starts from.
            kwargs: Other arguments of the constructor.

        Raises:
            TypeError: If ``outcome_transform``, ``feature_map`` or ``priors`` is given:
                for another model call the constructor.

        Example:
            >>> model = MultiTaskABLR.as_published(X_and_task, Y, task_feature=-1)
            >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        """
        network: Any = published_network  # called by the constructor, which knows d
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

    # -- rows and evidence --------------------------------------------------------

    def _plain(self, X: Tensor) -> Tensor:
        """What features see of transformed inputs: all but the task column."""
        return X if self.tasks is None else self.tasks.without(X)

    def _rows(self) -> _TrainingRows:
        """Everything that does not change with the hyperparameters, made once."""
        if self._rows_cache is None:
            self._rows_cache = self._rows_of_batch(())
        return self._rows_cache

    def _given_noise(self) -> Tensor | None:
        given = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        return self.likelihood.noise if given else None

    @torch.no_grad()
    def _rows_of_batch(self, place: tuple[int, ...]) -> _TrainingRows:
        """The same for one of the models that were conditioned on a batch of outcomes.

        Args:
            place: Its indices in the batch.

        Raises:
            UnsupportedError: For the batch as a whole.
        """
        batch = self._conditioned_batch
        if len(place) < len(batch):
            raise UnsupportedError(
                "A batch of conditioned models has no evidence of its own, and cannot "
                "be fitted. Condition on one set of outcomes instead."
            )

        def of_one(values: Tensor, own: int) -> Tensor:
            return values.expand(*batch, *values.shape[values.ndim - own :])[place]

        inputs = of_one(self.train_inputs[0], 2)
        if not self._has_transformed_inputs:
            inputs = self.transform_inputs(inputs)
        several, noise = self._has_signals, self._given_noise()
        Y = of_one(self.train_targets, 1 + several)
        Y = Y if several else Y.unsqueeze(0)
        observed = ~Y.isnan()
        task, row = observed.nonzero(as_tuple=True)
        if self.tasks is not None:
            task = self.tasks.index(inputs[row, self.tasks.column])
        X = self._plain(inputs)
        if several:
            rows = TaskRows(task, self.num_tasks, rows=row, num_rows=len(X))
        else:
            X = X if len(row) == len(X) else X[row]
            rows = TaskRows(task, self.num_tasks)
        if noise is not None:
            noise = of_one(noise, 1 + several).expand_as(Y)[observed]
        data = TaskData(
            self.feature_map,
            X,
            Y[observed],
            rows,
            noise_variance=noise,
            processes=self._group,
        )
        total = self._group.total_int(len(inputs), inputs.device)
        return _TrainingRows(inputs, row, data, total)

    def _prior_means(self, X: Tensor) -> Tensor:
        """Prior means of all tasks at transformed rows, ``batch_shape x n x T``.

        A ``MultitaskMean`` has one mean per task; of any other, rows with their task
        column have one value.
        """
        if isinstance(self.mean_module, MultitaskMean):
            return self.mean_module(self._plain(X))
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

    def _regressions(self, rows: _TrainingRows, Y: Tensor | None = None) -> Regressions:
        """The regressions with the present hyperparameters.

        Args:
            rows: Of this model.
            Y: Outcomes in place of the observed ones, ``m``.
        """
        data, inputs = rows.data, rows.inputs
        X, Y = data.X, data.Y if Y is None else Y
        if not self._has_transformed_inputs and any(
            p.requires_grad
            for p in getattr(self, "input_transform", nn.Identity()).parameters()
        ):
            inputs = self.transform_inputs(self.train_inputs[0])
            X = self._plain(inputs)
            X = X if self._has_signals else X[rows.row]
        Y = Y - self._prior_means(inputs)[rows.row, data.rows.task]
        log_alpha = None
        if data.noise_variance is None:
            log_alpha = -self.likelihood.noise.log().expand(self.num_tasks)
        log_beta = self.covar_module.weight_precision.raw_value
        return Regressions(data.with_values(X, Y), log_alpha, log_beta)

    def log_evidence(self) -> Tensor:
        """Log evidence of the standardised outcomes, summed over tasks: minus (3).

        Natural logarithms, ``-N/2 log(2 pi)`` included, no priors of hyperparameters;
        over all processes that share the rows.

        Returns:
            A scalar, differentiable in all parameters.
        """
        return self._regressions(self._rows()).log_evidence()

    def _log_density(self, value: Tensor) -> Tensor:
        if not self._group.alone:
            raise ValueError(
                "mll(model(X), Y): one process has only some of the rows. Expected "
                "fit_gpytorch_mll, or model.compute_custom_loss(mll)."
            )
        observed = ~value.isnan()
        if not torch.equal(observed, ~self.train_targets.isnan()):
            raise ValueError(
                f"value: expected shape {tuple(self.train_targets.shape)} and outcomes "
                "where the training data have them, got shape "
                f"{tuple(value.shape)} or others."
            )
        return self._regressions(self._rows(), value[observed]).log_evidence()

    def _fast_evidence(
        self, mll: ExactMarginalLogLikelihood, kwargs: dict[str, Any]
    ) -> Tensor:
        check_own_objective(self, mll, kwargs)
        return self.log_evidence().clone()

    @property
    def _num_observed(self) -> int:
        return max(1, self._rows().total)

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
        prior.rows = x  # a likelihood that gets the prior alone reads their tasks here
        return prior

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Prior of the training rows in training mode, else the posterior."""
        result = super().__call__(*args, **kwargs)
        if self.training and settings.prior_mode.off():
            return training_prior(result, self._log_density)
        return result

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        optimizer_kwargs: dict[str, Any] | None = None,
        num_starts: int = 3,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""Joint L-BFGS over features, noise and weight precisions.

        ``fit_gpytorch_mll(mll, num_starts=..., progress=...)`` calls this; every
        argument of it is honoured, retries included. Not for direct use.

        A network that is as it was drawn is first fitted in brief from ``num_starts``
        draws (random Fourier features: from as many bandwidths), and the one with the
        largest objective goes on. A model that was fitted before, or has the state of
        one that was, goes on from there: the warm restart of a search. Interrupted
        (``KeyboardInterrupt``), the model keeps the parameters of the last step, and is
        ready to predict.

        Args:
            mll: Of this model.
            optimizer_kwargs: See ``fit_gpytorch_mll``.
            num_starts: How many draws to try.
            progress: Whether there is a bar; None: when it takes more than 3 seconds.
            kwargs: See ``fit_gpytorch_mll``; with a ``closure`` or an ``optimizer``
                there is one start.

        Raises:
            ValueError: If ``num_starts`` is not positive.
        """
        if num_starts < 1:
            raise ValueError(f"num_starts: expected at least 1, got {num_starts}.")
        if kwargs.get("closure") is not None or "optimizer" in kwargs:
            fit_map(mll, optimizer_kwargs=optimizer_kwargs, **kwargs)
        else:
            bar = progress if self._group.rank == 0 else False
            own = dict(optimizer_kwargs or {})
            options = {**_FIT_OPTIONS, **(own.pop("options", None) or {})}
            with _followed(mll, own.pop("callback", None), bar) as step:

                def fit(maxiter: int) -> None:
                    own["options"] = {**options, "maxiter": maxiter}
                    own["callback"] = step
                    fit_map(mll, optimizer_kwargs=own, **kwargs)

                network: Any = self.feature_map
                drawn = isinstance(network, (RandomFourierFeatures, TanhNetwork))
                if num_starts > 1 and drawn and not network.has_started():
                    brief = min(_STEPS_OF_A_START, options["maxiter"])
                    self._take_best_start(mll, lambda: fit(brief), num_starts)
                fit(options["maxiter"])
        if self.tasks is not None:
            # by maximum likelihood, nothing moves those of tasks without rows
            counts = self._rows().data.rows.counts
            device = self._train_targets.device
            empty = self._group.total(torch.tensor(counts, device=device)) == 0
            if empty.any() and not empty.all():
                fill_without_rows(self.covar_module.weight_precision, "value", empty)
                if isinstance(self.likelihood, TaskLikelihood):
                    fill_without_rows(self.likelihood.noise_covar, "noise", empty)
        return mll.eval()

    def _take_best_start(
        self, mll: MarginalLogLikelihood, fit: Callable[[], None], num_starts: int
    ) -> None:
        """Leave the model where the brief fit with the largest objective ends."""
        network: Any = self.feature_map
        before = deepcopy(mll.state_dict())
        best: tuple[float, dict[str, Any], int] | None = None
        for number in range(num_starts):
            mll.load_state_dict(before)
            network.restart(number)
            fit()
            mll.train()
            with torch.no_grad():
                loss = float(self.compute_custom_loss(mll))
            if math.isfinite(loss) and (best is None or loss < best[0]):
                best = (loss, deepcopy(mll.state_dict()), number)
        if best is not None:
            mll.load_state_dict(best[1])
            network.number = best[2]

    # -- weights ------------------------------------------------------------------

    def _weights_of(self, which: Iterable[int]) -> list[WeightPosterior]:
        """The posterior of the weights of some tasks, by index; computed once."""
        if self._weights is None:
            self._weights = self._all_weights()
        return [self._weights[t] for t in which]

    @torch.no_grad()
    def _all_weights(self) -> list[WeightPosterior]:
        batch = self._conditioned_batch
        if not batch:
            mean, root = self._regressions(self._rows()).weights()
        else:
            places = product(*(range(n) for n in batch))
            each = [self._regressions(self._rows_of_batch(p)).weights() for p in places]
            mean, root = (
                torch.stack(parts).unflatten(0, batch)
                for parts in zip(*each, strict=True)
            )
        return [
            WeightPosterior(mean[..., t, :], root[..., t, :, :]).to(self._train_targets)
            for t in range(self.num_tasks)
        ]

    def weight_posterior(self) -> MultivariateNormal:
        """Posterior of the weights w_t of each output, on the standardised scale.

        Returns:
            A distribution over ``num_outputs x D``, or ``D`` for one output.
        """
        self.eval()
        found = self._weights_of([self._index_of(t) for t in self._output_tasks])
        mean, root = found[0] if len(found) == 1 else WeightPosterior.stacked(found)
        return prediction.normal(mean, RootLinearOperator(root))

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
        if self.tasks is not None:
            return self.tasks.index_of(output)
        if not -self.num_tasks <= output < self.num_tasks:
            raise ValueError(
                f"output_indices: expected signals below {self.num_tasks}, got "
                f"{output}."
            )
        return output % self.num_tasks

    def _is_own(self, output_indices: list[int] | None) -> bool:
        """Whether an index given with noise variances can only mean the one output.

        Raises:
            ValueError: It is another task, or the place of this model in a list.
        """
        if self._num_outputs > 1 or output_indices is None or len(output_indices) != 1:
            return False
        (asked,), (own,) = output_indices, self._output_tasks
        T = self.num_tasks
        known = range(-T, T) if self.tasks is None else self.tasks.values.tolist()
        # otherwise it is the place in a ModelListGP
        if asked in known and self._index_of(asked) != self._index_of(own):
            raise ValueError(
                f"output_indices: expected {[*self._output_tasks]}, the only output, "
                f"where observation_noise is a tensor, got {output_indices}, which is "
                "another task; in a ModelListGP use observation_noise=True."
            )
        return True

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
                Not with a task column in ``X``. With one output and a tensor of noise
                variances only that output may be named: a ``ModelListGP`` then passes
                to each model its place in the list, which is ignored where it is no
                task, and refused where it is another one.
            observation_noise: Whether to add the noise of each task. A tensor,
                ``batch_shape x q x m``, has variances on the standardised scale.
            posterior_transform: An optional transform.

        Raises:
            ValueError: For unknown tasks, the wrong number of columns, another dtype
                than that of the training data, and NaN or infinity in ``X``.
        """
        if self.training:
            self.eval()
        checks.check_finite_points(X, self._train_targets.dtype)
        with_task = self._has_task(X)
        if with_task and output_indices is not None:
            raise ValueError(
                "output_indices: expected None where X has a task column, got "
                f"{output_indices}."
            )
        if torch.is_tensor(observation_noise) and self._is_own(output_indices):
            output_indices = None
        outputs = list(self._output_tasks if output_indices is None else output_indices)
        if not outputs:
            raise ValueError("output_indices: expected at least one, got none.")
        if with_task:
            mean, root, place = self._at_rows(self.transform_inputs(X))
        else:
            which = [self._index_of(t) for t in outputs]
            phi, prior = self._features_at(X, outputs)
            mean, root = WeightPosterior.stacked(self._weights_of(which)).at(phi)
            mean = prior + mean
            place = torch.tensor(which, device=X.device).unsqueeze(-1)
        noise: Tensor | None = None
        if torch.is_tensor(observation_noise):
            q, m = X.shape[-2], 1 if with_task else len(outputs)
            shape = observation_noise.shape
            if len(shape) < 2 or shape[-1] != m or shape[-2] not in (1, q):
                raise ValueError(
                    f"observation_noise: expected ``batch_shape x {q} x {m}`` "
                    f"variances, got shape {tuple(shape)}."
                )
            noise = observation_noise.squeeze(-1) if with_task else observation_noise.mT
        elif observation_noise:
            noise = self._noise_levels()[place]
        unit: Tensor | float = 1.0
        scales = self._scales()
        if scales is not None:
            shift, scale = (values[place] for values in scales)
            mean, root = shift + scale * mean, scale.unsqueeze(-1) * root
            unit = scale**2
            noise = None if noise is None else noise * unit
        rows = place if with_task else None
        covariance = prediction.covariance_of(root, rows, noise, unit)
        posterior: Any
        if with_task:
            posterior = GPyTorchPosterior(prediction.normal(mean, covariance))
        else:
            posterior = prediction.joint(mean, covariance)
        if scales is None and hasattr(self, "outcome_transform"):
            if with_task:
                posterior = self.outcome_transform.untransform_posterior(posterior, X=X)
            else:
                posterior = self._untransformed(posterior, X, outputs)
        if posterior_transform is not None:
            return posterior_transform(posterior=posterior, X=X)
        return posterior

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal:
        """On the standardised scale at transformed inputs: ``model(X)``."""
        if self.tasks is not None:
            mean, root, task = self._at_rows(X)
            return prediction.normal(mean, prediction.covariance_of(root, task))
        weights = WeightPosterior.stacked(self._weights_of(list(range(self.num_tasks))))
        mean, root = weights.at(self.feature_map(X).unsqueeze(-3))
        mean = self._prior_means(X).mT + mean
        if self.num_tasks == 1:
            mean, root = mean.squeeze(-2), root.squeeze(-3)
        return prediction.normal(mean, prediction.covariance_of(root))

    def _at_rows(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means, roots ``... x q x D`` and tasks of transformed rows with tasks."""
        assert self.tasks is not None
        plain, task = self.tasks.split(X)
        phi = self.feature_map(plain)
        which = task.unique().tolist()
        prior = self._prior_means(X).gather(-1, task.unsqueeze(-1)).squeeze(-1)
        mean, root = torch.zeros_like(prior), torch.zeros_like(phi)
        for t, weights in zip(which, self._weights_of(which), strict=True):
            here, (m, r) = task == t, weights.at(phi)
            mean = torch.where(here, m, mean)
            root = torch.where(here.unsqueeze(-1), r, root)
        return prior + mean, root, task

    def _features_at(self, X: Tensor, outputs: list[int]) -> tuple[Tensor, Tensor]:
        """Features and prior means of some outputs at inputs without a task column.

        Args:
            X: ``... x q x d``, not transformed.
            outputs: Task values, or indices of signals.

        Returns:
            ``... x m x q x D``, or ``... x 1 x q x D`` for all; ``... x m x q``.
        """
        which = [self._index_of(t) for t in outputs]
        if self.tasks is None:
            x = self.transform_inputs(X)
            prior = self._prior_means(x)[..., which].mT
            return self.feature_map(x).unsqueeze(-3), prior
        rows = [self.transform_inputs(self.tasks.insert(X, t)) for t in outputs]
        means = [self._prior_means(x)[..., t] for x, t in zip(rows, which, strict=True)]
        if not hasattr(self, "input_transform"):  # which may look at the task
            rows = rows[:1]
        phi = [self.feature_map(self.tasks.without(x)) for x in rows]
        return torch.stack(phi, dim=-3), torch.stack(means, dim=-2)

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
            rows = self._rows_of_batch((0,) * len(batch)) if batch else self._rows()
            noise, task = rows.data.noise_variance, rows.data.rows.task
            assert noise is not None
            zeros = noise.new_zeros(self.num_tasks)
            total = self._group.total(zeros.index_add(0, task, noise))
            ones = torch.ones_like(noise)
            count = self._group.total(zeros.index_add(0, task, ones))
            if not count.any():
                raise ValueError(
                    "noise: expected the noise variances of new outcomes, since none "
                    "was given with a row; got None."
                )
            usual = total.sum() / count.sum()
            self._noise_cache = torch.where(count > 0, total / count, usual)
        return self._noise_cache

    def _scales(self) -> tuple[Tensor, Tensor] | None:
        """Shift and scale of each task's outcomes; None under another transform."""
        transform = getattr(self, "outcome_transform", None)
        if isinstance(transform, StandardizeTasks):
            return transform.means, transform.stdvs
        return None

    def _untransformed(
        self, posterior: GPyTorchPosterior, X: Tensor, outputs: list[int]
    ) -> Posterior:
        """On the scale of the outcomes, for a transform that is not the default."""
        transform = self.outcome_transform
        if self.tasks is None:
            which = [self._index_of(t) for t in outputs]
            if which != list(range(self.num_tasks)):
                transform = transform.subset_output(which)
            return transform.untransform_posterior(posterior, X=X)
        # row by row, so that a transform that looks at tasks finds them
        rows = torch.cat([self.tasks.insert(X, t) for t in outputs], dim=-2)
        if len(outputs) == 1:
            return transform.untransform_posterior(posterior, X=rows)
        mvn = posterior.distribution
        mean = mvn.mean.mT.flatten(-2)
        below = GPyTorchPosterior(ScaledNormal(mean, mvn.lazy_covariance_matrix))
        return prediction.in_columns(
            transform.untransform_posterior(below, X=rows), len(outputs)
        )

    # -- conditioning -----------------------------------------------------------------

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Any:
        r"""A model with more data and the same hyperparameters.

        Costs O(D^2) for each outcome, whatever the number of rows. Where Y is not a
        batch, ``fit_gpytorch_mll`` goes on from the present hyperparameters. With a
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
            checks.check_finite_points(X, self._train_targets.dtype)
        with_task = self._has_task(X)
        outputs = [self._output_tasks[0]] if with_task else self._output_tasks
        if seen:
            m = len(outputs)
            checks.check_new_data(X, Y, noise, m, self.batch_shape, missing=True)
        self._weights_of([])  # made now, not in each of the models to come
        new = self._sharing_rows()
        if self.tasks is None or with_task:
            new._condition(X, Y, noise)
        else:
            for i, value in enumerate(outputs):
                own_noise = None if noise is None else noise[..., i : i + 1]
                rows = self.tasks.insert(X, value)
                new._condition(rows, Y[..., i : i + 1], own_noise)
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
                "model: expected one output in a ModelListGP that is conditioned, got "
                f"{self._num_outputs}. Condition its models one by one."
            )
        X = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        if targets.ndim == 1 and hasattr(self, "outcome_transform"):
            # BoTorch's Standardize makes a batch of one of them, for all other models
            X, targets = X.expand(1, *X.shape[-2:]), targets.unsqueeze(0)
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
        with fantasize_flag():
            with_task = self._has_task(X)
        if observation_noise is None and self._given_noise() is not None:
            place = torch.tensor([self._index_of(t) for t in self._output_tasks])
            if with_task:
                assert self.tasks is not None
                place = self.tasks.index(X[..., self.tasks.column]).unsqueeze(-1)
            levels = self._noise_levels()[place]
            observation_noise = levels.expand(*X.shape[:-1], levels.shape[-1])
        return super().fantasize(
            X, sampler, observation_noise=observation_noise, **kwargs
        )

    def _condition(self, X: Tensor, Y: Tensor, noise: Tensor | None) -> None:
        """Take in ``batch_shape x q`` rows, of one task each or of all signals."""
        transformed = self.transform_inputs(X)
        rows = (*X.shape[:-1], self._num_columns)
        if X.shape != rows or transformed.shape[:-1] != X.shape[:-1]:
            raise ValueError(
                "input_transform: expected one that treats new observations as it does "
                f"training rows ({self._num_columns} columns), got one that makes "
                f"{tuple(transformed.shape)} of {tuple(X.shape)}; use "
                "transform_on_train=True, or construct the model anew."
            )
        if hasattr(self, "outcome_transform"):
            transform, outputs = self.outcome_transform, self._output_tasks
            if self.tasks is None and outputs != list(range(self.num_tasks)):
                transform = transform.subset_output(outputs)
            Y, _ = transform(Y=Y, Yvar=None, X=transformed)
        phi = self.feature_map(self._plain(transformed))
        prior = self._prior_means(transformed)
        # the task of each outcome, and for each task its column of Y and its rows
        updates: list[tuple[int, int, Tensor | None]]
        if self.tasks is None:
            which = [self._index_of(t) for t in self._output_tasks]
            place = torch.tensor(which, device=X.device)
            updates = [(t, i, None) for i, t in enumerate(which)]
        else:
            task = self.tasks.index(transformed[..., self.tasks.column])
            which, place = task.unique().tolist(), task.unsqueeze(-1)
            updates = [(t, 0, None if len(which) == 1 else task == t) for t in which]
        variance = self._noise_levels()[place] if noise is None else noise
        variance = variance.expand_as(Y)
        for t, i, mine in updates:
            self._update(t, phi, Y[..., i] - prior[..., t], variance[..., i], mine)
        if self._has_signals:
            shape = (*Y.shape[:-1], self.num_tasks)
            targets, noise = Y.new_full(shape, torch.nan), Y.new_ones(shape)
            targets[..., which], noise[..., which] = Y.detach(), variance.detach()
            self._append(X, transformed, targets.mT, noise.mT)
        else:
            self._append(X, transformed, Y.squeeze(-1), variance.squeeze(-1))

    def _update(
        self, t: int, phi: Tensor, y: Tensor, variance: Tensor, mine: Tensor | None
    ) -> None:
        """Update the weights of one task with those of some rows that are its own."""
        observed = ~y.isnan() if mine is None else ~y.isnan() & mine
        if not observed.all():
            y = torch.where(observed, y, 0.0)
            variance = torch.where(observed, variance, _NOT_OBSERVED)
        variance = variance.double()
        # one covariance for all fantasies at a point, where their noise is one
        extra = variance.ndim - (phi.ndim - 1)
        if extra > 0 and all(s == 0 for s in variance.stride()[:extra]):
            variance = variance[(0,) * extra]
        (weights,) = self._weights_of([t])
        updated = WeightPosterior(weights.mean.double(), weights.root.double()).update(
            phi.double(), y.double(), variance
        )
        assert self._weights is not None
        self._weights[t] = updated.to(weights.mean)

    def _append(
        self, X: Tensor, transformed: Tensor, targets: Tensor, noise: Tensor
    ) -> None:
        lead = targets.shape[: targets.ndim - (2 if self._has_signals else 1)]
        self._conditioned_batch = batch = torch.broadcast_shapes(
            self._conditioned_batch, lead, X.shape[:-2]
        )
        assert self._weights is not None
        # as many means as there are models, of tasks that they have in common too
        self._weights = [
            w._replace(mean=w.mean.expand(*batch, w.mean.shape[-1]))
            for w in self._weights
        ]
        # in the first process only: the sum over processes has them from there
        q = 0 if self._group.rank else X.shape[-2]
        rows = X[..., :q, :], transformed[..., :q, :], targets[..., :q], noise[..., :q]
        self._appended += (_Appended(*(p.detach() for p in rows)),)
        self._rows_cache = None

    def _sharing_rows(self) -> Any:
        """A copy that has the same training data, not a copy of them."""
        shared = [
            *(self._train_inputs or ()),
            self._train_targets,
            self._original_train_inputs,
        ]
        new = deepcopy(self, {id(t): t for t in shared if t is not None})
        new._weights = list(self._weights) if self._weights else None
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
        appended = self._appended
        if not appended:
            return
        self._appended = ()
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
        given = self._given_noise()
        if given is not None:
            noise = [a.noise for a in appended]
            self.likelihood.noise_covar.noise = joined(given, noise, own, -1)

    def _revert_to_original_inputs(self) -> None:
        self._merge_appended()  # the original ones are read before they are set
        super()._revert_to_original_inputs()

    def set_train_data(self, *args: Any, **kwargs: Any) -> None:
        """Replace the training data, see ``ExactGP.set_train_data``."""
        self._merge_appended()
        super().set_train_data(*args, **kwargs)
        self._conditioned_batch = self._train_inputs[0].shape[:-2]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state, see ``GPyTorchModel.load_state_dict``."""
        result = super().load_state_dict(*args, **kwargs)
        self._drop_caches()
        return result

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> Any:
        # what is appended is joined where that changes something only
        probe = self._train_inputs[0].new_empty(0)
        if fn(probe) is probe:
            return nn.Module._apply(self, fn)
        return super()._apply(fn)

    def _extract_targets_and_noise(self) -> tuple[Tensor, Tensor | None]:
        Y, noise = self.train_targets, self._given_noise()
        if self._has_signals:
            return Y.mT, None if noise is None else noise.mT
        return Y.unsqueeze(-1), None if noise is None else noise.unsqueeze(-1)

    def _restore_targets_and_noise(
        self, Y: Tensor, Yvar: Tensor | None, strict: bool
    ) -> None:
        lines = attrgetter("mT") if self._has_signals else methodcaller("squeeze", -1)
        if Yvar is not None:
            self.likelihood.noise_covar.noise = lines(Yvar)
        self.set_train_data(targets=lines(Y), strict=strict)

    @property
    def _has_signals(self) -> bool:
        """Whether several outcomes share a row."""
        return self.tasks is None and self.num_tasks > 1


@contextmanager
def _followed(
    mll: MarginalLogLikelihood, callback: Any, progress: bool | None
) -> Iterator[Callable[[dict[str, Any], Any], None]]:
    """A callback of an optimiser: a bar, and the last step if it is interrupted."""
    last: dict[str, Any] = {}
    with progress_bar(None, progress, "ABLR fit", "step") as advance:

        def step(parameters: dict[str, Any], result: Any) -> None:
            advance()
            last.update((n, p.detach().clone()) for n, p in parameters.items())
            if callback is not None:
                callback(parameters, result)

        try:
            yield step
        except KeyboardInterrupt:
            mll.load_state_dict(last, strict=False)
            mll.eval()
            raise


# exact draws, whatever strategies BoTorch has
DrawMatheronPaths.register(MultiTaskABLR)(prediction.draw_path)
