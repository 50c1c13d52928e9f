r"""Gaussian processes on the leaves of a tree: flat here, violent there.

Which model when: ``TreedGP`` is for objectives whose scale, smoothness or noise changes
abruptly from one region to another, so that one set of hyperparameters is wrong
everywhere. Where the change is gradual, BoTorch's ``Warp`` does; where regions are
known beforehand (decisions), ``TreeStructuredGP`` or ``ConditionalGP`` do.

References:

.. [Assael2014treed]
    J.-A. M. Assael, Z. Wang, B. Shahriari and N. de Freitas. Heteroscedastic Treed
    Bayesian Optimisation. arXiv:1410.7172, 2014.
"""

from __future__ import annotations

__all__ = ["TreedGP"]

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, Self

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from gpytorch.means import Mean
from torch import Tensor

from botorch_structured.inference.surroundings import few_threads
from botorch_structured.inference.treed_partition import TreePartition
from botorch_structured.models.checks import (
    CheckedModel,
    check_modules,
    check_training_data,
)
from botorch_structured.models.dependent_inputs import (
    dataset_task,
    refuse_dependencies,
)
from botorch_structured.models.gaussian_noise import check_noise
from botorch_structured.models.input_transforms import leaves_alone
from botorch_structured.models.outcome_scale import AnyScale
from botorch_structured.models.treed_assembly import TreedAssembly
from botorch_structured.models.treed_build import grow_trees


