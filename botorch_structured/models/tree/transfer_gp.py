r"""A GP whose mean and covariance are what old studies of the same space were.

Choose ``TransferGP`` where old studies are known and the new one is young. Give
``suggest`` or ``Study`` the old studies as ``earlier`` instead, and they average it
with models that know nothing of old studies, by how well each predicts: old studies
that mislead lose their weight.

With h, d_j and the rest r of ``old_studies``, the outcomes are

.. math:: y(x) = a \, \Big(c + h(x) + \sum_j z_j d_j(x) + r(x)\Big) + \epsilon, \quad
    z_j \sim N(0, 1), \quad c \sim N(0, \gamma)

with ``eps`` of a small part of the noise of old studies. Nothing but the scale a is
estimated. With K the covariance of y / a, its inverse gamma prior, n outcomes and
``t = 1 / a``, the evidence is largest at

.. math:: A t^2 - B t - (n + 1) = 0, \quad A = 1 + y' K^{-1} y, \quad B = h' K^{-1} y

so that there is no fit. Known variances of noise are added to ``a^2 K``; a is then
found by a search of one dimension. Empirical Bayes with the mean and the covariance of
earlier functions is the idea of [Wang2024hyperbo]_.

Whether old studies help at all, ``log_odds`` says: the evidence over that of a GP with
the same kernel k and mean 0, each with the whole noise of old studies, with known noise
in units of a, and with t integrated out,

.. math:: \log p(y) = \log \int t^{n + 1} e^{-A t^2 / 2 + B t} dt
    - \tfrac12 \log |K| - \tfrac12 h' K^{-1} h + const.

References:

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z.
    Ghahramani. Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_structured._botorch_names import DefaultType
from botorch_structured.models.checks import check_training_data
from botorch_structured.models.fast_inference import FastSingleTaskGP, refuse_paths
from botorch_structured.models.outcome_scale import linear_outcome
from botorch_structured.models.tree.moments import Array, PointMoments
from botorch_structured.models.tree.old_studies import OldStudiesMean

# Prior variance of the level c: uninformative.
_LEVEL_VARIANCE = 25.0
# The least noise of old studies.
_LEAST_NOISE = 1e-6


class _EarlierKernel(Kernel):
    """a^2 times the covariance of a level and of ``OldStudiesMean.covariance``."""

    def __init__(self, old: OldStudiesMean) -> None:
        super().__init__()
        self.old = old
        self.register_buffer("scale", old.points.new_ones(()))

    @property
    def lengthscale(self) -> Tensor:
        """That of the old studies' functions by column, ``1 x d``."""
        return self.old.inverse_lengthscale.reciprocal().unsqueeze(0)

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        **params: Any,
    ) -> Tensor:
        k = self.scale.square() * (self.old.covariance(x1, x2) + _LEVEL_VARIANCE)
        return k.diagonal(dim1=-2, dim2=-1) if diag else k


refuse_paths(
    _EarlierKernel,
    "a TransferGP, whose covariance has no features",
)


def _evidence(
    K: Tensor,
    noise: Any,
    y: Tensor,
    h: Tensor,
) -> tuple[float, float]:
    """The scale with the largest evidence; its logarithm with t integrated out.

    The integral is Laplace's in log t. Constants that only depend on n are left out.
    """
    n = len(y)
    K = K + _LEVEL_VARIANCE + noise * torch.eye(n).to(y)
    root = torch.linalg.cholesky(K)
    both = torch.stack([y, h], -1)
    (A, B), (_, C) = (both.mT @ torch.cholesky_solve(both, root)).tolist()
    A += 1.0
    first, second = (
        (B + math.sqrt(B * B + 4.0 * A * m)) / (2.0 * A) for m in (n + 1, n + 2)
    )
    value = (n + 2) * math.log(second) - 0.5 * A * second**2 + B * second
    value -= 0.5 * (math.log(A * second**2 + n + 2) + C)
    return 1.0 / first, value - float(root.diagonal().log().sum())


