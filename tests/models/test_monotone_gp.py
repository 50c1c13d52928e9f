"""MonotoneGP: BoTorch's contract, signs, transforms, and what is kept when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from model_test_case import StructuredModelTestCase, sampler
from torch import Tensor

from botorch_structured.models import MonotoneGP


class TestContract(StructuredModelTestCase):
    dim = 2
    free_columns = [0, 1]
    path_fixed_features = [{1: 0.0}, {1: 1.0}]
    model_kwargs: dict[str, Any] = {"monotone": {0: 1}}

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        X = torch.rand(n, 2, generator=g)
        f = torch.tanh(2.0 * X[:, :1]) + 0.3 * torch.sin(5.0 * X[:, 1:])
        return X, f + 0.05 * torch.randn(n, 1, generator=g)

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> MonotoneGP:
        return MonotoneGP(X, Y, **(self.model_kwargs | kwargs))

    def test_noisy_expected_improvement(self) -> None:
        """With many samples: those of a noisy baseline are not the same ones."""
        model = self.fitted()
        X, points = self.make_data(24)[0], self.points(8, 2)
        values = []
        for cache_root in (True, False):
            acquisition = qLogNoisyExpectedImprovement(
                model,
                X_baseline=X,
                sampler=sampler(4096),
                prune_baseline=True,
                cache_root=cache_root,
            )
            values.append(acquisition(points))
            acquisition.set_X_pending(self.points(2))
            assert torch.isfinite(acquisition(points)).all()
        likely = values[0] > -8.0
        assert likely.any()
        torch.testing.assert_close(
            values[0][likely], values[1][likely], rtol=0.0, atol=0.1
        )
