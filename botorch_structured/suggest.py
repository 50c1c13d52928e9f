r"""The next points to evaluate: the recommended models, criterion and search in one.

``suggest`` is what this package recommends for a search in a conditional space when
nothing more is known, and what its own loops use. It is nothing but

1. two models of the same data, fitted: ``TreeStructuredGP``, which shares what it
   learns between branches, and ``ConditionalGP``, which shares hyperparameters only;
   both see bad outcomes at logarithmic distances (``ClipTail(tail="log")``), so that
   one bad evaluation does not write a branch off;
2. their weights, by how well each predicts every observation from the others
   (``leave_one_out_weights``): few data leave both, many leave one;
3. the expected improvement of their mixture (``AveragedLogExpectedImprovement``) over
   the best mean at an evaluated point, times a weak prior for the inside of the box
   that decays with the number of observations (``InteriorPrior``, BoTorch's
   ``PriorGuidedAcquisitionFunction``);
4. its maximum over all paths (``optimize_acqf_paths``), at a distance from known points
   where outcomes repeat, as those of step functions do.

Each is public, so a loop of one's own starts from these lines.
"""

from __future__ import annotations

__all__ = ["Suggestion", "fit_models", "suggest"]

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from botorch.acquisition import AcquisitionFunction, PriorGuidedAcquisitionFunction
from botorch.exceptions.errors import CandidateGenerationError
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.outcome import ChainedOutcomeTransform
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.acquisition import (
    AveragedLogExpectedImprovement,
    InteriorPrior,
)
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.leave_one_out import leave_one_out_weights
from botorch_structured.models.outcome_scale import AnyScaleStandardize
from botorch_structured.models.surroundings import seeded
from botorch_structured.models.tree.leaf_model import LeafModel
from botorch_structured.models.tree.noise import has_steps
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_count, check_seed
from botorch_structured.transforms import ClipTail

# Observations above which one model is fitted: averaging is for few data.
_MANY_ROWS = 200
# Nearer than this to a known point, in widths of the bounds, a step function has little
# to tell. Where there is no other point left, a nearer one has to do.
_STEPS = (0.01, 0.001, 0.0)
# The exponent of the prior is 1 at so many observations.
_PRIOR_OBSERVATIONS = 1.0


class Suggestion(NamedTuple):
    """What `suggest` returns.

    Attributes:
        X: ``q x d`` points to evaluate; inactive columns hold the space's fill.
        models: The fitted models; give them as ``start_from`` next time.
        weights: The weight of each model, with sum 1.
    """

    X: Tensor
    models: list[LeafModel]
    weights: Tensor


def fit_models(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    start_from: Sequence[LeafModel] | None = None,
    **kwargs: Any,
) -> list[LeafModel]:
    """The models behind `suggest`, fitted; the first is a ``TreeStructuredGP``.

    Args:
        space: The space.
        train_X: ``n x d`` evaluated points of it.
        train_Y: ``n x 1`` outcomes, larger ones are better; ``-inf`` where an
            evaluation failed.
        start_from: What this function returned for fewer observations: fits start from
            its hyperparameters.
        kwargs: Further arguments of the models, such as ``outcome_transform`` (default:
            ``ClipTail(tail="log")``, then ``Standardize``).

    Returns:
        A ``TreeStructuredGP``, and, where the space has decisions and there are at most
        200 observations, a ``ConditionalGP``.

    Raises:
        ValueError: An argument is not what it should be.
    """
    _check_arguments(space, train_X, train_Y, start_from)
    classes: list[type[LeafModel]] = [TreeStructuredGP]
    if space.tree.decision_columns and len(train_X) <= _MANY_ROWS:
        classes.append(ConditionalGP)
    kwargs.setdefault(
        "outcome_transform",
        ChainedOutcomeTransform(
            clip=ClipTail(tail="log"), standardize=AnyScaleStandardize(m=1)
        ),
    )
    earlier = {type(model): model for model in start_from or ()}
    models = []
    for kind in classes:
        # a transform learns from the data: each model has its own
        options = {k: deepcopy(v) for k, v in kwargs.items()}
        model: LeafModel = kind(train_X, train_Y, space, **options)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        start = {"start_from": earlier[kind]} if kind in earlier else {}
        fit_gpytorch_mll(mll, **start)
        models.append(model)
    return models


