"""Tuning problems of Wang and Welch (2017) whose trainings take up to seconds.

.. [Wang2018monotonicity]
    W. Wang and W. J. Welch. Bayesian Optimization Using Monotonicity Information and
    Its Application in Machine Learning Hyperparameter Tuning. arXiv:1802.03532, 2018.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data import Text, cells
from botorch_structured.spaces.arguments import check_count
from botorch_structured.test_functions.base import import_sklearn
from botorch_structured.test_functions.monotone import DecomposedTestFunction

_TRAINING_IMAGES = 200
_PIXELS = 8


class TuningTestFunction(DecomposedTestFunction):
    """Validation error; the parts are the training error and the gap between both.

    The former is believed to fall and the latter to rise with the learner's capacity.
    A configuration is trained once; it has the same value again, as splits and random
    states depend on ``seed`` only. A subclass defines ``_train``.
    """

    def __init__(self, seed: int, noise_std: float | None, negate: bool) -> None:
        check_count("seed", seed, least=0)
        super().__init__(noise_std=noise_std, negate=negate)
        self.seed = seed
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


class ForestTuning(TuningTestFunction):
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
        """
        super().__init__(seed, noise_std, negate)
        self._forest = import_sklearn("ensemble").RandomForestClassifier
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


class NetworkTuning(TuningTestFunction):
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
        images, labels = import_sklearn("datasets").load_digits(return_X_y=True)
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
    rows = cells(Path(path), Text(str(path)))
    if not rows or any(len(row) != 15 for row in rows):
        n = sorted({len(row) for row in rows})
        raise ValueError(
            f"{path}: expected rows of 14 features and a label, got rows of {n} cells."
        )
    columns = list(zip(*rows, strict=True))
    features = np.empty((len(rows), 14))
    for j, column in enumerate(columns[:14]):
        try:
            features[:, j] = [float(value) for value in column]
        except ValueError:  # categories, "?" among them
            features[:, j] = np.unique(column, return_inverse=True)[1]
    return features, np.array([label.startswith(">50K") for label in columns[14]])


class DigitsNetwork:
    """Splits the 1,797 images into 200 and the rest, and trains networks on the former.

    Two convolutions of 3 x 3 with n and 2 n channels, each followed by ReLU and 2 x 2
    max pooling, a layer of n^2 / 2 ReLU units, and softmax: the network of Wang and
    Welch (2017), section 4.3, with their learning rate, momentum and number of epochs.
    (Their decay of 1e-6 changes nothing in 210 steps.) Single precision.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, seed: int) -> None:
        """
        Args:
            images: ``n x 64`` grey levels from 0 to 16, as scikit-learn has them.
            labels: ``n`` digits.
            seed: Decides the split, the first weights and the order of the images.
        """
        self.seed = seed
        order = torch.randperm(len(labels), generator=self._generator(0))
        pixels = torch.as_tensor(images / 16.0, dtype=torch.float)
        self._images = pixels.reshape(-1, 1, _PIXELS, _PIXELS)[order]
        self._labels = torch.as_tensor(labels)[order]

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(2 * self.seed + stream)

    def cross_entropies(self, l1: float, l2: float, width: int) -> tuple[float, float]:
        """On the training images and on the others, without the penalties.

        Args:
            l1: Factor of the sum of the weights' absolute values, added to the loss.
            l2: Factor of the sum of their squares.
            width: n above, at least 1.
        """
        g = self._generator(1)
        n, m = width, _TRAINING_IMAGES
        flat = 2 * n * (_PIXELS // 4) ** 2
        shapes = [(n, 1, 3, 3), (2 * n, n, 3, 3)]
        hidden = max(1, round(n * n / 2))
        weights = [_initial(*s, g=g) for s in (*shapes, (hidden, flat))]
        weights.append(_initial(10, hidden, g=g))
        biases = [torch.zeros(len(w), requires_grad=True) for w in weights]
        optimizer = torch.optim.SGD([*weights, *biases], lr=0.02, momentum=0.9)
        images, labels = self._images, self._labels
        with torch.enable_grad():
            for _ in range(30):
                for rows in torch.randperm(m, generator=g).split(32):
                    logits = _forward(images[rows], weights, biases)
                    loss = F.cross_entropy(logits, labels[rows])
                    for w in weights:
                        loss = loss + l1 * w.abs().sum() + l2 * w.square().sum()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        with torch.no_grad():
            logits = _forward(images, weights, biases)
            training = F.cross_entropy(logits[:m], labels[:m])
            validation = F.cross_entropy(logits[m:], labels[m:])
        return training.item(), validation.item()


def _initial(*shape: int, g: torch.Generator) -> Tensor:
    """He's initial weights."""
    scale = math.sqrt(2.0 / math.prod(shape[1:]))
    return (scale * torch.randn(*shape, generator=g)).requires_grad_(True)


def _forward(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    for w, b in zip(weights[:2], biases[:2], strict=True):
        x = F.max_pool2d(F.conv2d(x, w, b, padding=1).relu(), 2)
    x = F.linear(x.flatten(1), weights[2], biases[2]).relu()
    return F.linear(x, weights[3], biases[3])
