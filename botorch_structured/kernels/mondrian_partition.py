r"""Random partitions by Mondrian processes, made on demand and never stored.

A Mondrian process cuts a box after an exponential time whose rate is the sum of the
box's sides, in a side chosen in proportion to its length, at a uniform place; both
parts go on independently, until the lifetime is over. Here every random number is a
hash of the node it belongs to. So a tree *is* its 64-bit key: any point can be followed
down to its cell, the cells that nobody asks for cost nothing, and their number, which
grows exponentially with the dimension, does not matter.

References:

.. [Balog2016mondrian]
    M. Balog, B. Lakshminarayanan, Z. Ghahramani, D. M. Roy and Y. W. Teh. The Mondrian
    Kernel. UAI 2016.
"""

from __future__ import annotations

__all__ = ["MondrianPartition", "mix"]

from typing import Any

import torch
from torch import Tensor, nn

# Elements of the largest temporary, 64 MiB of double precision.
_CHUNK = 2**23
# How far outside the bounds there are cuts.
_REACH = 2.0**30
# Odd constants of the splitmix64 generator, as signed integers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
# What tells apart the numbers that are drawn for one node.
_TIME, _PLACE = 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179


class MondrianPartition(nn.Module):
    """Independent Mondrian partitions of the whole space.

    Within ``bounds`` they are Mondrian processes. These extend to the space outside by
    independent cuts of each column, so that the probability that no cut separates two
    points is the exponential of minus their distance everywhere.

    Args:
        num_trees: The number of partitions.
        seed: The same seed gives the same partitions; more trees begin with the fewer.
        bounds: ``2 x d``; the unit cube if None.
    """

    keys: Tensor
    bounds: Tensor | None

    def __init__(self, num_trees: int, seed: int, bounds: Tensor | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        keys = torch.randint(-(2**63), 2**63 - 1, (num_trees,), generator=generator)
        self.register_buffer("keys", keys)
        self.register_buffer("bounds", bounds)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        # partitions are those of the bounds that were saved, or of none
        bounds = state_dict.get(prefix + "bounds")
        self.bounds = None if bounds is None else bounds.clone().to(self.keys.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, X: Tensor, lengthscale: Tensor, lifetime: float) -> Tensor:
        """The cells of points.

        Args:
            X: ``batch_shape x n x d``.
            lengthscale: ``batch_shape x 1 x d``, or with a last dimension of one.
            lifetime: When the cutting ends. A longer one refines the same partitions.

        Returns:
            ``batch_shape x n x num_trees`` integers that are equal if and only if the
            points are in the same cell of the tree.

        Raises:
            ValueError: For points that are not finite or further than 2^30 from
                ``bounds``.
        """
        low, high = self._box(X)
        X = X.double()
        inside = X.clamp(low, high)
        outside = X - inside
        if not (outside.abs() < _REACH).all():
            raise ValueError(
                "X: expected finite inputs within 2^30 of the bounds, got some that "
                "are not: normalise the inputs, or pass bounds."
            )
        shape = torch.broadcast_shapes(X.shape, lengthscale.shape)
        rate = lifetime / lengthscale.double()
        d = X.shape[-1]
        inside, low, high, outside, rate = (
            x.expand(shape).reshape(-1, d) for x in (inside, low, high, outside, rate)
        )
        box = inside * rate, low * rate, high * rate
        size = max(1, _CHUNK // max(1, inside.numel()))
        parts = [_descend(*box, keys)[0] for keys in self.keys.split(size)]
        cells = torch.cat(parts, -1)
        if outside.any():
            cells = self._beyond(cells, outside, rate)
        return cells.reshape(*shape[:-1], len(self.keys))

    def list_cells(
        self, dim: int, lengthscale: Tensor, lifetime: float, limit: int
    ) -> Tensor:
        """All cells within the bounds, in ascending order.

        Args:
            dim: The number of columns.
            lengthscale: ``1 x d`` or ``1 x 1``.
            lifetime: When the cutting ends.
            limit: At most so many cells.

        Returns:
            A vector of cells.

        Raises:
            ValueError: If about more are expected.
        """
        rate = lifetime / lengthscale.double()
        low, high = (x * rate for x in self._box(lengthscale.new_empty(1, dim)))
        expected = len(self.keys) * (1.0 + high - low).prod().item()
        if expected > limit:
            raise ValueError(
                f"lifetime: expected at most {limit} cells within the bounds, got "
                f"about {expected:.3g} in {len(self.keys)} trees of {dim} columns. "
                "Their number grows like the product of 1 + lifetime * range / "
                "lengthscale over the columns: take fewer trees or a shorter lifetime, "
                "or a fixed number of features by features_per_tree."
            )
        key = self.keys
        low, high = (x.expand(len(key), dim) for x in (low, high))
        time = torch.zeros_like(low[:, 0])
        finished: list[Tensor] = []
        while len(key):
            time, column, place = _next_cut(key, low, high, time)
            alive = time <= 1.0
            finished.append(key[~alive])
            key, low, high, time = key[alive], low[alive], high[alive], time[alive]
            column, place = column[alive].unsqueeze(-1), place[alive].unsqueeze(-1)
            below = high.scatter(-1, column, place)
            above = low.scatter(-1, column, place)
            key = torch.cat([_child(key, True), _child(key, False)])
            low, high = torch.cat([low, above]), torch.cat([below, high])
            time = torch.cat([time, time])
        return torch.cat(finished).sort().values

    def _box(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The corners of the bounds of points ``... x d``, two vectors."""
        d = X.shape[-1]
        if self.bounds is None:
            zero = torch.zeros(d, dtype=torch.float64, device=X.device)
            return zero, zero + 1.0
        if self.bounds.shape[-1] != d:
            raise ValueError(
                f"bounds: expected ``2 x {d}`` for inputs with {d} columns, got shape "
                f"{tuple(self.bounds.shape)}."
            )
        low, high = self.bounds.double()
        return low, high

    def _beyond(self, cells: Tensor, outside: Tensor, rate: Tensor) -> Tensor:
        """Cells told apart by the cuts between a point and the bounds."""
        row, column = outside.nonzero(as_tuple=True)
        signed, rate = outside[row, column], rate[row, column].unsqueeze(-1)
        distance = signed.abs().unsqueeze(-1) * rate
        box = distance, torch.zeros_like(distance), _REACH * rate
        # each side of each column has cuts of its own
        side = (2 * column + (signed > 0) + 1).unsqueeze(-1) * _STEP
        parts = []
        size = max(1, _CHUNK // max(1, len(row)))
        for keys in self.keys.split(size):
            cell, edge = _descend(*box, mix(keys + side))
            # before the first cut one is still in the cell at the edge of the bounds
            parts.append(torch.where(edge.squeeze(-1) == 0.0, 0, mix(cell)))
        return cells.index_add(0, row, torch.cat(parts, -1))


def mix(key: Tensor) -> Tensor:
    """A hash of 64-bit integers; sums and products wrap around."""
    key = (key ^ _shift(key, 30)) * _FIRST
    key = (key ^ _shift(key, 27)) * _SECOND
    return key ^ _shift(key, 31)


def _shift(key: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills with zeros whatever the sign."""
    return (key >> bits) & ((1 << (64 - bits)) - 1)


def _uniform(key: Tensor, salt: int) -> Tensor:
    """Strictly between 0 and 1."""
    return (_shift(mix(key ^ salt), 12).double() + 0.5) * 2.0**-52


def _child(key: Tensor, below: Tensor | bool) -> Tensor:
    return mix(key * 2 + below + _STEP)


def _next_cut(
    key: Tensor, low: Tensor, high: Tensor, time: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """When, in which column and where boxes ``... x d`` are cut next."""
    ends = (high - low).cumsum(-1)
    length = ends[..., -1]
    time = time - _uniform(key, _TIME).log() / length
    at = (_uniform(key, _PLACE) * length).unsqueeze(-1)
    column = (ends <= at).sum(-1, keepdim=True).clamp_max(ends.shape[-1] - 1)
    place = high.gather(-1, column) - (ends.gather(-1, column) - at)
    return time, column.squeeze(-1), place.squeeze(-1)


def _descend(
    X: Tensor, low: Tensor, high: Tensor, roots: Tensor
) -> tuple[Tensor, Tensor]:
    """Follow points down to their cells, through cuts of rate one until time one.

    Args:
        X: ``n x d`` in the box.
        low: ``n x d``, the box of each point.
        high: ``n x d``.
        roots: ``n x t`` or ``t`` keys of trees.

    Returns:
        ``n x t`` keys of the cells, and ``n x t x d`` their lower corners.
    """
    n, d = X.shape
    shape = n, roots.shape[-1]
    key = roots.expand(shape).reshape(-1)
    X, low, high = (
        x.unsqueeze(-2).expand(*shape, d).reshape(-1, d) for x in (X, low, high)
    )
    time = torch.zeros_like(X[:, 0])
    cell, corner = key.clone(), low.clone()
    index = torch.arange(len(key), device=key.device)
    while len(index):
        time, column, place = _next_cut(key, low, high, time)
        alive = (time <= 1.0).nonzero().squeeze(-1)
        if len(alive) < len(index):
            ended = time > 1.0
            cell[index[ended]], corner[index[ended]] = key[ended], low[ended]
            index, key, time, column, place = (
                x[alive] for x in (index, key, time, column, place)
            )
            X, low, high = X[alive], low[alive], high[alive]
        column, place = column.unsqueeze(-1), place.unsqueeze(-1)
        below = X.gather(-1, column) <= place
        high = high.scatter(
            -1, column, torch.where(below, place, high.gather(-1, column))
        )
        low = low.scatter(-1, column, torch.where(below, low.gather(-1, column), place))
        key = _child(key, below.squeeze(-1))
    return cell.reshape(shape), corner.reshape(*shape, d)
