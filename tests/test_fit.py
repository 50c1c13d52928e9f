"""``fit_slice_sampling`` against posteriors that are known, and its contract."""

import copy
import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.exceptions import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import (
    ModelListGP,
    MultiTaskGP,
    SingleTaskGP,
    SingleTaskVariationalGP,
)
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.robust_relevance_pursuit_model import (
    RobustRelevancePursuitSingleTaskGP,
)
from botorch.models.transforms.input import Normalize, Warp
from botorch.models.transforms.outcome import Log
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import (
    ExactMarginalLogLikelihood,
    SumMarginalLogLikelihood,
    VariationalELBO,
)
from gpytorch.priors import LogNormalPrior, NormalPrior, UniformPrior
from scipy import stats
from torch import Tensor

from botorch_structured.fit import fit_slice_sampling
from botorch_structured.models import (
    ConditionalGP,
    DecomposedGP,
    MultiTaskABLR,
    TreeStructuredGP,
)
from botorch_structured.models.sampled import chains as chains_module
from botorch_structured.models.sampled.chains import Chains, ChainsWarning
from botorch_structured.models.sampled.coordinates import PriorCoordinates
from botorch_structured.models.sampled.density import ModelDensity
from botorch_structured.models.sampled.sampled_gp import SampledGP

SHORT = {"num_samples": 4, "warmup": 4, "thinning": 2, "num_chains": 2}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Short chains do not converge; those tests that are about it say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChainsWarning)
        yield


