"""Moved to ``fast_inference``."""

from __future__ import annotations

__all__ = ["check_noise", "check_own_objective", "noise_at", "noise_is_known"]

from botorch_structured.models.fast_inference import (
    check_noise,
    check_own_objective,
    noise_at,
    noise_is_known,
)
