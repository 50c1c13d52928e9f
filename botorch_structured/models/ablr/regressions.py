r"""Posterior of the weights of Bayesian linear regressions, and its updates.

Perrone et al. (2017), equations (1) and (2), are statements about the weights: with
``K = I + r Phi' Phi`` and r = alpha / beta,

.. math:: w | y \sim N(m, S), \quad m = r K^{-1} \Phi' y, \quad S = K^{-1} / \beta,

and the function at x has mean ``phi(x)' m`` and variance ``phi(x)' S phi(x)``. The
covariance is kept as a root, ``S = R R'``: variances are sums of squares, and samples
of whole functions are ``phi(x)' (m + R z)``.
"""

from __future__ import annotations

__all__ = [
    "Solution",
    "TaskSolutions",
    "WeightPosterior",
    "refined_mean",
    "solve_large",
    "solve_small",
    "summed_log_evidence",
    "update_weights",
    "weight_posterior",
]

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from linear_operator.utils.errors import NanError
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from botorch_structured.models.ablr.factors import AblrData, FeatureMap, TaskFactors
from botorch_structured.models.ablr.rows import Chunk, TaskRows

# ----------------------------------------------------------------------
# Weights of a Bayesian linear regression to the last digits, where it is collinear.
#
# A QR factorisation solves a problem that is rounding away from the one given. With
# features that are (almost) collinear and little ridge, the weights of that one may agree
# with the right ones in eight digits only. Iterative refinement recovers them: the
# residual of the normal equations,
#
# .. math:: s = \Phi' (y - \Phi m) - m \beta / \alpha, \quad
#     m \leftarrow m + \alpha S s, \quad S = K^{-1} / \beta,
#
# is computed with twice the digits (pairs of numbers; Dekker 1971), the correction with
# the factors there are. Each step gains as many digits as these have right.

_MAX_STEPS = 8
_ROUNDING = 2.0**-52
_SPLIT = 2.0**27 + 1.0  # of 53 bits, halves of 26 multiply exactly


class _Pair(NamedTuple):
    """A number as the sum of what it rounds to and what is left."""

    high: Tensor
    low: Tensor


def _add(a: Tensor, b: Tensor) -> _Pair:
    total = a + b
    part = total - a
    return _Pair(total, (a - (total - part)) + (b - part))


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    scaled = _SPLIT * a
    high = scaled - (scaled - a)
    return high, a - high


def _multiply(a: Tensor, b: Tensor) -> _Pair:
    product = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    low = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    return _Pair(product, low)


def _sum(terms: _Pair) -> _Pair:
    """Over the last dimension, half onto half."""
    high, low = terms
    while high.shape[-1] > 1:
        if high.shape[-1] % 2:
            high = torch.nn.functional.pad(high, (0, 1))
            low = torch.nn.functional.pad(low, (0, 1))
        half = high.shape[-1] // 2
        total = _add(high[..., :half], high[..., half:])
        rest = total.low + (low[..., :half] + low[..., half:])
        high, low = _add(total.high, rest)
    return _Pair(high[..., 0], low[..., 0])


def _residual(phi: Tensor, y: Tensor, mean: Tensor, ridge: Tensor) -> Tensor:
    """``phi' (y - phi mean) - ridge mean``, rounded once."""
    fit = _multiply(phi, -mean)
    both = _Pair(
        torch.cat([y.unsqueeze(-1), fit.high], dim=-1),
        torch.nn.functional.pad(fit.low, (1, 0)),
    )
    error = _sum(both)
    product = _multiply(phi.T, error.high)
    shrunk = (-ridge * mean).unsqueeze(-1)
    terms = _Pair(
        torch.cat([shrunk, product.high], dim=-1),
        torch.nn.functional.pad(product.low + phi.T * error.low, (1, 0)),
    )
    return _sum(terms).high


def refined_mean(
    phi: Tensor, y: Tensor, mean: Tensor, root: Tensor, alpha: Tensor, beta: Tensor
) -> Tensor:
    """The posterior mean of the weights, in all digits that it has.

    Args:
        phi: Features of a task's observations, ``N x D``.
        y: Outcomes, ``N``.
        mean: The mean as far as it is known, ``D``.
        root: A root of the covariance, ``D x D``.
        alpha: Noise precision.
        beta: Weight precision.
    """
    last = float("inf")
    for _ in range(_MAX_STEPS):
        residual = _residual(phi, y, mean, beta / alpha)
        step = alpha * (root @ (root.T @ residual))
        size = float(step.abs().max())
        if not size < 0.5 * last:  # as good as it gets
            break
        mean, last = mean + step, size
        if size <= _ROUNDING * float(mean.abs().max()):
            break
    return mean


