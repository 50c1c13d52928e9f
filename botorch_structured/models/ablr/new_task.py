r"""One more task for regressions that were fitted to many: what these have in common.

Perrone et al. (2017) give the weights of each task the prior ``N(0, I / beta_t)``. Once
many tasks are solved, their weights are a sample with a mean and a covariance,

.. math:: w_t \sim N(\mu, \Sigma), \quad \mu \sim N(0, \Lambda), \quad
    \log p(\Sigma) = -\frac{D}{2} (\log |\Sigma| + \mathrm{tr}(\Sigma^{-1} \Lambda)),
    \quad \Lambda = I / \bar\beta

up to a constant (an inverse Wishart with its mode at Lambda). ``population`` finds the
most probable mu and Sigma from the posteriors of the tasks, each a Gaussian likelihood
of its weights times a prior that is known: Sigma by expectation maximisation, mu
exactly for each Sigma on the way. It starts from Lambda, the paper's prior, which is
the result where tasks have no rows.

Two evaluations hardly tell the standard deviation of a task's outcomes. With what other
tasks show, outcomes of a new one are

.. math:: y \sim N(o + s \Phi \mu, s^2 (\Phi \Sigma \Phi' + \sigma^2 I)), \quad
    o \sim N(\bar o, \tau_o^2), \quad \log s \sim N(\bar l, \tau_l^2),

and ``most_probable_scale`` finds the mode of s, which is close to the usual scale until
the outcomes tell another.
"""

from __future__ import annotations

__all__ = ["UsualScale", "new_task_model", "population", "population_of"]

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from botorch.models.transforms.input import InputTransform
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import Mean, ZeroMean
from torch import Tensor, nn

from botorch_structured.linalg.hyperparameter import LogInterval
from botorch_structured.models.ablr.hyperparameters import (
    ExchangeableLogNormalPrior,
    WeightPrecision,
)
from botorch_structured.models.ablr.tasks import StandardizeTasks
from botorch_structured.models.checks import DataError, check_training_data
from botorch_structured.models.fast_inference import has_methods_of
from botorch_structured.models.outcome_scale import AnyScaleStandardize

_MAX_STEPS = 200
_TOLERANCE = 1e-4
_GRID = 161
_SPREADS = 4.0
_MAX_SPREADS = 1e3
_SCALE_TOLERANCE = 1e-3
# How many tasks the guess of a spread counts for.
_GUESS_WEIGHT = 3.0
_MIN_NOISE = 1e-9
# Standard deviations, where few tasks tell: of logarithms of scales and noise, and of
# levels in units of the usual scale.
_GUESSED_SPREAD = 1.0
_GUESSED_LEVELS = 3.0
_USUAL_NOISE = 1e-3  # of tasks whose noise was given
# Of the logarithm of a new task's weight precision; Sigma has the size of the weights.
_PRECISION_SPREAD = 0.5
# Bounds of a noise variance, as factors, where it is outside the likelihood's own.
_NOISE_FACTOR = 100.0


