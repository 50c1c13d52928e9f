"""Comparisons of ``benchmarks.quality`` and ``reach`` run, go on and report."""

import gzip
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import loguniform
from torch import Tensor
from toy_benchmark import complete_runs

from benchmarks import methods
from benchmarks.packed import pack
from benchmarks.problems.quadratics import QuadraticTask
from benchmarks.quality import (
    costs,
    earlier,
    forests,
    quadratics,
    signals,
    treed,
    wang,
    wide,
)
from benchmarks.quality.several_objectives import share_of_front
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.test_functions import JenattonTree, QuadraticTasks

METHODS = {
    "ablr": methods.ablr,
    "warm_context": partial(methods.warm, context=True),
    "gp_stacked": methods.gp_stacked,
}
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: Patch) -> None:
    monkeypatch.setattr(methods, "_FIRST_STEPS", 10)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_functions_of_the_rows(name: str) -> None:
    """Whatever is remembered, and whatever their order was."""
    problem = QuadraticTask(QuadraticTasks(4), 1, 5)
    X = problem.starts(0)
    points = []
    for remembered in (False, False, True):
        if not remembered:
            methods._memory.clear()
        torch.manual_seed(5)
        points.append(METHODS[name](problem, X, -problem(X)[:, None], 5))
    assert torch.equal(points[0], points[1]) and torch.equal(points[0], points[2])
    assert problem.space.feasible(points[0].reshape(1, -1)).all()
    assert not (points[0] == X).all(-1).any()


