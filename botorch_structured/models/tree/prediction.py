"""Predictions that touch only the leaf a point is on, and the weights.

Per leaf L^-1, H = L^-1 F and e = L^-1 (r - F mu) are kept, and once the inverse root J
of M (M^-1 = J'J). A point with features z, covariances k to its own leaf's data and w =
L^-1 k then has (Jenatton et al. 2017, section 3.2, with t_p(x) = h)

    h = z - w'H,     mean = m + w'e + z mu,     cov = K_p - w'w' + (J h)'(J h')

where the middle term is there for two points of one leaf only. Nothing has size n. The
textbook's alpha = A^-1 (r - F mu) and A^-1 F are as large as one over the noise; halves
of them are not, and keep three more digits at the noise floor.
"""

from __future__ import annotations

__all__ = [
    "LeafPredictor",
    "Prediction",
]

from typing import NamedTuple

import torch
from torch import Tensor

from botorch_structured.linalg.block_low_rank import BlockInputs, factorise
from botorch_structured.linalg.leaf_layout import (
    LeafLayout,
    group_rows,
    pad_groups,
)
from botorch_structured.models.tree.evidence import BlockTensors, noisy_covariance


class Prediction(NamedTuple):
    """Predictions at ``t`` rows, to be combined with the prior.

    Attributes:
        mean: To be added to the prior mean, ``t``.
        leaf: Leaf of each row, ``t`` (``num_leaves`` for one without data).
        explained: L^-1 k, zero-padded to the largest leaf, ``t x max_size``.
        weight: J h, ``t x V``.
    """

    mean: Tensor
    leaf: Tensor
    explained: Tensor
    weight: Tensor


