"""Validation error as training error plus what it is larger by.

The tuning problems of [Wang2018monotonicity]_, section 4. As a learner's capacity
grows, its training error falls and the gap to the validation error rises: two parts
that are believed to bend one way each, of a sum that does not. Trainings are real, and
take milliseconds to seconds. The same configuration has the same value: splits and
random states depend on ``seed`` only.

.. [Wang2018monotonicity]
    W. Wang and W. J. Welch. Bayesian Optimization Using Monotonicity Information and
    Its Application in Machine Learning Hyperparameter Tuning. arXiv:1802.03532, 2018.
"""

from __future__ import annotations

__all__ = ["ElasticNetTuning", "ForestTuning", "NetworkTuning", "read_adult"]

import csv
import gzip
import importlib
from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_count
from botorch_structured.test_functions.box import DecomposedTestFunction
from botorch_structured.test_functions.digits_network import DigitsNetwork

_NO_L1 = 1e-8  # changes errors by less than 1e-7


class _Tuning(DecomposedTestFunction):
    """Trains once per configuration; the parts are training error and gap.

    The former is believed to fall and the latter to rise with the learner's capacity.
    """

    _names: tuple[str, ...]

    def __init__(self, seed: int, noise_std: float | None, negate: bool) -> None:
        check_count("seed", seed, least=0)
        super().__init__(noise_std=noise_std, negate=negate)
        self.seed = seed
        self.space = SearchSpace(list(self._names), self.bounds)
        self._measured: dict[tuple[float, ...], tuple[float, float]] = {}

    @abstractmethod
    def _train(self, x: tuple[float, ...]) -> tuple[float, float]:
        """Training and validation error of one configuration."""

    def _evaluate_components(self, X: Tensor) -> Tensor:
        parts = []
        for x in map(tuple, X.reshape(-1, self.dim).tolist()):
            if x not in self._measured:
                self._measured[x] = self._train(x)
            training, validation = self._measured[x]
            parts.append((training, validation - training))
        return X.new_tensor(parts).reshape(*X.shape[:-1], 2)


class ElasticNetTuning(_Tuning):
    r"""Validation error of a linear regression with an elastic net.

    [Wang2018monotonicity]_, section 4.1: columns are alpha in [0, 1], the share of the
    L1 penalty, and log2(lambda) in [-10, 0]. 200 training and 200 validation examples
    have 100 standard normal features and unit noise; 50 coefficients are normal with
    standard deviation 0.22 and 50 are zero. The error is half the mean square. There
    is no intercept. About 2 milliseconds an evaluation.

    Values near the optimum hardly differ, and the paper reports ``rank``.

    Example:
        >>> problem = ElasticNetTuning(seed=0)
        >>> X = problem.starts(seed=0)  # 4 x 2
        >>> problem.components(X)  # training error and gap, 4 x 2
        >>> problem.rank(problem(X))  # 4 numbers from 1 (best) to 101
    """

    dim = 2
    continuous_inds = [0, 1]
    _bounds = [(0.0, 1.0), (-10.0, 0.0)]
    _names = ("alpha", "log2_lambda")
    _monotone = ({0: 1, 1: 1}, {0: -1, 1: -1})

    def __init__(
        self, seed: int = 0, noise_std: float | None = None, negate: bool = False
    ) -> None:
        """
        Args:
            seed: Of the data, and of the points that ``rank`` compares with.
            noise_std: Standard deviation of noise to add.
            negate: Whether to negate the function.

        Raises:
            ImportError: Without scikit-learn.
        """
        super().__init__(seed, noise_std, negate)
        _sklearn("linear_model")
        rng = np.random.default_rng(seed)
        coefficients = np.zeros(100)
        coefficients[rng.permutation(100)[:50]] = rng.normal(0.0, 0.22, 50)
        self._data = []
        for _ in range(2):  # training, validation
            features = rng.standard_normal((200, 100))
            targets = features @ coefficients + rng.standard_normal(200)
            self._data.append((features, targets))

    def _train(self, x: tuple[float, ...]) -> tuple[float, float]:
        alpha, strength = x[0], 2.0 ** x[1]
        linear_model: Any = _sklearn("linear_model")
        if alpha < _NO_L1:  # coordinate descent would not end
            n = len(self._data[0][1])  # Ridge has the sum of squares, not half the mean
            model = linear_model.Ridge(n * strength, fit_intercept=False)
        else:
            model = linear_model.ElasticNet(
                alpha=strength,
                l1_ratio=alpha,
                fit_intercept=False,
                tol=1e-6,
                max_iter=100_000,
            )
        model.fit(*self._data[0])
        training, validation = (
            0.5 * float(np.square(y - model.predict(X)).mean()) for X, y in self._data
        )
        return training, validation

    @cached_property
    def _random_values(self) -> Tensor:
        X = self.starts(self.seed, 100)
        return self._evaluate_true(X).sort().values

    def rank(self, values: Tensor) -> Tensor:
        """One more than how many of 100 random points are better than each value."""
        errors = (-values if self.negate else values).to(self._random_values)
        return 1 + torch.searchsorted(self._random_values, errors.contiguous())


