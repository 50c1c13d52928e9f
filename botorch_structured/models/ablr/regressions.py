r"""Bayesian linear regressions of many tasks: rows, evidence, weights, updates.

For one task with features ``Phi`` (``N x D``), outcomes y, noise precision alpha,
weight precision beta and r = alpha / beta, Perrone et al. (2017) have the weights

.. math:: w | y \sim N(m, S), \quad m = r K^{-1} \Phi' y, \quad S = K^{-1} / \beta,
    \quad K = I + r \Phi' \Phi,

so that the function at x has mean ``phi(x)' m`` (1) and variance ``phi(x)' S phi(x)``
(2), and the log evidence (minus (3), up to a constant)

.. math:: \log N(y; 0, \Phi \Phi' / \beta + I / \alpha) = \frac{N}{2} \log
    \frac{\alpha}{2 \pi} - \frac{1}{2} \log |K| - \frac{\alpha}{2} |y - \Phi m|^2
    - \frac{\beta}{2} |m|^2.

The printed form ``|y|^2 - r |c|^2`` of the last two terms cancels, and products such as
``Phi' Phi`` square the condition number. So neither is formed. The data of a task are
reduced to a *factor*, at most D + 1 rows F with the same products,

.. math:: F' F = [\Phi, y]' [\Phi, y].

If the rows are few, and no task has more than D observations, factors are the data.
Otherwise they are
triangular factors of QR factorisations, taken chunk after chunk: the factor so far is
stacked on the next chunk. From the factors follow value, m and slopes by a QR
factorisation of the smaller system with its ridge,

.. math:: \begin{bmatrix} \sqrt r F \\ I \end{bmatrix} = Q T \;(N > D), \qquad
    \begin{bmatrix} \sqrt r F' \\ I \end{bmatrix} = Q T \;(N \le D),

where ``|K| = |T|^2`` in either case, and traces and residuals are sums of squares of
parts of Q. Nothing is subtracted, so that gradients close to zero are right too.

The first pass over the rows makes the factors; the second sends the derivative of each
row,

.. math:: \partial / \partial \phi_n = \alpha (y_n - \phi_n' m) m - r K^{-1} \phi_n,

back through the feature map. Time is linear in the number of rows. Memory beyond the
data does not depend on it: the activations of a chunk (of all of them up to 65,536
rows), and a few ``D x D`` matrices per task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from linear_operator.utils.errors import NanError
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from botorch_structured.linalg.block_low_rank import LeafLayout
from botorch_structured.models.ablr.feature_maps import KernelFeatures
from botorch_structured.models.ablr.processes import Processes

# Activations of so many rows are kept between the passes: about 80 MiB for three layers
# of 50 units. Of more rows they are computed twice.
_KEPT_ROWS = 65_536


@dataclass(frozen=True)
class Chunk:
    """Some rows, and the observations there.

    Attributes:
        rows: Which rows of ``X``.
        entries: Which observations, ``m``.
        row: The row of each observation, counted within the chunk, ``m``; None if
            observation i is of row i.
        task: The task of each, ``m``.
    """

    rows: slice | Tensor
    entries: Tensor
    row: Tensor | None
    task: Tensor

    @cached_property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Tasks with similar numbers of observations, batch by batch.

        Returns:
            Tasks ``B``, and their observations ``B x N``, padded with ``m``.
        """
        layout = LeafLayout(self.task)
        return [(layout.keys[b.leaves], b.index) for b in layout.buckets]


