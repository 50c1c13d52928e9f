"""The methods of Assael et al. (2014), section 4, for the harness.

=================  ====================================================================
``htbo``           ``TreedGP.as_published``
``htbo_warp``      the same with learned input warping
``htbo_default``   ``TreedGP`` with its defaults
``htbo_variance``  ``TreedGP(split_criterion="variance")``, the published splits
``bo``             BoTorch's ``SingleTaskGP``
``bo_warp``        the same with learned input warping
``bo_refine``      ``bo`` with the distance rule of the treed methods
``bo_exact``       ``bo_refine`` with a tiny ``train_Yvar``: noise-free
``bo_acqf``        ``bo`` with BoTorch's ``optimize_acqf``
=================  ====================================================================

All maximise LogEI: over the rows of a table, or on the paper's adaptive Sobol grid. On
the grid ``bo`` and ``bo_warp`` keep a small distance to known points. The treed methods
keep a large one, except where the acquisition value exceeds ``_WORTH``. The last three
rows separate the effect of the tree from that of the search.
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

# In widths of the box: with estimated noise, LogEI proposes the incumbent again.
_MIN_DISTANCE = 2e-3
_ALWAYS_DISTANT = ("bo", "bo_warp")
# A fixed distance can exclude the optimum beside a good point. So the distance is only
# kept where the expected improvement is below ``_WORTH`` standard deviations of the
# outcomes: there its maximum says little about the objective, and the search explores.
# The distance is ``_SPREAD`` spacings of a regular grid with as many points as there
# are data; below a half, known points cannot exclude the whole box.
_WORTH = 1e-3
_SPREAD = 0.4


def standard(
    problem: Any, X: Tensor, Y: Tensor, warp: bool = False, exact: bool = False
) -> SingleTaskGP:
    """One GP for all of the space; with ``exact``, a tiny ``train_Yvar``."""
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
    """A tiny noise variance, relative to the variance of the outcomes."""
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
    """The fitted model of a method after these evaluations.

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
