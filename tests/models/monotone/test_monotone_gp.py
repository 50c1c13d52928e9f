"""MonotoneGP: BoTorch's contract, signs, transforms, and what is kept when."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Power, Standardize
from botorch.models.transforms.input import AffineInputTransform, InputTransform, Log10
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import (
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RBFKernelGrad,
    ScaleKernel,
)
from gpytorch.likelihoods import StudentTLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from model_test_case import StructuredModelTestCase, close
from torch import Tensor

from botorch_structured.models import MonotoneGP
from botorch_structured.models.monotone import monotone_gp as monotone_inference
from botorch_structured.models.monotone.expectation_propagation import (
    EPConvergenceWarning,
    expectation_propagation,
)
from botorch_structured.suggest import leave_one_out_log_density

GRID = torch.cartesian_prod(*[torch.linspace(0.0, 1.0, 4, dtype=torch.float64)] * 2)


pytestmark = pytest.mark.usefixtures("double")


def make_data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rises with the first column, waves with the second."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=g)
    f = torch.tanh(2.0 * X[:, :1]) + 0.3 * torch.sin(5.0 * X[:, 1:])
    return X, f + 0.05 * torch.randn(n, 1, generator=g)


def fitted(model: Any, **options: Any) -> Any:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": options})
    return model


class TestContract(StructuredModelTestCase):
    dim = 2
    free_columns = [0, 1]
    likely = -8.0
    model_kwargs: dict[str, Any] = {"monotone": {0: 1}, "virtual_X": GRID}

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        return make_data(n, seed)

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> MonotoneGP:
        return MonotoneGP(X, Y, **(self.model_kwargs | kwargs))

    def arguments_at(self, scale: Tensor) -> dict[str, Any]:
        return {"virtual_X": self.model_kwargs["virtual_X"] * scale}

    def load(self, model: MonotoneGP, fitted: MonotoneGP) -> None:
        """With the sites of fewer data, as those of a conditioned model."""
        super().load(model, fitted)
        model.eval()
        for name in ("virtual_points", "_site_scale", "_site_target"):
            setattr(model, name, getattr(fitted, name))
        model._clear_cache()

    def test_leave_one_out_is_a_refit(self) -> None:
        """With the sites of all rows, as those of a conditioned model."""
        X, Y = self.make_data(10)
        Y = Y - 2.0 * X[:, :1]  # so that sites say something
        model = self.make_model(X, Y, outcome_transform=None).eval()
        mean = loo_cv(model).posterior.mean.reshape(10)
        density = leave_one_out_log_density(model)
        for i in (0, 7):
            keep = torch.arange(10) != i
            other = self.make_model(X[keep], Y[keep], outcome_transform=None)
            self.load(other, model)
            expected = other.posterior(X[i : i + 1], observation_noise=True)
            close(mean[i], expected.mean.squeeze(), 1e-5, 1e-6)
            normal = torch.distributions.Normal(
                expected.mean.squeeze(), expected.variance.squeeze().sqrt()
            )
            close(density[i], normal.log_prob(Y[i, 0]), 1e-5, 1e-6)


@pytest.mark.parametrize(
    "kwargs", [{"monotone": {}}, {"monotone": {0: 1}, "virtual_X": torch.zeros(0, 2)}]
)
def test_without_signs_it_is_a_single_task_gp(kwargs: dict[str, Any]) -> None:
    X, Y = make_data(12)
    model = MonotoneGP(X, Y, signs_in_fit=True, **kwargs)
    peer = SingleTaskGP(X, Y)
    assert str(model.covar_module) == str(peer.covar_module)
    fitted(model), fitted(peer)
    a, b = model.state_dict(), peer.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    points = make_data(3, seed=4)[0]
    expected = peer.posterior(points).distribution
    actual = model.posterior(points).distribution
    assert torch.equal(actual.mean, expected.mean)
    # a covariance goes back to the outcomes' scale as a whole, not row by row
    torch.testing.assert_close(
        actual.covariance_matrix, expected.covariance_matrix, rtol=1e-14, atol=1e-16
    )
    assert model.ep_result is None and len(model.virtual_points) == 0
    # what it says of derivatives it says without signs, too
    probability = model.probability_monotone(points, 0)
    step = torch.tensor([1e-4, 0.0])
    rise = model.posterior(points + step).mean - model.posterior(points - step).mean
    assert torch.equal(probability > 0.5, rise > 0.0)
    slope = model.derivative_posterior(points, 0).mean
    torch.testing.assert_close(slope, rise / 2e-4, rtol=1e-5, atol=1e-5)
    assert model.subset_output([0]).posterior(points).mean.shape == (3, 1)
    peer.load_state_dict(a)


@pytest.mark.parametrize("kwargs", [{}, {"virtual_X": GRID}])
def test_the_fit_is_to_the_data(kwargs: dict[str, Any]) -> None:
    """The objective and its optimum are those without signs."""
    X, Y = make_data(9)
    # the second column falls and rises: the sign is told against the data
    model, peer = MonotoneGP(X, Y, {0: 1, 1: 1}, **kwargs), SingleTaskGP(X, Y)
    values = []
    for m in (model, peer):
        mll = ExactMarginalLogLikelihood(m.likelihood, m).train()
        values.append(mll(m(*m.train_inputs), m.train_targets))
    assert torch.equal(*values)
    # value and gradient are computed in another order, so their last digits differ,
    # which decide where L-BFGS-B ends with its default tolerances
    for m in (model, peer):
        fitted(m, ftol=1e-10, gtol=1e-5)
    for a, b in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    points = make_data(5, seed=3)[0]
    assert not torch.equal(model.posterior(points).mean, peer.posterior(points).mean)


@pytest.mark.parametrize("nu", [0.5, 1e-2, 1e-6])
@pytest.mark.parametrize("noise_free", [False, True])
def test_data_against_the_sign(nu: float, noise_free: bool) -> None:
    """No warning, no NaN; with noise to be learned, that is what the slope becomes."""
    X, _ = make_data(12)
    X = X[:, :1]
    Y = -3.0 * X
    Yvar = torch.full_like(Y, 1e-8) if noise_free else None
    with warnings.catch_warnings():
        warnings.simplefilter("error", EPConvergenceWarning)
        data = {"train_Yvar": Yvar, "nu": nu, "virtual_X": "grid"}
        model = fitted(MonotoneGP(X, Y, {0: 1}, signs_in_fit=True, **data))
        if noise_free and nu == 1e-6:  # neither can yield: EP may not converge
            warnings.simplefilter("ignore", EPConvergenceWarning)
        default = fitted(MonotoneGP(X, Y, {0: 1}, train_Yvar=Yvar, nu=nu))
    points = torch.linspace(0.0, 1.0, 7).unsqueeze(-1)
    assert default.ep_result.converged or (noise_free and nu == 1e-6)
    posterior = default.posterior(points)
    assert posterior.mean.isfinite().all() and (posterior.variance > 0.0).all()
    assert len(default.virtual_points) > 0
    assert model.ep_result.converged
    posterior = model.posterior(points)
    assert posterior.mean.isfinite().all() and (posterior.variance > 0.0).all()
    assert (posterior.mean.abs() < 10.0).all()
    if not noise_free:
        assert (posterior.mean.diff(dim=0) > 0.0).all()
        assert model.likelihood.noise > 0.5


def test_transformed_inputs_are_inputs() -> None:
    """The same model on raw inputs with Normalize and on normalised inputs."""
    X, Y = make_data(10)
    bounds = torch.tensor([[-3.0, 10.0], [5.0, 40.0]])
    raw = bounds[0] + X * (bounds[1] - bounds[0])
    points = make_data(4, seed=3)[0]
    raw_points = bounds[0] + points * (bounds[1] - bounds[0])
    expected = MonotoneGP(X, Y, {0: 1}).eval()
    for kwargs in (
        {"bounds": bounds},
        {},
        {"virtual_X": bounds[0] + expected.virtual_points * (bounds[1] - bounds[0])},
    ):
        model = MonotoneGP(
            raw, Y, {0: 1}, input_transform=Normalize(2, bounds=bounds), **kwargs
        ).eval()
        torch.testing.assert_close(model.virtual_points, expected.virtual_points)
        torch.testing.assert_close(
            model.posterior(raw_points).mean, expected.posterior(points).mean
        )
        model.train()
        assert torch.equal(model.train_inputs[0], raw)


@pytest.mark.parametrize(
    "transform",
    [
        Normalize(2),
        Log10([0]),
        AffineInputTransform(2, torch.tensor([-2.0, 1.0]), torch.tensor([1.0, 0.0])),
        None,
    ],
)
@pytest.mark.parametrize("outcome", ["standardize", "none", "reversed"])
def test_signs_are_those_of_raw_outcomes(
    transform: InputTransform | None, outcome: str
) -> None:
    """Also where a transform reverses inputs, or outcomes."""
    X, Y = make_data(10)
    X, Y = X + 0.1, Y + 2.0
    outcome_transform: OutcomeTransform | None = {
        "standardize": Standardize(1),
        "none": None,
        "reversed": Power(-1.0),
    }[outcome]
    model = MonotoneGP(
        X,
        Y,
        {0: 1},
        input_transform=copy.deepcopy(transform),
        outcome_transform=outcome_transform,
        virtual_X="grid",
    )
    reverses = (type(transform) is AffineInputTransform) != (outcome == "reversed")
    assert (model.signs_at(X) == (-1.0 if reverses else 1.0)).all()
    assert (model.probability_monotone(X, 0) > 0.9).all()
    # and so are slopes: means and joint covariances of differences of values
    if outcome == "reversed":
        with pytest.raises(ValueError, match="outcome_transform: expected a linear"):
            model.derivative_posterior(X, 0)
        return
    points = X[:4]
    D = torch.cat([torch.eye(4), -torch.eye(4)], dim=-1) / 2e-4
    for column in (0, 1):
        step = torch.zeros(2)
        step[column] = 1e-4
        joint = model.posterior(torch.cat([points + step, points - step])).distribution
        derivative = model.derivative_posterior(points, column)
        mean = derivative.mean.squeeze(-1)
        close(mean, D @ joint.mean, 1e-5, 1e-5)
        # covariances of size 1e-2 divided by 4e-8
        covariance = derivative.distribution.covariance_matrix
        close(covariance, D @ joint.covariance_matrix @ D.mT, 1e-4, 1e-5)
        alone = model.derivative_posterior(points.unsqueeze(-2), column)
        close(alone.mean.flatten(), mean, 1e-9, 1e-9)


def test_derivatives_of_several_outputs() -> None:
    X, Y = make_data(10)
    Y = torch.cat([Y, 3.0 * Y.square()], dim=-1)
    model = MonotoneGP(X, Y, {0: 1}, virtual_X=GRID)
    points = make_data(4, seed=6)[0]
    both = model.derivative_posterior(points, 0)
    probability = model.probability_monotone(points, 0)
    assert both.mean.shape == both.variance.shape == probability.shape == (4, 2)
    for i in range(2):
        one = MonotoneGP(X, Y[:, i : i + 1], {0: 1}, virtual_X=GRID)
        alone = one.derivative_posterior(points, 0)
        torch.testing.assert_close(both.mean[:, i : i + 1], alone.mean)
        torch.testing.assert_close(both.variance[:, i : i + 1], alone.variance)
        torch.testing.assert_close(
            probability[:, i : i + 1], one.probability_monotone(points, 0)
        )
        part = model.subset_output([i])
        assert part.posterior(points).mean.shape == (4, 1)
        torch.testing.assert_close(part._site_target, one._site_target)


def fit_best_of_three(model: MonotoneGP) -> MonotoneGP:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, max_attempts=3, pick_best_of_all_attempts=True)
    return model


def fit_after_a_failure(model: MonotoneGP) -> MonotoneGP:
    """BoTorch writes a state back, which has other sites than the attempt found."""
    answers = iter([False])

    def optimise(mll: Any, **kwargs: Any) -> Any:
        result = fit_gpytorch_mll_scipy(mll, **kwargs)
        mll.eval()  # as an optimiser of a user's own may
        warnings.warn("a warning", OptimizationWarning, stacklevel=1)
        return result

    fit_gpytorch_mll(
        ExactMarginalLogLikelihood(model.likelihood, model),
        optimizer=optimise,
        warning_handler=lambda warning: next(answers, True),
    )
    return model


def set_hyperparameters(model: MonotoneGP) -> MonotoneGP:
    model.train()
    model.covar_module.lengthscale = 0.4
    model.likelihood.noise = 0.05
    return model.eval()


def set_data(model: MonotoneGP) -> MonotoneGP:
    model.set_train_data(model.train_inputs[0][2:], model.train_targets[2:], False)
    return model


def load(model: MonotoneGP) -> MonotoneGP:
    """Of other data, and within another module."""
    other = MonotoneGP(*make_data(7, seed=1), {0: -1}, outcome_transform=None)
    state = fitted(other, maxiter=5).state_dict()
    state = {f"0.{name}": value for name, value in state.items()}
    torch.nn.ModuleList([model]).load_state_dict(state)
    return model


def set_nu(model: MonotoneGP) -> MonotoneGP:
    model.nu = 5.0
    model.update_sites()
    return model


def fit_on(model: MonotoneGP) -> MonotoneGP:
    more = model.condition_on_observations(*make_data(3, seed=8))
    return more.train().eval()


CHANGES = [
    fit_best_of_three,
    fit_after_a_failure,
    set_hyperparameters,
    set_data,
    load,
    set_nu,
    fit_on,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("virtual_X", [None, GRID], ids=["adaptive", "grid"])
def test_sites_are_those_of_the_present_model(
    change: Any, virtual_X: Tensor | None
) -> None:
    """After any change a model is one made of its data and hyperparameters."""
    kwargs: dict[str, Any] = {"virtual_X": virtual_X, "outcome_transform": None}
    model = MonotoneGP(*make_data(10), {0: -1}, **kwargs)
    points = make_data(4, seed=6)[0]
    before = model.posterior(points).mean
    model = change(model)
    X, y = model.train_inputs[0], model.train_targets
    fresh = MonotoneGP(X, y.unsqueeze(-1), {0: -1}, nu=model.nu, **kwargs)
    for own, value in zip(fresh.parameters(), model.parameters(), strict=True):
        own.data.copy_(value.data)
    found, expected = model.posterior(points), fresh.posterior(points)
    assert not torch.allclose(found.mean, before)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    assert torch.equal(model.virtual_points, fresh.virtual_points)
    copied = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(copied.posterior(points).mean, expected.mean)


class Higher(MonotoneGP):
    def forward(self, x: Tensor) -> MultivariateNormal:
        prior = super().forward(x)
        return MultivariateNormal(prior.mean + x.sum(-1), prior.lazy_covariance_matrix)


def test_the_prior_of_a_subclass_counts() -> None:
    """In predictions, in batches of them, and in the evidence."""
    X, Y = make_data(8)
    options = {"virtual_X": GRID, "outcome_transform": None}
    model = Higher(X, Y, {0: 1}, **options).eval()
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    prior = model(*model.train_inputs)
    torch.testing.assert_close(model.compute_custom_loss(mll), -mll(prior, Y[:, 0]))
    assert fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 3}})
    points = make_data(6, seed=3)[0].reshape(3, 2, 2)
    found = model.posterior(points)
    prior = model.forward(torch.cat([X.expand(3, -1, -1), points], dim=-2))
    mean, K = prior.mean, prior.covariance_matrix
    noisy = K[:, :8, :8] + model.likelihood.noise * torch.eye(8)
    gain = torch.linalg.solve(noisy, K[:, :8, 8:]).mT
    expected = mean[:, 8:, None] + gain @ (Y - mean[:, :8, None])
    torch.testing.assert_close(found.mean, expected, rtol=1e-7, atol=1e-7)
    covariance = K[:, 8:, 8:] - gain @ K[:, :8, 8:]
    variance = covariance.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    torch.testing.assert_close(found.variance, variance, rtol=1e-6, atol=1e-8)


def test_without_convergence_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One where a model is first used, and one after a fit, none within."""
    few = partial(expectation_propagation, max_sweeps=1)
    monkeypatch.setattr(monotone_inference, "expectation_propagation", few)
    model = MonotoneGP(*make_data(10), {0: 1}, virtual_X=GRID)
    with pytest.warns(EPConvergenceWarning, match="1 of 1 models: residual"):
        model.posterior(GRID)
    assert not model.ep_result.converged
    with pytest.warns(EPConvergenceWarning) as caught:
        fitted(model, maxiter=3)
    ours = [w for w in caught if issubclass(w.category, EPConvergenceWarning)]
    assert len(ours) == 1
    assert model.posterior(GRID).mean.isfinite().all()


