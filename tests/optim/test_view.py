"""Expected improvement in closed form against BoTorch's, through autograd."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import (
    ExpectedImprovement,
    LogExpectedImprovement,
    PriorGuidedAcquisitionFunction,
    ProbabilityOfImprovement,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
)
from search_problems import in_view
from torch import Tensor

from botorch_structured.acquisition import (
    AveragedLogExpectedHypervolumeImprovement,
    AveragedLogExpectedImprovement,
    AveragedLogProbabilityOfFeasibility,
    CostPrior,
    FeasibilityPrior,
    InteriorPrior,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree.moments import PointMoments
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.transforms import ClipTail

TREE = ParameterTree(6, {0: {0.0: [1, 2], 1.0: [3], 2.0: []}})
KINDS = [
    ExpectedImprovement,
    LogExpectedImprovement,
    PathExpectedImprovement,
    PathLogExpectedImprovement,
]


def points(n: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    X = 4.0 * torch.rand(n, 6, generator=g, dtype=torch.double)
    X[:, 0] = torch.randint(3, (n,), generator=g).double()
    return X


def make(
    model_class: type = TreeStructuredGP, shift: float = 0.0, **kwargs: Any
) -> Any:
    X = points(20, 0)
    Y = (X[:, 1:] + shift).sin().sum(-1, keepdim=True)
    transform = Normalize(6, indices=[1, 2, 3, 4, 5])
    model = model_class(X, Y, TREE, input_transform=transform, **kwargs)
    model.likelihood.noise = 1e-2  # which a dense evaluation can bear, too
    return model


def by_autograd(acqf: Any, X: Tensor) -> tuple[Tensor, Tensor]:
    leaf = X.clone().requires_grad_()
    value = acqf(leaf.unsqueeze(1))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


BOUNDS = torch.tensor([[0.0] * 6, [2.0] + [4.0] * 5], dtype=torch.double)
SPACE = SearchSpace([f"x{c}" for c in range(6)], BOUNDS, TREE)


def averaged(*weights: float, **kwargs: Any) -> AveragedLogExpectedImprovement:
    models = [make(), make(ConditionalGP), make(leaf_kernel="rbf")][: len(weights)]
    return AveragedLogExpectedImprovement(models, 0.5, list(weights), **kwargs)


def guided(acqf: Any, prior: torch.nn.Module, exponent: float = 1.0) -> Any:
    return PriorGuidedAcquisitionFunction(
        acqf, prior, log=True, prior_exponent=exponent
    )


def of_outcomes(m: int) -> list[list[Any]]:
    """Two models for each of ``m`` outcomes in conflict."""
    shifts = [2.0 * k for k in range(m)]
    return [[make(shift=k), make(ConditionalGP, shift=k)] for k in shifts]


def hypervolume(m: int) -> Any:
    models = of_outcomes(m)
    Y = torch.cat([m.train_targets.unsqueeze(-1) for m, _ in models], dim=-1)
    boxes = FastNondominatedPartitioning(Y.amin(0), Y)
    return AveragedLogExpectedHypervolumeImprovement(models, boxes)


def feasibility() -> FeasibilityPrior:
    return FeasibilityPrior(of_outcomes(2), [[2.0, 1.0], [0.0, 1.0]], [1.0, 0.5])


def improvement(**kwargs: Any) -> LogExpectedImprovement:
    return LogExpectedImprovement(make(**kwargs), best_f=0.5)


def clipped(tail: Any) -> LogExpectedImprovement:
    """Predictions stay on the clipped scale: only the standardisation is undone."""
    clip = ClipTail(tail=tail)
    outcome = ChainedOutcomeTransform(clip=clip, standardize=Standardize(m=1))
    return improvement(outcome_transform=outcome)


MAKERS: dict[str, Callable[[], Any]] = {
    "published": lambda: improvement(leaf_offset="fixed"),
    "conditional": lambda: improvement(model_class=ConditionalGP),
    "clipped": lambda: clipped("flat"),
    "compressed": lambda: clipped("log"),
    "mixture": lambda: averaged(0.3, 0.7),
    "mixture downwards": lambda: averaged(0.7, 0.3, 0.0, maximize=False),
    "interior": lambda: guided(averaged(0.3, 0.7), InteriorPrior(SPACE), 0.3),
    "feasibility": lambda: AveragedLogProbabilityOfFeasibility(feasibility()),
    "feasibility as prior": lambda: guided(improvement(), feasibility()),
    "both priors": lambda: guided(
        guided(averaged(0.5, 0.5), feasibility()), InteriorPrior(SPACE), 0.1
    ),
    "cost": lambda: guided(improvement(), CostPrior(make(shift=2.0))),
    "cost, some left": lambda: guided(improvement(), CostPrior(make(shift=2.0), 3.0)),
    "hypervolume of two": lambda: hypervolume(2),
    "hypervolume of three": lambda: hypervolume(3),
} | {
    f"{kind.__name__} {best_f} {maximize}": partial(
        lambda kind, f, up: kind(make(), best_f=f, maximize=up), kind, best_f, maximize
    )
    for kind in KINDS
    for best_f in (-4.0, 0.5, 9.0)
    for maximize in (True, False)
}


@pytest.mark.parametrize("make_acqf", MAKERS.values(), ids=MAKERS)
def test_is_what_autograd_gives(make_acqf: Callable[[], Any]) -> None:
    """Of a dense evaluation of the same models."""
    acqf, X = make_acqf(), points(30, 1)
    found, value = in_view(acqf, X, gradient=True), in_view(acqf, X, gradient=False)
    assert found is not None and value[1] is None
    for part in acqf.modules():
        if isinstance(part, (TreeStructuredGP, ConditionalGP)):
            part._solver_cache = (None,)
    close = {"rtol": 1e-7, "atol": 1e-9}
    expected = by_autograd(acqf, X)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **close)
    torch.testing.assert_close(value[0], expected[0], **close)


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_improvements_of_any_size(kind: type, dtype: torch.dtype) -> None:
    """From 1e9 standard deviations below the best value to 1e3 above."""
    u = torch.tensor([0.0, -1.0, -1.001, -9.0, -11.0, -99.0, -101.0, 1e3, -3e3, -1e9])
    u = torch.cat([u, torch.linspace(-12.0, 6.0, 50)]).to(dtype)
    sigma = torch.linspace(0.1, 2.0, len(u)).to(dtype)

    class Known(SingleTaskGP):
        """Mean and standard deviation are the columns of a point."""

        def moments_on(self, rows: Tensor, path: bool) -> Any:
            def moments(X: Any, row: Any, gradient: bool) -> PointMoments:
                def pull(of_mean: Any, of_variance: Any) -> Any:
                    return np.stack([of_mean, of_variance * 2.0 * X[:, 1]], axis=-1)

                return PointMoments(X[:, 0], X[:, 1] ** 2, pull)

            return moments

        def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
            from botorch.posteriors import GPyTorchPosterior
            from gpytorch.distributions import MultivariateNormal

            variance = X[..., 1].square().unsqueeze(-1)
            return GPyTorchPosterior(MultivariateNormal(X[..., 0], variance))

    model = Known(torch.rand(3, 2).to(dtype), torch.rand(3, 1).to(dtype))
    acqf = kind(model, best_f=torch.zeros((), dtype=dtype))
    X = torch.stack([u * sigma, sigma], dim=-1)
    value, gradient = in_view(acqf, X, gradient=True)
    expected, slope = by_autograd(acqf, X)
    # BoTorch's own derivatives lose digits in proportion to u^2
    close = u > -100
    tolerance = {"rtol": 1e-9, "atol": 1e-12}
    if dtype == torch.float:
        close, tolerance = u > -10, {"rtol": 2e-4, "atol": 1e-6}
    torch.testing.assert_close(value[close], expected[close], **tolerance)
    torch.testing.assert_close(gradient[close], slope[close], **tolerance)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    assert gradient.isfinite().all()
    if kind is LogExpectedImprovement and dtype == torch.double:
        # h'/h -> |u|, relative to 1 / u^2
        far = u < -1e3
        torch.testing.assert_close(
            gradient[far, 0], -u[far] / sigma[far], rtol=1e-6, atol=0.0
        )


class OtherPosterior(TreeStructuredGP):
    def posterior(self, *args: Any, **kwargs: Any) -> Any:
        return super().posterior(*args, **kwargs)


class OtherCall(TreeStructuredGP):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class OtherPath(TreeStructuredGP):
    def path_posterior(self, X: Tensor) -> Any:
        return super().path_posterior(X)


def test_other_acquisition_functions_need_autograd() -> None:
    model, X = make(), points(4, 1)

    class Mine(LogExpectedImprovement):
        def forward(self, X: Tensor) -> Tensor:
            return X.sum((-1, -2))

    transform = ScalarizedPosteriorTransform(torch.ones(1, dtype=torch.double))
    batch = SingleTaskGP(X, X.sum(-1, keepdim=True))
    for acqf in (
        AveragedLogExpectedImprovement([model, batch], 0.5),
        guided(improvement(), torch.nn.Identity()),
        Mine(model, best_f=0.0),
        ProbabilityOfImprovement(model, best_f=0.0),
        LogExpectedImprovement(model, 0.0, posterior_transform=transform),
        LogExpectedImprovement(model, torch.zeros(4)),
        LogExpectedImprovement(batch, best_f=0.0),
    ):
        assert in_view(acqf, X, gradient=True) is None
    for mine in (OtherPosterior, OtherCall):
        acqf = LogExpectedImprovement(make(mine), best_f=0.0)
        assert in_view(acqf, X, gradient=True) is None
    acqf = PathExpectedImprovement(make(OtherPath), best_f=0.0)
    assert in_view(acqf, X, gradient=True) is None
    acqf = LogExpectedImprovement(make(OtherPath), best_f=0.0)
    assert in_view(acqf, X, gradient=True) is not None
    acqf = LogExpectedImprovement(model, best_f=0.0)
    assert in_view(acqf, X.float(), gradient=True) is None  # the model is converted
    assert in_view(acqf, X, gradient=True) is not None


def test_a_guided_function_with_pending_points_has_no_view() -> None:
    X = points(4, 1)
    acqf = guided(improvement(), InteriorPrior(SPACE))
    assert in_view(acqf, X, gradient=True) is not None
    acqf.set_X_pending(X[:1])
    assert in_view(acqf, X, gradient=True) is None
