"""The posterior of a tree model as one object for one table of rows.

A ``LeafSolver`` has the factors of the leaves of one outcome of one data set, at the
hyperparameters that the model has when it enters evaluation. A batch, of outcomes or of
data sets, is a list of solvers: its elements are independent GPs.

Per leaf L^-1, H = L^-1 F and e = L^-1 (r - F mu) are kept, and once the inverse root J
of M (M^-1 = J'J). A point with features z, covariances k to the data of its own leaf
and w = L^-1 k then has, with t_p(x) = h,

    h = z - w'H,     mean = m + w'e + z mu,     cov = K_p - w'w' + (J h)'(J h')

where the middle term is zero unless both points are on one leaf. No matrix is n x n.
The usual alpha = A^-1 (r - F mu) and A^-1 F grow like one over the noise variance; e
and H do not, and give three more correct digits at the smallest noise variance.

Rows that are appended, as fantasies are, condition the posterior of the rows before
once more (``linalg.blocks.given_last``): no factorisation is repeated. They may have
batch dimensions of their own, and the posterior is differentiable in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured._botorch_names import functorch_is_active
from botorch_structured.kernels.leaf_kernels import LeafKernel, LeafRows, Structure
from botorch_structured.linalg.blocks import Factorisation, factorise, given_last
from botorch_structured.linalg.parameters import UnknownFormError
from botorch_structured.models.fast_inference import with_gradient, with_variance_floor
from botorch_structured.models.tree.form import Form
from botorch_structured.models.tree.leaf_inference import LeafBlock, leaf_blocks
from botorch_structured.models.tree.moments import LeafMoments

# A difference that is less than this share of its terms has lost too many digits.
_LEAST_SHARE = 1e-6


class LeafSolver:
    """The posterior given one table of rows, through its leaves, less its prior mean.

    Args:
        kernel: With the hyperparameters of this outcome.
        X: Transformed training inputs, ``n x d``.
        structure: Their leaves.
        noise: Noise variances, ``n``.
        residual: Outcomes less prior means, ``n``.
        form: That of the kernel on a row of each leaf, if there is one.
    """

    @torch.no_grad()
    def __init__(
        self,
        kernel: LeafKernel,
        X: Tensor,
        structure: Structure,
        noise: Tensor,
        residual: Tensor,
        form: Form | None = None,
    ) -> None:
        self.source = kernel
        self.form = form
        self.X = X
        self.structure = structure
        self.noise = noise
        self.residual = residual

    @cached_property
    def kernel(self) -> LeafKernel:
        """The kernel with its values of now, of which graphs may be built later."""
        with torch.no_grad():
            kernel = copy(self.source)
            kernel.fixed_values = kernel.values()
        return kernel

    @cached_property
    def blocks(self) -> list[LeafBlock]:
        """The rows of each bucket of leaves, as the kernel knows them."""
        with torch.no_grad():
            return leaf_blocks(self.kernel, self.X, self.structure)

    @cached_property
    def factors(self) -> Factorisation:
        """L^-1 and [e, H] of each bucket, J and mu.

        Of the covariance by what is there already: ``moments`` take a third of the time
        of ``blocks``, without which points are not predicted jointly.
        """
        with torch.no_grad():
            moments = self.__dict__.get("moments")
            if moments is None:
                weighted = [b.noisy(self.kernel, self.noise) for b in self.blocks]
            else:
                weighted = moments.blocks()
            return factorise(weighted, self.residual, self.source.num_weights)

    @cached_property
    def moments(self) -> LeafMoments | None:
        """Moments of points one by one, where they have a closed form.

        On a GPU there are none, as they read values of points.
        """
        if self.X.device.type != "cpu" or functorch_is_active():
            return None
        try:
            return LeafMoments(self)
        except UnknownFormError:
            return None

    @cached_property
    def _weight_root(self) -> tuple[Tensor, Tensor | None]:
        return self.factors.weight_covariance.root()

    def leave_one_out(self) -> tuple[Tensor, Tensor] | None:
        """K^-1 r and the diagonal of K^-1, each ``n``, K with the noise.

        None where the diagonal is a difference of nearly equal numbers.
        """
        _ = self.moments  # with them there are factors in a third of the time
        factors = self.factors
        structure = self.structure
        solved = self.residual.new_empty(len(self.residual) + 1)  # the last: padding
        diagonal = torch.empty_like(solved)
        lost = False
        for bucket, weights, block in zip(
            structure.layout.buckets,
            structure.weights,
            factors.blocks,
            strict=True,
        ):
            inverse, half = block
            both = inverse.mT @ half
            right = both[..., 1:]
            features = right.new_zeros(*right.shape[:-1], self.source.num_weights + 1)
            features.scatter_(-1, weights.unsqueeze(1).expand_as(right), right)
            explained = factors.weight_covariance.variances(features[..., :-1])
            solved[bucket.index] = both[..., 0]
            without = inverse.square().sum(-2)
            diagonal[bucket.index] = without - explained
            lost |= bool((without - explained < _LEAST_SHARE * without).any())
        return None if lost else (solved[:-1], diagonal[:-1])

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of points jointly, on the scale of transformed outcomes.

        There is no smallest variance.

        Args:
            X: Transformed inputs, ``batch_shape x q x d``.

        Returns:
            Means ``batch_shape x q`` and covariances ``batch_shape x q x q``.
        """
        batch = X.shape[:-1]
        if X.shape[-2] == 1 and X.numel() and not functorch_is_active():
            moments = self.moments
            if moments is not None:
                mean, variance = differentiable_moments(X.flatten(0, -2), moments)
                return mean.view(batch), variance.view(*batch, 1)
        flat = self.kernel.rows(X.flatten(0, -2))
        in_batch = methodcaller("unflatten", 0, batch)
        mean, explained, weight = map(in_batch, self.predict(flat))
        rows = LeafRows(*map(in_batch, flat))
        on_one_path = rows.key.unsqueeze(-1) == rows.key.unsqueeze(-2)
        prior = self.kernel.leaf_covariance(rows, rows)
        covariance = torch.where(on_one_path, prior, 0.0) + weight @ weight.mT
        shared = torch.where(on_one_path, explained @ explained.mT, 0.0)
        return mean, covariance - shared

    def predict(self, rows: LeafRows) -> tuple[Tensor, Tensor, Tensor]:
        """Terms of the posterior of points.

        Args:
            rows: What the kernel knows of them, ``t`` (``x k``); a graph may be built
                of its parameters.

        Returns:
            The mean less the prior one, ``t``; w, padded to the largest leaf,
            ``t x max_size``; J h, ``t x V``.
        """
        features = rows.features
        max_size = self.structure.layout.max_size
        # rows on paths without data keep the prior
        mean = features @ self.factors.weight_mean
        explained = features.new_zeros(len(features), max_size)
        reduced = pad(features, (0, 1))
        for number, places, index, k in self._covariances(rows):
            inverse, half = self.factors.blocks[number]
            w = k @ inverse[places].mT
            both = w @ half[places]
            w = pad(w, (0, max_size - w.shape[-1]))
            mean = mean.index_put((index,), both[..., 0], accumulate=True)
            explained = explained.index_put((index,), w, accumulate=True)
            weights = self.blocks[number].weights[places].unsqueeze(-2)
            reduced = reduced.index_put(
                (index.unsqueeze(-1), weights),
                -both[..., 1:],
                accumulate=True,
            )
        rest = reduced[:, :-1]
        root, explained_weights = self._weight_root
        weight = rest @ root
        if explained_weights is not None:
            weight = rest - weight @ explained_weights
        return mean, explained, weight

    def means(self, rows: LeafRows) -> Tensor:
        """Means less prior ones of ``t`` points, as `predict` has them.

        They take time linear in the rows of a leaf, variances quadratic.
        """
        mean = rows.features @ self.factors.weight_mean
        for number, places, index, k in self._covariances(rows):
            inverse, half = self.factors.blocks[number]
            alpha = inverse[places].mT @ half[places, :, :1]
            mean = mean.index_put((index,), (k @ alpha)[..., 0], accumulate=True)
        return mean

    def _covariances(
        self, rows: LeafRows
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Covariances of points with the data of their leaves, in batches.

        Yields:
            The number of a bucket, places in it, ``U``, numbers of points, ``U x t'``,
            and k, ``U x t' x N``, zero where padded.
        """
        for number, block in enumerate(self.blocks):
            for places, index, real in _groups(rows.key, block.rows.key[:, 0]):
                data = LeafRows(*map(itemgetter(places), block.rows))
                points = LeafRows(*map(itemgetter(index), rows))
                k = self.kernel.leaf_covariance(data, points).mT
                pairs = real.unsqueeze(-1)
                if block.bucket.real is not None:
                    pairs = pairs & block.bucket.real[places].unsqueeze(-2)
                yield number, places, index, torch.where(pairs, k, 0.0)

    def append(
        self,
        X: Tensor,
        residual: Tensor,
        noise: Tensor,
    ) -> ConditionedSolver:
        """The posterior given more rows.

        Args:
            X: Transformed inputs, ``batch_shape x q x d``.
            residual: Outcomes less their prior means, ``batch_shape' x q``.
            noise: Their noise variances, which broadcast to ``residual``.
        """
        return ConditionedSolver(self, X, residual, noise)


def _groups(
    leaf: Tensor,
    leaves: Tensor,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Points leaf by leaf, in one batch, or in several with less padding.

    On a GPU each leaf has all points: the host would wait for their number.

    Args:
        leaf: The key of the leaf of each point, ``t``.
        leaves: The keys of a bucket's leaves, ``B``.

    Returns:
        Places in the bucket, ``U``, numbers of points, ``U x t'``, and which of these
        are on that leaf.
    """
    on_leaf = leaf == leaves.unsqueeze(-1)
    if leaf.device.type != "cpu":
        places, points = (torch.arange(n, device=leaf.device) for n in on_leaf.shape)
        return [(places, points.expand_as(on_leaf), on_leaf)]
    counts = on_leaf.sum(-1)
    places = counts.nonzero().squeeze(-1)
    counts = counts[places]
    points = on_leaf.nonzero()[:, 1]
    widest = int(counts.amax()) if len(places) else 0
    if len(places) * widest <= 3 * len(points) + 64:
        real = torch.arange(widest) < counts.unsqueeze(-1)
        index = torch.zeros_like(real, dtype=torch.long)
        return [(places, index.masked_scatter(real, points), real)]
    rows = points.unsqueeze(0).split(counts.tolist(), dim=-1)
    whole = [torch.ones_like(row, dtype=torch.bool) for row in rows]
    return list(zip(places.split(1), rows, whole, strict=True))


class ConditionedSolver:
    """The posterior given more rows than those of a ``LeafSolver``.

    Args:
        solver: That of the rows before.
        X: See ``LeafSolver.append``.
        residual: See there.
        noise: See there.
    """

    def __init__(
        self,
        solver: LeafSolver,
        X: Tensor,
        residual: Tensor,
        noise: Tensor,
    ) -> None:
        self.solver = solver
        self.X = X
        self.residual = residual
        self.noise = noise.expand(*noise.shape[:-1], residual.shape[-1])

    #: Moments of points one by one have no closed form.
    moments = None

    def joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See ``LeafSolver.joint``."""
        batch = torch.broadcast_shapes(X.shape[:-2], self.X.shape[:-2])
        points = [t.expand(*batch, *t.shape[-2:]) for t in (X, self.X)]
        before = self.solver.joint(torch.cat(points, dim=-2))
        mean, covariance = given_last(*before, self.noise, self.residual)
        return mean, covariance.expand(*mean.shape[:-1], *covariance.shape[-2:])

    def append(
        self,
        X: Tensor,
        residual: Tensor,
        noise: Tensor,
    ) -> ConditionedSolver:
        """See ``LeafSolver.append``."""
        noise = noise.expand(*noise.shape[:-1], residual.shape[-1])
        return ConditionedSolver(
            self.solver,
            _joined(self.X, X, 2),
            _joined(self.residual, residual, 1),
            _joined(self.noise, noise, 1),
        )


def _joined(
    first: Tensor,
    second: Tensor,
    event: int,
) -> Tensor:
    """Rows of both, whose batch shapes broadcast."""
    shapes = [t.shape[: t.ndim - event] for t in (first, second)]
    batch = torch.broadcast_shapes(*shapes)
    both = [t.expand(*batch, *t.shape[t.ndim - event :]) for t in (first, second)]
    return torch.cat(both, dim=-event)


# -- with a graph -----------------------------------------------------------------


class _OfPoints(torch.autograd.Function):
    """Moments whose first derivatives in the points are known."""

    @staticmethod
    def forward(
        ctx: Any,
        X: Tensor,
        moments: LeafMoments,
    ) -> tuple[Tensor, Tensor]:
        at_points = moments(X, gradient=ctx.needs_input_grad[0])
        if ctx.needs_input_grad[0]:  # a graph is of the hyperparameters of now
            ctx.kernel = moments.solver.kernel
        ctx.save_for_backward(X)
        ctx.at_points = at_points
        ctx.moments = moments
        return at_points.mean, at_points.variance

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # derivatives of the gradient are wanted, too
            (X,) = ctx.saved_tensors
            # on paths without data they are constant
            values = [with_gradient(v, X) for v in ctx.moments.graph(X)]
            (grad_X,) = torch.autograd.grad(
                values,
                X,
                grad_outputs,
                create_graph=True,
            )
            return grad_X, None
        slope = ctx.at_points.pull(*(g.numpy() for g in grad_outputs))
        return torch.from_numpy(slope), None


def differentiable_moments(X: Tensor, moments: LeafMoments) -> tuple[Tensor, Tensor]:
    """Means and variances of points one by one, differentiable in ``X``, also twice.

    Args:
        X: Transformed inputs, ``t x d``, not empty.
        moments: Computes them and their first derivatives, and the graph where others
            are wanted, of the state that the model has now.
    """
    if not torch.is_grad_enabled():
        return moments(X)[:2]
    mean, variance = _OfPoints.apply(X, moments)
    return mean, variance


# -- batches ------------------------------------------------------------------------


def elements(
    values: Tensor,
    batch_shape: torch.Size,
    event: int,
) -> Sequence[Tensor]:
    """Values of each element of a batch, in order: ``lead x event_shape`` each.

    Args:
        values: ``lead x batch_shape x event_shape``, or what broadcasts to that.
        batch_shape: Of the batch.
        event: Number of dimensions of ``event_shape``.
    """
    if not batch_shape:
        return [values]
    lead = torch.broadcast_shapes(values.shape[:-event], batch_shape)
    values = values.expand(*lead, *values.shape[-event:])
    flat = values.flatten(-event - len(batch_shape), -event - 1)
    return flat.unbind(-event - 1)


@dataclass
class SolverBatch:
    """Independent posteriors of the elements of a batch; of one, without a batch.

    Attributes:
        solvers: One for each element, in the order of the batch.
        batch_shape: Of the batch.
        is_joint: Whether points are predicted jointly, too; else one by one alone.
    """

    solvers: Sequence[LeafSolver | ConditionedSolver]
    batch_shape: torch.Size
    is_joint: bool = True

    @property
    def moments(self) -> LeafMoments | None:
        """Moments of the points of one outcome one by one, see ``LeafSolver``."""
        return None if self.batch_shape else self.solvers[0].moments

    def append(
        self,
        model: Any,
        X: Tensor,
        targets: Tensor,
        noise: Tensor | None,
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
        solvers = [
            solver.append(*rows)
            for solver, *rows in zip(
                self.solvers,
                elements(X, self.batch_shape, 2),
                elements(residual, self.batch_shape, 1),
                elements(noise, self.batch_shape, 1),
                strict=True,
            )
        ]
        return SolverBatch(solvers, self.batch_shape)

    def posterior(
        self,
        mean_module: Any,
        X: Tensor,
    ) -> MultivariateNormal | None:
        """The joint posterior of points; None where GPyTorch has it.

        Args:
            mean_module: The prior mean.
            X: Transformed inputs, ``lead x batch_shape x q x d``; batch shapes
                broadcast.
        """
        if not self.is_joint:
            return None
        if not self.batch_shape:
            mean, covariance = self.solvers[0].joint(X)
        else:
            shape = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
            X = X.expand(*shape, *X.shape[-2:])
            wide = shape[len(shape) - len(self.batch_shape) :]
            number = torch.arange(len(self.solvers)).view(self.batch_shape)
            moments = [
                self.solvers[i].joint(points)
                for i, points in zip(
                    number.expand(wide).flatten().tolist(),
                    elements(X, wide, 2),
                    strict=True,
                )
            ]
            means, covariances = zip(*moments, strict=True)
            means = torch.broadcast_tensors(*means)
            covariances = torch.broadcast_tensors(*covariances)
            mean = torch.stack(means, dim=-2).unflatten(-2, wide)
            covariance = torch.stack(covariances, dim=-3).unflatten(-3, wide)
        mean = mean_module(X) + mean
        if X.requires_grad:
            mean = with_gradient(mean, X)
        covariance = with_variance_floor(covariance)
        # a plain tensor would get no jitter when it is factorised for sampling
        return MultivariateNormal(mean, to_linear_operator(covariance))


def fantasy_shapes(
    data: torch.Size,
    inputs: torch.Size,
    targets: torch.Size,
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
    noise = model.likelihood.noise
    noise = noise.expand(*noise.shape[:-1], X.shape[-2])
    batch_shape = targets.shape[:-1]
    kernels = [kernel] * batch_shape.numel()
    if kernel.batch_shape:
        # deep copies have no graph with the model's parameters
        full = kernel.expand_batch(batch_shape)
        indices = np.ndindex(batch_shape)
        kernels = [full[index].requires_grad_(False) for index in indices]
    solvers: list[LeafSolver] = []
    for part, rows, variances, residual in zip(
        kernels,
        elements(X.detach(), batch_shape, 2),
        elements(noise, batch_shape, 1),
        elements(targets - model.mean_module(X), batch_shape, 1),
        strict=True,
    ):
        # several outputs have the same inputs, and so the same leaves
        if solvers and torch.equal(rows, solvers[0].X):
            rows = solvers[0].X
            structure = solvers[0].structure
        elif batch_shape:
            structure = part.structure(rows)
        else:
            structure = model.structure(kernel)
        form = None if batch_shape else model._form_cache
        solvers.append(LeafSolver(part, rows, structure, variances, residual, form))
    return SolverBatch(
        solvers,
        batch_shape,
        is_joint=kernel is model.covar_module,
    )
