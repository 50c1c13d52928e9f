"""Choosing evaluations one after the other, by a model and at random."""

from __future__ import annotations

__all__ = ["MODEL", "RANDOM", "START", "Study", "fitted_model", "suggest"]

from collections.abc import Callable, Iterator

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.demo.log import EvaluationLog, Record
from botorch_structured.models import TreeStructuredGP
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import ScikitLearnCASH
from botorch_structured.transforms import ClipTail

START, MODEL, RANDOM = "start", "TreeStructuredGP", "random search"

# An error rate is a step function: nearer than this to a known point, in widths of the
# bounds, there is little to learn.
_STEP = 0.01
# Two of nine learners have a single configuration, which may be drawn again: so many
# draws contain a new point.
_TRIES = 200
# Digits of an error rate: two that differ by the order of a sum are the same.
_DIGITS = 12
# In widths of the bounds: so near, a configuration and a point are the same.
_ROUNDING = 1e-9


def fitted_model(space: SearchSpace, X: Tensor, errors: Tensor) -> TreeStructuredGP:
    """The model of minus the error rate (BoTorch maximises).

    Args:
        space: The space.
        X: ``n x d`` evaluated points.
        errors: ``n x 1`` error rates; 1.0 where an evaluation failed.
    """
    # A failure has the value 1.0, and good learners differ by 0.01: without `ClipTail`
    # standardised outcomes would hardly show these differences.
    outcomes = ChainedOutcomeTransform(clip=ClipTail(), standardize=Standardize(m=1))
    model = TreeStructuredGP(
        X,
        -errors,
        space.tree,
        input_transform=space.input_transform(),
        outcome_transform=outcomes,
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def suggest(space: SearchSpace, X: Tensor, errors: Tensor) -> Tensor:
    """The point to evaluate next: the one with the largest LogEI over all paths.

    Args:
        space: The space.
        X: ``n x d`` evaluated points.
        errors: ``n x 1`` error rates; 1.0 where an evaluation failed.

    Returns:
        ``1 x d`` point.
    """
    model = fitted_model(space, X, errors)
    candidate, _ = optimize_acqf_paths(
        LogExpectedImprovement(model, best_f=-errors.min()),
        bounds=space.bounds,
        tree=space.tree,
        integer_features=space.integer_features,
        categorical_features=space.categorical_features,
        fill=space.fill,
        X_avoid=X,
        min_distance=_STEP,
    )
    return candidate


class Study:
    """A problem, a log, and two ways to go on.

    Everything is decided by the seed and by what is in the log, so that a study that
    was interrupted goes on exactly as it would have.

    Args:
        problem: What to tune.
        log: Where evaluations go; those in it count as done.
        budget: How many evaluations each method chooses after the common starts.
        seed: Decides starts and random choices.

    Raises:
        ValueError: The budget is not positive, or the log has evaluations that are not
            of this study.
    """

    def __init__(
        self, problem: ScikitLearnCASH, log: EvaluationLog, budget: int, seed: int
    ) -> None:
        if budget < 1:
            raise ValueError(f"budget: expected a positive number, got {budget}.")
        self.problem, self.log, self.budget, self.seed = problem, log, budget, seed
        self.space = problem.space
        self.starts = problem.starts(seed)
        self._check_log()

    def _check_log(self) -> None:
        """Raise unless the log is of this study: its starts, methods and space."""
        methods, begun = (START, MODEL, RANDOM), 0
        seen: dict[str, set[tuple[float, ...]]] = {MODEL: set(), RANDOM: set()}
        for number, record in enumerate(self.log.records, start=2):
            where = f"{self.log.path} line {number}"
            if record.method not in methods:
                raise ValueError(
                    f"{where}: method: expected one of {', '.join(methods)}, got "
                    f"{record.method!r}."
                )
            if len(record.x) != self.space.dim:
                raise ValueError(
                    f"{where}: x: expected {self.space.dim} numbers, got "
                    f"{len(record.x)}."
                )
            if record.method == START:
                starts = self.starts[begun : begun + 1].tolist()
                if [record.x] != starts:
                    raise ValueError(
                        f"{where}: x: expected start {begun + 1} of seed {self.seed}, "
                        "got another point."
                    )
                begun += 1
            self._check_config(record, where)
            for method in seen if record.method == START else [record.method]:
                if tuple(record.x) in seen[method]:
                    raise ValueError(
                        f"{where}: x: expected a point that {method} had not seen "
                        "before, got one that it had."
                    )
                seen[method].add(tuple(record.x))

    def _check_config(self, record: Record, where: str) -> None:
        """Raise unless ``config`` and ``x`` say the same."""
        x = torch.tensor([record.x], dtype=torch.double)
        if not self.space.feasible(x).all():
            raise ValueError(
                f"{where}: x: expected a point of the space, got {record.x}."
            )
        expected = self.space.decode(x)[0]
        try:
            found = self.space.encode([record.config])
        except ValueError as error:
            raise ValueError(f"{where}: config: {error}") from None
        width = self.space.bounds[1] - self.space.bounds[0]
        same = ((found - x).abs() <= _ROUNDING * width).all()
        # The printed code contains the values: types have to be right (1, not "1").
        native = self.space.decode(found)[0]
        types = {name: type(value) for name, value in record.config.items()}
        if not same or types != {name: type(value) for name, value in native.items()}:
            raise ValueError(
                f"{where}: config: expected {expected}, as x says, got {record.config}."
            )

    def records(self, method: str) -> list[Record]:
        """What a method has seen so far: the common starts and its own choices."""
        return [r for r in self.log.records if r.method in (START, method)]

    def data(self, method: str) -> tuple[Tensor, Tensor]:
        """The same as ``n x d`` points and ``n x 1`` error rates."""
        records = self.records(method)
        X = torch.tensor([r.x for r in records], dtype=torch.double)
        errors = torch.tensor([[r.value] for r in records], dtype=torch.double)
        return X.reshape(-1, self.space.dim), errors.reshape(-1, 1)

    @property
    def length(self) -> int:
        """How many evaluations a method has seen at its end."""
        return len(self.starts) + self.budget

    def run(self, method: str) -> Iterator[Record]:
        """Evaluate what is missing, giving every record as soon as it is in the log."""
        choose: Callable[[int], Tensor] = {
            MODEL: self._by_model,
            RANDOM: self._at_random,
        }[method]
        while (done := len(self.records(method))) < self.length:
            if done < len(self.starts):
                yield self._evaluate(START, self.starts[done])
            else:
                yield self._evaluate(method, choose(done).reshape(-1))

    def _evaluate(self, method: str, x: Tensor) -> Record:
        config = self.space.decode(x.unsqueeze(0))[0]
        result = self.problem.evaluate(config)
        record = Record(
            method,
            config,
            x.tolist(),
            round(result.value, _DIGITS),
            result.error,
            result.seconds,
        )
        self.log.append(record)
        return record

    def _by_model(self, done: int) -> Tensor:
        torch.manual_seed(10_000 * self.seed + done)
        return suggest(self.space, *self.data(MODEL))

    def _at_random(self, done: int) -> Tensor:
        """The next new point of a sequence that the seed decides, not the budget."""
        known = {tuple(x) for x in self.data(RANDOM)[0].tolist()}
        for x in self.space.sample(_TRIES, seed=10_000 * self.seed + done):
            if tuple(x.tolist()) not in known:
                break
        return x
