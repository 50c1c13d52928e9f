"""The conditional kernel as a decorator: equation (8), literally."""

from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import (
    AdditiveKernel,
    IndexKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    RBFKernel,
    RBFKernelGrad,
    ScaleKernel,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.kernels import ConditionalKernel, LaplaceKernel
from botorch_structured.spaces import ParameterTree

pytestmark = pytest.mark.usefixtures("double")


def kernels(dim: int) -> list[Kernel]:
    return [
        ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=dim)),
        RBFKernel(),
        LaplaceKernel(ard_num_dims=dim),
        AdditiveKernel(RBFKernel(active_dims=[0]), LinearKernel()),
        CategoricalKernel(ard_num_dims=1, active_dims=[dim - 1]),
        MaternKernel(nu=1.5),
    ]


def by_hand(kernel: Kernel, tree: ParameterTree, X: Tensor) -> Tensor:
    """Pair by pair, comparing the decisions that are active."""
    imputed, active = tree.impute(X), tree.active_mask(X)
    codes = tree.decision_codes(X)
    out = torch.zeros(len(X), len(X))
    for i in range(len(X)):
        for j in range(len(X)):
            agree = all(
                bool(active[i, c]) == bool(active[j, c])
                and (not active[i, c] or bool(codes[i, k] == codes[j, k]))
                for k, c in enumerate(tree.decision_columns)
            )
            if agree:
                pair = kernel(imputed[i : i + 1], imputed[j : j + 1])
                out[i, j] = pair.to_dense().item()
    return out


@given(seeds)
def test_equation_8(seed: int) -> None:
    tree = random_tree(seed, strict=True)
    X = random_points(tree, 7, torch.Generator().manual_seed(seed))
    base = kernels(tree.dim)[seed % 6]
    wrapped = ConditionalKernel(base, tree)
    expected = by_hand(base, tree, X)
    torch.testing.assert_close(wrapped(X).to_dense(), expected, rtol=1e-9, atol=1e-9)
    cross = wrapped(X[:3], X[3:]).to_dense()
    torch.testing.assert_close(cross, expected[:3, 3:], rtol=1e-9, atol=1e-9)
    diagonal = wrapped(X, diag=True)
    torch.testing.assert_close(diagonal, expected.diagonal(), rtol=1e-9, atol=1e-9)


def test_diagonals_of_kernels_that_return_matrices() -> None:
    tree = ParameterTree(2, {0: {0.0: [1], 1.0: []}}, values={0: [0.0, 1.0]})
    X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    base = IndexKernel(num_tasks=3, rank=1, active_dims=[1])
    wrapped = ConditionalKernel(base, tree, fill=2.0)
    K = wrapped(X).to_dense()
    torch.testing.assert_close(wrapped(X, diag=True), K.diagonal())
    torch.testing.assert_close(wrapped.rows(X).prior, K.diagonal())


def test_alone_in_a_model_of_botorch() -> None:
    tree = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
    X = random_points(tree, 20, torch.Generator().manual_seed(0))
    Y = torch.where(X[:, :1] == 0, X[:, 1:2].sin(), 3.0 + X[:, 2:].cos())
    kernel = ConditionalKernel(ScaleKernel(LaplaceKernel(ard_num_dims=3)), tree)
    model = SingleTaskGP(X, Y, covar_module=kernel)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    test = X.clone().requires_grad_(True)
    mean = model.posterior(test.unsqueeze(-2)).mean
    (gradient,) = torch.autograd.grad(mean.sum(), test)
    assert gradient.isfinite().all()
    assert (gradient[~tree.active_mask(X)] == 0.0).all()
    assert (mean.flatten() - Y.flatten()).abs().max() < 0.5


def test_what_a_kernel_that_is_not_stationary_sees_in_inactive_columns() -> None:
    tree = ParameterTree(2, {0: {0.0: [1], 1.0: []}})
    X = torch.tensor([[1.0, 0.9]])
    base = LinearKernel(active_dims=[1])
    expected = base.variance.item() * 4.0
    fill = torch.tensor([0.0, 2.0])
    value = ConditionalKernel(base, tree, fill)(X).to_dense().item()
    assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"base_kernel": 1.0}, "base_kernel: expected a GPyTorch kernel, got float"),
        ({"tree": {0: {0: [1]}}}, "tree: expected a ParameterTree"),
        ({"base_kernel": RBFKernel(active_dims=[2])}, "active_dims below 2"),
        ({"base_kernel": RBFKernelGrad()}, "one output per input"),
        ({"fill": torch.zeros(3)}, "2 numbers, got shape"),
    ],
)
def test_errors(arguments: dict[str, Any], message: str) -> None:
    tree = ParameterTree(2, {0: {0.0: [1]}})
    with pytest.raises(ValueError, match=message):
        ConditionalKernel(**{"base_kernel": RBFKernel(), "tree": tree, **arguments})
