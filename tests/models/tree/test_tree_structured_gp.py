"""TreeStructuredGP: BoTorch's contract, and the laws that the tree adds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Warp
from botorch.models.transforms.input import InputStandardize
from gpytorch.kernels import ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import assume, given
from model_test_case import StructuredModelTestCase
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.kernels import TreeStructuredKernel
from botorch_structured.linalg.correlations import CORRELATIONS
from botorch_structured.models import TreeStructuredGP, map_fit
from botorch_structured.models.tree import tree_structured_gp
from botorch_structured.models.tree.leaf_inference import LeafPredictor
from botorch_structured.spaces import ParameterTree

# Six leaf columns on three paths, two shared ones, the decision last.
DEPENDENCIES = {8: {0.0: [0, 1], 1.0: [2, 3], 2.0: [4, 5]}}
TREE = ParameterTree(9, DEPENDENCIES)

CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"leaf_inputs": "active", "leaf_hyperparameters": "tied"},
    {"shared_features": "linear", "leaf_hyperparameters": "independent",
     "leaf_offset": "fixed", "leaf_kernel": "matern"},
    {"shared_features": "none", "leaf_offset": "fixed", "node_weights": False},
    {"shared_features": "fourier", "weight_variances": "independent",
     "leaf_kernel": "rbf"},
    {"leaf_inputs": "active", "leaf_hyperparameters": "independent"},
]  # fmt: skip


class TestContract(StructuredModelTestCase):
    dim = 9
    free_columns = list(range(8))
    path_fixed_features = [{8: float(p)} for p in range(3)]
    model_kwargs = {"hierarchical_dependencies": DEPENDENCIES}

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        X = TREE.impute(random_points(TREE, n, g))
        active = TREE.active_mask(X)
        own = torch.where(active[:, :6], X[:, :6], 0.0).sum(-1)
        f = torch.sin(6.0 * own) + X[:, 6:8].sum(-1)
        return X, (f + 0.05 * torch.randn(n, generator=g)).unsqueeze(-1)

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> TreeStructuredGP:
        return TreeStructuredGP(X, Y, DEPENDENCIES, **kwargs)


class TestContractMasked(TestContract):
    """The same with predictions as they are made on a GPU."""

    @pytest.fixture(autouse=True)
    def masked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = LeafPredictor.__init__

        def init(predictor: LeafPredictor, *args: Any) -> None:
            original(predictor, *args)
            predictor.masked = True

        monkeypatch.setattr(LeafPredictor, "__init__", init)


class TestContractDense(TestContract):
    """The same with the dense inference of BoTorch and GPyTorch throughout."""

    @pytest.fixture(autouse=True)
    def dense(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for check in ("_is_structured", "_use_predictor"):
            monkeypatch.setattr(TreeStructuredGP, check, lambda self: False)


pytestmark = pytest.mark.usefixtures("double")


def random_problem(
    seed: int, n: int = 30, declared: bool = True
) -> tuple[ParameterTree, Tensor, Tensor, dict[str, Any]]:
    tree = random_tree(seed)
    assume(tree.decision_columns)  # without one the model is a SingleTaskGP
    g = torch.Generator().manual_seed(seed)
    X = random_points(tree, n, g)
    Y = torch.randn(n, 1, generator=g)
    options = CONFIGURATIONS[seed % len(CONFIGURATIONS)]
    return tree, X, Y, options


def randomised(model: TreeStructuredGP, seed: int) -> TreeStructuredGP:
    """Random hyperparameters, a noise that dense and structured can both bear."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
            if "raw_noise" in name:
                p.fill_(math.log(1e-2))
    return model


def evidence(model: TreeStructuredGP, structured: bool) -> tuple[Tensor, list[Tensor]]:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    if structured:
        value = model._fast_evidence(mll, {})
    else:
        output = model.likelihood(model(*model.train_inputs))
        value = output.log_prob(model.train_targets)
    gradient = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return value.detach(), [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(model.parameters(), gradient, strict=True)
    ]


