r"""Evidence, weights and gradients of Bayesian linear regressions, from their factors.

For one task, with noise precision alpha, weight precision beta and r = alpha / beta,

.. math:: \log N(y; 0, \Phi \Phi' / \beta + I / \alpha) = \frac{N}{2} \log
    \frac{\alpha}{2 \pi} - \frac{1}{2} \log |K| - \frac{\alpha}{2} |y - \Phi m|^2
    - \frac{\beta}{2} |m|^2, \quad K = I + r \Phi' \Phi, \quad m = r K^{-1} \Phi' y

(Perrone et al. 2017, equation (3); the printed form ``|y|^2 - r |c|^2`` of the last two
terms cancels). A QR factorisation of the *smaller* system with its ridge,

.. math:: \begin{bmatrix} \sqrt r F \\ I \end{bmatrix} = Q T \;(N > D), \qquad
    \begin{bmatrix} \sqrt r F' \\ I \end{bmatrix} = Q T \;(N \le D),

has ``|K| = |T|^2`` in either case, and traces and residuals as sums of squares of parts
of Q: nothing is subtracted, so gradients that nearly vanish are right too. ``K`` itself
is never formed.
"""

from __future__ import annotations

__all__ = ["Solution", "TaskSolutions", "solve_large", "solve_small"]

import math
from dataclasses import dataclass

import torch
from linear_operator.utils.errors import NanError
from torch import Tensor

from botorch_structured.inference.ablr_factors import TaskFactors
from botorch_structured.inference.row_chunks import Chunk


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
