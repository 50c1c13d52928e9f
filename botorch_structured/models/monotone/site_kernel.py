r"""The prior of a Gaussian process given Gaussian sites on its derivatives.

Given Gaussian sites on derivatives d_j f(v), a Gaussian process is a Gaussian process
again, with

    m~(x)     = m(x) + c(x)' (S + P^-1)^-1 (t - m')
    k~(x, x') = k(x, x') - c(x)' (S + P^-1)^-1 c(x')

for c(x) = cov(f(x), derivatives), S and m' the prior covariance and mean of the
derivatives, and sites with precisions P and modes t. Conditioning m~ and k~ on data
gives what conditioning m and k on data and sites gives, the predictions at the end of
section 3 of [Riihimaki2010monotonicity]_ (K_joint + Sigma~_joint, eliminated block by
block). So everything that BoTorch does with an exact GP, it does with m~ and k~.

For k(x, v) = s^2 c(r^2) with r^2 = sum_j (x_j - v_j)^2 / l_j^2 and D_j = (x_j - v_j) /
l_j^2 the covariances of values and derivatives are

    cov(f(x), d_j f(v))      = s^2 a(r^2) D_j
    cov(d_i f(x), d_j f(v))  = s^2 (a(r^2) [i = j] / l_j^2 - b(r^2) D_i D_j)

with a = -2 c' and b = 4 c'' (derivatives of c are in ``linalg.correlations``). For the
squared exponential these are the displays of section 2 of
[Riihimaki2010monotonicity]_, with eta = s and rho = l. GPyTorch's ``RBFKernelGrad`` and
``Matern52KernelGrad`` give the same numbers, but always all of them, which at five
columns has 36 times the entries that one monotone column needs.

``site_conditioned_features`` does the same for BoTorch's pathwise sampling, with
features phi(x) of the prior: k(x, x') = phi(x) phi(x')', f(x) = phi(x) w, w ~ N(0, I).
Sites of precisions P on derivatives Phi w leave w ~ N(0, (I + Phi' P Phi)^-1); with the
Cholesky factor L of I + Phi' P Phi the features given the sites are phi(x) L^-T.

``ConditionedProcess`` predicts given data and sites from factors that are kept. With
the covariances k of a value f(x) with the values at the data and c with the derivatives
at the sites, both are explained by the features

    [k, c] Q    for    Q = [  L^-T         0  ]
                           [ -R' E' L^-T   R' ]

where R is the ``root`` of the sites (``SiteSystem``), E = cov(data, derivatives) R'
what the sites explain of the data, and L L' the covariance of the data given the sites,
with noise. The mean of f(x) is m(x) + [k, c] Q z, its variance k(x, x) - |[k, c] Q|^2.
A prediction takes one exponential for each row and site, and one product.

References:

.. [Riihimaki2010monotonicity]
    J. Riihimaki and A. Vehtari. Gaussian processes with monotonicity information.
    AISTATS 2010.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.sampling.pathwise.features.generators import (
    GenKernelFeatures,
    gen_kernel_features,
)
from botorch.sampling.pathwise.features.maps import KernelFeatureMap
from botorch.sampling.pathwise.utils import ChainedTransform, TensorTransform
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.means import Mean
from linear_operator import to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import Module

from botorch_structured.linalg.batch_kernel import BatchKernel, same_points, take_batch
from botorch_structured.linalg.correlations import Correlation, stationary_form
from botorch_structured.models.monotone.expectation_propagation import (
    GaussianSites,
    SiteSystem,
    log_site_evidence,
    site_system,
)


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

    def value(
        self,
        x: Tensor,
        y: Tensor,
    ) -> Tensor:
        """cov(f(x), f(y)), ``batch_shape x n x m``."""
        squared = self._scaled(x, y).square().sum(-3)
        return self._times_variance(self.correlation.value(squared))

    def cross(
        self,
        x: Tensor,
        points: Tensor,
        columns: Sequence[int],
    ) -> Tensor:
        """cov(f(x), d_j f(v)) for all columns j and points v, columns slowest.

        Args:
            x: ``batch_shape x n x d``.
            points: ``batch_shape x m x d``.
            columns: The ``k`` columns with respect to which f is differentiated.

        Returns:
            ``batch_shape x n x (k m)``.
        """
        scaled = self._scaled(x, points)
        slope, _ = self.correlation.slope_and_curvature(scaled.square().sum(-3))
        slope = self._times_variance(2.0 * slope)
        parts = []
        for p in map(self.place, columns):
            parts.append(slope * scaled[..., p, :, :] / self._length(p))
        return torch.cat(parts, dim=-1)

    def gram(
        self,
        points: Tensor,
        columns: Sequence[int],
        others: Tensor | None = None,
        other_columns: Sequence[int] | None = None,
    ) -> Tensor:
        """cov(d_i f(u), d_j f(v)) for all columns and points.

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
        scaled = self._scaled(points, others)
        slope, curvature = self.correlation.slope_and_curvature(scaled.square().sum(-3))
        slope = self._times_variance(2.0 * slope)
        curvature = self._times_variance(4.0 * curvature)
        rows = []
        for i in map(self.place, columns):
            row = []
            bent = curvature * scaled[..., i, :, :]
            for j in map(self.place, other_columns):
                block = -bent * scaled[..., j, :, :]
                if i == j:
                    block = block + slope
                row.append(block / (self._length(i) * self._length(j)))
            rows.append(torch.cat(row, dim=-1))
        return torch.cat(rows, dim=-2)

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

    def _scaled(
        self,
        x: Tensor,
        y: Tensor,
    ) -> Tensor:
        """(x_j - y_j) / l_j, ``batch_shape x e x n x m``: sums over e are faster."""
        if self.active is not None:
            x = x[..., self.active]
            y = y[..., self.active]
        apart = x.mT.unsqueeze(-1) - y.mT.unsqueeze(-2)
        return apart / self.lengthscale.mT.unsqueeze(-1)

    def _length(self, place: int) -> Tensor:
        """The lengthscale of a column, ``kernel_batch_shape x 1 x 1``."""
        one = self.lengthscale.shape[-1] == 1
        return self.lengthscale[..., :, 0 if one else place, None]

    def _times_variance(self, correlation: Tensor) -> Tensor:
        return self.variance[..., None, None] * correlation


