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
from typing import Any

import torch
from gpytorch import Module
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
)
from gpytorch.priors import MultivariateNormalPrior
from linear_operator.operators import DiagLinearOperator
from torch import Tensor, nn

from botorch_structured.kernels.leaf_kernels import BatchKernel
from botorch_structured.linalg.parameters import Hyperparameter, LogInterval
from botorch_structured.models.ablr.tasks import Tasks
from botorch_structured.models.fast_inference import noise_is_known, refuse_paths


class RawValue:
    """Reads a value, and sets its raw parameter, for a prior; can be pickled.

    Args:
        raw: Name of the raw parameter.
        value: Name of the value.
    """

    def __init__(
        self,
        raw: str,
        value: str,
    ) -> None:
        self.raw = raw
        self.value = value
        self.reads = raw, 1.0

    def __call__(self, module: Module) -> Tensor:
        return getattr(module, self.value)

    def set(
        self,
        module: Module,
        sample: Tensor,
    ) -> None:
        module.initialize(**{self.raw: sample.view_as(self(module))})


def add_exchangeable_prior(
    module: Module,
    name: str,
    level: float,
    spread: float,
) -> None:
    r"""A prior under which logarithms scatter around a level that is not known.

    .. math:: \log v_t = \mu + \epsilon_t, \quad \epsilon_t \sim N(0, 1), \quad
        \mu \sim N(\log v_0, s^2)

    with :math:`\mu` integrated out. It is a density of the logarithms, the raw values:
    MAP estimates are where that has its mode.

    Args:
        module: With a parameter ``raw_name``, ``T``.
        name: Of the values v.
        level: v_0.
        spread: s.
    """
    read = RawValue(f"raw_{name}", name)
    loc = torch.full_like(read(module).detach(), math.log(level))
    covariance = torch.eye(len(loc)).to(loc) + spread**2
    prior = MultivariateNormalPrior(loc, covariance, transform=torch.log)
    module.register_prior(f"{name}_prior", prior, read, read.set)


def weight_precision(
    num_tasks: int,
    level: float,
    prior: bool = True,
) -> Hyperparameter:
    """The precisions beta_t of the weights' prior, one for each task.

    Args:
        num_tasks: The number T of tasks.
        level: Where they start: the precision under which a function has the variance
            of the outcomes. The bounds of that variance are 1e-6 and 1e6 times it.
        prior: Whether they have an exchangeable prior, around that level.
    """
    bounds = (1e-6 * level, 1e6 * level)
    precision = Hyperparameter((num_tasks,), level, 1.0, bounds)
    if prior:
        add_exchangeable_prior(precision, "value", level, spread=1.0)
    else:
        del precision._priors["value_prior"], precision.value_prior
    return precision


class TaskFeatureKernel(BatchKernel):
    r"""Linear in the features, with independent weights for each task.

    .. math:: k((x, t), (x', t')) = \delta_{tt'} \phi(x)'\phi(x') / \beta_t

    Args:
        feature_map: ``n x d`` to ``n x D``.
        precision: The precisions beta, ``T``.
        tasks: The tasks; the covariances of several signals are a batch of T.
    """

    def __init__(
        self,
        feature_map: nn.Module,
        precision: Hyperparameter,
        tasks: Tasks,
    ) -> None:
        batch = torch.Size([len(tasks)] if tasks.share_rows else [])
        super().__init__(batch_shape=batch)
        self.feature_map = feature_map
        self.weight_precision = precision
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
        covariance = left @ right.mT
        beta = self.weight_precision.value
        if self.tasks.column is None:
            covariance = covariance / beta.reshape(*self.batch_shape, 1, 1)
        else:
            task = self.tasks.index(x1)
            same = task == self.tasks.index(x2).mT
            covariance = torch.where(same, covariance / beta[task], 0.0)
        return covariance.diagonal(dim1=-1, dim2=-2) if diag else covariance


refuse_paths(
    TaskFeatureKernel,
    "the prior of a MultiTaskABLR: draw_matheron_paths draws from its posterior",
)


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
        tasks: Tasks,
        prior: bool = True,
    ) -> None:
        super().__init__(
            num_tasks=len(tasks),
            noise_constraint=LogInterval(1e-9, 1e1, initial_value=0.3),
            task_feature_index=tasks.column,
        )
        self.tasks = tasks
        if prior:
            add_exchangeable_prior(self.noise_covar, "noise", 1e-3, spread=2.5)

    def _shaped_noise_covar(
        self,
        base_shape: torch.Size,
        *params: Any,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> DiagLinearOperator:
        if noise is None and self.tasks.column is None:
            noise = self.tasks.to_targets(self.noise.unsqueeze(0))
        elif noise is None:
            if not params:
                raise ValueError(
                    "params: expected the inputs, whose task column says which noise a "
                    "row has, got none: likelihood(distribution, X)."
                )
            X = params[0] if torch.is_tensor(params[0]) else params[0][0]
            noise = self.noise[self.tasks.index(X).squeeze(-1)]
        return DiagLinearOperator(noise.expand(base_shape))

    def marginal(
        self,
        function_dist: MultivariateNormal,
        *params: Any,
        **kwargs: Any,
    ) -> MultivariateNormal:
        """The distribution of outcomes; the prior of training rows has its own noise.

        Args:
            function_dist: Of function values.
            params: The inputs, with their task column.
            kwargs: ``noise``: variances to be used instead.
        """
        if hasattr(function_dist, "with_noise"):
            return function_dist.with_noise()
        if not params and hasattr(function_dist, "rows"):
            params = (function_dist.rows,)
        return super().marginal(function_dist, *params, **kwargs)


def noise_model(
    likelihood: Likelihood | None,
    targets: Tensor,
    noise: Tensor | None,
    tasks: Tasks,
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
    usable = learnt or noise_is_known(likelihood, tasks=True)
    usable = usable and getattr(likelihood, "second_noise_covar", None) is None
    shape = likelihood.noise.shape if usable else None
    fixed = isinstance(likelihood, FixedNoiseGaussianLikelihood)
    expected = targets.shape if fixed else torch.Size([len(tasks)])
    if shape != expected and (fixed or shape != torch.Size([1])):
        raise ValueError(
            "likelihood: expected a GaussianLikelihood, HadamardGaussianLikelihood or "
            "FixedNoiseGaussianLikelihood (learn_additional_noise=False), not a "
            "subclass, whose noise may be another, with noise variances of shape "
            f"{tuple(expected)}, got {type(likelihood).__name__}, {shape}."
        )
    return likelihood


@torch.no_grad()
def fill_without_rows(
    raw: Tensor,
    empty: Tensor,
) -> None:
    """Give tasks without rows the geometric mean of the others.

    Args:
        raw: Logarithms of the values of each task, ``T``.
        empty: Which tasks have no row, ``T``; not all.
    """
    raw[empty] = raw[~empty].mean()
