import gzip
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_benchmark import complete_runs

from benchmarks import ablr_methods, network_tables
from benchmarks.harness import read_records
from benchmarks.problems.transfer import random_forest_tables
from benchmarks.quality import forests, quadratics, signals
from benchmarks.summary import Run
from benchmarks.transfer_report import evaluations_to, mean_rank_curve, one_sided, pair
from botorch_structured.test_functions import QuadraticTasks


def forest_file(folder: Path, tasks: int = 4, rows: int = 12) -> Path:
    """Forests of a few tasks; the last task is constant."""
    rng = np.random.default_rng(0)
    names = ["bootstrap", "criterion", "max_features", "min_samples_leaf"]
    names = [f"randomforestclassifier__{n}" for n in (*names, "min_samples_split")]
    names += ["columntransformer__numeric__imputer__strategy"]
    text = [f"@ATTRIBUTE {n} X" for n in (*names, "predictive_accuracy", "task_id")]
    text.append("@DATA")
    for task in range(tasks):
        for _ in range(rows):
            x, leaf, split = rng.uniform(0.1, 0.9), rng.integers(1, 21), 2
            y = 0.5 if task == tasks - 1 else 0.9 - (x - 0.5) ** 2 - 0.01 * leaf
            kinds = [rng.choice(["True", "False"]), rng.choice(["gini", "entropy"])]
            fill = rng.choice(["mean", "median", "most_frequent"])
            text.append(f"{kinds[0]},{kinds[1]},{x},{leaf},{split},{fill},{y},{task}")
    path = folder / "openml_flow6969_random_forest.arff.gz"
    plain = path.with_suffix("")
    plain.write_text("\n".join(text))
    path.write_bytes(gzip.compress(plain.read_bytes()))
    return path


