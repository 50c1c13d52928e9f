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
values differ.

``LeafMoments`` belongs to a model with its data. For the paths that a search is on,
``MomentsOnPaths`` puts its tables side by side, once, and evaluates points by the
number of their path; ``PathMoments`` has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.kernels.leaf_kernels import ConditionalKernel, LeafKernel
from botorch_structured.kernels.tree_structured_kernel import TreeStructuredKernel
from botorch_structured.linalg.blocks import positions
from botorch_structured.linalg.correlations import ARRAY_SLOPES, ARRAY_VALUES
from botorch_structured.models.fast_inference import with_gradient
from botorch_structured.models.tree.form import Form, UnknownFormError

Array = NDArray[Any]
#: Correlations of squared distances whose slope is finite at zero.
SMOOTH = {"matern32", "matern52", "rbf"}
# Most numbers in the tables of paths that are evaluated together (32 MiB).
_MAX_NUMBERS = 1 << 22
# Up to so many columns of a path are read by a product with a matrix.
_FEW_COLUMNS = 64


class PointMoments(NamedTuple):
    """Posterior means and variances of ``t`` points, each by itself.

    Attributes:
        mean: ``t``.
        variance: ``t``.
        pull: Derivatives of a function by means and variances, ``t`` each, to its
            gradients by the points, ``t x d``. None where no gradients are wanted.
    """

    mean: Any
    variance: Any
    pull: Any = None


