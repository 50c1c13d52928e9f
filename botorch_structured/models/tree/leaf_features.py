r"""Finite features of kernels on leaves, for BoTorch's pathwise sampling.

Leaves are independent: 1[p = p'] K_p(x, x'). Each path of the tree has a block of ``l``
features of its own (random Fourier features, or those that BoTorch knows of a base
kernel) and zeros elsewhere, so that the covariance across paths is exactly zero. With
more paths than blocks, paths in the same block are multiplied by random signs s(p), the
same for all points of a path: E[s(p) s(p')] = 1[p = p'], and the error of an entry
across paths has a standard deviation of about K / sqrt(l). The features of the weights
that couple the leaves are exact. BoTorch draws functions of the prior with these
features, and conditions them on the data with the covariance itself. An error of the
features is therefore to be compared with the posterior variance: see
``_FourierFeatureMap``.
"""

from __future__ import annotations

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
from torch.quasirandom import SobolEngine

from botorch_structured.linalg.correlations import Correlation, stationary_form
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.leaf_inference import MAX_LISTED_PATHS, LeafKernel
from botorch_structured.models.tree.tree_structured_kernel import TreeStructuredKernel
from botorch_structured.spaces.lookup import mix

# The time and memory of a draw are proportional to this number: about 1 s and, for
# 2,000 paths, 130 MB.
_MAX_BLOCK_FEATURES = 8192
# Degrees of freedom for an RBF kernel: tails heavy enough for leaves of one column, and
# light enough for leaves of twenty.
_RBF_DEGREES = 4


class _LeafFeatureMap(FeatureMap):
    """Features of a ``LeafKernel``, with the blocks and signs of paths."""

    kernel: Any
    seeds: Tensor

    def __init__(self, kernel: LeafKernel, num_signs: int, block: int) -> None:
        super().__init__()
        self.kernel = kernel
        # BoTorch draws weights with a Sobol sequence, which has at most so many columns
        room = SobolEngine.MAXDIM - kernel.num_weights - num_signs
        room = min(room, _MAX_BLOCK_FEATURES)
        self.num_blocks = max(1, min(kernel.tree.num_paths, room // block))
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
        listed = tree.num_paths <= MAX_LISTED_PATHS
        path = tree.path_index(x) if listed else mix(key)
        block = torch.nn.functional.one_hot(path % self.num_blocks, self.num_blocks)
        block = block.to(features).unsqueeze(-1)
        return (block * features.unsqueeze(-2)).flatten(-2)


class _FourierFeatureMap(_LeafFeatureMap):
    """Random Fourier features of leaves with a Matern-5/2 or RBF kernel.

    Frequencies are drawn from a Student's t whose tails are heavier than those of the
    spectral density, and weighted by the ratio of the two densities over the columns
    that a leaf sees. The posterior variance is mostly that of high frequencies, and the
    spectral density itself would draw very few of these.
    """

    frequencies: Tensor

    def __init__(
        self,
        kernel: TreeStructuredKernel | ConditionalKernel,
        correlation: Correlation,
        columns: int,
        num_features: int,
    ) -> None:
        half = num_features // 2
        super().__init__(kernel, half, 2 * half)
        self.matern = correlation.name == "matern"
        self.degrees = 1 if self.matern else _RBF_DEGREES
        normal = draw_sobol_normal_samples(
            d=self.degrees + columns, n=half, device=kernel.device, dtype=kernel.dtype
        )
        scale = normal[:, : self.degrees]
        normal = normal[:, self.degrees :]
        scale = scale.square().mean(-1, keepdim=True).clamp_min(1e-12)
        self.register_buffer("frequencies", normal * scale.rsqrt())

    @property
    def num_outputs(self) -> int:
        return 2 * self.num_blocks * len(self.seeds)

    def _waves(
        self, x: Tensor, key: Tensor, points: Tensor, seen: Tensor, sd: Tensor
    ) -> Tensor:
        """``batch_shape x n x (2 l num_blocks)``."""
        seen = seen.to(points)
        squares = self.frequencies.square().mT
        square = seen @ squares
        columns = seen.sum(-1, keepdim=True)
        # the logarithms of the densities up to constants; 2 nu = 5
        target = square.new_zeros(())
        for part in self._factors(seen):
            count = part.sum(-1, keepdim=True)
            target = target - (5 + count) / 2 * (part @ squares / 5).log1p()
        target = target if self.matern else -square / 2
        drawn = -(self.degrees + columns) / 2 * (square / self.degrees).log1p()
        weights = (target - drawn).softmax(-1)
        amplitude = self._signs(key) * weights.sqrt() * sd.unsqueeze(-1)
        angles = points @ self.frequencies.mT
        waves = torch.cat([amplitude * angles.sin(), amplitude * angles.cos()], dim=-1)
        return self._in_blocks(x, key, waves)

    def _factors(self, seen: Tensor) -> list[Tensor]:
        """The columns of each kernel of a product, ``batch_shape x n x e``."""
        return [seen]

    def forward(self, x: Tensor) -> Tensor:
        """``batch_shape x n x num_outputs``."""
        places = self.kernel.locate(x)
        rows = self.kernel.rows(x, places)
        seen = self.kernel.select(places.active)
        return self._waves(x, rows.key, rows.points, seen, rows.prior.sqrt())


class _TreeStructuredFeatureMap(_FourierFeatureMap):
    @property
    def num_outputs(self) -> int:
        return super().num_outputs + self.kernel.num_weights + len(self.seeds)

    def _factors(self, seen: Tensor) -> list[Tensor]:
        if not self.kernel.is_product:
            return [seen]
        context = self.kernel.leaf_hyperparameters.is_context.to(seen)
        return [seen * (1.0 - context), seen * context]

    def forward(self, x: Tensor) -> Tensor:
        """``batch_shape x n x num_outputs``."""
        places = self.kernel.locate(x)
        rows = self.kernel.rows(x, places)
        seen = places.seen[..., self.kernel.encoded_columns]
        points = rows.points
        sd = rows.variance.sqrt()
        constant = rows.constant.sqrt().unsqueeze(-1) / len(self.seeds) ** 0.5
        waves = self._waves(x, rows.key, points, seen, sd)
        parts = [rows.features, waves, constant * self._signs(rows.key)]
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
        places = self.kernel.locate(x)
        features = self.base(self.kernel.impute(x, places)) * self._signs(places.key)
        return self._in_blocks(x, places.key, features)


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
    return _TreeStructuredFeatureMap(
        kernel, kernel.correlation, len(kernel.encoded_columns), num_outputs
    )


@GenKernelFeatures.register(ConditionalKernel)
def conditional_features(
    kernel: ConditionalKernel, *, num_inputs: int, num_outputs: int
) -> FeatureMap:
    """Features of the base kernel, path by path.

    Args:
        kernel: The covariance of a ``ConditionalGP``.
        num_inputs: Columns.
        num_outputs: Features.

    Raises:
        UnsupportedError: If BoTorch knows no features of the base kernel.
    """
    form = stationary_form(kernel.base_kernel)
    if form is not None:
        seen = kernel.base_kernel.active_dims
        columns = kernel.tree.dim if seen is None else len(seen)
        return _FourierFeatureMap(kernel, form.correlation, columns, num_outputs)
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
