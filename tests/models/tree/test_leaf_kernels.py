"""A K_p of the caller's own: a kernel of GPyTorch on each leaf's columns."""

import copy
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import (
    AdditiveKernel,
    CosineKernel,
    IndexKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import assume, given, settings
from leaf_models import check_objective
from strategies import random_points, random_tree, seeds
from torch import Tensor

from botorch_structured.kernels import (
    ConditionalKernel,
    LaplaceKernel,
    TreeStructuredKernel,
)
from botorch_structured.models import (
    OldStudiesMean,
    TransferGP,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.models.tree.warm_start import take_values
from botorch_structured.spaces import ParameterTree, SearchSpace

pytestmark = pytest.mark.usefixtures("double")


# column 0 chooses between columns 1 and 2; column 3 is shared
TREE = ParameterTree(4, {0: {0.0: [1], 1.0: [2]}})


CATEGORIES = "categorical_features"
# of a categorical column whose values 0 and 1 are declared
CODES = {0.0: [1, 0, 0], 1.0: [0, 1, 0], 2.0: [0, 0, 1]}


def rational(columns: list[int]) -> Kernel:
    return RQKernel(ard_num_dims=len(columns))


def data(n: int = 20) -> tuple[Tensor, Tensor]:
    X = random_points(TREE, n, torch.Generator().manual_seed(0))
    return X, torch.where(X[:, :1] == 0, X[:, 1:2], X[:, 2:3]).sin() + X[:, 3:]


def randomised(module: Any, seed: int = 0) -> Any:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
            if "raw_noise" in name:
                p.fill_(-4.0)
    return module


@given(seeds)
@settings(max_examples=40)
def test_is_the_definition(seed: int) -> None:
    """s_p kappa(x_p, x'_p) on one path, pair by pair, beside the same weights.

    Times K_context(b, b'), section 5, where there are context columns.
    """
    tree = random_tree(seed)
    others = [c for c in range(tree.dim) if c not in tree.decision_columns]
    assume(tree.decision_columns)
    options: dict[str, Any] = {
        "leaf_hyperparameters": ["hierarchical", "independent", "tied"][seed % 3],
        "leaf_inputs": ["own", "active"][seed % 2],
    }
    X = random_points(tree, 12, torch.Generator().manual_seed(seed))
    if seed % 5 == 0 and others:
        options[CATEGORIES] = {others[0]: [0.0, 1.0]}
        X[:, others[0]] = X[:, others[0]].mul(3.0).floor()
    shared = sorted({*others} - {*tree.conditions, *options.get(CATEGORIES, ())})
    context = shared[:1] if seed % 3 == 0 else []
    if context:
        options["context_features"] = context
    columns_of: list[list[int]] = []

    def factory(columns: list[int]) -> Kernel:
        columns_of.append(columns)
        return [rational, lambda c: LinearKernel()][seed % 2](columns)

    kernel = randomised(TreeStructuredKernel(tree, leaf_kernel=factory, **options))
    plain = TreeStructuredKernel(tree, **options)
    plain.load_state_dict(kernel.state_dict(), strict=False)
    rows = plain.rows(X)
    expected = rows.features @ rows.features.mT
    independent = options["leaf_hyperparameters"] == "independent"
    number = tree.path_index(X).tolist()
    asked = dict(zip(kernel.leaf_kernels, columns_of, strict=True))
    for i, a in enumerate(number):
        path = tree.paths[a]
        numeric = {*path.active_columns} - {*tree.decisions_by_value, *context}
        sees = sorted(numeric)
        if options["leaf_inputs"] == "own" and tree.leaf_columns(a):
            sees = [c for c in tree.leaf_columns(a) if c not in context]
        key = str(a) if independent else "0"
        if independent:
            assert sorted({*asked.get(key, [])}) == sees

        def encoded(j: int, key: str = key, sees: list[int] = sees) -> Tensor:
            out, places = [], iter([0, 1, 2])
            for c in asked.get(key, []):
                value = X[j, c]
                if c in options.get(CATEGORIES, ()):
                    value = torch.tensor(CODES[X[j, c].item()][next(places)]) / 2**0.5
                out.append(value * (c in sees))
            return torch.stack(out).unsqueeze(0)

        for j, b in enumerate(number):
            if a == b:
                value = rows.variance[i]
                if key in asked:
                    own = kernel.leaf_kernels[key]
                    value = value * own(encoded(i), encoded(j)).to_dense()[0, 0]
                if context:
                    length = kernel.leaf_hyperparameters.context_lengthscale.value
                    distance = ((X[i, context] - X[j, context]) / length[0]).square()
                    value = value * kernel.correlation.value(distance[0])
                expected[i, j] += value + rows.constant[i]
    torch.testing.assert_close(kernel(X).to_dense(), expected)
    torch.testing.assert_close(kernel(X, diag=True), expected.diagonal())


KNOWN = {
    "matern12": lambda c: MaternKernel(0.5, ard_num_dims=len(c)),
    "matern32": lambda c: ScaleKernel(MaternKernel(1.5, ard_num_dims=len(c))),
    "rbf": lambda c: RBFKernel(),
    "laplace": lambda c: LaplaceKernel(ard_num_dims=len(c)),
    "product": lambda c: (
        MaternKernel(1.5, active_dims=[0]) * RBFKernel(active_dims=range(1, len(c)))
    ),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("context", [None, [3]])
def test_forms_that_are_read(name: str, context: Any) -> None:
    """The objective in closed form is that by autograd."""
    kernel: Any = KNOWN[name]
    X, Y = data()
    options = {"leaf_inputs": "active", "leaf_hyperparameters": "hierarchical"}
    model: Any = TreeStructuredGP(
        X, Y, TREE, leaf_kernel=kernel, context_features=context, **options
    )
    # GPyTorch's takes roots of squared distances with an error
    check_objective(randomised(model), 0, 1e-6 if name == "matern12" else 1e-10)
    model.eval()
    point = X[:5].unsqueeze(1).requires_grad_()
    posterior = model.posterior(point)
    assert model.moments_on(X, path=False) is not None or name in (
        "matern12",
        "laplace",
    )
    joint = model.posterior(X[:5])
    torch.testing.assert_close(posterior.mean.squeeze(-1), joint.mean)
    variance = posterior.variance.squeeze(-1)
    torch.testing.assert_close(variance, joint.variance, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("sharing", ["hierarchical", "independent"])
def test_parts_and_copies(sharing: Any) -> None:
    """Outputs have kernels of their own, and the caller's kernel is left alone."""
    X, Y = data()
    given = ScaleKernel(RQKernel())
    before = copy.deepcopy(given.state_dict())
    options: Any = {"leaf_kernel": given, "leaf_hyperparameters": sharing}
    two = torch.cat([Y, Y.cos()], -1)
    model = randomised(TreeStructuredGP(X, two, TREE, **options), 1)
    for name, p in model.covar_module.named_parameters():
        assert p.shape[0] == 2, name
    second = model.subset_output([1]).posterior(X)
    torch.testing.assert_close(second.mean[:, 0], model.posterior(X).mean[:, 1])
    assert all(torch.equal(before[k], v) for k, v in given.state_dict().items())
    again, other = (
        TreeStructuredGP(X, Y, TREE, leaf_hyperparameters=sharing, **kwargs)
        for kwargs in ({"leaf_kernel": given}, {})
    )
    with pytest.raises(ValueError, match="start_from: .*covar_module"):
        take_values(again, other)


def test_without_decisions_it_is_the_kernel() -> None:
    X, Y = data()
    model = TreeStructuredGP(X, Y, {}, leaf_kernel=rational)
    assert isinstance(model.covar_module, RQKernel)
    assert model.covar_module.ard_num_dims == 4


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RQKernel(ard_num_dims=4), r"a kernel of the 2 columns \[1, 2\], got RQKernel"),
        (RBFKernel(active_dims=[3]), r"a kernel of the 2 columns \[1, 2\]"),
        (RBFKernelGrad(), "expected one output per input"),
        (lambda columns: 3, "a function that makes one .*got int"),
        (3, "expected one of"),
    ],
)
def test_a_kernel_that_does_not_fit_is_refused(kernel: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"leaf_kernel: .*{message}"):
        TreeStructuredGP(*data(), TREE, leaf_kernel=kernel)


def test_what_is_no_covariance_is_refused() -> None:
    """The cosine of a distance is one of a single column, as here on each leaf."""
    X, Y = data()
    TreeStructuredGP(X, Y, TREE, leaf_kernel=CosineKernel())
    for tree, options in ((TREE, {"leaf_inputs": "active"}), ({}, {})):
        with pytest.raises(ValueError, match="leaf_kernel: .*negative eigenvalues"):
            TreeStructuredGP(X, Y, tree, leaf_kernel=CosineKernel(), **options)


FITTED: list[Any] = [
    CosineKernel(),
    PeriodicKernel() * RBFKernel(),
    LinearKernel() + ScaleKernel(RQKernel()),
    PolynomialKernel(2),
    PiecewisePolynomialKernel(q=1),
    lambda columns: SpectralMixtureKernel(2, ard_num_dims=len(columns)),
]


@pytest.mark.parametrize("kernel", FITTED)
def test_kernels_of_gpytorch_are_fitted(kernel: Any) -> None:
    X, Y = data()
    model = TreeStructuredGP.as_published(X, Y, TREE, leaf_kernel=kernel)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    before = mll(model(X), model.train_targets)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 10}})
    mll.train()
    assert mll(model(X), model.train_targets) > before
    assert (model.posterior(X).variance > 0.0).all()


