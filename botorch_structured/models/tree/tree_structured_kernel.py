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
from typing import Any, Literal, NamedTuple

import torch
from gpytorch import Module
from torch import Tensor
from torch.nn.functional import one_hot, pad

from botorch_structured.linalg.block_low_rank import LeafLayout, positions
from botorch_structured.linalg.correlations import (
    CORRELATIONS,
    Correlation,
    squared_distance,
    stationary_covariance,
)
from botorch_structured.linalg.hyperparameter import Hyperparameter
from botorch_structured.models.tree.leaf_inference import (
    MAX_LISTED_PATHS,
    BlockTensors,
    LeafKernel,
    Structure,
    stationary_cross,
)
from botorch_structured.spaces import ParameterTree

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


class Rows(NamedTuple):
    """All that the covariance of some inputs is computed from, see ``LeafRows``.

    Attributes:
        key: Equal if and only if two rows are on the same path, ``batch_shape x n``.
        points: Inputs of K_p over lengthscales, ``batch_shape x n x e``; zero where K_p
            does not see a column.
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


class WeightFeatures(Module):
    r"""Scaled features F of the weights c, so that z' Sigma_c z' = F F'.

    z_p(x) has, in this order (sections 2.1, 2.4 and 4.3),

    * a one for every node on the path: the root, every value of a decision, and the
      last of these once more, as an offset of the leaf itself;
    * the value of every active numeric shared column ("linear");
    * a one-hot code of every active categorical shared column;
    * sqrt(v / m) [cos(w_i x / l), sin(w_i x / l)] of every active numeric shared column
      ("smooth"): a stationary function in a finite Fourier basis;
    * the same for groups of leaf columns that were declared comparable ("aligned").

    Args:
        tree: The parameter tree.
        linear_columns: Numeric shared columns with a linear term.
        smooth_columns: Numeric shared columns with a smooth term.
        onehot_columns: Categorical shared columns and their known values; an unknown
            value has a feature of its own, common to all unknown values.
        aligned_columns: Groups of leaf columns declared comparable.
        node_weights: Whether root and inner nodes carry weights.
        leaf_offset: Whether the last decision of a path carries one.
        tied_variances: Whether all weights of one kind share their prior variance.
        num_frequencies: Frequencies m of each smooth term (two weights each).
        batch_shape: Batch shape of the model.
    """

    def __init__(
        self,
        tree: ParameterTree,
        linear_columns: list[int],
        smooth_columns: list[int],
        onehot_columns: dict[int, list[float]],
        aligned_columns: list[list[int]],
        node_weights: bool = True,
        leaf_offset: bool = True,
        tied_variances: bool = True,
        num_frequencies: int = 8,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        self.tree = tree
        self.linear_columns = linear_columns
        self.smooth_columns = smooth_columns
        self.onehot_columns = onehot_columns
        self.aligned_columns = aligned_columns
        self.num_frequencies = num_frequencies
        leaf_edges = tree.leaf_edges
        inner = (~leaf_edges).nonzero().flatten().tolist() if node_weights else []
        outer = leaf_edges.nonzero().flatten().tolist() if leaf_offset else []
        # node 0 is the root, which exists if there are decisions
        has_root = node_weights and tree.num_edges > 0
        nodes = ([0] if has_root else []) + [1 + e for e in inner + outer]
        self.num_offsets = len(outer)
        self.num_inner = len(nodes) - len(outer)

        # kind of weight: number of priors, and of weights with each of them
        waves = 2 * num_frequencies
        self._counts = {
            "node": [1] * self.num_inner,
            "offset": [1] * len(outer),
            "linear": [1] * len(linear_columns),
            "onehot": [len(values) + 1 for values in onehot_columns.values()],
            "smooth": [waves] * len(smooth_columns),
            "aligned": [waves] * len(aligned_columns),
        }
        self.num_weights = sum(map(sum, self._counts.values()))
        for kind, counts in self._counts.items():
            if not counts:
                continue
            shape = (1, 1 if tied_variances else len(counts))
            mode = 1.0 if kind == "linear" else 0.5
            variance = Hyperparameter(shape, mode, 1.0, _VARIANCES, batch_shape)
            self.add_module(f"{kind}_variance", variance)
            if kind in ("smooth", "aligned"):
                shape = (1, len(counts))
                length = Hyperparameter(shape, 1.0, 0.75, _LENGTHSCALES, batch_shape)
                self.add_module(f"{kind}_lengthscale", length)

        tables = {
            "node_columns": torch.tensor(nodes, dtype=torch.long),
            "num_outcomes": torch.tensor(
                [len(tree.decision_values[c]) for c in tree.decision_columns],
                dtype=torch.long,
            ),
        }
        for column, values in onehot_columns.items():
            tables[f"known_{column}"] = torch.tensor(values, dtype=torch.float64)
        for correlation in CORRELATIONS:
            name = f"{correlation.name}_frequencies"
            tables[name] = _frequencies(correlation, num_frequencies)
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
        for k, column in enumerate(self.tree.decision_columns):
            code = codes[..., k]
            declared = (code >= 0) & (code < len(self.tree.decision_values[column]))
            edge = torch.where(
                declared, 1 + self.tree.edge_offsets[k] + code, num_edges + 1
            )
            out.scatter_(-1, edge.unsqueeze(-1), True)
        return out[..., : num_edges + 1]

    def forward(
        self, X: Tensor, active: Tensor, nodes: Tensor, correlation: Correlation
    ) -> Tensor:
        """Scaled features.

        Args:
            X: ``batch_shape x n x d``.
            active: Active columns, ``batch_shape x n x d``.
            nodes: ``batch_shape x n x (1 + num_edges)`` from ``node_indicators``.
            correlation: The correlation function of the smooth terms.

        Returns:
            ``batch_shape x n x num_weights``.
        """
        parts = []
        on_path = nodes[..., self.node_columns].to(X)
        if self.num_inner:
            inner = on_path[..., : self.num_inner]
            parts.append(inner * self.node_variance.value.sqrt())
        if self.num_offsets:
            outer = on_path[..., self.num_inner :]
            parts.append(outer * self.offset_variance.value.sqrt())
        if self.linear_columns:
            value, _ = _active_values(X, active, self.linear_columns)
            parts.append(value * self.linear_variance.value.sqrt())
        for i, column in enumerate(self.onehot_columns):
            known = getattr(self, f"known_{column}")
            code = one_hot_code(X[..., column], known) * active[..., column, None]
            variance = self.onehot_variance.value
            i = i if variance.shape[-1] > 1 else 0  # tied
            parts.append(code * variance[..., i, None].sqrt())
        frequency = getattr(self, f"{correlation.name}_frequencies")
        if self.smooth_columns:
            value, present = _active_values(X, active, self.smooth_columns)
            parts.append(self._fourier("smooth", value, present, frequency))
        if self.aligned_columns:
            groups = [_active_values(X, active, g) for g in self.aligned_columns]
            value = torch.stack([v.sum(-1) for v, _ in groups], dim=-1)
            present = torch.stack([a.any(-1) for _, a in groups], dim=-1)
            parts.append(self._fourier("aligned", value, present, frequency))
        if not parts:
            return X.new_zeros(*X.shape[:-1], 0)
        batch = torch.broadcast_shapes(*(p.shape[:-1] for p in parts))
        return torch.cat([p.expand(*batch, p.shape[-1]) for p in parts], dim=-1)

    def _fourier(
        self, kind: str, value: Tensor, present: Tensor, frequency: Tensor
    ) -> Tensor:
        variance = getattr(self, f"{kind}_variance").value
        lengthscale = getattr(self, f"{kind}_lengthscale").value
        scale = (variance / self.num_frequencies).sqrt().expand_as(lengthscale)
        phase = (value / lengthscale).unsqueeze(-1) * frequency
        waves = torch.cat([phase.cos(), phase.sin()], dim=-1)
        waves = waves * (scale * present).unsqueeze(-1)
        return waves.flatten(-2)

    def active_weights(self, active: Tensor, nodes: Tensor) -> Tensor:
        """Which weights can differ from zero for each row.

        Args:
            active: ``n x d``.
            nodes: ``n x (1 + num_edges)``.

        Returns:
            Booleans, ``n x num_weights``, in the order of ``forward``.
        """
        parts = [nodes[:, self.node_columns], active[:, self.linear_columns]]
        for column, count in zip(
            self.onehot_columns, self._counts["onehot"], strict=True
        ):
            parts.append(active[:, column, None].expand(-1, count))
        repeat = 2 * self.num_frequencies
        parts.append(active[:, self.smooth_columns].repeat_interleave(repeat, dim=1))
        for group in self.aligned_columns:
            present = active[:, group].any(-1, keepdim=True)
            parts.append(present.expand(-1, repeat))
        return torch.cat(parts, dim=-1)

    def prior_scale(self) -> Tensor:
        """Prior standard deviation of each weight, ``batch_shape x num_weights``."""
        parts = [self.matern_frequencies.new_zeros(0)]
        for kind, counts in self._counts.items():
            if not counts:
                continue
            variance = getattr(self, f"{kind}_variance").value.squeeze(-2)
            if kind in ("smooth", "aligned"):
                variance = variance / self.num_frequencies
            variance = variance.expand(*variance.shape[:-1], len(counts))
            times = torch.tensor(counts, device=variance.device)
            parts.append(variance.repeat_interleave(times, dim=-1).sqrt())
        return torch.cat(parts[1:] or parts, dim=-1)

    def undeclared_variance(self, codes: Tensor) -> Tensor:
        """Prior variance of the offsets of undeclared decision values.

        An undeclared value has no weight, as weights depend on the tree and not on the
        data; its offset is part of the covariance within its path.

        Args:
            codes: ``batch_shape x n x num_decisions``.

        Returns:
            ``batch_shape x n``.
        """
        count = (codes >= self.num_outcomes).sum(-1)
        if not self.num_offsets:
            return torch.zeros(count.shape, device=codes.device)
        return count * self.offset_variance.value.mean(-1)


def _active_values(
    X: Tensor, active: Tensor, columns: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Values of some columns, zero where inactive, and where they are active."""
    present = active[..., columns]
    return torch.where(present, X[..., columns], 0.0), present


