"""Methods of this package, for the suite.

``default`` is what the package recommends, from the common starts, ``study`` the same
from the starts of a `Study`. The others have other starts.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from botorch_structured.spaces import SearchSpace
from botorch_structured.study.study import MOST_STARTS
from botorch_structured.suggest import suggest


def default(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """``botorch_structured.suggest``."""
    return suggest(problem.space, X, Y).X


class _FromPaths:
    """`default`, begun by itself.

    Args:
        n: Starts on different paths; None for all of them.
        cover: Whether there are fewer where paths are more and fewer show every value,
            as in a `Study`.
    """

    def __init__(self, n: int | None, cover: bool = False) -> None:
        self.n, self.cover = n, cover

    def __call__(self, problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        return default(problem, X, Y, seed)

    def starts(self, problem: Any, seed: int) -> Tensor:
        """``k x d`` points."""
        space: SearchSpace = problem.space
        if self.cover:
            return space.starts(kind="inner", seed=seed, at_most=self.n)
        n = space.tree.num_paths
        return space.starts(n if self.n is None else min(n, self.n), seed=seed)


METHODS = {
    "default": default,
    "from_every_path": _FromPaths(None),
    "from_ten_paths": _FromPaths(10),
    "from_five_paths": _FromPaths(5),
    "from_cover": _FromPaths(10, cover=True),
    "study": _FromPaths(MOST_STARTS, cover=True),
}
