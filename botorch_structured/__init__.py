"""Bayesian optimisation where choices open up other choices: a BoTorch plugin.

``Study`` is asked for configurations and told what they were worth: start here, or
from ``suggest`` if your loop is in BoTorch.
``spaces`` says which columns are active when (``SearchSpace``, ``ParameterTree``);
``models`` has Gaussian processes that know it (``TreeStructuredGP`` first);
``acquisition`` and ``optim`` choose the next point over all paths of the tree;
``test_functions`` are problems to try it on, and ``plots`` draws trees and traces.
Models take and give tensors, and fit, pickle and combine as any BoTorch model does.
``cite(model)`` is the paper behind it; ``python -m botorch_structured`` shows it all.
"""

from __future__ import annotations

__all__ = ["Study", "__version__", "cite"]

from typing import TYPE_CHECKING, Any

from botorch_structured._citations import cite

if TYPE_CHECKING:
    from botorch_structured.study import Study

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "annotations"})


def __getattr__(name: str) -> Any:
    # BoTorch is loaded with the first study, not with the package.
    if name == "Study":
        from botorch_structured.study import Study

        return Study
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
