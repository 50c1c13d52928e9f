"""Markov chains over the hyperparameters of a GP: starts, draws, diagnostics.

Split R-hat and the effective sample size are those of Vehtari et al. (2021), without
the rank normalisation: values are on the scale on which they were sampled (logarithms
of positive parameters), where tails are light.

References:

.. [Vehtari2021rank]
    A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Buerkner. Rank-
    Normalization, Folding, and Localization: An Improved R-hat for Assessing
    Convergence of MCMC. Bayesian Analysis 16(2), 2021.
"""

from __future__ import annotations

__all__ = [
    "Chains",
    "ChainsWarning",
    "effective_sample_size",
    "models_at",
    "run_chains",
    "split_r_hat",
]

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from botorch.exceptions import UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.gpytorch import GPyTorchModel
from numpy.typing import NDArray

from botorch_structured.models.sampled.coordinates import PriorCoordinates
from botorch_structured.models.sampled.slice_sampling import (
    SliceSampler,
    Target,
    first_widths,
)

Array = NDArray[np.float64]

# Each half of a chain needs two draws for a variance.
_MIN_DRAWS = 4
# The fields of ``Chains`` that are arrays.
_ARRAYS: dict[str, type] = {
    "samples": np.float64,
    "log_density": np.float64,
    "positive": np.bool_,
    "last": np.float64,
    "widths": np.float64,
}
# Standard deviation of starting points, in logarithms: about that of the posterior of a
# lengthscale on which the outcome depends. Wider ones start chains in the mode in which
# all outcomes are noise, and a chain leaves that mode slowly.
_DISPERSION = 0.5
_MAX_TRIES = 20


class ChainsWarning(BotorchWarning):
    """Chains have not converged, or some parameters were held instead of sampled."""


def _split(draws: Array) -> Array:
    """``C x N x k`` to ``2C x floor(N / 2) x k``, the middle draw of an odd N left out.

    If a chain drifts, its halves differ as two chains would.
    """
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _check(draws: Array) -> Array:
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim != 3 or draws.shape[1] < _MIN_DRAWS:
        raise ValueError(
            "draws: expected num_chains x num_draws x k with at least "
            f"{_MIN_DRAWS} draws, got shape {draws.shape}."
        )
    if not np.isfinite(draws).all():
        raise ValueError("draws: expected finite values, got NaN or infinity.")
    return draws


def _variances(halves: Array) -> tuple[Array, Array]:
    """Mean variance within chains, and the pooled estimate, each ``k``."""
    n = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = halves.mean(axis=1).var(axis=0, ddof=1)
    return within, (n - 1) / n * within + between


def split_r_hat(draws: Array) -> Array:
    """Split R-hat of each parameter: 1 if chains agree, infinite if no chain moves.

    Args:
        draws: ``num_chains x num_draws x k``.

    Returns:
        ``k``.

    Raises:
        ValueError: With fewer than four draws a chain, or values that are not finite.
    """
    within, pooled = _variances(_split(_check(draws)))
    result = np.full(within.shape, np.inf)
    np.divide(pooled, within, out=result, where=within > 0)
    return np.sqrt(result)


def effective_sample_size(draws: Array) -> Array:
    """How many independent draws would estimate the mean equally well.

    From the autocorrelations of the split chains, summed up to the end of Geyer's
    initial monotone sequence.

    Args:
        draws: ``num_chains x num_draws x k``.

    Returns:
        ``k``; zero where no chain moves.

    Raises:
        ValueError: As ``split_r_hat``.
    """
    halves = _split(_check(draws))
    chains, n, k = halves.shape
    within, pooled = _variances(halves)
    centred = halves - halves.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * n, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    # divided by n at each lag: biased, but with less noise at the later lags
    covariance = np.fft.irfft(power, axis=1)[:, :n].mean(axis=0) / n
    # on the scale of ``within``, which has n - 1 in its denominator
    covariance *= n / (n - 1)
    total = float(chains * n)
    result = np.zeros(k)
    for j in np.flatnonzero(within > 0):
        rho = 1.0 - (within[j] - covariance[:, j]) / pooled[j]
        rho[0] = 1.0
        pairs = rho[: n - n % 2].reshape(-1, 2).sum(axis=1)
        negative = np.flatnonzero(pairs < 0)
        pairs = pairs[: negative[0]] if negative.size else pairs
        tau = 2.0 * np.minimum.accumulate(pairs).sum() - 1.0
        # antithetic chains may be better than independent draws; limit the ratio
        result[j] = total / max(tau, 1.0 / np.log10(max(total, 10.0)))
    return result


