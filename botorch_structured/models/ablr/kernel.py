"""The covariance of Bayesian linear regressions on shared features, as it is defined.

Inference never forms it (``ablr.regressions``); the tests compare the two.
"""

from __future__ import annotations

__all__ = [
    "TaskFeatureKernel",
]

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from botorch_structured.linalg.batch_kernel import BatchKernel
from botorch_structured.models.ablr.hyperparameters import WeightPrecision
from botorch_structured.models.ablr.tasks import TaskColumn


class TaskFeatureKernel(BatchKernel):
    r"""Linear in the features, with independent weights for each task.

    .. math:: k((x, t), (x', t')) = \delta_{tt'} \phi(x)'\phi(x') / \beta_t

    Args:
        feature_map: ``n x d`` to ``n x D``.
        weight_precision: The precisions beta, ``T``.
        tasks: The task column; None for signals, whose covariances are a batch of T.
    """

    def __init__(
        self,
        feature_map: nn.Module,
        weight_precision: WeightPrecision,
        tasks: TaskColumn | None,
    ) -> None:
        count = len(weight_precision.raw_value)
        batch = torch.Size([count] if tasks is None and count > 1 else [])
        super().__init__(batch_shape=batch)
        self.feature_map = feature_map
        self.weight_precision = weight_precision
        self.tasks = tasks

    def _covariance(self, x1: Tensor, x2: Tensor, diag: bool, **params: Any) -> Tensor:
        left, task1 = self._features(x1)
        right, task2 = self._features(x2)
        beta = self.weight_precision.value
        if diag:
            values = (left * right).sum(-1)
            if task1 is None or task2 is None:
                return values / beta.reshape(*self.batch_shape, 1)
            return torch.where(task1 == task2, values / beta[task1], 0.0)
        values = left @ right.mT
        if task1 is None or task2 is None:
            return values / beta.reshape(*self.batch_shape, 1, 1)
        same = task1.unsqueeze(-1) == task2.unsqueeze(-2)
        return torch.where(same, values / beta[task1].unsqueeze(-1), 0.0)

    def _take(self, where: Tensor) -> TaskFeatureKernel:
        # features, which may be a large network, are those of the whole batch
        taken = deepcopy(self, {id(self.feature_map): self.feature_map})
        raw = taken.weight_precision.raw_value
        raw.data = raw.data.flatten()[where.to(raw.device)]
        taken._batch_shape = where.shape
        return taken

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.tasks is None:
            return self.feature_map(x), None
        rows, task = self.tasks.split(x)
        return self.feature_map(rows), task
