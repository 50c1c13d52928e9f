"""`SearchSpace`: names, bounds and native values around a `ParameterTree`."""

from __future__ import annotations

__all__ = ["SearchSpace", "random_source"]

import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputTransform,
    Log10,
    Normalize,
)
from torch import Tensor

from botorch_structured.spaces import arguments
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
    Source,
    Span,
    described,
    is_blank,
    is_same_parameter,
    with_slack,
)
from botorch_structured.spaces.conditions import Atom, Between, Condition
from botorch_structured.spaces.expressions import (
    Expr,
    all_of,
    any_of,
    atom,
    negated,
)
from botorch_structured.spaces.parameter_tree import ParameterTree, translated

if TYPE_CHECKING:
    from ConfigSpace import ConfigurationSpace

    from botorch_structured.spaces.dictionaries import DictionaryNames

# How far from a cut a value is kept: in decades on a logarithmic scale, on a linear one
# relative to the range or the bounds, whichever is larger, but as if that were at least
# 1. ConfigSpace, which rounds, does not tell values from the cut that are nearer.
_BESIDE_LOG_CUT = 1e-8
_BESIDE_CUT = 1e-12

# Decimal logarithms beyond these are no float64.
_LOGS = (-307.0, 308.0)

# `sample` gives up when fewer points than wanted are feasible among so many draws.
_MAX_DRAWS = 1_000_000

KINDS = ("random", "spread", "middle", "default")
# A forbidden start is replaced by one of 100 random points on its path; if none of them
# is feasible, by one of 1,000, then of 10,000.
_OTHERS = (100, 1_000, 10_000)
# How far from a value a number may lie and still count as rounding. Fits float32.
_SLACK = 1e-6


