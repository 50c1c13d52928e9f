r"""Evidences of processes with a stationary kernel, on arrays, with the gradient.

Tensors define the objectives of all models. Here the common case is written out for
SciPy: an RBF or Matern-5/2 kernel, a constant mean, Gaussian noise, one data set on a
CPU. An evidence is a function of

.. math:: \theta = (\log l_1, .., \log l_d, \log s^2, m, \log v).

Several evidences of nested sets of rows, weighted, take one factorisation (the
objective of a treed GP is such a sum). With the rows of the smallest set first, then
what the next one has besides, and so on, the Cholesky factor L of the covariance of all
rows has those of the others as leading blocks. One inverse does too: with D the
diagonal matrix of the sums of the weights of all sets that a row is in,

.. math:: G = \tfrac12 (\sum_i w_i \alpha_i \alpha_i^\top - (L D^{-1} L^\top)^{-1})

is the derivative of the sum by the covariance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import MarginalLogLikelihood
from scipy.linalg import blas, lapack
from scipy.spatial.distance import cdist
from torch import Tensor

from botorch_structured.linalg.blocks import Array, cholesky
from botorch_structured.linalg.correlations import (
    Correlation,
    computes_as,
    stationary_form,
)
from botorch_structured.linalg.parameters import UnknownFormError
from botorch_structured.models.fast_inference import noise_is_known
from botorch_structured.models.map_fit import ArrayPosterior

#: Value and gradient at theta.
Evidence = Callable[[Array], tuple[float, Array]]


@dataclass(frozen=True)
class EvidenceTerm:
    """Nested sets of rows that have the same hyperparameters.

    Attributes:
        X: The rows, those of the smallest set first, ``m x d``.
        y: ``m``.
        noise: Known noise variances, ``m``; None if they are not.
        sizes: How many of the rows each set has, the smallest first.
        weights: Of the sets.
        level: Amplitude, mean and noise variance where those of theta do not count.
    """

    X: Array
    y: Array
    noise: Array | None
    sizes: Sequence[int]
    weights: Array
    level: Array | None = None

    @cached_property
    def membership(self) -> Array:
        """One for the rows of each set, else zero, ``m x k``."""
        return (np.arange(len(self.y))[:, None] < self.sizes).astype(float)


@dataclass(frozen=True)
class StationaryEvidence:
    """A sum of weighted log evidences as a function of theta.

    Attributes:
        terms: Of the sum.
        correlation: Of the kernel.
    """

    terms: Sequence[EvidenceTerm]
    correlation: Correlation

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient.

        Raises:
            NotPSDError: If a covariance is not positive definite even with jitter.
        """
        value = 0.0
        gradient = np.zeros_like(theta)
        for term in self.terms:
            part, by_part = self._term_evidence(term, theta)
            value += part
            gradient[: len(by_part)] += by_part
        return value, gradient

    def _term_evidence(self, term: EvidenceTerm, theta: Array) -> tuple[float, Array]:
        """Weighted log evidence of a term, and its derivatives by theta.

        By the log lengthscales alone if the term has a level.
        """
        m, d = term.X.shape
        weights = term.weights
        if term.level is None:
            mean = theta[d + 1]
            amplitude, v = np.exp(theta[[d, d + 2]])
        else:
            amplitude, mean, v = term.level
        scaled = term.X * np.exp(-theta[:d])
        squared = cdist(scaled, scaled, "sqeuclidean")
        covariance, slope = self.correlation.array_value_and_slope(squared)
        covariance *= amplitude
        noisy = covariance.copy()
        noisy.ravel()[:: m + 1] += v if term.noise is None else term.noise
        chol = cholesky(noisy)
        half = lapack.dtrtrs(chol, term.y - mean, lower=1)[0]
        row_weights = term.membership @ weights
        fit = float(row_weights @ (half * half))
        logs = float(row_weights @ np.log(chol.diagonal()))
        mass = float(weights @ term.sizes)
        value = -0.5 * (fit + mass * math.log(2.0 * math.pi)) - logs
        parts = term.membership * half[:, None]
        alpha = lapack.dtrtrs(chol, parts, lower=1, trans=1)[0]
        # the lower triangle of G, see the module
        chol /= np.sqrt(row_weights)
        g = blas.dsyrk(
            0.5,
            alpha * np.sqrt(weights),
            beta=-0.5,
            c=lapack.dpotri(chol, lower=1, overwrite_c=1)[0],
            lower=1,
            overwrite_c=1,
        )
        gradient = np.zeros(d + 3)
        diagonal = g.diagonal()
        trace = float(diagonal.sum())
        # of symmetric matrices, of which G has one half
        gradient[d] = 2.0 * float((g * covariance).sum()) - amplitude * trace
        gradient[d + 1] = float(alpha.sum(0) @ weights)
        gradient[d + 2] = v * trace if term.noise is None else 0.0
        g *= slope.T
        ones = np.ones((m, 1))
        sums = blas.dsymm(1.0, g, np.hstack([scaled, ones]), lower=1)
        inner = (sums[:, d:] * scaled - sums[:, :d]) * scaled
        gradient[:d] = 4.0 * amplitude * inner.sum(0)
        return value, gradient if term.level is None else gradient[:d]


