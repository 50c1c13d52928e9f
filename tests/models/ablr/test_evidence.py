"""Evidence, its gradient and weights against their definition; rows in chunks."""

from __future__ import annotations

import math

import pytest
import torch
from ablr_problems import Problem, dense_log_evidence, make_problem
from hypothesis import given
from hypothesis import strategies as st
from linear_operator.utils.errors import NanError
from torch import Tensor, nn

from botorch_structured.models.ablr.regressions import (
    WeightPosterior,
)

#: no data, one row, fewer than, as many as and more than the six features
RAGGED = [3, 0, 6, 7, 30, 1, 12]


def ours(problem: Problem, chunk_rows: int | None = None) -> Tensor:
    return problem.regressions(chunk_rows).log_evidence()


def check(problem: Problem, value: Tensor, expected: Tensor, rtol: float) -> None:
    """Values, and gradients to everything learnt, each against its own size."""
    torch.testing.assert_close(value, expected, rtol=rtol, atol=rtol)
    gradients = torch.autograd.grad(value, problem.learnt)
    if not expected.requires_grad:  # no data at all
        expected = expected + 0.0 * sum(t.sum() for t in problem.learnt)
    dense = torch.autograd.grad(expected, problem.learnt)
    for g, e in zip(gradients, dense, strict=True):
        assert g.dtype == e.dtype and g.shape == e.shape
        size = float(e.abs().max()) if e.numel() else 0.0
        torch.testing.assert_close(g, e, rtol=100 * rtol, atol=100 * rtol * size)


@given(
    st.lists(st.integers(0, 15), min_size=1, max_size=5),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(1, 20)),
    st.integers(0, 1000),
    st.booleans(),
)
def test_against_the_dense_definition(
    counts: list[int], num_features: int, chunk_rows: int | None, seed: int, fixed: bool
) -> None:
    ordered = seed % 2 == 0
    problem = make_problem(
        counts, num_features, seed=seed, fixed_noise=fixed, ordered=ordered
    )
    value = ours(problem, chunk_rows=chunk_rows)
    check(problem, value, dense_log_evidence(problem), 1e-9)


@pytest.mark.parametrize("chunk_rows", [None, 3])
def test_rows_of_zeros_are_observations(chunk_rows: int | None) -> None:
    problem = make_problem([2, 2])
    problem.features = nn.Identity()
    with torch.no_grad():
        problem.X[1:3] = 0.0
        problem.Y[1:3] = 0.0
    expected = dense_log_evidence(problem)
    check(problem, ours(problem, chunk_rows=chunk_rows), expected, 1e-11)


@pytest.mark.parametrize("num_features", [6, 12])
def test_chunks_change_nothing_where_ratios_are_extreme(num_features: int) -> None:
    """Of alpha / beta = 1e10, products of features would keep half of the digits."""
    problem = make_problem([400, 300], num_features, seed=4)
    assert problem.log_alpha is not None
    problem.log_alpha.data.fill_(18.0)
    problem.log_beta.data.fill_(-5.0)
    # with such noise as alpha says
    weights = torch.linspace(-1.0, 1.0, num_features, dtype=torch.float64)
    signal = problem.features(problem.X.detach()).detach() @ weights
    problem.Y.data.mul_(math.exp(-9.0)).add_(signal)
    whole = ours(problem)
    chunked = ours(problem, chunk_rows=50)
    torch.testing.assert_close(whole, chunked, rtol=1e-12, atol=0.0)
    learnt = [problem.log_alpha, problem.log_beta]
    for a, b in zip(
        torch.autograd.grad(whole, learnt),
        torch.autograd.grad(chunked, learnt),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max()))


@pytest.mark.parametrize("chunk_rows", [None, 5])
def test_features_are_computed_once_or_twice(chunk_rows: int | None) -> None:
    """Never more rows at once than a chunk; activations of few rows are kept."""
    problem = make_problem(RAGGED)
    sizes: list[int] = []
    problem.features.register_forward_hook(lambda _, x, __: sizes.append(len(x[0])))
    ours(problem, chunk_rows=chunk_rows).backward()
    n = sum(RAGGED)
    assert sum(sizes) == (n if chunk_rows is None else n + n)
    assert max(sizes) <= (chunk_rows or n)
    sizes.clear()
    with torch.no_grad():
        ours(problem, chunk_rows=chunk_rows)
    assert sum(sizes) == n


@pytest.mark.parametrize("what", ["features", "log_beta"])
@pytest.mark.parametrize("counts", [[3, 5], [3, 20]])
def test_values_that_are_not_finite(what: str, counts: list[int]) -> None:
    problem = make_problem(counts)
    if what == "features":
        problem.X.data[problem.task == 1] = torch.nan
    else:
        problem.log_beta.data[1] = torch.nan
    with pytest.raises(NanError, match="1 of 2 tasks, the first is 1"):
        ours(problem)


def weights_of(problem: Problem, chunk_rows: int | None = None) -> WeightPosterior:
    return problem.regressions(chunk_rows).weights()


def test_updates_in_batches_and_their_gradient() -> None:
    problem = make_problem([9], num_features=5)
    before = WeightPosterior(*(p[0] for p in weights_of(problem)))
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
