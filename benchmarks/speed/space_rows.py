"""Rows of suggestions on spaces that users have, beside what they would use instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.contest import Contest, Row
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import suggest

# -- spaces -----------------------------------------------------------------------


def network() -> SearchSpace:
    """One to three layers, each with a width and a dropout rate; three optimisers."""
    return SearchSpace.from_dictionaries(
        [
            {
                "optimizer": ["Adam", "RMSprop", "SGD"],
                "lr": (1e-5, 1e-1, "log"),
                "n_layers": [layers],
                **{f"units_{i}": (4, 128) for i in range(layers)},
                **{f"dropout_{i}": (0.2, 0.5) for i in range(layers)},
            }
            for layers in (1, 2, 3)
        ]
    )


def boosters() -> SearchSpace:
    """Three boosters with 4, 8 and 10 columns, 4 of them in common."""
    shared = {
        "nrounds": (3, 2000, "log"),
        "subsample": (0.1, 1.0),
        "alpha": (1e-3, 1e3, "log"),
        "lambda": (1e-3, 1e3, "log"),
    }
    trees = {
        "eta": (1e-4, 1.0, "log"),
        "max_depth": (3, 20),
        "min_child_weight": (1.0, 150.0, "log"),
        "colsample": (0.01, 1.0),
    }
    dart = {"rate_drop": (0.0, 1.0), "skip_drop": (0.0, 1.0)}
    return SearchSpace.from_dictionaries(
        [
            {"booster": ["gblinear"], **shared},
            {"booster": ["gbtree"], **shared, **trees},
            {"booster": ["dart"], **shared, **trees, **dart},
        ]
    )


def learners(count: int = 200) -> SearchSpace:
    """One choice among many, with four columns each and two in common."""
    return SearchSpace.from_dictionaries(
        [
            {
                "learner": [f"l{i}"],
                **{f"l{i}_x{j}": (0.0, 1.0) for j in range(4)},
                "s0": (0.0, 1.0),
                "s1": (0.0, 1.0),
            }
            for i in range(count)
        ]
    )


# Values of the choices of a pipeline: how many columns hang on each.
_PIPELINE = {
    "classifier": [3, 4, 5, 2, 2, 1, 3, 3, 1, 1, 4, 2],
    "preprocessor": [0, 2, 1, 1, 3, 2],
    "rescaling": [0, 0, 0, 0, 2, 1],
    "balancing": [0, 0],
    "coalescence": [0, 1],
}


def pipeline() -> SearchSpace:
    """Independent choices of the steps of a pipeline, as auto-sklearn has them.

    A number of columns hangs on each value; two classifiers and two preprocessors do
    not go together. 1,728 paths, 50 columns.
    """
    import ConfigSpace as CS

    space = CS.ConfigurationSpace(seed=0)
    for step, values in _PIPELINE.items():
        names = [f"{step}_{i}" for i in range(len(values))]
        space.add(choice := CS.Categorical(step, names))
        for name, count in zip(names, values, strict=True):
            for j in range(count):
                bounds, log = ((1e-4, 1.0), True) if j % 2 else ((0.0, 1.0), False)
                space.add(column := CS.Float(f"{name}_x{j}", bounds, log=log))
                space.add(CS.EqualsCondition(column, choice, name))
    space.add(
        CS.ForbiddenAndConjunction(
            CS.ForbiddenInClause(space["classifier"], ["classifier_3", "classifier_7"]),
            CS.ForbiddenInClause(
                space["preprocessor"], ["preprocessor_4", "preprocessor_5"]
            ),
        )
    )
    return SearchSpace.from_configspace(space)


def flat(columns: int) -> SearchSpace:
    """No decisions."""
    return SearchSpace.from_dictionaries({f"x{j}": (0.0, 1.0) for j in range(columns)})


def binaries(count: int) -> SearchSpace:
    """No decisions."""
    return SearchSpace.from_dictionaries({f"b{i}": [False, True] for i in range(count)})


def integers(count: int) -> SearchSpace:
    """Of four widths, up to that of a solver's limits."""
    ranges: list[Any] = [(1, 3), (1, 150), (1, 100_000), (1, 2**31 - 1, "log")]
    return SearchSpace.from_dictionaries({f"i{i}": ranges[i % 4] for i in range(count)})


