"""Functions and methods of Jenatton et al. (2017)."""

from __future__ import annotations

__all__ = ["FIGURE_2", "LINEAR", "METHODS", "QUADRATIC", "UNBALANCED"]

from functools import partial
from typing import Any

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.harness import Method, StatefulMethod
from benchmarks.methods import INDEPENDENT, independent, paper, random
from benchmarks.quality.jenatton import make
from benchmarks.suite.peers.gaussian_processes import arc
from benchmarks.suite.peers.papers import two_step
from benchmarks.suite.peers.smac import LiveSMAC
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace

_ARC_STEPS = 75  # of L-BFGS-B

FIGURE_2 = {
    f"{leaves}{'-shared' * shared}": partial(make, num_leaves=leaves, shared=shared)
    for leaves in (4, 8)
    for shared in (False, True)
}
UNBALANCED = {
    f"{leaves}-chain{'-shared' * shared}": partial(
        make, num_leaves=leaves, shared=shared, balanced=False
    )
    for leaves in (4, 8, 16)
    for shared in (False, True)
}
LINEAR = {name: FIGURE_2[name] for name in ("4-shared", "8-shared")}
QUADRATIC = {
    f"{leaves}-quadratic": partial(make, num_leaves=leaves, quadratic_shared=True)
    for leaves in (4, 8)
}


def marginal(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """The tree's covariance as that of one GP: LogEI over all paths at once."""
    model = _fitted(TreeStructuredGP.as_published(X, Y, problem.space))
    criterion = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(criterion, space=problem.space, X_avoid=X)[0]


def nonlinear(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Section 4.3: random Fourier features of the shared variables."""
    model = TreeStructuredGP(
        X,
        Y,
        problem.space,
        shared_features="fourier",
        leaf_inputs="own",
        leaf_hyperparameters="independent",
        leaf_offset="fixed",
        leaf_kernel="matern",
    )
    return two_step(problem, _fitted(model), X, Y)


def gp_baseline(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """One Matern GP over all columns, decisions as numbers, as if all were active."""
    space = problem.space
    whole = {*space.integer_features, *space.categorical_features}
    flat = SearchSpace(
        space.names,
        space.bounds,
        integer_features=sorted({*whole, *space.tree.decision_columns}),
    )
    model = _fitted(TreeStructuredGP(X, Y, flat, leaf_kernel="matern", **INDEPENDENT))
    criterion = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(criterion, space=flat, X_avoid=X)[0]


def _fitted(model: TreeStructuredGP) -> TreeStructuredGP:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


METHODS: dict[str, Method | StatefulMethod] = {
    "tree": paper,
    "independent": independent,
    "marginal": marginal,
    "gp-baseline": gp_baseline,
    "random": random,
    "tree-nonlinear": nonlinear,
    "arc": partial(arc, steps=_ARC_STEPS),
    "smac": LiveSMAC(40),
}
