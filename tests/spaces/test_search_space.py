"""SearchSpace: exact round trips, the semantics of ConfigSpace, errors."""

from __future__ import annotations

import copy
import pickle
from math import nan
from typing import Any

import ConfigSpace as CS
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from strategies import as_read, random_configspace, seeds, up_to_last_digits

from botorch_structured.spaces import ParameterTree, SearchSpace


def is_legal(cs: CS.ConfigurationSpace, config: dict) -> bool:
    try:
        CS.Configuration(cs, values=config).check_valid_configuration()
    except Exception:  # ConfigSpace has many kinds of them
        return False
    return True


def leaves_out(cs: CS.ConfigurationSpace, config: dict) -> bool:
    """Whether a parameter is missing although its own condition holds."""
    for condition in cs.conditions:
        try:
            if (
                condition.satisfied_by_value(config)
                and condition.child.name not in config
            ):
                return True
        except KeyError:  # a parent is missing
            continue
    return False


@given(seeds)
@example(16480901)  # one of the latter
def test_random_spaces(seed: int) -> None:
    cs = random_configspace(seed)
    state = cs.random.get_state()[1].copy()
    space = SearchSpace.from_configspace(cs)
    assert (cs.random.get_state()[1] == state).all()
    lo, hi = space.bounds

    # Under nested "or" ConfigSpace now and then draws what its own check refuses, or
    # leaves out (and would refuse) what its own condition switches on.
    drawn = cs.sample_configuration(20)
    assume(not any(leaves_out(cs, dict(c)) for c in drawn))
    configs = [c for c in drawn if is_legal(cs, dict(c))]
    X = space.encode(configs)
    assert X.isfinite().all() and (X >= lo).all() and (X <= hi).all()
    assert space.decode(X) == [up_to_last_digits(dict(c)) for c in configs]
    assert torch.equal(space.encode(space.decode(X)), X) or not configs
    assert space.feasible(X).all()
    for i, config in enumerate(configs[:2]):
        assert torch.equal(space.encode(config), X[i : i + 1])
    assert torch.equal(space.impute(X), X)

    S = space.sample(30, seed=seed)
    assert torch.equal(S, space.sample(30, seed=seed))
    assert (S >= lo).all() and (S <= hi).all()
    assert space.feasible(S).all()
    decoded = space.decode(S)
    assert torch.equal(space.encode(decoded), S) and torch.equal(space.rounded(S), S)
    assert all(is_legal(cs, config) for config in decoded)
    real = [c for c, column in enumerate(space.columns) if not column.discrete]
    S[:, real] = 0.999 * S[:, real] + 0.001 * lo[real]  # numbers of many digits
    assert torch.equal(space.encode(space.decode(S)), space.rounded(space.impute(S)))
    for c in space.integer_features:
        assert torch.equal(S[:, c], S[:, c].round())
    for c, values in space.categorical_features.items():
        assert torch.isin(S[:, c], torch.tensor(values, dtype=S.dtype)).all()


@given(seeds)
def test_tables_of_text_come_back(seed: int) -> None:
    """A CSV file knows neither types nor what is inactive."""
    space = SearchSpace.from_configspace(random_configspace(seed))
    for column in space.columns:
        written = [str(c) for c in getattr(column, "choices", ())]
        assume(len(set(written)) == len(written))  # 1 and "1" cannot be told apart
    configs = space.decode(space.sample(20, seed=seed))
    names = [*space.names, *(c.name for c in space.constants)]
    rows = as_read(configs, names)
    X = space.encode(rows)
    assert torch.equal(X, space.encode(configs))
    assert space.decode(X) == configs
    # ... nor does pandas, where a column of integers with a gap is one of floats.
    loose = [
        {name: nan if row[name] == "" else _as_number(row[name]) for name in names}
        for row in rows
    ]
    assert torch.equal(space.encode(loose), X)
    none = [{name: value or None for name, value in row.items()} for row in rows]
    assert torch.equal(space.encode(none), X)


