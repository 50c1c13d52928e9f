"""The log of a study: kills, damage, other studies, other processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from ConfigSpace import Categorical, ConfigurationSpace, EqualsCondition, Float, Integer

from botorch_structured import Study
from botorch_structured.spaces import SearchSpace
from botorch_structured.study.log import StudyLog

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def make_space() -> SearchSpace:
    cs = ConfigurationSpace()
    learner = Categorical("learner", ["svm", "neighbours"])
    C, k = Float("C", (1e-3, 1e3), log=True), Integer("k", (1, 50))
    sizes = Categorical("sizes", [(8,), (16, 16)])  # text in the log
    cs.add(learner, C, k, sizes)
    cs.add(EqualsCondition(C, learner, "svm"))
    cs.add(EqualsCondition(k, learner, "neighbours"))
    return SearchSpace.from_configspace(cs)


SPACE = make_space()
N = 8  # evaluations of which 6 are suggested
# Processes of which nobody has used this one's threads, and which are there at once.
FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["botorch_structured.study"])


def value(config: dict[str, Any]) -> float:
    error = torch.tensor(config.get("C", 1.0)).log10().item() - 1.0
    return error**2 + 0.01 * config.get("k", 20) + 0.1 * len(config["sizes"])


def work(study: Study, n: int) -> Study:
    while len(study.trials) < n:
        (config,) = study.ask()
        failed = config.get("k", 0) > 45
        study.tell(config, None if failed else value(config), cost=1.5)
    return study


def seen(study: Study) -> list[Any]:
    return [(t.config, t.values, t.cost) for t in study.trials]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    path = tmp_path_factory.mktemp("log") / "new" / "study.jsonl"
    work(Study(SPACE, log=path, seed=3), N)
    return path.read_bytes().splitlines(keepends=True)


def test_goes_on_where_it_was(lines: list[bytes], tmp_path: Path) -> None:
    whole = work(Study(SPACE, seed=3), N)
    for stop in (2, 7, 14):
        path = tmp_path / f"{stop}.jsonl"
        path.write_bytes(b"".join(lines[:stop]))
        study = Study(make_space(), log=path)
        assert study.seed == 3 and len(study.trials) == (stop - 1) // 2
        assert len(study.pending) == (stop - 1) % 2
        assert seen(work(study, N)) == seen(whole)
        assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize(("stop", "cut"), [(1, 60), (13, 1), (14, 9), (16, 30)])
def test_a_line_cut_by_a_kill_is_dropped(
    lines: list[bytes], tmp_path: Path, stop: int, cut: int
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(lines[:stop])[:-cut])
    work(Study(SPACE, log=path, seed=3), N)
    assert path.read_bytes() == b"".join(lines)


def test_blank_lines_are_skipped(lines: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    path.write_bytes(b"\n" + b"\n \r\n".join([*lines, b"  "]))
    assert len(Study(SPACE, log=path).trials) == sum(
        b'"told"' in line for line in lines
    )


def test_logs_of_earlier_versions_are_read(lines: list[bytes], tmp_path: Path) -> None:
    """They had more of what was asked for: its points, and whether models were."""
    path = tmp_path / "log.jsonl"
    more = b', "x": [[0.0, 0.0, 1.0, 25.5]], "fitted": true}\n'
    old = [x[:-2] + more if x.startswith(b'{"asked"') else x for x in lines]
    path.write_bytes(b"".join(old[:-1]))
    study = Study(SPACE, log=path)
    assert len(study.pending) == 1
    assert seen(work(study, N)) == seen(work(Study(SPACE, seed=3), N))


def test_fits_that_start_from_earlier_ones_are_repeated(tmp_path: Path) -> None:
    """Above 20 evaluations; from another one at 30."""
    path = tmp_path / "log.jsonl"
    configs = SPACE.decode(SPACE.sample(25, seed=0))
    whole = Study(SPACE, log=path, seed=3)
    whole.tell_many(configs, [value(c) for c in configs])
    work(whole, 32)
    data = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    path.write_bytes(b"".join(data[: 26 + 7]))
    assert seen(work(Study(SPACE, log=path), 32)) == seen(whole)
    assert path.read_bytes() == b"".join(data)


def test_settings_of_another_study_are_refused(
    lines: list[bytes], tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(lines))
    other = ConfigurationSpace()
    other.add(Float("C", (1e-3, 1e2), log=True))
    for arguments, message in (
        ({"seed": 4}, "seed: expected 4 as in this study, got 3"),
        ({"objectives": "maximize"}, r'objectives: expected \["value", "maximize"\]'),
        ({"constraints": ["m <= 1"]}, r'constraints: expected \["m <= 1.0"\]'),
        ({"costs": True}, "costs: expected true as in this study, got false"),
        (
            {"space": other},
            r'space: expected \["C", "Float.* as .* got \["learner", "Categ',
        ),
    ):
        with pytest.raises(ValueError, match=f"log.jsonl line 1: {message}"):
            Study(**({"space": SPACE} | arguments), log=path)
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
    ("number", "old", "new", "message"),
    [
        (1, '"study": 1', '"study": 2', "study: expected 1, the version of the format"),
        (4, '{"asked', '{"asked', "expected a JSON object, got"),
        (4, '"sizes": "', '"sizes": "9', "asked: 'sizes': expected one of"),
        (5, '"told"', '"said"', "expected told, values, cost, error, got"),
        (5, '"value": ', '"loss": ', "value: expected numbers for"),
        (5, '"value": ', '"value": "', "expected a JSON object, got"),
        (5, '"cost": 1.5', '"cost": -1.5', "cost: expected a positive number"),
        (5, '"error": null', '"error": 5', "error: expected a text beside"),
        (5, '"error": null', '"error": "no"', "error: expected a text beside"),
    ],
)
def test_a_damaged_line_is_named(
    lines: list[bytes],
    tmp_path: Path,
    number: int,
    old: str,
    new: str,
    message: str,
) -> None:
    changed = [line.decode() for line in lines]
    assert old in changed[number - 1]
    changed[number - 1] = changed[number - 1].replace(old, new, 1)
    if old == new:
        changed[number - 1] = changed[number - 1][5:]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(changed))
    with pytest.raises(ValueError, match=f"log.jsonl line {number}: {message}"):
        Study(SPACE, log=path)
    assert path.read_text() == "".join(changed)


@pytest.mark.parametrize(
    "content", ["a,b\n1,2\n", "my notes", "[1]\n", "\n", "{", '{"a": 1}', '{"stu']
)
def test_other_files_are_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match="notes.txt line 1: expected"):
        Study(SPACE, log=path)
    assert path.read_text() == content
    with pytest.raises(ValueError, match="log: expected a file, got the folder"):
        Study(SPACE, log=tmp_path)


def test_what_others_add_is_kept(lines: list[bytes], tmp_path: Path) -> None:
    """While the study works, at the end of its log, and in the place of it."""
    path = tmp_path / "log.jsonl"
    study = Study(SPACE, log=path, seed=3)
    with path.open("ab") as file:
        file.write(lines[4][:-1])  # another trial without its end
    work(study, 1)
    del study
    assert path.read_bytes() == b"".join([lines[0], lines[4], *lines[1:3]])
    assert len(Study(SPACE, log=path).trials) == 2
    before = path.read_bytes()
    for note in (b"note", b'{"note'):
        path.write_bytes(before + note)
        with pytest.raises(
            ValueError, match="line 5: expected a JSON object, got .*no"
        ):
            Study(SPACE, log=path)
        assert path.read_bytes() == before + note
    path.write_bytes(before)
    study = Study(SPACE, log=path)
    (config,) = study.ask()
    for change in (lambda: path.write_bytes(before), path.unlink):
        change()
        with pytest.raises(ValueError, match="log: expected .* as this study left it"):
            study.tell(config, 1.0)
    path.write_bytes(before + b"\n" * 999)
    with pytest.raises(ValueError, match="log: expected .* as this study left it"):
        study.tell(config, 1.0)
    assert study.pending == [config]


def _open(path: Path, message: Any) -> None:
    try:
        Study(SPACE, log=path)
        message.put("opened")
    except ValueError as error:
        message.put(str(error))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    study = Study(SPACE, log=path, seed=0)
    message = FRESH.Queue()
    for expected in ("log: expected a file that no other process works", "opened"):
        other = FRESH.Process(target=_open, args=(path, message))
        other.start()
        assert message.get(timeout=60).startswith(expected)
        other.join()
        if expected != "opened":
            study.tell(study.ask()[0], 1.0)  # works as before
            del study


def test_a_forked_process_does_not_keep_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    study = Study(SPACE, log=path, seed=0)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            study.ask()
        except ValueError:
            os.write(writing, b"1")
        time.sleep(60)
        os._exit(0)
    try:
        assert os.read(reading, 1) == b"1"
        study._log.close()  # type: ignore[union-attr]  # as at the end of this process
        assert Study(SPACE, log=path).seed == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_study_that_was_opened_last_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = Study(SPACE, log=path, seed=0)
    second = Study(SPACE, log=path)
    with pytest.raises(ValueError, match="log: expected the study that opened"):
        first.ask()
    second.ask()
    with pytest.raises(Exception, match="give that path to a new Study"):
        copy.deepcopy(second)


@pytest.mark.skipif(resource is None, reason="files without a limit")
def test_a_disk_with_room_for_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    study = Study(SPACE, log=path, seed=0)
    (config,) = study.ask()
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            study.tell(config, 1.0, cost=1.0, error=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert not study.trials and study.pending == [config]
    study.tell(config, None)  # a shorter line than the one that failed
    del study
    assert [t.value for t in Study(SPACE, log=path).trials] == [None]


def test_stopped_by_hand_when_the_line_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question is in the log, and asked again."""
    path, append = tmp_path / "log.jsonl", StudyLog.append
    study = Study(SPACE, log=path, seed=0)

    def late(*args: Any) -> None:
        append(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StudyLog, "append", late)
        study.ask(2)
    configs = study.ask(2)
    study.tell(configs[0], 1.0)
    again = Study(SPACE, log=path)
    assert again.pending == configs[1:] and [t.value for t in again.trials] == [1.0]


