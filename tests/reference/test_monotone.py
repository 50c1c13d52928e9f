"""MonotoneGP against GPstuff (Octave) and an independent EP."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import MonotoneGP

FILES = "monotone_*.json"
NEEDS = {"test_optimised": "optimised"}
TOLERANCE = 1e-7
GRADIENT_TOLERANCE = 1e-6
HYPERPARAMETER_TOLERANCE = 1e-4


pytestmark = pytest.mark.usefixtures("double")


def make(case: dict[str, Any]) -> MonotoneGP:
    """With the hyperparameters of the case."""
    inputs = case["inputs"]
    length = torch.tensor(inputs["l"])
    inner = RBFKernel(ard_num_dims=len(length) if len(length) > 1 else None)
    kernel = ScaleKernel(inner)
    kernel.outputscale, inner.lengthscale = inputs["s2"], length
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-9))
    likelihood.noise = inputs["sn2"]
    return MonotoneGP(
        torch.tensor(inputs["x"]),
        torch.tensor(inputs["y"]).unsqueeze(-1),
        {abs(j) - 1: 1 if j > 0 else -1 for j in inputs["nvd"]},
        likelihood=likelihood,
        covar_module=kernel,
        mean_module=ZeroMean(),
        outcome_transform=None,
        virtual_X=torch.tensor(inputs["xv"]),
        nu=inputs["nu"],
        signs_in_fit=True,
    )


def hyperparameters(model: MonotoneGP) -> tuple[list[Tensor], list[Tensor]]:
    """Values and raw parameters: variance, lengthscales, noise."""
    kernel, noise = model.covar_module.base_kernel, model.likelihood.noise_covar
    values = [kernel.outputscale, kernel.base_kernel.lengthscale, noise.noise]
    raw = [kernel.raw_outputscale, kernel.base_kernel.raw_lengthscale, noise.raw_noise]
    return values, raw


def close(actual: Tensor, expected: Any, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(
        actual.detach(), torch.as_tensor(expected), rtol=tolerance, atol=tolerance
    )


def log_evidence(model: MonotoneGP) -> Tensor:
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    value = mll(model(*model.train_inputs), model.train_targets)
    return len(model.train_targets) * value


def test_evidence_and_gradient(case: dict[str, Any]) -> None:
    """With respect to logarithms: d/d log v = v d/dv."""
    model, expected = make(case), case["gpstuff_ep"]
    evidence = log_evidence(model)
    close(evidence, expected["log_Z_ep"])
    slopes = []
    values, raw = hyperparameters(model)
    gradients = torch.autograd.grad(evidence, raw)
    for value, r, g in zip(values, raw, gradients, strict=True):
        (by_raw,) = torch.autograd.grad(value.sum(), r)
        slopes.append((g / by_raw * value).flatten())
    key = "grad_log_Z_ep_wrt_log_s2_l_sn2"
    close(torch.cat(slopes), expected[key], GRADIENT_TOLERANCE)


def test_sites(case: dict[str, Any]) -> None:
    sites, expected = make(case).covar_module.sites, case["gpstuff_ep"]
    close(sites.precision, expected["site_tau_virtual"])
    close(sites.shift, expected["site_nu_virtual"])


def test_predictions(case: dict[str, Any]) -> None:
    model, expected = make(case), case["gpstuff_ep"]
    X = torch.tensor(case["inputs"]["xt"])
    for x in (X, X.unsqueeze(-2)):
        posterior = model.posterior(x)
        close(posterior.mean.flatten(), expected["mean"])
        close(posterior.variance.flatten(), expected["var_latent"])
    for name, moments in expected["derivative_posterior"].items():
        derivative = model.derivative_posterior(X, int(name.removeprefix("dim")) - 1)
        close(derivative.mean.flatten(), moments["mean"])
        close(derivative.variance.flatten(), moments["var"])


def test_optimised(case: dict[str, Any]) -> None:
    """Type-II maximum likelihood through BoTorch's own two lines."""
    expected, model = case["optimised"], make(case)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    # the reference adds a jitter to prior covariances: on values, it is noise
    noise = expected["sn2"] + expected["jitter"]
    optimum = [expected["s2"], *expected["l"], noise]
    values, _ = hyperparameters(model)
    found = torch.cat([v.flatten() for v in values]).log()
    close(found, [math.log(v) for v in optimum], HYPERPARAMETER_TOLERANCE)
    posterior = model.posterior(torch.tensor(case["inputs"]["xt"]))
    close(posterior.mean.flatten(), expected["mean"], 1e-5)
