"""Models and their fits, as methods, rows of speed and peers make them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor


def objective(model: Any) -> ExactMarginalLogLikelihood:
    """The objective that a fit maximises."""
    return ExactMarginalLogLikelihood(model.likelihood, model)


def fitted(model: Any, **options: Any) -> Any:
    """The model after its fit.

    Args:
        model: A model with a likelihood.
        **options: Of ``fit_gpytorch_mll``.
    """
    fit_gpytorch_mll(objective(model), **options)
    return model


def finite(Y: Tensor) -> Tensor:
    """``n x 1`` outcomes, the worst known one in the place of failures.

    Larger is better. Failures are NaN or infinite; 0 stands for all of them if nothing
    else is known.
    """
    good = Y.isfinite()
    worst = Y[good].min() if good.any() else Y.new_zeros(())
    return torch.where(good, Y, worst)


def cpu_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Median CPU time of some calls, after one that fills caches."""
    call()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)