@pytest.mark.parametrize(
    "kernel", [RQKernel(ard_num_dims=4), RBFKernel(), LinearKernel()]
)
def test_a_covariance_without_the_tree_is_refused(kernel: Kernel) -> None:
    """It would depend on values of inactive columns."""
    with pytest.raises(
        ValueError, match="covar_module: .*inactive columns.*leaf_kernel="
    ):
        TreeStructuredGP(*data(), TREE, covar_module=kernel)
    other = ConditionalKernel(kernel, ParameterTree(4, {0: {0.0: [1, 3], 1.0: [2]}}))
    with pytest.raises(ValueError, match="covar_module: .*inactive columns"):
        X, Y = data()
        TreeStructuredGP(X, Y, {0: {0.0: [1, 2], 1.0: [3]}}, covar_module=other)
    sum_of_both = ConditionalKernel(kernel, TREE) + RBFKernel(active_dims=[0, 3])
    TreeStructuredGP(*data(), TREE, covar_module=sum_of_both)


def test_lengthscales_by_column_and_path() -> None:
    nan = torch.nan
    X, Y = data()

    def check(model: Any, by_column: list[float], by_path: list[list[float]]) -> None:
        kernel = model.covar_module
        torch.testing.assert_close(kernel.lengthscale, torch.tensor([by_column]))
        found = kernel.path_lengthscales()
        torch.testing.assert_close(found, torch.tensor(by_path), equal_nan=True)
        assert not kernel.has_lengthscale  # nothing of GPyTorch's reads it

    model = TreeStructuredGP(X, Y, TREE)
    leaf = model.covar_module.leaf_hyperparameters
    leaf.relative_lengthscale.value = torch.tensor([[1.0, 2.0]])
    leaf.common_lengthscale.value = 0.2
    model.covar_module.weights.smooth_lengthscale.value = 0.8
    mean = (0.2 * 0.4 * 0.8) ** (1 / 3)
    by_path = [[nan, 0.2, nan, 0.8], [nan, nan, 0.4, 0.8]]
    check(model, [mean, 0.2, 0.4, 0.8], by_path)
    # each path has its own; linear terms have none
    model = TreeStructuredGP(
        X,
        Y,
        TREE,
        shared_features="linear",
        leaf_inputs="active",
        leaf_hyperparameters="independent",
    )
    leaf = model.covar_module.leaf_hyperparameters
    leaf.lengthscale.value = torch.tensor([[0.1, 0.2, 0.3, 0.8]])
    by_path = [[nan, 0.1, nan, 0.2], [nan, nan, 0.3, 0.8]]
    check(model, [(0.1 * 0.3 * 0.4) ** (1 / 3), 0.1, 0.3, 0.4], by_path)
    # those of kernels of one's own
    model = TreeStructuredGP.as_published(X, Y, TREE, leaf_kernel=RQKernel())
    model.covar_module.leaf_kernels["0"].lengthscale = 0.1
    model.covar_module.leaf_kernels["1"].lengthscale = 0.4
    check(model, [0.2, 0.1, 0.4, 0.2], [[nan, 0.1, nan, nan], [nan, nan, 0.4, nan]])
    base = RBFKernel(active_dims=[1, 2]) * CategoricalKernel(active_dims=[3])
    base.kernels[0].lengthscale = 0.1
    base.kernels[1].lengthscale = 0.8
    model = TreeStructuredGP(X, Y, TREE, covar_module=ConditionalKernel(base, TREE))
    by_path = [[nan, 0.1, nan, 0.8], [nan, nan, 0.1, 0.8]]
    check(model, [0.2, 0.1, 0.1, 0.8], by_path)
    model = TreeStructuredGP.as_published(X, Y, TREE, leaf_kernel=LinearKernel())
    assert model.covar_module.lengthscale is None
    two = TreeStructuredGP(X, torch.cat([Y, Y], -1), TREE)
    assert two.covar_module.lengthscale.shape == (2, 1, 4)
    assert two.covar_module.path_lengthscales().shape == (2, 2, 4)


