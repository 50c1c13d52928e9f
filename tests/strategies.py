"""Random trees, points and search spaces for property tests of any part.

Everything is a function of a seed: a failing example is repeated by its seed alone.
"""

import csv
import io
import math
import random
from collections.abc import Sequence
from typing import Any

import ConfigSpace as CS
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.spaces import Between, Equals, In, Inactive, ParameterTree

seeds = st.integers(min_value=0, max_value=2**32 - 1)


def random_tree(
    seed: int,
    max_depth: int = 3,
    max_decisions: int = 5,
    max_columns: int = 6,
    numeric: bool = True,
    compound: bool = True,
    strict: bool | None = None,
) -> ParameterTree:
    """A random tree: several roots, shared children, any nesting up to ``max_depth``.

    Args:
        seed: The same seed gives the same tree.
        max_depth: How many decisions may stand above each other.
        max_decisions: At most so many decision columns (at least one).
        max_columns: At most so many other columns.
        numeric: Whether some decisions may be cut by `Between`, within [0, 1].
        compound: Whether conditions may join several parents by ``&`` and ``|``.
        strict: Whether all values are declared (None: now and then, per decision).
    """
    rng = random.Random(seed)
    num_decisions = rng.randint(1, max_decisions)
    num_others = rng.randint(0, max_columns)
    dim = num_decisions + num_others
    order = rng.sample(range(dim), dim)  # decisions first, parents before children
    decisions, others = order[:num_decisions], order[num_decisions:]
    is_numeric = {c: numeric and rng.random() < 0.2 for c in decisions}
    values = {c: [float(v) for v in range(rng.randint(1, 3))] for c in decisions}
    depth: dict[int, int] = {}
    conditions: dict[int, Any] = {}

    def atom(parent: int) -> Any:
        if is_numeric[parent]:
            cut = rng.choice([0.25, 0.5, 0.75])
            if rng.random() < 0.3:
                return Between(parent, cut / 2, cut)
            return Between(parent, cut, math.inf)
        if compound and rng.random() < 0.1:
            return Equals(parent, rng.choice(values[parent])) | Inactive(parent)
        if rng.random() < 0.5:
            return Equals(parent, rng.choice(values[parent]))
        some = rng.sample(values[parent], rng.randint(1, len(values[parent])))
        return In(parent, some)

    def condition(parents: list[int]) -> Any:
        result = atom(rng.choice(parents))
        while compound and rng.random() < 0.3:
            other = atom(rng.choice(parents))
            result = result & other if rng.random() < 0.4 else result | other
        return result

    for i, col in enumerate(decisions):
        above = [c for c in decisions[:i] if depth[c] < max_depth - 1]
        depth[col] = 0
        if above and rng.random() < 0.6:
            conditions[col] = condition(above)
            depth[col] = 1 + max(depth[c] for c in conditions[col].columns())
    for col in others:
        if rng.random() < 0.8:
            conditions[col] = condition(decisions)
    declared = {}
    for c in decisions:
        wanted = rng.random() < 0.4 if strict is None else strict
        if not is_numeric[c] and wanted:
            declared[c] = values[c]
    dependencies = {
        c: {v: [] for v in values[c]} for c in decisions if not is_numeric[c]
    }
    return ParameterTree(dim, dependencies, conditions=conditions, values=declared)