class ColumnScales:
    """Transforms of single columns: x or log10 x, times a factor, plus a shift.

    Args:
        log: Whether the logarithm is taken, a boolean for each column.
        factor: The factors.
        shift: The shifts.
    """

    def __init__(
        self,
        log: Array,
        factor: Array,
        shift: Array,
    ) -> None:
        self.log = log
        self.factor = factor
        self.shift = shift
        self._any_log = bool(log.any())

    def take(self, columns: Array) -> ColumnScales:
        """The transforms of these columns; those behind the last stay as they are."""
        index = np.minimum(columns, len(self.log) - 1)
        return ColumnScales(
            self.log[index],
            self.factor[index],
            self.shift[index],
        )

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Transformed values and their derivatives, of values in these columns."""
        if not self._any_log:
            return x * self.factor + self.shift, self.factor
        positive = np.where(self.log, x, 1.0)
        x = np.where(self.log, np.log10(positive), x)
        slope = self.factor / np.where(self.log, positive * np.log(10.0), 1.0)
        return x * self.factor + self.shift, slope


class PathMoments:
    """Moments of points on some paths, by the columns that these depend on.

    Args:
        names: The correlations k_f.
        tables: Those of ``U`` paths, with their rows, see ``PathTables``.
        inverse_chol: L^-1, zero where padded, ``U x N x N``.
        half: [e, H], ``U x N x (1 + D)``.
    """

    def __init__(
        self,
        names: Sequence[str],
        tables: dict[str, Array],
        inverse_chol: Array,
        half: Array,
    ) -> None:
        parts = [tables[f"inputs{i}"] for i in range(len(names))]
        used = np.concatenate([*parts, tables["columns"]], axis=-1)[:, 0]
        order = used.argsort(-1)
        ascending = np.take_along_axis(used, order, -1)
        rank = (np.diff(ascending, prepend=-1) > 0).cumsum(-1) - 1
        #: The columns, ``U x k``, each once; -1 for none.
        self.columns = np.full((len(used), rank.max(initial=-1) + 1), -1)
        np.put_along_axis(self.columns, rank, ascending, -1)
        places = np.empty_like(rank)
        np.put_along_axis(places, order, rank, -1)

        t = {name: tables[name] for name in ("variance", "level", "weights")}
        t["inverse_chol"] = inverse_chol
        t["half"] = half
        t["alpha"] = half[..., :1].swapaxes(1, 2) @ inverse_chol
        t["total"] = (t["variance"] + tables["constant"])[..., 0]
        self._offset = bool(tables["constant"].any())
        if self._offset:
            t["constant"] = tables["constant"]
        self._factors: list[tuple[str, str]] = []
        start = 0
        for i, name in enumerate(names):
            inverse = tables[f"inverse{i}"]
            path, _, place = inverse.nonzero()
            if len(path):
                self._factors.append((name, str(i)))
                data = tables[f"data{i}"]
                column = places[path, start + place]
                t[f"squares{i}"] = np.add.reduce(np.square(data), -1)[:, None]
                for key, table in (("scales", inverse), ("data", -2.0 * data)):
                    shape = *table.shape[:2], self.columns.shape[1]
                    t[f"{key}{i}"] = by_column = np.zeros(shape, half.dtype)
                    by_column[path, :, column] = table[path, :, place]
            start += inverse.shape[-1]
        # Weights of nodes come first, and are constant on a path.
        is_moving = (tables["slope"] != 0.0) | (tables["wave"] != 0.0)
        moving = is_moving.any((0, 1)).nonzero()[0]
        self._moving = len(moving) > 0
        self._first = int(moving[0]) if self._moving else half.shape[-1] - 1
        if self._moving:
            for name in ("slope", "wave", "frequency", "phase"):
                t[name] = tables[name][..., self._first :]
            t["rate"] = t["wave"] * t["frequency"]
            t["places"] = places[:, start + self._first :]
        self._tables = t

    def take(
        self,
        rows: Any,
        weight_mean: Array,
        covariance: Array,
        is_explained: bool,
    ) -> PathMoments:
        """Some of the paths, with the posterior of their weights.

        Args:
            rows: Which of the paths.
            weight_mean: mu, and zero for the weight of an unused place.
            covariance: M^-1, or S of M^-1 = I - S'S, likewise.
            is_explained: Whether it is S.
        """
        new = PathMoments.__new__(PathMoments)
        new.__dict__.update(self.__dict__)
        new.columns = self.columns[rows]
        t = {name: table[rows] for name, table in self._tables.items()}
        weights = t.pop("weights")[:, 0]
        mu = weight_mean[weights][:, :, None]
        t["still"] = t["level"] @ mu
        t["mu"] = mu[:, self._first :]
        if not is_explained:
            t["covariance"] = covariance[weights[:, :, None], weights[:, None]]
        else:
            explained = covariance.T[weights]
            t["explained"] = explained
            width, count = explained.shape[1:]
            if width <= 2 * count:
                eye = np.eye(width, dtype=explained.dtype)
                t["covariance"] = eye - explained @ explained.swapaxes(1, 2)
        new._tables = t
        return new

    @cached_property
    def _readers(self) -> Array:
        """Matrices that read the columns of moving weights, ``U x k x D'``."""
        places = self._tables["places"][:, None]
        table = places == np.arange(self.columns.shape[1])[:, None]
        return table.astype(self._tables["rate"].dtype)

    def __call__(
        self,
        x: Array,
        gradient: bool,
    ) -> PointMoments:
        """Moments, ``U x w``.

        Args:
            x: Transformed values of the columns, ``U x w x k``.
            gradient: Whether gradients are wanted, ``U x w x k``.
        """
        t = self._tables
        first = self._first
        k = t["variance"]
        points: list[Array] = []
        slopes: list[Array] = []
        for name, i in self._factors:
            point = x * t[f"scales{i}"]
            distance: Array = point @ t[f"data{i}"].swapaxes(1, 2)
            distance += t[f"squares{i}"]
            distance += np.add.reduce(np.square(point), -1, keepdims=True)
            np.maximum(distance, 0.0, out=distance)
            if gradient:
                value, slope = ARRAY_SLOPES[name](distance)
                for other in slopes:
                    other *= value
                slope *= k
                slopes.append(slope)
            else:
                value = ARRAY_VALUES[name](distance, distance)
            value *= k
            k = value
            points.append(point)
        if not points:
            k = k * np.ones((1, x.shape[1], t["alpha"].shape[-1]), k.dtype)
        if self._offset:
            k = k + t["constant"]
        weight = k @ t["inverse_chol"].swapaxes(1, 2)
        both = weight @ t["half"]
        mean = both[..., :1] + t["still"]
        h = t["level"] - both[..., 1:]
        if self._moving:
            if len(self.columns[0]) <= _FEW_COLUMNS:
                at = x @ self._readers
            else:
                each = zip(x, t["places"], strict=True)
                at = np.stack([some[:, places] for some, places in each])
            angle = at * t["frequency"]
            angle += t["phase"]
            z = np.sin(angle)
            z *= t["wave"]
            at *= t["slope"]
            z += at
            mean += z @ t["mu"]
            h[..., first:] += z
        if "covariance" in t:
            of_weights = h @ t["covariance"]
        else:
            explained = t["explained"]
            of_weights = h - (h @ explained) @ explained.swapaxes(1, 2)
        variance = np.add.reduce(of_weights * h, -1)
        variance -= np.add.reduce(np.square(weight), -1)
        variance += t["total"]
        if not gradient:
            return PointMoments(mean[..., 0], variance)

        def pull(of_mean: Array, of_variance: Array) -> Array:
            of_mean = of_mean[..., None]
            of_variance = 2.0 * of_variance[..., None]
            back = of_weights @ t["half"][..., 1:].swapaxes(1, 2)
            back += weight
            of_k = back @ t["inverse_chol"]
            of_k *= of_variance
            of_k -= of_mean * t["alpha"]
            out = np.zeros_like(x)
            for (_, i), point, slope in zip(self._factors, points, slopes, strict=True):
                g = slope * of_k
                by_point = g @ t[f"data{i}"]
                by_point += point * (2.0 * np.add.reduce(g, -1, keepdims=True))
                by_point *= t[f"scales{i}"]
                out += by_point
            if self._moving:
                rate = np.cos(angle)
                rate *= t["rate"]
                rate += t["slope"]
                g = of_variance * of_weights[..., first:]
                g += of_mean * t["mu"].swapaxes(1, 2)
                g *= rate
                out += g @ self._readers.swapaxes(1, 2)
            return out

        return PointMoments(mean[..., 0], variance, pull)


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

    def __init__(
        self,
        kernel: LeafKernel,
        places: Any,
        X: Tensor,
    ) -> None:
        self._form = form = Form(kernel, places)
        self._quantities = form.present()
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
                if c in form.listed_codes:
                    self.codes[c] = torch.from_numpy(form.listed_codes[c])
                else:
                    active = kernel.tree.active_mask(X)[:, c]
                    self.codes[c] = X[active, c].unique()
        self._behind: dict[int, range] = {}
        start = kernel.tree.dim
        for c, values_of in self.codes.items():
            self._behind[c] = range(start, start + len(values_of) + 1)
            start += len(values_of) + 1

    def __call__(
        self,
        which: Any,
        weights: Array | None = None,
    ) -> dict[str, Array]:
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
        form = self._form
        q = self._quantities
        variance = q[form.variance[which]]
        constant = np.zeros_like(variance)
        if form.undeclared is not None:
            constant = form.undeclared[which] * q[form.offsets].mean()
        weights = form.weights(which)[-1] if weights is None else weights
        tables = {
            "variance": variance[:, None],
            "constant": constant[:, None],
            "weights": weights,
            **{name: table[weights] for name, table in self._features().items()},
        }
        for i, factor in enumerate(form.factors):
            # a column without an order has a place for each of its values
            start = factor.columns[:-1].copy()
            sizes = np.ones_like(start)
            for j in factor.unordered[:-1].nonzero()[0]:
                places = self._behind[start[j]]
                start[j] = places.start
                sizes[j] = len(places)
            owner = np.arange(len(start)).repeat(sizes)
            start -= sizes.cumsum() - sizes
            columns = start[owner] + np.arange(len(owner))
            share = np.where(factor.unordered[owner], 0.5, 1.0)
            seen = factor.seen.numpy()[which][:, owner]
            used = positions(torch.from_numpy(seen)).numpy()
            W = np.take_along_axis(
                q[factor.lengths[which]], np.append(owner, -1)[used], 1
            )
            tables[f"inputs{i}"] = np.append(columns, 0)[used]
            tables[f"inverse{i}"] = np.sqrt(W * np.append(share, 0.0)[used])
        return {name: table[:, None] for name, table in tables.items()}

    def with_rows(
        self,
        which: Any,
        data: Array,
        weights: Array | None = None,
    ) -> dict[str, Array]:
        """Tables of some of the paths with rows on them, scaled: "data0", ...

        Args:
            which: Index of these paths.
            data: Rows of each, extended, ``m x N x d``. Tables have its precision.
            weights: The weights of each path in the order wanted, ``m x D``.
        """
        tables = self(which, weights)
        for name, table in tables.items():
            if table.dtype == np.float64:
                tables[name] = table.astype(data.dtype, copy=False)
        for i in range(len(self.names)):
            scaled = np.take_along_axis(data, tables[f"inputs{i}"], -1)
            tables[f"data{i}"] = scaled * tables[f"inverse{i}"]
        return tables

    def covariance(
        self,
        tables: dict[str, Array],
        data: Array,
    ) -> tuple[Array, Array]:
        """K_p and the features of the weights, ``m x N x N`` and ``m x N x D``.

        Args:
            tables: Of ``with_rows``.
            data: The rows.
        """
        N = data.shape[1]
        k = np.repeat(np.repeat(tables["variance"], N, axis=1), N, axis=2)
        for i, name in enumerate(self.names):
            x = tables[f"data{i}"]
            squares = np.add.reduce(np.square(x), -1, keepdims=True)
            distance: Array = x @ (-2.0 * x.swapaxes(1, 2))
            distance += squares
            distance += squares.swapaxes(1, 2)
            np.maximum(distance, 0.0, out=distance)
            distance.reshape(len(x), -1)[:, :: N + 1] = 0.0  # in spite of rounding
            k *= ARRAY_VALUES[name](distance, distance)
        k += tables["constant"]
        features = np.repeat(tables["level"], N, axis=1)
        if tables["slope"].any() or tables["wave"].any():
            at = np.take_along_axis(data, tables["columns"], -1)
            features += tables["slope"] * at
            angle = at * tables["frequency"] + tables["phase"]
            features += tables["wave"] * np.sin(angle)
        return k, features

    @cached_property
    def _places(self) -> tuple[Array, Array, Array]:
        """Column and value (NaN: unknown) of the places of codes, where each begins."""
        codes = [[*values.tolist(), math.nan] for values in self.codes.values()]
        sizes = [len(code) for code in codes]
        return (
            np.repeat([*self.codes], sizes),
            np.array([v for code in codes for v in code]),
            np.cumsum([0, *sizes])[:-1],
        )

    def extend(self, x: Array) -> Array:
        """``n x d`` with more columns, the one-hot codes of categorical ones.

        The last place of each code is that of unknown values.
        """
        if not self.codes:
            return x
        columns, values, start = self._places
        code = x[:, columns] == values  # nothing equals NaN
        last = np.append(start[1:], len(columns)) - 1
        code[:, last] = ~np.logical_or.reduceat(code, start, axis=1)
        return np.concatenate([x, code.astype(x.dtype)], axis=1)

    def _features(self) -> dict[str, Array]:
        """j, a, b, u, w and t of all weights and of none, ``V + 1``."""
        form = self._form
        q = self._quantities
        still = form.still.shape[-1]
        waves = len(form.frequencies)
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
        solver: The ``LeafSolver`` of the data, which has ``PathTables``.
    """

    def __init__(self, solver: Any) -> None:
        self.solver = solver
        self.kernel: LeafKernel = solver.kernel
        self.paths: PathTables = solver.paths
        # bucket, and place in it, of each leaf; one more of points on other paths
        layout = solver.structure.layout
        self.bucket_of_leaf = np.full(layout.num_leaves + 1, -1)
        self.place_of_leaf = np.zeros_like(self.bucket_of_leaf)
        for i, bucket in enumerate(layout.buckets):
            leaves = bucket.leaves.numpy()
            self.bucket_of_leaf[leaves] = i
            self.place_of_leaf[leaves] = np.arange(len(leaves))
        self._of_bucket: dict[int, PathMoments] = {}
        # decisions of the rows of the last call, and the moments on their paths
        self._last: tuple[tuple[int, bytes] | None, Any] = None, None

    def __call__(
        self,
        X: Tensor,
        gradient: bool = False,
    ) -> PointMoments:
        """Moments at transformed inputs, as tensors.

        Args:
            X: ``t x d``, not empty.
            gradient: Whether gradients are wanted, by ``X``; those are arrays.
        """
        x = X.detach().numpy()
        decisions = len(x), x[:, self.kernel.tree.decision_columns].tobytes()
        before, paths = self._last
        if decisions != before:
            paths = MomentsOnPaths(self, X.detach())
            self._last = decisions, paths
        mean, variance, pull = paths(x, np.arange(len(x)), gradient)
        return PointMoments(torch.from_numpy(mean), torch.from_numpy(variance), pull)

    def graph(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of ``t x d`` inputs by operations that autograd knows."""
        rows = self.kernel.rows(X)
        mean, explained, weight = self.solver.predict(rows)
        reduction = weight.square().sum(-1) - explained.square().sum(-1)
        return mean, rows.prior.expand(len(X)) + reduction

    def side_by_side(
        self,
        bucket: int,
        place: Array,
        rows: Tensor,
        path: bool,
    ) -> PathMoments:
        """Moments on paths of one bucket.

        Args:
            bucket: Its number; -1 for paths without data.
            place: The places of the paths in the bucket.
            rows: A row of each path.
            path: Whether the part of the weights alone is wanted.
        """
        if bucket < 0:
            return self._without_data(rows, path).take(slice(None), *self._weights)
        if bucket not in self._of_bucket:
            self._of_bucket[bucket] = self._with_data(bucket)
        return self._of_bucket[bucket].take(place, *self._weights)

    @cached_property
    def _weights(self) -> tuple[Array, Array, bool]:
        """mu, and S of M^-1 = I - S'S where it is known, else M^-1; whether it is S.

        With zeros for the weight that an unused place has.
        """
        factors = self.solver.factors
        mean = pad(factors.weight_mean, (0, 1)).numpy()
        covariance = factors.weight_covariance
        if covariance.explained is not None:
            return mean, pad(covariance.explained, (0, 1)).numpy(), True
        return mean, pad(covariance.dense(), (0, 1, 0, 1)).numpy(), False

    def _with_data(self, number: int) -> PathMoments:
        """All leaves of a bucket."""
        bucket = self.solver.structure.layout.buckets[number]
        inverse, half = self.solver.factors.blocks[number]
        if bucket.real is not None:
            # it is the identity where padded, of which nothing is to be explained
            inverse = inverse * bucket.real.unsqueeze(-1)
        tables = self.solver.tables[number]
        return PathMoments(self.paths.names, tables, inverse.numpy(), half.numpy())

    def _without_data(
        self,
        rows: Tensor,
        path: bool,
    ) -> PathMoments:
        """The paths of some rows: prior covariances, of weights alone if wanted."""
        X = self.solver.X
        paths = PathTables(self.kernel, self.kernel.locate(rows), X)
        m = len(rows)
        width = paths.extend(X[:1].numpy()).shape[1]
        data = np.zeros((m, 0, width), X.numpy().dtype)
        tables = paths.with_rows(slice(None), data)
        if path:
            tables["variance"] = np.zeros_like(tables["variance"])
            tables["constant"] = np.zeros_like(tables["constant"])
        inverse = np.zeros((m, 0, 0), data.dtype)
        half = np.zeros((m, 0, 1 + tables["weights"].shape[-1]), data.dtype)
        return PathMoments(paths.names, tables, inverse, half)