def test_adaptive_points() -> None:
    """None where data say it, and afterwards no sign is in doubt anywhere."""
    g = torch.Generator().manual_seed(2)
    X = torch.rand(8, 1, generator=g) ** 3  # few on the right
    Y = X.square() + 0.02 * torch.randn(8, 1, generator=g)
    model = MonotoneGP(X, Y, {0: 1})
    model.min_probability = 0.9
    first = len(model.eval().virtual_points)
    assert 1 <= first < 10
    points = torch.linspace(0.0, 1.0, 50).unsqueeze(-1)
    assert (model.probability_monotone(points, 0) > 0.85).all()
    fitted(model)
    assert (model.probability_monotone(points, 0) > 0.85).all()


def test_many_signs_are_imposed_where_they_are_improbable() -> None:
    """Fifty signs at each of forty points would take minutes."""
    X = torch.rand(60, 50, generator=torch.Generator().manual_seed(0))
    Y = (6.0 * X[:, :3]).sin().sum(-1, keepdim=True)
    model = fitted(MonotoneGP(X, Y, dict.fromkeys(range(50), 1)))
    precision = model.ep_result.precision
    assert 20 < int((precision > 0.0).sum()) <= 50 < len(precision)
    assert model.ep_result.converged
    assert model.posterior(X).mean.isfinite().all()


