"""scikit-learn: a search with cross-validation over a conditional space."""

from __future__ import annotations

__all__ = ["StructuredSearchCV"]

import copy
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import CandidateGenerationError
from torch import Tensor

from botorch_structured.optim.problem import first_of_each
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief, check_count, later_seed, warn
from botorch_structured.study import Study
from botorch_structured.study.inputs import read_space
from botorch_structured.study.study import MOST_STARTS, Starts
from botorch_structured.study.trials import Trial

try:
    import joblib
    from sklearn.base import clone, is_classifier
    from sklearn.exceptions import FitFailedWarning
    from sklearn.model_selection import check_cv

    # The base class of scikit-learn's searches is documented ("deriving from the
    # BaseSearchCV abstract base class") but not exported.
    from sklearn.model_selection._search import BaseSearchCV
    from sklearn.utils import check_random_state
except ImportError as error:
    raise ImportError(
        "StructuredSearchCV needs scikit-learn: pip install scikit-learn."
    ) from error

Results = dict[str, Any]
Row = dict[str, Any]
Params = dict[str, Any]

# A path or a choice is given up after so many failures: as many as `suggest` tries.
_TRIES = 3
# After the starts, each so many-th candidate is a random one on the path that has the
# fewest: the comparison is in docs/default.md, "A learner that begins badly".
_EXPLORES = 4
# Arguments that are hashed with each logged row; of their texts addresses are ignored.
_SAME = ("estimator", "scoring", "cv", "error_score", "return_train_score")


