"""The methods of Levesque et al. (2017), section V, for the harness.

All of them have the same expected improvement (its logarithm), the
paper's priors and Matern-5/2 kernel, ``ClipTail``, a distance to known points, and the
local search of equations (6) and (7). They differ in how they treat inactive columns:

* ``conditional``: ``ConditionalGP``, MAP hyperparameters;
* ``conditional_sampled``: the same, hyperparameters by slice sampling, chains continued
  from the previous suggestion;
* ``imputed``: inactive columns at the middle of their range, the learner as an integer;
* ``not_imputed``: inactive columns hold random values, and are searched as well.
"""

from __future__ import annotations

__all__ = [
    "METHODS",
    "ConditionalSampled",
    "conditional",
    "fill_at_random",
    "imputed",
    "not_imputed",
    "plain_model",
]

import warnings
from typing import Any, Literal

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Normalize,
)
from botorch.models.transforms.outcome import (
    ChainedOutcomeTransform,
    OutcomeTransform,
    Standardize,
)
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior, NormalPrior
from torch import Tensor

from benchmarks.harness import Method, StatefulMethod
from benchmarks.methods import random
from benchmarks.suite.peers.gaussian_processes import PlainGP
from botorch_structured.fit import fit_slice_sampling
from botorch_structured.linalg.hyperparameter import LogInterval
from botorch_structured.models import ConditionalGP
from botorch_structured.models.sampled.chains import Chains, ChainsWarning
from botorch_structured.models.sampled.coordinates import PriorCoordinates
from botorch_structured.models.sampled.sampled_gp import SampledGP
from botorch_structured.models.tree.noise import (
    horseshoe_likelihood,
    register_amplitude_prior,
    set_noise_floor,
)
from botorch_structured.optim import optimize_acqf_local_search
from botorch_structured.spaces import ParameterTree
from botorch_structured.transforms import ClipTail, Impute

# Outcomes are step functions: nearer points are on the step of a known point.
_MIN_DISTANCE = 0.01
# Random starts of the local search, besides the best known point of each path.
_NUM_RESTARTS = 4


def _clipped() -> ChainedOutcomeTransform:
    return ChainedOutcomeTransform(clip=ClipTail(), standardize=Standardize(m=1))


def _conditional_model(problem: Any, X: Tensor, Y: Tensor) -> ConditionalGP:
    space = problem.space
    return ConditionalGP(
        X,
        Y,
        space.tree,
        input_transform=space.input_transform(),
        outcome_transform=_clipped(),
    )


def plain_model(
    X: Tensor,
    Y: Tensor,
    transform: InputTransform,
    outcome_transform: OutcomeTransform,
    base: type[Kernel] = MaternKernel,
) -> SingleTaskGP:
    """A GP over all columns with the priors and the noise of ``ConditionalGP``."""
    kernel = ScaleKernel(
        base(
            ard_num_dims=X.shape[-1],
            lengthscale_prior=LogNormalPrior(0.0, 1.0),
            lengthscale_constraint=LogInterval(1e-2, 1e3, initial_value=0.5),
        ),
        outputscale_constraint=LogInterval(1e-4, 1e4, initial_value=1.0),
    )
    register_amplitude_prior(kernel, LogNormalPrior(0.0, 1.0))
    model = PlainGP(
        X,
        Y,
        likelihood=horseshoe_likelihood(torch.Size()),
        covar_module=kernel,
        mean_module=ConstantMean(constant_prior=NormalPrior(0.0, 1.0)),
        input_transform=transform,
        outcome_transform=outcome_transform,
    )
    set_noise_floor(model.likelihood, model.train_targets)
    return model


def _fit(model: SingleTaskGP) -> None:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))


