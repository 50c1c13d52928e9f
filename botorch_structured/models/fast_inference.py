"""The base of every exact GP here: BoTorch's model, with faster inference.

The default is the dense evidence and posterior of BoTorch and GPyTorch. A subclass
that computes one of them faster overrides one of three methods,

    _fast_evidence(mll, kwargs)   the log evidence, or None for the dense one,
    _make_solver()                an object that has the posterior, or None,
    _fast_posterior(X)            the posterior at transformed inputs, or None,

A shorter way than through a public method is taken only while no class outside of this
package defines that method anew (``redefined``). The class lists the
attributes that hold its caches,

    _data_caches   computed from training inputs and outcomes alone,
    _fit_caches    computed from hyperparameters too.

The class sets each of them to None, which means that nothing is cached; none is a
module. They are reset to None with new data, another dtype or device, and in copies and
pickles, and when another module is assigned; ``_fit_caches`` also when ``train`` is
called, when ``eval`` ends a fit, and when a state is loaded.

``FastSingleTaskGP`` is the base of models that are a ``SingleTaskGP``. It checks the
points of a posterior, and takes outcomes of any scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import fantasize as fantasize_flag
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.sampling.pathwise.features.generators import GenKernelFeatures
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.settings import propagate_grads
from botorch.utils.transforms import normalize_indices
from botorch.utils.types import DEFAULT
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
)
from gpytorch.likelihoods.noise_models import (
    FixedGaussianNoise,
    HomoskedasticNoise,
    MultitaskHomoskedasticNoise,
)
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import prediction_strategy
from linear_operator.operators import ZeroLinearOperator
from torch import Tensor
from torch.nn import Module

from botorch_structured._botorch_names import DefaultType
from botorch_structured.kernels.leaf_kernels import redefined_names
from botorch_structured.models.checks import check_new_data, check_points, columns_of
from botorch_structured.models.outcome_scale import (
    AnyScaleStandardize,
    ScaledNormal,
    check_scale,
    least_variance,
    with_least_variance,
)


class FastInference(ExactGP):
    """An ``ExactGP`` with caches and, in subclasses, a fast evidence and posterior.

    A subclass inherits from this class first, and then from a model of BoTorch.
    """

    train_inputs: Any
    train_targets: Any
    likelihood: Any
    mean_module: Any
    covar_module: Any
    prediction_strategy: Any

    _data_caches: ClassVar[tuple[str, ...]] = ()
    _fit_caches: ClassVar[tuple[str, ...]] = ("_solver_cache",)
    # the solver, or that there is none; None before it was chosen
    _solver_cache: tuple[Any] | None = None
    #: Methods that a class outside of this package defines anew.
    redefined: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.redefined = redefined_names(cls)

    # -- caches -------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, Module):  # another kernel, mean or likelihood
            self._drop_caches()

    def _drop_caches(self) -> None:
        # a module takes ten times as long to set an attribute
        names = (*self._data_caches, *self._fit_caches)
        self.__dict__.update(dict.fromkeys(names))

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self.__dict__.update(dict.fromkeys(self._fit_caches))

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replace the training data, see ``ExactGP.set_train_data``."""
        super().set_train_data(inputs, targets, strict)
        self._drop_caches()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state, see ``GPyTorchModel.load_state_dict``."""
        # BoTorch leaves inputs as they are, which the input transform before made
        made = getattr(self, "_has_transformed_inputs", False)
        if made:
            self._revert_to_original_inputs()
        result = super().load_state_dict(*args, **kwargs)
        if made:
            self._set_transformed_inputs()
        return result

    def _apply(self, fn: Any) -> Any:
        # BoTorch's analytic acquisitions call ``.to(X)`` on each evaluation: where that
        # changes nothing the caches are kept
        if changes_nothing(self, fn):
            return self
        result = super()._apply(fn)
        self._clear_cache()  # GPyTorch's have the old dtype and device
        self._drop_caches()
        return result

    def __getstate__(self) -> dict[str, Any]:
        # caches are cheap to rebuild and large to store
        names = (*self._data_caches, *self._fit_caches)
        return {**self.__dict__, **dict.fromkeys(names)}

    # -- evidence -----------------------------------------------------------------

    def _fast_evidence(
        self, mll: ExactMarginalLogLikelihood, kwargs: dict[str, Any]
    ) -> Tensor | None:
        """Log evidence of the training data; None to evaluate ``mll`` itself.

        Args:
            mll: An ``ExactMarginalLogLikelihood`` (no subclass) of this model.
            kwargs: Arguments of its likelihood.
        """
        return None

    @property
    def _num_observed(self) -> int:
        """The number of outcomes, by which the evidence is divided in the objective."""
        return int(self.train_targets.shape[-1])

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Minus the objective of ``mll`` per data point; BoTorch's fit calls it.

        Args:
            mll: An objective of this model.
            kwargs: Passed to ``mll`` where there is no fast evidence.

        Returns:
            A scalar, or ``batch_shape`` for a batched model.
        """
        # a subclass or a leave-one-out likelihood is another objective
        if type(mll) is ExactMarginalLogLikelihood:
            value = self._fast_evidence(mll, kwargs)
            if value is not None:
                return -mll._add_other_terms(value, ()) / self._num_observed
        output = self(*self.train_inputs)
        if type(output) is MultivariateNormal:
            # a likelihood may ask for its diagonal first, which would be another kernel
            covariance = output.lazy_covariance_matrix.evaluate_kernel()
            output = MultivariateNormal(output.mean, covariance)
        transformed = (self.transform_inputs(t) for t in self.train_inputs)
        return -mll(output, self.train_targets, *transformed, **kwargs)

    # -- posterior ----------------------------------------------------------------

    @property
    def solver(self) -> Any:
        """The object that has posteriors; None where GPyTorch's dense algebra has.

        It is chosen once, when it is first asked for in evaluation mode, and dropped
        where data, hyperparameters or modules change.
        """
        # BoTorch propagates gradients to inputs, others to hyperparameters too
        attached = settings.detach_test_caches.off() and propagate_grads.off()
        if self.training or attached:
            return None
        cache = self._solver_cache
        if cache is None:
            cache = (self._make_solver(),)
            self.__dict__["_solver_cache"] = cache
        return cache[0]

    def _make_solver(self) -> Any:
        """The solver, with a method ``posterior(mean_module, X)``, or None."""
        return None

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal | None:
        """Posterior at transformed inputs; None to have GPyTorch compute it.

        Args:
            X: ``batch_shape x q x d``.
        """
        solver = self.solver
        return None if solver is None else solver.posterior(self.mean_module, X)

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Prior in training mode, posterior in evaluation mode."""
        if (
            len(args) == 1
            and not (kwargs or self.training or self.train_inputs is None)
            and settings.prior_mode.off()
        ):
            x = args[0].unsqueeze(-1) if args[0].ndim == 1 else args[0]
            fast = self._fast_posterior(x)
            if fast is not None:
                return fast
        return super().__call__(*args, **kwargs)

    def get_fantasy_model(self, inputs: Any, targets: Tensor, **kwargs: Any) -> Any:
        """A model with more data and the same hyperparameters, see ``ExactGP``.

        Args:
            inputs: Transformed, ``batch_shape x n' x d``.
            targets: Transformed, ``batch_shape' x n'``.
            kwargs: ``noise``, the noise variances of the new data, ``batch_shape x n'``
                (default: the inferred one). As in GPyTorch, one beside an inferred
                noise counts for the variance alone.
        """
        # GPyTorch's fantasies need caches that a fast posterior leaves empty
        if self.prediction_strategy is None and not self.training:
            super().__call__(self.train_inputs[0][..., :1, :])
        X = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        with gradients_in_data(self, new=X):
            return super().get_fantasy_model(inputs, targets, **kwargs)


@torch.no_grad()
def changes_nothing(model: ExactGP, fn: Callable[[Tensor], Tensor]) -> bool:
    """Whether a conversion leaves the tensors of a model as they are."""
    data = [] if model.train_inputs is None else model.train_inputs
    tensors = [*data, model.train_targets]
    # one walk takes a third of the time of ``parameters`` and ``buffers``
    for module in model.modules():
        tensors += module._parameters.values()
        tensors += module._buffers.values()
    for tensor in tensors:
        if tensor is not None and fn(tensor) is not tensor:
            return False
    return True


class FastSingleTaskGP(FastInference, SingleTaskGP):
    """A ``SingleTaskGP`` that checks points, and takes outcomes of any scale.

    The default outcome transform is ``AnyScaleStandardize``. Under another (or none)
    targets whose variance is below GPyTorch's smallest raise (``check_scale``).

    Args:
        train_X: ``batch_shape x n x d``.
        train_Y: ``batch_shape x n x m``.
        args: See ``SingleTaskGP``.
        outcome_transform: See ``SingleTaskGP``.
        kwargs: See ``SingleTaskGP``.
    """

    # the number of columns of points; None where there may be several, and -1 before
    # it was asked for
    _columns: int | None = -1

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        *args: Any,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        **kwargs: Any,
    ) -> None:
        default = outcome_transform is DEFAULT
        if default:
            outcome_transform = AnyScaleStandardize(
                m=train_Y.shape[-1], batch_shape=train_X.shape[:-2]
            )
        super().__init__(
            train_X, train_Y, *args, outcome_transform=outcome_transform, **kwargs
        )
        if not default:
            targets = self.train_targets
            targets = targets.mT if self.num_outputs > 1 else targets.unsqueeze(-1)
            check_scale(train_Y, targets)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """See ``SingleTaskGP``; variances are positive in spite of rounding.

        BoTorch's own posterior untransforms output ``output_indices[i]`` as if it were
        output i. Here it is that of the model of these outputs, ``subset_output``.

        Args:
            X: ``batch_shape x q x d``.
            output_indices: The outputs wanted, in that order; default: all. Ignored by
                a model with one output, to which a ``ModelList`` passes its index.
            observation_noise: See ``SingleTaskGP``.
            posterior_transform: See ``SingleTaskGP``.

        Raises:
            ValueError: For another number of columns, another dtype than that of the
                training data, NaN or infinity in ``X``, or an output that does not
                exist.
        """
        self._check_points(X)
        m = self.num_outputs
        if output_indices is not None and m > 1:
            chosen = normalize_indices(output_indices, d=m)
            if torch.is_tensor(observation_noise):
                observation_noise = observation_noise[..., chosen]
            return self.subset_output(chosen).posterior(
                X,
                observation_noise=observation_noise,
                posterior_transform=posterior_transform,
            )
        posterior: Any = None
        if observation_noise is False and X.shape[-2] == 1:
            posterior = self._point_posterior(X)
        if posterior is None and self.train_inputs[0].grad_fn is None:
            posterior = super().posterior(X, observation_noise=observation_noise)
        elif posterior is None:  # rows of fantasies
            with gradients_in_data(self):
                posterior = super().posterior(X, observation_noise=observation_noise)
        normal = getattr(posterior, "distribution", None)
        if not isinstance(normal, ScaledNormal):
            transform = getattr(self, "outcome_transform", None)
            least = least_variance(transform, X, self.num_outputs)
            posterior = with_least_variance(posterior, least)
        if posterior_transform is None:
            return posterior
        return with_least_variance(posterior_transform(posterior=posterior, X=X), 0.0)

    def _point_posterior(self, X: Tensor) -> GPyTorchPosterior | None:
        """``posterior`` of checked points one by one, where there is a short way to it.

        Args:
            X: ``batch_shape x q x d``, not transformed.
        """
        return None

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """As in BoTorch, after the data are checked.

        Args:
            X: ``batch_shape x n' x d``.
            Y: ``batch_shape' x n' x m``. Batch dimensions of the model, ``X`` and ``Y``
                broadcast; those of ``Y`` in front are fantasies.
            noise: Noise variances, of the shape of ``Y``, for a model that was given
                ``train_Yvar``; of fantasies for any model, as BoTorch gives them.
            kwargs: See ``BatchedMultiOutputGPyTorchModel``.

        Raises:
            ValueError: For shapes that do not fit together, another dtype, NaN or
                infinity, negative variances, and known noise for a model that infers
                its noise.
        """
        if fantasize_flag.off():  # else BoTorch made them from points that were checked
            self._check_points(X)
            batch = check_new_data(X, Y, noise, self._num_outputs, self.batch_shape)
            fixed_noise = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
            if not (fixed_noise or X.shape[-2]):
                noise = None  # BoTorch's fantasies at no points, noise of no rows
            if noise is not None and not fixed_noise:
                raise ValueError(
                    "noise: expected None, as this model has inferred its noise, got "
                    "variances; models with train_Yvar take them."
                )
            # GPyTorch does not broadcast, except that fantasies may share their inputs
            Y = Y.expand(*batch, *Y.shape[-2:])
            noise = noise if noise is None else noise.expand_as(Y)
            shared = batch[len(batch) - X.ndim + 2 :] == X.shape[:-2]
            if not shared or noise is not None:
                X = X.expand(*batch, *X.shape[-2:])
        if noise is not None:
            kwargs["noise"] = noise
        return super().condition_on_observations(X, Y, **kwargs)

    def subset_output(self, idcs: list[int]) -> Any:
        """Fewer outputs, see ``BatchedMultiOutputGPyTorchModel``."""
        new = super().subset_output(idcs)
        if idcs == list(range(self._num_outputs)):  # a copy
            return new
        which: Any = idcs if len(idcs) > 1 else idcs[0]
        raw = self._original_train_inputs
        if isinstance(raw, Tensor):  # BoTorch subsets the inputs in use alone
            new._original_train_inputs = raw[..., which, :, :]
        return new

    def _check_points(self, X: Tensor) -> None:
        """Raise an error for points at which no prediction is possible."""
        tree = getattr(self, "tree", None)
        conditional = tree is not None and bool(tree.decision_columns)
        if self._columns == -1:
            self._columns = columns_of(self)
        check_points(X, self._columns, self.train_targets.dtype, conditional)


# -- gradients in the points of fantasies ----------------------------------------
#
# GPyTorch detaches what it keeps of the training data, unless it is told not to.
# BoTorch tells it for a posterior within ``propagate_grads``, but not where fantasies
# are made, and ``qMultiStepLookahead`` does not where the posterior of fantasies is
# taken: values are right, and gradients in the points of the fantasies lack terms.


@contextmanager
def gradients_in_data(*models: Module, new: Tensor | None = None) -> Iterator[None]:
    """Keep the graphs of caches where training data are functions of something.

    Training data that a user gives have no history; points of fantasies have one where
    an acquisition function is differentiated.

    Args:
        models: Each ``ExactGP`` among them and in them is looked at.
        new: Points that they are about to be conditioned on.
    """
    processes = [process for model in models for process in _processes(model)]
    moves = any(X.grad_fn is not None for p in processes for X in p.train_inputs)
    conditions = new is not None and new.requires_grad
    if not (torch.is_grad_enabled() and (moves or conditions)):
        yield
        return
    before = [process.prediction_strategy for process in processes]
    if conditions and not moves and settings.detach_test_caches.on():
        for process in processes:
            _keep_constants(process)
    try:
        with propagate_grads(True), settings.detach_test_caches(False):
            yield
    finally:
        for process, strategy in zip(processes, before, strict=True):
            if conditions:
                process.prediction_strategy = strategy


def _processes(model: Module) -> Iterator[ExactGP]:
    if isinstance(model, ExactGP):
        if model.train_inputs is not None:
            yield model
    else:
        for child in model.children():
            yield from _processes(child)


@torch.no_grad()
def _keep_constants(process: ExactGP) -> None:
    """Factorise the covariance of the data without a graph of hyperparameters.

    One that is kept has been used up after the first ``backward``.
    """
    if process.training:
        return
    inputs = list(process.train_inputs)
    strategy = prediction_strategy(
        train_inputs=inputs,
        train_prior_dist=process.forward(*inputs),
        train_labels=process.train_targets,
        likelihood=process.likelihood,
    )
    strategy.lik_train_train_covar.root_decomposition()
    strategy.lik_train_train_covar.root_inv_decomposition()
    strategy.mean_cache  # noqa: B018 (GPyTorch keeps it)
    process.prediction_strategy = strategy


# -- objectives and functions ----------------------------------------------------


def refuse_paths(kind: type, got: str) -> None:
    """Have BoTorch refuse to draw whole functions; its own words name a dispatcher.

    Args:
        kind: A class of models, or of kernels.
        got: What it is, for the message.
    """

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(
            f"model: expected one to draw whole functions of, got {got}. Draw at a "
            "finite set of points: posterior(X).rsample(), or MaxPosteriorSampling."
        )

    for hook in (GenKernelFeatures, DrawKernelFeaturePaths, DrawMatheronPaths):
        hook.add((kind,), refuse)


def training_prior(
    prior: MultivariateNormal, log_density: Callable[[Tensor], Tensor]
) -> MultivariateNormal:
    """The prior of the training data, with another log density of the outcomes.

    ``ExactMarginalLogLikelihood`` adds noise to it, calls ``log_prob`` of the result,
    which has the same class, and adds the priors of hyperparameters.

    Args:
        prior: The Gaussian prior of the training data.
        log_density: Log density of noisy outcomes; replaces the Gaussian one.
    """

    class TrainingPrior(MultivariateNormal):
        def log_prob(self, value: Tensor) -> Tensor:
            return log_density(value)

        def with_noise(self) -> MultivariateNormal:
            return self

    return TrainingPrior(prior.mean, prior.lazy_covariance_matrix)


# -- moments ----------------------------------------------------------------------


def with_gradient(mean: Tensor, X: Tensor) -> Tensor:
    """``mean`` with a gradient in ``X``, zero where it does not depend on ``X``.

    On a path without data the mean is constant, and optimisers need its gradient.

    Args:
        mean: ``batch_shape x n``.
        X: ``batch_shape x n x d``; inactive columns may hold anything.
    """
    return mean + X.masked_fill(torch.ones_like(X, dtype=torch.bool), 0.0).sum(-1)


def with_variance_floor(covariance: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Apply GPyTorch's smallest variance, without its warning at training points.

    Args:
        covariance: ``batch_shape x n x n``.
        unit: The unit of the variances, 1 for standardised outcomes. Broadcastable to
            ``batch_shape x n``.
    """
    floor = settings.min_variance.value(covariance.dtype) * unit
    lack = (floor - covariance.diagonal(dim1=-1, dim2=-2)).clamp_min(0.0)
    if not lack.is_cuda and not lack.any():  # on a GPU the host would wait
        return covariance
    return covariance + torch.diag_embed(lack)


