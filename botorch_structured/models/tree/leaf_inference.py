r"""Inference with a covariance of independent leaves and the weights they share.

``log_evidence`` and ``solver`` take the covariance of a ``LeafKernel`` leaf by leaf,
with the algebra of ``linalg.blocks``; they are equation (3) and section 3.2 of Jenatton
et al. (2017), and without weights equations (9) and (10) of Levesque et al. (2017).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from botorch_structured.kernels.leaf_kernels import LeafKernel, LeafRows, Structure
from botorch_structured.linalg.blocks import Bucket, WeightedBlock, factorise, pad_rows


class LeafBlock(NamedTuple):
    """The rows of a bucket.

    Attributes:
        bucket: Rows and leaves.
        rows: What the kernel knows of them, ``B x N`` (``x k``).
        weights: Index of each feature's weight, ``B x D``; V if unused.
    """

    bucket: Bucket
    rows: LeafRows
    weights: Tensor

    def noisy(
        self,
        kernel: LeafKernel,
        noise: Tensor,
    ) -> WeightedBlock:
        """A_p and F_p.

        Args:
            kernel: The kernel.
            noise: Noise variances of all rows, ``n``.
        """
        covariance = kernel.leaf_covariance(self.rows, self.rows)
        features = pad(self.rows.features, (0, 1))
        index = self.weights.unsqueeze(1).expand(*features.shape[:-1], -1)
        features = features.gather(-1, index)
        real = self.bucket.real
        if real is not None:
            pair = real.unsqueeze(-1) & real.unsqueeze(-2)
            covariance = torch.where(pair, covariance, 0.0)
            features = torch.where(real.unsqueeze(-1), features, 0.0)
        diagonal = torch.diag_embed(pad_rows(noise, self.bucket, fill=1.0))
        return WeightedBlock(
            self.bucket,
            covariance + diagonal,
            features,
            self.weights,
        )


def leaf_blocks(
    kernel: LeafKernel,
    X: Tensor,
    structure: Structure,
) -> list[LeafBlock]:
    """The rows of each bucket.

    Args:
        kernel: The kernel.
        X: ``n x d``.
        structure: From ``structure``, of inputs with the same decisions.
    """
    buckets = structure.layout.buckets
    m = len(structure.rows)
    rows = kernel.rows(X.index_select(0, structure.rows), structure.row_places)
    sizes = [bucket.index.numel() for bucket in buckets]
    parts = [part.expand(m, *part.shape[1:]).split(sizes) for part in rows]
    out = []
    for bucket, weights, *part_of_bucket in zip(
        buckets,
        structure.weights,
        *parts,
        strict=True,
    ):
        shape = bucket.index.shape
        block = LeafRows(*(part.unflatten(0, shape) for part in part_of_bucket))
        out.append(LeafBlock(bucket, block, weights))
    return out


# -- evidence ---------------------------------------------------------------------


class _WithSlopes(torch.autograd.Function):
    """A value whose first derivatives are known."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, *slopes_and_parts: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: Any,
        output: Any,
    ) -> None:
        ctx.save_for_backward(*inputs[1 : 1 + len(inputs) // 2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        slopes = ctx.saved_tensors
        return None, *[None] * len(slopes), *(grad * slope for slope in slopes)


def log_evidence(
    kernel: LeafKernel,
    X: Tensor,
    structure: Structure,
    noise: Tensor,
    residual: Tensor,
) -> Tensor:
    """Log N(r; 0, K): a scalar, differentiable once.

    Its first derivatives are computed with it.

    Args:
        kernel: The kernel.
        X: Transformed inputs, ``n x d``.
        structure: Their leaves.
        noise: Noise variances, ``n``.
        residual: Observations minus prior means, ``n``.

    Raises:
        NotPSDError: If a block is not positive definite even with jitter.
    """
    blocks = [block.noisy(kernel, noise) for block in leaf_blocks(kernel, X, structure)]
    parts = [
        part
        for b in blocks
        for part in (b.covariance, b.features, pad_rows(residual, b.bucket))
    ]
    with torch.no_grad():
        factors = factorise(blocks, residual, kernel.num_weights)
        value = factors.log_density(len(X))
        slopes = [slope for of in factors.derivatives(blocks) for slope in of]
    evidence: Tensor = _WithSlopes.apply(value, *slopes, *parts)
    return evidence