class DerivativeSites(Module):
    """Sites on the derivatives at some points, one per point and column.

    Sites are ordered by column first. They and their points are buffers, so that they
    are part of a model's state dict.

    Args:
        points: ``v x d``, where derivatives are taken.
        columns: With respect to which ones, ``k`` of them.
        batch_shape: Of the process; the points are shared by the batch.
    """

    points: Tensor
    precision: Tensor
    shift: Tensor
    log_scale: Tensor

    def __init__(
        self,
        points: Tensor,
        columns: Sequence[int],
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        self.columns = tuple(columns)
        self.batch_shape = batch_shape
        self.register_buffer("points", points.clone())
        for name in ("precision", "shift"):
            self.register_buffer(name, points.new_zeros(*batch_shape, self.num_sites))
        self.register_buffer("log_scale", points.new_zeros(batch_shape))

    @property
    def num_sites(self) -> int:
        """How many, ``k v``."""
        return len(self.columns) * self.points.shape[-2]

    @property
    def gaussian(self) -> GaussianSites:
        """The sites, in double precision, in which all algebra with them is done."""
        return GaussianSites(
            self.precision.double(), self.shift.double(), self.log_scale.double()
        )

    def set(self, sites: GaussianSites) -> None:
        """Replace the sites."""
        for name, value in sites._asdict().items():
            setattr(self, name, value.detach().to(self.points))

    def take(
        self,
        batch_shape: torch.Size,
        where: Tensor,
    ) -> DerivativeSites:
        """The sites of some elements of a batch.

        Args:
            batch_shape: What its batch shape is expanded to first.
            where: Elements of the flattened ``batch_shape``, ``new_shape``.
        """
        result = DerivativeSites(self.points, self.columns, where.shape)
        for name in ("precision", "shift", "log_scale"):
            value = getattr(self, name)
            rest = value.shape[len(self.batch_shape) :]
            full = value.expand(*batch_shape, *rest).reshape(-1, *rest)
            setattr(result, name, full[where])
        return result


class SiteConditionedKernel(BatchKernel):
    r"""The covariance of a Gaussian process given sites on its derivatives.

    Args:
        base_kernel: k, an ``RBFKernel`` or a Matern-5/2 kernel, in a ``ScaleKernel`` or
            not.
        sites: On derivatives.

    Raises:
        ValueError: For another kernel.
    """

    def __init__(
        self,
        base_kernel: Kernel,
        sites: DerivativeSites,
    ) -> None:
        derivatives = StationaryDerivatives.of(base_kernel)
        for column in sites.columns:
            derivatives.place(column)
        super().__init__()
        self.base_kernel = base_kernel
        self.sites = sites

    @property
    def batch_shape(self) -> torch.Size:
        """That of the base kernel and of the sites."""
        return torch.broadcast_shapes(
            self.base_kernel.batch_shape, self.sites.batch_shape
        )

    @property
    def derivatives(self) -> StationaryDerivatives:
        """Covariances of the unconditioned process and its derivatives."""
        return StationaryDerivatives.of(self.base_kernel)

    def system(self) -> SiteSystem:
        """S + P^-1 factorised, in double precision.

        In evaluation mode it has no graph unless GPyTorch's ``detach_test_caches`` is
        off; in training mode it has one.
        """
        graph = self.training or settings.detach_test_caches.off()
        with torch.set_grad_enabled(graph and torch.is_grad_enabled()):
            gram = self.derivatives.gram(self.sites.points, self.sites.columns)
            return site_system(gram.double(), self.sites.gaussian)

    def explained(
        self,
        x: Tensor,
        system: SiteSystem,
    ) -> Tensor:
        """The factor c(x)' P^1/2 L^-T of the covariance that the sites explain.

        Returns:
            ``batch_shape x n x s``, in double precision.
        """
        cross = self.derivatives.cross(x, self.sites.points, self.sites.columns)
        return cross.double() @ system.root.mT

    def _covariance(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
        **params: Any,
    ) -> Tensor:
        return self.conditioned(x1, x2, diag, self.system(), **params)

    def conditioned(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
        system: SiteSystem,
        **params: Any,
    ) -> Tensor:
        """k~(x, x'), with the sites' system."""
        a = self.explained(x1, system)
        b = a if same_points(x1, x2) else self.explained(x2, system)
        prior = to_dense(self.base_kernel(x1, x2, diag=diag, **params))
        gone = (a * b).sum(-1) if diag else a @ b.mT
        return (prior - gone).to(prior.dtype)

    def _take(self, where: Tensor) -> SiteConditionedKernel:
        batch = self.batch_shape
        base = take_batch(self.base_kernel, batch, where)
        result = SiteConditionedKernel(base, self.sites.take(batch, where))
        return result.train(self.training)


class SiteConditionedMean(Mean):
    """The mean of a Gaussian process given sites on its derivatives.

    Args:
        base_mean: m, differentiable.
        kernel: With the sites. It is not registered as a submodule, so that its
            parameters are in a model only once.
    """

    def __init__(
        self,
        base_mean: Mean,
        kernel: SiteConditionedKernel,
    ) -> None:
        super().__init__()
        self.base_mean = base_mean
        self._kernel = (kernel,)

    @property
    def kernel(self) -> SiteConditionedKernel:
        """The kernel with the sites."""
        return self._kernel[0]

    def forward(self, x: Tensor) -> Tensor:
        """m~(x), ``batch_shape x n``."""
        return self.evidence_and_mean(x, self.kernel.system())[1]

    def evidence_and_mean(
        self,
        x: Tensor,
        system: SiteSystem,
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of the sites under the prior, ``batch_shape``, and m~(x)."""
        slope = self.derivative()
        explained = self.kernel.explained(x, system)
        shift = explained @ system.residual(slope).unsqueeze(-1)
        prior = self.base_mean(x)
        evidence = log_site_evidence(system, slope, self.kernel.sites.gaussian)
        return evidence, (prior + shift.squeeze(-1)).to(prior.dtype)

    def derivative(self) -> Tensor:
        """m', ``batch_shape x s``, in double precision."""
        sites = self.kernel.sites
        slope = partial_of_mean(self.base_mean, sites.points, sites.columns)
        return slope.double().expand(*self.kernel.batch_shape, -1)


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


class ConditionedProcess:
    r"""A process given data, and given sites or not, in double precision.

    Values at the data and derivatives at the sites have the joint prior (6) of
    [Riihimaki2010monotonicity]_. Hyperparameters are constants here.

    Args:
        mean: m, or m~ of the process given the sites.
        kernel: k, or k~ of the process given the sites.
        X: Training inputs, transformed, ``batch_shape x n x d``.
        targets: ``batch_shape x n``.
        noise: Variances, ``batch_shape x n``.
        given_sites: Whether to condition on the sites, too.
    """

    @torch.no_grad()
    def __init__(
        self,
        mean: Any,
        kernel: Any,
        X: Tensor,
        targets: Tensor,
        noise: Tensor,
        given_sites: bool,
    ) -> None:
        self.mean: Mean = getattr(mean, "base_mean", mean)
        has_sites = isinstance(kernel, SiteConditionedKernel)
        form = StationaryDerivatives.of(kernel.base_kernel if has_sites else kernel)
        lengthscale = form.lengthscale.double()
        variance = form.variance.double()
        self.form = replace(form, lengthscale=lengthscale, variance=variance)
        self._X = X.double()
        self._sites = kernel.sites if given_sites else None
        K = self.form.value(self._X, self._X)
        error = (targets - self.mean(X)).double().unsqueeze(-1)
        if given_sites:
            system = kernel.system()
            explained = kernel.explained(X, system)
            said = system.residual(mean.derivative()).unsqueeze(-1)
            K = K - explained @ explained.mT
            error = error - explained @ said
        L = psd_safe_cholesky(K + torch.diag_embed(noise.double()))
        eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
        Q = torch.linalg.solve_triangular(L, eye, upper=False).mT
        z = Q.mT @ error
        if given_sites:
            root = system.root.mT
            left = torch.cat([Q, -root @ (explained.mT @ Q)], dim=-2)
            nothing = root.new_zeros(*root.shape[:-2], X.shape[-2], root.shape[-1])
            Q = torch.cat([left, torch.cat([nothing, root], dim=-2)], dim=-1)
            z = torch.cat([z, said], dim=-2)
        self._Q = Q
        self._weights = Q @ z

    def posterior(self, x: Tensor) -> MultivariateNormal:
        """The posterior at ``batch_shape x q x d`` transformed points."""
        at = x.double()
        cross = self.form.value(at, self._X)
        if self._sites is not None:
            points = self._sites.points.double()
            to_sites = self.form.cross(at, points, self._sites.columns)
            cross = torch.cat([cross, to_sites], dim=-1)
        features = cross @ self._Q
        mean = (cross @ self._weights).squeeze(-1).to(x) + self.mean(x)
        covariance = (self.form.value(at, at) - features @ features.mT).to(x)
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def slopes(
        self,
        points: Tensor,
        columns: Sequence[int],
    ) -> SlopeMoments:
        """Moments of derivatives, ordered by column first.

        Args:
            points: ``batch_shape x v x d``, on the model's axes.
            columns: With respect to which ones, ``k`` of them.
        """
        at = points.double()
        cross = self.form.cross(self._X, at, columns).mT
        if self._sites is not None:
            sites = self._sites
            to_sites = self.form.gram(at, columns, sites.points.double(), sites.columns)
            cross = torch.cat([cross, to_sites], dim=-1)
        slope = partial_of_mean(self.mean, points, columns).double()
        mean = slope + (cross @ self._weights).squeeze(-1)
        return SlopeMoments(self.form, at, tuple(columns), mean, cross @ self._Q)


@dataclass(frozen=True)
class SlopeMoments:
    """Moments of derivatives at some points, ordered by column first.

    Attributes:
        form: The covariances before anything was observed.
        points: ``batch_shape x v x d``.
        columns: With respect to which ones, ``k`` of them.
        mean: ``batch_shape x (k v)``.
        features: Their products are what observations explain, ``... x (k v) x l``.
    """

    form: StationaryDerivatives
    points: Tensor
    columns: tuple[int, ...]
    mean: Tensor
    features: Tensor

    def covariance(self) -> Tensor:
        """Covariances of all derivatives, ``batch_shape x (k v) x (k v)``."""
        gram = self.form.gram(self.points, self.columns)
        return gram - self.features @ self.features.mT

    def variance(self) -> Tensor:
        """Variances, ``batch_shape x (k v)``."""
        one = self.points[..., :1, :]  # the process is stationary
        prior = self.form.gram(one, self.columns).diagonal(dim1=-1, dim2=-2)
        prior = prior.repeat_interleave(self.points.shape[-2], dim=-1)
        return prior - self.features.square().sum(-1)

    def row(self, index: int) -> Tensor:
        """Covariances of one derivative with all, ``batch_shape x (k v)``."""
        column, point = divmod(index, self.points.shape[-2])
        at = self.points[..., point, None, :]
        gram = self.form.gram(at, [self.columns[column]], self.points, self.columns)
        one = self.features[..., index, None, :]
        return (gram - one @ self.features.mT).squeeze(-2)


class _Reweighted(TensorTransform):
    """Features given sites from those of the prior."""

    def __init__(self, root: Tensor) -> None:
        super().__init__()
        self.register_buffer("root", root)

    def forward(self, values: Tensor) -> Tensor:
        """``batch_shape x n x l``, or ``l``, to the same."""
        return values @ self.root


@GenKernelFeatures.register(SiteConditionedKernel)
def site_conditioned_features(
    kernel: SiteConditionedKernel,
    *,
    num_inputs: int,
    num_outputs: int,
) -> KernelFeatureMap:
    """Features of the prior given the sites; BoTorch corrects sample paths by data.

    Args:
        kernel: With sites.
        num_inputs: The number of columns.
        num_outputs: The number of features.
    """
    features = gen_kernel_features(
        kernel.base_kernel, num_inputs=num_inputs, num_outputs=num_outputs
    )
    sites = kernel.sites
    points = sites.points
    slopes = []
    for column in sites.columns:
        along = torch.zeros_like(points)
        along[:, column] = 1.0
        slopes.append(torch.func.jvp(features, (points,), (along,))[1])
    half = torch.cat(slopes, dim=-2) * sites.precision.sqrt().unsqueeze(-1)
    eye = torch.eye(half.shape[-1], dtype=half.dtype, device=half.device)
    factor = torch.linalg.cholesky(eye + half.mT @ half)
    root = torch.linalg.solve_triangular(factor, eye, upper=False).mT.detach()
    features.output_transform = ChainedTransform(
        _Reweighted(root), features.output_transform
    )
    return features
