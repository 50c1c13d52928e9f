r"""The evidence of one Gaussian process and its signs on arrays, with the gradient.

``MonotoneGP`` defines all of this on tensors, for batches, several outputs, any mean
and any Gaussian likelihood. Here it is written out for what most models are: a
stationary kernel, a constant mean, one process, few rows.

**Evidence.** Let A = (K + noise)^-1 and alpha = A (y - m), C the covariances of values
with derivatives g times their signs, and S those of g. Given the data g has

    the mean C' alpha    and the covariance    S - C' A C.

EP gives log Z_EP of the signs and, at its fixed point, its gradients w in this mean and
W in this covariance. With H = A C those of log p(y) + log Z_EP are

    in K    (alpha alpha' - A) / 2 - sym(H w alpha') + H W H'
    in C    alpha w' - 2 H W
    in S    W
    in m    sum(alpha) - w' H' 1.

In hyperparameters the gradient in K is a product with the slope of the correlation;
those in C and S are taken through ``StationaryDerivatives`` by autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import MarginalLogLikelihood
from scipy.linalg.lapack import dpotri, dpotrs
from torch.nn import Parameter

from botorch_structured.linalg.correlations import (
    Correlation,
    computes_as,
    stationary_form,
)
from botorch_structured.linalg.factor import Array, cholesky
from botorch_structured.models.fast_inference import noise_is_known
from botorch_structured.models.monotone.expectation_propagation import (
    expectation_propagation,
)
from botorch_structured.models.monotone.site_kernel import StationaryDerivatives
from botorch_structured.models.parameters import (
    LogPriors,
    RawParameters,
    UnknownFormError,
)


@dataclass(frozen=True)
class ArrayGP:
    """A process with a stationary kernel and a constant mean, and its data.

    Attributes:
        correlation: c.
        X: Training inputs, the columns that the kernel sees, ``n x e``.
        targets: ``n``.
        raw: Parameters of lengthscales, variance, noise variances and mean; None where
            the model has none.
        values: The same, constrained: ``1`` or ``e``, ``1``, ``1`` or ``n``, ``1``.
        active: The columns that the kernel sees.
    """

    correlation: Correlation
    X: Array
    targets: Array
    raw: tuple[Parameter | None, ...]
    values: tuple[Array, ...]
    active: tuple[int, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> ArrayGP | None:
        """That of a model without its sites; None for what is not of this kind.

        Args:
            model: A ``MonotoneGP`` with sites.
        """
        mean = model.mean_module.base_mean
        likelihood = model.likelihood
        kernel = model.covar_module.base_kernel
        X = model.train_inputs[0]
        targets = model.train_targets
        X = model.transform_inputs(X) if model.training else X
        constant = computes_as(mean, ConstantMean)
        if (
            X.ndim != 2
            or targets.ndim != 1
            or stationary_form(kernel) is None
            or kernel.batch_shape
            or not (constant or computes_as(mean, ZeroMean))
            or getattr(mean, "batch_shape", None)
            or not noise_is_known(likelihood)
            or getattr(likelihood, "second_noise_covar", None) is not None
        ):
            return None
        form = StationaryDerivatives.of(kernel)
        at = mean.constant if constant else X.new_zeros(())
        tensors = form.lengthscale, form.variance, likelihood.noise, at
        arrays = (X, targets, *tensors)
        if any(t.device.type != "cpu" or t.dtype != torch.float64 for t in arrays):
            return None
        raw = (
            getattr(kernel, "base_kernel", kernel).raw_lengthscale,
            getattr(kernel, "raw_outputscale", None),
            getattr(likelihood, "raw_noise", None),
            getattr(mean, "raw_constant", None),
        )
        active = form.active or tuple(range(X.shape[-1]))
        return cls(
            form.correlation,
            X[:, active].detach().numpy(),
            targets.detach().numpy(),
            raw,
            tuple(t.reshape(-1).numpy().copy() for t in tensors),
            active,
        )


class EvidenceObjective:
    """Minus the evidence and the log priors, per row, of raw hyperparameters.

    Args:
        mll: The objective, in training mode.
        gp: The process of its model.
        points: Virtual points, the columns that the kernel sees, ``v x e``; None for
            the evidence of the data alone.
        places: Columns of the derivatives there, ``k`` of them.
        signs: Of the derivatives, columns slowest, ``k v``.
        sites: To start from, precisions and shifts, ``2 k v``.
        nu: Width of the probit sites.

    Raises:
        UnknownFormError: For constraints, priors or parameters that are not known.
    """

    #: For EP in a fit.
    tolerance = 1e-8

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        gp: ArrayGP,
        points: Array | None = None,
        places: Sequence[int] = (),
        signs: Array | None = None,
        sites: Array | None = None,
        nu: float = 0.0,
    ) -> None:
        raw = RawParameters(mll, None)
        self._parameters = raw
        self.read = raw.read
        self.write = raw.write
        self.bounds = raw.bounds
        self.units = np.ones(len(raw.free))
        self._priors = LogPriors(mll.model, raw)
        self.gp = gp
        self.points = points
        self.places = places
        self.signs = signs
        self.sites = sites
        self.nu = nu
        *positive, constant = gp.raw
        self._logarithms = [None if p is None else raw.logarithm(p) for p in positive]
        self._constant = None if constant is None else raw.unbounded(constant)
        read = {id(p) for p in gp.raw}
        if any(p.requires_grad and id(p) not in read for p in mll.parameters()):
            raise UnknownFormError
        apart = gp.X.T[:, :, None] - gp.X.T[:, None, :]
        self._squares = np.square(apart).reshape(len(apart), -1)  # ``e x n^2``

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient at raw parameters ``k``."""
        u, chain = self._parameters.logarithms(theta)
        prior, gradient = self._priors(u)
        n, e = self.gp.X.shape
        *fixed, constant = self.gp.values
        values = [
            value if place is None else np.exp(u[place])
            for place, value in zip(self._logarithms, fixed, strict=True)
        ]
        length, (variance,), noise = values
        if self._constant is not None:
            constant = u[self._constant]
        evidence, *slopes, slope = self._evidence(
            np.broadcast_to(length, e), variance, noise, constant[0]
        )
        for place, value, one in zip(self._logarithms, values, slopes, strict=True):
            if place is not None:
                each = one if len(one) == len(value) else one.sum()
                gradient[place] += each * value
        if self._constant is not None:
            gradient[self._constant] += slope
        if chain is not None:
            gradient *= chain
        value = -(evidence + prior) / n
        if not math.isfinite(value):  # as BoTorch says it to SciPy
            return math.nan, np.full_like(theta, np.nan)
        return value, gradient[self._parameters.free] / -n

    def _evidence(
        self,
        length: Array,
        variance: float,
        noise: Array,
        constant: float,
    ) -> tuple[float, Array, Array, Array, Array]:
        """And its gradients in these four."""
        n = len(self.gp.X)
        squared = (length**-2.0 @ self._squares).reshape(n, n)
        c, slope = self.gp.correlation.array_value_and_slope(squared)
        if not np.isfinite(c).all():
            nothing = np.zeros(1)
            return math.nan, nothing, nothing, nothing, nothing
        noisy = variance * c
        noisy.flat[:: n + 1] += noise
        L = cholesky(noisy)
        residual = self.gp.targets - constant
        alpha = dpotrs(L, residual, lower=1)[0]
        A = dpotri(L, lower=1)[0]
        A += np.tril(A, -1).T
        evidence = -0.5 * float(residual @ alpha) - 0.5 * n * math.log(2.0 * math.pi)
        evidence -= float(np.log(L.diagonal()).sum())
        G = np.multiply.outer(0.5 * alpha, alpha)
        G -= 0.5 * A
        d_length = np.zeros_like(length)
        d_variance = 0.0
        d_constant = alpha.sum()
        if self.signs is not None:
            C, S, pull = self._signed_covariances(length, variance)
            H = dpotrs(L, C, lower=1)[0]
            # the evidence is stationary in the sites, so it has twice the digits
            ep = expectation_propagation(
                C.T @ alpha, S - C.T @ H, self.nu, self.sites, tolerance=self.tolerance
            )
            if math.isfinite(ep.residual):
                self.sites = ep.sites
            evidence += ep.log_evidence
            w = ep.weight
            W = 0.5 * (np.multiply.outer(w, w) - ep.root.T @ ep.root)
            HW = H @ W
            Hw = H @ w
            cross = np.multiply.outer(0.5 * Hw, alpha)
            G += HW @ H.T - cross - cross.T
            d_constant -= Hw.sum()
            d_length, d_variance = pull(np.multiply.outer(alpha, w) - 2.0 * HW, W)
        inner = (2.0 * variance) * slope
        inner *= G
        d_length = d_length + (self._squares @ inner.ravel()) / length**3.0
        d_variance = d_variance + float(np.vdot(G, c))
        return (
            evidence,
            d_length,
            np.array([d_variance]),
            G.diagonal(),
            np.array([d_constant]),
        )

    def _signed_covariances(
        self,
        length: Array,
        variance: float,
    ) -> tuple[Array, Array, Callable[[Array, Array], tuple[Array, float]]]:
        """C, S, and their gradients in lengthscales and variance from those in them."""
        assert self.points is not None
        lengthscale = torch.tensor(length[None], requires_grad=True)
        scale = torch.tensor(variance, requires_grad=True)
        form = StationaryDerivatives(self.gp.correlation, lengthscale, scale, None)
        points = torch.from_numpy(self.points)
        signs = torch.from_numpy(self.signs)
        with torch.enable_grad():
            C = form.cross(torch.from_numpy(self.gp.X), points, self.places) * signs
            S = form.gram(points, self.places) * signs * signs.unsqueeze(-1)

        def pull(
            in_C: Array,
            in_S: Array,
        ) -> tuple[Array, float]:
            d_length, d_scale = torch.autograd.grad(
                [C, S],
                [lengthscale, scale],
                [torch.from_numpy(in_C), torch.from_numpy(in_S)],
            )
            return d_length[0].numpy(), float(d_scale)

        return C.detach().numpy(), S.detach().numpy(), pull