# ----------------------------------------------------------------------
# Evidence, weights and gradients of Bayesian linear regressions, from their factors.
#
# For one task, with noise precision alpha, weight precision beta and r = alpha / beta,
#
# .. math:: \log N(y; 0, \Phi \Phi' / \beta + I / \alpha) = \frac{N}{2} \log
#     \frac{\alpha}{2 \pi} - \frac{1}{2} \log |K| - \frac{\alpha}{2} |y - \Phi m|^2
#     - \frac{\beta}{2} |m|^2, \quad K = I + r \Phi' \Phi, \quad m = r K^{-1} \Phi' y
#
# (Perrone et al. 2017, equation (3); the printed form ``|y|^2 - r |c|^2`` of the last two
# terms cancels). A QR factorisation of the *smaller* system with its ridge,
#
# .. math:: \begin{bmatrix} \sqrt r F \\ I \end{bmatrix} = Q T \;(N > D), \qquad
#     \begin{bmatrix} \sqrt r F' \\ I \end{bmatrix} = Q T \;(N \le D),
#
# has ``|K| = |T|^2`` in either case, and traces and residuals as sums of squares of parts
# of Q: nothing is subtracted, so gradients that nearly vanish are right too. ``K`` itself
# is never formed.


@dataclass(frozen=True)
class Solution:
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

    def to(self, device: torch.device) -> Solution:
        """The same on a device."""
        return Solution(
            self.value.to(device),
            self.d_log_alpha.to(device),
            self.d_log_beta.to(device),
            self.mean.to(device),
            self.slope.to(device),
            None if self.residual is None else self.residual.to(device),
        )


def solve_large(factor: Tensor, count: Tensor, alpha: Tensor, beta: Tensor) -> Solution:
    """Tasks with more observations than features.

    Args:
        factor: Triangular factors of features and outcomes, ``B x (D + 1) x (D + 1)``.
        count: Number of observations, ``B``.
        alpha: Noise precisions, ``B``.
        beta: Weight precisions, ``B``.
    """
    D = factor.shape[-1] - 1
    F, z, left = factor[:, :D, :D], factor[:, :D, D:], factor[:, D, D].square()
    root = (alpha / beta).sqrt()[:, None, None]
    eye = torch.eye(D, dtype=F.dtype, device=F.device).expand_as(F)
    Q, T = torch.linalg.qr(torch.cat([root * F, eye], dim=-2))
    upper, lower = Q[:, :D], Q[:, D:]
    coefficients = upper.mT @ z
    mean = torch.linalg.solve_triangular(T, root * coefficients, upper=True)[..., 0]
    inside = (z - upper @ coefficients)[..., 0]
    squares = inside.square().sum(-1) + left
    return _assemble(
        T,
        count,
        alpha,
        beta,
        squares=squares,
        mean=mean,
        fitted=upper.square().sum((-1, -2)),
        free=count - D + lower.square().sum((-1, -2)),
        slope=root.square() * (lower @ lower.mT),
        residual=None,
    )


def solve_small(factor: Tensor, count: Tensor, alpha: Tensor, beta: Tensor) -> Solution:
    """Tasks with no more observations than features.

    Args:
        factor: Features and outcomes, ``B x k x (D + 1)``, zero from each task's number
            of observations on.
        count: Number of observations, ``B``.
        alpha: Noise precisions, ``B``.
        beta: Weight precisions, ``B``.
    """
    k, D = factor.shape[-2], factor.shape[-1] - 1
    F, z = factor[..., :D], factor[..., D:]
    root = (alpha / beta).sqrt()[:, None, None]
    eye = torch.eye(k, dtype=F.dtype, device=F.device).expand(len(F), k, k)
    Q, T = torch.linalg.qr(torch.cat([root * F.mT, eye], dim=-2))
    upper, lower = Q[:, :D], Q[:, D:]
    half = torch.linalg.solve_triangular(T.mT, z, upper=False)
    mean = (root * (upper @ half))[..., 0]
    residual = (lower @ half)[..., 0]
    # rows of zeros have a residual of zero, and each a unit in the trace
    real = torch.arange(k, device=F.device) < count.unsqueeze(-1)
    free = (lower.square().sum(-1) * real).sum(-1)
    outer = (alpha.unsqueeze(-1) * residual).unsqueeze(-1) * mean.unsqueeze(-2)
    return _assemble(
        T,
        count,
        alpha,
        beta,
        squares=residual.square().sum(-1),
        mean=mean,
        fitted=upper.square().sum((-1, -2)),
        free=free,
        slope=outer - root * (lower @ upper.mT),
        residual=residual,
    )


