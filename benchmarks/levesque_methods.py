"""Methods of Levesque et al. (2017), eleven of Table I.

Hyperparameters are the most probable ones (the paper: slice sampling), the criterion is
LogEI. Unlike ``benchmarks.conditional_methods`` there is no ``ClipTail`` and no
distance to known points, which the paper lacks.
"""

from __future__ import annotations

__all__ = ["METHODS", "gp"]

from functools import partial
from typing import Any

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import ChainedInputTransform, Normalize
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.conditional_methods import fill_at_random, plain_model
from benchmarks.harness import Method, StatefulMethod
from benchmarks.methods import random
from benchmarks.suite.peers.evolution import CMAES
from benchmarks.suite.peers.smac import LiveSMAC
from botorch_structured.kernels import LaplaceKernel
from botorch_structured.models import ConditionalGP
from botorch_structured.models.sampled.sampled_gp import SampledGP
from botorch_structured.optim import (
    optimize_acqf_local_search,
    optimize_acqf_paths,
    optimize_acqf_random,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.transforms import Impute


def _flat(space: SearchSpace) -> SearchSpace:
    """The same columns, none of them inactive, the learner an integer."""
    whole = [*space.integer_features, *space.categorical_features]
    return SearchSpace(space.names, space.bounds, integer_features=whole)


def gp(
    problem: Any, X: Tensor, Y: Tensor, seed: int, kind: str, search: str, impute: bool
) -> Tensor:
    """The paper's Gaussian processes.

    Args:
        problem: Its space is used.
        X: ``n x d`` evaluated points.
        Y: ``n x 1`` outcomes, larger is better.
        seed: Of the search.
        kind: ``"cond"``, ``"matern"`` or ``"laplace"``.
        search: ``"random"`` (1,000 points), ``"ls"`` (local search) or ``"gradient"``.
        impute: Whether inactive columns are in the middle of their range. Otherwise
            they are searched, too.
    """
    space: SearchSpace = problem.space
    model: SingleTaskGP
    transform: Any
    if kind == "cond":
        transform = space.input_transform()
        model = ConditionalGP(X, Y, space.tree, input_transform=transform)
    else:
        transform = Normalize(X.shape[-1], bounds=space.bounds)
        if impute:
            filled = Impute(space.tree, space.bounds)
            transform = ChainedInputTransform(impute=filled, normalize=transform)
        else:
            X = fill_at_random(problem, X)
        base = LaplaceKernel if kind == "laplace" else MaternKernel
        model = plain_model(X, Y, transform, Standardize(m=1), base)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    # an ensemble of one predicts without copies of the training data
    criterion = LogExpectedImprovement(SampledGP([model]), best_f=Y.max())
    searched = space if impute else _flat(space)
    arguments: dict[str, Any] = {"space": searched, "X_avoid": X, "seed": seed}
    if search == "random":
        return optimize_acqf_random(criterion, **arguments)[0]
    if search == "ls":
        return optimize_acqf_local_search(criterion, num_restarts=4, **arguments)[0]
    return optimize_acqf_paths(criterion, **arguments)[0]


METHODS: dict[str, Method | StatefulMethod] = {
    "RS": random,
    "Spearmint": partial(gp, kind="matern", search="gradient", impute=False),
    "SMAC": LiveSMAC(40),
    "CMA": CMAES(),
    "GP-matern-noimpute": partial(gp, kind="matern", search="random", impute=False),
    **{
        f"GP-{kind}{end}": partial(gp, kind=kind, search=search, impute=True)
        for end, search in (("", "random"), ("-ls", "ls"))
        for kind in ("matern", "cond", "laplace")
    },
}
