r"""A prior for candidates that are cheap, and affordable with the budget that is left.

References:

.. [Hvarfner2022pibo]
    C. Hvarfner, D. Stoll, A. Souza, M. Lindauer, F. Hutter and L. Nardi. piBO:
    Augmenting Acquisition Functions with User Beliefs for Bayesian Optimization. ICLR
    2022.

.. [Snoek2012practical]
    J. Snoek, H. Larochelle and R. P. Adams. Practical Bayesian Optimization of Machine
    Learning Algorithms. NeurIPS 2012. Expected improvement per second: section 3.2.
"""

from __future__ import annotations

__all__ = ["CostPrior", "check_cost_model"]

import math
from typing import Any

import torch
from botorch.models.model import Model
from botorch.utils.transforms import is_ensemble
from torch import Tensor

from botorch_structured.acquisition.mixtures import MixturePrior, Mixtures
from botorch_structured.spaces.arguments import check_number

_LEAST_VARIANCE = 1e-12


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
        mean, variance = mean.squeeze(-1), variance.squeeze(-1)
        value = -mean - 0.5 * variance
        if self.left is None:
            return value
        sigma = variance.clamp_min(_LEAST_VARIANCE).sqrt()
        return value + torch.special.log_ndtr((math.log(self.left) - mean) / sigma)
