"""Batches of tree models as the single ones that they consist of.

Several outputs, and a batch of data sets, are independent GPs: each *element* of the
batch has leaves and weights of its own. ``make_elements`` makes a model of each, with
copies of its hyperparameters. Evidence, fits and predictions are those of the elements.

Rows that are added later as fantasies have batch dimensions in front of those of the
elements, which hold the rows before. The posterior given both is that of the elements,
conditioned once more (``conditioned``): with (m, C) the posterior of an element at
points x and at new rows f, with outcomes y of noise variances s,

    S = C_ff + diag(s),   mean = m_x + C_xf S^-1 (y - m_f),
    cov = C_xx - C_xf S^-1 C_fx.

It is differentiable in x, f and y. Fantasies that share their inputs share S.
"""

from __future__ import annotations

__all__ = [
    "EVENT_DIMENSIONS",
    "conditioned",
    "evidence_of_elements",
    "fantasy_shapes",
    "fit_elements",
    "make_elements",
    "objectives_of_elements",
    "posterior_of_elements",
    "quick_copy",
]

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
import torch
from gpytorch import settings
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn
from torch.func import functional_call

from botorch_structured._botorch_names import functorch_is_active
from botorch_structured.models.fantasy_noise import noise_of_rows
from botorch_structured.models.fast_inference import with_variance_floor
from botorch_structured.models.tree.leaf_inference import Structure, log_evidence
from botorch_structured.models.tree.moments import differentiable_moments
from botorch_structured.models.tree.objective import LeafObjective

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
    "raw_slope": 0,
    "raw_value": 2,
    "raw_variance": 2,
}
_PARTS = ("likelihood", "mean_module", "covar_module")
_TRANSFORMS = {"input_transform", "outcome_transform"}


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


def _first(values: Tensor, event: int) -> Tensor:
    """``event_shape``: the first element of all batch dimensions that are left."""
    return values[(0,) * (values.ndim - event)]


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


def _parameters_of(model: nn.Module, index: Sequence[int]) -> dict[str, Tensor] | None:
    """The part of each parameter that belongs to one element, by name.

    Args:
        model: A batched model.
        index: Of the element in the batch shape.

    Returns:
        None if there is a parameter whose batch dimensions are not known.
    """
    out = {}
    for name, value in model.named_parameters():
        shape = _batch_shape_of(name, value)
        if shape is None:
            return None
        event = value.ndim - len(shape)
        out[name] = _first(_element_of(value, index, event), event)
    return out


def _batch_shape_of(name: str, parameter: Tensor) -> torch.Size | None:
    """The batch shape of a model's parameter; None if that is not known."""
    path = name.split(".")
    event = EVENT_DIMENSIONS.get(path[-1])
    if path[0] not in _PARTS or event is None:
        return None
    return parameter.shape[: parameter.ndim - event]


