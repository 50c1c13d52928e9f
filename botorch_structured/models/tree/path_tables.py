r"""The covariance of a leaf kernel, path by path, as numbers in tables.

On one path the covariance of a ``TreeStructuredKernel`` (or of a ``ConditionalKernel``
around a stationary kernel, perhaps times a ``CategoricalKernel``) is a function of a
few columns,

    K_p(x, x') = v k(|S (x - x')|^2) exp(-|T (x - x')|^2) + c,
    z_i(x) = a_i + b_i x_j + u_i sin(w_i x_j + f_i),    j = j(i).

A categorical column enters as one more column for each of its values, behind those of
the inputs.
"""

from __future__ import annotations

__all__ = ["codes_of", "correlation_of", "path_tables"]

import math
from typing import Any, NamedTuple

import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import Kernel, ProductKernel, ScaleKernel
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.linalg.block_low_rank import positions
from botorch_structured.linalg.correlations import (
    RBF,
    Correlation,
    StationaryForm,
    stationary_form,
)
from botorch_structured.models.fast_inference import has_methods_of
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.leaf_inference import COVARIANCE, LeafKernel
from botorch_structured.models.tree.tree_structured_kernel import TreeStructuredKernel

Array = NDArray[Any]

_KINDS = TreeStructuredKernel, ConditionalKernel


class _Base(NamedTuple):
    """The base of a ``ConditionalKernel``.

    Attributes:
        stationary: The first factor; None if there is none.
        numeric: Its columns.
        lengthscale: Of the categorical columns, ``1 x J`` or ``1 x 1``; or None.
        categorical: These columns.
        variance: v, a tensor without dimensions.
    """

    stationary: StationaryForm | None
    numeric: Tensor
    lengthscale: Tensor | None
    categorical: Tensor
    variance: Tensor


def _base_of(kernel: ConditionalKernel) -> _Base | None:
    """A stationary kernel, a ``CategoricalKernel`` or their product, scaled or not."""

    def selected(part: Kernel, columns: Tensor) -> Tensor:
        return columns if part.active_dims is None else columns[part.active_dims]

    base = kernel.base_kernel
    columns = selected(base, torch.arange(kernel.tree.dim))
    plain = stationary_form(base)
    if plain is not None:
        return _Base(plain, columns, None, columns[:0], plain.variance)
    variance = None
    if isinstance(base, ScaleKernel):
        base, variance = base.base_kernel, base.outputscale
    parts = list(base.kernels) if isinstance(base, ProductKernel) else [base]
    product = base
    stationary, lengthscale = None, None
    numeric, categorical = columns[:0], columns[:0]
    for part in parts:
        mine = columns if part is product else selected(part, columns)
        if type(part) is CategoricalKernel and lengthscale is None:
            lengthscale, categorical = part.lengthscale, mine
            continue
        form = None if isinstance(part, ScaleKernel) else stationary_form(part)
        if form is None or stationary is not None:
            return None
        stationary, numeric = form, mine
    if lengthscale is None:
        return None
    if variance is None:
        variance = torch.ones_like(lengthscale[0, 0])
    return _Base(stationary, numeric, lengthscale, categorical, variance)


def correlation_of(kernel: LeafKernel) -> Correlation | None:
    """K of a kernel that has tables; None for others."""
    # a subclass may define another covariance
    known = [kind for kind in _KINDS if has_methods_of(kind, kernel, *COVARIANCE)]
    if kernel.batch_shape or not known:
        return None
    if isinstance(kernel, TreeStructuredKernel):
        return None if kernel.is_product else kernel.correlation
    base = _base_of(kernel) if isinstance(kernel, ConditionalKernel) else None
    if base is None:
        return None
    # of no columns it is 1
    return RBF if base.stationary is None else base.stationary.correlation


def codes_of(kernel: LeafKernel, X: Tensor) -> dict[int, Tensor]:
    """Categorical columns and their known values, those in the training inputs."""
    if isinstance(kernel, TreeStructuredKernel):
        weights, leaf = kernel.weights, kernel.leaf_hyperparameters
        codes = {c: getattr(weights, f"known_{c}") for c in weights.onehot_columns}
        return codes | {c: getattr(leaf, f"known_{c}") for c in kernel.categorical}
    assert isinstance(kernel, ConditionalKernel)
    base = _base_of(kernel)
    assert base is not None
    return {c: X[:, c].unique() for c in base.categorical.tolist()}


@torch.no_grad()
def path_tables(
    kernel: LeafKernel,
    X: Tensor,
    codes: dict[int, Tensor],
    weights: Tensor | None = None,
    places: Any = None,
) -> dict[str, Array]:
    """The covariance on the paths of some rows, with the present hyperparameters.

    Args:
        kernel: A kernel of this form, see ``correlation_of``.
        X: Transformed inputs, ``m x d``.
        codes: From ``codes_of``.
        weights: The weights of each path in the order wanted, ``m x D``.
        places: What the kernel's ``locate`` says of the rows, if known.

    Returns:
        Arrays, ``m x 1 x E``; unused places have zero factors. "inputs" are the columns
        that K_p sees, "inverse" the diagonal of S, "labels" the columns of codes in the
        second factor, "rates" the diagonal of T, "variance" v, "constant" c. "weights"
        are those of the path (V where unused), "columns" their j, "level" a, "slope" b,
        "wave" u, "frequency" w, "phase" f.
    """
    places = kernel.locate(X) if places is None else places
    start, behind = kernel.tree.dim, {}
    for column, known in codes.items():
        behind[column] = range(start, start + len(known) + 1)
        start += len(known) + 1
    read = _read_tree if isinstance(kernel, TreeStructuredKernel) else _read_conditional
    tables = read(kernel, behind, places, weights)
    return {
        name: table.detach().expand(len(X), -1).numpy()[:, None]
        for name, table in tables.items()
    }


