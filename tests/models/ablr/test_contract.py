"""MultiTaskABLR: what BoTorch expects of a model, with and without a task column."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.models import ModelListGP, SingleTaskGP
from botorch.utils.test_helpers import gen_multi_task_dataset
from model_test_case import StructuredModelTestCase
from torch import Tensor

from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork


class TestContract(StructuredModelTestCase):
    dim = 2
    free_columns = [0, 1]
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


@pytest.mark.parametrize("skip", [True, False])
def test_construct_inputs(skip: bool) -> None:
    datasets, (train_X, train_Y, train_Yvar) = gen_multi_task_dataset(
        yvar=0.05, skip_task_features_in_datasets=skip, dtype=torch.float64
    )
    inputs = MultiTaskABLR.construct_inputs(datasets, task_feature=0, output_tasks=[0])
    assert inputs["output_tasks"] == [0] and inputs["task_feature"] == 0
    if skip:  # the task feature is appended at the end
        torch.testing.assert_close(inputs["train_X"], train_X[..., [1, 0]])
        assert inputs["all_tasks"] == [0, 1]
    else:
        torch.testing.assert_close(inputs["train_X"], train_X)
        assert "all_tasks" not in inputs
    torch.testing.assert_close(inputs["train_Y"], train_Y)
    torch.testing.assert_close(inputs["train_Yvar"], train_Yvar)


def test_noise_variances_in_a_list_of_models() -> None:
    """BoTorch's list passes its own index to each model: it may be another task."""
    X = torch.rand(30, 3, dtype=torch.double)
    X[:, 0] = torch.tensor([0, 1, 5])[torch.arange(30) % 3]
    Y = X.sum(-1, keepdim=True) + 10.0 * X[:, :1]
    points, noise = X[:2, 1:], torch.full((2, 2), 0.1, dtype=torch.double)

    def in_a_list(place: int, **kwargs: Any) -> tuple[ModelListGP, MultiTaskABLR]:
        model = MultiTaskABLR(X, Y, 0, **kwargs)
        others = [SingleTaskGP(X[:, 1:], Y) for _ in range(place)]
        return ModelListGP(*others, model), model

    signals = MultiTaskABLR(X[:, 1:], Y, None)
    for several, model in (
        in_a_list(1, output_tasks=[1]),
        in_a_list(2, output_tasks=[0]),
        in_a_list(1, output_tasks=[0]),  # which is no place
        (ModelListGP(SingleTaskGP(X[:, 1:], Y), signals), signals),
    ):
        variances = noise[:, :1].expand(-1, several.num_outputs)
        found = several.posterior(points, observation_noise=variances)
        expected = model.posterior(points).mean
        torch.testing.assert_close(found.mean[:, -1:], expected)
        assert (found.variance > several.posterior(points).variance).all()
    # what cannot come from a list is as it was
    several, model = in_a_list(1, output_tasks=[0])
    both = model.posterior(points, output_indices=[1, 5], observation_noise=noise)
    alone = [model.posterior(points, output_indices=[t]).mean for t in (1, 5)]
    torch.testing.assert_close(both.mean, torch.cat(alone, -1))


def test_conditioning_a_list_without_batches() -> None:
    X, Y = torch.rand(9, 2, dtype=torch.double), torch.randn(9, 1, dtype=torch.double)
    new_X, new_Y = X[:2] + 0.01, torch.randn(2, 2, dtype=torch.double)
    both = ModelListGP(SingleTaskGP(X, Y), MultiTaskABLR(X, Y, None))
    both.posterior(X)
    found = both.condition_on_observations([new_X] * 2, new_Y).posterior(X).mean
    alone = both.models[1].condition_on_observations(new_X, new_Y[:, 1:])
    torch.testing.assert_close(found[0, :, 1:], alone.posterior(X).mean)
