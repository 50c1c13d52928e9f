"""Default values for inactive columns.

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

__all__ = ["Impute"]

from collections.abc import Mapping

import torch
from botorch.models.transforms.input import InputTransform
from torch import Tensor

from botorch_structured.spaces import ParameterTree
from botorch_structured.spaces.arguments import check_column, check_number


class Impute(InputTransform):
    r"""Set inactive columns to a default value, for models without a tree.

    Choose it to use ``SingleTaskGP``, or a forest, in a conditional space: the values
    in inactive columns, which mean nothing, would otherwise count in distances
    ([Levesque2017conditional]_, section III-A and figure 2). Tree-structured models of
    this package do not read inactive columns and need no imputation. Put it before a
    ``Normalize``::

        transform = ChainedInputTransform(
            impute=Impute(tree, bounds), normalize=Normalize(d, bounds=bounds)
        )
        model = SingleTaskGP(train_X, train_Y, input_transform=transform)

    Args:
        tree: Which columns are active where.
        bounds: ``2 x d``; the default value is the middle. By default [0, 1]^d.
        defaults: Other default values: ``{column: value}``, or ``d`` numbers.
        transform_on_train: Whether training inputs are imputed.
        transform_on_eval: Whether test inputs are.
        transform_on_fantasize: Whether inputs of fantasies are.

    Raises:
        ValueError: For bounds or defaults that do not fit the tree, or are not finite.
    """

    def __init__(
        self,
        tree: ParameterTree,
        bounds: Tensor | None = None,
        defaults: Mapping[int, float] | Tensor | None = None,
        transform_on_train: bool = True,
        transform_on_eval: bool = True,
        transform_on_fantasize: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(tree, ParameterTree):
            raise ValueError(
                f"tree: expected a ParameterTree, got {type(tree).__name__}."
            )
        d = tree.dim
        if bounds is None:
            fill = torch.full((d,), 0.5, dtype=torch.float64)
        else:
            fill = _numbers("bounds", bounds, (2, d)).mean(dim=0)
        if isinstance(defaults, Mapping):
            for column, value in defaults.items():
                column = check_column("defaults", column, d)
                fill[column] = check_number(f"defaults[{column}]", value)
        elif defaults is not None:
            fill = _numbers("defaults", defaults, (d,)).clone()
        if not fill.isfinite().all():
            raise ValueError(
                f"defaults: expected finite values, got {fill.tolist()} (from bounds "
                "and defaults)."
            )
        self.tree = tree
        self.register_buffer("fill", fill)
        self.transform_on_train = transform_on_train
        self.transform_on_eval = transform_on_eval
        self.transform_on_fantasize = transform_on_fantasize

    def transform(self, X: Tensor) -> Tensor:
        """Inactive columns at their default values, the others bit for bit.

        Args:
            X: ``batch_shape x n x d``.
        """
        return self.tree.impute(X, self.fill)

    def untransform(self, X: Tensor) -> Tensor:
        """The same points: an imputed row is the same configuration.

        Args:
            X: ``batch_shape x n x d``.
        """
        return X

    def equals(self, other: InputTransform) -> bool:
        """Whether another transform does the same."""
        return (
            super().equals(other=other)
            and self.tree == other.tree
            and torch.equal(self.fill, other.fill.to(self.fill))
        )


def _numbers(name: str, value: object, shape: tuple[int, ...]) -> Tensor:
    expected = " x ".join(map(str, shape))
    if not isinstance(value, Tensor) or value.shape != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else value
        raise ValueError(f"{name}: expected {expected} numbers (a tensor), got {got}.")
    value = value.detach()
    return value if value.is_floating_point() else value.double()
