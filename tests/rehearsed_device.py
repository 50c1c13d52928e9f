"""A GPU rehearsed on a machine without one: it computes, and says where it would wait.

Under ``RehearsedDevice`` tensors on torch's ``meta`` device have values, which the CPU
computes. In all else they are treated as tensors of a GPU are:

* an operation on tensors of both devices raises ``MixedDevices``, except for numbers
  (tensors of the CPU without dimensions) and indices, where CUDA takes them;
* each place where the host waits for a GPU is recorded as a ``Wait``: values that are
  read (``item``, ``bool(tensor)``, ``tolist``, ``cpu``), shapes that depend on values
  (``nonzero``, ``unique``, masks as indices), and copies from the host, which CUDA
  makes with a synchronisation too (``torch.tensor(..., device=...)``, lists as indices,
  indices on the CPU);
* ``tensor.device.type`` is not "cpu", so that code takes the branch of a GPU;
* ``kernels()`` has the operations that a GPU is started for, one by one: all but views
  and allocations. That takes longer than the arithmetic of small data.

Tensors of the device can be used within the context only.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_DEVICE = torch.device("meta")
_CPU = torch.device("cpu")
_PACKAGE = "botorch_structured"

aten = torch.ops.aten

#: Operations after which CUDA's host waits, whatever their arguments are.
_READS = {
    aten._linalg_check_errors,
    aten._linalg_eigh,
    aten._linalg_svd,
    aten._local_scalar_dense,  # item, bool, int, float
    aten._unique2,
    aten.allclose,
    aten.bincount,
    aten.equal,
    aten.linalg_eig,
    aten.linalg_lstsq,
    aten.masked_select,
    aten.nonzero,
    aten.unique_consecutive,
    aten.unique_dim,
}
#: Operations that start nothing on a GPU, besides views.
_STILL = {
    aten._unsafe_view,
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
}
#: Operations from one device to another.
_MOVES = {aten._to_copy, aten.copy_}
#: Operations with masks or indices, which are copied if they are on the CPU.
_INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
#: Operations that copy a number from the CPU.
_COPY_NUMBERS = {aten.where, *_INDEX}
#: Operations besides the pointwise ones that take a number from the CPU without a copy.
_TAKE_NUMBERS = {aten.fill, aten.fill_, aten.masked_fill, aten.masked_fill_}


class Wait(NamedTuple):
    """A place where the host waits: for a "read", or a "copy" to the device.

    ``where`` is the innermost line of the package, or else of whoever calls torch.
    """

    kind: str
    operation: str
    numel: int
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind} by {self.operation}"


def summary(waits: Sequence[Wait]) -> str:
    """The places, one in a line, with the number of waits at each."""
    counts = Counter(map(str, waits)).most_common()
    return "\n".join(f"{count:4d}  {place}" for place, count in counts)


class MixedDevices(RuntimeError):
    """An operation on tensors of both devices."""


class RehearsedDevice:
    """A context in which ``meta`` is a device with values; see the module."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.started: list[str] | None = None
        self._modes = ExitStack()

    def __enter__(self) -> RehearsedDevice:
        self._modes.enter_context(_Functions())
        self._modes.enter_context(_Operations(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)

    @contextmanager
    def counting(self) -> Iterator[list[Wait]]:
        """The waits within an inner context."""
        before, self.waits = self.waits, []
        waits = self.waits
        try:
            yield waits
        finally:
            before += waits  # in place: the list of an outer context
            self.waits = before

    @contextmanager
    def kernels(self) -> Iterator[list[str]]:
        """The operations started within an inner context, with their places."""
        self.started = started = []
        try:
            yield started
        finally:
            self.started = None

    def start(self, func: Any) -> None:
        """Record an operation, if they are counted and it is one."""
        if self.started is None or func.overloadpacket in _STILL:
            return
        aliases = [value.alias_info for value in func._schema.returns]
        if all(alias is None or alias.is_write for alias in aliases):
            place = _place(sys._getframe(1))
            self.started.append(f"{place}: {func.overloadpacket.__name__}")

    def wait(self, kind: str, operation: Any, numel: int) -> None:
        """Record a wait."""
        where = _place(sys._getframe(1))
        self.waits.append(Wait(kind, operation.__name__, numel, where))


def _place(frame: FrameType | None) -> str:
    """The innermost line of the package, with that of a library it called."""
    library = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        line = f"{'/'.join(path.parts[-3:])}:{frame.f_lineno}"
        if _PACKAGE in path.parts:
            return f"{line} (in {library})" if library else line
        if "torch" not in path.parts and path.name != Path(__file__).name:
            library = library or line
        frame = frame.f_back
    return library


class _OnDevice(Tensor):
    """A tensor of the device; ``values``, on the CPU, are its values."""

    values: Tensor
    is_cuda = True  # asked by code that treats a GPU in another way
    is_meta = False  # a meta tensor has no values
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> _OnDevice:
        return Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=_DEVICE,
        )

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func}: expected a use within the context, got one after.")

    def __repr__(self, **kwargs: Any) -> str:
        return f"_OnDevice({self.values!r})"

    @property
    def data(self) -> Any:
        """As of any tensor; the setter takes the values along."""
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, other: Any) -> None:
        Tensor.data.__set__(self, other)
        self.values = other.values


# -- functions that treat ``meta`` in another way than a GPU -------------------------


