"""Acquisition functions of the moments of mixtures; see also test_view."""

import itertools
import pickle
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    ExpectedImprovement,
    LogExpectedImprovement,
    PriorGuidedAcquisitionFunction,
)
from botorch.acquisition.analytic import (
    LogConstrainedExpectedImprovement,
    LogProbabilityOfFeasibility,
)
from botorch.acquisition.multi_objective.analytic import ExpectedHypervolumeImprovement
from botorch.exceptions import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
    NondominatedPartitioning,
)
from search_problems import in_view
from torch import Tensor

from botorch_structured.acquisition import (
    AveragedLogExpectedHypervolumeImprovement,
    AveragedLogExpectedImprovement,
    AveragedLogProbabilityOfFeasibility,
    FeasibilityPrior,
)
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.test_functions import JenattonTree

SPACE = JenattonTree(shared=True).space


def points(n: int = 12) -> Tensor:
    return SPACE.sample(n, seed=1)


def same_data(num: int = 2, seed: int = 0) -> tuple[list[SingleTaskGP], Tensor]:
    """GPs of the same data with different lengthscales, and the outcomes."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(8, 2, generator=g, dtype=torch.double)
    Y = X.sin().sum(-1, keepdim=True)
    made = [SingleTaskGP(X, Y) for _ in range(num)]
    for k, model in enumerate(made):
        model.covar_module.lengthscale = 0.2 * (k + 1)
    return made, Y


def unit_points(n: int = 5) -> Tensor:
    return torch.rand(n, 1, 2, dtype=torch.double)


@pytest.mark.parametrize("maximize", [True, False])
def test_is_the_weighted_mean_of_expected_improvements(maximize: bool) -> None:
    parts, Y = same_data(3)
    best = Y.max() if maximize else Y.min()
    acqf = AveragedLogExpectedImprovement(
        parts, best, weights=[2.0, 1.0, 1.0], maximize=maximize
    )
    X = unit_points()
    each = [ExpectedImprovement(m, best, maximize=maximize)(X) for m in parts]
    expected = 0.5 * each[0] + 0.25 * each[1] + 0.25 * each[2]
    torch.testing.assert_close(acqf(X).exp(), expected, rtol=1e-8, atol=0.0)


def test_a_best_value_for_each_model_and_a_model_without_weight() -> None:
    parts, Y = same_data()
    best = torch.stack([Y.max(), Y.min()])
    X = unit_points()
    acqf = AveragedLogExpectedImprovement(parts, best, weights=[0.0, 3.0])
    expected = LogExpectedImprovement(parts[1], best[1])(X)
    torch.testing.assert_close(acqf(X), expected)


def test_can_be_pickled() -> None:
    parts, Y = same_data()
    acqf = AveragedLogExpectedImprovement(parts, Y.max())
    X = unit_points()
    torch.testing.assert_close(pickle.loads(pickle.dumps(acqf))(X), acqf(X))


def test_a_python_number_keeps_its_digits() -> None:
    """PyTorch's default dtype may be single precision, with data in double."""
    (model,), Y = same_data(1)
    best = float(Y.max()) + 1e-9
    assert torch.get_default_dtype() == torch.float32
    given = AveragedLogExpectedImprovement([model], best)
    assert float(given.parts[0].best_f) == best


def problem(m: int, kind: type = TreeStructuredGP) -> tuple[list[SingleTaskGP], Tensor]:
    """``m`` objectives in conflict, and a model of each."""
    X = SPACE.sample(15, seed=0)
    angles = torch.arange(m) * 2.0
    Y = (X.unsqueeze(-1) + angles).sin().sum(-2)
    models = [kind(X, y, SPACE) for y in Y.split(1, dim=-1)]
    for model in models:
        model.likelihood.noise = 1e-2
    return models, Y


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("quantile", [0.2, 0.7])
def test_hypervolume_is_botorchs_with_one_model_of_each(
    m: int, quantile: float
) -> None:
    models, Y = problem(m)
    ref = Y.quantile(quantile, dim=0)
    acqf = AveragedLogExpectedHypervolumeImprovement(
        [[model] for model in models], FastNondominatedPartitioning(ref, Y)
    )
    expected = ExpectedHypervolumeImprovement(
        ModelListGP(*models), ref.tolist(), NondominatedPartitioning(ref, Y)
    )
    X = points().unsqueeze(-2)
    torch.testing.assert_close(acqf(X).exp(), expected(X), rtol=1e-8, atol=1e-12)


def test_hypervolume_of_mixtures_is_exact() -> None:
    """The mean over all ways to draw a model for each objective."""
    models, Y = problem(2)
    others, _ = problem(2, ConditionalGP)
    boxes = FastNondominatedPartitioning(Y.amin(0), Y)
    shares = torch.tensor([[0.25, 0.75], [0.6, 0.4]], dtype=torch.double)
    pairs = list(zip(models, others, strict=True))
    X = points().unsqueeze(-2)
    found = AveragedLogExpectedHypervolumeImprovement(pairs, boxes, shares)(X).exp()
    expected = torch.zeros_like(found)
    for i, j in itertools.product(range(2), repeat=2):
        drawn = [[pairs[0][i]], [pairs[1][j]]]
        value = AveragedLogExpectedHypervolumeImprovement(drawn, boxes)(X).exp()
        expected = expected + shares[0, i] * shares[1, j] * value
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


