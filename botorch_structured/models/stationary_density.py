"""The log posterior density of hyperparameters of plain GPs, one change at a time.

Where the covariance is ``variance * k(r) + noise`` with a distance that is a sum over
columns, r = sum_j c_j d_j(x, x'), changing one lengthscale changes r by a multiple of
one matrix, and changing variance or noise takes no new exponentials. All of it stays in
the packed triangle that LAPACK factorises in place (rectangular full packed format), so
that nothing is done twice or copied; what is left is the Cholesky factorisation.
"""

from __future__ import annotations

__all__ = ["StationaryDensity"]

import math
from collections.abc import Callable

import numpy as np
import torch
from gpytorch.mlls import MarginalLogLikelihood
from numpy.typing import NDArray
from scipy.linalg import lapack

from botorch_structured.models.prior_coordinates import PriorCoordinates
from botorch_structured.models.stationary_form import (
    Form,
    Kind,
    find_form,
    find_kinds,
    is_plain,
)

Vector = NDArray[np.float64]

# A distance at which every correlation is exactly zero: exp(-sqrt(1e8)) underflows.
_APART = 1e8
# Distances of single columns are kept up to this many numbers (128 MiB).
_MAX_KEPT = 2**24
# Above so many rows the blocks of a conditional kernel are cheaper one by one, and so
# is a GPU where the model lives on one.
_MANY_ROWS = 500
# What may be taken off a distance and leave its other terms twelve digits or so after
# the point; after a very short lengthscale they are added up again.
_MAX_SUBTRACTED = 1e4
# As linear_operator's psd_safe_cholesky in double precision.
_JITTERS = (0.0, 1e-8, 1e-7, 1e-6)


class _State:
    """What is known at a position.

    Attributes:
        distance: Sum over columns, packed.
        value: Its correlation, packed.
        factor: Cholesky factor of the covariance, packed.
        half: L^-1 (y - mean), ``n``.
        log_det: Log determinant of the covariance.
        log_prior: Jacobian included.
    """

    def __init__(self, size: int) -> None:
        self.distance, self.value, self.factor = (np.empty(size) for _ in range(3))
        self.half = np.empty(0)
        self.log_det = self.log_prior = 0.0


class StationaryDensity:
    """Same numbers as ``ModelDensity``, evaluated incrementally; a ``Target``.

    Made by ``of``, which says where it applies.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        coordinates: PriorCoordinates,
        form: Form,
        kinds: list[Kind],
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
        # of the current position, and of the one evaluated last
        self._now, self._new = _State(size), _State(size)
        self._kinds = kinds
        self._read(mll)

    @classmethod
    def of(
        cls, mll: MarginalLogLikelihood, coordinates: PriorCoordinates
    ) -> StationaryDensity | None:
        """The density of a model, or None where this is not for it.

        It is for the exact evidence of ``SingleTaskGP`` and of models that differ from
        it in their kernel only: RBF, Matern and Laplace kernels, scaled or not, and a
        ``ConditionalKernel`` around them; one output, no batch; Gaussian or fixed
        noise; priors on powers of the parameters themselves.

        Args:
            mll: The objective; put in training mode, as by ``ModelDensity``.
            coordinates: Of ``mll.model``.
        """
        mll.train()  # in evaluation mode a model holds transformed inputs
        if coordinates.derived or not is_plain(mll):
            return None
        n = mll.model.train_targets.shape[-1]
        remote = mll.model.train_targets.device.type != "cpu"
        if n == 0 or (n > _MANY_ROWS and remote):
            return None
        form = find_form(mll.model)
        if form is None or (n > _MANY_ROWS and form.key is not None):
            return None
        kinds = find_kinds(mll, coordinates, form)
        return None if kinds is None else cls(mll, coordinates, form, kinds)

    def _read(self, mll: MarginalLogLikelihood) -> None:
        """What does not change, and what is not sampled, from the model."""
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
            # priors on what the user holds are constants
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
        """Distances from scratch, perhaps without those of one lengthscale."""
        out[:] = 0.0 if self._apart is None else self._apart
        for k, length in enumerate(self._length.tolist()):
            if k != without:
                out += length**-self._form.exponent * self._difference(k)
        return out

    def _set(self, kind: Kind, natural: float) -> None:
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
        evidence = getattr(self, f"_along_{kind.name}")(kind)
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

    def _along_length(self, kind: Kind) -> Callable[[float], float]:
        new, e = self._new, self._form.exponent
        difference = self._difference(kind.index)
        mine = self._length[kind.index] ** -e * difference
        if mine.max(initial=0.0) > _MAX_SUBTRACTED:
            rest = self._sum_distances(mine, without=kind.index)
        else:
            rest = np.maximum(self._now.distance - mine, 0.0)

        def evidence(length: float) -> float:
            np.multiply(difference, length**-e, out=new.distance)
            new.distance += rest
            new.value = self._form.correlation(new.distance, new.value)
            return self._evidence(new, new.value, self._scale, self._noise)

        return evidence

    def _along_scale(self, kind: Kind) -> Callable[[float], float]:
        new, value = self._new, self._now.value
        return lambda scale: self._evidence(new, value, scale, self._noise)

    def _along_noise(self, kind: Kind) -> Callable[[float], float]:
        new, value = self._new, self._now.value
        return lambda noise: self._evidence(new, value, self._scale, noise)

    def _along_mean(self, kind: Kind) -> Callable[[float], float]:
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
