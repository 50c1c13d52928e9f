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

If the rows are few, and no task has more than D observations, factors are the data, and
F is replaced by its coordinates in an orthonormal basis of their span. Otherwise they
are triangular factors of QR factorisations, taken chunk after chunk: the factor so far
is stacked on the next chunk. From the factors follow value, m and slopes by a QR
factorisation of them with the ridge,

.. math:: \begin{bmatrix} \sqrt r F \\ I \end{bmatrix} = Q T,

where ``|K| = |T|^2``, ``K^{-1} = A A'`` with the lower part A of Q, and traces and
residuals are sums of squares of parts of Q, of its orthogonal complement where rows are
few. Nothing is subtracted, so that slopes close to zero are right too.

The first pass over the rows makes the factors; the second sends the derivative of each
row,

.. math:: \partial / \partial \phi_n = \alpha (y_n - \phi_n' m) m - r K^{-1} \phi_n
    = -(C C' [\phi_n, y_n])_\phi, \quad C = [\sqrt \alpha [-m, 1], \sqrt r [A, 0]],

back through the feature map. Time is linear in the number of rows. Memory beyond the
data does not depend on it: the activations of a chunk (of all of them up to 65,536
rows), and a few ``D x D`` matrices per task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, NamedTuple

import torch
from linear_operator.utils.errors import NanError
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from botorch_structured.linalg.blocks import LeafLayout
from botorch_structured.models.ablr.processes import Processes

# Activations of so many rows are kept between the passes: about 80 MiB for three layers
# of 50 units. Of more rows they are computed twice.
_KEPT_ROWS = 65_536


@dataclass(frozen=True)
class Chunk:
    """Some rows, and the observations there.

    Attributes:
        rows: Which rows.
        entries: Which observations, ``m``.
        row: The row of each observation, counted within the chunk, ``m``.
        batches: Tasks with similar numbers of observations, ``B``, and which these are,
            ``B x N``, padded with ``m``.
    """

    rows: slice
    entries: slice
    row: Tensor
    batches: list[tuple[Tensor, Tensor]]


class TaskData:
    """Rows of some tasks and the outcomes that were observed there, cut into chunks.

    Make it once for all evaluations of an objective: it sorts the observations. With
    known noise, features and outcomes of an observation are divided by its standard
    deviation: the noise precision is then 1.

    Args:
        features: The feature map, ``n x d`` to ``n x D``, row by row.
        X: Inputs as the feature map takes them, ``n x d``.
        Y: Outcomes, ``m``.
        task: The task of each outcome, ``m``, integers in ``0 ... num_tasks - 1``; it
            is faster if rows of a task follow each other.
        num_tasks: T; tasks may have no observation.
        row: The row of each outcome, ascending, ``m``. Default: outcome i is of row i.
        noise_variance: Known noise variances of the outcomes, ``m``; constants.
        processes: Processes that each hold a part of the rows (any part, of a task
            too). Default: this process has all rows.
        chunk_rows: Rows in a chunk. Default: 2,048, which stay in a CPU's cache with
            the activations of 50 units; a GPU needs 32,768 to be busy.

    Attributes:
        counts: Number of observations of each task, in all processes, ``T``.
        keeps_activations: Whether they are kept between the passes: up to 65,536 rows.
        log_scale: Logarithm of all that outcomes are multiplied by.
    """

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
    ) -> None:
        self.features = features
        self.X = X
        self.Y = Y
        self.task = task
        self.row = torch.arange(len(X), device=X.device) if row is None else row
        self.noise_variance = noise_variance
        self.processes = processes or Processes()
        self.keeps_activations = len(X) <= _KEPT_ROWS
        self.counts = self.processes.total(torch.bincount(task, minlength=num_tasks))
        self.largest = max(1, *self.counts.tolist())
        scale = torch.ones_like(Y) if noise_variance is None else noise_variance.rsqrt()
        self.scale = scale.detach().double()
        self.log_scale = self.processes.total(self.scale.log().sum())
        step = chunk_rows or (2_048 if X.device.type == "cpu" else 32_768)
        self.chunks = self._cut(step)
        self.is_whole = self.processes.alone and len(self.chunks) == 1

    def _cut(self, step: int) -> list[Chunk]:
        chunks = []
        starts = torch.arange(0, max(len(self.X), 1) + step, step).to(self.row)
        places = torch.searchsorted(self.row, starts).tolist()
        for i, entries in enumerate(starmap(slice, pairwise(places))):
            layout = LeafLayout(self.task[entries])
            batches = [(layout.keys[b.leaves], b.index) for b in layout.buckets]
            start = i * step
            rows = slice(start, start + step)
            chunks.append(Chunk(rows, entries, self.row[entries] - start, batches))
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
        return new

    def observed(
        self,
        chunk: Chunk,
        phi: Tensor,
    ) -> Tensor:
        """Features and outcomes of each observation, scaled, and zeros.

        Args:
            chunk: Which observations.
            phi: Features of the rows of the chunk, ``n x D``.

        Returns:
            ``(m + 1) x (D + 1)`` in float64; padding is the last row.
        """
        y = self.Y.detach()[chunk.entries].double()
        both = torch.cat([phi.detach().double()[chunk.row], y.unsqueeze(-1)], dim=-1)
        return pad(both * self.scale[chunk.entries].unsqueeze(-1), (0, 0, 0, 1))


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
        mean = self.mean.double()
        root = self.root.double()
        for phi, y, v in zip(
            features.double().unbind(-2),
            Y.double().unbind(-1),
            noise_variance.double().unbind(-1),
            strict=True,
        ):
            g = (root.mT @ phi.unsqueeze(-1)).squeeze(-1)
            s = v + g.square().sum(-1)
            gain = (root @ g.unsqueeze(-1)).squeeze(-1)
            missed = y - (phi * mean).sum(-1)
            mean = mean + gain * (missed / s).unsqueeze(-1)
            shrink = (gain / (s + (v * s).sqrt()).unsqueeze(-1)).unsqueeze(-1)
            root = root - shrink * g.unsqueeze(-2)
        return WeightPosterior(mean.to(self.mean), root.to(self.root))


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
            flat = torch.cat([t.detach().double().flatten() for t in learnt])
            data.processes.check_same("hyperparameters", flat)

    def log_evidence(self) -> Tensor:
        """Sum over tasks of the log evidence: minus (3).

        Differentiable once in the precisions, the inputs and outcomes of the data and
        the parameters of the features; the gradient is computed along with the value.
        Where processes share the rows, value and gradient are those of all rows, and
        the same in all processes; those of inputs and outcomes are of its own.

        Raises:
            NanError: If the value is not finite.
            RuntimeError: If another process has ended or does not answer.
        """
        data = self.data
        learnt = (self.log_alpha, self.log_beta, data.X, data.Y, *self.parameters)
        if torch.is_grad_enabled() and any(t.requires_grad for t in learnt):
            return _SummedEvidence.apply(self, *learnt)
        return self.value(self.solution())

    @torch.enable_grad()
    def forward(self, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, features, and what was observed, of a chunk."""
        X = self.data.X.detach()[chunk.rows]
        X.requires_grad_(self.data.X.requires_grad)
        some = X if len(X) else X.new_zeros(1, X.shape[-1])  # not all modules take none
        phi = self.data.features(some)
        return X, phi, self.data.observed(chunk, phi)

    @torch.no_grad()
    def solution(
        self,
        parts: Iterable[Any] = (),
        few: bool = True,
    ) -> Solution:
        """The regressions.

        Args:
            parts: What ``forward`` returns for each chunk, if that is known.
            few: Whether rows of tasks with few of them may remain as they are.
        """
        data = self.data
        parts = parts or map(self.forward, data.chunks)
        factors: Tensor | None = None
        for chunk, (*_, both) in zip(data.chunks, parts, strict=True):
            if factors is None:
                width = both.shape[-1]
                few = few and data.is_whole and data.largest < width
                height = data.largest if few else width
                factors = both.new_zeros(len(data.counts), height, width)
            for tasks, index in chunk.batches:
                rows = both[index]
                if chunk.rows.start:  # else it is the first one
                    rows = torch.cat([factors[tasks], rows], dim=-2)
                if not few:
                    rows = torch.linalg.qr(rows, mode="r").R
                factors[tasks, : rows.shape[-2]] = rows
        assert factors is not None
        if not data.processes.alone:
            rows = torch.cat(data.processes.gather(factors), dim=-2)
            factors = torch.linalg.qr(rows, mode="r").R
        return solve(factors, data.counts, self.log_alpha, self.log_beta)

    def value(self, solution: Solution) -> Tensor:
        """The log evidence of all tasks and outcomes."""
        value = solution.value.sum().to(self.data.X.device) + self.data.log_scale
        return self.data.processes.first(value).to(self.log_beta)

    @torch.no_grad()
    def weights(self) -> WeightPosterior:
        """Posteriors of the weights, (1) and (2); the prior where there are no data.

        Returns:
            Means ``T x D`` and roots ``T x D x D`` in float64, without gradients.

        Raises:
            NanError: If features or hyperparameters are not finite.
            RuntimeError: If another process has ended or does not answer.
        """
        solution = self.solution(few=False)
        beta = self.log_beta.detach().double().exp().cpu()
        parts = solution.mean, solution.inverse_root * beta.rsqrt()[:, None, None]
        first = self.data.processes.first
        return WeightPosterior(*(first(t.to(self.data.X.device)) for t in parts))


class _SummedEvidence(torch.autograd.Function):
    """The log evidence; its gradient is computed along with the value."""

    @staticmethod
    def forward(
        ctx: Any,
        regressions: Regressions,
        log_alpha: Tensor,
        log_beta: Tensor,
        inputs: Tensor,
        outcomes: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        data = regressions.data
        d_X = torch.zeros_like(inputs) if inputs.requires_grad else None
        d_Y = torch.zeros_like(outcomes)
        d_parameters = [torch.zeros_like(p) for p in parameters]
        kept = []
        if data.keeps_activations:
            kept = list(map(regressions.forward, data.chunks))
        solution = regressions.solution(kept)
        roots = solution.curvature_root.to(inputs.device)
        for i, chunk in enumerate(data.chunks):
            X, phi, both = kept[i] if kept else regressions.forward(chunk)
            slopes = torch.zeros_like(both)
            for tasks, index in chunk.batches:
                root = roots[tasks]
                slopes[index] = -(both[index] @ root) @ root.mT
            slopes = slopes[:-1] * data.scale[chunk.entries].unsqueeze(-1)
            d_Y[chunk.entries] = slopes[:, -1]
            if not phi.requires_grad:
                continue
            along = slopes[:, :-1].to(phi)
            along = torch.zeros_like(phi).index_add_(0, chunk.row, along)
            with torch.enable_grad():
                # ``grad_outputs`` make torch load its symbolic shapes: 35 MiB
                total = (phi * along).sum()
            wanted = parameters if d_X is None else (*parameters, X)
            gradients = torch.autograd.grad(total, wanted, materialize_grads=True)
            if d_X is not None:
                d_X[chunk.rows] = gradients[-1]
            for d_parameter, gradient in zip(d_parameters, gradients, strict=False):
                d_parameter.add_(gradient)
        processes = data.processes
        precisions = processes.first(solution.slopes.to(inputs.device))
        ctx.gradients = [*precisions, d_X, d_Y, *map(processes.total, d_parameters)]
        return regressions.value(solution)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        return None, *(None if g is None else grad * g for g in ctx.gradients)


class Solution(NamedTuple):
    """Regressions of all tasks, on the CPU.

    Attributes:
        value: Log evidences, ``T``.
        slopes: Their derivatives with respect to log alpha and log beta, ``2 x T``.
        mean: Posterior means of the weights, ``T x D``.
        inverse_root: A, ``T x D x k``: in the span of the data, K^-1 = A A'.
        curvature_root: C, ``T x (D + 1) x (k + 1)``: the derivative with respect to an
            observation b = [phi, y] is -C C' b.
    """

    value: Tensor
    slopes: Tensor
    mean: Tensor
    inverse_root: Tensor
    curvature_root: Tensor


@torch.no_grad()
def solve(
    rows: Tensor,
    counts: Tensor,
    log_alpha: Tensor,
    log_beta: Tensor,
) -> Solution:
    """Regressions of all tasks, on the CPU: a GPU is slower at small factorisations.

    Args:
        rows: The factor of each task, ``T x C x (D + 1)``, zero where it has fewer than
            C observations.
        counts: Numbers of observations, ``T``.
        log_alpha: Logarithms of the noise precisions, ``T``.
        log_beta: Logarithms of the weight precisions, ``T``.

    Raises:
        NanError: If an evidence is not finite.
    """
    rows = rows.cpu()
    counts = counts.cpu()
    alpha, beta = torch.stack([log_alpha, log_beta]).double().exp().cpu()
    C = rows.shape[-2]
    F = rows[..., :-1]
    z = rows[..., -1:]
    basis = None
    if C <= F.shape[-1]:  # the same regression on the coordinates in their span
        basis, coordinates = torch.linalg.qr(F.mT)
        F = coordinates.mT
    k = F.shape[-1]
    ratio = (alpha / beta).sqrt()[:, None, None]
    eye = torch.eye(k, dtype=F.dtype).expand(len(F), k, k)
    mode = "reduced" if basis is None else "complete"
    Q, T = torch.linalg.qr(torch.cat([ratio * F, eye], dim=-2), mode=mode)
    fit = Q[:, :C, :k]
    inverse_root = Q[:, C:, :k]
    along = fit.mT @ z
    # degrees of freedom of the residuals, N - tr(I - K^-1), summed on their own
    if basis is None:
        residual = z - fit @ along
        free = counts - k + inverse_root.square().sum((-1, -2))
    else:
        inverse_root = basis @ inverse_root
        rest = Q[:, :C, k:]
        residual = rest @ (rest.mT @ z)
        is_row = (rows != 0.0).any(-1)  # else padding
        free = (rest.square().sum(-1) * is_row).sum(-1) + (counts - is_row.sum(-1))
    mean = inverse_root @ (ratio * along)
    misfit = alpha * residual.square().sum((-1, -2))
    size = beta * mean.square().sum((-1, -2))
    value = 0.5 * (counts * (alpha / (2.0 * math.pi)).log() - misfit - size)
    value = value - T.diagonal(dim1=-1, dim2=-2).abs().log().sum(-1)
    bad = (~value.isfinite()).nonzero()[:, 0].tolist()
    if bad:
        raise NanError(
            f"The log evidence is not finite for {len(bad)} of {len(value)} tasks, the "
            f"first is {bad[0]}: features, outcomes or hyperparameters are not finite "
            "or too large."
        )
    toward = torch.cat([-mean, torch.ones_like(mean[:, :1])], dim=-2)
    across = pad(ratio * inverse_root, (0, 0, 0, 1))
    fitted = fit.square().sum((-1, -2))
    return Solution(
        value,
        torch.stack([free - misfit, fitted - size]) / 2.0,
        mean.squeeze(-1),
        inverse_root,
        torch.cat([alpha.sqrt()[:, None, None] * toward, across], dim=-1),
    )
