r"""Predictions of a GP per leaf, and their mixture where the change may be.

A leaf predicts as any GP does, by a factor J of its own, ``J' J = (K + V)^-1``. Where
two leaves meet, the change point has a distribution: it is in the gap between the
nearest data of both, or in a gap beside it that explains the data nearly as well. With
p(x) the probability that x is on the left,

.. math:: C(x, x') = P_{ll} C_l(x, x') + P_{rr} C_r(x, x')
    + (P_{ll} - p p') \Delta(x) \Delta(x'),

with :math:`P_{ll} = \min(p, p')`, :math:`P_{rr} = 1 - \max(p, p')` and
:math:`\Delta = \mu_l - \mu_r`, are the first two moments of the mixture, jointly for
all points and node by node up the tree. Each term is a product of positive
semi-definite functions, so the sum is one; elsewhere leaves are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.models.treed.cart import TreeNode
from botorch_structured.models.treed.leaf_modules import LeafMean, TreedKernel
from botorch_structured.models.treed.tree_partition import (
    TreePartition,
    left_probability,
)


@dataclass(frozen=True)
class LeafFactors:
    """The data a leaf predicts from.

    Attributes:
        X: ``E x m x d``.
        root: J, ``E x m x m``; rows and columns of padding are those of the identity.
        half: J (y - mean), ``E x m``; zero where padded.
        real: False where padded, ``E x m``.
    """

    X: Tensor
    root: Tensor
    half: Tensor
    real: Tensor


@dataclass
class TreedPredictor:
    """The posterior of one element of a batch of treed GPs.

    Attributes:
        element: Number of the element.
        partition: Its partition.
        kernel: Kernel of the leaves.
        mean: Mean of the leaves.
        noise: The number of a leaf to the noise variances ``... x n`` that all data
            have under this leaf.
        X: ``E x n x d``, for E fantasies.
        y: ``E x n``.
        lend: Whether a leaf predicts from its own data and what others lend; otherwise
            from all data, and there is no mixture.
        graph: Whether factors are differentiable (in data, and hyperparameters).
    """

    element: int
    partition: TreePartition
    kernel: TreedKernel
    mean: LeafMean
    noise: Callable[[int], Tensor]
    X: Tensor
    y: Tensor
    lend: bool
    graph: bool

    def __post_init__(self) -> None:
        # on a GPU, waiting for a condition takes longer than computing both leaves
        self.masked = self.X.is_cuda
        self.root = self.partition.nodes[0]
        self._home = self.partition.leaf_index(self.X)
        everything = torch.ones_like(self._home, dtype=torch.bool)
        self._reach = self._members(self.root, everything)
        self._factors: dict[int, LeafFactors] = {}

    def _members(self, node: TreeNode, inside: Tensor) -> list[Tensor]:
        """Which rows belong to each leaf below, shared ones included: ``E x n``."""
        if node.split is None:
            return [inside]
        left, right = node.children
        split = node.split
        return [
            *self._members(left, inside & split.left(self.X)),
            *self._members(right, inside & split.right(self.X)),
        ]

    # -- what a leaf predicts from ------------------------------------------------

    def factors(self, leaf: int) -> LeafFactors:
        """The factors of a leaf, computed when first asked for."""
        if leaf not in self._factors:
            with torch.set_grad_enabled(self.graph):
                self._factors[leaf] = self._make_factors(leaf)
        return self._factors[leaf]

    def _make_factors(self, leaf: int) -> LeafFactors:
        if not self.lend:
            everything = torch.ones_like(self._home, dtype=torch.bool)
            return self._factorise(leaf, everything)
        home = self._home == leaf
        factors = self._factorise(leaf, home)
        lent = self.lent(leaf, factors)
        return factors if lent is None else self._factorise(leaf, home | lent)

    def lent(self, leaf: int, factors: LeafFactors) -> Tensor | None:
        """Points at the boundary that others lend to a leaf, ``E x n``.

        Args:
            leaf: Its number.
            factors: Those of its data without them.
        """
        offered = self._reach[leaf] & (self._home != leaf)
        if not bool(offered.any()):
            return None
        with torch.no_grad():
            mean, projected, variance = self._project(leaf, factors, self.X, None)
            predicted = variance - projected.square().sum(-1)
            predicted = predicted + self.noise(leaf).expand(self.y.shape)
            z = (self.y - mean).square() / predicted
        # plausible: within three standard deviations
        lent = offered & (z < 9.0)
        return lent if bool(lent.any()) else None

    def _factorise(self, leaf: int, chosen: Tensor) -> LeafFactors:
        count = int(chosen.sum(-1).max()) if chosen.numel() else 0
        order = chosen.long().argsort(dim=-1, descending=True, stable=True)
        index = order[..., :count]
        real = chosen.gather(-1, index)
        X = self.X.gather(
            -2, index.unsqueeze(-1).expand(*index.shape, self.X.shape[-1])
        )
        leaves = torch.full((len(X),), leaf, device=X.device)
        noise = self.noise(leaf).expand(self.y.shape).gather(-1, index)
        if count == 0:
            empty = X.new_zeros(len(X), 0)
            return LeafFactors(X, X.new_zeros(len(X), 0, 0), empty, real)
        covariance = self.kernel.leaf_covariance(self.element, leaves, X)
        residual = self.y.gather(-1, index) - self.mean.leaf_mean(
            self.element, leaves, X
        )
        if not bool(real.all()):
            pair = real.unsqueeze(-1) & real.unsqueeze(-2)
            covariance = torch.where(pair, covariance, 0.0)
            noise = torch.where(real, noise, 1.0)
            residual = torch.where(real, residual, 0.0)
        chol = psd_safe_cholesky(covariance + torch.diag_embed(noise))
        eye = torch.eye(count, dtype=X.dtype, device=X.device).expand_as(chol)
        root = torch.linalg.solve_triangular(chol, eye, upper=False)
        half = (root @ residual.unsqueeze(-1)).squeeze(-1)
        return LeafFactors(X, root, half, real)

    # -- predictions of one leaf --------------------------------------------------

    def _project(
        self, leaf: int, factors: LeafFactors, X: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Posterior mean, J k and prior variance at ``E x p x d`` points.

        Args:
            leaf: Number of the leaf.
            factors: Its factors.
            X: Points; ``E`` may be 1.
            rows: Which fantasies the points are of; None for all, in order.
        """
        root = factors.root
        half = factors.half
        data = factors.X
        real = factors.real
        if rows is not None:
            root = root[rows]
            half = half[rows]
            data = data[rows]
            real = real[rows]
        size = max(len(X), len(data))
        X = X.expand(size, *X.shape[-2:])
        data = data.expand(size, *data.shape[-2:])
        leaves = torch.full((size,), leaf, device=X.device)
        mean = self.mean.leaf_mean(self.element, leaves, X)
        variance = self.kernel.leaf_variance(self.element, leaves, X)
        if data.shape[-2] == 0:
            return mean, X.new_zeros(*X.shape[:-1], 0), variance
        cross = self.kernel.leaf_covariance(self.element, leaves, X, data)
        cross = torch.where(real.unsqueeze(-2), cross, 0.0)
        projected = cross @ root.mT
        return mean + (projected @ half.unsqueeze(-1)).squeeze(-1), projected, variance

    def _leaf_moments(
        self, leaf: int, X: Tensor, reached: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean ``T x q`` and covariance ``T x q x q`` (``T x 1`` if q is 1).

        Args:
            leaf: Number of the leaf.
            X: ``T x q x d``, where T is a multiple of the number of fantasies.
            reached: Where the leaf matters, ``T x q``.
        """
        factors = self.factors(leaf)
        batch, q = X.shape[:-1]
        count = len(factors.X)
        if count > 1:
            rows = torch.arange(batch, device=X.device) % count
            mean, projected, variance = self._project(leaf, factors, X, rows)
        elif self.masked or bool(reached.all()):
            points = X.flatten(0, 1).unsqueeze(0)
            mean, projected, variance = self._project(leaf, factors, points, None)
        else:  # only the points of this leaf, in one matrix for the whole t-batch
            index = reached.reshape(-1).nonzero().squeeze(-1)
            points = X.flatten(0, 1)[index].unsqueeze(0)
            mean, projected, variance = (
                part.new_zeros(batch * q, *part.shape[2:]).index_put((index,), part[0])
                for part in self._project(leaf, factors, points, None)
            )
        mean = mean.reshape(batch, q)
        variance = variance.reshape(batch, q)
        projected = projected.reshape(batch, q, projected.shape[-1])
        if q == 1:
            return mean, variance - projected.square().sum(-1)
        leaves = torch.full((batch,), leaf, device=X.device)
        prior = self.kernel.leaf_covariance(self.element, leaves, X, X)
        return mean, prior - projected @ projected.mT

    # -- the mixture --------------------------------------------------------------

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``T x q`` and covariance ``T x q x q`` of the latent function.

        Args:
            X: ``T x q x d``; the fantasies are the end of the batch T.
        """
        reached = torch.ones(X.shape[:-1], dtype=torch.bool, device=X.device)
        mean, covariance = self._moments(self.root, X, reached)
        if X.shape[-2] == 1:
            covariance = covariance.unsqueeze(-1)
        return mean, covariance

    def _moments(
        self, node: TreeNode, X: Tensor, reached: Tensor
    ) -> tuple[Tensor, Tensor]:
        if node.leaf is not None:
            return self._leaf_moments(node.leaf, X, reached)
        p = left_probability(X, node, self.lend)
        to_left = reached & (p > 0)
        to_right = reached & (p < 1)
        if not self.masked:
            if not bool(to_right.any()):
                return self._moments(node.children[0], X, to_left)
            if not bool(to_left.any()):
                return self._moments(node.children[1], X, to_right)
        left_mean, left = self._moments(node.children[0], X, to_left)
        right_mean, right = self._moments(node.children[1], X, to_right)
        difference = left_mean - right_mean
        mean = right_mean + p * difference
        if X.shape[-2] == 1:
            spread = p * (1.0 - p) * difference.square()
            return mean, p * left + (1.0 - p) * right + spread
        first = p.unsqueeze(-1)
        second = p.unsqueeze(-2)
        both_left = torch.minimum(first, second)
        both_right = 1.0 - torch.maximum(first, second)
        spread = (both_left - first * second) * (
            difference.unsqueeze(-1) * difference.unsqueeze(-2)
        )
        return mean, both_left * left + both_right * right + spread

    # -- leave-one-out ------------------------------------------------------------

    def borrowed_prior(self) -> tuple[Tensor, Tensor, Tensor]:
        """The prior of each leaf's own data given the data it takes from other leaves.

        Leave-one-out predictions of this Gaussian are those of the leaf models.

        Returns:
            Its mean, ``E x n``, covariance, ``E x n x n``, and the leaves, ``E x n``.
        """
        mean = torch.zeros_like(self.y)
        n = self.y.shape[-1]
        covariance = self.y.new_zeros(len(self.y), n, n)
        for leaf in range(len(self._reach)):
            home = self._home == leaf
            borrowed: Tensor | None = ~home
            if self.lend:
                borrowed = self.lent(leaf, self._factorise(leaf, home))
            leaves = torch.full((len(self.X),), leaf, device=self.X.device)
            prior = self.kernel.leaf_covariance(self.element, leaves, self.X)
            prior_mean = self.mean.leaf_mean(self.element, leaves, self.X)
            if borrowed is not None:
                factors = self._factorise(leaf, borrowed)
                prior_mean, projected, _ = self._project(leaf, factors, self.X, None)
                prior = prior - projected @ projected.mT
            pair = home.unsqueeze(-1) & home.unsqueeze(-2)
            mean = torch.where(home, prior_mean, mean)
            covariance = torch.where(pair, prior, covariance)
        return mean, covariance, self._home
