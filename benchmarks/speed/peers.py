"""A peer of a tree model: the same covariance, factorised as one ``n x n`` matrix."""

from __future__ import annotations

import math

import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.linalg.blocks import LeafLayout
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
