"""Priors on standard deviations where GPyTorch holds variances.

The papers put priors on amplitudes and on noise standard deviations; GPyTorch's
parameters are their squares. A prior registered with these closures is over the
standard deviation itself: for MAP, and for samplers, whose coordinate it becomes.
"""

from __future__ import annotations

__all__ = ["register_amplitude_prior", "register_noise_std_prior"]

import torch
from gpytorch import Module
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.priors import Prior
from torch import Tensor


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
