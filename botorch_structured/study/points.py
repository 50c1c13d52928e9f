"""Points of a study: by functions that are given to it, held, drawn, or answered."""

from __future__ import annotations

__all__ = [
    "AcquisitionMaker",
    "ModelMaker",
    "Point",
    "answered",
    "draw_new",
    "suggest_with",
    "used_up",
]

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, qLogExpectedImprovement
from botorch.exceptions.errors import CandidateGenerationError
from botorch.models.model import Model
from torch import Tensor

from botorch_structured.models.contexts import seeded
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import fit_models
from botorch_structured.suggest.suggestion import hold

Point = tuple[float, ...]
ModelMaker = Callable[[SearchSpace, Tensor, Tensor], Model]
AcquisitionMaker = Callable[[Model, Tensor, Tensor, Tensor | None], AcquisitionFunction]

# Random points among which one is looked for that is not known yet.
_DRAWS = 200
# The same where most may be on other paths than those that are left.
_HELD_DRAWS = 5_000
# Up to so many paths `SearchSpace.starts` has some on each; most of them in all.
_LISTED, _MOST_STARTS = 1_000, 20_000
# Of the range of a number on its scale: as far as numbers that were rounded on the way,
# say 0.0021 for 0.0021346, may be off.
_ROUNDING = 1e-2
# The same of a configuration that was changed on the way.
_CHANGED = 0.1


def draw_new(
    space: SearchSpace,
    q: int,
    known: Collection[Point],
    held: Mapping[int, float],
    seed: int,
) -> list[Point]:
    """Random points that are not known: ``q``, or fewer where no more are found.

    Args:
        space: The space.
        q: How many.
        known: Points that are not wanted.
        held: Column -> its value wherever it is active.
        seed: Decides everything.
    """
    X = space.sample((_HELD_DRAWS if held else _DRAWS) + q, seed=seed)

    def new_ones() -> list[Point]:
        points = hold(space, X, held)[0] if held else X
        return [x for x in dict.fromkeys(map(tuple, points.tolist())) if x not in known]

    if held and len(new_ones()) < q:  # few are on a rare path
        n = (q + len(known)) * min(space.tree.num_paths, _LISTED)
        X = torch.cat([X, space.starts(min(n, _MOST_STARTS), seed=seed)])
    return new_ones()[:q]


def used_up(
    space: SearchSpace, q: int, fixed: Mapping[str, Any] | None
) -> CandidateGenerationError:
    """The error where fewer than ``q`` new configurations are found.

    It does not say how many are left: random points may miss rare ones.

    Args:
        space: The space.
        q: How many were asked for.
        fixed: What is held, by name.
    """
    held = f" with {dict(fixed)}" if fixed else ""
    reasons = ["are equal to these", "were evaluated", "are pending"]
    reasons += ["are forbidden"] if space.is_restricted else []
    reasons += ["cannot have these values"] if held else []
    return CandidateGenerationError(
        f"Expected {q} new configuration{'s' * (q > 1)}{held}, found fewer: others "
        f"{', '.join(reasons[:-1])} or {reasons[-1]}."
    )


def answered(
    space: SearchSpace, key: Point, asked: Iterable[Point], changed: bool = False
) -> Point:
    """The pending point that this is, apart from rounded numbers.

    Args:
        space: The space.
        key: The point that was evaluated.
        asked: Those that are pending.
        changed: Whether numbers, integers too, may have been changed on the way.

    Returns:
        ``key`` if it is pending itself or near none of them; else the nearest one with
        the same path, choices and integers.
    """
    pending = list(asked)
    if not pending or key in pending:
        return key
    X = torch.tensor([key, *pending], dtype=torch.double)
    path = space.tree.path_key(X)
    whole = [] if changed else space.integer_features
    discrete = [*space.categorical_features, *whole]
    same = (path == path[0]) & (X[:, discrete] == X[0, discrete]).all(-1)
    low, high = space.bounds
    width = (high - low).clamp_min(torch.finfo(X.dtype).tiny)
    off = ((X - X[0]).abs() / width).amax(-1).masked_fill(~same, torch.inf)[1:]
    nearest = int(off.argmin())
    room = _CHANGED if changed else _ROUNDING
    return pending[nearest] if off[nearest] <= room else key


def suggest_with(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    model: ModelMaker | None,
    acquisition: AcquisitionMaker | None,
    q: int,
    X_pending: Tensor | None,
    seed: int,
    fixed_features: Mapping[int, float],
) -> tuple[Tensor, Model]:
    """Points to evaluate next, one after the other.

    Args:
        space: The space.
        train_X: ``n x d`` evaluated points.
        train_Y: ``n x m`` outcomes, not finite where an evaluation failed.
        model: ``(space, X, Y) -> model``. Default: the ``TreeStructuredGP`` of
            `fit_models`.
        acquisition: ``(model, X, Y, X_pending) -> function``. Default: the logarithm of
            the expected improvement over the best mean at an evaluated point, with what
            is fixed.
        q: How many points.
        X_pending: Points that are being evaluated.
        seed: Decides everything.
        fixed_features: Column -> its value wherever it is active.

    Returns:
        ``q x d`` points and the model.

    Raises:
        ValueError: A function returned something else than it should.
    """
    # Most models refuse infinite numbers: a failure is as bad as the worst success.
    finite = train_Y.isfinite().all(-1)
    worst = train_Y[finite].amin(0)
    filled = torch.where(finite.unsqueeze(-1), train_Y, worst)
    with seeded(seed, train_X.device):
        if model is None:
            fitted: Model = fit_models(space, train_X, train_Y)[0]
        else:
            fitted = model(space, train_X, filled)
        if not isinstance(fitted, Model):
            raise ValueError(
                "model: expected a function that returns a model of BoTorch, got one "
                f"that returned a {type(fitted).__name__}."
            )
        pending = train_X[:0] if X_pending is None else X_pending
        comparable = hold(space, train_X, fixed_features)[0]
        comparable = comparable if len(comparable) else train_X
        for _ in range(q):
            now = pending if len(pending) else None
            if acquisition is None:
                with torch.no_grad():
                    best = fitted.posterior(comparable).mean.max()
                criterion = qLogExpectedImprovement(fitted, best, X_pending=now)
            else:
                criterion = acquisition(fitted, train_X, filled, now)
            if not isinstance(criterion, AcquisitionFunction):
                raise ValueError(
                    "acquisition: expected a function that returns an acquisition "
                    "function of BoTorch, got one that returned a "
                    f"{type(criterion).__name__}."
                )
            known = torch.cat([train_X, pending])
            found, _ = optimize_acqf_paths(
                criterion, space=space, fixed_features=fixed_features, X_avoid=known
            )
            pending = torch.cat([pending, found.to(pending)])
    return pending[len(pending) - q :], fitted
