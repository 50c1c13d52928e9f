"""Batches and fantasies of tree models: what is structured is the dense model."""

import copy
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms import Warp
from botorch.sampling import SobolQMCNormalSampler
from botorch.settings import propagate_grads
from gpytorch.kernels import PeriodicKernel, RQKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from leaf_models import random_model, some_points
from strategies import random_points, random_tree, seeds
from torch import Tensor
from torch.distributions import MultivariateNormal

from botorch_structured.kernels import ConditionalKernel, TreeStructuredKernel
from botorch_structured.kernels.leaf_kernels import BatchKernel
from botorch_structured.linalg.blocks import factorise
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree.leaf_inference import leaf_blocks, log_evidence
from botorch_structured.spaces import ParameterTree

MODELS = [TreeStructuredGP, ConditionalGP]
DEPENDENCIES = {0: {0.0: [1], 1.0: [2, 3], 2.0: [4]}}
TREE = ParameterTree(6, DEPENDENCIES)


pytestmark = pytest.mark.usefixtures("double")


# a kernel with a ``forward`` of its own is evaluated by it
class DenseTree(TreeStructuredKernel):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs)


class DenseConditional(ConditionalKernel):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs)


DENSE = {TreeStructuredKernel: DenseTree, ConditionalKernel: DenseConditional}


def dense(model: Any) -> Any:
    """The same model by the dense algebra of BoTorch and GPyTorch."""
    other = copy.deepcopy(model)
    other.covar_module.__class__ = DENSE[type(other.covar_module)]
    return other


