"""Points worth searching around: the best ones that the model was trained on."""

from __future__ import annotations

__all__ = ["promising_points"]

from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.objective import IdentityMCObjective
from botorch.posteriors.fully_bayesian import MCMC_DIM
from torch import Tensor

from botorch_structured.optim.problem import Problem

_MAX_ROWS = 2048


def promising_points(problem: Problem, acq_function: AcquisitionFunction) -> Tensor:
    """The best training point of every path, the best of all first.

    Args:
        problem: The space.
        acq_function: Its model, objective and direction say what is best.

    Returns:
        ``k x d`` points; none if the acquisition function has no model with one table
        of training points.
    """
    d = problem.tree.dim
    nothing = problem.bounds.new_zeros(0, d)
    model = getattr(acq_function, "model", None)
    X = _training_points(model)
    if X is None or X.dim() != 2 or X.shape[-1] != d or not len(X):
        return nothing
    X = X.detach().to(problem.bounds)
    with torch.no_grad():
        score = _score(acq_function, model, X)
    if score is None:
        return nothing
    order = score.to(X.device).argsort(descending=True, stable=True)
    keys = problem.tree.path_key(X[order]).tolist()
    first: dict[int, int] = {}
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    best = torch.tensor(list(first.values()), device=X.device)
    return problem.tree.impute(X[order[best]], problem.fill)


def _training_points(model: Any) -> Tensor | None:
    """The training points as they were given, before any input transform."""
    original = getattr(model, "_original_train_inputs", None)
    if isinstance(original, Tensor) and not model.training:
        return _of_one_sample(model, original, ndim=2)
    inputs = getattr(model, "train_inputs", None)
    if not inputs or not isinstance(inputs[0], Tensor):
        return None
    return _of_one_sample(model, inputs[0], ndim=2)


def _of_one_sample(model: Any, values: Tensor, ndim: int) -> Tensor:
    """An ensemble holds its data once for each of its members."""
    if getattr(model, "_is_ensemble", False):
        while values.dim() > ndim:
            values = values[0]
    return values


def _score(acq_function: AcquisitionFunction, model: Any, X: Tensor) -> Tensor | None:
    """How good every training point is, larger is better."""
    sign = 1.0 if getattr(acq_function, "maximize", True) else -1.0
    transform = getattr(acq_function, "posterior_transform", None)
    objective = getattr(acq_function, "objective", None)
    plain = transform is None and isinstance(objective, IdentityMCObjective | None)
    targets = getattr(model, "train_targets", None)
    if isinstance(targets, Tensor):
        targets = _of_one_sample(model, targets, ndim=1)
    if plain and isinstance(targets, Tensor) and targets.shape == X.shape[:1]:
        return sign * targets
    if len(X) > _MAX_ROWS:
        return None
    # Any posterior transform and objective apply to the mean; one point a batch, as a
    # joint covariance is not needed.
    posterior = model.posterior(X.unsqueeze(-2), posterior_transform=transform)
    mean = posterior.mean
    if getattr(model, "_is_ensemble", False):
        mean = mean.mean(dim=MCMC_DIM)
    score = mean if objective is None else objective(mean, X.unsqueeze(-2))
    score = score.reshape(len(X), -1)
    return sign * score[:, 0] if score.shape[-1] == 1 else None
