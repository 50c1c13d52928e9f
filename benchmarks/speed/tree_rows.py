"""Rows of the tree models: fits, suggestions, evidence."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.optim.closures import get_loss_closure_with_grads
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.fits import fitted, objective
from benchmarks.speed.contest import Contest, Row, check_equal
from benchmarks.speed.peers import TorchDense
from benchmarks.speed.problems import binary_tree, make_data, sizes
from botorch_structured.models import TreeStructuredGP
from botorch_structured.models.map_fit import FIT_OPTIONS
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.suggest import Suggestion, suggest

_NOISE = 0.02  # where hyperparameters are not fitted
_DENSE = "dense, plain torch"
Data = tuple[Tensor, Tensor]


def _loss(model: TreeStructuredGP) -> float:
    """Minus the fit's objective, per point."""
    mll = objective(model).train()
    with torch.no_grad():
        value = model.compute_custom_loss(mll)
    mll.eval()
    return float(value)


def _by_closure(
    mll: ExactMarginalLogLikelihood, loss: Callable[[], Tensor]
) -> dict[str, Any]:
    """Arguments of a fit by automatic differentiation."""
    parameters = {k: p for k, p in mll.named_parameters() if p.requires_grad}

    def closure() -> tuple[Tensor, list[Tensor]]:
        value = loss()
        return value, list(torch.autograd.grad(value, [*parameters.values()]))

    return {"closure": closure, "optimizer_kwargs": {"options": FIT_OPTIONS}}


# -- fits and suggestions ---------------------------------------------------------


_SAME = "SingleTaskGP, same data"
_PLAIN = "SingleTaskGP, as many points in the columns of one path"


def _in_a_box(tree: ParameterTree, n: int, seed: int) -> Data:
    """Points of a space without decisions, as many columns as a path has."""
    plain = ParameterTree(max(len(path.active) for path in tree.paths))
    return make_data(plain, [n], seed)


def _data(tree: ParameterTree, n: int) -> Callable[[int], Data]:
    """Data by the seed, made once."""
    return cache(partial(make_data, tree, sizes(tree.num_paths, n)))


def _unit(dim: int) -> Tensor:
    """Bounds, ``2 x d``."""
    return torch.tensor([[0.0], [1.0]]).double().expand(2, dim)


def _by_botorch(data: Callable[[int], Data], seed: int) -> Tensor:
    """BoTorch's suggestion, all columns at once."""
    X, Y = data(seed)
    torch.manual_seed(seed)
    acqf = LogExpectedImprovement(fitted(SingleTaskGP(X, Y)), best_f=Y.max())
    bounds = _unit(X.shape[-1])
    return optimize_acqf(acqf, bounds, q=1, num_restarts=10, raw_samples=512)[0]


def _space(tree: ParameterTree) -> SearchSpace:
    return SearchSpace([f"x{c}" for c in range(tree.dim)], _unit(tree.dim), tree)


def _by_suggest(
    space: SearchSpace, data: Callable[[int], Data]
) -> tuple[Callable[[int], Suggestion], Callable[[], dict[str, Any]]]:
    """The call of ``suggest``, and its check."""

    def ours(seed: int) -> Suggestion:
        return suggest(space, *data(seed), seed=seed)

    def check() -> dict[str, Any]:
        suggestion = ours(0)
        if not space.feasible(suggestion.X).all():
            raise AssertionError(
                f"X: expected a point of the space, got {suggestion.X}."
            )
        return {"weights": suggestion.weights.tolist()}

    return ours, check


def fit(paths: int, n: int, compared: int = 3) -> Contest:
    """Construct and fit, with another data set in each repetition.

    On the first ``compared`` data sets the optimum is compared with that of a fit by
    automatic differentiation.
    """
    tree = binary_tree(paths)
    data = _data(tree, n)
    box = cache(partial(_in_a_box, tree, n))

    def ours(seed: int) -> TreeStructuredGP:
        return fitted(TreeStructuredGP(*data(seed), tree))

    def check() -> dict[str, Any]:
        gaps = []
        for seed in range(compared):
            general = TreeStructuredGP(*data(seed), tree)
            mll = objective(general)
            loss = partial(general.compute_custom_loss, mll)
            fit_gpytorch_mll(mll, **_by_closure(mll, loss))
            gaps.append(n * (_loss(ours(seed)) - _loss(general)))
        if statistics.mean(gaps) > 0.5:
            raise AssertionError(f"Worse optima than automatic differentiation: {gaps}")
        return {"nats_above_automatic_differentiation": gaps}

    return Contest(
        {
            "ours": ours,
            _SAME: lambda seed: fitted(SingleTaskGP(*data(seed))),
            _PLAIN: lambda seed: fitted(SingleTaskGP(*box(seed))),
        },
        [[_SAME], [_PLAIN]],
        check=check,
        prepare=lambda seed: (data(seed), box(seed)),
    )


