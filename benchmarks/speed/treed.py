"""Equation (2) of treed GPs with gradient: nested rows against leaf and node pairs.

    python -m benchmarks.speed.treed [--rows 200] [--columns 6] [--leaves 20]
    [--device cpu] [--out FILE]

The peer factorises each pair of a leaf and a node on its path by itself and leaves the
gradient to autograd: in a loop, and in padded batches of pairs of similar size (buckets
that grow by a factor of 1.25, plus 4); the better one counts. Ours is what a fit of
``TreedGP`` evaluates, for both of its ways to share a path: "all" (the paper; one
factorisation per leaf on nested rows) and "lengthscale" (the default; a factorisation
per pair), on NumPy arrays with the gradient written out, with all rows of large nodes;
on a GPU it is the definition in torch, a batch for each node. Both sides compute the
same number and the same gradient, which is checked first. CPU time on one thread;
medians over alternating repetitions.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.speed import report
from botorch_structured.linalg.correlations import CORRELATIONS, squared_distance
from botorch_structured.models.treed import objective
from botorch_structured.models.treed.cart import TreeNode
from botorch_structured.models.treed.treed_gp import TreedGP

_MATERN = CORRELATIONS[0]
_GROWTH, _SLACK = 1.25, 4
_LOG_TWO_PI = math.log(2.0 * math.pi)


def make_data(n: int, d: int, device: str) -> tuple[Tensor, Tensor]:
    """A smooth function with noise."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=g)
    Y = torch.sin(4.0 * X.sum(-1)) + 0.1 * torch.randn(n, generator=g)
    return X.to(device), Y.unsqueeze(-1).to(device)


@dataclass(frozen=True)
class Pairs:
    """Pairs of leaves and nodes, padded to the same number of rows.

    Attributes:
        leaves: ``B``.
        rows: ``B x m``.
        real: False where padded, ``B x m``.
        weights: ``B``.
        levels: Amplitude, mean and noise of a node above the leaf, ``B x 3``; NaN where
            those of the leaf count.
    """

    leaves: Tensor
    rows: Tensor
    real: Tensor
    weights: Tensor
    levels: Tensor


def make_pairs(model: TreedGP, buckets: bool) -> list[Pairs]:
    """All pairs, one by one or in buckets."""
    X = model.train_inputs[0]
    root = model.partition.tree(X.cpu().numpy())
    nodes = root.walk()
    pairs = []
    for number, leaf in enumerate(root.leaves()):
        for node in leaf.path():
            data = model._data_of(node)
            weight = len(model._data_of(leaf)) / len(data)
            weight /= 1.0 + leaf.depth - node.depth
            pairs.append((len(data), number, node, data, weight, node is leaf))
    pairs.sort(key=lambda pair: -pair[0])
    groups: list[list[tuple]] = []
    for pair in pairs:
        size = pair[0]
        if buckets and groups and size * _GROWTH + _SLACK >= groups[-1][0][0]:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return [_padded(model, nodes, group) for group in groups]


def _padded(model: TreedGP, nodes: list[TreeNode], group: Sequence[tuple]) -> Pairs:
    width = group[0][0]
    place = {id(node): k for k, node in enumerate(nodes)}
    device = model.train_targets.device
    rows = torch.zeros(len(group), width, dtype=torch.long, device=device)
    real = torch.zeros(len(group), width, dtype=torch.bool, device=device)
    levels = torch.full((len(group), 3), math.nan, device=device)
    for i, (size, _, node, data, _, own) in enumerate(group):
        rows[i, :size] = torch.as_tensor(data, device=device)
        real[i, :size] = True
        if not own and not model._share_all:
            levels[i] = model.levels[place[id(node)]]
    return Pairs(
        torch.tensor([pair[1] for pair in group], device=device),
        rows,
        real,
        torch.tensor([pair[4] for pair in group], device=device),
        levels,
    )


