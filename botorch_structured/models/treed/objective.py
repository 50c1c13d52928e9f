r"""The objective of a treed GP: equation (2) of [Assael2014treed]_.

The hyperparameters of leaf j maximise

.. math:: \sum_{i \in path_j} w_i \log p(y_i | x_i, \theta) + \log p(\theta), \quad
    w_i = \frac{|M_j|}{|M_i|} \frac{1}{1 + depth_j - depth_i}

over the nodes i from the root to j, with their data M_i. A term is a leaf and a node on
its path. Terms are worked on in batches of one shape (``PathGroup``), and each batch of
covariances is built, factorised and reduced to its part of the value and of the
gradient before the next one is touched, so that none leaves the cache.

Where a node has what the leaf has (``path_sharing="all"``), one factorisation serves
all terms of a leaf: the nodes of a path are nested, so with the rows of the leaf first,
then what its parent has besides, and so on, the Cholesky factor L of the root's
covariance has those of all others as leading blocks (``nested_groups``). One inverse
does too: with D the diagonal matrix of the sums of the weights of all nodes that a row
is in,

.. math:: G = \tfrac12 (\sum_i w_i \alpha_i \alpha_i^\top - (L D^{-1} L^\top)^{-1})

is the derivative of the sum by the covariance. Where a node has an amplitude, a mean
and noise of its own, each term has a factorisation (``node_groups``).

The objective is more than a prior and a likelihood determine. ``fit_gpytorch_mll``
finds it through BoTorch's hook ``compute_custom_loss``; slice sampling, and whoever
else evaluates the mll, through the log density of the prior that ``TreedGP.forward``
returns in training mode.
"""

from __future__ import annotations

