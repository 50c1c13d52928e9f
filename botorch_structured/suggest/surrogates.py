"""The models that `suggest` fits: one or two for each outcome.

References:

.. [Rasmussen2006gpml]
    C. E. Rasmussen and C. K. I. Williams. Gaussian Processes for Machine Learning. MIT
    Press 2006.
.. [Yao2018stacking]
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman. Using Stacking to Average Bayesian
    Predictive Distributions. Bayesian Analysis 13(3), 2018.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import torch
from botorch.exceptions import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import ChainedOutcomeTransform
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.models import (
    ConditionalGP,
    OldStudiesMean,
    TransferGP,
    TreeStructuredGP,
)
from botorch_structured.models.fast_inference import FastSingleTaskGP
from botorch_structured.models.map_fit import seeded
from botorch_structured.models.outcome_scale import AnyScaleStandardize
from botorch_structured.models.tree.leaf_model import MAX_LOSS, LeafModel
from botorch_structured.models.tree.solver import LeafSolver
from botorch_structured.models.tree.warm_start import take_values
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_count, check_seed, warn
from botorch_structured.transforms import ClipTail

# With so few observations the model with old studies is alone, if they predict these,
# and it begins with so many times the weight of each other one.
_ALONE = 5
_ODDS = 20.0


# A fit is to so many rows of a path, and to so many in all if few paths have data.
_ROWS_OF_PATH = 240
_ROWS = 800
# So often rows join that a fit predicts badly.
_MORE_FITS = 3
#: Models see at most so many rows of a path: the best ones, and a spread of others.
MAX_ROWS = 1_000
# If models see more, a suggestion takes seconds: 2 at 2,000, 8 at 4,000.
_MANY_ROWS = 2_000


class TrainingData(NamedTuple):
    """Evaluations, as the models see them; `read_data` says what they have to be.

    Attributes:
        X: ``n x d`` points.
        Y: ``n x m`` objectives, ``-inf`` where an evaluation failed.
        C: ``n x k`` outcomes of constraints, NaN where an evaluation failed.
        cost: ``n x 1`` costs, NaN where one was not told.
        Yvar: ``n x m`` variances of the objectives' noise.
    """

    X: Tensor
    Y: Tensor
    C: Tensor | None = None
    cost: Tensor | None = None
    Yvar: Tensor | None = None


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
        objectives: The models of each objective.
        constraints: The models of each constraint's outcome.
        cost: The model of the logarithm of the cost; None where fewer than two costs
            were told.
        num_fitted: To how many evaluations hyperparameters were fitted.
    """

    objectives: list[Mixture]
    constraints: list[Mixture]
    cost: LeafModel | None = None
    num_fitted: int = 0


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
    check_space(space)
    check_table("train_X", train_X, space.dim)
    check_table("train_Y", train_Y, 1)
    starts = [*(start_from or ())]
    if not all(isinstance(model, LeafModel) for model in starts):
        got = [type(model).__name__ for model in starts]
        raise ValueError(f"start_from: expected models of an earlier fit, got {got}.")
    return _fit_models(space, train_X, train_Y, starts, averaged, **kwargs)


def _fit_models(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    start_from: Iterable[FastSingleTaskGP],
    averaged: bool,
    **kwargs: Any,
) -> list[LeafModel]:
    """`fit_models` of arguments that were checked."""
    starts: dict[type, Any] = {}
    for earlier in start_from:
        starts[type(earlier)] = earlier
    classes: list[type[LeafModel]] = [TreeStructuredGP]
    # averaging is for few data
    if averaged and space.tree.decision_columns and len(train_X) <= 200:
        classes.append(ConditionalGP)
    models: list[LeafModel] = []
    for kind in classes:
        # a transform learns from the data: each model has its own
        options = deepcopy(kwargs)
        options.setdefault("outcome_transform", _compressed_tail())
        start = starts.get(kind)
        models.append(
            _fit_model(
                kind,
                space,
                train_X,
                train_Y,
                start,
                **options,
            )
        )
    return models


