"""The functions of Jenatton et al. (2017) as problems of the suite.

A name has the number of leaves and words: ``shared`` (two shared columns), ``quad`` or
``quadratic`` (these enter squared), ``off`` (optima off the centre), ``chain``
(unbalanced), before it maybe ``noisy`` (a noise of standard deviation 0.05).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

from torch import Tensor

from benchmarks.harness import ProblemFactory
from benchmarks.suite.problem import SuiteProblem
from botorch_structured.test_functions import JenattonTree

_DEVELOP = ["8-off", "4-shared-off", "8-quad-off", "4-chain", "8-chain-shared"]
_DEVELOP += ["4-off", "noisy-8-shared", "noisy-4-quad-off"]
_REPORT = ["4", "4-shared", "8", "8-shared", "4-quad-off", "8-shared-off", "8-chain"]
_REPORT += ["4-chain-shared", "noisy-8", "noisy-4-shared"]


_WORDS = {"chain", "shared", "quad", "quadratic", "off"}


def function(seed: int, name: str) -> JenattonTree:
    """The same function for every seed; the seed decides the starts.

    Raises:
        ValueError: Another word, or a number of leaves that there is no tree of.
    """
    leaves, *words = name.split("-")
    if not leaves.isdigit() or not {*words} <= _WORDS:
        raise ValueError(
            f"name: expected a number and words of {sorted(_WORDS)}, got {name!r}."
        )
    return JenattonTree(
        num_leaves=int(leaves),
        shared="shared" in words,
        balanced="chain" not in words,
        off_centre="off" in words,
        quadratic_shared=bool({"quad", "quadratic"} & {*words}),
    )


def factories(names: Iterable[str]) -> dict[str, ProblemFactory]:
    """Makers of problems by their names."""
    return {name: partial(function, name=name) for name in names}


class Jenatton(SuiteProblem):
    """A tree of the family.

    Args:
        name: Such as ``"noisy-8-shared"``.
    """

    def __init__(self, name: str) -> None:
        self.function = function(0, name.removeprefix("noisy-"))
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


@cache
def make(seed: int, name: str) -> Jenatton:
    """A tree by its name, the same one for all seeds."""
    return Jenatton(name)


def _named(names: list[str]) -> dict[str, ProblemFactory]:
    return {f"jenatton-{name}": partial(make, name=name) for name in names}


DEVELOP = _named(_DEVELOP)
REPORT = _named(_REPORT)
