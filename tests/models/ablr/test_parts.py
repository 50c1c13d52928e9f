"""What a MultiTaskABLR is made of: network, exchangeable prior, tasks, scales."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from botorch.models.transforms.outcome import Standardize, StratifiedStandardize
from botorch.optim.utils import sample_all_priors
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.distributions import MultivariateNormal as GPyTorchNormal
from hypothesis import given
from hypothesis import strategies as st
from strategies import seeds
from torch.distributions import MultivariateNormal

from botorch_structured.linalg.hyperparameter import Hyperparameter
from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.models.ablr.hyperparameters import (
    TaskLikelihood,
    add_exchangeable_prior,
)
from botorch_structured.models.ablr.tasks import Signals, StandardizeTasks, TaskColumn

pytestmark = pytest.mark.usefixtures("double")


def test_the_network_is_three_layers_of_tanh() -> None:
    network = TanhNetwork(4, bounds=torch.tensor([[-1.0] * 4, [3.0] * 4]))
    weights, biases = network.parts[:3], network.parts[3:]
    assert [tuple(w.shape) for w in weights] == [(50, 4), (50, 50), (50, 50)]
    X = 4.0 * torch.rand(2, 7, 4) - 1.0
    values = (X - 1.0) / 2.0
    for weight, bias in zip(weights, biases, strict=True):
        values = (values @ weight.mT + bias).tanh()
    torch.testing.assert_close(network(X), values)
    assert network(X).shape == (2, 7, 50)


def test_a_network_starts_where_its_seed_says() -> None:
    state = torch.random.get_rng_state()
    a, b, c = TanhNetwork(3), TanhNetwork(3), TanhNetwork(3, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    X = torch.rand(5, 3)
    assert torch.equal(a(X), b(X)) and not torch.allclose(a(X), c(X))
    b.restart(1)
    assert torch.equal(b(X), c(X))
    for network in (a, a.to(torch.float32)):
        assert not network.has_started()
    b.load_state_dict(TanhNetwork(3, seed=7).state_dict())
    assert b.has_started()
    with torch.no_grad():
        c.values[-1] += 1e-3
    assert c.has_started()


def test_the_prior_is_centered_where_the_network_started() -> None:
    network = TanhNetwork(3, widths=(6, 5), prior_scale=0.5)
    model = MultiTaskABLR(torch.rand(4, 3), torch.rand(4, 1), None, feature_map=network)

    def log_prior() -> torch.Tensor:
        terms = [p.log_prob(f(m)).sum() for _, m, p, f, _ in network.named_priors()]
        return torch.stack(terms).sum()

    first = log_prior()
    slopes = torch.autograd.grad(first, list(network.parameters()))
    assert all((slope == 0.0).all() for slope in slopes)
    with torch.no_grad():
        network.parts[1][2, 3] += 0.1
    scale = 0.5 * network.weight_scale / 6**0.5
    torch.testing.assert_close(
        first - log_prior(), torch.tensor((0.1 / scale) ** 2 / 2)
    )
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(list(other.named_priors())) == 1 + 2
        sample_all_priors(other)  # what a retry of a fit does
        assert torch.isfinite(other.log_evidence())
        assert not torch.equal(other.feature_map.values, network.values)
    assert not list(TanhNetwork(3, prior_scale=None).named_priors())


@given(seed=seeds, count=st.integers(2, 6), spread=st.floats(0.1, 3.0))
def test_the_prior_is_a_normal_of_the_logarithms(
    seed: int, count: int, spread: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    module = Hyperparameter((count,), 1.0, 1.0, (1e-9, 1e9))
    module.raw_value.data = torch.randn(count, generator=g)
    add_exchangeable_prior(module, "value", 0.2, spread)

    ((_, _, prior, read, _),) = module.named_priors()
    covariance = torch.eye(count) + spread**2
    dense = MultivariateNormal(torch.full((count,), 0.2).log(), covariance)
    torch.testing.assert_close(
        prior.log_prob(read(module)), dense.log_prob(module.raw_value)
    )


def test_each_row_has_the_noise_of_its_task() -> None:
    tasks = TaskColumn(1, 3, [2, 7])
    likelihood = TaskLikelihood(tasks)
    likelihood.noise = torch.tensor([0.1, 0.5])
    X = torch.rand(2, 4, 3)
    X[..., 1] = torch.tensor([2.0, 7.0, 7.0, 2.0])
    prior = GPyTorchNormal(torch.zeros(2, 4), torch.eye(4).expand(2, 4, 4))
    expected = torch.tensor([1.1, 1.5, 1.5, 1.1]).expand(2, 4)
    torch.testing.assert_close(likelihood(prior, X).variance, expected)
    given = likelihood(prior, X, noise=torch.ones(2, 4)).variance
    torch.testing.assert_close(given, torch.full((2, 4), 2.0))
    torch.testing.assert_close(
        likelihood(torch.zeros(2, 4), X).scale, (expected - 1.0).sqrt()
    )
    with pytest.raises(ValueError, match="params: expected the inputs"):
        likelihood(prior)


def test_tasks_are_standardised_one_by_one() -> None:
    g = torch.Generator().manual_seed(0)
    task = torch.arange(12) % 3
    X = torch.stack([torch.rand(12, generator=g), task.double()], -1)
    Y = (1e6 * task + (1 + task) * torch.randn(12, generator=g)).unsqueeze(-1)
    Yvar = torch.rand(12, 1, generator=g)
    ours = StandardizeTasks(TaskColumn(1, 2, [0, 1, 2]))
    theirs = StratifiedStandardize(1, torch.arange(3), dtype=torch.float64)
    for a, b in zip(ours(Y, Yvar, X), theirs(Y, Yvar, X), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    ours.eval()
    for a, b in zip(ours.untransform(*ours(Y, Yvar, X), X), (Y, Yvar), strict=True):
        torch.testing.assert_close(a, b)
    mvn = GPyTorchNormal(torch.rand(12), torch.eye(12))
    posterior = GPyTorchPosterior(mvn)
    theirs.eval()
    a = ours.untransform_posterior(posterior, X)
    b = theirs.untransform_posterior(posterior, X)
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.variance, b.variance)
    with pytest.raises(ValueError, match="X: expected inputs with their task column"):
        ours(Y)


def test_tasks_with_too_few_rows_have_the_usual_scale() -> None:
    values = [0, 1, 2, 3, 4]
    task = torch.tensor([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 3.0])
    X = torch.stack([torch.rand(7), task], -1)
    Y = torch.tensor([0.0, 2.0, 10.0, 30.0, 5.0, 7.0, 7.0]).unsqueeze(-1)
    transform = StandardizeTasks(TaskColumn(1, 2, values))
    transform(Y, X=X)
    torch.testing.assert_close(
        transform.means, torch.tensor([1.0, 20.0, 5.0, 7.0, 33.0 / 4.0])
    )
    usual = (2.0**0.5 * 200.0**0.5) ** 0.5
    expected = torch.tensor([2.0**0.5, 200.0**0.5, usual, usual, usual])
    torch.testing.assert_close(transform.stdvs, expected)
    alone = StandardizeTasks(Signals(1))
    alone(torch.tensor([[3.0]]))
    assert alone.means.item() == 3.0 and alone.stdvs.item() == 1.0


def test_signals_are_standardised_with_what_was_observed() -> None:
    Y = torch.rand(9, 3)
    Y[2, 0] = Y[4:7, 1] = torch.nan
    ours, theirs = StandardizeTasks(Signals(3)), Standardize(m=3)
    a, b = ours(Y)[0], theirs(Y)[0]
    torch.testing.assert_close(a, b, equal_nan=True)
    mvn = MultitaskMultivariateNormal(
        torch.rand(2, 4, 3), torch.eye(12).expand(2, 12, 12)
    )
    for posterior in (
        GPyTorchPosterior(mvn),
        GPyTorchPosterior(
            MultitaskMultivariateNormal(
                mvn.mean, mvn.covariance_matrix, interleaved=False
            )
        ),
    ):
        moved = ours.eval().untransform_posterior(posterior)
        expected = theirs.eval().untransform_posterior(posterior)
        torch.testing.assert_close(moved.mean, expected.mean)
        torch.testing.assert_close(moved.variance, expected.variance)
    part = ours.subset_output([2, 0])
    torch.testing.assert_close(part(Y[:, [2, 0]])[0], a[:, [2, 0]], equal_nan=True)
