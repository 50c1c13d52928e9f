"""The fit of Bayesian linear regressions: L-BFGS, from the best of several networks."""

from __future__ import annotations

__all__ = ["fit_jointly"]

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from tqdm import tqdm

from botorch_structured.kernels.random_fourier_features import RandomFourierFeatures
from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.models.map_fit import fit_map

# The objective is per outcome: finer tolerances change no prediction. On exact data the
# cap ends a fit; a second one goes on from there.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-5, "maxiter": 300}
_STEPS_OF_A_START = 15
# Fits that take less have no bar.
_SECONDS_WITHOUT_BAR = 3.0


def fit_jointly(
    model: Any,
    mll: MarginalLogLikelihood,
    given: dict[str, Any],
    optimizer_kwargs: dict[str, Any] | None,
    num_starts: int,
    progress: bool | None,
) -> None:
    """L-BFGS over all parameters, see ``MultiTaskABLR.custom_fit``.

    Args:
        model: A ``MultiTaskABLR``.
        mll: Of this model.
        given: Other arguments of ``fit_gpytorch_mll``.
        optimizer_kwargs: See there.
        num_starts: How many networks to try.
        progress: Whether there is a bar; None: when it takes more than 3 seconds.
    """
    if given["closure"] is not None or "optimizer" in given:
        fit_map(mll, optimizer_kwargs=optimizer_kwargs, **given)
        return
    settings = dict(optimizer_kwargs or {})
    options = {**_FIT_OPTIONS, **(settings.pop("options", None) or {})}
    with _Steps(mll, settings.pop("callback", None), progress) as steps:

        def fit(maxiter: int) -> None:
            fit_map(
                mll,
                optimizer_kwargs={
                    **settings,
                    "options": {**options, "maxiter": maxiter},
                    "callback": steps,
                },
                **given,
            )

        network = model.feature_map
        if (
            num_starts > 1
            and type(mll) is ExactMarginalLogLikelihood
            and isinstance(network, (RandomFourierFeatures, TanhNetwork))
            and not network.has_started()
        ):
            maxiter = min(_STEPS_OF_A_START, options["maxiter"])
            _take_best_start(model, mll, lambda: fit(maxiter), num_starts)
        fit(options["maxiter"])


def _take_best_start(
    model: Any,
    mll: MarginalLogLikelihood,
    fit: Callable[[], None],
    num_starts: int,
) -> None:
    """Leave the model where the brief fit with the largest objective ends."""
    network = model.feature_map
    before = deepcopy(mll.state_dict())
    best: tuple[float, dict[str, Any], int] | None = None
    for number in range(num_starts):
        mll.load_state_dict(before)
        network.restart(number)
        fit()
        mll.train()
        with torch.no_grad():
            loss = float(model.compute_custom_loss(mll))
        if math.isfinite(loss) and (best is None or loss < best[0]):
            best = (loss, deepcopy(mll.state_dict()), number)
    if best is not None:
        mll.load_state_dict(best[1])
        network.number = best[2]


class _Steps:
    """Follows an optimisation: a bar, and where it was when it was interrupted."""

    def __init__(
        self, mll: MarginalLogLikelihood, callback: Any, progress: bool | None
    ) -> None:
        self._mll, self._callback = mll, callback
        self._bar = tqdm(
            desc="ABLR fit",
            unit="step",
            disable=progress is False,
            delay=0.0 if progress else _SECONDS_WITHOUT_BAR,
            leave=False,
        )
        self._last: dict[str, Any] | None = None

    def __call__(self, parameters: dict[str, Any], result: Any) -> None:
        self._bar.update()
        if result.fval is not None:
            self._bar.set_postfix(loss=f"{float(result.fval):.4g}", refresh=False)
        self._last = {n: p.detach().clone() for n, p in parameters.items()}
        if self._callback is not None:
            self._callback(parameters, result)

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._bar.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._last:
            parameters = dict(self._mll.named_parameters())
            with torch.no_grad():
                for name, value in self._last.items():
                    parameters[name].copy_(value)
            self._mll.eval()
