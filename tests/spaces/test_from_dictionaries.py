from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from strategies import up_to_last_digits

from botorch_structured.spaces import SearchSpace

LEARNERS = [
    {
        "scale": ["passthrough", "standard"],
        "learner": ["svm"],
        "C": (1e-3, 1e3, "log"),
        "gamma": stats.loguniform(1e-4, 1),
    },
    {"scale": ["passthrough", "standard"], "learner": ["ridge"], "C": (0.0, 1.0)},
    {"learner": ["neighbours"], "k": (1, 50), "p": [1, 2], "leaf_size": 30},
]


class Learner:
    """Stands for an estimator: equal to nothing but itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_params(self) -> dict[str, Any]:
        return {"name": self.name}

    def __repr__(self) -> str:
        return f"Learner({self.name})"


@pytest.mark.parametrize(
    ("values", "low", "high", "middle"),
    [
        ((1, 9), 1, 9, 5),
        ((1.0, 9), 1.0, 9.0, 5.0),
        ((np.int64(1), np.int64(9)), 1, 9, 5),
        ((1, 100, "log"), 1, 100, 10),
        ((0.01, 1.0, "log"), 0.01, 1.0, 0.1),
        (stats.uniform(2, 4), 2.0, 6.0, 4.0),
        (stats.uniform(loc=2, scale=4), 2.0, 6.0, 4.0),
        (stats.loguniform(0.01, 1), 0.01, 1.0, 0.1),
        (stats.reciprocal(0.01, 1), 0.01, 1.0, 0.1),
        (stats.randint(1, 10), 1, 9, 5),
    ],
)
def test_ranges(values: Any, low: float, high: float, middle: float) -> None:
    space = SearchSpace.from_dictionaries({"x": values})
    decoded = [space.decode(x)[0]["x"] for x in space.bounds]
    assert decoded == [low, high]
    (config,) = space.decode(space.starts(kind="middle"))
    assert config["x"] == pytest.approx(middle)
    assert type(config["x"]) is type(low)


@pytest.mark.parametrize(
    ("values", "ordered"),
    [
        ([1, 2, 4], True),
        (np.logspace(-3, 3, 7), True),
        (range(3), True),
        (torch.tensor([1.0, 2.0, 4.0]), True),
        ([0.1, 0.01, 0.001], True),
        ([4, 1, 2], False),
        ([None, 1, 2], False),
        ([False, True], False),
        ([(50,), (50, 50)], False),
        (np.array(["a", "b"]), False),
        ([np.arange(2), np.arange(3)], False),
    ],
)
def test_choices(values: Any, ordered: bool) -> None:
    space = SearchSpace.from_dictionaries({"x": values})
    assert (space.integer_features == [0]) == ordered
    X = space.sample(20, seed=0)
    assert torch.equal(space.encode(space.decode(X)), X)
    seen = space.decode(torch.arange(len(values)).unsqueeze(-1).double())
    for config, value in zip(seen, values, strict=True):
        assert config["x"] is value or config["x"] == value


@pytest.mark.parametrize("value", ["text", 3, None, True, Learner("a"), len, ["only"]])
def test_constants(value: Any) -> None:
    space = SearchSpace.from_dictionaries({"x": (0.0, 1.0), "c": value})
    (config,) = space.decode(space.starts(seed=0))
    assert config["c"] == (value[0] if isinstance(value, list) else value)
    assert space.names == ["x"]
    assert space.encode(config).shape == (1, 1)


@pytest.mark.parametrize(
    ("dictionaries", "message"),
    [
        (3, "dictionaries: expected {name: values}, .*got 3"),
        ([3], "dictionaries: expected {name: values}, .*got 3"),
        ({1: [2]}, "dictionaries: expected {name: values}"),
        ([], "at least one parameter with several values, got none"),
        ({"x": 3}, r"with several values, got only constants, \['x'\]"),
        ({"x": []}, r"'x': expected .* at least one choice, .* got \[\]"),
        ({"x": (1, "log")}, r"'x': expected \(low, high\) .* got \(1, 'log'\)"),
        ({"x": (1,)}, r"'x': expected \(low, high\) or .* got \(1,\)"),
        ({"x": (2, 1)}, r"'x': .* with numbers low < high, .* got \(2, 1\)"),
        ({"x": (True, 3)}, r"'x': .* with numbers .* got \(True, 3\)"),
        (
            {"x": (1, 2, "linear")},
            r"'x': expected .* or \(low, high, 'log'\) .* or a list",
        ),
        ({"x": ("a", "b")}, r"'x': .* or a list of choices \['a', 'b'\], got \('a'"),
        ({"x": {1, 2}}, r"'x': expected a list, .* got {1, 2}"),
        ({"x": np.eye(2)}, "'x': expected a list, or an array with one axis"),
        ({"x": stats.norm(0, -1)}, "'x': expected bounds in ascending order, .* nan"),
        ({"x": (0, 1, "log")}, "'x': expected a positive lower bound"),
        ({"x": [1, 1]}, "'x': expected distinct choices"),
        ({"x": [0.5, np.nan, np.nan]}, "'x': expected distinct choices"),
        ({"x": (0, 2**53 + 1)}, "no number above 9007199254740992"),
    ],
)
def test_what_is_no_space(dictionaries: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchSpace.from_dictionaries(dictionaries)


@pytest.mark.parametrize(
    "frozen",
    [
        stats.expon(scale=100),
        stats.norm(10, 1),
        stats.truncnorm(0.1, 5, loc=1, scale=2),
        stats.loguniform(1e-3, 1e3, loc=1),
        stats.lognorm(2.0),
        stats.beta(0.5, 0.5),
    ],
)
def test_any_distribution_by_its_quantiles(frozen: Any) -> None:
    dictionaries = [{"l": ["a"], "x": frozen}, {"l": ["b"], "x": copy.deepcopy(frozen)}]
    space = SearchSpace.from_dictionaries(dictionaries)
    assert space.names == ["l", "x"]  # one parameter
    X = space.sample(400, seed=0)
    values = [config["x"] for config in space.decode(X)]
    assert stats.kstest(values, frozen.cdf).pvalue > 0.01
    assert torch.equal(space.encode(space.decode(X)), X)
    X[:, 1] = 0.7 * X[:, 1] + 0.1
    assert torch.equal(space.encode(space.decode(X)), space.rounded(X))
    told = 1.1 * frozen.median()
    (back,) = space.decode(space.encode({"l": "a", "x": told}))
    assert back["x"] == pytest.approx(told, rel=1e-10)
    assert torch.equal(space.encode(back), space.encode({"l": "a", "x": told}))
    low, high = frozen.ppf([1e-3, 1 - 1e-3])
    with pytest.raises(ValueError, match=f"expected a number in .{low}, {high}"):
        space.encode({"l": "a", "x": high + 1.0})
    other = SearchSpace.from_dictionaries({"x": stats.norm(10, 2), "y": (0, 1)})
    assert pickle.loads(pickle.dumps(space)) == space != other


def test_distributions_of_whole_numbers() -> None:
    given = {
        "a": stats.poisson(7),
        "b": stats.randint(3, 4),
        "c": stats.randint(2, 2000),
    }
    space = SearchSpace.from_dictionaries(given)
    assert space.bounds.tolist() == [[1.0, 2.0], [16.0, 1999.0]]
    assert space.constants[0].value == 3


def test_the_decision_is_the_parameter_whose_choices_differ() -> None:
    space = SearchSpace.from_dictionaries(LEARNERS)
    assert space.names == ["learner", "scale", "C@1", "gamma", "C@2", "k", "p"]
    assert space.tree.decision_columns == [0]
    assert space.tree.num_paths == 3
    svm, ridge, neighbours = space.decode(space.starts(seed=0))
    assert list(svm) == ["learner", "scale", "C", "gamma"]
    assert list(ridge) == ["learner", "scale", "C"]
    assert 0 <= ridge["C"] <= 1
    assert neighbours["leaf_size"] == 30


def test_dictionaries_of_the_same_columns_are_paths() -> None:
    groups = [{"branch": [name], "x": (0.0, 1.0)} for name in "abcd"]
    space = SearchSpace.from_dictionaries(groups)
    assert space.names == ["branch", "x"]
    assert space.tree.decision_columns == [0] and space.tree.num_paths == 4


def test_estimators_are_choices() -> None:
    a, b = Learner("a"), Learner("a")
    space = SearchSpace.from_dictionaries(
        [{"learner": [a], "x": (0.0, 1.0)}, {"learner": b, "y": (0.0, 1.0)}]
    )
    configs = space.decode(space.starts(seed=0))
    assert configs[0]["learner"] is a
    assert configs[1]["learner"] is b
    with pytest.raises(ValueError, match="'learner': expected Learner"):
        space.encode({"learner": Learner("b"), "x": 0.5})


def test_true_is_not_one() -> None:
    space = SearchSpace.from_dictionaries({"x": [1, True, 0, False, "1"]})
    X = torch.arange(5.0).double().unsqueeze(-1)
    decoded = [config["x"] for config in space.decode(X)]
    assert [repr(v) for v in decoded] == ["1", "True", "0", "False", "'1'"]
    assert torch.equal(space.encode(space.decode(X)), X)


def test_without_a_decision_there_is_one_that_is_not_shown() -> None:
    space = SearchSpace.from_dictionaries(
        [{"a": (0.0, 1.0), "b": (1, 5)}, {"a": (0.0, 2.0)}, {"dictionary": (0.0, 1.0)}]
    )
    assert space.tree.num_paths == 3
    X = space.starts(seed=0)
    configs = space.decode(X)
    assert [list(config) for config in configs] == [["a", "b"], ["a"], ["dictionary"]]
    assert torch.equal(space.encode(configs), X)


def test_of_dictionaries_that_overlap_the_first_is_taken() -> None:
    space = SearchSpace.from_dictionaries([{"a": (0.0, 1.0)}, {"a": (0.0, 2.0)}])
    X = space.encode([{"a": 0.5}, {"a": 1.5}])
    assert space.tree.path_index(X).tolist() == [0, 1]
    second = torch.tensor([[1.0, 0.5, 0.5]], dtype=torch.double)
    assert space.decode(second) == [{"a": 0.5}]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"learner": "svm", "C": 1.0, "gamma": 0.1}, r"without \['scale'\]"),
        (
            {"learner": "ridge", "scale": "standard", "C": 0.5, "gamma": 0.1},
            r"with \['gamma'\] in addition",
        ),
        ({"learner": "ridge", "scale": "standard", "C": 5.0}, "'C': expected a number"),
        ({"learner": "lasso"}, "'learner': expected 'svm' or 'ridge' or 'neighbours'"),
        ({"k": 3, "p": 1, "alpha": 1}, r"without \['learner', 'leaf_size'\]"),
        (
            {"learner": "neighbours", "k": 3, "p": 1, "leaf_size": 10},
            "'leaf_size': expected 30, got 10",
        ),
    ],
)
def test_what_is_no_configuration(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchSpace.from_dictionaries(LEARNERS).encode(config)


def test_none_may_be_a_choice() -> None:
    space = SearchSpace.from_dictionaries(
        [{"x": (0.0, 1.0)}, {"x": (0.0, 1.0), "depth": [None, 3]}]
    )
    configs = [{"x": 0.5}, {"x": 0.5, "depth": None}, {"x": 0.5, "depth": 3}]
    assert space.decode(space.encode(configs)) == configs


VALUES = st.sampled_from(
    [
        (0.0, 1.0),
        (1e-3, 1e3, "log"),
        (1, 7),
        (1, 1000, "log"),
        ["a", "b"],
        ["b", "c"],
        ["c"],
        [1, 2, 3],
        [True, 1, None],
        "constant",
    ]
)
DICTIONARIES = st.lists(
    st.dictionaries(st.sampled_from(["p", "q", "r", "dictionary"]), VALUES, min_size=1),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(DICTIONARIES)
def test_every_configuration_comes_back(dictionaries: list[dict[str, Any]]) -> None:
    try:
        space = SearchSpace.from_dictionaries(dictionaries)
    except ValueError as error:
        assert "several values" in str(error)
        return
    X = torch.cat([space.starts(seed=0), space.sample(10, seed=0)])
    assert space.feasible(X).all()
    configs = space.decode(X)
    for config in configs:
        assert any(config.keys() == d.keys() for d in dictionaries)
    # through the first dictionary that has it, perhaps another than it came from
    again = space.decode(space.encode(configs))
    assert again == [up_to_last_digits(config) for config in configs]


def test_a_range_that_was_written_as_a_list() -> None:
    """JSON and YAML have no tuples."""
    with pytest.raises(ValueError, match=r"a tuple, \(0.001, 10.0, 'log'\)"):
        SearchSpace.from_dictionaries({"C": [1e-3, 10.0, "log"]})


def test_numbers_that_differ_by_rounding_are_one_choice() -> None:
    steps = np.arange(0.1, 1.05, 0.1)
    space = SearchSpace.from_dictionaries({"rate": list(steps)})
    assert space.encode([{"rate": 0.3}]).item() == 2.0
    assert space.decode(torch.tensor([[2.0]])) == [{"rate": float(steps[2])}]
    for value in (0.3000001, 1e300, float("inf")):
        with pytest.raises(ValueError, match="rate"):
            space.encode([{"rate": value}])
    around_0 = SearchSpace.from_dictionaries({"x": list(np.arange(-0.3, 0.31, 0.1))})
    assert around_0.encode([{"x": 0.0}]).item() == 3.0
