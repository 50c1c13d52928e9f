"""Likelihoods of the tree models: the smallest noise variance, and priors of the noise.

Noise variances are those of standardised outcomes. For a smooth objective without noise
a floor of 1e-9 is needed: with BoTorch's 1e-4 a search stops improving early. An error
count is a step function, whose values repeat *exactly*. Under a floor of 1e-9 a model
explains repeats by a flat function without noise, and its variance is then too small
where there are no data. So BoTorch's floor and prior are used where more than a quarter
of the outcomes repeat, as they also do after ``ClipTail``.

The papers put priors on standard deviations, of the noise and of amplitudes; GPyTorch's
parameters are variances. A prior registered by this module is on the standard
deviation, in MAP fits and in slice sampling, which samples the standard deviation.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from gpytorch import Module
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.priors import HorseshoePrior, Prior
from torch import Tensor

from botorch_structured.linalg.hyperparameter import (
    LogInterval,
    log_gaussian_prior,
    reads,
)

#: Mode, standard deviation of the logarithm, floor; in units of the outcomes' variance.
_EXACT = (1e-6, 3.0, 1e-9)
# BoTorch's own: LogNormal(-4, 1), whose mode in log space is exp(-5), and its floor
_STEPS = (math.exp(-5.0), 1.0, 1e-4)
# Where a training loop begins. At 1e-4 the loss of 20 exact outcomes may be 1,000, and
# a step of SGD or Adam leaves all optima. The quasi-Newton fits of ``TreeStructuredGP``
# begin there: of 200 data sets 7 % (as published 9 %) ended more than .1 nats below the
# best optimum, and 11 % (20 %) from .03. ``ConditionalGP`` is better from .03.
_START = 0.03
_FIT_START = 1e-4

# A smooth objective may repeat one or two values; step functions repeat many.
_MANY_REPEATS = 0.25
_FEW_ROWS = 4


def default_likelihood(batch_shape: torch.Size) -> GaussianLikelihood:
    """Homoskedastic noise with a log-normal prior; see ``set_noise_prior``."""
    mode, scale, floor = _EXACT
    return GaussianLikelihood(
        noise_prior=log_gaussian_prior(mode, scale),
        noise_constraint=LogInterval(floor, 1e1, initial_value=_START),
        batch_shape=batch_shape,
    )


def horseshoe_likelihood(batch_shape: torch.Size) -> GaussianLikelihood:
    """Homoskedastic noise with a horseshoe(1) prior on its standard deviation.

    The prior of Levesque et al. (2017), section V. ``set_noise_floor`` sets its
    smallest noise variance.
    """
    likelihood = GaussianLikelihood(
        noise_constraint=LogInterval(_EXACT[2], 1e1, initial_value=_START),
        batch_shape=batch_shape,
    )
    register_root_prior(likelihood.noise_covar, HorseshoePrior(1.0))
    return likelihood


def has_steps(targets: Tensor) -> bool:
    """Whether so many outcomes repeat that they are values of a step function.

    Args:
        targets: ``batch_shape x n``; one element of the batch is enough.
    """
    ordered = np.sort(targets.detach().cpu().numpy(), axis=-1)
    equal = ordered[..., 1:] == ordered[..., :-1]
    repeated = np.zeros(ordered.shape, dtype=bool)
    repeated[..., 1:] |= equal
    repeated[..., :-1] |= equal
    many = repeated.mean(-1).max(initial=0.0) > _MANY_REPEATS
    return bool(many) and targets.shape[-1] >= _FEW_ROWS


def set_noise_prior(likelihood: GaussianLikelihood, targets: Tensor) -> None:
    """Set prior and floor of a ``default_likelihood``, by whether outcomes repeat.

    Args:
        likelihood: A new one, from ``default_likelihood``.
        targets: Transformed outcomes, ``batch_shape x n``.
    """
    mode, scale, floor = set_noise_floor(likelihood, targets)
    if (mode, scale, floor) != _EXACT:  # which it has from the start
        prior = log_gaussian_prior(mode, scale).to(targets)
        likelihood.noise_covar.noise_prior.load_state_dict(prior.state_dict())


def set_noise_floor(
    likelihood: GaussianLikelihood, targets: Tensor
) -> tuple[float, float, float]:
    """Set the floor of the noise and its starting value, by whether outcomes repeat.

    Args:
        likelihood: From this module.
        targets: Transformed outcomes, ``batch_shape x n``.

    Returns:
        Mode, standard deviation of the logarithm and floor for these outcomes.
    """
    steps = has_steps(targets)
    mode, scale, floor = _STEPS if steps else _EXACT
    noise = likelihood.noise_covar
    noise.raw_noise_constraint.lower_bound.fill_(floor)
    # what ``initialize`` does in three times as long; the raw value is the logarithm
    noise.raw_noise.data.fill_(math.log(mode if steps else _START))
    return mode, scale, floor


def begin_fit(likelihood: GaussianLikelihood) -> None:
    """Set a free noise that is as the constructor left it to where a fit begins.

    Args:
        likelihood: From ``default_likelihood``.
    """
    raw = likelihood.noise_covar.raw_noise
    if raw.requires_grad:
        raw.data.masked_fill_(raw.data == math.log(_START), math.log(_FIT_START))


def register_root_prior(module: ScaleKernel | HomoskedasticNoise, prior: Prior) -> None:
    """Register a prior on a standard deviation, the root of a module's variance.

    Args:
        module: A kernel with an ``outputscale``, or ``likelihood.noise_covar``.
        prior: The prior of the standard deviation.
    """
    if isinstance(module, ScaleKernel):
        put = partial(_set_root, name="outputscale")
        module.register_prior(
            "amplitude_prior",
            prior,
            read_amplitude,
            put,
        )
    else:
        put = partial(_set_root, name="noise")
        module.register_prior(
            "noise_std_prior",
            prior,
            read_noise_std,
            put,
        )


@reads("raw_outputscale", power=0.5)
def read_amplitude(module: ScaleKernel) -> Tensor:
    """The amplitude, see ``register_root_prior``."""
    return module.outputscale.sqrt()


@reads("raw_noise", power=0.5)
def read_noise_std(module: HomoskedasticNoise) -> Tensor:
    """The standard deviation, see ``register_root_prior``."""
    return module.noise.sqrt()


def _set_root(
    module: Module,
    value: Tensor | float,
    name: str,
) -> None:
    # a retried fit samples the prior, which may be wider than the bounds
    lower, upper = module.constraint_for_parameter_name(f"raw_{name}")
    squared = torch.as_tensor(value).to(lower).square()
    setattr(module, name, squared.clamp(lower, upper))
