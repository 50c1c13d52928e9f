r"""Summed log evidence of Bayesian linear regressions on shared features.

Perrone et al. (2017), equation (3): tasks t = 1 ... T with the features ``Phi_t`` of
their rows, outcomes ``y_t``, noise precisions alpha_t and weight precisions beta_t,

.. math:: \sum_t \log N(y_t;\, 0,\, \Phi_t \Phi_t' / \beta_t + I / \alpha_t),

with the gradient to the hyperparameters and to what the features are learnt by. The
first pass over the rows reduces each task to a small factor
(``botorch_structured.inference.ablr_factors``), from which value, weights m and slopes
follow; the second computes the features again and sends the derivative of each row,

.. math:: \partial / \partial \phi_n = \alpha (y_n - \phi_n' m) m - r K^{-1} \phi_n,

back through the feature map. Time is linear in the number of rows. Memory beyond the
data does not depend on it: the activations of a chunk, and a few matrices of D x D per
task. Rows that fit into one chunk are passed once.
"""

from __future__ import annotations

__all__ = ["summed_log_evidence"]

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from botorch_structured.inference.ablr_data import AblrData, FeatureMap
from botorch_structured.inference.ablr_systems import TaskSolutions
from botorch_structured.inference.row_chunks import Chunk, TaskRows


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
