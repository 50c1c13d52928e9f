"""The tables that treed Bayesian optimisation is compared on; see `TableProblem`.

The files are not part of this package: give their path. Two grids are those of Assael
et al. (2014), section 4. Its two mines, from the case studies of Clark and Harper, are
in no public repository; `clark_copper` and `walker_lake` are of the same kind and stand
in for them. To be minimised, like all problems here: where the most ore is wanted, what
is returned is the negative of the grade.
"""

from __future__ import annotations

__all__ = ["clark_copper", "online_lda", "structured_svm", "walker_lake"]

from pathlib import Path
from typing import Any

from botorch_structured.test_functions.table import TableProblem


def online_lda(path: str | Path, **arguments: Any) -> TableProblem:
    """Perplexity of online latent Dirichlet allocation: 288 rows, 3 columns.

    Hoffman, Bach and Blei (2010), on a grid by Snoek, Larochelle and Adams (2012);
    HPOlib has it as ``lda_on_grid``, where one configuration is found twice.

    Args:
        path: A file with columns ``kappa``, ``tau``, ``s`` and ``perplexity``.
        **arguments: Of `TableProblem`, ``noise_std`` or ``negate`` for instance.
    """
    inputs = ["kappa", "tau", "s"]
    return TableProblem.from_csv(path, inputs, "perplexity", ["tau", "s"], **arguments)


def structured_svm(path: str | Path, **arguments: Any) -> TableProblem:
    """Error of a latent structured SVM for motif finding: 1,400 rows, 3 columns.

    Miller et al. (2012), on a grid by Snoek, Larochelle and Adams (2012); HPOlib has
    it as ``svm_on_grid``.

    Args:
        path: A file with columns ``c``, ``alpha``, ``epsilon`` and ``error``.
        **arguments: Of `TableProblem`.
    """
    inputs = ["c", "alpha", "epsilon"]
    return TableProblem.from_csv(path, inputs, "error", inputs, **arguments)


def clark_copper(path: str | Path, **arguments: Any) -> TableProblem:
    """Copper in the cores of boreholes: 439 rows, 3 columns. The most is wanted.

    Data of Isobel Clark, in the R package KRIG. Three cores have no grade (-995, -99).

    Args:
        path: A file with columns ``x1``, ``x2``, ``x3`` and ``Z``.
        **arguments: Of `TableProblem`.
    """
    return TableProblem.from_csv(
        path,
        ["x1", "x2", "x3"],
        "Z",
        missing=[-995.0, -99.0],
        maximize=True,
        **arguments,
    )


def walker_lake(path: str | Path, **arguments: Any) -> TableProblem:
    """Samples of the Walker Lake data: 470 rows, 2 columns. The largest V is wanted.

    Isaaks and Srivastava, An Introduction to Applied Geostatistics (1989). Sampled
    more densely where V is large.

    Args:
        path: A file with columns ``X``, ``Y`` and ``V``.
        **arguments: Of `TableProblem`.
    """
    return TableProblem.from_csv(path, ["X", "Y"], "V", maximize=True, **arguments)
