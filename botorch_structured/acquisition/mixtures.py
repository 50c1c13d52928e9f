r"""Acquisition functions of several models, as functions of their means and variances.

An outcome may have a mixture of models, and a criterion several outcomes, independent
of each other. The value of such a criterion at a point then depends on mean and
variance of each model there, and on nothing else: it is written once, as a function of
these. Where the models know the gradients of their moments, no graph of a posterior is
needed.

Which one when:

* ``AveragedLogExpectedImprovement``, one outcome: while data are few, several
  structures explain them about as well, and the one that does best so far is often
  wrong. It weighs them, for instance by ``leave_one_out_weights``. With many data one
  model has all the weight, and BoTorch's ``LogExpectedImprovement`` of that model does
  as well.
* ``AveragedLogExpectedHypervolumeImprovement``, two or three objectives with
  independent models, exactly; for correlated outcomes, or several points at once,
  BoTorch's ``qLogExpectedHypervolumeImprovement``, which averages samples.
* ``CostPrior`` and ``InteriorPrior`` weigh it by cost, and by the distance to bounds.
* ``FeasibilityPrior`` weighs any logarithmic acquisition function by the probability
  that constraints hold; while no feasible point is known there is nothing to improve
  on, and ``AveragedLogProbabilityOfFeasibility`` is the acquisition function.

References:

.. [Yao2018stacking]
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman. Using Stacking to Average Bayesian
    Predictive Distributions. Bayesian Analysis 13(3), 2018.

.. [Yang2019ehvi]
    K. Yang, M. Emmerich, A. Deutz and T. Baeck. Efficient Computation of Expected
    Hypervolume Improvement Using Box Decomposition Algorithms. Journal of Global
    Optimization 75, 2019.

.. [Ament2023logei]
    S. Ament, S. Daulton, D. Eriksson, M. Balandat and E. Bakshy. Unexpected
    Improvements to Expected Improvement for Bayesian Optimization. NeurIPS 2023.

.. [Gardner2014constraints]
    J. Gardner, M. Kusner, Z. Xu, K. Weinberger and J. Cunningham. Bayesian Optimization
    with Inequality Constraints. ICML 2014.

.. [Hvarfner2022pibo]
    C. Hvarfner, D. Stoll, A. Souza, M. Lindauer, F. Hutter and L. Nardi. piBO:
    Augmenting Acquisition Functions with User Beliefs for Bayesian Optimization. ICLR
    2022.

.. [Snoek2012practical]
    J. Snoek, H. Larochelle and R. P. Adams. Practical Bayesian Optimization of Machine
    Learning Algorithms. NeurIPS 2012. Expected improvement per second: section 3.2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.models.model import Model
from botorch.utils.multi_objective.box_decompositions.box_decomposition import (
    BoxDecomposition,
)
from botorch.utils.safe_math import log1mexp
from botorch.utils.transforms import (
    is_ensemble,
    t_batch_mode_transform,
)
from numpy.typing import NDArray
from torch import Tensor, nn

from botorch_structured._botorch_names import log_ei_helper
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_number

Array = NDArray[Any]


def _read_weights(weights: Tensor | Sequence[float] | None, num: int) -> Tensor:
    """``num`` weights with sum 1.

    Args:
        weights: ``num`` numbers, at least 0, not all 0. Default: equal ones.
        num: How many.

    Raises:
        ValueError: They are not.
    """
    shares = torch.as_tensor([1.0] * num if weights is None else weights)
    shares = shares.to(torch.double).detach().reshape(-1)
    valid = shares.isfinite().all() and (shares >= 0).all() and shares.sum() > 0
    if len(shares) != num or not valid:
        raise ValueError(
            f"weights: expected {num} finite numbers of at least 0, not all of them "
            f"0, got {shares.tolist()}."
        )
    return shares / shares.sum()


def read_best_f(best_f: float | Tensor) -> Tensor:
    """Finite best values as a tensor, or a ``ValueError``.

    Python's numbers in double precision: the rounding error of torch's default dtype is
    larger than the improvements at the end of a run.
    """
    if not isinstance(best_f, Tensor):
        best_f = torch.tensor(check_number("best_f", best_f), dtype=torch.double)
    if not best_f.isfinite().all():
        raise ValueError(f"best_f: expected finite numbers, got {best_f.tolist()}.")
    return best_f


class Mixtures(nn.Module):
    """Outcomes that are independent of each other, each with weighted models of it.

    Args:
        models: For each outcome, its models, each with one output.
        weights: For each outcome, the weights of its models. Default: equal ones.

    Raises:
        ValueError: No outcome, an outcome without a model, a model with several
            outputs, or weights that do not fit.
    """

    log_weights: Tensor

    def __init__(
        self,
        models: Sequence[Sequence[Model]],
        weights: Sequence[Tensor | Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        by_outcome = [list(some) for some in models]
        flat = [model for some in by_outcome for model in some]
        single = [isinstance(m, Model) and m.num_outputs == 1 for m in flat]
        if not by_outcome or not all(by_outcome) or not all(single):
            raise ValueError(
                "models: expected for each outcome a list of models with one output, "
                f"got {[[type(m).__name__ for m in some] for some in by_outcome]}."
            )
        by_model = [None] * len(by_outcome) if weights is None else list(weights)
        if len(by_model) != len(by_outcome):
            raise ValueError(
                f"weights: expected those of {len(by_outcome)} outcomes, got "
                f"{len(by_model)}."
            )
        self.sizes = [len(some) for some in by_outcome]
        self.models = nn.ModuleList(flat)
        pairs = zip(by_model, self.sizes, strict=True)
        shares = torch.cat([_read_weights(w, size) for w, size in pairs])
        self.register_buffer("log_weights", shares.log())

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of all models, each ``batch_shape x L``.

        Args:
            X: ``batch_shape x 1 x d`` points.
        """
        models: Sequence[Any] = list(self.models)
        posteriors = [model.posterior(X) for model in models]
        mean = torch.cat([p.mean.squeeze(-2) for p in posteriors], dim=-1)
        variance = torch.cat([p.variance.squeeze(-2) for p in posteriors], dim=-1)
        return mean, positive(variance)

    def mixed(self, logs: Tensor) -> list[Tensor]:
        """Logarithms of the weighted means over the models of each outcome.

        Args:
            logs: ``... x L``, logarithms of each model's values.
        """
        weighted = logs + self.log_weights.to(logs)
        return [part.logsumexp(-1) for part in weighted.split(self.sizes, dim=-1)]

    def means(self, X: Tensor) -> Tensor:
        """Weighted means of each outcome, ``batch_shape x number of outcomes``.

        Args:
            X: ``batch_shape x 1 x d`` points.
        """
        mean = self.moments(X)[0]
        parts = (mean * self.log_weights.to(mean).exp()).split(self.sizes, dim=-1)
        return torch.stack([part.sum(-1) for part in parts], dim=-1)


