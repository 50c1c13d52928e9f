"""Outcomes of each task, or signal, on its own scale."""

from __future__ import annotations

__all__ = ["StandardizeTasks"]

from copy import deepcopy

import torch
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_structured.models.ablr_group import ProcessGroup
from botorch_structured.models.ablr_tasks import TaskColumn
from botorch_structured.models.checks import check_spread, is_constant


class StandardizeTasks(OutcomeTransform):
    """Zero mean and unit variance for each task by itself.

    Weights have a prior of mean zero, and tasks from different data sets have errors of
    different sizes: they must be standardised, and one by one. BoTorch's
    ``StratifiedStandardize`` does that for tasks with rows. Here a task with one row,
    or whose outcomes are all equal, has the geometric mean of the other tasks' standard
    deviations (1 if there are none); a task without rows has the average of the other
    tasks' means as well. Missing outcomes (NaN) stay missing.

    Args:
        num_tasks: The number T of tasks, or of signals.
        tasks: The task column; None for signals, the columns of the outcomes.
        group: The processes that share the rows.
    """

    means: Tensor
    stdvs: Tensor

    def __init__(
        self,
        num_tasks: int,
        tasks: TaskColumn | None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tasks = tasks
        self._group = group or ProcessGroup()
        self.register_buffer("means", torch.zeros(num_tasks, dtype=torch.float64))
        self.register_buffer("stdvs", torch.ones(num_tasks, dtype=torch.float64))
        self.register_buffer("_is_trained", torch.tensor(False))

    @property
    def _is_linear(self) -> bool:
        return True

    def _places(self, Y: Tensor, X: Tensor | None) -> Tensor:
        """The task of each outcome, broadcastable to ``batch_shape x n x m``."""
        if self.tasks is None:
            signals = len(self.means)
            if signals > 1 and Y.shape[-1] != signals:
                raise ValueError(
                    f"Y: expected {signals} columns, one for each signal, got shape "
                    f"{tuple(Y.shape)}. In a ModelListGP, condition its models one by "
                    "one: model.condition_on_observations(X, Y)."
                )
            return torch.arange(signals, device=Y.device)
        if X is None or X.shape[-1] != self.tasks.num_columns:
            raise ValueError(
                "X: expected inputs with their task column, since each task is "
                "standardised by itself, got "
                f"{'None' if X is None else tuple(X.shape)}."
            )
        places = self.tasks.index(X[..., self.tasks.column])
        # a ModelListGP leaves the one column out
        bare = Y.shape[-places.ndim :] == places.shape
        return places if bare else places.unsqueeze(-1)

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardise; in training mode, first learn the means and deviations.

        Args:
            Y: ``batch_shape x n x m`` outcomes, m = 1 with a task column.
            Yvar: Their noise variances.
            X: ``batch_shape x n x (d + 1)``, where tasks are a column.

        Returns:
            Both transformed.
        """
        places = self._places(Y, X)
        if self.training:
            self._learn(Y, places.expand_as(Y))
        mean, stdv = self.means[places], self.stdvs[places]
        return (Y - mean) / stdv, None if Yvar is None else Yvar / stdv**2

    def _learn(self, Y: Tensor, places: Tensor) -> None:
        observed = ~Y.isnan()
        y, task = Y[observed], places[observed]

        def total(values: Tensor) -> Tensor:
            sums = values.new_zeros(len(self.means)).index_add(0, task, values)
            return self._group.sum(sums)

        def least(values: Tensor) -> Tensor:
            none = values.new_full((len(self.means),), torch.inf)
            return self._group.min(none.scatter_reduce(0, task, values, "amin"))

        low, high = least(y), -least(-y)
        check_spread(low, high)
        count = total(torch.ones_like(y))
        means = total(y) / count.clamp_min(1.0)
        # twice: a mean of 1e6 loses the digits that the first sum has not
        means = means + total(y - means[task]) / count.clamp_min(1.0)
        squares = total((y - means[task]).square())
        stdvs = (squares / (count - 1.0).clamp_min(1.0)).sqrt()
        some = count > 0
        known = (count > 1) & ~is_constant(low, high)
        usual = stdvs[known].log().mean().exp() if known.any() else stdvs.new_tensor(1)
        average = means[some].mean() if some.any() else means.new_tensor(0.0)
        self.means = torch.where(some, means, average)
        self.stdvs = torch.where(known, stdvs, usual)
        self._is_trained = torch.tensor(True)

    def untransform(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The inverse of ``forward``, of the same shapes."""
        places = self._places(Y, X)
        mean, stdv = self.means[places], self.stdvs[places]
        return mean + stdv * Y, None if Yvar is None else Yvar * stdv**2

    def untransform_posterior(
        self, posterior: Posterior, X: Tensor | None = None
    ) -> GPyTorchPosterior | TransformedPosterior:
        """A posterior on the scale of the outcomes.

        Args:
            posterior: Of standardised outcomes, of one task per row or of all signals.
            X: ``batch_shape x q x (d + 1)``, where tasks are a column.
        """
        places = self._places(posterior.mean, X).expand(posterior.mean.shape)
        mean, stdv = self.means[places], self.stdvs[places]
        if type(posterior) is not GPyTorchPosterior:
            return TransformedPosterior(
                posterior=posterior,
                sample_transform=lambda s: mean + stdv * s,
                mean_transform=lambda m, v: mean + stdv * m,
                variance_transform=lambda m, v: stdv**2 * v,
            )
        mvn = posterior.distribution
        moved = mean + stdv * posterior.mean
        several = isinstance(mvn, MultitaskMultivariateNormal)
        if several:
            order = stdv if mvn._interleaved else stdv.mT
            scale = DiagLinearOperator(order.reshape(*stdv.shape[:-2], -1))
        else:
            moved, scale = moved.squeeze(-1), DiagLinearOperator(stdv.squeeze(-1))
        covariance = scale @ mvn.lazy_covariance_matrix @ scale
        kwargs = {"interleaved": mvn._interleaved} if several else {}
        return GPyTorchPosterior(type(mvn)(moved, covariance, **kwargs))

    def subset_output(self, idcs: list[int]) -> StandardizeTasks:
        """Of some of the signals; with a task column there is one output."""
        new = deepcopy(self)
        if self.tasks is None:
            new.means, new.stdvs = self.means[idcs], self.stdvs[idcs]
        return new
