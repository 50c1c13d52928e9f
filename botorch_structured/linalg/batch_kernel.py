"""Kernels whose batch can be indexed, with parameters and buffers of any shape."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self, TypeVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class BatchKernel(Kernel):
    """A kernel whose batch can be indexed and expanded.

    ``kernel(X)[i]`` needs it. GPyTorch's own indexing takes every parameter *and every
    buffer* of a kernel to lead with the batch shape, which ``active_dims`` and tables
    do not, and leaves out modules that are not kernels.

    Subclasses define ``_covariance``, or ``forward`` if they are products or sums over
    columns, which ``last_dim_is_batch`` can take apart.
    """

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor:
        """The covariance of rows.

        Args:
            x1: ``batch_shape x n x d``.
            x2: ``batch_shape x m x d``.
            diag: Whether to return the diagonal only; then ``n = m``.
            last_dim_is_batch: Must be False.
            params: Passed to the base kernel, if there is one.

        Returns:
            ``batch_shape x n x m``, or ``batch_shape x n`` if ``diag``.

        Raises:
            ValueError: If ``last_dim_is_batch``.
        """
        if last_dim_is_batch:
            raise ValueError(
                f"last_dim_is_batch: expected False, since a {type(self).__name__} is "
                "a function of all columns together, got True."
            )
        return self._covariance(x1, x2, diag, **params)

    def _covariance(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
        **params: Any,
    ) -> Tensor:
        """The result of ``forward``."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Kernel:
        """The kernels of a part of the batch; their parameters are copies."""
        if not self.batch_shape:
            return self
        # where there are more indices than dimensions of this batch, the IndexError
        # makes GPyTorch expand the kernel to the batch of the inputs first
        return self._take(_elements(self.batch_shape)[index])

    def expand_batch(self, *sizes: Any) -> Kernel:
        """The kernel with another batch shape, which its own broadcasts to."""
        batch = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        shape = torch.Size(batch)
        if shape == self.batch_shape:
            return self
        return self._take(_elements(self.batch_shape).expand(shape))

    def _take(self, where: Tensor) -> Self:
        """The kernels of elements of the flattened batch, of any shape."""
        return take_batch(self, self.batch_shape, where)


def same_points(x1: Tensor, x2: Tensor) -> bool:
    """Whether a covariance is asked for of points with themselves, as most are."""
    return x1 is x2 or (x1.shape == x2.shape and torch.equal(x1, x2))


def take_batch(
    module: ModuleT,
    batch_shape: torch.Size,
    where: Tensor,
) -> ModuleT:
    """A copy of a kernel with the parameters of some elements of its batch.

    Args:
        module: A kernel, GPyTorch's or of this package.
        batch_shape: What the batch shapes of all its parts broadcast to.
        where: Elements of the flattened ``batch_shape``, ``new_shape``.

    Returns:
        One with batch shape ``new_shape``.
    """
    taken = deepcopy(module)
    for part, old in zip(taken.modules(), module.modules(), strict=True):
        is_kernel = isinstance(part, Kernel)
        # a distribution (each prior is one) has a batch shape that cannot be set
        if not (is_kernel or "batch_shape" in vars(part)):
            continue
        shape: Any = old.batch_shape
        values: list[Tensor] = [*part.parameters(recurse=False)]
        for name, buffer in part.named_buffers(recurse=False):
            if shape and name != "active_dims" and _leads(buffer, shape):
                values.append(buffer)
        for value in values:
            leading = len(shape) if _leads(value, shape) else 0
            rest = value.shape[leading:]
            full = value.data.expand((*batch_shape, *rest)).reshape(-1, *rest)
            value.data = full[where.to(value.device)]
        setattr(
            part,
            "_batch_shape" if is_kernel else "batch_shape",
            where.shape,
        )
    return taken


def _leads(value: Tensor, batch_shape: torch.Size) -> bool:
    return value.shape[: len(batch_shape)] == batch_shape


def _elements(shape: torch.Size) -> Tensor:
    """The number of each element of a batch, ``shape``."""
    return torch.arange(shape.numel()).reshape(shape)