_SPACES: dict[str, Callable[..., SearchSpace]] = {
    "binaries": binaries,
    "integers": integers,
    "network": network,
    "boosters": boosters,
    "learners": learners,
    "pipeline": pipeline,
    "flat": flat,
}


def _outcomes(space: SearchSpace, X: Tensor, seed: int) -> Tensor:
    """A wave over all columns in the unit interval, with noise; larger is better."""
    lower, upper = space.bounds
    U = (X - lower) / torch.where(upper > lower, upper - lower, 1.0)
    rate = torch.linspace(0.5, 2.0, space.dim, dtype=torch.double)
    g = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(X), 1, generator=g, dtype=torch.double)
    return torch.sin(1.5 * (U * rate).sum(-1, keepdim=True)) + 0.05 * noise


# -- rows -------------------------------------------------------------------------

# Peers that see all columns take minutes where there are more.
_MANY_COLUMNS = 100
# Names in ``benchmarks.suite.peers``.
_PEERS = {
    "Optuna's TPE (multivariate, group)": "tpe",
    "Optuna's GPSampler": "gpsampler",
    "SMAC3": "smac",
    "SingleTaskGP, one-hot, inactive columns imputed": "imputed",
}


def suggestion(
    kind: str,
    n: int,
    constrained: bool = False,
    peers: Collection[str] = (),
    **size: int,
) -> Contest:
    """The next point after ``n`` evaluations, with other data in each repetition.

    Args:
        kind: The name of a space.
        n: The number of evaluations.
        constrained: Whether half of the points satisfy a constraint.
        peers: Their names. Default: all where columns are few, else one alone.
        size: The size of the space.
    """
    from benchmarks.suite.peers import PEERS  # Optuna and SMAC take seconds to import

    space = _SPACES[kind](**size)
    problem = SimpleNamespace(space=space, starts=lambda seed: space.sample(5, seed))

    @cache
    def data(seed: int) -> tuple[Tensor, Tensor]:
        X = space.sample(n, seed=seed)
        return X, _outcomes(space, X, seed)

    def ours(seed: int) -> Tensor:
        X, Y = data(seed)
        # satisfied by about half of the points
        C = X[:, :1] - X[:, :1].median() if constrained else None
        return suggest(space, X, Y, seed=seed, train_C=C).X

    def theirs(peer: Any, seed: int) -> object:
        return peer(problem, *data(seed), seed)

    calls: dict[str, Callable[[int], object]] = {"ours": ours}
    able = peers or ({"tpe"} if space.dim > _MANY_COLUMNS else {*PEERS})
    for name, peer in {} if constrained else _PEERS.items():
        if peer in able and peer in PEERS:
            calls[name] = partial(theirs, PEERS[peer])

    def check() -> dict[str, Any]:
        X = ours(0)
        if not (X.shape == (1, space.dim) and bool(space.feasible(X).all())):
            raise AssertionError(f"suggestion: expected a point of the space, got {X}.")
        return {"paths": space.tree.num_paths, "columns": space.dim}

    return Contest(calls, [[name] for name in list(calls)[1:]], check)


def six_paths() -> SearchSpace:
    """One to three layers, two optimisers with a parameter each."""
    return SearchSpace.from_dictionaries(
        [
            {
                "optimizer": [optimizer],
                "n_layers": [str(layers)],
                "lr": (1e-5, 1e-1, "log"),
                "decay": (1e-6, 1e-1, "log"),
                **{f"units_{i}": (8, 512, "log") for i in range(layers)},
                own: (0.0, 0.99),
            }
            for optimizer, own in (("Adam", "beta"), ("SGD", "momentum"))
            for layers in (1, 2, 3)
        ]
    )


def long_study(n: int, q: int = 1, pending: int = 0, warm: bool = True) -> Contest:
    """Suggestions after thousands of evaluations, from the last fit or without one."""
    space = six_paths()
    X = space.sample(n, seed=0)
    Y = _outcomes(space, X, 0)
    X_pending = space.sample(pending, seed=1) if pending else None
    last = suggest(space, X[:-1], Y[:-1], seed=0) if warm else None

    def ours(seed: int) -> Tensor:
        return suggest(space, X, Y, q, X_pending, last, seed).X

    return Contest({"ours": ours})


