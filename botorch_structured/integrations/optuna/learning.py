"""`LearntSpace`: which parameters a study asks for under which values, from its trials.

A study that is defined by running it does not say what its space is; what its trials
asked for does. A parameter that all trials asked for is always active. Another one
depends on a decision: a choice, or a number, that all trials with the parameter have,
and whose values tell them from the others. Of several such decisions it is the one with
the fewest values, until a trial has told them apart (`LearntSpace.untried`). Where no
single decision explains a parameter, a second and a third one do within the branches of
the first; where these do not either, the parameter counts as active in the branch, and
trials without it have the middle of its range.
"""

from __future__ import annotations

__all__ = ["Asked", "LearntSpace"]

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from operator import or_
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution

from botorch_structured.integrations.optuna.parameter import Parameter, Values
from botorch_structured.spaces import (
    Between,
    Equals,
    In,
    ParameterTree,
    SearchSpace,
)
from botorch_structured.spaces.conditions import And, Condition, Or

# Choices and whole numbers with more values than this are not tried value by value
# unless something is known to depend on them, and are the last to explain anything.
_FEW = 10
# Whole numbers with no more values than this are worth a trial of their own.
_VERY_FEW = 5
# So many ranges of one name that one trial each has are no branches, but depend on
# something else: another parameter's value, or the data.
_MANY_RANGES = 5
# So many decisions together may explain a parameter.
_DEPTH = 3

_Span = tuple[float, float]
_Where = dict[int, list[_Span]]  # decision -> where its number is


@dataclass(frozen=True)
class Asked:
    """What one trial asked for.

    Args:
        values: ``{name: (distribution, value)}``, all distributions known.
        complete: Whether the trial came to its end, so that there is nothing else.
        expected: Whether it is only what the trial was suggested. Nothing is learnt
            from it, as the trial may ask for something else, but it is not tried twice.
    """

    values: Values
    complete: bool = True
    expected: bool = False


class _Split(NamedTuple):
    """Branches of a decision: where its number is, and which trials are there."""

    decision: int
    cost: float  # what stays unexplained
    branches: list[tuple[_Span, int]]


