from __future__ import annotations

import pickle

import pytest
import torch

from botorch_structured.spaces import SearchSpace


def hierarchical():
    ax = pytest.importorskip("ax.core.search_space")
    from ax.core.parameter import (
        ChoiceParameter,
        FixedParameter,
        ParameterType,
        RangeParameter,
    )
    from ax.core.parameter_constraint import ParameterConstraint

    FLOAT, INT, STRING = ParameterType.FLOAT, ParameterType.INT, ParameterType.STRING
    return ax.SearchSpace(
        [
            FixedParameter("root", ParameterType.BOOL, True, dependents={True: ["m"]}),
            ChoiceParameter(
                "m",
                STRING,
                ["linear", "boost", "none"],
                is_ordered=False,
                sort_values=False,
                dependents={"linear": ["rate", "reg"], "boost": ["trees", "kind"]},
            ),
            RangeParameter("rate", FLOAT, 1e-4, 1e-1, log_scale=True),
            RangeParameter("reg", FLOAT, 0.0, 1.0),
            RangeParameter("trees", INT, 1, 500, log_scale=True),
            ChoiceParameter("kind", INT, [1, 2, 4], is_ordered=True, sort_values=True),
            FixedParameter("seed", INT, 7),
            RangeParameter("a", FLOAT, 0.0, 1.0),
            RangeParameter("b", FLOAT, 0.0, 1.0),
        ],
        parameter_constraints=[
            ParameterConstraint(inequality="a + b <= 1.2"),
            ParameterConstraint(inequality="reg <= a"),
        ],
    )


def test_hierarchical_space() -> None:
    theirs = hierarchical()
    space = SearchSpace.from_ax(theirs)
    assert space.names == ["m", "rate", "reg", "trees", "kind", "a", "b"]
    assert space.tree.num_paths == 3
    assert space.tree.own_columns == [1, 2, 3, 4]
    assert space.tree.shared_columns == [5, 6]
    assert space.integer_features == [3, 4]
    assert space.categorical_features == {0: [0.0, 1.0, 2.0]}
    assert space.bounds[:, 1].tolist() == [-4, -1]
    X = space.sample(100, seed=0)
    configs = space.decode(X)
    assert torch.equal(space.encode(configs), X)
    for config in configs:
        if "reg" in config:  # Ax wants all parameters of a constraint to be there
            assert theirs.check_membership(config, raise_error=True)
        applicable = theirs._cast_parameterization(
            {p: config.get(p) for p in theirs.parameters}
        )
        assert set(applicable) == set(config)
        assert config["root"] is True and config["seed"] == 7
    again = pickle.loads(pickle.dumps(space))
    assert torch.equal(again.sample(100, seed=0), X)


def test_spaces_that_cannot_be_read() -> None:
    ax = pytest.importorskip("ax.core.search_space")
    from ax.core.parameter import FixedParameter, ParameterType, RangeParameter

    with pytest.raises(ValueError, match="ax.core.SearchSpace, got dict"):
        SearchSpace.from_ax({})
    fidelity = RangeParameter(
        "x", ParameterType.FLOAT, 0, 1, is_fidelity=True, target_value=1.0
    )
    with pytest.raises(ValueError, match="'x': expected .*no task or fidelity"):
        SearchSpace.from_ax(ax.SearchSpace([fidelity]))
    fixed = FixedParameter("x", ParameterType.INT, 1)
    with pytest.raises(ValueError, match="with several values"):
        SearchSpace.from_ax(ax.SearchSpace([fixed]))


def test_equalities_are_refused() -> None:
    ax = pytest.importorskip("ax.core.search_space")
    from ax.core.parameter import ParameterType, RangeParameter
    from ax.core.parameter_constraint import ParameterConstraint

    sums = [ParameterConstraint(equality="a + b == 4")]
    whole = [RangeParameter(name, ParameterType.INT, 0, 4) for name in "ab"]
    with pytest.raises(ValueError, match="parameter_constraints: expected inequal"):
        SearchSpace.from_ax(ax.SearchSpace(whole, sums))
