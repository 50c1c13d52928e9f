"""What the synthetic problems on a plain box have in common."""

from __future__ import annotations

__all__ = ["BoxTestFunction", "default_num_starts"]

import torch
from botorch.test_functions.synthetic import SyntheticTestFunction
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_deviation


def default_num_starts(d: int) -> int:
    """``max(5, 2 d)``: the published treed GPs have five points in a leaf."""
    return max(5, 2 * d)


class BoxTestFunction(SyntheticTestFunction):
    r"""A ``SyntheticTestFunction`` of real numbers with a ``SearchSpace``.

    Its columns are named ``x1, ..., xd``; all are active everywhere.
    """

    bounds: Tensor

    def __init__(
        self,
        noise_std: float | None = None,
        negate: bool = False,
        bounds: list[tuple[float, float]] | None = None,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            noise_std: Standard deviation of the observation noise.
            negate: Whether to negate the function.
            bounds: Other bounds than those of the paper, around an optimum.
            dtype: The dtype of ``bounds``.

        Raises:
            ValueError: For a ``negate`` that is not a bool, a negative ``noise_std``.
        """
        if not isinstance(negate, bool):
            raise ValueError(f"negate: expected True or False, got {negate!r}.")
        check_deviation("noise_std", noise_std)
        super().__init__(noise_std, negate, bounds, dtype)
        names = [f"x{j}" for j in range(self.dim)]
        limits = torch.tensor(self._bounds, dtype=torch.double).T
        self.space = SearchSpace(names, limits)

    @property
    def tree(self) -> ParameterTree:
        """A tree without decisions."""
        return self.space.tree

    def starts(self, seed: int, n: int | None = None) -> Tensor:
        r"""The first points of a scrambled Sobol sequence, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many. Default: ``max(5, 2 d)``.

        Returns:
            An ``n x d``-dim tensor.
        """
        n = default_num_starts(self.dim) if n is None else n
        return draw_sobol_samples(self.bounds, n, 1, seed=seed).squeeze(-2)
