r"""The covariance of a tree-structured GP: leaf kernels plus weights on the nodes.

.. math:: k(x, x') = 1[p = p'] K_p(x_p, x'_p) + z_p(x)^\top \Sigma_c z_{p'}(x')

(equation (4) of [Jenatton2017tree]_). ``WeightFeatures`` computes z and Sigma_c,
``LeafHyperparameters`` the lengthscales and variances of K_p, and
``TreeStructuredKernel`` the covariance. ``PathMean`` has the free offsets b_p.

References:

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez and M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. ICML 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from gpytorch import Module
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from linear_operator import to_dense
from torch import Tensor
from torch.nn.functional import one_hot, pad
from torch.quasirandom import SobolEngine

from botorch_structured._botorch_names import functorch_is_active
from botorch_structured.kernels.leaf_kernels import (
    MAX_LISTED_PATHS,
    LeafKernel,
    LeafRows,
    take_batch,
)
from botorch_structured.linalg.correlations import (
    CORRELATIONS,
    Correlation,
    column_lengthscales,
    squared_distance,
)
from botorch_structured.linalg.parameters import Hyperparameter
from botorch_structured.spaces import ParameterTree
from botorch_structured.spaces.arguments import check_columns

_VARIANCES = (1e-4, 1e4)
_LENGTHSCALES = (2e-2, 2e1)
_RATIOS = (5e-2, 2e1)
# At so many points a kernel of the caller's own is looked at.
_POINTS = 16

_integers = partial(torch.tensor, dtype=torch.long)

#: A kernel, or what makes one for columns of the inputs.
KernelOrFactory: TypeAlias = Kernel | Callable[[list[int]], Kernel]

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


class LeafValues(NamedTuple):
    """Hyperparameters as covariances are computed from them.

    Attributes:
        inverse_lengthscale: ``batch_shape x 1 x k``, or one row for each path; those of
            context columns are the last.
        outputscale: ``batch_shape x 1``, or one for each path.
        log_ratio: log delta of each edge, ``batch_shape x 1 x num_edges``, or None.
        weight_scale: Prior standard deviations of the weights, ``batch_shape x V``.
        smooth_lengthscale: Of the smooth terms, ``batch_shape x 1 x T``, or None.
        offset_variance: Of the offset of an undeclared value, ``batch_shape x 1``.
    """

    inverse_lengthscale: Tensor
    outputscale: Tensor
    log_ratio: Tensor | None
    weight_scale: Tensor
    smooth_lengthscale: Tensor | None
    offset_variance: Tensor


class WeightFeatures(Module):
    r"""Scaled features F of the weights c, so that z' Sigma_c z' = F F'.

    z_p(x) has, in this order (sections 2.1, 2.4 and 4.3),

    * a one for every node on the path: the root, every value of a decision, and the
      last of these once more, as an offset of the leaf itself;
    * the value of every active numeric shared column ("linear");
    * a one-hot code of every active categorical shared column;
    * sqrt(v / m) [cos(w_i x / l), sin(w_i x / l)] of every active numeric shared column
      ("smooth"): a stationary function in a finite Fourier basis.

    Args:
        tree: The parameter tree.
        linear_columns: Numeric shared columns with a linear term.
        smooth_columns: Numeric shared columns with a smooth term.
        onehot_columns: Categorical shared columns and their known values; an unknown
            value has a feature of its own, common to all unknown values.
        node_weights: Whether root and inner nodes carry weights.
        leaf_offset: Whether the last decision of a path carries one.
        tied_variances: Whether all weights of one kind share their prior variance.
        batch_shape: Batch shape of the model.
    """

    #: Frequencies m of each smooth term (two weights each).
    num_frequencies = 8

    def __init__(
        self,
        tree: ParameterTree,
        linear_columns: list[int],
        smooth_columns: list[int],
        onehot_columns: dict[int, list[float]],
        node_weights: bool,
        leaf_offset: bool,
        tied_variances: bool,
        batch_shape: torch.Size,
    ) -> None:
        super().__init__()
        self.tree = tree
        self.linear_columns = linear_columns
        self.smooth_columns = smooth_columns
        self.onehot_columns = onehot_columns
        leaf_edges = tree.leaf_edges
        inner = (~leaf_edges).nonzero().flatten().tolist() if node_weights else []
        outer = leaf_edges.nonzero().flatten().tolist() if leaf_offset else []
        # node 0 is the root, which exists if there are decisions
        has_root = node_weights and tree.num_edges > 0
        nodes = ([0] if has_root else []) + [1 + e for e in inner + outer]
        self.num_offsets = len(outer)
        self.num_inner = len(nodes) - len(outer)

        # kind of weight: weights with each of its priors
        waves = 2 * self.num_frequencies
        counts_by_kind = {
            "node": [1] * self.num_inner,
            "offset": [1] * len(outer),
            "linear": [1] * len(linear_columns),
            "onehot": [len(values) + 1 for values in onehot_columns.values()],
            "smooth": [waves] * len(smooth_columns),
        }
        self.kinds: list[str] = []
        # the prior of each weight, among all of them
        prior_index: list[int] = []
        num_priors = 0
        for kind, counts in counts_by_kind.items():
            if not counts:
                continue
            self.kinds.append(kind)
            size = 1 if tied_variances else len(counts)
            for i, count in enumerate(counts):
                prior_index += [num_priors + min(i, size - 1)] * count
            num_priors += size
            shape = (1, size)
            mode = 1.0 if kind == "linear" else 0.5
            variance = Hyperparameter(shape, mode, 1.0, _VARIANCES, batch_shape)
            self.add_module(f"{kind}_variance", variance)
        if smooth_columns:
            shape = (1, len(smooth_columns))
            self.smooth_lengthscale = Hyperparameter(
                shape,
                1.0,
                0.75,
                _LENGTHSCALES,
                batch_shape,
            )
        self.num_weights = len(prior_index)

        sizes = [len(tree.decision_values[c]) for c in tree.decision_columns]
        tables = {
            "node_columns": _integers(nodes),
            "num_outcomes": _integers(sizes),
            "edge_offsets": _integers(tree.edge_offsets),
            # a list as an index would be copied to the device at each call
            "linear_index": _integers(linear_columns),
            "smooth_index": _integers(smooth_columns),
            "prior_index": _integers(prior_index),
        }
        for column, values in onehot_columns.items():
            tables[f"known_{column}"] = torch.tensor(values, dtype=torch.float64)
        for correlation in CORRELATIONS:
            name = f"{correlation.name}_frequencies"
            tables[name] = _frequencies(correlation, self.num_frequencies)
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def node_indicators(self, codes: Tensor) -> Tensor:
        """Which nodes are on each row's path: the root, then every edge of the tree.

        Args:
            codes: Outcomes of the decisions, ``batch_shape x n x num_decisions``.

        Returns:
            Booleans, ``batch_shape x n x (1 + num_edges)``.
        """
        num_edges = self.tree.num_edges
        shape = (*codes.shape[:-1], num_edges + 2)
        out = torch.zeros(shape, dtype=torch.bool, device=codes.device)
        out[..., 0] = True
        declared = (codes >= 0) & (codes < self.num_outcomes)
        edge = torch.where(
            declared,
            codes + (1 + self.edge_offsets),
            num_edges + 1,
        )
        out.scatter_(-1, edge, True)
        return out[..., : num_edges + 1]

    def forward(
        self,
        X: Tensor,
        active: Tensor,
        nodes: Tensor,
        correlation: Correlation,
        values: LeafValues,
    ) -> Tensor:
        """Scaled features.

        Args:
            X: ``batch_shape x n x d``.
            active: Active columns, ``batch_shape x n x d``.
            nodes: ``batch_shape x n x (1 + num_edges)`` from ``node_indicators``.
            correlation: The correlation function of the smooth terms.
            values: The hyperparameters.

        Returns:
            ``batch_shape x n x num_weights``.
        """
        base = self.still(X, active, nodes)
        if values.smooth_lengthscale is not None:
            frequency = getattr(self, f"{correlation.name}_frequencies")
            present = active.index_select(-1, self.smooth_index)
            x = torch.where(active, X, 0.0).index_select(-1, self.smooth_index)
            phase = (x / values.smooth_lengthscale).unsqueeze(-1) * frequency
            waves = torch.cat([phase.cos(), phase.sin()], dim=-1)
            waves = (waves * present.unsqueeze(-1)).flatten(-2)
            base = torch.cat(_expanded(base, waves), dim=-1)
        return base * values.weight_scale.unsqueeze(-2)

    def still(
        self,
        X: Tensor,
        active: Tensor,
        nodes: Tensor,
    ) -> Tensor:
        """The first features, those without waves, over their standard deviations.

        Args:
            X: ``batch_shape x n x d``.
            active: Active columns, ``batch_shape x n x d``.
            nodes: ``batch_shape x n x (1 + num_edges)``.
        """
        parts = [nodes[..., self.node_columns].to(X)]
        parts.append(torch.where(active, X, 0.0).index_select(-1, self.linear_index))
        for column in self.onehot_columns:
            code = one_hot_code(X[..., column], getattr(self, f"known_{column}"))
            parts.append(code * active[..., column, None])
        return torch.cat(parts, dim=-1)

    def prior_scale(self) -> Tensor:
        """Prior standard deviation of each weight, ``batch_shape x num_weights``."""
        parts = []
        for kind in self.kinds:
            variance = getattr(self, f"{kind}_variance").value.squeeze(-2)
            if kind == "smooth":
                variance = variance / self.num_frequencies
            parts.append(variance)
        if not parts:
            return self.matern_frequencies.new_zeros(0)
        return torch.cat(parts, dim=-1).sqrt().index_select(-1, self.prior_index)


def _expanded(*parts: Tensor) -> list[Tensor]:
    """Parts with the same dimensions before the last one."""
    batch = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return [part.expand(*batch, part.shape[-1]) for part in parts]


def one_hot_code(values: Tensor, categories: Tensor) -> Tensor:
    """One-hot code with a last place for unknown values, ``... x (len(known) + 1)``."""
    code = (values.unsqueeze(-1) == categories).to(values)
    return torch.cat([code, 1.0 - code.sum(-1, keepdim=True)], dim=-1)


def _frequencies(correlation: Correlation, count: int) -> Tensor:
    """Stratified frequencies of a one-dimensional spectrum.

    The quantiles at the middles of ``count`` equal strata of its positive half, in
    place of random Fourier features.
    """
    levels = [0.5 + (i + 0.5) / (2 * count) for i in range(count)]
    quantiles = [correlation.spectral_quantile(p) for p in levels]
    return torch.tensor(quantiles, dtype=torch.float64)


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
        lengthscales: False where a kernel with parameters of its own sees ``columns``.
    """

    def __init__(
        self,
        tree: ParameterTree,
        columns: list[int],
        columns_of_path: list[list[int]] | None,
        sharing: Literal["hierarchical", "tied", "independent"],
        num_context: int = 0,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
        lengthscales: bool = True,
    ) -> None:
        super().__init__()
        self.num_columns = len(columns)
        self.sharing = sharing

        prior = partial(Hyperparameter, batch_shape=batch_shape)

        if num_context:
            self.context_lengthscale = prior((1, num_context), 1.0, 0.75, _LENGTHSCALES)
        # BoTorch's prior mode grows like sqrt(d), as distances do. Here it grows like
        # d: with few data the variance is largest in the 2^d corners of the box.
        # Shorter lengthscales for one column make a search evaluate more than the two
        # ends, and with longer ones for four columns it does not evaluate all 16
        # corners.
        paths = columns_of_path or [list(range(len(columns)))]
        table = np.zeros((len(paths), len(columns)), dtype=bool)
        for path, positions in enumerate(paths):
            table[path, positions] = True
        seen = torch.from_numpy(table)
        scale = (seen * seen.sum(-1, keepdim=True)).amax(0).clamp_min(1).double()
        self.register_buffer(
            "dimension_scale",
            scale,
            persistent=False,
        )
        if sharing == "independent":
            if columns_of_path is None:
                raise ValueError(
                    'leaf_hyperparameters: expected another value than "independent", '
                    "which has parameters for each path, for more than "
                    f"{MAX_LISTED_PATHS} paths, got it for {tree.num_paths}."
                )
            # the number of the lengthscale of each path and column
            count = int(seen.sum())
            number = seen.flatten().cumsum(0).view_as(seen) - 1
            pair = torch.where(seen, number, count)
            self.register_buffer("pair", pair, persistent=False)
            self.register_buffer(
                "path_keys",
                tree.sorted_keys,
                persistent=False,
            )
            if count and lengthscales:
                self.lengthscale = prior((1, count), 0.5, 1.0, _LENGTHSCALES)
            self.outputscale = prior((1, len(columns_of_path)), 1.0, 1.0, _VARIANCES)
            return
        if columns and lengthscales:
            self.common_lengthscale = prior((1, 1), 0.3, 0.5, _LENGTHSCALES)
        self.common_outputscale = prior((1, 1), 1.0, 1.0, _VARIANCES)
        related = sharing == "hierarchical"
        if related and lengthscales and len(columns) > 1:
            self.relative_lengthscale = prior((1, len(columns)), 1.0, 0.3, _RATIOS)
        if related and tree.num_edges > 0:
            self.relative_outputscale = prior((1, tree.num_edges), 1.0, 0.3, _RATIOS)

    def inverse_lengthscale(self) -> Tensor:
        """One over the lengthscales, see ``LeafValues``."""
        if hasattr(self, "lengthscale"):
            inverse = self.lengthscale.value.reciprocal().squeeze(-2)
            inverse = pad(inverse, (0, 1))[..., self.pair]
        elif hasattr(self, "common_lengthscale"):
            scale = self.common_lengthscale.value * self.dimension_scale
            if hasattr(self, "relative_lengthscale"):
                scale = scale * self.relative_lengthscale.value
            inverse = scale.reciprocal()
        else:
            inverse = self.dimension_scale.new_ones(1, self.num_columns)
        if hasattr(self, "context_lengthscale"):
            context = self.context_lengthscale.value.reciprocal()
            inverse = torch.cat(_expanded(inverse, context), dim=-1)
        return inverse