def _as_number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def test_what_a_table_may_hold() -> None:
    cs = CS.ConfigurationSpace()
    cs.add(
        on := CS.CategoricalHyperparameter("on", [True, False]),
        CS.CategoricalHyperparameter("code", ["1", "2", None, (1, 2)]),
        n := CS.UniformIntegerHyperparameter("n", 1, 9),
        x := CS.UniformFloatHyperparameter("x", 0, 1),
        k := CS.Constant("k", 3),
        maybe := CS.CategoricalHyperparameter("maybe", [None, "yes"]),
    )
    cs.add(*(CS.EqualsCondition(child, on, True) for child in (n, x, k, maybe)))
    space = SearchSpace.from_configspace(cs)
    full = {"on": True, "code": "1", "n": 3, "x": 0.5, "k": 3, "maybe": None}
    X = space.encode(full)
    written = {
        "on": ["True", np.bool_(True)],
        "code": [1, 1.0],
        "n": ["3", " 3 ", "3.0", 3.0, np.int64(3)],
        "x": ["0.5", "5e-1", np.float32(0.5)],
        "k": ["3", 3.0],
        "maybe": ["", nan],
    }
    for name, value in [(k, v) for k, values in written.items() for v in values]:
        assert torch.equal(space.encode({**full, name: value}), X), (name, value)
    assert space.decode(space.encode({**full, "code": "(1, 2)"}))[0]["code"] == (1, 2)
    off = {"on": False, "code": None}
    for nothing in (None, nan, "", np.float64("nan")):
        row = {**dict.fromkeys(full, nothing), "on": "False", "code": nothing}
        assert space.decode(space.encode(row)) == [off]
    with pytest.raises(ValueError, match="'code': expected one of .*got '3'"):
        space.encode({**full, "code": "3"})
    with pytest.raises(ValueError, match="'k': expected 3, got '4'"):
        space.encode({**full, "k": "4"})
    with pytest.raises(ValueError, match="'maybe': expected no value"):
        space.encode({**off, "maybe": "yes"})

    class Series:
        """As in pandas: a mapping of names, but iterating over its values."""

        keys, __getitem__ = full.keys, full.__getitem__
        __iter__ = staticmethod(lambda: iter(full.values()))

    assert torch.equal(space.encode(Series()), X)
    assert torch.equal(space.encode([Series(), full]), torch.cat([X, X]))
    for wrong in (3, None, "on", ["on"], [3.0], [[full]]):
        with pytest.raises(ValueError, match="configs: expected a mapping"):
            space.encode(wrong)


@given(seeds)
def test_feasible_agrees_with_configspace(seed: int) -> None:
    cs = random_configspace(seed)
    space = SearchSpace.from_configspace(cs)
    columns = [c.draw(30, torch.Generator().manual_seed(seed)) for c in space.columns]
    X = space.impute(torch.stack(columns, -1))
    expected = [is_legal(cs, config) for config in space.decode(X)]
    assert space.feasible(X).tolist() == expected
    assert space.feasible(X.reshape(3, 10, -1)).flatten().tolist() == expected


@given(seeds)
def test_copies(seed: int) -> None:
    space = SearchSpace.from_configspace(random_configspace(seed))
    X = space.sample(5, seed=1)
    space.encode(space.decode(X))  # what it has met does not count
    assert space == SearchSpace.from_configspace(random_configspace(seed))
    assert copy.deepcopy(space) is copy.copy(space) is space
    other = pickle.loads(pickle.dumps(space))
    assert other.tree.space is other
    assert other == space and hash(other) == hash(space)
    assert other.decode(X) == space.decode(X)
    assert torch.equal(other.sample(5, seed=1), X)
    assert torch.equal(other.bounds, space.bounds)


def test_what_tells_spaces_apart() -> None:
    def made(**change: object) -> SearchSpace:
        names = change.pop("names", ["a", "b"])
        high = change.pop("high", 1.0)
        bounds = torch.tensor([[0.0, 0.1], [1.0, high]], dtype=torch.double)
        return SearchSpace(names, bounds, **change)  # type: ignore[arg-type]

    tree = ParameterTree(2, {0: {0.0: [], 1.0: [1]}})
    changes: list[dict] = [
        {"names": ["a", "c"]},
        {"high": 2.0},
        {"tree": tree},
        {"log_features": [1], "high": 3.0},
        {"categorical_features": {0: [0.0, 1.0]}},
        {"categorical_features": {0: [0.0, 1.0]}, "choices": {0: [1, 2]}},
        {"categorical_features": {0: [0.0, 1.0]}, "choices": {0: [True, 2]}},
        {"feasible": torch.isfinite},
    ]
    spaces = [made(), *(made(**change) for change in changes)]
    again = [made(), *(made(**change) for change in changes)]
    for i, one in enumerate(spaces):
        assert [one == other for other in again] == [i == k for k in range(len(again))]
    assert made() != "space"
    groups = [{"kind": ["a"], "x": (0.0, 1.0)}, {"kind": ["b"], "x": (0, 7)}]
    by_group = SearchSpace.from_dictionaries(groups)
    assert by_group == SearchSpace.from_dictionaries(groups)
    assert by_group != SearchSpace.from_dictionaries(groups[:1])


