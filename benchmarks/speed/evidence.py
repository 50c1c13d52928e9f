"""Evidence with gradient: structured against the same covariance dense in GPyTorch.

    python -m benchmarks.speed.evidence [--paths 64] [--rows 2000] [--device cpu] [--out
    FILE]

The peer is ``ExactMarginalLogLikelihood`` of a GPyTorch ``ExactGP`` whose covariance
matrix is built leaf by leaf (no padding) from GPyTorch's own Matern kernels, with the
weights' part added, and factorised as one matrix: what a user without this package
would write. Both sides compute the same number and the same gradient, which is checked
first. CPU time on one thread; medians over alternating repetitions.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from benchmarks.speed import report
from botorch_structured.linalg.block_low_rank import LeafLayout
from botorch_structured.models import TreeStructuredGP
from botorch_structured.spaces import ParameterTree


def binary_tree(num_paths: int, columns_per_leaf: int = 3) -> ParameterTree:
    """A balanced tree of binary decisions with numeric leaf columns."""
    depth = int(math.log2(num_paths))
    if 2**depth != num_paths:
        raise ValueError(f"--paths: expected a power of two, got {num_paths}.")
    decisions = num_paths - 1
    dependencies: dict[int, dict[float, list[int]]] = {}
    for node in range(decisions):
        children: dict[float, list[int]] = {}
        for bit in (0, 1):
            child = 2 * node + 1 + bit
            if child < decisions:
                children[float(bit)] = [child]
            else:
                first = decisions + (child - decisions) * columns_per_leaf
                children[float(bit)] = list(range(first, first + columns_per_leaf))
        dependencies[node] = children
    return ParameterTree(decisions + num_paths * columns_per_leaf, dependencies)


def make_data(tree: ParameterTree, n: int, device: str) -> tuple[Tensor, Tensor]:
    """``n`` points spread evenly over the paths, and a smooth function of them."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, tree.dim, generator=g, dtype=torch.float64)
    for i in range(n):
        path = tree.paths[i % tree.num_paths]
        for column, value in path.fixed_features.items():
            X[i, column] = value
    active = tree.active_mask(X)
    own = torch.zeros(tree.dim, dtype=torch.bool)
    own[tree.own_columns] = True
    f = torch.sin(4.0 * torch.where(active & own, X, 0.0).sum(-1))
    noise = 0.1 * torch.randn(n, generator=g, dtype=torch.float64)
    return X.to(device), (f + noise).unsqueeze(-1).to(device)


class DenseTreeGP(ExactGP):
    """The peer: leaf kernels written into one dense matrix, plus the node weights."""

    def __init__(
        self,
        model: TreeStructuredGP,
        likelihood: GaussianLikelihood,
    ) -> None:
        tree = model.tree
        layout = LeafLayout(tree.path_key(model.train_inputs[0]))
        order = torch.argsort(layout.leaf_of_row, stable=True)  # blocks are contiguous
        X, y = model.train_inputs[0][order], model.train_targets[order]
        super().__init__(X, y, likelihood)
        self.mean_module = ConstantMean()
        self.sizes = layout.sizes
        paths = [tree.path_index(x[:1]).item() for x in X.split(self.sizes)]
        self.kernels = torch.nn.ModuleList(
            MaternKernel(
                2.5,
                ard_num_dims=len(tree.leaf_columns(p)),
                active_dims=tuple(tree.leaf_columns(p)),
            )
            for p in paths
        )
        leaf = model.covar_module.leaf_hyperparameters
        scale = leaf.outputscale.value.detach()[0]
        self.raw_scale = torch.nn.Parameter(scale[paths].log())
        length = leaf.lengthscale.value.detach()[0]
        for p, kernel in zip(paths, self.kernels, strict=True):
            pairs = leaf.pair[p]
            kernel.lengthscale = length[pairs[pairs < len(length)]]
        weights = model.covar_module.weights
        nodes = weights.node_indicators(tree.decision_codes(X))
        self.indicators = nodes[:, weights.node_columns].to(X)
        self.raw_variance = torch.nn.Parameter(
            weights.prior_scale().detach().square().log()
        )
        self.to(X)

    def forward(self, x: Tensor) -> MultivariateNormal:
        z = self.indicators * self.raw_variance.exp().sqrt()
        parts = zip(
            x.split(self.sizes), self.kernels, self.raw_scale.exp(), strict=True
        )
        blocks = [scale * kernel(leaf).to_dense() for leaf, kernel, scale in parts]
        covariance = torch.block_diag(*blocks) + z @ z.mT
        return MultivariateNormal(self.mean_module(x), covariance)


def cpu_ms(call: Callable[[], object], device: str) -> float:
    """Milliseconds of CPU time (of wall time on a GPU) of one call."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (clock() - start)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paths", type=int, default=64)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--out", help="append to this JSONL file, machine beside it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    tree = binary_tree(args.paths)
    X, Y = make_data(tree, args.rows, args.device)
    model = TreeStructuredGP(
        X,
        Y,
        tree,
        leaf_hyperparameters="independent",
        leaf_kernel="matern",
        weight_variances="independent",
    )
    model.likelihood.noise = 0.02
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    likelihood = GaussianLikelihood().to(X)
    likelihood.noise = 0.02
    dense = DenseTreeGP(model, likelihood).train()
    dense_mll = ExactMarginalLogLikelihood(likelihood, dense)

    def structured() -> Tensor:
        mll.zero_grad()
        loss = model.compute_custom_loss(mll)
        loss.backward()
        return loss

    def peer() -> Tensor:
        dense_mll.zero_grad()
        loss = -dense_mll(dense(dense.train_inputs[0]), dense.train_targets)
        loss.backward()
        return loss

    prior = mll._add_other_terms(torch.zeros((), device=X.device), ()) / len(X)
    gap = abs((structured() + prior - peer()).item())
    gradient = abs(
        model.mean_module.raw_constant.grad.item()
        - dense.mean_module.raw_constant.grad.item()
    )
    if gap > 1e-8 or gradient > 1e-8:
        raise AssertionError(f"not the same objective: {gap=}, {gradient=}")
    times = [
        (cpu_ms(structured, args.device), cpu_ms(peer, args.device))
        for _ in range(args.repeats)
    ]
    ours = sorted(t[0] for t in times)[len(times) // 2]
    theirs = sorted(t[1] for t in times)[len(times) // 2]
    ratios = sorted(b / a for a, b in times)
    result = {
        "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
        "paths": args.paths,
        "rows": args.rows,
        "structured_ms": round(ours, 3),
        "dense_ms": round(theirs, 1),
        "ratio": round(ratios[len(ratios) // 2], 1),
    }
    report(result, args.out)


if __name__ == "__main__":
    main()
