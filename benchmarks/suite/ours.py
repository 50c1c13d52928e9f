"""Methods of this package, for the suite.

``default`` is what the package recommends, from the common starts, ``study`` the same
from the starts of a `Study`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from botorch_structured.study.study import MOST_STARTS
from botorch_structured.suggest import suggest


def default(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``botorch_structured.suggest``."""
    return suggest(problem.space, X, Y).X


class FromStudy:
    """`default`, begun as a `Study` begins."""

    def __call__(self, problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        return default(problem, X, Y, seed)

    def starts(self, problem: Any, seed: int) -> Tensor:
        """``k x d`` points."""
        return problem.space.starts(kind="inner", seed=seed, at_most=MOST_STARTS)


METHODS = {"default": default, "study": FromStudy()}
