"""The tree GP against 60-digit numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from reference_numbers import close
from torch import Tensor

from botorch_structured.acquisition import (
    PathExpectedImprovement,
    PathLogExpectedImprovement,
)
from botorch_structured.models import TreeStructuredGP
from botorch_structured.spaces import ParameterTree

FILES = "treegp_*.json"

# the tree of the reference problems: node 0 -> node 1 {A, B} | node 2 {C | node 3 {D,
# E}}
PATH_DECISIONS: dict[str, dict[int, float]] = {
    "A": {0: 0.0, 1: 0.0},
    "B": {0: 0.0, 1: 1.0},
    "C": {0: 1.0, 2: 0.0},
    "D": {0: 1.0, 2: 1.0, 3: 0.0},
    "E": {0: 1.0, 2: 1.0, 3: 1.0},
}
NODE_DECISION = {0: {}, 1: {0: 0.0}, 2: {0: 1.0}, 3: {2: 1.0}}


class Problem:
    """A reference problem in this package's terms."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        problem = self.problem = case["problem"]
        self.column: dict[tuple[str, int], int] = {}
        dependencies: dict[int, dict[float, list[int]]] = {
            0: {0.0: [1], 1.0: [2]},
            1: {0.0: [], 1.0: []},
            2: {0.0: [], 1.0: [3]},
            3: {0.0: [], 1.0: []},
        }
        width = 4
        self.shared: dict[int, list[int]] = {}
        for node in range(4):
            count = problem["n_numeric_shared"].get(str(node), 0)
            self.shared[node] = list(range(width, width + count))
            width += count
            for decision, value in NODE_DECISION[node].items():
                dependencies[decision][value] += self.shared[node]
        self.own: dict[str, list[int]] = {}
        for leaf, dim in problem["dims"].items():
            self.own[leaf] = list(range(width, width + dim))
            width += dim
            decision, value = list(PATH_DECISIONS[leaf].items())[-1]
            dependencies[decision][value] += self.own[leaf]
        self.tree = ParameterTree(width, dependencies)
        self.y = torch.tensor([o["y"] for o in problem["obs"]])
        self.model = self._model()

    def encode(self, points: list[dict[str, Any]]) -> Tensor:
        """Points of the reference file as rows, inactive columns filled with 0.5."""
        X = torch.full((len(points), self.tree.dim), 0.5)
        for row, point in zip(X, points, strict=True):
            for decision, value in PATH_DECISIONS[point["leaf"]].items():
                row[decision] = value
            row[self.own[point["leaf"]]] = torch.tensor(point["x"])
            for node, values in point["shared"].items():
                row[self.shared[int(node)]] = torch.tensor(values)
        return X

    def _model(self) -> TreeStructuredGP:
        problem = self.problem
        model = TreeStructuredGP.as_published(
            self.encode(problem["obs"]),
            self.y.unsqueeze(-1),
            self.tree,
            outcome_transform=None,
            weight_variances="independent",
        )
        leaf = model.covar_module.leaf_hyperparameters
        leaf_of_path = [
            next(name for name in self.own if self.own[name] == path_own)
            for path_own in (self.tree.leaf_columns(p) for p in self.tree.paths)
        ]
        hyper = [problem["hyper"][name] for name in leaf_of_path]
        leaf.lengthscale.value = torch.tensor(
            [[length for h in hyper for length in h["lengthscales"]]]
        )
        leaf.outputscale.value = torch.tensor([[h["outputscale"] for h in hyper]])
        model.mean_module.raw_offset.data = torch.tensor([h["mean"] for h in hyper])
        model.likelihood.noise = problem["noise_var"]
        variances = torch.tensor(problem["Sigma_c_diag"])[self.weight_order]
        weights = model.covar_module.weights
        weights.node_variance.value = variances[None, :4]
        if len(variances) > 4:
            weights.linear_variance.value = variances[None, 4:]
        return model.eval()

    @property
    def weight_order(self) -> list[int]:
        """Positions in the reference's c of our weights: nodes first, then linear."""
        offset = [self.problem["z_offset"][str(node)] for node in range(4)]
        shared = self.shared.items()
        return offset + [offset[k] + 1 + i for k, c in shared for i in range(len(c))]


pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def problem(case: dict[str, Any]) -> Problem:
    return Problem(case)


assert_close = partial(close, tolerance=1e-9)


def test_evidence(problem: Problem) -> None:
    model = problem.model
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    objective = -model.compute_custom_loss(mll) * len(problem.y)
    prior = mll._add_other_terms(torch.zeros(()), ())
    assert_close(objective - prior, problem.case["log_marginal_likelihood"])
    # the objective a fit sees is the one GPyTorch's own call gives
    dense = mll(model(model.train_inputs[0]), model.train_targets)
    assert_close(dense * len(problem.y), objective.item())


def test_posterior(problem: Problem) -> None:
    case = problem.case
    X = problem.encode(problem.problem["test"])
    posterior = problem.model.posterior(X)
    assert_close(posterior.mean.squeeze(-1), case["pred_mean"])
    assert_close(posterior.variance.squeeze(-1), case["pred_var_latent"])
    covariance = posterior.distribution.covariance_matrix
    assert_close(covariance, case["pred_cov_latent_float64"])
    noisy = problem.model.posterior(X, observation_noise=True)
    assert_close(noisy.variance.squeeze(-1), case["pred_var_with_noise"])
    # one point at a time: the shape of acquisition functions
    single = problem.model.posterior(X.unsqueeze(-2))
    assert_close(single.mean.flatten(), case["pred_mean"])
    assert_close(single.variance.flatten(), case["pred_var_latent"])


def test_weight_posterior(problem: Problem) -> None:
    posterior = problem.model.weight_posterior()
    order = problem.weight_order
    assert_close(posterior.mean, torch.tensor(problem.case["c_posterior_mean"])[order])
    covariance = torch.tensor(problem.case["c_posterior_cov"])[order][:, order]
    assert_close(posterior.covariance_matrix, covariance)


def test_path_expected_improvement(problem: Problem) -> None:
    for acquisition in problem.case["acquisition"]:
        points = []
        for entry in acquisition["path_EI"]:
            shared = {}
            z = entry["z"]
            for node, columns in problem.shared.items():
                start = problem.problem["z_offset"][str(node)] + 1
                if columns and z[start - 1]:
                    shared[str(node)] = z[start : start + len(columns)]
            dim = problem.problem["dims"][entry["leaf"]]
            points.append({"leaf": entry["leaf"], "x": [0.123] * dim, "shared": shared})
        X = problem.encode(points).unsqueeze(-2)
        posterior = problem.model.path_posterior(X)
        entries = acquisition["path_EI"]
        assert_close(posterior.mean.flatten(), [e["mean"] for e in entries])
        assert_close(posterior.variance.sqrt().flatten(), [e["sd"] for e in entries])
        best = acquisition["value"]
        ei = PathExpectedImprovement(problem.model, best_f=best, maximize=False)
        expected = torch.tensor([e["EI"] for e in entries])
        assert_close(ei(X), expected)
        log_ei = PathLogExpectedImprovement(problem.model, best_f=best, maximize=False)
        assert_close(log_ei(X), expected.log())
