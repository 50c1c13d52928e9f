"""`StructuredSampler`: this package's search in Optuna's studies.

A running trial shows the parameters that it has asked for so far. Those that it will
ask for are kept with the study, as user attributes ``structured:0``, ``structured:1``,
...: text in JSON, one for each trial, and empty when it has ended, in places that later
trials take over: Optuna cannot delete them.

Storages have no locks for samplers. For no two trials to be at one point, a trial that
has chosen says so, looks again, and then says that its choice is final. Where it meets
another choice on the same branch, made without knowledge of its own, the trial with the
larger number chooses again, unless that one's choice is final; the other one waits for
its answer. A trial that is killed in between keeps nobody waiting for long, nor does
harm: the point is not evaluated.
"""

from __future__ import annotations

__all__ = ["StructuredSampler"]

import json
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
import optuna
from botorch.exceptions.errors import CandidateGenerationError
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.trial import FrozenTrial, TrialState

from botorch_structured.integrations.optuna.learning import LearntSpace
from botorch_structured.integrations.optuna.trial_space import (
    Asked,
    DeclaredSpace,
    TrialParameter,
    TrialValues,
    Values,
    check_declared,
    configurations,
    held_where_possible,
    with_one_nan,
)
from botorch_structured.models import OldStudiesMean
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_seed, later_seed
from botorch_structured.spaces.columns import (
    CategoricalColumn,
    Column,
    is_equal,
)
from botorch_structured.study import Study
from botorch_structured.study.earlier import OldStudy, learn, read_studies

_logger = optuna.logging.get_logger("optuna.structured")

# torch's seed and GPyTorch's settings are global: one suggestion at a time.
_ONE_AT_A_TIME = threading.Lock()

# Two storage operations of another process take less, unless it was killed.
_WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
_ROUNDS = 20

# From here on only every second trial may try what nobody has tried.
_EXPLORED = 20
# A trial that has asked for nothing when so many later ones have ended was killed.
_OVERTAKEN = 5
_SWITCH = "This warning can be switched off with warn_independent_sampling=False."
# User attributes of a study that running trials share.
_NUM_PLACES = 256


