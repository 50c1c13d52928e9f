"""The covariance of a tree-structured GP: leaf kernels plus weights on the nodes."""

from __future__ import annotations

__all__ = [
    "TreeStructuredKernel",
    "check_choices",
]

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from botorch_structured.linalg.correlations import (
    CORRELATIONS,
    Correlation,
    squared_distance,
)
from botorch_structured.linalg.leaf_layout import LeafLayout
from botorch_structured.models.tree.evidence import BlockTensors
from botorch_structured.models.tree.leaf_hyperparameters import (
    MAX_LISTED_PATHS,
    LeafHyperparameters,
)
from botorch_structured.models.tree.leaf_kernel import (
    LeafKernel,
    Places,
    Rows,
    Structure,
    check_aligned_columns,
    positions,
    stationary_covariance,
    stationary_cross,
    trim,
)
from botorch_structured.models.tree.weights import WeightFeatures, one_hot
from botorch_structured.spaces import ParameterTree


class TreeStructuredKernel(LeafKernel):
    r"""Marginal covariance of a tree GP, equation (4) of [Jenatton2017tree]_.

    .. math:: k(x, x') = 1[p = p'] K_p(x_p, x'_p) + z_p(x)^\top \Sigma_c z_{p'}(x')

    where p is the path of x, K_p a stationary kernel over columns of the leaf p and
    z_p(x) the features of the weights c on the path (see ``WeightFeatures``). This
    class is the one definition of the covariance; ``TreeStructuredGP`` adds the fast
    inference. Use it on its own (``SingleTaskGP(X, Y,
    covar_module=TreeStructuredKernel(tree))``) for the paper's dense baseline
    "marginal".

    The covariance is exactly invariant to the values of inactive columns.

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
        groups = check_aligned_columns(tree, aligned_columns, categorical)
        shared = tree.shared_columns if shared_features != "none" else []
        numeric = [c for c in shared if c not in categorical]
        self.weights = WeightFeatures(
            tree,
            linear_columns=numeric if shared_features in ("additive", "linear") else [],
            smooth_columns=numeric
            if shared_features in ("additive", "fourier")
            else [],
            onehot_columns={c: categorical[c] for c in shared if c in categorical},
            aligned_columns=groups,
            node_weights=node_weights,
            leaf_offset=leaf_offset,
            tied_variances=weight_variances == "tied",
            batch_shape=batch_shape,
        )
        own = tree.own_columns
        free = sorted({*own, *tree.shared_columns})
        seen = self._columns_of_paths(free, set(own))
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
        self._encoded = encoded
        # Not held here, see below.
        self.leaf_hyperparameters.register_buffer(
            "own",
            torch.tensor([c in set(own) for c in columns], dtype=torch.bool),
            persistent=False,
        )
        for column, values in self._categorical.items():
            self.leaf_hyperparameters.register_buffer(
                f"known_{column}",
                torch.tensor(values, dtype=torch.float64),
                persistent=False,
            )
        # The only tensor this module itself holds: a choice by evidence is part of the
        # state, and its shape is the same whatever was chosen.
        names = [c.name for c in CORRELATIONS]
        self.register_buffer(
            "correlation_index", torch.tensor(names.index(correlation))
        )
        self._correlation = CORRELATIONS[names.index(correlation)]

    @property
    def num_weights(self) -> int:
        """V, the number of weights."""
        return self.weights.num_weights

    @property
    def variant(self) -> Correlation:
        """The correlation function."""
        return self._correlation

    @property
    def correlation(self) -> Correlation:
        """The correlation function of K_p and of the smooth terms."""
        return self._correlation

    def set_correlation(self, name: str) -> None:
        """Choose "matern" or "rbf"; hyperparameters are left as they are."""
        check_choices(correlation=name)
        names = [c.name for c in CORRELATIONS]
        self.correlation_index.fill_(names.index(name))
        self._correlation = CORRELATIONS[names.index(name)]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._correlation = CORRELATIONS[int(self.correlation_index)]

    def _columns_of_paths(
        self, free: list[int], own: set[int]
    ) -> list[list[int]] | None:
        """Columns K_p sees on each path, or None if paths are too many to list."""
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
        # A model checks its training data; on a GPU looking at the values of what it
        # predicts would make the device wait in each acquisition call.
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
        """Everything the covariance is made of, row by row.

        Args:
            X: ``batch_shape x n x d``.
            places: From ``locate``, if known.
        """
        key, codes, active, nodes, seen, path = places or self.locate(X)
        inverse = self.leaf_hyperparameters.inverse_lengthscale(path)
        parts = [X[..., self._numeric]]
        for column in self._categorical:
            known = getattr(self.leaf_hyperparameters, f"known_{column}")
            parts.append(one_hot(X[..., column], known) / math.sqrt(2.0))
        encoded = torch.cat(parts, dim=-1)
        encoded = torch.where(seen[..., self._encoded], encoded, 0.0)
        scaled = encoded * inverse[..., self._encoded]
        # what a leaf does not use is taken from one more column of zeros
        scaled = torch.nn.functional.pad(scaled, (0, 1))
        variance = self.leaf_hyperparameters.scale(path, nodes)
        constant = self.weights.undeclared_variance(codes).to(X)
        features = self.weights(X, active, nodes, self._correlation)
        return Rows(key, scaled, variance, constant, features)

    def leaf_covariance(self, a: Rows, b: Rows) -> Tensor:
        """1[p = p'] K_p: the part that does not go through the weights."""
        same = a.key.unsqueeze(-1) == b.key.unsqueeze(-2)
        value = self._correlation.value(squared_distance(a.points, b.points))
        value = value * a.variance.unsqueeze(-1) + a.constant.unsqueeze(-1)
        return torch.where(same, value, 0.0)

    def structure(self, X: Tensor) -> Structure:
        """The leaves of a data set, and which inputs and weights each has.

        Args:
            X: ``n x d``.
        """
        places = self.locate(X)
        layout = LeafLayout(places.key)
        first = layout.representative
        inputs = positions(places.seen[first][:, self._encoded])
        weights = positions(
            self.weights.active_weights(places.active[first], places.nodes[first])
        )
        return Structure(
            places,
            layout,
            [trim(inputs[b.leaves]) for b in layout.buckets],
            [trim(weights[b.leaves]) for b in layout.buckets],
        )

    def block_tensors(self, X: Tensor, structure: Structure) -> list[BlockTensors]:
        """The leaves of ``X`` in buckets, differentiable in every hyperparameter.

        Args:
            X: ``n x d``.
            structure: From ``structure``, of inputs with the same decisions.
        """
        layout = structure.layout
        rows = self.rows(X, structure.places)
        scaled = torch.nn.functional.pad(rows.points, (0, 0, 0, 1))
        features = torch.nn.functional.pad(rows.features, (0, 1, 0, 1))
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
                    stationary_covariance(*mine, bucket.real, self._correlation),
                    features[row, weights.unsqueeze(-2)],
                    weights,
                    stationary_cross(*mine, inputs, self._correlation),
                )
            )
        return out


_CHOICES: dict[str, tuple[str, ...]] = {
    "shared_features": ("additive", "linear", "fourier", "none"),
    "leaf_inputs": ("own", "active"),
    "leaf_hyperparameters": ("hierarchical", "tied", "independent"),
    "weight_variances": ("tied", "independent"),
    "correlation": tuple(c.name for c in CORRELATIONS),
}


def check_choices(**options: object) -> None:
    """Raise a ``ValueError`` for a value that an option of the kernel does not have."""
    for name, value in options.items():
        if value not in _CHOICES[name]:
            raise ValueError(
                f"{name}: expected one of {_CHOICES[name]}, got {value!r}."
            )
