"""What an optimiser is given, checked once, and what it means column by column."""

from __future__ import annotations

__all__ = [
    "Feasible",
    "MAX_PATHS",
    "Problem",
    "Values",
    "best_of_paths",
    "check_acquisition",
    "check_bounds",
    "check_points",
    "first_of_each",
    "is_known",
    "make_problem",
    "read_fixed",
]

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.objective import IdentityMCObjective
from botorch.posteriors.fully_bayesian import MCMC_DIM
from torch import Tensor

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

# All paths are searched up to this number of them.
MAX_PATHS = 1024
# Closer than this, in widths of the bounds, two points are the same to any model; but
# two values of a discrete column are not, however wide it is.
_SAME = {torch.float64: 1e-8, torch.float32: 1e-5}
# Candidates that are compared with known points at once.
_MAX_COMPARED = 1 << 12
# Of more training points than this the posterior is not asked for.
_MAX_ROWS = 2048

# The arguments that a space stands in for.
_OF_SPACE = ("bounds", "tree", "integer_features", "categorical_features", "fill")

Feasible = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Values:
    """What ``d`` columns may hold: any number, any integer, or the values in a list.

    Those in a list have *positions* 0, 1, ...; other numbers are their own positions.

    Args:
        whole: ``d`` booleans: columns of integers.
        logarithmic: ``d`` booleans: the positive integers on a logarithmic scale.
        listed: ``d`` booleans: columns with a list.
        ordered: ``d`` booleans: the discrete columns along which a search steps, as
            neighbours are alike (integers); of others (categoricals) it tries all.
        table: ``d x w`` listed values, ascending, followed by at least one infinity.
    """

    whole: Tensor
    logarithmic: Tensor
    listed: Tensor
    ordered: Tensor
    table: Tensor

    @cached_property
    def discrete(self) -> Tensor:
        """``d`` booleans: columns of integers or with a list."""
        return self.whole | self.listed

    def take(self, columns: Tensor) -> Values:
        """The same of some columns."""
        parts = (getattr(self, part.name) for part in fields(self))
        return Values(*(part[columns] for part in parts))

    def position(self, X: Tensor) -> Tensor:
        """``n x d`` positions of the nearest admissible values."""
        at = X.mT.contiguous()
        right = torch.searchsorted(self.table, at).clamp(1, self.table.shape[1] - 1)
        left = right - 1
        near = at - self.table.gather(1, left) <= self.table.gather(1, right) - at
        listed = torch.where(near, left, right).mT.to(X)
        return torch.where(self.listed, listed, torch.where(self.whole, X.round(), X))

    def value(self, position: Tensor) -> Tensor:
        """``n x d`` admissible values at these positions."""
        index = position.mT.clamp(0, self.table.shape[1] - 1).long()
        return torch.where(self.listed, self.table.gather(1, index).mT, position)

    def snap(self, X: Tensor) -> Tensor:
        """``n x d`` nearest admissible values."""
        return self.value(self.position(X))

    def inside(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The first and last admissible values in ``[lower, upper]``, ``n x d`` each.

        The first is above the last where there is none.
        """
        table, end = self.table, self.table.shape[1] - 1
        first = torch.searchsorted(table, lower.mT.contiguous()).clamp_max(end)
        last = torch.searchsorted(table, upper.mT.contiguous(), right=True) - 1
        low, high = table.gather(1, first).mT, table.gather(1, last.clamp_min(0)).mT
        high = torch.where(last.mT >= 0, high, -torch.inf)
        return (
            torch.where(self.listed, low, torch.where(self.whole, lower.ceil(), lower)),
            torch.where(
                self.listed, high, torch.where(self.whole, upper.floor(), upper)
            ),
        )


@dataclass(frozen=True)
class LinearConstraint:
    """``sum_i coefficients[i] x[columns[i]] >= rhs``."""

    columns: list[int]
    coefficients: Tensor
    rhs: float


@dataclass(frozen=True)
class Problem:
    """Where candidates may lie; see `optimize_acqf_paths` for the arguments.

    Args:
        tree: What is active where.
        listed: The same tree, with every outcome that may be proposed declared.
        bounds: ``2 x d``.
        fill: ``d`` numbers that inactive columns hold.
        values: What each column may hold where it is active, whatever the path. A
            decision by value is a column with a list.
        lower: ``d`` smallest admissible values; fixed columns hold their value.
        upper: ``d`` largest ones; below ``lower`` in columns that have none.
        discrete: The columns of ``integer_features``, then ``categorical_features``.
        fixed: Column -> its value, where the column is active.
        constraints: Linear constraints, binding where all their columns are active.
        feasible: Any other restriction.
        known: ``m x d`` points not to be proposed, pending ones included.
        good: ``k x d`` points to look around, the best first.
        max_paths: The number of paths up to which all of them are searched.
        min_distance: How far from known points to stay, in widths of the bounds.
        avoid_paths: Keys of paths on which nothing is proposed.
        restricting: ``d`` booleans: the columns of constraints and of ``feasible``.
    """

    tree: ParameterTree
    listed: ParameterTree
    bounds: Tensor
    fill: Tensor
    values: Values
    lower: Tensor
    upper: Tensor
    discrete: list[int]
    fixed: dict[int, float]
    constraints: list[LinearConstraint]
    feasible: Feasible | None
    known: Tensor
    good: Tensor
    max_paths: int
    min_distance: float
    avoid_paths: Tensor
    restricting: Tensor

    @property
    def empty(self) -> Tensor:
        """``d`` booleans: columns without an admissible value."""
        return self.lower > self.upper

    @cached_property
    def shared(self) -> Tensor:
        """``d`` booleans: columns active on several paths."""
        return _mask(self.tree.shared_columns, self.bounds)

    @cached_property
    def room(self) -> np.ndarray:
        """``d`` differences up to which two points are the same."""
        width = self.bounds[1] - self.bounds[0]
        room = _SAME.get(width.dtype, 1e-5) * width
        values = self.values
        # the next value of a discrete column is another point; between the infinities
        # that fill a table up the difference is NaN
        gap = values.table.diff(dim=-1).nan_to_num(nan=torch.inf).amin(-1)
        gap = torch.where(values.whole, 1.0, gap)
        near = torch.where(values.discrete, torch.minimum(room, 0.25 * gap), room)
        return near.cpu().numpy()

    @property
    def is_restricted(self) -> bool:
        """Whether a constraint or ``feasible`` restricts the points."""
        return bool(self.constraints) or self.feasible is not None

    def impute(self, X: Tensor) -> Tensor:
        """``n x d`` points with the fill value in their inactive columns."""
        return self.tree.impute(X, self.fill)

    def snap(self, X: Tensor, free: Tensor) -> Tensor:
        """Free discrete columns at their nearest admissible value."""
        if not (free & self.values.discrete).any():
            return X
        return torch.where(free, self.values.snap(X), X)

    def admissible(self, X: Tensor, active: Tensor) -> Tensor:
        """Which points satisfy the linear constraints and ``feasible``.

        Args:
            X: ``n x d`` points, discrete columns at admissible values.
            active: ``n x d`` booleans.

        Returns:
            ``n`` booleans.
        """
        ok = torch.ones(len(X), dtype=torch.bool, device=X.device)
        for c in self.constraints:
            binds = active[:, c.columns].all(-1)
            ok &= ~binds | (X[:, c.columns] @ c.coefficients >= c.rhs)
        if self.feasible is not None and ok.any():
            rows = ok.nonzero().squeeze(-1)
            verdict = check_booleans("feasible", self.feasible(X[rows]), rows.shape)
            ok[rows] = verdict.to(X.device)
        return ok

    def is_new(self, X: Tensor, active: Tensor, known: Tensor) -> Tensor:
        """Which points may be proposed: admissible ones that are not known.

        Args:
            X: ``n x d`` points, active columns at admissible values, the others at the
                fill value.
            active: ``n x d`` booleans.
            known: ``m x d`` points, likewise.

        Returns:
            ``n`` booleans.
        """
        # Only what may be proposed is shown to `feasible`.
        new = ~(active & self.empty).any(-1) & ~is_known(self, X, known)
        if self.is_restricted:
            rows = new.nonzero().squeeze(-1)
            new[rows] = self.admissible(X[rows], active[rows])
        return new


def _mask(columns: Sequence[int], bounds: Tensor) -> Tensor:
    """``d`` booleans: which are these columns."""
    mask = torch.zeros_like(bounds[0], dtype=torch.bool)
    mask[list(columns)] = True
    return mask


def first_of_each(keys: Tensor) -> Tensor:
    """The numbers of the rows whose key no earlier row has, ascending."""
    _, first = np.unique(keys.cpu().numpy(), return_index=True)
    return torch.from_numpy(np.sort(first)).to(keys.device)


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


def make_problem(
    bounds: Tensor | None = None,
    tree: ParameterTree | None = None,
    integer_features: Sequence[int] | None = None,
    categorical_features: Mapping[int, Sequence[float]] | None = None,
    fixed_features: Mapping[int, float] | None = None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None = None,
    feasible: Feasible | None = None,
    X_avoid: Tensor | None = None,
    fill: float | Tensor | None = None,
    X_start: Tensor | None | tuple[()] = None,
    min_distance: float = 0.0,
    max_paths: int = MAX_PATHS,
    space: SearchSpace | None = None,
    avoid_paths: Tensor | None = None,
    acq_function: AcquisitionFunction | None = None,
    pending: Sequence[Tensor | None] = (),
    **own: Any,
) -> Problem:
    """Check the arguments that describe the space and what is known of it.

    They are those of `optimize_acqf_paths`. Besides, ``X_start=()`` stands for no
    points to look around, ``pending`` are points that acquisition functions have
    pending, and arguments that only one optimiser has are ignored (``own``). A
    ``space`` is its bounds, in the precision and on the device of ``acq_function``, and
    its tree; a tree that belongs to a space brings along what that says about columns.
    What is given beside it restricts further.

    Raises:
        ValueError: Which argument, what was expected, what came.
    """
    if space is not None:
        beside = (bounds, tree, integer_features, categorical_features, fill)
        also = [k for k, v in zip(_OF_SPACE, beside, strict=True) if v is not None]
        if not isinstance(space, SearchSpace):
            raise ValueError(
                "space: expected a SearchSpace (SearchSpace.from_configspace(cs)), got "
                f"{type(space).__name__}."
            )
        if also:
            raise ValueError(
                f"space: expected in place of {', '.join(_OF_SPACE)}, got "
                f"{', '.join(also)} as well."
            )
        modelled = getattr(getattr(acq_function, "model", None), "tree", None)
        if isinstance(modelled, ParameterTree) and modelled.dim != space.dim:
            raise ValueError(
                f"space: expected one of {modelled.dim} columns, as many as the model "
                f"of the acquisition function has, got {space.dim}."
            )
        parameters = () if acq_function is None else acq_function.parameters()
        like = next((p for p in parameters if p.is_floating_point()), space.bounds)
        bounds, tree = space.bounds.to(like), space.tree
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
    if feasible is not None and not callable(feasible):
        raise ValueError(f"feasible: expected a callable, got {feasible!r}.")
    given = () if integer_features is None else integer_features
    whole = check_columns("integer_features", given, d, True)
    lists = check_by_column("categorical_features", categorical_features, d, True)
    logarithmic: list[int] = []
    restricting = list(range(d)) if feasible or inequality_constraints else []
    known_space = tree.space
    if known_space is not None:
        _check_scale(bounds, known_space)
        whole = sorted({*whole, *known_space.integer_features})
        lists = {**known_space.categorical_features, **lists}
        logarithmic = known_space.log_integers
        for col, codes in known_space.categorical_features.items():
            odd = [v for v in lists[col] if v not in codes]
            if odd:
                raise ValueError(
                    f"categorical_features[{col}]: expected among the values that the "
                    f"space of the tree has, {codes}, got {odd}."
                )
        if known_space.is_restricted:
            if feasible is None and not inequality_constraints:
                restricting = known_space.restricting_columns
            feasible = _both(known_space.feasible, feasible)
        fill = known_space.fill if fill is None else fill
    fill_row = bounds.new_full((d,), 0.5)
    if fill is not None:
        try:
            fill_row = torch.as_tensor(fill).to(bounds).detach().expand(d)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"fill: expected a number or {d}, got {fill!r}.") from None
        if not fill_row.isfinite().all():
            raise ValueError(f"fill: expected finite numbers, got {fill!r}.")
    distance = check_number("min_distance", min_distance)
    if not 0.0 <= distance < 1.0:
        raise ValueError(
            "min_distance: expected a share of the width of the bounds, from 0 to less "
            f"than 1, got {min_distance!r}."
        )
    for c, numbers in lists.items():
        name = f"categorical_features[{c}]"
        lists[c] = list(check_values(name, {check_number(name, v) for v in numbers}))
    fixed = read_fixed(tree, bounds, fixed_features, whole, lists)
    keys = torch.empty(0).long() if avoid_paths is None else avoid_paths
    if not isinstance(keys, Tensor) or keys.dtype != torch.long:
        raise ValueError(f"avoid_paths: expected keys of tree.path_key, got {keys!r}.")
    tables = [
        ("X_avoid", bounds[:0] if X_avoid is None else X_avoid),
        *(("X_pending", p.reshape(-1, p.shape[-1])) for p in pending if p is not None),
    ]
    known = torch.cat([check_points(name, X, tree, bounds) for name, X in tables])
    if X_start is None:
        good = _promising(tree, bounds, acq_function)
    else:
        good = bounds[:0]
        if not isinstance(X_start, tuple):
            good = check_points("X_start", X_start, tree, bounds)
    listed = _with_outcomes(tree, lists, fixed)
    unknown = _undeclared(listed, known, good)
    values, lower, upper = _columns(
        listed, whole, logarithmic, lists, fixed, bounds, unknown
    )
    return Problem(
        tree=tree,
        listed=listed,
        bounds=bounds,
        fill=fill_row,
        values=values,
        lower=lower,
        upper=upper,
        discrete=list(dict.fromkeys([*whole, *lists])),
        fixed=fixed,
        constraints=_constraints(d, inequality_constraints, bounds),
        feasible=feasible,
        known=tree.impute(known, fill_row),
        good=tree.impute(good, fill_row),
        max_paths=check_count("max_paths", max_paths),
        min_distance=distance,
        avoid_paths=keys.to(bounds.device),
        restricting=_mask(restricting, bounds),
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


def _both(first: Feasible, second: Feasible | None) -> Feasible:
    """Where both hold."""
    if second is None:
        return first
    return lambda X: (
        first(X) & check_booleans("feasible", second(X), X.shape[:-1]).to(X.device)
    )


def _check_scale(bounds: Tensor, space: SearchSpace) -> None:
    """What a space says about columns holds on its own scale only."""
    columns = set(range(space.dim) if space.is_restricted else space.integer_features)
    # Categories are looked up whatever the bounds are.
    for c in sorted(columns - space.categorical_features.keys()):
        lo, hi = space.bounds[:, c].tolist()
        least, most = with_slack((lo, hi), c in space.integer_features)
        here = bounds[:, c].tolist()
        if here[0] < least or here[1] > most:
            raise ValueError(
                "bounds: expected those of the space that the tree belongs to, or "
                f"narrower ones, {lo} to {hi} for column {c} ({space.names[c]!r}), got "
                f"{here[0]} to {here[1]}. Another scale needs a tree of its own."
            )


def check_points(name: str, X: Any, tree: ParameterTree, like: Tensor) -> Tensor:
    """``X`` if it is ``m x d`` numbers, finite where columns are active.

    Args:
        name: Of the argument.
        X: What was given.
        tree: Says which columns are active. What the others hold does not matter.
        like: A tensor of the precision and on the device that is wanted.
    """
    if not isinstance(X, Tensor) or X.dim() != 2 or X.shape[-1] != tree.dim:
        got: Any = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
        raise ValueError(f"{name}: expected an m x {tree.dim} tensor, got {got}.")
    X = X.detach().to(like)
    try:
        active = tree.active_mask(X)
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix('X: ')}") from None
    if math.isfinite(X.sum()):  # only if all of its terms are
        return X
    bad = active & ~X.isfinite()
    if bad.any():
        row, col = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: expected finite numbers in active columns, got {X[row, col]} in "
            f"row {row}, column {col}."
        )
    return X


def _undeclared(tree: ParameterTree, *seen: Tensor) -> dict[int, set[float]]:
    """Columns with outcomes that the tree does not declare: those of points seen."""
    out: dict[int, set[float]] = {}
    if all(tree.is_declared(X).all() for X in seen):
        return out
    X = torch.cat(seen)
    codes = tree.decision_codes(X, strict=False)
    for k, column in enumerate(tree.decision_columns):
        unknown = codes[:, k] == len(tree.decision_values[column])
        out[column] = {*X[unknown, column].tolist()}
    return out


def _columns(
    tree: ParameterTree,
    whole: Sequence[int],
    logarithmic: Sequence[int],
    lists: Mapping[int, Sequence[float]],
    fixed: Mapping[int, float],
    bounds: Tensor,
    unknown: Mapping[int, set[float]],
) -> tuple[Values, Tensor, Tensor]:
    """What the columns may hold within the bounds, and the least and largest of it."""
    tables = dict(lists)
    declared_of = tree.decision_values
    for col in tree.decisions_by_value:
        options = {*declared_of[col], *unknown.get(col, ())}
        if col in lists:
            options &= {*lists[col]}
        elif col in whole:
            options = {v for v in options if float(v).is_integer()}
        tables[col] = sorted(options)
    width = 1 + max((len(values) for values in tables.values()), default=1)
    table = bounds.new_full((tree.dim, width), math.inf)
    for c, given in tables.items():
        table[c, : len(given)] = table.new_tensor([*given])
    inside = (bounds[0, :, None] <= table) & (table <= bounds[1, :, None])
    for col, value in fixed.items():
        inside[col] &= table[col] == table.new_tensor(value)
    table = table.masked_fill(~inside, torch.inf).sort(-1).values
    named, decides = _mask(whole, bounds), _mask(tree.decisions_by_value, bounds)
    listed = _mask(list(tables), bounds)
    # A column named in both is an integer with gaps: neighbours are alike. To a search
    # no outcome of a decision is like another.
    logs = _mask(logarithmic, bounds) & ~listed
    values = Values(named & ~listed, logs, listed, named & ~decides, table)
    lower, upper = (t[0] for t in values.inside(bounds[:1], bounds[1:]))
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
    found = []
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
        found.append(LinearConstraint(columns, coefficients, check_number(name, rhs)))
    return found


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
        every = {*tree.decision_values[col], *named}
        every |= {fixed[col]} if col in fixed else set()
        if len(every) > len(tree.decision_values[col]):
            extended[col] = sorted(every)
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
    order = score.argsort(descending=True, stable=True)
    return X[order[first_of_each(tree.path_key(X)[order])]]


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
    if len(X) > _MAX_ROWS:
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


def is_known(problem: Problem, X: Tensor, known: Tensor) -> Tensor:
    """Which candidates equal a known point on the columns that are active.

    Or, in the columns that move continuously, are nearer than ``min_distance``.

    Args:
        problem: The tree and the bounds.
        X: ``n x d`` candidates, inactive columns at the fill value.
        known: ``m x d`` points, likewise.

    Returns:
        ``n`` booleans.
    """
    found = torch.zeros(len(X), dtype=torch.bool, device=X.device)
    if not len(X) or not len(known):
        return found
    if len(X) > _MAX_COMPARED:  # pairs that are compared at once need memory
        parts = X.split(_MAX_COMPARED)
        return torch.cat([is_known(problem, part, known) for part in parts])
    # NumPy: an operation on arrays of this size takes a third of that of torch
    x, other, bounds = (t.cpu().numpy() for t in (X, known, problem.bounds))
    width = bounds[1] - bounds[0]
    room = problem.room
    if problem.min_distance:
        near = problem.min_distance * width
        near[problem.discrete] = 0.0  # the next value of a list is another point
        room = np.maximum(room, near)
    # Equal points have equal projections on a line: sorted, few are left to compare.
    d = x.shape[-1]
    weight = np.sin(np.linspace(1.0, 2.0, d, dtype=x.dtype))  # no two are alike
    weight = weight / np.where(width > 0, width, 1.0)
    line = other @ weight
    order = line.argsort()
    at, line = x @ weight, line[order]
    size = (np.abs(x) @ weight).max() + (np.abs(other) @ weight).max()
    reach = room @ weight + 64 * np.finfo(x.dtype).eps * size
    first = np.searchsorted(line, at - reach)
    count = np.searchsorted(line, at + reach, side="right") - first
    row = np.repeat(np.arange(len(x)), count)
    start = first - count.cumsum() + count
    pair = order[np.arange(len(row)) + np.repeat(start, count)]
    same = (np.abs(x[row] - other[pair]) <= room).all(-1)
    mine, theirs = (torch.from_numpy(i[same]).to(X.device) for i in (row, pair))
    # On the same path the same columns are active: the fill values agree, too.
    keys = map(problem.tree.path_key, (X[mine], known[theirs]))
    found[mine[torch.eq(*keys)]] = True
    return found
