import math

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    qLogExpectedImprovement,
)
from botorch.exceptions.errors import CandidateGenerationError
from botorch.models import SingleTaskGP
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.optim import adaptive_sobol_candidates, optimize_acqf_sobol


def box(d: int, seed: int = 0, dtype: torch.dtype = torch.double) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randn(2, d, generator=generator, dtype=dtype) * 10
    return ends.sort(dim=0).values


class Steps(AcquisitionFunction):
    """Flat but for a staircase that leads down from a peak: no gradient anywhere."""

    def __init__(self, peak: Tensor, width: Tensor, steps: int = 1000) -> None:
        super().__init__(model=torch.nn.Module())
        self.peak, self.width, self.steps = peak, width, steps
        self.sizes: list[int] = []

    def forward(self, X: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.sizes.append(len(X))
        distance = ((X.squeeze(-2) - self.peak) / self.width).norm(dim=-1)
        return -(distance * self.steps).floor()


@given(
    seed=st.integers(0, 10_000),
    d=st.integers(1, 8),
    n=st.integers(1, 300),
    k=st.integers(0, 3),
)
@settings(deadline=None, max_examples=40)
def test_so_many_points_in_the_box(seed: int, d: int, n: int, k: int) -> None:
    bounds = box(d, seed)
    U = torch.rand(k, d, generator=torch.Generator().manual_seed(seed)).double()
    best = bounds[0] + U * (bounds[1] - bounds[0])
    state = torch.get_rng_state()
    X = adaptive_sobol_candidates(bounds, n, best, seed)
    assert torch.equal(state, torch.get_rng_state())
    assert X.shape == (n, d)
    assert X.dtype == bounds.dtype
    assert ((bounds[0] <= X) & (X <= bounds[1])).all()
    assert torch.equal(X, adaptive_sobol_candidates(bounds, n, best, seed))


def test_a_grid_of_twenty_thousand() -> None:
    """Every cell of a 10 x 10 x 10 partition has its 20 points, nearly."""
    bounds = box(3)
    X = adaptive_sobol_candidates(bounds, seed=0)
    assert len(X) == 20_000
    U = (X - bounds[0]) / (bounds[1] - bounds[0])
    cell = (U * 10).long() @ torch.tensor([100, 10, 1])
    counts = cell.bincount(minlength=1000)
    assert counts.min() >= 10  # of as many random points a cell would have 4
    assert counts.max() <= 30
    assert not torch.equal(X, adaptive_sobol_candidates(bounds, seed=1))


def test_a_tenth_of_them_around_each_incumbent() -> None:
    bounds = torch.tensor([[0.0, -100], [1, 100]], dtype=torch.double)
    best = torch.tensor([[0.2, 60], [0.9, -20]], dtype=torch.double)
    width = bounds[1] - bounds[0]
    plain = adaptive_sobol_candidates(bounds, 6000, seed=0)
    X = adaptive_sobol_candidates(bounds, 6000, best, seed=0)
    # what fills the box is what would fill it without an incumbent
    assert torch.equal(X[:5400], plain[:5400])
    for centre in best:
        for radius, share in ((3e-3, 0.1), (0.03, 0.4)):
            near = ((X - centre) / width).norm(dim=-1) < radius
            expected = ((plain - centre) / width).norm(dim=-1) < radius
            assert near.sum() - expected.sum() > share * 300
    one = adaptive_sobol_candidates(bounds, 100, best[0], seed=0)
    assert torch.equal(one, adaptive_sobol_candidates(bounds, 100, best[:1], seed=0))
    corner = adaptive_sobol_candidates(bounds, 1000, bounds[1], seed=0)
    # an incumbent in a corner has neighbours along the edges, too
    assert 10 < (corner == bounds[1]).any(-1).sum() < 100


@pytest.mark.parametrize("d", [1, 2, 4])
def test_finds_a_peak_without_a_gradient(d: int) -> None:
    bounds = box(d)
    width = bounds[1] - bounds[0]
    peak = bounds[0] + 0.37 * width
    acqf = Steps(peak, width)
    X, value = optimize_acqf_sobol(acqf, bounds, seed=0)
    assert X.shape == (1, d)
    assert value.shape == ()
    assert sum(acqf.sizes) == 23_000
    with torch.no_grad():
        assert value == acqf(X)
    assert value >= -10  # within 0.01 of the peak
    _, of_the_grid = optimize_acqf_sobol(acqf, bounds, num_rounds=0, seed=0)
    assert of_the_grid < value if d > 2 else of_the_grid <= value
    again, _ = optimize_acqf_sobol(acqf, bounds, seed=0)
    assert torch.equal(X, again)


def gp(n: int = 12, d: int = 2) -> tuple[SingleTaskGP, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator, dtype=torch.double)
    Y = -(X - 0.4).square().sum(-1, keepdim=True)
    return SingleTaskGP(X, Y), X, Y


def test_looks_around_the_best_training_point() -> None:
    model, X, Y = gp()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    best = X[Y.argmax()]
    seen = []

    class Recorded(LogExpectedImprovement):
        def forward(self, X: Tensor) -> Tensor:
            seen.append(X.squeeze(-2))
            return super().forward(X)

    acqf = Recorded(model, best_f=Y.max())

    def asked(**arguments) -> Tensor:
        seen.clear()
        optimize_acqf_sobol(acqf, seed=3, num_rounds=0, **arguments)
        return torch.cat(seen)

    default = asked(bounds=bounds)
    assert torch.equal(default, asked(bounds=bounds, best_X=best))
    assert not torch.equal(default, asked(bounds=bounds, best_X=best[None][:0]))


def test_every_promise_is_kept() -> None:
    model, X, Y = gp()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    acqf = qLogExpectedImprovement(model, best_f=Y.max())
    first, _ = optimize_acqf_sobol(acqf, bounds, num_points=2000, seed=0)
    one = torch.ones(2, dtype=torch.double)
    x, values = optimize_acqf_sobol(
        acqf,
        bounds,
        q=3,
        num_points=2000,
        inequality_constraints=[(torch.tensor([0, 1]), one, 1.0)],
        feasible=lambda X: X[:, 0] < 0.45,
        X_avoid=torch.cat([X, first]),
        min_distance=0.02,
        seed=0,
    )
    assert x.shape == (3, 2)
    assert values.shape == (3,)
    assert acqf.X_pending is None
    assert (x.sum(-1) >= 1.0).all()
    assert (x[:, 0] < 0.45).all()
    assert torch.cdist(x, torch.cat([X, first]), p=math.inf).min() >= 0.02
    assert torch.pdist(x, p=math.inf).min() >= 0.02
    state = torch.get_rng_state()
    optimize_acqf_sobol(
        LogExpectedImprovement(model, best_f=Y.max()), bounds, num_points=100, seed=0
    )
    assert torch.equal(state, torch.get_rng_state())


def test_does_not_return_to_the_same_place() -> None:
    """By default a thousandth of the width away, in some column, from what is known."""
    bounds = box(2)
    width = bounds[1] - bounds[0]
    acqf = Steps(bounds.mean(0), width, steps=10**9)
    found = torch.empty(0, 2, dtype=torch.double)
    for _ in range(5):
        x, _ = optimize_acqf_sobol(acqf, bounds, best_X=found, X_avoid=found, seed=0)
        found = torch.cat([found, x])
    apart = torch.pdist(found / width, p=math.inf)
    assert apart.min() >= 1e-3
    assert apart.max() < 0.01  # all are next to the peak
    again = bounds[:0]
    for _ in range(2):
        x, _ = optimize_acqf_sobol(
            acqf, bounds, X_avoid=again, min_distance=0.0, seed=0
        )
        again = torch.cat([again, x])
    assert 0 < torch.pdist(again / width, p=math.inf) < 1e-3


def test_a_peak_that_is_worth_it_is_climbed_however_near_it_is() -> None:
    bounds = box(2)
    width = bounds[1] - bounds[0]
    acqf = Steps(bounds.mean(0), width, steps=10**4)
    known = (bounds.mean(0) + 0.01 * width).unsqueeze(0)
    arguments = dict(bounds=bounds, X_avoid=known, min_distance=0.2, seed=0)

    def distance(x: Tensor) -> Tensor:
        return ((x - known) / width).abs().max()

    far, value = optimize_acqf_sobol(acqf, **arguments)
    assert distance(far) >= 0.2
    near, better = optimize_acqf_sobol(acqf, refine_above=-100.0, **arguments)
    assert distance(near) < 0.02
    assert better > -100 > value
    # nothing is worth that much: the distance holds, and so it does by default
    same, its_value = optimize_acqf_sobol(acqf, refine_above=1.0, **arguments)
    assert distance(same) >= 0.2
    torch.testing.assert_close(its_value, value, rtol=0.01, atol=0.0)
    never, _ = optimize_acqf_sobol(acqf, refine_above=math.inf, **arguments)
    assert torch.equal(never, far)
    # a point that is known stays known
    arguments["X_avoid"] = near
    other, _ = optimize_acqf_sobol(acqf, refine_above=-100.0, **arguments)
    assert ((other - near) / width).abs().max() >= 1e-4


def test_nothing_left() -> None:
    model, _, Y = gp()
    acqf = LogExpectedImprovement(model, best_f=Y.max())
    point = torch.tensor([[0.3, 0.7], [0.3, 0.7]], dtype=torch.double)
    x, _ = optimize_acqf_sobol(acqf, point, num_points=10)
    assert torch.equal(x, point[:1])
    with pytest.raises(CandidateGenerationError, match="1 points are known"):
        optimize_acqf_sobol(acqf, point, num_points=10, X_avoid=point[:1])
    with pytest.raises(CandidateGenerationError, match="feasible"):
        optimize_acqf_sobol(
            acqf, point + torch.tensor([[0.0], [0.1]]), feasible=lambda X: X[:, 0] > 1
        )
