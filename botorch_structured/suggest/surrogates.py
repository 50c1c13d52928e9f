"""What `suggest` fits: one or two models for each outcome."""

from __future__ import annotations

__all__ = [
    "Mixture",
    "Surrogates",
    "check_data",
    "check_models",
    "check_table",
    "fit_checked",
    "fit_models",
    "fit_surrogates",
    "old_studies_predict",
    "seeded_if",
]

import math
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from botorch.exceptions import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.outcome import ChainedOutcomeTransform
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import (
    ConditionalGP,
    OldStudiesMean,
    TransferGP,
    TreeStructuredGP,
)
from botorch_structured.models.contexts import seeded
from botorch_structured.models.fast_inference import FastSingleTaskGP
from botorch_structured.models.leave_one_out import leave_one_out_weights
from botorch_structured.models.outcome_scale import AnyScaleStandardize
from botorch_structured.models.tree.leaf_model import LeafModel
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_seed
from botorch_structured.transforms import ClipTail

# Observations above which one model is fitted: averaging is for few data.
_MANY_ROWS = 200
# With so few observations the model with old studies is alone, if they predict these,
# and it begins with so many times the weight of each other one.
_ALONE = 5
_ODDS = 20.0
# Known costs from which there is a model of them.
_MIN_COSTS = 2


class Mixture(NamedTuple):
    """Models of one outcome.

    Attributes:
        models: The fitted models; with old studies, the last one is a ``TransferGP``.
        weights: The weight of each, with sum 1.
    """

    models: list[FastSingleTaskGP]
    weights: Tensor


class Surrogates(NamedTuple):
    """All that `suggest` has fitted to the data.

    Attributes:
        objectives: Of each objective.
        constraints: Of each constraint's outcome.
        cost: Of the logarithm of the cost; None where fewer than two are known.
    """

    objectives: list[Mixture]
    constraints: list[Mixture]
    cost: LeafModel | None = None


def fit_models(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    start_from: Sequence[LeafModel] | None = None,
    averaged: bool = True,
    **kwargs: Any,
) -> list[LeafModel]:
    """The models of one outcome behind `suggest`, fitted; the tree's is the first.

    Args:
        space: The space.
        train_X: ``n x d`` evaluated points of it.
        train_Y: ``n x 1`` outcomes, larger ones are better; ``-inf`` where an
            evaluation failed.
        start_from: What this function returned for fewer observations: fits start from
            its hyperparameters.
        averaged: Whether there may be a second model.
        kwargs: Further arguments of the models, such as ``outcome_transform`` (default:
            ``ClipTail(tail="log")``, then ``Standardize``).

    Returns:
        A ``TreeStructuredGP``, and, if ``averaged``, where the space has decisions and
        there are at most 200 observations, a ``ConditionalGP``.

    Raises:
        ValueError: An argument is not what it should be.
    """
    _check_space(space)
    check_table("train_X", train_X, space.dim)
    check_table("train_Y", train_Y, 1)
    earlier = {type(model): model for model in check_models(start_from or ())}
    classes: list[type[LeafModel]] = [TreeStructuredGP]
    if averaged and space.tree.decision_columns and len(train_X) <= _MANY_ROWS:
        classes.append(ConditionalGP)
    models: list[LeafModel] = []
    for kind in classes:
        # a transform learns from the data: each model has its own
        options = {k: deepcopy(v) for k, v in kwargs.items()}
        options.setdefault("outcome_transform", _compressed_tail())
        start = earlier.get(kind)
        models.append(_fitted(kind, space, train_X, train_Y, start, **options))
    return models


def fit_surrogates(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    start_from: Surrogates | None = None,
    *,
    train_C: Tensor | None = None,
    train_cost: Tensor | None = None,
    train_Yvar: Tensor | None = None,
    seed: int | None = None,
    earlier: OldStudiesMean | None = None,
    **kwargs: Any,
) -> Surrogates:
    """All models behind `suggest`, fitted: what it does before it searches.

    Choose it to repeat the fits of a search that is read from a file; the next
    suggestion, with ``start_from``, is then what it would have been.

    Args:
        space: The space.
        train_X: ``n x d`` evaluated points.
        train_Y: ``n x m`` objectives, as for `suggest`, like all that follows.
        start_from: What this function returned for fewer observations.
        train_C: ``n x k`` outcomes of constraints.
        train_cost: ``n x 1`` costs.
        train_Yvar: ``n x m`` variances of the objectives' noise.
        seed: That of the suggestion whose fits are repeated.
        earlier: What old studies have taught, for one objective.
        kwargs: Further arguments of the models of objectives.

    Returns:
        Two models for an objective and each of its constraints, one where there are
        several objectives, and one of the cost.

    Raises:
        ValueError: An argument is not what it should be, or all evaluations failed.
    """
    check_data(space, train_X, train_Y, train_C, train_cost, train_Yvar)
    with seeded_if(seed, train_X.device):
        return fit_checked(
            space,
            train_X,
            train_Y,
            start_from,
            train_C,
            train_cost,
            train_Yvar,
            old=earlier,
            **kwargs,
        )


