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
from reference_numbers import close, slopes
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


def hyperparameters(model: MonotoneGP) -> dict[Tensor, Tensor]:
    """Raw parameters and values: variance, lengthscales, noise."""
    kernel, noise = model.covar_module, model.likelihood.noise_covar
    return {
        kernel.raw_outputscale: kernel.outputscale,
        kernel.base_kernel.raw_lengthscale: kernel.base_kernel.lengthscale,
        noise.raw_noise: noise.noise,
    }


def test_evidence_and_gradient(case: dict[str, Any]) -> None:
    model, expected = make(case), case["gpstuff_ep"]
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    value = mll(model(*model.train_inputs), model.train_targets)
    evidence = len(model.train_targets) * value
    close(evidence, expected["log_Z_ep"], TOLERANCE)
    found = torch.cat(slopes(evidence, hyperparameters(model)))
    close(found, expected["grad_log_Z_ep_wrt_log_s2_l_sn2"], GRADIENT_TOLERANCE)


def test_sites_and_predictions(case: dict[str, Any]) -> None:
    model, expected = make(case).eval(), case["gpstuff_ep"]
    sites = model.ep_result
    close(sites.precision, expected["site_tau_virtual"], TOLERANCE)
    close(sites.shift, expected["site_nu_virtual"], TOLERANCE)
    X = torch.tensor(case["inputs"]["xt"])
    for x in (X, X.unsqueeze(-2)):
        posterior = model.posterior(x)
        close(posterior.mean.flatten(), expected["mean"], TOLERANCE)
        close(posterior.variance.flatten(), expected["var_latent"], TOLERANCE)
    for name, moments in expected["derivative_posterior"].items():
        derivative = model.derivative_posterior(X, int(name.removeprefix("dim")) - 1)
        close(derivative.mean.flatten(), moments["mean"], TOLERANCE)
        close(derivative.variance.flatten(), moments["var"], TOLERANCE)


def test_optimised(case: dict[str, Any]) -> None:
    """Type-II maximum likelihood through BoTorch's own two lines."""
    expected, model = case["optimised"], make(case)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    # the reference adds a jitter to prior covariances: on values, it is noise
    noise = expected["sn2"] + expected["jitter"]
    optimum = [expected["s2"], *expected["l"], noise]
    found = torch.cat([v.flatten() for v in hyperparameters(model).values()]).log()
    close(found, [math.log(v) for v in optimum], HYPERPARAMETER_TOLERANCE)
    posterior = model.posterior(torch.tensor(case["inputs"]["xt"]))
    close(posterior.mean.flatten(), expected["mean"], 1e-5)
