"""Old studies: the prior mean that they make, and the model of it."""

import copy
import pickle
from typing import Any

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood
from leaf_models import point_moments
from rehearsed_device import RehearsedDevice
from torch import Tensor

from botorch_structured.models import (
    ConditionalGP,
    OldStudiesMean,
    TransferGP,
    TreeStructuredGP,
)
from botorch_structured.models.tree import transfer_gp
from botorch_structured.models.tree.old_studies import normal_scores
from botorch_structured.spaces import Between, Equals, ParameterTree, SearchSpace
from botorch_structured.suggest import leave_one_out_weights

# a decision between "a" (a logarithm, an integer) and "b"; a category
SPACE = SearchSpace(
    ["learner", "rate", "layers", "width", "kind"],
    torch.tensor([[0.0, -3.0, 1.0, 0.0, 0.0], [1.0, 3.0, 40.0, 1.0, 2.0]]).double(),
    ParameterTree(5, {0: {0.0: [1, 2], 1.0: [3]}}),
    integer_features=[2],
    categorical_features={4: [0.0, 1.0, 2.0]},
    choices={0: ["a", "b"]},
    log_features=[1, 2],
)


def outcome(X: Tensor, shift: float = 0.0) -> Tensor:
    """Best at learner "a", rate 1 + shift, 8 layers, kind 1."""
    a = -((X[:, 1] - 1.0 - shift) / 2.0).square() - (X[:, 2] / 8.0).log().square()
    b = -1.0 - (X[:, 3] - 0.3).square()
    return torch.where(X[:, 0] == 0.0, a, b) - 0.5 * (X[:, 4] != 1.0)


def make_studies(count: int, n: int = 40, scale: float = 1.0) -> list[Any]:
    g = torch.Generator().manual_seed(3)
    shifts = 0.3 * torch.randn(count, generator=g, dtype=torch.float64)
    out = []
    for t in range(count):
        X = SPACE.sample(n, seed=t)
        out.append((X, scale**t * (outcome(X, float(shifts[t])) + 3 * t).unsqueeze(-1)))
    return out


def points(n: int, seed: int = 100) -> tuple[Tensor, Tensor]:
    X = SPACE.sample(n, seed=seed)
    return X, outcome(X).unsqueeze(-1)


def transformed(X: Tensor) -> Tensor:
    transform = SPACE.input_transform()
    assert transform is not None
    return transform(X)


MODELS = [TreeStructuredGP, ConditionalGP]


@pytest.fixture(scope="module")
def learnt() -> OldStudiesMean:
    return OldStudiesMean.from_studies(make_studies(6), SPACE)


@pytest.fixture
def mean(learnt: OldStudiesMean) -> OldStudiesMean:
    return copy.deepcopy(learnt)


def correlation(mean: OldStudiesMean) -> float:
    X, Y = points(300)
    pair = torch.stack([mean.basis(transformed(X)), normal_scores(Y.squeeze(-1))])
    return float(pair.detach().corrcoef()[0, 1])


def test_scores_depend_on_ranks_only() -> None:
    Y = torch.tensor([3.0, -1e9, 7.0, 3.0])
    scores = normal_scores(Y)
    assert scores.dtype == torch.float64
    torch.testing.assert_close(scores, normal_scores(Y.sign() * Y.abs().log()))
    assert scores[0] == scores[3] and scores[1] < scores[0] < scores[2]
    assert normal_scores(torch.ones(5)).abs().max() == 0.0


def test_it_describes_a_new_study(mean: OldStudiesMean) -> None:
    assert correlation(mean) > 0.9


def test_few_inducing_points_do(mean: OldStudiesMean) -> None:
    few = OldStudiesMean.from_studies(make_studies(6), SPACE, max_points=60)
    assert few.points.shape == (60, 5) and len(mean.points) > 200
    assert correlation(few) > 0.85


def test_a_failure_is_the_worst_outcome(mean: OldStudiesMean) -> None:
    studies = make_studies(6)
    for _, Y in studies[:2]:
        Y[Y.argmin()] = -torch.inf
    other = OldStudiesMean.from_studies(studies, SPACE)
    X = transformed(points(20)[0])
    torch.testing.assert_close(other.basis(X), mean.basis(X))


@pytest.mark.parametrize("n", [2, 300])
def test_one_study(n: int) -> None:
    one = OldStudiesMean.from_studies(make_studies(1, n=n), SPACE)
    assert one(transformed(points(5)[0])).isfinite().all()
    if n > 2:
        assert correlation(one) > 0.9