def fit_checked(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    start_from: Surrogates | None = None,
    train_C: Tensor | None = None,
    train_cost: Tensor | None = None,
    train_Yvar: Tensor | None = None,
    old: OldStudiesMean | None = None,
    **kwargs: Any,
) -> Surrogates:
    """`fit_surrogates` of data that `check_data` has seen."""
    last = Surrogates([], []) if start_from is None else start_from
    # a row of which one objective failed has none
    failed = (train_Y == -math.inf).any(-1, keepdim=True)
    # of several objectives the second model makes the front worse, not better
    averaged = train_Y.shape[-1] == 1
    alone = old is not None and len(train_Y) <= _ALONE
    if old is not None and 1 < len(train_Y) <= _ALONE:
        alone = old_studies_predict(old, train_X, train_Y, train_C, train_Yvar)

    def mixture(
        earlier: list[Mixture],
        k: int,
        X: Tensor,
        Y: Tensor,
        learnt: OldStudiesMean | None = None,
        **options: Any,
    ) -> Mixture:
        # Variances are squares: those of larger numbers, such as the largest float that
        # some return for a failure, are infinite.
        most = torch.finfo(Y.dtype).max ** 0.4
        Y = torch.where(Y.isfinite(), Y.clamp(-most, most), Y)
        start = earlier[k].models if k < len(earlier) else ()
        start = [model for model in start if isinstance(model, LeafModel)]
        models: list[FastSingleTaskGP] = []
        if learnt is None or not alone:
            models += fit_models(space, X, Y, start, averaged, **options)
        odds = [1.0] * len(models)
        if learnt is not None:
            tail = deepcopy(options.get("outcome_transform", _compressed_tail()))
            noise = options.get("train_Yvar")
            models.append(TransferGP(X, Y, learnt, noise, outcome_transform=tail))
            odds.append(_ODDS)
        return Mixture(models, leave_one_out_weights(models, odds))

    objectives = []
    for k, y in enumerate(train_Y.masked_fill(failed, -math.inf).split(1, dim=-1)):
        noise: dict[str, Any] = {}
        if train_Yvar is not None:
            noise["train_Yvar"] = train_Yvar[:, k, None]
        objectives.append(
            mixture(last.objectives, k, train_X, y, old, **noise, **kwargs)
        )
    constraints = []
    for k, c in enumerate(() if train_C is None else train_C.split(1, dim=-1)):
        known = ~c.isnan().squeeze(-1)
        tail = _compressed_tail(maximize=False)
        constraints.append(
            mixture(
                last.constraints, k, train_X[known], c[known], outcome_transform=tail
            )
        )
    cost = None
    if train_cost is not None:
        known = ~train_cost.isnan().squeeze(-1)
        if int(known.sum()) >= _MIN_COSTS:
            logs = train_cost[known].log()
            cost = _fitted(TreeStructuredGP, space, train_X[known], logs, last.cost)
    return Surrogates(objectives, constraints, cost)


def old_studies_predict(
    old: OldStudiesMean,
    train_X: Tensor,
    train_Y: Tensor,
    train_C: Tensor | None = None,
    train_Yvar: Tensor | None = None,
) -> bool:
    """Whether old studies predict the first outcomes of a new one.

    Args:
        old: What they have taught.
        train_X: ``n x d`` points.
        train_Y: ``n x 1`` outcomes, ``-inf`` where an evaluation failed.
        train_C: ``n x k`` outcomes of constraints.
        train_Yvar: ``n x 1`` variances of the outcomes' noise.

    Returns:
        Whether the log odds of `TransferGP` are positive, averaged over the first two
        to five outcomes, up to 20 : 1 each: the last ones are near an optimum, and
        differ by what no old study tells. Evaluations that failed or broke a constraint
        do not count; True with fewer than two others. False with fewer than two at all.
    """
    good = train_Y.isfinite().all(-1)
    if train_C is not None:
        good &= (train_C <= 0.0).all(-1)
    X, Y = train_X[good][:_ALONE], train_Y[good][:_ALONE]
    noise = None if train_Yvar is None else train_Yvar[good][:_ALONE]
    total, most = 0.0, math.log(_ODDS)
    with warnings.catch_warnings():
        # outcomes that are all alike are nobody's mistake
        warnings.simplefilter("ignore", InputDataWarning)
        for n in range(2, len(Y) + 1):
            known, tail = None if noise is None else noise[:n], _compressed_tail()
            model = TransferGP(X[:n], Y[:n], old, known, outcome_transform=tail)
            odds = model.log_odds()
            total += min(max(odds, -most), most)
    return len(train_X) > 1 and total >= 0.0


