"""Transforms: outcomes with a bad tail, inputs that do not exist."""

from __future__ import annotations

__all__ = ["ClipTail", "Impute"]

from botorch_structured.transforms.clip_tail import ClipTail
from botorch_structured.transforms.impute import Impute
