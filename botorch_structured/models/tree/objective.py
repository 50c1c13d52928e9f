r"""The objective of a fit in closed form: log evidence plus log priors, with gradient.

An evaluation of the general objective (``FastInference.compute_custom_loss``) builds a
graph of about a thousand small tensors; with 60 points the arithmetic takes a hundredth
of that time. ``LeafObjective`` computes the same number and its gradient with NumPy.
All that does not depend on hyperparameters is computed once, when a fit starts.

Every quantity of the model is the exponential of a linear function of the logarithms u
of hyperparameters, q = exp(A u + c). They are

* W = 1 / l^e of each column (for "independent" leaves, of each path and column),
* the variance v of each leaf, a product over the edges of its path,
* the standard deviation of each weight,
* 1 / l of each smooth term,
* the noise variance.

With the distances D_j of column j, which are constants, the covariance of a leaf is
v k(sum_j W_j D_j), plus a constant on an undeclared path. The derivative by log W_j is
-W_j <D_j, G * v * slope>, where G is that of the evidence by the covariance
(``linalg.block_evidence``). Log-normal priors are quadratic in u.
"""

from __future__ import annotations

__all__ = ["LeafObjective"]

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import (
    Kernel,
    MaternKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from botorch_structured.kernels.laplace import LaplaceKernel
from botorch_structured.linalg.block_evidence import (
    Block,
    BlockDerivatives,
    evidence_as_one,
    evidence_by_block,
    pairs_of,
)
from botorch_structured.linalg.block_low_rank import Bucket, positions
from botorch_structured.linalg.correlations import ARRAY_SLOPES
from botorch_structured.models.fast_inference import (
    FastSingleTaskGP,
    has_methods_of,
    noise_is_known,
)
from botorch_structured.models.parameters import (
    LogPriors,
    Quantities,
    RawParameters,
    UnknownFormError,
)
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.leaf_inference import Structure
from botorch_structured.models.tree.old_studies import OldStudiesMean
from botorch_structured.models.tree.path_mean import PathMean
from botorch_structured.models.tree.tree_structured_kernel import (
    TreeStructuredKernel,
    one_hot_code,
)
from botorch_structured.spaces import ParameterTree

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Up to so many distances are kept per bucket of leaves (32 MiB). Of larger data the
# general objective is as fast, since little of its time is overhead, and smaller.
_MAX_KEPT = 2**22
# What a fit minimises.
_WAY_OF_AN_OBJECTIVE = "compute_custom_loss", "__call__", "forward"
# Up to so many rows per weight one n x n factor takes less time than those of blocks.
_ROWS_PER_WEIGHT = 1.5
# The unit of a parameter in a fit, in standard deviations of its prior. With these
# units a fit takes half as many evaluations as without. A whole deviation would be as
# fast, but a first step of that length often ends near another optimum: with 60 points
# on two leaves the best evidence was lower by 2 on average (without units, by 11).
_UNIT = 0.25
# Data determine a variance with a wide prior better than that. Not that of the noise,
# which may be anywhere below the signal.
_WIDEST = 1.0
# A correlation of this name is of sum_j W_j D_j with D_j = |x_j - x'_j|, else squared.
_ABSOLUTE = "laplace"
# The name of exp(-sum_j W_j D_j) with D_j = 1[x_j != x'_j].
_UNEQUAL = "categorical"

# What a model without decisions may have in the place of a kernel of leaves.
_PLAIN = ScaleKernel, ProductKernel, MaternKernel, RBFKernel, LaplaceKernel

_MATERN = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}
_TREE_NAMES = {"matern": "matern52", "rbf": "rbf"}


# -- quantities and leaves --------------------------------------------------------


@dataclass
class _Factor:
    """A correlation k(sum_j W_j D_j) of the rows of some leaves.

    Attributes:
        name: Of ``ARRAY_SLOPES``.
        distances: D, ``B x e x N^2``.
        index: The quantities W, ``B x e``.
    """

    name: str
    distances: Array
    index: Indices


