"""Outcome transforms."""

from __future__ import annotations

__all__ = ["ClipTail"]

from botorch_structured.transforms.clip_tail import ClipTail
