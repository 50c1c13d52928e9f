"""The free offset of each path, as a prior mean."""

from __future__ import annotations

__all__ = ["PathMean"]

import torch
from gpytorch.means import Mean
from torch import Tensor

from botorch_structured.models.tree.leaf_inference import MAX_LISTED_PATHS
from botorch_structured.models.tree.tree_structured_kernel import take_of_path
from botorch_structured.spaces import ParameterTree


class PathMean(Mean):
    """Prior mean m(x) = b_p for x on path p: the free offsets of equation (1).

    Args:
        tree: The parameter tree.
        batch_shape: Batch shape of the model.

    Raises:
        ValueError: For more than ``MAX_LISTED_PATHS`` paths.
    """

    def __init__(
        self,
        tree: ParameterTree,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        if tree.num_paths > MAX_LISTED_PATHS:
            raise ValueError(
                'leaf_offset: expected another value than "fixed", which has a '
                f"constant for each path, for more than {MAX_LISTED_PATHS} paths, got "
                f"it for {tree.num_paths}."
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
        table = self.raw_offset.unsqueeze(-1)
        path = self.tree.path_index(x)
        return take_of_path(table, path, 'leaf_offset="fixed"').squeeze(-1)