@dataclass
class _Leaves:
    """What is constant in a bucket of leaves.

    Attributes:
        rows: ``B x N``; ``n`` where padded.
        real: 1.0 for rows and 0.0 for padding, ``B x N``; None if nothing is padded.
        pair: The same of pairs of rows, ``B x N x N``.
        variance: The quantities v, ``B``.
        factors: The covariance is v times their product.
        undeclared: Number of undeclared values on the path, ``B``; None if zero.
        fixed: Features over standard deviations, if these are constants,
            ``B x N x D``.
        waves: Inputs of smooth terms, ``B x N x S x 1``.
        present: 1.0 where the term is active, else 0.0, ``B x N x S x 1``.
        terms: The quantities 1 / l of these terms, ``B x S``.
        weights: Weights of the fixed features, then of waves, ``B x (D + 2 m S)``.
        pairs: Of these weights, see ``Block``; of none where blocks are made one.
        fixed_noise: Noise variances that are known, and 1 for padding, ``B x N``.
    """

    rows: Indices
    real: Array | None
    pair: Array | None
    variance: Indices
    factors: list[_Factor]
    weights: Indices
    pairs: Indices
    fixed_noise: Array
    undeclared: Array | None = None
    fixed: Array | None = None
    waves: Array | None = None
    present: Array | None = None
    terms: Indices | None = None


def _numbers(tensor: Tensor) -> Any:
    return tensor.detach().numpy()


def _padded(values: Array) -> Array:
    """With one more row and column, of zeros."""
    n, width = values.shape
    out = np.zeros((n + 1, width + 1))
    out[:n, :width] = values
    return out


def _distances(
    name: str, points: Array, columns: Indices, rows: Indices, unequal: Indices
) -> Array:
    """Distances between the rows of each leaf, column by column, ``B x e x N^2``.

    Args:
        name: The correlation.
        points: ``n x k``.
        columns: The columns of each leaf, ``B x e``; ``k`` where unused.
        rows: ``B x N``; ``n`` where padded.
        unequal: Columns with distance 1[x != x'].
    """
    if columns.size * rows.shape[1] ** 2 > _MAX_KEPT:
        raise UnknownFormError
    x = _padded(points)[rows[:, None, :], columns[:, :, None]]
    difference = x[:, :, :, None] - x[:, :, None, :]
    if name == _ABSOLUTE:
        distances = np.abs(difference, out=difference)
    else:
        distances = np.square(difference, out=difference)
    if unequal.size:
        mine = np.isin(columns, unequal)
        distances[mine] = distances[mine] != 0.0
    return distances.reshape(*columns.shape, rows.shape[1] ** 2)


