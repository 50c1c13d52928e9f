"""`StructuredSampler` in studies of Optuna."""

from __future__ import annotations

import logging
import math
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from ConfigSpace import (
    Categorical,
    ConfigurationSpace,
    EqualsCondition,
    Float,
    ForbiddenLessThanRelation,
    Integer,
)
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from botorch_structured.integrations.optuna import StructuredSampler
from botorch_structured.integrations.optuna.trial_space import (
    TrialParameter,
    configurations,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import fit_models

Objective = Callable[[optuna.Trial], Any]


class Counting(StructuredSampler):
    """Notes which parameters were not on a suggested path."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.independent: list[tuple[int, str]] = []

    def _draw(self, study: Any, trial: Any, parameter: TrialParameter) -> Any:
        self.independent.append((trial.number, parameter.name))
        return super()._draw(study, trial, parameter)


def classifier(trial: optuna.Trial) -> float:
    """Its optimum, 0, is at C = 10."""
    learner = trial.suggest_categorical("learner", ["svm", "forest", "neighbours"])
    if learner == "svm":
        return (math.log10(trial.suggest_float("C", 1e-3, 1e3, log=True)) - 1) ** 2
    if learner == "forest":
        depth = trial.suggest_int("depth", 2, 10)
        share = trial.suggest_float("share", 0.1, 0.9, step=0.1)
        return 0.3 + abs(depth - 5) + (share - 0.5) ** 2
    return 0.5 + (trial.suggest_int("k", 1, 50) / 50 - 0.3) ** 2


def tree(trial: optuna.Trial) -> float:
    node = 1
    while node < 4:
        node = 2 * node + trial.suggest_categorical(f"x{node}", [0, 1])
    return 0.1 * node + (trial.suggest_float(f"x{node}", -1, 1) - 0.3) ** 2


def make_study(sampler: Any, **arguments: Any) -> optuna.Study:
    return optuna.create_study(sampler=sampler, **arguments)


def told(study: optuna.Study) -> list[Any]:
    """What the sampler knows of the trials."""
    assert isinstance(study.sampler, StructuredSampler)
    own = study.sampler.study_of(study)
    assert own is not None
    return own.trials


def ended(study: optuna.Study, objective: Objective, n: int) -> optuna.Study:
    study.optimize(objective, n_trials=n, catch=(ZeroDivisionError,))
    return study


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The warnings of the sampler's logger."""
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("optuna.structured")
    logger.addHandler(handler)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield texts
    optuna.logging.set_verbosity(before)
    logger.removeHandler(handler)


def points(study: optuna.Study) -> list[dict[str, Any]]:
    return [trial.params for trial in study.trials]


@pytest.mark.parametrize("objective, branches", [(classifier, 3), (tree, 4)])
def test_paths_are_complete_after_the_start(
    objective: Objective, branches: int
) -> None:
    sampler = Counting(seed=0)
    study = ended(make_study(sampler), objective, 15)
    assert {number for number, _ in sampler.independent} == set(range(branches))
    ends = [tuple(trial.params) for trial in study.trials[:branches]]
    assert len(set(ends)) == branches


def test_maximisation_is_minimisation_of_the_negative() -> None:
    low = ended(make_study(StructuredSampler(seed=0)), classifier, 8)
    study = make_study(StructuredSampler(seed=0), direction="maximize")
    high = ended(study, lambda trial: -classifier(trial), 8)
    assert points(low) == points(high)


def _memory(path: Path) -> BaseStorage:
    return InMemoryStorage()


def _journal(path: Path) -> BaseStorage:
    return JournalStorage(JournalFileBackend(str(path / "journal.log")))


def _sqlite(path: Path) -> BaseStorage:
    return RDBStorage(f"sqlite:///{path / 'study.db'}")


@pytest.mark.parametrize("make", [_journal, _sqlite])
def test_storages_do_not_matter_nor_does_a_new_process(
    make: Callable[[Path], BaseStorage], tmp_path: Path
) -> None:
    expected = ended(make_study(StructuredSampler(seed=3)), classifier, 8)
    for part in (5, 3):
        study = optuna.create_study(
            study_name="one",
            storage=make(tmp_path),
            load_if_exists=True,
            sampler=pickle.loads(pickle.dumps(StructuredSampler(seed=3))),
        )
        ended(study, classifier, part)
    assert [t.params for t in study.trials] == points(expected)


@pytest.mark.parametrize("known", [4, 29])
def test_a_study_that_is_kept_is_as_a_new_one(known: int) -> None:
    """Also where trials end in another order, and above 20, with fits of the first."""
    random = make_study(optuna.samplers.RandomSampler(seed=0))
    random.optimize(classifier, known)

    def asked(is_kept: bool) -> list[dict[str, Any]]:
        study = make_study(StructuredSampler(seed=0))
        study.add_trials(random.get_trials())
        for _ in range(3):
            pair = []
            for _ in range(2):
                if not is_kept:
                    study.sampler = StructuredSampler(seed=0)
                trial = study.ask()
                pair.append((trial, classifier(trial)))
            study.tell(*pair[1])
            fails = pair[0][1] > 0.5
            state = TrialState.FAIL if fails else TrialState.COMPLETE
            study.tell(pair[0][0], None if fails else pair[0][1], state=state)
        return points(study)[known:]

    assert asked(True) == asked(False)


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize("make", [_memory, _journal, _sqlite])
def test_running_trials_are_taken_into_account(
    make: Callable[[Path], BaseStorage], tmp_path: Path
) -> None:
    storage = make(tmp_path)
    study = make_study(StructuredSampler(seed=0), storage=storage, study_name="one")
    ended(study, tree, 6)
    # each asked for by a sampler that knows nothing but the storage, in any order
    trials = []
    for seed in (0, 0, 0):
        sampler = StructuredSampler(seed=seed)
        other = optuna.load_study(study_name="one", storage=storage, sampler=sampler)
        trials.append((other, other.ask()))
    for other, trial in reversed(trials):
        other.tell(trial, tree(trial))
    chosen = [tuple(sorted(p.items())) for p in points(study)]
    assert len(set(chosen)) == 9


@pytest.mark.usefixtures("random_points")
def test_a_trial_may_be_taken_up_in_another_process(tmp_path: Path) -> None:
    storage = _journal(tmp_path)
    sampler = Counting(seed=0)
    study = make_study(sampler, storage=storage, study_name="one")
    ended(study, tree, 6)
    trial = study.ask()
    taken = Counting(seed=99)
    other = optuna.load_study(study_name="one", storage=storage, sampler=taken)
    again = optuna.Trial(other, trial._trial_id)
    assert tree(again) == tree(trial)
    assert not taken.independent


@pytest.mark.parametrize("seed", range(3))
def test_the_first_trials_of_threads_differ(seed: int) -> None:
    """They are drawn before there is a space."""
    together = threading.Barrier(4)

    def objective(trial: optuna.Trial) -> float:
        together.wait()
        return float(trial.suggest_int("n", 1, 4))

    study = make_study(StructuredSampler(seed=seed))
    study.optimize(objective, n_trials=4, n_jobs=4)
    assert sorted(t.params["n"] for t in study.trials) == [1, 2, 3, 4]


@pytest.mark.usefixtures("random_points")
def test_reseeding_gives_other_suggestions() -> None:
    sampler = StructuredSampler(seed=0)
    sampler.reseed_rng()
    study = ended(make_study(sampler), classifier, 2)
    assert points(study) != points(
        ended(make_study(StructuredSampler(seed=0)), classifier, 2)
    )


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize(
    ("stop", "reported"),
    [(MemoryError, []), (optuna.TrialPruned, []), (optuna.TrialPruned, [1.5, 1.25])],
)
def test_trials_that_stop_early(
    declared: bool, stop: type[Exception], reported: list[float]
) -> None:
    """Pruned ones have their last intermediate value, failures have none."""

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0.0, 1.0)
        if x > 0.5:
            for step, value in enumerate(reported):
                trial.report(value, step)
            raise stop
        return 1.0 - x + trial.suggest_float("y", 0.0, 1.0)

    space = {"x": (0.0, 1.0), "y": (0.0, 1.0)} if declared else None
    study = make_study(StructuredSampler(space, seed=1))
    study.optimize(objective, n_trials=9, catch=(MemoryError,))
    early = [t.params["x"] for t in study.trials if t.state != TrialState.COMPLETE]
    last = reported[-1] if reported else None
    trials = told(study)
    assert len(trials) == 9
    stopped = {
        trial.config["x"]: trial.value for trial in trials if trial.config["x"] > 0.5
    }
    assert stopped == dict.fromkeys(early, last) != {}


