"""Stationary correlations as functions of a squared scaled distance.

With s = r^2 = sum_j (x_j - x'_j)^2 / l_j^2 and u = sqrt(5 s),

    Matern-5/2   k = (1 + u + u^2 / 3) exp(-u)    RBF   k = exp(-s / 2)
    -dk/ds         = 5/6 (1 + u) exp(-u)                = 1/2 exp(-s / 2)
    d^2k/ds^2      = 25/12 exp(-u)                      = 1/4 exp(-s / 2)

``slope`` is -dk/ds, ``curvature`` d^2k/ds^2. With the slope a gradient is a matrix
product: of sum_ij G_ij k(s_ij) with respect to the scaled inputs, with H = G * slope.

Fits, slice sampling and the growth of trees work on NumPy arrays, which is several
times faster for small matrices.
``ARRAY_VALUES`` and ``ARRAY_SLOPES`` have three more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit
from torch import Tensor

Array = NDArray[np.float64]

_SQRT5 = math.sqrt(5.0)
# below this squared distance a square root would have an unbounded derivative, while
# the correlation differs from 1 by less than rounding
_TINY = 1e-30


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """Squared Euclidean distances, never negative.

    Args:
        a: ``batch_shape x n x d``.
        b: ``batch_shape x m x d``.

    Returns:
        ``batch_shape x n x m``.
    """
    squares = a.square().sum(-1, keepdim=True)
    others = squares if a is b else b.square().sum(-1, keepdim=True)
    squared = torch.sub(squares + others.mT, a @ b.mT, alpha=2.0).clamp_min(0.0)
    if a is b:  # zero in spite of rounding
        same = torch.eye(a.shape[-2], dtype=torch.bool, device=a.device)
        squared = squared.masked_fill(same, 0.0)
    return squared


@dataclass(frozen=True)
class Correlation:
    """A stationary correlation function.

    Attributes:
        name: "matern" (5/2) or "rbf".
        value: s to k, differentiable.
        slope_and_curvature: s to -dk/ds and d^2k/ds^2, differentiable.
        array_value_and_slope: s to k and -dk/ds.
        spectral_quantile: Quantile function of the spectral density in one dimension,
            for a unit lengthscale (frequencies of Fourier features).
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope_and_curvature: Callable[[Tensor], tuple[Tensor, Tensor]]
    array_value_and_slope: Callable[[Array], tuple[Array, Array]]
    spectral_quantile: Callable[[float], float]


# -- on tensors -------------------------------------------------------------------


def _matern52(squared: Tensor) -> Tensor:
    u = squared.clamp_min(_TINY).sqrt() * -_SQRT5
    return torch.addcmul(1.0 - u, u, u, value=1.0 / 3.0) * u.exp()


def _matern52_curvature(squared: Tensor) -> tuple[Tensor, Tensor]:
    u = squared.clamp_min(_TINY).sqrt() * _SQRT5
    e = torch.exp(-u)
    return 5.0 / 6.0 * (1.0 + u) * e, 25.0 / 12.0 * e


def _rbf(squared: Tensor) -> Tensor:
    return torch.exp(-0.5 * squared)


def _rbf_curvature(squared: Tensor) -> tuple[Tensor, Tensor]:
    k = torch.exp(-0.5 * squared)
    return 0.5 * k, 0.25 * k


# -- on arrays --------------------------------------------------------------------


def _array_matern52(squared: Array, out: Array) -> Array:
    np.multiply(squared, 5.0, out=out)
    np.sqrt(out, out=out)
    polynomial = out * (1.0 / 3.0)
    polynomial += 1.0
    polynomial *= out
    polynomial += 1.0
    np.negative(out, out=out)
    np.exp(out, out=out)
    out *= polynomial
    return out


def _array_matern52_slope(squared: Array) -> tuple[Array, Array]:
    u = 5.0 * squared
    np.sqrt(u, out=u)
    e = -u
    np.exp(e, out=e)
    slope = 1.0 + u
    slope *= e
    u *= u
    u *= e
    u *= 1.0 / 3.0
    u += slope
    slope *= 5.0 / 6.0
    return u, slope


def _array_rbf(squared: Array, out: Array) -> Array:
    np.multiply(squared, -0.5, out=out)
    return np.exp(out, out=out)


def _array_rbf_slope(squared: Array) -> tuple[Array, Array]:
    k = np.exp(-0.5 * squared)
    return k, 0.5 * k


def _array_matern32_slope(squared: Array) -> tuple[Array, Array]:
    u = np.sqrt(3.0 * squared)
    e = np.exp(-u)
    return (1.0 + u) * e, 1.5 * e


