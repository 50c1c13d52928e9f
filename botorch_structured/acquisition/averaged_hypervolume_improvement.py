r"""Expected improvement of the hypervolume of several outcomes, in closed form.

Which one when: for two or three objectives with independent models this one, which is
exact; for correlated outcomes, or several points at once, BoTorch's
``qLogExpectedHypervolumeImprovement``, which averages samples.

References:

.. [Yang2019ehvi]
    K. Yang, M. Emmerich, A. Deutz and T. Baeck. Efficient Computation of Expected
    Hypervolume Improvement Using Box Decomposition Algorithms. Journal of Global
    Optimization 75, 2019.

.. [Ament2023logei]
    S. Ament, S. Daulton, D. Eriksson, M. Balandat and E. Bakshy. Unexpected
    Improvements to Expected Improvement for Bayesian Optimization. NeurIPS 2023.
"""

from __future__ import annotations

__all__ = ["AveragedLogExpectedHypervolumeImprovement"]

from collections.abc import Sequence

import torch
from botorch.models.model import Model
from botorch.utils.multi_objective.box_decompositions.box_decomposition import (
    BoxDecomposition,
)
from botorch.utils.safe_math import log1mexp
from torch import Tensor

from botorch_structured._botorch_names import log_ei_helper
from botorch_structured.acquisition.mixtures import MixtureAcquisition, Mixtures


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
        sigma, sizes = variance.sqrt(), self.outcomes.sizes
        weights = self.outcomes.log_weights.to(mean).split(sizes)
        in_box: Tensor | None = None
        pairs = zip(mean.split(sizes, -1), sigma.split(sizes, -1), strict=True)
        for k, (m, s) in enumerate(pairs):
            bounds = getattr(self, f"bounds_{k}").to(mean)
            m, s, w = m.unsqueeze(-1), s.unsqueeze(-1), weights[k].unsqueeze(-1)
            logs = log_ei_helper((m - bounds) / s) + s.log()  # ... x K x B
            improvement = (logs + w).logsumexp(-2)
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
