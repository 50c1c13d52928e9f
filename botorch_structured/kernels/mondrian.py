r"""The Mondrian kernel: how many random partitions do not separate two points.

Its limit for many partitions is the Laplace kernel.

A Mondrian process cuts a box after an exponential time whose rate is the sum of the
box's sides, in a side chosen in proportion to its length, at a uniform place; both
parts go on independently until the lifetime is over. Partitions are never stored: every
random number is a hash of the node it belongs to, so that a tree is given by its 64-bit
key, and any point can be followed down to its cell. Cells without points cost nothing,
although the number of cells grows exponentially with the dimension.

References:

.. [Balog2016mondrian]
    M. Balog, B. Lakshminarayanan, Z. Ghahramani, D. M. Roy and Y. W. Teh. The Mondrian
    Kernel. UAI 2016.

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

__all__ = ["LaplaceKernel", "MondrianKernel"]

import math
from typing import Any

import torch
from torch import Tensor, nn

from botorch_structured.kernels.leaf_kernels import BatchKernel, same_points
from botorch_structured.spaces.arguments import check_count
from botorch_structured.spaces.parameter_tree import mix

# Elements of the largest temporary, 64 MiB of double precision.
_CHUNK = 2**23
# The odd constant of the splitmix64 generator, as a signed integer.
_STEP = 0x9E3779B97F4A7C15 - 2**64


class MondrianPartition(nn.Module):
    """Independent Mondrian partitions of a box.

    The probability that no cut separates two points is the exponential of minus their
    distance.

    Args:
        num_trees: The number of partitions.
        seed: The same seed gives the same partitions; more trees begin with the fewer.
        bounds: ``2 x d``, or ``2 x 1`` for the same in all columns; the unit cube if
            None.
    """

    keys: Tensor
    bounds: Tensor

    def __init__(self, num_trees: int, seed: int, bounds: Tensor | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        keys = torch.randint(
            -(2**63),
            2**63 - 1,
            (num_trees,),
            generator=generator,
        )
        self.register_buffer("keys", keys)
        unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        box = unit if bounds is None else bounds
        self.register_buffer(
            "bounds",
            box,
            persistent=bounds is not None,
        )

    def forward(self, X: Tensor, lengthscale: Tensor, lifetime: float) -> Tensor:
        """The cells of points.

        Args:
            X: ``batch_shape x n x d``.
            lengthscale: ``batch_shape x 1 x d``, or with a last dimension of one.
            lifetime: When the cutting ends. A longer one refines the same partitions.

        Returns:
            ``batch_shape x n x num_trees`` integers that are equal if and only if the
            points are in the same cell of the tree.

        Raises:
            ValueError: For points outside ``bounds``.
        """
        low, high = self.bounds.double()
        X = X.double()
        if not ((X >= low) & (X <= high)).all():
            raise ValueError(
                "X: expected points within bounds, by default the unit cube, got some "
                "outside: pass bounds, or normalise the inputs by known bounds."
            )
        rate = lifetime / lengthscale.double()
        shape = (X * rate).shape
        X, low, high = (
            (corner * rate).expand(shape).reshape(-1, shape[-1])
            for corner in (X, low, high)
        )
        size = max(1, _CHUNK // max(1, X.numel()))
        parts = [
            _descend(
                X,
                low,
                high,
                keys,
            )
            for keys in self.keys.split(size)
        ]
        return torch.cat(parts, -1).reshape(*shape[:-1], len(self.keys))

    def list_cells(self, dim: int, lengthscale: Tensor, lifetime: float) -> Tensor:
        """All cells within the bounds, in ascending order.

        Args:
            dim: The number of columns.
            lengthscale: ``1 x d`` or ``1 x 1``.
            lifetime: When the cutting ends.

        Returns:
            A vector of cells.

        Raises:
            ValueError: If more than about 2^20 are expected.
        """
        rate = lifetime / lengthscale.double()
        low, high = self.bounds.double()
        key = self.keys
        low = (low * rate).expand(len(key), dim)
        high = (high * rate).expand(len(key), dim)
        expected = (1.0 + high - low).prod(-1).sum().item()
        if expected > 2**20:
            raise ValueError(
                f"lifetime: expected at most {2**20} cells within the bounds, got "
                f"about {expected:.3g} in {len(key)} trees of {dim} columns: "
                "take fewer trees or a shorter lifetime."
            )
        time = torch.zeros_like(low[:, 0])
        finished = []
        while len(key):
            time, column, place = _next_cut(
                key,
                low,
                high,
                time,
            )
            alive = time <= 1.0
            finished.append(key[~alive])
            key = key[alive]
            low = low[alive]
            high = high[alive]
            time = time[alive].repeat(2)
            below = high.scatter(-1, column[alive], place[alive])
            above = low.scatter(-1, column[alive], place[alive])
            key = torch.cat([_child(key, True), _child(key, False)])
            low = torch.cat([low, above])
            high = torch.cat([below, high])
        return torch.cat(finished).sort().values


def _uniform(key: Tensor, salt: int) -> Tensor:
    """Strictly between 0 and 1."""
    bits = (mix(key ^ salt) >> 12) & (2**52 - 1)
    return (bits.double() + 0.5) * 2.0**-52


def _child(key: Tensor, below: Tensor | bool) -> Tensor:
    return mix(key * 2 + below + _STEP)


def _next_cut(
    key: Tensor, low: Tensor, high: Tensor, time: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """When, in which column and where boxes ``n x d`` are cut next.

    Returns:
        ``n`` times, ``n x 1`` columns and ``n x 1`` places.
    """
    ends = (high - low).cumsum(-1)
    length = ends[..., -1]
    # two numbers of a node, told apart by constants
    time = time - _uniform(key, 0x1F83D9ABFB41BD6B).log() / length
    at = (_uniform(key, 0x5BE0CD19137E2179) * length).unsqueeze(-1)
    column = (ends <= at).sum(-1, keepdim=True).clamp_max(ends.shape[-1] - 1)
    place = high.gather(-1, column) - (ends.gather(-1, column) - at)
    return time, column, place


def _descend(X: Tensor, low: Tensor, high: Tensor, roots: Tensor) -> Tensor:
    """Follow points down to their cells, through cuts of rate one until time one.

    Args:
        X: ``n x d`` in the box.
        low: ``n x d``, the box of each point.
        high: ``n x d``.
        roots: ``n x t`` or ``t`` keys of trees.

    Returns:
        ``n x t`` keys of the cells.
    """
    n, d = X.shape
    trees = roots.shape[-1]
    key = roots.expand(n, trees).reshape(-1)
    X = X.repeat_interleave(trees, 0)
    low = low.expand(n, d).repeat_interleave(trees, 0)
    high = high.expand(n, d).repeat_interleave(trees, 0)
    time = torch.zeros_like(X[:, 0])
    cell = key.clone()
    index = torch.arange(len(key), device=key.device)
    while len(index):
        time, column, place = _next_cut(
            key,
            low,
            high,
            time,
        )
        ended = time > 1.0
        cell[index[ended]] = key[ended]
        alive = ~ended
        index = index[alive]
        time = time[alive]
        X = X[alive]
        low = low[alive]
        high = high[alive]
        column = column[alive]
        place = place[alive]
        below = X.gather(-1, column) <= place
        key = _child(key[alive], below.squeeze(-1))
        end = torch.where(below, place, high.gather(-1, column))
        start = torch.where(below, low.gather(-1, column), place)
        high = high.scatter(-1, column, end)
        low = low.scatter(-1, column, start)
    return cell.reshape(n, trees)


class MondrianKernel(BatchKernel):
    r"""The fraction of Mondrian trees in which two points are in the same cell.

    .. math:: k(x, x') = \frac1M \sum_{m=1}^M 1[c_m(x) = c_m(x')] \approx
        \exp(-\lambda \sum_j |x_j - x'_j| / l_j)

    ([Balog2016mondrian]_, [Levesque2017conditional]_, section IV-B). Each entry is an
    unbiased estimate of the Laplace kernel with a standard deviation of at most
    0.5 / sqrt(M). Choose it, through ``features``, where inference must be linear in
    the number of points and the outcome has steps, as for a random forest. Where a
    covariance matrix is affordable, ``LaplaceKernel`` has no error of estimation and is
    faster.

    ``features`` is a map phi with k(x, x') = phi(x)' phi(x') exactly: per tree one
    column for each cell, 1 / sqrt(M) in the cell of the point and zero elsewhere. Cells
    are those of the partitions of ``bounds``, whether there are data in them or not, so
    that later points have the same columns. Their number grows with the dimension like
    the product of 1 + lifetime * range_j / l_j; where that is too much, take
    ``RandomFourierFeatures``.

    *Lifetime and lengthscales.* Only the ratios lifetime / l_j matter; lengthscales are
    1 initially. A longer lifetime refines the same partitions. When a lengthscale
    changes, so do the partitions and the columns of ``features``.

    *Gradients.* The kernel is piecewise constant in the inputs and in the lengthscales,
    and its gradients are zero: ``fit_gpytorch_mll`` does not change the lengthscales,
    or follows their prior alone. Take those of a fitted ``LaplaceKernel``. Slice
    sampling does change them, but with few trees the evidence is a rough function of
    them. Maximise acquisition functions with ``optimize_acqf_local_search``.

    The state dict holds the 64-bit keys of the trees, and ``bounds``.

    Args:
        lifetime: The lifetime lambda, positive.
        num_trees: The number M of trees.
        ard_num_dims: The number of lengthscales, one for each column; one for all
            columns if None.
        seed: The same seed gives the same trees, and the trees of a smaller
            ``num_trees`` are the first of a larger; by default a seed is drawn from
            torch's global generator.
        bounds: ``2 x d``, or ``2 x 1`` for the same in all columns: the box that the
            trees cut; default: the unit cube.
        kwargs: As for any GPyTorch kernel: ``batch_shape``, ``active_dims``,
            ``lengthscale_prior``, ``lengthscale_constraint``.

    Raises:
        ValueError: If a number is out of range, or ``bounds`` are not finite low < high
            of the right shape.

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
        **kwargs: Any,
    ) -> None:
        if not (math.isfinite(lifetime) and lifetime > 0):
            raise ValueError(f"lifetime: expected a positive number, got {lifetime}.")
        check_count("num_trees", num_trees)
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
        # a module of its own: GPyTorch indexes a kernel's own buffers by batch
        self.partition = MondrianPartition(num_trees, seed, bounds)

    @property
    def is_stationary(self) -> bool:
        """Never: the partitions are fixed in space."""
        return False

    def _covariance(self, x1: Tensor, x2: Tensor, diag: bool, **params: Any) -> Tensor:
        cells = self._cells(x1)
        others = cells if same_points(x1, x2) else self._cells(x2)
        if diag:
            apart = (cells != others).sum(-1)
        else:  # two keys of 64 bits differ in the first 53 of them
            apart = torch.cdist(
                cells.double(),
                others.double(),
                p=0.0,
            )
        # gradients are zero
        zero = 0.0 * (x1.sum() + x2.sum() + self.lengthscale.sum())
        return (self.num_trees - apart).to(x1) / self.num_trees + zero

    def _cells(self, X: Tensor) -> Tensor:
        """``batch_shape x n x num_trees``."""
        with torch.no_grad():
            cells: Tensor = self.partition(
                X,
                self.lengthscale,
                self.lifetime,
            )
        return cells

    def features(self, X: Tensor) -> Tensor:
        """The explicit feature map, whose inner products are the kernel.

        Args:
            X: ``batch_shape x n x d``, all columns; ``active_dims`` are honoured.

        Returns:
            ``batch_shape x n x D``, where D is the number of cells within ``bounds``,
            which depends on the trees and the lengthscales, never on the rows. It has
            ``num_trees`` entries in each row that are not zero, but is dense.

        Raises:
            ValueError: Points outside ``bounds``, about 2^20 cells and more, or a
                kernel with a ``batch_shape``.
        """
        if self.batch_shape:
            raise ValueError(
                "features: expected a kernel without a batch_shape, whose partitions "
                f"would differ, got {tuple(self.batch_shape)}."
            )
        if self.active_dims is not None:
            X = X.index_select(-1, self.active_dims)
        cells = self._cells(X)
        listed = self.partition.list_cells(
            X.shape[-1], self.lengthscale.detach(), self.lifetime
        )
        columns = torch.searchsorted(listed, cells)
        phi = X.new_zeros(*columns.shape[:-1], len(listed))
        phi = phi.scatter(
            -1,
            columns,
            1.0 / math.sqrt(self.num_trees),
        )
        return phi + 0.0 * (X.sum() + self.lengthscale.sum())  # gradients are zero


def _checked(bounds: Tensor, ard_num_dims: int | None) -> Tensor:
    d = bounds.shape[-1] if ard_num_dims is None else ard_num_dims
    if bounds.shape not in ((2, d), (2, 1)):
        raise ValueError(f"bounds: expected ``2 x {d}``, got {tuple(bounds.shape)}.")
    if not (torch.isfinite(bounds).all() and (bounds[0] < bounds[1]).all()):
        raise ValueError(f"bounds: expected finite low < high, got {bounds.tolist()}.")
    return bounds.detach().double().clone()


class LaplaceKernel(BatchKernel):
    r"""``exp(-sum_j |x_j - x'_j| / l_j)``, a product over dimensions.

    Choose it where the outcome has steps along single columns, as the predictions of a
    random forest have: samples are continuous and nowhere differentiable, and the
    kernel is the limit of the Mondrian kernel for many trees
    ([Levesque2017conditional]_, section IV-B and equation (11), with a lengthscale per
    dimension as in section V). For smooth outcomes a Matern-5/2 kernel learns more from
    the same points.

    It is not ``MaternKernel(nu=0.5)``, which takes the Euclidean distance: the two
    agree in one dimension only. With many columns the difference is large, as sums of
    absolute differences grow with d and their Euclidean distance with sqrt(d).

    Gradients are finite everywhere. Where two coordinates are equal, the kernel has a
    kink, and the gradient is the subgradient zero. Second derivatives of a matrix are a
    ``NotImplementedError`` of PyTorch's ``cdist``. Memory is ``n x m``, never
    ``n x m x d``, also in the backward pass.

    Args:
        ard_num_dims: The number of lengthscales, one for each column; one for all
            columns if None.
        kwargs: As for any GPyTorch kernel: ``batch_shape``, ``active_dims``,
            ``lengthscale_prior``, ``lengthscale_constraint``.

    Example:
        >>> kernel = ScaleKernel(LaplaceKernel(ard_num_dims=train_X.shape[-1]))
        >>> model = SingleTaskGP(train_X, train_Y, covar_module=kernel)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    has_lengthscale = True

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
            last_dim_is_batch: Whether each column is a batch of its own.
            params: Not used; GPyTorch passes arguments of its own kernels.

        Returns:
            ``batch_shape x n x m``, or ``batch_shape x n`` if ``diag``; with
            ``last_dim_is_batch``, ``d`` stands after ``batch_shape``.
        """
        a = x1 / self.lengthscale
        b = x2 / self.lengthscale
        if last_dim_is_batch:
            a = a.mT.unsqueeze(-1)
            b = b.mT.unsqueeze(-1)
        if diag:
            return torch.exp(-(a - b).abs().sum(-1))
        return torch.exp(-torch.cdist(a, b, p=1.0))
