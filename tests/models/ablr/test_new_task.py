"""MultiTaskABLR.new_task: what tasks have in common, and nothing else, is the prior."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Log, Normalize
from botorch.models.transforms.input import InputPerturbation, Log10, Warp
from botorch.optim import optimize_acqf
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.models.ablr.new_task import (
    population_of,
    tasks_with_rows,
    usual_outcomes,
)

BEST = torch.tensor([0.3, 0.6], dtype=torch.float64)


def outcome(X: Tensor, scale: float, level: float) -> Tensor:
    """Tasks have their best point in common."""
    return level - scale * (X - BEST).square().sum(-1, keepdim=True)


def draw(n: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, 2, generator=g, dtype=torch.float64)


def history(tasks: int = 6, rows: int = 12) -> tuple[Tensor, Tensor]:
    X, Y = [], []
    for t in range(tasks):
        x = draw(rows, t)
        task = torch.full((rows, 1), 10.0 + t, dtype=torch.float64)
        X.append(torch.cat([task, x], -1))
        noise = 1e-3 * torch.randn(
            rows, 1, generator=torch.Generator().manual_seed(t), dtype=torch.float64
        )
        Y.append(outcome(x, 1.0 + 0.2 * t, 3.0 * t) + noise)
    return torch.cat(X), torch.cat(Y)


def fitted(model: MultiTaskABLR, steps: int = 25) -> MultiTaskABLR:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    options = {"options": {"maxiter": steps}}
    fit_gpytorch_mll(mll, optimizer_kwargs=options, progress=False)
    return model


def made(**kwargs: Any) -> MultiTaskABLR:
    X, Y = history()
    kwargs.setdefault("feature_map", TanhNetwork(2, widths=(10, 10)))
    return MultiTaskABLR(X, Y, task_feature=0, **kwargs)


@pytest.fixture(scope="module")
def old() -> MultiTaskABLR:
    return fitted(made())


@pytest.mark.parametrize("n", [0, 1, 4, 30])
def test_it_is_the_regression_of_its_docstring(old: MultiTaskABLR, n: int) -> None:
    """Against the normal distribution of everything, formed densely."""
    X, test_X = draw(n, 50), draw(5, 51)
    Y = outcome(X, 2.0, 7.0)
    new = old.new_task(X, Y)
    common = population_of(old, list(range(6)))
    scale = float(new.outcome_transform.stdvs)
    level, spread = usual_outcomes(old, list(range(6))).level
    phi = old.feature_map(torch.cat([X, test_X])).detach()
    sigma = common.root @ common.root.mT
    prior = scale**2 * phi @ sigma @ phi.mT + spread**2
    mean = level + scale * phi @ common.mean
    noisy = prior[:n, :n] + scale**2 / new.noise_precision.detach() * torch.eye(n)
    gain = torch.linalg.solve(noisy, prior[:n, n:]).mT
    expected = mean[n:] + gain @ (Y.squeeze(-1) - mean[:n])
    covariance = prior[n:, n:] - gain @ prior[:n, n:]
    posterior = new.posterior(test_X)
    assert torch.allclose(posterior.mean.squeeze(-1), expected, atol=1e-8)
    found = posterior.distribution.covariance_matrix
    assert torch.allclose(found, covariance, atol=1e-8)


def test_fit_condition_and_search(old: MultiTaskABLR) -> None:
    X = draw(5, 90)
    Y = outcome(X, 2.0, -4.0)
    new = old.new_task(X, Y)
    mll = ExactMarginalLogLikelihood(new.likelihood, new)
    mll.train()
    before = float(mll(new(*new.train_inputs), new.train_targets).detach())
    features = [p.clone() for p in new.feature_map.parameters()]
    fitted(new)
    mll.train()
    after = float(mll(new(*new.train_inputs), new.train_targets).detach())
    assert after >= before
    for a, b in zip(features, new.feature_map.parameters(), strict=True):
        assert torch.equal(a, b) and not b.requires_grad
    new.eval()
    bounds = torch.stack([torch.zeros(2), torch.ones(2)]).double()
    acqf = LogExpectedImprovement(new, Y.max())
    x, value = optimize_acqf(acqf, bounds, 1, num_restarts=2, raw_samples=32)
    assert value.isfinite() and x.shape == (1, 2)
    more = draw(2, 91)
    one = new.condition_on_observations(more, outcome(more, 2.0, -4.0))
    X = torch.cat([X, more])
    other = old.new_task(X, outcome(X, 2.0, -4.0))
    other.load_state_dict(one.state_dict())
    assert one.outcome_transform.stdvs == other.outcome_transform.stdvs
    # its outcomes had been divided by the scale that all of them suggest
    targets, _ = one.outcome_transform(outcome(X, 2.0, -4.0))
    other.set_train_data(X, targets.squeeze(-1))
    grid = draw(6, 92)
    a, b = one.posterior(grid), other.posterior(grid)
    assert torch.allclose(a.mean, b.mean, atol=1e-8)
    assert torch.allclose(a.variance, b.variance, atol=1e-10)


def test_a_copy(old: MultiTaskABLR) -> None:
    """What happens to the old model later does not matter; it can be stored."""
    X, grid = draw(3, 1), draw(4, 2)
    source = fitted(made(), steps=3)
    new = source.new_task(X, outcome(X, 2.0, 1.0))
    before = new.posterior(grid)
    with torch.no_grad():
        for p in source.parameters():
            p.add_(0.3)
    again = pickle.loads(pickle.dumps(new)).posterior(grid)
    assert torch.equal(again.mean, before.mean)
    assert torch.equal(again.variance, before.variance)
    empty = old.new_task(draw(3, 5), outcome(draw(3, 5), 1.0, 1.0))
    assert not torch.allclose(empty.posterior(grid).mean, before.mean)
    for p in empty.parameters():
        p.requires_grad_(False)
    kept = population_of(old, list(range(6))).root.clone()
    empty.load_state_dict(new.state_dict())
    assert torch.equal(empty.feature_map(grid), new.feature_map(grid))
    assert torch.equal(population_of(old, list(range(6))).root, kept)


def test_transformed_inputs_are_those_of_the_old_model() -> None:
    X, Y = history()
    raw = X * torch.tensor([1.0, 50.0, 3.0]) + torch.tensor([0.0, 100.0, -2.0])
    bounds = torch.tensor([[0.0, 100.0, -2.0], [1.0, 150.0, 1.0]], dtype=torch.float64)
    kwargs: dict[str, Any] = {"task_feature": 0}
    normalize = Normalize(3, indices=[1, 2], bounds=bounds)
    plain = MultiTaskABLR(X, Y, feature_map=TanhNetwork(2, widths=(6,)), **kwargs)
    moved = MultiTaskABLR(
        raw,
        Y,
        feature_map=TanhNetwork(2, widths=(6,)),
        input_transform=normalize,
        **kwargs,
    )
    new_X, grid = draw(4, 3), draw(5, 4)
    new_Y = outcome(new_X, 2.0, 0.0)
    one = plain.new_task(new_X, new_Y)

    def back(x: Tensor) -> Tensor:
        return x * torch.tensor([50.0, 3.0]) + torch.tensor([100.0, -2.0])

    other = moved.new_task(back(new_X), new_Y)
    other.train()  # no transform learns from the new rows
    other.eval()
    a, b = one.posterior(grid), other.posterior(back(grid))
    assert torch.allclose(a.mean, b.mean, atol=1e-9)
    assert torch.allclose(a.variance, b.variance, atol=1e-9)


def test_excluded_tasks_are_as_if_they_were_not_there() -> None:
    X, Y = history()
    wild = torch.where(X[:, :1] == 15.0, 1e3 * torch.sin(40.0 * X[:, 1:2]), Y)
    new_X = draw(2, 6)
    new_Y = outcome(new_X, 2.0, 0.0)
    a, b = (
        MultiTaskABLR(X, y, task_feature=0, feature_map=TanhNetwork(2, widths=(6,)))
        for y in (Y, wild)
    )
    grid = draw(5, 7)
    mine = a.new_task(new_X, new_Y, exclude_tasks=[15]).posterior(grid).mean
    other = b.new_task(new_X, new_Y, exclude_tasks=[15]).posterior(grid).mean
    assert torch.allclose(mine, other, atol=1e-12)
    assert not torch.allclose(mine, b.new_task(new_X, new_Y).posterior(grid).mean)


def test_known_noise(old: MultiTaskABLR) -> None:
    X = draw(4, 9)
    Y = outcome(X, 2.0, 0.0)
    sure = old.new_task(X, Y, torch.full_like(Y, 1e-4))
    unsure = old.new_task(X, Y, torch.full_like(Y, 1e2))
    assert sure.posterior(X).variance.max() < 1e-3
    assert unsure.posterior(X).variance.min() > 0.1
    source = made(train_Yvar=torch.full_like(history()[1], 1e-4))
    assert source.new_task(X, Y).posterior(X).mean.isfinite().all()


def test_missing_outcomes(old: MultiTaskABLR) -> None:
    X = draw(5, 12)
    Y = outcome(X, 2.0, 0.0)
    Y[1] = Y[3] = torch.nan
    rows = [0, 2, 4]
    a, b = old.new_task(X, Y), old.new_task(X[rows], Y[rows])
    assert torch.allclose(a.posterior(X).mean, b.posterior(X).mean, atol=1e-10)


def test_one_scale_without_outcome_transform() -> None:
    source = made(outcome_transform=None)
    new = source.new_task(draw(3, 1), draw(3, 2)[:, :1])
    assert new.outcome_transform.means == 0.0
    assert new.outcome_transform.stdvs == 1.0
    assert new.feature_map.level == 0.0
    test_X, empty = draw(2, 3), draw(0, 0)
    prior = source.new_task(empty, empty[:, :1]).posterior(test_X)
    phi, common = source.feature_map(test_X), population_of(source, list(range(6)))
    assert torch.allclose(prior.mean.squeeze(-1), phi @ common.mean)
    root = phi @ common.root
    assert torch.allclose(prior.variance.squeeze(-1), root.square().sum(-1), atol=1e-9)


ROWS = draw(3, 1)
VALUES = outcome(ROWS, 1.0, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_X": ROWS[:, [0, 1, 0]]}, "without the task column"),
        ({"train_X": ROWS[:, :1]}, "without the task column"),
        ({"train_Y": VALUES.repeat(1, 2)}, "n x 1"),
        ({"train_Y": VALUES[:2]}, "train_Y: expected ``3 x m``"),
        ({"train_X": ROWS.log().log()}, "finite"),
        ({"train_Y": VALUES / 0.0}, "finite"),
        ({"train_X": ROWS.unsqueeze(0)}, "rows of train_X"),
        ({"train_Yvar": -torch.ones_like(VALUES)}, "train_Yvar"),
        ({"train_Yvar": torch.ones(3).double()}, "shape of train_Y"),
        ({"exclude_tasks": [77]}, "77"),
        ({"exclude_tasks": 15}, "exclude_tasks: expected a list"),
        ({"exclude_tasks": "15"}, "exclude_tasks: expected a list"),
        ({"exclude_tasks": torch.tensor([15])}, "exclude_tasks: expected a list"),
        ({"exclude_tasks": range(10, 16)}, "exclude_tasks"),
        (
            {"train_X": ROWS.float(), "train_Y": VALUES.float()},
            "train_X: expected the dtype",
        ),
        ({"train_Y": VALUES.float()}, "train_Y: expected the same dtype"),
    ],
)
def test_errors(old: MultiTaskABLR, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        old.new_task(**{"train_X": ROWS, "train_Y": VALUES, **change})


def test_models_without_a_sample_of_tasks(old: MultiTaskABLR) -> None:
    X, Y = history()
    for model, message in (
        (MultiTaskABLR(ROWS, VALUES, task_feature=None), "task column"),
        (made(mean_module=ConstantMean()), "mean_module"),
        (MultiTaskABLR(X, Y.exp(), 0, outcome_transform=Log()), "outcome_transform"),
        (old.condition_on_observations(X[:1], Y[:1].expand(3, 1, 1)), "fantasies"),
    ):
        with pytest.raises(ValueError, match=message):
            model.new_task(ROWS, VALUES)


def test_the_population_is_that_of_the_present_weights() -> None:
    """Kept from call to call, and made anew after a fit or new rows."""
    model = fitted(made(), steps=2)
    first = population_of(model, list(range(6)))
    assert population_of(model, list(range(6))) is first
    X, Y = history(rows=20)
    longer = model.condition_on_observations(X[-5:], Y[-5:])
    assert population_of(longer, list(range(6))) is not first
    fitted(model, steps=2).eval()
    assert population_of(model, list(range(6))) is not first


def test_tasks_of_one_row_do_not_count(old: MultiTaskABLR) -> None:
    """Standardised, their outcome is zero wherever it is."""
    X, Y = history()
    single = torch.cat(
        [torch.arange(20.0, 60.0).double().unsqueeze(-1), draw(40, 5)], 1
    )
    model = MultiTaskABLR(
        torch.cat([X, single]),
        torch.cat([Y, outcome(single[:, 1:], 1.0, 0.0)]),
        task_feature=0,
        feature_map=TanhNetwork(2, widths=(10, 10)),
    )
    new_X, grid = draw(2, 6), draw(5, 7)
    new_Y = outcome(new_X, 2.0, 0.0)
    with_them = model.new_task(new_X, new_Y).posterior(grid)
    without = model.new_task(new_X, new_Y, exclude_tasks=range(20, 60)).posterior(grid)
    assert torch.equal(with_them.mean, without.mean)
    with pytest.raises(ValueError, match="2 rows"):
        model.new_task(new_X, new_Y, exclude_tasks=range(10, 16))
    one_scale = made(outcome_transform=None)
    assert tasks_with_rows(one_scale, range(11, 16)) == [0]


def test_known_noise_of_no_outcome(old: MultiTaskABLR) -> None:
    """The noise of later ones is a number all the same."""
    X, grid = draw(3, 1), draw(4, 2)
    Y = outcome(X, 2.0, 1.0)
    for new in (
        old.new_task(X[:0], Y[:0], Y[:0]),
        old.new_task(X, Y * torch.nan, torch.ones_like(Y)),
    ):
        posterior = new.posterior(grid, observation_noise=True)
        assert posterior.variance.isfinite().all()
        assert new.condition_on_observations(X, Y).posterior(grid).mean.isfinite().all()


@pytest.mark.parametrize("noise", [1e-3, 100.0])
def test_noise_of_a_likelihood_of_ones_own(noise: float) -> None:
    likelihood = GaussianLikelihood()
    likelihood.noise = noise
    source = made(likelihood=likelihood, outcome_transform=None)
    X = draw(3, 1)
    new = source.new_task(X, outcome(X, 2.0, 0.0))
    assert float(new.noise_precision.detach()) == pytest.approx(1.0 / noise, rel=1e-4)
    fitted(new)


@pytest.mark.parametrize("column", [0, 1, -1])
def test_input_transforms(column: int) -> None:
    """Those undefined at zero, of more rows, learnt; wherever the task stands."""
    X, Y = history()
    place = column % 3
    X = torch.cat([X[:, 1 : place + 1], X[:, :1], X[:, place + 1 :]], dim=-1)
    others = [j for j in range(3) if j != place]
    near = torch.zeros(2, 3, dtype=torch.float64)
    near[1, others] = 0.01
    new_X = 0.1 + 0.8 * draw(4, 3)
    new_Y = outcome(new_X, 2.0, 0.0)
    for transform, rows in (
        (Log10(indices=others), 4),
        (Warp(d=3, indices=others), 4),
        (InputPerturbation(near), 8),
    ):
        source = made_of(X, Y, column, transform)
        learnt = {k: v.clone() for k, v in source.input_transform.state_dict().items()}
        for n in (0, 4):
            new = fitted(source.new_task(new_X[:n], new_Y[:n]), steps=3)
            new = fitted(new, steps=3)  # from where it is
            posterior = new.posterior(new_X)
            assert posterior.mean.shape == (rows, 1)
            assert posterior.mean.isfinite().all()
            after = new.input_transform.inner.state_dict()
            assert all(torch.equal(after[k], v) for k, v in learnt.items())
            if n and rows == 4:
                again = pickle.loads(pickle.dumps(new)).posterior(new_X).mean
                assert torch.equal(again, posterior.mean)


def made_of(X: Tensor, Y: Tensor, column: int, transform: Any) -> MultiTaskABLR:
    return MultiTaskABLR(
        X,
        Y,
        task_feature=column,
        feature_map=TanhNetwork(2, widths=(6,)),
        input_transform=transform,
    )