@given(seeds)
def test_awkward_logarithms_come_back(seed: int) -> None:
    """But for the last digits; the points are the very same."""
    cs = CS.ConfigurationSpace({"x": CS.Float("x", (1e-7, 1e9), log=True)})
    space = SearchSpace.from_configspace(cs)
    g = torch.Generator().manual_seed(seed)
    values = (10 ** (16 * torch.rand(50, generator=g, dtype=torch.double) - 7)).tolist()
    values += [0.1, 0.3, 1e-5, 3e-4, 123456.789, 1e-7, 1e9, 1.0]
    X = space.encode([{"x": v} for v in values])
    configs = space.decode(X)
    assert [config["x"] for config in configs] == pytest.approx(values, rel=1e-13)
    assert torch.equal(space.encode(configs), X)
    assert space.decode(space.encode(configs)) == configs
    short = [{"x": float(f"{v:.13g}")} for v in values]
    assert space.decode(space.encode(short)) == short
    # any number: what it is decoded to stands for one point
    drawn = -7.0 + 16.0 * torch.rand(50, 1, generator=g, dtype=torch.double)
    again = space.encode(space.decode(drawn))
    torch.testing.assert_close(again, drawn, rtol=0.0, atol=1e-14)
    assert torch.equal(space.encode(space.decode(again)), again)


@pytest.mark.parametrize(
    ("lower", "upper", "value"),
    [
        *((1e-5, 1, cut) for cut in (0.9818, 1e-4, 3e-3, 0.5)),
        (0, 10, 5.0),
        (-1, 1, 0.0),
        (0, 1e6, 0.3),
        (0, 1e-3, 3e-4),
        (1e6, 1e6 + 1, 1e6 + 0.5),
    ],
)
def test_values_stay_on_their_side_of_a_cut(
    lower: float, upper: float, value: float
) -> None:
    """An optimiser proposes the very ends of the intervals that conditions cut."""
    rate = CS.UniformFloatHyperparameter("rate", lower, upper, log=lower == 1e-5)
    cs = CS.ConfigurationSpace()
    more, less = (CS.UniformFloatHyperparameter(name, 0, 1) for name in ("m", "l"))
    cs.add(rate, more, less)
    cs.add(
        CS.GreaterThanCondition(more, rate, value),
        CS.LessThanCondition(less, rate, value),
    )
    space = SearchSpace.from_configspace(cs)
    column = space.names.index("rate")
    ends = [x for span in space.tree.decision_values[column] for x in span][1:-1]
    X = space.fill.repeat(len(ends), 1)
    X[:, column] = torch.tensor(ends, dtype=torch.double)
    configs = space.decode(X)
    assert all(is_legal(cs, config) for config in configs)
    again = space.encode(configs)
    assert torch.equal(space.rounded(X), again)
    assert torch.equal(space.tree.path_key(again), space.tree.path_key(X))
    room = max(2e-8, 2e-12 * rate.upper)
    assert torch.allclose(again, X, rtol=0, atol=room)
    # Both sides, and the value itself is one that was meant.
    assert {"m", "l"} <= {name for config in configs for name in config}
    assert space.decode(space.encode({"rate": value})) == [{"rate": value}]


