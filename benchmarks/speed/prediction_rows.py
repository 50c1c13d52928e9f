"""Rows of what follows a fit: posteriors, searches, several outputs, fantasies."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import Model
from botorch.posteriors import Posterior
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import SumMarginalLogLikelihood
from torch import Tensor

from benchmarks.fits import fitted, objective
from benchmarks.speed.contest import Contest, Row, check_equal
from benchmarks.speed.peers import DenseGP
from benchmarks.speed.problems import binary_tree, make_data, make_points, sizes
from benchmarks.speed.tree_rows import first_model
from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths, optimize_acqf_two_step
from botorch_structured.spaces import ParameterTree

_CACHED = "cached dense factor, plain torch"
_JOINT = "SingleTaskGP with this kernel, all at once"
_APART = "SingleTaskGP with this kernel, one by one"
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


def posterior(paths: int, n: int, candidates: int) -> Contest:
    """Candidates of one leaf, one posterior for each, as acquisition functions ask.

    ``SingleTaskGP`` copies the data for each of them: so few are timed, and multiplied.
    One joint posterior of all is faster there, and is the other peer.
    """
    few = min(candidates, 20)
    model = first_model(paths, n).eval()
    path = torch.zeros(candidates, dtype=torch.long)
    X = make_points(model.tree, path, seed=1)
    dense = DenseGP(objective(model))
    single = SingleTaskGP(
        model.train_inputs[0],
        model.train_targets.unsqueeze(-1),
        likelihood=model.likelihood,
        covar_module=model.covar_module,
        mean_module=model.mean_module,
        outcome_transform=None,
    ).eval()
    untransform = model.outcome_transform.untransform

    def check() -> dict[str, Any]:
        ours = _posterior(model, X.unsqueeze(-2))
        for name, (mean, variance) in {
            "cached": dense(X),
            "BoTorch": _posterior(single, X),
        }.items():
            mean, variance = (v.reshape(-1, 1) for v in (mean, variance))
            _check_moments(name, ours, untransform(mean, variance))
        return {}

    return Contest(
        {
            "ours": lambda _: _posterior(model, X.unsqueeze(-2)),
            _CACHED: lambda _: dense(X),
            _JOINT: lambda _: _posterior(single, X),
            _APART: lambda _: _posterior(single, X[:few].unsqueeze(-2)),
        },
        [[_CACHED], [_JOINT], [_APART]],
        check=check,
        times={_APART: candidates / few},
        note=f"{_APART}: {few} are timed",
    )


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
    tree, X, Y = _outputs(paths, n, 1, 0)
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


def _outputs(
    paths: int, n: int, outputs: int, seed: int
) -> tuple[ParameterTree, Tensor, Tensor]:
    tree = binary_tree(paths)
    return tree, *make_data(tree, sizes(paths, n), seed, outputs)


def fit_outputs(paths: int, n: int, outputs: int) -> Contest:
    """Construct and fit one model of all outputs, or one for each."""
    data = cache(partial(_outputs, paths, n, outputs))

    def ours(seed: int) -> TreeStructuredGP:
        tree, X, Y = data(seed)
        return fitted(TreeStructuredGP(X, Y, tree))

    def separate(seed: int) -> ModelListGP:
        tree, X, Y = data(seed)
        model = ModelListGP(*(TreeStructuredGP(X, y, tree) for y in Y.split(1, -1)))
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        return model

    return Contest(
        {"ours": ours, "ModelListGP": separate}, [["ModelListGP"]], prepare=data
    )


def predict_outputs(paths: int, n: int, outputs: int, candidates: int) -> Contest:
    """Posteriors of a model of all outputs, and of a list with the same values."""
    tree, X, Y = _outputs(paths, n, outputs, 0)
    model = fitted(TreeStructuredGP(X, Y, tree))
    separate = ModelListGP(*(model.subset_output([i]) for i in range(outputs)))
    test = make_points(tree, torch.arange(candidates) % paths, seed=1).unsqueeze(-2)

    def check() -> dict[str, Any]:
        _check_moments(
            "outputs", _posterior(model, test), _posterior(separate.eval(), test)
        )
        return {}

    return Contest(
        {
            "ours": lambda _: _posterior(model, test),
            "ModelListGP": lambda _: _posterior(separate, test),
        },
        [["ModelListGP"]],
        check=check,
    )


def more_data(paths: int, n: int, fantasies: int, points: int = 4) -> Contest:
    """New data, real or fantasies, and posteriors of 64 candidates from them.

    Args:
        paths: Paths of the tree.
        n: Points.
        fantasies: How many fantasies; 0 for observations.
        points: New points.
    """
    tree, X, Y = _outputs(paths, n, 1, 0)
    models = {
        "ours": fitted(TreeStructuredGP(X, Y, tree)),
        _SINGLE: fitted(SingleTaskGP(X, Y)),
    }
    new = make_points(tree, torch.arange(points) % paths, seed=1)
    test = make_points(tree, torch.arange(64) % paths, seed=2).unsqueeze(-2)
    seen = new.sin().sum(-1, keepdim=True)
    for model in models.values():
        _posterior(model, test)  # fills caches, as a search before would have

    def predict(model: SingleTaskGP) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            if not fantasies:
                return _moments(
                    model.condition_on_observations(new, seen).posterior(test)
                )
            sampler = SobolQMCNormalSampler(torch.Size([fantasies]), seed=0)
            # a batch of candidates in front of that of the fantasies
            return _moments(model.fantasize(new, sampler).posterior(test.unsqueeze(1)))

    def check() -> dict[str, Any]:
        ours = predict(models["ours"])
        if not fantasies:
            again = TreeStructuredGP(X, Y, tree)
            transform = models["ours"].outcome_transform
            again.load_state_dict(models["ours"].state_dict())
            again.set_train_data(
                torch.cat([X, new]),
                torch.cat([models["ours"].train_targets, transform(seen)[0][:, 0]]),
                strict=False,
            )
            _check_moments("conditioned", ours, _posterior(again.eval(), test))
        return {"shape": list(ours[0].shape)}

    return Contest(
        {name: lambda _, m=model: predict(m) for name, model in models.items()},
        [[_SINGLE]],
        check=check,
    )


_LARGE = {"paths": 64, "n": 2000}
_THREE = {"paths": 8, "n": 200, "outputs": 3}
_CASE = "8 paths, 200 points"
_SMALL = {"paths": 3, "n": 9}

#: By name.
ROWS = {
    "posterior": Row(
        "posterior of 1,000 candidates in one leaf",
        posterior,
        {"64 paths, 2,000 points": {**_LARGE, "candidates": 1000}},
        {**_SMALL, "candidates": 5},
    ),
    "one-posterior": Row(
        "posterior of one candidate",
        one_posterior,
        {
            "8 paths, 60 points": {"paths": 8, "n": 60},
            "64 paths, 2,000 points": _LARGE,
        },
        _SMALL,
    ),
    "two-step": Row(
        "two-step search",
        two_step,
        {"64 paths, 200 points": {"paths": 64, "n": 200}},
        _SMALL,
    ),
    "fit-outputs": Row(
        "construct and fit, three outputs",
        fit_outputs,
        {_CASE: _THREE},
        {**_SMALL, "outputs": 2},
    ),
    "predict-outputs": Row(
        "500 posteriors, three outputs",
        predict_outputs,
        {_CASE: {**_THREE, "candidates": 500}},
        {**_SMALL, "outputs": 2, "candidates": 6},
    ),
    "fantasies": Row(
        "8 fantasies at 4 points, then 64 posteriors",
        partial(more_data, fantasies=8),
        {_CASE: {"paths": 8, "n": 200}},
        {**_SMALL, "points": 2},
    ),
    "conditioning": Row(
        "conditioning on 4 observations, then 64 posteriors",
        partial(more_data, fantasies=0),
        {_CASE: {"paths": 8, "n": 200}},
        {**_SMALL, "points": 2},
    ),
}
