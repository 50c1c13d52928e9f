"""Both tree models: BoTorch's contract, and the laws that the tree adds."""

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qKnowledgeGradient
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Warp
from botorch.optim import optimize_acqf
from botorch.optim.utils import sample_all_priors
from ConfigSpace import ConfigurationSpace
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, RQKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import assume, given
from leaf_models import check_objective
from model_test_case import StructuredModelTestCase
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.kernels import ConditionalKernel, TreeStructuredKernel
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree.objective import LeafObjective
from botorch_structured.spaces import ParameterTree, SearchSpace

pytestmark = pytest.mark.usefixtures("double")


# Six leaf columns on three paths, two shared ones, the decision last.
DEPENDENCIES = {8: {0.0: [0, 1], 1.0: [2, 3], 2.0: [4, 5]}}
TREE = ParameterTree(9, DEPENDENCIES)


class TestContract(StructuredModelTestCase):
    dim = 9
    free_columns = list(range(8))
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


class TestOwnKernelOfEachLeaf(TestContract):
    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> TreeStructuredGP:
        return TreeStructuredGP(
            X,
            Y,
            DEPENDENCIES,
            leaf_kernel=lambda columns: RQKernel(ard_num_dims=len(columns)),
            leaf_hyperparameters="independent",
            **kwargs,
        )


class TestConditional(TestContract):
    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> ConditionalGP:
        return ConditionalGP(X, Y, DEPENDENCIES, **kwargs)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_state_dict_fits_any_data_and_kernel() -> None:
    """Onto disjoint paths, other row counts and the other choice of kernel."""
    X = random_points(TREE, 30, torch.Generator().manual_seed(0))
    X = X[X[:, 8].argsort()]
    for options in ({}, {"leaf_hyperparameters": "independent"}):
        first, other = (
            TreeStructuredGP(rows, rows[:, :1], TREE, leaf_kernel=kernel, **options)
            for rows, kernel in ((X[:5], "rbf"), (X[5:], "matern"))
        )
        other.load_state_dict(first.state_dict())
        assert other.covar_module.correlation.name == "rbf"
        assert torch.isfinite(other.posterior(X).mean).all()


def test_one_leaf_is_a_single_task_gp() -> None:
    g = torch.Generator().manual_seed(0)
    X, Y = torch.rand(10, 3, generator=g), torch.randn(10, 1, generator=g)
    ours, theirs = TreeStructuredGP(X, Y, {}), SingleTaskGP(X, Y)
    flat = SearchSpace(["a", "b", "c"], [[0.0] * 3, [1.0] * 3])
    names = [name for name, _ in theirs.named_parameters()]
    for model in (ours, ConditionalGP(X, Y, flat), TreeStructuredGP(X, Y, flat)):
        assert [name for name, _ in model.named_parameters()] == names
        close(model.posterior(X).mean, theirs.posterior(X).mean, 1e-12)
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


def test_undeclared_values_are_paths_of_their_own() -> None:
    tree = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
    X = torch.tensor([[0.0, 0.3, 0.5], [2.0, 0.5, 0.5], [3.0, 0.5, 0.5]])
    Y = torch.tensor([[0.0], [1.0], [-1.0]])
    check_objective(TreeStructuredGP(X, Y, tree), seed=1)
    model = TreeStructuredGP(X, Y, tree, outcome_transform=None)
    model.likelihood.noise = 1e-6
    close(model.posterior(X).mean, Y, 1e-3)
    actual = model._fast_posterior(X)
    close(actual.mean.unsqueeze(-1), model.posterior(X).mean, 1e-7)
    kernel = model.covar_module
    close(kernel(X, diag=True), kernel(X).to_dense().diagonal(), 1e-12)
    for options in ({"leaf_offset": "fixed"}, {"leaf_hyperparameters": "independent"}):
        with pytest.raises(ValueError, match="undeclared"):
            TreeStructuredGP(X, Y, tree, **options).posterior(X)


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


