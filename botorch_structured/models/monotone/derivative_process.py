r"""A Gaussian process given observations of values and of derivatives.

For k(x, v) = s^2 c(r^2) with r^2 = sum_j (x_j - v_j)^2 / l_j^2 and D_j = (x_j - v_j) /
l_j^2 the covariances of values and derivatives are

    cov(f(x), d_j f(v))      = s^2 a(r^2) D_j
    cov(d_i f(x), d_j f(v))  = s^2 (a(r^2) [i = j] / l_j^2 - b(r^2) D_i D_j)

with a = -2 c' and b = 4 c'' (derivatives of c are in ``linalg.correlations``). For the
squared exponential these are the displays of section 2 of
[Riihimaki2010monotonicity]_, with eta = s and rho = l. GPyTorch's ``RBFKernelGrad`` and
``Matern52KernelGrad`` give the same numbers, but always all of them, which at five
columns has 36 times the entries that one monotone column needs.

A Gaussian *site* on a derivative g (``expectation_propagation``) is an observation: h g
was seen to be t, with noise of variance one, where h^2 is its precision and h t its
shift. So values at the data and derivatives at the sites have the joint prior (6) of
[Riihimaki2010monotonicity]_, and one factorisation of

    B = D J D + N    for    D = diag(1, h),    N = diag(noise, 1)

and their prior covariance J gives all predictions at the end of its section 3. A site
that says nothing has h = 0.

References:

.. [Riihimaki2010monotonicity]
    J. Riihimaki and A. Vehtari. Gaussian processes with monotonicity information.
    AISTATS 2010.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.means import Mean
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.linalg.correlations import Correlation, stationary_form

#: Columns with respect to which a process is differentiated; None is its value.
Columns = Sequence[Any]
VALUE: Columns = (None,)


@dataclass(frozen=True)
class DerivativeCovariance:
    """Covariances of a process with an RBF or Matern-5/2 kernel and its derivatives.

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
    def of(cls, kernel: Kernel) -> DerivativeCovariance:
        """Take hyperparameters from a kernel, with their graph.

        Raises:
            ValueError: For another kernel than an ``RBFKernel`` or a ``MaternKernel``
                with ``nu=2.5``, in a ``ScaleKernel`` or not.
        """
        form = stationary_form(kernel)
        if form is None:
            inner = kernel.base_kernel if isinstance(kernel, ScaleKernel) else kernel
            name = type(inner).__name__
            if isinstance(inner, MaternKernel):
                name += f" with nu={inner.nu}"
            raise ValueError(
                "covar_module: expected an RBFKernel or a MaternKernel with nu=2.5, in "
                f"a ScaleKernel or not, whose derivatives are known, got {name}."
            )
        active = kernel.active_dims
        return cls(*form, None if active is None else tuple(active.tolist()))

    def __call__(
        self,
        x: Tensor,
        columns: Columns,
        y: Tensor,
        others: Columns,
    ) -> Tensor:
        """cov(d_i f(x), d_j f(y)) for all columns and points, columns slowest.

        Args:
            x: ``batch_shape x n x d``.
            columns: i, ``k`` of them.
            y: ``batch_shape x m x d``.
            others: j, ``h`` of them.

        Returns:
            ``batch_shape x (k n) x (h m)``.
        """
        if self.active is not None:
            x = x[..., self.active]
            y = y[..., self.active]
        apart = x.mT.unsqueeze(-1) - y.mT.unsqueeze(-2)  # sums over e are faster
        batch = self.lengthscale.shape[:-2]
        length = self.lengthscale.mT.unsqueeze(-1).expand(*batch, x.shape[-1], 1, 1)
        scaled = apart / length
        squared = scaled.square().sum(-3)
        variance = self.variance[..., None, None]
        if columns == others == VALUE:
            return variance * self.correlation.value(squared)
        slope, curvature = self.correlation.slope_and_curvature(squared)
        a = 2.0 * variance * slope

        def tilt(place: int) -> Tensor:
            return scaled[..., place, :, :] / length[..., place, :, :]

        rows = []
        for i in map(self.place, columns):
            row = []
            for j in map(self.place, others):
                if i is None:
                    block = a * tilt(j)
                elif j is None:
                    block = -a * tilt(i)
                else:
                    block = -4.0 * variance * tilt(i) * tilt(j) * curvature
                    if i == j:
                        block = block + a / length[..., i, :, :].square()
                row.append(block)
            rows.append(torch.cat(row, dim=-1))
        return torch.cat(rows, dim=-2)

    def place(self, column: Any) -> Any:
        """The index of a column of the inputs among those that the kernel sees."""
        if self.active is None or column is None:
            return column
        if column not in self.active:
            raise ValueError(
                f"covar_module: expected a kernel that sees column {column}, got one "
                f"of columns {list(self.active)}."
            )
        return self.active.index(column)


class Sites(NamedTuple):
    """Observations of ``s = k v`` derivatives, ordered by column first.

    Attributes:
        points: ``v x d``, shared by the elements of a batch.
        columns: With respect to which ones, ``k`` of them.
        scale: h, ``batch_shape x s``.
        target: t, ``batch_shape x s``.
    """

    points: Tensor
    columns: Sequence[int]
    scale: Tensor
    target: Tensor


