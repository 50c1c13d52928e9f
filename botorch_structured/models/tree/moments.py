r"""Means and variances of points one by one, each from its own leaf alone.

On one path the covariance of a kernel that has a ``form`` is a function of a few
columns (``PathTables``),

    K_p(x, x') = v prod_f k_f(|S_f (x - x')|^2) + c,
    z_i(x) = a_i + b_i x_j + u_i sin(w_i x_j + t_i),    j = j(i),

so moments and their derivatives in x are a few products of small matrices. In terms of
``leaf_inference`` (L, e, H, mu, M), with k(x) the covariances with the leaf's data and
C the part of M^-1 that belongs to the weights of the path,

    w = L^-1 k,  h = z - H'w,
    mean = w'e + z'mu,          variance = v + c - w'w + h'C h,
    d mean = dk' L^-T e + dz'mu,
    d variance = -2 dk' L^-T (H C h + w) + 2 dz'C h.

A categorical column enters as one more column for each of its values, behind those of
the inputs, which has no derivative: half the squared distance of two codes is 1 if the
values differ. ``LeafMoments`` finds the paths of points and puts what is known of these
side by side; ``PathMoments`` evaluates the formulas.
"""

from __future__ import annotations

__all__ = [
    "SMOOTH",
    "Array",
    "LeafMoments",
    "PathMoments",
    "PointMoments",
    "differentiable_moments",
]

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.linalg.block_low_rank import positions
from botorch_structured.linalg.correlations import ARRAY_SLOPES, ARRAY_VALUES
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.form import Form, PresentValues, UnknownFormError
from botorch_structured.models.tree.leaf_inference import LeafKernel, LeafPredictor
from botorch_structured.models.tree.tree_structured_kernel import (
    TreeStructuredKernel,
)

Array = NDArray[Any]
#: Values of columns, ``n x w x k``, and the columns, ``n x k``, to transformed values
#: and their derivatives.
Scale = Callable[[Array, Array], tuple[Array, Array]]
#: Correlations of squared distances whose slope is finite at zero.
SMOOTH = {"matern32", "matern52", "rbf"}
# Numbers of the tables of paths that are looked at together (32 MiB).
_MAX_NUMBERS = 1 << 22
# With more numbers in the tables of all paths, values may take less time without them.
_MANY_NUMBERS = 1 << 17
# Decisions whose paths are known.
_MAX_KNOWN = 4096
# Of more weights, the covariance is computed path by path.
_MANY_WEIGHTS = 1024


class PointMoments(NamedTuple):
    """Posterior means and variances of ``t`` points, each by itself.

    Attributes:
        mean: ``t``.
        variance: ``t``.
        mean_gradient: ``t x d``, or None.
        variance_gradient: ``t x d``, or None.
    """

    mean: Tensor
    variance: Tensor
    mean_gradient: Tensor | None = None
    variance_gradient: Tensor | None = None


