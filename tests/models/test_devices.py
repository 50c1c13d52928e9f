"""Each model on a rehearsed GPU: the same values, and a fixed number of waits.

A model is made of data on the device, or moved there; its evidence with gradient, its
posterior, LogEI with gradient, and a Monte Carlo acquisition function are those of the
CPU. The number of places where the host waits for the device is in ``CASES``. It does
not change with the number of leaves, tasks or virtual points, nor with that of
candidates.
"""

import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.closures.model_closures import get_loss_closure_with_grads
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from rehearsed_device import RehearsedDevice, Wait, summary
from torch import Tensor

from botorch_structured.fit import fit_slice_sampling
from botorch_structured.models import (
    ConditionalGP,
    DecomposedGP,
    MonotoneGP,
    MultiTaskABLR,
    SampledGP,
    TreedGP,
    TreeStructuredGP,
    map_fit,
)
from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.models.map_fit import DeviceObjective
from botorch_structured.models.tree import leaf_model

BEST = 0.3


pytestmark = pytest.mark.usefixtures("double")


def uniform(n: int, d: int, seed: int) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed))


def leaf_points(leaves: int, n: int, seed: int) -> Tensor:
    """A decision, a column for each of its values, and a shared column."""
    X = uniform(n, leaves + 2, seed)
    X[:, 0] = torch.arange(n) % leaves
    return X


def uneven_points(leaves: int, n: int, seed: int) -> Tensor:
    """The same with leaves of four sizes, each size once in four leaves."""
    X = leaf_points(leaves, n, seed)
    shares = torch.tensor([1, 3, 6, 10]).repeat(leaves // 4)
    leaf = torch.arange(leaves).repeat_interleave(shares)
    X[:, 0] = leaf[torch.arange(n) % len(leaf)]
    return X


def task_points(tasks: int, n: int, seed: int) -> Tensor:
    X = uniform(n, 3, seed)
    X[:, 2] = torch.arange(n) % tasks
    return X


def plane_points(size: int, n: int, seed: int) -> Tensor:
    return uniform(n, 2, seed)


def dependencies(leaves: int) -> dict[int, dict[float, list[int]]]:
    return {0: {float(v): [v + 1] for v in range(leaves)}}


def wave(X: Tensor) -> Tensor:
    return (5.0 * X.sum(-1, keepdim=True)).sin()


def steps(X: Tensor, leaves: int) -> Tensor:
    return 3.0 * (leaves * X[:, :1]).floor() + 0.3 * (30.0 * X[:, 1:]).sin()


def single_task_gp(X: Tensor, size: int) -> SingleTaskGP:
    return SingleTaskGP(X, wave(X))


def on_leaves(kind: Callable[..., Any]) -> Callable[[Tensor, int], Any]:
    return lambda X, leaves: kind(X, wave(X[:, 1:]), dependencies(leaves))


tree_gp, conditional_gp = on_leaves(TreeStructuredGP), on_leaves(ConditionalGP)
published_tree_gp = on_leaves(TreeStructuredGP.as_published)


def split(kind: Callable[..., Any]) -> Callable[[Tensor, int], Any]:
    return lambda X, leaves: kind(X, steps(X, leaves))


treed_gp, published_treed = split(TreedGP), split(TreedGP.as_published)


def ablr(X: Tensor, tasks: int) -> MultiTaskABLR:
    torch.manual_seed(0)
    network = TanhNetwork(2, widths=(8, 8)).to(X)
    known = {"all_tasks": list(range(tasks)), "output_tasks": [0]}
    return MultiTaskABLR(X, wave(X), 2, feature_map=network, **known)


def monotone_gp(X: Tensor, size: int, **kwargs: Any) -> MonotoneGP:
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).to(X)
    Y = X[:, :1] + 0.1 * wave(X[:, 1:])
    return MonotoneGP(X, Y, {0: 1}, bounds=box, **kwargs)


