r"""A GP averaged over samples of its hyperparameters.

Which one when: ``fit_gpytorch_mll`` gives the most probable hyperparameters; with few
points many others are about as probable. ``SampledGP`` holds several samples of their
posterior, drawn by ``fit_slice_sampling``, and every BoTorch acquisition function
averages over them. BoTorch's own fully Bayesian models
(``SaasFullyBayesianSingleTaskGP``) have a fixed kernel and need JAX; this one takes any
BoTorch GP.

Predictions of all samples at once (``FoldedPredictor``): GPyTorch copies the training
data for every element of a t-batch: one prediction at 1000 candidates and 40 points
takes 100 ms, times the number of samples. Here a t-batch is folded into the rows of one
matrix, and the samples are a batch dimension. With covariances L L' of the data (noise
included), cached L^-1 and e = L^-1 (y - m), a row k of covariances with the data has

    w = k L^-T,     mean = m + w e,     cov = k** - w w'

as in ``models.tree.leaf_inference``: at a noise variance of 1e-9 this gives three more
correct digits than ``K^-1 (y - m)``. The kernels of the samples are evaluated as one
kernel with a batch shape, which is many times faster than one call for each. GPyTorch's
own ways of making such a kernel need a prior on each parameter
(``pyro_load_from_samples``) or expand index buffers along with the parameters
(``Kernel.expand_batch``). Here the parameters are stacked, and the result is used only
if it agrees with the kernels called one by one.
"""

from __future__ import annotations

__all__ = ["SampledGP"]

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.utils import fantasize as fantasize_flag
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior
from botorch.posteriors.fully_bayesian import MCMC_DIM, GaussianMixturePosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from gpytorch import Module, settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.models.exact_prediction_strategies import (
    DefaultPredictionStrategy,
    prediction_strategy,
)
from linear_operator import to_dense, to_linear_operator
from linear_operator.operators import BlockDiagLinearOperator, LinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn

from botorch_structured.models import checks
from botorch_structured.models.fantasies import gradients_in_data
from botorch_structured.models.fast_inference import (
    FastInference,
    FastSingleTaskGP,
    noise_is_known,
    with_variance_floor,
)
from botorch_structured.models.outcome_scale import least_variance, with_least_variance
from botorch_structured.models.tree.leaf_model import LeafModel

# For models with leaves: with more points inference by leaf is faster than one matrix.
_MANY_ROWS = 300