# eq=False: a comparison of arrays has no truth value
@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of several Markov chains, their diagnostics, and their last positions.

    Attributes:
        names: Names of the k parameters.
        samples: Kept draws in natural values, ``num_chains x num_draws x k``.
        log_density: Log density of the draws (of the coordinates sampled: logarithms of
            positive parameters), ``num_chains x num_draws``.
        positive: Parameters that were sampled as logarithms, ``k``.
        last: Last position of each chain, in natural values, ``num_chains x k``.
        widths: Tuned widths of the slice sampler, in coordinates, ``k``.
        evaluations: Evaluations of the density, warmup included.
    """

    names: tuple[str, ...]
    samples: Array
    log_density: Array
    positive: NDArray[np.bool_]
    last: Array
    widths: Array
    evaluations: int = 0

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.samples.shape[0]

    @property
    def num_draws(self) -> int:
        """Draws of each chain."""
        return self.samples.shape[1]

    @cached_property
    def coordinates(self) -> Array:
        """``samples`` on the scale on which they were sampled."""
        return np.where(
            self.positive,
            np.log(np.where(self.positive, self.samples, 1.0)),
            self.samples,
        )

    @cached_property
    def r_hat(self) -> Array:
        """Split R-hat of each coordinate, ``k``; infinite with too few draws."""
        if self.num_draws < _MIN_DRAWS:
            return np.full(len(self.names), np.inf)
        return split_r_hat(self.coordinates)

    @cached_property
    def ess(self) -> Array:
        """Effective sample size of each coordinate, ``k``; 0 with too few draws."""
        if self.num_draws < _MIN_DRAWS:
            return np.zeros(len(self.names))
        return effective_sample_size(self.coordinates)

    def to_dict(self) -> dict[str, Any]:
        """The chains as lists, strings and numbers for JSON; see ``from_dict``."""
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        return {"names": list(self.names), "evaluations": self.evaluations, **arrays}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Chains:
        """The inverse of ``to_dict``.

        Raises:
            ValueError: If an entry is missing, or shapes do not fit together.
        """
        missing = {"names", *_ARRAYS} - set(state)
        if missing:
            raise ValueError(
                f"state: expected the keys of to_dict, lacks {sorted(missing)}."
            )
        chains = cls(
            names=tuple(state["names"]),
            evaluations=int(state.get("evaluations", 0)),
            **{name: np.asarray(state[name], kind) for name, kind in _ARRAYS.items()},
        )
        k = len(chains.names)
        shape = chains.samples.shape
        fits = (
            chains.samples.ndim == 3
            and shape[2] == k
            and chains.log_density.shape == shape[:2]
            and chains.positive.shape == chains.widths.shape == (k,)
            and chains.last.shape == (shape[0], k)
        )
        if not fits:
            raise ValueError(
                f"state: expected arrays of {k} parameters as to_dict made them, got "
                f"samples of shape {shape} and last of shape {chains.last.shape}."
            )
        return chains

    def __repr__(self) -> str:
        """A table: one line a parameter."""
        flat = self.samples.reshape(-1, len(self.names))
        wide = max([len(n) for n in self.names] + [9])
        lines = [
            f"Chains: {self.num_chains} of {self.num_draws} draws",
            f"{'parameter':<{wide}} {'median':>10} {'5 %':>10} {'95 %':>10} "
            f"{'R-hat':>7} {'ESS':>7}",
        ]
        for name, column, r_hat, ess in zip(
            self.names, flat.T, self.r_hat, self.ess, strict=True
        ):
            low, middle, high = np.quantile(column, [0.05, 0.5, 0.95])
            lines.append(
                f"{name:<{wide}} {middle:>10.4g} {low:>10.4g} {high:>10.4g} "
                f"{r_hat:>7.3f} {ess:>7.0f}"
            )
        return "\n".join(lines)


# -- sampling ---------------------------------------------------------------------


def _settable(coordinates: PriorCoordinates, values: Array) -> Array:
    """The values that a model has after setting ``values``, moved into the bounds.

    A MAP estimate is often at a bound, and setting closures may keep a distance from
    it.
    """
    inside = coordinates.clip(values)
    if coordinates.write_values(inside):
        return inside
    return coordinates.clip(coordinates.read_values())


def _starting_points(
    coordinates: PriorCoordinates, previous: Chains | None, num_chains: int
) -> list[Array]:
    """Starting points of chains before they are dispersed, in coordinates.

    Args:
        coordinates: Coordinates of the model, whose values are set. Without
            ``previous`` all chains start at its current values.
        previous: Chains to continue. Further chains start at earlier draws of these.
        num_chains: The number of points.
    """
    if previous is None:
        start = _settable(coordinates, coordinates.read_values())
        return [coordinates.to_position(start)] * num_chains
    starts = []
    for i in range(num_chains):
        lap, chain = divmod(i, previous.num_chains)
        earlier = previous.samples[chain, -1 - lap % previous.num_draws]
        values = earlier if lap else previous.last[chain]
        starts.append(coordinates.to_position(_settable(coordinates, values)))
    return starts


def _disperse(target: Target, start: Array, rng: np.random.Generator) -> Array:
    """A point of finite density around a starting point."""
    scale = _DISPERSION
    for _ in range(_MAX_TRIES):
        point = start + scale * rng.standard_normal(start.shape)
        if np.isfinite(target.move_to(point)):
            return point
        scale *= 0.7
    return start


def run_chains(
    target: Target,
    coordinates: PriorCoordinates,
    previous: Chains | None,
    streams: list[np.random.SeedSequence],
    warmup: int,
    draws: int,
    advance: Callable[[], None],
) -> Chains:
    """Sample chains one after the other.

    Args:
        target: The log density.
        coordinates: Coordinates of its model.
        previous: Chains to continue, with their widths. Without them all chains but the
            first start at dispersed points.
        streams: A source of randomness for each chain.
        warmup: Sweeps before the first kept one.
        draws: Sweeps that are kept.
        advance: Called after each sweep.
    """
    k = len(coordinates)
    starts = _starting_points(coordinates, previous, len(streams))
    positions = np.empty((len(starts), draws, k))
    log_density = np.empty((len(starts), draws))
    widths = []
    evaluations = 0
    for i, (start, stream) in enumerate(zip(starts, streams, strict=True)):
        rng = np.random.default_rng(stream)
        if previous is None and i > 0:
            start = _disperse(target, start, rng)
        sampler = SliceSampler(
            target, start, rng, first_widths(k) if previous is None else previous.widths
        )
        sampler.warm_up(warmup, advance)
        for t in range(draws):
            sampler.sweep()
            positions[i, t], log_density[i, t] = sampler.position, sampler.log_density
            advance()
        widths.append(sampler.widths)
        evaluations += sampler.evaluations
    values = coordinates.to_values(positions)
    return Chains(
        names=coordinates.names,
        samples=values,
        log_density=log_density,
        positive=coordinates.positive,
        last=values[:, -1],
        widths=np.median(widths, axis=0),
        evaluations=evaluations,
    )


def models_at(
    model: GPyTorchModel, coordinates: PriorCoordinates, values: Array
) -> list[GPyTorchModel]:
    """Copies of a model with other hyperparameters, and the same data in memory.

    Args:
        model: It is put in training mode.
        coordinates: Of the model.
        values: ``S x k``.

    Raises:
        UnsupportedError: If the model cannot be copied.
    """
    models = []
    for row in values:
        model.train()  # in evaluation mode a model holds transformed inputs
        coordinates.write_values(coordinates.clip(row))
        data = [*model.train_inputs, model.train_targets]
        transform = getattr(model, "outcome_transform", None)
        shared = [*data] if transform is None else [*data, transform]
        memo = {id(item): item for item in shared}
        try:
            models.append(deepcopy(model, memo).eval())
        except RuntimeError as error:
            raise UnsupportedError(
                "mll_or_model: expected a model that can be copied, got "
                f"{type(model).__name__}, which holds intermediate results."
            ) from error
    return models
