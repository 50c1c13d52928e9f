r"""Moments on the leaves that a search climbs on: NumPy, and nothing looked up.

A climb changes a few columns of some rows, and none of them leaves its path. What
``leaf_moments`` has for these paths is put side by side once, row by row; then an
evaluation is some thirty operations on small arrays, which take a quarter of the time
of the general ones. The formulas are those of ``leaf_moments``; padding has zero
factors.
"""

from __future__ import annotations

__all__ = [
    "Array",
    "ArrayMoments",
    "ColumnScales",
    "Indices",
    "LocalMoments",
    "MomentsNear",
]

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from numpy.typing import NDArray
from torch import Tensor

from botorch_structured.linalg.correlations import Correlation

Array = NDArray[Any]
Indices = NDArray[np.int64]

# Tables that are needed transposed, too.
_TRANSPOSED = {
    "data",
    "inverse_chol",
    "of_data",
    "of_features",
    "inputs_of",
    "columns_of",
}
# Those of features that are not constant on a path, which there may be none of.
_OF_FEATURES = {"of_features", "columns", *"abuwf"}


class ArrayMoments(NamedTuple):
    """Moments of ``n x w`` points, with gradients by the ``k`` columns that change.

    Attributes:
        mean: ``n x w``.
        variance: ``n x w``.
        mean_gradient: ``n x w x k``.
        variance_gradient: ``n x w x k``.
    """

    mean: Array
    variance: Array
    mean_gradient: Array
    variance_gradient: Array


#: Moments as a function of values of columns, ``n x w x k``, and the numbers of rows.
MomentsNear = Callable[[Array, Array], ArrayMoments]


