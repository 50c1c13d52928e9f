"""`StructuredSampler`: this package's search in Optuna's studies."""

from __future__ import annotations

__all__ = ["StructuredSampler"]

try:
    import optuna as _optuna  # noqa: F401
except ImportError as error:
    raise ImportError(
        "botorch_structured.integrations.optuna needs Optuna: "
        "pip install 'botorch-structured[optuna]'."
    ) from error

from botorch_structured.integrations.optuna.sampler import StructuredSampler
