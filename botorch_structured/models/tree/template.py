"""Modules that are the same in one model after the other, made once and then copied.

A loop makes a model of the same tree in each iteration. To make its modules takes four
times as long as to copy them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


class Template:
    """New modules, of which copies are wanted; the copies have tensors of their own.

    Args:
        modules: They can be pickled.
        shared: Objects that they hold and of which no copies are made.
    """

    def __init__(self, modules: nn.Module, shared: Sequence[object]) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file, shared)
        pickler.dump(modules)
        self._bytes = file.getvalue()
        self._tensors: list[Tensor] = pickler.apart[len(shared) :]

    def copy(self, shared: Sequence[object]) -> Any:
        """A copy.

        Args:
            shared: Equal to those that the original holds.
        """
        unpickler = _Unpickler(io.BytesIO(self._bytes))
        unpickler.apart = [*shared, *[_copy(tensor) for tensor in self._tensors]]
        return unpickler.load()


class _Pickler(pickle.Pickler):
    """Leaves out tensors and shared objects."""

    def __init__(self, file: Any, shared: Sequence[object]) -> None:
        super().__init__(file)
        self.apart: list[Any] = list(shared)
        self._place = {id(thing): i for i, thing in enumerate(shared)}

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, Tensor) and id(obj) not in self._place:
            self._place[id(obj)] = len(self.apart)
            self.apart.append(obj)
        return self._place.get(id(obj))


class _Unpickler(pickle.Unpickler):
    """Puts them back."""

    apart: list[Any]

    def persistent_load(self, pid: int) -> Any:
        return self.apart[pid]


def _copy(tensor: Tensor) -> Tensor:
    copied = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copied, tensor.requires_grad)
    return copied