class ColumnScales:
    """An input transform of single columns: x or log10 x, times a factor, plus another.

    Args:
        width: The number of columns.
    """

    def __init__(self, width: int) -> None:
        self.log = np.zeros(width, dtype=bool)
        self.factor, self.shift = np.ones(width), np.zeros(width)

    @classmethod
    def of(cls, transform: InputTransform | None, width: int) -> ColumnScales | None:
        """What a transform does in evaluation mode; None where it is of another kind.

        Args:
            transform: ``Normalize``, ``Log10``, both of them, or None.
            width: The number of columns.
        """
        part: Any = transform
        parts = [] if part is None else [part]
        if type(part) is ChainedInputTransform:
            parts = [*part.values()]
        scales = cls(width)
        return scales if all(map(scales._add, parts)) else None

    def _add(self, part: Any) -> bool:
        """Apply a part after the others, if its kind is known."""
        if type(part) not in (Normalize, Log10) or part.reverse:
            return False
        if not part.transform_on_eval:
            return True
        indices = getattr(part, "indices", None)
        at = slice(None) if indices is None else indices.numpy()
        if type(part) is Log10:
            fresh = ~self.log[at] & (self.factor[at] == 1.0) & (self.shift[at] == 0.0)
            self.log[at] = True
            return bool(fresh.all())
        factor, offset = 1.0 / part.coefficient, part.offset
        if factor.numel() != factor.shape[-1]:
            return False
        factor, offset = factor.flatten().numpy(), offset.flatten().numpy()
        self.factor[at] *= factor
        self.shift[at] = (self.shift[at] - offset) * factor
        return True

    def near(self, columns: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
        """The transform and its derivative as a function of values and rows.

        Args:
            columns: ``S x k``. The function takes ``n x w x k`` values of the columns
                of ``n`` of these rows.
        """
        log, factor, shift = (
            part[columns][:, None] for part in (self.log, self.factor, self.shift)
        )
        logs = bool(log.any())
        if not logs and bool((factor == 1.0).all() and (shift == 0.0).all()):
            one = np.ones((1, 1, 1))
            return lambda x, rows: (x.astype(np.float64, copy=False), one)

        def transformed(x: Array, rows: Array) -> tuple[Array, Array]:
            rate = factor[rows]
            if not logs:
                return x * rate + shift[rows], rate
            mine = log[rows]
            safe = np.where(mine, x, 1.0)
            x = np.where(mine, np.log10(safe), x)
            return x * rate + shift[rows], rate / np.where(
                mine, safe * np.log(10.0), 1.0
            )

        return transformed


class LocalMoments:
    """Moments of rows whose columns change, on the path on which each row is.

    Args:
        correlation: k.
        tables: What ``leaf_moments`` has for leaves, of one or more of them.
        place: Which table and which leaf of it each of the ``S`` rows is on.
        X: Extended and transformed inputs, ``S x d``.
        columns: The columns that change, ``S x k``.
    """

    def __init__(
        self,
        correlation: Correlation,
        tables: Sequence[dict[str, Tensor]],
        place: Sequence[tuple[int, int]],
        X: Array,
        columns: Array,
    ) -> None:
        self._correlation = correlation
        self._moving = any(table["columns"].shape[-1] for table in tables)
        left_out = set() if self._moving else _OF_FEATURES
        names = [name for name in tables[0] if name not in left_out]
        places = np.array(place)  # once, not for each table
        self._tables = {name: _side_by_side(tables, places, name) for name in names}
        t = self._tables
        # columns of the covariance and of features as functions of those that change
        for name, factor in (("inputs", "inverse"), ("columns", None)):
            if name in left_out:
                continue
            index = t.pop(name)
            changes = (columns[:, :, None] == index).astype(X.dtype)
            still = np.take_along_axis(X[:, None], index, -1)
            still = still * (changes.sum(1, keepdims=True) == 0.0)
            if factor is not None:
                still, changes = still * t[factor], changes * t[factor]
            t[f"{name}_still"], t[f"{name}_of"] = still, changes
        t["total"] = t["variance"] + t["constant"]
        labels, rates, codes = (t.pop(name) for name in ("labels", "rates", "codes"))
        if labels.shape[-1]:  # which do not change
            own = np.take_along_axis(X[:, None], labels, -1) * rates
            gap = np.square(own - codes).sum(-1)[:, None]
            t["variance"] = t["variance"] * np.exp(-gap)
        t["twice"] = 2.0 * t["variance"]
        self._offset = bool(t["constant"].any())
        if self._moving:
            t["rates"] = t["u"] * t["w"]
        for name in t.keys() & _TRANSPOSED:
            t[f"{name}_mT"] = np.ascontiguousarray(t[name].swapaxes(1, 2))
        # powers of two change no digit
        t["data_mT"] = -2.0 * t["data_mT"]
        t["inverse_chol"] = 2.0 * t["inverse_chol"]
        t["of_weights_mT"] = t.pop("of_data_mT")[:, 1:]
        self._rows: Array = np.arange(len(X))
        self._kept = t

    def _of(self, rows: Array) -> dict[str, Array]:
        """The tables of some rows; a climb has the same ones again and again."""
        if rows is not self._rows:
            if not np.array_equal(rows, self._rows):
                every = self._tables.items()
                self._kept = {name: t.take(rows, 0) for name, t in every}
            self._rows = rows
        return self._kept

    def __call__(self, x: Array, rows: Array) -> ArrayMoments:
        """Moments.

        Args:
            x: Transformed values of the columns, ``n x w x k``.
            rows: Which of the ``S`` rows they replace columns of, ``n``.

        Returns:
            Means, variances, ``n x w``, and their gradients, ``n x w x k``.
        """
        t = self._of(rows)
        w = x.shape[1]
        scaled = x @ t["inputs_of"]
        scaled += t["inputs_still"]
        distance = scaled @ t["data_mT"]
        distance += t["squares"]
        distance += np.add.reduce(np.square(scaled), -1, keepdims=True)
        np.maximum(distance, 0.0, out=distance)
        k, slope = self._correlation.array_value_and_slope(distance)
        k *= t["variance"]
        if self._offset:
            k += t["constant"]
        weight = k @ t["inverse_chol_mT"]
        both = weight @ t["of_data"]
        both += t["still"]
        if self._moving:
            at = x @ t["columns_of"]
            at += t["columns_still"]
            angle = at * t["w"]
            angle += t["f"]
            z = np.sin(angle)
            z *= t["u"]
            at *= t["b"]
            z += at
            z += t["a"]
            both += z @ t["of_features"]
        y = both[..., 1:]
        variance = np.add.reduce(np.square(y), -1)
        variance -= np.add.reduce(np.square(weight), -1)
        variance += t["total"][..., 0]
        slope *= t["twice"]
        back = y @ t["of_weights_mT"]
        back -= weight
        back = back @ t["inverse_chol"]
        # of the mean, then of the variance
        g = np.empty((len(x), 2 * w, slope.shape[-1]), dtype=slope.dtype)
        np.multiply(slope, t["alpha"], out=g[:, :w])
        np.multiply(slope, back, out=g[:, w:])
        pull = g @ t["data"]
        total = np.add.reduce(g, -1, keepdims=True)
        each = pull.reshape(len(x), 2, w, scaled.shape[-1])
        each -= scaled[:, None] * total.reshape(len(x), 2, w, 1)
        pull = pull @ t["inputs_of_mT"]
        if self._moving:
            rate = np.cos(angle)
            rate *= t["rates"]
            rate += t["b"]
            of_variance = y @ t["of_features_mT"][:, 1:]
            of_variance *= 2.0
            g = np.concatenate(
                [rate * t["of_features_mT"][:, :1], rate * of_variance], axis=1
            )
            pull += g @ t["columns_of_mT"]
        return ArrayMoments(both[..., 0], variance, pull[:, :w], pull[:, w:])


def _side_by_side(
    tables: Sequence[dict[str, Tensor]], place: Indices, name: str
) -> Array:
    """A table of leaves for each row, ``S x a x b``, padded with zeros."""
    arrays = [table[name].numpy() for table in tables]
    if len(arrays) == 1:
        return arrays[0].take(place[:, 1], 0)
    shape = [max(a.shape[i] for a in arrays) for i in (1, 2)]
    out = np.zeros((len(place), *shape), dtype=arrays[0].dtype)
    for row, (table, leaf) in zip(out, place, strict=True):
        part = arrays[table][leaf]
        row[: part.shape[0], : part.shape[1]] = part
    return out
