"""Fits of large data sets to some of their rows."""

from __future__ import annotations

import pytest
import torch
from botorch.models.transforms import Standardize

from botorch_structured.models import TreeStructuredGP
from botorch_structured.spaces import SearchSpace
from botorch_structured.suggest import surrogates
from botorch_structured.suggest.surrogates import (
    fit_to_some,
    leave_one_out_log_density,
    some_rows,
)

SPACE = SearchSpace.from_dictionaries(
    [{"kind": ["a"], "x": (0.0, 1.0)}, {"kind": ["b"], "y": (0.0, 1.0)}]
)


def test_rows_are_the_best_of_each_path_and_others() -> None:
    keys = torch.tensor([7] * 40 + [3] * 3)
    values = torch.arange(43.0).flip(0)
    rows = some_rows(keys, values, 8)
    assert rows.tolist() == [0, 1, 8, 14, 20, 27, 33, 39, 40, 41, 42]


@pytest.mark.parametrize("known_noise", [False, True])
def test_hyperparameters_are_near_those_of_all_rows(
    known_noise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = SPACE.sample(200, seed=0)
    noise = 0.1 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    Y = 3.0 + (6.0 * X.sum(-1, keepdim=True)).sin() + noise
    models = []
    for most in (1_000, 50):
        monkeypatch.setattr(surrogates, "_ROWS_OF_PATH", most)
        monkeypatch.setattr(surrogates, "_ROWS", most)
        variances = torch.full_like(Y, 0.01) if known_noise else None
        model = TreeStructuredGP(
            X, Y, SPACE, variances, outcome_transform=Standardize(m=1)
        )
        fit_to_some(model)
        assert not model.training and len(model.train_targets) == 200
        models.append(model)
    points = SPACE.sample(50, seed=1).unsqueeze(1)
    whole, part = (model.posterior(points).mean.flatten() for model in models)
    assert not torch.equal(whole, part)
    assert float((whole - part).abs().max()) < 0.1


def test_a_step_that_the_first_rows_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogates, "_ROWS_OF_PATH", 40)
    monkeypatch.setattr(surrogates, "_ROWS", 40)
    X = torch.linspace(0.0, 1.0, 300, dtype=torch.double).unsqueeze(-1)
    is_step = (X > 0.602) & (X < 0.613)
    Y = (3.0 * X).sin() - 0.3 * is_step
    assert not is_step[some_rows(torch.zeros(300), Y[:, 0], 40)].any()
    space = SearchSpace.from_dictionaries({"x": (0.0, 1.0)})
    model = TreeStructuredGP(X, Y, space, outcome_transform=Standardize(m=1))
    fit_to_some(model)
    # -64 with variances of the smooth rest
    assert float(leave_one_out_log_density(model).mean()) > 0.0
