"""Problems to compare methods on, as BoTorch test functions. All are minimised.

On conditional spaces:

- `JenattonTree`: synthetic, known optimum, cheap; for comparing methods.
- `ScikitLearnCASH`: choosing and tuning a classifier on real data.

Flat here, violent there:

- `RKHS1D`, `GramacyExponential2D`: synthetic, known optimum.
- `TableProblem`: anything that was measured or computed before, conditional or not.
  `online_lda`, `structured_svm`, `clark_copper` and `walker_lake` read published ones.

Sums of parts that are observed and bend one way each (``components``, ``monotone``):

- `MonotoneMixture1D`: synthetic, known optimum.
- `ElasticNetTuning`, `ForestTuning`, `NetworkTuning`: validation error as training
  error and gap; real trainings. `read_adult` reads the forest's data.

Many tasks, one of them to be solved with what the others show (a ``history``):

- `QuadraticTasks`: synthetic, known optima; ``leave_out(t)`` is one task.
- `TransferTables`: the same of tables; `random_forest_tables` and
  `support_vector_tables` read published ones.
"""

from __future__ import annotations

__all__ = [
    "ElasticNetTuning",
    "Evaluation",
    "ForestTuning",
    "GramacyExponential2D",
    "JenattonTree",
    "MonotoneMixture1D",
    "NetworkTuning",
    "QuadraticTask",
    "QuadraticTasks",
    "RKHS1D",
    "ScikitLearnCASH",
    "TableProblem",
    "TaskHistory",
    "TransferTable",
    "TransferTables",
    "clark_copper",
    "online_lda",
    "random_forest_tables",
    "read_adult",
    "structured_svm",
    "support_vector_tables",
    "walker_lake",
]

from botorch_structured.test_functions.cash import Evaluation, ScikitLearnCASH
from botorch_structured.test_functions.jenatton_tree import JenattonTree
from botorch_structured.test_functions.monotone_mixture import MonotoneMixture1D
from botorch_structured.test_functions.monotone_tuning import (
    ElasticNetTuning,
    ForestTuning,
    NetworkTuning,
    read_adult,
)
from botorch_structured.test_functions.published_tables import (
    clark_copper,
    online_lda,
    structured_svm,
    walker_lake,
)
from botorch_structured.test_functions.quadratic_tasks import (
    QuadraticTask,
    QuadraticTasks,
)
from botorch_structured.test_functions.table import TableProblem
from botorch_structured.test_functions.task_history import TaskHistory
from botorch_structured.test_functions.transfer_files import (
    random_forest_tables,
    support_vector_tables,
)
from botorch_structured.test_functions.transfer_tables import (
    TransferTable,
    TransferTables,
)
from botorch_structured.test_functions.treed import RKHS1D, GramacyExponential2D
