r"""The covariance of a tree-structured GP: leaf kernels plus weights on the nodes.

.. math:: k(x, x') = 1[p = p'] K_p(x_p, x'_p) + z_p(x)^\top \Sigma_c z_{p'}(x')

(equation (4) of [Jenatton2017tree]_). ``WeightFeatures`` computes z and Sigma_c,
``LeafHyperparameters`` the lengthscales and variances of K_p, and
``TreeStructuredKernel`` the covariance.

References:

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez and M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. ICML 2017.
"""

from __future__ import annotations

__all__ = [
    "MAX_LISTED_PATHS",
    "LeafHyperparameters",
    "TreeStructuredKernel",
    "WeightFeatures",
    "check_choices",
    "take_of_path",
]

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from gpytorch import Module
from torch import Tensor
from torch.nn.functional import one_hot, pad

from botorch_structured.linalg.correlations import (
    CORRELATIONS,
    Correlation,
    squared_distance,
)
from botorch_structured.linalg.hyperparameter import Hyperparameter
from botorch_structured.models.tree.leaf_inference import (
    MAX_LISTED_PATHS,
    LeafKernel,
    LeafRows,
)
from botorch_structured.models.tree.weight_features import (
    WeightFeatures,
    one_hot_code,
)
from botorch_structured.spaces import ParameterTree
from botorch_structured.spaces.arguments import check_columns

_VARIANCES = (1e-4, 1e4)
_LENGTHSCALES = (2e-2, 2e1)
_RATIOS = (5e-2, 2e1)

_CHOICES: dict[str, tuple[str, ...]] = {
    "shared_features": ("additive", "linear", "fourier", "none"),
    "leaf_inputs": ("own", "active"),
    "leaf_hyperparameters": ("hierarchical", "tied", "independent"),
    "weight_variances": ("tied", "independent"),
    "correlation": ("matern", "rbf"),
    "leaf_kernel": ("evidence", "matern", "rbf"),
    "leaf_offset": ("random", "fixed"),
}


def check_choices(**options: object) -> None:
    """Raise a ``ValueError`` for a value that an option does not have."""
    for name, value in options.items():
        if value not in _CHOICES[name]:
            raise ValueError(
                f"{name}: expected one of {_CHOICES[name]}, got {value!r}."
            )


class Places(NamedTuple):
    """Places of rows in the tree, which depend on their decisions only.

    Attributes:
        key: Equal if and only if two rows are on the same path, ``batch_shape x n``.
        codes: Outcomes of the decisions, ``batch_shape x n x num_decisions``.
        active: Active columns, ``batch_shape x n x d``.
        nodes: The nodes on the path, ``batch_shape x n x (1 + num_edges)``.
        seen: Which of the kernel's columns K_p sees, ``batch_shape x n x k``.
        path: Number of the path, ``batch_shape x n``; None unless hyperparameters are
            held per path.
    """

    key: Tensor
    codes: Tensor
    active: Tensor
    nodes: Tensor
    seen: Tensor
    path: Tensor | None


