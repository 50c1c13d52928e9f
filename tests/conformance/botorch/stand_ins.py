"""Our models behind the signature of ``SingleTaskGP``, to stand in its place."""

import math
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel, MaternKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Tensor

from botorch_structured.kernels import ConditionalKernel, TreeStructuredKernel
from botorch_structured.models import (
    ConditionalGP,
    MonotoneGP,
    MultiTaskABLR,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.spaces import Between, ParameterTree
from botorch_structured.spaces.conditions import Decision, cut_intervals


class _StandIn:
    """``SingleTaskGP``'s constructor; ``arguments`` are what the model needs more."""

    @staticmethod
    def arguments(train_X: Tensor) -> dict[str, Any]:
        raise AssertionError("a stand-in says what its model needs besides the data")

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        super().__init__(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            **self.arguments(train_X),
        )

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset) -> dict[str, Any]:
        """With what the model refuses to do without."""
        arguments = cls.arguments(training_data.X)
        required = arguments.keys() & {"hierarchical_dependencies", "monotone"}
        return super().construct_inputs(
            training_data, **{name: arguments[name] for name in required}
        )


class Halves(ParameterTree):
    """Any data are structured in it: a path below 0.5 in column 0, and one above.

    Column 1, if there is one, is active on the upper path only. A column of its own is
    what conditions are about, so that one column alone has to be cut by hand.
    """

    def __init__(self, dim: int) -> None:
        upper = Between(0, 0.5, math.inf)
        super().__init__(dim, conditions={1: upper} if dim > 1 else None)

    def _collect_decisions(self) -> list[Decision]:
        spans = tuple(cut_intervals([Between(0, 0.5, math.inf)]))
        return [Decision(0, spans, numeric=True, strict=False)]


def _no_decisions(train_X: Tensor) -> dict[str, Any]:
    return {"hierarchical_dependencies": {}}


class OneLeafTreeStructuredGP(_StandIn, TreeStructuredGP):
    arguments = staticmethod(_no_decisions)


class OnePathConditionalGP(_StandIn, ConditionalGP):
    arguments = staticmethod(_no_decisions)


class _OwnKernel(_StandIn):
    """With a kernel of leaves that is the user's, in a space without decisions."""

    arguments = staticmethod(_no_decisions)

    def __init__(
        self, train_X: Tensor, train_Y: Tensor, *args: Any, **kwargs: Any
    ) -> None:
        if len(args) < 3 and kwargs.get("covar_module") is None:
            _, batch_shape = self.get_batch_dimensions(train_X, train_Y)
            kwargs["covar_module"] = self.kernel(train_X.shape[-1], batch_shape)
        super().__init__(train_X, train_Y, *args, **kwargs)


class OwnKernelTreeStructuredGP(_OwnKernel, TreeStructuredGP):
    @staticmethod
    def kernel(dim: int, batch_shape: torch.Size) -> Kernel:
        return TreeStructuredKernel(ParameterTree(dim), batch_shape=batch_shape)


class OwnKernelConditionalGP(_OwnKernel, ConditionalGP):
    @staticmethod
    def kernel(dim: int, batch_shape: torch.Size) -> Kernel:
        base = MaternKernel(ard_num_dims=dim, batch_shape=batch_shape)
        return ConditionalKernel(base, ParameterTree(dim))


class _Halved(_StandIn):
    @staticmethod
    def arguments(train_X: Tensor) -> dict[str, Any]:
        return {"hierarchical_dependencies": Halves(train_X.shape[-1])}


class HalvesTreeStructuredGP(_Halved, TreeStructuredGP): ...


class HalvesConditionalGP(_Halved, ConditionalGP): ...


class OneLeafTreedGP(_StandIn, TreedGP):
    arguments = staticmethod(lambda train_X: {"max_leaves": 1})


class SplitTreedGP(_StandIn, TreedGP):
    """Split wherever there are four rows: by evidence, test data would hardly ever."""

    arguments = staticmethod(
        lambda train_X: {"min_leaf_size": 2, "split_criterion": "variance"}
    )


class PlainMonotoneGP(_StandIn, MonotoneGP):
    arguments = staticmethod(lambda train_X: {"monotone": {}})


class RisingMonotoneGP(_StandIn, MonotoneGP):
    """Rising with column 0, as seen at two points."""

    @staticmethod
    def arguments(train_X: Tensor) -> dict[str, Any]:
        rows = train_X.reshape(-1, train_X.shape[-1])
        ends = torch.stack([rows.amin(0), rows.amax(0)])
        return {"monotone": {0: 1}, "virtual_X": ends}


class SignalsABLR(_StandIn, MultiTaskABLR):
    arguments = staticmethod(lambda train_X: {"task_feature": None})


STAND_INS = {
    "TreeStructuredGP of one leaf": OneLeafTreeStructuredGP,
    "TreeStructuredGP with its kernel": OwnKernelTreeStructuredGP,
    "TreeStructuredGP of two paths": HalvesTreeStructuredGP,
    "ConditionalGP of one path": OnePathConditionalGP,
    "ConditionalGP with its kernel": OwnKernelConditionalGP,
    "ConditionalGP of two paths": HalvesConditionalGP,
    "TreedGP of one leaf": OneLeafTreedGP,
    "TreedGP": SplitTreedGP,
    "MonotoneGP without signs": PlainMonotoneGP,
    "MonotoneGP": RisingMonotoneGP,
    "MultiTaskABLR": SignalsABLR,
}