def test_choice_by_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels are fitted, the second until it falls behind; the better is kept."""
    evaluations = []
    evaluate = LeafObjective.__call__

    def counted(self: Any, theta: Any) -> Any:
        evaluations.append(kernel)
        return evaluate(self, theta)

    monkeypatch.setattr(LeafObjective, "__call__", counted)
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
    count = {name: evaluations.count(name) for name in losses}
    assert count["evidence"] < count["matern"] + count["rbf"]


def test_a_retried_fit_samples_priors_wherever_that_leads() -> None:
    X = random_points(TREE, 8, torch.Generator().manual_seed(0))
    model: Any = TreeStructuredGP(X, X[:, :1], TREE)
    before = [p.clone() for p in model.parameters()]
    sample_all_priors(model)
    pairs = zip(before, model.parameters(), strict=True)
    changed = [not torch.equal(a, b) for a, b in pairs]
    assert sum(changed) == len(changed) - 1  # all but the mean, which has no prior
    model = ConditionalGP(X, X[:, :1], TREE)
    for name, module, _, _, setter in model.named_priors():
        for value in (1e-9, 1e9):
            if not name.endswith("lengthscale_prior"):
                setter(module, torch.as_tensor(value))
    assert all(torch.isfinite(p).all() for p in model.parameters())


FLAGS = ParameterTree(20, {c: {0.0: [], 1.0: []} for c in range(20)})
STRICT = ParameterTree(9, DEPENDENCIES, values={8: [0.0, 1.0, 2.0]})
OTHER = ParameterTree(9, {})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (TreeStructuredGP, {"shared_features": "quadratic"}, "shared_features"),
        (TreeStructuredGP, {"leaf_inputs": "all"}, "leaf_inputs"),
        (TreeStructuredGP, {"leaf_hyperparameters": "shared"}, "leaf_hyperparameters"),
        (TreeStructuredGP, {"leaf_offset": "none"}, "leaf_offset"),
        (TreeStructuredGP, {"leaf_kernel": "cubic"}, "leaf_kernel"),
        (TreeStructuredGP, {"weight_variances": "free"}, "weight_variances"),
        (TreeStructuredGP, {"categorical_features": [12]}, "categorical_features"),
        (ConditionalGP, {"categorical_features": [9]}, "columns from 0 to 8"),
        (
            ConditionalGP,
            {"categorical_features": [0], "covar_module": RBFKernel()},
            "got both",
        ),
        (
            ConditionalGP,
            {"covar_module": ConditionalKernel(RBFKernel(), OTHER)},
            "same tree",
        ),
    ],
)
def test_bad_options(kind: Any, options: dict[str, Any], message: str) -> None:
    X = random_points(TREE, 4, torch.Generator().manual_seed(0))
    for tree in (TREE, {}) if kind is TreeStructuredGP else (TREE,):
        with pytest.raises(ValueError, match=message):
            kind(X, X[:, :1], tree, **options)


@pytest.mark.parametrize("kind", [TreeStructuredGP, ConditionalGP])
def test_bad_data(kind: Any) -> None:
    X = random_points(TREE, 4, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="over 5 columns, got one over 9"):
        kind(X[:, :5], X[:, :1], TREE)
    X[0, 8] = 5.0
    with pytest.raises(ValueError, match="declared values.*5"):
        kind(X, X[:, :1], STRICT)


def test_bad_trees() -> None:
    X = random_points(TREE, 4, torch.Generator().manual_seed(0))
    kernel = TreeStructuredKernel(TREE)
    with pytest.raises(ValueError, match="covar_module"):
        TreeStructuredGP(X, X[:, :1], TREE, covar_module=kernel, leaf_inputs="active")
    for options in ({"leaf_offset": "fixed"}, {"leaf_hyperparameters": "independent"}):
        with pytest.raises(ValueError, match="4096"):
            TreeStructuredGP(torch.zeros(2, 20), X[:2, :1], FLAGS, **options)


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


def test_paths_need_a_tree_kernel() -> None:
    X = random_points(TREE, 8, torch.Generator().manual_seed(0))
    kernel = ScaleKernel(TreeStructuredKernel(TREE))
    model = TreeStructuredGP(X, X[:, :1], TREE, covar_module=kernel)
    assert torch.isfinite(model.posterior(X).mean).all()
    for call in (lambda: model.path_posterior(X), model.weight_posterior):
        with pytest.raises(ValueError, match="TreeStructuredKernel"):
            call()


def problem(seed: int, n: int, **kwargs: Any) -> tuple[ParameterTree, Tensor, Tensor]:
    tree = random_tree(seed, **kwargs)
    g = torch.Generator().manual_seed(seed)
    X = random_points(tree, n, g)
    return tree, X, torch.randn(n, 1, generator=g, dtype=torch.float64)


@given(seeds)
def test_branches_are_isolated(seed: int) -> None:
    """What is observed on other paths changes nothing on this one."""
    tree, X, Y = problem(seed, 12)
    key = tree.path_key(X)
    assume(tree.decision_columns and len(key.unique()) > 1)
    mine = key == key[0]
    model = ConditionalGP(X, Y, tree, outcome_transform=None)
    shifted = torch.where(mine.unsqueeze(-1), Y, Y + 3.0)
    other = ConditionalGP(X, shifted, tree, outcome_transform=None)
    other.load_state_dict(model.state_dict())
    a, b = model.posterior(X[mine]), other.posterior(X[mine])
    assert torch.equal(a.mean, b.mean)
    assert not torch.equal(
        model.posterior(X[~mine]).mean, other.posterior(X[~mine]).mean
    )
    # the posterior of points on different paths is uncorrelated
    covariance = model.posterior(X).distribution.covariance_matrix
    assert (covariance[mine][:, ~mine] == 0.0).all()


def test_an_unseen_path_has_the_prior() -> None:
    X = random_points(TREE, 20, torch.Generator().manual_seed(1))
    X = X[X[:, 8] != 2.0]
    model = ConditionalGP(X, X[:, :1], TREE, outcome_transform=None)
    new = X.clone()
    new[:, 8] = 2.0
    posterior = model.posterior(new)
    assert (posterior.mean == model.mean_module.constant).all()
    torch.testing.assert_close(posterior.variance, torch.ones_like(posterior.variance))


@pytest.mark.parametrize("model_class", [ConditionalGP, TreeStructuredGP])
@pytest.mark.parametrize("tree", [{}, {2: {0.0: [0, 1], 1.0: []}}])
def test_names_are_no_numbers(model_class: Any, tree: Any) -> None:
    """Ax's flat spaces come with no dependencies."""
    X = torch.rand(12, 3, generator=torch.Generator().manual_seed(0))
    X[:, 1:] = torch.stack([(3 * X[:, 1]).floor(), torch.arange(12) % 2.0], -1)
    model = model_class(X, X[:, :1], tree, categorical_features=[1])
    points = torch.tensor([[0.3, 0.0, 0.0], [0.3, 1.0, 0.0], [0.3, 2.0, 0.0]])
    K = model.covar_module(points).to_dense()
    torch.testing.assert_close(K[0, 1], K[0, 2])
    assert K[0, 1] < K[0, 0]
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(points).mean.isfinite().all()


