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

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from operator import itemgetter
from typing import Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import fantasize as fantasize_flag
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from botorch.utils.types import DEFAULT
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean, MultitaskMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from linear_operator.operators import (
    BlockDiagLinearOperator,
    LinearOperator,
    RootLinearOperator,
)
from torch import Tensor, nn

from botorch_structured._botorch_names import DefaultType
from botorch_structured.models import checks
from botorch_structured.models.ablr.feature_maps import (
    as_feature_map,
    published_network,
    weight_level,
)
from botorch_structured.models.ablr.hyperparameters import (
    TaskFeatureKernel,
    TaskLikelihood,
    fill_without_rows,
    noise_model,
    weight_precision,
)
from botorch_structured.models.ablr.processes import Processes
from botorch_structured.models.ablr.regressions import (
    Regressions,
    TaskData,
    WeightPosterior,
)
from botorch_structured.models.ablr.tasks import (
    StandardizeTasks,
    find_tasks,
)
from botorch_structured.models.checks import (
    dataset_task,
    in_evaluation,
    refuse_categories,
    refuse_dependencies,
)
from botorch_structured.models.fast_inference import (
    FastInference,
    check_own_objective,
    training_prior,
    with_variance_floor,
)
from botorch_structured.models.map_fit import fit_map
from botorch_structured.models.outcome_scale import (
    ScaledMultitaskNormal,
    ScaledNormal,
    at_unit_scale,
    check_scale,
)


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
        priors: Whether noise and weight precisions have priors; False for the paper's
            maximum likelihood.
        seed: Of the networks that a fit starts from; nothing is drawn from torch's
            global generator.
        process_group: A ``torch.distributed`` group (``torch.distributed.group.WORLD``
            for all processes), each of which holds some of the rows. All must make,
            fit and first evaluate the model at the same time; all have the same result.

    Raises:
        ValueError: For a batch of data, infinite numbers or NaN inputs, several signals
            with a task column, unknown tasks, modules that do not fit, or a subclass
            with another prior (``forward``), which inference would not follow.
        UnsupportedError: If ``all_tasks`` lacks a task that has rows.

    Example:
        >>> model = MultiTaskABLR(X_and_task, Y, task_feature=-1, output_tasks=[7])
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> posterior = model.posterior(X)  # of task 7, X without the task column
    """

    _supports_batched_models = False
    _supports_cache_root = False
    _data_caches = ("_data",)
    _fit_caches = ("_weights",)
    _data: TaskData | None = None
    _weights: list[WeightPosterior] | None = None
    # The posteriors of models that were conditioned on a batch of outcomes: they have
    # the hyperparameters of the model that they come from, and its levels of a noise
    # that was given.
    _conditioned: list[WeightPosterior] | None = None
    _noise_before: Tensor | None = None
    _order: Tensor
    _original_train_inputs: Any
    train_inputs: Any

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
        priors: bool = True,
        seed: int = 0,
        process_group: Any = None,
    ) -> None:
        if type(self).forward is not MultiTaskABLR.forward:
            raise ValueError(
                "forward: expected that of MultiTaskABLR, whose evidence and posterior "
                "are those of regressions on feature_map and mean_module, got another "
                f"of {type(self).__name__}; pass a feature_map or a mean_module."
            )
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
        with torch.no_grad():
            X = self.transform_inputs(train_X, input_transform=input_transform)
        # on some rows a transform shows what it does to columns
        some = train_X[:100] if len(train_X) else train_X.new_zeros(1, len(train_X.mT))
        predicted, fantasised = (
            in_evaluation(input_transform, some, X.shape[-1], mode)
            for mode in (False, True)
        )
        group = Processes(process_group)
        pairs = [(train_X, X), predicted]
        tasks, outputs = find_tasks(
            task_feature, train_Y, pairs, output_tasks, all_tasks, group
        )
        plain = tasks.without(X)
        features = as_feature_map(feature_map, covar_module, plain, seed, group)
        features = features.to(train_X)
        level = weight_level(features, plain, group)
        if outcome_transform is DEFAULT:
            outcome_transform = StandardizeTasks(tasks, group).to(train_X)
        Y = train_Y
        if outcome_transform is not None:
            outcome_transform.train()
            Y, train_Yvar = outcome_transform(Y=train_Y, Yvar=train_Yvar, X=X)
        if not isinstance(outcome_transform, StandardizeTasks):
            check_scale(train_Y, Y)
        targets = tasks.to_targets(Y)
        likelihood = noise_model(likelihood, targets, train_Yvar, tasks, priors)
        ExactGP.__init__(self, train_X, targets, likelihood)
        self._num_columns = train_X.shape[-1]
        self._columns = [predicted[0].shape[-1], fantasised[0].shape[-1]]
        self.tasks = tasks
        self.num_tasks = len(tasks)
        self.num_non_task_features = plain.shape[-1]
        self._task_feature = tasks.column
        self._output_tasks = outputs
        self._num_outputs = len(outputs)
        self._group = group
        self.mean_module = mean_module or ZeroMean()
        precision = weight_precision(len(tasks), level, priors)
        self.covar_module = TaskFeatureKernel(features, precision, tasks)
        if input_transform is not None:
            self.input_transform = input_transform
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        self.to(train_X)
        self._prior_means(X[:1])  # may raise
        self._training_data()  # made here rather than within the first step of a fit

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
        d = train_X.shape[-1] - (task_feature is not None)
        return cls(
            train_X,
            train_Y,
            task_feature,
            train_Yvar,
            outcome_transform=None,
            feature_map=published_network(d, seed),
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
    def batch_shape(self) -> torch.Size:
        """The batch of outcomes conditioned on; there is none without fantasies."""
        weights = self._conditioned
        return torch.Size() if weights is None else weights[0].mean.shape[:-1]

    def subset_output(self, idcs: list[int]) -> MultiTaskABLR:
        """A model that answers for some of the outputs; it learns from all signals.

        Args:
            idcs: Indices of outputs.
        """
        new = self._sharing_rows()
        new._output_tasks = [self._output_tasks[i] for i in idcs]
        new._num_outputs = len(idcs)
        return new

    # -- rows and evidence --------------------------------------------------------

    def _transformed_rows(self) -> Tensor:
        """Training inputs as the model sees them, task column included."""
        X = self.train_inputs[0]
        return X if self._has_transformed_inputs else self.transform_inputs(X)

    def _given_noise(self) -> Tensor | None:
        fixed = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        return self.likelihood.noise if fixed else None

    @torch.no_grad()
    def _training_data(self) -> TaskData:
        """Everything that does not change with the hyperparameters, made once."""
        if self._data is None:
            X = self._transformed_rows()
            place = self.tasks.index(X)
            # rows of a task follow each other
            order = self._order = place[:, 0].argsort(stable=True)
            Y = self.tasks.to_outcomes(self.train_targets)[order]
            row, column = (~Y.isnan()).nonzero(as_tuple=True)
            noise = self._given_noise()
            if noise is not None:
                noise = self.tasks.to_outcomes(noise)[order][row, column]
            self._data = TaskData(
                self.feature_map,
                self.tasks.without(X)[order],
                Y[row, column],
                place[order][row, column],
                self.num_tasks,
                row,
                noise,
                self._group,
            )
        return self._data

    def _prior_means(self, X: Tensor) -> Tensor:
        """Prior means of all tasks at transformed rows, ``batch_shape x n x T``.

        A ``MultitaskMean`` has one mean per task; of any other, rows with their task
        column have one value.
        """
        several = isinstance(self.mean_module, MultitaskMean)
        means = self.mean_module(self.tasks.without(X) if several else X)
        if not several:
            means = means.unsqueeze(-1)
        count = self.num_tasks if several else 1
        if means.shape != (*X.shape[:-1], count):
            raise ValueError(
                "mean_module: expected one value for each row, or a MultitaskMean with "
                f"{self.num_tasks} of them, got {type(self.mean_module).__name__} of "
                f"shape {tuple(means.shape)}."
            )
        return means.expand(*X.shape[:-1], self.num_tasks)

    def _regressions(self, Y: Tensor | None = None) -> Regressions:
        """The regressions with the present hyperparameters.

        Args:
            Y: Outcomes in place of those of the training data, ``m``.

        Raises:
            UnsupportedError: For a batch of conditioned models.
        """
        self._refuse_batch()
        data = self._training_data()
        Y = data.Y if Y is None else Y
        rows = self._transformed_rows()
        X = data.X
        if hasattr(self, "input_transform"):  # which may have parameters
            X = self.tasks.without(rows)[self._order]
        prior = self._prior_means(rows)[self._order[data.row], data.task]
        log_alpha = None
        if data.noise_variance is None:
            log_alpha = -self.likelihood.noise.log().expand(self.num_tasks)
        log_beta = self.covar_module.weight_precision.raw_value
        return Regressions(data.with_values(X, Y - prior), log_alpha, log_beta)

    def _refuse_batch(self) -> None:
        if self._conditioned is not None:
            raise UnsupportedError(
                "A batch of conditioned models keeps its data and hyperparameters, and "
                "cannot be fitted. Condition on one set of outcomes instead."
            )

    def log_evidence(self) -> Tensor:
        """Log evidence of the standardised outcomes, summed over tasks: minus (3).

        Natural logarithms, ``-N/2 log(2 pi)`` included, no priors of hyperparameters;
        over all processes that share the rows.

        Returns:
            A scalar, differentiable in all parameters.
        """
        return self._regressions().log_evidence()

    def _log_density(self, value: Tensor) -> Tensor:
        if not self._group.alone:
            raise ValueError(
                "mll(model(X), Y): one process has only some of the rows. Expected "
                "fit_gpytorch_mll, or model.compute_custom_loss(mll)."
            )
        if not torch.equal(value.isnan(), self.train_targets.isnan()):
            raise ValueError(
                f"value: expected shape {tuple(self.train_targets.shape)} and outcomes "
                "where the training data have them, got shape "
                f"{tuple(value.shape)} or others."
            )
        self._training_data()
        Y = self.tasks.to_outcomes(value)[self._order]
        return self._regressions(Y[~Y.isnan()]).log_evidence()

    def _fast_evidence(
        self,
        mll: ExactMarginalLogLikelihood,
        kwargs: dict[str, Any],
    ) -> Tensor:
        check_own_objective(self, mll, kwargs)
        return self.log_evidence().clone()

    @property
    def _num_observed(self) -> int:
        return max(1, self._group.count(self.train_inputs[0]))

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior of function values at ``n x d`` rows; of signals, a batch of T."""
        if self.training:
            x = self.transform_inputs(x)
        means = self._prior_means(x).gather(-1, self.tasks.index(x))
        prior = MultivariateNormal(self.tasks.to_targets(means), self.covar_module(x))
        prior.rows = x  # a likelihood that gets the prior alone reads their tasks here
        return prior

    def __call__(
        self,
        *args: Tensor,
        **kwargs: Any,
    ) -> MultivariateNormal:
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
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""Joint L-BFGS over features, noise and weight precisions.

        ``fit_gpytorch_mll(mll, num_starts=...)`` calls this; every argument of it is
        honoured, retries included. Not for direct use.

        A network that is as it was drawn is first fitted in brief from ``num_starts``
        draws (random Fourier features: from as many bandwidths), and the one with the
        largest objective goes on. A model that was fitted before, or has the state of
        one that was, goes on from there: the warm restart of a search.

        Args:
            mll: Of this model.
            optimizer_kwargs: See ``fit_gpytorch_mll``.
            num_starts: How many draws to try.
            kwargs: See ``fit_gpytorch_mll``; with a ``closure`` or an ``optimizer``
                there is one start.

        Raises:
            ValueError: If ``num_starts`` is not positive.
        """
        if num_starts < 1:
            raise ValueError(f"num_starts: expected at least 1, got {num_starts}.")
        # the objective is per outcome: finer tolerances change no prediction. On exact
        # data the cap ends a fit; a second one goes on from there
        options: dict[str, Any] = {"ftol": 1e-6, "gtol": 1e-5, "maxiter": 300}
        network: Any = self.feature_map
        drawn = hasattr(network, "has_started") and not network.has_started()
        plain = kwargs.get("closure") is None and "optimizer" not in kwargs
        if num_starts > 1 and drawn and plain:
            brief = dict(optimizer_kwargs or {})
            brief["options"] = options | (brief.get("options") or {})
            brief["options"]["maxiter"] = min(15, brief["options"]["maxiter"])
            before = deepcopy(mll.state_dict())
            ends = []
            for number in range(num_starts):
                mll.load_state_dict(before)
                network.restart(number)
                fit_map(mll, optimizer_kwargs=brief, **kwargs)
                mll.train()
                with torch.no_grad():
                    loss = float(self.compute_custom_loss(mll))
                ends.append((loss, number, deepcopy(mll.state_dict())))
            _, network.number, state = min(ends, key=itemgetter(0))
            mll.load_state_dict(state)
        fit_map(mll, options, optimizer_kwargs=optimizer_kwargs, **kwargs)
        # in a large fit, or by maximum likelihood, nothing moves those without rows
        empty = self._training_data().counts == 0
        if empty.any() and not empty.all():
            fill_without_rows(self.covar_module.weight_precision.raw_value, empty)
            if isinstance(self.likelihood, TaskLikelihood):
                fill_without_rows(self.likelihood.raw_noise, empty)
        return mll.eval()

    # -- weights ------------------------------------------------------------------

    def _all_weights(self) -> list[WeightPosterior]:
        """The posterior of the weights of each task, by index; computed once."""
        if self._conditioned is not None:
            return self._conditioned
        if self._weights is None:
            posterior = self._regressions().weights()
            mean, root = (t.to(self.train_targets) for t in posterior)
            self._weights = list(map(WeightPosterior, mean, root))
        return self._weights

    def _weights_of(self, indices: Iterable[int]) -> WeightPosterior:
        """Those of some tasks, ``... x m x D`` and ``... x m x D x D``."""
        weights = self._all_weights()
        # some may have been conditioned on a batch of outcomes, and others not
        means, roots = zip(*(weights[i] for i in indices), strict=True)
        mean = torch.stack(torch.broadcast_tensors(*means), dim=-2)
        return WeightPosterior(mean, torch.stack(torch.broadcast_tensors(*roots), -3))

    def _has_task(self, X: Tensor) -> bool:
        """Whether inputs, ``batch_shape x q x ...``, have a task column.

        Raises:
            ValueError: If they have another shape.
        """
        # perhaps fewer than training rows have, or others in ``fantasize``
        columns = self._columns[fantasize_flag.on()]
        tasks = self.tasks.column is not None
        if X.ndim < 2 or not columns - tasks <= X.shape[-1] <= columns:
            raise ValueError(
                f"X: expected {columns} columns"
                + (", or one less without tasks" if tasks else "")
                + f", ``batch_shape x q x d``, got {tuple(X.shape)}."
            )
        return tasks and X.shape[-1] == columns

    def _indices(self, outputs: Iterable[int]) -> list[int]:
        return [*map(self.tasks.index_of, outputs)]

    def _tasks_at(self, X: Tensor) -> Tensor:
        """The task of each outcome at some inputs, ``batch_shape x q x m``."""
        if self.tasks.column is not None and self._has_task(X):
            return self.tasks.index(X)
        indices = self._indices(self._output_tasks)
        return torch.tensor(indices, device=X.device).expand(*X.shape[:-1], -1)

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
                Not with a task column in ``X``. A model of one output ignores a single
                one beside a tensor of noise variances: a ``ModelListGP`` then passes to
                each model its place in the list.
            observation_noise: Whether to add the noise of each task. A tensor,
                ``batch_shape x q x m``, has variances on the standardised scale.
            posterior_transform: An optional transform.

        Raises:
            ValueError: For unknown tasks, the wrong number of columns, another dtype
                than that of the training data, and NaN or infinity in ``X``.
        """
        if self.training:
            self.eval()
        checks.check_points(X, None, self.train_targets.dtype)
        one = self._num_outputs == 1 and len(output_indices or ()) == 1
        if torch.is_tensor(observation_noise) and one:
            output_indices = None
        outputs = None
        if self._has_task(X):
            if output_indices is not None:
                raise ValueError(
                    "output_indices: expected None where X has a task column, got "
                    f"{output_indices}."
                )
            mean, root, task = self._at_rows(self.transform_inputs(X))
        else:
            outputs = self._output_tasks if output_indices is None else output_indices
            if not outputs:
                raise ValueError("output_indices: expected at least one, got none.")
            indices = self._indices(outputs)
            inputs = [self.tasks.insert(X, t) for t in outputs]
            rows = [self.transform_inputs(x) for x in inputs]
            mean, root = self._at_outputs(rows, indices)
            task = torch.tensor(indices, device=X.device).unsqueeze(-1)
        noise = None
        if torch.is_tensor(observation_noise):
            noise = observation_noise.mT
        elif observation_noise:
            noise = self._noise_levels()[task]
        unit: Tensor | float = 1.0
        transform: Any = getattr(self, "outcome_transform", None)
        standardised = isinstance(transform, StandardizeTasks)
        if standardised:
            scale = transform.stdvs[task]
            mean = transform.means[task] + scale * mean
            root = scale.unsqueeze(-1) * root
            unit = scale**2
            noise = None if noise is None else noise * unit
        covariance = _covariance(root, task if outputs is None else None, noise, unit)
        posterior: Any = GPyTorchPosterior(_joint(mean, covariance))
        if transform is not None and not standardised:
            transform, seen = self._transform_at(X, outputs)
            posterior = transform.untransform_posterior(posterior, X=seen)
        if posterior_transform is not None:
            return posterior_transform(posterior=posterior, X=X)
        return posterior

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal:
        """On the standardised scale at transformed inputs: ``model(X)``."""
        if self.tasks.column is not None:
            mean, root, task = self._at_rows(X)
            return _joint(mean, _covariance(root, task))
        mean, root = self._at_outputs([X] * self.num_tasks, range(self.num_tasks))
        joint = _normal if self.tasks.share_rows else _joint
        return joint(mean, _covariance(root))

    def _at_rows(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means, roots and tasks of transformed rows with a task column.

        Returns:
            ``... x 1 x q``, ``... x 1 x q x D`` and ``... x 1 x q``.
        """
        task = self.tasks.index(X).mT
        phi = self.feature_map(self.tasks.without(X)).unsqueeze(-3)
        prior = self._prior_means(X).gather(-1, task.mT).mT
        mean = prior
        root = torch.zeros_like(phi)
        weights = self._all_weights()
        for t in task.unique().tolist():
            w = weights[t]
            one = WeightPosterior(w.mean.unsqueeze(-2), w.root.unsqueeze(-3))
            deviation, root_of_task = one.at(phi)
            of_task = task == t
            mean = torch.where(of_task, prior + deviation, mean)
            root = torch.where(of_task.unsqueeze(-1), root_of_task, root)
        return mean, root, task

    def _at_outputs(
        self,
        rows: Sequence[Tensor],
        indices: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Means and roots of some tasks, ``... x m x q`` and ``... x m x q x D``.

        Args:
            rows: Transformed rows of each, ``... x q x d``.
            indices: Which tasks.
        """
        means = zip(map(self._prior_means, rows), indices, strict=True)
        prior = torch.stack([mean[..., i] for mean, i in means], dim=-2)
        if self.tasks.column is None or not hasattr(self, "input_transform"):
            rows = rows[:1]  # they differ in their tasks only
        phi = [self.feature_map(self.tasks.without(x)) for x in rows]
        mean, root = self._weights_of(indices).at(torch.stack(phi, dim=-3))
        return prior + mean, root

    def _noise_levels(self) -> Tensor:
        """The noise variance of a new outcome of each task, ``T``.

        Where variances are given row by row: the mean over the task's rows; over all
        rows for a task without any.

        Raises:
            ValueError: If no row says what it is.
        """
        if self._given_noise() is None:
            return self.likelihood.noise.expand(self.num_tasks)
        if self._noise_before is not None:
            return self._noise_before
        data = self._training_data()
        noise: Any = data.noise_variance
        total = self._group.total(data.task.bincount(noise, self.num_tasks))
        if not data.counts.any():
            raise ValueError(
                "noise: expected the noise variances of new outcomes, since none was "
                "given with a row; got None."
            )
        usual = total.sum() / data.counts.sum()
        return torch.where(data.counts > 0, total / data.counts, usual)

    def _transform_at(
        self,
        X: Tensor,
        outputs: Sequence[int] | None,
    ) -> tuple[OutcomeTransform, Tensor | None]:
        """The outcome transform of some outputs, and the inputs that it may look at.

        These are None for several tasks: there is no task column for all of them.

        Args:
            X: The inputs.
            outputs: The outputs; None for rows with their task.
        """
        transform = self.outcome_transform
        if outputs is None:
            return transform, X
        if self.tasks.column is not None:
            one = len(outputs) == 1
            return transform, self.tasks.insert(X, outputs[0]) if one else None
        if self.num_outputs > 1:
            transform = transform.subset_output(self._indices(outputs))
        return transform, X

    # -- conditioning -----------------------------------------------------------------

    def condition_on_observations(
        self,
        X: Tensor,
        Y: Tensor,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        r"""A model with more data and the same hyperparameters.

        Costs O(D^2) for each outcome, and a copy of the training outcomes for each
        element of a batch: 1,280 fantasies take as long as without the copies at 200
        rows, and three times as long at 5,000. Where Y is not a batch,
        ``fit_gpytorch_mll`` goes on from the present hyperparameters. With a
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
        outputs = self._output_tasks
        with_task = self._has_task(X)
        if with_task:
            outputs = outputs[:1]
        if fantasize_flag.off():  # else BoTorch made them from checked points
            checks.check_points(X, None, self.train_targets.dtype)
            checks.check_new_data(
                X, Y, noise, len(outputs), self.batch_shape, missing=True
            )
        if noise is not None:
            noise = noise.expand(*noise.shape[:-2], *Y.shape[-2:])
        column = self.tasks.column is not None
        if column and not with_task:  # a row for each outcome
            X = torch.cat([self.tasks.insert(X, t) for t in outputs], dim=-2)
            Y = Y.mT.flatten(-2).unsqueeze(-1)
            noise = None if noise is None else noise.mT.flatten(-2).unsqueeze(-1)
        rows = self.transform_inputs(X)
        if X.shape[-1] != self._num_columns or rows.shape[:-1] != X.shape[:-1]:
            raise ValueError(
                "input_transform: expected one that treats new observations as it does "
                f"training rows (transform_on_train=True), got {tuple(rows.shape)} of "
                f"{tuple(X.shape)}."
            )
        if hasattr(self, "outcome_transform"):
            transform, seen = self._transform_at(rows, None if column else outputs)
            Y, _ = transform(Y=Y, X=seen)
        task = self._tasks_at(X)
        noise = self._noise_levels()[task] if noise is None else noise
        weights = self._updated(rows, Y, noise, task)
        batch = torch.broadcast_shapes(self.batch_shape, Y.shape[:-2], X.shape[:-2])
        if not batch:
            Y = Y.detach()
        if self.tasks.share_rows:
            task, noise, Y = torch.broadcast_tensors(task, noise, Y)
            none = Y.new_full((*Y.shape[:-1], self.num_tasks), torch.nan)
            noise = torch.ones_like(none).scatter(-1, task, noise)
            Y = none.scatter(-1, task, Y)
        # in the first process only: the sum over processes has them from there
        q = 0 if self._group.rank else Y.shape[-2]
        variances = self._given_noise()
        if variances is None or batch:
            noise = None
        else:
            added = noise.detach().expand_as(Y)[:q]
            noise = _joined(self.tasks.to_outcomes(variances), added)
        new = self._sharing_rows()
        new._conditioned = None
        new.train()  # with inputs that are not transformed
        new.train_inputs = (_joined(new.train_inputs[0], X[..., :q, :].detach()),)
        Y = _joined(self.tasks.to_outcomes(self.train_targets), Y[..., :q, :])
        Y = Y.expand(*batch, *Y.shape[-2:])
        new._restore_targets_and_noise(Y, noise, strict=False)
        new.eval()
        if batch:
            # transformed once for all fantasies at the same points
            (rows,) = new.train_inputs
            new.train_inputs = (rows.expand(*batch, *rows.shape[-2:]),)
            # as many means as there are models, of tasks that they have in common too
            new._conditioned = [
                WeightPosterior(w.mean.expand(*batch, w.mean.shape[-1]), w.root)
                for w in weights
            ]
            if variances is not None:
                new._noise_before = self._noise_levels()
        else:
            new._weights = weights
        return new

    def _updated(
        self,
        rows: Tensor,
        Y: Tensor,
        noise: Tensor,
        task: Tensor,
    ) -> list[WeightPosterior]:
        """The weights of each task, given more outcomes of which some may be missing.

        Args:
            rows: Transformed, ``... x q x d``.
            Y: Transformed outcomes, ``... x q x m``; NaN where not observed.
            noise: Noise variances, ``... x q x m``; fewer dimensions than those of Y
                mean one covariance for many fantasies.
            task: Of each outcome, ``... x q x m``.
        """
        phi = self.feature_map(self.tasks.without(rows))
        missing = Y.isnan()
        missed = Y - self._prior_means(rows).gather(-1, task)
        if missing.any():  # else fantasies share one covariance
            missed = torch.where(missing, 0.0, missed)
            task = torch.where(missing, -1, task)
        weights = list(self._all_weights())
        for i in range(Y.shape[-1]):
            for t in set(task[..., i].unique().tolist()) - {-1}:
                # features of zero change nothing
                of_task = phi * (task[..., i] == t).unsqueeze(-1)
                weights[t] = weights[t].update(of_task, missed[..., i], noise[..., i])
        return weights

    def get_fantasy_model(
        self,
        inputs: Any,
        targets: Tensor,
        **kwargs: Any,
    ) -> Any:
        """Condition on transformed outcomes: ``ModelListGP`` calls this.

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
            X = X.expand(1, *X.shape[-2:])
            targets = targets.unsqueeze(0)
        Y = targets.unsqueeze(-1)
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform.untransform(Y, X=X)
        noise = kwargs.get("noise")
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
        if observation_noise is None and self._given_noise() is not None:
            with fantasize_flag():
                observation_noise = self._noise_levels()[self._tasks_at(X)]
        return super().fantasize(
            X, sampler, observation_noise=observation_noise, **kwargs
        )

    def _sharing_rows(self) -> Any:
        """A copy that has the same training data, not a copy of them."""
        data = self.train_targets, self._original_train_inputs, self._conditioned
        new = deepcopy(self, {id(t): t for t in (*self.train_inputs, *data)})
        new._weights = self._weights
        return new

    # -- training data -----------------------------------------------------------------

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replace the training data, see ``ExactGP.set_train_data``.

        Raises:
            UnsupportedError: For a batch of conditioned models.
        """
        if targets is not None:  # BoTorch sets inputs alone, transformed or not
            self._refuse_batch()
        super().set_train_data(inputs, targets, strict)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._conditioned is not None:  # tensors with a graph cannot be copied
            state["_conditioned"] = [
                WeightPosterior(*map(torch.detach, w)) for w in self._conditioned
            ]
            state["_train_targets"] = self.train_targets.detach()
        return state

    def _extract_targets_and_noise(self) -> tuple[Tensor, Tensor | None]:
        self._refuse_batch()
        noise = self._given_noise()
        Y = self.tasks.to_outcomes(self.train_targets)
        return Y, None if noise is None else self.tasks.to_outcomes(noise)

    def _restore_targets_and_noise(
        self,
        Y: Tensor,
        Yvar: Tensor | None,
        strict: bool,
    ) -> None:
        if Yvar is not None:
            self.likelihood.noise_covar.noise = self.tasks.to_targets(Yvar)
        self.set_train_data(targets=self.tasks.to_targets(Y), strict=strict)


def _joined(first: Tensor, more: Tensor) -> Tensor:
    """Rows after rows, ``batch_shape x n x m``."""
    shape = torch.broadcast_shapes(first.shape[:-2], more.shape[:-2])
    parts = [rows.expand(*shape, *rows.shape[-2:]) for rows in (first, more)]
    return torch.cat(parts, dim=-2)


# -- normal distributions, whose covariances come as roots, and functions drawn -------


def _normal(
    mean: Tensor,
    covariance: LinearOperator,
) -> MultivariateNormal:
    """A distribution whose covariance may lack dimensions of the mean.

    Fantasies at the same points differ in their means only.

    Args:
        mean: ``... x n``.
        covariance: ``... x n x n``.
    """
    covariance = covariance.expand(*mean.shape, mean.shape[-1])
    return ScaledNormal(mean, at_unit_scale(covariance))


def _covariance(
    root: Tensor,
    task: Tensor | None = None,
    noise: Tensor | None = None,
    unit: Tensor | float = 1.0,
) -> LinearOperator:
    """The covariance of ``root root'`` and noise, ``... x q x q``.

    With more points than features it is singular, and is sampled through the weights;
    a Cholesky factorisation would need jitter.

    Args:
        root: ``... x q x D``.
        task: The task of each row, ``... x q``: those of different tasks are
            independent. None: all are of one.
        noise: Variances that broadcast to ``... x q``.
        unit: Of variances, see ``with_variance_floor``.
    """
    if task is not None and len(task.unique()) == 1:
        task = None
    if noise is None and task is None and root.shape[-2] >= root.shape[-1]:
        return RootLinearOperator(root)
    covariance = root @ root.mT
    if task is not None:
        covariance = torch.where(task[..., None] == task[..., None, :], covariance, 0.0)
    covariance = with_variance_floor(covariance, unit)
    if noise is not None:
        eye = torch.eye(covariance.shape[-1], device=covariance.device)
        covariance = covariance + noise.unsqueeze(-1) * eye
    # a bare tensor would get no jitter when it is factorised for sampling
    return to_linear_operator(covariance)


def _joint(
    mean: Tensor,
    covariance: LinearOperator,
) -> MultivariateNormal:
    """One distribution of independent outputs.

    Args:
        mean: ``... x m x q``.
        covariance: ``... x m x q x q``.
    """
    if mean.shape[-2] == 1:
        return _normal(mean.squeeze(-2), covariance.squeeze(-3))
    covariance = covariance.expand(*mean.shape, mean.shape[-1])
    blocks = BlockDiagLinearOperator(at_unit_scale(covariance), block_dim=-3)
    return ScaledMultitaskNormal(mean.mT, blocks, interleaved=False)


class WeightPath(SamplePath):
    """Functions of a model, given their weights.

    A function is a vector of weights: drawn once it is known everywhere, exactly, with
    gradients, at the cost of its features, where a GP needs an approximation. Thompson
    sampling takes such functions.

    BoTorch's convention for sample paths: batch dimensions of the inputs are broadcast
    against those of the weights, and outputs are the last of these.

    Args:
        model: A ``MultiTaskABLR`` that knows its weights exactly.
    """

    def __init__(self, model: MultiTaskABLR) -> None:
        super().__init__()
        self.model = model

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing changes: this model is no ensemble."""

    def forward(self, x: Tensor) -> Tensor:
        """Function values.

        Args:
            x: ``... x n x d`` inputs, or with a task column; without one, for several
                outputs, ``n x d`` or ``... x 1 x n x d``.

        Returns:
            ``... x n``.

        Raises:
            ValueError: For several outputs without the dimension that they have.
        """
        one = self.model.num_outputs == 1 or self.model._has_task(x)
        if not one and x.ndim > 2:  # a dimension for the outputs, which share points
            if x.shape[-3] != 1:
                raise checks.ShapeError(
                    "x: expected ``n x d`` or ``... x 1 x n x d`` inputs, which all "
                    f"outputs share, got {tuple(x.shape)}."
                )
            x = x.squeeze(-3)
        posterior: Any = self.model.posterior(x)
        # outcomes under another transform may have no mean
        zeros = x.new_zeros(1, *posterior.base_sample_shape)
        (values,) = posterior.rsample_from_base_samples(torch.Size([1]), zeros)
        return values.squeeze(-1) if one else values.mT


@DrawMatheronPaths.register(MultiTaskABLR)  # exact, whatever strategies BoTorch has
@torch.no_grad()
def draw_path(
    model: MultiTaskABLR,
    sample_shape: torch.Size,
    **strategies: Any,
) -> WeightPath:
    """Functions drawn from the posterior of a ``MultiTaskABLR``.

    Args:
        model: The model.
        sample_shape: How many.
        strategies: Not used: BoTorch's, for paths that are not exact.
    """
    drawn = []
    for mean, root in model.eval()._all_weights():
        # on the CPU, so that a seed means the same on any device
        normal = torch.randn(*sample_shape, *mean.shape, 1, dtype=torch.float64)
        weights = mean + (root @ normal.to(mean)).squeeze(-1)
        drawn.append(WeightPosterior(weights, root=torch.zeros_like(root[..., :1])))
    exact = model._sharing_rows()
    exact._conditioned = drawn
    return WeightPath(exact)
