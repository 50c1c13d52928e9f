"""What GPyTorch asks of a kernel: its own test case on each kernel of this package.

``RandomFourierFeatures`` is a feature map and has no covariance to test.
"""

from __future__ import annotations

import unittest
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase

from botorch_structured.kernels import (
    ConditionalKernel,
    LaplaceKernel,
    MondrianKernel,
    TreeStructuredKernel,
)
from botorch_structured.spaces import Between, ParameterTree

# GPyTorch's data are standard normal: about half of them are on each path.
TREE = ParameterTree(2, conditions={1: Between(0, 0.0, float("inf"))})
# A tree is about all columns, so that these kernels have no ``active_dims``.
ALL_COLUMNS = None


class TestLaplaceKernel(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs: Any) -> Kernel:
        return LaplaceKernel(**kwargs)

    def create_kernel_ard(self, num_dims: int, **kwargs: Any) -> Kernel:
        return LaplaceKernel(ard_num_dims=num_dims, **kwargs)


class TestMondrianKernel(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs: Any) -> Kernel:
        bounds = torch.tensor([[-10.0], [10.0]])
        return MondrianKernel(1.0, num_trees=8, seed=0, bounds=bounds, **kwargs)

    def create_kernel_ard(self, num_dims: int, **kwargs: Any) -> Kernel:
        return self.create_kernel_no_ard(ard_num_dims=num_dims, **kwargs)


class TestConditionalKernel(BaseKernelTestCase, unittest.TestCase):
    test_active_dims_list = test_active_dims_range = ALL_COLUMNS

    def create_kernel_no_ard(self, **kwargs: Any) -> Kernel:
        return self.create_kernel_ard(None, **kwargs)

    def create_kernel_ard(self, num_dims: int | None, **kwargs: Any) -> Kernel:
        base = MaternKernel(nu=2.5, ard_num_dims=num_dims, **kwargs)
        return ConditionalKernel(ScaleKernel(base, **kwargs), TREE)


class TestTreeStructuredKernel(BaseKernelTestCase, unittest.TestCase):
    test_active_dims_list = test_active_dims_range = ALL_COLUMNS

    def setUp(self) -> None:
        super().setUp()
        # hyperparameters are made in double precision, whatever the default is
        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)

    def create_kernel_no_ard(self, **kwargs: Any) -> Kernel:
        kernel = TreeStructuredKernel(TREE, **kwargs)
        for parameter in kernel.parameters():  # each element of a batch is another one
            parameter.data += 0.1 * torch.randn_like(parameter)
        return kernel
