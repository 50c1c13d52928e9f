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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.optim.closures import get_loss_closure
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError
from scipy.linalg import lapack
from torch.nn import Parameter

from botorch_structured.kernels.leaf_kernels import ConditionalKernel
from botorch_structured.linalg.correlations import ARRAY_VALUES, computes_as
from botorch_structured.linalg.parameters import UnknownFormError
from botorch_structured.models.fast_inference import FastInference, noise_is_known
from botorch_structured.models.sampled.coordinates import PriorCoordinates, Vector
from botorch_structured.models.tree.form import correlation_of
from botorch_structured.models.tree.leaf_model import LeafModel


class ModelDensity:
    """n times the objective of a fit, plus the log Jacobian of the coordinates.

    The objective is BoTorch's for this model, its own ``compute_custom_loss`` where it
    has one, in closed form where fits have that; all priors are part of it. Every point
    is evaluated from scratch.

    Args:
        mll: The objective; evaluations change its model.
        coordinates: Coordinates of ``mll.model``.
    """

    def __init__(
        self, mll: MarginalLogLikelihood, coordinates: PriorCoordinates
    ) -> None:
        mll.train()
        model = mll.model
        self.mll = mll
        self.coordinates = coordinates
        self.num_data = model.train_targets.numel()
        closed = model.fit_objective(mll) if isinstance(model, LeafModel) else None
        self._loss = closed.loss if closed else get_loss_closure(mll)
        self._values: Vector | None = None  # that the model has

    def move_to(self, position: Vector) -> float:
        """Make ``position`` current, if its log density, returned, is finite.

        Otherwise (``-inf``, outside the support) nothing changes.
        """
        c = self.coordinates
        if not c.inside(position):
            return -math.inf
        values = c.to_values(position)
        c.write_values(values, self._values)
        self._values = values
        try:
            with torch.no_grad():
                value = -self.num_data * float(self._loss())
        except (NotPSDError, NanError, torch.linalg.LinAlgError):
            return -math.inf
        if not math.isfinite(value):
            return -math.inf
        return value + float(c.log_jacobian(position))

    def along(self, position: Vector, axis: int) -> Callable[[float], float]:
        """The log density as a function of one coordinate of the current position."""
        trial = position.copy()

        def log_density(coordinate: float) -> float:
            trial[axis] = coordinate
            return self.move_to(trial)

        return log_density

    def accept(self) -> None:
        """Make the last point evaluated by what ``along`` returned current."""


