"""What is learnt of a space from trials, and what is tried on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from botorch_structured.integrations.optuna.learning import LearntSpace
from botorch_structured.integrations.optuna.trial_space import Asked, TrialParameter

Objective = Callable[[optuna.Trial], Any]


class _Exploring(optuna.samplers.RandomSampler):
    """Random, but for what nobody has tried."""

    values: dict[str, Any] = {}

    def before_trial(self, study: optuna.Study, trial: Any) -> None:
        trials = asked(study)
        untried = (trials and LearntSpace(trials).untried()) or {}
        self.values = {name: value for name, (_, value) in untried.items()}

    def sample_independent(self, study: Any, trial: Any, name: str, d: Any) -> Any:
        if name in self.values:
            return self.values[name]
        return super().sample_independent(study, trial, name, d)


def asked(study: optuna.Study) -> list[Asked]:
    trials = study.get_trials(deepcopy=False)
    done = [t for t in trials if t.state.is_finished()]
    return [
        Asked(
            {k: (d, t.params[k]) for k, d in t.distributions.items()},
            complete=t.state == optuna.trial.TrialState.COMPLETE,
        )
        for t in done
    ]


def explored(objective: Objective, seed: int, most: int = 60) -> list[Asked]:
    """The trials of a study until nothing is left to try."""
    study = optuna.create_study(sampler=_Exploring(seed=seed))
    for _ in range(most):
        study.optimize(objective, n_trials=1, catch=(ZeroDivisionError,))
        if LearntSpace(asked(study)).untried() is None:
            return asked(study)
    raise AssertionError(f"something is left to try after {most} trials")


def random_trials(objective: Objective, n: int, seed: int = 0) -> list[Asked]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    study.optimize(objective, n_trials=n)
    return asked(study)


def is_right(learnt: LearntSpace, objective: Objective, n: int = 100) -> bool:
    """Whether random trials ask for just what the space says is active there."""
    for trial in random_trials(objective, n, seed=12345):
        entries = learnt.entries(trial.values)
        if len(entries) != len(trial.values):
            return False
        try:
            learnt.space.encode([entries])
        except ValueError:
            return False
    return True


def network(trial: optuna.Trial) -> float:
    for layer in range(trial.suggest_int("layers", 1, 5)):
        trial.suggest_int(f"width {layer}", 8, 64, log=True)
    trial.suggest_categorical("activation", ["relu", "tanh", "gelu"])
    optimizer = trial.suggest_categorical("optimizer", ["adam", "sgd", "lbfgs"])
    if optimizer != "lbfgs":
        trial.suggest_float("rate", 1e-4, 1, log=True)
    if optimizer == "sgd" and trial.suggest_categorical("momentum", [True, False]):
        trial.suggest_float("beta", 0, 1)
    if trial.suggest_categorical("dropout", [False, True]):
        trial.suggest_float("p", 0, 0.5, step=0.1)
    return 0.0


def tree(trial: optuna.Trial) -> float:
    node = 1
    while node < 8:
        node = 2 * node + trial.suggest_categorical(f"x{node}", [0, 1])
    return trial.suggest_float(f"x{node}", -1, 1)


def learners(trial: optuna.Trial) -> float:
    names = ["a", "b", "c", "d", "e", "f"]
    learner = trial.suggest_categorical("learner", names)
    if learner != "f":  # with the same name in several branches
        trial.suggest_float("C", 1e-3, 1e3 if learner == "a" else 1.0, log=True)
    if learner in ("b", "c"):
        trial.suggest_int("depth", 1, 10)
    return 0.0


@pytest.mark.parametrize("objective, most", [(network, 12), (tree, 8), (learners, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_few_trials_show_the_tree(objective: Objective, most: int, seed: int) -> None:
    trials = explored(objective, seed)
    assert len(trials) <= most
    # decisions that explain the same are told apart by later ones
    trials += random_trials(objective, 12, seed)
    assert is_right(LearntSpace(trials), objective)


def test_what_is_expected_of_trials_is_not_learnt_but_not_tried_again() -> None:
    kinds, number = CategoricalDistribution(["a", "b", "c"]), FloatDistribution(0, 1)
    found = [Asked({"kind": (kinds, "a"), "x": (number, 0.5)})]
    alone = LearntSpace(found)
    assert alone.untried() == {"kind": (kinds, "b")}
    # that all have "x" is not so
    found.append(Asked({"kind": (kinds, "b"), "x": (number, 0.5)}, False, True))
    expected = LearntSpace(found)
    assert expected.untried() == {"kind": (kinds, "c")}
    assert repr(expected.space) == repr(alone.space)
    found.append(Asked({"kind": (kinds, "c")}))
    without = LearntSpace([found[0], found[2]])
    assert repr(LearntSpace(found).space) == repr(without.space)
    assert without.untried() == {"kind": (kinds, "b")}
    assert LearntSpace(found).untried() is None


def test_a_value_that_always_fails_is_tried_once() -> None:
    def objective(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b", "bad"])
        if kind == "bad":
            raise ZeroDivisionError
        return trial.suggest_float(kind, 0, 1)

    trials = explored(objective, 0)
    assert len(trials) == 3
    learnt = LearntSpace(trials)
    assert learnt.space.tree.num_paths == 3


def test_trials_that_ended_early_do_not_blur_the_tree() -> None:
    def objective(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        x = trial.suggest_float(f"{kind} x", 0, 1)
        if x > 0.7:
            raise ZeroDivisionError
        return x + trial.suggest_float(f"{kind} y", 0, 1)

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=30, catch=(ZeroDivisionError,))
    space = LearntSpace(asked(study)).space
    a = space.names.index("a y"), space.names.index("kind")
    assert space.tree.conditions[a[0]].columns() == {a[1]}
    assert space.tree.num_paths == 2


def test_two_decisions_together_may_explain() -> None:
    def objective(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b", "c"])
        flag = trial.suggest_categorical("flag", [False, True])
        if kind == "a" and flag:
            trial.suggest_float("both", 0, 1)
        if kind == "b" or flag:
            trial.suggest_float("either", 0, 1)
        return 0.0

    assert is_right(LearntSpace(random_trials(objective, 40)), objective)


def test_ranges_that_end_at_another_value_are_one_parameter() -> None:
    def objective(trial: optuna.Trial) -> float:
        high = trial.suggest_float("high", 1, 2)
        return trial.suggest_float("x", 0, high)

    learnt = LearntSpace(random_trials(objective, 20))
    assert learnt.names == ["high", "x"]
    assert learnt.space.tree.num_paths == 1


def test_what_nothing_explains_counts_as_active() -> None:
    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("kind", ["a", "b"])
        trial.suggest_float("x", 0, 1)
        if trial.number % 3:
            trial.suggest_float("now and then", 0, 1)
        return 0.0

    learnt = LearntSpace(random_trials(objective, 40))
    assert learnt.space.tree.num_paths == 1


@pytest.mark.parametrize(
    "distribution, values",
    [
        (CategoricalDistribution([1, "1", None, 2.5]), [1, "1", None, 2.5]),
        (CategoricalDistribution(["a", "b"]), ["a", "b"]),
        (CategoricalDistribution([True, False]), [True, False]),
        (IntDistribution(3, 12, step=3), [3, 6, 12]),
        (IntDistribution(1, 1000, log=True), [1, 30, 1000]),
        (IntDistribution(-2, 2), [-2, 0, 2]),
        (FloatDistribution(0.1, 0.7, step=0.2), [0.1, 0.3, 0.7]),
        (FloatDistribution(1e-5, 1.0, log=True), [1e-5, 0.00123, 1.0]),
        (FloatDistribution(-1.0, 1.0), [-1.0, 0.1, 1.0]),
        # high is 3 x 0.333...3, the largest multiple of the step
        (FloatDistribution(0.0, 0.9999999999999999, step=1 / 3), [0.9999999999999999]),
        (
            FloatDistribution(1e13, 1e13 + 2.0, step=0.5),
            [1e13 + k / 2 for k in range(5)],
        ),
        (IntDistribution(10**12 + 1, 2 * 10**12 - 7, step=7), [10**12 + 8]),
        (IntDistribution(-(2**53), 2**53, step=1 << 20), [-(2**53), 2**53]),
    ],
)
def test_values_come_back(distribution: BaseDistribution, values: list[Any]) -> None:
    parameter = TrialParameter("p", distribution)
    column = parameter.column("p")
    for value in values:
        entry = parameter.entry(value)
        back = parameter.value(entry)
        assert back == value and type(back) is type(value)
        assert column.decode(column.encode(entry)) == entry
        assert column.encode(entry) == pytest.approx(parameter.number(value))
        assert parameter.value_at(parameter.number(value)) == pytest.approx(value)
    for seed in range(20):
        drawn = parameter.draw(seed)
        assert distribution.to_external_repr(distribution.to_internal_repr(drawn)) == (
            drawn
        )
        assert parameter.contains(drawn)


def test_a_value_out_of_range_becomes_the_nearest() -> None:
    assert TrialParameter("p", FloatDistribution(0, 1, step=0.25)).nearest(0.9) == 1.0
    assert TrialParameter("p", IntDistribution(2, 8, step=2)).nearest(100) == 8
    assert TrialParameter("p", FloatDistribution(0, 1)).nearest(-3.0) == 0.0


@pytest.mark.parametrize(("size", "tried"), [(10, True), (20, False)])
def test_many_choices_are_not_tried_one_by_one(size: int, tried: bool) -> None:
    choices = CategoricalDistribution(list(range(size)))
    untried = LearntSpace([Asked({"x": (choices, 0)})]).untried()
    assert (untried == {"x": (choices, 1)}) == tried
    assert (untried is None) != tried