class StructuredSearchCV(BaseSearchCV):
    """Search for hyperparameters with cross-validation, in a conditional space.

    Choose it in place of ``RandomizedSearchCV`` or ``GridSearchCV`` where a fit takes
    longer than the 0.1 seconds of a suggestion: candidates are chosen by `Study` from
    the scores of those before. It has the arguments, methods and attributes of
    ``RandomizedSearchCV``.

    The space says which parameters belong to which classifier. One candidate on each
    path is evaluated first, all at once; with two or three paths, two on each. With
    more than ten paths five to sixteen candidates, chosen so that each choice occurs if
    sixteen can show them. Then as many at a time as it takes to keep ``n_jobs``
    processes busy with their folds (one, if there are at least as many folds as
    processes), so that results depend on that number too. Of those, every fourth is
    random, on the path whose rarest choice has the fewest for its number of parameters:
    a learner whose first settings were bad is not left alone. All candidates are
    compared on the same folds, also where ``cv`` would shuffle anew each time.

    A candidate whose score is NaN, since it could not be fitted or scored, counts as
    failed: the search goes on and avoids its kind. The mean score is maximised; of
    several metrics, the one that ``refit`` names. With several metrics and a function
    or False for ``refit``, the search is for their Pareto front (``study_.pareto``).

    Args:
        estimator: The estimator, or a pipeline.
        space: ``{parameter: values}`` or a list of them, see
            `SearchSpace.from_dictionaries`; a `SearchSpace`; a ConfigSpace
            ``ConfigurationSpace``. Names are those of ``set_params``.
        n_iter: How many candidates are evaluated. Fewer, with a warning, if the space
            has fewer.
        scoring: As in scikit-learn: a name, a function, or several metrics.
        cv: The number of folds or a splitter. Default: 5 folds.
        n_jobs: How many processes. Default: one.
        refit: Whether to fit the best candidate on all data; the name of a metric; or
            a function ``(cv_results_) -> position``.
        random_state: The same integer gives the same search. Default: drawn.
        starts: The first candidates. Default: those named above, the first of each path
            with the values that its estimators have themselves (``SVC().C`` is 1.0),
            where the space has these, and spread ones for all else. ``gamma="scale"``
            is 1 / number of features, as on standardised data. Or ``"random"``,
            ``"spread"``, ``"middle"`` or ``"default"`` ones, configurations, or a
            function, see `Study`: paths that have none of these get no start.
        verbose: 1 and more: print what is evaluated.
        pre_dispatch: How many jobs are prepared for the processes.
        error_score: The score of a fit that fails (NaN: the candidate has failed), or
            ``"raise"``.
        return_train_score: Whether ``cv_results_`` has training scores.
        param_distributions: Another name of ``space``, that of ``RandomizedSearchCV``:
            give one of the two.
        log: A file to write each candidate to, on the disk before the search goes on.
            If it exists, ``fit`` with the same arguments and data goes on where it was.
            It needs a ``random_state``, and the same folds each time.
        earlier: Old searches to begin from, of the same parameters for other data: a
            fitted search, its ``cv_results_`` (a dictionary or a frame), what else a
            `Study` takes, or a list of these. The first two candidates suit most of
            them. Where they mislead, the estimators' own settings follow.

    A search that is interrupted, by hand or by an error, has ``study_``,
    ``cv_results_``, ``best_params_`` and ``best_score_`` of what was evaluated.

    Attributes:
        best_estimator_: Fitted on all data with ``best_params_``.
        best_params_, best_score_, best_index_: The best candidate.
        cv_results_: A dictionary of columns, one row for each candidate in the order of
            evaluation.
        study_: The `Study`: ``.plot()``, ``.trials``, ``.model``.

    Raises:
        ValueError: On fitting: an argument is not what it should be, every fit of
            every candidate failed, or the log is of another search.

    Example:
        >>> pipeline = make_pipeline(StandardScaler(), SVC())
        >>> space = [
        ...     {"svc": [SVC()], "svc__C": (1e-3, 1e3, "log")},
        ...     {"svc": [KNeighborsClassifier()], "svc__n_neighbors": (1, 50)},
        ... ]
        >>> search = StructuredSearchCV(pipeline, space, n_iter=30, random_state=0)
        >>> search.fit(X, y).best_params_
    """

    def __init__(
        self,
        estimator: Any,
        space: Any = None,
        n_iter: int = 50,
        *,
        scoring: Any = None,
        cv: Any = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[[Results], int] = True,
        random_state: Any = None,
        starts: Starts | None = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        error_score: float | str = np.nan,
        return_train_score: bool = False,
        param_distributions: Any = None,
        log: str | os.PathLike[str] | None = None,
        earlier: Any = None,
    ) -> None:
        super().__init__(
            estimator=estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.space = space
        self.n_iter = n_iter
        self.random_state = random_state
        self.starts = starts
        self.param_distributions = param_distributions
        self.earlier = earlier
        self.log = log

    def fit(
        self,
        X: Any,
        y: Any = None,
        **params: Any,
    ) -> StructuredSearchCV:
        """Search, then fit the best candidate: see ``RandomizedSearchCV.fit``."""
        self._data = (X, y, params)  # the first candidates depend on it
        try:
            fitted: StructuredSearchCV = super().fit(X, y, **params)
        finally:
            del self._data
        return fitted

    def __sklearn_clone__(self) -> StructuredSearchCV:
        # scikit-learn copies dictionaries of a list one by one: an estimator that is in
        # several of them would be several estimators
        copied: StructuredSearchCV = super().__sklearn_clone__()
        names = ("space", "param_distributions", "starts")
        # together, as an estimator may be in several of them
        values = copy.deepcopy({name: getattr(self, name) for name in names})
        for name, value in values.items():
            setattr(copied, name, value)
        copied.earlier = self.earlier  # a copy of a fitted search is not fitted
        return copied

    def _run_search(self, evaluate_candidates: Callable[..., Results]) -> None:
        """The search, which scikit-learn calls within ``fit``."""
        n_iter = check_count("n_iter", self.n_iter)
        if self.log is not None and self.random_state is None:
            raise ValueError("random_state: expected one with a log, got None.")
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        self._history = _History(evaluate_candidates, self)
        try:
            self._search(
                n_iter,
                seed,
                joblib.effective_n_jobs(self.n_jobs),
            )
            self._history.finish(self.study_)
        except BaseException:  # a signal by hand, too
            if results := self._history.results():
                self.cv_results_ = results
                study = self.study_
                if len(study.objectives) == 1 and any(t.values for t in study.trials):
                    self.best_params_, self.best_score_ = study.best
            raise
        finally:
            del self._history  # it holds the data
            if self.log is not None and hasattr(self, "study_"):
                self.study_.close()

    def __getstate__(self) -> dict[str, Any]:
        # Processes that fit get the search, too; its findings are not for them.
        state = super().__getstate__()
        aside = ("_data", "_history", "study_") if "_data" in state else ()
        return {k: v for k, v in state.items() if k not in aside}

    def _search(
        self,
        n_iter: int,
        seed: int,
        jobs: int,
    ) -> None:
        space = _read_space(self.space, self.param_distributions)
        starts = self.starts
        if starts is None:
            starts = partial(_first_of, self._own_starts(space, seed))
        metrics = ["score"]
        if isinstance(self.refit, str):
            metrics = [self.refit]
        elif isinstance(self.scoring, (list, tuple, set, Mapping)):
            metrics = list(self.scoring)
        goals = dict.fromkeys(metrics, "maximize")
        options: dict[str, Any] = {"seed": seed, "starts": starts}
        study = self.study_ = Study(
            space,
            goals,
            log=self.log,
            earlier=self.earlier,
            **options,
        )
        q = begun = max(1, len(study.starts))
        if study.earlier is not None and not study._asks_all:  # these know more
            q = begun = max(1, jobs // 2)
        if self.log is not None:
            q = jobs  # a kill does not lose all starts
            same = [
                f"{key}={re.sub(r' at 0x[0-9a-fA-F]+', '', repr(value))}"
                for key, value in self.get_params().items()
                if key.partition("__")[0] in _SAME
            ]
            data = joblib.hash((*self._data[:2], same))
            for trial in study.trials:
                if trial.metadata.get("data") != data:
                    raise ValueError(
                        "log: expected that of a search with the same data and the "
                        f"same {', '.join(_SAME)}, got another."
                    )
            self._history.go_on(study.trials)
        while (missing := n_iter - len(study.trials)) > 0:
            q = min(q, missing)
            has_begun = len(study.trials) >= begun
            random = _least_tried(study, q, begun) if has_begun else []
            try:
                configs = study.ask(q - len(random), random) if q > len(random) else []
            except CandidateGenerationError:
                if q > 1:  # fewer candidates are left than were asked for
                    q = jobs = 1
                    continue
                warn(
                    f"space: expected at least n_iter={n_iter} candidates, got "
                    f"{len(study.trials)}: all of them were evaluated."
                )
                break
            configs += random
            scores = self._history.evaluate(configs)
            q = -(-jobs // self._history.num_folds)
            goals = dict.fromkeys(self._history.metrics, "maximize")
            if self.log is not None:
                rows = self._history.rows[-len(configs) :]
                kept = [{"data": data, "folds": folds} for folds in rows]
                study.tell_many(configs, scores, metadata=kept)
                continue
            if goals and goals != study.objectives:
                # A function has other names, known once a candidate did not fail.
                failed = [trial.config for trial in study.trials]
                study = Study(
                    space,
                    goals,
                    earlier=study.earlier,
                    **options,
                )
                study.tell_many(failed, [None] * len(failed))
                self.study_ = study
            study.tell_many(configs, scores)

    def _own_starts(self, space: SearchSpace, seed: int) -> Tensor:
        """Spread starts; the first of each path has the settings of its estimators."""
        starts = space.starts(
            kind="spread",
            seed=seed,
            at_most=MOST_STARTS,
        )
        # the comparison is in docs/default.md, "Starts of a pipeline"
        if 1 < len(starts) <= 3:
            starts = space.starts(
                2 * len(starts),
                kind="spread",
                seed=seed,
            )
        configs = space.decode(starts)
        d = getattr(self._data[0], "shape", ())[1:]  # the number of features
        for i in first_of_each(space.tree.path_key(starts)).tolist():
            config = configs[i]
            chosen = {k: clone(v) for k, v in config.items() if _is_step(v)}
            settings = clone(self.estimator).set_params(**chosen).get_params()
            for name in sorted(config.keys() & settings.keys() - chosen.keys()):
                value = settings[name]
                if _is_step(value):  # the search is to find out which step to take
                    continue
                if name.endswith("gamma") and str(value) in ("scale", "auto") and d:
                    value = 1.0 / d[0]
                try:
                    x = space.encode([{**config, name: value}])
                except ValueError:  # such as max_features="sqrt", where it is a number
                    continue
                same = space.tree.path_key(x) == space.tree.path_key(starts[i : i + 1])
                if same.all() and space.feasible(x).all():
                    starts[i] = x[0]
                    config[name] = value
        # an estimator may be set to the second start of its path
        return starts.new_tensor(list(dict.fromkeys(map(tuple, starts.tolist()))))

    def _format_results(
        self,
        candidate_params: Any,
        n_splits: int,
        out: Any,
        more_results: Any = None,
    ) -> Results:
        """The candidates that failed, too, where scikit-learn makes ``cv_results_``."""
        return self._history.format(
            candidate_params,
            n_splits,
            out,
            more_results,
        )


def _first_of(starts: Tensor, space: SearchSpace, seed: int) -> Tensor:
    return starts


def _is_step(value: Any) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)


def _least_tried(study: Study, q: int, begun: int) -> list[Params]:
    """The random ones of the next ``q`` candidates.

    Each is on the path whose rarest choice has the fewest candidates for the number of
    its parameters: one that begins badly would be left alone otherwise. A value of a
    decision of which the first three candidates failed, and all since, is left out: by
    the rule of succession it works in one case of five or less.

    Args:
        study: The study.
        q: How many candidates are next.
        begun: How many were evaluated first.
    """
    space = study.space
    n = len(study.trials)
    count = sum(k % _EXPLORES == _EXPLORES - 1 for k in range(n - begun, n - begun + q))
    chosen: list[Params] = []
    if space.tree.num_paths == 1:
        return chosen
    failed = torch.tensor([not t.values for t in study.trials])
    for k in range(count):
        points = space.encode([*(t.config for t in study.trials), *chosen])
        seed = later_seed(study.seed, n + k)
        configs = space.decode(space.starts(seed=seed))
        starts = space.encode(configs)
        is_new = ~(starts.unsqueeze(1) == points).all(-1).any(-1)
        # starts x points x decisions: where both have the same choice
        codes, active, _ = space.tree.locate(starts)
        others, _, _ = space.tree.locate(points)
        same = (codes.unsqueeze(1) == others) & (codes >= 0).unsqueeze(1)
        tried = same[:, :n].sum(1)
        worked = same[:, :n][:, ~failed].sum(1)
        is_new &= ~((tried >= _TRIES) & (worked == 0)).any(-1)
        rarest = same.sum(1).masked_fill(codes < 0, n + q).amin(-1)
        if not is_new.any():
            continue
        share = (rarest + 0.5) / active.sum(-1)
        share = share.where(is_new, math.inf)
        least = (share == share.min()).nonzero().flatten().tolist()
        chosen.append(configs[least[seed % len(least)]])
    return chosen


def _read_space(space: Any, same: Any) -> SearchSpace:
    """The one that is given, without a class where an estimator should be."""
    if (space is None) == (same is None):
        got = "none" if space is None else "both"
        raise ValueError(f"space: expected it or param_distributions, got {got}.")
    space = same if space is None else space
    # unlike those of a study, dictionaries of a grid may have no name in common
    read = read_space(space, told_apart=False)
    several = [space] if isinstance(space, Mapping) else space
    grid = several if isinstance(several, (list, tuple)) else ()
    tuples = [(k, v) for part in grid for k, v in part.items() if isinstance(v, tuple)]
    # scikit-learn's own searches take a pair as a list; who writes scales knows ours
    if tuples and all(len(values) == 2 for _, values in tuples):
        name, pair = tuples[0]
        warn(
            f"space: {name!r}: {pair} is the range between two numbers, as any pair "
            f"is; the list {[*pair]} has the two. Without this warning: uniform, "
            "loguniform or randint of scipy.stats."
        )
    return read


class _History:
    """The candidates of a search, failures included.

    scikit-learn ends a search with an error if every fit of a call of
    ``evaluate_candidates`` fails, as all those of a single candidate may, and keeps no
    rows of that call. Here they are kept, and put in where ``cv_results_`` is made.
    """

    def __init__(
        self, evaluate: Callable[..., Results], search: StructuredSearchCV
    ) -> None:
        self._evaluate_candidates = evaluate
        self._search = search
        # An iterator has been read by now, and its folds are the same anyway.
        once = isinstance(search.cv, Iterator)
        self._folds = None if once else _SameFolds(search.cv, search.estimator)
        #: The candidates in the order of evaluation.
        self.params: list[Params] = []
        #: Of each, the rows of its folds as scikit-learn has them, or why it failed.
        self.rows: list[list[Row] | str] = []
        self.num_folds = 1
        self._num_formatted = 0  # candidates of calls that did not raise an error
        self._results: Results = {}
        self._example: Row = {}  # a row of a candidate that did not fail
        self._error: Exception | None = None  # the last one

    def go_on(self, trials: list[Trial]) -> None:
        """Take over the candidates of a log."""
        for trial in trials:
            folds = trial.metadata["folds"] or "in an earlier process"
            self.params.append(trial.config)
            self.rows.append(folds)
            if not isinstance(folds, str):
                self._example = folds[0]
                self.num_folds = len(folds)

    @property
    def metrics(self) -> list[str]:
        """The names of the maximised scores; none before they are known."""
        prefix = "mean_test_"
        names = [k.removeprefix(prefix) for k in self._results if k.startswith(prefix)]
        return [self._search.refit] if self._search.refit in names else names

    def evaluate(self, configs: list[Params]) -> list[dict[str, float] | None]:
        """The mean scores of candidates; None where they failed."""
        try:
            with warnings.catch_warnings():
                # They would come again with each candidate; `finish` has them once.
                warnings.filterwarnings("ignore", ".*scores are non-finite")
                warnings.simplefilter("ignore", FitFailedWarning)
                self._results = self._evaluate_candidates(configs, cv=self._folds)
        except BaseException as error:
            failed = re.search(r"All the (\d+) fits failed", str(error))
            # a process that was killed, or no number where there was one before
            is_of_one = isinstance(error, BrokenExecutor)
            if "scoring must return a number" in str(error):
                is_of_one |= bool(self._example or configs[1:])
            if self._search.error_score == "raise" or not (failed or is_of_one):
                raise
            assert isinstance(error, Exception)  # such words are no signal by hand
            if is_of_one and len(configs) > 1:
                return [row for config in configs for row in self.evaluate([config])]
            if failed:
                self.num_folds = int(failed[1]) // len(configs)
            self.params += configs
            self.rows += [str(error)] * len(configs)
            self._error = error
            return [None] * len(configs)
        columns = {k: self._results[f"mean_test_{k}"].tolist() for k in self.metrics}
        rows = [
            dict(zip(columns, scores, strict=True))
            for scores in zip(*columns.values(), strict=True)
        ]
        rows = rows[len(rows) - len(configs) :]
        return [row if np.isfinite([*row.values()]).all() else None for row in rows]

    def format(
        self,
        params: list[Params],
        n_splits: int,
        out: list[Row],
        more: Any,
    ) -> Results:
        """``cv_results_`` of the candidates of all calls that did not raise an error.

        Args:
            params: The candidates.
            n_splits: The number of folds.
            out: Their rows, ``n_splits`` of each.
            more: Further columns.
        """
        self.num_folds = n_splits
        self._example = out[0]
        new = params[self._num_formatted :]
        self._num_formatted = len(params)
        # the last rows: before them joblib may have made fits of a call that failed
        first = len(out) - len(new) * n_splits
        for i in range(first, len(out), n_splits):
            self.rows.append(out[i : i + n_splits])
        self.params += new
        return self.results(more)

    def results(self, more: Any = None) -> Results:
        """``cv_results_``, up to date; empty where nothing could be fitted."""
        if not self._example:
            return {}
        # a failed candidate has a row like any other, with the score of failures
        failed = {**self._example, "fit_time": 0.0, "score_time": 0.0}
        score = self._search.error_score
        for key in failed.keys() & {"test_scores", "train_scores"}:
            several = isinstance(failed[key], dict)
            failed[key] = dict.fromkeys(failed[key], score) if several else score
        out: list[Row] = []
        for rows in self.rows:
            if isinstance(rows, str):
                rows = self.num_folds * [{**failed, "fit_error": rows}]
            out += rows
        # the dictionary that scikit-learn has, too
        self._results |= BaseSearchCV._format_results(
            self._search,
            self.params,
            self.num_folds,
            out,
            more,
        )
        return self._results

    def finish(self, study: Study) -> None:
        """Bring ``cv_results_`` up to date; one warning for all fits that failed."""
        if not self._results and self._example:
            # scikit-learn needs one result of its own: a good one is repeated
            config, _ = [*study.pareto, (self.params[0], None)][0]
            params = list(self.params)
            rows = list(self.rows)
            self.evaluate([config])
            self.params = params
            self.rows = rows
        if not self.results():
            assert self._error is not None
            raise self._error
        n = self.num_folds
        errors = [
            (config, row["fit_error"])
            for config, rows in zip(self.params, self.rows, strict=True)
            for row in (n * [{"fit_error": rows}] if isinstance(rows, str) else rows)
            if row["fit_error"]
        ]
        if errors:
            bad = list(dict.fromkeys(brief(config, 200) for config, _ in errors))
            shown = [f"  {config}" for config in bad[:3]]
            shown += [f"  and {len(bad) - 3} more"] if len(bad) > 3 else []
            settings = "\n".join(shown)
            warn(
                f"{len(errors)} fits failed out of a total of {len(self.params) * n}. "
                f"Their score is {self._search.error_score}. error_score='raise' stops "
                f"at the first one. They have these settings:\n{settings}\nOne of the "
                f"errors:\n{errors[0][1]}",
                FitFailedWarning,
            )


class _SameFolds:
    """A splitter that splits once: candidates are compared on the same folds."""

    def __init__(self, cv: Any, estimator: Any) -> None:
        self._cv = cv
        self._estimator = estimator
        self._folds: list[Any] = []

    def split(
        self,
        X: Any,
        y: Any = None,
        **params: Any,
    ) -> list[Any]:
        if not self._folds:
            cv = check_cv(
                self._cv,
                y,
                classifier=is_classifier(self._estimator),
            )
            self._folds = list(cv.split(X, y, **params))
        return self._folds
