r"""The data of each task of a Bayesian linear regression, reduced to a few rows.

Perrone et al. (2017), equations (1) to (3), depend on the features ``Phi`` (``N x D``)
and outcomes ``y`` of a task through the products ``Phi' Phi``, ``Phi' y`` and ``y' y``
alone. Products square the condition number: with a ratio of noise to weight precision
of 1e10, or collinear features, half the digits are lost. So a *factor* is kept: at most
D + 1 rows F with the same products,

.. math:: F' F = [\Phi, y]' [\Phi, y].

Up to D observations these rows are the data. Beyond, they are the triangular factor of
a QR factorisation, which is taken chunk after chunk (the factor so far is stacked on
the next chunk): as accurate as the QR factorisation of all rows at once, at a few per
cent of the cost of a network's features.
"""

from __future__ import annotations

__all__ = ["TaskData", "TaskFactors"]

from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from botorch_structured.models.ablr.feature_maps import KernelFeatures
from botorch_structured.models.ablr.rows import Chunk, Processes, TaskRows


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
        large: Which tasks have more than D observations, so that their factor is not
            their data.
        filled: Whether there are rows of large tasks already.
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
        shape = len(counts), height, num_features + 1
        self.rows = torch.zeros(shape, dtype=torch.float64, device=like.device)
        self.large = tuple(count > num_features for count in counts)
        self.filled = False

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
        batches = chunk.batches(self.large)
        if batches:  # padding is a row of zeros
            both = pad(torch.cat([phi, y.unsqueeze(-1)], dim=-1), (0, 0, 0, 1))
        for tasks, index in batches:
            data = both[index]
            if self.filled:
                data = torch.cat([self.rows[tasks], data], dim=-2)
            self._replace(tasks, data)
        self.filled |= bool(batches)

    def small_places(
        self, chunk: Chunk, like: Tensor
    ) -> tuple[Tensor | slice, Tensor, Tensor] | None:
        """Where observations of small tasks are.

        Returns:
            Which observations of the chunk are of small tasks, their tasks and their
            places in ``rows``; None if there are none.
        """
        num_small = sum(not self.large[piece.task] for piece in chunk.pieces)
        if num_small == 0:
            return None
        task, place = chunk.places
        if self.before is not None:
            place = place + self.before[task]
        if num_small == len(chunk.pieces):
            return slice(None), task, place
        mask = ~torch.tensor(self.large).to(like.device)[task]
        return mask, task[mask], place[mask]

    def _replace(self, tasks: Tensor, rows: Tensor) -> None:
        """Reduce all rows of large tasks, ``B x N x (D + 1)``, to their new factors."""
        if rows.shape[-2] > self.num_features:
            rows = torch.linalg.qr(rows, mode="r").R
        self.rows[tasks, : rows.shape[-2]] = rows

    def merge(self, processes: Processes) -> None:
        """Take in what other processes have, if any; the same in each of them.

        Args:
            processes: All of which call this, with the same ``counts``.

        Raises:
            RuntimeError: If a process has ended or does not answer.
        """
        if processes.alone:
            return
        everyone = processes.gather(self.rows)
        self.rows = torch.stack(everyone).sum(0)  # small tasks: each row is of one
        tasks = torch.tensor(self.large, device=self.rows.device).nonzero()[:, 0]
        if len(tasks):
            self._replace(tasks, torch.cat([rows[tasks] for rows in everyone], dim=-2))


@dataclass(eq=False)
class TaskData:
    """Rows of some tasks and what was observed there.

    With known noise, features and outcomes of an observation are divided by its
    standard deviation: the noise precision is then 1.

    Args:
        features: The feature map, ``n x d`` to ``n x D``, row by row.
        X: Inputs as the feature map takes them, ``n x d``.
        Y: Outcomes, ``m``.
        rows: Which row and task each outcome is of.
        noise_variance: Known noise variances of the outcomes, ``m``; constants.
        processes: Processes that each hold a part of the rows (any part, of a task
            too). Default: this process has all rows.

    Attributes:
        num_features: D.

    Raises:
        ValueError: If processes differ in their numbers of tasks or features.
        RuntimeError: If another process has ended or does not answer.
    """

    features: nn.Module
    X: Tensor
    Y: Tensor
    rows: TaskRows
    noise_variance: Tensor | None = None
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        self.num_features = self._count_features()
        self.processes.check_same(
            {
                "log_beta (number of tasks)": float(self.rows.num_tasks),
                "features (number of them)": float(self.num_features),
            },
            self.X.device,
        )

    def with_values(self, X: Tensor, Y: Tensor) -> TaskData:
        """The same rows and tasks with other numbers, of the same shapes."""
        new = copy(self)
        new.X, new.Y = X, Y
        if isinstance(self.features, KernelFeatures):
            # those of a MondrianKernel depend on its lengthscales
            new.num_features = new._count_features()
        return new

    @torch.no_grad()
    def _count_features(self) -> int:
        """D, by the features of one row: not every module takes none."""
        X = self.X.detach()
        row = X[:1] if len(X) else X.new_zeros(1, X.shape[-1])
        return self.features(row).shape[-1]

    def observed(self, chunk: Chunk, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``m x D`` and outcomes ``m`` of each observation, in float64.

        Args:
            chunk: Which observations.
            phi: Features of the rows of the chunk, ``n x D``.
        """
        if chunk.local is not None:
            phi = phi[chunk.local]
        phi, y = phi.double(), self.Y.detach()[chunk.entries].double()
        scale = self.scale(chunk)
        return (phi, y) if scale is None else (phi * scale[:, None], y * scale)

    def scale(self, chunk: Chunk) -> Tensor | None:
        """What observations are multiplied by, ``m``; None with learnt noise."""
        if self.noise_variance is None:
            return None
        return self.noise_variance[chunk.entries].double().rsqrt()

    def no_factors(self) -> TaskFactors:
        """Factors of tasks that no chunk has been added to."""
        counts, before = self.rows.counts, None
        if not self.processes.alone:
            mine = torch.tensor(counts, device=self.X.device)
            every = torch.stack(self.processes.gather(mine))
            counts, before = every.sum(0).tolist(), every[: self.processes.rank].sum(0)
        return TaskFactors(counts, self.num_features, self.X, before=before)

    @torch.no_grad()
    def factors(self) -> TaskFactors:
        """Factors of all tasks, the same in each process."""
        factors = self.no_factors()
        for chunk in self.rows.chunks:
            factors.add(chunk, *self.observed(chunk, self.features(self.X[chunk.rows])))
        factors.merge(self.processes)
        return factors
