"""Rows of what follows a fit: posteriors, searches, fantasies."""

from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.posteriors import Posterior
from botorch.sampling import SobolQMCNormalSampler
from torch import Tensor

from benchmarks.fits import fitted
from benchmarks.speed.contest import Contest, Row, check_equal
from benchmarks.speed.problems import binary_tree, make_data, make_points, sizes
from benchmarks.speed.tree_rows import first_model
from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths, optimize_acqf_two_step
from botorch_structured.spaces import ParameterTree

_SINGLE = "SingleTaskGP"


def _moments(posterior: Posterior) -> tuple[Tensor, Tensor]:
    return posterior.mean, posterior.variance


def _posterior(model: Model, X: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances, without gradients."""
    with torch.no_grad():
        return _moments(model.posterior(X))


def _check_moments(
    name: str, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]
) -> None:
    for a, b in zip(ours, theirs, strict=True):
        gap = float((a.flatten() - b.flatten()).abs().max())
        check_equal(name, gap, 0.0, 1e-7)


def one_posterior(paths: int, n: int) -> Contest:
    """One candidate, through ``posterior``."""
    model = first_model(paths, n).eval()
    X, Y = make_data(model.tree, sizes(paths, n))
    single = SingleTaskGP(X, Y).eval()
    x = make_points(model.tree, torch.zeros(1, dtype=torch.long), seed=1)

    def check() -> dict[str, Any]:
        far = make_points(model.tree, torch.zeros(3, dtype=torch.long), seed=1)
        ours = _posterior(model, x)
        # the sum of ours does not depend on the others
        _check_moments("alone", ours, tuple(m[:1] for m in _posterior(model, far)))
        return {}

    return Contest(
        {
            "ours": lambda _: _posterior(model, x),
            _SINGLE: lambda _: _posterior(single, x),
        },
        [[_SINGLE]],
        check=check,
    )


def two_step(paths: int, n: int) -> Contest:
    """Search the best path only, or all of them."""
    tree, X, Y = _data(paths, n)
    model = fitted(TreeStructuredGP(X, Y, tree))
    bounds = torch.tensor([[0.0], [1.0]]).double().expand(2, tree.dim)
    best = Y.max()
    acqf = LogExpectedImprovement(model, best_f=best)
    of_path = PathLogExpectedImprovement(model, best_f=best)

    def ours(seed: int) -> tuple[Tensor, Tensor]:
        return optimize_acqf_two_step(of_path, acqf, bounds, tree, X_avoid=X, seed=seed)

    def everywhere(seed: int) -> tuple[Tensor, Tensor]:
        return optimize_acqf_paths(acqf, bounds, tree, X_avoid=X, seed=seed)

    def check() -> dict[str, Any]:
        for search in (ours, everywhere):
            x, value = search(0)
            check_equal("LogEI", float(acqf(x.unsqueeze(0))), float(value), 1e-6)
        return {}

    return Contest(
        {"ours": ours, "all paths": everywhere}, [["all paths"]], check=check
    )


def _data(paths: int, n: int) -> tuple[ParameterTree, Tensor, Tensor]:
    tree = binary_tree(paths)
    return tree, *make_data(tree, sizes(paths, n))


def fantasies(paths: int, n: int, count: int = 8, points: int = 4) -> Contest:
    """Fantasies at new points, and posteriors of 64 candidates with each.

    Args:
        paths: Paths of the tree.
        n: Points.
        count: How many fantasies.
        points: New points.
    """
    tree, X, Y = _data(paths, n)
    models = {
        "ours": fitted(TreeStructuredGP(X, Y, tree)),
        _SINGLE: fitted(SingleTaskGP(X, Y)),
    }
    new = make_points(tree, torch.arange(points) % paths, seed=1)
    test = make_points(tree, torch.arange(64) % paths, seed=2).unsqueeze(-2)
    for model in models.values():
        _posterior(model, test)  # fills caches, as a search before would have

    def predict(model: SingleTaskGP) -> tuple[Tensor, Tensor]:
        sampler = SobolQMCNormalSampler(torch.Size([count]), seed=0)
        with torch.no_grad():
            # a batch of candidates in front of that of the fantasies
            return _moments(model.fantasize(new, sampler).posterior(test.unsqueeze(1)))

    return Contest(
        {name: lambda _, m=model: predict(m) for name, model in models.items()},
        [[_SINGLE]],
        check=lambda: {"shape": list(predict(models["ours"])[0].shape)},
    )


_SMALL = {"paths": 3, "n": 9}

#: By name.
ROWS = {
    "one-posterior": Row(
        "posterior of one candidate",
        one_posterior,
        {
            "8 paths, 60 points": {"paths": 8, "n": 60},
            "64 paths, 2,000 points": {"paths": 64, "n": 2000},
        },
        _SMALL,
    ),
    "two-step": Row(
        "two-step search",
        two_step,
        {"64 paths, 200 points": {"paths": 64, "n": 200}},
        _SMALL,
    ),
    "fantasies": Row(
        "8 fantasies at 4 points, then 64 posteriors",
        fantasies,
        {"8 paths, 200 points": {"paths": 8, "n": 200}},
        {**_SMALL, "points": 2},
    ),
}
