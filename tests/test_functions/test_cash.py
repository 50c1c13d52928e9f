from __future__ import annotations

import numpy as np
import pytest
import torch

from botorch_structured.test_functions import ScikitLearnCASH, cash

pytest.importorskip("sklearn")

KNN = {"learner": "knn", "knn:n_neighbors": 5}
TREE = {"max_depth": (1, 10)}
TREE |= {f"min_samples_{part}": (2, 100) for part in ("split", "leaf")}
# Every hyperparameter of section V, with its range.
SPACE = {
    "knn": {"n_neighbors": (1, 30)},
    "svm": {"C": (1e-5, 1e5), "gamma": (1e-5, 1e5)},
    "linsvm": {"C": (1e-5, 1e5)},
    "dt": TREE,
    "rf": {"n_estimators": (1, 30), **TREE},
    "adab": {"n_estimators": (1, 30)},
    "gnb": {},
    "lda": {},
    "qda": {"reg_param": (1e-3, 1.0)},
}


@pytest.fixture(scope="module")
def wine() -> ScikitLearnCASH:
    return ScikitLearnCASH("wine")


def test_the_space_is_the_paper_s(wine: ScikitLearnCASH) -> None:
    names = [f"{learner}:{hp}" for learner, hps in SPACE.items() for hp in hps]
    assert sorted(wine.space.names) == sorted(["learner", *names])
    assert wine.dim == 14 and wine.tree.num_paths == 9
    logarithmic = {"svm:C", "svm:gamma", "linsvm:C", "qda:reg_param"}
    for j, name in enumerate(wine.space.names[1:], start=1):
        learner, _, hp = name.partition(":")
        expected = SPACE[learner][hp]
        if name in logarithmic:
            expected = tuple(np.log10(expected))
        assert wine.bounds[:, j].tolist() == pytest.approx(expected)
        assert (j in wine.space.integer_features) == (name not in logarithmic)
    assert wine.tree.shared_columns == []


def test_every_learner_runs(wine: ScikitLearnCASH) -> None:
    X = wine.starts(0)
    configs = wine.space.decode(X)
    assert {c["learner"] for c in configs} == set(SPACE)
    before = len(wine.evaluations)
    Y = wine(X)
    done = wine.evaluations[before:]
    assert [c for c, _ in done] == configs
    assert [e.value for _, e in done] == Y.tolist()
    assert all(e.error is None for _, e in done)
    assert (Y >= 0).all() and Y.min() < 0.1
    # deterministic, whatever the inactive columns hold, and whatever the shape
    other = torch.where(wine.tree.active_mask(X), X, torch.nan)
    assert torch.equal(wine(other.view(3, 3, -1)), Y.view(3, 3))
    negative = ScikitLearnCASH("wine", negate=True)
    assert torch.equal(negative(X[:2]), -Y[:2])


def test_is_what_scikit_learn_says(wine: ScikitLearnCASH) -> None:
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    for config in (
        KNN,
        {
            "learner": "rf",
            "rf:n_estimators": 7,
            "rf:max_depth": 3,
            "rf:min_samples_split": 4,
            "rf:min_samples_leaf": 2,
        },
        {"learner": "linsvm", "linsvm:C": 0.125},
    ):
        code = wine.to_sklearn_code(config)
        scope = {"X": X, "y": y}
        exec(code, scope)
        assert scope["error"] == wine.evaluate(config).value
    assert "KNeighborsClassifier(n_neighbors=5)" in wine.to_sklearn_code(KNN)
    assert "StandardScaler()" in wine.to_sklearn_code({"learner": "gnb"})


def test_a_failing_learner_is_recorded() -> None:
    # ten rows to train on: 20 neighbours cannot be had
    rng = np.random.default_rng(0)
    data = (rng.standard_normal((13, 2)), np.array(["a"] * 7 + ["b"] * 6))
    problem = ScikitLearnCASH(data)
    bad = problem.evaluate({"learner": "knn", "knn:n_neighbors": 20})
    assert bad.value == 1.0
    assert bad.error is not None and bad.error.startswith("ValueError: Expected n_")
    assert problem.evaluate({"learner": "gnb"}).error is None
    assert [e.value == 1.0 for _, e in problem.evaluations] == [True, False]


def test_data_sets_and_seeds() -> None:
    assert ScikitLearnCASH("digits").evaluate(KNN).error is None
    one, two = (ScikitLearnCASH("wine", seed=seed).evaluate(KNN) for seed in (0, 1))
    assert one.value != two.value
    X = np.random.default_rng(0).standard_normal((40, 2))
    given = ScikitLearnCASH((X.tolist(), (X[:, 0] > 0).tolist()))
    assert given.evaluate({"learner": "lda"}).value < 0.2


def test_wrong_arguments(
    wine: ScikitLearnCASH, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.zeros((20, 2))
    for dataset, message in (
        ("boston", "breast_cancer, .* got 'boston'"),
        ((X, np.zeros(19)), r"shapes \(20, 2\) and \(19,\)"),
        ((X, np.zeros(20)), " 1 classes"),
        ((X, np.arange(20)), " 20 classes"),
        ((X + np.nan, np.arange(20) % 2), "finite numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            ScikitLearnCASH(dataset)
    with pytest.raises(ValueError, match="seed: expected an integer .*got 'a'"):
        ScikitLearnCASH("wine", seed="a")
    for config in (
        {"learner": "boosting"},
        {"learner": "knn"},
        {**KNN, "svm:C": 1.0},
        {"learner": "knn", "knn:n_neighbors": 31},
    ):
        with pytest.raises(ValueError):
            wine.evaluate(config)
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"botorch-structured\[demo\]"):
        cash._load("wine")
