"""What fast inference asks of a kernel: independent leaves, and weights across them."""

from __future__ import annotations

__all__ = ["LeafKernel", "LeafRows"]

from abc import abstractmethod
from typing import Any, Protocol

from torch import Tensor

from botorch_structured.inference.evidence import BlockTensors
from botorch_structured.kernels.batch import BatchKernel
from botorch_structured.kernels.structure import Structure, same_points
from botorch_structured.spaces import ParameterTree


class LeafRows(Protocol):
    """What a kernel knows of some inputs."""

    @property
    def key(self) -> Tensor:
        """Equal if and only if two rows are on the same leaf, ``batch_shape x n``."""

    @property
    def points(self) -> Tensor:
        """What covariances within a leaf are made of, ``batch_shape x n x e``."""

    @property
    def features(self) -> Tensor:
        """Scaled weight features, ``batch_shape x n x V``."""

    @property
    def prior(self) -> Tensor:
        """Prior variance of a leaf's own part, ``batch_shape x n``."""


class LeafKernel(BatchKernel):
    r"""A covariance of independent leaves plus a few weights that couple them.

    .. math:: k(x, x') = 1[p = p'] K_p(x, x') + z(x)^\top z(x')

    ``forward`` is the one, dense definition. ``structure`` and ``block_tensors`` say
    the same leaf by leaf, which is what ``StructuredInference`` works with.
    """

    has_lengthscale = False
    is_stationary = False
    tree: ParameterTree

    @property
    def is_by_leaf(self) -> bool:
        """Whether ``block_tensors`` say what ``forward`` does.

        Of a subclass of a kernel they are what its parent says: it is evaluated by its
        ``forward``, unless it has its own.
        """
        return "block_tensors" in vars(type(self))

    @property
    def num_weights(self) -> int:
        """V, the number of weights."""
        return 0

    @property
    def variant(self) -> object:
        """What, besides hyperparameters and data, a prediction was made with."""
        return None

    @abstractmethod
    def rows(self, X: Tensor, places: Any = None) -> LeafRows:
        """Everything the covariance is made of, row by row.

        Args:
            X: ``batch_shape x n x d``.
            places: Where the rows are, from ``Structure.places``, if known.
        """

    @abstractmethod
    def leaf_covariance(self, a: Any, b: Any) -> Tensor:
        """1[p = p'] K_p of rows: what does not go through the weights."""

    @abstractmethod
    def structure(self, X: Tensor) -> Structure:
        """The leaves of a data set.

        Args:
            X: ``n x d``.
        """

    @abstractmethod
    def block_tensors(self, X: Tensor, structure: Structure) -> list[BlockTensors]:
        """The leaves of ``X`` in buckets, differentiable in every hyperparameter.

        Args:
            X: ``n x d``.
            structure: From ``structure``, of inputs with the same decisions.
        """

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        """The dense definition.

        Args:
            x1: ``batch_shape x n x d``.
            x2: ``batch_shape x m x d``.
            diag: Whether to return the diagonal only.
            params: Not used; GPyTorch passes what its own kernels know.

        Returns:
            ``batch_shape x n x m``, or ``batch_shape x n`` if ``diag``.
        """
        if params.get("last_dim_is_batch"):
            raise ValueError(
                f"{type(self).__name__}: expected last_dim_is_batch=False, since "
                "leaves are a matter of all columns."
            )
        a = self.rows(x1)
        if diag:
            return a.prior + a.features.square().sum(-1)
        b = a if same_points(x1, x2) else self.rows(x2)
        return self.leaf_covariance(a, b) + a.features @ b.features.mT