# -- noise ------------------------------------------------------------------------


def noise_is_known(likelihood: Any, tasks: bool = False) -> bool:
    """Whether the noise variances are ``likelihood.noise``: one, or one for each row.

    A subclass may add another noise, which is found by calling it.

    Args:
        likelihood: Any likelihood.
        tasks: Whether one noise variance for each task is accepted, too.
    """
    kinds = [
        (GaussianLikelihood, HomoskedasticNoise),
        (FixedNoiseGaussianLikelihood, FixedGaussianNoise),
    ]
    if tasks:
        kinds.append((HadamardGaussianLikelihood, MultitaskHomoskedasticNoise))
    part = getattr(likelihood, "noise_covar", None)
    return (type(likelihood), type(part)) in kinds


def noise_at(likelihood: Likelihood, X: Tensor, shape: torch.Size) -> Tensor:
    """The noise variances of a likelihood, differentiable in its parameters.

    Args:
        likelihood: A likelihood that adds noise to each outcome by itself.
        X: Transformed training inputs, ``batch_shape x n x d``.
        shape: Of the outcomes, ``batch_shape x n``.
    """
    mean = X.new_zeros(shape)
    nothing = ZeroLinearOperator(*shape, shape[-1], dtype=X.dtype, device=X.device)
    noisy = likelihood(MultivariateNormal(mean, nothing), X)
    return noisy.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2).expand(shape)


def check_own_objective(
    model: ExactGP, mll: MarginalLogLikelihood, kwargs: dict[str, Any]
) -> None:
    """Raise a ``ValueError`` for an objective with another likelihood than the model.

    For models that compute the evidence themselves: they would ignore another
    likelihood, and arguments to theirs.

    Args:
        model: The model.
        mll: The objective.
        kwargs: Arguments of a call of ``mll``.
    """
    if mll.likelihood is not model.likelihood:
        raise ValueError(
            "mll: expected the likelihood of the model itself, got another "
            f"{type(mll.likelihood).__name__}; use "
            "ExactMarginalLogLikelihood(model.likelihood, model)."
        )
    if kwargs:
        raise ValueError(
            f"kwargs: expected no arguments to the likelihood of "
            f"{type(model).__name__}, got {sorted(kwargs)}."
        )
