"""Predictive densities of treed GPs and of R's tgp, on its data and on fresh draws.

    python -m benchmarks.quality.treed_density [--draws 12] [--out FILE]

Two problems: the 2-D exponential of Gramacy (80 points, noise of 0.001) and a 1-D step
with two noise levels (100 points). ``tests/reference/treed_gp_tgp_dev.json`` has the
data and the scores of four runs of tgp's ``btgp`` with different seeds. A run is
counted as as good as tgp if its mean log predictive density (noise included) is at
least that of the worst of them and, on the 2-D exponential, its RMSE at most that of
the worst. Fresh draws are held to the same thresholds. CPU time is that of
construction, fit and predictions.
"""

from __future__ import annotations

__all__ = ["draw", "main", "score"]

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood
from numpy.typing import NDArray

from botorch_structured.models.treed.treed_gp import TreedGP

Array = NDArray[np.float64]

_REFERENCE = Path("tests/reference/treed_gp_tgp_dev.json")
_FIRST_SEED = 9000
_PUBLISHED: dict[str, Any] = {
    "split_criterion": "variance",
    "path_sharing": "all",
    "condition_on": "all",
    "leaf_noise": False,
}
METHODS: dict[str, Any] = {
    "default": lambda X, Y, t: TreedGP(X, Y, input_transform=t),
    "warp": lambda X, Y, t: TreedGP(X, Y, input_transform=t, warp=True),
    "published": lambda X, Y, t: TreedGP(X, Y, input_transform=t, **_PUBLISHED),
    "SingleTaskGP": lambda X, Y, t: SingleTaskGP(X, Y, input_transform=t),
}


def exponential(X: Array) -> tuple[Array, Array]:
    """Values and noise of x1 exp(-x1^2 - x2^2), flat except in one corner."""
    return X[:, 0] * np.exp(-(X**2).sum(1)), np.full(len(X), 1e-3)


def step(X: Array) -> tuple[Array, Array]:
    """Values and noise of a sine that jumps to a noisy line."""
    x = X[:, 0]
    line = 2.0 - 1.5 * (x - 0.45) + 0.3 * np.maximum(x - 0.75, 0.0)
    left = x < 0.45
    return np.where(left, np.sin(4.0 * np.pi * x), line), np.where(left, 0.05, 0.25)


def draw(name: str, XX: Array, seed: int) -> dict[str, Any]:
    """A data set like those of the reference, in its layout.

    Args:
        name: Of the problem.
        XX: Where it is predicted.
        seed: Of the draw.
    """
    rng = np.random.default_rng(_FIRST_SEED + seed)
    if name.startswith("exp2d"):
        inner = rng.uniform(-2.0, 2.0, (50, 2))
        outer = rng.uniform(-2.0, 6.0, (200, 2))
        outer = outer[(np.abs(outer) > 2.0).any(1)][:30]
        X, function = np.concatenate([inner, outer]), exponential
    else:
        X, function = np.sort(rng.uniform(0.0, 1.0, (100, 1)), axis=0), step
    f, noise = function(X)
    f_XX, noise_XX = function(XX)
    return {
        "name": name,
        "X": X,
        "Z": f + noise * rng.standard_normal(len(X)),
        "XX": XX,
        "f_XX": f_XX,
        "Z_XX": f_XX + noise_XX * rng.standard_normal(len(XX)),
    }


def score(problem: dict[str, Any], method: str) -> dict[str, Any]:
    """Error, density and time of a method on a problem.

    Args:
        problem: As in the reference.
        method: One of ``METHODS``.
    """
    X, Z, XX, f, Z_XX = (
        torch.as_tensor(np.asarray(problem[k], dtype=float))
        for k in ("X", "Z", "XX", "f_XX", "Z_XX")
    )
    start = time.process_time()
    model = METHODS[method](X, Z.unsqueeze(-1), Normalize(X.shape[-1]))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        posterior = model.posterior(XX.unsqueeze(-2), observation_noise=True)
    seconds = time.process_time() - start
    mean, variance = posterior.mean.reshape(-1), posterior.variance.reshape(-1)
    density = -0.5 * (math.log(2.0 * math.pi) + variance.log())
    density = density - 0.5 * (Z_XX - mean).square() / variance
    partition = getattr(model, "partition", None)
    return {
        "rmse": float((mean - f).square().mean().sqrt()),
        "density": float(density.mean()),
        "leaves": 1 if partition is None else partition.num_leaves,
        "cpu_s": seconds,
    }


def meets(result: dict[str, Any], least: float, most: float | None) -> bool:
    """Whether a score is at least the worst of the peer's.

    Args:
        result: From ``score``.
        least: Smallest log predictive density of the peer.
        most: Its largest error; None where that does not count.
    """
    return result["density"] >= least and (most is None or result["rmse"] <= most)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--reference", type=Path, default=_REFERENCE)
    parser.add_argument("--out", type=Path, help="append the results to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for problem in json.loads(options.reference.read_text())["problems"]:
        runs = problem["btgp_restart_spread"]
        name = problem["name"]
        least = min(run["mlpd_gaussian"] for run in runs)
        most = max(run["rmse_f"] for run in runs) if name.startswith("exp2d") else None
        fresh = [
            draw(name, np.array(problem["XX"]), seed) for seed in range(options.draws)
        ]
        for method in options.methods:
            stored = score(problem, method)
            others = [score(one, method) for one in fresh]
            result = {
                "problem": name,
                "method": method,
                **{f"stored_{k}": round(v, 4) for k, v in stored.items()},
                "stored_meets": meets(stored, least, most),
                "fastest_peer_s": min(run["wall_s"] for run in runs),
                "draws": len(others),
                "draws_that_meet": sum(meets(one, least, most) for one in others),
            }
            if others:
                result |= {
                    f"median_{k}": round(float(np.median([o[k] for o in others])), 4)
                    for k in ("rmse", "density", "leaves", "cpu_s")
                }
            print(json.dumps(result), flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