def new_task_model(
    model: Any,
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None,
    exclude_tasks: Sequence[int],
) -> Any:
    """See ``MultiTaskABLR.new_task``.

    Args:
        model: A ``MultiTaskABLR`` of old tasks.
        train_X: ``n x d``, without a task column.
        train_Y: ``n x 1``.
        train_Yvar: ``n x 1``, or None.
        exclude_tasks: Task values that are left out.
    """
    _check_can_share(model)
    if isinstance(exclude_tasks, str) or not isinstance(exclude_tasks, Sequence):
        raise ValueError(
            "exclude_tasks: expected a list of task values, got "
            f"{type(exclude_tasks).__name__}: {exclude_tasks!r}."
        )
    check_training_data(train_X, train_Y, train_Yvar, missing=True, empty=True)
    if train_X.dtype != model.train_targets.dtype:
        raise DataError(
            "train_X: expected the dtype of the old tasks' rows, "
            f"{model.train_targets.dtype}, got {train_X.dtype}."
        )
    with torch.no_grad():
        some = tasks_with_rows(model, exclude_tasks)
        d = model._num_columns - 1
        if train_X.shape[1:] != (d,) or train_Y.shape[1:] != (1,):
            raise ValueError(
                f"train_X, train_Y: expected ``n x {d}``, without the task column, "
                f"and ``n x 1``, got {tuple(train_X.shape)} and "
                f"{tuple(train_Y.shape)}."
            )
        common = population_of(model, some)
        outcomes = usual_outcomes(model, some)
        features = LearntFeatures(model, common.root)
        inputs = LearntInputs(model) if hasattr(model, "input_transform") else None
        known = ~train_Y.squeeze(-1).isnan()
        if not known.any():  # no outcome: variances tell nothing of later noise
            train_Yvar = None
        X = train_X[known]
        phi = features(X if inputs is None else inputs(X)).double()
        curve = common.root.inverse() @ common.mean
        own = most_probable_scale(
            phi[:, :-1],
            phi[:, :-1] @ curve,
            train_Y[known].squeeze(-1).double(),
            outcomes,
            None if train_Yvar is None else train_Yvar[known].squeeze(-1).double(),
        )
        features.level.fill_(outcomes.level[1] / own)
    new = type(model)(
        train_X,
        train_Y,
        task_feature=None,
        train_Yvar=train_Yvar,
        mean_module=LearntMean(features, curve),
        outcome_transform=UsualScale(outcomes.level[0], own).to(train_X),
        input_transform=inputs,
        feature_map=features,
        priors=model._has_priors,
    )
    _set_usual(new, outcomes)
    new.to(train_X)
    return new.eval()


def _check_can_share(model: Any) -> None:
    if model.tasks is None:
        raise ValueError(
            "new_task: expected the model of the old tasks, with a task column, "
            "got one without: signals, or a single task, are no sample of tasks."
        )
    if model.batch_shape:
        raise ValueError(
            "new_task: expected a model without fantasies, got a batch of shape "
            f"{tuple(model.batch_shape)}."
        )
    zero = isinstance(model.mean_module, ZeroMean)
    if not (zero and has_methods_of(ZeroMean, model.mean_module, "forward")):
        raise ValueError(
            "mean_module: expected none where tasks share their weights, got "
            f"{type(model.mean_module).__name__}."
        )
    transform = getattr(model, "outcome_transform", None)
    if not isinstance(transform, StandardizeTasks | None):
        raise ValueError(
            "outcome_transform: expected the default or None where tasks share "
            f"their scales, got {type(transform).__name__}."
        )
    model.eval()


def tasks_with_rows(model: Any, exclude_tasks: Sequence[int] = ()) -> list[int]:
    """The tasks that count, by index.

    Args:
        model: A ``MultiTaskABLR`` with a task column.
        exclude_tasks: Task values that are left out.

    Raises:
        ValueError: If none is left that has two rows (one, without an outcome
            transform).
    """
    without = {model.tasks.index_of(value) for value in exclude_tasks}
    # standardised, one outcome is zero, and its scale that of the others
    enough = 1 if getattr(model, "outcome_transform", None) is None else 2
    counts = model._rows_of_tasks().tolist()
    some = [t for t, n in enumerate(counts) if n >= enough and t not in without]
    if not some:
        raise ValueError(
            f"new_task: expected at least one task that has {enough} rows and is "
            f"not excluded, got none; exclude_tasks: {list(exclude_tasks)}."
        )
    return some


def population_of(model: Any, some: list[int]) -> Population:
    """``population`` of some tasks of a model, kept while their weights are the same.

    Args:
        model: A ``MultiTaskABLR`` with a task column.
        some: Tasks, by index.
    """
    known = model._known_population
    if known is not None and known[0] == some:
        return known[1]
    weights = model._weights_of(some)
    common = population(
        torch.stack([w.mean for w in weights]).double(),
        torch.stack([w.root for w in weights]).double(),
        model.weight_precision[some].double(),
    )
    model._known_population = (some, common)
    return common


