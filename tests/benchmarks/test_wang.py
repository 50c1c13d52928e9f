from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import wilcoxon
from toy_benchmark import complete_runs

from benchmarks.harness import read_records
from benchmarks.monotone_methods import METHODS
from benchmarks.quality import wang
from benchmarks.summary import Run
from botorch_structured.test_functions import MonotoneMixture1D

_MODELS = [name for name in METHODS if name != "random"]


@pytest.mark.parametrize("name", _MODELS)
def test_methods_suggest_new_points_of_the_space(name: str) -> None:
    problem = MonotoneMixture1D()
    X = problem.starts(0)
    points = []
    for _ in range(2):
        torch.manual_seed(5)
        points.append(METHODS[name](problem, X, -problem(X)[:, None], 5).reshape(1, -1))
    assert torch.equal(*points)  # nothing but the seeds decides
    assert problem.space.feasible(points[0]).all()
    assert (points[0] - X).abs().min() > 1e-3


def test_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--problems", "mixture", "elastic_net", "forest", "--seeds", "2"]
    arguments += ["--methods", "decomposed", "standard", "random", "--budget", "5"]
    arguments += ["--processes", "0", "--out", str(tmp_path / "out")]
    arguments += ["--reference", "monotone"]
    wang.main(arguments)
    shown = capsys.readouterr()
    assert "forest is left out" in shown.err
    assert "## mixture" in shown.out and "## elastic_net" in shown.out
    assert complete_runs(tmp_path / "out", 5) == 12
    for records in map(read_records, (tmp_path / "out").glob("*/*/*.jsonl")):
        assert sum("start" in r for r in records) == 4
    before = sorted((tmp_path / "out").rglob("*"))
    wang.main([*arguments, "--seeds", "3", "--report"])  # of what is there
    assert capsys.readouterr().out.strip() == shown.out.split(str(tmp_path))[0].strip()
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_tables_test_areas_and_correct_for_all_of_them() -> None:
    rng = np.random.default_rng(0)
    shifts = {"monotone_paper": 0.0, "decomposed_paper": 0.02, "standard_paper": 0.0}
    runs = [
        Run(problem, method, seed, 0.2 + shift + 0.01 * rng.random(12), None, 0, 0.0)
        for problem in ("forest", "network")
        for method, shift in shifts.items()
        for seed in range(8)
    ]
    forest, network = wang.tables(runs, 12, "monotone_paper").split("## network")
    mine, other = (
        np.array([r.trace().mean() for r in runs if r.method == m][:8])
        for m in ("monotone_paper", "decomposed_paper")
    )
    smaller = wilcoxon(mine - other, alternative="less").pvalue
    larger = wilcoxon(mine - other, alternative="greater").pvalue
    (line,) = [row for row in forest.splitlines() if "| decomposed_paper" in row]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[2] == f"{other.mean():.5g}"
    # of two tests, the smaller p counts twice
    assert cells[-3:] == [f"{p:.2g}" for p in (smaller, 2 * smaller, larger)]
    assert "e-" not in network and "| 0.0" not in network.split("p (Holm)")[1]
