"""The fit of Bayesian linear regressions: L-BFGS, from the best of several networks."""

from __future__ import annotations

__all__ = ["fit_jointly"]

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from gpytorch.mlls import MarginalLogLikelihood

from botorch_structured.kernels.random_fourier_features import RandomFourierFeatures
from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.models.contexts import progress_bar
from botorch_structured.models.map_fit import fit_map

# The objective is per outcome: finer tolerances change no prediction. On exact data the
# cap ends a fit; a second one goes on from there.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-5, "maxiter": 300}
_STEPS_OF_A_START = 15


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
    with _followed(mll, settings.pop("callback", None), progress) as step:

        def fit(maxiter: int) -> None:
            fit_map(
                mll,
                optimizer_kwargs={
                    **settings,
                    "options": {**options, "maxiter": maxiter},
                    "callback": step,
                },
                **given,
            )

        network = model.feature_map
        if (
            num_starts > 1
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


@contextmanager
def _followed(
    mll: MarginalLogLikelihood, callback: Any, progress: bool | None
) -> Iterator[Callable[[dict[str, Any], Any], None]]:
    """A callback of an optimiser: a bar, and the last step if it is interrupted."""
    last: dict[str, Any] = {}
    with progress_bar(None, progress, "ABLR fit", "step") as advance:

        def step(parameters: dict[str, Any], result: Any) -> None:
            advance()
            last.update((n, p.detach().clone()) for n, p in parameters.items())
            if callback is not None:
                callback(parameters, result)

        try:
            yield step
        except KeyboardInterrupt:
            mll.load_state_dict(last, strict=False)
            mll.eval()
            raise
