"""Markov chains over the hyperparameters of a GP: where they start, and their draws."""

from __future__ import annotations

__all__ = ["models_at", "run_chains", "starting_points", "write_inside"]

from collections.abc import Callable
from copy import deepcopy

import numpy as np
from botorch.exceptions import UnsupportedError
from botorch.models.gpytorch import GPyTorchModel
from numpy.typing import NDArray

from botorch_structured.inference.chain_diagnostics import Chains
from botorch_structured.inference.slice_sampling import (
    SliceSampler,
    Target,
    first_widths,
)
from botorch_structured.models.prior_coordinates import PriorCoordinates

Vector = NDArray[np.float64]

# Starting points differ by a factor of exp(0.5) or so: as wide as posteriors of
# lengthscales that matter are, and not so wide as to start in a mode that explains
# everything as noise, which a chain takes long to leave.
_DISPERSION = 0.5
_MAX_TRIES = 20


def _inside(coordinates: PriorCoordinates, values: Vector) -> Vector:
    return np.clip(values, coordinates.lower, coordinates.upper)


def write_inside(coordinates: PriorCoordinates, values: Vector) -> None:
    """Set the values of a model, moved into their bounds where they are outside.

    Args:
        coordinates: Of the model.
        values: ``k``.
    """
    coordinates.write_values(_inside(coordinates, values))


def _settable(coordinates: PriorCoordinates, values: Vector) -> Vector:
    """The values that a model has after it was set to some, moved into their bounds.

    Setting closures may keep some distance from bounds, where a MAP estimate often is.
    """
    inside = _inside(coordinates, values)
    if coordinates.write_values(inside):
        return inside
    return _inside(coordinates, coordinates.read_values())


def starting_points(
    coordinates: PriorCoordinates, previous: Chains | None, num_chains: int
) -> list[Vector]:
    """Where chains start before they are dispersed, in coordinates.

    Args:
        coordinates: Of the model: where it stands, without ``previous``. Its values
            are set.
        previous: Chains that go on.
        num_chains: How many points.
    """
    if previous is None:
        start = _settable(coordinates, coordinates.read_values())
        return [coordinates.to_position(start)] * num_chains
    points = [
        # more chains than there were go on from earlier draws of those
        previous.last[i % previous.num_chains]
        if i < previous.num_chains
        else previous.samples[
            i % previous.num_chains, -1 - i // previous.num_chains % previous.num_draws
        ]
        for i in range(num_chains)
    ]
    return [coordinates.to_position(_settable(coordinates, p)) for p in points]


def _disperse(target: Target, start: Vector, rng: np.random.Generator) -> Vector:
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
    starts: list[Vector],
    previous: Chains | None,
    streams: list[np.random.SeedSequence],
    warmup: int,
    draws: int,
    advance: Callable[[], None],
) -> Chains:
    """Sample chains one after the other.

    Args:
        target: The log density.
        coordinates: Of its model.
        starts: A starting point for each chain.
        previous: Chains that go on, whose widths are used. New chains are dispersed.
        streams: A source of randomness for each chain.
        warmup: Sweeps before the first kept one.
        draws: Sweeps that are kept.
        advance: Called after each sweep.
    """
    k = len(coordinates)
    positions = np.empty((len(starts), draws, k))
    log_density = np.empty((len(starts), draws))
    widths = []
    evaluations = 0
    for i, start in enumerate(starts):
        rng = np.random.default_rng(streams[i])
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
        # of the chains' widths a typical one
        widths=np.median(widths, axis=0),
        evaluations=evaluations,
    )


def models_at(
    model: GPyTorchModel, coordinates: PriorCoordinates, values: Vector
) -> list[GPyTorchModel]:
    """Copies of a model with other hyperparameters, and the same data in memory.

    Args:
        model: Put in training mode.
        coordinates: Of the model.
        values: ``S x k``.

    Raises:
        UnsupportedError: If the model cannot be copied.
    """
    models = []
    for row in values:
        model.train()  # in evaluation mode a model holds transformed inputs
        write_inside(coordinates, row)
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