class TaskData:
    """Rows of some tasks and the outcomes that were observed there, cut into chunks.

    Make it once for all evaluations of an objective: it sorts the observations. With
    known noise, features and outcomes of an observation are divided by its standard
    deviation: the noise precision is then 1.

    Args:
        features: The feature map, ``n x d`` to ``n x D``, row by row.
        X: Inputs as the feature map takes them, ``n x d``.
        Y: Outcomes, ``m``.
        task: The task of each outcome, ``m``, integers in ``0 ... num_tasks - 1``.
        num_tasks: T; tasks may have no observation.
        row: The row of each outcome, ``m``. Default: outcome i is of row i.
        noise_variance: Known noise variances of the outcomes, ``m``; constants.
        processes: Processes that each hold a part of the rows (any part, of a task
            too). Default: this process has all rows.
        chunk_rows: Rows in a chunk. Default: 2,048, which stay in a CPU's cache with
            the activations of 50 units; a GPU needs 32,768 to be busy.
        kept_rows: Up to so many rows activations are kept between the passes.

    Attributes:
        counts: Number of observations of each task, a list of T.
        num_features: D.
        total: Number of rows of all processes, for those who set it.
    """

    total = 0

    def __init__(
        self,
        features: nn.Module,
        X: Tensor,
        Y: Tensor,
        task: Tensor,
        num_tasks: int,
        row: Tensor | None = None,
        noise_variance: Tensor | None = None,
        processes: Processes | None = None,
        chunk_rows: int | None = None,
        kept_rows: int = _KEPT_ROWS,
    ) -> None:
        self.features = features
        self.X = X
        self.Y = Y
        self.task = task
        self.row = row
        self.noise_variance = noise_variance
        self.processes = processes or Processes()
        self.counts: list[int] = torch.bincount(task, minlength=num_tasks).tolist()
        step = chunk_rows or (2_048 if task.device.type == "cpu" else 32_768)
        self.chunks = self._cut(step)
        self.keeps_activations = len(X) <= kept_rows
        self.num_features = self._count_features()

    def _cut(self, step: int) -> list[Chunk]:
        """Rows with one observation are sorted by task first; others stay in order."""
        chunks = []
        if self.row is None:
            for entries in torch.argsort(self.task, stable=True).split(step):
                chunks.append(Chunk(entries, entries, None, self.task[entries]))
            return chunks
        chunk = self.row // step
        order = torch.argsort(chunk, stable=True)
        sizes = torch.bincount(chunk).tolist()
        for i, entries in enumerate(order.split(sizes)):
            start = i * step
            row = self.row[entries] - start
            rows = slice(start, start + step)
            chunks.append(Chunk(rows, entries, row, self.task[entries]))
        return chunks

    def with_values(
        self,
        X: Tensor,
        Y: Tensor,
    ) -> TaskData:
        """The same rows and tasks with other numbers, of the same shapes."""
        new = copy(self)
        new.X = X
        new.Y = Y
        if isinstance(self.features, KernelFeatures):
            # those of a MondrianKernel depend on its lengthscales
            new.num_features = new._count_features()
        return new

    @torch.no_grad()
    def _count_features(self) -> int:
        """D, by the features of one row: not all modules take none."""
        X = self.X.detach()
        row = X[:1] if len(X) else X.new_zeros(1, X.shape[-1])
        return self.features(row).shape[-1]

    def observed(
        self,
        chunk: Chunk,
        phi: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Features ``m x D`` and outcomes ``m`` of each observation, in float64.

        Args:
            chunk: Which observations.
            phi: Features of the rows of the chunk, ``n x D``.
        """
        phi = phi.detach().double()
        if chunk.row is not None:
            phi = phi[chunk.row]
        y = self.Y.detach()[chunk.entries].double()
        return self.scaled(chunk, phi, y)

    def scaled(
        self,
        chunk: Chunk,
        phi: Tensor,
        y: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Features and outcomes, or slopes in them, divided by known deviations."""
        if self.noise_variance is None:
            return phi, y
        scale = self.noise_variance[chunk.entries].double().rsqrt()
        return phi * scale.unsqueeze(-1), y * scale


class Factors:
    """Factors of the data of each task, grown chunk by chunk.

    Args:
        data: The data, of which no chunk is added yet.

    Attributes:
        counts: Number of observations of each task, in all processes.
        rows: The factors in float64, ``T x C x (D + 1)``, zero where a task has fewer
            than C rows.
        are_data: Whether they are the data: of one chunk, in which no task has more
            observations than features.
    """

    def __init__(self, data: TaskData) -> None:
        self.processes = data.processes
        device = data.X.device
        self.counts = data.counts
        if not self.processes.alone:
            counts = torch.tensor(data.counts, device=device)
            self.counts = self.processes.total(counts).tolist()
        largest = max(self.counts, default=0)
        width = data.num_features + 1
        one = self.processes.alone and len(data.chunks) <= 1
        self.are_data = one and largest < width
        height = max(1, largest) if self.are_data else width
        shape = len(self.counts), height, width
        self.rows = torch.zeros(shape, dtype=torch.float64, device=device)
        self._started = False

    def add(
        self,
        chunk: Chunk,
        phi: Tensor,
        y: Tensor,
    ) -> None:
        """Take in one more chunk.

        Args:
            chunk: Which observations.
            phi: Their features in float64, ``m x D``.
            y: Outcomes, ``m``.
        """
        both = torch.cat([phi, y.unsqueeze(-1)], dim=-1)
        both = pad(both, (0, 0, 0, 1))  # padding is a row of zeros
        for tasks, index in chunk.batches:
            rows = both[index]
            if self._started:
                rows = torch.cat([self.rows[tasks], rows], dim=-2)
            self._replace(tasks, rows)
        self._started = True

    def _replace(
        self,
        tasks: Tensor,
        rows: Tensor,
    ) -> None:
        """Reduce rows of tasks, ``B x N x (D + 1)``, to their new factors."""
        if rows.shape[-2] >= self.rows.shape[-1]:
            rows = torch.linalg.qr(rows, mode="r").R
        self.rows[tasks, : rows.shape[-2]] = rows

    def merge(self) -> None:
        """Take in the data of other processes, if any; the same in each of them."""
        if self.processes.alone:
            return
        parts = self.processes.gather(self.rows)
        tasks = torch.arange(len(self.rows), device=self.rows.device)
        self._replace(tasks, torch.cat(parts, dim=-2))


class WeightPosterior(NamedTuple):
    """Normal distributions of weights.

    The covariance is kept as a root: variances are sums of squares, and samples of
    whole functions are ``phi(x)' (m + R z)``.

    Attributes:
        mean: ``... x D``.
        root: A square root R of the covariance R R', ``... x D x D``.
    """

    mean: Tensor
    root: Tensor

    def at(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Means (1), ``... x q``, and a root of the covariance (2), ``... x q x D``.

        Args:
            phi: Features, ``... x q x D``.
        """
        return (phi @ self.mean.unsqueeze(-1)).squeeze(-1), phi @ self.root

    @staticmethod
    def stacked(weights: Sequence[WeightPosterior]) -> WeightPosterior:
        """Several tasks in one, ``... x W x D`` and ``... x W x D x D``.

        Some may have been conditioned on a batch of outcomes, and others not.
        """
        means = torch.broadcast_tensors(*[w.mean for w in weights])
        roots = torch.broadcast_tensors(*[w.root for w in weights])
        return WeightPosterior(torch.stack(means, dim=-2), torch.stack(roots, dim=-3))

    def update(
        self,
        features: Tensor,
        Y: Tensor,
        noise_variance: Tensor,
    ) -> WeightPosterior:
        r"""Condition on q more observations, one after the other, O(D^2) each.

        With the features ``phi`` of one of them, its noise variance v, ``g = R' phi``
        and ``s = v + g' g``,

        .. math:: m \leftarrow m + R g (y - \phi' m) / s, \quad
            R \leftarrow R (I - g g' / (s + \sqrt{v s})),

        Potter's update of a square root, whose covariance stays positive whatever
        rounding does. Differentiable; batches broadcast.

        Args:
            features: ``... x q x D``.
            Y: ``... x q``.
            noise_variance: Positive, ``... x q``.
        """
        mean, root = self
        for i in range(Y.shape[-1]):
            phi = features[..., i, :]
            v = noise_variance[..., i]
            g = (root.mT @ phi.unsqueeze(-1)).squeeze(-1)
            s = v + g.square().sum(-1)
            gain = (root @ g.unsqueeze(-1)).squeeze(-1)
            missed = Y[..., i] - (phi * mean).sum(-1)
            mean = mean + gain * (missed / s).unsqueeze(-1)
            shrink = (gain / (s + (v * s).sqrt()).unsqueeze(-1)).unsqueeze(-1)
            root = root - shrink * g.unsqueeze(-2)
        return WeightPosterior(mean, root)


class Regressions:
    """Regressions of some tasks on features that they share.

    Args:
        data: Their rows.
        log_alpha: Logarithms of the noise precisions, ``T``; None where ``data`` has
            known noise variances.
        log_beta: Logarithms of the weight precisions, ``T``.

    Raises:
        ValueError: If processes that share rows differ in their hyperparameters.
        RuntimeError: If another process has ended or does not answer.
    """

    def __init__(
        self,
        data: TaskData,
        log_alpha: Tensor | None,
        log_beta: Tensor,
    ) -> None:
        if log_alpha is None:
            log_alpha = torch.zeros_like(log_beta, requires_grad=False)
        self.data = data
        self.log_alpha = log_alpha
        self.log_beta = log_beta
        self.parameters = [p for p in data.features.parameters() if p.requires_grad]
        # processes with other hyperparameters would add up different things
        if not data.processes.alone:
            learnt = [log_alpha, log_beta, *self.parameters]
            flat = torch.cat([t.detach().double().reshape(-1).cpu() for t in learnt])
            weights = torch.arange(1.0, len(flat) + 1.0, dtype=flat.dtype).cos()
            numbers = {"hyperparameters (a weighted sum)": float(flat @ weights)}
            data.processes.check_same(numbers, data.X.device)

    def log_evidence(self) -> Tensor:
        """Sum over tasks of the log evidence: minus (3).

        Differentiable once in the precisions, the inputs and outcomes of the data and
        the parameters of the features; the gradient is computed along with the value.
        Where processes share the rows, value and gradient are those of all rows, and
        the same in all processes; those of inputs and outcomes are of its own.

        Returns:
            A scalar, natural logarithms, ``- (m / 2) log(2 pi)`` included.

        Raises:
            NanError: If the value is not finite.
            RuntimeError: If another process has ended or does not answer.
        """
        data = self.data
        learnt = (self.log_alpha, self.log_beta, data.X, data.Y, *self.parameters)
        if torch.is_grad_enabled() and any(t.requires_grad for t in learnt):
            return _SummedEvidence.apply(self, *learnt)
        return self._value(self._solution())

    @torch.no_grad()
    def _solution(self) -> Solution:
        """The regressions, without slopes of the rows."""
        data = self.data
        factors = Factors(data)
        for chunk in data.chunks:
            phi = data.features(data.X[chunk.rows])
            factors.add(chunk, *data.observed(chunk, phi))
        factors.merge()
        return solve(factors, self.log_alpha, self.log_beta)

    @torch.no_grad()
    def _value(self, solution: Solution) -> Tensor:
        processes = self.data.processes
        noise = self.data.noise_variance
        value = solution.value.sum()
        if noise is not None:  # outcomes were divided by its root
            value = value - 0.5 * processes.total(noise.double().log().sum())
        (value,) = processes.of_first([value])
        return value.to(self.log_beta)

    @torch.no_grad()
    def weights(self) -> WeightPosterior:
        """Posteriors of the weights, (1) and (2); the prior where there are no data.

        Returns:
            Means ``T x D`` and roots ``T x D x D`` in float64, without gradients.

        Raises:
            NanError: If features or hyperparameters are not finite.
            RuntimeError: If another process has ended or does not answer.
        """
        solution = self._solution()
        F = solution.factors.rows[..., :-1]
        D = F.shape[-1]
        eye = torch.eye(D, dtype=F.dtype, device=F.device).expand(len(F), D, D)
        ratio = (solution.alpha / solution.beta).sqrt()[:, None, None]
        T = torch.linalg.qr(torch.cat([ratio * F, eye], dim=-2), mode="r").R
        inverse = torch.linalg.solve_triangular(T, eye, upper=True)
        root = inverse / solution.beta.sqrt()[:, None, None]
        return WeightPosterior(*self.data.processes.of_first([solution.mean, root]))

    def value_and_gradients(self) -> tuple[Tensor, list[Tensor | None]]:
        """The log evidence and its derivatives.

        Returns:
            The value, and its derivatives with respect to log alpha, log beta, X, Y and
            the parameters.
        """
        data = self.data
        wants_inputs = data.X.requires_grad
        d_X = torch.zeros_like(data.X) if wants_inputs else None
        d_Y = torch.zeros_like(data.Y) if data.Y.requires_grad else None
        d_parameters: list[Tensor] = []

        def forward(chunk: Chunk) -> tuple[Tensor, Tensor]:
            X = data.X.detach()[chunk.rows].requires_grad_(wants_inputs)
            with torch.enable_grad():
                return X, data.features(X)

        factors = Factors(data)
        kept = []
        for chunk in data.chunks:
            X, phi = forward(chunk)
            seen = data.observed(chunk, phi)
            factors.add(chunk, *seen)
            if data.keeps_activations:
                kept.append((X, phi, seen))
        factors.merge()
        solution = solve(factors, self.log_alpha, self.log_beta)
        for i, chunk in enumerate(data.chunks):
            if kept:
                X, phi, seen = kept[i]
            else:
                X, phi = forward(chunk)
                seen = data.observed(chunk, phi)
            d_phi, d_outcome = solution.slopes(chunk, *seen)
            d_phi, d_outcome = data.scaled(chunk, d_phi, d_outcome)
            if d_Y is not None:
                d_Y[chunk.entries] = d_outcome.to(d_Y)
            if not phi.requires_grad:
                continue
            d_rows = d_phi.to(phi)
            if chunk.row is not None:
                d_rows = torch.zeros_like(phi).index_add_(0, chunk.row, d_rows)
            with torch.enable_grad():
                # ``grad_outputs`` make torch load its symbolic shapes: 35 MiB
                along = (phi * d_rows).sum()
            wanted = [*self.parameters, X] if wants_inputs else self.parameters
            gradients = torch.autograd.grad(along, wanted, materialize_grads=True)
            if d_X is not None:
                d_X[chunk.rows] = gradients[-1]
            for total, gradient in zip(d_parameters, gradients, strict=False):
                total.add_(gradient)
            d_parameters = d_parameters or list(gradients[: len(self.parameters)])
        d_parameters = d_parameters or [torch.zeros_like(p) for p in self.parameters]
        processes = data.processes
        precisions = processes.of_first([solution.d_log_alpha, solution.d_log_beta])
        value = self._value(solution)
        return value, [*precisions, d_X, d_Y, *processes.sum(d_parameters)]


class _SummedEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        regressions: Regressions,
        *learnt: Tensor,
    ) -> Tensor:
        value, ctx.gradients = regressions.value_and_gradients()
        ctx.dtypes = [t.dtype for t in learnt]
        return value

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        return None, *(
            None if g is None else (grad * g).to(dtype)
            for g, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        )


@dataclass(frozen=True)
class Solution:
    """Regressions of all tasks.

    Attributes:
        factors: Their data.
        alpha: Noise precisions, ``T``.
        beta: Weight precisions, ``T``.
        value: Log evidences, ``T``.
        d_log_alpha: Their derivatives with respect to log alpha, ``T``.
        d_log_beta: Their derivatives with respect to log beta, ``T``.
        mean: Posterior means of the weights, ``T x D``.
        slope: If the factors are the data, derivatives with respect to their features,
            ``T x C x D``. Otherwise ``r K^-1``, ``T x D x D``.
        d_outcome: If the factors are the data, derivatives with respect to their
            outcomes, ``T x C``.
    """

    factors: Factors
    alpha: Tensor
    beta: Tensor
    value: Tensor
    d_log_alpha: Tensor
    d_log_beta: Tensor
    mean: Tensor
    slope: Tensor
    d_outcome: Tensor

    def slopes(
        self,
        chunk: Chunk,
        phi: Tensor,
        y: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Derivatives of the evidences with respect to features and outcomes.

        Args:
            chunk: Which observations.
            phi: Their features in float64, ``m x D``.
            y: Outcomes, ``m``.

        Returns:
            ``m x D`` and ``m``.
        """
        # padding is written into one more row
        d_phi = pad(phi, (0, 0, 0, 1))
        d_y = pad(y, (0, 1))
        for tasks, index in chunk.batches:
            slope = self.slope[tasks]
            if self.factors.are_data:
                n = index.shape[-1]
                d_phi[index] = slope[:, :n]
                d_y[index] = self.d_outcome[tasks, :n]
                continue
            mean = self.mean[tasks]
            inside = index.clamp_max(len(y) - 1)
            rows = phi[inside]
            outcomes = y[inside].unsqueeze(-1)
            missed = torch.baddbmm(outcomes, rows, mean.unsqueeze(-1), beta=-1.0)
            d_outcome = self.alpha[tasks, None, None] * missed
            outer = d_outcome * mean.unsqueeze(1)
            d_phi[index] = torch.baddbmm(outer, rows, slope, beta=-1.0, alpha=-1.0)
            d_y[index] = d_outcome.squeeze(-1)
        return d_phi[:-1], d_y[:-1]


@torch.no_grad()
def solve(
    factors: Factors,
    log_alpha: Tensor,
    log_beta: Tensor,
) -> Solution:
    """Regressions of all tasks, on the CPU: a GPU is slower at small factorisations.

    Args:
        factors: Their data, complete.
        log_alpha: Logarithms of the noise precisions, ``T``.
        log_beta: Logarithms of the weight precisions, ``T``.

    Raises:
        NanError: If an evidence is not finite.
    """
    device = factors.rows.device
    precisions = torch.stack([log_alpha, log_beta]).double().exp()
    alpha, beta = precisions.cpu()
    rows = factors.rows.cpu()
    count = rows.new_tensor(factors.counts)
    D = rows.shape[-1] - 1
    k = min(rows.shape[-2], D)
    F = rows[:, :k, :D]
    z = rows[:, :k, D:]
    root = (alpha / beta).sqrt()[:, None, None]
    eye = torch.eye(k, dtype=F.dtype).expand(len(F), k, k)
    system = F.mT if factors.are_data else F
    Q, T = torch.linalg.qr(torch.cat([root * system, eye], dim=-2))
    upper = Q[:, : system.shape[1]]
    lower = Q[:, system.shape[1] :]
    # degrees of freedom of the fit, tr(I - K^-1), and those of the residuals, N minus
    # that, summed on their own
    fitted = upper.square().sum((-1, -2))
    if factors.are_data:
        half = torch.linalg.solve_triangular(T.mT, z, upper=False)
        mean = (root * (upper @ half))[..., 0]
        residual = (lower @ half)[..., 0]
        squares = residual.square().sum(-1)
        # rows of zeros have a residual of zero, and each a unit in the trace
        is_row = torch.arange(k) < count.unsqueeze(-1)
        free = (lower.square().sum(-1) * is_row).sum(-1)
        outer = (alpha.unsqueeze(-1) * residual).unsqueeze(-1) * mean.unsqueeze(-2)
        slope = outer - root * (lower @ upper.mT)
    else:
        coefficients = upper.mT @ z
        mean = torch.linalg.solve_triangular(T, root * coefficients, upper=True)[..., 0]
        residual = (z - upper @ coefficients)[..., 0]
        squares = residual.square().sum(-1) + rows[:, D, D].square()
        free = count - D + lower.square().sum((-1, -2))
        slope = root.square() * (lower @ lower.mT)
    misfit = alpha * squares
    size = beta * mean.square().sum(-1)
    value = 0.5 * (count * (alpha / (2.0 * math.pi)).log() - misfit - size)
    value = value - T.diagonal(dim1=-1, dim2=-2).abs().log().sum(-1)
    _check_finite(value, rows)
    d_log_alpha = 0.5 * (free - misfit)
    d_log_beta = 0.5 * (fitted - size)
    numbers = torch.stack([value, d_log_alpha, d_log_beta]).to(device)
    d_outcome = -alpha.unsqueeze(-1) * residual
    parts = (t.to(device) for t in (mean, slope, d_outcome))
    return Solution(factors, *precisions, *numbers, *parts)


def _check_finite(
    value: Tensor,
    rows: Tensor,
) -> None:
    """Raise a ``NanError`` if an evidence is not finite."""
    bad = (~value.isfinite()).nonzero()[:, 0].tolist()
    if bad:
        finite = bool(rows[bad].isfinite().all())
        wrong = "hyperparameters" if finite else "their features or outcomes"
        raise NanError(
            f"The log evidence is not finite for {len(bad)} of {len(value)} "
            f"tasks, the first is {bad[0]}: {wrong} are not finite or too large."
        )
