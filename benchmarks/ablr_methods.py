"""The methods of Perrone et al. (2017), section 3, for the harness.

All maximise LogEI in the same way, over the rows of a table or by ``optimize_acqf``,
and see the same columns: numbers on [0, 1], categories one-hot. They differ in the
model, and in whether it knows a problem's ``history``:

* `gp`: BoTorch's ``SingleTaskGP`` with its defaults; `ablr`: ``MultiTaskABLR`` of one
  task, or of its signals. Neither has data of other tasks.
* `warm`: ``MultiTaskABLR`` of one task on the features of that of all tasks, by default
  a network; optionally with the tasks' contexts as further columns, or random Fourier
  features for a network.
* `earlier`: the models behind ``suggest``, with the other tasks as old studies, on the
  columns of the space; `without` has none.
* `gp_stacked`: ``SingleTaskGP`` on all rows of all tasks, contexts as columns;
  hyperparameters from the history.

Features are first learnt from the history (or, without one, from the starts), once
for all seeds of a task. After every ``refit_every`` further rows of the task they are
learnt again: with a history from it and these rows, from the current values on; without
one from these rows, anew. In between they are held: the task's own regression on them,
with its own noise and weight precision, is fitted at every step. All of this is a
function of the problem and of the run's rows; caches between calls only save time.
"""

from __future__ import annotations

__all__ = [
    "ablr",
    "columns",
    "earlier",
    "gp",
    "gp_stacked",
    "on_features",
    "random",
    "suggest",
    "warm",
    "without",
]

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor, nn

from benchmarks.treed_methods import random
from botorch_structured.kernels import RandomFourierFeatures
from botorch_structured.models import MultiTaskABLR, OldStudiesMean
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn
from botorch_structured.suggest import fit_surrogates
from botorch_structured.suggest.suggestion import make_criterion
from botorch_structured.test_functions import TableProblem

# Steps of L-BFGS: from a random network, and from one fitted to fewer rows.
_FIRST_STEPS, _FURTHER_STEPS = 100, 5
_NUM_FOURIER = 100
_KEPT = 256


def columns(problem: Any, X: Tensor) -> Tensor:
    """``... x d`` points as models see them: ``... x d'`` within [0, 1]."""
    lower, upper = problem.space.bounds.to(X)
    parts = []
    for j, column in enumerate(problem.space.columns):
        x = X[..., j]
        if isinstance(column, CategoricalColumn) and len(column.codes) > 2:
            parts += [(x == code).to(X) for code in column.codes]
        else:
            parts.append((x - lower[j]) / (upper[j] - lower[j]))
    return torch.stack(parts, -1)


def suggest(
    problem: Any,
    model: Model,
    X: Tensor,
    best: float,
    context: Tensor | None = None,
    posterior_transform: Any = None,
) -> Tensor:
    """The point of largest LogEI, of a table: of the rows not evaluated yet.

    Args:
        problem: A table, or a box.
        model: A model of `columns`, followed by a context.
        X: ``n x d`` evaluated points.
        best: The best value.
        context: ``c`` numbers, the same everywhere.
        posterior_transform: From several outputs to one.
    """
    acqf = LogExpectedImprovement(model, best, posterior_transform=posterior_transform)
    if isinstance(problem, TableProblem):
        rows = _with(columns(problem, problem.candidates.to(X)), context)
        return _best_row(problem, acqf, rows, X)
    d = X.shape[-1]
    size = d if context is None else d + len(context)
    unit = torch.stack([X.new_zeros(size), X.new_ones(size)])
    fixed = {} if context is None else dict(enumerate(context.tolist(), d))
    x, _ = optimize_acqf(
        acqf, unit, 1, num_restarts=4, raw_samples=128, fixed_features=fixed or None
    )
    lower, upper = problem.bounds.to(X)
    return lower + (upper - lower) * x[0, :d]


def _best_row(problem: Any, acqf: Any, rows: Tensor, X: Tensor) -> Tensor:
    """The row of a table with the largest value that is not evaluated yet."""
    candidates = problem.candidates.to(X)
    with torch.no_grad():
        values = acqf(rows.unsqueeze(-2))
    known = (candidates.unsqueeze(1) == X).all(-1).any(-1)
    return candidates[values.masked_fill(known, -torch.inf).argmax()]


