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

from botorch_structured.linalg.batch_kernel import BatchKernel, same_points
from botorch_structured.spaces.arguments import check_count
from botorch_structured.spaces.lookup import mix

# Elements of the largest temporary, 64 MiB of double precision.
_CHUNK = 2**23
# The most cells that ``features`` lists.
_MAX_FEATURES = 2**20
# How far outside the bounds there are cuts.
_REACH = 2.0**30
# The odd constant of the splitmix64 generator, as a signed integer.
_STEP = 0x9E3779B97F4A7C15 - 2**64
# What tells apart the two numbers that are drawn for one node.
_TIME, _PLACE = 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179


class MondrianPartition(nn.Module):
    """Independent Mondrian partitions of the whole space.

    Within ``bounds`` they are Mondrian processes. Outside, each column is cut
    independently, so that everywhere the probability that no cut separates two points
    is the exponential of minus their distance.

    Args:
        num_trees: The number of partitions.
        seed: The same seed gives the same partitions; more trees begin with the fewer.
        bounds: ``2 x d``; the unit cube if None.
    """

    keys: Tensor
    bounds: Tensor | None

    def __init__(self, num_trees: int, seed: int, bounds: Tensor | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        keys = torch.randint(-(2**63), 2**63 - 1, (num_trees,), generator=generator)
        self.register_buffer("keys", keys)
        self.register_buffer("bounds", bounds)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        # partitions are those of the bounds that were saved, or of none
        bounds = state_dict.get(prefix + "bounds")
        self.bounds = None if bounds is None else bounds.clone().to(self.keys.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

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
            ValueError: For points that are not finite or further than 2^30 from
                ``bounds``.
        """
        low, high = self._box(X)
        X = X.double()
        inside = X.clamp(low, high)
        outside = X - inside
        if not (outside.abs() < _REACH).all():
            raise ValueError(
                "X: expected finite inputs within 2^30 of the bounds, got some that "
                "are not: normalise the inputs, or pass bounds."
            )
        shape = torch.broadcast_shapes(X.shape, lengthscale.shape)
        rate = lifetime / lengthscale.double()
        d = X.shape[-1]
        inside, low, high, outside, rate = (
            x.expand(shape).reshape(-1, d) for x in (inside, low, high, outside, rate)
        )
        box = inside * rate, low * rate, high * rate
        size = max(1, _CHUNK // max(1, inside.numel()))
        parts = [_descend(*box, keys)[0] for keys in self.keys.split(size)]
        cells = torch.cat(parts, -1)
        if outside.any():
            cells = self._beyond(cells, outside, rate)
        return cells.reshape(*shape[:-1], len(self.keys))

    def list_cells(
        self, dim: int, lengthscale: Tensor, lifetime: float, limit: int
    ) -> Tensor:
        """All cells within the bounds, in ascending order.

        Args:
            dim: The number of columns.
            lengthscale: ``1 x d`` or ``1 x 1``.
            lifetime: When the cutting ends.
            limit: At most so many cells.

        Returns:
            A vector of cells.

        Raises:
            ValueError: If about more are expected.
        """
        rate = lifetime / lengthscale.double()
        low, high = (x * rate for x in self._box(lengthscale.new_empty(1, dim)))
        expected = len(self.keys) * (1.0 + high - low).prod().item()
        if expected > limit:
            raise ValueError(
                f"lifetime: expected at most {limit} cells within the bounds, got "
                f"about {expected:.3g} in {len(self.keys)} trees of {dim} columns: "
                "take fewer trees or a shorter lifetime, or features_per_tree."
            )
        key = self.keys
        low, high = (x.expand(len(key), dim) for x in (low, high))
        time = torch.zeros_like(low[:, 0])
        finished: list[Tensor] = []
        while len(key):
            time, column, place = _next_cut(key, low, high, time)
            alive = time <= 1.0
            finished.append(key[~alive])
            key, low, high, time = key[alive], low[alive], high[alive], time[alive]
            column, place = column[alive].unsqueeze(-1), place[alive].unsqueeze(-1)
            below = high.scatter(-1, column, place)
            above = low.scatter(-1, column, place)
            key = torch.cat([_child(key, True), _child(key, False)])
            low, high = torch.cat([low, above]), torch.cat([below, high])
            time = torch.cat([time, time])
        return torch.cat(finished).sort().values

    def _box(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The corners of the bounds of points ``... x d``, two vectors."""
        d = X.shape[-1]
        if self.bounds is None:
            zero = torch.zeros(d, dtype=torch.float64, device=X.device)
            return zero, zero + 1.0
        if self.bounds.shape[-1] != d:
            raise ValueError(
                f"bounds: expected ``2 x {d}`` for inputs with {d} columns, got shape "
                f"{tuple(self.bounds.shape)}."
            )
        low, high = self.bounds.double()
        return low, high

    def _beyond(self, cells: Tensor, outside: Tensor, rate: Tensor) -> Tensor:
        """Cells told apart by the cuts between a point and the bounds."""
        row, column = outside.nonzero(as_tuple=True)
        signed, rate = outside[row, column], rate[row, column].unsqueeze(-1)
        distance = signed.abs().unsqueeze(-1) * rate
        box = distance, torch.zeros_like(distance), _REACH * rate
        # each side of each column has cuts of its own
        side = (2 * column + (signed > 0) + 1).unsqueeze(-1) * _STEP
        parts = []
        size = max(1, _CHUNK // max(1, len(row)))
        for keys in self.keys.split(size):
            cell, edge = _descend(*box, mix(keys + side))
            # before the first cut one is still in the cell at the edge of the bounds
            parts.append(torch.where(edge.squeeze(-1) == 0.0, 0, mix(cell)))
        return cells.index_add(0, row, torch.cat(parts, -1))


def _uniform(key: Tensor, salt: int) -> Tensor:
    """Strictly between 0 and 1."""
    bits = (mix(key ^ salt) >> 12) & (2**52 - 1)
    return (bits.double() + 0.5) * 2.0**-52


def _child(key: Tensor, below: Tensor | bool) -> Tensor:
    return mix(key * 2 + below + _STEP)


def _next_cut(
    key: Tensor, low: Tensor, high: Tensor, time: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """When, in which column and where boxes ``... x d`` are cut next."""
    ends = (high - low).cumsum(-1)
    length = ends[..., -1]
    time = time - _uniform(key, _TIME).log() / length
    at = (_uniform(key, _PLACE) * length).unsqueeze(-1)
    column = (ends <= at).sum(-1, keepdim=True).clamp_max(ends.shape[-1] - 1)
    place = high.gather(-1, column) - (ends.gather(-1, column) - at)
    return time, column.squeeze(-1), place.squeeze(-1)


def _descend(
    X: Tensor, low: Tensor, high: Tensor, roots: Tensor
) -> tuple[Tensor, Tensor]:
    """Follow points down to their cells, through cuts of rate one until time one.

    Args:
        X: ``n x d`` in the box.
        low: ``n x d``, the box of each point.
        high: ``n x d``.
        roots: ``n x t`` or ``t`` keys of trees.

    Returns:
        ``n x t`` keys of the cells, and ``n x t x d`` their lower corners.
    """
    n, d = X.shape
    shape = n, roots.shape[-1]
    key = roots.expand(shape).reshape(-1)
    X, low, high = (
        x.unsqueeze(-2).expand(*shape, d).reshape(-1, d) for x in (X, low, high)
    )
    time = torch.zeros_like(X[:, 0])
    cell, corner = key.clone(), low.clone()
    index = torch.arange(len(key), device=key.device)
    while len(index):
        time, column, place = _next_cut(key, low, high, time)
        alive = (time <= 1.0).nonzero().squeeze(-1)
        if len(alive) < len(index):
            ended = time > 1.0
            cell[index[ended]], corner[index[ended]] = key[ended], low[ended]
            index, key, time, column, place = (
                x[alive] for x in (index, key, time, column, place)
            )
            X, low, high = X[alive], low[alive], high[alive]
        column, place = column.unsqueeze(-1), place.unsqueeze(-1)
        below = X.gather(-1, column) <= place
        high = high.scatter(
            -1, column, torch.where(below, place, high.gather(-1, column))
        )
        low = low.scatter(-1, column, torch.where(below, low.gather(-1, column), place))
        key = _child(key, below.squeeze(-1))
    return cell.reshape(shape), corner.reshape(*shape, d)


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
    the product of 1 + lifetime * range_j / l_j. Where that is too much,
    ``features_per_tree`` columns for each tree share the cells at random, and a random
    sign for each cell keeps the kernel unbiased; it adds at most
    1 / (M * features_per_tree) to the variance. The kernel is then that of these
    features: cells that share a column add or subtract 1 / M.

    *Lifetime and lengthscales.* Only the ratios lifetime / l_j matter; lengthscales are
    1 initially. A longer lifetime refines the same partitions. When a lengthscale
    changes, so do the partitions and the columns of ``features``.

    *Gradients.* The kernel is piecewise constant in the inputs and in the lengthscales,
    and its gradients are zero: ``fit_gpytorch_mll`` does not change the lengthscales,
    or follows their prior alone. Take those of a fitted ``LaplaceKernel``. Slice
    sampling does change them, but with few trees the evidence is a rough function of
    them. Maximise acquisition functions
    with ``optimize_acqf_local_search`` or ``optimize_acqf_random``.

    Inputs may lie outside ``bounds``: columns are cut independently there, with the
    same expectation of the kernel. The state dict holds the 64-bit keys of the trees.

    Args:
        lifetime: The lifetime lambda, positive.
        num_trees: The number M of trees.
        ard_num_dims: The number of lengthscales, one for each column; one for all
            columns if None.
        seed: The same seed gives the same trees, and the trees of a smaller
            ``num_trees`` are the first of a larger; by default a seed is drawn from
            torch's global generator.
        bounds: ``2 x d``, the box whose cells ``features`` has columns for; default:
            the unit cube.
        features_per_tree: The number of columns of each tree in ``features``; by
            default as many as it has cells.
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
        features_per_tree: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not (math.isfinite(lifetime) and lifetime > 0):
            raise ValueError(f"lifetime: expected a positive number, got {lifetime}.")
        check_count("num_trees", num_trees)
        if features_per_tree is not None:
            check_count("features_per_tree", features_per_tree)
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

    def _covariance(self, x1: Tensor, x2: Tensor, diag: bool, **params: Any) -> Tensor:
        equal = same_points(x1, x2)
        if diag and equal:
            shape = torch.broadcast_shapes(x1.shape[:-1], (*self.batch_shape, 1))
            return x1.new_ones(shape) + self._no_gradient(x1, x2)
        cells, signs = self._places(x1)
        others, other_signs = (cells, signs) if equal else self._places(x2)
        cells, signs = cells.unsqueeze(-2), signs.unsqueeze(-2)
        dim = -2 if diag else -3
        others, other_signs = others.unsqueeze(dim), other_signs.unsqueeze(dim)
        shape = torch.broadcast_shapes(cells.shape[:-1], others.shape[:-1])
        total = torch.zeros(shape, dtype=x1.dtype, device=x1.device)
        step = max(1, _CHUNK // max(1, total.numel()))
        for start in range(0, self.num_trees, step):
            part = slice(start, start + step)
            same = cells[..., part] == others[..., part]
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
                "got some outside: pass bounds= or features_per_tree=."
            )
        return columns, len(listed)

    def _no_gradient(self, *inputs: Tensor) -> Tensor | float:
        """Zero, with the gradient zero in the inputs and lengthscales."""
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
        lengthscale = self.lengthscale
        a, b = x1 / lengthscale, x2 / lengthscale
        if last_dim_is_batch:
            a, b = a.mT.unsqueeze(-1), b.mT.unsqueeze(-1)
        if diag:
            return torch.exp(-(a - b).abs().sum(-1))
        return torch.exp(-torch.cdist(a, b, p=1.0))
