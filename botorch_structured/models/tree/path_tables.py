r"""The covariance of a leaf kernel, path by path, as numbers in tables.

On one path the covariance of a ``TreeStructuredKernel`` (or of a ``ConditionalKernel``
around a stationary kernel, perhaps times a ``CategoricalKernel``) is a function of a
few columns,

    K_p(x, x') = v k(|S (x - x')|^2) exp(-|T (x - x')|^2) + c,
    z_i(x) = a_i + b_i x_j + u_i sin(w_i x_j + f_i),    j = j(i).

A categorical column enters as one more column for each of its values.
"""

from __future__ import annotations

__all__ = ["PathTables", "codes_of", "has_tables", "path_tables"]

import math
from typing import Any, NamedTuple

import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import Kernel, ProductKernel, ScaleKernel
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.linalg.block_low_rank import positions
from botorch_structured.linalg.correlations import (
    RBF,
    Correlation,
    StationaryForm,
    stationary_form,
)
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.leaf_inference import LeafKernel
from botorch_structured.models.tree.tree_structured_kernel import (
    Places,
    TreeStructuredKernel,
    WeightFeatures,
)


class PathTables(NamedTuple):
    """The covariance on ``m`` paths; unused places have zero factors.

    Columns are those of ``extend``.

    Attributes:
        correlation: k.
        inputs: Columns that K_p sees, ``m x E``.
        inverse: Diagonal of S, ``m x E``.
        labels: Columns of codes in the second factor, ``m x F``.
        rates: Diagonal of T, ``m x F``.
        variance: v, ``m``.
        constant: c, ``m``.
        weights: The weights of the path, ``m x D``; V where unused.
        columns: j, ``m x D``.
        level: a, ``m x D``.
        slope: b, ``m x D``.
        wave: u, ``m x D``.
        frequency: w, ``m x D``.
        phase: f, ``m x D``.
    """

    correlation: Correlation
    inputs: Tensor
    inverse: Tensor
    labels: Tensor
    rates: Tensor
    variance: Tensor
    constant: Tensor
    weights: Tensor
    columns: Tensor
    level: Tensor
    slope: Tensor
    wave: Tensor
    frequency: Tensor
    phase: Tensor


class _ConditionalForm(NamedTuple):
    """What the base of a ``ConditionalKernel`` consists of.

    Attributes:
        stationary: The first factor, with the variance of both; None if there is none.
        numeric: Its columns.
        lengthscale: Of the categorical columns, ``1 x J`` or ``1 x 1``.
        categorical: These columns.
        variance: v, a tensor without dimensions.
    """

    stationary: StationaryForm | None
    numeric: Tensor
    lengthscale: Tensor | None
    categorical: Tensor
    variance: Tensor


def _conditional_form(kernel: ConditionalKernel) -> _ConditionalForm | None:
    """A stationary kernel, a ``CategoricalKernel`` or their product, scaled or not."""

    def selected(part: Kernel, columns: Tensor) -> Tensor:
        return columns if part.active_dims is None else columns[part.active_dims]

    base = kernel.base_kernel
    columns = selected(base, torch.arange(kernel.tree.dim))
    plain = stationary_form(base)
    if plain is not None:
        return _ConditionalForm(plain, columns, None, columns[:0], plain.variance)
    variance = None
    if type(base) is ScaleKernel:
        base, variance = base.base_kernel, base.outputscale
    parts = list(base.kernels) if type(base) is ProductKernel else [base]
    product = base
    stationary, lengthscale = None, None
    numeric, categorical = columns[:0], columns[:0]
    for part in parts:
        mine = columns if part is product else selected(part, columns)
        if type(part) is CategoricalKernel and lengthscale is None:
            lengthscale, categorical = part.lengthscale, mine
            continue
        form = stationary_form(part) if type(part) is not ScaleKernel else None
        if form is None or stationary is not None:
            return None
        stationary, numeric = form, mine
    if lengthscale is None:
        return None
    if variance is None:
        variance = torch.ones_like(lengthscale[0, 0])
    return _ConditionalForm(stationary, numeric, lengthscale, categorical, variance)


def codes_of(kernel: LeafKernel, X: Tensor) -> dict[int, Tensor]:
    """Categorical columns and their known values, those in the training inputs."""
    if not isinstance(kernel, TreeStructuredKernel):
        assert isinstance(kernel, ConditionalKernel)
        form = _conditional_form(kernel)
        assert form is not None
        return {c: X[:, c].unique() for c in form.categorical.tolist()}
    weights, leaf = kernel.weights, kernel.leaf_hyperparameters
    codes = {c: getattr(weights, f"known_{c}") for c in weights.onehot_columns}
    return codes | {c: getattr(leaf, f"known_{c}") for c in kernel._categorical}


def _extended(kernel: LeafKernel, codes: dict[int, Tensor]) -> dict[int, range]:
    """Categorical columns and the columns of their codes."""
    start, out = kernel.tree.dim, {}
    for column, known in codes.items():
        out[column] = range(start, start + len(known) + 1)
        start += len(known) + 1
    return out


def path_tables(
    kernel: LeafKernel,
    X: Tensor,
    codes: dict[int, Tensor],
    weights: Tensor | None = None,
    places: Any = None,
) -> PathTables:
    """The covariance on the paths of some rows, with the present hyperparameters.

    Args:
        kernel: A kernel of this form, see ``has_tables``.
        X: Transformed inputs, ``m x d``.
        codes: From ``codes_of``.
        weights: The weights of each path in the order wanted, ``m x D``.
        places: What the kernel's ``locate`` says of the rows, if known.
    """
    places = kernel.locate(X) if places is None else places
    if isinstance(kernel, TreeStructuredKernel):
        return _tree_tables(kernel, X, codes, weights, places)
    assert isinstance(kernel, ConditionalKernel)
    return _conditional_tables(kernel, X, codes, places.active)


