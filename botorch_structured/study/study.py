"""`Study`: ask for configurations, tell what they were worth."""

from __future__ import annotations

import logging
import math
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.model import Model
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor
from tqdm import tqdm

from botorch_structured.linalg.blocks import quiet
from botorch_structured.models import OldStudiesMean
from botorch_structured.models.map_fit import seeded
from botorch_structured.spaces.arguments import (
    brief,
    check_count,
    check_function,
    check_number,
    check_seed,
    later_seed,
    warn,
)
from botorch_structured.spaces.search_space import KINDS
from botorch_structured.study.earlier import read_earlier
from botorch_structured.study.inputs import read_csv, read_fixed, read_space
from botorch_structured.study.log import StudyLog, describe, writable
from botorch_structured.study.points import (
    AcquisitionMaker,
    ModelMaker,
    Pending,
    Point,
    Starts,
    answered,
    draw_new,
    suggest_with,
    used_up,
)
from botorch_structured.study.trials import (
    Goals,
    Trial,
    detached,
    read_metadata,
)
from botorch_structured.suggest import Surrogates
from botorch_structured.suggest.suggestion import hold, make_criterion, propose
from botorch_structured.suggest.surrogates import (
    MAX_ROWS,
    TrainingData,
    fit_checked,
    old_studies_predict,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_logger = logging.getLogger("botorch_structured")
# One thread at a time: torch's seed is everybody's, and so is the end of a log.
_LOCK = threading.RLock()
#: Starts on different paths before models are fitted, see `SearchSpace.starts`.
MOST_STARTS = 16


class Study:
    r"""A search that is asked for configurations and told what they were worth.

    Choose it wherever configurations are dictionaries: it keeps the books of a loop
    with `suggest`, and is equal to it point for point. Evaluations may run elsewhere,
    several at a time, fail, or have been made before; with a log, a study survives the
    end of its process.

    The first configurations are starts: one for each value of the decision that is
    always active, if it is the only one. Otherwise one for each path; of more than ten
    paths, five to sixteen that show every value of every decision, if sixteen can.
    Values (or paths) that something is known of count as started. Then come those of
    `suggest`, at first random ones where fewer than two evaluations have worked.
    Configurations that were asked for and not told yet are pending: they are taken into
    account. In an equal loop starts are ``space.starts(kind="inner", seed=seed,
    at_most=16)``, and the suggestion after ``n`` evaluations has the seed ``seed + n``,
    and up to 20 of them no ``start_from``. Above that it is ``fit_surrogates`` of the
    first ``m`` evaluations with the seed ``m``, unless these are all: ``n`` rounded
    down to a multiple of 10, from 400 evaluations on of 20, from 800 on of 40, and so
    on.

    Args:
        space: What to search: a `SearchSpace`, a ConfigSpace ``ConfigurationSpace``, or
            what `SearchSpace.from_dictionaries` takes: a dictionary, or a list of them.
            In a list all have one parameter whose values say which one is meant.
        objectives: ``"minimize"`` or ``"maximize"``: one objective, called ``"value"``;
            ``{name: direction}``: one or several.
        constraints: Bounds on outcomes that are told beside the objectives, as texts:
            ``["memory <= 8.0", "accuracy >= 0.9"]``.
        log: A file to write everything to, one JSON object a line, each on the disk
            before the study goes on; missing folders are made. If it exists, the study
            goes on where it was: configurations that were asked for and not told come
            first. What is given as ``model``, ``acquisition``, ``starts``, ``earlier``
            or ``max_rows`` is not in it: give it again.
        seed: The same seed and the same calls give the same configurations. Default:
            drawn once, see ``.seed``; that of the log, if it exists.
        model: ``(space, X, Y) -> model``: a function that returns a fitted model of
            BoTorch for ``n x d`` points and their ``n x m`` outcomes: objectives,
            larger ones better, then constraints, feasible where at most 0; failures
            have the worst of the others' numbers. Default: the two models of `suggest`;
            with ``acquisition`` the first of them.
        acquisition: ``(model, X, Y, X_pending) -> acquisition function``, maximised
            over all paths for one point at a time; ``X_pending`` is None or ``k x d``.
            Default: that of `suggest`; for a model of your own the logarithm of the
            expected improvement. With several outcomes give both functions or none.
        starts: What the starts hold: ``"inner"`` (the default), ``"random"``,
            ``"spread"``, ``"middle"`` or ``"default"``, see `SearchSpace.starts`. Or
            instead configurations to begin with, or a function of space and seed that
            returns ``n x d`` points: each is asked for, unless it is known itself.
            Paths that have none of these get no start: ``[mine, *Study(space).starts]``
            has both. Beside ``earlier`` those of a function are asked for only where
            old studies mislead, one for each path.
        costs: Whether to maximise the improvement per expected cost, which is learnt
            from ``tell(..., cost=...)``. Costs are recorded in any case.
        earlier: Old studies, from which this one begins. The first configuration suits
            most of them, the second one, too, on another path if there is one. As long
            as old studies do not predict the first five outcomes, starts of the space
            follow. A `Study`, the path of a log or of a CSV table, a data frame, an
            Optuna study, an Ax client or experiment, a fitted search of scikit-learn or
            its ``cv_results_``, ``(X, Y)``, or a list of these. Tables have a column
            with the name of the objective, and ``study`` where there are several.
            Parameters are matched by name; a warning says what does not match. Of the
            outcomes ranks count: scales may differ. Or what
            `OldStudiesMean.from_studies` has learnt. For one objective.
        max_rows: How many evaluations of a path models see, see `suggest`; None: all.

    Raises:
        ValueError: An argument is not what it should be, next to no point of the space
            is feasible, another process works with the log, or it is damaged or of
            another study.

    Example:
        >>> study = Study(space, log="study.jsonl")
        >>> for _ in range(30):
        ...     (config,) = study.ask()
        ...     study.tell(config, evaluate(config))
        >>> study.best
    """

    def __init__(
        self,
        space: Any,
        objectives: Any = "minimize",
        constraints: Iterable[str] | None = None,
        log: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        model: ModelMaker | None = None,
        acquisition: AcquisitionMaker | None = None,
        starts: Starts | None = None,
        costs: bool = False,
        earlier: Any = None,
        max_rows: int | None = MAX_ROWS,
    ) -> None:
        self.space = read_space(space)
        if max_rows is not None:
            check_count("max_rows", max_rows)
        self._max_rows = max_rows
        self._goals = Goals(objectives, constraints)
        self._functions = (model, acquisition)
        for name, made in (("model", model), ("acquisition", acquisition)):
            if made is not None:
                check_function(name, made)
        has_functions = self._functions != (None, None)
        several = len(self._goals.names) > 1 or self._goals.constraints
        if has_functions and several and None in self._functions:
            raise ValueError(
                "model, acquisition: expected both or none with several objectives or "
                f"constraints, got only {'acquisition' if model is None else 'model'}."
            )
        if not isinstance(costs, bool) or (costs and has_functions):
            raise ValueError(
                "costs: expected True or False, and False with a model or an "
                f"acquisition function of your own, got {costs!r}."
            )
        self._costs = costs
        #: The models of the last suggestion: of objectives, constraints, and the cost.
        self.models: list[Model] = []
        self._trials: list[Trial] = []
        self._points: list[Point] = []  # of the trials
        self._known: set[Point] = set()  # those, and what they answered
        self._pending: dict[Point, Pending] = {}
        self._again: list[Point] = []  # those of them that are to be asked for again
        self._latest_request = 0  # how many trials there were then
        self._stops = False
        self._has_dropped = False
        # fits, and of how many trials: the last one, and the one that it starts from
        self._fitted: tuple[int, Surrogates] | None = None
        self._first_fit: tuple[int, Surrogates] | None = None
        if isinstance(starts, str) and starts not in KINDS:
            raise ValueError(
                f"starts: expected one of {list(KINDS)}, configurations or a function, "
                f"got {starts!r}."
            )
        self._starts: Any = "inner" if starts is None else starts
        if not isinstance(self._starts, str) and not callable(starts):
            self._starts = self._encode(starts, "starts")
        elif not callable(starts) and self.space.is_restricted:
            self.space.sample(1, seed=0)  # an error if there is no point
        #: The seed, and those that were made with it.
        self._made_starts: tuple[int | None, list[Point]] = None, []
        if earlier is not None and (has_functions or len(self.objectives) > 1):
            got = "one" if has_functions else list(self.objectives)
            raise ValueError(
                "earlier: expected one objective, and no model or acquisition function "
                f"of your own, got {got}."
            )
        ((name, direction), *_) = self.objectives.items()
        self._earlier = read_earlier(
            self.space,
            earlier,
            name,
            direction == "minimize",
        )
        # beside old studies a function says which start a path has, not when
        self._asks_all = isinstance(self._starts, list) or (
            callable(self._starts) and self._earlier is None
        )
        seed = check_seed(seed)
        drawn = int(torch.randint(2**31, ())) if seed is None else seed
        #: Decides starts and suggestions.
        self.seed = drawn
        self._log: StudyLog | None = None
        if not isinstance(log, (str, os.PathLike, type(None))):
            raise ValueError(f"log: expected a path, got {brief(log)}.")
        if log is not None:
            settings = {
                "space": describe(self.space),
                "objectives": self.objectives,
                "constraints": [str(c) for c in self._goals.constraints],
                "costs": costs,
                "seed": seed,
            }
            opened = StudyLog(log, settings, new_seed=drawn)
            self.seed = opened.seed
            try:
                self._replay(opened)
            except BaseException:
                opened.close()
                raise
            self._log = opened

    def __repr__(self) -> str:
        parts = [f"{len(self._trials)} trials", f"{len(self._pending)} pending"]
        if incumbent := self._incumbent():
            parts.append(incumbent)
        return f"Study({', '.join([*self._goals.names, *parts])})"

    @property
    def objectives(self) -> dict[str, str]:
        """``{name: direction}``."""
        return dict(self._goals.objectives)

    @property
    def trials(self) -> list[Trial]:
        """All trials in the order told. They are copies."""
        return [trial.copy() for trial in self._trials]

    @property
    def starts(self) -> list[dict[str, Any]]:
        """The configurations to begin with, those that are known by now, too.

        With old studies: those that suit most of them. The second one is on another
        path than the first, so that outcomes show whether old studies mislead.
        """
        return [*map(detached, self._decode(self._all_starts()))]

    @property
    def pending(self) -> list[dict[str, Any]]:
        """The configurations that were asked for and not told yet."""
        return [detached(request.config) for request in [*self._pending.values()]]

    @property
    def model(self) -> Model | None:
        """The first of the models that were fitted last, see ``.models``; or None."""
        return self.models[0] if self.models else None

    @property
    def best(self) -> tuple[dict[str, Any], float]:
        """The best feasible configuration and its value; the first of several.

        Raises:
            ValueError: There are several objectives, or no feasible value yet.
        """
        if len(self.objectives) > 1:
            raise ValueError(
                "objectives: expected one, got "
                f"{list(self.objectives)}: .pareto has the best configurations."
            )
        good = self._good()
        trial = good[int(self._goals.train_Y(good).argmax())]
        assert trial.value is not None
        return detached(trial.config), trial.value

    @property
    def pareto(self) -> list[tuple[dict[str, Any], dict[str, float]]]:
        """Feasible configurations that no other one dominates.

        That is, none is as good in all objectives and better in one. Each with its
        values, in the order in which they were told; of those with equal values the
        first.
        """
        good = self._goals.feasible(self._trials)
        return [(detached(t.config), dict(t.values)) for t in self._front(good)]

    def ask(
        self,
        q: int = 1,
        pending: Iterable[Mapping[str, Any]] = (),
        fixed: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Configurations to evaluate next; they are pending until they are told.

        Args:
            q: How many.
            pending: Further configurations that are being evaluated, which the study
                was not asked for.
            fixed: ``{name: value}`` of parameters to hold: each configuration that has
                the parameter has this value, of a constant its own. Some configuration
                has to have it.

        Returns:
            ``q`` dictionaries of the active parameters.

        Raises:
            ValueError: An argument is not what it should be.
            CandidateGenerationError: Fewer than ``q`` points of the space (with the
                values that are held) are new.
        """
        q = check_count("q", q)
        with _LOCK:
            elsewhere = self._encode(pending, "pending")
            fixed_features = {} if fixed is None else read_fixed(self.space, fixed)
            again = [
                x for x in self._again if self._with_fixed([x], fixed_features) == [x]
            ][:q]
            new = self._next(q - len(again), elsewhere, fixed_features)
            if len(again) + len(new) < q:
                raise used_up(q, fixed)
            if new and self._log is not None:
                self._log.append({"asked": [*map(writable, new.values())]})
            self._add_pending(new)
            self._again = [x for x in self._again if x not in again]
            return [detached(self._pending[x].config) for x in (*again, *new)]

    def tell(
        self,
        config: Mapping[str, Any],
        value: Any,
        cost: float | None = None,
        error: str | None = None,
        sem: Any = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Record what an evaluation gave.

        Args:
            config: The active parameters. They need not come from `ask`: this is the
                way to begin with evaluations that exist. Told twice, both are kept:
                outcomes may be noisy. Rounded numbers answer a pending one, too: the
                nearest one with the same choices, if no number is more than 10 % of its
                range off; what is told is kept. After 50 trials that were asked for
                later one is pending no more; the first time there is a warning.
            value: A number, ``{name: number}`` of all objectives and constrained
                outcomes, or None if the evaluation failed.
            cost: What it cost, such as seconds.
            error: What went wrong, for the records.
            sem: The standard error of the value, positive, or ``{name: number}`` of all
                objectives. Where all evaluations with a value have one, these are the
                noise of the objectives; otherwise it is estimated. A model of your own
                does not see them.
            metadata: ``{name: anything that JSON has}``: what else is to be kept with
                the trial, such as a score on test data. Nothing depends on it.

        Raises:
            ValueError: This is not a configuration of the space, or not its outcome.
        """
        if isinstance(config, (list, tuple)):
            raise ValueError(
                "config: expected one configuration, got several, as ask returns them: "
                f"{brief(config)}. Tell them one by one, or use tell_many."
            )
        self.tell_many(
            [config],
            [value],
            [cost],
            [error],
            [sem],
            [metadata],
        )

    def tell_many(
        self,
        configs: Sequence[Mapping[str, Any]],
        values: Sequence[Any],
        costs: Sequence[float | None] | None = None,
        errors: Sequence[str | None] | None = None,
        sems: Sequence[Any] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """`tell` for several evaluations at once, which is faster.

        Args:
            configs: The configurations.
            values: The value of each.
            costs: The cost of each.
            errors: What went wrong with each.
            sems: The standard error of each.
            metadata: What else is to be kept of each.

        Raises:
            ValueError: As in `tell`; then none of them is recorded.
        """
        if isinstance(configs, (str, Mapping)) or not isinstance(configs, Sequence):
            raise ValueError(f"configs: expected a list, got {brief(configs)}.")
        n = len(configs)
        arguments: dict[str, Any] = {
            "values": values,
            "costs": costs,
            "errors": errors,
            "sems": sems,
            "metadata": metadata,
        }
        columns = []
        for name, column in arguments.items():
            column = [None] * n if column is None and name != "values" else column
            try:
                size = len(column)
            except TypeError:
                size = None
            if size != n:
                raise ValueError(
                    f"{name}: expected {n}, one for each configuration, got "
                    f"{brief(column)}."
                )
            columns.append(column)
        with _LOCK:
            points = self._encode(configs, "config")
            rows = [self._read(*row) for row in zip(*columns, strict=True)]
            native = [
                self._pending[x].config if x in self._pending else config
                for x, config in zip(points, self._decode(points), strict=True)
            ]
            if self._log is not None:
                entries = []
                for config, row in zip(native, rows, strict=True):
                    told = {k: v for k, v in row.items() if v != {}}
                    entries.append({"told": writable(config), "values": None} | told)
                self._log.append(*entries)
            for x, config, row in zip(points, native, rows, strict=True):
                self._record(x, config, row)

    def optimize(
        self,
        evaluate: Callable[[dict[str, Any]], Any],
        num_evaluations: int,
        catch: type[Exception] | tuple[type[Exception], ...] = (),
        progress: bool | str = True,
        timeout: float | None = None,
        callbacks: Iterable[Callable[[Study, Trial], Any]] = (),
    ) -> None:
        """Ask, evaluate, tell, one after the other; costs are seconds.

        It ends early, with a word from the logger ``"botorch_structured"``, if every
        configuration was evaluated. Stopped by an exception or by hand, it begins with
        the same configuration when it is called again. With a log, give what is missing
        as ``num_evaluations``: ``50 - len(study.trials)``.

        Args:
            evaluate: A function of a configuration that returns a number, or
                ``{name: number}``, as for `tell`.
            num_evaluations: How many evaluations, after those that were told already.
            catch: Exceptions by which ``evaluate`` says that an evaluation failed. If
                there are any, NaN and all else that is no value are failures, too; None
                once an evaluation has given a value: before that it is an error.
            progress: Whether to show a progress bar; a text is shown in front of it.
                Trials are reported to the logger: failures as warnings, others as
                information.
            timeout: Seconds after which no evaluation begins. Default: no limit.
            callbacks: Functions that are called with the study and the trial after each
                evaluation. They may call `stop`.

        Raises:
            ValueError: An argument, or what ``evaluate`` returned, is not what it
                should be; the latter names the trial.
        """
        hooks = [*callbacks] if isinstance(callbacks, Iterable) else [callbacks]
        check_function("evaluate", evaluate)
        for hook in hooks:
            check_function("callbacks", hook)
        total = check_count("num_evaluations", num_evaluations, least=0)
        kinds = catch if isinstance(catch, tuple) else (catch,)
        if not all(isinstance(k, type) and issubclass(k, Exception) for k in kinds):
            raise ValueError(f"catch: expected an exception or a tuple, got {catch!r}.")
        limit = math.inf if timeout is None else check_number("timeout", timeout)
        started = time.monotonic()
        self._stops = False
        with tqdm(
            total=total + len(self._trials),
            initial=len(self._trials),
            desc=progress if isinstance(progress, str) else None,
            disable=not progress,
            unit="eval",
        ) as bar:
            bar.set_postfix_str(self._incumbent())  # that of a log
            for _ in range(total):
                if self._stops or time.monotonic() - started >= limit:
                    why = "stop() was called" if self._stops else "its time is over"
                    _logger.info("optimize ends with %s: %s.", self, why)
                    break
                try:
                    (config,) = self.ask()
                except CandidateGenerationError as error:
                    bar.clear()
                    _logger.warning("optimize ends with %s: %s", self, error)
                    break
                try:
                    trial = self._evaluate(evaluate, config, kinds)
                except BaseException:
                    (x,) = self._encode([config], "config")
                    if x in self._pending:  # it may have come while it was told
                        self._again.insert(0, x)
                    raise
                level = logging.INFO if trial.values else logging.WARNING
                if _logger.isEnabledFor(level):
                    bar.clear()
                    _logger.log(level, "%s", trial)
                bar.set_postfix_str(self._incumbent(), refresh=False)
                bar.update()
                for hook in hooks:
                    hook(self, trial)

    def stop(self) -> None:
        """End `optimize` after the evaluation that is running.

        For callbacks, the function that is evaluated, and other threads. It has no
        effect on a later call of `optimize`.
        """
        self._stops = True

    def _incumbent(self) -> str:
        """The best value so far in words."""
        if not (good := self._goals.feasible(self._trials)):
            return ""
        if len(self.objectives) > 1:
            return f"{len(self._front(good))} on the Pareto front"
        return f"best {next(iter(self.objectives))} {self.best[1]:.4g}"

    def _evaluate(
        self,
        evaluate: Callable[[dict[str, Any]], Any],
        config: dict[str, Any],
        catch: tuple[type[Exception], ...],
    ) -> Trial:
        started = time.perf_counter()
        value = None
        error = None
        try:
            value = evaluate(detached(config))
        except catch as reason:
            error = f"{type(reason).__name__}: {reason}"
        else:
            name = f"evaluate(config) of trial {len(self._trials)}"
            try:
                value = self._goals.read(value, name)
            except ValueError as reason:
                returns = value is not None or any(t.values for t in self._trials)
                if not (catch and returns):
                    raise
                value = None
                error = str(reason)
        # no clock is fine enough for an evaluation that takes no time
        seconds = max(time.perf_counter() - started, 1e-9)
        with _LOCK:
            self.tell(config, value, cost=seconds, error=error)
            return self._trials[-1].copy()

    def trials_frame(self) -> pd.DataFrame:
        """The trials as a table of pandas, a row for each.

        Columns are ``number``, ``config_...`` for each parameter (NaN where it is
        inactive), ``values_...`` for each outcome (NaN where the evaluation failed),
        ``cost``, ``error``, ``state``, and ``sem_...`` and ``metadata_...`` where they
        were told.

        Raises:
            ImportError: Without pandas.
        """
        import pandas as pd  # an extra

        rows = [{**vars(trial.copy()), "state": trial.state} for trial in self._trials]
        return pd.json_normalize(rows, sep="_", max_level=1)

    def read_csv(self, path: str | os.PathLike[str]) -> None:
        """Tell the rows of a table, for evaluations that were made before.

        Args:
            path: A file whose first line has the names of parameters, objectives,
                constrained outcomes, and ``cost`` if there is one. Cells of inactive
                parameters and outcomes of failed evaluations are empty, NaN or NA.

        Raises:
            ValueError: A row is not an evaluation in this space; the message names the
                line, and nothing is recorded. Or a column could be two things, as a
                parameter has the name of an outcome, or is called ``cost``.
        """

        def check(config: Mapping[str, str], value: Any, cost: Any) -> None:
            self._read(value, cost)
            self._encode([config], "parameters")

        self.tell_many(*read_csv(path, self.space, self._goals.names, check))

    def plot(self) -> Figure:
        """The best value so far, and evaluations and the best of each path.

        With several objectives: all outcomes and the Pareto front. In a notebook the
        figure is shown; ``study.plot().savefig("study.png")`` saves it.

        Raises:
            ValueError: Nothing was told yet.
            ImportError: Without matplotlib.
        """
        # matplotlib is an extra, and its import takes a second
        from botorch_structured.study.figure import draw_front, draw_study

        good = self._good(least=0)
        if len(self.objectives) > 1:
            front = self._front(good)
            return draw_front([*self.objectives], self._trials, good, front)
        ((name, direction),) = self.objectives.items()
        X = self._tensor(self._points)
        values = X.new_full((len(X),), math.nan)
        for trial in good:
            values[trial.number] = trial.values[name]
        return draw_study(self.space, X, values, name, direction == "minimize")

    def explain(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Why this configuration, or why not: what the models of `suggest` believe.

        Args:
            config: The active parameters.

        Returns:
            ``"mean"`` and ``"deviation"``: ``{objective: number}`` that are predicted
            for the configuration. ``"paths"``: dictionaries, those with the largest
            share first: the ``"path"``, how many ``"trials"`` it has, their ``"best"``
            value, the best ``"mean"`` that is predicted on it and its ``"deviation"``
            (these three of the first objective), and its ``"share"`` of the criterion:
            of its largest value on each path, among a thousand random points and more.
            With old studies, ``"earlier"``: the weight of the model that knows them,
            from 0 (they mislead) to 1.

        Raises:
            ValueError: It is no configuration of the space, the study has a model or an
                acquisition function of its own, or no values yet.
        """
        from botorch_structured.study.figure import believed

        (x,) = self._encode([config], "config")
        if self._functions != (None, None):
            raise ValueError("model: expected the default one, got one of your own.")
        if not any(trial.values for trial in self._trials):
            raise ValueError("trials: expected at least one with a value, got none.")
        data = self._data(len(self._trials))
        fitted = self._fit()
        points = torch.cat([data.X, self._tensor([p for p in self._pending if p != x])])
        criterion, _ = make_criterion(
            self.space, fitted, points, len(data.X), train_C=data.C
        )
        beliefs = believed(
            self.space,
            self.objectives,
            fitted.objectives,
            criterion,
            self._tensor([x]),
            data.X,
            self._trials,
        )
        if self._earlier is not None:
            beliefs["earlier"] = float(fitted.objectives[0].weights[-1])
        return beliefs

    def close(self) -> None:
        """Let go of the log: what is told from now on is in memory only."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def __getstate__(self) -> dict[str, Any]:
        if self._log is not None:
            raise pickle.PicklingError(
                "log: expected a study without one to copy, got one that writes to "
                f"{self._log.path}: close it, or give that path to a new Study."
            )
        return self.__dict__

    def _add_pending(self, new: Mapping[Point, dict[str, Any]]) -> None:
        n = len(self._trials)
        self._latest_request = n
        for x, config in new.items():
            self._pending.setdefault(x, Pending(config, n))

    def _record(self, x: Point, config: dict[str, Any], row: dict[str, Any]) -> None:
        answer = answered(self.space, x, list(self._pending))
        request = self._pending.pop(answer, None)
        # a configuration nobody asked for is dated like the latest request
        asked_at = self._latest_request if request is None else request.since
        self._known |= {x, answer}
        self._points.append(x)
        self._trials.append(Trial(len(self._trials), config, **row))
        for other in self._pending.values():
            other.overtaken += other.since < asked_at
        # its answer does not come if that of 50 later requests did
        lost = [p for p, other in self._pending.items() if other.overtaken >= 50]
        configs = [self._pending.pop(p).config for p in lost]
        self._again = [p for p in self._again if p in self._pending]
        if configs and not self._has_dropped:
            self._has_dropped = True
            warn(
                f"Of what was asked for, {configs[0]} is pending no more: many that "
                "were asked for after it were told. Tell configurations as ask returns "
                "them, and failures with None. This is said once."
            )

    def _replay(self, log: StudyLog) -> None:
        """Bring the study to where its log ends."""
        for line, entry in log.entries:
            try:
                if "asked" in entry:
                    points = self._encode(entry["asked"], "asked")
                    # one that was stopped by hand when it was written was asked again
                    configs = self._decode(points)
                    self._add_pending(dict(zip(points, configs, strict=True)))
                    continue
                (x,) = self._encode([entry["told"]], "told")
                names = ("values", "cost", "error", "sem", "metadata")
                row = self._read(*map(entry.get, names))
            except ValueError as error:
                raise ValueError(f"{log.where(line)}: {error}") from None
            (config,) = self._decode([x])
            self._record(x, config, row)
        self._again = list(self._pending)

    def _read(
        self,
        value: Any,
        cost: Any = None,
        error: Any = None,
        sem: Any = None,
        metadata: Any = None,
    ) -> dict[str, Any]:
        """The further attributes of a `Trial`, checked."""
        values = self._goals.read(value)
        if cost is not None and (cost := check_number("cost", cost)) <= 0.0:
            raise ValueError(f"cost: expected a positive number, got {cost!r}.")
        if error is not None and (values or not isinstance(error, str)):
            raise ValueError(
                f"error: expected a text beside the value None, got {brief(error)}."
            )
        return {
            "values": values,
            "cost": cost,
            "error": error,
            "sem": self._goals.read_sem(sem, bool(values)),
            "metadata": read_metadata(metadata),
        }

    def _good(self, least: int = 1) -> list[Trial]:
        """The feasible ones of at least one trial, at least so many."""
        if not self._trials:
            raise ValueError(
                "trials: expected at least one, got none yet: ask for a configuration, "
                "and tell its value, first."
            )
        good = self._goals.feasible(self._trials)
        if len(good) < least:
            rules = " and ".join(map(str, self._goals.constraints))
            raise ValueError(
                f"trials: expected at least one with a value{rules and f' and {rules}'}"
                f", got none among {len(self._trials)}."
            )
        return good

    def _front(self, good: Sequence[Trial]) -> list[Trial]:
        if not good:
            return []
        best = is_non_dominated(self._goals.train_Y(good)).tolist()
        return [t for t, is_best in zip(good, best, strict=True) if is_best]

    def _encode(self, configs: Any, name: str) -> list[Point]:
        """Configurations as points of the space."""
        if isinstance(configs, (str, Mapping)) or not isinstance(configs, Iterable):
            raise ValueError(f"{name}: expected configurations, got {brief(configs)}.")
        if not (configs := list(configs)):
            return []
        try:
            X = self.space.encode(configs)
        except ValueError as error:
            message = str(error).removeprefix("configs: ")
            raise ValueError(f"{name}: {message}") from None
        if self.space.is_restricted and not (good := self.space.feasible(X)).all():
            raise ValueError(
                f"{name}: expected a configuration that the space does not forbid, got "
                f"{configs[int((~good).nonzero()[0])]}."
            )
        return [tuple(x) for x in X.tolist()]

    def _decode(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        return self.space.decode(self._tensor(points)) if points else []

    def _tensor(self, points: Sequence[Point]) -> Tensor:
        return torch.tensor(points, dtype=torch.double).reshape(-1, self.space.dim)

    def _paths(self, points: Sequence[Point]) -> list[int]:
        """A number for the path of each point, the same for the same path."""
        return self.space.tree.path_key(self._tensor(points)).tolist()

    def _branches(self, points: Sequence[Point]) -> Sequence[float]:
        """The value of the top decision of each point, or else its path."""
        top = self.space.tree.top_decision
        if top not in self.space.tree.decisions_by_value:
            return self._paths(points)
        return [point[top] for point in points]

    def _next(
        self,
        q: int,
        elsewhere: Sequence[Point],
        fixed_features: Mapping[int, float],
    ) -> dict[Point, dict[str, Any]]:
        """New points and their configurations; fewer where the space is used up.

        Starts come first, then suggestions.
        """
        if not q:
            return {}
        busy = list(dict.fromkeys([*self._pending, *elsewhere]))
        starts = self._with_fixed(self._next_starts(busy), fixed_features)
        new = dict(islice(self._new(starts, elsewhere).items(), q))
        busy += new
        while (missing := q - len(new)) > 0:
            try:
                points = self._choose(missing, busy, fixed_features)
            except CandidateGenerationError:
                points = self._draw(missing, busy, fixed_features)
                if len(points) == missing:
                    raise
            for x, config in self._new(points, elsewhere).items():
                new.setdefault(x, config)
            busy += points
            if len(points) < missing:
                break
        return new

    def _new(
        self, points: Sequence[Point], elsewhere: Sequence[Point]
    ) -> dict[Point, dict[str, Any]]:
        """Points of configurations that nobody has, and these.

        Where dictionaries overlap, several points have one configuration: that of
        `encode` counts.
        """
        configs = self._decode(points)
        pairs = zip(self._encode(configs, "config"), configs, strict=True)
        taken = {*self._known, *self._pending, *elsewhere}
        return {x: config for x, config in pairs if x not in taken}

    def _with_fixed(
        self, points: list[Point], fixed_features: Mapping[int, float]
    ) -> list[Point]:
        """Points with some columns fixed, without those of paths with other values."""
        if not (fixed_features and points):
            return points
        X, _ = hold(self.space, self._tensor(points), fixed_features)
        return [tuple(x) for x in X.tolist()]

    def _draw(
        self, q: int, busy: Sequence[Point], fixed_features: Mapping[int, float]
    ) -> list[Point]:
        taken = {*self._points, *busy}
        seed = later_seed(self.seed, len(self._trials))
        return draw_new(self.space, q, taken, fixed_features, seed)

    def _all_starts(self) -> list[Point]:
        """The starts; with earlier studies those that suit most of these come first."""
        starts = self._own_starts()
        if self._asks_all or (old := self.earlier) is None:
            return starts
        configs = self.space.decode(old.starts(old.num_starts))
        first, *others = self._encode(configs, "starts")
        path = self._paths([first])
        elsewhere = (x for x in (*others, *starts) if self._paths([x]) != path)
        return [*dict.fromkeys((first, *islice(elsewhere, 1), *others))]

    def _own_starts(self) -> list[Point]:
        """The starts as if there were no earlier studies."""
        if isinstance(self._starts, list):
            return self._starts
        if self._made_starts[0] == self.seed:
            return self._made_starts[1]
        if callable(self._starts):
            X = self._starts(self.space, self.seed)
        else:
            X = self.space.starts(
                kind=self._starts, seed=self.seed, at_most=MOST_STARTS
            )
        try:
            points = self._encode(self.space.decode(X), "starts")
        except ValueError as error:
            raise ValueError(f"starts: {error}") from None
        self._made_starts = self.seed, points
        return points

    @property
    def earlier(self) -> OldStudiesMean | None:
        """Earlier studies as they are learnt from, when they are first needed."""
        with _LOCK:
            if isinstance(self._earlier, list):
                learnt = OldStudiesMean.from_studies(self._earlier, self.space)
                self._earlier = learnt
            return self._earlier

    def _next_starts(self, busy: Sequence[Point]) -> list[Point]:
        """The starts that nothing is known of, nor, by default, of their paths.

        With earlier studies: what suits most of them, until something has worked on two
        paths, then those of the space, unless old studies have predicted outcomes.
        """
        points = [*self._points, *busy]
        if self._asks_all:
            return self._own_starts()
        old = self.earlier
        if old is not None and not any(trial.values for trial in self._trials):
            return self._all_starts()
        branches = set(self._branches(points))
        starts = self._own_starts()
        most = MOST_STARTS if callable(self._starts) else len(starts)
        if old is not None:
            X, Y, C, _, Yvar = self._data(len(self._trials))
            if len(points) < 2:
                starts = [*self._all_starts()[:2], *starts]
            elif old_studies_predict(old, X, Y, C, Yvar):
                return []
        new: dict[float, Point] = {}
        for start, branch in zip(starts, self._branches(starts), strict=True):
            if branch not in branches:
                new.setdefault(branch, start)
        return [*new.values()][: max(most - len(branches), 0)]

    def _choose(
        self, q: int, busy: Sequence[Point], fixed_features: Mapping[int, float]
    ) -> list[Point]:
        """Points after the starts."""
        n = len(self._trials)
        data = self._data(n)
        succeeded = int(data.Y.isfinite().all(-1).sum())
        if succeeded < (2 if self.earlier is None else 1):
            return self._draw(q, busy, fixed_features)
        X_pending = self._tensor(busy)
        seed = later_seed(self.seed, n)
        if self._functions != (None, None):
            X, model = suggest_with(
                self.space,
                data.X,
                torch.cat([data.Y, self._goals.train_C(self._trials)], -1),
                *self._functions,
                q=q,
                X_pending=X_pending,
                seed=seed,
                fixed_features=fixed_features,
            )
            self.models = [model]
        else:
            fitted = self._fit()
            with seeded(seed, data.X.device), quiet():
                X = propose(
                    self.space,
                    data,
                    fitted,
                    q,
                    X_pending,
                    fixed_features=fixed_features,
                )
            mixtures = [*fitted.objectives, *fitted.constraints]
            self.models = [model for mixture in mixtures for model in mixture.models]
            if fitted.cost is not None:
                self.models.append(fitted.cost)
        return [tuple(x) for x in X.tolist()]

    def _data(self, n: int) -> TrainingData:
        """The first ``n`` trials as models see them."""
        trials = self._trials[:n]
        goals = self._goals
        costs = [[math.nan if t.cost is None else t.cost] for t in trials]
        return TrainingData(
            self._tensor(self._points[:n]),
            goals.train_Y(trials),
            goals.train_C(trials) if goals.constraints else None,
            torch.tensor(costs).double() if self._costs else None,
            goals.train_Yvar(trials),
        )

    def _fit(self) -> Surrogates:
        """The models of all trials; their fit starts from that of the first ones.

        It depends on nothing else, so that a study that is opened again, and one that
        is told in another order, have the same one.
        """
        n = len(self._trials)
        if self._fitted is not None and self._fitted[0] == n:
            return self._fitted[1]
        # to how many trials the fit is made that others start from
        first = 0
        if n > 20:
            step = 10 * 2 ** max(0, int(math.log2(n / 200)))
            first = n // step * step
        if self._first_fit is None or self._first_fit[0] != first:
            self._first_fit = None
            if any(trial.values for trial in self._trials[:first]):
                self._first_fit = first, self._fit_to(first, seed=first)
        start = None if self._first_fit is None else self._first_fit[1]
        if start is None or first != n:
            start = self._fit_to(n, later_seed(self.seed, n), start)
        self._fitted = n, start
        return start

    def _fit_to(
        self, n: int, seed: int, start_from: Surrogates | None = None
    ) -> Surrogates:
        """Models fitted to the first ``n`` trials."""
        data = self._data(n)
        with seeded(seed, data.X.device), quiet(), warnings.catch_warnings():
            # outcomes that are all alike are nobody's mistake
            warnings.simplefilter("ignore", InputDataWarning)
            return fit_checked(
                self.space,
                data,
                start_from,
                self.earlier,
                self._max_rows,
            )
