"""Batches of tree models as the single ones that they consist of.

Several outputs, and a batch of data sets, are independent GPs: each *element* of the
batch has leaves and weights of its own. Fits and predictions are those of the elements;
a model without a batch is one element.

Rows that are added later as fantasies have batch dimensions in front of those of the
elements, which hold the rows before. The posterior given both is that of the elements,
conditioned once more (``linalg.factor``). It is differentiable in the points and
in the rows and outcomes of the fantasies.
"""

from __future__ import annotations

__all__ = [
    "Element",
    "fantasy_shapes",
    "joint_moments",
    "make_elements",
    "objectives_of_elements",
    "posterior_of_elements",
]

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_structured._botorch_names import functorch_is_active
from botorch_structured.linalg.factor import given_last
from botorch_structured.models.fantasies import noise_of_rows
from botorch_structured.models.fast_inference import with_gradient, with_variance_floor
from botorch_structured.models.tree.leaf_inference import (
    LeafKernel,
    LeafPredictor,
    LeafRows,
    Structure,
)
from botorch_structured.models.tree.moments import LeafMoments, differentiable_moments
from botorch_structured.models.tree.objective import LeafObjective

# -- batch dimensions ---------------------------------------------------------------


def _element_of(values: Tensor, index: Sequence[int], event: int) -> Tensor:
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


def _whole(values: Tensor, event: int) -> Tensor:
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


@dataclass
class Element:
    """A GP of one outcome of one data set, without its prior mean.

    Attributes:
        kernel: With the hyperparameters of this element.
        X: Transformed training inputs, ``n x d``.
        structure: Their leaves.
        predictor: Factors of the data.
    """

    kernel: LeafKernel
    X: Tensor
    structure: Structure
    predictor: LeafPredictor

    @cached_property
    def moments(self) -> LeafMoments | None:
        """Moments of points one by one, where they have a closed form."""
        places = self.structure.leaf_places
        return LeafMoments.of(self.kernel, self.predictor, self.X, places)


@torch.no_grad()
def make_elements(model: Any) -> list[Element]:
    """The elements of a model, in the order of its batch.

    Args:
        model: A ``LeafModel``. Its elements have its first rows, where it has
            fantasies, which do not differ along the dimensions of these.
    """
    kernel = model.kernel_by_leaf()
    X, targets = model.train_inputs[0], model.train_targets
    lead, num_rows = model._fantasies or (0, X.shape[-2])
    shape = targets.shape[lead:-1]
    mean, noise = model.mean_module(X[..., :num_rows, :]), model.likelihood.noise
    noise = noise.expand(*noise.shape[:-1], X.shape[-2])
    noise = noise_of_rows(noise, model._fantasy_noise)
    out: list[Element] = []
    for index in np.ndindex(shape):

        def first(values: Tensor, event: int = 1, index: Any = index) -> Tensor:
            values = _element_of(values, index, event)
            return values[(0,) * (values.ndim - event)][:num_rows].detach()

        rows = first(X, 2)
        own = kernel
        if kernel.batch_shape:
            own = kernel.element(shape, index).requires_grad_(False)
        # outputs have the same inputs, and so the same leaves
        if out and torch.equal(rows, out[0].X):
            rows, structure = out[0].X, out[0].structure
        else:
            structure = own.structure(rows)
        residual = first(targets) - first(mean)
        predictor = LeafPredictor(own, rows, structure, first(noise), residual)
        out.append(Element(own, rows, structure, predictor))
    return out


def objectives_of_elements(
    model: Any, mll: MarginalLogLikelihood, kwargs: dict[str, Any]
) -> list[LeafObjective]:
    """An objective in closed form for each element; none where one has none.

    There are none either where one optimisation has to be for all elements: they share
    parameters, or the caller has a closure, an optimiser, or arguments that name
    parameters.

    Args:
        model: A ``LeafModel``.
        mll: Its objective; put in training mode.
        kwargs: See ``fit_gpytorch_mll``.
    """
    shape = model.train_targets.shape[:-1]
    options = kwargs.get("optimizer_kwargs") or {}
    named = any(kwargs.get(name) for name in ("closure", "closure_kwargs", "optimizer"))
    apart = (
        not (named or options.keys() - {"options", "method"})
        and model._fantasies is None
        and not any(prior.batch_shape for _, _, prior, _, _ in mll.named_priors())
        and all(
            getattr(module, "batch_shape", p.shape[:-1]) == shape
            for module in mll.modules()
            for p in module.parameters(recurse=False)
        )
    )
    if not apart:
        return []
    mll.train()
    out: list[LeafObjective] = []
    for index in np.ndindex(shape):
        objective = LeafObjective.of(mll, index)
        if objective is None:
            return []
        out.append(objective)
    return out


# -- posteriors ---------------------------------------------------------------------


