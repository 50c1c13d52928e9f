"""Paths of a parameter tree: one joint setting of its active decisions each."""

from __future__ import annotations

__all__ = ["Path", "Paths"]

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import torch
from torch import Tensor


@dataclass(frozen=True)
class Path:
    """One joint setting of the active decisions.

    Args:
        decisions: Active decision column -> its value, or its ``(lo, hi)`` interval
            (closed at both ends) where the decision is numeric.
        active_columns: The active columns, ascending; active decisions among them.
    """

    decisions: dict[int, float | tuple[float, float]] = field(hash=False)
    active_columns: tuple[int, ...]

    @property
    def active(self) -> Tensor:
        """The active columns as a LongTensor."""
        return torch.tensor(self.active_columns, dtype=torch.long)

    @property
    def fixed_features(self) -> dict[int, float]:
        """The decision columns that have one value on this path, with that value."""
        return {c: v for c, v in self.decisions.items() if not isinstance(v, tuple)}

    @property
    def intervals(self) -> dict[int, tuple[float, float]]:
        """The numeric decision columns with the interval they move in on this path."""
        return {c: v for c, v in self.decisions.items() if isinstance(v, tuple)}

    @property
    def free_columns(self) -> list[int]:
        """The active columns that this path does not fix to one value."""
        fixed = self.fixed_features
        return [c for c in self.active_columns if c not in fixed]


class Paths(Sequence[Path]):
    """All declared paths of a tree, each one built when it is asked for."""

    def __init__(self, num_paths: int, build: Callable[[int], Path]) -> None:
        self._num_paths = num_paths
        self._build = build

    def __len__(self) -> int:
        return self._num_paths

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...
    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._num_paths))]
        number = int(index)
        if not -self._num_paths <= number < self._num_paths:
            raise IndexError(
                f"path: expected a number below {self._num_paths}, got {number} "
                "(numbers from there on stand for undeclared values: use path_of)."
            )
        return self._build(number % self._num_paths)

    def __iter__(self) -> Iterator[Path]:
        return (self._build(i) for i in range(self._num_paths))

    def __repr__(self) -> str:
        return f"<{self._num_paths} paths>"
