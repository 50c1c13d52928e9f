"""MAP fits of models whose noise may be as small as rounding errors allow."""

from __future__ import annotations

__all__ = ["ToleranceOfRounding"]

from typing import TYPE_CHECKING, Any
from warnings import WarningMessage

from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import DEFAULT_WARNING_HANDLER, _fit_fallback
from gpytorch.mlls import MarginalLogLikelihood

# The objective is per data point: finer steps than these change no prediction.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-4, "maxiter": 200}

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models import SingleTaskGP

    from botorch_structured.spaces import ParameterTree

    class _Base(SingleTaskGP):
        tree: ParameterTree
else:
    _Base = object


def _accept_rounding(warning: WarningMessage) -> bool:
    """BoTorch's own policy, but a line search that stops at rounding is no failure.

    At a noise of 1e-9 the evidence is known to eight digits or so; L-BFGS-B then ends
    with "ABNORMAL" where it cannot descend further, and a retry from random
    hyperparameters would throw the fit away.
    """
    if issubclass(warning.category, OptimizationWarning) and "ABNORMAL" in str(
        warning.message
    ):
        return True
    return DEFAULT_WARNING_HANDLER(warning)


class ToleranceOfRounding(_Base):
    """BoTorch's fit with tolerances and a warning policy for a small noise."""

    def custom_fit(
        self, mll: MarginalLogLikelihood, **kwargs: Any
    ) -> MarginalLogLikelihood:
        r"""Fit by L-BFGS-B, retries included.

        ``fit_gpytorch_mll`` calls this; every argument of it is honoured. Not for
        direct use.
        """
        return self._fit_map(mll, **kwargs)

    def _fit_map(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        batched = self._aug_batch_shape.numel() > 1  # BoTorch's batched L-BFGS-B
        if not self.tree.decision_columns:  # exactly a SingleTaskGP, its fit included
            return _fit_fallback(
                mll,
                closure=closure,
                closure_kwargs=closure_kwargs,
                optimizer_kwargs=optimizer_kwargs,
                **kwargs,
            )
        if closure is None and "optimizer" not in kwargs and not batched:
            options = dict((optimizer_kwargs or {}).get("options") or {})
            optimizer_kwargs = {
                **(optimizer_kwargs or {}),
                "options": {**_FIT_OPTIONS, **options},
            }
        kwargs.setdefault("warning_handler", _accept_rounding)
        return _fit_fallback(
            mll,
            closure=closure,
            closure_kwargs=closure_kwargs,
            optimizer_kwargs=optimizer_kwargs,
            **kwargs,
        )
