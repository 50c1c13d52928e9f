"""The density and the error of ``TreedGP`` against R's tgp on the same data.

tgp is a quality peer, not an oracle: "inside" is no worse than the worst of its runs
with different seeds.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_structured.models import TreedGP

FILES = "treed_gp_tgp_*.json"


def scores(case: dict[str, Any], make: Any = TreedGP) -> tuple[float, float]:
    """RMSE of the mean, mean log predictive density with noise."""
    X, Z, XX, f, Z_XX = (
        torch.tensor(case[k], dtype=torch.float64)
        for k in ("X", "Z", "XX", "f_XX", "Z_XX")
    )
    model = make(X, Z.unsqueeze(-1), input_transform=Normalize(X.shape[-1]))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        posterior = model.posterior(XX.unsqueeze(-2), observation_noise=True)
    mean, variance = posterior.mean.reshape(-1), posterior.variance.reshape(-1)
    density = -0.5 * (math.log(2.0 * math.pi) + variance.log())
    density = density - 0.5 * (Z_XX - mean).square() / variance
    rmse = (mean - f).square().mean().sqrt()
    return float(rmse), float(density.mean())


def test_default(case: dict[str, Any]) -> None:
    runs = case["btgp_restart_spread"]
    rmse, density = scores(case)
    assert density >= min(run["mlpd_gaussian"] for run in runs)
    if case["name"].startswith("exp2d"):
        assert rmse <= max(run["rmse_f"] for run in runs)


def test_published(case: dict[str, Any]) -> None:
    if not case["name"].startswith("exp2d"):
        pytest.skip("as a density, it is no better than one GP")
    rmse, density = scores(case, TreedGP.as_published)
    assert rmse <= 0.0065
    assert density >= 2.6
