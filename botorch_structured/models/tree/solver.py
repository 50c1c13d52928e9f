"""The posterior of a tree model as one object for one table of rows.

A ``LeafSolver`` has the factors of the leaves of one outcome of one data set, at the
hyperparameters that the model has when it enters evaluation. A batch, of outcomes or of
data sets, is a list of solvers: its elements are independent GPs.

Rows that are appended, as fantasies are, condition the posterior of the rows before
once more (``linalg.factor.given_last``): no factorisation is repeated. They may have
batch dimensions of their own, and the posterior is differentiable in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_structured._botorch_names import functorch_is_active
from botorch_structured.linalg.factor import given_last
from botorch_structured.models.fast_inference import with_gradient, with_variance_floor
from botorch_structured.models.parameters import UnknownFormError
from botorch_structured.models.tree.leaf_inference import (
    LeafKernel,
    LeafPredictor,
    LeafRows,
    Structure,
)
from botorch_structured.models.tree.moments import LeafMoments, differentiable_moments


class Solver(Protocol):
    """The posterior of one outcome of one data set, less its prior mean."""

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of points jointly, on the scale of transformed outcomes.

        Args:
            X: Transformed inputs, ``batch_shape x q x d``.

        Returns:
            Means ``batch_shape x q`` and covariances ``batch_shape x q x q``.
        """

    def append(self, X: Tensor, residual: Tensor, noise: Tensor) -> Solver:
        """The posterior given more rows.

        Args:
            X: Transformed inputs, ``batch_shape x q x d``.
            residual: Outcomes less their prior means, ``batch_shape' x q``.
            noise: Their noise variances, which broadcast to ``residual``.
        """


class LeafSolver:
    """The posterior given one table of rows, through its leaves.

    Args:
        kernel: With the hyperparameters of this outcome.
        X: Transformed training inputs, ``n x d``.
        structure: Their leaves.
        noise: Noise variances, ``n``.
        residual: Outcomes less prior means, ``n``.

    Attributes:
        predictor: Factors of the data.
    """

    def __init__(
        self,
        kernel: LeafKernel,
        X: Tensor,
        structure: Structure,
        noise: Tensor,
        residual: Tensor,
    ) -> None:
        self.kernel = kernel
        self.X = X
        self.structure = structure
        self.predictor = LeafPredictor(kernel, X, structure, noise, residual)

    @cached_property
    def moments(self) -> LeafMoments | None:
        """Moments of points one by one, where they have a closed form.

        On a GPU there are none, as they read values of points.
        """
        if self.X.device.type != "cpu":
            return None
        places = self.structure.leaf_places
        try:
            return LeafMoments(self.kernel, self.predictor, self.X, places)
        except UnknownFormError:
            return None

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Solver.joint``."""
        if X.shape[-2] == 1 and X.numel() and not functorch_is_active():
            moments = self.moments
            if moments is not None:
                mean, variance = differentiable_moments(X.flatten(0, -2), moments)
                variance = variance.clamp_min(settings.min_variance.value(X.dtype))
                return mean.view(X.shape[:-1]), variance.view(*X.shape[:-1], 1)
        mean, covariance = self.moments_of_all(X)
        return with_gradient(mean, X), with_variance_floor(covariance)

    def moments_of_all(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See ``joint``; without a smallest variance."""
        kernel = self.kernel
        rows = kernel.rows(X)
        batch = X.shape[:-1]
        if X.ndim == 2:
            flat = rows
        else:
            width = rows.key.ndim
            full = [part.expand(*batch, *part.shape[width:]) for part in rows]
            flat = LeafRows(*[part.flatten(0, len(batch) - 1) for part in full])
        mean, leaf, explained, weight = self.predictor(kernel, flat)
        if X.ndim > 2:
            mean = mean.unflatten(0, batch)
            leaf = leaf.unflatten(0, batch)
            explained = explained.unflatten(0, batch)
            weight = weight.unflatten(0, batch)
        on_one_path = rows.key.unsqueeze(-1) == rows.key.unsqueeze(-2)
        covariance = torch.where(on_one_path, kernel.leaf_covariance(rows, rows), 0.0)
        covariance = covariance + weight @ weight.mT
        on_one_leaf = leaf.unsqueeze(-1) == leaf.unsqueeze(-2)
        shared = torch.where(on_one_leaf, explained @ explained.mT, 0.0)
        return mean, covariance - shared

    def append(self, X: Tensor, residual: Tensor, noise: Tensor) -> ConditionedSolver:
        """See ``Solver.append``."""
        return ConditionedSolver(self, X, residual, noise)


