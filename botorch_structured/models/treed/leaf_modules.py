"""Means and noise that have hyperparameters for each leaf of a partition.

They are GPyTorch modules for points in any leaves, with methods for given leaves that
inference uses; see ``TreedKernel``.
"""

from __future__ import annotations

__all__ = [
    "LeafNoise",
    "LeafNoiseLikelihood",
    "TreedMean",
    "TreedMeanCopies",
    "shared_noise_likelihood",
]

import math
from copy import deepcopy
from typing import Any

import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import Noise
from gpytorch.means import Mean
from gpytorch.priors import NormalPrior
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor

from botorch_structured._botorch_names import GaussianLikelihoodBase
from botorch_structured.linalg.hyperparameter import (
    Hyperparameter,
    LogInterval,
    log_gaussian_prior,
    reads,
)
from botorch_structured.models.treed.kernel import element_of, place_of
from botorch_structured.models.treed.tree_partition import TreePartition

_MAX_NOISE = 1e1
_NOISE_MODE, _NOISE_SCALE = math.exp(-9.0), 3.0


class TreedMean(Mean):
    """A constant for each leaf, with a standard normal prior.

    Args:
        partition: The leaves.
    """

    def __init__(self, partition: TreePartition) -> None:
        super().__init__()
        self._partition = (partition,)
        self.batch_shape = partition.tree_shape
        shape = (*partition.tree_shape, partition.num_leaves)
        start = torch.zeros(shape, dtype=torch.float64)
        self.register_parameter("constant", torch.nn.Parameter(start))
        self.register_prior(
            "constant_prior", NormalPrior(0.0, 1.0), read_constant, _set_constant
        )

    def leaf_mean(self, element: int, leaves: Tensor, X: Tensor) -> Tensor:
        """Means ``B x m`` under given leaves ``B`` of points ``B x m x d``."""
        return (
            element_of(self.constant, element, 1)[leaves]
            .unsqueeze(-1)
            .expand(X.shape[:-1])
        )

    def forward(self, X: Tensor) -> Tensor:
        """Means of points ``batch_shape x n x d`` in their own leaves."""
        (partition,) = self._partition
        leaf = partition.leaf_index(X)
        constant = self.constant.unsqueeze(-2).expand(*leaf.shape, -1)
        return constant.gather(-1, leaf.unsqueeze(-1)).squeeze(-1)


@reads("constant")
def read_constant(module: TreedMean) -> Tensor:
    return module.constant


def _set_constant(module: TreedMean, value: Tensor | float) -> None:
    value = torch.as_tensor(value).to(module.constant)
    module.initialize(constant=value.expand_as(module.constant))


class TreedMeanCopies(Mean):
    """A copy of any mean for each leaf.

    Args:
        partition: The leaves.
        mean: What is copied; with the batch shape of the partition.
    """

    def __init__(self, partition: TreePartition, mean: Mean) -> None:
        super().__init__()
        self._partition = (partition,)
        copies = [deepcopy(mean) for _ in range(partition.num_leaves)]
        self.copies = torch.nn.ModuleList(copies)

    def leaf_mean(self, element: int, leaves: Tensor, X: Tensor) -> Tensor:
        """See ``TreedMean``."""
        (partition,) = self._partition
        place = place_of(element, partition.tree_shape)
        shape = (*partition.tree_shape, *X.shape[-2:])
        parts = [
            self.copies[int(leaf)](x.expand(shape))[place]
            for leaf, x in zip(leaves, X, strict=True)
        ]
        return torch.stack(parts)

    def forward(self, X: Tensor) -> Tensor:
        """Means of points ``batch_shape x n x d`` in their own leaves."""
        (partition,) = self._partition
        leaf = partition.leaf_index(X)
        X = X.expand(*leaf.shape, X.shape[-1])
        values = torch.stack([mean(X) for mean in self.copies], dim=-1)
        return values.gather(-1, leaf.unsqueeze(-1)).squeeze(-1)


class LeafNoise(Noise):
    """A noise variance for each leaf; in gaps between leaves, what is expected.

    Args:
        partition: The leaves.
        floor: Smallest variance.
        blend: Whether leaves mix in the gaps between them.
    """

    #: Leaves of the training data, for callers that name no points (BoTorch's
    #: leave-one-out formulas).
    data_leaves: Tensor | None = None

    def __init__(self, partition: TreePartition, floor: float, blend: bool) -> None:
        super().__init__()
        self._partition = (partition,)
        self.blend = blend
        self.noise_of_leaf = Hyperparameter(
            (partition.num_leaves,),
            mode=_NOISE_MODE,
            scale=_NOISE_SCALE,
            bounds=(floor, _MAX_NOISE),
            batch_shape=partition.tree_shape,
        )

    def share(self, partition: TreePartition) -> None:
        """Have these leaves, of the same number, instead of a copy of them."""
        self._partition = (partition,)

    def leaf_noise(self, element: int, leaves: Tensor | slice) -> Tensor:
        """Variances of given leaves, ``B``."""
        return element_of(self.noise_of_leaf.value, element, 1)[leaves]

    def at(self, X: Tensor) -> Tensor:
        """Variances at points ``batch_shape x n x d``."""

        def expected(element: int, tree: TreePartition, x: Tensor) -> Tensor:
            weights = tree.leaf_probabilities(x, self.blend)
            values = element_of(self.noise_of_leaf.value, element, 1)
            return weights @ values[: weights.shape[-1]]

        return self._partition[0].by_tree(X, expected)

    def forward(
        self,
        *params: Any,
        shape: torch.Size | None = None,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> LinearOperator:
        """The noise of points, as a diagonal.

        Args:
            params: The points, ``batch_shape x n x d``; if none, the training data.
            shape: Of the diagonal.
            noise: Replaces the noise.
            kwargs: Not used.

        Raises:
            ValueError: If there are no points, and these cannot be the training data.
        """
        if noise is not None:
            return DiagLinearOperator(noise)
        points = params[0] if params else None
        if isinstance(points, (list, tuple)):
            points = points[0]
        if points is not None:
            values = self.at(points)
        else:
            leaves = self.data_leaves
            if leaves is None or shape is None or leaves.shape[-1] != shape[-1]:
                raise ValueError(
                    "params: expected the points where the noise is asked for, as it "
                    "differs between leaves; got none."
                )
            table = self.noise_of_leaf.value.unsqueeze(-2).expand(*leaves.shape, -1)
            values = table.gather(-1, leaves.unsqueeze(-1)).squeeze(-1)
        if shape is not None:
            values = values.expand(torch.broadcast_shapes(shape, values.shape))
        return DiagLinearOperator(values)


class LeafNoiseLikelihood(GaussianLikelihoodBase):
    """Gaussian noise with a variance for each leaf, see ``LeafNoise``."""

    noise_covar: LeafNoise

    @property
    def noise(self) -> Tensor:
        """The variances, ``batch_shape x L``."""
        return self.noise_covar.noise_of_leaf.value


def shared_noise_likelihood(
    floor: float, batch_shape: torch.Size
) -> GaussianLikelihood:
    """One noise variance for all leaves, under the same prior.

    Args:
        floor: Smallest variance.
        batch_shape: Of the model.
    """
    return GaussianLikelihood(
        noise_prior=log_gaussian_prior(_NOISE_MODE, _NOISE_SCALE),
        noise_constraint=LogInterval(floor, _MAX_NOISE, initial_value=_NOISE_MODE),
        batch_shape=batch_shape,
    )
