from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
import joblib
import sklearn
from scipy.sparse import csr_array
from scipy.stats import expon, loguniform, norm, randint
from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_regressor
from sklearn.datasets import load_iris
from sklearn.exceptions import FitFailedWarning
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import (
    KFold,
    RandomizedSearchCV,
    ShuffleSplit,
    _search,
    cross_val_score,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    StandardScaler,
)
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from botorch_structured import Study
from botorch_structured.integrations.sklearn import StructuredSearchCV
from botorch_structured.spaces import SearchSpace

pytestmark = [
    pytest.mark.filterwarnings("ignore:One or more of the test scores"),
    pytest.mark.filterwarnings("ignore:.*is the range between two numbers"),
]

X, y = load_iris(return_X_y=True)
PIPELINE = Pipeline([("scale", StandardScaler()), ("model", SVC())])
SPACE = [
    {
        "scale": ["passthrough", StandardScaler(), MinMaxScaler()],
        "model": [SVC()],
        "model__C": loguniform(1e-3, 1e3),
        "model__gamma": loguniform(1e-4, 1e1),
    },
    {
        "scale": ["passthrough", StandardScaler(), MinMaxScaler()],
        "model": [KNeighborsClassifier()],
        "model__n_neighbors": randint(1, 50),
        "model__weights": ["uniform", "distance"],
    },
]


class Peak(ClassifierMixin, BaseEstimator):
    """A classifier whose score is a formula; some of its fits fail."""

    def __init__(
        self, kind: str = "left", x: float = 0.0, fail: str = "", noise: float = 0.0
    ) -> None:
        self.kind, self.x, self.fail, self.noise = kind, x, fail, noise

    def fit(self, X: Any, y: Any) -> Peak:
        if self.fail == "always" or (self.fail == self.kind):
            raise RuntimeError("it does not fit")
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        if self.fail == "nan" and self.kind == "right":
            return float("nan")
        return -((self.x - 0.3) ** 2) - 0.1 * (self.kind == "right")


PEAKS = {"kind": ["left", "right"], "x": (0.0, 1.0)}


def search(estimator: Any = None, space: Any = None, n_iter: int = 8, **kwargs: Any):
    options = {"cv": 3, "random_state": 0, **kwargs}
    estimator = Peak() if estimator is None else estimator
    space = PEAKS if space is None else space
    return StructuredSearchCV(estimator, space, n_iter, **options)


def expected_to_fail(estimator: Any) -> dict[str, str]:
    """What scikit-learn's own searches are not expected to pass either."""
    if not is_regressor(estimator):
        return {}
    return {"check_supervised_y_2d": "DataConversionWarning not caught"}


if hasattr(sklearn.utils.estimator_checks, "estimator_checks_generator"):  # from 1.6

    @parametrize_with_checks(
        [
            search(estimator, space, 2, cv=2, **kwargs)
            for estimator, space, kwargs in (
                (LogisticRegression(), {"C": (0.1, 1.0)}, {"error_score": "raise"}),
                (Ridge(), {"alpha": (0.1, 1.0)}, {}),
                (
                    make_pipeline(StandardScaler(), Ridge()),
                    [{"ridge__alpha": (0.1, 1.0)}, {"ridge__solver": ["svd"]}],
                    {"error_score": "raise"},
                ),
            )
        ],
        expected_failed_checks=expected_to_fail,
    )
    def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(estimator)


def test_a_pipeline_whose_steps_are_choices() -> None:
    fitted = search(PIPELINE, SPACE, 12).fit(X, y)
    assert fitted.best_score_ > 0.9
    assert fitted.score(X, y) > 0.9
    params = fitted.cv_results_["params"]
    assert len(params) == 12
    assert params[fitted.best_index_] == fitted.best_params_
    assert type(fitted.best_estimator_["model"]) is type(fitted.best_params_["model"])
    # choices are cloned: what the user gave is never fitted
    for choice in (*SPACE[0]["scale"][1:], SPACE[0]["model"][0], SPACE[1]["model"][0]):
        assert not any(name.endswith("_") for name in vars(choice))
    models = {type(p["model"]) for p in params}
    assert models == {SVC, KNeighborsClassifier}
    assert [("model__C" in p) for p in params] == [
        type(p["model"]) is SVC for p in params
    ]