def pipeline() -> CS.ConfigurationSpace:
    cs = CS.ConfigurationSpace(seed=0)
    cs.add(
        model := CS.CategoricalHyperparameter("model", ["svm", "mlp", None, True, 2]),
        c := CS.UniformFloatHyperparameter("C", 1e-3, 1e3, log=True),
        kernel := CS.CategoricalHyperparameter("kernel", ["rbf", "linear"]),
        gamma := CS.UniformFloatHyperparameter("gamma", 1e-4, 1, log=True),
        layers := CS.UniformIntegerHyperparameter("layers", 1, 50),
        depth := CS.UniformIntegerHyperparameter("depth", 1, 3),
        extra := CS.UniformFloatHyperparameter("extra", 0, 1),
        width := CS.UniformIntegerHyperparameter("width", 2, 512, log=True),
        size := CS.OrdinalHyperparameter("size", ["s", "m", "l"]),
        scale := CS.UniformFloatHyperparameter("scale", -1, 1),
        solver := CS.Constant("solver", "adam"),
    )
    cs.add(
        CS.EqualsCondition(c, model, "svm"),
        CS.EqualsCondition(kernel, model, "svm"),
        CS.EqualsCondition(gamma, kernel, "rbf"),
        CS.EqualsCondition(layers, model, "mlp"),
        CS.GreaterThanCondition(width, layers, 5),
        CS.EqualsCondition(solver, model, "mlp"),
        CS.InCondition(extra, depth, [2]),
        CS.LessThanCondition(scale, size, "l"),
    )
    cs.add(
        CS.ForbiddenAndConjunction(
            CS.ForbiddenEqualsClause(model, True),
            CS.ForbiddenInClause(size, ["s", "m"]),
        )
    )
    return cs


MLP: dict = {"model": "mlp", "layers": 7, "width": 100, "depth": 1}
MLP |= {"size": "m", "scale": 0.25, "solver": "adam"}


def test_encoding() -> None:
    cs = pipeline()
    space = SearchSpace.from_configspace(cs)
    assert space.names == [name for name in cs if name != "solver"]
    at = {name: i for i, name in enumerate(space.names)}
    x = space.encode(MLP)[0]
    numbers = {"model": 1, "layers": 7, "width": 100, "size": 1, "scale": 0.25}
    assert all(x[at[name]] == number for name, number in numbers.items())
    (back,) = space.decode(x)
    assert back == MLP and [*back][:3] == [name for name in cs if name in MLP][:3]
    assert all(type(back[k]) is type(v) for k, v in MLP.items())
    assert space.bounds[:, at["C"]].tolist() == [-3, 3]
    assert space.bounds[:, at["width"]].tolist() == [2, 512]
    assert space.bounds[:, at["size"]].tolist() == [0, 2]
    assert x[at["C"]] == 0  # inactive: the middle of the bounds
    named = {space.names[c]: v for c, v in space.categorical_features.items()}
    assert named == {"model": [0, 1, 2, 3, 4], "kernel": [0, 1]}
    integers = {space.names[c] for c in space.integer_features}
    assert integers == {"layers", "depth", "width", "size"}


def test_decisions_by_value_and_by_interval() -> None:
    space = SearchSpace.from_configspace(pipeline())
    at = {name: i for i, name in enumerate(space.names)}
    tree = space.tree
    decisions = {space.names[c] for c in tree.decision_columns}
    assert decisions == {"model", "kernel", "layers", "depth", "size"}
    # "layers > 5" makes two paths, and so does "size < l"; "depth == 2" singles out
    # each value of 1, 2, 3.
    assert {space.names[c] for c in tree.numeric_decisions} == {"layers", "size"}
    assert tree.decision_values[at["depth"]] == [1, 2, 3]
    assert len(tree.decision_values[at["layers"]]) == 2
    assert tree.num_paths == (2 + 2 + 3) * 3 * 2
    with pytest.raises(ValueError, match="declared values"):
        tree.path_index(space.bounds[:1] + 0.3)


def test_forbidden_relations() -> None:
    cs = CS.ConfigurationSpace(seed=0)
    low = CS.UniformFloatHyperparameter("low", 1, 10, log=True)
    high = CS.UniformIntegerHyperparameter("high", 1, 10)
    left = CS.OrdinalHyperparameter("left", ["a", "b", "c"])
    right = CS.CategoricalHyperparameter("right", ["c", "b"])
    number = CS.OrdinalHyperparameter("number", [1, 4, 9], default_value=9)
    fixed = CS.Constant("fixed", "b")
    cs.add(low, high, left, right, number, fixed)
    cs.add(
        CS.ForbiddenGreaterThanRelation(low, high),
        CS.ForbiddenEqualsRelation(left, right),
        CS.ForbiddenLessThanRelation(number, low),
        CS.ForbiddenAndConjunction(
            CS.ForbiddenEqualsRelation(left, fixed), CS.ForbiddenEqualsClause(high, 7)
        ),
    )
    space = SearchSpace.from_configspace(cs)
    columns = [c.draw(300, torch.Generator().manual_seed(0)) for c in space.columns]
    X = torch.stack([x[torch.randperm(300)] for x in columns], -1)
    expected = [is_legal(cs, config) for config in space.decode(X)]
    assert space.feasible(X).tolist() == expected
    assert 0 < sum(expected) < 300


