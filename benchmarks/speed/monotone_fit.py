"""What signs add to a fit: ``MonotoneGP`` against the ``SingleTaskGP`` without them.

    python -m benchmarks.speed.monotone_fit [--rows 4 8 12] [--seeds 4] [--out FILE]

On random rows of the parts of the paper's elastic net and mixture. CPU time on one
thread of construction and ``fit_gpytorch_mll``: the means, and the ratio of the sums.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.speed import report
from botorch_structured.models import MonotoneGP
from botorch_structured.test_functions import ElasticNetTuning, MonotoneMixture1D


def cpu_seconds(make: Callable[[], SingleTaskGP]) -> float:
    """CPU time of making and fitting a model."""
    start = time.process_time()
    model = make()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return time.process_time() - start


def compare(problem: ElasticNetTuning | MonotoneMixture1D, n: int, seed: int) -> list:
    """Seconds without and with signs, for each part."""
    bounds = problem.bounds.double()
    d = bounds.shape[-1]
    g = torch.Generator().manual_seed(seed)
    X = bounds[0] + torch.rand(n, d, generator=g).double() * (bounds[1] - bounds[0])
    pairs = []
    for Y, signs in zip(
        problem.components(X).split(1, dim=-1), problem.monotone, strict=True
    ):
        times = [
            cpu_seconds(
                lambda told=told, Y=Y: MonotoneGP(
                    X,
                    Y,
                    told,
                    bounds=bounds,
                    input_transform=Normalize(d, bounds=bounds),
                )
            )
            for told in ({}, signs)  # without signs it is a SingleTaskGP
        ]
        pairs.append(times)
    return pairs


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 12])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", help="append the results to this JSONL file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # four rows have no standard deviation of one to speak of
    warnings.simplefilter("ignore", InputDataWarning)
    for problem in (ElasticNetTuning(0), MonotoneMixture1D()):
        compare(problem, 6, 0)  # what happens once
        pairs = [
            pair
            for n in options.rows
            for seed in range(options.seeds)
            for pair in compare(problem, n, seed)
        ]
        plain, told = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        result = {
            "work": "construct and fit MonotoneGP",
            "problem": type(problem).__name__,
            "rows": options.rows,
            "without_signs_s": round(plain, 4),
            "with_signs_s": round(told, 4),
            "ratio": round(told / plain, 2),
        }
        report(result, options.out)


if __name__ == "__main__":
    main()
