"""MultiTaskABLR: what BoTorch expects of a model, with and without a task column."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from botorch.acquisition.knowledge_gradient import qMultiFidelityKnowledgeGradient
from botorch.acquisition.utils import project_to_target_fidelity
from botorch.cross_validation import loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.test_helpers import gen_multi_task_dataset
from model_test_case import StructuredModelTestCase
from torch import Tensor

from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork

pytestmark = pytest.mark.usefixtures("double")


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


def network() -> TanhNetwork:
    return TanhNetwork(2, widths=(8, 8))


def data(n: int = 21) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=g)
    task = torch.tensor([0, 2, 5])[torch.arange(n) % 3].double()
    Y = torch.sin(4.0 * X[:, 0]) * (1.0 + task) + X[:, 1] + 10.0 * task
    return torch.cat([X, task.unsqueeze(-1)], -1), Y.unsqueeze(-1)


def task_model(**kwargs: object) -> MultiTaskABLR:
    defaults = {"feature_map": network(), "output_tasks": [2]}
    return MultiTaskABLR(*data(), -1, **{**defaults, **kwargs})


def draws(count: int = 2) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([count]), seed=0)


def points(n: int = 4) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(5))


def test_fantasies_of_one_task_predict_the_others() -> None:
    model = task_model()
    fantasies = model.fantasize(points(3).unsqueeze(1), draws())
    for other in (fantasies, copy.deepcopy(fantasies)):
        # nothing was learnt about task 0, and there is one prediction for each fantasy
        posterior = other.posterior(points(), output_indices=[0])
        alone = model.posterior(points(), output_indices=[0])
        assert posterior.mean.shape == posterior.variance.shape == (2, 3, 4, 1)
        torch.testing.assert_close(posterior.mean, alone.mean.expand(2, 3, 4, 1))
        torch.testing.assert_close(
            posterior.variance, alone.variance.expand(2, 3, 4, 1)
        )
    rows = data()[0][:4]  # of all tasks
    assert fantasies.posterior(rows).mean.shape == (2, 3, 4, 1)
    assert fantasies.batch_shape == (2, 3)
    assert fantasies.train_inputs[0].shape == (2, 3, 22, 3)
    assert fantasies.train_targets.shape == (2, 3, 22)
    with pytest.raises(UnsupportedError, match="batch of conditioned models"):
        copy.deepcopy(fantasies).train().log_evidence()
    deeper = fantasies.condition_on_observations(rows, data()[1][:4])
    assert deeper.posterior(rows).mean.shape == (2, 3, 4, 1)
    one = model.condition_on_observations(
        points(3)[1:2],
        draws()(model.posterior(points(3).unsqueeze(1), None, True))[0, 1],
    ).condition_on_observations(rows, data()[1][:4])
    torch.testing.assert_close(
        deeper.posterior(rows).mean[0, 1], one.posterior(rows).mean
    )


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("signals", [False, True])
def test_a_batch_outlives_its_caches(given: bool, signals: bool) -> None:
    X, Y = data()
    if signals:
        X, Y = X[:, :2], torch.cat([Y, X[:, :1]], -1)
        Y[3, 0] = torch.nan
    noise = (0.01 + 0.1 * X[:, :1]).expand_as(Y) if given else None
    bounds = torch.tensor([[0.0] * X.shape[-1], [2.0] * X.shape[-1]])
    model = MultiTaskABLR(
        X,
        Y,
        None if signals else -1,
        train_Yvar=noise,
        feature_map=network(),
        input_transform=Normalize(X.shape[-1], indices=[0, 1], bounds=bounds),
        output_tasks=None if signals else [2, 5],
    )
    fantasies = model.fantasize(points(3).unsqueeze(1), draws())
    expected = fantasies.posterior(points(), observation_noise=True)
    again = copy.deepcopy(fantasies)
    again.train()
    again.eval()
    with pytest.raises(UnsupportedError, match="batch of conditioned models keeps"):
        again.load_state_dict(model.state_dict())
    for other in (again, pickle.loads(pickle.dumps(fantasies))):
        actual = other.posterior(points(), observation_noise=True)
        torch.testing.assert_close(actual.mean, expected.mean)
        torch.testing.assert_close(actual.variance, expected.variance)


def test_acquisitions_whose_candidates_have_a_task() -> None:
    model = task_model(output_tasks=[5])

    def project(X: Tensor) -> Tensor:
        return project_to_target_fidelity(X, {2: 5.0}, d=3)

    acquisition = qMultiFidelityKnowledgeGradient(
        model, num_fantasies=2, current_value=torch.tensor(0.0), project=project
    )
    # a candidate of task 2, fantasy solutions at task 5
    X = torch.cat([torch.rand(3, 3, 2), torch.full((3, 3, 1), 2.0)], -1)
    X.requires_grad_(True)
    values = acquisition(X)
    (gradient,) = torch.autograd.grad(values.sum(), X)
    assert gradient.isfinite().all()
    with torch.no_grad():  # of a task that says nothing about the target
        solved = model.posterior(project(X[:, 1:])).mean
    torch.testing.assert_close(values, solved.mean((-1, -2)))


def test_an_output_of_a_model_shares_its_rows() -> None:
    model = task_model(output_tasks=[2, 5])
    part = model.subset_output([-1])
    assert part.train_inputs[0] is model.train_inputs[0]
    expected = model.posterior(points()).mean[:, 1:]
    torch.testing.assert_close(part.posterior(points()).mean, expected)
    part.set_train_data(data()[0][:6], torch.zeros(6), strict=False)
    assert len(model.train_targets) == 21


@pytest.mark.parametrize("outcome_transform", [True, False])
@pytest.mark.parametrize("with_task", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_list_of_models_conditions_each(
    outcome_transform: bool, with_task: bool, known: bool
) -> None:
    X, Y = data()
    X, rows = (X, data(6)[0]) if with_task else (X[:, :2], points(6))
    kwargs: dict[str, Any] = {} if outcome_transform else {"outcome_transform": None}
    task = {"output_tasks": [2]} if with_task else {}
    model = MultiTaskABLR(X, Y, -1 if with_task else None, **task, **kwargs)
    several = ModelListGP(model, SingleTaskGP(X, Y))
    several.posterior(rows)
    new, noise = torch.rand(6, 2), torch.full((6, 2), 0.1)
    given = {"noise": noise} if known else {}
    found = several.condition_on_observations([rows, rows], new, **given)
    alone = noise[:, :1] if known else None
    if known and outcome_transform:  # BoTorch passes it as transformed outcomes have it
        _, alone = model.outcome_transform(new[:, :1], alone, X=rows)
    expected = model.condition_on_observations(rows, new[:, :1], noise=alone)
    posterior, wanted = (m.posterior(points()) for m in (found.models[0], expected))
    # as of BoTorch's models, where outcomes are standardised
    batch = (1,) if outcome_transform else ()
    assert posterior.batch_shape == batch
    for name in ("mean", "variance"):
        value = getattr(wanted, name).expand(*batch, -1, -1)
        torch.testing.assert_close(getattr(posterior, name), value)


@pytest.mark.parametrize("outcome_transform", [True, False])
def test_a_list_cannot_condition_signals_and_says_what_can(
    outcome_transform: bool,
) -> None:
    X, Y = data()[0][:, :2], torch.rand(21, 2)
    kwargs = {} if outcome_transform else {"outcome_transform": None}
    model = MultiTaskABLR(X, Y, None, feature_map=network(), **kwargs)
    several = ModelListGP(model, SingleTaskGP(X, Y[:, :1])).eval()
    with pytest.raises((ValueError, UnsupportedError), match="one by one"):
        several.condition_on_observations([X] * 3, torch.rand(21, 3))
