"""The density and the error of ``TreedGP`` against R's tgp on the same data.

tgp is a quality peer, not an oracle: "inside" is no worse than the worst of its runs
with different seeds.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_structured.models.treed.treed_gp import TreedGP

PUBLISHED: dict[str, Any] = {
    "split_criterion": "variance",
    "path_sharing": "all",
    "condition_on": "all",
    "leaf_noise": False,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per problem of every file found."""
    directory = Path(metafunc.config.getoption("--reference"))
    problems = []
    for file in sorted(directory.glob("treed_gp_tgp_*.json")):
        for problem in json.loads(file.read_text())["problems"]:
            problems.append(pytest.param(problem, id=f"{file.stem}-{problem['name']}"))
    if not problems:
        raise ValueError(f"--reference: expected treed_gp_tgp_*.json in {directory}.")
    metafunc.parametrize("problem", problems)


def scores(problem: dict[str, Any], **kwargs: Any) -> tuple[float, float]:
    """RMSE of the mean, mean log predictive density with noise."""
    X, Z, XX, f, Z_XX = (
        torch.tensor(problem[k], dtype=torch.float64)
        for k in ("X", "Z", "XX", "f_XX", "Z_XX")
    )
    model = TreedGP(
        X, Z.unsqueeze(-1), input_transform=Normalize(X.shape[-1]), **kwargs
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        posterior = model.posterior(XX.unsqueeze(-2), observation_noise=True)
    mean, variance = posterior.mean.reshape(-1), posterior.variance.reshape(-1)
    density = -0.5 * (math.log(2.0 * math.pi) + variance.log())
    density = density - 0.5 * (Z_XX - mean).square() / variance
    rmse = (mean - f).square().mean().sqrt()
    return float(rmse), float(density.mean())


def test_default(problem: dict[str, Any]) -> None:
    runs = problem["btgp_restart_spread"]
    rmse, density = scores(problem)
    assert density >= min(run["mlpd_gaussian"] for run in runs)
    if problem["name"].startswith("exp2d"):
        assert rmse <= max(run["rmse_f"] for run in runs)


def test_published(problem: dict[str, Any]) -> None:
    if not problem["name"].startswith("exp2d"):
        pytest.skip("as a density, it is no better than one GP")
    rmse, density = scores(problem, **PUBLISHED)
    assert rmse <= 0.0065
    assert density >= 2.6
