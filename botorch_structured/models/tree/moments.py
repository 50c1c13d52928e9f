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
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.kernels.leaf_kernels import ConditionalKernel, LeafKernel
from botorch_structured.kernels.tree_structured_kernel import TreeStructuredKernel
from botorch_structured.linalg.blocks import WeightedBlock, positions
from botorch_structured.linalg.correlations import ARRAY_SLOPES, ARRAY_VALUES
from botorch_structured.linalg.parameters import UnknownFormError
from botorch_structured.models.tree.form import Form

Array = NDArray[Any]
#: Correlations of squared distances whose slope is finite at zero.
SMOOTH = {"matern32", "matern52", "rbf"}
# Most numbers in the tables of paths that are evaluated together (32 MiB).
_MAX_NUMBERS = 1 << 22
# Numbers that are read sooner than left out.
_FEW_NUMBERS = 1 << 14
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


# -- tables -----------------------------------------------------------------------


class ColumnScales(NamedTuple):
    """Transforms of single columns: x or log10 x, times a factor, plus a shift.

    The last place is that of all columns behind, such as codes of categories.

    Attributes:
        log: Whether the logarithm is taken, a boolean for each column.
        factor: The factors.
        shift: The shifts.
    """

    log: Array
    factor: Array
    shift: Array