def one_hot_code(values: Tensor, known: Tensor) -> Tensor:
    """One-hot code with a last place for unknown values, ``... x (len(known) + 1)``."""
    code = (values.unsqueeze(-1) == known).to(values)
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
    never on the data.

    Args:
        tree: The parameter tree.
        columns: Columns that some K_p sees.
        columns_of_path: For each path the positions in ``columns`` that its K_p sees;
            None when there are too many paths to list.
        sharing: "hierarchical", "tied" or "independent".
        batch_shape: Batch shape of the model.
    """

    def __init__(
        self,
        tree: ParameterTree,
        columns: list[int],
        columns_of_path: list[list[int]] | None,
        sharing: Literal["hierarchical", "tied", "independent"],
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        self.num_columns = len(columns)
        self.sharing = sharing

        def parameter(
            count: int, mode: float, scale: float, bounds: tuple[float, float]
        ) -> Hyperparameter:
            return Hyperparameter((1, count), mode, scale, bounds, batch_shape)

        # BoTorch's prior mode grows like sqrt(d), as distances do. Here it grows like
        # d: with few data the variance is largest in the 2^d corners of the box.
        # Shorter lengthscales for one column make a search evaluate more than the two
        # ends, and with longer ones for four columns it does not evaluate all 16
        # corners.
        dimension = torch.full((len(columns),), float(max(len(columns), 1)))
        if columns_of_path is not None:
            dimension = torch.ones(len(columns))
            for positions in columns_of_path:
                for j in positions:
                    dimension[j] = max(float(dimension[j]), len(positions))
        self.register_buffer("dimension_scale", dimension.double(), persistent=False)
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
            ``batch_shape x 1 x num_columns``, or with n rows for "independent".
        """
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
            ratio = (nodes[..., 1:].to(log_ratio) * log_ratio).sum(-1).exp()
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
    columns.

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
        aligned_columns: Groups of leaf columns declared comparable across leaves.
        categorical_features: Categorical columns and their known values.
        correlation: "matern" (5/2) or "rbf": that of K_p and of the smooth terms.
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
        aligned_columns: list[list[int]] | None = None,
        categorical_features: Mapping[int, list[float]] | None = None,
        correlation: Literal["matern", "rbf"] = "matern",
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
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
        groups = _check_aligned_columns(tree, aligned_columns, categorical)
        shared = tree.shared_columns if shared_features != "none" else []
        numeric = [c for c in shared if c not in categorical]
        self.weights = WeightFeatures(
            tree,
            linear_columns=numeric if shared_features != "fourier" else [],
            smooth_columns=numeric if shared_features != "linear" else [],
            onehot_columns={c: categorical[c] for c in shared if c in categorical},
            aligned_columns=groups,
            node_weights=node_weights,
            leaf_offset=leaf_offset,
            tied_variances=weight_variances == "tied",
            batch_shape=batch_shape,
        )
        own = set(tree.own_columns)
        free = sorted({*own, *tree.shared_columns})
        seen = self._columns_of_paths(free, own)
        if leaf_inputs == "active" or seen is None:
            columns = free
        else:
            columns = sorted({c for path in seen for c in path})
        position = {column: j for j, column in enumerate(columns)}
        self.columns = columns
        self.leaf_hyperparameters = LeafHyperparameters(
            tree,
            columns,
            None if seen is None else [[position[c] for c in path] for path in seen],
            leaf_hyperparameters,
            batch_shape,
        )
        self._numeric = [c for c in columns if c not in categorical]
        self._categorical = {c: categorical[c] for c in columns if c in categorical}
        encoded = [position[c] for c in self._numeric]
        for column, values in self._categorical.items():
            encoded += [position[column]] * (len(values) + 1)
        self.encoded_columns = encoded
        # GPyTorch assumes that every buffer of a kernel has the batch shape in front
        tables = {"own": torch.tensor([c in own for c in columns], dtype=torch.bool)}
        for column, values in self._categorical.items():
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

    def _columns_of_paths(
        self, free: list[int], own: set[int]
    ) -> list[list[int]] | None:
        """Columns that K_p sees on each path; None if there are too many paths."""
        if self.tree.num_paths > MAX_LISTED_PATHS:
            return None
        out = []
        for path in self.tree.paths:
            active = [c for c in path.active.tolist() if c in free]
            if self.leaf_inputs == "own":
                active = [c for c in active if c in own] or active
            out.append(active)
        return out

    def locate(self, X: Tensor) -> Places:
        """Where rows are in the tree.

        Args:
            X: ``batch_shape x n x d``.
        """
        tree = self.tree
        # A model checks its training data. On a GPU, checking the values of points at
        # which it predicts would make the device wait in each acquisition call.
        codes, active, key = tree.locate(X, strict=X.device.type == "cpu")
        seen = active[..., self.columns]
        if self.leaf_inputs == "own":
            own = self.leaf_hyperparameters.own
            seen = seen & (own | ~(seen & own).any(-1, keepdim=True))
        independent = self.leaf_hyperparameters.sharing == "independent"
        return Places(
            key,
            codes,
            active,
            self.weights.node_indicators(codes),
            seen,
            tree.path_index(X) if independent else None,
        )

    def rows(self, X: Tensor, places: Places | None = None) -> Rows:
        """See ``LeafKernel.rows``; ``places`` are those of ``locate``."""
        key, codes, active, nodes, seen, path = places or self.locate(X)
        inverse = self.leaf_hyperparameters.inverse_lengthscale(path)
        parts = [X[..., self._numeric]]
        for column in self._categorical:
            known = getattr(self.leaf_hyperparameters, f"known_{column}")
            parts.append(one_hot_code(X[..., column], known) / math.sqrt(2.0))
        encoded = torch.cat(parts, dim=-1)
        encoded = torch.where(seen[..., self.encoded_columns], encoded, 0.0)
        scaled = encoded * inverse[..., self.encoded_columns]
        # columns that a leaf does not use are taken from one more column, of zeros
        scaled = pad(scaled, (0, 1))
        variance = self.leaf_hyperparameters.scale(path, nodes)
        constant = self.weights.undeclared_variance(codes).to(X)
        features = self.weights(X, active, nodes, self.correlation)
        return Rows(key, scaled, variance, constant, features)

    def leaf_covariance(self, a: Rows, b: Rows) -> Tensor:
        """See ``LeafKernel.leaf_covariance``."""
        same = a.key.unsqueeze(-1) == b.key.unsqueeze(-2)
        value = self.correlation.value(squared_distance(a.points, b.points))
        value = value * a.variance.unsqueeze(-1) + a.constant.unsqueeze(-1)
        return torch.where(same, value, 0.0)

    def structure(self, X: Tensor) -> Structure:
        """See ``LeafKernel.structure``."""
        places = self.locate(X)
        layout = LeafLayout(places.key)
        first = layout.representative
        seen = places.seen[first][:, self.encoded_columns]
        used = self.weights.active_weights(places.active[first], places.nodes[first])
        return Structure(
            places,
            layout,
            [positions(seen[bucket.leaves]) for bucket in layout.buckets],
            [positions(used[bucket.leaves]) for bucket in layout.buckets],
        )

    def block_tensors(self, X: Tensor, structure: Structure) -> list[BlockTensors]:
        """See ``LeafKernel.block_tensors``."""
        layout = structure.layout
        rows = self.rows(X, structure.places)
        scaled = pad(rows.points, (0, 0, 0, 1))
        features = pad(rows.features, (0, 1, 0, 1))
        variance = rows.variance.expand(layout.num_rows)[layout.representative]
        constant = rows.constant.expand(layout.num_rows)[layout.representative]
        out = []
        parts = zip(layout.buckets, structure.inputs, structure.weights, strict=True)
        for bucket, inputs, weights in parts:
            row = bucket.index.unsqueeze(-1)
            mine = (
                scaled[row, inputs.unsqueeze(-2)],
                variance[bucket.leaves],
                constant[bucket.leaves],
            )
            out.append(
                BlockTensors(
                    bucket,
                    stationary_covariance(*mine, bucket.real, self.correlation),
                    features[row, weights.unsqueeze(-2)],
                    weights,
                    stationary_cross(*mine, inputs, self.correlation),
                )
            )
        return out