def optuna_trial(n: int) -> Contest:
    """The next trial of a study of ``n`` trials of `network`, written as a function."""
    import optuna

    from botorch_structured.integrations.optuna import StructuredSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def value(trial: optuna.Trial) -> float:
        layers = trial.suggest_int("n_layers", 1, 3)
        best = {"Adam": -3.0, "RMSprop": -3.5, "SGD": -1.5}
        optimizer = trial.suggest_categorical("optimizer", [*best])
        total = 0.3 / layers
        for i in range(layers):
            units = trial.suggest_int(f"units_{i}", 4, 128, log=True)
            total += (math.log2(units) - 5 - i) ** 2 / 20
            total += (trial.suggest_float(f"dropout_{i}", 0.2, 0.5) - 0.3) ** 2
        lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        return total + (math.log10(lr) - best[optimizer]) ** 2 / 5

    samplers: dict[str, Callable[[int], Any]] = {
        "ours": lambda seed: StructuredSampler(seed=seed),
        "Optuna's TPESampler()": lambda seed: optuna.samplers.TPESampler(seed=seed),
    }
    studies: dict[str, optuna.Study] = {}

    def prepare(number: int) -> None:
        """Studies that have had ``n`` random trials."""
        random = optuna.create_study(sampler=optuna.samplers.RandomSampler(number))
        random.optimize(value, n_trials=n)
        for name, make in samplers.items():
            studies[name] = optuna.create_study(sampler=make(number))
            studies[name].add_trials(random.trials)

    def call(name: str) -> Callable[[int], object]:
        return lambda _: studies[name].optimize(value, n_trials=1)

    calls = {name: call(name) for name in samplers}
    return Contest(calls, [[name] for name in list(calls)[1:]], prepare=prepare)


#: By name.
ROWS = {
    "real-spaces": Row(
        "suggest",
        suggestion,
        {
            **{
                f"network of 1 to 3 layers, {n} points": {"kind": "network", "n": n}
                for n in (20, 40, 60, 200)
            },
            "network with a constraint, 25 points": {
                "kind": "network",
                "n": 25,
                "constrained": True,
            },
            **{
                f"three boosters, {n} points": {"kind": "boosters", "n": n}
                for n in (20, 60, 200)
            },
            "200 learners of 6 columns, 60 points": {"kind": "learners", "n": 60},
            "pipeline of 1,728 paths, 40 points": {"kind": "pipeline", "n": 40},
            **{
                f"no decisions, {d} columns, 50 points": {
                    "kind": "flat",
                    "n": 50,
                    "columns": d,
                }
                for d in (8, 20, 60)
            },
        },
        {"kind": "network", "n": 8},
    ),
    "wide": Row(
        "suggest in a wide space",
        suggestion,
        {
            f"{count:,} {kind}, 20 points": {
                "kind": kind,
                "n": 20,
                "count": count,
                "peers": ["tpe", "smac"],
            }
            for kind, count in (
                ("binaries", 300),
                ("binaries", 1000),
                ("integers", 323),
            )
        },
        {"kind": "binaries", "n": 8, "count": 130, "peers": ["tpe"]},
    ),
    "real-optuna": Row(
        "a trial of Optuna",
        optuna_trial,
        {f"network of 1 to 3 layers, {n:,} trials": {"n": n} for n in (60, 3000)},
        {"n": 12},
    ),
    "long": Row(
        "suggest on 6 paths",
        long_study,
        {
            **{
                f"{n:,} points, {start}": {"n": n, "warm": start == "from the last fit"}
                for n in (1000, 2000, 4000, 10_000)
                for start in ("first fit", "from the last fit")
            },
            "1,000 points, q = 16": {"n": 1000, "q": 16},
            "2,000 points, 64 pending": {"n": 2000, "pending": 64},
        },
        {"n": 30, "q": 2, "pending": 2},
    ),
}
