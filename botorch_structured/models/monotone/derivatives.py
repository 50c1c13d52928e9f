r"""Covariances between a Gaussian process and its partial derivatives.

For k(x, v) = s^2 c(r^2) with r^2 = sum_j (x_j - v_j)^2 / l_j^2 and D_j = (x_j - v_j) /
l_j^2,

    cov(f(x), d_j f(v))      = s^2 a(r^2) D_j
    cov(d_i f(x), d_j f(v))  = s^2 (a(r^2) [i = j] / l_j^2 - b(r^2) D_i D_j)

with a = -2 c' and b = 4 c'' (derivatives of c are in ``linalg.correlations``).

For the squared exponential these are the displays of section 2 of
[Riihimaki2010monotonicity]_, with eta = s and rho = l.

GPyTorch's ``RBFKernelGrad`` and ``Matern52KernelGrad`` give the same numbers, as the
tests check. They always return the covariance of all values and derivatives, which at
five columns has 36 times the entries that one monotone column needs, and they have a
lengthscale of their own; here the hyperparameters are those of an existing kernel.

References:

.. [Riihimaki2010monotonicity]
    J. Riihimaki and A. Vehtari. Gaussian processes with monotonicity information.
    AISTATS 2010.
"""

from __future__ import annotations

__all__ = ["StationaryDerivatives"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from torch import Tensor

from botorch_structured.linalg.correlations import Correlation, stationary_form


@dataclass(frozen=True)
class StationaryDerivatives:
    """Derivative covariances of an RBF or Matern-5/2 kernel with its present values.

    Attributes:
        correlation: c, of the kernel.
        lengthscale: ``kernel_batch_shape x 1 x e``, of the columns it sees.
        variance: ``kernel_batch_shape``.
        active: The columns it sees; all if None.
    """

    correlation: Correlation
    lengthscale: Tensor
    variance: Tensor
    active: tuple[int, ...] | None

    @classmethod
    def of(cls, kernel: Kernel) -> StationaryDerivatives:
        """Take hyperparameters from a kernel, with their graph.

        Raises:
            ValueError: For another kernel than an ``RBFKernel`` or a ``MaternKernel``
                with ``nu=2.5``, in a ``ScaleKernel`` or not.
        """
        form = stationary_form(kernel)
        if form is None:
            inner = kernel.base_kernel if type(kernel) is ScaleKernel else kernel
            name = type(inner).__name__
            if type(inner) is MaternKernel:
                name += f" with nu={inner.nu}"
            raise ValueError(
                "covar_module: expected an RBFKernel or a MaternKernel with nu=2.5, in "
                f"a ScaleKernel or not, whose derivatives are known, got {name}."
            )
        active = kernel.active_dims
        return cls(*form, None if active is None else tuple(active.tolist()))

    def value(self, x: Tensor, y: Tensor) -> Tensor:
        """cov(f(x), f(y)), ``batch_shape x n x m``."""
        squared = self._scaled(x, y).square().sum(-3)
        return self._times_variance(self.correlation.value(squared))

    def cross(self, x: Tensor, points: Tensor, columns: Sequence[int]) -> Tensor:
        """cov(f(x), d_j f(v)) for every column j and point v, columns slowest.

        Args:
            x: ``batch_shape x n x d``.
            points: ``batch_shape x m x d``.
            columns: The ``k`` columns with respect to which f is differentiated.

        Returns:
            ``batch_shape x n x (k m)``.
        """
        scaled, length, a, _ = self._slopes(x, points)
        places = [self.place(j) for j in columns]
        parts = [a * scaled[..., p, :, :] / length[..., p, :, :] for p in places]
        return self._times_variance(torch.cat(parts, dim=-1))

    def gram(
        self,
        points: Tensor,
        columns: Sequence[int],
        others: Tensor | None = None,
        other_columns: Sequence[int] | None = None,
    ) -> Tensor:
        """cov(d_i f(u), d_j f(v)) for all columns and points, columns slowest.

        Args:
            points: u, ``batch_shape x m x d``.
            columns: i, ``k`` of them.
            others: v, ``batch_shape x n x d``; default: the same as ``points``.
            other_columns: j, ``h`` of them; default: the same as ``columns``.

        Returns:
            ``batch_shape x (k m) x (h n)``.
        """
        others = points if others is None else others
        other_columns = columns if other_columns is None else other_columns
        scaled, length, a, b = self._slopes(points, others)
        rows = []
        for i in map(self.place, columns):
            row = []
            for j in map(self.place, other_columns):
                both = length[..., i, :, :] * length[..., j, :, :]
                block = -b * scaled[..., i, :, :] * scaled[..., j, :, :]
                row.append(((block + a) if i == j else block) / both)
            rows.append(torch.cat(row, dim=-1))
        return self._times_variance(torch.cat(rows, dim=-2))

    def place(self, column: int) -> int:
        """The index of a column of the inputs among those that the kernel sees."""
        if self.active is None:
            return column
        if column not in self.active:
            raise ValueError(
                f"covar_module: expected a kernel that sees column {column}, got one "
                f"of columns {list(self.active)}."
            )
        return self.active.index(column)

    def _scaled(self, x: Tensor, y: Tensor) -> Tensor:
        """(x_j - y_j) / l_j, ``batch_shape x e x n x m``: sums over e are faster."""
        if self.active is not None:
            x, y = x[..., self.active], y[..., self.active]
        apart = x.mT.unsqueeze(-1) - y.mT.unsqueeze(-2)
        return apart / self.lengthscale.mT.unsqueeze(-1)

    def _slopes(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(x_j - y_j) / l_j, a lengthscale for each column, a(r^2) and b(r^2)."""
        scaled = self._scaled(x, y)
        slope, curvature = self.correlation.slope_and_curvature(scaled.square().sum(-3))
        length = self.lengthscale.mT.unsqueeze(-1).to(scaled)
        length = length.expand(*length.shape[:-3], scaled.shape[-3], 1, 1)
        return scaled, length, 2.0 * slope, 4.0 * curvature

    def _times_variance(self, correlation: Tensor) -> Tensor:
        return self.variance[..., None, None] * correlation
