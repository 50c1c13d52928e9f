"""Whole functions drawn from the posterior of Bayesian linear regressions.

A function is a vector of weights: drawn once it is known everywhere, exactly, with
gradients, at the cost of its features. That is what Thompson sampling wants, and what
for a GP takes an approximation (BoTorch's ``draw_matheron_paths``).
"""

from __future__ import annotations

__all__ = ["AblrSampling", "WeightPath"]

from typing import TYPE_CHECKING, Any

import torch
from botorch.sampling.pathwise.paths import SamplePath
from torch import Tensor

from botorch_structured.models.ablr_standardize import StandardizeTasks

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr_posterior import AblrPosterior as _Base
else:
    _Base = object


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
                task of the output; for several outputs ``... x 1 x n x d``.

        Returns:
            ``... x n``.
        """
        model = self.model
        model.eval()
        outputs = model._output_tasks
        which = [model._index_of(t) for t in outputs]
        if model._has_task(x):
            task = x[..., model.tasks.column]
            if len(outputs) > 1 or not (task == outputs[0]).all():
                raise ValueError(
                    f"Expected inputs of task {outputs[0]}, which the functions were "
                    f"drawn for (output_tasks={outputs}), or without a task column."
                )
            x = model.tasks.without(x)
        values, inputs = [], []
        for i, (output, t) in enumerate(zip(outputs, which, strict=True)):
            rows = x if len(outputs) == 1 else x.squeeze(-3)
            full = rows if model.tasks is None else model.tasks.insert(rows, output)
            full = model.transform_inputs(full)
            plain = full if model.tasks is None else model.tasks.without(full)
            weights = self.weights if len(outputs) == 1 else self.weights[..., i, :]
            phi = model.feature_map(plain)
            f = (phi @ weights.unsqueeze(-1)).squeeze(-1)
            values.append(f + model._prior_means(full)[..., t])
            inputs.append(full)
        stacked = torch.stack(values, dim=-2)
        result = self._untransformed(stacked, which, inputs)
        return result.squeeze(-2) if len(outputs) == 1 else result

    def _untransformed(
        self, values: Tensor, which: list[int], inputs: list[Tensor]
    ) -> Tensor:
        """From ``... x m x n`` standardised values at the inputs of each output."""
        transform = getattr(self.model, "outcome_transform", None)
        if transform is None:
            return values
        if type(transform) is StandardizeTasks:
            shift, scale = transform.means[which], transform.stdvs[which]
            return shift.unsqueeze(-1) + scale.unsqueeze(-1) * values
        if self.model.tasks is not None:  # one by one: it may look at the task
            return torch.cat(
                [
                    transform.untransform(v.unsqueeze(-1), X=X)[0].mT
                    for v, X in zip(values.unbind(-2), inputs, strict=True)
                ],
                dim=-2,
            )
        if which != list(range(self.model.num_tasks)):
            transform = transform.subset_output(which)
        return transform.untransform(values.mT, X=inputs[0])[0].mT


class AblrSampling(_Base):
    """Functions drawn from the posterior of a ``MultiTaskABLR``."""

    def sample_functions(self, num_samples: int, seed: int | None = None) -> _Functions:
        """Draw whole functions, for Thompson sampling.

        Args:
            num_samples: How many.
            seed: By default torch's global generator draws.

        Returns:
            A callable from ``batch_shape x q x d`` to ``num_samples x batch_shape x q x
            m``, differentiable. It uses the features as they are: draw anew after a
            fit.

        Example:
            >>> functions = model.sample_functions(10, seed=0)
            >>> best = X[functions(X).squeeze(-1).argmax(-1)]  # 10 x d
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        path = self._draw_path(torch.Size([num_samples]), generator)
        return _Functions(path, self._num_outputs)

    @torch.no_grad()
    def _draw_path(
        self, sample_shape: torch.Size, generator: torch.Generator | None
    ) -> WeightPath:
        self.eval()
        posterior = self.weight_posterior()
        mean, root = posterior.mean, posterior.lazy_covariance_matrix.root.to_dense()
        # on the CPU, so that a seed means the same on every device
        normal = torch.randn(
            *sample_shape, *mean.shape, generator=generator, dtype=torch.float64
        )
        deviation = (root @ normal.to(mean).unsqueeze(-1)).squeeze(-1)
        return WeightPath(self, mean + deviation)


class _Functions(torch.nn.Module):
    def __init__(self, path: WeightPath, num_outputs: int) -> None:
        super().__init__()
        self.path = path
        self.num_outputs = num_outputs

    def forward(self, X: Tensor) -> Tensor:
        """Function values, ``num_samples x batch_shape x q x m``."""
        # one batch dimension for each of the inputs', to the right of the samples
        weights = self.path.weights
        own = 2 if self.num_outputs > 1 else 1
        lead, rest = weights.shape[:1], weights.shape[1:]
        batch = rest[: len(rest) - own]
        missing = max(0, X.ndim - 2 - len(batch))
        shape = (*lead, *[1] * missing, *rest)
        several = self.num_outputs > 1
        path = WeightPath(self.path.model, weights.reshape(shape))
        values = path(X.unsqueeze(-3) if several else X)
        return values.mT if several else values.unsqueeze(-1)
