r"""Finite features of kernels on leaves, for BoTorch's pathwise sampling.

Leaves are independent: 1[p = p'] K_p(x, x'). Each path of the tree has a block of ``l``
features of its own (random Fourier features, or those that BoTorch knows of a base
kernel) and zeros elsewhere, so that the covariance across paths is exactly zero: what
is left of an error there is not small beside the variance that data leave. Where paths
are more than the blocks there is room for, those in one block differ by random signs
s(p), the same for all points of a path: E[s(p) s(p')] = 1[p = p'], with a standard
deviation of about K / sqrt(l). The features of the weights that couple the leaves are
exact. BoTorch samples paths of the prior with them, and corrects those by data with the
covariance itself.
"""

from __future__ import annotations

__all__ = ["conditional_features", "tree_structured_features"]

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.features.generators import (
    GenKernelFeatures,
    gen_kernel_features,
)
from botorch.sampling.pathwise.features.maps import FeatureMap
from botorch.utils.sampling import draw_sobol_normal_samples
from torch import Tensor

from botorch_structured.kernels.conditional import ConditionalKernel
from botorch_structured.kernels.leaf_kernel import LeafKernel
from botorch_structured.kernels.tree_structured import TreeStructuredKernel
from botorch_structured.spaces.lookup import mix


# BoTorch draws the weights of features with a Sobol sequence, of up to 21,201 columns.
_MAX_BLOCK_FEATURES = 16384


class _LeafFeatureMap(FeatureMap):
    """Features of a ``LeafKernel``, with the blocks and signs of paths."""

    kernel: Any
    seeds: Tensor

    def __init__(self, kernel: LeafKernel, num_signs: int, block: int) -> None:
        super().__init__()
        self.kernel = kernel
        paths = kernel.tree.num_paths
        self.num_blocks = max(1, min(paths, _MAX_BLOCK_FEATURES // block))
        self.input_transform = self.output_transform = None
        seeds = torch.randint(2**62, (num_signs,), device=kernel.device)
        self.register_buffer("seeds", seeds)

    @property
    def batch_shape(self) -> torch.Size:
        return self.kernel.batch_shape

    def _signs(self, key: Tensor) -> Tensor:
        """+1 or -1 of each path, ``batch_shape x n x num_signs``."""
        return 1 - 2 * (mix(key.unsqueeze(-1) ^ self.seeds) & 1)

    def _in_blocks(self, x: Tensor, key: Tensor, features: Tensor) -> Tensor:
        """Features in the block of each row's path, zeros in the others."""
        if self.num_blocks == 1:
            return features
        tree = self.kernel.tree
        path = tree.path_index(x) if tree.num_paths == self.num_blocks else mix(key)
        block = torch.nn.functional.one_hot(path % self.num_blocks, self.num_blocks)
        block = block.to(features).unsqueeze(-1)
        return (block * features.unsqueeze(-2)).flatten(-2)


class _TreeStructuredFeatureMap(_LeafFeatureMap):
    frequencies: Tensor

    def __init__(self, kernel: TreeStructuredKernel, num_features: int) -> None:
        half = num_features // 2
        super().__init__(kernel, half, 2 * half)
        columns = len(kernel._encoded)
        like = {"dtype": kernel.dtype, "device": kernel.device}
        frequencies = torch.zeros(half, 0, **like)
        if columns:
            # Student's t, of 2 nu = 5; the squares of it from the same sequence, of
            # which averages vary less than of independent ones
            degrees = 5 if kernel.correlation.name == "matern" else 0
            normal = draw_sobol_normal_samples(d=columns + degrees, n=half, **like)
            frequencies, squared = normal[:, :columns], normal[:, columns:].square()
            if degrees:
                frequencies = frequencies * squared.mean(-1, keepdim=True).rsqrt()
        self.register_buffer("frequencies", frequencies)

    @property
    def num_outputs(self) -> int:
        half = len(self.seeds)
        return self.kernel.num_weights + (2 * self.num_blocks + 1) * half

    def forward(self, x: Tensor) -> Tensor:
        """``batch_shape x n x num_outputs``."""
        rows = self.kernel.rows(x)
        signs = self._signs(rows.key) / len(self.seeds) ** 0.5
        # one more column of the points is zero
        angles = rows.points[..., :-1] @ self.frequencies.mT
        amplitude = signs * rows.variance.sqrt().unsqueeze(-1)
        constant = signs * rows.constant.sqrt().unsqueeze(-1)
        waves = torch.cat([amplitude * angles.sin(), amplitude * angles.cos()], dim=-1)
        parts = [rows.features, self._in_blocks(x, rows.key, waves), constant]
        shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], -1)


class _ConditionalFeatureMap(_LeafFeatureMap):
    def __init__(self, kernel: ConditionalKernel, base: FeatureMap) -> None:
        super().__init__(kernel, base.num_outputs, base.num_outputs)
        self.base = base

    @property
    def num_outputs(self) -> int:
        return self.num_blocks * len(self.seeds)

    def forward(self, x: Tensor) -> Tensor:
        """``batch_shape x n x num_outputs``."""
        places = self.kernel._place(x)
        own = self.base(self.kernel._impute(x, places)) * self._signs(places.key)
        return self._in_blocks(x, places.key, own)


@GenKernelFeatures.register(TreeStructuredKernel)
def tree_structured_features(
    kernel: TreeStructuredKernel, *, num_inputs: int, num_outputs: int
) -> FeatureMap:
    """Features of the leaves beside the exact ones of the weights.

    Args:
        kernel: The covariance of a ``TreeStructuredGP``.
        num_inputs: Columns.
        num_outputs: How many features the leaves have.
    """
    return _TreeStructuredFeatureMap(kernel, num_outputs)


@GenKernelFeatures.register(ConditionalKernel)
def conditional_features(
    kernel: ConditionalKernel, *, num_inputs: int, num_outputs: int
) -> FeatureMap:
    """Features of the base kernel, with the signs of paths.

    Args:
        kernel: The covariance of a ``ConditionalGP``.
        num_inputs: Columns.
        num_outputs: Features.

    Raises:
        UnsupportedError: If BoTorch knows no features of the base kernel.
    """
    try:
        base = gen_kernel_features(
            kernel.base_kernel, num_inputs=num_inputs, num_outputs=num_outputs
        )
    except NotImplementedError as error:
        raise UnsupportedError(
            "model: expected a base kernel that BoTorch knows features of (RBF or "
            "Matern, scaled or not), to draw whole paths from, got a ConditionalKernel "
            f"of {type(kernel.base_kernel).__name__}. Draw at a finite set of points "
            "instead: posterior(X).rsample(), or MaxPosteriorSampling."
        ) from error
    return _ConditionalFeatureMap(kernel, base)