def test_wide_studies(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(wide, "PROBLEMS", {"few": lambda: wide.binaries(20)})
    out = str(tmp_path / "runs.jsonl")
    some = ["--methods", "Study", "random", "--evaluations", "30", "--out", out]
    wide.main(["--seeds", "1", *some])
    wide.main(["--seeds", "2", *some])  # goes on
    assert len(Path(out).read_text().splitlines()) == 4
    wide.main(["--report", out])
    assert "| few     | Study  | 2    | " in capsys.readouterr().out


def test_treed_quadratics_and_wang(tmp_path: Path, capsys: Capture) -> None:
    common = ["--seeds", "1", "--processes", "0", "--out", str(tmp_path)]
    known = ["--methods", "warm", "gp", "random", "--tasks", "1", "--budget", "5"]
    quadratics.main([*common, *known])
    (row,) = [r for r in capsys.readouterr().out.splitlines() if "| warm " in r]
    # with 29 tasks known, three values say which quadratic it is
    assert float(row.split("|")[2]) <= 4.5
    assert complete_runs(tmp_path, 5, "quadratic-*") == 3
    rows = [f"{x},{y},{(x - 3) ** 2 + y}" for x in range(8) for y in range(8)]
    (tmp_path / "walker_lake_470.csv").write_text("\n".join(["X,Y,V", *rows]))
    arguments = [*common, "--problems", "walker", "lda", "--budget", "7", "--data"]
    treed.main([*arguments, str(tmp_path)])
    shown, errors = capsys.readouterr()
    assert "## walker" in shown and "lda is left out" in errors
    assert complete_runs(tmp_path, 7, "walker") == len(treed.TREED)
    # what is there is reported, nothing is run
    (tmp_path / "walker" / "htbo" / "100.jsonl").unlink()
    treed.main([*arguments, str(tmp_path), "--report"])
    assert not (tmp_path / "walker" / "htbo" / "100.jsonl").exists()
    assert "## walker" in capsys.readouterr().out
    pytest.importorskip("sklearn")
    few = ["--methods", "standard", "random", "--budget", "5"]
    wang.main([*common[:-1], str(tmp_path / "wang"), *few, "--reference", "monotone"])
    shown = capsys.readouterr().out
    assert "## mixture" in shown and "## elastic_net" in shown
    assert complete_runs(tmp_path / "wang", 5) == 4


def test_signals(tmp_path: Path, capsys: Capture) -> None:
    names = list(signals._COLUMNS)
    rows = [
        dict(zip(names, (1 + k % 4, 5 + k, -2, -3, 3 + k % 8), strict=True))
        | {"validation": 0.5 + 0.03 * k, "training": 0.6, "cpu_s": 0.1 + k}
        for k in range(12)
    ]
    table = tmp_path / "sonar.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    problem = signals.NetworkTable(table)
    assert len(problem.candidates) == 12
    for row in rows:
        X = torch.tensor([[row[name] for name in names]], dtype=torch.double)
        expected = [row["validation"], row["training"], np.log(row["cpu_s"])]
        assert problem.signals(X)[0].tolist() == expected
        assert float(problem(X)) == 1 - row["validation"]
    arguments = ["--tables", str(tmp_path), "--datasets", "sonar", "w8a", "--seeds"]
    arguments += ["2", "--budget", "4", "--processes", "0", "--out"]
    signals.main([*arguments, str(tmp_path / "out")])
    shown, errors = capsys.readouterr()
    assert "w8a is left out" in errors and "in 2 pairs" in shown
    assert complete_runs(tmp_path / "out", 4, "sonar") == 2 * len(signals.METHODS)


FORESTS = """@RELATION openml-meta-flow-6969

@ATTRIBUTE randomforestclassifier__bootstrap {True, False}
@ATTRIBUTE randomforestclassifier__criterion {entropy, gini}
@ATTRIBUTE randomforestclassifier__max_features NUMERIC
@ATTRIBUTE randomforestclassifier__min_samples_leaf {1, 18, 20}
@ATTRIBUTE randomforestclassifier__min_samples_split {2, 9, 19}
@ATTRIBUTE columntransformer__numeric__imputer__strategy {mean, median, most_frequent}
@ATTRIBUTE predictive_accuracy NUMERIC
@ATTRIBUTE task_id NUMERIC

@DATA
True,entropy,0.8,18,9,median,0.5,3
False,gini,0.1,20,19,most_frequent,0.75,3
True,gini,0.5,1,2,mean,0.25,12
"""


def test_forests(tmp_path: Path) -> None:
    """One data set is left out; those that are not held out are its history."""
    with gzip.open(tmp_path / forests._FILE, "wt") as file:
        file.write(FORESTS)
    assert forests.held_out(forests.read(tmp_path)) == ["3"]  # 12 is constant
    problem = forests.make(0, tmp_path, "3")
    assert problem.optimal_value == -0.75
    (best,) = problem.space.decode(problem.optimizers)
    assert list(best.values()) == [False, "gini", 0.1, 20, 19, "most_frequent"]
    assert problem.starts(0).shape == (2, 6)
    assert problem.history.X.tolist() == [[1, 1, 0.5, 1, 2, 0, 0]]
    assert problem.history.Y.tolist() == [[-0.25]]
    assert (problem.history.task, problem.history.num_tasks) == (1, 2)
    with pytest.raises(FileNotFoundError, match="random_forest"):
        forests.read(tmp_path / "nothing")


def test_share_of_front() -> None:
    pool = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)).double()
    assert share_of_front(pool, pool) == pytest.approx(1.0)
    assert share_of_front(pool.amin(0, keepdim=True), pool) == 0.0
    assert share_of_front(pool.amax(0, keepdim=True), pool) > 1.0
    scaled = pool * torch.tensor([1e3, 1e-3]) + 7.0  # units do not matter
    share = share_of_front(pool[:5], pool)
    assert 0.0 <= share < 1.0
    assert share_of_front(scaled[:5], scaled) == pytest.approx(share)


class Surrogate:
    """Errors of a tree of two leaves; the second takes ten times as long."""

    optimal_value, middle_value = 0.0, 0.5

    def __init__(self, task: str, data: Path) -> None:
        bounds = torch.tensor([[0.0] * 3, [1.0] * 3])
        tree = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
        decision = {0: [0.0, 1.0]}
        self.space = SearchSpace(
            ["leaf", "a", "b"], bounds, tree, categorical_features=decision
        )

    def starts(self, seed: int) -> Tensor:
        return self.space.starts(seed=seed)

    def evaluate(self, X: Tensor) -> dict[str, Tensor]:
        own = torch.where(X[:, 0] == 0.0, (X[:, 1] - 0.3) ** 2, 0.2 + X[:, 2])
        return {"acc": 1.0 - own, "timetrain": 1.0 + 9.0 * X[:, 0]}


