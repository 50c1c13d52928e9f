"""Which private name of a library is missing, when the library has changed."""

import ast
import importlib
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, PriorGuidedAcquisitionFunction
from botorch.models import ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.transforms.outcome import Log, Standardize
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import NormalPrior

from botorch_structured import _botorch_names

# The private attributes and methods of each class that are read, set or overridden.
_TABLE = {
    "botorch.acquisition.LogExpectedImprovement": "_log",
    "botorch.acquisition.PriorGuidedAcquisitionFunction": "_prior_exponent",
    "botorch.models.SingleTaskGP": """
        _aug_batch_shape _clear_cache _has_transformed_inputs _input_batch_shape
        _num_outputs _original_train_inputs _revert_to_original_inputs
        _set_transformed_inputs _subset_batch_dict
    """,
    "botorch.models.MultiTaskGP": """
        _extract_targets_and_noise _num_outputs _output_tasks
        _restore_targets_and_noise _supports_batched_models _supports_cache_root
        _task_feature
    """,
    "botorch.models.ModelListGP": "_broadcast_mvns",
    "botorch.models.model.Model": """
        _has_transformed_inputs _is_ensemble _is_fully_bayesian _original_train_inputs
        _revert_to_original_inputs _set_transformed_inputs
    """,
    "botorch.models.transforms.outcome.OutcomeTransform": "_is_linear",
    "botorch.models.transforms.outcome.Standardize": """
        _is_trained _min_stdv _outputs _stdvs_sq
    """,
    "botorch.posteriors.TransformedPosterior": "_posterior",
    "gpytorch.distributions.MultitaskMultivariateNormal": "_interleaved",
    "gpytorch.kernels.Kernel": "_batch_shape _lengthscale_param _priors",
    "gpytorch.kernels.ScaleKernel": "_outputscale_param",
    "gpytorch.likelihoods.GaussianLikelihood": "_shaped_noise_covar",
    "gpytorch.likelihoods.noise_models.HomoskedasticNoise": "_noise_param",
    "gpytorch.means.ConstantMean": "_constant_param",
    "gpytorch.mlls.ExactMarginalLogLikelihood": "_add_other_terms",
    "gpytorch.priors.NormalPrior": "_transform",
    "optuna.samplers.PartialFixedSampler": "_base_sampler _fixed_params",
    "torch.Tensor": "_version",
    "torch.nn.Module": "_apply _buffers _load_from_state_dict _parameters",
}
ATTRIBUTES = {kind: names.split() for kind, names in _TABLE.items()}
NAMES = [(kind, name) for kind, names in ATTRIBUTES.items() for name in names]
_MOST_NAMES = 58


def test_they_are_few() -> None:
    assert len(_botorch_names.__all__) + len(NAMES) <= _MOST_NAMES
    source = Path(_botorch_names.__file__).read_text()
    assert "scipy" not in source, "SciPy's private names change without notice"


@cache
def instances() -> dict[str, Any]:
    """What sets some of its attributes in its constructor, by class."""
    X = torch.rand(4, 2, dtype=torch.float64)
    Y = X[:, :1].exp()
    model = SingleTaskGP(X, Y)
    standardize = Standardize(m=1)
    standardize(Y)
    made = [
        model,
        ModelListGP(model),
        MultiTaskGP(torch.cat([X, X[:, :1].round()], dim=-1), Y, task_feature=2),
        PriorGuidedAcquisitionFunction(
            LogExpectedImprovement(model, best_f=1.0), torch.nn.Identity()
        ),
        standardize,
        SingleTaskGP(X, Y, outcome_transform=Log()).posterior(X),
        MultitaskMultivariateNormal(torch.zeros(3, 2), torch.eye(6)),
        RBFKernel(),
        GaussianLikelihood(),
        ExactMarginalLogLikelihood(model.likelihood, model),
        NormalPrior(0.0, 1.0),
    ]
    found: dict[str, Any] = {type(x).__name__: x for x in made}
    assert "TransformedPosterior" in found  # as Log makes one
    return found | {"Kernel": found["RBFKernel"], "Module": model}


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_is_there(kind: str, name: str) -> None:
    module, _, cls = kind.rpartition(".")
    if module == "optuna.samplers":
        samplers = pytest.importorskip(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is experimental
            found = samplers.PartialFixedSampler({}, samplers.RandomSampler())
    else:
        found = instances().get(cls, getattr(importlib.import_module(module), cls))
    assert hasattr(found, name), f"{kind} has no {name} any more."


@pytest.mark.parametrize("name", _botorch_names.__all__)
def test_is_imported(name: str) -> None:
    assert getattr(_botorch_names, name) is not None


def test_no_other_name_is_imported() -> None:
    assert not hasattr(_botorch_names, "unknown")


def private_names(source: str) -> tuple[set[str], set[str], set[str]]:
    """Private names that a module imports, those it reads, and those it makes."""
    imported, read, made = set(), set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(
            "botorch_structured"
        ):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            (made if isinstance(node.ctx, ast.Store) else read).add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            made.add(node.target.id)
        elif isinstance(node, ast.Assign):
            made |= {t.id for t in node.targets if isinstance(t, ast.Name)}

    def private(names: set[str]) -> set[str]:
        return {n for n in names if n.startswith("_") and not n.startswith("__")}

    return private(imported), private(read), private(made)


def test_no_other_private_names() -> None:
    """Imports are in one module, and attributes of others in its table."""
    root = Path(_botorch_names.__file__).parent
    found = {
        path.relative_to(root).as_posix(): private_names(path.read_text())
        for path in root.rglob("*.py")
        if path != Path(_botorch_names.__file__)
    }
    imported = {file: names for file, (names, _, _) in found.items() if names}
    assert not imported, "import these from _botorch_names"
    listed = {name for names in ATTRIBUTES.values() for name in names}
    known = listed.union(*(made for _, _, made in found.values()), {"_asdict"})
    unknown = {f: sorted(read - known) for f, (_, read, _) in found.items()}
    assert not {f: names for f, names in unknown.items() if names}
