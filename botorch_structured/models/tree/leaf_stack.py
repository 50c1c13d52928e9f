"""Moments of points on leaves whose tables lie side by side; see ``leaf_moments``."""

from __future__ import annotations

__all__ = ["LeafStack"]

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_structured.linalg.correlations import Correlation, squared_distance

# What a leaf has there.
_TABLES = (
    *("inputs", "inverse", "data", "squares", "labels", "rates", "codes"),
    *("variance", "constant", "inverse_chol", "alpha", "of_data", "still"),
    *("of_features", "columns"),
)


@dataclass(frozen=True)
class LeafStack:
    """Tables of ``U`` leaves, see ``leaf_moments``; ``R`` is the number of rows of J.

    Those of ``m`` elements one after the other: ``U`` is ``m u`` except in the columns,
    which are the same for all elements.
    """

    correlation: Correlation
    elements: int  # m
    inputs: Tensor  # u x 1 x E
    inverse: Tensor  # U x 1 x E
    data: Tensor  # S x, U x N x E
    squares: Tensor  # their squared norms, U x 1 x N
    labels: Tensor  # u x 1 x F
    rates: Tensor  # U x 1 x F
    codes: Tensor  # T x, U x N x F
    variance: Tensor  # U x 1 x 1
    constant: Tensor  # U x 1 x 1
    inverse_chol: Tensor  # L^-1, U x N x N
    alpha: Tensor  # L^-T e, U x 1 x N
    of_data: Tensor  # [e, -H J'], U x N x (1 + R)
    still: Tensor  # z [mu, J'] of the features that are constant, U x 1 x (1 + R)
    of_features: Tensor  # [mu, J'] of the others, U x D x (1 + R)
    columns: Tensor  # u x 1 x D
    factors: tuple[Tensor, ...]  # a, b, u, w, f, U x 1 x D

    @cached_property
    def moving(self) -> Tensor:
        """The columns that moments depend on, ``u x (E + D)``."""
        return torch.cat([self.inputs, self.columns], dim=-1).squeeze(1)

    def __call__(
        self, X: Tensor, rows: Tensor | None, gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Moments at points.

        Args:
            X: Extended inputs, ``n x d``.
            rows: Those on each leaf, ``u x t``; None for all of them on the only one.
            gradient: Whether gradients are wanted.

        Returns:
            Means and variances, ``U x t``, and derivatives by the columns ``moving``,
            ``U x 2t x (E + D)``, those of the means first; or None.
        """
        if not gradient:
            return *self._values(X, rows), None
        scaled = self._columns(X, rows, self.inputs) * self.inverse
        distance = torch.baddbmm(self.squares, scaled, self.data.mT, alpha=-2.0)
        distance = distance.add_(scaled.square().sum(-1, True)).clamp_min_(0.0)
        k, slope = self.correlation.value_and_slope(distance)
        scale = self._scale(X, rows)
        k = torch.addcmul(self.constant, k, scale)
        w = k @ self.inverse_chol.mT
        both = torch.baddbmm(self.still, w, self.of_data)
        if self.columns.shape[-1]:
            a, b, u, frequency, phase = self.factors
            at = self._columns(X, rows, self.columns)
            angle = torch.addcmul(phase, frequency, at)
            z = torch.addcmul(torch.addcmul(a, b, at), u, angle.sin())
            both = torch.baddbmm(both, z, self.of_features)
        y = both[..., 1:]
        variance = (self.variance + self.constant).squeeze(-1) - w.square().sum(-1)
        variance = variance + y.square().sum(-1)
        back = torch.baddbmm(w, y, self.of_data[..., 1:].mT, beta=-2.0, alpha=2.0)
        slope = slope * (-2.0 * scale)
        g = torch.cat([slope * self.alpha, slope * (back @ self.inverse_chol)], dim=1)
        twice = torch.cat([scaled, scaled], dim=1) * g.sum(-1, True)
        g = torch.baddbmm(twice, g, self.data, alpha=-1.0) * self.inverse
        if self.columns.shape[-1]:
            rate = torch.addcmul(b, u * frequency, angle.cos())
            of_mean = rate * self.of_features[..., :1].mT
            of_variance = 2.0 * (y @ self.of_features[..., 1:].mT) * rate
            g = torch.cat([g, torch.cat([of_mean, of_variance], dim=1)], dim=-1)
        return both[..., 0], variance, g

    def _values(self, X: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Means and variances alone, of which many points are wanted at once.

        A new array of a thousand points takes as long as an operation on it, so there
        are few of them, and distances are one product, of (S x, |S x|^2, 1).
        """
        scaled = self._columns(X, rows, self.inputs).numpy() * self.inverse.numpy()
        width = scaled.shape[-1]
        point = np.ones((*scaled.shape[:-1], width + 2), dtype=scaled.dtype)
        point[..., :width] = scaled
        np.einsum("ute,ute->ut", scaled, scaled, out=point[..., width])
        k = point @ self._distances
        np.maximum(k, 0.0, out=k)
        self.correlation.array_value(k, k)
        k *= self._scale(X, rows).numpy()
        k += self.constant.numpy()
        w = k @ self.inverse_chol.mT.numpy()
        both = w @ self.of_data.numpy()
        both += self.still.numpy()
        if self.columns.shape[-1]:
            a, b, u, frequency, phase = (factor.numpy() for factor in self.factors)
            at = self._columns(X, rows, self.columns).numpy()
            z = np.sin(at * frequency + phase)
            z *= u
            z += at * b
            z += a
            both += z @ self.of_features.numpy()
        y = both[..., 1:]
        variance = (self.variance + self.constant).squeeze(-1).numpy() + np.einsum(
            "utr,utr->ut", y, y
        )
        variance -= np.einsum("utn,utn->ut", w, w)
        return torch.from_numpy(both[..., 0]), torch.from_numpy(variance)

    def _scale(self, X: Tensor, rows: Tensor | None) -> Tensor:
        """The variance times the second factor, ``U x t x N``, or ``U x 1 x 1``."""
        if not self.labels.shape[-1]:
            return self.variance
        codes = self._columns(X, rows, self.labels) * self.rates
        return self.variance * torch.exp(-squared_distance(codes, self.codes))

    @cached_property
    def _distances(self) -> np.ndarray:
        """What makes squared distances of (S x, |S x|^2, 1), ``U x (E + 2) x N``."""
        ones = torch.ones_like(self.squares)
        return torch.cat([-2.0 * self.data.mT, ones, self.squares], dim=1).numpy()

    def _columns(self, X: Tensor, rows: Tensor | None, index: Tensor) -> Tensor:
        """Columns ``u x 1 x E`` of rows ``u x t``: ``U x t x E``, or ``1 x t x E``."""
        if len(index) == 1:
            if rows is not None:
                X = X.index_select(0, rows.view(-1))
            return X.index_select(-1, index.view(-1)).unsqueeze(0)
        assert rows is not None, "of several leaves, which rows are on which"
        found = X[rows.unsqueeze(-1), index]
        return found if self.elements == 1 else found.repeat(self.elements, 1, 1)

    @staticmethod
    def joined(stacks: Sequence[LeafStack]) -> LeafStack:
        """The stacks of elements, one after the other."""
        first, shared = (
            stacks[0],
            {"correlation", "elements", "inputs", "labels", "columns"},
        )
        if len(stacks) == 1:
            return first
        names = [f.name for f in fields(first) if f.name not in shared]
        every: dict[str, Any] = {
            name: torch.cat([getattr(stack, name) for stack in stacks])
            for name in names
            if name != "factors"
        }
        factors = zip(*(stack.factors for stack in stacks), strict=True)
        every["factors"] = tuple(torch.cat(same) for same in factors)
        return replace(first, elements=len(stacks), **every)

    def tables(self) -> dict[str, Tensor]:
        """What ``LocalMoments`` takes, ``u x a x b`` each."""
        every = {name: getattr(self, name) for name in _TABLES}
        return every | dict(zip("abuwf", self.factors, strict=True))

    def part(self, at: list[int]) -> LeafStack:
        """Some of the leaves of one element."""
        index = torch.tensor(at)
        some: dict[str, Any] = {
            f.name: getattr(self, f.name)[index]
            for f in fields(self)
            if f.name not in ("correlation", "elements", "factors")
        }
        return replace(self, factors=tuple(f[index] for f in self.factors), **some)
