"""Calls that do the same work, timed in turn: ours first, then its peers."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: A sample is of as many calls as take this long.
_SAMPLE_SECONDS = 0.02
#: No further repetition is started after this time, if there are three.
_ENOUGH_SECONDS = 240.0


class Seconds(float):
    """The time of a call that has measured itself, in another process for example."""


@dataclasses.dataclass(frozen=True)
class Contest:
    """One case of a row.

    Attributes:
        calls: By name; the first is ours. Each gets the number of the repetition, with
            which it may take other data.
        peers: Names of calls that ours is compared with, in groups: of a group the
            fastest counts.
        check: Raises an ``AssertionError`` where the calls do not do the same; returns
            what else is worth recording, after the measurement or before.
        times: What a call is only a share of: by how much its time is multiplied.
        note: What a reader must know.
        prepare: What a repetition needs and no call is charged for.
    """

    calls: Mapping[str, Callable[[int], object]]
    peers: Sequence[Sequence[str]] = ()
    check: Callable[[], dict[str, Any]] = dict
    times: Mapping[str, float] = dataclasses.field(default_factory=dict)
    note: str = ""
    prepare: Callable[[int], object] = lambda number: None


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        what: What is measured.
        make: Makes the contest of a case.
        cases: Arguments of ``make``, by what the table says of them.
        quick: Arguments of a small case, which is checked and not timed.
    """

    what: str
    make: Callable[..., Contest]
    cases: Mapping[str, Mapping[str, Any]]
    quick: Mapping[str, Any]


#: Name of a row and of one of its cases.
Case = tuple[str, str]


def check_equal(name: str, ours: float, theirs: float, tolerance: float) -> None:
    """Raise an ``AssertionError`` unless two numbers agree.

    Args:
        name: What the numbers are.
        ours: One.
        theirs: The other.
        tolerance: Largest difference, relative to the larger of the second and 1.
    """
    gap = abs(ours - theirs)
    if not gap <= tolerance * max(1.0, abs(theirs)):
        raise AssertionError(
            f"{name}: expected {theirs!r} within {tolerance}, got {ours!r}."
        )


def _seconds(call: Callable[[int], object], number: int, count: int) -> float:
    """CPU time of a call: the mean of several."""
    total = 0.0
    for _ in range(count):
        start = time.process_time()
        result = call(number)
        spent = time.process_time() - start
        total += result if isinstance(result, Seconds) else spent
    return total / count


def measure(contest: Contest, repeats: int) -> dict[str, Any]:
    """Time the calls of a contest in turn, after one that does not count.

    Args:
        contest: The calls.
        repeats: Samples of each call.

    Returns:
        All samples in seconds, their medians and, for each group of peers, the faster
        one's name, its median, and the ratio to ours: the median, quartiles and range
        over the repetitions.
    """
    facts = contest.check()
    contest.prepare(0)
    counts = {
        name: max(1, round(_SAMPLE_SECONDS / max(_seconds(call, 0, 1), 1e-6)))
        for name, call in contest.calls.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in contest.calls}
    began = time.perf_counter()
    for number in range(repeats):
        if number >= 3 and time.perf_counter() - began > _ENOUGH_SECONDS:
            break
        contest.prepare(number)
        names = list(contest.calls)
        for name in names if number % 2 == 0 else names[::-1]:
            spent = _seconds(contest.calls[name], number, counts[name])
            samples[name].append(spent * contest.times.get(name, 1.0))
    ours = samples[next(iter(contest.calls))]
    peers = []
    for group in contest.peers:
        name = min(group, key=lambda name: statistics.median(samples[name]))
        ratios = [b / a for a, b in zip(ours, samples[name], strict=True)]
        peers.append(
            {
                "name": name,
                "of": list(group),
                "seconds": statistics.median(samples[name]),
                "ratio": statistics.median(ratios),
                "quartiles": _quartiles(ratios),
                "range": [min(ratios), max(ratios)],
            }
        )
    return {
        "ours": statistics.median(ours),
        "quartiles": _quartiles(ours),
        "peers": peers,
        "facts": facts,
        "note": contest.note,
        "samples": samples,
    }


def _quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [*values, *values]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [low, high]
