r"""A covariance that is zero between points on different paths.

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from botorch_structured.linalg.correlations import (
    column_lengthscales,
    squared_distance,
    stationary_form,
)
from botorch_structured.models.tree.leaf_inference import LeafKernel, LeafRows
from botorch_structured.spaces import ParameterTree


class _Places(NamedTuple):
    """Path and active columns of rows, ``batch_shape x n`` (``x d``)."""

    key: Tensor
    active: Tensor


class _Fill(torch.nn.Module):
    values: Tensor

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values, persistent=False)


class ConditionalKernel(LeafKernel):
    r"""The base kernel between points on the same path, exactly zero across paths.

    Wrap it around any kernel where nothing should be learned about one branch of a
    space from another ([Levesque2017conditional]_, equation (8)):

    .. math:: k_C(x, x') = k(x, x') \text{ if } x_c = x'_c \;\forall c \in C,
        \text{ else } 0

    where C are the *active* decisions. Two values of a categorical decision are equal
    if they are the same one; two values of a numeric decision, if no condition tells
    them apart (they are in the same interval). An active decision never equals an
    inactive one. Like ``ScaleKernel`` it is a decorator, and can be used on its own::

        base = ScaleKernel(MaternKernel(ard_num_dims=d))
        SingleTaskGP(X, Y, covar_module=ConditionalKernel(base, tree))

    The base kernel sees inactive columns at ``fill``, so that the covariance is exactly
    invariant to their values. The covariance matrix is block-diagonal in the paths
    (equations (9) and (10)), which makes the inference of ``ConditionalGP`` fast.

    Args:
        base_kernel: Any kernel with one output; its ``active_dims`` are honoured.
        tree: Which columns are active where.
        fill: Value of inactive columns for the base kernel: a number or ``d`` of them.
            Stationary kernels do not depend on it.

    Raises:
        ValueError: If ``tree`` is not a ``ParameterTree``, ``fill`` or ``active_dims``
            do not fit it, or the base kernel has derivatives as further outputs.
    """

    def __init__(
        self,
        base_kernel: Kernel,
        tree: ParameterTree,
        fill: float | Tensor = 0.5,
    ) -> None:
        if not isinstance(base_kernel, Kernel):
            raise ValueError(
                "base_kernel: expected a GPyTorch kernel, got "
                f"{type(base_kernel).__name__}."
            )
        if not isinstance(tree, ParameterTree):
            raise ValueError(
                "tree: expected a ParameterTree (or ParameterTree(d, dependencies)), "
                f"got {type(tree).__name__}."
            )
        columns = base_kernel.active_dims
        if columns is not None and not (columns < tree.dim).all():
            raise ValueError(
                f"base_kernel: expected active_dims below {tree.dim}, the number of "
                f"columns of the tree, got {columns.tolist()}."
            )
        filled = torch.as_tensor(fill, dtype=torch.float64)
        if filled.shape not in (torch.Size(), torch.Size([tree.dim])):
            raise ValueError(
                f"fill: expected a number or {tree.dim} numbers, got shape "
                f"{tuple(filled.shape)}."
            )
        super().__init__()
        self.base_kernel = base_kernel
        self.tree = tree
        if base_kernel.num_outputs_per_input(*[torch.zeros(1, tree.dim)] * 2) != 1:
            raise ValueError(
                "base_kernel: expected one output per input, got the derivatives too "
                f"({type(base_kernel).__name__})."
            )
        # a module of its own: GPyTorch indexes a kernel's own buffers by batch
        self._imputation = _Fill(filled.expand(tree.dim).clone())

    @property
    def fill(self) -> Tensor:
        """Values of inactive columns for the base kernel, ``d``."""
        return self._imputation.values

    def column_lengthscales(self) -> Tensor:
        """See ``LeafKernel.column_lengthscales``."""
        return column_lengthscales(self.base_kernel, self.tree.dim).unsqueeze(-2)

    def locate(self, X: Tensor) -> _Places:
        """Where rows ``batch_shape x n x d`` are in the tree."""
        # A model checks its training data; on a GPU looking at the values of what it
        # predicts would make the device wait in each acquisition call.
        _, active, key = self.tree.locate(X, strict=X.device.type == "cpu")
        return _Places(key, active)

    def impute(
        self,
        X: Tensor,
        places: _Places,
    ) -> Tensor:
        """Rows with ``fill`` in inactive columns, ``batch_shape x n x d``."""
        return torch.where(places.active, X, self.fill.to(X))

    def select(self, imputed: Tensor) -> Tensor:
        """Columns that the base kernel sees, ``batch_shape x n x e``."""
        columns = self.base_kernel.active_dims
        return imputed if columns is None else imputed.index_select(-1, columns)

    def rows(
        self,
        X: Tensor,
        places: Any = None,
    ) -> LeafRows:
        """See ``LeafKernel.rows``; ``places`` are those of ``locate``."""
        places = self.locate(X) if places is None else places
        imputed = self.impute(X, places)
        points = self.select(imputed)
        form = stationary_form(self.base_kernel)
        if form is None:
            prior = to_dense(self.base_kernel(imputed, diag=True))
        else:
            points = points / form.lengthscale
            prior = form.variance.unsqueeze(-1).expand(points.shape[:-1])
        features = points.new_zeros(*points.shape[:-1], 0)
        return LeafRows(
            places.key,
            points,
            prior,
            torch.zeros_like(prior),
            features,
        )

    def leaf_covariance(
        self,
        a: LeafRows,
        b: LeafRows,
    ) -> Tensor:
        """The base kernel: blocks K_cond of (9), see ``LeafKernel.leaf_covariance``."""
        form = stationary_form(self.base_kernel)
        if form is None:
            return to_dense(self.base_kernel.forward(a.points, b.points))
        # unlike GPyTorch's it has second derivatives
        value = form.correlation.value(squared_distance(a.points, b.points))
        return a.variance.unsqueeze(-1) * value
