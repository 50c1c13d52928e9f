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

__all__ = ["ModelDensity", "StationaryDensity"]

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.optim.closures import get_loss_closure
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError
from numpy.typing import NDArray
from scipy.linalg import lapack

from botorch_structured.kernels.laplace import LaplaceKernel
from botorch_structured.linalg.correlations import ARRAY_VALUES
from botorch_structured.models.fast_inference import FastInference, noise_is_known
from botorch_structured.models.sampled.coordinates import PriorCoordinates
from botorch_structured.models.tree.conditional_kernel import ConditionalKernel
from botorch_structured.models.tree.leaf_model import LeafModel

Vector = NDArray[np.float64]
Correlation = Callable[[Vector, Vector], Vector]

# A distance at which every correlation is exactly zero: exp(-sqrt(1e8)) underflows.
_APART = 1e8
# Distances of single columns are kept up to this many numbers (128 MiB).
_MAX_KEPT = 2**24
# With more rows ``ModelDensity`` is faster for a conditional kernel, whose blocks it
# factorises one by one, and for a model on a GPU.
_MANY_ROWS = 500
# The largest term that is subtracted from a distance: the sum of the others then has
# about twelve correct decimals. Above it (a very short lengthscale) distances are
# summed again.
_MAX_SUBTRACTED = 1e4
# Jitter as in linear_operator's psd_safe_cholesky in double precision.
_JITTERS = (0.0, 1e-8, 1e-7, 1e-6)
_MATERN = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}
# Implementations of the hook that compute the evidence of an exact GP.
_OWN_EVIDENCE = (None, FastInference._fast_evidence, LeafModel._fast_evidence)


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
        self._position = np.zeros(len(coordinates))
        self._trial = (0, 0.0)
        # restores the model after a position that was not accepted
        self._restore: Callable[[Vector], bool] | None = None

    @property
    def dim(self) -> int:
        """Number of coordinates, k."""
        return len(self.coordinates)

    def log_density(self, position: Vector) -> float:
        """Log density at a position, from scratch.

        Args:
            position: ``k``.
        """
        values = self.coordinates.to_values(position)
        if not self.coordinates.inside(values):
            return -math.inf
        if not self.coordinates.write_values(values):
            return -math.inf
        return self._objective() + self.coordinates.log_jacobian(position)

    def _objective(self) -> float:
        try:
            with torch.no_grad():
                value = -self.num_data * float(self._loss())
        except (NotPSDError, NanError, torch.linalg.LinAlgError):
            return -math.inf
        return value if math.isfinite(value) else -math.inf

    def move_to(self, position: Vector) -> float:
        """See ``Target.move_to``."""
        value = self.log_density(position)
        if math.isfinite(value):
            self._position, self._restore = position.copy(), None
        else:
            self._restore = self.coordinates.write_values
        return value

    def along(self, axis: int) -> Callable[[float], float]:
        """See ``Target.along``."""
        c, block = self.coordinates, self.coordinates.block_of[axis]
        values = c.to_values(self._position)
        if self._restore is not None:
            self._restore(values)
        self._restore = block.write_with_followers
        rest = c.log_jacobian(self._position)
        to_value = c.scalar_value(axis)
        if c.positive[axis]:
            rest -= self._position[axis]

        def log_density(coordinate: float) -> float:
            self._trial = (axis, coordinate)
            value = to_value(coordinate)
            if value is None:
                return -math.inf
            values[axis] = value
            if not block.write_with_followers(values):
                return -math.inf
            jacobian = coordinate if c.positive[axis] else 0.0
            return self._objective() + rest + jacobian

        return log_density

    def accept(self) -> None:
        """See ``Target.accept``."""
        axis, coordinate = self._trial
        self._position[axis] = coordinate
        self._restore = None


def _has_leaves(model: object) -> bool:
    return isinstance(model, LeafModel) and bool(model.tree.decision_columns)


# -- which GPs are plain ----------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """The parts of a model that the evaluation needs.

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


