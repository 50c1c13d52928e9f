"""A constant per path: the free offsets b_p of Jenatton et al. (2017), equation (1)."""

from __future__ import annotations

__all__ = ["PathMean"]

import torch
from gpytorch.means import Mean
from torch import Tensor

from botorch_structured.kernels.leaf_hyperparameters import MAX_LISTED_PATHS
from botorch_structured.spaces import ParameterTree


class PathMean(Mean):
    """Prior mean m(x) = b_p for x on path p, fitted by maximum likelihood.

    Args:
        tree: The parameter tree.
        batch_shape: Batch shape of the model.

    Raises:
        ValueError: If there are more paths than can have parameters of their own.
    """

    def __init__(
        self,
        tree: ParameterTree,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        if tree.num_paths > MAX_LISTED_PATHS:
            raise ValueError(
                'leaf_offset="fixed" holds one offset per path: expected at most '
                f"{MAX_LISTED_PATHS} paths, got {tree.num_paths}."
            )
        self.tree = tree
        self.batch_shape = batch_shape
        self.register_parameter(
            "raw_offset",
            torch.nn.Parameter(
                torch.zeros(*batch_shape, tree.num_paths, dtype=torch.float64)
            ),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Offsets, ``batch_shape x n``.

        Args:
            x: ``batch_shape x n x d``.
        """
        path = self.tree.path_index(x)
        if path.numel() and int(path.max()) >= self.tree.num_paths:
            raise ValueError(
                'leaf_offset="fixed" holds one offset per declared path: expected '
                "declared decision values only, got an undeclared one. Declare it in "
                "`values` of the ParameterTree."
            )
        if self.raw_offset.ndim == 1:
            return self.raw_offset[path]
        code = torch.nn.functional.one_hot(path, self.tree.num_paths)
        table = self.raw_offset.unsqueeze(-1)
        return (code.to(table) @ table).squeeze(-1)
