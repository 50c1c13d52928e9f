"""Noise and weight precisions of many tasks, with exchangeable priors; the covariance.

Three evaluations hardly tell a precision, and a task without rows says nothing of its
own. The logarithms of a hyperparameter over all tasks therefore scatter around a level
that is unknown and estimated with them: of tasks with few rows they are drawn to the
level, of tasks with many rows the evidence outweighs it.

``TaskFeatureKernel`` is the covariance as it is defined. Inference never forms it
(``ablr.regressions``); the tests compare the two.
"""

from __future__ import annotations

import math
from copy import copy, deepcopy
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
)
from gpytorch.priors import Prior
from linear_operator.operators import DiagLinearOperator
from torch import Tensor, nn
from torch.distributions import constraints

from botorch_structured.linalg.batch_kernel import BatchKernel
from botorch_structured.linalg.hyperparameter import Hyperparameter, LogInterval
from botorch_structured.models.ablr.tasks import Signals, TaskColumn
from botorch_structured.models.fast_inference import noise_is_known


class ExchangeableLogNormalPrior(Prior):
    r"""Positive values whose logarithms scatter around a level that is not known.

    .. math:: \log v_t = \mu + \tau \epsilon_t, \quad \mu \sim N(\mu_0, s^2)

    with :math:`\mu` integrated out. Like ``log_gaussian_prior`` it is a density of the
    logarithm: MAP estimates are where that has its mode.

    Args:
        level: exp(mu_0), positive.
        spread: s, positive.
        task_spread: tau, positive.
    """

    arg_constraints = {
        "loc": constraints.real,
        "spread": constraints.positive,
        "task_spread": constraints.positive,
    }
    support = constraints.positive
    _shape = torch.Size()

    def __init__(
        self,
        level: float,
        spread: float,
        task_spread: float = 1.0,
    ) -> None:
        if min(level, spread, task_spread) <= 0:
            raise ValueError(
                "level, spread, task_spread: expected positive numbers, got "
                f"{level}, {spread} and {task_spread}."
            )
        super().__init__(validate_args=False)
        self.register_buffer("loc", torch.tensor(math.log(level)))
        self.register_buffer("spread", torch.tensor(spread))
        self.register_buffer("task_spread", torch.tensor(task_spread))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of ``... x T`` values, ``...``."""
        deviation = value.log() - self.loc.to(value)
        count = value.shape[-1]
        each = self.task_spread.to(value) ** 2
        common = self.spread.to(value) ** 2
        total = each + count * common
        explained = common * deviation.sum(-1).square() / total
        quadratic = (deviation.square().sum(-1) - explained) / each
        log_det = (count - 1) * each.log() + total.log()
        return -0.5 * (quadratic + log_det + count * math.log(2.0 * math.pi))

    def pooled(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The density of u = log v as in ``QuadraticPriors``.

        Args:
            count: The number of values.

        Returns:
            The mode of u, 1 / w and h.
        """
        each = self.task_spread.double()
        common = self.spread.double()
        level = common / (each.square() + count * common.square()).sqrt() / each
        return self.loc, each, level

    def most_probable(self, others: Tensor) -> Tensor:
        """The mode of one more value, on the scale of logarithms, given others."""
        deviation = others.log() - self.loc.to(others)
        common = self.spread.to(others) ** 2
        total = self.task_spread.to(others) ** 2 + len(others) * common
        return (self.loc.to(others) + common * deviation.sum() / total).exp()

    def rsample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Values with the level and the tasks' deviations drawn anew."""
        shape = sample_shape + self._shape
        level = torch.randn_like(self.loc.expand(*shape[:-1], 1))
        deviations = torch.randn_like(self.loc.expand(shape))
        return (self.loc + self.spread * level + self.task_spread * deviations).exp()

    def expand(
        self,
        batch_shape: torch.Size,
        _instance: Any = None,
    ) -> ExchangeableLogNormalPrior:
        """A prior whose samples have this shape: what BoTorch's retries ask for."""
        new = copy(self)
        new._shape = torch.Size(batch_shape)
        return new


class WeightPrecision(Hyperparameter):
    """The precisions beta_t of the weights' prior, one for each task.

    Args:
        num_tasks: The number T of tasks.
        level: Where they start: the precision under which a function has the variance
            of the outcomes. The bounds of that variance are 1e-6 and 1e6 times it.
        prior: Whether they have an exchangeable prior, around that level.
    """

    def __init__(
        self,
        num_tasks: int,
        level: float,
        prior: bool = True,
    ) -> None:
        bounds = (1e-6 * level, 1e6 * level)
        super().__init__((num_tasks,), level, 1.0, bounds)
        _, read, write = self._priors.pop("value_prior")
        del self.value_prior
        if prior:
            exchangeable = ExchangeableLogNormalPrior(level, spread=1.0)
            self.register_prior("value_prior", exchangeable, read, write)


