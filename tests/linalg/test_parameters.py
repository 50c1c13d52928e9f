import pytest
import torch

from botorch_structured.linalg.parameters import (
    Hyperparameter,
    LogInterval,
    log_gaussian_prior,
)


def test_raw_is_the_logarithm() -> None:
    h = Hyperparameter((1, 3), 0.5, 1.0, (1e-2, 1e2))
    torch.testing.assert_close(h.value, torch.full((1, 3), 0.5, dtype=torch.float64))
    h.value = torch.tensor([[0.1, 1.0, 10.0]])
    torch.testing.assert_close(h.raw_value.exp(), h.value)
    h.value = 1e9  # what a wide prior may sample is brought inside the bounds
    assert (h.value <= 1e2 * (1 + 1e-6)).all()


def test_bounds_reach_the_optimiser() -> None:
    from botorch.optim.utils import get_parameters_and_bounds

    _, bounds = get_parameters_and_bounds(Hyperparameter((1, 1), 1.0, 1.0, (0.1, 10)))
    lower, upper = bounds["raw_value"]
    assert lower.exp().item() == pytest.approx(0.1)
    assert upper.exp().item() == pytest.approx(10)


def test_prior_mode_is_the_optimum_of_the_objective() -> None:
    """In log space, where the optimiser works, the density peaks at the mode."""
    prior = log_gaussian_prior(0.3, 0.8)
    raw = torch.linspace(-4, 3, 7001, dtype=torch.float64)
    best = raw[prior.log_prob(raw.exp()).argmax()].exp()
    assert best.item() == pytest.approx(0.3, rel=1e-3)
    reference = torch.distributions.LogNormal(prior.loc, prior.scale)
    torch.testing.assert_close(
        prior.log_prob(raw.exp()).float(), reference.log_prob(raw.exp()).float()
    )


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_bad_bounds(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="lower_bound"):
        LogInterval(*bounds)
