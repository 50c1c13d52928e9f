"""Problems of the suite, and what they have in common.

A problem is minimised. Besides its value, which may be noisy, it knows the ``truth``
without noise, the ``optimal_value`` and the ``middle_value`` of the truth: the median
over 1,000 random points. They scale the regret of a run, so that problems compare:

    (truth of the point with the best observed value - optimum) / (middle - optimum)

A module of problems has ``DEVELOP`` and ``REPORT``, each ``{name: factory}``; the part
of a name before its first ``-`` is the kind. ``factory(seed)`` makes the problem of a
run and can be pickled; one that reads files has a keyword ``data``, the folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace

_MOST_STARTS = 8
_RANDOM_POINTS = 1_000  # behind ``middle_value``


class SuiteProblem(ABC):
    """A problem given by the truth of many points at once.

    Args:
        space: The space.
        noise_std: The standard deviation of the noise.
    """

    own_seeds = True
    """Other starts than other problems have with the same seed."""

    def __init__(self, space: SearchSpace, noise_std: float = 0.0) -> None:
        self.space = space
        self.noise_std = noise_std

    @abstractmethod
    def truths(self, X: Tensor) -> Tensor:
        """``n x d`` points -> ``n`` values without noise."""

    @property
    @abstractmethod
    def optimal_value(self) -> float:
        """The least truth, or the least that is known."""

    @cached_property
    def middle_value(self) -> float:
        """The median truth of 1,000 random points."""
        return float(self.truths(self.space.sample(_RANDOM_POINTS, seed=0)).median())

    @property
    def tree(self) -> ParameterTree:
        """Which columns are active where."""
        return self.space.tree

    def starts(self, seed: int) -> Tensor:
        """A random start on each path, at most 8: then a sample that covers much."""
        n = min(self.space.tree.num_paths, _MOST_STARTS)
        return self.space.starts(n, seed=seed)

    def truth(self, x: Tensor) -> float:
        """The value of a point (``d``) without noise."""
        return float(self.truths(x.reshape(1, -1))[0])

    def __call__(self, x: Tensor) -> float:
        """The value of a point (``d``) with noise of torch's global generator."""
        value = self.truth(x)
        if self.noise_std:
            value += self.noise_std * float(torch.randn((), dtype=torch.double))
        return value


def kind_of(name: str) -> str:
    """The kind of a problem, by its name: ``"yahpo"`` of ``"yahpo-3"``."""
    return name.split("-", 1)[0]