class PathTables:
    """The covariance on some paths, with the present hyperparameters.

    Args:
        kernel: Any kernel of leaves.
        form: Its form, of a row of each path.
        X: Transformed training inputs, ``n x d``, in which values of categorical
            columns are known.

    Attributes:
        names: The correlations k_f, of ``ARRAY_SLOPES``.
        codes: Categorical columns and their known values.
        width: Number of columns of extended inputs.

    Raises:
        UnknownFormError: Where the covariance is another one.
    """

    def __init__(
        self,
        kernel: LeafKernel,
        form: Form,
        X: Tensor,
    ) -> None:
        self.names: list[str] = []
        codes: dict[int, Tensor] = {}
        # weights without a wave: constants, then linear ones, then those of categories
        constants = form.still.shape[-1]
        columns: list[int] = []
        onehot: list[int] = []
        if isinstance(kernel, TreeStructuredKernel):
            weights = kernel.weights
            constants = weights.num_inner + weights.num_offsets
            columns += weights.linear_columns
            onehot += weights.onehot_columns
            for c in onehot:
                codes[c] = getattr(weights, f"known_{c}")
        for factor in form.factors:
            self.names.append(factor.name)
            unordered = factor.unordered[:-1]
            if factor.name not in SMOOTH and not unordered.all():
                raise UnknownFormError
            for c in factor.columns[:-1][unordered].tolist():
                if c in form.listed_codes:
                    codes[c] = torch.from_numpy(form.listed_codes[c])
                else:
                    active = kernel.tree.active_mask(X)[:, c]
                    codes[c] = X[active, c].unique()
        self._behind: dict[int, range] = {}
        self.width = kernel.tree.dim
        coded: list[int] = []
        values: list[float] = []
        for c, values_of in codes.items():
            start = self.width
            values += [*values_of.tolist(), math.nan]
            self.width = kernel.tree.dim + len(values)
            self._behind[c] = span = range(start, self.width)
            coded += [c] * len(span)
        self.codes = codes
        self._coded = np.array(coded, dtype=np.int64)
        self._values = np.array(values)
        for c in onehot:
            columns += self._behind[c]
        # numbers of the constant weights, and columns of others without a wave
        self._still = constants, columns
        self._read(form)

    def of(self, form: Form) -> PathTables:
        """The tables of other paths.

        Args:
            form: A form of the kernel, of a row of each path.
        """
        other = copy(self)
        other._read(form)
        return other

    def _read(self, form: Form) -> None:
        """j, a, b, u, w and t of all weights and of none, ``V + 1``."""
        self._form = form
        self._quantities = q = form.present()
        constants, columns = self._still
        still = form.still.shape[-1]
        waves = len(form.frequencies)
        terms = form.smooth_columns[:-1]
        scale = np.append(q[form.deviations[:-1]], 0.0)
        level, slope, wave, speed, phase = np.zeros((5, len(scale)))
        level[:constants] = scale[:constants]
        slope[constants:still] = scale[constants:still]
        if len(terms):
            wave[still:-1] = scale[still:-1] / math.sqrt(waves)
            rate = q[form.terms[:-1]][:, None, None] * form.frequencies
            speed[still:-1] = np.repeat(rate, 2, axis=1).ravel()
            # the cosines of a column come before its sines
            phase[still:-1].reshape(-1, 2, waves)[:, 0] = 0.5 * math.pi
        self._columns = np.zeros(len(scale), dtype=np.int64)
        self._columns[constants:still] = columns
        self._columns[still:-1] = np.repeat(terms, 2 * waves)
        self._weights = {
            "level": level,
            "slope": slope,
            "wave": wave,
            "frequency": speed,
            "phase": phase,
        }

    def extend(self, x: Array) -> Array:
        """``n x d`` with more columns, the one-hot codes of categorical ones.

        The last place of each code is that of unknown values.
        """
        if not self._behind:
            return x
        code = x[:, self._coded] == self._values
        last = self._values != self._values
        first = np.append(0, last.nonzero()[0][:-1] + 1)
        code[:, last] = ~np.logical_or.reduceat(code, first, axis=1)
        return np.concatenate([x, code], axis=1)

    def read(
        self,
        which: Any,
        data: Array,
        weights: Array | None = None,
    ) -> dict[str, Array]:
        """Tables of some of the paths, with rows on them.

        Args:
            which: Index of these paths.
            data: Rows of each, extended, ``m x N x d``. Tables have its precision.
            weights: The weights of each path in the order wanted, ``m x D``.

        Returns:
            Arrays, ``m x 1 x E``; unused places have zero factors. "columns" are those
            that the path depends on, ``m x E``, -1 where unused, and "values" the rows
            in these, ``m x N x E``. "scales0" is the diagonal of S_0 and "data0" is
            -2 S_0 x for each row x, and so on; "variance" is v, "constant" c. "weights"
            are those of the path, ``m x D`` (V where unused), "places" the places of
            their j in "columns", "level" a, "slope" b, "wave" u, "frequency" w, "phase"
            t.
        """
        form = self._form
        q = self._quantities
        variance = q[form.variance[which]][:, None, None]
        m = len(variance)
        constant = np.zeros_like(variance)
        if form.undeclared is not None:
            constant += (form.undeclared[which] * q[form.offsets].mean())[:, None, None]
        weights = form.weights(which)[-1] if weights is None else weights
        t = {"variance": variance, "constant": constant}
        for name, table in self._weights.items():
            t[name] = table[weights][:, None]
        scales = np.zeros((len(self.names), m, self.width + 1))
        for factor, of_factor in zip(form.factors, scales, strict=True):
            columns = factor.columns[:-1]
            S = np.sqrt(q[factor.lengths[which]])[:, :-1] * factor.seen.numpy()[which]
            of_factor[:, columns] = S
            for c in columns[factor.unordered[:-1]].tolist():
                at = self._behind[c]
                of_factor[:, at.start : at.stop] += of_factor[:, c, None] / 2.0**0.5
                of_factor[:, c] = 0.0
        used = np.logical_or.reduce(scales)
        path, place = (t["slope"] + t["wave"])[:, 0].nonzero()
        of_weights = self._columns[weights]
        used[path, of_weights[path, place]] = True
        columns = positions(torch.from_numpy(used[:, :-1])).numpy()
        columns[columns == self.width] = -1
        t["values"] = np.take_along_axis(data, columns[:, None], -1)
        for i, of_factor in enumerate(scales):
            if of_factor.any():
                S = np.take_along_axis(of_factor, columns, -1)[:, None]
                t[f"scales{i}"] = S
                t[f"data{i}"] = t["values"] * (-2.0 * S)
        for name, table in t.items():
            t[name] = table.astype(data.dtype, copy=False)
        rank = used.cumsum(-1) - 1
        t["places"] = np.take_along_axis(rank, of_weights, -1)
        t["columns"] = columns
        t["weights"] = weights
        return t

    def covariance(self, tables: dict[str, Array]) -> tuple[Array, Array]:
        """K_p and the features of the weights, ``m x N x N`` and ``m x N x D``.

        Args:
            tables: Of ``read``.
        """
        values = tables["values"]
        N = values.shape[1]
        k = np.repeat(np.repeat(tables["variance"], N, axis=1), N, axis=2)
        for i, name in enumerate(self.names):
            if f"data{i}" not in tables:
                continue
            x = -0.5 * tables[f"data{i}"]
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
            at = np.take_along_axis(values, tables["places"][:, None], -1)
            features += tables["slope"] * at
            angle = at * tables["frequency"] + tables["phase"]
            features += tables["wave"] * np.sin(angle)
        return k, features


