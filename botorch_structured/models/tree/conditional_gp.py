r"""A Gaussian process with zero covariance between branches of a conditional space.

Which model when: ``ConditionalGP`` where branches have nothing in common but the scale
of the outcome, or as a baseline; ``TreeStructuredGP`` where there are shared
columns, or too few points per branch to learn its level. ``SingleTaskGP`` on
imputed inputs (``transforms.Impute``) takes fill values for settings.

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, Mean
from gpytorch.priors import NormalPrior
from torch import Tensor

import botorch_structured.models.tree.leaf_features  # noqa: F401 (registers itself)
from botorch_structured._botorch_names import DefaultType
from botorch_structured.kernels.leaf_kernels import ConditionalKernel
from botorch_structured.linalg.parameters import (
    LogInterval,
    QuickLogNormalPrior,
    horseshoe_likelihood,
    register_root_prior,
    set_noise_floor,
)
from botorch_structured.models.checks import protect_decisions
from botorch_structured.models.tree.leaf_model import (
    Dependencies,
    LeafModel,
    output_dimensions,
    read_arguments,
)
from botorch_structured.spaces import ParameterTree
from botorch_structured.spaces.arguments import check_columns


class ConditionalGP(LeafModel):
    r"""A GP with a ``ConditionalKernel``: zero covariance across paths.

    Choose it when some parameters exist only for some values of others and what is
    learned on one path says nothing about another ([Levesque2017conditional]_, section
    IV-A). All paths share one set of hyperparameters. Evidence and predictions take the
    blocks of the covariance one by one, O(sum_p n_p^3) (equations (9) and (10)).

    The default base kernel is the paper's: a Matern-5/2 kernel with a lengthscale per
    column, times a variance; inputs in [0, 1]. So are the priors: log-normal(0, 1) on
    lengthscales and on the amplitude sigma_f, horseshoe(1) on the noise standard
    deviation. They are used by MAP estimates (``fit_gpytorch_mll``) and by slice
    sampling (``botorch_structured.fit.fit_slice_sampling``), the paper's choice. The
    constant mean has a standard normal prior.

    A tree without decisions has one path: the model then *is* a ``SingleTaskGP``,
    unless there are ``categorical_features``.

    Args:
        train_X: ``batch_shape x n x d``; columns in [0, 1] or an ``input_transform``.
            Inactive columns may hold any finite value: the posterior does not depend on
            it.
        train_Y: ``batch_shape x n x m``.
        hierarchical_dependencies: A ``SearchSpace``; or ``{parent column: {parent
            value: [child columns]}}`` as in BoTorch and Ax, or a ``ParameterTree``. Of
            a ``SearchSpace``, ``input_transform()`` and ``categorical_features`` are
            used, unless others are given (for none of them, give ``space.tree``).
        train_Yvar: ``batch_shape x n x m`` observed noise variances; inferred if None.
        likelihood: Default: homoskedastic noise with the prior above, and a floor of
            1e-9, or of 1e-4 where more than a quarter of the outcomes repeat exactly.
        covar_module: The base kernel that is wrapped; a ``ConditionalKernel`` of the
            same tree is taken as it is. It sees all ``d`` columns, inactive ones at
            0.5.
        mean_module: Default: a ``ConstantMean``.
        outcome_transform: Default: ``Standardize``, for outcomes of any scale. Under
            another one (or None) outcomes that are not all equal must have a standard
            deviation of at least 1e-5 (1e-3 in single precision): GPyTorch's smallest
            variance is larger.
        input_transform: Decision and categorical columns are left out of a
            ``Normalize``; any other transform must leave them unchanged and not learn
            from the data.
        categorical_features: Columns without an order besides the decisions. The
            default base kernel is then multiplied by BoTorch's ``CategoricalKernel``.

    Raises:
        ValueError: For columns out of range, an undeclared value in a strictly declared
            decision, a transform that changes a decision column, a ``covar_module`` for
            another tree, or one together with ``categorical_features``.

    Example:
        >>> # x0 chooses between x1 and x2
        >>> model = ConditionalGP(train_X, train_Y, {0: {0: [1], 1: [2]}})
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> # a SearchSpace brings its input transform and its categorical columns
        >>> model = ConditionalGP(space.sample(20), train_Y, space)
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        hierarchical_dependencies: Dependencies,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        categorical_features: Sequence[int] | None = None,
    ) -> None:
        tree, input_transform, categorical_features = read_arguments(
            train_X,
            train_Y,
            train_Yvar,
            hierarchical_dependencies,
            categorical_features,
            input_transform=input_transform,
            covar_module=covar_module,
            likelihood=likelihood,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
        )
        columns = check_columns(
            "categorical_features",
            categorical_features or (),
            tree.dim,
        )
        categorical = sorted({*columns} - {*tree.decision_columns})
        if covar_module is not None and categorical:
            raise ValueError(
                "covar_module: expected None beside categorical_features, which "
                "configure the base kernel that it replaces, got both."
            )
        if isinstance(covar_module, ConditionalKernel) and covar_module.tree != tree:
            raise ValueError(
                "covar_module: expected a ConditionalKernel of the same tree as "
                f"hierarchical_dependencies, got one of {covar_module.tree!r}."
            )
        input_transform = protect_decisions(
            input_transform,
            tree,
            train_X,
            categorical,
        )
        _, aug_batch_shape = self.get_batch_dimensions(train_X, train_Y)
        own_likelihood = own_kernel = False
        # one path: exactly a SingleTaskGP with its defaults
        if tree.decision_columns or categorical:
            self._warn_of_scales(
                train_X,
                tree,
                categorical,
                input_transform,
            )
            if covar_module is None:
                covar_module = _base_kernel(tree, categorical, aug_batch_shape)
                own_kernel = True
            if not isinstance(covar_module, ConditionalKernel):
                covar_module = ConditionalKernel(covar_module, tree)
            if mean_module is None:
                prior = NormalPrior(0.0, 1.0)
                mean_module = ConstantMean(prior, batch_shape=aug_batch_shape)
            if likelihood is None and train_Yvar is None:
                likelihood = horseshoe_likelihood(aug_batch_shape)
                own_likelihood = True
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
        self.tree = tree
        self._begins_fits = own_likelihood
        if own_likelihood:
            set_noise_floor(self.likelihood, self.train_targets)
        if own_kernel:
            self._subset_batch_dict = output_dimensions(self)


