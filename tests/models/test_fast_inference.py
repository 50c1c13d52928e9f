"""The base of the models; and that a subclass of a likelihood is not its parent."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import Normalize
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
)
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from treed_models import step_data

from botorch_structured.kernels import ConditionalKernel, TreeStructuredKernel
from botorch_structured.models import (
    ConditionalGP,
    MonotoneGP,
    MultiTaskABLR,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.models.map_fit import fit_map
from botorch_structured.spaces import ParameterTree

TREE = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
NOISE = 3e-4
LOUDER = 100.0


pytestmark = pytest.mark.usefixtures("double")


class Louder(GaussianLikelihood):
    def _shaped_noise_covar(self, *args: Any, **kwargs: Any) -> Any:
        return super()._shaped_noise_covar(*args, **kwargs) * LOUDER


class LouderMarginal(GaussianLikelihood):
    def marginal(
        self, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> MultivariateNormal:
        mean, covariance = function_dist.mean, function_dist.lazy_covariance_matrix
        noise = LOUDER * self.noise.expand(mean.shape)
        return MultivariateNormal(mean, covariance + DiagLinearOperator(noise))


class LouderFixed(FixedNoiseGaussianLikelihood):
    def _shaped_noise_covar(self, *args: Any, **kwargs: Any) -> Any:
        return super()._shaped_noise_covar(*args, **kwargs) * LOUDER


class LouderHadamard(HadamardGaussianLikelihood):
    def _shaped_noise_covar(self, *args: Any, **kwargs: Any) -> Any:
        return super()._shaped_noise_covar(*args, **kwargs) * LOUDER


class LouderNoise(HomoskedasticNoise):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs) * LOUDER


def gaussian(kind: type[GaussianLikelihood], noise: float) -> GaussianLikelihood:
    likelihood = kind()
    likelihood.noise = noise
    return likelihood


def with_louder_noise() -> GaussianLikelihood:
    """The class is GPyTorch's own: what it holds is not."""
    likelihood = gaussian(GaussianLikelihood, NOISE)
    likelihood.noise_covar = LouderNoise()
    likelihood.noise = NOISE
    return likelihood


def fixed(kind: type[FixedNoiseGaussianLikelihood], factor: float) -> Likelihood:
    return kind(factor * NOISE * torch.linspace(0.5, 2.0, 24))


def beside_a_louder(own: Likelihood) -> tuple[Likelihood, Likelihood]:
    return own, gaussian(GaussianLikelihood, LOUDER * NOISE)


#: A likelihood, and one of GPyTorch's own that adds the same noise.
PAIRS: dict[str, Callable[[], tuple[Likelihood, Likelihood]]] = {
    "noise": lambda: beside_a_louder(gaussian(Louder, NOISE)),
    "marginal": lambda: beside_a_louder(gaussian(LouderMarginal, NOISE)),
    "part": lambda: beside_a_louder(with_louder_noise()),
    "fixed": lambda: (
        fixed(LouderFixed, 1.0),
        fixed(FixedNoiseGaussianLikelihood, LOUDER),
    ),
}


def tree_data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(24, 3, generator=g)
    X[:, 0] = (X[:, 0] > 0.5).double()
    Y = torch.sin(5.0 * X[:, 1:].sum(-1)) + X[:, 0]
    return X, (Y + 0.3 * torch.randn(24, generator=g)).unsqueeze(-1)


def treed(likelihood: Likelihood, **kwargs: Any) -> TreedGP:
    X, Y = step_data(24)
    model = TreedGP(X, Y, likelihood=likelihood, min_leaf_size=3, **kwargs)
    assert model.partition.num_leaves > 1
    return model


MODELS: dict[str, Callable[[Likelihood], GPyTorchModel]] = {
    "tree": lambda noise: TreeStructuredGP(*tree_data(), TREE, likelihood=noise),
    "conditional": lambda noise: ConditionalGP(*tree_data(), TREE, likelihood=noise),
    "treed": treed,
    "monotone": lambda noise: MonotoneGP(*tree_data(), {1: 1}, likelihood=noise),
    "treed, published": lambda noise: treed(
        noise, split_criterion="variance", path_sharing="all", condition_on="all"
    ),
}


