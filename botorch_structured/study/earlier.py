"""Old studies, in the forms that people have them in, as data of a space.

The space of an old study is rarely the same: ranges were others, a parameter is new, or
has another name. Evaluations are matched by the names and the values of parameters.
What the space does not have is not looked at, what it has and the evaluation lacks
counts as its middle, and an evaluation with a value that the space does not have is
left out. One warning says how often.
"""

from __future__ import annotations

__all__ = ["OldStudy", "learn", "read_earlier", "read_studies"]

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from botorch_structured.models import OldStudiesMean
from botorch_structured.models.tree.old_studies import check_studies
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief, warn
from botorch_structured.spaces.columns import Constant, is_blank, takes
from botorch_structured.study.trials import Goals, Trial


class OldStudy(NamedTuple):
    """What was evaluated in a study.

    Attributes:
        configs: The configurations.
        values: Their values, larger ones better; None where an evaluation failed.
    """

    configs: list[Mapping[str, Any]]
    values: list[float | None]


_LOG = b'{"study"'  # how a log begins
_STUDY = "study"  # the column of a table that names the study
_TWO = "an old study with two or more evaluations of this space"
_EXPECTED = (
    "a Study, the path of a log or of a CSV table, a data frame, an Optuna study, an "
    "Ax client or experiment, a fitted search of scikit-learn or its cv_results_, "
    "(X, Y), or a list of these"
)


def read_earlier(
    space: SearchSpace, earlier: Any, name: str = "value", minimize: bool = True
) -> OldStudiesMean | list[tuple[Tensor, Tensor]] | None:
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
    found, report = _match(space, read_studies(earlier, name, minimize))
    if not found and earlier != []:
        raise ValueError(f"earlier: expected {_TWO}, got none. {report}".rstrip())
    if found:
        try:
            check_studies(found, space)
        except ValueError as error:
            message = str(error).removeprefix("studies: ")
            raise ValueError(f"earlier: {message}") from None
    if report:
        warn(f"Old studies are not all of this space. {report}")
    return found or None


def _match(
    space: SearchSpace, studies: Iterable[OldStudy | tuple[Tensor, Tensor]]
) -> tuple[list[tuple[Tensor, Tensor]], str]:
    """Studies with two or more evaluations of a space, and how they were matched."""
    matching = _Matching(space)
    each = [
        s if isinstance(s, tuple) and not isinstance(s, OldStudy) else matching(s)
        for s in studies
    ]
    found = [(X, Y) for X, Y in each if len(X) > 1]
    parts = [matching.report()]
    if short := len(each) - len(found):
        parts.append(f"{short} of {len(each)} studies have fewer than two evaluations.")
    return found, " ".join(filter(None, parts))


def learn(
    space: SearchSpace, studies: Iterable[OldStudy | tuple[Tensor, Tensor]], say: bool
) -> OldStudiesMean | None:
    """What old studies have taught about a space that is known late; or nothing.

    Args:
        space: The space.
        studies: From `read_studies`.
        say: Whether to warn of what does not match; nothing is raised, as evaluations
            were made by then.
    """
    found, report = _match(space, studies)
    if not found:
        report = f"They are not used: expected {_TWO}, got none. {report}"
    if report and say:
        warn(f"Old studies are not all of this space. {report}")
    return OldStudiesMean.from_studies(found, space) if found else None


def read_studies(
    earlier: Any, name: str = "value", minimize: bool | None = True
) -> list[OldStudy | tuple[Tensor, Tensor]]:
    """Old studies in their own words; those that are points stay so.

    Args:
        earlier: See `Study`, like all others.
        name: As for `read_earlier`.
        minimize: Likewise; None: it is not known, and tables are refused.
    """
    several = isinstance(earlier, list) and not _is_rows(earlier)
    sign = math.nan if minimize is None else -1.0 if minimize else 1.0
    every = earlier if several else [earlier]
    return [study for one in every for study in _studies(one, name, sign)]


def _is_rows(several: list[Any]) -> bool:
    rows = [row for row in several if isinstance(row, Mapping)]
    return 0 < len(rows) == len(several) and not any(map(_has_scores, rows))


