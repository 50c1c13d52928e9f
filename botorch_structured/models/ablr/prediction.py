"""Normal distributions of function values, and whole functions drawn from them.

The covariances come as roots. A function is a vector of weights: drawn once it is known
everywhere, exactly, with gradients, at the cost of its features, where a GP needs an
approximation (BoTorch's ``draw_matheron_paths``). Thompson sampling takes such
functions.
"""

from __future__ import annotations

__all__ = ["covariance_of", "draw_path", "in_columns", "joint", "normal"]

from collections.abc import Callable
from typing import Any

import torch
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from botorch.sampling.pathwise.paths import SamplePath
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import (
    BlockDiagLinearOperator,
    LinearOperator,
    RootLinearOperator,
)
from torch import Tensor

from botorch_structured.models.checks import ShapeError
from botorch_structured.models.fast_inference import with_variance_floor
from botorch_structured.models.outcome_scale import (
    ScaledMultitaskNormal,
    ScaledNormal,
    at_unit_scale,
)


def normal(mean: Tensor, covariance: LinearOperator) -> MultivariateNormal:
    """A distribution whose covariance may lack dimensions of the mean.

    Fantasies at the same points differ in their means only.

    Args:
        mean: ``... x n``.
        covariance: ``... x n x n``.
    """
    if covariance.shape[:-1] != mean.shape:
        covariance = covariance.expand(*mean.shape, mean.shape[-1])
    return ScaledNormal(mean, at_unit_scale(covariance))


def covariance_of(
    root: Tensor,
    task: Tensor | None = None,
    noise: Tensor | None = None,
    unit: Tensor | float = 1.0,
) -> LinearOperator:
    """The covariance of ``root root'`` and noise, ``... x q x q``.

    With more points than features it is singular, and is sampled through the weights;
    a Cholesky factorisation would need jitter.

    Args:
        root: ``... x q x D``.
        task: The task of each row, ``... x q``: those of different tasks are
            independent. None: all are of one.
        noise: Variances that broadcast to ``... x q``.
        unit: Of variances, see ``with_variance_floor``.
    """
    several = task is not None and len(task.unique()) > 1
    if noise is None and root.shape[-2] >= root.shape[-1] and not several:
        return RootLinearOperator(root)
    covariance = root @ root.mT
    if task is not None and several:
        covariance = torch.where(task[..., None] == task[..., None, :], covariance, 0.0)
    covariance = with_variance_floor(covariance, unit)
    if noise is not None:
        shape = torch.broadcast_shapes(noise.shape, covariance.shape[:-1])
        covariance = covariance + torch.diag_embed(noise.expand(shape))
    # a bare tensor would get no jitter when it is factorised for sampling
    return to_linear_operator(covariance)


def joint(mean: Tensor, covariance: LinearOperator) -> GPyTorchPosterior:
    """One posterior of independent outputs.

    Args:
        mean: ``... x m x q``.
        covariance: ``... x m x q x q``.
    """
    if mean.shape[-2] == 1:
        return GPyTorchPosterior(normal(mean.squeeze(-2), covariance.squeeze(-3)))
    covariance = covariance.expand(*mean.shape, mean.shape[-1])
    blocks = BlockDiagLinearOperator(at_unit_scale(covariance), block_dim=-3)
    return GPyTorchPosterior(ScaledMultitaskNormal(mean.mT, blocks, interleaved=False))


def in_columns(posterior: Posterior, m: int) -> Posterior:
    """One column for each of ``m`` outputs, which came one below the other."""

    def columns(values: Tensor) -> Tensor:
        return values.squeeze(-1).unflatten(-1, (m, -1)).mT

    def rows(values: Tensor) -> Tensor:
        return values.mT.flatten(-2).unsqueeze(-1)

    def moment(of: Callable[[Tensor, Tensor], Tensor] | None) -> Any:
        return None if of is None else lambda M, V: columns(of(rows(M), rows(V)))

    if isinstance(posterior, TransformedPosterior):  # each value by its own row
        transform = posterior._sample_transform
        return TransformedPosterior(
            in_columns(posterior._posterior, m),
            sample_transform=lambda values: columns(transform(rows(values))),
            mean_transform=moment(posterior._mean_transform),
            variance_transform=moment(posterior._variance_transform),
        )
    assert isinstance(posterior, GPyTorchPosterior)
    mvn = posterior.distribution
    return GPyTorchPosterior(
        ScaledMultitaskNormal(
            columns(mvn.mean.unsqueeze(-1)),
            mvn.lazy_covariance_matrix,
            interleaved=False,
        )
    )