def suggestion(paths: int, n: int, warm: bool) -> Contest:
    """Construct, fit and maximise LogEI; over all paths, and in BoTorch's box."""
    tree = binary_tree(paths)
    data = _data(tree, n)
    box = cache(partial(_in_a_box, tree, n))

    @cache
    def before(seed: int) -> dict[str, Any]:
        """The fit before the last point was known."""
        X, Y = data(seed)
        if not warm:
            return {}
        return {"start_from": fitted(TreeStructuredGP(X[:-1], Y[:-1], tree))}

    def ours(seed: int) -> Data:
        X, Y = data(seed)
        model = fitted(TreeStructuredGP(X, Y, tree), **before(seed))
        acqf = LogExpectedImprovement(model, best_f=Y.max())
        return optimize_acqf_paths(acqf, _unit(tree.dim), tree, X_avoid=X, seed=seed)

    def check() -> dict[str, Any]:
        x, value = ours(0)
        tree.active_mask(x)  # a point of the space
        if not value.isfinite():
            raise AssertionError(f"LogEI: expected a number, got {value}.")
        return {"log_ei": float(value)}

    return Contest(
        {
            "ours": ours,
            _SAME: partial(_by_botorch, data),
            _PLAIN: partial(_by_botorch, box),
        },
        [[_SAME], [_PLAIN]],
        check=check,
        prepare=lambda seed: (before(seed), box(seed)),
    )


_ALONE = "TreeStructuredGP alone"


def recommended(paths: int, n: int) -> Contest:
    """``suggest``, which averages two models, against one of these and BoTorch's."""
    tree = binary_tree(paths)
    one = suggestion(paths, n, warm=False)
    ours, check = _by_suggest(_space(tree), _data(tree, n))
    return Contest(
        {"ours": ours, _ALONE: one.calls["ours"], _PLAIN: one.calls[_PLAIN]},
        [[_ALONE], [_PLAIN]],
        check=check,
        prepare=one.prepare,
    )


def recommended_of(decisions: int, columns: int, n: int) -> Contest:
    """``suggest`` where decisions are independent, each with a column of its own.

    Args:
        decisions: How many, with two values each; a column exists at one of them.
        columns: How many more there are, in all paths.
        n: The number of points.
    """
    dim = 2 * decisions + columns
    tree = ParameterTree(
        dim, {k: {0.0: [], 1.0: [decisions + k]} for k in range(decisions)}
    )
    space = _space(tree)

    @cache
    def data(seed: int) -> Data:
        X = space.sample(n, seed=seed)
        noise = torch.randn(n, 1, generator=torch.Generator().manual_seed(seed))
        wave = (3.0 * X * tree.active_mask(X)).sin().sum(-1, keepdim=True)
        return X, wave + 0.05 * noise.double()

    ours, check = _by_suggest(space, data)
    calls = {"ours": ours, _SAME: partial(_by_botorch, data)}
    return Contest(calls, [[_SAME]], check=check, prepare=data)


# -- evidence ---------------------------------------------------------------------


def first_model(paths: int, n: int, largest: int | None = None) -> TreeStructuredGP:
    """A model before its fit, with some noise."""
    tree = binary_tree(paths)
    model = TreeStructuredGP(*make_data(tree, sizes(paths, n, largest)), tree)
    model.likelihood.noise = _NOISE
    return model


def evaluation(
    mll: ExactMarginalLogLikelihood,
) -> Callable[[], tuple[float, Tensor]]:
    """Value and gradient as a default fit computes them."""
    in_closed_form = mll.model.fit_objective(mll)
    if in_closed_form is not None:
        theta = in_closed_form.read()

        def evaluate() -> tuple[float, Tensor]:
            value, gradient = in_closed_form(theta)
            return value, torch.from_numpy(gradient)

        return evaluate
    parameters = {k: p for k, p in mll.named_parameters() if p.requires_grad}
    closure = get_loss_closure_with_grads(mll.train(), parameters)

    def by_autograd() -> tuple[float, Tensor]:
        value, gradient = closure()
        return float(value.detach()), torch.cat([g.flatten() for g in gradient])

    return by_autograd


def _graded(loss: Callable[[], Tensor], of: torch.nn.Module) -> tuple[Tensor, ...]:
    value = loss()
    parameters = [p for p in of.parameters() if p.requires_grad]
    return value, *torch.autograd.grad(value, parameters)


