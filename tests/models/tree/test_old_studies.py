"""A prior mean from old studies: what it learns, and that models can use it."""

import copy
import pickle
from typing import Any

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import LogExpectedImprovement
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from leaf_models import point_moments
from old_problems import SPACE, make_studies, outcome, points, transformed

from botorch_structured.models import ConditionalGP, OldStudiesMean, TreeStructuredGP
from botorch_structured.models.tree.old_studies import normal_scores
from botorch_structured.optim import optimize_acqf_paths
from botorch_structured.spaces import Between, Equals, ParameterTree, SearchSpace

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


def test_inactive_columns_do_not_count(mean: OldStudiesMean) -> None:
    X = transformed(points(30)[0])
    other = torch.where(SPACE.tree.active_mask(X), X, 0.123 + X)
    assert not torch.equal(other, X)
    torch.testing.assert_close(mean(other), mean(X), rtol=0, atol=0)


def test_shapes_and_dtypes(mean: OldStudiesMean) -> None:
    X = transformed(points(12)[0])
    batch = mean(X.view(3, 2, 2, 5))
    assert batch.shape == (3, 2, 2)
    torch.testing.assert_close(batch.flatten(), mean(X))
    single = copy.deepcopy(mean).float()(X.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, mean(X).float(), rtol=1e-3, atol=1e-3)


def test_gradient(mean: OldStudiesMean) -> None:
    """By numeric columns; at a point of an old study too."""
    X = transformed(torch.cat([points(4)[0], make_studies(1)[0][0][:4]]))
    X.requires_grad_(True)
    torch.autograd.gradcheck(
        lambda numbers: mean(torch.cat([X[:, :1], numbers, X[:, 4:]], -1)),
        X.detach()[:, 1:4].clone().requires_grad_(True),
        atol=1e-5,
    )
    (gradient,) = torch.autograd.grad(mean(X).sum(), X)
    assert gradient.isfinite().all()
    assert (gradient[~SPACE.tree.active_mask(X.detach())] == 0.0).all()


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


def test_moments_with_gradient(mean: OldStudiesMean) -> None:
    """The short way that optimisers take is the derivative of the posterior."""
    model = fitted(TreeStructuredGP(*points(20), SPACE, mean_module=mean))
    X = points(6, seed=3)[0]
    found = point_moments(model, X, gradient=True)
    assert found is not None and found.mean_gradient is not None
    point = X.clone().requires_grad_(True)
    posterior = model.posterior(point.unsqueeze(-2))
    torch.testing.assert_close(found.mean, posterior.mean.flatten())
    (slope,) = torch.autograd.grad(posterior.mean.sum(), point)
    torch.testing.assert_close(found.mean_gradient, slope, rtol=1e-6, atol=1e-8)


def test_a_search(mean: OldStudiesMean) -> None:
    X = mean.starts(2)
    Y = outcome(X).unsqueeze(-1)
    for _ in range(4):
        model = fitted(TreeStructuredGP(X, Y, SPACE, mean_module=mean))
        acquisition = LogExpectedImprovement(model, best_f=Y.max())
        x, _ = optimize_acqf_paths(acquisition, space=SPACE, X_avoid=X)
        assert SPACE.feasible(x).all()
        X, Y = torch.cat([X, x]), torch.cat([Y, outcome(x).unsqueeze(-1)])
    assert Y.max() > -0.1  # random points: -0.3 in the mean of six


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


def test_start_from_and_state_dict(mean: OldStudiesMean) -> None:
    X, Y = points(12)
    before = fitted(TreeStructuredGP(X[:10], Y[:10], SPACE, mean_module=mean))
    after = TreeStructuredGP(X, Y, SPACE, mean_module=copy.deepcopy(mean))
    fitted(after, start_from=before)
    other = TreeStructuredGP(X, Y, SPACE, mean_module=copy.deepcopy(mean))
    other.load_state_dict(after.state_dict())
    other.eval()
    torch.testing.assert_close(other.posterior(X).mean, after.posterior(X).mean)


def test_in_a_plain_gp(mean: OldStudiesMean) -> None:
    """A GPyTorch mean like any other."""
    X, Y = points(10)
    transform = SPACE.input_transform()
    model = SingleTaskGP(X, Y, mean_module=mean, input_transform=transform)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 10}})
    assert model.posterior(X).mean.isfinite().all()


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
