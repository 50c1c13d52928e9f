"""Methods for the harness: from the evaluated points to the next one.

Each is ``method(problem, X, Y, seed) -> d`` or ``1 x d`` and keeps nothing between
calls; larger ``Y`` is better. Of a problem they use its ``space`` only. ``default`` is
``TreeStructuredGP`` as it comes; what the package recommends is in
``benchmarks.suite.ours``.
"""

from __future__ import annotations

__all__ = [
    "BENCHMARKED",
    "INDEPENDENT",
    "default",
    "default_clipped",
    "independent",
    "independent_evidence",
    "paper",
    "random",
]

from collections.abc import Callable
from typing import Any

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths, optimize_acqf_two_step
from botorch_structured.transforms import ClipTail

# Without weights: an independent GP for each path, with all its columns.
INDEPENDENT: dict[str, Any] = {
    "shared_features": "none",
    "leaf_inputs": "active",
    "leaf_hyperparameters": "independent",
    "leaf_offset": "fixed",
    "node_weights": False,
}


def _fitted(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    make: Callable[..., TreeStructuredGP] = TreeStructuredGP,
    **arguments: Any,
) -> TreeStructuredGP:
    model = make(X, Y, problem.space, **arguments)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def _space_arguments(problem: Any, X: Tensor) -> dict[str, Any]:
    """Arguments of the optimisers: the space, and the known points to avoid."""
    return {"space": problem.space, "X_avoid": X}


def _over_all_paths(
    problem: Any, X: Tensor, Y: Tensor, min_distance: float = 0.0, **arguments: Any
) -> Tensor:
    model = _fitted(problem, X, Y, **arguments)
    acquisition = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(
        acquisition, min_distance=min_distance, **_space_arguments(problem, X)
    )[0]


def default(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``TreeStructuredGP`` with its defaults; LogEI over all paths."""
    return _over_all_paths(problem, X, Y)


def default_clipped(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``default`` for error rates, which are step functions and may fail.

    As the demonstration: with ``ClipTail`` and a distance to known points.
    """
    return _over_all_paths(
        problem, X, Y, min_distance=0.01, outcome_transform=_clipped()
    )


def _clipped() -> ChainedOutcomeTransform:
    return ChainedOutcomeTransform(clip=ClipTail(), standardize=Standardize(m=1))


def independent(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """A GP for each path on its own; LogEI over all paths."""
    return _over_all_paths(problem, X, Y, leaf_kernel="matern", **INDEPENDENT)


def independent_evidence(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``independent`` with the kernel of the larger evidence, as in ``default``."""
    return _over_all_paths(problem, X, Y, **INDEPENDENT)


def paper(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Jenatton et al. (2017) as written: their model, path EI, then EI on that path.

    With this package's priors and noise floor; the paper does not state them.
    """
    model = _fitted(problem, X, Y, make=TreeStructuredGP.as_published)
    best_f = Y.max()
    return optimize_acqf_two_step(
        PathLogExpectedImprovement(model, best_f=best_f),
        LogExpectedImprovement(model, best_f=best_f),
        top_k=1,
        fix_shared=True,
        **_space_arguments(problem, X),
    )[0]


def random(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Uniform in the space, a known point only after a hundred tries."""
    known = problem.space.tree.impute(X)
    for point in problem.space.sample(100, seed=seed).to(X):
        new = problem.space.tree.impute(point.unsqueeze(0))
        if not (new == known).all(-1).any():
            break
    return point


BENCHMARKED = {
    "default": default,
    "paper": paper,
    "independent": independent,
    "independent_evidence": independent_evidence,
    "random": random,
}