METHODS = {
    "ablr": ablr_methods.ablr,
    "warm_context": partial(ablr_methods.warm, context=True),
    "gp_stacked": ablr_methods.gp_stacked,
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_functions_of_the_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is remembered, and whatever their order was."""
    monkeypatch.setattr(ablr_methods, "_FIRST_STEPS", 10)
    problem = QuadraticTasks(4).leave_out(1, 5)
    X = problem.starts(0)
    points = []
    for remembered in (False, False, True):
        if not remembered:
            ablr_methods._memory.clear()
        torch.manual_seed(5)
        points.append(METHODS[name](problem, X, -problem(X)[:, None], 5))
    assert torch.equal(points[0], points[1]) and torch.equal(points[0], points[2])
    assert problem.space.feasible(points[0].reshape(1, -1)).all()
    assert not (points[0] == X).all(-1).any()


def test_quadratics_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tasks", "1", "--seeds", "1", "--budget", "5", "--processes", "0"]
    arguments += ["--methods", "warm", "gp", "random", "--out", str(tmp_path)]
    quadratics.main(arguments)
    shown = capsys.readouterr().out
    assert "Evaluations to a gap of 0.01" in shown and "1 runs on 1 tasks" in shown
    (row,) = [line.split("|") for line in shown.splitlines() if "| warm " in line]
    # with 29 tasks known, three values say which quadratic it is
    assert float(row[2]) <= 4.5 and "gp" in row[5] and "random" in row[5]
    assert complete_runs(tmp_path, 5, "quadratic-*") == 3


def test_forests_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablr_methods, "_FIRST_STEPS", 10)
    path = forest_file(tmp_path)
    known = random_forest_tables(path)
    assert sorted(forests.held_out(known)) == ["0", "1", "2"]  # 3 is constant
    assert forests.held_out(known, development=True) == []
    out = tmp_path / "out"
    arguments = ["--data", str(tmp_path), "--seeds", "1", "--budget", "6"]
    arguments += ["--processes", "0", "--out", str(out), "--tasks", "2"]
    forests.main([*arguments, "--figures", str(tmp_path / "figures")])
    assert "2 runs on 2 data sets" in capsys.readouterr().out
    numbers = json.loads((tmp_path / "figures/ablr_forests.json").read_text())
    assert numbers["methods"].keys() == forests.METHODS.keys()
    assert len(numbers["methods"]["warm"]["ranks"]) == 6
    assert set(numbers["warm_against"]) == {"gp", "ablr", "random"}
    assert complete_runs(out, 6) == 2 * len(forests.METHODS)
    forests.main([*arguments, "--methods", "earlier", "without"])
    assert complete_runs(out, 6) == 2 * len(forests.METHODS) + 4
    for records in map(read_records, out.glob("*/*/*.jsonl")):
        assert len({str(r["x"]) for r in records}) == 6  # no row twice
        assert not any("error" in record for record in records)
    with pytest.raises(FileNotFoundError, match="tst_svm"):
        forests.main(["--data", str(tmp_path), "--table", "svm"])


def test_signals_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(ablr_methods, "_FIRST_STEPS", 10)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 3))
    lines = [f"{1 if x[0] * x[1] > 0 else -1} 1:{x[0]} 2:{x[1]} 3:{x[2]}" for x in rows]
    (tmp_path / "sonar_scale").write_text("\n".join(lines))
    arguments = ["--data", str(tmp_path), "--datasets", "sonar"]
    arguments += ["--out", str(tmp_path / "tables"), "--rows"]
    network_tables.main([*arguments, "5"])
    table = tmp_path / "tables/sonar.jsonl"
    first = table.read_text()
    table.write_text(first + '{"layers": 1, "un')  # killed here
    network_tables.main([*arguments, "12"])  # goes on
    assert table.read_text().startswith(first)
    problem = network_tables.NetworkTable(table)
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    assert len(problem.candidates) == len(lines) == 12
    for line in lines:
        x = [line[name] for name in problem.space.names]
        expected = [line["validation"], line["training"], np.log(line["cpu_s"])]
        X = torch.tensor([x], dtype=torch.double)
        assert problem.signals(X)[0].tolist() == expected
        assert float(problem(X)) == 1 - line["validation"]
    with pytest.raises(FileNotFoundError, match="australian"):
        network_tables.build(tmp_path, "australian", tmp_path / "x.jsonl")
    arguments = ["--tables", str(table.parent), "--datasets", "sonar", "w8a"]
    arguments += ["--seeds", "2", "--budget", "4", "--processes", "0"]
    arguments += ["--out", str(tmp_path / "out")]
    signals.main(arguments)
    shown, errors = capsys.readouterr()
    assert "w8a is left out" in errors and "in 2 pairs" in shown
    assert complete_runs(tmp_path / "out", 4, "sonar") == 2 * len(signals.METHODS)


def test_what_pairs_say() -> None:
    values = {"pa0": [3.0, 1.0, 2.0], "pb0": [2.0, 2.0, 1.0], "pa1": [3.0] * 3}
    values |= {"pb1": [3.0, 2.0, 0.0], "qa0": [1.0, 1.0, 0.0], "qb0": [1.0, 0.0, 0.0]}
    values["qa1"] = [1.0, 1.0, 0.0]  # without a partner
    runs = [Run(*k[:2], int(k[2]), np.array(v), 0.0, 0, 0.0) for k, v in values.items()]
    paired = pair(runs, ["a", "b"], 3)
    assert paired.problems == ["p", "p", "q"]
    assert paired.traces[0].tolist() == [[3, 1, 1], [2, 2, 1]]
    assert paired.by_problem(paired.traces[:, 0, -1]).tolist() == [2.0, 0.0]
    assert evaluations_to(paired.traces, 1.0).tolist() == [[2, 3], [4, 3], [1, 1]]
    ranks = mean_rank_curve(paired.traces)
    np.testing.assert_allclose(ranks[0], [(2 + 1.5 + 1.5) / 3, 5 / 3, 5 / 3])
    np.testing.assert_allclose(ranks.sum(0), 3.0)
    with pytest.raises(ValueError, match="with 4 values"):
        pair(runs, ["a", "b"], 4)
    ones = np.ones(6)
    assert one_sided(ones, ones + 1e-15) == 1.0
    assert one_sided(ones, ones + np.arange(1, 7)) == pytest.approx(1 / 64)
    assert one_sided(ones + np.arange(1, 7), ones) == pytest.approx(1.0)
