"""`ParameterTree`: which columns of a search space are active where.

A column is *active* where its condition holds; a *decision* is a column that conditions
refer to; a *path* is one joint setting of the active decisions. Paths are never listed
unless asked for: see `decomposition` (counting) and `lookup` (the work on tensors).
"""

from __future__ import annotations

__all__ = ["ParameterTree"]

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.arguments import check_count
from botorch_structured.spaces.declaration import HierarchicalDependencies
from botorch_structured.spaces.lookup import Lookup
from botorch_structured.spaces.paths import Path
from botorch_structured.spaces.tree_structure import TreeStructure

if TYPE_CHECKING:
    from botorch_structured.spaces.search_space import SearchSpace

# Path numbers are int64; numbers of undeclared paths lie above those of declared ones.
_MAX_INDEXED = 1 << 62


class ParameterTree(TreeStructure):
    """A search space whose columns depend on each other.

    Use it wherever some parameters only matter for some settings of others: a learner
    and its hyperparameters, a number of layers and the width of each, an optional
    step. Plain tensors ``batch_shape x n x d`` hold the points; the tree says which of
    their columns are active, and which rows are on the same path::

            column 0 (learner)
           /        |         \\
        0.0        1.0        2.0
         |          |          |
      column 1   columns 1, 2  (none)        column 3 is always active

        # Ex1: BoTorch's and Ax's convention; a child may stand under several values
        ParameterTree(4, {0: {0: [1], 1: [1, 2], 2: []}})
        # Ex2: the same, in conditions
        ParameterTree(4, conditions={1: In(0, [0, 1]), 2: Equals(0, 1)},
                      values={0: [0, 1, 2]})
        # Ex3: column 1 is active where column 0 is at least 0.5
        ParameterTree(2, conditions={1: Between(0, 0.5, float("inf"))})

    Columns named as a child in both ``hierarchical_dependencies`` and ``conditions``
    are active where either says so. A decision is *categorical-like* if its conditions
    name values only, or if all its values are declared; it is *numeric* if a `Between`
    refers to it, and its outcomes are then the intervals that the conditions cut.

    Columns that are inactive at a row may hold anything there, NaN included: nothing
    depends on it. NaN in an active decision is an error.

    Args:
        dim: The number of columns ``d``.
        hierarchical_dependencies: ``{parent: {value: [children]}}``. Children may stand
            under several values and several parents (active when any holds); there may
            be several roots, any depth, and values without children.
        conditions: ``{child: condition}``, see `conditions`.
        values: ``{decision: [all its values]}``. Values that are not listed are then an
            error; without it a value that no condition names is a path of its own.

    Raises:
        ValueError: Columns out of range, a column that depends on itself (the cycle is
            printed), values that are not finite numbers, listed twice or, where
            ``values`` is given, missing from it.
    """

    def of_space(self, space: SearchSpace) -> ParameterTree:
        """The same tree, as that of a space.

        ``space.tree`` is such a tree: it is equal to this one, and optimisers that are
        given it ask ``tree.space`` which columns hold integers, which hold categories
        and what is forbidden. Pickles of it hold the space, too.
        """
        tree = copy.copy(self)
        tree.space = space
        return tree

    @classmethod
    def from_any(
        cls, x: ParameterTree | HierarchicalDependencies, dim: int
    ) -> ParameterTree:
        """``x`` if it is a tree over ``dim`` columns, else the tree of that dictionary.

        Raises:
            ValueError: ``x`` is neither, or a tree over another number of columns.
        """
        if not isinstance(x, (ParameterTree, Mapping)):
            hint = "; give its tree, space.tree" if hasattr(x, "tree") else ""
            raise ValueError(
                "hierarchical_dependencies: expected a ParameterTree or {column: "
                "{value: [columns]}}, with {} for a space without decisions, got "
                f"{None if x is None else type(x).__name__}{hint}."
            )
        if not isinstance(x, ParameterTree):
            return cls(dim, x)
        if x.dim != dim:
            raise ValueError(
                f"tree: expected a ParameterTree over {dim} columns, got one over "
                f"{x.dim}."
            )
        return x

    def decision_codes(self, X: Tensor) -> Tensor:
        """The outcome of every decision.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n x num_decisions`` integers in the order of
            `decision_columns`: the number of the outcome in `decision_values`; -1 where
            the decision is inactive; the number of outcomes for an undeclared value.
        """
        codes, active = self._checked_codes(X)
        return torch.where(active, codes, -1)

    def locate(self, X: Tensor, strict: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """`decision_codes`, `active_mask` and `path_key` in one pass.

        Args:
            X: ``batch_shape x n x d`` points.
            strict: Whether to raise where an active decision is NaN or a strictly
                declared one has another value (on a GPU the host waits for that);
                otherwise it is a path of its own on which nothing hangs.

        Returns:
            ``batch_shape x n x num_decisions`` integers, ``batch_shape x n x d``
            booleans and ``batch_shape x n`` integers.
        """
        values, codes, active = self._checked(X, strict)
        lookup = self._lookup(X.device)
        key = lookup.keys(values, codes, active)
        return torch.where(active, codes, -1), lookup.active_columns(codes), key

    def is_declared(self, X: Tensor) -> Tensor:
        """Whether all active decisions of a row have values that were declared.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n`` booleans.
        """
        codes, active = self._checked_codes(X, strict=False)
        odd = active & (codes == self._lookup(X.device).sizes)
        return ~odd.any(-1)

    def active_mask(self, X: Tensor, strict: bool = True) -> Tensor:
        """Which columns are active.

        Args:
            X: ``batch_shape x n x d`` points.
            strict: Whether to raise where an active decision is NaN or a strictly
                declared one has another value; otherwise nothing hangs on it.

        Returns:
            ``batch_shape x n x d`` booleans.
        """
        codes, _ = self._checked_codes(X, strict)
        return self._lookup(X.device).active_columns(codes)

    def impute(self, X: Tensor, fill: float | Tensor = 0.5) -> Tensor:
        """Set the inactive columns to a constant.

        Active columns keep their very bits and their gradients.

        Args:
            X: ``batch_shape x n x d`` points.
            fill: A number, or ``d`` numbers, one for each column.

        Returns:
            ``batch_shape x n x d`` points.
        """
        active = self.active_mask(X)
        value = torch.as_tensor(fill, dtype=X.dtype, device=X.device)
        if value.dim() > 1 or (value.dim() == 1 and value.shape[0] != self.dim):
            raise ValueError(
                f"fill: expected a number or {self.dim} numbers, got shape "
                f"{tuple(value.shape)}."
            )
        return torch.where(active, X, value)

    def path_key(self, X: Tensor) -> Tensor:
        """Integers that are equal exactly where two rows are on the same path.

        The cheap way to tell paths apart: no path is listed, nothing is read back from
        the device, and undeclared values are not refused even where they are strict.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n`` integers (exact below 2^62 combinations of outcomes;
            beyond that, and for undeclared values, hashes of 62 bits).
        """
        self._check_points(X)
        lookup = self._lookup(X.device)
        return lookup.keys(*lookup.codes(X))

    def path_index(self, X: Tensor) -> Tensor:
        """The number of every row's path in `paths`.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n`` integers. Rows with undeclared values have numbers from
            `num_paths` on, one for each distinct path.

        Raises:
            ValueError: A strictly declared decision has another value, or there are
                more paths than int64 can number.
        """
        if self.num_paths > _MAX_INDEXED:
            raise ValueError(
                f"tree: expected at most 2^62 paths to number, got {self.num_paths}: "
                "use path_key or decision_codes."
            )
        values, codes, active = self._checked(X)
        lookup = self._lookup(X.device)
        if lookup.combinations is not None:
            index = self._ranks(lookup)[lookup.rows_of(codes)]
            declared = index >= 0
        else:
            declared = ~(active & (codes == lookup.sizes)).any(-1)
            index = self._rank(codes, declared)
        if declared.all():
            return index
        key = lookup.keys(values, codes, active) & (_MAX_INDEXED - 1)
        return torch.where(declared, index, self.num_paths + key)

    def _rank(self, codes: Tensor, declared: Tensor) -> Tensor:
        """Path numbers of outcomes; -1 where they are not ``declared``."""
        rows = math.prod(codes.shape[:-1])
        flat = codes.reshape(rows, len(self._outcomes)).cpu().numpy()
        known = declared.reshape(-1).cpu().numpy()
        number = np.full(rows, -1, dtype=np.int64)
        number[known] = self._decomposition.rank(flat[known])
        return torch.from_numpy(number).to(codes.device).reshape(codes.shape[:-1])

    def _ranks(self, lookup: Lookup) -> Tensor:
        """The path number of every combination of outcomes, worked out once."""
        if lookup.ranks is None:
            every = lookup.combinations
            assert every is not None
            odd = lookup.active_decisions(every) & (every == lookup.sizes)
            lookup.ranks = self._rank(every, ~odd.any(-1))
        return lookup.ranks

    def path_of(self, x: Tensor) -> Path:
        """The path of one point, undeclared values included.

        Args:
            x: ``d`` (or ``1 x d``) point.
        """
        row = x.reshape(1, -1) if isinstance(x, Tensor) else x
        codes = self.decision_codes(row)[0].tolist()
        values = row[0].double().tolist()
        found = {k: code for k, code in enumerate(codes) if code >= 0}
        odd = {
            k: values[self._outcomes[k].col]
            for k, code in found.items()
            if code == len(self._outcomes[k])
        }
        return self._path(found, odd)

    def random_paths(
        self,
        n: int,
        generator: torch.Generator | None = None,
        bounds: Tensor | None = None,
    ) -> Tensor:
        """Points on random paths, for spaces with too many paths to list.

        Every decision takes each of its outcomes with the same probability (numeric
        ones a uniform number inside the interval; if that is unbounded its finite end,
        or 0). The other columns are 0.

        Args:
            n: The number of points.
            generator: A CPU generator.
            bounds: ``2 x d`` bounds to cut the intervals to.

        Returns:
            ``n x d`` float64 points.
        """
        check_count("n", n, least=0)
        X = torch.zeros(n, self.dim, dtype=torch.double)
        for o in self._outcomes:
            limits = None if bounds is None else bounds[:, o.col].tolist()
            lows, highs = o.spans(limits)
            low = torch.tensor(lows, dtype=torch.double)
            high = torch.tensor(highs, dtype=torch.double)
            code = torch.randint(len(low), (n,), generator=generator)
            u = torch.rand(n, generator=generator, dtype=torch.double)
            x = low[code] + u * (high - low)[code]
            X[:, o.col] = torch.minimum(x, high[code])
        return X

    def _lookup(self, device: torch.device) -> Lookup:
        lookups: dict[torch.device, Lookup] = self.__dict__.setdefault("_lookups", {})
        if device not in lookups:
            lookups[device] = Lookup(self.dim, self._outcomes, self._exprs, device)
        return lookups[device]

    def _check_points(self, X: Tensor) -> None:
        if not isinstance(X, Tensor):
            raise ValueError(
                f"X: expected a tensor with rows of {self.dim} columns, got "
                f"{type(X).__name__} (torch.as_tensor makes one)."
            )
        if X.dim() < 1 or X.shape[-1] != self.dim or not X.is_floating_point():
            raise ValueError(
                f"X: expected floating-point rows of {self.dim} columns, got shape "
                f"{tuple(X.shape)} of {X.dtype}."
            )

    def _checked_codes(self, X: Tensor, strict: bool = True) -> tuple[Tensor, Tensor]:
        """Outcomes and activity of all decisions; strict decisions are checked."""
        _, codes, active = self._checked(X, strict)
        return codes, active

    def _checked(self, X: Tensor, strict: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Values, outcomes and activity of all decisions."""
        self._check_points(X)
        lookup = self._lookup(X.device)
        values, codes = lookup.codes(X)
        active = lookup.active_decisions(codes)
        if strict and self._outcomes:
            # NaN is no value of any decision; undeclared ones are where not strict.
            odd = values.isnan()
            if lookup.any_strict:
                odd = odd | (lookup.strict & (codes == lookup.sizes))
            bad = active & odd
            if bad.any():
                k = int(bad.reshape(-1, bad.shape[-1]).any(0).nonzero()[0])
                got = values[..., k][bad[..., k]].unique().tolist()
                o = self._outcomes[k]
                expected = f"one of its declared values {list(o.values)}"
                if not o.strict:
                    expected = "a number, as it decides which columns are active"
                raise ValueError(f"X: column {o.col}: expected {expected}, got {got}.")
        return values, codes, active
