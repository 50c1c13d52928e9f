from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.utils.datasets import SupervisedDataset
from model_test_case import StructuredModelTestCase, sampler
from torch import Tensor

from botorch_structured.models.treed_gp import TreedGP

PUBLISHED: dict[str, Any] = {
    "split_criterion": "variance",
    "path_sharing": "all",
    "condition_on": "all",
    "leaf_noise": False,
}


class TestContract(StructuredModelTestCase):
    """A step: two regimes on each data set, so that there are two leaves."""

    dim = 3
    free_columns = [0, 1, 2]
    path_fixed_features = [{0: 0.2}, {0: 0.8}]
    model_kwargs: dict[str, Any] = {"min_leaf_size": 3}

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        X = torch.rand(n, 3, generator=g)
        f = torch.where(X[:, 0] < 0.5, 0.3 * X[:, 1], 5.0 + torch.sin(6.0 * X[:, 1]))
        return X, (f + 0.01 * torch.randn(n, generator=g)).unsqueeze(-1)

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> TreedGP:
        return TreedGP(X, Y, **self.model_kwargs, **kwargs)

    def test_noisy_expected_improvement(self) -> None:
        """With many samples: those of a noisy baseline are not the same ones."""
        model = self.fitted()
        X, points = self.make_data(24)[0], self.points(3, 2)
        covariance = model.posterior(X).distribution.covariance_matrix
        joint = torch.cat([X.expand(3, 24, 3), points], dim=-2)
        full = model.posterior(joint).distribution.covariance_matrix
        torch.testing.assert_close(full[0, :24, :24], covariance)
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
        likely = values[0] > -10.0
        assert likely.any()
        torch.testing.assert_close(
            values[0][likely], values[1][likely], rtol=0.0, atol=0.1
        )

    def test_construct_inputs(self) -> None:
        X, Y = self.make_data(10)
        data = SupervisedDataset(
            X, Y, feature_names=[f"x{i}" for i in range(self.dim)], outcome_names=["y"]
        )
        inputs = TreedGP.construct_inputs(
            data,
            hierarchical_dependencies={},
            categorical_features=[1],
            task_feature=2,
            fidelity_features=[0],
        )
        assert inputs["categorical_features"] == [1, 2]
        model = TreedGP(**inputs, **self.model_kwargs)
        assert model.posterior(X).mean.shape == (10, 1)

    def test_the_data_make_leaves(self) -> None:
        for n in (10, 12, 24):
            assert self.make_model(*self.make_data(n)).partition.num_leaves > 1


class TestContractPublished(TestContract):
    """The method of the paper."""

    model_kwargs = {"min_leaf_size": 3, **PUBLISHED}