class BatchedDensity(ModelDensity):
    """Same numbers as ``ModelDensity``, of a position of each chain in one evaluation.

    Where that returns a density, this returns the position, for ``evaluate``.

    Args:
        mll: The objective, on a GPU.
        coordinates: Coordinates of ``mll.model``.
        num_chains: How many positions.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        coordinates: PriorCoordinates,
        num_chains: int,
    ) -> None:
        # it loads BoTorch's fits, see ``_botorch_names``
        from botorch_structured.models.map_fit import DeviceObjective, cuda_graph

        super().__init__(mll, coordinates)
        objective = DeviceObjective(mll, cuda_graph)
        self._free = objective.free
        self._losses = objective.at_once(num_chains)

    def move_to(self, position: Vector) -> Any:
        """The position, ``k``."""
        return position

    def evaluate(self, positions: Sequence[Vector]) -> list[float]:
        """Log densities of a position of each chain."""
        c = self.coordinates
        points = np.stack(positions)
        values = c.to_values(points)
        sampled = {b.raw: b.to_raw(values[:, b.places]) for b in c.blocks}
        parts = []
        for p in self._free:
            part = sampled.get(p, p.detach().expand(len(points), *p.shape))
            parts.append(part.flatten(1))
        losses = self._losses(torch.cat(parts, -1))[:, 0]
        result = c.log_jacobian(points) - self.num_data * losses
        real = c.inside(points) & np.isfinite(result)
        return np.where(real, result, -np.inf).tolist()


def _is_plain(mll: MarginalLogLikelihood) -> bool:
    """Whether the objective is the evidence of an exact GP plus priors.

    Args:
        mll: The objective.
    """
    model = mll.model
    loss = getattr(type(model), "compute_custom_loss", None)
    evidence = getattr(type(model), "_fast_evidence", None)
    exact = None, FastInference._fast_evidence, LeafModel._fast_evidence
    return (
        type(mll) is ExactMarginalLogLikelihood
        and mll.likelihood is model.likelihood
        and computes_as(model, SingleTaskGP)
        and loss in (None, FastInference.compute_custom_loss)
        and evidence in exact
        and noise_is_known(mll.likelihood)
        and not any(True for _ in model.added_loss_terms())
    )


class StationaryDensity:
    """Same numbers as ``ModelDensity``, evaluated incrementally.

    Use ``of``, which returns None for models that it does not support.

    Raises:
        UnknownFormError: For other kernels, or coordinates.
    """

    def __init__(
        self, mll: MarginalLogLikelihood, coordinates: PriorCoordinates
    ) -> None:
        if coordinates.densities is None:
            raise UnknownFormError
        self.coordinates = coordinates
        self._densities = coordinates.densities
        model = mll.model
        with torch.no_grad():
            points = model.transform_inputs(model.train_inputs[0])
            mean = _numbers(model.mean_module(points))
            kernel = model.covar_module
            key = None
            if isinstance(kernel, ConditionalKernel):
                places = kernel.locate(points)
                points = torch.where(
                    places.active,
                    points,
                    kernel.fill.to(points),
                )
                key = places.key.cpu().numpy()
                kernel = kernel.base_kernel
            if kernel.active_dims is not None:
                points = points[..., kernel.active_dims]
            scale: Any = None
            if isinstance(kernel, ScaleKernel):
                scale = kernel
                kernel = kernel.base_kernel
            name, self._exponent, unordered = correlation_of(kernel)
            if unordered or kernel.batch_shape or (scale and scale.batch_shape):
                raise UnknownFormError
            # lengthscales, variance, noise, mean
            self._parameters = np.append(_numbers(kernel.lengthscale), [1.0, 0.0, 0.0])
            first: dict[Parameter, int] = {kernel.raw_lengthscale: 0}
            if scale is not None:
                self._parameters[-3] = scale.outputscale.item()
                first[scale.raw_outputscale] = -3
            # what is not sampled is the same for all rows, or has a number for each
            noise = _numbers(model.likelihood.noise)
            if isinstance(model.likelihood, GaussianLikelihood):
                self._parameters[-2] = noise[0]
                first[model.likelihood.noise_covar.raw_noise] = -2
            if computes_as(model.mean_module, ConstantMean):
                self._parameters[-1] = mean[0]
                first[model.mean_module.raw_constant] = -1
            self._noise = noise - self._parameters[-2]
            self._targets = _numbers(model.train_targets) - (
                mean - self._parameters[-1]
            )
            log_prior = sum(
                float(prior.log_prob(closure(module)).sum())
                for _, module, prior, closure, _ in model.named_priors()
            )
        self._correlation = ARRAY_VALUES[name]
        self._places: list[int] = []
        self._powers: list[float] = []
        for block in coordinates.blocks:
            size = block.shape.numel()
            if block.raw not in first:
                raise UnknownFormError
            self._places += range(first[block.raw], first[block.raw] + size)
            self._powers += [block.power] * size
        # priors of parameters without a gradient are constants
        self._constant_prior = log_prior - self._sum_priors(coordinates.read_values())
        self._log_prior = 0.0
        n = len(points)
        numbers = np.arange(n * n, dtype=np.float64).reshape(
            n,
            n,
            order="F",
        )
        packed, _ = lapack.dtrttf(numbers, transr="N", uplo="L")
        index = packed.astype(np.int64)
        rows = index % n
        columns = index // n
        diagonal = np.flatnonzero(rows == columns)
        self._diagonal = diagonal[np.argsort(rows[diagonal])]  # row by row
        self._apart = np.zeros(len(index))
        if key is not None:
            # every correlation is zero: exp underflows
            self._apart[key[rows] != key[columns]] = 1e8
        # packed: |x - x'|^e for each lengthscale
        by_column = points.cpu().double().numpy().T
        by_column = np.abs(by_column[:, rows] - by_column[:, columns]) ** self._exponent
        one_length = len(self._parameters) == 4
        self._differences = by_column.sum(0, keepdims=True) if one_length else by_column
        # packed: sums of distances over columns, and their correlations, at the current
        # position and at the last one with other lengthscales
        self._present = list(np.empty((2, len(index))))
        self._next = list(np.empty((2, len(index))))
        self._factor = np.empty(len(index))

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
            return cls(mll, coordinates)
        except UnknownFormError:
            return None

    def move_to(self, position: Vector) -> float:
        """See ``ModelDensity.move_to``."""
        c = self.coordinates
        if not c.inside(position):
            return -math.inf
        values = c.to_values(position)
        parameters = self._parameters.copy()
        parameters[self._places] = values**self._powers
        log_prior = self._sum_priors(values) + float(c.log_jacobian(position))
        log_prior += self._constant_prior
        self._next[0] = self._sum_distances(parameters)
        result = self._evidence(self._next_correlation(), parameters) + log_prior
        if not math.isfinite(result):
            return -math.inf
        self._trial = (parameters, log_prior, True)
        self.accept()
        return result

    def along(self, position: Vector, axis: int) -> Callable[[float], float]:
        """See ``ModelDensity.along``."""
        place = self._places[axis]
        power = self._powers[axis]
        density = self._densities[axis]
        to_value = self.coordinates.scalar_value(axis)
        is_logarithm = float(self.coordinates.positive[axis])
        is_length = 0 <= place
        along_length = self._along_length(place) if is_length else None
        start = float(position[axis])
        rest = self._log_prior - is_logarithm * start
        rest -= density(float(self.coordinates.to_values(position)[axis]))

        def log_density(coordinate: float) -> float:
            value = to_value(coordinate)
            if value is None:
                return -math.inf
            log_prior = rest + density(value) + is_logarithm * coordinate
            if not math.isfinite(log_prior):
                return -math.inf
            parameters = self._parameters.copy()
            parameters[place] = value**power
            self._trial = (parameters, log_prior, is_length)
            correlation = self._present[1]
            if along_length is not None:
                correlation = along_length(value**power)
            return self._evidence(correlation, parameters) + log_prior

        return log_density

    def accept(self) -> None:
        """See ``ModelDensity.accept``."""
        self._parameters, self._log_prior, has_other_lengths = self._trial
        if has_other_lengths:
            last = self._present
            self._present = self._next
            self._next = last

    def _sum_priors(self, values: Vector) -> float:
        pairs = zip(self._densities, values.tolist(), strict=True)
        return sum(density(value) for density, value in pairs)

    def _along_length(self, index: int) -> Callable[[float], Vector]:
        """Correlations as a function of one lengthscale."""
        lengths = self._parameters.copy()
        lengths[index] = np.inf
        rest = self._sum_distances(lengths)

        def correlation(length: float) -> Vector:
            weight = length**-self._exponent
            np.multiply(
                self._differences[index],
                weight,
                out=self._next[0],
            )
            self._next[0] += rest
            return self._next_correlation()

        return correlation

    def _next_correlation(self) -> Vector:
        self._next[1] = self._correlation(*self._next)
        return self._next[1]

    def _sum_distances(self, parameters: Vector) -> Vector:
        return self._apart + parameters[:-3] ** -self._exponent @ self._differences

    def _evidence(self, correlation: Vector, parameters: Vector) -> float:
        """Log N(y; mean, variance * correlation + noise)."""
        n = len(self._targets)
        variance, noise, mean = parameters[-3:].tolist()
        for jitter in (0.0, 1e-8, 1e-7, 1e-6):  # as in psd_safe_cholesky
            np.multiply(correlation, variance, out=self._factor)
            self._factor[self._diagonal] += self._noise + (noise + jitter)
            self._factor, info = lapack.dpftrf(
                n,
                self._factor,
                transr="N",
                uplo="L",
                overwrite_a=1,
            )
            if info == 0:
                break
        else:
            return -math.inf
        residual = (self._targets - mean)[:, None]
        half = lapack.dtfsm(
            1.0,
            self._factor,
            residual,
            uplo="L",
        )[:, 0]
        log_det = 2.0 * float(np.log(self._factor[self._diagonal]).sum())
        constant = -0.5 * n * math.log(2.0 * math.pi)
        result = constant - 0.5 * (float(half @ half) + log_det)
        return result if math.isfinite(result) else -math.inf


def _numbers(tensor: torch.Tensor) -> Vector:
    return tensor.detach().reshape(-1).cpu().double().numpy().copy()
