"""`suggest`: what it returns, and what it maximises."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from botorch.acquisition import AcquisitionFunction, PriorGuidedAcquisitionFunction
from botorch.exceptions.errors import CandidateGenerationError
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
)
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from botorch_structured.acquisition import (
    AveragedLogExpectedHypervolumeImprovement,
    AveragedLogExpectedImprovement,
    AveragedLogProbabilityOfFeasibility,
    CostPrior,
    FeasibilityPrior,
    InteriorPrior,
)
from botorch_structured.acquisition.mixtures import Mixtures
from botorch_structured.linalg.blocks import quiet
from botorch_structured.linalg.parameters import has_steps
from botorch_structured.models import OldStudiesMean
from botorch_structured.models.fast_inference import FastSingleTaskGP
from botorch_structured.models.tree.leaf_model import LeafModel
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.optim.problem import best_of_paths, read_fixed
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_count
from botorch_structured.suggest.surrogates import (
    MAX_ROWS,
    Mixture,
    Surrogates,
    TrainingData,
    check_table,
    fit_checked,
    read_data,
    seeded_if,
)
from botorch_structured.transforms import ClipTail

# A path on which nothing but failures is known is tried so often before models decide.
_TRIES = 3
# After so many points on a branch that brought nothing, one is for another branch.
_STANDSTILL = 5
# Means of more points are computed without their variances, equal up to rounding.
_MANY_POINTS = 500


class Suggestion(NamedTuple):
    """The result of `suggest`.

    Attributes:
        X: ``q x d`` points to evaluate; inactive columns hold the space's fill.
        models: The fitted models of the (first) objective.
        weights: The weight of each model, with sum 1.
        surrogates: The fitted models of all outcomes.
    """

    X: Tensor
    models: list[FastSingleTaskGP]
    weights: Tensor
    surrogates: Surrogates

    def __repr__(self) -> str:
        parts = zip(self.models, self.weights.tolist(), strict=True)
        models = ", ".join(f"{weight:.3g} {type(m).__name__}" for m, weight in parts)
        return f"Suggestion(X={self.X}, models: {models})"


def suggest(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    q: int = 1,
    X_pending: Tensor | None = None,
    start_from: Suggestion | Surrogates | None = None,
    seed: int | None = None,
    *,
    train_C: Tensor | None = None,
    train_cost: Tensor | None = None,
    ref_point: Tensor | Sequence[float] | None = None,
    fixed_features: Mapping[int, float] | None = None,
    earlier: OldStudiesMean | Sequence[tuple[Tensor, Tensor]] | None = None,
    max_rows: int | None = MAX_ROWS,
    **kwargs: Any,
) -> Suggestion:
    r"""Points of a space to evaluate next.

    Choose it where nothing is known but the space: it is the default of this package.
    Evaluate ``space.starts()`` first.

    Several points are chosen one after the other. For each, the models are conditioned
    on their own means at the points that are pending, so that no two are alike. In
    which units outcomes are does not matter; numbers beyond 1e123 (1e15 in single
    precision) count as that, and outcomes with a standard deviation below 1e-153
    (1e-18) as equal, with a warning.

    Of a path whose evaluations all failed nothing is known but that: it gets the next
    points, the best ones on it, until one does not fail, or three did. No more than
    half of all points are for such paths.

    With one objective, one decision by value at the top, and no column held, five
    evaluations in a row on one branch (value of that decision) of which none was the
    best are followed by one on another branch, that with the fewest points.

    Args:
        space: The space.
        train_X: ``n x d`` evaluated points of it, in the order of evaluation.
        train_Y: ``n x m`` objectives, larger ones are better: give minus an error.
            ``-inf`` where an evaluation failed; a row that has one failed as a whole.
        q: How many points.
        X_pending: ``p x d`` points that are being evaluated.
        start_from: The last suggestion, or its ``surrogates``: fits are shorter. With
            more than a thousand points there is none, if there was one for 95 % of
            them.
        seed: The same seed and data give the same points. Default: PyTorch's generator.
        train_C: ``n x k`` outcomes of constraints, as in BoTorch feasible where all are
            at most 0: give ``memory - 8.0`` for a memory of at most 8. NaN only where
            the evaluation failed.
        train_cost: ``n x 1`` costs of the evaluations, such as seconds, positive; NaN
            where one is not known. With two or more that are known, the criterion is
            per expected cost.
        ref_point: With several objectives, the ``m`` values of which all have to be
            exceeded to count. Default: below the worst known ones by a tenth of their
            range (BoTorch's ``infer_reference_point``, of all points).
        fixed_features: Column -> its value wherever the column is active; a fixed
            decision leaves the paths on which it has that value, or is inactive.
        earlier: Old studies of the space: what `OldStudiesMean.from_studies` has learnt
            once, or its argument, ``(X, Y)`` of each. A `TransferGP` is averaged with
            the other models; up to five evaluations it is alone if it predicts these
            better than a GP that knows nothing. Begin with the first of
            ``earlier.starts()`` and the next of these on another path, and where they
            mislead (`TransferGP.log_odds` below 0) with those of ``space.starts()`` on
            paths without a point; `Study` does this by itself. For one objective.
        max_rows: How many evaluations of a path models see: a quarter are the best
            ones, the others are spread by value. None: all, in time cubic in them.
            Hyperparameters are fitted to at most 240 of a path, or 800 in all, in any
            case. Beside ``earlier`` models see all.
        kwargs: Further arguments of the models of objectives, such as
            ``outcome_transform``, or ``train_Yvar`` (``n x m``).

    Returns:
        The points, the models and their weights.

    Raises:
        ValueError: An argument is not what it should be, or all evaluations failed.
        CandidateGenerationError: Fewer than ``q`` points that may be suggested are not
            known.

    Example:
        >>> X = space.starts(seed=0)
        >>> Y = -evaluate(X)
        >>> for _ in range(20):
        ...     x = suggest(space, X, Y).X
        ...     X, Y = torch.cat([X, x]), torch.cat([Y, -evaluate(x)])
    """
    q = check_count("q", q)
    data = read_data(
        space, train_X, train_Y, train_C, train_cost, kwargs.pop("train_Yvar", None)
    )
    pending = data.X[:0]
    if X_pending is not None:
        check_table("X_pending", X_pending, space.dim)
        space.check_points(X_pending, "X_pending")
        pending = X_pending.detach().to(data.X)
    if isinstance(start_from, Suggestion):
        start_from = start_from.surrogates
    if not isinstance(start_from, Surrogates | None):
        raise ValueError(
            "start_from: expected an earlier suggestion, or its surrogates, got a "
            f"{type(start_from).__name__}."
        )
    reference = None if ref_point is None else _read_reference(ref_point, data.Y)
    old = None if earlier is None else _read_old(space, earlier, data.Y.shape[-1])
    fixed = read_fixed(
        space.tree,
        space.bounds,
        fixed_features,
        space.integer_features,
        space.categorical_features,
    )
    # Nobody can do anything about a jitter of 1e-8 where pending points are close to
    # each other, or in single precision, of which BoTorch warns by itself.
    with seeded_if(seed, data.X.device), quiet():
        surrogates = fit_checked(space, data, start_from, old, max_rows, **kwargs)
        X = propose(
            space,
            data,
            surrogates,
            q,
            pending,
            reference,
            fixed,
        )
    # as a Study has them
    X = space.rounded(X)
    return Suggestion(X, *surrogates.objectives[0], surrogates)


def propose(
    space: SearchSpace,
    data: TrainingData,
    surrogates: Surrogates,
    q: int,
    X_pending: Tensor,
    ref_point: Tensor | None = None,
    fixed_features: Mapping[int, float] | None = None,
) -> Tensor:
    """`suggest` with models that are fitted, of arguments that are checked.

    Returns:
        ``q x d`` points.
    """
    fixed = {} if fixed_features is None else dict(fixed_features)
    evaluated = len(data.X)
    failed = (data.Y == -math.inf).any(-1)
    values = None  # of several objectives no point is the best
    if data.Y.shape[-1] == 1:
        values = data.Y.squeeze(-1)
        if data.C is not None:
            values = values.masked_fill(~(data.C <= 0.0).all(-1), -math.inf)
    # Nearer than these to a point, in widths of the bounds, a step function has little
    # to tell. Smooth objectives change at any distance.
    distances = [0.01, 0.001, 0.0]
    for mixture in surrogates.objectives:
        if not has_steps(mixture.models[0].train_targets):
            distances = [0.0]
    points = torch.cat([data.X, X_pending])
    for k in range(q):
        retried = None
        if failed.any():
            retried = _path_to_retry(space, points, failed, fixed)
        wanted = [fixed] if retried is None else [retried, fixed]
        branches: list[dict[int, float]] = []
        if values is not None and retried is None and not fixed:
            branches = _other_branches(space, points, values)
        for branch in (*branches, fixed):
            criterion, X_start = make_criterion(
                space, surrogates, points, evaluated, ref_point, data.C, branch
            )
            columns = wanted if branch is fixed else [branch]
            attempts = product(columns, distances)
            x = _maximise(criterion, space, points, X_start, attempts)
            if isinstance(x, Tensor):
                break
        if isinstance(x, CandidateGenerationError):
            if not k:
                raise x
            raise CandidateGenerationError(
                f"q: expected at most {k}, as many new points as are left, got {q}."
            )
        points = torch.cat([points, x.to(points)])
    return points[-q:]


def _read_old(space: SearchSpace, earlier: Any, num_objectives: int) -> OldStudiesMean:
    """Old studies as they are learnt from, see `suggest`.

    Raises:
        ValueError: There are several objectives, or it is of another space.
    """
    if num_objectives > 1:
        raise ValueError(f"earlier: expected one objective, got {num_objectives}.")
    if not isinstance(earlier, OldStudiesMean):
        earlier = OldStudiesMean.from_studies(earlier, space)
    if earlier.space != space:
        raise ValueError(
            f"earlier: expected studies of this space, {space}, got {earlier.space}."
        )
    return earlier


def _read_reference(ref_point: Any, train_Y: Tensor) -> Tensor:
    m = train_Y.shape[-1]
    reference = torch.as_tensor(
        ref_point,
        dtype=train_Y.dtype,
        device=train_Y.device,
    )
    if m == 1 or reference.shape != (m,) or not reference.isfinite().all():
        expected = "None for one objective" if m == 1 else f"{m} finite numbers"
        raise ValueError(f"ref_point: expected {expected}, got {ref_point!r}.")
    return reference


def _path_to_retry(
    space: SearchSpace,
    points: Tensor,
    failed: Tensor,
    fixed_features: Mapping[int, float],
) -> dict[int, float] | None:
    """Columns that hold a search on a path of which only failures are known, or None.

    Args:
        space: The space.
        points: ``n x d`` points, those that were evaluated first.
        failed: Whether these failed.
        fixed_features: Columns that are fixed anyway.
    """
    tree = space.tree
    keys = tree.path_key(points)
    evaluated = keys[: len(failed)]
    bad = evaluated[failed & ~torch.isin(evaluated, evaluated[~failed])]
    if 2 * int(torch.isin(keys, bad).sum()) > len(points):
        return None
    for key in dict.fromkeys(bad.tolist()):
        rows = (keys == key).nonzero().flatten()
        x = points[rows[0]]
        active = tree.active_mask(x)
        decisions = {c: float(x[c]) for c in tree.decision_columns if active[c]}
        agrees = all(fixed_features.get(c, v) == v for c, v in decisions.items())
        if len(rows) < _TRIES and agrees:
            return {**fixed_features, **decisions}
    return None


def _other_branches(
    space: SearchSpace, points: Tensor, values: Tensor
) -> list[dict[int, float]]:
    """Columns that hold a search off a branch that has come to a standstill.

    Expected improvement is that of the next point: it may stay on a branch for ever,
    and what another one may reach after some points it does not ask.

    Args:
        space: The space.
        points: ``m x d`` points, those that were evaluated first.
        values: Their values, larger is better.

    Returns:
        The other branches of the top decision, those with the fewest points first, if
        the last five evaluations were on one branch and none was the best. Nothing
        otherwise, while nothing has worked, where a point elsewhere is pending, or
        where several decisions are always active: with these it was worse.
        Branches on which three tries failed are left out.
    """
    tree = space.tree
    n = len(values)
    recent = values[-_STANDSTILL:]
    if n <= _STANDSTILL or not values[:-_STANDSTILL].max() >= recent.max():
        return []
    column = tree.top_decision
    if column not in tree.decisions_by_value or values.max() == -math.inf:
        return []
    branch = points[:, column]
    last = branch[n - 1]
    if (branch[n - _STANDSTILL :] != last).any():
        return []
    others = []
    for value in tree.decision_values[column]:
        outcomes = values[branch[:n] == value].tolist()
        best = max(outcomes, default=0.0)
        if value != last and (len(outcomes) < _TRIES or best > -math.inf):
            others.append((len(outcomes), -best, value))
    return [{column: value} for _, _, value in sorted(others)]


def _maximise(
    criterion: AcquisitionFunction,
    space: SearchSpace,
    points: Tensor,
    X_start: Tensor | None,
    attempts: Iterable[tuple[Mapping[int, float], float]],
) -> Tensor | CandidateGenerationError:
    """The best point where there is a new one, or why there is none.

    Args:
        criterion: The criterion.
        space: The space.
        points: ``n x d`` points that are not suggested again.
        X_start: ``k x d`` points near which to search, or None.
        attempts: Columns that are fixed, and how far from ``points`` to stay; the most
            wanted ones first.
    """
    for fixed_features, min_distance in attempts:
        try:
            return optimize_acqf_paths(
                criterion,
                space=space,
                fixed_features=fixed_features,
                X_avoid=points,
                X_start=X_start,
                min_distance=min_distance,
            )[0]
        except CandidateGenerationError as error:
            nothing = error
    return nothing


def make_criterion(
    space: SearchSpace,
    surrogates: Surrogates,
    points: Tensor,
    num_evaluated: int,
    ref_point: Tensor | None = None,
    train_C: Tensor | None = None,
    fixed_features: Mapping[int, float] | None = None,
) -> tuple[AcquisitionFunction, Tensor | None]:
    """The criterion, given the means at points that are pending.

    Where columns are fixed, an improvement is one on the best of points with these
    columns, too: known points are moved there, and count with their means.

    Args:
        space: The space.
        surrogates: The fitted models.
        points: ``n x d`` points, those that were evaluated first.
        num_evaluated: How many were.
        ref_point: ``m`` objectives, or None; see `suggest`.
        train_C: Outcomes of the constraints, if there are any; see `suggest`.
        fixed_features: Column -> its value, of the points to be found.

    Returns:
        The criterion, and points near which to search, the best first (None: the best
        one of each path, which is found without them).
    """
    pending = points[num_evaluated:]
    objectives = surrogates.objectives
    constraints = surrogates.constraints
    if len(pending):
        objectives = [_with_means(mixture, pending) for mixture in objectives]
        constraints = [_with_means(mixture, pending) for mixture in constraints]
    # those on which to improve, their rows among the points (others: len(points)), and
    # those of which the reference point is made
    compared = points
    rows = torch.arange(len(points), device=points.device)
    referred = points
    if fixed_features:
        moved, origins = hold(space, points, fixed_features)
        if len(moved):  # else nothing is known of the paths that are left
            is_same = (moved == points[origins]).all(-1)
            compared = moved
            rows = torch.where(is_same, origins, len(points))
            referred = torch.cat([points, moved])
    prior = None
    log_probability = compared.new_zeros(len(compared))
    feasible = torch.ones_like(log_probability, dtype=torch.bool)
    if train_C is not None:
        models, weights = zip(*constraints, strict=True)
        limits = [
            _as_predicted(some[0], _limit(c))
            for some, c in zip(models, train_C.unbind(-1), strict=True)
        ]
        prior = FeasibilityPrior(models, weights, torch.stack(limits))
        with torch.no_grad():
            log_probability = prior(compared)
        feasible = log_probability >= math.log(0.5)
        # at the limit the probability of what was feasible is about a half
        evaluated = rows < num_evaluated
        kept = (train_C <= 0.0).all(-1)[rows[evaluated]]
        feasible[evaluated] |= kept & (log_probability[evaluated] >= math.log(0.05))
    criterion: AcquisitionFunction
    X_start: Tensor | None
    if prior is not None and not feasible.any():
        criterion = AveragedLogProbabilityOfFeasibility(prior)
        X_start = compared[best_of_paths(space.tree, compared, log_probability)]
    else:
        if len(objectives) == 1:
            (objective,) = objectives
            means = _means(surrogates.objectives[0].models, compared[feasible])
            # With noise the best outcome is not the best point; without, both are the
            # same.
            best_f = means.amax(-1)
            criterion = AveragedLogExpectedImprovement(
                objective.models, best_f, objective.weights
            )
            score = objective.weights @ means
            best = best_of_paths(space.tree, compared[feasible], score)
            X_start = compared[feasible][best]
        else:
            criterion, X_start = _hypervolume(
                space, objectives, compared[feasible], referred, ref_point
            )
        if prior is not None:
            criterion = PriorGuidedAcquisitionFunction(
                criterion,
                prior,
                log=True,
            )
            others = compared[~feasible]
            rows = best_of_paths(space.tree, others, log_probability[~feasible])
            X_start = torch.cat([X_start, others[rows]])
        elif len(objectives) == 1 and len(points) <= _MANY_POINTS:
            X_start = None
    if surrogates.cost is not None:
        cost = CostPrior(surrogates.cost)
        criterion = PriorGuidedAcquisitionFunction(
            criterion,
            cost,
            log=True,
        )
    inside = PriorGuidedAcquisitionFunction(
        criterion, InteriorPrior(space), log=True, prior_exponent=1.0 / num_evaluated
    )
    return inside, X_start


def hold(
    space: SearchSpace, X: Tensor, fixed_features: Mapping[int, float]
) -> tuple[Tensor, Tensor]:
    """Points with some columns fixed; those whose path has another value are left out.

    Args:
        space: The space.
        X: ``n x d`` points of it.
        fixed_features: Column -> its value wherever it is active.

    Returns:
        ``m x d`` feasible points, and the ``m`` rows of ``X`` that they come from.
    """
    fixed = X.clone()
    for column, value in fixed_features.items():
        fixed[:, column] = value
    fixed = space.impute(fixed)
    same = space.tree.path_key(fixed) == space.tree.path_key(X)
    rows = (same & space.feasible(fixed)).nonzero().flatten()
    return fixed[rows], rows


def _with_means(mixture: Mixture, X: Tensor) -> Mixture:
    """The models, conditioned on their own means at ``p x d`` points.

    On the scale of their targets: given as an outcome, the mean of a bad point would be
    compressed by ``ClipTail`` once more.
    """
    models: list[FastSingleTaskGP] = []
    for model in mixture.models:
        model.eval()
        with torch.no_grad():
            inputs = model.transform_inputs(X)
            means = model(inputs.unsqueeze(-2)).mean.flatten()
        # where variances of noise are known, those of new outcomes have to be guessed
        guess = {}
        if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
            guess["noise"] = model.likelihood.noise.detach().mean().expand(len(X))
        models.append(model.get_fantasy_model(inputs, means, **guess))
    return Mixture(models, mixture.weights)


def _as_predicted(model: FastSingleTaskGP, value: Tensor) -> Tensor:
    """An outcome on the scale of predictions, on which bad tails stay compressed."""
    transform: Any = getattr(model, "outcome_transform", None)
    parts = transform.values() if hasattr(transform, "values") else [transform]
    for part in parts:
        if isinstance(part, ClipTail):
            value = part(value.reshape(1, 1))[0].reshape(())
    return value


def _limit(outcomes: Tensor) -> Tensor:
    """The threshold of a constraint. For outcomes that include 0: half a step above.

    A model's mean is as often above an outcome as below. Where a count may be 4 at
    most, a limit of 4.5 is the same, and tells 4 from 5.

    Args:
        outcomes: ``n``, NaN where there is none.
    """
    steps = outcomes[outcomes.isfinite()].unique().diff()
    if len(steps) and bool((outcomes == 0.0).any()):
        return 0.5 * steps.min()
    return outcomes.new_zeros(())


@torch.no_grad()
def _means(models: Sequence[FastSingleTaskGP], X: Tensor) -> Tensor:
    """Posterior means of each model at ``n x d`` points, ``k x n``."""
    means = []
    for model in models:
        mean = None
        if len(X) > _MANY_POINTS and isinstance(model, LeafModel):
            mean = model.point_means(X)
        if mean is None:
            mean = model.posterior(X.unsqueeze(-2)).mean.flatten()
        means.append(mean)
    return torch.stack(means)


def _hypervolume(
    space: SearchSpace,
    objectives: list[Mixture],
    X: Tensor,
    referred: Tensor,
    ref_point: Tensor | None,
) -> tuple[AcquisitionFunction, Tensor]:
    """The criterion of several objectives, over the front of their means.

    Args:
        space: The space.
        objectives: Their models.
        X: ``n x d`` feasible points, of which the front is made.
        referred: ``m x d`` points of which the reference point is made.
        ref_point: ``m`` objectives in its place.

    Returns:
        The criterion, and the points of the front, then the best one of each path.
    """
    models, weights = zip(*objectives, strict=True)
    with torch.no_grad():
        mixtures = Mixtures(models, weights)
        means = mixtures.means(X.unsqueeze(-2))
        others = mixtures.means(referred.unsqueeze(-2))
    # BoTorch's smallest ranges are for outcomes of about unit scale
    width = others.amax(0) - others.amin(0)
    scale = torch.where(width > 0.0, width, 1.0)
    if ref_point is None:
        # All points count: made of the front alone, or of the feasible ones, it is next
        # to a small front, as fronts are at first, and points that extend it to either
        # side do not count.
        ref_point = infer_reference_point(others / scale) * scale
    else:
        pairs = zip(models, ref_point.to(means), strict=True)
        ref_point = torch.stack([_as_predicted(some[0], f) for some, f in pairs])
    boxes = FastNondominatedPartitioning(ref_point, means)
    acqf = AveragedLogExpectedHypervolumeImprovement(
        models,
        boxes,
        weights,
    )
    best = X[best_of_paths(space.tree, X, (means / scale).sum(-1))]
    return acqf, torch.cat([X[is_non_dominated(means)], best])
