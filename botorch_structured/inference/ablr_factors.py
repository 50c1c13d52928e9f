r"""The data of each task of a Bayesian linear regression, reduced to a few rows.

Everything that Bayesian linear regression says depends on the features ``Phi``
(``N x D``) and outcomes ``y`` of a task through the products ``Phi' Phi``, ``Phi' y``
and ``y' y`` alone (Perrone et al. 2017, equations (1) to (3)). Products square the
condition number: with a ratio of noise to weight precision of 1e10, or collinear
features, half the digits are gone. So what is kept is a *factor*: at most D + 1 rows F
with the same products,

.. math:: F' F = [\Phi, y]' [\Phi, y].

Up to D observations these rows are the data. Beyond, they are the triangular factor of
a QR factorisation, which is taken chunk after chunk (the factor so far is stacked on
the next chunk): as accurate as the QR factorisation of all rows at once, at a few per
cent of the cost of a network's features.
"""

from __future__ import annotations

__all__ = ["TaskFactors"]

import torch
from torch import Tensor

from botorch_structured.inference.row_chunks import Chunk


class TaskFactors:
    """Factors of the data of each task, grown chunk by chunk.

    Args:
        counts: Number of observations that each task will have.
        num_features: D.
        like: A tensor of the device wanted.

    Attributes:
        rows: The factors in float64, ``T x C x (D + 1)``, zero where a task has fewer
            than C rows.
        filled: How many rows of the factor each task has, a list of T.
    """

    def __init__(self, counts: list[int], num_features: int, like: Tensor) -> None:
        self.num_features = num_features
        self.counts = counts
        height = max(1, min(num_features + 1, max(counts, default=0)))
        self.rows = torch.zeros(
            len(counts),
            height,
            num_features + 1,
            dtype=torch.float64,
            device=like.device,
        )
        self.filled = [0] * len(counts)

    def is_small(self, task: int) -> bool:
        """Whether the factor of a task is its data: no more than D observations."""
        return self.counts[task] <= self.num_features

    def add(self, chunk: Chunk, data: Tensor) -> None:
        """Take in one more chunk.

        Args:
            chunk: Which observations.
            data: Their features and outcomes in float64, ``m x (D + 1)``.
        """
        small = [piece for piece in chunk.pieces if self.is_small(piece.task)]
        if small:
            mask, task, place = self.small_places(chunk, data)
            self.rows[task, place] = data if mask is None else data[mask]
            for piece in small:
                self.filled[piece.task] += piece.stop - piece.start
        for piece in chunk.pieces:
            if not self.is_small(piece.task):
                self.stack(piece.task, data[piece.start : piece.stop])

    def small_places(
        self, chunk: Chunk, like: Tensor
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Where observations of small tasks are.

        Returns:
            Which observations of the chunk are of small tasks (None for all of them),
            their tasks and their places in ``rows``.
        """
        task, place = chunk.places(like)
        if all(self.is_small(piece.task) for piece in chunk.pieces):
            return None, task, place
        small = torch.tensor([n <= self.num_features for n in self.counts])
        mask = small.to(like.device)[task]
        return mask, task[mask], place[mask]

    def stack(self, task: int, data: Tensor) -> None:
        """Take in rows of one task, whatever their number.

        Args:
            task: Which task.
            data: Features and outcomes, ``m x (D + 1)``.
        """
        filled = self.filled[task]
        if filled:
            data = torch.cat([self.rows[task, :filled], data])
        if len(data) > self.num_features:
            data = torch.linalg.qr(data, mode="r").R
        self.rows[task, : len(data)] = data
        self.filled[task] = len(data)
