"""What a ``MultiTaskABLR`` is built from, and whether a user's arguments fit."""

from __future__ import annotations

__all__ = [
    "check_own_seed",
    "check_untouched",
    "default_network",
    "noise_model",
    "task_column",
    "task_values",
    "weight_level",
]

import math
import warnings
from collections.abc import Sequence

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from torch import Tensor, nn

from botorch_structured.models.ablr_group import ProcessGroup
from botorch_structured.models.ablr_hyperparameters import TaskLikelihood
from botorch_structured.models.ablr_tasks import TaskColumn
from botorch_structured.models.feature_maps import TanhNetwork
from botorch_structured.models.gaussian_noise import noise_is_known
from botorch_structured.models.input_transforms import leaves_alone

_CHUNK_ROWS = 4_096
# With fewer rows the prior of the network's weights is narrower than what they were
# drawn from: 10 evaluations of each of 29 old tasks bear the full width, 20 of one new
# one do not.
_ROWS_FOR_A_NETWORK = 300
# Normalised columns of so many rows are not that narrow by chance.
_LARGEST_TASK = 2.0**53
_NARROW, _ROWS_TO_BE_NARROW = 0.1, 10


def _is_task(value: float) -> bool:
    """Whether it is an integer, of a size that floating-point numbers still count."""
    return abs(value) <= _LARGEST_TASK and value == int(value)


def check_own_seed(seed: object) -> None:
    """Raise a ``ValueError`` unless it is an integer."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed: expected an integer, got {seed!r}.")


def _check_task_list(name: str, values: object) -> None:
    """Raise a ``ValueError`` unless a user's task values are a list of integers."""
    if values is None:
        return
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ValueError(f"{name}: expected a list of integers, got {values!r}.")
    whole = [isinstance(v, int | float) and _is_task(v) for v in values]
    if not all(whole):
        raise ValueError(f"{name}: expected a list of integers, got {values}.")
    if not values:
        raise ValueError(f"{name}: expected at least one task, got none.")


def task_column(
    task_feature: int | None,
    X: Tensor,
    Y: Tensor,
    output_tasks: list[int] | None,
    all_tasks: list[int] | None,
) -> int | None:
    """The index of the task column, not negative; None for signals.

    Args:
        task_feature: What the user said.
        X: Inputs as the user has them: what a transform appends is no column to count
            from.
        Y: Outcomes.
        output_tasks: What the user said.
        all_tasks: What the user said.

    Raises:
        ValueError: If these do not fit together.
    """
    if task_feature is None:
        for name, value in (("output_tasks", output_tasks), ("all_tasks", all_tasks)):
            if value is not None:
                raise ValueError(
                    f"{name}: expected None without a task_feature, got {value}."
                )
        return None
    if isinstance(task_feature, bool) or not isinstance(task_feature, int):
        raise ValueError(
            f"task_feature: expected an integer or None, got {task_feature!r}."
        )
    _check_task_list("output_tasks", output_tasks)
    _check_task_list("all_tasks", all_tasks)
    if Y.shape[-1] != 1:
        raise ValueError(
            "train_Y: expected one column with a task_feature, got "
            f"{Y.shape[-1]}: several tasks and several signals at once are not built. "
            "Make one model for each signal (ModelListGP), or each pair of task and "
            "signal a task."
        )
    d = X.shape[-1] - 1
    if not -d - 1 <= task_feature <= d:
        raise ValueError(
            f"task_feature: expected a column from {-d - 1} to {d}, got {task_feature}."
        )
    if d == 0:
        raise ValueError("train_X: expected columns beside the task's, got none.")
    return task_feature % (d + 1)


def check_untouched(before: Tensor, after: Tensor, column: int) -> None:
    """Raise a ``ValueError`` if a transform has changed the task column."""
    if not leaves_alone([column], before, after):
        raise ValueError(
            "input_transform: expected one that leaves the task column "
            f"({column}) as it is, such as Normalize(..., indices=[...])."
        )


def task_values(
    column: Tensor, all_tasks: list[int] | None, group: ProcessGroup
) -> list[int]:
    """All task values, ascending.

    Args:
        column: Those of the rows.
        all_tasks: What the user said.
        group: The processes that share the rows.

    Raises:
        ValueError: If they are no integers, or not known to all processes.
        UnsupportedError: If ``all_tasks`` lacks one that has rows.
    """
    found = column.unique().tolist()
    if not all(map(_is_task, found)):
        raise ValueError(
            "train_X: expected integers in the task column, of at most 2^53, got "
            f"{found[:10]}."
        )
    inferred = [int(value) for value in found]
    if all_tasks is None:
        if group.is_shared:
            raise ValueError(
                "all_tasks: expected all task values with a process_group, since one "
                "process may have no row of a task; got None."
            )
        if not inferred:
            raise ValueError(
                "all_tasks: expected all task values where train_X has no row that "
                "says one, got None."
            )
        return inferred
    if not set(inferred).issubset(all_tasks):
        raise UnsupportedError(
            f"The provided {all_tasks=} does not contain all the task features "
            f"inferred from the training data {inferred=}."
        )
    return sorted(int(value) for value in set(all_tasks))