class _Form:
    """The quantities of a kernel, and the leaves of its data.

    Args:
        kernel: The kernel.
        parameters: Of the model.
        X: Transformed inputs, ``n x d``.
        structure: Their leaves.

    Attributes:
        quantities: The map.
        leaves: The buckets.
        num_weights: V.
        deviations: The quantities that are standard deviations of weights, ``V + 1``.
        offsets: The variances of offsets; an undeclared value has their mean.
        frequencies: Of the waves, ``m``.
    """

    def __init__(
        self, kernel: Any, parameters: RawParameters, X: Tensor, structure: Structure
    ) -> None:
        self.parameters, self.X = parameters, X
        self.places, self.layout, _, self.undeclared = structure
        # before anything is made of all rows
        if any(
            b.index.numel() * b.index.shape[1] > _MAX_KEPT for b in self.layout.buckets
        ):
            raise UnknownFormError
        self.quantities = Quantities()
        self.num_weights = 0
        self.offsets, self.frequencies = np.zeros(0, dtype=np.int64), np.zeros(0)
        if type(kernel) is TreeStructuredKernel:
            self.leaves = self._read_tree(kernel)
        elif type(kernel) is ConditionalKernel:
            self.leaves = self._read_conditional(kernel)
        else:
            raise UnknownFormError
        self._kernel = kernel
        self.read_correlation()

    def _buckets(self, variance: Indices) -> Iterator[tuple[Bucket, _Leaves]]:
        for bucket in self.layout.buckets:
            real = None if bucket.real is None else _numbers(bucket.real).astype(float)
            pair = None if real is None else real[:, :, None] * real[:, None, :]
            mine = variance[_numbers(bucket.leaves)]
            rows, none = _numbers(bucket.index), np.zeros((len(mine), 0), np.int64)
            zero = np.zeros(rows.shape)
            yield bucket, _Leaves(rows, real, pair, mine, [], none, none, zero)

    # -- the tree kernel ----------------------------------------------------------

    def _read_tree(self, kernel: TreeStructuredKernel) -> list[_Leaves]:
        places = self.places
        lengths, variance = self._leaf_quantities(kernel)
        hyper = kernel.leaf_hyperparameters
        width = hyper.num_columns
        points = _numbers(self.X)[:, kernel.columns[:width]]
        categorical = []
        for j, column in enumerate(kernel.columns[:width]):
            if column in kernel._categorical:
                categorical.append(j)
                # all unknown values are the same one
                known = _numbers(getattr(hyper, f"known_{column}"))
                matches = points[:, j, None] == known
                points[:, j] = (matches * np.arange(1, len(known) + 1)).sum(-1)
        name = _TREE_NAMES[kernel.correlation.name]
        undeclared = None
        self._read_weights(kernel)
        if self.offsets.size and self.undeclared:
            undeclared = (places.codes >= kernel.weights.num_outcomes).sum(-1)
        fixed = self._fixed(kernel)
        context = kernel.context_columns
        if context:
            raw = self.parameters.logarithm(hyper.context_lengthscale.raw_value)
            of_context = self.quantities.add(len(context))
            self.quantities.depend(of_context, raw, -2.0)
        out = []
        for bucket, leaves in self._buckets(variance):
            columns = _numbers(positions(places.seen[bucket.leaves, :width]))
            index = np.take_along_axis(lengths[_numbers(bucket.leaves)], columns, 1)
            unequal = np.array(categorical, dtype=np.int64)
            distances = _distances(name, points, columns, leaves.rows, unequal)
            leaves.factors.append(_Factor(name, distances, index))
            if context:
                columns = np.broadcast_to(
                    np.arange(len(context)), (len(index), len(context))
                )
                points_of = _numbers(self.X)[:, context]
                distances = _distances(
                    name, points_of, columns, leaves.rows, unequal[:0]
                )
                leaves.factors.append(_Factor(name, distances, of_context[columns]))
            if undeclared is not None and bool(undeclared[bucket.leaves].any()):
                leaves.undeclared = _numbers(undeclared[bucket.leaves]).astype(float)
            if self.num_weights:
                self._add_features(leaves, bucket, kernel, fixed)
            out.append(leaves)
        return out

    def read_correlation(self) -> None:
        """See ``LeafObjective.read_correlation``."""
        kernel = self._kernel
        if type(kernel) is TreeStructuredKernel:
            name = f"{kernel.correlation.name}_frequencies"
            self.frequencies = _numbers(getattr(kernel.weights, name))
            for leaves in self.leaves:
                for factor in leaves.factors:
                    factor.name = _TREE_NAMES[kernel.correlation.name]

    def _leaf_quantities(self, kernel: TreeStructuredKernel) -> tuple[Indices, Indices]:
        """W of each leaf and column (and one for unused places), and v of each leaf."""
        q, u, places = self.quantities, self.parameters, self.places
        hyper = kernel.leaf_hyperparameters
        width = hyper.num_columns
        variance = q.add(self.layout.num_leaves)
        if hyper.sharing == "independent":
            path = _numbers(places.path)
            if path.max() >= len(hyper.pair):
                raise UnknownFormError  # the kernel raises an error that says why
            q.depend(variance, u.logarithm(hyper.outputscale.raw_value)[path], 1.0)
            table = np.pad(_numbers(hyper.pair)[path], ((0, 0), (0, 1)))
            if not hasattr(hyper, "lengthscale"):
                return q.add(1)[0] + np.zeros_like(table), variance
            length = u.logarithm(hyper.lengthscale.raw_value)
            lengths = q.add(len(length) + 1)
            q.depend(lengths[:-1], length, -2.0)
            table[:, -1] = len(length)
            return lengths[table], variance
        q.depend(variance, u.logarithm(hyper.common_outputscale.raw_value), 1.0)
        if hasattr(hyper, "relative_outputscale"):
            leaf, edge = _numbers(places.nodes[:, 1:]).nonzero()
            relative = u.logarithm(hyper.relative_outputscale.raw_value)
            q.depend(variance[leaf], relative[edge], 1.0)
        dimension = _numbers(hyper.dimension_scale)
        lengths = q.add(width + 1, np.append(-2.0 * np.log(dimension), 0.0))
        if width:
            common = u.logarithm(hyper.common_lengthscale.raw_value)
            q.depend(lengths[:-1], common, -2.0)
        if hasattr(hyper, "relative_lengthscale"):
            relative = u.logarithm(hyper.relative_lengthscale.raw_value)
            q.depend(lengths[:-1], relative, -2.0)
        return np.broadcast_to(lengths, (self.layout.num_leaves, width + 1)), variance

    def _read_weights(self, kernel: TreeStructuredKernel) -> None:
        q, u, weights = self.quantities, self.parameters, kernel.weights
        self.num_weights = weights.num_weights
        self.deviations = q.add(self.num_weights + 1)
        terms, start = [], 0
        for kind, counts in weights._counts.items():
            if not counts:
                continue
            mine = self.deviations[start : start + sum(counts)]
            start += sum(counts)
            raw = u.logarithm(getattr(weights, f"{kind}_variance").raw_value)
            if len(raw) == 1:  # tied
                q.depend(mine, raw, 0.5)
            else:
                q.depend(mine, np.repeat(raw, counts), 0.5)
            if kind == "offset":
                self.offsets = q.add(len(raw))
                q.depend(self.offsets, raw, 1.0)
            if kind == "smooth":
                terms.append(
                    u.logarithm(getattr(weights, f"{kind}_lengthscale").raw_value)
                )
        length = np.concatenate([np.zeros(0, dtype=np.int64), *terms])
        self.terms = q.add(len(length) + 1)
        q.depend(self.terms[:-1], length, -1.0)

    def _add_features(
        self,
        leaves: _Leaves,
        bucket: Bucket,
        kernel: TreeStructuredKernel,
        fixed: Array,
    ) -> None:
        weights, places = kernel.weights, self.places
        X, m = self.X, weights.num_frequencies
        active = places.active[bucket.leaves]
        nodes = places.nodes[bucket.leaves]
        groups = weights.smooth_columns
        count = fixed.shape[-1]
        present = [nodes[:, weights.node_columns], active[:, weights.linear_index]]
        for column, values in weights.onehot_columns.items():
            present.append(active[:, column, None].expand(-1, len(values) + 1))
        used = _numbers(positions(torch.cat(present, dim=-1)))
        rows = leaves.rows
        parts = [np.where(used == count, self.num_weights, used)]
        at = rows[:, :, None], used[:, None, :]
        leaves.fixed = _padded(fixed)[at]
        if groups:
            shown = torch.where(places.active[self.layout.leaf_of_row], X, 0.0)
            value = _numbers(shown[:, groups])
            term = _numbers(positions(active[:, groups]))
            leaves.terms = self.terms[term]
            at = rows[:, :, None], term[:, None, :]
            leaves.waves = _padded(value)[at][..., None]
            on = (rows < len(X))[:, :, None] & (term < len(groups))[:, None, :]
            leaves.present = on[..., None] / math.sqrt(m)
            of_wave = count + 2 * m * term[:, :, None] + np.arange(2 * m)
            of_wave[term == len(groups)] = self.num_weights
            parts.append(of_wave.reshape(len(term), -1))
        leaves.weights = np.concatenate(parts, axis=-1)

    def _fixed(self, kernel: TreeStructuredKernel) -> Array:
        """All features but waves, without their standard deviations, ``n x D``."""
        weights, leaf = kernel.weights, _numbers(self.layout.leaf_of_row)
        X, active = _numbers(self.X), _numbers(self.places.active)[leaf]
        linear = weights.linear_columns
        parts = [
            _numbers(self.places.nodes)[leaf][:, _numbers(weights.node_columns)],
            np.where(active[:, linear], X[:, linear], 0.0),
        ]
        for column in weights.onehot_columns:
            known = getattr(weights, f"known_{column}")
            code = _numbers(one_hot_code(self.X[:, column], known))
            parts.append(code * active[:, column, None])
        return np.concatenate(parts, axis=-1, dtype=np.float64)

    # -- the conditional kernel ---------------------------------------------------

    def _read_conditional(self, kernel: ConditionalKernel) -> list[_Leaves]:
        q, u, places = self.quantities, self.parameters, self.places
        base, columns = kernel.base_kernel, np.arange(self.X.shape[-1])
        columns = _selected(base, columns)
        variance = q.add(self.layout.num_leaves)
        if type(base) is ScaleKernel:
            q.depend(variance, u.logarithm(base.raw_outputscale), 1.0)
            base = base.base_kernel
        bases = list(base.kernels) if type(base) is ProductKernel else [base]
        read = []
        for one in bases:
            mine = columns if one is base else _selected(one, columns)
            name, exponent = _correlation(one)
            shared = one.ard_num_dims is None
            known = shared or one.ard_num_dims == len(mine)
            if not known or len(one.batch_shape) != u.batch_dims:
                raise UnknownFormError
            raw = u.logarithm(one.raw_lengthscale)
            constant = -math.log(len(mine)) if name == _UNEQUAL else 0.0
            lengths = q.add(len(mine) + 1, constant)
            q.depend(lengths[:-1], raw, -exponent)
            read.append((name, mine, lengths))
        X, active = _numbers(self.X), places.active
        out = []
        for bucket, leaves in self._buckets(variance):
            for name, mine, lengths in read:
                # an inactive column is constant on a leaf
                seen = active[bucket.leaves][:, mine]
                used = _numbers(positions(seen))
                unequal = np.arange(len(mine) if name == _UNEQUAL else 0)
                kind = _ABSOLUTE if name == _UNEQUAL else name
                distances = _distances(kind, X[:, mine], used, leaves.rows, unequal)
                leaves.factors.append(_Factor(kind, distances, lengths[used]))
            out.append(leaves)
        return out