def data(n: int = 12, d: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    noise = torch.randn(n, 1, generator=g, dtype=torch.float64)
    return X, (4 * X).sin().sum(-1, keepdim=True) + 0.2 * noise


def with_priors(seed: int = 0, n: int = 12, d: int = 1, **kwargs) -> SingleTaskGP:
    """Lengthscale, noise and mean, all with priors."""
    return with_priors_of(*data(n, d, seed), **kwargs)


def with_priors_of(X: Tensor, Y: Tensor, **kwargs) -> SingleTaskGP:
    mean = ConstantMean(constant_prior=NormalPrior(0.0, 1.0))
    return SingleTaskGP(X, Y, mean_module=mean, **kwargs)


def hold(*parameters: Tensor) -> None:
    for p in parameters:
        p.requires_grad_(False)


def thinned(chains: Chains, index: int) -> np.ndarray:
    draws = chains.coordinates[..., index].reshape(-1)
    return draws[:: math.ceil(len(draws) / chains.ess[index])]


def quadrature(model: SingleTaskGP, grids: list[np.ndarray]) -> np.ndarray:
    """Probabilities of a grid of coordinates, by the definition of the density."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    density = ModelDensity(mll, PriorCoordinates(model))
    mesh = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1)
    log_p = np.array([density.move_to(z) for z in mesh.reshape(-1, len(grids))])
    p = np.exp(log_p - log_p.max()).reshape(mesh.shape[:-1])
    return p / p.sum()


def midpoints(low: float, high: float, cells: int) -> np.ndarray:
    return low + (high - low) * (np.arange(cells) + 0.5) / cells


def test_hyperparameters_against_quadrature() -> None:
    """Noise and lengthscale of a ``SingleTaskGP``: distribution and correlation."""
    model = SingleTaskGP(*data(10, 1))
    hold(model.mean_module.raw_constant)
    # midpoints of cells from the lower bounds on; no mass beyond the upper ends
    grids = [midpoints(math.log(1e-4), 1.5, 35), midpoints(math.log(0.025), 7.5, 45)]
    p = quadrature(model, grids)
    assert max(p[-1].max(), p[:, -1].max()) < 1e-3 * p.max()
    chains = fit_slice_sampling(model, num_samples=4, thinning=700, seed=3).chains
    assert (chains.r_hat < 1.02).all()
    z = chains.coordinates.reshape(-1, 2)
    mean = np.array([(p.sum(1 - i) * grids[i]).sum() for i in (0, 1)])
    for i in (0, 1):
        marginal, grid = p.sum(1 - i), grids[i]
        deviation = math.sqrt((marginal * (grid - mean[i]) ** 2).sum())
        error = deviation / math.sqrt(chains.ess[i])
        assert abs(z[:, i].mean() - mean[i]) < 4 * error
        assert z[:, i].std() == pytest.approx(deviation, rel=0.1)
        # linear within a cell
        cdf = np.concatenate([[0.0], marginal.cumsum()])
        half = 0.5 * (grid[1] - grid[0])
        at = np.concatenate([[grid[0] - half], grid + half])
        draws = thinned(chains, i)
        assert (
            stats.kstest(draws, lambda v, a=at, c=cdf: np.interp(v, a, c)).pvalue > 0.01
        )
    centred = [g - m for g, m in zip(grids, mean, strict=True)]
    covariance = centred[0] @ p @ centred[1]
    scale = np.sqrt((p.sum(1) @ centred[0] ** 2) * (p.sum(0) @ centred[1] ** 2))
    assert np.corrcoef(z.T)[0, 1] == pytest.approx(covariance / scale, abs=0.08)


def test_the_result_is_a_model() -> None:
    X, Y = data()
    result = fit_slice_sampling(SingleTaskGP(X, Y), seed=0, **SHORT)
    assert isinstance(result, SampledGP) and not result.training
    assert len(result.models) == 4
    assert len({m.likelihood.noise.item() for m in result.models}) == 4
    posterior = result.posterior(X[:3])
    assert posterior.mean.shape == (4, 3, 1)
    assert posterior.mixture_mean.shape == (3, 1)
    acqf = LogExpectedImprovement(result, best_f=Y.max())
    assert acqf(X[:5].unsqueeze(1)).shape == (5,)
    assert qLogExpectedImprovement(result, Y.max())(X[:4].view(2, 2, 2)).shape == (2,)


def test_samples_are_thinned_draws_of_all_chains() -> None:
    result = fit_slice_sampling(with_priors(), seed=0, **{**SHORT, "num_samples": 5})
    chains = result.chains
    assert chains.samples.shape == (2, 6, 3)  # ceil(5 / 2) * 2 draws a chain
    index = chains.names.index("covar_module.lengthscale")
    kept = chains.samples[:, 1::2, index]
    expected = [kept[i % 2, i // 2] for i in range(5)]
    actual = [m.covar_module.lengthscale.item() for m in result.models]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    np.testing.assert_array_equal(chains.last, chains.samples[:, -1])


def test_the_given_model_is_left_alone() -> None:
    for model in (SingleTaskGP(*data()), SingleTaskGP(*data()).eval()):
        if not model.training:
            model.posterior(data()[0])  # caches of predictions
        training = model.training
        before = {k: v.clone() for k, v in model.state_dict().items()}
        fit_slice_sampling(model, seed=0, **SHORT)
        assert model.training is training
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert all(p.requires_grad for p in model.parameters())


def test_same_seed_same_samples() -> None:
    """Whatever the global random states are, which are left alone."""

    def run(seed: int | None, other: int) -> np.ndarray:
        torch.manual_seed(other), np.random.seed(other), random.seed(other)
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
        before = copy.deepcopy(states)
        model = SingleTaskGP(*data())
        samples = fit_slice_sampling(model, seed=seed, **SHORT).chains.samples
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert (np.random.get_state()[1] == before[2]).all()
        return samples

    np.testing.assert_array_equal(run(1, 0), run(1, 99))
    assert (run(1, 0) != run(2, 0)).all()
    assert (run(None, 0) != run(None, 0)).all()


def test_chains_go_on_where_they_were(monkeypatch) -> None:
    """Not from the starting point of the model, which is far from the posterior."""
    sample_chain = chains_module.sample_chain
    warmups = []

    def recorded(*args):
        warmups.append(args[4])
        return sample_chain(*args)

    monkeypatch.setattr(chains_module, "sample_chain", recorded)
    first = fit_slice_sampling(with_priors(), seed=0, num_samples=4)
    far = with_priors()
    far.covar_module.lengthscale = 1e4
    far.likelihood.noise = 50.0
    for start in (first, first.chains):
        second = fit_slice_sampling(
            far, seed=1, start_from=start, num_samples=2, warmup=0, thinning=1
        )
        chains = second.chains
        np.testing.assert_array_equal(chains.widths, first.chains.widths)
        assert (chains.log_density > first.chains.log_density.min() - 10).all()
    more = fit_slice_sampling(far, seed=1, start_from=first, num_chains=5)
    assert warmups == [128] * 2 + [0] * 4 + [8] * 5
    assert more.chains.num_chains == 5
    assert len(np.unique(more.chains.samples[:, 0, 0])) == 5


def caught(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in record if issubclass(w.category, ChainsWarning)]


def held(call: Callable[[], object]) -> list[str]:
    return [message for message in caught(call) if "MAP" in message]


def test_good_chains_do_not_warn_and_bad_ones_do() -> None:
    assert caught(lambda: fit_slice_sampling(with_priors(), seed=0)) == []
    start = fit_slice_sampling(with_priors(), seed=0, **SHORT)
    (message,) = caught(
        lambda: fit_slice_sampling(
            with_priors(), seed=0, warmup=0, thinning=2, start_from=_apart(start.chains)
        )
    )
    assert "split R-hat is" in message and "lengthscale" in message
    (message,) = caught(
        lambda: fit_slice_sampling(
            with_priors(), seed=0, num_samples=2, warmup=1, thinning=1
        )
    )
    assert "split R-hat is inf" in message


def _apart(chains: Chains) -> Chains:
    """Chains that ended in places that take long to leave."""
    widths = np.full_like(chains.widths, 1e-3)
    last = chains.last.copy()
    last[0, -1] *= 50.0
    return replace(chains, widths=widths, last=last)


def test_parameters_without_priors_are_set_to_map_and_held() -> None:
    model = SingleTaskGP(*data())
    fitted = SingleTaskGP(*data())
    fit_gpytorch_mll(ExactMarginalLogLikelihood(fitted.likelihood, fitted))
    result = None

    def call() -> None:
        nonlocal result
        result = fit_slice_sampling(model, seed=0, **SHORT)

    (message,) = held(call)
    assert "mean_module.raw_constant" in message
    assert result is not None
    for m in result.models:
        assert m.mean_module.constant.item() == fitted.mean_module.constant.item()
    assert held(lambda: fit_slice_sampling(model, start_from=result, **SHORT)) == []
    hold(model.mean_module.raw_constant)
    assert held(lambda: fit_slice_sampling(model, **SHORT)) == []


def test_a_fit_given_the_previous_draws() -> None:
    """In a loop only what is held is fitted: the most probable mean given a draw."""
    first = fit_slice_sampling(SingleTaskGP(*data()), seed=0, **SHORT)
    result = fit_slice_sampling(SingleTaskGP(*data()), start_from=first, **SHORT)
    constant = result.models[0].mean_module.constant.item()
    best = first.chains.log_density.argmax()
    draw = first.chains.samples.reshape(-1, 3)[best]
    model = SingleTaskGP(*data())
    model.likelihood.noise, model.covar_module.lengthscale = (
        draw[0],
        torch.tensor(draw[1:]),
    )
    with torch.no_grad():
        y = model.train_targets
        K = model.likelihood(model(model.train_inputs[0])).covariance_matrix
        solved = torch.linalg.solve(K, torch.stack([torch.ones_like(y), y], dim=-1))
    expected = (solved[:, 1].sum() / solved[:, 0].sum()).item()
    assert constant == pytest.approx(expected, abs=1e-3)
    assert all(p.requires_grad for p in result.models[0].parameters())


def hierarchical(cls: type) -> Callable[[], object]:
    def make() -> object:
        X, Y = data(12, 3)
        X[:, 0] = (X[:, 0] > 0.5).double()
        return cls(X, Y, {0: {0: [1], 1: [2]}})

    return make


def far(tree: bool, bounds: bool) -> SingleTaskGP:
    """Inputs far from the unit cube, and a model that has seen them transformed."""
    X, Y = data(12, 3)
    X = 20.0 + 30.0 * X
    X[:, 0] = (X[:, 0] > 35.0).double()
    limits = torch.tensor([[0.0, 10.0, 10.0], [1.0, 60.0, 60.0]], dtype=torch.float64)
    transform = Normalize(3, bounds=limits if bounds else None)
    if tree:
        dependencies = {0: {0: [1], 1: [2]}}
        model = ConditionalGP(X, Y, dependencies, input_transform=transform)
    else:
        model = SingleTaskGP(X, Y, input_transform=transform)
    model.eval().posterior(torch.full((1, 3), 30.0, dtype=torch.float64))
    return model


def multi_task() -> MultiTaskGP:
    X, Y = data()
    X[:, 0] = torch.arange(12) % 2
    return MultiTaskGP(X, Y, task_feature=0)


GPS: dict[str, Callable[[], Any]] = {
    "conditional": hierarchical(ConditionalGP),
    "tree": hierarchical(TreeStructuredGP),
    "multi-task": multi_task,
    "normalize": lambda: SingleTaskGP(*data(), input_transform=Normalize(2)),
    "learned bounds, evaluated": lambda: far(tree=False, bounds=False),
    "bounds, evaluated": lambda: far(tree=True, bounds=True),
    "fixed noise": lambda: SingleTaskGP(*data(), torch.full((12, 1), 0.01).double()),
    "float32": lambda: SingleTaskGP(*(t.float() for t in data())),
}


@pytest.mark.parametrize("make", GPS.values(), ids=GPS)
def test_any_gp_with_priors(make: Callable[[], SingleTaskGP]) -> None:
    model = make()
    result = fit_slice_sampling(model, seed=0, num_samples=2, warmup=1, thinning=1)
    X = data(12, 3)[0] if len(model.train_inputs[0][0]) == 3 else data()[0]
    if isinstance(model, MultiTaskGP):
        X = X[:, 1:]
    X = X[:4].to(model.train_targets)
    posterior, chains = result.posterior(X), result.chains
    single = X.dtype == torch.float32
    for i, sample in enumerate(result.models):
        fresh = make()
        fresh.train().load_state_dict(sample.state_dict())
        density = ModelDensity(
            ExactMarginalLogLikelihood(fresh.likelihood, fresh), PriorCoordinates(fresh)
        )
        c = density.coordinates
        draw = chains.samples[i, 0]
        np.testing.assert_allclose(c.read_values(), draw, rtol=1e-4 if single else 1e-9)
        # priors are in single precision in a double model too
        expected = density.move_to(c.to_position(draw))
        assert chains.log_density[i, 0] == pytest.approx(
            expected, rel=1e-3 if single else 1e-5
        )
        plain = fresh.eval().posterior(X)
        tolerance = (
            {"rtol": 1e-2, "atol": 1e-3} if single else {"rtol": 1e-6, "atol": 1e-8}
        )
        torch.testing.assert_close(posterior.mean[i], plain.mean, **tolerance)
        torch.testing.assert_close(posterior.variance[i], plain.variance, **tolerance)


def test_a_learned_input_transform_is_sampled() -> None:
    X, Y = data()
    warp = Warp(d=2, indices=[0, 1], concentration0_prior=LogNormalPrior(0.0, 0.5))
    hold(warp.concentration1)
    model = SingleTaskGP(X, Y, input_transform=warp)
    result = fit_slice_sampling(model, seed=0, **SHORT)
    values = {m.input_transform.concentration0[..., 0].item() for m in result.models}
    assert len(values) == 4
    for m in result.models:
        # in evaluation mode a model holds inputs as its own transform makes them
        torch.testing.assert_close(m.train_inputs[0], m.input_transform(X))


def test_lists_of_models() -> None:
    X, Y = data()
    models = ModelListGP(SingleTaskGP(X, Y), SingleTaskGP(X, -Y))
    mll = SumMarginalLogLikelihood(models.likelihood, models)
    for given in (models, mll):
        result = fit_slice_sampling(given, seed=0, **SHORT)
        assert isinstance(result, ModelListGP) and len(result.models) == 2
        assert result.posterior(X[:3]).mean.shape[-2:] == (3, 2)
    again = fit_slice_sampling(models, seed=0, start_from=result, **SHORT)
    assert len(again.models) == 2
    # no member's stream is that of another one, nor with another seed
    other = fit_slice_sampling(
        ModelListGP(with_priors(), with_priors()), seed=0, **SHORT
    )
    later = fit_slice_sampling(
        ModelListGP(with_priors(), with_priors()), seed=1, **SHORT
    )
    draws = [m.chains.last[0, 0] for r in (other, later) for m in r.models]
    assert len(set(draws)) == 4
    with pytest.raises(ValueError, match="ModelList of 2"):
        fit_slice_sampling(models, start_from=result.models[0])


def test_known_components_stay() -> None:
    """A sum of parts is sampled part by part, and is the same sum afterwards."""
    X, Y = data()
    cost = GenericDeterministicModel(lambda X: -10.0 * X[..., :1])
    model = DecomposedGP(with_priors_of(X, Y), cost, with_priors_of(X, -2.0 * Y))
    before = model.posterior(X[:3]).mean
    mll = SumMarginalLogLikelihood(model.likelihood, model)
    result = None
    for given in (model, mll):
        result = fit_slice_sampling(given, seed=0, start_from=result, **SHORT)
        assert isinstance(result, DecomposedGP) and result.num_outputs == 1
        assert [type(part) for part in result.components] == [
            SampledGP,
            GenericDeterministicModel,
            SampledGP,
        ]
        posterior = result.posterior(X[:3])
        parts = [m.posterior(X[:3]).mixture_mean for m in result.models]
        torch.testing.assert_close(posterior.mixture_mean, sum(parts) - 10 * X[:3, :1])
        acqf = qLogExpectedImprovement(result, best_f=Y.max())
        assert acqf(X[:2].unsqueeze(1)).shape == (2,)
    assert all(m.chains is not None for m in result.models)
    torch.testing.assert_close(model.posterior(X[:3]).mean, before)


@pytest.mark.parametrize(
    "argument, value",
    [
        ("num_samples", 0),
        ("thinning", 0),
        ("num_chains", 0),
        ("warmup", -1),
        ("thinning", 1.5),
        ("num_samples", True),
        ("seed", -1),
        ("seed", "a"),
    ],
)
def test_arguments_out_of_range(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{argument}: expected a.* integer.*{value}"):
        fit_slice_sampling(SingleTaskGP(*data()), **{argument: value})


def without_rows() -> SingleTaskGP:
    X, Y = data()
    return with_priors_of(X[:0], Y[:0], outcome_transform=None)


def variational() -> SingleTaskVariationalGP:
    return SingleTaskVariationalGP(*data())


def elbo() -> VariationalELBO:
    model = variational()
    return VariationalELBO(model.likelihood, model.model, num_data=12)


def network() -> MultiTaskABLR:
    X = torch.rand(8, 2, dtype=torch.float64)
    return MultiTaskABLR(X, X.sum(-1, keepdim=True), None)


def batch(*shape: int) -> SingleTaskGP:
    X = data()[0].expand(*shape[:-2], 12, 2)
    return SingleTaskGP(X, torch.rand(shape, dtype=torch.float64))


def without_priors() -> SingleTaskGP:
    parts = {"likelihood": GaussianLikelihood(), "covar_module": RBFKernel()}
    return SingleTaskGP(*data(), **parts)


def logarithmic() -> SingleTaskGP:
    return with_priors_of(data()[0], data()[1].exp(), outcome_transform=Log())


PURSUIT = "can be copied, got RobustRelevancePursuitSingleTaskGP"
UNSUITABLE = {
    "number": (lambda: 3, ValueError, "an exact GP with rows.*got int"),
    "outputs": (lambda: batch(12, 2), ValueError, "one output and no batch.*ModelList"),
    "batch": (lambda: batch(2, 12, 1), ValueError, "one output and no batch"),
    "network": (network, ValueError, "mll_or_model: expected at most 1000 values"),
    "no priors": (without_priors, ValueError, "at least one prior"),
    "log": (logarithmic, UnsupportedError, "outcome transform.*Log"),
    "pursuit": (
        lambda: RobustRelevancePursuitSingleTaskGP(*data()), UnsupportedError, PURSUIT
    ),
    "variational": (variational, ValueError, "exact GP.*got SingleTaskVariational"),
    "elbo": (elbo, ValueError, "an exact GP with rows"),
    "no rows": (without_rows, ValueError, "an exact GP with rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUITABLE)
@pytest.mark.filterwarnings("ignore")
def test_models_that_cannot_be_a_result_are_refused_at_once(name, monkeypatch) -> None:
    """Not after all the sampling; also where another model of a list comes first."""
    make, error, message = UNSUITABLE[name]
    monkeypatch.setattr(chains_module, "sample_chain", None)
    with pytest.raises(error, match=message):
        fit_slice_sampling(make(), seed=0)
    if name in ("log", "no rows"):
        with pytest.raises(error, match=message):
            fit_slice_sampling(ModelListGP(with_priors(), make()), seed=0)


def test_a_held_mean_beside_a_prior_with_an_end() -> None:
    """A fit of everything may step out of its support."""
    kernel = RBFKernel(ard_num_dims=2, lengthscale_prior=UniformPrior(0.1, 1.0))
    kernel.lengthscale = 0.95
    model = SingleTaskGP(*data(), covar_module=kernel)
    chains = fit_slice_sampling(model, seed=0, **SHORT).chains
    lengths = chains.samples[..., 1:]
    assert (lengths >= 0.1).all() and (lengths < 1.0).all()


@pytest.mark.parametrize(
    ("floor", "start"), [(1e-4, 1e-4), (3e-3, 3e-3), (0.7, 0.7), (1e-30, 1e-9)]
)
def test_chains_may_begin_on_a_bound_or_near_a_singular_matrix(
    floor: float, start: float
) -> None:
    """Where exp(log(floor)) is a rounding error below it; at copies of each row."""
    X, Y = data()
    constraint = GreaterThan(floor, transform=None, initial_value=start)
    prior = LogNormalPrior(-4.0, 1.0)
    noise = GaussianLikelihood(noise_prior=prior, noise_constraint=constraint)
    twice = torch.cat([X, X]), torch.cat([Y, Y + 0.1])
    model = SingleTaskGP(*twice, likelihood=noise)
    chains = fit_slice_sampling(model, seed=0, **SHORT).chains
    assert np.isfinite(chains.log_density).all()
    assert (chains.samples[..., 0] >= floor).all()


def test_a_start_of_other_parameters_raises() -> None:
    first = fit_slice_sampling(SingleTaskGP(*data()), seed=0, **SHORT)
    with pytest.raises(ValueError, match=r"same parameters.*lengthscale\[2\]"):
        fit_slice_sampling(SingleTaskGP(*data(12, 3)), start_from=first)
    with pytest.raises(ValueError, match="SampledGP made by fit_slice_sampling"):
        fit_slice_sampling(SingleTaskGP(*data()), start_from=SampledGP(first.models))


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    fit_slice_sampling(with_priors(), seed=0, **SHORT)
    assert capsys.readouterr().err == ""  # over before a bar could be read
    fit_slice_sampling(with_priors(), seed=0, progress=True, **SHORT)
    assert "slice sampling" in capsys.readouterr().err
    fit_slice_sampling(with_priors(), seed=0, progress=False, **SHORT)
    assert capsys.readouterr().err == ""
