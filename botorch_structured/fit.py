"""Fitting models by sampling their hyperparameters.

``fit_gpytorch_mll`` gives one set of hyperparameters, the most probable one. With few
points that is a guess, and one that is too sure of itself; ``fit_slice_sampling`` draws
several from their posterior, for any BoTorch GP with priors, without JAX.
"""

from __future__ import annotations

__all__ = ["ChainsWarning", "fit_slice_sampling"]

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import ModelList
from gpytorch.mlls import (
    ExactMarginalLogLikelihood,
    MarginalLogLikelihood,
    SumMarginalLogLikelihood,
)
from linear_operator.utils.warnings import NumericalWarning
from numpy.typing import NDArray
from tqdm import tqdm

from botorch_structured.inference.chain_diagnostics import Chains, ChainsWarning
from botorch_structured.inference.slice_sampling import Target
from botorch_structured.models.hyperparameter_chains import (
    run_chains,
    starting_points,
    write_inside,
)
from botorch_structured.models.hyperparameter_density import ModelDensity
from botorch_structured.models.prior_coordinates import PriorCoordinates
from botorch_structured.models.sampled import SampledGP
from botorch_structured.models.stationary_density import StationaryDensity

Vector = NDArray[np.float64]

# Sweeps before the first kept one, of new chains and of those that go on. With few data
# posteriors have several modes (more signal, or more noise), and finding the large one
# is what warmup is for. With the default of ``thinning``, two chains take as many
# sweeps as BoTorch's NUTS takes iterations.
_WARMUP, _SHORT_WARMUP = 128, 8
_MAX_R_HAT = 1.05
_ROWS_FOR_ONE_THREAD = 1000
# A bar for what is over before one can read it is noise.
_SECONDS_WITHOUT_BAR = 3.0


