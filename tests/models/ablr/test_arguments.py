"""MultiTaskABLR: arguments and data that it cannot work with are said to be so."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms import Normalize
from botorch.models.transforms.outcome import (
    ChainedOutcomeTransform,
    Log,
    StratifiedStandardize,
)
from botorch.posteriors import TransformedPosterior
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import manual_seed
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
)
from gpytorch.means import ConstantMean
from torch import Tensor, nn

from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.ablr.feature_maps import TanhNetwork

pytestmark = pytest.mark.usefixtures("double")


def data(n: int = 12) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=g)
    task = torch.tensor([0.0, 2.0, 5.0])[torch.arange(n) % 3]
    Y = 1.0 + X[:, 0] + task
    return torch.cat([X, task.unsqueeze(-1)], -1), Y.unsqueeze(-1)


def changed(values: Tensor, place: tuple[int, int], value: float) -> Tensor:
    values = values.clone()
    values[place] = value
    return values


def make(**change: Any) -> MultiTaskABLR:
    X, Y = data()
    network = TanhNetwork(2, widths=(8, 8))
    arguments = {"train_X": X, "train_Y": Y, "task_feature": -1, "output_tasks": [2, 5]}
    return MultiTaskABLR(**{**arguments, "feature_map": network, **change})


X, Y = (t.double() for t in data())
ONES = torch.ones(12, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_X": changed(X, (4, 1), torch.nan)}, r"train_X: .* in columns \[1\]"),
        ({"train_X": changed(X, (4, 0), torch.inf)}, r"train_X: .* in columns \[0\]"),
        ({"train_X": changed(X, (4, 2), torch.nan)}, r"train_X: .* in columns \[2\]"),
        ({"train_X": X.long(), "train_Y": Y.long()}, "train_X: expected torch.flo"),
        ({"train_Y": changed(Y, (4, 0), torch.inf)}, "train_Y: expected finite outco"),
        ({"train_Y": Y[1:]}, "train_Y: expected ``12 x m``"),
        ({"train_Y": 1e200 * Y}, "train_Y: expected outcomes whose variance is a n"),
        # one task's, which is standardised by itself
        (
            {"train_Y": Y * 1e-200 ** (X[:, 2:] == 2.0).double()},
            "train_Y: expected outcomes whose variance is a number .*e-201 at most",
        ),
        ({"train_Yvar": -ONES}, "train_Yvar: expected a finite variance"),
        ({"train_Yvar": changed(ONES, (3, 0), torch.nan)}, "train_Yvar: expected a fi"),
        ({"train_Yvar": torch.inf * ONES}, "train_Yvar: expected a finite variance"),
        (
            {"task_feature": 2.0},
            "task_feature: expected an integer or None, .* got 2.0",
        ),
        ({"task_feature": True}, "task_feature: expected an integer or None"),
        ({"output_tasks": []}, "output_tasks: .*at least one, got"),
        ({"output_tasks": 2}, "output_tasks: .*a list of integers.* got 2"),
        ({"output_tasks": [2.5]}, "output_tasks: .*a list of integers"),
        ({"all_tasks": [0, 2, 5, 5.5]}, "all_tasks: .*a list of integers"),
        ({"all_tasks": torch.arange(6)}, "all_tasks: .*a list of integers"),
        ({"feature_map": TanhNetwork(3)}, r"feature_map: expected a map of inputs"),
        ({"feature_map": nn.Linear(5, 3)}, r"feature_map: .*``n x 2`` \(no task"),
        (
            {"mean_module": ConstantMean(batch_shape=torch.Size([3]))},
            "mean_module: expected",
        ),
        ({"output_tasks": [4]}, "output_tasks: expected tasks among"),
        ({"task_feature": 3}, "task_feature: .*a column from -3 to 2"),
        ({"task_feature": None}, "output_tasks: expected None or, with a task_feat"),
        ({"train_Y": Y.repeat(1, 2)}, "several tasks and several signals"),
        ({"train_X": X[:, 2:]}, "``n x 0`` .no task column"),
        ({"train_X": X + 0.5}, "expected integers in the task column"),
        ({"input_transform": Normalize(3)}, "leaves the task column"),
        *(
            ({"likelihood": one}, "likelihood: .*with noise variances of shape")
            for one in (
                HadamardGaussianLikelihood(2, task_feature_index=2),
                FixedNoiseGaussianLikelihood(torch.ones(5)),
                GaussianLikelihood(batch_shape=torch.Size([3])),
            )
        ),
        ({"train_X": changed(X, (4, 2), 1e100)}, "integers in the task .*at most 2.53"),
        (
            {"all_tasks": [0, 2, 5, torch.nan]},
            "all_tasks: .*a list of integers",
        ),
        ({"all_tasks": [0, 2, 5, 1e200]}, "all_tasks: .*a list of integers"),
    ],
)
def test_what_a_model_cannot_be_made_of(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**change)


def test_a_prior_that_inference_would_not_follow() -> None:
    class Higher(MultiTaskABLR):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x)

    with pytest.raises(ValueError, match="forward: expected that of MultiTaskABLR"):
        Higher(X, Y, -1)


def test_what_was_not_observed_needs_no_noise() -> None:
    model = make(
        train_Y=changed(Y, (3, 0), torch.nan),
        train_Yvar=changed(ONES, (3, 0), torch.nan),
    )
    posterior = model.posterior(X[:, :2], observation_noise=True)
    assert posterior.mean.isfinite().all() and posterior.variance.isfinite().all()


def test_conditioning_on_what_is_no_number() -> None:
    model, new = make(), torch.rand(3, 2)
    for arguments, message in (
        ((X[:1], torch.ones(1)), "Y: expected ``batch_shape x 1 x 1``"),
        ((torch.rand(3, 4), torch.rand(3, 2)), "X: expected 3 columns, or one less"),
        ((new * torch.nan, torch.rand(3, 2)), "X: expected finite numbers"),
        ((new, torch.full((3, 2), torch.inf)), "Y: expected finite outcomes, or NaN"),
        ((new, torch.rand(3, 2), -torch.ones(3, 2)), "noise: expected a finite varia"),
        ((new, torch.rand(3, 2), torch.ones(5, 2)), "noise: expected variances of the"),
        ((torch.tensor([[0.1, 0.2, 7.0]]), torch.rand(1, 1)), "unexpected task values"),
    ):
        with pytest.raises(ValueError, match=message):
            model.condition_on_observations(*arguments)


def test_points_that_cannot_be_asked_for() -> None:
    model = make()
    with pytest.raises(ValueError, match="output_indices: expected at least one"):
        model.posterior(torch.rand(3, 2), output_indices=[])
    with pytest.raises(
        ValueError, match="X: expected 3 columns, .*``batch_shape x q x d``, got"
    ):
        model.posterior(torch.rand(2))
    with pytest.raises(ValueError, match="X: expected finite numbers, got nan"):
        model.posterior(torch.full((1, 3), torch.nan))
    assert model.posterior(X[:0]).mean.shape == (0, 1)
    assert model(X.expand(0, *X.shape)).mean.shape == (0, len(X))


@pytest.mark.parametrize("log", [False, True])
def test_transforms_that_look_at_the_task(log: bool) -> None:
    each = StratifiedStandardize(2, torch.tensor([0, 2, 5]))
    transform = ChainedOutcomeTransform(log=Log(), each=each) if log else each
    model = make(outcome_transform=transform, output_tasks=[2])
    points = torch.rand(4, 2)
    with pytest.raises(ValueError, match="X is required"):  # outputs one by one
        model.posterior(points, output_indices=[5, 0])
    posterior = model.posterior(points)
    assert isinstance(posterior, TransformedPosterior) == log
    one = model.posterior(torch.cat([points, torch.full((4, 1), 2.0)], -1))
    torch.testing.assert_close(posterior.mean, one.mean)
    torch.testing.assert_close(posterior.variance, one.variance)
    middle = posterior.rsample_from_base_samples(
        torch.Size([1]), torch.zeros(1, *posterior.base_sample_shape)
    )
    with manual_seed(0):
        functions = draw_matheron_paths(model, torch.Size([2000]))(points).unsqueeze(-1)
    medians = functions.median(0).values
    spread = functions.log().std(0) if log else functions.std(0)
    error = (medians.log() - middle[0].log()) if log else (medians - middle[0])
    assert (error.abs() < 0.15 * spread).all()


def test_known_noise_without_rows() -> None:
    """No number stands in for one that nobody has given."""
    none = torch.zeros(0, 1)
    model = MultiTaskABLR(torch.zeros(0, 2), none, None, train_Yvar=none)
    points = torch.rand(3, 2)
    assert model.posterior(points).variance.isfinite().all()
    with pytest.raises(ValueError, match="noise: expected the noise variances"):
        model.posterior(points, observation_noise=True)
    with pytest.raises(ValueError, match="noise: expected the noise variances"):
        model.condition_on_observations(points, points[:, :1])
    new = model.condition_on_observations(
        points, points[:, :1], noise=torch.full((3, 1), 1e-6)
    )
    torch.testing.assert_close(
        new.posterior(points).mean, points[:, :1], atol=1e-2, rtol=0.0
    )


def test_columns_that_the_network_would_hardly_see() -> None:
    """Normalised or not is a guess where a column is within [0, 1]; it may be wrong."""
    X = torch.rand(12, 3, generator=torch.Generator().manual_seed(0))
    narrow = X * torch.tensor([1.0, 0.01, 1.0])
    with pytest.warns(InputDataWarning, match=r"columns \[1\].*span less than 0.1"):
        MultiTaskABLR(narrow, X[:, :1], None)
    for good in (X, 100.0 * X, narrow[:5], torch.where(X > 2.0, X, 0.5)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", InputDataWarning)
            MultiTaskABLR(good, good[:, :1], None)
