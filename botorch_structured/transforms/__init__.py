"""Transforms of outcomes with a few very bad values, and of inactive inputs."""

from __future__ import annotations

__all__ = ["ClipTail", "Impute"]

from botorch_structured.transforms.clip_tail import ClipTail
from botorch_structured.transforms.impute import Impute
