"""Choosing evaluations one after the other, by a model and at random."""

from __future__ import annotations

__all__ = ["MODEL", "RANDOM", "START", "Study"]

import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from botorch_structured.demo.log import EvaluationLog, Record
from botorch_structured.suggest import suggest
from botorch_structured.test_functions import ScikitLearnCASH

START, MODEL, RANDOM = "start", "botorch-structured", "random search"

# Two of nine learners have a single configuration, which may be drawn again: so many
# draws contain a new point.
_TRIES = 200
# Digits of an error rate: two that differ by the order of a sum are the same.
_DIGITS = 12


def _text(config: dict[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


class Study:
    """A problem, a log, and two ways to go on.

    Everything is decided by the seed and by what is in the log, so that a study that
    was interrupted goes on exactly as it would have.

    Args:
        problem: What to tune.
        log: Where evaluations go; those in it count as done.
        budget: How many evaluations each method chooses after the common starts.
        seed: Decides starts and random choices.

    Raises:
        ValueError: The budget is not positive, or the log has evaluations that are not
            of this study.
    """

    def __init__(
        self, problem: ScikitLearnCASH, log: EvaluationLog, budget: int, seed: int
    ) -> None:
        if budget < 1:
            raise ValueError(f"budget: expected a positive number, got {budget}.")
        self.problem, self.log, self.budget, self.seed = problem, log, budget, seed
        self.space = problem.space
        self.starts = problem.starts(seed)
        self._check_log()

    def _check_log(self) -> None:
        """Raise unless the log is of this study: its starts, methods and space."""
        seen: dict[str, list[list[float]]] = {START: [], MODEL: [], RANDOM: []}
        for number, record in enumerate(self.log.records, start=2):
            try:
                self._check_record(record, seen)
            except ValueError as error:
                raise ValueError(f"{self.log.path} line {number}: {error}") from None
            seen[record.method].append(record.x)

    def _check_record(self, record: Record, seen: dict[str, list[list[float]]]) -> None:
        """Raise unless a record may come after those that are ``seen``."""
        method, begun = record.method, len(seen[START])
        if method not in seen:
            raise ValueError(
                f"method: expected one of {', '.join(seen)}, got {method!r}."
            )
        if len(record.x) != self.space.dim:
            raise ValueError(
                f"x: expected {self.space.dim} numbers, got {len(record.x)}."
            )
        if method == START and [record.x] != self.starts[begun : begun + 1].tolist():
            raise ValueError(
                f"x: expected start {begun + 1} of seed {self.seed}, got another point."
            )
        x = torch.tensor([record.x], dtype=torch.double)
        if not self.space.feasible(x).all():
            raise ValueError(f"x: expected a point of the space, got {record.x}.")
        # The printed code contains the values: types have to be right (1, not "1").
        expected = self.space.decode(x)[0]
        if _text(record.config) != _text(expected):
            raise ValueError(
                f"config: expected {expected}, as x says, got {record.config}."
            )
        if method != START and record.x in seen[START] + seen[method]:
            raise ValueError(
                f"x: expected a point that {method} had not seen before, got one that "
                "it had."
            )

    def records(self, method: str) -> list[Record]:
        """What a method has seen so far: the common starts and its own choices."""
        return [r for r in self.log.records if r.method in (START, method)]

    def data(self, method: str) -> tuple[Tensor, Tensor]:
        """The same as ``n x d`` points and ``n x 1`` error rates."""
        records = self.records(method)
        X = torch.tensor([r.x for r in records], dtype=torch.double)
        errors = torch.tensor([[r.value] for r in records], dtype=torch.double)
        return X.reshape(-1, self.space.dim), errors.reshape(-1, 1)

    @property
    def length(self) -> int:
        """How many evaluations a method has seen at its end."""
        return len(self.starts) + self.budget

    def run(self, method: str) -> Iterator[Record]:
        """Evaluate what is missing, giving every record as soon as it is in the log."""
        while (done := len(self.records(method))) < self.length:
            if done < len(self.starts):
                yield self._evaluate(START, self.starts[done])
            else:
                yield self._evaluate(method, self._choose(method, done))

    def _evaluate(self, method: str, x: Tensor) -> Record:
        config = self.space.decode(x.unsqueeze(0))[0]
        result = self.problem.evaluate(config)
        record = Record(
            method,
            config,
            x.tolist(),
            round(result.value, _DIGITS),
            result.error,
            result.seconds,
        )
        self.log.append(record)
        return record

    def _choose(self, method: str, done: int) -> Tensor:
        """The next point, ``d``; the seed decides it, and not the budget."""
        X, errors = self.data(method)
        seed = 10_000 * self.seed + done
        if method == MODEL:
            return suggest(self.space, X, -errors, seed=seed).X.squeeze(0)
        known = X.tolist()
        draws = self.space.sample(_TRIES, seed=seed)
        return next((x for x in draws if x.tolist() not in known), draws[-1])