def make_elements(model: Any) -> list[Any] | None:
    """Models in evaluation mode, without transforms, of the elements of a model.

    Args:
        model: A ``LeafModel``. Its elements have its first rows, where it has
            fantasies, which do not differ along the dimensions of these.

    Returns:
        The elements in the order of the batch. None if the model has parameters or
        bounds whose batch dimensions are not known, if its data have a gradient, or if
        predictions by leaf do not pay.
    """
    X, targets = model.train_inputs[0], model.train_targets
    # rows of fantasies may have a gradient, those before them have none
    if model._fantasies is None and (X.requires_grad or targets.requires_grad):
        return None
    lead, num_rows = model._fantasies or (0, X.shape[-2])
    given = model._fantasy_noise
    # a row of an element has the noise of the likelihood
    if given is not None and given.shape[-1] > X.shape[-2] - num_rows:
        return None
    parts = nn.ModuleDict({name: getattr(model, name) for name in _PARTS})
    others = {name for name, _ in model.named_children()} - _TRANSFORMS
    bounds = [m for m in parts.modules() if isinstance(m, Interval)]
    if others != set(_PARTS) or any(
        bound.numel() > 1 for m in bounds for bound in (m.lower_bound, m.upper_bound)
    ):
        return None
    out: list[Any] = []
    for index in np.ndindex(targets.shape[lead:-1]):
        values = _parameters_of(model, index)
        if values is None:
            return None
        element = _element(model, quick_copy(parts), index, num_rows)
        for name, parameter in element.named_parameters():
            parameter.data = values[name].detach().clone()
        # outputs have the same inputs, and so the same leaves
        first, mine = out[0] if out else element, element.train_inputs[0]
        if torch.equal(mine, first.train_inputs[0]):
            structure = first._structure(first.train_inputs[0])
            element._structure_cache = (mine, element.covar_module, structure)
        if not element._use_predictor():
            return None
        out.append(element)
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
        _fantasy_noise=None,
        _choose_kernel=False,  # one kernel for all elements
        prediction_strategy=None,
    )
    for part in parts.modules():
        # a distribution (each prior is one) has a batch shape that cannot be set
        if isinstance(part, Kernel) or "batch_shape" in vars(part):
            setattr(part, "batch_shape", torch.Size())  # noqa: B010 (for mypy)

    def rows(values: Tensor, event: int) -> Tensor:
        values = _first(_element_of(values, index, event), event)
        return values[:num_rows].detach()

    element.train_inputs = (rows(model.train_inputs[0], 2),)
    element.train_targets = rows(model.train_targets, 1)
    noise = _fixed_noise_of(model, index)
    if noise is not None:
        element.likelihood.noise_covar.noise = noise[:num_rows].detach()
    return element.requires_grad_(False).eval()


def _fixed_noise_of(model: Any, index: Sequence[int]) -> Tensor | None:
    """The noise variances of an element, ``n``; None if they are a parameter."""
    noise = model.likelihood.noise_covar
    if not isinstance(noise, FixedGaussianNoise):
        return None
    return _first(_element_of(noise.noise, index, 1), 1)


# -- evidence and fits --------------------------------------------------------------


class _Evidence(nn.Module):
    """The evidence of an element as a function of its parameters and inputs."""

    def __init__(self, element: Any, structure: Structure) -> None:
        super().__init__()
        self.element, self.structure = element, structure

    def forward(self, X: Tensor) -> Tensor:
        """A scalar, at transformed inputs ``n x d``."""
        return log_evidence(*self.element._system(X, self.structure))


def evidence_of_elements(model: Any) -> Tensor | None:
    """Log evidence of each element, ``batch_shape``, differentiable as that of one.

    Args:
        model: A ``LeafModel`` without fantasies.

    Returns:
        None where the dense evidence is faster, or the only one there is.
    """
    elements = model._elements(current=False)
    if elements is None:
        return None
    shape = model.train_targets.shape[:-1]
    X, values = model.transform_inputs(model.train_inputs[0]), []
    # bounds of parameters; those of an element are single numbers too
    buffers = {n: b for n, b in model.named_buffers() if n.split(".")[0] in _PARTS}
    for index, element in zip(np.ndindex(shape), elements, strict=True):
        # paths do not depend on the transform, which keeps decisions
        structure = element._structure(element.train_inputs[0])
        if not element._evidence_pays(structure.layout):
            return None
        own = {**buffers, **(_parameters_of(model, index) or {})}
        named = {f"element.{name}": value for name, value in own.items()}
        noise = _fixed_noise_of(model, index)
        if noise is not None:
            element.likelihood.noise_covar.noise = noise
        inputs = _element_of(X, index, 2)
        values.append(functional_call(_Evidence(element, structure), named, inputs))
    return torch.stack(values).view(shape)


