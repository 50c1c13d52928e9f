"""`StructuredSampler`: this package's search in Optuna's studies."""

from __future__ import annotations

__all__ = ["StructuredSampler"]

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import optuna
from botorch.exceptions.errors import CandidateGenerationError
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.trial import FrozenTrial, TrialState

from botorch_structured.integrations.optuna.learning import LearntSpace
from botorch_structured.integrations.optuna.shared_paths import (
    SharedPaths,
    SuggestedPath,
)
from botorch_structured.integrations.optuna.told_study import ToldStudy, TrialSpace
from botorch_structured.integrations.optuna.trial_space import (
    Asked,
    DeclaredSpace,
    TrialParameter,
    Values,
    check_declared,
    possible_together,
    with_one_nan,
)
from botorch_structured.models import OldStudiesMean
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_seed, later_seed
from botorch_structured.spaces.columns import is_equal
from botorch_structured.study import Study
from botorch_structured.study.earlier import OldStudy, learn, read_studies
from botorch_structured.suggest.surrogates import MAX_ROWS

_logger = optuna.logging.get_logger("optuna.structured")

# torch's seed and GPyTorch's settings are global: one suggestion at a time.
_ONE_AT_A_TIME = threading.Lock()
_DRAWS_ONE_AT_A_TIME = threading.Lock()
# A trial that meets others looks so often for a point of its own, and draws so often.
_ROUNDS = 20
_SWITCH = "This warning can be switched off with warn_independent_sampling=False."