def test_the_dense_definition() -> None:
    """With all points inducing, h is the posterior mean of the module's docstring."""
    studies = make_studies(3, n=15)
    mean = OldStudiesMean.from_studies(studies, SPACE)
    X = torch.cat([transformed(X) for X, _ in studies])
    y = torch.cat([normal_scores(Y.squeeze(-1)) for _, Y in studies])
    study = torch.arange(3).repeat_interleave(15)
    same = (study[:, None] == study).double()
    read, inverse = mean.columns.read, mean.inverse_lengthscale
    k = mean.columns.covariance(read(X), read(X), inverse)
    common, own, noise = mean.variances
    K = (common + own * same) * k + 0.25 * same + noise * torch.eye(45)
    test = transformed(points(7)[0])
    cross = mean.columns.covariance(read(test), read(X), inverse)
    expected = common * cross @ torch.linalg.solve(K, y)
    torch.testing.assert_close(mean.basis(test), expected, rtol=1e-4, atol=1e-4)


def test_starts(mean: OldStudiesMean) -> None:
    X = mean.starts(4)
    assert X.shape == (4, 5) and SPACE.feasible(X).all()
    assert len(X.unique(dim=0)) == 4
    assert torch.equal(mean.starts(), mean.starts(2))  # one for each path
    random = outcome(SPACE.sample(200, seed=9))
    assert outcome(X[:1]) > random.quantile(0.95)


def test_starts_suit_different_studies() -> None:
    """Half of the studies are best on the other branch: so is one of two starts."""
    studies = make_studies(6)
    for t in (1, 3, 5):
        X, Y = studies[t]
        studies[t] = (X, Y + 5.0 * (X[:, :1] == 1.0))
    starts = OldStudiesMean.from_studies(studies, SPACE).starts(2)
    assert sorted(starts[:, 0].tolist()) == [0.0, 1.0]


def test_shapes_and_dtypes(mean: OldStudiesMean) -> None:
    X = transformed(points(12)[0])
    batch = mean(X.view(3, 2, 2, 5))
    assert batch.shape == (3, 2, 2)
    torch.testing.assert_close(batch.flatten(), mean(X))
    single = copy.deepcopy(mean).float()(X.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, mean(X).float(), rtol=1e-3, atol=1e-3)


def test_gradient(mean: OldStudiesMean) -> None:
    """By numeric columns; at a point of an old study too, and none in inactive ones."""
    X = transformed(torch.cat([points(4)[0], make_studies(1)[0][0][:4]]))
    torch.autograd.gradcheck(
        lambda numbers: mean(torch.cat([X[:, :1], numbers, X[:, 4:]], -1)),
        X[:, 1:4].clone().requires_grad_(True),
        atol=1e-5,
    )
    active = SPACE.tree.active_mask(X)
    assert torch.equal(mean(torch.where(active, X, 0.123 + X)), mean(X))


def test_copies(mean: OldStudiesMean, learnt: OldStudiesMean) -> None:
    with torch.no_grad():
        mean.raw_slope.fill_(0.3)
        mean.raw_constant.fill_(-1.0)
    X = transformed(points(6)[0])
    for other in (copy.deepcopy(mean), pickle.loads(pickle.dumps(mean))):
        torch.testing.assert_close(other(X), mean(X))
        assert torch.equal(other.starts(3), mean.starts(3))
    other = copy.deepcopy(learnt)
    for value in other.state_dict().values():
        value.zero_()
    other.load_state_dict(mean.state_dict())
    torch.testing.assert_close(other(X), mean(X))
    assert torch.equal(other.starts(3), mean.starts(3))
    assert other.variances == mean.variances
    starts = copy.deepcopy(mean).float().starts(3)
    torch.testing.assert_close(starts, mean.starts(3), rtol=1e-6, atol=1e-6)
    assert SPACE.feasible(starts).all()


def fitted(model: Any, **kwargs: Any) -> Any:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **kwargs)
    return model


@pytest.mark.parametrize("make", MODELS)
def test_few_points_predict_better(make: Any, mean: OldStudiesMean) -> None:
    """Rank correlation of predictions and outcomes, after eight points."""
    X, Y = points(8, seed=2)
    test_X, test_Y = points(200, seed=7)
    found = []
    for module in (None, mean):
        model = fitted(make(X, Y, SPACE, mean_module=module))
        pair = [model.posterior(test_X).mean, test_Y]
        scores = torch.stack([normal_scores(v.squeeze(-1)) for v in pair])
        found.append(float(scores.corrcoef()[0, 1]))
    assert found[1] > max(0.85, found[0] + 0.2)
    assert mean.raw_slope > 0.5