def close(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def same(one: Any, other: Any, X: Tensor, **kwargs: Any) -> None:
    first, second = (m.posterior(X, **kwargs) for m in (one, other))
    assert first.mean.shape == second.mean.shape
    close(first.mean, second.mean)
    close(first.distribution.covariance_matrix, second.distribution.covariance_matrix)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often a dense covariance of many points was asked for."""
    calls: list[int] = []
    forward = BatchKernel.forward

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(args[0].shape[-2])
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(BatchKernel, "forward", spy)
    return calls


def make(
    model_class: type,
    tree: ParameterTree,
    seed: int,
    outputs: int = 1,
    batch: tuple[int, ...] = (),
    n: int = 14,
    noise: bool = False,
    **kwargs: Any,
) -> Any:
    """Random data and hyperparameters, other ones for each element of the batch."""
    g = torch.Generator().manual_seed(seed)
    X = random_points(tree, n * math.prod(batch), g).view(*batch, n, tree.dim)
    Y = torch.randn(*batch, n, outputs, generator=g)
    Yvar = 0.01 + 0.1 * torch.rand(Y.shape, generator=g) if noise else None
    model = model_class(X, Y, tree, train_Yvar=Yvar, **kwargs)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
            if "raw_noise" in name:
                p.fill_(math.log(1e-2)).add_(0.3 * torch.randn(p.shape, generator=g))
    return model.eval()


shapes = st.sampled_from(
    [(2, ()), (3, ()), (1, (2,)), (1, (1,)), (2, (3,)), (1, (2, 1))]
)


def objective(model: Any) -> list[Tensor]:
    """What a fit minimises, and its gradient."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    loss = model.compute_custom_loss(mll)
    free = [p for p in model.parameters() if p.requires_grad]
    return [loss, *torch.autograd.grad(loss.sum(), free)]


def same_objective(model: Any, other: Any) -> None:
    for a, b in zip(objective(model), objective(other), strict=True):
        close(a, b)


@given(seeds)
@settings(max_examples=20)
def test_one_model_is_dense(seed: int) -> None:
    """Over random trees and options."""
    model = random_model(seed, n=(3, 20, 60)[seed % 7 % 3])
    other = dense(model)
    same_objective(model, other)
    points = some_points(model.eval(), 12, seed + 1)
    for X in (points, points.view(4, 3, -1), points.unsqueeze(1)):
        same(model, other.eval(), X)


def test_small_noise_keeps_its_digits() -> None:
    """Two exact copies of a point on a leaf, a noise of 1e-9; also as on a GPU."""
    g = torch.Generator().manual_seed(0)
    tree = random_tree(3)
    kernel, X = TreeStructuredKernel(tree).double(), random_points(tree, 15, g)
    X[1] = X[0]
    residual, noise = torch.randn(15, generator=g), torch.full((15,), 1e-9)
    residual[1] = residual[0]
    structure, zero = kernel.structure(X), torch.zeros(15)
    covariance = kernel(X).to_dense() + noise.diag_embed()
    expected = MultivariateNormal(zero, covariance).log_prob(residual)
    blocks = [b.noisy(kernel, noise) for b in leaf_blocks(kernel, X, structure)]
    in_torch = factorise(blocks, residual, kernel.num_weights).log_density(15)
    fast = log_evidence(kernel, X, structure, noise, residual)
    # all have a condition number of 1e9 or more: none knows more digits
    for found in (fast, in_torch):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


@given(seeds)
@example(450744411)  # two values of a category where it is active, more elsewhere
def test_inactive_columns_have_no_influence(seed: int) -> None:
    """To the last bit, in training data and in what is predicted."""
    model = random_model(seed, n=12)
    g = torch.Generator().manual_seed(seed)

    def changed(X: Tensor) -> Tensor:
        other = 1e3 * torch.randn(X.shape, generator=g)
        return torch.where(model.tree.active_mask(X), X, other)

    twin, test = copy.deepcopy(model), some_points(model, 6, seed)
    twin.set_train_data(changed(twin.train_inputs[0]), strict=False)
    for X in (test, test.unsqueeze(1)):
        expected = model.posterior(X)
        for other in (model, twin):
            posterior = other.posterior(changed(X))
            assert torch.equal(posterior.mean, expected.mean)
            assert torch.equal(posterior.variance, expected.variance)


@pytest.mark.parametrize("model_class", MODELS)
@given(seed=seeds, shape=shapes, noise=st.booleans())
@settings(max_examples=6)
def test_batches_are_dense(
    model_class: type, seed: int, shape: tuple[int, tuple[int, ...]], noise: bool
) -> None:
    tree = random_tree(seed)
    assume(tree.decision_columns)
    outputs, batch = shape
    model = make(model_class, tree, seed, outputs, batch, noise=noise)
    g = torch.Generator().manual_seed(seed + 1)
    for lead in ((), batch, (2, *batch)):
        points = random_points(tree, 3 * math.prod(lead), g).view(*lead, 3, tree.dim)
        same(model, dense(model), points)
        same(model, dense(model), points[..., :1, :], observation_noise=True)


@pytest.mark.parametrize("model_class", MODELS)
@given(seed=seeds, shape=st.sampled_from([(1, ()), (2, ()), (1, (2,)), (2, (2,))]),
       noise=st.booleans())  # fmt: skip
@settings(max_examples=4)
def test_fantasies_are_dense(
    model_class: type, seed: int, shape: tuple[int, tuple[int, ...]], noise: bool
) -> None:
    """Fantasies that share their inputs or do not, and fantasies of fantasies."""
    tree = random_tree(seed)
    assume(tree.decision_columns)
    outputs, batch = shape
    model = make(model_class, tree, seed, outputs, batch, noise=noise)
    g = torch.Generator().manual_seed(seed + 1)

    def points(*lead: int) -> Tensor:
        return random_points(tree, math.prod(lead), g).view(*lead, tree.dim)

    X, X2, test = points(3, *batch, 2), points(4, 3, *batch, 1), points(5)
    conditioned = []
    for other in (model, dense(model)):
        new = other.fantasize(X, SobolQMCNormalSampler(torch.Size([4]), seed=0))
        conditioned.append(new)
    same(*conditioned, test)
    same(*conditioned, points(3, *batch, 2))
    same(*conditioned, points(4, 3, *batch, 1), observation_noise=True)
    again = [
        new.fantasize(X2, SobolQMCNormalSampler(torch.Size([2]), seed=1))
        for new in conditioned
    ]
    same(*again, test)
    # observations: of one data set, of several, and others for each
    for lead in ((), (2,)):
        Y = torch.randn(*lead, *batch, 2, outputs, generator=g)
        Yvar = {"noise": torch.rand(Y.shape, generator=g)} if noise else {}
        for new_X in {points(*batch, 2), points(*lead, *batch, 2)}:
            new = [
                other.condition_on_observations(new_X, Y, **Yvar)
                for other in (model, dense(model))
            ]
            same(*new, test)
            if outputs > 1:
                same(*(m.subset_output([1]) for m in new), test)
        for made in (copy.deepcopy(new[0]), pickle.loads(pickle.dumps(new[0]))):
            same(made, new[1], test)


@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_gradients_through_fantasies(model_class: type, outputs: int) -> None:
    """In the points of the fantasies, in their outcomes and in those predicted."""
    model = make(model_class, TREE, 0, outputs, outcome_transform=None)
    g = torch.Generator().manual_seed(1)
    new, test = random_points(TREE, 6, g).view(3, 2, 6), random_points(TREE, 4, g)
    Y = torch.randn(2, 3, 2, outputs, generator=g)
    found = []
    for one in (model, dense(model)):
        one.posterior(test)
        inputs = [t.clone().requires_grad_() for t in (new, Y, test)]
        with propagate_grads(True):
            conditioned = one.condition_on_observations(*inputs[:2])
            posterior = conditioned.posterior(inputs[2])
        value = posterior.mean.sin().sum() + posterior.variance.log().sum()
        gradients = torch.autograd.grad(value, inputs)
        found.append([posterior.mean, posterior.variance, *gradients])
    for a, b in zip(*found, strict=True):
        close(a, b)


@pytest.mark.parametrize("model_class", MODELS)
def test_nothing_is_dense(model_class: type, counted: list[int]) -> None:
    """Fits, posteriors and fantasies of outputs, batches and single models."""
    g = torch.Generator().manual_seed(1)
    test = random_points(TREE, 4, g)
    for outputs, batch in ((1, ()), (2, ()), (1, (2,)), (2, (2,))):
        model = make(model_class, TREE, 0, outputs, batch, n=60)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(mll)
        model.posterior(test)
        X = random_points(TREE, 2 * math.prod(batch), g).view(*batch, 2, 6)
        new = model.fantasize(X, SobolQMCNormalSampler(torch.Size([4])))
        new.posterior(test)
        more = X.expand(4, *batch, 2, 6)
        new.fantasize(more, SobolQMCNormalSampler(torch.Size([2]))).posterior(test)
    assert not counted
    dense(make(model_class, TREE, 0, 2)).posterior(test)
    assert counted  # it does count


@pytest.mark.parametrize("model_class", MODELS)
def test_outputs_are_fitted_each_by_itself(model_class: type) -> None:
    """As good an optimum as each output has in a model of its own."""
    g = torch.Generator().manual_seed(0)
    X = random_points(TREE, 40, g)
    used = TREE.impute(X, 0.0)
    Y = torch.stack([used.sum(-1).sin(), (3.0 * used).sum(-1).cos()], dim=-1)
    kwargs = {"leaf_kernel": "rbf"} if model_class is TreeStructuredGP else {}
    together = model_class(X, Y, DEPENDENCIES, **kwargs)
    mll = ExactMarginalLogLikelihood(together.likelihood, together)
    fit_gpytorch_mll(mll)
    assert not together.training
    alone = [model_class(X, Y[:, i : i + 1], DEPENDENCIES, **kwargs) for i in range(2)]
    losses = []
    for model in alone:
        own = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(own)
        losses.append(model.compute_custom_loss(own.train()).detach())
        model.eval()
    found = together.compute_custom_loss(mll.train()).detach()
    close(found, torch.stack(losses), 1e-4)
    test = random_points(TREE, 5, g)
    several = ModelListGP(*alone).posterior(test)
    close(together.posterior(test).mean, several.mean, 1e-2)


@pytest.mark.parametrize("model_class", MODELS)
@given(seed=seeds, shape=shapes, noise=st.booleans(), published=st.booleans())
@settings(max_examples=15)
def test_objectives_of_a_batch(
    model_class: type, seed: int, shape: Any, noise: bool, published: bool
) -> None:
    """Values and gradients are those of the dense loss, element by element."""
    outputs, batch = shape
    make_model: Any = model_class
    if published and model_class is TreeStructuredGP:
        make_model = TreeStructuredGP.as_published
    tree = random_tree(seed)
    assume(tree.decision_columns)
    model = make(make_model, tree, seed, outputs, batch, noise=noise)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    objectives = model._fit_objectives(mll.train(), {})
    other = dense(model)
    losses = other.compute_custom_loss(
        ExactMarginalLogLikelihood(other.likelihood, other).train()
    )
    assert len(objectives) == losses.numel()
    places = list(np.ndindex(losses.shape))
    for index, objective in zip(places, objectives, strict=True):
        value, gradient = objective(objective.read())
        assert value == pytest.approx(losses[index].item(), rel=1e-8, abs=1e-8)
        slopes = torch.autograd.grad(
            losses[index], list(other.parameters()), retain_graph=True
        )
        mine = torch.cat([slope[index].reshape(-1) for slope in slopes])
        close(torch.from_numpy(gradient), mine)


@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.parametrize("shape", [(3, ()), (1, (2, 2)), (2, (2,))])
@given(seed=seeds)
@settings(max_examples=3)
def test_points_of_elements(model_class: type, shape: Any, seed: int) -> None:
    """Points one by one: values, gradients and second ones, with t-batches."""
    outputs, batch = shape
    tree = random_tree(seed)
    assume(tree.decision_columns)
    model = make(model_class, tree, seed, outputs, (), noise=True)
    if batch:  # the same inputs, other outcomes
        model = make(model_class, tree, seed, outputs, batch)
        X = model.train_inputs[0]
        same_X = X[(0,) * (X.ndim - 2)].expand(X.shape).clone()
        model.set_train_data(same_X, model.train_targets, strict=False)
    other = dense(model).requires_grad_(False)
    g = torch.Generator().manual_seed(seed + 1)
    ones = (1,) * len(batch)
    few = random_points(tree, 6, g)
    every, alone = few.view(6, *ones, 1, -1), few[:1].view(*ones, 1, -1)
    for start, expanded in (
        (every, every.shape[:-2]),
        (alone, ones),
        (alone, (4, *ones)),
        (alone, (4, *batch)),
    ):
        found = []
        for one in (model, other):
            points = start.clone().requires_grad_()
            X = points.expand(*expanded, 1, -1)
            posterior = one.posterior(X)
            value = (posterior.mean.sin() + posterior.variance).square().sum()
            (slope,) = torch.autograd.grad(value, points, create_graph=True)
            second = ()
            if model_class is TreeStructuredGP:  # torch's cdist has none
                second = torch.autograd.grad(slope.sin().sum(), points)
            found.append((posterior.mean, posterior.variance, slope, *second))
        for a, b in zip(*found, strict=True):
            close(a, b, 1e-6)
        with torch.no_grad():
            same(model, other, X)


def test_what_one_fit_for_all_outputs_needs_is_honoured() -> None:
    """A closure, and held parameters that the outputs share."""
    g = torch.Generator().manual_seed(0)
    X = random_points(TREE, 30, g)
    Y = torch.randn(30, 2, generator=g)
    model = TreeStructuredGP(X, Y, DEPENDENCIES, leaf_kernel="rbf")
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    before = model.mean_module.raw_constant.clone()
    closed = []

    def closure() -> Any:
        closed.append(1)
        loss = model.compute_custom_loss(mll).sum()
        return loss, torch.autograd.grad(loss, list(mll.parameters()))

    fit_gpytorch_mll(mll, closure=closure, optimizer_kwargs={"options": {"maxiter": 3}})
    assert closed and not torch.equal(before, model.mean_module.raw_constant)
    # a mean that the outputs share, held
    mean = ConstantMean().requires_grad_(False)
    mean.constant = 0.1
    model = TreeStructuredGP(X, Y, DEPENDENCIES, leaf_kernel="rbf", mean_module=mean)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    start = model.likelihood.noise.clone()
    fit_gpytorch_mll(mll)
    assert model.mean_module.constant == 0.1 and not mean.raw_constant.requires_grad
    assert (model.likelihood.noise != start).all()
    same(model, dense(model), X[:4])


@pytest.mark.parametrize("base", [RQKernel, PeriodicKernel])
def test_other_base_kernels_and_a_transform_that_is_fitted(base: Any) -> None:
    g = torch.Generator().manual_seed(0)
    X, Y = random_points(TREE, 20, g), torch.randn(20, 2, generator=g)
    two = torch.Size([2])
    kernel = ScaleKernel(base(ard_num_dims=6, batch_shape=two), batch_shape=two)
    unit = torch.tensor([[0.0], [1.0]]).expand(2, 6)
    warp = Warp(d=6, indices=[1, 3, 5], bounds=unit)
    model = ConditionalGP(X, Y, TREE, covar_module=kernel, input_transform=warp)
    with torch.no_grad():
        for p in kernel.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
    same_objective(model, dense(model))
    same(model.eval(), dense(model), random_points(TREE, 4, g))
