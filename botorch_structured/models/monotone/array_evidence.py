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
those in C and S are taken through ``DerivativeCovariance`` by autograd.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import MarginalLogLikelihood
from scipy.linalg.lapack import dpotri, dpotrs

from botorch_structured.linalg.blocks import Array, cholesky
from botorch_structured.linalg.correlations import computes_as
from botorch_structured.linalg.parameters import (
    UnknownFormError,
)
from botorch_structured.models.fast_inference import noise_is_known
from botorch_structured.models.map_fit import ArrayPosterior
from botorch_structured.models.monotone.derivative_process import (
    VALUE,
    DerivativeCovariance,
)
from botorch_structured.models.monotone.expectation_propagation import (
    expectation_propagation,
)

# Numbers in the largest array of a fit. Above, several threads of torch are faster.
_MOST_NUMBERS = 2**20


class EvidenceObjective(ArrayPosterior):
    """Minus the evidence and the log priors, per row, of raw hyperparameters.

    Args:
        mll: The objective, of a ``MonotoneGP`` with signs.

    Raises:
        UnknownFormError: For objectives, models or priors that are not of this kind,
            and large ones.
    """

    #: For EP in a fit.
    tolerance = 1e-8

    def __init__(self, mll: MarginalLogLikelihood) -> None:
        model: Any = mll.model
        mean = model.mean_module
        kernel = model.covar_module
        likelihood = model.likelihood
        X = model.train_inputs[0]
        X = model.transform_inputs(X) if model.training else X
        constant = computes_as(mean, ConstantMean)
        super().__init__(mll)
        raw = self.parameters
        if (
            len(list(model.added_loss_terms())) > model.signs_in_fit
            or X.ndim > 2
            or kernel.batch_shape
            or not (constant or computes_as(mean, ZeroMean))
            or getattr(mean, "batch_shape", None)
            or not noise_is_known(likelihood)
            or getattr(likelihood, "second_noise_covar", None) is not None
        ):
            raise UnknownFormError
        positive = (
            getattr(kernel, "base_kernel", kernel).raw_lengthscale,
            getattr(kernel, "raw_outputscale", None),
            getattr(likelihood, "raw_noise", None),
        )
        self._logarithms = [None if p is None else raw.logarithm(p) for p in positive]
        self._constant = raw.unbounded(mean.raw_constant) if constant else None
        read = {id(p) for p in (*positive, getattr(mean, "raw_constant", None))}
        if any(p.requires_grad and id(p) not in read for p in mll.parameters()):
            raise UnknownFormError
        form = DerivativeCovariance.of(kernel)
        self._correlation = form.correlation
        active = form.active or tuple(range(X.shape[-1]))
        tensors = X[:, active], model.train_targets
        self._X, self._targets = (t.detach().numpy() for t in tensors)
        self._values = [
            t.detach().numpy().reshape(-1).copy()
            for t in (form.lengthscale, form.variance, likelihood.noise)
        ]
        self._nu = model.nu
        self._points = model.virtual_points[:, active]
        self._places = [active.index(column) for column in model.columns]
        self._signs = model.signs_at(self._points).numpy()
        self._with_signs = model.signs_in_fit
        self._sites = np.zeros(2 * len(self._signs))  # EP starts from the last ones
        rows = max(len(self._X), len(self._signs) * self._with_signs)
        if len(active) * rows**2 > _MOST_NUMBERS:
            raise UnknownFormError
        apart = self._X.T[:, :, None] - self._X.T[:, None, :]
        self._squares = np.square(apart).reshape(len(apart), -1)  # ``e x n^2``

    def evidence(self, u: Array) -> tuple[float, Array]:
        """See ``ArrayPosterior``."""
        values = [
            value if place is None else np.exp(u[place])
            for place, value in zip(self._logarithms, self._values, strict=True)
        ]
        length, (variance,), noise = values
        constant = 0.0 if self._constant is None else u[self._constant][0]
        evidence, *slopes, slope = self._evidence(
            np.broadcast_to(length, self._X.shape[1]), variance, noise, constant
        )
        gradient = np.zeros_like(u)
        if not math.isfinite(evidence):  # as BoTorch says it to SciPy
            return math.nan, np.full_like(u, np.nan)
        for place, value, one in zip(self._logarithms, values, slopes, strict=True):
            if place is not None:
                each = one if len(one) == len(value) else one.sum()
                gradient[place] += each * value
        if self._constant is not None:
            gradient[self._constant] += slope
        return evidence, gradient

    def _evidence(
        self,
        length: Array,
        variance: float,
        noise: Array,
        constant: float,
    ) -> tuple[float, Array, Array, Array, float]:
        """And its gradients in these four."""
        n = len(self._X)
        squared = (length**-2.0 @ self._squares).reshape(n, n)
        c, slope = self._correlation.array_value_and_slope(squared)
        if not np.isfinite(c).all():
            nothing = np.zeros(1)
            return math.nan, nothing, nothing, nothing, 0.0
        noisy = variance * c
        noisy.flat[:: n + 1] += noise
        L = cholesky(noisy)
        residual = self._targets - constant
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
        if self._with_signs:
            signs, in_K, in_constant, d_length, d_variance = self._signs_evidence(
                length, variance, L, alpha
            )
            evidence += signs
            G += in_K
            d_constant += in_constant
        inner = (2.0 * variance) * slope
        inner *= G
        d_length = d_length + (self._squares @ inner.ravel()) / length**3.0
        d_variance = d_variance + float(np.vdot(G, c))
        return (
            evidence,
            d_length,
            np.array([d_variance]),
            G.diagonal(),
            d_constant,
        )

    def _signs_evidence(
        self,
        length: Array,
        variance: float,
        L: Array,
        alpha: Array,
    ) -> tuple[float, Array, float, Array, float]:
        """The part of signs, and its gradients in K, m and, by C and S, in the kernel.

        Args:
            length: Lengthscales.
            variance: Of the kernel.
            L: The factor of K + noise.
            alpha: See the module.
        """
        lengthscale = torch.tensor(length[None], requires_grad=True)
        scale = torch.tensor(variance, requires_grad=True)
        form = DerivativeCovariance(self._correlation, lengthscale, scale, None)
        X = torch.from_numpy(self._X)
        points = self._points
        places = self._places
        signs = torch.from_numpy(self._signs)
        with torch.enable_grad():
            C = form(X, VALUE, points, places) * signs
            S = form(points, places, points, places) * signs * signs.unsqueeze(-1)
        cross = C.detach().numpy()
        H = dpotrs(L, cross, lower=1)[0]
        # the evidence is stationary in the sites, so it has twice the digits
        ep = expectation_propagation(
            cross.T @ alpha,
            S.detach().numpy() - cross.T @ H,
            self._nu,
            self._sites,
            self.tolerance,
        )
        if math.isfinite(ep.residual):
            self._sites = ep.sites
        w = ep.weight
        W = 0.5 * (np.multiply.outer(w, w) - ep.root.T @ ep.root)
        HW = H @ W
        Hw = H @ w
        half = np.multiply.outer(0.5 * Hw, alpha)
        in_K = HW @ H.T - half - half.T
        in_C = torch.from_numpy(np.multiply.outer(alpha, w) - 2.0 * HW)
        d_length, d_scale = torch.autograd.grad(
            [C, S],
            [lengthscale, scale],
            [in_C, torch.from_numpy(W)],
        )
        return ep.log_evidence, in_K, -Hw.sum(), d_length[0].numpy(), float(d_scale)


def array_objective(mll: MarginalLogLikelihood) -> EvidenceObjective | None:
    """The objective of a fit on arrays; None where it is that of tensors."""
    try:
        return EvidenceObjective(mll) if mll.model.has_sites else None
    except UnknownFormError:
        return None
