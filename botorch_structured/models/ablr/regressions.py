r"""Bayesian linear regressions of many tasks as an object: evidence, weights, updates.

For one task with features ``Phi`` (``N x D``), outcomes y, noise precision alpha,
weight precision beta and r = alpha / beta, Perrone et al. (2017) have the weights

.. math:: w | y \sim N(m, S), \quad m = r K^{-1} \Phi' y, \quad S = K^{-1} / \beta,
    \quad K = I + r \Phi' \Phi,

so that the function at x has mean ``phi(x)' m`` (1) and variance ``phi(x)' S phi(x)``
(2), and the log evidence (minus (3), up to a constant)

.. math:: \log N(y; 0, \Phi \Phi' / \beta + I / \alpha) = \frac{N}{2} \log
    \frac{\alpha}{2 \pi} - \frac{1}{2} \log |K| - \frac{\alpha}{2} |y - \Phi m|^2
    - \frac{\beta}{2} |m|^2.

The printed form ``|y|^2 - r |c|^2`` of the last two terms cancels. ``K`` is never
formed: a QR factorisation of the *smaller* system with its ridge,

.. math:: \begin{bmatrix} \sqrt r F \\ I \end{bmatrix} = Q T \;(N > D), \qquad
    \begin{bmatrix} \sqrt r F' \\ I \end{bmatrix} = Q T \;(N \le D),

where F are the features of a factor (``ablr.factors``), has ``|K| = |T|^2`` in either
case, and traces and residuals as sums of squares of parts of Q. Nothing is subtracted,
so that gradients close to zero are right too.

The first pass over the rows of a task reduces them to its factor, from which value, m
and slopes follow; the second sends the derivative of each row,

.. math:: \partial / \partial \phi_n = \alpha (y_n - \phi_n' m) m - r K^{-1} \phi_n,

back through the feature map. Time is linear in the number of rows. Memory beyond the
data does not depend on it: the activations of 65,536 rows at most (of further ones they
are computed twice), and a few ``D x D`` matrices per task.
"""

from __future__ import annotations