def _check_aligned_columns(
    tree: ParameterTree,
    groups: list[list[int]] | None,
    categorical: Mapping[int, list[float]],
) -> list[list[int]]:
    """Groups of numeric leaf columns, no two of which are on one path."""
    if not groups:
        return []
    if not isinstance(groups, Sequence) or not all(
        isinstance(group, Sequence) and not isinstance(group, str) for group in groups
    ):
        raise ValueError(
            "aligned_columns: expected a list of lists of columns, one for each group "
            f"(one group of columns 1 and 2 is [[1, 2]]), got {groups!r}."
        )
    if tree.num_paths > MAX_LISTED_PATHS:
        raise ValueError(
            "aligned_columns: expected None for a tree of more than "
            f"{MAX_LISTED_PATHS} paths, got {groups!r} for {tree.num_paths} paths."
        )
    own = set(tree.own_columns)
    for group in groups:
        bad = [c for c in group if c not in own or c in categorical]
        if bad:
            raise ValueError(
                f"aligned_columns: expected numeric leaf columns (of {sorted(own)}), "
                f"got {bad} in group {list(group)}."
            )
        for path in tree.paths:
            together = sorted(set(path.active.tolist()) & set(group))
            if len(together) > 1:
                raise ValueError(
                    "aligned_columns: expected at most one column per path in a group, "
                    f"got columns {together} of the same path."
                )
    return [sorted(group) for group in groups]
