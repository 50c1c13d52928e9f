"""What BoTorch's tests of ``MultiTaskGP`` say, where it makes sense for features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.utils.test_helpers import gen_multi_task_dataset

from botorch_structured.models import MultiTaskABLR


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
        (ModelListGP(SingleTaskGP(X[:, 1:], Y), signals), signals),
    ):
        variances = noise[:, :1].expand(-1, several.num_outputs)
        found = several.posterior(points, observation_noise=variances)
        expected = model.posterior(points).mean
        torch.testing.assert_close(found.mean[:, -1:], expected)
        assert (found.variance > several.posterior(points).variance).all()
    several, model = in_a_list(1, output_tasks=[0])
    with pytest.raises(ValueError, match=r"output_indices: .*ModelListGP.* got \[1\]"):
        several.posterior(points, observation_noise=noise)
    # what cannot come from a list is as it was
    both = model.posterior(points, output_indices=[1, 5], observation_noise=noise)
    alone = [model.posterior(points, output_indices=[t]).mean for t in (1, 5)]
    torch.testing.assert_close(both.mean, torch.cat(alone, -1))
    with pytest.raises(ValueError, match="output_indices: expected None where"):
        model.posterior(X[:2], output_indices=[0], observation_noise=noise[:, :1])


def test_conditioning_a_list_without_batches() -> None:
    X, Y = torch.rand(9, 2, dtype=torch.double), torch.randn(9, 1, dtype=torch.double)
    new_X, new_Y = X[:2] + 0.01, torch.randn(2, 2, dtype=torch.double)
    both = ModelListGP(SingleTaskGP(X, Y), MultiTaskABLR(X, Y, None))
    both.posterior(X)
    found = both.condition_on_observations([new_X] * 2, new_Y).posterior(X).mean
    alone = both.models[1].condition_on_observations(new_X, new_Y[:, 1:])
    torch.testing.assert_close(found[0, :, 1:], alone.posterior(X).mean)
