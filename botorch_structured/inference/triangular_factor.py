"""The triangular factor of tall matrices, by what the device is good at."""

from __future__ import annotations

__all__ = ["cholesky_qr", "triangular_factor"]

import torch
from torch import Tensor

# Cholesky QR, taken twice, is as accurate as reflections while the condition number
# squared can be represented; this is far from where it cannot.
_MIN_PIVOT = 1e-5


def triangular_factor(data: Tensor) -> Tensor:
    """R of a QR factorisation, with ``R' R = data' data``.

    Reflections (LAPACK) on a CPU. On a GPU these are slow, a column after the other,
    and matrix products fast: Cholesky QR, unless the columns are nearly dependent.

    Args:
        data: ``m x n`` with m at least n.

    Returns:
        Upper triangular, ``n x n``; signs of rows are arbitrary.
    """
    factor = None if data.device.type == "cpu" else cholesky_qr(data)
    return torch.linalg.qr(data, mode="r").R if factor is None else factor


def cholesky_qr(data: Tensor) -> Tensor | None:
    """The triangular factor by two Cholesky factorisations.

    The first one alone would lose half the digits; what it makes of the data is nearly
    orthonormal, and the second corrects it (Yamamoto et al. 2015, CholeskyQR2).

    Args:
        data: ``m x n`` with m at least n.

    Returns:
        Upper triangular, ``n x n``; None where columns are so nearly dependent that
        this would be less accurate than reflections.
    """
    norms = torch.linalg.vector_norm(data, dim=0)
    unit = data / norms
    first, failed = torch.linalg.cholesky_ex(unit.mT @ unit)
    # also where a column is zero or not finite, which makes this not a number
    if not bool((failed == 0) & (first.diagonal().min() > _MIN_PIVOT)):
        return None
    basis = torch.linalg.solve_triangular(first.mT, unit, upper=True, left=False)
    second = torch.linalg.cholesky(basis.mT @ basis)
    return (first @ second).mT * norms