def earlier(
    problem: Any, X: Tensor, Y: Tensor, seed: int, known: bool = True
) -> Tensor:
    """The models of ``suggest``, with the tasks of the history as old studies.

    Args:
        problem: A table with a ``history``.
        X: ``n x d``.
        Y: ``n x 1``.
        seed: Of the fits.
        known: Whether the history is.
    """
    # that of the table has its rows only
    space = SearchSpace.from_columns(problem.space.columns, problem.space.tree)
    old_X, old_Y = problem.history.X.double(), -problem.history.Y.double()
    task = old_X[:, -1]

    def learn() -> OldStudiesMean:
        rows = [task == t for t in task.unique()]
        studies = [(old_X[own, :-1], old_Y[own]) for own in rows]
        return OldStudiesMean.from_studies(studies, space)

    old = _remember(("earlier", _digest(old_X, old_Y)), learn) if known else None
    fitted = fit_surrogates(space, X, Y, earlier=old, seed=seed)
    acqf, _ = make_criterion(space, fitted, X, len(X))
    return _best_row(problem, acqf, problem.candidates.to(X), X)


def without(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """`earlier` with nothing known."""
    return earlier(problem, X, Y, seed, known=False)


def gp(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """BoTorch's ``SingleTaskGP`` on the task's own rows."""
    model = SingleTaskGP(columns(problem, X), Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return suggest(problem, model, X, Y.max())


def gp_stacked(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """One GP on all rows of all tasks, told apart by their contexts [Krause 2011].

    Its hyperparameters are those of the history, as a fit is cubic in all rows.
    """
    old_X, old_Y, _, contexts = _history(problem, X)

    def fit() -> dict[str, Any]:
        model = SingleTaskGP(old_X, old_Y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return dict(model.named_parameters())

    fitted = _remember(("stacked", _digest(old_X, old_Y)), fit)
    context = contexts[problem.history.task]
    model = SingleTaskGP(
        torch.cat([old_X, _with(columns(problem, X), context)]), torch.cat([old_Y, Y])
    )
    model.load_state_dict(fitted, strict=False)
    return suggest(problem, model.eval(), X, Y.max(), context)


def ablr(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    seed: int,
    refit_every: int = 10,
    signals: bool = False,
) -> Tensor:
    """A regression on features learnt from the task's own rows.

    Args:
        problem: With ``signals(X)``, ``n x m``, the target first, if they are wanted.
        X: ``n x d``.
        Y: ``n x 1``.
        seed: Not used.
        refit_every: Rows between two fits of the features.
        signals: Whether features are learnt from all signals, or from the target only.
    """
    known = problem.signals(X) if signals else Y
    rows = columns(problem, X)
    num_starts = len(problem.starts(0))
    num_learnt = max(num_starts, len(X) - len(X) % refit_every)
    first_X, first_Y = rows[:num_learnt], known[:num_learnt]

    def fit() -> nn.Module:
        model = MultiTaskABLR(first_X, first_Y, task_feature=None)
        _fit(model, _FIRST_STEPS)
        return model.feature_map

    features = _remember(("ablr", _digest(first_X, first_Y)), fit)
    return suggest(problem, on_features(features, rows, Y), X, Y.max())


def warm(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    seed: int,
    refit_every: int = 10,
    context: bool = False,
    fourier: bool = False,
) -> Tensor:
    """A regression of the task's own rows on features learnt from all tasks.

    Args:
        problem: With a ``history``.
        X: ``n x d``.
        Y: ``n x 1``.
        seed: Not used.
        refit_every: Rows between two fits of the features.
        context: Whether contexts are further columns.
        fourier: Whether the features are ``RandomFourierFeatures``.
    """
    num_learnt = len(X) - len(X) % refit_every
    tasks = _learnt(
        problem, X[:num_learnt], Y[:num_learnt], refit_every, context, fourier
    )
    own = _own_context(problem, X) if context else None
    rows = _with(columns(problem, X), own)
    model = on_features(tasks.feature_map, rows, Y)
    return suggest(problem, model, X, Y.max(), own)


def on_features(features: nn.Module, X: Tensor, Y: Tensor) -> MultiTaskABLR:
    """A regression of one task on features that are held, fitted.

    Args:
        features: ``n x d`` to ``n x D``; copied.
        X: ``n x d``.
        Y: ``n x 1``.
    """
    held = _Held(deepcopy(features))
    model = MultiTaskABLR(X, Y, task_feature=None, feature_map=held)
    _fit(model, _FIRST_STEPS)
    return model


class _Held(nn.Module):
    """Features that are not learnt any more."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.requires_grad_(False)

    def forward(self, X: Tensor) -> Tensor:
        return self.module(X)


def _learnt(
    problem: Any, X: Tensor, Y: Tensor, refit_every: int, context: bool, fourier: bool
) -> MultiTaskABLR:
    """The model of the history and the first rows of the task.

    Its fit starts from that with ``refit_every`` rows fewer.
    """
    old_X, old_Y, task, contexts = _history(problem, X)
    if not context:
        old_X = old_X[:, : old_X.shape[1] - contexts.shape[1]]

    def fit() -> MultiTaskABLR:
        own = contexts[problem.history.task] if context else None
        rows = torch.cat([old_X, _with(columns(problem, X), own)])
        number = torch.cat([task, task.new_full((len(X),), problem.history.task)])
        before, features = None, None
        if fourier:
            features = RandomFourierFeatures(_NUM_FOURIER, seed=0)
        if len(X):
            n = len(X) - refit_every
            before = _learnt(problem, X[:n], Y[:n], refit_every, context, fourier)
            features = deepcopy(before.feature_map)
        model = MultiTaskABLR(
            torch.cat([rows, number.unsqueeze(-1)], -1),
            torch.cat([old_Y, Y]),
            task_feature=-1,
            all_tasks=list(range(problem.history.num_tasks)),
            feature_map=features,
        )
        if before is not None:
            # parameters only: the scale of the task's outcomes has changed
            known = dict(before.named_parameters())
            model.load_state_dict(known, strict=False)
        # with many rows the starting values matter little: one start
        _fit(model, _FIRST_STEPS if before is None else _FURTHER_STEPS, num_starts=1)
        return model

    key = _digest(old_X, old_Y, columns(problem, X), Y)
    key = (context, fourier, refit_every, problem.history.task, key)
    return _remember(("warm", *key), fit)


def _fit(model: MultiTaskABLR, steps: int, **how: Any) -> None:
    fit_gpytorch_mll(
        ExactMarginalLogLikelihood(model.likelihood, model),
        optimizer_kwargs={"options": {"maxiter": steps}},
        progress=False,
        **how,
    )


def _history(problem: Any, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns with the context, values (larger is better), tasks, contexts."""
    history = problem.history
    task = history.X[:, -1].to(like)
    contexts = like.new_zeros(history.num_tasks, 0)
    if history.contexts is not None:
        contexts = history.contexts.to(like)
        width = contexts.amax(0) - contexts.amin(0)
        contexts = (contexts - contexts.amin(0)) / torch.where(width > 0, width, 1.0)
    rows = columns(problem, history.X[:, :-1].to(like))
    return (
        torch.cat([rows, contexts[task.long()]], -1),
        -history.Y.to(like),
        task,
        contexts,
    )


def _own_context(problem: Any, like: Tensor) -> Tensor:
    return _history(problem, like)[3][problem.history.task]


def _with(rows: Tensor, context: Tensor | None) -> Tensor:
    if context is None:
        return rows
    return torch.cat([rows, context.expand(*rows.shape[:-1], -1)], -1)


_memory: OrderedDict[Any, Any] = OrderedDict()


def _remember(key: Any, make: Callable[[], Any]) -> Any:
    """The value made for this key, cached for the latest ``_KEPT`` keys."""
    if key not in _memory:
        _memory[key] = make()
        if len(_memory) > _KEPT:
            _memory.popitem(last=False)
    _memory.move_to_end(key)
    return _memory[key]


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(repr(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