class _MixtureFunction(ABC):
    """A function of the moments of mixtures, which no graph of a posterior needs."""

    outcomes: Mixtures

    @abstractmethod
    def of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        """``...`` values for ``... x L`` means and variances."""


class MixturePrior(_MixtureFunction, nn.Module):
    """A logarithmic prior for ``PriorGuidedAcquisitionFunction``.

    Args:
        outcomes: Those that it is a function of.
    """

    def __init__(self, outcomes: Mixtures) -> None:
        super().__init__()
        self.outcomes = outcomes

    def forward(self, X: Tensor) -> Tensor:
        """Log weights, ``batch_shape x q x d`` -> ``batch_shape x q``."""
        # points are independent of each other: each is a batch of its own
        return self.of_moments(*self.outcomes.moments(X.unsqueeze(-2)))


class MixtureAcquisition(_MixtureFunction, AnalyticAcquisitionFunction):
    """A logarithmic acquisition function of one point.

    Args:
        outcomes: Those that it is a function of.
    """

    _log = True

    def __init__(self, outcomes: Mixtures) -> None:
        super().__init__(model=outcomes.models[0])
        self.outcomes = outcomes

    @t_batch_mode_transform(expected_q=1)
    def forward(self, X: Tensor) -> Tensor:
        """Values of candidates.

        Args:
            X: ``b x 1 x d`` points.

        Returns:
            ``b`` values.
        """
        return self.of_moments(*self.outcomes.moments(X))


