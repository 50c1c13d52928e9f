"""How numbers are compared with those of other software."""

from typing import Any

import torch
from torch import Tensor


def close(found: Tensor, expected: Any, tolerance: float) -> None:
    """Within a tolerance, relative or absolute."""
    expected = torch.as_tensor(expected, dtype=found.dtype)
    torch.testing.assert_close(found.detach(), expected, rtol=tolerance, atol=tolerance)


def slopes(value: Tensor, of: dict[Tensor, Tensor]) -> list[Tensor]:
    """With respect to logarithms, d/d log v = v d/dv, of raw parameters and values."""
    found = []
    for (raw, v), slope in zip(
        of.items(), torch.autograd.grad(value, list(of)), strict=True
    ):
        (by_raw,) = torch.autograd.grad(v.sum(), raw)
        found.append((slope / by_raw * v).flatten())
    return found
