"""Rows of the models of other families, each against ``SingleTaskGP`` or its parts."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import SumMarginalLogLikelihood
from torch import Tensor

from benchmarks.fits import fitted
from benchmarks.speed.contest import Contest, Row, check_equal
from botorch_structured.models import DecomposedGP, MonotoneGP, MultiTaskABLR, TreedGP
from botorch_structured.test_functions import (
    RKHS1D,
    ElasticNetTuning,
    GramacyExponential2D,
    MonotoneMixture1D,
)

_SINGLE = "SingleTaskGP"
_NETWORK = "its network alone"
Data = tuple[Tensor, Tensor]


def _uniform(n: int, d: int, seed: int) -> tuple[Tensor, torch.Generator]:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, d, generator=g, dtype=torch.float64), g


def _noisy(f: Tensor, g: torch.Generator) -> Tensor:
    """``n x 1`` outcomes, with noise of a tenth of their standard deviation."""
    noise = torch.randn(f.shape, generator=g, dtype=torch.float64)
    return (f + 0.1 * f.std() * noise).unsqueeze(-1)


def _step(X: Tensor) -> Tensor:
    """Smooth in six columns, with a step in the first."""
    return (3.0 * X).sin().sum(-1) + 2.0 * (X[:, 0] > 0.6)


def _rough(n: int, number: int) -> Data:
    """One of three functions that are not stationary, on the unit cube."""
    functions = [
        (1, RKHS1D(negate=True)),
        (2, GramacyExponential2D(negate=True)),
        (6, _step),
    ]
    d, f = functions[number % 3]
    X, g = _uniform(n, d, number)
    if isinstance(f, (RKHS1D, GramacyExponential2D)):
        low, high = f.bounds.double()
        return X, _noisy(f(low + (high - low) * X), g)
    return X, _noisy(f(X), g)


def treed(n: int, published: bool) -> Contest:
    """Construct and fit, on RKHS-1D, Gramacy's function and a step in turn."""
    make = TreedGP.as_published if published else TreedGP
    data = cache(lambda number: _rough(n, number))
    return Contest(
        {
            "ours": lambda number: fitted(make(*data(number))),
            _SINGLE: lambda number: fitted(SingleTaskGP(*data(number))),
        },
        [[_SINGLE]],
        prepare=data,
    )


def monotone(n: int, sites: int) -> Contest:
    """Construct and fit; two columns, a rising function of the first."""
    virtual, _ = _uniform(sites, 2, 0)

    @cache
    def data(seed: int) -> Data:
        X, g = _uniform(n, 2, seed)
        return X, _noisy(2.0 * X[:, 0] + (5.0 * X[:, 1]).sin(), g)

    def ours(seed: int) -> MonotoneGP:
        return fitted(MonotoneGP(*data(seed), {0: 1}, virtual_X=virtual))

    return Contest(
        {"ours": ours, _SINGLE: lambda seed: fitted(SingleTaskGP(*data(seed)))},
        [[_SINGLE]],
        prepare=data,
    )


def _maximised(model: Any, Y: Tensor, d: int, seed: int) -> Data:
    torch.manual_seed(seed)
    acqf = LogExpectedImprovement(model, best_f=Y.max())
    bounds = torch.tensor([[0.0], [1.0]]).double().expand(2, d)
    return optimize_acqf(acqf, bounds, q=1, num_restarts=4, raw_samples=256)


