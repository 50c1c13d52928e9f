"""Learners tuned on some rows of public tables, and judged by others.

A seed splits a table anew (`benchmarks.problems.public_tables`): a fifth of its rows,
at most 1,000, are for the test, at most 300 of the others to train on.
"""

from __future__ import annotations

import importlib
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.problems.public_tables import load
from botorch_structured._learners import LEARNERS
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import ScikitLearnCASH
from botorch_structured.test_functions.base import ConditionalTestFunction

_TRAINING, _TEST = 300, 1000  # rows at most
_EPOCHS = 50
_SHARED = {
    "rate": (1e-5, 1e-1, "log"),
    "tolerance": (1e-5, 1e-2, "log"),
    "activation": ["identity", "logistic", "tanh", "relu"],
    "scaling": ["rows", "largest", "standard", "none"],
}


def _split(dataset: str, file: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and to test on, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(load(dataset, file)[1]))
    held_out = len(order) // 5
    return order[held_out:][:_TRAINING], order[:held_out][:_TEST]


class TestedCASH(ScikitLearnCASH):
    """Cross-validation error on some rows, and the test error on others."""

    __test__ = False  # no class of tests

    def __init__(self, seed: int, dataset: str, file: Path) -> None:
        X, y = load(dataset, file)
        training, test = _split(dataset, file, seed)
        self._training, self._test = (X[training], y[training]), (X[test], y[test])
        self._least = math.inf
        super().__init__(self._training, seed=seed)

    def truth(self, x: Tensor) -> float:
        """The test error of what was evaluated last, if it is the best; else NaN."""
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        config, evaluation = self.evaluations[-1]
        if not evaluation.value < self._least:
            return math.nan
        self._least = evaluation.value
        learner, arguments = self._split(config)
        entry = LEARNERS[learner]
        cls = getattr(importlib.import_module(entry.module), entry.class_name)
        model = make_pipeline(StandardScaler(), cls(**arguments, **entry.fixed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in cross-validation
            try:
                return float(1.0 - model.fit(*self._training).score(*self._test))
            except Exception:
                return 1.0


def layers_space(shared: bool) -> SearchSpace:
    """Figure 3 of Jenatton et al. (2017): parameters anew for each number of layers.

    Or one of each, but for the regularisation, if they are ``shared``.
    """
    paths: list[dict[str, Any]] = []
    for layers in range(5):
        others = {f"units_{j}": (1, 30) for j in range(1, layers + 1)} | _SHARED
        end = "" if shared else f"_of_{layers}"
        path = {f"{name}{end}": values for name, values in others.items()}
        path[f"penalty_{layers}"] = (1e-6, 1e-1, "log")
        paths.append({"layers": [layers], **path})
    return SearchSpace.from_dictionaries(paths)


class NetworkLayers(ConditionalTestFunction):
    """The error of a network on held-out rows; to be minimised."""

    def __init__(self, seed: int, dataset: str, file: Path, shared: bool) -> None:
        self._X, self._y = load(dataset, file)
        self._rows, self.seed = _split(dataset, file, seed), seed
        super().__init__(layers_space(shared))

    def starts(self, seed: int, n: int | None = None) -> Tensor:
        """One random point for each number of layers."""
        return self.space.starts(self.space.tree.num_paths, seed=seed)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        errors = [self._error(c) for c in self.space.decode(X.reshape(-1, self.dim))]
        return X.new_tensor(errors).reshape(X.shape[:-1])

    def _error(self, config: dict[str, Any]) -> float:
        from sklearn.neural_network import MLPClassifier

        values = {name.split("_of_")[0]: value for name, value in config.items()}
        layers = values["layers"]
        training, test = self._rows
        X = self._scaled(values["scaling"])
        model = MLPClassifier(
            [values[f"units_{j}"] for j in range(1, layers + 1)],
            activation=values["activation"],
            alpha=values[f"penalty_{layers}"],
            learning_rate_init=values["rate"],
            tol=values["tolerance"],
            max_iter=_EPOCHS,
            random_state=self.seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged: shows in the error
            model.fit(X[training], self._y[training])
        return float(1.0 - model.score(X[test], self._y[test]))

    def _scaled(self, kind: str) -> np.ndarray:
        X, rows = self._X, self._X[self._rows[0]]
        if kind == "rows":
            return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
        if kind == "largest":
            return X / np.maximum(np.abs(rows).max(0), 1e-12)
        if kind == "standard":
            return (X - rows.mean(0)) / np.maximum(rows.std(0), 1e-12)
        return X