class SampledGP(GPyTorchModel, FantasizeMixin):
    r"""The mixture of ``S`` GPs that differ in their hyperparameters.

    Choose it when there are few points for the number of hyperparameters: where the
    samples disagree, the variance of the mixture is larger than that of each of them.
    Usually made by ``fit_slice_sampling``. The posterior is the stack of the posteriors
    of the models along dimension -3, a ``GaussianMixturePosterior`` like that of
    BoTorch's fully Bayesian models. Acquisition functions take the mean of their values
    over the samples (of log values: the logarithm of the mean).

    Limits are those of BoTorch's own ensembles: ``qKnowledgeGradient`` averages twice
    and raises an error for a batch of candidates, max-value entropy search refuses
    batched models. ``draw_matheron_paths`` draws from one of ``models`` only.

    The posteriors of all samples of a plain GP (tree-structured ones up to 300 points)
    are computed as one batch, at about the cost of one posterior by GPyTorch; those of
    other models, and those with observation noise, one after the other. As in GPyTorch,
    hyperparameters that are changed by hand take effect with the next ``train()``.

    Args:
        models: ``S`` BoTorch GPs of one class, with the same data and transforms and
            hyperparameters of their own, already set. They are held, not copied.
        chains: Any object, such as the diagnostics of a sampler.

    Attributes:
        chains: The argument ``chains``.

    Raises:
        ValueError: No models, models of different classes, or on data of different
            shapes.
        UnsupportedError: An outcome transform under which a Gaussian does not stay one.

    Example:
        >>> model = SampledGP([with_hyperparameters(sample) for sample in samples])
        >>> acqf = LogExpectedImprovement(model, best_f=train_Y.max())
    """

    _is_ensemble = True
    _is_fully_bayesian = True

    # the data of all models, and their cached factors
    _predictor: tuple[list[Tensor], FoldedPredictor | None] | None = None

    def __init__(self, models: Sequence[GPyTorchModel], chains: Any = None) -> None:
        models = list(models)
        _check_models(models)
        super().__init__()
        # not called "models": ModelList.load_state_dict drops that from every key
        self.samples = nn.ModuleList(models)
        self.chains = chains
        first = self.models[0]
        with_task = getattr(first, "_task_feature", None) is not None
        self._columns = None if with_task else checks.columns_of(first)
        self.eval()  # there is nothing to be fitted

    # -- what BoTorch reads from a model ------------------------------------------

    @property
    def models(self) -> Sequence[GPyTorchModel]:
        """The ``S`` GPs, a ``ModuleList``."""
        return cast("Sequence[GPyTorchModel]", self.samples)

    @property
    def num_samples(self) -> int:
        """The number S of samples of the hyperparameters."""
        return len(self.models)

    @property
    def num_outputs(self) -> int:
        """The number of outputs."""
        return self.models[0].num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """That of the models and ``S``, as BoTorch's fully Bayesian models have it."""
        return torch.Size([*self.models[0].batch_shape, self.num_samples])

    @property
    def train_inputs(self) -> tuple[Tensor, ...]:
        """Those of all samples, ``batch_shape x S x [m] x n x d``.

        Transformed in evaluation mode, as in BoTorch.
        """
        inputs = zip(*(model.train_inputs for model in self.models), strict=True)
        return tuple(self._stack_data(parts) for parts in inputs)

    @property
    def train_targets(self) -> Tensor:
        """On the transformed scale, ``batch_shape x S x [m] x n``."""
        return self._stack_data([model.train_targets for model in self.models])

    def _stack_data(self, parts: Sequence[Tensor]) -> Tensor:
        # BoTorch keeps data output by output, behind the batch dimensions
        return torch.stack(list(parts), dim=len(self.models[0].batch_shape))

    @property
    def likelihood(self) -> Likelihood:
        """The likelihoods of all samples as one with batch shape ``S``, a copy."""
        parts = [model.likelihood for model in self.models]
        stacked = stack_modules(parts)
        if stacked is None:
            raise UnsupportedError(
                "likelihood: expected likelihoods of the samples that differ in their "
                "parameters only, got other ones; each is that of its model."
            )
        if isinstance(stacked, FixedNoiseGaussianLikelihood):
            noise = self._stack_data([part.noise_covar.noise for part in parts])
            stacked.noise_covar.noise = noise
        return stacked

    @property
    def outcome_transform(self) -> Any:
        """The outcome transform, if the models have one."""
        return self.models[0].outcome_transform

    @property
    def input_transform(self) -> Any:
        """The input transform of the first sample, if the models have one."""
        return self.models[0].input_transform

    @property
    def _has_transformed_inputs(self) -> bool:
        return self.models[0]._has_transformed_inputs

    @property
    def _original_train_inputs(self) -> Tensor | None:
        parts = [model._original_train_inputs for model in self.models]
        return None if parts[0] is None else torch.stack(parts, dim=MCMC_DIM)

    @property
    def _supports_cache_root(self) -> bool:
        return all(getattr(m, "_supports_cache_root", True) for m in self.models)

    def _set_transformed_inputs(self) -> None:
        """Nothing: each model transforms its own inputs."""

    def _revert_to_original_inputs(self) -> None:
        """Nothing: each model transforms its own inputs."""

    # -- caches and state ---------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # caches are fast to rebuild and large to store
        return {**self.__dict__, "_predictor": None}

    def train(self, mode: bool = True, reset: bool = False) -> SampledGP:
        """Training mode of all models: drops caches; there is nothing to be fitted.

        Args:
            mode: Whether to train or to evaluate.
            reset: BoTorch's fully Bayesian models drop their samples if True. Here the
                samples are arguments of the constructor: only False is possible.
        """
        if reset:
            raise UnsupportedError("reset: expected False, samples are not refitted.")
        if mode:
            self._predictor = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SampledGP:
        # BoTorch's analytic acquisitions call ``.to(X)`` on each evaluation. For S
        # models of some thirty tensors that costs more than the prediction, so a
        # conversion that leaves the first model alone is not carried out.
        first = self.models[0]
        data = (*first.train_inputs, first.train_targets)
        for t in (*data, *first.parameters(), *first.buffers()):
            # ``share_memory`` works in place
            if fn(t) is not t or (t.is_shared() and not t.is_cuda):
                self._predictor = None
                return super()._apply(fn, recurse)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._predictor = None
        super()._load_from_state_dict(*args, **kwargs)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        keep_transforms: bool = True,
        assign: bool = False,
    ) -> None:
        """Load the hyperparameters of all samples, see ``GPyTorchModel``.

        Raises:
            ValueError: If ``strict`` and the state is one of another number of samples.
        """
        prefixes = [f"samples.{s}." for s in range(self.num_samples)]
        states = [
            {k.removeprefix(p): v for k, v in state_dict.items() if k.startswith(p)}
            for p in prefixes
        ]
        others = len(state_dict) - sum(map(len, states))
        if strict and (others or not all(states)):
            raise ValueError(
                f"state_dict: expected the state of {self.num_samples} samples, keys "
                f"{prefixes[0]}* to {prefixes[-1]}*, got "
                f"{sum(map(bool, states))} of them and {others} other keys."
            )
        self._predictor = None
        for model, state in zip(self.models, states, strict=True):
            model.load_state_dict(
                state, strict=strict, keep_transforms=keep_transforms, assign=assign
            )

    # -- predictions --------------------------------------------------------------

    def _folded(self) -> FoldedPredictor | None:
        """The cached factors, or None where predictions must be made one by one."""
        if settings.prior_mode.on() or settings.detach_test_caches.off():
            return None
        # new tensors stand for new data, a new dtype or a new device
        data = [t for m in self.models for t in (*m.train_inputs, m.train_targets)]
        cache = self._predictor
        if (
            cache is None
            or len(cache[0]) != len(data)
            or any(a is not b for a, b in zip(cache[0], data, strict=True))
        ):
            first = self.models[0]
            by_leaf = isinstance(first, LeafModel) and first.solver is not None
            by_leaf = by_leaf and len(first.train_targets) > _MANY_ROWS
            predictor = None if by_leaf else FoldedPredictor.of(self.models)
            self._predictor = cache = (data, predictor)
        return cache[1]

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The priors of all samples, as of a GPyTorch model with batch shape ``S``.

        Args:
            X: ``n x d``, or ``batch_shape x S x n x d``.
        """
        return self._each(X, lambda model, x: model.forward(x))

    def __call__(self, X: Tensor) -> MultivariateNormal:
        """Posteriors of all samples on the transformed scale (training: priors).

        As of a GPyTorch model with batch shape ``S``, see ``forward``.
        """
        return self._each(X, lambda model, x: model(x))

    def _each(
        self, X: Tensor, call: Callable[[GPyTorchModel, Tensor], MultivariateNormal]
    ) -> MultivariateNormal:
        first = self.models[0]
        if first.train_targets.ndim > len(first.batch_shape) + 1:
            raise UnsupportedError(
                "models: expected one output, or outputs that are one GP, got "
                f"{self.num_outputs} independent ones: use posterior."
            )
        parts = zip(self.models, self._samples_of("X", X, X.ndim <= 2), strict=True)
        return stack_distributions([call(model, x) for model, x in parts])

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GaussianMixturePosterior:
        r"""The posteriors of all samples at the points ``X``.

        Args:
            X: ``batch_shape x q x d``.
            output_indices: Outputs to predict; all if omitted.
            observation_noise: Whether to add the noise of each sample, or noise
                variances to add (on the scale of transformed outcomes):
                ``batch_shape x q x m``, or with a sample dimension
                ``batch_shape x S x q x m``.
            posterior_transform: Applied to the posterior of every sample.

        Returns:
            A posterior with mean and variance ``batch_shape x S x q x m``; its
            ``mixture_mean`` and ``mixture_variance`` are those of the average.

        Raises:
            ValueError: Noise without a value for each sample.
            UnsupportedError: A transform whose result is not Gaussian.
        """
        if self.training or any(model.training for model in self.models):
            self._predictor = None  # hyperparameters may have changed
            self.eval()
        dtype = self.models[0].train_targets.dtype
        if self._columns is None or fantasize_flag.on():
            checks.check_finite_points(X, dtype)
        else:
            checks.check_points(X, self._columns, dtype)
        noises: Sequence[Any] = [observation_noise] * self.num_samples
        if isinstance(observation_noise, Tensor):
            shared = observation_noise.ndim <= X.ndim
            noises = self._samples_of("observation_noise", observation_noise, shared)
        with gradients_in_data(*self.models), gpt_posterior_settings():
            plain = observation_noise is False and X.shape[-2] > 0
            folded = self._folded() if plain else None
            if folded is not None:
                posterior = folded(X)
            else:
                posterior = self._one_by_one(X, output_indices, noises)
        if posterior_transform is not None:
            posterior = posterior_transform(
                posterior=posterior, X=X.unsqueeze(MCMC_DIM)
            )
            if not isinstance(posterior, GPyTorchPosterior):
                raise UnsupportedError(
                    "posterior_transform: expected one whose result is a "
                    f"GPyTorchPosterior, got a {type(posterior).__name__}."
                )
        else:
            transform = getattr(self.models[0], "outcome_transform", None)
            least = least_variance(transform, X, self.num_outputs, output_indices)
            if torch.is_tensor(least):
                least = least.unsqueeze(MCMC_DIM)
            posterior = with_least_variance(posterior, least)
        return GaussianMixturePosterior(distribution=posterior.distribution)

    def _one_by_one(
        self, X: Tensor, output_indices: list[int] | None, noises: Sequence[Any]
    ) -> GPyTorchPosterior:
        """Posteriors of the samples one after the other, for any model."""
        kwargs = {} if output_indices is None else {"output_indices": output_indices}
        distributions = []
        for model, noise in zip(self.models, noises, strict=True):
            posterior = model.posterior(X, observation_noise=noise, **kwargs)
            if not isinstance(posterior, GPyTorchPosterior):
                raise UnsupportedError(
                    "models: expected Gaussian posteriors, got a "
                    f"{type(posterior).__name__} from {type(model).__name__}."
                )
            distributions.append(posterior.distribution)
        return GPyTorchPosterior(stack_distributions(distributions))

    def _samples_of(self, name: str, values: Tensor, shared: bool) -> list[Tensor]:
        """``batch_shape x S x n x m`` values sample by sample, or shared ones."""
        if shared:
            return [values] * self.num_samples
        if values.ndim < 3 or values.shape[MCMC_DIM] != self.num_samples:
            raise ValueError(
                f"{name}: expected {self.num_samples} samples in dimension {MCMC_DIM}, "
                f"got shape {tuple(values.shape)}."
            )
        return list(values.unbind(MCMC_DIM))

    @property
    def path_posterior(self) -> Callable[[Tensor], GaussianMixturePosterior]:
        """The posterior of the path part, if the models have one."""
        parts = [model.path_posterior for model in self.models]

        def path_posterior(X: Tensor) -> GaussianMixturePosterior:
            return GaussianMixturePosterior(
                stack_distributions([p(X).distribution for p in parts])
            )

        return path_posterior

    # -- other models made of this one --------------------------------------------

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> SampledGP:
        r"""Every sample with more data, hyperparameters as they are.

        Args:
            X: ``n' x d`` or ``batch_shape x n' x d`` for all samples, or, with as many
                dimensions as ``Y``, ``batch_shape x S x n' x d``.
            Y: ``n' x m`` for all samples, else ``batch_shape x S x n' x m``, which may
                have one more leading dimension (of fantasies) than ``X``.
            noise: Noise variances, of the shape of ``Y``.
            kwargs: Passed to each model.

        Raises:
            ValueError: Batches without a sample dimension.
        """
        self.eval()
        checks.check_tensor("X", X)
        checks.check_tensor("Y", Y)
        if noise is not None:
            checks.check_tensor("noise", noise)
        Ys = self._samples_of("Y", Y, Y.ndim <= 2)
        Xs = self._samples_of("X", X, X.ndim <= 2 or X.ndim != Y.ndim)
        noises: list[dict[str, Any]] = [{}] * self.num_samples
        if noise is not None:
            parts = self._samples_of("noise", noise, noise.ndim <= 2)
            noises = [{"noise": part} for part in parts]
        models = []
        for model, x, y, extra in zip(self.models, Xs, Ys, noises, strict=True):
            if model.prediction_strategy is None:
                # GPyTorch conditions its caches, which fast predictions do not fill
                with gpt_posterior_settings():
                    model(*(t[..., :1, :] for t in model.train_inputs))
            with gradients_in_data(model, new=x):
                one = model.condition_on_observations(x, y, **extra, **kwargs)
            models.append(one)
        return self._with(models)

    def fantasize(
        self,
        X: Tensor,
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        **kwargs: Any,
    ) -> SampledGP:
        r"""Condition every sample on outcomes drawn from its own posterior.

        Args:
            X: ``batch_shape x n' x d``.
            sampler: Draws the outcomes.
            observation_noise: As in ``posterior``. Default: the noise of the samples,
                or the mean of ``train_Yvar`` if that was given.
            kwargs: Passed to ``condition_on_observations``.
        """
        likelihood = self.models[0].likelihood
        if observation_noise is not None:
            noises = self._samples_of(
                "observation_noise", observation_noise, observation_noise.ndim <= X.ndim
            )
            observation_noise = torch.stack(noises, dim=MCMC_DIM)
        elif isinstance(likelihood, FixedNoiseGaussianLikelihood):
            noise = self.likelihood.noise
            noise = noise.unsqueeze(-2) if self.num_outputs == 1 else noise
            observation_noise = noise.mean(dim=-1, keepdim=True).mT
        if observation_noise is not None:
            batch = (*X.shape[:-2], self.num_samples)
            observation_noise = observation_noise.expand(
                *batch, *observation_noise.shape[-2:]
            )
        return super().fantasize(
            X, sampler, observation_noise=observation_noise, **kwargs
        )

    def subset_output(self, idcs: list[int]) -> SampledGP:
        """The same samples of a model of some of the outputs."""
        return self._with([model.subset_output(idcs) for model in self.models])

    def _with(self, models: Sequence[GPyTorchModel]) -> SampledGP:
        new = type(self)(models, self.chains)
        # an input transform may have made the inputs that fantasies were added to
        new._columns = self._columns
        return new


def _check_models(models: list[GPyTorchModel]) -> None:
    first = models[0] if models else None
    if not isinstance(first, GPyTorchModel) or len({type(m) for m in models}) > 1:
        raise ValueError(
            "models: expected GPyTorchModels of one class, at least one, got "
            f"{[type(m).__name__ for m in models]}."
        )
    shapes = {
        (tuple(m.train_targets.shape), *(tuple(t.shape) for t in m.train_inputs))
        for m in models
    }
    if len(shapes) > 1:
        raise ValueError(
            f"models: expected the same data in all, got the shapes {sorted(shapes)}."
        )
    transform = getattr(first, "outcome_transform", None)
    if transform is not None and not transform._is_linear:
        raise UnsupportedError(
            "models: expected an outcome transform that keeps a Gaussian Gaussian, "
            f"got {type(transform).__name__}."
        )


@DrawMatheronPaths.register(SampledGP)
def _no_paths(model: SampledGP, **kwargs: Any) -> Any:
    """BoTorch's hook for drawing functions, which takes one GP.

    Raises:
        UnsupportedError: Always.
    """
    raise UnsupportedError(
        "model: expected one GP to draw whole paths from, got a SampledGP: draw from "
        "one of its samples, draw_matheron_paths(model.models[s], ...)."
    )


def stack_distributions(
    distributions: Sequence[MultivariateNormal],
) -> MultivariateNormal:
    """The distributions of ``S`` models, in BoTorch's order of dimensions for them.

    Args:
        distributions: Over ``batch_shape x q`` or (multitask) ``batch_shape x q x m``.

    Returns:
        One distribution over ``batch_shape x S x q`` or ``batch_shape x S x q x m``.
        Independent outputs stay a block diagonal.
    """
    first = distributions[0]
    means = [d.mean for d in distributions]
    parts = [d.lazy_covariance_matrix for d in distributions]
    covariance: LinearOperator
    if all(isinstance(part, BlockDiagLinearOperator) for part in parts):
        # BoTorch's cached roots and hypervolumes need the block structure
        blocks = [part.base_linear_op.to_dense() for part in parts]
        stacked = to_linear_operator(torch.stack(blocks, dim=MCMC_DIM - 1))
        covariance = BlockDiagLinearOperator(stacked)
    else:
        # a plain tensor would get no jitter when it is factorised for sampling
        dense = [part.to_dense() for part in parts]
        covariance = to_linear_operator(torch.stack(dense, dim=MCMC_DIM))
    if isinstance(first, MultitaskMultivariateNormal):
        return MultitaskMultivariateNormal(
            torch.stack(means, dim=MCMC_DIM), covariance, interleaved=first._interleaved
        )
    return MultivariateNormal(torch.stack(means, dim=MCMC_DIM + 1), covariance)


# -- predictions of all samples at once ------------------------------------------------


def stack_modules(modules: Sequence[Module]) -> Module | None:
    """One module whose parameters are those of ``S`` modules, stacked.

    Args:
        modules: ``S`` modules without a batch shape.

    Returns:
        A module with batch shape ``S`` whose parameters are constants, or None if the
        modules differ in more than the values of their parameters.
    """
    first = modules[0]
    if not all(_alike(first, other) for other in modules[1:]):
        return None
    stacked = deepcopy(first)
    for name, parameter in stacked.named_parameters():
        values = [module.get_parameter(name).detach() for module in modules]
        parameter.data = torch.stack(values)
        parameter.requires_grad_(False)
    for module in stacked.modules():
        # a distribution (each prior is one) has a batch shape that cannot be set
        if isinstance(module, Kernel) or "batch_shape" in vars(module):
            module.batch_shape = torch.Size([len(modules), *module.batch_shape])
    return stacked


def _alike(a: Module, b: Module) -> bool:
    """Whether two modules differ at most in the values of their parameters."""

    def form(module: Module) -> tuple[Any, ...]:
        kinds = [(name, type(child)) for name, child in module.named_modules()]
        return kinds, [
            (name, p.shape, p.dtype) for name, p in module.named_parameters()
        ]

    return form(a) == form(b) and _equal(
        dict(a.named_buffers()), dict(b.named_buffers())
    )


def _equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def _evaluate(module: Module, *points: Tensor, **kwargs: Any) -> Tensor:
    with settings.lazily_evaluate_kernels(False):
        return to_dense(module(*points, **kwargs))


@torch.no_grad()
def stack_if_equal(
    modules: Sequence[Module],
    probes: Sequence[tuple[tuple[Tensor, ...], dict[str, Any]]],
) -> Module | None:
    """``stack_modules``, if that has the values of the modules; a kernel may not.

    Args:
        modules: ``S`` kernels or mean functions.
        probes: Arguments of calls, points ``batch_shape x n x d``.
    """
    stacked = stack_modules(modules)
    for points, kwargs in probes if stacked is not None else ():
        each = [_evaluate(module, *points, **kwargs) for module in modules]
        expected = torch.stack(each, dim=points[0].ndim - 2)
        try:
            values = _evaluate(stacked, *(p.unsqueeze(-3) for p in points), **kwargs)
        except (RuntimeError, ValueError, IndexError):
            return None  # written for parameters without a batch shape
        # tolerance for rounding of distances between close points; wrongly stacked
        # parameters make far larger differences
        room = torch.finfo(values.dtype).eps ** 0.5 * expected.abs().amax()
        if values.shape != expected.shape:
            return None
        if not (values - expected).abs().le(room).all():
            return None
    return stacked


def _can_fold(models: Sequence[GPyTorchModel]) -> bool:
    """Whether these predict as ``SingleTaskGP`` does, but for kernels and means."""
    first = models[0]
    kind = type(first)
    if not (
        isinstance(first, SingleTaskGP)
        and kind.forward is SingleTaskGP.forward
        and kind.posterior in (SingleTaskGP.posterior, FastSingleTaskGP.posterior)
        and kind.__call__ in (SingleTaskGP.__call__, FastInference.__call__)
        and all(_is_plain(model) for model in models)
        and _same(models, "outcome_transform")
    ):
        return False
    # some kernels have their own prediction strategy (inducing points, features)
    inputs = list(first.train_inputs)
    with torch.no_grad():
        strategy = prediction_strategy(
            inputs, first.forward(*inputs), first.train_targets, first.likelihood
        )
    return type(strategy) is DefaultPredictionStrategy


def _is_plain(model: GPyTorchModel) -> bool:
    inputs = model.train_inputs
    targets = model.train_targets
    return (
        noise_is_known(model.likelihood)
        and inputs[0].ndim == 2
        and targets.ndim == 1
        and not (inputs[0].requires_grad or targets.requires_grad)
    )


def _same(models: Sequence[nn.Module], name: str) -> bool:
    """Whether a submodule has the same state in all models, or is missing in all."""
    states = [getattr(model, name, nn.Module()).state_dict() for model in models]
    return all(_equal(states[0], state) for state in states[1:])


class FoldedPredictor:
    """Cached factors of ``S`` GPs, see ``of``.

    Args:
        models: The GPs, in evaluation mode.
        kernel: Theirs as one with batch shape ``S``.
        mean: Likewise.
    """

    def __init__(
        self, models: Sequence[GPyTorchModel], kernel: Module, mean: Module
    ) -> None:
        self.models = list(models)
        self.kernel = partial(_evaluate, kernel)
        self.mean = partial(_evaluate, mean)
        self.shared_inputs = _same(models, "input_transform")
        with torch.no_grad():
            data = torch.stack([model.train_inputs[0] for model in self.models])
            # if the samples share it, as usual, one copy, ``1 x n x d``
            self.data = data[:1] if (data == data[:1]).all() else data
            mean = self.mean(self.data)
            prior = self.kernel(self.data)
            covariance = torch.stack(
                [
                    model.likelihood(
                        MultivariateNormal(mean[s], to_linear_operator(prior[s])),
                        list(model.train_inputs),
                    ).covariance_matrix
                    for s, model in enumerate(self.models)
                ]
            )
            chol = psd_safe_cholesky(covariance)
            eye = torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device)
            inverse = torch.linalg.solve_triangular(
                chol, eye.expand_as(chol), upper=False
            )
            targets = torch.stack([model.train_targets for model in self.models])
            self.inverse_transposed = inverse.mT.contiguous()
            self.half = inverse @ (targets - mean).unsqueeze(-1)

    @classmethod
    def of(cls, models: Sequence[GPyTorchModel]) -> FoldedPredictor | None:
        """That of exact GPs without a batch shape, with one output and Gaussian noise.

        Args:
            models: GPs of one class on the same data, in evaluation mode.

        Returns:
            None if the class does not predict as ``SingleTaskGP`` does, or kernels or
            means have no batch shape.
        """
        if not _can_fold(models):
            return None
        data = models[0].train_inputs[0]
        few = data[:2]
        kernel = stack_if_equal(
            [model.covar_module for model in models],
            [
                ((few, data), {}),
                ((few,), {"diag": True}),
                ((torch.stack([few, few.flip(-2)]),), {}),
            ],
        )
        mean = stack_if_equal([m.mean_module for m in models], [((data,), {})])
        return None if kernel is None or mean is None else cls(models, kernel, mean)

    def __call__(self, X: Tensor) -> GPyTorchPosterior:
        """The posteriors of all models without observation noise, a batch of Gaussians.

        Args:
            X: ``batch_shape x q x d``, not transformed.

        Returns:
            A posterior over ``batch_shape x S x q x 1``.
        """
        used = self.models[:1] if self.shared_inputs else self.models
        points = torch.stack([model.transform_inputs(X) for model in used], dim=-3)
        if points.shape[-1] != self.data.shape[-1]:
            raise ValueError(
                f"X: expected {self.data.shape[-1]} columns (after input transforms), "
                f"got {points.shape[-1]}."
            )
        mean, covariance = self._moments(points)
        # a plain tensor would get no jitter when it is factorised for sampling
        mvn = MultivariateNormal(mean, to_linear_operator(covariance))
        posterior = GPyTorchPosterior(mvn)
        transform = getattr(self.models[0], "outcome_transform", None)
        if transform is not None:
            posterior = transform.untransform_posterior(posterior, X=points)
        return posterior

    def _moments(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """``batch_shape x S x q`` and ``batch_shape x S x q x q``."""
        batch = points.shape[:-3]
        q, d = points.shape[-2:]
        flat = points.movedim(-3, 0).reshape(points.shape[-3], batch.numel() * q, d)
        num_samples, n = self.half.shape[:2]
        # at a time on a CPU what stays in the cache, on a GPU what fits in the memory
        chunk = 1 << 19 if points.device.type == "cpu" else 1 << 25
        means = []
        projected = []
        for part in flat.split(max(64, chunk // (num_samples * n)), dim=-2):
            w = self.kernel(part, self.data) @ self.inverse_transposed
            means.append(self.mean(part) + (w @ self.half).squeeze(-1))
            if q == 1:
                variance = self.kernel(part, diag=True) - w.square().sum(-1)
                projected.append(variance)
            else:
                projected.append(w)
        mean = torch.cat(means, dim=-1).view(num_samples, *batch, q).movedim(0, -2)
        if q == 1:
            variance = torch.cat(projected, dim=-1).view(num_samples, *batch, 1, 1)
            return mean, with_variance_floor(variance.movedim(0, -3))
        w = torch.cat(projected, dim=-2).view(num_samples, *batch, q, n)
        w = w.movedim(0, -3).reshape(-1, q, n)
        prior = self.kernel(points)
        covariance = torch.baddbmm(prior.reshape(-1, q, q), w, w.mT, alpha=-1.0)
        return mean, with_variance_floor(covariance.view(prior.shape))
