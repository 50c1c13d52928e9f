"""MultiTaskABLR: what BoTorch expects of a model, with and without a task column."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from model_test_case import QUICK, StructuredModelTestCase
from torch import Tensor

from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork


class TestContract(StructuredModelTestCase):
    dim = 2
    free_columns = [0, 1]
    path_fixed_features = [{0: 0.3}, {0: 0.7}]
    model_kwargs: dict[str, Any] = {"task_feature": None}

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        X = torch.rand(n, 2, generator=g)
        f = torch.sin(4.0 * X[:, 0]) + X[:, 1]
        return X, (f + 0.05 * torch.randn(n, generator=g)).unsqueeze(-1)

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> MultiTaskABLR:
        network = TanhNetwork(2, widths=(8, 8))
        return MultiTaskABLR(X, Y, None, feature_map=network, **kwargs)

    def test_batched(self) -> None:
        X, Y = self.make_data(6)
        with pytest.raises(ValueError, match="expected one data set"):
            self.make_model(torch.stack([X, X]), torch.stack([Y, Y]))

    def test_cross_validation(self) -> None:  # of one model; folds would be a batch
        model = self.make_model(*self.make_data(10))
        assert loo_cv(model).posterior.mean.shape == (10, 1, 1)


class TestContractTasks(TestContract):
    """Three tasks, their column in the middle, one of them without rows."""

    dim = 3
    free_columns = [0, 2]
    path_fixed_features = [{1: 0.0}, {1: 3.0}]
    model_kwargs = {"task_feature": 1, "output_tasks": [3]}

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        X, Y = super().make_data(n, seed)
        task = 3.0 * (torch.arange(n) % 2)
        X = torch.stack([X[:, 0], task, X[:, 1]], dim=-1)
        return X, (1.0 + 0.2 * task.unsqueeze(-1)) * Y + task.unsqueeze(-1)

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> MultiTaskABLR:
        return MultiTaskABLR(
            X,
            Y,
            1,
            feature_map=TanhNetwork(2, widths=(8, 8)),
            output_tasks=[3],
            all_tasks=[0, 3, 5],
            **kwargs,
        )

    def test_cross_validation(self) -> None:
        model = self.make_model(*self.make_data(10))
        assert loo_cv(model, untransform=False).posterior.mean.shape == (10, 1, 1)
        # BoTorch does not say which rows its results are of; so with its own
        # StratifiedStandardize
        with pytest.raises(ValueError, match="X: expected inputs with their task"):
            loo_cv(model)

    def test_several_outputs(self) -> None:
        X, Y = self.make_data(24)
        with pytest.raises(ValueError, match="several tasks and several signals"):
            self.make_model(X, torch.cat([Y, Y], -1))
        model = MultiTaskABLR(X, Y, 1, feature_map=TanhNetwork(2, widths=(8, 8)))
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll, optimizer_kwargs=QUICK)
        points = self.points(3, 2)
        both = model.posterior(points[..., [0, 2]])
        assert both.mean.shape == (3, 2, 2)
        for i, task in enumerate((0.0, 3.0)):
            points[..., 1] = task
            one = model.posterior(points)
            torch.testing.assert_close(one.mean, both.mean[..., i : i + 1])
            torch.testing.assert_close(one.variance, both.variance[..., i : i + 1])
            part = model.subset_output([i]).posterior(points[..., [0, 2]])
            torch.testing.assert_close(part.mean, one.mean)