def test_useless_studies_lose_their_influence(mean: OldStudiesMean) -> None:
    X, _ = points(60)
    Y = (3.0 * X[:, 3:4] + X[:, 4:] + (6.0 * X[:, 1:2]).sin()).double()
    fitted(TreeStructuredGP(X, Y, SPACE, mean_module=mean))
    assert mean.raw_slope.abs() < 0.35


def test_several_outputs(learnt: OldStudiesMean) -> None:
    """Each with a level and a slope of its own, as that of a model of its own."""
    studies = make_studies(6)
    mean = OldStudiesMean.from_studies(studies, SPACE, batch_shape=torch.Size([2]))
    X, Y = points(15)
    both = torch.cat([Y, 2.0 * X[:, 3:4] + X[:, 4:]], dim=-1)
    # one kernel and one prior of the noise are chosen for all outputs
    noise, kernel = torch.full_like(both, 1e-3), {"leaf_kernel": "matern"}
    model = TreeStructuredGP(X, both, SPACE, noise, mean_module=mean, **kernel)
    fitted(model)
    single = copy.deepcopy(learnt)
    alone = TreeStructuredGP(X, Y, SPACE, noise[:, :1], mean_module=single, **kernel)
    fitted(alone)
    test_X = points(5, seed=4)[0]
    expected = alone.posterior(test_X).mean.squeeze(-1)
    found = model.posterior(test_X).mean[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert mean.raw_slope[0] > 2.0 * mean.raw_slope[1].abs()
    of_first = model.subset_output([0]).posterior(test_X).mean.squeeze(-1)
    torch.testing.assert_close(of_first, found)


def test_numeric_decisions_and_whole_ones() -> None:
    """Decisions are not scaled by the input transform; h orders their intervals."""
    conditions = {1: Between(0, 20.0, 40.0), 3: Equals(2, 3.0)}
    bounds = torch.tensor([[0.0, 0.0, 1.0, 0.0], [40.0, 1.0, 3.0, 1.0]]).double()
    tree = ParameterTree(4, conditions=conditions)
    space = SearchSpace(["a", "b", "c", "d"], bounds, tree, integer_features=[2])
    X = space.sample(60, seed=0)
    mean = OldStudiesMean.from_studies([(X, X[:, :1] - X[:, 2:3])], space)
    h = mean.basis(X)
    pair = torch.stack([h, normal_scores(X[:, 0] - X[:, 2])]).detach()
    assert pair.corrcoef()[0, 1] > 0.95
    model = fitted(TreeStructuredGP(X[:9], X[:9, 1:2], space, mean_module=mean))
    assert model.posterior(X).mean.isfinite().all()


@pytest.mark.parametrize(
    ("studies", "message"),
    [
        ([], "studies: expected a list of one or more pairs"),
        (torch.zeros(3), "studies: expected a list of one or more pairs"),
        ([torch.zeros(3, 5)], "studies: expected pairs"),
        ([(SPACE.sample(3), torch.zeros(3))], "study 0: "),
        ([(SPACE.sample(3), torch.zeros(3, 2).double())], "1`` outcomes"),
        ([(SPACE.sample(1), torch.zeros(1, 1).double())], "two rows or more"),
        ([(SPACE.sample(3)[:, 1:], torch.zeros(3, 1).double())], "``n x 5`` points"),
        ([(SPACE.sample(3) + 50.0, torch.zeros(3, 1).double())], "of the space"),
        ([(SPACE.sample(2), torch.tensor([[1.0], [torch.nan]]).double())], "nan"),
    ],
)
def test_bad_studies(studies: Any, message: str) -> None:
    with pytest.raises(ValueError, match="studies: ") as error:
        OldStudiesMean.from_studies(studies, SPACE)
    assert message in str(error.value)


def test_other_bad_arguments(mean: OldStudiesMean) -> None:
    with pytest.raises(ValueError, match="space: expected a SearchSpace"):
        OldStudiesMean.from_studies(make_studies(1), SPACE.tree)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_points: "):
        OldStudiesMean.from_studies(make_studies(1), SPACE, max_points=0)
    with pytest.raises(ValueError, match="n: expected at most"):
        mean.starts(1000)


def test_rows_of_a_fit_do_not_depend_on_the_global_generator() -> None:
    """Of more than 500 rows some are chosen."""
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        mean = OldStudiesMean.from_studies(make_studies(13), SPACE, max_points=10)
        states.append(mean.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# -- TransferGP: its formulas, no fit, and what optimisers need ----------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_moments_are_those_of_the_definition(
    learnt: OldStudiesMean, n: int, known: bool
) -> None:
    X, Y = points(n)
    Yvar = torch.linspace(0.01, 0.1, n).double().unsqueeze(-1) if known else None
    model = TransferGP(X, Y, learnt, Yvar)
    test = SPACE.sample(20, seed=7)
    x, z, y = transformed(X), transformed(test), model.train_targets
    a, noise = model.covar_module.scale, model.likelihood.noise

    def covariance(p: Tensor, q: Tensor) -> Tensor:
        return a**2 * (learnt.covariance(p, q) + transfer_gp._LEVEL_VARIANCE)

    K = covariance(x, x) + noise * torch.eye(n)
    weights = torch.linalg.solve(K, covariance(x, z))
    mean = a * learnt.basis(z) + weights.mT @ (y - a * learnt.basis(x))
    variance = covariance(z, z).diagonal() - (covariance(x, z) * weights).sum(0)
    scale, shift = model.outcome_transform.stdvs, model.outcome_transform.means
    found = point_moments(model, test)
    assert found is not None
    torch.testing.assert_close(found.mean, (mean * scale + shift).flatten())
    torch.testing.assert_close(
        found.variance, (variance * scale**2).flatten(), rtol=1e-6, atol=1e-9
    )
    posterior = model.posterior(test.view(4, 5, 1, -1))
    assert posterior.rsample(torch.Size([3])).shape == (3, 4, 5, 1, 1)
    torch.testing.assert_close(posterior.mean.flatten(), found.mean)
    # gradients are those of the joint posterior
    found, inputs = point_moments(model, test, gradient=True), test.requires_grad_()
    joint = model.posterior(inputs)
    for name in ("mean", "variance"):
        total = getattr(joint, name).sum()
        (slope,) = torch.autograd.grad(total, inputs, retain_graph=True)
        closed = getattr(found, f"{name}_gradient")
        torch.testing.assert_close(closed, slope, rtol=1e-6, atol=1e-7)


def test_new_data_may_have_gradients(learnt: OldStudiesMean) -> None:
    model, test = TransferGP(*points(9), learnt), SPACE.sample(5, seed=7)
    X, Y = SPACE.sample(2, seed=8).requires_grad_(), torch.zeros(2, 1).double()
    model.posterior(test)
    new = model.condition_on_observations(X, Y)
    with torch.no_grad():  # keeps nothing without gradients
        new.posterior(test.unsqueeze(-2))
    for _ in range(2):
        mean = new.posterior(test.unsqueeze(-2)).mean
        (slope,) = torch.autograd.grad(mean.sum(), X, retain_graph=True)
        assert slope.abs().sum() > 0.0
    assert point_moments(new, test) is None  # they know no gradients of data


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_odds_are_those_of_the_definition(learnt: OldStudiesMean, n: int) -> None:
    model = TransferGP(*points(n), learnt)
    y, x = model.train_targets, transformed(points(n)[0])
    t = torch.logspace(-4, 4, 20_000, dtype=torch.float64)
    read = learnt.columns.read(x)
    k = learnt.columns.covariance(read, read, learnt.inverse_lengthscale)
    common, own, noise = learnt.variances
    pairs = (learnt.covariance(x, x), learnt.basis(x)), ((common + own) * k, 0.0 * y)
    found = []
    for K, h in pairs:
        K = K + transfer_gp._LEVEL_VARIANCE + noise * torch.eye(n)
        residual = t[:, None] * y - h
        square = (residual * torch.linalg.solve(K, residual.mT).mT).sum(-1)
        density = (n + 1) * t.log() - 0.5 * (square + t**2) - 0.5 * K.logdet()
        found.append(torch.trapezoid(density.exp(), t).log())
    # the integrals are Laplace's: 1 / (12 n) each, most of which cancels
    assert float(found[0] - found[1]) == pytest.approx(model.log_odds(), abs=0.02)


def test_known_noise_explains_outcomes(learnt: OldStudiesMean) -> None:
    """a maximises the evidence of ``y ~ N(a h, a^2 K + noise)`` and of its prior."""
    X, Y = points(9)
    test, scales = SPACE.sample(20, seed=7), []
    for size in (1e-4, 0.01, 1.0, 1e4):
        Yvar = size * torch.linspace(0.1, 1.0, 9).double().unsqueeze(-1)
        model = TransferGP(X, Y, learnt, Yvar)
        x, y, a = transformed(X), model.train_targets, model.covar_module.scale
        scale = model.outcome_transform.stdvs.squeeze(-1)
        least = 0.03 * learnt.variances[2]
        K = learnt.covariance(x, x) + transfer_gp._LEVEL_VARIANCE + least * torch.eye(9)
        noise = (Yvar / scale**2).flatten()

        tried = [
            torch.distributions.MultivariateNormal(
                t * learnt.basis(x), t**2 * K + noise.diag()
            ).log_prob(y)
            - 0.5 / t**2
            - t.log()
            for t in (0.98 * a, a, 1.02 * a)
        ]
        assert tried[1] > max(tried[0], tried[2])
        found_noise, expected = model.likelihood.noise, noise + least * a**2
        torch.testing.assert_close(found_noise, expected, atol=1e-6, rtol=0.0)
        scales.append(float(a))
        found = point_moments(model, test)
        assert found is not None and (found.variance > 0.0).all()
    without = TransferGP(X, Y, learnt).covar_module.scale
    assert scales[0] == pytest.approx(float(without), rel=0.01)
    # nothing but the prior is left, whose mode is 1
    assert scales[-1] == pytest.approx(1.0, abs=0.1)


def test_old_studies_that_mislead_lose_their_weight(learnt: OldStudiesMean) -> None:
    wrong = OldStudiesMean.from_studies([(X, -Y) for X, Y in make_studies(6)], SPACE)
    for n in (3, 4, 5, 12):
        right, misled = (TransferGP(*points(n), mean) for mean in (learnt, wrong))
        assert n == 12 or right.log_odds() > 0.0 > misled.log_odds()
    assert leave_one_out_weights([right, misled])[0] > 0.99
    odds = [1.0, 1e30]  # what is known before counts, too
    assert leave_one_out_weights([right, misled], odds)[0] < 0.5


def test_copies_and_fantasies(learnt: OldStudiesMean) -> None:
    X, Y = points(6)
    model, test = TransferGP(X, Y, learnt), SPACE.sample(5, seed=1)
    before = point_moments(model, test)
    again = point_moments(pickle.loads(pickle.dumps(model)), test)
    assert before is not None and again is not None
    torch.testing.assert_close(again.mean, before.mean)
    other = TransferGP(X, Y * 2.0 + 1.0, learnt)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.covar_module.scale, model.covar_module.scale)
    inner = model.transform_inputs(test)
    with torch.no_grad():
        means = model(inner.unsqueeze(-2)).mean.flatten()
    after = point_moments(model.get_fantasy_model(inner, means), test)
    assert after is not None
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-4, atol=1e-4)
    assert (after.variance < before.variance).all()