class DerivativeProcess:
    r"""A process given values and derivatives, in double precision.

    With the factor L of B its values and derivatives at x, whose covariances with what
    is observed are c, have the covariance

        k(x, x') - (c D L^-T) (c' D L^-T)'

    and the mean m(x) + c D L^-T z, for z = L^-1 (what was observed - its mean).

    Args:
        mean: m, differentiable.
        kernel: k, an ``RBFKernel`` or a Matern-5/2 kernel, in a ``ScaleKernel`` or not.
        X: Inputs of the values, ``batch_shape x n x d``; n may be zero.
        targets: The values, ``batch_shape x n``.
        noise: Their noise variances, ``batch_shape x n``.
        sites: The derivatives; v may be zero.

    Attributes:
        covariance: k.
    """

    def __init__(
        self,
        mean: Mean,
        kernel: Kernel,
        X: Tensor,
        targets: Tensor,
        noise: Tensor,
        sites: Sites,
    ) -> None:
        form = DerivativeCovariance.of(kernel)
        self.covariance = replace(
            form,
            lengthscale=form.lengthscale.double(),
            variance=form.variance.double(),
        )
        self._mean = mean
        self._X = X.double()
        self._points = sites.points.double()
        self._columns = sites.columns
        shape = targets.shape[:-1]
        scale = sites.scale.double().expand(*shape, -1)
        target = sites.target.double().expand(*shape, -1)
        scale = torch.cat([torch.ones_like(noise, dtype=scale.dtype), scale], dim=-1)
        slopes = partial_of_mean(mean, sites.points, sites.columns)
        parts = [part.expand(*shape, -1) for part in (mean(X), slopes)]
        self._scale = scale
        self._noise = torch.cat([noise.double(), torch.ones_like(target)], dim=-1)
        self._observed = torch.cat([targets.double(), target], dim=-1)
        rows = [self.cross(self._X), self.cross(self._points, sites.columns)]
        joint = torch.cat([row.expand(*shape, -1, -1) for row in rows], dim=-2)
        joint = scale.unsqueeze(-1) * joint * scale.unsqueeze(-2)
        L = psd_safe_cholesky(joint + torch.diag_embed(self._noise))
        eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
        self._inverse = torch.linalg.solve_triangular(L, eye, upper=False)
        self._root = scale.unsqueeze(-1) * self._inverse.mT
        error = self._observed - scale * torch.cat(parts, dim=-1)
        self._white = self._inverse @ error.unsqueeze(-1)

    def cross(
        self,
        x: Tensor,
        columns: Columns = VALUE,
    ) -> Tensor:
        """Covariances with what is observed, ``batch_shape x (k n) x (n' + s)``."""
        values = self.covariance(x, columns, self._X, VALUE)
        slopes = self.covariance(x, columns, self._points, self._columns)
        return torch.cat([values, slopes.expand(*values.shape[:-1], -1)], dim=-1)

    def moments(
        self,
        x: Tensor,
        columns: Columns = VALUE,
    ) -> tuple[Tensor, Tensor]:
        """Means, and features whose products are what was explained of covariances.

        Args:
            x: ``batch_shape x n x d`` points, on the axes of the kernel.
            columns: Of the derivatives; default: values.

        Returns:
            ``batch_shape x (k n)``, columns slowest, and ``... x l``.
        """
        at = x.double()
        features = self.cross(at, columns) @ self._root
        if columns == VALUE:
            prior = self._mean(x)
        else:
            prior = partial_of_mean(self._mean, x, columns)
        return prior + (features @ self._white).squeeze(-1), features

    def posterior(self, x: Tensor) -> MultivariateNormal:
        """The distribution of values at ``batch_shape x q x d`` points."""
        mean, features = self.moments(x)
        at = x.double()
        covariance = self.covariance(at, VALUE, at, VALUE) - features @ features.mT
        return MultivariateNormal(mean.to(x), to_linear_operator(covariance.to(x)))

    @torch.no_grad()
    def path_weights(self, prior: Callable[[Tensor], Tensor]) -> Tensor:
        """Condition draws of the prior: what they miss is ``cross(x)`` times these.

        Matheron's rule, with noise that is drawn here.

        Args:
            prior: Functions of ``v x d`` points, ``sample_shape x batch_shape x v``.

        Returns:
            ``sample_shape x batch_shape x (n + s)``.
        """
        parts = [prior(self._X)]
        for column in self._columns:
            along = torch.zeros_like(self._points)
            along[:, column] = 1.0
            parts.append(torch.func.jvp(prior, (self._points,), (along,))[1])
        drawn = self._scale * torch.cat(parts, dim=-1)
        noise = self._noise.sqrt() * torch.randn_like(drawn)
        error = self._observed - drawn - noise
        return (self._root @ (self._inverse @ error.unsqueeze(-1))).squeeze(-1)

    def log_probability(self) -> Tensor:
        """Log density of the derivatives given the values, up to a factor, ``batch``.

        With the logarithm of the factor of the sites it is the part of log Z_EP
        ([Riihimaki2010monotonicity]_, after (10)) that signs add.
        """
        n = self._X.shape[-2]
        diagonal = self._inverse.diagonal(dim1=-2, dim2=-1)[..., n:]
        white = self._white[..., n:, 0]
        return diagonal.log().sum(-1) - 0.5 * white.square().sum(-1)


def partial_of_mean(
    mean: Mean,
    points: Tensor,
    columns: Sequence[int],
) -> Tensor:
    """Partial derivatives of a prior mean, differentiable in its parameters.

    The mean of a derivative is the derivative of the mean (section 2 of
    [Riihimaki2010monotonicity]_).

    Args:
        mean: Differentiable.
        points: ``batch_shape x v x d``.
        columns: With respect to which ones, ``k`` of them.

    Returns:
        ``batch_shape x (k v)``, columns slowest.
    """
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        x = points.expand(*mean(points).shape, points.shape[-1])
        x = x if x.requires_grad else x.detach().clone().requires_grad_(True)
        total = mean(x).sum() + 0.0 * x.sum()  # which a constant mean does not read
        (slope,) = torch.autograd.grad(total, x, create_graph=graph)
    return torch.cat([slope[..., j] for j in columns], dim=-1)
