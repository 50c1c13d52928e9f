"""The methods of Assael et al. (2014), section 4, for the harness.

``htbo`` and ``htbo_warp`` are ``TreedGP.as_published``, the better one in a search;
``htbo_default`` is ``TreedGP`` as it comes, ``htbo_variance`` the same with the
published splits. ``bo`` and ``bo_warp`` are BoTorch's ``SingleTaskGP``, the second with
learned input warping. All maximise LogEI, over the rows of a table or on the paper's
adaptive Sobol grid. There the treed methods go far from known points where no
improvement is worth an evaluation, ``bo`` and ``bo_warp`` keep a small distance always;
``bo_refine`` is ``bo`` with the rule of the treed methods, ``bo_exact`` is that told
that there is no noise, and ``bo_acqf`` is ``bo`` with BoTorch's own maximiser as a user
would call it: how much of the difference is the tree's, and how much the search's.
"""

from __future__ import annotations

__all__ = ["METHODS", "MODELS", "fitted_model"]

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import ChainedInputTransform, Normalize, Warp
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from benchmarks.harness import Method
from botorch_structured.models import TreedGP
from botorch_structured.optim import optimize_acqf_sobol
from botorch_structured.test_functions import TableProblem

# In widths of the box: a model that estimates its noise returns to one optimum.
_MIN_DISTANCE = 2e-3
_ALWAYS_DISTANT = ("bo", "bo_warp")
# With a distance alone, the best point can be too near to a good one, and where next
# to nothing is expected anywhere, what little there is says more about the model than
# about the objective. So: an improvement, in standard deviations of the outcomes, that
# is worth an evaluation wherever it is; and where nothing is, so many spacings of a
# regular grid of as many points (below a half, they cannot fill the box).
_WORTH = 1e-3
_SPREAD = 0.4


def standard(
    problem: Any, X: Tensor, Y: Tensor, warp: bool = False, exact: bool = False
) -> SingleTaskGP:
    """One GP for all of the space; ``exact`` if it is told that there is no noise."""
    d = X.shape[-1]
    transform = Normalize(d, bounds=problem.bounds.to(X))
    if warp:
        prior = LogNormalPrior(0.0, 0.75**0.5)  # as in BoTorch's tutorial on warping
        warping = Warp(
            d=d,
            indices=list(range(d)),
            concentration0_prior=prior,
            concentration1_prior=prior,
        )
        transform = ChainedInputTransform(normalize=transform, warp=warping)
    return SingleTaskGP(
        X, Y, _no_noise(Y) if exact else None, input_transform=transform
    )


def treed(
    problem: Any, X: Tensor, Y: Tensor, published: bool = False, **arguments: Any
) -> TreedGP:
    """A tree of GPs, grown anew at each step."""
    make = TreedGP.as_published if published else TreedGP
    transform = Normalize(X.shape[-1], bounds=problem.bounds.to(X))
    return make(X, Y, input_transform=transform, **arguments)


def _no_noise(Y: Tensor) -> Tensor:
    """As good as none, in units of the variance of the outcomes."""
    return torch.full_like(Y, 1e-6 * max(float(Y.var()), 1e-12))


MODELS: dict[str, Callable[[Any, Tensor, Tensor], SingleTaskGP]] = {
    "htbo": partial(treed, published=True),
    "htbo_warp": partial(treed, published=True, warp=True),
    "htbo_variance": partial(treed, split_criterion="variance"),
    "htbo_default": treed,
    "bo": standard,
    "bo_acqf": standard,
    "bo_refine": standard,
    "bo_exact": partial(standard, exact=True),
    "bo_warp": partial(standard, warp=True),
}
"""The model of each method, given a problem and data."""


def fitted_model(method: str, problem: Any, X: Tensor, Y: Tensor) -> SingleTaskGP:
    """What a method believes after these evaluations.

    Args:
        method: A key of ``MODELS``.
        problem: With ``bounds``.
        X: ``n x d``.
        Y: ``n x 1``, larger is better.
    """
    model = MODELS[method](problem, X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def suggest(problem: Any, X: Tensor, Y: Tensor, seed: int, method: str) -> Tensor:
    """Where the expected improvement is largest."""
    model = fitted_model(method, problem, X, Y)
    acqf = LogExpectedImprovement(model, best_f=Y.max())
    if isinstance(problem, TableProblem):
        return optimize_acqf_discrete(acqf, 1, problem.candidates.to(X), X_avoid=X)[0]
    bounds = problem.bounds.to(X)
    if method == "bo_acqf":
        return optimize_acqf(acqf, bounds, 1, num_restarts=10, raw_samples=512)[0]
    always = method in _ALWAYS_DISTANT
    worth = math.log(max(_WORTH * float(Y.std()), 1e-300))
    spread = _SPREAD * len(X) ** (-1.0 / X.shape[-1])
    return optimize_acqf_sobol(
        acqf,
        bounds,
        best_X=X[Y.argmax()].unsqueeze(0),
        X_avoid=X,
        min_distance=_MIN_DISTANCE if always else spread,
        refine_above=None if always else worth,
        seed=seed,
    )[0]


def random(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Uniform; rows of a table once."""
    if isinstance(problem, TableProblem):
        candidates = problem.candidates.to(X)
        known = (candidates.unsqueeze(1) == X).all(-1).any(-1)
        generator = torch.Generator().manual_seed(seed)
        left = (~known).nonzero().squeeze(-1)
        pick = torch.randint(len(left), (), generator=generator)
        return candidates[left[pick]]
    return problem.space.sample(1, seed=seed)[0]


METHODS: dict[str, Method] = {
    **{name: partial(suggest, method=name) for name in MODELS},
    "random": random,
}
"""All, by name."""