class _Tables(NamedTuple):
    """Paths that are evaluated side by side.

    Attributes:
        moments: Moments on the paths.
        columns: The columns of each path, ``U x 1 x k``.
        scales: The transforms of these columns.
    """

    moments: PathMoments
    columns: Array
    scales: ColumnScales | None


class _Group(NamedTuple):
    """Points on paths that are evaluated side by side.

    Attributes:
        paths: The numbers of the paths, ``U``.
        points: The points on each path, ``U x w``; ``n`` where padded.
        tables: What is known of the paths.
    """

    paths: Array
    points: Array
    tables: _Tables


class MomentsOnPaths:
    """Moments of points on the paths of some rows.

    Args:
        moments: Those of a model.
        rows: ``m x d``, of which only the decisions matter.
        path: Whether the part of the weights alone is wanted.
        scales: The input transform, which leaves decisions alone. For the columns that
            a path sees it takes less time than for all.
    """

    def __init__(
        self,
        moments: LeafMoments,
        rows: Tensor,
        path: bool = False,
        scales: ColumnScales | None = None,
    ) -> None:
        self._moments = moments
        self._path = path
        self._scales = scales
        solver = moments.solver
        keys = moments.kernel.tree.locate(rows)[2]
        leaf = solver.structure.layout.find(keys).numpy()
        bucket = moments.bucket_of_leaf[leaf]
        if path:  # no data are looked at
            bucket = np.full_like(bucket, -1)
        key = keys.numpy()
        if isinstance(moments.kernel, ConditionalKernel):
            # on all paths without data the moments are those of the prior
            key = key.copy()
            key[bucket < 0] = key[bucket < 0][:1]
        _, first, self._path_of_row = np.unique(
            key,
            return_index=True,
            return_inverse=True,
        )
        self._rows = rows[torch.from_numpy(first)]
        self._bucket = bucket[first]
        self._place = moments.place_of_leaf[leaf][first]
        # How many numbers the tables of each path have.
        widest = max(weights.shape[-1] for weights in solver.structure.weights)
        buckets = solver.structure.layout.buckets
        sizes = [bucket.index.shape[-1] for bucket in buckets]
        widest *= min(widest, len(solver.factors.weight_covariance.inverse_chol))
        self._sizes = 1 + widest + np.square([*sizes, 0])[self._bucket]
        self._last: tuple[bytes | None, list[_Group]] = None, []
        self._tables: dict[bytes, _Tables] = {}

    def __call__(
        self,
        X: Array,
        row: Array,
        gradient: bool,
    ) -> PointMoments:
        """Moments at points.

        Args:
            X: Inputs, ``n x d``; not transformed if there are ``scales``.
            row: For each point, the number of the row whose path it is on, ``n``.
            gradient: Whether gradients are wanted, by ``X``.
        """
        n, d = X.shape
        name = row.tobytes()
        before, groups = self._last
        if name != before:
            path = self._path_of_row[row]
            if not (gradient or self._path) and self._graph_is_smaller(path):
                return self._by_graph(X)
            groups = list(self._groups(path))
            self._last = name, groups
            # Points come and go, the paths stay for a while.
            self._tables = {}
            for group in groups:
                self._tables[group.paths.tobytes()] = group.tables
        extended = self._moments.paths.extend(X)
        dtype = extended.dtype
        # one more row and column, for padding
        mean = np.empty(n + 1, dtype)
        variance = np.empty(n + 1, dtype)
        pulls = []
        for _, index, (moments, columns, scales) in groups:
            point = np.minimum(index, n - 1)
            x = extended[point[:, :, None], columns]
            rate: Any = 1.0
            if scales is not None:
                x, rate = scales(x)
            mean[index], variance[index], back = moments(
                x.astype(dtype, copy=False), gradient
            )
            pulls.append((index, point, columns, rate, back))
        if not gradient:
            return PointMoments(mean[:n], variance[:n])

        def pull(of_mean: Array, of_variance: Array) -> Array:
            out = np.zeros((n + 1, extended.shape[1] + 1), dtype)
            for index, point, columns, rate, back in pulls:
                slope = back(of_mean[point], of_variance[point])
                out[index[:, :, None], columns] = slope * rate
            return out[:n, :d]

        return PointMoments(mean[:n], variance[:n], pull)

    def _graph_is_smaller(self, path: Array) -> bool:
        """Whether tables would be larger than the features of all points."""
        numbers = int(self._sizes[np.unique(path)].sum())
        return numbers > max(1 << 17, len(path) * self._moments.kernel.num_weights)

    @torch.no_grad()
    def _by_graph(self, X: Array) -> PointMoments:
        if self._scales is not None:
            transformed, _ = self._scales.take(np.arange(X.shape[-1]))(X)
            X = transformed.astype(X.dtype)
        mean, variance = self._moments.graph(torch.from_numpy(X))
        return PointMoments(mean.numpy(), variance.numpy())

    def _groups(self, path: Array) -> Iterator[_Group]:
        """Paths that are looked at together, with little padding.

        Args:
            path: The number of the path of each point, ``n``.
        """
        n = len(path)
        count = np.bincount(path)
        paths = count.nonzero()[0]
        count = count[paths]
        order = path.argsort(kind="stable")
        start = count.cumsum() - count
        kind = self._bucket[paths]
        if len(paths) * count.max() > 3 * n + 64:
            # paths with at most twice as many points as another one: less padding
            kind = kind * 64 + np.log2(count).astype(int)
        for some in sorted({*kind.tolist()}):
            alike = (kind == some).nonzero()[0]
            most = max(1, _MAX_NUMBERS // int(self._sizes[paths[alike[0]]]))
            for i in range(0, len(alike), most):
                chunk = alike[i : i + most]
                size = count[chunk, None]
                step = np.arange(size.max())
                index = order[np.minimum(start[chunk, None] + step, n - 1)]
                index = np.where(step < size, index, n)
                tables = self._tables.get(paths[chunk].tobytes())
                tables = tables or self._read(paths[chunk])
                yield _Group(paths[chunk], index, tables)

    def _read(self, paths: Array) -> _Tables:
        """The tables of some paths of one bucket."""
        moments = self._moments.side_by_side(
            int(self._bucket[paths[0]]),
            self._place[paths],
            self._rows[torch.from_numpy(paths)],
            self._path,
        )
        columns = moments.columns[:, None]
        scales = None if self._scales is None else self._scales.take(columns)
        return _Tables(moments, columns, scales)


# -- with a graph -----------------------------------------------------------------


class _OfPoints(torch.autograd.Function):
    """Moments whose first derivatives in the points are known."""

    @staticmethod
    def forward(
        ctx: Any,
        X: Tensor,
        moments: LeafMoments,
    ) -> tuple[Tensor, Tensor]:
        at_points = moments(X, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(X)
        ctx.at_points = at_points
        ctx.moments = moments
        return at_points.mean, at_points.variance

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # derivatives of the gradient are wanted, too
            (X,) = ctx.saved_tensors
            # on paths without data they are constant
            values = [with_gradient(v, X) for v in ctx.moments.graph(X)]
            (grad_X,) = torch.autograd.grad(
                values,
                X,
                grad_outputs,
                create_graph=True,
            )
            return grad_X, None
        slope = ctx.at_points.pull(*(g.numpy() for g in grad_outputs))
        return torch.from_numpy(slope), None


def differentiable_moments(X: Tensor, moments: LeafMoments) -> tuple[Tensor, Tensor]:
    """Means and variances of points one by one, differentiable in ``X``, also twice.

    Args:
        X: Transformed inputs, ``t x d``, not empty.
        moments: Computes them and their first derivatives, and the graph where others
            are wanted, of the state that the model has now.
    """
    if not torch.is_grad_enabled():
        return moments(X)[:2]
    mean, variance = _OfPoints.apply(X, moments)
    return mean, variance
