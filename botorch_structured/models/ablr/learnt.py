"""What a regression for a new task has from old ones, as modules that do not change."""

from __future__ import annotations

__all__ = [
    "LearntFeatures",
    "LearntInputs",
    "LearntMean",
    "UsualScale",
]

from copy import deepcopy
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from gpytorch.means import Mean
from torch import Tensor, nn

from botorch_structured.models.outcome_scale import AnyScaleStandardize


def _frozen(module: nn.Module) -> Any:
    """A copy that is not learnt, without the prior of what is: that is a constant."""
    new = deepcopy(module).requires_grad_(False)
    for part in new.modules():
        getattr(part, "_priors", {}).clear()
    return new


class LearntInputs(InputTransform):
    """The input transform of the old tasks, for inputs without their task column.

    Args:
        model: A ``MultiTaskABLR`` with a task column and an input transform.
    """

    transform_on_train = transform_on_eval = transform_on_fantasize = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = _frozen(model.input_transform).eval()
        self.tasks = deepcopy(model.tasks)
        self.value = int(self.tasks.values[0])
        self.is_one_to_many = self.inner.is_one_to_many

    def train(self, mode: bool = True) -> LearntInputs:
        """The mode says which rows these are, not that anything is learnt from them."""
        super().train(mode)
        self.inner.eval()
        return self

    def transform(self, X: Tensor) -> Tensor:
        """``batch_shape x n x d`` inputs, as they are to be in this mode."""
        if self.training:
            return self.preprocess_transform(X)
        return self.tasks.without(self.inner(self.tasks.insert(X, self.value)))

    def preprocess_transform(self, X: Tensor) -> Tensor:
        """``batch_shape x n x d`` inputs that are trained on."""
        rows = self.tasks.insert(X, self.value)
        return self.tasks.without(self.inner.preprocess_transform(rows))


class LearntFeatures(nn.Module):
    r"""Features that are not learnt any more, ``phi(x)' L``, and a constant.

    With weights ``N(0, I)`` of these, those of ``phi`` are ``N(0, L L')``.

    Args:
        model: A ``MultiTaskABLR`` with a task column.
        root: L, ``D x D``.
        level: The constant feature.
    """

    root: Tensor
    level: Tensor

    def __init__(self, model: Any, root: Tensor, level: float = 1.0) -> None:
        super().__init__()
        self.module = _frozen(model.feature_map)
        # not the population's own: a state may be loaded into this
        root = root.detach().clone().to(model.train_targets)
        self.register_buffer("root", root)
        self.register_buffer("level", self.root.new_tensor(level))
        self.eval()

    def train(self, mode: bool = True) -> LearntFeatures:
        """Always in evaluation mode: nothing here learns from the new task's rows."""
        return super().train(False)

    def forward(self, X: Tensor) -> Tensor:
        """``batch_shape x n x (D + 1)`` features of transformed inputs."""
        phi = self.module(X) @ self.root
        return torch.cat([phi, self.level.expand(*phi.shape[:-1], 1)], dim=-1)


class LearntMean(Mean):
    """The curve that tasks have in common.

    Args:
        features: Of the new task, the last of which is a constant.
        weights: Of all but the last, ``D``.
    """

    weights: Tensor

    def __init__(self, features: LearntFeatures, weights: Tensor) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("weights", weights.detach().clone().to(features.root))

    def forward(self, x: Tensor) -> Tensor:
        """``batch_shape x n`` means at transformed inputs."""
        return self.features(x)[..., :-1] @ self.weights


class UsualScale(AnyScaleStandardize):
    """Outcomes less a level and in units of a scale that are not learnt from them.

    Args:
        level: What is subtracted.
        scale: What they are divided by, positive.
    """

    def __init__(self, level: float, scale: float) -> None:
        super().__init__(m=1)
        self.means = torch.full((1, 1), level, dtype=torch.float64)
        self.stdvs = torch.full((1, 1), scale, dtype=torch.float64)
        self._stdvs_sq = self.stdvs.square()
        self._is_trained = torch.tensor(True)

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Transform, see ``Standardize.forward``; in training mode nothing changes."""
        means, stdvs = self.means.to(Y), self.stdvs.to(Y)
        return (Y - means) / stdvs, None if Yvar is None else Yvar / stdvs.square()

    def subset_output(self, idcs: list[int]) -> UsualScale:
        """The same: there is one output.

        Args:
            idcs: ``[0]`` or ``[-1]``.
        """
        if list(idcs) not in ([0], [-1]):
            raise ValueError(f"idcs: expected those of one output, got {idcs}.")
        return deepcopy(self)
