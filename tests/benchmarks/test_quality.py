from pathlib import Path

import numpy as np
import pytest
import torch
from toy_benchmark import complete_runs

from benchmarks.harness import read_records
from benchmarks.methods import BENCHMARKED
from benchmarks.quality import levesque, treed
from botorch_structured.test_functions import JenattonTree


@pytest.mark.parametrize("name", BENCHMARKED)
@pytest.mark.parametrize("chain", [False, True])
def test_methods_suggest_new_points_of_the_space(name: str, chain: bool) -> None:
    problem = JenattonTree(4, shared=True, balanced=not chain)
    X = problem.starts(0)
    for step in range(2):
        torch.manual_seed(step)
        x = BENCHMARKED[name](problem, X, -problem(X).unsqueeze(-1), step)
        x = x.reshape(1, -1)
        assert problem.space.feasible(x).all()
        assert not (problem.tree.impute(x) == problem.tree.impute(X)).all(-1).any()
        X = torch.cat([X, x])


def test_levesque_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    arguments = ["--datasets", "wine", "pima", "--seeds", "1", "--first-seed", "0"]
    levesque.main(
        [*arguments, "--processes", "0", "--out", str(tmp_path), "--budget", "11"]
    )
    shown, errors = capsys.readouterr()
    assert "mean rank" in shown and "pima is left out" in errors
    assert complete_runs(tmp_path, 11) == len(levesque.METHODS)
    records = map(read_records, (tmp_path / "wine").glob("*/0.jsonl"))
    runs = [str([r["x"] for r in run]) for run in records]
    assert len(set(runs)) == len(runs)


def test_treed_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "data" / "walker_lake_470.csv"
    table.parent.mkdir()
    rows = [f"{x},{y},{(x - 3) ** 2 + y}" for x in range(8) for y in range(8)]
    table.write_text("\n".join(["X,Y,V", *rows]))
    out = tmp_path / "out"
    arguments = ["--problems", "walker", "lda", "--data", str(table.parent)]
    arguments += ["--seeds", "1", "--processes", "0", "--out", str(out)]
    treed.main([*arguments, "--budget", "7"])
    shown, errors = capsys.readouterr()
    assert "## walker" in shown and "lda is left out" in errors
    assert "| larger, p < 0.05 |" in shown
    assert complete_runs(out, 7, "walker") == len(treed.METHODS)
    # what is there is reported, nothing is run
    (out / "walker" / "htbo" / "100.jsonl").unlink()
    treed.main([*arguments, "--budget", "7", "--report"])
    assert not (out / "walker" / "htbo" / "100.jsonl").exists()
    assert "## walker" in capsys.readouterr().out


def test_treed_tests_are_paired() -> None:
    """Against hand-made regrets: who is better, by how much, and how surely."""
    curve = np.linspace(1.0, 0.5, 40)
    other = {s: curve + 0.01 * s for s in range(10)}
    mine = {s: v - 0.2 - 0.001 * s for s, v in other.items()}
    mine[3] = np.append(mine[3], 0.0)  # ran longer
    mine[99] = curve + 100.0  # has no pair
    area, p = treed.area_test(mine, other, 40) or (0.0, 1.0)
    assert area == pytest.approx(-0.2 - 0.0045)
    assert p == pytest.approx(2 / 2**10)  # all ten signs are the same
    assert treed.area_test(other, other, 40) == (0.0, 1.0)
    assert treed.area_test(mine, {}, 40) is None
    good, bad = np.full(40, 1e-3), np.full(40, 1.0)
    share = treed.share_test(
        {s: good if s < 8 else bad for s in range(10)},
        {s: good if s < 2 else bad for s in range(10)},
        at=40,
    )
    assert share == pytest.approx((0.6, 2 / 2**6))
    found = {(p, "htbo"): mine for p in ("rkhs", "exp2d", "lda")}
    found |= {(p, "bo"): other for p, _ in found}
    shown = treed.overall_table(found, 50).splitlines()[-1]
    cells = [cell.strip() for cell in shown.split("|")[1:-1]]
    assert cells == ["htbo", "bo", "exp2d, lda, rkhs", "", "", ""]
