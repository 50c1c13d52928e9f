r"""Neighbours of points: one active parameter changed, the others kept.

What equation (7) of [Levesque2017conditional]_ calls :math:`N_j(\gamma)`.
"""

from __future__ import annotations

__all__ = ["Neighbourhood"]

import torch
from torch import Tensor

from botorch_structured.optim.domain import Domain


class Neighbourhood:
    """The one-exchange neighbours of points in a conditional space.

    ================================  ================================================
    active parameter                  its other values
    ================================  ================================================
    real                              a step down and a step up, cut at the bounds
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
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.tree = domain.problem.tree
        free = domain.upper > domain.lower
        free[list(domain.tables)] = False
        # Numbers that move by adding something ...
        moving = free.nonzero().squeeze(-1)
        self._moving = moving
        self._lower, self._upper = domain.lower[moving], domain.upper[moving]
        self._whole = domain.whole[moving]
        self._width = self._upper - self._lower
        #: The columns with a step that can be made smaller.
        self.reals = moving[~self._whole]
        # ... to the next value in a list ...
        self._ordered = sorted(domain.ordered)
        beside = self._index(self._ordered)
        # ... and to any other value.
        listed = {c: t for c, t in domain.tables.items() if c not in domain.ordered}
        self._values = torch.cat([domain.lower[:0], *listed.values()])
        other = self._index([c for c, table in listed.items() for _ in table])
        self._columns = torch.cat([moving, moving, beside, beside, other])
        decides = torch.zeros_like(free)
        decides[self.tree.decision_columns] = True
        self._decides = decides[self._columns]

    def _index(self, numbers: list[int]) -> Tensor:
        device = self.domain.lower.device
        return torch.tensor(numbers, dtype=torch.long, device=device)

    def of(
        self, X: Tensor, active: Tensor, step: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All neighbours of some points, admissible or not.

        Args:
            X: ``S x d`` points, inactive columns at the fill value.
            active: ``S x d`` booleans.
            step: ``S`` steps of the reals, in widths of the bounds.
            generator: A CPU generator, for parameters that are switched on.

        Returns:
            ``M x d`` neighbours, ``M x d`` booleans: their active columns, and the
            ``M`` rows of ``X`` they belong to, ascending.
        """
        values = self._changed(X, step)
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

    def _changed(self, X: Tensor, step: Tensor) -> Tensor:
        """``S x slots``: what each change leads to; where it cannot, what was there."""
        now = X[:, self._moving]
        move = torch.where(self._whole, 1.0, step.unsqueeze(-1) * self._width)
        parts = [
            torch.maximum(now - move, self._lower),
            torch.minimum(now + move, self._upper),
        ]
        for way in (-1, 1):
            for col in self._ordered:
                table = self.domain.tables[col]
                position = torch.searchsorted(table, X[:, col].contiguous()) + way
                parts.append(table[position.clamp(0, len(table) - 1)].unsqueeze(-1))
        parts.append(self._values.expand(len(X), -1))
        return torch.cat(parts, dim=-1)
