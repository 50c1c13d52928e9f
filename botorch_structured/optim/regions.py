"""The arguments of an optimiser, checked once.

`read_region` reads the space, `make_problem` what restricts it and what is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.objective import IdentityMCObjective
from botorch.posteriors.fully_bayesian import MCMC_DIM
from torch import Tensor

from botorch_structured.optim.problem import (
    Array,
    Feasible,
    LinearConstraint,
    Problem,
    Values,
    first_of_each,
    mask_of,
)
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import (
    check_booleans,
    check_by_column,
    check_column,
    check_columns,
    check_count,
    check_number,
    check_values,
)
from botorch_structured.spaces.columns import with_slack
from botorch_structured.spaces.path_search import MAX_LISTED

# All paths are searched up to this number of them.
MAX_PATHS = 1024


def check_acquisition(acq_function: Any, name: str) -> None:
    """Raise unless ``acq_function`` maps ``b x 1 x d`` points to ``b`` values."""
    if isinstance(acq_function, OneShotAcquisitionFunction):
        raise ValueError(
            f"{name}: expected an acquisition function of one point at a time, got the "
            f"one-shot {type(acq_function).__name__}: use qLogNoisyExpectedImprovement "
            "here, or botorch.optim.optimize_acqf_mixed for this one."
        )
    if not isinstance(acq_function, AcquisitionFunction):
        raise ValueError(
            f"{name}: expected a BoTorch AcquisitionFunction, got "
            f"{type(acq_function).__name__}."
        )


@dataclass(frozen=True)
class Region:
    """A space by its columns, as the arguments of an optimiser describe it.

    Attributes:
        tree: What is active where.
        bounds: ``2 x d``.
        whole: The columns of integers.
        lists: Column -> its admissible values.
        logarithmic: The integers on a logarithmic scale.
        fill: ``d`` numbers that inactive columns hold.
        feasible: What the space forbids is not feasible.
        restricting: The columns on which that depends.
    """

    tree: ParameterTree
    bounds: Tensor
    whole: list[int]
    lists: dict[int, list[float]]
    logarithmic: list[int]
    fill: Tensor
    feasible: Feasible | None
    restricting: list[int]


def read_region(
    acq_function: AcquisitionFunction,
    bounds: Tensor | None = None,
    tree: ParameterTree | None = None,
    integer_features: Sequence[int] | None = None,
    categorical_features: Mapping[int, Sequence[float]] | None = None,
    fill: float | Tensor | None = None,
    space: SearchSpace | None = None,
) -> Region:
    """Check the acquisition function and the arguments that describe the space.

    They are those of `optimize_acqf_paths`. A ``space`` is its bounds, in the precision
    and on the device of ``acq_function``, and its tree; a tree that belongs to a space
    brings along what that says about columns.

    Raises:
        ValueError: Which argument, what was expected, what came.
    """
    check_acquisition(acq_function, "acq_function")
    if space is not None:
        arguments = {
            "bounds": bounds,
            "tree": tree,
            "integer_features": integer_features,
            "categorical_features": categorical_features,
            "fill": fill,
        }
        bounds = _bounds_of_space(space, arguments, acq_function)
        tree = space.tree
    if bounds is None or tree is None:
        raise ValueError(
            "bounds, tree: expected both of them, or space=... (a SearchSpace) in "
            f"their place, got {type(bounds).__name__} and {type(tree).__name__}."
        )
    if not isinstance(tree, ParameterTree):
        raise ValueError(
            "tree: expected a ParameterTree (model.tree, ParameterTree(d, {...})), "
            f"got {type(tree).__name__}."
        )
    d = tree.dim
    bounds = check_bounds(bounds, d)
    integers = () if integer_features is None else integer_features
    whole = check_columns("integer_features", integers, d, True)
    lists = check_by_column("categorical_features", categorical_features, d, True)
    logarithmic: list[int] = []
    restricting: list[int] = []
    feasible: Feasible | None = None
    if tree.space is not None:
        _check_scale(bounds, tree.space)
        whole = sorted({*whole, *tree.space.integer_features})
        lists = {**tree.space.categorical_features, **lists}
        logarithmic = tree.space.log_integers
        for col, codes in tree.space.categorical_features.items():
            odd = [v for v in lists[col] if v not in codes]
            if odd:
                raise ValueError(
                    f"categorical_features[{col}]: expected among the values that the "
                    f"space of the tree has, {codes}, got {odd}."
                )
        if tree.space.is_restricted:
            restricting = tree.space.restricting_columns
            feasible = tree.space.feasible
        fill = tree.space.fill if fill is None else fill
    for c, numbers in lists.items():
        name = f"categorical_features[{c}]"
        lists[c] = list(check_values(name, {check_number(name, v) for v in numbers}))
    row = _read_fill(0.5 if fill is None else fill, bounds)
    return Region(tree, bounds, whole, lists, logarithmic, row, feasible, restricting)


def _bounds_of_space(
    space: Any, beside: dict[str, Any], acq_function: AcquisitionFunction
) -> Tensor:
    """The bounds of a space that stands in for other arguments."""
    if not isinstance(space, SearchSpace):
        raise ValueError(
            "space: expected a SearchSpace (SearchSpace.from_configspace(cs)), got "
            f"{type(space).__name__}."
        )
    also = [name for name, argument in beside.items() if argument is not None]
    if also:
        raise ValueError(
            f"space: expected in place of {', '.join(beside)}, got "
            f"{', '.join(also)} as well."
        )
    modelled = getattr(getattr(acq_function, "model", None), "tree", None)
    if isinstance(modelled, ParameterTree) and modelled.dim != space.dim:
        raise ValueError(
            f"space: expected one of {modelled.dim} columns, as many as the model "
            f"of the acquisition function has, got {space.dim}."
        )
    floating = (p for p in acq_function.parameters() if p.is_floating_point())
    like = next(floating, space.bounds)
    return space.bounds.to(like)


def _read_fill(fill: Any, bounds: Tensor) -> Tensor:
    """``d`` numbers that inactive columns hold."""
    try:
        row = torch.as_tensor(fill).to(bounds).detach().expand(bounds.shape[-1])
    except (TypeError, ValueError, RuntimeError):
        d = bounds.shape[-1]
        raise ValueError(f"fill: expected a number or {d}, got {fill!r}.") from None
    if not row.isfinite().all():
        raise ValueError(f"fill: expected finite numbers, got {fill!r}.")
    return row


def make_problem(
    region: Region,
    acq_functions: Sequence[Any] = (),
    *,
    fixed_features: Mapping[int, float] | None = None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None = None,
    feasible: Feasible | None = None,
    X_avoid: Tensor | None = None,
    X_start: Tensor | None = None,
    around: bool = True,
    min_distance: float = 0.0,
    max_paths: int = MAX_PATHS,
    avoid_paths: Tensor | None = None,
) -> Problem:
    """Check the arguments that restrict a region, and what is known of it.

    They are those of `optimize_acqf_paths`. Points that ``acq_functions`` have pending
    are known, too; without ``X_start`` the model of the first one has points to look
    around, unless these are not wanted (``around``).

    Raises:
        ValueError: Which argument, what was expected, what came.
    """
    tree = region.tree
    bounds = region.bounds
    d = tree.dim
    if feasible is not None and not callable(feasible):
        raise ValueError(f"feasible: expected a callable, got {feasible!r}.")
    distance = check_number("min_distance", min_distance)
    if not 0.0 <= distance < 1.0:
        raise ValueError(
            "min_distance: expected a share of the width of the bounds, from 0 to less "
            f"than 1, got {min_distance!r}."
        )
    fixed = read_fixed(tree, bounds, fixed_features, region.whole, region.lists)
    keys = torch.empty(0).long() if avoid_paths is None else avoid_paths
    if not isinstance(keys, Tensor) or keys.dtype != torch.long:
        raise ValueError(f"avoid_paths: expected keys of tree.path_key, got {keys!r}.")
    constraints = _constraints(d, inequality_constraints, bounds)
    tables = [bounds[:0]]
    fill = region.fill
    if X_avoid is not None:
        tables.append(check_points("X_avoid", X_avoid, tree, fill))
    for acq_function in acq_functions:
        X = getattr(acq_function, "X_pending", None)
        if X is not None:
            X = X.reshape(-1, X.shape[-1])
            tables.append(check_points("X_pending", X, tree, fill))
    avoid = torch.cat(tables)
    good = bounds[:0]
    if X_start is not None:
        good = check_points("X_start", X_start, tree, fill)
    elif around and acq_functions:
        good = tree.impute(_promising(tree, bounds, acq_functions[0]), fill)
    listed = _with_outcomes(tree, region.lists, fixed)
    values, lower, upper = _columns(listed, region, fixed, torch.cat([avoid, good]))
    return Problem(
        tree=tree,
        listed=listed,
        bounds=bounds.cpu().numpy(),
        fill=fill.cpu().numpy(),
        values=values,
        lower=lower,
        upper=upper,
        fixed=fixed,
        constraints=constraints,
        feasible=_both(region.feasible, feasible),
        X_avoid=avoid.cpu().numpy(),
        good=good.cpu().numpy(),
        max_paths=min(check_count("max_paths", max_paths), MAX_LISTED),
        min_distance=distance,
        avoid_paths=keys.cpu().numpy(),
        restricting=mask_of(
            range(d) if feasible or constraints else region.restricting, d
        ),
        device=bounds.device,
    )


def check_bounds(bounds: Any, d: int | None = None) -> Tensor:
    """``bounds`` if they are ``2 x d``; any positive ``d`` where None is given."""
    fits = isinstance(bounds, Tensor) and bounds.is_floating_point() and bounds.numel()
    if not (fits and bounds.shape == (2, d or bounds.numel() // 2)):
        got: Any = type(bounds).__name__
        if isinstance(bounds, Tensor):
            got = f"shape {tuple(bounds.shape)} of {bounds.dtype}"
        raise ValueError(
            f"bounds: expected a floating-point 2 x {d or 'd'} tensor, got {got}."
        )
    ends = bounds.detach().cpu().numpy()
    if not (np.isfinite(ends).all() and (ends[0] <= ends[1]).all()):
        raise ValueError(
            "bounds: expected finite lower bounds at most as large as the upper ones, "
            f"got {bounds.tolist()}."
        )
    return bounds.detach()


def _both(first: Feasible | None, second: Feasible | None) -> Feasible | None:
    """Where both hold."""
    if first is None or second is None:
        return first or second
    return lambda X: (
        first(X) & check_booleans("feasible", second(X), X.shape[:-1]).to(X.device)
    )


def _check_scale(bounds: Tensor, space: SearchSpace) -> None:
    """Check that bounds are on the scale of a space that knows about columns."""
    columns = set(range(space.dim) if space.is_restricted else space.integer_features)
    # Categories are looked up whatever the bounds are.
    for c in sorted(columns - space.categorical_features.keys()):
        lo, hi = space.bounds[:, c].tolist()
        least, most = with_slack((lo, hi), c in space.integer_features)
        lower, upper = bounds[:, c].tolist()
        if lower < least or upper > most:
            raise ValueError(
                "bounds: expected those of the space that the tree belongs to, or "
                f"narrower ones, {lo} to {hi} for column {c} ({space.names[c]!r}), got "
                f"{lower} to {upper}. Another scale needs a tree of its own."
            )


def check_points(name: str, X: Any, tree: ParameterTree, fill: Tensor) -> Tensor:
    """``X`` if it is ``m x d`` numbers, finite where columns are active.

    Args:
        name: The name of the argument.
        X: Its value.
        tree: Says which columns are active.
        fill: ``d`` numbers that the others hold in the answer, of the precision and on
            the device that is wanted.
    """
    if not isinstance(X, Tensor) or X.dim() != 2 or X.shape[-1] != tree.dim:
        got: Any = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
        raise ValueError(f"{name}: expected an m x {tree.dim} tensor, got {got}.")
    X = X.detach().to(fill)
    try:
        active = tree.active_mask(X)
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix('X: ')}") from None
    X = torch.where(active, X, fill)
    if not math.isfinite(X.sum()) and not X.isfinite().all():
        row, col = (~X.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"{name}: expected finite numbers in active columns, got {X[row, col]} in "
            f"row {row}, column {col}."
        )
    return X


def _undeclared(tree: ParameterTree, X: Tensor) -> dict[int, set[float]]:
    """Column -> outcomes of points that the tree does not declare."""
    if tree.is_declared(X).all():
        return {}
    codes = tree.decision_codes(X, strict=False)
    outcomes = {}
    for k, column in enumerate(tree.decision_columns):
        unknown = codes[:, k] == len(tree.decision_values[column])
        outcomes[column] = {*X[unknown, column].tolist()}
    return outcomes


def _columns(
    tree: ParameterTree, region: Region, fixed: Mapping[int, float], seen: Tensor
) -> tuple[Values, Array, Array]:
    """Admissible values of the columns, and the least and largest within the bounds.

    Args:
        tree: The tree, with all outcomes that may be proposed declared.
        region: Bounds and kinds of columns.
        fixed: Column -> its value.
        seen: Points whose undeclared outcomes may be proposed, too.
    """
    tables: dict[int, Sequence[float]] = dict(region.lists)
    undeclared = _undeclared(tree, seen)
    for col in tree.decisions_by_value:
        options = {*tree.decision_values[col], *undeclared.get(col, ())}
        if col in region.lists:
            options &= {*region.lists[col]}
        elif col in region.whole:
            options = {v for v in options if float(v).is_integer()}
        tables[col] = sorted(options)
    d = tree.dim
    bounds = region.bounds.cpu().numpy()
    width = 1 + max((len(values) for values in tables.values()), default=1)
    table = np.full((d, width), np.inf, bounds.dtype)
    for c, numbers in tables.items():
        table[c, : len(numbers)] = numbers
    inside = (bounds[0, :, None] <= table) & (table <= bounds[1, :, None])
    for col, value in fixed.items():
        inside[col] &= table[col] == bounds.dtype.type(value)
    table = np.sort(np.where(inside, table, np.inf))
    whole = mask_of(region.whole, d)
    listed = mask_of(list(tables), d)
    logarithmic = mask_of(region.logarithmic, d) & ~listed
    # A column named in both is an integer with gaps: neighbours are alike. To a search
    # no outcome of a decision is like another.
    ordered = whole & ~mask_of(tree.decisions_by_value, d)
    values = Values(whole & ~listed, logarithmic, listed, ordered, table)
    lower, upper = (end[0] for end in values.inside(bounds[:1], bounds[1:]))
    for col, value in fixed.items():
        if col not in tables:
            lower[col] = upper[col] = value
    return values, lower, upper


def read_fixed(
    tree: ParameterTree,
    bounds: Tensor,
    fixed_features: Mapping[int, float] | None,
    whole: Sequence[int],
    lists: Mapping[int, Sequence[float]],
) -> dict[int, float]:
    """Columns and the admissible values that they are held at.

    Args:
        tree: The space.
        bounds: ``2 x d``.
        fixed_features: What was given.
        whole: The columns of integers.
        lists: Column -> its admissible values.

    Raises:
        ValueError: For columns and values that are not admissible.
    """
    if fixed_features is not None and not isinstance(fixed_features, Mapping):
        raise ValueError(
            f"fixed_features: expected {{column: value}}, got {fixed_features!r}."
        )
    fixed: dict[int, float] = {}
    for c, v in (fixed_features or {}).items():
        name = f"fixed_features[{c}]"
        col = check_column("fixed_features", c, tree.dim, True)
        if col in fixed:
            raise ValueError(
                "fixed_features: expected each column once, got column "
                f"{col} twice in {fixed_features}."
            )
        value = check_number(name, v)
        lo, hi = bounds[:, col].tolist()
        least, most = with_slack((lo, hi), col in whole)
        if not least <= value <= most:
            raise ValueError(
                f"{name}: expected a number within the bounds, {lo} to {hi}, got {v}."
            )
        if col in lists or col in whole:
            near = lists.get(col, [round(value)])
            nearest = min(near, key=lambda x: abs(x - value))
            if abs(nearest - value) > 1e-9:
                expected = f"one of {near}" if col in lists else "an integer"
                raise ValueError(f"{name}: expected {expected}, got {v}.")
            value = float(nearest)
        elif col not in tree.decisions_by_value:
            value = min(max(value, lo), hi)
        _check_declared(name, tree, col, [value])
        fixed[col] = value
    return fixed


def _check_declared(
    name: str, tree: ParameterTree, col: int, values: Sequence[float]
) -> None:
    new = [float(v) for v in values if v not in tree.decision_values.get(col, ())]
    if new and col in tree._values:
        declared = list(tree.decision_values[col])
        raise ValueError(
            f"{name}: expected among the values that the tree declares, {declared}, "
            f"got {new}."
        )


def _constraints(
    d: int,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None,
    like: Tensor,
) -> list[LinearConstraint]:
    constraints = []
    if not isinstance(inequality_constraints, Sequence | None):
        raise ValueError(
            "inequality_constraints: expected a list of (indices, coefficients, rhs), "
            f"got {inequality_constraints!r}."
        )
    for k, constraint in enumerate(inequality_constraints or ()):
        name = f"inequality_constraints[{k}]"
        try:
            indices, coefficients, rhs = constraint
            indices = torch.as_tensor(indices)
            coefficients = torch.as_tensor(coefficients).to(like)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"{name}: expected (indices, coefficients, rhs), got {constraint!r}."
            ) from None
        if indices.dim() != 1 or indices.shape != coefficients.shape:
            raise ValueError(
                f"{name}: expected as many coefficients as columns of one point, got "
                f"shapes {tuple(indices.shape)} and {tuple(coefficients.shape)}."
            )
        if not coefficients.isfinite().all():
            raise ValueError(
                f"{name}: expected finite coefficients, got {coefficients.tolist()}."
            )
        columns = check_columns(name, indices.tolist(), d, True)
        weights = coefficients.detach().cpu()
        constraints.append(LinearConstraint(columns, weights, check_number(name, rhs)))
    return constraints


def _with_outcomes(
    tree: ParameterTree,
    categorical_features: Mapping[int, Sequence[float]],
    fixed: Mapping[int, float],
) -> ParameterTree:
    """The tree with the outcomes declared that other arguments name."""
    extended: dict[int, list[float]] = {}
    for col in tree.decisions_by_value:
        named = categorical_features.get(col, ())
        _check_declared(f"categorical_features[{col}]", tree, col, named)
        outcomes = {*tree.decision_values[col], *named}
        if col in fixed:
            outcomes.add(fixed[col])
        if len(outcomes) > len(tree.decision_values[col]):
            extended[col] = sorted(outcomes)
    if not extended:
        return tree
    return ParameterTree(
        tree.dim, conditions=tree.conditions, values={**tree._values, **extended}
    )


def _promising(
    tree: ParameterTree, bounds: Tensor, acq_function: AcquisitionFunction | None
) -> Tensor:
    """The best training point of every path, the best of all first.

    Args:
        tree: The space.
        bounds: A tensor of the precision and on the device that is wanted.
        acq_function: Its model, objective and direction say what is best.

    Returns:
        ``k x d`` points; none if the acquisition function has no model with one table
        of training points.
    """
    model: Any = getattr(acq_function, "model", None)
    # As they were given, before any input transform.
    X = getattr(model, "_original_train_inputs", None)
    if not isinstance(X, Tensor) or model.training:
        X = (getattr(model, "train_inputs", None) or (None,))[0]
    X = _of_one_sample(model, X, ndim=2)
    if X is None or X.shape[-1] != tree.dim or not len(X):
        return bounds[:0]
    X = X.detach().to(bounds)
    with torch.no_grad():
        score = _score(acq_function, model, X)
    if score is None:
        return bounds[:0]
    return best_of_paths(tree, X, score)


def best_of_paths(tree: ParameterTree, X: Tensor, score: Tensor) -> Tensor:
    """The point with the largest score on each path, the best of all first."""
    X = X[score.argsort(descending=True, stable=True)]
    first = first_of_each(tree.path_key(X).cpu())
    return X[torch.from_numpy(first).to(X.device)]


def _of_one_sample(model: Any, values: Any, ndim: int) -> Tensor | None:
    """A tensor with ``ndim`` dimensions, or None: an ensemble has it once a member."""
    if not isinstance(values, Tensor):
        return None
    if getattr(model, "_is_ensemble", False):
        while values.dim() > ndim:
            values = values[0]
    return values if values.dim() == ndim else None


def _score(acq_function: AcquisitionFunction, model: Any, X: Tensor) -> Tensor | None:
    """How good every training point is, larger is better."""
    # what wrappers change the values of
    while inner := getattr(acq_function, "acq_func", None) or getattr(
        acq_function, "raw_acqf", None
    ):
        acq_function = inner
    sign = 1.0 if getattr(acq_function, "maximize", True) else -1.0
    transform = getattr(acq_function, "posterior_transform", None)
    objective = getattr(acq_function, "objective", None)
    plain = transform is None and isinstance(objective, IdentityMCObjective | None)
    targets = _of_one_sample(model, getattr(model, "train_targets", None), ndim=1)
    if plain and targets is not None and len(targets) == len(X):
        return sign * targets
    if len(X) > 2048:
        return None
    # Any posterior transform and objective apply to the mean; one point a batch, as a
    # joint covariance is not needed.
    posterior = model.posterior(X.unsqueeze(-2), posterior_transform=transform)
    mean = posterior.mean
    if getattr(model, "_is_ensemble", False):
        mean = mean.mean(dim=MCMC_DIM)
    score = mean if objective is None else objective(mean, X.unsqueeze(-2))
    score = score.reshape(len(X), -1)
    return sign * score[:, 0] if score.shape[-1] == 1 else None
