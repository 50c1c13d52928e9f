"""Public data sets under the names of UCI and LIBSVM.

``DIR/uci/adult-train.csv.gz``, ``DIR/libsvm/w8a.gz``, ...; ``DIR`` is ``DATA`` unless
another folder is given. The label is the last column of a file of text.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DATA = Path("../shared/data")


class Text(NamedTuple):
    """A file of rows, the label last."""

    path: str
    header: bool = False
    delimiter: str = ","


FILES: dict[str, Text | str] = {
    "a1a": "libsvm/a1a",
    "adult": Text("uci/adult-train.csv.gz"),
    "australian": "libsvm/australian",
    "car": Text("uci/car.data", header=True),
    "german": Text("uci/german.csv"),
    "heart": "libsvm/heart",
    "phishing": "libsvm/phishing.gz",
    "pima": Text("uci/pima-indians-diabetes.csv"),
    "segment": Text("uci/segment.csv", header=True),
    "sonar": "libsvm/sonar_scale",
    "spambase": Text("uci/spambase.data", header=True),
    "thyroid": Text("uci/new-thyroid.csv"),
    "titanic": Text("uci/titanic-pmlb.csv", header=True, delimiter="\t"),
    "w8a": "libsvm/w8a.gz",
    "wine": Text("uci/winequality-red.csv"),
}
"""A plain name is LIBSVM's format."""


def read(name: str, folder: Path = DATA) -> tuple[np.ndarray, np.ndarray]:
    """``n x p`` numbers and ``n`` labels; each category is a column of zeros and ones.

    Raises:
        FileNotFoundError: The file of the data set is missing.
    """
    source = FILES[name]
    path = folder / (source if isinstance(source, str) else source.path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: expected the data set {name!r} of UCI or LIBSVM, got no file."
        )
    if isinstance(source, str):
        from sklearn.datasets import load_svmlight_file

        X, y = load_svmlight_file(str(path))
        return X.toarray(), y
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        lines = csv.reader(file, delimiter=source.delimiter, skipinitialspace=True)
        rows = [line for line in lines if line][source.header :]
    columns: list[np.ndarray] = []
    for column in zip(*(row[:-1] for row in rows), strict=True):
        values = np.array(column)
        try:
            columns.append(values.astype(float))
        except ValueError:
            columns += [(values == v).astype(float) for v in sorted(set(column))]
    _, labels = np.unique([row[-1] for row in rows], return_inverse=True)
    return np.stack(columns, 1), labels
