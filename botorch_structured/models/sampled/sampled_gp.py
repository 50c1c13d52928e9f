r"""A GP averaged over samples of its hyperparameters.

Which one when: ``fit_gpytorch_mll`` gives the most probable hyperparameters; with few
points many others are about as probable. ``SampledGP`` holds several samples of their
posterior, drawn by ``fit_slice_sampling``, and every BoTorch acquisition function
averages over them. BoTorch's own fully Bayesian models
(``SaasFullyBayesianSingleTaskGP``) have a fixed kernel and need JAX; this one takes any
BoTorch GP.
"""

from __future__ import annotations

__all__ = ["SampledGP"]

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import UnsupportedError
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.utils import fantasize as fantasize_flag
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior
from botorch.posteriors.fully_bayesian import MCMC_DIM, GaussianMixturePosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from linear_operator import to_linear_operator
from linear_operator.operators import BlockDiagLinearOperator, LinearOperator
from torch import Tensor, nn

from botorch_structured.models import checks
from botorch_structured.models.fantasies import gradients_in_data
from botorch_structured.models.outcome_scale import least_variance, with_least_variance
from botorch_structured.models.sampled.folded_prediction import (
    FoldedPredictor,
    stack_modules,
)
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
        given = {"X": X, "Y": Y} | ({} if noise is None else {"noise": noise})
        for name, values in given.items():
            checks.check_tensor(name, values)
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
        return type(self)(models, self.chains)

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
        return type(self)([m.subset_output(idcs) for m in self.models], self.chains)


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
    first, means = distributions[0], [d.mean for d in distributions]
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
