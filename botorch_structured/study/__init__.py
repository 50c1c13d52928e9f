"""Ask for configurations, tell what they were worth: `Study`."""

from __future__ import annotations

__all__ = ["Study", "Trial"]

from botorch_structured.study.study import Study
from botorch_structured.study.trials import Trial