@pytest.mark.filterwarnings("ignore:likelihood. a fit with")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", MODELS)
def test_a_likelihood_is_asked_for_its_noise(name: str, pair: str) -> None:
    own, known = (MODELS[name](likelihood) for likelihood in PAIRS[pair]())
    points = own.train_inputs[0][:5] + 0.01
    points[:, 0] = points[:, 0].round()
    losses = []
    for model in (own, known):
        mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
        losses.append(model.compute_custom_loss(mll))
    torch.testing.assert_close(losses[0], losses[1])
    expected = known.posterior(points)
    found = own.posterior(points)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


def test_regressions_take_none_but_known_likelihoods() -> None:
    X, Y = tree_data()
    noise = torch.full((24,), NOISE)
    more = FixedNoiseGaussianLikelihood(noise, learn_additional_noise=True)
    for likelihood, message in (
        (gaussian(Louder, NOISE), "not a subclass"),
        (with_louder_noise(), "not a subclass"),
        (fixed(LouderFixed, 1.0), "not a subclass"),
        (LouderHadamard(2, task_feature_index=0), "not a subclass"),
        (more, "learn_additional_noise=False"),
    ):
        with pytest.raises(ValueError, match=f"likelihood: expected .*{message}"):
            MultiTaskABLR(X, Y, task_feature=0, likelihood=likelihood)


class LouderConditional(ConditionalKernel):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return 4.0 * super().forward(*args, **kwargs)


class LouderTree(TreeStructuredKernel):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return 4.0 * super().forward(*args, **kwargs)


class Shifted(ConditionalGP):
    def forward(self, x: Tensor) -> MultivariateNormal:
        prior = super().forward(x)
        return MultivariateNormal(prior.mean + 1.0, prior.lazy_covariance_matrix)


SUBCLASSES: dict[str, Callable[[], GPyTorchModel]] = {
    "conditional kernel": lambda: ConditionalGP(
        *tree_data(),
        TREE,
        covar_module=LouderConditional(
            ConditionalGP(*tree_data(), TREE).covar_module.base_kernel, TREE
        ),
    ),
    "tree kernel": lambda: TreeStructuredGP(
        *tree_data(), TREE, covar_module=LouderTree(TREE)
    ),
    "model": lambda: Shifted(*tree_data(), TREE),
}


@pytest.mark.parametrize("name", SUBCLASSES)
def test_a_subclass_is_evaluated_by_its_forward(name: str) -> None:
    model = SUBCLASSES[name]()
    X, y = model.train_inputs[0], model.train_targets
    points = tree_data()[0][:5]
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    loss = model.compute_custom_loss(mll)
    torch.testing.assert_close(loss, -mll(model(X), y, X))
    model.eval()
    expected = ExactGP.__call__(model, points)
    found = model(points)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


@pytest.mark.parametrize(
    "make",
    [
        lambda: treed(gaussian(GaussianLikelihood, NOISE)),
        lambda: MultiTaskABLR(*tree_data(), task_feature=0),
    ],
)
def test_an_objective_of_another_noise(make: Callable[[], GPyTorchModel]) -> None:
    model = make()
    other = gaussian(GaussianLikelihood, LOUDER * NOISE)
    mll = ExactMarginalLogLikelihood(other, model).train()
    with pytest.raises(ValueError, match="mll: expected the likelihood of the model"):
        model.compute_custom_loss(mll)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    with pytest.raises(ValueError, match=r"kwargs: .* got \['noise'\]"):
        model.compute_custom_loss(mll, noise=torch.ones(24))


def test_arguments_of_the_likelihood_are_passed_on() -> None:
    louder = torch.linspace(0.1, 0.2, 24)
    likelihood = FixedNoiseGaussianLikelihood(torch.full((24,), NOISE))
    model = MODELS["conditional"](likelihood)
    mll = ExactMarginalLogLikelihood(likelihood, model).train()
    known = MODELS["conditional"](FixedNoiseGaussianLikelihood(louder))
    expected = ExactMarginalLogLikelihood(known.likelihood, known).train()
    torch.testing.assert_close(
        model.compute_custom_loss(mll, noise=louder),
        known.compute_custom_loss(expected),
    )