class LearntSpace:
    """The space of a study, as far as its trials show it.

    Args:
        trials: What they asked for; at least one asked for something. What others are
            expected to ask for was asked for by one.

    Attributes:
        parameters: One for each column.
        names: The names of the columns: that of the parameter, with a number where
            the name has several ranges.
        space: The space.
    """

    def __init__(self, trials: Sequence[Asked]) -> None:
        self._united: dict[str, Parameter] = {}
        self._read(trials)
        several = self._many_ranges()
        while True:
            # one parameter with all the ranges
            for name in several:
                first, *others = (self.parameters[i] for i in self._columns_of[name])
                self._united[name] = first.united(others)
            if several:
                self._read(trials)
            self._unexplained: set[int] = set()
            self._rivals: dict[int, list[_Split]] = {}
            self._ways = self._learn()
            names = [self.parameters[i].name for i in self._unexplained]
            several = {n for n in names if len(self._columns_of[n]) > 1}
            if not several:
                break
        self._name_columns()
        self.space = self._build_space()

    def index(self, name: str, distribution: BaseDistribution | None) -> int | None:
        """The column of a parameter; None if no trial has asked for it."""
        key = (name, None if name in self._united else distribution)
        return self._position.get(key)

    def entries(self, values: Values) -> dict[str, Any]:
        """Names of columns and what they hold, of ``{name: (distribution, value)}``."""
        found = {}
        for name, (distribution, value) in values.items():
            if (i := self.index(name, distribution)) is not None:
                found[self.names[i]] = self.parameters[i].entry(value)
        return found

    def held(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Names of columns and what they hold, of ``{name: value}``.

        Values that are out of range are left out.
        """
        found = {}
        for name, value in fixed.items():
            for i in self._columns_of.get(name, ()):
                if self.parameters[i].contains(value):
                    found[self.names[i]] = self.parameters[i].entry(value)
        return found

    def values(self, config: Mapping[str, Any]) -> Values:
        """``{name: (distribution, value)}`` of a configuration of the space."""
        found: Values = {}
        for i, column in enumerate(self.names):
            if column in config:
                p = self.parameters[i]
                found[p.name] = (p.distribution, p.value(config[column]))
        return found

    # -- trials in numbers -------------------------------------------------------------

    def _read(self, trials: Sequence[Asked]) -> None:
        """Parameters in an order that storages share; sets of trials are bits."""
        found: dict[tuple[str, Any], Parameter] = {}
        expected = [trial.values for trial in trials if trial.expected]
        trials = [trial for trial in trials if not trial.expected]
        for trial in trials:
            for name, (distribution, _) in trial.values.items():
                if name in self._united:
                    found[name, None] = self._united[name]
                elif (name, distribution) not in found:
                    assert distribution is not None  # they are known of trials
                    found[name, distribution] = Parameter(name, distribution)
        keys = sorted(found, key=lambda key: (key[0], repr(key[1])))
        self.parameters = [found[key] for key in keys]
        self._position = {key: i for i, key in enumerate(keys)}
        self._columns_of: dict[str, list[int]] = {}
        for i, (name, _) in enumerate(keys):
            self._columns_of.setdefault(name, []).append(i)
        self._rows: list[dict[int, float]] = []
        self._asked = [0] * len(keys)  # the trials that asked for a parameter
        self._at: list[dict[float, int]] = [{} for _ in keys]  # number -> trials
        self._complete = 0
        for t, trial in enumerate(trials):
            row = {}
            for name, (distribution, value) in trial.values.items():
                key = (name, None if name in self._united else distribution)
                i = self._position[key]
                row[i] = number = self.parameters[i].number(value)
                self._asked[i] |= 1 << t
                self._at[i][number] = self._at[i].get(number, 0) | 1 << t
            self._rows.append(row)
            self._complete |= trial.complete << t
        self._expected = [self._numbers(values) for values in expected]
        ended = self._complete
        for t, row in enumerate(self._rows):
            # where all trials ended early, they are all there is to learn from
            if any(
                self._is_decision(i) and not self._at[i][number] & ended
                for i, number in row.items()
            ):
                self._complete |= 1 << t

    def _numbers(self, values: Values) -> dict[int, float]:
        """Of parameters that a trial has asked for."""
        found = {}
        for name, (distribution, value) in values.items():
            if (i := self.index(name, distribution)) is not None:
                found[i] = self.parameters[i].number(value)
        return found

    def _many_ranges(self) -> set[str]:
        """Names of which most trials have a range of their own."""
        found = set()
        for name, columns in self._columns_of.items():
            sizes = [self._asked[i].bit_count() for i in columns]
            if 2 * sizes.count(1) >= max(sum(sizes), 2 * _MANY_RANGES):
                found.add(name)
        return found

    def _is_few(self, i: int) -> bool:
        return self.parameters[i].size <= _FEW

    # -- what depends on what ----------------------------------------------------------

    def _learn(self) -> list[list[_Where]]:
        """For each parameter the settings of decisions under which it is active."""
        known: dict[int, list[_Where]] = {}
        ways = []
        for i, with_it in enumerate(self._asked):
            # what a trial that ended early would have asked for is not known
            without = self._complete & ~with_it
            if with_it not in known:
                known[with_it] = self._explain(i, with_it, without)
            elif i - 1 in self._unexplained:
                self._unexplained.add(i)
            ways.append(known[with_it])
        return ways

    def _explain(self, i: int, with_it: int, without: int) -> list[_Where]:
        if not without:
            return [{}]
        few = self._splits(with_it, without, self._is_decision)
        pure = [split for split in few if not split.cost]
        if pure:
            self._rivals[i] = pure
            return self._follow(pure[0], with_it, without, _DEPTH)[0]
        # a cut through many numbers explains a few trials by chance
        several = len(self._columns_of[self.parameters[i].name]) > 1
        many = [] if several else self._splits(with_it, without, lambda _: True)
        pure = [split for split in many if not split.cost]
        if pure and min(with_it.bit_count(), without.bit_count()) > 1:
            return self._follow(pure[0], with_it, without, 0)[0]
        ways, explained = self._grow(with_it, without, _DEPTH)
        if explained:
            return ways
        if pure:
            return self._follow(pure[0], with_it, without, 0)[0]
        same = (j for j, other in enumerate(self._asked) if other == with_it)
        self._unexplained.update(same)
        return ways

    def _is_decision(self, i: int) -> bool:
        return self.parameters[i].is_choice or self._is_few(i)

    def _grow(
        self, with_it: int, without: int, depth: int
    ) -> tuple[list[_Where], bool]:
        """Settings within some trials, and whether they explain everything."""
        if not with_it:
            return [], True
        if not without:
            return [{}], True
        splits = self._splits(with_it, without, self._is_decision) if depth else []
        if not splits or splits[0].cost >= _impurity(with_it, without):
            return [{}], False
        return self._follow(splits[0], with_it, without, depth)

    def _follow(
        self, split: _Split, with_it: int, without: int, depth: int
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
        self, with_it: int, without: int, eligible: Callable[[int], bool]
    ) -> list[_Split]:
        """Decisions that tell some trials from others, the best ones first."""
        splits = []
        for i, asked in enumerate(self._asked):
            # one that is asked for together with the parameter explains nothing
            if with_it & ~asked or not without & asked or not eligible(i):
                continue
            if self.parameters[i].is_choice:
                branches = [((v, v), trials) for v, trials in self._at[i].items()]
            elif self._is_few(i):
                branches = self._runs(i, with_it, without)
            else:
                branches = self._halves(i, with_it, without)
            cost = sum(_impurity(with_it & b, without & b) for _, b in branches)
            splits.append(_Split(i, cost, branches))
        return sorted(
            splits,
            key=lambda s: (
                s.cost,
                len(self._at[s.decision]),
                not self.parameters[s.decision].is_choice,
                s.decision,
            ),
        )

    def _runs(self, i: int, with_it: int, without: int) -> list[tuple[_Span, int]]:
        """Neighbouring numbers with which trials ask for the same."""
        runs: list[tuple[list[float], int, tuple[bool, bool]]] = []
        for number, trials in sorted(self._at[i].items()):
            if not trials & (with_it | without):
                continue
            kind = (bool(trials & with_it), bool(trials & without))
            if runs and runs[-1][2] == kind:
                numbers, others, _ = runs.pop()
                runs.append(([*numbers, number], others | trials, kind))
            else:
                runs.append(([number], trials, kind))
        groups = [(numbers, trials) for numbers, trials, _ in runs]
        return self._between(i, groups)

    def _halves(self, i: int, with_it: int, without: int) -> list[tuple[_Span, int]]:
        """Below and above the number that separates trials best."""
        numbers = sorted(v for v, b in self._at[i].items() if b & (with_it | without))
        best, cut = math.inf, 0
        below, everything = 0, reduce(or_, self._at[i].values(), 0)
        for k, number in enumerate(numbers[:-1]):
            below |= self._at[i][number]
            above = everything & ~below
            cost = _impurity(with_it & below, without & below)
            cost += _impurity(with_it & above, without & above)
            if cost < best:
                best, cut = cost, k + 1
        groups = []
        for part in (numbers[:cut], numbers[cut:]):
            if part:
                groups.append((part, reduce(or_, (self._at[i][v] for v in part))))
        return self._between(i, groups)

    def _between(
        self, i: int, groups: Sequence[tuple[list[float], int]]
    ) -> list[tuple[_Span, int]]:
        """Cuts half-way between ascending groups of numbers."""
        cuts = [-math.inf]
        for (a, _), (b, _) in zip(groups, groups[1:], strict=False):
            middle = 0.5 * (a[-1] + b[0])
            whole = self.parameters[i].is_whole
            cuts.append(math.floor(middle) + 0.5 if whole else middle)
        ends = [math.nextafter(cut, -math.inf) for cut in cuts[1:]] + [math.inf]
        return [
            ((lo, hi), trials)
            for lo, hi, (_, trials) in zip(cuts, ends, groups, strict=True)
        ]

    # -- the space ---------------------------------------------------------------------

    def _name_columns(self) -> None:
        taken = set(self._columns_of)
        self.names = []
        for i, parameter in enumerate(self.parameters):
            name = parameter.name
            same = self._columns_of[name]
            k = 1 + same.index(i)
            while len(same) > 1 and (name := f"{parameter.name}#{k}") in taken:
                k += len(same)
            taken.add(name)
            self.names.append(name)

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
        columns = [
            parameter.column(name)
            for parameter, name in zip(self.parameters, self.names, strict=True)
        ]
        tree = ParameterTree(len(columns), conditions=conditions, values=values)
        return SearchSpace.from_columns(columns, tree)

    def _condition(self, ways: Sequence[_Where]) -> Condition:
        """One of several settings of decisions."""
        parts: dict[Condition, None] = {}
        for way in _joined(ways):
            atoms = tuple(self._atom(i, spans) for i, spans in sorted(way.items()))
            parts[atoms[0] if len(atoms) == 1 else And(atoms)] = None
        return next(iter(parts)) if len(parts) == 1 else Or(tuple(parts))

    def _atom(self, i: int, spans: Sequence[_Span]) -> Condition:
        if self.parameters[i].is_choice:
            values = [value for value, _ in spans]
            return Equals(i, values[0]) if len(values) == 1 else In(i, values)
        parts = tuple(Between(i, *span) for span in spans)
        return parts[0] if len(parts) == 1 else Or(parts)

    # -- what nobody has tried ---------------------------------------------------------

    def untried(self, held: Mapping[str, Any] | None = None) -> Values | None:
        """Decisions of a trial that sees something new; None if nothing is left.

        A value that no trial has is tried, as something may depend on it: each value of
        a choice with at most 10, or on which something depends; the ends of a short
        range of whole numbers, then the middle between two that differ. One trial tries
        as many as go together. Then decisions are told apart that explain the same.

        Args:
            held: What the trial has in any case, see `held`.

        Returns:
            ``{name: (distribution, value)}``: the new ones, and what leads there.
        """
        fixed = {
            i: self._number_of(i, entry)
            for i, column in enumerate(self.names)
            if (entry := (held or {}).get(column)) is not None
        }
        chosen: dict[int, float] = {}
        new = sorted(self._new_numbers(), key=lambda one: len(self._above(one[0])))
        worth_it = any(one[2] for one in new)
        for i, number, _ in new if worth_it else ():
            if i in chosen or i in fixed:
                continue
            for trial in self._trials_of(i):
                row = self._rows[trial]
                way = {j: row[j] for j in self._above(i) if j in row}
                both = chosen | fixed
                if all(both.get(j, v) == v for j, v in way.items()):
                    chosen |= {**way, i: number}
                    break
        if not chosen:
            chosen = self._separating()
            if any(fixed.get(i, v) != v for i, v in chosen.items()):
                return None
            if any(chosen.items() <= row.items() for row in self._expected):
                return None
        found: Values = {}
        for i, number in chosen.items():
            p = self.parameters[i]
            found[p.name] = (p.distribution, p.value_at(number))
        return found or None

    def _number_of(self, i: int, entry: Any) -> float:
        parameter = self.parameters[i]
        return parameter.number(parameter.value(entry))

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

    def _trials_of(self, i: int) -> Iterator[int]:
        return (t for t, row in enumerate(self._rows) if i in row)

    def _new_numbers(self) -> Iterator[tuple[int, float, bool]]:
        """Numbers of decisions that no trial has, at most one for each, and whether
        they are worth a trial."""
        matter = {c for above in self._parents.values() for c in above}
        for i, parameter in enumerate(self.parameters):
            expected = {row[i] for row in self._expected if i in row}
            tried, worth_it = self._at[i].keys() | expected, True
            untried: Iterable[float]
            if parameter.is_choice and (i in matter or self._is_few(i)):
                numbers = range(int(parameter.size))
                untried = (float(v) for v in numbers if v not in tried)
            elif i in matter and parameter.is_whole:
                untried = (v for v in self._between_unlike(i) if v not in expected)
            elif self._is_few(i) and parameter.is_whole:
                untried = (v for v in parameter.ends if v not in tried)
                worth_it = parameter.size <= _VERY_FEW
            else:
                continue
            for number in untried:
                yield i, number, worth_it
                break

    def _between_unlike(self, i: int) -> Iterator[float]:
        """The middle of neighbours of which one has a parameter that the other lacks,
        the ends of the range first."""
        parameter, tried = self.parameters[i], sorted(self._at[i])
        if self._is_few(i):
            yield from (v for v in parameter.ends if v not in self._at[i])
        cuts = {
            end
            for ways in self._ways
            for way in ways
            for span in way.get(i, ())
            for end in span
        }
        for a, b in zip(tried, tried[1:], strict=False):
            if b - a > 1 and any(a < cut < b for cut in cuts):
                yield float(math.floor(0.5 * (a + b)))

    def _separating(self) -> dict[int, float]:
        """Values that tell which of two decisions explains a parameter."""
        for i, (best, *rivals) in self._rivals.items():
            for rival in rivals:
                if not self._is_few(rival.decision) or not self._is_few(best.decision):
                    continue
                for one, other in ((best, rival), (rival, best)):
                    if found := self._disagreement(i, one, other):
                        return found
        return {}

    def _disagreement(self, i: int, one: _Split, other: _Split) -> dict[int, float]:
        """A trial for which one decision has the parameter, and another one has not."""
        p, q = one.decision, other.decision
        lacking = [
            number
            for number, trials in self._at[q].items()
            if trials & self._complete and not trials & self._asked[i]
        ]
        for t in self._trials_of(i):
            row = self._rows[t]
            above = self._above(p) | self._above(q)
            if lacking and q in row and p in row and q not in self._above(p):
                way = {j: row[j] for j in above if j in row}
                return {**way, p: row[p], q: lacking[0]}
        return {}


def _impurity(with_it: int, without: int) -> float:
    """How far trials are from being all with, or all without a parameter."""
    a, b = with_it.bit_count(), without.bit_count()
    return 2 * a * b / (a + b) if a and b else 0.0


def _joined(ways: Iterable[_Where]) -> list[_Where]:
    """Settings that differ in one decision only are one."""
    joined = [{i: list(spans) for i, spans in way.items()} for way in ways]
    for i in sorted({i for way in joined for i in way}):
        groups: dict[Any, _Where] = {}
        for way in joined:
            others = tuple((j, tuple(s)) for j, s in sorted(way.items()) if j != i)
            if (others, i in way) in groups and i in way:
                same = groups[others, True][i]
                same += [span for span in way[i] if span not in same]
            else:
                groups[others, i in way] = way
        joined = list(groups.values())
    return joined
