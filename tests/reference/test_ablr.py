"""Bayesian linear regression against 80-digit numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from botorch_structured.models.ablr.regressions import (
    Regressions,
    TaskData,
    WeightPosterior,
)

FILES = "ablr_*.json"
TOLERANCE = 1e-10
GRADIENT_TOLERANCE = 1e-8
# Of a standard deviation: a QR factorisation solves a problem that is rounding away
# from the one given; columns 1e-7 apart leave eight digits of a mean.
OF_A_DEVIATION = 1e-6


class Problem:
    """A reference case in this package's terms: one task, its features as inputs."""

    def __init__(self, case: dict[str, Any], device: torch.device) -> None:
        def tensor(value: Any) -> Tensor:
            return torch.tensor(value, dtype=torch.float64, device=device)

        self.Phi, self.y = tensor(case["Phi"]), tensor(case["y"])
        self.test = tensor(case["Phi_test"])
        self.log_alpha = tensor([math.log(case["alpha"])]).requires_grad_()
        self.log_beta = tensor([math.log(case["beta"])]).requires_grad_()
        self.task = torch.zeros(len(self.y), dtype=torch.long, device=device)

    def regressions(
        self,
        num_rows: int | None = None,
        chunk_rows: int | None = None,
        noise_variance: Tensor | None = None,
    ) -> Regressions:
        """With the first rows (default: all), and with noise as alpha says it."""
        data = TaskData(
            nn.Identity(),
            self.Phi[:num_rows],
            self.y[:num_rows],
            self.task[:num_rows],
            1,
            noise_variance=noise_variance,
            chunk_rows=chunk_rows,
        )
        log_alpha = self.log_alpha if noise_variance is None else None
        return Regressions(data, log_alpha, self.log_beta)


def relative_error(value: Tensor, expected: Any) -> float:
    """The largest, of numbers that are not zero."""
    expected = torch.as_tensor(expected, dtype=value.dtype, device=value.device)
    error = (value - expected).abs() / expected.abs()
    return float(torch.where(value == expected, 0.0, error).max())


@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_evidence_and_gradient(
    case: dict[str, Any], chunk_rows: int | None, device: torch.device
) -> None:
    problem = Problem(case, device)
    value = problem.regressions(chunk_rows=chunk_rows).log_evidence()
    learnt = [problem.log_alpha, problem.log_beta]
    d_alpha, d_beta = torch.autograd.grad(value, learnt)
    value = value.detach()
    rho = -value - 0.5 * case["N"] * math.log(2.0 * math.pi)
    assert relative_error(value, case["log_evidence"]) < TOLERANCE
    assert relative_error(rho, case["rho"]) < TOLERANCE
    for name, slope in (("alpha", d_alpha), ("beta", d_beta)):
        expected = case[f"grad_log_evidence_wrt_log_{name}"]
        # few rows in several chunks: sums of squares less a count, to rounding
        exact = chunk_rows is not None and abs(float(slope) - expected) < 1e-15
        assert exact or relative_error(slope, expected) < GRADIENT_TOLERANCE


def test_known_noise(case: dict[str, Any], device: torch.device) -> None:
    """The same noise, said as a variance."""
    problem = Problem(case, device)
    noise = torch.full_like(problem.y, 1.0 / case["alpha"])
    value = problem.regressions(noise_variance=noise).log_evidence()
    (d_beta,) = torch.autograd.grad(value, problem.log_beta)
    assert relative_error(value.detach(), case["log_evidence"]) < TOLERANCE
    expected = case["grad_log_evidence_wrt_log_beta"]
    assert relative_error(d_beta, expected) < GRADIENT_TOLERANCE


def test_posterior(case: dict[str, Any], device: torch.device) -> None:
    problem = Problem(case, device)
    mean, root = (p[0] for p in problem.regressions().weights())
    variance = (problem.test @ root).square().sum(-1)
    with_noise = variance + 1.0 / case["alpha"]
    for value, name, spread in (
        (mean, "w_mean", root.norm(dim=-1)),
        (problem.test @ mean, "pred_mean", variance.sqrt()),
    ):
        expected = torch.as_tensor(case[name], dtype=value.dtype, device=device)
        if "collinear" in case["name"]:
            assert float(((value - expected) / spread).abs().max()) < OF_A_DEVIATION
        else:
            assert relative_error(value, expected) < TOLERANCE
    assert relative_error(variance, case["pred_var_latent"]) < TOLERANCE
    assert relative_error(with_noise, case["pred_var_with_noise"]) < TOLERANCE


def test_updates(case: dict[str, Any], device: torch.device) -> None:
    """From the prior, one row after the other: means keep eight digits, or seven."""
    problem = Problem(case, device)
    prior = WeightPosterior(*(p[0] for p in problem.regressions(num_rows=0).weights()))
    noise = torch.full_like(problem.y, 1.0 / case["alpha"])
    mean, root = prior.update(problem.Phi, problem.y, noise)
    predicted = problem.test @ mean
    expected = torch.as_tensor(case["pred_mean"], device=device).to(predicted)
    error = (predicted - expected).abs().max() / expected.abs().max()
    assert float(error) < 1e-7
    variance = (problem.test @ root).square().sum(-1)
    tolerance = TOLERANCE if device.type == "cpu" else 10.0 * TOLERANCE
    assert relative_error(variance, case["pred_var_latent"]) < tolerance