def published_monotone_gp(X: Tensor, size: int) -> MonotoneGP:
    axis = torch.linspace(0.0, 1.0, size)
    grid = torch.cartesian_prod(axis, axis[: size // 2 + 1]).to(X)
    return monotone_gp(X, size, virtual_X=grid, signs_in_fit=True)


def decomposed_gp(X: Tensor, size: int) -> DecomposedGP:
    return DecomposedGP(monotone_gp(X, size), SingleTaskGP(X, wave(X)))


def sampled(make: Callable[[Tensor, int], Any]) -> Callable[[Tensor, int], SampledGP]:
    def mixture(X: Tensor, size: int) -> SampledGP:
        models = [make(X, size).eval() for _ in range(3)]
        for s, model in enumerate(models):
            for parameter in model.parameters():
                parameter.data.add_(0.1 * s)
        return SampledGP(models)

    return mixture


# A function of points, given a model, as it is called many times in a search.
Act = Callable[[Any], Callable[[Tensor], list[Tensor]]]


def mll_of(model: Any) -> Any:
    parts = isinstance(model, DecomposedGP)
    kind = SumMarginalLogLikelihood if parts else ExactMarginalLogLikelihood
    return kind(model.likelihood, model)


def evidence(model: Any) -> Callable[[Tensor], list[Tensor]]:
    """The objective of a fit and its gradient, as BoTorch's fit computes them."""
    mll = mll_of(model)
    mll.train()
    free = {name: p for name, p in mll.named_parameters() if p.requires_grad}
    closure = get_loss_closure_with_grads(mll, free)

    def evaluate(X: Tensor) -> list[Tensor]:
        value, gradients = closure()
        return [value.detach(), *(g for g in gradients if g is not None)]

    return evaluate


def posterior(model: Any) -> Callable[[Tensor], list[Tensor]]:
    def evaluate(X: Tensor) -> list[Tensor]:
        found = model.posterior(X.unsqueeze(-2))
        return [found.mean.detach(), found.variance.detach()]

    return evaluate


def joint_posterior(model: Any) -> Callable[[Tensor], list[Tensor]]:
    def evaluate(X: Tensor) -> list[Tensor]:
        found = model.posterior(X)
        return [found.mean.detach(), found.distribution.covariance_matrix.detach()]

    return evaluate


def with_gradient(function: Any, X: Tensor) -> list[Tensor]:
    X = X.clone().requires_grad_()
    value = function(X)
    return [value.detach(), *torch.autograd.grad(value.sum(), X)]


def log_ei(model: Any) -> Callable[[Tensor], list[Tensor]]:
    acquisition = LogExpectedImprovement(model, BEST)
    return lambda X: with_gradient(acquisition, X.unsqueeze(-2))


def q_log_ei(model: Any) -> Callable[[Tensor], list[Tensor]]:
    sampler = SobolQMCNormalSampler(torch.Size([8]), seed=0)
    acquisition = qLogExpectedImprovement(model, BEST, sampler)
    return lambda X: with_gradient(acquisition, X.unflatten(0, (-1, 2)))


ACTS: dict[str, Act] = {
    "evidence": evidence,
    "posterior": posterior,
    "joint": joint_posterior,
    "log_ei": log_ei,
    "q_log_ei": q_log_ei,
}


class Case(NamedTuple):
    """A model, its size (leaves, tasks or virtual points), and how often a host waits.

    ``waits`` are those in one call of each of ``ACTS``; an ensemble has no evidence.
    """

    make: Callable[[Tensor, int], Any]
    points: Callable[[int, int, int], Tensor]
    size: int
    rows: int
    counts: tuple[int | None, ...]

    @property
    def waits(self) -> dict[str, int]:
        pairs = zip(ACTS, self.counts, strict=True)
        return {name: count for name, count in pairs if count is not None}


# At most so many waits in one call of: evidence and gradient, posterior, joint
# posterior, LogEI and gradient, qLogEI and gradient. One in each posterior is the check
# of its points, and most of the others are BoTorch's and GPyTorch's.
CASES = {
    "SingleTaskGP": Case(single_task_gp, plane_points, 2, 20, (7, 4, 3, 4, 6)),
    "TreeStructuredGP": Case(tree_gp, leaf_points, 4, 40, (1, 2, 2, 2, 6)),
    # in three batches of similar size
    "tree, uneven leaves": Case(tree_gp, uneven_points, 4, 40, (1, 2, 2, 2, 6)),
    # parameters for each path: the host says which path is whose
    "tree, published": Case(published_tree_gp, leaf_points, 4, 40, (4, 5, 5, 5, 9)),
    "ConditionalGP": Case(conditional_gp, leaf_points, 4, 40, (1, 2, 2, 2, 6)),
    "TreedGP": Case(treed_gp, plane_points, 2, 40, (1, 2, 2, 2, 6)),
    "treed, published": Case(
        split(TreedGP.as_published), plane_points, 2, 40, (1, 2, 2, 2, 6)
    ),
    "MultiTaskABLR": Case(ablr, task_points, 3, 30, (14, 5, 5, 5, 9)),
    "MonotoneGP": Case(monotone_gp, plane_points, 4, 12, (7, 3, 3, 3, 7)),
    # expectation propagation, on the host, in each evaluation
    "signs in fit": Case(published_monotone_gp, plane_points, 4, 12, (13, 3, 3, 3, 7)),
    "DecomposedGP": Case(decomposed_gp, plane_points, 4, 12, (14, 7, 7, 7, 11)),
    "SampledGP": Case(sampled(single_task_gp), plane_points, 2, 20, (None, 4, 4, 4, 7)),
    "sampled trees": Case(sampled(tree_gp), leaf_points, 4, 20, (None, 2, 2, 2, 6)),
}


def waits_of(name: str, times: int = 1, candidates: int = 6) -> dict[str, list[Wait]]:
    """Of each call after the first one, at new points."""
    case = CASES[name]
    size, rows = case.size * times, case.rows * times
    found = {}
    with RehearsedDevice() as device:
        model = case.make(case.points(size, rows, 0).to("meta"), size)
        for act in case.waits:
            function = ACTS[act](model)
            # on a device there are no chunks of the size of a CPU's cache
            large = 10_000 if "ampled" in name else 4_000
            n = large if act == "posterior" and times > 1 else candidates
            others = case.points(size, n, 2).to("meta")
            function(case.points(size, candidates, 1).to("meta"))  # fills caches
            with device.counting() as found[act]:
                function(others)
    return found


def shown(found: dict[str, list[Wait]]) -> str:
    return "\n".join(f"{name}: {len(w)}\n{summary(w)}" for name, w in found.items())


def numbers(found: dict[str, list[Wait]]) -> dict[str, int]:
    return {act: len(waits) for act, waits in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_waits_are_those_of_the_table_and_do_not_grow(name: str) -> None:
    """Neither with the leaves, tasks or virtual points, nor with the candidates."""
    few, many = waits_of(name), waits_of(name, 2, 24)
    for act, count in numbers(few).items():
        assert count <= CASES[name].waits[act], shown(few)
    assert numbers(many) == numbers(few), f"{shown(few)}\n\n{shown(many)}"


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_cpu(name: str) -> None:
    """Of a model made there, and of one that is moved there."""
    case = CASES[name]
    X, points = (case.points(case.size, n, s) for n, s in ((case.rows, 0), (6, 1)))
    model = case.make(X, case.size)
    with RehearsedDevice():
        made = case.make(X.to("meta"), case.size)
        moved = deepcopy(model).to("meta")
        for act in case.waits:
            expected = ACTS[act](model)(points)
            for other in (made, moved):
                found = [value.cpu() for value in ACTS[act](other)(points.to("meta"))]
                torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "size", "rows", "most"),
    [
        ("TreeStructuredGP", 8, 400, 439),
        ("TreeStructuredGP", 64, 2000, 454),  # leaves of 31 and 32 rows
        ("ConditionalGP", 8, 400, 227),
        ("MultiTaskABLR", 30, 180, 130),  # no more rows than features
        ("MultiTaskABLR", 30, 3000, 131),
    ],
)
def test_operations_of_an_evidence_with_gradient(
    name: str, size: int, rows: int, most: int
) -> None:
    """Each takes a GPU the same time, however few numbers it is on."""
    case = CASES[name]
    with RehearsedDevice() as device:
        model = case.make(case.points(size, rows, 0).to("meta"), size)
        mll = mll_of(model).train()
        for _ in range(2):  # the first one lays out the data
            mll.zero_grad()
            with device.kernels() as started:
                model.compute_custom_loss(mll).backward()
    assert len(started) <= most, "\n".join(started)


# With so many rows nothing else that moves has as many values: not the hyperparameters,
# not the factors of ABLR (which have a size fixed by the features) nor the sites of EP.
ROWS_OF_A_FIT = {"MultiTaskABLR": 400, "signs in fit": 200}


# the uneven and the published ones are fitted by the same code
FITTED = [n for n, case in CASES.items() if "evidence" in case.waits and ", " not in n]


@pytest.mark.parametrize("name", FITTED)
def test_data_are_not_moved_at_each_evaluation(name: str) -> None:
    """A fit may move them; it does so as often in six steps as in two."""
    case = CASES[name]
    rows = ROWS_OF_A_FIT.get(name, case.rows)
    X = case.points(case.size, rows, 0)
    moves = []
    with RehearsedDevice() as device:
        for steps in (2, 6):
            model = case.make(X.to("meta"), case.size)
            with device.counting() as waits:
                options = {"options": {"maxiter": steps}}
                fit_gpytorch_mll(mll_of(model), optimizer_kwargs=options)
            # ``equal`` reads one number, whatever it compares
            large = [w for w in waits if w.numel >= rows and w.operation != "equal"]
            assert len(waits) > len(large)
            moves.append(summary(large))
    assert moves[0] == moves[1]


def test_slice_sampling_moves_data_once() -> None:
    X = plane_points(2, 20, 0)
    moves = []
    with RehearsedDevice() as device:
        for draws in (8, 32):
            model = SingleTaskGP(X.to("meta"), wave(X).to("meta"))
            model.mean_module.requires_grad_(False)  # else fitted by L-BFGS-B
            with device.counting() as waits:
                fit_slice_sampling(
                    model, num_samples=2, warmup=2, thinning=draws, num_chains=1, seed=0
                )
            moves.append([str(w) for w in waits if w.numel >= 20])
    assert moves[0] == moves[1]
    assert 0 < len(moves[0]) < 10


# -- fits by a graph of one evaluation ------------------------------------------------


class Recorder:
    """In the place of a CUDA graph: refuses waits, and counts replays."""

    def __init__(self, device: RehearsedDevice) -> None:
        self.device, self.replays, self.made = device, 0, 0

    def __call__(
        self, function: Callable[[], Tensor]
    ) -> tuple[Callable[[], None], Tensor]:
        with self.device.counting() as waits:
            result = function()
        if waits:
            raise RuntimeError("the host waits.")
        self.made += 1

        def replay() -> None:
            self.replays += 1
            result.copy_(function())

        return replay, result


def test_where_the_host_waits_evaluations_are_plain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RehearsedDevice() as device, caplog.at_level(logging.INFO):
        record = Recorder(device)
        mll = mll_of(ablr(task_points(3, 30, 0).to("meta"), 3)).train()
        objective = DeviceObjective(mll, record)
        values = [objective(objective.read())[0] for _ in range(3)]
    assert values[0] == pytest.approx(values[1], rel=1e-12) and record.made == 0
    assert "CUDA graph for a fit of MultiTaskABLR" in caplog.text
    assert len(caplog.records) == 1


# -- many hyperparameters at once ------------------------------------------------------


def test_one_of_many_objectives_may_need_jitter() -> None:
    """It is evaluated by itself, as is one that has no factor even with jitter."""
    X = leaf_points(2, 20, 0)
    X = torch.cat([X, X])
    with RehearsedDevice() as device:
        mll = mll_of(tree_gp(X.to("meta"), 2)).train()
        noise = mll.likelihood.noise_covar
        noise.raw_noise_constraint.lower_bound.fill_(1e-30)
        objective = DeviceObjective(mll, Recorder(device))
        names = [n for n, p in mll.named_parameters() if p.requires_grad]
        thetas = np.stack([objective.read()] * 3)
        thetas[1, names.index("likelihood.noise_covar.raw_noise")] = np.log(1e-30)
        thetas[2, :] = np.nan
        found = objective.at_once(3)(torch.from_numpy(thetas).to("meta"))
        for i in range(2):
            expected = np.append(*objective(thetas[i]))
            np.testing.assert_allclose(found[i], expected, rtol=1e-10)
        assert np.isnan(found[2]).all()


def test_starts_climb_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of more of them are those of the longest climb."""
    monkeypatch.setattr(leaf_model, "HOST_ROWS", 0)
    monkeypatch.setattr(map_fit, "_GPU", "meta")
    X = leaf_points(2, 8, 0)
    ends, counts = [], []
    for starts in (1, 2, 4):
        with RehearsedDevice() as device:
            monkeypatch.setattr(map_fit, "cuda_graph", Recorder(device))
            mll = mll_of(tree_gp(X.to("meta"), 2))
            with device.counting() as waits:
                options = {"options": {"maxiter": 4}}
                fit_gpytorch_mll(mll, num_restarts=starts, optimizer_kwargs=options)
            ends.append(mll.model.compute_custom_loss(mll.train()).item())
            counts.append(len(waits))
    assert ends[2] <= ends[1] <= ends[0]
    assert counts[2] < 2 * counts[1]


@pytest.mark.filterwarnings("ignore:Chains may not have converged")
@pytest.mark.parametrize("name", ["ConditionalGP", "tree, published"])
def test_chains_advance_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of a CPU, one by one; the host waits for that with most steps."""
    monkeypatch.setattr("botorch_structured.fit.HOST_ROWS", 0)
    case = CASES[name]
    model = case.make(case.points(2, 8, 0), 2)
    for part, p in model.named_parameters():
        p.requires_grad_("noise" in part or "outputscale" in part)
    counts = []
    for chains in (1, 5):
        options = {"num_samples": chains, "num_chains": chains, "seed": 0}
        options.update(warmup=0, thinning=1)
        expected = fit_slice_sampling(model, **options).chains.samples
        with RehearsedDevice() as device:
            monkeypatch.setattr(map_fit, "cuda_graph", Recorder(device))
            there = deepcopy(model).to("meta")
            with device.counting() as waits:
                found = fit_slice_sampling(there, **options).chains.samples
        np.testing.assert_allclose(found, expected, rtol=1e-8)
        counts.append(sum("map_fit" in wait.where for wait in waits))
    assert counts[1] < 3 * counts[0]


# -- the same data, the same model ----------------------------------------------------


KINDS = [TreeStructuredGP, TreeStructuredGP.as_published, ConditionalGP]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host_rows", [0, 200])
def test_fits_end_at_the_same_optimum_everywhere(
    kind: Any, host_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, a device by its own evaluations or the host's, in single precision.

    The first steps of a fit may be so long that the rounding of its start decides
    between two optima: not in 200 other data sets, but with seed 2, as published.
    """
    n = 24
    monkeypatch.setattr(leaf_model, "HOST_ROWS", host_rows)
    for seed in (0, 1) if host_rows else (0,):
        X = leaf_points(2, n, seed)
        own = torch.where(X[:, 0] == 0.0, X[:, 1], X[:, 2])
        Y = (X[:, 0] + (5.0 * own).sin() + X[:, 3]).unsqueeze(-1)
        Y += 0.1 * uniform(n, 1, seed + 9)
        model = kind(X, Y, dependencies(2))
        fit_gpytorch_mll(mll_of(model))
        states = []
        with RehearsedDevice() as device:
            monkeypatch.setattr(map_fit, "cuda_graph", Recorder(device))
            monkeypatch.setattr(map_fit, "_GPU", "meta")
            other = kind(X.to("meta"), Y.to("meta"), dependencies(2))
            fit_gpytorch_mll(mll_of(other))
            states.append({k: v.cpu() for k, v in other.state_dict().items()})
        single = kind(X.float(), Y.float(), dependencies(2))
        fit_gpytorch_mll(mll_of(single))
        states.append(single.state_dict())
        ends = []
        for state in (model.state_dict(), *states):
            model.load_state_dict(state)
            mll = mll_of(model).train()
            with torch.no_grad():
                ends.append(n * model.compute_custom_loss(mll).item())
        np.testing.assert_allclose(ends, ends[0], atol=0.01)


def test_more_starts_end_no_worse() -> None:
    """They are the same in each fit, and leave the global random state."""
    X = leaf_points(2, 20, 0)
    ends = []
    for starts in (1, 4, 4):
        mll = mll_of(tree_gp(X, 2))
        state = torch.random.get_rng_state()
        fit_gpytorch_mll(mll, num_restarts=starts)
        assert torch.equal(state, torch.random.get_rng_state())
        torch.rand(1)
        ends.append(mll.model.compute_custom_loss(mll.train()).item())
    assert ends[1] == ends[2] <= ends[0] + 1e-6
    with pytest.raises(ValueError, match="num_restarts: expected a positive integer"):
        fit_gpytorch_mll(mll, num_restarts=0)
