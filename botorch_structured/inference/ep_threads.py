"""One thread for factorisations so small that sharing them out costs more."""

from __future__ import annotations

__all__ = ["one_blas_thread"]

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

_ROWS_FOR_ONE_THREAD = 1000


@cache
def _controller() -> ThreadpoolController:
    # finding the libraries takes milliseconds, as long as what is to be sped up
    return ThreadpoolController()


@contextmanager
def one_blas_thread(rows: int) -> Iterator[None]:
    """Like ``surroundings.few_threads``, for calls of a few milliseconds each.

    Args:
        rows: Of the matrices.
    """
    if rows > _ROWS_FOR_ONE_THREAD:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
