"""The demonstration behind ``python -m botorch_structured``.

`Comparison` has a study by a model and one at random, `Settings` are its
options, and `report` turns both into tables, code and a picture.
"""

from __future__ import annotations

__all__ = ["Comparison", "Settings"]

from botorch_structured.demo.comparison import Comparison
from botorch_structured.demo.settings import Settings
