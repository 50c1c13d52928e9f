"""Random tree models, for tests of what they compute leaf by leaf."""

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import assume
from strategies import random_points, random_tree
from torch import Tensor

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree.moments import PointMoments

OPTIONS: dict[str, list[Any]] = {
    "shared_features": ["additive", "linear", "fourier", "none"],
    "leaf_inputs": ["own", "active"],
    "leaf_hyperparameters": ["hierarchical", "independent", "tied"],
    "leaf_offset": ["random", "fixed"],
    "weight_variances": ["tied", "independent"],
    "node_weights": [True, False],
    "leaf_kernel": ["matern", "rbf"],
}


def random_model(seed: int, n: int = 30) -> Any:
    """Of either class, with categorical columns and a context now and then."""
    rng, tree = random.Random(seed), random_tree(seed)
    assume(tree.decision_columns)
    g = torch.Generator().manual_seed(seed)
    X, Y = random_points(tree, n, g), torch.randn(n, 1, generator=g)
    Yvar = 0.05 + 0.1 * torch.rand(n, 1, generator=g) if rng.random() < 0.2 else None
    others = [c for c in range(tree.dim) if c not in tree.decision_columns]
    named = others[::2] if rng.random() < 0.3 else []
    X[:, named] = X[:, named].mul(3.0).floor().clamp_max(1.0)
    kind = rng.choice(["tree", "tree", "tree", "conditional"])
    model: Any
    if kind == "conditional" and named:
        model = ConditionalGP(X, Y, tree, Yvar, categorical_features=named)
    elif kind == "conditional":
        base = ScaleKernel(rng.choice([RBFKernel, MaternKernel])())
        model = ConditionalGP(X, Y, tree, Yvar, covar_module=base)
    else:
        options = {name: rng.choice(values) for name, values in OPTIONS.items()}
        if named:
            options["categorical_features"] = {c: [0.0, 1.0] for c in named}
        shared = {*others} - {*tree.conditions, *named}
        if shared and rng.random() < 0.3:
            options["context_features"] = sorted(shared)[:2]
        model = TreeStructuredGP(X, Y, tree, Yvar, **options)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
            if "raw_noise" in name:
                p.fill_(-4.0)
    return model.eval()


def some_points(model: Any, n: int, seed: int) -> Tensor:
    """Points; every other one is a training point in columns with repeated values."""
    X = random_points(model.tree, n, torch.Generator().manual_seed(seed))
    known = model.train_inputs[0]
    for c in range(model.tree.dim):
        values = known[:, c].unique()
        if c not in model.tree.decision_columns and len(values) < len(known) / 2:
            X[::2, c] = values[torch.arange(len(X[::2])) % len(values)]
    return X


def objective_of(model: Any) -> tuple[Any, Any]:
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return mll, model.fit_objective(mll)


def expected(mll: Any) -> tuple[float, np.ndarray]:
    """Value and gradient by autograd."""
    mll.zero_grad()
    loss = mll.model.compute_custom_loss(mll)
    loss.backward()
    gradient = [
        torch.zeros_like(p) if p.grad is None else p.grad
        for p in mll.parameters()
        if p.requires_grad
    ]
    return loss.item(), torch.cat([g.reshape(-1) for g in gradient]).numpy()


def check_objective(model: Any, seed: int, tolerance: float = 1e-10) -> None:
    """At a random point, where the noise leaves enough digits."""
    mll, objective = objective_of(model)
    assert objective is not None
    rng = np.random.default_rng(seed)
    for _ in range(2):
        theta = objective.read() + 0.4 * rng.standard_normal(len(objective.bounds))
        objective.write(np.clip(theta, *objective.bounds.T))
        assert objective.loss() == objective.loss()
        value, gradient = objective(objective.read())
        assert objective.loss() == value
        known, slope = expected(mll)
        assert value == pytest.approx(known, rel=tolerance, abs=tolerance)
        scale = max(1.0, float(np.abs(slope).max()))
        np.testing.assert_allclose(gradient, slope, rtol=0, atol=tolerance * scale)


class Moments(NamedTuple):
    """Means and variances of ``t`` points, and their gradients, if there are any."""

    mean: Tensor
    variance: Tensor
    mean_gradient: Tensor | None = None
    variance_gradient: Tensor | None = None


def point_moments(
    model: Any, X: Tensor, gradient: bool = False, path: bool = False
) -> Moments | None:
    """Moments that an optimiser gets of points one by one, as tensors."""
    moments = model.moments_on(X, path)
    if moments is None:
        return None
    return as_tensors(moments(X.detach().numpy(), np.arange(len(X)), gradient))


def as_tensors(moments: PointMoments) -> Moments:
    parts = [np.asarray(part) for part in moments[:2]]
    one = np.ones_like(parts[0])
    if moments.pull is not None:
        parts += [moments.pull(one, 0.0 * one), moments.pull(0.0 * one, one)]
    return Moments(*map(torch.from_numpy, parts))