def test_where_moments_have_no_closed_form(learnt: OldStudiesMean) -> None:
    X, Y = points(6)
    assert point_moments(TransferGP(X, Y, learnt), X.float()) is None
    sampler = SobolQMCNormalSampler(torch.Size([3]))
    fantasies = TransferGP(X, Y, learnt).fantasize(SPACE.sample(2, seed=1), sampler)
    assert point_moments(fantasies, X) is None
    assert fantasies.posterior(X).mean.shape == (3, 6, 1)
    with RehearsedDevice():
        model = TransferGP(X.to("meta"), Y.to("meta"), learnt)
        assert point_moments(model, X.to("meta")) is None
        mean = model.posterior(X.to("meta")).mean.cpu()
    torch.testing.assert_close(mean, TransferGP(X, Y, learnt).posterior(X).mean)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("old", None, "old: expected an OldStudiesMean, got NoneType"),
        ("train_Y", torch.zeros(3, 2), "train_X, train_Y: expected n x d"),
        ("train_X", torch.zeros(2, 3, 5), "train_X, train_Y: expected"),
        ("train_Y", torch.full((3, 1), torch.nan), "train_Y: expected finite outcomes"),
        ("train_Yvar", torch.full((3, 1), torch.inf), "train_Yvar: .*, got inf in"),
        ("train_Yvar", torch.ones(3), "train_Yvar: expected the shape of train_Y"),
    ],
)
def test_errors(learnt: OldStudiesMean, name: str, value: Any, message: str) -> None:
    X, Y = points(3)
    with pytest.raises(ValueError, match=message):
        value = value if value is None else value.double()
        TransferGP(**{"train_X": X, "train_Y": Y, "old": learnt, name: value})
