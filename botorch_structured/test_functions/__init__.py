"""Problems on conditional spaces, as BoTorch test functions.

- `JenattonTree`: synthetic, known optimum, cheap; for comparing methods.
- `ScikitLearnCASH`: choosing and tuning a classifier on real data.
"""

from __future__ import annotations

__all__ = ["Evaluation", "JenattonTree", "ScikitLearnCASH"]

from botorch_structured.test_functions.cash import Evaluation, ScikitLearnCASH
from botorch_structured.test_functions.jenatton_tree import JenattonTree