@pytest.mark.usefixtures("random_points")
def test_hyperband_and_its_brackets() -> None:
    def objective(trial: optuna.Trial) -> float:
        value = classifier(trial)
        for step in range(4):
            trial.report(value + 1 - 0.2 * step, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    pruner = optuna.pruners.HyperbandPruner(max_resource=4)
    study = ended(make_study(StructuredSampler(seed=0), pruner=pruner), objective, 12)
    assert len(study.trials) == 12


@pytest.mark.usefixtures("random_points")
def test_one_name_with_other_ranges_and_single_values() -> None:
    def objective(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        trial.suggest_categorical("always", ["this"])
        trial.suggest_int("zero", 0, 0)
        if kind == "a":
            return trial.suggest_float("x", 0, 1)
        return trial.suggest_float("x", 5, 6)

    sampler = Counting(seed=0)
    study = ended(make_study(sampler), objective, 10)
    assert {number for number, _ in sampler.independent} <= {0, 1}
    space = sampler.space_of(study)
    assert space is not None and sorted(space.names) == ["kind", "x#1", "x#2"]


@pytest.mark.usefixtures("random_points")
def test_a_branch_that_shows_late_is_explored() -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        if trial.number >= 8 and trial.suggest_categorical("new", ["a", "b", "c"]):
            trial.suggest_float("y", 0, 1)
        return x

    study = ended(make_study(StructuredSampler(seed=0)), objective, 12)
    new = [trial.params["new"] for trial in study.trials[8:11]]
    assert sorted(new) == ["a", "b", "c"]


@pytest.mark.usefixtures("random_points")
def test_the_study_of_this_package() -> None:
    sampler = StructuredSampler(seed=0)
    study = make_study(sampler)
    assert sampler.study_of(study) is None
    ended(study, classifier, 10)
    study.enqueue_trial({"learner": "svm"})
    study.ask()
    own = sampler.study_of(study)
    assert own is not None and len(own.trials) == 10
    assert own.best[1] == study.best_value
    for trial, known in zip(study.trials, own.trials, strict=False):
        config = {**trial.params}
        if "share" in config:  # in steps
            config["share"] = round((config["share"] - 0.1) / 0.1)
        assert known.config == config
        assert known.values == {"value": trial.value}
    X = own.space.encode([trial.config for trial in own.trials])
    assert own.space.feasible(X).all()


def _uniform(low: float, high: float, **kwargs: Any) -> Callable[..., Any]:
    return lambda trial: trial.suggest_float("x", low, high, **kwargs)


def _integer(low: int, high: int, **kwargs: Any) -> Callable[..., Any]:
    return lambda trial: trial.suggest_int("x", low, high, **kwargs)


def _choice(*values: Any) -> Callable[..., Any]:
    return lambda trial: trial.suggest_categorical("x", values)


BETWEEN = "what is between its values (declare a list of them)"


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize(
    ("declared", "ask", "lacking"),
    [
        ((1e-6, 1e6, "log"), _uniform(1e-3, 1e6, log=True), "1e-06"),
        ((0.0, 1.0), _uniform(1e-9, 1.0), "0.0"),
        ((0.0, 1.0), _uniform(0, 1, step=0.25), BETWEEN),
        ((0.0, 1.0), _choice(0.0, 1.0), BETWEEN),
        ((0.0, 9.0), _integer(0, 9), BETWEEN),
        ((1, 200), _integer(1, 50), "200"),
        ((1, 10), _integer(1, 10, step=2), "2 and 10"),
        ((1, 4), _choice(1, 4), "2 and 3"),
        (["a", "b", "c"], _choice("a", "b"), "'c'"),
        (["1", "2"], _choice(1, 2), "'1' and '2'"),
        ([0, 1, 3], _integer(0, 2), "3"),
        # Optuna asks no sampler for these
        ((1, 5), _integer(5, 5), "1 and 2"),
        (["a", "b"], _choice("b"), "'a'"),
        ([3], _integer(4, 9), "3"),
        (["a"], _choice("b", "c"), "'a'"),
    ],
)
@pytest.mark.parametrize("branch", [False, True])
def test_declared_values_that_an_objective_does_not_take(
    declared: Any, ask: Callable[..., Any], lacking: str, branch: bool
) -> None:
    # another value would be evaluated in their place, or the study would break off
    space: Any = {"x": declared, "y": (0.0, 1.0)}
    if branch:
        space = [{"k": ["a"], "x": declared}, {"k": ["b"], "y": (0.0, 1.0)}]

    def objective(trial: optuna.Trial) -> float:
        if branch and trial.suggest_categorical("k", ["a", "b"]) == "b":
            return trial.suggest_float("y", 0.0, 1.0)
        return float(len(str(ask(trial))))

    study = make_study(StructuredSampler(space, seed=0))
    message = re.escape(f"which does not take {lacking}.")
    with pytest.raises(ValueError, match=f"'x': expected an objective.*{message}"):
        study.optimize(objective, n_trials=4)
    assert {t.state for t in study.trials} <= {TrialState.COMPLETE, TrialState.FAIL}


@pytest.mark.parametrize("asked", [_uniform(0, 1), _uniform(-3, 9), _uniform(0, 2)])
def test_integers_that_are_declared_for_real_numbers(asked: Any) -> None:
    """Nothing but these would ever be suggested."""
    study = make_study(StructuredSampler({"x": (0, 1)}, seed=0))
    with pytest.raises(ValueError, match=r"'x': .* integers only \(declare \(0.0, 1.0"):
        study.optimize(asked, n_trials=2)
    ended(make_study(StructuredSampler({"x": [0, 1]}, seed=0)), asked, 1)


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize(
    ("declared", "ask"),
    [
        ((1e-2, 1e2, "log"), _uniform(1e-3, 1e3)),
        ((1, 20), _integer(1, 50)),
        ([0.0, 0.5], _uniform(0, 1, step=0.25)),
        (list(range(1, 10, 2)), _integer(1, 10, step=2)),
        ((1, 4), _uniform(0, 5, step=0.5)),
        ((1, 4), _choice(1, 2, 3, 4)),
        (["a", "b"], _choice("c", "b", "a")),
        ([math.nan, "a"], lambda t: t.suggest_categorical("x", [float("nan"), "a"])),
    ],
)
def test_declared_values_are_some_of_those_of_the_objective(
    declared: Any, ask: Callable[..., Any]
) -> None:
    sampler = Counting({"x": declared}, seed=0)
    study = ended(make_study(sampler), lambda trial: float(str(ask(trial)) == "b"), 4)
    column = sampler.space_of(study).columns[0]  # type: ignore[union-attr]
    for trial in study.trials:
        column.encode(trial.params["x"])
    assert not sampler.independent


@pytest.mark.parametrize(
    "space",
    [
        [{"x": (0.0, 1.0)}],
        [{"x": (0.0, 1.0), "k": [0]}, {"late": (0.0, 1.0), "k": [1]}],
    ],
)
def test_undeclared_parameters_are_said_once(said: list[str], space: Any) -> None:
    def objective(trial: optuna.Trial) -> float:
        if len(space) > 1 and trial.suggest_categorical("k", [0, 1]):
            return trial.suggest_float("late", 0, 1)
        x = trial.suggest_float("x", 0, 1)
        if trial.number >= 4:
            trial.suggest_float("late", 0, 1)
        return x

    for warns in (True, False):
        said.clear()
        sampler = StructuredSampler(space, seed=0, warn_independent_sampling=warns)
        ended(make_study(sampler), objective, 8)
        late = [text for text in said if "'late', which the declared space" in text]
        assert len(late) == warns


def _declared() -> ConfigurationSpace:
    cs = ConfigurationSpace()
    kind = Categorical("kind", ["a", "b", "c"])
    x, y = Float("x", (1e-3, 1e3), log=True), Float("y", (0.0, 1.0))
    cs.add(kind, x, y)
    cs.add(EqualsCondition(x, kind, "a"), EqualsCondition(y, kind, "b"))
    return cs


def _of_declared(trial: optuna.Trial) -> float:
    kind = trial.suggest_categorical("kind", ["a", "b", "c"])
    if kind == "a":
        return (math.log10(trial.suggest_float("x", 1e-3, 1e3, log=True)) - 1) ** 2
    return 1 + (trial.suggest_float("y", 0, 1) if kind == "b" else 0.0)


@pytest.mark.parametrize("as_space", [False, True])
def test_a_declared_space(as_space: bool) -> None:
    declared: Any = _declared()
    if as_space:
        declared = SearchSpace.from_configspace(declared)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = Counting(declared, seed=0)
    study = ended(make_study(sampler), _of_declared, 12)
    kinds = [trial.params["kind"] for trial in study.trials]
    assert sorted(kinds[:3]) == ["a", "b", "c"]
    # what Optuna has not seen before; the values are those of the path all the same
    assert {number for number, _ in sampler.independent} <= {0, 1, 2}
    assert study.best_value < 0.1
    assert sampler.space_of(study) is sampler.space_of(make_study(None))


def partial(fixed: dict[str, Any], inner: StructuredSampler) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return optuna.samplers.PartialFixedSampler(fixed, inner)


TENTHS = [k / 10 for k in range(1, 10)]
LEARNERS = [
    {"learner": ["svm"], "C": (1e-3, 1e3, "log")},
    {"learner": ["forest"], "depth": (2, 10), "share": TENTHS},
    {"learner": ["neighbours"], "k": (1, 50)},
]


@pytest.mark.parametrize("space", [None, LEARNERS])
def test_a_fixed_decision_is_held(space: Any) -> None:
    sampler = Counting(space, seed=0)
    study = make_study(partial({"learner": "forest"}, sampler))
    ended(study, classifier, 12)
    assert {trial.params["learner"] for trial in study.trials} == {"forest"}
    assert study.best_value < 0.35
    if space is None:
        # the ends of ``depth`` and ``share`` are tried first
        assert {number for number, _ in sampler.independent} <= {0, 1, 2}
        study.sampler = sampler
        ended(study, classifier, 2)
        assert len({trial.params["learner"] for trial in study.trials}) == 3


def test_a_fixed_number_is_held_where_it_is_asked_for() -> None:
    sampler = Counting(seed=0)
    ended(make_study(partial({"C": 3.0}, sampler)), classifier, 5)
    study = ended(make_study(partial({"depth": 7}, sampler)), classifier, 20)
    depths = {trial.params.get("depth", 7) for trial in study.trials}
    assert depths == {7}
    assert study.best_value < 1e-2  # the other branches are searched


@pytest.mark.usefixtures("random_points")
def test_open_parameters_of_enqueued_trials_are_suggested() -> None:
    for early in (4, 12):
        sampler = Counting(seed=0)
        study = ended(make_study(sampler), classifier, early)
        for wanted in ({"learner": "forest"}, {"k": 20}, {"learner": "svm", "k": 7}):
            study.enqueue_trial(wanted)
        sampler.independent.clear()
        ended(study, classifier, 4)
        first, second, third, last = study.trials[early:]
        assert first.params["learner"] == "forest"
        assert second.params.get("k", 20) == 20
        assert third.params["learner"] == "svm" and "k" not in third.params
        if early == 12:
            assert not sampler.independent
    study.enqueue_trial({"C": "ten"})  # Optuna's own error, when it is asked for
    study.enqueue_trial({"learner": "forest", "depth": 99})
    with pytest.warns(UserWarning, match="out of range"):
        ended(study, lambda trial: float(trial.suggest_int("depth", 2, 10)), 2)


def test_a_small_space_may_be_exhausted(said: list[str]) -> None:
    def objective(trial: optuna.Trial) -> float:
        return float(trial.suggest_categorical("x", [0, 1, 2]))

    study = ended(make_study(StructuredSampler(seed=0)), objective, 6)
    assert {t.params["x"] for t in study.trials[:3]} == {0, 1, 2}
    (text,) = said
    assert text.startswith("Trial 3: every point is known, one is repeated")


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_several_at_once_by_ask_and_tell(at_once: int, said: list[str]) -> None:
    """Without a word, and nothing of it is left with the study; a new branch is one
    until a trial has shown it."""
    study = make_study(StructuredSampler(seed=0))
    for _ in range(12 // at_once):
        asked = [study.ask() for _ in range(at_once)]
        kept = [text for text in study.user_attrs.values() if text]
        assert len(kept) == at_once
        for trial in asked:
            study.tell(trial, tree(trial))
    assert not any(study.user_attrs.values()) and not said


def test_several_objectives() -> None:
    def objective(trial: optuna.Trial) -> tuple[float, float]:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        x = trial.suggest_float(f"x of {kind}", 0, 1)
        return x**2 + (kind == "b"), -((x - 1) ** 2)

    study = make_study(StructuredSampler(seed=0), directions=["minimize", "maximize"])
    ended(study, objective, 12)
    front = study.best_trials
    assert len(front) >= 5
    assert [t.params["kind"] for t in study.trials].count("b") < 6


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"seed": 0.5}, "seed"),
        ({"space": 3}, "space"),
        ({"space": [{"a": (0, 1)}, {"b": (0, 1)}]}, "space"),
        ({"space": [{"a": [0], "b": (0, 1)}, {"a": [1], "b": (0, 2)}]}, "space"),
        ({"model": "gp"}, "model"),
        ({"acquisition": "ei"}, "acquisition"),
        ({"max_rows": 0}, "max_rows"),
    ],
)
def test_errors(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        StructuredSampler(**arguments)


@pytest.mark.filterwarnings("ignore:Choices for a categorical")
def test_choices_that_no_storage_takes() -> None:
    def objective(trial: optuna.Trial) -> float:
        return float(trial.suggest_categorical("of", [max, min])((1, 2)))

    study = ended(make_study(StructuredSampler(seed=0)), objective, 4)
    assert study.best_params == {"of": min}


def test_functions_in_place_of_the_default_model() -> None:
    seen = []

    def model(space: SearchSpace, X: Any, Y: Any) -> Any:
        seen.append(len(X))
        return fit_models(space, X, Y, averaged=False)[0]

    ended(make_study(StructuredSampler(seed=0, model=model)), classifier, 6)
    assert seen == [3, 4, 5]


def test_a_constraint_that_a_branch_does_not_have_holds_there() -> None:
    """As for Optuna: a trial is feasible where none of its own is positive."""

    def objective(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("kind", ["svm", "net"]) == "svm":
            return (trial.suggest_float("C", -3, 3) - 1.0) ** 2
        width = trial.suggest_float("width", 0, 1)
        trial.set_constraint("memory", width - 0.5)
        return 1.0 + (width - 0.3) ** 2

    study = ended(make_study(StructuredSampler(seed=0)), objective, 20)
    assert study.best_value < 1e-2


def test_choices_that_are_equal_are_one() -> None:
    def objective(trial: optuna.Trial) -> float:
        v = trial.suggest_categorical("features", [1, 1.0, "root", "log"])
        return {"root": 0.1, "log": 0.05}.get(v, 0.3) + trial.suggest_float("x", 0, 1)

    study = ended(make_study(StructuredSampler(seed=0)), objective, 16)
    tried = [trial.params["features"] for trial in study.trials]
    assert {1, "root", "log"} == {*tried}
    assert tried.count(1) < 8


def test_optunahub_loads_the_package() -> None:
    # the folder optunahub/ of this repository would do for "import optunahub"
    pytest.importorskip("optunahub.version", exc_type=ImportError)
    import optunahub

    module = optunahub.load_local_module(
        "samplers/structured",
        registry_root=str(Path(__file__).parents[2] / "optunahub" / "package"),
    )
    assert module.StructuredSampler is StructuredSampler


def run(
    space: Any, objective: Callable[[optuna.Trial], float], n: int = 8, **more: Any
) -> optuna.Study:
    study = optuna.create_study(sampler=StructuredSampler(space, seed=0), **more)
    study.optimize(objective, n_trials=n, catch=(MemoryError,))
    return study


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize(
    ("branches", "ranges", "lacking"),
    [
        (({"n": [10]}, {"n": [20]}), ((10, 10), (20, 20)), None),
        (({"n": [10]}, {"n": [20]}), ((1, 99), (1, 99)), None),
        (({"n": [10]}, {"n": [20]}), ((15, 30), (15, 30)), "10"),
        (({"n": [10]}, {"n": [20]}), ((20, 20), (10, 10)), "10"),
        (({"n": [10]}, {}), ((10, 10), (20, 20)), None),
        (({"n": (1, 9)}, {}), ((1, 9), (1, 1)), None),
        (({"n": (1, 9)}, {}), ((1, 9), (5, 7)), None),
        (({"n": (1, 9)}, {}), ((1, 1), (1, 9)), "2 and 9"),
    ],
)
def test_what_other_branches_have_does_not_matter(
    branches: tuple[dict[str, Any], ...],
    ranges: tuple[tuple[int, int], ...],
    lacking: str | None,
) -> None:
    space = [
        {"k": [k], "x": (0.0, 1.0), **branch}
        for k, branch in zip("ab", branches, strict=True)
    ]

    def objective(trial: optuna.Trial) -> float:
        k = trial.suggest_categorical("k", ["a", "b"])
        trial.suggest_int("n", *ranges["ab".index(k)])
        return trial.suggest_float("x", 0.0, 1.0)

    if lacking is None:
        assert len(told(run(space, objective))) == 8
    else:
        with pytest.raises(ValueError, match=rf"'n': .*does not take {lacking}\."):
            run(space, objective)


def test_a_trial_that_fails_fails_as_it_did() -> None:
    """With a single value that is not all that is declared; pruned ones are checked."""
    stop: list[type[Exception]] = [MemoryError]

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_int("n", 3, 3)
        raise stop[0]

    space = {"n": (1, 9), "x": (0.0, 1.0)}
    states = [trial.state for trial in run(space, objective, 3).trials]
    assert states == [TrialState.FAIL] * 3
    stop = [optuna.TrialPruned]
    with pytest.raises(ValueError, match="'n': expected an objective that takes all"):
        run(space, objective, 3)


@pytest.mark.usefixtures("random_points")
def test_trials_outside_of_the_space_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    space = {"epochs": [20], "x": (0.0, 1.0)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.logging.enable_propagation()
    try:
        study = optuna.create_study(sampler=StructuredSampler(space, seed=0))
        for n in (50, 50, 20, 20):
            study.enqueue_trial({"epochs": n})
        with caplog.at_level(logging.WARNING):
            study.optimize(
                lambda t: t.suggest_int("epochs", 1, 99) * t.suggest_float("x", 0, 1),
                n_trials=5,
            )
    finally:
        optuna.logging.disable_propagation()
    (said,) = {r.getMessage() for r in caplog.records if "left out" in r.getMessage()}
    assert said.startswith("Trial 0 is left out") and "'epochs': 50" in said
    assert len(told(study)) == 3


def test_what_a_trial_did_not_ask_for_is_drawn_on_a_path_that_has_the_rest() -> None:
    """Rare ones: a parameter below a choice that comes up in one of 40 draws; two that
    forbid most values of each other."""
    rare = [{"kind": [f"k{i}"], f"p{i}": (0.0, 1.0), "q": [1, 2]} for i in range(40)]
    space = SearchSpace.from_dictionaries(rare)
    found = configurations(
        space, [{f"p{i}": 0.3} for i in range(40)], [False] * 40, list(range(40))
    )
    for i, config in enumerate(found):
        assert config is not None
        assert config["kind"] == f"k{i}" and config[f"p{i}"] == 0.3
    assert {config["q"] for config in found if config is not None} == {1, 2}
    cs = ConfigurationSpace()
    a, b, c = Integer("a", (0, 1000)), Integer("b", (0, 1000)), Float("c", (0.0, 1.0))
    cs.add(a, b, c, ForbiddenLessThanRelation(a, b))
    space = SearchSpace.from_configspace(cs)
    values = (5, 10, 20, 50, 100)
    found = configurations(
        space, [{"a": v} for v in values], [False] * 5, list(range(5))
    )
    for v, config in zip(values, found, strict=True):
        assert config is not None and config["a"] == v and config["b"] <= v


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize("declared", [False, True])
def test_nan_is_a_choice_as_others_are(declared: bool) -> None:
    """Another object each time; pending where a running trial was suggested it."""

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_categorical("x", [float("nan"), "a"])
        return 10.0 * (x == "a") + trial.suggest_categorical("z", [0, 1, 2, 3, 4, 5])

    space = {"x": [math.nan, "a"], "z": [0, 1, 2, 3, 4, 5]} if declared else None
    study = run(space, objective, 6)
    for _ in range(4):
        objective(study.ask())
    asked = [(str(t.params["x"]), t.params["z"]) for t in study.trials]
    assert len(set(asked)) == len(asked)
    assert sum(x == "nan" for x, _ in asked[6:]) > 1
    assert len(told(study)) == 6
