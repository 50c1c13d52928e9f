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

from botorch_structured.inference.across_processes import Processes
from botorch_structured.inference.row_chunks import Chunk
from botorch_structured.inference.triangular_factor import triangular_factor


class TaskFactors:
    """Factors of the data of each task, grown chunk by chunk.

    Args:
        counts: Number of observations that each task will have, in all processes.
        num_features: D.
        like: A tensor of the device wanted.
        before: How many of these are in processes before this one, ``T``. Default:
            none.

    Attributes:
        rows: The factors in float64, ``T x C x (D + 1)``, zero where a task has fewer
            than C rows.
        filled: How many rows of the factor each task has, a list of T.
    """

    def __init__(
        self,
        counts: list[int],
        num_features: int,
        like: Tensor,
        before: Tensor | None = None,
    ) -> None:
        self.num_features = num_features
        self.counts = counts
        self.before = before
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

    def add(self, chunk: Chunk, phi: Tensor, y: Tensor) -> None:
        """Take in one more chunk.

        Args:
            chunk: Which observations.
            phi: Their features in float64, ``m x D``.
            y: Outcomes, ``m``.
        """
        small = self.small_places(chunk, y)
        if small is not None:
            which, task, place = small
            self.rows[task, place, :-1] = phi[which]
            self.rows[task, place, -1] = y[which]
        for piece in chunk.pieces:
            if self.is_small(piece.task):
                self.filled[piece.task] += piece.stop - piece.start
            else:
                here = slice(piece.start, piece.stop)
                self._stack(piece.task, phi[here], y[here])

    def small_places(
        self, chunk: Chunk, like: Tensor
    ) -> tuple[Tensor | slice, Tensor, Tensor] | None:
        """Where observations of small tasks are.

        Returns:
            Which observations of the chunk are of small tasks, their tasks and their
            places in ``rows``; None if there are none.
        """
        num_small = sum(self.is_small(piece.task) for piece in chunk.pieces)
        if num_small == 0:
            return None
        task, place = chunk.places(like)
        if self.before is not None:
            place = place + self.before[task]
        if num_small == len(chunk.pieces):
            return slice(None), task, place
        small = torch.tensor([n <= self.num_features for n in self.counts])
        mask = small.to(like.device)[task]
        return mask, task[mask], place[mask]

    def _stack(self, task: int, phi: Tensor, y: Tensor) -> None:
        """Take in rows of a task that will have more than D."""
        D, filled = self.num_features, self.filled[task]
        # in the order of memory that LAPACK wants
        data = self.rows.new_empty(D + 1, filled + len(y)).mT
        data[:filled] = self.rows[task, :filled]
        data[filled:, :-1] = phi
        data[filled:, -1] = y
        self._replace(task, data)

    def _replace(self, task: int, data: Tensor) -> None:
        if len(data) > self.num_features:
            data = triangular_factor(data)
        self.rows[task, : len(data)] = data
        self.filled[task] = len(data)

    def merge(self, processes: Processes) -> None:
        """Take in what the other processes have; the same in each of them.

        Args:
            processes: All of which call this, with the same ``counts``.

        Raises:
            RuntimeError: If a process has ended or does not answer.
        """
        if processes.alone:
            return
        filled = torch.tensor(self.filled, device=self.rows.device)
        heights = torch.stack(processes.gather(filled)).T.tolist()
        everyone = processes.gather(self.rows)
        self.rows = torch.stack(everyone).sum(0)  # small tasks: each row is of one
        for task, height in enumerate(heights):
            if not self.is_small(task):
                parts = [
                    rows[task, :n] for rows, n in zip(everyone, height, strict=True)
                ]
                self._replace(task, torch.cat(parts))