def test_eval_reaches_each_part() -> None:
    """Also one that is in training mode by itself; and inputs are transformed."""
    X, Y = tree_data()
    X = X * torch.tensor([1.0, 2.0, 2.0])
    transform = Normalize(3, indices=[1, 2])
    model = TreeStructuredGP(X, Y, TREE, input_transform=transform)
    assert model.eval() is model and not model.training
    for part in (model.likelihood, model.likelihood.noise_covar):  # a part of a part
        part.train()
        model.posterior(X)
        assert not any(part.training for part in model.modules())
    model.train()
    assert torch.equal(model.train_inputs[0], X)
    model.eval()
    assert not torch.equal(model.train_inputs[0], X)


@pytest.mark.parametrize("name", MODELS)
def test_a_prior_is_asked_for(name: str) -> None:
    model = MODELS[name](gaussian(GaussianLikelihood, NOISE)).eval()
    X = model.train_inputs[0]
    with settings.prior_mode():
        found = model(X)
    expected = model.forward(X)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix)
    assert not torch.allclose(model(X).mean, expected.mean)


def test_attempts_without_a_factorisation_end_as_in_botorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = TreeStructuredGP(*tree_data(), TREE)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    tried: list[int] = []

    def fail(*_: Any) -> Any:
        tried.append(1)
        raise NotPSDError("no jitter is enough")

    monkeypatch.setattr(TreeStructuredGP, "_fast_evidence", fail)
    start = copy.deepcopy(mll.model.state_dict())
    with pytest.raises(ModelFittingError, match="All attempts"):
        fit_map(mll, max_attempts=3)
    assert len(tried) == 3
    assert all(torch.equal(start[k], v) for k, v in mll.model.state_dict().items())


DENSE: dict[str, Callable[..., Any]] = {
    "tree": lambda X, Y, **kwargs: TreeStructuredGP(
        X, Y, {0: {0: [], 1: [1]}}, **kwargs
    ),
    "conditional": lambda X, Y, **kwargs: ConditionalGP(
        X, Y, {0: {0: [], 1: [1]}}, **kwargs
    ),
    "treed": TreedGP,
    "monotone": lambda X, Y, **kwargs: MonotoneGP(X, Y, {1: 1}, **kwargs),
    "signals": lambda X, Y, **kwargs: MultiTaskABLR(X, Y, None, **kwargs),
}


def inputs_with_a_decision(n: int) -> Tensor:
    X = 4.0 * torch.rand(n, 2, generator=torch.Generator().manual_seed(0))
    X[:, 0] = (X[:, 0] > 2.0).double()
    return X


@pytest.mark.parametrize("kind", ["tree", "conditional", "treed", "monotone"])
def test_a_subset_of_outputs_keeps_its_raw_inputs(kind: str) -> None:
    X = inputs_with_a_decision(16)
    Y = torch.stack([X.sum(-1).sin(), X.sum(-1)], -1)
    model = DENSE[kind](X, Y, input_transform=Normalize(2, indices=[1]))
    expected = model.posterior(X).mean[:, 1:]
    one = model.subset_output([1])
    torch.testing.assert_close(one.posterior(X).mean, expected)
    one.train()
    assert torch.equal(one.train_inputs[0], X)
    torch.testing.assert_close(one.posterior(X).mean, expected)


@pytest.mark.parametrize("kind", list(DENSE))
def test_a_state_that_is_loaded_transforms_the_inputs(kind: str) -> None:
    X = inputs_with_a_decision(16)
    Y = X.sum(-1, keepdim=True).sin()
    wide = X * torch.tensor([1.0, 2.0])

    def build(X: Tensor) -> Any:
        return DENSE[kind](X, Y, input_transform=Normalize(2, indices=[1]))

    model = build(wide)
    model.posterior(X)
    model.load_state_dict(build(X).state_dict())
    mean = model.posterior(X).mean
    model.train()
    torch.testing.assert_close(model.posterior(X).mean, mean)