def _selected(kernel: Kernel, columns: Indices) -> Indices:
    dims = kernel.active_dims
    return columns if dims is None else columns[_numbers(dims)]


def _correlation(kernel: Kernel) -> tuple[str, float]:
    """Its name, and the e of W = 1 / l^e."""
    kind = type(kernel)
    if kind is RBFKernel:
        return "rbf", 2.0
    if kind is MaternKernel:
        return _MATERN[kernel.nu], 2.0
    if kind is LaplaceKernel:
        return _ABSOLUTE, 1.0
    if kind is CategoricalKernel:
        return _UNEQUAL, 1.0
    raise UnknownFormError


# -- the objective ----------------------------------------------------------------


def _by_leaf(model: Any) -> Kernel:
    """The kernel of a model; one that knows no tree as that of its only leaf."""
    kernel = model.covar_module
    if type(kernel) in _PLAIN and not model.tree.decision_columns:
        kernel = ConditionalKernel(kernel, model.tree)
    known = type(kernel) in (TreeStructuredKernel, ConditionalKernel)
    if not (known and type(kernel.tree) is ParameterTree):
        raise UnknownFormError
    return kernel


@dataclass
class _Part:
    """What the gradient needs of the covariance of a bucket.

    Attributes:
        block: Noise and constants included.
        covariance: v k, ``B x N x N``.
        slopes: v times minus the derivative of k by each factor's distance.
        phase: Of the waves, ``B x N x S x m``.
    """

    block: Block
    covariance: Array
    slopes: list[Array]
    phase: Array | None


