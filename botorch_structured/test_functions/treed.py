"""Problems that are flat here and violent there.

.. [Assael2014treed]
    J.-A. M. Assael, Z. Wang, B. Shahriari, N. de Freitas. Heteroscedastic Treed
    Bayesian Optimisation. arXiv:1410.7172, 2014.

.. [Wang2014rkhs]
    Z. Wang, J.-A. M. Assael, N. de Freitas. RKHS 1D Function for Bayesian Optimization
    tasks. https://github.com/iassael/function-rkhs, 2014.

.. [Gramacy2005treed]
    R. B. Gramacy. Bayesian Treed Gaussian Process Models. PhD thesis, University of
    California, Santa Cruz, 2005.
"""

from __future__ import annotations

__all__ = ["GramacyExponential2D", "RKHS1D"]

import math

from torch import Tensor

from botorch_structured.test_functions.base import BoxTestFunction

# (width, ((centre, weight), ...)) of the two sums of squared exponentials.
_WIDE = (0.1, ((0.1, 4), (0.15, -1), (0.08, 2), (0.3, -2), (0.4, 1)))
_NARROW = (
    0.01,
    (
        (0.8, 3),
        (0.85, 4),
        (0.9, 2),
        (0.95, 1),
        (0.92, -1),
        (0.74, 2),
        (0.91, 2),
        (0.89, 3),
        (0.79, 3),
        (0.88, 2),
        (0.86, -1),
        (0.96, -2),
        (0.99, 4),
        (0.82, -3),
    ),
)


class RKHS1D(BoxTestFunction):
    r"""Smooth on the left, ten times as wiggly on the right.

    The first problem of [Assael2014treed]_ (section 4 and Figure 3), defined in
    [Wang2014rkhs]_: on [0, 1], the negative of

        f(x) = sum_i a_i exp(-(x - s_i)^2 / (2 * 0.1^2))
             + sum_j b_j exp(-(x - t_j)^2 / (2 * 0.01^2))

    with five wide and fourteen narrow bumps. A stationary model learns one length-scale
    and searches either the smooth part, where a broad local optimum of 4.97 is found at
    once, or everything as finely as the other: f is at most 5.738 at 0.892, on a
    peak 0.02 wide.

    The authors maximise f. As every problem here it is to be minimised, and f is
    ``RKHS1D(negate=True)``. There is no noise unless ``noise_std`` is given.

    Example:
        >>> problem = RKHS1D(negate=True)
        >>> X = problem.starts(seed=0)  # 5 x 1
        >>> Y = problem(X).unsqueeze(-1)
    """

    dim = 1
    continuous_inds = [0]
    _bounds = [(0.0, 1.0)]
    _optimal_value = -5.738393747098739
    _optimizers = [(0.8923597507741958,)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        total = X.new_zeros(X.shape[:-1])
        for width, bumps in (_WIDE, _NARROW):
            centres, weights = X.new_tensor(bumps).T
            total = total + ((X - centres) / width).square().mul(-0.5).exp() @ weights
        return -total


class GramacyExponential2D(BoxTestFunction):
    r"""A dip and a bump in one corner of a plain: ``x1 exp(-x1^2 - x2^2)``.

    On [-2, 6]^2; nearly all that happens is in [-2, 2]^2. From [Gramacy2005treed]_,
    where observations have noise of standard deviation 0.001 (``noise_std=0.001``);
    "2-D Exp" in [Assael2014treed]_, section 4. To be minimised: the dip is at
    ``(-1/sqrt(2), 0)``. By symmetry maximising it (``negate``) is the same problem up
    to where the optimum lies.
    """

    dim = 2
    continuous_inds = [0, 1]
    _bounds = [(-2.0, 6.0), (-2.0, 6.0)]
    _optimal_value = -math.exp(-0.5) / math.sqrt(2.0)
    _optimizers = [(-1.0 / math.sqrt(2.0), 0.0)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return X[..., 0] * X.square().sum(-1).neg().exp()
