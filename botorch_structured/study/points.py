"""Points of a study: by functions that are given to it, held, drawn, or answered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, qLogExpectedImprovement
from botorch.exceptions.errors import CandidateGenerationError
from botorch.models.model import Model
from torch import Tensor

from botorch_structured.models.map_fit import seeded
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import fit_models
from botorch_structured.suggest.suggestion import hold

Point = tuple[float, ...]
ModelMaker = Callable[[SearchSpace, Tensor, Tensor], Model]
AcquisitionMaker = Callable[[Model, Tensor, Tensor, Tensor | None], AcquisitionFunction]
Starts = str | Sequence[Mapping[str, Any]] | Callable[[SearchSpace, int], Tensor]


@dataclass
class Pending:
    """A configuration that was asked for and not told yet.

    Args:
        config: The configuration.
        since: How many trials there were when it was asked for.
        overtaken: How many were told that were asked for later.
    """

    config: dict[str, Any]
    since: int
    overtaken: int = 0


def draw_new(
    space: SearchSpace,
    q: int,
    taken: Collection[Point],
    fixed_features: Mapping[int, float],
    seed: int,
) -> list[Point]:
    """Random points that are new: ``q``, or fewer where no more are drawn.

    Args:
        space: The space.
        q: How many.
        taken: Points that are not wanted.
        fixed_features: Column -> its value wherever it is active.
        seed: Decides everything.
    """
    X = space.sample(200 + q, seed=seed)
    if fixed_features:  # most points may be on other paths than those that are left
        n = (q + len(taken)) * min(space.tree.num_paths, 1_000)
        starts = space.starts(min(n, 20_000), seed=seed)
        X = torch.cat([X, space.sample(5_000, seed=seed), starts])
    points = dict.fromkeys(
        map(
            tuple,
            hold(
                space,
                X,
                fixed_features,
            )[0].tolist(),
        )
    )
    return [x for x in points if x not in taken][:q]


def used_up(q: int, fixed: Mapping[str, Any] | None) -> CandidateGenerationError:
    """The error where fewer than ``q`` new configurations are found.

    It does not say how many are left: random points may miss rare ones.

    Args:
        q: How many were asked for.
        fixed: The values of parameters that are fixed.
    """
    where = f" with {dict(fixed)}" if fixed else ""
    return CandidateGenerationError(
        f"Expected {q} new configuration{'s' * (q > 1)}{where}, found fewer: others "
        "are equal to these, were evaluated, are pending, or are not allowed."
    )


def answered(space: SearchSpace, x: Point, pending: Sequence[Point]) -> Point:
    """The pending point that this is, apart from rounded numbers.

    Args:
        space: The space.
        x: The point that was evaluated.
        pending: Those that are pending.

    Returns:
        ``x`` if it is pending itself or near none of them; else the nearest one with
        the same path and choices. Near is within 10 % of the range of each number on
        its scale.
    """
    if not pending or x in pending:
        return x
    X = torch.tensor([x, *pending], dtype=torch.double)
    path = space.tree.path_key(X)
    choices = list(space.categorical_features)
    same = (path == path[0]) & (X[:, choices] == X[0, choices]).all(-1)
    low, high = space.bounds
    width = (high - low).clamp_min(torch.finfo(X.dtype).tiny)
    off = ((X - X[0]).abs() / width).amax(-1).masked_fill(~same, torch.inf)[1:]
    nearest = int(off.argmin())
    return pending[nearest] if off[nearest] <= 0.1 else x


def suggest_with(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    model: ModelMaker | None,
    acquisition: AcquisitionMaker | None,
    q: int,
    X_pending: Tensor,
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
        X_pending: ``p x d`` points that are being evaluated.
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
        pending = X_pending
        comparable = hold(space, train_X, fixed_features)[0]
        comparable = comparable if len(comparable) else train_X
        for _ in range(q):
            now = pending if len(pending) else None
            if acquisition is None:
                with torch.no_grad():
                    best = fitted.posterior(comparable).mean.max()
                criterion = qLogExpectedImprovement(
                    fitted,
                    best,
                    X_pending=now,
                )
            else:
                criterion = acquisition(fitted, train_X, filled, now)
            if not isinstance(criterion, AcquisitionFunction):
                raise ValueError(
                    "acquisition: expected a function that returns an acquisition "
                    "function of BoTorch, got one that returned a "
                    f"{type(criterion).__name__}."
                )
            x, _ = optimize_acqf_paths(
                criterion,
                space=space,
                fixed_features=fixed_features,
                X_avoid=torch.cat([train_X, pending]),
            )
            pending = torch.cat([pending, x.to(pending)])
    return pending[len(pending) - q :], fitted
