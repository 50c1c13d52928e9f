import gzip
from pathlib import Path

import pytest
import torch
from toy_benchmark import complete_runs

from benchmarks.methods import TREED
from benchmarks.quality import forests, treed, wang
from benchmarks.quality.several_objectives import share_of_front


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
    assert complete_runs(out, 7, "walker") == len(TREED)
    # what is there is reported, nothing is run
    (out / "walker" / "htbo" / "100.jsonl").unlink()
    treed.main([*arguments, "--budget", "7", "--report"])
    assert not (out / "walker" / "htbo" / "100.jsonl").exists()
    assert "## walker" in capsys.readouterr().out


def test_wang_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--methods", "standard", "random", "--budget", "5", "--seeds", "1"]
    arguments += ["--processes", "0", "--out", str(tmp_path)]
    wang.main([*arguments, "--reference", "monotone"])
    shown = capsys.readouterr().out
    assert "## mixture" in shown and "## elastic_net" in shown
    assert complete_runs(tmp_path, 5) == 4


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


def test_forests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
