"""Methods of this package, for the suite.

``default`` is what the package recommends, from the common starts, and ``study`` the
same from the starts of a `Study`. ``tree`` and ``conditional`` are its models alone.
The others differ from them in one thing each; they were tried when the default was
chosen, on the half ``develop``.
"""

from __future__ import annotations

__all__ = ["METHODS", "composed", "default"]

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from botorch.acquisition import PriorGuidedAcquisitionFunction
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.acquisition import AveragedLogExpectedImprovement, InteriorPrior
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.leave_one_out import leave_one_out_weights
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace
from botorch_structured.study.study import MOST_STARTS
from botorch_structured.suggest import suggest
from botorch_structured.transforms import ClipTail

_BOTH = ("tree", "conditional")
_MODELS: dict[str, Any] = {
    "tree": TreeStructuredGP,
    "conditional": ConditionalGP,
    "unrelated": partial(
        TreeStructuredGP,
        leaf_inputs="active",
        leaf_hyperparameters="independent",
    ),
}


def default(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``botorch_structured.suggest``."""
    return suggest(problem.space, X, Y).X


class _FromPaths:
    """`default`, begun by itself.

    Args:
        n: Starts on different paths; None for all of them.
        cover: Whether there are fewer where paths are more and fewer show every value,
            as in a `Study`.
    """

    def __init__(self, n: int | None, cover: bool = False) -> None:
        self.n, self.cover = n, cover

    def __call__(self, problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        return default(problem, X, Y, seed)

    def starts(self, problem: Any, seed: int) -> Tensor:
        """``k x d`` points."""
        space: SearchSpace = problem.space
        if self.cover:
            return space.starts(seed=seed, at_most=self.n)
        n = space.tree.num_paths
        return space.starts(n if self.n is None else min(n, self.n), seed=seed)


def composed(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    seed: int,
    models: Sequence[str] = _BOTH,
    equal: bool = False,
    prior: float = 1.0,
    tail: Literal["flat", "log"] | None = "log",
    best_mean: bool = True,
) -> Tensor:
    """A suggestion from parts of `suggest`, each of which can be left out.

    Args:
        problem: Its space is used.
        X: ``n x d`` evaluated points.
        Y: ``n x 1`` outcomes, larger is better.
        seed: Not used: the harness seeds torch's generator.
        models: Names in ``_MODELS``.
        equal: Equal weights instead of those by leave-one-out.
        prior: The exponent of the prior for the inside of the box, times ``n``.
        tail: What `ClipTail` does with bad outcomes; None for no transform.
        best_mean: The best mean at an evaluated point as incumbent, not the best
            outcome.
    """
    space, fitted = problem.space, []
    for name in models:
        arguments: dict[str, Any] = {}
        if tail is not None:
            arguments["outcome_transform"] = ChainedOutcomeTransform(
                clip=ClipTail(tail=tail), standardize=Standardize(m=1)
            )
        model = _MODELS[name](X, Y, space, **arguments)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        fitted.append(model)
    best_f = Y.max()
    if best_mean:
        with torch.no_grad():
            means = [m.posterior(X.unsqueeze(-2)).mean.max() for m in fitted]
        best_f = torch.stack(means)
    weights = None if equal else leave_one_out_weights(fitted)
    acquisition: Any = AveragedLogExpectedImprovement(fitted, best_f, weights)
    if prior:
        acquisition = PriorGuidedAcquisitionFunction(
            acquisition, InteriorPrior(space), log=True, prior_exponent=prior / len(X)
        )
    return optimize_acqf_paths(acquisition, space=space, X_avoid=X)[0]


_plain = partial(composed, prior=0.0, tail=None, best_mean=False)
METHODS = {
    "default": default,
    "from_every_path": _FromPaths(None),
    "from_ten_paths": _FromPaths(10),
    "from_five_paths": _FromPaths(5),
    "from_cover": _FromPaths(10, cover=True),
    "study": _FromPaths(MOST_STARTS, cover=True),
    "tree": partial(_plain, models=["tree"]),
    "conditional": partial(_plain, models=["conditional"]),
    "unrelated": partial(_plain, models=["unrelated"]),
    "tree_prior": partial(composed, models=["tree"], tail=None),
    "equal": partial(_plain, equal=True),
    "averaged": _plain,
    "averaged_prior_03": partial(_plain, prior=0.3),
    "averaged_prior": partial(_plain, prior=1.0),
    "averaged_prior_2": partial(_plain, prior=2.0),
    "averaged_prior_mean": partial(composed, tail=None),
    "averaged_prior_clipped": partial(composed, tail="flat"),
}
