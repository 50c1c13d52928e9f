"""Call an acquisition function on many single points, in pieces that fit in memory."""

from __future__ import annotations

__all__ = ["Evaluator"]

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.spaces.arguments import check_count

# Numbers that one piece of a batch may need at once: points times training points
# times Monte Carlo samples.
_MAX_NUMBERS = 1 << 25
_MAX_ROWS = 1 << 14


class Evaluator:
    """An acquisition function on rows of a matrix, each a candidate of its own.

    Args:
        acq_function: Maps ``b x 1 x d`` to ``b``.
        batch_limit: Rows a call gets at most; by default as many as memory allows.
    """

    def __init__(
        self, acq_function: AcquisitionFunction, batch_limit: int | None = None
    ) -> None:
        self.acq_function = acq_function
        self.batch_limit = (
            self._default_limit()
            if batch_limit is None
            else check_count("batch_limit", batch_limit)
        )

    def _default_limit(self) -> int:
        model = getattr(self.acq_function, "model", None)
        inputs = getattr(model, "train_inputs", None) or ()
        # of all the members of an ensemble
        n = max(
            (t.shape[:-1].numel() for t in inputs if isinstance(t, Tensor)), default=1
        )
        shape = getattr(getattr(self.acq_function, "sampler", None), "sample_shape", ())
        # A Monte Carlo acquisition holds a joint sample with its baseline points.
        width = n + 16 * math.prod(shape) if shape else n
        return max(64, min(_MAX_ROWS, _MAX_NUMBERS // max(width, 1)))

    def values(self, X: Tensor) -> Tensor:
        """``n`` values of ``n x d`` points; -inf for NaN."""
        if not len(X):
            return X.new_zeros(0)
        with torch.no_grad():
            parts = [
                self.acq_function(part.unsqueeze(-2))
                for part in X.split(self.batch_limit)
            ]
        return _number(torch.cat([p.reshape(-1) for p in parts])).to(X)

    def value_and_gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """``n`` values and ``n x d`` gradients."""
        values, gradients = [], []
        with torch.enable_grad():
            for part in X.split(self.batch_limit):
                leaf = part.detach().unsqueeze(-2).requires_grad_(True)
                value = self.acq_function(leaf).reshape(-1)
                (gradient,) = (
                    torch.autograd.grad(value.sum(), leaf, allow_unused=True)
                    if value.requires_grad
                    else (None,)
                )
                values.append(value.detach())
                gradients.append(
                    torch.zeros_like(part) if gradient is None else gradient.squeeze(-2)
                )
        return (
            _number(torch.cat(values)).to(X),
            torch.cat(gradients).nan_to_num(0.0, 0.0, 0.0).to(X),
        )

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Gradients go to the points only: parameters need none meanwhile."""
        wanted = [p for p in self.acq_function.parameters() if p.requires_grad]
        for p in wanted:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in wanted:
                p.requires_grad_(True)


def _number(values: Tensor) -> Tensor:
    return torch.where(values.isnan(), -math.inf, values)