def _assemble(
    T: Tensor,
    count: Tensor,
    alpha: Tensor,
    beta: Tensor,
    *,
    squares: Tensor,
    mean: Tensor,
    fitted: Tensor,
    free: Tensor,
    slope: Tensor,
    residual: Tensor | None,
) -> Solution:
    """The same sums in either case.

    Args:
        T: Triangular factors, ``B x k x k``.
        count: Number of observations, ``B``.
        alpha: Noise precisions, ``B``.
        beta: Weight precisions, ``B``.
        squares: ``|y - Phi m|^2``, ``B``.
        mean: Means of the weights, ``B x D``.
        fitted: Degrees of freedom of the fit, ``tr(I - K^-1)``, ``B``.
        free: Those of the residuals, ``N`` minus that, summed on its own, ``B``.
        slope: See ``Solution``.
        residual: See ``Solution``.
    """
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


class TaskSolutions:
    """Regressions of all tasks, small ones in one batch and large ones in another.

    Args:
        factors: Their data.
        log_alpha: Logarithms of the noise precisions, ``T``.
        log_beta: Logarithms of the weight precisions, ``T``.

    Attributes:
        alpha: Noise precisions, ``T``.
        beta: Weight precisions, ``T``.
        value: Log evidences, ``T``.
        d_log_alpha: Their derivatives with respect to log alpha, ``T``.
        d_log_beta: And to log beta, ``T``.
        mean: Posterior means of the weights, ``T x D``.

    Raises:
        NanError: If an evidence is not finite.
    """

    def __init__(
        self, factors: TaskFactors, log_alpha: Tensor, log_beta: Tensor
    ) -> None:
        device = factors.rows.device
        T, D = len(factors.counts), factors.num_features
        self.factors = factors
        self.alpha = log_alpha.detach().double().exp()
        self.beta = log_beta.detach().double().exp()
        count = torch.tensor(factors.counts, dtype=torch.float64, device=device)
        self.value = torch.zeros_like(self.alpha)
        self.d_log_alpha = torch.zeros_like(self.alpha)
        self.d_log_beta = torch.zeros_like(self.alpha)
        self.mean = self.alpha.new_zeros(T, D)
        self._batch: dict[bool, Solution] = {}
        self._index = torch.zeros(T, dtype=torch.long, device=device)
        for small in (True, False):
            tasks = torch.tensor(
                [t for t in range(T) if factors.is_small(t) == small],
                dtype=torch.long,
                device=device,
            )
            if len(tasks) == 0:
                continue
            # on the CPU: a GPU is slower at many small factorisations
            rows, n, alpha, beta = (
                v[tasks].cpu() for v in (factors.rows, count, self.alpha, self.beta)
            )
            solve = solve_large
            if small:
                rows = rows[:, : max(1, int(n.max()))]
                solve = solve_small
            batch = solve(rows, n, alpha, beta).to(device)
            for name in ("value", "d_log_alpha", "d_log_beta", "mean"):
                getattr(self, name)[tasks] = getattr(batch, name)
            self._batch[small] = batch
            self._index[tasks] = torch.arange(len(tasks), device=device)
        self._check_finite()

    def _check_finite(self) -> None:
        bad = (~self.value.isfinite()).nonzero()[:, 0].tolist()
        if bad:
            finite = bool(self.factors.rows[bad].isfinite().all())
            raise NanError(
                f"The log evidence is not finite for {len(bad)} of {len(self.value)} "
                f"tasks, the first is {bad[0]}: "
                + (
                    "hyperparameters are not finite or too large."
                    if finite
                    else "their features or outcomes are not finite or too large."
                )
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
        d_phi, d_y = torch.empty_like(phi), torch.empty_like(y)
        small = self.factors.small_places(chunk, y)
        if small is not None:
            which, task, place = small
            batch, at = self._batch[True], (self._index[task], place)
            assert batch.residual is not None
            d_phi[which] = batch.slope[at]
            d_y[which] = -self.alpha[task] * batch.residual[at]
        for piece in chunk.pieces:
            if self.factors.is_small(piece.task):
                continue
            batch, i = self._batch[False], int(self._index[piece.task])
            here, mean = slice(piece.start, piece.stop), batch.mean[i]
            d_outcome = torch.mv(phi[here], mean).sub_(y[here])
            d_outcome.mul_(self.alpha[piece.task])
            torch.outer(d_outcome, mean.neg(), out=d_phi[here])
            d_phi[here].addmm_(phi[here], batch.slope[i], alpha=-1.0)
            d_y[here] = d_outcome
        return d_phi, d_y


# ----------------------------------------------------------------------
# Condition numbers of the factor where rounding may cost more than four digits: nearly
# collinear features, or (close to 1) data that the ridge outweighs
_REFINE_ABOVE = 100.0
_REFINE_BELOW = 1.001


class WeightPosterior(NamedTuple):
    """Normal distributions of weights.

    Attributes:
        mean: ``... x D``.
        root: A square root R of the covariance R R', ``... x D x D``.
    """

    mean: Tensor
    root: Tensor


@torch.no_grad()
def weight_posterior(
    features: FeatureMap,
    X: Tensor,
    Y: Tensor,
    task: Tensor | TaskRows,
    log_alpha: Tensor | None,
    log_beta: Tensor,
    *,
    noise_variance: Tensor | None = None,
    chunk_rows: int | None = None,
    process_group: ProcessGroup | None = None,
    tasks: list[int] | None = None,
) -> WeightPosterior:
    """Posterior of the weights of each task; the prior where there are no data.

    Means of ill-conditioned tasks are refined (``ablr_refinement``) where all rows of
    the task are in one chunk, and in one process.

    Args:
        features: As in ``summed_log_evidence``, like all others but the last.
        X: Inputs, ``n x d``.
        Y: Outcomes, ``m``.
        task: Their tasks, ``m``, or a ``TaskRows``.
        log_alpha: ``T``, or None with known noise.
        log_beta: ``T``.
        noise_variance: Known noise variances, ``m``.
        chunk_rows: Rows that are computed at once.
        process_group: The processes that have rows.
        tasks: The tasks to return, each of ``D x D``, the same in all processes; chunks
            without their rows are passed over. Default: all.

    Returns:
        Means ``T x D`` and roots ``T x D x D`` in float64, without gradients.

    Raises:
        ValueError: If arguments do not fit together.
        NanError: If features or hyperparameters are not finite.
        RuntimeError: If another process has ended or does not answer.
    """
    data = AblrData(
        features,
        X,
        Y,
        task,
        log_alpha,
        log_beta,
        noise_variance=noise_variance,
        chunk_rows=chunk_rows,
        process_group=process_group,
    )
    which = list(range(len(log_beta))) if tasks is None else tasks
    factors = data.factors(tasks=set(which))
    solutions = TaskSolutions(factors, data.log_alpha, data.log_beta)
    alpha, beta = solutions.alpha[which], solutions.beta[which]
    F = factors.rows[which, :, :-1]
    D = F.shape[-1]
    eye = torch.eye(D, dtype=F.dtype, device=F.device).expand(len(F), D, D)
    ratio = (alpha / beta).sqrt()[:, None, None]
    T = torch.linalg.qr(torch.cat([ratio * F, eye], dim=-2), mode="r").R
    inverse = torch.linalg.solve_triangular(T, eye, upper=True)
    mean, root = solutions.mean[which], inverse / beta.sqrt()[:, None, None]
    if data.processes.alone:
        spread = T.diagonal(dim1=-1, dim2=-2).abs()
        spread = spread.amax(-1) / spread.amin(-1)
        rough = (spread > _REFINE_ABOVE) | (spread < _REFINE_BELOW)
        places = {which[i]: i for i in rough.nonzero()[:, 0].tolist()}
        for t, phi, y in _whole_tasks(data, places):
            i = places[t]
            mean[i] = refined_mean(phi, y, mean[i], root[i], alpha[i], beta[i])
    return WeightPosterior(*data.processes.of_first([mean, root]))


def _whole_tasks(
    data: AblrData, tasks: Collection[int]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Features and outcomes of those tasks that are in one chunk."""
    for chunk in data.rows.chunks:
        pieces = [
            piece
            for piece in chunk.pieces
            if piece.task in tasks
            and piece.stop - piece.start == data.rows.counts[piece.task]
        ]
        if pieces:
            phi, y = data.observed(chunk, data.features_of(chunk))
            for piece in pieces:
                here = slice(piece.start, piece.stop)
                yield piece.task, phi[here], y[here]


def update_weights(
    posterior: WeightPosterior, features: Tensor, Y: Tensor, noise_variance: Tensor
) -> WeightPosterior:
    r"""Condition on q more observations, one after the other, O(D^2) each.

    With the features ``phi`` of one of them, its noise variance v, ``g = R' phi`` and
    ``s = v + g' g``,

    .. math:: m \leftarrow m + R g (y - \phi' m) / s, \quad
        R \leftarrow R (I - g g' / (s + \sqrt{v s})),

    Potter's update of a square root: the covariance stays positive whatever rounding
    does. Differentiable; batches broadcast.

    Args:
        posterior: Of one task: mean ``... x D`` and root ``... x D x D``.
        features: ``... x q x D``.
        Y: ``... x q``.
        noise_variance: Positive, ``... x q``.

    Raises:
        ValueError: If the numbers of features or observations do not fit together.
    """
    mean, root = posterior
    q, D = features.shape[-2:]
    if (
        mean.shape[-1] != D
        or Y.shape[-1] != q
        or noise_variance.shape[-1] not in (1, q)
    ):
        raise ValueError(
            f"features, Y, noise_variance: expected ... x q x {mean.shape[-1]}, "
            f"... x q and ... x q, got {tuple(features.shape)}, {tuple(Y.shape)} and "
            f"{tuple(noise_variance.shape)}."
        )
    noise_variance = noise_variance.expand(*noise_variance.shape[:-1], q)
    for i in range(q):
        phi, v = features[..., i, :], noise_variance[..., i]
        g = (root.mT @ phi.unsqueeze(-1)).squeeze(-1)
        s = v + g.square().sum(-1)
        gain = (root @ g.unsqueeze(-1)).squeeze(-1)
        missed = Y[..., i] - (phi * mean).sum(-1)
        mean = mean + gain * (missed / s).unsqueeze(-1)
        shrink = (gain / (s + (v * s).sqrt()).unsqueeze(-1)).unsqueeze(-1)
        root = root - shrink * g.unsqueeze(-2)
    return WeightPosterior(mean, root)


# ----------------------------------------------------------------------
# Summed log evidence of Bayesian linear regressions on shared features.
#
# Perrone et al. (2017), equation (3): tasks t = 1 ... T with the features ``Phi_t`` of
# their rows, outcomes ``y_t``, noise precisions alpha_t and weight precisions beta_t,
#
# .. math:: \sum_t \log N(y_t;\, 0,\, \Phi_t \Phi_t' / \beta_t + I / \alpha_t),
#
# with the gradient to the hyperparameters and to what the features are learnt by. The
# first pass over the rows reduces each task to a small factor
# (``botorch_structured.models.ablr.factors``), from which value, weights m and slopes
# follow; the second computes the features again and sends the derivative of each row,
#
# .. math:: \partial / \partial \phi_n = \alpha (y_n - \phi_n' m) m - r K^{-1} \phi_n,
#
# back through the feature map. Time is linear in the number of rows. Memory beyond the
# data does not depend on it: the activations of a chunk, and a few matrices of D x D per
# task. Rows that fit into one chunk are passed once.


def summed_log_evidence(
    features: FeatureMap,
    X: Tensor,
    Y: Tensor,
    task: Tensor | TaskRows,
    log_alpha: Tensor | None,
    log_beta: Tensor,
    *,
    noise_variance: Tensor | None = None,
    chunk_rows: int | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Sum over tasks of the log evidence of their Bayesian linear regressions.

    Differentiable once in ``log_alpha``, ``log_beta``, ``X``, ``Y`` and the parameters
    of ``features``; the gradient is computed along with the value.

    Args:
        features: The feature map, ``n x d`` to ``n x D``, row by row: any module, or a
            method of one.
        X: Inputs as the feature map takes them, ``n x d``.
        Y: Outcomes, ``m``.
        task: Task of each outcome, ``m`` integers in ``0 ... T - 1``; then outcome i is
            of row i. Or a ``TaskRows``, which is made once for many evaluations, and
            where several outcomes may share a row.
        log_alpha: Logarithms of the noise precisions, ``T``; None with
            ``noise_variance``.
        log_beta: Logarithms of the weight precisions, ``T``.
        noise_variance: Known noise variances of the outcomes, ``m``; constants.
        chunk_rows: Rows that are computed at once, see ``TaskRows``.
        process_group: Processes that each hold a part of the rows (any part, of a task
            too) and call this with the same hyperparameters. Value and gradient are
            those of all rows, and the same in every process; those with respect to X
            and Y are of this process's own. Default: this process has all rows.

    Returns:
        A scalar, natural logarithms, ``- (m / 2) log(2 pi)`` included.

    Raises:
        ValueError: If arguments do not fit together, or differ between processes.
        NanError: If features or hyperparameters are such that the value is not finite.
        RuntimeError: If another process has ended or does not answer.
    """
    data = AblrData(
        features,
        X,
        Y,
        task,
        log_alpha,
        log_beta,
        noise_variance=noise_variance,
        chunk_rows=chunk_rows,
        process_group=process_group,
    )
    learnt = (data.log_alpha, log_beta, X, Y, *data.parameters)
    if torch.is_grad_enabled() and any(t.requires_grad for t in learnt):
        return _SummedLogEvidence.apply(data, *learnt)
    with torch.no_grad():
        return _Evaluation(data).value.to(log_beta.dtype)


class _SummedLogEvidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: AblrData, *learnt: Tensor) -> Tensor:
        evaluation = _Evaluation(data, gradient=True)
        ctx.gradients = evaluation.gradients()
        ctx.dtypes = [t.dtype for t in learnt]
        return evaluation.value.to(data.log_beta.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        return None, *(
            None if g is None else (grad * g).to(dtype)
            for g, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        )


class _WithSlope(torch.autograd.Function):
    """A scalar with a given derivative.

    The same as ``grad_outputs``, which make torch load its symbolic shapes when first
    used: 35 MiB.
    """

    @staticmethod
    def forward(ctx: Any, phi: Tensor, d_phi: Tensor) -> Tensor:
        ctx.d_phi = d_phi
        return phi.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return ctx.d_phi, None


class _Evaluation:
    """One value, and what its gradient needs."""

    def __init__(self, data: AblrData, gradient: bool = False) -> None:
        self.data = data
        # of a single chunk, keep the graph: no need to compute the features again
        self._kept: tuple[Tensor, Tensor] | None = None
        keep = gradient and data.rows.in_one_chunk

        def features(chunk: Chunk) -> Tensor:
            x, phi = self._features(chunk, with_graph=keep)
            if keep:
                self._kept = x, phi
            return phi.detach()

        factors = data.factors(features)
        self.solutions = TaskSolutions(factors, data.log_alpha, data.log_beta)
        (scales,) = data.processes.sum([data.log_scales()])
        (self.value,) = data.processes.of_first([self.solutions.value.sum() + scales])

    def _features(self, chunk: Chunk, with_graph: bool) -> tuple[Tensor, Tensor]:
        x = self.data.X.detach()[chunk.rows]
        if with_graph:
            x.requires_grad_(self.data.X.requires_grad)
        with torch.set_grad_enabled(with_graph):
            return x, self.data.evaluate(x)

    def gradients(self) -> list[Tensor | None]:
        """With respect to log alpha, log beta, X, Y and the parameters."""
        data = self.data
        sums = [torch.zeros_like(p) for p in data.parameters]
        d_x = torch.zeros_like(data.X) if data.X.requires_grad else None
        d_y = torch.zeros_like(data.Y) if data.Y.requires_grad else None
        row_by_row = bool(data.parameters) or d_x is not None or d_y is not None
        for chunk in data.rows.chunks if row_by_row else []:
            x, phi = self._kept or self._features(chunk, with_graph=True)
            d_phi, d_outcome = self.solutions.slopes(
                chunk, *data.observed(chunk, phi.detach())
            )
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
            wanted = [*data.parameters, *([] if d_x is None else [x])]
            with torch.enable_grad():
                start = _WithSlope.apply(phi, d_phi)
            found = torch.autograd.grad(start, wanted, allow_unused=True)
            for total, g in zip(sums, found, strict=False):
                if g is not None:
                    total.add_(g)
            if d_x is not None and found[-1] is not None:
                d_x[chunk.rows] = found[-1]
        of_tasks = [self.solutions.d_log_alpha, self.solutions.d_log_beta]
        return [
            *data.processes.of_first(of_tasks),
            d_x,
            d_y,
            *data.processes.sum(sums),
        ]
