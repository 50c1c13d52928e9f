"""Transforms of outcomes with a few very bad values, and of inactive inputs.

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

__all__ = ["ClipTail", "Impute"]

from typing import Literal

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import Posterior
from torch import Tensor

from botorch_structured.spaces import ParameterTree


class ClipTail(OutcomeTransform):
    r"""Flatten, or compress, outcomes worse than ``median + (median - best)``.

    Choose it when a few outcomes are far worse than the rest: a learner that fails, a
    diverging training run, a penalty. Without it they determine the standard deviation
    by which outcomes are divided, and differences between good points are as small as
    the noise of the model. An optimiser needs to know that a point is bad, not how bad.

    With larger outcomes better (``maximize=True``, as everywhere in BoTorch)

        cut = median - (best - median),        Y -> max(Y, cut)

    so that the kept range is symmetric about the median; ``maximize=False`` is the
    mirror image. Outcomes that repeat exactly count once in the median. Otherwise an
    optimiser of an objective with steps, such as an error count, would tighten the cut
    with each evaluation on the best step, until all others are flat. Put it before
    ``Standardize``:

        >>> transform = ChainedOutcomeTransform(
        ...     clip=ClipTail(), standardize=Standardize(m=1)
        ... )
        >>> model = SingleTaskGP(train_X, train_Y, outcome_transform=transform)

    ``tail="log"`` keeps the order below the cut, at logarithmic distances,

        Y -> cut - s log(1 + (cut - Y) / s),   s = best - median

    for Y below the cut, with slope 1 there. It is for searches in which it is worth
    knowing which of two bad branches is worse; `suggest` has it.

    **Failed evaluations** may be given as infinitely bad (``-inf``, or ``+inf`` with
    ``maximize=False``): they land on the cut and do not move it, as median and best
    are taken over the finite outcomes (with ``tail="log"`` they become as bad as the
    worst finite outcome, and no better than the cut). NaN raises an error.

    **Equal outcomes.** Where all finite outcomes are equal none of them is changed, and
    failed ones become ``best - max(1, |best|)``. Where all evaluations failed all
    outcomes become zero.

    **Scale.** ``untransform`` is the identity, since clipping has no inverse.
    Predictions are of clipped (or compressed) outcomes: right where points are good,
    optimistic where they are bad. A clipped point keeps its ``Yvar``. In evaluation
    mode the cut learned in training mode is applied, so that points conditioned on, and
    fantasies, are clipped like the data.
    """

    cut: Tensor
    scale: Tensor
    worst: Tensor

    def __init__(
        self,
        maximize: bool = True,
        tail: Literal["flat", "log"] = "flat",
    ) -> None:
        r"""
        Args:
            maximize: Whether larger outcomes are better.
            tail: What outcomes below the cut become: "flat" or "log".

        Raises:
            ValueError: An unknown ``tail``.
        """
        super().__init__()
        if tail not in ("flat", "log"):
            raise ValueError(f'tail: expected "flat" or "log", got {tail!r}.')
        self.maximize = maximize
        self.tail = tail
        self._sign = 1.0 if maximize else -1.0  # larger is better with it
        # ``batch_shape x 1 x m`` once learned
        self._learned = ("cut",) if tail == "flat" else ("cut", "scale", "worst")
        for name in self._learned:
            self.register_buffer(name, torch.zeros(0))

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        r"""Clip outcomes, learning the cut first when in training mode.

        Args:
            Y: A ``batch_shape x n x m``-dim tensor of outcomes; failed evaluations
                may be infinitely bad.
            Yvar: A ``batch_shape x n x m``-dim tensor of observation noise variances;
                returned as it is.
            X: Not used.

        Returns:
            The clipped ``batch_shape x n x m`` outcomes and ``Yvar``.

        Raises:
            ValueError: For NaN or infinitely good outcomes, when in training mode.
            RuntimeError: In eval mode, when no cut has been learned.
        """
        if self.training:
            self.cut = self._learn(Y)
        elif self.cut.numel() == 0:
            raise RuntimeError(
                "ClipTail has no cut yet: call it on outcomes in training mode first."
            )
        cut = self.cut.to(Y)
        clipped = torch.maximum(Y, cut) if self.maximize else torch.minimum(Y, cut)
        if self.tail == "log":
            scale = self.scale.to(Y)
            # a failed evaluation is as bad as the worst of the others
            finite = torch.where(Y.isfinite(), Y, self.worst.to(Y))
            depth = (self._sign * (cut - finite)).clamp_min(0.0)
            clipped = clipped - self._sign * scale * (depth / scale).log1p()
        return clipped, Yvar

    @torch.no_grad()
    def _learn(self, Y: Tensor) -> Tensor:
        """The cut, ``batch_shape x 1 x m``, of ``batch_shape x n x m`` outcomes."""
        failed = -self._sign * torch.inf
        bad = Y.isnan() | (Y == -failed)
        if bad.any():
            raise ValueError(
                "Y: expected outcomes that are finite, or infinitely bad "
                f"({failed} with maximize={self.maximize}) where an evaluation failed, "
                f"got {int(bad.sum())} of {Y.numel()} that are NaN or {-failed}."
            )
        # From here on larger is better, and failed outcomes are NaN.
        finite = Y.isfinite()
        Z = (self._sign * Y).masked_fill(~finite, torch.nan)
        best = Z.nan_to_num(nan=-torch.inf).amax(dim=-2, keepdim=True)
        # Repeats, up to rounding, count once: NaN sorts last and is left out.
        tie = 8 * torch.finfo(Y.dtype).eps * best.abs()
        distinct = Z.sort(dim=-2).values
        same = distinct.diff(dim=-2) <= tie
        distinct[..., 1:, :] = distinct[..., 1:, :].masked_fill(same, torch.nan)
        median = distinct.nanquantile(0.5, dim=-2, keepdim=True)
        spread = best - median
        several = spread > tie  # false where no outcome is finite
        cut = torch.where(several, median - spread, best - best.abs().clamp_min(1.0))
        cut = torch.where(finite.any(dim=-2, keepdim=True), cut, 0.0)
        if self.tail == "log":
            worst = Z.nan_to_num(nan=torch.inf).amin(dim=-2, keepdim=True)
            self.worst = self._sign * torch.where(worst < cut, worst, cut)
            self.scale = torch.where(several, spread, 1.0)
        return self._sign * cut

    def subset_output(self, idcs: list[int]) -> ClipTail:
        r"""The same transform, cut included, for the outputs ``idcs``, from 0 on."""
        subset = self.__class__(self.maximize, self.tail)
        if self.cut.numel():
            for name in self._learned:
                setattr(subset, name, getattr(self, name)[..., idcs])
        subset.train(self.training)
        return subset

    def untransform(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        r"""The identity: outcomes stay on the clipped scale."""
        return Y, Yvar

    @property
    def _is_linear(self) -> bool:
        # BoTorch asks whether ``untransform`` keeps a Gaussian Gaussian.
        return True

    def untransform_posterior(
        self, posterior: Posterior, X: Tensor | None = None
    ) -> Posterior:
        r"""The identity: predictions stay on the clipped scale."""
        return posterior


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
        transform_on_train: Whether training inputs are imputed.
        transform_on_eval: Whether test inputs are.
        transform_on_fantasize: Whether inputs of fantasies are.

    Raises:
        ValueError: For bounds that do not fit the tree, or are not finite.
    """

    def __init__(
        self,
        tree: ParameterTree,
        bounds: Tensor | None = None,
        transform_on_train: bool = True,
        transform_on_eval: bool = True,
        transform_on_fantasize: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(tree, ParameterTree):
            raise ValueError(
                f"tree: expected a ParameterTree, got {type(tree).__name__}."
            )
        if bounds is None:
            bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).repeat(
                1, tree.dim
            )
        is_table = isinstance(bounds, Tensor) and bounds.shape == (2, tree.dim)
        if not (is_table and bounds.isfinite().all()):
            raise ValueError(
                f"bounds: expected 2 x {tree.dim} finite numbers (a tensor), got "
                f"{bounds}."
            )
        self.tree = tree
        self.register_buffer("fill", bounds.detach().double().mean(dim=0))
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
