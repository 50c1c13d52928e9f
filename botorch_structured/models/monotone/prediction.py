r"""Predictions given data and sites, from factors that are kept.

With the covariances k of a value f(x) with the values at the data and c with the
derivatives at the sites, both are explained by the features

    [k, c] Q    for    Q = [  L^-T         0  ]
                           [ -R' E' L^-T   R' ]

where R is the ``root`` of the sites (``sites.SiteSystem``), E = cov(data, derivatives)
R' what the sites explain of the data, and L L' the covariance of the data given the
sites, with noise. The mean of f(x) is m(x) + [k, c] Q z, its variance k(x, x) -
|[k, c] Q|^2. A prediction takes one exponential for each row and site, and one product.
"""

from __future__ import annotations

__all__ = ["SitePredictor"]

from copy import deepcopy

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.means import Mean
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.models.monotone.site_kernel import (
    SiteConditionedKernel,
    SiteConditionedMean,
)


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
        n, form, system = len(X), kernel.derivatives, kernel.system()
        # in training, parameters have gradients of their own
        self._mean: Mean = deepcopy(mean.base_mean).requires_grad_(False)
        self._dtype = targets.dtype
        self._correlation, self._active = form.correlation, form.active
        explained = kernel.explained(X, system)
        at_data = X.double()
        K = form.value(at_data, at_data).double() - explained @ explained.mT
        L = psd_safe_cholesky(K + torch.diag_embed(noise.double()))
        eye = torch.eye(n, dtype=L.dtype, device=L.device)
        half = torch.linalg.solve_triangular(L, eye, upper=False).mT
        left = torch.cat([half, -system.root.mT @ (explained.mT @ half)])
        right = torch.cat([half.new_zeros(n, len(system.root)), system.root.mT])
        Q = torch.cat([left, right], dim=-1)
        residual = (targets - mean.shifted(X, explained, system)).double()
        z = torch.cat([half.mT @ residual, mean.residual(system)])
        self._weights = Q @ z
        # to features from correlations and scaled differences
        variance = form.variance.detach().double()
        length = form.lengthscale.detach().double().flatten()
        places = [form.place(j) for j in kernel.sites.columns]
        points = torch.cat([at_data, kernel.sites.points.double()])
        points = points if form.active is None else points[:, list(form.active)]
        length = length.expand(points.shape[-1])
        self._length, self._points = length, points / length
        self._n, self._variance = n, variance
        self._places = places
        self._scales = [2.0 * variance / length[p] for p in places]
        self._Q = Q

    def __call__(self, x: Tensor) -> MultivariateNormal:
        """The posterior at ``batch_shape x q x d`` transformed points."""
        at = x.double()
        if self._active is not None:
            at = at[..., list(self._active)]
        at = at / self._length
        cross = self._cross(at)
        features = cross @ self._Q
        mean = (cross @ self._weights).to(self._dtype) + self._mean(x)
        if x.shape[-2] == 1:
            prior = self._variance
            explained = features.square().sum(-1, keepdim=True)
        else:
            squared = (at.unsqueeze(-2) - at.unsqueeze(-3)).square().sum(-1)
            prior = self._variance * self._correlation.value(squared)
            explained = features @ features.mT
        covariance = (prior - explained).to(self._dtype)
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def _cross(self, at: Tensor) -> Tensor:
        """[k, c] at scaled points, ``batch_shape x q x (n + s)``."""
        n = self._n
        difference = at.unsqueeze(-2) - self._points
        squared = difference.square().sum(-1)
        parts = [self._variance * self._correlation.value(squared[..., :n])]
        slope, _ = self._correlation.slope_and_curvature(squared[..., n:])
        for place, scale in zip(self._places, self._scales, strict=True):
            parts.append(slope * (scale * difference[..., n:, place]))
        return torch.cat(parts, dim=-1)
