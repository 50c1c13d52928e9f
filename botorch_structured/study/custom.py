"""Suggestions by a model, or an acquisition function, that is given to a study."""

from __future__ import annotations

__all__ = ["AcquisitionMaker", "ModelMaker", "suggest_with"]

from collections.abc import Callable, Mapping

import torch
from botorch.acquisition import AcquisitionFunction, qLogExpectedImprovement
from botorch.models.model import Model
from torch import Tensor

from botorch_structured.models.contexts import seeded
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import fit_models
from botorch_structured.suggest.criterion import hold

ModelMaker = Callable[[SearchSpace, Tensor, Tensor], Model]
AcquisitionMaker = Callable[[Model, Tensor, Tensor, Tensor | None], AcquisitionFunction]


def suggest_with(
    space: SearchSpace,
    train_X: Tensor,
    train_Y: Tensor,
    q: int,
    X_pending: Tensor | None,
    seed: int,
    model: ModelMaker | None,
    acquisition: AcquisitionMaker | None,
    fixed_features: Mapping[int, float],
) -> tuple[Tensor, Model]:
    """Points to evaluate next, one after the other.

    Args:
        space: The space.
        train_X: ``n x d`` evaluated points.
        train_Y: ``n x m`` outcomes, not finite where an evaluation failed.
        q: How many points.
        X_pending: Points that are being evaluated.
        seed: Decides everything.
        model: ``(space, X, Y) -> model``. Default: the ``TreeStructuredGP`` of
            `fit_models`.
        acquisition: ``(model, X, Y, X_pending) -> function``. Default: the logarithm of
            the expected improvement over the best mean at an evaluated point, with what
            is fixed.
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
        held = hold(space, train_X, fixed_features)[0] if fixed_features else train_X
        comparable = held if len(held) else train_X
        for _ in range(q):
            now = pending if len(pending) else None
            if acquisition is None:
                criterion = _log_expected_improvement(fitted, comparable, now)
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


def _log_expected_improvement(
    model: Model, X: Tensor, X_pending: Tensor | None
) -> AcquisitionFunction:
    with torch.no_grad():
        best = model.posterior(X).mean.max()
    return qLogExpectedImprovement(model, best_f=best, X_pending=X_pending)
