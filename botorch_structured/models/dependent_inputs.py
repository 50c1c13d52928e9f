"""Constructor arguments of models on conditional spaces, as BoTorch and Ax ask."""

from __future__ import annotations

__all__ = ["DependentInputs"]

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from botorch.utils.datasets import SupervisedDataset

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
        hierarchical_dependencies: Mapping[int, Mapping[float, Sequence[int]]]
        | None = None,
        categorical_features: Sequence[int] | None = None,
        task_feature: int | None = None,
        fidelity_features: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        r"""Constructor arguments from a dataset, as BoTorch and Ax ask for them.

        Args:
            training_data: The data.
            hierarchical_dependencies: Default: no dependencies.
            categorical_features: Columns without an order.
            task_feature: A task is one more column without an order.
            fidelity_features: Fidelities are ordinary columns of these models.
        """
        categorical = list(categorical_features or [])
        if task_feature is not None:
            categorical.append(task_feature)
        inputs = super().construct_inputs(training_data=training_data)
        inputs["hierarchical_dependencies"] = hierarchical_dependencies or {}
        if categorical:
            inputs["categorical_features"] = categorical
        return inputs