def _base_kernel(
    tree: ParameterTree,
    categorical: Sequence[int],
    batch_shape: torch.Size,
) -> Kernel:
    """Matern-5/2 with a lengthscale per column, times a variance, the paper's priors.

    A categorical decision is constant on a path: it has no lengthscale.
    """
    unordered = {*categorical, *tree.decision_columns} - {*tree.numeric_decisions}
    numeric = sorted({*range(tree.dim)} - unordered)
    if not numeric and not categorical:
        # only decisions: the kernel needs a column, and this one is constant on a path
        numeric = tree.decision_columns[:1]
    parts: list[Kernel] = []
    for kind, columns, start in (
        (partial(MaternKernel, nu=2.5), numeric, 0.5),
        (CategoricalKernel, categorical, 1.0),
    ):
        if columns:
            kernel = kind(
                ard_num_dims=len(columns),
                active_dims=columns,
                batch_shape=batch_shape,
                lengthscale_prior=QuickLogNormalPrior(0.0, 1.0),
                lengthscale_constraint=LogInterval(1e-2, 1e3, initial_value=start),
            )
            parts.append(kernel)
    base = parts[0] if len(parts) == 1 else parts[0] * parts[1]
    scaled = ScaleKernel(
        base,
        batch_shape=batch_shape,
        outputscale_constraint=LogInterval(1e-4, 1e4, initial_value=1.0),
    )
    register_root_prior(scaled, QuickLogNormalPrior(0.0, 1.0))
    return scaled
