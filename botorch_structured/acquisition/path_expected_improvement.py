r"""Expected improvement of the path part of a tree-structured GP, without its leaf.

Which one when: ``PathLogExpectedImprovement`` to maximise, since the plain form
underflows far from the best value and then has no gradient; ``PathExpectedImprovement``
to compare with the paper, or to read values in the units of the objective.

References:

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez and M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. ICML 2017.

.. [Ament2023logei]
    S. Ament, S. Daulton, D. Eriksson, M. Balandat and E. Bakshy. Unexpected
    Improvements to Expected Improvement for Bayesian Optimization. NeurIPS 2023.
"""

from __future__ import annotations

__all__ = [
    "PathExpectedImprovement",
    "PathLogExpectedImprovement",
    "least_sigma",
    "read_best_f",
]

import torch
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.acquisition.input_constructors import (
    acqf_input_constructor,
    construct_inputs_best_f,
)
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.utils.transforms import (
    average_over_ensemble_models,
    t_batch_mode_transform,
)
from torch import Tensor

from botorch_structured._botorch_names import (
    ei_helper,
    log_ei_helper,
    scaled_improvement,
)
from botorch_structured.spaces.arguments import check_number

# The smallest standard deviations. BoTorch's 1e-6 is larger than the improvements at
# the end of a noise-free run.
_MIN_SIGMA = {torch.float64: 1e-12, torch.float32: 1e-6}


def least_sigma(dtype: torch.dtype) -> float:
    """The smallest standard deviation that is used."""
    return _MIN_SIGMA.get(dtype, 1e-6)


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


class _PathImprovement(AnalyticAcquisitionFunction):
    """Both forms; ``_log`` says whether the logarithm is taken."""

    def __init__(
        self,
        model: Model,
        best_f: float | Tensor,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
    ) -> None:
        if not callable(getattr(model, "path_posterior", None)):
            raise ValueError(
                "model: expected one with a path_posterior, such as "
                f"TreeStructuredGP, got {type(model).__name__}."
            )
        super().__init__(model=model, posterior_transform=posterior_transform)
        self.register_buffer("best_f", read_best_f(best_f))
        self.maximize = maximize

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models
    def forward(self, X: Tensor) -> Tensor:
        """(Log) expected improvement of the path of every point.

        Args:
            X: ``b x 1 x d`` points.

        Returns:
            ``b`` values.
        """
        self.to(X)
        posterior = self.model.path_posterior(X)
        if self.posterior_transform is not None:
            posterior = self.posterior_transform(posterior=posterior, X=X)
        mean = posterior.mean.squeeze(-2)
        try:
            shape = torch.broadcast_shapes(self.best_f.shape, mean.shape[:-1])
        except RuntimeError:
            shape = None
        if shape != mean.shape[:-1]:
            raise ValueError(
                "best_f: expected a number, or as many as X has batches, "
                f"{tuple(mean.shape[:-1])}, got shape {tuple(self.best_f.shape)}."
            )
        floor = least_sigma(mean.dtype) ** 2
        sigma = posterior.variance.clamp_min(floor).sqrt().view(mean.shape)
        best_f = self.best_f.unsqueeze(-1) if self.best_f.dim() else self.best_f
        u = scaled_improvement(mean, sigma, best_f, self.maximize)
        sigma, u = sigma.squeeze(-1), u.squeeze(-1)
        if self._log:
            return log_ei_helper(u) + sigma.log()
        return sigma * ei_helper(u)


class PathExpectedImprovement(_PathImprovement):
    r"""Expected improvement of the path part ``b_p + z_p(x)'c`` of a tree model.

    Use it as the first argument of ``optimize_acqf_two_step`` to choose a path, and the
    shared columns on it, without looking at any leaf. With mean m and standard
    deviation s of b_p + z_p(x)'c and :math:`\xi = (y_{min} - m) / s` (for
    ``maximize=False``; the opposite sign for ``maximize=True``)

    .. math:: \mathrm{EI}(p) = s \, (\varphi(\xi) + \xi \, \Phi(\xi))

    which is equation (6) of [Jenatton2017tree]_. It does not depend on the leaf: it is
    constant in the columns of a single path, and a path whose first evaluation was bad
    may never be chosen again. Where all leaves can be scored, ``optimize_acqf_paths``
    with ``LogExpectedImprovement`` finds better points.

    Args:
        model: A single-output model with a ``path_posterior``, such as
            ``TreeStructuredGP``.
        best_f: The best value observed so far: a number, or ``b`` of them.
        posterior_transform: Applied to the path posterior.
        maximize: Whether larger outcomes are better.

    Raises:
        ValueError: The model has no ``path_posterior``, ``best_f`` is not finite, or,
            at the first call, not of the shape of ``X``.
    """


class PathLogExpectedImprovement(_PathImprovement):
    r"""Logarithm of ``PathExpectedImprovement``, accurate where that underflows.

    Choose it to maximise: its gradient does not vanish however small the improvement
    ([Ament2023logei]_, as implemented in BoTorch). Arguments and errors are those of
    ``PathExpectedImprovement``.
    """

    _log: bool = True


# BoTorch and Ax construct the arguments from a data set as for ExpectedImprovement.
acqf_input_constructor(PathExpectedImprovement, PathLogExpectedImprovement)(
    construct_inputs_best_f
)