def test_lengthscales_of_regions_and_old_studies() -> None:
    X = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    treed = TreedGP(
        X, torch.where(X[:, :1] > 0.5, (20 * X[:, 1:]).sin(), 0.1 * X[:, :1])
    )
    kernel: Any = treed.covar_module
    expected = kernel.lengthscale_of_leaf.value.log().mean(-2, keepdim=True).exp()
    assert treed.partition.num_leaves > 1
    torch.testing.assert_close(kernel.lengthscale, expected)
    space = SearchSpace(["a", "b"], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    studies = [(X, X.sum(-1, keepdim=True).sin()), (X, X[:, :1].square())]
    old = OldStudiesMean.from_studies(studies, space)
    transfer: Any = TransferGP(X[:5], X[:5, :1], old)
    expected = 1 / old.inverse_lengthscale.unsqueeze(0)
    torch.testing.assert_close(transfer.covar_module.lengthscale, expected)


# -- context columns: the product of K_p and K_context ---------------------------------

# columns 3 and 4 are shared
CONTEXT_TREE = ParameterTree(5, {0: {0.0: [1], 1.0: [2]}})


def context_points(n: int) -> Tensor:
    return random_points(CONTEXT_TREE, n, torch.Generator().manual_seed(0))


def test_undeclared_value_keeps_its_offset() -> None:
    """The offset of an undeclared path is not multiplied by K_context."""
    X = context_points(12)
    Y = X.sum(-1, keepdim=True).sin()
    X[:4, 0] = 7.0
    model = randomised(TreeStructuredGP(X, Y, CONTEXT_TREE, context_features=[4]), 3)
    model.eval()
    fast = model.posterior(X + 0.01 * (torch.arange(5) > 0))
    model._solver_cache = (None,)
    slow = model.posterior(X + 0.01 * (torch.arange(5) > 0))
    torch.testing.assert_close(fast.mean, slow.mean)
    found = (p.distribution.covariance_matrix for p in (fast, slow))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("column", [0, 1, 3])
def test_refuses_columns_that_are_no_context(column: int) -> None:
    X = context_points(8)
    with pytest.raises(ValueError, match="context_features: expected numeric columns"):
        TreeStructuredGP(
            X,
            X[:, 3:4],
            CONTEXT_TREE,
            categorical_features=[3],
            context_features=[column],
        )


def kernels(dim: int) -> list[Kernel]:
    return [
        ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=dim)),
        RBFKernel(),
        LaplaceKernel(ard_num_dims=dim),
        AdditiveKernel(RBFKernel(active_dims=[0]), LinearKernel()),
        CategoricalKernel(ard_num_dims=1, active_dims=[dim - 1]),
        MaternKernel(nu=1.5),
    ]