def _find_form(model: SingleTaskGP) -> _Form | None:
    """The form of a plain model (``_is_plain``); None for other kernels.

    Args:
        model: The model, which is put in training mode; its training inputs are
            transformed.
    """
    model.train()  # in evaluation mode its inputs are transformed already
    with torch.no_grad():
        points = model.transform_inputs(model.train_inputs[0])
        kernel, key = model.covar_module, None
        if type(kernel) is ConditionalKernel:
            places = kernel.locate(points)
            points = torch.where(places.active, points, kernel.fill.to(points))
            key, kernel = places.key.cpu().numpy(), kernel.base_kernel
        scale = None
        columns = kernel.active_dims
        if type(kernel) is ScaleKernel:
            scale, kernel = kernel, kernel.base_kernel
        exponent = 2.0
        if type(kernel) is RBFKernel:
            correlation = "rbf"
        elif type(kernel) is MaternKernel:
            correlation = _MATERN[kernel.nu]
        elif type(kernel) is LaplaceKernel:
            correlation, exponent = "laplace", 1.0
        else:
            return None
        if kernel.batch_shape or (scale is not None and scale.batch_shape):
            return None
        if columns is not None:
            points = points[..., columns]
    numbers = points.cpu().double().numpy()
    value = ARRAY_VALUES[correlation]
    return _Form(value, exponent, numbers, key, kernel, scale)


def _is_plain(mll: MarginalLogLikelihood) -> bool:
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
        and own in (None, FastInference.compute_custom_loss)
        and getattr(cls, "_fast_evidence", None) in _OWN_EVIDENCE
        and noise_is_known(mll.likelihood)
        and getattr(mll.likelihood, "second_noise_covar", None) is None
        and not any(True for _ in model.added_loss_terms())
        and (transform is None or not any(True for _ in transform.parameters()))
        and model.train_inputs[0].ndim == 2
        and model.train_targets.ndim == 1
        and bool(torch.isfinite(model.train_targets).all())
    )


@dataclass(frozen=True)
class _Kind:
    """The role of one coordinate.

    Attributes:
        name: "length", "scale", "noise" or "mean".
        index: The index of a lengthscale.
        power: The parameter is this power of the coordinate's value.
    """

    name: str
    index: int
    power: float


