"""A sum of a rising and a falling function.

.. [Wang2018monotonicity]
    W. Wang and W. J. Welch. Bayesian Optimization Using Monotonicity Information and
    Its Application in Machine Learning Hyperparameter Tuning. arXiv:1802.03532, 2018.
"""

from __future__ import annotations

__all__ = ["MonotoneMixture1D"]

import torch
from torch import Tensor

from botorch_structured.test_functions.box import DecomposedTestFunction

_CENTRES = (0.5351, 0.3412, 0.3061, 0.3325)
_WIDTH = 0.05


class MonotoneMixture1D(DecomposedTestFunction):
    r"""Four bumps on [0, 1] as the sum of two monotone functions.

    The illustrative example of [Wang2018monotonicity]_ (section 3.2 and Figure 1), the
    negative of

        f(x) = 1 + 1/4 sum_c phi(x - c) = f_1(x) + f_2(x),
        f_1(x) = 1/4 sum_c phi(max(x - c, 0)),    f_2(x) = 1/4 sum_c phi(min(x - c, 0)),

    where phi(y) = exp(-y^2 / (2 * 0.05^2)) and c = 0.5351, 0.3412, 0.3061, 0.3325.
    f_1 falls and f_2 rises; both lie between 0 and 1 and are flat on one side. A model
    of f sees a flat line unless an observation is near the bumps; models of the parts
    see from any point on which side of it they are.

    The authors maximise f. As every problem here it is to be minimised, and f is
    ``MonotoneMixture1D(negate=True)``; its parts are ``components``, their directions
    ``monotone``. There is no noise unless ``noise_std`` is given.

    Example:
        >>> problem = MonotoneMixture1D(negate=True)
        >>> X = problem.starts(seed=0)  # 4 x 1
        >>> parts = problem.components(X)  # 4 x 2
        >>> problem.monotone
        ({0: -1}, {0: 1})
    """

    dim = 1
    continuous_inds = [0]
    _bounds = [(0.0, 1.0)]
    _optimal_value = -1.7177402831029276
    _optimizers = [(0.3269961750471420,)]
    _monotone = ({0: 1}, {0: -1})

    def _evaluate_components(self, X: Tensor) -> Tensor:
        steps = (X - X.new_tensor(_CENTRES)) / _WIDTH  # ``... x 4``
        falling, rising = (
            part.square().mul(-0.5).exp().mean(-1)
            for part in (steps.clamp_min(0.0), steps.clamp_max(0.0))
        )
        return -torch.stack([falling, rising], dim=-1)
