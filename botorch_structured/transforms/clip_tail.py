"""Flatten very bad outcomes, which otherwise dominate the scale of a model."""

from __future__ import annotations

__all__ = ["ClipTail"]

from typing import Any

import torch
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import Posterior
from botorch.utils.transforms import normalize_indices
from torch import Tensor

from botorch_structured.spaces.arguments import as_integer


class ClipTail(OutcomeTransform):
    r"""Flatten every outcome worse than ``median + (median - best)``.

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

    **Failed evaluations** may be given as infinitely bad (``-inf``, or ``+inf`` with
    ``maximize=False``): they land on the cut and do not move it, as median and best
    are taken over the finite outcomes. NaN raises an error.

    **Equal outcomes.** Where all finite outcomes are equal none of them is changed, and
    failed ones become ``best - max(1, |best|)``. Where all evaluations failed all
    outcomes become zero.

    **Scale.** ``untransform`` is the identity, since clipping has no inverse.
    Predictions are of clipped outcomes: right where points are good, optimistic where
    they are bad. A clipped point keeps its ``Yvar``. In evaluation mode the cut learned
    in training mode is applied, so that points conditioned on, and fantasies, are
    clipped like the data.
    """

    cut: Tensor

    def __init__(self, maximize: bool = True, outputs: list[int] | None = None) -> None:
        r"""
        Args:
            maximize: Whether larger outcomes are better. Chain two transforms, each
                with its own ``outputs``, for outcomes of both kinds.
            outputs: The outputs to clip; the others pass unchanged. If omitted, all.

        Raises:
            ValueError: ``outputs`` is no list of integers.
        """
        super().__init__()
        whole = isinstance(outputs, list) and None not in map(as_integer, outputs)
        if outputs is not None and not whole:
            raise ValueError(f"outputs: expected a list of integers, got {outputs!r}.")
        self.maximize = maximize
        self._outputs = outputs
        # ``batch_shape x 1 x m`` once learned
        self.register_buffer("cut", torch.zeros(0))

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
        return clipped, Yvar

    @torch.no_grad()
    def _learn(self, Y: Tensor) -> Tensor:
        """The cut, ``batch_shape x 1 x m``, of ``batch_shape x n x m`` outcomes."""
        failed = -torch.inf if self.maximize else torch.inf
        outputs = normalize_indices(self._outputs, d=Y.shape[-1])
        own = torch.zeros(Y.shape[-1], dtype=torch.bool, device=Y.device)
        own[slice(None) if outputs is None else outputs] = True
        bad = (Y.isnan() | (Y == -failed)) & own
        if bad.any():
            raise ValueError(
                "Y: expected outcomes that are finite, or infinitely bad "
                f"({failed} with maximize={self.maximize}) where an evaluation failed, "
                f"got {int(bad.sum())} of {Y.numel()} that are NaN or {-failed}."
            )
        # From here on larger is better, and failed outcomes are NaN.
        Z = Y if self.maximize else -Y
        finite = Z.isfinite()
        Z = Z.masked_fill(~finite, torch.nan)
        best = Z.nan_to_num(nan=-torch.inf).amax(dim=-2, keepdim=True)
        # Repeats, up to rounding, count once: NaN sorts last and is left out.
        tie = 8 * torch.finfo(Y.dtype).eps * best.abs()
        distinct = Z.sort(dim=-2).values
        same = distinct.diff(dim=-2) <= tie
        distinct[..., 1:, :] = distinct[..., 1:, :].masked_fill(same, torch.nan)
        median = distinct.nanquantile(0.5, dim=-2, keepdim=True)
        spread = best - median
        cut = torch.where(spread > tie, median - spread, torch.nan)
        cut = torch.where(cut.isnan(), best - best.abs().clamp_min(1.0), cut)
        cut = torch.where(finite.any(dim=-2, keepdim=True), cut, 0.0)
        cut = cut if self.maximize else -cut
        return torch.where(own, cut, torch.full_like(cut, failed))

    def subset_output(self, idcs: list[int]) -> ClipTail:
        r"""The same transform, cut included, for the outputs ``idcs`` only."""
        outputs = self._outputs
        m = self.cut.shape[-1] if self.cut.numel() else None
        if outputs is not None:
            if m is None and min(outputs + idcs) < 0:
                raise ValueError(
                    "idcs: expected indices that are not negative before a cut is "
                    f"learned, got {idcs} for outputs={outputs}."
                )
            kept = idcs if m is None else normalize_indices(idcs, d=m)
            own = outputs if m is None else normalize_indices(outputs, d=m)
            outputs = [i for i, k in enumerate(kept or []) if k in (own or [])]
        subset = self.__class__(maximize=self.maximize, outputs=outputs)
        if m is not None:
            subset.cut = self.cut[..., idcs]
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

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Before training the cut has no shape: it takes that of the loaded one.
        loaded = state_dict.get(prefix + "cut")
        if loaded is not None and loaded.shape != self.cut.shape:
            self.cut = self.cut.new_zeros(loaded.shape, dtype=loaded.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
