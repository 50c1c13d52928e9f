r"""Finite features of a prior given sites, for BoTorch's pathwise sampling.

With features phi(x) of the prior, k(x, x') = phi(x) phi(x')', f(x) = phi(x) w and w ~
N(0, I). Sites of precisions P on derivatives Phi w leave w ~ N(0, (I + Phi' P Phi)^-1),
so that with the Cholesky factor L of I + Phi' P Phi the features given the sites are
phi(x) L^-T. BoTorch samples paths of the prior with them, and corrects those by data
with the covariance itself.
"""

from __future__ import annotations

__all__ = ["site_conditioned_features"]

import torch
from botorch.sampling.pathwise.features.generators import (
    GenKernelFeatures,
    gen_kernel_features,
)
from botorch.sampling.pathwise.features.maps import KernelFeatureMap
from botorch.sampling.pathwise.utils import (
    ChainedTransform,
    TensorTransform,
)
from torch import Tensor

from botorch_structured.kernels.derivative_sites import SiteConditionedKernel


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
    """Features of the base kernel, made those of the kernel given its sites.

    Args:
        kernel: With sites.
        num_inputs: Columns.
        num_outputs: Features.
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
