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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from botorch_structured.models import OldStudiesMean
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief, warn
from botorch_structured.spaces.columns import Constant, is_blank, takes


class OldStudy(NamedTuple):
    """What was evaluated in a study.

    Attributes:
        configs: The configurations.
        values: Their values, larger ones better; None where an evaluation failed.
    """

    configs: list[Mapping[str, Any]]
    values: list[float | None]


_STUDY = "study"  # the column of a table that names the study
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
    matching = _Matching(space)
    found = []
    for study in read_studies(earlier, name, minimize):
        X, Y = matching(study) if isinstance(study, OldStudy) else study
        if len(X) > 1:
            found.append((X, Y))
    if not found:
        raise ValueError(
            "earlier: expected an old study with two or more evaluations of this "
            f"space, got none. {matching.report()}".rstrip()
        )
    if report := matching.report():
        warn(f"Old studies are not all of this space. {report}")
    return found


def learn(space: SearchSpace, earlier: Any) -> OldStudiesMean:
    """What old studies have taught about a space, see `read_earlier`."""
    found = read_earlier(space, earlier)
    if isinstance(found, list):
        return OldStudiesMean.from_studies(found, space)
    assert found is not None
    return found


def read_studies(
    earlier: Any, name: str = "value", minimize: bool = True
) -> list[OldStudy | tuple[Tensor, Tensor]]:
    """Old studies in their own words; those that are points stay so.

    Args:
        earlier: See `Study`, like all others.
        name: As for `read_earlier`.
        minimize: Likewise.
    """
    several = isinstance(earlier, list) and not _is_rows(earlier)
    sign = -1.0 if minimize else 1.0
    every = earlier if several else [earlier]
    return [study for one in every for study in _studies(one, name, sign)]


def _is_rows(several: list[Any]) -> bool:
    return bool(several) and all(
        isinstance(row, Mapping) and not _has_scores(row) for row in several
    )


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
        if path.suffix == ".jsonl":
            yield _of_log(path)
            return
        import pandas as pd  # an extra

        one = pd.read_csv(path)
    if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], Tensor):
        X, Y = one
        yield X, sign * Y.where(Y.isfinite(), -sign * math.inf)
    elif hasattr(one, "trials") and hasattr(one, "objectives"):
        yield _of_trials(
            ((t.config, t.value) for t in one.trials), _first(one.objectives)
        )
    elif hasattr(one, "trials") and hasattr(one, "directions"):
        yield _of_optuna(one)
    elif hasattr(one, "lookup_data") or hasattr(one, "_experiment"):
        yield _of_ax(one)
    elif (table := getattr(one, "cv_results_", one)) is not one or _has_scores(one):
        params, scores = table["params"], table["mean_test_score"]
        yield _of_trials(zip(params, scores, strict=True), 1.0)
    elif hasattr(one, "to_dict") or (isinstance(one, list) and _is_rows(one)):
        yield from _of_table(one, name, sign)
    else:
        raise ValueError(f"earlier: expected {_EXPECTED}, got {brief(one)}.")


def _first(objectives: Mapping[str, str]) -> float:
    """The sign of the first objective."""
    return -1.0 if next(iter(objectives.values())) == "minimize" else 1.0


def _of_trials(pairs: Iterable[tuple[Mapping[str, Any], Any]], sign: float) -> OldStudy:
    found = OldStudy([], [])
    for config, value in pairs:
        number = math.nan if is_blank(value) else float(value)
        found.configs.append(config)
        found.values.append(sign * number if math.isfinite(number) else None)
    return found


def _of_log(path: Path) -> OldStudy:
    """A log of a `Study`; nobody needs to hold it, and its last line may be cut."""
    lines = path.read_bytes().split(b"\n")
    try:
        header = json.loads(lines[0])
        name, sign = next(iter(header["objectives"])), _first(header["objectives"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"earlier: expected the log of a Study, got {path}.") from None
    told = [json.loads(line) for line in lines[1:-1] if line.startswith(b'{"told"')]
    return _of_trials(
        ((entry["told"], (entry["values"] or {}).get(name)) for entry in told), sign
    )


def _of_optuna(study: Any) -> OldStudy:
    """Complete and failed trials; pruned and running ones are no outcomes."""
    sign = -1.0 if study.directions[0].name == "MINIMIZE" else 1.0
    states = {"COMPLETE": True, "FAIL": False}
    pairs = [
        (trial.params, trial.values[0] if states[trial.state.name] else None)
        for trial in study.trials
        if trial.state.name in states
    ]
    return _of_trials(pairs, sign)


def _of_ax(one: Any) -> OldStudy:
    experiment = getattr(one, "_experiment", one)
    objective = experiment.optimization_config.objective
    table = experiment.lookup_data().df
    table = table[table["metric_name"] == objective.metric_names[0]]
    arms = experiment.arms_by_name
    pairs = zip(table["arm_name"], table["mean"], strict=True)
    sign = -1.0 if objective.minimize else 1.0
    return _of_trials(((arms[arm].parameters, y) for arm, y in pairs), sign)


def _has_scores(one: Any) -> bool:
    keys = set(one) if hasattr(one, "keys") else set()
    return {"params", "mean_test_score"} <= keys


def _of_table(table: Any, name: str, sign: float) -> Iterator[OldStudy]:
    rows = table if isinstance(table, list) else table.to_dict("records")
    if not rows or name not in rows[0]:
        columns = list(rows[0]) if rows else []
        raise ValueError(f"earlier: expected a column {name!r}, got {columns}.")
    studies: dict[Any, list[tuple[Mapping[str, Any], Any]]] = {}
    for row in rows:
        config = {k: v for k, v in row.items() if k not in (name, _STUDY)}
        studies.setdefault(row.get(_STUDY), []).append((config, row[name]))
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
        hidden = {n for n in here - given if space._shown(n) is None}
        missing = here - given - {c.name for c in space.constants}
        x = space.impute(x[None])
        if here & refused or hidden or not bool(space.feasible(x)):
            return None
        self._missing.update(space._shown(name) or name for name in missing)
        return x[0]

    def report(self) -> str:
        """How evaluations were matched; empty where all were of this space."""
        parts = []
        if self._left_out:
            parts.append(
                f"{self._left_out} of {self._seen} evaluations are left out, whose "
                f"values this space does not have, such as {brief(self._example)}."
            )
        if self._unknown:
            parts.append(f"Not parameters of this space: {sorted(self._unknown)}.")
        for name, times in self._missing.items():
            parts.append(f"{name!r} counts as its middle in {times}, which lack it.")
        return " ".join(parts)
