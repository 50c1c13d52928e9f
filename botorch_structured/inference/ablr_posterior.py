r"""Posterior of the weights of Bayesian linear regressions, and its updates.

Perrone et al. (2017), equations (1) and (2), are statements about the weights: with
``K = I + r Phi' Phi`` and r = alpha / beta,

.. math:: w | y \sim N(m, S), \quad m = r K^{-1} \Phi' y, \quad S = K^{-1} / \beta,

and the function at x has mean ``phi(x)' m`` and variance ``phi(x)' S phi(x)``. The
covariance is kept as a root, ``S = R R'``: variances are sums of squares, and samples
of whole functions are ``phi(x)' (m + R z)``.
"""

from __future__ import annotations

__all__ = ["WeightPosterior", "update_weights", "weight_posterior"]

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from botorch_structured.inference.ablr_data import AblrData, FeatureMap
from botorch_structured.inference.ablr_refinement import refined_mean
from botorch_structured.inference.ablr_systems import TaskSolutions
from botorch_structured.inference.row_chunks import TaskRows

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
