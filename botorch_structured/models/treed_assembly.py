"""The modules of a treed GP, which depend on its partition.

They are made when the partition is known: on construction from the trees that were
grown, and once more where a state brings another partition.
"""

from __future__ import annotations

__all__ = ["TreedAssembly"]

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
    get_gaussian_likelihood_with_lognormal_prior,
)
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, Mean
from torch import Tensor

from botorch_structured.models.treed_build import NOISE_FLOOR, GrownTrees
from botorch_structured.models.treed_inference import TreedInference
from botorch_structured.models.treed_kernel import TreedCopies, TreedStationary
from botorch_structured.models.treed_modules import (
    LeafNoise,
    LeafNoiseLikelihood,
    TreedMean,
    TreedMeanCopies,
    shared_noise_likelihood,
)


class TreedAssembly(TreedInference):
    """Kernel, mean and likelihood for the leaves of ``partition``, or for one leaf."""

    _given: tuple[Kernel | None, Mean | None]  # by the user: what leaves have copies of
    _own_noise: bool  # not given, neither as values nor as a likelihood
    _leaf_noise: bool
    _warp: bool
    _categorical: list[int]

    def _become_treed(self, dim: int) -> None:
        """Modules for the leaves of the partition, at the modes of their priors."""
        partition = self.partition
        covar_module, mean_module = deepcopy(self._given)
        if covar_module is None:
            self.covar_module = TreedStationary(
                partition, dim, categorical=self._categorical, warp=self._warp
            )
        else:
            self.covar_module = TreedCopies(partition, covar_module)
        if mean_module is None:
            self.mean_module = TreedMean(partition)
        else:
            self.mean_module = TreedMeanCopies(partition, mean_module)
        if self._own_noise and self._leaf_noise:
            noise = LeafNoise(partition, NOISE_FLOOR, blend=self._lend)
            self.likelihood = LeafNoiseLikelihood(noise)
        elif self._own_noise:
            self.likelihood = shared_noise_likelihood(NOISE_FLOOR, partition.tree_shape)
        # (variance, mean, noise) of each node, for what is not shared with its leaves
        shape = (*partition.column.shape, 3)
        self.register_buffer("levels", torch.ones(shape, dtype=torch.float64))
        self._subset_batch_dict = {
            "levels": -3,
            "covar_module.lengthscale_of_leaf.raw_value": -3,
            "covar_module.variance_of_leaf.raw_value": -2,
            "covar_module.kind": -1,
            "covar_module.concentration0.raw_value": -3,
            "covar_module.concentration1.raw_value": -3,
            "mean_module.constant": -2,
            "likelihood.noise_covar.noise_of_leaf.raw_value": -2,
            "likelihood.noise_covar.raw_noise": -2,
        }
        if covar_module is not None or mean_module is not None:
            del self._subset_batch_dict  # as in SingleTaskGP
        self._add_partition_to_subset_dict()

    def _become_single(self, dim: int) -> None:
        """The modules of a ``SingleTaskGP``, which one leaf is."""
        covar_module, mean_module = deepcopy(self._given)
        batch_shape = self.partition.tree_shape
        self.covar_module = covar_module or get_covar_module_with_dim_scaled_prior(
            ard_num_dims=dim, batch_shape=batch_shape
        )
        self.mean_module = mean_module or ConstantMean(batch_shape=batch_shape)
        if self._own_noise:
            self.likelihood = get_gaussian_likelihood_with_lognormal_prior(
                batch_shape=batch_shape
            )
        if "levels" in self._buffers:
            del self._buffers["levels"]
        self._subset_batch_dict = {
            "mean_module.raw_constant": -1,
            "covar_module.raw_lengthscale": -3,
            "likelihood.noise_covar.raw_noise": -2,
        }
        if covar_module is not None:
            del self._subset_batch_dict
        self._add_partition_to_subset_dict()

    def _add_partition_to_subset_dict(self) -> None:
        if hasattr(self, "_subset_batch_dict"):
            self._subset_batch_dict |= {
                f"partition.{name}": -(2 + values.ndim - self.partition.column.ndim)
                for name, values in self.partition.named_buffers()
            }

    def _start_from(self, grown: GrownTrees) -> None:
        """Hyperparameters from the fits of nodes that the trees were grown by."""
        trees = self.partition.tree_shape
        nodes, leaves = self.partition.column.shape[-1], self.partition.num_leaves
        theta = grown.theta(nodes, inner=True).reshape(*trees, nodes, 4)
        values = [theta[..., 1].exp(), theta[..., 2], theta[..., 3].exp() + NOISE_FLOOR]
        self.levels.copy_(torch.stack(values, dim=-1).nan_to_num(nan=1.0))
        theta = grown.theta(leaves, inner=False)
        root = grown.theta(nodes, inner=True)[:, :1]
        if self._share_all:
            # what is shared with all nodes is nearer to that of the root
            theta = torch.where(theta.isnan(), theta, root)
        theta = theta.reshape(*trees, leaves, 4)
        exists = ~theta[..., 0].isnan()
        kernel, mean, likelihood = self.covar_module, self.mean_module, self.likelihood
        with torch.no_grad():
            if isinstance(kernel, TreedStationary):
                kernel.kind.copy_(torch.tensor(grown.rbf).reshape(trees))
                length, variance = kernel.lengthscale_of_leaf, kernel.variance_of_leaf
                scale = torch.as_tensor(np.stack(grown.scales)).to(theta)
                scale = scale.reshape(*trees, 1, -1)
                start = theta[..., :1].exp() * scale
                length.value = torch.where(exists[..., None], start, length.value)
                start = theta[..., 1].exp()
                variance.value = torch.where(exists, start, variance.value)
            if isinstance(mean, TreedMean):
                mean.constant.copy_(theta[..., 2].nan_to_num(nan=0.0))
            if isinstance(likelihood, LeafNoiseLikelihood):
                noise = likelihood.noise_covar.noise_of_leaf
                start = theta[..., 3].exp() + NOISE_FLOOR
                noise.value = torch.where(exists, start, noise.value)
            elif self._own_noise:
                start = root[..., 0, 3].exp() + NOISE_FLOOR
                likelihood.noise = start.reshape(*trees, 1)

    # -- state --------------------------------------------------------------------

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Take over the partition of the state before its hyperparameters."""
        name = f"{prefix}partition."
        state = {
            key.removeprefix(name): value
            for key, value in state_dict.items()
            if key.startswith(name)
        }
        if "column" in state:
            self._adopt(state, treed=f"{prefix}levels" in state_dict)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _adopt(self, state: Mapping[str, Tensor], treed: bool) -> None:
        partition = self.partition
        before = (partition.column.shape[-1], partition.num_leaves, self._is_treed)
        trees = state["column"].shape[:-1]
        if trees != partition.tree_shape:
            raise ValueError(
                "state_dict: expected partitions of batch shape "
                f"{tuple(partition.tree_shape)}, as this model has, got "
                f"{tuple(trees)}."
            )
        partition.resize(state["column"].shape[-1])
        partition.load_state_dict(state)
        self._drop_caches()
        if before == (partition.column.shape[-1], partition.num_leaves, treed):
            return
        with torch.no_grad():
            X = self.train_inputs[0]
            dim = (self.transform_inputs(X) if self.training else X).shape[-1]
        if treed:
            self._become_treed(dim)
        else:
            self._become_single(dim)
        self.to(self.train_targets)
        self.train(self.training)