class StationaryObjective(ArrayPosterior):
    """Minus a sum of evidences and log priors per row, an ``ArrayObjective``.

    Args:
        mll: The objective.
        evidences: ``L`` functions of theta.
        dim: d.
        lengths: Raw lengthscales, of the ``L`` evidences or of all.
        variances: Raw amplitudes, ``L`` or one for all; None if they are one.
        means: Means, likewise; None if they are zero.
        noise: Raw noise variances, likewise; None if they are known.

    Raises:
        UnknownFormError: See ``ArrayPosterior``, and if other parameters are free too.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        evidences: Sequence[Evidence],
        dim: int,
        lengths: Tensor,
        variances: Tensor | None,
        means: Tensor | None,
        noise: Tensor | None,
    ) -> None:
        super().__init__(mll)
        self.evidences = evidences
        parameters = self.parameters
        # where theta is among all parameters; behind them is what is no parameter
        shape = len(evidences), dim + 3
        self._places = places = np.full(shape, len(parameters.values))
        columns = parameters.logarithm(lengths).reshape(-1, lengths.shape[-1])
        places[:, :dim] = columns
        if variances is not None:
            places[:, dim] = parameters.logarithm(variances)
        if means is not None:
            places[:, dim + 1] = parameters.unbounded(means)
        if noise is not None:
            places[:, dim + 2] = parameters.logarithm(noise)
        if not set(parameters.free) <= set(places.flat):
            raise UnknownFormError
        # what many leaves have in common matters more
        self.units = np.bincount(places.flat)[parameters.free] ** -0.5

    def evidence(self, u: Array) -> tuple[float, Array]:
        """See ``ArrayPosterior``."""
        u = np.append(u, 0.0)
        value = 0.0
        gradient = np.zeros_like(u)
        for evidence, place in zip(self.evidences, self._places, strict=True):
            part, by_part = evidence(u[place])
            value += part
            np.add.at(gradient, place, by_part)
        return value, gradient[:-1]


def plain_objective(
    mll: MarginalLogLikelihood,
    added: Callable[[EvidenceTerm], Evidence] | None = None,
) -> StationaryObjective | None:
    """The objective of one process; None where it has another form.

    Args:
        mll: The objective; it is put in training mode.
        added: Makes what the added loss term of the model is, of the data.
    """
    mll.train()
    model: Any = mll.model
    mean = model.mean_module
    kernel = model.covar_module
    likelihood = model.likelihood
    form = stationary_form(kernel)
    constant = computes_as(mean, ConstantMean)
    if (
        form is None
        or kernel.batch_shape
        or getattr(mean, "batch_shape", None)
        or not (constant or computes_as(mean, ZeroMean))
        or not noise_is_known(likelihood)
        or getattr(likelihood, "second_noise_covar", None) is not None
        or len(list(model.added_loss_terms())) > (added is not None)
    ):
        return None
    X = model.transform_inputs(model.train_inputs[0])
    if kernel.active_dims is not None:
        X = X[..., kernel.active_dims]
    X, y, noise = (
        t.detach().cpu().double().numpy()
        for t in (X, model.train_targets, likelihood.noise)
    )
    raw_noise = getattr(likelihood, "raw_noise", None)
    term = EvidenceTerm(
        X,
        y,
        noise if raw_noise is None else None,
        [len(X)],
        np.ones(1),
    )
    evidences: list[Evidence] = [StationaryEvidence([term], form.correlation)]
    if added is not None:
        evidences.append(added(term))
    try:
        return StationaryObjective(
            mll,
            evidences,
            X.shape[-1],
            getattr(kernel, "base_kernel", kernel).raw_lengthscale,
            getattr(kernel, "raw_outputscale", None),
            mean.raw_constant if constant else None,
            raw_noise,
        )
    except UnknownFormError:
        return None