def test_a_relation_holds_where_both_sides_are_active() -> None:
    cs = CS.ConfigurationSpace(seed=0)
    low, high = (CS.UniformIntegerHyperparameter(name, 1, 9) for name in ("low", "hi"))
    kind = CS.CategoricalHyperparameter("kind", ["with", "without"])
    cs.add(kind, low, high)
    cs.add(CS.EqualsCondition(high, kind, "with"))
    cs.add(CS.ForbiddenGreaterThanRelation(low, high))
    space = SearchSpace.from_configspace(cs)
    numbers = torch.arange(1.0, 10.0)
    X = space.impute(torch.cartesian_prod(torch.arange(2.0), numbers, numbers))
    expected = [is_legal(cs, config) for config in space.decode(X)]
    assert space.feasible(X).tolist() == expected


def test_samples_follow_the_scales() -> None:
    cs = CS.ConfigurationSpace()
    cs.add(
        CS.UniformFloatHyperparameter("x", 1e-4, 1, log=True),
        CS.UniformIntegerHyperparameter("n", 1, 1000, log=True),
        CS.CategoricalHyperparameter("w", ["a", "b"], weights=[1, 3]),
        CS.NormalFloatHyperparameter("g", 0, 1, lower=-2, upper=3),
        CS.BetaIntegerHyperparameter("i", 2, 3, lower=0, upper=9),
    )
    space = SearchSpace.from_configspace(cs)
    at = {name: i for i, name in enumerate(space.names)}
    X = space.sample(4000, seed=0)
    assert abs((X[:, at["x"]] < -2).double().mean() - 0.5) < 0.03
    assert abs((X[:, at["n"]] <= 31).double().mean() - 0.5) < 0.06
    assert abs(X[:, at["w"]].mean() - 0.75) < 0.03
    assert not torch.equal(space.sample(5, seed=1), space.sample(5, seed=2))
    assert not torch.equal(space.sample(5), space.sample(5))
    assert space.sample(0, seed=1).shape == (0, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"typo": 1}, r"among \[.*'model'.*unknown ones \['typo'\]"),
        ({"depth": ...}, "'depth': expected an integer .*active, got None"),
        ({"model": ...}, "'model': expected one of .*active, got None"),
        ({"solver": ...}, "'solver': expected 'adam', as it is active, got None"),
        ({"layers": 51}, r"'layers': expected an integer in \[1, 50\], got 51"),
        ({"layers": "2.5"}, r"'layers': expected an integer in \[1, 50\], got '2.5'"),
        ({"layers": None}, "'layers': expected an integer .*active, got None"),
        ({"model": "", "depth": ""}, "'depth': expected an integer .*active, got ''"),
        ({"size": ""}, "'size': expected one of .*active, got ''"),
        ({"scale": "0.25x"}, "'scale': expected a number in .*got '0.25x'"),
        ({"solver": ""}, "'solver': expected 'adam', as it is active"),
        ({"layers": True}, "an integer"),
        ({"scale": -1.1}, r"a number in \[-1.0, 1.0\], got -1.1"),
        ({"scale": float("nan")}, "a number in"),
        ({"size": "xl"}, r"one of \['s', 'm', 'l'\], got 'xl'"),
        ({"C": 1.0}, "'C': expected no value, as it is inactive, got 1.0"),
        ({"gamma": 1.0, "kernel": "rbf"}, "'kernel': expected no value"),
        ({"solver": "sgd"}, "'solver': expected 'adam', got 'sgd'"),
        ({"layers": 5}, "'width': expected no value"),
    ],
)
def test_configurations_that_are_refused(change: dict, message: str) -> None:
    space = SearchSpace.from_configspace(pipeline())
    config = {k: v for k, v in {**MLP, **change}.items() if v is not ...}
    with pytest.raises(ValueError, match=message):
        space.encode([config])


