r"""Finite features of kernels on leaves, for BoTorch's pathwise sampling.

Leaves are independent: 1[p = p'] K_p(x, x'). Each path of the tree has a block of ``l``
random Fourier features of its own and zeros elsewhere, so that the covariance across
paths is exactly zero. With
more paths than blocks, paths in the same block are multiplied by random signs s(p), the
same for all points of a path: E[s(p) s(p')] = 1[p = p'], and the error of an entry
across paths has a standard deviation of about K / sqrt(l). The features of the weights
that couple the leaves are exact. BoTorch draws functions of the prior with these
features, and conditions them on the data with the covariance itself. An error of the
features is therefore to be compared with the posterior variance: see
``_LeafFeatureMap``.
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise.features.generators import GenKernelFeatures
from botorch.sampling.pathwise.features.maps import FeatureMap
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.sampling import draw_sobol_normal_samples
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_structured.kernels.leaf_kernels import MAX_LISTED_PATHS, ConditionalKernel
from botorch_structured.kernels.tree_structured_kernel import TreeStructuredKernel
from botorch_structured.linalg.correlations import stationary_form
from botorch_structured.models.tree.leaf_model import LeafModel
from botorch_structured.spaces import ParameterTree
from botorch_structured.spaces.parameter_tree import mix

# The time and memory of a draw are proportional to this number: about 1 s and, for
# 2,000 paths, 130 MB.
_MAX_BLOCK_FEATURES = 8192
# Degrees of freedom for an RBF kernel: tails heavy enough for leaves of one column, and
# light enough for leaves of twenty.
_RBF_DEGREES = 4


class _LeafFeatureMap(FeatureMap):
    """Random Fourier features of leaves with a Matern-5/2 or RBF kernel.

    Frequencies are drawn from a Student's t whose tails are heavier than those of the
    spectral density, and weighted by the ratio of the two densities over the columns
    that a leaf sees. The posterior variance is mostly that of high frequencies, and the
    spectral density itself would draw very few of these.

    Args:
        kernel: The kernel.
        matern: Whether its correlation is not RBF.
        columns: Of its points.
        num_features: How many features each block has.
    """

    kernel: Any
    seeds: Tensor
    frequencies: Tensor

    def __init__(
        self,
        kernel: TreeStructuredKernel | ConditionalKernel,
        matern: bool,
        columns: int,
        num_features: int,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.matern = matern
        self.degrees = 1 if matern else _RBF_DEGREES
        half = num_features // 2
        # BoTorch draws weights with a Sobol sequence, which has at most so many columns
        room = SobolEngine.MAXDIM - kernel.num_weights - half
        room = min(room, _MAX_BLOCK_FEATURES)
        self.num_blocks = max(1, min(kernel.tree.num_paths, room // (2 * half)))
        self.input_transform = self.output_transform = None
        self.data_keys: Tensor | None = None
        seeds = torch.randint(2**62, (half,), device=kernel.device)
        self.register_buffer("seeds", seeds)
        normal = draw_sobol_normal_samples(
            d=self.degrees + columns,
            n=half,
            device=kernel.device,
            dtype=kernel.dtype,
        )
        scale = normal[:, : self.degrees]
        normal = normal[:, self.degrees :]
        scale = scale.square().mean(-1, keepdim=True).clamp_min(1e-12)
        self.register_buffer("frequencies", normal * scale.rsqrt())

    @property
    def batch_shape(self) -> torch.Size:
        return self.kernel.batch_shape

    @property
    def num_outputs(self) -> int:
        features = (2 * self.num_blocks + 1) * len(self.seeds)
        return features + self.kernel.num_weights

    def forward(self, x: Tensor) -> Tensor:
        """``batch_shape x n x num_outputs``."""
        kernel = self.kernel
        places = kernel.locate(x)
        rows = kernel.rows(x, places)
        if self.data_keys is not None:
            apart = ~torch.isin(rows.key, self.data_keys.to(x.device))
            _check_declared(kernel.tree, x[apart])
        masks: list[Any] = [1.0]
        if isinstance(kernel, ConditionalKernel):
            seen = kernel.select(places.active).to(rows.points)
        else:
            seen = places.seen[..., kernel.encoded_columns].to(rows.points)
            if kernel.is_product:
                context = kernel.leaf_hyperparameters.is_context.to(seen)
                masks = [1.0 - context, context]
        squares = self.frequencies.square().mT
        square = seen @ squares
        # the logarithms of the densities up to constants; 2 nu = 5
        target = -square / 2
        if self.matern:
            target = torch.zeros_like(square)
            for mask in masks:
                part = seen * mask
                count = part.sum(-1, keepdim=True)
                target = target - (5 + count) / 2 * (part @ squares / 5).log1p()
        degrees = self.degrees + seen.sum(-1, keepdim=True)
        drawn = -degrees / 2 * (square / self.degrees).log1p()
        weights = (target - drawn).softmax(-1)
        # +1 or -1 of each path
        signs = 1 - 2 * (mix(rows.key.unsqueeze(-1) ^ self.seeds) & 1)
        amplitude = signs * (weights * rows.variance.unsqueeze(-1)).sqrt()
        angles = rows.points @ self.frequencies.mT
        waves = torch.cat([amplitude * angles.sin(), amplitude * angles.cos()], dim=-1)
        constant = (rows.constant / len(self.seeds)).sqrt().unsqueeze(-1)
        parts = [
            rows.features,
            self._in_blocks(x, rows.key, waves),
            constant * signs,
        ]
        shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], -1)

    def _in_blocks(
        self,
        x: Tensor,
        key: Tensor,
        features: Tensor,
    ) -> Tensor:
        """Features in the block of each row's path, zeros in the others."""
        if self.num_blocks == 1:
            return features
        tree = self.kernel.tree
        listed = tree.num_paths <= MAX_LISTED_PATHS
        path = tree.path_index(x) if listed else mix(key)
        block = torch.nn.functional.one_hot(path % self.num_blocks, self.num_blocks)
        block = block.to(features).unsqueeze(-1)
        return (block * features.unsqueeze(-2)).flatten(-2)


