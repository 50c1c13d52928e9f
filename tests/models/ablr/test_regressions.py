"""The weights' posterior against the formulas as printed, and its updates."""

from __future__ import annotations

import pytest
import torch
from ablr_problems import Problem, make_problem
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from botorch_structured.models.ablr.regressions import WeightPosterior

RAGGED = [3, 0, 6, 7, 30, 1, 12]


def ours(problem: Problem, chunk_rows: int | None = None) -> WeightPosterior:
    return problem.regressions(chunk_rows).weights()


@torch.no_grad()
def printed(problem: Problem) -> tuple[Tensor, Tensor]:
    """Equations (1) and (2): means and covariances of all weights."""
    phi, means, covariances = problem.features(problem.X), [], []
    for t in range(len(problem.log_beta)):
        rows = problem.task == t
        if problem.noise_variance is None:
            assert problem.log_alpha is not None
            precision = problem.log_alpha[t].exp().expand(int(rows.sum()))
        else:
            precision = 1.0 / problem.noise_variance[rows]
        weighted = phi[rows].T * precision
        eye = torch.eye(phi.shape[-1], dtype=phi.dtype, device=phi.device)
        covariance = (weighted @ phi[rows] + problem.log_beta[t].exp() * eye).inverse()
        means.append(covariance @ weighted @ problem.Y[rows])
        covariances.append(covariance)
    return torch.stack(means), torch.stack(covariances)


def check(posterior: WeightPosterior, mean: Tensor, covariance: Tensor) -> None:
    kwargs = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(posterior.mean, mean, **kwargs)
    root = posterior.root
    torch.testing.assert_close(root @ root.mT, covariance, **kwargs)


@pytest.mark.parametrize("fixed_noise", [False, True])
@pytest.mark.parametrize("chunk_rows", [None, 5])
def test_against_the_printed_formulas(
    fixed_noise: bool, chunk_rows: int | None, device: torch.device
) -> None:
    problem = make_problem(RAGGED, fixed_noise=fixed_noise, device=device)
    posterior = ours(problem, chunk_rows=chunk_rows)
    check(posterior, *printed(problem))
    assert not posterior.mean.requires_grad


@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 1000))
def test_updates_are_the_posterior_of_all(first: int, later: int, seed: int) -> None:
    """One observation after the other, in any split."""
    problem = make_problem([first + later], num_features=5, seed=seed)
    assert problem.log_alpha is not None
    start = problem.part(torch.arange(first))
    with torch.no_grad():
        phi = problem.features(problem.X)[first:]
    before = WeightPosterior(*(p[0] for p in ours(start)))
    noise = (-problem.log_alpha).detach().exp().expand(later)
    after = before.update(phi, problem.Y.detach()[first:], noise)
    check(after, *(p[0] for p in printed(problem)))


def test_updates_in_batches_and_their_gradient() -> None:
    problem = make_problem([9], num_features=5)
    before = WeightPosterior(*(p[0] for p in ours(problem)))
    g = torch.Generator().manual_seed(0)
    phi, Y = (
        torch.randn(*shape, generator=g, dtype=torch.float64)
        for shape in [(3, 2, 5), (4, 1, 2)]
    )
    noise = torch.tensor([0.1, 0.4], dtype=torch.float64)
    after = before.update(phi, Y, noise)
    assert after.mean.shape == (4, 3, 5) and after.root.shape == (3, 5, 5)
    single = before.update(phi[1], Y[2, 0], noise)
    torch.testing.assert_close(after.mean[2, 1], single.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after.root[1], single.root, rtol=1e-12, atol=1e-12)

    def of(phi: Tensor, Y: Tensor, noise: Tensor) -> Tensor:
        mean, root = before.update(phi, Y, noise)
        return mean.square().sum() + (root @ root.mT).sum()

    inputs = tuple(t.clone().requires_grad_() for t in (phi[:1], Y[:1], noise))
    assert torch.autograd.gradcheck(of, inputs)
