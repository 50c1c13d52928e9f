"""Which GPs are plain, and what of them an incremental evaluation needs.

Plain is an exact GP whose covariance is ``variance * k(r) + noise`` with a distance
that is a sum over columns, perhaps between rows on the same path only.
"""

from __future__ import annotations

__all__ = ["Form", "Kind", "find_form", "find_kinds", "is_plain"]

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from numpy.typing import NDArray

from botorch_structured.kernels.conditional import ConditionalKernel
from botorch_structured.kernels.laplace import LaplaceKernel
from botorch_structured.models.gaussian_noise import noise_is_known
from botorch_structured.models.prior_coordinates import PriorCoordinates
from botorch_structured.models.structured_inference import StructuredInference

Vector = NDArray[np.float64]
Correlation = Callable[[Vector, Vector], Vector]


def _rbf(distance: Vector, out: Vector) -> Vector:
    np.multiply(distance, -0.5, out=out)
    return np.exp(out, out=out)


def _matern52(distance: Vector, out: Vector) -> Vector:
    np.multiply(distance, 5.0, out=out)
    np.sqrt(out, out=out)
    polynomial = out * (1.0 / 3.0)
    polynomial += 1.0
    polynomial *= out
    polynomial += 1.0
    np.negative(out, out=out)
    np.exp(out, out=out)
    out *= polynomial
    return out


def _matern32(distance: Vector, out: Vector) -> Vector:
    np.multiply(distance, 3.0, out=out)
    np.sqrt(out, out=out)
    polynomial = out + 1.0
    np.negative(out, out=out)
    np.exp(out, out=out)
    out *= polynomial
    return out


def _matern12(distance: Vector, out: Vector) -> Vector:
    np.sqrt(distance, out=out)
    np.negative(out, out=out)
    return np.exp(out, out=out)


def _laplace(distance: Vector, out: Vector) -> Vector:
    np.negative(distance, out=out)
    return np.exp(out, out=out)


_MATERN: dict[float, Correlation] = {0.5: _matern12, 1.5: _matern32, 2.5: _matern52}


@dataclass(frozen=True)
class Form:
    """What of a model the evaluation needs.

    Attributes:
        correlation: Of the sum of |x_j - x'_j|^e / l_j^e.
        exponent: The e.
        points: What the kernel sees, ``n x e``.
        key: Rows with different keys have no covariance, ``n``; None: all are alike.
        length: The kernel with the lengthscales.
        scale: The kernel with the variance, if any.
    """

    correlation: Correlation
    exponent: float
    points: Vector
    key: NDArray[np.int64] | None
    length: Kernel
    scale: ScaleKernel | None


def find_form(model: SingleTaskGP) -> Form | None:
    """The form of a plain model (``is_plain``); None for other kernels.

    Args:
        model: Its training data are read as its input transform makes them; put in
            training mode.
    """
    model.train()  # in evaluation mode it holds inputs that are transformed already
    with torch.no_grad():
        points = model.transform_inputs(model.train_inputs[0])
        kernel, key = model.covar_module, None
        if type(kernel) is ConditionalKernel:
            places = kernel.structure(points).places
            points = torch.where(places.active, points, kernel.fill.to(points))
            key, kernel = places.key.cpu().numpy(), kernel.base_kernel
        scale = None
        columns = kernel.active_dims
        if type(kernel) is ScaleKernel:
            scale, kernel = kernel, kernel.base_kernel
        correlation: Correlation
        exponent = 2.0
        if type(kernel) is RBFKernel:
            correlation = _rbf
        elif type(kernel) is MaternKernel:
            correlation = _MATERN[kernel.nu]
        elif type(kernel) is LaplaceKernel:
            correlation, exponent = _laplace, 1.0
        else:
            return None
        if kernel.batch_shape or (scale is not None and scale.batch_shape):
            return None
        if columns is not None:
            points = points[..., columns]
    numbers = points.cpu().double().numpy()
    return Form(correlation, exponent, numbers, key, kernel, scale)


def is_plain(mll: MarginalLogLikelihood) -> bool:
    """Whether the objective is the evidence of an exact GP plus priors.

    Args:
        mll: The objective.
    """
    model = mll.model
    cls = type(model)
    own = getattr(cls, "compute_custom_loss", None)
    transform = getattr(model, "input_transform", None)
    return (
        type(mll) is ExactMarginalLogLikelihood
        and mll.likelihood is model.likelihood
        and isinstance(model, SingleTaskGP)
        and cls.forward is SingleTaskGP.forward
        and own in (None, StructuredInference.compute_custom_loss)
        and noise_is_known(mll.likelihood)
        and getattr(mll.likelihood, "second_noise_covar", None) is None
        and not any(True for _ in model.added_loss_terms())
        and (transform is None or not any(True for _ in transform.parameters()))
        and model.train_inputs[0].ndim == 2
        and model.train_targets.ndim == 1
        and bool(torch.isfinite(model.train_targets).all())
    )


@dataclass(frozen=True)
class Kind:
    """What one coordinate is.

    Attributes:
        name: "length", "scale", "noise" or "mean".
        index: Which of the lengthscales.
        power: It is this power of the coordinate's value.
    """

    name: str
    index: int
    power: float


def find_kinds(
    mll: MarginalLogLikelihood, coordinates: PriorCoordinates, form: Form
) -> list[Kind] | None:
    """What each coordinate is; None if one is something else.

    Args:
        mll: The objective.
        coordinates: Of its model.
        form: Of its model.
    """
    model = mll.model
    names = {form.length.raw_lengthscale: "length"}
    if form.scale is not None:
        names[form.scale.raw_outputscale] = "scale"
    if type(model.likelihood) is GaussianLikelihood:
        names[model.likelihood.noise_covar.raw_noise] = "noise"
    if type(model.mean_module) is ConstantMean:
        names[model.mean_module.raw_constant] = "mean"
    parameters = dict(model.named_parameters())
    kinds = []
    for block in coordinates.blocks:
        if block.power is None:
            return None
        name = names.get(parameters[next(iter(block.parameters))])
        if name is None or (name != "length" and block.size != 1):
            return None
        kinds += [Kind(name, i, block.power) for i in range(block.size)]
    return kinds
