"""The evidence leaf by leaf, and its gradient, against plain dense algebra."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.kernels import TreeStructuredKernel
from botorch_structured.linalg.block_low_rank import factorise
from botorch_structured.models.tree.leaf_inference import (
    LeafKernel,
    Structure,
    leaf_blocks,
    log_evidence,
)

pytestmark = pytest.mark.usefixtures("double")


def in_torch(
    kernel: LeafKernel, X: Tensor, structure: Structure, noise: Tensor, residual: Tensor
) -> Tensor:
    """As on a GPU and in single precision."""
    blocks = [b.noisy(kernel, noise) for b in leaf_blocks(kernel, X, structure)]
    density = factorise(blocks, residual, kernel.num_weights).log_density
    return density - 0.5 * len(X) * math.log(2.0 * math.pi)


def dense(kernel: LeafKernel, X: Tensor, _: Structure, noise: Tensor, r: Tensor):
    K = kernel(X).to_dense() + noise.diag_embed()
    quad = r @ torch.linalg.solve(K, r)
    return -0.5 * (quad + K.logdet() + len(r) * math.log(2 * math.pi))


OPTIONS = [
    {},
    {"shared_features": "none", "leaf_offset": False, "node_weights": False},
    {"leaf_hyperparameters": "independent", "weight_variances": "independent"},
]


@given(seed=seeds, n=st.sampled_from([3, 20, 60]), options=st.sampled_from(OPTIONS))
@settings(max_examples=25)
def test_equals_dense(seed: int, n: int, options: dict) -> None:
    tree = random_tree(seed)
    g = torch.Generator().manual_seed(seed)
    kernel = TreeStructuredKernel(tree, **options).double()
    with torch.no_grad():
        for p in kernel.parameters():
            p.add_(0.5 * torch.randn(p.shape, generator=g))
    X = random_points(tree, n, g)
    structure = kernel.structure(X)
    given = [X, 0.1 + torch.rand(n, generator=g), torch.randn(n, generator=g)]
    for t in given:
        t.requires_grad_(True)
    found = []
    for evidence in (log_evidence, in_torch, dense):
        value = evidence(kernel, given[0], structure, *given[1:])
        of = [*given, *kernel.parameters()]
        slopes = torch.autograd.grad(3.0 * value, of, allow_unused=True)
        found.append([value, *(torch.zeros(()) if s is None else s for s in slopes)])
    for other in found[:2]:
        for a, b in zip(other, found[2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_small_noise_keeps_its_digits() -> None:
    """Two exact copies of a point on a leaf, a noise of 1e-9."""
    tree = random_tree(3)
    g = torch.Generator().manual_seed(0)
    kernel, X = TreeStructuredKernel(tree).double(), random_points(tree, 15, g)
    X[1] = X[0]
    residual = torch.randn(15, generator=g)
    residual[1] = residual[0]
    given = kernel, X, kernel.structure(X), torch.full((15,), 1e-9), residual
    # all have a condition number of 1e9 or more: none knows more digits
    for evidence in (log_evidence, in_torch):
        torch.testing.assert_close(
            evidence(*given), dense(*given), rtol=1e-6, atol=1e-5
        )