# -- moments ----------------------------------------------------------------------


class PathMoments:
    """Moments of points on some paths, by the columns that these depend on.

    Args:
        names: The correlations k_f.
        tables: Those of ``U`` paths, with their rows, see ``PathTables``; and
            "inverse_chol", L^-1, zero where padded, ``U x N x N``, and "half", [e, H],
            ``U x N x (1 + D)``.
        weight_mean: mu, and zero for the weight of an unused place.
        covariance: M^-1, or S of M^-1 = I - S'S, likewise.
        is_explained: Whether it is S.
        scales: Transforms of the columns.

    Attributes:
        columns: The columns, ``U x 1 x k``, each once; -1 for none.
    """

    def __init__(
        self,
        names: Sequence[str],
        tables: dict[str, Array],
        weight_mean: Array,
        covariance: Array,
        is_explained: bool,
        scales: ColumnScales | None,
    ) -> None:
        self.columns = tables["columns"][:, None]
        self._scales = scales
        if scales is not None:
            index = np.minimum(self.columns, len(scales.log) - 1)
            self._scales = ColumnScales(
                scales.log[index],
                scales.factor[index],
                scales.shift[index],
            )
            self._any_log = self._scales.log.any()
        self._tables = t = tables
        t["alpha"] = t["half"][..., :1].swapaxes(1, 2) @ t["inverse_chol"]
        t["total"] = (t["variance"] + t["constant"])[..., 0]
        self._offset = bool(t["constant"].any())
        self._factors: list[tuple[str, str]] = []
        for i, name in enumerate(names):
            if f"data{i}" in t:
                self._factors.append((name, str(i)))
                squares = np.add.reduce(np.square(t[f"data{i}"]), -1)
                t[f"squares{i}"] = 0.25 * squares[:, None]
        weights = t["weights"]
        mu = weight_mean[weights][:, :, None]
        t["still"] = t["level"] @ mu
        # Weights of nodes come first, and are constant on a path.
        moving = np.any(t["slope"] + t["wave"], (0, 1)).nonzero()[0]
        self._moving = len(moving) > 0
        self._first = first = int(moving[0]) if self._moving else weights.shape[-1]
        t["mu"] = mu[:, first:]
        for name in ("slope", "wave", "frequency", "phase", "places"):
            t[name] = t[name][..., first:]
        t["rate"] = t["wave"] * t["frequency"]
        self._whole = 2 * weights.shape[-1] > covariance.shape[-1]
        self._covariance = covariance
        self._is_explained = is_explained
        if self._whole:  # paths with most of the weights have no copies
            return
        if not is_explained:
            t["covariance"] = covariance[weights[:, :, None], weights[:, None]]
            return
        t["explained"] = explained = covariance.T[weights]
        width, count = explained.shape[1:]
        if width <= 2 * count:
            eye = np.eye(width, dtype=explained.dtype)
            t["covariance"] = eye - explained @ explained.swapaxes(1, 2)

    @cached_property
    def _readers(self) -> Array:
        """Matrices that read the columns of moving weights, ``U x k x D'``."""
        places = self._tables["places"][:, None]
        table = places == np.arange(self.columns.shape[-1])[:, None]
        return table.astype(self._tables["rate"].dtype)

    def __call__(
        self,
        x: Array,
        gradient: bool,
    ) -> PointMoments:
        """Moments, ``U x w``.

        Args:
            x: Values of the columns, ``U x w x k``.
            gradient: Whether gradients are wanted, ``U x w x k``.
        """
        t = self._tables
        first = self._first
        dtype = x.dtype
        x_rate: Any = 1.0
        if self._scales is not None:
            log, x_rate, shift = self._scales
            if self._any_log:
                positive = np.where(log, x, 1.0)
                x = np.where(log, np.log10(positive), x)
                x_rate = x_rate / np.where(log, positive * math.log(10.0), 1.0)
            x = x * self._scales.factor + shift
            x = x.astype(dtype, copy=False)
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
            if x.shape[-1] <= _FEW_COLUMNS:
                at = x @ self._readers
            else:
                at = np.take_along_axis(x, t["places"][:, None], -1)
            angle = at * t["frequency"]
            angle += t["phase"]
            z = np.sin(angle)
            z *= t["wave"]
            at *= t["slope"]
            z += at
            mean += z @ t["mu"]
            h[..., first:] += z
        if self._whole:
            variance, of_weights = self._by_all_weights(h, gradient)
        else:
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
            return out * x_rate

        return PointMoments(mean[..., 0], variance, pull)

    def _by_all_weights(self, h: Array, gradient: bool) -> tuple[Array, Array]:
        """The form h M^-1 h' of features ``U x w x D``, and h M^-1 for gradients.

        One product for all paths.
        """
        weights = self._tables["weights"]
        path = np.arange(len(h))[:, None]
        S = self._covariance
        spread = np.zeros((h.shape[1], len(h), S.shape[-1]), h.dtype)
        spread[:, path, weights] = h.swapaxes(0, 1)
        features = spread.reshape(-1, S.shape[-1])
        product = features @ S.T
        if self._is_explained:
            variance = np.add.reduce(np.square(features), -1)
            variance -= np.add.reduce(np.square(product), -1)
            if gradient:
                product = features - product @ S
        else:
            variance = np.add.reduce(features * product, -1)
        of_weights = h
        if gradient:
            of_weights = product.reshape(spread.shape)[:, path, weights].swapaxes(0, 1)
        return variance.reshape(spread.shape[:2]).swapaxes(0, 1), of_weights


