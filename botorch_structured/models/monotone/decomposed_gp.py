r"""A sum of functions that are observed one by one.

Which model when: ``DecomposedGP`` if an evaluation returns the parts of a sum that is
optimised, and a part is easier to model than the sum: validation error = training error
+ generalisation gap, profit = revenue - cost. A ``ModelListGP`` if the parts are
several objectives, or are combined in another way.

References:

.. [Wang2018monotonicity]
    W. Wang and W. J. Welch. Bayesian Optimization Using Monotonicity Information and
    Its Application in Machine Learning Hyperparameter Tuning. arXiv:1802.03532, 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from botorch import settings as botorch_settings
from botorch.models import ModelListGP
from botorch.models.deterministic import DeterministicModel
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import Model, ModelList
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.sampling.pathwise.paths import PathList, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.transforms import is_ensemble
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods.gaussian_likelihood import FixedNoiseGaussianLikelihood
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.nn import ModuleList

from botorch_structured.models import checks
from botorch_structured.models.fast_inference import gradients_in_data
from botorch_structured.models.outcome_scale import (
    at_unit_scale,
    check_scale,
    least_variance,
    with_least_variance,
)


class DecomposedGP(ModelListGP):
    r"""f(x) = sum_i f_i(x) with every f_i observed: the posterior is that of the sum.

    Choose it if an evaluation returns the parts of the objective. Each part, a
    *component*, has its own data, transforms and prior knowledge, such as the signs of
    a ``MonotoneGP``. Components are independent, so that means add and covariances add
    ([Wang2018monotonicity]_, section 3.1).

    The model has *one output*, the sum: ``num_outputs`` is 1, and acquisition
    functions, analytic or Monte Carlo, take it as they take a ``SingleTaskGP``.
    ``best_f`` is the best observed *sum*. Observations have one column for each
    component with data: in ``condition_on_observations``, in ``fantasize``, and where
    noise is given as a tensor. A ``posterior_transform`` is applied to the joint
    posterior of all components, as with a ``ModelListGP``: other weights
    (``ScalarizedPosteriorTransform``), or a difference. For a Monte Carlo objective of
    the components use ``ModelListGP(*model.models)``.

    Fit it with ``SumMarginalLogLikelihood(model.likelihood, model)``, as a
    ``ModelListGP``: each component has a likelihood. ``ExactMarginalLogLikelihood``
    takes one likelihood only (GPyTorch: "Likelihood must be Gaussian for exact
    inference").

    A component that is known, such as a price or a cost, is a ``DeterministicModel``:
    it adds to the mean, has no data and no column, and is not in ``models``. A state
    that is loaded leaves it as it is. A product of positive parts is a sum of
    logarithms, which has the same maximiser: demand times margin (section 5) is the
    second example.

    Two things differ from ``ModelListGP``. Fantasies of the components are drawn
    jointly; ``ModelListGP`` uses the same base samples for each component, which makes
    them perfectly correlated and the variance of the sum too large. And conditioning
    calls the components' own ``condition_on_observations``, which apply input
    transforms.

    Args:
        models: Different components, single-output GPs and ``DeterministicModel`` s,
            at least one of them a GP. Outcome transforms must be linear (such as
            ``Standardize``): under a ``Log`` transform a component is log-normal, and
            the sum is not Gaussian. BoTorch's ``Standardize`` does not divide outcomes
            whose deviation is below 1e-8; the models of this package do.

    Raises:
        ValueError: For other components, and those that differ in the number of columns
            or the dtype of their data, or whose batch shapes do not broadcast.

    Example:
        >>> # column 0: regularisation; parts: training error and gap, negated, n x 2
        >>> box = {"bounds": bounds, "input_transform": Normalize(d, bounds=bounds)}
        >>> error = MonotoneGP(X, parts[:, :1], {0: -1}, **box)
        >>> gap = MonotoneGP(X, parts[:, 1:], {0: 1}, **box)
        >>> model = DecomposedGP(error, gap)
        >>> fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        >>> acqf = LogExpectedImprovement(model, best_f=parts.sum(-1).max())

        >>> # profit = demand(price) * (price - cost): log-demand falls, the rest is
        >>> # known, and exp(sum) is the profit
        >>> log_demand = MonotoneGP(price, demand.log(), {0: -1}, **box)
        >>> log_margin = GenericDeterministicModel(lambda X: (X - cost).log())
        >>> model = DecomposedGP(log_demand, log_margin)
    """

    def __init__(self, *models: Model) -> None:
        _check_components(models)
        self._is_known = tuple(isinstance(m, DeterministicModel) for m in models)
        pairs = list(zip(models, self._is_known, strict=True))
        super().__init__(*(model for model, is_known in pairs if not is_known))
        self.known_models = ModuleList(model for model, is_known in pairs if is_known)
        self._columns = _common_columns(self._with_data)

    @property
    def num_outputs(self) -> int:
        """One: the sum. The components are in ``models`` and ``known_models``."""
        return 1

    @property
    def components(self) -> list[Model]:
        """All components, in the order in which they were given."""
        return self._in_order(self.models, self.known_models)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any | None = None,
    ) -> Posterior:
        r"""The posterior of the sum, or of what a transform makes of the components.

        Args:
            X: ``batch_shape x q x d``.
            output_indices: Of the one output, the sum: ``[0]`` or None.
            observation_noise: Whether to add the components' noise, or its variances,
                ``batch_shape x q x m`` for ``m`` components with data, each in the
                space of the component's transformed outcomes.
            posterior_transform: Applied to the joint posterior of the components, in
                the order in which the constructor was given them.

        Returns:
            A ``GPyTorchPosterior`` over ``batch_shape x q x 1``, or what the transform
            returns.

        Raises:
            ValueError: For another output than the sum, noise of another shape, and
                points of another shape or dtype, with NaN or infinity.
        """
        self._check_output(output_indices)
        if posterior_transform is not None:
            joint = self.component_posterior(X, observation_noise)
            return posterior_transform(posterior=joint, X=X)
        noises = self._split("observation_noise", observation_noise)
        learned = self._learned(X, noises)
        mean = sum(mvn.mean for mvn in learned)
        mean = sum(self._known_values(X, mean), mean)
        dense = sum(mvn.lazy_covariance_matrix.to_dense() for mvn in learned)
        total = MultivariateNormal(mean, at_unit_scale(to_linear_operator(dense)))
        transforms = [getattr(m, "outcome_transform", None) for m in self.models]
        least: Any = sum(least_variance(t, X) * X.new_ones(1, 1) for t in transforms)
        if is_ensemble(self):
            least = least.unsqueeze(-3)
        return self._as_posterior(total, least)

    def component_posterior(
        self,
        X: Tensor,
        observation_noise: bool | Tensor = False,
    ) -> Posterior:
        r"""The joint posterior of the components, which are independent.

        Args:
            X: ``batch_shape x q x d``.
            observation_noise: As in ``posterior``.

        Returns:
            A posterior over ``batch_shape x q x k`` for all ``k`` components; the
            variance of a known one is the least that GPyTorch allows, 1e-10 in double
            precision.
        """
        noises = self._split("observation_noise", observation_noise)
        learned = self._learned(X, noises)
        certain = map(_certain, self._known_values(X, learned[0].mean))
        parts = self._in_order(learned, certain)
        return self._as_posterior(_independent(parts))

    def condition_on_observations(
        self,
        X: Tensor | Sequence[Tensor],
        Y: Tensor,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> DecomposedGP:
        r"""The model with more observations of the components.

        Args:
            X: ``batch_shape x n' x d``, where all components were observed, or a list
                of one such tensor for each component with data; in the space of
                ``train_X``, since components apply their input transforms.
            Y: ``batch_shape' x n' x m``, a column for each component with data.
            noise: Variances, of the shape of ``Y``, in the space of transformed
                outcomes. Columns of components with inferred noise are not read.
            kwargs: For the components' ``condition_on_observations``.

        Raises:
            ValueError: For another number of columns, or of tensors in ``X``, shapes
                that do not fit together, another dtype, NaN or infinity, and negative
                variances.
        """
        m = len(self.models)
        inputs = [X] * m if isinstance(X, Tensor) else list(X)
        if len(inputs) != m:
            raise ValueError(
                f"X: expected one tensor for all or one for each of the {m} components "
                f"with data, got {len(inputs)}."
            )
        outcomes = self._split("Y", Y)
        noises = self._split("noise", noise)
        for i, model in enumerate(self._with_data):
            self._check_points(inputs[i])
            checks.check_new_data(inputs[i], Y, noise, m, model.batch_shape)
            # of fantasies any component takes it
            if not (fantasize_flag.on() or _has_fixed_noise(model)):
                noises[i] = None
        return self._conditioned(inputs, outcomes, noises, **kwargs)

    def _conditioned(
        self,
        X: Sequence[Tensor],
        Y: Sequence[Tensor],
        noises: Sequence[Tensor | None],
        **kwargs: Any,
    ) -> DecomposedGP:
        """Condition each component with data on its rows."""
        models = []
        for model, X_i, Y_i, noise in zip(self._with_data, X, Y, noises, strict=True):
            extra = {} if noise is None else {"noise": noise}
            with gradients_in_data(model, new=X_i):
                new = model.condition_on_observations(X_i, Y_i, **extra, **kwargs)
            models.append(new)
        return self._with_models(models)

    def get_fantasy_model(
        self,
        inputs: Sequence[Any],
        targets: Sequence[Tensor],
        **kwargs: Any,
    ) -> DecomposedGP:
        """The model with more data, known components as they are.

        Args:
            inputs: Transformed inputs, for each component with data.
            targets: Transformed outcomes, for each component with data.
            kwargs: See ``gpytorch.models.IndependentModelList``.
        """
        learned = super().get_fantasy_model(inputs, targets, **kwargs)
        return self._with_models(learned.models)

    def fantasize(
        self,
        X: Tensor,
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        **kwargs: Any,
    ) -> DecomposedGP:
        r"""Models conditioned on draws of the components from their joint posterior.

        Args:
            X: ``batch_shape x n' x d``.
            sampler: Its ``sample_shape`` leads the batch shape of the result.
            observation_noise: ``model_batch_shape x 1 x m`` or ``x n' x m`` variances,
                each in the space of the component's transformed outcomes. If None,
                inferred noise, and the mean of fixed noise.
            kwargs: For ``condition_on_observations``.

        Raises:
            ValueError: For noise of another shape, and points as in ``posterior``.
        """
        self._check_points(X)
        noises = self._split("observation_noise", observation_noise)
        if observation_noise is None:
            noises = [_mean_fixed_noise(model) for model in self._with_data]
        m = len(self.models)
        propagate = kwargs.pop("propagate_grads", False)
        with fantasize_flag():
            if X.shape[-2] == 0:
                shape = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
                Y = X.new_empty(*sampler.sample_shape, *shape, 0, m)
            else:
                with botorch_settings.propagate_grads(propagate):
                    added = [True if noise is None else noise for noise in noises]
                    mvns = self._learned(X, added)
                Y = sampler(self._as_posterior(_independent(mvns)))
            shape = Y.shape[1:-1]
            noises = [n if n is None else n.expand(*shape, 1) for n in noises]
            return self._conditioned([X] * m, Y.split(1, dim=-1), noises, **kwargs)

    def subset_output(self, idcs: list[int]) -> DecomposedGP:
        """The model itself: there is one output.

        A sum of fewer components is ``DecomposedGP(*some_of_them)``.
        """
        self._check_output(idcs)
        return self

    @property
    def _with_data(self) -> list[GPyTorchModel]:
        return list(self.models)

    def _with_models(self, models: Iterable[Model]) -> DecomposedGP:
        """The same known components with other ones that have data."""
        return type(self)(*self._in_order(models, self.known_models))

    def _in_order(
        self,
        learned: Iterable[Any],
        certain: Iterable[Any],
    ) -> list[Any]:
        """Values for all components, in the order of the constructor.

        Args:
            learned: One for each component with data.
            certain: One for each known component.
        """
        with_data = iter(learned)
        without = iter(certain)
        return [next(without if k else with_data) for k in self._is_known]

    def _learned(
        self,
        X: Tensor,
        noises: Sequence[Any],
    ) -> list[MultivariateNormal]:
        """The posterior of each component with data, of one batch shape.

        Args:
            X: ``batch_shape x q x d``.
            noises: ``observation_noise`` of each.
        """
        self._check_points(X)
        with gradients_in_data(*self._with_data):
            posteriors: list[Any] = [
                model.posterior(X, observation_noise=noise)
                for model, noise in zip(self._with_data, noises, strict=True)
            ]
        return self._broadcast_mvns([p.distribution for p in posteriors])

    def _known_values(
        self,
        X: Tensor,
        like: Any,
    ) -> list[Tensor]:
        """Each known component, of the shape of ``like``, ``batch_shape x q``."""
        models: list[Any] = list(self.known_models)
        values = [model.posterior(X).mean.squeeze(-1) for model in models]
        if is_ensemble(self):  # ``batch_shape x members x q``
            values = [value.unsqueeze(-2) for value in values]
        return [value.expand_as(like) for value in values]

    def _as_posterior(
        self,
        mvn: MultivariateNormal,
        least: Any = 0.0,
    ) -> Posterior:
        kind = GaussianMixturePosterior if is_ensemble(self) else GPyTorchPosterior
        return with_least_variance(kind(distribution=mvn), least)

    def _check_points(self, X: Tensor) -> None:
        dtype = self._with_data[0].train_targets.dtype
        # components themselves check the columns where tasks or transforms add some
        checks.check_points(X, self._columns, dtype)

    def _split(
        self,
        name: str,
        value: Any,
    ) -> list[Any]:
        """A column, or the same None or bool, for each component with data."""
        m = len(self.models)
        if value is None or isinstance(value, bool):
            return [value] * m
        checks.check_tensor(name, value)
        if value.dim() < 2 or value.shape[-1] != m:
            raise ValueError(
                f"{name}: expected {m} columns, one for each component with data "
                f"(known components have none), got shape {tuple(value.shape)}."
            )
        return list(value.split(1, dim=-1))

    def _check_output(self, indices: list[int] | None) -> None:
        if indices is not None and list(indices) not in ([0], [-1]):
            raise ValueError(
                f"output_indices: expected [0], one output, the sum, got {indices}; "
                "of its components there is `component_posterior`."
            )


def _check_components(models: Sequence[Model]) -> None:
    for i, model in enumerate(models):
        deterministic = isinstance(model, DeterministicModel)
        gp = isinstance(model, GPyTorchModel) and not isinstance(model, ModelList)
        if not (deterministic or gp):
            raise ValueError(
                "models: expected single GPs or DeterministicModels, got a "
                f"{type(model).__name__} at {i}."
            )
        if model.num_outputs != 1:
            raise ValueError(
                "models: expected components with one output, got "
                f"{model.num_outputs} at {i}: sum each in a DecomposedGP of its own."
            )
        transform = getattr(model, "outcome_transform", None)
        if gp and transform is not None and not transform._is_linear:
            raise ValueError(
                "models: expected linear outcome transforms, such as Standardize, got "
                f"a {type(transform).__name__} at {i}, whose sum with others is not "
                "Gaussian: model the transformed values instead, and sum those."
            )
        if gp and any(model is other for other in models[:i]):
            raise ValueError(
                "models: expected different components, which are independent, got "
                f"component {i} twice: multiply its outcomes by two instead."
            )
        if gp:  # BoTorch's own Standardize leaves small outcomes as they are
            targets = model.train_targets.unsqueeze(-1)
            check_scale(targets, targets)
    if all(isinstance(model, DeterministicModel) for model in models):
        raise ValueError(
            "models: expected at least one component with data, got "
            f"{len(models)} components, all of them known."
        )


def _common_columns(models: Sequence[GPyTorchModel]) -> int | None:
    """How many columns points have; None if tasks or input transforms add some.

    Raises:
        ValueError: If components ask for different points, or have data of different
            dtypes, or batch shapes that do not broadcast.
    """
    widths = [checks.columns_of(model) for model in models]
    dtypes = [model.train_targets.dtype for model in models]
    for name, values in (("columns", widths), ("dtypes", dtypes)):
        if len(set(values) - {None}) > 1:
            raise ValueError(
                f"models: expected components with the same {name} of train_X, since "
                f"all are asked at the same points, got {values}."
            )
    shapes = [tuple(model.batch_shape) for model in models]
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(
            f"models: expected components whose batch shapes broadcast, got {shapes}."
        ) from None
    tasks = any(getattr(m, "_task_feature", None) is not None for m in models)
    return None if tasks else next((w for w in widths if w is not None), None)


def _has_fixed_noise(model: Model) -> bool:
    return isinstance(model.likelihood, FixedNoiseGaussianLikelihood)


def _mean_fixed_noise(model: Model) -> Tensor | None:
    """The noise of a fantasy, as in ``FantasizeMixin``; None if noise is inferred."""
    if not _has_fixed_noise(model):
        return None
    return model.likelihood.noise.unsqueeze(-1).mean(dim=-2, keepdim=True)


def _independent(mvns: list[MultivariateNormal]) -> MultivariateNormal:
    """The joint distribution of independent outputs."""
    if len(mvns) == 1:
        return mvns[0]
    return MultitaskMultivariateNormal.from_independent_mvns(mvns)


def _certain(value: Tensor) -> MultivariateNormal:
    """``batch_shape x q``, with the least variance that causes no GPyTorch warning."""
    least = settings.min_variance.value(value.dtype)
    return MultivariateNormal(value, DiagLinearOperator(torch.full_like(value, least)))


class _KnownPath(SamplePath):
    """A known component: all its sample paths are the function itself."""

    def __init__(self, model: DeterministicModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        x: Tensor,
        **kwargs: Any,
    ) -> Tensor:
        return self.model.posterior(x).mean.squeeze(-1)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Required by BoTorch; a known component has no ensemble."""


# BoTorch would otherwise use its method for a ModelListGP, which returns a list of
# paths, one for each component, where one path of the sum is expected.
@DrawMatheronPaths.register(DecomposedGP)
def _draw_paths_of_sum(
    model: DecomposedGP,
    sample_shape: torch.Size,
    **kwargs: Any,
) -> PathList:
    paths = [
        _KnownPath(part)
        if isinstance(part, DeterministicModel)
        else draw_matheron_paths(part, sample_shape=sample_shape, **kwargs)
        for part in model.components
    ]
    return PathList(paths, join=sum)