def _search(
    problem: Any, model: Model, X: Tensor, Y: Tensor, seed: int, dense: bool = False
) -> Tensor:
    """LogEI by local search: over the active columns, or over all of them."""
    if not isinstance(model, SampledGP):
        # An ensemble of one has the same posterior, and predicts many points at once
        # without GPyTorch's copy of the training data for each.
        model = SampledGP([model])
    space = problem.space
    tree = ParameterTree(space.tree.dim, {}) if dense else space.tree
    return optimize_acqf_local_search(
        LogExpectedImprovement(model, best_f=Y.max()),
        bounds=space.bounds.to(X),
        tree=tree,
        num_restarts=_NUM_RESTARTS,
        integer_features=space.integer_features,
        categorical_features=space.categorical_features,
        X_avoid=X,
        min_distance=_MIN_DISTANCE,
        seed=seed,
    )[0]


def conditional(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """GP-cond-ls with MAP hyperparameters."""
    model = _conditional_model(problem, X, Y)
    _fit(model)
    return _search(problem, model, X, Y, seed)


class ConditionalSampled:
    """GP-cond-ls as published: slice-sampled hyperparameters.

    Args:
        num_samples: How many the acquisition averages over.
    """

    keeps_state: Literal[True] = True

    def __init__(self, num_samples: int = 8) -> None:
        self.num_samples = num_samples

    def __call__(
        self, problem: Any, X: Tensor, Y: Tensor, seed: int, state: Any
    ) -> tuple[Tensor, Any]:
        """The next point; the state is the chain to be continued."""
        plain = _conditional_model(problem, X, Y)
        with warnings.catch_warnings():
            # few draws for each suggestion: chains continue over suggestions
            warnings.simplefilter("ignore", ChainsWarning)
            model = fit_slice_sampling(
                plain,
                num_samples=self.num_samples,
                thinning=4,
                start_from=None if state is None else _chains(plain, state),
                seed=seed,
                progress=False,
            )
        x = _search(problem, model, X, Y, seed)
        chains = model.chains
        state = {"last": chains.last, "widths": chains.widths}
        return x, {k: _six_digits(v).tolist() for k, v in state.items()}


def _six_digits(values: np.ndarray) -> np.ndarray:
    """Round to six digits: the state is shorter, and as good a start of chains."""
    return np.array([float(f"{v:.6g}") for v in values.ravel()]).reshape(values.shape)


def _chains(model: ConditionalGP, state: Any) -> Chains:
    """Chains that start at the positions of the state."""
    coordinates = PriorCoordinates(model)
    last = np.array(state["last"])
    return Chains(
        names=coordinates.names,
        samples=last[:, None],
        log_density=np.zeros((len(last), 1)),
        positive=coordinates.positive,
        last=last,
        widths=np.array(state["widths"]),
    )


def imputed(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """GP-matern-ls: a plain Matern GP, inactive columns at their default values."""
    space = problem.space
    bounds = space.bounds.to(X)
    transform = ChainedInputTransform(
        impute=Impute(space.tree, bounds),
        normalize=Normalize(X.shape[-1], bounds=bounds),
    )
    model = plain_model(X, Y, transform, _clipped())
    _fit(model)
    return _search(problem, model, X, Y, seed)


def not_imputed(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """GP-matern-noimpute-ls: a plain Matern GP over all columns, inactive ones too.

    Points that this method suggests keep the values they were suggested with; the
    starts, which all methods share, get random ones.
    """
    space = problem.space
    bounds = space.bounds.to(X)
    X = fill_at_random(problem, X)
    model = plain_model(X, Y, Normalize(X.shape[-1], bounds=bounds), _clipped())
    _fit(model)
    return _search(problem, model, X, Y, seed, dense=True)


def fill_at_random(problem: Any, X: Tensor) -> Tensor:
    """Replace the fill value of inactive columns by random values."""
    space = problem.space
    generator = torch.Generator().manual_seed(problem.seed)
    lower, upper = space.bounds.to(X)
    width = upper - lower
    u = torch.rand(X.shape, generator=generator, dtype=X.dtype)
    untouched = ~space.tree.active_mask(X) & (X == space.fill.to(X))
    return torch.where(untouched, lower + width * u, X)


METHODS: dict[str, Method | StatefulMethod] = {
    "conditional": conditional,
    "conditional_sampled": ConditionalSampled(),
    "imputed": imputed,
    "not_imputed": not_imputed,
    "random": random,
}
