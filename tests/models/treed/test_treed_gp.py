from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.cross_validation import loo_cv
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import AppendFeatures, InputPerturbation, Warp
from botorch.utils.datasets import SupervisedDataset
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood
from model_test_case import QUICK, PlusMinus, StructuredModelTestCase, sampler
from torch import Tensor
from treed_models import (
    PUBLISHED,
    hyperparameters,
    kernel_of,
    leaf_prediction,
    randomised,
    step_data,
)

from botorch_structured.fit import fit_slice_sampling
from botorch_structured.models.treed.leaf_modules import TreedStationary
from botorch_structured.models.treed.treed_gp import TreedGP

pytestmark = pytest.mark.usefixtures("double")


class TestContract(StructuredModelTestCase):
    """A step: two regimes on each data set, so that there are two leaves."""

    dim = 3
    free_columns = [0, 1, 2]
    likely = -8.0
    model_kwargs: dict[str, Any] = {"min_leaf_size": 3}

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        X = torch.rand(n, 3, generator=g)
        f = torch.where(X[:, 0] < 0.5, 0.3 * X[:, 1], 9.0 + torch.sin(6.0 * X[:, 1]))
        return X, (f + 0.01 * torch.randn(n, generator=g)).unsqueeze(-1)

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> TreedGP:
        return TreedGP(X, Y, **self.model_kwargs, **kwargs)

    def test_construct_inputs(self) -> None:
        X, Y = self.make_data(10)
        data = SupervisedDataset(
            X, Y, feature_names=[f"x{i}" for i in range(self.dim)], outcome_names=["y"]
        )
        inputs = TreedGP.construct_inputs(
            data,
            hierarchical_dependencies={},
            categorical_features=[1],
            task_feature=2,
            fidelity_features=[0],
        )
        assert inputs["categorical_features"] == [1, 2]
        model = TreedGP(**inputs, **self.model_kwargs)
        assert model.posterior(X).mean.shape == (10, 1)

    def test_the_data_make_leaves(self) -> None:
        for n in (10, 12, 24):
            assert self.make_model(*self.make_data(n)).partition.num_leaves > 1


class TestContractPublished(TestContract):
    """The method of the paper."""

    model_kwargs = {"min_leaf_size": 3, **PUBLISHED}


class TestContractModules(TestContract):
    """A kernel, a mean and a noise of the user's."""

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> TreedGP:
        shape = X.shape[:-2] + (Y.shape[-1:] if Y.shape[-1] > 1 else torch.Size())
        kernel = ScaleKernel(
            MaternKernel(nu=1.5, ard_num_dims=3, batch_shape=shape), batch_shape=shape
        )
        kwargs["covar_module"] = kernel
        kwargs["mean_module"] = ConstantMean(batch_shape=shape)
        if "train_Yvar" not in kwargs:
            kwargs["likelihood"] = GaussianLikelihood(
                noise_constraint=GreaterThan(1e-4), batch_shape=shape
            )
        return super().make_model(X, Y, **kwargs)

    @pytest.mark.skip("BoTorch subsets the covariances that it, or we, made")
    def test_several_outputs(self) -> None: ...

    @pytest.mark.skip("no different from that of the default kernel")
    def test_construct_inputs(self) -> None: ...


def shape_of(model: TreedGP) -> list[Any]:
    """Splits and sizes of the nodes."""
    return [(node.split, node.size) for node in model.partition.nodes]


def test_an_output_of_few_leaves_alone() -> None:
    """The trees of the outputs differ in size; parameters are padded to the largest."""
    X = torch.linspace(0.0, 1.0, 40).unsqueeze(-1)
    steps = (4.0 * X).floor() * torch.tensor([1.0, -1.0, 2.0, 0.5])[
        (4.0 * X).clamp(max=3.0).long()
    ]
    model = TreedGP(X, torch.cat([torch.sin(X), steps], -1))
    assert model.partition.element(0).num_leaves < model.partition.num_leaves
    points = torch.rand(5, 1)
    for k in range(2):
        expected = model.posterior(points)
        actual = model.subset_output([k]).posterior(points)
        torch.testing.assert_close(actual.mean[..., 0], expected.mean[..., k])
        torch.testing.assert_close(actual.variance[..., 0], expected.variance[..., k])


