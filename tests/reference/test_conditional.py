"""Conditional, Laplace and Matern kernels against 50-digit numbers and scikit-learn."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from reference_numbers import close, slopes
from torch import Tensor

from botorch_structured.kernels import ConditionalKernel, LaplaceKernel
from botorch_structured.models import ConditionalGP
from botorch_structured.spaces import Equals, In, ParameterTree

FILES = "conditional_*.json"
TOLERANCE = 1e-9


class Problem:
    """A reference case in this package's terms.

    Conditions are "a" or, two levels deep, "a|u": they become two decision columns
    after the ``width`` numeric ones.
    """

    def __init__(self, case: dict[str, Any], path: str) -> None:
        self.inputs = inputs = case["inputs"]
        self.conditional = inputs["conditional"]
        X = torch.tensor(inputs["X_imputed"])
        X_test = torch.tensor(inputs["X_test_imputed"])
        self.width = X.shape[-1]
        if self.conditional:
            conditions = inputs["condition"] + inputs["condition_test"]
            names = [c.split(" ")[0].split("|") for c in conditions]
            active = torch.tensor(inputs["active"] + inputs["active_test"])
            self.tree = self._tree(names, active)
            codes = torch.tensor([self._codes(name) for name in names])
            X = torch.cat([X, codes[: len(X)]], dim=-1)
            X_test = torch.cat([X_test, codes[-len(X_test) :]], dim=-1)
        self.X, self.X_test = X, X_test
        self.model = self._model(torch.tensor(inputs["y"]).unsqueeze(-1), path)

    def _codes(self, name: list[str]) -> tuple[float, float]:
        first = self.letters[0].index(name[0])
        second = self.letters[1].index(name[1]) if len(name) > 1 else 0
        return float(first), float(second)

    def _tree(self, names: list[list[str]], active: Tensor) -> ParameterTree:
        self.letters = [
            sorted({name[level] for name in names if len(name) > level})
            for level in (0, 1)
        ]
        nested = sorted({self._codes(n)[0] for n in names if len(n) > 1})
        conditions: dict[int, Any] = {}
        if nested:
            conditions[self.width + 1] = In(self.width, nested)
        for column in range(self.width):
            rows = zip(names, active, strict=True)
            on = {tuple(name) for name, row in rows if row[column]}
            if on == {tuple(name) for name in names}:
                continue
            atoms = []
            for name in sorted(on):
                first, second = self._codes(list(name))
                atom: Any = Equals(self.width, first)
                if len(name) > 1:
                    atom = atom & Equals(self.width + 1, second)
                atoms.append(atom)
            conditions[column] = reduce(lambda a, b: a | b, atoms)
        return ParameterTree(self.width + 2, conditions=conditions)

    def _model(self, Y: Tensor, path: str) -> SingleTaskGP:
        inputs = self.inputs
        kinds = {"matern52_ard": MaternKernel, "laplace_l1": LaplaceKernel}
        kernel: Kernel = kinds[inputs["base_kernel"]](
            ard_num_dims=self.width, active_dims=list(range(self.width))
        )
        scaled = ScaleKernel(kernel).double()
        kernel.lengthscale = torch.tensor([inputs["lengthscales"]])
        scaled.outputscale = torch.tensor(inputs["outputscale"])
        likelihood = GaussianLikelihood().double()
        likelihood.noise = inputs["noise_var"]
        arguments: dict[str, Any] = {
            "likelihood": likelihood,
            "mean_module": ZeroMean(),
            "outcome_transform": None,
        }
        if not self.conditional:
            return SingleTaskGP(self.X, Y, covar_module=scaled, **arguments)
        if path == "decorator":  # the kernel alone, in a model of BoTorch's
            wrapped = ConditionalKernel(scaled, self.tree)
            return SingleTaskGP(self.X, Y, covar_module=wrapped, **arguments)
        return ConditionalGP(self.X, Y, self.tree, covar_module=scaled, **arguments)


pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(params=["structured", "decorator"])
def problem(request: pytest.FixtureRequest, case: dict[str, Any]) -> Problem:
    return Problem(case, request.param)


def evidence(problem: Problem) -> Tensor:
    model = problem.model
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    n = len(problem.X)
    if isinstance(model, ConditionalGP):
        return -n * model.compute_custom_loss(mll)
    return n * mll(model(*model.train_inputs), model.train_targets)


def test_covariance(problem: Problem, case: dict[str, Any]) -> None:
    K = problem.model.covar_module(problem.X).to_dense()
    close(K, case["K_train"], TOLERANCE)
    if problem.conditional:  # exactly zero, not small
        zero = torch.tensor(case["K_train"]) == 0.0
        assert zero.any() and torch.equal(K == 0.0, zero)


def test_evidence_and_gradient(problem: Problem, case: dict[str, Any]) -> None:
    model, scaled = problem.model, problem.model.covar_module
    if problem.conditional:
        scaled = scaled.base_kernel
    value = evidence(problem)
    close(value, case["log_marginal_likelihood"], TOLERANCE)
    parameters = {
        scaled.raw_outputscale: scaled.outputscale,
        model.likelihood.noise_covar.raw_noise: model.likelihood.noise,
        scaled.base_kernel.raw_lengthscale: scaled.base_kernel.lengthscale,
    }
    scale, noise, lengths = slopes(value, parameters)
    expected = case["sklearn"]["gradient_of_lml"]
    close(scale.squeeze(), expected["log_outputscale"], TOLERANCE)
    close(noise.squeeze(), expected["log_noise_var"], TOLERANCE)
    if "log_common_lengthscale_factor" in expected:
        # scikit-learn differentiates its Laplace kernel by differences of 1e-10
        close(lengths.sum(), expected["log_common_lengthscale_factor"], 1e-5)
    else:
        each = [expected[f"log_lengthscale_{j}"] for j in range(problem.width)]
        close(lengths, each, TOLERANCE)


def test_predictions(problem: Problem, case: dict[str, Any]) -> None:
    model = problem.model.eval()
    for X in (problem.X_test, problem.X_test.unsqueeze(-2)):
        posterior = model.posterior(X)
        close(posterior.mean.flatten(), case["pred_mean"], TOLERANCE)
        close(posterior.variance.flatten(), case["pred_var_latent"], TOLERANCE)
