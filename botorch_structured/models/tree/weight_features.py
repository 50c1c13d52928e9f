r"""The features z_p(x) of the weights that couple the leaves of a tree.

References:

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez and M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. ICML 2017.
"""

from __future__ import annotations

__all__ = ["WeightFeatures", "one_hot_code"]

import torch
from gpytorch import Module
from torch import Tensor

from botorch_structured.linalg.correlations import CORRELATIONS, Correlation
from botorch_structured.linalg.hyperparameter import Hyperparameter
from botorch_structured.spaces import ParameterTree

_VARIANCES = (1e-4, 1e4)
_LENGTHSCALES = (2e-2, 2e1)


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
        num_frequencies: Frequencies m of each smooth term (two weights each).
        batch_shape: Batch shape of the model.
    """

    def __init__(
        self,
        tree: ParameterTree,
        linear_columns: list[int],
        smooth_columns: list[int],
        onehot_columns: dict[int, list[float]],
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
        self.counts = {
            "node": [1] * self.num_inner,
            "offset": [1] * len(outer),
            "linear": [1] * len(linear_columns),
            "onehot": [len(values) + 1 for values in onehot_columns.values()],
            "smooth": [waves] * len(smooth_columns),
        }
        self.num_weights = sum(map(sum, self.counts.values()))
        for kind, counts in self.counts.items():
            if not counts:
                continue
            shape = (1, 1 if tied_variances else len(counts))
            mode = 1.0 if kind == "linear" else 0.5
            variance = Hyperparameter(shape, mode, 1.0, _VARIANCES, batch_shape)
            self.add_module(f"{kind}_variance", variance)
            if kind == "smooth":
                shape = (1, len(counts))
                length = Hyperparameter(shape, 1.0, 0.75, _LENGTHSCALES, batch_shape)
                self.add_module(f"{kind}_lengthscale", length)

        sizes = [len(tree.decision_values[c]) for c in tree.decision_columns]
        tables = {
            "node_columns": torch.tensor(nodes, dtype=torch.long),
            "num_outcomes": torch.tensor(sizes, dtype=torch.long),
            "edge_offsets": torch.tensor(tree.edge_offsets, dtype=torch.long),
        }
        # a list as an index would be copied to the device at each call
        indices = {"linear_index": linear_columns, "smooth_index": smooth_columns}
        for name, index in indices.items():
            tables[name] = torch.tensor(index, dtype=torch.long)
        for kind, counts in self.counts.items():
            tables[f"{kind}_counts"] = torch.tensor(counts, dtype=torch.long)
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
        declared = (codes >= 0) & (codes < self.num_outcomes)
        edge = torch.where(declared, codes + (1 + self.edge_offsets), num_edges + 1)
        out.scatter_(-1, edge, True)
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
        base = self.still(X, active, nodes)
        if self.smooth_columns:
            frequency = getattr(self, f"{correlation.name}_frequencies")
            value, present = _active_values(X, active, self.smooth_index)
            phase = (value / self.smooth_lengthscale.value).unsqueeze(-1) * frequency
            waves = torch.cat([phase.cos(), phase.sin()], dim=-1)
            waves = (waves * present.unsqueeze(-1)).flatten(-2)
            batch = waves.shape[:-1]
            base = torch.cat([base.expand(*batch, base.shape[-1]), waves], dim=-1)
        return base * self.prior_scale().unsqueeze(-2)

    def still(self, X: Tensor, active: Tensor, nodes: Tensor) -> Tensor:
        """The first features, those without waves, over their standard deviations.

        Args:
            X: ``batch_shape x n x d``.
            active: Active columns, ``batch_shape x n x d``.
            nodes: ``batch_shape x n x (1 + num_edges)``.
        """
        parts = [nodes[..., self.node_columns].to(X)]
        parts.append(_active_values(X, active, self.linear_index)[0])
        for column in self.onehot_columns:
            code = one_hot_code(X[..., column], getattr(self, f"known_{column}"))
            parts.append(code * active[..., column, None])
        return torch.cat(parts, dim=-1)

    def active_weights(self, active: Tensor, nodes: Tensor) -> Tensor:
        """Which weights can differ from zero for each row.

        Args:
            active: ``n x d``.
            nodes: ``n x (1 + num_edges)``.

        Returns:
            Booleans, ``n x num_weights``, in the order of ``forward``.
        """
        repeat = 2 * self.num_frequencies
        parts = [nodes[:, self.node_columns], active[:, self.linear_index]]
        for column, values in self.onehot_columns.items():
            parts.append(active[:, column, None].expand(-1, len(values) + 1))
        parts.append(active[:, self.smooth_index].repeat_interleave(repeat, -1))
        return torch.cat(parts, dim=-1)

    def prior_scale(self) -> Tensor:
        """Prior standard deviation of each weight, ``batch_shape x num_weights``."""
        parts = [self.matern_frequencies.new_zeros(0)]
        for kind, counts in self.counts.items():
            if not counts:
                continue
            variance = getattr(self, f"{kind}_variance").value.squeeze(-2)
            if kind == "smooth":
                variance = variance / self.num_frequencies
            if variance.shape[-1] == 1:  # tied
                variance = variance.expand(*variance.shape[:-1], sum(counts))
            else:
                times = getattr(self, f"{kind}_counts")
                variance = variance.repeat_interleave(
                    times, dim=-1, output_size=sum(counts)
                )
            parts.append(variance.sqrt())
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


def _active_values(X: Tensor, active: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Values of some columns, zero where inactive, and where they are active."""
    present = active.index_select(-1, columns)
    return torch.where(present, X.index_select(-1, columns), 0.0), present


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