@pytest.mark.parametrize("batched", [False, True])
def test_adaptive_points_are_those_of_each_output(batched: bool) -> None:
    """Points of the others would make it too sure of itself."""
    X = torch.rand(20, 3, generator=torch.Generator().manual_seed(1))
    rise, wave = X[:, :1], (9.0 * X[:, :1]).sin()
    Y = torch.cat([X.sum(-1, keepdim=True) + 0.8 * wave, rise, rise + 0.5 * wave], -1)
    signs, points = {0: 1, 1: 1}, torch.rand(7, 3)
    alone = [MonotoneGP(X, Y[:, i : i + 1], signs).eval() for i in range(3)]
    assert len({len(model.virtual_points) for model in alone}) == 3
    if batched:
        together = MonotoneGP(X.expand(3, -1, -1), Y.mT.unsqueeze(-1), signs)
        found, axis = together.posterior(points), 0
    else:
        together = MonotoneGP(X, Y, signs)
        found, axis = together.posterior(points), -1
    for i, model in enumerate(alone):
        expected = model.posterior(points)
        for name in ("mean", "variance"):
            own = getattr(found, name).select(axis, i).flatten()
            other = getattr(expected, name).flatten()
            torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-10)


class Rotated(Normalize):
    def _transform(self, X: Tensor) -> Tensor:
        return super()._transform(X) @ torch.tensor([[0.8, 0.6], [-0.6, 0.8]])


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"input_transform": Rotated(2)}, r"column 0 moves one .* moves \[0, 1\]"),
        ({"monotone": {2: 1}}, "monotone: expected columns from 0 to 1, got 2"),
        ({"monotone": {-1: 1}}, "monotone: expected columns from 0 to 1, got -1"),
        ({"monotone": {0: 2}}, r"\+1 \(increasing\) or -1 .* column 0, got 2"),
        ({"nu": 0.0}, "nu: expected a positive number, got 0.0"),
        ({"nu": float("nan")}, "nu: expected a positive number, got nan"),
        ({"nu": "small"}, "nu: expected a positive number, got 'small'"),
        ({"virtual_X": GRID[:, :1]}, r"virtual_X: expected v x 2 .*, got \(16, 1\)"),
        ({"virtual_X": GRID * float("nan")}, "virtual_X: expected finite"),
        ({"virtual_X": "near"}, 'virtual_X: expected a tensor, "adaptive" or "grid"'),
        ({"bounds": GRID}, r"bounds: expected a tensor, 2 x 2 .*, got \(16, 2\)"),
        ({"bounds": torch.ones(2, 2)}, "bounds: expected finite lower bounds below"),
        ({"covar_module": MaternKernel(nu=1.5)}, "covar_module: .* nu=1.5"),
        ({"covar_module": RBFKernelGrad()}, "covar_module: .* got RBFKernelGrad"),
        ({"covar_module": ScaleKernel(PeriodicKernel())}, "covar_module: .* got Per"),
        ({"covar_module": RBFKernel() + RBFKernel()}, "covar_module: .* got Additive"),
        (
            {"covar_module": RBFKernel(active_dims=(1,))},
            r"covar_module: expected a kernel that sees column 0, .* \[1\]",
        ),
        ({"likelihood": StudentTLikelihood()}, "likelihood: expected a Gaussian"),
        ({"monotone": [0]}, r"monotone: expected {column: .*}, got a list: \[0\]"),
        ({"monotone": None}, "monotone: expected .*, got a NoneType"),
        ({"bounds": [[0.0, 0.0], [1.0, 1.0]]}, "bounds: expected a tensor, 2 x 2"),
        ({"virtual_X": np.zeros((3, 2))}, "virtual_X: expected a tensor, "),
        ({"nu": True}, "nu: expected a positive number, got True"),
        ({"signs_in_fit": True, "virtual_X": "adaptive"}, 'virtual_X: expected "grid"'),
    ],
)
def test_errors(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MonotoneGP(*make_data(6), **({"monotone": {0: 1}} | kwargs))


def test_errors_of_methods() -> None:
    X, Y = make_data(6)
    plain = MonotoneGP(X, Y, {}, covar_module=MaternKernel(1.5))
    with pytest.raises(ValueError, match="monotone: expected at least one sign"):
        plain.update_sites()
    with pytest.raises(ValueError, match="nu=1.5"):
        plain.derivative_posterior(X, 0)
    first = MonotoneGP(X, Y, {0: 1}, covar_module=RBFKernel(active_dims=(0,)))
    with pytest.raises(ValueError, match=r"expected a kernel that sees column 1, .*0"):
        first.derivative_posterior(X, 1)


@pytest.mark.parametrize("outputs", [1, 2])
def test_as_published(outputs: int) -> None:
    """Section 2: a mean of zero, an isotropic kernel with a variance, the grid, and
    both fitted to the evidence of data and signs."""
    X, Y = make_data(4)
    model = MonotoneGP.as_published(X, Y.expand(-1, outputs), {0: 1})
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    rows = model(*model.train_inputs)
    added = sum(term.loss() for term in model.added_loss_terms())
    expected = model.likelihood(rows).log_prob(model.train_targets) + added
    assert model.covar_module.base_kernel.lengthscale.shape[-1] == 1
    torch.testing.assert_close(mll(rows, model.train_targets), expected / 4)
    fit_gpytorch_mll(mll)
    assert model.ep_result.converged.all()
    assert len(model.virtual_points) == 100
    assert (model.probability_monotone(GRID, 0) > 0.8).all()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(-4.0)  # short lengthscales: far from data, the mean of zero
    far = torch.full((1, 2), 30.0)
    assert model.posterior(far).mean.abs().max() < 1e-6
    with pytest.raises(TypeError, match=r"multiple values .* 'nu'"):
        MonotoneGP.as_published(X, Y, {0: 1}, nu=0.2)
    with pytest.raises(ValueError, match=r"^train_X: expected a torch.Tensor, got"):
        MonotoneGP.as_published(X.tolist(), Y, {0: 1})


POINTS = torch.tensor([[0.1, 0.2], [0.8, 0.5]], dtype=torch.float64)


def rising_data(n: int = 6) -> tuple[Tensor, Tensor]:
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0))
    return X, 1.0 + X[:, :1] + 0.1 * torch.sin(9.0 * X[:, 1:])


