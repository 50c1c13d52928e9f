"""The demonstration behind ``python -m botorch_structured``.

`Study` chooses and records evaluations, `EvaluationLog` keeps them through a kill, and
`report` turns them into tables, code and a picture.
"""

from __future__ import annotations

__all__ = ["EvaluationLog", "Record", "Study", "suggest"]

from botorch_structured.demo.log import EvaluationLog, Record
from botorch_structured.demo.study import Study, suggest
