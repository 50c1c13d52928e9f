r"""Random Fourier features: an RBF kernel as a finite sum of cosines.

References:

.. [Rahimi2007random]
    A. Rahimi and B. Recht. Random Features for Large-Scale Kernel Machines. NIPS 2007.

.. [Perrone2017multiple]
    V. Perrone, R. Jenatton, M. Seeger and C. Archambeau. Multiple Adaptive Bayesian
    Linear Regression for Scalable Bayesian Optimization with Warm Start.
    arXiv:1712.02902, 2017.
"""

from __future__ import annotations

__all__ = ["RandomFourierFeatures"]

import math

import torch
from botorch.utils.types import DEFAULT
from gpytorch import Module
from gpytorch.priors import LogNormalPrior, Prior
from torch import Tensor

from botorch_structured._botorch_names import DefaultType
from botorch_structured.linalg.parameters import LogInterval
from botorch_structured.spaces.arguments import check_count

# With a smaller bandwidth the features are noise on the unit cube.
_BOUNDS = (1e-2, 1e3)


class RandomFourierFeatures(Module):
    r"""Features whose inner products approximate the RBF kernel.

    .. math:: \phi(x) = \sqrt{2/D} \cos(U (x / \sigma) + b), \quad
        \phi(x)'\phi(x') \approx \exp(-\|(x - x') / \sigma\|^2 / 2)

    with U standard normal and b uniform on [0, 2 pi] ([Rahimi2007random]_;
    [Perrone2017multiple]_, section 2.3), both drawn once. Only the bandwidth is learnt:
    one for all columns (the paper), or one for each with ``ard_num_dims``. The error
    of an entry has a standard deviation of about 1 / sqrt(D).

    Choose it as the ``feature_map`` of a ``MultiTaskABLR`` where there are too few
    evaluations to learn a network, or where a fit must be cheap.

    Args:
        num_features: The number D of features.
        ard_num_dims: The number of bandwidths, one for each column; one for all columns
            if None.
        num_dims: The number d of columns; by default that of the first call, before
            which there is no state to load into.
        seed: Of U and b; by default drawn from torch's global generator.
        lengthscale_prior: Of the bandwidth. Default: BoTorch's for RBF kernels,
            LogNormal(sqrt(2) + log(d) / 2, sqrt(3)). None for the paper's maximum
            likelihood.

    Raises:
        ValueError: If a number is out of range, or a call has other columns than U.

    Example:
        >>> features = RandomFourierFeatures(num_features=100, seed=0)
        >>> phi = features(X)  # n x 100
    """

    frequencies: Tensor | None

    def __init__(
        self,
        num_features: int = 100,
        ard_num_dims: int | None = None,
        num_dims: int | None = None,
        seed: int | None = None,
        lengthscale_prior: Prior | DefaultType | None = DEFAULT,
    ) -> None:
        check_count("num_features", num_features)
        for name, value in (("ard_num_dims", ard_num_dims), ("num_dims", num_dims)):
            if value is not None:
                check_count(name, value)
        num_dims = ard_num_dims if num_dims is None else num_dims
        if ard_num_dims not in (None, num_dims):
            raise ValueError(
                f"ard_num_dims: expected None or num_dims={num_dims}, got "
                f"{ard_num_dims}."
            )
        super().__init__()
        self.num_features = num_features
        self.ard_num_dims = ard_num_dims
        self.seed = int(torch.randint(2**62, ())) if seed is None else seed
        self._first = 1.0
        self._start = 1.0
        self.register_parameter(
            "raw_lengthscale",
            torch.nn.Parameter(torch.zeros(ard_num_dims or 1, dtype=torch.float64)),
        )
        self.register_constraint("raw_lengthscale", LogInterval(*_BOUNDS))
        self._default_prior = lengthscale_prior is DEFAULT
        if lengthscale_prior is DEFAULT:
            lengthscale_prior = LogNormalPrior(math.sqrt(2.0), math.sqrt(3.0))
        if lengthscale_prior is not None:
            self.register_prior(
                "lengthscale_prior", lengthscale_prior, _get, _set_lengthscale
            )
        self.register_buffer("frequencies", None)
        self.register_buffer("phases", None)
        if num_dims is not None:
            self._draw(num_dims)

    @property
    def lengthscale(self) -> Tensor:
        """The bandwidth sigma, of 1 or ``d`` entries."""
        return self.raw_lengthscale_constraint.transform(self.raw_lengthscale)

    @lengthscale.setter
    def lengthscale(self, value: float | Tensor) -> None:
        _set_lengthscale(self, value)

    def forward(self, X: Tensor) -> Tensor:
        """The features.

        Args:
            X: ``batch_shape x n x d``.

        Returns:
            ``batch_shape x n x D``.
        """
        if self.frequencies is None:
            self._draw(X.shape[-1])
        assert self.frequencies is not None
        if X.shape[-1] != self.frequencies.shape[-1]:
            raise ValueError(
                f"X: expected {self.frequencies.shape[-1]} columns, as the features "
                f"were drawn for, got {X.shape[-1]}."
            )
        angles = (X / self.lengthscale) @ self.frequencies.mT + self.phases
        return math.sqrt(2.0 / self.num_features) * angles.cos()

    def _draw(self, num_dims: int) -> None:
        """U and b, the same for a seed whatever dtype and device."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.num_features, num_dims)
        frequencies = torch.randn(
            shape,
            generator=generator,
            dtype=torch.float64,
        )
        phases = torch.rand(
            shape[0],
            generator=generator,
            dtype=torch.float64,
        )
        like = self.raw_lengthscale.detach()
        self.frequencies = frequencies.to(like)
        self.phases = (2.0 * math.pi * phases).to(like)
        if self._default_prior:
            loc = math.sqrt(2.0) + 0.5 * math.log(num_dims)
            self.lengthscale_prior.loc = torch.as_tensor(loc).to(like)
            self._first = math.exp(loc - 3.0)  # the mode, as BoTorch starts
            self.restart()

    def restart(self, number: int = 0) -> None:
        """Set the bandwidth to where fits start.

        Args:
            number: Which of the starts.
        """
        self._start = self._first * (1.0, 3.0, 0.3, 10.0, 0.1)[number % 5]
        _set_lengthscale(self, self._start)

    def has_started(self) -> bool:
        """Whether the bandwidth is another one than where fits start."""
        start = torch.full_like(self.lengthscale.detach(), self._start)
        return not torch.allclose(
            self.lengthscale.detach(),
            start,
            rtol=1e-5,
        )


def _get(module: RandomFourierFeatures) -> Tensor:
    return module.lengthscale


def _set_lengthscale(module: RandomFourierFeatures, value: float | Tensor) -> None:
    raw = module.raw_lengthscale
    value = torch.as_tensor(value).to(raw).clamp(*_BOUNDS)
    module.initialize(raw_lengthscale=value.log().expand_as(raw))
