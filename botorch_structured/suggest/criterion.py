"""What `suggest` maximises."""

from __future__ import annotations

__all__ = ["hold", "make_criterion"]

import math
from collections.abc import Mapping
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, PriorGuidedAcquisitionFunction
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
from botorch_structured.models.outcome_scale import AnyScaleStandardize
from botorch_structured.models.tree.leaf_model import LeafModel
from botorch_structured.optim.problem import best_of_paths
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest.surrogates import Mixture, Surrogates
from botorch_structured.transforms import ClipTail

# The exponent of the prior is 1 at so many observations.
_PRIOR_OBSERVATIONS = 1.0
# From this probability on a known point counts as feasible. A smaller one does where
# its outcomes were feasible: at the limit the probability is about a half.
_FEASIBLE, _POSSIBLE = 0.5, 0.05


def make_criterion(
    space: SearchSpace,
    surrogates: Surrogates,
    known: Tensor,
    num_evaluated: int,
    ref_point: Tensor | None = None,
    train_C: Tensor | None = None,
    held: Mapping[int, float] | None = None,
) -> tuple[AcquisitionFunction, Tensor | None]:
    """The criterion, given the means at known points that are not evaluated.

    Where columns are held, an improvement is one on the best that is known of points
    that hold them, too: known points are moved there, and count with their means.

    Args:
        space: The space.
        surrogates: The fitted models.
        known: ``n x d`` points, those that were evaluated first.
        num_evaluated: How many were.
        ref_point: ``m`` objectives, or None; see `suggest`.
        train_C: Outcomes of the constraints, if there are any; see `suggest`.
        held: Column -> its value, of the points to be found.

    Returns:
        The criterion, and points near which to search, the best first (None: the best
        one of each path, which is found without them).
    """
    taken = known[num_evaluated:]
    objectives = [_given_means(mixture, taken) for mixture in surrogates.objectives]
    constraints = [_given_means(mixture, taken) for mixture in surrogates.constraints]
    every, rows = known, torch.arange(len(known), device=known.device)
    if held:
        moved, of_known = hold(space, known, held)
        if len(moved):  # else nothing is known of the paths that are left
            rows = torch.where((moved == known[of_known]).all(-1), of_known, len(known))
            known, every = moved, torch.cat([every, moved])
    prior = None
    log_probability = known.new_zeros(len(known))
    feasible = torch.ones_like(log_probability, dtype=torch.bool)
    if train_C is not None:
        models, weights = zip(*constraints, strict=True)
        limits = [
            _as_predicted(some[0], _limit(c))
            for some, c in zip(models, train_C.unbind(-1), strict=True)
        ]
        prior = FeasibilityPrior(models, weights, torch.stack(limits))
        with torch.no_grad():
            log_probability = prior(known)
        feasible = log_probability >= math.log(_FEASIBLE)
        kept = (train_C <= 0.0).all(-1)
        evaluated = rows < num_evaluated
        feasible[evaluated] |= kept[rows[evaluated]] & (
            log_probability[evaluated] >= math.log(_POSSIBLE)
        )
    criterion: AcquisitionFunction
    good: Tensor | None
    if prior is not None and not feasible.any():
        criterion = AveragedLogProbabilityOfFeasibility(prior)
        good = best_of_paths(space.tree, known, log_probability)
    else:
        one = len(objectives) == 1
        criterion, good = (
            _improvement(space, objectives[0], known[feasible])
            if one
            else _hypervolume(space, objectives, known[feasible], every, ref_point)
        )
        if prior is not None:
            criterion = PriorGuidedAcquisitionFunction(criterion, prior, log=True)
            others = best_of_paths(
                space.tree, known[~feasible], log_probability[~feasible]
            )
            good = torch.cat([good, others])
        elif one:
            good = None
    if surrogates.cost is not None:
        cost = CostPrior(surrogates.cost)
        criterion = PriorGuidedAcquisitionFunction(criterion, cost, log=True)
    inside = PriorGuidedAcquisitionFunction(
        criterion,
        InteriorPrior(space),
        log=True,
        prior_exponent=_PRIOR_OBSERVATIONS / num_evaluated,
    )
    return inside, good


def hold(
    space: SearchSpace, X: Tensor, held: Mapping[int, float]
) -> tuple[Tensor, Tensor]:
    """Points with some columns held; those whose path has another value are left out.

    Args:
        space: The space.
        X: ``n x d`` points of it.
        held: Column -> its value wherever it is active.

    Returns:
        ``m x d`` feasible points, and the ``m`` rows of ``X`` that they come from.
    """
    fixed = X.clone()
    for column, value in held.items():
        fixed[:, column] = value
    fixed = space.impute(fixed)
    same = space.tree.path_key(fixed) == space.tree.path_key(X)
    rows = (same & space.feasible(fixed)).nonzero().flatten()
    return fixed[rows], rows


