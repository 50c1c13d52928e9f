"""Features of chunks of rows, and derivatives sent back through the feature map."""

from __future__ import annotations

__all__ = ["Pass", "Passes", "TanhPasses", "passes_of"]

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from botorch_structured.models.ablr.feature_maps import TanhNetwork


class Pass(NamedTuple):
    """What a pass forward leaves for the pass back.

    Attributes:
        values: Inputs, what is between if it is known, and outputs.
        memory: What ``values`` are views of, to be used again; else empty.
    """

    values: list[Tensor]
    memory: Tensor


class _WithSlope(torch.autograd.Function):
    """A scalar with a given derivative.

    The same as ``grad_outputs``, which make torch load its symbolic shapes when first
    used: 35 MiB.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, slope: Tensor) -> Tensor:
        ctx.slope = slope
        return values.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return ctx.slope, None


class Passes:
    """Passes over chunks of rows, by autograd.

    Args:
        features: The feature map, ``n x d`` to ``n x D``.
        parameters: Those of its parameters whose derivatives are wanted.
        of_inputs: Whether derivatives with respect to inputs are wanted.
    """

    def __init__(
        self, features: nn.Module, parameters: Sequence[Tensor], of_inputs: bool
    ) -> None:
        self.features, self.of_inputs = features, of_inputs
        self.parameters = list(parameters)
        self._sums = [torch.zeros_like(p) for p in parameters]

    def forward(self, X: Tensor) -> Pass:
        """Compute features and keep what the pass back needs.

        Args:
            X: ``n x d``.
        """
        X = X.detach().requires_grad_(self.of_inputs)
        with torch.enable_grad():
            return Pass([X, self.features(X)], X.new_empty(0))

    def features_of(self, done: Pass) -> Tensor:
        """The features, ``n x D``, without gradients."""
        return done.values[-1].detach()

    def backward(self, done: Pass, d_phi: Tensor) -> Tensor | None:
        """Add to the sums.

        Args:
            done: The pass forward, which is used up.
            d_phi: The derivative with respect to its features, ``n x D``.

        Returns:
            The derivative with respect to the inputs, ``n x d``; None if it is zero or
            not wanted.
        """
        X, phi = done.values
        if not phi.requires_grad:
            return None
        wanted = [*self.parameters, *([X] if self.of_inputs else [])]
        with torch.enable_grad():
            start = _WithSlope.apply(phi, d_phi)
        found = torch.autograd.grad(start, wanted, allow_unused=True)
        for total, g in zip(self._sums, found, strict=False):
            if g is not None:
                total.add_(g)
        return found[-1] if self.of_inputs else None

    def sums(self) -> list[Tensor]:
        """The derivatives with respect to the parameters, summed over all passes."""
        return self._sums


class TanhPasses(Passes):
    """Passes through a ``TanhNetwork``, written out.

    Each row is a column here: products are a sixth faster in this order, and it is
    LAPACK's. Memory is used again, since getting it from the system takes longer than
    computing what is written there.
    """

    features: TanhNetwork

    def __init__(
        self, features: TanhNetwork, parameters: Sequence[Tensor], of_inputs: bool
    ) -> None:
        super().__init__(features, parameters, of_inputs)
        with torch.enable_grad():
            self._graph = list(features.layers_of_sigmoids())
        self._layers = [(w.detach(), b.detach()) for w, b in self._graph]
        self._d_layers = [tuple(map(torch.zeros_like, pair)) for pair in self._layers]
        self._free: list[Tensor] = []

    def forward(self, X: Tensor) -> Pass:
        """See ``Passes``."""
        n, network = len(X), self.features
        sizes = [n * network.dim, *(n * len(weight) for weight, _ in self._layers)]
        memory = self._free.pop() if self._free else X.new_empty(0)
        if len(memory) < sum(sizes):
            memory = X.new_empty(sum(sizes))
        pieces = memory[: sum(sizes)].split(sizes)
        values = [piece.view(-1, n) for piece in pieces]
        torch.sub(X.mT, network.center[:, None], out=values[0])
        values[0].div_(network.half_range[:, None])
        for i, (weight, bias) in enumerate(self._layers):
            torch.addmm(bias[:, None], weight, values[i], out=values[i + 1]).sigmoid_()
        return Pass(values, memory)

    def features_of(self, done: Pass) -> Tensor:
        """See ``Passes``."""
        return done.values[-1].mul(2.0).sub_(1.0).mT

    def backward(self, done: Pass, d_phi: Tensor) -> Tensor | None:
        """See ``Passes``."""
        slope = 2.0 * d_phi.mT
        for i in reversed(range(len(self._layers))):
            (weight, _), (d_weight, d_bias) = self._layers[i], self._d_layers[i]
            before, after = done.values[i : i + 2]
            slope.mul_(after.addcmul_(after, after, value=-1.0))
            d_weight.addmm_(slope, before.mT)
            d_bias.add_(slope.sum(-1))
            if i or self.of_inputs:
                slope = weight.mT @ slope
        self._free.append(done.memory)
        return (
            slope.div_(self.features.half_range[:, None]).mT if self.of_inputs else None
        )

    def sums(self) -> list[Tensor]:
        """See ``Passes``."""
        if not self.parameters:
            return []
        with torch.enable_grad():
            scalars = [
                _WithSlope.apply(values, slope)
                for pair, slopes in zip(self._graph, self._d_layers, strict=True)
                for values, slope in zip(pair, slopes, strict=True)
            ]
            total = torch.stack(scalars).sum()
        found = torch.autograd.grad(
            total, self.parameters, allow_unused=True, materialize_grads=True
        )
        return list(found)


def passes_of(
    features: nn.Module, parameters: Sequence[Tensor], of_inputs: bool
) -> Passes:
    """The fastest passes that there are.

    Args:
        features: The feature map, ``n x d`` to ``n x D``.
        parameters: Those of its parameters whose derivatives are wanted.
        of_inputs: Whether derivatives with respect to inputs are wanted.
    """
    # a subclass, and an instance with a forward of its own, may compute something else
    if type(features) is TanhNetwork and "forward" not in vars(features):
        return TanhPasses(features, parameters, of_inputs)
    return Passes(features, parameters, of_inputs)