def close(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@given(seeds)
def test_structured_is_dense(seed: int) -> None:
    """Evidence, its gradient, mean and covariance over random trees and options."""
    tree, X, Y, options = random_problem(seed)
    model = randomised(TreeStructuredGP(X, Y, tree, **options), seed)
    (a, grad_a), (b, grad_b) = evidence(model, True), evidence(model, False)
    close(a, b)
    for x, y in zip(grad_a, grad_b, strict=True):
        close(x, y)
    model.eval()
    test = random_points(tree, 12, torch.Generator().manual_seed(seed + 1))
    for batch in (test, test.reshape(4, 3, -1), test.unsqueeze(1)):
        with torch.no_grad():
            model._use_predictor = lambda: False
            expected = model(batch)  # GPyTorch's own
            del model._use_predictor
            model._predictor().masked = True  # as on a GPU
            masked = model._fast_posterior(batch)
            model._predictor().masked = False
            actual = model._fast_posterior(batch)
        close(actual.mean, expected.mean)
        close(actual.covariance_matrix, expected.covariance_matrix)
        close(masked.mean, expected.mean)
        close(masked.covariance_matrix, expected.covariance_matrix)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("leaf_inputs", ["own", "active"])
def test_structured_is_dense_with_categories(leaf_inputs: str, learned: bool) -> None:
    """Categories on leaves and shared, a transform that is fitted."""
    g = torch.Generator().manual_seed(0)
    X = random_points(TREE, 40, g)
    categorical = {0: [0.0, 1.0, 2.0], 4: [0.0, 1.0], 6: [0.0, 1.0, 2.0]}
    for column, values in categorical.items():
        X[:, column] = torch.randint(len(values), (len(X),), generator=g).to(X)
    unit = torch.tensor([[0.0], [1.0]]).expand(2, 9)
    warp = Warp(d=9, indices=[1, 3, 7], bounds=unit) if learned else None
    model = TreeStructuredGP(
        X,
        torch.randn(len(X), 1, generator=g),
        TREE,
        categorical_features=categorical,
        leaf_inputs=leaf_inputs,
        input_transform=warp,
    )
    mll = ExactMarginalLogLikelihood(model.likelihood, randomised(model, 0)).train()
    losses, gradients = [], []
    for structured in (True, False):
        if not structured:
            model._is_structured = lambda: False
        mll.zero_grad()
        loss = model.compute_custom_loss(mll)
        loss.backward()
        losses.append(loss.detach())
        gradients.append([p.grad.clone() for p in model.parameters()])
    close(*losses, tolerance=1e-10)
    for a, b in zip(*gradients, strict=True):
        close(a, b)
    if learned:
        assert model.input_transform.concentration0.grad.abs().min() > 0


@given(seeds)
def test_inactive_columns_have_no_influence(seed: int) -> None:
    """Bit-identical posterior under any change of inactive columns, train and test."""
    tree, X, Y, options = random_problem(seed, n=12)
    model = randomised(TreeStructuredGP(X, Y, tree, **options), seed)
    g = torch.Generator().manual_seed(seed)
    test = random_points(tree, 6, g)

    def changed(points: Tensor) -> Tensor:
        other = 1e3 * torch.randn(points.shape, generator=g)
        return torch.where(tree.active_mask(points), points, other)

    expected = model.posterior(test)
    twin = TreeStructuredGP(changed(X), Y, tree, **options)
    # keeping the transforms would re-standardise the outcomes, which rounds them
    twin.load_state_dict(model.state_dict(), keep_transforms=False)
    for posterior in (model.posterior(changed(test)), twin.posterior(changed(test))):
        assert torch.equal(posterior.mean, expected.mean)
        assert torch.equal(posterior.variance, expected.variance)


@given(seeds)
def test_covariance_is_positive_semidefinite(seed: int) -> None:
    tree, X, _, options = random_problem(seed)
    names = {"leaf_offset", "leaf_kernel"}
    kernel = TreeStructuredKernel(
        tree,
        leaf_offset=options.get("leaf_offset", "random") == "random",
        **{k: v for k, v in options.items() if k not in names},
    ).double()
    covariance = kernel(X).to_dense()
    torch.testing.assert_close(covariance, covariance.mT)
    assert torch.linalg.eigvalsh(covariance).min() > -1e-9
    close(covariance.diagonal(), kernel(X, diag=True))


@given(seeds)
def test_state_dict_fits_any_data_and_kernel(seed: int) -> None:
    """Onto disjoint paths, other row counts and the other choice of kernel."""
    tree, X, Y, options = random_problem(seed)
    options = {k: v for k, v in options.items() if k != "leaf_kernel"}
    first = TreeStructuredGP(X[:5], Y[:5], tree, leaf_kernel="rbf", **options)
    other = TreeStructuredGP(X[5:], Y[5:], tree, leaf_kernel="matern", **options)
    other.load_state_dict(first.state_dict())
    assert other.covar_module.correlation.name == "rbf"
    assert torch.isfinite(other.posterior(X).mean).all()


def test_nothing_large_is_factorised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path factorises nothing larger than the largest leaf or V."""
    g = torch.Generator().manual_seed(0)
    X = random_points(TREE, 300, g)
    Y = torch.randn(300, 1, generator=g)
    model = TreeStructuredGP(X, Y, TREE)
    sizes: list[int] = []
    for name in ("cholesky", "cholesky_ex", "inv", "solve", "eigh", "svd", "qr"):
        original = getattr(torch.linalg, name)

        def spy(A: Tensor, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            sizes.append(A.shape[-1])
            return _original(A, *args, **kwargs)

        monkeypatch.setattr(torch.linalg, name, spy)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    model.compute_custom_loss(mll).backward()
    model.eval()
    model.posterior(X[:7].unsqueeze(1)).variance.sum().backward()
    # a leaf of 128 k rows is padded by two: LAPACK is slow at those very sizes
    largest = max(model._structure(model.train_inputs[0]).layout.sizes)
    assert sizes and max(sizes) <= max(
        largest + 2, model.covar_module.weights.num_weights
    )
    assert max(sizes) < 300


def test_one_leaf_is_a_single_task_gp() -> None:
    g = torch.Generator().manual_seed(0)
    X, Y = torch.rand(10, 3, generator=g), torch.randn(10, 1, generator=g)
    ours, theirs = TreeStructuredGP(X, Y, {}), SingleTaskGP(X, Y)
    assert [n for n, _ in ours.named_parameters()] == [
        n for n, _ in theirs.named_parameters()
    ]
    close(ours.posterior(X).mean, theirs.posterior(X).mean, 1e-12)
    path = ours.path_posterior(X[:2].unsqueeze(1))
    assert path.mean.shape == (2, 1, 1) and (path.variance < 1e-6).all()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_and_duplicated_points(n: int) -> None:
    X = random_points(TREE, 1, torch.Generator().manual_seed(0)).expand(n, -1).clone()
    Y = torch.linspace(0.0, 1.0, n).unsqueeze(-1)
    model = TreeStructuredGP(X, Y, TREE, outcome_transform=None)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll)
    # a leaf without data has its prior, whatever it says on the others
    test = random_points(TREE, 20, torch.Generator().manual_seed(1))
    posterior = model.posterior(test)
    assert torch.isfinite(posterior.mean).all() and (posterior.variance > 0).all()


def test_path_posterior_ignores_leaf_columns() -> None:
    g = torch.Generator().manual_seed(0)
    X, Y = random_points(TREE, 20, g), torch.randn(20, 1, generator=g)
    for structured in (True, False):
        model = TreeStructuredGP(X, Y, TREE)
        if not structured:
            model._is_structured = lambda: False
        posterior = model.path_posterior(X[:4].unsqueeze(1))
        changed = X[:4].clone()
        changed[:, :6] = 0.123
        other = model.path_posterior(changed.unsqueeze(1))
        assert torch.equal(posterior.mean, other.mean)
        assert torch.equal(posterior.variance, other.variance)
        if structured:
            expected = posterior
    close(posterior.mean, expected.mean)
    close(posterior.variance, expected.variance)


def test_weights_explain_the_path_posterior() -> None:
    g = torch.Generator().manual_seed(0)
    X, Y = random_points(TREE, 20, g), torch.randn(20, 1, generator=g)
    model = TreeStructuredGP(X, Y, TREE, outcome_transform=None)
    c = model.weight_posterior()
    weights = model.covar_module.weights
    z = model._features(X) / weights.prior_scale()
    posterior = model.path_posterior(X)
    close(posterior.mean.squeeze(-1), model.mean_module(X) + z @ c.mean)
    close(
        posterior.distribution.covariance_matrix, z @ c.covariance_matrix @ z.mT, 1e-7
    )


def test_undeclared_values_are_paths_of_their_own() -> None:
    tree = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
    X = torch.tensor([[0.0, 0.3, 0.5], [2.0, 0.5, 0.5], [3.0, 0.5, 0.5]])
    Y = torch.tensor([[0.0], [1.0], [-1.0]])
    model = TreeStructuredGP(X, Y, tree, outcome_transform=None)
    model.likelihood.noise = 1e-6
    close(model.posterior(X).mean, Y, 1e-3)
    actual = model._fast_posterior(X)
    close(actual.mean.unsqueeze(-1), model.posterior(X).mean, 1e-7)
    for options in ({"leaf_offset": "fixed"}, {"leaf_hyperparameters": "independent"}):
        with pytest.raises(ValueError, match="undeclared"):
            TreeStructuredGP(X, Y, tree, **options).posterior(X)


def test_categorical_features() -> None:
    # a categorical column on one path and one that all share
    tree = ParameterTree(4, {0: {0.0: [1], 1.0: []}})
    g = torch.Generator().manual_seed(0)
    X = torch.rand(40, 4, generator=g)
    X[:, 0] = (X[:, 0] > 0.5).double()
    X[:, [1, 2]] = (X[:, [1, 2]] * 3).floor()
    effect = torch.tensor([0.0, 3.0, -2.0])
    own = torch.where(X[:, 0] == 0, effect.flip(0)[X[:, 1].long()], 0.0)
    Y = (effect[X[:, 2].long()] + own).unsqueeze(-1)
    for features in ([1, 2], {1: [0, 1, 2], 2: [0, 1, 2]}):
        model = TreeStructuredGP(
            X, Y, tree, torch.full_like(Y, 1e-6), categorical_features=features
        )
        assert (model.posterior(X).mean - Y).abs().max() < 0.05
    unknown = X[:2].clone()
    unknown[:, 2] = 7.0
    known = model.posterior(X[:2]).variance
    assert (model.posterior(unknown).variance > known).all()


def test_normalize_leaves_decisions_alone() -> None:
    g = torch.Generator().manual_seed(0)
    X, Y = random_points(TREE, 20, g), torch.randn(20, 1, generator=g)
    scaled = X.clone()
    scaled[:, :8] = 100.0 + 50.0 * X[:, :8]
    scaled = TREE.impute(scaled, fill=0.5)  # far outside the range of active values
    model = TreeStructuredGP(scaled, Y, TREE, input_transform=Normalize(9))
    active = TREE.active_mask(scaled)
    inside = model.transform_inputs(scaled)
    assert torch.equal(inside[:, 8], X[:, 8])
    assert inside[:, :8][active[:, :8]].min() >= 0
    assert inside[:, :8][active[:, :8]].max() <= 1
    bounds = torch.stack([torch.zeros(9), torch.full((9,), 150.0)])
    given = TreeStructuredGP(
        scaled, Y, TREE, input_transform=Normalize(9, bounds=bounds)
    )
    assert torch.equal(given.transform_inputs(scaled)[:, 8], X[:, 8])
    with pytest.raises(ValueError, match="input_transform"):
        TreeStructuredGP(X, Y, TREE, input_transform=Warp(d=9, indices=[8]))


def test_choice_by_evidence() -> None:
    """Both kernels are fitted and the better one is kept."""
    g = torch.Generator().manual_seed(0)
    X = random_points(TREE, 40, g)
    own = torch.where(TREE.active_mask(X)[:, :6], X[:, :6], 0.0).sum(-1, keepdim=True)
    losses = {}
    for kernel in ("evidence", "matern", "rbf"):
        model = TreeStructuredGP(X, own.square(), TREE, leaf_kernel=kernel)
        mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        mll.train()
        losses[kernel] = model.compute_custom_loss(mll).item()
    assert losses["rbf"] < losses["matern"]  # a quadratic is smoother than Matern-5/2
    assert losses["evidence"] == pytest.approx(losses["rbf"], abs=1e-9)


def test_retries_sample_every_prior() -> None:
    from botorch.optim.utils import sample_all_priors

    X = random_points(TREE, 8, torch.Generator().manual_seed(0))
    model = TreeStructuredGP(X, X[:, :1], TREE)
    before = [p.clone() for p in model.parameters()]
    sample_all_priors(model)
    changed = [
        not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)
    ]
    assert sum(changed) == len(changed) - 1  # all but the mean, which has no prior


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared_features": "quadratic"}, "shared_features"),
        ({"leaf_inputs": "all"}, "leaf_inputs"),
        ({"leaf_hyperparameters": "shared"}, "leaf_hyperparameters"),
        ({"leaf_offset": "none"}, "leaf_offset"),
        ({"leaf_kernel": "cubic"}, "leaf_kernel"),
        ({"weight_variances": "free"}, "weight_variances"),
        ({"categorical_features": [12]}, "categorical_features"),
        (
            {"covar_module": TreeStructuredKernel(TREE), "leaf_inputs": "active"},
            "covar_module",
        ),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    X = random_points(TREE, 4, torch.Generator().manual_seed(0))
    for tree in (TREE, {}):
        with pytest.raises(ValueError, match=message):
            TreeStructuredGP(X, X[:, :1], tree, **options)


def test_bad_data() -> None:
    X = random_points(TREE, 4, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError):
        TreeStructuredGP(X[:, :5], X[:, :1], TREE)
    strict = ParameterTree(9, DEPENDENCIES, values={8: [0.0, 1.0, 2.0]})
    X[0, 8] = 5.0
    with pytest.raises(ValueError, match="5"):
        TreeStructuredGP(X, X[:, :1], strict)
    flags = ParameterTree(20, {c: {0.0: [], 1.0: []} for c in range(20)})
    X, Y = torch.zeros(2, 20), torch.zeros(2, 1)
    for options in ({"leaf_offset": "fixed"}, {"leaf_hyperparameters": "independent"}):
        with pytest.raises(ValueError, match="4096"):
            TreeStructuredGP(X, Y, flags, **options)


def test_a_million_paths() -> None:
    """20 flags, each with a column: all are shared, K_p sees all active ones."""
    tree = ParameterTree(40, {c: {0.0: [], 1.0: [20 + c]} for c in range(20)})
    assert tree.num_paths == 2**20
    g = torch.Generator().manual_seed(0)
    X = torch.rand(30, 40, generator=g)
    X[:, :20] = (X[:, :20] > 0.5).double()
    Y = torch.where(tree.active_mask(X), X, 0.0)[:, 20:].sum(-1, keepdim=True)
    model = TreeStructuredGP(X, Y, tree)
    assert torch.isfinite(model.posterior(X).mean).all()


def test_transforms_that_learn_or_vanish() -> None:
    X = random_points(TREE, 40, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="InputStandardize"):
        TreeStructuredGP(X, X[:, :1], TREE, input_transform=InputStandardize(9))
    decisions = ParameterTree(1, {0: {0.0: [], 1.0: []}})
    flag = (X[:, 8:] > 0).double()
    model = TreeStructuredGP(flag, X[:, :1], decisions, input_transform=Normalize(1))
    assert not hasattr(model, "input_transform")
    both = torch.stack([X, torch.where(TREE.active_mask(X), 10.0 * X, X)])
    both[1, :, 8] = X[:, 8]
    transform = Normalize(9, batch_shape=torch.Size([2]))
    batched = TreeStructuredGP(both, both[..., :1], TREE, input_transform=transform)
    bounds = batched.input_transform.bounds
    torch.testing.assert_close(bounds[1], 10.0 * bounds[0])


def test_one_kernel_that_fails_does_not_spoil_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = random_points(TREE, 12, torch.Generator().manual_seed(0))
    model = TreeStructuredGP(X, X[:, :1], TREE)
    original = map_fit.fit_map

    def fail_for_rbf(mll: Any, *args: Any, **kwargs: Any) -> Any:
        if model.covar_module.correlation.name == "rbf":
            raise ModelFittingError("no")
        return original(mll, *args, **kwargs)

    monkeypatch.setattr(map_fit, "fit_map", fail_for_rbf)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.covar_module.correlation.name == "matern" and not model.training
    monkeypatch.setattr(map_fit, "fit_map", lambda *_, **__: fail_for_rbf(None))
    model.covar_module.set_correlation("rbf")
    monkeypatch.setattr(tree_structured_gp, "CORRELATIONS", CORRELATIONS[1:])
    with pytest.raises(ModelFittingError):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))


def test_caches_follow_the_kernel() -> None:
    g = torch.Generator().manual_seed(0)
    X, test = random_points(TREE, 12, g), random_points(TREE, 4, g)
    model = TreeStructuredGP(X, X[:, :1], TREE)
    model.posterior(test)
    model.covar_module.set_correlation("rbf")
    changed = model.posterior(test).mean
    model.train()
    close(changed, model.posterior(test).mean, 1e-10)
    model.covar_module = TreeStructuredKernel(TREE, shared_features="none").double()
    assert torch.isfinite(model.posterior(test).mean).all()
    assert model.posterior(test[:0].unsqueeze(1)).mean.shape == (0, 1, 1)


def test_leaves_are_a_matter_of_all_columns() -> None:
    X = random_points(TREE, 4, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="last_dim_is_batch: expected False"):
        TreeStructuredKernel(TREE).forward(X, X, last_dim_is_batch=True)


def test_paths_need_a_tree_kernel() -> None:
    X = random_points(TREE, 8, torch.Generator().manual_seed(0))
    kernel = ScaleKernel(TreeStructuredKernel(TREE))
    model = TreeStructuredGP(X, X[:, :1], TREE, covar_module=kernel)
    assert torch.isfinite(model.posterior(X).mean).all()
    for call in (lambda: model.path_posterior(X), model.weight_posterior):
        with pytest.raises(ValueError, match="TreeStructuredKernel"):
            call()