def _read_tree(
    kernel: Any, behind: dict[int, range], places: Any, used: Tensor | None
) -> dict[str, Tensor]:
    weights, leaf = kernel.weights, kernel.leaf_hyperparameters
    scale = weights.prior_scale()
    # columns of the codes, whose squared distance is 1 between different values
    encoded = [kernel.columns[j] for j in kernel.encoded_columns]
    factor = torch.ones(len(encoded) + 1).to(scale)
    codes = {c: iter(behind[c]) for c in behind}
    for i, c in enumerate(encoded):
        if c in codes:
            encoded[i], factor[i] = next(codes[c]), math.sqrt(0.5)
    inverse = leaf.inverse_lengthscale(places.path)
    inverse = pad(inverse.index_select(-1, leaf.encoded_index), (0, 1)) * factor
    seen = positions(places.seen.index_select(-1, leaf.encoded_index))
    if used is None:
        used = positions(weights.active_weights(places.active, places.nodes))
    variance = leaf.scale(places.path, places.nodes)
    return {
        "inputs": torch.tensor([*encoded, 0])[seen],
        "inverse": inverse.expand(len(seen), -1).gather(-1, seen),
        "labels": seen[:, :0],
        "rates": factor.new_zeros(1, 0),
        "variance": variance.unsqueeze(-1),
        "constant": weights.undeclared_variance(places.codes).to(scale).unsqueeze(-1),
        "weights": used,
        **{
            name: table[used]
            for name, table in _features(kernel, scale, behind).items()
        },
    }


def _features(
    kernel: TreeStructuredKernel, scale: Tensor, behind: dict[int, range]
) -> dict[str, Tensor]:
    """j, a, b, u, w and f of all weights and of none, ``V + 1``."""
    weights = kernel.weights
    waves = 2 * weights.num_frequencies
    constants = weights.num_inner + weights.num_offsets
    columns = [0] * constants + weights.linear_columns
    for column in weights.onehot_columns:
        columns += behind[column]
    still = len(columns)  # so many have no wave
    columns += [c for c in weights.smooth_columns for _ in range(waves)]
    level, slope, wave, speed, phase = scale.new_zeros(5, len(scale) + 1).unbind(0)
    level[:constants], slope[constants:still], wave[still:-1] = scale.split(
        [constants, still - constants, len(scale) - still]
    )
    if weights.smooth_columns:
        frequency = getattr(weights, f"{kernel.correlation.name}_frequencies").to(scale)
        length = weights.smooth_lengthscale.value.mT  # terms x 1
        speed[still:-1] = (frequency / length).repeat(1, 2).flatten()
    # the cosines of a column come before its sines
    phase[still:-1].view(-1, 2, weights.num_frequencies)[:, 0] = 0.5 * math.pi
    return {
        "columns": torch.tensor([*columns, 0]),
        "level": level,
        "slope": slope,
        "wave": wave,
        "frequency": speed,
        "phase": phase,
    }


def _read_conditional(
    kernel: Any, behind: dict[int, range], places: Any, used: Tensor | None
) -> dict[str, Tensor]:
    base = _base_of(kernel)
    assert base is not None
    variance = base.variance.detach()
    inverse = variance.new_ones(1)
    if base.stationary is not None:
        inverse = base.stationary.lengthscale.reciprocal().flatten()
    owner, columns, rate = base.categorical, [], inverse[:1]
    if base.lengthscale is not None:
        # two values differ in two places; the kernel takes the mean over columns
        count = len(owner)
        rate = (0.5 / count / base.lengthscale).sqrt().flatten().expand(count)
        size = torch.tensor([len(behind[c]) for c in owner.tolist()])
        columns = [i for c in owner.tolist() for i in behind[c]]
        owner, rate = owner.repeat_interleave(size), rate.repeat_interleave(size)

    def seen(columns: Tensor, factors: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """Those whose owners are active, and their factors."""
        mine = positions(places.active[:, owner])
        factors = pad(factors.to(variance).expand(len(columns)), (0, 1))
        return pad(columns, (0, 1))[mine], factors[mine]

    inputs, inverse = seen(base.numeric, inverse, base.numeric)
    labels, rates = seen(torch.tensor(columns, dtype=torch.long), rate, owner)
    none = inputs[:, :0]
    factors = "level", "slope", "wave", "frequency", "phase"
    return {
        "inputs": inputs,
        "inverse": inverse,
        "labels": labels,
        "rates": rates,
        "variance": variance.view(1, 1),
        "constant": torch.zeros_like(variance).view(1, 1),
        "weights": none,
        "columns": none,
        **dict.fromkeys(factors, rates[:, :0]),
    }
