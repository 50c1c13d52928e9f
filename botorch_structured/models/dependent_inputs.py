"""Constructor arguments of models, as BoTorch and Ax ask for them.

Ax hands over what its transforms left of a search space, and nothing where they left
nothing: the same silence for a flat space and for a hierarchical one that was
flattened. No model takes it for an answer.
"""

from __future__ import annotations

__all__ = [
    "DependentInputs",
    "dataset_task",
    "refuse_categories",
    "refuse_dependencies",
]

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset

from botorch_structured.spaces import ParameterTree

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models import SingleTaskGP as _Base
else:
    _Base = object


class DependentInputs(_Base):
    """``construct_inputs`` of models that take ``hierarchical_dependencies``."""

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        *,
        hierarchical_dependencies: (
            ParameterTree | Mapping[int, Mapping[float, Sequence[int]]] | None
        ) = None,
        categorical_features: Sequence[int] | None = None,
        task_feature: int | None = None,
        fidelity_features: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        r"""Constructor arguments from a dataset, as BoTorch and Ax ask for them.

        Args:
            training_data: The data.
            hierarchical_dependencies: As in the constructor. It has to be given; ``{}``
                says that there are no decisions.
            categorical_features: Columns without an order.
            task_feature: A task is one more column without an order. Default: that of
                a ``MultiTaskDataset``.
            fidelity_features: Fidelities are ordinary columns of these models.

        Raises:
            ValueError: Without ``hierarchical_dependencies``. Ax gives none where its
                ``Cast`` has flattened the space, which is what it does by default.
        """
        if hierarchical_dependencies is None:
            raise ValueError(
                "hierarchical_dependencies: expected {column: {value: [columns]}}, "
                "with {} for a space without decisions, got None. In Ax, keep the "
                "hierarchy: give the generator transforms=Mixed_transforms + Y_trans "
                "and transform_configs={'Cast': {'flatten_hss': False}}; where there "
                "is none, give the ModelConfig "
                "model_options={'hierarchical_dependencies': {}}."
            )
        categorical = list(categorical_features or [])
        task = dataset_task(training_data, task_feature)
        if task is not None:
            categorical.append(task)
        inputs = super().construct_inputs(training_data=training_data)
        inputs["hierarchical_dependencies"] = hierarchical_dependencies
        if categorical:
            inputs["categorical_features"] = categorical
        return inputs


def dataset_task(
    training_data: SupervisedDataset, task_feature: int | None
) -> int | None:
    """The task column, counted from the first; default: a ``MultiTaskDataset``'s."""
    if task_feature is None:
        if not isinstance(training_data, MultiTaskDataset):
            return None
        own = training_data.task_feature_index
        task_feature = -1 if own is None else own  # BoTorch appends it
    return task_feature + training_data.X.shape[-1] * (task_feature < 0)


def refuse_categories(model: type, *columns: int | None) -> None:
    """Of models that would take the codes of a column without an order for numbers.

    Raises:
        ValueError: If there is such a column.
    """
    given = [column for column in columns if column is not None]
    if given:
        raise ValueError(
            f"categorical_features, task_feature: expected none, as {model.__name__} "
            f"takes the values of every column for numbers, got columns {given}. "
            "Encode them one-hot, as Ax does unless given other transforms, or leave "
            "out this argument where the order of the values has a meaning."
        )


def refuse_dependencies(
    model: type,
    training_data: SupervisedDataset,
    hierarchical_dependencies: (
        ParameterTree | Mapping[int, Mapping[float, Sequence[int]]] | None
    ),
) -> None:
    """Of models that would compare whatever stands in inactive columns.

    Raises:
        ValueError: If a column depends on another.
    """
    tree = ParameterTree.from_any(
        hierarchical_dependencies or {}, training_data.X.shape[-1]
    )
    if tree.conditions:
        raise ValueError(
            f"hierarchical_dependencies: expected none, as {model.__name__} has no "
            f"notion of inactive columns, got {hierarchical_dependencies!r}. Take a "
            "TreeStructuredGP or a ConditionalGP; or fill inactive columns (an Impute "
            "transform; in Ax, Cast with flatten_hss=True) and leave this argument out."
        )
