"""Bayesian optimisation where choices open up other choices: a BoTorch plugin.

``spaces`` says which columns are active when (``SearchSpace``, ``ParameterTree``);
``models`` has Gaussian processes that know it (``TreeStructuredGP``: start here);
``acquisition`` and ``optim`` choose the next point over all paths of the tree;
``test_functions`` are problems to try it on, and ``plots`` draws trees and traces.
Models take and give tensors, and fit, pickle and combine as any BoTorch model does.
``cite(model)`` is the paper behind it; ``python -m botorch_structured`` shows it all.
"""

from __future__ import annotations

__all__ = ["__version__", "cite"]

from botorch_structured._citations import cite

__version__ = "0.1.0"
