"""The functions of Jenatton et al. (2017) as problems of the suite.

Names are those of the trees: leaves, ``shared`` (two shared columns), ``quad`` (these
enter squared), ``off`` (optima off the centre), ``chain`` (unbalanced); ``noisy``
ones have a noise of standard deviation 0.05. See
`botorch_structured.test_functions.JenattonTree`.
"""

from __future__ import annotations

__all__ = ["DEVELOP", "REPORT", "Jenatton", "make"]

from functools import cache, partial

from torch import Tensor

from benchmarks.harness import ProblemFactory
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.test_functions import JenattonTree

_DEVELOP = ["8-off", "4-shared-off", "8-quad-off", "4-chain", "8-chain-shared"]
_DEVELOP += ["4-off", "noisy-8-shared", "noisy-4-quad-off"]
_REPORT = ["4", "4-shared", "8", "8-shared", "4-quad-off", "8-shared-off", "8-chain"]
_REPORT += ["4-chain-shared", "noisy-8", "noisy-4-shared"]
_WORDS = {"noisy", "chain", "shared", "quad", "off"}
_NOISE = 0.05


class Jenatton(SuiteProblem):
    """A tree of the family.

    Args:
        name: The number of leaves and the words of the module's docstring, such as
            ``"noisy-8-shared"``.

    Raises:
        ValueError: Another word, or a number of leaves that there is no tree of.
    """

    def __init__(self, name: str) -> None:
        words = name.split("-")
        leaves = [word for word in words if word not in _WORDS]
        if len(leaves) != 1 or not leaves[0].isdigit():
            raise ValueError(
                f"name: expected a number and words of {sorted(_WORDS)}, got {name!r}."
            )
        self.function = JenattonTree(
            num_leaves=int(leaves[0]),
            shared="shared" in words,
            balanced="chain" not in words,
            off_centre="off" in words,
            quadratic_shared="quad" in words,
        )
        super().__init__(self.function.space, _NOISE if "noisy" in words else 0.0)

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


@cache
def _cached(name: str) -> Jenatton:
    return Jenatton(name)


def make(seed: int, name: str) -> Jenatton:
    """A tree by its name, the same one for all seeds."""
    return _cached(name)


def _named(names: list[str]) -> dict[str, ProblemFactory]:
    return {f"jenatton-{name}": partial(make, name=name) for name in names}


DEVELOP = _named(_DEVELOP)
REPORT = _named(_REPORT)
