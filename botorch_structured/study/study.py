"""`Study`: ask for configurations, tell what they were worth."""

from __future__ import annotations

__all__ = ["Study"]

import logging
import math
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from botorch.exceptions.errors import CandidateGenerationError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.model import Model
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor
from tqdm import tqdm

from botorch_structured.models import OldStudiesMean
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import (
    brief,
    check_count,
    check_number,
    check_seed,
    later_seed,
    warn,
)
from botorch_structured.spaces.search_space import KINDS
from botorch_structured.study.earlier import read_earlier
from botorch_structured.study.given import read_csv, read_fixed, read_space
from botorch_structured.study.log import StudyLog, describe, writable
from botorch_structured.study.points import (
    AcquisitionMaker,
    ModelMaker,
    Point,
    answered,
    draw_new,
    suggest_with,
    used_up,
)
from botorch_structured.study.trials import (
    Goals,
    NotFinite,
    Trial,
    detached,
    read_metadata,
)
from botorch_structured.suggest import Surrogates, fit_surrogates, suggest
from botorch_structured.suggest.suggestion import hold, make_criterion
from botorch_structured.suggest.surrogates import old_studies_predict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Starts = str | Sequence[Mapping[str, Any]] | Callable[[SearchSpace, int], Tensor]

_logger = logging.getLogger("botorch_structured")
# One thread at a time: torch's seed is everybody's, and so is the end of a log.
_LOCK = threading.RLock()
# What is told of an evaluation; a log has those at the end where they were told.
_TOLD = ("values", "cost", "error", "sem", "metadata")

#: Starts on different paths before models are fitted, see `SearchSpace.starts`.
MOST_STARTS = 16
# Fits start from the one before above so many evaluations, where that saves a third of
# the time or more; and from nothing at every tenth, so that a study that is opened
# again has at most nine fits to repeat.
_WARM_ABOVE = 100
# So many trials that were asked for after a pending one: its answer does not come.
_OVERTAKEN = 50
_COLD_EVERY = 10


class _Pending(NamedTuple):
    """What was asked for and not told yet.

    Attributes:
        point: The point that was suggested.
        config: Its configuration, of which `encode` makes the key of this: a point that
            may be off by rounding on a logarithmic scale.
        since: How many trials there were then.
    """

    point: Point
    config: dict[str, Any]
    since: int


