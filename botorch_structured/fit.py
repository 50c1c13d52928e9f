"""Fitting models by sampling their hyperparameters.

``fit_gpytorch_mll`` gives the most probable hyperparameters. With few points many other
values are about as probable, and predictions with a single one understate their
uncertainty. ``fit_slice_sampling`` draws several from their posterior, for any BoTorch
GP with priors, without JAX.

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
.. [Neal2003slice]
    R. M. Neal. Slice Sampling. Annals of Statistics 31(3), 2003.
.. [Murray2010slice]
    I. Murray and R. P. Adams. Slice Sampling Covariance Hyperparameters of Latent
    Gaussian Models. NeurIPS 2010.
"""

from __future__ import annotations

__all__ = ["ChainsWarning", "fit_slice_sampling"]

import warnings
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import ModelList
from gpytorch.mlls import (
    ExactMarginalLogLikelihood,
    MarginalLogLikelihood,
    SumMarginalLogLikelihood,
)
from gpytorch.models import ExactGP
from tqdm import tqdm

from botorch_structured.linalg.blocks import few_threads, quiet
from botorch_structured.models.map_fit import seeded
from botorch_structured.models.monotone.decomposed_gp import DecomposedGP
from botorch_structured.models.sampled.chains import (
    Chains,
    ChainsWarning,
    Target,
    models_at,
    run_chains,
)
from botorch_structured.models.sampled.coordinates import PriorCoordinates
from botorch_structured.models.sampled.density import (
    BatchedDensity,
    ModelDensity,
    StationaryDensity,
)
from botorch_structured.models.sampled.sampled_gp import SampledGP
from botorch_structured.models.tree.leaf_model import HOST_ROWS, LeafModel
from botorch_structured.spaces.arguments import check_count

