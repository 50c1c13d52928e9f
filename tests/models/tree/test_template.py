"""Copies of modules that many models have alike."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from gpytorch.means import Mean
from strategies import random_points

from botorch_structured.models import TreeStructuredGP
from botorch_structured.models.tree.noise import default_likelihood
from botorch_structured.models.tree.template import Template
from botorch_structured.models.tree.tree_structured_kernel import TreeStructuredKernel
from botorch_structured.spaces import ParameterTree

TREE = ParameterTree(6, {0: {0.0: [1, 2], 1.0: [3]}})


def make(tree: ParameterTree = TREE, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(0)
    X = random_points(tree, 12, g).to(dtype)
    return TreeStructuredGP(X, X.sum(-1, keepdim=True), tree)


def test_a_copy_is_what_the_constructor_makes():
    model, kernel = make(), TreeStructuredKernel(TREE).double()
    noise = default_likelihood(torch.Size()).double()
    for mine, other in ((model.covar_module, kernel), (model.likelihood, noise)):
        for names in ("named_parameters", "named_buffers"):
            found, expected = (dict(getattr(m, names)()) for m in (mine, other))
            assert list(found) == list(expected)
        assert [n for n, _ in mine.named_modules()] == [
            n for n, _ in other.named_modules()
        ]
        for p, q in zip(mine.parameters(), other.parameters(), strict=True):
            assert type(p) is type(q) and p.requires_grad and p.is_leaf
    for name, value in kernel.state_dict().items():
        assert torch.equal(model.covar_module.state_dict()[name], value)
    for name, module, prior, closure, setting in model.named_priors():
        parent = model.get_submodule(name.rpartition(".")[0])
        assert parent is module and model.get_submodule(name) is prior
        bound = [getattr(f, "__self__", module) for f in (closure, setting)]
        assert bound == [module, module]
        setting(module, torch.tensor(0.5).double())
        assert torch.allclose(closure(module), torch.tensor(0.5).double())
    for module in model.covar_module.modules():
        for hook in module._load_state_dict_pre_hooks.values():
            assert hook.hook.__self__ is module


def test_copies_share_no_tensor():
    first, second = make(), make()
    before = {k: v.clone() for k, v in second.state_dict().items()}
    tables = [b.clone() for b in second.buffers()]
    for tensor in [*first.parameters(), *first.buffers()]:
        tensor.data.fill_(1)
    first.covar_module.set_correlation("rbf")
    assert second.covar_module.correlation.name == "matern"
    for name, value in second.state_dict().items():
        assert torch.equal(value, before[name])
    for table, buffer in zip(tables, second.buffers(), strict=True):
        assert torch.equal(table, buffer)
    third = make()
    assert all(torch.equal(v, before[k]) for k, v in third.state_dict().items())


def test_models_of_other_precisions_are_not_mixed():
    for dtype in (torch.float64, torch.float32, torch.float64):
        model = make(dtype=dtype)
        kinds = {p.dtype for p in model.parameters()}
        assert kinds == {dtype}
        model.eval().posterior(model.train_inputs[0])


def test_other_default_dtypes_are_not_mixed():
    def loc() -> torch.Tensor:
        prior = make().covar_module.leaf_hyperparameters.common_outputscale.value_prior
        return prior.base_dist.loc

    assert loc().dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    assert loc().dtype == torch.float64


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_a_copy_is_copied_again(again):
    model = make()
    other = again(model)
    other.load_state_dict(model.state_dict())
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_copy_has_the_tree_it_is_given():
    # equal trees may belong to different spaces
    for tree in (TREE.of_space(None), TREE.of_space(None)):
        model = make(tree)
        kernel = model.covar_module
        assert model.tree is kernel.tree is kernel.weights.tree is tree


def test_objects_that_occur_twice_are_one():
    module = torch.nn.Module()
    module.a = module.b = torch.ones(2)
    module.register_buffer("c", module.a)
    other = object()
    module.kept = [other, other]
    made = Template(module, other).copy(3)
    assert made.a is made.b is made.c and made.a is not module.a
    assert made.kept == [3, 3]


def test_trees_of_a_subclass_have_templates_of_their_own():
    class Other(ParameterTree):
        pass

    other = Other(6, {0: {0.0: [1, 2], 1.0: [3]}})
    make()
    model = make(other)
    assert model.covar_module.tree is other
    assert type(make().covar_module.tree) is ParameterTree


def test_a_mean_of_no_parts_is_a_mean():
    class Sum(Mean):
        def __len__(self):
            return 0

        def forward(self, X):
            return X.new_zeros(X.shape[:-1])

    X = random_points(TREE, 6, torch.Generator().manual_seed(0))
    Y = X.sum(-1, keepdim=True)
    model = TreeStructuredGP(X, Y, TREE, mean_module=Sum(), node_weights=1)
    assert type(model.mean_module) is Sum
