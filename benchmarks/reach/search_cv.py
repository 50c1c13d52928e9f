"""`StructuredSearchCV` against scikit-learn's own searches: better on data not seen?

    python -m benchmarks.reach.search_cv --first-seed 900 --out results/search_cv.jsonl

Three pipelines whose steps are choices, each searched over the same list of
dictionaries by three searches on 14 or 15 data sets
(``benchmarks/reach/many_tables.py`` says which, and how to get them). For each seed
there are at most 400 or 900 rows, and at most three of five, for training, at most
2,500 of the rest for the test, and 3 or 5 folds, the same for all.
``StructuredSearchCV`` and ``RandomizedSearchCV`` evaluate 40 candidates on all training
rows. ``HalvingRandomSearchCV`` has as many rows in sum over its candidates: 120 of them
on a ninth of the rows, the best 40 on a third, the best 14 on all. (60 candidates on a
third and 20 on all were no better.) ``--out`` may end in ``.gz``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import loguniform, randint, uniform, wilcoxon
from sklearn import ensemble, linear_model, model_selection, neighbors, preprocessing
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.experimental import enable_halving_search_cv  # noqa: F401  # it enables
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC, SVR
from tqdm import tqdm

from benchmarks.reach import many_tables
from botorch_structured.integrations.sklearn import StructuredSearchCV

_METHODS = ("structured", "random", "halving")
_MOST_TESTED = 2500  # rows


@dataclass(frozen=True)
class Problem:
    """A pipeline and its space."""

    pipeline: Pipeline
    space: list[dict[str, Any]]
    scoring: str
    folds: int
    classes: bool = True
    rows: int = 400

    def tables(self) -> dict[str, many_tables.Load]:
        """The data sets."""
        return many_tables.CLASSES if self.classes else many_tables.NUMBERS


_SCALERS = [
    "passthrough",
    preprocessing.StandardScaler(),
    preprocessing.MinMaxScaler(),
    preprocessing.QuantileTransformer(n_quantiles=50),
]
_NEAREST = {
    "model__n_neighbors": randint(1, 50),
    "model__weights": ["uniform", "distance"],
    "model__p": [1, 2],
}
_CLASSIFIERS = [
    {"model": [SVC()], "model__C": loguniform(1e-3, 1e4)}
    | {"model__gamma": loguniform(1e-6, 1e1)},
    {
        "model": [linear_model.LogisticRegression(max_iter=200)],
        "model__C": loguniform(1e-4, 1e4),
        "model__class_weight": [None, "balanced"],
    },
    {"model": [neighbors.KNeighborsClassifier()], **_NEAREST},
]
_BOOSTER = ensemble.HistGradientBoostingClassifier(early_stopping=False, random_state=0)
_ENSEMBLES = [
    {
        "model": [_BOOSTER],
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
        for kind in (ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier)
    ),
]
_REDUCE = [
    {"reduce": ["passthrough"]},
    {"reduce": [PCA()], "reduce__n_components": uniform(0.3, 0.69)},
    {"reduce": [SelectKBest(f_regression)], "reduce__k": randint(1, 10)},
]
_REGRESSORS = [
    {"model": [linear_model.Ridge()], "model__alpha": loguniform(1e-3, 1e3)},
    {
        "model": [SVR()],
        "model__C": loguniform(1e-3, 1e3),
        "model__gamma": loguniform(1e-4, 1e1),
        "model__epsilon": loguniform(1e-3, 1),
    },
    {"model": [neighbors.KNeighborsRegressor()], **_NEAREST},
]
_RIDGE = ("model", linear_model.Ridge())
_STANDARD = ("scale", preprocessing.StandardScaler())

PROBLEMS = {
    "kernels": Problem(
        Pipeline([("scale", "passthrough"), ("model", SVC())]),
        [{"scale": _SCALERS, **model} for model in _CLASSIFIERS],
        "accuracy",
        3,
        rows=900,
    ),
    "ensembles": Problem(
        Pipeline([("model", ensemble.RandomForestClassifier())]),
        _ENSEMBLES,
        "neg_log_loss",
        3,
    ),
    "regression": Problem(
        Pipeline([_STANDARD, ("reduce", "passthrough"), _RIDGE]),
        [{**reduce, **model} for reduce in _REDUCE for model in _REGRESSORS],
        "r2",
        5,
        classes=False,
    ),
}


def _search(method: str, problem: Problem, seed: int, budget: int, rows: int) -> Any:
    kind = model_selection.StratifiedKFold if problem.classes else model_selection.KFold
    common: dict[str, Any] = {
        "scoring": problem.scoring,
        "cv": kind(problem.folds, shuffle=True, random_state=seed),
        "random_state": seed,
    }
    what = clone(problem.pipeline), problem.space
    if method == "structured":
        return StructuredSearchCV(*what, budget, **common)
    if method == "random":
        return model_selection.RandomizedSearchCV(*what, n_iter=budget, **common)
    common |= {"n_candidates": 3 * budget, "factor": 3, "min_resources": rows // 9}
    return model_selection.HalvingRandomSearchCV(*what, **common)


def _split(
    problem: Problem, seed: int, X: np.ndarray, y: np.ndarray
) -> list[np.ndarray]:
    rows = min(problem.rows, 3 * len(X) // 5)
    chosen = np.random.default_rng(seed).permutation(len(X))[: rows + _MOST_TESTED]
    X = X[chosen]
    y = y[chosen]
    labels = y if problem.classes else None
    return model_selection.train_test_split(
        X, y, train_size=rows, random_state=seed, stratify=labels
    )


def evaluate(
    method: str, name: str, seed: int, budget: int, load: many_tables.Load
) -> dict[str, Any]:
    """One search: scores by cross-validation and on the rest of the data."""
    problem = PROBLEMS[name]
    X_train, X_test, y_train, y_test = _split(problem, seed, *load())
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that do not converge
        search = _search(method, problem, seed, budget, len(y_train))
        search.fit(X_train, y_train)
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


def report(rows: Sequence[dict[str, Any]], methods: Sequence[str] = _METHODS) -> str:
    """A table of mean scores, with paired tests of the first method against others.

    Pairs are means over the splits of a data set.

    Args:
        rows: Of all searches.
        methods: Those that are compared; the first one with all others.
    """
    lines = [
        f"| pipeline | search | CPU time | cross-validation | {methods[0]} wins, ties, "
        f"loses | p | test | {methods[0]} wins, ties, loses | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        runs: dict[str, dict[tuple[str, int], Any]] = {m: {} for m in methods}
        for row in rows:
            if row["problem"] == problem and row["method"] in runs:
                runs[row["method"]][row["data"], row["seed"]] = row
        splits = sorted(set.intersection(*(set(some) for some in runs.values())))
        names = sorted({data for data, _ in splits})
        units = [[s for s in splits if s[0] == data] for data in names]
        what = f"{problem}, {len(splits)} splits of {len(units)} data sets"
        for method in methods if splits else ():
            cells = [f"{np.mean([runs[method][s]['cpu_s'] for s in splits]):.1f} s"]
            for key in ("cv", "test"):
                ours, theirs = (
                    [float(np.mean([runs[m][s][key] for s in unit])) for unit in units]
                    for m in (methods[0], method)
                )
                cells.append(f"{np.mean(theirs):.4f}")
                cells += ["", ""] if method == methods[0] else _paired(ours, theirs)
            lines.append(f"| {what} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, choices=PROBLEMS)
    parser.add_argument("--methods", nargs="+", default=_METHODS, choices=_METHODS)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("results/search_cv.jsonl"))
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    opened: Any = gzip.open if options.out.suffix == ".gz" else open
    if options.out.exists():
        with opened(options.out, "rt") as file:
            rows = [json.loads(line) for line in file]
    done = {(r["problem"], r["data"], r["method"], r["seed"]) for r in rows}
    todo = [
        (name, data, method, seed, load)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for name in options.problems
        for data, load in PROBLEMS[name].tables().items()
        for method in options.methods
        if not options.report and (name, data, method, seed) not in done
    ]
    for name, data, method, seed, load in tqdm(todo, unit="search", disable=None):
        row = {"problem": name, "method": method, "seed": seed, "data": data}
        row |= evaluate(method, name, seed, options.budget, load)
        rows.append(row)
        with opened(options.out, "at") as file:
            file.write(json.dumps(row) + "\n")
    print(report(rows, options.methods))


if __name__ == "__main__":
    main()
