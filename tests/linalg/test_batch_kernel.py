"""Parts of a batch of kernels are those of its covariances, for every kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    RBFKernel,
    ScaleKernel,
)
from torch import Size, Tensor

from botorch_structured.kernels import (
    ConditionalKernel,
    LaplaceKernel,
    MondrianKernel,
    TreeStructuredKernel,
)
from botorch_structured.models import TreedGP
from botorch_structured.spaces import ParameterTree

D = 4
TREE = ParameterTree(D, {0: {0.0: [1], 1.0: [2]}}, values={0: [0.0, 1.0]})
BATCHES = [Size([2]), Size([3, 2])]


pytestmark = pytest.mark.usefixtures("double")


def points(*shape: int) -> Tensor:
    X = torch.rand(*shape, D)
    X[..., 0] = X[..., 0].round()
    return X


def stationary(batch: Size) -> Kernel:
    # as many lengthscales as elements: nothing may be told apart by its size
    base = RBFKernel(ard_num_dims=2, active_dims=(1, 3), batch_shape=batch)
    return ScaleKernel(base, batch_shape=batch)


def treed(batch: Size, **kwargs: Any) -> Kernel:
    """Trees that differ along the batch; the last dimension is that of the outputs."""
    X = torch.rand(*batch[:-1], 24, D)
    cut = torch.rand(*batch[:-1], 1, 2) * 0.4 + 0.3
    Y = 3.0 * (X[..., :1] > cut) + X[..., 1:2].sin()
    model = TreedGP(X, Y + 0.01 * torch.randn_like(Y), **kwargs)
    assert model.partition.num_leaves > 1
    return model.eval().covar_module


def mondrian(batch: Size) -> Kernel:
    return MondrianKernel(
        2.0, 20, 2, seed=0, active_dims=(1, 3), batch_shape=batch
    ).double()


KERNELS: dict[str, Callable[[Size], Kernel]] = {
    "conditional": lambda b: ConditionalKernel(stationary(b), TREE),
    "conditional_sum": lambda b: ConditionalKernel(
        AdditiveKernel(stationary(b), MaternKernel(batch_shape=b)), TREE
    ),
    "conditional_one_scale": lambda b: ConditionalKernel(
        ScaleKernel(MaternKernel(ard_num_dims=1, active_dims=(1,), batch_shape=b)), TREE
    ),
    "tree": lambda b: TreeStructuredKernel(TREE, batch_shape=b),
    "tree_independent": lambda b: TreeStructuredKernel(
        TREE, leaf_hyperparameters="independent", correlation="rbf", batch_shape=b
    ),
    "laplace": lambda b: LaplaceKernel(2, active_dims=(1, 3), batch_shape=b),
    "mondrian": mondrian,
    "treed": treed,
    "treed_copies": lambda b: treed(b, covar_module=stationary(b)),
}


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_a_part_of_the_batch(name: str, batch: Size) -> None:
    kernel = KERNELS[name](batch)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    kernel.requires_grad_(False)
    assert kernel.batch_shape == batch
    before = {key: value.clone() for key, value in kernel.state_dict().items()}
    for shared in (True, False):
        X = points(7) if shared else points(*batch, 7)
        K = kernel(X).to_dense()
        assert K.shape == (*batch, 7, 7)
        assert len(K.flatten(0, -3).unique(dim=0)) == batch.numel()
        for index in (
            (1,),
            (-1,),
            (slice(1, None),),
            (torch.tensor([1, 0, 1]),),
            (..., 1) if len(batch) > 1 else (0,),
            (0, slice(None)) if len(batch) > 1 else (1,),
        ):
            part = kernel[index if len(index) > 1 else index[0]]
            expected = K[(*index, slice(None), slice(None))]
            assert part.batch_shape == expected.shape[:-2]
            own = X if shared else X[(*index, slice(None), slice(None))]
            torch.testing.assert_close(part(own).to_dense(), expected)
            torch.testing.assert_close(
                part(own, diag=True), expected.diagonal(dim1=-1, dim2=-2)
            )
            if Ellipsis not in index and not torch.is_tensor(index[0]):
                lazy = kernel(X)[(*index, ..., slice(None), slice(None))]
                torch.testing.assert_close(lazy.to_dense(), expected)
        corner = kernel(X)[..., :3, 2:]
        torch.testing.assert_close(corner.to_dense(), K[..., :3, 2:])
        corner = kernel(X)[1, ..., 1:4, :2]
        torch.testing.assert_close(corner.to_dense(), K[1, ..., 1:4, :2])
    # inputs with more batch dimensions than the kernel has
    X = points(4, *(1 for _ in batch), 5)
    K = kernel(X).to_dense()
    assert K.shape == (4, *batch, 5, 5)
    torch.testing.assert_close(kernel(X)[2].to_dense(), K[2])
    torch.testing.assert_close(kernel(X)[2, 1].to_dense(), K[2, 1])
    wide = kernel.expand_batch(4, *batch)
    assert wide.batch_shape == (4, *batch)
    torch.testing.assert_close(wide(X).to_dense(), K)
    for key, value in kernel.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_treed_gp_with_several_outputs_learns_a_given_kernel() -> None:
    kernel = treed(Size([2]), covar_module=stationary(Size([2])))
    x = torch.rand(1, 6, D)
    kernel.leaf_covariance(1, torch.tensor([0]), x).sum().backward()
    for parameter in kernel.copies[0].parameters():
        assert (parameter.grad[1] != 0).any()
        assert (parameter.grad[0] == 0).all()