def _path_of_key(path_keys: Tensor, key: Tensor) -> Tensor:
    """Numbers of paths by their keys; ``num_paths`` with an undeclared value.

    Unlike ``ParameterTree.path_index`` it looks at no values: no GPU is waited for.
    """
    keys, number = path_keys
    place = torch.searchsorted(keys, key).clamp_max(len(keys) - 1)
    return torch.where(keys[place] == key, number[place], len(keys))


def check_declared(path: Tensor, count: int) -> None:
    """Raise a ``ValueError`` for a path with an undeclared value.

    Args:
        path: Numbers of paths.
        count: That of the declared ones.
    """
    if path.numel() and int(path.max()) >= count:
        raise ValueError(
            'X: expected declared decision values only, as leaf_offset="fixed" and '
            'leaf_hyperparameters="independent" have parameters for each declared '
            "path, got an undeclared one. Declare it in `values` of the ParameterTree."
        )


def take_of_path(table: Tensor, path: Tensor) -> Tensor:
    """Rows of a table per path, with the batch dimensions of both broadcast.

    Args:
        table: ``batch_shape x num_paths x k``.
        path: ``other_batch x n``.

    Returns:
        ``broadcast(batch_shape, other_batch) x n x k``.

    Raises:
        ValueError: See ``check_declared``.
    """
    check_declared(path, table.shape[-2])
    if table.ndim == 2:
        return table[path]
    return one_hot(path, table.shape[-2]).to(table) @ table