def _fits_apart(model: Any, mll: MarginalLogLikelihood, kwargs: dict[str, Any]) -> bool:
    """Whether fits of the elements one by one are the fit of a batch.

    They are not where one optimisation has to be for all elements: they share
    parameters, or the caller has a closure, an optimiser, or arguments that name
    parameters.

    Args:
        model: A ``LeafModel``.
        mll: Its objective.
        kwargs: See ``fit_gpytorch_mll``.
    """
    options = kwargs.get("optimizer_kwargs") or {}
    shape = model.train_targets.shape[:-1]
    return not (
        any(kwargs.get(name) for name in ("closure", "closure_kwargs", "optimizer"))
        or options.keys() - {"options", "method"}
        or type(mll) is not ExactMarginalLogLikelihood
        or mll.likelihood is not model.likelihood
        or model._fantasies is not None
        or any(prior.batch_shape for _, _, prior, _, _ in mll.named_priors())
    ) and all(
        _batch_shape_of(name, p) == shape
        for name, p in model.named_parameters()
        if p.requires_grad
    )


def objectives_of_elements(
    model: Any, mll: MarginalLogLikelihood, kwargs: dict[str, Any]
) -> list[LeafObjective]:
    """An objective in closed form for each element; none where one has none.

    Args:
        model: A ``LeafModel``.
        mll: Its objective; put in training mode.
        kwargs: See ``fit_gpytorch_mll``.
    """
    shape = model.train_targets.shape[:-1]
    # those that are held may be shared elsewhere, not here
    if not _fits_apart(model, mll, kwargs) or any(
        _batch_shape_of(name, p) != shape for name, p in model.named_parameters()
    ):
        return []
    mll.train()
    X, first = model.train_inputs[0], None
    out: list[LeafObjective] = []
    for index in np.ndindex(shape):
        inputs = X[index]
        # outputs have the same inputs, and so the same leaves
        if first is None or not torch.equal(inputs, first):
            first, structure = inputs, model.covar_module.structure(inputs)
        objective = LeafObjective.of(mll, index, structure)
        if objective is None:
            return []
        out.append(objective)
    return out


def fit_elements(
    model: Any,
    mll: MarginalLogLikelihood,
    objectives: list[LeafObjective],
    kwargs: dict[str, Any],
) -> MarginalLogLikelihood | None:
    """Fit each element by itself, which is what a fit of independent GPs is.

    Args:
        model: A ``LeafModel``.
        mll: Its objective.
        objectives: Those of the elements; empty for objectives without a closed form.
        kwargs: See ``fit_gpytorch_mll``.

    Returns:
        The objective in evaluation mode; None where one optimisation has to be for all
        elements, see ``_fits_apart``.
    """
    # it loads BoTorch's fits, see ``_botorch_names``
    from botorch_structured.models.map_fit import FIT_OPTIONS, fit_map

    if objectives:
        parameters, ends = list(mll.parameters()), []
        start = [p.detach().clone() for p in parameters]
        for objective in objectives:
            fit_map(mll, FIT_OPTIONS, objective=objective, **kwargs)
            ends.append(objective.read())
            # a retry draws the parameters of all elements
            for p, value in zip(parameters, start, strict=True):
                p.data.copy_(value)
        for objective, end in zip(objectives, ends, strict=True):
            objective.write(end)
        model._clear_cache()
        return mll.eval()
    if not _fits_apart(model, mll, kwargs):
        return None
    mll.train()
    shape = model.train_targets.shape[:-1]
    elements = make_elements(model) if model._is_by_leaf() else None
    if elements is None:
        return None
    free = {name for name, p in model.named_parameters() if p.requires_grad}
    X = model.transform_inputs(model.train_inputs[0])
    for index, element in zip(np.ndindex(shape), elements, strict=True):
        inputs = _element_of(X, index, 2)
        structure = element._structure(element.train_inputs[0])
        element.train_inputs = (inputs,)
        element._structure_cache = (inputs, element.covar_module, structure)
        values = _parameters_of(model, index) or {}
        for name, p in element.named_parameters():
            p.data.copy_(values[name])
            p.requires_grad_(name in free)
        own = ExactMarginalLogLikelihood(element.likelihood, element)
        element.custom_fit(own, **kwargs)
    with torch.no_grad():
        for index, element in zip(np.ndindex(shape), elements, strict=True):
            for name, p in (_parameters_of(model, index) or {}).items():
                p.copy_(element.get_parameter(name))
    model._clear_cache()
    return mll.eval()


