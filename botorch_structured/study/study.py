"""`Study`: ask for configurations, tell what they were worth."""

from __future__ import annotations

__all__ = ["Study"]

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from botorch.exceptions.errors import CandidateGenerationError
from botorch.models.model import Model
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_count, check_number, check_seed
from botorch_structured.study.outcomes import Outcomes
from botorch_structured.study.trial import Trial
from botorch_structured.suggest import suggest

_Point = tuple[float, ...]

# Random points among which one is looked for that is not known yet.
_DRAWS = 200


class Study:
    """A search that is asked for configurations and told what they were worth.

    Choose it wherever configurations are dictionaries: it keeps the books of a loop
    with `suggest`, and is equal to it point for point. Evaluations may run elsewhere,
    several at a time, fail, or have been made before.

    The first configurations are starts, one for each path of the space, except for
    paths that an evaluation was told of; then come those of `suggest`. Configurations
    that were asked for and not told yet are pending: they are taken into account.

    Args:
        space: What to search: a `SearchSpace` or a ConfigSpace ``ConfigurationSpace``.
        objectives: ``"minimize"`` or ``"maximize"``; ``{name: direction}`` names it.
        seed: The same seed and the same calls give the same configurations. Default:
            drawn once, see ``.seed``.

    Raises:
        ValueError: An argument is not what it should be.

    Example:
        >>> study = Study(space)
        >>> for _ in range(30):
        ...     (config,) = study.ask()
        ...     study.tell(config, evaluate(config))
        >>> study.best
    """

    def __init__(
        self, space: Any, objectives: Any = "minimize", seed: int | None = None
    ) -> None:
        self.space = _read_space(space)
        self._outcomes = Outcomes(objectives)
        seed = check_seed(seed)
        #: Decides starts and suggestions.
        self.seed = int(torch.randint(2**31, ())) if seed is None else seed
        #: The models of the last suggestion.
        self.models: list[Model] = []
        self._trials: list[Trial] = []
        self._points: list[_Point] = []  # of the trials
        self._asked: dict[_Point, dict[str, Any]] = {}  # and not told
        self._starts: list[_Point] | None = None

    @property
    def objectives(self) -> dict[str, str]:
        """``{name: direction}``."""
        return dict(self._outcomes.objectives)

    @property
    def trials(self) -> list[Trial]:
        """What was told, in this order."""
        return list(self._trials)

    @property
    def pending(self) -> list[dict[str, Any]]:
        """The configurations that were asked for and not told yet."""
        return [dict(config) for config in self._asked.values()]

    @property
    def model(self) -> Model | None:
        """The model that was fitted last; None before the first fit."""
        return self.models[0] if self.models else None

    @property
    def best(self) -> tuple[dict[str, Any], float]:
        """The best configuration and its value; the first of several.

        Raises:
            ValueError: No evaluation has a value yet.
        """
        done = [trial for trial in self._trials if trial.values]
        if not done:
            raise ValueError(
                "trials: expected at least one with a value, got "
                f"{len(self._trials)} failures."
            )
        Y = self._outcomes.train_Y(done)
        trial = done[int(Y.argmax())]
        assert trial.value is not None
        return dict(trial.config), trial.value

    def ask(
        self, q: int = 1, pending: Iterable[Mapping[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        """Configurations to evaluate next; they are pending until they are told.

        Args:
            q: How many.
            pending: Further configurations that are being evaluated, which the study
                was not asked for.

        Returns:
            ``q`` dictionaries of the active parameters.

        Raises:
            ValueError: An argument is not what it should be.
            CandidateGenerationError: Every point of the space is known.
        """
        q = check_count("q", q)
        elsewhere = self._encode(pending, "pending")
        busy = list(dict.fromkeys([*self._asked, *elsewhere]))
        chosen = self._next_starts(busy)[:q]
        if len(chosen) < q:
            chosen += self._choose(q - len(chosen), [*busy, *chosen])
        configs = self.space.decode(self._tensor(chosen))
        self._asked.update(zip(chosen, configs, strict=True))
        return [dict(config) for config in configs]

    def tell(
        self, config: Mapping[str, Any], value: Any, cost: float | None = None
    ) -> None:
        """Record what an evaluation gave.

        Args:
            config: The active parameters. They need not come from `ask`: this is the
                way to begin with evaluations that exist. Told twice, both are kept:
                outcomes may be noisy.
            value: A number, ``{name: number}``, or None if the evaluation failed.
            cost: What it cost, such as seconds.

        Raises:
            ValueError: This is not a configuration of the space, or not its outcome.
        """
        self.tell_many([config], [value], [cost])

    def tell_many(
        self,
        configs: Sequence[Mapping[str, Any]],
        values: Sequence[Any],
        costs: Sequence[float | None] | None = None,
    ) -> None:
        """`tell` for several evaluations at once, which is faster.

        Args:
            configs: The configurations.
            values: The value of each.
            costs: The cost of each.

        Raises:
            ValueError: As in `tell`; then none of them is recorded.
        """
        costs = [None] * len(configs) if costs is None else costs
        for name, given in (("values", values), ("costs", costs)):
            if len(given) != len(configs):
                raise ValueError(
                    f"{name}: expected {len(configs)}, one for each configuration, "
                    f"got {len(given)}."
                )
        points = self._encode(configs, "config")
        outcomes = [self._outcomes.read(value) for value in values]
        paid = [_read_cost(cost) for cost in costs]
        native = self.space.decode(self._tensor(points))
        for told in zip(points, native, outcomes, paid, strict=True):
            self._record(*told)

    def _record(
        self,
        point: _Point,
        config: dict[str, Any],
        values: dict[str, float],
        cost: float | None,
    ) -> None:
        self._asked.pop(point, None)
        self._points.append(point)
        self._trials.append(Trial(len(self._trials), config, values, cost))

    def _encode(self, configs: Any, name: str) -> list[_Point]:
        """Configurations as points of the space."""
        if isinstance(configs, (str, Mapping)) or not isinstance(configs, Iterable):
            raise ValueError(f"{name}: expected configurations, got {configs!r:.60}.")
        configs = list(configs)
        if not configs:
            return []
        try:
            X = self.space.encode(configs)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if self.space.is_restricted and not (good := self.space.feasible(X)).all():
            raise ValueError(
                f"{name}: expected a configuration that the space does not forbid, got "
                f"{configs[int((~good).nonzero()[0])]}."
            )
        return [tuple(x) for x in X.tolist()]

    def _tensor(self, points: Sequence[_Point]) -> Tensor:
        return torch.tensor(points, dtype=torch.double).reshape(-1, self.space.dim)

    def _paths(self, points: Sequence[_Point]) -> list[int]:
        """A number for the path of each point, the same for the same path."""
        return self.space.tree.path_key(self._tensor(points)).tolist()

    def _next_starts(self, busy: Sequence[_Point]) -> list[_Point]:
        """The starts on paths that nothing is known of."""
        known = set(self._paths([*self._points, *busy]))
        if len(known) >= self.space.tree.num_paths:
            return []
        if self._starts is None:
            X = self.space.starts(seed=self.seed)
            self._starts = [tuple(x) for x in X.tolist()]
        paths = self._paths(self._starts)
        pairs = zip(self._starts, paths, strict=True)
        return [start for start, path in pairs if path not in known]

    def _choose(self, q: int, busy: Sequence[_Point]) -> list[_Point]:
        """Points after the starts."""
        seed = self.seed + len(self._trials)
        train_Y = self._outcomes.train_Y(self._trials)
        if int(train_Y.isfinite().all(-1).sum()) < 2:
            return self._draw(q, busy, seed)
        found = suggest(
            self.space,
            self._tensor(self._points),
            train_Y,
            q,
            X_pending=self._tensor(busy) if busy else None,
            seed=seed,
        )
        self.models = list(found.models)
        return [tuple(x) for x in found.X.tolist()]

    def _draw(self, q: int, busy: Sequence[_Point], seed: int) -> list[_Point]:
        """Random points that are not known."""
        known = {*self._points, *busy}
        draws = self.space.sample(_DRAWS + q, seed=seed).tolist()
        new = [x for x in dict.fromkeys(map(tuple, draws)) if x not in known]
        if len(new) < q:
            raise CandidateGenerationError(
                f"Fewer than {q} of {len(draws)} random points are new."
            )
        return new[:q]


def _read_space(space: Any) -> SearchSpace:
    if isinstance(space, SearchSpace):
        return space
    if any(kind.__name__ == "ConfigurationSpace" for kind in type(space).__mro__):
        return SearchSpace.from_configspace(space)
    raise ValueError(
        "space: expected a SearchSpace or a ConfigurationSpace, got "
        f"{type(space).__name__}."
    )


def _read_cost(cost: Any) -> float | None:
    if cost is None:
        return None
    number = check_number("cost", cost)
    if number <= 0.0:
        raise ValueError(f"cost: expected a positive number, got {cost!r}.")
    return number