def positive(variance: Tensor) -> Tensor:
    """At any scale of the outcomes."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny)


class AnyScaleLogExpectedImprovement(LogExpectedImprovement):
    """``LogExpectedImprovement`` of outcomes of any scale.

    BoTorch's has a smallest variance of 1e-12. Where the standard deviation of the
    outcomes is 1e-6 or less this is larger than what is known about good points.
    """

    def _mean_and_sigma(
        self,
        X: Tensor,
        compute_sigma: bool = True,
        min_var: float = 1e-12,
    ) -> tuple[Tensor, Tensor | None]:
        least = torch.finfo(X.dtype).tiny
        return super()._mean_and_sigma(X, compute_sigma, least)


class AveragedLogExpectedImprovement(AnalyticAcquisitionFunction):
    r"""Logarithm of the expected improvement under a mixture of models.

    .. math:: \log \sum_k w_k \, \mathrm{EI}_k(x)

    The expected improvement of a mixture is the weighted mean of the expected
    improvements of its parts, exactly: nothing is approximated ([Yao2018stacking]_ has
    weights that are "pseudo-BMA" in their words).

    Args:
        models: ``K`` single-output models of the same outcome, on the same scale.
        best_f: The best value observed so far: a number for all models, or ``K`` of
            them (the best mean of each, where observations have noise).
        weights: ``K`` numbers, at least 0, not all 0; they are divided by their sum.
            Default: equal ones.
        maximize: Whether larger outcomes are better.

    Raises:
        ValueError: No models, weights or ``best_f`` of another length, negative weights
            or ones that are not finite.

    Example:
        >>> models = [TreeStructuredGP(X, Y, space), ConditionalGP(X, Y, space)]
        >>> for model in models:
        ...     fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> acqf = AveragedLogExpectedImprovement(
        ...     models, best_f=Y.max(), weights=leave_one_out_weights(models)
        ... )
        >>> candidate, value = optimize_acqf_paths(acqf, space=space, X_avoid=X)
    """

    _log = True

    def __init__(
        self,
        models: Sequence[Model],
        best_f: float | Tensor,
        weights: Tensor | Sequence[float] | None = None,
        maximize: bool = True,
    ) -> None:
        models = list(models)
        if not models:
            raise ValueError("models: expected at least one, got none.")
        super().__init__(model=models[0])
        best = read_best_f(best_f).detach().reshape(-1)
        if len(best) not in (1, len(models)):
            raise ValueError(
                f"best_f: expected a number or {len(models)} of them, got {len(best)}."
            )
        shares = _read_weights(weights, len(models))
        best = best.expand(len(models))
        self.parts = nn.ModuleList()
        for model, best_f in zip(models, best, strict=True):
            part = AnyScaleLogExpectedImprovement(model, best_f, maximize=maximize)
            self.parts.append(part)
        self.register_buffer("log_weights", shares.log())

    @t_batch_mode_transform(expected_q=1)
    def forward(self, X: Tensor) -> Tensor:
        """Values of candidates.

        Args:
            X: ``b x 1 x d`` points.

        Returns:
            ``b`` values.
        """
        values = torch.stack([part(X) for part in self.parts], dim=-1)
        return (values + self.log_weights.to(values)).logsumexp(-1)


class AveragedLogExpectedHypervolumeImprovement(MixtureAcquisition):
    r"""Logarithm of the expected hypervolume improvement, each outcome with a mixture.

    The space that the known points do not dominate is a union of boxes
    :math:`[l_c, u_c]`. What an outcome y adds to the hypervolume in a box is the
    product over the objectives k of :math:`(\min(y_k, u_{ck}) - l_{ck})_+`, the
    difference of two improvements. So for independent objectives

    .. math:: \log \sum_c \prod_k
        \big(\mathrm{EI}_k(l_{ck}) - \mathrm{EI}_k(u_{ck})\big), \quad
        \mathrm{EI}_k(f) = \sum_j w_{kj} \, E_{kj}[(y_k - f)_+]

    exactly, where w are the weights of the models of an objective. With one model each
    BoTorch's ``ExpectedHypervolumeImprovement`` is the same sum ([Yang2019ehvi]_)
    without the logarithm, whose gradients do not vanish far from the front
    ([Ament2023logei]_). All objectives are maximised.

    Args:
        models: For each of the ``m`` objectives, its models.
        partitioning: Boxes that are not dominated, such as BoTorch's
            ``FastNondominatedPartitioning(ref_point, Y)``; with noise give it posterior
            means for ``Y``.
        weights: For each objective, the weights of its models. Default: equal ones.

    Raises:
        ValueError: ``models`` or ``weights`` do not fit, or ``partitioning`` has
            another number of outcomes.

    Example:
        >>> models = [[TreeStructuredGP(X, Y[:, k : k + 1], space)] for k in range(2)]
        >>> # ... fit them
        >>> boxes = FastNondominatedPartitioning(infer_reference_point(pareto_Y), Y)
        >>> acqf = AveragedLogExpectedHypervolumeImprovement(models, boxes)
        >>> x, _ = optimize_acqf_paths(acqf, space=space, X_avoid=X)
    """

    def __init__(
        self,
        models: Sequence[Sequence[Model]],
        partitioning: BoxDecomposition,
        weights: Sequence[Tensor | Sequence[float]] | None = None,
    ) -> None:
        super().__init__(Mixtures(models, weights))
        num = len(self.outcomes.sizes)
        lower, upper = partitioning.get_hypercell_bounds().detach()
        if lower.ndim != 2 or lower.shape[-1] != num:
            raise ValueError(
                f"partitioning: expected one of {num} outcomes without batches, got "
                f"boxes of shape {tuple(lower.shape)}."
            )
        some = (upper > lower).all(-1)
        # an expected improvement over each different bound, of which boxes share many
        for k in range(num):
            both = torch.cat([lower[some, k], upper[some, k]])
            bounds, index = both.unique(return_inverse=True)
            self.register_buffer(f"bounds_{k}", bounds[bounds.isfinite()])
            self.register_buffer(f"index_{k}", index.view(2, -1))

    def of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        sizes = self.outcomes.sizes
        sigma = variance.sqrt()
        weights = self.outcomes.log_weights.to(mean).split(sizes)
        in_box: Tensor | None = None
        pairs = zip(mean.split(sizes, -1), sigma.split(sizes, -1), strict=True)
        for k, (m, s) in enumerate(pairs):
            bounds = getattr(self, f"bounds_{k}").to(mean)
            u = (m.unsqueeze(-1) - bounds) / s.unsqueeze(-1)  # ... x K x B
            logs = log_ei_helper(u) + s.log().unsqueeze(-1)
            improvement = (logs + weights[k].unsqueeze(-1)).logsumexp(-2)
            # EI(l) - EI(u); over an infinite bound there is no improvement
            lower, upper = getattr(self, f"index_{k}")
            over = improvement[..., lower]
            ends = upper < len(bounds)
            step = improvement[..., upper.clamp_max(len(bounds) - 1)] - over
            least = torch.finfo(step.dtype).eps
            step = step.masked_fill(~ends, -1.0).clamp_max(-least)
            part = over + torch.where(ends, log1mexp(step), 0.0)
            in_box = part if in_box is None else in_box + part
        assert in_box is not None
        return in_box.logsumexp(-1)


class FeasibilityPrior(MixturePrior):
    r"""Logarithm of the probability that all constraints hold.

    .. math:: \log p(x) = \sum_k \log \sum_j w_{kj} \,
        \Phi\big((l_k - m_{kj}(x)) / s_{kj}(x)\big)

    of constraints ``c_k(x) <= l_k`` that are independent of each other, each with a
    mixture of models. Choose it with BoTorch's ``PriorGuidedAcquisitionFunction`` and
    exponent 1 around any logarithmic acquisition function: log EI becomes that of the
    constrained expected improvement ([Gardner2014constraints]_; with one model of each,
    BoTorch's ``LogConstrainedExpectedImprovement``). Its ``best_f`` is then the best
    value at a feasible point. With ``optimize_acqf_paths`` it costs no autograd through
    the posteriors.

    Args:
        models: For each constraint, models of its outcome.
        weights: For each constraint, the weights of its models. Default: equal ones.
        limits: The largest outcome of each constraint that is feasible. Default: 0.

    Raises:
        ValueError: An argument is not what it should be.

    Example:
        >>> memory = TreeStructuredGP(X, gigabytes, space)  # ... fit it
        >>> acqf = PriorGuidedAcquisitionFunction(
        ...     LogExpectedImprovement(model, best_f=Y[gigabytes <= 8.0].max()),
        ...     FeasibilityPrior([[memory]], limits=[8.0]), log=True,
        ... )
        >>> x, _ = optimize_acqf_paths(acqf, space=space, X_avoid=X)
    """

    limits: Tensor

    def __init__(
        self,
        models: Sequence[Sequence[Model]],
        weights: Sequence[Tensor | Sequence[float]] | None = None,
        limits: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(Mixtures(models, weights))
        num = len(self.outcomes.sizes)
        largest = [0.0] * num if limits is None else list(limits)
        if len(largest) != num:
            raise ValueError(f"limits: expected {num} numbers, got {len(largest)}.")
        numbers = [check_number("limits", float(limit)) for limit in largest]
        each = torch.tensor(numbers, dtype=torch.double)
        sizes = torch.tensor(self.outcomes.sizes)
        self.register_buffer("limits", each.repeat_interleave(sizes))

    def of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        z = (self.limits.to(mean) - mean) / variance.sqrt()
        logs = self.outcomes.mixed(torch.special.log_ndtr(z))
        return torch.stack(logs, dim=-1).sum(-1)


class AveragedLogProbabilityOfFeasibility(MixtureAcquisition):
    """``FeasibilityPrior`` alone: to look for a first feasible point.

    Choose it while no feasible point is known. With one model of each constraint it is
    BoTorch's ``LogProbabilityOfFeasibility``.

    Args:
        prior: The constraints.
    """

    def __init__(self, prior: FeasibilityPrior) -> None:
        super().__init__(prior.outcomes)
        self.prior = prior

    def of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        return self.prior.of_moments(mean, variance)


def check_cost_model(model: Any) -> None:
    """Raise unless it has one output and one set of hyperparameters."""
    if not isinstance(model, Model) or model.num_outputs != 1:
        raise ValueError(
            f"cost_model: expected a BoTorch model with one output, got {model!r}."
        )
    if is_ensemble(model):
        raise ValueError(
            "cost_model: expected one set of hyperparameters, got an ensemble, "
            f"{type(model).__name__}."
        )


class CostPrior(MixturePrior):
    r"""Weight of a candidate: affordable, per expected cost.

    .. math:: \log p(x) = \log P(\mathrm{cost}(x) \le \mathrm{left})
        - \log E[\mathrm{cost}(x)]

    of a log-normal cost. Choose it where costs differ between candidates, with
    BoTorch's ``PriorGuidedAcquisitionFunction`` ([Hvarfner2022pibo]_), exponent 1,
    around any logarithmic acquisition function: log EI becomes EI per second
    ([Snoek2012practical]_) of affordable candidates. With
    ``optimize_acqf_paths`` it costs no autograd. Where the context of an evaluation is
    to be chosen as well, choose ``ContextLogExpectedImprovement``.

    Args:
        cost_model: Of the *logarithm* of the cost, with one output.
        left: What may still be spent, in the units of the cost. None: no limit.

    Raises:
        ValueError: ``cost_model`` has several outputs or is an ensemble; ``left`` is
            not positive.

    Example:
        >>> cost_model = TreeStructuredGP(X, seconds.log(), space)  # ... fit it
        >>> acqf = PriorGuidedAcquisitionFunction(
        ...     LogExpectedImprovement(model, best_f=Y.max()),
        ...     CostPrior(cost_model, left=3600.0 - seconds.sum()), log=True,
        ... )
        >>> x, _ = optimize_acqf_paths(acqf, space=space, X_avoid=X)
    """

    def __init__(self, cost_model: Model, left: float | Tensor | None = None) -> None:
        check_cost_model(cost_model)
        if left is not None:
            left = check_number("left", float(left))
            if not left > 0.0:
                raise ValueError(f"left: expected a positive number, got {left}.")
        super().__init__(Mixtures([[cost_model]]))
        self.left = left

    def of_moments(self, mean: Tensor, variance: Tensor) -> Tensor:
        mean = mean.squeeze(-1)
        variance = variance.squeeze(-1)
        value = -mean - 0.5 * variance
        if self.left is None:
            return value
        sigma = variance.clamp_min(1e-12).sqrt()
        return value + torch.special.log_ndtr((math.log(self.left) - mean) / sigma)


class InteriorPrior(nn.Module):
    r"""Log density that falls towards the bounds of the active numeric columns.

    .. math:: \log p(x) = \sum_j \log(4 u_j (1 - u_j) + \epsilon) + \mathrm{const}

    over the active numeric columns j, with :math:`u_j` the place of :math:`x_j` between
    its bounds. Integers on a logarithmic scale do not count: of numbers of units or
    trees the largest are as likely as those in the middle. Choose it with BoTorch's
    ``PriorGuidedAcquisitionFunction`` and an exponent that decays with the number of
    observations ([Hvarfner2022pibo]_): with few data, expected improvement is largest
    in corners, of which d columns have :math:`2^d`, since the variance is largest
    there.

    Args:
        space: Bounds, and which columns are active and numeric.
        floor: The density at a bound, relative to that in the middle, :math:`\epsilon`:
            an optimum on a bound stays possible.

    Raises:
        ValueError: ``space`` is no ``SearchSpace``, or ``floor`` is not positive.

    Example:
        >>> acqf = PriorGuidedAcquisitionFunction(
        ...     LogExpectedImprovement(model, best_f=train_Y.max()),
        ...     InteriorPrior(space), log=True, prior_exponent=1 / len(train_Y),
        ... )
    """

    lower: Tensor
    width: Tensor
    numeric: Tensor

    def __init__(self, space: SearchSpace, floor: float = 0.1) -> None:
        super().__init__()
        if not isinstance(space, SearchSpace):
            got = type(space).__name__
            raise ValueError(f"space: expected a SearchSpace, got {got}.")
        if not check_number("floor", floor) > 0:
            raise ValueError(f"floor: expected a positive number, got {floor}.")
        self.tree = space.tree
        self.floor = floor
        left_out = {
            *space.categorical_features,
            *space.tree.decision_columns,
            *space.log_integers,
        }
        lower, upper = space.bounds
        numeric = torch.ones(space.dim, dtype=torch.bool)
        numeric[[*left_out]] = False
        self.register_buffer("numeric", numeric & (upper > lower))
        self.register_buffer("lower", lower.clone())
        self.register_buffer("width", torch.where(upper > lower, upper - lower, 1.0))

    def forward(self, X: Tensor) -> Tensor:
        """Log density, ``batch_shape x q x d`` -> ``batch_shape x q``."""
        place = ((X - self.lower.to(X)) / self.width.to(X)).clamp(0.0, 1.0)
        density = (4.0 * place * (1.0 - place) + self.floor).log()
        counts = self.tree.active_mask(X) & self.numeric
        return torch.where(counts, density, 0.0).sum(-1)
