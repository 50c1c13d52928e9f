r"""The bases of this package's kernels, and the kernel of independent leaves.

.. math:: k(x, x') = 1[p = p'] K_p(x, x') + z(x)^\top z(x')

A ``LeafKernel`` defines it by what it knows of rows. ``ConditionalKernel`` has no
weights: it is zero between points on different paths.

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor, nn

from botorch_structured.linalg.blocks import LeafLayout, positions
from botorch_structured.linalg.correlations import (
    column_lengthscales,
    mean_lengthscale,
    squared_distance,
    stationary_form,
)
from botorch_structured.spaces import ParameterTree

#: Options with a parameter for each path are refused for more paths than this.
MAX_LISTED_PATHS = 4096

#: Methods that define a covariance: a subclass with another one has another covariance.
COVARIANCE = {"forward", "_covariance", "rows", "leaf_covariance", "locate"}

TupleT = TypeVar("TupleT", bound=tuple[Any, ...])
ModuleT = TypeVar("ModuleT", bound=nn.Module)


# -- batches ----------------------------------------------------------------------


class BatchKernel(Kernel):
    """A kernel whose batch can be indexed and expanded.

    ``kernel(X)[i]`` needs it. GPyTorch's own indexing takes every parameter *and every
    buffer* of a kernel to lead with the batch shape, which ``active_dims`` and tables
    do not, and leaves out modules that are not kernels.

    Subclasses define ``_covariance``, or ``forward`` if they are products or sums over
    columns, which ``last_dim_is_batch`` can take apart.
    """

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
            last_dim_is_batch: Must be False.
            params: Passed to the base kernel, if there is one.

        Returns:
            ``batch_shape x n x m``, or ``batch_shape x n`` if ``diag``.

        Raises:
            ValueError: If ``last_dim_is_batch``.
        """
        if last_dim_is_batch:
            raise ValueError(
                f"last_dim_is_batch: expected False, since a {type(self).__name__} is "
                "a function of all columns together, got True."
            )
        return self._covariance(x1, x2, diag, **params)

    def _covariance(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
        **params: Any,
    ) -> Tensor:
        """The result of ``forward``."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Kernel:
        """The kernels of a part of the batch; their parameters are copies."""
        if not self.batch_shape:
            return self
        # where there are more indices than dimensions of this batch, the IndexError
        # makes GPyTorch expand the kernel to the batch of the inputs first
        return self._take(_elements(self.batch_shape)[index])

    def expand_batch(self, *sizes: Any) -> Kernel:
        """The kernel with another batch shape, which its own broadcasts to."""
        batch = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        shape = torch.Size(batch)
        if shape == self.batch_shape:
            return self
        return self._take(_elements(self.batch_shape).expand(shape))

    def _take(self, where: Tensor) -> Self:
        """The kernels of elements of the flattened batch, of any shape."""
        return take_batch(self, self.batch_shape, where)


def same_points(x1: Tensor, x2: Tensor) -> bool:
    """Whether a covariance is asked for of points with themselves, as most are."""
    return x1 is x2 or (x1.shape == x2.shape and torch.equal(x1, x2))


def take_batch(
    module: ModuleT,
    batch_shape: torch.Size,
    where: Tensor,
) -> ModuleT:
    """A copy of a kernel with the parameters of some elements of its batch.

    Args:
        module: A kernel, GPyTorch's or of this package.
        batch_shape: What the batch shapes of all its parts broadcast to.
        where: Elements of the flattened ``batch_shape``, ``new_shape``.

    Returns:
        One with batch shape ``new_shape``.
    """
    taken = deepcopy(module)
    for part, old in zip(taken.modules(), module.modules(), strict=True):
        is_kernel = isinstance(part, Kernel)
        # a distribution (each prior is one) has a batch shape that cannot be set
        if not (is_kernel or "batch_shape" in vars(part)):
            continue
        shape: Any = old.batch_shape
        values: list[Tensor] = [*part.parameters(recurse=False)]
        for name, buffer in part.named_buffers(recurse=False):
            shared = name in ("active_dims", "fill")
            if shape and not shared and _leads(buffer, shape):
                values.append(buffer)
        for value in values:
            leading = len(shape) if _leads(value, shape) else 0
            rest = value.shape[leading:]
            full = value.data.expand((*batch_shape, *rest)).reshape(-1, *rest)
            value.data = full[where.to(value.device)]
        setattr(
            part,
            "_batch_shape" if is_kernel else "batch_shape",
            where.shape,
        )
    return taken


def _leads(value: Tensor, batch_shape: torch.Size) -> bool:
    return value.shape[: len(batch_shape)] == batch_shape


def _elements(shape: torch.Size) -> Tensor:
    """The number of each element of a batch, ``shape``."""
    return torch.arange(shape.numel()).reshape(shape)


def redefined_names(kind: type) -> frozenset[str]:
    """Names that classes outside of this package define in front of its own.

    Args:
        kind: A class of this package, or a subclass of one.
    """
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("botorch_structured."):
            break
        names.update(vars(base))
    return frozenset(names)


# -- leaves -----------------------------------------------------------------------


class LeafRows(NamedTuple):
    """Everything that the covariance of some inputs is computed from.

    Attributes:
        key: Equal if and only if two rows are on the same leaf, ``batch_shape x n``.
        points: Inputs of K_p, ``batch_shape x n x e``.
        variance: Prior variance of g_p, ``batch_shape x n``.
        constant: Variance of an undeclared path's own offset, ``batch_shape x n``.
        features: Scaled weight features, ``batch_shape x n x V``.
    """

    key: Tensor
    points: Tensor
    variance: Tensor
    constant: Tensor
    features: Tensor

    @property
    def prior(self) -> Tensor:
        """Prior variance without the part of the weights."""
        return self.variance + self.constant


def selected(rows: TupleT, index: Any) -> TupleT:
    """Some rows of a tuple of tensors, each ``n`` (``x k``) or None."""
    make: Any = type(rows)
    parts = []
    for part in rows:
        parts.append(None if part is None else part[index])
    chosen: TupleT = make(*parts)
    return chosen


class Structure(NamedTuple):
    """The leaves of a data set.

    Attributes:
        places: Of the rows, of a type that the kernel defines.
        layout: The rows grouped by leaf.
        weights: Which weights the leaves of each bucket have, ``B x D``; V if unused.
        rows: Those of all buckets, one after the other, ``m``.
        row_places: Their places.
        leaf_places: Those of a row of each leaf.
    """

    places: Any
    layout: LeafLayout
    weights: list[Tensor]
    rows: Tensor
    row_places: Any
    leaf_places: Any


class LeafKernel(BatchKernel):
    """A covariance of independent leaves plus a few weights that couple them."""

    has_lengthscale = False
    is_stationary = False
    tree: ParameterTree

    #: V, the number of weights.
    num_weights = 0
    #: ``values`` where they do not change any more, as in a solver.
    fixed_values: Any = None
    #: Methods that a class outside of this package defines anew.
    redefined: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.redefined = redefined_names(cls)

    @property
    def is_by_leaf(self) -> bool:
        """Whether ``rows`` and ``leaf_covariance`` define ``forward``.

        A subclass may override ``forward``: its models are evaluated densely.
        """
        return self.redefined.isdisjoint(("forward", "_covariance"))

    def __copy__(self) -> Self:
        # GPyTorch's ``__setstate__`` would have both share their attributes
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    @abstractmethod
    def column_lengthscales(self) -> Tensor:
        """Lengthscales of all paths, or of each, ``batch_shape x (1 or m) x d``.

        NaN where there is none on any path.
        """

    def path_lengthscales(self) -> Tensor:
        """Lengthscales by path, ``batch_shape x num_paths x d``.

        Paths are in the order of ``tree.paths``; NaN where a column is inactive or has
        no lengthscale.

        Raises:
            ValueError: There are more than 4,096 paths.
        """
        table = self.column_lengthscales()
        active = self.tree.active_mask(self.tree.path_points).to(table.device)
        return torch.where(active, table, torch.nan)

    @property
    def lengthscale(self) -> Tensor | None:
        """Lengthscales by column, ``batch_shape x 1 x d``; None if there is none.

        The geometric mean over paths. It is finite: a column without a lengthscale, as
        a decision, has the geometric mean of the other columns.
        """
        return mean_lengthscale(self.column_lengthscales())

    @abstractmethod
    def locate(self, X: Tensor) -> Any:
        """Where rows ``batch_shape x n x d`` are in the tree: a tuple with ``key``."""

    def values(self) -> Any:
        """All that ``rows`` computes of hyperparameters alone."""
        return None

    @abstractmethod
    def rows(
        self,
        X: Tensor,
        places: Any = None,
    ) -> LeafRows:
        """Everything that the covariance is computed from, row by row.

        Args:
            X: ``batch_shape x n x d``.
            places: From ``locate``, if known.
        """

    @abstractmethod
    def leaf_covariance(
        self,
        a: LeafRows,
        b: LeafRows,
    ) -> Tensor:
        """K_p of rows that are on one leaf, ``batch_shape x n x m``."""

    def active_weights(self, places: Any) -> Tensor:
        """Which weights can differ from zero at ``n`` places, ``n x V``."""
        return torch.zeros(len(places.key), 0, dtype=torch.bool)

    def structure(self, X: Tensor) -> Structure:
        """The leaves of a data set.

        Args:
            X: ``n x d``.
        """
        places = self.locate(X)
        layout = LeafLayout(places.key)
        leaf_places = selected(places, layout.representative)
        active = self.active_weights(leaf_places)
        weights = []
        parts = []
        for bucket in layout.buckets:
            used = positions(active[bucket.leaves.to(active.device)])
            weights.append(used.to(X.device))
            parts.append(bucket.rows.flatten())
        rows = torch.cat(parts)
        return Structure(
            places,
            layout,
            weights,
            rows,
            selected(places, rows),
            leaf_places,
        )

    def _covariance(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
        **params: Any,
    ) -> Tensor:
        """The dense definition."""
        a = self.rows(x1)
        b = a if same_points(x1, x2) else self.rows(x2)
        if diag and b is a:
            return a.prior + a.features.square().sum(-1)
        same = a.key.unsqueeze(-1) == b.key.unsqueeze(-2)
        covariance = torch.where(same, self.leaf_covariance(a, b), 0.0)
        covariance = covariance + a.features @ b.features.mT
        return covariance.diagonal(dim1=-1, dim2=-2) if diag else covariance


# -- zero covariance across paths ---------------------------------------------------


class _Places(NamedTuple):
    """Path and active columns of rows, ``batch_shape x n`` (``x d``)."""

    key: Tensor
    active: Tensor


class ConditionalKernel(LeafKernel):
    r"""The base kernel between points on the same path, exactly zero across paths.

    Wrap it around any kernel where nothing should be learned about one branch of a
    space from another ([Levesque2017conditional]_, equation (8)):

    .. math:: k_C(x, x') = k(x, x') \text{ if } x_c = x'_c \;\forall c \in C,
        \text{ else } 0

    where C are the *active* decisions. Two values of a categorical decision are equal
    if they are the same one; two values of a numeric decision, if no condition tells
    them apart (they are in the same interval). An active decision never equals an
    inactive one. Like ``ScaleKernel`` it is a decorator, and can be used on its own::

        base = ScaleKernel(MaternKernel(ard_num_dims=d))
        SingleTaskGP(X, Y, covar_module=ConditionalKernel(base, tree))

    The base kernel sees inactive columns at ``fill``, so that the covariance is exactly
    invariant to their values. The covariance matrix is block-diagonal in the paths
    (equations (9) and (10)), which makes the inference of ``ConditionalGP`` fast.

    Args:
        base_kernel: Any kernel with one output; its ``active_dims`` are honoured.
        tree: Which columns are active where.
        fill: Value of inactive columns for the base kernel: a number or ``d`` of them.
            Stationary kernels do not depend on it.

    Attributes:
        fill: Values of inactive columns for the base kernel, ``d``.

    Raises:
        ValueError: If ``tree`` is not a ``ParameterTree``, ``fill`` or ``active_dims``
            do not fit it, or the base kernel has derivatives as further outputs.
    """

    fill: Tensor

    def __init__(
        self,
        base_kernel: Kernel,
        tree: ParameterTree,
        fill: float | Tensor = 0.5,
    ) -> None:
        if not isinstance(base_kernel, Kernel):
            raise ValueError(
                "base_kernel: expected a GPyTorch kernel, got "
                f"{type(base_kernel).__name__}."
            )
        if not isinstance(tree, ParameterTree):
            raise ValueError(
                "tree: expected a ParameterTree (or ParameterTree(d, dependencies)), "
                f"got {type(tree).__name__}."
            )
        columns = base_kernel.active_dims
        if columns is not None and not (columns < tree.dim).all():
            raise ValueError(
                f"base_kernel: expected active_dims below {tree.dim}, the number of "
                f"columns of the tree, got {columns.tolist()}."
            )
        filled = torch.as_tensor(fill, dtype=torch.float64)
        if filled.shape not in (torch.Size(), torch.Size([tree.dim])):
            raise ValueError(
                f"fill: expected a number or {tree.dim} numbers, got shape "
                f"{tuple(filled.shape)}."
            )
        super().__init__()
        self.base_kernel = base_kernel
        self.tree = tree
        if base_kernel.num_outputs_per_input(*[torch.zeros(1, tree.dim)] * 2) != 1:
            raise ValueError(
                "base_kernel: expected one output per input, got the derivatives too "
                f"({type(base_kernel).__name__})."
            )
        values = filled.expand(tree.dim).clone()
        self.register_buffer("fill", values, persistent=False)

    def column_lengthscales(self) -> Tensor:
        """See ``LeafKernel.column_lengthscales``."""
        return column_lengthscales(self.base_kernel, self.tree.dim).unsqueeze(-2)

    def locate(self, X: Tensor) -> _Places:
        """Where rows ``batch_shape x n x d`` are in the tree."""
        # A model checks its training data; on a GPU looking at the values of what it
        # predicts would make the device wait in each acquisition call.
        _, active, key = self.tree.locate(X, strict=X.device.type == "cpu")
        return _Places(key, active)

    def select(self, imputed: Tensor) -> Tensor:
        """Columns that the base kernel sees, ``batch_shape x n x e``."""
        columns = self.base_kernel.active_dims
        return imputed if columns is None else imputed.index_select(-1, columns)

    def rows(
        self,
        X: Tensor,
        places: Any = None,
    ) -> LeafRows:
        """See ``LeafKernel.rows``; ``places`` are those of ``locate``."""
        places = self.locate(X) if places is None else places
        imputed = torch.where(places.active, X, self.fill.to(X))
        points = self.select(imputed)
        form = stationary_form(self.base_kernel)
        if form is None:
            prior = to_dense(self.base_kernel(imputed, diag=True))
        else:
            points = points / form.lengthscale
            prior = form.variance.unsqueeze(-1).expand(points.shape[:-1])
        features = points.new_zeros(*points.shape[:-1], 0)
        return LeafRows(
            places.key,
            points,
            prior,
            torch.zeros_like(prior),
            features,
        )

    def leaf_covariance(
        self,
        a: LeafRows,
        b: LeafRows,
    ) -> Tensor:
        """The base kernel: blocks K_cond of (9), see ``LeafKernel.leaf_covariance``."""
        form = stationary_form(self.base_kernel)
        if form is None:
            return to_dense(self.base_kernel.forward(a.points, b.points))
        # unlike GPyTorch's it has second derivatives
        value = form.correlation.value(squared_distance(a.points, b.points))
        return a.variance.unsqueeze(-1) * value
