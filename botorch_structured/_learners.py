"""The nine scikit-learn learners of Levesque et al. (2017), section V, as data.

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne, R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. International Joint Conference on Neural
    Networks, 2017.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple


class Learner(NamedTuple):
    """A class of scikit-learn, its tuned parameters, and those with one value.

    Ranges are as `SearchSpace.from_dictionaries` takes them.
    """

    module: str
    class_name: str
    tuned: Mapping[str, tuple[Any, ...]] = {}
    fixed: Mapping[str, Any] = {}


_TREE = {
    "max_depth": (1, 10),
    "min_samples_split": (2, 100),
    "min_samples_leaf": (2, 100),
}

# ``max_iter`` bounds the two SVMs, which take minutes to converge where C is large.
# The paper takes ``reg_param`` to 1e3; scikit-learn rejects more than 1.
LEARNERS: dict[str, Learner] = {
    "knn": Learner(
        "sklearn.neighbors", "KNeighborsClassifier", {"n_neighbors": (1, 30)}
    ),
    "svm": Learner(
        "sklearn.svm",
        "SVC",
        {"C": (1e-5, 1e5, "log"), "gamma": (1e-5, 1e5, "log")},
        {"max_iter": 200_000},
    ),
    "linsvm": Learner(
        "sklearn.svm",
        "LinearSVC",
        {"C": (1e-5, 1e5, "log")},
        {"max_iter": 1_000, "random_state": 0},
    ),
    "dt": Learner("sklearn.tree", "DecisionTreeClassifier", _TREE, {"random_state": 0}),
    "rf": Learner(
        "sklearn.ensemble",
        "RandomForestClassifier",
        {"n_estimators": (1, 30)} | _TREE,
        {"n_jobs": 1, "random_state": 0},
    ),
    "adab": Learner(
        "sklearn.ensemble",
        "AdaBoostClassifier",
        {"n_estimators": (1, 30)},
        {"random_state": 0},
    ),
    "gnb": Learner("sklearn.naive_bayes", "GaussianNB"),
    "lda": Learner("sklearn.discriminant_analysis", "LinearDiscriminantAnalysis"),
    "qda": Learner(
        "sklearn.discriminant_analysis",
        "QuadraticDiscriminantAnalysis",
        {"reg_param": (1e-3, 1.0, "log")},
    ),
}


def cross_validated_error(
    X: Any, y: Any, learner: str, arguments: Mapping[str, Any], seed: int
) -> tuple[float, str | None]:
    """The mean error rate over five stratified folds, and None.

    Where the learner raises an exception: 1.0, the worst, and the message. Inputs are
    standardised with the mean and deviation of the training folds.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    entry = LEARNERS[learner]
    cls = getattr(importlib.import_module(entry.module), entry.class_name)
    model = make_pipeline(StandardScaler(), cls(**arguments, **entry.fixed))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    with warnings.catch_warnings(), threadpool_limits(1):
        # Failed convergence and collinear columns show in the error rate.
        warnings.simplefilter("ignore")
        try:
            scores = cross_val_score(model, X, y, cv=folds, error_score="raise")
        except Exception as error:
            return 1.0, f"{type(error).__name__}: {error}"
    return float(1.0 - scores.mean()), None