def joint_moments(
    kernel: LeafKernel, predictor: LeafPredictor, X: Tensor
) -> tuple[Tensor, Tensor]:
    """Moments of ``q`` points jointly, without the prior mean.

    Args:
        kernel: The kernel.
        predictor: The factors of the data.
        X: Transformed inputs, ``batch_shape x q x d``.

    Returns:
        Means ``batch_shape x q`` and covariances ``batch_shape x q x q``.
    """
    rows = kernel.rows(X)
    batch, q = X.shape[:-2], X.shape[-2]
    flat = LeafRows(
        *(
            part.expand(*batch, q, *part.shape[rows.key.ndim :]).flatten(0, len(batch))
            for part in rows
        )
    )
    found = predictor(kernel, flat)
    mean, leaf, explained, weight = (t.unflatten(0, (*batch, q)) for t in found)
    same = leaf.unsqueeze(-1) == leaf.unsqueeze(-2)
    own = rows.key.unsqueeze(-1) == rows.key.unsqueeze(-2)
    covariance = torch.where(own, kernel.leaf_covariance(rows, rows), 0.0)
    covariance = covariance + weight @ weight.mT
    return mean, covariance - torch.where(same, explained @ explained.mT, 0.0)


def posterior_of_elements(
    model: Any, elements: Sequence[Element], X: Tensor
) -> MultivariateNormal:
    """The posterior of a batch, given its fantasies if there are any.

    Args:
        model: A ``LeafModel``.
        elements: From ``make_elements``.
        X: ``batch_shape x q x d``, transformed; batch shapes broadcast.
    """
    train_X, targets = model.train_inputs[0], model.train_targets
    lead, num_rows = model._fantasies or (0, train_X.shape[-2])
    shape = torch.broadcast_shapes(X.shape[:-2], targets.shape[:-1])
    own = targets.shape[lead:-1]
    own = own if own.numel() > 1 else own[:0]
    before = len(shape) - len(own)
    number = torch.arange(own.numel()).view(own).expand(shape[before:])
    prior = model.mean_module(X.expand(*shape, *X.shape[-2:]))
    X = _whole(X, 2)
    means, covariances = [], []
    for index in np.ndindex(number.shape):
        element = elements[int(number[index])]
        points = _element_of(X, index, 2)
        if num_rows == train_X.shape[-2]:
            mean, covariance = _moments(element, points)
        else:
            mean, covariance = _given_fantasies(model, element, index, points)
        q = mean.shape[-1]
        means.append(mean.expand(*shape[:before], q))
        covariances.append(covariance.expand(*shape[:before], q, q))
    mean, covariance = means[0], covariances[0]
    if own:
        mean = torch.stack(means, dim=-2).unflatten(-2, number.shape)
        covariance = torch.stack(covariances, dim=-3).unflatten(-3, number.shape)
    # a plain tensor would get no jitter when it is factorised for sampling
    return MultivariateNormal(prior + mean, to_linear_operator(covariance))


def _moments(element: Element, points: Tensor) -> tuple[Tensor, Tensor]:
    """Those of ``lead x q x d`` points, one by one in a shorter way."""
    alone = points.shape[-2] == 1 and points.numel() and not functorch_is_active()
    moments = element.moments if alone else None
    if moments is None:
        mean, covariance = joint_moments(element.kernel, element.predictor, points)
        return with_gradient(mean, points), with_variance_floor(covariance)
    flat = points.reshape(-1, points.shape[-1])
    mean, variance = differentiable_moments(flat, moments)
    variance = variance.clamp_min(settings.min_variance.value(variance.dtype))
    shape = points.shape[:-1]
    return mean.view(shape), variance.view(*shape, 1)


def _given_fantasies(
    model: Any, element: Element, index: Sequence[int], points: Tensor
) -> tuple[Tensor, Tensor]:
    """Moments of ``lead x q x d`` points of an element, without their prior mean."""
    num_rows, noise = len(element.X), model.likelihood.noise
    train_X = model.train_inputs[0]
    prior = model.mean_module(train_X)[..., num_rows:]
    targets = _element_of(model.train_targets[..., num_rows:] - prior, index, 1)
    new = _element_of(_whole(train_X, 2), index, 2)[..., num_rows:, :]
    batch = torch.broadcast_shapes(points.shape[:-2], new.shape[:-2])
    both = [t.expand(*batch, *t.shape[-2:]) for t in (points, new)]
    joint = joint_moments(element.kernel, element.predictor, torch.cat(both, dim=-2))
    count, given = targets.shape[-1], model._fantasy_noise
    own = _element_of(noise, index, 1)[..., -count:]
    if given is not None:
        given = _element_of(_whole(given, 1), index, 1)
    noise = noise_of_rows(own.expand(*own.shape[:-1], count), given)
    mean, covariance = given_last(*joint, noise, targets)
    return with_gradient(mean, points), with_variance_floor(covariance)