def _fit_model(
    kind: type[LeafModel],
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    start_from: LeafModel | None,
    refits: bool = True,
    train_Yvar: Tensor | None = None,
    max_rows: int | None = None,
    **kwargs: Any,
) -> LeafModel:
    """One model; if it need not be fitted, with the hyperparameters of the start."""
    model: LeafModel = kind(
        train_X,
        train_Y,
        space,
        train_Yvar=train_Yvar,
        **kwargs,
    )
    if max_rows is not None:
        model = with_most_rows(model, max_rows)
    # variances of the noise may be told now that were not, or the other way round
    if start_from is None or type(start_from.likelihood) is not type(model.likelihood):
        fit_to_some(model)
    elif refits:
        fit_to_some(model, start_from)
    else:
        take_values(model, start_from)
        model.eval()
    return model


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
    max_rows: int | None = MAX_ROWS,
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
        max_rows: See `suggest`.
        kwargs: Further arguments of the models of objectives.

    Returns:
        Two models for an objective and each of its constraints, one where there are
        several objectives, and one of the cost.

    Raises:
        ValueError: An argument is not what it should be, or all evaluations failed.
    """
    data = read_data(
        space,
        train_X,
        train_Y,
        train_C,
        train_cost,
        train_Yvar,
    )
    with seeded_if(seed, train_X.device):
        return fit_checked(space, data, start_from, earlier, max_rows, **kwargs)


@cache
def _warn_of_rows() -> None:
    """Say it once, though each suggestion sees all rows."""
    warn(
        f"max_rows: with None, and more than {_MANY_ROWS:,} evaluations of a path, a "
        "suggestion takes time cubic in them (8 CPU seconds at 4,000). At most "
        f"{MAX_ROWS:,} are seen with the default, max_rows={MAX_ROWS}."
    )


def fit_checked(
    space: SearchSpace,
    data: TrainingData,
    start_from: Surrogates | None = None,
    old: OldStudiesMean | None = None,
    max_rows: int | None = MAX_ROWS,
    **kwargs: Any,
) -> Surrogates:
    """`fit_surrogates` of data that `read_data` has seen."""
    if max_rows is not None:
        check_count("max_rows", max_rows)
    elif space.tree.path_key(data.X).unique(return_counts=True)[1].max() > _MANY_ROWS:
        _warn_of_rows()
    last = Surrogates([], []) if start_from is None else start_from
    n, m = data.Y.shape
    # hyperparameters hardly change any more
    common: dict[str, Any] = {
        "refits": n <= 1_000 or last.num_fitted < 0.95 * n,
        # weights beside old studies are of the same rows
        "max_rows": max_rows if old is None else None,
    }
    averaged = m == 1  # of several objectives the second model makes the front worse
    alone = False
    if old is not None and n <= _ALONE:
        predicts = old_studies_predict(
            old,
            data.X,
            data.Y,
            data.C,
            data.Yvar,
        )
        alone = n == 1 or predicts
    # a row of which one objective failed has none
    failed = (data.Y == -math.inf).any(-1, keepdim=True)
    objectives = []
    for k, y in enumerate(data.Y.masked_fill(failed, -math.inf).split(1, dim=-1)):
        options = dict(kwargs)
        if data.Yvar is not None:
            options["train_Yvar"] = data.Yvar[:, k, None]
        start = last.objectives[k].models if k < len(last.objectives) else []
        objectives.append(
            _fit_mixture(
                space, data.X, y, start, averaged, old, alone, **common, **options
            )
        )
    constraints = []
    for k, c in enumerate([] if data.C is None else data.C.split(1, dim=-1)):
        told = ~c.isnan().squeeze(-1)
        start = last.constraints[k].models if k < len(last.constraints) else []
        tail = _compressed_tail(maximize=False)
        constraints.append(
            _fit_mixture(
                space,
                data.X[told],
                c[told],
                start,
                averaged,
                outcome_transform=tail,
                **common,
            )
        )
    cost = None
    if data.cost is not None:
        told = ~data.cost.isnan().squeeze(-1)
        if int(told.sum()) > 1:
            logs = data.cost[told].log()
            cost = _fit_model(
                TreeStructuredGP, space, data.X[told], logs, last.cost, **common
            )
    return Surrogates(
        objectives,
        constraints,
        cost,
        n if common["refits"] else last.num_fitted,
    )


def _fit_mixture(
    space: SearchSpace,
    X: Tensor,
    Y: Tensor,
    start_from: Iterable[FastSingleTaskGP],
    averaged: bool,
    old: OldStudiesMean | None = None,
    alone: bool = False,
    **kwargs: Any,
) -> Mixture:
    """The models of one outcome and their weights.

    Args:
        space: The space.
        X: ``n x d`` points.
        Y: ``n x 1`` outcomes.
        start_from: The models of an earlier fit.
        averaged: Whether there may be a second model.
        old: What old studies have taught about the outcome.
        alone: Whether their model is the only one.
        kwargs: Further arguments of the models.
    """
    # Variances are squares: those of larger numbers, such as the largest float that
    # some return for a failure, are infinite.
    limit = torch.finfo(Y.dtype).max ** 0.4
    Y = torch.where(Y.isfinite(), Y.clamp(-limit, limit), Y)
    models: list[FastSingleTaskGP] = []
    if not alone:
        models += _fit_models(space, X, Y, start_from, averaged, **kwargs)
    odds = [1.0] * len(models)
    if old is not None:
        tail = deepcopy(kwargs.get("outcome_transform", _compressed_tail()))
        noise = kwargs.get("train_Yvar")
        models.append(
            TransferGP(
                X,
                Y,
                old,
                noise,
                outcome_transform=tail,
            )
        )
        odds.append(_ODDS)
    return Mixture(models, leave_one_out_weights(models, odds))


def old_studies_predict(
    old: OldStudiesMean,
    train_X: Tensor,
    train_Y: Tensor,
    train_C: Tensor | None = None,
    train_Yvar: Tensor | None = None,
) -> bool:
    """Whether old studies predict the first outcomes of a new study.

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
    X = train_X[good][:_ALONE]
    Y = train_Y[good][:_ALONE]
    noise = None if train_Yvar is None else train_Yvar[good][:_ALONE]
    total = 0.0
    most = math.log(_ODDS)
    with warnings.catch_warnings():
        # outcomes that are all alike are nobody's mistake
        warnings.simplefilter("ignore", InputDataWarning)
        for n in range(2, len(Y) + 1):
            model = TransferGP(
                X[:n],
                Y[:n],
                old,
                None if noise is None else noise[:n],
                outcome_transform=_compressed_tail(),
            )
            total += min(max(model.log_odds(), -most), most)
    return len(train_X) > 1 and total >= 0.0