def _studies(
    one: Any, name: str, sign: float
) -> Iterator[OldStudy | tuple[Tensor, Tensor]]:
    """The studies of one element of ``earlier``."""
    if isinstance(one, OldStudy):
        yield one
        return
    if isinstance(one, (str, os.PathLike)):
        path = Path(one)
        if not path.is_file():
            raise ValueError(f"earlier: expected a file, got {path}.")
        with path.open("rb") as file:
            is_log = file.read(len(_LOG)) == _LOG
        if is_log:
            yield _of_log(path, name)
            return
        import pandas as pd  # an extra

        # choices may be called "None" or "NA"
        one = pd.read_csv(path, dtype=str, keep_default_na=False)
    if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], Tensor):
        X, Y = one
        _check_sign(sign)
        yield X, sign * Y.where(Y.isfinite(), -sign * math.inf)
    elif hasattr(one, "trials") and hasattr(one, "_goals"):
        yield _of_goals(one._goals, one.trials, name)
    elif hasattr(one, "trials") and hasattr(one, "directions"):
        yield _of_optuna(one)
    elif hasattr(one, "lookup_data") or hasattr(one, "_experiment"):
        yield _of_ax(one)
    elif hasattr(one, "cv_results_") or _has_scores(one):
        yield _of_search(one, name)
    elif hasattr(one, "to_dict") or (isinstance(one, list) and _is_rows(one)):
        _check_sign(sign)
        yield from _of_table(one, name, sign)
    else:
        raise ValueError(f"earlier: expected {_EXPECTED}, got {brief(one)}.")


def _check_sign(sign: float) -> None:
    if math.isnan(sign):
        raise ValueError(
            "earlier: expected studies that say whether smaller outcomes are better, "
            "got a table, or (X, Y)."
        )


def _of_trials(pairs: Iterable[tuple[Mapping[str, Any], Any]], sign: float) -> OldStudy:
    found = OldStudy([], [])
    for config, value in pairs:
        blank = is_blank(value) or str(value).strip().upper() in ("NA", "NAN")
        try:
            number = math.nan if blank else float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"earlier: expected numbers as outcomes, got {brief(value)}."
            ) from None
        found.configs.append(config)
        found.values.append(sign * number if math.isfinite(number) else None)
    return found


def _of_goals(goals: Goals, trials: Sequence[Trial], name: str) -> OldStudy:
    """Trials of a `Study`; those that break its constraints are failures."""
    named = goals.objectives
    if name not in named:
        _check_one(named)
        (name,) = named
    feasible = {trial.number for trial in goals.feasible(trials)}
    sign = -1.0 if named[name] == "minimize" else 1.0
    pairs = [
        (t.config, t.values.get(name) if t.number in feasible else None) for t in trials
    ]
    return _of_trials(pairs, sign)


def _check_one(objectives: Any) -> None:
    if len(objectives) != 1:
        raise ValueError(
            f"earlier: expected old studies with one objective, got {list(objectives)}."
        )


def _of_log(path: Path, name: str) -> OldStudy:
    """A log of a `Study`; nobody needs to hold it, and its last line may be cut."""
    first, *lines = path.read_bytes().split(b"\n")[:-1]
    try:
        header = json.loads(first)
        goals = Goals(header["objectives"], header["constraints"])
        told = [json.loads(line) for line in lines if line.startswith(b'{"told"')]
        trials = [Trial(i, e["told"], e["values"] or {}) for i, e in enumerate(told)]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"earlier: expected the log of a Study, got {path}.") from None
    return _of_goals(goals, trials, name)


def _of_optuna(study: Any) -> OldStudy:
    """Complete and failed trials; pruned and running ones are no outcomes."""
    _check_one(study.directions)
    sign = -1.0 if study.directions[0].name == "MINIMIZE" else 1.0
    pairs = []
    for trial in study.trials:
        if trial.state.name in ("COMPLETE", "FAIL"):
            broken = any(number > 0.0 for number in trial.constraints.values())
            known = trial.values and not broken
            pairs.append((trial.params, trial.values[0] if known else None))
    return _of_trials(pairs, sign)


def _of_ax(one: Any) -> OldStudy:
    experiment = getattr(one, "_experiment", one)
    goal: Any = getattr(experiment, "optimization_config", None)
    _check_one([] if goal is None else goal.objective.metric_names)
    arms, table = experiment.arms_by_name, experiment.lookup_data().df
    table = table[table["metric_name"] == goal.objective.metric_names[0]]
    values = dict.fromkeys(
        arm.name
        for trial in experiment.trials.values()
        if trial.status.is_failed
        for arm in trial.arms
    ) | dict(zip(table["arm_name"], table["mean"], strict=True))
    sign = -1.0 if goal.objective.minimize else 1.0
    return _of_trials(((arms[k].parameters, y) for k, y in values.items()), sign)


