"""Lengthscales and scales of the leaf kernels: shared, related or independent.

With one to three points a leaf of its own cannot learn hyperparameters of its own;
leaves whose outcomes have different ranges cannot share them. A hierarchical prior does
both:

    log l_j = log l + log rho_j,    log s_p = log s + sum over the path of log delta

with rho and delta drawn towards one. Every parameter's shape is a matter of the tree
alone, never of the data. The independent variant of Jenatton et al. (2017) has a
lengthscale per (path, column) and a scale per path, and needs paths that can be listed.
"""

from __future__ import annotations

__all__ = [
    "LeafHyperparameters",
    "MAX_LISTED_PATHS",
]

from typing import Literal

import torch
from gpytorch import Module
from torch import Tensor

from botorch_structured.linalg.hyperparameter import Hyperparameter
from botorch_structured.spaces import ParameterTree

#: What is held per path is refused beyond this many paths.
MAX_LISTED_PATHS = 4096

_LENGTHSCALE_BOUNDS = (2e-2, 2e1)
_RELATIVE_BOUNDS = (5e-2, 2e1)
_VARIANCE_BOUNDS = (1e-4, 1e4)


class LeafHyperparameters(Module):
    """Lengthscales and outputscales of the kernels K_p.

    Args:
        tree: The parameter tree.
        columns: Columns that some K_p sees.
        columns_of_path: For each path the positions in ``columns`` that its K_p sees;
            None when there are too many paths to list.
        sharing: "hierarchical", "tied" or "independent".
        batch_shape: Batch shape of the model.
    """

    def __init__(
        self,
        tree: ParameterTree,
        columns: list[int],
        columns_of_path: list[list[int]] | None,
        sharing: Literal["hierarchical", "tied", "independent"],
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        self.tree = tree
        self.num_columns = len(columns)
        self.sharing = sharing

        def parameter(
            count: int, mode: float, scale: float, bounds: tuple[float, float]
        ) -> Hyperparameter:
            return Hyperparameter((1, count), mode, scale, bounds, batch_shape)

        # Distances grow like sqrt(d), and the number of corners, where a model with
        # long lengthscales is least sure, like 2^d: in proportion to d, neither a leaf
        # with one column is left to its two ends nor one with four searched corner by
        # corner.
        dimension = torch.full((len(columns),), float(max(len(columns), 1)))
        if columns_of_path is not None:
            dimension = torch.ones(len(columns))
            for positions in columns_of_path:
                for j in positions:
                    dimension[j] = max(float(dimension[j]), len(positions))
        self.register_buffer("dimension_scale", dimension.double(), persistent=False)
        if sharing == "independent":
            if columns_of_path is None:
                raise ValueError(
                    'leaf_hyperparameters="independent" holds parameters for each '
                    f"path: expected at most {MAX_LISTED_PATHS} paths, got "
                    f"{tree.num_paths}."
                )
            pair = torch.full((len(columns_of_path), len(columns)), -1)
            count = 0
            for p, positions in enumerate(columns_of_path):
                for j in positions:
                    pair[p, j] = count
                    count += 1
            pair[pair < 0] = count
            self.register_buffer("pair", pair, persistent=False)
            if count:
                self.lengthscale = parameter(count, 0.5, 1.0, _LENGTHSCALE_BOUNDS)
            self.outputscale = parameter(
                len(columns_of_path), 1.0, 1.0, _VARIANCE_BOUNDS
            )
            return
        if columns:
            self.common_lengthscale = parameter(1, 0.3, 0.5, _LENGTHSCALE_BOUNDS)
        self.common_outputscale = parameter(1, 1.0, 1.0, _VARIANCE_BOUNDS)
        if sharing == "hierarchical":
            if len(columns) > 1:
                self.relative_lengthscale = parameter(
                    len(columns), 1.0, 0.3, _RELATIVE_BOUNDS
                )
            if tree.num_edges > 0:
                self.relative_outputscale = parameter(
                    tree.num_edges, 1.0, 0.3, _RELATIVE_BOUNDS
                )

    def inverse_lengthscale(self, path: Tensor | None) -> Tensor:
        """One over the lengthscales.

        Args:
            path: Path of each row, ``batch_shape x n``; used by "independent" only.

        Returns:
            ``batch_shape x 1 x num_columns``, or with n rows for "independent".
        """
        if self.num_columns == 0:
            return self.dimension_scale.new_zeros(1, 0)
        if self.sharing == "independent":
            inverse = self.lengthscale.value.reciprocal().squeeze(-2)
            table = torch.nn.functional.pad(inverse, (0, 1))[..., self.pair]
            return _take(table, _listed(path))
        scale = self.common_lengthscale.value * self.dimension_scale
        if hasattr(self, "relative_lengthscale"):
            scale = scale * self.relative_lengthscale.value
        return scale.reciprocal()

    def scale(self, path: Tensor | None, nodes: Tensor) -> Tensor:
        """Prior variance of g_p at each row.

        Args:
            path: Path of each row, ``batch_shape x n``; used by "independent" only.
            nodes: ``batch_shape x n x (1 + num_edges)``, see ``WeightFeatures``.

        Returns:
            ``batch_shape x n``.
        """
        if self.sharing == "independent":
            table = self.outputscale.value.mT
            return _take(table, _listed(path)).squeeze(-1)
        scale = self.common_outputscale.value.squeeze(-1)
        if hasattr(self, "relative_outputscale"):
            log_ratio = self.relative_outputscale.value.log()
            # a product over the decisions on the path
            ratio = (nodes[..., 1:].to(log_ratio) * log_ratio).sum(-1).exp()
            return scale * ratio
        return scale.expand(torch.broadcast_shapes(scale.shape, nodes.shape[:-1]))


def _listed(path: Tensor | None) -> Tensor:
    if path is None:
        raise ValueError("Expected the path of each row, got None.")
    return path


def _take(table: Tensor, path: Tensor) -> Tensor:
    """Rows of a table per path, with the batch dimensions of both broadcast.

    Args:
        table: ``batch_shape x num_paths x k``.
        path: ``other_batch x n``.

    Returns:
        ``broadcast(batch_shape, other_batch) x n x k``.
    """
    if path.numel() and int(path.max()) >= table.shape[-2]:
        raise ValueError(
            'leaf_hyperparameters="independent" holds parameters for each declared '
            "path: expected declared decision values only, got an undeclared one. "
            "Declare it in `values` of the ParameterTree."
        )
    if table.ndim == 2:
        return table[path]
    return torch.nn.functional.one_hot(path, table.shape[-2]).to(table) @ table
