"""Choosing a scikit-learn classifier together with its hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from botorch_structured._learners import LEARNERS, cross_validated_error
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_count, import_extra
from botorch_structured.test_functions.base import ConditionalTestFunction

DATASETS = ("breast_cancer", "digits", "iris", "wine")


class Evaluation(NamedTuple):
    """The result of one configuration."""

    value: float  # the cross-validation error; 1.0, the worst, where it failed
    error: str | None  # the message of a failure


class ScikitLearnCASH(ConditionalTestFunction):
    r"""Five-fold cross-validation error of nine scikit-learn learners.

    The combined algorithm selection and hyperparameter optimisation problem of
    Levesque et al. (2017), section V, on real data: a conditional space as people
    meet it, with integers, logarithmic scales, two learners without hyperparameters,
    and learners that fail::

        learner
        |-- knn     n_neighbors 1..30
        |-- svm     C, gamma 1e-5..1e5 (log)
        |-- linsvm  C 1e-5..1e5 (log)
        |-- dt      max_depth 1..10, min_samples_split 2..100, min_samples_leaf 2..100
        |-- rf      n_estimators 1..30 and those of dt
        |-- adab    n_estimators 1..30
        |-- gnb     (none)
        |-- lda     (none)
        `-- qda     reg_param 1e-3..1 (log)

    One difference from the paper: its range of ``reg_param`` goes to 1e3, of which
    scikit-learn now rejects everything above 1. Inputs are standardised inside each
    training fold. Random states are fixed: the same configuration has the same value.

    An exception in a learner is a *failed evaluation*: its value is the worst error
    rate, 1.0, and its message is in ``evaluations``. ``ClipTail`` keeps it from
    blinding a model. To be minimised, unless ``negate``.

    Example:
        >>> problem = ScikitLearnCASH("wine")
        >>> config = {"learner": "svm", "svm:C": 10.0, "svm:gamma": 0.01}
        >>> problem.evaluate(config).value
        >>> print(problem.to_sklearn_code(config))
    """

    def __init__(
        self,
        dataset: str | tuple[Any, Any] = "breast_cancer",
        seed: int = 0,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            dataset: ``"breast_cancer"``, ``"digits"``, ``"iris"`` or ``"wine"``
                (bundled with scikit-learn), or a tuple of an ``n x p`` array of numbers
                and ``n`` labels.
            seed: Decides the folds.
            noise_std: Standard deviation of noise to add.
            negate: Whether to negate the function, for maximisation.
            dtype: The dtype of ``bounds``.

        Raises:
            ImportError: Without scikit-learn.
            ValueError: For data that cannot be cross-validated, and wrong arguments.
        """
        check_count("seed", seed, least=0)
        space = SearchSpace.from_dictionaries(
            [
                {"learner": [name]}
                | {f"{name}:{key}": range_ for key, range_ in entry.tuned.items()}
                for name, entry in LEARNERS.items()
            ]
        )
        self._data = _load(dataset)
        super().__init__(space, noise_std=noise_std, negate=negate, dtype=dtype)
        self.seed = seed
        self.evaluations: list[tuple[dict[str, Any], Evaluation]] = []

    def evaluate(self, config: Mapping[str, Any]) -> Evaluation:
        r"""Cross-validate one configuration, and note it in ``evaluations``.

        Args:
            config: ``learner`` and its hyperparameters, as ``space.decode`` gives
                them: ``{"learner": "knn", "knn:n_neighbors": 5}``.

        Raises:
            ValueError: For a configuration that is not of the space; whatever a
                learner raises is a failed evaluation instead.
        """
        learner, arguments = self._split(config)
        evaluation = Evaluation(
            *cross_validated_error(*self._data, learner, arguments, self.seed)
        )
        self.evaluations.append((dict(config), evaluation))
        return evaluation

    def _split(self, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The learner, and its arguments by scikit-learn's names."""
        self.space.encode([dict(config)])  # raises where it is not of the space
        arguments = {k.partition(":")[2]: v for k, v in config.items()}
        return arguments.pop(""), arguments

    def _evaluate_true(self, X: Tensor) -> Tensor:
        configs = self.space.decode(X.reshape(-1, self.dim))
        values = [self.evaluate(config).value for config in configs]
        return X.new_tensor(values).reshape(X.shape[:-1])

    def to_sklearn_code(self, config: Mapping[str, Any]) -> str:
        """Code to paste that builds and cross-validates a configuration.

        It expects the data as ``X`` and ``y``.
        """
        name, arguments = self._split(config)
        learner = LEARNERS[name]
        arguments |= learner.fixed
        call = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        return f"""\
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from {learner.module} import {learner.class_name}

model = make_pipeline(StandardScaler(), {learner.class_name}({call}))
folds = StratifiedKFold(5, shuffle=True, random_state={self.seed})
error = 1 - cross_val_score(model, X, y, cv=folds).mean()
"""


def _load(dataset: str | tuple[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    """``n x p`` features and ``n`` labels."""
    bundled = import_extra("sklearn.datasets")
    if isinstance(dataset, str):
        if dataset not in DATASETS:
            raise ValueError(
                f"dataset: expected one of {', '.join(DATASETS)}, or a tuple (X, y), "
                f"got {dataset!r}."
            )
        return getattr(bundled, f"load_{dataset}")(return_X_y=True)
    X = np.asarray(dataset[0], dtype=float)
    y = np.asarray(dataset[1])
    classes = np.unique(y, return_counts=True)[1]
    if (
        X.ndim != 2
        or y.shape != X.shape[:1]
        or not np.isfinite(X).all()
        or len(classes) < 2
        or classes.max() < 5
    ):
        raise ValueError(
            "dataset: expected n x p finite numbers and n labels of at least two "
            "classes, one of them with five rows, for five stratified folds, got "
            f"shapes {X.shape} and {y.shape}, and {len(classes)} classes."
        )
    return X, y