def evidence(paths: int, n: int, largest: int | None = None) -> Contest:
    """The fit's objective and its gradient, at the model's first hyperparameters."""
    model = first_model(paths, n, largest)
    mll = objective(model)
    evaluate = evaluation(mll)
    dense = TorchDense(mll)

    def check() -> dict[str, Any]:
        value, gradient = evaluate()
        found, *parts = _graded(dense.loss, mll)
        check_equal("value, plain torch", value, found.item(), 1e-8)
        gap = gradient - torch.cat([part.flatten() for part in parts])
        largest = float(gap.abs().max())
        check_equal("gradient, plain torch", largest, 0.0, 1e-8)
        return {"largest_gap_of_gradients": largest}

    return Contest(
        {
            "ours": lambda _: evaluate(),
            _DENSE: lambda _: _graded(dense.loss, mll),
        },
        [[_DENSE]],
        check=check,
    )


def whole_fit(
    paths: int, n: int, largest: int | None = None, counted: bool = False
) -> Contest:
    """Construct and fit; dense with the same hyperparameters, priors and optimiser.

    ``counted``: a dense fit takes too long, so one evaluation is timed, and multiplied
    by the number of evaluations of a fit of the same objective by automatic
    differentiation leaf by leaf, which are as many.
    """
    tree = binary_tree(paths)
    rows = sizes(paths, n, largest)

    @cache
    def data(seed: int) -> Data:
        return make_data(tree, rows, 0 if counted else seed)

    def ours(seed: int) -> TreeStructuredGP:
        return fitted(TreeStructuredGP(*data(seed), tree))

    def by_closure(seed: int, dense: bool) -> tuple[TreeStructuredGP, int]:
        """The model, and the number of evaluations."""
        model = TreeStructuredGP(*data(seed), tree)
        mll = objective(model)
        loss = (
            TorchDense(mll).loss if dense else partial(model.compute_custom_loss, mll)
        )
        count = 0

        def counting() -> Tensor:
            nonlocal count
            count += 1
            return loss()

        fit_gpytorch_mll(mll, **_by_closure(mll, counting))
        return model, count

    other, evaluations = by_closure(0, dense=not counted)

    def check() -> dict[str, Any]:
        gap = n * (_loss(ours(0)) - _loss(other))
        if gap > 1.0:
            raise AssertionError(f"A worse optimum than the peer's, by {gap} nats.")
        return {"nats_above_the_peer": gap, "evaluations_of_the_peer": evaluations}

    if counted:
        mll = objective(TreeStructuredGP(*data(0), tree))
        dense = TorchDense(mll)
        return Contest(
            {"ours": ours, _DENSE: lambda _: _graded(dense.loss, mll)},
            [[_DENSE]],
            check=check,
            times={_DENSE: evaluations},
            note=f"dense: {evaluations} times one evaluation",
        )
    return Contest(
        {"ours": ours, _DENSE: lambda seed: by_closure(seed, dense=True)},
        [[_DENSE]],
        check=check,
        prepare=data,
    )


_FOUR = {
    "8 paths, 400 points": {"paths": 8, "n": 400},
    "64 paths, 2,000 points": {"paths": 64, "n": 2000},
    "16 paths, 1,000 points, 600 on one": {"paths": 16, "n": 1000, "largest": 600},
    "200 paths, 1,000 points": {"paths": 200, "n": 1000},
}
_SMALL = {"paths": 3, "n": 9}

#: By name.
ROWS = {
    "fit": Row(
        "construct and fit",
        fit,
        {f"8 paths, {n} points": {"paths": 8, "n": n} for n in (20, 50, 100)},
        {**_SMALL, "compared": 1},
    ),
    "suggestion": Row(
        "suggestion (construct, fit, LogEI over all paths)",
        partial(suggestion, warm=False),
        {"8 paths, 60 points": {"paths": 8, "n": 60}},
        _SMALL,
    ),
    "warm-suggestion": Row(
        "the same from the last fit",
        partial(suggestion, warm=True),
        {"8 paths, 60 points": {"paths": 8, "n": 60}},
        _SMALL,
    ),
    "suggest": Row(
        "suggest",
        recommended,
        {"8 paths, 60 points": {"paths": 8, "n": 60}},
        _SMALL,
    ),
    "suggest-flat": Row(
        "suggest without decisions",
        partial(recommended_of, 0),
        {f"{d} columns, 50 points": {"columns": d, "n": 50} for d in (8, 60)},
        {"columns": 2, "n": 6},
    ),
    "suggest-decisions": Row(
        "suggest with independent decisions",
        partial(recommended_of, columns=2),
        {f"{k} decisions, 100 points": {"decisions": k, "n": 100} for k in (10, 20)},
        {"decisions": 3, "n": 6},
    ),
    "evidence": Row("evidence and gradient", evidence, _FOUR, _SMALL),
    "whole-fit": Row(
        "construct and fit",
        whole_fit,
        {
            case: {**arguments, "counted": arguments["n"] >= 2000}
            for case, arguments in _FOUR.items()
        },
        _SMALL,
    ),
}
