"""Features of the node weights: the part of a tree GP that leaves have in common.

Jenatton et al. (2017), sections 2.1, 2.4 and 4.3: every path p carries z_p(x)'c with
Gaussian weights c. Here z_p(x) is a concatenation of

* a one for every node on the path: the root, every decision taken (and, as an offset of
  the leaf itself, the last one);
* the value of every numeric shared column that is active, as it is ("linear") and
  through a smooth function in a finite Fourier basis;
* a one-hot code of every categorical shared column that is active;
* the same smooth function for groups of leaf columns that were declared comparable.
"""

from __future__ import annotations

__all__ = [
    "WeightFeatures",
    "one_hot",
]

import math

import torch
from gpytorch import Module
from torch import Tensor

from botorch_structured.linalg.correlations import CORRELATIONS, Correlation
from botorch_structured.linalg.hyperparameter import Hyperparameter
from botorch_structured.spaces import ParameterTree

_VARIANCE_BOUNDS = (1e-4, 1e4)
_LENGTHSCALE_BOUNDS = (2e-2, 2e1)


class WeightFeatures(Module):
    r"""Scaled features F with z' Sigma_c z' = F F'.

    Args:
        tree: The parameter tree.
        linear_columns: Numeric shared columns with a linear term.
        smooth_columns: Numeric shared columns with a smooth term.
        onehot_columns: Categorical shared columns and their known values; an unknown
            value has a feature of its own, common to all unknown values.
        aligned_columns: Groups of leaf columns declared comparable.
        node_weights: Whether nodes carry weights at all.
        leaf_offset: Whether the last decision of a path carries one.
        tied_variances: Whether all weights of one kind share their prior variance.
        num_frequencies: Frequencies of each smooth term (two weights each).
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
        self.leaf_offset = leaf_offset
        leaf_edges = tree.leaf_edges
        inner = (~leaf_edges).nonzero().flatten().tolist() if node_weights else []
        outer = leaf_edges.nonzero().flatten().tolist() if leaf_offset else []
        # node 0 is the root: it exists if there is anything to choose
        self.has_root = node_weights and tree.num_edges > 0
        nodes = ([0] if self.has_root else []) + [1 + e for e in inner + outer]
        self.num_inner = len(nodes) - len(outer)
        self.register_buffer(
            "node_columns", torch.tensor(nodes, dtype=torch.long), persistent=False
        )

        def parameter(
            count: int, mode: float, scale: float, bounds: tuple[float, float]
        ) -> Hyperparameter:
            return Hyperparameter((1, count), mode, scale, bounds, batch_shape)

        def width(count: int) -> int:
            return 1 if tied_variances else count

        num_onehot = sum(len(v) + 1 for v in onehot_columns.values())
        if self.num_inner:
            n = width(self.num_inner)
            self.node_variance = parameter(n, 0.5, 1.0, _VARIANCE_BOUNDS)
        if outer:
            n = width(len(outer))
            self.offset_variance = parameter(n, 0.5, 1.0, _VARIANCE_BOUNDS)
        if linear_columns:
            n = width(len(linear_columns))
            self.linear_variance = parameter(n, 1.0, 1.0, _VARIANCE_BOUNDS)
        if onehot_columns:
            n = width(len(onehot_columns))
            self.onehot_variance = parameter(n, 0.5, 1.0, _VARIANCE_BOUNDS)
        if smooth_columns:
            n = width(len(smooth_columns))
            self.smooth_variance = parameter(n, 0.5, 1.0, _VARIANCE_BOUNDS)
            n = len(smooth_columns)
            self.smooth_lengthscale = parameter(n, 1.0, 0.75, _LENGTHSCALE_BOUNDS)
        if aligned_columns:
            n = width(len(aligned_columns))
            self.aligned_variance = parameter(n, 0.5, 1.0, _VARIANCE_BOUNDS)
            n = len(aligned_columns)
            self.aligned_lengthscale = parameter(n, 1.0, 0.75, _LENGTHSCALE_BOUNDS)
        self.num_node_weights = len(nodes)
        per_smooth = 2 * num_frequencies
        self.num_weights = (
            len(nodes)
            + len(linear_columns)
            + num_onehot
            + per_smooth * (len(smooth_columns) + len(aligned_columns))
        )
        for column, values in onehot_columns.items():
            known = torch.tensor(values, dtype=torch.float64)
            self.register_buffer(f"known_{column}", known, persistent=False)
        limits = [len(tree.decision_values[c]) for c in tree.decision_columns]
        self.register_buffer(
            "num_outcomes", torch.tensor(limits, dtype=torch.long), persistent=False
        )
        for correlation in CORRELATIONS:
            self.register_buffer(
                f"{correlation.name}_frequencies",
                _frequencies(correlation, num_frequencies),
                persistent=False,
            )

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
        self,
        X: Tensor,
        active: Tensor,
        nodes: Tensor,
        correlation: Correlation,
    ) -> Tensor:
        """Scaled features.

        Args:
            X: ``batch_shape x n x d``.
            active: Active columns, ``batch_shape x n x d``.
            nodes: ``batch_shape x n x (1 + num_edges)`` from ``node_indicators``.
            correlation: The correlation whose spectrum the smooth terms have.

        Returns:
            ``batch_shape x n x num_weights``.
        """
        parts = []
        if self.num_node_weights:
            on_path = nodes[..., self.node_columns].to(X)
            inner, outer = on_path.split(
                [self.num_inner, self.num_node_weights - self.num_inner], dim=-1
            )
            if self.num_inner:
                parts.append(inner * self.node_variance.value.sqrt())
            if outer.shape[-1]:
                parts.append(outer * self.offset_variance.value.sqrt())
        if self.linear_columns:
            columns = self.linear_columns
            value = torch.where(active[..., columns], X[..., columns], 0.0)
            parts.append(value * self.linear_variance.value.sqrt())
        for i, column in enumerate(self.onehot_columns):
            known = getattr(self, f"known_{column}")
            code = one_hot(X[..., column], known) * active[..., column, None]
            variance = self.onehot_variance.value
            variance = (
                variance[..., :1] if variance.shape[-1] == 1 else variance[..., i, None]
            )
            parts.append(code * variance.sqrt())
        frequency = getattr(self, f"{correlation.name}_frequencies")
        if self.smooth_columns:
            columns = self.smooth_columns
            parts.append(
                self._fourier(
                    torch.where(active[..., columns], X[..., columns], 0.0),
                    active[..., columns],
                    self.smooth_lengthscale.value,
                    self.smooth_variance.value,
                    frequency,
                )
            )
        if self.aligned_columns:
            present = torch.stack(
                [active[..., group].any(-1) for group in self.aligned_columns], dim=-1
            )
            value = torch.stack(
                [
                    torch.where(active[..., group], X[..., group], 0.0).sum(-1)
                    for group in self.aligned_columns
                ],
                dim=-1,
            )
            parts.append(
                self._fourier(
                    value,
                    present,
                    self.aligned_lengthscale.value,
                    self.aligned_variance.value,
                    frequency,
                )
            )
        if not parts:
            return X.new_zeros(*X.shape[:-1], 0)
        batch = torch.broadcast_shapes(*(p.shape[:-1] for p in parts))
        return torch.cat([p.expand(*batch, p.shape[-1]) for p in parts], dim=-1)

    def _fourier(
        self,
        value: Tensor,
        active: Tensor,
        lengthscale: Tensor,
        variance: Tensor,
        frequency: Tensor,
    ) -> Tensor:
        """sqrt(v / m) [cos(w_i x / l), sin(w_i x / l)] of each active column."""
        scale = (variance / self.num_frequencies).sqrt().expand_as(lengthscale)
        phase = (value / lengthscale).unsqueeze(-1) * frequency
        waves = torch.cat([phase.cos(), phase.sin()], dim=-1)
        waves = waves * (scale * active).unsqueeze(-1)
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
        for column, values in self.onehot_columns.items():
            parts.append(active[:, column, None].expand(-1, len(values) + 1))
        repeat = 2 * self.num_frequencies
        parts.append(active[:, self.smooth_columns].repeat_interleave(repeat, dim=1))
        for group in self.aligned_columns:
            present = active[:, group].any(-1, keepdim=True)
            parts.append(present.expand(-1, repeat))
        return torch.cat(parts, dim=-1)

    def prior_scale(self) -> Tensor:
        """Prior standard deviation of each weight, ``batch_shape x num_weights``."""
        counts = {
            "node_variance": [1] * self.num_inner,
            "offset_variance": [1] * (self.num_node_weights - self.num_inner),
            "linear_variance": [1] * len(self.linear_columns),
            "onehot_variance": [len(v) + 1 for v in self.onehot_columns.values()],
            "smooth_variance": [2 * self.num_frequencies] * len(self.smooth_columns),
            "aligned_variance": [2 * self.num_frequencies] * len(self.aligned_columns),
        }
        parts = []
        for name, repeats in counts.items():
            if not repeats:
                continue
            variance = getattr(self, name).value.squeeze(-2)
            if name in ("smooth_variance", "aligned_variance"):
                variance = variance / self.num_frequencies
            variance = variance.expand(*variance.shape[:-1], len(repeats))
            times = torch.tensor(repeats, device=variance.device)
            parts.append(variance.repeat_interleave(times, dim=-1).sqrt())
        if not parts:
            return self.matern_frequencies.new_zeros(0)
        return torch.cat(parts, dim=-1)

    def undeclared_variance(self, codes: Tensor) -> Tensor:
        """Prior variance of the offsets of undeclared decision values.

        An undeclared value has no weight of its own (weights are a matter of the tree,
        not of the data); its offset belongs to the one path it makes.

        Args:
            codes: ``batch_shape x n x num_decisions``.

        Returns:
            ``batch_shape x n``.
        """
        count = (codes >= self.num_outcomes).sum(-1)
        if not self.leaf_offset or not hasattr(self, "offset_variance"):
            return torch.zeros(count.shape, device=codes.device)
        return count * self.offset_variance.value.mean(-1)


def one_hot(values: Tensor, known: Tensor) -> Tensor:
    """One-hot code with a last place for unknown values, ``... x (len(known) + 1)``."""
    code = (values.unsqueeze(-1) == known).to(values)
    return torch.cat([code, 1.0 - code.sum(-1, keepdim=True)], dim=-1)


def _frequencies(correlation: Correlation, count: int) -> Tensor:
    """Stratified frequencies of a one-dimensional spectrum.

    The quantiles at the middles of ``count`` equal strata of its positive half: a
    random Fourier feature map without the randomness.
    """
    levels = [0.5 + (i + 0.5) / (2 * count) for i in range(count)]
    quantiles = [correlation.spectral_quantile(p) for p in levels]
    assert all(math.isfinite(q) for q in quantiles)
    return torch.tensor(quantiles, dtype=torch.float64)
