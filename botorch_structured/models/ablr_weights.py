"""Posteriors of the weights of Bayesian linear regressions, each computed once."""

from __future__ import annotations

__all__ = ["AblrWeights"]

from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from botorch.models.utils import fantasize as fantasize_flag
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import RootLinearOperator
from torch import Tensor

from botorch_structured.inference.ablr_posterior import (
    WeightPosterior,
    weight_posterior,
)
from botorch_structured.models.ablr_normals import normal, stacked
from botorch_structured.models.ablr_rows import RowData
from botorch_structured.models.input_transforms import in_evaluation

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr_rows import AblrRows as _Base
else:
    _Base = object


class AblrWeights(_Base):
    """Weights of a ``MultiTaskABLR`` given its rows, by task."""

    _output_tasks: list[int]
    _weights: dict[int, WeightPosterior]
    _conditioned_tasks: frozenset[int]
    _columns_of_mode: dict[bool, int]
    _num_columns: int
    num_non_task_features: int

    def _weights_of(self, which: list[int]) -> list[WeightPosterior]:
        """The posterior of the weights of some tasks, by index; computed once."""
        missing = [t for t in which if t not in self._weights]
        if missing:
            outputs = [self._index_of(t) for t in self._output_tasks]
            extra = [t for t in outputs if t not in (*self._weights, *missing)]
            self._compute_weights([*missing, *extra])
        found, batch = [self._weights[t] for t in which], self._conditioned_batch
        if not batch:
            return found
        return [  # as many means as there are models, of tasks they have in common too
            w._replace(
                mean=w.mean.expand(
                    *torch.broadcast_shapes(w.mean.shape[:-1], batch), -1
                )
            )
            for w in found
        ]

    @torch.no_grad()
    def _compute_weights(self, which: list[int]) -> None:
        if self._group.is_shared:
            # together, so that the processes need not agree on who asks for what
            which = [t for t in range(self.num_tasks) if t not in self._weights]
        batch = self._conditioned_batch
        if not batch:
            self._weights.update(self._weights_from(self._rows(), which))
            return
        # of tasks that none of them was conditioned on, all have the same rows
        same = [t for t in which if t not in self._conditioned_tasks]
        own = [t for t in which if t in self._conditioned_tasks]
        places = list(product(*(range(n) for n in batch)))
        if same and places:
            self._weights.update(
                self._weights_from(self._rows_of_batch(places[0]), same)
            )
        if own:
            each = [
                self._weights_from(self._rows_of_batch(place), own) for place in places
            ]
            for t in own:
                mean, root = (
                    torch.stack([getattr(weights[t], name) for weights in each])
                    for name in ("mean", "root")
                )
                self._weights[t] = WeightPosterior(
                    mean.unflatten(0, batch), root.unflatten(0, batch)
                )

    def _weights_from(
        self, data: RowData, which: list[int]
    ) -> dict[int, WeightPosterior]:
        """Posteriors of the weights of some tasks, given some rows."""
        X, Y = data.X, data.Y - self._prior_mean_of_outcomes(data, data.inputs)
        arrangement: Any = data.rows
        noise = data.noise
        log_alpha = None if noise is not None else self._log_alpha()
        log_beta = self.covar_module.weight_precision.raw_value
        asked: list[int] | None = which
        if self._group.is_shared:
            asked = None
        elif self.tasks is not None and len(which) < self.num_tasks:
            # the features of other tasks' rows are not needed
            chosen = torch.tensor(which, device=X.device)
            keep = torch.isin(data.task, chosen)
            X, Y, task = X[keep], Y[keep], data.task[keep]
            noise = None if noise is None else noise[keep]
            place = torch.zeros(self.num_tasks, dtype=torch.long, device=X.device)
            place[chosen] = torch.arange(len(which), device=X.device)
            arrangement, asked = place[task], None
            log_alpha = None if log_alpha is None else log_alpha[chosen]
            log_beta = log_beta[chosen]
        mean, root = weight_posterior(
            self.covar_module.feature_map,
            X,
            Y,
            arrangement,
            log_alpha,
            log_beta,
            noise_variance=noise,
            tasks=asked,
            **self._group.kwargs,
        )
        places = which if self._group.is_shared else range(len(which))
        return {
            t: WeightPosterior(mean[i].to(X), root[i].to(X))
            for i, t in zip(places, which, strict=True)
        }

    def _has_task(self, X: Tensor) -> bool:
        """Whether inputs, ``batch_shape x q x ...``, have a task column.

        Raises:
            ValueError: If they have another shape.
        """
        if X.ndim < 2:
            raise ValueError(
                f"X: expected ``batch_shape x q x d``, got shape {tuple(X.shape)}."
            )
        columns = self._columns_with_task()
        if self.tasks is not None and X.shape[-1] == columns:
            return True
        if X.shape[-1] != columns - (self.tasks is not None):
            raise ValueError(
                f"X: expected {columns} columns"
                + (", or one less without tasks" if self.tasks is not None else "")
                + f", got {X.shape[-1]}."
            )
        return False

    def _columns_with_task(self) -> int:
        """How many an input has, the task's included: perhaps fewer than training rows.

        In ``fantasize`` other transforms may apply than in ``posterior``.
        """
        mode = fantasize_flag.on()
        if mode not in self._columns_of_mode:
            rows = self.train_targets.new_zeros(1, self._num_columns)
            transform = getattr(self, "input_transform", None)
            seen = self.num_non_task_features + (self.tasks is not None)
            before, _ = in_evaluation(transform, rows, seen, fantasize=mode)
            self._columns_of_mode[mode] = before.shape[-1]
        return self._columns_of_mode[mode]

    def _index_of(self, output: int) -> int:
        """The index of a task value, or of a signal.

        Raises:
            ValueError: If there is none.
        """
        if self.tasks is None:
            if not -self.num_tasks <= output < self.num_tasks:
                raise ValueError(
                    f"output_indices: expected signals below {self.num_tasks}, got "
                    f"{output}."
                )
            return output % self.num_tasks
        return self.tasks.index_of(output)

    def weight_posterior(self) -> MultivariateNormal:
        """Posterior of the weights w_t of each output, on the standardised scale.

        Returns:
            A distribution over ``num_outputs x D``, or ``D`` for one output.
        """
        self.eval()
        found = self._weights_of([self._index_of(t) for t in self._output_tasks])
        if len(found) == 1:
            return normal(found[0].mean, RootLinearOperator(found[0].root))
        mean, root = stacked(found)
        return normal(mean, RootLinearOperator(root))
