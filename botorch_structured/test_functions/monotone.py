"""Problems that are a sum of parts, each of which is observed and bends one way.

`MonotoneMixture1D` is synthetic, `ElasticNetTuning` is real trainings: as a learner's
capacity grows, its training error falls and the gap to the validation error rises, two
parts that are believed to bend one way each, of a sum that does not.

.. [Wang2018monotonicity]
    W. Wang and W. J. Welch. Bayesian Optimization Using Monotonicity Information and
    Its Application in Machine Learning Hyperparameter Tuning. arXiv:1802.03532, 2018.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces.arguments import check_count, import_extra
from botorch_structured.test_functions.base import BoxTestFunction


class DecomposedTestFunction(BoxTestFunction):
    r"""A problem that is the sum of ``components``, each monotone in some columns.

    For models of the parts, such as ``DecomposedGP``. A subclass defines
    ``_evaluate_components`` and ``_monotone``, both of the function to be minimised.
    """

    _monotone: tuple[dict[int, int], ...]

    @property
    def monotone(self) -> tuple[dict[int, int], ...]:
        """For each component ``{column: 1 where it rises, -1 where it falls}``.

        As ``components``, they change their sign with ``negate``. For real learners
        they are expected, and not guaranteed at each point.
        """
        if not self.negate:
            return self._monotone
        return tuple(
            {j: -sign for j, sign in signs.items()} for signs in self._monotone
        )

    @abstractmethod
    def _evaluate_components(self, X: Tensor) -> Tensor:
        """``... x d`` -> ``... x k``, to be minimised, without noise."""

    def components(self, X: Tensor) -> Tensor:
        r"""The parts, whose sum is ``problem(X, noise=False)``.

        Args:
            X: ``batch_shape x d``.

        Returns:
            ``batch_shape x k``.
        """
        parts = self._evaluate_components(X)
        return -parts if self.negate else parts

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self._evaluate_components(X).sum(-1)

    def starts(
        self,
        seed: int,
        n: int | None = None,
    ) -> Tensor:
        r"""Random points, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many. Default: 4, as in section 3.1 of Wang and Welch: one for each
                parameter of an isotropic GP and one more.

        Returns:
            An ``n x d``-dim tensor.
        """
        g = torch.Generator().manual_seed(seed)
        unit = torch.rand(n or 4, self.dim, generator=g, dtype=torch.double)
        low, high = self.bounds
        return low + (high - low) * unit.to(self.bounds)


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

    _bounds = [(0.0, 1.0)]
    _optimal_value = -1.7177402831029276
    _optimizers = [(0.3269961750471420,)]
    _monotone = ({0: 1}, {0: -1})

    def _evaluate_components(self, X: Tensor) -> Tensor:
        steps = (X - X.new_tensor([0.5351, 0.3412, 0.3061, 0.3325])) / 0.05
        parts = torch.stack([steps.clamp_min(0.0), steps.clamp_max(0.0)], dim=-2)
        return -parts.square().mul(-0.5).exp().mean(-1)


class ElasticNetTuning(DecomposedTestFunction):
    r"""Validation error of a linear regression with an elastic net.

    [Wang2018monotonicity]_, section 4.1: columns are alpha in [0, 1], the share of the
    L1 penalty, and log2(lambda) in [-10, 0]. 200 training and 200 validation examples
    have 100 standard normal features and unit noise; 50 coefficients are normal with
    standard deviation 0.22 and 50 are zero. The error is half the mean square. There
    is no intercept. About 2 milliseconds an evaluation.

    Values near the optimum hardly differ, and the paper reports ``rank``.

    Example:
        >>> problem = ElasticNetTuning(seed=0)
        >>> X = problem.starts(seed=0)  # 4 x 2
        >>> problem.components(X)  # training error and gap, 4 x 2
        >>> problem.rank(problem(X))  # 4 numbers from 1 (best) to 101
    """

    _bounds = [(0.0, 1.0), (-10.0, 0.0)]
    _names = ("alpha", "log2_lambda")
    _monotone = ({0: 1, 1: 1}, {0: -1, 1: -1})

    def __init__(
        self,
        seed: int = 0,
        noise_std: float | None = None,
        negate: bool = False,
    ) -> None:
        """
        Args:
            seed: Decides the data, and the points that ``rank`` compares with.
            noise_std: Standard deviation of noise to add.
            negate: Whether to negate the function, for maximisation.

        Raises:
            ImportError: Without scikit-learn.
        """
        check_count("seed", seed, least=0)
        super().__init__(noise_std=noise_std, negate=negate)
        import_extra("sklearn.linear_model")
        self.seed = seed
        rng = np.random.default_rng(seed)
        coefficients = np.zeros(100)
        coefficients[rng.permutation(100)[:50]] = rng.normal(0.0, 0.22, 50)
        self._data = []
        for _ in range(2):  # training, validation
            features = rng.standard_normal((200, 100))
            targets = features @ coefficients + rng.standard_normal(200)
            self._data.append((features, targets))

    def _evaluate_components(self, X: Tensor) -> Tensor:
        parts = [self._train(*x) for x in X.reshape(-1, 2).tolist()]
        return X.new_tensor(parts).reshape(X.shape)

    def _train(
        self,
        alpha: float,
        log2_lambda: float,
    ) -> tuple[float, float]:
        """The training error, and the gap to the validation error."""
        strength = 2.0**log2_lambda
        linear_model = import_extra("sklearn.linear_model")
        model = linear_model.ElasticNet(
            alpha=strength,
            # with 0 coordinate descent would not end; errors change by 1e-7
            l1_ratio=max(alpha, 1e-8),
            fit_intercept=False,
            tol=1e-6,
            max_iter=100_000,
        )
        model.fit(*self._data[0])
        errors = [np.square(y - model.predict(X)).mean() / 2 for X, y in self._data]
        return errors[0], errors[1] - errors[0]

    @cached_property
    def _random_values(self) -> Tensor:
        return self._evaluate_true(self.starts(self.seed, 100)).sort().values

    def rank(self, values: Tensor) -> Tensor:
        """One more than how many of 100 random points are better than each value."""
        errors = (-values if self.negate else values).to(self._random_values)
        # on another processor the value of the same point has other last digits
        return 1 + torch.searchsorted(self._random_values, errors - 1e-9)
