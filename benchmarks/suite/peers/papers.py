"""The methods of Jenatton et al. (2017), with this package's kernel choice and priors.

So a difference to the package's default is one of structure: noise priors, the choice
of Matern or RBF by evidence, transforms and the optimiser are the same.
"""

from __future__ import annotations

__all__ = ["independent", "marginal", "published", "two_step"]

from typing import Any

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.methods import INDEPENDENT
from benchmarks.suite.peers.common import finite
from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths, optimize_acqf_two_step

# `TreeStructuredGP.as_published`, with the kernel of the larger evidence.
_PUBLISHED: dict[str, Any] = {
    "shared_features": "linear",
    "leaf_inputs": "own",
    "leaf_hyperparameters": "independent",
    "leaf_offset": "fixed",
}


def _fitted(problem: Any, X: Tensor, Y: Tensor, options: dict[str, Any]) -> Any:
    model = TreeStructuredGP(X, Y, problem.space, **options)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def independent(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """The paper's "independent": a Gaussian process for each path, LogEI over all."""
    Y = finite(Y)
    model = _fitted(problem, X, Y, INDEPENDENT)
    criterion = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(criterion, space=problem.space, X_avoid=X)[0]


def marginal(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """The paper's "marginal": its covariance, and LogEI over all paths at once."""
    Y = finite(Y)
    model = _fitted(problem, X, Y, _PUBLISHED)
    criterion = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(criterion, space=problem.space, X_avoid=X)[0]


def two_step(problem: Any, model: Any, X: Tensor, Y: Tensor) -> Tensor:
    """The paper's search: the path first, then a point on it."""
    return optimize_acqf_two_step(
        PathLogExpectedImprovement(model, best_f=Y.max()),
        LogExpectedImprovement(model, best_f=Y.max()),
        top_k=1,
        fix_shared=True,
        space=problem.space,
        X_avoid=X,
    )[0]


def published(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """The paper's method: the same model, the path first, then a point on it."""
    Y = finite(Y)
    model = _fitted(problem, X, Y, _PUBLISHED)
    return two_step(problem, model, X, Y)
