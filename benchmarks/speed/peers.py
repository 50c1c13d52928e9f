"""Peers of a tree model: the same covariance, written out by other means.

``TorchDense`` factorises one ``n x n`` matrix, built leaf by leaf without padding;
gradients are those of automatic differentiation. ``Raw`` does only
what no implementation that works leaf by leaf can leave out: per leaf a Cholesky
factorisation, an inverse and an exponential for each element; a factorisation and an
inverse of the weights' system.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.linalg.lapack import dpotrf, dpotri
from torch import Tensor

from botorch_structured.linalg.block_low_rank import LeafLayout
from botorch_structured.models import TreeStructuredGP


class Leaves:
    """The rows of a model's data by leaf, and the columns that each leaf uses.

    Args:
        model: A tree model whose numeric columns are on one leaf each.
    """

    def __init__(self, model: TreeStructuredGP) -> None:
        self.X, self.y = model.train_inputs[0], model.train_targets
        kernel = model.covar_module
        with torch.no_grad():
            rows = kernel.rows(self.X)
        layout = LeafLayout(rows.key)
        leaf = layout.leaf_of_row
        self.rows = [
            (leaf == p).nonzero().squeeze(-1) for p in range(layout.num_leaves)
        ]
        self.columns = [
            (rows.points[r] != 0.0).any(0).nonzero()[:, 0] for r in self.rows
        ]
        self.order = torch.cat(self.rows)  # leaf after leaf


class TorchDense:
    """The fit's objective of a model, by one dense factorisation in plain torch.

    The hyperparameters are the model's own, so that both have the same gradient and the
    same optimum.

    Args:
        mll: The objective.
    """

    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        self.mll, self.model = mll, mll.model
        self.leaves = Leaves(mll.model)

    def covariance(self) -> tuple[Tensor, Tensor]:
        """Noisy covariance of the data, leaf after leaf, and their features."""
        leaves, kernel = self.leaves, self.model.covar_module
        rows = kernel.rows(leaves.X)
        variance = rows.variance.expand(len(leaves.X))
        blocks = []
        for index, columns in zip(leaves.rows, leaves.columns, strict=True):
            points = rows.points[index.unsqueeze(-1), columns]
            square = points.square().sum(-1)
            distance = square.unsqueeze(-1) + square - 2.0 * points @ points.mT
            r = (5.0 * distance.clamp_min(1e-30)).sqrt()
            if kernel.correlation.name == "rbf":
                value = (-0.5 * distance).exp()
            else:
                value = (1.0 + r + r.square() / 3.0) * (-r).exp()
            blocks.append(variance[index[0]] * value)
        features = rows.features[leaves.order]
        noise = self.model.likelihood.noise.expand(len(leaves.X))
        dense = torch.block_diag(*blocks) + features @ features.mT
        return dense + torch.diag_embed(noise), features

    def loss(self) -> Tensor:
        """Minus the objective per point, as BoTorch's fit minimises it."""
        leaves = self.leaves
        chol = torch.linalg.cholesky(self.covariance()[0])
        residual = (leaves.y - self.model.mean_module(leaves.X))[leaves.order]
        half = torch.linalg.solve_triangular(chol, residual.unsqueeze(-1), upper=False)
        value = -0.5 * (
            half.square().sum()
            + 2.0 * chol.diagonal().log().sum()
            + len(residual) * math.log(2.0 * math.pi)
        )
        return -self.mll._add_other_terms(value, ()) / len(residual)


class DenseGP:
    """Posterior means and variances from a cached dense factorisation, in plain torch.

    Args:
        mll: The objective of a fitted model.
    """

    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        self.model = mll.model
        dense = TorchDense(mll)
        self.leaves = dense.leaves
        X = self.leaves.X[self.leaves.order]
        with torch.no_grad():
            covariance, self.features = dense.covariance()
            self.rows = self.model.covar_module.rows(X)
            self.chol = torch.linalg.cholesky(covariance)
            residual = self.leaves.y[self.leaves.order] - self.model.mean_module(X)
            self.alpha = torch.cholesky_solve(residual.unsqueeze(-1), self.chol)

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of transformed outcomes at ``t x d`` points."""
        kernel = self.model.covar_module
        with torch.no_grad():
            rows = kernel.rows(X)
            same = self.rows.key.unsqueeze(-1) == rows.key
            cross = same * kernel.leaf_covariance(self.rows, rows)
            cross = cross + self.features @ rows.features.mT
            half = torch.linalg.solve_triangular(self.chol, cross, upper=False)
            prior = rows.prior + rows.features.square().sum(-1)
            mean = self.model.mean_module(X) + (cross.mT @ self.alpha).squeeze(-1)
            return mean, prior - half.square().sum(0)


class Raw:
    """LAPACK on the blocks and the weights' system; one exponential an element.

    Logarithms of the noisy blocks are prepared, so that their exponentials are what is
    factorised. Not counted: what else makes a covariance of inputs, contractions with
    its derivatives, forming the weights' system.

    Args:
        mll: The objective at whose hyperparameters the blocks are.
    """

    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        model = mll.model
        leaves, kernel = Leaves(model), model.covar_module
        self.logs: list[np.ndarray] = []
        with torch.no_grad():
            weights = torch.eye(kernel.num_weights, dtype=leaves.X.dtype)
            noise = model.likelihood.noise
            for index, columns in zip(leaves.rows, leaves.columns, strict=True):
                rows = kernel.rows(leaves.X[index])
                points = rows.points[:, columns]
                r = math.sqrt(5.0) * torch.cdist(points, points)
                block = (1.0 + r + r.square() / 3.0) * (-r).exp()
                block = rows.variance.expand(len(index))[0] * block
                block = block + noise * torch.eye(len(index), dtype=block.dtype)
                used = (rows.features != 0.0).any(0).nonzero()[:, 0]
                F = rows.features[:, used]
                solved = torch.linalg.solve(block, F)
                weights[used.unsqueeze(-1), used] += F.mT @ solved
                self.logs.append(np.asfortranarray(block.log().numpy()))
        self.weights = np.asfortranarray(weights.numpy())
        self.buffers = {log.shape: np.empty(log.shape, order="F") for log in self.logs}

    def __call__(self) -> None:
        """The least work of one evidence with gradient."""
        for log in self.logs:
            block = self.buffers[log.shape]
            np.exp(log, out=block)
            factor, failed = dpotrf(block, lower=1, clean=0, overwrite_a=1)
            inverse, also = dpotri(factor, lower=1, overwrite_c=1)
            if failed or also:
                raise AssertionError("A block is not positive definite.")
        factor, failed = dpotrf(self.weights, lower=1, clean=0)
        inverse, also = dpotri(factor, lower=1, overwrite_c=1)
        if failed or also:
            raise AssertionError("The weights' system is not positive definite.")
