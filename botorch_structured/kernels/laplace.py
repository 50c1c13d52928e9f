r"""The Laplace kernel: the exponential of minus a sum of absolute distances.

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

__all__ = ["LaplaceKernel"]

from typing import Any

import torch
from torch import Tensor

from botorch_structured.linalg.batch_kernel import BatchKernel


class LaplaceKernel(BatchKernel):
    r"""``exp(-sum_j |x_j - x'_j| / l_j)``, a product over dimensions.

    Choose it where the outcome has steps along single columns, as the predictions of a
    random forest have: samples are continuous and nowhere differentiable, and the
    kernel is the limit of the Mondrian kernel for many trees
    ([Levesque2017conditional]_, section IV-B and equation (11), with a lengthscale per
    dimension as in section V). For smooth outcomes a Matern-5/2 kernel learns more from
    the same points.

    It is not ``MaternKernel(nu=0.5)``, which takes the Euclidean distance: the two
    agree in one dimension only. With many columns the difference is large, as sums of
    absolute differences grow with d and their Euclidean distance with sqrt(d).

    Gradients are finite everywhere. Where two coordinates are equal, the kernel has a
    kink, and the gradient is the subgradient zero. Memory is ``n x m``, never
    ``n x m x d``, also in the backward pass.

    Args:
        ard_num_dims: The number of lengthscales, one for each column; one for all
            columns if None.
        kwargs: As for any GPyTorch kernel: ``batch_shape``, ``active_dims``,
            ``lengthscale_prior``, ``lengthscale_constraint``.

    Example:
        >>> kernel = ScaleKernel(LaplaceKernel(ard_num_dims=train_X.shape[-1]))
        >>> model = SingleTaskGP(train_X, train_Y, covar_module=kernel)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    has_lengthscale = True

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor:
        """The covariance of rows.

        Args:
            x1: ``batch_shape x n x d``.
            x2: ``batch_shape x m x d``.
            diag: Whether to return the diagonal only; then ``n = m``.
            last_dim_is_batch: Whether each column is a batch of its own.
            params: Not used; GPyTorch passes arguments of its own kernels.

        Returns:
            ``batch_shape x n x m``, or ``batch_shape x n`` if ``diag``; with
            ``last_dim_is_batch``, ``d`` stands after ``batch_shape``.
        """
        lengthscale = self.lengthscale
        a, b = x1 / lengthscale, x2 / lengthscale
        if last_dim_is_batch:
            a, b = a.mT.unsqueeze(-1), b.mT.unsqueeze(-1)
        if diag:
            return torch.exp(-(a - b).abs().sum(-1))
        return torch.exp(-torch.cdist(a, b, p=1.0))
