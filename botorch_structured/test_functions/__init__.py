"""Problems to compare methods on, as BoTorch test functions. All are minimised.

On conditional spaces:

- `JenattonTree`: synthetic, known optimum, cheap; for comparing methods.
- `ScikitLearnCASH`: choosing and tuning a classifier on real data.

Flat here, violent there:

- `RKHS1D`, `GramacyExponential2D`: synthetic, known optimum.
- `TableProblem`: anything that was measured or computed before, conditional or not.

Sums of parts that are observed and bend one way each (``components``, ``monotone``):

- `MonotoneMixture1D`: synthetic, known optimum.
- `ElasticNetTuning`: validation error as training error and gap; real trainings.

Many tasks:

- `QuadraticTasks`: synthetic, known optimum.
"""

from __future__ import annotations

__all__ = [
    "ElasticNetTuning",
    "Evaluation",
    "GramacyExponential2D",
    "JenattonTree",
    "MonotoneMixture1D",
    "QuadraticTasks",
    "RKHS1D",
    "ScikitLearnCASH",
    "TableProblem",
]

from botorch_structured.test_functions.cash import Evaluation, ScikitLearnCASH
from botorch_structured.test_functions.monotone import (
    ElasticNetTuning,
    MonotoneMixture1D,
)
from botorch_structured.test_functions.synthetic import (
    RKHS1D,
    GramacyExponential2D,
    JenattonTree,
    QuadraticTasks,
)
from botorch_structured.test_functions.table import TableProblem
