"""The rules for all problems: BoTorch's own, copies, noise, negation and starts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.test_functions.synthetic import SyntheticTestFunction
from botorch.utils.testing import (
    BaseTestProblemTestCaseMixIn,
    BotorchTestCase,
    SyntheticTestFunctionTestCaseMixin,
)

from botorch_structured.test_functions import (
    RKHS1D,
    ElasticNetTuning,
    GramacyExponential2D,
    JenattonTree,
    MonotoneMixture1D,
    QuadraticTasks,
    ScikitLearnCASH,
    TableProblem,
)

Make = Callable[..., Any]


def large_tree(**kwargs: Any) -> JenattonTree:
    return JenattonTree(8, shared=True, quadratic_shared=True, **kwargs)


def chain(**kwargs: Any) -> JenattonTree:
    return JenattonTree(5, balanced=False, off_centre=True, **kwargs)


def five_tasks(**kwargs: Any) -> QuadraticTasks:
    return QuadraticTasks(5, **kwargs)


def table(**kwargs: Any) -> TableProblem:
    X = torch.rand(30, 2, generator=torch.Generator().manual_seed(0)).double()
    return TableProblem(X, X.sum(-1), **kwargs)


BOXES: list[Make] = [RKHS1D, GramacyExponential2D, MonotoneMixture1D]
EVERY: list[Make] = [*BOXES, JenattonTree, large_tree, chain, five_tasks]


@pytest.mark.parametrize("make", [*EVERY, table])
def test_values(make: Make) -> None:
    problem = make()
    assert isinstance(problem, SyntheticTestFunction)
    X = problem.starts(3)[:2]
    Y = problem(X)
    assert torch.equal(problem(X.reshape(2, 1, -1)), Y.reshape(2, 1))
    assert problem(X[0]).shape == ()
    assert torch.equal(make(negate=True)(X), -Y)
    assert make(negate=True).optimal_value == -problem.optimal_value
    single = make(dtype=torch.float32)
    assert single.starts(3).dtype == torch.float32
    torch.testing.assert_close(single(X.float()), Y.float())
    for other in (copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert torch.equal(other(X), Y) and torch.equal(other.starts(3)[:2], X)


@pytest.mark.parametrize("make", [*EVERY, table])
def test_noise(make: Make) -> None:
    problem = make(noise_std=0.5)
    X = problem.starts(0)[:1].expand(4000, -1)
    torch.manual_seed(0)
    noise = problem(X) - problem(X, noise=False)
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    with pytest.raises(ValueError, match="noise_std: expected no negative .*got -1.0"):
        make(noise_std=-1.0)


@pytest.mark.parametrize(
    "make", [*EVERY, table, ElasticNetTuning, lambda: ScikitLearnCASH("iris")]
)
def test_starts(make: Make) -> None:
    if make not in (*EVERY, table):
        pytest.importorskip("sklearn")
    problem = make()
    state = torch.get_rng_state()
    X = problem.starts(3)
    problem.space.sample(1, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(X, make().starts(3)) and not torch.equal(X, problem.starts(4))
    assert problem.space.feasible(X).all()
    assert torch.equal(problem.space.bounds, problem.bounds)
    assert problem.tree == problem.space.tree
    assert len(X) >= problem.tree.num_paths


@pytest.mark.parametrize("make", EVERY)
def test_devices(make: Make, device: torch.device) -> None:
    problem = make()
    X = problem.starts(0)
    Y = problem(X)
    moved = problem.to(device)(X.to(device))
    assert moved.device.type == device.type
    torch.testing.assert_close(moved.cpu(), Y)


@pytest.mark.parametrize("make", [RKHS1D, GramacyExponential2D])
def test_other_bounds(make: Any) -> None:
    best = make._optimizers[0]
    narrow = make(bounds=[(x - 0.1, x + 0.2) for x in best])
    assert torch.equal(narrow.bounds, narrow.space.bounds)
    assert narrow.space.feasible(narrow.starts(0)).all()
    with pytest.raises(ValueError, match="No global optimum"):
        make(bounds=[(x + 0.01, x + 0.02) for x in best])
    with pytest.raises(ValueError, match="negate: expected True or False, got 3"):
        make(negate=3)


class TestAsBoTorchTestsItsOwn(
    BotorchTestCase, BaseTestProblemTestCaseMixIn, SyntheticTestFunctionTestCaseMixin
):
    functions = [
        make(noise_std=noise, negate=negate)
        for make in EVERY
        for noise, negate in ((None, False), (0.1, True))
    ]
    # a corner is an optimum with a gradient, and the number of a task has none
    for function in functions:
        if isinstance(function, QuadraticTasks):
            function._check_grad_at_opt = False