__all__ = ["Regressions", "Solutions", "WeightPosterior", "solve"]

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from linear_operator.utils.errors import NanError
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_structured.models.ablr.factors import TaskData, TaskFactors
from botorch_structured.models.ablr.rows import Chunk


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

    def to(self, like: Tensor) -> WeightPosterior:
        """The same with the dtype and device of a tensor."""
        return WeightPosterior(self.mean.to(like), self.root.to(like))

    @staticmethod
    def stacked(weights: Sequence[WeightPosterior]) -> WeightPosterior:
        """Of several tasks, ``... x W x D`` and ``... x W x D x D``.

        Some may have been conditioned on a batch of outcomes, and others not.
        """
        means = torch.broadcast_tensors(*[w.mean for w in weights])
        roots = torch.broadcast_tensors(*[w.root for w in weights])
        return WeightPosterior(torch.stack(means, dim=-2), torch.stack(roots, dim=-3))

    def update(
        self, features: Tensor, Y: Tensor, noise_variance: Tensor
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
            phi, v = features[..., i, :], noise_variance[..., i]
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
        ValueError: If processes that share the rows differ in their hyperparameters.
        RuntimeError: If another process has ended or does not answer.
    """

    def __init__(
        self, data: TaskData, log_alpha: Tensor | None, log_beta: Tensor
    ) -> None:
        if log_alpha is None:
            log_alpha = torch.zeros_like(log_beta, requires_grad=False)
        self.data, self.log_alpha, self.log_beta = data, log_alpha, log_beta
        self.parameters = [p for p in data.features.parameters() if p.requires_grad]
        if not data.processes.alone:
            # processes with other hyperparameters would add up different things
            learnt: dict[str, Sequence[Tensor]] = {
                "log_alpha": [log_alpha],
                "log_beta": [log_beta],
                "features (their parameters)": self.parameters,
            }
            data.processes.check_same(
                {name: _fingerprint(tensors) for name, tensors in learnt.items()},
                data.X.device,
            )

    def log_evidence(self) -> Tensor:
        """Sum over tasks of the log evidence: minus (3).

        Differentiable once in the precisions, the inputs and outcomes of the data and
        the parameters of the features; the gradient is computed along with the value.
        Where processes share the rows, value and gradient are those of all rows, and
        the same in every process; those of inputs and outcomes are of its own.

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
        with torch.no_grad():
            factors = data.factors()
            return self._value(Solutions(factors, self.log_alpha, self.log_beta))

    def _value(self, solutions: Solutions) -> Tensor:
        solutions.check_finite()
        processes, noise = self.data.processes, self.data.noise_variance
        value = solutions.value.sum()
        if noise is not None:  # outcomes were divided by its root
            value = value - 0.5 * processes.total(noise.double().log().sum())
        (value,) = processes.of_first([value])
        return value.to(self.log_beta.dtype)

    @torch.no_grad()
    def weights(self) -> WeightPosterior:
        """Posteriors of the weights, (1) and (2); the prior where there are no data.

        Returns:
            Means ``T x D`` and roots ``T x D x D`` in float64, without gradients.

        Raises:
            NanError: If features or hyperparameters are not finite.
            RuntimeError: If another process has ended or does not answer.
        """
        data = self.data
        factors = data.factors()
        solutions = Solutions(factors, self.log_alpha, self.log_beta)
        solutions.check_finite()
        alpha, beta = solutions.alpha, solutions.beta
        F = factors.rows[..., :-1]
        D = F.shape[-1]
        eye = torch.eye(D, dtype=F.dtype, device=F.device).expand(len(F), D, D)
        ratio = (alpha / beta).sqrt()[:, None, None]
        T = torch.linalg.qr(torch.cat([ratio * F, eye], dim=-2), mode="r").R
        inverse = torch.linalg.solve_triangular(T, eye, upper=True)
        root = inverse / beta.sqrt()[:, None, None]
        return WeightPosterior(*data.processes.of_first([solutions.mean, root]))


def _fingerprint(tensors: Sequence[Tensor]) -> float:
    """A number that changes when one of them does, or two are swapped."""
    if not tensors:
        return 0.0
    flat = torch.cat([t.detach().double().reshape(-1).cpu() for t in tensors])
    return float(flat @ torch.arange(1.0, len(flat) + 1.0, dtype=flat.dtype).cos())


class _SummedEvidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, regressions: Regressions, *learnt: Tensor) -> Tensor:
        value, ctx.gradients = _value_and_gradients(regressions)
        ctx.dtypes = [t.dtype for t in learnt]
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        return None, *(
            None if g is None else (grad * g).to(dtype)
            for g, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        )


def _value_and_gradients(
    regressions: Regressions,
) -> tuple[Tensor, list[Tensor | None]]:
    """The log evidence and its derivatives.

    Returns:
        Derivatives with respect to log alpha, log beta, X, Y and the parameters.
    """
    data, parameters = regressions.data, regressions.parameters
    of_inputs = data.X.requires_grad
    d_x = torch.zeros_like(data.X) if of_inputs else None
    d_y = torch.zeros_like(data.Y) if data.Y.requires_grad else None
    d_parameters: list[Tensor] = []
    through = bool(parameters) or of_inputs

    def forward(chunk: Chunk) -> tuple[Tensor, Tensor]:
        X = data.X.detach()[chunk.rows].requires_grad_(of_inputs)
        with torch.set_grad_enabled(through):
            return X, data.features(X)

    factors = data.no_factors()
    kept: list[tuple[Tensor, Tensor]] = []
    for chunk in data.rows.chunks:
        done = forward(chunk)
        if len(kept) < data.rows.num_kept:
            kept.append(done)
        factors.add(chunk, *data.observed(chunk, done[1].detach()))
    factors.merge(data.processes)
    solutions = Solutions(factors, regressions.log_alpha, regressions.log_beta)
    kept.reverse()  # the first is the next to be used, and to be given up
    for chunk in data.rows.chunks if through or d_y is not None else []:
        X, phi = kept.pop() if kept else forward(chunk)
        seen = data.observed(chunk, phi.detach())
        d_phi, d_outcome = solutions.slopes(chunk, *seen)
        scale = data.scale(chunk)
        if scale is not None:
            d_phi, d_outcome = d_phi * scale[:, None], d_outcome * scale
        if d_y is not None:
            d_y[chunk.entries] = d_outcome.to(d_y.dtype)
        if not phi.requires_grad:
            continue
        d_phi = d_phi.to(phi.dtype)
        if chunk.local is not None:
            d_phi = torch.zeros_like(phi).index_add_(0, chunk.local, d_phi)
        with torch.enable_grad():
            # ``grad_outputs`` make torch load its symbolic shapes: 35 MiB
            along = (phi * d_phi).sum()
        wanted = [*parameters, X] if of_inputs else parameters
        found = torch.autograd.grad(along, wanted, materialize_grads=True)
        if d_x is not None:
            d_x[chunk.rows] = found[-1]
        for total, g in zip(d_parameters, found, strict=False):
            total.add_(g)
        d_parameters = d_parameters or list(found[: len(parameters)])
    d_parameters = d_parameters or [torch.zeros_like(p) for p in parameters]
    value = regressions._value(solutions)
    of_tasks = [solutions.d_log_alpha, solutions.d_log_beta]
    processes = data.processes
    return value, [
        *processes.of_first(of_tasks),
        d_x,
        d_y,
        *processes.sum(d_parameters),
    ]