class LeafHyperparameters(Module):
    r"""Lengthscales and outputscales of the kernels K_p.

    With one to three points a leaf cannot learn hyperparameters of its own, and leaves
    whose outcomes have different ranges cannot share them. A hierarchical prior,

    .. math:: \log l_j = \log l + \log \rho_j, \quad
        \log s_p = \log s + \sum_{e \in p} \log \delta_e

    draws :math:`\rho` of each column and :math:`\delta` of each decision on the path
    towards one. "tied" has neither, and "independent" (the paper) has a lengthscale
    for each path and column and a scale for each path. Shapes depend on the tree alone,
    never on the data. A context column has one lengthscale, which all leaves share.

    Args:
        tree: The parameter tree.
        columns: Columns that some K_p sees.
        columns_of_path: For each path the positions in ``columns`` that its K_p sees;
            None when there are too many paths to list.
        sharing: "hierarchical", "tied" or "independent".
        num_context: Number of context columns, which follow ``columns``.
        batch_shape: Batch shape of the model.
    """

    def __init__(
        self,
        tree: ParameterTree,
        columns: list[int],
        columns_of_path: list[list[int]] | None,
        sharing: Literal["hierarchical", "tied", "independent"],
        num_context: int = 0,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        self.num_columns = len(columns)
        self.sharing = sharing

        def parameter(
            count: int, mode: float, scale: float, bounds: tuple[float, float]
        ) -> Hyperparameter:
            return Hyperparameter((1, count), mode, scale, bounds, batch_shape)

        if num_context:
            self.context_lengthscale = parameter(num_context, 1.0, 0.75, _LENGTHSCALES)
        # BoTorch's prior mode grows like sqrt(d), as distances do. Here it grows like
        # d: with few data the variance is largest in the 2^d corners of the box.
        # Shorter lengthscales for one column make a search evaluate more than the two
        # ends, and with longer ones for four columns it does not evaluate all 16
        # corners.
        dimension = [max(len(columns), 1)] * len(columns)
        if columns_of_path is not None:
            dimension = [1] * len(columns)
            for positions in columns_of_path:
                for j in positions:
                    dimension[j] = max(dimension[j], len(positions))
        scale = torch.tensor(dimension, dtype=torch.float64)
        self.register_buffer("dimension_scale", scale, persistent=False)
        if sharing == "independent":
            if columns_of_path is None:
                raise ValueError(
                    'leaf_hyperparameters: expected another value than "independent", '
                    "which has parameters for each path, for more than "
                    f"{MAX_LISTED_PATHS} paths, got it for {tree.num_paths}."
                )
            # the number of the lengthscale of each path and column
            pair = torch.full((len(columns_of_path), len(columns)), -1)
            count = 0
            for p, positions in enumerate(columns_of_path):
                for j in positions:
                    pair[p, j] = count
                    count += 1
            pair[pair < 0] = count
            self.register_buffer("pair", pair, persistent=False)
            if count:
                self.lengthscale = parameter(count, 0.5, 1.0, _LENGTHSCALES)
            self.outputscale = parameter(len(columns_of_path), 1.0, 1.0, _VARIANCES)
            return
        if columns:
            self.common_lengthscale = parameter(1, 0.3, 0.5, _LENGTHSCALES)
        self.common_outputscale = parameter(1, 1.0, 1.0, _VARIANCES)
        related = sharing == "hierarchical"
        if related and len(columns) > 1:
            self.relative_lengthscale = parameter(len(columns), 1.0, 0.3, _RATIOS)
        if related and tree.num_edges > 0:
            self.relative_outputscale = parameter(tree.num_edges, 1.0, 0.3, _RATIOS)

    def inverse_lengthscale(self, path: Tensor | None) -> Tensor:
        """One over the lengthscales.

        Args:
            path: Path of each row, ``batch_shape x n``; used by "independent" only.

        Returns:
            ``batch_shape x 1 x num_columns``, or with n rows for "independent". Those
            of context columns are the last.
        """
        inverse = self._inverse_own(path)
        if not hasattr(self, "context_lengthscale"):
            return inverse
        context = self.context_lengthscale.value.reciprocal()
        batch = torch.broadcast_shapes(inverse.shape[:-1], context.shape[:-1])
        parts = [part.expand(*batch, part.shape[-1]) for part in (inverse, context)]
        return torch.cat(parts, dim=-1)

    def _inverse_own(self, path: Tensor | None) -> Tensor:
        if self.num_columns == 0:
            return self.dimension_scale.new_zeros(1, 0)
        if self.sharing == "independent":
            inverse = self.lengthscale.value.reciprocal().squeeze(-2)
            return self._of_path(pad(inverse, (0, 1))[..., self.pair], path)
        scale = self.common_lengthscale.value * self.dimension_scale
        if hasattr(self, "relative_lengthscale"):
            scale = scale * self.relative_lengthscale.value
        return scale.reciprocal()

    def scale(self, path: Tensor | None, nodes: Tensor) -> Tensor:
        """Prior variance of g_p at each row.

        Args:
            path: Path of each row, ``batch_shape x n``; used by "independent" only.
            nodes: ``batch_shape x n x (1 + num_edges)``, see ``WeightFeatures``.

        Returns:
            ``batch_shape x n``.
        """
        if self.sharing == "independent":
            return self._of_path(self.outputscale.value.mT, path).squeeze(-1)
        scale = self.common_outputscale.value.squeeze(-1)
        if hasattr(self, "relative_outputscale"):
            log_ratio = self.relative_outputscale.value.log()
            # a product over the decisions on the path
            ratio = (nodes[..., 1:].to(log_ratio) @ log_ratio.mT).squeeze(-1).exp()
            return scale * ratio
        return scale.expand(torch.broadcast_shapes(scale.shape, nodes.shape[:-1]))

    def _of_path(self, table: Tensor, path: Tensor | None) -> Tensor:
        assert path is not None, "`Places.path` of an independent kernel"
        return take_of_path(table, path, 'leaf_hyperparameters="independent"')


def take_of_path(table: Tensor, path: Tensor, option: str) -> Tensor:
    """Rows of a table per path, with the batch dimensions of both broadcast.

    Args:
        table: ``batch_shape x num_paths x k``.
        path: ``other_batch x n``.
        option: The option with parameters for each path, for the message.

    Returns:
        ``broadcast(batch_shape, other_batch) x n x k``.

    Raises:
        ValueError: For a path with an undeclared value, which is not in the table.
    """
    if path.numel() and int(path.max()) >= table.shape[-2]:
        raise ValueError(
            f"X: expected declared decision values only, as {option} has parameters "
            "for each declared path, got an undeclared one. Declare it in `values` of "
            "the ParameterTree."
        )
    if table.ndim == 2:
        return table[path]
    return one_hot(path, table.shape[-2]).to(table) @ table


class TreeStructuredKernel(LeafKernel):
    r"""Marginal covariance of a tree GP, equation (4) of [Jenatton2017tree]_.

    .. math:: k(x, x') = 1[p = p'] K_p(x_p, x'_p) + z_p(x)^\top \Sigma_c z_{p'}(x')

    where p is the path of x, K_p a stationary kernel over columns of the leaf p
    (``LeafHyperparameters``) and z_p(x) the features of the weights c on the path
    (``WeightFeatures``). The covariance is exactly invariant to the values of inactive
    columns. With context columns beta, K_p(x_p, x'_p) is multiplied by a kernel
    K_context(beta, beta') that all leaves share (section 5).

    Choose ``TreeStructuredGP``, which has this covariance and fast inference, unless
    the covariance is to be part of another model. ``SingleTaskGP(X, Y,
    covar_module=TreeStructuredKernel(tree))`` is the paper's dense baseline "marginal".

    Args:
        tree: The parameter tree.
        shared_features: Terms of numeric shared columns: "additive" (linear and
            smooth), "linear", "fourier" (smooth only) or "none".
        leaf_inputs: "own": K_p sees the columns that are active on p alone (all active
            ones if there are none); "active": all columns active on p.
        leaf_hyperparameters: "hierarchical", "tied" or "independent".
        leaf_offset: Whether the last decision of a path carries a random weight.
        node_weights: Whether root and inner nodes carry random weights; without them,
            without offsets and with ``shared_features="none"`` leaves are independent.
        weight_variances: "tied" (one prior variance per kind of weight) or
            "independent" (one per weight).
        categorical_features: Categorical columns and their known values.
        correlation: "matern" (5/2) or "rbf": that of K_p, of K_context and of the
            smooth terms.
        context_features: Context columns, see ``TreeStructuredGP``.
        batch_shape: Batch shape of the hyperparameters.
    """

    def __init__(
        self,
        tree: ParameterTree,
        shared_features: Literal["additive", "linear", "fourier", "none"] = "additive",
        leaf_inputs: Literal["own", "active"] = "own",
        leaf_hyperparameters: Literal[
            "hierarchical", "tied", "independent"
        ] = "hierarchical",
        leaf_offset: bool = True,
        node_weights: bool = True,
        weight_variances: Literal["tied", "independent"] = "tied",
        categorical_features: Mapping[int, list[float]] | None = None,
        correlation: Literal["matern", "rbf"] = "matern",
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
        context_features: Sequence[int] | None = None,
    ) -> None:
        check_choices(
            shared_features=shared_features,
            leaf_inputs=leaf_inputs,
            leaf_hyperparameters=leaf_hyperparameters,
            weight_variances=weight_variances,
            correlation=correlation,
        )
        super().__init__(batch_shape=batch_shape)
        self.tree = tree
        self.leaf_inputs = leaf_inputs
        categorical = {
            column: sorted(float(v) for v in values)
            for column, values in (categorical_features or {}).items()
            if column not in tree.decision_columns
        }
        context = _check_context(tree, context_features, categorical)
        self.context_columns = context
        shared = tree.shared_columns if shared_features != "none" else []
        numeric = [c for c in shared if c not in categorical]
        self.weights = WeightFeatures(
            tree,
            linear_columns=numeric if shared_features != "fourier" else [],
            smooth_columns=numeric if shared_features != "linear" else [],
            onehot_columns={c: categorical[c] for c in shared if c in categorical},
            node_weights=node_weights,
            leaf_offset=leaf_offset,
            tied_variances=weight_variances == "tied",
            batch_shape=batch_shape,
        )
        own = set(tree.own_columns)
        free = sorted({*own, *tree.shared_columns} - {*context})
        only_own = tuple(sorted(own)) if leaf_inputs == "own" else None
        seen = _columns_of_paths(tree, tuple(free), only_own)
        if leaf_inputs == "active" or seen is None:
            columns = free
        else:
            columns = sorted({c for path in seen for c in path})
        position = {column: j for j, column in enumerate(columns + context)}
        self.leaf_hyperparameters = LeafHyperparameters(
            tree,
            columns,
            None if seen is None else [[position[c] for c in path] for path in seen],
            leaf_hyperparameters,
            len(context),
            batch_shape,
        )
        self.columns = columns = columns + context
        numeric = [c for c in columns if c not in categorical]
        self.categorical = {c: categorical[c] for c in columns if c in categorical}
        # categorical columns once for each known value, and for all others
        encoded = numeric + [
            c for c, values in self.categorical.items() for _ in range(len(values) + 1)
        ]
        self.encoded_columns = [position[c] for c in encoded]
        # GPyTorch assumes that every buffer of a kernel has the batch shape in front
        tables = {
            "own": torch.tensor([c in own for c in columns], dtype=torch.bool),
            "context": torch.tensor([c in context for c in columns], dtype=torch.bool),
            "is_context": torch.tensor(
                [c in context for c in encoded], dtype=torch.bool
            ),
        }
        # a list as an index would be copied to the device at each call
        indices = {
            "column_index": columns,
            "numeric_index": numeric,
            "encoded_index": self.encoded_columns,
        }
        for name, index in indices.items():
            tables[name] = torch.tensor(index, dtype=torch.long)
        for column, values in self.categorical.items():
            tables[f"known_{column}"] = torch.tensor(values, dtype=torch.float64)
        for name, table in tables.items():
            self.leaf_hyperparameters.register_buffer(name, table, persistent=False)
        # the kernel chosen by evidence is in the state, as a tensor without dimensions
        self.register_buffer("correlation_index", torch.tensor(0))
        self.set_correlation(correlation)

    @property
    def num_weights(self) -> int:
        """V, the number of weights."""
        return self.weights.num_weights

    @property
    def variant(self) -> Correlation:
        """State besides hyperparameters and data that predictions depend on."""
        return self.correlation

    def set_correlation(self, name: str) -> None:
        """Choose "matern" or "rbf"; hyperparameters are left as they are."""
        check_choices(correlation=name)
        index = [c.name for c in CORRELATIONS].index(name)
        self.correlation_index.fill_(index)
        self.correlation = CORRELATIONS[index]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.correlation = CORRELATIONS[int(self.correlation_index)]

    def locate(self, X: Tensor) -> Places:
        """Where rows are in the tree.

        Args:
            X: ``batch_shape x n x d``.
        """
        tree = self.tree
        # A model checks its training data. On a GPU, checking the values of points at
        # which it predicts would make the device wait in each acquisition call.
        codes, active, key = tree.locate(X, strict=X.device.type == "cpu")
        seen = active.index_select(-1, self.leaf_hyperparameters.column_index)
        if self.leaf_inputs == "own":
            leaf = self.leaf_hyperparameters
            own = leaf.own & ~leaf.context
            alone = ~(seen & own).any(-1, keepdim=True)
            seen = seen & (own | leaf.context | alone)
        independent = self.leaf_hyperparameters.sharing == "independent"
        return Places(
            key,
            codes,
            active,
            self.weights.node_indicators(codes),
            seen,
            tree.path_index(X) if independent else None,
        )

    def rows(self, X: Tensor, places: Places | None = None) -> LeafRows:
        """See ``LeafKernel.rows``; ``places`` are those of ``locate``."""
        key, codes, active, nodes, seen, path = places or self.locate(X)
        leaf = self.leaf_hyperparameters
        parts = [X.index_select(-1, leaf.numeric_index)]
        for column in self.categorical:
            known = getattr(leaf, f"known_{column}")
            parts.append(one_hot_code(X[..., column], known) / math.sqrt(2.0))
        encoded = torch.cat(parts, dim=-1)
        seen = seen.index_select(-1, leaf.encoded_index)
        inverse = leaf.inverse_lengthscale(path).index_select(-1, leaf.encoded_index)
        scaled = torch.where(seen, encoded, 0.0) * inverse
        variance = leaf.scale(path, nodes)
        constant = self.weights.undeclared_variance(codes).to(X)
        features = self.weights(X, active, nodes, self.correlation)
        return LeafRows(key, scaled, variance, constant, features)

    def leaf_covariance(self, a: LeafRows, b: LeafRows) -> Tensor:
        """K_p, see ``LeafKernel.leaf_covariance``."""
        context = self.leaf_hyperparameters.is_context
        value = a.variance.unsqueeze(-1)
        for mask in (~context, context) if self.is_product else (None,):
            x = a.points if mask is None else a.points * mask
            y = b.points if mask is None else b.points * mask
            squared = squared_distance(x, x if a is b else y)
            value = value * self.correlation.value(squared)
        return value + a.constant.unsqueeze(-1)

    def active_weights(self, places: Places) -> Tensor:
        """See ``LeafKernel.active_weights``."""
        return self.weights.active_weights(places.active, places.nodes)

    @property
    def is_product(self) -> bool:
        """Whether K_p K_context is not one stationary kernel of all their columns.

        With RBF it is.
        """
        return bool(self.context_columns) and self.correlation.name != "rbf"


def _check_context(
    tree: ParameterTree,
    features: Sequence[int] | None,
    categorical: Mapping[int, list[float]],
) -> list[int]:
    """Numeric columns that are active everywhere, ascending."""
    columns = sorted(set(check_columns("context_features", features or (), tree.dim)))
    other = {*categorical, *tree.conditions, *tree.decision_columns}
    bad = [c for c in columns if c in other]
    if bad:
        raise ValueError(
            "context_features: expected numeric columns that are active on every path "
            f"and decide nothing, got {bad}."
        )
    return columns


@lru_cache(maxsize=32)  # for one model after the other of the same tree
def _columns_of_paths(
    tree: ParameterTree, free: tuple[int, ...], own: tuple[int, ...] | None
) -> list[list[int]] | None:
    """Columns that K_p sees on each path; None if there are too many paths.

    Args:
        tree: The paths.
        free: The columns that it may see.
        own: If given, only these are seen, on paths that have any.
    """
    if tree.num_paths > MAX_LISTED_PATHS:
        return None
    out, columns, alone = [], set(free), set(own or ())
    for path in tree.paths:
        active = [c for c in path.active_columns if c in columns]
        out.append([c for c in active if c in alone] or active)
    return out
