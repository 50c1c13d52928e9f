import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import LogExpectedImprovement, qKnowledgeGradient
from botorch.models.transforms.input import Normalize
from botorch.optim import optimize_acqf
from ConfigSpace import ConfigurationSpace
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from strategies import random_points
from torch import Tensor

from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.kernels import ConditionalKernel
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.spaces import ParameterTree, SearchSpace

BOUNDS = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
TREE = ParameterTree(5, {0: {0.0: [1], 1.0: [2, 3]}, 2: {0.0: [], 1.0: [4]}})
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


def test_paths_without_shared_columns_are_searched() -> None:
    model = make_model(TreeStructuredGP, torch.arange(8) % 2)
    candidate, value = optimize_acqf(
        PathLogExpectedImprovement(model, 1.0), BOUNDS, **FEW
    )
    assert candidate.shape == (1, 3) and value.isfinite()


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
def test_an_interrupted_fit_leaves_a_model(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the kernel which was fitted already, or as it was before."""
    model = make_model(TreeStructuredGP, torch.arange(8) % 2)
    model.covar_module.set_correlation("matern")
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    X = torch.rand(4, 3, dtype=torch.float64).round()
    states = [copy.deepcopy(model.state_dict())]
    fit = model._fit

    def interrupt(*args: Any, **kwargs: Any) -> None:
        if len(states) > at:
            mll.train()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1.0)
            raise KeyboardInterrupt
        fit(*args, **kwargs)
        states.append(copy.deepcopy(model.state_dict()))

    monkeypatch.setattr(model, "_fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit_gpytorch_mll(mll)
    state = model.state_dict()
    assert all(torch.equal(value, state[k]) for k, value in states[at].items())
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
    again = type(model)(X, Y, TREE, **kwargs)
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


@pytest.mark.parametrize("model_class", [TreeStructuredGP, ConditionalGP])
@pytest.mark.parametrize("n", [3, 11, 40])
def test_predictions_after_a_fit(model_class: Any, n: int) -> None:
    for seed in range(2):  # among them fits of which either kernel is the best
        g = torch.Generator().manual_seed(seed)
        X, test = random_points(TREE, n, g), random_points(TREE, 6, g)
        Y = (3.0 * X).sin().sum(-1, keepdim=True) + 0.1 * torch.randn(
            n, 1, generator=g, dtype=X.dtype
        )
        model = model_class(X, Y, TREE)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        check_same(model, fresh(model, X, Y), test)


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


@pytest.mark.parametrize(
    "change",
    [_set_noise, _set_mean, _set_targets, _set_constraint, _replace_known_noise],
)
def test_what_is_changed_after_a_fit_counts(change: Any) -> None:
    g = torch.Generator().manual_seed(0)
    X, test = random_points(TREE, 20, g), random_points(TREE, 5, g)
    Y = X.sum(-1, keepdim=True).sin()
    known = change is _replace_known_noise
    kwargs = {"train_Yvar": torch.full_like(Y, 0.01)} if known else {}
    model = TreeStructuredGP(X, Y, TREE, **kwargs)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    other = fresh(model, X, Y, **kwargs)
    for one in (model, other):
        change(one)
    check_same(model, other, test)