def _find_kinds(
    mll: MarginalLogLikelihood, coordinates: PriorCoordinates, form: _Form
) -> list[_Kind] | None:
    """The role of each coordinate; None if one has another role.

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
        name = names.get(parameters[block.parameter])
        if name is None or (name != "length" and block.size != 1):
            return None
        kinds += [_Kind(name, i, block.power) for i in range(block.size)]
    return kinds


# -- their density, one change at a time -------------------------------------------


class _State:
    """Results at one position.

    Attributes:
        distance: Sum over columns, packed.
        value: Its correlation, packed.
        factor: Cholesky factor of the covariance, packed.
        half: L^-1 (y - mean), ``n``.
        log_det: Log determinant of the covariance.
        log_prior: Log prior density, Jacobian included.
    """

    def __init__(self, size: int) -> None:
        self.distance, self.value, self.factor = (np.empty(size) for _ in range(3))
        self.half = np.empty(0)
        self.log_det = self.log_prior = 0.0


class StationaryDensity:
    """Same numbers as ``ModelDensity``, evaluated incrementally; a ``Target``.

    Use ``of``, which returns None for models that it does not support.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        coordinates: PriorCoordinates,
        form: _Form,
        kinds: list[_Kind],
    ) -> None:
        self.coordinates = coordinates
        self._form = form
        n = len(form.points)
        self.num_data = n
        numbers = np.arange(n * n, dtype=np.float64).reshape(n, n, order="F")
        packed, _ = lapack.dtrttf(numbers, transr="N", uplo="L")
        index = packed.astype(np.int64)
        self._rows, self._columns = index % n, index // n
        diagonal = np.flatnonzero(self._rows == self._columns)
        self._diagonal = diagonal[np.argsort(self._rows[diagonal])]  # row by row
        self._apart: Vector | None = None
        if form.key is not None:
            apart = form.key[self._rows] != form.key[self._columns]
            self._apart = np.where(apart, _APART, 0.0)
        self._differences: dict[int, Vector] = {}
        self._keep = form.points.shape[1] * len(index) <= _MAX_KEPT
        size = len(index)
        # results at the current position and at the last one evaluated
        self._now, self._new = _State(size), _State(size)
        self._kinds = kinds
        self._read(mll)

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
        n = mll.model.train_targets.shape[-1]
        remote = mll.model.train_targets.device.type != "cpu"
        if n == 0 or (n > _MANY_ROWS and remote):
            return None
        form = _find_form(mll.model)
        if form is None or (n > _MANY_ROWS and form.key is not None):
            return None
        kinds = _find_kinds(mll, coordinates, form)
        return None if kinds is None else cls(mll, coordinates, form, kinds)

    def _read(self, mll: MarginalLogLikelihood) -> None:
        """Read from the model what is constant: data, and parameters not sampled."""
        model, c, form = mll.model, self.coordinates, self._form
        with torch.no_grad():
            self._length = _numbers(form.length.lengthscale)
            self._scale = 1.0 if form.scale is None else float(form.scale.outputscale)
            noise = _numbers(model.likelihood.noise)
            self._noise = float(noise[0]) if noise.size == 1 else noise
            X = model.transform_inputs(model.train_inputs[0])
            mean = _numbers(model.mean_module(X))
            targets = _numbers(model.train_targets)
            self._residual = targets - mean
            self._ones = np.ones((self.num_data, 1), order="F")
            self._mean = float(mean[0]) if mean.size else 0.0
            # priors of parameters without a gradient are constants
            every = sum(
                float(prior.log_prob(closure(module)).sum())
                for _, module, prior, closure, _ in model.named_priors()
            )
        values = c.read_values()
        self._held_prior = every - sum(b.log_prior(b.part(values)) for b in c.blocks)
        self._constant = -0.5 * self.num_data * math.log(2.0 * math.pi)
        self._position = c.to_position(values)
        self._trial: tuple[int, float, float] = (0, 0.0, 0.0)

    @property
    def dim(self) -> int:
        """Number of coordinates, k."""
        return len(self.coordinates)

    def move_to(self, position: Vector) -> float:
        """See ``Target.move_to``."""
        c, new = self.coordinates, self._new
        values = c.to_values(position)
        if not c.inside(values):
            return -math.inf
        before = self._scale, self._noise, self._residual, self._mean
        lengths = self._length.copy()
        for kind, value in zip(self._kinds, values.tolist(), strict=True):
            self._set(kind, value**kind.power)
        self._sum_distances(new.distance)
        new.value = self._form.correlation(new.distance, new.value)
        new.log_prior = c.log_prior(position) + self._held_prior
        evidence = self._evidence(new, new.value, self._scale, self._noise)
        result = evidence + new.log_prior
        if not math.isfinite(result):
            self._scale, self._noise, self._residual, self._mean = before
            self._length = lengths
            return -math.inf
        self._position = position.copy()
        self._now, self._new = new, self._now
        return result

    def _sum_distances(self, out: Vector, without: int | None = None) -> Vector:
        """Sum of distances, without the columns of one lengthscale if given."""
        out[:] = 0.0 if self._apart is None else self._apart
        for k, length in enumerate(self._length.tolist()):
            if k != without:
                out += length**-self._form.exponent * self._difference(k)
        return out

    def _set(self, kind: _Kind, natural: float) -> None:
        if kind.name == "length":
            self._length[kind.index] = natural
        elif kind.name == "scale":
            self._scale = natural
        elif kind.name == "noise":
            self._noise = natural
        else:
            self._residual = self._residual + (self._mean - natural)
            self._mean = natural

    def along(self, axis: int) -> Callable[[float], float]:
        """See ``Target.along``."""
        c, kind = self.coordinates, self._kinds[axis]
        start = float(self._position[axis])
        to_value = c.scalar_value(axis)
        if kind.name == "length":
            evidence = self._along_length(kind.index)
        elif kind.name == "mean":
            evidence = self._along_mean()
        else:
            evidence = self._along_variance(kind)
        prior = c.log_prior_along(self._position, axis)
        rest = self._now.log_prior - prior(
            start, float(c.to_values(self._position)[axis])
        )

        def log_density(coordinate: float) -> float:
            value = to_value(coordinate)
            if value is None:
                return -math.inf
            natural = value**kind.power
            self._trial = (axis, coordinate, natural)
            self._new.log_prior = rest + prior(coordinate, value)
            if not math.isfinite(self._new.log_prior):
                return -math.inf
            return evidence(natural) + self._new.log_prior

        return log_density

    def _along_length(self, index: int) -> Callable[[float], float]:
        new, e = self._new, self._form.exponent
        difference = self._difference(index)
        mine = self._length[index] ** -e * difference
        if mine.max(initial=0.0) > _MAX_SUBTRACTED:
            rest = self._sum_distances(mine, without=index)
        else:
            rest = np.maximum(self._now.distance - mine, 0.0)

        def evidence(length: float) -> float:
            np.multiply(difference, length**-e, out=new.distance)
            new.distance += rest
            new.value = self._form.correlation(new.distance, new.value)
            return self._evidence(new, new.value, self._scale, self._noise)

        return evidence

    def _along_variance(self, kind: _Kind) -> Callable[[float], float]:
        new, value = self._new, self._now.value
        if kind.name == "scale":
            return lambda scale: self._evidence(new, value, scale, self._noise)
        return lambda noise: self._evidence(new, value, self._scale, noise)

    def _along_mean(self) -> Callable[[float], float]:
        new, now = self._new, self._now
        unit = _half_solve(now.factor, self._ones)
        new.log_det = now.log_det

        def evidence(mean: float) -> float:
            new.half = now.half + (self._mean - mean) * unit
            return self._constant - 0.5 * (float(new.half @ new.half) + new.log_det)

        return evidence

    def accept(self) -> None:
        """See ``Target.accept``."""
        axis, coordinate, natural = self._trial
        kind, now, new = self._kinds[axis], self._now, self._new
        self._position[axis] = coordinate
        self._set(kind, natural)
        now.log_prior, now.log_det, now.half = new.log_prior, new.log_det, new.half
        if kind.name == "length":
            now.distance, new.distance = new.distance, now.distance
            now.value, new.value = new.value, now.value
        if kind.name != "mean":
            now.factor, new.factor = new.factor, now.factor

    def _difference(self, k: int) -> Vector:
        """Sum over the columns of lengthscale k of |x - x'|^e, packed."""
        if k in self._differences:
            return self._differences[k]
        points = self._form.points
        shared = len(self._length) == 1
        total = np.zeros(len(self._rows))
        for j in range(points.shape[1]) if shared else (k,):
            x = points[:, j]
            total += np.abs(x[self._rows] - x[self._columns]) ** self._form.exponent
        if self._keep:
            self._differences[k] = total
        return total

    def _evidence(
        self, state: _State, value: Vector, scale: float, noise: float | Vector
    ) -> float:
        """Log N(y; mean, scale * value + noise); fills the factor of ``state``."""
        n = self.num_data
        for jitter in _JITTERS:
            np.multiply(value, scale, out=state.factor)
            state.factor[self._diagonal] += noise + jitter
            state.factor, info = lapack.dpftrf(
                n, state.factor, transr="N", uplo="L", overwrite_a=1
            )
            if info == 0:
                break
        else:
            return -math.inf
        state.half = _half_solve(state.factor, self._residual[:, None])
        state.log_det = 2.0 * float(np.log(state.factor[self._diagonal]).sum())
        result = self._constant - 0.5 * (float(state.half @ state.half) + state.log_det)
        return result if math.isfinite(result) else -math.inf


def _numbers(tensor: torch.Tensor) -> Vector:
    return tensor.detach().reshape(-1).cpu().double().numpy().copy()


def _half_solve(factor: Vector, right: Vector) -> Vector:
    """L^-1 b of a packed factor and an ``n x 1`` right-hand side, ``n``."""
    solved = lapack.dtfsm(
        1.0, factor, right, transr="N", side="L", uplo="L", trans="N", diag="N"
    )
    return solved[:, 0]
