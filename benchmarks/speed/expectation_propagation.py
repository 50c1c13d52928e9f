"""Parallel EP with adaptive damping against the classical sequential algorithm.

    python -m benchmarks.speed.expectation_propagation [--rows 20] [--sites 100]
    [--problems 9] [--out FILE]

The peer updates one site after the other, each by a rank-one change of covariance and
mean (Rasmussen and Williams 2006, algorithm 3.5), in NumPy, with the same stable site
updates. Both run to the same fixed point, which is checked first. Half of the problems
agree with the signs, half contradict them here and there. CPU time on one thread;
medians over alternating repetitions, and over problems.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from scipy.linalg import cho_factor, cho_solve
from scipy.special import erfcx
from torch import Tensor

from benchmarks.speed import report
from botorch_structured.models.monotone.expectation_propagation import (
    EPRun,
    ep_result,
    expectation_propagation,
    site_system,
)
from botorch_structured.models.monotone.site_kernel import StationaryDerivatives

TOLERANCE = 1e-6


def problem(seed: int, rows: int, sites: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance of derivatives along the first of two columns, given data."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(rows, 2, generator=g, dtype=torch.float64)
    points = torch.rand(sites, 2, generator=g, dtype=torch.float64)
    noise = torch.randn(rows, generator=g, dtype=torch.float64)
    y = 2.0 * X[:, 0] + 0.5 * torch.sin(5.0 * X[:, 1]) + 0.1 * noise
    y = y - (seed % 2) * torch.sin(8.0 * X[:, 0])
    y = (y - y.mean()) / y.std()
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.4
    k = StationaryDerivatives.of(kernel)
    K = k.value(X, X) + 0.01 * torch.eye(rows, dtype=torch.float64)
    cross = k.cross(X, points, [0])
    factor = torch.linalg.cholesky(K)
    half = torch.linalg.solve_triangular(factor, cross, upper=False)
    white = torch.linalg.solve_triangular(factor, y.unsqueeze(-1), upper=False)
    return (half.mT @ white).squeeze(-1), k.gram(points, [0]) - half.mT @ half


def sequential(
    mean: np.ndarray, covariance: np.ndarray, nu: float, max_sweeps: int = 200
) -> tuple[np.ndarray, np.ndarray, int]:
    """The peer: site precisions and shifts, and sweeps over all sites."""
    m = len(mean)
    precision, shift = np.zeros(m), np.zeros(m)
    S, mu = covariance.copy(), mean.copy()
    scale = math.sqrt(2.0 / math.pi)
    for sweep in range(1, max_sweeps + 1):
        change = 0.0
        for i in range(m):
            v = S[i, i]
            tau = 1.0 / v - precision[i]
            cavity, variance = (mu[i] / v - shift[i]) / tau, 1.0 / tau
            total = nu * nu + variance
            z = cavity / math.sqrt(total)
            r = scale / erfcx(-z / math.sqrt(2.0))
            kept = 1.0 - r * (r + z) * variance / total
            new_precision = r * (r + z) / (total * kept)
            new_shift = cavity * new_precision + r / (math.sqrt(total) * kept)
            dp, ds = new_precision - precision[i], new_shift - shift[i]
            change = max(change, abs(dp) * v, abs(ds) * math.sqrt(v))
            precision[i], shift[i] = new_precision, new_shift
            column = S[:, i].copy()
            share = 1.0 / (1.0 + dp * v)
            mu += (ds - dp * mu[i]) * share * column
            S -= (dp * share) * np.outer(column, column)
        # rank-one changes lose digits: once a sweep from the start
        root = np.sqrt(precision)
        B = root[:, None] * covariance * root
        B.flat[:: m + 1] += 1.0
        solved = cho_solve(cho_factor(B, lower=True), root[:, None] * covariance)
        S = covariance - (covariance * root) @ solved
        mu = mean + S @ (shift - precision * mean)
        if change < TOLERANCE:
            return precision, shift, sweep
    raise RuntimeError(f"No convergence within {max_sweeps} sweeps.")


def cpu_ms(call: Callable[[], object]) -> float:
    """Milliseconds of CPU time of one call."""
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


def compare(
    seed: int, rows: int, sites: int, nu: float, repeats: int
) -> tuple[float, float, int, int]:
    """Median times of both, after a check that they agree."""
    mean, covariance = problem(seed, rows, sites)
    peer_data = mean.numpy(), covariance.numpy()

    def ours() -> EPRun:
        return expectation_propagation(*peer_data, nu, tolerance=TOLERANCE)

    run = ours()
    result = ep_result([run], torch.Size(), TOLERANCE)
    precision, shift, peer_sweeps = sequential(*peer_data, nu)
    if not bool(result.converged):
        raise RuntimeError(f"Problem {seed}: no convergence.")
    other = result.sites._replace(
        precision=torch.from_numpy(precision), shift=torch.from_numpy(shift)
    )
    means = []
    for s in (result.sites, other):
        system = site_system(covariance, s)
        means.append(covariance @ system.root.mT @ system.residual(mean))
    gap = ((means[0] - means[1]) / covariance.diagonal().sqrt()).abs().max().item()
    if gap > 100.0 * TOLERANCE:
        raise AssertionError(f"Problem {seed}: not the same fixed point, {gap=}.")
    pairs = [
        (cpu_ms(ours), cpu_ms(lambda: sequential(*peer_data, nu)))
        for _ in range(repeats)
    ]
    a = statistics.median(p[0] for p in pairs)
    b = statistics.median(p[1] for p in pairs)
    return a, b, int(result.sweeps), peer_sweeps


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--problems", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nu", type=float, nargs="+", default=[0.1, 1e-6])
    parser.add_argument("--out", help="append to this JSONL file, machine beside it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for nu in args.nu:
        rows = [
            compare(seed, args.rows, args.sites, nu, args.repeats)
            for seed in range(args.problems)
        ]
        parallel, peer, sweeps, peer_sweeps = zip(*rows, strict=True)
        result = {
            "rows": args.rows,
            "sites": args.sites,
            "nu": nu,
            "tolerance": TOLERANCE,
            "parallel_ms": round(statistics.median(parallel), 2),
            "sequential_ms": round(statistics.median(peer), 2),
            "sweeps": [statistics.median(sweeps), statistics.median(peer_sweeps)],
            "ratio": round(
                statistics.median(b / a for a, b in zip(parallel, peer, strict=True)), 2
            ),
            "smallest_ratio": round(
                min(b / a for a, b in zip(parallel, peer, strict=True)), 2
            ),
        }
        report(result, args.out)


if __name__ == "__main__":
    main()
