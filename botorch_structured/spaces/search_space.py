"""`SearchSpace`: names, bounds and native values around a `ParameterTree`."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
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
    SLACK,
    CategoricalColumn,
    Column,
    Constant,
    FloatColumn,
    IntegerColumn,
    described,
    is_blank,
    is_same_parameter,
    positions,
    random_source,
    with_slack,
)
from botorch_structured.spaces.conditions import ALWAYS, Condition
from botorch_structured.spaces.parameter_tree import ParameterTree
from botorch_structured.spaces.starts import Starts

if TYPE_CHECKING:
    from ConfigSpace import ConfigurationSpace

    from botorch_structured.spaces.dictionaries import DictionaryNames

Row = dict[str, Any]
#: The kinds of `SearchSpace.starts`.
KINDS = ("random", "inner", "spread", "middle", "default")


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
    ) -> None:
        names = _names(names)
        d = len(names)
        limits = _bounds(bounds, d)
        if tree is not None and not isinstance(tree, ParameterTree):
            raise ValueError(
                f"tree: expected a ParameterTree (ParameterTree({d}, {{...}})), got "
                f"{type(tree).__name__}."
            )
        tree = ParameterTree.from_any({} if tree is None else tree, d)
        integers = set(arguments.check_columns("integer_features", integer_features, d))
        logs = set(arguments.check_columns("log_features", log_features, d))
        labels = arguments.check_by_column("choices", choices, d)
        listed = arguments.check_by_column(
            "categorical_features", categorical_features, d
        )
        by_value = {*tree.decisions_by_value} - integers
        codes = {c: tree.decision_values[c] for c in by_value} | listed
        wrong = (integers | logs) & codes.keys() | labels.keys() - codes.keys()
        if wrong:
            raise ValueError(
                "integer_features, log_features, choices: expected choices of "
                f"categorical columns alone, {sorted(codes)}, and the others of none "
                f"of these, got {sorted(wrong)}."
            )
        columns: list[Column] = []
        for c, name in enumerate(names):
            lo, hi = limits[:, c].tolist()
            if c in codes:
                argument = f"categorical_features[{c}]" if c in listed else "tree"
                numbers = [arguments.check_number(argument, v) for v in codes[c]]
                allowed = tree._values.get(c, numbers)
                if odd := [v for v in numbers if not lo <= v <= hi or v not in allowed]:
                    raise ValueError(
                        f"{argument}: expected values within the bounds, {lo} to {hi}, "
                        f"among those that the tree declares, {list(allowed)}, got "
                        f"{odd}."
                    )
                plain = [int(v) if v.is_integer() else v for v in numbers]
                values = labels.get(c, plain)
                columns.append(CategoricalColumn(name, values, codes=numbers))
            elif c in integers:
                if not (lo.is_integer() and hi.is_integer()):
                    raise ValueError(
                        f"bounds: expected whole numbers for the integer column {c} "
                        f"({name!r}), got {lo} and {hi}."
                    )
                columns.append(IntegerColumn(name, int(lo), int(hi), c in logs))
            elif c in logs:
                if not -307.0 <= lo <= hi <= 308.0:  # others are no float64
                    raise ValueError(
                        "bounds: expected decimal logarithms from -307 to 308 for "
                        f"column {c} ({name!r}), got {lo} and {hi}."
                    )
                columns.append(FloatColumn(name, 10.0**lo, 10.0**hi, log=True))
            else:
                columns.append(FloatColumn(name, lo, hi))
        self._setup(columns, tree, feasible=feasible)

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
    def from_parameters(
        cls,
        argument: str,
        parameters: Mapping[str, Column],
        conditions: Mapping[str, Condition],
        by_value: Iterable[str],
        forbidden: Sequence[Condition] = (),
    ) -> SearchSpace:
        """The space of columns and constants.

        Args:
            argument: What it is called in errors.
            parameters: All of them by name, in order.
            conditions: Where they are active.
            by_value: The decisions that declare their values.
            forbidden: See `from_columns`.
        """
        position = positions(parameters)
        if not position:
            only = f"only constants, {[*parameters]}" if parameters else "none"
            raise ValueError(
                f"{argument}: expected at least one parameter with several values, got "
                f"{only}."
            )
        where = {
            c: condition
            for name, c in position.items()
            if (condition := conditions[name]) != ALWAYS
        }
        values = {}
        for name in by_value:
            if name in position:
                lo, hi = parameters[name].bounds
                values[position[name]] = [float(x) for x in range(int(lo), int(hi) + 1)]
        constants = [
            Constant(name, p.value, conditions[name])
            for name, p in parameters.items()
            if isinstance(p, Constant)
        ]
        columns = [parameters[name] for name in position]
        tree = ParameterTree(len(columns), conditions=where, values=values)
        return cls.from_columns(columns, tree, constants, forbidden)

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

        return cls.from_parameters("cs", *read_configspace(cs))

    @classmethod
    def from_ax(
        cls,
        search_space: Any,
        aligned: Iterable[Iterable[str]] = (),
    ) -> SearchSpace:
        """Read a search space of Ax; parameter constraints go into `feasible`.

        Args:
            search_space: Range, choice (also with ``dependents``) and fixed parameters.
                A logit scale is read as a linear one.
            aligned: Groups of names that are one parameter, which Ax needs a name for
                under each value of a choice. They become one column, with the first.

        Raises:
            ValueError: A parameter of another kind, disabled, a task or a fidelity; or
                aligned parameters that cannot be one column.
        """
        from botorch_structured.spaces.other_spaces import read_ax

        return cls.from_parameters("search_space", *read_ax(search_space, aligned))

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

        parts, names = read_dictionaries(dictionaries)
        space = cls.from_parameters("dictionaries", *parts)
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
        if feasible is not None:
            arguments.check_function("feasible", feasible)
        self._feasible = feasible
        all_names = [c.name for c in columns] + [c.name for c in constants]
        if len(set(all_names)) < len(all_names):
            raise ValueError(
                f"names: expected distinct names, got {sorted(all_names)}."
            )
        self.columns = tuple(columns)
        #: The number of columns.
        self.dim = len(columns)
        self.constants = tuple(constants)
        #: Columns, then constants.
        self.parameters = (*self.columns, *self.constants)
        self.tree = tree.of_space(self)
        self._forbidden = tuple(forbidden)
        #: Whether a clause or a constraint forbids some points within the bounds.
        self.is_restricted = bool(forbidden) or feasible is not None
        self.names = [c.name for c in columns]
        bounds = [c.bounds for c in columns]
        self.bounds = torch.tensor(bounds, dtype=torch.double).mT.contiguous()
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
        # Rounded to a whole number, or to the nearest of the codes. Not so decisions by
        # value, around which the tree has its own tolerance.
        self._codes = {
            i: column.codes
            for i in discrete
            if isinstance(column := columns[i], CategoricalColumn)
            and column.codes != tuple(range(len(column.codes)))
        }
        self._is_whole = torch.tensor(
            [c.discrete and i not in self._codes for i, c in enumerate(columns)]
        )
        self._is_decision = torch.zeros(len(columns), dtype=torch.bool)
        self._is_decision[tree.decisions_by_value] = True
        self._position = {p.name: i for i, p in enumerate(self.parameters)}
        # the intervals that numeric decisions are cut into
        self._cuts = {c: tree.decision_values[c] for c in tree.numeric_decisions}
        _ = self.tree.shared_columns  # paths are listed here, not in the first search

    def __copy__(self) -> SearchSpace:
        return self  # nothing about it changes

    def __deepcopy__(self, memo: dict[int, Any]) -> SearchSpace:
        return self

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def shown_names(self) -> list[str | None]:
        """The columns' names in configurations; None for one that they do not show.

        They have "C" where ``.names`` has "C@1", see `from_dictionaries`.
        """
        return [self._shown(name) for name in self.names]

    def _shown(self, name: str) -> str | None:
        """The same of a column or a constant."""
        names = self._dictionaries
        return name if names is None else names.outer.get(name)

    def __eq__(self, other: object) -> bool:
        """Whether it has the same columns, tree, constants and restrictions."""
        if not isinstance(other, SearchSpace):
            return NotImplemented
        return (
            self.names == other.names
            and self.tree == other.tree
            and self._forbidden == other._forbidden
            and self._feasible == other._feasible
            and self._dictionaries == other._dictionaries
            and len(self.constants) == len(other.constants)
            and all(
                map(
                    is_same_parameter,
                    self.parameters,
                    other.parameters,
                )
            )
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
        numbers = np.zeros((len(rows), len(self.parameters)))
        numbers[:, : self.dim] = self.fill.numpy()
        # 1: a blank, which may also stand for an inactive parameter; 2: a value
        told = np.zeros(numbers.shape, dtype=int)
        for i, row in enumerate(rows):
            if unknown := [name for name in row if name not in self._position]:
                raise ValueError(
                    f"configs: expected parameters among {[*self._position]}, got "
                    f"unknown ones {unknown} in {row}."
                )
            for name, value in row.items():
                k = self._position[name]
                is_empty = is_blank(value)
                if not is_empty or self.parameters[k].takes_blank:
                    numbers[i, k] = self.parameters[k].encode(value)
                    told[i, k] = 1 if is_empty else 2
        X = torch.from_numpy(numbers[:, : self.dim].copy())
        active = self.tree.active_mask(X)
        present = self._present(X, active).numpy()
        is_wrong = np.where(present, told == 0, told == 2)
        if is_wrong.any():
            i = int(is_wrong.any(-1).argmax())
            raise ValueError(self._mismatch(rows[i], present[i], is_wrong[i]))
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
        self.tree.check_rows(X)
        X = self._snap(X.reshape(-1, self.dim).detach().double().cpu())
        active = self.check_points(X)
        present = self._present(X, active)
        numbers = torch.nn.functional.pad(X, (0, len(self.constants)))
        configs = []
        for x, on in zip(numbers.tolist(), present.tolist(), strict=True):
            config = {}
            for k, p in enumerate(self.parameters):
                if on[k]:
                    config[p.name] = self._decode(k, x[k])
            configs.append(config)
        if self._dictionaries is not None:
            return [self._dictionaries.decode(config) for config in configs]
        return configs

    def rounded(self, X: Tensor) -> Tensor:
        """Points as those of their configurations: numbers with few digits.

        Args:
            X: ``n x d`` points, discrete columns at admissible values.
        """
        points = X.double().cpu().clone()
        for k, column in enumerate(self.columns):
            if isinstance(column, FloatColumn):
                for row in points:
                    row[k] = column.number(self._decode(k, row[k].item()))
        return self.impute(points).to(X)

    def _decode(self, k: int, x: float) -> Any:
        column = self.parameters[k]
        if k in self._cuts and isinstance(column, FloatColumn):
            x = column.beside_cuts(x, self._cuts[k])
        return column.decode(x)

    def check_points(self, X: Tensor, argument: str = "X") -> Tensor:
        """Raise a ``ValueError`` for points beyond the bounds, or between values.

        Args:
            X: ``n x d`` points; what is in inactive columns does not matter.
            argument: The name of the argument in the error.

        Returns:
            ``n x d`` booleans: which columns are active.
        """
        X = X.detach()
        active = self.tree.active_mask(X, strict=False)
        distance = (X - self._snap(X, decisions=True)).abs()
        good = self._inside(X) & (distance <= SLACK * X.abs().clamp_min(1.0))
        wrong = active & ~good
        if wrong.any():
            i, c = wrong.nonzero()[0].tolist()
            column = self.columns[c]
            expected = column.expected()
            if isinstance(column, CategoricalColumn):
                expected = f"one of {list(column.codes)}"
            elif column.log and not column.discrete:
                expected = f"a decimal logarithm in {list(column.bounds)}"
            raise ValueError(
                f"{argument}: expected {expected} for {self.names[c]!r} (column {c}), "
                f"got {X[i, c].item()} in row {i}."
            )
        return active

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
        is_fixed = (lower == upper) | ~active
        forbidden = torch.zeros_like(is_fixed[:, 0])
        for clause in self._forbidden:
            decided = is_fixed[:, sorted(clause.columns())].all(-1)
            forbidden |= decided & clause.holds(lower, active)
        return forbidden

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
        self.tree.check_rows(X)
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
        points = [self.bounds.new_zeros(0, self.dim)]
        missing = batch = n
        drawn = 0
        while missing > 0:
            if drawn > 1_000_000:
                raise ValueError(
                    "space: expected points that are not forbidden, got "
                    f"{n - missing} of {n} in {drawn:,} random draws."
                )
            X = torch.stack(
                [c.draw(batch, generator) for c in self.columns],
                -1,
            )
            X = self.impute(X)
            points.append(X[self.feasible(X)][:missing])
            missing -= len(points[-1])
            drawn += batch
            batch = max(64, min(2 * batch, 16384))
        return torch.cat(points)

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
        or ``at_most`` name a number, `sample` gives the points that are missing.)
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
                `sample`. ``"inner"``: such draws in the middle half of each range (of
                all choices): on most problems a search that starts there is better for
                its first twenty evaluations (``docs/default.md``). ``"spread"``:
                draws that are spread over the starts in which the parameter is active,
                a Latin hypercube: of k of them one lies in each k-th of its range, and
                each choice comes up in proportion to its weight, give or take one;
                about so where forbidden starts are replaced (see below). ``"middle"``:
                the middle of the bounds, or of the interval of the path, on that scale;
                rounded for integers, the middle of the list for choices (the former of
                two). ``"default"``: the declared default, see
                `from_configspace`; the middle where there is none or it lies outside of
                the path's interval. The path that the defaults are on comes first.
                After the first start on a path, further ones are random, except for
                ``"spread"``. A start that is forbidden is replaced by the nearest
                feasible one of 100 random points on its path (of 1,000, then 10,000,
                where none of these is feasible).
            seed: The same seed gives the same points. Default: PyTorch's generator;
                for ``"middle"`` and ``"default"`` 0.
            at_most: In place of ``n``, no more than this: one start for each value (or
                interval) of the decision that is always active, if it is the only one.
                Otherwise one on each of up to ten paths; of more paths, as many as it
                takes to show every value of every decision that can be active, and to
                have every column active once, but five at least. Where these are too
                many, values that share columns with some of the others come first, if
                they take half of the starts at most: models are too sure of such a path
                without a start.

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
        return Starts(self, kind, seed).draw(n, at_most)

    def input_transform(self) -> InputTransform | None:
        """The transform that brings the columns to the unit interval for a model.

        Integers on a logarithmic scale pass through `Log10` first. Decisions and
        categorical columns are left alone, since they are looked up by value.

        Returns:
            A BoTorch input transform; None if there is nothing to transform.
        """
        alone = {
            *self.tree.decision_columns,
            *self.categorical_features,
        }
        lo, hi = self.bounds
        wide = (lo < hi).nonzero().flatten().tolist()
        numbers = sorted({*wide} - alone)
        if not numbers:
            return None
        logs = sorted({*numbers} & {*self.log_integers})
        bounds = self.bounds.clone()
        bounds[:, logs] = bounds[:, logs].log10()
        normalize = Normalize(self.dim, indices=numbers, bounds=bounds)
        if not logs:
            return normalize
        return ChainedInputTransform(log=Log10(indices=logs), normalize=normalize)

    @cached_property
    def log_integers(self) -> list[int]:
        """The columns of ``integer_features`` that are on a logarithmic scale."""
        return [i for i in self.integer_features if self.columns[i].log]

    def named(self) -> dict[str, list[Column]]:
        """Columns and constants by the names that configurations have for them.

        There are several of one name where dictionaries give it different values.
        """
        named: dict[str, list[Column]] = {}
        for p in self.parameters:
            if (shown := self._shown(p.name)) is not None:
                named.setdefault(shown, []).append(p)
        return named

    def possible_with(self, fixed: Mapping[int, float]) -> set[str]:
        """The names of the parameters that some configuration with columns fixed has.

        It is found out at random points on all paths, or on random ones of more than
        4,096.

        Args:
            fixed: Column -> its value wherever it is active.
        """
        states = torch.from_numpy(self.tree._search.states).long()
        states = states.repeat(1 + 256 // len(states), 1)
        X = Starts(self, "random", 0).place(states, "random")
        for c, value in fixed.items():
            X[:, c] = value
        active = self.tree.active_mask(X, strict=False)
        present = self._present(X, active).any(0).tolist()
        return {p.name for p, on in zip(self.parameters, present, strict=True) if on}

    def _present(self, X: Tensor, active: Tensor) -> Tensor:
        """``n x (d + num_constants)`` booleans: which parameters points have."""
        constants = [c.condition.holds(X, active) for c in self.constants]
        return torch.cat(
            [
                active,
                *(on.unsqueeze(-1) for on in constants),
            ],
            -1,
        )

    def _mismatch(
        self,
        row: Row,
        present: np.ndarray,
        is_wrong: np.ndarray,
    ) -> str:
        """The error of a row that lacks parameters, or has inactive ones."""
        for k in np.flatnonzero(is_wrong & present).tolist():
            p = self.parameters[k]
            expected = f"{p.expected()}, as it is active"
            return f"{p.name!r}: expected {expected}, got {row.get(p.name)!r} in {row}."
        p = self.parameters[int(is_wrong.argmax())]
        got = f"{row[p.name]!r} in {row}"
        return f"{p.name!r}: expected no value, as it is inactive, got {got}."

    def _snap(self, X: Tensor, decisions: bool = False) -> Tensor:
        """Round what is discrete; decisions by value only if asked to."""
        is_rounded = (
            self._is_whole if decisions else self._is_whole & ~self._is_decision
        )
        X = torch.where(is_rounded.to(X.device), X.round(), X)
        for c, numbers in self._codes.items():
            if self._is_decision[c] and not decisions:
                continue
            x = X[..., c]
            codes = X.new_tensor(numbers)
            nearest = codes[(x.unsqueeze(-1) - codes).abs().argmin(-1)]
            is_near = (x >= codes[0] - 0.5) & (x <= codes[-1] + 0.5)
            X[..., c] = torch.where(is_near, nearest, x)
        return X

    def _inside(self, X: Tensor) -> Tensor:
        low, high = self._ends.to(X)
        return (X >= low) & (X <= high)


def _names(names: Any) -> list[str]:
    is_list = not isinstance(names, str) and isinstance(names, Iterable)
    listed = list(names) if is_list else []
    if not listed or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"names: expected a list of strings, got {names!r}.")
    return listed


def _bounds(bounds: Any, d: int) -> Tensor:
    try:
        limits = torch.as_tensor(bounds, dtype=torch.double)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"bounds: expected 2 x {d} numbers, got {bounds!r}.") from None
    if limits.shape != (2, d):
        raise ValueError(
            f"bounds: expected 2 x {d} numbers for {d} names, got shape "
            f"{tuple(limits.shape)}."
        )
    return limits.detach().cpu()


def _rows(configs: Any) -> list[Row]:
    """Configurations as dictionaries, whatever they came in."""
    if getattr(configs, "ndim", None) == 2 and hasattr(configs, "to_dict"):
        configs = configs.to_dict("records")  # a DataFrame
    is_one = hasattr(configs, "keys") or not isinstance(configs, Iterable)
    many = [configs] if is_one or isinstance(configs, str) else list(configs)
    for config in many:
        if not hasattr(config, "keys"):
            raise ValueError(
                "configs: expected a mapping of names to values, or several of them, "
                f"got {config!r}."
            )
    return [{name: config[name] for name in config.keys()} for config in many]
