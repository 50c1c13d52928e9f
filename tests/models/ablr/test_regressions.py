"""The weights' posterior against the formulas as printed, and its updates."""

from __future__ import annotations

import pytest
import torch
from ablr_problems import Problem, make_problem
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from botorch_structured.models.ablr.factors import TaskData
from botorch_structured.models.ablr.regressions import (
    Regressions,
    WeightPosterior,
    refined_mean,
)
from botorch_structured.models.ablr.rows import TaskRows

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


def test_without_data_it_is_the_prior() -> None:
    problem = make_problem([0, 4])
    posterior = ours(problem)
    root, variance = posterior.root[0], (-problem.log_beta[0].detach()).exp()
    assert not posterior.mean[0].any()
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(root @ root.mT, variance * eye, rtol=1e-14, atol=0.0)


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


def test_refinement_recovers_the_digits_that_collinearity_costs() -> None:
    """Of columns 1e-7 apart, whose weights are known in rationals: y = phi w exactly.

    With the tiniest ridge the mean is w up to the ridge's pull, which is computed in
    exact arithmetic.
    """
    from fractions import Fraction

    first = [1.0, 2.0, -1.0, 0.5]
    second = [1.0 + 2.0**-23, 2.0, -1.0, 0.5 - 2.0**-24]
    y = [1.0, 1.0, 3.0, -2.0]
    alpha, beta = 2.0**20, 2.0**-12
    ridge = Fraction(beta) / Fraction(alpha)
    a, b, o = ([Fraction(v) for v in column] for column in (first, second, y))

    def dot(u: list[Fraction], v: list[Fraction]) -> Fraction:
        return sum((p * q for p, q in zip(u, v, strict=True)), Fraction(0))

    aa, bb, ab = dot(a, a) + ridge, dot(b, b) + ridge, dot(a, b)
    det = aa * bb - ab * ab
    exact = [
        (bb * dot(a, o) - ab * dot(b, o)) / det,
        (aa * dot(b, o) - ab * dot(a, o)) / det,
    ]
    expected = torch.tensor([float(w) for w in exact], dtype=torch.float64)
    phi = torch.tensor([first, second], dtype=torch.float64).T
    outcomes = torch.tensor(y, dtype=torch.float64)
    task = torch.zeros(4, dtype=torch.long)
    logs = torch.tensor([alpha, beta], dtype=torch.float64).log()

    def weights(chunk_rows: int | None = None) -> WeightPosterior:
        rows = TaskRows(task, 1, chunk_rows=chunk_rows)
        data = TaskData(nn.Identity(), phi, outcomes, rows)
        return Regressions(data, logs[:1], logs[1:]).weights()

    (mean,) = weights().mean
    torch.testing.assert_close(mean, expected, rtol=1e-13, atol=0.0)
    # in chunks there is no refinement, and the digits are not there
    rough, root = (p[0] for p in weights(chunk_rows=3))
    assert float(((rough - expected) / expected).abs().max()) > 1e-12
    precisions = logs.exp()
    again = refined_mean(phi, outcomes, rough, root, *precisions)
    torch.testing.assert_close(again, expected, rtol=1e-13, atol=0.0)
