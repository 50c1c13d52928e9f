"""Batches of tree models as the single ones that they consist of.

Several outputs, and a batch of data sets, are independent GPs: each *element* of the
batch has leaves and weights of its own. ``elements_of`` makes a model of each, with
copies of its hyperparameters; evidence and predictions are those of the elements.

Rows that a model is conditioned on after its construction (fantasies, observations)
have batch dimensions in front of those of the elements, which hold the rows before.
The posterior given both is that of the elements, conditioned once more
(``conditioned``): with (m, C) the posterior of an element at points x and at new rows
f, with outcomes y of noise variance s,

    S = C_ff + diag(s),   mean = m_x + C_xf S^-1 (y - m_f),
    cov = C_xx - C_xf S^-1 C_fx.

It is differentiable in x, f and y. Fantasies that share their inputs share S.
"""

from __future__ import annotations

__all__ = [
    "EVENT_DIMENSIONS",
    "batch_shape_of",
    "conditioned",
    "element_of",
    "elements_of",
    "fantasy_shapes",
    "parameters_of",
    "quick_copy",
    "whole",
]

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn

from botorch_structured.models.fast_inference import with_variance_floor

ModuleT = TypeVar("ModuleT", bound=nn.Module)

#: Dimensions of a parameter behind the batch shape, by the last part of its name.
EVENT_DIMENSIONS = {
    "raw_alpha": 1,
    "raw_constant": 0,
    "raw_lengthscale": 2,
    "raw_noise": 1,
    "raw_offset": 1,
    "raw_outputscale": 0,
    "raw_period_length": 2,
    "raw_value": 2,
    "raw_variance": 2,
}
_PARTS = ("likelihood", "mean_module", "covar_module")
_TRANSFORMS = {"input_transform", "outcome_transform"}


# -- batch dimensions ---------------------------------------------------------------


def element_of(values: Tensor, index: Sequence[int], event: int) -> Tensor:
    """One element of the last batch dimensions, which broadcast.

    Args:
        values: ``lead x batch_shape x event_shape``, or with fewer batch dimensions.
        index: Of the element in ``batch_shape``.
        event: Number of dimensions of ``event_shape``.

    Returns:
        ``lead x event_shape``.
    """
    for i in reversed(index):
        if values.ndim == event:
            break
        dim = values.ndim - event - 1
        values = values.select(dim, i if values.shape[dim] > 1 else 0)
    return values


def _first(values: Tensor, event: int) -> Tensor:
    """``event_shape``: the first element of all batch dimensions that are left."""
    return values[(0,) * (values.ndim - event)]


def whole(values: Tensor, event: int) -> Tensor:
    """Batch dimensions that ``expand`` made have length one again."""
    for dim in range(values.ndim - event):
        if values.stride(dim) == 0:
            values = values.narrow(dim, 0, 1)
    return values


def fantasy_shapes(
    own: torch.Size, inputs: torch.Size, targets: torch.Size
) -> tuple[torch.Size, torch.Size] | None:
    """Batch shapes of all inputs and of all outcomes, as in ``get_fantasy_model``.

    Args:
        own: Batch shape of the model's training data.
        inputs: Batch shape of the new inputs.
        targets: Batch shape of the new outcomes; may have one dimension more.

    Returns:
        None for shapes that GPyTorch refuses, or where the model's own batch
        dimensions would not be the last ones.
    """
    if len(targets) - len(inputs) not in (0, 1):
        return None
    try:
        all_targets = torch.broadcast_shapes(own, targets)
        all_inputs = torch.broadcast_shapes(own, inputs)
    except RuntimeError:
        return None
    if all_targets[len(all_targets) - len(own) :] != own:
        return None
    if all_inputs != all_targets[len(all_targets) - len(all_inputs) :]:
        return None
    return all_inputs, all_targets


# -- elements -----------------------------------------------------------------------


def quick_copy(module: ModuleT, *kept: object) -> ModuleT:
    """``deepcopy`` without its detours for tensors and for empty dictionaries.

    Args:
        module: Any module.
        kept: Objects that the copy holds, too, instead of copies of them.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in vars(part).values():
            if type(value) in (dict, OrderedDict) and not value:  # hooks, mostly
                memo[id(value)] = type(value)()
    for p in module.parameters():
        memo[id(p)] = nn.Parameter(p.detach().clone(), p.requires_grad)
    for b in module.buffers():
        memo[id(b)] = b.detach().clone()
    memo.update((id(thing), thing) for thing in kept)
    return deepcopy(module, memo)


def parameters_of(model: nn.Module, index: Sequence[int]) -> dict[str, Tensor] | None:
    """The part of each parameter that belongs to one element, by name.

    Args:
        model: A batched model.
        index: Of the element in the batch shape.

    Returns:
        None if there is a parameter whose batch dimensions are not known.
    """
    out = {}
    for name, value in model.named_parameters():
        shape = batch_shape_of(name, value)
        if shape is None:
            return None
        event = value.ndim - len(shape)
        out[name] = _first(element_of(value, index, event), event)
    return out


def batch_shape_of(name: str, parameter: Tensor) -> torch.Size | None:
    """The batch shape of a model's parameter; None if that is not known."""
    path = name.split(".")
    event = EVENT_DIMENSIONS.get(path[-1])
    if path[0] not in _PARTS or event is None:
        return None
    return parameter.shape[: parameter.ndim - event]


