"""Problems and peers of the suite do as they say, and so does its command."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from strategies import random_configspace
from torch import Tensor
from toy_benchmark import complete_runs

from benchmarks.packed import pack
from benchmarks.suite import optima
from benchmarks.suite.__main__ import main, problems
from benchmarks.suite.peers import PEERS
from benchmarks.suite.synthetic import draw
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    FloatColumn,
    IntegerColumn,
)

# -- random functions ---------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 12, 38])  # rough, smooth, bowls; chains, trees
def test_a_problem_is_what_it_says(number: int) -> None:
    problem = draw(number)
    space, p = problem.space, problem.properties
    X = space.sample(5_000, seed=1)
    values = problem.truths(X)
    assert values.isfinite().all()
    assert space.tree.num_paths == p["paths"] and space.dim == p["columns"]
    # inactive columns do not count
    low = torch.where(space.tree.active_mask(X), X, space.bounds[0])
    assert problem.truths(low).equal(values)
    # nothing random is below the optimum, which is a point of the space
    assert space.feasible(problem.optimizer.unsqueeze(0)).all()
    room = problem.middle_value - problem.optimal_value
    assert values.min() > problem.optimal_value - 1e-6 * room
    assert room > 0.1 * problem.spread
    assert problem.noise_std == pytest.approx(p["noise"] * problem.spread)


# -- the search for optima ----------------------------------------------------------

# A choice, a number only where it is "b", a whole number on a logarithmic scale.
NUMBERS = [FloatColumn("x", 1e-3, 1e3, log=True), IntegerColumn("n", 1, 1000, log=True)]
SPACE = SearchSpace.from_columns(
    [CategoricalColumn("choice", ["a", "b"]), *NUMBERS],
    ParameterTree(3, {0: {0: [], 1: [1]}}, values={0: [0, 1]}),
)


def bowl(X: Tensor) -> Tensor:
    """At its least, 0, where x = 100 and n = 64; at least 1 without an x."""
    number = torch.where(X[:, 0] == 1, (X[:, 1] - 2).square(), 1.0)
    return number + (X[:, 2].log2() - 6).square()


def test_the_search_finds_the_optimum() -> None:
    X = SPACE.sample(8, seed=0)
    before = X.clone()
    points, values = optima.improve(SPACE, bowl, X, bowl(X), 60, 20)
    assert torch.equal(X, before)
    assert (values <= bowl(X)).all() and torch.equal(bowl(points), values)
    assert SPACE.feasible(points).all() and torch.equal(SPACE.impute(points), points)
    best = SPACE.decode(points[values.argmin()])[0]
    assert best["choice"] == "b" and best["n"] == 64
    assert best["x"] == pytest.approx(100.0, rel=0.01)
    restricted = SearchSpace.from_columns(
        SPACE.columns, SPACE.tree, feasible=lambda X: X[..., 2] >= 100
    )
    X = restricted.sample(4, seed=0)
    points, _ = optima.improve(restricted, bowl, X, bowl(X), 20, 10)
    assert (points[:, 2] >= 100).all()


# -- peers --------------------------------------------------------------------------

OPTIONAL = {"smac": "smac", "smac_starts": "smac"}
OPTIONAL |= dict.fromkeys(("plain_tpe", "tpe", "gpsampler"), "optuna")
SLOW = {"gpsampler"}


def told(space: SearchSpace, n: int) -> tuple[Tensor, Tensor]:
    """Points, and outcomes of which some are failures or huge."""
    X = space.sample(n, seed=0)
    Y = -((X - X.mean(0)) / (X.std(0) + 1.0)).square().sum(-1, keepdim=True)
    Y[1], Y[2], Y[3] = math.nan, -math.inf, -1e6
    return X, Y


@pytest.mark.parametrize("name", sorted({*PEERS, *OPTIONAL}))
def test_suggestions_are_allowed_and_repeatable(name: str) -> None:
    pytest.importorskip(OPTIONAL.get(name, "torch"))
    method = PEERS[name]
    # four parameters, or most kinds of them, conditions on values, and a clause
    cs = random_configspace(170, 4) if name in SLOW else random_configspace(4651, 9)
    space = SearchSpace.from_configspace(cs)
    problem = SimpleNamespace(space=space, tree=space.tree)
    points = []
    for _ in range(2):
        torch.manual_seed(3)
        points.append(method(problem, *told(space, 11), 3).reshape(1, -1))
    assert torch.equal(*points)
    assert points[0].isfinite().all() and space.feasible(points[0]).all()
    back = space.encode(space.decode(points[0]))
    assert torch.allclose(back, space.impute(points[0]), rtol=0.0, atol=1e-7)


# -- the command ----------------------------------------------------------------------


def test_two_methods_from_run_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = (
        "run --kinds jenatton synthetic --budget 9 --processes 0 --seeds 1 "
        "--problems jenatton-4-off synthetic-4 synthetic-18 --methods random default "
        f"--first-seed 3 --out {tmp_path / 'out'}"
    )
    assert main(command_line.split()) == 0
    files = sorted((tmp_path / "out").glob("*/*/*.jsonl"))
    assert len(files) == 6 and {file.stem for file in files} == {"3"}
    noisy = tmp_path / "out/synthetic-18/default/3.jsonl"
    problem = problems("develop", ["synthetic"])["synthetic-18"](3)
    for record in map(json.loads, noisy.read_text().splitlines()):
        x = torch.tensor(record["x"], dtype=torch.double)
        assert record["truth"] == pytest.approx(problem.truth(x)) != record["value"]
        assert record["middle"] == problem.middle_value > record["optimum"]
    assert complete_runs(tmp_path / "out", 9) == 6
    pack(tmp_path / "out", tmp_path / "packed.jsonl.xz")
    capsys.readouterr()
    shown = []
    for source in ("out", "packed.jsonl.xz"):
        options = "--reference default --at 8 9".split()
        assert main(["report", str(tmp_path / source), *options]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "## All problems: 3 problems" in shown[0]
    assert "default against" in shown[0] and "## synthetic: 2 problems" in shown[0]
