r"""Priors for candidates: cheap and affordable ones, and those inside of the box.

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

import math
from typing import Any

import torch
from botorch.models.model import Model
from botorch.utils.transforms import is_ensemble
from torch import Tensor, nn

from botorch_structured.acquisition.mixtures import MixturePrior, Mixtures
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_number


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
