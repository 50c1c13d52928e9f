"""What models make of a dataset and of what Ax says, and does not say, about it."""

from typing import Any

import pytest
import torch
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset

from botorch_structured.models import (
    ConditionalGP,
    MonotoneGP,
    MultiTaskABLR,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.spaces import ParameterTree

CONDITIONAL = [TreeStructuredGP, ConditionalGP]
DEPENDENCIES = {0: {0: [1], 1: [2]}}


def make_dataset(n: int = 12) -> SupervisedDataset:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, 3, generator=g, dtype=torch.double)
    X[:, 0] = torch.arange(n) % 2
    Y = torch.rand(n, 1, generator=g, dtype=torch.double)
    return SupervisedDataset(X, Y, feature_names=["a", "b", "c"], outcome_names=["y"])


def two_tasks(task_feature_index: int | None) -> MultiTaskDataset:
    """The tasks are the values of column 0, or a column is added for them."""
    data = make_dataset()
    tasks = []
    for task in (0, 1):
        X, Y = (values[data.X[:, 0] == task] for values in (data.X, data.Y))
        names = {"feature_names": data.feature_names, "outcome_names": [f"y{task}"]}
        tasks.append(SupervisedDataset(X, Y, **names))
    return MultiTaskDataset(tasks, "y0", task_feature_index=task_feature_index)


@pytest.mark.parametrize("model_class", CONDITIONAL)
def test_nothing_said_is_not_no_decisions(model_class: Any) -> None:
    data = make_dataset()
    with pytest.raises(ValueError, match="got None.*'flatten_hss': False.*model_opt"):
        model_class.construct_inputs(data)
    with pytest.raises(ValueError, match="hierarchical_dependencies: .* got None"):
        model_class(data.X, data.Y, None)
    for none in ({}, ParameterTree(3)):
        inputs = model_class.construct_inputs(data, hierarchical_dependencies=none)
        assert model_class(**inputs).tree.num_paths == 1
    for given in (DEPENDENCIES, ParameterTree(3, DEPENDENCIES)):
        inputs = model_class.construct_inputs(data, hierarchical_dependencies=given)
        assert model_class(**inputs).tree == ParameterTree(3, DEPENDENCIES)


@pytest.mark.parametrize(
    "model_class, kwargs",
    [(TreedGP, {}), (MonotoneGP, {"monotone": {1: 1}}), (MultiTaskABLR, {})],
)
def test_models_without_inactive_columns_say_so(model_class: Any, kwargs: Any) -> None:
    data = make_dataset()
    for given in (DEPENDENCIES, ParameterTree(3, DEPENDENCIES)):
        with pytest.raises(ValueError, match=f"{model_class.__name__} has no notion"):
            model_class.construct_inputs(
                data, hierarchical_dependencies=given, **kwargs
            )
    plain = model_class.construct_inputs(data, **kwargs)
    for none in ({}, {0: {0: [], 1: []}}, ParameterTree(3)):
        given = {"hierarchical_dependencies": none, **kwargs}
        assert plain.keys() == model_class.construct_inputs(data, **given).keys()


def test_unknown_signs_have_to_be_said() -> None:
    with pytest.raises(ValueError, match="monotone: expected .* got None"):
        MonotoneGP.construct_inputs(make_dataset())


def test_codes_without_an_order_are_not_taken_for_numbers() -> None:
    data = make_dataset()
    for model_class, kwargs in ((MonotoneGP, {"monotone": {}}), (MultiTaskABLR, {})):
        message = f"categorical_features.*{model_class.__name__}.*columns \\[0\\]"
        with pytest.raises(ValueError, match=message):
            model_class.construct_inputs(data, categorical_features=[0], **kwargs)
    with pytest.raises(ValueError, match=r"task_feature.* columns \[0\]"):
        MonotoneGP.construct_inputs(data, monotone={}, task_feature=-3)
    with pytest.raises(ValueError, match=r"task_feature.* columns \[3\]"):
        MonotoneGP.construct_inputs(two_tasks(None), monotone={})


