from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from botorch_structured.spaces import ParameterTree
from botorch_structured.transforms import ClipTail, Impute

INF = float("inf")


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def gaps(Y: torch.Tensor) -> torch.Tensor:
    """Differences of neighbouring values, those of equal ones left out."""
    return Y.unique().diff()


def clipped(*values: float, **kwargs: Any) -> list[float]:
    return ClipTail(**kwargs)(column(*values))[0].squeeze(-1).tolist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # median 3, best 5: the cut is 1
        ((5.0, 4.0, 3.0, 1.0, -100.0), [5.0, 4.0, 3.0, 1.0, 1.0]),
        # an even number of points: the median 2.5 is between two
        ((4.0, 3.0, 2.0, -9.0), [4.0, 3.0, 2.0, 1.0]),
        # failed ones land on the cut and do not move it
        ((5.0, 4.0, 3.0, 1.0, -100.0, -INF, -INF), [5.0, 4.0, 3.0, 1.0] + [1.0] * 3),
        # repeats count once: median 0.5 of 1, 0.5 and -100
        ((1.0, 1.0, 1.0, 1.0, 0.5, -100.0), [1.0] * 4 + [0.5, 0.0]),
        ((1.0, 0.75, 0.75, 0.75, 0.5, -100.0), [1.0, 0.75, 0.75, 0.75, 0.5, 0.25]),
        ((1.0, 1.0, 1.0 - 1e-16, -2.0), [1.0, 1.0, 1.0 - 1e-16, -2.0]),
        # nothing to compare with
        ((7.0,), [7.0]),
        ((0.25, -INF), [0.25, -0.75]),
    ],
)
def test_values_both_ways(values: tuple[float, ...], expected: list[float]) -> None:
    assert clipped(*values) == expected
    mirrored = clipped(*(-v for v in values), maximize=False)
    assert [-v for v in mirrored] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # median 3, best 5: the cut is 1, the scale 2
        ((5.0, 4.0, 3.0, 1.0, -9.0), [5.0, 4.0, 3.0, 1.0, 1.0 - 2.0 * math.log(6.0)]),
        ((5.0, 4.0, 3.0, 2.0, 1.5, -INF), [5.0, 4.0, 3.0, 2.0, 1.5, 1.0]),
        ((7.0, 7.0, -INF), [7.0, 7.0, 0.0]),
        ((-INF, -INF), [0.0, 0.0]),
        ((2.0, 1.0), [2.0, 1.0]),
    ],
)
def test_a_compressed_tail(values: tuple[float, ...], expected: list[float]) -> None:
    assert clipped(*values, tail="log") == pytest.approx(expected)
    mirrored = clipped(*(-v for v in values), maximize=False, tail="log")
    assert [-v for v in mirrored] == pytest.approx(expected)
    if values[-1] == -9.0:  # a failure is no better than the worst
        worst, failed = clipped(*values, -INF, tail="log")[-2:]
        assert worst == failed < 1.0
    else:  # below the cut is nothing, as without compression
        assert clipped(*values) == expected


# Neighbours are so far apart that no change of units below makes two values one.
GRID = st.integers(-(10**8), 10**8).map(lambda k: k / 64)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(GRID | st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.floats(0.01, 100.0),
    st.floats(-10.0, 10.0),
)
@example([0.0, 3.7e-178, -1.0, -1.0], 1.0, 1.0)  # the shift makes two values one
@example([5.0, 4.0, 3.0, 1.0, -100.0], 3.0, -7.0)
@example([0.0, -1 / 64, -2 / 64, 6.4e-271, -2.4e-147], 1.0, 0.0)
def test_laws(values: list[float], scale: float, shift: float) -> None:
    Y = column(*values)
    Z, _ = ClipTail()(Y)
    best = Y.max()
    assert Z.max() == best
    assert (Z >= Y).all()
    # at least half of the distinct values are left alone, and order is kept
    is_left = torch.isclose(Z, Y, rtol=1e-9, atol=1e-12)
    assert 2 * len(Y[is_left].unique()) >= len(Y.unique())
    order = Y.squeeze(-1).argsort()
    assert (Z.squeeze(-1)[order].diff() >= 0).all()
    reordered, _ = ClipTail()(Y.flip(0))
    assert torch.equal(reordered.flip(0), Z)
    # clipping commutes with a change of units, as far as that keeps values apart
    moved = scale * Y + shift
    if all(len(gaps(V)) == 0 or gaps(V).min() > 1e-4 for V in (Y, moved)):
        other, _ = ClipTail()(moved)
        torch.testing.assert_close(other, scale * Z + shift, rtol=1e-7, atol=1e-7)


