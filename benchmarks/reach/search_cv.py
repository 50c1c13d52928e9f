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

One data set for each pipeline says little: a search may be the best on it by chance.
With ``--many`` each is searched on 14 or 15 (``benchmarks/reach/many_tables.py`` says
which, and how to get them), with ``--many --develop`` on 16 others. At most three rows
of five are for training, and at most 2,500 for the test.

``--methods earlier structured --many`` compares ``StructuredSearchCV`` with and without
old searches: random ones of 30 candidates on each of the other data sets. ``--at N``
compares the best scores among the first N candidates.
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
from tqdm import tqdm

from benchmarks.reach.many_tables import (
    DEVELOP_CLASSES,
    DEVELOP_NUMBERS,
    MANY_CLASSES,
    MANY_NUMBERS,
)
from botorch_structured.integrations.sklearn import StructuredSearchCV

DATA = Path("../shared/data")
_CANDIDATES = 40
_METHODS = ("structured", "random", "halving")
_OLD_CANDIDATES, _OLD_SEED = 30, 1_000
_MOST_TESTED = 2500  # rows, of many tables

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


def _search(
    method: str,
    problem: Problem,
    seed: int,
    budget: int,
    rows: int,
    earlier: list[Any] | None = None,
) -> Any:
    kind = StratifiedKFold if problem.classes else KFold
    common: dict[str, Any] = {
        "scoring": problem.scoring,
        "cv": kind(problem.folds, shuffle=True, random_state=seed),
        "random_state": seed,
    }
    pipeline, space = clone(problem.pipeline), problem.space
    if method in ("structured", "earlier"):
        return StructuredSearchCV(pipeline, space, budget, earlier=earlier, **common)
    if method == "random":
        return RandomizedSearchCV(pipeline, space, n_iter=budget, **common)
    return HalvingRandomSearchCV(
        pipeline,
        space,
        n_candidates=3 * budget,
        factor=3,
        min_resources=rows // 9,
        **common,
    )


def tables(name: str, options: argparse.Namespace) -> dict[str, Callable[[], Arrays]]:
    """The data sets of a problem."""
    problem = PROBLEMS[name]
    if not options.many:
        load = problem.load_other if options.develop else problem.load
        return {"": lambda: load(options.data)}
    if options.develop:
        return DEVELOP_CLASSES if problem.classes else DEVELOP_NUMBERS
    return MANY_CLASSES if problem.classes else MANY_NUMBERS