class LeafMoments:
    """Posterior moments of points one by one.

    On the CPU only: which rows are on which path is read from their values. Several
    threads may call it.

    Args:
        solver: The ``LeafSolver`` of the data.

    Raises:
        UnknownFormError: Where the covariance has no tables.
    """

    def __init__(self, solver: Any) -> None:
        self.solver = solver
        self.kernel: LeafKernel = solver.source
        structure = solver.structure
        form = solver.form or Form(self.kernel, structure.leaf_places)
        self.paths = PathTables(self.kernel, form, solver.X)
        extended = self.paths.extend(solver.X.numpy())
        # bucket, and place in it, of each leaf; one more of points on other paths
        layout = structure.layout
        self.bucket_of_leaf = np.full(layout.num_leaves + 1, -1)
        self.place_of_leaf = np.zeros_like(self.bucket_of_leaf)
        self._tables: list[dict[str, Array]] = []
        widest = 0
        squares = []
        for bucket, weights in zip(layout.buckets, structure.weights, strict=True):
            leaves = bucket.leaves.numpy()
            self.bucket_of_leaf[leaves] = len(self._tables)
            self.place_of_leaf[leaves] = np.arange(len(leaves))
            data = extended[bucket.rows.numpy()]
            self._tables.append(self.paths.read(leaves, data, weights.numpy()))
            widest = max(widest, weights.shape[-1])
            squares.append(data.shape[1] ** 2)
        # how many numbers the tables of a path have: in a bucket, or without data
        widest *= min(widest, len(solver.X))
        self.sizes = self.paths.width + widest + np.array([*squares, 0])
        # decisions of the rows of the last call, and the moments on their paths
        self._last: tuple[tuple[int, bytes] | None, Any] = None, None

    def blocks(self) -> list[WeightedBlock]:
        """A_p and F_p of each bucket."""
        noises = np.append(self.solver.noise.numpy(), 1.0)
        weighted = []
        for bucket, weights, tables in zip(
            self.solver.structure.layout.buckets,
            self.solver.structure.weights,
            self._tables,
            strict=True,
        ):
            k, features = self.paths.covariance(tables)
            if bucket.real is not None:
                real = bucket.real.numpy()[:, :, None]
                k *= real & real.swapaxes(1, 2)
                features *= real
            diagonal = k.reshape(len(k), -1)[:, :: k.shape[-1] + 1]
            diagonal += noises[bucket.index.numpy()]
            arrays = torch.from_numpy(k), torch.from_numpy(features)
            weighted.append(WeightedBlock(bucket, *arrays, weights))
        return weighted

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
        rows = self.solver.kernel.rows(X)
        mean, explained, weight = self.solver.predict(rows)
        reduction = weight.square().sum(-1) - explained.square().sum(-1)
        return mean, rows.prior.expand(len(X)) + reduction

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

    def read(
        self,
        number: int,
        place: Array,
        rows: Tensor,
        path: bool,
    ) -> dict[str, Array]:
        """Tables of paths of one bucket, with the factors of their data.

        Args:
            number: That of the bucket; -1 for paths without data, with prior moments.
            place: The places of the paths in the bucket.
            rows: A row of each path.
            path: Whether the part of the weights alone is wanted.
        """
        if number >= 0:
            bucket = self.solver.structure.layout.buckets[number]
            factors = self.solver.factors.blocks[number]
            tables = {}
            for name, table in self._tables[number].items():
                tables[name] = table[place]
            tables["inverse_chol"] = inverse = factors.inverse_chol.numpy()[place]
            tables["half"] = factors.half.numpy()[place]
            if bucket.real is not None:
                # it is the identity where padded, of which nothing is to be explained
                inverse *= bucket.real.numpy()[place][:, :, None]
            return tables
        paths = self.paths.of(Form(self.kernel, self.kernel.locate(rows)))
        m = len(rows)
        data = np.zeros((m, 0, paths.width), self.solver.X.numpy().dtype)
        tables = paths.read(slice(None), data)
        if path:
            tables["variance"] = np.zeros_like(tables["variance"])
            tables["constant"] = np.zeros_like(tables["constant"])
        tables["inverse_chol"] = np.zeros((m, 0, 0), data.dtype)
        tables["half"] = np.zeros((m, 0, 1 + tables["weights"].shape[-1]), data.dtype)
        return tables

    def side_by_side(
        self,
        tables: dict[str, Array],
        scales: ColumnScales | None,
    ) -> PathMoments:
        """Moments on paths, from tables of ``read``.

        Args:
            tables: Those of the paths.
            scales: Transforms of columns.
        """
        return PathMoments(self.paths.names, tables, *self._weights, scales)


