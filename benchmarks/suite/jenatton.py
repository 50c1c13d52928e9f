"""The functions of Jenatton et al. (2017) as problems of the suite.

Names are those of `benchmarks.problems.jenatton`; ``noisy`` ones have a noise of
standard deviation 0.05.
"""

from __future__ import annotations

from functools import cache, partial

from torch import Tensor

from benchmarks.harness import ProblemFactory
from benchmarks.problems import jenatton
from benchmarks.suite.problem import SuiteProblem

_DEVELOP = ["8-off", "4-shared-off", "8-quad-off", "4-chain", "8-chain-shared"]
_DEVELOP += ["4-off", "noisy-8-shared", "noisy-4-quad-off"]
_REPORT = ["4", "4-shared", "8", "8-shared", "4-quad-off", "8-shared-off", "8-chain"]
_REPORT += ["4-chain-shared", "noisy-8", "noisy-4-shared"]


class Jenatton(SuiteProblem):
    """A tree of the family.

    Args:
        name: Such as ``"noisy-8-shared"``.
    """

    def __init__(self, name: str) -> None:
        self.function = jenatton.make(0, name.removeprefix("noisy-"))
        noise = 0.05 if name.startswith("noisy") else 0.0
        super().__init__(self.function.space, noise)

    @property
    def optimal_value(self) -> float:
        """0.1, in leaf 1."""
        return self.function.optimal_value

    def truths(self, X: Tensor) -> Tensor:
        """``n x d`` points -> ``n`` values without noise."""
        return self.function.evaluate_true(X)

    def starts(self, seed: int) -> Tensor:
        """The starts of `JenattonTree`: one random point on each path."""
        return self.function.starts(seed)


_cached = cache(Jenatton)


def make(seed: int, name: str) -> Jenatton:
    """A tree by its name, the same one for all seeds."""
    return _cached(name)


def _named(names: list[str]) -> dict[str, ProblemFactory]:
    return {f"jenatton-{name}": partial(make, name=name) for name in names}


DEVELOP = _named(_DEVELOP)
REPORT = _named(_REPORT)
