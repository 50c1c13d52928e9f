"""Problems to compare methods on, as BoTorch test functions. All are minimised.

On conditional spaces:

- `JenattonTree`: synthetic, known optimum, cheap; for comparing methods.
- `ScikitLearnCASH`: choosing and tuning a classifier on real data.

Flat here, violent there:

- `RKHS1D`, `GramacyExponential2D`: synthetic, known optimum.
- `TableProblem`: anything that was measured or computed before, conditional or not.
  `online_lda`, `structured_svm`, `clark_copper` and `walker_lake` read published ones.
"""

from __future__ import annotations

__all__ = [
    "Evaluation",
    "GramacyExponential2D",
    "JenattonTree",
    "RKHS1D",
    "ScikitLearnCASH",
    "TableProblem",
    "clark_copper",
    "online_lda",
    "structured_svm",
    "walker_lake",
]

from botorch_structured.test_functions.cash import Evaluation, ScikitLearnCASH
from botorch_structured.test_functions.jenatton_tree import JenattonTree
from botorch_structured.test_functions.published_tables import (
    clark_copper,
    online_lda,
    structured_svm,
    walker_lake,
)
from botorch_structured.test_functions.table import TableProblem
from botorch_structured.test_functions.treed import RKHS1D, GramacyExponential2D