class SearchSpace:
    """A search space with names, bounds and native values.

    Use it at the border between configurations (dictionaries of the active parameters)
    and the points that models and optimisers work on. Most spaces come from
    `from_dictionaries`, `from_configspace` or `from_ax`; the constructor is for spaces
    given as numbers.

    ============  ====================================================================
    parameter     column
    ============  ====================================================================
    float         the number; its decimal logarithm where the scale is logarithmic
    integer       the number, also where the scale is logarithmic
    ordinal       the position, in ``integer_features``
    categorical   the position, in ``categorical_features``
    constant      none; `decode` adds it
    ============  ====================================================================

    Columns of inactive parameters hold ``fill``, the middle of the bounds. `sample`
    draws random points, `starts` points to begin with: one on each path of the tree.

    Args:
        names: The names of the ``d`` columns.
        bounds: ``2 x d`` bounds, those of the logarithm for ``log_features``.
        tree: Which columns are active where. Default: all are, everywhere. ``.tree`` is
            equal to it and knows of this space, see `ParameterTree.of_space`.
        integer_features: The columns that hold whole numbers.
        categorical_features: ``{column: [its numbers]}``. Decisions of the tree whose
            values are declared need not be listed.
        choices: ``{column: [values]}``: what the numbers of categorical columns stand
            for. Default: themselves.
        log_features: The columns that hold decimal logarithms (or, among the
            ``integer_features``, numbers on a logarithmic scale).
        feasible: ``m x d`` points -> ``m`` booleans (``torch.bool``): a further
            constraint. A space, and a model over its tree, can be pickled (saved, or
            sent to another process) only if this is a function defined at the top level
            of a module, or another object that can be.
        defaults: ``{name: value}``: what `decode` would give for a good start; see
            `starts`. Not every name needs one.

    Raises:
        ValueError: Which argument, what was expected, what came: names that are
            repeated, values outside of the bounds, arguments that do not fit.
    """

    # How configurations are written, where not by the names of the columns.
    _dictionaries: DictionaryNames | None = None

    def __init__(
        self,
        names: Sequence[str],
        bounds: Tensor,
        tree: ParameterTree | None = None,
        integer_features: Sequence[int] = (),
        categorical_features: Mapping[int, Sequence[float]] | None = None,
        choices: Mapping[int, Sequence[Any]] | None = None,
        log_features: Sequence[int] = (),
        feasible: Callable[[Tensor], Tensor] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        names = _names(names)
        d = len(names)
        limits = _bounds(bounds, names)
        if tree is not None and not isinstance(tree, ParameterTree):
            raise ValueError(
                f"tree: expected a ParameterTree (ParameterTree({d}, {{...}})), got "
                f"{type(tree).__name__}."
            )
        tree = ParameterTree.from_any({} if tree is None else tree, d)
        whole = set(arguments.check_columns("integer_features", integer_features, d))
        logs = set(arguments.check_columns("log_features", log_features, d))
        labels = arguments.check_by_column("choices", choices, d)
        named = arguments.check_by_column(
            "categorical_features", categorical_features, d
        )
        codes = {c: tree.decision_values[c] for c in tree.decisions_by_value}
        codes = {c: values for c, values in codes.items() if c not in whole} | named
        for what, given in (("integer_features", whole), ("log_features", logs)):
            if given & codes.keys():
                raise ValueError(
                    f"{what}: expected none of the categorical columns {list(codes)}, "
                    f"got {sorted(given)}."
                )
        if labels.keys() - codes.keys():
            raise ValueError(
                f"choices: expected categorical columns ({list(codes)}), got "
                f"{sorted(labels)}."
            )
        columns: list[Column] = []
        for c, name in enumerate(names):
            lo, hi = limits[:, c].tolist()
            declared = tree._values.get(c, ())
            where = f"column {c} ({name!r}), got {lo} and {hi}"
            if c in codes:
                what = f"categorical_features[{c}]" if c in named else "tree"
                numbers = _codes(what, codes[c], (lo, hi), declared)
                plain = [int(v) if v.is_integer() else v for v in numbers]
                values = labels.get(c, plain)
                columns.append(CategoricalColumn(name, values, codes=numbers))
            elif c in whole:
                if not (lo.is_integer() and hi.is_integer()):
                    raise ValueError(
                        f"bounds: expected whole numbers for the integer {where}."
                    )
                if declared and list(declared) != list(range(int(lo), int(hi) + 1)):
                    raise ValueError(
                        f"integer_features: expected column {c}, a decision, to have "
                        f"all whole numbers from {lo} to {hi} among its values, got "
                        f"{list(declared)}: list them in categorical_features."
                    )
                columns.append(IntegerColumn(name, int(lo), int(hi), log=c in logs))
            elif c in logs:
                if not (_LOGS[0] <= lo and hi <= _LOGS[1]):
                    raise ValueError(
                        f"bounds: expected decimal logarithms from {_LOGS[0]} to "
                        f"{_LOGS[1]} for {where}."
                    )
                columns.append(FloatColumn(name, 10.0**lo, 10.0**hi, log=True))
            else:
                columns.append(FloatColumn(name, lo, hi))
        self._setup(columns, tree, feasible=feasible)
        defaults = {} if defaults is None else defaults
        if not isinstance(defaults, Mapping):
            raise ValueError(f"defaults: expected {{name: value}}, got {defaults!r}.")
        for name, value in defaults.items():
            if name not in self._position:
                raise ValueError(
                    f"defaults: expected names among {self.names}, got {name!r}."
                )
            column = self.columns[self._position[name]]
            column.default = column.encode(value)

    @classmethod
    def from_columns(
        cls,
        columns: Sequence[Column],
        tree: ParameterTree,
        constants: Sequence[Constant] = (),
        forbidden: Sequence[Condition] = (),
        feasible: Callable[[Tensor], Tensor] | None = None,
    ) -> SearchSpace:
        """The space of these columns; what the other ways to build one end in."""
        space = cls.__new__(cls)
        space._setup(columns, tree, constants, forbidden, feasible)
        return space

    @classmethod
    def from_configspace(cls, cs: ConfigurationSpace) -> SearchSpace:
        """Read a ConfigSpace; it is not needed afterwards, nor changed.

        Random draws follow its scales and weights (a choice of weight 0 is not drawn,
        and may be suggested); normal and beta hyperparameters are drawn uniformly
        within their bounds. Its default values are those of `starts`.

        Args:
            cs: Floats, integers, ordinals, categoricals and constants; any conditions
                and forbidden clauses.

        Raises:
            ValueError: A hyperparameter, condition or clause of another kind.
        """
        from botorch_structured.spaces.other_spaces import read_configspace

        return cls.from_columns(*read_configspace(cs))

    @classmethod
    def from_ax(
        cls, search_space: Any, aligned: Iterable[Iterable[str]] = ()
    ) -> SearchSpace:
        """Read a search space of Ax; parameter constraints go into `feasible`.

        Args:
            search_space: Range, choice (also with ``dependents``) and fixed parameters.
                A logit scale is read as a linear one.
            aligned: Groups of names that are one parameter, which Ax needs a name for
                under each value of a choice. They become one column, with the first.

        Raises:
            ImportError: Ax is not installed.
            ValueError: A parameter of another kind, disabled, a task or a fidelity; or
                aligned parameters that cannot be one column.
        """
        from botorch_structured.spaces.other_spaces import read_ax

        return cls.from_columns(*read_ax(search_space, aligned))

    @classmethod
    def from_dictionaries(cls, dictionaries: Any) -> SearchSpace:
        """Read one dictionary or a list of them, as scikit-learn's searches take.

        A list is a conditional space: a configuration belongs to one of its
        dictionaries. A parameter whose choices differ from one dictionary to another
        (``"clf": [SVC()]``, ``"clf": [LogisticRegression()]``) is the decision between
        them; where there is none, the space has a decision column of its own,
        which configurations do not show. A name with the same values in several
        dictionaries is one column, with other values a column each (``"C@1"``,
        ``"C@2"`` in ``.names``; configurations say ``"C"``).

        ==========================================  ===================================
        values                                      parameter
        ==========================================  ===================================
        ``[...]``, an array: sorted numbers         ordinal (also a descending list)
        ``[...]``, an array: anything else          categorical; arrays and estimators
                                                    are compared by identity
        ``(low, high)``                             integer, if both are; else float
        ``(low, high, "log")``                      the same on a logarithmic scale
        ``scipy.stats.uniform(low, width)``         float
        ``scipy.stats.loguniform(low, high)``       float on a logarithmic scale
        ``scipy.stats.randint(low, high)``          integer below ``high``
        any other frozen one of ``scipy.stats``     float (or integer) between the
                                                    quantiles .001 and .999, drawn as
                                                    the distribution says; models see
                                                    the share below a float
        a list of one; a number, text or estimator  constant
        ==========================================  ===================================

        A configuration that is in several dictionaries is encoded as one of the first.

        Args:
            dictionaries: ``{name: values}``, or several.

        Raises:
            ValueError: Values of another kind.

        Example:
            >>> space = SearchSpace.from_dictionaries(
            ...     [
            ...         {"learner": ["svm"], "C": (1e-3, 1e3, "log")},
            ...         {"learner": ["neighbours"], "k": (1, 50)},
            ...     ]
            ... )
        """
        from botorch_structured.spaces.dictionaries import read_dictionaries

        columns, tree, constants, names = read_dictionaries(dictionaries)
        space = cls.from_columns(columns, tree, constants)
        space._dictionaries = names
        return space

    def _setup(
        self,
        columns: Sequence[Column],
        tree: ParameterTree,
        constants: Sequence[Constant] = (),
        forbidden: Sequence[Condition] = (),
        feasible: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if feasible is not None and not callable(feasible):
            raise ValueError(f"feasible: expected a callable, got {feasible!r}.")
        self._feasible = feasible
        all_names = [c.name for c in columns] + [c.name for c in constants]
        if len(set(all_names)) < len(all_names):
            raise ValueError(
                f"names: expected distinct names, got {sorted(all_names)}."
            )
        self.columns = tuple(columns)
        self.constants = tuple(constants)
        self.tree = tree.of_space(self)
        self._forbidden = tuple(forbidden)
        self.names = [c.name for c in columns]
        self.bounds = torch.tensor(
            [[c.bounds[i] for c in columns] for i in (0, 1)], dtype=torch.double
        )
        self.fill = torch.tensor([c.fill for c in columns], dtype=torch.double)
        ends = [with_slack(c.bounds, c.discrete and c.ordered) for c in columns]
        self._ends = torch.tensor(ends, dtype=torch.double).mT  # with rounding
        self.categorical_features = {
            i: list(c.codes)
            for i, c in enumerate(columns)
            if isinstance(c, CategoricalColumn) and not c.ordered
        }
        discrete = [i for i, c in enumerate(columns) if c.discrete]
        self.integer_features = [i for i in discrete if columns[i].ordered]
        # The tree has its own tolerance around the values of decisions. All other
        # discrete columns are rounded.
        self._rounded = [i for i in discrete if i not in tree.decisions_by_value]
        self._position = {name: i for i, name in enumerate(self.names)}

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self._feasible)
        except Exception as error:  # pickle has many kinds of them
            raise pickle.PicklingError(
                "feasible: expected a function that can be pickled, defined at the top "
                f"level of a module, got {self._feasible!r} ({error})."
            ) from None
        return self.__dict__

    def __copy__(self) -> SearchSpace:
        return self  # columns learn more values, and nothing else changes

    def __deepcopy__(self, memo: dict[int, Any]) -> SearchSpace:
        return self

    @property
    def dim(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def shown_names(self) -> list[str | None]:
        """What configurations call the columns; None for one that they do not show.

        They have "C" where ``.names`` has "C@1", see `from_dictionaries`.
        """
        return [self._shown(name) for name in self.names]

    def _shown(self, name: str) -> str | None:
        """The same of a column or a constant."""
        own = self._dictionaries
        return name if own is None else own.outer.get(name)

    def __eq__(self, other: object) -> bool:
        """Whether it has the same columns, tree, constants and restrictions."""
        if not isinstance(other, SearchSpace):
            return NotImplemented
        mine, its = (
            (s.names, s.tree, repr(s._forbidden), s._feasible, s._dictionaries)
            for s in (self, other)
        )
        if mine != its or len(self.constants) != len(other.constants):
            return False
        columns = map(is_same_parameter, self.columns, other.columns)
        return all(columns) and all(
            map(is_same_parameter, self.constants, other.constants)
        )

    def __hash__(self) -> int:
        return hash((tuple(self.names), self.tree))

    def __repr__(self) -> str:
        parts = "; ".join(f"{c.name}: {described(c)}" for c in self.columns)
        return f"SearchSpace({parts})"

    def encode(self, configs: Any) -> Tensor:
        """Configurations as points.

        Rows of a table are taken as they are read: None, NaN or "" stand for a
        parameter that is inactive, numbers may be text ("3", "0.5", also "3.0" for an
        integer), and so may choices ("True").

        Args:
            configs: A mapping of the active parameters, constants included, such as a
                dictionary, a row of ``csv.DictReader``, a ConfigSpace Configuration or
                a pandas Series; or several of them; or a pandas DataFrame.

        Returns:
            ``n x d`` points without NaN.

        Raises:
            ValueError: Unknown names, active parameters that are missing, inactive ones
                that are given, values a parameter cannot take.
        """
        rows = _rows(configs)
        if self._dictionaries is not None:
            rows = [self._dictionaries.encode(row) for row in rows]
        parameters: list[Column | Constant] = [*self.columns, *self.constants]
        position = {p.name: i for i, p in enumerate(parameters)}
        numbers = np.zeros((len(rows), len(parameters)))
        numbers[:, : self.dim] = self.fill.numpy()
        given, blank = np.zeros((2, *numbers.shape), dtype=bool)
        for i, row in enumerate(rows):
            if unknown := [name for name in row if name not in position]:
                raise ValueError(
                    "configs: expected parameters among "
                    f"{[p.name for p in self._ordered()]}, got unknown ones {unknown} "
                    f"in {row}."
                )
            for name, value in row.items():
                k = position[name]
                blank[i, k] = is_blank(value)
                # None and empty text may also be choices.
                choices = getattr(parameters[k], "choices", ())
                if not blank[i, k] or any(map(is_blank, choices)):
                    numbers[i, k] = parameters[k].encode(value)
                    given[i, k] = True
        X = torch.from_numpy(numbers[:, : self.dim].copy())
        active = self.tree.active_mask(X)
        present = self._present(X, active)
        stated = torch.from_numpy(given) & (present | ~torch.from_numpy(blank))
        for row, on, here in zip(rows, present.tolist(), stated.tolist(), strict=True):
            if on != here:
                raise ValueError(self._mismatch(row, on, here))
        return torch.where(active, X, self.fill)

    def decode(self, X: Tensor) -> list[dict[str, Any]]:
        """Points as configurations: the active parameters with native values.

        Numbers are rounded where the parameter is discrete and drawn into the bounds
        where they exceed them by no more than rounding.

        Args:
            X: ``n x d`` points (or ``d``: one point).

        Returns:
            ``n`` dictionaries, constants included.

        Raises:
            ValueError: A point beyond the bounds, or a decision between its values.
        """
        shape = X.shape if isinstance(X, Tensor) else ()
        if len(shape) not in (1, 2) or shape[-1] != self.dim:
            got = tuple(shape) if isinstance(X, Tensor) else type(X).__name__
            raise ValueError(f"X: expected an n x {self.dim} tensor, got {got}.")
        X = X.reshape(-1, self.dim)
        X = self._snap(X.detach().double().cpu())
        active = self.tree.active_mask(X)
        self._check_inside("X", X, active)
        present = self._present(X, active)
        names = [*self.names, *(c.name for c in self.constants)]
        order = [(names.index(p.name), p) for p in self._ordered()]
        configs = [
            {
                p.name: p.value if isinstance(p, Constant) else self._decode(k, x[k])
                for k, p in order
                if on[k]
            }
            for x, on in zip(X.tolist(), present.tolist(), strict=True)
        ]
        if self._dictionaries is not None:
            return [self._dictionaries.decode(config) for config in configs]
        return configs

    def check_points(self, X: Tensor, argument: str = "X") -> None:
        """Raise a ``ValueError`` for points beyond the bounds, or between values.

        Args:
            X: ``n x d`` points; what is in inactive columns does not matter.
            argument: The name of the argument in the error.
        """
        points = self._snap(X.detach())
        try:
            active = self.tree.active_mask(points)
        except ValueError as error:  # of the tree, which calls them X
            raise type(error)(f"{argument}{str(error).removeprefix('X')}") from None
        self._check_inside(argument, points, active)
        discrete = [i for i, column in enumerate(self.columns) if column.discrete]
        off = (X - self._snap(X.detach(), discrete)).abs() > _SLACK * X.abs().clamp_min(
            1.0
        )
        if (off & active).any():
            i, c = (off & active).nonzero()[0].tolist()
            column = self.columns[c]
            codes = getattr(column, "codes", None)
            expected = f"one of {list(codes)}" if codes else column.expected()
            raise ValueError(
                f"{argument}: expected {expected} for {self.names[c]!r} (column {c}), "
                f"got {X[i, c].item()} in row {i}."
            )

    @property
    def is_restricted(self) -> bool:
        """Whether a clause or a constraint forbids some points within the bounds."""
        return bool(self._forbidden) or self._feasible is not None

    @property
    def restricting_columns(self) -> list[int]:
        """The columns on which it depends whether a point is forbidden."""
        if self._feasible is not None:
            return list(range(self.dim))
        return sorted({c for clause in self._forbidden for c in clause.columns()})

    def forbids(self, lower: Tensor, upper: Tensor, active: Tensor) -> Tensor:
        """Which boxes a clause forbids as a whole: none of its columns moves in them.

        Args:
            lower: ``P x d`` smallest values of the columns.
            upper: ``P x d`` largest values.
            active: ``P x d`` booleans.

        Returns:
            ``P`` booleans.
        """
        still = (lower == upper) | ~active
        found = torch.zeros_like(still[:, 0])
        for clause in self._forbidden:
            held = still[:, sorted(clause.columns())].all(-1)
            found |= held & clause.holds(lower, active)
        return found

    def feasible(self, X: Tensor) -> Tensor:
        """Which points are configurations of this space.

        Discrete columns are rounded first. A point is not feasible if an active column
        is NaN or out of bounds, a decision between its values, or a combination
        forbidden. Inactive columns may hold anything, NaN included.

        Args:
            X: ``batch_shape x m x d`` points.

        Returns:
            ``batch_shape x m`` booleans.
        """
        self.tree._check_points(X)
        points = self._snap(X.detach())
        active = self.tree.active_mask(points, strict=False)
        good = (self._inside(points) | ~active).all(-1) & self.tree.is_declared(points)
        for clause in self._forbidden:
            good = good & ~clause.holds(points, active)
        if self._feasible is not None:
            verdict = self._feasible(points)
            good = good & arguments.check_booleans("feasible", verdict, good.shape)
        return good

    def impute(self, X: Tensor) -> Tensor:
        """``batch_shape x n x d`` points with ``fill`` in their inactive columns."""
        return self.tree.impute(X, self.fill)

    def sample(self, n: int, seed: int | None = None) -> Tensor:
        """Random feasible points, every parameter drawn on its own scale.

        Args:
            n: How many.
            seed: The same seed gives the same points. Default: PyTorch's generator.

        Returns:
            ``n x d`` points.

        Raises:
            ValueError: An argument is not what it should be, or next to nothing is
                feasible.
        """
        n = arguments.check_count("n", n, least=0)
        generator = random_source(seed)
        found: list[Tensor] = []
        missing, drawn, batch = n, 0, n
        while missing > 0:
            X = torch.stack([c.draw(batch, generator) for c in self.columns], -1)
            X = self.impute(X)
            drawn += batch
            found.append(X[self.feasible(X)][:missing])
            missing -= len(found[-1])
            if missing and drawn > _MAX_DRAWS:
                raise ValueError(
                    f"space: expected {n} points that are not forbidden, got "
                    f"{n - missing} of {drawn} random draws."
                )
            batch = max(64, min(2 * batch, 16384))
        return torch.cat(found) if found else self.bounds.new_zeros(0, self.dim)

    def starts(
        self,
        n: int | None = None,
        kind: str = "random",
        seed: int | None = None,
        at_most: int | None = None,
    ) -> Tensor:
        """Feasible points to begin with, spread over the paths of the tree.

        The default is one start on each path, in the order of ``tree.path_index``.
        Paths that the bounds or the forbidden clauses rule out as a whole have none,
        nor has a path on which none of 10,000 random points is feasible. (Where ``n``
        or ``at_most`` name fewer than there are, and such paths are chosen twenty times
        in a row, `sample` gives the points that are missing.)
        More than 1,000 paths are not listed: in their place there are as many starts as
        it takes to show every value (or interval) of every decision that can be active,
        and to have every column active once. A model over the tree then has data for
        each of its parts.

        Args:
            n: How many. Every path gets the same number or one more. With fewer starts
                than paths, the first ones show as many values and active columns as
                they can, in the order that ``at_most`` has, then values at the top of
                the tree first, and the others are on random paths.
            kind: What the active columns of a start hold, other than decisions that the
                path fixes. ``"random"``: draws on the scale of the parameter, as in
                `sample`. ``"spread"``: draws that are spread over the starts in which
                the parameter is active, a Latin hypercube: of k of them one lies in
                each k-th of its range, and each choice comes up in proportion to its
                weight, rounded up or down; about so where forbidden starts are replaced
                (see below). ``"middle"``: the middle of the bounds, or of the interval
                of the path, on that scale; rounded for integers, the middle of the list
                for choices (the former of two). ``"default"``: the declared default,
                see ``defaults`` and `from_configspace`; the middle where there is none
                or it lies outside of the path's interval. The path that the defaults
                are on comes first. After the first start on a path, further ones are
                random for these two kinds. A start that is forbidden is replaced by the
                nearest feasible one (by any, if it is ``"random"``) of 100 random
                points on its path (of 1,000, then 10,000, where none of these is
                feasible).
            seed: The same seed gives the same points. Default: PyTorch's generator;
                for ``"middle"`` and ``"default"`` 0.
            at_most: In place of ``n``, no more than this: one start on each of up to
                ten paths. Of more paths, as many as it takes to show every value of
                every decision that can be active, and to have every column active once,
                but five at least. Where these are too many, values that share columns
                with some of the others come first, if they take half of the starts at
                most: models are too sure of such a path without a start.

        Returns:
            ``n x d`` points; inactive columns hold ``fill``.

        Raises:
            ValueError: An argument is not what it should be, or no path has a start.
        """
        n = None if n is None else arguments.check_count("n", n)
        if at_most is not None:
            arguments.check_count("at_most", at_most)
            if n is not None:
                raise ValueError(f"at_most: expected None with n={n}, got {at_most}.")
        if kind not in KINDS:
            raise ValueError(f"kind: expected one of {list(KINDS)}, got {kind!r}.")
        if kind in ("middle", "default") and seed is None:
            seed = 0
        empty: list[Expr] = []  # paths on which no point was found
        for _ in range(20):
            generator = random_source(seed)
            states = self._choose_paths(n, at_most, kind, generator, empty)
            codes = torch.from_numpy(states).long() - 1
            # paths, then repetitions
            first = (
                len(codes) if kind == "spread" else len({*map(tuple, states.tolist())})
            )
            parts = [
                self._start(codes[:first], kind, generator),
                self._start(codes[first:], "random", generator),
            ]
            X, good = (torch.cat(part) for part in zip(*parts, strict=True))
            if good.all():
                return X
            empty += [
                all_of([atom(k, 1 << state) for k, state in enumerate(path) if state])
                for path in states[~good.numpy()].tolist()
            ]
        return torch.cat([X[good], self.sample(int((~good).sum()), seed)])

    def _choose_paths(
        self,
        n: int | None,
        at_most: int | None,
        kind: str,
        generator: Source,
        empty: Sequence[Expr],
    ) -> np.ndarray:
        """Paths for `starts`, by the states of their decisions.

        Args:
            n: See `starts`.
            at_most: See `starts`.
            kind: See `starts`.
            generator: Random numbers.
            empty: Paths that are not to be chosen.
        """
        tree = self.tree
        search = tree._search
        edges = [(k, c) for k, o in enumerate(tree._decisions) for c in range(len(o))]
        outside = [atom(k, 2 << c) for k, c in edges if self._span(k, c) is None]
        forbidden = [translated(c, self._certain) for c in self._forbidden]
        where = negated(any_of([*outside, *forbidden, *empty]))
        goals = [*(atom(k, 2 << c) for k, c in edges), *tree._exprs]
        many = 0 if at_most is None else min(at_most, 10)
        some, is_complete = search.where(where, many + 1)
        if not len(some):
            raise ValueError(
                "space: expected some path that has points within the bounds that are "
                f"not forbidden, got none of {tree.num_paths}"
                + (f" (of {_OTHERS[-1]} random draws on each)." if empty else ".")
            )
        first = some[:0]
        if kind == "default" and any(c.default is not None for c in self.columns):
            x = [self._at(c, 1, kind, None, c.bounds) for c in self.columns]
            X = torch.stack(x, -1)
            default = 1 + tree.decision_codes(X, strict=False).numpy()
            if tree.is_declared(X).all() and search.holds(where, default).all():
                first = default
        seed = int(torch.randint(1 << 62, (), generator=generator))
        if at_most is not None and (not is_complete or len(some) > many):
            needed = search.cover(at_most, where, goals, seed, first)
            n = min(at_most, max(len(needed), 5))
        return search.spread(n, where, goals, seed, first)

    def _span(self, k: int, code: int) -> Span | None:
        """Where the ``k``-th decision has an outcome; None if outside of the bounds."""
        o = self.tree._decisions[k]
        return self.columns[o.col].within(o.lows[code], o.highs[code])

    def _certain(self, clause: Condition) -> Expr:
        """On which paths a clause forbids every point (False where that is not seen).

        Of clauses that compare parameters it is not: draws show that.
        """
        if not isinstance(clause, Atom) or clause.col not in self.tree._position:
            return False
        if not isinstance(clause, Between):
            return self.tree._states(clause)
        k, bits = self.tree._position[clause.col], 0
        for code in range(len(self.tree._decisions[k])):
            span = self._span(k, code)
            if span and clause.lo <= span[0] and span[1] <= clause.hi:
                bits |= 2 << code
        return atom(k, bits)

    def _start(
        self, codes: Tensor, kind: str, generator: Source
    ) -> tuple[Tensor, Tensor]:
        """``n x num_decisions`` outcomes -> ``n x d`` points, and which are feasible.

        All are, but those on paths where no feasible point is found.
        """
        X = self._place(codes, kind, generator)
        found = self.feasible(X) if len(X) else torch.zeros(0, dtype=torch.bool)
        width = (self.bounds[1] - self.bounds[0]).clamp(min=1e-300)
        for i in (~found).nonzero().flatten().tolist():
            for size in _OTHERS:
                others = self._place(codes[i].expand(size, -1), "random", generator)
                others = others[self.feasible(others)]
                if len(others):
                    distance = ((others - X[i]) / width).square().sum(-1)
                    X[i] = others[0 if kind == "random" else distance.argmin()]
                    found[i] = True
                    break
        return X, found

    def _place(self, codes: Tensor, kind: str, generator: Source) -> Tensor:
        """``n x num_decisions`` outcomes -> ``n x d`` points, feasible or not."""
        n = len(codes)
        x = [self._at(c, n, kind, generator, c.bounds) for c in self.columns]
        X = torch.stack(x, -1)
        for k, col in enumerate(self.tree.decision_columns):
            column, here = self.columns[col], codes[:, k]
            for code in here[here >= 0].unique().tolist():
                rows, span = (here == code).nonzero().flatten(), self._span(k, code)
                assert span is not None  # it is a path within the bounds
                X[rows, col] = self._at(column, len(rows), kind, generator, span)
        X = self.impute(X)
        if kind == "spread":  # over the rows in which a column is active
            active = self.tree.active_mask(X)
            active[:, self.tree.decision_columns] = False
            for c in active.any(0).nonzero().flatten().tolist():
                rows = active[:, c].nonzero().flatten()
                column = self.columns[c]
                X[rows, c] = self._at(column, len(rows), kind, generator, column.bounds)
        return X

    @staticmethod
    def _at(column: Column, n: int, kind: str, generator: Source, span: Span) -> Tensor:
        """``n`` numbers of a column within ``span``."""
        if kind in ("spread", "random"):
            return column.draw(n, generator, span, spread=kind == "spread")
        value = column.middle(span)
        if kind == "default" and column.default is not None:
            inside = span[0] <= column.default <= span[1]
            value = column.default if inside else value
        return torch.full((n,), value, dtype=torch.double)

    def input_transform(self) -> InputTransform | None:
        """The transform that brings the columns to the unit interval for a model.

        Integers on a logarithmic scale pass through `Log10` first. Decisions and
        categorical columns are left alone, since they are looked up by value.

        Returns:
            A BoTorch input transform; None if there is nothing to transform.
        """
        alone = {*self.tree.decision_columns, *self.categorical_features}
        lo, hi = self.bounds
        wide = (lo < hi).nonzero().flatten().tolist()
        numbers = [c for c in wide if c not in alone]
        if not numbers:
            return None
        logs = [c for c in numbers if c in self.log_integers]
        bounds = self.bounds.clone()
        bounds[:, logs] = bounds[:, logs].log10()
        normalize = Normalize(self.dim, indices=numbers, bounds=bounds)
        if not logs:
            return normalize
        return ChainedInputTransform(log=Log10(indices=logs), normalize=normalize)

    @cached_property
    def log_integers(self) -> list[int]:
        """The columns of ``integer_features`` that are on a logarithmic scale."""
        columns = self.columns
        return [i for i in self.integer_features if getattr(columns[i], "log", False)]

    def _ordered(self) -> list[Column | Constant]:
        """Columns and constants in the order they were declared in."""
        ordered: list[Column | Constant] = list(self.columns)
        for constant in sorted(self.constants, key=lambda c: c.place):
            ordered.insert(constant.place, constant)
        return ordered

    def named(self) -> dict[str, list[Column | Constant]]:
        """Columns and constants by the names that configurations have for them.

        There are several of one name where dictionaries give it different values.
        """
        named: dict[str, list[Column | Constant]] = {}
        for p in self._ordered():
            if (shown := self._shown(p.name)) is not None:
                named.setdefault(shown, []).append(p)
        return named

    def can_have(self, p: Column | Constant, held: Mapping[int, float]) -> bool:
        """Whether some configuration with columns held has a parameter.

        Args:
            p: A column or a constant.
            held: Column -> its value wherever it is active.
        """
        if isinstance(p, Constant):
            return self.tree.can_hold(p.condition, held)
        return self.tree.can_be_active(self._position[p.name], held)

    def _present(self, X: Tensor, active: Tensor) -> Tensor:
        """``n x (d + num_constants)`` booleans: which parameters points have."""
        constants = [c.condition.holds(X, active) for c in self.constants]
        return torch.cat([active, *(on.unsqueeze(-1) for on in constants)], -1)

    def _mismatch(
        self, row: dict[str, Any], active: Sequence[bool], given: Sequence[bool]
    ) -> str:
        """What is missing from a row or given though inactive."""
        parameters: list[Column | Constant] = [*self.columns, *self.constants]
        conditions = {k: c.condition for k, c in enumerate(self.constants, self.dim)}
        conditions |= self.tree.conditions
        missing = {k for k, on in enumerate(active) if on and not given[k]}
        # Where a decision is missing, what depends on it is not known: leave it out.
        certain = [
            k
            for k, on in enumerate(active)
            if on and not (k in conditions and conditions[k].columns() & missing)
        ]
        absent = [parameters[k] for k in certain if k in missing]
        if absent and absent[0].name in row:
            return (
                f"{absent[0].name!r}: expected {absent[0].expected()}, as it is "
                f"active, got {row[absent[0].name]!r}."
            )
        extra = [p.name for k, p in enumerate(parameters) if given[k] > active[k]]
        wrong = f"with {extra}, inactive there"
        if absent:
            wrong = f"without {[p.name for p in absent]}"
        expected = [parameters[k].name for k in certain]
        return (
            f"configs: expected the active parameters {expected} only, got {row} "
            f"{wrong}."
        )

    def _decode(self, c: int, x: float) -> Any:
        """The value of a number, on the same side of the cuts of the tree.

        A number next to a cut may be taken for the cut itself, where other parameters
        are active: by ConfigSpace, which rounds, and on a logarithmic scale, as
        logarithms are denser than values. A value of few digits is meant as it is, and
        may be the cut.
        """
        column = self.columns[c]
        value = column.decode(x)
        if (
            isinstance(column, FloatColumn)
            and c in self.tree.numeric_decisions
            and not _is_round(column, value, x)
        ):
            room = _BESIDE_LOG_CUT if column.log else _BESIDE_CUT * _scale(column)
            for lo, hi in self.tree.decision_values[c]:
                if lo <= x <= hi and hi - lo > 2 * room:
                    return column.decode(min(max(x, lo + room), hi - room))
        return value

    def _snap(self, X: Tensor, columns: Sequence[int] | None = None) -> Tensor:
        """Round what is discrete; by default where it is no decision by value."""
        X = X.clone()
        for c in self._rounded if columns is None else columns:
            column = self.columns[c]
            if isinstance(column, CategoricalColumn):
                codes = torch.tensor(column.codes, dtype=X.dtype, device=X.device)
                far = (X[..., c] < codes[0] - 0.5) | (X[..., c] > codes[-1] + 0.5)
                near = codes[(X[..., c, None] - codes).abs().argmin(-1)]
                X[..., c] = torch.where(far, X[..., c], near)
            else:
                X[..., c] = X[..., c].round()
        return X

    def _check_inside(self, argument: str, X: Tensor, active: Tensor) -> None:
        outside = active & ~self._inside(X)
        if outside.any():
            i, c = outside.nonzero()[0].tolist()
            column, (lo, hi) = self.columns[c], self.columns[c].bounds
            log = isinstance(column, FloatColumn) and column.log
            hint = ", decimal logarithms" if log else ""
            raise ValueError(
                f"{argument}: expected numbers in [{lo}, {hi}] for {self.names[c]!r} "
                f"(column {c}{hint}), got {X[i, c].item()} in row {i}."
            )

    def _inside(self, X: Tensor) -> Tensor:
        low, high = self._ends.to(X)
        return (X >= low) & (X <= high)


def _names(names: Any) -> list[str]:
    listed = not isinstance(names, str) and isinstance(names, Iterable)
    found = list(names) if listed else []
    if not found or not all(isinstance(name, str) for name in found):
        raise ValueError(f"names: expected a list of strings, got {names!r}.")
    return found


def _bounds(bounds: Any, names: list[str]) -> Tensor:
    d = len(names)
    try:
        limits = torch.as_tensor(bounds, dtype=torch.double)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"bounds: expected 2 x {d} numbers, got {bounds!r}.") from None
    if limits.shape != (2, d):
        raise ValueError(
            f"bounds: expected 2 x {d} numbers for {d} names, got shape "
            f"{tuple(limits.shape)}."
        )
    for name, lo, hi in zip(names, *limits.tolist(), strict=True):
        if not -torch.inf < lo <= hi < torch.inf:
            raise ValueError(
                "bounds: expected finite numbers in ascending order, got "
                f"{lo} and {hi} for {name!r}."
            )
    return limits.detach().cpu()


def _codes(
    name: str, values: Sequence[Any], bounds: Span, declared: Sequence[float]
) -> list[float]:
    """Numbers of a categorical column, which are within what else is known of it."""
    numbers = [arguments.check_number(name, v) for v in values]
    if numbers != sorted(set(numbers)) or not numbers:
        raise ValueError(
            f"{name}: expected distinct ascending values, at least one, got {numbers}."
        )
    lo, hi = bounds
    if outside := [v for v in numbers if not lo <= v <= hi]:
        raise ValueError(
            f"{name}: expected values within the bounds, {lo} to {hi}, got {outside}."
        )
    if declared and (odd := sorted({*numbers} - {*declared})):
        raise ValueError(
            f"{name}: expected among the values that the tree declares, {declared}, "
            f"got {odd}."
        )
    return numbers


def random_source(seed: int | None) -> Source:
    """Random numbers of a seed, which is checked; PyTorch's own for None."""
    seed = arguments.check_seed(seed)
    return None if seed is None else torch.Generator().manual_seed(seed)


def _rows(configs: Any) -> list[dict[str, Any]]:
    """Configurations as dictionaries, whatever they came in."""
    if getattr(configs, "ndim", None) == 2 and hasattr(configs, "to_dict"):
        configs = configs.to_dict("records")  # a DataFrame
    several = hasattr(configs, "__iter__") and not isinstance(configs, str)
    many = list(configs) if several and not hasattr(configs, "keys") else [configs]
    for config in many:
        if not hasattr(config, "keys"):
            raise ValueError(
                "configs: expected a mapping of names to values, or several of them, "
                f"got {config!r}."
            )
    return [{name: config[name] for name in config.keys()} for config in many]


def _is_round(column: FloatColumn, value: float, x: float) -> bool:
    """Whether ``value`` has few digits, and is that of the very number ``x``."""
    if column.log:
        return float(f"{value:.12g}") == value and math.log10(value) == x
    # Decimal places, not significant digits: 5e-324, which is next to a cut at 0, has
    # one significant digit.
    return round(value, 12 - math.ceil(math.log10(_scale(column)))) == value


def _scale(column: FloatColumn) -> float:
    lower, upper = column.lower, column.upper
    return max(upper - lower, abs(lower), abs(upper), 1.0)