class ConditionedSolver:
    """The posterior given more rows than those of a ``LeafSolver``.

    Args:
        solver: That of the rows before.
        X: See ``Solver.append``.
        residual: See there.
        noise: See there.
    """

    def __init__(
        self, solver: LeafSolver, X: Tensor, residual: Tensor, noise: Tensor
    ) -> None:
        self.solver = solver
        self.X = X
        self.residual = residual
        self.noise = noise.expand(*noise.shape[:-1], residual.shape[-1])

    #: Moments of points one by one have no closed form.
    moments = None

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Solver.joint``."""
        batch = torch.broadcast_shapes(X.shape[:-2], self.X.shape[:-2])
        points = [t.expand(*batch, *t.shape[-2:]) for t in (X, self.X)]
        before = self.solver.moments_of_all(torch.cat(points, dim=-2))
        mean, covariance = given_last(*before, self.noise, self.residual)
        covariance = covariance.expand(*mean.shape[:-1], *covariance.shape[-2:])
        return with_gradient(mean, X), with_variance_floor(covariance)

    def append(self, X: Tensor, residual: Tensor, noise: Tensor) -> ConditionedSolver:
        """See ``Solver.append``."""
        noise = noise.expand(*noise.shape[:-1], residual.shape[-1])
        return ConditionedSolver(
            self.solver,
            _joined(self.X, X, 2),
            _joined(self.residual, residual, 1),
            _joined(self.noise, noise, 1),
        )


def _joined(first: Tensor, second: Tensor, event: int) -> Tensor:
    """Rows of both, whose batch shapes broadcast."""
    shapes = [t.shape[: t.ndim - event] for t in (first, second)]
    batch = torch.broadcast_shapes(*shapes)
    both = [t.expand(*batch, *t.shape[t.ndim - event :]) for t in (first, second)]
    return torch.cat(both, dim=-event)


# -- batches ------------------------------------------------------------------------


def element(values: Tensor, index: Sequence[int], event: int) -> Tensor:
    """Values of one element of the last batch dimensions, which broadcast.

    Args:
        values: ``lead x batch_shape x event_shape``, or with fewer batch dimensions.
        index: The element of ``batch_shape``.
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


def unexpanded(values: Tensor, event: int) -> Tensor:
    """Values whose expanded batch dimensions have length one again."""
    for dim in range(values.ndim - event):
        if values.stride(dim) == 0:
            values = values.narrow(dim, 0, 1)
    return values