@pytest.mark.parametrize("rows", ["one", "constant"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_reversing_transform_of_outcomes_without_order(rows: str, outputs: int) -> None:
    """Data cannot tell that the order is reversed; the transform can."""
    X, Y = rising_data()
    X, Y = (X[:1], Y[:1]) if rows == "one" else (X, torch.full_like(Y, 2.0))
    Y = Y.expand(-1, outputs)
    reverse = Power(-1.0)
    model = MonotoneGP(X, Y, {0: 1, 1: -1}, outcome_transform=reverse, virtual_X=POINTS)
    signs = model.signs_at(POINTS)
    assert signs.flatten().tolist() == [-1.0, -1.0, 1.0, 1.0] * outputs
    for column in (0, 1):
        assert (model.probability_monotone(POINTS, column) > 0.7).all()


def test_no_virtual_point_is_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where data contradict the sign, so that it remains in doubt there."""
    monkeypatch.setattr(monotone_inference, "_CANDIDATES", 8)
    X, _ = rising_data()
    model = MonotoneGP(X, -3.0 * X[:, :1], {0: 1}, nu=1.0)
    model.min_probability = 0.9
    model.likelihood.noise = 1e-4
    assert len(model.eval().virtual_points.unique(dim=0)) == 8
    monkeypatch.setattr(monotone_inference, "_MOST_SIGNS", 5)
    model.update_sites()
    assert len(model.virtual_points) == 5


def test_data_at_the_end_of_the_unit_cube_are_within_it() -> None:
    X, Y = rising_data()
    X[0] = 1.0
    grid = MonotoneGP(X, Y, {0: 1}, virtual_X="grid").virtual_points
    assert torch.equal(grid.amin(0), torch.zeros(2))
    assert torch.equal(grid.amax(0), torch.ones(2))


def test_batch_of_input_transforms() -> None:
    """Elements share virtual points on the model's axes, so these must agree."""
    X, Y = rising_data()
    X, Y = torch.stack([X, 3.0 * X]), torch.stack([Y, Y])

    def transform() -> Normalize:
        return Normalize(2, batch_shape=torch.Size([2]))

    bounds = torch.tensor([[0.0, 0.0], [3.0, 3.0]])
    kwargs = {"virtual_X": "grid", "bounds": bounds}
    model = MonotoneGP(X, Y, {0: 1}, input_transform=transform(), **kwargs)
    corners = model.eval().input_transform(bounds.expand(2, 2, 2)).flatten(0, 1)
    torch.testing.assert_close(model.virtual_points.amax(0), corners.amax(0))
    with pytest.raises(ValueError, match="virtual_X: .* same for all elements of a ba"):
        MonotoneGP(X, Y, {0: 1}, input_transform=transform(), virtual_X=POINTS)
    # a batch whose elements are transformed alike may have them
    model = MonotoneGP(X, Y, {0: 1}, input_transform=Normalize(2), virtual_X=POINTS)
    assert model.virtual_points.shape == (2, 2)
