"""Ax: `structured_generation_strategy`, for search spaces whose parameters depend.

Ax chooses its own generation strategy unless it is given one. Its own flattens a
hierarchical search space: the model sees every parameter in every trial, those that do
not exist there at made-up values. The strategy of this module keeps the hierarchy.

Importing this module tells Ax's storage of the strategy and of this package's models:
import it before ``Client.load_from_json_file`` or ``load_from_database``.
"""

from __future__ import annotations

__all__ = ["StructuredNode", "structured_generation_strategy"]

import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from botorch.exceptions.errors import CandidateGenerationError

from botorch_structured.models import (
    ConditionalGP,
    MonotoneGP,
    MultiTaskABLR,
    OldStudiesMean,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief, check_seed
from botorch_structured.spaces.columns import CategoricalColumn
from botorch_structured.spaces.other_spaces import check_aligned
from botorch_structured.spaces.search_space import KINDS
from botorch_structured.study import Study
from botorch_structured.study.earlier import OldStudy, learn, read_studies

try:
    from ax.adapter.transforms.derelativize import derelativize_bound
    from ax.core.arm import Arm
    from ax.core.data import Data
    from ax.core.experiment import Experiment
    from ax.core.generator_run import GeneratorRun
    from ax.core.objective import Objective
    from ax.core.observation import ObservationFeatures
    from ax.core.outcome_constraint import OutcomeConstraint
    from ax.core.trial_status import TrialStatus
    from ax.core.types import ComparisonOp, TParameterization
    from ax.exceptions.core import SearchSpaceExhausted
    from ax.generation_strategy.center_generation_node import CenterGenerationNode
    from ax.generation_strategy.external_generation_node import ExternalGenerationNode
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.storage.botorch_modular_registry import register_model
    from ax.storage.json_store.registry import (
        CORE_DECODER_REGISTRY,
        CORE_ENCODER_REGISTRY,
    )
except ImportError as error:
    raise ImportError(
        "botorch_structured.integrations.ax needs Ax: "
        "pip install 'botorch-structured[ax]'."
    ) from error

Config = Mapping[str, Any]
Metrics = Mapping[str, float]  # a number for each signature of a metric
Row = Mapping[str, tuple[float, float]]  # its mean, and the standard error
Rows = Mapping[tuple[int, str], Row]  # by trial and name of the arm


def structured_generation_strategy(
    seed: int | None = None,
    aligned: Iterable[Iterable[str]] = (),
    starts: str | Sequence[Config] | None = None,
    initialize_with_center: bool | None = None,
    earlier: Any = None,
) -> GenerationStrategy:
    r"""A generation strategy of Ax that searches with this package.

    Choose it where parameters exist only under some values of others
    (``dependent_parameters``). It begins with the centre of the space, as Ax's own
    strategies do, then takes the starts of a `Study`, without those of which something
    is known. Then it goes on with `suggest`; one trial is enough for a loop. Range
    parameters (floats, integers, logarithmic ones), choices (ordered or not, also with
    three or more strings and with dependents), fixed parameters and parameter
    constraints are understood, and so are several objectives and outcome constraints.

    A suggestion depends on the trials and on ``seed`` only. A client that was saved and
    loaded, in another process, goes on exactly as it would have.

    ===================================== ============================================
    trial                                 its part in the search
    ===================================== ============================================
    completed, or stopped early           an observation, by the last value of each
                                          metric (NaN or infinite: a failure), and by
                                          its standard error where all observations
                                          have a positive one: otherwise, and for
                                          constraints, noise is estimated
    completed, but a metric is missing    pending
    running, also with some data          pending
    abandoned                             pending: its point is not proposed again
    failed                                an observation worse than all others
    stale, or outside of the space        none
    ===================================== ============================================

    Outcomes are used with ten decimals, as Ax saves them.

    Args:
        seed: The same seed and the same trials give the same suggestions. Default:
            drawn once.
        aligned: Groups of names that mean the same parameter under different values of
            one choice, ``[["rate_adam", "rate_sgd"]]``, with the same bounds: trials
            of one say something about the others. Ax has no parameter with two
            parents' values, so that it needs a name for each.
        starts: The first trials: ``"inner"`` (the default), ``"random"``,
            ``"spread"``, ``"middle"`` or ``"default"`` ones, on paths that have no
            trial; or configurations, in Ax's names: paths that have none of these get
            no start.
        initialize_with_center: Whether the first trial of an experiment is the centre
            of the space, where it is feasible and no parameter is held. Default: if no
            ``starts`` and nothing ``earlier`` are given.
        earlier: Old studies to begin from: clients or experiments of Ax, or what else a
            `Study` takes but tables. They are saved with the client. For one objective.

    Raises:
        ValueError: An argument is not what it should be. When trials are generated: the
            space has a parameter that is a task, a fidelity, derived or disabled, there
            are preferential objectives, or ``fixed_parameters`` of other names or
            values than the space has.
        SearchSpaceExhausted: When trials are generated: every point has been tried.

    Example:
        >>> client = Client()
        >>> client.configure_experiment(parameters)
        >>> client.configure_optimization(objective="-error")
        >>> client.set_generation_strategy(structured_generation_strategy(seed=0))
        >>> for _ in range(30):
        ...     for trial, config in client.get_next_trials(max_trials=1).items():
        ...         client.complete_trial(trial, raw_data={"error": evaluate(config)})
        >>> client.get_best_parameterization()
    """
    node = StructuredNode(
        seed,
        aligned,
        starts,
        initialize_with_center,
        earlier,
    )
    return GenerationStrategy(nodes=[node], name="Structured")


class StructuredNode(ExternalGenerationNode):
    """The node of `structured_generation_strategy`, for strategies that have others.

    Args:
        seed: As there.
        aligned: As there.
        starts: As there.
        initialize_with_center: As there.
        earlier: As there.
    """

    def __init__(
        self,
        seed: int | None = None,
        aligned: Iterable[Iterable[str]] = (),
        starts: str | Sequence[Config] | None = None,
        initialize_with_center: bool | None = None,
        earlier: Any = None,
    ) -> None:
        seed = check_seed(seed)
        if not isinstance(starts, (list, tuple)) and starts not in (None, *KINDS):
            raise ValueError(
                f"starts: expected one of {list(KINDS)} or a list of configurations, "
                f"got {brief(starts)}."
            )
        aligned = check_aligned(aligned)
        # No point is proposed twice. What Ax does about those that are, random points
        # after five attempts, would hide that every point has been tried.
        super().__init__(name="Structured", should_deduplicate=False)
        self.fallback_specs = {}
        self.seed = int(torch.randint(2**31, ())) if seed is None else seed
        self.aligned = aligned
        self.starts = starts
        if initialize_with_center is None:
            initialize_with_center = starts is None and earlier is None
        if not isinstance(initialize_with_center, bool):
            raise ValueError(
                "initialize_with_center: expected True, False or None, got "
                f"{brief(initialize_with_center)}."
            )
        self.initialize_with_center = initialize_with_center
        if isinstance(earlier, Mapping) and "studies" in earlier:  # from a file
            self.earlier = earlier
        else:
            old = [] if earlier is None else read_studies(earlier, minimize=None)
            text = json.dumps({"studies": old}, default=_plain)
            self.earlier = json.loads(text)
        self._learnt: OldStudiesMean | None = None
        self._learnt_of: SearchSpace | None = None
        self._fixed: Config = {}
        self._search: _SearchState | None = None

    def update_generator_state(self, experiment: Experiment, data: Data) -> None:
        """Read the experiment."""
        self._search = _SearchState(experiment, data, self.aligned)

    def get_next_candidate(
        self, pending_parameters: list[TParameterization]
    ) -> TParameterization:
        """The next configuration; see `structured_generation_strategy`."""
        assert self._search is not None, "Ax calls update_generator_state first."
        if self.initialize_with_center and not (self._fixed or pending_parameters):
            if (center := self._search.center()) is not None:
                return center
        old = self.earlier["studies"]
        if old and self._learnt_of != self._search.space:
            first = self._learnt_of is None
            self._learnt_of = self._search.space
            self._learnt = self._search.learn(old, first)
        return self._search.suggest(
            self.seed, pending_parameters, self.starts, self._fixed, self._learnt
        )

    def _gen(self, *args: Any, **kwargs: Any) -> GeneratorRun:
        fixed = kwargs.get("fixed_features")
        self._fixed = {} if fixed is None else fixed.parameters
        return super()._gen(*args, **kwargs)


class _SearchState:
    """An experiment of Ax, as a `Study` is told of it.

    Args:
        experiment: The experiment.
        data: Its data.
        aligned: Groups of names that are one parameter here, that of the first name.
    """

    def __init__(
        self, experiment: Experiment, data: Data, aligned: Sequence[Sequence[str]]
    ) -> None:
        goal = experiment.optimization_config
        if goal is None or goal.is_bope_problem:
            raise ValueError(
                "optimization_config: expected objectives that are metrics, got "
                f"{goal!r}."
            )
        self._experiment = experiment
        self._ax_space = experiment.search_space
        # values of parameters that were added when there were trials already
        self._backfill = self._ax_space.backfill_values()
        self._first = {name: group[0] for group in aligned for name in group}
        self._groups = {group[0]: group for group in aligned}
        self.space = SearchSpace.from_ax(self._ax_space, aligned)
        columns = self.space.columns
        choices = {c.name for c in columns if isinstance(c, CategoricalColumn)}
        # ranges that Ax rounds, and the space has as choices
        ranges = self._ax_space.range_parameters
        self._rounded = {k for k in ranges if self._first.get(k, k) in choices}
        rows = _rows(data)
        sums = {f"objective_{i}": w for i, w in enumerate(_weights(goal.objective))}
        self._objectives = dict.fromkeys(sums, "maximize")
        self._constraints = []
        for i, constraint in enumerate(goal.all_constraints):
            if (bound := self._bound(constraint, rows)) is not None:
                sums[f"constraint_{i}"] = dict(constraint.metric_weights)
                sign = "<=" if constraint.op is ComparisonOp.LEQ else ">="
                self._constraints.append(f"constraint_{i} {sign} {bound!r}")
        # configurations, their sums of metrics (None for a failure), standard errors
        self._told: list[tuple[Config, Metrics | None, Metrics | None]] = []
        self._pending: list[Config] = []
        self._read_trials(rows, sums)

    def learn(self, earlier: Sequence[Any], say: bool) -> OldStudiesMean | None:
        """Old studies, lists of configurations and of values, to be learnt from."""
        studies = [
            OldStudy([self._read(config) for config in configs], values)
            for configs, values in earlier
        ]
        return learn(self.space, studies, say)

    def suggest(
        self,
        seed: int,
        pending: Sequence[Config],
        starts: str | Sequence[Config] | None,
        fixed: Config,
        earlier: OldStudiesMean | None = None,
    ) -> TParameterization:
        """A configuration to evaluate, in Ax's names.

        Args:
            seed: That of the study.
            pending: Those that Ax says are pending; they count unless they are trials.
            starts: Those of the study, in Ax's names.
            fixed: Parameters to be held, in Ax's names.
            earlier: What old studies have taught.
        """
        trials = self._experiment.trials.values()
        arms = [arm.parameters for trial in trials for arm in trial.arms]
        new = [self._read(config) for config in pending if config not in arms]
        if starts is not None and not isinstance(starts, str):
            starts = [self._read(config) for config in starts]
        study = Study(
            self.space,
            self._objectives,
            self._constraints,
            seed=seed,
            starts=starts,
            earlier=earlier,
        )
        configs, values, sems = (
            zip(*self._told, strict=True) if self._told else 3 * [()]
        )
        study.tell_many(configs, values, sems=sems)
        pending = [*self._pending, *new]
        try:
            (config,) = study.ask(pending=pending, fixed=self._read_fixed(fixed))
        except CandidateGenerationError as error:
            tried = "Every point has been tried"
            if new:
                k = len(new)
                tried += f", or is among the {k} of this batch: ask for {k} at most"
            raise SearchSpaceExhausted(f"{tried}. {error}") from None
        except ValueError as error:
            raise ValueError(
                re.sub("^fixed:", "fixed_parameters:", str(error))
            ) from None
        return self._write(config)

    def center(self) -> TParameterization | None:
        """The centre of the space; None if there are trials, or it is infeasible."""
        if self._experiment.trials:
            return None
        node = CenterGenerationNode("")
        node.search_space = self._ax_space
        center = node.compute_center_params()
        config = {} if center is None else self._read(center)
        return self._write(config) if self._is_inside(config) else None

    def _read_fixed(self, fixed: Config) -> dict[str, Any]:
        """Fixed parameters under the names of columns."""
        parameters = self._ax_space.parameters
        for name, value in fixed.items():
            if name not in parameters:
                raise ValueError(
                    f"fixed_parameters: expected names among {sorted(parameters)}, got "
                    f"{name!r}."
                )
            if not parameters[name].validate(value):
                raise ValueError(
                    f"fixed_parameters: expected a value of {parameters[name]}, got "
                    f"{value!r}."
                )
        columns = {self._first.get(name, name): value for name, value in fixed.items()}
        # the others have one value everywhere
        return {name: v for name, v in columns.items() if name in self.space.names}

    def _read(self, parameters: Config) -> Config:
        """Ax's parameters as a configuration of the space."""
        if self._backfill:
            parameters = self._active({**self._backfill, **parameters})
        for name in self._rounded & parameters.keys():
            value = self._ax_space.parameters[name].cast(parameters[name])
            parameters = {**parameters, name: value}
        return {self._first.get(k, k): v for k, v in parameters.items()}

    def _write(self, config: Config) -> TParameterization:
        """A configuration of the space as Ax's parameters."""
        aligned = {n: v for k, v in config.items() for n in self._groups.get(k, [k])}
        return self._ax_space.cast_arm(Arm(self._active(aligned))).parameters

    def _active(self, parameters: Any) -> TParameterization:
        """Those of the parameters that exist in the hierarchy."""
        features = ObservationFeatures(parameters)
        return self._ax_space.cast_observation_features(features).parameters

    def _bound(self, constraint: OutcomeConstraint, rows: Rows) -> float | None:
        """A constraint's bound; None if relative to a baseline without data."""
        if not constraint.relative:
            return float(constraint.bound)
        baseline = getattr(self._experiment.status_quo, "name", None)
        weights = dict(constraint.metric_weights)
        values = [
            _total(weights, row)
            for (_, arm), row in rows.items()
            if arm == baseline and weights.keys() <= row.keys()
        ]
        if not values:
            return None
        return float(derelativize_bound(constraint.bound, sum(values) / len(values)))

    def _read_trials(self, rows: Rows, sums: Mapping[str, Metrics]) -> None:
        """Sort trials into those that the study is told of and those it waits for."""
        needed = {metric for weights in sums.values() for metric in weights}
        finished = (TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED)
        outside = set()
        trials = self._experiment.trials.values()
        for trial, arm in [(one, arm) for one in trials for arm in one.arms]:
            config = self._read(arm.parameters)
            row = rows.get((trial.index, arm.name), {})
            if trial.status is TrialStatus.STALE:
                continue
            if not self._is_inside(config):
                outside.add(trial.index)
            elif trial.status is TrialStatus.FAILED:
                self._told.append((config, None, None))
            elif trial.status in finished and needed <= row.keys():
                values = {name: _total(w, row) for name, w in sums.items()}
                if all(map(math.isfinite, values.values())):
                    self._told.append((config, values, self._sem_of_sums(row, sums)))
                else:
                    self._told.append((config, None, None))
            else:
                self._pending.append(config)
        if outside:
            warnings.warn(
                f"Trials {sorted(outside)} lie outside of the search space: they are "
                "not used. Widen the space to use them.",
                stacklevel=2,
            )

    def _sem_of_sums(self, row: Row, sums: Mapping[str, Metrics]) -> Metrics | None:
        """Standard errors of objectives, whose metrics count as independent.

        None if one is not known.
        """
        errors = {
            name: math.hypot(*(w * row[k][1] for k, w in sums[name].items()))
            for name in self._objectives
        }
        are_known = all(0.0 < s * s < math.inf for s in errors.values())
        return errors if are_known else None

    def _is_inside(self, config: Config) -> bool:
        """Whether a configuration is one of the space."""
        try:
            return bool(self.space.feasible(self.space.encode([config])))
        except ValueError:
            return False


def _weights(objective: Objective) -> list[Metrics]:
    """The sum of metrics that each of the objectives is, to be maximised."""
    if not objective.is_multi_objective:  # a name may have a comma
        return [dict(objective.metric_weights)]
    signatures = objective.metric_name_to_signature
    return [
        dict(Objective(part, metric_name_to_signature=signatures).metric_weights)
        for part in objective.expression.split(",")
    ]


def _total(weights: Metrics, row: Row) -> float:
    return sum(weight * row[metric][0] for metric, weight in weights.items())


def _rows(data: Data) -> Rows:
    """The last mean of each metric, and its standard error (NaN where none is known).

    Both are as a client that is saved and loaded has them, with ten decimals.
    """
    frame = data.df
    means = frame["mean"].astype(float).round(10)
    sems = frame["sem"].astype(float).round(10)
    rows: dict[tuple[int, str], dict[str, tuple[float, float]]] = {}
    keys = zip(frame["trial_index"], frame["arm_name"], strict=True)
    numbers = zip(frame["metric_signature"], means, sems, strict=True)
    for key, (metric, mean, sem) in zip(keys, numbers, strict=True):
        rows.setdefault(key, {})[metric] = float(mean), float(sem)
    return rows


def _plain(value: Any) -> Any:
    """A number of NumPy as Python's; the text of what JSON does not have."""
    return value.item() if hasattr(value, "item") else str(value)


def _node_to_dict(node: StructuredNode) -> dict[str, Any]:
    names = ("seed", "aligned", "starts", "initialize_with_center", "earlier")
    return {"__type": "StructuredNode", **{k: getattr(node, k) for k in names}}


for _model in (ConditionalGP, MonotoneGP, MultiTaskABLR, TreedGP, TreeStructuredGP):
    register_model(_model)
CORE_ENCODER_REGISTRY[StructuredNode] = _node_to_dict
CORE_DECODER_REGISTRY["StructuredNode"] = StructuredNode