# -- posteriors ---------------------------------------------------------------------


def posterior_of_elements(
    model: Any, elements: list[Any], X: Tensor
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
    X, train_X = _whole(X, 2), _whole(train_X, 2)
    if own and own == shape[before:] and num_rows == train_X.shape[-2]:
        found = _points_of_elements(model, elements, X, shape)
        if found is not None:
            return found
    means, covariances = [], []
    for index in np.ndindex(number.shape):
        element = elements[int(number[index])]
        points = _element_of(X, index, 2)
        if num_rows == train_X.shape[-2]:
            posterior = element._fast_posterior(points)
        else:
            new = _element_of(train_X, index, 2)[..., num_rows:, :]
            batch = torch.broadcast_shapes(points.shape[:-2], new.shape[:-2])
            both = [t.expand(*batch, *t.shape[-2:]) for t in (points, new)]
            outcomes = _element_of(targets, index, 1)[..., num_rows:]
            posterior = conditioned(
                element._fast_posterior(torch.cat(both, dim=-2)),
                outcomes,
                _noise_of_fantasies(model, element, index, outcomes.shape[-1]),
            )
        mean, covariance = posterior.mean, posterior.covariance_matrix
        means.append(mean.expand(*shape[:before], *mean.shape[-1:]))
        covariances.append(covariance.expand(*shape[:before], *covariance.shape[-2:]))
    mean, covariance = means[0], covariances[0]
    if own:
        mean = torch.stack(means, dim=-2).unflatten(-2, number.shape)
        covariance = torch.stack(covariances, dim=-3).unflatten(-3, number.shape)
    return MultivariateNormal(mean, to_linear_operator(covariance))


def _noise_of_fantasies(
    model: Any, element: Any, index: Sequence[int], count: int
) -> Tensor:
    """Noise variances of the last rows, ``lead x count``, with or without ``lead``."""
    noise = model.likelihood.noise_covar
    if isinstance(noise, FixedGaussianNoise):
        return _element_of(noise.noise, index, 1)[..., -count:]
    own, given = element.likelihood.noise.expand(count), model._fantasy_noise
    if given is not None:
        given = _element_of(_whole(given, 1), index, 1)
    return noise_of_rows(own, given)


def _points_of_elements(
    model: Any, elements: list[Any], X: Tensor, shape: torch.Size
) -> MultivariateNormal | None:
    """The posterior of points one by one that are the same for all elements.

    Args:
        model: A ``LeafModel`` with ``m`` elements that have no fantasies.
        elements: From ``make_elements``.
        X: ``batch_shape x 1 x d``, transformed.
        shape: Of the batch, that of the elements last.
    """
    own = model.train_targets.shape[:-1]
    alike = X.shape[max(X.ndim - 2 - len(own), 0) : -2].numel() == 1
    if not alike or X.shape[-2] != 1 or not X.numel() or functorch_is_active():
        return None
    moments = [element._moments() for element in elements]
    points = _element_of(X, (0,) * len(own), 2)
    flat = points.reshape(-1, X.shape[-1])
    found = [differentiable_moments(flat, one) for one in moments if one is not None]
    if len(found) < len(moments):
        return None
    mean, variance = (
        torch.stack(parts, -1).reshape(*points.shape[:-2], *own).expand(shape)
        for parts in zip(*found, strict=True)
    )
    variance = variance.clamp_min(settings.min_variance.value(variance.dtype))
    mean = mean.unsqueeze(-1) + model.mean_module(X.expand(*shape, *X.shape[-2:]))
    covariance = to_linear_operator(variance[..., None, None])
    return MultivariateNormal(mean, covariance)


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