class StructuredSampler(BaseSampler):
    """Suggestions of this package for studies whose parameters depend on each other.

    Choose it for an objective that asks for some parameters only where others have
    certain values, and takes seconds or more. On seven paths of a few floats a
    suggestion takes less than .1 CPU seconds after 100 to 1,000 trials, and .3 to .6
    after 3,000; the first one of a process .4 to 2; with 31 other running trials after
    500 trials .3. Where all parameters are always asked for it works, too.

    Which parameters belong to which values is learnt from the trials, unless ``space``
    says it. Trials try first what nobody has tried: each value of a choice (of up to 10
    values, or on which something depends), the ends of a range of at most 5 integers,
    or of at most 10 on which something depends.
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
        model: In place of the default model, see `Study`.
        acquisition: In place of the default acquisition function, see `Study`.
        warn_independent_sampling: Whether to log warnings, each once: where a declared
            space does not have what an objective asks for, and where all points of the
            space were tried.
        earlier: Old studies to begin from: Optuna's, such as ``[optuna.load_study(
            study_name=name, storage=storage) for name in
            optuna.get_all_study_names(storage) if name.startswith("boosting")]``, or
            what else a `Study` takes. Which parameters belong to which values is learnt
            from them, too, as far as ranges are the same. For one objective.
        max_rows: How many trials of a path models see, see `suggest`; None: all.

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
        model: Callable[..., Any] | None = None,
        acquisition: Callable[..., Any] | None = None,
        warn_independent_sampling: bool = True,
        earlier: Any = None,
        max_rows: int | None = MAX_ROWS,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "model": model,
            "acquisition": acquisition,
            "max_rows": max_rows,
        }
        # a study reads all kinds of spaces, and says now what is wrong
        some = {"": (0, 1)} if space is None else space
        read = Study(some, seed=0, **self._arguments)
        declared = None if space is None else read.space
        if declared is not None and declared.shown_names != declared.names:
            raise ValueError(
                "space: expected the same values of a name in all dictionaries, and a "
                "name that tells them apart, got parameters that would be "
                f"{declared.names}. Without a space, trials show which there are."
            )
        self._declared = declared
        seed = check_seed(seed)
        self._seed = _new_seed() if seed is None else seed
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
        # parameters of running trials, by study: threads draw before storages know
        self._drawn: dict[str, dict[int, dict[str, Any]]] = {}
        self._kept: dict[str, ToldStudy] = {}  # by the name of the study
        self._said: set[tuple[str, str]] = set()  # studies, and what was warned of

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
        """The trials of a study, as a `Study` of this package.

        Choose it for the pictures (``.plot()``), and for points of the space:
        ``.space.encode([trial.config for trial in .trials])``.

        Returns:
            The trials that have ended, in the words of `space_of`, without those that
            are outside of the space; None if no trial has asked for a parameter.
        """
        trials = study.get_trials(deepcopy=False)
        space = self._space(self._asked(trials))
        if space is None:
            return None
        told = ToldStudy(self._values)
        configs = told.configs(space, trials, {})
        return told.study(
            study,
            trials,
            configs,
            self._maker(study, space),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    # -- Optuna's interface ------------------------------------------------------------

    def reseed_rng(self) -> None:
        """Another seed: Optuna calls this where trials run in several threads."""
        self._seed = _new_seed()

    def before_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
    ) -> None:
        """Choose the whole path of a trial as soon as it exists."""
        for _ in range(_ROUNDS):
            with _ONE_AT_A_TIME:
                shared = SharedPaths(study, self._declared)
                key = (study.study_name, trial.number)
                if key not in self._suggested and (path := shared.read(trial.number)):
                    # the trial is taken up in another process
                    self._suggested[key] = path
                    return
                suggestion = self._choose(study, trial, shared)
                self._suggested[key] = suggestion
            if not shared.exist:
                return
            shared.keep(trial.number, suggestion)
            now = SharedPaths(study, self._declared)
            if not self._has_news(
                study,
                trial.number,
                suggestion,
                shared,
                now,
            ):
                return

    def _has_news(
        self,
        study: optuna.Study,
        number: int,
        suggestion: SuggestedPath,
        before: SharedPaths,
        now: SharedPaths,
    ) -> bool:
        """Whether another trial on the branch has shown what was not seen before."""
        seen = {t.number: t for t in before.trials}
        for trial in now.trials:
            last = seen.get(trial.number)
            if trial.number == number or (last and last.state.is_finished()):
                continue
            path = self._path(study, trial, now)
            earlier = self._path(study, last, before) if last else {}
            is_known = path.keys() <= earlier.keys() and all(
                is_equal(earlier[name][1], value) for name, (_, value) in path.items()
            )
            if not is_known and suggestion.shares_branch(path):
                return True
        return False

    def _path(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        shared: SharedPaths,
    ) -> Values:
        """The values that a trial asked for, and is expected to ask for yet."""
        values = self._values(trial)
        if trial.state == TrialState.RUNNING:
            key = (study.study_name, trial.number)
            path = self._suggested.get(key) or shared.read(trial.number)
            if path and path.agrees(values):
                return path.values | values
        return values

    def infer_relative_search_space(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
    ) -> dict[str, BaseDistribution]:
        """None: `sample_independent` knows the path, and the ranges of the trial."""
        return {}

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """None."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter of the path, the nearest one in its range; or a random value."""
        key = (study.study_name, trial.number)
        suggestion = self._suggested.get(key, SuggestedPath())
        parameter = TrialParameter(param_name, param_distribution)
        if self._declared is not None:
            check_declared(
                self._declared,
                parameter,
                self._values(trial),
            )
        if param_name in suggestion.values:
            value = suggestion.values[param_name][1]
            if not parameter.is_choice or parameter.contains(value):
                return parameter.nearest(value)
        if self._declared is not None:
            self._warn(
                study,
                param_name,
                f"Trial {trial.number} asked for {param_name!r}, which the declared "
                "space does not have, or on other paths only: its value is random.",
            )
        return self._draw(study, trial, parameter)

    def _draw(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        parameter: TrialParameter,
    ) -> Any:
        """A random value of a parameter that is not on the path of a trial.

        With it the trial differs from others, those that run included, if it can.
        """
        seed = self._seed % (1 << 64)  # NumPy takes no negative ones
        numbers = (seed, trial.number, zlib.crc32(parameter.name.encode()))
        draws = np.random.SeedSequence(numbers).generate_state(_ROUNDS)
        with _DRAWS_ONE_AT_A_TIME:
            running = self._drawn.setdefault(study.study_name, {})
            others = {t.number: t.params for t in study.get_trials(deepcopy=False)}
            others |= running
            others.pop(trial.number, None)
            for draw in draws.tolist():
                value = parameter.draw(draw)
                params = {**trial.params, parameter.name: value}
                if params not in others.values():
                    break
            running[trial.number] = params
        return value

    def _warn(
        self,
        study: optuna.Study,
        what: str,
        text: str,
    ) -> None:
        """Log a warning, once for a study and what it is about."""
        key = study.study_name, what
        if self._warns and key not in self._said:
            self._said.add(key)
            _logger.warning(f"{text} {_SWITCH}")

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Forget the suggestion, and check parameters."""
        self._suggested.pop((study.study_name, trial.number), None)
        self._drawn.get(study.study_name, {}).pop(trial.number, None)
        SharedPaths(study, self._declared).forget(trial.number)
        if self._declared is not None and state != TrialState.FAIL:
            # Optuna asks no sampler for those of a single value
            for name, distribution in trial.distributions.items():
                parameter = TrialParameter(name, distribution)
                check_declared(
                    self._declared,
                    parameter,
                    self._values(trial),
                )

    # -- suggestions -------------------------------------------------------------------

    def _values(self, trial: FrozenTrial) -> Values:
        """The parameters that a trial has asked for: ``{name: (distribution, value)}``.

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

    def _choose(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        shared: SharedPaths,
    ) -> SuggestedPath:
        """A suggestion for a trial, given those of others."""
        number = trial.number
        fixed = _fixed(study, trial)
        told = self._kept.setdefault(study.study_name, ToldStudy(self._values))
        others = [t for t in shared.trials if t.number != number]
        ended = [t.number for t in others if t.state.is_finished()]
        fifth = ended[-5] if len(ended) > 4 else -1
        asked = []
        paths = {}  # of trials that have not ended
        for other in others:
            if other.state.is_finished():
                asked.append(told.asked(other))
                continue
            values = self._values(other)
            path = self._path(study, other, shared)
            paths[other.number] = path
            # A suggestion may be wrong, and that of a trial that was killed would stay
            # for ever: dependencies are learnt from the parameters that were asked for.
            # Five later trials that have ended mean that it was killed.
            expected = not values and other.number > fifth
            asked.append(
                Asked(
                    path if expected else values,
                    False,
                    expected,
                )
            )
        space = self._space([*self._asked_before(asked), *asked])
        if space is None:
            return SuggestedPath()
        # from the 20th trial on only every second one tries what nobody has tried
        if isinstance(space, LearntSpace) and (number < 20 or number % 2):
            if untried := space.untried(space.fixed_entries(fixed)):
                return SuggestedPath(untried)
        configs = told.configs(space, others, paths)
        pending = []
        for other, config in zip(others, configs, strict=True):
            if config is None:
                if self._declared is not None and other.state == TrialState.COMPLETE:
                    self._warn(
                        study,
                        "left out",
                        f"Trial {other.number} is left out, as others like it are: the "
                        f"declared space does not have {other.params}.",
                    )
            elif other.state == TrialState.RUNNING:
                pending.append(config)
        inner = told.study(
            study,
            others,
            configs,
            self._maker(study, space),
        )
        inner.seed = later_seed(self._seed, number)
        try:
            (config,) = inner.ask(
                pending=pending,
                fixed=possible_together(space.space, space.fixed_entries(fixed)),
            )
        except CandidateGenerationError:
            self._warn(
                study,
                "repeated",
                f"Trial {number}: every point is known, one is repeated, as later on.",
            )
            (config,) = space.space.decode(space.space.sample(1, seed=inner.seed))
        return SuggestedPath(space.values(config))

    def _space(self, asked: Sequence[Asked]) -> TrialSpace | None:
        """None if nothing is declared, and no trial has asked for a parameter."""
        if self._declared is not None:
            return DeclaredSpace(self._declared)
        shown = [one for one in asked if one.values]
        return None if all(one.expected for one in shown) else LearntSpace(shown)

    def _asked_before(self, asked: Sequence[Asked]) -> list[Asked]:
        """The trials of old studies that asked for the last range of each parameter."""
        old = self._asked(self._old_trials)
        last: dict[str, Any] = {}
        for one in (*old, *asked):
            last |= {name: d for name, (d, _) in one.values.items() if d is not None}
        return [
            one
            for one in old
            if all(d == last[name] for name, (d, _) in one.values.items())
        ]

    def _maker(
        self,
        study: optuna.Study,
        space: TrialSpace,
    ) -> Callable[..., Study]:
        """A function that makes a `Study` of objectives and constraints."""
        # in a learnt space `LearntSpace.untried` comes before
        has_starts = self._declared is not None or self._earlier
        return partial(
            Study,
            space.space,
            **self._arguments,
            seed=later_seed(self._seed, 0),
            starts=None if has_starts else [],
            earlier=self._learn(study, space),
        )

    def _learn(
        self,
        study: optuna.Study,
        space: TrialSpace,
    ) -> OldStudiesMean | None:
        """The old studies of a space, as it is now."""
        if self._earlier and self._learnt_of != space.space:
            minimize = study.direction == optuna.study.StudyDirection.MINIMIZE
            studies = [
                _in_words_of(space, one) if isinstance(old, optuna.Study) else one
                for old in self._earlier
                for one in read_studies(old, minimize=minimize)
            ]
            is_first = self._learnt_of is None
            self._learnt_of = space.space
            self._learnt = learn(space.space, studies, is_first)
        return self._learnt


def _trials_of(study: Any) -> Sequence[FrozenTrial]:
    """The trials of a study of Optuna that have ended."""
    if not isinstance(study, optuna.Study):
        return []
    return [t for t in study.get_trials(deepcopy=False) if t.state.is_finished()]


def _in_words_of(space: TrialSpace, old: Any) -> OldStudy:
    """An old study with entries of columns, where parameters are those of a space."""
    configs: list[Mapping[str, Any]] = []
    for config in old.configs:
        # what is out of range stays, and is left out
        entries: dict[str, Any] = {}
        for name, value in config.items():
            entries |= space.fixed_entries({name: value}) or {name: value}
        configs.append(entries)
    return OldStudy(configs, old.values)


def _fixed(study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
    """``{name: value}`` of the parameters that are fixed, see `StructuredSampler`."""
    fixed: dict[str, Any] = {}
    sampler = getattr(study, "sampler", None)
    while isinstance(sampler, PartialFixedSampler):  # it has no other way to ask
        fixed = sampler._fixed_params | fixed
        sampler = sampler._base_sampler
    # `Study.enqueue_trial` keeps them here; FrozenTrial has no other way to ask
    return fixed | trial.system_attrs.get("fixed_params", {})


def _new_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1)[0] >> 1)
