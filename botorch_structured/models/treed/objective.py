"""The objective of a treed GP and its fit: equation (2) of [Assael2014treed]_.

It is more than a prior and a likelihood determine, so ``fit_gpytorch_mll`` finds it
through BoTorch's hooks, and whoever evaluates the mll, as slice sampling does, through
the prior of the training data, see ``with_objective``.
"""

from __future__ import annotations

__all__ = [
    "PathGroup",
    "StationaryTree",
    "TreeData",
    "TreedObjective",
    "batch_elements",
    "climb_leaves",
    "log_path_evidence",
    "nested_groups",
    "node_groups",
    "noisy_covariance",
    "path_derivatives",
    "path_values",
    "path_weight",
    "stationary_evidence",
    "with_objective",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.fit import _fit_fallback
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_structured.linalg.hyperparameter import Hyperparameter
from botorch_structured.models.gaussian_noise import check_own_objective, noise_at
from botorch_structured.models.surroundings import few_threads
from botorch_structured.models.treed.growth import (
    LeafObjective,
    LeafPrior,
    LeafTerm,
)
from botorch_structured.models.treed.kernel import TreedKernel, TreedStationary
from botorch_structured.models.treed.leaf_modules import LeafNoiseLikelihood, TreedMean
from botorch_structured.models.treed.tree import Array, Rows, TreeNode

# ----------------------------------------------------------------------
# The terms of the objective of treed GPs, in batches of one shape each.
#
# A term is a leaf and a node on its path. Where the node has what the leaf has, one
# factorisation serves all terms of a leaf (``nested_groups``); where it has a mean, an
# amplitude and noise of its own, each term needs one (``node_groups``).

# Elements of a batch of matrices. A core works on half a dozen arrays of that size,
# which must stay in its cache; other devices want much at once, but never gigabytes.
_CACHE_ELEMENTS = 80_000
_DEVICE_ELEMENTS = 2_000_000
# Up to so many rows a term costs less than the calls for it: padding is cheap.
_SMALL = 48
_GROWTH, _SLACK = 1.25, 4


@dataclass(frozen=True)
class PathGroup:
    """Terms that are worked on together.

    Attributes:
        leaves: Numbers of the leaves, ``B``; each has data.
        values: Whose amplitude, mean and noise count, ``B``: j for those of leaf j of
            L, L + p for those of the node at position p of the tree.
        rows: Data, those of nested nodes one after the other, ``B x m``.
        members: Which of these rows a node on the path has, ``B x D x m``; with one
            node, the others are padding.
        weights: Weight of that node, ``B x D``; 0 for fewer nodes than ``D``.
        own: Whether any of the values are those of leaves.
        padded: Whether some of the rows are padding.
    """

    leaves: Tensor
    values: Tensor
    rows: Tensor
    members: Tensor
    weights: Tensor
    own: bool = True
    padded: bool = False

    @cached_property
    def row_weights(self) -> Tensor:
        """Sum of the weights of the nodes that a row is in, ``B x m``."""
        return (self.members * self.weights.unsqueeze(-1)).sum(-2)

    @cached_property
    def pairs(self) -> Tensor | None:
        """1 for two rows that are data, 0 for padding, ``B x m x m``; None without."""
        return self.members.mT @ self.members if self.padded else None

    def to(self, like: Tensor) -> PathGroup:
        """The same in the dtype and on the device of a tensor."""
        return PathGroup(
            self.leaves.to(like.device),
            self.values.to(like.device),
            self.rows.to(like.device),
            self.members.to(like),
            self.weights.to(like),
            self.own,
            self.padded,
        )


def batch_elements(device: torch.device) -> int:
    """How many elements the matrices of a group may have together.

    Args:
        device: Where they are worked on.
    """
    return _CACHE_ELEMENTS if device.type == "cpu" else _DEVICE_ELEMENTS


def path_weight(
    leaf: TreeNode, node: TreeNode, count: Callable[[TreeNode], int]
) -> float:
    """w_i of equation (2), as printed.

    Args:
        leaf: j.
        node: i, on the path from j to the root.
        count: Number of data in a node.
    """
    return count(leaf) / count(node) / (1.0 + leaf.depth - node.depth)


def nested_groups(
    root: TreeNode, data: Callable[[TreeNode], Rows], max_elements: int
) -> list[PathGroup]:
    """One factorisation per leaf: for what all nodes of a path share.

    Leaves without data are in no group.

    Args:
        root: The tree.
        data: The rows of a node that count, nested along each path.
        max_elements: See ``batch_elements``; one matrix may have more.
    """
    numbered = [(j, v) for j, v in enumerate(root.leaves()) if len(data(v))]
    n = len(data(root))
    deepest = 1 + max(leaf.depth for _, leaf in numbered)
    rows = np.zeros((len(numbered), n), dtype=np.int64)
    members = np.zeros((len(numbered), deepest, n))
    weights = np.zeros((len(numbered), deepest))
    for j, (_, leaf) in enumerate(numbered):
        seen = np.zeros(0, dtype=np.int64)
        for k, node in enumerate(leaf.path()):
            new = np.setdiff1d(data(node), seen, assume_unique=True)
            seen = np.concatenate([seen, new])
            members[j, k, : len(seen)] = 1.0
            weights[j, k] = path_weight(leaf, node, lambda v: len(data(v)))
        rows[j] = seen
    leaves = torch.tensor([number for number, _ in numbered])
    step = max(1, max_elements // (n * n))
    return [
        PathGroup(
            leaves[i : i + step],
            leaves[i : i + step],
            torch.as_tensor(rows[i : i + step]),
            torch.as_tensor(members[i : i + step]),
            torch.as_tensor(weights[i : i + step]),
        )
        for i in range(0, len(numbered), step)
    ]


@dataclass(frozen=True)
class _Term:
    """A leaf, whose values count, the data, and the weight."""

    leaf: int
    values: int
    rows: Rows
    weight: float


def node_groups(
    root: TreeNode, data: Callable[[TreeNode], Rows], max_elements: int
) -> list[PathGroup]:
    """One factorisation per leaf and node: for nodes that have values of their own.

    Terms with equally many rows are batched, and small ones with nearly as many.
    Leaves without data are in no group.

    Args:
        root: The tree.
        data: The rows of a node that count.
        max_elements: See ``batch_elements``; one matrix may have more.
    """
    leaves = root.leaves()
    number = {id(leaf): j for j, leaf in enumerate(leaves)}
    terms = [
        _Term(
            number[id(leaf)],
            number[id(leaf)] if node is leaf else len(leaves) + position,
            data(node),
            path_weight(leaf, node, lambda v: len(data(v))),
        )
        for position, node in enumerate(root.walk())
        for leaf in node.leaves()
        if len(data(leaf))
    ]
    terms.sort(key=lambda term: -len(term.rows))
    batches: list[list[_Term]] = []
    for term in terms:
        m = len(term.rows)
        if batches:
            batch = batches[-1]
            width = len(batch[0].rows)
            alike = m == width or (width <= _SMALL and _GROWTH * m + _SLACK >= width)
            if alike and (len(batch) + 1) * width**2 <= max_elements:
                batch.append(term)
                continue
        batches.append([term])
    return [_padded(batch, len(leaves)) for batch in batches]


def _padded(batch: list[_Term], num_leaves: int) -> PathGroup:
    """Terms in the order of their sizes, the first the largest."""
    width = len(batch[0].rows)
    rows = np.zeros((len(batch), width), dtype=np.int64)
    members = np.zeros((len(batch), 1, width))
    for i, term in enumerate(batch):
        rows[i, : len(term.rows)] = term.rows
        members[i, 0, : len(term.rows)] = 1.0
    return PathGroup(
        torch.tensor([term.leaf for term in batch]),
        torch.tensor([term.values for term in batch]),
        torch.as_tensor(rows),
        torch.as_tensor(members),
        torch.tensor([term.weight for term in batch], dtype=torch.float64)[:, None],
        own=any(term.values < num_leaves for term in batch),
        padded=len(batch[-1].rows) < width,
    )


# ----------------------------------------------------------------------
# The fast part of a fit: each leaf by itself, by scoring, where that is possible.
#
# What follows is BoTorch's L-BFGS-B on the sum over the leaves, which then has next to
# nothing left to do.

if TYPE_CHECKING:
    from botorch_structured.models.treed.objective import TreedObjective

# Flops of one step: beyond, L-BFGS does with one matrix product where this needs d.
_MAX_FLOPS = 3e8


def climb_leaves(model: TreedObjective) -> None:
    """Move the hyperparameters of each leaf to its maximum of equation (2).

    Nothing happens where the leaves have something in common (``path_sharing="all"``
    with its nested covariances, one noise for all), the kernel is another one than the
    default, parameters are held, or matrices are large.

    Args:
        model: In training mode.
    """
    kernel, mean, likelihood = model.covar_module, model.mean_module, model.likelihood
    known = isinstance(likelihood, FixedNoiseGaussianLikelihood)
    if (
        model._share_all
        or model.partition.tree_shape
        or not isinstance(kernel, TreedStationary)
        or kernel.warp
        or kernel.categorical
        or not isinstance(mean, TreedMean)
        or not (known or isinstance(likelihood, LeafNoiseLikelihood))
        or not all(p.requires_grad for p in model.parameters())
    ):
        return
    model.train()
    (data,) = model._plan()
    length, variance = kernel.lengthscale_of_leaf, kernel.variance_of_leaf
    dim = length.raw_value.shape[-1]
    if dim * len(data.y) ** 3 > _MAX_FLOPS:
        return
    noise = None if known else likelihood.noise_covar.noise_of_leaf
    rows = _numpy(model._known_noise()) if known else None
    prior = _prior(length, variance, mean, noise)
    rbf = kernel.correlation(0).name == "rbf"
    X, y = _numpy(data.X), _numpy(data.y)
    levels = model.levels.tolist()

    def size(node: TreeNode) -> int:
        return len(model._data_of(node))

    terms: list[list[LeafTerm]] = [[] for _ in range(model.partition.num_leaves)]
    number = {id(v): j for j, v in enumerate(data.root.leaves())}
    for position, node in enumerate(data.root.walk()):
        mine = model._data_of(node)
        if not len(mine):
            continue
        own = None if node.split is None else tuple(levels[position])
        known_noise = None if rows is None else rows[mine]
        shared = LeafTerm(1.0, X[mine], y[mine], known_noise, own, rbf)
        for below in node.leaves():
            if size(below):
                weight = path_weight(below, node, size)
                terms[number[id(below)]].append(shared.weighted(weight))
    with torch.no_grad():
        for leaf, nodes in enumerate(terms):
            if not nodes:
                continue
            start = np.concatenate(
                [
                    _numpy(length.raw_value[leaf]),
                    _numpy(variance.raw_value[leaf : leaf + 1]),
                    _numpy(mean.constant[leaf : leaf + 1]),
                    [prior.mode[-1] if noise is None else noise.raw_value[leaf].item()],
                ]
            )
            found = LeafObjective(nodes, prior).maximise(start)
            if found is None:
                continue
            theta = torch.as_tensor(found).to(length.raw_value)
            length.raw_value[leaf] = theta[:dim]
            variance.raw_value[leaf] = theta[dim]
            mean.constant[leaf] = theta[dim + 1]
            if noise is not None:
                noise.raw_value[leaf] = theta[dim + 2]


def _numpy(values: Tensor) -> Array:
    array = values.detach().cpu()
    return (array.double() if array.is_floating_point() else array).numpy()


def _prior(
    length: Hyperparameter,
    variance: Hyperparameter,
    mean: TreedMean,
    noise: Hyperparameter | None,
) -> LeafPrior:
    """Priors and bounds in the logarithms, as the modules have them."""
    dim = length.raw_value.shape[-1]
    rows = [_log_normal(length)] * dim + [_log_normal(variance)]
    constant = mean.constant_prior
    rows.append((float(constant.loc), float(constant.scale), -math.inf, math.inf))
    rows.append(
        (0.0, 1.0, -math.inf, math.inf) if noise is None else _log_normal(noise)
    )
    return LeafPrior(*(np.array(column) for column in zip(*rows, strict=True)))


def _log_normal(parameter: Hyperparameter) -> tuple[float, float, float, float]:
    """Mode and scale of the logarithm as the objective has it, and its bounds."""
    prior, constraint = parameter.value_prior, parameter.raw_value_constraint
    assert isinstance(constraint, Interval)
    loc, scale = float(prior.loc), float(prior.scale)
    # the density of a value has a factor 1 / value: the mode of the logarithm is lower
    return (
        loc - scale**2,
        scale,
        math.log(float(constraint.lower_bound)),
        math.log(float(constraint.upper_bound)),
    )


# ----------------------------------------------------------------------
# The objective of treed GPs: evidences of the nodes on each leaf's path, weighted.
#
# Assael et al. (2014), equation (2): the hyperparameters of leaf j maximise
#
# .. math:: \sum_{i \in path_j} w_i \log p(y_i | x_i, \theta) + \log p(\theta), \quad
#     w_i = \frac{|M_j|}{|M_i|} \frac{1}{1 + depth_j - depth_i}
#
# over the nodes i from the root to j, with their data M_i. The nodes of a path are
# nested, so with the rows of the leaf first, then what its parent has besides, and so on,
# the Cholesky factor L of the root's covariance has those of all others as leading
# blocks: one factorisation gives every term. So does one inverse: with D the diagonal
# matrix of the sums of the weights of all nodes that a row is in,
#
#     G = 1/2 (sum_i w_i alpha_i alpha_i' - (L D^-1 L')^-1)
#
# is the derivative of the sum by the covariance.


def noisy_covariance(group: PathGroup, covariance: Tensor, noise: Tensor) -> Tensor:
    """Add noise to covariances, in place; padding becomes the identity.

    Args:
        group: Whose rows these are.
        covariance: ``B x m x m``.
        noise: Noise variances, ``B x m``.
    """
    if group.pairs is not None:
        covariance.mul_(group.pairs)
        noise = torch.where(group.members[:, 0] > 0.0, noise, 1.0)
    covariance.diagonal(dim1=-1, dim2=-2).add_(noise)
    return covariance


def path_values(
    group: PathGroup, noisy: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted log evidences, and what their derivatives need.

    Args:
        group: What is summed.
        noisy: Covariances with noise, see ``noisy_covariance``, ``B x m x m``.
        residual: Observations minus prior means, ``B x m``.

    Returns:
        The sums of the log evidences, ``B``; the Cholesky factors L; L^-1 times the
        residuals, ``B x m``.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    chol = psd_safe_cholesky(noisy)
    half = torch.linalg.solve_triangular(chol, residual.unsqueeze(-1), upper=False)
    half = half.squeeze(-1)
    logs = 2.0 * chol.diagonal(dim1=-1, dim2=-2).log() + math.log(2.0 * math.pi)
    values = -0.5 * (group.row_weights * (half.square() + logs)).sum(-1)
    return values, chol, half


def path_derivatives(
    group: PathGroup, chol: Tensor, half: Tensor
) -> tuple[Tensor, Tensor]:
    """Derivatives of the sums of ``path_values``.

    Args:
        group: What is summed.
        chol: L, ``B x m x m``.
        half: L^-1 times the residuals, ``B x m``.

    Returns:
        G, the derivative by the covariance, ``B x m x m``; that by the residual,
        ``B x m``.
    """
    parts = (group.members * half.unsqueeze(-2)).mT
    alpha = torch.linalg.solve_triangular(chol.mT, parts, upper=True)
    weighted = alpha * group.weights.unsqueeze(-2)
    # LAPACK's matrices have their columns together: the transpose of a symmetric one is
    # the same with its rows together, as all that it is multiplied with
    weights = group.row_weights
    if group.padded:
        weights = torch.where(weights > 0.0, weights, 1.0)
    g = torch.cholesky_inverse(chol / weights.sqrt().unsqueeze(-2)).mT
    g.baddbmm_(weighted, alpha.mT, beta=-0.5, alpha=0.5)
    if group.pairs is not None:
        g.mul_(group.pairs)
    return g, -weighted.sum(-1)


class _PathEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: PathGroup,
        covariance: Tensor,
        noise: Tensor,
        residual: Tensor,
    ) -> Tensor:
        noisy = noisy_covariance(group, covariance.clone(), noise)
        values, chol, half = path_values(group, noisy, residual)
        ctx.saved = (group, chol, half)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        g, d_residual = path_derivatives(*ctx.saved)
        g.mul_(grad[:, None, None])
        d_noise = g.diagonal(dim1=-1, dim2=-2)
        return None, g, d_noise, d_residual * grad.unsqueeze(-1)


def log_path_evidence(
    group: PathGroup, covariance: Tensor, noise: Tensor, residual: Tensor
) -> Tensor:
    """Sum of weighted log evidences of the nodes on each path, ``B``.

    For any covariance; differentiable once in everything but the group.

    Args:
        group: What is summed.
        covariance: Prior covariances of the rows without noise, ``B x m x m``.
        noise: Noise variances, ``B x m``.
        residual: Observations minus prior means, ``B x m``.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    return _PathEvidence.apply(group, covariance, noise, residual)


# ----------------------------------------------------------------------
# Equation (2) of treed GPs with stationary kernels: all leaves, with the gradient.
#
# A fit evaluates a hundred times the objective of [Assael2014treed]_ (equation (2)), and
# autograd would keep, and read again, a dozen matrices for each pair of a leaf and a
# node. The gradient is known, so here each batch of matrices is built, factorised and
# reduced to what remains of it *before the next one is touched*, and none leaves the
# cache. With s the inputs over the lengthscales of a leaf, K = v k(|s - s'|^2), slope =
# -dk/d(r^2) and G the derivative of the leaf's sum by K,
#
#     H = v G * slope,    ds = 4 (H s - rowsum(H) s),    dv = sum(G * k),
#
# of which the values of nodes above the leaf (``path_sharing="lengthscale"``), which are
# known, need the first only.


@dataclass(frozen=True)
class StationaryTree:
    """What does not change when hyperparameters do.

    Attributes:
        groups: The terms of equation (2).
        y: Observations, ``n``.
        value_and_slope: Squared scaled distances to k and -dk/d(r^2).
    """

    groups: Sequence[PathGroup]
    y: Tensor
    value_and_slope: Callable[[Tensor], tuple[Tensor, Tensor]]


def _squared_distances(s: Tensor) -> Tensor:
    """Of points ``B x m x d`` among themselves, ``B x m x m``."""
    squares = s.square().sum(-1, keepdim=True)
    distance = squares + squares.mT
    distance.baddbmm_(s, s.mT, alpha=-2.0).clamp_min_(0.0)
    # rounding must not put two copies of a point apart from one another's diagonal
    distance.diagonal(dim1=-1, dim2=-2).zero_()
    return distance


@dataclass(frozen=True)
class _Arguments:
    """What the evidence depends on, or its derivatives.

    Attributes:
        scaled: Inputs over lengthscales: all rows of leaf 0, then of leaf 1; ``L n x
            d``.
        variance: ``V``.
        mean: All rows of values 0, then of values 1, ``V n``.
        noise: ``V n``.
    """

    scaled: Tensor
    variance: Tensor
    mean: Tensor
    noise: Tensor

    @staticmethod
    def zeros_like(other: _Arguments) -> _Arguments:
        """Zeros of the same shapes."""
        parts = (other.scaled, other.variance, other.mean, other.noise)
        return _Arguments(*(torch.zeros_like(part) for part in parts))


def _group_evidence(
    tree: StationaryTree, group: PathGroup, at: _Arguments, slopes: _Arguments | None
) -> Tensor:
    """Weighted evidences of a group, ``B``; its part of the gradient goes to slopes."""
    n, rows = len(tree.y), group.rows
    inputs = (group.leaves.unsqueeze(-1) * n + rows).view(-1)
    places = (group.values.unsqueeze(-1) * n + rows).view(-1)
    s = at.scaled.index_select(0, inputs).view(*rows.shape, -1)
    variance = at.variance[group.values, None, None]
    noise = at.noise.index_select(0, places).view(rows.shape)
    residual = tree.y[rows] - at.mean.index_select(0, places).view(rows.shape)
    k, slope = tree.value_and_slope(_squared_distances(s))
    noisy = noisy_covariance(group, k * variance, noise)
    values, chol, half = path_values(group, noisy, residual)
    if slopes is None:
        return values
    g, d_residual = path_derivatives(group, chol, half)
    slopes.noise.index_add_(0, places, g.diagonal(dim1=-1, dim2=-2).reshape(-1))
    if group.own:  # what nodes above leaves have is known
        slopes.variance.index_add_(0, group.values, (g * k).sum((-1, -2)))
        slopes.mean.index_add_(0, places, -d_residual.view(-1))
    h = g.mul_(slope)
    d_scaled = torch.baddbmm(h.sum(-1, True) * s, h, s, beta=-4.0, alpha=4.0)
    d_scaled.mul_(variance)
    slopes.scaled.index_add_(0, inputs, d_scaled.view(len(inputs), -1))
    return values


class _StationaryEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tree: StationaryTree,
        scaled: Tensor,
        variance: Tensor,
        mean: Tensor,
        noise: Tensor,
    ) -> Tensor:
        flat = scaled.reshape(-1, scaled.shape[-1])
        at = _Arguments(flat, variance, mean.reshape(-1), noise.reshape(-1))
        slopes = _Arguments.zeros_like(at) if any(ctx.needs_input_grad) else None
        total = variance.new_zeros(())
        for group in tree.groups:
            total += _group_evidence(tree, group, at, slopes).sum()
        ctx.saved = (slopes, scaled.shape, mean.shape)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        slopes, shape, rows = ctx.saved
        return (
            None,
            grad * slopes.scaled.view(shape),
            grad * slopes.variance,
            grad * slopes.mean.view(rows),
            grad * slopes.noise.view(rows),
        )


def stationary_evidence(
    tree: StationaryTree,
    scaled: Tensor,
    variance: Tensor,
    mean: Tensor,
    noise: Tensor,
) -> Tensor:
    """The sum of equation (2) without the prior, over all leaves: a scalar.

    Differentiable once in everything but the tree, and in amplitudes and means of nodes
    above leaves, which are known. The gradient is computed along with the value if it
    can be asked for.

    Args:
        tree: Terms and data.
        scaled: The data as each leaf has them: inputs over lengthscales, ``L x n x d``.
        variance: Amplitudes of the leaves, then of other nodes, ``V``, see
            ``PathGroup.values``.
        mean: Prior means of the data, in the same order, ``V x n``.
        noise: Noise variances of the data, ``V x n``.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    return _StationaryEvidence.apply(tree, scaled, variance, mean, noise)


# ----------------------------------------------------------------------
# The objective is per data point: finer steps than these change no prediction.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-4, "maxiter": 200}

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models import SingleTaskGP

    from botorch_structured.models.treed.partition import TreePartition

    class _Base(SingleTaskGP):
        partition: TreePartition
        levels: Tensor
        train_inputs: Any
        train_targets: Any
        likelihood: Any
else:
    _Base = object


@dataclass(frozen=True)
class TreeData:
    """The data of one tree, and what equation (2) takes from them.

    Attributes:
        root: The tree, with the data in it.
        X: Transformed inputs, ``n x d``.
        y: Observations, ``n``.
        groups: The terms.
    """

    root: TreeNode
    X: Tensor
    y: Tensor
    groups: list[PathGroup]


def with_objective(
    prior: MultivariateNormal, objective: Callable[[], Tensor], targets: Tensor
) -> MultivariateNormal:
    """The prior in a fit: its log density of the data is the objective.

    ``ExactMarginalLogLikelihood`` adds noise and asks the result, which is of the same
    class, for the log density; then it adds the priors of hyperparameters.

    Args:
        prior: Of the training data.
        objective: What takes the place of their log density.
        targets: The training data, of which alone it is known.
    """

    class TrainingPrior(MultivariateNormal):
        def log_prob(self, value: Tensor) -> Tensor:
            if value is not targets and not torch.equal(value, targets):
                raise ValueError(
                    "mll: expected the training targets, which the tree was grown on, "
                    f"got other outcomes of shape {tuple(value.shape)}; construct the "
                    "model anew, or use set_train_data."
                )
            return objective()

    return TrainingPrior(prior.mean, prior.lazy_covariance_matrix)


class TreedObjective(_Base):
    """Objective and fit of a GP with a ``TreedKernel``.

    With any other kernel, that is, with one leaf, everything is as in the class it is
    mixed into.
    """

    _share_all: bool  # in equation (2)
    _lend: bool  # a leaf predicts from its own data and what is lent to it

    _plan_cache: tuple[Tensor, Tensor, list[TreeData]] | None = None

    @property
    def _is_treed(self) -> bool:
        return isinstance(self.covar_module, TreedKernel)

    def _elements(self, values: Tensor, own: int) -> Tensor:
        """``... x trees x own`` values as ``R x E x own``, E being the trees."""
        count, lead = self.partition.tree_shape.numel(), values.ndim - own
        times = values.shape[:lead].numel() // count
        return values.reshape(times, count, *values.shape[lead:])

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Minus the objective of ``mll`` per data point: BoTorch's hook for a fit.

        That is equation (2), summed over the leaves.

        Args:
            mll: An ``ExactMarginalLogLikelihood`` of this model.
            kwargs: Passed to ``mll`` where that is evaluated itself.

        Returns:
            A scalar, or ``batch_shape`` for a batched model.

        Raises:
            ValueError: If the likelihood of ``mll`` is not that of this model.
        """
        # A subclass, or leaving one out, is another objective.
        exact = type(mll) is ExactMarginalLogLikelihood
        if self._is_treed and exact:
            check_own_objective(self, mll, kwargs)
            objective = mll._add_other_terms(self._log_path_evidence(), ())
            return -objective / self.train_targets.shape[-1]
        output = self(*self.train_inputs)
        transformed = (self.transform_inputs(t) for t in self.train_inputs)
        return -mll(output, self.train_targets, *transformed, **kwargs)

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""Fit by L-BFGS-B, retries included, from where each leaf has its maximum.

        ``fit_gpytorch_mll`` calls this; every argument of it is honoured. Not for
        direct use.
        """
        default = closure is None and "optimizer" not in kwargs
        rows = self.train_targets.shape[-1]
        if self._is_treed and default and not optimizer_kwargs:
            with few_threads(rows):
                climb_leaves(self)
        if self._is_treed and default and not self.partition.tree_shape:
            options = dict((optimizer_kwargs or {}).get("options") or {})
            optimizer_kwargs = {
                **(optimizer_kwargs or {}),
                "options": {**_FIT_OPTIONS, **options},
            }
        with few_threads(rows):
            return _fit_fallback(
                mll,
                closure=closure,
                closure_kwargs=closure_kwargs,
                optimizer_kwargs=optimizer_kwargs,
                **kwargs,
            )

    def _plan(self) -> list[TreeData]:
        """Data and terms of equation (2), tree by tree."""
        raw, y = self.train_inputs[0], self.train_targets
        cache = self._plan_cache
        if cache is None or cache[0] is not raw or cache[1] is not y:
            with torch.no_grad():
                X = self.transform_inputs(raw) if self.training else raw
            X = X.expand(*y.shape, X.shape[-1])
            group = nested_groups if self._share_all else node_groups
            plans = []
            for e, (x, t) in enumerate(
                zip(self._elements(X, 2)[0], self._elements(y, 1)[0], strict=True)
            ):
                tree = self.partition.element(e).tree(x.cpu().double().numpy())
                groups = group(tree, self._data_of, batch_elements(x.device))
                plans.append(TreeData(tree, x, t, [g.to(x) for g in groups]))
            self._plan_cache = cache = (raw, y, plans)
        return cache[2]

    def _data_of(self, node: TreeNode) -> Rows:
        return node.home if self._lend else node.rows

    def _log_path_evidence(self) -> Tensor:
        """The sum of equation (2) without the prior, ``batch_shape``."""
        evidence = (
            self._stationary_evidence
            if isinstance(self.covar_module, TreedStationary)
            else self._general_evidence
        )
        totals = [evidence(e, data) for e, data in enumerate(self._plan())]
        return torch.stack(totals).reshape(self.partition.tree_shape)

    def _stationary_evidence(self, element: int, data: TreeData) -> Tensor:
        """Of one tree."""
        kernel: Any = self.covar_module
        levels = self._levels_of(element)
        own = kernel.variance_of(element, self._leaves_of(data))
        tree = StationaryTree(
            data.groups, data.y, kernel.correlation(element).value_and_slope
        )
        return stationary_evidence(
            tree,
            kernel.coordinates(element, data.X),
            torch.cat([own, levels[:, 0]]),
            *self._mean_and_noise(element, data),
        )

    def _general_evidence(self, element: int, data: TreeData) -> Tensor:
        """The same for any kernel; what its amplitude is, is not known: it is kept."""
        mean, noise = self._mean_and_noise(element, data)
        total = data.y.new_zeros(())
        for group in data.groups:
            rows, values = group.rows, group.values.unsqueeze(-1)
            covariance = self.covar_module.leaf_covariance(
                element, group.leaves, data.X[rows]
            )
            residual = data.y[rows] - mean[values, rows]
            terms = log_path_evidence(group, covariance, noise[values, rows], residual)
            total = total + terms.sum()
        return total

    def _leaves_of(self, data: TreeData) -> Tensor:
        """Numbers of the leaves of one tree, ``L``."""
        return torch.arange(len(data.root.leaves()), device=data.y.device)

    def _levels_of(self, element: int) -> Tensor:
        """Amplitude, mean and noise of the nodes of one tree."""
        return self.levels.reshape(-1, *self.levels.shape[-2:])[element]

    def _mean_and_noise(self, element: int, data: TreeData) -> tuple[Tensor, Tensor]:
        """Of the data, in leaves and then in nodes: see ``PathGroup.values``."""
        leaves, levels = self._leaves_of(data), self._levels_of(element)
        inputs = data.X.expand(len(leaves), *data.X.shape)
        mean = self.mean_module.leaf_mean(element, leaves, inputs)
        mean = torch.cat([mean, levels[:, 1:2].expand(-1, len(data.y))])
        if isinstance(self.likelihood, LeafNoiseLikelihood):
            noise = self.likelihood.noise_covar.leaf_noise(element, leaves)
            noise = torch.cat([noise, levels[:, 2]]).unsqueeze(-1)
        else:  # the same in all leaves and nodes
            noise = self._elements(self._known_noise(), 1)[0, element]
        return mean, noise.expand(mean.shape)

    def _known_noise(self) -> Tensor:
        """Noise variances of the training data under a common likelihood."""
        X = self.train_inputs[0]
        X = self.transform_inputs(X) if self.training else X
        return noise_at(self.likelihood, X, self.train_targets.shape)
