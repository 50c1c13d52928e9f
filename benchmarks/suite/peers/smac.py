"""SMAC3's facade for hyperparameter optimisation, by its ask-and-tell interface."""

from __future__ import annotations

import itertools
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ConfigSpace
import torch
from ConfigSpace import hyperparameters as chp
from torch import Tensor

from benchmarks.fits import finite
from benchmarks.suite.peers.common import (
    active_values,
    first_feasible,
    from_native,
    native,
)
from botorch_structured.spaces import In, SearchSpace
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
        ValueError: A parameter depends on something else than values of others.
    """
    cs = ConfigSpace.ConfigurationSpace(seed=seed)
    parameters = [_parameter(space, c) for c in range(space.dim)]
    cs.add(parameters)
    for c, condition in space.tree.conditions.items():
        cs.add(_condition(space, parameters, parameters[c], condition))
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
        both = isinstance(condition, And)
        kind: Any = ConfigSpace.AndConjunction if both else ConfigSpace.OrConjunction
        return parts[0] if len(parts) == 1 else kind(*parts)
    if not isinstance(condition, In):
        raise ValueError(
            f"space: expected {child.name!r} to depend on values of others, got "
            f"{condition}."
        )
    values = [native(space.columns[condition.col], v) for v in condition.values]
    return ConfigSpace.InCondition(child, parameters[condition.col], values)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without SMAC's messages about having no design."""
    logging.getLogger("smac").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # It takes the mean of the times of a local search without steps.
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        warnings.filterwarnings("ignore", "invalid value", RuntimeWarning)
        yield


class SMACWithStarts:
    """SMAC3, which knows the common starts and has no initial design of its own.

    It is made anew at each step, with a forest after every evaluation.

    Args:
        budget: Evaluations of a run; a quarter of them is a design.
    """

    def __init__(self, budget: int = _BUDGET) -> None:
        self.budget = budget

    def __call__(self, problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        from smac.runhistory.dataclasses import TrialInfo, TrialValue

        space = problem.space
        costs = (-finite(Y)).squeeze(-1).tolist()
        with tempfile.TemporaryDirectory() as folder, _quietly():
            facade, cs = _facade(space, seed, folder, initial=0)
            for values, cost in zip(active_values(space, X), costs, strict=True):
                info = TrialInfo(ConfigSpace.Configuration(cs, values=values), seed=0)
                facade.tell(info, TrialValue(cost=cost), save=False)
            return first_feasible(space, _points(facade, space), seed)


class SMAC(SMACWithStarts):
    """SMAC3, which begins with its own initial design (Sobol)."""

    def starts(self, problem: Any, seed: int) -> Tensor:
        """``k x d`` points, at most a quarter of the budget."""
        space = problem.space
        with tempfile.TemporaryDirectory() as folder, _quietly():
            facade, _ = _facade(space, seed, folder, initial=None)
            points = itertools.islice(_points(facade, space), _BUDGET // 4)
            different = {tuple(p.tolist()): p for p in points}
        X = torch.stack(list(different.values()))
        return X[space.feasible(X)][: self.budget // 4]


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
    make: Any = HyperparameterOptimizationFacade
    design = make.get_initial_design(scenario, n_configs=initial)
    facade = make(scenario, initial_design=design, logging_level=False, overwrite=True)
    return facade, cs


def _points(facade: Any, space: SearchSpace) -> Iterator[Tensor]:
    """``d`` points of what SMAC asks for."""
    while True:
        x = space.fill.clone()
        config = dict(facade.ask().config)
        for c, column in enumerate(space.columns):
            if column.name in config:
                x[c] = from_native(column, config[column.name])
        yield space.impute(x.unsqueeze(0))[0]
