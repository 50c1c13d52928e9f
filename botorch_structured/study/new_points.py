"""Random points that a study does not know yet."""

from __future__ import annotations

__all__ = ["draw_new", "used_up"]

from collections.abc import Collection, Mapping
from typing import Any

import torch
from botorch.exceptions.errors import CandidateGenerationError

from botorch_structured.spaces import SearchSpace
from botorch_structured.study.held import Point, hold

# Random points among which one is looked for that is not known yet.
_DRAWS = 200
# The same where most may be on other paths than those that are left.
_HELD_DRAWS = 5_000
# Up to so many paths `SearchSpace.starts` has some on each; most of them in all.
_LISTED, _MOST_STARTS = 1_000, 20_000


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
        points = hold(space, [tuple(x) for x in X.tolist()], held)
        return [x for x in dict.fromkeys(points) if x not in known]

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
    if space.is_restricted:
        reasons.append("are forbidden")
    if held:
        reasons.append("cannot have these values")
    return CandidateGenerationError(
        f"Expected {q} new configuration{'s' * (q > 1)}{held}, found fewer: others "
        f"{', '.join(reasons[:-1])} or {reasons[-1]}."
    )