def elements_of(model: Any, lead: int, num_rows: int) -> list[Any] | None:
    """A model in evaluation mode, without transforms, for each element of a batch.

    Args:
        model: Its data are ``lead_shape x batch_shape x n x d``.
        lead: Number of dimensions of ``lead_shape``.
        num_rows: The elements have the first so many rows, which do not differ along
            ``lead_shape``.

    Returns:
        The elements in the order of ``batch_shape``, or None if the model has
        parameters or bounds whose batch dimensions are not known.
    """
    parts = nn.ModuleDict({name: getattr(model, name) for name in _PARTS})
    others = {name for name, _ in model.named_children()} - _TRANSFORMS
    bounds = [m for m in parts.modules() if isinstance(m, Interval)]
    if others != set(_PARTS) or any(
        bound.numel() > 1 for m in bounds for bound in (m.lower_bound, m.upper_bound)
    ):
        return None
    out = []
    for index in np.ndindex(model.train_targets.shape[lead:-1]):
        values = parameters_of(model, index)
        if values is None:
            return None
        out.append(_element(model, quick_copy(parts), index, num_rows))
        for name, parameter in out[-1].named_parameters():
            parameter.data = values[name].detach().clone()
    return out


def _element(model: Any, parts: nn.ModuleDict, index: Any, num_rows: int) -> Any:
    element = object.__new__(type(model))
    element.__dict__.update(
        model.__getstate__(),
        _modules=dict(parts.items()),
        _num_outputs=1,
        _input_batch_shape=torch.Size(),
        _aug_batch_shape=torch.Size(),
        _has_transformed_inputs=False,
        _original_train_inputs=None,
        _fantasies=None,
        prediction_strategy=None,
    )
    for part in parts.modules():
        # a distribution (each prior is one) has a batch shape that cannot be set
        if isinstance(part, Kernel) or "batch_shape" in vars(part):
            setattr(part, "batch_shape", torch.Size())  # noqa: B010 (for mypy)

    def rows(values: Tensor, event: int) -> Tensor:
        values = _first(element_of(values, index, event), event)
        return values[:num_rows].detach()

    element.train_inputs = (rows(model.train_inputs[0], 2),)
    element.train_targets = rows(model.train_targets, 1)
    noise = element.likelihood.noise_covar
    if isinstance(noise, FixedGaussianNoise):
        noise.noise = rows(noise.noise, 1)
    return element.requires_grad_(False).eval()


# -- fantasies ----------------------------------------------------------------------


def conditioned(
    joint: MultivariateNormal, targets: Tensor, noise: Tensor
) -> MultivariateNormal:
    """The distribution of the first points, given outcomes of the last ones.

    Args:
        joint: Of ``q + f`` points, ``batch_shape x (q + f)``.
        targets: Outcomes of the last points, ``targets_shape x f``; batch shapes
            broadcast.
        noise: Their noise variances, broadcastable to ``targets``.

    Raises:
        NotPSDError: If the covariance of the outcomes is not positive definite even
            with jitter.
    """
    q = joint.event_shape[0] - targets.shape[-1]
    noise = noise.expand(*noise.shape[:-1], targets.shape[-1])
    mean, covariance = joint.mean, joint.covariance_matrix
    noisy = covariance[..., q:, q:] + torch.diag_embed(noise)
    chol = psd_safe_cholesky(noisy)
    half = torch.linalg.solve_triangular(chol, covariance[..., q:, :q], upper=False)
    residual = (targets - mean[..., q:]).unsqueeze(-1)
    residual = torch.linalg.solve_triangular(chol, residual, upper=False)
    mean = mean[..., :q] + (half.mT @ residual).squeeze(-1)
    covariance = covariance[..., :q, :q] - half.mT @ half
    covariance = with_variance_floor(covariance)
    covariance = covariance.expand(*mean.shape, q)
    return MultivariateNormal(mean, to_linear_operator(covariance))