@dataclass
class SolverBatch:
    """Independent posteriors of the elements of a batch; of one, without a batch.

    Attributes:
        solvers: One for each element, in the order of the batch.
        batch_shape: Of the batch.
    """

    solvers: Sequence[LeafSolver | ConditionedSolver]
    batch_shape: torch.Size

    @property
    def moments(self) -> LeafMoments | None:
        """Moments of the points of one outcome one by one, see ``LeafSolver``."""
        return None if self.batch_shape else self.solvers[0].moments

    @property
    def predictor(self) -> LeafPredictor | None:
        """Factors of the data of one outcome; None of conditioned ones."""
        solver = self.solvers[0]
        return solver.predictor if isinstance(solver, LeafSolver) else None

    def append(
        self, model: Any, X: Tensor, targets: Tensor, noise: Tensor | None
    ) -> SolverBatch:
        """The posteriors given more rows.

        Args:
            model: The model of the rows before.
            X: Transformed inputs, ``lead x batch_shape x q x d``.
            targets: Transformed outcomes, ``lead' x batch_shape x q``.
            noise: Noise variances of these; None for those of the likelihood.
        """
        residual = targets - model.mean_module(X)
        if noise is None:
            noise = model.likelihood.noise[..., -1:]
        X = unexpanded(X, 2)
        solvers = []
        for solver, index in zip(
            self.solvers, np.ndindex(self.batch_shape), strict=True
        ):
            rows = element(X, index, 2)
            outcomes = element(residual, index, 1)
            solvers.append(solver.append(rows, outcomes, element(noise, index, 1)))
        return SolverBatch(solvers, self.batch_shape)

    def posterior(self, mean_module: Any, X: Tensor) -> MultivariateNormal:
        """The joint posterior of points.

        Args:
            mean_module: The prior mean.
            X: Transformed inputs, ``lead x batch_shape x q x d``; batch shapes
                broadcast.
        """
        batch_shape = self.batch_shape
        shape = torch.broadcast_shapes(X.shape[:-2], batch_shape)
        if len(self.solvers) == 1:
            X = X.expand(*shape, *X.shape[-2:])
            mean, covariance = self.solvers[0].joint(X)
            # a plain tensor would get no jitter when it is factorised for sampling
            return MultivariateNormal(
                mean_module(X) + mean, to_linear_operator(covariance)
            )
        lead = shape[: len(shape) - len(batch_shape)]
        wide = shape[len(lead) :]
        number = torch.arange(len(self.solvers)).view(batch_shape).expand(wide)
        prior = mean_module(X.expand(*shape, *X.shape[-2:]))
        X = unexpanded(X, 2)
        means = []
        covariances = []
        for index in np.ndindex(wide):
            solver = self.solvers[int(number[index])]
            mean, covariance = solver.joint(element(X, index, 2))
            means.append(mean)
            covariances.append(covariance)
        batch = torch.broadcast_shapes(lead, *[mean.shape[:-1] for mean in means])
        q = X.shape[-2]
        mean = torch.stack([m.expand(*batch, q) for m in means], dim=-2)
        covariance = torch.stack([c.expand(*batch, q, q) for c in covariances], dim=-3)
        return MultivariateNormal(
            prior + mean.unflatten(-2, wide),
            to_linear_operator(covariance.unflatten(-3, wide)),
        )


def fantasy_shapes(
    data: torch.Size, inputs: torch.Size, targets: torch.Size
) -> tuple[torch.Size, torch.Size] | None:
    """Batch shapes of all inputs and of all outcomes, as in ``get_fantasy_model``.

    Args:
        data: Batch shape of the model's training data.
        inputs: Batch shape of the new inputs.
        targets: Batch shape of the new outcomes; may have one dimension more.

    Returns:
        None for shapes that GPyTorch refuses, or where the model's own batch
        dimensions would not be the last ones.
    """
    if len(targets) - len(inputs) not in (0, 1):
        return None
    try:
        all_targets = torch.broadcast_shapes(data, targets)
        all_inputs = torch.broadcast_shapes(data, inputs)
    except RuntimeError:
        return None
    if all_targets[len(all_targets) - len(data) :] != data:
        return None
    if all_inputs != all_targets[len(all_targets) - len(all_inputs) :]:
        return None
    return all_inputs, all_targets


@torch.no_grad()
def make_solver(model: Any, kernel: LeafKernel) -> SolverBatch:
    """The solver of a model in evaluation mode.

    Args:
        model: A ``LeafModel``.
        kernel: Its kernel by leaf.
    """
    X = model.train_inputs[0]
    targets = model.train_targets
    mean = model.mean_module(X)
    noise = model.likelihood.noise
    noise = noise.expand(*noise.shape[:-1], X.shape[-2])
    batch_shape = targets.shape[:-1]
    solvers: list[LeafSolver] = []
    for index in np.ndindex(batch_shape):
        rows = element(X, index, 2).detach()
        own_kernel = kernel
        if kernel.batch_shape:
            # deep copies have no graph with the model's parameters
            own_kernel = kernel.expand_batch(batch_shape)[index].requires_grad_(False)
        # several outputs have the same inputs, and so the same leaves
        if solvers and torch.equal(rows, solvers[0].X):
            rows = solvers[0].X
            structure = solvers[0].structure
        elif batch_shape:
            structure = own_kernel.structure(rows)
        else:
            structure = model.structure(kernel)
        residual = element(targets, index, 1) - element(mean, index, 1)
        solvers.append(
            LeafSolver(own_kernel, rows, structure, element(noise, index, 1), residual)
        )
    return SolverBatch(solvers, batch_shape)