#: Prior means of points ``n x d`` and their gradients (or zero), if wanted.
PriorMean = Callable[[Array, bool], tuple[Array, Any]]


class MomentsOnPaths:
    """Moments of points on the paths of some rows.

    Args:
        moments: Those of a model.
        rows: ``m x d``, of which only the decisions matter.
        path: Whether the part of the weights alone is wanted.
        scales: The input transform, which leaves decisions alone. For the columns that
            a path sees it takes less time than for all.
        outcome: Scale and shift of the outcomes.
        least: The smallest variance, before it is scaled.
        prior: The prior means of the rows, ``m``, or a function if they differ on a
            path.
    """

    def __init__(
        self,
        moments: LeafMoments,
        rows: Tensor,
        path: bool = False,
        scales: ColumnScales | None = None,
        outcome: tuple[float, float] = (1.0, 0.0),
        least: float = -math.inf,
        prior: Array | PriorMean | None = None,
    ) -> None:
        self._moments = moments
        self._path = path
        self._scales = scales
        self._outcome = outcome
        self._least = least
        if prior is None:
            prior = np.zeros(len(rows), rows.numpy().dtype)
        self._prior = prior
        keys = moments.kernel.tree.locate(rows)[2]
        leaf = moments.solver.structure.layout.find(keys).numpy()
        bucket = moments.bucket_of_leaf[leaf]
        if path:  # no data are looked at
            bucket = np.full_like(bucket, -1)
        key = keys.numpy().copy()
        if isinstance(moments.kernel, ConditionalKernel):
            # on all paths without data the moments are those of the prior
            key[bucket < 0] = key[bucket < 0][:1]
        _, first, self._path_of_row = np.unique(
            key,
            return_index=True,
            return_inverse=True,
        )
        self._rows = rows[torch.from_numpy(first)]
        self._bucket = bucket[first]
        self._place = moments.place_of_leaf[leaf][first]
        self._sizes = moments.sizes[self._bucket]
        # paths that are looked at together; rows of the last call and their groups
        self._chosen: list[tuple[Array, PathMoments]] = []
        self._last: tuple[bytes, list[tuple[Array, PathMoments]]] = b"", []

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
        before, groups = self._last
        if row.tobytes() != before:
            groups = self._groups(row)
        prior_slope: Any = 0.0
        if callable(self._prior):
            prior, prior_slope = self._prior(X, gradient)
        else:
            prior = self._prior[row]
        paths = self._moments.paths
        extended = paths.extend(X)
        # one more row and column, for padding
        mean, variance = np.empty((2, n + 1), X.dtype)
        parts = []
        for points, moments in groups:
            point = np.minimum(points, n - 1)
            x = extended[point[:, :, None], moments.columns]
            mean[points], variance[points], back = moments(x, gradient)
            parts.append((points, point, moments.columns, back))
        scale, shift = self._outcome
        mean = (mean[:n] + prior) * scale + shift
        variance = variance[:n]
        limited = np.maximum(variance, self._least) * scale**2
        if not gradient:
            return PointMoments(mean, limited)

        def pull(of_mean: Array, of_variance: Array) -> Array:
            of_mean = of_mean * scale
            of_variance = of_variance * (variance > self._least) * scale**2
            out = np.zeros((n + 1, paths.width + 1), X.dtype)
            for points, point, columns, back in parts:
                at_points = back(of_mean[point], of_variance[point])
                out[points[:, :, None], columns] = at_points
            slope: Array = out[:n, :d] + of_mean[:, None] * prior_slope
            return slope

        return PointMoments(mean, limited, pull)

    def _groups(self, row: Array) -> list[tuple[Array, PathMoments]]:
        """Points on paths that are looked at together, with little padding.

        Args:
            row: The number of the row of each point, ``n``.

        Returns:
            The points on each path, ``U x w`` (``n`` where padded), and moments there.
        """
        n = len(row)
        path = self._path_of_row[row]
        count = np.bincount(path, minlength=len(self._rows))
        # Points come and go: paths are chosen anew if they lack one, or have too many.
        chosen = self._chosen
        present = 0
        padded = 0
        for paths, _ in chosen:
            widths = count[paths]
            present += widths.sum()
            padded += len(paths) * widths.max() * self._sizes[paths[0]]
        if present < n or padded > 4 * count @ self._sizes + _FEW_NUMBERS:
            self._chosen = chosen = self._choose(count)
        order = path.argsort(kind="stable")
        start = count.cumsum() - count
        groups = []
        for paths, moments in chosen:
            size = count[paths, None]
            step = np.arange(size.max())
            points = order[np.minimum(start[paths, None] + step, n - 1)]
            groups.append((np.where(step < size, points, n), moments))
        self._last = row.tobytes(), groups
        return groups

    def _choose(self, count: Array) -> list[tuple[Array, PathMoments]]:
        """The numbers of paths that are looked at together, and moments there.

        Args:
            count: How many points are on each path.
        """
        paths = count.nonzero()[0]
        # tables are read for all paths of a bucket at once, the fewest points first;
        # looked at together are paths with at most twice as many points as another one
        paths = paths[count[paths].argsort(kind="stable")]
        kind = np.zeros_like(count)
        if len(paths) * count.max() > 3 * count.sum() + 64:
            kind = np.log2(np.maximum(count, 1)).astype(int)
        chosen = []
        for bucket in np.unique(self._bucket[paths]):
            alike = paths[self._bucket[paths] == bucket]
            most = max(1, _MAX_NUMBERS // int(self._sizes[alike[0]]))
            for i in range(0, len(alike), most):
                chunk = alike[i : i + most]
                tables = self._moments.read(
                    int(bucket),
                    self._place[chunk],
                    self._rows[torch.from_numpy(chunk)],
                    self._path,
                )
                kinds = kind[chunk]
                if kinds[0] == kinds[-1]:  # ascending
                    moments = self._moments.side_by_side(tables, self._scales)
                    chosen.append((chunk, moments))
                    continue
                for one in np.unique(kinds):
                    which = (kinds == one).nonzero()[0]
                    part = {}
                    for name, table in tables.items():
                        part[name] = table[which]
                    moments = self._moments.side_by_side(part, self._scales)
                    chosen.append((chunk[which], moments))
        return chosen
