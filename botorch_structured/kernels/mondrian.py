r"""The Mondrian kernel: how many random partitions do not separate two points.

References:

.. [Balog2016mondrian]
    M. Balog, B. Lakshminarayanan, Z. Ghahramani, D. M. Roy and Y. W. Teh. The Mondrian
    Kernel. UAI 2016.

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

__all__ = ["MondrianKernel"]

import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from botorch_structured.kernels.batch import BatchKernel
from botorch_structured.kernels.mondrian_partition import MondrianPartition, mix
from botorch_structured.kernels.structure import same_points

_MAX_FEATURES = 2**20
_CHUNK = 2**24


class MondrianKernel(BatchKernel):
    r"""The fraction of Mondrian trees in which two points are in the same cell.

    .. math:: k(x, x') = \frac1M \sum_{m=1}^M 1[c_m(x) = c_m(x')] \approx
        \exp(-\lambda \sum_j |x_j - x'_j| / l_j)

    ([Balog2016mondrian]_, [Levesque2017conditional]_, section IV-B). Each entry is an
    unbiased estimate of the Laplace kernel with a standard deviation of at most
    0.5 / sqrt(M). It is what a random forest would be, were it a kernel: use it through
    ``features`` where inference is linear in the number of points. Where a covariance
    matrix is affordable, ``LaplaceKernel`` is the same without the noise, and faster.

    ``features`` is a map phi with k(x, x') = phi(x)' phi(x') exactly: per tree one
    column for each cell, 1 / sqrt(M) in the cell of the point and zero elsewhere. Cells
    are those of the partitions of ``bounds``, whether there are data in them or not, so
    that later points have the same columns. Their number grows with the dimension like
    the product of 1 + lifetime * range_j / l_j. Where that is too much,
    ``features_per_tree`` columns for each tree share the cells at random, and a random
    sign for each cell keeps the kernel unbiased; it adds at most
    1 / (M * features_per_tree) to the variance. The kernel is then that of these
    features: cells that share a column add or subtract 1 / M.

    *Lifetime and lengthscales.* Only the ratios lifetime / l_j matter: the lifetime is
    the inverse width common to all columns, lengthscales (1 to begin with) are relative
    to it. A longer lifetime refines the same partitions. Partitions, and with them the
    columns of ``features``, change when a lengthscale does.

    *Gradients.* The kernel is piecewise constant in the inputs and in the lengthscales,
    and its gradients are zero: ``fit_gpytorch_mll`` leaves the lengthscales where they
    are. Take over those of a fitted ``LaplaceKernel``; slice sampling moves them, but
    the evidence is rough in them unless there are very many trees. Acquisitions need
    ``optimize_acqf_local_search`` or random search.

    Inputs may be anywhere. Within ``bounds`` trees are Mondrian processes; outside, the
    columns are cut independently, with the same expectation. The trees are functions of
    64-bit keys, which are what the state dict holds.

    Args:
        lifetime: The lifetime lambda, positive.
        num_trees: The number M of trees.
        ard_num_dims: The number of lengthscales, one for each column; one for all
            columns if None.
        seed: The same seed gives the same trees, and the trees of a smaller
            ``num_trees`` are the first of a larger; by default a seed is drawn from
            torch's global generator.
        bounds: ``2 x d``, what ``features`` has cells for; default: the unit cube.
        features_per_tree: The number of columns of each tree in ``features``; by
            default as many as it has cells.
        kwargs: As for any GPyTorch kernel: ``batch_shape``, ``active_dims``,
            ``lengthscale_prior``, ``lengthscale_constraint``.

    Raises:
        ValueError: If a number is out of range or ``bounds`` are not.

    Example:
        >>> kernel = MondrianKernel(lifetime=2.0, num_trees=100, seed=0)
        >>> phi = kernel.features(X)  # n x D
        >>> weights = torch.linalg.solve(phi.mT @ phi + noise * eye, phi.mT @ y)
    """

    has_lengthscale = True

    def __init__(
        self,
        lifetime: float,
        num_trees: int,
        ard_num_dims: int | None = None,
        seed: int | None = None,
        bounds: Tensor | None = None,
        features_per_tree: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not (math.isfinite(lifetime) and lifetime > 0):
            raise ValueError(f"lifetime: expected a positive number, got {lifetime}.")
        _check_count("num_trees", num_trees)
        if features_per_tree is not None:
            _check_count("features_per_tree", features_per_tree)
        if bounds is not None:
            bounds = _checked(bounds, ard_num_dims)
        super().__init__(ard_num_dims=ard_num_dims, **kwargs)
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        constraint = self.raw_lengthscale_constraint
        if constraint.initial_value is None:
            self.initialize(lengthscale=1.0)
        self.lifetime = float(lifetime)
        self.num_trees = num_trees
        self.features_per_tree = features_per_tree
        # a module of its own: GPyTorch indexes a kernel's own buffers by batch
        self.partition = MondrianPartition(num_trees, seed, bounds)

    @property
    def is_stationary(self) -> bool:
        """Never: the partitions are fixed in space."""
        return False

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
            last_dim_is_batch: Not possible: trees partition all columns together.
            params: Not used; GPyTorch passes what its own kernels know.

        Returns:
            ``batch_shape x n x m``, or ``batch_shape x n`` if ``diag``.
        """
        if last_dim_is_batch:
            raise ValueError(
                "MondrianKernel: expected last_dim_is_batch=False, since a tree "
                "partitions all columns together."
            )
        equal = same_points(x1, x2)
        if diag and equal:
            shape = torch.broadcast_shapes(x1.shape[:-1], (*self.batch_shape, 1))
            return x1.new_ones(shape) + self._no_gradient(x1, x2)
        cells, signs = self._places(x1)
        others, other_signs = (cells, signs) if equal else self._places(x2)
        cells, signs = cells.unsqueeze(-2), signs.unsqueeze(-2)
        if diag:
            others, other_signs = others.unsqueeze(-2), other_signs.unsqueeze(-2)
        else:
            others, other_signs = others.unsqueeze(-3), other_signs.unsqueeze(-3)
        shape = torch.broadcast_shapes(cells.shape[:-1], others.shape[:-1])
        total = torch.zeros(shape, dtype=x1.dtype, device=x1.device)
        step = max(1, _CHUNK // max(1, total.numel()))
        for start in range(0, self.num_trees, step):
            part = slice(start, start + step)
            same = cells[..., part] == others[..., part]
            if self.features_per_tree is None:
                total += same.sum(-1)
            else:
                signed = torch.where(same, signs[..., part] * other_signs[..., part], 0)
                total += signed.sum(-1)
        result = total / self.num_trees + self._no_gradient(x1, x2)
        return result.squeeze(-1) if diag else result

    def features(self, X: Tensor) -> Tensor:
        """The explicit feature map, whose inner products are the kernel.

        Args:
            X: ``batch_shape x n x d``, all columns; ``active_dims`` are honoured.

        Returns:
            ``batch_shape x n x D``. D depends on the trees and the lengthscales, never
            on the rows: it is ``num_trees * features_per_tree`` if that is given, else
            the number of cells within ``bounds``. It has ``num_trees`` entries in each
            row that are not zero, but is dense.

        Raises:
            ValueError: Without ``features_per_tree``: points outside ``bounds``, about
                2^20 cells and more, or a kernel with a ``batch_shape``.
        """
        if self.active_dims is not None:
            X = X.index_select(-1, self.active_dims)
        cells, signs = self._places(X)
        if self.features_per_tree is None:
            columns, width = self._columns(cells, X.shape[-1])
        else:
            width = self.num_trees * self.features_per_tree
            first = torch.arange(self.num_trees, device=X.device)
            columns = cells + first * self.features_per_tree
        values = signs.to(X) / math.sqrt(self.num_trees)
        phi = torch.zeros(*columns.shape[:-1], width, dtype=X.dtype, device=X.device)
        return phi.scatter(-1, columns, values) + self._no_gradient(X)

    def _places(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Cells, or shared columns, and signs, ``batch_shape x n x num_trees``."""
        with torch.no_grad():
            cells = self.partition(X, self.lengthscale, self.lifetime)
        if self.features_per_tree is None:
            return cells, torch.ones_like(cells)
        hashed = mix(cells)
        return (hashed >> 1).remainder(self.features_per_tree), 1 - 2 * (hashed & 1)

    def _columns(self, cells: Tensor, dim: int) -> tuple[Tensor, int]:
        """The column of each cell, and their number."""
        if self.batch_shape:
            raise ValueError(
                "features: expected features_per_tree for a kernel with a batch_shape, "
                f"here {tuple(self.batch_shape)}, whose partitions differ; got None."
            )
        listed = self.partition.list_cells(
            dim, self.lengthscale.detach(), self.lifetime, _MAX_FEATURES
        )
        columns = torch.searchsorted(listed, cells).clamp_max(len(listed) - 1)
        if not torch.equal(listed[columns], cells):
            raise ValueError(
                "features: expected points within bounds, by default the unit cube, "
                "got some outside: pass bounds=, or features_per_tree=, which has "
                "columns for all of space."
            )
        return columns, len(listed)

    def _no_gradient(self, *inputs: Tensor) -> Tensor | float:
        """Zero, so that who asks for a gradient gets the true one and no error."""
        sources = [x for x in (*inputs, self.lengthscale) if x.requires_grad]
        if not (sources and torch.is_grad_enabled()):
            return 0.0
        return 0.0 * torch.stack([x.sum() for x in sources]).sum()


def _checked(bounds: Tensor, ard_num_dims: int | None) -> Tensor:
    d = bounds.shape[-1] if ard_num_dims is None else ard_num_dims
    if bounds.shape != (2, d):
        raise ValueError(f"bounds: expected ``2 x {d}``, got {tuple(bounds.shape)}.")
    if not (torch.isfinite(bounds).all() and (bounds[0] < bounds[1]).all()):
        raise ValueError(f"bounds: expected finite low < high, got {bounds.tolist()}.")
    return bounds.detach().double().clone()


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: expected at least 1 (an integer), got {value!r}.")
