"""`LearntSpace`: which parameters a study asks for under which values, from its trials.

A study that is defined by running it does not say its space; the parameters that its
trials asked for show it. A parameter that all trials asked for is always active.
Another one depends on a decision: a choice, or a whole number with few values, that all
trials with the parameter have, and whose values tell them from the others. Of several
such decisions it is the one with the fewest values, until a trial tells them apart.
Where no single decision explains a parameter, a second and a
third one do within the branches of the first; where these do not either, the parameter
counts as active in the branch, and trials without it have the middle of its range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from itertools import chain, groupby, pairwise
from operator import and_, or_
from typing import Any, NamedTuple

from botorch_structured.integrations.optuna.trial_space import (
    Asked,
    TrialParameter,
    Values,
    united,
)
from botorch_structured.spaces import Between, In, ParameterTree, SearchSpace
from botorch_structured.spaces.conditions import Condition

# So many decisions together may explain a parameter.
_DEPTH = 3
# The ends of a range of so many whole numbers are tried though nothing depends on it.
_SHORT = 5

_Span = tuple[float, float]
_Where = dict[int, list[_Span]]  # decision -> where its number is


class _DecisionSplit(NamedTuple):
    """Branches of a decision: where its number is, and which trials are there."""

    decision: int
    cost: float  # trials that stay unexplained
    branches: list[tuple[_Span, int]]


class LearntSpace:
    """The space of a study, as far as its trials show it.

    Args:
        trials: The trials; at least one asked for something. Each parameter that one is
            expected to ask for was asked for by another one.

    Attributes:
        parameters: One for each column.
        names: The names of the columns: that of the parameter, with a number where
            the name has several ranges.
        space: The space.
    """

    def __init__(self, trials: Sequence[Asked]) -> None:
        self._united: set[str] = set()  # names with one column for all their ranges
        while True:
            self._read(trials)
            several = self._many_ranges()
            if not several:
                self._learn()
                names = {self.parameters[i].name for i in self._unexplained}
                several = {n for n in names if len(self._columns_of[n]) > 1}
            if not several:
                break
            self._united |= several
        self.names = [parameter.name for parameter in self.parameters]
        for name, columns in self._columns_of.items():
            if len(columns) > 1:
                for k, i in enumerate(columns, 1):
                    self.names[i] = f"{name}#{k}"
        self.space = self._build_space()

    def is_like(self, other: LearntSpace) -> bool:
        """Whether values have the same configurations in both."""
        return self._keys == other._keys and self.space == other.space

    def entries(self, values: Values) -> dict[str, Any]:
        """Names of columns and their entries, of ``{name: (distribution, value)}``.

        Parameters that no trial has asked for are left out.
        """
        entries = {}
        for name, (distribution, value) in values.items():
            if (i := self._column(name, distribution)) is not None:
                entries[self.names[i]] = self.parameters[i].entry(value)
        return entries

    def _key(
        self,
        name: str,
        distribution: Any,
    ) -> tuple[str, Any]:
        return (name, None if name in self._united else distribution)

    def _column(
        self,
        name: str,
        distribution: Any,
    ) -> int | None:
        """The column of a parameter, if a trial has asked for it."""
        # hashing is slow, and most trials share the very distributions
        column = self._column_of_object.get((name, id(distribution)))
        if column is None:
            column = self._position.get(self._key(name, distribution))
        return column

    def _numbers(self, trial: Asked) -> dict[int, float]:
        """Columns and their numbers."""
        row = {}
        for name, (distribution, value) in trial.values.items():
            if (i := self._column(name, distribution)) is not None:
                row[i] = self.parameters[i].number(value)
        return row

    def fixed_entries(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Names of columns and their entries, of ``{name: value}``.

        Values that are out of range are left out.
        """
        return {
            self.names[i]: self.parameters[i].entry(value)
            for name, value in fixed.items()
            for i in self._columns_of.get(name, ())
            if self.parameters[i].contains(value)
        }

    def values(self, config: Mapping[str, Any]) -> Values:
        """``{name: (distribution, value)}`` of a configuration of the space."""
        return {
            p.name: (p.distribution, p.value(config[name]))
            for p, name in zip(self.parameters, self.names, strict=True)
            if name in config
        }

    # -- trials in numbers -------------------------------------------------------------

    def _read(self, trials: Sequence[Asked]) -> None:
        """Parameters in an order that storages share; sets of trials are bits."""
        seen = [trial for trial in trials if not trial.expected]
        # they stay alive, so that no other distribution gets their ids
        self._distributions: dict[tuple[str, int], Any] = {
            (name, id(distribution)): distribution
            for trial in seen
            for name, (distribution, _) in trial.values.items()
        }
        ranges: dict[tuple[str, Any], list[Any]] = {}
        for (name, _), distribution in self._distributions.items():
            ranges.setdefault(self._key(name, distribution), []).append(distribution)
        keys = sorted(ranges, key=lambda key: (key[0], repr(key[1])))
        self._keys = keys
        self.parameters = [
            TrialParameter(name, distribution or united(ranges[name, distribution]))
            for name, distribution in keys
        ]
        self._position = {key: i for i, key in enumerate(keys)}
        self._column_of_object = {
            (name, number): self._position[self._key(name, distribution)]
            for (name, number), distribution in self._distributions.items()
        }
        self._columns_of: dict[str, list[int]] = {}
        for i, (name, _) in enumerate(keys):
            self._columns_of.setdefault(name, []).append(i)
        self._rows = [self._numbers(trial) for trial in seen]
        self._expected = [self._numbers(trial) for trial in trials if trial.expected]
        self._asked = [0] * len(keys)  # the trials that asked for a parameter
        self._at: list[dict[float, int]] = [{} for _ in keys]  # number -> trials
        for t, row in enumerate(self._rows):
            for i, number in row.items():
                self._asked[i] |= 1 << t
                self._at[i][number] = self._at[i].get(number, 0) | 1 << t
        ended = sum(trial.complete << t for t, trial in enumerate(seen))
        self._complete = ended
        for t, row in enumerate(self._rows):
            # where all trials ended early, they are all there is to learn from
            if any(
                self._is_decision(i) and not self._at[i][number] & ended
                for i, number in row.items()
            ):
                self._complete |= 1 << t

    def _many_ranges(self) -> set[str]:
        """Names of which most trials have a range of their own."""
        names = set()
        for name, columns in self._columns_of.items():
            sizes = [self._asked[i].bit_count() for i in columns]
            # five ranges that one trial each has are no branches, but depend on
            # something else: another parameter's value, or the data
            if 2 * sizes.count(1) >= max(sum(sizes), 10):
                names.add(name)
        return names

    def _is_few(self, i: int) -> bool:
        """Whether its values are tried one by one although nothing depends on them."""
        return self.parameters[i].size <= 10

    # -- what depends on what ----------------------------------------------------------

    def _learn(self) -> None:
        """Find the settings of decisions under which each parameter is active."""
        explained: dict[int, tuple[list[_Where], bool]] = {}
        for with_it in self._asked:
            # the rest of a trial that ended early is not known
            without = self._complete & ~with_it
            if with_it not in explained:
                explained[with_it] = self._grow(
                    with_it,
                    without,
                    _DEPTH,
                )
        self._unexplained = {
            i for i, with_it in enumerate(self._asked) if not explained[with_it][1]
        }
        self._ways = [explained[with_it][0] for with_it in self._asked]

    def _is_decision(self, i: int) -> bool:
        return self.parameters[i].is_choice or self._is_few(i)

    def _grow(
        self,
        with_it: int,
        without: int,
        depth: int,
    ) -> tuple[list[_Where], bool]:
        """Settings within some trials, and whether they explain everything."""
        if not with_it:
            return [], True
        if not without:
            return [{}], True
        splits = self._splits(with_it, without) if depth else []
        if not splits or splits[0].cost >= _impurity(with_it, without):
            return [{}], False
        return self._follow(splits[0], with_it, without, depth)

    def _follow(
        self,
        split: _DecisionSplit,
        with_it: int,
        without: int,
        depth: int,
    ) -> tuple[list[_Where], bool]:
        ways: list[_Where] = []
        explained = True
        parts = [
            self._grow(with_it & trials, without & trials, depth - 1)
            for _, trials in split.branches
        ]
        elsewhere = without & ~self._asked[split.decision]
        if not elsewhere and all(below == [{}] for below, _ in parts):
            return [{}], False  # no branch is without it
        for (span, _), (below, fully) in zip(split.branches, parts, strict=True):
            explained &= fully
            for way in below:
                spans = [span] if split.decision not in way else way[split.decision]
                ways.append({**way, split.decision: spans})
        return ways, explained

    def _splits(
        self,
        with_it: int,
        without: int,
    ) -> list[_DecisionSplit]:
        """Decisions that tell some trials from others, the best ones first.

        Args:
            with_it: The trials that have a parameter.
            without: Others, that do not have it.
        """
        splits = []
        for i, asked in enumerate(self._asked):
            # one that is asked for together with the parameter explains nothing
            explains = not with_it & ~asked and without & asked
            if not (explains and self._is_decision(i)):
                continue
            if self.parameters[i].is_choice:
                branches = [((v, v), trials) for v, trials in self._at[i].items()]
            else:
                branches = self._runs(i, with_it, without)
            cost = sum(_impurity(with_it & b, without & b) for _, b in branches)
            splits.append(_DecisionSplit(i, cost, branches))
        return sorted(
            splits,
            key=lambda s: (
                s.cost,
                len(self._at[s.decision]),
                not self.parameters[s.decision].is_choice,
                s.decision,
            ),
        )

    def _runs(
        self,
        i: int,
        with_it: int,
        without: int,
    ) -> list[tuple[_Span, int]]:
        """Neighbouring numbers with which trials ask for the same; cuts half-way."""

        def kind(place: tuple[float, int]) -> tuple[bool, bool]:
            return bool(place[1] & with_it), bool(place[1] & without)

        places = [place for place in sorted(self._at[i].items()) if any(kind(place))]
        runs = [list(run) for _, run in groupby(places, kind)]
        cuts = [-math.inf]
        for below, above in pairwise(runs):
            middle = 0.5 * (below[-1][0] + above[0][0])
            cuts.append(math.floor(middle) + 0.5)
        ends = [math.nextafter(cut, -math.inf) for cut in cuts[1:]] + [math.inf]
        trials = [reduce(or_, (some for _, some in run)) for run in runs]
        return list(zip(zip(cuts, ends, strict=True), trials, strict=True))

    # -- the space ---------------------------------------------------------------------

    def _build_space(self) -> SearchSpace:
        conditions = {
            i: self._condition(ways)
            for i, ways in enumerate(self._ways)
            if {} not in ways
        }
        while True:
            graph = {i: condition.columns() for i, condition in conditions.items()}
            try:
                TopologicalSorter(graph).prepare()
                break
            except CycleError as error:
                # each of two decisions is asked for after the other one somewhere
                for i in error.args[1]:
                    conditions.pop(i, None)
        self._parents = graph
        used = {c for condition in conditions.values() for c in condition.columns()}
        values = {
            i: [float(v) for v in range(int(self.parameters[i].size))]
            for i in used
            if self.parameters[i].is_choice
        }
        named = zip(self.parameters, self.names, strict=True)
        columns = [parameter.column(name) for parameter, name in named]
        tree = ParameterTree(
            len(columns),
            conditions=conditions,
            values=values,
        )
        return SearchSpace.from_columns(columns, tree)

    def _condition(self, ways: list[_Where]) -> Condition:
        """One of several settings of decisions."""
        settings = [
            reduce(and_, (self._atom(i, spans) for i, spans in sorted(way.items())))
            for way in _joined(ways)
        ]
        return reduce(or_, settings)

    def _atom(
        self,
        i: int,
        spans: Sequence[_Span],
    ) -> Condition:
        if self.parameters[i].is_choice:
            return In(i, [value for value, _ in spans])
        return reduce(or_, (Between(i, *span) for span in spans))

    # -- what nobody has tried ---------------------------------------------------------

    def untried(self, fixed_entries: Mapping[str, Any] | None = None) -> Values | None:
        """Decisions of a trial that sees something new; None if nothing is left.

        A value that no trial has is tried, as something may depend on it: each value of
        a choice with at most 10, or on which something depends; the ends of a range of
        at most 5 whole numbers, then the middle between two that differ. One trial
        tries as many as go together.

        Args:
            fixed_entries: Entries that the trial has in any case.

        Returns:
            ``{name: (distribution, value)}``: the new ones, and those that lead there.
        """
        fixed = {}
        for name, entry in (fixed_entries or {}).items():
            parameter = self.parameters[i := self.names.index(name)]
            fixed[i] = parameter.number(parameter.value(entry))
        chosen: dict[int, float] = {}
        new = self._new_numbers()
        for i in sorted(new, key=lambda i: len(self._above(i))):
            both = chosen | fixed
            rows = (row for row in self._rows if i in row and i not in both)
            ways = ({j: row[j] for j in self._above(i) if j in row} for row in rows)
            fitting = (way for way in ways if (both | way).items() >= both.items())
            if (way := next(fitting, None)) is not None:
                chosen |= {**way, i: new[i]}
        parameters = ((self.parameters[i], number) for i, number in chosen.items())
        values = {p.name: (p.distribution, p.value_at(v)) for p, v in parameters}
        return values or None

    def _above(self, i: int) -> set[int]:
        """The decisions that a parameter depends on, and theirs."""
        above: set[int] = set()
        stack = list(self._parents.get(i, ()))
        while stack:
            j = stack.pop()
            if j not in above:
                above.add(j)
                stack += self._parents.get(j, ())
        return above

    def _new_numbers(self) -> dict[int, float]:
        """Numbers of decisions that no trial has, at most one for each."""
        matter = {c for above in self._parents.values() for c in above}
        new = {}
        for i, parameter in enumerate(self.parameters):
            tried = {*self._at[i], *(row[i] for row in self._expected if i in row)}
            numbers: Sequence[float] = ()
            if parameter.is_choice and (i in matter or self._is_few(i)):
                numbers = range(int(parameter.size))
            elif parameter.is_whole and (i in matter or parameter.size <= _SHORT):
                ends = parameter.ends if self._is_few(i) else ()
                numbers = [*ends, *self._between_unlike(i)]
            untried = [float(v) for v in numbers if v not in tried]
            if untried:
                new[i] = untried[0]
        return new

    def _between_unlike(self, i: int) -> list[float]:
        """The middle of neighbours with which trials ask for other parameters."""
        spans = [s for ways in self._ways for way in ways for s in way.get(i, ())]
        cuts = set(chain(*spans))
        return [
            float(math.floor(0.5 * (a + b)))
            for a, b in pairwise(sorted(self._at[i]))
            if b - a > 1 and any(a < cut < b for cut in cuts)
        ]


def _impurity(with_it: int, without: int) -> float:
    """How far trials are from being all with, or all without a parameter."""
    a = with_it.bit_count()
    b = without.bit_count()
    return 2 * a * b / (a + b) if a and b else 0.0


def _joined(ways: list[_Where]) -> list[_Where]:
    """Settings that differ in one decision only are one."""
    for i in sorted({i for way in ways for i in way}):
        groups: dict[Any, _Where] = {}
        for way in ways:
            others = tuple((j, tuple(s)) for j, s in sorted(way.items()) if j != i)
            if i in way:
                same = groups.setdefault((others, True), {**way, i: []})[i]
                same += [span for span in way[i] if span not in same]
            else:
                groups[others, False] = way
        ways = list(groups.values())
    return ways
