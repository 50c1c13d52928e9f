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

__all__ = ["MultiTaskABLR"]

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean, ZeroMean
from gpytorch.models import ExactGP
from torch import Tensor, nn

from botorch_structured.models.ablr_build import (
    check_own_seed,
    check_untouched,
    default_network,
    noise_model,
    task_column,
    task_values,
    weight_level,
)
from botorch_structured.models.ablr_conditioning import AblrConditioning
from botorch_structured.models.ablr_fit import AblrFit
from botorch_structured.models.ablr_group import ProcessGroup
from botorch_structured.models.ablr_hyperparameters import WeightPrecision
from botorch_structured.models.ablr_kernel import TaskFeatureKernel
from botorch_structured.models.ablr_learnt import UsualScale
from botorch_structured.models.ablr_new_task import AblrNewTask
from botorch_structured.models.ablr_posterior import AblrPosterior
from botorch_structured.models.ablr_rows import AblrRows
from botorch_structured.models.ablr_sampling import AblrSampling, WeightPath
from botorch_structured.models.ablr_standardize import StandardizeTasks
from botorch_structured.models.ablr_tasks import TaskColumn, UnknownTaskError
from botorch_structured.models.ablr_weights import AblrWeights
from botorch_structured.models.checks import check_modules, check_training_data
from botorch_structured.models.dependent_inputs import (
    dataset_task,
    refuse_categories,
    refuse_dependencies,
)
from botorch_structured.models.feature_maps import TanhNetwork, as_feature_map
from botorch_structured.models.input_transforms import in_evaluation
from botorch_structured.models.outcome_scale import check_scale

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
