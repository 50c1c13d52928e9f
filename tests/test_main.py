from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from botorch_structured import Study
from botorch_structured import __main__ as command
from botorch_structured.test_functions import ScikitLearnCASH
from botorch_structured.test_functions.cash import Evaluation

OPTIONS = ["--dataset", "iris", "--budget", "2", "--seed", "3"]
LOG = "evaluations.jsonl"


def records(folder: Path) -> list[tuple[object, ...]]:
    """The trials in the log, without the times."""
    lines = [json.loads(line) for line in (folder / LOG).read_text().splitlines()[1:]]
    return [(e["told"], e["values"], e["error"]) for e in lines if "told" in e]


def refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        command.main(options)
    assert stopped.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "out"
    assert command.main([*OPTIONS, "--out", str(folder)]) == 0
    return folder


def test_files_that_it_leaves_behind(finished: Path) -> None:
    assert {p.name for p in finished.iterdir()} == {LOG, "best_model.py", "result.png"}
    assert (finished / "result.png").read_bytes()[:4] == b"\x89PNG"
    assert len(records(finished)) == 9 + 2


def test_the_report(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished study is reported again, without an evaluation."""
    before = records(finished)
    assert command.main([*OPTIONS, "--out", str(finished)]) == 0
    assert records(finished) == before
    shown = capsys.readouterr()
    assert "Going on after 11" in shown.out
    assert (finished / "best_model.py").read_text() in shown.out
    assert "11/11" in shown.err and "best iris error" in shown.err
    (row,) = [line for line in shown.out.splitlines() if "<- best" in line]
    learner, tried, error, *_ = row.split()
    values = [
        (values["iris error"], json.dumps(config).count(f'"{learner}"'))
        for config, values, _ in before
        if values is not None
    ]
    assert float(error) == pytest.approx(min(values)[0], abs=5e-5)
    assert int(tried) == sum(of_learner for _, of_learner in values)


def test_a_larger_budget_goes_on(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "out")
    options = [*OPTIONS, "--budget", "3", "--out", str(folder)]
    assert command.main(options) == 0
    assert records(folder)[:-1] == records(finished)


def test_nothing_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No learner answers: no code to paste, and no crash."""

    monkeypatch.setattr(ScikitLearnCASH, "evaluate", lambda *_: Evaluation(1.0, "no"))
    folder = tmp_path / "out"
    options = [*OPTIONS, "--budget", "1", "--out", str(folder)]
    assert command.main(options) == 0
    assert all(values is None and error for _, values, error in records(folder))
    shown = capsys.readouterr().out
    assert "10 of 10 evaluations failed" in shown
    assert "<- best" not in shown and "import" not in shown
    assert not (folder / "best_model.py").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*OPTIONS, "--seed", "4", "--out", "{finished}"], "seed"),
        (["--seed", "3", "--out", "{finished}"], "breast_cancer error"),
        (["--dataset", "mnist"], "invalid choice: 'mnist'"),
        (["--budget", "0"], "--budget: expected at least 1, got 0"),
        (["--seed", "-1"], "seed: expected an integer"),
        (
            ["--out", "{finished}/best_model.py/below"],
            "Not a directory: '{finished}/best_model.py/below'",
        ),
    ],
)
def test_wrong_options(
    options: list[str],
    message: str,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = refused([option.format(finished=finished) for option in options], capsys)
    assert message.format(finished=finished) in shown
    assert list(tmp_path.iterdir()) == []


def test_without_the_extras(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        command.main([])
    assert stopped.value.code == 1
    assert "botorch-structured[demo]" in capsys.readouterr().err


def test_stopped_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", stop)
    assert command.main(["--out", str(tmp_path / "out")]) == 130
    assert f"--out {tmp_path / 'out'}" in capsys.readouterr().err


def test_the_same_error_in_another_order_of_summation_is_no_improvement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = ScikitLearnCASH("iris", seed=1)
    values = iter([0.4, 0.1 + 0.2, 0.3, 0.5])
    assert 0.1 + 0.2 > 0.3
    monkeypatch.setattr(problem, "evaluate", lambda c: Evaluation(next(values), None))
    study = Study(problem.space, seed=0)
    command.run(study, problem, 4)
    assert study.best[0] == study.trials[1].config


@pytest.mark.parametrize("dataset", ["iris", "wine"])
def test_the_code_to_paste_gives_the_same_error(
    capsys: pytest.CaptureFixture[str], dataset: str
) -> None:
    problem = ScikitLearnCASH(dataset, seed=2)
    (config,) = problem.space.decode(problem.starts(2)[:1])
    exec(command.script(problem, dataset, config), {})
    error = problem.evaluate(config).value
    assert capsys.readouterr().out == f"error {error:.4f}\n"
