"""What a study takes: spaces, held parameters, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ConfigSpace import (
    ConfigurationSpace,
    Float,
    ForbiddenGreaterThanRelation,
    ForbiddenLessThanRelation,
)

from botorch_structured import Study
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import JenattonTree

GROUPS = [
    {"a": ["x"], "b": (0.0, 1.0), "epochs": 20, "kind": ["u"], "size": 5},
    {"a": ["y"], "c": (0.0, 1.0), "epochs": 20, "kind": ["v"], "size": (1, 9)},
    {"a": ["z"], "c": (0.0, 1.0), "epochs": 20},
]


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"epochs": 21}, "'epochs': expected 20, got 21"),
        ({"kind": "w"}, "expected 'u' or 'v', got 'w'"),
        ({"kind": "u"}, "expected 'v', got 'u'"),
        ({"size": 0}, r"expected an integer in \[1, 9\] or 5, got 0"),
        (["a"], "expected {name: value}"),
        ({"a": "x", "size": 0}, r"'size': expected 5, got 0\.$"),
        ({"a": "y", "size": 0}, r"'size': expected an integer in \[1, 9\], got 0\.$"),
        ({"size": 6}, "expected 5, got 6"),
        ({"a": "z", "kind": "u"}, "got 'kind', which none has with {'a': 'z'}"),
        ({"a": "y", "kind": "u"}, "expected 'v', got 'u'"),
        ({"epoch": 20}, r"among \['a', 'b', 'c', 'size', 'epochs', 'kind'\]"),
    ],
)
def test_values_that_a_constant_does_not_have(
    fixed: dict[str, Any], message: str
) -> None:
    study = Study(GROUPS, seed=0)
    with pytest.raises(ValueError, match=f"^fixed: .*{message}"):
        study.ask(fixed=fixed)
    assert not study.pending


@pytest.mark.usefixtures("random_points")
def test_a_constant_is_held_at_its_own_value() -> None:
    x, y = {"a": "x"}, {"a": "y"}
    own: list[dict[str, Any]] = [{"epochs": 20}, {"epochs": 20.0} | y, {"size": 5}]
    for fixed in [*own, x | {"kind": "u"}, x | {"size": 5}, y | {"size": 6}]:
        for config in Study(GROUPS, seed=0).ask(4, fixed=fixed):
            assert all(fixed.get(k, v) == v for k, v in config.items())


def test_dictionaries_that_no_parameter_tells_apart() -> None:
    study = Study([{"k": ["b"], "y": [6]}, {"k": ["a", "b"]}], seed=0)
    with pytest.raises(ValueError, match="expected 'b', got 'a'"):
        study.ask(fixed={"k": "a"})


RATIO = {"ratio": (0.0, 1.0)}


@pytest.mark.parametrize(
    "dictionaries",
    [
        [{"learner": ["svm"], "C": (1, 9)}, {"lerner": ["neighbours"], "k": (1, 9)}],
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


SPACE = JenattonTree(off_centre=True).space


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("missing", ["", "NaN", "NA"])
def test_a_table_is_told_row_by_row(missing: str, tmp_path: Path) -> None:
    names = [*SPACE.names, "loss", "memory", "cost"]
    configs = SPACE.decode(SPACE.starts(kind="inner", seed=0))[:3]
    outcomes = [(0.5, 3.0, 10.0), (missing, missing, 2.0), (0.25, 9.0, missing)]
    rows = [
        {**c, **dict(zip(names[-3:], o, strict=True))}
        for c, o in zip(configs, outcomes, strict=False)
    ]
    lines = [",".join(str(row.get(name, missing)) for name in names) for row in rows]
    path = table(tmp_path, "\n".join([",".join(names), *lines]) + "\n")
    study = Study(SPACE, {"loss": "minimize"}, ["memory <= 8"], seed=0)
    study.read_csv(path)
    assert [t.config for t in study.trials] == configs
    assert [t.cost for t in study.trials] == [10.0, 2.0, None]
    assert [t.state for t in study.trials] == ["complete", "failed", "complete"]
    assert study.best == (configs[0], 0.5)  # 0.25 needs too much memory


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,loss\n0.5,1\n0.6,\n0.7,x\n", "line 4: value.*a finite number.*'x'"),
        ("a,loss\n0.5,1\n7,1\n", r"line 3: .*'a': expected a number in \[0.0, 1.0\]"),
        ("a,b,loss\n0.5,0.5,1\n", r"line 2: .*unknown ones \['b'\]"),
        ("a,loss\n0.5\n", "line 2: expected as many cells as in line 1"),
        ("a,loss\n0.5,1,2\n", "line 2: expected as many cells as in line 1"),
        ("a,Loss\n0.5,1\n", r"line 1: expected columns \['loss'\]"),
        ("", "line 1: expected columns"),
        ("a;loss\n0.5;1\n", r"line 1: .*separated by commas, .*\['a;loss'\]"),
        ("a,a,loss\n0.5,0.6,1\n", r"line 1: expected each column once, got \['a'\]"),
        ("a,loss,loss\n0.5,1,2\n", r"line 1: expected each .* got \['loss'\]"),
        ("a,loss,cost\n0.5,1,-3\n", "line 2: cost: expected a positive number"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, text: str, message: str) -> None:
    space = SearchSpace(["a"], torch.tensor([[0.0], [1.0]]).double())
    study = Study(space, {"loss": "minimize"})
    with pytest.raises(ValueError, match=f"table.csv {message}"):
        study.read_csv(table(tmp_path, text))
    assert not study.trials
    with pytest.raises(ValueError, match="space: expected no parameter called"):
        Study(space, {"a": "minimize"}).read_csv(table(tmp_path, text))


@pytest.mark.parametrize("text", ["a,value,,\n0.5,1,,\n", ",a,value\n7,0.5,1\n"])
def test_columns_without_a_name_are_left_out(tmp_path: Path, text: str) -> None:
    """Such as the index of pandas."""
    study = Study({"a": (0.0, 1.0)})
    study.read_csv(table(tmp_path, text))
    assert study.best == ({"a": 0.5}, 1.0)


def test_a_name_of_several_columns_clashes_with_an_outcome(tmp_path: Path) -> None:
    dictionaries = [{"m": ["a"], "C": 1}, {"m": ["b"], "C": (0.0, 2.0)}]
    dictionaries += [{"m": ["c"], "k": 1}, {"m": ["d"], "k": 2}]
    # a parameter called cost is no objective, whose name could be another one
    with pytest.raises(ValueError, match="^space: expected no parameter called .cost."):
        Study({"cost": (0, 1)}).read_csv(table(tmp_path, "cost,value\n0.5,1\n"))
    for name in ("C", "k"):
        study = Study(dictionaries, {name: "minimize"})
        with pytest.raises(
            ValueError, match=rf"no parameter called .* got \['{name}'\]"
        ):
            study.read_csv(table(tmp_path, f"m,{name}\na,1\n"))
    # the decision between these has that name, and is not shown
    space = SearchSpace.from_dictionaries([{"a": (0.0, 1.0)}, {"b": (0.0, 1.0)}])
    study = Study(space, {space.names[0]: "minimize"})
    study.read_csv(table(tmp_path, f"a,b,{space.names[0]}\n0.5,,1\n"))
    assert study.best == ({"a": 0.5}, 1.0)


@pytest.mark.parametrize(
    ("choices", "cells", "wrong"),
    [
        ([True, False], {"TRUE": True, "false": False, " true ": True}, "2"),
        ([True, False], {"1": True, "0": False, "1.0": True}, "x"),
        ([True, False, None], {"TRUE": True, "0": False, "": None}, "yes"),
        ([True, 1, 0], {"TRUE": True, "True": True, "1": 1, "0": 0}, "FALSE"),
        ([True, "TRUE"], {"TRUE": "TRUE", "true": True}, "false"),
        ([0, 1], {"0": 0, "1.0": 1}, "TRUE"),
    ],
)
def test_booleans_of_other_programs(
    tmp_path: Path, choices: list[Any], cells: dict[str, Any], wrong: str
) -> None:
    study = Study({"a": choices, "x": (0.0, 1.0)})
    with pytest.raises(ValueError, match="line 2: .*'a': expected one of"):
        study.read_csv(table(tmp_path, f"a,x,value\n{wrong},0.5,1\n"))
    lines = [f"{cell},0.5,1" for cell in cells]
    study.read_csv(table(tmp_path, "\n".join(["a,x,value", *lines])))
    assert [repr(t.config["a"]) for t in study.trials] == list(
        map(repr, cells.values())
    )


def test_missing_cells_of_parameters(tmp_path: Path) -> None:
    """NA is a text where it is a choice, and an error where nothing is."""
    space = [{"m": ["NA", "b"], "x": (0.0, 1.0)}, {"m": ["c"], "k": (1, 9)}]
    study = Study(space)
    study.read_csv(table(tmp_path, "m,x,k,value\nNA,0.5,NA,1\nc,NA,3,2\n"))
    assert [t.config for t in study.trials] == [
        {"m": "NA", "x": 0.5},
        {"m": "c", "k": 3},
    ]
    for row, name in (("b,NA,NA,1", "x"), ("c,NA,30,1", "k")):
        with pytest.raises(
            ValueError, match=rf"line 2: .*('{name}'|\['m', '{name}'\])"
        ):
            study.read_csv(table(tmp_path, f"m,x,k,value\n{row}\n"))


def test_a_space_without_a_point_is_refused_at_once() -> None:
    a, b = Float("a", (0, 1)), Float("b", (0, 1))
    cs = ConfigurationSpace(space=[a, b])
    # as numbers they are equal with probability 0
    cs.add(ForbiddenLessThanRelation(a, b), ForbiddenGreaterThanRelation(a, b))
    bounds = torch.tensor([[0.0], [1.0]])
    none = SearchSpace(["x"], bounds, feasible=lambda X: X[..., 0] > 2)
    for space in (cs, none):
        with pytest.raises(ValueError, match="space: expected points .* got 0 of 1 in"):
            Study(space)