def plain_objective(model: TreedGP, groups: Sequence[Pairs]) -> Tensor:
    """Equation (2) summed over the leaves, for autograd."""
    X, y = model.train_inputs[0], model.train_targets
    length = model.covar_module.lengthscale_of_leaf.value
    own = torch.stack(
        [
            model.covar_module.variance_of_leaf.value,
            model.mean_module.constant,
            model.likelihood.noise.expand(len(length)),
        ],
        dim=-1,
    )
    total = y.new_zeros(())
    for group in groups:
        levels = own[group.leaves]
        levels = torch.where(group.levels.isnan(), levels, group.levels)
        scaled = X[group.rows] / length[group.leaves].unsqueeze(-2)
        K = levels[:, 0, None, None] * _MATERN.value(squared_distance(scaled, scaled))
        noise, residual = levels[:, 2:], y[group.rows] - levels[:, 1:2]
        if not bool(group.real.all()):
            K = K * (group.real.unsqueeze(-1) & group.real.unsqueeze(-2))
            noise = torch.where(group.real, noise, 1.0)
            residual = residual * group.real
        K = K + torch.diag_embed(noise.expand(group.rows.shape))
        L = torch.linalg.cholesky(K)
        half = torch.linalg.solve_triangular(L, residual.unsqueeze(-1), upper=False)
        quadratic = half.square().sum((-1, -2))
        logdet = 2.0 * L.diagonal(dim1=-1, dim2=-2).log().sum(-1)
        constant = group.real.sum(-1) * _LOG_TWO_PI
        total = total - 0.5 * (group.weights * (quadratic + logdet + constant)).sum()
    return total


def cpu_ms(call: Callable[[], object], device: str) -> float:
    """Milliseconds of CPU time (of wall time on a GPU) of one call."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (clock() - start)


def measure(args: argparse.Namespace, share: str) -> dict[str, object]:
    """One row of the result: a way to share a path."""
    X, Y = make_data(args.rows, args.columns, args.device)
    model = TreedGP(
        X,
        Y,
        split_criterion="variance",
        path_sharing=share,
        condition_on="all",
        max_leaves=args.leaves,
    )
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    parameters = list(mll.parameters())
    pairs, buckets = make_pairs(model, False), make_pairs(model, True)
    objective._FITTED_ROWS = args.rows
    problem = model._leaf_problem(mll)

    def graded(loss: Tensor) -> tuple[Tensor, Tensor]:
        slopes = torch.autograd.grad(loss, parameters)
        return loss.detach(), torch.cat([slope.flatten() for slope in slopes])

    def ours() -> tuple[Tensor, Tensor]:
        if problem is None:
            return graded(model.compute_custom_loss(mll))
        value, gradient = problem(problem.read())
        return torch.tensor(value), torch.as_tensor(gradient)

    def plain(groups: Sequence[Pairs]) -> tuple[Tensor, Tensor]:
        value = plain_objective(model, groups)
        for _, module, prior, closure, _ in model.named_priors():
            value = value + prior.log_prob(closure(module)).sum()
        return graded(-value / args.rows)

    calls: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
        "ours": ours,
        "loop": lambda: plain(pairs),
        "buckets": lambda: plain(buckets),
    }
    results = {name: call() for name, call in calls.items()}
    for name in ("loop", "buckets"):
        torch.testing.assert_close(results["ours"], results[name], rtol=1e-8, atol=1e-8)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.repeats):
        for name, call in calls.items():
            times[name].append(cpu_ms(call, args.device))

    def median(values: Sequence[float]) -> float:
        return sorted(values)[len(values) // 2]

    better = min((times["loop"], times["buckets"]), key=median)
    ratios = [b / a for a, b in zip(times["ours"], better, strict=True)]
    return {
        "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
        "path_sharing": share,
        "rows": args.rows,
        "columns": args.columns,
        "leaves": model.partition.num_leaves,
        "pairs": len(pairs),
        **{f"{name}_ms": round(median(values), 2) for name, values in times.items()},
        "ratio": round(median(ratios), 2),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--columns", type=int, default=6)
    parser.add_argument("--leaves", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--out",
        help="append to this JSONL file, machine beside it",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for share in ("all", "lengthscale"):
        result = measure(args, share)
        report(result, args.out)


if __name__ == "__main__":
    main()
