import numpy as np
import pytest
from linear_operator.utils.errors import NotPSDError

from botorch_structured.linalg.blocks import cholesky, inverse_factors


def some(count: int, size: int, seed: int = 0) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(count, size, size))
    return root @ root.swapaxes(1, 2) + np.eye(size)


@pytest.mark.parametrize("size", [1, 5, 30])
def test_factors(size: int) -> None:
    A = some(3, size)
    before = A.copy()
    L = cholesky(A[0])
    np.testing.assert_allclose(L @ L.T, A[0], rtol=0.0, atol=1e-12 * size**2)
    assert not np.triu(L, 1).any()
    inverse, logdet = inverse_factors(A)
    unit = inverse @ A @ inverse.swapaxes(1, 2)
    np.testing.assert_allclose(unit, [np.eye(size)] * 3, atol=1e-10)
    assert logdet == pytest.approx(np.linalg.slogdet(A)[1].sum(), rel=1e-12)
    np.testing.assert_array_equal(A, before)


def test_the_first_jitter_that_does() -> None:
    A = np.ones((4, 4))
    A[0, 0] -= 1e-7
    L = cholesky(A, [1e-9, 1e-6, 1.0])
    np.testing.assert_allclose(L @ L.T, A + 1e-6 * np.eye(4), rtol=0.0, atol=1e-12)
    inverse, _ = inverse_factors(np.stack([A, np.eye(4)]))
    np.testing.assert_allclose(inverse[1], np.eye(4))
    assert np.isfinite(inverse).all()


def test_none_with_jitter_either() -> None:
    with pytest.raises(NotPSDError, match="expected a positive definite"):
        cholesky(-np.eye(3))
    with pytest.raises(NotPSDError):
        inverse_factors(np.stack([np.eye(3), -np.eye(3)]))


def test_nan_stays_nan() -> None:
    assert np.isnan(cholesky(np.full((2, 2), np.nan))).any()
