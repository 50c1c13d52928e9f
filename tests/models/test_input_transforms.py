"""Transforms that add columns, expand points or are not what their parents are."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms import input as inputs
from botorch.models.transforms.input import AppendFeatures, FilterFeatures, Normalize
from botorch.sampling import IIDNormalSampler
from torch import Tensor

from botorch_structured.models import (
    ConditionalGP,
    MonotoneGP,
    MultiTaskABLR,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.spaces import ParameterTree

TREE = ParameterTree(4, {0: {0.0: [1], 1.0: [2]}})


pytestmark = pytest.mark.usefixtures("double")


def data(n: int = 24) -> tuple[Tensor, Tensor]:
    """Column 0 is a decision, or a task."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, 4, generator=g)
    X[:, 0] = torch.arange(n) % 2
    return X, torch.sin(4.0 * X.sum(-1, keepdim=True))


def points() -> Tensor:
    T = data(6)[0] * 0.9
    T[:, 0] = torch.arange(6) % 2
    T[:, 3] = 0.25
    return T


def feature() -> Tensor:
    return torch.tensor([[0.25]])


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.variance, b.variance)


def monotone(X: Tensor, Y: Tensor, **kwargs: Any) -> MonotoneGP:
    box = torch.tensor([[0.0] * 4, [1.0] * 4])
    return MonotoneGP(X, Y, {1: 1}, virtual_X=box, **kwargs)


MODELS: dict[str, Callable[..., GPyTorchModel]] = {
    "monotone": monotone,
    "tree": lambda X, Y, **kwargs: TreeStructuredGP(X, Y, TREE, **kwargs),
    "conditional": lambda X, Y, **kwargs: ConditionalGP(X, Y, TREE, **kwargs),
    "treed": lambda X, Y, **kwargs: TreedGP(
        X, Y, split_criterion="variance", min_leaf_size=3, **kwargs
    ),
    "tasks": lambda X, Y, **kwargs: MultiTaskABLR(X, Y, 0, **kwargs),
    "signals": lambda X, Y, **kwargs: MultiTaskABLR(X, Y, None, **kwargs),
}


@pytest.mark.parametrize("name", MODELS)
def test_features_that_are_appended_to_what_is_predicted(name: str) -> None:
    """As for risk measures: training data have the column, candidates do not."""
    X, Y = data()
    T = points()
    model = MODELS[name](X, Y, input_transform=AppendFeatures(feature()))
    same(model.posterior(T[:, :3]), MODELS[name](X, Y).posterior(T))
    both = inputs.ChainedInputTransform(
        add=AppendFeatures(feature()), scale=Normalize(4)
    )
    if name == "tasks":
        both["scale"] = Normalize(4, indices=[1, 2, 3])
    expected = MODELS[name](X, Y, input_transform=both["scale"].train()).posterior(T)
    same(MODELS[name](X, Y, input_transform=both).posterior(T[:, :3]), expected)


@pytest.mark.parametrize("name", MODELS)
def test_perturbed_points(name: str) -> None:
    X, Y = data()
    T = points()
    noise = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.03, 0.02, 0.01]])
    model = MODELS[name](X, Y, input_transform=inputs.InputPerturbation(noise))
    shaken = (T.unsqueeze(-2) + noise).flatten(0, 1)
    same(model.posterior(T), MODELS[name](X, Y).posterior(shaken))
    noise[1, 0] = 0.4
    if name in ("tree", "conditional", "tasks"):
        with pytest.raises(ValueError, match="input_transform: expected"):
            MODELS[name](X, Y, input_transform=inputs.InputPerturbation(noise))


@pytest.mark.parametrize("column", [2, -1, 0])
@pytest.mark.parametrize("on_train", [False, True])
def test_the_task_column_is_counted_as_inputs_have_it(
    column: int, on_train: bool
) -> None:
    X, Y = data()
    order = {2: [1, 2, 0, 3], -1: [1, 2, 0, 3], 0: [0, 1, 2, 3]}[column]
    X, T = X[:, order], points()[:, order]
    task = 2 if column == -1 else column
    if on_train:  # -1 is the last column of what was given
        X = torch.cat([X[:, :3], feature().expand(len(X), 1)], dim=-1)
    elif column == -1:
        column = -2
    given = X[:, :3] if on_train else X
    transform = AppendFeatures(
        feature(), transform_on_train=on_train, transform_on_fantasize=on_train
    )
    model = MultiTaskABLR(given, Y, column, output_tasks=[1], input_transform=transform)
    known = MultiTaskABLR(X, Y, task, output_tasks=[1])
    with_task = T.clone()
    with_task[:, task] = 1.0
    others = [j for j in range(3) if j != task]
    expected = known.posterior(with_task, observation_noise=True)
    for rows in (with_task[:, :3], with_task[:, others]):
        same(model.posterior(rows, observation_noise=True), expected)
    with pytest.raises(ValueError, match="X: expected 3 columns"):
        model.posterior(T)
    at = (with_task[:2, :3], with_task[:2]) if on_train else (with_task[:2],) * 2
    pair = zip((model, known), at, strict=True)
    fantasies = [
        m.fantasize(x, IIDNormalSampler(torch.Size([2]), seed=0)) for m, x in pair
    ]
    same(fantasies[0].posterior(with_task[:, :3]), fantasies[1].posterior(with_task))