# With few data posteriors have several modes (more signal, or more noise), and a chain
# must have time to find the largest. With the defaults two chains take 768 sweeps in
# all; BoTorch's NUTS takes 768 iterations.
_WARMUP = 128


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
    section V). The value that each prior is on is updated by univariate slice sampling
    with step-out and shrinkage ([Neal2003slice]_, [Murray2010slice]_), positive values
    as logarithms. The density is n times the objective that ``fit_gpytorch_mll`` would
    maximise, priors included. For plain GPs (RBF, Matern or Laplace kernels, also in a
    ``ConditionalKernel``) an evaluation is ten to seventy times faster than BoTorch's.

    Parameters without a prior, such as the mean of a ``SingleTaskGP``, are set to their
    MAP estimate and held, with a warning; with ``start_from``, to the MAP estimate
    given the most probable previous draw, without a warning. So are those whose only
    prior is on a quantity derived from them (the lengthscales of the SAAS prior, which
    is on ``tau / l^2``); such a prior enters the density. Priors on the square root of
    a parameter are sampled. Parameters that do not require a gradient stay as they are.

    In a loop, pass the previous result as ``start_from``: its chains go on from their
    last draws with the widths they had, and a short warmup is enough::

        model = fit_slice_sampling(gp)
        while ...:
            ...  # a new gp, with more data
            model = fit_slice_sampling(gp, thinning=4, start_from=model)

    Args:
        mll_or_model: The objective, or a model, whose objective then is its
            ``ExactMarginalLogLikelihood``. One output and no batch dimension; of a
            ``ModelListGP`` or a ``SumMarginalLogLikelihood`` each model is sampled by
            itself, of a ``DecomposedGP`` each one with data. It is not changed.
        num_samples: How many hyperparameter samples the result averages over. The cost
            of predictions is proportional to it.
        warmup: Sweeps over all parameters before the first kept one, of each chain;
            widths are tuned meanwhile. Default: 128, or 8 with ``start_from``.
        thinning: Sweeps between two samples. Diagnostics use all sweeps.
        num_chains: Chains from different starting points, one after the other, or, of a
            tree model on a GPU, all in one batch.
        seed: The same seed gives the same samples. Global random states are neither
            read nor changed.
        start_from: A previous result, or its ``chains``, for a model with the same
            parameters.
        progress: Whether to show a bar. Default: when it takes more than 3 seconds.

    Returns:
        A ``SampledGP`` of ``num_samples`` models, in evaluation mode, with ``chains``
        (split R-hat, effective sample sizes, all draws; print it for a table). A
        ``ModelListGP`` of them for a list of models, and a ``DecomposedGP`` of them and
        its known components for a ``DecomposedGP``.

    Raises:
        ValueError: A model that is not an exact GP with data, has several outputs or a
            batch dimension, has no prior to sample or more than 1,000 values with
            priors (the weights of a network), or whose density is not finite at its
            current hyperparameters; arguments out of range; or a ``start_from`` of
            other parameters.
        UnsupportedError: An outcome transform under which a Gaussian does not stay one,
            or a model that cannot be copied after a fit.

    Warns:
        ChainsWarning: Parameters held, or chains that do not agree (split R-hat above
            1.05).

    Example:
        >>> model = fit_slice_sampling(SingleTaskGP(train_X, train_Y), seed=0)
        >>> print(model.chains)
        >>> acqf = LogExpectedImprovement(model, best_f=train_Y.max())
    """
    check_count("num_samples", num_samples)
    check_count("thinning", thinning)
    check_count("num_chains", num_chains)
    if warmup is not None:
        check_count("warmup", warmup, 0)
    if seed is not None:
        check_count("seed", seed, 0)
    root = np.random.SeedSequence(seed)
    several = isinstance(mll_or_model, SumMarginalLogLikelihood | ModelListGP)
    members: list[Any] = [mll_or_model]
    seeds = [root]
    starts = [start_from]
    if several:
        members = list(getattr(mll_or_model, "mlls", None) or mll_or_model.models)
        # not seed + i, which is also a seed of member i - 1
        seeds = root.spawn(len(members))
        starts = list(getattr(start_from, "models", [start_from] * len(members)))
        if start_from is not None and (
            not isinstance(start_from, ModelList) or len(starts) != len(members)
        ):
            raise ValueError(
                f"start_from: expected a ModelList of {len(members)} SampledGPs, as a "
                f"previous call made it, got {type(start_from).__name__}."
            )
    # All are checked before any work.
    tasks = [_prepare(*member) for member in zip(members, starts, strict=True)]
    draws = -(-num_samples // num_chains) * thinning
    results = []
    for (mll, coordinates, previous), member_seed in zip(tasks, seeds, strict=True):
        *streams, fit_stream = member_seed.spawn(num_chains + 1)
        if coordinates.not_sampled:
            fit_seed = int(fit_stream.generate_state(1)[0])
            _fit_held(mll, coordinates, previous, fit_seed)
            # a fit may leave graphs, which cannot be copied: better refused now
            models_at(mll.model, coordinates, coordinates.read_values()[None])
        sweeps = warmup
        if sweeps is None:
            sweeps = _WARMUP if previous is None else 8
        with (
            quiet(),
            few_threads(mll.model.train_targets.numel()),
            tqdm(
                total=num_chains * (sweeps + draws),
                desc="slice sampling",
                unit="sweep",
                disable=progress is False,
                delay=0.0 if progress else 3.0,  # seconds
                leave=False,
            ) as bar,
        ):
            target = _density_of(mll, coordinates, num_chains)
            chains = run_chains(
                target, coordinates, previous, streams, sweeps, draws, bar.update
            )
        _warn_of(chains)
        kept = chains.samples[:, thinning - 1 :: thinning].transpose(1, 0, 2)
        kept = kept.reshape(-1, len(coordinates))[:num_samples]
        models = models_at(mll.model, coordinates, kept)
        results.append(SampledGP(models, chains=chains))
    if not several:
        return results[0]
    listed = getattr(mll_or_model, "model", mll_or_model)
    if isinstance(listed, DecomposedGP):
        return listed._with_models(results)
    return ModelListGP(*results)


def _prepare(
    mll_or_model: MarginalLogLikelihood | GPyTorchModel, start_from: Any
) -> tuple[MarginalLogLikelihood, PriorCoordinates, Chains | None]:
    """A copy to work on, what is sampled of it, and what its chains go on from."""
    mll: Any = mll_or_model
    if isinstance(mll, ExactGP):
        mll = ExactMarginalLogLikelihood(mll.likelihood, mll)
    model = mll.model if isinstance(mll, MarginalLogLikelihood) else None
    inputs = getattr(model, "train_inputs", None)
    if not isinstance(model, ExactGP) or not inputs or not inputs[0].numel():
        raise ValueError(
            "mll_or_model: expected an exact GP with rows of training data, or its "
            f"MarginalLogLikelihood, got {type(model or mll).__name__}."
        )
    if inputs[0].ndim != 2:
        raise ValueError(
            "mll_or_model: expected one output and no batch dimension, got training "
            f"inputs of shape {tuple(inputs[0].shape)}. Use a ModelListGP with one "
            "model for each output."
        )
    strategy = getattr(model, "prediction_strategy", None)
    # Errors and interruptions leave the model as it was. Caches of predictions are not
    # used, and may hold graphs, which cannot be copied.
    mll = deepcopy(mll, {id(strategy): None})
    coordinates = PriorCoordinates(mll.model)
    if len(coordinates) > 1000:  # one sweep over 5,350 weights took a minute
        raise ValueError(
            "mll_or_model: expected at most 1000 values with priors, "
            "which are sampled one after the other, got "
            f"{len(coordinates)} in a {type(mll.model).__name__}: use "
            "fit_gpytorch_mll, or a model with fewer, such as MultiTaskABLR with "
            "RandomFourierFeatures."
        )
    previous = start_from.chains if isinstance(start_from, SampledGP) else start_from
    if start_from is not None and not isinstance(previous, Chains):
        raise ValueError(
            "start_from: expected a SampledGP made by fit_slice_sampling, or its "
            f"chains, got {type(start_from).__name__}."
        )
    if previous is not None and previous.names != coordinates.names:
        raise ValueError(
            "start_from: expected chains of the same parameters, "
            f"{list(coordinates.names)}, got {list(previous.names)}."
        )
    # a model that SampledGP refuses is refused before any work
    SampledGP(models_at(mll.model, coordinates, coordinates.read_values()[None]))
    return mll, coordinates, previous


def _fit_held(
    mll: MarginalLogLikelihood,
    coordinates: PriorCoordinates,
    previous: Chains | None,
    seed: int,
) -> None:
    """Set the parameters that are not sampled to their MAP estimate.

    All parameters are fitted jointly. If that leaves the support of a prior (such as a
    uniform one, which L-BFGS-B does not know as a bound), those that are not sampled
    are fitted given the current values of the others; if chains go on, given their most
    probable draw, which takes a fraction of the time.
    """
    sampled = [block.raw for block in coordinates.blocks]
    if previous is None:
        warnings.warn(
            "No prior that can be sampled from on "
            f"{', '.join(coordinates.not_sampled)}: set to the MAP estimate and held. "
            "Give them priors of their own to sample them, or "
            "requires_grad_(False) to hold them where they are.",
            ChainsWarning,
            stacklevel=3,
        )
    else:
        best = previous.log_density.argmax()
        draw = previous.samples.reshape(-1, len(coordinates))[best]
        coordinates.write_values(coordinates.clip(draw))
        for parameter in sampled:
            parameter.requires_grad_(False)
    state = deepcopy(mll.state_dict())
    with seeded(seed, next(mll.parameters()).device):
        try:
            fit_gpytorch_mll(mll)
        except ValueError:
            # a step out of the support of a prior
            mll.load_state_dict(state)
            for parameter in sampled:
                parameter.requires_grad_(False)
            fit_gpytorch_mll(mll)
    for parameter in sampled:
        parameter.requires_grad_(True)


def _density_of(
    mll: MarginalLogLikelihood,
    coordinates: PriorCoordinates,
    num_chains: int,
) -> Target:
    """The density, of all chains at once where a GPU has a batch of them."""
    model: Any = mll.model
    device = model.train_targets.device.type
    on_gpu = isinstance(model, LeafModel) and device != "cpu"
    density: Target | None = None
    if not on_gpu or model.train_targets.numel() <= HOST_ROWS:
        density = StationaryDensity.of(mll, coordinates)
    if on_gpu and density is None:
        with suppress(RuntimeError):  # of an objective without a batch
            batched = BatchedDensity(mll, coordinates, num_chains)
            start = coordinates.to_position(coordinates.read_values())
            batched.evaluate([start] * num_chains)
            density = batched
    return density or ModelDensity(mll, coordinates)


def _warn_of(chains: Chains) -> None:
    worst = int(np.argmax(chains.r_hat))
    if chains.r_hat[worst] <= 1.05:
        return
    warnings.warn(
        f"Chains may not have converged: split R-hat is {chains.r_hat[worst]:.2f} for "
        f"{chains.names[worst]} (expected at most 1.05; inf for less than four draws "
        "of each chain). Raise warmup or thinning, or go on with start_from=model; "
        "print model.chains for all parameters.",
        ChainsWarning,
        stacklevel=3,
    )