def _noisy_scale(
    variances: Tensor,
    K: Tensor,
    noise: float,
    y: Tensor,
    h: Tensor,
) -> float:
    """The scale with the largest evidence where variances of noise are known."""
    K = K + _LEVEL_VARIANCE + noise * torch.eye(len(y)).to(y)

    def loss(log_scale: float) -> float:
        a = math.exp(log_scale)
        root = torch.linalg.cholesky(a * a * K + variances.diag())
        error = torch.linalg.solve_triangular(
            root,
            (y - a * h)[:, None],
            upper=False,
        )
        value = 0.5 * error.square().sum() + root.diagonal().log().sum()
        return float(value) + log_scale + 0.5 / (a * a)

    # below the lower bound of log a its prior has no mass
    from scipy.optimize import minimize_scalar  # see ``_botorch_names``

    return math.exp(minimize_scalar(loss, bounds=(-3.0, 5.0), method="bounded").x)


class _Weights(NamedTuple):
    """Tables that moments are computed from.

    Attributes:
        points: Old and new points as the kernel reads them, ``(M + n) x d``.
        basis: Weights of the kernels at the old ones in a h and a d_j, ``M x (1 + J)``.
        deviations: a d_j at the new points, ``n x J``.
        alpha: K^-1 (y - m), ``n``.
        inverse: L^-1 of K = LL', ``n x n``.
    """

    points: Tensor
    basis: Tensor
    deviations: Tensor
    alpha: Tensor
    inverse: Tensor