def test_the_rounding_of_an_integer_is_that_of_its_end() -> None:
    space = SearchSpace.from_dictionaries({"x": (1, 10**12, "log")})
    for x, value in [(0.9, 1), (1e12 + 1e5, 10**12)]:
        assert space.decode(torch.tensor([[x]], dtype=torch.double)) == [{"x": value}]
    for x in (0.0, -1e5, 1e12 + 1e7):  # the logarithm of 0 is no number
        with pytest.raises(ValueError, match="expected an integer in"):
            space.decode(torch.tensor([[x]], dtype=torch.double))


@pytest.mark.parametrize(
    ("bounds", "scale"),
    [((1e-3, 1.0), "log"), ((1e-10, 1e3), "log"), ((0.0, 1.0), ""), ((5e3, 6e3), "")],
)
def test_what_counts_as_rounding_at_a_bound(
    bounds: tuple[float, float], scale: str
) -> None:
    """The same at both ends: 1e-9 of the range, in decades on a logarithmic scale."""
    low, high = bounds
    space = SearchSpace.from_dictionaries({"x": (low, high, *filter(None, [scale]))})

    def beyond(share: float) -> list[float]:
        if scale:
            factor = (high / low) ** share
            return [low / factor, high * factor]
        return [low - share * (high - low), high + share * (high - low)]

    for value, bound in zip(beyond(0.9e-9), bounds, strict=True):
        assert space.decode(space.encode({"x": value})) == [{"x": bound}]
    for value in (*beyond(1.1e-9), low - 0.1 * high, *([0.0] if scale else [])):
        with pytest.raises(ValueError, match="'x': expected a number in"):
            space.encode({"x": value})


@pytest.mark.parametrize("scale", [[], ["log"]])
def test_bounds_of_a_range_as_narrow_as_rounding_are_within_it(scale: Any) -> None:
    low, high = 1e6, 1e6 + 1e-4
    space = SearchSpace.from_dictionaries({"x": (low, high, *scale)})
    for bound in (low, high):
        assert space.decode(space.encode({"x": bound})) == [{"x": bound}]


def test_decode_clamps_rounding_and_refuses_more() -> None:
    space = SearchSpace(["x", "n"], [[0.0, 1.0], [1.0, 5.0]], integer_features=[1])
    X = torch.tensor([[1 + 1e-9, 5.2], [-1e-9, 0.6]], dtype=torch.double)
    assert space.decode(X) == [{"x": 1.0, "n": 5}, {"x": 0.0, "n": 1}]
    assert space.decode(X.float()) == space.decode(X)
    assert space.feasible(X).all()
    for x in ([1.1, 2.0], [0.5, 5.6], [float("nan"), 2.0]):
        bad = torch.tensor([x], dtype=torch.double)
        assert not space.feasible(bad).any()
        with pytest.raises(ValueError, match="X: expected an? (number|integer) in"):
            space.decode(bad)
    with pytest.raises(ValueError, match="rows of 2 columns"):
        space.decode(torch.zeros(2, 3))


def test_inactive_columns_mean_nothing() -> None:
    space = SearchSpace.from_configspace(pipeline())
    X = space.sample(50, seed=0)
    active = space.tree.active_mask(X)
    Y = torch.where(active, X, torch.full_like(X, -1e6))
    assert space.decode(Y) == space.decode(X)
    assert space.feasible(Y).all()


