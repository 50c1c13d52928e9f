from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from botorch_structured.spaces import Between, Equals, In, Inactive
from botorch_structured.spaces.conditions import And, Or

X = torch.tensor([[0, 0.2], [1, 0.5], [2, 0.7]], dtype=torch.double)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Equals(0, 1), [False, True, False]),
        (In(0, [2, 0]), [True, False, True]),
        (Between(1, 0.5, 0.7), [False, True, True]),
        (Between(1, 0.3, math.inf), [False, True, True]),
        (Equals(0, 1) | Between(1, 0.6, 1), [False, True, True]),
        (In(0, [1, 2]) & Between(1, 0.6, 1), [False, False, True]),
        ((Equals(0, 0) | Equals(0, 1)) & Between(1, 0, 0.3), [True, False, False]),
        (And(()), [True, True, True]),
        (Or(()), [False, False, False]),
        (Inactive(0), [False, False, False]),
    ],
)
def test_evaluation(condition, expected, device: torch.device) -> None:
    assert condition.holds(X.to(device)).tolist() == expected
    assert condition.holds(X.repeat(2, 1, 1)).tolist() == [expected] * 2
    assert condition.holds(X.float()).shape == (3,)
    assert condition.holds(X).dtype == torch.bool


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, -3.0, 1e9])
def test_what_counts_as_rounding_of_a_value(value: float) -> None:
    """A millionth of the value, or of 1 for smaller ones."""
    step = 1e-6 * max(1.0, abs(value))
    x = value + step * torch.tensor([[-1.1], [-0.9], [0.9], [1.1]], dtype=torch.double)
    for condition in (Equals(0, value), In(0, [value, 1e12])):
        assert condition.holds(x).tolist() == [False, True, True, False]


def test_an_atom_needs_an_active_parent() -> None:
    active = torch.tensor([[True, True], [False, True], [True, False]])
    assert Equals(0, 1).holds(X, active).tolist() == [False, False, False]
    assert Between(1, 0, 1).holds(X, active).tolist() == [True, True, False]
    assert Inactive(0).holds(X, active).tolist() == [False, True, False]


def test_expressions_are_values() -> None:
    condition = Equals(0, 1) & (In(2, (3, 1)) | Between(1, 0, 1)) & Equals(0, 1)
    assert condition == And((Equals(0, 1.0), In(2, [1, 3]) | Between(1, 0, 1)))
    assert condition.columns() == {0, 1, 2}
    assert hash(condition) == hash(copy.deepcopy(condition))
    assert pickle.loads(pickle.dumps(condition)) == condition
    assert (Equals(0, 1) & Equals(1, 1)) != (Equals(0, 1) | Equals(1, 1))
    assert Equals(0, -0.0) == Equals(0, 0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Equals(-1, 0), "col: expected an integer from 0 on"),
        (lambda: Equals(0.5, 0), "col: expected an integer from 0 on"),
        (lambda: Equals(0, "rbf"), "values: expected a number, got 'rbf'"),
        (lambda: Equals(0, math.nan), "finite"),
        (lambda: Equals(0, math.inf), "finite"),
        (lambda: In(0, []), "values: expected .*at least one"),
        (lambda: In(0, [torch.ones(2)]), "values: expected a number"),
        (lambda: In(0, 3), "list of values"),
        (lambda: In(0, [1, 1.0]), "distinct"),
        (lambda: Between(0, 2, 1), "lo <= hi"),
        (lambda: Between(0, math.nan, 1), "lo: .*NaN"),
        (lambda: Between(0, math.inf, math.inf), "lo <= hi"),
    ],
)
def test_errors(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