class TransferGP(FastSingleTaskGP):
    """A GP from old studies and the outcomes of a new one; it needs no fit.

    It is for one outcome without batches. On a CPU, in double precision, points one by
    one (``b x 1 x d``) have moments in closed form; others have GPyTorch's.

    Args:
        train_X: ``n x d`` points of the space of the old studies.
        train_Y: ``n x 1`` outcomes, larger ones better, on any scale.
        old: What ``OldStudiesMean.from_studies`` has learnt.
        train_Yvar: ``n x 1`` variances of the outcomes' noise, where they are known.
        outcome_transform: Default: ``AnyScaleStandardize``.

    Raises:
        ValueError: For data that no model accepts, variances that are no finite numbers
            of at least 0, several outcomes, or batches.

    Example:
        >>> old = OldStudiesMean.from_studies([(X_1, Y_1), (X_2, Y_2)], space)
        >>> X = old.starts(2)
        >>> Y = evaluate(X)
        >>> model = TransferGP(X, Y, old)
        >>> acqf = LogExpectedImprovement(model, best_f=Y.max())
        >>> x, _ = optimize_acqf_paths(acqf, space=space, X_avoid=X)
    """

    mean_module: OldStudiesMean
    _fit_caches = ("_weights_cache",)
    _data_caches = ("_weights_cache",)
    _weights_cache: _Weights | None = None

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        old: OldStudiesMean,
        train_Yvar: Tensor | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
    ) -> None:
        if not isinstance(old, OldStudiesMean):
            raise ValueError(
                f"old: expected an OldStudiesMean, got {type(old).__name__}."
            )
        shapes = [tuple(getattr(t, "shape", ())) for t in (train_X, train_Y)]
        if [len(shape) for shape in shapes] != [2, 2] or train_Y.shape[-1] != 1:
            raise ValueError(
                "train_X, train_Y: expected n x d points and n x 1 outcomes, got "
                f"{shapes}."
            )
        check_training_data(
            train_X,
            train_Y,
            train_Yvar,
            outcome_transform=outcome_transform,
        )
        mean = copy.deepcopy(old)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood=GaussianLikelihood() if train_Yvar is None else None,
            covar_module=_EarlierKernel(mean),
            mean_module=mean,
            input_transform=old.space.input_transform(),
            outcome_transform=outcome_transform,
        )
        self._set_scale()

    def _set_scale(self) -> None:
        """The scale with the largest evidence, and what follows from it."""
        old = self.mean_module
        (X,) = self.train_inputs
        y = self.train_targets
        old.to(y)
        # ranks add most of the noise of old studies
        noise = max(0.03 * old.variances[2], _LEAST_NOISE)
        fixed_noise = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        with torch.no_grad():
            x = self.transform_inputs(X)
            terms = old.covariance(x, x), noise, y, old.basis(x)
            a, _ = _evidence(*terms)
            if fixed_noise:
                a = _noisy_scale(self.likelihood.noise, *terms)
        self.covar_module.scale.fill_(a)
        old.initialize(raw_slope=a, raw_constant=0.0)
        if fixed_noise:
            self.likelihood.noise = self.likelihood.noise + noise * a * a
        else:
            self.likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(0.0)
            self.likelihood.initialize(noise=noise * a * a)
        self.requires_grad_(False)

    @torch.no_grad()
    def log_odds(self) -> float:
        """Log of the evidence over that without old studies: below 0 they mislead.

        In nats; the formula is at the head of this module. The model is in evaluation
        mode then.
        """
        self.eval()
        old = self.mean_module
        (x,) = self.train_inputs
        y = self.train_targets
        common, individual, noise = old.variances
        noise = max(noise, _LEAST_NOISE)
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            noise = noise + self.likelihood.noise / self.covar_module.scale.square()
        read = old.columns.read(x)
        k = old.columns.covariance(read, read, old.inverse_lengthscale)
        _, with_them = _evidence(
            old.covariance(x, x),
            noise,
            y,
            old.basis(x),
        )
        _, without = _evidence(
            (common + individual) * k,
            noise,
            y,
            torch.zeros_like(y),
        )
        return with_them - without

    def moments_on(
        self,
        rows: Tensor,
        path: bool = False,
    ) -> Any:
        """Moments of points one by one, see ``LeafModel.moments_on``."""
        outcome = linear_outcome(self, rows)
        if path or outcome is None or not self._is_plain(rows):
            return None
        scale, shift = outcome

        def moments(
            X: Array,
            row: Array,
            gradient: bool,
        ) -> PointMoments:
            points = torch.from_numpy(X).requires_grad_(gradient)
            with torch.set_grad_enabled(gradient):
                mean, variance = self._moments(self.transform_inputs(points))
            parts = [mean * scale + shift, variance * scale**2]

            def pull(*by_parts: Array) -> Array:
                (slope,) = torch.autograd.grad(
                    parts,
                    points,
                    [*map(torch.from_numpy, by_parts)],
                    retain_graph=True,
                )
                return slope.numpy()

            arrays = [part.detach().numpy() for part in parts]
            return PointMoments(arrays[0], arrays[1], pull if gradient else None)

        return moments

    def _fast_posterior(self, X: Tensor) -> MultivariateNormal | None:
        """Points one by one; GPyTorch computes a joint covariance for each batch."""
        if not (X.ndim > 2 and X.shape[-2] == 1 and self._is_plain(X)):
            return None
        mean, variance = self._moments(X.reshape(-1, X.shape[-1]))
        covariance = DiagLinearOperator(variance.reshape(X.shape[:-1]))
        return MultivariateNormal(mean.reshape(X.shape[:-1]), covariance)

    def _is_plain(self, X: Tensor) -> bool:
        """Whether only the points may have gradients, on a CPU, in double precision,
        and there are no batches."""
        data = self.train_inputs[0], self.train_targets, *self.parameters()
        plain = X.dtype == torch.float64 and X.device.type == "cpu"
        plain = plain and data[1].ndim == 1
        return plain and not any(t.requires_grad for t in data)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances at transformed inputs, ``n``."""
        old = self.mean_module
        w = self._weights()
        a = self.covar_module.scale
        level = _LEVEL_VARIANCE * a.square()
        rest = old.rest * a.square()
        read = old.columns.read(x)
        k = old.columns.covariance(read, w.points, old.inverse_lengthscale)
        count = len(w.basis)
        both = k[:, :count] @ w.basis
        deviations = both[:, 1:]
        to_data = level + deviations @ w.deviations.mT + rest * k[:, count:]
        mean = both[:, 0] + to_data @ w.alpha
        variance = level + rest + deviations.square().sum(-1)
        variance = variance - (to_data @ w.inverse.mT).square().sum(-1)
        return mean, variance.clamp_min(1e-10 * a.square())

    def _weights(self) -> _Weights:
        if self._weights_cache is None:
            old = self.mean_module
            # transformed, in eval mode
            (x,) = self.train_inputs
            y = self.train_targets
            eye = torch.eye(len(x)).to(y)
            K = self.covar_module.forward(x, x) + self.likelihood.noise * eye
            root = torch.linalg.cholesky(K)
            inverse = torch.linalg.solve_triangular(root, eye, upper=False)
            read = old.columns.read(x)
            k = old.columns.covariance(read, old.points, old.inverse_lengthscale)
            basis = torch.column_stack([old.weights, old.deviations])
            basis = self.covar_module.scale * basis
            self._weights_cache = _Weights(
                torch.cat([old.points, read]),
                basis,
                k @ basis[:, 1:],
                inverse.mT @ (inverse @ (y - old(x))),
                inverse,
            )
        return self._weights_cache
