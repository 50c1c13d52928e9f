"""All models check data and points in the same way, before any work is done."""

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import AppendFeatures, Normalize, Warp
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from botorch_structured.models import (
    ConditionalGP,
    DecomposedGP,
    MonotoneGP,
    MultiTaskABLR,
    SampledGP,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.transforms import ClipTail

pytestmark = pytest.mark.usefixtures("double")


# column 0 chooses between columns 1 and 2
TREE = {0: {0: [1], 1: [2]}}
N = 12
X = torch.rand(N, 3, generator=torch.Generator().manual_seed(0)).double()
X[:, 0] = torch.arange(N) % 2
Y = X.sum(-1, keepdim=True)

Maker = Callable[..., Any]
MAKERS: dict[str, Maker] = {
    "tree": lambda X, Y, **kw: TreeStructuredGP(X, Y, TREE, **kw),
    "conditional": lambda X, Y, **kw: ConditionalGP(X, Y, TREE, **kw),
    "treed": lambda X, Y, **kw: TreedGP(X, Y, **kw),
    "monotone": lambda X, Y, **kw: MonotoneGP(X, Y, {1: 1}, **kw),
    "ablr": lambda X, Y, **kw: MultiTaskABLR(
        X, Y, None, feature_map=TanhNetwork(3, widths=(4, 4)), **kw
    ),
}
models = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def with_value(values: Tensor, place: tuple[int, int], value: float) -> Tensor:
    values = values.clone()
    values[place] = value
    return values


# BoTorch's class of an error, how its message starts, and what raises it
KIND, SHAPE = InputDataError, BotorchTensorDimensionError
ONES = torch.ones_like(Y)
FLOATS = "expected torch.float64 or torch.float32, got"
SQUARES = "expected outcomes whose variance is a number"
BATCHES = {"X": X.expand(1, N, 3), "Y": Y.expand(2, N, 1)}
SINGLE = {"X": X.float(), "Y": 1e18 * Y.float()}
EXTREMES = torch.cat([-Y[:1], Y[1:]]) / Y.max()


def at(values: Tensor, value: float, column: int = 0) -> Tensor:
    """With a value in row 4."""
    return with_value(values, (4, column), value)


BAD_DATA: list[tuple[type[ValueError], str, dict[str, Any]]] = [
    (KIND, "train_X: .*got numpy.ndarray.*as_tensor", {"X": X.numpy()}),
    (KIND, "train_Y: .*got numpy.ndarray.*as_tensor", {"Y": Y.numpy()}),
    (KIND, "train_Yvar: .*as_tensor", {"train_Yvar": ONES.numpy()}),
    (KIND, f"train_X: {FLOATS} torch.int64", {"X": X.long(), "Y": Y.long()}),
    (KIND, f"train_X: {FLOATS} torch.float16", {"X": X.half(), "Y": Y.half()}),
    (KIND, "train_X: .*dense.*got torch.sparse_coo", {"X": X.to_sparse()}),
    (KIND, "train_Y: .*values, got a meta tensor", {"Y": Y.to("meta")}),
    (KIND, "train_Y: expected torch.float64, .*got torch.float32", {"Y": Y.float()}),
    (KIND, "train_Yvar: expected torch.float64", {"train_Yvar": ONES.float()}),
    (SHAPE, "train_Y: .*``12 x m``, .*train_X (12, 3), got (11, 1)", {"Y": Y[1:]}),
    (SHAPE, "train_Y: .*An explicit output dimension is required", {"Y": Y[:, 0]}),
    (SHAPE, "train_X: .*at least one column", {"X": X[:, :0]}),
    (SHAPE, "train_Y: .*got (12, 0)", {"Y": Y[:, :0]}),
    (SHAPE, "train_Y: .*``1 x 12 x m``.*got (2, 12, 1)", BATCHES),
    (SHAPE, "train_Yvar: .*train_Y, (12, 1), got (11, 1)", {"train_Yvar": ONES[1:]}),
    (SHAPE, "train_Yvar: .*got (1,)", {"train_Yvar": ONES[0]}),
    (KIND, "train_X: .*nan in columns [1] of rows [4]", {"X": at(X, torch.nan, 1)}),
    (KIND, "train_X: .*-inf in columns [2] of rows [4]", {"X": at(X, -torch.inf, 2)}),
    (KIND, "train_Y: .*inf in columns [0] of rows [4]", {"Y": at(Y, torch.inf)}),
    (KIND, "train_X: .*squares, .*magnitudes up to 1.0e+200", {"X": 1e200 * X}),
    (
        KIND,
        f"train_Y: {SQUARES} (about 1e-150 to 1e+150 in torch.float64), got magnitudes "
        "up to 1.0e+160, and some that differ by 8.1e+159 at most. Rescale them.",
        {"Y": 1e160 * Y / Y.max()},
    ),
    (KIND, f"train_Y: {SQUARES} .*1.5e+308", {"Y": 1.5e308 * EXTREMES}),
    (KIND, f"train_Y: {SQUARES} .*e-160 at most", {"Y": 1e-160 * Y}),
    (KIND, "train_Y: .*(about 1e-15 to 2e+15 in torch.float32)", SINGLE),
    (
        KIND,
        "train_Yvar: .*-0.5 in columns [0] of rows [4]",
        {"train_Yvar": at(ONES, -0.5)},
    ),
    (KIND, "train_Yvar: .*got nan", {"train_Yvar": at(ONES, torch.nan)}),
    (KIND, "train_Yvar: .*got inf", {"train_Yvar": torch.inf * ONES}),
]


def starts_with(message: str) -> str:
    return "^" + re.escape(message).replace(r"\.\*", ".*")


@models
@pytest.mark.parametrize(
    ("error", "message", "change"), BAD_DATA, ids=[row[1] for row in BAD_DATA]
)
def test_data_that_no_model_can_be_made_of(
    make: Maker, error: type[Exception], message: str, change: dict[str, Any]
) -> None:
    arguments = {"X": X, "Y": Y, **change}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing was done with them
        with pytest.raises(error, match=starts_with(message)) as caught:
            make(**arguments)
    assert isinstance(caught.value, ValueError)


@models
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            (X, with_value(Y, (4, 0), torch.nan)),
            r"train_Y: .* got nan in columns \[0\]",
        ),
        ((X[:0], Y[:0]), "train_X: expected at least one row"),
    ],
)
def test_outcomes_that_were_not_observed(make: Maker, data: Any, message: str) -> None:
    make = partial(make, *data, outcome_transform=None)
    if make.func is MAKERS["ablr"]:
        assert make().posterior(X).mean.isfinite().all()
        return
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def test_tasks_of_no_rows() -> None:
    with pytest.raises(ValueError, match=r"^all_tasks: expected all task values"):
        MultiTaskABLR(X[:0], Y[:0], task_feature=0)
    model = MultiTaskABLR(X[:0], Y[:0], task_feature=0, all_tasks=[0, 1])
    assert model.posterior(X[:, 1:]).mean.shape == (N, 2)