def test_far_from_the_front_values_and_gradients_stay_finite() -> None:
    """BoTorch's own is 0 there, with a gradient of 0; and nothing is known yet."""
    models, Y = problem(2)
    X = points()
    for front in (Y + 1e3, Y[:0]):
        ref = Y.amax(0) + 1e3 - 1.0
        boxes = FastNondominatedPartitioning(ref, front)
        acqf = AveragedLogExpectedHypervolumeImprovement([[m] for m in models], boxes)
        found = in_view(acqf, X, gradient=True)
        assert found is not None and found[1] is not None
        assert found[0].isfinite().all() and found[1].isfinite().all()
        assert (found[1].abs().amax(-1) > 0.0).all()


def three_outcomes() -> list[SingleTaskGP]:
    """Of three outcomes on different scales."""
    X = SPACE.sample(15, seed=0)
    made = []
    for k in range(3):
        Y = 10.0**k * (X + k).sin().sum(-1, keepdim=True)
        made.append(TreeStructuredGP(X, Y, SPACE))
        made[-1].likelihood.noise = 1e-2
    return made


def test_feasibility_is_botorchs_with_one_model_of_each() -> None:
    """`LogProbabilityOfFeasibility`, and with LogEI the constrained one."""
    objective, one, other = three_outcomes()
    prior = FeasibilityPrior([[one], [other]], limits=[3.0, 50.0])
    X = points().unsqueeze(-2)
    limits: dict[int, tuple[float | None, float | None]]
    limits = {0: (None, 3.0), 1: (None, 50.0)}
    expected = LogProbabilityOfFeasibility(ModelListGP(one, other), limits)(X)
    torch.testing.assert_close(prior(X).squeeze(-1), expected, rtol=1e-8, atol=1e-10)
    alone = AveragedLogProbabilityOfFeasibility(prior)(X)
    torch.testing.assert_close(alone, expected, rtol=1e-8, atol=1e-10)
    acqf = PriorGuidedAcquisitionFunction(
        LogExpectedImprovement(objective, best_f=0.5), prior, log=True
    )
    expected = LogConstrainedExpectedImprovement(
        ModelListGP(objective, one, other),
        best_f=0.5,
        objective_index=0,
        constraints={k + 1: limit for k, limit in limits.items()},
    )(X)
    torch.testing.assert_close(acqf(X), expected, rtol=1e-8, atol=1e-10)


def test_a_mixture_has_the_mean_of_its_probabilities() -> None:
    _, one, other = three_outcomes()
    X = points()
    each = [FeasibilityPrior([[m]], limits=[2.0])(X).exp() for m in (one, other)]
    mixed = FeasibilityPrior([[one, other]], [[3.0, 1.0]], [2.0])(X).exp()
    torch.testing.assert_close(mixed, 0.75 * each[0] + 0.25 * each[1])


def test_other_models_go_through_autograd() -> None:
    X = points()
    prior = FeasibilityPrior([[SingleTaskGP(X, X.sum(-1, keepdim=True))]])
    assert in_view(AveragedLogProbabilityOfFeasibility(prior), X, True) is None
    again = pickle.loads(pickle.dumps(prior))
    torch.testing.assert_close(again(X), prior(X))


def test_pending_points_are_refused() -> None:
    parts, Y = problem(2)
    models = [[part] for part in parts]
    boxes = FastNondominatedPartitioning(Y.amin(0), Y)
    for acqf in (
        AveragedLogExpectedImprovement(parts, 0.0),
        AveragedLogProbabilityOfFeasibility(FeasibilityPrior(models)),
        AveragedLogExpectedHypervolumeImprovement(models, boxes),
    ):
        with pytest.raises(UnsupportedError, match="X_pending"):
            acqf.set_X_pending(points())


X = unit_points(5).squeeze(1)
ONE, TWO = SingleTaskGP(X, X[:, :1]), SingleTaskGP(X, X)
NAN, INF = torch.nan, torch.inf


PAIR, EI, PRIOR = [ONE, ONE], AveragedLogExpectedImprovement, FeasibilityPrior
BOXES = FastNondominatedPartitioning(X.amin(0), X)
WRONG: dict[str, list[tuple[Any, tuple[Any, ...]]]] = {
    "models: expected at least one": [(EI, ([], 0.0))],
    "best_f: expected (finite numbers|a number or 2)": [
        (EI, (PAIR, torch.tensor(best))) for best in (NAN, [1.0, 2.0, 3.0])
    ],
    "weights: expected 2 finite numbers": [
        *[(EI, (PAIR, 0.0, w)) for w in ([1.0], [0.0, 0.0], [-1.0, 2.0], [1.0, INF])],
        (PRIOR, ([PAIR], [[1.0]])),
    ],
    "models: expected for each outcome a list": [
        (PRIOR, (models,)) for models in ([[ONE], []], [], [[TWO]])
    ],
    "weights: expected those of 1 outcomes": [(PRIOR, ([PAIR], [[1.0], [1.0]]))],
    "limits: expected": [(PRIOR, ([PAIR], None, [NAN]))],
    "limits: expected 1 numbers": [(PRIOR, ([PAIR], None, [1.0, 2.0]))],
    "partitioning: expected one of 1 outcomes": [
        (AveragedLogExpectedHypervolumeImprovement, ([[ONE]], BOXES))
    ],
}


@pytest.mark.parametrize("words", WRONG)
def test_bad_arguments(words: str) -> None:
    for make, arguments in WRONG[words]:
        with pytest.raises(ValueError, match=words):
            make(*arguments)