@pytest.mark.parametrize("index, column", [(0, 0), (None, 3)])
def test_the_task_column_is_the_datasets(index: int | None, column: int) -> None:
    data = two_tasks(index)
    none: dict[str, Any] = {"hierarchical_dependencies": {}}
    for model_class in (*CONDITIONAL, TreedGP):
        for task in (None, column, column - data.X.shape[-1]):
            inputs = model_class.construct_inputs(data, task_feature=task, **none)
            assert inputs["categorical_features"] == [column]
    model = MultiTaskABLR(**MultiTaskABLR.construct_inputs(data))
    assert model.num_outputs == 2
    # a dataset without tasks has no such column
    inputs = MultiTaskABLR.construct_inputs(make_dataset())
    assert inputs["task_feature"] is None


def ax_model(
    model_class: Any,
    hierarchical: bool,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """What Ax makes of eight points of a space with a decision of two strings."""
    pytest.importorskip("ax")
    from ax.adapter.registry import Generators
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
    from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
    from ax.generators.torch.botorch_modular.utils import ModelConfig

    numbers = [
        RangeParameterConfig("rate", (1e-4, 1e-1), "float", scaling="log"),
        RangeParameterConfig("trees", (1, 500), "int"),
        RangeParameterConfig("s", (0.0, 1.0), "float"),
    ]
    active = {"linear": ["rate"], "boost": ["trees"]}
    learner = ChoiceParameterConfig(
        "m", ["linear", "boost"], "str", is_ordered=False, dependent_parameters=active
    )
    client = Client()
    client.configure_experiment([learner, *numbers] if hierarchical else numbers)
    client.configure_optimization(objective="y")
    for i in range(8):
        m = ["linear", "boost"][i % 2]
        point = {"m": m, "s": i / 8, "rate": 10.0 ** (i / 4 - 3), "trees": 1 + 50 * i}
        names = {"m", "s", *active[m]} if hierarchical else {"rate", "trees", "s"}
        point = {name: value for name, value in point.items() if name in names}
        trial = client.attach_trial(point)
        client.complete_trial(trial, raw_data={"y": (i - 4.2) ** 2 + i % 3})
    experiment = client._experiment
    config = ModelConfig(botorch_model_class=model_class, model_options=options or {})
    return Generators.BOTORCH_MODULAR(
        experiment=experiment,
        data=experiment.lookup_data(),
        surrogate_spec=SurrogateSpec(model_configs=[config]),
        **kwargs,
    )


@pytest.mark.parametrize("model_class", CONDITIONAL)
def test_ax_keeps_the_hierarchy_or_is_refused(model_class: Any) -> None:
    with pytest.raises(ValueError, match="'flatten_hss': False"):
        ax_model(model_class, hierarchical=True)
    registry = pytest.importorskip("ax.adapter.registry")
    adapter = ax_model(
        model_class,
        hierarchical=True,
        transforms=registry.Mixed_transforms + registry.Y_trans,
        transform_configs={"Cast": {"flatten_hss": False}},
    )
    model = adapter.generator.surrogate.model
    names = adapter.parameters
    at = {name: names.index(name) for name in ("m", "rate", "trees")}
    tree = ParameterTree(4, {at["m"]: {0: [at["rate"]], 1: [at["trees"]]}})
    assert model.tree == tree
    X = torch.zeros(2, 4, dtype=torch.double)
    X[:, at["m"]] = torch.arange(2)
    other = torch.where(model.tree.active_mask(X), X, X + 0.7)
    assert not torch.equal(X, other)
    with torch.no_grad():
        torch.testing.assert_close(model.posterior(X).mean, model.posterior(other).mean)
    few = {"optimizer_kwargs": {"num_restarts": 1, "raw_samples": 4}}
    suggestion = adapter.gen(1, model_gen_options=few)
    found = suggestion.arms[0].parameters
    active = {"linear": {"rate"}, "boost": {"trees"}}
    assert found.keys() == {"m", "s"} | active[found["m"]]


def test_a_flat_space_of_ax_has_to_be_said() -> None:
    with pytest.raises(ValueError, match="model_options"):
        ax_model(TreeStructuredGP, hierarchical=False)
    options = {"hierarchical_dependencies": {}}
    adapter = ax_model(TreeStructuredGP, hierarchical=False, options=options)
    assert adapter.generator.surrogate.model.tree.num_paths == 1