class StructuredSampler(BaseSampler):
    """Suggestions of this package for studies whose parameters depend on each other.

    Choose it for an objective that asks for some parameters only where others have
    certain values, with tens to a few hundred trials, whose evaluations take seconds or
    more. Where all parameters are always asked for it works, too.

    Which parameters belong to which values is learnt from the trials, unless ``space``
    says it. Trials try first what nobody has tried: each value of a choice (of up to 10
    values, or on which something depends), the ends of a range of at most 5 integers,
    or of at most 10 where a trial tries something else anyway.
    When a study has seen its branches, each trial gets a complete path from
    `botorch_structured.suggest`. A branch that shows up later is explored, too.

    - Running trials are taken into account, those of other processes, too: what they
      were suggested is a user attribute ``structured:...`` of the study.
    - A failed trial counts as a bad outcome. So does a pruned one, unless its last
      intermediate value is worse than the best value of a complete trial: then this is
      its value. What either had not asked for yet is drawn at random, on its path.
    - Several objectives are searched for their Pareto front; constraints, those of
      ``Trial.set_constraint``, for feasible trials.
    - What is fixed, by ``Study.enqueue_trial`` or Optuna's ``PartialFixedSampler``
      around this one, is held, and the rest suggested for it.
    - A suggestion depends on the trials, the number of the trial and the seed only.

    Args:
        space: Declared parameters and their conditions, under the names that the
            objective uses: a `SearchSpace`, a ConfigSpace ``ConfigurationSpace``, or
            what `SearchSpace.from_dictionaries` takes. The objective has to take all
            values that a declared parameter has. Default: learnt from the trials.
        seed: A study with ``n_jobs=1`` is then the same each time.
        constraints_func: Numbers of a trial (or one), feasible where none is positive;
            called when it has ended. Optuna's own samplers have it, and deprecate it:
            ``Trial.set_constraint`` does the same.
        model: In place of the default model, see `Study`.
        acquisition: In place of the default acquisition function, see `Study`.
        warn_independent_sampling: Whether to log a warning where a parameter was not in
            a suggested path, and is random therefore.
        earlier: Old studies to begin from: Optuna's, such as ``[optuna.load_study(
            study_name=name, storage=storage) for name in
            optuna.get_all_study_names(storage) if name.startswith("boosting")]``, or
            what else a `Study` takes. Which parameters belong to which values is learnt
            from them, too, as far as ranges are the same. For one objective.

    Raises:
        ValueError: An argument is not what it should be; or, when a trial asks for it,
            a declared parameter has values that the objective does not take.

    Example:
        >>> def objective(trial):
        ...     learner = trial.suggest_categorical("learner", ["svm", "neighbours"])
        ...     if learner == "svm":
        ...         C = trial.suggest_float("C", 1e-3, 1e3, log=True)
        ...         return (math.log10(C) - 1) ** 2
        ...     k = trial.suggest_int("k", 1, 50)
        ...     return 0.5 + (k / 50 - 0.3) ** 2
        >>> study = optuna.create_study(sampler=StructuredSampler(seed=0))
        >>> study.optimize(objective, n_trials=30)
    """

    def __init__(
        self,
        space: Any = None,
        *,
        seed: int | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        model: Callable[..., Any] | None = None,
        acquisition: Callable[..., Any] | None = None,
        warn_independent_sampling: bool = True,
        earlier: Any = None,
    ) -> None:
        for name, function in (
            ("constraints_func", constraints_func),
            ("model", model),
            ("acquisition", acquisition),
        ):
            if function is not None and not callable(function):
                raise ValueError(f"{name}: expected a function, got {function!r}.")
        # a study reads all kinds of spaces
        declared = None if space is None else Study(space, seed=0).space
        if declared is not None and declared.shown_names != declared.names:
            raise ValueError(
                "space: expected the same values of a name in all dictionaries, and a "
                "name that tells them apart, got parameters that would be "
                f"{declared.names}. Without a space, trials show which there are."
            )
        for column in () if declared is None else declared.columns:
            for a, b in combinations(getattr(column, "choices", ()), 2):
                if is_equal(a, b):
                    raise ValueError(
                        f"space: expected choices that Optuna tells apart, got {a!r} "
                        f"and {b!r} for {column.name!r}: leave one out, or write them "
                        "as texts."
                    )
        self._declared = declared
        seed = check_seed(seed)
        self._seed = _new_seed() if seed is None else seed
        self._arguments: dict[str, Any] = {"model": model, "acquisition": acquisition}
        self._constraints_func: Callable[..., Any] | None = None
        if constraints_func is not None:  # pickles, unlike a closure
            self._constraints_func = partial(_constraints, constraints_func)
        self._warns = warn_independent_sampling
        self._earlier: list[Any] = [] if earlier is None else [earlier]
        if isinstance(earlier, list):
            is_optuna = [isinstance(study, optuna.Study) for study in earlier]
            self._earlier = earlier if any(is_optuna) else [earlier]
        for study in self._earlier:
            read_studies(study)  # what is wrong is said now
        self._old_trials = [t for s in self._earlier for t in _trials_of(s)]
        self._learnt: OldStudiesMean | None = None
        self._learnt_of: SearchSpace | None = None
        self._suggested: dict[tuple[str, int], SuggestedPath] = {}
        # Of studies, parameters that were warned of; None: trials that are left out;
        # no name: that points are repeated.
        self._unknown: set[tuple[str, str | None]] = set()

    def space_of(self, study: optuna.Study) -> SearchSpace | None:
        """The space of a study as its trials show it, or as it was declared.

        Returns:
            The space; None if no trial has asked for a parameter. Where a name has
            several ranges, its columns are called ``name#1``, ``name#2`` .... Choices
            that trials showed are texts, ``"4"`` for 4, and numbers with a step are
            counted in steps: 0.5 of ``suggest_float("x", 0, 1, step=0.25)`` is 2.
        """
        space = self._space(self._asked(study.get_trials(deepcopy=False)))
        return None if space is None else space.space

    def study_of(self, study: optuna.Study) -> Study | None:
        """What a study has found, as a `Study` of this package.

        Choose it for the pictures (``.plot()``), and for points of the space:
        ``.space.encode([trial.config for trial in .trials])``.

        Returns:
            The trials that have ended, in the words of `space_of`, without those that
            are outside of the space; None if no trial has asked for a parameter.
        """
        trials = study.get_trials(deepcopy=False)
        asked = self._asked(trials)
        space = self._space(asked)
        if space is None:
            return None
        return self._told(study, trials, space, [one.values for one in asked])[0]

    # -- Optuna's interface ------------------------------------------------------------

    def reseed_rng(self) -> None:
        """Another seed: Optuna calls this where trials run in several threads."""
        self._seed = _new_seed()

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Choose the whole path of a trial as soon as it exists."""
        key = (study.study_name, trial.number)
        for _ in range(_ROUNDS):
            with _ONE_AT_A_TIME:
                shared = SharedPaths(study, self._declared, self._old_trials)
                trials = shared.trials
                if (known := shared.read(trial.number)) and key not in self._suggested:
                    # the trial is taken up in another process
                    self._suggested[key] = known.suggestion
                    return
                settled = {t.number for t in trials if t.state.is_finished()}
                settled.add(trial.number)
                others = shared.others(settled)
                # one that has parameters and keeps no suggestion is seen as it is
                settled |= {t.number for t in trials if t.params} - others.keys()
                held = self._held(study, trial, trials)
                suggestion = self._choose(study, trial, trials, others, held)
            self._suggested[key] = suggestion
            if not shared.exist:
                return
            knows = {number: path.version for number, path in others.items()}
            shared.keep(trial.number, suggestion, knows, final=False)
            if not self._clashes(study, trial.number, suggestion, others, settled):
                break
        shared.keep(trial.number, suggestion, knows, final=True)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The parameters of the path, as far as Optuna has seen them."""
        values = self._suggestion(study, trial).values
        found = {name: d for name, (d, _) in values.items() if d is not None}
        if self._earlier:  # ranges of old studies may not be those of this one
            trials = study.get_trials(deepcopy=False)
            known = {name for t in trials for name in t.distributions}
            found = {name: d for name, d in found.items() if name in known}
        return found

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Their values."""
        values = self._suggestion(study, trial).values
        return {name: values[name][1] for name in search_space if name in values}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter of the path whose range is another one now, or a random value."""
        suggestion = self._suggestion(study, trial)
        parameter = TrialParameter(param_name, param_distribution)
        if self._declared is not None:
            check_declared(self._declared, parameter, self._values(trial))
        if param_name in suggestion.values:
            value = suggestion.values[param_name][1]
            if not parameter.is_choice or parameter.contains(value):
                return parameter.nearest(value)
        if suggestion.whole and self._warns:
            self._warn(study, trial.number, param_name)
        seed = self._seed % (1 << 64)  # NumPy takes no negative ones
        numbers = (seed, trial.number, zlib.crc32(param_name.encode()))
        return parameter.draw(int(np.random.SeedSequence(numbers).generate_state(1)[0]))

    def _warn(self, study: optuna.Study, number: int, name: str) -> None:
        """Say that a parameter was not expected, and how it will be."""
        text = f"Trial {number} asked for {name!r}, which "
        if self._declared is None:
            text += (
                "is not on the path that it was suggested: its value is random. The "
                "next suggestions know of it. If this happens again and again, declare "
                "the space: StructuredSampler(space=...)."
            )
        elif name in self._declared.names:
            text += "the declared space has on other paths only: its value is random."
        elif (key := (study.study_name, name)) in self._unknown:
            return
        else:
            self._unknown.add(key)
            text += (
                f"the declared space does not have, only {self._declared.names}: its "
                "value is random in all trials."
            )
        _logger.warning(f"{text} {_SWITCH}")

    def _say_left_out(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Say once that a trial is not in the declared space."""
        key = (study.study_name, None)
        if self._declared is None or key in self._unknown:
            return
        if trial.state == TrialState.COMPLETE and self._warns:
            self._unknown.add(key)
            _logger.warning(
                f"Trial {trial.number} is left out, as others like it are: the "
                f"declared space does not have {trial.params}. {_SWITCH}"
            )

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Forget the suggestion, check parameters, and call ``constraints_func``."""
        self._suggested.pop((study.study_name, trial.number), None)
        SharedPaths(study, self._declared, self._old_trials).forget(trial.number)
        if self._declared is not None and state != TrialState.FAIL:
            # Optuna asks no sampler for those of a single value
            for name, distribution in trial.distributions.items():
                parameter = TrialParameter(name, distribution)
                check_declared(self._declared, parameter, self._values(trial))
        if self._constraints_func is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                # Optuna's own way to store what the function returns
                store = optuna.samplers.TPESampler(
                    constraints_func=self._constraints_func
                )
            store.after_trial(study, trial, state, values)

    # -- suggestions -------------------------------------------------------------------

    def _values(self, trial: FrozenTrial) -> Values:
        """What a trial has asked for: ``{name: (distribution, value)}``.

        A distribution of a single value teaches nothing, unless the space was declared
        with more.
        """
        distributions = trial.distributions
        return {
            name: (with_one_nan(distributions[name]), value)
            for name, value in trial.params.items()
            if self._declared is not None or not distributions[name].single()
        }

    def _asked(self, trials: Sequence[FrozenTrial]) -> list[Asked]:
        return [Asked(self._values(t), t.state == TrialState.COMPLETE) for t in trials]

    def _suggestion(self, study: optuna.Study, trial: FrozenTrial) -> SuggestedPath:
        key = (study.study_name, trial.number)
        return self._suggested.get(key, SuggestedPath())

    def _held(
        self, study: optuna.Study, trial: FrozenTrial, trials: Sequence[FrozenTrial]
    ) -> dict[str, Any]:
        """``{name: value}`` of the parameters that are fixed, see the class."""
        held: dict[str, Any] = {}
        wrapper = getattr(study, "sampler", None)
        if isinstance(wrapper, PartialFixedSampler):
            # it does not say which it holds, but hands on all others
            seen = {k: v for other in trials for k, v in self._values(other).items()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said again when the trial asks for it
                if self._declared is not None:
                    for column in self._declared.columns:
                        seen.setdefault(column.name, _as_declared(column))
                self._suggested[study.study_name, trial.number] = SuggestedPath(seen)
                free = wrapper.infer_relative_search_space(study, trial)
                for name in seen.keys() - free.keys():
                    distribution, _ = seen[name]
                    assert distribution is not None  # known of trials, made of columns
                    with suppress(ValueError):  # none of the choices
                        held[name] = wrapper.sample_independent(
                            study, trial, name, distribution
                        )
            del self._suggested[study.study_name, trial.number]
        # `Study.enqueue_trial` keeps them here; FrozenTrial has no other way to ask
        return held | trial.system_attrs.get("fixed_params", {})

    def _clashes(
        self,
        study: optuna.Study,
        number: int,
        suggestion: SuggestedPath,
        known: Mapping[int, SharedPath],
        settled: Collection[int],
    ) -> bool:
        """Whether another trial has to be taken into account, see `SharedPaths`; those
        that ended in the meantime, too."""
        began = time.monotonic()
        while True:
            shared = SharedPaths(study, self._declared, self._old_trials)
            ended = {t.number for t in shared.trials if t.state.is_finished()}
            own, others = shared.read(number), shared.others({number, *ended})
            waits = False
            for trial in shared.trials:
                # a trial gives its suggestion up just before it has ended
                if trial.number not in settled and trial.number not in others:
                    values, path = self._values(trial), known.get(trial.number)
                    if not (path and _agree(path.suggestion, values)):
                        if suggestion.shares_branch(SuggestedPath(values)):
                            return True
            for other, path in others.items():
                if (
                    (other in known and known[other].version == path.version)
                    or (own and path.knows.get(number) == own.version)
                    or not suggestion.shares_branch(path.suggestion)
                ):
                    continue
                if other < number or path.final:
                    return True
                waits = True
            if not waits or time.monotonic() - began > _WAIT_SECONDS:
                return False
            time.sleep(_PAUSE_SECONDS)

    def _choose(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        trials: Sequence[FrozenTrial],
        shared: Mapping[int, SharedPath],
        held: Mapping[str, Any],
    ) -> SuggestedPath:
        """A suggestion for a trial, given those of others."""
        number, asked, paths = trial.number, [], []
        others = [t for t in trials if t.number != number]
        for other in others:
            path = values = self._values(other)
            if other.state == TrialState.RUNNING:
                suggestion = self._suggestion(study, other)
                if other.number in shared:
                    suggestion = shared[other.number].suggestion
                if _agree(suggestion, values):
                    path = suggestion.values | values
            # A suggestion may be wrong, and that of a trial that was killed would stay
            # for ever: dependencies are learnt from the parameters that were asked for.
            expected = not values and not _is_overtaken(other, others)
            complete = other.state == TrialState.COMPLETE
            asked.append(Asked(path if expected else values, complete, expected))
            paths.append(path)
        space = self._space([*self._asked_before(asked), *asked])
        if space is None:
            return SuggestedPath()
        explores = number < _EXPLORED or number % 2
        if isinstance(space, LearntSpace) and explores:
            if untried := space.untried(space.held(held)):
                return SuggestedPath(untried)
        inner, pending = self._told(study, others, space, paths, number)
        try:
            fixed = held_where_possible(space.space, space.held(held))
            (config,) = inner.ask(pending=pending, fixed=fixed)
        except CandidateGenerationError:
            key = study.study_name, ""
            _logger.log(
                optuna.logging.INFO if key in self._unknown else optuna.logging.WARNING,
                f"Trial {number}: every point is known, one is repeated.",
            )
            self._unknown.add(key)
            seed = later_seed(self._seed, number)
            (config,) = space.space.decode(space.space.sample(1, seed=seed))
        return SuggestedPath(space.values(config), whole=space.has_seen(config))

    def _space(self, asked: Sequence[Asked]) -> DeclaredSpace | LearntSpace | None:
        """None if nothing is declared, and no trial has asked for a parameter."""
        if self._declared is not None:
            return DeclaredSpace(self._declared, asked)
        shown = [one for one in asked if one.values]
        return None if all(one.expected for one in shown) else LearntSpace(shown)

    def _asked_before(self, asked: Sequence[Asked]) -> list[Asked]:
        """What trials of old studies asked for, if the new ones ask for the same.

        Of a parameter that no new trial has asked for, the last old range counts.
        """
        now: dict[str, list[BaseDistribution]] = {}
        for one in asked:
            for name, (distribution, _) in one.values.items():
                if distribution is not None:
                    now.setdefault(name, []).append(distribution)
        old = self._asked(self._old_trials)
        last = {name: d for one in old for name, (d, _) in one.values.items()}
        return [
            one
            for one in old
            if all(d in now.get(n, [last[n]]) for n, (d, _) in one.values.items())
        ]

    def _learn(
        self, study: optuna.Study, space: DeclaredSpace | LearntSpace
    ) -> OldStudiesMean | None:
        """What old studies have taught of the space, as it is now."""
        if self._earlier and self._learnt_of != space.space:
            minimize = study.direction == optuna.study.StudyDirection.MINIMIZE
            found = [
                _in_words_of(space, one) if isinstance(old, optuna.Study) else one
                for old in self._earlier
                for one in read_studies(old, minimize=minimize)
            ]
            first, self._learnt_of = self._learnt_of is None, space.space
            self._learnt = learn(space.space, found, first)
        return self._learnt

    def _told(
        self,
        study: optuna.Study,
        trials: Sequence[FrozenTrial],
        space: DeclaredSpace | LearntSpace,
        paths: Sequence[Values],
        number: int = 0,
    ) -> tuple[Study, list[dict[str, Any]]]:
        """A `Study` with the values of trials, and the pending configurations."""
        trial_values = TrialValues(study, trials)
        entries = [space.entries(path) for path in paths]
        whole = [trial.state == TrialState.COMPLETE for trial in trials]
        # Another trial that ended may have stopped before it asked for all: a parameter
        # that is missing did not matter, and may have had any value.
        seeds = [t.number if t.state.is_finished() else None for t in trials]
        configs = configurations(space.space, entries, whole, seeds)
        told, values, pending = [], [], []
        for trial, config in zip(trials, configs, strict=True):
            if config is None:
                self._say_left_out(study, trial)
            elif trial.state.is_finished():
                told.append(config)
                values.append(trial_values.value(trial))
            elif trial.state == TrialState.RUNNING:
                pending.append(config)
        inner = Study(
            space.space,
            **trial_values.arguments,
            **self._arguments,
            seed=later_seed(self._seed, number),
            # in a learnt space `LearntSpace.untried` comes before
            starts=None if self._declared is not None or self._earlier else [],
            earlier=self._learn(study, space),
        )
        inner.tell_many(told, values)
        return inner, pending


def _trials_of(study: Any) -> Sequence[FrozenTrial]:
    """The trials of a study of Optuna that have ended."""
    if not isinstance(study, optuna.Study):
        return []
    return [t for t in study.get_trials(deepcopy=False) if t.state.is_finished()]


def _in_words_of(space: DeclaredSpace | LearntSpace, old: Any) -> OldStudy:
    """An old study with entries of columns, where parameters are those of a space."""
    configs: list[Mapping[str, Any]] = []
    for config in old.configs:
        held = {name: space.held({name: value}) for name, value in config.items()}
        # what is out of range stays, and is left out
        configs.append(
            {
                k: v
                for name, value in config.items()
                for k, v in (held[name] or {name: value}).items()
            }
        )
    return OldStudy(configs, old.values)


def _as_declared(column: Column) -> tuple[BaseDistribution, Any]:
    """A distribution with all values of a column, and one of them."""
    distribution: BaseDistribution
    if isinstance(column, CategoricalColumn):
        distribution = CategoricalDistribution(column.choices)
    else:
        lower, upper = (column.decode(bound) for bound in column.bounds)
        distribution = FloatDistribution(lower, upper)
    return distribution, column.decode(column.fill)


def _constraints(function: Callable[..., Any], trial: FrozenTrial) -> Any:
    """What a ``constraints_func`` returns; of a number a list."""
    found = function(trial)
    if isinstance(found, (str, type(None))):
        raise ValueError(
            f"constraints_func: expected a number, or several, got {found!r}."
        )
    return [found] if np.ndim(found) == 0 else found


def _agree(suggestion: SuggestedPath, values: Values) -> bool:
    """Whether a trial has its suggested values; an enqueued one need not."""
    return all(
        name not in values or is_equal(values[name][1], value)
        for name, (_, value) in suggestion.values.items()
    )


def _is_overtaken(trial: FrozenTrial, others: Sequence[FrozenTrial]) -> bool:
    """Whether so many later trials have ended that it will not ask for anything."""
    later = (t for t in others if t.number > trial.number)
    return sum(t.state.is_finished() for t in later) >= _OVERTAKEN


def _new_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1)[0] >> 1)


