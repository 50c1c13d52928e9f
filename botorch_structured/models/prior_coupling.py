"""Which values with priors depend on one another, and where that can be found out.

A prior may be on what several parameters give: the SAAS prior is on ``tau / l^2``,
beside one on ``tau``. Setting ``tau`` then changes the other value too, unless that is
set again afterwards.
"""

from __future__ import annotations

__all__ = ["followers", "in_order", "moved_inside"]

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from botorch_structured.models.prior_block import PriorBlock

# How far from a bound values can be stepped in both directions: ten times a step.
_MARGIN = 0.1


@contextmanager
def moved_inside(
    parameters: Mapping[str, torch.nn.Parameter], constraints: Mapping[str, Any]
) -> Iterator[None]:
    """Meanwhile no parameter is at a bound, where a MAP estimate often is.

    At a bound values can be set in one direction only, and a setting closure that stays
    clear of bounds does not even set the value that there is.

    Args:
        parameters: By name; as before afterwards.
        constraints: Of these parameters, or None.
    """
    before = {n: p.detach().clone() for n, p in parameters.items()}
    try:
        with torch.no_grad():
            for name, parameter in parameters.items():
                constraint = constraints.get(name)
                if constraint is not None and parameter.requires_grad:
                    parameter.copy_(_inside(parameter, constraint))
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(before[name])


def _inside(raw: Tensor, constraint: Any) -> Tensor:
    natural = constraint.transform(raw)
    low, high = (
        b.to(natural).expand(natural.shape)
        for b in (constraint.lower_bound, constraint.upper_bound)
    )
    width = high - low  # perhaps infinite, which bounds nothing
    first = low + _MARGIN * torch.minimum(low.abs(), width)
    last = high - _MARGIN * torch.minimum(high.abs(), width)
    moved = torch.where(low.isfinite() & (natural < first), first, natural)
    moved = torch.where(high.isfinite() & (moved > last), last, moved)
    # those that stay do so to the last bit
    return torch.where(moved == natural, raw, constraint.inverse_transform(moved))


def _depends(block: PriorBlock, others: Sequence[PriorBlock]) -> bool:
    """Whether setting one of the others changes the value of a block."""
    return any(block.reads & other.parameters for other in others)


def followers(block: PriorBlock, blocks: Sequence[PriorBlock]) -> list[PriorBlock]:
    """The blocks that are to be set again after one was, in no order.

    Args:
        block: The one.
        blocks: All that there are. If the one is among the result, it depends on
            itself by way of others, and no order of setting them gives given values.
    """
    found: list[PriorBlock] = []
    new = [block]
    while new:
        new = [
            b
            for b in blocks
            if _depends(b, new) and not any(b is other for other in found)
        ]
        found += new
    return found


def in_order(blocks: Sequence[PriorBlock]) -> list[PriorBlock]:
    """Blocks in an order in which setting one leaves those before it as they are.

    Args:
        blocks: None that depends on itself by way of others.
    """
    left, ordered = list(blocks), []
    while left:
        i = next(i for i, block in enumerate(left) if not _depends(block, left))
        ordered.append(left.pop(i))
    return ordered
