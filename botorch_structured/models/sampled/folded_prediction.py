r"""Predictions of GPs that share their data and differ in their hyperparameters.

GPyTorch copies the training data for every element of a t-batch: one prediction at 1000
candidates and 40 points takes 100 ms, times the number of samples. Here a t-batch is
folded into the rows of one matrix, and the samples are a batch dimension. With
covariances L L' of the data (noise included), cached L^-1 and e = L^-1 (y - m), a row k
of covariances with the data has

    w = k L^-T,     mean = m + w e,     cov = k** - w w'

as in ``models.tree.leaf_inference``: at a noise variance of 1e-9 this gives three more
correct digits than ``K^-1 (y - m)``.

The kernels of the samples are evaluated as one kernel with a batch shape, which is many
times faster than one call for each. GPyTorch's own ways of making such a kernel need
a prior on each parameter (``pyro_load_from_samples``) or expand index buffers along
with the parameters (``Kernel.expand_batch``). Here the parameters are stacked, and the
result is used only if it agrees with the kernels called one by one.
"""

from __future__ import annotations

__all__ = ["FoldedPredictor", "stack_modules"]

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.posteriors import GPyTorchPosterior
from gpytorch import Module, settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.models.exact_prediction_strategies import (
    DefaultPredictionStrategy,
    prediction_strategy,
)
from linear_operator import to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn

from botorch_structured.models.fast_inference import (
    FastInference,
    FastSingleTaskGP,
    noise_is_known,
    with_variance_floor,
)

Arguments = tuple[tuple[Tensor, ...], dict[str, Any]]

# Elements of a covariance that are computed at a time: on the CPU so that large batches
# stay in the cache (the speed is the same from a quarter to twice as many), on a GPU so
# that they fit into the memory (256 MB), as GPyTorch's kernels wait in each call.
_CHUNK, _DEVICE_CHUNK = 1 << 19, 1 << 25


def stack_modules(modules: Sequence[Module]) -> Module | None:
    """One module whose parameters are those of ``S`` modules, stacked.

    Args:
        modules: ``S`` modules without a batch shape.

    Returns:
        A module with batch shape ``S`` whose parameters are constants, or None if the
        modules differ in more than the values of their parameters.
    """
    first = modules[0]
    if not all(_alike(first, other) for other in modules[1:]):
        return None
    stacked = deepcopy(first)
    for name, parameter in stacked.named_parameters():
        values = [module.get_parameter(name).detach() for module in modules]
        parameter.data = torch.stack(values)
        parameter.requires_grad_(False)
    for module in stacked.modules():
        # a distribution (each prior is one) has a batch shape that cannot be set
        if isinstance(module, Kernel) or "batch_shape" in vars(module):
            module.batch_shape = torch.Size([len(modules), *module.batch_shape])
    return stacked


def _alike(a: Module, b: Module) -> bool:
    """Whether two modules differ at most in the values of their parameters."""
    first, second = (
        (
            [(name, type(child)) for name, child in module.named_modules()],
            [(name, p.shape, p.dtype) for name, p in module.named_parameters()],
        )
        for module in (a, b)
    )
    return first == second and _equal(dict(a.named_buffers()), dict(b.named_buffers()))


def _equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def _evaluate(module: Module, *points: Tensor, **kwargs: Any) -> Tensor:
    with settings.lazily_evaluate_kernels(False):
        return to_dense(module(*points, **kwargs))


@torch.no_grad()
def stack_if_equal(
    modules: Sequence[Module], probes: Sequence[Arguments]
) -> Module | None:
    """``stack_modules``, if that has the values of the modules; a kernel may not.

    Args:
        modules: ``S`` kernels or mean functions.
        probes: Arguments of calls, points ``batch_shape x n x d``.
    """
    stacked = stack_modules(modules)
    for points, kwargs in probes if stacked is not None else ():
        each = [_evaluate(module, *points, **kwargs) for module in modules]
        expected = torch.stack(each, dim=points[0].ndim - 2)
        try:
            found = _evaluate(stacked, *(p.unsqueeze(-3) for p in points), **kwargs)
        except (RuntimeError, ValueError, IndexError):
            return None  # written for parameters without a batch shape
        # tolerance for rounding of distances between close points; wrongly stacked
        # parameters make far larger differences
        room = torch.finfo(found.dtype).eps ** 0.5 * expected.abs().amax()
        if found.shape != expected.shape or not (found - expected).abs().le(room).all():
            return None
    return stacked


def _can_fold(models: Sequence[GPyTorchModel]) -> bool:
    """Whether these predict as ``SingleTaskGP`` does, but for kernels and means."""
    first = models[0]
    kind = type(first)
    if not (
        isinstance(first, SingleTaskGP)
        and kind.forward is SingleTaskGP.forward
        and kind.posterior in (SingleTaskGP.posterior, FastSingleTaskGP.posterior)
        and kind.__call__ in (SingleTaskGP.__call__, FastInference.__call__)
        and all(_is_plain(model) for model in models)
        and _same(models, "outcome_transform")
    ):
        return False
    # some kernels have their own prediction strategy (inducing points, features)
    inputs = list(first.train_inputs)
    with torch.no_grad():
        strategy = prediction_strategy(
            inputs, first.forward(*inputs), first.train_targets, first.likelihood
        )
    return type(strategy) is DefaultPredictionStrategy