def test_batches_and_outputs_are_separate() -> None:
    one = column(5.0, 4.0, 3.0, 1.0, -100.0)
    two = column(0.0, 10.0, -50.0, 4.0, 3.0)
    Y = torch.stack([torch.cat([one, two], -1), torch.cat([two, one], -1)])
    transform = ClipTail()
    Z, _ = transform(Y)
    assert transform.cut.shape == (2, 1, 2)
    assert torch.equal(Z[0, :, :1], ClipTail()(one)[0])
    assert torch.equal(Z[1, :, :1], ClipTail()(two)[0])
    sub = transform.subset_output([1])
    sub.eval()
    assert torch.equal(sub(Y[..., 1:])[0], Z[..., 1:])
    sub.train()
    assert torch.equal(sub(Y[..., 1:])[0], Z[..., 1:])


def test_eval_applies_the_stored_cut_and_noise_passes() -> None:
    transform = ClipTail()
    with pytest.raises(RuntimeError, match="training mode first"):
        transform.eval()(column(1.0))
    Y = column(5.0, 4.0, 3.0, 1.0, -100.0)
    Yvar = torch.rand_like(Y)
    _, noise = transform.train()(Y, Yvar)
    assert noise is Yvar
    found = transform.eval()(column(-7.0, 2.0, 50.0, -INF))[0]
    assert torch.equal(found, column(1.0, 2.0, 50.0, 1.0))
    Z = torch.randn(3, 5, 1, dtype=torch.float64)
    assert transform.untransform(Z, Yvar) == (Z, Yvar)
    fresh = ClipTail()
    fresh(column(1.0, 2.0))  # a state is loaded where the shape of the cut is known
    fresh.eval().load_state_dict(transform.state_dict())
    again = pickle.loads(pickle.dumps(transform))
    for other in (fresh, copy.deepcopy(transform), again):
        assert other(column(-7.0))[0].item() == 1.0


@pytest.mark.parametrize("maximize", [True, False])
def test_meaningless_outcomes_raise(maximize: bool) -> None:
    best = INF if maximize else -INF
    for wrong in (float("nan"), best):
        with pytest.raises(ValueError, match="Y: expected .* got 1 of 2 that are NaN"):
            ClipTail(maximize=maximize)(column(1.0, wrong))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12))
def test_a_compressed_tail_keeps_the_order(values: list[float]) -> None:
    found = torch.tensor(clipped(*values, tail="log"), dtype=torch.double)
    order = torch.tensor(values, dtype=torch.double).argsort()
    assert (found[order].diff() >= -1e-9 * (1.0 + found.abs().max())).all()
    flat = torch.tensor(clipped(*values), dtype=torch.double)
    above = flat > flat.min()
    assert torch.equal(found[above], flat[above])
    assert (found <= flat).all()


# -- imputation, as the paper has it
TREE = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
BOUNDS = torch.tensor([[0.0, 0.0, -4.0], [1.0, 10.0, 2.0]], dtype=torch.float64)
X = torch.tensor([[0.0, 3.0, 99.0], [1.0, 99.0, 1.0]], dtype=torch.float64)


def test_the_middle_of_the_range_by_default() -> None:
    expected = torch.tensor([[0.0, 3.0, -1.0], [1.0, 5.0, 1.0]], dtype=torch.float64)
    assert torch.equal(Impute(TREE, BOUNDS)(X), expected)
    assert Impute(TREE)(X)[0, 2] == 0.5  # of [0, 1]


def test_when_it_applies_and_copies() -> None:
    transform = Impute(TREE, BOUNDS, transform_on_train=False)
    assert torch.equal(transform(X), X)
    assert not torch.equal(transform.eval()(X), X)
    assert torch.equal(transform.untransform(X), X)
    for other in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))):
        assert transform.equals(other)
        assert torch.equal(other.transform(X), transform.transform(X))
    assert not transform.equals(Impute(TREE, BOUNDS))
    assert not transform.equals(Impute(TREE, transform_on_train=False))
    assert Impute(TREE, BOUNDS).float()(X.float()).dtype == torch.float32


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"tree": {0: {0: [1]}}}, "ParameterTree"),
        ({"bounds": BOUNDS[:, :2]}, "2 x 3"),
        ({"bounds": BOUNDS / 0.0}, "finite"),
    ],
)
def test_errors_of_imputation(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Impute(**{"tree": TREE, **arguments})
