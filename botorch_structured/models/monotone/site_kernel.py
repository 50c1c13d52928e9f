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

``site_conditioned_features`` does the same for BoTorch's pathwise sampling, with
features phi(x) of the prior: k(x, x') = phi(x) phi(x')', f(x) = phi(x) w, w ~ N(0, I).
Sites of precisions P on derivatives Phi w leave w ~ N(0, (I + Phi' P Phi)^-1); with the
Cholesky factor L of I + Phi' P Phi the features given the sites are phi(x) L^-T.

``SitePredictor`` predicts given data and sites from factors that are kept. With the
covariances k of a value f(x) with the values at the data and c with the derivatives at
the sites, both are explained by the features

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

__all__ = [
    "DerivativeSites",
    "SiteConditionedKernel",
    "SiteConditionedMean",
    "SiteEvidence",
    "SitePredictor",
    "derivative_moments",
    "partial_of_mean",
]

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
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
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.mlls import AddedLossTerm
from linear_operator import to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import Module

from botorch_structured.linalg.batch_kernel import BatchKernel, same_points, take_batch
from botorch_structured.models.monotone.derivatives import StationaryDerivatives
from botorch_structured.models.monotone.expectation_propagation import (
    GaussianSites,
    SiteSystem,
    log_site_evidence,
    site_system,
)


class DerivativeSites(Module):
    """Sites on the derivatives at some points, one per point and column.

    Sites are ordered by column first. They and their points are buffers, so that they
    are part of a model's state dict. Loading a state dict with another number of points
    resizes them.

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

    def set(self, sites: GaussianSites, points: Tensor | None = None) -> None:
        """Replace the sites and, unless None, their points, ``v x d``."""
        if points is not None:
            self.points = points.detach().to(self.points)
        for name, value in sites._asdict().items():
            setattr(self, name, value.detach().to(self.points))

    def take(self, batch_shape: torch.Size, where: Tensor) -> DerivativeSites:
        """The sites of some elements of a batch.

        Args:
            batch_shape: What the own one is expanded to first.
            where: Elements of the flattened ``batch_shape``, ``new_shape``.
        """
        result = DerivativeSites(self.points, self.columns, where.shape)
        for name in ("precision", "shift", "log_scale"):
            value = getattr(self, name)
            own = value.shape[len(self.batch_shape) :]
            full = value.expand(*batch_shape, *own).reshape(-1, *own)
            setattr(result, name, full[where])
        return result

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: Any
    ) -> None:
        points = state_dict.get(prefix + "points")
        if points is not None and points.shape[-2] != self.points.shape[-2]:
            self.points = self.points.new_zeros(points.shape)
            for name in ("precision", "shift"):
                empty = self.points.new_zeros(*self.batch_shape, self.num_sites)
                setattr(self, name, empty)
        super()._load_from_state_dict(state_dict, prefix, *args)


class SiteConditionedKernel(BatchKernel):
    r"""The covariance of a Gaussian process given sites on its derivatives.

    Args:
        base_kernel: k, an ``RBFKernel`` or a Matern-5/2 kernel, in a ``ScaleKernel`` or
            not.
        sites: On derivatives.

    Raises:
        ValueError: For another kernel.
    """

    def __init__(self, base_kernel: Kernel, sites: DerivativeSites) -> None:
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

    def explained(self, x: Tensor, system: SiteSystem) -> Tensor:
        """The factor c(x)' P^1/2 L^-T of the covariance that the sites explain.

        Returns:
            ``batch_shape x n x s``, in double precision.
        """
        cross = self.derivatives.cross(x, self.sites.points, self.sites.columns)
        return cross.double() @ system.root.mT

    def _covariance(self, x1: Tensor, x2: Tensor, diag: bool, **params: Any) -> Tensor:
        """k~(x, x')."""
        system = self.system()
        a = self.explained(x1, system)
        b = a if same_points(x1, x2) else self.explained(x2, system)
        if diag:
            prior = to_dense(self.base_kernel(x1, x2, diag=True, **params))
            return (prior - (a * b).sum(-1)).to(prior.dtype)
        return self.remaining(x1, x2, a, b, **params)

    def remaining(
        self, x1: Tensor, x2: Tensor, a: Tensor, b: Tensor, **params: Any
    ) -> Tensor:
        """k~(x, x') where ``a`` and ``b`` are ``explained`` at ``x1`` and ``x2``."""
        prior = to_dense(self.base_kernel(x1, x2, **params))
        return (prior - a @ b.mT).to(prior.dtype)

    def _take(self, where: Tensor) -> SiteConditionedKernel:
        batch = self.batch_shape
        result = SiteConditionedKernel(
            take_batch(self.base_kernel, batch, where), self.sites.take(batch, where)
        )
        return result.train(self.training)


class SiteConditionedMean(Mean):
    """The mean of a Gaussian process given sites on its derivatives.

    Args:
        base_mean: m, differentiable.
        kernel: With the sites. It is not registered as a submodule, so that its
            parameters are in a model only once.
    """

    def __init__(self, base_mean: Mean, kernel: SiteConditionedKernel) -> None:
        super().__init__()
        self.base_mean = base_mean
        self._kernel = (kernel,)

    @property
    def kernel(self) -> SiteConditionedKernel:
        """The kernel with the sites."""
        return self._kernel[0]

    def forward(self, x: Tensor) -> Tensor:
        """m~(x), ``batch_shape x n``."""
        system = self.kernel.system()
        return self.shifted(x, self.kernel.explained(x, system), system)

    def shifted(self, x: Tensor, explained: Tensor, system: SiteSystem) -> Tensor:
        """m~(x) where ``explained`` is that of the kernel at ``x``."""
        shift = explained @ self.residual(system).unsqueeze(-1)
        prior = self.base_mean(x)
        return (prior + shift.squeeze(-1)).to(prior.dtype)

    def log_evidence(self, system: SiteSystem) -> Tensor:
        """Log-probability of the sites under the prior, ``batch_shape``."""
        sites = self.kernel.sites
        return log_site_evidence(system, self.derivative(), sites.gaussian)

    def residual(self, system: SiteSystem) -> Tensor:
        """L^-1 P^1/2 (t - m'), ``batch_shape x s``."""
        return system.residual(self.derivative())

    def derivative(self) -> Tensor:
        """m', ``batch_shape x s``, in double precision."""
        sites = self.kernel.sites
        slope = partial_of_mean(self.base_mean, sites.points, sites.columns)
        return slope.double().expand(*self.kernel.batch_shape, -1)


def partial_of_mean(mean: Mean, points: Tensor, columns: Sequence[int]) -> Tensor:
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
        total = mean(x).sum()
        if not total.requires_grad:  # it depends neither on x nor on parameters
            slope = torch.zeros_like(x)
        else:
            (slope,) = torch.autograd.grad(
                total, x, create_graph=graph, materialize_grads=True
            )
    return torch.cat([slope[..., j] for j in columns], dim=-1)


class SiteEvidence(AddedLossTerm):
    """log p(sites) as of the last call in training mode."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def loss(self, *params: Any) -> Tensor:
        return self.value

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value.detach()}  # tensors with a graph cannot be copied


def derivative_moments(
    mean: Any,
    kernel: Any,
    X: Tensor,
    targets: Tensor,
    noise: Tensor,
    x: Tensor,
    columns: Sequence[int],
    given_sites: bool,
) -> tuple[Tensor, Tensor]:
    r"""Moments of derivatives given the data, with or without the sites.

    Values at the data and derivatives at ``x`` have the joint prior (6) of
    [Riihimaki2010monotonicity]_, or that given the sites. It is conditioned on the
    data.

    Args:
        mean: Of the process, given sites or not.
        kernel: Of the process, given sites or not.
        X: Training inputs, transformed, ``batch_shape x n x d``.
        targets: ``batch_shape x n``.
        noise: Variances, ``batch_shape x n``.
        x: ``batch_shape x v x d``, on the model's axes.
        columns: With respect to which ones, ``k`` of them.
        given_sites: Whether to condition on the sites as well.

    Returns:
        In double precision, ``batch_shape x (k v)`` and ``... x (k v) x (k v)``,
        columns slowest.
    """
    prior_mean, prior = mean, kernel
    if isinstance(mean, SiteConditionedMean):
        prior_mean = mean.base_mean
    if isinstance(kernel, SiteConditionedKernel):
        prior = kernel.base_kernel
    k = StationaryDerivatives.of(prior)
    slope = partial_of_mean(prior_mean, x, columns).double()
    error = (targets - prior_mean(X)).double().unsqueeze(-1)
    at_data, x = X.double(), x.double()
    K, cross = k.value(at_data, at_data), k.cross(at_data, x, columns)
    gram = k.gram(x, columns)
    if given_sites:
        sites, system = kernel.sites, kernel.system()
        to_sites = k.gram(x, columns, sites.points.double(), sites.columns)
        explained = to_sites @ system.root.mT
        train = kernel.explained(X, system)
        said = mean.residual(system).unsqueeze(-1)
        slope = slope + (explained @ said).squeeze(-1)
        error = error - train @ said
        K = K - train @ train.mT
        cross = cross - train @ explained.mT
        gram = gram - explained @ explained.mT
    factor = psd_safe_cholesky(K + torch.diag_embed(noise.double()))
    right = torch.cat([cross, error.expand(*cross.shape[:-1], 1)], dim=-1)
    solved = torch.linalg.solve_triangular(factor, right, upper=False)
    half, white = solved[..., :-1], solved[..., -1:]
    return slope + (half.mT @ white).squeeze(-1), gram - half.mT @ half


class SitePredictor:
    """Posterior of one process at any points, with a gradient in these only.

    Args:
        kernel: With the sites.
        mean: Of the same process.
        X: Training inputs, transformed, ``n x d``.
        targets: ``n``.
        noise: Variances, ``n``.
    """

    @torch.no_grad()
    def __init__(
        self,
        kernel: SiteConditionedKernel,
        mean: SiteConditionedMean,
        X: Tensor,
        targets: Tensor,
        noise: Tensor,
    ) -> None:
        form, system = kernel.derivatives, kernel.system()
        # in training, parameters have gradients of their own
        self._mean: Mean = deepcopy(mean.base_mean).requires_grad_(False)
        self._form = replace(
            form,
            lengthscale=form.lengthscale.detach().double(),
            variance=form.variance.detach().double(),
        )
        self._X, self._points = X.double(), kernel.sites.points.double()
        self._columns = kernel.sites.columns
        explained = kernel.explained(X, system)
        K = self._form.value(self._X, self._X) - explained @ explained.mT
        L = psd_safe_cholesky(K + torch.diag_embed(noise.double()))
        eye = torch.eye(len(L), dtype=L.dtype, device=L.device)
        half = torch.linalg.solve_triangular(L, eye, upper=False).mT
        left = torch.cat([half, -system.root.mT @ (explained.mT @ half)])
        right = torch.cat([half.new_zeros(len(X), len(system.root)), system.root.mT])
        self._Q = torch.cat([left, right], dim=-1)
        residual = (targets - mean.shifted(X, explained, system)).double()
        z = torch.cat([half.mT @ residual, mean.residual(system)])
        self._weights = self._Q @ z

    def __call__(self, x: Tensor) -> MultivariateNormal:
        """The posterior at ``batch_shape x q x d`` transformed points."""
        at, form = x.double(), self._form
        at_sites = form.cross(at, self._points, self._columns)
        cross = torch.cat([form.value(at, self._X), at_sites], dim=-1)
        features = cross @ self._Q
        mean = (cross @ self._weights).to(x) + self._mean(x)
        covariance = (form.value(at, at) - features @ features.mT).to(x)
        return MultivariateNormal(mean, to_linear_operator(covariance))


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
    kernel: SiteConditionedKernel, *, num_inputs: int, num_outputs: int
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
    sites, points = kernel.sites, kernel.sites.points
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
