r"""The evidence of signs on arrays, with the gradient.

``MonotoneGP`` defines it on tensors, for batches, several outputs and any mean. Here it
is for one process with a constant mean (``models.stationary_evidence``).

Let K be the covariances of values, A = (K + noise)^-1 and alpha = A (y - m), C the
covariances of values with derivatives g times their signs, and S those of g. Given the
data g has

    the mean C' alpha    and the covariance    S - C' A C.

EP gives log Z_EP of the signs and, at its fixed point, its gradients w in this mean and
W in this covariance. With H = A C those of log Z_EP are

    in K    H W H' - sym(H w alpha')
    in C    alpha w' - 2 H W
    in S    W
    in m    -w' H' 1.

``DerivativeCovariance`` takes those in K, C and S to the hyperparameters, by autograd.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.linalg.lapack import dpotrs

from botorch_structured.linalg.blocks import Array, cholesky
from botorch_structured.models.monotone.derivative_process import (
    VALUE,
    DerivativeCovariance,
)
from botorch_structured.models.monotone.expectation_propagation import (
    expectation_propagation,
)
from botorch_structured.models.stationary_evidence import EvidenceTerm


class ArraySignEvidence:
    """``SignEvidence`` as a function of theta, see ``stationary_evidence``.

    Args:
        model: A ``MonotoneGP`` with signs, in training mode.
        data: Its data.
    """

    #: For EP in a fit.
    tolerance = 1e-8

    def __init__(self, model: Any, data: EvidenceTerm) -> None:
        self._data = data
        self._form = DerivativeCovariance.of(model.covar_module)
        self._X = model.transform_inputs(model.train_inputs[0]).detach()
        self._points = model.virtual_points
        self._columns = model.columns
        self._signs = model.signs_at(self._points)
        self._nu = model.nu
        self._sites = np.zeros(2 * len(self._signs))  # EP starts from the last ones

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient."""
        X = self._X
        points = self._points
        columns = self._columns
        signs = self._signs
        noise = self._data.noise
        if noise is None:
            noise = np.exp(theta[-1])
        logs = torch.tensor(theta[:-2], requires_grad=True)
        with torch.enable_grad():
            values = logs.exp()
            form = replace(
                self._form,
                lengthscale=values[None, :-1],
                variance=values[-1],
            )
            K = form(X, VALUE, X, VALUE)
            C = form(X, VALUE, points, columns) * signs
            S = form(points, columns, points, columns) * signs * signs.unsqueeze(-1)
        L = cholesky(K.detach().numpy() + noise * np.eye(len(X)))
        alpha = dpotrs(L, self._data.y - theta[-2], lower=1)[0]
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
        slopes = in_K, np.multiply.outer(alpha, w) - 2.0 * HW, W
        (slope,) = torch.autograd.grad(
            [K, C, S],
            logs,
            [*map(torch.from_numpy, slopes)],
        )
        by_noise = (in_K.diagonal() * noise).sum()
        return ep.log_evidence, np.append(slope.numpy(), [-Hw.sum(), by_noise])