def test_full_and_stopped_evaluations(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(costs, "YahpoXGBoost", Surrogate)
    monkeypatch.setattr(costs, "_FULL_EVALUATIONS", 8)
    file = tmp_path / "costs.jsonl"
    arguments = ["--tasks", "3", "--out", str(file), "--evaluations", "9"]
    costs.main(arguments)
    full, limited = costs._read(file)
    assert len(full.errors) == 8 and len(limited.errors) <= 9
    assert sum(limited.seconds[:-1]) < 0.5 * sum(full.seconds)
    before = file.read_text()
    file.write_text(before + '{"problem": "3", "me')  # killed while it wrote
    costs.main([*arguments, "--report"])
    assert file.read_text() == before and "| limited " in capsys.readouterr().out


class Shifted(SuiteProblem):
    """A tree's function with its optima moved by a little, more for larger numbers."""

    optimal_value = 0.1
    kind = "yahpo"

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(JenattonTree().space)
        self.name = name

    def truths(self, X: Tensor) -> Tensor:
        moved = (X - 0.3 - 0.01 * int(self.name)).square()
        active = self.space.tree.active_mask(X)
        active[:, self.space.tree.decision_columns] = False
        return 0.1 + (moved * active).sum(-1)


def test_old_studies(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    pytest.importorskip("optuna")
    develop = {f"yahpo-{k}": partial(Shifted, name=str(k)) for k in range(4)}
    kinds = {"yahpo": SimpleNamespace(DEVELOP=develop)}
    monkeypatch.setattr(earlier, "_KINDS", kinds)
    studies: dict[str, Any] = {}
    for name, make in develop.items():
        problem = make(0)
        X = problem.space.sample(25, seed=int(name[-1]))
        studies[name] = (X.tolist(), (-problem.truths(X)[:, None]).tolist())
    (tmp_path / "old.json").write_text(json.dumps(studies))
    names = ["without", "earlier-3", "rgpe-2", "warm-2"]
    names += ["shuffled-2", "reversed-2", "unrelated-2"]
    arguments = ["--methods", *names, "--tasks", "1", "--budget", "5", "--kinds"]
    arguments += ["yahpo", "--processes", "0", "--out", str(tmp_path), "--old"]
    arguments.append(str(tmp_path / "old.json"))
    with pytest.raises(SystemExit):  # before any run
        earlier.main([*arguments, "--reference", "earlier-7"])
    assert "--reference: expected one of" in capsys.readouterr().err
    earlier.main([*arguments, "--reference", "earlier-3"])
    shown = capsys.readouterr().out
    assert "yahpo: 1 runs" in shown and "| 1 | 3 | 5 |" in shown
    runs = tmp_path / "develop" / "runs"
    assert complete_runs(runs, 5) == len(names)
    pack(runs, tmp_path / "all.jsonl.xz")
    report = ["--report", str(tmp_path / "all.jsonl.xz"), "--reference", "earlier-3"]
    earlier.main(report)
    assert capsys.readouterr().out == shown
    # the first point with old studies is near their optima
    row = next(line for line in shown.splitlines() if line.startswith("| `earlier-3`"))
    assert float(row.split("|")[2].split(";")[0]) < 0.5


def test_search_cv_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    from benchmarks.reach import many_tables, search_cv

    random = np.random.default_rng(0)
    X = random.standard_normal((60, 3))
    tables = {"b": lambda: (X, X[:, 0] + random.standard_normal(60))}
    ridge = [{"model": [linear_model.Ridge()], "model__alpha": loguniform(1e-3, 1e3)}]
    small = replace(search_cv.PROBLEMS["regression"], space=ridge, folds=2)
    monkeypatch.setitem(search_cv.PROBLEMS, "regression", small)
    monkeypatch.setattr(many_tables, "NUMBERS", tables)
    out = tmp_path / "found.jsonl.gz"
    files = []
    for seeds in ("1", "2"):
        command = ["--problems", "regression", "--budget", "3", "--out", str(out)]
        search_cv.main([*command, "--seeds", seeds])
        files.append(gzip.decompress(out.read_bytes()).splitlines())
    first, lines = files
    assert len(first) == 3 and lines[:3] == first and len(lines) == 6
    assert [json.loads(line)["seed"] for line in lines] == 3 * [200] + 3 * [201]
    assert "regression, 2 splits" in capsys.readouterr().out