def _unsupported(expected: str, kernel: str) -> UnsupportedError:
    return UnsupportedError(
        f"model: expected {expected}, to draw whole paths from, got {kernel}. Draw at "
        "a finite set of points instead: posterior(X).rsample(), or "
        "MaxPosteriorSampling."
    )


def _check_declared(tree: ParameterTree, x: Tensor) -> None:
    """Raise a ``ValueError`` for points on paths without data that are not declared.

    Each undeclared value is a path of its own: of many, some function is large on one.
    """
    if len(x) and not tree.is_declared(x).all():
        raise ValueError(
            "X: expected values of decisions that are declared or in the data, got "
            "others. Functions on spaces with decisions have optima path by path: "
            "optimize_acqf_paths(PathwiseThompsonSampling(model), ...), whose points "
            "entropy searches take as optimal_inputs."
        )


@DrawMatheronPaths.register(LeafModel)
def draw_in_space(model: LeafModel, **kwargs: Any) -> Any:
    """Functions drawn from the posterior, for points of the space.

    Args:
        model: A model over a tree.
        kwargs: See ``draw_matheron_paths``.
    """
    paths = DrawMatheronPaths.dispatch(SingleTaskGP)(model, **kwargs)
    features = getattr(paths["prior_paths"], "feature_map", None)
    if isinstance(features, _LeafFeatureMap):
        features.data_keys = model.tree.path_key(model.train_inputs[0]).unique()
    return paths


@GenKernelFeatures.register(TreeStructuredKernel)
def tree_structured_features(
    kernel: TreeStructuredKernel,
    *,
    num_inputs: int,
    num_outputs: int,
) -> FeatureMap:
    """Features of the leaves beside the exact ones of the weights.

    Args:
        kernel: The covariance of a ``TreeStructuredGP``.
        num_inputs: Columns.
        num_outputs: How many features the leaves have.

    Raises:
        UnsupportedError: For a ``leaf_kernel`` of the caller's own.
    """
    if kernel.leaf_kernels is not None:
        raise _unsupported('leaf_kernel "matern" or "rbf"', "another one")
    matern = kernel.correlation.name == "matern"
    return _LeafFeatureMap(
        kernel,
        matern,
        len(kernel.encoded_columns),
        num_outputs,
    )


@GenKernelFeatures.register(ConditionalKernel)
def conditional_features(
    kernel: ConditionalKernel,
    *,
    num_inputs: int,
    num_outputs: int,
) -> FeatureMap:
    """Features of the base kernel, path by path.

    Args:
        kernel: The covariance of a ``ConditionalGP``.
        num_inputs: Columns.
        num_outputs: Features.

    Raises:
        UnsupportedError: For a base kernel that is not Matern-5/2 or RBF.
    """
    form = stationary_form(kernel.base_kernel)
    if form is None:
        raise _unsupported(
            "a base kernel that is RBF or Matern-5/2, scaled or not",
            f"a ConditionalKernel of {type(kernel.base_kernel).__name__}",
        )
    seen = kernel.base_kernel.active_dims
    columns = kernel.tree.dim if seen is None else len(seen)
    matern = form.correlation.name == "matern"
    return _LeafFeatureMap(kernel, matern, columns, num_outputs)