class PathMoments:
    """Moments of points on some paths, by the columns that these depend on.

    Args:
        names: The correlations k_f.
        tables: What is known of each of the ``U`` paths, see ``LeafMoments``; ``U x a x
            b`` each. Unused places have zero factors.
        columns: The columns, ``U x k``, each once; -1 for none.
    """

    def __init__(
        self, names: Sequence[str], tables: dict[str, Array], columns: Array
    ) -> None:
        self.columns, t = columns, dict(tables)
        moving = ((t["slope"] != 0.0) | (t["wave"] != 0.0)).any((0, 1)).nonzero()[0]
        # those of nodes come first, and are constant on a path
        self._first = first = int(moving[0]) if len(moving) else t["level"].shape[-1]
        self._moving = len(moving) > 0
        for name in ("columns", "slope", "wave", "frequency", "phase"):
            t[name] = t[name][..., first:]
        t["mu_mT"] = t["mu"].swapaxes(1, 2)
        t["still"] = t["level"] @ t["mu_mT"]
        t["mu"], t["mu_mT"] = t["mu"][..., first:], t["mu_mT"][:, first:]

        def read(name: str, scale: Array | float) -> bool:
            """Have columns read by a product; whether there are any."""
            places = (columns[:, :, None] == t.pop(name)) * scale
            places = places.astype(t["variance"].dtype)
            t[name], t[f"{name}_mT"] = places, places.swapaxes(1, 2).copy()
            return bool(places.any())

        read("columns", 1.0)
        t["total"] = (t["variance"] + t["constant"])[..., 0]
        t["variance"] = t["variance"] * np.ones_like(t["alpha"])
        self._offset = bool(t["constant"].any())
        self._factors: list[tuple[str, str]] = []
        for i, name in enumerate(names):
            # powers of two change no digit
            t[f"data{i}_mT"] = -2.0 * t[f"data{i}"].swapaxes(1, 2)
            if read(f"inputs{i}", t[f"inverse{i}"]):
                self._factors.append((name, str(i)))
        t["rate"] = t["wave"] * t["frequency"]
        for name in ("inverse_chol", "half"):
            t[f"{name}_mT"] = np.ascontiguousarray(t[name].swapaxes(1, 2))
        self._tables = t

    def __call__(self, x: Array, gradient: bool) -> tuple[Array, ...]:
        """Moments.

        Args:
            x: Transformed values of the columns, ``U x w x k``.
            gradient: Whether gradients are wanted.

        Returns:
            Means, variances, ``U x w``, and their gradients, ``U x w x k``, if wanted.
        """
        t, w, first = self._tables, x.shape[1], self._first
        k = np.repeat(t["variance"], w, axis=1)
        points: list[Array] = []
        slopes: list[Array] = []
        for name, i in self._factors:
            point = x @ t[f"inputs{i}"]
            distance = _distance(t, i, point)
            if gradient:
                value, slope = ARRAY_SLOPES[name](distance)
                slopes = [other * value for other in slopes] + [slope * k]
            else:
                value = ARRAY_VALUES[name](distance, distance)
            k = k * value
            points.append(point)
        if self._offset:
            k += t["constant"]
        weight = k @ t["inverse_chol_mT"]
        both = weight @ t["half"]
        mean, h = both[..., :1] + t["still"], t["level"] - both[..., 1:]
        if self._moving:
            at = x @ t["columns"]
            angle = at * t["frequency"]
            angle += t["phase"]
            z = np.sin(angle)
            z *= t["wave"]
            at *= t["slope"]
            z += at
            mean += z @ t["mu_mT"]
            h[..., first:] += z
        of_weights = h @ t["covariance"]
        variance = np.add.reduce(of_weights * h, -1)
        variance -= np.add.reduce(np.square(weight), -1)
        variance += t["total"]
        if not gradient:
            return mean[..., 0], variance
        back = of_weights @ t["half_mT"][:, 1:]
        back += weight
        back = back @ t["inverse_chol"]
        back *= -2.0
        # of the mean, then of the variance
        pull = np.zeros((len(x), 2 * w, x.shape[-1]), dtype=k.dtype)
        for (_, i), point, slope in zip(self._factors, points, slopes, strict=True):
            slope *= 2.0
            g = np.concatenate([slope * t["alpha"], slope * back], axis=1)
            by_point = g @ t[f"data{i}"]
            total = np.add.reduce(g, -1, keepdims=True)
            each = by_point.reshape(len(x), 2, w, point.shape[-1])
            each -= point[:, None] * total.reshape(len(x), 2, w, 1)
            pull += by_point @ t[f"inputs{i}_mT"]
        if self._moving:
            rate = np.cos(angle)
            rate *= t["rate"]
            rate += t["slope"]
            of_variance = of_weights[..., first:] * rate
            of_variance *= 2.0
            g = np.concatenate([rate * t["mu"], of_variance], axis=1)
            pull += g @ t["columns_mT"]
        return mean[..., 0], variance, pull[:, :w], pull[:, w:]


def _distance(t: dict[str, Array], i: str, point: Array) -> Array:
    """|S_f (x - x')|^2 of points S_f x and the data, ``n x w x N``."""
    distance: Array = point @ t[f"data{i}_mT"]
    distance += t[f"squares{i}"]
    distance += np.add.reduce(np.square(point), -1, keepdims=True)
    return np.maximum(distance, 0.0, out=distance)


