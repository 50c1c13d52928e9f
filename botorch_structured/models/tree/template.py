"""Modules that are the same in one model after the other, made once and then copied.

A loop makes a model of the same tree in each iteration. To make its kernel takes four
times as long as to copy one.
"""

from __future__ import annotations

__all__ = ["Template"]

import io
import pickle
from collections.abc import Sequence
from itertools import starmap
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

ModuleT = TypeVar("ModuleT")


class Template(Generic[ModuleT]):
    """A new module (or a tuple of them), of which copies are wanted.

    Copies have tensors of their own, as those of ``deepcopy``.

    Args:
        original: It can be pickled; not to be changed afterwards.
        kept: Objects that it holds and of which no copies are made.
    """

    def __init__(self, original: ModuleT, *kept: object) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file, kept)
        pickler.dump(original)
        self._pickle = file.getvalue()
        # what kind each is takes longer to find out than to copy it
        self._tensors = [
            (t.detach(), isinstance(t, nn.Parameter), t.requires_grad)
            for t in pickler.apart[len(kept) :]
        ]

    def copy(self, *kept: object) -> ModuleT:
        """A copy.

        Args:
            kept: What it holds in place of those that the original held.
        """
        copied: ModuleT = _Unpickler(
            io.BytesIO(self._pickle), [*kept, *starmap(_copy, self._tensors)]
        ).load()
        return copied


class _Pickler(pickle.Pickler):
    """Leaves out tensors, and some other objects."""

    def __init__(self, file: Any, kept: Sequence[object]) -> None:
        super().__init__(file)
        self.apart: list[Any] = list(kept)
        self._place = {id(thing): i for i, thing in enumerate(kept)}

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, Tensor) and id(obj) not in self._place:
            self._place[id(obj)] = len(self.apart)
            self.apart.append(obj)
        return self._place.get(id(obj))


class _Unpickler(pickle.Unpickler):
    """Puts them back."""

    def __init__(self, file: Any, apart: Sequence[Any]) -> None:
        super().__init__(file)
        self._apart = apart

    def persistent_load(self, pid: int) -> Any:
        return self._apart[pid]


def _copy(tensor: Tensor, parameter: bool, requires_grad: bool) -> Tensor:
    copied = tensor.clone()
    return nn.Parameter(copied, requires_grad) if parameter else copied