def fit_slice_sampling(
    mll_or_model: MarginalLogLikelihood | GPyTorchModel | ModelListGP,
    num_samples: int = 16,
    warmup: int | None = None,
    thinning: int = 32,
    num_chains: int = 2,
    seed: int | None = None,
    start_from: SampledGP | Chains | ModelList | None = None,
    progress: bool | None = None,
) -> SampledGP | ModelListGP:
    r"""Draw hyperparameters from their posterior by slice sampling.

    Choose it instead of ``fit_gpytorch_mll`` where there are few points for the number
    of hyperparameters, as at the start of an optimisation ([Levesque2017conditional]_,
    sections III and V). Sampled is the value that each prior is on, by univariate slice
    sampling with step-out and shrinkage ([Neal2003slice]_, [Murray2010slice]_),
    positive values as logarithms. The density is n times the objective that
    ``fit_gpytorch_mll`` would maximise, priors included. Plain GPs (RBF or Matern
    kernels, also in a ``ConditionalKernel``) are evaluated ten to seventy times faster
    than through BoTorch.

    What is not sampled: parameters that do not require a gradient stay as they are.
    Parameters without a prior that can be set (such as the mean of a ``SingleTaskGP``)
    are first set to their MAP estimate and then held, with a warning (with
    ``start_from``: to the MAP estimate given the most probable previous draw, without
    one); priors without a setting closure still count in the density.

    In a loop, pass the previous result as ``start_from``: chains go on where they were
    with the widths they had, and a short warmup does::

        model = fit_slice_sampling(gp)
        while ...:
            ...  # a new gp, with more data
            model = fit_slice_sampling(gp, thinning=4, start_from=model)

    Args:
        mll_or_model: The objective, or a model, whose objective then is its
            ``ExactMarginalLogLikelihood``. One output and no batch dimension; of a
            ``ModelListGP`` or a ``SumMarginalLogLikelihood`` each model is sampled by
            itself. It is not changed.
        num_samples: How many hyperparameter samples the result averages over. The cost
            of predictions is proportional to it.
        warmup: Sweeps over all parameters before the first that counts, of each chain;
            widths are tuned meanwhile. Default: 128, or 8 with ``start_from``.
        thinning: Sweeps between two samples. Diagnostics use all sweeps.
        num_chains: Chains from different starting points, one after the other.
        seed: Same seed, same samples. Global random states are left alone.
        start_from: A previous result, or its ``chains``, for a model with the same
            parameters.
        progress: Whether to show a bar. Default: when it takes more than 3 seconds.

    Returns:
        A ``SampledGP`` of ``num_samples`` models, in evaluation mode, with ``chains``
        (split R-hat, effective sample sizes, all draws; print it for a table). A
        ``ModelListGP`` of them for a list of models.

    Raises:
        ValueError: A model with several outputs or a batch dimension, without priors to
            sample, with a density that is not finite where it stands; arguments out of
            range; or a ``start_from`` of other parameters.

    Warns:
        ChainsWarning: Parameters held, or chains that do not agree (split R-hat above
            1.05).

    Example:
        >>> model = fit_slice_sampling(SingleTaskGP(train_X, train_Y), seed=0)
        >>> print(model.chains)
        >>> acqf = LogExpectedImprovement(model, best_f=train_Y.max())
    """
    _check_range("num_samples", num_samples, 1)
    _check_range("thinning", thinning, 1)
    _check_range("num_chains", num_chains, 1)
    if warmup is not None:
        _check_range("warmup", warmup, 0)
    mlls = _members(mll_or_model)
    if mlls is not None:
        return _fit_each(
            mlls,
            start_from,
            seed,
            num_samples=num_samples,
            warmup=warmup,
            thinning=thinning,
            num_chains=num_chains,
            progress=progress,
        )
    mll = _own_copy(mll_or_model)
    model = mll.model
    coordinates = PriorCoordinates(model)
    previous = _previous(start_from, coordinates)
    if warmup is None:
        warmup = _WARMUP if previous is None else _SHORT_WARMUP
    streams = np.random.SeedSequence(seed).spawn(num_chains + 1)
    if coordinates.held:
        _fit_held(mll, coordinates, previous, int(streams[-1].generate_state(1)[0]))
    draws = -(-num_samples // num_chains) * thinning
    total = num_chains * (warmup + draws)
    with _quiet(), _few_threads(model), _bar(total, progress) as advance:
        target: Target = StationaryDensity.of(mll, coordinates) or ModelDensity(
            mll, coordinates
        )
        starts = starting_points(coordinates, previous, num_chains)
        chains = run_chains(
            target, coordinates, starts, previous, streams, warmup, draws, advance
        )
    _warn_of(chains)
    kept = chains.samples[:, thinning - 1 :: thinning].transpose(1, 0, 2)
    values = kept.reshape(-1, len(coordinates))[:num_samples]
    return SampledGP(_models_at(model, coordinates, values), chains=chains)


# -- what is to be sampled --------------------------------------------------------


def _check_range(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(
            f"{name}: expected an integer of at least {least}, got {value!r}."
        )


def _members(
    mll_or_model: MarginalLogLikelihood | GPyTorchModel | ModelListGP,
) -> list[MarginalLogLikelihood | GPyTorchModel] | None:
    """What a list of models consists of; None if it is not one."""
    if isinstance(mll_or_model, SumMarginalLogLikelihood):
        return list(mll_or_model.mlls)
    if isinstance(mll_or_model, ModelListGP):
        return list(mll_or_model.models)
    return None


def _fit_each(
    members: list[MarginalLogLikelihood | GPyTorchModel],
    start_from: Any,
    seed: int | None,
    **kwargs: Any,
) -> ModelListGP:
    starts: list[Any] = [None] * len(members)
    if start_from is not None:
        if not isinstance(start_from, ModelList) or len(start_from.models) != len(
            members
        ):
            raise ValueError(
                f"start_from: expected a ModelList of {len(members)} SampledGPs, as a "
                f"previous call made it, got {type(start_from).__name__}."
            )
        starts = list(start_from.models)
    seeds = [None if seed is None else seed + i for i in range(len(members))]
    return ModelListGP(
        *(
            fit_slice_sampling(m, start_from=s, seed=i, **kwargs)
            for m, s, i in zip(members, starts, seeds, strict=True)
        )
    )


def _own_copy(
    mll_or_model: MarginalLogLikelihood | GPyTorchModel,
) -> MarginalLogLikelihood:
    """A copy to work on: an error or an interruption then leaves no trace."""
    if isinstance(mll_or_model, MarginalLogLikelihood):
        mll = mll_or_model
    elif isinstance(mll_or_model, GPyTorchModel) and hasattr(
        mll_or_model, "likelihood"
    ):
        mll = ExactMarginalLogLikelihood(mll_or_model.likelihood, mll_or_model)
    else:
        raise ValueError(
            "mll_or_model: expected a MarginalLogLikelihood or a GP, got "
            f"{type(mll_or_model).__name__}."
        )
    inputs = getattr(mll.model, "train_inputs", None)
    if not inputs:
        raise ValueError(
            "mll_or_model: expected an exact GP with training data, got "
            f"{type(mll.model).__name__}."
        )
    if inputs[0].ndim != 2:
        raise ValueError(
            "mll_or_model: expected one output and no batch dimension, got training "
            f"inputs of shape {tuple(inputs[0].shape)}. Use a ModelListGP with one "
            "model for each output."
        )
    strategy = getattr(mll.model, "prediction_strategy", None)
    # caches of predictions are of no use here, and may hold graphs without a copy
    return deepcopy(mll, {id(strategy): None})


def _previous(start_from: Any, coordinates: PriorCoordinates) -> Chains | None:
    if start_from is None:
        return None
    chains = start_from.chains if isinstance(start_from, SampledGP) else start_from
    if not isinstance(chains, Chains):
        raise ValueError(
            "start_from: expected a SampledGP made by fit_slice_sampling, or its "
            f"chains, got {type(start_from).__name__}."
        )
    if chains.names != coordinates.names:
        raise ValueError(
            "start_from: expected chains of the same parameters, "
            f"{list(coordinates.names)}, got {list(chains.names)}."
        )
    return chains


def _fit_held(
    mll: MarginalLogLikelihood,
    coordinates: PriorCoordinates,
    previous: Chains | None,
    seed: int,
) -> None:
    """Set what is not sampled to its MAP estimate.

    Jointly with everything else; if chains go on, given the most probable draw there
    is, which takes a fraction of the time.
    """
    parameters = dict(mll.model.named_parameters())
    sampled = [parameters[n] for block in coordinates.blocks for n in block.parameters]
    if previous is None:
        warnings.warn(
            f"No prior that can be sampled from on {', '.join(coordinates.held)}: set "
            "to the MAP estimate and held. Give them priors with setting closures to "
            "sample them, or requires_grad_(False) to hold them where they are.",
            ChainsWarning,
            stacklevel=3,
        )
    else:
        best = previous.log_density.argmax()
        write_inside(coordinates, previous.samples.reshape(-1, len(coordinates))[best])
        for parameter in sampled:
            parameter.requires_grad_(False)
    with _seeded(seed, next(mll.parameters()).device):
        fit_gpytorch_mll(mll)
    for parameter in sampled:
        parameter.requires_grad_(True)


# -- what they say ----------------------------------------------------------------


def _warn_of(chains: Chains) -> None:
    worst = int(np.argmax(chains.r_hat))
    r_hat = chains.r_hat[worst]
    if r_hat <= _MAX_R_HAT:
        return
    if np.isinf(r_hat):
        finding = f"{chains.num_draws} draws of each chain are too few to tell"
    else:
        finding = f"split R-hat is {r_hat:.2f} for {chains.names[worst]}"
    warnings.warn(
        f"Chains may not have converged: {finding} (expected at most {_MAX_R_HAT}). "
        "Raise warmup or thinning, or go on with start_from=model; print model.chains "
        "for all parameters.",
        ChainsWarning,
        stacklevel=3,
    )


# -- surroundings -----------------------------------------------------------------


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Global random states of their own: retries of a fit draw from the priors."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # not torch.manual_seed, which also seeds devices that are not restored
        torch.random.default_generator.manual_seed(seed)
        for other in devices:
            with torch.cuda.device(other):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """No word of jitter: the far ends of slices are where matrices are singular."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        yield


@contextmanager
def _few_threads(model: GPyTorchModel) -> Iterator[None]:
    """One thread for factorisations so small that sharing them out costs more.

    At 200 rows two threads on busy cores took nine times as long as one. The threads
    are those of SciPy's LAPACK, which only threadpoolctl can limit: scikit-learn brings
    it, and without it ``OMP_NUM_THREADS`` says how many.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    small = model.train_targets.numel() <= _ROWS_FOR_ONE_THREAD
    with threadpool_limits(limits=1 if small else None, user_api="blas"):
        yield


@contextmanager
def _bar(total: int, progress: bool | None) -> Iterator[Callable[[], None]]:
    delay = 0.0 if progress else _SECONDS_WITHOUT_BAR
    with tqdm(
        total=total,
        desc="slice sampling",
        unit="sweep",
        disable=progress is False,
        delay=delay,
        leave=False,
    ) as bar:
        yield lambda: bar.update() and None


def _models_at(
    model: GPyTorchModel, coordinates: PriorCoordinates, values: Vector
) -> list[GPyTorchModel]:
    """Copies of a model with other hyperparameters, and the same data in memory."""
    models = []
    for row in values:
        model.train()  # in evaluation mode a model holds transformed inputs
        write_inside(coordinates, row)
        data = [*model.train_inputs, model.train_targets]
        transform = getattr(model, "outcome_transform", None)
        shared = [*data] if transform is None else [*data, transform]
        models.append(deepcopy(model, {id(item): item for item in shared}).eval())
    return models