def test_the_kernel_that_explains_more_is_taken() -> None:
    """A smooth function asks for an RBF kernel, a rough one for Matern-5/2."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(50, 1, generator=g)
    x = X[:, 0]
    smooth = torch.where(x < 0.5, 0.0 * x, 3.0 + torch.sin(12.0 * x)).unsqueeze(-1)
    r = (x[:, None] - x).abs() * 5.0**0.5 / 0.2
    K = (1.0 + r + r.square() / 3.0) * torch.exp(-r) + 1e-6 * torch.eye(50)
    draw = torch.linalg.cholesky(K) @ torch.randn(50, generator=g)
    rough = (draw + 10.0 * (x > 0.5)).unsqueeze(-1)
    for Y, name in ((smooth, "rbf"), (rough, "matern")):
        model = TreedGP(X, Y)
        assert model.partition.num_leaves > 1
        assert model.covar_module.correlation(0).name == name
        # the choice is part of the state
        other = TreedGP(X, Y, leaf_kernel="matern" if name == "rbf" else "rbf")
        assert other.covar_module.correlation(0).name != name
        other.load_state_dict(model.state_dict())
        assert other.covar_module.correlation(0).name == name
    published = TreedGP(X, smooth, **PUBLISHED)  # as the paper has it
    assert published.covar_module.correlation(0).name == "matern"


def test_one_leaf_is_a_single_task_gp() -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(20, 2, generator=g)
    Y = torch.sin(3.0 * X.sum(-1, keepdim=True))
    for kwargs in ({}, {"max_leaves": 1}, {"min_leaf_size": 20}):
        model, plain = TreedGP(X, Y, **kwargs), SingleTaskGP(X, Y)
        assert model.partition.num_leaves == 1
        assert (model.partition.leaf_index(X) == 0).all()
        for one in (model, plain):
            fit_gpytorch_mll(ExactMarginalLogLikelihood(one.likelihood, one))
        # the same path of the same optimiser, but for the rounding of its objective
        for name, p in plain.named_parameters():
            found = model.get_parameter(name)
            torch.testing.assert_close(p, found, rtol=1e-4, atol=1e-6)
        a, b = model.posterior(X + 0.1), plain.posterior(X + 0.1)
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a.variance, b.variance, rtol=1e-3, atol=1e-9)
        assert isinstance(model.fantasize(X[:1], sampler(2)), TreedGP)


@pytest.mark.parametrize("kwargs", [{}, PUBLISHED, {"warp": True}])
def test_a_state_brings_its_partition(kwargs: dict[str, Any]) -> None:
    """Onto other data, whatever partition they have, and onto one leaf and back."""
    X, Y = step_data(60, seed=1)
    model = randomised(TreedGP(X, Y, outcome_transform=None, **kwargs))
    points, _ = step_data(9, seed=7)
    expected = model.posterior(points)
    for other_X, other_Y in (
        step_data(30, seed=2),
        (X[:12], torch.sin(X[:12].sum(-1, keepdim=True))),
    ):
        other = TreedGP(other_X, other_Y, outcome_transform=None, **kwargs)
        other.load_state_dict(model.state_dict())
        assert shape_of(other) == shape_of(model)
        assert torch.equal(
            other.partition.leaf_index(points), model.partition.leaf_index(points)
        )
        for name, p in model.named_parameters():
            assert torch.equal(other.get_parameter(name), p)
        # with the same data it is the same model
        other.set_train_data(X, Y.squeeze(-1), strict=False)
        torch.testing.assert_close(other.posterior(points).mean, expected.mean)
        mll = ExactMarginalLogLikelihood(other.likelihood, other)
        fit_gpytorch_mll(mll, optimizer_kwargs=QUICK)
        assert other.posterior(points).mean.isfinite().all()


def test_a_state_of_another_batch_is_refused() -> None:
    X, Y = step_data()
    batched = TreedGP(X.expand(2, 40, 2), Y.expand(2, 40, 1))
    with pytest.raises(RuntimeError, match="size mismatch"):
        TreedGP(X, Y).load_state_dict(batched.state_dict())


def test_a_fit_does_what_it_is_told() -> None:
    model = TreedGP(*step_data())
    mll = ExactMarginalLogLikelihood(model.likelihood, model)

    def closure() -> tuple[Tensor, list[Tensor]]:
        mll.zero_grad()
        loss = sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    fit_gpytorch_mll(mll, closure=closure)
    assert float(model.mean_module.constant.detach().abs().max()) < 0.1
    # what is held is held
    model = TreedGP(*step_data())
    model.mean_module.constant.requires_grad_(False)
    held = model.mean_module.constant.clone()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert torch.equal(held, model.mean_module.constant)


def test_another_objective_is_not_equation_2() -> None:
    """Leave-one-out likelihoods are those of the leaf models, and these are fitted."""
    model = randomised(TreedGP(*step_data(24), **PUBLISHED))
    mll = LeaveOneOutPseudoLikelihood(model.likelihood, model).train()
    X, y = model.train_inputs[0], model.train_targets
    leaf, total = model.partition.leaf_index(X), torch.zeros(())
    for i in range(24):
        others = torch.arange(24) != i
        mean, K = leaf_prediction(model, int(leaf[i]), others, X[i : i + 1])
        spread = (K[0, 0] + model.likelihood.noise[0]).sqrt()
        total = total + torch.distributions.Normal(mean[0], spread).log_prob(y[i])
    for _, module, prior, closure, _ in model.named_priors():
        total = total + prior.log_prob(closure(module)).sum()
    before = mll(model(X), y)
    torch.testing.assert_close(before, total / 24.0, rtol=1e-6, atol=1e-6)
    fit_gpytorch_mll(mll, optimizer_kwargs=QUICK)
    mll.train()
    assert mll(model(X), y) > before + 0.1


def test_the_objective_is_that_of_the_training_outcomes() -> None:
    model = TreedGP(*step_data(24))
    assert model.partition.num_leaves > 1
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    X, y = model.train_inputs[0], model.train_targets
    torch.testing.assert_close(mll(model(X), y.clone(), X), mll(model(X), y, X))
    with pytest.raises(ValueError, match="mll: expected the training targets"):
        mll(model(X), y + 1.0, X)


@pytest.mark.filterwarnings("ignore:Chains may not have converged")  # four draws
def test_slice_sampling() -> None:
    model = TreedGP(*step_data(24), max_leaves=2)
    sampled = fit_slice_sampling(
        model, num_samples=4, warmup=4, thinning=1, seed=0, progress=False
    )
    # every hyperparameter of every leaf is sampled: 2 lengthscales, amplitude, mean,
    # noise
    assert sampled.chains.samples.shape[-1] == 2 * 5
    X, _ = step_data(6, seed=4)
    posterior = sampled.posterior(X)
    assert posterior.mean.shape == (4, 6, 1) and posterior.mean.isfinite().all()
    value = qLogExpectedImprovement(sampled, 1.0, sampler())(X.unsqueeze(-2))
    assert value.shape == (6,) and value.isfinite().all()


def test_warping() -> None:
    X, Y = step_data()
    model, plain = TreedGP(X, Y, warp=True), TreedGP(X, Y)
    points, _ = step_data(6, seed=2)
    # concentrations of one change nothing but the 1e-7 that keeps them off the ends
    torch.testing.assert_close(
        model.posterior(points).mean, plain.posterior(points).mean, rtol=1e-4, atol=1e-4
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    value = model.covar_module.concentration0.value
    assert not torch.allclose(value, torch.ones_like(value))
    # as BoTorch's own transform
    leaf = torch.zeros(1, dtype=torch.long)
    transform = Warp(d=2, indices=[0, 1], bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    for name in ("concentration0", "concentration1"):
        c = getattr(model.covar_module, name).value[0].detach()
        getattr(transform, name).data.copy_(c)
    warped = transform(points)
    length, variance, _, _ = hyperparameters(model, 0)
    torch.testing.assert_close(
        model.covar_module.leaf_covariance(0, leaf, *2 * [points.unsqueeze(0)])[0],
        kernel_of(model, warped, warped, length, variance),
    )
    # warping alone keeps its kernel where nothing is split
    single = TreedGP(X, X.sum(-1, keepdim=True), warp=True, max_leaves=1)
    assert isinstance(single.covar_module, TreedStationary)
    with pytest.raises(ValueError, match="to warp"):
        TreedGP(5.0 * X, Y, warp=True)
    assert TreedGP(5.0 * X, Y, warp=True, input_transform=Normalize(2))


def test_categorical_columns() -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=g)
    X[:, 1] = (3.0 * X[:, 1]).floor()
    f = torch.where(X[:, 1] == 1.0, 5.0 + torch.sin(15.0 * X[:, 0]), 0.2 * X[:, 0])
    model = TreedGP(X, f.unsqueeze(-1), categorical_features=[1])
    (root, *_) = model.partition.nodes
    assert root.split is not None and root.split.categorical
    assert (root.split.column, root.split.threshold) == (1, 1.0)
    other = X.clone()
    other[:, 1] = 2.0 - X[:, 1]  # 0 and 2 exchanged: names, not numbers
    swapped = TreedGP(other, f.unsqueeze(-1), categorical_features=[1])
    a, b = model.posterior(X[:5]), swapped.posterior(other[:5])
    torch.testing.assert_close(a.mean, b.mean)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.posterior(X).mean.isfinite().all()
    # an unknown value is as different from all others as these are from one another
    single = TreedGP(X, X[:, :1], categorical_features=[1], max_leaves=1).eval()
    K = single.covar_module(
        torch.tensor([[0.5, 0.0], [0.5, 1.0], [0.5, 7.0]])
    ).to_dense()
    torch.testing.assert_close(K[0, 1], K[0, 2])


@pytest.mark.parametrize("kwargs", [{}, PUBLISHED])
def test_degenerate_data(kwargs: dict[str, Any]) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(24, 2, generator=g)
    steps = (X[:, :1] > 0.5).double()
    cases = {
        "constant outcomes": (X, torch.ones(24, 1)),
        "ties": ((3.0 * X).round() / 3.0, steps),
        "repeated inputs": (X[:6].repeat(4, 1), steps[:6].repeat(4, 1)),
        "one input": (X[:1].repeat(24, 1), X[:, 1:]),
        "too few to split": (X[:8], steps[:8]),
        "two points": (X[:2], X[:2, :1]),
    }
    for name, (x, y) in cases.items():
        model = TreedGP(x, y, **kwargs)
        if name in ("constant outcomes", "one input", "too few to split", "two points"):
            assert model.partition.num_leaves == 1, name
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 20}})
        posterior = model.posterior(X, observation_noise=True)
        assert posterior.mean.isfinite().all(), name
        assert (posterior.variance > 0.0).all(), name


def test_the_published_mode_has_a_name() -> None:
    X, Y = step_data()
    points = step_data(20, seed=1)[0]
    known = torch.full_like(Y, 0.01)
    named = TreedGP.as_published(X, Y, known, max_leaves=3)
    explicit = TreedGP(X, Y, known, max_leaves=3, **PUBLISHED)
    for model in (named, explicit):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    posterior, other = named.posterior(points), explicit.posterior(points)
    assert torch.equal(posterior.mean, other.mean)
    assert torch.equal(posterior.variance, other.variance)
    # a mode in between has no name
    for name, value in PUBLISHED.items():
        with pytest.raises(TypeError, match=name):
            TreedGP.as_published(X, Y, **{name: value})


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"split_criterion": "gini"}, "split_criterion.*'gini'"),
        ({"path_sharing": "none"}, "path_sharing.*'none'"),
        ({"condition_on": "tree"}, "condition_on.*'tree'"),
        ({"leaf_kernel": "linear"}, "leaf_kernel.*'linear'"),
        ({"min_leaf_size": 1}, "min_leaf_size.*2 on, got 1"),
        ({"min_leaf_size": 5.0}, "min_leaf_size: expected an integer.*got 5.0"),
        ({"max_leaves": 0}, "max_leaves.*got 0"),
        ({"categorical_features": [2]}, "columns from 0 to 1"),
        ({"covar_module": RBFKernel(), "warp": True}, "one or the other"),
        ({"input_transform": Warp(d=2, indices=[0])}, "got Warp"),
        ({"likelihood": BernoulliLikelihood()}, "got BernoulliLikelihood"),
    ],
)
def test_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreedGP(*step_data(), **arguments)


def test_one_leaf_may_learn_its_input_transform() -> None:
    X, Y = step_data()
    model = TreedGP(X, Y, input_transform=Warp(d=2, indices=[0]), max_leaves=1)
    assert model.partition.num_leaves == 1


def test_leaves_are_independent_a_priori() -> None:
    model = randomised(TreedGP(*step_data()))
    X, _ = step_data(15, seed=3)
    model.eval()
    prior = model.forward(X)
    leaf = model.partition.leaf_index(X)
    same = leaf.unsqueeze(-1) == leaf
    matrix = prior.covariance_matrix
    assert same.any() and not same.all()
    assert (matrix[~same] == 0.0).all()
    for number in range(model.partition.num_leaves):
        mine = leaf == number
        length, variance, mean, _ = hyperparameters(model, number)
        expected = kernel_of(model, X[mine], X[mine], length, variance)
        torch.testing.assert_close(matrix[mine][:, mine], expected)
        assert (prior.mean[mine] == mean).all()
    diagonal = model.covar_module(X, diag=True)
    torch.testing.assert_close(diagonal, matrix.diagonal())


def test_the_published_method_predicts_from_all_data() -> None:
    model = randomised(TreedGP(*step_data(), outcome_transform=None, **PUBLISHED))
    X, _ = step_data(12, seed=5)
    posterior = model.posterior(X)
    everything = torch.ones(40, dtype=torch.bool)
    leaf = model.partition.leaf_index(X)
    for i in range(12):
        mean, covariance = leaf_prediction(
            model, int(leaf[i]), everything, X[i : i + 1]
        )
        torch.testing.assert_close(posterior.mean[i], mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            posterior.variance[i], covariance[0], rtol=1e-7, atol=1e-8
        )


def step_model(jump: float = 4.0) -> TreedGP:
    """One split in one dimension, known hyperparameters."""
    x = torch.linspace(0.0, 1.0, 21).unsqueeze(-1)
    y = torch.where(x < 0.52, 0.5 * torch.sin(3.0 * x), jump + torch.sin(20.0 * x))
    model = TreedGP(x, y, outcome_transform=None, max_leaves=2)
    (root, *_) = model.partition.nodes
    assert root.split is not None
    assert root.split.threshold == pytest.approx(0.5)
    model.eval()
    return model


@pytest.mark.parametrize("jump", [4.0, 0.0])
def test_gaps_are_mixtures(jump: float) -> None:
    """Jointly the first two moments under what is known of the change point."""
    model = step_model(jump)
    change = model.partition.nodes[0].change
    assert change is not None
    starts, ends, weights = change.starts, change.ends, change.weights
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    X = torch.tensor([0.3, 0.44, 0.5, 0.51, 0.525, 0.54, 0.55, 0.58, 0.8]).unsqueeze(-1)
    posterior = model.posterior(X)
    predictor = model._predictors()[0]
    sides = []
    for leaf in (0, 1):
        mean, projected = predictor._project(leaf, predictor.factors(leaf), X)
        length, variance, _, _ = hyperparameters(model, leaf)
        prior = kernel_of(model, X, X, length, variance)
        sides.append((mean, prior - projected @ projected.mT))
    # change points on a grid in each interval
    grid = (torch.arange(2_000) + 0.5) / 2_000
    points = (starts.unsqueeze(-1) + (ends - starts).unsqueeze(-1) * grid).reshape(-1)
    probability = (weights / 2_000).repeat_interleave(2_000)
    left = X.squeeze(-1) <= points.unsqueeze(-1)
    patterns, which = left.unique(dim=0, return_inverse=True)
    mean, second = torch.zeros(9), torch.zeros(9, 9)
    for k, pattern in enumerate(patterns):
        p = probability[which == k].sum()
        m = torch.where(pattern, sides[0][0], sides[1][0])
        both_left = pattern.unsqueeze(-1) & pattern
        both_right = ~pattern.unsqueeze(-1) & ~pattern
        C = both_left * sides[0][1] + both_right * sides[1][1]
        mean += p * m
        second += p * (C + m.unsqueeze(-1) * m)
    expected = second - mean.unsqueeze(-1) * mean
    # 2,000 change points in each interval
    torch.testing.assert_close(posterior.mean.squeeze(-1), mean, rtol=1e-3, atol=1e-3)
    covariance = posterior.distribution.covariance_matrix
    torch.testing.assert_close(covariance, expected, rtol=2e-3, atol=2e-3)
    assert torch.linalg.eigvalsh(covariance).min() > 0.0
    # each point alone, and in a t-batch
    alone = model.posterior(X.unsqueeze(-2))
    torch.testing.assert_close(alone.mean.squeeze(), posterior.mean.squeeze())
    torch.testing.assert_close(alone.variance.squeeze(), covariance.diagonal())
    # the noise is mixed with the same probabilities
    noisy = model.posterior(X, observation_noise=True)
    noise = (noisy.variance - posterior.variance).squeeze(-1)
    p = (left * probability.unsqueeze(-1)).sum(0)
    values = model.likelihood.noise
    torch.testing.assert_close(
        noise, p * values[0] + (1.0 - p) * values[1], rtol=1e-3, atol=1e-6
    )


def test_a_plausible_point_is_lent() -> None:
    x = torch.linspace(0.0, 1.0, 21).unsqueeze(-1)
    y = torch.where(x < 0.52, 0.0 * x, torch.sin(25.0 * (x - 0.5)))
    model = TreedGP(x, y, outcome_transform=None, max_leaves=2)
    split = model.partition.nodes[0].split
    assert split is not None
    model.eval()
    data = x.squeeze(-1)
    right, lent = data > split.threshold, data == split.threshold
    X = torch.tensor([[0.9], [float(data[right].min()) + 0.02]])
    plain = leaf_prediction(model, 1, right, X)
    with_lent = leaf_prediction(model, 1, right | lent, X)
    posterior = model.posterior(X)
    torch.testing.assert_close(posterior.mean.squeeze(-1), with_lent[0])
    assert not torch.allclose(posterior.variance[1], plain[1][1, 1])
    # the same point is no longer lent where the leaf finds it impossible
    targets = model.train_targets.clone()
    targets[lent] = 50.0
    model.set_train_data(targets=targets)
    posterior = model.posterior(X)
    torch.testing.assert_close(posterior.mean.squeeze(-1), plain[0])


def test_leaves_find_their_own_noise() -> None:
    X, Y = step_data(100, d=1)
    model = TreedGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    at = torch.tensor([[0.2], [0.8]])
    noise = (
        model.posterior(at, observation_noise=True).variance
        - model.posterior(at).variance
    ).sqrt()
    # 0.01 and 0.3
    assert 0.004 < noise[0] < 0.03 and 0.2 < noise[1] < 0.45
    shared = TreedGP(X, Y, leaf_noise=False)
    assert shared.likelihood.noise.shape == (1,)


def test_leave_one_out_without_noise() -> None:
    model = TreedGP(*step_data(24))
    model.eval()
    with_noise, without = loo_cv(model), loo_cv(model, observation_noise=False)
    assert (with_noise.posterior.variance >= without.posterior.variance).all()
    with pytest.raises(ValueError, match="points where the noise"):
        model.likelihood(model.forward(torch.rand(3, 2)))


@pytest.mark.parametrize("options", [{}, PUBLISHED], ids=["default", "published"])
@pytest.mark.parametrize("m", [1, 2])
def test_fantasies_in_gaps_and_across_leaves(options: dict[str, Any], m: int) -> None:
    """Where leaves disagree, fantasies still are of one distribution."""
    X, Y = step_data()
    model = randomised(TreedGP(X, torch.cat([Y, Y.flip(0)], -1)[:, :m], **options))
    edge = X[:, 0].sort().values
    at = int((edge < 0.5).sum())  # the data on both sides of the step
    x = torch.tensor([[[0.3, 0.4]], [[0.0, 0.2]], [[0.9, 0.5]]])
    x[1, 0, 0] = edge[at - 1 : at + 1].mean()
    X_test = torch.rand(60, 2, generator=torch.Generator().manual_seed(1))
    X_test[:30, 0] = torch.linspace(float(edge[at - 1]), float(edge[at]), 30)
    before = model.posterior(X_test)
    first = model.fantasize(x, PlusMinus())
    after = first.posterior(X_test)
    shift = (after.mean.mean(0) - before.mean).abs() / before.variance.sqrt()
    assert shift.max() < 1e-8
    moved = (after.mean - after.mean.mean(0)).square().mean(0)
    total = after.variance.mean(0) + moved
    torch.testing.assert_close(
        total, before.variance.expand_as(total), rtol=1e-6, atol=1e-9
    )
    if m > 1:
        return
    second = first.fantasize(x.flip(0), PlusMinus())
    scale, n = model.outcome_transform, X_test.shape[-2]
    drawn = second.train_targets[..., -2:] * scale.stdvs[..., 0] + scale.means[..., 0]
    # by hand, on one joint distribution of test points and fantasies
    twice = torch.cat([x, x.flip(0)], dim=-2)
    points = torch.cat([X_test.expand(3, -1, -1), twice], dim=-2)
    law = model.posterior(points).distribution
    noisy = model.posterior(twice, observation_noise=True).distribution
    cross = law.covariance_matrix[:, n:, :n]
    weights = torch.linalg.solve(noisy.covariance_matrix, cross).mT
    residual = (drawn - law.mean[:, n:]).unsqueeze(-1)
    expected = law.mean[:, :n].unsqueeze(-1) + weights @ residual
    found = second.posterior(X_test)
    torch.testing.assert_close(found.mean, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("append", [False, True])
def test_fantasies_with_a_transform_of_points_only(append: bool) -> None:
    """The inputs that it leaves alone in training are the original ones, too."""
    X, Y = step_data()
    transform: Any = InputPerturbation(torch.tensor([[0.0, 0.0], [0.01, 0.02]]))
    points = X[:3]
    if append:
        transform, points = AppendFeatures(torch.tensor([[0.1], [0.7]])), X[:3, :1]
    model = TreedGP(X, Y, input_transform=transform)
    assert model.partition.num_leaves > 1
    fantasies = model.fantasize(X[:2], PlusMinus())
    assert torch.equal(fantasies._original_train_inputs, torch.cat([X, X[:2]]))
    before, after = (m.posterior(points).mean for m in (model, fantasies))
    torch.testing.assert_close(after.mean(0), before)