class WeightPath(SamplePath):
    """Functions of a model, given their weights.

    BoTorch's convention for sample paths: batch dimensions of the inputs are broadcast
    against those of the weights, and outputs are the last of these.

    Args:
        model: A ``MultiTaskABLR``; its features are used as they are when called.
        weights: ``sample_shape x batch_shape x m x D``; ``... x D`` for one output.
    """

    weights: Tensor

    def __init__(self, model: Any, weights: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("weights", weights)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing changes: this model is no ensemble."""

    def forward(self, x: Tensor) -> Tensor:
        """Function values.

        Args:
            x: ``... x n x d`` inputs, or with a task column, which must then say the
                task of the output; for several outputs ``n x d`` or
                ``... x 1 x n x d``.

        Returns:
            ``... x n``.

        Raises:
            ValueError: For rows of another task than that of the output, and for
                several outputs without the dimension that they have.
        """
        model = self.model
        model.eval()
        outputs = model._output_tasks
        one = len(outputs) == 1
        if model._has_task(x):
            task = x[..., model.tasks.column]
            if not one or not (task == outputs[0]).all():
                raise ValueError(
                    f"x: expected inputs of task {outputs[0]}, which the functions "
                    f"were drawn for (output_tasks={outputs}), or without a task "
                    "column, got inputs of others."
                )
            x = model.tasks.without(x)
        if not one and x.ndim > 2:  # a dimension for the outputs, which share points
            if x.shape[-3] != 1:
                raise ShapeError(
                    "x: expected ``n x d`` or ``... x 1 x n x d`` inputs, which all "
                    f"outputs share, got {tuple(x.shape)}."
                )
            x = x.squeeze(-3)
        phi, prior = model._features_at(x, outputs)
        weights = self.weights.unsqueeze(-2) if one else self.weights
        values = prior + (phi @ weights.unsqueeze(-1)).squeeze(-1)
        values = self._untransformed(values, outputs, x)
        return values.squeeze(-2) if one else values

    def _untransformed(self, values: Tensor, outputs: list[int], x: Tensor) -> Tensor:
        """From ``... x m x n`` standardised values at ``... x n x d`` inputs."""
        model = self.model
        transform = getattr(model, "outcome_transform", None)
        if transform is None:
            return values
        which = [model._index_of(t) for t in outputs]
        scales = model._scales()
        if scales is not None:  # of tasks, whatever a transform does to inputs
            shift, scale = (s[which].unsqueeze(-1) for s in scales)
            return shift + scale * values
        if model.tasks is not None:  # one by one: it may look at the task
            parts = []
            for v, t in zip(values.unbind(-2), outputs, strict=True):
                rows = model.tasks.insert(x, t)
                parts.append(transform.untransform(v.unsqueeze(-1), X=rows)[0].mT)
            return torch.cat(parts, dim=-2)
        if which != list(range(model.num_tasks)):
            transform = transform.subset_output(which)
        return transform.untransform(values.mT, X=x)[0].mT


@torch.no_grad()
def draw_path(model: Any, sample_shape: torch.Size, **strategies: Any) -> WeightPath:
    """Functions drawn from the posterior of a ``MultiTaskABLR``.

    Args:
        model: The model.
        sample_shape: How many.
        strategies: Not used: BoTorch's, for paths that are not exact.
    """
    model.eval()
    posterior = model.weight_posterior()
    mean, root = posterior.mean, posterior.lazy_covariance_matrix.root.to_dense()
    # on the CPU, so that a seed means the same on every device
    normal = torch.randn(*sample_shape, *mean.shape, dtype=torch.float64)
    deviation = (root @ normal.to(mean).unsqueeze(-1)).squeeze(-1)
    return WeightPath(model, mean + deviation)