def decomposed(n: int) -> Contest:
    """Construct, fit and maximise LogEI: two parts with signs, or their sum.

    The parts of an elastic net's error and of a mixture of bumps in turn.
    """
    problems = [ElasticNetTuning(0), MonotoneMixture1D()]

    @cache
    def data(number: int) -> tuple[Tensor, Tensor, list[dict[int, int]]]:
        """Inputs in the unit cube, parts to be maximised, their signs."""
        problem = problems[number % 2]
        low, high = problem.bounds.double()
        X, _ = _uniform(n, len(low), number)
        parts = -problem.components(low + (high - low) * X)
        signs = [{c: -s for c, s in one.items()} for one in problem.monotone]
        return X, parts, signs

    def ours(number: int) -> Data:
        X, parts, signs = data(number)
        columns = parts.split(1, dim=-1)
        model = DecomposedGP(
            *(MonotoneGP(X, Y, s) for Y, s in zip(columns, signs, strict=True))
        )
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        return _maximised(model, parts.sum(-1), X.shape[-1], number)

    def single(number: int) -> Data:
        X, parts, _ = data(number)
        Y = parts.sum(-1, keepdim=True)
        return _maximised(fitted(SingleTaskGP(X, Y)), Y, X.shape[-1], number)

    return Contest({"ours": ours, _SINGLE: single}, [[_SINGLE]], prepare=data)


def task_data(rows: int, tasks: int) -> Data:
    """The task and ten inputs of a function that is shifted in each task."""
    X, g = _uniform(rows, 11, 0)
    X[:, 0] = torch.arange(rows) * tasks // rows
    shift = torch.rand(tasks, generator=g, dtype=torch.float64)[X[:, 0].long()]
    return X, _noisy((3.0 * (X[:, 1:].sum(-1) + shift)).sin(), g)


def ablr(rows: int, tasks: int) -> Contest:
    """Log evidence summed over tasks and its gradient, 10 inputs, 3 layers of 50 units.

    The peer is a forward and backward pass of the network alone over the same chunks,
    which is what stochastic gradients would cost.
    """
    model = MultiTaskABLR(*task_data(rows, tasks), task_feature=0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    network = model.feature_map
    of_network = [p for p in network.parameters() if p.requires_grad]
    data = model._training_data()
    chunks = data.X.contiguous().split(len(data.X[data.chunks[0].rows]))

    def ours() -> tuple[Tensor, tuple[Tensor, ...]]:
        value = model.log_evidence()
        return value, torch.autograd.grad(value, parameters)

    def alone() -> list[Tensor]:
        total = [torch.zeros_like(p) for p in of_network]
        for chunk in chunks:
            found = torch.autograd.grad(network(chunk).sum(), of_network)
            for t, part in zip(total, found, strict=True):
                t.add_(part)
        return total

    def check() -> dict[str, Any]:
        value, gradient = ours()
        if not all(bool(t.isfinite().all()) for t in (value, *gradient)):
            raise AssertionError("evidence and gradient: expected numbers.")
        whole = torch.autograd.grad(network(data.X).sum(), of_network)
        gaps = [
            float((a - b).abs().max() / b.abs().max().clamp_min(1.0))
            for a, b in zip(alone(), whole, strict=True)
        ]
        check_equal("the network's gradient", max(gaps), 0.0, 1e-8)
        return {"chunks": len(chunks)}

    return Contest(
        {"ours": lambda _: ours(), _NETWORK: lambda _: alone()},
        [[_NETWORK]],
        check=check,
    )


_SIZES = (50, 200, 500)

#: By name.
ROWS = {
    "treed": Row(
        "TreedGP: construct and fit",
        partial(treed, published=False),
        {f"{n} points": {"n": n} for n in _SIZES},
        {"n": 12},
    ),
    "treed-published": Row(
        "TreedGP.as_published: construct and fit",
        partial(treed, published=True),
        {f"{n} points": {"n": n} for n in _SIZES},
        {"n": 12},
    ),
    "monotone": Row(
        "MonotoneGP: construct and fit",
        monotone,
        {"20 points, 50 virtual points": {"n": 20, "sites": 50}},
        {"n": 5, "sites": 4},
    ),
    "decomposed": Row(
        "DecomposedGP of two MonotoneGP: construct, fit, maximise LogEI",
        decomposed,
        {"12 points": {"n": 12}},
        {"n": 6},
    ),
    "ablr": Row(
        "MultiTaskABLR: evidence and gradient",
        ablr,
        {
            "30,000 rows, 30 tasks": {"rows": 30_000, "tasks": 30},
            "750,000 rows, 30 tasks": {"rows": 750_000, "tasks": 30},
        },
        {"rows": 60, "tasks": 3},
    ),
}