def seeded_if(seed: int | None, device: torch.device) -> AbstractContextManager[None]:
    """The seed for a while, if there is one."""
    seed = check_seed(seed)
    return nullcontext() if seed is None else seeded(seed, device)


def read_data(
    space: Any,
    X: Any,
    Y: Any,
    C: Any,
    cost: Any,
    Yvar: Any,
) -> TrainingData:
    """Evaluations without graphs of autograd.

    Raises:
        ValueError: They are none that a suggestion can be made of.
    """
    check_space(space)
    check_table("train_X", X, space.dim)
    n = len(X)
    if not n:
        raise ValueError(
            "train_X: expected at least one evaluated point, got none. Evaluate "
            "space.starts() first."
        )
    space.check_points(X, "train_X")
    check_table("train_Y", Y, None, n, X.dtype)
    if bool((bad := Y.isnan() | (Y == math.inf)).any()):
        raise ValueError(
            "train_Y: expected numbers, or -inf where an evaluation failed, got NaN "
            f"or inf in rows {_rows(bad)}."
        )
    failed = (Y == -math.inf).any(-1, keepdim=True)
    if bool(failed.all()):
        raise ValueError(
            f"train_Y: expected at least one evaluation that did not fail, got {n} "
            "that did (-inf). Evaluate random points, space.sample(n), until one does "
            "not."
        )
    if Yvar is not None:
        check_table("train_Yvar", Yvar, Y.shape[-1], n)
    if C is not None:
        check_table("train_C", C, None, n, X.dtype)
        if bool((bad := ~(C.isfinite() | (C.isnan() & failed))).any()):
            raise ValueError(
                "train_C: expected finite numbers, and NaN only where the evaluation "
                f"failed (train_Y is -inf), got others in rows {_rows(bad)}."
            )
    if cost is not None:
        check_table("train_cost", cost, 1, n, X.dtype)
        bad = ~(cost.isnan() | ((cost > 0.0) & cost.isfinite()))
        if bool(bad.any()):
            raise ValueError(
                "train_cost: expected positive numbers, or NaN where a cost is not "
                f"known, got {cost[bad][:3].tolist()}."
            )
    columns: list[Any] = []
    for table in (X, Y, C, cost, Yvar):
        columns.append(None if table is None else table.detach())
    return TrainingData(*columns)


def _rows(bad: Tensor) -> list[int]:
    """The first rows with a bad entry, for a message."""
    rows: list[int] = bad.any(-1).nonzero().flatten().tolist()[:10]
    return rows


