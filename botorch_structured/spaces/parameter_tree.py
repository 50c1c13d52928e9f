"""`ParameterTree`: which columns of a search space are active where.

A column is *active* where its condition holds; a *decision* is a column that conditions
refer to; a *path* is one joint setting of the active decisions. Paths are listed up to
4,096, see `path_search`.

`Lookup` finds, for whole tensors of points, the state of each decision and the columns
that these states switch on. Each distinct part of the conditions is evaluated once;
those of decisions from the top of the tree down.
"""

from __future__ import annotations

import copy
import math
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces import arguments
from botorch_structured.spaces.conditions import (
    ALWAYS,
    Atom,
    Between,
    Condition,
    Decision,
    Equals,
    In,
    Or,
    Span,
    State,
    bits,
    cut_intervals,
)
from botorch_structured.spaces.path_search import MAX_LISTED, PathSearch

# {parent column: {parent value: [child columns]}}, the convention of BoTorch and Ax.
HierarchicalDependencies = Mapping[int, Mapping[float, Sequence[int]]]
# Keys of paths have 62 bits; beyond them are those of undeclared values.
_UNDECLARED = 1 << 62
# So many tables of rows are known again: a search asks for the same few.
_MOST_RECENT = 8
# Numbers of a table that is too large to be known again.
_LARGE = 100_000


def mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of int64 that scatters its input."""
    # Torch shifts arithmetically; the masks make the shifts logical.
    z = z ^ ((z >> 30) & ((1 << 34) - 1))
    z = z * -0x40A7B892E31B1A47
    z = z ^ ((z >> 27) & ((1 << 37) - 1))
    z = z * -0x6B2FB644ECCEEE15
    return z ^ ((z >> 31) & ((1 << 33) - 1))


class Located:
    """Where some points are. `Lookup` returns the same one again: nothing changes it.

    Args:
        lookup: The tables.
        values: ``batch_shape x n x D`` float64 numbers of the decision columns.
        states: Their states, of the same shape.
    """

    def __init__(self, lookup: Lookup, values: Tensor, states: Tensor) -> None:
        self._lookup = lookup
        self.values = values
        self.states = states

    @cached_property
    def undeclared(self) -> Tensor:
        """Which states are of undeclared values, ``batch_shape x n x D`` booleans."""
        return self.states == self._lookup.undeclared

    @cached_property
    def refused(self) -> Tensor | None:
        """Which values are an error, ``batch_shape x n x D`` booleans; None if none."""
        # NaN is one wherever the decision is active
        refused = self.undeclared & (self._lookup.strict | self.values.isnan())
        return refused if refused.any() else None

    @cached_property
    def active(self) -> Tensor:
        """Which columns are active, ``batch_shape x n x d`` booleans."""
        states = self.states
        lookup = self._lookup
        shape = (*states.shape[:-1], len(lookup._place))
        if len(lookup._row) == 1:  # all columns are, everywhere
            return states.new_ones(shape, dtype=torch.bool)
        flat = states.unsqueeze(0).flatten(0, -2).t()
        truth = lookup._truth.gather(1, flat[lookup._parents])
        rows = [truth, truth.new_ones(1, truth.shape[1])]
        for condition in lookup._combined:
            verdict = condition.evaluate(lambda part: truth[lookup._row[part]])
            verdict = torch.as_tensor(verdict, device=truth.device)
            rows.append(verdict.expand(1, truth.shape[1]))
        return torch.cat(rows)[lookup._place].t().contiguous().reshape(shape)

    @cached_property
    def keys(self) -> Tensor:
        """``batch_shape x n`` integers, equal exactly where the paths are the same.

        With fewer than 2^62 combinations of states the key is a mixed-radix number and
        exact; beyond, and for values that were not declared, it is a hash of 62 bits
        (those of undeclared values lie above 2^62).
        """
        strides = self._lookup.strides
        key = (self.states * strides).sum(-1) & (_UNDECLARED - 1)
        # on a GPU reading the answer would make the host wait
        if key.is_cpu and not self.undeclared.any():
            return key
        pattern = (self.values + 0.0).view(torch.long)  # -0.0 becomes 0.0
        other = torch.where(self.undeclared, mix(pattern + strides), 0).sum(-1)
        hashed = (key + other) & (_UNDECLARED - 1)
        return torch.where(self.undeclared.any(-1), hashed | _UNDECLARED, key)


class Lookup:
    """The tables of one tree on one device.

    Values and states are ``batch_shape x n x D`` tensors: the float64 numbers of the
    decision columns, and what `find` makes of them.

    Args:
        decisions: The ``D`` decisions, columns ascending.
        conditions: For every column what activates it, over the decisions.
        parts: The distinct states that these are about.
        order: The decisions, parents first.
        device: Where the tables live.

    Attributes:
        undeclared: The state of each decision at values that were not declared.
        strict: Whether these are errors.
        strides: What the states are multiplied with in the key of a path.
    """

    def __init__(
        self,
        decisions: Sequence[Decision],
        conditions: Sequence[Condition],
        parts: Collection[State],
        order: Sequence[int],
        device: torch.device,
    ) -> None:
        D = len(decisions)
        sizes = [len(o) for o in decisions]
        width = max([1, *sizes])
        index = partial(torch.tensor, dtype=torch.long, device=device)
        self._columns = index([o.col for o in decisions])
        self._recent: dict[tuple[torch.Size, bytes], Located] = {}
        self.undeclared = index([size + 1 for size in sizes])
        strict = [o.strict for o in decisions]
        self.strict = torch.tensor(strict, dtype=torch.bool, device=device)

        # No number is beyond the last outcome or before the first one.
        low = np.full((D, width), np.inf)
        high = np.full((D, width + 1), -np.inf)
        for k, decision in enumerate(decisions):
            for code, (lo, hi) in enumerate(decision.limits):
                low[k, code] = lo
                high[k, code + 1] = hi
        self._low = torch.from_numpy(low).to(device)
        self._high = torch.from_numpy(high).to(device)

        # None of the parts holds for values that were not declared.
        truth = np.zeros((len(parts), width + 2), dtype=bool)
        for i, part in enumerate(parts):
            states = sizes[part.k] + 1
            truth[i, :states] = bits(part.mask, states)
        self._truth = torch.from_numpy(truth).to(device)
        self._parents = index([part.k for part in parts])
        # Row of the truth at points: the parts, True, then what combines them.
        self._row: dict[Condition, int] = {part: i for i, part in enumerate(parts)}
        self._row[ALWAYS] = len(parts)
        place = [self._row.setdefault(c, len(self._row)) for c in conditions]
        self._place = index(place)
        self._combined = [*self._row][len(parts) + 1 :]
        above = [(k, conditions[decisions[k].col]) for k in order]
        self._dependent = [(k, c) for k, c in above if c != ALWAYS]

        # The states are the digits of a key; with too many of them it is a hash.
        digits = [size + 2 for size in sizes]
        if math.prod(digits) <= _UNDECLARED:
            self.strides = index([math.prod(digits[k + 1 :]) for k in range(D)])
        else:
            generator = torch.Generator().manual_seed(0)
            strides = torch.randint(_UNDECLARED, (D,), generator=generator)
            self.strides = strides.to(device)

    def find(self, X: Tensor) -> Located:
        """Where ``batch_shape x n x d`` points are."""
        values = X.detach().index_select(-1, self._columns).double()
        name = None
        if values.is_cpu and values.numel() <= _LARGE and not torch.jit.is_tracing():
            with suppress(RuntimeError):  # tensors of functorch have no data
                name = values.shape, values.numpy().tobytes()
        if name is None:
            return Located(self, values, self._states(values))
        located = self._recent.get(name)
        if located is None:
            located = Located(self, values, self._states(values))
            if len(self._recent) >= _MOST_RECENT:
                self._recent = {}
            self._recent[name] = located
        return located

    def _states(self, values: Tensor) -> Tensor:
        """The states of all decisions, from the top of the tree down."""
        if not len(self._columns):
            return values.long()
        flat = values.unsqueeze(0).flatten(0, -2).t().contiguous()
        states = torch.searchsorted(self._low, flat, right=True)
        # a comparison that is False for NaN, which is no outcome
        is_declared = flat <= self._high.gather(1, states)
        states = torch.where(
            is_declared,
            states,
            self.undeclared.unsqueeze(-1),
        )
        for k, condition in self._dependent:
            if isinstance(condition, State):
                states[k] *= self._truth[self._row[condition], states[condition.k]]
            else:
                states[k] *= condition.evaluate(
                    lambda part: self._truth[self._row[part], states[part.k]]
                )
        return states.t().reshape(values.shape)


@dataclass(frozen=True)
class Path:
    """One joint setting of the active decisions.

    Args:
        decisions: Active decision column -> its value, or its ``(lo, hi)`` interval
            (closed at both ends) where the decision is numeric.
        active_columns: The active columns, ascending; active decisions among them.
    """

    decisions: dict[int, float | Span] = field(hash=False)
    active_columns: tuple[int, ...]

    @property
    def active(self) -> Tensor:
        """The active columns as a LongTensor."""
        return torch.tensor(self.active_columns, dtype=torch.long)

    @property
    def fixed_features(self) -> dict[int, float]:
        """The decision columns that have one value on this path, with that value."""
        return {c: v for c, v in self.decisions.items() if not isinstance(v, tuple)}

    @property
    def intervals(self) -> dict[int, Span]:
        """The numeric decision columns with the interval they move in on this path."""
        return {c: v for c, v in self.decisions.items() if isinstance(v, tuple)}


class ParameterTree:
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
    depends on it. (Models refuse NaN anywhere: fill it by ``impute``.) NaN in an active
    decision is an error.

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

    def __init__(
        self,
        dim: int,
        hierarchical_dependencies: HierarchicalDependencies | None = None,
        conditions: Mapping[int, Condition] | None = None,
        values: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        self.dim = dim = arguments.check_count("dim", dim)
        # The SearchSpace that says what columns hold, or None; see `of_space`.
        self.space: Any = None
        parts: dict[int, list[Condition]] = {}
        # The values that decide, by column.
        self._named = _read_dependencies(dim, hierarchical_dependencies, parts)
        _read_conditions(dim, conditions, parts)
        #: Column -> where it is active, ascending.
        self.conditions = {
            c: Or(tuple(parts[c])) if len(parts[c]) > 1 else parts[c][0]
            for c in sorted(parts)
        }
        listed = arguments.check_by_column("values", values, dim)
        self._values = {
            c: arguments.check_values(f"values[{c}]", listed[c]) for c in listed
        }
        self._decisions = self._collect_decisions()
        self._position = {o.col: k for k, o in enumerate(self._decisions)}
        #: The columns that conditions refer to (or whose values are declared).
        self.decision_columns = [o.col for o in self._decisions]
        #: Decision column -> declared values, or ``(lo, hi)`` intervals, ascending.
        self.decision_values: dict[int, list[Any]] = {}
        for decision in self._decisions:
            self.decision_values[decision.col] = list(decision.values)
        #: The decision columns whose outcomes are intervals.
        self.numeric_decisions = [o.col for o in self._decisions if o.numeric]
        #: The decision columns whose outcomes are values.
        self.decisions_by_value = [o.col for o in self._decisions if not o.numeric]
        above: dict[int, Iterable[int]] = dict.fromkeys(self._position, ())
        above |= {c: sorted(where.columns()) for c, where in self.conditions.items()}
        try:
            columns = [*TopologicalSorter(above).static_order()]
        except CycleError as error:
            raise ValueError(
                "hierarchical_dependencies, conditions: expected no cycle, got "
                "columns that wait for each other: "
                f"{' -> '.join(map(str, error.args[1]))}."
            ) from None
        self._lookups: dict[torch.device, Lookup] = {}
        # The decisions, parents first.
        self._order = [self._position[c] for c in columns if c in self._position]
        #: The conditions of all columns, over the states of the decisions.
        self.over_states = [
            self.conditions.get(c, ALWAYS).replaced(self._states) for c in range(dim)
        ]

        top = [c for c in self.decision_columns if self.over_states[c] == ALWAYS]
        #: The decision column that is always active; None if none or several are.
        self.top_decision = top[0] if len(top) == 1 else None
        atoms = [part for c in self.over_states for part in c.atoms()]
        self._parts = dict.fromkeys(atoms)

    def _states(self, a: Atom) -> State:
        """An atom over the states of its decision."""
        k = self._position[a.col]
        return State(k, self._decisions[k].mask(a))

    def of_space(self, space: Any) -> ParameterTree:
        """The same tree, as that of a `SearchSpace`.

        ``space.tree`` is such a tree: it is equal to this one, and optimisers that are
        given it ask ``tree.space`` which columns hold integers, which hold categories
        and what is forbidden. Pickles of it hold the space, too. Other values than
        those of its categories are an error.
        """
        tree = copy.copy(self)
        tree.space = space
        tree._lookups = {}
        tree._decisions = [
            replace(o, strict=o.strict or hasattr(space.columns[o.col], "codes"))
            for o in self._decisions
        ]
        return tree

    @classmethod
    def from_any(
        cls,
        x: ParameterTree | HierarchicalDependencies,
        dim: int,
    ) -> ParameterTree:
        """``x`` if it is a tree over ``dim`` columns, else the tree of that dictionary.

        Raises:
            ValueError: ``x`` is neither, or a tree over another number of columns.
        """
        if isinstance(x, ParameterTree):
            if x.dim != dim:
                raise ValueError(
                    f"tree: expected a ParameterTree over {dim} columns, got one over "
                    f"{x.dim}."
                )
            return x
        if isinstance(x, Mapping):
            return _first_equal(cls(dim, x))
        raise ValueError(
            "hierarchical_dependencies: expected a ParameterTree, such as space.tree, "
            "or {column: {value: [columns]}}, with {} for a space without decisions, "
            f"got {arguments.brief(x)}."
        )

    def _collect_decisions(self) -> list[Decision]:
        atoms: dict[int, list[Atom]] = {c: [] for c in self._named}
        for condition in self.conditions.values():
            for a in condition.atoms():
                atoms.setdefault(a.col, []).append(a)
        for col in self._values:
            atoms.setdefault(col, [])
        return [self._decision(col, atoms[col]) for col in sorted(atoms)]

    def _decision(self, col: int, atoms: Sequence[Atom]) -> Decision:
        """A column that atoms are about."""
        by_value = [a for a in atoms if not isinstance(a, Between)]
        values = {v for a in by_value for v, _ in a.intervals}
        values |= self._named.get(col, set())
        declared = self._values.get(col)
        numeric = declared is None and len(by_value) < len(atoms)
        if declared and (missing := sorted(values - set(declared))):
            raise ValueError(
                f"values[{col}]: expected all values of column {col}, those its "
                f"conditions name included, got {list(declared)} without {missing}."
            )
        spans = [(v, v) for v in declared or sorted(values)]
        if numeric:
            spans = cut_intervals([*atoms, *(Equals(col, v) for v in values)])
        return Decision(
            col,
            tuple(spans),
            numeric,
            strict=declared is not None,
        )

    @cached_property
    def edge_offsets(self) -> list[int]:
        """Where the edges of every decision start; see `num_edges`."""
        return list(accumulate(map(len, self._decisions), initial=0))[:-1]

    @cached_property
    def num_edges(self) -> int:
        """The number of edges, one per decision and declared outcome.

        Outcome ``code`` of the ``k``-th decision has the number
        ``edge_offsets[k] + code``.
        """
        return sum(map(len, self._decisions))

    @cached_property
    def leaf_edges(self) -> Tensor:
        """``num_edges`` booleans: whether that outcome switches on no decision."""
        leaf = torch.ones(self.num_edges, dtype=torch.bool)
        for col in self.decision_columns:
            for part in self.over_states[col].atoms():
                start = self.edge_offsets[part.k]
                size = len(self._decisions[part.k])
                is_inner = bits(part.mask, size + 1)[1:]
                leaf[start : start + size] &= torch.from_numpy(~is_inner)
        return leaf

    @cached_property
    def _search(self) -> PathSearch:
        sizes = [len(o.intervals) for o in self._decisions]
        conditions = [self.over_states[o.col] for o in self._decisions]
        return PathSearch(sizes, conditions, self._order)

    @cached_property
    def num_paths(self) -> int:
        """The number of paths over declared outcomes.

        Above 4,096 it is a bound: the number of combinations of outcomes, whether they
        go together or not.
        """
        return self._search.num_paths

    @cached_property
    def path_points(self) -> Tensor:
        """One point on each of `paths`, ``num_paths x d``; all but decisions are 0.

        Raises:
            ValueError: There are more than 4,096 paths.
        """
        if not self._search.is_listed:
            raise ValueError(
                f"tree: expected at most {MAX_LISTED} paths to list, got up to "
                f"{self.num_paths}: use path_key, path_of or random_paths."
            )
        return self.points_at(torch.from_numpy(self._search.states).long())

    def points_at(self, states: Tensor) -> Tensor:
        """``n x D`` states of the decisions -> ``n x d`` points, otherwise 0."""
        X = torch.zeros(len(states), self.dim, dtype=torch.double)
        for k, o in enumerate(self._decisions):
            X[:, o.col] = X.new_tensor([0.0, *o.representatives])[states[:, k]]
        return X

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The declared paths in the order of `path_index`.

        Raises:
            ValueError: There are more than 4,096 paths.
        """
        return tuple(self._paths_of(self.path_points))

    @cached_property
    def sorted_keys(self) -> Tensor:
        """The keys of `paths`, ascending, and their numbers, ``2 x num_paths``."""
        return torch.stack(tuple(self.path_key(self.path_points).sort()))

    @cached_property
    def _path_counts(self) -> list[int]:
        """On how many of `paths` each column is active; of random ones, at least 1."""
        states = torch.from_numpy(self._search.states).long()
        counts = self.active_mask(self.points_at(states)).sum(0)
        return counts.clamp(min=0 if self._search.is_listed else 1).tolist()

    @cached_property
    def own_columns(self) -> list[int]:
        """The columns, other than decisions by value, that are active on one path."""
        counts = enumerate(self._path_counts)
        return [c for c, n in counts if n == 1 and c not in self.decisions_by_value]

    @cached_property
    def shared_columns(self) -> list[int]:
        """The columns, other than decisions by value, active on more than one path."""
        counts = enumerate(self._path_counts)
        return [c for c, n in counts if n > 1 and c not in self.decisions_by_value]

    def leaf_columns(self, path: Path | int) -> list[int]:
        """The columns that are active on this path and on no other.

        Args:
            path: One of `paths`, or its number.
        """
        chosen = path if isinstance(path, Path) else self.paths[path]
        return sorted({*chosen.active_columns} & {*self.own_columns})

    def _paths_of(self, X: Tensor) -> Iterator[Path]:
        """The path of each of ``n x d`` points."""
        located = self._locate(X)
        rows = (located.values.tolist(), located.states.tolist(), located.active)
        for numbers, path, on in zip(*rows, strict=True):
            decisions = {}
            for o, x, state in zip(self._decisions, numbers, path, strict=True):
                if state:
                    is_declared = state <= len(o)
                    decisions[o.col] = o.values[state - 1] if is_declared else x
            yield Path(
                decisions,
                tuple(on.nonzero().flatten().tolist()),
            )

    def _identity(self) -> tuple[Any, ...]:
        return (
            self.dim,
            tuple(self._decisions),
            tuple(self.over_states),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ParameterTree):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._identity())

    def __getstate__(self) -> dict[str, Any]:
        # Tables (on a device) and the decomposition (large) are computed again.
        again = (
            "_search",
            "paths",
            "path_points",
            "sorted_keys",
        )
        state = {name: v for name, v in self.__dict__.items() if name not in again}
        return {**state, "_lookups": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> ParameterTree:
        return self  # nothing about it changes

    def __repr__(self) -> str:
        title = f"ParameterTree(dim={self.dim}, num_paths={self.num_paths})"
        lines = [f"  column {c} if {where}" for c, where in self.conditions.items()]
        return "\n".join([title, *lines[:40]])

    def decision_codes(self, X: Tensor, strict: bool = True) -> Tensor:
        """The outcome of every decision.

        Args:
            X: ``batch_shape x n x d`` points.
            strict: As of `locate`.

        Returns:
            ``batch_shape x n x num_decisions`` integers in the order of
            `decision_columns`: the number of the outcome in `decision_values`; -1 where
            the decision is inactive; the number of outcomes for an undeclared value.
        """
        return self._locate(X, strict).states - 1

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
        located = self._locate(X, strict)
        return (
            located.states - 1,
            located.active.clone(),
            located.keys.clone(),
        )

    def is_declared(self, X: Tensor) -> Tensor:
        """Whether all active decisions of a row have values that were declared.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n`` booleans.
        """
        return ~self._locate(X, strict=False).undeclared.any(-1)

    def active_mask(self, X: Tensor, strict: bool = True) -> Tensor:
        """Which columns are active.

        Args:
            X: ``batch_shape x n x d`` points.
            strict: Whether to raise where an active decision is NaN or a strictly
                declared one has another value; otherwise nothing hangs on it.

        Returns:
            ``batch_shape x n x d`` booleans.
        """
        return self._locate(X, strict).active.clone()

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
        return self._locate(X, strict=False).keys.clone()

    def path_index(self, X: Tensor) -> Tensor:
        """The number of every row's path in `paths`.

        Args:
            X: ``batch_shape x n x d`` points.

        Returns:
            ``batch_shape x n`` integers. Rows with undeclared values have numbers from
            `num_paths` on, one for each distinct path.

        Raises:
            ValueError: A strictly declared decision has another value, or there are
                more than 4,096 paths.
        """
        key = self._locate(X).keys
        listed, number = self.sorted_keys.to(X.device)
        if not len(listed):
            return key
        place = torch.searchsorted(listed, key).clamp(max=len(listed) - 1)
        undeclared = self.num_paths + (key & ((1 << 62) - 1))
        return torch.where(listed[place] == key, number[place], undeclared)

    def path_of(self, x: Tensor) -> Path:
        """The path of one point, undeclared values included.

        Args:
            x: ``d`` (or ``1 x d``) point.
        """
        self.check_rows(x)
        return next(self._paths_of(x.reshape(1, -1).double()))

    def random_paths(
        self,
        n: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Points on random paths, for spaces with too many paths to list.

        Every decision takes each of its outcomes with the same probability (numeric
        ones a number in the interval). The other columns are 0.

        Args:
            n: The number of points.
            generator: A CPU generator.

        Returns:
            ``n x d`` float64 points.
        """
        sizes = torch.tensor([len(o) for o in self._decisions])
        share = torch.rand(
            n,
            len(sizes),
            generator=generator,
            dtype=torch.double,
        )
        return self.points_at(1 + (share * sizes).long())

    def check_rows(self, X: Any) -> None:
        """Raise a ``ValueError`` unless ``X`` holds rows of ``d`` floats."""
        got = type(X).__name__
        if isinstance(X, Tensor):
            if X.shape[-1:] == (self.dim,) and X.is_floating_point():
                return
            got = f"shape {tuple(X.shape)} of {X.dtype}"
        raise ValueError(
            f"X: expected a tensor of floating-point rows of {self.dim} columns, got "
            f"{got}."
        )

    def _locate(self, X: Tensor, strict: bool = True) -> Located:
        """Where points are, by the tables for their device."""
        self.check_rows(X)
        lookup = self._lookups.get(X.device)
        if lookup is None:
            lookup = Lookup(
                self._decisions,
                self.over_states,
                self._parts,
                self._order,
                X.device,
            )
            self._lookups[X.device] = lookup
        located = lookup.find(X)
        if strict and located.refused is not None:
            self._refuse(located.values, located.refused)
        return located

    def _refuse(self, values: Tensor, refused: Tensor) -> NoReturn:
        k = int(refused.flatten(0, -2).any(0).nonzero()[0])
        got = values[..., k][refused[..., k]].unique().tolist()
        decision = self._decisions[k]
        expected = "a number, as it decides which columns are active"
        if decision.strict:
            expected = f"one of its declared values {list(decision.values)}"
        raise ValueError(f"X: column {decision.col}: expected {expected}, got {got}.")


@lru_cache(maxsize=16)
def _first_equal(tree: ParameterTree) -> ParameterTree:
    """The first of equal trees, which has its tables already.

    A loop that names dependencies makes a tree of them in each iteration.
    """
    return tree


def _mapping(name: str, value: Any, form: str) -> Mapping[Any, Any]:
    """``value`` if it is a mapping; an empty one for None."""
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name}: expected {form}, got {value!r}.")
    return value or {}


def _read_dependencies(
    dim: int,
    dependencies: HierarchicalDependencies | None,
    parts: dict[int, list[Condition]],
) -> dict[int, set[float]]:
    """The values of each parent; adds to ``parts`` the conditions of the children."""
    name = "hierarchical_dependencies"
    named: dict[int, set[float]] = {}
    branches_of = _mapping(name, dependencies, "{parent: {value: [children]}}")
    for parent, branches in branches_of.items():
        parent = arguments.check_column(name, parent, dim)
        named[parent] = set()
        by_child: dict[int, set[float]] = {}
        if not _mapping(
            f"{name}[{parent}]",
            branches,
            "{value: [children]}",
        ):
            raise ValueError(
                f"{name}[{parent}]: expected at least one value (a value without "
                "children is written {value: []}), got {}."
            )
        for value, children in branches.items():
            where = f"{name}[{parent}][{value}]"
            number = arguments.check_number(where, value)
            named[parent].add(number)
            for child in arguments.check_columns(where, children, dim):
                by_child.setdefault(child, set()).add(number)
        for child, numbers in by_child.items():
            parts.setdefault(child, []).append(In(parent, sorted(numbers)))
    return named


def _read_conditions(
    dim: int,
    conditions: Mapping[int, Condition] | None,
    parts: dict[int, list[Condition]],
) -> None:
    """Add conditions to ``parts``, once they are checked."""
    conditions = _mapping("conditions", conditions, "{child: condition}")
    for child, condition in conditions.items():
        child = arguments.check_column("conditions", child, dim)
        name = f"conditions[{child}]"
        if not isinstance(condition, Condition):
            raise ValueError(
                f"{name}: expected Equals, In, Between or a combination of them by & "
                f"and |, got {condition!r}."
            )
        arguments.check_columns(name, sorted(condition.columns()), dim)
        parts.setdefault(child, []).append(condition)
