from __future__ import annotations

import pickle

import pytest
import torch
from botorch.acquisition import ExpectedImprovement, LogExpectedImprovement
from botorch.exceptions import UnsupportedError
from botorch.models import SingleTaskGP
from torch import Tensor

from botorch_structured.acquisition import AveragedLogExpectedImprovement


def models(num: int = 2, seed: int = 0) -> tuple[list[SingleTaskGP], Tensor]:
    """GPs of the same data with different lengthscales, and the outcomes."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(8, 2, generator=g, dtype=torch.double)
    Y = X.sin().sum(-1, keepdim=True)
    made = [SingleTaskGP(X, Y) for _ in range(num)]
    for k, model in enumerate(made):
        model.covar_module.lengthscale = 0.2 * (k + 1)
    return made, Y


def points(n: int = 5) -> Tensor:
    return torch.rand(n, 1, 2, dtype=torch.double)


@pytest.mark.parametrize("maximize", [True, False])
def test_is_the_weighted_mean_of_expected_improvements(maximize: bool) -> None:
    parts, Y = models(3)
    best = Y.max() if maximize else Y.min()
    acqf = AveragedLogExpectedImprovement(
        parts, best, weights=[2.0, 1.0, 1.0], maximize=maximize
    )
    X = points()
    each = [ExpectedImprovement(m, best, maximize=maximize)(X) for m in parts]
    expected = 0.5 * each[0] + 0.25 * each[1] + 0.25 * each[2]
    torch.testing.assert_close(acqf(X).exp(), expected, rtol=1e-8, atol=0.0)


def test_one_model_is_botorchs() -> None:
    (model,), Y = models(1)
    X = points()
    acqf = AveragedLogExpectedImprovement([model], Y.max())
    expected = LogExpectedImprovement(model, Y.max())(X)
    torch.testing.assert_close(acqf(X), expected)


def test_a_best_value_for_each_model_and_a_model_without_weight() -> None:
    parts, Y = models()
    best = torch.stack([Y.max(), Y.min()])
    X = points()
    acqf = AveragedLogExpectedImprovement(parts, best, weights=[0.0, 3.0])
    expected = LogExpectedImprovement(parts[1], best[1])(X)
    torch.testing.assert_close(acqf(X), expected)


def test_can_be_pickled() -> None:
    parts, Y = models()
    acqf = AveragedLogExpectedImprovement(parts, Y.max())
    X = points()
    torch.testing.assert_close(pickle.loads(pickle.dumps(acqf))(X), acqf(X))


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [-1.0, 2.0], [1.0, torch.inf]])
def test_weights_are_checked(weights: list[float]) -> None:
    parts, Y = models()
    with pytest.raises(ValueError, match="weights: expected 2 finite numbers"):
        AveragedLogExpectedImprovement(parts, Y.max(), weights=weights)


@pytest.mark.parametrize("best_f", [torch.nan, [1.0, 2.0, 3.0]])
def test_best_values_are_checked(best_f: object) -> None:
    parts, _ = models()
    with pytest.raises(ValueError, match="best_f: expected a finite number or 2"):
        AveragedLogExpectedImprovement(parts, torch.tensor(best_f))


def test_models_are_needed_and_pending_points_refused() -> None:
    with pytest.raises(ValueError, match="models: expected at least one"):
        AveragedLogExpectedImprovement([], 0.0)
    parts, Y = models()
    with pytest.raises(UnsupportedError, match="X_pending: expected None"):
        AveragedLogExpectedImprovement(parts, Y.max()).set_X_pending(points()[0])


def test_a_python_number_keeps_its_digits() -> None:
    """PyTorch's default dtype may be single precision, with data in double."""
    (model,), Y = models(1)
    best = float(Y.max()) + 1e-9
    assert torch.get_default_dtype() == torch.float32
    given = AveragedLogExpectedImprovement([model], best)
    assert float(given.parts[0].best_f) == best
