"""What BoTorch expects of a model: checks that every model of this package inherits.

A subclass says how to make data and a model; everything else comes with it.
"""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds, loo_cv
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize, Standardize
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import ExactMarginalLogLikelihood
from rehearsed_device import RehearsedDevice
from torch import Tensor

QUICK = {"options": {"maxiter": 3}}


def sampler(count: int = 16) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([count]), seed=0)


def fit(model: Any, steps: int) -> Any:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": steps}})
    return model


def close(found: Tensor, expected: Tensor, rtol: float, atol: float) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


class PlusMinus(IIDNormalSampler):
    """The mean plus and minus a standard deviation: the first two moments, exactly."""

    def __init__(self) -> None:
        super().__init__(torch.Size([2]), seed=0)

    def _construct_base_samples(self, posterior: Any) -> None:
        super()._construct_base_samples(posterior)
        self.base_samples[0], self.base_samples[1] = 1.0, -1.0


@pytest.mark.usefixtures("double")
class StructuredModelTestCase:
    """Inherit; define ``dim``, ``free_columns``, ``make_data`` and ``make_model``."""

    #: Columns an input transform may touch.
    free_columns: list[int]
    dim: int

    def make_data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        raise AssertionError("a subclass says how to make data")

    def make_model(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
        raise AssertionError("a subclass says how to make a model")

    #: Keyword arguments of the model class besides the data.
    model_kwargs: dict[str, Any] = {}

    def arguments_at(self, scale: Tensor) -> dict[str, Any]:
        """Arguments in the units of inputs that are ``scale`` times as large."""
        return {}

    def fitted(self) -> Any:
        """A copy of one that is fitted once for each class of tests."""
        if "_fitted" not in vars(type(self)):
            torch.manual_seed(0)
            model = fit(self.make_model(*self.make_data(24)), 15)
            type(self)._fitted = copy.deepcopy(model)
        return copy.deepcopy(vars(type(self))["_fitted"])

    def points(self, *shape: int, seed: int = 5) -> Tensor:
        n = int(torch.tensor(shape).prod())
        return self.make_data(n, seed=seed)[0].reshape(*shape, self.dim)

    def test_posterior(self) -> None:
        model, X = self.fitted(), self.points(3, 2)
        for noise in (False, True, torch.full((3, 2, 1), 0.1)):
            posterior = model.posterior(X, observation_noise=noise)
            assert isinstance(posterior, GPyTorchPosterior)
            assert posterior.mean.shape == posterior.variance.shape == (3, 2, 1)
            assert posterior.rsample(torch.Size([4])).shape == (4, 3, 2, 1)
        plain, noisy = model.posterior(X), model.posterior(X, observation_noise=True)
        assert (noisy.variance > plain.variance).all()
        transform = ScalarizedPosteriorTransform(torch.tensor([2.0]))
        doubled = model.posterior(X, posterior_transform=transform)
        torch.testing.assert_close(doubled.mean, 2 * plain.mean)
        # a t-batch is nothing but several posteriors
        for i in range(3):
            one = model.posterior(X[i])
            close(one.mean, plain.mean[i], 1e-8, 1e-8)
            covariance = one.distribution.covariance_matrix
            close(covariance, plain.distribution.covariance_matrix[i], 1e-8, 1e-8)

    def test_posterior_gradient(self) -> None:
        model, X = self.fitted(), self.points(2, 2)

        def value(x: Tensor) -> Tensor:
            posterior = model.posterior(x)
            return posterior.mean.sum() + posterior.variance.sum()

        X.requires_grad_(True)
        (gradient,) = torch.autograd.grad(value(X), X)
        assert torch.isfinite(gradient).all()
        for column in self.free_columns:
            step = torch.zeros_like(X)
            step[0, 0, column] = 1e-5
            slope = (value(X + step) - value(X - step)) / 2e-5
            close(gradient[0, 0, column], slope.detach(), 1e-4, 1e-5)

    def test_fit_improves_the_objective(self) -> None:
        model = self.make_model(*self.make_data(24))
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        mll.train()
        before = mll(model(*model.train_inputs), model.train_targets)
        fit_gpytorch_mll(mll)
        assert not model.training
        mll.train()
        assert mll(model(*model.train_inputs), model.train_targets) > before

    def load(self, model: Any, fitted: Any) -> None:
        """Give a model of other data what a fitted one has learnt."""
        model.load_state_dict(fitted.state_dict())

    def test_condition_on_observations(self) -> None:
        model, X = self.fitted(), self.points(3, 2)
        model.posterior(X)
        X_new, Y_new = self.make_data(4, seed=9)
        updated = model.condition_on_observations(model.transform_inputs(X_new), Y_new)
        X_old, Y_old = self.make_data(24)
        refit = self.make_model(torch.cat([X_old, X_new]), torch.cat([Y_old, Y_new]))
        self.load(refit, model)
        refit.eval()
        a, b = updated.posterior(X), refit.posterior(X)
        close(a.mean, b.mean, 1e-6, 1e-6)
        close(a.variance, b.variance, 1e-5, 1e-7)

    def test_fantasies_are_of_the_posterior(self) -> None:
        """Means and variances after a fantasy, averaged, are those before.

        On the leaf of the fantasy and on others; exactly, as means are linear in it.
        """
        model, X = self.fitted(), self.points(12, 1)
        X_test = torch.cat([self.points(20, seed=7), X[:, 0]])
        before = model.posterior(X_test)
        after = model.fantasize(X, PlusMinus()).posterior(X_test)
        assert after.mean.shape == (2, 12, 32, 1)
        mean, spread = after.mean.mean(0), before.variance.max().sqrt()
        assert (mean - before.mean).abs().max() < 1e-7 * spread
        total = after.variance.mean(0) + (after.mean - mean).square().mean(0)
        assert (total - before.variance).abs().max() < 1e-7 * spread.square()

    #: For models whose samples of a baseline are not those of it within more points:
    #: values above this logarithm agree with many samples.
    likely: float | None = None

    def test_noisy_expected_improvement(self) -> None:
        model, X, points = self.fitted(), self.make_data(24)[0], self.points(8, 2)
        draws = sampler(16 if self.likely is None else 4096)
        values = []
        for cache_root in (True, False):
            options = {"prune_baseline": True, "cache_root": cache_root}
            acquisition = qLogNoisyExpectedImprovement(model, X, draws, **options)
            values.append(acquisition(points))
            acquisition.set_X_pending(self.points(2))
            assert torch.isfinite(acquisition(points)).all()
        if self.likely is None:
            close(values[0], values[1], 1e-3, 1e-3)
        else:
            likely = values[0] > self.likely
            assert likely.any()
            close(values[0][likely], values[1][likely], 0.0, 0.1)

    def test_copies(self) -> None:
        model, X = self.fitted(), self.points(3, 2)
        expected = model.posterior(X).mean
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        loaded = self.make_model(*self.make_data(24))
        loaded.load_state_dict(torch.load(file))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
            torch.testing.assert_close(other.posterior(X).mean, expected)

    def test_float32(self) -> None:
        X, Y = (t.float() for t in self.make_data(24))
        model = self.make_model(X, Y)
        fit(model, 3)
        assert model.posterior(X[:3]).mean.dtype == torch.float32
        cast = self.fitted().to(torch.float32).posterior(X[:3])
        assert cast.mean.dtype == torch.float32 and torch.isfinite(cast.mean).all()

    def test_device(self, device: torch.device) -> None:
        X, Y = (t.to(device) for t in self.make_data(24))
        model = self.make_model(X, Y)
        fit(model, 3)
        posterior = model.posterior(self.points(3, 2).to(device))
        assert posterior.mean.device.type == posterior.variance.device.type
        assert posterior.mean.device.type == device.type
        moved = self.fitted().to(device).posterior(X[:3])
        assert moved.mean.device.type == device.type

    def test_rehearsed_device(self) -> None:
        """Made, fitted and moved there: as on the CPU, and no devices are mixed."""
        model, X = self.fitted(), self.points(1, 3)

        def predictions(model: Any, device: str) -> list[Tensor]:
            points = X.to(device)
            posterior = model.posterior(points, observation_noise=True)
            fantasy = model.fantasize(self.points(2, 2).to(device), sampler(4))
            both = posterior, fantasy.posterior(points)
            return [t.cpu() for p in both for t in (p.mean, p.variance)]

        expected = predictions(model, "cpu")
        with RehearsedDevice():
            made = fit(self.make_model(*(t.to("meta") for t in self.make_data(24))), 1)
            made.load_state_dict(model.state_dict())
            for there in (made, copy.deepcopy(model).to("meta")):
                found = predictions(there, "meta")
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)

    def test_transforms(self) -> None:
        """Units of inputs and outcomes do not matter under transforms."""
        X, Y = self.make_data(24)
        scale = torch.ones(self.dim)
        scale[self.free_columns] = 7.0

        def make(X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
            torch.manual_seed(0)
            kwargs["input_transform"] = Normalize(self.dim, indices=self.free_columns)
            return self.make_model(X, Y, outcome_transform=Standardize(m=1), **kwargs)

        model = make(X * scale, 3.0 * Y + 5.0, **self.arguments_at(scale))
        plain = make(X, Y)
        found, expected = model.posterior(X * scale), plain.posterior(X)
        close(found.mean, 3.0 * expected.mean + 5.0, 1e-6, 1e-6)
        close(found.variance, 9.0 * expected.variance, 1e-5, 1e-7)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(plain.likelihood, plain))
        error = (plain.posterior(X).mean - Y).abs().mean()
        assert error < 0.5 * (Y - Y.mean()).abs().mean()
        model.train()
        assert torch.equal(model.train_inputs[0], X * scale)
        model.eval()
        torch.testing.assert_close(model.posterior(X * scale).mean, found.mean)

    def test_fixed_noise(self) -> None:
        X, Y = self.make_data(24)
        model = self.make_model(X, Y, train_Yvar=torch.full_like(Y, 0.01))
        fit(model, 3)
        fantasy = model.fantasize(self.points(3, 2), sampler(2))
        assert fantasy.posterior(self.points(1, 2)).mean.shape == (2, 3, 2, 1)
        noise = model.posterior(X, observation_noise=True).variance
        close(noise, model.posterior(X).variance + 0.01, 1e-5, 1e-6)

    def test_several_outputs(self) -> None:
        X, Y = self.make_data(24)
        model = self.make_model(X, torch.cat([Y, Y.square()], -1))
        fit(model, 3)
        both = model.posterior(self.points(3, 2))
        assert both.mean.shape == (3, 2, 2)
        for i in range(2):
            one = model.subset_output([i]).posterior(self.points(3, 2))
            torch.testing.assert_close(one.mean, both.mean[..., i : i + 1])
            torch.testing.assert_close(one.variance, both.variance[..., i : i + 1])
        # BoTorch's own scales them as if they were the first ones
        for chosen in ([1, 0], [1], [-1]):
            some = model.posterior(self.points(3, 2), output_indices=chosen)
            torch.testing.assert_close(some.mean, both.mean[..., chosen])
            torch.testing.assert_close(some.variance, both.variance[..., chosen])
            draws = some.rsample(torch.Size([2]))
            assert draws.shape == (2, 3, 2, len(chosen))
        with pytest.raises(ValueError):
            model.posterior(self.points(3, 2), output_indices=[2])

    def test_batched(self) -> None:
        (X, Y), (X2, Y2) = self.make_data(12), self.make_data(12, seed=3)
        model = self.make_model(torch.stack([X, X2]), torch.stack([Y, Y2]))
        points = self.points(5)
        batched = model.posterior(points.expand(2, 5, self.dim))
        assert batched.mean.shape == (2, 5, 1)
        # the second data set is on other paths: the batch elements are independent
        single = self.make_model(X2, Y2).posterior(points)
        close(batched.mean[1], single.mean, 1e-6, 1e-6)

    def test_cross_validation(self) -> None:
        X, Y = self.make_data(10)
        model = self.make_model(X, Y)
        assert loo_cv(model).posterior.mean.shape == (10, 1, 1)
        folds = gen_loo_cv_folds(X, Y)
        result = batch_cross_validation(
            type(model),
            ExactMarginalLogLikelihood,
            folds,
            fit_args={"optimizer_kwargs": QUICK},
            model_init_kwargs=self.model_kwargs,
        )
        assert result.posterior.mean.shape == (10, 1, 1)

    def test_leave_one_out_is_a_refit(self) -> None:
        X, Y = self.make_data(10)
        model = self.make_model(X, Y, outcome_transform=None)
        result = loo_cv(model)
        for i in (0, 7):
            keep = torch.arange(10) != i
            other = self.make_model(X[keep], Y[keep], outcome_transform=None)
            self.load(other, model)
            expected = other.posterior(X[i : i + 1]).mean
            found = result.posterior.mean.reshape(10)[i]
            close(found, expected.squeeze(), 1e-5, 1e-6)

    def test_construct_inputs(self) -> None:
        X, Y = self.make_data(10)
        names = [f"x{i}" for i in range(self.dim)]
        data = SupervisedDataset(X, Y, feature_names=names, outcome_names=["y"])
        model = self.make_model(X, Y)
        inputs = type(model).construct_inputs(data, **self.model_kwargs)
        assert type(model)(**inputs).posterior(X).mean.shape == (10, 1)

    def test_seeds(self) -> None:
        model = self.fitted()
        torch.manual_seed(0)
        again = fit(self.make_model(*self.make_data(24)), 15)
        pairs = zip(model.named_parameters(), again.parameters(), strict=True)
        for (name, parameter), other in pairs:
            assert torch.equal(parameter, other), name
