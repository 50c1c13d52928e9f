"""One thread at a time: torch's seed is everybody's, and so is the end of a log."""

from __future__ import annotations

__all__ = ["one_at_a_time"]

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_LOCK = threading.RLock()


def one_at_a_time(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """The method, in one thread at a time, whatever object it is called of."""

    @wraps(method)
    def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _LOCK:
            return method(*args, **kwargs)

    return locked