def seeded_if(seed: int | None, device: torch.device) -> AbstractContextManager[None]:
    """The seed for a while, if there is one."""
    seed = check_seed(seed)
    return nullcontext() if seed is None else seeded(seed, device)


def check_data(
    space: Any,
    train_X: Any,
    train_Y: Any,
    train_C: Any = None,
    train_cost: Any = None,
    train_Yvar: Any = None,
) -> None:
    """Raise a ``ValueError`` for what no suggestion can be made of.

    Args:
        space: See `suggest`, like all others.
        train_X: ``n x d``.
        train_Y: ``n x m``.
        train_C: ``n x k``.
        train_cost: ``n x 1``.
        train_Yvar: ``n x m``.
    """
    _check_space(space)
    check_table("train_X", train_X, space.dim)
    if not len(train_X):
        raise ValueError(
            "train_X: expected at least one evaluated point, got none. Evaluate "
            "space.starts() first."
        )
    space.check_points(train_X, "train_X")
    check_table("train_Y", train_Y, None, len(train_X), train_X.dtype)
    if bool((bad := train_Y.isnan() | (train_Y == math.inf)).any()):
        raise ValueError(
            "train_Y: expected numbers, or -inf where an evaluation failed, got NaN "
            f"or inf in rows {bad.any(-1).nonzero().flatten().tolist()[:10]}."
        )
    failed = (train_Y == -math.inf).any(-1)
    if bool(failed.all()):
        raise ValueError(
            "train_Y: expected at least one evaluation that did not fail, got "
            f"{len(train_Y)} that did (-inf). Evaluate random points, space.sample(n), "
            "until one does not."
        )
    if train_Yvar is not None:
        check_table("train_Yvar", train_Yvar, train_Y.shape[-1], len(train_X))
    if train_C is not None:
        check_table("train_C", train_C, None, len(train_X), train_X.dtype)
        bad = ~(train_C.isfinite() | (train_C.isnan() & failed.unsqueeze(-1)))
        if bool(bad.any()):
            raise ValueError(
                "train_C: expected finite numbers, and NaN only where the evaluation "
                "failed (train_Y is -inf), got others in rows "
                f"{bad.any(-1).nonzero().flatten().tolist()[:10]}."
            )
    if train_cost is not None:
        check_table("train_cost", train_cost, 1, len(train_X), train_X.dtype)
        bad = ~(train_cost.isnan() | ((train_cost > 0.0) & train_cost.isfinite()))
        if bool(bad.any()):
            raise ValueError(
                "train_cost: expected positive numbers, or NaN where a cost is not "
                f"known, got {train_cost[bad][:3].tolist()}."
            )


def check_table(
    name: str,
    given: Any,
    columns: int | None,
    rows: int | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Raise a ``ValueError`` unless it is a table of numbers of that size.

    Args:
        name: Of the argument.
        given: What was given.
        columns: How many; None for any.
        rows: How many; None for any.
        dtype: Of the numbers; None for any.
    """
    wanted = f"{'n' if rows is None else rows} x {'m' if columns is None else columns}"
    got = f"a {type(given).__name__}"
    if isinstance(given, Tensor):
        got = f"shape {tuple(given.shape)}"
        wide = given.ndim == 2 and given.shape[-1] == (columns or given.shape[-1] or 1)
        if wide and rows in (None, len(given)):
            if dtype in (None, given.dtype):
                return
            wanted, got = f"{wanted} and {dtype}, as train_X", str(given.dtype)
    raise ValueError(f"{name}: expected a tensor of shape {wanted}, got {got}.")


def _check_space(space: Any) -> None:
    if not isinstance(space, SearchSpace):
        raise ValueError(f"space: expected a SearchSpace, got {type(space).__name__}.")


def check_models(models: Any) -> Sequence[LeafModel]:
    """Raise a ``ValueError`` unless fits can start from these."""
    several = isinstance(models, Iterable)
    found = list(models) if several else []
    if not several or not all(isinstance(model, LeafModel) for model in found):
        kinds = [type(model).__name__ for model in found]
        raise ValueError(
            "start_from: expected an earlier suggestion, or the list of its models, "
            f"got {kinds if several else type(models).__name__}."
        )
    return found


def _compressed_tail(maximize: bool = True) -> ChainedOutcomeTransform:
    return ChainedOutcomeTransform(
        clip=ClipTail(maximize, tail="log"), standardize=AnyScaleStandardize(m=1)
    )


def _fitted(
    kind: type[LeafModel],
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    earlier: LeafModel | None,
    **kwargs: Any,
) -> LeafModel:
    model: LeafModel = kind(train_X, train_Y, space, **kwargs)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    # variances of the noise may be known now that were not, or the other way round
    alike = earlier is not None and type(earlier.likelihood) is type(model.likelihood)
    fit_gpytorch_mll(mll, **({"start_from": earlier} if alike else {}))
    return model