class Study:
    r"""A search that is asked for configurations and told what they were worth.

    Choose it wherever configurations are dictionaries: it keeps the books of a loop
    with `suggest`, and is equal to it point for point. Evaluations may run elsewhere,
    several at a time, fail, or have been made before; with a log, a study survives the
    end of its process.

    The first configurations are starts: one for each path of the space; of more than
    ten paths, five to sixteen that show every value of every decision, if sixteen can.
    Paths that something is known of count as started. Then come those of `suggest`, at
    first random ones where fewer than two evaluations have worked. Configurations that
    were asked for and not told yet are pending: they are taken into account. In an
    equal loop starts are ``space.starts(seed=seed, at_most=16)``, and the suggestion
    after ``n`` evaluations has the seed ``seed + n``, and up to 100 of them no
    ``start_from``; from then on each fit starts from the one before it, except for the
    first one of every ten evaluations (``n // 10``).

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
            first. What is given as ``model``, ``acquisition``, ``starts`` or
            ``earlier`` is not in it: give it again.
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
        starts: Which start each path has: ``"random"`` (the default), ``"spread"``,
            ``"middle"`` or ``"default"``, see `SearchSpace.starts`. Or instead
            configurations to begin with, or a function ``(space, seed) -> n x d``
            points: each is asked for, unless it is known itself. Paths that have none
            of these get no start: ``[mine, *Study(space).starts]`` has both. Beside
            ``earlier`` those of a function are asked for only where old studies
            mislead, one for each path.
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

    Raises:
        ValueError: An argument is not what it should be, another process works with the
            log, or it is damaged or of another study.

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
    ) -> None:
        self.space = read_space(space)
        self._goals = Goals(objectives, constraints)
        self._functions = (model, acquisition)
        for name, made in (("model", model), ("acquisition", acquisition)):
            if made is not None and not callable(made):
                raise ValueError(f"{name}: expected a function, got {brief(made)}.")
        own = [made for made in self._functions if made is not None]
        if len(own) == 1 and (len(self._goals.names) > 1 or self._goals.constraints):
            raise ValueError(
                "model, acquisition: expected both or none with several objectives or "
                f"constraints, got only {'acquisition' if model is None else 'model'}."
            )
        if not isinstance(costs, bool) or (costs and own):
            raise ValueError(
                "costs: expected True or False, and False with a model or an "
                f"acquisition function of your own, got {costs!r}."
            )
        self._costs = costs
        #: The models of the last suggestion: of objectives, constraints, and the cost.
        self.models: list[Model] = []
        self._trials: list[Trial] = []
        self._points: list[Point] = []  # of the trials
        self._told: dict[Point, int] = {}  # what `encode` makes of them -> number
        self._pending: dict[Point, _Pending] = {}
        self._again: list[Point] = []  # keys of these that are to be asked for again
        self._answers: list[int] = []  # of each trial: how many there were when asked
        self._stops = self._has_dropped = False
        self._fitted: dict[int, Surrogates | None] = {}  # by number of trials
        self._starts: list[Point] | None = None
        self._kind = starts if isinstance(starts, str) else "random"
        if self._kind not in KINDS:
            raise ValueError(
                f"starts: expected one of {list(KINDS)}, configurations or a function, "
                f"got {starts!r}."
            )
        self._make_starts = None if isinstance(starts, str) else starts
        if self._make_starts is not None and not callable(starts):
            self._starts = self._encode(starts, "starts")
        if earlier is not None and (own or len(self.objectives) > 1):
            raise ValueError(
                "earlier: expected one objective, and no model or acquisition function "
                f"of your own, got {list(self.objectives) if not own else 'one'}."
            )
        ((name, direction), *_) = self.objectives.items()
        self._earlier = read_earlier(self.space, earlier, name, direction == "minimize")
        # beside old studies a function says which start a path has, not when
        merged = callable(starts) and self._earlier is not None
        self._asks_all = self._make_starts is not None and not merged
        seed = check_seed(seed)
        drawn = int(torch.randint(2**31, ())) if seed is None else seed
        #: Decides starts and suggestions.
        self.seed: int = drawn
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
        """What was told, in this order; copies, of which changes change nothing."""
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
        return [detached(asked.config) for asked in [*self._pending.values()]]

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
        front = self._front(self._goals.feasible(self._trials))
        return [(detached(t.config), dict(t.values)) for t in front]

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
            held = {} if fixed is None else read_fixed(self.space, fixed)
            again = [k for k in self._again if self._held([k], held) == [k]][:q]
            new = self._next(q - len(again), elsewhere, held)
            if len(again) + len(new) < q:
                raise used_up(self.space, q, fixed)
            if new and self._log is not None:
                asked = [writable(asked.config) for asked in new.values()]
                points = [asked.point for asked in new.values()]
                fitted = len(self._trials) in self._fitted
                self._log.append({"asked": asked, "x": points, "fitted": fitted})
            self._pending |= new
            self._again = [key for key in self._again if key not in again]
            return [detached(self._pending[key].config) for key in (*again, *new)]

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
                outcomes may be noisy. Rounded numbers, up to 1 % of their ranges off,
                answer a pending one, too; what is told is kept. One that answers
                nothing takes the nearest one with its choices from the pending ones, if
                no number of it is more than 10 % off. So do 50 trials that were asked
                for after one. The first time there is a warning.
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
        self.tell_many([config], [value], [cost], [error], [sem], [metadata])

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
        further = {"costs": costs, "errors": errors, "sems": sems, "metadata": metadata}
        nothing = [None] * len(configs)
        columns: dict[str, Sequence[Any]] = {"values": values}
        columns |= {k: nothing if v is None else v for k, v in further.items()}
        for name, given in columns.items():
            try:
                got = str(len(given))
            except TypeError:
                got = brief(given)
            if got != str(len(configs)):
                raise ValueError(
                    f"{name}: expected {len(configs)}, one for each configuration, "
                    f"got {got}."
                )
        with _LOCK:
            keys = self._encode(configs, "config")
            told = [self._read(*row) for row in zip(*columns.values(), strict=True)]
            native = self._decode([self._point(key) for key in keys])
            if self._log is not None:
                entries = [
                    {"told": writable(config), "values": None}
                    | {k: v for k, v in row.items() if v != {}}
                    for config, row in zip(native, told, strict=True)
                ]
                self._log.append(*entries)
            for key, config, row in zip(keys, native, told, strict=True):
                self._record(key, config, row)

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
                there are any, NaN and infinite values are failures, too; and so is all
                else that is no value, None included, once an evaluation has given one:
                before that, a function that returns nothing is an error.
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
        hooks = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        for name, functions in (("evaluate", [evaluate]), ("callbacks", hooks)):
            for function in functions:
                if not callable(function):
                    raise ValueError(
                        f"{name}: expected a function, got {brief(function)}."
                    )
        total = check_count("num_evaluations", num_evaluations, least=0)
        kinds = catch if isinstance(catch, tuple) else (catch,)
        if not all(isinstance(k, type) and issubclass(k, Exception) for k in kinds):
            raise ValueError(f"catch: expected an exception or a tuple, got {catch!r}.")
        limit = math.inf if timeout is None else check_number("timeout", timeout)
        started, self._stops = time.monotonic(), False
        with tqdm(
            total=total + len(self._trials),
            initial=len(self._trials),
            desc=progress if isinstance(progress, str) else None,
            disable=not progress,
            unit="eval",
            bar_format="{desc}{percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} "
            "[{elapsed}<{remaining}{postfix}]",
        ) as bar:
            bar.set_postfix_str(self._incumbent())
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
                    (key,) = self._encode([config], "config")
                    if key in self._pending:  # it may have come while it was told
                        self._again.insert(0, key)
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
        started, error = time.perf_counter(), None
        try:
            value = evaluate(detached(config))
        except catch as reason:
            value, error = None, f"{type(reason).__name__}: {reason}"
        else:
            name = f"evaluate(config) of trial {len(self._trials)}"
            try:
                value = self._goals.read(value, name)
            except ValueError as reason:
                returns = isinstance(reason, NotFinite) or any(
                    t.values for t in self._trials
                )
                if not (catch and returns):
                    raise
                value, error = None, str(reason)
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
            names = list(self.objectives)
            return draw_front(names, self._trials, good, self._front(good))
        ((name, direction),) = self.objectives.items()
        X = self._tensor(self._points)
        minimize = direction == "minimize"
        return draw_study(self.space, X, self._trials, good, name, minimize)

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

        (key,) = self._encode([config], "config")
        if self._functions != (None, None):
            raise ValueError("model: expected the default one, got one of your own.")
        n = len(self._trials)
        data, seed = self._data(n), later_seed(self.seed, n)
        fitted = self._fitted.get(n) or fit_surrogates(
            self.space,
            start_from=self._start_from(n),
            seed=seed,
            earlier=self.earlier,
            **data,
        )
        X, C, x = data["train_X"], data["train_C"], self._tensor([self._point(key)])
        busy = [asked.point for k, asked in self._pending.items() if k != key]
        known = torch.cat([X, self._tensor(busy)])
        criterion, _ = make_criterion(self.space, fitted, known, n, train_C=C)
        goals, models = self.objectives, fitted.objectives
        found = believed(self.space, goals, models, criterion, x, X, self._trials)
        if self._earlier is not None:
            found["earlier"] = float(models[0].weights[-1])
        return found

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

    def _point(self, key: Point) -> Point:
        return self._pending[key].point if key in self._pending else key

    def _record(self, key: Point, config: dict[str, Any], own: dict[str, Any]) -> None:
        n = len(self._trials)
        told = self._told.get(key, -1)  # again, it answers what was asked since then
        later = [k for k, asked in self._pending.items() if asked.since > told]
        answer = answered(self.space, key, later)
        self._told |= dict.fromkeys((key, answer), n)
        self._points.append(self._point(key))
        since = {k: asked.since for k, asked in self._pending.items()}
        # what was not asked for counts as the last that was
        last = max([*self._answers, *since.values()], default=0)
        self._answers.append(since.get(answer, last))
        self._trials.append(Trial(n, config, **own))
        dropped = [
            k
            for k, m in since.items()
            if sum(a > m for a in self._answers) >= _OVERTAKEN
        ]
        if self._pending.pop(answer, None) is None:
            dropped.append(answered(self.space, key, later, changed=True))
        lost = [self._pending.pop(k).config for k in dropped if k in self._pending]
        self._again = [k for k in self._again if k in self._pending]
        if lost and not self._has_dropped:
            self._has_dropped = True
            warn(
                f"Of what was asked for, {lost[0]} is pending no more: near ones were "
                "told in its place, or many that were asked for after it. Tell "
                "configurations as ask returns them, and failures with None. This is "
                "said once."
            )

    def _replay(self, log: StudyLog) -> None:
        """Bring the study to where its log ends."""
        for line, entry in log.entries:
            try:
                if "asked" in entry:
                    keys, points = self._encode(entry["asked"], "asked"), entry["x"]
                    new = self._asked_for(
                        [tuple(x) for x in points if len(x) == self.space.dim]
                    )
                    # stopped by hand when this was written, it was asked again
                    if list(new) != [k for k in keys if k not in self._pending]:
                        raise ValueError(
                            f"x: expected {keys}, as asked says, got {points}."
                        )
                    self._pending |= new
                    if entry["fitted"]:
                        self._fitted[len(self._trials)] = None
                    continue
                (key,) = self._encode([entry["told"]], "told")
                told = self._read(*map(entry.get, _TOLD))
            except ValueError as error:
                raise ValueError(f"{log.where(line)}: {error}") from None
            (config,) = self._decode([self._point(key)])
            self._record(key, config, told)
        self._again = list(self._pending)

    def _read(
        self,
        value: Any,
        cost: Any = None,
        error: Any = None,
        sem: Any = None,
        metadata: Any = None,
    ) -> dict[str, Any]:
        """What a `Trial` has besides its number and configuration, checked."""
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

    def _next(
        self, q: int, elsewhere: Sequence[Point], held: dict[int, float]
    ) -> dict[Point, _Pending]:
        """New points: starts, then suggestions; fewer where the space is used up."""
        if not q:
            return {}
        others = (key for key in elsewhere if key not in self._pending)
        mine = (asked.point for asked in self._pending.values())
        busy = list(dict.fromkeys([*mine, *others]))
        known = {*self._points, *busy}
        starts = self._held(self._next_starts(busy), held)
        new = self._asked_for([x for x in starts if x not in known], elsewhere)
        new = dict(list(new.items())[:q])
        busy += [asked.point for asked in new.values()]
        while (missing := q - len(new)) > 0:
            try:
                found = self._choose(missing, busy, held)
            except CandidateGenerationError:
                if len(found := self._draw(missing, busy, held)) == missing:
                    raise
            for key, asked in self._asked_for(found, elsewhere).items():
                new.setdefault(key, asked)
            busy += found
            if len(found) < missing:
                break
        return new

    def _held(self, points: list[Point], held: Mapping[int, float]) -> list[Point]:
        """Points with some columns held, without those of paths with other values."""
        if not (held and points):
            return points
        X, _ = hold(self.space, self._tensor(points), held)
        return [tuple(x) for x in X.tolist()]

    def _draw(
        self, q: int, busy: Sequence[Point], held: Mapping[int, float]
    ) -> list[Point]:
        known, seed = {*self._points, *busy}, later_seed(self.seed, len(self._trials))
        return draw_new(self.space, q, known, held, seed)

    def _asked_for(
        self, points: Sequence[Point], elsewhere: Sequence[Point] = ()
    ) -> dict[Point, _Pending]:
        """Points of configurations that nobody has, by what `encode` makes of these.

        Where dictionaries overlap, several points have one configuration.
        """
        configs = self._decode(points)
        keys = self._encode(configs, "config")
        taken = {*self._told, *self._pending, *elsewhere}
        new: dict[Point, _Pending] = {}
        for key, point, config in zip(keys, points, configs, strict=True):
            if key not in taken:
                new.setdefault(key, _Pending(point, config, len(self._trials)))
        return new

    def _all_starts(self) -> list[Point]:
        """With earlier studies what suits most of these, on two paths first."""
        own = self._own_starts()
        if self._asks_all or (old := self.earlier) is None:
            return own
        X = self.space.decode(old.starts(old.num_starts))
        first, *others = self._encode(X, "starts")
        path = self._paths([first])
        elsewhere = (x for x in (*others, *own) if self._paths([x]) != path)
        return [*dict.fromkeys((first, *islice(elsewhere, 1), *others))]

    def _own_starts(self) -> list[Point]:
        if self._starts is None:
            if callable(self._make_starts):
                X = self._make_starts(self.space, self.seed)
            else:
                kind, most = self._kind, MOST_STARTS
                X = self.space.starts(kind=kind, seed=self.seed, at_most=most)
            try:
                self._starts = self._encode(self.space.decode(X), "starts")
            except ValueError as error:
                raise ValueError(f"starts: {error}") from None
        return self._starts

    @property
    def earlier(self) -> OldStudiesMean | None:
        """What earlier studies have taught; learnt when it is first needed."""
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
        known, trials = [*self._points, *busy], self._trials
        if self._asks_all:
            return [start for start in self._own_starts() if start not in known]
        old = self.earlier
        if old is not None and not any(trial.values for trial in trials):
            return [start for start in self._all_starts() if start not in known]
        paths = set(self._paths(known))
        if len(paths) >= min(self.space.tree.num_paths, MOST_STARTS):
            return []
        starts = self._own_starts()
        most = len(starts) if self._make_starts is None else MOST_STARTS
        if old is not None:
            data = self._data(len(trials))
            del data["train_cost"]
            if len(known) < 2:
                starts = [*self._all_starts()[:2], *starts]
            elif old_studies_predict(old, **data):
                return []
        new: dict[int, Point] = {}
        for start, path in zip(starts, self._paths(starts), strict=True):
            if path not in paths:
                new.setdefault(path, start)
        return [*new.values()][: max(most - len(paths), 0)]

    def _choose(
        self, q: int, busy: Sequence[Point], held: dict[int, float]
    ) -> list[Point]:
        """Points after the starts."""
        n = len(self._trials)
        train_Y = self._goals.train_Y(self._trials)
        old = self.earlier
        needed = 2 if old is None else 1
        if int(train_Y.isfinite().all(-1).sum()) < needed:
            return self._draw(q, busy, held)
        options: dict[str, Any] = {
            "q": q,
            "X_pending": self._tensor(busy) if busy else None,
            "seed": later_seed(self.seed, n),
            "fixed_features": held,
        }
        if self._functions != (None, None):
            outcomes = torch.cat([train_Y, self._goals.train_C(self._trials)], -1)
            X = self._tensor(self._points)
            found, model = suggest_with(
                self.space, X, outcomes, *self._functions, **options
            )
            self.models = [model]
        else:
            options |= {"start_from": self._start_from(n), **self._data(n)}
            with warnings.catch_warnings():
                # outcomes that are all alike are nobody's mistake
                warnings.simplefilter("ignore", InputDataWarning)
                suggestion = suggest(self.space, earlier=old, **options)
            found, fitted = suggestion.X, suggestion.surrogates
            near = {k: m for k, m in self._fitted.items() if _same_ten(k, n)}
            self._fitted = near | {n: fitted}
            mixtures = [*fitted.objectives, *fitted.constraints]
            self.models = [model for some in mixtures for model in some.models]
            self.models += [] if fitted.cost is None else [fitted.cost]
        return [tuple(x) for x in found.tolist()]

    def _data(self, n: int) -> dict[str, Any]:
        """What models see of the first ``n`` trials."""
        trials, goals = self._trials[:n], self._goals
        costs = [[math.nan if t.cost is None else t.cost] for t in trials]
        return {
            "train_X": self._tensor(self._points[:n]),
            "train_Y": goals.train_Y(trials),
            "train_C": goals.train_C(trials) if goals.constraints else None,
            "train_cost": torch.tensor(costs).double() if self._costs else None,
            "train_Yvar": goals.train_Yvar(trials),
        }

    def _start_from(self, n: int) -> Surrogates | None:
        """The models that the fit of ``n`` trials starts from.

        Those that the log says were fitted, and that are not here, are fitted again.
        """
        if n <= _WARM_ABOVE:
            return None
        last = None
        for k in sorted(k for k in self._fitted if k < n and _same_ten(k, n)):
            if self._fitted[k] is None:
                start = last if k > _WARM_ABOVE else None
                self._fitted[k] = fit_surrogates(
                    self.space,
                    start_from=start,
                    seed=later_seed(self.seed, k),
                    earlier=self.earlier,
                    **self._data(k),
                )
            last = self._fitted[k]
        return last


def _same_ten(k: int, n: int) -> bool:
    """Whether no fit from nothing lies between those of ``k`` and ``n`` trials."""
    return k // _COLD_EVERY == n // _COLD_EVERY
