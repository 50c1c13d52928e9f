"""SMAC3's facade for hyperparameter optimisation, by its ask-and-tell interface."""

from __future__ import annotations

__all__ = ["SMAC", "LiveSMAC", "SMACWithStarts", "configuration_space"]

import dataclasses
import itertools
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import ConfigSpace
import torch
from ConfigSpace import hyperparameters as chp
from torch import Tensor

from benchmarks.suite.peers.common import (
    active_values,
    finite,
    first_feasible,
    from_native,
    native,
)
from botorch_structured.spaces import Between, Equals, In, SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn, FloatColumn
from botorch_structured.spaces.conditions import And, Condition, Or

# SMAC takes at most a quarter of its budget for the initial design.
_BUDGET = 60


def configuration_space(
    space: SearchSpace, seed: int
) -> ConfigSpace.ConfigurationSpace:
    """The parameters and conditions of a space, without what it forbids.

    Choices and ordinals are positions in their lists.

    Raises:
        ValueError: A parameter depends on another one's being inactive.
    """
    cs = ConfigSpace.ConfigurationSpace(seed=seed)
    parameters = [_parameter(space, c) for c in range(space.dim)]
    cs.add(parameters)
    cs.add(
        [
            _condition(space, parameters, parameters[c], condition)
            for c, condition in space.tree.conditions.items()
        ]
    )
    return cs


def _parameter(space: SearchSpace, c: int) -> chp.Hyperparameter:
    column: Any = space.columns[c]
    if isinstance(column, CategoricalColumn):
        positions = list(range(len(column.choices)))
        if column.ordered:
            return chp.OrdinalHyperparameter(column.name, positions)
        return chp.CategoricalHyperparameter(column.name, positions)
    if column.bounds[0] == column.bounds[1]:
        return chp.Constant(column.name, native(column, column.bounds[0]))
    kind: Any = chp.UniformIntegerHyperparameter
    if isinstance(column, FloatColumn):
        kind = chp.UniformFloatHyperparameter
    return kind(column.name, column.lower, column.upper, log=column.log)


def _condition(
    space: SearchSpace, parameters: list[Any], child: Any, condition: Condition
) -> Any:
    if isinstance(condition, (And, Or)):
        parts = [_condition(space, parameters, child, p) for p in condition.parts]
        if len(parts) == 1:
            return parts[0]
        both = isinstance(condition, And)
        kind: Any = ConfigSpace.AndConjunction if both else ConfigSpace.OrConjunction
        return kind(*parts)
    if not isinstance(condition, (Equals, In, Between)):
        raise ValueError(
            f"space: expected {child.name!r} to depend on values of others, got "
            f"{condition}."
        )
    column, parent = space.columns[condition.col], parameters[condition.col]
    if isinstance(condition, Equals):
        value = native(column, condition.value)
        return ConfigSpace.EqualsCondition(child, parent, value)
    if isinstance(condition, In):
        values = [native(column, v) for v in condition.values]
        return ConfigSpace.InCondition(child, parent, values)
    return _between(column, child, parent, condition)


def _between(column: Any, child: Any, parent: Any, condition: Between) -> Any:
    """ConfigSpace has strict inequalities only."""
    lo, hi = column.bounds
    parts: list[Any] = []
    if condition.lo > lo:
        below = math.ceil(condition.lo) - 1.0
        if not column.discrete:
            below = math.nextafter(condition.lo, -math.inf)
        parts.append(
            ConfigSpace.GreaterThanCondition(child, parent, native(column, below))
        )
    if condition.hi < hi:
        above = math.floor(condition.hi) + 1.0
        if not column.discrete:
            above = math.nextafter(condition.hi, math.inf)
        parts.append(
            ConfigSpace.LessThanCondition(child, parent, native(column, above))
        )
    if not parts:  # all of the parent's values: wherever it is active
        return ConfigSpace.NotEqualsCondition(child, parent, native(column, lo - 1.0))
    return parts[0] if len(parts) == 1 else ConfigSpace.AndConjunction(*parts)


@contextmanager
def _quietly() -> Iterator[str]:
    """A folder for SMAC's files; without its messages about having no design."""
    logging.getLogger("smac").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # It takes the mean of the times of a local search without steps.
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        warnings.filterwarnings("ignore", "invalid value", RuntimeWarning)
        yield folder


