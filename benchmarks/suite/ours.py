"""Methods of this package, for the suite.

``default`` is what the package recommends; the others are its parts on their own.
"""

from __future__ import annotations

__all__ = ["METHODS", "default"]

from functools import partial
from typing import Any

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.suggest import suggest


def default(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``botorch_structured.suggest``."""
    return suggest(problem.space, X, Y).X


def one_model(problem: Any, X: Tensor, Y: Tensor, seed: int, kind: Any) -> Tensor:
    """A model with its defaults, LogEI over all paths."""
    model = kind(X, Y, problem.space)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    acquisition = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(acquisition, space=problem.space, X_avoid=X)[0]


METHODS = {
    "default": default,
    "tree": partial(one_model, kind=TreeStructuredGP),
    "conditional": partial(one_model, kind=ConditionalGP),
}