def _is_plain(model: GPyTorchModel) -> bool:
    inputs, targets = model.train_inputs, model.train_targets
    return (
        noise_is_known(model.likelihood)
        and inputs[0].ndim == 2
        and targets.ndim == 1
        and not (inputs[0].requires_grad or targets.requires_grad)
    )


def _same(models: Sequence[nn.Module], name: str) -> bool:
    """Whether a submodule has the same state in all models, or is missing in all."""
    states = [getattr(model, name, nn.Module()).state_dict() for model in models]
    return all(_equal(states[0], state) for state in states[1:])


class FoldedPredictor:
    """Cached factors of ``S`` GPs, see ``of``.

    Args:
        models: The GPs, in evaluation mode.
        kernel: Theirs as one with batch shape ``S``.
        mean: Likewise.
    """

    def __init__(
        self, models: Sequence[GPyTorchModel], kernel: Module, mean: Module
    ) -> None:
        self.models = list(models)
        self.kernel, self.mean = partial(_evaluate, kernel), partial(_evaluate, mean)
        self.shared_inputs = _same(models, "input_transform")
        with torch.no_grad():
            data = torch.stack([model.train_inputs[0] for model in self.models])
            # if the samples share it, as usual, one copy, ``1 x n x d``
            self.data = data[:1] if (data == data[:1]).all() else data
            mean, prior = self.mean(self.data), self.kernel(self.data)
            covariance = torch.stack(
                [
                    model.likelihood(
                        MultivariateNormal(mean[s], to_linear_operator(prior[s])),
                        list(model.train_inputs),
                    ).covariance_matrix
                    for s, model in enumerate(self.models)
                ]
            )
            chol = psd_safe_cholesky(covariance)
            eye = torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device)
            inverse = torch.linalg.solve_triangular(
                chol, eye.expand_as(chol), upper=False
            )
            targets = torch.stack([model.train_targets for model in self.models])
            self.inverse_transposed = inverse.mT.contiguous()
            self.half = inverse @ (targets - mean).unsqueeze(-1)

    @classmethod
    def of(cls, models: Sequence[GPyTorchModel]) -> FoldedPredictor | None:
        """That of exact GPs without a batch shape, with one output and Gaussian noise.

        Args:
            models: GPs of one class on the same data, in evaluation mode.

        Returns:
            None if the class does not predict as ``SingleTaskGP`` does, or kernels or
            means have no batch shape.
        """
        if not _can_fold(models):
            return None
        data = models[0].train_inputs[0]
        few = data[:2]
        kernel = stack_if_equal(
            [model.covar_module for model in models],
            [
                ((few, data), {}),
                ((few,), {"diag": True}),
                ((torch.stack([few, few.flip(-2)]),), {}),
            ],
        )
        mean = stack_if_equal([m.mean_module for m in models], [((data,), {})])
        return None if kernel is None or mean is None else cls(models, kernel, mean)

    def __call__(self, X: Tensor) -> GPyTorchPosterior:
        """The posteriors of all models without observation noise, a batch of Gaussians.

        Args:
            X: ``batch_shape x q x d``, not transformed.

        Returns:
            A posterior over ``batch_shape x S x q x 1``.
        """
        used = self.models[:1] if self.shared_inputs else self.models
        points = torch.stack([model.transform_inputs(X) for model in used], dim=-3)
        if points.shape[-1] != self.data.shape[-1]:
            raise ValueError(
                f"X: expected {self.data.shape[-1]} columns (after input transforms), "
                f"got {points.shape[-1]}."
            )
        mean, covariance = self._moments(points)
        # a plain tensor would get no jitter when it is factorised for sampling
        mvn = MultivariateNormal(mean, to_linear_operator(covariance))
        posterior = GPyTorchPosterior(mvn)
        transform = getattr(self.models[0], "outcome_transform", None)
        if transform is not None:
            posterior = transform.untransform_posterior(posterior, X=points)
        return posterior

    def _moments(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """``batch_shape x S x q`` and ``batch_shape x S x q x q``."""
        batch, (q, d) = points.shape[:-3], points.shape[-2:]
        flat = points.movedim(-3, 0).reshape(points.shape[-3], batch.numel() * q, d)
        num_samples, n = self.half.shape[:2]
        chunk = _CHUNK if points.device.type == "cpu" else _DEVICE_CHUNK
        size = max(64, chunk // (num_samples * n))
        size = q * max(1, size // q)
        means, explained = [], []
        for part in flat.split(size, dim=-2):
            w = self.kernel(part, self.data) @ self.inverse_transposed
            means.append(self.mean(part) + (w @ self.half).squeeze(-1))
            explained.append(
                self.kernel(part, diag=True) - w.square().sum(-1)
                if q == 1
                else w.unflatten(-2, (-1, q)) @ w.unflatten(-2, (-1, q)).mT
            )
        mean = torch.cat(means, dim=-1).view(num_samples, *batch, q)
        if q == 1:
            variance = torch.cat(explained, dim=-1).view(num_samples, *batch, 1, 1)
            covariance = variance.movedim(0, -3)
        else:
            reduction = torch.cat(explained, dim=1).view(num_samples, *batch, q, q)
            covariance = self.kernel(points) - reduction.movedim(0, -3)
        return mean.movedim(0, -2), with_variance_floor(covariance)