class SMACWithStarts:
    """SMAC3, which knows the common starts and has no initial design of its own.

    It is made anew at each step, so its forest is grown after every evaluation and not
    only after every eighth, as it comes.
    """

    def __call__(self, problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        space = problem.space
        with _quietly() as folder:
            facade, cs = _facade(space, seed, folder, initial=0)
            _tell(facade, cs, space, X, -finite(Y))
            return first_feasible(space, _suggestions(facade, space), seed)


class SMAC(SMACWithStarts):
    """SMAC3, which begins with its own initial design (Sobol), as it comes."""

    def starts(self, problem: Any, seed: int) -> Tensor:
        """``k x d`` points, at most a quarter of 60."""
        space = problem.space
        with _quietly() as folder:
            facade, _ = _facade(space, seed, folder, initial=None)
            points = _suggestions(facade, space)
            known = {
                tuple(p.tolist()): p for p in itertools.islice(points, _BUDGET // 4)
            }
        X = torch.stack(list(known.values()))
        return X[space.feasible(X)]


@dataclasses.dataclass
class _Live:
    """A facade, what it was told of, and what it asked for last."""

    seed: int
    folder: Any
    facade: Any
    told: int = 0
    asked: Any = None


class LiveSMAC:
    """SMAC3 as it comes: a new forest after every eighth evaluation, not after each.

    The process of a run keeps the facade; another one asks and tells from the start,
    maybe with other random numbers. A seventh of the time of ``SMAC``.

    Args:
        budget: Evaluations of a run; a quarter of them is the design.
    """

    keeps_state: Literal[True] = True

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._live: _Live | None = None

    def starts(self, problem: Any, seed: int) -> Tensor:
        """``k x d`` points of SMAC's Sobol design."""
        return SMAC().starts(problem, seed)[: self.budget // 4]

    def __call__(
        self, problem: Any, X: Tensor, Y: Tensor, seed: int, state: Any
    ) -> tuple[Tensor, Any]:
        """The next point; the state is the first seed and the number of starts."""
        from smac.runhistory.dataclasses import TrialValue

        state = {"seed": seed, "starts": len(X)} if state is None else state
        space, costs = problem.space, (-Y).squeeze(-1).tolist()
        live = self._live
        if live is None or (live.seed, live.told) != (state["seed"], len(X) - 1):
            folder = tempfile.TemporaryDirectory()
            with _quietly():
                facade, cs = _facade(space, state["seed"], folder.name, initial=0)
                starts = slice(0, state["starts"])
                _tell(facade, cs, space, X[starts], -Y[starts])
            live = self._live = _Live(state["seed"], folder, facade, state["starts"])
        with _quietly():
            while True:
                if live.asked is not None:
                    value = TrialValue(cost=costs[live.told])
                    live.facade.tell(live.asked, value, save=False)
                    live.told += 1
                live.asked = live.facade.ask()
                if live.told == len(X):
                    break
        return _point(live.asked, space), state

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None}


def _facade(
    space: SearchSpace, seed: int, folder: str, initial: int | None
) -> tuple[Any, ConfigSpace.ConfigurationSpace]:
    """The facade, and the space it has; ``initial`` points, or its own number."""
    from smac import HyperparameterOptimizationFacade, Scenario

    cs = configuration_space(space, seed)
    scenario = Scenario(
        cs,
        deterministic=True,
        n_trials=_BUDGET,
        seed=seed,
        output_directory=Path(folder),
    )
    facade: Any = HyperparameterOptimizationFacade
    design = facade.get_initial_design(scenario, n_configs=initial)
    made = facade(
        scenario,
        initial_design=design,
        logging_level=False,
        overwrite=True,
    )
    return made, cs


def _tell(
    facade: Any,
    cs: ConfigSpace.ConfigurationSpace,
    space: SearchSpace,
    X: Tensor,
    costs: Tensor,
) -> None:
    from smac.runhistory.dataclasses import TrialInfo, TrialValue

    rows = active_values(space, X)
    for values, cost in zip(rows, costs.squeeze(-1).tolist(), strict=True):
        info = TrialInfo(ConfigSpace.Configuration(cs, values=values), seed=0)
        facade.tell(info, TrialValue(cost=cost), save=False)


def _suggestions(facade: Any, space: SearchSpace) -> Iterator[Tensor]:
    """``d`` points."""
    while True:
        yield _point(facade.ask(), space)


def _point(asked: Any, space: SearchSpace) -> Tensor:
    """The ``d`` point of what SMAC asked for."""
    x, config = space.fill.clone(), dict(asked.config)
    for c, column in enumerate(space.columns):
        if column.name in config:
            x[c] = from_native(column, config[column.name])
    return space.impute(x.unsqueeze(0))[0]
