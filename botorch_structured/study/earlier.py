"""Old studies, in the forms that people have them in, as data of a space.

The space of an old study is rarely the same: ranges were others, a parameter is new, or
has another name. Evaluations are matched by the names and the values of parameters.
A parameter that the space does not have is not looked at, one that the evaluation lacks
counts as its middle, and an evaluation with a value that the space does not have is
left out. One warning says how often.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from botorch_structured.models import OldStudiesMean
from botorch_structured.models.tree.old_studies import check_studies
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief, warn
from botorch_structured.spaces.columns import Constant, is_blank, takes
from botorch_structured.study.inputs import read_number, read_rows
from botorch_structured.study.trials import Goals, Trial


class OldStudy(NamedTuple):
    """The evaluations of a study.

    Attributes:
        configs: The configurations.
        values: Their values, larger ones better; None where an evaluation failed.
    """

    configs: list[Mapping[str, Any]]
    values: list[float | None]


_Points = tuple[Tensor, Tensor]


def read_earlier(
    space: SearchSpace,
    earlier: Any,
    name: str = "value",
    minimize: bool = True,
) -> OldStudiesMean | list[_Points] | None:
    """Old studies as points of a space and outcomes, larger ones better.

    Args:
        space: The space of the new study.
        earlier: See `Study`.
        name: The column of tables that has the outcomes.
        minimize: Whether smaller outcomes in tables, and of ``(X, Y)``, are better.
            Other studies say it themselves.

    Returns:
        ``(X, Y)`` of each study, for `OldStudiesMean.from_studies`; or what was learnt
        before, as it is; None without old studies.

    Raises:
        ValueError: It is something else, or there is no study with two evaluations of
            this space.
    """
    if earlier is None or isinstance(earlier, OldStudiesMean):
        return earlier
    studies = read_studies(earlier, name, minimize)
    return _match(space, studies) if studies else None


def learn(
    space: SearchSpace, studies: Iterable[OldStudy | _Points], say: bool
) -> OldStudiesMean | None:
    """Old studies as they are learnt from in a space that is known late; or nothing.

    Args:
        space: The space.
        studies: From `read_studies`.
        say: Whether to warn of what does not match; nothing is raised, as evaluations
            were made by then.
    """
    try:
        points = _match(space, studies, say)
    except ValueError as error:
        if say:
            warn(f"Old studies are not used. {error}")
        return None
    return OldStudiesMean.from_studies(points, space)


def _match(
    space: SearchSpace, studies: Iterable[OldStudy | _Points], say: bool = True
) -> list[_Points]:
    """The studies with two or more evaluations of a space; a warning of the others."""
    matching = _Matching(space)
    points = [
        matching(study) if isinstance(study, OldStudy) else study for study in studies
    ]
    usable = [(X, Y) for X, Y in points if len(X) > 1]
    report = matching.report()
    if short := len(points) - len(usable):
        report.append(
            f"{short} of {len(points)} studies have fewer than two evaluations."
        )
    text = " ".join(report)
    if not usable:
        raise ValueError(
            "earlier: expected an old study with two or more evaluations of this "
            f"space, got none. {text}"
        )
    try:
        check_studies(usable, space)
    except ValueError as error:
        message = str(error).removeprefix("studies: ")
        raise ValueError(f"earlier: {message}") from None
    if report and say:
        warn(f"Old studies are not all of this space. {text}")
    return usable


def read_studies(
    earlier: Any, name: str = "value", minimize: bool | None = True
) -> list[OldStudy | _Points]:
    """Old studies in their own words; those that are points stay so.

    Args:
        earlier: See `Study`, like all others.
        name: As for `read_earlier`.
        minimize: Likewise; None: it is not known, and tables are refused.
    """
    several = earlier if isinstance(earlier, list) else [earlier]
    return [study for one in several for study in _studies(one, name, minimize)]


def _studies(
    one: Any, name: str, minimize: bool | None
) -> Iterable[OldStudy | _Points]:
    """The studies of one element of ``earlier``."""
    rows = None
    if isinstance(one, (str, os.PathLike)):
        path = Path(one)
        if not path.is_file():
            raise ValueError(f"earlier: expected a file, got {path}.")
        with path.open("rb") as file:
            is_log = file.read(8) == b'{"study"'
        if is_log:
            return [_from_log(path, name)]
        rows = [row for _, row in read_rows(path)[1]]
    if isinstance(one, OldStudy):
        return [one]
    if hasattr(one, "trials") and hasattr(one, "_goals"):
        return [_from_goals(one._goals, one.trials, name)]
    if hasattr(one, "trials") and hasattr(one, "directions"):
        return [_from_optuna(one)]
    if hasattr(one, "lookup_data") or hasattr(one, "_experiment"):
        return [_from_ax(one)]
    results = getattr(one, "cv_results_", one)
    if hasattr(results, "keys") and "params" in results.keys():
        return [_from_search(results, name, getattr(one, "refit", ""))]
    if hasattr(one, "to_dict"):
        rows = one.to_dict("records")
    is_pair = isinstance(one, tuple) and len(one) == 2
    is_points = is_pair and all(isinstance(part, Tensor) for part in one)
    if not is_points and rows is None:
        raise ValueError(
            "earlier: expected a Study, the path of a log or of a CSV table, a data "
            "frame, an Optuna study, an Ax client or experiment, a fitted search of "
            "scikit-learn or its cv_results_, (X, Y), or a list of these, got "
            f"{brief(one)}."
        )
    if minimize is None:
        raise ValueError(
            "earlier: expected studies that say whether smaller outcomes are better, "
            "got a table, or (X, Y)."
        )
    if rows is not None:
        return _from_table(rows, name, minimize)
    X, Y = one
    failed = ~Y.isfinite()
    return [(X, (-Y if minimize else Y).masked_fill(failed, -math.inf))]


def _from_pairs(
    pairs: Iterable[tuple[Mapping[str, Any], Any]], minimize: bool
) -> OldStudy:
    """A study of configurations and outcomes, which may be blank or text."""
    study = OldStudy([], [])
    sign = -1.0 if minimize else 1.0
    for config, value in pairs:
        number = read_number(value)
        if not isinstance(number, float | None):
            raise ValueError(
                f"earlier: expected numbers as outcomes, got {brief(value)}."
            )
        study.configs.append(config)
        if number is not None:
            number = sign * number if math.isfinite(number) else None
        study.values.append(number)
    return study


def _from_goals(goals: Goals, trials: Sequence[Trial], name: str) -> OldStudy:
    """Trials of a `Study`; those that break its constraints are failures."""
    if name not in goals.objectives:
        name = _only(goals.objectives)
    feasible = {trial.number for trial in goals.feasible(trials)}
    pairs = [
        (t.config, t.values.get(name) if t.number in feasible else None) for t in trials
    ]
    return _from_pairs(pairs, goals.objectives[name] == "minimize")


def _only(objectives: Iterable[Any]) -> Any:
    names = list(objectives)
    if len(names) != 1:
        raise ValueError(
            f"earlier: expected old studies with one objective, got {names}."
        )
    return names[0]


def _from_log(path: Path, name: str) -> OldStudy:
    """A log of a `Study`; nobody needs to hold it, and its last line may be cut."""
    first, *lines = path.read_bytes().split(b"\n")[:-1]
    try:
        header = json.loads(first)
        goals = Goals(header["objectives"], header["constraints"])
        told = [json.loads(line) for line in lines if line.startswith(b'{"told"')]
        trials = [
            Trial(
                i,
                e["told"],
                e["values"] or {},
            )
            for i, e in enumerate(told)
        ]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"earlier: expected the log of a Study, got {path}.") from None
    return _from_goals(goals, trials, name)


def _from_optuna(study: Any) -> OldStudy:
    """Complete and failed trials; pruned and running ones are no outcomes."""
    pairs = []
    for trial in study.trials:
        if trial.state.name in ("COMPLETE", "FAIL"):
            is_broken = any(number > 0.0 for number in trial.constraints.values())
            worked = trial.values and not is_broken
            pairs.append((trial.params, trial.values[0] if worked else None))
    return _from_pairs(pairs, _only(study.directions).name == "MINIMIZE")


def _from_ax(one: Any) -> OldStudy:
    experiment = getattr(one, "_experiment", one)
    goal: Any = getattr(experiment, "optimization_config", None)
    metric = _only([] if goal is None else goal.objective.metric_names)
    table = experiment.lookup_data().df
    table = table[table["metric_name"] == metric]
    failed = [t for t in experiment.trials.values() if t.status.is_failed]
    values = {arm.name: None for trial in failed for arm in trial.arms}
    values |= dict(zip(table["arm_name"], table["mean"], strict=True))
    arms = experiment.arms_by_name
    pairs = [(arms[name].parameters, value) for name, value in values.items()]
    return _from_pairs(pairs, goal.objective.minimize)


def _from_search(table: Any, name: str, refit: Any) -> OldStudy:
    """Results of a search of scikit-learn: larger scores are better."""
    names = [f"mean_test_{n}" for n in (name, "score", refit)]
    scores = [table[n] for n in names if n in table]
    if not scores or not all(isinstance(config, Mapping) for config in table["params"]):
        raise ValueError(
            f"earlier: expected cv_results_ with dictionaries as params and "
            f"mean_test_{name}, got {list(table)}."
        )
    return _from_pairs(zip(table["params"], scores[0], strict=True), minimize=False)


def _from_table(
    rows: Sequence[Mapping[str, Any]], name: str, minimize: bool
) -> Iterator[OldStudy]:
    """The studies of a table, which a column may tell apart."""
    if not any(name in row for row in rows):
        columns = list(rows[0]) if rows else []
        raise ValueError(f"earlier: expected a column {name!r}, got {columns}.")
    studies: dict[Any, list[tuple[Mapping[str, Any], Any]]] = {}
    for row in rows:
        config = {k: v for k, v in row.items() if k not in (name, "study")}
        studies.setdefault(row.get("study"), []).append((config, row.get(name)))
    for pairs in studies.values():
        yield _from_pairs(pairs, minimize)


class _Matching:
    """Configurations of other spaces as points of this one, as far as they are any.

    Args:
        space: The space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._named = space.named()
        self._decisions = {space.shown_names[c] for c in space.tree.decision_columns}
        self._constants = {space._shown(c.name) for c in space.constants}
        self._seen = 0
        self._left_out: list[Mapping[str, Any]] = []
        self._unknown: set[str] = set()
        self._missing: Counter[str] = Counter()

    def __call__(self, study: OldStudy) -> _Points:
        """``n x d`` points and ``n x 1`` outcomes, ``-inf`` where one failed."""
        points = [self.space.fill.new_empty(0, self.space.dim)]
        values = []
        for config, value in zip(*study, strict=True):
            self._seen += 1
            self._unknown |= config.keys() - self._named.keys()
            X = self._point({k: v for k, v in config.items() if k in self._named})
            if X is None or not bool(self.space.feasible(X)):
                self._left_out.append(config)
                continue
            points.append(X)
            values.append([-math.inf if value is None else value])
        Y = torch.tensor(values, dtype=torch.double).reshape(-1, 1)
        return torch.cat(points), Y

    def _point(self, config: Mapping[str, Any]) -> Tensor | None:
        """``1 x d``, inactive parameters apart; None if the configuration is none.

        Parameters that it lacks count as their middle.
        """
        space = self.space
        with suppress(ValueError):
            return space.encode([config])
        X = space.fill[None].clone()
        for name, value in config.items():
            for p in self._named[name]:
                if takes(p, value) and not isinstance(p, Constant):
                    X[0, space._position[p.name]] = p.encode(value)
        # the middle of the path that these lead to
        (middle,) = space.decode(space.impute(X))
        told = {k: v for k, v in config.items() if k in middle and not is_blank(v)}
        missing = middle.keys() - told.keys() - self._constants
        numbers = told.keys() - self._decisions - self._constants
        if None in self._decisions or missing & self._decisions or not numbers:
            return None  # no path that is known, or no number of it
        with suppress(ValueError):
            X = space.encode([middle | told])
            self._missing.update(missing)
            return X
        return None

    def report(self) -> list[str]:
        """How evaluations were matched; empty where all were of this space."""
        parts = []
        if self._left_out:
            parts.append(
                f"{len(self._left_out)} of {self._seen} evaluations are left out, "
                f"which are none here, such as {brief(self._left_out[0])}."
            )
        if self._unknown:
            parts.append(f"Not parameters of this space: {sorted(self._unknown)}.")
        for name, times in self._missing.items():
            parts.append(f"{name!r} counts as its middle in {times}, which lack it.")
        return parts