def _has_scores(one: Any) -> bool:
    keys = set(one) if hasattr(one, "keys") else set()
    return "params" in keys and any(str(k).startswith("mean_test_") for k in keys)


def _of_search(one: Any, name: str) -> OldStudy:
    """A search of scikit-learn, or its results: larger scores are better."""
    table = getattr(one, "cv_results_", one)
    names = [name, "score", getattr(one, "refit", "")]
    found = [k for n in names if (k := f"mean_test_{n}") in table]
    if not found or not all(isinstance(config, Mapping) for config in table["params"]):
        raise ValueError(
            f"earlier: expected cv_results_ with dictionaries as params and "
            f"mean_test_{name}, got {list(table)}."
        )
    return _of_trials(zip(table["params"], table[found[0]], strict=True), 1.0)


def _of_table(table: Any, name: str, sign: float) -> Iterator[OldStudy]:
    rows = table if isinstance(table, list) else table.to_dict("records")
    if not any(name in row for row in rows):
        columns = list(rows[0]) if rows else []
        raise ValueError(f"earlier: expected a column {name!r}, got {columns}.")
    studies: dict[Any, list[tuple[Mapping[str, Any], Any]]] = {}
    for row in rows:
        config = {k: v for k, v in row.items() if k not in (name, _STUDY)}
        studies.setdefault(row.get(_STUDY), []).append((config, row.get(name)))
    for pairs in studies.values():
        yield _of_trials(pairs, sign)


class _Matching:
    """Configurations of other spaces as points of this one, as far as they are any.

    Args:
        space: The space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._named = space.named()
        self._seen = 0
        self._example: Mapping[str, Any] | None = None
        self._left_out = 0
        self._unknown: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()

    def __call__(self, study: OldStudy) -> tuple[Tensor, Tensor]:
        """``n x d`` points and ``n x 1`` outcomes, ``-inf`` where one failed."""
        points, values = [], []
        for config, value in zip(*study, strict=True):
            self._seen += 1
            self._unknown.update(config.keys() - self._named.keys())
            known = {k: v for k, v in config.items() if k in self._named}
            point = self._point(known)
            if point is None:
                self._left_out += 1
                self._example = self._example or config
                continue
            points.append(point)
            values.append(-math.inf if value is None else value)
        X = torch.stack(points) if points else self.space.fill[None][:0]
        return X, torch.tensor(values, dtype=torch.double).unsqueeze(-1)

    def _point(self, config: Mapping[str, Any]) -> Tensor | None:
        space = self.space
        try:
            x = space.encode([config])
        except ValueError:
            pass
        else:
            return x[0] if bool(space.feasible(x)) else None
        x, position = space.fill.clone(), {n: i for i, n in enumerate(space.names)}
        given, refused = set(), set()
        for name, several in self._named.items():
            value = config.get(name)
            blank = is_blank(value)
            for p in several:
                if takes(p, value):
                    given.add(p.name)
                    if not isinstance(p, Constant):
                        x[position[p.name]] = p.encode(value)
                elif not blank:
                    refused.add(p.name)
        active = space.tree.active_mask(x[None])
        present = space._present(x[None], active)[0].tolist()
        names = [*space.names, *(c.name for c in space.constants)]
        here = {name for name, on in zip(names, present, strict=True) if on}
        missing = here - given - {c.name for c in space.constants}
        decisions = {space.names[c] for c in space.tree.decision_columns}
        x = space.impute(x[None])
        # a path that is not known, or a point of which nothing is, is no evidence
        unknown = missing & decisions or not given & here & {*space.names} - decisions
        if here & refused or unknown or not bool(space.feasible(x)):
            return None
        self._missing.update(space._shown(name) or name for name in missing)
        return x[0]

    def report(self) -> str:
        """How evaluations were matched; empty where all were of this space."""
        parts = []
        if self._left_out:
            parts.append(
                f"{self._left_out} of {self._seen} evaluations are left out, which are "
                f"none here, such as {brief(self._example)}."
            )
        if self._unknown:
            parts.append(f"Not parameters of this space: {sorted(self._unknown)}.")
        for name, times in self._missing.items():
            parts.append(f"{name!r} counts as its middle in {times}, which lack it.")
        return " ".join(parts)