def test_a_space_of_numbers() -> None:
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}}, values={0: [0, 1]})
    bounds = [[0.0, -2.0, 0.0], [1.0, 2.0, 1.0]]
    space = SearchSpace(["branch", "a", "b"], bounds, tree, log_features=[1])
    assert space.categorical_features == {0: [0.0, 1.0]}
    assert space.integer_features == []
    assert space.decode(torch.tensor([[0.0, 1.0, 0.5]])) == [{"branch": 0, "a": 10.0}]
    assert space.encode({"branch": 1, "b": 0.5}).tolist() == [[1.0, 0.0, 0.5]]
    assert torch.allclose(space.bounds, torch.tensor(bounds).double(), atol=1e-15)
    space = SearchSpace(
        ["branch", "a", "b"], bounds, tree, choices={0: ["left", "right"]}
    )
    assert space.decode(torch.tensor([[1.0, 1.0, 0.5]])) == [
        {"branch": "right", "b": 0.5}
    ]
    for arguments, message in [
        ({"names": ["a", "a", "b"]}, "distinct names"),
        ({"bounds": torch.zeros(2, 2)}, "2 x 3 numbers"),
        ({"names": ["a", 3, "b"]}, "names: expected a list of strings"),
        ({"names": "xab"}, "names: expected a list of strings"),
        ({"tree": ParameterTree(2)}, "tree: .* over 3 columns, got one over 2"),
        ({"tree": {0: {0: [1]}}}, "tree: expected a ParameterTree .*got dict"),
        ({"integer_features": [3]}, "integer_features: .* from 0 to 2, got 3"),
        ({"integer_features": 1}, "integer_features: expected a list"),
        ({"log_features": [-1]}, "log_features: .* from 0 to 2, got -1"),
        ({"log_features": [0]}, r"the others of none of these, got \[0\]"),
        (
            {"categorical_features": {1: [0, 5]}},
            r"_features\[1\]: .*within .*got \[5.0\]",
        ),
        ({"categorical_features": {1: []}}, "'a': .* at least one"),
        ({"categorical_features": {1: [1, 0]}}, "'a': .*ascending"),
        ({"categorical_features": {1: ["a"]}}, r"_features\[1\]: expected a number"),
        ({"categorical_features": {3: [0]}}, "categorical_features: .*got 3"),
        ({"categorical_features": [1]}, "categorical_features: .*values"),
        ({"categorical_features": {0: [0, 0.5]}}, r"declares, .*got \[0.5\]"),
        (
            {"choices": {1: ["a", "b"]}},
            "choices: expected choices of categorical columns alone",
        ),
        ({"choices": {0: "ab"}}, r"choices\[0\]: expected a list"),
        ({"choices": {0: ["a"]}}, "'x'.*as many"),
        ({"bounds": [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]}, "'a': .*ascending"),
        ({"bounds": [[0.0, nan, 0.0], [1.0, 1.0, 1.0]]}, "'a': .*ascending order"),
        ({"bounds": "unit"}, "bounds: expected 2 x 3 numbers, got 'unit'"),
        ({"bounds": [[0.5, 0.0, 0.0], [1.0, 1.0, 1.0]]}, r"tree: .*got \[0.0\]"),
        (
            {"bounds": [[0.0, 0.5, 0.0], [1.0, 2.0, 1.0]], "integer_features": [1]},
            "bounds: expected whole numbers .*'a'",
        ),
        (
            {"bounds": [[0.0, 0.0, 0.0], [1.0, 1e3, 1.0]], "log_features": [1]},
            "bounds: expected decimal logarithms .*'a'",
        ),
        ({"feasible": 3}, "feasible: expected a function, got 3"),
    ]:
        given = {"names": ["x", "a", "b"], "bounds": bounds, "tree": tree, **arguments}
        with pytest.raises(ValueError, match=message):
            SearchSpace(**given)


def test_values_that_are_no_single_number_are_refused() -> None:
    space = SearchSpace(
        ["l", "n", "a", "k"],
        [[0, 0, 0, 0], [1, 1, 1, 20]],
        integer_features=[3],
        categorical_features={0: [0, 1], 1: [0, 1]},
        choices={0: ["a", "b"], 1: [1, 2]},
    )
    good = {"l": "a", "n": 1, "a": 0.5, "k": 10}
    for name, value in [
        ("l", np.array(["a", "b"])),
        ("l", torch.ones(2)),
        ("n", 10**400),
        ("a", 10**400),
        ("a", str(10**400)),
        ("a", np.array([0.5, 0.6])),
        ("k", -(10**400)),
        ("k", "1_0"),
    ]:
        with pytest.raises(ValueError, match=f"'{name}': expected "):
            space.encode({**good, name: value})
    assert space.encode({**good, "k": "1e1"}).tolist() == [[0, 0, 0.5, 10]]