def by_hand(kernel: Kernel, tree: ParameterTree, X: Tensor) -> Tensor:
    """Pair by pair, comparing the decisions that are active."""
    imputed, active = tree.impute(X), tree.active_mask(X)
    codes = tree.decision_codes(X)
    out = torch.zeros(len(X), len(X))
    for i in range(len(X)):
        for j in range(len(X)):
            agree = all(
                bool(active[i, c]) == bool(active[j, c])
                and (not active[i, c] or bool(codes[i, k] == codes[j, k]))
                for k, c in enumerate(tree.decision_columns)
            )
            if agree:
                pair = kernel(imputed[i : i + 1], imputed[j : j + 1])
                out[i, j] = pair.to_dense().item()
    return out


@given(seeds)
def test_equation_8(seed: int) -> None:
    tree = random_tree(seed, strict=True)
    X = random_points(tree, 7, torch.Generator().manual_seed(seed))
    base = kernels(tree.dim)[seed % 6]
    wrapped = ConditionalKernel(base, tree)
    expected = by_hand(base, tree, X)
    torch.testing.assert_close(wrapped(X).to_dense(), expected, rtol=1e-9, atol=1e-9)
    cross = wrapped(X[:3], X[3:]).to_dense()
    torch.testing.assert_close(cross, expected[:3, 3:], rtol=1e-9, atol=1e-9)
    diagonal = wrapped(X, diag=True)
    torch.testing.assert_close(diagonal, expected.diagonal(), rtol=1e-9, atol=1e-9)


