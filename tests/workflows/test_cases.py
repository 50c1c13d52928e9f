"""Workflows of research code that once failed, or went wrong without a word."""

import warnings

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds
from botorch.exceptions import BotorchWarning
from botorch.models import SingleTaskGP
from botorch.models.likelihoods.sparse_outlier_noise import (
    SparseOutlierGaussianLikelihood,
)
from botorch.optim import optimize_acqf
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import (
    DecomposedGP,
    MonotoneGP,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import ParameterTree, SearchSpace

pytestmark = pytest.mark.usefixtures("double")

DEPENDENCIES = {0: {0: [1], 1: [2]}}
BOUNDS = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.double)
OFF = torch.tensor([[[0.37, 0.2, 0.5, 0.5]]], dtype=torch.double)
FEW = {"num_restarts": 2, "raw_samples": 8}


def data(n: int = 24) -> tuple[Tensor, Tensor]:
    X = torch.rand(n, 4, dtype=torch.double)
    X[:, 0] = torch.arange(n) % 2
    return X, X.where(X[:, :1] == 1, 0.5).square().sum(-1, keepdim=True)


@pytest.mark.parametrize("q", [1, 2])
def test_undeclared_values_as_published(q: int) -> None:
    model = TreeStructuredGP.as_published(*data(), DEPENDENCIES)
    with pytest.raises(ValueError, match="expected declared decision values only"):
        model.posterior(OFF.expand(1, q, 4))
    acqf = LogExpectedImprovement(model, 1.0)
    with pytest.raises(ValueError, match="expected declared decision values only"):
        optimize_acqf(acqf, BOUNDS, 1, **FEW)


@pytest.mark.parametrize("declared", ["values", "space"])
def test_points_off_a_space_are_refused(declared: str) -> None:
    tree = ParameterTree(4, DEPENDENCIES)
    if declared == "space":
        tree = SearchSpace(["d", "a", "b", "c"], BOUNDS, tree).tree
    else:
        tree = ParameterTree(4, DEPENDENCIES, values={0: [0, 1]})
    model = TreeStructuredGP(*data(), tree)
    acqf = LogExpectedImprovement(model, 1.0)
    for call in (lambda: model.posterior(OFF), lambda: acqf(OFF)):
        with pytest.raises(ValueError, match="expected one of its declared values"):
            call()
    with pytest.raises(ValueError, match="expected one of its declared values"):
        optimize_acqf(acqf, BOUNDS, 1, **FEW)


def test_functions_have_their_optima_in_the_space() -> None:
    """Undeclared values are allowed in drawn functions where data have them."""
    X, Y = data()
    X[::3, 0] = 7.0
    model = TreeStructuredGP(X, Y, DEPENDENCIES)
    function = PathwiseThompsonSampling(model)
    assert function(X.unsqueeze(-2)).shape == (24,)
    with pytest.raises(ValueError, match="declared or in the data"):
        function(OFF)
    best, _ = optimize_acqf_paths(function, BOUNDS, model.tree)
    assert best[0, 0] in (0.0, 1.0)


@pytest.mark.parametrize("kind", [TreeStructuredGP, TreedGP])
def test_as_published_is_cross_validated(kind: type) -> None:
    X, Y = data(8)
    tree = {} if kind is TreedGP else {"hierarchical_dependencies": DEPENDENCIES}
    result = batch_cross_validation(
        kind,
        ExactMarginalLogLikelihood,
        gen_loo_cv_folds(X, Y),
        fit_args={"optimizer_kwargs": {"options": {"maxiter": 1}}},
        model_init_kwargs=tree | kind.published_arguments,
    )
    expected = kind.as_published(X, Y, **tree)
    assert result.posterior.mean.shape == (8, 1, 1)
    names = [name for name, _ in expected.named_parameters()]
    assert names == [name for name, _ in result.model.named_parameters()]


def test_components_of_any_scale() -> None:
    """The same at each, or refused: BoTorch's ``Standardize`` stops at 1e-8."""
    X, Y = data()
    parts = torch.cat([X[:, 1:2], Y], -1)
    means = []
    for scale in (1.0, 1e-9):
        models = [MonotoneGP(X, scale * y[:, None], {}) for y in parts.mT]
        means.append(DecomposedGP(*models).posterior(X[:3]).mean / scale)
    torch.testing.assert_close(*means)
    small = [SingleTaskGP(X, 1e-9 * y[:, None]) for y in parts.mT]
    with pytest.raises(ValueError, match="standard deviation of about 1"):
        DecomposedGP(*small)


def test_dense_fits_of_two_kernels_have_a_word() -> None:
    """As in relevance pursuit, which makes many."""
    X, Y = data()
    noise = GaussianLikelihood().noise_covar
    likelihood = SparseOutlierGaussianLikelihood(noise, dim=24)
    with pytest.warns(BotorchWarning, match='leaf_kernel="matern" fits one'):
        TreeStructuredGP(X, Y, DEPENDENCIES, likelihood=likelihood)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TreeStructuredGP(
            X, Y, DEPENDENCIES, likelihood=likelihood, leaf_kernel="matern"
        )
        TreeStructuredGP(X, Y, DEPENDENCIES, likelihood=GaussianLikelihood())
