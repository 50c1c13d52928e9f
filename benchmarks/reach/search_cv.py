"""`StructuredSearchCV` against scikit-learn's own searches: better on data not seen?

    python -m benchmarks.reach.search_cv --out results/reach/search_cv.jsonl

Three pipelines whose steps are choices, each searched over the same list of
dictionaries by three searches. For each seed there are 400 or 900 rows for training and
the rest for the test, and 3 or 5 folds, the same for all. ``StructuredSearchCV`` and
``RandomizedSearchCV`` evaluate 40 candidates on all training rows.
``HalvingRandomSearchCV`` has as many rows in sum over its candidates: 120 of them on a
ninth of the rows, the best 40 on a third, the best 14 on all. (60 candidates on a third
and 20 on all were no better.) ``--develop`` takes other data sets: with them, searches
and spaces were developed, on seeds from 0 on. ``--out`` may end in ``.gz``.
"""

from __future__ import annotations

__all__ = ["PROBLEMS", "main"]

import argparse
import csv
import gzip
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import loguniform, randint, uniform, wilcoxon
from sklearn.base import clone
from sklearn.datasets import load_digits, make_friedman1
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401  # it enables
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import (
    HalvingRandomSearchCV,
    KFold,
    RandomizedSearchCV,
    StratifiedKFold,
    train_test_split,
)
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, QuantileTransformer, StandardScaler
from sklearn.svm import SVC, SVR

from botorch_structured.integrations.sklearn import StructuredSearchCV

DATA = Path("../shared/data")
_CANDIDATES = 40
_METHODS = ("structured", "random", "halving")

Arrays = tuple[np.ndarray, np.ndarray]


def _table(name: str, header: bool) -> Callable[[Path], Arrays]:
    """Reads numbers and categories, one column for each, from a file; label last."""

    def load(folder: Path) -> Arrays:
        path = folder / name
        if not path.exists():
            raise SystemExit(f"{path} is missing: give --data, a folder with {name}.")
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row][header:]
        *columns, y = zip(*rows, strict=True)
        X = [_numbers(column) for column in columns]
        label = _numbers(y)
        return np.hstack(X), label[:, 0] if label.shape[1] == 1 else np.array(y)

    return load


def _numbers(column: Sequence[str]) -> np.ndarray:
    """``n x 1``, or ``n x k`` for ``k`` categories."""
    try:
        return np.array(column, dtype=float)[:, None]
    except ValueError:
        return np.equal.outer(np.array(column), np.unique(column)).astype(float)


@dataclass(frozen=True)
class Problem:
    """A pipeline, its space and the data."""

    pipeline: Pipeline
    space: list[dict[str, Any]]
    scoring: str
    folds: int
    load: Callable[[Path], Arrays]
    load_other: Callable[[Path], Arrays]
    classes: bool = True
    rows: int = 400


_SCALERS = [
    "passthrough",
    StandardScaler(),
    MinMaxScaler(),
    QuantileTransformer(n_quantiles=50),
]
_REDUCE = [
    {"reduce": ["passthrough"]},
    {"reduce": [PCA()], "reduce__n_components": uniform(0.3, 0.69)},
    {"reduce": [SelectKBest(f_regression)], "reduce__k": randint(1, 10)},
]
_REGRESSORS = [
    {"model": [Ridge()], "model__alpha": loguniform(1e-3, 1e3)},
    {
        "model": [SVR()],
        "model__C": loguniform(1e-3, 1e3),
        "model__gamma": loguniform(1e-4, 1e1),
        "model__epsilon": loguniform(1e-3, 1),
    },
    {
        "model": [KNeighborsRegressor()],
        "model__n_neighbors": randint(1, 50),
        "model__weights": ["uniform", "distance"],
        "model__p": [1, 2],
    },
]

PROBLEMS = {
    "kernels": Problem(
        Pipeline([("scale", "passthrough"), ("model", SVC())]),
        [
            {
                "scale": _SCALERS,
                "model": [SVC()],
                "model__C": loguniform(1e-3, 1e4),
                "model__gamma": loguniform(1e-6, 1e1),
            },
            {
                "scale": _SCALERS,
                "model": [LogisticRegression(max_iter=200)],
                "model__C": loguniform(1e-4, 1e4),
                "model__class_weight": [None, "balanced"],
            },
            {
                "scale": _SCALERS,
                "model": [KNeighborsClassifier()],
                "model__n_neighbors": randint(1, 50),
                "model__weights": ["uniform", "distance"],
                "model__p": [1, 2],
            },
        ],
        "accuracy",
        3,
        _table("uci/segment.csv", header=True),
        lambda _: load_digits(return_X_y=True),
        rows=900,
    ),
    "ensembles": Problem(
        Pipeline([("model", RandomForestClassifier())]),
        [
            {
                "model": [
                    HistGradientBoostingClassifier(early_stopping=False, random_state=0)
                ],
                "model__learning_rate": loguniform(1e-3, 1),
                "model__max_iter": randint(5, 61),
                "model__max_leaf_nodes": randint(2, 33),
                "model__min_samples_leaf": randint(1, 51),
                "model__l2_regularization": loguniform(1e-6, 1e3),
            },
            *(
                {
                    "model": [kind(n_estimators=20, random_state=0)],
                    "model__max_features": uniform(0.02, 0.98),
                    "model__min_samples_leaf": randint(1, 51),
                    "model__criterion": ["gini", "entropy"],
                }
                for kind in (RandomForestClassifier, ExtraTreesClassifier)
            ),
        ],
        "neg_log_loss",
        3,
        _table("uci/spambase.data", header=True),
        _table("uci/german.csv", header=False),
    ),
    "regression": Problem(
        Pipeline(
            [("scale", StandardScaler()), ("reduce", "passthrough"), ("model", Ridge())]
        ),
        [{**reduce, **model} for reduce in _REDUCE for model in _REGRESSORS],
        "r2",
        5,
        _table("uci/winequality-red.csv", header=False),
        lambda _: make_friedman1(2000, noise=1.0, random_state=0),
        classes=False,
    ),
}