@pytest.mark.parametrize(
    ("values", "floor"),
    [([1, 2, 1, 3], 1e-4), ([0, 1, 2, 3], 1e-9), ([0, *range(7)], 1e-9), ([1], 1e-9)],
)
def test_repeated_outcomes_raise_the_noise_floor(
    values: list[float], floor: float
) -> None:
    """Where more than a quarter of them are repeats."""
    X = random_points(TREE, len(values), torch.Generator().manual_seed(1))
    for kind in (ConditionalGP, TreeStructuredGP):
        model = kind(X, torch.tensor(values).to(X).unsqueeze(-1), TREE)
        noise = model.likelihood.noise_covar
        assert noise.raw_noise_constraint.lower_bound.item() == pytest.approx(floor)


@pytest.mark.parametrize("steps", [False, True])
def test_exact_for_smooth_outcomes_wary_of_steps(steps: bool) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(30, 2, generator=g, dtype=torch.float64)
    X[:, 0] = (X[:, 0] > 0.5).double()
    Y = (X[:, 1:] - 0.4).square()
    if steps:
        Y = (8.0 * Y).floor()
    model = TreeStructuredGP(X, Y, {0: {0.0: [], 1.0: []}})
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert (model.likelihood.noise < 1e-6) is not steps
    # the prior is part of the state: what was fitted under it can be loaded anywhere
    other = TreeStructuredGP(X[:3], X[:3, 1:], {0: {0.0: [], 1.0: []}})
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.likelihood.noise, model.likelihood.noise)


