"""What a study takes as a space."""

from __future__ import annotations

from typing import Any

import pytest

from botorch_structured import Study
from botorch_structured.spaces import SearchSpace

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