def _split(
    problem: Problem, seed: int, X: np.ndarray, y: np.ndarray, most_tested: int | None
) -> list[np.ndarray]:
    rows = min(problem.rows, 3 * len(X) // 5)
    if most_tested is not None:
        chosen = np.random.default_rng(seed).permutation(len(X))[: rows + most_tested]
        X, y = X[chosen], y[chosen]
    labels = y if problem.classes else None
    return train_test_split(X, y, train_size=rows, random_state=seed, stratify=labels)


def evaluate(
    method: str,
    problem: Problem,
    seed: int,
    X: np.ndarray,
    y: np.ndarray,
    budget: int,
    most_tested: int | None = None,
    earlier: list[Any] | None = None,
) -> dict[str, Any]:
    """One search: scores by cross-validation and on the rest of the data."""
    X_train, X_test, y_train, y_test = _split(problem, seed, X, y, most_tested)
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that do not converge
        search = _search(method, problem, seed, budget, len(y_train), earlier)
        search.fit(X_train, y_train)
        test = search.score(X_test, y_test)
    return {
        "cv": float(search.best_score_),
        "test": float(test),
        "best": str(search.best_params_),
        "cpu_s": round(time.process_time() - begin, 2),
        "scores": [round(float(s), 6) for s in search.cv_results_["mean_test_score"]],
    }


class _Old:
    """``cv_results_`` of random searches on the other data sets of a problem."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[str, Any]] = {}

    def __call__(
        self, name: str, data: str, every: dict[str, Callable[[], Arrays]]
    ) -> list[dict[str, Any]]:
        for other in every.keys() - {data}:
            if (name, other) not in self._found:
                problem = PROBLEMS[name]
                X, _, y, _ = _split(problem, _OLD_SEED, *every[other](), _MOST_TESTED)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    search = _search(
                        "random", problem, _OLD_SEED, _OLD_CANDIDATES, len(y)
                    )
                    self._found[name, other] = search.fit(X, y).cv_results_
        return [self._found[name, other] for other in every if other != data]


def _paired(ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    """How often the first are larger, equal and smaller, and Wilcoxon's p."""
    d = np.round(np.subtract(ours, theirs), 12)
    p = wilcoxon(d).pvalue if d.any() else 1.0
    return [f"{(d > 0).sum()}, {(d == 0).sum()}, {(d < 0).sum()}", f"{p:.3f}"]


def report(
    rows: Sequence[dict[str, Any]],
    methods: Sequence[str] = _METHODS,
    at: int | None = None,
) -> str:
    """A table of mean scores, with paired tests of the first method against others.

    Pairs are splits of one data set, or means over the splits of several ones.

    Args:
        rows: Of all searches.
        methods: Those that are compared; the first one with all others.
        at: Of how many candidates the best score counts, by cross-validation; tests
            and times are those of the whole search. Default: of all.
    """
    if at is not None:
        rows = [row | {"cv": float(np.nanmax(row["scores"][:at]))} for row in rows]
    lines = [
        f"| pipeline | search | CPU time | cross-validation | {methods[0]} wins, ties, "
        f"loses | p | test | {methods[0]} wins, ties, loses | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        runs: dict[str, dict[tuple[str, int], dict[str, Any]]] = {
            m: {} for m in methods
        }
        for row in rows:
            if row["problem"] == problem and row["method"] in runs:
                runs[row["method"]][row.get("data", ""), row["seed"]] = row
        splits = sorted(set.intersection(*(set(some) for some in runs.values())))
        names = sorted({data for data, _ in splits})
        units = [[s for s in splits if s[0] == data] for data in names]
        what = f"{problem}, {len(splits)} splits"
        if len(units) == 1:
            units = [[split] for split in splits]
        else:
            what += f" of {len(units)} data sets"
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
    parser.add_argument(
        "--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS
    )
    parser.add_argument(
        "--methods", nargs="+", default=list(_METHODS), choices=[*_METHODS, "earlier"]
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--budget", type=int, default=_CANDIDATES)
    parser.add_argument("--at", type=int, help="report the first so many candidates")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--develop", action="store_true", help="other data sets")
    parser.add_argument("--many", action="store_true", help="many data sets")
    parser.add_argument(
        "--out", type=Path, default=Path("results/reach/search_cv.jsonl")
    )
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    if "earlier" in options.methods and not options.many:
        parser.error("earlier: expected --many, whose other data sets were searched.")
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    opened: Any = gzip.open if options.out.suffix == ".gz" else open
    if options.out.exists():
        with opened(options.out, "rt") as file:
            rows = [json.loads(line) for line in file]
    done = {(r["problem"], r.get("data", ""), r["method"], r["seed"]) for r in rows}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    todo = [
        (name, data, load, method, seed)
        for seed in seeds
        for name in options.problems
        for data, load in tables(name, options).items()
        for method in options.methods
        if not options.report and (name, data, method, seed) not in done
    ]
    old = _Old()
    for name, data, load, method, seed in tqdm(todo, unit="search", disable=None):
        row = {"problem": name, "method": method, "seed": seed}
        row |= {"data": data} if data else {}
        most_tested = _MOST_TESTED if options.many else None
        known = {}
        if method == "earlier":
            known = {"earlier": old(name, data, tables(name, options))}
        row |= evaluate(
            method, PROBLEMS[name], seed, *load(), options.budget, most_tested, **known
        )
        rows.append(row)
        with opened(options.out, "at") as file:
            file.write(json.dumps(row) + "\n")
    print(report(rows, options.methods, options.at))


if __name__ == "__main__":
    main()
