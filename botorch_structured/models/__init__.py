"""Models: which one when.

* ``TreeStructuredGP``: decisions determine which parameters exist, and branches have
  something in common: levels, shared columns (Jenatton et al. 2017).
* ``ConditionalGP``: evaluations on one branch say nothing about another
  (Levesque et al. 2017).
* ``OldStudiesMean``: what old studies of the same space have taught, also a prior mean
  of these two (it is no model, but learnt from data like one).
* ``TransferGP``: what these and the outcomes of a young study say.
* ``TreedGP``: the objective is flat in one region and rough in another: regions are
  found from the data, each with a GP of its own (Assael et al. 2014).
* ``MultiTaskABLR``: many tasks modelled jointly, linear in the number of their rows, or
  signals that are observed beside the objective (Perrone et al. 2017).
* ``DecomposedGP``: the objective is a sum whose parts are observed, or known, each with
  a model of its own (Wang and Welch 2018).
* ``MonotoneGP``: the outcome is known to rise, or to fall, with some columns (Wang and
  Welch 2018, Riihimaki and Vehtari 2010).
* ``SampledGP``: what ``fit_slice_sampling`` returns, an average over samples of
  the hyperparameters.

As in ``botorch.models``, a model is imported when it is first asked for.
"""

from __future__ import annotations

__all__ = [
    "ConditionalGP",
    "DecomposedGP",
    "MonotoneGP",
    "MultiTaskABLR",
    "OldStudiesMean",
    "SampledGP",
    "TransferGP",
    "TreeStructuredGP",
    "TreedGP",
]

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botorch_structured.models.ablr.multi_task_ablr import MultiTaskABLR
    from botorch_structured.models.monotone.decomposed_gp import DecomposedGP
    from botorch_structured.models.monotone.monotone_gp import MonotoneGP
    from botorch_structured.models.sampled.sampled_gp import SampledGP
    from botorch_structured.models.tree.conditional_gp import ConditionalGP
    from botorch_structured.models.tree.old_studies import OldStudiesMean
    from botorch_structured.models.tree.transfer_gp import TransferGP
    from botorch_structured.models.tree.tree_structured_gp import TreeStructuredGP
    from botorch_structured.models.treed.treed_gp import TreedGP

_MODULES = {
    "ConditionalGP": "tree.conditional_gp",
    "DecomposedGP": "monotone.decomposed_gp",
    "MonotoneGP": "monotone.monotone_gp",
    "MultiTaskABLR": "ablr.multi_task_ablr",
    "OldStudiesMean": "tree.old_studies",
    "SampledGP": "sampled.sampled_gp",
    "TransferGP": "tree.transfer_gp",
    "TreeStructuredGP": "tree.tree_structured_gp",
    "TreedGP": "treed.treed_gp",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    model = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = model
    return model


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