class PathTables:
    """The covariance on some paths, with the present hyperparameters.

    Args:
        kernel: Any kernel of leaves.
        places: What its ``locate`` says of a row of each path.
        X: Transformed training inputs, ``n x d``, in which values of categorical
            columns are known.

    Attributes:
        names: The correlations k_f, of ``ARRAY_SLOPES``.
        codes: Categorical columns and their known values.

    Raises:
        UnknownFormError: Where the covariance is another one.
    """

    def __init__(self, kernel: LeafKernel, places: Any, X: Tensor) -> None:
        values = PresentValues()
        self._form = form = Form(kernel, places, values)
        self._quantities = form.map(values.u)
        self.names = [factor.name for factor in form.factors]
        self.codes: dict[int, Tensor] = {}
        # weights without a wave: constants, then linear ones, then those of categories
        self._constants = form.still.shape[-1]
        self._linear: list[int] = []
        self._onehot: list[int] = []
        if isinstance(kernel, TreeStructuredKernel):
            weights = kernel.weights
            self._constants = weights.num_inner + weights.num_offsets
            self._linear = weights.linear_columns
            self._onehot = list(weights.onehot_columns)
            self.codes = {c: getattr(weights, f"known_{c}") for c in self._onehot}
        for factor in form.factors:
            unordered = factor.unordered[:-1]
            if factor.name not in SMOOTH and not unordered.all():
                raise UnknownFormError
            for c in factor.columns[:-1][unordered].tolist():
                known = form.known.get(c)
                values_of = (
                    X[:, c].unique() if known is None else torch.from_numpy(known)
                )
                self.codes[c] = values_of
        start, self._behind = kernel.tree.dim, {}
        for c, values_of in self.codes.items():
            self._behind[c] = range(start, start + len(values_of) + 1)
            start += len(values_of) + 1

    def __call__(self, which: Any, weights: Array | None = None) -> dict[str, Array]:
        """Tables of some of the paths.

        Args:
            which: Index of these paths.
            weights: The weights of each path in the order wanted, ``m x D``.

        Returns:
            Arrays, ``m x 1 x E``; unused places have zero factors. "inputs0" are the
            columns that k_0 sees, "inverse0" the diagonal of S_0, and so on; "variance"
            is v, "constant" c. "weights" are those of the path (V where unused),
            "columns" their j, "level" a, "slope" b, "wave" u, "frequency" w, "phase" t.
        """
        form, q = self._form, self._quantities
        variance = q[form.variance[which]]
        constant = np.zeros_like(variance)
        if form.undeclared is not None:
            constant = form.undeclared[which] * q[form.offsets].mean()
        weights = form.weights(which) if weights is None else weights
        tables = {
            "variance": variance[:, None],
            "constant": constant[:, None],
            "weights": weights,
            **{name: table[weights] for name, table in self._features().items()},
        }
        for i, factor in enumerate(form.factors):
            columns: list[int] = []
            owner: list[int] = []
            share: list[float] = []
            for j, column in enumerate(factor.columns[:-1].tolist()):
                mine = self._behind[column] if factor.unordered[j] else [column]
                columns += mine
                owner += [j] * len(mine)
                share += [0.5 if factor.unordered[j] else 1.0] * len(mine)
            used = positions(factor.seen[which][:, owner]).numpy()
            of_column = np.array([*owner, -1])[used]
            W = np.take_along_axis(q[factor.lengths[which]], of_column, 1)
            tables[f"inputs{i}"] = np.array([*columns, 0])[used]
            tables[f"inverse{i}"] = np.sqrt(W * np.array([*share, 0.0])[used])
        return {name: table[:, None] for name, table in tables.items()}

    def _features(self) -> dict[str, Array]:
        """j, a, b, u, w and t of all weights and of none, ``V + 1``."""
        form, q = self._form, self._quantities
        still, waves = form.still.shape[-1], len(form.frequencies)
        columns = [0] * self._constants + self._linear
        columns += [place for c in self._onehot for place in self._behind[c]]
        terms = form.smooth_columns[:-1]
        scale = np.append(q[form.deviations[:-1]], 0.0)
        level, slope, wave, speed, phase = np.zeros((5, len(scale)))
        level[: self._constants] = scale[: self._constants]
        slope[self._constants : still] = scale[self._constants : still]
        if len(terms):
            wave[still:-1] = scale[still:-1] / math.sqrt(waves)
            rate = q[form.terms[:-1]][:, None, None] * form.frequencies
            speed[still:-1] = np.repeat(rate, 2, axis=1).ravel()
            # the cosines of a column come before its sines
            phase[still:-1].reshape(-1, 2, waves)[:, 0] = 0.5 * math.pi
        return {
            "columns": np.array([*columns, *np.repeat(terms, 2 * waves), 0]),
            "level": level,
            "slope": slope,
            "wave": wave,
            "frequency": speed,
            "phase": phase,
        }


