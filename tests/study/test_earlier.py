"""Old studies at every door: their forms, spaces that differ, and what they bring."""

import csv
import json
import math
import pickle
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_structured import Study
from botorch_structured.models import OldStudiesMean, TransferGP
from botorch_structured.spaces import SearchSpace
from botorch_structured.study.earlier import learn, read_earlier, read_studies
from botorch_structured.suggest import suggest
from botorch_structured.suggest.surrogates import old_studies_predict

DICTIONARIES = [
    {"learner": ["svm"], "C": (1e-3, 1e3, "log"), "scale": [True, False]},
    {"learner": ["near"], "k": (1, 50), "scale": [True, False]},
]
SPACE = SearchSpace.from_dictionaries(DICTIONARIES)


def error(config: Mapping[str, Any], shift: float = 0.0) -> float:
    """Best with svm, C = 10^(1 + shift), scaled."""
    level = 0.0 if config["scale"] else 0.1
    if config["learner"] == "svm":
        return level + 0.1 * (math.log10(config["C"]) - 1.0 - shift) ** 2
    return level + 0.5 + (config["k"] / 50.0 - 0.3) ** 2


def told(seed: int, log: Path | None = None, **kwargs: Any) -> Study:
    study = Study(DICTIONARIES, seed=seed, log=log, **kwargs)
    sign = -1.0 if "maximize" in study.objectives.values() else 1.0
    configs = SPACE.decode(SPACE.sample(20, seed=seed))
    values = [sign * 10.0**seed * error(c, 0.2 * seed) for c in configs]
    study.tell_many(configs, [None, *values[1:]])
    return study


STUDIES = [told(0), told(1), told(2, objectives="maximize")]


@pytest.fixture(scope="module")
def old() -> OldStudiesMean:
    found = learn(SPACE, read_studies(STUDIES), say=True)
    assert found is not None
    return found


def table(studies: list[Study]) -> list[dict[str, Any]]:
    rows = []
    for number, study in enumerate(studies):
        for trial in study.trials:
            value = trial.value if trial.values else math.nan
            rows.append({"study": number, **trial.config, "value": value})
    return rows


def forms(path: Path) -> dict[str, Any]:
    two = STUDIES[:2]
    logged = [told(k, log=path / f"{k}.jsonl") for k in (0, 1)]
    del logged
    with (path / "old.csv").open("w", newline="") as file:
        names = {name: None for row in table(two) for name in row}
        writer = csv.DictWriter(file, [*names], restval="")
        writer.writeheader()
        writer.writerows(table(two))
    X = [torch.tensor(s._points).double() for s in two]
    values = [[math.nan if t.value is None else t.value for t in s.trials] for s in two]
    Y = [torch.tensor(v).double()[:, None] for v in values]
    searches = [
        {"params": [t.config for t in s.trials], "mean_test_score": [-y for y in v]}
        for s, v in zip(two, values, strict=True)
    ]
    found = {
        "studies": two,
        "logs": [path / "0.jsonl", str(path / "1.jsonl")],
        "csv": path / "old.csv",
        "points": list(zip(X, Y, strict=True)),
        "searches": searches,
    }
    if find_spec("pandas"):
        import pandas as pd

        found["frame"] = pd.DataFrame(table(two))
        found["frames of searches"] = [pd.DataFrame(search) for search in searches]
    return found


