"""Likelihoods of the tree models: how small their noise may become, and its priors.

A smooth objective that is computed exactly wants a noise variance of 1e-9 (of
standardised outcomes): BoTorch's floor of 1e-4 ends a search early. An error count is a
step function, whose values repeat *exactly*. Under a floor of 1e-9 a model explains
repeats by a function that is flat and free of noise, and is then sure of everything it
has not seen. So BoTorch's floor and prior are used where more than a quarter of the
outcomes repeat, as they also do after ``ClipTail``.

The papers put priors on standard deviations, of the noise and of amplitudes; GPyTorch
holds variances. A prior that is registered here is over the standard deviation itself:
in MAP fits, and in slice sampling, whose coordinate it becomes.
"""

from __future__ import annotations

__all__ = [
    "default_likelihood",
    "horseshoe_likelihood",
    "register_amplitude_prior",
    "register_noise_std_prior",
    "set_noise_floor",
    "set_noise_prior",
]

import math

import torch
from gpytorch import Module
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.priors import HorseshoePrior, Prior
from torch import Tensor

from botorch_structured.linalg.hyperparameter import LogInterval, log_gaussian_prior

#: Mode, standard deviation of the logarithm, floor; in units of the outcomes' variance.
_EXACT = (1e-6, 3.0, 1e-9)
# BoTorch's own: LogNormal(-4, 1), whose mode in log space is exp(-5), and its floor
_STEPS = (math.exp(-5.0), 1.0, 1e-4)
_MAX_NOISE = 1e1

# An optimum met twice or a symmetric corner repeats a value or two; steps repeat many.
_MANY_REPEATS = 0.25
_FEW_ROWS = 4


def default_likelihood(batch_shape: torch.Size) -> GaussianLikelihood:
    """Homoskedastic noise with a log-normal prior; see ``set_noise_prior``."""
    mode, scale, floor = _EXACT
    return GaussianLikelihood(
        noise_prior=log_gaussian_prior(mode, scale),
        noise_constraint=LogInterval(floor, _MAX_NOISE, initial_value=1e-4),
        batch_shape=batch_shape,
    )


def horseshoe_likelihood(batch_shape: torch.Size) -> GaussianLikelihood:
    """Homoskedastic noise with a horseshoe(1) prior on its standard deviation.

    The prior of Levesque et al. (2017), section V. ``set_noise_floor`` says how small
    the noise may become.
    """
    likelihood = GaussianLikelihood(
        noise_constraint=LogInterval(_EXACT[2], _MAX_NOISE, initial_value=1e-4),
        batch_shape=batch_shape,
    )
    register_noise_std_prior(likelihood.noise_covar, HorseshoePrior(1.0))
    return likelihood


def repeated_share(targets: Tensor) -> float:
    """Largest share of outcomes that another row has exactly, over a batch.

    Args:
        targets: ``batch_shape x n``.
    """
    ordered = targets.sort(dim=-1).values
    equal = ordered[..., 1:] == ordered[..., :-1]
    pad = torch.nn.functional.pad
    repeated = pad(equal, (1, 0)) | pad(equal, (0, 1))
    return float(repeated.double().mean(-1).max())


def set_noise_prior(likelihood: GaussianLikelihood, targets: Tensor) -> None:
    """Fit the prior and the floor of a ``default_likelihood`` to the kind of outcomes.

    Args:
        likelihood: From ``default_likelihood``.
        targets: Transformed outcomes, ``batch_shape x n``.
    """
    mode, scale, _ = set_noise_floor(likelihood, targets)
    prior = log_gaussian_prior(mode, scale).to(targets)
    likelihood.noise_covar.noise_prior.load_state_dict(prior.state_dict())


def set_noise_floor(
    likelihood: GaussianLikelihood, targets: Tensor
) -> tuple[float, float, float]:
    """Fit the floor of the noise, and where it starts, to the kind of outcomes.

    Args:
        likelihood: From this module.
        targets: Transformed outcomes, ``batch_shape x n``.

    Returns:
        Mode, standard deviation of the logarithm and floor for these outcomes.
    """
    steps = targets.shape[-1] >= _FEW_ROWS and repeated_share(targets) > _MANY_REPEATS
    mode, scale, floor = _STEPS if steps else _EXACT
    likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(floor)
    likelihood.initialize(noise=max(mode, floor) if steps else 1e-4)
    return mode, scale, floor


def register_amplitude_prior(kernel: ScaleKernel, prior: Prior) -> None:
    """A prior on sigma_f, the square root of ``outputscale``.

    Args:
        kernel: Whose ``outputscale`` it is.
        prior: Of the standard deviation.
    """
    kernel.register_prior("amplitude_prior", prior, _amplitude, _set_amplitude)


def register_noise_std_prior(noise: HomoskedasticNoise, prior: Prior) -> None:
    """A prior on sigma_n, the square root of ``noise``.

    Args:
        noise: ``likelihood.noise_covar``.
        prior: Of the standard deviation.
    """
    noise.register_prior("noise_std_prior", prior, _noise_std, _set_noise_std)


def _amplitude(module: ScaleKernel) -> Tensor:
    return module.outputscale.sqrt()


def _set_amplitude(module: ScaleKernel, value: Tensor | float) -> None:
    module.outputscale = _inside(module, "raw_outputscale", value)


def _noise_std(module: HomoskedasticNoise) -> Tensor:
    return module.noise.sqrt()


def _set_noise_std(module: HomoskedasticNoise, value: Tensor | float) -> None:
    module.noise = _inside(module, "raw_noise", value)


def _inside(module: Module, name: str, value: Tensor | float) -> Tensor:
    # a prior may be wider than the bounds: a retried fit samples it
    lower, upper = module.constraint_for_parameter_name(name)
    squared = torch.as_tensor(value).to(lower).square()
    return squared.clamp(lower, upper)
