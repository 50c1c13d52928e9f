"""What BoTorch's tests of ``MultiTaskGP`` say, where it makes sense for features."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.transforms import Normalize, Standardize
from botorch.posteriors import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.utils.test_helpers import gen_multi_task_dataset
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
)
from gpytorch.means import LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior

from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork


def network() -> TanhNetwork:
    return TanhNetwork(1, widths=(6, 6))


@pytest.mark.parametrize(
    ("dtype", "fixed_noise", "task_values", "transforms"),
    [
        (torch.float32, False, None, False),
        (torch.float64, False, None, True),
        (torch.float64, True, [0, 2], True),
        (torch.float64, False, [1, 4], False),
    ],
)
@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_multi_task_gp(
    dtype: torch.dtype,
    fixed_noise: bool,
    task_values: list[int] | None,
    transforms: bool,
    device: torch.device,
) -> None:
    tkwargs: dict[str, Any] = {"device": device, "dtype": dtype}
    datasets, (train_X, train_Y, train_Yvar) = gen_multi_task_dataset(
        yvar=0.05 if fixed_noise else None, task_values=task_values, **tkwargs
    )
    values = task_values or [0, 1]
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **tkwargs)
    model = MultiTaskABLR(
        train_X,
        train_Y,
        train_Yvar=train_Yvar,
        task_feature=0,
        input_transform=Normalize(d=2, bounds=bounds) if transforms else None,
        outcome_transform=Standardize(m=1) if transforms else None,
        feature_map=network(),
    ).to(**tkwargs)
    assert isinstance(model, MultiTaskGPyTorchModel)
    assert not model._supports_batched_models
    assert model.num_outputs == 2
    if fixed_noise:
        assert isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
    else:
        assert isinstance(model.likelihood, HadamardGaussianLikelihood)
        assert model.likelihood.noise.shape == (2,)
        assert model.likelihood.task_feature_index == 0
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 1}}, max_attempts=1)
    batch = torch.rand(3, 2, 1, **tkwargs)
    posterior = model.posterior(batch)
    noisy = model.posterior(batch, observation_noise=True)
    assert isinstance(posterior, GPyTorchPosterior)
    assert isinstance(posterior.distribution, MultitaskMultivariateNormal)
    assert posterior.mean.shape == posterior.variance.shape == (3, 2, 2)
    if fixed_noise:
        levels = torch.tensor([0.05, 0.1], **tkwargs)
    else:
        levels = model.likelihood.noise_covar.noise
        if transforms:
            levels = levels * model.outcome_transform.stdvs.squeeze() ** 2
    added = torch.diag(levels.repeat_interleave(2)).expand(3, 4, 4)
    torch.testing.assert_close(
        noisy.covariance_matrix, posterior.covariance_matrix + added
    )
    if transforms:
        assert model.train_inputs[0].equal(model.input_transform(train_X))
    with pytest.raises(ValueError, match="observation_noise: expected"):
        model.posterior(batch[0], observation_noise=torch.rand(2, **tkwargs))
    # one output
    one = model.posterior(batch[0], output_indices=values[:1], observation_noise=True)
    assert isinstance(one.distribution, MultivariateNormal)
    assert one.mean.shape == one.variance.shape == (2, 1)
    with pytest.raises(ValueError, match="unexpected task values"):
        model.posterior(batch[0], output_indices=[3])
    # with the task in X
    expected = model.posterior(batch, output_indices=values[:1])
    full = torch.cat([torch.full_like(batch, values[0]), batch], dim=-1)
    actual = model.posterior(full)
    torch.testing.assert_close(actual.mean, expected.mean)
    torch.testing.assert_close(actual.covariance_matrix, expected.covariance_matrix)
    with pytest.raises(ValueError, match="output_indices: expected None where"):
        model.posterior(full, output_indices=values)
    full[0, 0, 0] = 3.0
    message = "task features in `X`"
    if task_values is not None:
        message = "Received invalid raw task values. Expected raw value to be in"
    with pytest.raises(ValueError, match=message):
        model.posterior(full)
    if transforms:  # on the scale of the outcomes
        scale, shift = model.outcome_transform.stdvs, model.outcome_transform.means
        raw = model(torch.cat([torch.full_like(batch, values[0]), batch], -1))
        torch.testing.assert_close(
            expected.mean, shift + scale * raw.mean.unsqueeze(-1)
        )
        assert not isinstance(expected, TransformedPosterior)


def test_bad_arguments() -> None:
    _, (train_X, train_Y, _) = gen_multi_task_dataset(dtype=torch.float64)
    with pytest.raises(ValueError, match="expected one data set"):
        MultiTaskABLR(torch.rand(2, 2, 2).double(), torch.rand(2, 2, 1).double(), 0)
    with pytest.raises(ValueError, match="task_feature"):
        MultiTaskABLR(train_X, train_Y, 2)
    with pytest.raises(RuntimeError, match="output_tasks"):
        MultiTaskABLR(train_X, train_Y, 0, output_tasks=[2])
    with pytest.raises(UnsupportedError, match="does not contain all"):
        MultiTaskABLR(train_X=train_X, train_Y=train_Y, task_feature=0, all_tasks=[0])
    model = MultiTaskABLR(train_X, train_Y, task_feature=0, all_tasks=[0, 1, 2, 3])
    assert model.num_tasks == model.num_outputs == 4


def test_single_output_and_posterior_transform() -> None:
    _, (train_X, train_Y, _) = gen_multi_task_dataset(dtype=torch.float64)
    model = MultiTaskABLR(train_X, train_Y, 0, output_tasks=[1], feature_map=network())
    for shape in ((2, 1), (3, 2, 1)):
        X = torch.rand(shape, dtype=torch.float64)
        posterior = model.posterior(X)
        assert isinstance(posterior.distribution, MultivariateNormal)
        weights = torch.ones(1, dtype=torch.float64)
        transformed = model.posterior(
            X, posterior_transform=ScalarizedPosteriorTransform(weights)
        )
        assert torch.equal(posterior.mean, transformed.mean)


def test_custom_mean_and_likelihood() -> None:
    _, (train_X, train_Y, _) = gen_multi_task_dataset(dtype=torch.float64)
    mean_module = LinearMean(input_size=train_X.shape[-1])
    likelihood = GaussianLikelihood(noise_prior=LogNormalPrior(0, 1))
    model = MultiTaskABLR(
        train_X, train_Y, 0, mean_module=mean_module, likelihood=likelihood
    )
    assert model.mean_module is mean_module
    assert model.likelihood is likelihood
    assert torch.isfinite(model.posterior(train_X).mean).all()


def test_multiple_output_indices() -> None:
    for fixed_noise, noise in itertools.product((True, False), (True, False)):
        _, (train_X, train_Y, train_Yvar) = gen_multi_task_dataset(
            yvar=0.05 if fixed_noise else None,
            task_values=[0, 1, 2],
            dtype=torch.float64,
        )
        model = MultiTaskABLR(
            train_X, train_Y, 0, train_Yvar=train_Yvar, feature_map=network()
        )
        posterior = model.posterior(
            torch.rand(2, 1, dtype=torch.float64),
            output_indices=[0, 2],
            observation_noise=noise,
        )
        assert isinstance(posterior.distribution, MultivariateNormal)
        assert posterior.mean.shape == posterior.variance.shape == (2, 2)


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
