"""The methods of Assael et al. (2014), section 4, for the harness.

``bo`` and ``bo_warp`` are BoTorch's ``SingleTaskGP``, the second with learned input
warping; ``htbo`` and ``htbo_warp`` are ``TreedGP`` as it comes; ``htbo_paper`` and
``htbo_paper_warp`` as published. All maximise LogEI in the same way: on the paper's
adaptive Sobol grid at the same distance from known points, or over the rows of a table.
"""

from __future__ import annotations

__all__ = ["METHODS"]

from functools import partial
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import ChainedInputTransform, Normalize, Warp
from botorch.optim import optimize_acqf_discrete
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from benchmarks.harness import Method
from botorch_structured.models import TreedGP
from botorch_structured.optim import optimize_acqf_sobol
from botorch_structured.test_functions import TableProblem

_PAPER: dict[str, Any] = {
    "split_criterion": "variance",
    "path_sharing": "all",
    "condition_on": "all",
    "leaf_noise": False,
}
# In widths of the box: a model that estimates its noise returns to one optimum.
_MIN_DISTANCE = 2e-3


def _next(problem: Any, model: SingleTaskGP, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    acqf = LogExpectedImprovement(model, best_f=Y.max())
    if isinstance(problem, TableProblem):
        return optimize_acqf_discrete(acqf, 1, problem.candidates.to(X), X_avoid=X)[0]
    return optimize_acqf_sobol(
        acqf,
        problem.bounds.to(X),
        best_X=X[Y.argmax()].unsqueeze(0),
        X_avoid=X,
        min_distance=_MIN_DISTANCE,
        seed=seed,
    )[0]


def standard(
    problem: Any, X: Tensor, Y: Tensor, seed: int, warp: bool = False
) -> Tensor:
    """One GP for all of the space."""
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
    model = SingleTaskGP(X, Y, input_transform=transform)
    return _next(problem, model, X, Y, seed)


def treed(problem: Any, X: Tensor, Y: Tensor, seed: int, **arguments: Any) -> Tensor:
    """A tree of GPs, grown anew at each step."""
    transform = Normalize(X.shape[-1], bounds=problem.bounds.to(X))
    model = TreedGP(X, Y, input_transform=transform, **arguments)
    return _next(problem, model, X, Y, seed)


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
    "htbo": treed,
    "htbo_warp": partial(treed, warp=True),
    "htbo_paper": partial(treed, **_PAPER),
    "htbo_paper_warp": partial(treed, warp=True, **_PAPER),
    "bo": standard,
    "bo_warp": partial(standard, warp=True),
    "random": random,
}
"""All, by name."""