def usual_outcomes(model: Any, some: list[int]) -> UsualOutcomes:
    """Usual level, scale and noise of some tasks of a model.

    Args:
        model: A ``MultiTaskABLR`` with a task column.
        some: Tasks, by index.
    """
    transform = getattr(model, "outcome_transform", None)
    if transform is None:  # the outcomes are on one scale, levels in the weights
        level = log_scale = (0.0, 0.0)
    else:
        log_scale = usual(transform.stdvs[some].log(), _GUESSED_SPREAD)
        guess = _GUESSED_LEVELS * math.exp(log_scale[0])
        level = usual(transform.means[some], guess)
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        noise = model.weight_precision.new_tensor([_USUAL_NOISE]).log()
    else:
        noise = model.likelihood.noise.expand(model.num_tasks)[some].log()
    return UsualOutcomes(level, log_scale, usual(noise, _GUESSED_SPREAD))


def _set_usual(model: Any, outcomes: UsualOutcomes) -> None:
    """Start hyperparameters, and center their priors, where other tasks have theirs."""
    # not the bounds that the size of the features suggests: that of the constant one
    # says how far levels are apart
    precision = WeightPrecision(1, 1.0, prior=model._has_priors)
    model.covar_module.weight_precision = precision
    if model._has_priors:
        _center(precision.value_prior, 0.0, _PRECISION_SPREAD)
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        return
    center, spread = outcomes.log_noise
    noise, noise_covar = math.exp(center), model.likelihood.noise_covar
    low, high = (float(bound) for bound in noise_covar.raw_noise_constraint)
    if not low <= noise <= high:  # of a likelihood of the user's
        bounds = LogInterval(noise / _NOISE_FACTOR, noise * _NOISE_FACTOR)
        noise_covar.register_constraint("raw_noise", bounds)
    model.likelihood.noise = noise
    if model._has_priors:
        _center(noise_covar.noise_prior, center, spread)


def _center(prior: ExchangeableLogNormalPrior, center: float, spread: float) -> None:
    """All of the spread is that of tasks: their level is known."""
    with torch.no_grad():
        prior.loc.fill_(center)
        prior.task_spread.fill_(spread)
        prior.spread.fill_(1e-3 * spread)


def _frozen(module: nn.Module) -> Any:
    """A copy whose parameters are held; their prior is a constant, and left out."""
    new = deepcopy(module).requires_grad_(False)
    for part in new.modules():
        getattr(part, "_priors", {}).clear()
    return new


class LearntInputs(InputTransform):
    """The input transform of the old tasks, for inputs without their task column.

    Args:
        model: A ``MultiTaskABLR`` with a task column and an input transform.
    """

    transform_on_train = transform_on_eval = transform_on_fantasize = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = _frozen(model.input_transform).eval()
        self.tasks = deepcopy(model.tasks)
        self.value = int(self.tasks.values[0])
        self.is_one_to_many = self.inner.is_one_to_many

    def train(self, mode: bool = True) -> LearntInputs:
        """The mode says which rows these are, not that anything is learnt from them."""
        super().train(mode)
        self.inner.eval()
        return self

    def transform(self, X: Tensor) -> Tensor:
        """``batch_shape x n x d`` inputs, as they are to be in this mode."""
        if self.training:
            return self.preprocess_transform(X)
        return self.tasks.without(self.inner(self.tasks.insert(X, self.value)))

    def preprocess_transform(self, X: Tensor) -> Tensor:
        """``batch_shape x n x d`` inputs that are trained on."""
        rows = self.tasks.insert(X, self.value)
        return self.tasks.without(self.inner.preprocess_transform(rows))


class LearntFeatures(nn.Module):
    r"""Features that are not learnt any more, ``phi(x)' L``, and a constant.

    With weights ``N(0, I)`` of these, those of ``phi`` are ``N(0, L L')``.

    Args:
        model: A ``MultiTaskABLR`` with a task column.
        root: L, ``D x D``.
        level: The constant feature.
    """

    root: Tensor
    level: Tensor

    def __init__(self, model: Any, root: Tensor, level: float = 1.0) -> None:
        super().__init__()
        self.module = _frozen(model.feature_map)
        # not the population's own: a state may be loaded into this
        root = root.detach().clone().to(model.train_targets)
        self.register_buffer("root", root)
        self.register_buffer("level", self.root.new_tensor(level))
        self.eval()

    def train(self, mode: bool = True) -> LearntFeatures:
        """Always in evaluation mode: nothing here learns from the new task's rows."""
        return super().train(False)

    def forward(self, X: Tensor) -> Tensor:
        """``batch_shape x n x (D + 1)`` features of transformed inputs."""
        phi = self.module(X) @ self.root
        return torch.cat([phi, self.level.expand(*phi.shape[:-1], 1)], dim=-1)


