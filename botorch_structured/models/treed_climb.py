"""The fast part of a fit: each leaf by itself, by scoring, where that is possible.

What follows is BoTorch's L-BFGS-B on the sum over the leaves, which then has next to
nothing left to do.
"""

from __future__ import annotations

__all__ = ["climb_leaves"]

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from botorch_structured.inference.cart import Array, TreeNode
from botorch_structured.inference.treed_groups import path_weight
from botorch_structured.inference.treed_leaf_fit import (
    LeafObjective,
    LeafPrior,
    LeafTerm,
)
from botorch_structured.kernels.hyperparameter import Hyperparameter
from botorch_structured.models.treed_kernel import TreedStationary
from botorch_structured.models.treed_modules import LeafNoiseLikelihood, TreedMean

if TYPE_CHECKING:
    from botorch_structured.models.treed_objective import TreedObjective

# Flops of one step: beyond, L-BFGS does with one matrix product where this needs d.
_MAX_FLOPS = 3e8


def climb_leaves(model: TreedObjective) -> None:
    """Move the hyperparameters of each leaf to its maximum of equation (2).

    Nothing happens where the leaves have something in common (``path_sharing="all"``
    with its nested covariances, one noise for all), the kernel is another one than the
    default, parameters are held, or matrices are large.

    Args:
        model: In training mode.
    """
    kernel, mean, likelihood = model.covar_module, model.mean_module, model.likelihood
    known = isinstance(likelihood, FixedNoiseGaussianLikelihood)
    if (
        model._share_all
        or model.partition.tree_shape
        or not isinstance(kernel, TreedStationary)
        or kernel.warp
        or kernel.categorical
        or not isinstance(mean, TreedMean)
        or not (known or isinstance(likelihood, LeafNoiseLikelihood))
        or not all(p.requires_grad for p in model.parameters())
    ):
        return
    model.train()
    (data,) = model._plan()
    length, variance = kernel.lengthscale_of_leaf, kernel.variance_of_leaf
    dim = length.raw_value.shape[-1]
    if dim * len(data.y) ** 3 > _MAX_FLOPS:
        return
    noise = None if known else likelihood.noise_covar.noise_of_leaf
    rows = _numpy(model._known_noise()) if known else None
    prior = _prior(length, variance, mean, noise)
    rbf = kernel.correlation(0).name == "rbf"
    X, y = _numpy(data.X), _numpy(data.y)
    levels = model.levels.tolist()

    def size(node: TreeNode) -> int:
        return len(model._data_of(node))

    terms: list[list[LeafTerm]] = [[] for _ in range(model.partition.num_leaves)]
    number = {id(v): j for j, v in enumerate(data.root.leaves())}
    for position, node in enumerate(data.root.walk()):
        mine = model._data_of(node)
        if not len(mine):
            continue
        own = None if node.split is None else tuple(levels[position])
        known_noise = None if rows is None else rows[mine]
        shared = LeafTerm(1.0, X[mine], y[mine], known_noise, own, rbf)
        for below in node.leaves():
            if size(below):
                weight = path_weight(below, node, size)
                terms[number[id(below)]].append(shared.weighted(weight))
    with torch.no_grad():
        for leaf, nodes in enumerate(terms):
            if not nodes:
                continue
            start = np.concatenate(
                [
                    _numpy(length.raw_value[leaf]),
                    _numpy(variance.raw_value[leaf : leaf + 1]),
                    _numpy(mean.constant[leaf : leaf + 1]),
                    [prior.mode[-1] if noise is None else noise.raw_value[leaf].item()],
                ]
            )
            found = LeafObjective(nodes, prior).maximise(start)
            if found is None:
                continue
            theta = torch.as_tensor(found).to(length.raw_value)
            length.raw_value[leaf] = theta[:dim]
            variance.raw_value[leaf] = theta[dim]
            mean.constant[leaf] = theta[dim + 1]
            if noise is not None:
                noise.raw_value[leaf] = theta[dim + 2]


def _numpy(values: Tensor) -> Array:
    array = values.detach().cpu()
    return (array.double() if array.is_floating_point() else array).numpy()


def _prior(
    length: Hyperparameter,
    variance: Hyperparameter,
    mean: TreedMean,
    noise: Hyperparameter | None,
) -> LeafPrior:
    """Priors and bounds in the logarithms, as the modules have them."""
    dim = length.raw_value.shape[-1]
    rows = [_log_normal(length)] * dim + [_log_normal(variance)]
    constant = mean.constant_prior
    rows.append((float(constant.loc), float(constant.scale), -math.inf, math.inf))
    rows.append(
        (0.0, 1.0, -math.inf, math.inf) if noise is None else _log_normal(noise)
    )
    return LeafPrior(*(np.array(column) for column in zip(*rows, strict=True)))


def _log_normal(parameter: Hyperparameter) -> tuple[float, float, float, float]:
    """Mode and scale of the logarithm as the objective has it, and its bounds."""
    prior, constraint = parameter.value_prior, parameter.raw_value_constraint
    assert isinstance(constraint, Interval)
    loc, scale = float(prior.loc), float(prior.scale)
    # the density of a value has a factor 1 / value: the mode of the logarithm is lower
    return (
        loc - scale**2,
        scale,
        math.log(float(constraint.lower_bound)),
        math.log(float(constraint.upper_bound)),
    )
