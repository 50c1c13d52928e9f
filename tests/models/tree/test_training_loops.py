"""Training loops by hand end near the fit, on each model; see docs/models.md."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.constraints import GreaterThan
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import (
    ConditionalGP,
    DecomposedGP,
    MonotoneGP,
    MultiTaskABLR,
    TreedGP,
    TreeStructuredGP,
)

pytestmark = pytest.mark.usefixtures("double")

BRANCHES = {0: {0: [1], 1: [2]}}
BOX = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)


def data(noise: float) -> tuple[Tensor, Tensor]:
    """Two paths: the sine of BoTorch's tutorial with noise, or a function without."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(22, 4, generator=g)
    X[:, 0] = torch.arange(22) % 2
    own = torch.where(X[:, 0] == 0.0, X[:, 1], X[:, 2])
    exact = (9.0 * own).sin() * (4.0 * X[:, 3]).cos()
    noisy = (6.28 * own).sin() + X[:, 3] + noise * torch.randn(22, generator=g)
    return X, (X[:, 0] + (noisy if noise else exact)).unsqueeze(-1)


def ablr(X: Tensor, Y: Tensor) -> MultiTaskABLR:
    torch.manual_seed(0)
    return MultiTaskABLR(X, Y, 0)


MODELS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tree": lambda X, Y: TreeStructuredGP(X, Y, BRANCHES),
    "published": lambda X, Y: TreeStructuredGP.as_published(X, Y, BRANCHES),
    "conditional": lambda X, Y: ConditionalGP(X, Y, BRANCHES),
    "treed, published": TreedGP.as_published,
    "ablr": ablr,
    "treed": TreedGP,
    "monotone": lambda X, Y: MonotoneGP(X, Y, {0: 1}, bounds=BOX),
    "decomposed": lambda X, Y: DecomposedGP(SingleTaskGP(X, Y), SingleTaskGP(X, -Y)),
}
#: With the noise of a ``SingleTaskGP``, which the new constraint lifts to .7.
OF_BOTORCH = ["treed", "monotone", "decomposed"]
CASES = [(name, 0.15) for name in MODELS]
CASES += [(name, 0.0) for name in ("tree", "published", "conditional")]


def loss_of(mll: Any) -> Tensor:
    model = mll.model
    return -mll(model(*model.train_inputs), model.train_targets)


def end_of(model: Any, kind: str, start: float | None = None) -> float:
    """The loss after a fit, or after the loop with an optimiser."""
    parts = isinstance(model, DecomposedGP)
    make = SumMarginalLogLikelihood if parts else ExactMarginalLogLikelihood
    mll: Any = make(model.likelihood, model)
    for likelihood in model.likelihood.likelihoods if parts else [model.likelihood]:
        likelihood.noise_covar.register_constraint("raw_noise", GreaterThan(1e-5))
        if start is not None:
            likelihood.noise = start
    if kind == "fit":
        fit_gpytorch_mll(mll)
    mll.train()
    rules = {"SGD": (torch.optim.SGD, 0.025), "Adam": (torch.optim.Adam, 0.1)}
    if kind in rules:
        rule, rate = rules[kind]
        optimizer = rule(mll.parameters(), lr=rate)
        for _ in range(150):
            optimizer.zero_grad()
            loss_of(mll).backward()
            optimizer.step()
    return float(loss_of(mll).detach())


@pytest.mark.parametrize(("name", "noise"), CASES)
def test_the_tutorials_loop_ends_near_the_fit(name: str, noise: float) -> None:
    """SGD as in BoTorch's tutorial, with a new constraint of the noise, or Adam."""
    X, Y = data(noise)
    best = end_of(MODELS[name](X, Y), "fit")
    start = 0.03 if name in OF_BOTORCH else None
    # evaluations of "treed, published" take 20 ms
    slow = name == "treed, published" or noise == 0.0
    for kind in ["SGD"] if slow else ["SGD", "Adam"]:
        assert end_of(MODELS[name](X, Y), kind, start) <= best + 0.5


def test_other_loops_are_those_of_a_single_task_gp() -> None:
    """From its own noise 150 steps of SGD are too few."""
    X, Y = data(0.15)
    expected = end_of(SingleTaskGP(X, Y), "SGD")
    assert expected > end_of(SingleTaskGP(X, Y), "fit") + 0.5
    for name in ("treed", "monotone"):
        assert end_of(MODELS[name](X, Y), "SGD") == pytest.approx(expected)
