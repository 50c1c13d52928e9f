"""Every private name of other libraries that this package relies on.

Private names are imported here and nowhere else. Those of fits are imported when they
are asked for: ``botorch.fit`` and its imports take some 50 ms, which importing a
model does not need. Attributes and methods that are read or overridden are listed.
``tests/test_botorch_names.py`` looks for each of them, and says which one is missing
when one of these libraries has changed.
"""

from __future__ import annotations

__all__ = [
    "ATTRIBUTES",
    "BatchNorm",
    "DefaultType",
    "DropoutNd",
    "GaussianLikelihoodBase",
    "ei_helper",
    "fit_fallback",
    "functorch_is_active",
    "log_ei_helper",
    "scaled_improvement",
]

import importlib
from typing import TYPE_CHECKING, Any

from botorch.acquisition.analytic import _ei_helper as ei_helper
from botorch.acquisition.analytic import _log_ei_helper as log_ei_helper
from botorch.acquisition.analytic import _scaled_improvement as scaled_improvement
from botorch.utils.types import _DefaultType as DefaultType
from gpytorch.likelihoods.gaussian_likelihood import (
    _GaussianLikelihoodBase as GaussianLikelihoodBase,
)
from torch._C import _are_functorch_transforms_active as functorch_is_active
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.dropout import _DropoutNd as DropoutNd

if TYPE_CHECKING:
    fit_fallback: Any


def __getattr__(name: str) -> Any:
    if name == "fit_fallback":
        return importlib.import_module("botorch.fit")._fit_fallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: Class to the private attributes and methods that are read, set or overridden.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "botorch.acquisition.LogExpectedImprovement": ("_log",),
    "botorch.acquisition.PriorGuidedAcquisitionFunction": ("_prior_exponent",),
    "botorch.models.SingleTaskGP": (
        "_apply_noise",
        "_aug_batch_shape",
        "_clear_cache",
        "_get_test_prior_mean_and_covariances",
        "_has_transformed_inputs",
        "_input_batch_shape",
        "_num_outputs",
        "_original_train_inputs",
        "_revert_to_original_inputs",
        "_set_transformed_inputs",
        "_subset_batch_dict",
    ),
    "botorch.models.MultiTaskGP": (
        "_extract_targets_and_noise",
        "_num_outputs",
        "_output_tasks",
        "_restore_targets_and_noise",
        "_supports_batched_models",
        "_supports_cache_root",
        "_task_feature",
    ),
    "botorch.models.ModelListGP": ("_broadcast_mvns",),
    "botorch.models.model.Model": (
        "_has_transformed_inputs",
        "_is_ensemble",
        "_is_fully_bayesian",
        "_original_train_inputs",
        "_revert_to_original_inputs",
        "_set_transformed_inputs",
    ),
    "botorch.models.transforms.outcome.OutcomeTransform": ("_is_linear",),
    "botorch.models.transforms.outcome.Standardize": (
        "_is_trained",
        "_min_stdv",
        "_outputs",
        "_stdvs_sq",
    ),
    "botorch.posteriors.TransformedPosterior": (
        "_mean_transform",
        "_posterior",
        "_sample_transform",
        "_variance_transform",
    ),
    "gpytorch.distributions.MultitaskMultivariateNormal": ("_interleaved",),
    "gpytorch.kernels.Kernel": ("_batch_shape", "_lengthscale_param", "_priors"),
    "gpytorch.kernels.ScaleKernel": ("_outputscale_param",),
    "gpytorch.likelihoods.GaussianLikelihood": ("_shaped_noise_covar",),
    "gpytorch.likelihoods.noise_models.HomoskedasticNoise": ("_noise_param",),
    "gpytorch.means.ConstantMean": ("_constant_param",),
    "gpytorch.mlls.ExactMarginalLogLikelihood": ("_add_other_terms",),
    "gpytorch.models.ExactGP": ("_train_targets",),
    "gpytorch.priors.NormalPrior": ("_transform",),
    "torch.Tensor": ("_version",),
    "torch.nn.Module": (
        "_apply",
        "_buffers",
        "_load_from_state_dict",
        "_modules",
        "_parameters",
    ),
}