def test_scores_are_those_of_cross_validation() -> None:
    folds = KFold(3, shuffle=True, random_state=1)
    fitted = search(PIPELINE, SPACE, 4, cv=folds).fit(X, y)
    for params, score in zip(
        fitted.cv_results_["params"],
        fitted.cv_results_["mean_test_score"],
        strict=True,
    ):
        model = clone(PIPELINE).set_params(**clone(params, safe=False))
        assert score == pytest.approx(cross_val_score(model, X, y, cv=folds).mean())


@pytest.mark.usefixtures("random_points")
def test_results_have_the_columns_of_scikit_learn() -> None:
    ours = search(n_iter=4, return_train_score=True).fit(X, y).cv_results_
    lists = {"kind": ["left", "right"], "x": [0.1, 0.2]}
    theirs = RandomizedSearchCV(Peak(), lists, n_iter=4, cv=3, return_train_score=True)
    theirs = theirs.fit(X, y).cv_results_
    assert ours.keys() == theirs.keys()
    for name, column in theirs.items():
        assert len(ours[name]) == 4
        assert type(ours[name]) is type(column)


def test_candidates_are_those_of_a_study() -> None:
    fitted = search(n_iter=5, random_state=5, starts="random").fit(X, y)
    study = Study(PEAKS, "maximize", seed=fitted.study_.seed, starts="random")
    results = fitted.cv_results_
    for params, score in zip(
        results["params"], results["mean_test_score"], strict=True
    ):
        assert study.ask() == [params]
        study.tell(params, score)
    assert study.best == (fitted.best_params_, fitted.best_score_)


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize("state", [3, np.random.RandomState(3)])
def test_the_same_state_gives_the_same_search(state: Any) -> None:
    first = search(n_iter=3, random_state=clone(state, safe=False)).fit(X, y)
    again = search(n_iter=3, random_state=clone(state, safe=False)).fit(X, y)
    other = search(n_iter=3, random_state=4).fit(X, y)
    assert first.cv_results_["params"] == again.cv_results_["params"]
    assert first.cv_results_["params"] != other.cv_results_["params"]


def test_all_candidates_see_the_same_folds() -> None:
    folds = ShuffleSplit(3, test_size=0.3)  # other ones each time it is asked
    same = {"p": [2, 3], "metric": "chebyshev"}  # p has no say
    fitted = search(KNeighborsClassifier(), same, 2, cv=folds).fit(X, y)
    columns = [fitted.cv_results_[f"split{k}_test_score"] for k in range(3)]
    assert all(len(set(column)) == 1 for column in columns)


@pytest.mark.usefixtures("random_points")
def test_folds_may_be_given_as_they_are() -> None:
    folds = list(KFold(3, shuffle=True, random_state=1).split(X, y))
    listed = search(n_iter=4, cv=folds).fit(X, y)
    once = search(n_iter=4, cv=iter(folds)).fit(X, y)
    assert listed.n_splits_ == once.n_splits_ == 3
    assert listed.cv_results_["params"] == once.cv_results_["params"]


