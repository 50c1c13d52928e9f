"""Fits of large data sets to some of their rows.

Hyperparameters need hundreds of rows of a path, and a fit takes time cubic in them.
On 30 data sets of 1,800 rows on six paths (``benchmarks.quality.some_rows``) fits to
120 and then 240 rows of a path took .4 of the time of a fit to all, and predicted as
well, to .07 nats a point, on 25. On the others, near the best points and without noise,
.2 to .6 of some 8 nats were lost where the function is smooth, and 1 to 8 (in the mean,
none in the median) where it jumps. After 60 rows in place of 120, fits took noise for
structure on four more: .1 to 1.4 were lost.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models.tree.leaf_model import LeafModel
from botorch_structured.models.tree.warm_start import take_values

# A fit is to so many rows of a path, and to so many in all if few paths have data.
_ROWS_OF_PATH = 240
_ROWS = 800


def some_rows(keys: Tensor, values: Tensor, most: int) -> Tensor:
    """Rows of each path: the best ones, and others evenly spaced in order of value.

    Args:
        keys: Of the paths of the rows, ``n``.
        values: Larger ones are better, ``n``.
        most: How many of a path; a quarter are the best ones.

    Returns:
        The numbers of the rows, ascending.
    """
    order = values.argsort(descending=True, stable=True)
    order = order[keys[order].argsort(stable=True)]
    _, counts = keys[order].unique_consecutive(return_counts=True)
    size = counts.repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.arange(len(order), device=order.device) - first
    best = most // 4
    spaced = most - best
    others = (size - best).clamp_min(1)
    # where the share of others that are taken reaches the next whole number
    is_next = (rank - best) * spaced % others >= others - spaced
    kept = (size <= most) | (rank < best) | is_next
    return order[kept].sort().values


def with_most_rows(model: LeafModel, most: int) -> LeafModel:
    """The model, or a copy with at most so many rows of each path, see `some_rows`."""
    keys = model.tree.path_key(model.train_inputs[0])
    rows = some_rows(keys, model.train_targets, most)
    return model if len(rows) == len(keys) else _with_rows(model, rows)


def fit_to_some(model: LeafModel, start_from: LeafModel | None = None) -> None:
    """Fit a model of one outcome, to some of its rows where there are many.

    Args:
        model: In training mode, with its first hyperparameters.
        start_from: See ``LeafModel.custom_fit``. Without it a first fit is to half of
            the rows, if that is less than three quarters of the data.
    """
    n = len(model.train_targets)
    keys = model.tree.path_key(model.train_inputs[0])
    most = max(_ROWS_OF_PATH, _ROWS // len(keys.unique()))
    sizes = [most // 2, most] if start_from is None else [most]
    for size in sizes:
        rows = some_rows(keys, model.train_targets, size)
        if size < most and len(rows) > 0.75 * n:
            continue
        part = model if len(rows) == n else _with_rows(model, rows)
        mll = ExactMarginalLogLikelihood(part.likelihood, part)
        fit_gpytorch_mll(mll, start_from=start_from)
        start_from = part
    if start_from is not None and start_from is not model:
        take_values(model, start_from)
        model._fit_record = start_from._fit_record
        model.eval()


def _with_rows(model: LeafModel, rows: Tensor) -> LeafModel:
    """A copy with some of the rows, on the scale of the outcomes of all."""
    part = deepcopy(model)
    part.set_train_data(
        model.train_inputs[0][rows],
        model.train_targets[rows],
        strict=False,
    )
    if isinstance(part.likelihood, FixedNoiseGaussianLikelihood):
        part.likelihood.noise = model.likelihood.noise[rows]
    return part