def has_tables(kernel: LeafKernel) -> bool:
    """Whether a kernel has the form of ``PathTables`` on every path."""
    if kernel.batch_shape:
        return False
    if type(kernel) is ConditionalKernel:
        return _conditional_form(kernel) is not None
    return type(kernel) is TreeStructuredKernel and not kernel.is_product


def _tree_tables(
    kernel: TreeStructuredKernel,
    X: Tensor,
    values: dict[int, Tensor],
    used: Tensor | None,
    places: Places,
) -> PathTables:
    extended = _extended(kernel, values)
    scale = kernel.weights.prior_scale()
    # columns of the codes, whose squared distance is 1 between different values
    encoded = [kernel.columns[j] for j in kernel.encoded_columns]
    factor = torch.ones(len(encoded) + 1).to(scale)
    codes = {c: iter(extended[c]) for c in extended}
    for i, c in enumerate(encoded):
        if c in codes:
            encoded[i], factor[i] = next(codes[c]), math.sqrt(0.5)
    column = torch.tensor([*encoded, 0])
    leaf = kernel.leaf_hyperparameters
    inverse = leaf.inverse_lengthscale(places.path)
    inverse = pad(inverse.index_select(-1, leaf.encoded_index), (0, 1)) * factor
    inputs = positions(places.seen.index_select(-1, leaf.encoded_index))
    variance = leaf.scale(places.path, places.nodes)
    constant = kernel.weights.undeclared_variance(places.codes).to(scale)
    if used is None:
        used = positions(kernel.weights.active_weights(places.active, places.nodes))
    columns, *factors = _feature_tables(
        kernel.weights, places.active, kernel.correlation, scale, extended
    )
    return PathTables(
        kernel.correlation,
        column[inputs],
        inverse.expand(len(X), -1).gather(-1, inputs),
        inputs[:, :0],
        factor.new_zeros(len(X), 0),
        variance.expand(len(X)),
        constant,
        used,
        columns.gather(-1, used),
        *(table[used] for table in factors),
    )


def _feature_tables(
    weights: WeightFeatures,
    active: Tensor,
    correlation: Correlation,
    scale: Tensor,
    extended: dict[int, range],
) -> tuple[Tensor, ...]:
    """Columns of weights on paths, ``m x (V + 1)``; a, b, u, w and f, ``V + 1``."""
    m, waves = len(active), 2 * weights.num_frequencies
    constants = weights.num_inner + weights.num_offsets
    fixed = [0] * constants + weights.linear_columns
    for column in weights.onehot_columns:
        fixed += extended[column]
    still = len(fixed)  # so many have no wave
    fixed += [c for c in weights.smooth_columns for _ in range(waves)]
    columns = torch.tensor([*fixed, 0], dtype=torch.long).expand(m, -1)
    frequency = getattr(weights, f"{correlation.name}_frequencies").to(scale)
    speed = scale.new_zeros(still + 1)
    if weights.smooth_columns:
        lengthscale = weights.smooth_lengthscale.value.mT  # terms x 1
        waves_of = (frequency / lengthscale).repeat(1, 2).flatten()
        speed = torch.cat([speed[:-1], waves_of, speed[-1:]])
    level, slope, wave, phase = scale.new_zeros(4, len(speed)).unbind(0)
    level[:constants], slope[constants:still], wave[still:-1] = scale.split(
        [constants, still - constants, len(scale) - still]
    )
    # the cosines of a column come before its sines
    turn = phase[still:-1].view(-1, 2, weights.num_frequencies)
    turn[:, 0] = 0.5 * math.pi
    return columns, level, slope, wave, speed, phase


def _conditional_tables(
    kernel: ConditionalKernel,
    X: Tensor,
    codes: dict[int, Tensor],
    active: Tensor,
) -> PathTables:
    form = _conditional_form(kernel)
    assert form is not None
    variance = form.variance

    def of_columns(
        columns: Tensor, factors: Tensor, owner: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Those whose owners are active, and their factors."""
        used = positions(active[:, owner])
        factors = pad(factors.to(variance).expand(len(columns)), (0, 1))
        return pad(columns, (0, 1))[used], factors[used]

    stationary = form.stationary
    correlation, inverse = RBF, variance.new_ones(1)  # of no columns it is 1
    if stationary is not None:
        correlation = stationary.correlation
        inverse = stationary.lengthscale.reciprocal().flatten()
    owner, places, rate = form.categorical, [], inverse[:1]
    if form.lengthscale is not None:
        # two values differ in two places; the kernel takes the mean over columns
        count, extended = len(owner), _extended(kernel, codes)
        rate = (0.5 / count / form.lengthscale).sqrt().flatten().expand(count)
        size = torch.tensor([len(extended[c]) for c in owner.tolist()])
        places = [i for c in owner.tolist() for i in extended[c]]
        owner, rate = owner.repeat_interleave(size), rate.repeat_interleave(size)
    columns = torch.tensor(places, dtype=torch.long)
    inputs, scales = of_columns(form.numeric, inverse, form.numeric)
    labels, rates = of_columns(columns, rate, owner)
    none, factors = inputs[:, :0], scales[:, :0]
    return PathTables(
        correlation,
        inputs,
        scales,
        labels,
        rates,
        variance.expand(len(X)),
        torch.zeros_like(variance).expand(len(X)),
        none,
        none,
        *(factors for _ in range(5)),
    )