class ForestTuning(_Tuning):
    r"""Misclassification rate of a random forest of ten trees.

    [Wang2018monotonicity]_, section 4.2, on the Adult data: columns are logarithms of
    the number of splits and of the smallest leaf (base: the number of training rows)
    and of the number of features tried at each split (base: all of them), each in
    [0, 1], rounded to integers. 70 % of the rows are for training. Values that are not
    numbers are numbered in alphabetical order. Differences from the authors' Matlab:
    trees grow best first, and split numbered categories like numbers. About 0.3
    seconds an evaluation.

    Example:
        >>> problem = ForestTuning(*read_adult("adult-train.csv.gz"))
    """

    dim = 3
    continuous_inds = [0, 1, 2]
    _bounds = [(0.0, 1.0)] * 3
    _names = ("log_splits", "log_leaf_size", "log_features")
    _monotone = ({0: -1, 1: 1, 2: -1}, {0: 1, 1: -1, 2: 1})

    def __init__(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        seed: int = 0,
        noise_std: float | None = None,
        negate: bool = False,
    ) -> None:
        """
        Args:
            features: ``n x p`` numbers, at least 10 rows.
            labels: ``n`` classes.
            seed: Of the split and of the forests.
            noise_std: Standard deviation of noise to add.
            negate: Whether to negate the function.

        Raises:
            ImportError: Without scikit-learn.
            ValueError: For data of other shapes.
        """
        if features.ndim != 2 or labels.shape != features.shape[:1] or len(labels) < 10:
            raise ValueError(
                "data: expected an n x p array and n labels, n at least 10, got shapes "
                f"{features.shape} and {labels.shape}."
            )
        super().__init__(seed, noise_std, negate)
        self._forest: Any = _sklearn("ensemble").RandomForestClassifier
        order = np.random.default_rng(seed).permutation(len(labels))
        parts = np.split(order, [round(0.7 * len(labels))])  # training, validation
        self._data = [(features[rows], labels[rows]) for rows in parts]

    def _train(self, x: tuple[float, ...]) -> tuple[float, float]:
        n, p = self._data[0][0].shape
        model = self._forest(
            n_estimators=10,
            max_leaf_nodes=1 + round(n ** x[0]),  # one more than splits
            min_samples_leaf=round(n ** x[1]),
            max_features=round(p ** x[2]),
            random_state=self.seed,
        )
        model.fit(*self._data[0])
        training, validation = (1.0 - model.score(X, y) for X, y in self._data)
        return training, validation


class NetworkTuning(_Tuning):
    r"""Cross-entropy of a small convolutional network on scikit-learn's digits.

    In place of [Wang2018monotonicity]_, section 4.3, with its network and optimiser
    (``DigitsNetwork``) and 200 training images of 8 x 8 instead of 2,000 of 32 x 32.
    Columns are the L1 and the L2 penalty and the width n in [4, 68], rounded. A penalty
    of a in [0, 1] has the factor 10^(5 a - 6): the paper's [0, 1], were it the factor
    itself, would train nothing on most of its range. 1 to 4 seconds an evaluation.
    """

    dim = 3
    continuous_inds = [0, 1, 2]
    _bounds = [(0.0, 1.0), (0.0, 1.0), (4.0, 68.0)]
    _names = ("l1", "l2", "width")
    _monotone = ({0: 1, 1: 1, 2: -1}, {0: -1, 1: -1, 2: 1})

    def __init__(
        self, seed: int = 0, noise_std: float | None = None, negate: bool = False
    ) -> None:
        """
        Args:
            seed: Of the split, the first weights and the order of the images.
            noise_std: Standard deviation of noise to add.
            negate: Whether to negate the function.

        Raises:
            ImportError: Without scikit-learn.
        """
        super().__init__(seed, noise_std, negate)
        images, labels = _sklearn("datasets").load_digits(return_X_y=True)
        self._network = DigitsNetwork(images, labels, seed)

    def _train(self, x: tuple[float, ...]) -> tuple[float, float]:
        l1, l2 = (10.0 ** (5.0 * a - 6.0) for a in x[:2])
        return self._network.cross_entropies(l1, l2, round(x[2]))


def read_adult(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The Adult data: ``n x 14`` features and whether the income is above 50K.

    Args:
        path: ``adult.data`` as UCI and OpenML have it, 14 columns and the label, comma
            separated, without a header; may be compressed with gzip.

    Raises:
        ValueError: For a file of another form.
    """
    path = Path(path)
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        rows = [row for row in csv.reader(file, skipinitialspace=True) if row]
    if not rows or any(len(row) != 15 for row in rows):
        raise ValueError(f"{path}: expected rows of 14 features and a label.")
    columns = list(zip(*rows, strict=True))
    features = np.empty((len(rows), 14))
    for j, column in enumerate(columns[:14]):
        try:
            features[:, j] = [float(value) for value in column]
        except ValueError:  # categories, "?" among them
            features[:, j] = np.unique(column, return_inverse=True)[1]
    return features, np.array([label.startswith(">50K") for label in columns[14]])


def _sklearn(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"sklearn.{name}")
    except ImportError as error:
        raise ImportError(
            "Tuning problems need scikit-learn: "
            'python -m pip install "botorch-structured[demo]"'
        ) from error