class LeafObjective:
    """Minus the objective of a fit per data point, and its gradient.

    Choose it through ``LeafObjective.of`` wherever ``compute_custom_loss`` would be
    evaluated many times for one data set::

        objective = LeafObjective.of(mll)
        if objective is not None:
            value, gradient = objective(objective.read())

    Attributes:
        bounds: Bounds of the parameters, ``k x 2``.
        units: See ``_UNIT``, ``k``.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        element: tuple[int, ...] | None,
        structure: Structure | None,
    ) -> None:
        model = mll.model
        kernel, likelihood, mean = _by_leaf(model), mll.likelihood, model.mean_module
        self._parameters = u = RawParameters(mll, element)
        self._priors = LogPriors(model, u)
        X, y = model.train_inputs[0], model.train_targets
        with torch.no_grad():
            X = model.transform_inputs(X)
        X, y = (X, y) if element is None else (X[element], y[element])
        structure = structure or kernel.structure(X)
        self._form = form = _Form(kernel, u, X, structure)
        n = len(X)
        self._targets = _numbers(y).copy()
        self._num_data = n
        self._residual = np.zeros(n + 1)
        noise = likelihood.noise_covar
        if type(likelihood) is GaussianLikelihood:
            self._noise: Indices | None = form.quantities.add(1)
            form.quantities.depend(self._noise, u.logarithm(noise.raw_noise), 1.0)
            fixed_noise = np.zeros(n + 1)
        else:
            value = likelihood.noise if element is None else likelihood.noise[element]
            self._noise = None
            fixed_noise = np.append(_numbers(value), 1.0)
        fixed_noise[n] = 1.0  # padding is the identity
        for leaves in form.leaves:
            leaves.fixed_noise = fixed_noise[leaves.rows]
        # of a mean c + s h(x): the place of s, and h
        self._slope = np.zeros(0, dtype=np.int64)
        self._basis: Array = np.zeros((n, 0))
        if type(mean) in (ConstantMean, OldStudiesMean):
            self._mean = np.repeat(u.unbounded(mean.raw_constant), n)
        elif type(mean) is PathMean:
            path = _numbers(mean.tree.path_index(X))
            place = u.unbounded(mean.raw_offset)
            if path.max() >= len(place):
                raise UnknownFormError  # the mean raises an error that says why
            self._mean = place[path]
        else:
            raise UnknownFormError
        if type(mean) is OldStudiesMean:
            self._slope = u.unbounded(mean.raw_slope)
            with torch.no_grad():
                self._basis = _numbers(mean.basis(X))[:, None]
        self._map, self._constants = A, _ = form.quantities.map(len(u.values))
        self._back = A.T.tocsr() if sparse.issparse(A) else A.T
        self._as_one = n <= _ROWS_PER_WEIGHT * form.num_weights
        if not self._as_one:
            for leaves in form.leaves:
                leaves.pairs = pairs_of(leaves.weights, form.num_weights)
        self._index = np.concatenate(list(self._indices()))
        every = np.concatenate([leaves.rows.ravel() for leaves in form.leaves])
        self._mean_index = np.append(self._mean, self._mean[-1])[every]
        self._basis_of_row = np.append(self._basis, 0.0 * self._basis[:1], 0)[every]
        units = np.minimum(self._priors.deviations, _WIDEST)
        if self._noise is not None:
            noisy = u.logarithm(noise.raw_noise)
            units[noisy] = self._priors.deviations[noisy]
        _, slope = u.logarithms(u.read())
        if slope is not None:  # raw values that are no logarithms are used as they are
            units[slope != 1.0] = 1.0
        self.bounds, self.units = u.bounds, _UNIT * units[u.free]
        if kernel is not model.covar_module:  # BoTorch's fit, step by step
            self.units = np.ones_like(self.units)
        self._last = b"", math.nan  # theta of the last evaluation, and its value

    @classmethod
    def of(
        cls,
        mll: MarginalLogLikelihood,
        element: tuple[int, ...] | None = None,
        structure: Structure | None = None,
    ) -> LeafObjective | None:
        """The objective of a tree model, or None where there is no closed form.

        There is one for a ``TreeStructuredKernel``, and for a ``ConditionalKernel`` of
        a Matern, RBF or Laplace kernel, scaled or not, perhaps times a
        ``CategoricalKernel``; on a CPU in double precision; with priors and constraints
        known in closed form. What is known is of exactly these classes: a subclass may
        compute something else.

        Args:
            mll: The objective, in training mode.
            element: Of a model with a batch of data sets or outputs, the index of one
                in the batch shape; its objective is independent of the others.
            structure: The leaves of the training data, if known.
        """
        model = mll.model
        tensors = (*model.train_inputs, model.train_targets)
        transform = getattr(model, "input_transform", None)
        known = (
            type(mll) is ExactMarginalLogLikelihood
            and mll.likelihood is model.likelihood
            and noise_is_known(mll.likelihood)
            and getattr(mll.likelihood, "second_noise_covar", None) is None
            and has_methods_of(FastSingleTaskGP, model, *_WAY_OF_AN_OBJECTIVE)
            and not any(True for _ in model.added_loss_terms())
            and (transform is None or not any(True for _ in transform.parameters()))
            and all(t.dtype == torch.float64 for t in tensors)
            and all(t.device.type == "cpu" for t in tensors)
        )
        if not known:
            return None
        try:
            return cls(mll, element, structure)
        except UnknownFormError:
            return None

    def read(self) -> Array:
        """The present raw parameters of the model, ``k``."""
        return self._parameters.read()

    def write(self, theta: Array) -> None:
        """Set the raw parameters of the model to ``k`` values."""
        self._parameters.write(theta)

    def read_correlation(self) -> None:
        """Use the correlation that the tree kernel of the model has now."""
        self._form.read_correlation()
        self._last = b"", math.nan

    def loss(self) -> float:
        """The value at the model's parameters, known if it was the last one."""
        theta, (name, value) = self.read(), self._last
        return value if theta.tobytes() == name else self(theta)[0]

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient, ``k``; both are NaN where a covariance is.

        Args:
            theta: Raw parameters, ``k``.

        Raises:
            NotPSDError: If a covariance is not positive definite even with jitter.
        """
        u, slope = self._parameters.logarithms(theta)
        q = np.exp(self._map @ u + self._constants)
        np.subtract(self._targets, u[self._mean], out=self._residual[:-1])
        if len(self._slope):
            self._residual[:-1] -= self._basis @ u[self._slope]
        form = self._form
        noise: Any = 0.0 if self._noise is None else q[self._noise]
        parts = [self._block(leaves, q, noise) for leaves in form.leaves]
        blocks = [part.block for part in parts]
        evidence = evidence_as_one if self._as_one else evidence_by_block
        value, derivatives = evidence(blocks, self._residual, form.num_weights)
        if math.isnan(value):
            return math.nan, np.full(len(theta), math.nan)
        slopes: list[Array] = []
        by_residual: list[Array] = []
        d_noise = d_offset = 0.0
        for leaves, part, d in zip(form.leaves, parts, derivatives, strict=True):
            g = d.covariance
            slopes += self._pull_back(leaves, part, d, q)
            by_residual.append(d.residual.ravel())
            if self._noise is not None:
                diagonal = g.reshape(len(g), -1)[:, :: g.shape[-1] + 1]
                real = leaves.real
                mine = diagonal if real is None else diagonal * real
                d_noise += float(np.add.reduce(mine, None))
            if leaves.undeclared is not None:
                total = g if leaves.pair is None else g * leaves.pair
                d_offset += float(leaves.undeclared @ total.sum((1, 2)))
        if self._noise is not None:
            slopes.append(d_noise * noise)
        if form.offsets.size:
            slopes.append(d_offset / form.offsets.size * q[form.offsets])
        d_q = np.bincount(self._index, np.concatenate(slopes), minlength=len(q))
        prior, gradient = self._priors(u)
        gradient += self._back @ d_q
        by_row = np.concatenate(by_residual)
        gradient -= np.bincount(self._mean_index, by_row, len(u))
        if len(self._slope):
            gradient[self._slope] -= by_row @ self._basis_of_row
        if slope is not None:
            gradient *= slope
        scale = -1.0 / self._num_data
        self._last = theta.tobytes(), scale * (value + prior)
        return self._last[1], scale * gradient[self._parameters.free]

    def _block(self, leaves: _Leaves, q: Array, noise: Any) -> _Part:
        """Covariances and features of some leaves."""
        rows, real, pair = leaves.rows, leaves.real, leaves.pair
        batch, size = rows.shape
        scale = q[leaves.variance][:, None, None]
        if pair is not None:
            scale = scale * pair
        values, slopes = [], []
        for factor in leaves.factors:
            distance = q[factor.index][:, None, :] @ factor.distances
            k, minus = ARRAY_SLOPES[factor.name](distance.reshape(batch, size, size))
            values.append(k)
            slopes.append(minus)
        covariance = scale * values[0]
        slopes[0] *= scale
        for i in range(1, len(values)):
            slopes[i] *= covariance
            covariance = covariance * values[i]
            for other in slopes[:i]:
                other *= values[i]
        noisy = covariance.copy()
        if leaves.undeclared is not None:
            shift = (leaves.undeclared * q[self._form.offsets].mean())[:, None, None]
            noisy += shift if pair is None else shift * pair
        diagonal = noisy.reshape(batch, -1)[:, :: size + 1]
        diagonal += leaves.fixed_noise
        if self._noise is not None:
            diagonal += noise if real is None else noise * real
        phase = None
        if leaves.fixed is None:
            features = np.zeros((batch, size, 0))
        else:
            deviation = q[self._form.deviations[leaves.weights]][:, None, :]
            features = leaves.fixed
            if leaves.waves is not None:
                phase = leaves.waves * q[leaves.terms][:, None, :, None]
                phase = phase * self._form.frequencies
                waves = np.concatenate([np.cos(phase), np.sin(phase)], axis=-1)
                waves *= leaves.present
                waves = waves.reshape(batch, size, -1)
                features = np.concatenate([features, waves], axis=-1)
            features = features * deviation
        block = Block(noisy, features, rows, leaves.weights, leaves.pairs)
        return _Part(block, covariance, slopes, phase)

    def _pull_back(
        self, leaves: _Leaves, part: _Part, d: BlockDerivatives, q: Array
    ) -> Iterator[Array]:
        """Derivatives by the logarithms of quantities, in the order of ``_indices``."""
        g = d.covariance
        batch = len(g)
        for factor, slope in zip(leaves.factors, part.slopes, strict=True):
            slope *= g
            by_weight = factor.distances @ slope.reshape(batch, -1, 1)
            yield (by_weight[..., 0] * -q[factor.index]).ravel()
        yield np.einsum("bij,bij->b", g, part.covariance)
        if leaves.fixed is None:
            return
        by_deviation = d.features * part.block.features
        yield np.add.reduce(by_deviation, 1).ravel()
        if part.phase is not None:
            m = part.phase.shape[-1]
            start = leaves.fixed.shape[-1]
            shape = (*part.phase.shape[:-1], 2, m)
            value = part.block.features[..., start:].reshape(shape)
            slope = d.features[..., start:].reshape(shape)
            turned = slope[..., 1, :] * value[..., 0, :]
            turned -= slope[..., 0, :] * value[..., 1, :]
            turned *= part.phase
            yield turned.sum((1, 3)).ravel()

    def _indices(self) -> Iterator[Indices]:
        """Which quantities the results of ``_pull_back`` and so on are of."""
        form = self._form
        for leaves in form.leaves:
            for factor in leaves.factors:
                yield factor.index.ravel()
            yield leaves.variance
            if leaves.fixed is not None:
                yield form.deviations[leaves.weights].ravel()
            if leaves.terms is not None:
                yield leaves.terms.ravel()
        if self._noise is not None:
            yield self._noise
        yield form.offsets
