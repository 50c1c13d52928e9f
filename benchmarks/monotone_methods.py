"""The methods of Wang and Welch (2017) for the harness: is the objective a sum?

``standard`` models the objective with BoTorch's ``SingleTaskGP``; ``decomposed`` models
its two parts with one each (``DecomposedGP``), and ``monotone`` tells each in addition
which way it bends (``MonotoneGP``, on the paper's grids of virtual points). The three
with ``_paper`` have the paper's GPs: zero mean, isotropic squared exponential. All
maximise LogEI of the (sum's) posterior in the same way.
"""

from __future__ import annotations

__all__ = ["METHODS"]

from collections.abc import Mapping
from functools import partial
from typing import Any

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.optim import optimize_acqf
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor

from benchmarks.harness import Method
from botorch_structured.models import DecomposedGP, MonotoneGP

_RESTARTS, _RAW = 4, 256


def _component(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    signs: Mapping[int, int] | None = None,
    paper: bool = False,
) -> SingleTaskGP:
    """A GP for ``n x 1`` outcomes, told the signs unless None."""
    arguments: dict[str, Any] = {
        "input_transform": Normalize(X.shape[-1], bounds=problem.bounds.to(X))
    }
    if paper:
        arguments["covar_module"] = ScaleKernel(RBFKernel())
        arguments["mean_module"] = ZeroMean()
    if signs is None:
        return SingleTaskGP(X, Y, **arguments)
    return MonotoneGP(X, Y, signs, bounds=problem.bounds.to(X), **arguments)


def _next(problem: Any, model: Any, best: Tensor) -> Tensor:
    acqf = LogExpectedImprovement(model, best_f=best)
    bounds = problem.bounds.to(best)
    return optimize_acqf(acqf, bounds, 1, _RESTARTS, _RAW)[0]


def standard(
    problem: Any, X: Tensor, Y: Tensor, seed: int, paper: bool = False
) -> Tensor:
    """One GP for the objective."""
    model = _component(problem, X, Y, paper=paper)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return _next(problem, model, Y.max())


def decomposed(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    seed: int,
    monotone: bool = False,
    paper: bool = False,
) -> Tensor:
    """A GP for each part; problems remember the parts of what they have evaluated."""
    parts = -problem.components(X)  # larger is better, as in Y
    models = []
    for i, signs in enumerate(problem.monotone):
        own = {column: -sign for column, sign in signs.items()} if monotone else None
        models.append(_component(problem, X, parts[:, i : i + 1], own, paper))
    model = DecomposedGP(*models)
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    return _next(problem, model, Y.max())


def random(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Uniform."""
    return problem.space.sample(1, seed=seed)[0]


METHODS: dict[str, Method] = {
    "monotone": partial(decomposed, monotone=True),
    "decomposed": decomposed,
    "standard": standard,
    "monotone_paper": partial(decomposed, monotone=True, paper=True),
    "decomposed_paper": partial(decomposed, paper=True),
    "standard_paper": partial(standard, paper=True),
    "random": random,
}
"""All, by name."""