def test_medians_of_the_default_priors() -> None:
    X = random_points(TREE, 10, torch.Generator().manual_seed(1))
    model = TreeStructuredGP(X, X[:, :1], TREE)
    half = torch.tensor(0.5)
    medians = {
        name.split(".")[-2]: round(float(prior.icdf(half)), 4)
        for name, _, prior, _, _ in model.named_priors()
    }
    assert medians == {
        "noise_covar": 0.0081,
        "node_variance": 1.3591,
        "offset_variance": 1.3591,
        "linear_variance": 2.7183,
        "smooth_variance": 1.3591,
        "smooth_lengthscale": 1.7551,
        "common_lengthscale": 0.3852,
        "common_outputscale": 2.7183,
        "relative_lengthscale": 1.0942,
        "relative_outputscale": 1.0942,
    }


BOUNDS = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
TWO_LEVELS = ParameterTree(5, {0: {0.0: [1], 1.0: [2, 3]}, 2: {0.0: [], 1.0: [4]}})
FEW = {"q": 1, "num_restarts": 2, "raw_samples": 4}


def make_model(model_class: type, path: Tensor) -> Any:
    """Column 0 chooses between the other two."""
    X = torch.rand(len(path), 3, dtype=torch.float64)
    X[:, 0] = path
    return model_class(X, X.sum(-1, keepdim=True), {0: {0: [1], 1: [2]}})


@pytest.mark.parametrize(
    "acquisition",
    [
        lambda model: LogExpectedImprovement(model, 1.0),
        lambda model: qKnowledgeGradient(model, num_fantasies=2),
    ],
)
@pytest.mark.parametrize("model_class", [ConditionalGP, TreeStructuredGP])
def test_a_path_without_data_is_searched(
    model_class: type, acquisition: Callable[[Any], Any]
) -> None:
    """There all is constant, and BoTorch's optimisers want a gradient all the same."""
    model = make_model(model_class, torch.zeros(6))
    candidate, value = optimize_acqf(
        acquisition(model), BOUNDS, fixed_features={0: 1.0}, **FEW
    )
    assert candidate.shape == (1, 3) and candidate[0, 0] == 1.0
    assert value.isfinite()
    x = torch.tensor([[1.0, 1e100, 0.3]], dtype=torch.float64, requires_grad=True)
    model.posterior(x).mean.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


SPACE = SearchSpace(
    ["learner", "rate", "depth", "kernel", "seed"],
    torch.tensor([[0.0, -5.0, 1.0, 0.0, 0.0], [1.0, 0.0, 64.0, 2.0, 9.0]]).double(),
    ParameterTree(5, {0: {0.0: [1, 3], 1.0: [2]}}),
    integer_features=[2, 4],
    categorical_features={3: [0.0, 1.0, 2.0]},
    log_features=[1, 2],
)