class Solution(NamedTuple):
    """Regressions of some tasks.

    Attributes:
        value: Log evidences, ``B``.
        d_log_alpha: Their derivatives with respect to log alpha, ``B``.
        d_log_beta: And to log beta, ``B``.
        mean: Posterior means of the weights, ``B x D``.
        slope: What the derivative with respect to the features is made of. Of large
            tasks ``r K^-1``, ``B x D x D``: it is ``alpha e m' - Phi slope`` with the
            residuals e. Of small tasks the derivative itself, ``B x k x D``.
        residual: Of small tasks the residuals e, ``B x k``; None of large tasks.
    """

    value: Tensor
    d_log_alpha: Tensor
    d_log_beta: Tensor
    mean: Tensor
    slope: Tensor
    residual: Tensor | None


def solve(
    factor: Tensor, count: Tensor, alpha: Tensor, beta: Tensor, small: bool
) -> Solution:
    """Regressions of large tasks, or of small ones.

    Args:
        factor: Of large tasks triangular factors of features and outcomes, ``B x
            (D + 1) x (D + 1)``. Of small ones, with no more observations than features,
            features and outcomes themselves, ``B x k x (D + 1)``, zero from each task's
            number of observations on.
        count: Number of observations, ``B``.
        alpha: Noise precisions, ``B``.
        beta: Weight precisions, ``B``.
        small: Which of them.
    """
    D = factor.shape[-1] - 1
    k = factor.shape[-2] if small else D
    F, z = factor[:, :k, :D], factor[:, :k, D:]
    root = (alpha / beta).sqrt()[:, None, None]
    eye = torch.eye(k, dtype=F.dtype, device=F.device).expand(len(F), k, k)
    Q, T = torch.linalg.qr(torch.cat([root * (F.mT if small else F), eye], dim=-2))
    upper, lower = Q[:, :D], Q[:, D:]
    # degrees of freedom of the fit, tr(I - K^-1), and those of the residuals, N minus
    # that, summed on their own
    fitted = upper.square().sum((-1, -2))
    residual: Tensor | None = None
    if small:
        half = torch.linalg.solve_triangular(T.mT, z, upper=False)
        mean = (root * (upper @ half))[..., 0]
        residual = (lower @ half)[..., 0]
        squares = residual.square().sum(-1)
        # rows of zeros have a residual of zero, and each a unit in the trace
        real = torch.arange(k, device=F.device) < count.unsqueeze(-1)
        free = (lower.square().sum(-1) * real).sum(-1)
        outer = (alpha.unsqueeze(-1) * residual).unsqueeze(-1) * mean.unsqueeze(-2)
        slope = outer - root * (lower @ upper.mT)
    else:
        coefficients = upper.mT @ z
        mean = torch.linalg.solve_triangular(T, root * coefficients, upper=True)[..., 0]
        inside = (z - upper @ coefficients)[..., 0]
        squares = inside.square().sum(-1) + factor[:, D, D].square()
        free = count - D + lower.square().sum((-1, -2))
        slope = root.square() * (lower @ lower.mT)
    misfit, size = alpha * squares, beta * mean.square().sum(-1)
    half_logdet = T.diagonal(dim1=-1, dim2=-2).abs().log().sum(-1)
    value = 0.5 * (count * (alpha / (2.0 * math.pi)).log() - misfit - size)
    return Solution(
        value=value - half_logdet,
        d_log_alpha=0.5 * (free - misfit),
        d_log_beta=0.5 * (fitted - size),
        mean=mean,
        slope=slope,
        residual=residual,
    )


