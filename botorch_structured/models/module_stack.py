"""Kernels and means that differ in their hyperparameters only, called as one.

GPyTorch evaluates a kernel with a batch shape in one go, which is many times cheaper
than one call per element. Its own ways of making such a kernel ask for a prior on each
parameter (``pyro_load_from_samples``) or expand index buffers along with the parameters
(``Kernel.expand_batch``). Here the parameters of the modules are stacked, and the
result is used only if it gives the numbers of the modules one by one.
"""

from __future__ import annotations

__all__ = ["ModuleStack", "stack_modules"]

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from gpytorch import Module, settings
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

Arguments = tuple[tuple[Tensor, ...], dict[str, Any]]


def stack_modules(modules: Sequence[Module]) -> Module | None:
    """One module whose parameters are those of ``S`` alike ones, stacked in front.

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
    """Whether two modules are the same but for the values of their parameters."""
    kinds = [
        [(name, type(child)) for name, child in module.named_modules()]
        for module in (a, b)
    ]
    shapes = [
        [(name, p.shape, p.dtype) for name, p in module.named_parameters()]
        for module in (a, b)
    ]
    buffers = [dict(module.named_buffers()) for module in (a, b)]
    return (
        kinds[0] == kinds[1]
        and shapes[0] == shapes[1]
        and buffers[0].keys() == buffers[1].keys()
        and all(torch.equal(buffers[0][k], buffers[1][k]) for k in buffers[0])
    )


class ModuleStack:
    """``S`` kernels or mean functions, evaluated together where that is possible.

    Args:
        modules: ``S`` modules that differ in hyperparameters.
        probes: Arguments of calls. The stacked module is used if it reproduces all of
            them, and otherwise the modules are called one by one: a kernel need not
            support batches.
    """

    def __init__(self, modules: Sequence[Module], probes: Sequence[Arguments]) -> None:
        self.modules = list(modules)
        self.stacked: Module | None = None
        stacked = stack_modules(self.modules) if len(self.modules) > 1 else None
        if stacked is not None and all(self._agrees(stacked, *p) for p in probes):
            self.stacked = stacked

    def __call__(self, *points: Tensor, **kwargs: Any) -> Tensor:
        """Evaluate all modules.

        Args:
            points: ``batch_shape x S' x n x d`` each, ``S'`` being ``S``, or one for
                points that all samples share.
            kwargs: Passed to each module.

        Returns:
            ``batch_shape x S x n x m`` for a covariance, ``batch_shape x S x n`` for a
            mean or a diagonal.
        """
        with settings.lazily_evaluate_kernels(False):
            if self.stacked is not None:
                return to_dense(self.stacked(*points, **kwargs))
            return self._one_by_one(*points, **kwargs)

    def _one_by_one(self, *points: Tensor, **kwargs: Any) -> Tensor:
        parts = []
        for s, module in enumerate(self.modules):
            own = [p.select(-3, s if p.shape[-3] > 1 else 0) for p in points]
            parts.append(to_dense(module(*own, **kwargs)))
        extra = parts[0].ndim - (points[0].ndim - 3)
        return torch.stack(parts, dim=-1 - extra)

    def _agrees(
        self, stacked: Module, points: tuple[Tensor, ...], kwargs: dict[str, Any]
    ) -> bool:
        with torch.no_grad(), settings.lazily_evaluate_kernels(False):
            expected = self._one_by_one(*points, **kwargs)
            try:
                found = to_dense(stacked(*points, **kwargs))
            except (RuntimeError, ValueError, IndexError):
                return False  # written for parameters without a batch shape
        if found.shape != expected.shape:
            return False
        # Misplaced parameters are off by far more than rounding in the distance of
        # close points, which is what this allows for.
        slack = torch.finfo(found.dtype).eps ** 0.5 * expected.abs().amax()
        return bool(((found - expected).abs() <= slack).all())
