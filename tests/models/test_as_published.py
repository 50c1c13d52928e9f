"""What is called "as published" has the papers' settings, section by section.

Jenatton et al.'s model is held against 60-digit numbers of its equations in
``tests/reference/test_tree_gp.py``, Assael et al.'s is in ``test_treed_gp.py``.
"""

import pytest
import torch
from botorch.acquisition import ExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import HorseshoePrior
from torch import Tensor

from botorch_structured.acquisition import PathExpectedImprovement
from botorch_structured.fit import fit_slice_sampling
from botorch_structured.models import ConditionalGP, MultiTaskABLR, TreeStructuredGP
from botorch_structured.optim import optimize_acqf_local_search, optimize_acqf_two_step
from botorch_structured.spaces import ParameterTree

# x0 chooses between x1 and x2; x3 is shared
TREE = ParameterTree(4, {0: {0.0: [1], 1.0: [2]}})
BOUNDS = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)


pytestmark = pytest.mark.usefixtures("double")


def data(n: int = 10) -> tuple[Tensor, Tensor]:
    X = torch.rand(n, 4)
    X[:, 0] = torch.arange(n) % 2.0
    leaf = torch.where(X[:, 0] == 0, X[:, 1], 1.0 - X[:, 2])
    return X, -((leaf - 0.3).square() + X[:, 3]).unsqueeze(-1)


OPTIONS = "shared_features leaf_inputs leaf_hyperparameters leaf_offset"


@pytest.mark.parametrize("option", OPTIONS.split())
def test_a_tree_model_in_between_has_no_name(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        TreeStructuredGP.as_published(*data(), TREE, **{option: "x"})


def test_jenattons_two_steps() -> None:
    """Equation (6) over path and shared columns, then (5) at that leaf."""
    X, Y = data()
    model = TreeStructuredGP.as_published(X, Y, TREE)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    path_ei = PathExpectedImprovement(model, best_f=Y.max())
    ei = ExpectedImprovement(model, best_f=Y.max())
    candidate, value = optimize_acqf_two_step(
        path_ei, ei, BOUNDS, TREE, top_k=1, fix_shared=True, seed=0
    )
    # the first step: exhaustive, as (6) sees two columns only
    line = torch.linspace(0.0, 1.0, 201)
    grid = torch.cartesian_prod(line[[0, -1]], line[[100]], line[[100]], line)
    best = grid[path_ei(grid.unsqueeze(-2)).argmax()]
    assert candidate[0, 0] == best[0]
    assert abs(candidate[0, 3] - best[3]) < 0.005
    # the second: x_p alone
    leaf = candidate.repeat(201, 1)
    leaf[:, 1 + int(best[0])] = line
    assert value >= ei(leaf.unsqueeze(-2)).max() * (1.0 - 1e-6)


@pytest.mark.filterwarnings(
    "ignore::botorch_structured.models.sampled.chains.ChainsWarning"
)
def test_levesques_kernel_priors_and_search() -> None:
    """Sections III-B and V: nothing but the default, sampled, one step, EI."""
    X, Y = data()
    model = ConditionalGP(X, Y, TREE)
    base = model.covar_module.base_kernel
    assert type(base) is ScaleKernel and type(base.base_kernel) is MaternKernel
    assert base.base_kernel.nu == 2.5 and base.base_kernel.ard_num_dims == 3
    model.covar_module.base_kernel.outputscale = 4.0
    model.likelihood.noise = 0.09
    priors = {name: (p, f(m)) for name, m, p, f, _ in model.named_priors()}
    # log-normal(0, 1) on lengthscales and on sigma_f, the root of the variance ...
    amplitude, sigma_f = priors["covar_module.base_kernel.amplitude_prior"]
    lengthscale, _ = priors["covar_module.base_kernel.base_kernel.lengthscale_prior"]
    torch.testing.assert_close(sigma_f.squeeze(), torch.tensor(2.0))
    published = torch.distributions.LogNormal(0.0, 1.0)
    values = torch.tensor([0.1, 1.0, 3.0])
    for prior in (amplitude, lengthscale):
        torch.testing.assert_close(prior.log_prob(values), published.log_prob(values))
    # ... and a horseshoe with scale 1 on sigma_n
    noise, sigma_n = priors["likelihood.noise_covar.noise_std_prior"]
    assert isinstance(noise, HorseshoePrior) and noise.scale == 1.0
    torch.testing.assert_close(sigma_n.squeeze(), torch.tensor(0.3))

    sampled = fit_slice_sampling(model, num_samples=4, warmup=4, thinning=1, seed=0)
    ei = ExpectedImprovement(sampled, best_f=Y.max())
    step = 0.1
    candidate, value = optimize_acqf_local_search(
        ei, BOUNDS, TREE, step=step, min_step=step, seed=0
    )
    # equations (6) and (7): no neighbour along a single active column is better
    for column in TREE.active_mask(candidate)[0].nonzero()[:, 0].tolist():
        for move in (-step, step):
            other = candidate.clone()
            other[0, column] += move
            if column and 0.0 <= other[0, column] <= 1.0:
                assert ei(other) <= value + 1e-12
    _, best_of_random = optimize_acqf_local_search(ei, BOUNDS, TREE, max_iter=0)
    assert best_of_random.isfinite()


@pytest.mark.parametrize("tasks", [False, True])
def test_perrones_network_and_objective(tasks: bool) -> None:
    """Section 2.2: z = (Z_1, Z_2, Z_3); the fit's objective is equation (3), as is."""
    X = torch.rand(12, 3) * 4.0 - 1.0
    Y = (X.sum(-1, keepdim=True)).sin() * 3.0 + 10.0
    t = torch.arange(12) % 2
    rows = torch.cat([X, t.unsqueeze(-1).to(X)], -1) if tasks else X
    model = MultiTaskABLR.as_published(rows, Y, task_feature=-1 if tasks else None)
    (weights,) = model.feature_map.parameters()
    parts = model.feature_map.parts
    assert [tuple(Z.shape) for Z in parts] == [(50, 3), (50, 50), (50, 50)]
    assert weights.numel() == 50 * (3 + 50 + 50)

    # equation (3) itself is held against the printed formulas in ablr/test_evidence.py
    assert not hasattr(model, "outcome_transform")
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    objective = -model.compute_custom_loss(mll) * len(X)
    mll.train()
    dense = mll(model(*model.train_inputs), model.train_targets) * len(X)
    for found in (objective, dense):
        torch.testing.assert_close(found, model.log_evidence(), rtol=1e-9, atol=1e-9)
    with pytest.raises(TypeError, match="priors"):
        MultiTaskABLR.as_published(rows, Y, -1 if tasks else None, priors=True)
