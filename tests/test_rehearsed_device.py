"""The rehearsal itself computes, refuses what CUDA refuses, and misses no wait."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
import torch
from rehearsed_device import MixedDevices, RehearsedDevice, summary
from torch import Tensor, nn


class Inputs(NamedTuple):
    """Tensors of the device."""

    ones: Tensor
    mask: Tensor
    eye: Tensor


Act = Callable[[Inputs], Any]


@pytest.fixture
def device() -> Iterator[RehearsedDevice]:
    with RehearsedDevice() as device:
        yield device


@pytest.fixture
def x(device: RehearsedDevice) -> Inputs:
    ones = torch.ones(3, device="meta", dtype=torch.long)
    return Inputs(ones, ones.cumsum(0) > 1, torch.eye(2, device="meta"))


def same(got: Tensor, expected: Tensor) -> bool:
    assert got.device.type == "meta"
    return torch.equal(got.cpu(), expected)


def test_it_computes(device: RehearsedDevice) -> None:
    X = torch.rand(4, 3)
    gram = X.to("meta") @ X.to("meta").mT + torch.eye(4, device="meta")
    expected = X @ X.mT + torch.eye(4)
    assert same(gram, expected)
    factor, info = torch.linalg.cholesky_ex(gram)
    assert not info.any() and same(factor, torch.linalg.cholesky(expected))
    assert same(torch.tensor([1.0, 2.0], device="meta"), torch.tensor([1.0, 2.0]))
    assert same(gram[..., [2, 0]], expected[..., [2, 0]])
    for values in (gram, expected):
        values[..., [2, 0]] = 3.0
        values[0] += 1.0
    assert same(gram, expected) and gram.tolist() == expected.tolist()


def test_a_module_moves_there_and_back(device: RehearsedDevice) -> None:
    module, X = nn.Linear(2, 1), torch.rand(3, 2)
    expected = module(X)
    module.to("meta")
    module(X.to("meta")).sum().backward()
    assert same(module(X.to("meta")).detach(), expected.detach())
    assert same(module.weight.grad[0], X.sum(0))
    step = torch.optim.LBFGS(module.parameters(), max_iter=2)
    step.step(lambda: (module(X.to("meta")) ** 2).sum())  # as any optimiser of torch
    other = deepcopy(module)
    other.weight.data = torch.zeros(1, 2, device="meta")
    assert not other.weight.any() and module.weight.any()
    assert module.double().weight.dtype == torch.float64
    assert module.to("cpu").weight.device.type == "cpu"


READS: dict[str, Act] = {
    "item": lambda x: x.ones[0].item(),
    "if any": lambda x: 1 if x.mask.any() else 0,
    "equal": lambda x: torch.equal(x.ones, x.ones),
    "cpu": lambda x: x.ones.cpu(),
    "nonzero": lambda x: x.mask.nonzero(),
    "tensor of numbers": lambda x: torch.tensor([x.ones[0], 2]),
    "mask as an index": lambda x: x.ones[x.mask],
    "tensor under a mask": lambda x: x.ones.__setitem__(x.mask, x.eye[0].long()),
    "repeats": lambda x: x.ones.repeat_interleave(x.ones),
    "errors of a factorisation": lambda x: torch.linalg.cholesky(x.eye),
}
COPIES: dict[str, Act] = {
    "tensor": lambda x: torch.tensor([1, 2], device="meta"),
    "new_tensor": lambda x: x.ones.new_tensor([1, 2]),
    "to": lambda x: torch.ones(2).to("meta"),
    "list as an index": lambda x: x.ones[[0, 1]],
    "index on the CPU": lambda x: x.ones[torch.tensor([0, 1])],
    "number at indices": lambda x: x.eye.__setitem__(x.ones[:1], 2),
    "number on the CPU": lambda x: torch.where(x.mask, x.ones, torch.tensor(1)),
}
FREE: dict[str, Act] = {
    "arithmetic": lambda x: (2.0 * x.ones + torch.tensor(1.0)).exp(),
    "slices": lambda x: x.eye[..., 1:].__setitem__((..., 0), 2),
    "indices": lambda x: x.ones[x.ones],
    "number under a mask": lambda x: x.ones.__setitem__(x.mask, 2),
    "masked_fill": lambda x: x.ones.masked_fill(x.mask, 0.0),
    "a known sum": lambda x: x.ones.repeat_interleave(x.ones, output_size=3),
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(x.eye),
    "same device": lambda x: x.ones.to(x.eye).to(torch.float64),
}
MIXED: dict[str, Act] = {
    "product": lambda x: x.eye @ torch.eye(2),
    "stack of numbers": lambda x: torch.stack([x.ones[0], torch.tensor(1)]),
    "index on the device": lambda x: torch.ones(3)[x.ones],
    "result": lambda x: torch.ones(3).add_(x.ones),
    "generator": lambda x: torch.rand(2, device="meta", generator=torch.Generator()),
}


@pytest.mark.parametrize(
    ("act", "kinds"),
    [
        pytest.param(act, kinds, id=name)
        for acts, kinds in ((READS, ["read"]), (COPIES, ["copy"]), (FREE, []))
        for name, act in acts.items()
    ],
)
def test_waits_are_recorded(
    device: RehearsedDevice, x: Inputs, act: Act, kinds: list[str]
) -> None:
    with device.counting() as waits:
        act(x)
    assert [wait.kind for wait in waits] == kinds, summary(waits)
    assert all("test_rehearsed_device.py" in wait.where for wait in waits)


@pytest.mark.parametrize("act", MIXED.values(), ids=MIXED)
def test_mixed_devices_raise(x: Inputs, act: Act) -> None:
    with pytest.raises(MixedDevices):
        act(x)


def test_tensors_end_with_their_context() -> None:
    with RehearsedDevice():
        X = torch.ones(2, device="meta")
    with pytest.raises(RuntimeError, match="within the context"):
        X + 1.0


def test_kernels_are_what_is_computed(device: RehearsedDevice) -> None:
    """Not views, allocations, or operations on no values or on the CPU."""
    x = torch.ones(4, 3, device="meta")
    with device.kernels() as started:
        y = (x.mT[1:] * 2.0).add_(1.0)
        torch.empty(3, device="meta"), x[:0] + 1.0, torch.ones(3) + 1.0
        y.sum().item()
    x.sum()
    operations = [line.split(": ")[1] for line in started]
    assert operations == ["mul", "add_", "sum", "_local_scalar_dense"]
    assert all("test_rehearsed_device.py" in line for line in started)
