"""Checks that several test files make of problems that are sums of parts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch


def check_what_the_harness_needs(make: Callable[[], Any], evaluate: bool) -> None:
    """Starts by seed, a space, and copies; ``evaluate`` where that is quick."""
    problem = make()
    X = problem.starts(3)
    assert X.shape == (4, problem.dim)
    assert torch.equal(X, problem.starts(3))
    assert not torch.equal(X, problem.starts(4))
    assert problem.space.feasible(X).all()
    assert torch.equal(problem.starts(3, 2), X[:2])
    state = torch.get_rng_state()
    problem.starts(0), problem.space.sample(1, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(problem.space.bounds, problem.bounds)
    assert len(set(problem.space.names)) == problem.dim
    if evaluate:
        value = problem(X)
        for same in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
            assert torch.equal(same(X), value)
        assert torch.equal(make()(X), value)