class LeafMoments:
    """Posterior moments of points one by one.

    On the CPU only: which rows are on which path is read from their values. Several
    threads may call it.

    Args:
        kernel: Any kernel of leaves.
        predictor: The factors of the data.
        X: Transformed training inputs, ``n x d``.
        places: What the kernel's ``locate`` says of a row of each leaf.

    Raises:
        UnknownFormError: Where there are no ``PathTables`` of the kernel.
    """

    def __init__(
        self, kernel: LeafKernel, predictor: LeafPredictor, X: Tensor, places: Any
    ) -> None:
        # a graph may be built after another correlation was chosen for the model's
        self.kernel, self.predictor, self._X = copy(kernel), predictor, X.detach()
        self._paths = PathTables(self.kernel, places, self._X)
        # of each place of a code its column, its value (NaN: unknown), and of each
        # code its first place
        codes = self._paths.codes
        known = [[*values.tolist(), math.nan] for values in codes.values()]
        sizes = [len(values) for values in known]
        self._codes = (
            np.repeat([*codes], sizes),
            np.array([v for values in known for v in values]),
            np.cumsum([0, *sizes])[:-1],
        )
        self._data = self.extend(self._X)
        self._of_bucket: dict[int, dict[str, Array]] = {}
        self._known: dict[bytes, int] = {}  # keys of paths by decisions
        # paths of the rows of the last call, and their moments
        self._last: tuple[Any, list[tuple[Array, PathMoments]]] = None, []

    @classmethod
    def of(
        cls, kernel: LeafKernel, predictor: LeafPredictor, X: Tensor, places: Any
    ) -> LeafMoments | None:
        """An instance, or None where a kernel has another form."""
        try:
            return cls(kernel, predictor, X, places)
        except UnknownFormError:
            return None

    def extend(self, X: Tensor) -> Array:
        """``n x d`` with more columns, the one-hot codes of categorical ones.

        The last place of each code is that of unknown values.
        """
        x, (columns, known, start) = X.numpy(), self._codes
        if not len(columns):
            return x
        code = x[:, columns] == known  # nothing equals NaN
        last = np.append(start[1:], len(columns)) - 1
        code[:, last] = ~np.logical_or.reduceat(code, start, axis=1)
        return np.concatenate([x, code.astype(x.dtype)], axis=1)

    def __call__(
        self,
        X: Tensor,
        gradient: bool = False,
        path: bool = False,
        scale: Scale | None = None,
    ) -> PointMoments:
        """Moments at points.

        Args:
            X: Inputs, ``t x d``, not empty; transformed if there is no ``scale``.
            gradient: Whether gradients are wanted, by ``X``.
            path: Whether the part of the weights alone is wanted.
            scale: The input transform, which leaves decisions alone. For the columns
                that a path sees it takes less time than for all.
        """
        X = X.detach()
        every, (n, d), keys = self.extend(X), X.shape, self._keys(X)
        if isinstance(self.kernel, ConditionalKernel):
            # of paths without data the moments are the same: those of the prior
            new = self._find(keys, path)[0] < 0
            keys[new] = keys[new][:1]
        name, (before, groups) = (keys.tobytes(), path), self._last
        if name != before:
            if not (gradient or path):
                numbers = self._sizes(np.unique(keys), path).sum()
                if numbers > max(_MANY_NUMBERS, n * self.predictor.num_weights):
                    if scale is not None:
                        columns = np.arange(d)[None]
                        x, _ = scale(X.numpy()[None], columns)
                        X = torch.from_numpy(x[0]).to(X)
                    with torch.no_grad():  # tables would be larger than all features
                        return PointMoments(*self.graph(X))
            groups = list(self._groups(X, keys, path))
            self._last = name, groups
        # one more row and column, for padding
        out = [np.empty(n + 1, every.dtype) for _ in range(2)]
        if gradient:
            width = every.shape[1] + 1
            out += [np.zeros((n + 1, width), every.dtype) for _ in range(2)]
        for index, local in groups:
            columns = local.columns[:, None]
            x = every[np.minimum(index, n - 1)[:, :, None], columns]
            rate: Any = 1.0
            if scale is not None:
                x, rate = scale(x, local.columns)
            found = local(x.astype(every.dtype, copy=False), gradient)
            for values, part in zip(out[:2], found[:2], strict=True):
                values[index] = part
            for values, part in zip(out[2:], found[2:], strict=True):
                values[index[:, :, None], columns] = part * rate
        moments = [torch.from_numpy(part[:n]) for part in out]
        return PointMoments(*moments[:2], *(part[:, :d] for part in moments[2:]))

    def graph(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of ``t x d`` inputs by operations that autograd knows."""
        rows = self.kernel.rows(X)
        prediction = self.predictor(self.kernel, rows)
        reduction = prediction.weight.square().sum(-1)
        reduction = reduction - prediction.explained.square().sum(-1)
        return prediction.mean, rows.prior.expand(len(X)) + reduction

    # -- where rows are -----------------------------------------------------------

    def _keys(self, X: Tensor) -> Array:
        """The path of each row; that of the row before if it has the same decisions."""
        decisions = X.numpy()[:, self.kernel.tree.decision_columns]
        new = np.ones(len(X), dtype=bool)
        np.any(decisions[1:] != decisions[:-1], axis=-1, out=new[1:])
        names, known = [row.tobytes() for row in decisions[new]], self._known
        if not all(name in known for name in names):
            found = self.kernel.tree.locate(X[torch.from_numpy(new)])[2].tolist()
            # a search asks for the same paths again and again
            known = {} if len(known) > _MAX_KNOWN else known
            known.update(zip(names, found, strict=True))
            self._known = known
        keys = np.array([known[name] for name in names])
        return keys[new.cumsum() - 1]

    def _find(self, keys: Array, path: bool) -> tuple[Array, Array]:
        """Bucket and place in it of each path; -1 where no data are to be looked at."""
        leaf = self.predictor.layout.find(torch.from_numpy(keys))
        bucket = self.predictor.bucket_of_leaf[leaf].numpy()
        if path:
            bucket = np.full_like(bucket, -1)
        return bucket, self.predictor.place_of_leaf[leaf].numpy()

    def _sizes(self, keys: Array, path: bool) -> Array:
        """How many numbers the tables of each path have."""
        blocks = self.predictor.blocks
        widest = max(block.weights.shape[-1] for block in blocks)
        rows = [block.bucket.index.shape[-1] for block in blocks]
        return 1 + widest**2 + np.square([*rows, 0])[self._find(keys, path)[0]]

    def _groups(
        self, X: Tensor, keys: Array, path: bool
    ) -> Iterator[tuple[Array, PathMoments]]:
        """Paths that are looked at together, with little padding.

        Returns:
            The rows on each path, ``U x w`` (``n`` where padded), and their moments.
        """
        keys, first, path_of_row, count = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        n, order = len(X), path_of_row.argsort(kind="stable")
        start, sizes = count.cumsum() - count, self._sizes(keys, path)
        # paths with at most twice as many rows as another one, where that saves padding
        level = np.log2(count).astype(int)
        alike = len(keys) * count.max() <= 3 * n + 64
        kind = sizes * 64 + (0 if alike else level)
        for some in np.unique(kind):
            every = (kind == some).nonzero()[0]
            most = max(1, _MAX_NUMBERS // int(some // 64))
            for paths in np.split(every, range(most, len(every), most)):
                step = np.arange(count[paths].max())
                index = order[np.minimum(start[paths, None] + step, n - 1)]
                index = np.where(step < count[paths, None], index, n)
                rows = torch.from_numpy(first[paths])
                yield index, self._side_by_side(X[rows], keys[paths], path)

    # -- tables -------------------------------------------------------------------

    @cached_property
    def _weights(self) -> tuple[Array, Array, Array | None]:
        """mu, the columns of J, and M^-1 = J'J if there are not too many weights.

        With zeros for the weight that an unused place has.
        """
        root = pad(self.predictor.weight_root.mT, (0, 0, 0, 1)).numpy()
        covariance = root @ root.T if len(root) <= _MANY_WEIGHTS else None
        return pad(self.predictor.weight_mean, (0, 1)).numpy(), root, covariance

    def _side_by_side(self, X: Tensor, keys: Array, path: bool) -> PathMoments:
        """What is known of the paths of rows, row by row, padded with zeros."""
        parts = []
        bucket, place = self._find(keys, path)
        for number in np.unique(bucket):
            rows = (bucket == number).nonzero()[0]
            if number < 0:
                part = self._without_data(X[torch.from_numpy(rows)], path)
            else:
                of_bucket = self._with_data(int(number)).items()
                part = {name: table.take(place[rows], 0) for name, table in of_bucket}
            weights = part.pop("weights")[:, 0]
            mean, root, covariance = self._weights
            part["mu"] = mean[weights][:, None]
            if covariance is None:
                mine = [root[some] @ root[some].T for some in weights]
                part["covariance"] = np.stack(mine)
            else:
                part["covariance"] = covariance[weights[:, :, None], weights[:, None]]
            parts.append((rows, part))
        tables = parts[0][1]
        if len(parts) > 1:
            tables = {}
            for name in parts[0][1]:
                shapes = [part[name].shape[1:] for _, part in parts]
                shape = [max(sizes) for sizes in zip(*shapes, strict=True)]
                table = np.zeros((len(X), *shape), parts[0][1][name].dtype)
                for rows, part in parts:
                    _, a, b = part[name].shape
                    table[rows, :a, :b] = part[name]
                tables[name] = table
        names = self._paths.names
        # all that moments depend on, each once
        seen = ["columns", *(f"inputs{i}" for i in range(len(names)))]
        every = [tables[name][:, 0] for name in seen]
        columns = np.sort(np.concatenate(every, axis=-1))
        columns[:, 1:][columns[:, 1:] == columns[:, :-1]] = -1
        return PathMoments(names, tables, columns)

    def _with_data(self, number: int) -> dict[str, Array]:
        """Of all leaves of a bucket."""
        if number not in self._of_bucket:
            predictor = self.predictor
            block = predictor.blocks[number]
            bucket = block.bucket
            tables = self._paths(bucket.leaves.numpy(), block.weights.numpy())
            # padding repeats the last row: L^-1 and H are zero there, except for the
            # identity in L^-1, whose part of the covariance is to be zero
            data = self._data[bucket.index.clamp_max(len(self._data) - 1).numpy()]
            inverse, half = predictor.inverse_chol[number], predictor.half[number]
            if bucket.real is not None:
                inverse = inverse * bucket.real.unsqueeze(-1)
            self._of_bucket[number] = self._with_rows(
                tables, data, inverse.numpy(), half.numpy()
            )
        return self._of_bucket[number]

    def _without_data(self, X: Tensor, path: bool) -> dict[str, Array]:
        """Of the paths of some rows: prior covariances, of weights alone if wanted."""
        paths = PathTables(self.kernel, self.kernel.locate(X), self._X)
        tables, none = paths(slice(None)), self._data[:0]
        if path:
            tables |= {name: 0.0 * tables[name] for name in ("variance", "constant")}
        inverse = np.zeros((len(X), 0, 0), none.dtype)
        half = np.zeros((len(X), 0, 1 + tables["weights"].shape[-1]), none.dtype)
        data = np.broadcast_to(none, (len(X), *none.shape))
        return self._with_rows(tables, data, inverse, half)

    def _with_rows(
        self, tables: dict[str, Array], data: Array, inverse_chol: Array, half: Array
    ) -> dict[str, Array]:
        """Tables of leaves with those of their data.

        Args:
            tables: From ``PathTables``.
            data: The rows of each leaf, extended, ``U x N x d``.
            inverse_chol: L^-1, zero where padded, ``U x N x N``.
            half: [e, H], ``U x N x (1 + D)``.
        """
        for name, table in tables.items():
            if table.dtype == np.float64:
                tables[name] = table.astype(data.dtype, copy=False)
        for i in range(len(self._paths.names)):
            scaled = np.take_along_axis(data, tables[f"inputs{i}"], -1)
            tables[f"data{i}"] = scaled = scaled * tables[f"inverse{i}"]
            tables[f"squares{i}"] = np.add.reduce(np.square(scaled), -1)[:, None]
        alpha = half[..., :1].swapaxes(1, 2) @ inverse_chol
        return {**tables, "inverse_chol": inverse_chol, "half": half, "alpha": alpha}


# -- with a graph -----------------------------------------------------------------


class _OfPoints(torch.autograd.Function):
    """Moments whose first derivatives in the points are known."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, moments: LeafMoments) -> tuple[Tensor, Tensor]:
        found = moments(X, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(X)
        ctx.found, ctx.moments = found, moments
        return found.mean, found.variance

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # derivatives of the gradient are wanted, too
            (X,) = ctx.saved_tensors
            (grad_X,) = _gradients(ctx.moments.graph(X), (X,), grad_outputs, True)
            if grad_X is None:  # as on paths without data
                grad_X = X.masked_fill(torch.ones_like(X, dtype=torch.bool), 0.0)
            return grad_X, None
        of_mean, of_variance = (g.unsqueeze(-1) for g in grad_outputs)
        grad_X = of_mean * ctx.found.mean_gradient
        return grad_X.addcmul_(of_variance, ctx.found.variance_gradient), None


class _OfHyperparameters(torch.autograd.Function):
    """Values that are known; the graph is built where their gradients are asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        values: tuple[Tensor, ...],
        X: Tensor,
        moments: LeafMoments,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.X, ctx.moments = X, moments
        ctx.save_for_backward(*parameters)
        return values

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            found = ctx.moments.graph(ctx.X)
        gradients = _gradients(found, ctx.saved_tensors, grad_outputs, again)
        return None, None, None, *gradients


def _gradients(
    values: Sequence[Tensor],
    wanted: Sequence[Tensor],
    grad_outputs: Sequence[Tensor],
    again: bool,
) -> Sequence[Tensor | None]:
    """Gradients of values, some of which may be constant."""
    both = zip(values, grad_outputs, strict=True)
    pairs = [(value, grad) for value, grad in both if value.requires_grad]
    if not pairs:
        return [None] * len(wanted)
    values, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(
        values, wanted, grads, create_graph=again, allow_unused=True
    )


def differentiable_moments(X: Tensor, moments: LeafMoments) -> tuple[Tensor, Tensor]:
    """Means and variances of points one by one, with their graph.

    They are differentiable in ``X`` and, as all posteriors of GPyTorch, in the
    hyperparameters as far as the covariances of the points themselves depend on these.

    Args:
        X: Transformed inputs, ``t x d``, not empty.
        moments: Computes them and their first derivatives, and the graph where others
            are wanted, of the state that the model has now.
    """
    if not torch.is_grad_enabled():
        return moments(X)[:2]
    mean, variance = _OfPoints.apply(X, moments)
    free = [p for p in moments.kernel.parameters() if p.requires_grad]
    if not free:
        return mean, variance
    # a node of its own: it is not run for gradients in X alone
    zeros = torch.zeros_like(mean), torch.zeros_like(mean)
    more = _OfHyperparameters.apply(zeros, X.detach(), moments, *free)
    return mean + more[0], variance + more[1]
