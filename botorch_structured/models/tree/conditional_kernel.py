r"""A covariance that is zero between points on different paths.

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

__all__ = [
    "ConditionalKernel",
]

from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.linalg.batch_kernel import same_points
from botorch_structured.linalg.block_low_rank import Bucket, LeafColumns, positions
from botorch_structured.linalg.correlations import (
    StationaryBlocks,
    StationaryForm,
    squared_distance,
    stationary_form,
)
from botorch_structured.models.tree.leaf_inference import (
    BlockPrior,
    BlockTensors,
    CrossCovariance,
    GivenBlocks,
    LeafKernel,
    Structure,
    stationary_cross,
)
from botorch_structured.spaces import ParameterTree


class _Places(NamedTuple):
    """Path and active columns of rows, ``batch_shape x n`` (``x d``)."""

    key: Tensor
    active: Tensor


class _Rows(NamedTuple):
    """The kernel's representation of rows, see ``LeafRows``."""

    key: Tensor
    points: Tensor
    features: Tensor
    prior: Tensor


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
        """What the base kernel sees in inactive columns, ``d``."""
        return self._imputation.values

    def _covariance(self, x1: Tensor, x2: Tensor, diag: bool, **params: Any) -> Tensor:
        """The definition: the base kernel, masked."""
        a = self.locate(x1)
        equal = same_points(x1, x2)
        b = a if equal else self.locate(x2)
        points = self.impute(x1, a)
        others = points if equal else self.impute(x2, b)
        if diag:
            covariance = self.base_kernel(points, others, diag=True, **params)
            return torch.where(a.key == b.key, to_dense(covariance), 0.0)
        covariance = self.base_kernel.forward(
            self.select(points), self.select(others), **params
        )
        return _on_the_same_path(a, b, to_dense(covariance))

    def locate(self, X: Tensor) -> _Places:
        """Where rows ``batch_shape x n x d`` are in the tree."""
        # A model checks its training data; on a GPU looking at the values of what it
        # predicts would make the device wait in each acquisition call.
        _, active, key = self.tree.locate(X, strict=X.device.type == "cpu")
        return _Places(key, active)

    def impute(self, X: Tensor, places: _Places) -> Tensor:
        """Rows with ``fill`` in inactive columns, ``batch_shape x n x d``."""
        return torch.where(places.active, X, self.fill.to(X))

    def select(self, imputed: Tensor) -> Tensor:
        """What the base kernel sees, ``batch_shape x n x e``."""
        columns = self.base_kernel.active_dims
        return imputed if columns is None else imputed.index_select(-1, columns)

    # -- by leaf ------------------------------------------------------------------

    def rows(self, X: Tensor, places: Any = None) -> _Rows:
        """See ``LeafKernel.rows``; ``places`` are those of ``locate``."""
        places = self.locate(X) if places is None else places
        imputed = self.impute(X, places)
        points = self.select(imputed)
        features = X.new_zeros(*X.shape[:-1], 0)
        form = stationary_form(self.base_kernel)
        if form is None:
            prior = self.base_kernel(imputed, diag=True)
        else:
            points = points * (1.0 / form.lengthscale)
            prior = form.variance.unsqueeze(-1).expand(points.shape[:-1])
        return _Rows(places.key, points, features, to_dense(prior))

    def leaf_covariance(self, a: _Rows, b: _Rows) -> Tensor:
        """See ``LeafKernel.leaf_covariance``."""
        form = stationary_form(self.base_kernel)
        if form is None:
            value = to_dense(self.base_kernel.forward(a.points, b.points))
        else:
            value = form.correlation.value(squared_distance(a.points, b.points))
            value = form.variance[..., None, None] * value
        return _on_the_same_path(a, b, value)

    def structure(self, X: Tensor) -> Structure:
        """See ``LeafKernel.structure``."""
        layout = self.layout(X)
        places = self.locate(X[layout.representative])
        seen = self.select(places.active)
        columns = self.select(torch.arange(X.shape[-1], device=X.device))
        blocks = []
        for bucket in layout.buckets:
            inputs = positions(seen[bucket.leaves])
            blocks.append((inputs, LeafColumns.of(bucket, inputs, columns)))
        return Structure(places, layout, blocks)

    def block_tensors(self, X: Tensor, structure: Structure) -> list[BlockTensors]:
        """The blocks K_cond of equation (9), see ``LeafKernel.block_tensors``."""
        form = stationary_form(self.base_kernel)
        out = []
        for bucket, (inputs, columns) in zip(
            structure.layout.buckets, structure.blocks, strict=True
        ):
            if form is None:
                active = structure.places.active[bucket.leaves].unsqueeze(-2)
                imputed = torch.where(active, X[bucket.rows], self.fill.to(X))
                block = self._base_block(self.select(imputed), bucket)
            else:
                block = self._stationary_block(form, columns(X), inputs, bucket)
            none = X.new_zeros(*bucket.index.shape, 0)
            out.append(BlockTensors(bucket, block[0], none, inputs[:, :0], block[1]))
        return out

    def _stationary_block(
        self, form: StationaryForm, points: Tensor, inputs: Tensor, bucket: Bucket
    ) -> tuple[BlockPrior, CrossCovariance]:
        columns = self.base_kernel.active_dims
        count = self.tree.dim if columns is None else len(columns)
        inverse = form.lengthscale.reciprocal().squeeze(-2).expand(count)
        prior = StationaryBlocks(
            bucket,
            points,
            pad(inverse, (0, 1))[inputs],
            form.variance.expand(len(inputs)),
            None,
            form.correlation,
        )
        own = stationary_cross(prior, inputs)

        def cross(places: Tensor, points: Tensor, index: Tensor) -> Tensor:
            # columns that a leaf does not use are one more column, of zeros
            return own(places, pad(points, (0, 1)), index)

        return prior, cross

    def _base_block(
        self, mine: Tensor, bucket: Bucket
    ) -> tuple[BlockPrior, CrossCovariance]:
        base = self.base_kernel
        covariance = to_dense(base.forward(mine, mine))
        if bucket.real is not None:
            pair = bucket.real.unsqueeze(-1) & bucket.real.unsqueeze(-2)
            covariance = torch.where(pair, covariance, 0.0)

        def cross(places: Tensor, points: Tensor, index: Tensor) -> Tensor:
            return to_dense(base.forward(points[index], mine[places]))

        return GivenBlocks(covariance), cross


def _on_the_same_path(
    a: _Places | _Rows, b: _Places | _Rows, covariance: Tensor
) -> Tensor:
    same = a.key.unsqueeze(-1) == b.key.unsqueeze(-2)
    return torch.where(same, covariance, 0.0)