def default_network(X: Tensor, seed: int, group: ProcessGroup) -> TanhNetwork:
    """The network of the paper, with a prior as wide as the data can bear.

    Args:
        X: Transformed inputs, ``n x d``. Columns outside [0, 1] are scaled by their
            range.
        seed: Of its weights.
        group: The processes that share the rows.
    """
    d = X.shape[-1]
    far = X.new_full((1, d), torch.inf)
    low = group.min(torch.cat([X, far]).amin(0)).double()
    high = -group.min(torch.cat([-X, far]).amin(0)).double()
    unit = ~((low < 0.0) | (high > 1.0)) | (low == high)
    narrow = unit & (low < high) & (high - low < _NARROW)
    low, high = torch.where(unit, 0.0, low), torch.where(unit, 1.0, high)
    rows = group.sum_of_int(len(X), X.device)
    if rows >= _ROWS_TO_BE_NARROW and narrow.any():
        warnings.warn(
            f"train_X: columns {narrow.nonzero()[:, 0].tolist()} (without the task's) "
            f"are within [0, 1], which is taken to be normalised, but span less than "
            f"{_NARROW}: the network will hardly see them. Pass input_transform="
            "Normalize(...), and logarithms of what is on a log scale.",
            InputDataWarning,
            stacklevel=5,
        )
    scale = min(1.0, math.sqrt(max(rows, 1) / _ROWS_FOR_A_NETWORK))
    bounds = torch.stack([low, high]).cpu()
    return TanhNetwork(d, bounds=bounds, prior_scale=scale, seed=seed)


def weight_level(feature_map: nn.Module, X: Tensor, group: ProcessGroup) -> float:
    """The weight precision under which functions have a variance of one.

    Args:
        feature_map: ``n x d`` to ``n x D``.
        X: Transformed inputs of this process.
        group: The processes that share the rows.

    Raises:
        ValueError: If the features are not finite, all zero, or of another shape.
    """
    count = group.sum_of_int(len(X), X.device)
    squares = X.new_zeros((), dtype=torch.float64)
    with torch.no_grad():
        some = X if len(X) else X.new_zeros(1, X.shape[-1])
        for rows in some.split(_CHUNK_ROWS):
            try:
                phi = feature_map(rows)
            except RuntimeError as error:
                raise ValueError(
                    "feature_map: expected a map of inputs ``n x "
                    f"{rows.shape[-1]}`` (no task column); on {tuple(rows.shape)} it "
                    f"fails with: {error}"
                ) from error
            if (
                phi.ndim != 2
                or len(phi) != len(rows)
                or not phi.shape[-1]
                or not phi.isfinite().all()
            ):
                raise ValueError(
                    "feature_map: expected finite features ``n x D`` of inputs "
                    f"``n x d``, got shape {tuple(phi.shape)}, finite: "
                    f"{bool(phi.isfinite().all())}."
                )
            if len(X) or not count:
                squares += phi.double().square().sum()
    level = float(group.sum(squares)) / max(count, 1)
    if not level > 0.0:
        raise ValueError(
            "feature_map: expected features that are not all zero at the training rows."
        )
    return level


def noise_model(
    likelihood: Likelihood | None,
    targets: Tensor,
    noise: Tensor | None,
    num_tasks: int,
    tasks: TaskColumn | None,
    priors: bool,
) -> Likelihood:
    """The likelihood: the user's, known variances, or one to be learnt for each task.

    Args:
        likelihood: The user's.
        targets: Transformed outcomes, ``n`` or ``T x n``.
        noise: Known variances of transformed outcomes, ``n x m``.
        num_tasks: T.
        tasks: The task column.
        priors: Whether what is learnt has a prior.

    Raises:
        ValueError: If the user's is none of GPyTorch's own three, learns more noise
            beside what is given, or has another number of variances.
    """
    if likelihood is None and noise is None:
        return TaskLikelihood(num_tasks, tasks, prior=priors)
    if likelihood is None:
        assert noise is not None
        # what is not observed has no noise either, but GPyTorch wants a number
        noise = torch.where(targets.isnan(), 1.0, noise.mT.reshape(targets.shape))
        return FixedNoiseGaussianLikelihood(noise=noise)
    learnt = type(likelihood) is TaskLikelihood  # of another model
    if not (learnt or noise_is_known(likelihood, tasks=True)):
        raise ValueError(
            "likelihood: expected a GaussianLikelihood, HadamardGaussianLikelihood or "
            "FixedNoiseGaussianLikelihood, not a subclass, whose noise may be another, "
            f"got {type(likelihood).__name__}."
        )
    if getattr(likelihood, "second_noise_covar", None) is not None:
        raise ValueError(
            "likelihood: expected learn_additional_noise=False, since variances that "
            "are given row by row are not learnt here, got True."
        )
    fixed = isinstance(likelihood, FixedNoiseGaussianLikelihood)
    expected = targets.shape if fixed else torch.Size([num_tasks])
    shape = likelihood.noise.shape
    if shape != expected and (fixed or shape != torch.Size([1])):
        raise ValueError(
            f"likelihood: expected noise variances of shape {tuple(expected)}, one for "
            f"each {'outcome' if fixed else 'task'}, got {tuple(shape)}."
        )
    return likelihood
