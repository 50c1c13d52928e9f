"""A fit that starts from an earlier model's hyperparameters."""

import copy
import pickle
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
import torch
from botorch import fit_gpytorch_mll
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from strategies import random_points
from torch import Tensor

from botorch_structured.kernels import ConditionalKernel
from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.models.tree.leaf_model import MAX_SHORT_FITS
from botorch_structured.models.tree.objective import LeafObjective
from botorch_structured.models.tree.warm_start import take_values
from botorch_structured.spaces import ParameterTree, SearchSpace

TREE = ParameterTree(6, {0: {0.0: [1, 2], 1.0: [3]}})
MODELS = [TreeStructuredGP, ConditionalGP, TreeStructuredGP.as_published]


def data(tree: ParameterTree, n: int) -> tuple[Tensor, Tensor]:
    """The first ``n`` rows of a data set."""
    g = torch.Generator().manual_seed(0)
    X = random_points(tree, 64, g)
    shown = torch.where(tree.active_mask(X), X, 0.0)
    noise = 0.05 * torch.randn(64, 1, generator=g, dtype=torch.float64)
    return X[:n], ((1.5 * shown.sum(-1, keepdim=True)).sin() + noise)[:n]


def fitted(make: Any, tree: ParameterTree, n: int, **kwargs: Any) -> Any:
    model = make(*data(tree, n), tree)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **kwargs)
    return model