def test_samples_that_cannot_be_drawn() -> None:
    space = SearchSpace(["x"], [[0], [1]])
    for arguments, message in [
        ({"n": 2.5}, "n: expected an integer from 0 on, got 2.5"),
        ({"n": -1}, "n: expected an integer from 0 on, got -1"),
        ({"n": 1, "seed": 0.5}, "seed: expected an integer .*got 0.5"),
        ({"n": 1, "seed": 1 << 64}, "seed: expected an integer of at most 64 bits"),
    ]:
        with pytest.raises(ValueError, match=message):
            space.sample(**arguments)
    nothing = SearchSpace(["x"], [[0], [1]], feasible=lambda X: X[..., 0] > 2)
    with pytest.raises(ValueError, match="0 of .* random draws"):
        nothing.sample(3, seed=0)
    odd = SearchSpace(["x"], [[0], [1]], feasible=lambda X: True)
    with pytest.raises(ValueError, match=r"feasible: .* returns \(2,\) booleans"):
        odd.sample(2)
    with pytest.raises(ValueError, match="X: expected a tensor .*got list"):
        space.feasible([[0.5]])


def test_input_transform() -> None:
    space = SearchSpace.from_configspace(pipeline())
    X = space.sample(20, seed=0)
    transform = space.input_transform()
    Z = transform(X)
    alone = sorted({*space.tree.decision_columns, *space.categorical_features})
    others = [c for c in range(space.dim) if c not in alone]
    assert torch.equal(Z[:, alone], X[:, alone])
    assert Z[:, others].min() >= -1e-9 and Z[:, others].max() <= 1 + 1e-9
    assert torch.allclose(transform.untransform(Z), X)
    width = space.names.index("width")
    middle = X[:1].clone()
    middle[:, width] = 32.0  # half-way between 2 and 512 on its scale
    assert abs(transform(middle)[0, width].item() - 0.5) < 1e-9
    only = SearchSpace(["c"], [[0.0], [1.0]], categorical_features={0: [0, 1]})
    assert only.input_transform() is None


def test_devices(device: torch.device) -> None:
    space = SearchSpace.from_configspace(pipeline())
    X = space.sample(30, seed=0)
    assert space.feasible(X.to(device)).device.type == device.type
    assert space.feasible(X.to(device)).all()
    assert space.decode(X.to(device)) == space.decode(X)
    assert torch.equal(space.impute(X.to(device)).cpu(), X)


def test_spaces_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="ConfigurationSpace, got dict"):
        SearchSpace.from_configspace({})
    cs = CS.ConfigurationSpace()
    with pytest.raises(ValueError, match="cs: .* with several values, got none"):
        SearchSpace.from_configspace(cs)
    cs.add(CS.Constant("only", 1))
    with pytest.raises(ValueError, match=r"got only constants, \['only'\]"):
        SearchSpace.from_configspace(cs)


@pytest.mark.parametrize(
    "kwargs", [{"integer_features": [0]}, {"categorical_features": {0: [0, 1, 2]}}]
)
def test_points_between_values(kwargs: dict[str, Any]) -> None:
    """An undeclared value of a decision would switch everything below it off."""
    tree = ParameterTree(3, {0: {0: [1], 1: [2]}})
    space = SearchSpace(["d", "x", "k"], [[0, 0, 1], [2, 1, 9]], tree, **kwargs)
    X = torch.tensor([[0, 0.3, 2.5], [1 + 1e-7, nan, 3], [2, 0.1, 0.5]])
    space.check_points(X)
    X[1, 0] = 0.5
    with pytest.raises(
        ValueError, match=r"^X: expected .*'d' \(column 0\), got 0.5 in r"
    ):
        space.check_points(X)
    whole = SearchSpace.from_dictionaries([{"l": ["a"], "C": (0, 1)}, {"k": (1, 50)}])
    X = whole.sample(9, seed=0)
    X[:, whole.names.index("k")] = 20.5
    with pytest.raises(
        ValueError, match=r"X: expected an integer in \[1, 50\] for 'k'"
    ):
        whole.check_points(X)


def test_a_choice_below_its_first_value_is_the_first() -> None:
    space = SearchSpace.from_dictionaries({"kind": ["a", "b", "c"]})
    X = torch.tensor([[-0.2], [2.2]], dtype=torch.double)
    assert [c["kind"] for c in space.decode(X)] == ["a", "c"]


def test_parameters_that_go_with_held_columns() -> None:
    knn = {"learner": ["knn"], "k": (1, 9), "p": [2]}
    space = SearchSpace.from_dictionaries([{"learner": ["svm"], "C": (0.1, 1.0)}, knn])
    assert space.possible_with({}) == {"learner", "C", "k", "p"}
    assert space.possible_with({0: 0.0}) == {"learner", "C"}
    assert space.possible_with({0: 1.0}) == {"learner", "k", "p"}
