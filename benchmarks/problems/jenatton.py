"""The functions of Jenatton et al. (2017) by their names.

A name has the number of leaves and words: ``shared`` (two shared columns), ``quad`` or
``quadratic`` (these enter squared), ``off`` (optima off the centre), ``chain``
(unbalanced). See `botorch_structured.test_functions.JenattonTree`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from benchmarks.harness import ProblemFactory
from botorch_structured.test_functions import JenattonTree

_WORDS = {"chain", "shared", "quad", "quadratic", "off"}


def make(seed: int, name: str) -> JenattonTree:
    """The same function for every seed; the seed decides the starts.

    Raises:
        ValueError: Another word, or a number of leaves that there is no tree of.
    """
    leaves, *words = name.split("-")
    if not leaves.isdigit() or not {*words} <= _WORDS:
        raise ValueError(
            f"name: expected a number and words of {sorted(_WORDS)}, got {name!r}."
        )
    return JenattonTree(
        num_leaves=int(leaves),
        shared="shared" in words,
        balanced="chain" not in words,
        off_centre="off" in words,
        quadratic_shared=bool({"quad", "quadratic"} & {*words}),
    )


def factories(names: Iterable[str]) -> dict[str, ProblemFactory]:
    """Makers of problems by their names."""
    return {name: partial(make, name=name) for name in names}