def same(first: Any, second: Any, X: Tensor) -> None:
    """Equal in every bit: the objective, the posterior, the state."""
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    losses = []
    for model in (first, second):
        mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
        losses.append(model.compute_custom_loss(mll))
    assert torch.equal(*losses)
    one, other = (m.posterior(X).distribution for m in (first, second))
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.covariance_matrix, other.covariance_matrix)
    assert first.state_dict().keys() == second.state_dict().keys()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (TreeStructuredGP, {3: [0.0, 1.0, 2.0]}),
        (TreeStructuredGP.as_published, {3: [0.0, 1.0, 2.0]}),
        (ConditionalGP, [3]),
    ],
)
def test_a_space_is_its_long_form(make: Any, names: Any) -> None:
    X, Z = SPACE.sample(24, seed=0), SPACE.sample(6, seed=1)
    Y = X.sum(-1, keepdim=True).sin()
    short = make(X, Y, SPACE)
    long = make(
        X,
        Y,
        SPACE.tree,
        input_transform=SPACE.input_transform(),
        categorical_features=names,
    )
    same(short, long, Z)
    assert short.tree.space is SPACE
    for changed in (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
        same(changed(short), long, Z)
    more = [m.condition_on_observations(Z, Z[:, :1]) for m in (short, long)]
    assert torch.equal(*(m.posterior(X).mean for m in more))
    several = make(X, torch.cat([Y, Y.cos()], dim=-1), SPACE).subset_output([0])
    torch.testing.assert_close(several.posterior(Z).mean, short.posterior(Z).mean)
    again = make(X, Y, SPACE)
    again.load_state_dict(short.state_dict())
    same(again, long, Z)


@pytest.mark.parametrize("model_class", [ConditionalGP, TreeStructuredGP])
def test_what_is_given_beside_a_space_counts(model_class: Any) -> None:
    X = SPACE.sample(16, seed=0)
    Y = X.sum(-1, keepdim=True).sin()
    own = Normalize(5, indices=[1, 2, 4])
    given = model_class(X, Y, SPACE, input_transform=own, categorical_features=[])
    long = model_class(X, Y, SPACE.tree, input_transform=own, categorical_features=[])
    same(given, long, X[:3])
    kernel = ConditionalKernel(RBFKernel(), SPACE.tree)
    replaced = model_class(X, Y, SPACE, covar_module=kernel)
    assert kernel in replaced.modules()
    with pytest.raises(ValueError, match="train_X: expected the 5 columns"):
        model_class(X[:, :4], Y, SPACE)


@pytest.mark.parametrize("model_class", [ConditionalGP, TreeStructuredGP])
def test_what_is_no_tree_is_refused(model_class: Any) -> None:
    X = SPACE.sample(6, seed=0)
    Y = X[:, :1]
    with pytest.raises(ValueError, match="hierarchical_dependencies: .*got tensor"):
        model_class(X, Y, X)
    with pytest.raises(ValueError, match="hierarchical_dependencies: .*got 'a'"):
        model_class(X, Y, ConfigurationSpace({"a": (0.0, 1.0)}))


class Higher(TreeStructuredGP):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = super().__call__(*args, **kwargs)
        if self.training:
            return found
        return MultivariateNormal(found.mean + 3.0, found.lazy_covariance_matrix)


class Other(TreeStructuredGP):
    def path_posterior(self, X: Tensor) -> Any:
        return self.posterior(X)


def test_methods_of_a_subclass_count() -> None:
    """Points one by one are those of all points together."""
    X, path = torch.rand(5, 3, dtype=torch.float64), torch.arange(8) % 2
    X[:, 0] = X[:, 0].round()
    torch.manual_seed(0)
    model = make_model(Higher, path)
    together, apart = model.posterior(X), model.posterior(X.unsqueeze(1))
    torch.testing.assert_close(together.mean, apart.mean.squeeze(1))
    torch.testing.assert_close(together.variance, apart.variance.squeeze(1))
    torch.manual_seed(0)
    plain = make_model(TreeStructuredGP, path)
    rise = 3.0 * model.outcome_transform.stdvs
    expected = plain.posterior(X).mean + rise
    torch.testing.assert_close(together.mean, expected)
    assert plain.path_columns == []
    assert make_model(Other, path).path_columns == [0, 1, 2]


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ModelFittingError])
def test_a_fit_that_breaks_off_leaves_a_model(
    error: Any, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the kernel which was fitted, or as it was before an interrupt."""
    model = make_model(TreeStructuredGP, torch.arange(8) % 2)
    model.covar_module.set_correlation("matern")
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    X = torch.rand(4, 3, dtype=torch.float64).round()
    states, calls = [copy.deepcopy(model.state_dict())], count()
    fit = model._fit

    def broken(*args: Any, **kwargs: Any) -> None:
        if next(calls) == at:
            mll.train()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1.0)
            raise error
        fit(*args, **kwargs)
        states.append(copy.deepcopy(model.state_dict()))

    monkeypatch.setattr(model, "_fit", broken)
    interrupted = error is KeyboardInterrupt
    with pytest.raises(error) if interrupted else nullcontext():
        fit_gpytorch_mll(mll)
    state = model.state_dict()
    assert all(torch.equal(value, state[k]) for k, value in states[-1].items())
    fresh = copy.deepcopy(model)  # without caches
    torch.testing.assert_close(model.posterior(X).mean, fresh.posterior(X).mean)


@pytest.mark.parametrize("model_class", [TreeStructuredGP, ConditionalGP])
def test_functorch_differentiates_a_new_model(model_class: Any) -> None:
    model = make_model(model_class, torch.arange(12) % 2)
    X = model.train_inputs[0]
    Z = X[:3].clone().requires_grad_()
    slope = torch.func.grad(lambda x: model.posterior(x).mean.sum())(X[:3])
    (expected,) = torch.autograd.grad(model.posterior(Z).mean.sum(), Z)
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("model_class", [TreeStructuredGP, ConditionalGP])
def test_a_graph_from_before_a_fit_is_not_used_in_silence(model_class: Any) -> None:
    model = make_model(model_class, torch.arange(12) % 2)
    before = sum((p**3).sum() for p in model.parameters() if p.requires_grad)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        before.backward()


def fresh(model: Any, X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
    """A model that knows nothing of a fit, with the same hyperparameters."""
    again = type(model)(X, Y, TWO_LEVELS, **kwargs)
    again.load_state_dict(model.state_dict())
    return again.eval()


def check_same(model: Any, other: Any, test: Tensor) -> None:
    """Points one by one, with gradients, and together."""
    for X in (test.unsqueeze(-2), test):
        x, z = (X.clone().requires_grad_() for _ in range(2))
        found, expected = model.posterior(x), other.posterior(z)
        for name in ("mean", "variance"):
            a, b = getattr(found, name), getattr(expected, name)
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)
            ours, theirs = (
                torch.autograd.grad(v.sum(), t, retain_graph=True)[0]
                for v, t in ((a, x), (b, z))
            )
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def _set_noise(model: Any) -> None:
    model.likelihood.noise = 0.2


def _set_mean(model: Any) -> None:
    model.mean_module = ConstantMean().to(torch.float64)
    model.mean_module.constant = 0.7


def _set_targets(model: Any) -> None:
    model.set_train_data(targets=model.train_targets.flip(0), strict=False)


def _set_constraint(model: Any) -> None:
    model.likelihood.noise_covar.register_constraint("raw_noise", GreaterThan(0.1))


def _replace_known_noise(model: Any) -> None:
    model.likelihood.noise_covar.noise.mul_(30.0)


def _set_memory(model: Any) -> None:
    for p in model.covar_module.parameters():
        p.data = p.data + 0.3


def _nothing(model: Any) -> None: ...


@pytest.mark.parametrize(
    "change",
    [
        _nothing,
        _set_noise,
        _set_mean,
        _set_targets,
        _set_constraint,
        _set_memory,
        _replace_known_noise,
    ],
)
@pytest.mark.parametrize("model_class", [TreeStructuredGP, ConditionalGP])
def test_what_is_changed_after_a_fit_counts(change: Any, model_class: Any) -> None:
    """What a fit has computed serves predictions, as long as it is true."""
    g = torch.Generator().manual_seed(0)
    X, test = random_points(TWO_LEVELS, 20, g), random_points(TWO_LEVELS, 5, g)
    Y = X.sum(-1, keepdim=True).sin()
    known = change is _replace_known_noise
    kwargs = {"train_Yvar": torch.full_like(Y, 0.01)} if known else {}
    model = model_class(X, Y, TWO_LEVELS, **kwargs)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    other = fresh(model, X, Y, **kwargs)
    for one in (model, other):
        change(one)
    check_same(model, other, test)