__all__ = [
    "KernelCovariances",
    "PathGroup",
    "StationaryCovariances",
    "TreeData",
    "batch_elements",
    "covariances_of",
    "nested_groups",
    "node_groups",
    "noisy_covariance",
    "path_derivatives",
    "path_evidence",
    "path_values",
    "path_weight",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_structured.linalg.correlations import Correlation
from botorch_structured.models.treed.kernel import (
    TreedKernel,
    TreedStationary,
    own_squared_distance,
)
from botorch_structured.models.treed.tree import Rows, TreeNode

# Elements of a batch of matrices. On a CPU six arrays of that size fit into the cache
# of a core; a GPU is faster with larger batches, here of 16 MB in double precision.
_CACHE_ELEMENTS = 80_000
_DEVICE_ELEMENTS = 2_000_000
# Terms of up to so many rows take less time than the calls for them: these are padded
# to share a batch.
_SMALL = 48
_GROWTH, _SLACK = 1.25, 4
# Added to the amplitude of a leaf, in units of that of a node: without a prior, output
# scales may go to zero, which no factor can undo.
_LEAST_AMPLITUDE = 1e-12


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


@dataclass(frozen=True)
class TreeData:
    """The data of one tree, and what equation (2) takes from them.

    Attributes:
        root: The tree, with the data in it.
        X: Transformed inputs, ``n x d``.
        y: Observations, ``n``.
        data: The rows of a node that count.
        group: ``nested_groups`` or ``node_groups``.
    """

    root: TreeNode
    X: Tensor
    y: Tensor
    data: Callable[[TreeNode], Rows]
    group: Callable[[TreeNode, Callable[[TreeNode], Rows], int], list[PathGroup]]

    @cached_property
    def groups(self) -> list[PathGroup]:
        """The terms, which a fit on arrays does not need."""
        found = self.group(self.root, self.data, batch_elements(self.X.device))
        return [group.to(self.X) for group in found]

    @property
    def leaves(self) -> Tensor:
        """Numbers of the leaves, ``L``."""
        return torch.arange(len(self.root.leaves()), device=self.y.device)


# -- covariances of terms --------------------------------------------------------------

Pull = Callable[[Tensor, Sequence[Tensor]], None]


class StationaryCovariances(NamedTuple):
    """Those of the default kernel, with the gradient written out.

    With s the inputs over the lengthscales of a leaf, ``K = v k(|s - s'|^2)``, slope =
    -dk/d(r^2) and G the derivative of the objective by K,

    .. math:: H = v G * slope, \\quad ds = 4 (H s - rowsum(H) s), \\quad
        dv = \\sum G * k,

    of which nodes above the leaf, whose amplitude is known, need the first only.

    Attributes:
        correlation: k.
        scaled: The data as each leaf has them: inputs over lengthscales, ``L x n x d``.
        variance: Amplitudes of the leaves, then of other nodes, ``V``, see
            ``PathGroup.values``.
    """

    correlation: Correlation
    scaled: Tensor
    variance: Tensor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the covariances are functions of."""
        return self.scaled, self.variance

    def __call__(self, group: PathGroup) -> tuple[Tensor, Pull]:
        """Covariances of a group, and what adds to the derivatives by ``inputs``."""
        n, dim = self.scaled.shape[-2:]
        places = (group.leaves.unsqueeze(-1) * n + group.rows).view(-1)
        s = self.scaled.reshape(-1, dim).index_select(0, places)
        s = s.view(*group.rows.shape, dim)
        variance = self.variance[group.values, None, None]
        k, slope = self.correlation.value_and_slope(own_squared_distance(s))

        def pull_back(g: Tensor, slopes: Sequence[Tensor]) -> None:
            d_scaled, d_variance = slopes
            if group.own:
                d_variance.index_add_(0, group.values, (g * k).sum((-1, -2)))
            h = g.mul_(slope)
            ds = torch.baddbmm(h.sum(-1, True) * s, h, s, beta=-4.0, alpha=4.0)
            ds.mul_(variance)
            d_scaled.view(-1, dim).index_add_(0, places, ds.view(len(places), dim))

        return k * variance, pull_back


class KernelCovariances:
    """Those of any kernel, with the gradient by autograd.

    Which of its parameters is the amplitude is not known. So a node above the leaf has
    the leaf's covariance times a factor that makes its mean prior variance that of the
    node. For a ``ScaleKernel`` of a stationary kernel that is the objective of the
    default kernel: all but the output scale is shared along the path.

    Args:
        kernel: A kernel for each leaf.
        element: Element of the (flattened) batch of trees.
        X: The data, ``n x d``.
        variance: Amplitudes of the nodes, as in ``StationaryCovariances``; those of the
            leaves are not used.
        num_leaves: L.
    """

    def __init__(
        self,
        kernel: TreedKernel,
        element: int,
        X: Tensor,
        variance: Tensor,
        num_leaves: int,
    ) -> None:
        self.kernel, self.element, self.X = kernel, element, X
        self.variance, self.num_leaves = variance, num_leaves
        self.inputs = tuple(p for p in kernel.parameters() if p.requires_grad)

    @torch.enable_grad()
    def __call__(self, group: PathGroup) -> tuple[Tensor, Pull]:
        """See ``StationaryCovariances``."""
        points = self.X[group.rows]
        covariance = self.kernel.leaf_covariance(self.element, group.leaves, points)
        above = group.values >= self.num_leaves
        if bool(above.any()):
            data = group.members[:, 0]  # without padding
            mean = (covariance.diagonal(dim1=-1, dim2=-2) * data).sum(-1) / data.sum(-1)
            wanted = self.variance[group.values]
            factor = wanted / (mean + _LEAST_AMPLITUDE * wanted)
            covariance = covariance * torch.where(above, factor, 1.0)[:, None, None]

        def pull_back(g: Tensor, slopes: Sequence[Tensor]) -> None:
            if not covariance.requires_grad:
                return
            found = torch.autograd.grad(covariance, self.inputs, g, allow_unused=True)
            for slope, part in zip(slopes, found, strict=True):
                if part is not None:
                    slope.add_(part)

        return covariance.detach().clone(), pull_back


Covariances = StationaryCovariances | KernelCovariances


def covariances_of(
    kernel: TreedKernel, element: int, data: TreeData, levels: Tensor
) -> Covariances:
    """The covariances of the terms of one tree.

    Args:
        kernel: Of its leaves.
        element: Element of the (flattened) batch of trees.
        data: Of this tree.
        levels: Amplitudes of the nodes, ``N``.
    """
    leaves = data.leaves
    if not isinstance(kernel, TreedStationary):
        variance = torch.cat([levels.new_ones(len(leaves)), levels])
        return KernelCovariances(kernel, element, data.X, variance, len(leaves))
    return StationaryCovariances(
        kernel.correlation(element),
        kernel.coordinates(element, data.X),
        torch.cat([kernel.variance_of(element, leaves), levels]),
    )


# -- the terms ---------------------------------------------------------------------


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
    group: PathGroup, chol: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted log evidences, and what their derivatives need.

    Args:
        group: What is summed.
        chol: Cholesky factors of covariances with noise, see ``noisy_covariance``,
            ``B x m x m``.
        residual: Observations minus prior means, ``B x m``.

    Returns:
        The sums of the log evidences, ``B``; L^-1 times the residuals, ``B x m``.
    """
    half = torch.linalg.solve_triangular(chol, residual.unsqueeze(-1), upper=False)
    half = half.squeeze(-1)
    logs = 2.0 * chol.diagonal(dim1=-1, dim2=-2).log() + math.log(2.0 * math.pi)
    values = -0.5 * (group.row_weights * (half.square() + logs)).sum(-1)
    return values, half


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
    # the inverse is symmetric, and LAPACK returns it in column-major order: its
    # transpose is row-major as the other factors are
    weights = group.row_weights
    if group.padded:
        weights = torch.where(weights > 0.0, weights, 1.0)
    g = torch.cholesky_inverse(chol / weights.sqrt().unsqueeze(-2)).mT
    g.baddbmm_(weighted, alpha.mT, beta=-0.5, alpha=0.5)
    if group.pairs is not None:
        g.mul_(group.pairs)
    return g, -weighted.sum(-1)


def _evidence_and_slopes(
    groups: Sequence[PathGroup],
    y: Tensor,
    covariances: Covariances,
    mean: Tensor,
    noise: Tensor,
    slopes_too: bool = True,
    with_jitter: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """``path_evidence``, without a graph, and its derivatives.

    Args:
        groups: See ``path_evidence``.
        y: See there.
        covariances: See there.
        mean: See there.
        noise: See there.
        slopes_too: Whether the derivatives are computed; if not, they are zero.
        with_jitter: Whether to add jitter where a covariance is not positive definite.
            By default it is tried without, and whether that was so is read from the
            device once for all groups.

    Returns:
        The sum; its derivatives by ``mean``, ``noise`` and ``covariances.inputs``.
    """
    n, total = len(y), y.new_zeros(())
    slopes = [t.new_zeros(t.shape) for t in (mean, noise, *covariances.inputs)]
    d_mean, d_noise, *others = slopes
    failures = []
    for group in groups:
        rows = group.rows
        places = (group.values.unsqueeze(-1) * n + rows).view(-1)
        here, noise_here = (
            t.reshape(-1).index_select(0, places).view(rows.shape)
            for t in (mean, noise)
        )
        covariance, pull_back = covariances(group)
        noisy = noisy_covariance(group, covariance, noise_here)
        if with_jitter:
            chol = psd_safe_cholesky(noisy)
        else:
            chol, failed = torch.linalg.cholesky_ex(noisy)
            failures.append(failed.any())
        values, half = path_values(group, chol, y[rows] - here)
        total += values.sum()
        if not slopes_too:
            continue
        g, d_residual = path_derivatives(group, chol, half)
        d_noise.view(-1).index_add_(0, places, g.diagonal(dim1=-1, dim2=-2).flatten())
        if group.own:  # what nodes above leaves have is known
            d_mean.view(-1).index_add_(0, places, -d_residual.view(-1))
        pull_back(g, others)
    if failures and torch.stack(failures).any():
        return _evidence_and_slopes(
            groups, y, covariances, mean, noise, slopes_too, with_jitter=True
        )
    return total, slopes


class _PathEvidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        groups: Sequence[PathGroup],
        y: Tensor,
        covariances: Covariances,
        mean: Tensor,
        noise: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        total, ctx.slopes = _evidence_and_slopes(
            groups, y, covariances, mean, noise, any(ctx.needs_input_grad)
        )
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        return None, None, None, *(grad * slope for slope in ctx.slopes)


def path_evidence(
    groups: Sequence[PathGroup],
    y: Tensor,
    covariances: Covariances,
    mean: Tensor,
    noise: Tensor,
) -> Tensor:
    """The sum of equation (2) without the prior, over all leaves of a tree: a scalar.

    Differentiable once, except by amplitudes and means of nodes above leaves, which are
    known. The gradient is computed along with the value if it can be asked for.

    Args:
        groups: The terms.
        y: Observations, ``n``.
        covariances: Prior covariances of the terms.
        mean: Prior means of the data, in leaves and then in other nodes, see
            ``PathGroup.values``, ``V x n``.
        noise: Noise variances of the data, in the same order, ``V x n``.

    Raises:
        NotPSDError: If a covariance is not positive definite even with jitter.
    """
    return _PathEvidence.apply(groups, y, covariances, mean, noise, *covariances.inputs)
