"""Cholesky factors with jitter where there is none without, and conditioning.

Torch's ``psd_safe_cholesky`` takes ten times as long as LAPACK for matrices of a few
rows, which a fit factorises some hundred times. A CUDA graph cannot wait for the flags
of LAPACK: whoever replays it reads them (``unread_flags``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from linear_operator import settings
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from scipy.linalg import lapack
from torch import Tensor

Array = NDArray[np.float64]

# Many matrices of up to this size are factorised by one call of NumPy, in a third of
# the time of LAPACK one by one; of 16 rows on that takes longer.
_SMALL = 8
_UNREAD: ContextVar[list[Tensor] | None] = ContextVar("unread_flags", default=None)


@contextmanager
def unread_flags() -> Iterator[list[Tensor]]:
    """Within it ``failed`` reads no flags, and says that nothing has failed.

    Yields:
        The flags that it was given meanwhile; the result is wrong unless all are zero.
    """
    flags: list[Tensor] = []
    token = _UNREAD.set(flags)
    try:
        yield flags
    finally:
        _UNREAD.reset(token)


def failed(flags: Sequence[Tensor]) -> bool:
    """Whether a factorisation failed; a device is waited for once for all of them.

    Args:
        flags: The second outputs of ``torch.linalg.cholesky_ex``.
    """
    all_flags = torch.cat([flag.reshape(-1) for flag in flags])
    unread = _UNREAD.get()
    if unread is None:
        return bool(all_flags.any())
    unread.append(all_flags)
    return False


def cholesky(
    covariance: Array,
    jitters: Sequence[float] | None = None,
    lower: bool = True,
) -> Array:
    """The factor L of A = L L', in the order of Fortran; NaN where A has NaN.

    Args:
        covariance: A, ``N x N``; it is not changed.
        jitters: Numbers that are added to the diagonal, one after the other, until
            there is a factor. Default: those of ``psd_safe_cholesky``.
        lower: L; else L'.

    Raises:
        NotPSDError: If there is none with the last one either.
    """
    # LAPACK reads by columns: of a symmetric array the transpose needs no copy
    factor, info = lapack.dpotrf(covariance.T, lower=lower, clean=1)
    if info == 0:
        return factor
    if np.isnan(covariance).any():
        return np.full_like(covariance, math.nan)
    if jitters is None:
        least = settings.cholesky_jitter.value(torch.float64)
        jitters = [least * 10.0**i for i in range(settings.cholesky_max_tries.value())]
    for jitter in jitters:
        shifted = covariance.copy()
        shifted.flat[:: len(covariance) + 1] += jitter
        factor, info = lapack.dpotrf(
            shifted.T,
            lower=lower,
            clean=1,
            overwrite_a=1,
        )
        if info == 0:
            return factor
    raise NotPSDError(
        "covariance: expected a positive definite matrix, got one that is not, even "
        f"with {jitters[-1]:.1e} added to its diagonal."
    )


def inverse_factors(covariance: Array) -> tuple[Array, float]:
    """L^-1 of each A = L L', ``B x N x N``, and the sum of log |A|.

    Args:
        covariance: A, ``B x N x N``.

    Raises:
        NotPSDError: If one of them has no factor even with jitter.
    """
    size = covariance.shape[-1]
    if size <= _SMALL and len(covariance) > 1:
        try:
            factors = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            pass  # one of them needs jitter
        else:
            diagonal = factors.reshape(len(factors), -1)[:, :: size + 1]
            total = 2.0 * float(np.add.reduce(np.log(diagonal), None))
            return np.linalg.inv(factors), total
    inverse = np.empty_like(covariance)
    total = 0.0
    for one, out in zip(covariance, inverse, strict=True):
        factor = cholesky(one, lower=False)  # the transpose of its inverse is in rows
        total += 2.0 * float(np.add.reduce(np.log(factor.diagonal())))
        out[:] = lapack.dtrtri(factor, lower=0, overwrite_c=1)[0].T
    return inverse, total


def given_last(
    mean: Tensor,
    covariance: Tensor,
    noise: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """A joint Gaussian given noisy observations of its last points.

    With (m, C) those of all points, f the last ones and s the noise variances,

        S = C_ff + diag(s),   m_x + C_xf S^-1 (y - m_f),   C_xx - C_xf S^-1 C_fx.

    Batch shapes broadcast: outcomes of many fantasies share S.

    Args:
        mean: ``batch_shape x (q + f)``.
        covariance: ``batch_shape x (q + f) x (q + f)``.
        noise: Noise variances of the observations, broadcastable to ``targets``.
        targets: The observations, ``batch_shape x f``.

    Raises:
        NotPSDError: If the covariance of the outcomes is not positive definite even
            with jitter.
    """
    q = mean.shape[-1] - targets.shape[-1]
    noise = noise.expand(*noise.shape[:-1], targets.shape[-1])
    root = psd_safe_cholesky(covariance[..., q:, q:] + torch.diag_embed(noise))
    gain = torch.linalg.solve_triangular(
        root,
        covariance[..., q:, :q],
        upper=False,
    )
    residual = (targets - mean[..., q:]).unsqueeze(-1)
    residual = torch.linalg.solve_triangular(root, residual, upper=False)
    mean = mean[..., :q] + (gain.mT @ residual).squeeze(-1)
    return mean, covariance[..., :q, :q] - gain.mT @ gain