def test_diagonals_of_kernels_that_return_matrices() -> None:
    tree = ParameterTree(2, {0: {0.0: [1], 1.0: []}}, values={0: [0.0, 1.0]})
    X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    base = IndexKernel(num_tasks=3, rank=1, active_dims=[1])
    wrapped = ConditionalKernel(base, tree, fill=2.0)
    K = wrapped(X).to_dense()
    torch.testing.assert_close(wrapped(X, diag=True), K.diagonal())
    torch.testing.assert_close(wrapped.rows(X).prior, K.diagonal())


def test_what_a_kernel_that_is_not_stationary_sees_in_inactive_columns() -> None:
    tree = ParameterTree(2, {0: {0.0: [1], 1.0: []}})
    X = torch.tensor([[1.0, 0.9]])
    base = LinearKernel(active_dims=[1])
    expected = base.variance.item() * 4.0
    fill = torch.tensor([0.0, 2.0])
    value = ConditionalKernel(base, tree, fill)(X).to_dense().item()
    assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"base_kernel": 1.0}, "base_kernel: expected a GPyTorch kernel, got float"),
        ({"tree": {0: {0: [1]}}}, "tree: expected a ParameterTree"),
        ({"base_kernel": RBFKernel(active_dims=[2])}, "active_dims below 2"),
        ({"base_kernel": RBFKernelGrad()}, "one output per input"),
        ({"fill": torch.zeros(3)}, "2 numbers, got shape"),
    ],
)
def test_errors(arguments: dict[str, Any], message: str) -> None:
    tree = ParameterTree(2, {0: {0.0: [1]}})
    with pytest.raises(ValueError, match=message):
        ConditionalKernel(**{"base_kernel": RBFKernel(), "tree": tree, **arguments})