def suggest(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    q: int = 1,
    X_pending: Tensor | None = None,
    start_from: Sequence[LeafModel] | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> Suggestion:
    r"""Points of a space to evaluate next.

    Choose it where nothing is known but the space: it is the default of this package.
    Evaluate ``space.starts()`` first.

    Several points are chosen one after the other. For each, the models are conditioned
    on their own means at the points that are pending, so that no two are alike.

    Args:
        space: The space.
        train_X: ``n x d`` evaluated points of it.
        train_Y: ``n x 1`` outcomes, larger ones are better: give minus an error.
            ``-inf`` where an evaluation failed.
        q: How many points.
        X_pending: ``m x d`` points that are being evaluated.
        start_from: ``models`` of the last suggestion: fits are shorter.
        seed: The same seed and data give the same points. Default: PyTorch's generator.
        kwargs: Further arguments of the models, such as ``outcome_transform`` or
            ``train_Yvar``.

    Returns:
        The points, the models and their weights.

    Raises:
        ValueError: An argument is not what it should be.
        CandidateGenerationError: Every point of the space is known.

    Example:
        >>> X = space.starts(seed=0)
        >>> Y = -evaluate(X)
        >>> for _ in range(20):
        ...     x = suggest(space, X, Y).X
        ...     X, Y = torch.cat([X, x]), torch.cat([Y, -evaluate(x)])
    """
    q = check_count("q", q)
    _check_arguments(space, train_X, train_Y, start_from, X_pending)
    if (seed := check_seed(seed)) is not None:
        with seeded(seed, train_X.device):
            return suggest(space, train_X, train_Y, q, X_pending, start_from, **kwargs)
    models = fit_models(space, train_X, train_Y, start_from, **kwargs)
    weights = leave_one_out_weights(models)
    pending = train_X[:0] if X_pending is None else X_pending.to(train_X)
    chosen = train_X[:0]
    distances = _STEPS if has_steps(models[0].train_targets) else (0.0,)
    for _ in range(q):
        known = torch.cat([train_X, pending, chosen])
        criterion = _criterion(
            space, models, weights, known, len(train_X), kwargs.get("train_Yvar")
        )
        found = _maximise(criterion, space, known, distances)
        chosen = torch.cat([chosen, found.to(train_X)])
    return Suggestion(chosen, models, weights)


def _check_arguments(
    space: Any,
    train_X: Any,
    train_Y: Any,
    start_from: Any,
    X_pending: Any = None,
) -> None:
    if not isinstance(space, SearchSpace):
        raise ValueError(f"space: expected a SearchSpace, got {type(space).__name__}.")
    # the models look at the numbers
    for name, given, width in (
        ("train_X", train_X, space.dim),
        ("train_Y", train_Y, 1),
        ("X_pending", X_pending, space.dim),
    ):
        if name == "X_pending" and given is None:
            continue
        got = f"a {type(given).__name__}"
        if isinstance(given, Tensor):
            if given.ndim == 2 and given.shape[-1] == width:
                continue
            got = f"shape {tuple(given.shape)}"
        raise ValueError(f"{name}: expected an n x {width} tensor, got {got}.")
    models = () if start_from is None else start_from
    if not all(isinstance(model, LeafModel) for model in models):
        raise ValueError(
            "start_from: expected the models of an earlier suggestion, "
            f"got {[type(model).__name__ for model in models]}."
        )


def _maximise(
    criterion: AcquisitionFunction,
    space: SearchSpace,
    known: Tensor,
    distances: Sequence[float],
) -> Tensor:
    """The best point at the first of some distances from known ones that has any."""
    for distance in distances[:-1]:
        try:
            return optimize_acqf_paths(
                criterion, space=space, X_avoid=known, min_distance=distance
            )[0]
        except CandidateGenerationError:
            continue
    return optimize_acqf_paths(
        criterion, space=space, X_avoid=known, min_distance=distances[-1]
    )[0]


def _criterion(
    space: SearchSpace,
    models: Sequence[LeafModel],
    weights: Tensor,
    known: Tensor,
    num_evaluated: int,
    noise: Tensor | None,
) -> AcquisitionFunction:
    """What is maximised, given the means at known points that are not evaluated."""
    with torch.no_grad():
        means = [
            model.posterior(known.unsqueeze(-2)).mean.flatten() for model in models
        ]
    if len(known) > num_evaluated:
        taken = known[num_evaluated:]
        # where variances of noise are known, those of new outcomes have to be guessed
        guess: dict[str, Tensor] = {}
        if noise is not None:
            guess["noise"] = noise.to(known).mean().expand(len(taken), 1)
        models = [
            model.condition_on_observations(taken, mean[num_evaluated:, None], **guess)
            for model, mean in zip(models, means, strict=True)
        ]
    # With noise the best outcome is not the best point; without, both are the same.
    best_f = torch.stack([mean.max() for mean in means])
    improvement = AveragedLogExpectedImprovement(models, best_f, weights)
    return PriorGuidedAcquisitionFunction(
        improvement,
        InteriorPrior(space),
        log=True,
        prior_exponent=_PRIOR_OBSERVATIONS / num_evaluated,
    )