def frame(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    first = None
    for name, form in forms(tmp_path).items():
        found = read_earlier(SPACE, form)
        assert isinstance(found, list) and len(found) == 2, name
        first = first or found
        for (X, Y), (its_X, its_Y) in zip(found, first, strict=True):
            torch.testing.assert_close(X, its_X, msg=name)
            torch.testing.assert_close(Y, its_Y, msg=name)
    assert first is not None
    assert first[0][1][0] == -math.inf and first[0][1][1:].isfinite().all()


def test_larger_outcomes_are_better_where_a_study_says_so() -> None:
    found = read_earlier(SPACE, STUDIES)
    assert isinstance(found, list)
    (_, Y), (_, its_Y) = found[1], found[2]
    assert Y[1:].max() < 0.0 and its_Y[1:].max() < 0.0


def test_studies_of_other_spaces_are_matched_by_names_and_values() -> None:
    rows = [
        {"learner": "svm", "C": 1.0, "scale": True, "value": 1.0},
        {"learner": "svm", "C": 1e5, "scale": True, "value": 1.0},  # out of range
        {"learner": "tree", "depth": 3, "scale": True, "value": 1.0},
        {"learner": "near", "k": 5, "value": 2.0},  # no "scale" then
        {"learner": "near", "k": 7, "C": 1e5, "scale": False, "value": 3.0},
    ]
    with pytest.warns(UserWarning) as caught:
        found = read_earlier(SPACE, frame(rows))
    assert isinstance(found, list) and len(caught) == 1
    ((X, Y),) = found
    configs = SPACE.decode(X)
    assert [c.get("k") for c in configs] == [None, 5, 7] and Y.tolist()[0] == [-1.0]
    message = str(caught[0].message)
    assert "2 of 5 evaluations are left out" in message and "'C': 100000.0" in message
    assert "['depth']" in message and "'scale' counts as its middle in 1" in message


def test_evaluations_of_no_known_path_are_no_evidence() -> None:
    rows = [{"k": k, "scale": True, "value": 1.0} for k in (1, 10)]  # no learner
    with pytest.raises(ValueError, match="got none. 2 of 2 evaluations are left out"):
        read_earlier(SPACE, frame(rows))
    with pytest.raises(ValueError, match="got none"):
        read_earlier(SPACE, frame([{"params_C": 1.0, "value": 1.0}] * 3))


def test_what_broke_a_constraint_counts_as_failed(tmp_path: Path) -> None:
    goals = {"objectives": {"value": "minimize"}, "constraints": ["size <= 1"]}
    study = Study(DICTIONARIES, **goals, seed=0, log=tmp_path / "a.log")
    configs = SPACE.decode(SPACE.sample(3, seed=0))
    values = [{"value": float(k), "size": float(k)} for k in range(3)]
    study.tell_many(configs, values)
    for form in (study, tmp_path / "a.log"):
        found = read_earlier(SPACE, form)
        assert isinstance(found, list)
        assert found[0][1].flatten().tolist() == [0.0, -1.0, -math.inf]


def test_choices_with_names_of_nothing(tmp_path: Path) -> None:
    space = SearchSpace.from_dictionaries({"a": ["l1", "None", "NA"], "x": (0.0, 1.0)})
    (path := tmp_path / "a.csv").write_text(
        "a,x,value\nNone,0.1,1\nNA,0.2,2\nl1,0.3,NA\n"
    )
    found = read_earlier(space, path)
    assert isinstance(found, list)
    assert [c["a"] for c in space.decode(found[0][0])] == ["None", "NA", "l1"]
    assert found[0][1].flatten().tolist() == [-1.0, -2.0, -math.inf]


def test_scores_of_several_metrics() -> None:
    params = [t.config for t in STUDIES[0].trials]
    table = {"params": params, "mean_test_f1": range(20), "mean_test_r2": [0.0] * 20}
    found = read_earlier(SPACE, table, name="f1")
    assert isinstance(found, list) and found[0][1].flatten().tolist() == [*range(20)]
    with pytest.raises(ValueError, match="params and mean_test_value, got"):
        read_earlier(SPACE, table)
    with pytest.raises(ValueError, match="dictionaries as params"):
        read_earlier(SPACE, {**table, "params": ["{}"] * 20}, name="f1")


def test_several_objectives_need_a_name() -> None:
    study = Study(DICTIONARIES, {"a": "minimize", "b": "maximize"}, seed=0)
    configs = SPACE.decode(SPACE.sample(2, seed=0))
    study.tell_many(configs, [{"a": k, "b": 2 * k} for k in (1, 2)])
    found = read_earlier(SPACE, study, name="b")
    assert isinstance(found, list) and found[0][1].flatten().tolist() == [2.0, 4.0]
    with pytest.raises(ValueError, match="old studies with one objective"):
        read_earlier(SPACE, study)


def test_no_old_studies_are_none() -> None:
    assert read_earlier(SPACE, []) is None
    assert Study(DICTIONARIES, earlier=[]).earlier is None


@pytest.mark.parametrize(
    "what", [3, "nowhere.csv", [[1, 2]], {"a": 1}, (torch.ones(3, 4), 1.0)]
)
def test_what_is_no_study_is_refused_before_any_work(what: Any) -> None:
    with pytest.raises(ValueError, match="earlier: expected"):
        Study(DICTIONARIES, earlier=what)


def test_errors(old: OldStudiesMean, tmp_path: Path) -> None:
    X = SPACE.sample(3, seed=0)
    with pytest.raises(ValueError, match="say whether smaller outcomes are better"):
        read_studies([(X, X[:, :1])], "value", None)
    for wrong_pair in (X, (X,), (X, X[:, :1], X)):
        with pytest.raises(ValueError, match="studies: expected"):
            OldStudiesMean.from_studies([wrong_pair], SPACE)
    (wrong := tmp_path / "other.jsonl").write_text('{"study": 1}\n')
    with pytest.raises(ValueError, match="earlier: expected the log of a Study"):
        read_earlier(SPACE, wrong)
    with pytest.raises(ValueError, match="earlier: expected a column 'value', got"):
        read_earlier(SPACE, frame([{"learner": "svm", "loss": 1.0}]))
    one = [{"learner": "svm", "C": 1.0, "scale": True, "value": 1.0}]
    with pytest.raises(ValueError, match="study with two or more evaluations"):
        read_earlier(SPACE, frame(one))
    with pytest.raises(ValueError, match="earlier: expected one objective"):
        Study(DICTIONARIES, {"a": "minimize", "b": "minimize"}, earlier=old)
    with pytest.raises(ValueError, match="earlier: expected one objective, and no"):
        Study(DICTIONARIES, earlier=old, model=lambda *_: None)
    X = SPACE.sample(4, seed=0)
    with pytest.raises(ValueError, match="earlier: expected one objective, got 2"):
        suggest(SPACE, X, torch.rand(4, 2).double(), earlier=old)
    with pytest.raises(ValueError, match="earlier: expected ``n x 4`` points"):
        Study(DICTIONARIES, earlier=(torch.rand(4, 9).double(), X[:, :1]))
    other = SearchSpace.from_dictionaries({"x": (0.0, 1.0)})
    X = other.sample(4, seed=0)
    with pytest.raises(ValueError, match="earlier: expected studies of this space"):
        suggest(other, X, X, earlier=old)


def run(study: Study, n: int) -> list[float]:
    for _ in range(n):
        (config,) = study.ask()
        study.tell(config, error(config, 0.3))
    return [trial.value for trial in study.trials if trial.value is not None]


def test_a_study_begins_where_others_ended(old: OldStudiesMean) -> None:
    study = Study(DICTIONARIES, seed=3, earlier=STUDIES)
    values = run(study, 7)
    assert values[0] < 0.05 and min(values) < 0.01
    assert study.trials[0].config in study.starts
    assert any(isinstance(model, TransferGP) for model in study.models)
    found = study.explain(study.trials[0].config)
    assert 0.0 <= found["earlier"] <= 1.0
    assert "earlier" not in told(0).explain(STUDIES[0].trials[0].config)
    # learnt before, it is the same
    assert run(Study(DICTIONARIES, seed=3, earlier=old), 3) == values[:3]
    assert run(pickle.loads(pickle.dumps(study)), 1) == run(study, 1)


def test_several_at_once_and_failures(old: OldStudiesMean) -> None:
    study = Study(DICTIONARIES, seed=3, earlier=old)
    first = study.ask(3)
    assert first == study.starts[:3]
    portfolio = SPACE.decode(old.starts(9))
    # the second is on another path, all suit old studies
    assert first[0]["learner"] != first[1]["learner"]
    assert first[0] == portfolio[0] and all(config in portfolio for config in first)
    study.tell_many(first, [None] * 3)
    (config,) = study.ask()  # nothing has worked: the next one of the portfolio
    assert config == study.starts[3]
    study.tell(config, error(config))
    assert study.ask()[0] not in study.starts[:4]


def test_standard_errors(old: OldStudiesMean) -> None:
    study = Study(DICTIONARIES, seed=3, earlier=old)
    for k in range(7):
        (config,) = study.ask()
        study.tell(config, error(config, 0.3), sem=0.1 * (k + 1))
    for model in study.models:
        # outcomes are compressed where they are bad: the best one is as it was
        scale = model.outcome_transform["standardize"].stdvs.flatten()
        best = int(model.train_targets.argmax())
        known = (0.1 * (best + 1)) ** 2 / scale**2
        assert model.likelihood.noise[best] == pytest.approx(float(known), rel=0.2)
    assert isinstance(study.models[-1], TransferGP)
    assert study.best is not None and study.best[1] < 0.1


def test_a_log_goes_on(old: OldStudiesMean, tmp_path: Path) -> None:
    log = tmp_path / "new.jsonl"
    run(Study(DICTIONARIES, seed=3, earlier=old, log=log), 3)
    study = Study(DICTIONARIES, earlier=old, log=log)
    assert study.ask() == run_and_ask(Study(DICTIONARIES, seed=3, earlier=old), 3)


def run_and_ask(study: Study, n: int) -> list[dict[str, Any]]:
    run(study, n)
    return study.ask()


FOUR = [{"branch": [name], "x": (0.0, 1.0)} for name in "abcd"]


def value(config: Mapping[str, Any]) -> float:
    """The best branch is a."""
    return float("abcd".index(config["branch"])) + (config["x"] - 0.4) ** 2


def old_studies_of_four(sign: float) -> list[Study]:
    studies = []
    for seed in range(3):
        studies.append(Study(FOUR, seed=seed))
        configs = studies[-1].space.decode(studies[-1].space.sample(25, seed=seed))
        studies[-1].tell_many(configs, [sign * value(c) for c in configs])
    return studies


def visited(sign: float, **kwargs: Any) -> tuple[list[str], Study]:
    """Branches of ten trials, where old studies say the same, or the opposite."""
    study = Study(FOUR, seed=3, earlier=old_studies_of_four(sign), **kwargs)
    study.optimize(value, 10, progress=False)
    return [trial.config["branch"] for trial in study.trials], study


def test_starts_are_for_old_studies_that_mislead() -> None:
    right, _ = visited(1.0)
    assert right[:2] == ["a", "b"]  # two paths, to see whether they mislead
    assert right[2:7] == ["a"] * 5
    wrong, study = visited(-1.0)
    assert wrong[:2] == ["d", "c"] and {*wrong[:4]} == {*"abcd"}
    starts = Study(FOUR, seed=3).starts
    # on the paths that nothing is known of
    assert [t.config for t in study.trials[2:4]] == [
        start for start in starts if start["branch"] in "ab"
    ]
    assert study.best[0]["branch"] == "a" and len(study.models) == 3
    _, study = visited(-1.0, starts="middle")
    assert study.trials[2].config == {"branch": "a", "x": 0.5}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_batch_after_the_first_outcome_is_on_other_paths(sign: float) -> None:
    study = Study(FOUR, seed=3, earlier=old_studies_of_four(sign))
    (first,) = study.ask()
    study.tell(first, value(first))
    batch = study.ask(3)
    assert batch[0] == study.starts[1]
    assert {config["branch"] for config in [first, *batch]} == {*"abcd"}
    assert all(config in Study(FOUR, seed=3).starts for config in batch[1:])


def test_known_noise_does_not_condemn_old_studies() -> None:
    """The objective is between 0 and 3.5, the noise has a standard deviation of 1."""
    rejected = {}
    for sign in (1.0, -1.0):
        study = Study(FOUR, seed=3, earlier=old_studies_of_four(sign))
        old = study.earlier
        assert old is not None
        for known in (False, True):
            count = 0
            for seed in range(10):
                X = study.space.sample(5, seed=100 + seed)
                Y = -torch.tensor([[value(c)] for c in study.space.decode(X)]).double()
                generator = torch.Generator().manual_seed(seed)
                Y += torch.randn(5, 1, generator=generator).double()
                Yvar = torch.ones_like(Y) if known else None
                count += not old_studies_predict(old, X, Y, train_Yvar=Yvar)
            rejected[sign, known] = count
    assert rejected[1.0, True] <= 4 < 8 <= rejected[1.0, False]
    assert rejected[-1.0, True] >= 8


def data(n: int) -> tuple[Tensor, Tensor]:
    X = SPACE.sample(n, seed=1)
    return X, -torch.tensor([[error(c, 0.3)] for c in SPACE.decode(X)]).double()


def test_old_studies_are_alone_where_they_predict(old: OldStudiesMean) -> None:
    X, Y = data(6)

    def kinds(X: Tensor, Y: Tensor, C: Tensor | None = None) -> int:
        found = suggest(SPACE, X, Y, train_C=C, earlier=old, seed=0).models
        assert TransferGP in map(type, found)
        return len(found)

    assert kinds(X[:1], Y[:1]) == kinds(X[:4], Y[:4]) == 1
    assert kinds(X, Y) == kinds(X[:4], -Y[:4]) == 3
    failed = Y[:2].clone()
    failed[0] = -math.inf
    assert kinds(X[:2], failed) == 1
    kept = torch.zeros(4, 1).double()
    assert kinds(X[:4], -Y[:4], kept) == 3
    kept[1:] = 1.0  # what broke a constraint says nothing
    assert kinds(X[:4], -Y[:4], kept) == 1


def test_where_there_are_no_starts_to_compare_with(old: OldStudiesMean) -> None:
    """The second configuration is from old studies, too."""
    study = Study(DICTIONARIES, seed=3, earlier=old)
    for _ in range(2):
        (config,) = study.ask(fixed={"learner": "svm"})
        study.tell(config, error(config, 0.3))
    assert len(study.models) == 1 and study.best[1] < 0.02


# -- other doors: the same lines with and without `earlier` ------------------------


@pytest.mark.parametrize("with_old", [False, True])
def test_optuna(with_old: bool) -> None:
    """Old studies with failures, another range, other choices, or nothing in common."""
    optuna = pytest.importorskip("optuna")
    from botorch_structured.integrations.optuna import StructuredSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: Any, high: float = 1e3, more: tuple[str, ...] = ()) -> float:
        learner = trial.suggest_categorical("learner", ["svm", "near", *more])
        config = {"learner": learner, "scale": trial.suggest_int("s", 0, 1) == 0}
        if learner == "svm":
            config["C"] = trial.suggest_float("C", 1e-3, high, log=True)
        else:
            config["k"] = trial.suggest_int("k", 1, 50)
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise RuntimeError
        return -error(config)

    def ended(sampler: Any, n: int, *more: Any) -> Any:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(lambda trial: objective(trial, *more), n, catch=RuntimeError)
        return study

    random = optuna.samplers.RandomSampler
    others: list[tuple[Any, ...]] = [(), (1e4,), (1e3, ("tree",))]
    old = [ended(random(seed=k), 20, *more) for k, more in enumerate(others)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = ended(StructuredSampler(seed=0, earlier=old if with_old else None), 6)
    assert (study.trials[0].value > -0.05) is with_old
    if with_old:
        sampler = StructuredSampler(seed=0, earlier=[optuna.create_study()])
        with pytest.warns(UserWarning, match="Old studies are not used"):
            ended(sampler, 4)


@pytest.mark.parametrize("with_old", [False, True])
def test_scikit_learn(with_old: bool) -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import BaseEstimator, clone

    from botorch_structured.integrations.sklearn import StructuredSearchCV

    class Fixed(BaseEstimator):
        def __init__(self, C: float = 1.0, scale: bool = True, shift: float = 0.0):
            self.C, self.scale, self.shift = C, scale, shift

        def fit(self, X: Any, y: Any) -> "Fixed":
            return self

        def score(self, X: Any, y: Any) -> float:
            config = {"learner": "svm", "C": self.C, "scale": self.scale}
            return -error(config, self.shift)

    space = {"C": (1e-3, 1e3, "log"), "scale": [True, False]}
    data = [[k] for k in range(10)], [0, 1] * 5
    old = [
        StructuredSearchCV(Fixed(shift=s), space, n_iter=8, cv=2, random_state=k)
        for k, s in enumerate((0.0, 0.2))
    ]
    earlier = [search.fit(*data) for search in old] if with_old else None
    search = clone(
        StructuredSearchCV(
            Fixed(shift=0.3), space, n_iter=3, cv=2, random_state=5, earlier=earlier
        )
    )
    scores = search.fit(*data).cv_results_["mean_test_score"]
    assert bool(scores[0] > -0.05) is with_old


@pytest.mark.parametrize("with_old", [False, True])
def test_ax(with_old: bool, tmp_path: Path) -> None:
    ax = pytest.importorskip("ax")
    from botorch_structured.integrations.ax import structured_generation_strategy

    values = []

    def searched(shift: float, n: int, seed: int, earlier: Any = None) -> Any:
        values.clear()
        client = ax.Client(random_seed=0)
        client.configure_experiment(
            [
                ax.RangeParameterConfig("C", (1e-3, 1e3), "float", scaling="log"),
                ax.ChoiceParameterConfig("scale", [True, False], "bool"),
            ]
        )
        client.configure_optimization(objective="-error")
        client.set_generation_strategy(
            structured_generation_strategy(seed=seed, earlier=earlier)
        )
        for _ in range(n):
            for k, config in client.get_next_trials(max_trials=1).items():
                values.append(error({"learner": "svm", **config}, shift))
                client.complete_trial(k, raw_data={"error": values[-1]})
        return client

    old = [searched(0.0, 7, 0), searched(0.1, 7, 1)] if with_old else None
    client = searched(0.3, 3, 5, old)
    assert (values[0] < 0.05) is with_old
    if with_old:
        client.save_to_json_file(str(tmp_path / "client.json"))
        again = ax.Client.load_from_json_file(str(tmp_path / "client.json"))
        assert again.get_next_trials(1) == client.get_next_trials(1)
        assert json.loads((tmp_path / "client.json").read_text())
