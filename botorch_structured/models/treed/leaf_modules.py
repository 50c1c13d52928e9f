"""Kernels, means and noise that have hyperparameters for each leaf of a partition.

They are GPyTorch modules for points in any leaves, with methods for given leaves that
inference uses: ``leaf_covariance`` of a ``TreedKernel`` is its covariance within given
leaves. Parameters have shape ``batch_shape x L ...``; where the trees of a batch differ
in size, the last leaves of the smaller ones are not used and stay at the modes of their
priors.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from botorch.models.transforms.utils import kumaraswamy_warp
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import Noise
from gpytorch.means import ConstantMean, Mean
from gpytorch.priors import NormalPrior
from linear_operator import to_dense
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor

from botorch_structured._botorch_names import GaussianLikelihoodBase
from botorch_structured.kernels.leaf_kernels import BatchKernel, take_batch
from botorch_structured.linalg.correlations import (
    CORRELATIONS,
    Correlation,
    mean_lengthscale,
    squared_distance,
)
from botorch_structured.linalg.parameters import (
    Hyperparameter,
    LogInterval,
    log_gaussian_prior,
)
from botorch_structured.models.fast_inference import refuse_paths
from botorch_structured.models.treed.growth import NOISE_FLOOR
from botorch_structured.models.treed.tree_partition import TreePartition

# The prior of noise variances: its mode and deviation, and the largest.
_NOISE = math.exp(-9.0), 3.0, 10.0


def element_of(
    values: Tensor,
    element: int,
    dims: int,
) -> Tensor:
    """One element of a batch, for values with so many dimensions of their own."""
    if values.ndim == dims:
        return values
    return values.flatten(0, -1 - dims)[element]


# -- kernels -----------------------------------------------------------------------


class TreedKernel(BatchKernel):
    r"""A kernel of its own within each leaf, and zero covariance between leaves.

    .. math:: k(x, x') = 1[j(x) = j(x')] k_{j(x)}(x, x')

    This is an approximation where leaves meet, and what BoTorch sees as the prior.

    Args:
        partition: The leaves; shared with the model.
    """

    has_lengthscale = False
    is_stationary = False

    def __init__(self, partition: TreePartition) -> None:
        super().__init__()
        # in a tuple, as the module is a child of the model and not of the kernel
        self._partition = (partition,)

    @property
    def batch_shape(self) -> torch.Size:
        """That of the trees."""
        return self._partition[0].tree_shape

    @batch_shape.setter
    def batch_shape(self, value: torch.Size) -> None:
        """Nothing: the partition knows."""

    def _take(self, where: Tensor) -> Kernel:
        taken = take_batch(self, self.batch_shape, where)
        taken._partition = (self._partition[0].take(where),)
        return taken

    @abstractmethod
    def leaf_covariance(
        self,
        element: int,
        leaves: Tensor,
        a: Tensor,
        b: Tensor,
        diag: bool = False,
    ) -> Tensor:
        """Covariances under the hyperparameters of given leaves.

        Args:
            element: Element of the (flattened) batch of trees.
            leaves: ``B``.
            a: ``B x m x d``.
            b: ``B x q x d``.
            diag: Whether to return the variances only; then ``b`` is ``a``.

        Returns:
            ``B x m x q``, or ``B x m`` if ``diag``.
        """

    def _covariance(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
        **params: Any,
    ) -> Tensor:
        """The dense definition."""
        (partition,) = self._partition
        n = x1.shape[-2]
        batch_shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        points = [x.expand(*batch_shape, *x.shape[-2:]) for x in (x1, x2)]

        def within_leaves(
            element: int,
            tree: TreePartition,
            x: Tensor,
        ) -> Tensor:
            leaf = tree.leaf_index(x)
            rows = leaf[:, :n].unsqueeze(-1)
            total = x.new_zeros(())
            for j in range(partition.num_leaves):
                leaves = torch.full((len(x),), j, device=x.device)
                part = self.leaf_covariance(element, leaves, x[:, :n], x[:, n:])
                total = torch.where(rows == j, part, total)
            return torch.where(rows == leaf[:, n:].unsqueeze(-2), total, 0.0)

        covariance = partition.by_tree(torch.cat(points, dim=-2), within_leaves)
        return covariance.diagonal(dim1=-1, dim2=-2) if diag else covariance


class TreedStationary(TreedKernel):
    """Matern-5/2 or RBF with a lengthscale per column, times a variance, in each leaf.

    Args:
        partition: The leaves.
        dim: d.
        categorical: Columns whose values are equal or not.
        warp: Whether inputs pass through a Kumaraswamy distribution function first
            (BoTorch's ``Warp``), with concentrations for each leaf and column.
    """

    # ``kind`` and its version, and its values
    _kinds: tuple[Any, list[int]] | None = None

    def __init__(
        self,
        partition: TreePartition,
        dim: int,
        categorical: Sequence[int] = (),
        warp: bool = False,
    ) -> None:
        super().__init__(partition)
        leaves = partition.num_leaves
        batch_shape = partition.tree_shape
        # the place in CORRELATIONS of each tree's correlation; part of the state
        self.register_buffer("kind", torch.zeros(batch_shape, dtype=torch.long))
        self.lengthscale_of_leaf = Hyperparameter(
            (leaves, dim),
            mode=0.4 * math.sqrt(dim),
            scale=1.0,
            bounds=(1e-2, 50.0),
            batch_shape=batch_shape,
        )
        self.variance_of_leaf = Hyperparameter(
            (leaves,),
            mode=1.0,
            scale=1.5,
            bounds=(1e-5, 1e2),
            batch_shape=batch_shape,
        )
        self.categorical = sorted(categorical)
        self.numeric = [j for j in range(dim) if j not in self.categorical]
        self.warp = warp
        if warp:
            for name in ("concentration0", "concentration1"):
                # the mode is the identity; the prior of BoTorch's tutorials
                concentration = Hyperparameter(
                    (leaves, len(self.numeric)),
                    mode=1.0,
                    scale=math.sqrt(0.75),
                    bounds=(0.1, 10.0),
                    batch_shape=batch_shape,
                )
                setattr(self, name, concentration)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kinds": None}

    @property
    def lengthscale(self) -> Tensor | None:
        """Geometric means over leaves, ``batch_shape x 1 x d``.

        By leaf they are ``lengthscale_of_leaf.value``, ``batch_shape x leaves x d``.
        """
        splits = (self._partition[0].column >= 0).sum(-1, keepdim=True)
        table = self.lengthscale_of_leaf.value
        leaves = torch.arange(table.shape[-2], device=table.device)
        unused = (leaves > splits).unsqueeze(-1)
        return mean_lengthscale(table.masked_fill(unused, torch.nan))

    def correlation(self, element: int) -> Correlation:
        """The correlation function of an element of the batch."""
        # on a GPU the host waits for values: read again only where they may differ
        kind = self.kind
        key = (id(kind), object() if kind.is_inference() else kind._version)
        if self._kinds is None or self._kinds[0] != key:
            self._kinds = (key, kind.flatten().tolist())
        return CORRELATIONS[self._kinds[1][element]]

    def _scaled(
        self,
        element: int,
        leaves: Tensor,
        X: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Warped inputs over lengthscales, and lengthscales ``B x 1 x d``."""
        scale = element_of(self.lengthscale_of_leaf.value, element, 2)[leaves]
        scale = scale.unsqueeze(-2)
        x = X
        numeric_scale = scale
        if self.categorical:
            x = X[..., self.numeric]
            numeric_scale = scale[..., self.numeric]
        if self.warp:
            c0, c1 = (
                element_of(c.value, element, 2)[leaves].unsqueeze(-2)
                for c in (self.concentration0, self.concentration1)
            )
            x = kumaraswamy_warp(x, c0=c0, c1=c1, eps=1e-7)  # eps of ``Warp``
        return x / numeric_scale, scale

    def leaf_covariance(
        self,
        element: int,
        leaves: Tensor,
        a: Tensor,
        b: Tensor,
        diag: bool = False,
    ) -> Tensor:
        """See ``TreedKernel``."""
        variance = element_of(self.variance_of_leaf.value, element, 1)[leaves]
        if diag:
            return variance.unsqueeze(-1).expand(a.shape[:-1])
        left, scale = self._scaled(element, leaves, a)
        right = left if a is b else self._scaled(element, leaves, b)[0]
        squared = squared_distance(left, right)
        for j in self.categorical:
            differ = a[..., :, None, j] != b[..., None, :, j]
            squared = squared + differ / scale[..., j : j + 1].square()
        return variance[:, None, None] * self.correlation(element).value(squared)


class TreedCopies(TreedKernel):
    """A copy of any kernel for each leaf.

    Args:
        partition: The leaves.
        kernel: What is copied; with the batch shape of the partition.
    """

    def __init__(
        self,
        partition: TreePartition,
        kernel: Kernel,
    ) -> None:
        super().__init__(partition)
        copies = [deepcopy(kernel) for _ in range(partition.num_leaves)]
        self.copies = torch.nn.ModuleList(copies)

    def leaf_covariance(
        self,
        element: int,
        leaves: Tensor,
        a: Tensor,
        b: Tensor,
        diag: bool = False,
    ) -> Tensor:
        """See ``TreedKernel``."""
        parts = []
        for leaf, x, y in zip(leaves, a, b, strict=True):
            # indexed, the kernel of an element would lose its graph
            kernel: Any = self.copies[int(leaf)]
            batch = kernel.batch_shape
            points = [p.expand(*batch, *p.shape) for p in (x, y)]
            values = to_dense(kernel(*points, diag=diag))
            parts.append(element_of(values, element, values.ndim - len(batch)))
        return torch.stack(parts)


refuse_paths(
    TreedKernel,
    "a TreedGP with more than one leaf, warp or categorical_features: leaves predict, "
    "not a prior and a correction",
)


# -- means and noise ----------------------------------------------------------------


class LeafMean(Mean):
    """A mean of its own within each leaf.

    Args:
        partition: The leaves.
        kwargs: Of the mean that it is besides.
    """

    def __init__(
        self,
        partition: TreePartition,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._partition = (partition,)

    @abstractmethod
    def leaf_mean(
        self,
        element: int,
        leaves: Tensor,
        X: Tensor,
    ) -> Tensor:
        """Means ``B x m`` under given leaves ``B`` of points ``B x m x d``."""

    def forward(self, X: Tensor) -> Tensor:
        """Means of points ``batch_shape x n x d`` in their own leaves."""

        def of_own_leaf(
            element: int,
            tree: TreePartition,
            x: Tensor,
        ) -> Tensor:
            leaf = tree.leaf_index(x)
            points = x.reshape(-1, 1, x.shape[-1])
            return self.leaf_mean(element, leaf.reshape(-1), points).reshape(leaf.shape)

        return self._partition[0].by_tree(X, of_own_leaf)


class TreedMean(LeafMean, ConstantMean):
    """A constant for each leaf, with a standard normal prior.

    Args:
        partition: The leaves.
    """

    def __init__(self, partition: TreePartition) -> None:
        trees = partition.tree_shape
        super().__init__(
            partition,
            constant_prior=NormalPrior(0.0, 1.0),
            batch_shape=torch.Size([*trees, partition.num_leaves]),
        )
        self.batch_shape = trees

    def leaf_mean(
        self,
        element: int,
        leaves: Tensor,
        X: Tensor,
    ) -> Tensor:
        """See ``LeafMean``."""
        constant = element_of(self.constant, element, 1)[leaves]
        return constant.unsqueeze(-1).expand(X.shape[:-1])


class TreedMeanCopies(LeafMean):
    """A copy of any mean for each leaf.

    Args:
        partition: The leaves.
        mean: What is copied; with the batch shape of the partition.
    """

    def __init__(
        self,
        partition: TreePartition,
        mean: Mean,
    ) -> None:
        super().__init__(partition)
        copies = [deepcopy(mean) for _ in range(partition.num_leaves)]
        self.copies = torch.nn.ModuleList(copies)

    def leaf_mean(
        self,
        element: int,
        leaves: Tensor,
        X: Tensor,
    ) -> Tensor:
        """See ``LeafMean``."""
        (partition,) = self._partition
        shape = (*partition.tree_shape, *X.shape[-2:])
        parts = [
            element_of(self.copies[int(leaf)](x.expand(shape)), element, 1)
            for leaf, x in zip(leaves, X, strict=True)
        ]
        return torch.stack(parts)


class LeafNoise(Noise):
    """A noise variance for each leaf; in gaps between leaves, what is expected.

    Args:
        partition: The leaves.
        blend: Whether leaves mix in the gaps between them.
    """

    #: Leaves of the training data, for callers that name no points (BoTorch's
    #: leave-one-out formulas).
    data_leaves: Tensor | None = None

    def __init__(
        self,
        partition: TreePartition,
        blend: bool,
    ) -> None:
        super().__init__()
        self._partition = (partition,)
        self.blend = blend
        mode, scale, highest = _NOISE
        self.noise_of_leaf = Hyperparameter(
            (partition.num_leaves,),
            mode=mode,
            scale=scale,
            bounds=(NOISE_FLOOR, highest),
            batch_shape=partition.tree_shape,
        )

    def at(self, X: Tensor) -> Tensor:
        """Variances at points ``batch_shape x n x d``."""

        def expected(
            element: int,
            tree: TreePartition,
            x: Tensor,
        ) -> Tensor:
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


def shared_noise_likelihood(batch_shape: torch.Size) -> GaussianLikelihood:
    """One noise variance for all leaves, under the same prior.

    Args:
        batch_shape: Of the model.
    """
    mode, scale, highest = _NOISE
    return GaussianLikelihood(
        noise_prior=log_gaussian_prior(mode, scale),
        noise_constraint=LogInterval(NOISE_FLOOR, highest, initial_value=mode),
        batch_shape=batch_shape,
    )