@pytest.mark.parametrize("name", ["tree", "conditional"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_to_do_about_inactive_columns(name: str, value: float) -> None:
    gaps = X.clone()
    gaps[0::2, 2] = value
    gaps[1::2, 1] = value
    make = MAKERS[name]
    advice = r"fill them with ParameterTree.impute"
    with pytest.raises(InputDataError, match=rf"^train_X: .*{advice}"):
        make(gaps, Y)
    model = make(X, Y)
    with pytest.raises(InputDataError, match=rf"^X: .*{advice}"):
        model.posterior(gaps)
    filled = model.tree.impute(gaps)
    assert make(filled, Y).posterior(filled).mean.isfinite().all()


def decomposed(X: Tensor, Y: Tensor, **kwargs: Any) -> DecomposedGP:
    return DecomposedGP(SingleTaskGP(X, Y, **kwargs), SingleTaskGP(X, 2 * Y, **kwargs))


def sampled(X: Tensor, Y: Tensor, **kwargs: Any) -> SampledGP:
    return SampledGP([SingleTaskGP(X, Y, **kwargs) for _ in range(2)])


PREDICTORS = {**MAKERS, "decomposed": decomposed, "sampled": sampled}
NOT_FINITE = r"X: expected finite numbers, got {} in columns \[1\] of rows \[{}\]"
WITH_NAN = with_value(X, (4, 1), torch.nan)
BAD_POINTS = [
    (X[:, [0, 1, 2, 0]], "X: expected .*3.*got .*4"),
    (X[:, :2], "X: expected .*3.*got .*2"),
    (WITH_NAN, NOT_FINITE.format("nan", 4)),
    (with_value(X, (4, 1), torch.inf), NOT_FINITE.format("inf", 4)),
    (1e200 * X, "X: expected inputs whose squares, .* magnitudes"),
    (WITH_NAN.unsqueeze(-2), NOT_FINITE.format("nan", 0)),
    (X.numpy(), "X: expected a torch.Tensor, got numpy.ndarray"),
    (X.float(), "X: expected torch.float64, the dtype of the model, got torch.float32"),
    (X.long(), "X: expected torch.float64.*got torch.int64"),
]


def refuses_bad_points(predict: Callable[[Any], Any]) -> None:
    for points, message in BAD_POINTS:
        with pytest.raises(ValueError, match=f"^{message}"):
            predict(points)


@pytest.mark.parametrize("transform", [False, True])
@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_points_that_nothing_can_be_predicted_at(make: Maker, transform: bool) -> None:
    kwargs = {"input_transform": Normalize(3)} if transform else {}
    model = make(X, Y, **kwargs)
    before = model.posterior(X).mean
    refuses_bad_points(model.posterior)
    inputs = X.clone().requires_grad_(True)
    after = model.posterior(inputs).mean
    torch.testing.assert_close(after, before)
    after.sum().backward()
    assert inputs.grad is not None and inputs.grad.isfinite().all()


@models
def test_new_data_that_no_model_can_be_conditioned_on(make: Maker) -> None:
    model = make(X, Y)
    model.posterior(X)
    rows = r"Y: expected ``batch_shape x 12 x 1``, one row for each of X .*got "
    batches = "Y: expected batch dimensions that broadcast"
    for change, error, message in (
        ({"X": with_value(X, (0, 1), torch.nan)}, KIND, "X: expected finite numbers"),
        ({"X": X.float(), "Y": Y.float()}, KIND, "X: expected torch.float64"),
        ({"Y": with_value(Y, (0, 0), torch.inf)}, KIND, "Y: expected finite outcomes"),
        ({"Y": Y.float()}, KIND, "Y: expected torch.float64.*got torch.float32"),
        ({"Y": Y.long()}, KIND, "Y: expected torch.float64.*got torch.int64"),
        ({"Y": Y.numpy()}, KIND, "Y: expected a torch.Tensor"),
        ({"Y": Y[1:]}, SHAPE, rows + r"\(11, 1\)"),
        ({"Y": Y[:1]}, SHAPE, rows + r"\(1, 1\)"),
        ({"Y": Y[:, 0]}, SHAPE, rows + r"\(12,\)"),
        ({"Y": Y.expand(N, 2)}, SHAPE, rows + r"\(12, 2\)"),
        ({"X": X.expand(2, N, 3), "Y": Y.expand(3, N, 1)}, SHAPE, batches),
        ({"noise": -ONES}, KIND, "noise: expected a finite variance"),
        ({"noise": ONES.numpy()}, KIND, "noise: expected a torch.Tensor, got numpy"),
        ({"noise": 0.1}, KIND, "noise: expected a torch.Tensor, got builtins.float"),
        ({"noise": ONES.float()}, KIND, "noise: expected torch.float64"),
        ({"noise": ONES.expand(3, N, 1)}, SHAPE, "noise: expected .* shape of Y"),
    ):
        with pytest.raises(error, match=f"^{message}") as caught:
            model.condition_on_observations(**{"X": X, "Y": Y, **change})
        assert isinstance(caught.value, ValueError)


def test_new_data_of_several_models_are_tensors() -> None:
    pair = torch.cat([Y, Y], dim=-1)
    for model, outcomes in ((decomposed(X, Y), pair), (sampled(X, Y), Y)):
        model.posterior(X)
        for name, value in (("Y", outcomes.numpy()), ("noise", 0.1)):
            data = {"X": X, "Y": outcomes, name: value}
            with pytest.raises(ValueError, match=f"^{name}: expected a torch.Tensor"):
                model.condition_on_observations(**data)


@models
@pytest.mark.parametrize("outputs", [1, 2])
def test_batch_dimensions_of_new_data_broadcast(make: Maker, outputs: int) -> None:
    """As documented by BoTorch, whichever of X and Y has them."""
    model = make(X, Y.expand(N, outputs))
    model.posterior(X)
    new_X, new_Y = 0.9 * X[:4], Y[:4].expand(4, outputs)
    expected = model.condition_on_observations(new_X, new_Y).posterior(X).mean
    for batch_X, batch_Y in ((0, 5), (5, 0), (1, 5), (5, 1), (5, 5)):
        x = new_X.expand(batch_X, 4, 3) if batch_X else new_X
        y = new_Y.expand(batch_Y, 4, outputs) if batch_Y else new_Y
        found = model.condition_on_observations(x, y).posterior(X).mean
        assert found.shape == (5, N, outputs)
        torch.testing.assert_close(found, expected.expand_as(found))


@models
def test_new_noise_broadcasts(make: Maker) -> None:
    model = make(X, Y, train_Yvar=0.1 * ONES)
    model.posterior(X)
    new_X, new_Y, noise = 0.9 * X[:4], Y[:4], 0.2 * ONES[:4]
    one = model.condition_on_observations(new_X, new_Y, noise=noise)
    for rows in (noise, noise[:1], noise.expand(5, 4, 1)):
        many = new_Y.expand(5, 4, 1)
        batch = model.condition_on_observations(new_X, many, noise=rows)
        found = batch.posterior(X).mean
        torch.testing.assert_close(found, one.posterior(X).mean.expand_as(found))


@pytest.mark.parametrize("make", PREDICTORS.values(), ids=PREDICTORS)
def test_a_model_that_was_moved_to_another_dtype(make: Maker) -> None:
    model = make(X, Y).to(torch.float32)
    assert model.posterior(X.float()).mean.isfinite().all()
    with pytest.raises(ValueError, match=r"^X: expected torch.float32.*torch.float64"):
        model.posterior(X)


@pytest.mark.parametrize("make", [*MAKERS.values(), TreedGP.as_published])
def test_no_points(make: Maker) -> None:
    assert make(X, Y).posterior(X[:0]).mean.shape == (0, 1)


def test_derivatives_look_at_points_and_column() -> None:
    model = MAKERS["monotone"](X, Y)
    for method in (model.derivative_posterior, model.probability_monotone):
        refuses_bad_points(partial(method, column=1))
        for column in (0.5, "a", True, 3, -1):
            with pytest.raises(ValueError, match="^column: expected columns from 0"):
                method(X, column)


def test_the_path_posterior_checks_too() -> None:
    refuses_bad_points(MAKERS["tree"](X, Y).path_posterior)


PARTS = "likelihood", "covar_module", "mean_module", "outcome_transform"


@models
@pytest.mark.parametrize("name", [*PARTS, "input_transform"])
def test_parts_of_another_kind(make: Maker, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected "):
        make(X, Y, **{name: "x"})


def test_components_that_differ() -> None:
    def gp(X: Tensor, Y: Tensor, **kwargs: Any) -> SingleTaskGP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # single precision
            return SingleTaskGP(X, Y, **kwargs)

    narrow = gp(X[:, :2], Y)
    scaled = gp(X[:, :2], Y, input_transform=Normalize(2))
    batches = [gp(X.expand(b, N, 3), Y.expand(b, N, 1)) for b in (2, 3)]
    for parts, message in (
        ((gp(X, Y), narrow), r"same columns of train_X.*got \[3, 2\]"),
        ((gp(X, Y, input_transform=Normalize(3)), scaled), r"same columns.*\[3, 2\]"),
        ((gp(X, Y), gp(X.float(), Y.float())), "same dtypes of train_X"),
        (batches, r"batch shapes broadcast, got \[\(2,\), \(3,\)\]"),
    ):
        with pytest.raises(ValueError, match=f"^models: expected .*{message}"):
            DecomposedGP(*parts)
    features = AppendFeatures(torch.tensor([[0.25]]))
    wide = gp(torch.cat([X, X[:, :1]], -1), Y, input_transform=features)
    assert DecomposedGP(gp(X, Y), wide).posterior(X).mean.isfinite().all()


def test_values_of_a_category_that_data_have() -> None:
    message = r"got \[0.0, 5.0\], and train_X has \[1.0\]"
    with pytest.raises(ValueError, match=f"^categorical_features: .*X, {message}"):
        TreeStructuredGP(X, Y, {}, categorical_features={0: [0, 5]})
    # what was not seen yet may be declared
    assert TreeStructuredGP(X, Y, {}, categorical_features={0: [0, 1, 5]})


@models
def test_infinite_outcomes_are_a_matter_of_the_transform(make: Maker) -> None:
    """``ClipTail`` takes them for failures; what is still infinite then is refused."""
    outcomes = with_value(Y, (4, 0), -torch.inf)
    clipped = ChainedOutcomeTransform(clip=ClipTail(), standardize=Standardize(m=1))
    model = make(X, outcomes, outcome_transform=clipped)
    assert model.posterior(X).mean.isfinite().all()
    for transform in (Standardize(m=1), None):
        with pytest.raises(ValueError, match="^train_Y: expected .*ClipTail"):
            make(X, outcomes, outcome_transform=transform)


@pytest.mark.parametrize("make", [m for n, m in MAKERS.items() if n != "ablr"])
def test_known_noise_where_noise_was_inferred(make: Maker) -> None:
    """BoTorch's own models leave it out without a word."""
    model = make(X, Y)
    model.posterior(X)
    with pytest.raises(ValueError, match="^noise: expected None"):
        model.condition_on_observations(X[:2], Y[:2], noise=torch.ones(2, 1))
    known = make(X, Y, train_Yvar=0.1 * ONES)
    known.posterior(X)
    known.condition_on_observations(X[:2], Y[:2], noise=torch.ones(2, 1))


def test_batches_of_a_transform_are_no_outputs() -> None:
    X, Y = torch.rand(2, 9, 2), torch.rand(2, 9, 2)
    transform = Normalize(2, batch_shape=torch.Size([2]))
    message = "input_transform: .*without a batch_shape"
    for make, *others in ((TreedGP,), (TreeStructuredGP, {}), (MonotoneGP, {0: 1})):
        make(X, Y[..., :1], *others, input_transform=transform)
        with pytest.raises(ValueError, match=message):
            make(X, Y, *others, input_transform=transform)
    prior = LogNormalPrior(torch.zeros(2), torch.ones(2))  # one for each column
    warp = Warp(2, [0, 1], concentration1_prior=prior)
    TreeStructuredGP(X[0], Y[0], {}, input_transform=warp)