class LearntMean(Mean):
    """The curve that tasks have in common.

    Args:
        features: Of the new task, the last of which is a constant.
        weights: Of all but the last, ``D``.
    """

    weights: Tensor

    def __init__(self, features: LearntFeatures, weights: Tensor) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("weights", weights.detach().clone().to(features.root))

    def forward(self, x: Tensor) -> Tensor:
        """``batch_shape x n`` means at transformed inputs."""
        return self.features(x)[..., :-1] @ self.weights


class UsualScale(AnyScaleStandardize):
    """Outcomes less a level and in units of a scale that are not learnt from them.

    Args:
        level: What is subtracted.
        scale: What they are divided by, positive.
    """

    def __init__(self, level: float, scale: float) -> None:
        super().__init__(m=1)
        self.means = torch.full((1, 1), level, dtype=torch.float64)
        self.stdvs = torch.full((1, 1), scale, dtype=torch.float64)
        self._stdvs_sq = self.stdvs.square()
        self._is_trained = torch.tensor(True)
        self.eval()

    def train(self, mode: bool = True) -> UsualScale:
        """Always in evaluation mode: nothing here learns from the new task's rows."""
        return super().train(False)


class Population(NamedTuple):
    """The normal distribution of the weights of a task that has not been seen.

    Attributes:
        mean: mu, ``D``.
        root: A triangular root of Sigma, ``D x D``.
    """

    mean: Tensor
    root: Tensor


@torch.no_grad()
def population(mean: Tensor, root: Tensor, weight_precision: Tensor) -> Population:
    """The distribution that the weights of some tasks come from.

    As many tasks as there are features count as much as the paper's prior does: with
    few tasks Sigma is close to isotropic.

    Args:
        mean: Posterior means of the tasks' weights, ``T x D``, under their own prior
            ``N(0, I / beta_t)``.
        root: Roots of the posterior covariances, ``T x D x D``.
        weight_precision: The ``beta_t``, ``T``.
    """
    T, D = mean.shape
    precision, shift = _likelihoods(mean, root, weight_precision)
    eye = torch.eye(D, dtype=mean.dtype, device=mean.device)
    spread = weight_precision.log().mean().exp().reciprocal()
    mu, sigma = torch.zeros_like(mean[0]), spread * eye
    for _ in range(_MAX_STEPS):
        before = sigma
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(sigma))
        factor = torch.linalg.cholesky(precision + inverse)
        covariance = torch.cholesky_inverse(factor)
        each = torch.cholesky_solve(shift.unsqueeze(-1), factor).squeeze(-1)
        # mu for this Sigma, weights integrated out: from their means, as in a plain EM
        # step, it would take hundreds of steps where tasks have few rows
        told = T * inverse - inverse @ covariance.sum(0) @ inverse
        mu = torch.linalg.solve(told + eye / spread, inverse @ each.sum(0))
        apart = each + covariance @ (inverse @ mu) - mu
        sigma = apart.mT @ apart + covariance.sum(0) + D * spread * eye
        sigma = sigma / (T + D)
        if (sigma - before).abs().max() < _TOLERANCE * sigma.diagonal().max():
            break
    return Population(mu, torch.linalg.cholesky(sigma))


