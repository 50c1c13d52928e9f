"""What is called "as published" has the papers' settings, section by section.

Jenatton et al.'s model is held against 60-digit numbers of its equations in
``tests/reference/test_tree_gp.py``, Assael et al.'s is in ``test_treed_gp.py``. How
they search is in ``tests/optim/test_two_step.py`` and ``test_local_search.py``.
"""

import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import HorseshoePrior

from botorch_structured.models import ConditionalGP, MultiTaskABLR
from botorch_structured.spaces import ParameterTree

# x0 chooses between x1 and x2; x3 is shared
TREE = ParameterTree(4, {0: {0.0: [1], 1.0: [2]}})
pytestmark = pytest.mark.usefixtures("double")


def test_levesques_kernel_and_priors() -> None:
    """Sections III-B and V: nothing but the default."""
    X = torch.rand(10, 4)
    X[:, 0] = torch.arange(10) % 2.0
    Y = X.sum(-1, keepdim=True)
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
