"""How Bayesian linear regressions on shared features are fitted."""

from __future__ import annotations

__all__ = ["AblrFit"]

import math
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from botorch.fit import _fit_fallback
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from tqdm import tqdm

from botorch_structured.kernels.random_fourier_features import RandomFourierFeatures
from botorch_structured.models.ablr_hyperparameters import TaskLikelihood
from botorch_structured.models.feature_maps import TanhNetwork

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr_rows import AblrRows as _Base
else:
    _Base = object

# The objective is per outcome: finer tolerances change no prediction. On exact data the
# cap ends a fit; a second one goes on from there.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-5, "maxiter": 300}
_NUM_STARTS = 3
_STEPS_OF_A_START = 15
# A bar for what is over before one can read it is noise.
_SECONDS_WITHOUT_BAR = 3.0


class AblrFit(_Base):
    """The fit of a ``MultiTaskABLR``."""

    _has_priors: bool

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        num_starts: int = _NUM_STARTS,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""Joint L-BFGS over features, noise and weight precisions.

        ``fit_gpytorch_mll(mll, num_starts=..., progress=...)`` calls this; every
        argument of it is honoured, retries included. Not for direct use.

        A network that is as it was drawn is first fitted in brief from ``num_starts``
        draws (random Fourier features: from as many bandwidths), and the one with the
        largest objective goes on. A model that was fitted
        before, or has the state of one that was, goes on from where it is: the warm
        restart of a search. Interrupted (``KeyboardInterrupt``), the model keeps the
        parameters of the last step, and is ready to predict.

        Args:
            mll: Of this model.
            closure: See ``fit_gpytorch_mll``; with one, or with an ``optimizer``, there
                is one start.
            closure_kwargs: See ``fit_gpytorch_mll``.
            optimizer_kwargs: See ``fit_gpytorch_mll``.
            num_starts: How many draws to try.
            progress: Whether there is a bar; None: when it takes more than 3 seconds.
            kwargs: See ``fit_gpytorch_mll``.
        """
        if num_starts < 1:
            raise ValueError(f"num_starts: expected at least 1, got {num_starts}.")
        given = {"closure": closure, "closure_kwargs": closure_kwargs, **kwargs}
        if closure is not None or "optimizer" in kwargs:
            fitted = _fit_fallback(mll, optimizer_kwargs=optimizer_kwargs, **given)
            self._fill_unobserved()
            return fitted
        settings = dict(optimizer_kwargs or {})
        options = {**_FIT_OPTIONS, **(settings.pop("options", None) or {})}
        shown = progress if self._group.is_first else False
        with _Steps(mll, settings.pop("callback", None), shown) as steps:

            def fit(maxiter: int) -> None:
                _fit_fallback(
                    mll,
                    optimizer_kwargs={
                        **settings,
                        "options": {**options, "maxiter": maxiter},
                        "callback": steps,
                    },
                    **given,
                )

            self._start(
                mll, fit, num_starts, min(_STEPS_OF_A_START, options["maxiter"])
            )
            fit(options["maxiter"])
        self._fill_unobserved()
        return mll.eval()

    def _start(
        self,
        mll: MarginalLogLikelihood,
        fit: Callable[[int], None],
        num_starts: int,
        maxiter: int,
    ) -> None:
        """Leave the model where the most promising of some brief fits ends."""
        network = self.covar_module.feature_map
        exact = type(mll) is ExactMarginalLogLikelihood
        if (
            num_starts == 1
            or not exact
            or not isinstance(network, (RandomFourierFeatures, TanhNetwork))
            or network.has_started()
        ):
            return
        before = deepcopy(mll.state_dict())
        best: tuple[float, dict[str, Any], int] | None = None
        for number in range(num_starts):
            mll.load_state_dict(before)
            network.restart(number)
            fit(maxiter)
            mll.train()
            with torch.no_grad():
                loss = float(self.compute_custom_loss(mll))
            if math.isfinite(loss) and (best is None or loss < best[0]):
                best = (loss, deepcopy(mll.state_dict()), number)
        if best is not None:
            mll.load_state_dict(best[1])
            network.number = best[2]

    def _fill_unobserved(self) -> None:
        """Tasks without rows have the hyperparameters that the others make probable.

        With priors the fit gets there too, in time; by maximum likelihood there is
        nothing that moves them, and they have the geometric mean.
        """
        if self.train_targets.ndim > 1:
            return
        counts = torch.tensor(
            self._rows().rows.counts, device=self.train_targets.device
        )
        empty = self._group.sum(counts) == 0
        if not empty.any() or empty.all():
            return
        modules = [(self.covar_module.weight_precision, "value")]
        if isinstance(self.likelihood, TaskLikelihood):
            modules.append((self.likelihood.noise_covar, "noise"))
        for module, name in modules:
            values = getattr(module, name).detach().clone()
            prior = getattr(module, f"{name}_prior", None)
            others = values[~empty]
            values[empty] = (
                others.log().mean().exp()
                if prior is None
                else prior.most_probable(others)
            )
            module.initialize(**{f"raw_{name}": values.log()})


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