@dataclass(frozen=True)
class SuggestedPath:
    """The parameters that a trial should ask for.

    Args:
        values: ``{name: (distribution, value)}``; the distribution of a declared
            parameter is None until a trial has asked for it.
        whole: Whether this is a whole path, and not decisions that lead to a new one.
    """

    values: Values = field(default_factory=dict)
    whole: bool = False

    def shares_branch(self, other: SuggestedPath) -> bool:
        """Whether no choice or whole number tells it from another one."""
        for name in self.values.keys() & other.values.keys():
            value, its = self.values[name][1], other.values[name][1]
            if value != its and not isinstance(value, float):
                return False
        return bool(self.values and other.values)


@dataclass(frozen=True)
class SharedPath:
    """A suggestion as other processes see it.

    Args:
        suggestion: The suggestion.
        knows: The running trials it takes into account, and their versions.
        final: Whether it will not change any more.
        version: Another one for other values.
    """

    suggestion: SuggestedPath
    knows: dict[int, int]
    final: bool
    version: int


class SharedPaths:
    """The suggestions that are kept with a study.

    Args:
        study: The study.
        declared: The space, if it was declared.
        old_trials: Trials of old studies, whose ranges may be suggested, too.

    Attributes:
        trials: The trials of the study. They are read after the suggestions, so that
            each parameter of these was asked for by one of them.
        exist: Whether there are any: a bracket of `optuna.pruners.HyperbandPruner` has
            no user attributes.
    """

    def __init__(
        self,
        study: optuna.Study,
        declared: SearchSpace | None,
        old_trials: Sequence[FrozenTrial] = (),
    ) -> None:
        self._study, self._old_trials = study, old_trials
        columns = () if declared is None else declared.columns
        self._columns: dict[str, Any] = {column.name: column for column in columns}
        self.exist = hasattr(study, "user_attrs")
        self._texts: dict[str, str] = study.user_attrs if self.exist else {}
        self.trials: Sequence[FrozenTrial] = study.get_trials(deepcopy=False)

    def read(self, number: int) -> SharedPath | None:
        """The suggestion of a trial; None if there is none."""
        shared = json.loads(self._texts.get(_place(number)) or "{}")
        if shared.get("trial") != number:
            return None
        rows = shared["values"]
        return SharedPath(
            SuggestedPath({row[0]: self._value(*row) for row in rows}, shared["whole"]),
            {int(n): version for n, version in shared["knows"].items()},
            shared["final"],
            zlib.crc32(json.dumps(rows).encode()),
        )

    def others(self, without: Collection[int]) -> dict[int, SharedPath]:
        """The suggestions of the trials but some, by their numbers."""
        numbers = [t.number for t in self.trials if t.number not in without]
        found = {number: self.read(number) for number in numbers}
        return {number: path for number, path in found.items() if path is not None}

    def keep(
        self,
        number: int,
        suggestion: SuggestedPath,
        knows: Mapping[int, int],
        final: bool,
    ) -> None:
        """Let other processes know of a suggestion."""
        rows = []
        for name, (distribution, value) in suggestion.values.items():
            if distribution is not None:
                internal = distribution.to_internal_repr(value)
                rows.append([name, repr(distribution), internal])
            elif name in self._columns:  # not a constant
                rows.append([name, "", self._columns[name].encode(value)])
        shared = {
            "trial": number,
            "whole": suggestion.whole,
            "values": rows,
            "knows": dict(knows),
            "final": final,
        }
        self._study.set_user_attr(_place(number), json.dumps(shared))

    def forget(self, number: int) -> None:
        """Leave nothing of a trial that ends."""
        if self.read(number) is not None:
            self._study.set_user_attr(_place(number), "")

    def _value(
        self, name: str, kind: str, internal: float
    ) -> tuple[BaseDistribution | None, Any]:
        if not kind:
            return None, self._columns[name].decode(internal)
        known = self._distributions
        # several ranges that were taken as one are that of no trial
        distribution = known.get((name, kind), known[name, ""])
        return with_one_nan(distribution), distribution.to_external_repr(internal)

    @cached_property
    def _distributions(self) -> dict[tuple[str, str], BaseDistribution]:
        """Those of trials, by name and text; without a text, the last of a name."""
        found = {}
        for trial in (*self._old_trials, *self.trials):
            for name, distribution in trial.distributions.items():
                found[name, ""] = found[name, repr(distribution)] = distribution
        return found


def _place(number: int) -> str:
    return f"structured:{number % _NUM_PLACES}"
