"""What all optimisers share: their arguments are refused, or a space gives them."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import ConfigSpace as CS
import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    ExpectedImprovement,
    GenericMCObjective,
    LogExpectedImprovement,
    PriorGuidedAcquisitionFunction,
    qKnowledgeGradient,
    qLogExpectedImprovement,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import CandidateGenerationError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from hypothesis import example, given, settings
from hypothesis import strategies as st
from search_problems import make_problem
from strategies import random_configspace, seeds

from botorch_structured.acquisition import InteriorPrior
from botorch_structured.models import SampledGP, TreeStructuredGP
from botorch_structured.optim import (
    adaptive_sobol_candidates,
    optimize_acqf_local_search,
    optimize_acqf_paths,
    optimize_acqf_sobol,
    optimize_acqf_two_step,
)
from botorch_structured.optim.problem import KnownPoints
from botorch_structured.spaces import ParameterTree, SearchSpace


def two_step(acq_function: AcquisitionFunction, *args: Any, **kwargs: Any) -> Any:
    return optimize_acqf_two_step(acq_function, acq_function, *args, **kwargs)


OVER_TREES = [
    optimize_acqf_paths,
    two_step,
    optimize_acqf_local_search,
]
CLIMBING = [optimize_acqf_paths, two_step, optimize_acqf_local_search]
OVER_BOXES = [optimize_acqf_sobol]


class Sum(AcquisitionFunction):
    """The sum of the active columns, so that optima lie on the upper bounds."""

    def __init__(self, tree: ParameterTree) -> None:
        super().__init__(model=torch.nn.Module())
        self.tree, self.calls = tree, 0

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        X = X.squeeze(-2)
        return (X * self.tree.active_mask(X)).sum(-1)


def small() -> tuple[ParameterTree, torch.Tensor]:
    """0: decision (0, 1)   1: integer, 2: categorical, both of 0   3: real of 1."""
    tree = ParameterTree(4, {0: {0: [1, 2], 1: [3]}}, values={0: [0, 1]})
    bounds = torch.tensor([[0.0, 1, 0, 0], [1, 9, 4, 1]], dtype=torch.double)
    return tree, bounds


nan = math.nan


def at_least(*columns: int, value: float) -> dict[str, Any]:
    constraint = torch.tensor(columns), torch.ones(1), value
    return {"inequality_constraints": [constraint]}


LATE = torch.tensor([[0.5], [9.0]]).expand(2, 4)
BAD = [
    (dict(fixed_features={3: 9.0}), r"fixed_features\[3\]: .*0.0 to 1.0, got 9"),
    (dict(fixed_features={1: 2.5}), r"fixed_features\[1\]: .*an integer, got 2.5"),
    (dict(fixed_features={2: 3.0}), r"fixed_features\[2\]: .*one of \[0.0, 1.0, 4.0\]"),
    (dict(fixed_features={4: 0.0}), "fixed_features: .*columns from 0 to 3, got 4"),
    (dict(fixed_features={0: 0.5}), r"fixed_features\[0\]: .*declares, .*got \[0.5\]"),
    (dict(fixed_features={0: 2.0}), r"fixed_features\[0\]: .*within the bounds"),
    (dict(fixed_features={3: nan}), r"fixed_features\[3\]: .*finite"),
    (dict(fixed_features={3: None}), r"fixed_features\[3\]: .*a number, got None"),
    (dict(fixed_features=[3]), r"fixed_features: expected {column: value}"),
    (dict(integer_features=[5]), "integer_features: .*columns from 0 to 3, got 5"),
    (dict(integer_features=1), "integer_features: expected a list of columns, got 1"),
    (dict(categorical_features={2: []}), r"categorical_features\[2\]: .*at least one"),
    (dict(categorical_features={2: ["a"]}), r"categorical_features\[2\]: .*number"),
    (dict(categorical_features={2: 1.0}), r"categorical_features\[2\]: .*a list"),
    (dict(categorical_features=[2]), "categorical_features: .*got"),
    (dict(X_avoid=torch.zeros(2, 3)), r"X_avoid: expected an m x 4 tensor, got \(2, 3"),
    (dict(X_avoid=[[0.0] * 4]), "X_avoid: expected an m x 4 tensor, got list"),
    (dict(X_avoid=torch.tensor([[1.0, 0, 0, nan]])), "X_avoid: .*row 0, column 3"),
    (dict(X_avoid=torch.tensor([[2.0, 0, 0, 0]])), r"X_avoid: column 0: .*got \[2.0\]"),
    (dict(X_pending=torch.rand(4, 1, 3)), r"X_pending: .* m x 4 tensor, got \(4, 3"),
    (dict(fill="a"), "fill: expected a number or 4, got 'a'"),
    (dict(fill=nan), "fill: expected finite"),
    (dict(feasible=3), "feasible: expected a function"),
    (dict(inequality_constraints=5), "inequality_constraints: .*got 5"),
    (at_least(4, value=0.0), r"inequality_constraints\[0\]: .*got 4"),
    (at_least(3, value=nan), r"inequality_constraints\[0\]: .*finite"),
    (at_least(0, 1, value=0.0), r"constraints\[0\]: .*shapes \(2,\) and \(1,\)"),
    (dict(q=0), "q: expected a positive integer, got 0"),
    (dict(seed=0.5), "seed: expected an integer"),
    (dict(raw_samples=0), "raw_samples: expected a positive integer, got 0"),
    (dict(min_distance="a"), "min_distance: expected a number, got 'a'"),
    (dict(bounds=torch.zeros(2, 4).long()), r"bounds: .*\(2, 4\) of torch.int64"),
    (dict(bounds=torch.tensor([[1.0], [0.0]]).expand(2, 4)), "bounds: .*finite lower"),
    (dict(bounds=None), "bounds, tree: expected both"),
    (dict(tree=None), r"bounds, tree: expected both of them, or space="),
    (dict(tree={0: {0: [1]}}), "tree: expected a ParameterTree"),
    (dict(num_restarts=0), "num_restarts: expected a positive integer, got 0"),
    (dict(q=2), "acq_function: .*pending.*q=2"),
    (dict(min_distance=1.0), "min_distance: expected a share .*got 1.0"),
    (dict(X_start=torch.full((2, 4), nan)), "X_start: column 0: expected"),
    (dict(X_start=torch.zeros(2, 3)), "X_start: expected an m x 4 tensor"),
    (dict(categorical_features={0: [0, 7]}), r"categorical.*\[0\]: .*got \[7.0\]"),
    (dict(categorical_features={0: [0]}, bounds=LATE), "leave at least one path"),
    (dict(space=SearchSpace(["a"], [[0], [1]])), "space: .*got bounds as well"),
    (dict(space=CS.ConfigurationSpace()), "space: .*got ConfigurationSpace"),
]


@pytest.mark.parametrize("optimize", OVER_TREES)
@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_arguments_are_refused_before_any_work(
    optimize: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    tree, bounds = small()
    acqf = Sum(tree)
    if "X_pending" in arguments:
        acqf.X_pending, arguments = arguments["X_pending"], {}
    given = {
        "bounds": bounds,
        "tree": tree,
        "integer_features": [1],
        "categorical_features": {2: [0, 1, 4]},
    }
    if not {*arguments} & {"num_restarts", "X_start"} or optimize in CLIMBING:
        with pytest.raises(ValueError, match=message):
            optimize(acqf, **{**given, **arguments})
    assert acqf.calls == 0


@pytest.mark.parametrize("optimize", OVER_TREES + OVER_BOXES)
def test_no_acquisition_function(optimize: Callable[..., Any]) -> None:
    tree, bounds = small()
    X = torch.rand(4, 4, dtype=torch.double)
    model = SingleTaskGP(X, X[:, :1])
    for wrong in (None, lambda X: X, model):
        with pytest.raises(ValueError, match="acq_function: expected .*, got"):
            optimize(wrong, bounds)
    with pytest.raises(ValueError, match="acq_function.*one-shot.*qLogNoisy"):
        optimize(qKnowledgeGradient(model, num_fantasies=2), bounds)


@pytest.mark.parametrize("optimize", OVER_TREES + OVER_BOXES)
@pytest.mark.parametrize("kind", [SingleTaskGP, TreeStructuredGP])
def test_a_model_of_other_columns(optimize: Callable[..., Any], kind: Any) -> None:
    X = torch.rand(4, 3, dtype=torch.double)
    trees = [ParameterTree(3)] if kind is TreeStructuredGP else []
    acqf = LogExpectedImprovement(kind(X, X[:, :1], *trees).eval(), 0.0)
    space = SearchSpace(["a", "b"], [[0, 0], [1, 1]])
    message = "acq_function: expected a model of 2 columns, .* got one of 3"
    boxes = {} if optimize in OVER_BOXES else {"tree": space.tree}
    for arguments in ({"space": space}, {"bounds": space.bounds, **boxes}):
        with pytest.raises(ValueError, match=message):
            optimize(acqf, **arguments)


def test_boxes_refuse_what_is_no_box() -> None:
    space = SearchSpace(["a", "n"], [[0, 0], [1, 9]], integer_features=[1])
    acqf = Sum(space.tree)
    with pytest.raises(ValueError, match=r"space: expected real .*columns \[1\]"):
        optimize_acqf_sobol(acqf, space=space)
    with pytest.raises(ValueError, match="space: .*got bounds as well"):
        optimize_acqf_sobol(acqf, space.bounds, space=space)
    with pytest.raises(ValueError, match="bounds: expected a floating-point 2 x d"):
        optimize_acqf_sobol(acqf)
    unit = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    for arguments, message in (
        (dict(num_rounds=-1), "num_rounds: expected an integer from 0 on"),
        (dict(min_distance=2.0), "min_distance: expected"),
        (dict(refine_above=nan), "refine_above: expected"),
        (dict(q=0), "q: expected"),
        (dict(q=2), "takes pending points"),
        (dict(X_avoid=unit[:, :1]), "X_avoid: expected"),
        (dict(feasible=3), "feasible: expected"),
        (dict(seed="a"), "seed: expected"),
        (dict(bounds=[[0.0], [1.0]]), "bounds: expected"),
        (dict(bounds=torch.zeros(2, 0)), "bounds: expected"),
        (dict(bounds=unit.flip(0)), "bounds: expected"),
        (dict(bounds=unit * math.inf), "bounds: expected"),
        (dict(num_points=0), "num_points: expected"),
        (dict(best_X=torch.zeros(3)), "best_X: expected"),
        (dict(best_X=torch.full((2,), nan)), "best_X: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            optimize_acqf_sobol(acqf, **{"bounds": unit, **arguments})
    for bounds in (torch.zeros(3, 2), unit.flip(0)):
        with pytest.raises(ValueError, match="bounds: expected"):
            adaptive_sobol_candidates(bounds)
    assert acqf.calls == 0


def forbidding() -> SearchSpace:
    """An integer, a categorical, an ordinal and a log scale under a decision."""
    cs = CS.ConfigurationSpace(seed=0)
    cs.add(
        kind := CS.CategoricalHyperparameter("kind", ["a", "b"]),
        units := CS.UniformIntegerHyperparameter("units", 16, 1000, log=True),
        how := CS.CategoricalHyperparameter("how", ["x", "y", "z"]),
        rate := CS.UniformFloatHyperparameter("rate", 1e-4, 1, log=True),
    )
    cs.add(CS.EqualsCondition(units, kind, "b"), CS.EqualsCondition(how, kind, "b"))
    cs.add(
        CS.ForbiddenAndConjunction(
            CS.ForbiddenEqualsClause(kind, "b"), CS.ForbiddenEqualsClause(how, "z")
        ),
        CS.ForbiddenGreaterThanRelation(rate, units),
        CS.ForbiddenGreaterThanClause(units, 512),
    )
    return SearchSpace.from_configspace(cs)


@pytest.mark.parametrize("optimize", OVER_TREES)
@pytest.mark.parametrize("form", ["space", "tree", "copy"])
def test_what_a_space_forbids_is_never_proposed(optimize, form: str) -> None:
    """The optimum would be at the upper bounds, which are forbidden."""
    space = forbidding()
    tree = space.tree if form == "tree" else pickle.loads(pickle.dumps(space.tree))
    acqf = Sum(space.tree)
    where = (
        {"space": space} if form == "space" else dict(bounds=space.bounds, tree=tree)
    )
    known = space.sample(3, seed=1)
    X, value = optimize(acqf, **where, X_avoid=known, seed=0)
    assert space.feasible(X).all()
    config = space.decode(X)[0]
    assert config["kind"] == "b" and config["how"] == "y"
    if optimize is not optimize_acqf_local_search:
        assert config["units"] == 512
    assert X[0, space.names.index("units")] == config["units"]
    assert X.shape == (1, 4) and X.dtype == value.dtype == torch.double
    assert value.shape == ()


@settings(max_examples=10)
@given(seeds)
@example(7325452)  # the optimum lies just beyond a cut of a logarithmic scale
@example(362)  # the only admissible point is known
def test_random_spaces(seed: int) -> None:
    space = SearchSpace.from_configspace(random_configspace(seed))
    acqf = Sum(space.tree)
    known = space.sample(1, seed=seed)
    try:
        X, value = optimize_acqf_paths(acqf, space=space, X_avoid=known, seed=seed)
    except CandidateGenerationError:
        assert torch.equal(space.sample(99, seed=0).unique(dim=0), known)
        return
    assert space.feasible(X).all()
    # decode keeps values 1e-8 decades off a cut of a logarithmic scale
    assert torch.allclose(space.encode(space.decode(X)), X, rtol=0, atol=2e-8)
    # The long form says the same.
    same, other = optimize_acqf_paths(
        acqf,
        space.bounds,
        ParameterTree(
            space.dim, conditions=space.tree.conditions, values=space.tree._values
        ),
        integer_features=space.integer_features,
        categorical_features=space.categorical_features,
        fill=space.fill,
        feasible=space.feasible,
        X_avoid=known,
        seed=seed,
    )
    assert torch.equal(X, same) and torch.equal(value, other)


def test_what_is_given_restricts_what_the_tree_brings() -> None:
    tree, bounds = small()
    space = SearchSpace(
        ["a", "b", "c", "d"],
        bounds,
        tree,
        integer_features=[1],
        categorical_features={2: [0, 1, 4]},
        feasible=lambda X: X[..., 1] < 5,
    )
    acqf = Sum(tree)
    X, _ = optimize_acqf_paths(acqf, bounds, space.tree, seed=0)
    assert X.tolist() == [[0, 4, 4, space.fill[3]]]
    for where in (dict(bounds=bounds, tree=space.tree), dict(space=space)):
        for loose, best in ((6.5, 4), (3.5, 3)):
            X, _ = optimize_acqf_paths(
                acqf, feasible=lambda X, loose=loose: X[:, 1] < loose, seed=0, **where
            )
            assert X[0, :3].tolist() == [0, best, 4]
    beside = dict(bounds=bounds, tree=space.tree)
    X, _ = optimize_acqf_paths(
        acqf,
        integer_features=[],
        categorical_features={-2: [0, 1]},
        fill=-1.0,
        seed=0,
        **beside,
    )
    assert X.tolist() == [[0, 4, 1, -1]]
    with pytest.raises(ValueError, match=r"categorical_features\[2\]: .*got \[2.0\]"):
        optimize_acqf_paths(acqf, categorical_features={2: [0, 2]}, **beside)
    # Whole numbers of another scale are none.
    unit = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, 4)
    with pytest.raises(ValueError, match="bounds: .*1.0 to 9.0 for column 1 .'b'"):
        optimize_acqf_paths(acqf, unit, space.tree)
    free = SearchSpace(["a", "b", "c", "d"], bounds, tree, integer_features=[1])
    with pytest.raises(ValueError, match="bounds: .*1.0 to 9.0 for column 1 .'b'"):
        optimize_acqf_paths(acqf, unit, free.tree, integer_features=[])


@pytest.mark.parametrize("optimize", OVER_TREES)
@pytest.mark.parametrize(
    ("verdict", "got"),
    [
        (lambda X: X[..., 1] - 5.0, "of torch.float64"),  # a slack: all of it is true
        (lambda X: None, "got None"),
        (lambda X: [True] * len(X), "got .True"),
    ],
)
def test_feasible_returns_booleans(optimize, verdict, got: str) -> None:
    tree, bounds = small()
    names = ["a", "b", "c", "d"]
    message = rf"feasible: expected .* booleans \(torch.bool\).*{got}"
    space = SearchSpace(names, bounds, tree, feasible=verdict)
    with pytest.raises(ValueError, match=message):
        space.feasible(bounds)
    restricted = SearchSpace(names, bounds, tree, feasible=lambda X: X[..., 1] < 5)
    for where in (
        dict(bounds=bounds, tree=tree),
        dict(space=restricted),
    ):
        with pytest.raises(ValueError, match=message):
            optimize(Sum(tree), feasible=verdict, **where)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_spaces_follow_the_model(dtype: torch.dtype, device: torch.device) -> None:
    space = SearchSpace(
        ["a", "b"], [[0, 0], [1, 1]], feasible=lambda X: X[..., 0] < 0.5
    )
    X = space.sample(6, seed=0).to(device, dtype)
    acqf = LogExpectedImprovement(SingleTaskGP(X, X.sum(-1, keepdim=True)), best_f=0.5)
    for optimize in (optimize_acqf_paths, optimize_acqf_sobol):
        x, value = optimize(acqf, space=space, X_avoid=X, seed=0)
        assert x.dtype == value.dtype == dtype and x.device.type == device.type
        assert space.feasible(x).all()


@pytest.mark.parametrize("optimize", OVER_TREES)
def test_known_points_may_hold_anything_where_columns_are_inactive(optimize) -> None:
    tree = ParameterTree(2, {0: {0: [1], 1: []}}, values={0: [0, 1]})
    bounds = torch.tensor([[0.0, 0.0], [1.0, 3.0]], dtype=torch.double)
    known = torch.tensor([[1.0, nan], [0.0, 3.0]], dtype=torch.double)
    left = []
    for _ in range(3):
        X, _ = optimize(
            Sum(tree), bounds, tree, integer_features=[1], X_avoid=known, seed=0
        )
        left.append(X[0].tolist())
        known = torch.cat([known, X])
    assert left == [[0.0, 2.0], [0.0, 1.0], [0.0, 0.0]]


# -- Points that are known ----------------------------------------------------------


@settings(max_examples=9)
@given(seed=seeds, scale=st.sampled_from([1e-6, 1.0, 1e7]))
def test_equals_comparing_all_pairs(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    tree = ParameterTree(5, {0: {0: [1, 2], 1: [2, 3], 2: []}})
    bounds = torch.tensor([[0.0, 0, -1, 0, 5], [2, 1, 1, 3, 5]]).double()
    bounds[:, 1:4] *= scale
    problem = make_problem(bounds, tree)
    X = tree.random_paths(60, generator)
    X[:, 1:4] = torch.randint(3, (60, 3), generator=generator) * bounds[1, 1:4] / 2
    X[:, 4] = 5
    X = tree.impute(X)
    known = X[torch.randperm(60, generator=generator)[:20]]
    known[:10, 2] += 1e-10 * scale  # too close to tell apart
    known[10:, 2] += 1e-4 * scale
    known = tree.impute(known)
    expected = [
        any(
            tree.path_key(x[None]) == tree.path_key(k[None])
            and ((x - k).abs() <= 1e-8 * (bounds[1] - bounds[0])).all()
            for k in known
        )
        for x in X
    ]
    points = KnownPoints(problem, known.numpy())
    assert points.contains(X.numpy()).tolist() == expected
    assert points.contains(points.X).all()
    assert not KnownPoints(problem, points.X[:0]).contains(X.numpy()).any()


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_values_of_wide_discrete_columns_are_told_apart(dtype: torch.dtype) -> None:
    # column 0 is an integer, column 1 a list, column 2 moves continuously
    tree = ParameterTree(3, {})
    bounds = torch.tensor([[1.0, 1.0, 0.0], [1e12, 1e12, 1e12]], dtype=dtype)
    problem = make_problem(bounds, tree, [0], {1: [1.0, 1.25, 1e9, 1e12]})
    known = torch.tensor([[5.0, 1.25, 7.0]], dtype=dtype)
    a, b = 1.25, 1e9
    X = [[5, a, 7], [5, a, 8], [6, a, 7], [4, a, 7], [5, 1, 7], [5, b, 7]]
    expected = [True, True, False, False, False, False]
    points = KnownPoints(problem, known.numpy())
    X = torch.tensor(X, dtype=dtype).numpy()
    assert points.contains(X).tolist() == expected


def test_zero_is_beyond_the_bounds_of_a_wide_integer() -> None:
    bounds = torch.tensor([[1.0], [1e12]], dtype=torch.double)
    for value in (0, -1e5, 1e12 + 1e8):
        with pytest.raises(ValueError, match=r"features\[0\]: expected a number w"):
            make_problem(bounds, ParameterTree(1, {}), [0], fixed_features={0: value})


# -- Points to look around ----------------------------------------------------------

TRAIN_X = torch.tensor(
    [[0, 1.0, 9.0], [0, 4.0, 9.0], [1, 9.0, 2.0], [1, 9.0, 3.0], [1, 9.0, 5.0]],
    dtype=torch.double,
)
TRAIN_Y = torch.tensor([[3.0], [1.0], [2.0], [5.0], [4.0]], dtype=torch.double)


PATHS = ParameterTree(3, {0: {0: [1], 1: [2]}})


def model(kind: type = LogExpectedImprovement, **kwargs: Any) -> AcquisitionFunction:
    """An improvement on the best of a model of the points."""
    transform = kwargs.pop("input_transform", None)
    number = kwargs.pop("members", 1)
    noise = kwargs.pop("noise", None)
    members = []
    for _ in range(number):
        one = SingleTaskGP(TRAIN_X, TRAIN_Y, noise, input_transform=transform)
        one.covar_module.lengthscale = 0.1
        if noise is None:
            one.likelihood.noise = 1e-4
        members.append(one.eval())
    return kind(members[0] if number == 1 else SampledGP(members), 3.0, **kwargs)


def guided() -> AcquisitionFunction:
    space = SearchSpace(list("abc"), [[0, 0, 0], [1, 10, 10]], PATHS)
    return PriorGuidedAcquisitionFunction(model(), InteriorPrior(space), log=True)


NOISE = torch.tensor([[1.0], [1.0], [1.0], [1e6], [1.0]]).double()
NEGATE = ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=torch.double))
NEGATIVE = GenericMCObjective(lambda samples, X=None: -samples[..., 0])
# The best of each path first.
BEST = [[1, 0.5, 3], [0, 1, 0.5]]
LEAST = [[0, 4, 0.5], [1, 0.5, 2]]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (model, BEST),
        (lambda: model(ExpectedImprovement, maximize=False), LEAST),
        # by outcomes, not by means
        (lambda: model(noise=NOISE), BEST),
        # in evaluation mode the model itself holds transformed inputs
        (lambda: model(input_transform=Normalize(3)), BEST),
        (lambda: model(posterior_transform=NEGATE), LEAST),
        (lambda: model(qLogExpectedImprovement, objective=NEGATIVE), LEAST),
        (lambda: model(members=3), BEST),
        (lambda: model(members=3, input_transform=Normalize(3)), BEST),
        (lambda: model(members=3, posterior_transform=NEGATE), LEAST),
        (guided, BEST),
        (lambda: Sum(PATHS), []),
    ],
)
def test_searches_look_around_the_best_of_every_path(make: Any, expected: Any) -> None:
    bounds = torch.tensor([[0.0, 0, 0], [1, 10, 10]], dtype=torch.double)
    good = make_problem(bounds, PATHS, acq_function=make()).good
    assert good.tolist() == expected
