"""The log posterior density of hyperparameters, from the objective of a fit.

``ModelDensity`` is the definition and works for any GP: it sets the parameters and
evaluates BoTorch's objective. ``StationaryDensity`` computes the same numbers ten to
seventy times faster for plain GPs, whose covariance is ``variance * k(r) + noise`` with
a distance that is a sum over columns, r = sum_j c_j d_j(x, x'), for all rows or only
for rows on the same path. Changing one lengthscale then changes r by a multiple of one
matrix, and changing variance or noise takes no new exponentials. Matrices are packed
triangles (rectangular full packed format), which LAPACK factorises in place, without a
copy. Most of the time is then that of the Cholesky factorisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.optim.closures import get_loss_closure
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError
from numpy.typing import NDArray
from scipy.linalg import lapack

from botorch_structured.linalg.correlations import ARRAY_VALUES, computes_as
from botorch_structured.models.fast_inference import (
    FastInference,
    noise_is_known,
)
from botorch_structured.models.sampled.coordinates import PriorCoordinates
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.form import UnknownFormError, correlation_of
from botorch_structured.models.tree.leaf_model import LeafModel

Vector = NDArray[np.float64]
Correlation = Callable[[Vector, Vector], Vector]

# The largest term that is subtracted from a distance: the sum of the others then has
# about twelve correct decimals. Above it (a very short lengthscale) distances are
# summed again.
_MAX_SUBTRACTED = 1e4


class ModelDensity:
    """n times the objective of a fit, plus the log Jacobian of the coordinates.

    The objective is BoTorch's for this model, its own ``compute_custom_loss`` where it
    has one, in closed form where fits have that; all priors are part of it. A
    ``Target`` of the slice sampler.

    Args:
        mll: The objective; evaluations change its model.
        coordinates: Coordinates of ``mll.model``.
    """

    def __init__(
        self, mll: MarginalLogLikelihood, coordinates: PriorCoordinates
    ) -> None:
        self.mll = mll.train()
        self.coordinates = coordinates
        self.num_data = mll.model.train_targets.numel()
        closed = mll.model.fit_objective(mll) if _has_leaves(mll.model) else None
        self._loss = closed.loss if closed else get_loss_closure(mll)
        self._position = self._trial = np.zeros(len(coordinates))
        self._written: Vector | None = None  # values that the model has

    @property
    def dim(self) -> int:
        """Number of coordinates, k."""
        return len(self.coordinates)

    def log_density(self, position: Vector) -> float:
        """Log density at a position, from scratch.

        Args:
            position: ``k``.
        """
        c = self.coordinates
        values = c.to_values(position)
        if not c.inside(values):
            return -math.inf
        c.write_values(values, self._written)
        self._written = values
        try:
            with torch.no_grad():
                value = -self.num_data * float(self._loss())
        except (NotPSDError, NanError, torch.linalg.LinAlgError):
            return -math.inf
        return value + c.log_jacobian(position) if math.isfinite(value) else -math.inf

    def move_to(self, position: Vector) -> float:
        """See ``Target.move_to``."""
        value = self.log_density(position)
        if math.isfinite(value):
            self._position = position.copy()
        return value

    def along(self, axis: int) -> Callable[[float], float]:
        """See ``Target.along``."""
        self._trial = self._position.copy()

        def log_density(coordinate: float) -> float:
            self._trial[axis] = coordinate
            return self.log_density(self._trial)

        return log_density

    def accept(self) -> None:
        """See ``Target.accept``."""
        self._position = self._trial.copy()


def _has_leaves(model: object) -> bool:
    return isinstance(model, LeafModel) and bool(model.tree.decision_columns)


# -- which GPs are plain ----------------------------------------------------------


@dataclass(frozen=True)
class _PlainKernel:
    """The kernel of a plain GP, and its data.

    Attributes:
        correlation: A function of the sum of |x_j - x'_j|^e / l_j^e.
        exponent: The e.
        points: Inputs of the kernel, ``n x e``.
        key: Rows with different keys have zero covariance, ``n``; None: one key for
            all.
        length: The kernel with the lengthscales.
        scale: The kernel with the variance, if any.
    """

    correlation: Correlation
    exponent: float
    points: Vector
    key: NDArray[np.int64] | None
    length: Kernel
    scale: ScaleKernel | None


def _plain_kernel(model: SingleTaskGP) -> _PlainKernel:
    """That of a model in training mode for which ``_is_plain`` holds.

    Args:
        model: The model.

    Raises:
        UnknownFormError: For other kernels than those of ``StationaryDensity.of``.
    """
    with torch.no_grad():
        points = model.transform_inputs(model.train_inputs[0])
        kernel = model.covar_module
        key = None
        if isinstance(kernel, ConditionalKernel):
            places = kernel.locate(points)
            points = torch.where(places.active, points, kernel.fill.to(points))
            key = places.key.cpu().numpy()
            kernel = kernel.base_kernel
        scale = None
        columns = kernel.active_dims
        if isinstance(kernel, ScaleKernel):
            scale = kernel
            kernel = kernel.base_kernel
        name, exponent, unordered = correlation_of(kernel)
        if unordered or kernel.batch_shape or (scale and scale.batch_shape):
            raise UnknownFormError
        if columns is not None:
            points = points[..., columns]
    numbers = points.cpu().double().numpy()
    return _PlainKernel(ARRAY_VALUES[name], exponent, numbers, key, kernel, scale)


def _is_plain(mll: MarginalLogLikelihood) -> bool:
    """Whether the objective is the evidence of an exact GP plus priors.

    Args:
        mll: The objective.
    """
    model = mll.model
    loss = getattr(type(model), "compute_custom_loss", None)
    evidence = getattr(type(model), "_fast_evidence", None)
    exact = None, FastInference._fast_evidence, LeafModel._fast_evidence
    transform = getattr(model, "input_transform", None)
    return (
        type(mll) is ExactMarginalLogLikelihood
        and mll.likelihood is model.likelihood
        and computes_as(model, SingleTaskGP)
        and loss in (None, FastInference.compute_custom_loss)
        and evidence in exact
        and noise_is_known(mll.likelihood)
        and getattr(mll.likelihood, "second_noise_covar", None) is None
        and not any(True for _ in model.added_loss_terms())
        and (transform is None or not any(True for _ in transform.parameters()))
        and model.train_inputs[0].ndim == 2
        and model.train_targets.ndim == 1
        and bool(torch.isfinite(model.train_targets).all())
    )


class _Role(NamedTuple):
    """The role of one coordinate.

    Attributes:
        name: "length", "scale", "noise" or "mean".
        column: The place of a lengthscale.
        power: The parameter is this power of the coordinate's value.
    """

    name: str
    column: int
    power: float


def _find_roles(
    mll: MarginalLogLikelihood, coordinates: PriorCoordinates, kernel: _PlainKernel
) -> list[_Role]:
    """The role of each coordinate.

    Args:
        mll: The objective.
        coordinates: Of its model.
        kernel: Of its model.

    Raises:
        UnknownFormError: If one has another role.
    """
    model = mll.model
    names = {kernel.length.raw_lengthscale: "length"}
    if kernel.scale is not None:
        names[kernel.scale.raw_outputscale] = "scale"
    if isinstance(model.likelihood, GaussianLikelihood):
        names[model.likelihood.noise_covar.raw_noise] = "noise"
    mean = model.mean_module
    if computes_as(mean, ConstantMean):
        names[mean.raw_constant] = "mean"
    parameters = dict(model.named_parameters())
    roles = []
    for block in coordinates.blocks:
        name = names.get(parameters[block.parameter])
        if name is None or (name != "length" and block.size > 1):
            raise UnknownFormError
        roles += [_Role(name, i, block.power) for i in range(block.size)]
    return roles


# -- their density, one change at a time -------------------------------------------


class _Naturals(NamedTuple):
    """Values of the parameters: lengthscales ``e``, variance, noise, mean."""

    length: Vector
    scale: float
    noise: float | Vector
    mean: float | Vector

    def changed(self, role: _Role, natural: float) -> _Naturals:
        """With another value of one of them."""
        if role.name != "length":
            changed: dict[str, Any] = {role.name: natural}
            return self._replace(**changed)
        length = self.length.copy()
        length[role.column] = natural
        return self._replace(length=length)


class StationaryDensity:
    """Same numbers as ``ModelDensity``, evaluated incrementally; a ``Target``.

    Use ``of``, which returns None for models that it does not support.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        coordinates: PriorCoordinates,
        kernel: _PlainKernel,
        roles: list[_Role],
    ) -> None:
        self.coordinates = coordinates
        self._kernel = kernel
        self._roles = roles
        n = len(kernel.points)
        numbers = np.arange(n * n, dtype=np.float64).reshape(n, n, order="F")
        packed, _ = lapack.dtrttf(numbers, transr="N", uplo="L")
        index = packed.astype(np.int64)
        self._rows = index % n
        self._columns = index // n
        diagonal = np.flatnonzero(self._rows == self._columns)
        self._diagonal = diagonal[np.argsort(self._rows[diagonal])]  # row by row
        self._apart = np.zeros(len(index))
        if kernel.key is not None:
            apart = kernel.key[self._rows] != kernel.key[self._columns]
            self._apart[apart] = 1e8  # every correlation is zero: exp underflows
        # packed: sums of distances over columns, and their correlations, at the current
        # position and at the last one with another lengthscale
        self._distance, self._value, self._next_distance, self._next_value = np.empty(
            (4, len(index))
        )
        self._factor = np.empty(len(index))
        model = mll.model
        with torch.no_grad():
            noise = _numbers(model.likelihood.noise)
            mean = model.mean_module(model.transform_inputs(model.train_inputs[0]))
            self._now = _Naturals(
                _numbers(kernel.length.lengthscale),
                1.0 if kernel.scale is None else float(kernel.scale.outputscale),
                float(noise[0]) if noise.size == 1 else noise,
                _numbers(mean),
            )
            self._targets = _numbers(model.train_targets)
            # priors of parameters without a gradient are constants
            log_priors = sum(
                float(prior.log_prob(closure(module)).sum())
                for _, module, prior, closure, _ in model.named_priors()
            )
        values = coordinates.read_values()
        of_blocks = (b.log_prior(b.part(values)) for b in coordinates.blocks)
        self._constant_prior = log_priors - sum(of_blocks)
        self._log_prior = 0.0
        self._position = coordinates.to_position(values)
        self._trial = (0, 0.0, self._now, 0.0)

    @classmethod
    def of(
        cls, mll: MarginalLogLikelihood, coordinates: PriorCoordinates
    ) -> StationaryDensity | None:
        """The density of a model, or None for a model that is not plain.

        Plain is the exact evidence of a ``SingleTaskGP``, or of a model that differs
        from it in its kernel only: an RBF, Matern or Laplace kernel, scaled or not,
        perhaps in a ``ConditionalKernel``; one output, no batch; Gaussian or fixed
        noise; priors on parameters or their square roots.

        Args:
            mll: The objective; put in training mode, as by ``ModelDensity``.
            coordinates: Of ``mll.model``.
        """
        mll.train()  # in evaluation mode inputs are transformed already
        if coordinates.derived or not _is_plain(mll):
            return None
        try:
            kernel = _plain_kernel(mll.model)
            return cls(mll, coordinates, kernel, _find_roles(mll, coordinates, kernel))
        except UnknownFormError:
            return None

    @property
    def dim(self) -> int:
        """Number of coordinates, k."""
        return len(self.coordinates)

    def move_to(self, position: Vector) -> float:
        """See ``Target.move_to``."""
        c = self.coordinates
        natural = self._now
        values = c.to_values(position)
        if not c.inside(values):
            return -math.inf
        for role, value in zip(self._roles, values.tolist(), strict=True):
            natural = natural.changed(role, value**role.power)
        self._sum_distances(natural.length, self._next_distance)
        log_prior = c.log_prior(position) + self._constant_prior
        result = self._evidence(self._next_correlation(), natural) + log_prior
        if not math.isfinite(result):
            return -math.inf
        self._now = natural
        self._log_prior = log_prior
        self._position = position.copy()
        self._swap()
        return result

    def along(self, axis: int) -> Callable[[float], float]:
        """See ``Target.along``."""
        c = self.coordinates
        role = self._roles[axis]
        start = float(self._position[axis])
        to_value = c.scalar_value(axis)
        along_length = None
        if role.name == "length":
            along_length = self._along_length(role.column)
        prior = c.log_prior_along(self._position, axis)
        rest = self._log_prior - prior(start, float(c.to_values(self._position)[axis]))

        def log_density(coordinate: float) -> float:
            value = to_value(coordinate)
            if value is None:
                return -math.inf
            natural = value**role.power
            log_prior = rest + prior(coordinate, value)
            if not math.isfinite(log_prior):
                return -math.inf
            trial = self._now.changed(role, natural)
            self._trial = (axis, coordinate, trial, log_prior)
            correlation = along_length(natural) if along_length else self._value
            return self._evidence(correlation, trial) + log_prior

        return log_density

    def accept(self) -> None:
        """See ``Target.accept``."""
        axis, self._position[axis], self._now, self._log_prior = self._trial
        if self._roles[axis].name == "length":
            self._swap()

    def _swap(self) -> None:
        last = self._distance
        self._distance = self._next_distance
        self._next_distance = last
        last = self._value
        self._value = self._next_value
        self._next_value = last

    def _along_length(self, index: int) -> Callable[[float], Vector]:
        """Correlations as a function of one lengthscale."""
        e = self._kernel.exponent
        lengths = self._now.length
        difference = self._difference(index)
        rest = lengths[index] ** -e * difference
        if rest.max(initial=0.0) > _MAX_SUBTRACTED:
            self._sum_distances(lengths, rest, without=index)
        else:
            rest = np.maximum(self._distance - rest, 0.0)

        def correlation(length: float) -> Vector:
            np.multiply(difference, length**-e, out=self._next_distance)
            self._next_distance += rest
            return self._next_correlation()

        return correlation

    def _next_correlation(self) -> Vector:
        self._next_value = self._kernel.correlation(
            self._next_distance, self._next_value
        )
        return self._next_value

    def _sum_distances(
        self, lengths: Vector, out: Vector, without: int | None = None
    ) -> None:
        """Sum of distances, without the columns of one lengthscale if given."""
        out[:] = self._apart
        for k, length in enumerate(lengths.tolist()):
            if k != without:
                out += length**-self._kernel.exponent * self._difference(k)

    def _difference(self, k: int) -> Vector:
        """Sum over the columns of lengthscale k of |x - x'|^e, packed."""
        points = self._kernel.points
        total = np.zeros(len(self._rows))
        for x in points.T if len(self._now.length) == 1 else points.T[k : k + 1]:
            total += np.abs(x[self._rows] - x[self._columns]) ** self._kernel.exponent
        return total

    def _evidence(self, value: Vector, natural: _Naturals) -> float:
        """Log N(y; mean, scale * value + noise)."""
        n = len(self._targets)
        for jitter in (0.0, 1e-8, 1e-7, 1e-6):  # as in psd_safe_cholesky
            np.multiply(value, natural.scale, out=self._factor)
            self._factor[self._diagonal] += natural.noise + jitter
            self._factor, info = lapack.dpftrf(
                n, self._factor, transr="N", uplo="L", overwrite_a=1
            )
            if info == 0:
                break
        else:
            return -math.inf
        residual = (self._targets - natural.mean)[:, None]
        half = lapack.dtfsm(1.0, self._factor, residual, uplo="L")[:, 0]
        log_det = 2.0 * float(np.log(self._factor[self._diagonal]).sum())
        constant = -0.5 * n * math.log(2.0 * math.pi)
        result = constant - 0.5 * (float(half @ half) + log_det)
        return result if math.isfinite(result) else -math.inf


def _numbers(tensor: torch.Tensor) -> Vector:
    return tensor.detach().reshape(-1).cpu().double().numpy().copy()