def random_points(
    tree: ParameterTree, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """``n x d`` float64 points: decisions at declared values, the rest in [0, 1].

    Inactive columns are random too.
    """
    X = torch.rand(n, tree.dim, generator=generator, dtype=torch.double)
    paths = tree.random_paths(n, generator)
    X[:, tree.decision_columns] = paths[:, tree.decision_columns]
    X[:, tree.numeric_decisions] = X[:, tree.numeric_decisions].clamp(0.0, 1.0)
    return X


def random_configspace(
    seed: int, max_parameters: int = 8, forbidden: bool = True
) -> CS.ConfigurationSpace:
    """A random ConfigSpace with all kinds of parameters, conditions and clauses."""
    for attempt in range(1000):
        try:
            return _build(
                random.Random(1000 * seed + attempt), max_parameters, forbidden
            )
        except Exception as error:  # ConfigSpace has no exception of its own for these
            # It refuses a space whose defaults are forbidden, or are not set where a
            # NotEquals leaves a child active under an inactive parent.
            last = error
    raise RuntimeError(f"Expected a legal space for seed {seed}.") from last


def up_to_last_digits(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration to compare with: numbers on a logarithmic scale are rounded."""
    return {
        name: pytest.approx(value, rel=1e-13) if type(value) is float else value
        for name, value in config.items()
    }


def as_read(
    configs: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, str]]:
    """Configurations once they were written to a CSV file: text, "" where inactive."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, names)
    writer.writeheader()
    writer.writerows(configs)
    file.seek(0)
    return list(csv.DictReader(file))


def _build(
    rng: random.Random, max_parameters: int, forbidden: bool
) -> CS.ConfigurationSpace:
    space = CS.ConfigurationSpace(seed=rng.randrange(2**31))
    pool: list[Any] = ["a", "b", "c", 1, 2.5, True, None, "1"]
    parameters: list[Any] = []
    for i in range(rng.randint(2, max_parameters)):
        name = f"{rng.choice('pqxyz')}{i}"
        kind = rng.choice(["float", "log", "int", "logint", "ordinal", "cat", "const"])
        if kind == "float":
            lo = rng.uniform(-5, 5)
            hp = CS.UniformFloatHyperparameter(name, lo, lo + rng.uniform(0.1, 9))
        elif kind == "log":
            lo = 10 ** rng.uniform(-8, 2)
            hp = CS.UniformFloatHyperparameter(
                name, lo, lo * 10 ** rng.uniform(0.5, 6), log=True
            )
        elif kind == "int":
            lo = rng.randint(-9, 9)
            hp = CS.UniformIntegerHyperparameter(name, lo, lo + rng.randint(1, 40))
        elif kind == "logint":
            hp = CS.UniformIntegerHyperparameter(
                name, rng.randint(1, 4), rng.randint(8, 2000), log=True
            )
        elif kind == "ordinal":
            sequence = rng.sample(["s", "m", "l", "xl"], rng.randint(2, 4))
            hp = CS.OrdinalHyperparameter(name, sequence)
        elif kind == "cat":
            choices = [c for c in rng.sample(pool, 4) if c != 1 or c is not True]
            if True in choices and any(c == 1 and c is not True for c in choices):
                choices = [c for c in choices if c is not True]
            unique = [c for k, c in enumerate(choices) if c not in choices[:k]]
            hp = CS.CategoricalHyperparameter(name, unique)
        else:
            hp = CS.Constant(name, rng.choice(["on", 3, 0.5]))
        parameters.append(hp)
    if all(isinstance(hp, CS.Constant) for hp in parameters):
        parameters.append(CS.UniformFloatHyperparameter("w", 0, 1))
    space.add(*parameters)

    def value(hp: Any) -> Any:
        if isinstance(hp, CS.CategoricalHyperparameter):
            return rng.choice(hp.choices)
        if isinstance(hp, CS.OrdinalHyperparameter):
            return rng.choice(hp.sequence)
        if isinstance(hp, CS.Constant):
            return hp.value
        if isinstance(hp, CS.UniformIntegerHyperparameter):
            return rng.randint(hp.lower, hp.upper)
        return float(f"{hp.lower + rng.uniform(0.2, 0.8) * (hp.upper - hp.lower):.4g}")

    def simple(child: Any, parent: Any) -> Any:
        kinds = ["eq", "in", "ne"]
        if isinstance(parent, CS.Constant):
            kinds = ["eq"]
        elif isinstance(parent, CS.UniformFloatHyperparameter):
            kinds = ["lt", "gt"]
        elif not isinstance(parent, CS.CategoricalHyperparameter):
            kinds += ["lt", "gt"]
        kind = rng.choice(kinds)
        if kind == "in":
            picked = [value(parent) for _ in range(2)]
            unique = [v for k, v in enumerate(picked) if v not in picked[:k]]
            return CS.InCondition(child, parent, unique)
        condition = {
            "eq": CS.EqualsCondition,
            "ne": CS.NotEqualsCondition,
            "lt": CS.LessThanCondition,
            "gt": CS.GreaterThanCondition,
        }[kind]
        return condition(child, parent, value(parent))

    for i, child in enumerate(parameters):
        if i == 0 or rng.random() < 0.4:
            continue
        parents = rng.sample(parameters[:i], min(i, rng.choice([1, 1, 2])))
        parts = [simple(child, parent) for parent in parents]
        join = rng.choice([CS.AndConjunction, CS.OrConjunction])
        space.add(parts[0] if len(parts) == 1 else join(*parts))
    if forbidden and rng.random() < 0.5:
        pair = rng.sample(parameters, 2)
        clauses = []
        for hp in pair:
            continuous = isinstance(hp, CS.UniformFloatHyperparameter)
            clause = (
                CS.ForbiddenLessThanClause if continuous else CS.ForbiddenEqualsClause
            )
            clauses.append(clause(hp, value(hp)))
        space.add(CS.ForbiddenAndConjunction(*clauses))
    return space