class _Functions(TorchFunctionMode):
    """Functions that would lose values on ``meta``: through the CPU instead."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            if not isinstance(args[0], Tensor):
                args = (_read(args[0]), *args[1:])
                if kwargs.get("device") is not None:
                    device = torch.device(kwargs.pop("device"))
                    return func(*args, **kwargs).to(device)
        if not (args and isinstance(args[0], _OnDevice)):
            return func(*args, **kwargs)
        tensor, *rest = args
        if func is Tensor.tolist:
            return tensor.cpu().tolist()
        if func is Tensor.new_tensor:
            kwargs = {"dtype": tensor.dtype, **kwargs}
            return torch.tensor(*rest, **kwargs).to(_DEVICE)
        if func is Tensor.__getitem__:
            rest = [_copied(rest[0])]
        elif func is Tensor.__setitem__:
            index, value = rest
            if isinstance(value, (bool, int, float)):  # stays on the CPU with CUDA
                value = torch.tensor(value, dtype=tensor.dtype)
            rest = [_copied(index), value]
        return func(tensor, *rest, **kwargs)


def _read(data: Any) -> Any:
    """Numbers for a new tensor; those of the device are read one by one."""
    if isinstance(data, (list, tuple)):
        return [_read(part) for part in data]
    return data.cpu().tolist() if isinstance(data, _OnDevice) else data


def _copied(index: Any) -> Any:
    """An index whose lists and arrays are copied to the device, as CUDA does."""
    if isinstance(index, tuple):
        return tuple(_copied(part) for part in index)
    if isinstance(index, (list, range, np.ndarray)):
        array = np.asarray(index, dtype=None if len(index) else np.int64)
        return torch.tensor(array).to(_DEVICE)
    return index


# -- operations ----------------------------------------------------------------------


class _Operations(TorchDispatchMode):
    """Operations on the device, computed with the values on the CPU."""

    def __init__(self, device: RehearsedDevice) -> None:
        super().__init__()
        self.rehearsed = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operation = func.overloadpacket
        tensors = list(_tensors((*args, *kwargs.values())))
        here = [t for t in tensors if isinstance(t, _OnDevice)]
        target = kwargs.get("device")
        if not here and target != _DEVICE:
            return func(*args, **kwargs)
        if operation is aten.copy_:
            target = args[0].device
        on_device = target == _DEVICE if target is not None else bool(here)
        if operation in _MOVES:
            source = tensors[-1]
            if on_device != isinstance(source, _OnDevice):
                if not (on_device and kwargs.get("non_blocking")):
                    kind = "copy" if on_device else "read"
                    self.rehearsed.wait(kind, operation, source.numel())
        else:
            self._check(func, args, kwargs, tensors)
            if here and _reads(operation, args, kwargs):
                self.rehearsed.wait("read", operation, tensors[0].numel())
        out = func(*_inner(args), **_inner(kwargs))
        found = [value.numel() for value in _tensors(out)]
        if any(found) or not found:  # of tensors without values nothing starts
            self.rehearsed.start(func)
        written = [a for a in _written(func, args, kwargs) if isinstance(a, Tensor)]
        if written:
            if torch.Tag.inplace_view in func.tags:  # another shape
                with no_dispatch():
                    func(*args, **kwargs)
            return written[0] if len(written) == 1 else tuple(written)
        return tree_map_only(Tensor, _OnDevice, out) if on_device else out

    def _check(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        """Raise for tensors of the CPU where CUDA does; record those that it copies."""
        operation = func.overloadpacket
        if any(isinstance(value, torch.Generator) for value in kwargs.values()):
            raise MixedDevices(f"{func}: got a generator of the CPU.")
        others = [t for t in tensors if not isinstance(t, _OnDevice)]
        if len(others) == len(tensors):
            return
        if operation in _INDEX and isinstance(args[0], _OnDevice):
            for index in _tensors(args[1]):
                if not isinstance(index, _OnDevice):
                    self.rehearsed.wait("copy", operation, index.numel())
            others = [t for t in others if t is args[-1] or t is kwargs.get("values")]
        numbers = all(t.dim() == 0 for t in others)
        if others and numbers and operation in _COPY_NUMBERS:
            if not _fills_mask(operation, args):
                self.rehearsed.wait("copy", operation, len(others))
        elif others and not (
            numbers and (torch.Tag.pointwise in func.tags or operation in _TAKE_NUMBERS)
        ):
            got = [f"{tuple(t.shape)} on {t.device}" for t in tensors]
            raise MixedDevices(f"{func}: expected one device, got {', '.join(got)}.")


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _inner(value: Any) -> Any:
    """The same arguments for the CPU."""
    if isinstance(value, _OnDevice):
        return value.values
    if isinstance(value, torch.device):
        return _CPU if value == _DEVICE else value
    if isinstance(value, dict):
        return {name: _inner(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_inner(part) for part in value)
    return value


def _fills_mask(operation: Any, args: Any) -> bool:
    """Whether this is ``x[mask] = number``, which needs no indices."""
    if operation is aten.where:
        return False
    indices = list(_tensors(args[1]))
    number = not isinstance(args[2], _OnDevice)
    return number and len(indices) == 1 and indices[0].dtype == torch.bool


def _reads(operation: Any, args: Any, kwargs: Any) -> bool:
    """Whether the host waits for values."""
    if operation in _INDEX:
        masks = [t for t in _tensors(args[1]) if t.dtype in (torch.bool, torch.uint8)]
        fills = operation is not aten.index and _fills_mask(operation, args)
        return bool(masks) and not fills
    if operation is aten.repeat_interleave:
        return isinstance(args[-1], Tensor) and kwargs.get("output_size") is None
    return operation in _READS


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments into which an operation writes, and which it returns."""
    return [
        kwargs[argument.name] if i >= len(args) else args[i]
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
