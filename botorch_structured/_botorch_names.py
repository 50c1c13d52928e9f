"""Every private name of other libraries that this package relies on.

Private names are imported here and nowhere else. Those of fits are imported when they
are asked for: ``botorch.fit`` and its imports take some 50 ms, which importing a
model does not need. ``tests/test_botorch_names.py`` lists the private attributes and
methods that are read or overridden, too. It looks for each name, and says which one is
missing when one of these libraries has changed.
"""

from __future__ import annotations

__all__ = [
    "BatchNorm",
    "DefaultType",
    "DropoutNd",
    "GaussianLikelihoodBase",
    "ei_helper",
    "fit_fallback",
    "functorch_is_active",
    "lbfgsb",
    "log_ei_helper",
    "scaled_improvement",
]

import importlib
from typing import TYPE_CHECKING, Any

from botorch.acquisition.analytic import _ei_helper as ei_helper
from botorch.acquisition.analytic import _log_ei_helper as log_ei_helper
from botorch.acquisition.analytic import _scaled_improvement as scaled_improvement
from botorch.utils.types import _DefaultType as DefaultType
from gpytorch.likelihoods.gaussian_likelihood import (
    _GaussianLikelihoodBase as GaussianLikelihoodBase,
)
from torch._C import _are_functorch_transforms_active as functorch_is_active
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.dropout import _DropoutNd as DropoutNd

if TYPE_CHECKING:
    fit_fallback: Any
    lbfgsb: Any


def __getattr__(name: str) -> Any:
    if name == "lbfgsb":
        return importlib.import_module("botorch.optim.batched_lbfgs_b")._lbfgsb
    if name == "fit_fallback":
        return importlib.import_module("botorch.fit")._fit_fallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
