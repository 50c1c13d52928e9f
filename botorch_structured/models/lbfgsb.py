"""L-BFGS-B as in SciPy, without what its general interface does at each evaluation.

For a function that takes a tenth of a millisecond the interface takes more than a tenth
of the time of a fit. The iterations are SciPy's own, so points are equal to the bit.
"""

from __future__ import annotations

__all__ = ["minimize_lbfgsb"]

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import optimize

try:
    from botorch_structured._botorch_names import (
        lbfgsb,
        lbfgsb_states,
        lbfgsb_tasks,
    )
except ImportError:  # another version of SciPy
    lbfgsb = lbfgsb_states = lbfgsb_tasks = None

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array]]

# SciPy's defaults; with other options its own interface is used.
_OPTIONS: dict[str, Any] = {
    "maxcor": 10,
    "ftol": 1e7 * float(np.finfo(float).eps),
    "gtol": 1e-5,
    "maxfun": 15000,
    "maxiter": 15000,
}
_MAX_STEPS = 20  # of a line search
# The first and the last version of SciPy whose solver was tried.
_TRIED = (1, 15), (1, 17)
# What the solver says by the first number of its task.
_NEW_ITERATE, _EVALUATE, _CONVERGED, _STOP = 1, 3, 4, 5
_MAX_EVALUATIONS, _MAX_ITERATIONS = 502, 504


def minimize_lbfgsb(
    function: Function,
    x: Array,
    bounds: Array,
    options: Mapping[str, Any] | None = None,
) -> optimize.OptimizeResult:
    """``scipy.optimize.minimize(..., jac=True, method="L-BFGS-B")``.

    Args:
        function: Value and gradient of a point, which it neither changes nor keeps; the
            gradient has to be a new array at each call.
        x: Start, ``k``.
        bounds: ``k x 2``, infinite where there are none.
        options: See SciPy.

    Returns:
        ``x``, ``fun``, ``nit``, ``nfev``, ``success`` and ``message``.

    Raises:
        ValueError: The gradient has not ``k`` numbers.
    """
    known = _OPTIONS.keys() >= (options or {}).keys()
    if not (known and (bounds[:, 0] < bounds[:, 1]).all() and _is_known()):
        return _by_scipy(function, x, bounds, options)
    return _iterate(function, x, bounds, **{**_OPTIONS, **(options or {})})


def _iterate(
    function: Function,
    x: Array,
    bounds: Array,
    maxcor: int,
    ftol: float,
    gtol: float,
    maxfun: int,
    maxiter: int,
) -> optimize.OptimizeResult:
    """The solver's loop, as in SciPy."""
    k, m = len(x), maxcor
    x = np.clip(x, bounds[:, 0], bounds[:, 1])
    finite = np.isfinite(bounds)
    # 0 for no bounds, 1 and 3 for a lower or an upper one, 2 for both
    kind = np.array([[0, 3], [1, 2]], dtype=np.int32)[tuple(finite.T.astype(int))]
    lower, upper = np.where(finite, bounds, 0.0).T.copy()
    f: Any = np.array(0.0)
    g: Array = np.zeros(k)
    memory = np.zeros(2 * m * k + 5 * k + 11 * m * m + 8 * m)
    task, line_task = np.zeros((2, 2), dtype=np.int32)
    sizes = 3 * k, 4, 44
    places, flags, counts = (np.zeros(size, dtype=np.int32) for size in sizes)
    numbers = np.zeros(29)
    tolerances = ftol / np.finfo(float).eps, gtol
    work = (memory, places, task, flags, counts, numbers, _MAX_STEPS, line_task)
    iterations = evaluations = 0
    last = b""
    while True:
        lbfgsb.setulb(m, x, lower, upper, kind, f, g, *tolerances, *work)
        if task[0] == _EVALUATE:
            # as in SciPy, to which a point with NaN is never the last one
            if (name := x.tobytes()) != last or np.isnan(x).any():
                f, found = function(x)
                g = np.ascontiguousarray(found, dtype=float)
                if g.shape != (k,):  # the solver does not look
                    raise ValueError(f"function: expected {k} slopes, got {g.shape}.")
                last = name
                evaluations += 1
        elif task[0] == _NEW_ITERATE:
            iterations += 1
            if iterations >= maxiter:
                task[:] = _STOP, _MAX_ITERATIONS
            elif evaluations > maxfun:
                task[:] = _STOP, _MAX_EVALUATIONS
        else:
            break
    state, reason = task.tolist()
    return optimize.OptimizeResult(
        x=x,
        fun=f,
        nit=iterations,
        nfev=evaluations,
        success=state == _CONVERGED,
        message=f"{lbfgsb_states[state]}: {lbfgsb_tasks[reason]}",
    )


def _by_scipy(
    function: Function, x: Array, bounds: Array, options: Mapping[str, Any] | None
) -> optimize.OptimizeResult:
    return optimize.minimize(
        function, x, jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )


@cache
def _is_known() -> bool:
    """Whether this version of SciPy has the solver as it is called here.

    The solver does not check the sizes of what it works on: it is called only in
    versions with which it was tried.
    """
    if not _TRIED[0] <= tuple(map(int, scipy.__version__.split(".")[:2])) <= _TRIED[1]:
        return False

    def slope(x: Array) -> tuple[float, Array]:
        return float(np.sum(x**4 - x)), 4.0 * x**3 - 1.0

    x, bounds = np.array([2.0, -1.0]), np.array([[0.8, np.inf], [-np.inf, np.inf]])
    try:
        found = _iterate(slope, x, bounds, **_OPTIONS)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    same = _by_scipy(slope, x, bounds, None)
    return bool((found.x == same.x).all() and found.nfev == same.nfev)
