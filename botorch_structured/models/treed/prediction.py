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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_structured.models.treed.cart import Rows, TreeNode, as_array
from botorch_structured.models.treed.leaf_modules import LeafMean, TreedKernel
from botorch_structured.models.treed.tree_partition import (
    TreePartition,
    left_probability,
)


class LeafFactors(NamedTuple):
    """The data a leaf predicts from.

    Attributes:
        X: ``m x d``.
        root: J, ``m x m``.
        half: J (y - mean), ``m``.
    """

    X: Tensor
    root: Tensor
    half: Tensor


@dataclass
class TreedPredictor:
    """The posterior of one treed GP.

    Attributes:
        element: Its number in a batch of treed GPs.
        partition: Its partition.
        kernel: Kernel of the leaves.
        mean: Mean of the leaves.
        noise: The noise variances that all data have under each leaf, ``L x n``.
        X: ``n x d``.
        y: ``n``.
        lend: Whether a leaf predicts from its own data and what others lend; otherwise
            from all data, and there is no mixture.
        graph: Whether factors are differentiable (in data, and hyperparameters).
    """

    element: int
    partition: TreePartition
    kernel: TreedKernel
    mean: LeafMean
    noise: Tensor
    X: Tensor
    y: Tensor
    lend: bool
    graph: bool

    def __post_init__(self) -> None:
        self.root = self.partition.tree(as_array(self.X))
        self.leaves = self.root.leaves()
        self._factors: dict[int, LeafFactors] = {}

    # -- the prior of one leaf ----------------------------------------------------

    def _leaf_mean(
        self,
        leaf: int,
        X: Tensor,
    ) -> Tensor:
        leaves = torch.full((1,), leaf, device=X.device)
        return self.mean.leaf_mean(self.element, leaves, X.unsqueeze(0))[0]

    def _leaf_covariance(
        self,
        leaf: int,
        X: Tensor,
        other: Tensor | None = None,
        diag: bool = False,
    ) -> Tensor:
        leaves = torch.full((1,), leaf, device=X.device)
        a = X.unsqueeze(0)
        b = a if other is None else other.unsqueeze(0)
        return self.kernel.leaf_covariance(
            self.element,
            leaves,
            a,
            b,
            diag,
        )[0]

    # -- what a leaf predicts from ------------------------------------------------

    def factors(self, leaf: int) -> LeafFactors:
        """The factors of a leaf, computed when first asked for."""
        if leaf not in self._factors:
            with torch.set_grad_enabled(self.graph):
                self._factors[leaf] = self._make_factors(leaf)
        return self._factors[leaf]

    def _make_factors(self, leaf: int) -> LeafFactors:
        if not self.lend:
            return self._factorise(leaf, self.root.rows)
        home = self.leaves[leaf].home
        factors = self._factorise(leaf, home)
        lent = self.lent(leaf, factors)
        return self._factorise(leaf, np.append(home, lent)) if len(lent) else factors

    @torch.no_grad()
    def lent(
        self,
        leaf: int,
        factors: LeafFactors,
    ) -> Rows:
        """Points at the boundary that others lend to a leaf.

        Args:
            leaf: Its number.
            factors: Those of its data without them.
        """
        node = self.leaves[leaf]
        offered = np.setdiff1d(node.rows, node.home)
        X = self.X[offered]
        mean, projected = self._project(leaf, factors, X)
        variance = self._leaf_covariance(leaf, X, diag=True) + self.noise[leaf][offered]
        residual = self.y[offered] - mean
        z = residual.square() / (variance - projected.square().sum(-1))
        # plausible: within three standard deviations
        return offered[(z < 9.0).cpu().numpy()]

    def _factorise(
        self,
        leaf: int,
        rows: Rows,
    ) -> LeafFactors:
        X = self.X[rows]
        residual = self.y[rows] - self._leaf_mean(leaf, X)
        covariance = self._leaf_covariance(leaf, X) + self.noise[leaf][rows].diag()
        chol = psd_safe_cholesky(covariance)
        eye = torch.eye(len(X), dtype=X.dtype, device=X.device)
        root = torch.linalg.solve_triangular(chol, eye, upper=False)
        return LeafFactors(X, root, root @ residual)

    # -- predictions of one leaf --------------------------------------------------

    def _project(
        self,
        leaf: int,
        factors: LeafFactors,
        X: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Posterior mean ``p`` and J k, ``p x m``, at ``p x d`` points."""
        projected = self._leaf_covariance(leaf, X, factors.X) @ factors.root.mT
        return self._leaf_mean(leaf, X) + projected @ factors.half, projected

    def _leaf_moments(
        self,
        leaf: int,
        X: Tensor,
        reached: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Mean ``T x q`` and covariance ``T x q x q``.

        Args:
            leaf: Number of the leaf.
            X: ``T x q x d``.
            reached: Where the leaf matters, ``T x q``; None for everywhere.
        """
        # only the points of this leaf, in one matrix for the whole t-batch
        points = X.flatten(0, 1) if reached is None else X[reached]
        mean, projected = (
            part.view(*X.shape[:-1], *part.shape[1:])
            if reached is None
            else part.new_zeros(*X.shape[:-1], *part.shape[1:]).index_put(
                (reached,), part
            )
            for part in self._project(leaf, self.factors(leaf), points)
        )
        if X.shape[-2] == 1:
            prior = self._leaf_covariance(leaf, X[:, 0], diag=True).unsqueeze(-1)
            variance = prior - projected.square().sum(-1)
            return mean, variance.unsqueeze(-1)
        leaves = torch.full((len(X),), leaf, device=X.device)
        prior = self.kernel.leaf_covariance(self.element, leaves, X, X)
        return mean, prior - projected @ projected.mT

    # -- the mixture --------------------------------------------------------------

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``T x q`` and covariance ``T x q x q`` of the latent function.

        Args:
            X: ``T x q x d``.
        """
        # on a GPU, waiting for a condition takes longer than computing both leaves
        reached = None if X.is_cuda else torch.ones(X.shape[:-1], dtype=torch.bool)
        return self._moments(self.root, X, reached)

    def _moments(
        self,
        node: TreeNode,
        X: Tensor,
        reached: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if node.leaf is not None:
            return self._leaf_moments(node.leaf, X, reached)
        p = left_probability(X, node, self.lend)
        to_left = to_right = reached
        if reached is not None:
            to_left = reached & (p > 0)
            to_right = reached & (p < 1)
            if not to_right.any():
                return self._moments(node.children[0], X, to_left)
            if not to_left.any():
                return self._moments(node.children[1], X, to_right)
        left_mean, left = self._moments(node.children[0], X, to_left)
        right_mean, right = self._moments(node.children[1], X, to_right)
        difference = left_mean - right_mean
        first = p.unsqueeze(-1)
        second = p.unsqueeze(-2)
        both_left = torch.minimum(first, second)
        both_right = 1.0 - torch.maximum(first, second)
        spread = (both_left - first * second) * (
            difference.unsqueeze(-1) * difference.unsqueeze(-2)
        )
        covariance = both_left * left + both_right * right + spread
        return right_mean + p * difference, covariance

    # -- leave-one-out ------------------------------------------------------------

    def borrowed_prior(self) -> tuple[Tensor, Tensor, Tensor]:
        """The prior of each leaf's own data given the data it takes from other leaves.

        Leave-one-out predictions of this Gaussian are those of the leaf models.

        Returns:
            Its mean, ``n``, covariance, ``n x n``, and the leaves, ``n``.
        """
        n = len(self.y)
        mean = self.y.new_zeros(n)
        covariance = self.y.new_zeros(n, n)
        leaves = torch.empty(n, dtype=torch.long, device=self.y.device)
        for leaf, node in enumerate(self.leaves):
            if self.lend:
                borrowed = self.lent(leaf, self._factorise(leaf, node.home))
            else:
                borrowed = np.setdiff1d(self.root.rows, node.home)
            X = self.X[node.home]
            factors = self._factorise(leaf, borrowed)
            prior_mean, projected = self._project(leaf, factors, X)
            prior = self._leaf_covariance(leaf, X) - projected @ projected.mT
            rows = torch.as_tensor(node.home, device=self.y.device)
            mean = mean.index_put((rows,), prior_mean)
            covariance = covariance.index_put((rows.unsqueeze(-1), rows), prior)
            leaves[rows] = leaf
        return mean, covariance, leaves