class Solutions:
    """Evidence, means and derivatives of tasks, small and large ones in a batch each.

    Args:
        factors: Their data, complete.
        log_alpha: Logarithms of the noise precisions, ``T``.
        log_beta: Logarithms of the weight precisions, ``T``.

    Attributes:
        alpha: Noise precisions, ``T``.
        beta: Weight precisions, ``T``.
        value: Log evidences, ``T``.
        d_log_alpha: Their derivatives with respect to log alpha, ``T``.
        d_log_beta: And to log beta, ``T``.
        mean: Posterior means of the weights, ``T x D``.
    """

    def __init__(
        self, factors: TaskFactors, log_alpha: Tensor, log_beta: Tensor
    ) -> None:
        self.factors, device = factors, factors.rows.device
        logs = torch.stack([log_alpha.detach(), log_beta.detach()])
        self.alpha, self.beta = precisions = logs.double().exp()
        # on the CPU: a GPU is slower at many small factorisations
        rows, precisions, large = (
            t.cpu() for t in (factors.rows, precisions, torch.tensor(factors.large))
        )
        counts = rows.new_tensor(factors.counts)
        numbers = rows.new_zeros(3, len(counts))
        self.mean = rows.new_zeros(len(counts), factors.num_features)
        self._batch: dict[bool, Solution] = {}
        place = torch.zeros(len(counts), dtype=torch.long)  # of a task in its batch
        for small in (True, False):
            which = (large != small).nonzero()[:, 0]
            if not len(which):
                continue
            place[which] = torch.arange(len(which))
            n, height = counts[which], rows.shape[1]
            mine = rows[which, : max(1, int(n.max())) if small else height]
            alpha, beta = precisions[:, which]
            found = solve(mine, n, alpha, beta, small)
            numbers[:, which] = torch.stack(found[:3])
            self.mean[which] = found.mean
            slope, residual = found.slope.to(device), found.residual
            residual = None if residual is None else residual.to(device)
            self._batch[small] = found._replace(slope=slope, residual=residual)
        self._finite = numbers[0].isfinite()
        self.value, self.d_log_alpha, self.d_log_beta = numbers.to(device)
        self.mean = self.mean.to(device)
        self._place = place.to(device)

    def check_finite(self) -> None:
        """Raise a ``NanError`` if an evidence is not finite."""
        bad = (~self._finite).nonzero()[:, 0].tolist()
        if bad:
            finite = bool(self.factors.rows[bad].isfinite().all())
            wrong = "hyperparameters" if finite else "their features or outcomes"
            raise NanError(
                f"The log evidence is not finite for {len(bad)} of {len(self.value)} "
                f"tasks, the first is {bad[0]}: {wrong} are not finite or too large."
            )

    def slopes(self, chunk: Chunk, phi: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of the evidences with respect to features and outcomes.

        Args:
            chunk: Which observations.
            phi: Their features in float64, ``m x D``.
            y: Outcomes, ``m``.

        Returns:
            ``m x D`` and ``m``.
        """
        # padding is written into one more row
        d_phi, d_y = phi.new_empty(len(y) + 1, len(phi.mT)), y.new_empty(len(y) + 1)
        small = self.factors.small_places(chunk, y)
        if small is not None:
            which, task, place = small
            batch, at = self._batch[True], (self._place[task], place)
            assert batch.residual is not None
            d_phi[:-1][which] = batch.slope[at]
            d_y[:-1][which] = -self.alpha[task] * batch.residual[at]
        for tasks, index in chunk.batches(self.factors.large):
            slope = self._batch[False].slope[self._place[tasks]]
            mean, here = self.mean[tasks], index.clamp_max(len(y) - 1)
            rows, outcomes = phi[here], y[here].unsqueeze(-1)
            missed = torch.baddbmm(outcomes, rows, mean.unsqueeze(-1), beta=-1.0)
            d_outcome = self.alpha[tasks, None, None] * missed
            outer = d_outcome * mean.unsqueeze(1)
            d_phi[index] = torch.baddbmm(outer, rows, slope, beta=-1.0, alpha=-1.0)
            d_y[index] = d_outcome.squeeze(-1)
        return d_phi[:-1], d_y[:-1]