def _array_matern12_slope(squared: Array) -> tuple[Array, Array]:
    u = np.sqrt(squared)
    k = np.exp(-u)
    # infinite at zero; finite here, as it is multiplied by distances that are zero
    return k, 0.5 * k / np.maximum(u, _TINY)


def _array_laplace_slope(distance: Array) -> tuple[Array, Array]:
    k = np.exp(-distance)
    return k, k.copy()


def _without_slope(of: Callable[[Array], tuple[Array, Array]]) -> Any:
    return lambda squared, out: of(squared)[0]


MATERN52 = Correlation(
    "matern",
    _matern52,
    _matern52_curvature,
    _array_matern52_slope,
    # the Matern-nu spectral density in 1-D is a Student t with 2 nu degrees of freedom
    partial(stdtrit, 5),
)
RBF = Correlation(
    "rbf",
    _rbf,
    _rbf_curvature,
    _array_rbf_slope,
    ndtri,
)

#: Those that a leaf can have.
CORRELATIONS: tuple[Correlation, ...] = (MATERN52, RBF)


class StationaryForm(NamedTuple):
    """The parts of a GPyTorch kernel, with their present values and graph.

    Attributes:
        correlation: k.
        lengthscale: ``batch_shape x 1 x e``.
        variance: ``batch_shape``.
    """

    correlation: Correlation
    lengthscale: Tensor
    variance: Tensor


def computes_as(module: Any, kind: Any) -> bool:
    """Whether a module is of a class, and no subclass has a ``forward`` of its own."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def stationary_form(kernel: Kernel) -> StationaryForm | None:
    """The form of an RBF or Matern-5/2 kernel, scaled or not; None for any other."""
    inner = kernel
    variance = None
    if computes_as(kernel, ScaleKernel):
        inner = kernel.base_kernel
        variance = kernel.outputscale
    matern = computes_as(inner, MaternKernel) and inner.nu == 2.5
    if not (matern or computes_as(inner, RBFKernel)):
        return None
    lengthscale = inner.lengthscale
    if variance is None:
        variance = lengthscale.new_ones(lengthscale.shape[:-2])
    return StationaryForm(
        MATERN52 if matern else RBF,
        lengthscale,
        variance,
    )


def column_lengthscales(kernel: Kernel, dim: int) -> Tensor:
    """Lengthscales by column, ``batch_shape x dim``; NaN where a kernel has none.

    Of several factors or terms the shortest counts.

    Args:
        kernel: A GPyTorch kernel, or what is made of some.
        dim: The number of columns of its inputs.
    """
    if hasattr(kernel, "base_kernel"):
        return column_lengthscales(kernel.base_kernel, dim)
    out = torch.full((*kernel.batch_shape, dim), torch.nan, device=kernel.device)
    out = out.to(kernel.dtype)
    dims = kernel.active_dims
    columns = list(range(dim)) if dims is None else dims.tolist()
    if kernel.has_lengthscale:
        out[..., columns] = kernel.lengthscale.squeeze(-2)
    for part in getattr(kernel, "kernels", []):
        inner = column_lengthscales(part, len(columns))
        out[..., columns] = torch.fmin(out[..., columns], inner)
    return out


def mean_lengthscale(table: Tensor) -> Tensor | None:
    """Geometric means of lengthscales by column, as GPyTorch's ``lengthscale``.

    All are finite: a column without one has the mean of the others, so that it changes
    no mean and, relative to that, counts 1.

    Args:
        table: ``batch_shape x m x d`` lengthscales; NaN where there is none.

    Returns:
        ``batch_shape x 1 x d``, or None if no column has one.
    """
    if table.isnan().all():
        return None
    logarithm = table.log().nanmean(-2, keepdim=True)
    mean = logarithm.nanmean(-1, keepdim=True)
    return torch.where(logarithm.isnan(), mean, logarithm).exp()


#: An array to k and -dk/ds. "laplace" is of sum_j |x_j - x'_j| / l_j.
ARRAY_SLOPES: dict[str, Callable[[Array], tuple[Array, Array]]] = {
    "matern12": _array_matern12_slope,
    "matern32": _array_matern32_slope,
    "matern52": _array_matern52_slope,
    "rbf": _array_rbf_slope,
    "laplace": _array_laplace_slope,
}

#: The same without slopes, k of an array, which may be written into a second one.
ARRAY_VALUES: dict[str, Callable[[Array, Array], Array]] = {
    **{name: _without_slope(function) for name, function in ARRAY_SLOPES.items()},
    **{"matern52": _array_matern52, "rbf": _array_rbf},
}