def _given_means(mixture: Mixture, X: Tensor) -> Mixture:
    """The models, conditioned on their own means at ``p x d`` points.

    On the scale of their targets: given as an outcome, the mean of a bad point would be
    compressed by ``ClipTail`` once more.
    """
    if not len(X):
        return mixture
    models: list[LeafModel] = []
    for model in mixture.models:
        model.eval()
        with torch.no_grad():
            inputs = model.transform_inputs(X)
            means = model(inputs.unsqueeze(-2)).mean.flatten()
        # where variances of noise are known, those of new outcomes have to be guessed
        known_noise = isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
        noise = model.likelihood.noise.detach().mean().expand(len(X))
        guess = {"noise": noise} if known_noise else {}
        models.append(model.get_fantasy_model(inputs, means, **guess))
    return mixture._replace(models=models)


def _as_predicted(model: LeafModel, value: Tensor) -> Tensor:
    """An outcome on the scale of predictions, on which bad tails stay compressed."""
    transform: Any = getattr(model, "outcome_transform", None)
    parts = transform.values() if hasattr(transform, "values") else [transform]
    for part in parts:
        if isinstance(part, ClipTail):
            value = part(value.reshape(1, 1))[0].reshape(())
    return value


def _limit(outcomes: Tensor) -> Tensor:
    """Of a constraint: 0, or half the smallest step of its outcomes if 0 is one.

    A model's mean is as often above an outcome as below. Where a count may be 4 at
    most, a limit of 4.5 is the same, and tells 4 from 5.

    Args:
        outcomes: ``n``, NaN where there is none.
    """
    steps = outcomes[outcomes.isfinite()].unique().diff()
    if len(steps) and bool((outcomes == 0.0).any()):
        return 0.5 * steps.min()
    return outcomes.new_zeros(())


def _improvement(
    space: SearchSpace, objective: Mixture, known: Tensor
) -> tuple[AcquisitionFunction, Tensor]:
    """Of one objective, over the best mean at known points that are feasible."""
    means = torch.stack([_means(model, known) for model in objective.models])
    # With noise the best outcome is not the best point; without, both are the same.
    best_f = means.amax(-1)
    return (
        AveragedLogExpectedImprovement(objective.models, best_f, objective.weights),
        best_of_paths(space.tree, known, objective.weights @ means),
    )


def _means(model: LeafModel, X: Tensor) -> Tensor:
    """``n`` posterior means at ``n x d`` points."""
    found = model.point_moments(X)
    if found is not None:
        return found.mean
    with torch.no_grad():
        return model.posterior(X.unsqueeze(-2)).mean.flatten()


def _hypervolume(
    space: SearchSpace,
    objectives: list[Mixture],
    known: Tensor,
    every: Tensor,
    ref_point: Tensor | None,
) -> tuple[AcquisitionFunction, Tensor]:
    """Of several objectives, over the front of means at known points.

    Args:
        space: The space.
        objectives: Their models.
        known: ``n x d`` feasible points, of which the front is made.
        every: ``m x d`` known points, of which the reference point is.
        ref_point: ``m`` objectives in its place.
    """
    models, weights = zip(*objectives, strict=True)
    with torch.no_grad():
        mixtures = Mixtures(models, weights)
        means, others = (mixtures.means(X.unsqueeze(-2)) for X in (known, every))
    # BoTorch's smallest ranges are for outcomes of about unit scale
    unit = AnyScaleStandardize(m=means.shape[-1])
    unit(others)
    unit.eval()
    scaled = unit(means)[0]
    if ref_point is None:
        # Of all points: of the front alone, or of the feasible ones, it is next to a
        # small front, as fronts are at first, and what extends it to either side does
        # not count.
        inferred = infer_reference_point(unit(others)[0])
        ref_point = unit.untransform(inferred.unsqueeze(0))[0].squeeze(0)
    else:
        pairs = zip(models, ref_point.to(means), strict=True)
        ref_point = torch.stack([_as_predicted(some[0], f) for some, f in pairs])
    boxes = FastNondominatedPartitioning(ref_point, means)
    acqf = AveragedLogExpectedHypervolumeImprovement(models, boxes, weights)
    best = best_of_paths(space.tree, known, scaled.sum(-1))
    return acqf, torch.cat([known[is_non_dominated(means)], best])
