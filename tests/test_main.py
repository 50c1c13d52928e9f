from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import botorch_structured
from botorch_structured import __main__ as command
from botorch_structured.demo import (
    METHODS,
    MODEL,
    RANDOM,
    DemoComparison,
    best_trial,
    code,
    learner_table,
    picture,
    summary,
)
from botorch_structured.suggest import suggest
from botorch_structured.test_functions import ScikitLearnCASH
from botorch_structured.test_functions.cash import (
    CallTimeout,
    Evaluation,
    KillableWorker,
)

OPTIONS = ["--dataset", "iris", "--budget", "2", "--seed", "3"]


def records(folder: Path) -> list[tuple[object, ...]]:
    """What was told, in both logs, without the times."""
    lines = [
        json.loads(line)
        for name in METHODS.values()
        for line in (folder / name).read_text().splitlines()[1:]
    ]
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


def test_what_it_leaves_behind(finished: Path) -> None:
    files = (
        "settings.json evaluations.jsonl random_search.jsonl best_model.py result.png"
    )
    assert {p.name for p in finished.iterdir()} == set(files.split())
    assert len(records(finished)) == 2 * (9 + 2)


def test_what_it_prints(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished study is reported again, without an evaluation."""
    before = records(finished)
    assert command.main(["--resume", "--out", str(finished)]) == 0
    assert records(finished) == before
    shown = capsys.readouterr()
    for part in ("Going on after 13", "expected gain", "<- best", "random search"):
        assert part in shown.out
    assert (finished / "best_model.py").read_text() in shown.out
    assert "11/11" in shown.err and "best error" in shown.err
    assert "more than --budget" not in shown.out


def test_a_smaller_budget_is_said(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(finished, tmp_path / "out")
    assert command.main(["--resume", "--budget", "1", "--out", str(folder)]) == 0
    assert "2 choices of one method are there, more than" in capsys.readouterr().out
    assert records(folder) == records(finished)


def test_killed_and_resumed(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    log = folder / "evaluations.jsonl"
    package = Path(botorch_structured.__file__).parent.parent
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(
        [sys.executable, "-m", "botorch_structured", *OPTIONS, "--out", str(folder)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package)},
        **quiet,
    )
    limit = time.monotonic() + 300
    while not log.exists() or log.read_bytes().count(b"\n") < 21:
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = log.read_bytes()
    assert command.main(["--resume", "--out", str(folder)]) == 0
    assert log.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    assert records(folder) == records(finished)


def test_nothing_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No learner answers: no code to paste, and no crash."""

    def late(worker: object, message: object, timeout: float) -> None:
        raise CallTimeout("no answer")

    # Real ones are killed in test_cash; here each would start a process to kill it.
    monkeypatch.setattr(KillableWorker, "call", late)
    folder = tmp_path / "out"
    options = [*OPTIONS, "--budget", "1", "--out", str(folder)]
    assert command.main(options) == 0
    assert all(values is None and error for _, values, error in records(folder))
    shown = capsys.readouterr().out
    assert "nothing worked" in shown and "11 of 11 evaluations failed" in shown
    assert "<- best" not in shown and "import" not in shown
    assert not (folder / "best_model.py").exists()


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default each study has a new one, and the latest is the one to go on with."""
    monkeypatch.chdir(tmp_path)
    ran: list[Path] = []
    monkeypatch.setattr(command, "_run", lambda _, settings, folder: ran.append(folder))
    assert command.main([]) == command.main([]) == 0
    assert command.main(["--resume"]) == 0
    names = [path.name for path in ran]
    assert names[:2] == ["breast_cancer-seed0", "breast_cancer-seed0-2"]
    assert names[2] in names[:2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "{finished}"], "holds a study already: add --resume"),
        (["--resume", "--out", "nowhere"], "--resume: expected settings.json in"),
        (["--resume"], "settings.json in the folders of botorch_structured_runs"),
        (["--resume", "--seed", "4", "--out", "{finished}"], "has seed 3, not 4"),
        (["--dataset", "mnist"], "invalid choice: 'mnist'"),
        (["--budget", "0"], "--budget: expected at least 1, got 0"),
        (["--seed", "-1"], "--seed: expected at least 0, got -1"),
        (
            ["--out", "{finished}/best_model.py/below"],
            "Not a directory: '{finished}/best_model.py/below'",
        ),
        (["--timeout", "0"], "--timeout: expected at least 0.001, got 0.0"),
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


@pytest.mark.parametrize(
    ("name", "line", "old", "new", "message"),
    [
        (
            "settings.json",
            1,
            "seed",
            "sead",
            "expected an object with dataset, seed, b",
        ),
        ("settings.json", 1, "{", "", "expected an object with dataset, seed, b"),
        ("evaluations.jsonl", 5, '"error": null', '"error": 1', "error: expected a t"),
        ("random_search.jsonl", 7, '"told"', '"x"', "expected told, values, cost, e"),
    ],
)
def test_a_damaged_file_is_refused(
    name: str,
    line: int,
    old: str,
    new: str,
    message: str,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in finished.glob("*.json*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = (finished / name).read_text().splitlines(keepends=True)
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    (tmp_path / name).write_text("".join(lines))
    shown = refused(["--resume", "--out", str(tmp_path)], capsys)
    where = name if line == 1 else f"{name} line {line}"
    assert f"{where}: {message}" in shown
    assert (tmp_path / name).read_text() == "".join(lines)


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

    monkeypatch.setattr(command, "_run", stop)
    assert command.main(["--out", str(tmp_path / "out")]) == 130
    assert f"--resume --out {tmp_path / 'out'}" in capsys.readouterr().err


def make(folder: Path | None = None, budget: int = 3) -> DemoComparison:
    return DemoComparison(ScikitLearnCASH("iris", seed=1), budget, 1, folder)


def finish(comparison: DemoComparison) -> DemoComparison:
    for method in METHODS:
        comparison.run(method)
    return comparison


@pytest.fixture(scope="module")
def compared() -> DemoComparison:
    return finish(make())


def test_one_start_a_learner_then_the_budget_of_each_method(
    compared: DemoComparison,
) -> None:
    starts = [t.config for t in compared.trials(MODEL)[:9]]
    assert len({config["learner"] for config in starts}) == 9
    assert starts == [t.config for t in compared.trials(RANDOM)[:9]]
    for method in METHODS:
        X, errors = compared.data(method)
        assert X.shape == (12, compared.space.dim) and errors.shape == (12, 1)
        assert len(torch.unique(X, dim=0)) == 12  # nothing twice


def test_the_model_is_the_default_loop(compared: DemoComparison) -> None:
    X, errors = compared.data(MODEL)
    for n in range(9, 12):
        x = suggest(compared.space, X[:n], -errors[:n], seed=10_000 + n).X
        assert torch.equal(x, X[n : n + 1])


def test_the_same_error_in_another_order_of_summation_is_no_improvement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is printed as the first best is where the picture drops last."""
    comparison = make(budget=1)
    values = iter([0.4, 0.1 + 0.2, 0.3, *[0.5] * 8])
    assert 0.1 + 0.2 > 0.3
    monkeypatch.setattr(
        comparison.problem,
        "evaluate",
        lambda c: Evaluation(next(values), None, 0.1, "ok"),
    )
    comparison.run(MODEL)
    assert "found at evaluation 2 of 10" in summary(comparison)


def test_report_says_what_was_found(compared: DemoComparison) -> None:
    best = best_trial(compared.trials(MODEL))
    assert best is not None
    table = learner_table(compared)
    assert table.count("<- best") == 1
    row = next(line for line in table.splitlines() if "<- best" in line)
    learner, tried, error, improvement, *_ = row.split()
    assert learner == best.config["learner"]
    own = [t for t in compared.trials(MODEL) if t.config["learner"] == learner]
    assert int(tried) == len(own)
    assert float(error) == pytest.approx(best.value, abs=5e-5)
    assert float(improvement) >= 0
    assert f"error {best.value:.4f}" in summary(compared)


@pytest.mark.parametrize("dataset", ["iris", "moons"])
def test_the_code_to_paste_gives_the_same_error(
    capsys: pytest.CaptureFixture[str], dataset: str
) -> None:
    problem = ScikitLearnCASH(dataset, seed=2)
    comparison = DemoComparison(problem, 1, seed=2)
    comparison.run(MODEL)
    exec(code(comparison, dataset), {})
    _, best = comparison.studies[MODEL].best
    assert capsys.readouterr().out == f"error {best:.4f}\n"


def test_picture(compared: DemoComparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = picture([compared, compared], tmp_path / "result.png")
    assert (tmp_path / "result.png").read_bytes()[:4] == b"\x89PNG"
    traces, tree = figure.axes
    low, high = traces.get_ylim()
    final = min(float(compared.data(method)[1].min()) for method in METHODS)
    assert 0 <= low <= final < high and math.isfinite(high)
    assert "median of 2" in traces.get_legend().get_texts()[0].get_text()
    assert {"svm", "knn"} <= {t.get_text() for t in tree.texts}
    # the curve drops at the evaluation that the summary names
    best = best_trial(compared.trials(MODEL))
    steps, values = traces.get_lines()[0].get_data()
    assert best is not None and steps[np.argmin(values)] == best.number + 1
