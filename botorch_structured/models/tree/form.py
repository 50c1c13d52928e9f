r"""The covariance of a leaf kernel path by path, as numbers: q = exp(A u + c).

Every quantity of a ``TreeStructuredKernel``, and of a ``ConditionalKernel`` of known
kernels, is the exponential of a linear function of the logarithms u of hyperparameters:

* W = 1 / l^e of each column (for "independent" leaves, of each path and column),
* the variance v of each path, a product over the edges of the path,
* the standard deviation s of each weight,
* 1 / l of each smooth term.

On a path p the covariance and the features of the weights are

    K_p(x, x') = v prod_f k_f(sum_j W_fj D_fj(x, x')) + undeclared mean(offsets),
    z_i(x) = s_i times   1   or   x_j   or   1[x_j = code]   or   sin(t x_j / l + phase)

with D = (x_j - x'_j)^2, or |x_j - x'_j| for "laplace", or 1[x_j != x'_j] for a column
without an order.

A ``Form`` says which quantities these are, and nothing of data. Fits evaluate it at
many u (``objective``), moments at the present one::

    form = Form(kernel, places)     # places = kernel.locate(rows), m paths
    q = form.present()              # all quantities
    v = q[form.variance]            # m; and for a factor f of form.factors
    columns, lengths = f.part(which)  # which of the paths: rows of m x E
    W = q[lengths]

Deviations of weights are ``q[form.deviations]``, ``V + 1`` of them: the last is of the
places in ``form.weights(which)`` that a path does not use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch import Module
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from botorch_structured.kernels.leaf_kernels import (
    COVARIANCE,
    ConditionalKernel,
    LeafKernel,
)
from botorch_structured.kernels.mondrian import LaplaceKernel
from botorch_structured.kernels.tree_structured_kernel import (
    TreeStructuredKernel,
    check_declared,
)
from botorch_structured.linalg.blocks import Array, Indices, positions
from botorch_structured.linalg.correlations import computes_as
from botorch_structured.linalg.parameters import RawParameters, UnknownFormError

# A map of at most this many entries is a dense matrix.
_MAX_DENSE = 2**16


@dataclass
class Factor:
    """A correlation k(sum_j W_j D_j) of the covariance within paths.

    Attributes:
        name: Of ``ARRAY_SLOPES``.
        columns: Of the transformed inputs, and one past their last, ``C + 1``.
        lengths: The quantities W of these on each path, ``m x (C + 1)``.
        seen: Which columns a path sees, ``m x C``.
        unordered: Which columns have D = 1[x != x'], ``C + 1``.
    """

    name: str
    columns: Indices
    lengths: Indices
    seen: Tensor
    unordered: NDArray[np.bool_]

    def part(self, which: Any) -> tuple[Indices, Indices]:
        """Places in ``columns``, and quantities W, of some paths, ``B x E``.

        A place that a path does not use is the last one.
        """
        places = positions(self.seen[which]).numpy()
        lengths = self.lengths[which]
        return places, lengths[np.arange(len(lengths))[:, None], places]


class Form:
    """The quantities of a kernel on some paths.

    Args:
        kernel: The kernel.
        places: What ``kernel.locate`` says of a row of each path.
        parameters: Those whose logarithms are u; by default those that the kernel has,
            with their present values.

    Attributes:
        size: Number of quantities.
        variance: The quantities v, ``m``.
        factors: Of the covariance.
        known: Categorical columns of K_p with the values that are told apart.
        undeclared: Number of undeclared values on each path, ``m``; None if zero.
        offsets: The variances of offsets; an undeclared value has their mean.
        num_weights: V.
        deviations: The quantities s, ``V + 1``.
        still: Which weights without a wave a path has, ``m x K``: they come first.
        smooth: Which smooth terms it has, ``m x T``.
        smooth_columns: Of these, and one past the last of the inputs, ``T + 1``.
        terms: The quantities 1 / l of smooth terms, ``T + 1``.
        frequencies: t of the waves of a term, ``F``: cosines, then sines.

    Raises:
        UnknownFormError: For another kernel.
    """

    def __init__(
        self,
        kernel: Kernel,
        places: Any,
        parameters: RawParameters | None = None,
    ) -> None:
        self.kernel = kernel
        self.places = places
        self._parameters = parameters
        self._places: dict[int, Indices] = {}
        self._sources: list[tuple[Module, str, Indices]] = []
        self._width = 0 if parameters is None else len(parameters.values)
        self.size = 0
        self._entries: list[tuple[Any, Any, float]] = []
        self._constants: list[Array] = []
        count = len(places.key)
        self.variance = self.add(count)
        self.factors: list[Factor] = []
        # those that have the correlation of a tree kernel
        self._correlated: list[Factor] = []
        self.listed_codes: dict[int, Array] = {}
        self.undeclared: Array | None = None
        self.offsets = np.zeros(0, dtype=np.int64)
        self.frequencies = np.zeros(0)
        self.num_weights = 0
        self.still = self.smooth = torch.zeros(count, 0, dtype=torch.bool)
        self.smooth_columns = np.array([kernel.tree.dim])
        plain = isinstance(kernel, LeafKernel) and not kernel.redefined & COVARIANCE
        if plain and isinstance(kernel, TreeStructuredKernel):
            self._read_tree(kernel)
            self._read_weights(kernel)
            self.read_correlation()
        elif plain and isinstance(kernel, ConditionalKernel):
            self.deviations, self.terms = self.add(2)[:, None]
            columns = np.arange(kernel.tree.dim)
            self._read_base(kernel.base_kernel, columns, places.active)
        else:
            raise UnknownFormError

    # -- the map q = exp(A u + c) ---------------------------------------------------

    def add(
        self,
        count: int,
        constant: Any = 0.0,
    ) -> Indices:
        """Places of ``count`` new quantities."""
        self._constants.append(np.full(count, constant, dtype=np.float64))
        self.size += count
        return np.arange(self.size - count, self.size)

    def depend(
        self,
        rows: Any,
        columns: Any,
        factor: float,
    ) -> None:
        """Add ``factor`` times logarithms; ``rows`` and ``columns`` broadcast."""
        self._entries.append((rows, columns, factor))

    def _read(
        self,
        module: Module,
        name: str,
    ) -> Indices:
        """Places in u of the logarithms of a module's parameter, given its raw one."""
        raw = getattr(module, name)
        places = self._places.get(id(raw))
        if places is None:
            if self._parameters is not None:
                places = self._parameters.logarithm(raw)
            else:
                places = np.arange(self._width, self._width + raw.numel())
                self._width += raw.numel()
            self._places[id(raw)] = places
            self._sources.append((module, name, places))
        return places

    def matrices(self, width: int) -> tuple[Any, Array]:
        """A and c.

        Args:
            width: Length of u.
        """
        constants = np.concatenate(self._constants)
        if self.size * width <= _MAX_DENSE:
            A = np.zeros((self.size, width))
            for rows, columns, factor in self._entries:  # no pair is given twice
                A[rows, columns] = factor
            return A, constants
        broadcast = (np.broadcast_arrays(*entry) for entry in self._entries)
        rows, columns, factors = map(np.concatenate, zip(*broadcast, strict=True))
        pairs = (rows, columns)
        return sparse.csr_array((factors, pairs), (self.size, width)), constants

    def present(self) -> Array:
        """All quantities, at the present values of the kernel's parameters."""
        u = np.zeros(self._width)
        for module, name, places in self._sources:
            raw = getattr(module, name)
            constraint = module.constraint_for_parameter_name(name)
            value = raw if constraint is None else constraint.transform(raw)
            u[places] = value.detach().double().log().flatten().numpy()
        A, c = self.matrices(len(u))
        return np.exp(A @ u + c)

    # -- paths ----------------------------------------------------------------------

    def weights(self, which: Any) -> tuple[Indices, Indices, Indices]:
        """Weights of some paths.

        Returns:
            Those without a wave, ``B x K'``, and the smooth terms, ``B x T'``, each
            padded with their count; and all weights, ``B x D``, V where unused, waves
            last.
        """
        still = positions(self.still[which]).numpy()
        smooth = positions(self.smooth[which]).numpy()
        count = self.still.shape[-1]
        width = 2 * len(self.frequencies)
        waves = count + width * smooth[:, :, None] + np.arange(width)
        waves[smooth == self.smooth.shape[-1]] = self.num_weights
        weights = np.where(still == count, self.num_weights, still)
        waves = waves.reshape(len(weights), -1)
        return still, smooth, np.concatenate([weights, waves], axis=-1)

    def read_correlation(self) -> None:
        """Use the correlation that a tree kernel has now."""
        kernel = self.kernel
        if not isinstance(kernel, TreeStructuredKernel):
            return
        name = f"{kernel.correlation.name}_frequencies"
        self.frequencies = getattr(kernel.weights, name).double().numpy()
        for factor in self._correlated:
            factor.name = "rbf" if kernel.correlation.name == "rbf" else "matern52"

    # -- the tree kernel ----------------------------------------------------------

    def _read_tree(self, kernel: TreeStructuredKernel) -> None:
        places = self.places
        hyper = kernel.leaf_hyperparameters
        width = hyper.num_columns
        for c in kernel.categorical:
            self.listed_codes[c] = getattr(hyper, f"known_{c}").double().numpy()
        columns = np.append(kernel.columns, kernel.tree.dim).astype(np.int64)
        seen = places.seen[:, :width]
        lengths = self._tree_lengths(kernel)
        if kernel.leaf_kernels is None:
            own_columns = np.append(columns[:width], columns[-1])
            is_listed = map(self.listed_codes.__contains__, own_columns.tolist())
            unordered = np.array([*is_listed])
            factor = Factor("", own_columns, lengths, seen, unordered)
            self._correlated.append(factor)
            self.factors.append(factor)
        elif kernel.categorical or places.path is not None:
            raise UnknownFormError
        else:
            for base in kernel.leaf_kernels.values():
                self._read_base(base, columns[:width], seen)
        if kernel.context_columns:
            of_context = self.add(len(columns) - width)
            raw = self._read(hyper.context_lengthscale, "raw_value")
            self.depend(of_context[:-1], raw, -2.0)
            lengths = np.broadcast_to(of_context, (len(seen), len(of_context)))
            seen = places.seen[:, width:]
            plain = np.zeros(len(of_context), dtype=bool)
            context = Factor("", columns[width:], lengths, seen, plain)
            self._correlated.append(context)
            self.factors.append(context)
        undeclared = places.codes >= kernel.weights.num_outcomes
        if bool(undeclared.any()) and kernel.weights.num_offsets:
            self.undeclared = undeclared.sum(-1).double().numpy()

    def _tree_lengths(self, kernel: TreeStructuredKernel) -> Indices:
        """W of each path and column, and one for unused places."""
        read = self._read
        places = self.places
        hyper = kernel.leaf_hyperparameters
        count = len(self.variance)
        width = hyper.num_columns
        if hyper.sharing == "independent":
            check_declared(places.path, len(hyper.pair))
            path = places.path.numpy()
            outputscale = read(hyper.outputscale, "raw_value")
            self.depend(self.variance, outputscale[path], 1.0)
            table = np.pad(hyper.pair.numpy()[path], ((0, 0), (0, 1)))
            if not hasattr(hyper, "lengthscale"):
                return self.add(1)[0] + np.zeros_like(table)
            length = read(hyper.lengthscale, "raw_value")
            lengths = self.add(len(length) + 1)
            self.depend(lengths[:-1], length, -2.0)
            table[:, -1] = len(length)
            return lengths[table]
        self.depend(
            self.variance,
            read(hyper.common_outputscale, "raw_value"),
            1.0,
        )
        if hasattr(hyper, "relative_outputscale"):
            path, edge = places.nodes[:, 1:].numpy().nonzero()
            relative = read(hyper.relative_outputscale, "raw_value")
            self.depend(self.variance[path], relative[edge], 1.0)
        dimension = hyper.dimension_scale.double().numpy()
        lengths = self.add(width + 1, np.append(-2.0 * np.log(dimension), 0.0))
        for name in ("common_lengthscale", "relative_lengthscale"):
            if hasattr(hyper, name):
                self.depend(
                    lengths[:-1],
                    read(getattr(hyper, name), "raw_value"),
                    -2.0,
                )
        return lengths[None].repeat(count, 0)

    def _read_weights(self, kernel: TreeStructuredKernel) -> None:
        read = self._read
        weights = kernel.weights
        places = self.places
        self.num_weights = weights.num_weights
        self.deviations = self.add(self.num_weights + 1)
        length = np.zeros(0, dtype=np.int64)
        raw: list[Indices] = []
        for kind in weights.kinds:
            raw.append(read(getattr(weights, f"{kind}_variance"), "raw_value"))
            if kind == "offset":
                self.offsets = self.add(len(raw[-1]))
                self.depend(self.offsets, raw[-1], 1.0)
            if kind == "smooth":
                length = read(weights.smooth_lengthscale, "raw_value")
        if raw:
            of_weights = np.concatenate(raw)[weights.prior_index.numpy()]
            self.depend(self.deviations[:-1], of_weights, 0.5)
        self.terms = self.add(len(length) + 1)
        self.depend(self.terms[:-1], length, -1.0)
        active = kernel.active_weights(places)
        self.smooth = places.active[:, weights.smooth_index]
        self.smooth_columns = np.append(weights.smooth_columns, kernel.tree.dim)
        self.smooth_columns = self.smooth_columns.astype(np.int64)
        waves = 2 * weights.num_frequencies * self.smooth.shape[-1]
        self.still = active[:, : self.num_weights - waves]

    # -- kernels of GPyTorch -------------------------------------------------------

    def _read_base(
        self,
        base: Kernel,
        columns: Indices,
        active: Tensor,
    ) -> None:
        """A kernel of GPyTorch, whose inactive columns are constant on a path.

        Args:
            base: The kernel.
            columns: Its inputs, ``C``.
            active: Which of these a path has, ``m x C``.
        """
        read = self._read
        inputs = np.arange(len(columns))
        if base.active_dims is not None:
            inputs = base.active_dims.numpy()
        if computes_as(base, ScaleKernel):
            self.depend(
                self.variance,
                read(base, "raw_outputscale"),
                1.0,
            )
            base = base.base_kernel
        bases = list(base.kernels) if computes_as(base, ProductKernel) else [base]
        for one in bases:
            places = inputs
            if one is not base and one.active_dims is not None:
                places = inputs[one.active_dims.numpy()]
            name, exponent, unordered = correlation_of(one)
            if one.ard_num_dims not in (None, len(places)):
                raise UnknownFormError
            raw = read(one, "raw_lengthscale")
            # of columns without an order the kernel takes the mean
            constant = -math.log(len(places)) if unordered else 0.0
            lengths = self.add(len(places) + 1, constant)
            self.depend(lengths[:-1], raw, -exponent)
            self.factors.append(
                Factor(
                    name,
                    np.append(columns[places], self.kernel.tree.dim),
                    np.broadcast_to(lengths, (len(active), len(lengths))),
                    active[:, places],
                    np.full(len(lengths), unordered),
                )
            )


def correlation_of(kernel: Kernel) -> tuple[str, float, bool]:
    """Its name, the e of W = 1 / l^e, and whether D = 1[x != x']."""
    if computes_as(kernel, RBFKernel):
        return "rbf", 2.0, False
    if computes_as(kernel, MaternKernel):
        names = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}
        return names[kernel.nu], 2.0, False
    if computes_as(kernel, LaplaceKernel):
        return "laplace", 1.0, False
    if computes_as(kernel, CategoricalKernel):
        return "laplace", 1.0, True
    raise UnknownFormError