def test_the_task_column_stays_where_it_is() -> None:
    X, Y = data()
    for columns, on_train in (([1, 2, 0], True), ([1, 2, 3, 0], False)):
        transform = FilterFeatures(torch.tensor(columns), transform_on_train=on_train)
        with pytest.raises(ValueError, match="leaves the task column"):
            MultiTaskABLR(X, Y, 0, input_transform=transform)
    # one observation is not several rows
    several = AppendFeatures(torch.tensor([[0.2], [0.4]]))
    model = MultiTaskABLR(X, Y, 0, output_tasks=[1], input_transform=several)
    assert model.posterior(points()[:, :3]).mean.shape == (12, 1)
    with pytest.raises(ValueError, match="treats new observations"):
        model.condition_on_observations(points()[:1, :3], Y[:1])


@pytest.mark.parametrize("model_class", [TreeStructuredGP, ConditionalGP])
def test_categories_of_a_flat_space_are_not_normalised(model_class: Any) -> None:
    """Without decisions, too: their known values would not be found again."""
    X, Y = data()
    X[:, 0] = torch.arange(24) % 3 + 1.0
    make = partial(model_class, X, Y, ParameterTree(4), categorical_features=[0])
    model = make(input_transform=Normalize(4))
    assert model.input_transform.indices.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="input_transform: expected"):
        make(input_transform=FilterFeatures(torch.tensor([1, 2, 3])))


def test_categories_of_a_treed_model_stay_in_their_columns() -> None:
    X, Y = data()
    without = FilterFeatures(torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="categorical columns"):
        TreedGP(X, Y, categorical_features=[0], input_transform=without)
    added = AppendFeatures(feature(), transform_on_train=True)
    model = TreedGP(X[:, :3], Y, categorical_features=[0], input_transform=added)
    assert model.covar_module.categorical == [0]


class Squared(Normalize):
    def _transform(self, X: Tensor) -> Tensor:
        return super()._transform(X).square()


class Shifted(inputs.ChainedInputTransform):
    def transform(self, X: Tensor) -> Tensor:
        X = super().transform(X).clone()
        X[..., 3] += 0.25
        return X

    def preprocess_transform(self, X: Tensor) -> Tensor:
        return self.transform(X)


@pytest.mark.parametrize("name", ["tree", "conditional"])
def test_a_subclass_transforms_in_its_own_way(name: str) -> None:
    X, Y = data()
    bounds = torch.tensor([[0.0], [2.0]]).expand(2, 4)
    some = {"indices": [1, 2, 3], "bounds": bounds[:, 1:]}
    squared = MODELS[name](X, Y, input_transform=Squared(4, **some))
    by_hand, T = X.clone(), points()
    by_hand[:, 1:] = (X[:, 1:] / 2.0).square()
    at = T.clone()
    at[:, 1:] = (T[:, 1:] / 2.0).square()
    same(squared.posterior(T), MODELS[name](by_hand, Y).posterior(at))
    shifted = MODELS[name](X, Y, input_transform=Shifted(n=Normalize(4, **some)))
    by_hand, at = (
        torch.cat([x[:, :1], x[:, 1:3] / 2.0, x[:, 3:] / 2.0 + 0.25], -1)
        for x in (X, T)
    )
    same(shifted.posterior(T), MODELS[name](by_hand, Y).posterior(at))
    for learnt in (
        Squared(4, indices=[1, 2, 3]),
        Shifted(n=Normalize(4, indices=[1, 2, 3])),
        inputs.BatchBroadcastedInputTransform([Normalize(4, indices=[1, 2, 3])]),
    ):
        with pytest.raises(ValueError, match="learn from inactive entries"):
            MODELS[name](X, Y, input_transform=learnt)
