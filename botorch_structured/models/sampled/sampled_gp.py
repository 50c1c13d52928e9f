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

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import BotorchWarning, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.utils import gpt_posterior_settings
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.posteriors.fully_bayesian import MCMC_DIM, GaussianMixturePosterior
from gpytorch import Module, settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.models.exact_prediction_strategies import (
    DefaultPredictionStrategy,
    prediction_strategy,
)
from linear_operator import to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn

from botorch_structured.models import checks
from botorch_structured.models.fast_inference import (
    FastInference,
    FastSingleTaskGP,
    changes_nothing,
    gradients_in_data,
    noise_is_known,
    refuse_paths,
    with_variance_floor,
)
from botorch_structured.models.outcome_scale import least_variance, with_least_variance
from botorch_structured.models.tree.leaf_model import LeafModel

# For models with leaves: with more points inference by leaf is faster than one matrix.
_MANY_ROWS = 300
# From so many joint points on the samples are faster one after the other.
_MANY_POINTS = 1000


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

    Draws at thousands of points factorise one covariance for each sample, so that those
    of 16 samples take 16 times as long as those of one GP; a ``BotorchWarning`` says so
    from 1,000 joint points on. For Thompson sampling draw each candidate from one of
    the samples, ``model.models[s]`` with a random s: that is a draw from the mixture,
    at the price of a single GP.

    The posteriors of all samples of a plain GP (tree-structured ones up to 300 points)
    are computed as one batch, at about the cost of one posterior by GPyTorch; those of
    other models, with observation noise or 1,000 joint points one after the other. As
    in GPyTorch, hyperparameters that are changed by hand take effect with the next
    ``train()``.

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
    samples: Any

    # the data of all models, and their cached factors
    _predictor: tuple[list[Tensor], FoldedPredictor | None] | None = None

    def __init__(
        self,
        models: Sequence[GPyTorchModel],
        chains: Any = None,
    ) -> None:
        models = list(models)
        _check_models(models)
        super().__init__()
        # not called "models": ModelList.load_state_dict drops that from every key
        self.samples = nn.ModuleList(models)
        self.chains = chains
        self._columns = checks.columns_of(self.models[0])
        self.eval()  # there is nothing to be fitted

    # -- what BoTorch reads from a model ------------------------------------------

    @property
    def models(self) -> Sequence[GPyTorchModel]:
        """The ``S`` GPs, a ``ModuleList``."""
        return self.samples

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
        return (self._stack_data([model.train_inputs[0] for model in self.models]),)

    @property
    def train_targets(self) -> Tensor:
        """On the transformed scale, ``batch_shape x S x [m] x n``."""
        return self._stack_data([model.train_targets for model in self.models])

    def _stack_data(self, parts: list[Tensor]) -> Tensor:
        # BoTorch keeps data output by output, behind the batch dimensions
        return torch.stack(parts, dim=len(self.models[0].batch_shape))

    @property
    def likelihood(self) -> Likelihood:
        """The likelihoods of all samples as one with batch shape ``S``, a copy."""
        parts = [model.likelihood for model in self.models]
        stacked = stack_modules(parts)
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
        return getattr(self.models[0], "_supports_cache_root", True)

    def _set_transformed_inputs(self) -> None:
        """Nothing: each model transforms its own inputs."""

    def _revert_to_original_inputs(self) -> None:
        """Nothing: each model transforms its own inputs."""

    # -- caches and state ---------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # caches are fast to rebuild and large to store
        return {**self.__dict__, "_predictor": None}

    def train(
        self,
        mode: bool = True,
        reset: bool = False,
    ) -> SampledGP:
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

    def _apply(
        self,
        fn: Callable[[Tensor], Tensor],
        recurse: bool = True,
    ) -> SampledGP:
        # BoTorch's analytic acquisitions call ``.to(X)`` on each evaluation. For S
        # models of some thirty tensors that costs more than the prediction, so a
        # conversion that leaves the first model alone is not carried out.
        if changes_nothing(self.models[0], fn):
            return self
        self._predictor = None
        return super()._apply(fn, recurse)

    def share_memory(self) -> SampledGP:
        """Move all samples to shared memory, which converts nothing."""
        self.samples.share_memory()
        return self

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        **kwargs: Any,
    ) -> None:
        """Load the hyperparameters of all samples, see ``GPyTorchModel``.

        Raises:
            ValueError: If ``strict`` and the state is one of another number of samples.
        """
        self._predictor = None
        expected = len(self.state_dict())
        if strict and len(state_dict) != expected:
            raise ValueError(
                f"state_dict: expected the {expected} entries of {self.num_samples} "
                f"samples, got {len(state_dict)}."
            )
        for s, model in enumerate(self.models):
            prefix = f"samples.{s}."
            state = {
                key.removeprefix(prefix): value
                for key, value in state_dict.items()
                if key.startswith(prefix)
            }
            model.load_state_dict(state, strict=strict, **kwargs)

    # -- predictions --------------------------------------------------------------

    def _folded(self) -> FoldedPredictor | None:
        """The cached factors, or None where predictions must be made one by one."""
        if settings.prior_mode.on() or settings.detach_test_caches.off():
            return None
        # new tensors stand for new data, a new dtype or a new device
        data = [t for m in self.models for t in (*m.train_inputs, m.train_targets)]
        if self._predictor is not None:
            pairs = zip(data, self._predictor[0], strict=True)
            if all(now is before for now, before in pairs):
                return self._predictor[1]
        first = self.models[0]
        predictor = None
        is_large = len(first.train_targets) > _MANY_ROWS
        if not (is_large and isinstance(first, LeafModel) and first.solver is not None):
            predictor = FoldedPredictor.of(self.models)
        self._predictor = (data, predictor)
        return predictor

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
        self,
        X: Tensor,
        call: Callable[[GPyTorchModel, Tensor], MultivariateNormal],
    ) -> MultivariateNormal:
        parts = zip(
            self.models,
            self._samples_of("X", X),
            strict=True,
        )
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
                variances to add (on the scale of transformed outcomes): ``q x m``, or
                with a sample dimension ``batch_shape x S x q x m``.
            posterior_transform: Applied to the posterior of every sample.

        Returns:
            A posterior with mean and variance ``batch_shape x S x q x m``; its
            ``mixture_mean`` and ``mixture_variance`` are those of the average.

        Raises:
            ValueError: Noise without a value for each sample.
            UnsupportedError: A transform whose result is not Gaussian.
        """
        if any(model.training for model in self.models):
            self._predictor = None  # hyperparameters may have changed
            self.eval()
        dtype = self.models[0].train_targets.dtype
        checks.check_points(X, self._columns, dtype)
        posterior: Any = None
        points = X.shape[-2]
        if points >= _MANY_POINTS:
            warnings.warn(
                f"X: {points} joint points have {self.num_samples} covariance matrices "
                "of that size. For means and variances predict X.unsqueeze(-2), for "
                "Thompson sampling draw each candidate from one of `model.models`.",
                BotorchWarning,
                stacklevel=2,
            )
        with gradients_in_data(*self.models), gpt_posterior_settings():
            if observation_noise is False and 0 < points < _MANY_POINTS:
                folded = self._folded()
                posterior = folded and folded(X)
            if posterior is None:
                posterior = self._one_by_one(X, output_indices, observation_noise)
        if posterior_transform is None:
            transform = getattr(
                self.models[0],
                "outcome_transform",
                None,
            )
            least = least_variance(
                transform,
                X,
                self.num_outputs,
                output_indices,
            )
            if torch.is_tensor(least):
                least = least.unsqueeze(MCMC_DIM)
            posterior = with_least_variance(posterior, least)
        else:
            posterior = posterior_transform(
                posterior=posterior, X=X.unsqueeze(MCMC_DIM)
            )
        return GaussianMixturePosterior(_normal_of(posterior, "posterior_transform"))

    def _one_by_one(
        self,
        X: Tensor,
        output_indices: list[int] | None,
        observation_noise: bool | Tensor,
    ) -> GPyTorchPosterior:
        """Posteriors of the samples one after the other, for any model."""
        noises = self._samples_of("observation_noise", observation_noise)
        posteriors = [
            model.posterior(
                X,
                output_indices,
                observation_noise=noise,
            )
            for model, noise in zip(self.models, noises, strict=True)
        ]
        normals = [_normal_of(posterior, "models") for posterior in posteriors]
        return GPyTorchPosterior(stack_distributions(normals))

    def _samples_of(
        self,
        name: str,
        values: Any,
        shared: int = 2,
    ) -> list[Any]:
        """``batch_shape x S x n x m`` values sample by sample, or shared ones.

        Args:
            name: The argument.
            values: The values, or what is None, or a flag, for all samples.
            shared: The most dimensions of values that are shared.
        """
        if values is None or isinstance(values, bool):
            return [values] * self.num_samples
        checks.check_tensor(name, values)
        if values.ndim <= shared:
            return [values] * self.num_samples
        if values.shape[MCMC_DIM] != self.num_samples:
            raise ValueError(
                f"{name}: expected {self.num_samples} samples in dimension {MCMC_DIM}, "
                f"got shape {tuple(values.shape)}."
            )
        return list(values.unbind(MCMC_DIM))

    @property
    def path_posterior(self) -> Callable[[Tensor], GaussianMixturePosterior]:
        """The posterior of the path part, if the models have one."""
        parts = [model.path_posterior for model in self.models]
        return lambda X: GaussianMixturePosterior(
            stack_distributions([part(X).distribution for part in parts])
        )

    # -- other models made of this one --------------------------------------------

    def condition_on_observations(
        self,
        X: Tensor,
        Y: Tensor,
        noise: Tensor | None = None,
        **kwargs: Any,
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
        outcomes = self._samples_of("Y", Y)
        inputs = self._samples_of(
            "X",
            X,
            2 if X.ndim == Y.ndim else X.ndim,
        )
        noises = self._samples_of("noise", noise)
        models = []
        for model, x, y, variances in zip(
            self.models,
            inputs,
            outcomes,
            noises,
            strict=True,
        ):
            if model.prediction_strategy is None:
                # GPyTorch conditions its caches, which fast predictions do not fill
                with gpt_posterior_settings():
                    model(*(t[..., :1, :] for t in model.train_inputs))
            extra = kwargs if variances is None else {"noise": variances, **kwargs}
            with gradients_in_data(model, new=x):
                models.append(model.condition_on_observations(x, y, **extra))
        return self._with(models)

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
    shapes = {tuple(model.train_inputs[0].shape) for model in models}
    if len(shapes) > 1:
        raise ValueError(
            f"models: expected the same data in all, got the shapes {sorted(shapes)}."
        )
    if first.train_targets.ndim > len(first.batch_shape) + 1:
        raise UnsupportedError(
            "models: expected one output, or outputs that are one GP, got "
            f"{first.num_outputs} independent ones: use a ModelListGP of SampledGPs."
        )
    transform = getattr(first, "outcome_transform", None)
    if transform is not None and not transform._is_linear:
        raise UnsupportedError(
            "models: expected an outcome transform that keeps a Gaussian Gaussian, "
            f"got {type(transform).__name__}."
        )


refuse_paths(SampledGP, "a SampledGP; one of model.models[s] is")


def _normal_of(posterior: Posterior, name: str) -> MultivariateNormal:
    """The distribution of a posterior, which has to be Gaussian."""
    if not isinstance(posterior, GPyTorchPosterior):
        raise UnsupportedError(
            f"{name}: expected Gaussian posteriors, got a {type(posterior).__name__}."
        )
    return posterior.distribution


def stack_distributions(
    distributions: Sequence[MultivariateNormal],
) -> MultivariateNormal:
    """The distributions of ``S`` models, in BoTorch's order of dimensions for them.

    Args:
        distributions: Over ``batch_shape x q`` or (multitask) ``batch_shape x q x m``.

    Returns:
        One distribution over ``batch_shape x S x q`` or ``batch_shape x S x q x m``.
    """
    first = distributions[0]
    means = [d.mean for d in distributions]
    parts = [d.lazy_covariance_matrix for d in distributions]
    # a plain tensor would get no jitter when it is factorised for sampling
    dense = torch.stack([part.to_dense() for part in parts], dim=MCMC_DIM)
    covariance = to_linear_operator(dense)
    if isinstance(first, MultitaskMultivariateNormal):
        return MultitaskMultivariateNormal(
            torch.stack(means, dim=MCMC_DIM), covariance, interleaved=first._interleaved
        )
    return MultivariateNormal(torch.stack(means, dim=MCMC_DIM + 1), covariance)


# -- predictions of all samples at once ------------------------------------------------


def stack_modules(modules: Sequence[Module]) -> Module:
    """One module whose parameters are those of ``S`` modules, stacked.

    Args:
        modules: ``S`` modules without a batch shape, of one form.

    Returns:
        A module with batch shape ``S`` whose parameters are constants.
    """
    stacked = deepcopy(modules[0])
    for name, parameter in stacked.named_parameters():
        values = [module.get_parameter(name).detach() for module in modules]
        parameter.data = torch.stack(values)
        parameter.requires_grad_(False)
    for module in stacked.modules():
        # a distribution (each prior is one) has a batch shape that cannot be set
        if isinstance(module, Kernel) or "batch_shape" in vars(module):
            module.batch_shape = torch.Size([len(modules), *module.batch_shape])
    return stacked


def _same(models: Sequence[nn.Module], name: str) -> bool:
    """Whether a submodule has the same state in all models, or is missing in all."""
    first, *others = (getattr(m, name, nn.Module()).state_dict() for m in models)
    return all(
        first.keys() == other.keys()
        and all(torch.equal(value, other[key]) for key, value in first.items())
        for other in others
    )


def _evaluate(
    module: Module,
    *points: Tensor,
    **kwargs: Any,
) -> Tensor:
    with settings.lazily_evaluate_kernels(False):
        return to_dense(module(*points, **kwargs))


class FoldedPredictor:
    """Cached factors of ``S`` GPs, see ``of``.

    Args:
        models: The GPs, in evaluation mode.
        kernel: Theirs as one with batch shape ``S``.
        mean: Likewise.

    Raises:
        RuntimeError: If the kernel, the mean or predictions are others than those of
            the models; also by modules that are not written for batches.
    """

    @torch.no_grad()
    def __init__(
        self,
        models: Sequence[GPyTorchModel],
        kernel: Module,
        mean: Module,
    ) -> None:
        self.models = list(models)
        self.kernel = partial(_evaluate, kernel)
        self.mean = partial(_evaluate, mean)
        self.shared_inputs = _same(models, "input_transform")
        first = self.models[0]
        self.data = torch.stack([model.train_inputs[0] for model in self.models])
        priors = [model.forward(*model.train_inputs) for model in self.models]
        # some kernels have their own prediction strategy (inducing points, features)
        strategy = prediction_strategy(
            list(first.train_inputs),
            priors[0],
            first.train_targets,
            first.likelihood,
        )
        mean = self.mean(self.data)
        covariance = self.kernel(self.data)
        few = self.data[:, :2]
        batch = torch.stack([few, few.flip(-2)])
        corner = covariance[:, :2, :2]
        _check_equal(mean, torch.stack([prior.mean for prior in priors]))
        expected = torch.stack([prior.covariance_matrix for prior in priors])
        _check_equal(covariance, expected)
        _check_equal(self.kernel(few, diag=True), corner.diagonal(dim1=-1, dim2=-2))
        _check_equal(self.kernel(few, self.data), covariance[:, :2])
        _check_equal(self.kernel(batch), torch.stack([corner, corner.flip(-1, -2)]))
        if type(strategy) is not DefaultPredictionStrategy:
            raise RuntimeError("Another kind of prediction.")
        targets = torch.stack([model.train_targets for model in self.models])
        noises = [model.likelihood.noise for model in self.models]
        noise = torch.stack([noise.expand(targets.shape[-1]) for noise in noises])
        chol = psd_safe_cholesky(covariance + noise.diag_embed())
        eye = torch.eye(chol.shape[-1]).to(chol).expand_as(chol)
        inverse = torch.linalg.solve_triangular(
            chol,
            eye,
            upper=False,
        )
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
        first = models[0]
        kind = type(first)
        data = [t for m in models for t in (*m.train_inputs, m.train_targets)]
        if not (
            issubclass(kind, SingleTaskGP)
            and kind.posterior in (SingleTaskGP.posterior, FastSingleTaskGP.posterior)
            and kind.__call__ in (SingleTaskGP.__call__, FastInference.__call__)
            and noise_is_known(first.likelihood)
            and first.train_inputs[0].ndim == 2
            and not any(t.requires_grad for t in data)
            and _same(models, "outcome_transform")
        ):
            return None
        try:
            kernel = stack_modules([model.covar_module for model in models])
            mean = stack_modules([model.mean_module for model in models])
            return cls(models, kernel, mean)
        except (RuntimeError, ValueError, IndexError, AttributeError):
            return None

    def __call__(self, X: Tensor) -> GPyTorchPosterior:
        """The posteriors of all models without observation noise, a batch of Gaussians.

        Args:
            X: ``batch_shape x q x d``, not transformed.

        Returns:
            A posterior over ``batch_shape x S x q x 1``.
        """
        used = self.models[:1] if self.shared_inputs else self.models
        points = torch.stack([model.transform_inputs(X) for model in used], dim=-3)
        *batch, _, q, _ = points.shape
        num_samples, n, _ = self.half.shape
        # at a time on a CPU what stays in the cache, on a GPU what fits in the memory
        chunk = 1 << 19 if points.device.type == "cpu" else 1 << 25
        flat = points.reshape(-1, *points.shape[-3:])
        pieces = flat.split(max(1, chunk // (num_samples * n * q)))
        means, covariances = zip(*map(self._moments, pieces), strict=True)
        mean = torch.cat(means).view(*batch, num_samples, q)
        covariance = torch.cat(covariances).view(
            *batch,
            num_samples,
            q,
            q,
        )
        # a plain tensor would get no jitter when it is factorised for sampling
        operator = to_linear_operator(with_variance_floor(covariance))
        posterior = GPyTorchPosterior(MultivariateNormal(mean, operator))
        transform = getattr(self.models[0], "outcome_transform", None)
        if transform is not None:
            posterior = transform.untransform_posterior(posterior, X=points)
        return posterior

    def _moments(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """``b x S x q`` and ``b x S x q x q``, at ``b x S x q x d`` points.

        Where the samples share their inputs, ``b x 1 x q x d``.
        """
        b, _, q, _ = points.shape
        rows = points.movedim(1, 0).flatten(1, 2)
        w = self.kernel(rows, self.data) @ self.inverse_transposed
        mean = self.mean(rows) + (w @ self.half).squeeze(-1)
        if q == 1:
            variance = self.kernel(rows, diag=True) - w.square().sum(-1)
            covariance = variance.mT[..., None, None]
        else:
            w = w.unflatten(1, (b, q)).movedim(1, 0)
            covariance = self.kernel(points) - w @ w.mT
        return mean.unflatten(1, (b, q)).movedim(1, 0), covariance


def _check_equal(values: Tensor, expected: Tensor) -> None:
    # tolerance for rounding of distances between close points; wrongly stacked
    # parameters make far larger differences
    room = torch.finfo(values.dtype).eps ** 0.5 * expected.abs().amax()
    if values.shape != expected.shape or not (values - expected).abs().le(room).all():
        raise RuntimeError("Other numbers than those of the models one by one.")
