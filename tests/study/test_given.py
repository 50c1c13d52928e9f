"""What a study takes as a space, and what `Study.ask(fixed=...)` does."""

from __future__ import annotations

from typing import Any

import pytest
from ConfigSpace import (
    Categorical,
    ConfigurationSpace,
    Constant,
    EqualsCondition,
    Float,
    NotEqualsCondition,
)

from botorch_structured import Study
from botorch_structured.spaces import SearchSpace

GROUPS = [
    {"a": ["x"], "b": (0.0, 1.0), "epochs": 20, "kind": ["u"], "size": 5},
    {"a": ["y"], "c": (0.0, 1.0), "epochs": 20, "kind": ["v"], "size": (1, 9)},
    {"a": ["z"], "c": (0.0, 1.0), "epochs": 20},
]


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"epochs": 21}, "'epochs': expected its constant 20, got 21"),
        (
            {"kind": "w"},
            "'kind': expected its constant 'u' or its constant 'v', got 'w'",
        ),
        ({"kind": "u"}, "expected its constant 'v', got 'u'. Others take it: hold"),
        (
            {"size": 0},
            r"'size': expected its constant 5 or an integer in \[1, 9\], got 0",
        ),
        ({"a": "x", "size": 0}, r"'size': expected its constant 5, got 0\.$"),
        ({"a": "y", "size": 0}, r"'size': expected an integer in \[1, 9\], got 0\.$"),
        ({"size": 6}, "expected its constant 5, got 6. Others take it: hold what"),
        ({"a": "z", "kind": "u"}, "got 'kind', which none has with {'a': 'z'}"),
        ({"a": "y", "kind": "u"}, "expected its constant 'v', got 'u'"),
        ({"epoch": 20}, r"among \['a', 'b', 'epochs', 'kind', 'size', 'c'\]"),
    ],
)
def test_values_that_a_constant_does_not_have(
    fixed: dict[str, Any], message: str
) -> None:
    study = Study(GROUPS, seed=0)
    with pytest.raises(ValueError, match=f"^fixed: .*{message}"):
        study.ask(fixed=fixed)
    assert not study.pending


@pytest.mark.parametrize(
    "fixed",
    [
        {"epochs": 20},
        {"epochs": 20.0, "a": "y"},
        {"a": "x", "kind": "u"},
        {"a": "x", "size": 5},
        {"a": "y", "size": 6},
        {"size": 5},
    ],
)
def test_a_constant_is_held_at_its_own_value(fixed: dict[str, Any]) -> None:
    for config in Study(GROUPS, seed=0).ask(4, fixed=fixed):
        assert all(fixed.get(k, v) == v for k, v in config.items())


def test_constants_below_parameters_that_decide_nothing_else() -> None:
    cs = ConfigurationSpace()
    a, b = Categorical("a", ["x", "y"]), Categorical("b", ["u", "v"])
    one, two, three = Constant("one", 1), Constant("two", 2), Constant("three", 3)
    cs.add(a, b, one, two, three, Float("f", (0.0, 1.0)))
    cs.add(EqualsCondition(b, a, "x"), EqualsCondition(one, b, "u"))
    cs.add(NotEqualsCondition(two, b, "u"), EqualsCondition(three, a, "y"))
    study = Study(cs, seed=0)
    none = "none has with"
    for fixed in (
        {"one": 1, "a": "y"},
        {"one": 1, "b": "v"},
        {"two": 2, "a": "x", "b": "u"},
        {"three": 3, "a": "x"},
    ):
        with pytest.raises(ValueError, match=none):
            study.ask(fixed=fixed)
    for fixed in (
        {"one": 1},
        {"one": 1, "b": "u"},
        {"two": 2, "b": "u"},  # where `b` is not active
        {"two": 2, "a": "y"},
        {"three": 3},
    ):
        assert study.ask(fixed=fixed)


def test_dictionaries_that_no_parameter_tells_apart() -> None:
    """The hint is not to hold what there is not."""
    study = Study([{"k": ["b"], "y": [6]}, {"k": ["a", "b"]}], seed=0)
    with pytest.raises(ValueError, match="got 'a'. .* but no parameter tells them apa"):
        study.ask(fixed={"k": "a"})


RATIO = {"ratio": (0.0, 1.0)}


@pytest.mark.parametrize(
    "dictionaries",
    [
        [{"learner": ["svm"], "C": (1, 9)}, {"lerner": ["neighbours"], "k": (1, 9)}],
        [{"learner": ["svm"], **RATIO}, {"lerner": "neighbours", "k": (1, 9), **RATIO}],
        [{"a": ["x"], "b": (1, 9)}, {"a": ["y"], "b": (1, 9)}, {"A": ["z"]}],
        [{"C": (1, 9)}, {"k": (1, 9)}],
    ],
)
def test_a_misspelt_decision(dictionaries: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="space: expected a parameter that all") as e:
        Study(dictionaries)
    assert all(str(list(d)) in str(e.value) for d in dictionaries)
    space = SearchSpace.from_dictionaries(dictionaries)  # what the message says
    assert Study(space).space.tree.num_paths == len(dictionaries)


@pytest.mark.parametrize(
    "dictionaries",
    [
        [{"learner": ["svm"]}, {"learner": ["neighbours", "tree"], "k": (1, 9)}],
        [RATIO, {**RATIO, "depth": (1, 9)}],  # with and without
        [RATIO, {**RATIO, "depth": [3]}],
        [{**RATIO, "tol": [1e-3]}, {**RATIO, "gamma": [0.1], "depth": (1, 9)}],
        [{**RATIO, "tol": 1e-3}, {**RATIO, "gamma": 0.1, "depth": (1, 9)}],
        [{"a": ["x"], "b": (1, 9)}, {"a": ["x"], "c": (1, 9)}, {"a": ["y"]}],
    ],
)
def test_dictionaries_that_have_a_name_in_common(
    dictionaries: list[dict[str, Any]],
) -> None:
    space = SearchSpace.from_dictionaries(dictionaries)
    assert Study(dictionaries).space == space
