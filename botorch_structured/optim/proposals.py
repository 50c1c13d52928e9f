"""What the optimisers share once their arguments are checked."""

from __future__ import annotations

__all__ = [
    "boxes_to_search",
    "good_points",
    "greedily",
    "make_generator",
    "make_settings",
    "nothing_left",
]

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import OptimizationWarning
from torch import Tensor

from botorch_structured.optim.boxes import Boxes, boxes_at, path_rows
from botorch_structured.optim.problem import Problem, check_points
from botorch_structured.optim.promising import promising_points
from botorch_structured.optim.search import Settings
from botorch_structured.spaces.arguments import check_count, check_seed


def make_settings(num_restarts: int, raw_samples: int | None) -> Settings:
    """The checked effort of a search."""
    if raw_samples is not None:
        check_count("raw_samples", raw_samples)
    return Settings(check_count("num_restarts", num_restarts), raw_samples)


def make_generator(seed: int | None) -> torch.Generator:
    """A CPU generator; without a seed, seeded by torch's global one."""
    seed = check_seed(seed)
    if seed is None:
        seed = int(torch.randint(1 << 31, (1,)))
    return torch.Generator().manual_seed(seed)


def good_points(
    problem: Problem, acq_function: AcquisitionFunction, X_start: Tensor | None
) -> Tensor:
    """``k x d`` points to look around, the best first."""
    if X_start is None:
        return promising_points(problem, acq_function)
    X_start = check_points("X_start", X_start, problem.tree, problem.bounds)
    return problem.tree.impute(X_start, problem.fill)


def boxes_to_search(
    problem: Problem, seen: Tensor, generator: torch.Generator
) -> Boxes:
    """The boxes of all paths (of many, if there are too many).

    Raises:
        ValueError: The arguments leave no path.
    """
    boxes, ok = boxes_at(problem, path_rows(problem, seen, generator))
    if not ok.any():
        raise ValueError(
            "fixed_features, categorical_features, bounds: expected to leave at least "
            f"one path of the tree, got fixed_features={problem.fixed}, "
            f"bounds={problem.bounds.tolist()} for decisions "
            f"{problem.tree.decision_values}."
        )
    return boxes.take(ok.nonzero().squeeze(-1))


def nothing_left(problem: Problem, known: Tensor) -> CandidateGenerationError:
    """The error for a space without a new admissible point."""
    why = f"{len(known)} points are known or pending"
    if problem.feasible is not None or problem.constraints:
        why += "; no other point satisfying feasible and the constraints was found"
    return CandidateGenerationError(
        f"Expected a path with a new point to propose, got none: {why}."
    )


def _told_if_worthless(x: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    if bool(value == -math.inf):
        warnings.warn(
            "The acquisition function is NaN or -inf wherever it was evaluated: the "
            "candidate is an arbitrary point. Look at the model's posterior.",
            OptimizationWarning,
            stacklevel=4,
        )
    return x, value


def greedily(
    problem: Problem,
    acq_functions: list[AcquisitionFunction],
    q: int,
    propose: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Choose ``q`` candidates one after the other, the earlier ones pending.

    Args:
        problem: The space.
        acq_functions: Told of the pending points if they can be, the last one must;
            afterwards they are as they were.
        q: How many.
        propose: Maps ``m x d`` known points to ``1 x d`` and its value.

    Returns:
        ``q x d`` candidates, and a number (``q=1``) or ``q`` values.
    """
    last = acq_functions[-1]
    if q > 1 and not hasattr(last, "X_pending"):
        raise ValueError(
            "acq_function: expected one that takes pending points, such as "
            f"qLogExpectedImprovement, for q={q}, got {type(last).__name__}."
        )
    told = [a for a in acq_functions if hasattr(a, "X_pending")]
    before: list[Any] = [a.X_pending for a in told]
    known = problem.known
    for pending in before:
        if isinstance(pending, Tensor):
            flat = pending.reshape(-1, pending.shape[-1])
            flat = check_points("X_pending", flat, problem.tree, known)
            known = torch.cat([known, problem.tree.impute(flat, problem.fill)])
    if q == 1:
        return _told_if_worthless(*propose(known))
    candidates: list[Tensor] = []
    values = []
    try:
        for _ in range(q):
            x, value = _told_if_worthless(*propose(known))
            candidates.append(x)
            values.append(value)
            known = torch.cat([known, x])
            batch = torch.cat(candidates)
            for acqf, pending in zip(told, before, strict=True):
                acqf.set_X_pending(
                    batch if pending is None else torch.cat([pending.to(batch), batch])
                )
    finally:
        for acqf, pending in zip(told, before, strict=True):
            acqf.set_X_pending(pending)
    return torch.cat(candidates), torch.stack(values)
