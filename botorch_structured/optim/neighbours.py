r"""Neighbours of points: one active parameter changed, the others kept.

What equation (7) of [Levesque2017conditional]_ calls :math:`N_j(\gamma)`.
"""

from __future__ import annotations

__all__ = ["Neighbourhood"]

from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_structured.optim.domain import Domain


class Neighbourhood:
    """The one-exchange neighbours of points in a conditional space.

    ================================  ================================================
    active parameter                  its other values
    ================================  ================================================
    real                              each step down and up, cut at the bounds
    integer                           one less and one more
    integer with gaps                 the admissible values next to it
    categorical, decision by value    every other one
    numeric decision                  those of the number it is
    ================================  ================================================

    Where a decision changes, the parameters that it switches on are drawn at random
    (further decisions among them included), those that stay active keep their values,
    and those that it switches off hold the fill value.

    Every possible change is a *slot*, a column and a way to change it; the slots are
    the same for all points.

    Args:
        domain: What every column may hold.
        steps: Of the reals, in widths of the bounds, the largest first.
    """

    def __init__(self, domain: Domain, steps: Sequence[float]) -> None:
        self.domain = domain
        self.tree = domain.problem.tree
        lower, upper = domain.lower, domain.upper
        numbers = upper > lower
        numbers[list(domain.tables)] = False
        whole = (numbers & domain.whole).nonzero().squeeze(-1)
        reals = (numbers & ~domain.whole).nonzero().squeeze(-1)
        # Numbers move by adding something ...
        signed = lower.new_tensor([way * s for s in steps for way in (-1.0, 1.0)])
        width = (upper - lower)[reals]
        one = torch.ones_like(lower[whole])
        self._move = torch.cat([torch.outer(signed, width).view(-1), -one, one])
        # The next smaller step: where it meets a bound, so do all larger ones.
        inner = torch.cat([signed[2:], 0.0 * signed[:2]])
        self._inner = torch.cat(
            [torch.outer(inner, width).view(-1), 0.0 * one, 0.0 * one]
        )
        self._moving = torch.cat([reals.repeat(len(signed)), whole, whole])
        self._lower, self._upper = lower[self._moving], upper[self._moving]
        # ... others to the next value in a list ...
        self._ordered = sorted(domain.ordered)
        beside = self._index(self._ordered)
        # ... or to any other one.
        listed = {c: t for c, t in domain.tables.items() if c not in domain.ordered}
        self._values = torch.cat([lower[:0], *listed.values()])
        other = self._index([c for c, table in listed.items() for _ in table])
        self._columns = torch.cat([self._moving, beside, beside, other])
        decides = torch.zeros_like(numbers)
        decides[self.tree.decision_columns] = True
        self._decides = decides[self._columns]

    def _index(self, numbers: list[int]) -> Tensor:
        device = self.domain.lower.device
        return torch.tensor(numbers, dtype=torch.long, device=device)

    def of(
        self, X: Tensor, active: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All neighbours of some points, admissible or not.

        Args:
            X: ``S x d`` points, inactive columns at the fill value.
            active: ``S x d`` booleans.
            generator: A CPU generator, for parameters that are switched on.

        Returns:
            ``M x d`` neighbours, ``M x d`` booleans: their active columns, and the
            ``M`` rows of ``X`` they belong to, ascending.
        """
        values = self._changed(X)
        changes = active[:, self._columns] & (values != X[:, self._columns])
        owner, slot = changes.nonzero(as_tuple=True)
        column = self._columns[slot].unsqueeze(-1)
        near = X[owner].scatter(-1, column, values[owner, slot].unsqueeze(-1))
        near_active = active[owner]
        rows = self._decides[slot].nonzero().squeeze(-1)
        if len(rows):
            drawn = self.domain.draw(len(rows), generator)
            joined = torch.where(near_active[rows], near[rows], drawn)
            near_active[rows] = on = self.tree.active_mask(joined)
            near[rows] = torch.where(on, joined, self.domain.problem.fill)
        return near, near_active, owner

    def _changed(self, X: Tensor) -> Tensor:
        """``S x slots``: what each change leads to; where it cannot, what was there."""
        now = X[:, self._moving]
        moved = torch.minimum(torch.maximum(now + self._move, self._lower), self._upper)
        inner = now + self._inner
        met = torch.where(self._move < 0, inner <= self._lower, inner >= self._upper)
        parts = [torch.where(met, now, moved)]
        for way in (-1, 1):
            for col in self._ordered:
                table = self.domain.tables[col]
                position = torch.searchsorted(table, X[:, col].contiguous()) + way
                parts.append(table[position.clamp(0, len(table) - 1)].unsqueeze(-1))
        parts.append(self._values.expand(len(X), -1))
        return torch.cat(parts, dim=-1)
