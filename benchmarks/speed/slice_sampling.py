"""Effective samples per CPU second: slice sampling against BoTorch's NUTS.

    python -m benchmarks.speed.slice_sampling [--rows 200] [--columns 14] [--seeds 3]
    [--out FILE]

The peer is ``fit_fully_bayesian_model_nuts`` (NumPyro, on JAX) for BoTorch's
``FullyBayesianSingleTaskGP``, at its default length; ours is ``fit_slice_sampling`` at
its default length for a ``SingleTaskGP`` with the same kernel and the same priors: the
same posterior, which is checked on its medians. What counts is the median over the log
lengthscales of the effective sample size, by the same estimator, per second of CPU time
of the whole call on one thread; for the peer that includes compiling, which each of its
runs does. Without the peer installed, ours is measured alone, and the result says so.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings

# one thread for the peer as well; read when it is imported
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
)

import numpy as np
import torch
from botorch.fit import fit_fully_bayesian_model_nuts
from botorch.models import SingleTaskGP
from botorch.models.fully_bayesian import FullyBayesianSingleTaskGP
from botorch.test_functions import Hartmann
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior
from torch import Tensor

from benchmarks.speed import report
from botorch_structured.fit import fit_slice_sampling
from botorch_structured.models.sampled.chains import effective_sample_size

_NOISE_FLOOR = 1e-4  # the peer's


def make_data(n: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Hartmann-6 in the first six of ``d`` columns, noise of a tenth, standardised."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    f = Hartmann(6).evaluate_true(X[:, :6])
    noise = torch.randn(n, generator=g, dtype=torch.float64)
    Y = f / f.std() + 0.1 * noise
    return X, ((Y - Y.mean()) / Y.std()).unsqueeze(-1)


def above_floor(noise: Tensor) -> Tensor:
    """What the peer's prior on the noise is on."""
    return noise - _NOISE_FLOOR


def our_model(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """A ``SingleTaskGP`` with the priors of ``FullyBayesianSingleTaskGP``."""
    d = X.shape[-1]
    prior = LogNormalPrior(math.sqrt(2) + 0.5 * math.log(d), math.sqrt(3))
    kernel = MaternKernel(nu=2.5, ard_num_dims=d, lengthscale_prior=prior)
    likelihood = GaussianLikelihood(
        noise_prior=GammaPrior(0.9, 10.0, transform=above_floor),
        noise_constraint=GreaterThan(_NOISE_FLOOR, transform=None, initial_value=0.01),
    )
    return SingleTaskGP(
        X,
        Y,
        likelihood=likelihood,
        covar_module=kernel,
        mean_module=ConstantMean(constant_prior=NormalPrior(0.0, 1.0)),
        outcome_transform=None,
    )


def measure_ours(X: Tensor, Y: Tensor, seed: int) -> tuple[np.ndarray, float]:
    """Log lengthscales ``num_chains x draws x d`` and CPU seconds."""
    model = our_model(X, Y)
    start = time.process_time()
    result = fit_slice_sampling(model, seed=seed, progress=False)
    seconds = time.process_time() - start
    chains = result.chains
    columns = [i for i, name in enumerate(chains.names) if "lengthscale" in name]
    return np.log(chains.samples[..., columns]), seconds


def measure_nuts(X: Tensor, Y: Tensor, seed: int) -> tuple[np.ndarray, float] | None:
    """The same of the peer; None where it is not installed."""
    try:
        model = FullyBayesianSingleTaskGP(X, Y, outcome_transform=None)
    except ImportError:
        return None
    start = time.process_time()
    # every draw, as of ours: thinning does not change what a run costs
    fit_fully_bayesian_model_nuts(model, thinning=1, disable_progbar=True, seed=seed)
    seconds = time.process_time() - start
    lengthscale = model.covar_module.lengthscale.detach().squeeze(-2)
    return lengthscale.log().numpy()[None], seconds


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--columns", type=int, default=14)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", help="append to this JSONL file, machine beside it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rates: dict[str, list[float]] = {"slice": [], "nuts": []}
    seconds: dict[str, list[float]] = {"slice": [], "nuts": []}
    gaps = []
    for seed in range(args.seeds):
        X, Y = make_data(args.rows, args.columns, seed)
        draws = {}
        for name, measure in (("slice", measure_ours), ("nuts", measure_nuts)):
            measured = measure(X, Y, seed)
            if measured is None:
                continue
            draws[name], cpu = measured
            ess = effective_sample_size(draws[name].astype(float))
            rates[name].append(float(np.median(ess)) / cpu)
            seconds[name].append(cpu)
        if "nuts" in draws:
            flat = [draws[k].reshape(-1, args.columns) for k in ("slice", "nuts")]
            gap = np.median(flat[0], axis=0) - np.median(flat[1], axis=0)
            gaps.append(float(np.abs(gap / flat[1].std(axis=0)).max()))
    result = {
        "rows": args.rows,
        "columns": args.columns,
        "seeds": args.seeds,
        "slice_ess_per_cpu_s": round(float(np.median(rates["slice"])), 2),
        "slice_cpu_s": round(float(np.median(seconds["slice"])), 1),
    }
    if gaps:
        ratio = np.array(rates["slice"]) / np.array(rates["nuts"])
        result |= {
            "nuts_ess_per_cpu_s": round(float(np.median(rates["nuts"])), 2),
            "nuts_cpu_s": round(float(np.median(seconds["nuts"])), 1),
            "ratio": round(float(np.median(ratio)), 2),
            # of medians of log lengthscales, in posterior standard deviations
            "largest_gap": round(max(gaps), 2),
        }
    else:
        result["nuts"] = "not measured: pip install 'botorch[fully_bayesian]'"
    report(result, args.out)


if __name__ == "__main__":
    main()