class PathMean(Mean):
    """Prior mean m(x) = b_p for x on path p: the free offsets of equation (1).

    Args:
        tree: The parameter tree.
        batch_shape: Batch shape of the model.

    Raises:
        ValueError: For more than ``MAX_LISTED_PATHS`` paths.
    """

    path_keys: Tensor

    def __init__(
        self,
        tree: ParameterTree,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        if tree.num_paths > MAX_LISTED_PATHS:
            raise ValueError(
                'leaf_offset: expected another value than "fixed", which has a '
                f"constant for each path, for more than {MAX_LISTED_PATHS} paths, got "
                f"it for {tree.num_paths}."
            )
        self.tree = tree
        self.batch_shape = batch_shape
        self.register_buffer(
            "path_keys",
            tree.sorted_keys,
            persistent=False,
        )
        start = torch.zeros(
            *batch_shape,
            tree.num_paths,
            dtype=torch.float64,
        )
        self.register_parameter("raw_offset", torch.nn.Parameter(start))

    def forward(self, x: Tensor) -> Tensor:
        """Offsets, ``batch_shape x n``.

        Args:
            x: ``batch_shape x n x d``.
        """
        table = self.raw_offset.unsqueeze(-1)
        key = self.tree.locate(x, strict=x.device.type == "cpu")[2]
        path = _path_of_key(self.path_keys, key)
        return take_of_path(table, path).squeeze(-1)


class TreeStructuredKernel(LeafKernel):
    r"""Marginal covariance of a tree GP, equation (4) of [Jenatton2017tree]_.

    .. math:: k(x, x') = 1[p = p'] K_p(x_p, x'_p) + z_p(x)^\top \Sigma_c z_{p'}(x')

    where p is the path of x, K_p a stationary kernel over columns of the leaf p
    (``LeafHyperparameters``) and z_p(x) the features of the weights c on the path
    (``WeightFeatures``). The covariance is exactly invariant to the values of inactive
    columns. With context columns beta, K_p(x_p, x'_p) is multiplied by a kernel
    K_context(beta, beta') that all leaves share (section 5). With a ``leaf_kernel``
    kappa, K_p is s_p kappa(x_p, x'_p).

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
        leaf_kernel: A kernel in place of the correlation within leaves, see
            ``TreeStructuredGP``.

    Raises:
        ValueError: For an unknown option, or a ``leaf_kernel`` that does not fit its
            columns.
    """

    #: The kernels of leaves, by the number of the path; "0" is that of all leaves if
    #: they share one.
    leaf_kernels: torch.nn.ModuleDict | None

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
        categorical_features: Mapping[int, Sequence[float]] | None = None,
        correlation: Literal["matern", "rbf"] = "matern",
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
        context_features: Sequence[int] | None = None,
        leaf_kernel: KernelOrFactory | None = None,
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
            column: sorted(map(float, values))
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
        self.num_weights = self.weights.num_weights
        own_columns = set(tree.own_columns)
        free = {*own_columns, *tree.shared_columns} - {*context}
        alone = own_columns if leaf_inputs == "own" else set()
        seen = _columns_of_paths(tree, free, alone)
        columns = sorted(free)
        if leaf_inputs == "own" and seen is not None:
            columns = sorted(set().union(*seen))
        position = {column: j for j, column in enumerate(columns + context)}
        self.leaf_hyperparameters = LeafHyperparameters(
            tree,
            columns,
            None if seen is None else [[position[c] for c in path] for path in seen],
            leaf_hyperparameters,
            len(context),
            batch_shape,
            leaf_kernel is None,
        )
        self.columns = columns = columns + context
        numeric = [c for c in columns if c not in categorical]
        self.categorical = {c: categorical[c] for c in columns if c in categorical}
        # categorical columns once for each known value, and for all others
        encoded = numeric + [
            c for c, values in self.categorical.items() for _ in range(len(values) + 1)
        ]
        self.encoded_columns = [position[c] for c in encoded]
        self.leaf_kernels = None
        if leaf_kernel is not None:
            width = self.leaf_hyperparameters.num_columns
            groups: list[list[int]] = [columns[:width]]
            widest = max(seen or groups, key=len)
            hidden = {*groups[0]} - {*widest}
            if seen is not None and leaf_hyperparameters == "independent":
                groups = seen
                hidden = set()
            self.leaf_kernels = torch.nn.ModuleDict()
            self.leaf_places: dict[str, list[int]] = {}
            for path, group in enumerate(groups):
                places = [i for i, c in enumerate(encoded) if c in group]
                if places:
                    self.leaf_places[str(path)] = places
                    self.leaf_kernels[str(path)] = make_kernel(
                        leaf_kernel,
                        [encoded[i] for i in places],
                        batch_shape,
                        hidden,
                    )
        # GPyTorch assumes that every buffer of a kernel has the batch shape in front
        flags = partial(torch.tensor, dtype=torch.bool)
        tables = {
            "own": flags([c in own_columns for c in columns]),
            "context": flags([c in context for c in columns]),
            "is_context": flags([c in context for c in encoded]),
            # a list as an index would be copied to the device at each call
            "column_index": _integers(columns),
            "numeric_index": _integers(numeric),
            "encoded_index": _integers(self.encoded_columns),
        }
        for column, values in self.categorical.items():
            tables[f"known_{column}"] = torch.tensor(values, dtype=torch.float64)
        for name, table in tables.items():
            self.leaf_hyperparameters.register_buffer(
                name,
                table,
                persistent=False,
            )
        # the kernel chosen by evidence is in the state, as a tensor without dimensions
        self.register_buffer("correlation_index", torch.tensor(0))
        self.set_correlation(correlation)

    def column_lengthscales(self) -> Tensor:
        """See ``LeafKernel``; of smooth terms in columns that K_p does not see."""
        leaf = self.leaf_hyperparameters
        weights = self.weights
        inverse = leaf.inverse_lengthscale()
        lengths = inverse.reciprocal().masked_fill(inverse == 0.0, torch.nan)
        if self.leaf_kernels is not None:
            count = self.tree.num_paths if leaf.sharing == "independent" else 1
            lengths = lengths.expand(*self.batch_shape, count, -1).clone()
            lengths[..., : leaf.num_columns] = torch.nan
            for path, kernel in self.leaf_kernels.items():
                places = self.leaf_places[path]
                columns = [self.encoded_columns[i] for i in places]
                of_path = column_lengthscales(kernel, len(places))
                lengths[..., int(path), columns] = of_path
        shape = (*self.batch_shape, lengths.shape[-2], self.tree.dim)
        table = lengths.new_full(shape, torch.nan)
        if weights.smooth_columns:
            table[..., weights.smooth_columns] = weights.smooth_lengthscale.value
        smooth = table[..., self.columns]
        table[..., self.columns] = torch.where(lengths.isnan(), smooth, lengths)
        return table

    def set_correlation(self, name: str) -> None:
        """Choose "matern" or "rbf"; hyperparameters are left as they are."""
        check_choices(correlation=name)
        index = _CHOICES["correlation"].index(name)
        self.correlation_index.fill_(index)
        self.correlation = CORRELATIONS[index]

    def _load_from_state_dict(
        self,
        *args: Any,
        **kwargs: Any,
    ) -> None:
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
            own_columns = leaf.own & ~leaf.context
            alone = ~(seen & own_columns).any(-1, keepdim=True)
            seen = seen & (own_columns | leaf.context | alone)
        path = None
        if self.leaf_hyperparameters.sharing == "independent":
            path = _path_of_key(self.leaf_hyperparameters.path_keys, key)
        nodes = self.weights.node_indicators(codes)
        return Places(key, codes, active, nodes, seen, path)

    def values(self) -> LeafValues:
        """See ``LeafKernel.values``."""
        weights = self.weights
        leaf = self.leaf_hyperparameters
        smooth = None
        if weights.smooth_columns:
            smooth = weights.smooth_lengthscale.value
        if weights.num_offsets:
            offset = weights.offset_variance.value.mean(-1)
        else:
            offset = leaf.dimension_scale.new_zeros(1)
        by_path = leaf.sharing == "independent"
        outputscale = leaf.outputscale if by_path else leaf.common_outputscale
        ratio = None
        if hasattr(leaf, "relative_outputscale"):
            ratio = leaf.relative_outputscale.value.log()
        return LeafValues(
            leaf.inverse_lengthscale(),
            outputscale.value.squeeze(-2),
            ratio,
            weights.prior_scale(),
            smooth,
            offset,
        )

    def rows(
        self,
        X: Tensor,
        places: Places | None = None,
    ) -> LeafRows:
        """See ``LeafKernel.rows``; ``places`` are those of ``locate``."""
        key, codes, active, nodes, seen, path = places or self.locate(X)
        values = self.fixed_values or self.values()
        leaf = self.leaf_hyperparameters
        parts = [X.index_select(-1, leaf.numeric_index)]
        for column in self.categorical:
            categories = getattr(leaf, f"known_{column}")
            parts.append(one_hot_code(X[..., column], categories) / math.sqrt(2.0))
        encoded = torch.cat(parts, dim=-1)
        seen = seen.index_select(-1, leaf.encoded_index)
        inverse = values.inverse_lengthscale
        variance = values.outputscale
        if path is not None:
            variance = take_of_path(variance.unsqueeze(-1), path).squeeze(-1)
            if inverse.shape[-2] > 1:
                inverse = take_of_path(inverse, path)
        elif values.log_ratio is not None:
            # a product over the decisions on the path
            ratio = nodes[..., 1:].to(X) @ values.log_ratio.mT
            variance = variance * ratio.squeeze(-1).exp()
        inverse = inverse.index_select(-1, leaf.encoded_index)
        scaled = torch.where(seen, encoded, 0.0) * inverse
        shape = np.broadcast_shapes(variance.shape, key.shape)
        undeclared = (codes >= self.weights.num_outcomes).sum(-1)
        constant = (undeclared * values.offset_variance).to(X)
        features = self.weights(
            X,
            active,
            nodes,
            self.correlation,
            values,
        )
        variance = variance.expand(shape)
        if self.leaf_kernels is not None:
            number = torch.zeros_like(key) if path is None else path
            columns = variance.unsqueeze(-1), number.to(X).unsqueeze(-1)
            scaled = torch.cat(_expanded(scaled, *columns), dim=-1)
            variance = variance * self._leaf_value(scaled, scaled, diag=True)
        return LeafRows(key, scaled, variance, constant, features)

    def leaf_covariance(
        self,
        a: LeafRows,
        b: LeafRows,
    ) -> Tensor:
        """K_p, see ``LeafKernel.leaf_covariance``."""
        value = a.variance.unsqueeze(-1)
        points = [(a.points, b.points)]
        context = self.leaf_hyperparameters.is_context
        if self.leaf_kernels is not None:
            scale = a.points[..., -2:-1]
            value = scale * self._leaf_value(a.points, b.points)
            points = [(x[..., :-2] * context, y[..., :-2] * context) for x, y in points]
            points = points if self.context_columns else []
        elif self.context_columns and self.is_product:
            masks = ~context, context
            points = [(a.points * mask, b.points * mask) for mask in masks]
        for x, y in points:
            squared = squared_distance(x, x if a is b else y)
            value = value * self.correlation.value(squared)
        return value + a.constant.unsqueeze(-1)

    def _leaf_value(
        self,
        x: Tensor,
        y: Tensor,
        diag: bool = False,
    ) -> Tensor:
        """The kernel of the leaf of ``x``, whose last column is the path's number.

        A leaf without columns has a constant.
        """
        path = x[..., -1] if diag else x[..., -1:]
        value = torch.ones_like(path)
        # a GPU would wait, and a transform of ``torch.func`` has no values
        readable = x.device.type == "cpu" and not functorch_is_active()
        for number, kernel in (self.leaf_kernels or {}).items():
            inside = path == int(number)
            if readable and not inside.any():
                continue
            columns = self.leaf_places[number]
            part = to_dense(kernel(x[..., columns], y[..., columns], diag=diag))
            value = torch.where(inside, part, value)
        return value

    def active_weights(self, places: Places) -> Tensor:
        """See ``LeafKernel.active_weights``; in the order of the features."""
        weights = self.weights
        active = places.active
        parts = [places.nodes[:, weights.node_columns]]
        parts.append(active[:, weights.linear_index])
        for column, values in weights.onehot_columns.items():
            parts.append(active[:, column, None].expand(-1, len(values) + 1))
        smooth = active[:, weights.smooth_index]
        parts.append(smooth.repeat_interleave(2 * weights.num_frequencies, -1))
        return torch.cat(parts, dim=-1)

    @property
    def is_product(self) -> bool:
        """Whether K_p K_context is not one stationary kernel of all their columns.

        With RBF it is.
        """
        return bool(self.context_columns) and self.correlation.name != "rbf"


def make_kernel(
    source: KernelOrFactory,
    columns: list[int],
    batch_shape: torch.Size,
    hidden: Collection[int] = (),
) -> Kernel:
    """The kernel of some columns: a copy, or a new one.

    Args:
        source: The argument ``leaf_kernel``.
        columns: Columns of the inputs.
        batch_shape: Batch shape of the copy's parameters.
        hidden: Columns that are 0 on a path.

    Raises:
        ValueError: For what is no kernel of so many columns, or no covariance of those
            that are not hidden.
    """
    kernel = source if isinstance(source, Kernel) else source(list(columns))
    if not isinstance(kernel, Kernel):
        raise ValueError(
            "leaf_kernel: expected a GPyTorch kernel, or a function that makes one for "
            f"a list of columns, got {type(kernel).__name__}."
        )
    x = SobolEngine(len(columns)).draw(_POINTS).to(kernel.device, kernel.dtype)
    x[:, [c in hidden for c in columns]] = 0.0
    try:
        with torch.no_grad():
            covariance = to_dense(kernel(x))
    except (IndexError, RuntimeError) as error:
        raise ValueError(
            f"leaf_kernel: expected a kernel of the {len(columns)} columns {columns}, "
            f"got {type(kernel).__name__}: {error} A function such as lambda columns: "
            "RQKernel(ard_num_dims=len(columns)) makes one for each leaf."
        ) from error
    if covariance.shape[-1] != _POINTS:
        raise ValueError(
            "leaf_kernel: expected one output per input, got the derivatives too "
            f"({type(kernel).__name__})."
        )
    least, most = torch.linalg.eigvalsh(covariance).aminmax()
    if least < -1e-3 * most:
        raise ValueError(
            f"leaf_kernel: expected a covariance of columns {columns}, got "
            f"{type(kernel).__name__} with negative eigenvalues. (CosineKernel is a "
            "covariance of one column.)"
        )
    count = kernel.batch_shape.numel()
    elements = torch.arange(count).reshape(kernel.batch_shape)
    return take_batch(kernel, kernel.batch_shape, elements.expand(batch_shape))


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


def _columns_of_paths(
    tree: ParameterTree,
    free: set[int],
    alone: set[int],
) -> list[list[int]] | None:
    """Columns that K_p sees on each path; None if there are too many paths.

    Args:
        tree: The paths.
        free: The columns that it may see.
        alone: Only these are seen, on paths that have any.
    """
    if tree.num_paths > MAX_LISTED_PATHS:
        return None
    out = []
    for path in tree.paths:
        active = [c for c in path.active_columns if c in free]
        out.append([c for c in active if c in alone] or active)
    return out