class TaskFeatureKernel(BatchKernel):
    r"""Linear in the features, with independent weights for each task.

    .. math:: k((x, t), (x', t')) = \delta_{tt'} \phi(x)'\phi(x') / \beta_t

    Args:
        feature_map: ``n x d`` to ``n x D``.
        weight_precision: The precisions beta, ``T``.
        tasks: The tasks; the covariances of several signals are a batch of T.
    """

    def __init__(
        self,
        feature_map: nn.Module,
        weight_precision: WeightPrecision,
        tasks: Signals | TaskColumn,
    ) -> None:
        batch = torch.Size([len(tasks)] if tasks.share_rows else [])
        super().__init__(batch_shape=batch)
        self.feature_map = feature_map
        self.weight_precision = weight_precision
        self.tasks = tasks

    def _covariance(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool,
        **params: Any,
    ) -> Tensor:
        left = self.feature_map(self.tasks.without(x1))
        right = self.feature_map(self.tasks.without(x2))
        products = (left * right).sum(-1) if diag else left @ right.mT
        beta = self.weight_precision.value
        return self.tasks.covariance(products, beta, x1, x2, diag)

    def _take(self, where: Tensor) -> TaskFeatureKernel:
        # features, which may be a large network, are those of the whole batch
        taken = deepcopy(self, {id(self.feature_map): self.feature_map})
        raw = taken.weight_precision.raw_value
        raw.data = raw.data.flatten()[where.to(raw.device)]
        taken._batch_shape = where.shape
        return taken


class TaskLikelihood(HadamardGaussianLikelihood):
    """Gaussian noise with a variance 1 / alpha_t for each task or signal.

    BoTorch's ``MultiTaskGP`` has GPyTorch's likelihood of this kind; this one knows
    task values that are not 0, 1, ..., signals, and the noise of tasks with few rows.

    Objectives range from exact to mostly noise, so the level of the prior, in units of
    the outcomes' variance, is wide. Fits start with a variance of 0.3: from little
    noise the first steps bend features until they explain outcomes that they cannot,
    and stay there.

    Args:
        tasks: The tasks or signals.
        prior: Whether the variances have an exchangeable prior.
    """

    def __init__(
        self,
        tasks: Signals | TaskColumn,
        prior: bool = True,
    ) -> None:
        super().__init__(
            num_tasks=len(tasks),
            noise_prior=ExchangeableLogNormalPrior(1e-3, spread=2.5) if prior else None,
            noise_constraint=LogInterval(1e-9, 1e1, initial_value=0.3),
            task_feature_index=tasks.column,
        )
        self.tasks = tasks

    def _shaped_noise_covar(
        self,
        base_shape: torch.Size,
        *params: Any,
        **kwargs: Any,
    ) -> DiagLinearOperator:
        if kwargs.get("noise") is not None:
            return DiagLinearOperator(kwargs["noise"].expand(base_shape))
        noise = self.noise
        if self.tasks.column is None:
            each = noise.unsqueeze(-1) if self.tasks.share_rows else noise
            return DiagLinearOperator(each.expand(base_shape))
        if not params:
            raise ValueError(
                "params: expected the inputs, whose task column says which noise a row "
                "has, got none: likelihood(distribution, X)."
            )
        X = params[0] if torch.is_tensor(params[0]) else params[0][0]
        each = self.tasks.select(noise.expand(*X.shape[:-1], len(noise)), X)
        return DiagLinearOperator(each.expand(base_shape))

    def marginal(
        self,
        function_dist: MultivariateNormal,
        *params: Any,
        **kwargs: Any,
    ) -> MultivariateNormal:
        """The distribution of outcomes.

        Args:
            function_dist: Of function values.
            params: The inputs, with their task column. The prior of the training rows
                knows its own.
            kwargs: ``noise``: variances to be used instead.
        """
        with_noise = getattr(function_dist, "with_noise", None)
        if with_noise is not None:
            return with_noise()
        if not params and hasattr(function_dist, "rows"):
            params = (function_dist.rows,)
        noise = self._shaped_noise_covar(function_dist.mean.shape, *params, **kwargs)
        covariance = function_dist.lazy_covariance_matrix + noise
        return function_dist.__class__(function_dist.mean, covariance)


def noise_model(
    likelihood: Likelihood | None,
    targets: Tensor,
    noise: Tensor | None,
    tasks: Signals | TaskColumn,
    priors: bool,
) -> Likelihood:
    """The likelihood: the user's, known variances, or one to be learnt for each task.

    Args:
        likelihood: The user's.
        targets: Transformed outcomes, ``n`` or ``T x n``.
        noise: Known variances of transformed outcomes, ``n x m``.
        tasks: T of them.
        priors: Whether what is learnt has a prior.

    Raises:
        ValueError: If the user's is none of GPyTorch's own three, learns more noise
            beside what is given, or has another number of variances.
    """
    if likelihood is None:
        if noise is None:
            return TaskLikelihood(tasks, prior=priors)
        # outcomes that are not observed have no noise, but GPyTorch wants a number
        noise = torch.where(targets.isnan(), 1.0, tasks.to_targets(noise))
        return FixedNoiseGaussianLikelihood(noise=noise)
    learnt = isinstance(likelihood, TaskLikelihood)  # of another model
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
    expected = targets.shape if fixed else torch.Size([len(tasks)])
    shape = likelihood.noise.shape
    if shape != expected and (fixed or shape != torch.Size([1])):
        raise ValueError(
            f"likelihood: expected noise variances of shape {tuple(expected)}, one for "
            f"each {'outcome' if fixed else 'task'}, got {tuple(shape)}."
        )
    return likelihood


def fill_without_rows(
    module: Any,
    name: str,
    empty: Tensor,
) -> None:
    """Give tasks without rows the value that the other tasks make most probable.

    Without a prior that is the geometric mean.

    Args:
        module: Has ``name``, ``raw_name`` (its logarithm) and perhaps ``name_prior``.
        name: Of a hyperparameter with one value for each task, ``T``.
        empty: Which tasks have no row, ``T``; not all.
    """
    values = getattr(module, name).detach().clone()
    prior = getattr(module, f"{name}_prior", None)
    others = values[~empty]
    values[empty] = (
        others.log().mean().exp() if prior is None else prior.most_probable(others)
    )
    module.initialize(**{f"raw_{name}": values.log()})