def _search(method: str, problem: Problem, seed: int, budget: int) -> Any:
    kind = StratifiedKFold if problem.classes else KFold
    common: dict[str, Any] = {
        "scoring": problem.scoring,
        "cv": kind(problem.folds, shuffle=True, random_state=seed),
        "random_state": seed,
    }
    pipeline, space = clone(problem.pipeline), problem.space
    if method == "structured":
        return StructuredSearchCV(pipeline, space, budget, **common)
    if method == "random":
        return RandomizedSearchCV(pipeline, space, n_iter=budget, **common)
    return HalvingRandomSearchCV(
        pipeline,
        space,
        n_candidates=3 * budget,
        factor=3,
        min_resources=problem.rows // 9,
        **common,
    )


def evaluate(
    method: str, problem: Problem, seed: int, X: np.ndarray, y: np.ndarray, budget: int
) -> dict[str, Any]:
    """One search: scores by cross-validation and on the rest of the data."""
    X_train, X_test, y_train, y_test = train_test_split(
        X,
        y,
        train_size=problem.rows,
        random_state=seed,
        stratify=y if problem.classes else None,
    )
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that do not converge
        search = _search(method, problem, seed, budget).fit(X_train, y_train)
        test = search.score(X_test, y_test)
    return {
        "cv": float(search.best_score_),
        "test": float(test),
        "best": str(search.best_params_),
        "cpu_s": round(time.process_time() - begin, 2),
        "scores": [round(float(s), 6) for s in search.cv_results_["mean_test_score"]],
    }


def _paired(ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    """How often the first are larger, equal and smaller, and Wilcoxon's p."""
    d = np.round(np.subtract(ours, theirs), 12)
    p = wilcoxon(d).pvalue if d.any() else 1.0
    return [f"{(d > 0).sum()}, {(d == 0).sum()}, {(d < 0).sum()}", f"{p:.3f}"]


def report(rows: Sequence[dict[str, Any]]) -> str:
    """A table of mean scores, with paired tests of the first method against others."""
    lines = [
        "| pipeline | search | CPU time | cross-validation | structured wins, ties, "
        "loses | p | test | structured wins, ties, loses | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        by_seed: dict[str, dict[int, dict[str, Any]]] = {m: {} for m in _METHODS}
        for row in rows:
            if row["problem"] == problem:
                by_seed[row["method"]][row["seed"]] = row
        seeds = sorted(set.intersection(*(set(runs) for runs in by_seed.values())))
        for method, runs in by_seed.items() if seeds else ():
            cells = [f"{np.mean([runs[seed]['cpu_s'] for seed in seeds]):.1f} s"]
            for key in ("cv", "test"):
                ours, theirs = (
                    [some[seed][key] for seed in seeds]
                    for some in (by_seed[_METHODS[0]], runs)
                )
                cells.append(f"{np.mean(theirs):.4f}")
                cells += ["", ""] if method == _METHODS[0] else _paired(ours, theirs)
            lines.append(
                f"| {problem}, {len(seeds)} seeds | {method} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS
    )
    parser.add_argument(
        "--methods", nargs="+", default=list(_METHODS), choices=_METHODS
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--budget", type=int, default=_CANDIDATES)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--develop", action="store_true", help="other data sets")
    parser.add_argument(
        "--out", type=Path, default=Path("results/reach/search_cv.jsonl")
    )
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    opened: Any = gzip.open if options.out.suffix == ".gz" else open
    if options.out.exists():
        with opened(options.out, "rt") as file:
            rows = [json.loads(line) for line in file]
    done = {(row["problem"], row["method"], row["seed"]) for row in rows}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.problems:
            problem = PROBLEMS[name]
            load = problem.load_other if options.develop else problem.load
            for method in options.methods:
                if options.report or (name, method, seed) in done:
                    continue
                X, y = load(options.data)
                row = {"problem": name, "method": method, "seed": seed}
                row |= evaluate(method, problem, seed, X, y, options.budget)
                rows.append(row)
                with opened(options.out, "at") as file:
                    file.write(json.dumps(row) + "\n")
    print(report(rows))


if __name__ == "__main__":
    main()