class LeafPredictor:
    """Cached factors of a data set.

    Args:
        layout: The grouping of the data.
        blocks: Its leaves.
        noise: Noise variances, ``n``.
        residual: Observations minus prior means, ``n``.
        num_weights: V.
    """

    def __init__(
        self,
        layout: LeafLayout,
        blocks: list[BlockTensors],
        noise: Tensor,
        residual: Tensor,
        num_weights: int,
    ) -> None:
        self.layout, self.blocks, self.num_weights = layout, blocks, num_weights
        self.masked = residual.device.type != "cpu"
        factors = factorise(
            [noisy_covariance(b.covariance, b.bucket, noise) for b in blocks],
            [BlockInputs(b.bucket, b.features, b.weights) for b in blocks],
            residual,
            num_weights,
        )
        self.weight_mean = factors.weight_mean
        eye = torch.eye(num_weights, dtype=residual.dtype, device=residual.device)
        self.weight_root = torch.linalg.solve_triangular(
            factors.precision_chol, eye, upper=False
        )
        self.inverse_chol, self.half = [], []
        self.bucket_of_leaf = torch.full(
            (layout.num_leaves + 1,), -1, device=residual.device
        )
        self.place_of_leaf = torch.zeros_like(self.bucket_of_leaf)
        for i, (block, factor) in enumerate(zip(blocks, factors.blocks, strict=True)):
            width = factor.chol.shape[-1]
            eye = torch.eye(width, dtype=residual.dtype, device=residual.device)
            self.inverse_chol.append(
                torch.linalg.solve_triangular(
                    factor.chol, eye.expand_as(factor.chol), upper=False
                )
            )
            residual_half = factor.half_residual.unsqueeze(-1)
            self.half.append(torch.cat([residual_half, factor.half_features], dim=-1))
            leaves = block.bucket.leaves
            self.bucket_of_leaf[leaves] = i
            self.place_of_leaf[leaves] = torch.arange(
                len(leaves), device=residual.device
            )

    def __call__(self, key: Tensor, points: Tensor, features: Tensor) -> Prediction:
        """Predict at rows.

        Args:
            key: Path of each row, ``t``.
            points: What the kernel knows of each row, ``t x e``.
            features: Scaled weight features, ``t x V``.
        """
        num_rows, num_weights = key.shape[0], self.num_weights
        leaf = self.layout.find(key)
        if self.masked or not len(key):
            return self._predict_masked(leaf, points, features)
        bucket = self.bucket_of_leaf[leaf]
        points = torch.nn.functional.pad(points, (0, 0, 0, 1))
        order, means, explained, shrunk = [], [], [], []
        max_size = self.layout.max_size
        for i in range(-1, len(self.blocks)):
            rows = (bucket == i).nonzero().squeeze(-1)
            if rows.shape[0] == 0:
                continue
            if i < 0:  # no data on this path: the prior
                order.append(rows)
                means.append(features.new_zeros(len(rows)))
                explained.append(features.new_zeros(len(rows), max_size))
                shrunk.append(features.new_zeros(len(rows), num_weights))
                continue
            for places, index in self._groups(rows, self.place_of_leaf[leaf[rows]]):
                block = self.blocks[i]
                # what pads comes from the zeros appended above
                row = torch.cat([rows, rows.new_full((1,), num_rows)])[index]
                k = self._covariance(i, places, points, row)
                take = index < len(rows)
                order.append(row[take])
                w = k @ self.inverse_chol[i][places].mT
                both = w @ self.half[i][places]
                w, means_here, reduction = w[take], both[take][:, 0], both[take][:, 1:]
                means.append(means_here)
                explained.append(
                    torch.nn.functional.pad(w, (0, max_size - w.shape[-1]))
                )
                weights = block.weights[places].unsqueeze(-2)
                weights = weights.expand(*k.shape[:-1], weights.shape[-1])[take]
                full = reduction.new_zeros(reduction.shape[0], num_weights + 1)
                full = full.scatter_add(-1, weights, reduction)
                shrunk.append(full[:, :num_weights])
        back = torch.argsort(torch.cat(order))
        h = features - torch.cat(shrunk)[back]
        mean = torch.cat(means)[back] + features @ self.weight_mean
        return Prediction(
            mean, leaf, torch.cat(explained)[back], h @ self.weight_root.mT
        )

    def _predict_masked(
        self, leaf: Tensor, points: Tensor, features: Tensor
    ) -> Prediction:
        """The same, every leaf for every row and all but one of them masked.

        More arithmetic, but no shape depends on the values of a tensor: on a GPU the
        other way waits for the host several times.
        """
        num_rows, max_size = leaf.shape[0], self.layout.max_size
        mean = features @ self.weight_mean
        explained = features.new_zeros(num_rows, max_size)
        shrunk = features.new_zeros(num_rows, self.num_weights + 1)
        for i, block in enumerate(self.blocks):
            places = torch.arange(len(block.bucket.leaves), device=leaf.device)
            every = torch.arange(num_rows, device=leaf.device).expand(len(places), -1)
            mine = leaf == block.bucket.leaves.unsqueeze(-1)  # B x t
            k = self._covariance(i, places, points, every)
            k = k * mine.unsqueeze(-1).to(features)
            w = k @ self.inverse_chol[i].mT
            both = w @ self.half[i]
            mean = mean + both[..., 0].sum(0)
            w = w.sum(0)[:, :max_size]  # zero but for the leaf a row is on
            explained = explained + torch.nn.functional.pad(
                w, (0, max_size - w.shape[-1])
            )
            weights = block.weights.unsqueeze(1).expand(-1, num_rows, -1)
            index = weights.transpose(0, 1).flatten(1)
            shrunk = shrunk.scatter_add(
                -1, index, both[..., 1:].transpose(0, 1).flatten(1)
            )
        h = features - shrunk[:, : self.num_weights]
        return Prediction(mean, leaf, explained, h @ self.weight_root.mT)

    def _covariance(
        self, i: int, places: Tensor, points: Tensor, index: Tensor
    ) -> Tensor:
        """Prior covariances of points with the data of their own leaf."""
        block = self.blocks[i]
        k = block.cross(places, points, index)
        if block.bucket.real is not None:
            k = k * block.bucket.real[places].unsqueeze(-2).to(k)
        return k

    @staticmethod
    def _groups(rows: Tensor, place: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rows padded leaf by leaf, in one batch or, if that wastes much, several.

        Returns:
            Pairs of places in the bucket, ``U``, and positions in ``rows``, ``U x t``.
        """
        places, inverse = torch.unique(place, return_inverse=True)
        order, counts = group_rows(inverse, len(places))
        start = counts.cumsum(0) - counts
        widest = int(counts.max())
        if len(places) * widest <= 3 * len(rows) + 64:
            return [(places, pad_groups(order, start, counts, widest))]
        return [
            (places[u : u + 1], order[s : s + c].unsqueeze(0))
            for u, (s, c) in enumerate(
                zip(start.tolist(), counts.tolist(), strict=True)
            )
        ]
