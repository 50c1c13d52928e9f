r"""The covariance of a leaf kernel, path by path, as numbers in tables.

On one path the covariance of a ``TreeStructuredKernel`` (or of a ``ConditionalKernel``
around a stationary kernel) is a function of a few columns,

    K_p(x, x') = v k(|S (x - x')|^2) + c,
    z_i(x) = a_i + b_i x_j + u_i sin(w_i x_j + f_i),    j = j(i).

A categorical column enters as one more column for each of its values.
"""

from __future__ import annotations

__all__ = ["PathTables", "codes_of", "has_tables", "path_tables"]

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.linalg.block_low_rank import positions
from botorch_structured.linalg.correlations import Correlation, stationary_form
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.leaf_inference import LeafKernel
from botorch_structured.models.tree.tree_structured_kernel import (
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
    variance: Tensor
    constant: Tensor
    weights: Tensor
    columns: Tensor
    level: Tensor
    slope: Tensor
    wave: Tensor
    frequency: Tensor
    phase: Tensor


def codes_of(kernel: LeafKernel) -> dict[int, Tensor]:
    """Categorical columns and their known values."""
    if not isinstance(kernel, TreeStructuredKernel):
        return {}
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
    kernel: LeafKernel, X: Tensor, weights: Tensor | None = None
) -> PathTables:
    """The covariance on the paths of some rows, with the present hyperparameters.

    Args:
        kernel: A kernel of this form, see ``has_tables``.
        X: Transformed inputs, ``m x d``.
        weights: The weights of each path in the order wanted, ``m x D``.
    """
    if isinstance(kernel, TreeStructuredKernel):
        return _tree_tables(kernel, X, weights)
    assert isinstance(kernel, ConditionalKernel)
    return _conditional_tables(kernel, X)


def has_tables(kernel: LeafKernel) -> bool:
    """Whether a kernel has the form of ``PathTables`` on every path."""
    if kernel.batch_shape:
        return False
    if type(kernel) is ConditionalKernel:
        return stationary_form(kernel.base_kernel) is not None
    return type(kernel) is TreeStructuredKernel and not kernel.is_product


def _tree_tables(
    kernel: TreeStructuredKernel, X: Tensor, used: Tensor | None
) -> PathTables:
    places = kernel.locate(X)
    extended = _extended(kernel, codes_of(kernel))
    scale = kernel.weights.prior_scale()
    # columns of the codes, whose squared distance is 1 between different values
    encoded = [kernel.columns[j] for j in kernel.encoded_columns]
    factor = torch.ones(len(encoded) + 1).to(scale)
    codes = {c: iter(extended[c]) for c in extended}
    for i, c in enumerate(encoded):
        if c in codes:
            encoded[i], factor[i] = next(codes[c]), math.sqrt(0.5)
    column = torch.tensor([*encoded, 0])
    inverse = kernel.leaf_hyperparameters.inverse_lengthscale(places.path)
    inverse = pad(inverse[..., kernel.encoded_columns], (0, 1)) * factor
    inputs = positions(places.seen[:, kernel.encoded_columns])
    variance = kernel.leaf_hyperparameters.scale(places.path, places.nodes)
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
    linear = len(fixed) - constants
    fixed += [c for c in weights.smooth_columns for _ in range(waves)]
    columns = [torch.tensor(fixed, dtype=torch.long).expand(m, -1)]
    for group in weights.aligned_columns:
        member = active[:, group].to(torch.uint8).argmax(-1)
        columns.append(torch.tensor(group)[member].unsqueeze(-1).expand(-1, waves))
    columns.append(torch.zeros(m, 1, dtype=torch.long))
    kinds = [
        kind for kind in ("smooth", "aligned") if getattr(weights, f"{kind}_columns")
    ]
    frequency = getattr(weights, f"{correlation.name}_frequencies").to(scale)
    parts = [scale.new_zeros(constants + linear)]
    for kind in kinds:
        lengthscale = getattr(weights, f"{kind}_lengthscale").value.mT  # groups x 1
        parts.append((frequency / lengthscale).repeat(1, 2).flatten())
    speed = torch.cat([*parts, scale.new_zeros(1)])
    kind_of = torch.full((len(speed),), 2)
    kind_of[:constants], kind_of[constants : constants + linear] = 0, 1
    scale = pad(scale, (0, 1))
    level, slope, wave = (torch.where(kind_of == k, scale, 0.0) for k in range(3))
    # the cosines of a column come before its sines
    phase = torch.zeros_like(scale)
    turn = phase[constants + linear : -1].view(-1, 2, weights.num_frequencies)
    turn[:, 0] = 0.5 * math.pi
    return torch.cat(columns, dim=-1), level, slope, wave, speed, phase


def _conditional_tables(kernel: ConditionalKernel, X: Tensor) -> PathTables:
    form = stationary_form(kernel.base_kernel)
    assert form is not None
    active = kernel.locate(X).active
    seen = kernel.base_kernel.active_dims
    column = torch.arange(kernel.tree.dim) if seen is None else seen
    inputs = positions(active[:, column])
    inverse = form.lengthscale.reciprocal().expand(1, len(column))
    inverse = pad(inverse, (0, 1)).expand(len(X), -1).gather(-1, inputs)
    none = inputs.new_zeros(len(X), 0)
    factors = inverse.new_zeros(len(X), 0)
    return PathTables(
        form.correlation,
        pad(column, (0, 1))[inputs],
        inverse,
        form.variance.expand(len(X)),
        torch.zeros_like(inverse[:, 0]),
        none,
        none,
        *(factors for _ in range(5)),
    )