def _likelihoods(mean: Tensor, root: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The precision ``alpha Phi' Phi`` and ``alpha Phi' y`` of each task."""
    inverse = torch.linalg.inv(root)
    total = inverse.mT @ inverse
    shift = (total @ mean.unsqueeze(-1)).squeeze(-1)
    values, vectors = torch.linalg.eigh(total)
    # what rounding leaves of directions without data must not be negative
    values = (values - beta.unsqueeze(-1)).clamp_min(0.0)
    return vectors * values.unsqueeze(-2) @ vectors.mT, shift


class UsualOutcomes(NamedTuple):
    """Levels, scales and noise of tasks: usual values and how far tasks are from them.

    Attributes:
        level: Mean and standard deviation of o.
        log_scale: Mean and standard deviation of log s.
        log_noise: Mean and standard deviation of log sigma^2, noise variances in units
            of s^2.
    """

    level: tuple[float, float]
    log_scale: tuple[float, float]
    log_noise: tuple[float, float]


def usual(values: Tensor, guess: float) -> tuple[float, float]:
    """Mean and standard deviation that predict one more value.

    Args:
        values: Of some tasks, ``T``.
        guess: What the standard deviation is without them.
    """
    values, count = values.detach(), len(values)
    squares = float((values - values.mean()).square().sum())
    variance = (squares + _GUESS_WEIGHT * guess**2) / (count - 1 + _GUESS_WEIGHT)
    return float(values.mean()), math.sqrt(variance * (1.0 + 1.0 / count))


@torch.no_grad()
def most_probable_scale(
    features: Tensor,
    curve: Tensor,
    Y: Tensor,
    outcomes: UsualOutcomes,
    noise_variance: Tensor | None = None,
) -> float:
    """The mode of log s given outcomes, as a scale.

    O(n D^2) for n outcomes.

    Args:
        features: ``Phi L`` with ``Sigma = L L'``, ``n x D``.
        curve: ``Phi mu``, ``n``.
        Y: Outcomes, ``n``.
        outcomes: What is usual.
        noise_variance: Known noise variances, ``n``. Default: the usual noise.
    """
    log_scale, spread = outcomes.log_scale
    # Rows are rotated until the covariance of all but the level is diagonal, whatever
    # the scale. Nothing is factorised on the way: levels may be a million scales apart,
    # and the noise far below.
    center, level_spread = outcomes.level
    rest = torch.stack([curve, torch.full_like(Y, level_spread), Y - center], dim=-1)
    rows = torch.cat([features, rest], dim=-1)
    # what is added to the diagonal, in units of s^2 and as it is
    relative, absolute = math.exp(outcomes.log_noise[0]), 0.0
    if noise_variance is not None:
        tiny = _MIN_NOISE * math.exp(2.0 * log_scale)
        rows = rows / noise_variance.clamp_min(tiny).sqrt().unsqueeze(-1)
        relative, absolute = 0.0, 1.0
    free = max(len(rows) - rows.shape[-1], 0)
    if free:  # a rotation of the rows changes nothing
        rows = torch.linalg.qr(rows, mode="r").R
    basis, values, _ = torch.linalg.svd(rows[:, :-3], full_matrices=True)
    own = Y.new_zeros(len(rows))
    own[: len(values)] = values.square()
    mean, level, y = (basis.mT @ rows[:, -3:]).unbind(-1)

    def density(log_s: Tensor) -> Tensor:
        """The log density of outcomes given some scales, ``G``, up to a constant."""
        s = log_s.exp().unsqueeze(-1)
        floor = s.square() * relative + absolute
        variances = s.square() * own + floor
        scaled = level / variances.sqrt()
        apart = (y - s * mean) / variances.sqrt()
        # along the level, which is uncertain, and across
        squares = scaled.square().sum(-1)
        along = (apart * scaled).sum(-1) / squares.clamp_min(1e-300)
        across = (apart - along.unsqueeze(-1) * scaled).square().sum(-1)
        quadratic = across + along.square() * squares / (1.0 + squares)
        log_det = variances.log().sum(-1) + squares.log1p()
        return -0.5 * (quadratic + log_det + free * floor.squeeze(-1).log())

    grid = torch.linspace(-1.0, 1.0, _GRID, dtype=Y.dtype, device=Y.device)
    # in units of the spread: wider while the mode is farther than expected, then finer
    middle, width = 0.0, _SPREADS
    while _SCALE_TOLERANCE < width < _MAX_SPREADS:
        t = middle + width * grid
        place = int((density(log_scale + spread * t) - 0.5 * t.square()).argmax())
        middle = float(t[place])
        width *= 4.0 / (_GRID - 1) if 0 < place < _GRID - 1 else 2.0
    return math.exp(log_scale + spread * middle)
