from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior
from torch import Tensor

from botorch_structured.models.sampled.folded_prediction import (
    ModuleStack,
    stack_modules,
)


def kernel(lengthscale: float, **kwargs: object) -> Kernel:
    prior = GammaPrior(3.0, 6.0)
    base = MaternKernel(ard_num_dims=2, lengthscale_prior=prior, **kwargs)
    new = ScaleKernel(base).double()
    base.lengthscale = torch.tensor([lengthscale, 2.0 * lengthscale])
    new.outputscale = 1.0 + lengthscale
    return new


def rows(*shape: int) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.rand(*shape, 2, generator=g, dtype=torch.double)


def test_parameters_are_stacked_in_front() -> None:
    stacked = stack_modules([kernel(x) for x in (0.3, 0.5, 0.9)])
    assert stacked is not None
    assert stacked.batch_shape == torch.Size([3])
    assert stacked.base_kernel.lengthscale.shape == (3, 1, 2)
    expected = torch.tensor([1.3, 1.5, 1.9], dtype=torch.double)
    torch.testing.assert_close(stacked.outputscale, expected)
    assert not any(p.requires_grad for p in stacked.parameters())
    noise = stack_modules([GaussianLikelihood().double() for _ in range(2)])
    assert noise is not None and noise.noise.shape == (2, 1)


def test_what_differs_in_more_than_parameters_is_not_stacked() -> None:
    assert stack_modules([kernel(0.3), ScaleKernel(RBFKernel())]) is None
    assert stack_modules([RBFKernel(ard_num_dims=2), RBFKernel()]) is None
    columns = [torch.tensor([0, 1]), torch.tensor([1, 2])]
    assert stack_modules([kernel(0.3, active_dims=c) for c in columns]) is None
    assert stack_modules([RBFKernel().double(), RBFKernel()]) is None


def test_stacked_and_one_by_one() -> None:
    kernels = [kernel(x) for x in (0.3, 0.5, 0.9)]
    one = rows(1, 4)
    stack = ModuleStack(kernels, [((one, one), {})])
    loop = ModuleStack(kernels, [])
    loop.stacked = None
    assert stack.stacked is not None
    for points in [(one, rows(1, 5)), (rows(3, 4), one), (rows(3, 4), rows(3, 2))]:
        torch.testing.assert_close(stack(*points), loop(*points))
        assert stack(*points).shape == (3, 4, points[1].shape[-2])
    batch = rows(6, 1, 2)
    assert loop(batch).shape == (6, 3, 2, 2)
    torch.testing.assert_close(stack(batch), loop(batch))
    assert loop(batch, diag=True).shape == (6, 3, 2)
    torch.testing.assert_close(stack(batch, diag=True), loop(batch, diag=True))
    means = ModuleStack([ConstantMean().double() for _ in range(3)], [])
    assert means(batch).shape == (6, 3, 2)


def test_probes_decide() -> None:
    class Silent(LinearKernel):
        """Gives numbers of the wrong samples when it has a batch."""

        def forward(self, *args: Tensor, **kwargs: object) -> object:
            result = super().forward(*args, **kwargs)
            return result.flip(0) if self.batch_shape else result

    kernels = [Silent().double() for _ in range(2)]
    kernels[0].variance = 3.0
    points = rows(1, 3)
    assert ModuleStack(kernels, []).stacked is not None
    found = ModuleStack(kernels, [((points, points), {"diag": True})])
    assert found.stacked is None
    expected = torch.stack([k(points[0], diag=True) for k in kernels])
    torch.testing.assert_close(found(points, points, diag=True), expected)