@pytest.mark.parametrize("fail", ["right", "nan"])
def test_failures_are_avoided_and_shown(fail: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = search(Peak(fail=fail), n_iter=12).fit(X, y)
    failed = np.array([p["kind"] == "right" for p in fitted.cv_results_["params"]])
    scores = fitted.cv_results_["mean_test_score"]
    assert len(scores) == 12
    assert 1 <= failed.sum() <= 4
    assert (np.isnan(scores) == failed).all()
    assert (
        fitted.cv_results_["rank_test_score"][failed] == 12 - failed.sum() + 1
    ).all()
    assert fitted.best_params_["kind"] == "left"
    states = [trial.state for trial in fitted.study_.trials]
    assert (np.array(states) == "failed").tolist() == failed.tolist()
    ours = [w for w in caught if "non-finite" in str(w.message)]
    assert len(ours) == 1
    fits = [w for w in caught if issubclass(w.category, FitFailedWarning)]
    assert len(fits) == (fail == "right")  # once, as in scikit-learn's searches
    if fits:
        text = str(fits[0].message)
        assert f"{3 * failed.sum()} fits failed out of a total of 36" in text
        assert text.count("RuntimeError: it does not fit") == 1
        assert text.count("{'kind': 'right', 'x': ") == min(failed.sum(), 3)
        assert fits[0].filename == __file__
    ranges = [w for w in caught if "'x': (0.0, 1.0) is the range" in str(w.message)]
    assert [w.filename for w in ranges] == [__file__]


def test_where_to_begin() -> None:
    space = [{"kind": ["left"], "x": (0.0, 1.0)}, {"kind": ["right"], "x": (0.0, 1.0)}]
    middle = [{"kind": "left", "x": 0.5}, {"kind": "right", "x": 0.5}]
    own = [{"kind": "right", "x": 0.25}, {"kind": "right", "x": 0.75}]
    for starts, expected in (("middle", middle), (own, own)):
        search = StructuredSearchCV(Peak(), space, 3, starts=starts, random_state=0)
        assert clone(search).starts is not None
        assert search.fit(X, y).cv_results_["params"][:2] == expected
    with pytest.raises(ValueError, match="starts: expected one of"):
        StructuredSearchCV(Peak(), space, 3, starts="best").fit(X, y)


GAMMA = {"model__gamma": (1e-4, 1e1, "log")}


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
@pytest.mark.parametrize("word", ["scale", "auto"])
def test_the_scale_of_a_kernel_is_that_of_standardised_data(
    kind: Any, word: str
) -> None:
    svc = SVC(gamma=word)
    model = Pipeline([("scale", MaxAbsScaler()), ("model", svc)])
    for space in (GAMMA, {"model": svc} | GAMMA):
        fitted = search(model, space, 1).fit(kind(X), y)
        (first,) = fitted.cv_results_["params"]
        assert first["model__gamma"] == pytest.approx(0.25)


def test_a_step_that_cannot_be_fitted_is_the_error_of_the_fits() -> None:
    model = Pipeline([("select", SelectKBest(k=-1)), ("model", SVC())])
    fitted = search(model, GAMMA, 2)
    with pytest.raises(ValueError, match=r"All the \d+ fits failed"):
        fitted.fit(X, y)
    assert not {"_data", "_history"} & vars(fitted).keys()


class Packed(StructuredSearchCV):
    """Notes how large it is for a process that fits."""

    def _run_search(self, evaluate_candidates: Any) -> None:
        self.bytes_ = len(pickle.dumps(self))
        super()._run_search(evaluate_candidates)


def test_processes_do_not_get_the_data_with_the_search() -> None:
    data = np.tile(X, 9)
    fitted = Packed(SVC(), {"C": (0.1, 1.0)}, 1, cv=2, random_state=0).fit(data, y)
    assert fitted.bytes_ < data.nbytes / 10


def test_what_estimators_are_set_to_repeats_no_candidate() -> None:
    # five neighbours are the default, and one of four choices
    space = [
        {"model": [SVC()], "model__C": [0.1, 1.0, 10.0]},
        {"model": [KNeighborsClassifier()], "model__n_neighbors": [1, 3, 5, 9]},
    ]
    for seed in range(3):
        fitted = StructuredSearchCV(PIPELINE, space, 4, random_state=seed).fit(X, y)
        params = fitted.cv_results_["params"]
        assert [type(p["model"]) for p in params[:2]] == [SVC, KNeighborsClassifier]
        assert params[1]["model__n_neighbors"] == 5
        assert len({str(p) for p in params}) == 4


def test_the_first_candidates_stay_on_their_paths() -> None:
    # the decision is a number with a value of its own, and half of the values of x
    # belong to the other dictionary
    space = [
        {"noise": [0.1], "kind": ["left"], "x": (0.0, 0.5)},
        {"noise": [0.2], "kind": ["left"], "x": (0.5, 1.0)},
    ]
    peak = Peak(noise=0.2, x=0.75)
    fitted = StructuredSearchCV(peak, space, 2, random_state=0).fit(X, y)
    first, second = fitted.cv_results_["params"]
    assert first["noise"] == 0.1 and 0.0 < first["x"] < 0.5
    assert second == {"noise": 0.2, "kind": "left", "x": 0.75}


def test_no_first_candidate_is_forbidden() -> None:
    space = SearchSpace(
        ["x", "noise"],
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        feasible=lambda X: X.sum(-1) > 1.0,
    )
    peak = Peak(x=0.9, noise=0.0)
    fitted = StructuredSearchCV(peak, space, 1, random_state=0).fit(X, y)
    (first,) = fitted.cv_results_["params"]
    assert first["x"] + first["noise"] > 1.0
    assert (first["x"] == 0.9) != (first["noise"] == 0.0)


def test_a_score_for_failures() -> None:
    with pytest.warns(FitFailedWarning):
        fitted = search(
            Peak(fail="right"), {"kind": ["left", "right"]}, 2, error_score=-9
        ).fit(X, y)
    failed = np.array([p["kind"] == "right" for p in fitted.cv_results_["params"]])
    assert (fitted.cv_results_["mean_test_score"][failed] == -9).all()


def test_errors_are_raised_where_that_is_asked_for() -> None:
    with pytest.raises(RuntimeError, match="it does not fit"):
        search(Peak(fail="right"), error_score="raise").fit(X, y)
    with pytest.raises(ValueError, match=r"All the \d+ fits failed") as failure:
        search(Peak(fail="always"), n_iter=7).fit(X, y)
    assert str(failure.value).count("RuntimeError: it does not fit") == 1
    with pytest.raises(ValueError, match="Invalid parameter 'z'"):
        search(space={"z": (0.0, 1.0)}).fit(X, y)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n_iter": 0}, "n_iter: expected a positive integer, got 0"),
        ({"space": {"x": "constant"}}, "^space: expected at least one parameter with"),
        ({"space": []}, "^space: expected at least one parameter with several values"),
        ({"param_distributions": PEAKS}, "or param_distributions, got both"),
        ({"space": {"x": {1, 2}}}, "'x': expected a list, or an array"),
        ({"space": 3}, "space: expected"),
        ({"random_state": "seed"}, "random_state|seed"),
    ],
)
def test_arguments_are_checked(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(**kwargs).fit(X, y)


def test_partial_failures_of_candidates_are_counted() -> None:

    class Fragile(Peak):
        def fit(self, X: Any, y: Any) -> Peak:
            if self.kind == "half" and X[0, 0] == 0.0:
                raise RuntimeError("a fold does not fit")
            return super().fit(X, y)

    numbers = np.arange(12.0)[:, None]
    labels = np.arange(12) % 2
    space = {"kind": ["left", "right", "half"]}
    with pytest.warns(FitFailedWarning, match="5 fits failed out of a total of 9") as w:
        search(Fragile(fail="right"), space, 3).fit(numbers, labels)
    assert [w.category for w in w].count(FitFailedWarning) == 1


@pytest.mark.usefixtures("random_points")
def test_as_randomized_search_is_written() -> None:
    """Its argument, and distributions without a range."""
    space = {"x": norm(0.3, 0.1), "noise": expon(scale=100), "fail": randint(3, 4)}
    fitted, same = (
        clone(StructuredSearchCV(Peak(), n_iter=6, cv=3, random_state=0, **given))
        .fit(X, y)
        .cv_results_["params"]
        for given in ({"param_distributions": space}, {"space": space})
    )
    assert fitted == same and all(p["fail"] == 3 for p in fitted)
    with pytest.raises(
        ValueError, match="space: expected it or param_dist.*, got none"
    ):
        StructuredSearchCV(Peak()).fit(X, y)


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize("after", [1, 4])
def test_what_was_found_before_an_interruption_is_kept(after: int) -> None:
    left = [after]

    class Stopped(Peak):
        def fit(self, X: Any, y: Any) -> Peak:
            if self.kind == "right" and not left[0]:
                raise KeyboardInterrupt
            left[0] -= self.kind == "right"
            return super().fit(X, y)

    stopped = search(Stopped(), {"kind": ["right"], "x": (0.0, 1.0)}, 9)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(X, y)
    n = after // 3  # whole candidates of three folds
    assert len(stopped.study_.trials) == n
    if n:
        scores = stopped.cv_results_["mean_test_score"]
        assert len(scores) == n and stopped.best_score_ == scores.max()
        assert stopped.best_params_ in stopped.cv_results_["params"]
        assert pickle.loads(pickle.dumps(stopped.study_)).trials
    else:
        assert not hasattr(stopped, "cv_results_")


class Dying(Peak):
    def fit(self, X: Any, y: Any) -> Peak:
        if self.kind == "right" and self.x > 0.5:
            os.kill(os.getpid(), signal.SIGKILL)  # out of memory
        return super().fit(X, y)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        return None if self.kind == "right" else super().score(X, y)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signal")
def test_neither_dead_processes_nor_bad_scores_end_a_search(n_jobs: int) -> None:
    space = {"kind": ["right"], "x": (0.0, 0.4 if n_jobs == 1 else 1.0)}
    space = [{"kind": ["left"], "x": [0.1, 0.2]}, space]
    options = {"n_jobs": n_jobs, "refit": False, "cv": 2}
    with pytest.raises(ValueError, match="scoring must return a number, got None"):
        search(Dying(), space[1], 3, **{**options, "n_jobs": 1}).fit(X, y)
    with pytest.warns(FitFailedWarning, match="must return a number|terminated"):
        fitted = search(Dying(), space, 6, **options).fit(X, y)
    scores = fitted.cv_results_["mean_test_score"]
    failed = [c["kind"] == "right" for c in fitted.cv_results_["params"]]
    assert 2 <= sum(failed) < 6 and np.isnan(scores).tolist() == failed


@pytest.mark.usefixtures("random_points")
def test_fits_that_a_failed_call_left_are_of_no_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With several processes joblib makes them before those of the next call."""
    left: list[Any] = []

    class Leaving(_search.Parallel):
        def __call__(self, iterable: Any) -> Any:
            tasks = [*left, *iterable]
            left.clear()
            if len(tasks) > 3:  # several candidates
                left.append(tasks[-1])
                raise ValueError("scoring must return a number")
            return super().__call__(tasks)

    space = {"kind": ["left", "right"], "x": [0.1, 0.2]}
    expected = search(space=space, n_iter=4, cv=2, starts="random").fit(X, y)
    monkeypatch.setattr(_search, "Parallel", Leaving)
    fitted = search(space=space, n_iter=4, cv=2, starts="random").fit(X, y)
    for key in ("params", "mean_test_score"):
        assert [*fitted.cv_results_[key]] == [*expected.cv_results_[key]]


@pytest.mark.usefixtures("random_points")
def test_a_log_goes_on(tmp_path: Path) -> None:
    """In another process, say: nothing is fitted again but one good candidate."""
    fits: list[int] = []

    class Counted(Peak):
        def fit(self, X: Any, y: Any) -> Peak:
            fits.append(1)
            return super().fit(X, y)

    whole = search(Counted(fail="right"), n_iter=9, log=tmp_path / "whole.jsonl")
    with pytest.warns(FitFailedWarning) as said:
        whole.fit(X, y)
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    pickle.loads(pickle.dumps(whole.study_))
    for told in (0, 1, 6, 9):
        path, n, stop = tmp_path / f"{told}.jsonl", 0, 0
        for i, line in enumerate(lines):
            n += b'"told"' in line
            stop = i + 1 if n <= told else stop
        path.write_bytes(b"".join(lines[:stop]))
        again = search(Counted(fail="right"), n_iter=9, log=path)
        fits.clear()
        with pytest.warns(FitFailedWarning) as same:
            again.fit(X, y)
        assert len(fits) == 3 * max(9 - told, 1) + 1  # with the refit
        assert again.cv_results_["params"] == whole.cv_results_["params"]
        for key in ("mean_test_score", "std_test_score", "rank_test_score"):
            np.testing.assert_array_equal(
                again.cv_results_[key], whole.cv_results_[key]
            )
        assert str(same[0].message)[:90] == str(said[0].message)[:90]
        assert again.best_params_ == whole.best_params_
    for message, other in (
        ("log: expected that of a search with the same data", {"X": X + 1}),
        ("the same estimator, scoring, cv, error_score", {"cv": 2}),
        ("the same estimator, scoring, cv, error_score", {"scoring": "accuracy"}),
        ("the same estimator, scoring, cv, error_score", {"estimator": Peak(noise=1)}),
        ("random_state: expected one with a log", {"random_state": None}),
        ("space: expected", {"space": {"kind": ["left"], "x": (0.0, 1.0)}}),
    ):
        data = other.pop("X", X)
        given = {"estimator": Counted(fail="right"), "n_iter": 12, "log": path}
        with pytest.raises(ValueError, match=message):
            search(**given | other).fit(data, y)


def test_dictionaries_without_a_common_name() -> None:
    fitted = search(space=[{"x": [0.2, 0.3]}, {"noise": [1.0, 2.0]}], n_iter=4).fit(
        X, y
    )
    assert fitted.best_params_ == {"x": 0.3}


@pytest.mark.usefixtures("random_points")
@pytest.mark.parametrize("n_jobs", [1, 4])
def test_a_space_that_is_smaller_than_the_search(n_jobs: int) -> None:
    small = search(space={"x": [0.1, 0.2, 0.3, 0.4]}, n_iter=9, n_jobs=n_jobs)
    said = pytest.warns(UserWarning, match="at least n_iter=9 candidates.* got 4: all")
    with said, joblib.parallel_backend("threading"):
        small.fit(X, y)
    assert len(small.cv_results_["params"]) == len(small.study_.trials) == 4


@pytest.mark.usefixtures("random_points")
def test_other_spaces() -> None:
    ConfigSpace = pytest.importorskip("ConfigSpace")
    cs = ConfigSpace.ConfigurationSpace(
        {"kind": ["left", "right"], "x": (0.0, 1.0)}, seed=0
    )
    for space in (cs, SearchSpace.from_dictionaries(PEAKS), [PEAKS]):
        fitted = search(space=space, n_iter=3).fit(X, y)
        assert set(fitted.best_params_) == {"kind", "x"}


@pytest.mark.usefixtures("random_points")
def test_several_metrics_and_the_one_to_refit() -> None:
    metrics = ["accuracy", "neg_log_loss"]
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    space = {"logisticregression__C": (1e-3, 1e3, "log")}
    fitted = search(pipeline, space, 4, scoring=metrics, refit="neg_log_loss").fit(X, y)
    assert fitted.study_.objectives == {"neg_log_loss": "maximize"}
    assert fitted.best_score_ == fitted.cv_results_["mean_test_neg_log_loss"].max()
    assert fitted.study_.best[1] == fitted.best_score_


def test_a_function_may_choose() -> None:
    worst = search(refit=lambda results: int(results["rank_test_score"].argmax()))
    fitted = worst.fit(X, y)
    assert fitted.best_index_ == fitted.cv_results_["mean_test_score"].argmin()
    assert not hasattr(fitted, "best_score_")


def test_without_scikit_learn_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "botorch_structured.integrations.sklearn"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn.exceptions", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        __import__(name)


@pytest.mark.usefixtures("random_points")
def test_a_clone_has_the_same_space() -> None:
    svc, C = SVC(), (1e-2, 1e2, "log")
    space = [
        {"m": [svc], "m__kernel": ["rbf"], "m__C": C},
        {"m": [svc], "m__kernel": ["linear"], "m__C": C},
        {"m": [DecisionTreeClassifier()], "m__max_depth": (1, 9)},
    ]
    starts = [{"m": svc, "m__kernel": "linear", "m__C": 1.0}]
    mine = search(Pipeline([("m", svc)]), space, 4, cv=2, starts=starts)
    copied = clone(mine)
    assert copied.space[0]["m"][0] is copied.space[1]["m"][0] is not svc
    scores = [s.fit(X, y).cv_results_["mean_test_score"] for s in (mine, copied)]
    np.testing.assert_array_equal(*scores)


class Needle(Peak):
    """The right side is bad nearly everywhere, and best where no draw is by chance."""

    def __init__(
        self, kind: str = "left", k: int = 1, c: float = 0.0, z: float = 0.0
    ) -> None:
        self.kind, self.k, self.c, self.z, self.fail = kind, k, c, z, ""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        if self.kind == "left":
            return 0.62 + 0.05 / self.k + 0.004 * np.sin(9.0 * self.c)
        return 1.0 if 0.5 < self.z < 0.5001 else 0.5


NEEDLE = [
    {"kind": ["left"], "k": (1, 50), "c": (0.0, 1.0)},
    {"kind": ["right"], "z": (0.0, 1.0), "c": (0.0, 1.0)},
]


@pytest.mark.parametrize("jobs", [1, 9])
def test_a_path_that_begins_badly_is_not_left(jobs: int) -> None:
    """Every fourth candidate is on the path with the fewest for its parameters."""
    # the needle is not found: the left side stays the better one
    with joblib.parallel_backend("threading"):
        fitted = search(Needle(), NEEDLE, 16, n_jobs=jobs, random_state=1).fit(X, y)
    params = fitted.cv_results_["params"]
    assert len(params) == 16 == len({str(p) for p in params})
    kinds = [p["kind"] for p in params]
    assert kinds.count("right") >= 2 + (16 - 4) // 4
    assert kinds.count("left") > 16 // 2
    assert [trial.config for trial in fitted.study_.trials] == params


@pytest.mark.usefixtures("random_points")
def test_a_path_that_is_used_up_takes_no_turns() -> None:
    space = [{"kind": ["none"]}, *NEEDLE]
    params = search(Needle(), space, 27).fit(X, y).cv_results_["params"]
    assert len({str(p) for p in params}) == 27
    assert [p["kind"] for p in params].count("right") >= 1 + 24 // 4


@pytest.mark.usefixtures("random_points")
def test_a_scorer_of_several_numbers_without_a_refit() -> None:
    def scorer(estimator: Any, X: Any, y: Any) -> dict[str, float]:
        return {"a": estimator.score(X, y), "b": 0.0}

    fitted = search(n_iter=5, scoring=scorer, refit=False).fit(X, y)
    assert fitted.study_.objectives == {"a": "maximize", "b": "maximize"}
    assert len(fitted.study_.trials) == len(fitted.cv_results_["mean_test_a"]) == 5


@pytest.mark.usefixtures("random_points")
def test_a_quarter_of_few_candidates_are_starts() -> None:
    space = [{"kind": [f"k{i}"], "x": (0.0, 1.0)} for i in range(36)]
    fitted = search(space=space, n_iter=24).fit(X, y)
    kinds = [p["kind"] for p in fitted.cv_results_["params"]]
    assert len(set(kinds[:6])) == 6
