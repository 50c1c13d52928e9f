"""The nine scikit-learn learners of Levesque et al. (2017), section V, as data.

This file is also the program of the process that a fit with a time limit runs in
(``KillableWorker`` in ``cash.py``). It stands alone, so that the process starts without
torch.

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne, R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. International Joint Conference on Neural
    Networks, 2017.
"""

from __future__ import annotations

__all__ = [
    "LEARNERS",
    "Hyperparameter",
    "Learner",
    "cross_validated_error",
    "make_estimator",
    "serve",
]

import importlib
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple


class Hyperparameter(NamedTuple):
    """A range; ``log`` for floats spread evenly in the logarithm."""

    name: str
    lower: float
    upper: float
    integer: bool = False
    log: bool = False


class Learner(NamedTuple):
    """A class of scikit-learn, what is held, and what is tuned."""

    module: str
    class_name: str
    hyperparameters: tuple[Hyperparameter, ...] = ()
    fixed: tuple[tuple[str, Any], ...] = ()


def _integer(name: str, lower: int, upper: int) -> Hyperparameter:
    return Hyperparameter(name, lower, upper, integer=True)


def _log(name: str, lower: float, upper: float) -> Hyperparameter:
    return Hyperparameter(name, lower, upper, log=True)


_TREE = (
    _integer("max_depth", 1, 10),
    _integer("min_samples_split", 2, 100),
    _integer("min_samples_leaf", 2, 100),
)
_SEED = (("random_state", 0),)

# ``max_iter`` bounds the two SVMs, which take minutes to converge where C is large.
# The paper takes ``reg_param`` to 1e3; scikit-learn rejects more than 1.
LEARNERS: dict[str, Learner] = {
    "knn": Learner(
        "sklearn.neighbors", "KNeighborsClassifier", (_integer("n_neighbors", 1, 30),)
    ),
    "svm": Learner(
        "sklearn.svm",
        "SVC",
        (_log("C", 1e-5, 1e5), _log("gamma", 1e-5, 1e5)),
        (("max_iter", 200_000),),
    ),
    "linsvm": Learner(
        "sklearn.svm",
        "LinearSVC",
        (_log("C", 1e-5, 1e5),),
        (("max_iter", 1_000), *_SEED),
    ),
    "dt": Learner("sklearn.tree", "DecisionTreeClassifier", _TREE, _SEED),
    "rf": Learner(
        "sklearn.ensemble",
        "RandomForestClassifier",
        (_integer("n_estimators", 1, 30), *_TREE),
        (("n_jobs", 1), *_SEED),
    ),
    "adab": Learner(
        "sklearn.ensemble",
        "AdaBoostClassifier",
        (_integer("n_estimators", 1, 30),),
        _SEED,
    ),
    "gnb": Learner("sklearn.naive_bayes", "GaussianNB"),
    "lda": Learner("sklearn.discriminant_analysis", "LinearDiscriminantAnalysis"),
    "qda": Learner(
        "sklearn.discriminant_analysis",
        "QuadraticDiscriminantAnalysis",
        (_log("reg_param", 1e-3, 1.0),),
    ),
}


def make_estimator(learner: str, arguments: Mapping[str, Any]) -> Any:
    """A pipeline of ``StandardScaler`` and the learner with these arguments.

    The scaler is inside, so that in cross-validation it sees the training folds only.
    """
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    entry = LEARNERS[learner]
    cls = getattr(importlib.import_module(entry.module), entry.class_name)
    return make_pipeline(StandardScaler(), cls(**arguments, **dict(entry.fixed)))


def cross_validated_error(
    X: Any, y: Any, learner: str, arguments: Mapping[str, Any], seed: int
) -> float:
    """The mean error rate over five stratified folds, whatever a learner raises."""
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from threadpoolctl import threadpool_limits

    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    with warnings.catch_warnings(), threadpool_limits(1):
        # Failed convergence and collinear columns show in the error rate.
        warnings.simplefilter("ignore")
        scores = cross_val_score(
            make_estimator(learner, arguments),
            X,
            y,
            cv=folds,
            scoring="accuracy",
            n_jobs=1,
            error_score="raise",
        )
    return float(1.0 - scores.mean())


def serve() -> None:
    """Answer ``(learner, arguments)`` with ``(value, None)`` or ``(None, message)``.

    Pickles over standard input and output. The first message brings the path to look
    for modules on, the data and the seed, and is answered with ``"ready"``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a learner prints

    def answer(message: Any) -> None:
        pickle.dump(message, sink)
        sink.flush()

    path, X, y, seed = pickle.load(source)
    sys.path[:] = path
    import sklearn.model_selection  # noqa: F401  (the slow imports, before any clock)
    import sklearn.preprocessing  # noqa: F401

    for entry in LEARNERS.values():
        importlib.import_module(entry.module)
    answer("ready")
    while True:
        try:
            learner, arguments = pickle.load(source)
        except EOFError:  # the parent has gone
            return
        try:
            value = cross_validated_error(X, y, learner, arguments, seed)
            answer((value, None))
        except Exception as error:  # whatever a learner raises is its result
            answer((None, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    serve()
