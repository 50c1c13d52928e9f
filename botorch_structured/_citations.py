"""The papers behind the package, as BibTeX."""

from __future__ import annotations

__all__ = ["BIBTEX", "cite"]

import inspect
from importlib.resources import files
from typing import Any

# ``@article{key,`` begins an entry.
BIBTEX: dict[str, str] = {
    entry[entry.index("{") + 1 : entry.index(",")]: f"{entry.strip()}\n"
    for entry in files(__package__)
    .joinpath("papers.bib")
    .read_text(encoding="utf-8")
    .split("\n\n")
}

# By name, so that this module imports nothing: a class here also covers classes
# that derive from it elsewhere.
_OBJECTS_OF = {
    "Jenatton2017tree": """
        ContextLogExpectedImprovement JenattonTree PathContextLogExpectedImprovement
        PathExpectedImprovement PathLogExpectedImprovement
        TreeStructuredGP TreeStructuredKernel optimize_acqf_two_step
    """,
    "Levesque2017conditional": """
        ConditionalGP ConditionalKernel Impute LaplaceKernel SampledGP ScikitLearnCASH
        fit_slice_sampling optimize_acqf_local_search
    """,
    "Balog2016mondrian": "MondrianKernel",
    "Assael2014treed": """
        GramacyExponential2D RKHS1D TreedGP adaptive_sobol_candidates
        optimize_acqf_sobol
    """,
    "Perrone2017multiple": """
        MultiTaskABLR QuadraticTasks RandomFourierFeatures
    """,
    "Wang2018monotonicity": """
        DecomposedGP ElasticNetTuning MonotoneGP MonotoneMixture1D
    """,
}
_PAPER_OF: dict[str, str] = {
    name: paper for paper, names in _OBJECTS_OF.items() for name in names.split()
}


def cite(obj: object) -> str:
    """The BibTeX entry of the paper behind an object of this package.

    Args:
        obj: A model, kernel, acquisition function, problem or optimiser of this
            package, its class, or an instance of a class derived from one; or a key of
            the papers, such as ``"Jenatton2017tree"``.

    Raises:
        ValueError: Where no paper is known; it lists those that are known.

    Example:
        >>> print(cite(TreeStructuredGP))
    """
    if isinstance(obj, str) and obj in BIBTEX:
        return BIBTEX[obj]
    if inspect.isfunction(obj):
        candidates: tuple[Any, ...] = (obj,)
    else:
        candidates = inspect.getmro(obj if isinstance(obj, type) else type(obj))
    for one in candidates:
        ours = one.__module__.split(".")[0] == __package__
        if ours and one.__name__ in _PAPER_OF:
            return BIBTEX[_PAPER_OF[one.__name__]]
    raise ValueError(
        f"obj: expected one of {', '.join(sorted(_PAPER_OF))}, or a key of "
        f"{', '.join(BIBTEX)}, got {obj!r}."
    )
