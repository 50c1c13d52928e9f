"""Quadratic priors together, against GPyTorch's sum of all of them."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, LogNormalPrior
from torch import Tensor

from botorch_structured.linalg.hyperparameter import QuickLogNormalPrior, read_value
from botorch_structured.models import ConditionalGP, MultiTaskABLR, TreeStructuredGP
from botorch_structured.models.parameters import QuadraticPriors

pytestmark = pytest.mark.usefixtures("double")


def tree_gp(X: Tensor, Y: Tensor) -> Any:
    return TreeStructuredGP(X, Y, {0: {0.0: [1], 1.0: [2]}})


def conditional_gp(X: Tensor, Y: Tensor) -> Any:
    return ConditionalGP(X, Y, {0: {0.0: [1], 1.0: [2]}})


def ablr(X: Tensor, Y: Tensor) -> Any:
    torch.manual_seed(0)
    return MultiTaskABLR(X, Y, 0)


def make(kind: Callable[[Tensor, Tensor], Any]) -> tuple[Any, Any]:
    """A model at a random point, and its objective."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(12, 4, generator=g)
    X[:, 0] = torch.arange(12) % 2
    model = kind(X, (5.0 * X.sum(-1, keepdim=True)).sin())
    for p in model.parameters():
        p.data.add_(0.3 * torch.randn(p.shape, generator=g))
    return model, ExactMarginalLogLikelihood(model.likelihood, model).train()


def gradients(value: Tensor, model: Any) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters()), allow_unused=True))


def check(model: Any, mll: Any) -> None:
    """Value and gradient are those of the evidence and of each prior by itself."""
    loss = model.compute_custom_loss(mll)
    evidence = model._fast_evidence(mll, {})
    one_by_one = -mll._add_other_terms(evidence, ()) / model._num_observed
    torch.testing.assert_close(loss, one_by_one, rtol=1e-12, atol=1e-12)
    both = (gradients(value, model) for value in (loss, one_by_one))
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [tree_gp, conditional_gp, ablr])
def test_is_the_sum_of_all(kind: Any) -> None:
    model, mll = make(kind)
    check(model, mll)
    priors = QuadraticPriors([entry[1:4] for entry in model.named_priors()])
    # all but the horseshoe of the conditional model's noise
    assert len(priors._others) == (kind is conditional_gp)


class Sharper(QuickLogNormalPrior):
    def log_prob(self, value: Tensor) -> Tensor:
        return 3.0 * super().log_prob(value)


def outputscale(model: Any) -> Any:
    return model.covar_module.leaf_hyperparameters.common_outputscale


def another_prior(prior: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        outputscale(model).register_prior("value_prior", prior, read_value)

    return change


def in_place(model: Any) -> None:
    state = model.state_dict()
    name = "leaf_hyperparameters.common_outputscale.value_prior._buffered_loc"
    state[f"covar_module.{name}"] = torch.tensor(2.0)
    model.load_state_dict(state)


def another_constraint(model: Any) -> None:
    part = outputscale(model)
    part.register_constraint("raw_value", Interval(1e-3, 1e3))


def another_closure(model: Any) -> None:
    part = outputscale(model)
    part.register_prior("value_prior", LogNormalPrior(0.3, 2.0), lambda m: m.value + 1)


def another_parameter(model: Any) -> None:
    outputscale(model).raw_value = torch.nn.Parameter(torch.tensor([[0.7]]))


@pytest.mark.parametrize(
    "change",
    [
        another_prior(GammaPrior(2.0, 0.5)),
        another_prior(Sharper(0.0, 1.0)),
        another_prior(LogNormalPrior(1.5, 0.7)),
        in_place,
        another_constraint,
        another_closure,
        another_parameter,
    ],
    ids=lambda change: change.__qualname__.split(".")[0],
)
def test_what_a_user_changes_counts(change: Callable[[Any], None]) -> None:
    """Also after an evaluation."""
    model, mll = make(tree_gp)
    before = model.compute_custom_loss(mll)
    change(model)
    mll.train()
    check(model, mll)
    assert abs(model.compute_custom_loss(mll) - before) > 1e-3


def test_a_model_keeps_nothing_of_an_evaluation() -> None:
    model, mll = make(tree_gp)
    keys = {name: set(vars(part)) for name, part in model.named_modules()}
    parameters = list(model.named_parameters())
    loss = model.compute_custom_loss(mll)
    now = zip(parameters, model.named_parameters(), strict=True)
    assert all(a is b for (_, a), (_, b) in now)
    assert all(set(vars(part)) == keys[n] for n, part in model.named_modules() if n)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert vars(other)["_priors_cache"] is None
        for name, part in other.named_modules():
            new = set(vars(part)) - keys[name]
            assert new <= {"_priors_cache", "_structure_cache"}
        again = ExactMarginalLogLikelihood(other.likelihood, other).train()
        torch.testing.assert_close(other.compute_custom_loss(again), loss)
