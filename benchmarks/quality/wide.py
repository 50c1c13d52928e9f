"""Studies of a hundred and more parameters, of which a tenth matters.

    python -m benchmarks.quality.wide [--evaluations N] [--methods M ...] --out FILE
    python -m benchmarks.quality.wide --report FILE

Developed on: binaries with products of neighbours; integers of four widths; flags that
switch on a choice, which switches on columns. Each line of the file is a run; the same
command again makes only those that it has not. The table has the mean best value, the
smaller the better.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.suite.peers import PEERS
from benchmarks.summary import markdown_table
from botorch_structured import Study
from botorch_structured.spaces import SearchSpace

Configuration = dict[str, Any]
Problem = tuple[SearchSpace, Callable[[Configuration], float]]


def binaries(count: int = 300) -> Problem:
    """A tenth has weights, and neighbours among these do best if they differ."""
    r = random.Random(1)
    chosen = r.sample(range(count), count // 10)
    weights = [r.gauss(0.0, 1.0) for _ in chosen]

    def value(configuration: Configuration) -> float:
        x = [configuration[f"b{i}"] for i in chosen]
        differ = sum(a != b for a, b in zip(x, x[1:], strict=False))
        return -sum(w * a for w, a in zip(weights, x, strict=True)) - 0.5 * differ

    names = {f"b{i}": [False, True] for i in range(count)}
    return SearchSpace.from_dictionaries(names), value


def integers(count: int = 100) -> Problem:
    """Valleys in a tenth, and waves over pairs of these."""
    r = random.Random(1)
    ranges: list[Any] = [(1, 20), (1, 1000), (1, 10**6, "log"), (1, 3)]
    chosen = r.sample(range(count), count // 10)
    best = [r.random() for _ in chosen]

    def unit(i: int, value: int) -> float:
        most = ranges[i % 4][1]
        if len(ranges[i % 4]) > 2:
            return math.log(value) / math.log(most)
        return (value - 1) / (most - 1)

    def value(configuration: Configuration) -> float:
        u = [unit(i, configuration[f"i{i}"]) for i in chosen]
        waves = sum(math.sin(6 * a) * b for a, b in zip(u, u[1:], strict=False))
        return 0.3 * waves + sum((a - b) ** 2 for a, b in zip(u, best, strict=True))

    names = {f"i{i}": ranges[i % 4] for i in range(count)}
    return SearchSpace.from_dictionaries(names), value


def two_levels(count: int = 10) -> Problem:
    """Each flag switches on a choice; each of its values, columns of its own."""
    import ConfigSpace as CS

    r = random.Random(1)
    cs = CS.ConfigurationSpace()
    best = {}
    for g in range(count):
        flag = CS.Categorical(f"f{g}", ["off", "on"])
        kind = CS.Categorical(f"k{g}", ["a", "b", "c"])
        cs.add(flag, kind, CS.EqualsCondition(kind, flag, "on"))
        for name, columns in {"a": 2, "b": 3, "c": 3}.items():
            for j in range(columns):
                column = CS.Float(f"{name}{g}_{j}", (0.0, 1.0))
                cs.add(column, CS.EqualsCondition(column, kind, name))
                best[column.name] = r.random()
    gains = {f"{k}{g}": r.gauss(0.0, 1.0) for g in range(count // 3) for k in "abc"}

    def value(configuration: Configuration) -> float:
        total = 0.0
        for g in range(count // 3):
            if configuration[f"f{g}"] == "on":
                kind = configuration[f"k{g}"]
                total -= gains[f"{kind}{g}"]
                for j in range(2):
                    name = f"{kind}{g}_{j}"
                    total += (configuration[name] - best[name]) ** 2
        return total

    return SearchSpace.from_configspace(cs), value


PROBLEMS = {
    "300 binaries": binaries,
    "100 integers": integers,
    "100 parameters on two levels": two_levels,
}


def by_study(problem: Problem, n: int, seed: int) -> list[float]:
    """Outcomes of a `Study`."""
    space, value = problem
    study = Study(space, seed=seed)
    outcomes = []
    for _ in range(n):
        (configuration,) = study.ask()
        outcomes.append(value(configuration))
        study.tell(configuration, outcomes[-1])
    return outcomes


def by_random(problem: Problem, n: int, seed: int) -> list[float]:
    """Outcomes of random points."""
    space, value = problem
    return [value(c) for c in space.decode(space.sample(n, seed=seed))]


def by_peer(name: str) -> Callable[[Problem, int, int], list[float]]:
    """Outcomes of a peer of the suite, from five random points on."""

    def run(problem: Problem, n: int, seed: int) -> list[float]:
        space, value = problem
        case = SimpleNamespace(space=space, starts=lambda seed: space.sample(5, seed))
        X = space.sample(5, seed)
        outcomes = [value(c) for c in space.decode(X)]
        while len(outcomes) < n:
            Y = -torch.tensor(outcomes, dtype=torch.double).unsqueeze(-1)
            X = torch.cat([X, PEERS[name](case, X, Y, seed).reshape(1, -1)])
            outcomes.append(value(space.decode(X[-1:])[0]))
        return outcomes

    return run


METHODS = {
    "Study": by_study,
    "TPESampler()": by_peer("plain_tpe"),
    "random": by_random,
    "SMAC3": by_peer("smac"),
}


def report(path: Path) -> str:
    """The mean best values after 30, 100 and 300 evaluations, seconds each."""
    runs: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for line in path.read_text().splitlines():
        run = json.loads(line)
        runs[run["problem"], run["method"]].append(run)
    lines = []
    for key, group in runs.items():
        count = len(group[0]["outcomes"])
        at = [k for k in (30, 100, 300) if k <= count]
        best = [sum(min(r["outcomes"][:k]) for r in group) / len(group) for k in at]
        seconds = sum(r["seconds"] for r in group) / len(group) / count
        cells = [*(f"{b:.2f}" for b in best), *["" for _ in range(3 - len(at))]]
        lines.append([*key, str(len(group)), *cells, f"{seconds:.2f}"])
    heads = ["problem", "method", "runs", "30", "100", "300", "s each"]
    return markdown_table(heads, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what a file has not, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=METHODS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.report:
        print(report(chosen.report))
        return
    out = chosen.out
    text = out.read_text() if out.exists() else ""
    keys = ("problem", "method", "seed")
    done = {tuple(json.loads(line)[k] for k in keys) for line in text.splitlines()}
    for seed in range(chosen.seeds):
        for name, make in PROBLEMS.items():
            for method in chosen.methods:
                if (name, method, seed) in done:
                    continue
                start = time.process_time()
                outcomes = METHODS[method](make(), chosen.evaluations, seed)
                seconds = time.process_time() - start
                line = {"problem": name, "method": method, "seed": seed}
                line |= {"seconds": seconds, "outcomes": outcomes}
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
