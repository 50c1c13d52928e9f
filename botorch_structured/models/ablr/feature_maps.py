r"""Feature maps for Bayesian linear regression: what turns ``d`` inputs into ``D``.

Which when: the default, ``TanhNetwork``, learns a representation and is what transfers
from many tasks; ``RandomFourierFeatures`` learns one bandwidth, and is faster and safer
with few evaluations; ``MondrianKernel(...).features`` is for inputs whose axes matter.
Any other ``torch.nn.Module`` from ``n x d`` to ``n x D`` will do.

References:

.. [Perrone2017multiple]
    V. Perrone, R. Jenatton, M. Seeger and C. Archambeau. Multiple Adaptive Bayesian
    Linear Regression for Scalable Bayesian Optimization with Warm Start.
    arXiv:1712.02902, 2017.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest

import torch
from botorch.exceptions.warnings import InputDataWarning
from gpytorch import Module
from gpytorch.kernels import Kernel
from gpytorch.priors import NormalPrior
from torch import Tensor, nn

from botorch_structured._botorch_names import BatchNorm, DropoutNd
from botorch_structured.models.ablr.hyperparameters import RawValue
from botorch_structured.models.ablr.processes import Processes
from botorch_structured.spaces.arguments import later_seed


class TanhNetwork(Module):
    r"""The network of [Perrone2017multiple]_, section 2.2: layers of tanh units.

    .. math:: \phi_z(x) = \tanh(Z_L \ldots \tanh(Z_2 \tanh(Z_1 x + b_1) + b_2) \ldots)

    *Inputs* are first mapped to [-1, 1], columnwise from ``bounds``.

    *Prior.* The paper maximises the evidence over 5,300 weights without a prior. With
    five evaluations such a network interpolates them, and its predictive variance
    between them is close to zero. Here each weight has a Gaussian prior around the
    value it *started* from, with ``prior_scale`` times the standard deviation of the
    distribution it was drawn from. Without data the model is linear regression on
    random features; with thousands of evaluations the evidence outweighs the prior.
    ``prior_scale=None`` is the paper.

    The state dict holds the weights (as one vector), those they started from, and the
    bounds.

    *As published* the network has weights only and sees its inputs as they are:
    ``TanhNetwork(d, prior_scale=None, bias=False, bounds=torch.tensor([[-1.0] * d,
    [1.0] * d]))``.

    Args:
        dim: The number d of inputs.
        widths: Units of each layer; the last is the number D of features.
        bounds: ``2 x d``: what is mapped to [-1, 1]; default: the unit cube.
        prior_scale: See above, positive; None for no prior.
        seed: The weights to start from, without a side effect on the global generator.
        bias: Whether layers have the biases b_1, b_2, ...
    """

    # Standard deviations of weights, times 1 / sqrt(fan-in), and of biases at the
    # start: a network in which inputs on [-1, 1] use the bent part of tanh, so that
    # functions drawn from the prior look like those of a GP with a lengthscale of about
    # a third of the box.
    weight_scale: float = 1.5
    bias_scale: float = 0.7

    def __init__(
        self,
        dim: int,
        widths: Sequence[int] = (50, 50, 50),
        bounds: Tensor | None = None,
        prior_scale: float | None = 1.0,
        seed: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if bounds is None:
            bounds = torch.tensor([[0.0] * dim, [1.0] * dim])
        self.register_buffer("bounds", bounds.detach().double())
        self.dim = dim
        self.seed = seed
        self.prior_scale = prior_scale
        # standard deviations at the start, of Z_1, Z_2, ..., then of b_1, b_2, ...
        scales = [
            torch.ones(width, fan, dtype=torch.float64) * (self.weight_scale / fan**0.5)
            for width, fan in zip(widths, [dim, *widths], strict=False)
        ]
        if bias:
            biases = torch.ones(sum(widths), dtype=torch.float64) * self.bias_scale
            scales += biases.split(list(widths))
        self._shapes = [scale.shape for scale in scales]
        self._scale = torch.cat([scale.flatten() for scale in scales])
        self.register_parameter("values", nn.Parameter(torch.zeros_like(self._scale)))
        if prior_scale is not None:
            read = RawValue("values", "values")
            prior = NormalPrior(self.values.detach(), prior_scale * self._scale)
            self.register_prior("values_prior", prior, read, read.set)
        self.restart()

    @property
    def parts(self) -> list[Tensor]:
        """The weights Z_1, Z_2, ..., then the biases b_1, b_2, ..."""
        flat = self.values.split([shape.numel() for shape in self._shapes])
        return [v.view(shape) for v, shape in zip(flat, self._shapes, strict=True)]

    def restart(self, number: int = 0) -> None:
        """Draw the weights anew, and center their prior there.

        Args:
            number: Which start; the seed is that of the constructor plus this.
        """
        self.number = number
        drawn = self._drawn().to(self.values)
        self.initialize(values=drawn)
        if self.prior_scale is not None:
            self.values_prior.loc = drawn

    def has_started(self) -> bool:
        """Whether the weights are others than those that were drawn."""
        return not torch.equal(self.values, self._drawn().to(self.values))

    def _drawn(self) -> Tensor:
        """The same for a seed whatever dtype and device."""
        generator = torch.Generator().manual_seed(later_seed(self.seed, self.number))
        normal = [
            torch.randn(shape, generator=generator, dtype=torch.float64).flatten()
            for shape in self._shapes
        ]
        return self._scale * torch.cat(normal)

    def forward(self, X: Tensor) -> Tensor:
        """The features.

        Args:
            X: ``batch_shape x n x d``.

        Returns:
            ``batch_shape x n x D``.
        """
        low, high = self.bounds
        values = (2.0 * X - low - high) / (high - low)
        parts = self.parts
        count = sum(part.ndim == 2 for part in parts)
        for weight, bias in zip_longest(parts[:count], parts[count:]):
            values = torch.tanh(nn.functional.linear(values, weight, bias))
        return values


class KernelFeatures(Module):
    """A method of a kernel that gives explicit features, as a module.

    Args:
        kernel: Such as a ``MondrianKernel``.
        method: The method's name.
    """

    def __init__(
        self,
        kernel: nn.Module,
        method: str = "features",
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.method = method

    def forward(self, X: Tensor) -> Tensor:
        """The features of ``batch_shape x n x d`` inputs, ``batch_shape x n x D``."""
        return getattr(self.kernel, self.method)(X)


def as_feature_map(
    feature_map: nn.Module | Callable[[Tensor], Tensor] | None,
    covar_module: nn.Module | None,
    X: Tensor,
    seed: int,
    processes: Processes,
) -> nn.Module:
    """The one feature map that a user means by two arguments.

    Args:
        feature_map: A module, a bound method of one, or None.
        covar_module: A kernel with a method ``features``, or None.
        X: Transformed inputs without the task column, ``n x d``.
        seed: Of a network that is made here.
        processes: The processes that share the rows.

    Raises:
        ValueError: For anything else, for both, or for layers that mix rows or draw
            random numbers.
    """
    if covar_module is not None:
        if feature_map is not None:
            raise ValueError(
                "covar_module: expected None beside feature_map, which is what "
                f"determines the covariance; got {type(covar_module).__name__}."
            )
        feature_map = getattr(covar_module, "features", covar_module)
    if feature_map is None:
        return default_network(X, seed, processes)
    owner = getattr(feature_map, "__self__", None)
    if isinstance(owner, nn.Module):
        feature_map = KernelFeatures(owner, str(feature_map.__name__))
    if isinstance(feature_map, Kernel) or not isinstance(feature_map, nn.Module):
        raise ValueError(
            "feature_map: expected a torch.nn.Module from ``n x d`` to ``n x D``, or "
            "covar_module: a kernel with explicit features, such as MondrianKernel; "
            f"got {type(feature_map).__name__}. For an RBF kernel pass "
            "feature_map=RandomFourierFeatures()."
        )
    for name, part in feature_map.named_modules():
        if isinstance(part, BatchNorm | DropoutNd):
            raise ValueError(
                "feature_map: expected features that are a function of the row, got a "
                f"{type(part).__name__} layer ({name or 'itself'}), whose output "
                "depends on the other rows or on chance."
            )
    return feature_map


def default_network(
    X: Tensor,
    seed: int,
    processes: Processes,
) -> TanhNetwork:
    """The network of the paper, with a prior that is narrower below 300 rows.

    300 rows are 10 evaluations of each of 29 old tasks.

    Args:
        X: Transformed inputs, ``n x d``. Columns outside [0, 1] are scaled by their
            range.
        seed: Of its weights.
        processes: The processes that share the rows.
    """
    d = X.shape[-1]
    far = X.new_full((1, d), torch.inf)
    low = processes.least(torch.cat([X, far]).amin(0)).double()
    high = -processes.least(torch.cat([-X, far]).amin(0)).double()
    unit = (low >= 0.0) & (high <= 1.0) | (low == high)
    narrow = unit & (low < high) & (high - low < 0.1)
    low = torch.where(unit, 0.0, low)
    high = torch.where(unit, 1.0, high)
    rows = processes.count(X)
    if rows >= 10 and narrow.any():
        warnings.warn(
            f"train_X: columns {narrow.nonzero()[:, 0].tolist()} (without the task's) "
            f"are within [0, 1], which is taken to be normalised, but span less than "
            "0.1: the network will hardly see them. Pass input_transform="
            "Normalize(...), and logarithms of what is on a log scale.",
            InputDataWarning,
            stacklevel=3,
        )
    scale = min(1.0, math.sqrt(max(rows, 1) / 300))
    bounds = torch.stack([low, high]).cpu()
    return TanhNetwork(d, bounds=bounds, prior_scale=scale, seed=seed)


def published_network(
    d: int,
    seed: int,
) -> TanhNetwork:
    """The network of [Perrone2017multiple]_, section 2.2, see ``TanhNetwork``.

    Args:
        d: Number of inputs.
        seed: Of its weights.
    """
    bounds = torch.tensor([[-1.0] * d, [1.0] * d])  # inputs as they are
    return TanhNetwork(d, bounds=bounds, prior_scale=None, seed=seed, bias=False)


@torch.no_grad()
def weight_level(
    feature_map: nn.Module,
    X: Tensor,
    processes: Processes,
) -> float:
    """The weight precision under which functions have a variance of about one.

    Args:
        feature_map: ``n x d`` to ``n x D``.
        X: Transformed inputs of this process, of which some thousands are looked at.
        processes: The processes that share the rows.

    Raises:
        ValueError: If the features are not finite, all zero, or of another shape.
    """
    rows = X[:: 1 + len(X) // 4_096] if len(X) else X.new_zeros(1, X.shape[-1])
    phi = None
    with suppress(RuntimeError):
        phi = feature_map(rows)
    if phi is None or phi.shape[:-1] != rows.shape[:-1] or not phi.isfinite().all():
        raise ValueError(
            f"feature_map: expected a map of inputs ``n x {X.shape[-1]}`` (no task "
            "column) to finite features ``n x D``, got "
            f"{None if phi is None else tuple(phi.shape)} of {tuple(rows.shape)}."
        )
    squares = processes.total(phi.double().square().sum())
    level = float(squares) / processes.count(rows)
    if not level > 0.0:
        raise ValueError(
            "feature_map: expected features that are not all zero at the training rows."
        )
    return level