class TreedGP(CheckedModel, TreedAssembly, AnyScale, SingleTaskGP):
    r"""A GP with hyperparameters of its own on each leaf of a tree over the inputs.

    Choose it when an objective is flat in one region and violent in another, jumps, or
    is noisier here than there ([Assael2014treed]_). The tree is grown on the data at
    construction: to take more data into account, construct the model anew, as in each
    step of a Bayesian optimisation. Hyperparameters of a leaf are estimated from all
    nodes on the path from the root to it, weighted (equation (2)), so that a leaf with
    five points has sensible ones.

    Which mode for what: ``TreedGP.as_published``, the method of the paper, for the
    search of an optimum; the default, which differs from it in four arguments, for
    predictions. As a density the paper's is no better than one GP, the default is.

    Between leaves the covariance is zero by definition: an approximation near
    boundaries. ``forward`` is that prior; predictions are those of the leaf a point is
    in (exactly at a threshold, of the left one). With ``condition_on="leaf"`` they are
    mixed, as far as two moments go, where the change may be: in the gap between the
    nearest data of two leaves, and with ``split_criterion="evidence"`` also in gaps
    beside it, as probable as the data make them.
    Conditioned and fantasy models keep the partition and the hyperparameters. Loading a
    state brings the partition it was fitted with, whatever data the model has.

    If no split is worth it, there is one leaf, and the model *is* a ``SingleTaskGP``
    (unless ``warp`` or ``categorical_features`` ask for more).

    Args:
        train_X: ``batch_shape x n x d``; columns in [0, 1] or an ``input_transform``.
        train_Y: ``batch_shape x n x m``. Each batch element and output has a tree of
            its own.
        train_Yvar: ``batch_shape x n x m`` observed noise variances; inferred if None.
        likelihood: Replaces the noise of the leaves by one for all of them.
        covar_module: Replaces the kernel: each leaf has a copy. Default: Matern-5/2 or
            RBF with a lengthscale per column, times a variance.
        mean_module: Replaces the mean: each leaf has a copy. Default: a constant.
        outcome_transform: Default: ``Standardize``, for outcomes of any scale. Under
            another one (or None) outcomes that are not all equal must have a standard
            deviation of at least 1e-5 (1e-3 in single precision): GPyTorch's smallest
            variance is larger. The tree is grown on transformed outcomes.
        input_transform: Without parameters to be learned, see ``warp``.
        min_leaf_size: Fewest points of a leaf, those shared with a neighbour included.
        max_leaves: Where to stop splitting.
        leaf_noise: Whether each leaf has a noise variance of its own.
        warp: Whether each leaf warps its inputs (in [0, 1]) by a Kumaraswamy
            distribution function, like BoTorch's ``Warp`` ("HTBO Warp").
        split_criterion: "evidence": split where two GPs explain the data better than
            one, given a prior on trees: for predictions. "variance": CART, equation
            (1), as deep as ``min_leaf_size`` and ``max_leaves`` allow (the paper): for
            optimisation, best together with the rest of ``as_published``. Evidence asks
            for points in the violent part, and while there are none one GP expects
            nothing there (on ``RKHS1D`` it often was one leaf until 30 evaluations); by
            variance, nine points make two leaves.
        path_sharing: What a leaf shares with the nodes above it in equation (2):
            "lengthscale" (and the warping), amplitude, mean and noise of those being
            their own, estimated before; or "all" (the paper). All of a
            ``covar_module``, whose amplitude is not known.
        condition_on: Data that a leaf predicts from: "leaf": its own, and the point at
            the threshold where that is plausible on its side (within three standard
            deviations); or "all" (the paper). Which data a node has in equation (2)
            follows: its own, or those shared with the sibling too.
        categorical_features: Columns without an order; splits are one value against the
            rest, and the kernel asks whether values are equal.
        leaf_kernel: "matern" (5/2, the paper), "rbf", or "evidence": the one that
            explains the leaves better. Default: by evidence where splits are.

    Raises:
        ValueError: Unknown options, sizes or columns out of range, an
            ``input_transform`` with parameters to be learned (and more than one leaf
            allowed) or that moves categorical columns, a likelihood that does not just
            add Gaussian noise to each outcome, inputs outside [0, 1] with ``warp``, or
            ``warp`` or ``categorical_features`` together with ``covar_module``.

    Example:
        >>> model = TreedGP(train_X, train_Y)  # or TreedGP.as_published(...)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.partition.num_leaves, model.partition.leaf_index(train_X)
    """

    partition: TreePartition

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        min_leaf_size: int = 5,
        max_leaves: int | None = None,
        leaf_noise: bool = True,
        warp: bool = False,
        split_criterion: Literal["evidence", "variance"] = "evidence",
        path_sharing: Literal["lengthscale", "all"] = "lengthscale",
        condition_on: Literal["leaf", "all"] = "leaf",
        categorical_features: Sequence[int] | None = None,
        leaf_kernel: Literal["evidence", "matern", "rbf"] | None = None,
    ) -> None:
        check_modules(
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        check_training_data(
            train_X, train_Y, train_Yvar, outcome_transform=outcome_transform
        )
        for name, value, allowed in (
            ("split_criterion", split_criterion, ("evidence", "variance")),
            ("path_sharing", path_sharing, ("lengthscale", "all")),
            ("condition_on", condition_on, ("leaf", "all")),
            ("leaf_kernel", leaf_kernel, (None, "evidence", "matern", "rbf")),
        ):
            if value not in allowed:
                raise ValueError(f"{name}: expected one of {allowed}, got {value!r}.")
        _check_sizes(min_leaf_size, max_leaves)
        categorical = _columns(categorical_features, train_X.shape[-1])
        if covar_module is not None and (warp or categorical or leaf_kernel):
            raise ValueError(
                "covar_module replaces the kernel that warp, categorical_features and "
                "leaf_kernel configure: expected one or the other, got both."
            )
        _check_modules(input_transform, likelihood, one_leaf=max_leaves == 1)
        with torch.no_grad():
            X = self.transform_inputs(train_X, input_transform=input_transform)
        if X.shape[-1] != train_X.shape[-1] and not leaves_alone(
            categorical, train_X, X
        ):
            raise ValueError(
                "input_transform: expected one that leaves the categorical columns "
                f"{categorical} where they are, got {type(input_transform).__name__}."
            )
        if warp and not ((X > -1e-6) & (X < 1.0 + 1e-6)).all():
            raise ValueError(
                "train_X: expected (transformed) inputs in [0, 1] to warp, got values "
                f"from {float(X.min()):.4g} to {float(X.max()):.4g}; use Normalize."
            )
        # copies for leaves, and for a state with another partition
        given = (deepcopy(covar_module), deepcopy(mean_module))
        if categorical:
            self._ignore_X_dims_scaling_check = categorical
        super().__init__(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self._given = given
        self._own_noise = likelihood is None and train_Yvar is None
        self._leaf_noise, self._warp = leaf_noise, warp
        self._categorical = categorical
        self._share_all = path_sharing == "all"
        self._lend = condition_on == "leaf"
        with torch.no_grad():
            X = self.transform_inputs(self.train_inputs[0])
        by_evidence = split_criterion == "evidence"
        if likelihood is not None:
            check_noise(likelihood, X, self.train_targets.shape)
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        with few_threads(X.shape[-2]):
            grown = grow_trees(
                X,
                self.train_targets,
                self._known_noise() if known else None,
                by_evidence=by_evidence,
                min_leaf_size=min_leaf_size,
                max_leaves=max_leaves,
                categorical=categorical,
                kernel=leaf_kernel or (split_criterion if by_evidence else "matern"),
            )
        self.partition = TreePartition(grown.roots, grown.inputs, self._aug_batch_shape)
        if self.partition.num_leaves > 1 or warp or categorical:
            self._become_treed(X.shape[-1])
            self._start_from(grown)
        else:
            self._add_partition_to_subset_dict()
        self.to(train_X)

    @classmethod
    def as_published(
        cls,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        **kwargs: Any,
    ) -> Self:
        r"""The method as published: to search for an optimum, not for predictions.

        That is ``TreedGP`` with ``split_criterion="variance"``, ``path_sharing="all"``,
        ``condition_on="all"`` and ``leaf_noise=False`` (sections 3.1 to 3.3 of
        [Assael2014treed]_): CART cuts wherever it may, all hyperparameters of a leaf
        are estimated along its path, and it predicts from the data of all leaves.

        Choose it inside Bayesian optimisation, with ``optimize_acqf_sobol``. On
        ``RKHS1D``, 88 % of 25 runs had a regret below 0.01 after 30 evaluations and all
        of them after 50; with ``split_criterion="variance"`` alone 64 and 96 %, with
        the default 20 and 72 %, with a ``SingleTaskGP`` 12 and 40 %.

        Do not choose it where variances count: it is over-confident. On a step with two
        levels of noise (100 points) the mean log density of new points is -0.64, that
        of the default 0.53, that of a ``SingleTaskGP`` -0.27.

        Args:
            train_X: ``batch_shape x n x d``, see the class.
            train_Y: ``batch_shape x n x m``.
            train_Yvar: ``batch_shape x n x m`` observed noise variances.
            kwargs: Other arguments of the constructor.

        Raises:
            TypeError: If one of the four is given too: for a mode in between, call the
                constructor.

        Example:
            >>> model = TreedGP.as_published(train_X, train_Y, max_leaves=8)
        """
        return cls(
            train_X,
            train_Y,
            train_Yvar,
            split_criterion="variance",
            path_sharing="all",
            condition_on="all",
            leaf_noise=False,
            **kwargs,
        )

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        *,
        hierarchical_dependencies: Mapping[int, Mapping[float, Sequence[int]]]
        | None = None,
        categorical_features: Sequence[int] | None = None,
        task_feature: int | None = None,
        fidelity_features: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        r"""Constructor arguments from a dataset, as BoTorch and Ax ask for them.

        Args:
            training_data: The data.
            hierarchical_dependencies: None or without inactive columns: this model
                finds its own regions, in all columns.
            categorical_features: Columns without an order.
            task_feature: A task is one more column without an order. Default: that of
                a ``MultiTaskDataset``.
            fidelity_features: Fidelities are ordinary columns of this model.

        Raises:
            ValueError: If a column depends on another.
        """
        refuse_dependencies(cls, training_data, hierarchical_dependencies)
        categorical = list(categorical_features or [])
        task = dataset_task(training_data, task_feature)
        if task is not None:
            categorical.append(task)
        inputs = super().construct_inputs(training_data=training_data)
        if categorical:
            inputs["categorical_features"] = categorical
        return inputs


def _check_sizes(min_leaf_size: int, max_leaves: int | None) -> None:
    if not isinstance(min_leaf_size, int) or min_leaf_size < 2:
        raise ValueError(
            f"min_leaf_size: expected an integer of at least 2, got {min_leaf_size!r}."
        )
    if max_leaves is not None and (not isinstance(max_leaves, int) or max_leaves < 1):
        raise ValueError(
            f"max_leaves: expected None or a positive integer, got {max_leaves!r}."
        )


def _columns(features: Sequence[int] | None, dim: int) -> list[int]:
    columns = sorted(set(features or ()))
    if columns and not 0 <= columns[0] <= columns[-1] < dim:
        raise ValueError(
            f"categorical_features: expected columns from 0 to {dim - 1}, got "
            f"{columns}."
        )
    return columns


def _check_modules(
    input_transform: InputTransform | None,
    likelihood: Likelihood | None,
    one_leaf: bool,
) -> None:
    if (
        input_transform is not None
        and not one_leaf
        and any(p.requires_grad for p in input_transform.parameters())
    ):
        raise ValueError(
            "input_transform: expected a transform without parameters, as thresholds "
            f"are fixed, got {type(input_transform).__name__}; with warp=True leaves "
            "warp their inputs themselves."
        )
    if likelihood is not None and not isinstance(
        likelihood, (GaussianLikelihood, FixedNoiseGaussianLikelihood)
    ):
        raise ValueError(
            "likelihood: expected a GaussianLikelihood or a "
            "FixedNoiseGaussianLikelihood, whose noise is the same in all leaves, got "
            f"{type(likelihood).__name__}."
        )