def check_table(
    name: str,
    value: Any,
    columns: int | None,
    rows: int | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Raise a ``ValueError`` unless an argument is a table of numbers of that size.

    Args:
        name: The argument's name.
        value: The argument.
        columns: How many; None for any number but 0.
        rows: How many; None for any.
        dtype: The type of the numbers; None for any.
    """
    expected = f"{rows or 'n'} x {columns or 'm'}"
    if not isinstance(value, Tensor):
        got = f"a {type(value).__name__}"
    elif (
        value.ndim != 2
        or value.shape[-1] != (columns or value.shape[-1] or 1)
        or rows not in (None, len(value))
    ):
        got = f"shape {tuple(value.shape)}"
    elif dtype not in (None, value.dtype):
        expected += f" and {dtype}, as train_X"
        got = str(value.dtype)
    else:
        return
    raise ValueError(f"{name}: expected a tensor of shape {expected}, got {got}.")


def check_space(space: Any) -> None:
    """Raise a ``ValueError`` unless it is a space."""
    if not isinstance(space, SearchSpace):
        raise ValueError(f"space: expected a SearchSpace, got {type(space).__name__}.")


def _compressed_tail(maximize: bool = True) -> ChainedOutcomeTransform:
    return ChainedOutcomeTransform(
        clip=ClipTail(maximize, tail="log"), standardize=AnyScaleStandardize(m=1)
    )


# -- some of the rows -------------------------------------------------------------
#
# Hyperparameters need hundreds of rows of a path, and a fit takes time cubic in them.
# On 60 data sets of 1,800 rows on six paths (``benchmarks.quality.some_rows``; one of
# them decided how often rows join) fits to 120 and then 240 rows of a path took .4 of
# the time of a fit to all, and predicted as well, to .07 nats a point, on 50; most
# others lost less than .5, two 1.3 and 2.7. Without rows that join since they are
# predicted badly, up to 150 were lost beside jumps.


def some_rows(keys: Tensor, values: Tensor, most: int) -> Tensor:
    """Rows of each path: the best ones, and others evenly spaced in order of value.

    Args:
        keys: Of the paths of the rows, ``n``.
        values: Larger ones are better, ``n``.
        most: How many of a path; a quarter are the best ones.

    Returns:
        The numbers of the rows, ascending.
    """
    order = values.argsort(descending=True, stable=True)
    order = order[keys[order].argsort(stable=True)]
    _, counts = keys[order].unique_consecutive(return_counts=True)
    size = counts.repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.arange(len(order), device=order.device) - first
    best = most // 4
    spaced = most - best
    others = (size - best).clamp_min(1)
    # where the share of others that are taken reaches the next whole number
    is_next = (rank - best) * spaced % others >= others - spaced
    kept = (size <= most) | (rank < best) | is_next
    return order[kept].sort().values


def with_most_rows(model: LeafModel, most: int) -> LeafModel:
    """The model, or a copy with at most so many rows of each path, see `some_rows`."""
    keys = model.tree.path_key(model.train_inputs[0])
    rows = some_rows(keys, model.train_targets, most)
    return model if len(rows) == len(keys) else _with_rows(model, rows)


def fit_to_some(model: LeafModel, start_from: LeafModel | None = None) -> None:
    """Fit a model of one outcome, to some of its rows where there are many.

    If rows are predicted worse, given all others, than those of the fit given these,
    the worst ones join a further fit, up to three times.

    Args:
        model: In training mode, with its first hyperparameters.
        start_from: See ``LeafModel.custom_fit``. Without it a first fit is to half of
            the rows, if that is less than three quarters of the data.
    """
    n = len(model.train_targets)
    keys = model.tree.path_key(model.train_inputs[0])
    most = max(_ROWS_OF_PATH, _ROWS // len(keys.unique()))
    sizes = [most // 2, most] if start_from is None else [most]
    part: Any = start_from
    for size in sizes:
        rows = some_rows(keys, model.train_targets, size)
        if size < most and len(rows) > 0.75 * n:
            continue
        part = _fit_rows(model, rows, part)
    for _ in range(_MORE_FITS):
        if part is model:
            return
        _take_fit(model, part)
        density = leave_one_out_log_density(model)
        expected = leave_one_out_log_density(part).mean()
        # given more rows each is predicted better, unless the fit missed something
        if density.mean() >= expected - MAX_LOSS:
            return
        worst = density.topk(most // 2, largest=False).indices
        rows = torch.cat([rows, worst]).unique()
        model.train()
        part = _fit_rows(model, rows, part)
    _take_fit(model, part)


def _fit_rows(model: LeafModel, rows: Tensor, start_from: LeafModel | None) -> Any:
    """The model, or a copy that has only some of the rows, fitted."""
    part = model
    if len(rows) < len(model.train_targets):
        part = _with_rows(model, rows)
    mll = ExactMarginalLogLikelihood(part.likelihood, part)
    fit_gpytorch_mll(mll, start_from=start_from)
    return part


def _take_fit(model: LeafModel, part: LeafModel) -> None:
    """Make a model one that was fitted, with the hyperparameters of a part of it."""
    take_values(model, part)
    model._fit_record = part._fit_record
    model.eval()


def _with_rows(model: LeafModel, rows: Tensor) -> LeafModel:
    """A copy with some of the rows, on the scale of the outcomes of all."""
    part = deepcopy(model)
    part.set_train_data(
        model.train_inputs[0][rows],
        model.train_targets[rows],
        strict=False,
    )
    if isinstance(part.likelihood, FixedNoiseGaussianLikelihood):
        part.likelihood.noise = model.likelihood.noise[rows]
    return part


# -- weights of models ------------------------------------------------------------


def leave_one_out_log_density(model: SingleTaskGP) -> Tensor:
    r"""Log density of each outcome given the others, with the fitted hyperparameters.

    .. math:: \log p(y_i \mid y_{-i}) = -\tfrac12 \log(2 \pi s_i^2)
        - \frac{(y_i - m_i)^2}{2 s_i^2}, \quad
        m_i = y_i - \frac{[K^{-1} y]_i}{[K^{-1}]_{ii}}, \quad
        s_i^2 = \frac{1}{[K^{-1}]_{ii}}

    ([Rasmussen2006gpml]_, equations (5.10) to (5.12)), K with the noise. Unlike the
    evidence it does not depend on how wide the priors of different models are.

    By the factors that a tree model predicts with; of other models one Cholesky
    factorisation of the ``n x n`` covariance, O(n^3).

    Args:
        model: A fitted GP with one outcome and no batches.

    Returns:
        ``n`` values, of the transformed outcomes.

    Raises:
        ValueError: Several outcomes, or batches.
    """
    targets = model.train_targets
    if targets.ndim != 1:
        raise ValueError(
            "model: expected one with one outcome and without batches, got targets of "
            f"shape {tuple(targets.shape)}."
        )
    model.eval()
    solver = None
    if isinstance(model, LeafModel):
        model._clear_cache()  # parts may have been set in evaluation mode
        solver = model.solver
    with torch.no_grad():
        values = None
        if solver is not None and isinstance(solver.solvers[0], LeafSolver):
            values = solver.solvers[0].leave_one_out()
        if values is not None:
            solved, precision = values
        else:
            prior = model.likelihood(model.forward(*model.train_inputs))
            inverse = torch.cholesky_inverse(psd_safe_cholesky(prior.covariance_matrix))
            solved = inverse @ (targets - prior.mean)
            precision = inverse.diagonal()
        squared = solved.square() / precision
        return 0.5 * (precision.log() - squared - math.log(2.0 * math.pi))


def leave_one_out_weights(
    models: Sequence[SingleTaskGP], odds: Sequence[float] | None = None
) -> Tensor:
    r"""Weights of models of the same data: softmax of the summed log densities.

    "Pseudo-BMA" in [Yao2018stacking]_. With few data the weights are alike, with many
    one model has them all.

    Args:
        models: ``K`` fitted GPs of the same outcomes under the same transform.
        odds: ``K`` positive numbers, the weights without data. Default: the same.

    Returns:
        ``K`` weights with sum 1.

    Raises:
        ValueError: Several outcomes, or models of different outcomes.

    Example:
        >>> weights = leave_one_out_weights([tree_model, conditional_model])
    """
    models = list(models)
    first = models[0].train_targets
    for model in models[1:]:
        same = model.train_targets.shape == first.shape
        if not same or not torch.allclose(model.train_targets, first):
            raise ValueError(
                "models: expected the same outcomes under the same outcome_transform, "
                "or densities do not compare, got others."
            )
    if len(models) == 1:
        return first.new_ones(1)
    densities = torch.stack([*map(leave_one_out_log_density, models)]).sum(-1)
    log_odds = torch.as_tensor(odds or [1.0] * len(models)).to(first).log()
    return (densities + log_odds).softmax(0)
