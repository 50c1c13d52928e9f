"""What problems have in common whose evaluations return the parts of a sum."""

from __future__ import annotations

__all__ = ["DecomposedTestFunction"]

from abc import abstractmethod

import torch
from torch import Tensor

from botorch_structured.test_functions.box import BoxTestFunction

_STARTS = 4  # Wang and Welch (2017), section 3.1


class DecomposedTestFunction(BoxTestFunction):
    r"""A problem that is the sum of ``components``, each monotone in some columns.

    For models of the parts, such as ``DecomposedGP``. A subclass defines
    ``_evaluate_components`` and ``_monotone``, both of the function to be minimised.
    """

    _monotone: tuple[dict[int, int], ...]

    @property
    def monotone(self) -> tuple[dict[int, int], ...]:
        """For each component ``{column: 1 where it rises, -1 where it falls}``.

        Of what ``components`` returns: both change their sign with ``negate``. Those of
        real learners are what is believed of them, not what is certain.
        """
        sign = -1 if self.negate else 1
        return tuple(
            {column: sign * direction for column, direction in signs.items()}
            for signs in self._monotone
        )

    @abstractmethod
    def _evaluate_components(self, X: Tensor) -> Tensor:
        """``... x d`` -> ``... x k``, to be minimised, without noise."""

    def components(self, X: Tensor) -> Tensor:
        r"""The parts, whose sum is ``problem(X, noise=False)``.

        Args:
            X: ``batch_shape x d``.

        Returns:
            ``batch_shape x k``.
        """
        parts = self._evaluate_components(X)
        return -parts if self.negate else parts

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self._evaluate_components(X).sum(-1)

    def starts(self, seed: int, n: int | None = None) -> Tensor:
        r"""Random points, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many. Default: 4, as in the paper, one for each parameter of an
                isotropic GP and one more.

        Returns:
            An ``n x d``-dim tensor.
        """
        g = torch.Generator().manual_seed(seed)
        unit = torch.rand(n or _STARTS, self.dim, generator=g, dtype=torch.double)
        low, high = self.bounds
        return low + (high - low) * unit.to(self.bounds)