def loss(model: Any) -> float:
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    return float(model.compute_custom_loss(mll).detach())


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many there were, counted in the one element."""
    count = [0]
    original = LeafObjective.__call__

    def counted(self: LeafObjective, theta: Any) -> Any:
        count[0] += 1
        return original(self, theta)

    monkeypatch.setattr(LeafObjective, "__call__", counted)
    return count


@pytest.mark.parametrize("make", MODELS[:2])  # the published one has several optima
def test_short_fits_find_the_optimum(make: Any, evaluations: list[int]) -> None:
    model = fitted(make, TREE, 30)
    counts = {"cold": 0, "warm": 0}
    for n in range(31, 31 + MAX_SHORT_FITS):
        evaluations[0] = 0
        cold = fitted(make, TREE, n)
        counts["cold"] += evaluations[0]
        evaluations[0] = 0
        model = fitted(make, TREE, n, start_from=model)
        counts["warm"] += evaluations[0]
        assert not model.training
        assert loss(model) < loss(cold) + 1e-3  # per data point
        model.eval()
    assert counts["warm"] < 0.8 * counts["cold"]


def test_every_so_often_a_fit_is_full(evaluations: list[int]) -> None:
    model = fitted(TreeStructuredGP, TREE, 24)
    short, needed = [0], {True: [], False: []}
    for n in range(25, 25 + 2 * (MAX_SHORT_FITS + 1)):
        evaluations[0] = 0
        # what is remembered survives copies
        copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        model = fitted(TreeStructuredGP, TREE, n, start_from=copied)
        short.append(model._fit_record.short)
        needed[short[-1] == 0].append(evaluations[0])
    assert max(short) == MAX_SHORT_FITS
    assert all(b in (0, a + 1) for a, b in pairwise(short))
    assert min(needed[True]) > median(needed[False])


def test_an_unlikely_outcome_is_fitted_in_full(evaluations: list[int]) -> None:
    before = fitted(ConditionalGP, TREE, 30)
    X, Y = data(TREE, 30)
    for outcomes, times in ((Y, 1), (torch.randn_like(Y), 2)):
        model = ConditionalGP(X, outcomes, TREE)
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        evaluations[0] = 0
        fit_gpytorch_mll(mll, start_from=before)
        assert (model._fit_record.short == 0) == (times == 2)


def test_a_model_that_was_not_fitted_is_a_start_of_a_full_fit() -> None:
    before = fitted(TreeStructuredGP, TREE, 24)
    loaded = TreeStructuredGP(*data(TREE, 24), TREE)
    loaded.load_state_dict(before.state_dict())
    model = fitted(TreeStructuredGP, TREE, 25, start_from=loaded)
    assert loss(model) <= loss(fitted(TreeStructuredGP, TREE, 25)) + 1e-9


@pytest.mark.parametrize("make", MODELS)
def test_branches_may_be_new(make: Any) -> None:
    """Entries are matched by column and value, not by their number."""
    before = fitted(make, TREE, 24)
    more = ParameterTree(7, {0: {-1.0: [6], 0.0: [1, 2], 1.0: [3]}, 5: {1.0: []}})
    model = make(*data(more, 30), more)
    take_values(model, before)
    if make is TreeStructuredGP:
        leaf, known = (m.covar_module.leaf_hyperparameters for m in (model, before))
        columns = model.covar_module.columns
        ratio = leaf.relative_lengthscale.value[0].tolist()
        expected = known.relative_lengthscale.value[0].tolist()
        for j, column in enumerate(before.covar_module.columns):
            assert ratio[columns.index(column)] == expected[j]
        assert ratio[columns.index(6)] == pytest.approx(1.0)
        edges = leaf.relative_outputscale.value[0].detach()
        torch.testing.assert_close(
            edges[1:3], known.relative_outputscale.value[0].detach()
        )
        assert edges[0] == pytest.approx(1.0)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    assert not fit_gpytorch_mll(mll, start_from=before).training


@pytest.mark.parametrize("outputs", [1, 2])
def test_what_is_held_keeps_its_value(outputs: int) -> None:
    X, Y = data(TREE, 24)
    Y = torch.cat([Y, Y.cos()], dim=-1)[:, :outputs]
    before, model = TreeStructuredGP(X[:20], Y[:20], TREE), TreeStructuredGP(X, Y, TREE)
    model.likelihood.noise = torch.full_like(model.likelihood.noise, 0.05)
    model.likelihood.requires_grad_(False)
    held = model.likelihood.noise.clone()
    with torch.no_grad():
        for p in before.parameters():
            p.add_(0.1)
    take_values(model, before)
    assert torch.equal(model.likelihood.noise, held)
    assert torch.equal(model.mean_module.raw_constant, before.mean_module.raw_constant)


def space(names: list[str]) -> SearchSpace:
    bounds = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)
    at = {name: i for i, name in enumerate(names)}
    tree = ParameterTree(4, {at["c"]: {0.0: [at["x"], at["y"]], 1.0: [at["z"]]}})
    return SearchSpace(names, bounds, tree)


def test_columns_of_spaces_have_names() -> None:
    first, second = space(["c", "x", "y", "z"]), space(["z", "c", "y", "x"])
    X = first.sample(20, seed=0)
    Y = X.sum(-1, keepdim=True).cos()
    before = TreeStructuredGP(X, Y, first)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(before.likelihood, before))
    model = TreeStructuredGP(X[:, [3, 0, 2, 1]], Y, second)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, start_from=before)
    assert loss(model) == pytest.approx(loss(before), abs=1e-4)
    assert model._fit_record.short == 1


def test_columns_of_other_kernels_have_names() -> None:
    """Without ``active_dims`` a lengthscale for each column is for that position."""
    first, second = space(["c", "x", "y", "z"]), space(["z", "c", "y", "x"])
    X = first.sample(8, seed=0)
    Y, order = X.sum(-1, keepdim=True), [3, 0, 2, 1]

    def model(kind: type, X: Tensor, tree: ParameterTree) -> Any:
        kernel = kind(ard_num_dims=4).double()
        return ConditionalGP(X, Y, tree, covar_module=kernel)

    for kind in (MaternKernel, PeriodicKernel):
        before = model(kind, X, first.tree)
        length = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double()
        before.covar_module.base_kernel.lengthscale = length
        again, other = (
            model(kind, X, first.tree),
            model(kind, X[:, order], second.tree),
        )
        take_values(again, before)
        torch.testing.assert_close(again.covar_module.base_kernel.lengthscale, length)
        if kind is PeriodicKernel:
            with pytest.raises(ValueError, match="start_from: .*raw_period_length"):
                take_values(other, before)
        else:
            take_values(other, before)
            found = other.covar_module.base_kernel.lengthscale
            torch.testing.assert_close(found, length[:, order])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (None, "expected a TreeStructuredGP"),
        ({"leaf_inputs": "active"}, "leaf_inputs"),
        ({"leaf_hyperparameters": "tied"}, "leaf_hyperparameters"),
        ({"weight_variances": "independent"}, "same options"),
        ({"leaf_kernel": "rbf"}, "leaf_kernel"),
        ({"leaf_offset": "fixed"}, "mean_module"),
        ({"covar_module": ConditionalKernel(RBFKernel(), TREE)}, "covar_module"),
        ({"context_features": [4]}, "another context_features"),
    ],
)
def test_another_model_is_refused(options: Any, message: str) -> None:
    X, Y = data(TREE, 12)
    model = TreeStructuredGP(X, Y, TREE)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    kind = ConditionalGP if options is None else TreeStructuredGP
    earlier = kind(X, Y, TREE, **(options or {}))
    with torch.no_grad():
        for parameter in earlier.parameters():
            parameter.add_(0.1)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=f"start_from: .*{message}"):
        fit_gpytorch_mll(mll, start_from=earlier)
    # nothing is taken from a model that is refused
    assert all(map(torch.equal, before, model.parameters()))