@pytest.mark.usefixtures("random_points")
def test_threads_share_a_study(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    study = Study(SPACE, log=path, seed=0)

    def work(value: float) -> None:
        for _ in range(3):
            (config,) = study.ask()
            study.tell(config, value)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    told = [trial.config for trial in study.trials]
    assert len(told) == 12 and all(told.count(config) == 1 for config in told)
    again = Study(SPACE, log=path)
    assert [t.config for t in again.trials] == told


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize(
    "space",
    [
        # the middle of a logarithmic scale is 1, whose logarithm is 0 or nearly so
        [{"l": [f"{i}"], f"C{i}": (1e-3, 1e3, "log")} for i in range(5)],
        # what two dictionaries have is one point, that of the first
        [
            {"kernel": ["rbf", "poly"], "C": (1e-3, 1e3, "log"), "d": (1, 3)},
            {"kernel": ["linear", "rbf"], "C": (1e-3, 1e3, "log"), "d": (1, 3)},
        ],
        [{"x": (0.0, 1.0)}, {"x": (0.5, 2.0)}],
    ],
)
def test_every_suggestion_comes_back(space: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    study = Study(space, seed=0, starts=[], log=log)
    for _ in range(9):
        (config,) = study.ask()
        study.tell(config, sum(v for v in config.values() if isinstance(v, float)))
    study.ask()
    before = study.trials, study.pending
    again = Study(space, starts=[], log=log)
    assert (again.trials, again.pending) == before


class Named:
    """What has no text of its own but its class."""

    def __repr__(self) -> str:
        return "Named"


@pytest.mark.parametrize(
    "choices",
    [
        [object(), object()],
        [(1, 2), "(1, 2)"],
        [Named(), Named()],
    ],
)
def test_choices_that_are_not_read_as_themselves(tmp_path: Path, choices: Any) -> None:
    space = {"a": choices, "x": (0.0, 1.0)}
    with pytest.raises(ValueError, match="choices that a file can hold.* 'a', "):
        Study(space, log=tmp_path / "log.jsonl")
    assert not list(tmp_path.iterdir())
    assert Study(space).ask()  # without a file they will do


def test_choices_that_are_read_as_themselves(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    choices = [1, True, "1", 1.5, None, (1, 2), "(1,2)", b"x", Named()]
    fixed = (None, {"k": [1]})
    space = {"a": choices, "b": [fixed], "c": [float("nan"), 2.0]}
    study = Study(space, log=path, seed=0)
    study.tell_many(
        [{"a": a, "b": fixed, "c": c} for a in choices for c in space["c"]],
        list(range(18)),
    )
    again = Study(space, log=path)
    assert [repr(t) for t in again.trials] == [repr(t) for t in study.trials]


def test_lost_configurations_are_asked_for_again(tmp_path: Path) -> None:
    """Until they are told."""
    path = tmp_path / "log.jsonl"
    asked = Study(SPACE, log=path, seed=0).ask(3)
    study = Study(SPACE, log=path)
    study.tell(asked[1], 1.0)
    assert study.ask(2) == [asked[0], asked[2]]


def test_a_line_that_is_no_text_is_named(lines: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join([*lines[:3], b"\xff" + lines[3], *lines[4:]]))
    with pytest.raises(ValueError, match="log.jsonl line 4: expected"):
        Study(SPACE, log=path)
