"""Tables of small networks: their accuracies and training times.

    python -m benchmarks.network_tables --data DIR --out results/networks

Section 3.3 of Perrone et al. (2017): scikit-learn's multi-layer perceptron on five
binary classification problems, 500 random configurations each, drawn from the paper's
grid without replacement. Each is trained on 70 % of the rows; recorded are the accuracy
on the other rows (the target), the accuracy on the training rows and the CPU time (the
side signals). Where there are fewer than 1,000 rows, accuracies are means over ten
splits and times are sums, because with 63 validation rows the best of 500 networks
would be decided by chance. Benchmarks look evaluations up in the table: all methods see
the same accuracies *and* the same times, and a run can be repeated.

This takes four minutes on one core; an interrupted run can be started again.

DIR holds ``australian``, ``sonar_scale``, ``phishing.gz`` and ``w8a.gz`` (LIBSVM). w1a
is replaced by as many rows of w8a, 2,477, and w8a is capped at 5,000 other rows; both
are drawn at random, as the file is grouped by class.
"""

from __future__ import annotations

__all__ = ["DATASETS", "NetworkTable", "build", "evaluate", "main", "space"]

import argparse
import dataclasses
import gzip
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import step_seed
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import TableProblem


@dataclasses.dataclass(frozen=True)
class _DataSet:
    """Rows of a file: ``rows`` of them, after ``skip`` others, in random order."""

    file: str
    rows: int | None = None
    skip: int = 0
    splits: int = 1


DATASETS = {
    "australian": _DataSet("australian", splits=10),
    "sonar": _DataSet("sonar_scale", splits=10),
    "phishing": _DataSet("phishing.gz"),
    "w1a": _DataSet("w8a.gz", 2477),
    "w8a": _DataSet("w8a.gz", 5000, 2477),
}
_NUM_CONFIGURATIONS = 500
_COLUMNS = {  # the paper's grid; regularisation and learning rate as powers of two
    "layers": (1, 4),
    "units": (1, 50),
    "log2_l2": (-6, 3),
    "log2_rate": (-6, -1),
    "epochs": (3, 10),
}


def space() -> SearchSpace:
    """Five columns of whole numbers."""
    limits = torch.tensor(list(_COLUMNS.values()), dtype=torch.double).T
    return SearchSpace(list(_COLUMNS), limits, integer_features=range(len(_COLUMNS)))


class NetworkTable(TableProblem):
    """Validation error of the networks on one data set; the rest are ``signals``.

    Args:
        path: A file of `build`.
    """

    def __init__(self, path: Path) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        X = [[row[name] for name in _COLUMNS] for row in rows]
        super().__init__(X, [1.0 - row["validation"] for row in rows], space=space())
        side = [
            [row["validation"], row["training"], np.log(row["cpu_s"])] for row in rows
        ]
        index, _ = self.space.nearest(torch.tensor(X, dtype=torch.double))
        signals = self.candidates.new_empty(len(self.candidates), 3)
        signals[index] = torch.tensor(side, dtype=torch.double)
        self.register_buffer("_signals", signals)

    def signals(self, X: Tensor) -> Tensor:
        """``n x 3``: validation and training accuracy, logarithm of the CPU time."""
        return self._signals[self.space.nearest(X)[0]].to(X)

    def starts(self, seed: int, n: int | None = None) -> Tensor:
        """Three different rows at random, or ``n``."""
        return super().starts(seed, 3 if n is None else n)


_Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def evaluate(
    configuration: dict[str, int], splits: Sequence[_Split], seed: int
) -> dict[str, float]:
    """Train one network on each split; mean accuracies, and CPU time."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    accuracies = []
    cpu_s = 0.0
    for k, (X, y, X_valid, y_valid) in enumerate(splits):
        network = MLPClassifier(
            (configuration["units"],) * configuration["layers"],
            alpha=2.0 ** configuration["log2_l2"],
            learning_rate_init=2.0 ** configuration["log2_rate"],
            max_iter=configuration["epochs"],
            random_state=step_seed(seed, k),
        )
        began = time.process_time()
        with warnings.catch_warnings():
            # networks are trained for a few epochs only
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(X, y)
        cpu_s += time.process_time() - began
        accuracies.append((network.score(X_valid, y_valid), network.score(X, y)))
    validation, training = np.mean(accuracies, 0).tolist()
    return {"validation": validation, "training": training, "cpu_s": round(cpu_s, 6)}


def _load(folder: Path, name: str) -> list[_Split]:
    """Training rows and labels, validation rows and labels; standardised."""
    from sklearn.datasets import load_svmlight_file
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    data = DATASETS[name]
    path = next(iter(sorted(folder.rglob(data.file))), None)
    if path is None:
        raise FileNotFoundError(f"{folder}: expected {data.file} (LIBSVM), got none.")
    opened = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")
    with opened as file:
        rows, labels = load_svmlight_file(file)
    order = np.random.default_rng(0).permutation(rows.shape[0])
    order = order[data.skip :][: data.rows]
    rows, labels = rows[order].toarray(), labels[order] > 0
    splits = []
    for k in range(data.splits):
        X, X_valid, y, y_valid = train_test_split(
            rows, labels, test_size=0.3, stratify=labels, random_state=k
        )
        scaler = StandardScaler().fit(X)
        splits.append((scaler.transform(X), y, scaler.transform(X_valid), y_valid))
    return splits


def build(folder: Path, name: str, path: Path, rows: int = _NUM_CONFIGURATIONS) -> None:
    """Complete the table of a data set: a line for each configuration.

    Raises:
        FileNotFoundError: The data are not in ``folder``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    done = path.read_text().splitlines(keepends=True) if path.exists() else []
    if done and not done[-1].endswith("\n"):  # cut off by a kill
        path.write_text("".join(done := done[:-1]))
    if len(done) >= rows:
        return
    grid = space().sample(4 * rows, seed=0).tolist()
    points = list(dict.fromkeys(map(tuple, grid)))[:rows]
    splits = _load(folder, name)
    with open(path, "a") as file:
        for number in tqdm(range(len(done), rows), desc=name, mininterval=10.0):
            values = map(int, points[number])
            configuration = dict(zip(_COLUMNS, values, strict=True))
            result: dict[str, Any] = {**configuration}
            result |= evaluate(configuration, splits, step_seed(0, number))
            file.write(json.dumps(result) + "\n")
            file.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the files")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--rows", type=int, default=_NUM_CONFIGURATIONS)
    parser.add_argument("--out", type=Path, default=Path("results/networks"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in options.datasets:
        build(options.data, name, options.out / f"{name}.jsonl", options.rows)


if __name__ == "__main__":
    main()
