"""The methods of Wang and Welch (2018) for the harness.

``standard`` models the objective with BoTorch's ``SingleTaskGP``; ``decomposed`` models
each of its two parts with one (``DecomposedGP``); ``monotone`` gives each part its sign
as well (``MonotoneGP``). These three are fitted by ``fit_gpytorch_mll``, with defaults.

The three with ``_paper`` have the paper's GPs: zero mean on the outcomes as they are, a
variance, an isotropic squared exponential kernel. Errors are positive, so a zero-mean
GP expects an improvement wherever there are no data, most of all in the corners; known
signs rule out some of these places. (With standardised outcomes a GP expects the
average there.) What the paper leaves open is the same for all three: BoTorch's prior
for the lengthscale, a wide prior for the variance in units of the mean square, and a
noise variance of 1e-4 of the mean square, as errors are repeatable. ``monotone_paper``
has signs at all points of the paper's grids, and is fitted to data and signs.

All maximise LogEI of the (sum's) posterior in the same way.
"""

from __future__ import annotations

__all__ = ["METHODS"]

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from botorch.optim import optimize_acqf
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from benchmarks.harness import Method
from botorch_structured.models import DecomposedGP, MonotoneGP

_RESTARTS, _RAW = 4, 256
_NOISE = 1e-4  # of the mean square, in the paper's GPs


class _Scale(Standardize):
    """Outcomes in units of their root mean square: zero stays zero."""

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if self.training:
            super().forward(Y, Yvar, X)  # for its checks
            self._stdvs_sq = Y.square().mean(dim=-2, keepdim=True).clamp_min(1e-16)
            self.stdvs = self._stdvs_sq.sqrt()
            self.means = Y.new_zeros(self.stdvs.shape)
        return Y / self.stdvs, None if Yvar is None else Yvar / self._stdvs_sq


def _papers_kernel(d: int) -> ScaleKernel:
    prior = LogNormalPrior(math.sqrt(2.0) + 0.5 * math.log(d), math.sqrt(3.0))
    kernel = RBFKernel(
        lengthscale_prior=prior,
        lengthscale_constraint=GreaterThan(
            2.5e-2, transform=None, initial_value=prior.mode
        ),
    )
    return ScaleKernel(kernel, outputscale_prior=LogNormalPrior(0.0, 1.0))


def _component(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    signs: Mapping[int, int] | None = None,
    paper: bool = False,
) -> SingleTaskGP:
    """A GP for ``n x 1`` outcomes, with known signs unless None."""
    arguments: dict[str, Any] = {
        "input_transform": Normalize(X.shape[-1], bounds=problem.bounds.to(X))
    }
    if paper:
        arguments["covar_module"] = _papers_kernel(X.shape[-1])
        arguments["mean_module"] = ZeroMean()
        arguments["outcome_transform"] = _Scale(1)
        noise = _NOISE * Y.square().mean()
        arguments["train_Yvar"] = noise.expand(Y.shape)
    if signs is None:
        return SingleTaskGP(X, Y, **arguments)
    if paper:
        arguments |= {"virtual_X": "grid", "signs_in_fit": True}
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
    problem: Any, X: Tensor, Y: Tensor, seed: int, paper: bool = False
) -> Tensor:
    """A GP for each part; problems remember the parts of what they have evaluated."""
    return _next(problem, _fitted_parts(problem, X, None, paper), Y.max())


def monotone(
    problem: Any, X: Tensor, Y: Tensor, seed: int, paper: bool = False
) -> Tensor:
    """As ``decomposed``, with signs."""
    signs = [
        {column: -sign for column, sign in one.items()} for one in problem.monotone
    ]
    return _next(problem, _fitted_parts(problem, X, signs, paper), Y.max())


def _parts(problem: Any, X: Tensor) -> tuple[Tensor, ...]:
    """``n x 1`` each, larger is better, as in Y."""
    return (-problem.components(X)).split(1, dim=-1)


def _fitted_parts(
    problem: Any, X: Tensor, signs: list[dict[int, int]] | None, paper: bool
) -> DecomposedGP:
    parts = _parts(problem, X)
    own = [None] * len(parts) if signs is None else signs
    model = DecomposedGP(
        *(
            _component(problem, X, part, sign, paper)
            for part, sign in zip(parts, own, strict=True)
        )
    )
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    return model


def random(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Uniform."""
    return problem.space.sample(1, seed=seed)[0]


METHODS: dict[str, Method] = {
    "monotone": monotone,
    "decomposed": decomposed,
    "standard": standard,
    "monotone_paper": partial(monotone, paper=True),
    "decomposed_paper": partial(decomposed, paper=True),
    "standard_paper": partial(standard, paper=True),
    "random": random,
}
"""All, by name."""
