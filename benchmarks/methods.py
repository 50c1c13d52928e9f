"""Methods for the harness: from the evaluated points to the next one.

Each is ``method(problem, X, Y, seed) -> d`` or ``1 x d``; larger ``Y`` is better.
Tables by name are at the end of each part. What the package recommends, ``suggest``, is
in ``benchmarks.suite.ours``.

* **Trees** (Jenatton et al. 2017): ``default`` is ``TreeStructuredGP`` as it comes,
  ``tree`` and ``paper`` the model and the search as published, ``independent`` a GP for
  each path, ``marginal`` the tree's covariance searched over all paths at once.
* **Conditional kernels** (Levesque et al. 2017): GPs that differ in how they treat
  inactive columns, those of the paper's Table I with the most probable
  hyperparameters.
* **Treed models** (Assael et al. 2014), section 4.
* **Warm starts** (Perrone et al. 2017), section 3, over the rows of a table or a box.
* **Monotone parts** (Wang and Welch 2018).
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import ChainedInputTransform, Normalize, Warp
from botorch.models.transforms.outcome import Standardize
from botorch.optim import optimize_acqf
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import SumMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior, NormalPrior
from torch import Tensor, nn

from benchmarks.fits import finite, fitted
from benchmarks.harness import Method
from botorch_structured.acquisition import PathLogExpectedImprovement
from botorch_structured.kernels import LaplaceKernel, RandomFourierFeatures
from botorch_structured.linalg.parameters import (
    LogInterval,
    horseshoe_likelihood,
    register_root_prior,
    set_noise_floor,
)
from botorch_structured.models import (
    ConditionalGP,
    DecomposedGP,
    MonotoneGP,
    MultiTaskABLR,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.models.sampled.sampled_gp import SampledGP
from botorch_structured.optim import (
    optimize_acqf_local_search,
    optimize_acqf_paths,
    optimize_acqf_sobol,
    optimize_acqf_two_step,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.columns import CategoricalColumn
from botorch_structured.test_functions import TableProblem
from botorch_structured.transforms import Impute


def random(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """Uniform; rows of a table once, a known point only after a hundred tries."""
    if isinstance(problem, TableProblem):
        unknown = (~_known(problem, X)).nonzero().squeeze(-1)
        generator = torch.Generator().manual_seed(seed)
        pick = torch.randint(len(unknown), (), generator=generator)
        return problem.candidates.to(X)[unknown[pick]]
    known = problem.space.tree.impute(X)
    for point in problem.space.sample(100, seed=seed).to(X):
        new = problem.space.tree.impute(point.unsqueeze(0))
        if not (new == known).all(-1).any():
            break
    return point


def _known(problem: Any, X: Tensor) -> Tensor:
    """Which rows of a table are evaluated."""
    return (problem.candidates.to(X).unsqueeze(1) == X).all(-1).any(-1)


def _best_row(problem: Any, acqf: Any, rows: Tensor, X: Tensor) -> Tensor:
    """The row of a table with the largest value that is not evaluated yet."""
    with torch.no_grad():
        values = acqf(rows.unsqueeze(-2))
    best = values.masked_fill(_known(problem, X), -torch.inf).argmax()
    return problem.candidates.to(X)[best]


# -- trees -----------------------------------------------------------------------------

# Without weights: an independent GP for each path, with all its columns.
INDEPENDENT: dict[str, Any] = {
    "shared_features": "none",
    "leaf_inputs": "active",
    "leaf_hyperparameters": "independent",
    "leaf_offset": "fixed",
    "node_weights": False,
}
# `TreeStructuredGP.as_published`, with the kernel of the larger evidence.
_PUBLISHED: dict[str, Any] = {
    "shared_features": "linear",
    "leaf_inputs": "own",
    "leaf_hyperparameters": "independent",
    "leaf_offset": "fixed",
}


def one_step(
    problem: Any, X: Tensor, Y: Tensor, seed: int, make: Any = None, **options: Any
) -> Tensor:
    """A tree model, by default with its defaults; LogEI over all paths."""
    Y = finite(Y)
    model = fitted((make or TreeStructuredGP)(X, Y, problem.space, **options))
    criterion = LogExpectedImprovement(model, best_f=Y.max())
    return optimize_acqf_paths(criterion, space=problem.space, X_avoid=X)[0]


def two_step(
    problem: Any, X: Tensor, Y: Tensor, seed: int, make: Any = None, **options: Any
) -> Tensor:
    """A tree model; the search of the paper, the path first, then a point on it."""
    Y = finite(Y)
    model = fitted((make or TreeStructuredGP)(X, Y, problem.space, **options))
    return optimize_acqf_two_step(
        PathLogExpectedImprovement(model, best_f=Y.max()),
        LogExpectedImprovement(model, best_f=Y.max()),
        top_k=1,
        fix_shared=True,
        space=problem.space,
        X_avoid=X,
    )[0]


def gp_baseline(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """One Matern GP over all columns, decisions as numbers, as if all were active."""
    space = problem.space
    whole = {*space.integer_features, *space.categorical_features}
    whole |= {*space.tree.decision_columns}
    flat = SearchSpace(space.names, space.bounds, integer_features=sorted(whole))
    model = TreeStructuredGP(X, Y, flat, leaf_kernel="matern", **INDEPENDENT)
    criterion = LogExpectedImprovement(fitted(model), best_f=Y.max())
    return optimize_acqf_paths(criterion, space=flat, X_avoid=X)[0]


_as_published = TreeStructuredGP.as_published
default = one_step
paper = partial(two_step, make=_as_published)
independent = partial(one_step, **INDEPENDENT)
marginal = partial(one_step, **_PUBLISHED)
published = partial(two_step, **_PUBLISHED)
_matern = partial(one_step, leaf_kernel="matern", **INDEPENDENT)
_nonlinear = {**_PUBLISHED, "shared_features": "fourier", "leaf_kernel": "matern"}
TREES: dict[str, Method] = {
    "tree": paper,
    "independent": _matern,
    "marginal": partial(one_step, make=_as_published),
    "gp-baseline": gp_baseline,
    "random": random,
    "tree-nonlinear": partial(two_step, **_nonlinear),
}

# -- conditional kernels ---------------------------------------------------------------


def _plain_model(X: Tensor, Y: Tensor, transform: Any, base: Any) -> SingleTaskGP:
    """A GP over all columns with the priors and the noise of ``ConditionalGP``."""
    kernel = ScaleKernel(
        base(
            ard_num_dims=X.shape[-1],
            lengthscale_prior=LogNormalPrior(0.0, 1.0),
            lengthscale_constraint=LogInterval(1e-2, 1e3, initial_value=0.5),
        ),
        outputscale_constraint=LogInterval(1e-4, 1e4, initial_value=1.0),
    )
    register_root_prior(kernel, LogNormalPrior(0.0, 1.0))
    model = SingleTaskGP(
        X,
        Y,
        likelihood=horseshoe_likelihood(torch.Size()),
        covar_module=kernel,
        mean_module=ConstantMean(constant_prior=NormalPrior(0.0, 1.0)),
        input_transform=transform,
        outcome_transform=Standardize(m=1),
    )
    set_noise_floor(model.likelihood, model.train_targets)
    return model


def conditional_gp(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    seed: int,
    kind: str,
    search: str = "ls",
    impute: bool = True,
) -> Tensor:
    """Gaussian processes of Table I.

    Args:
        problem: Its space is used.
        X: ``n x d`` evaluated points.
        Y: ``n x 1`` outcomes, larger is better.
        seed: Of the search.
        kind: ``"cond"``, ``"matern"`` or ``"laplace"``.
        search: ``"random"`` (1,000 points), ``"ls"`` (local search) or ``"gradient"``.
        impute: Whether inactive columns are in the middle of their range. Otherwise
            they hold random values and are searched, too, the learner as an integer.
    """
    space: SearchSpace = problem.space
    if kind == "cond":
        transform: Any = space.input_transform()
        outcome = Standardize(m=1)
        model: Any = ConditionalGP(
            X, Y, space.tree, input_transform=transform, outcome_transform=outcome
        )
    else:
        transform = Normalize(X.shape[-1], bounds=space.bounds)
        if impute:
            middle = Impute(space.tree, space.bounds)
            transform = ChainedInputTransform(impute=middle, normalize=transform)
        else:
            X = _filled_at_random(problem, X)
            whole = [*space.integer_features, *space.categorical_features]
            space = SearchSpace(space.names, space.bounds, integer_features=whole)
        base = LaplaceKernel if kind == "laplace" else MaternKernel
        model = _plain_model(X, Y, transform, base)
    # an ensemble of one predicts without copies of the training data
    criterion = LogExpectedImprovement(SampledGP([fitted(model)]), best_f=Y.max())
    where: dict[str, Any] = {"space": space, "X_avoid": X, "seed": seed}
    if search == "gradient":
        return optimize_acqf_paths(criterion, **where)[0]
    where |= {"num_restarts": 4}
    if search == "random":
        where |= {"max_iter": 0, "X_start": X[:0]}
    return optimize_acqf_local_search(criterion, **where)[0]


def _filled_at_random(problem: Any, X: Tensor) -> Tensor:
    """Random values where inactive columns hold the fill value, as those of starts do.

    Points that a method without imputation suggested keep their values.
    """
    space = problem.space
    generator = torch.Generator().manual_seed(problem.seed)
    lower, upper = space.bounds.to(X)
    u = torch.rand(X.shape, generator=generator, dtype=X.dtype)
    untouched = ~space.tree.active_mask(X) & (X == space.fill.to(X))
    return torch.where(untouched, lower + (upper - lower) * u, X)


LEVESQUE: dict[str, Method] = {
    "RS": random,
    "Spearmint": partial(
        conditional_gp, kind="matern", search="gradient", impute=False
    ),
    "GP-matern-noimpute": partial(
        conditional_gp, kind="matern", search="random", impute=False
    ),
    **{
        f"GP-{kind}{end}": partial(conditional_gp, kind=kind, search=search)
        for end, search in (("", "random"), ("-ls", "ls"))
        for kind in ("matern", "cond", "laplace")
    },
}

# -- treed models ----------------------------------------------------------------------

# With estimated noise LogEI proposes the incumbent again, so points keep a distance, in
# widths of the box: standard BO a small one. Treed methods keep 0.4 spacings of a
# regular grid with as many points as there are data; less than a half, so that known
# points cannot exclude the whole box. A fixed distance can exclude the optimum beside a
# good point, so they keep it only where the expected improvement is below a thousandth
# of the outcomes' standard deviation: there its maximum says little.
_SMALL_DISTANCE = 2e-3
_SPREAD = 0.4
_WORTH = 1e-3


def _standard(
    X: Tensor, Y: Tensor, input_transform: Any, warp: bool = False, exact: bool = False
) -> SingleTaskGP:
    """One GP for all of the space; with ``exact``, a tiny ``train_Yvar``."""
    if warp:
        d = X.shape[-1]
        prior = LogNormalPrior(0.0, 0.75**0.5)  # as in BoTorch's tutorial on warping
        warping = Warp(
            d=d,
            indices=list(range(d)),
            concentration0_prior=prior,
            concentration1_prior=prior,
        )
        input_transform = ChainedInputTransform(normalize=input_transform, warp=warping)
    noise = torch.full_like(Y, 1e-6 * max(float(Y.var()), 1e-12)) if exact else None
    return SingleTaskGP(X, Y, noise, input_transform=input_transform)


def treed(
    problem: Any, X: Tensor, Y: Tensor, seed: int, model: Any, search: str
) -> Tensor:
    """LogEI over the rows of a table, or on the paper's adaptive Sobol grid.

    Args:
        problem: A table, or a box.
        X: ``n x d`` evaluated points.
        Y: ``n x 1`` outcomes, larger is better.
        seed: Of the grid.
        model: From points, outcomes and a transform to a model.
        search: ``"near"`` keeps the small distance, ``"far"`` the large one,
            ``"botorch"`` is ``optimize_acqf``.
    """
    bounds = problem.bounds.to(X)
    transform = Normalize(X.shape[-1], bounds=bounds)
    fit = fitted(model(X, Y, input_transform=transform))
    acqf = LogExpectedImprovement(fit, best_f=Y.max())
    if isinstance(problem, TableProblem):
        return _best_row(problem, acqf, problem.candidates.to(X), X)
    if search == "botorch":
        return optimize_acqf(acqf, bounds, 1, num_restarts=10, raw_samples=512)[0]
    is_far = search == "far"
    spread = _SPREAD * len(X) ** (-1.0 / X.shape[-1])
    worth = math.log(max(_WORTH * float(Y.std()), 1e-300))
    return optimize_acqf_sobol(
        acqf,
        bounds,
        best_X=X[Y.argmax()].unsqueeze(0),
        X_avoid=X,
        min_distance=spread if is_far else _SMALL_DISTANCE,
        refine_above=worth if is_far else None,
        seed=seed,
    )[0]


_htbo = TreedGP.as_published
_by_variance = partial(TreedGP, split_criterion="variance")
_far = partial(treed, search="far")
TREED: dict[str, Method] = {
    "htbo": partial(_far, model=_htbo),
    "htbo_warp": partial(_far, model=partial(_htbo, warp=True)),
    "htbo_variance": partial(_far, model=_by_variance),
    "htbo_default": partial(_far, model=TreedGP),
    "bo": partial(treed, model=_standard, search="near"),
    "bo_acqf": partial(treed, model=_standard, search="botorch"),
    "bo_refine": partial(_far, model=_standard),
    "bo_exact": partial(_far, model=partial(_standard, exact=True)),
    "bo_warp": partial(treed, model=partial(_standard, warp=True), search="near"),
    "random": random,
}
"""``htbo`` is ``TreedGP.as_published``, ``htbo_variance`` has the published splits.

``bo`` is ``SingleTaskGP``, ``bo_warp`` with learned input warping. ``bo_refine`` has
the search of the treed methods, ``bo_exact`` as well a tiny noise, ``bo_acqf``
BoTorch's search: these separate the effect of the tree from that of the search.
"""

# -- warm starts -----------------------------------------------------------------------

# Features are learnt from the history (without one, from the starts), once for all
# seeds of a task, and again after every ``refit_every`` further rows: with a history
# from it and these rows, from the current values on; without one anew. In between the
# task's own regression on them is fitted at every step. All of this is a function of
# the problem and of the run's rows; what is remembered between calls only saves time.
_FIRST_STEPS = 100  # of L-BFGS, from a random network
_FURTHER_STEPS = 5  # from one fitted to fewer rows
_NUM_FOURIER = 100
_REMEMBERED = 256


def _columns(problem: Any, X: Tensor) -> Tensor:
    """``... x d`` points as models see them: within [0, 1], categories one-hot."""
    lower, upper = problem.space.bounds.to(X)
    parts = []
    for j, column in enumerate(problem.space.columns):
        x = X[..., j]
        if isinstance(column, CategoricalColumn) and len(column.codes) > 2:
            parts += [(x == code).to(X) for code in column.codes]
        else:
            parts.append((x - lower[j]) / (upper[j] - lower[j]))
    return torch.stack(parts, -1)


def _suggested(
    problem: Any, model: Model, X: Tensor, best: float, context: Tensor | None = None
) -> Tensor:
    """The point of largest LogEI; models see `_columns`, followed by a context."""
    acqf = LogExpectedImprovement(model, best)
    if isinstance(problem, TableProblem):
        rows = _with(_columns(problem, problem.candidates.to(X)), context)
        return _best_row(problem, acqf, rows, X)
    d = X.shape[-1]
    size = d if context is None else d + len(context)
    unit = torch.stack([X.new_zeros(size), X.new_ones(size)])
    fixed = {} if context is None else dict(enumerate(context.tolist(), d))
    x, _ = optimize_acqf(
        acqf, unit, 1, num_restarts=4, raw_samples=128, fixed_features=fixed or None
    )
    lower, upper = problem.bounds.to(X)
    return lower + (upper - lower) * x[0, :d]


def gp(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """BoTorch's ``SingleTaskGP`` on the task's own rows."""
    model = fitted(SingleTaskGP(_columns(problem, X), Y))
    return _suggested(problem, model, X, Y.max())


def gp_stacked(problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
    """One GP on all rows of all tasks, told apart by their contexts [Krause 2011].

    Its hyperparameters are those of the history, as a fit is cubic in all rows.
    """
    old_X, old_Y, _, contexts = _history(problem, X)

    def fit() -> dict[str, Any]:
        return dict(fitted(SingleTaskGP(old_X, old_Y)).named_parameters())

    parameters = _remember(("stacked", _digest(old_X, old_Y)), fit)
    context = contexts[problem.history.task]
    rows = torch.cat([old_X, _with(_columns(problem, X), context)])
    model = SingleTaskGP(rows, torch.cat([old_Y, Y]))
    model.load_state_dict(parameters, strict=False)
    return _suggested(problem, model.eval(), X, Y.max(), context)


def ablr(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    seed: int,
    refit_every: int = 10,
    signals: bool = False,
) -> Tensor:
    """A regression on features learnt from the task's own rows.

    Args:
        problem: With ``signals(X)``, ``n x m``, the target first, if they are wanted.
        X: ``n x d``.
        Y: ``n x 1``.
        seed: Not used.
        refit_every: Rows between two fits of the features.
        signals: Whether features are learnt from all signals, or from the target only.
    """
    outcomes = problem.signals(X) if signals else Y
    rows = _columns(problem, X)
    num_learnt = max(len(problem.starts(0)), len(X) - len(X) % refit_every)
    first_X = rows[:num_learnt]
    first_Y = outcomes[:num_learnt]

    def fit() -> nn.Module:
        model = MultiTaskABLR(first_X, first_Y, task_feature=None)
        return _in_steps(model, _FIRST_STEPS).feature_map

    features = _remember(("ablr", _digest(first_X, first_Y)), fit)
    return _suggested(problem, on_features(features, rows, Y), X, Y.max())


def warm(
    problem: Any,
    X: Tensor,
    Y: Tensor,
    seed: int,
    refit_every: int = 10,
    context: bool = False,
    fourier: bool = False,
) -> Tensor:
    """A regression of the task's own rows on features learnt from all tasks.

    Args:
        problem: With a ``history``.
        X: ``n x d``.
        Y: ``n x 1``.
        seed: Not used.
        refit_every: Rows between two fits of the features.
        context: Whether contexts are further columns.
        fourier: Whether the features are ``RandomFourierFeatures``.
    """
    n = len(X) - len(X) % refit_every
    tasks = _learnt(problem, X[:n], Y[:n], refit_every, context, fourier)
    own = _history(problem, X)[3][problem.history.task] if context else None
    rows = _with(_columns(problem, X), own)
    model = on_features(tasks.feature_map, rows, Y)
    return _suggested(problem, model, X, Y.max(), own)


def on_features(features: nn.Module, X: Tensor, Y: Tensor) -> MultiTaskABLR:
    """A regression of one task on features that are held, fitted.

    Args:
        features: ``n x d`` to ``n x D``; copied.
        X: ``n x d``.
        Y: ``n x 1``.
    """
    fixed = _Fixed(deepcopy(features))
    model = MultiTaskABLR(X, Y, task_feature=None, feature_map=fixed)
    return _in_steps(model, _FIRST_STEPS)


class _Fixed(nn.Module):
    """Features that are not learnt any more."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.requires_grad_(False)

    def forward(self, X: Tensor) -> Tensor:
        return self.module(X)


def _learnt(
    problem: Any, X: Tensor, Y: Tensor, refit_every: int, context: bool, fourier: bool
) -> MultiTaskABLR:
    """The model of the history and the first rows of the task.

    Its fit starts from that with ``refit_every`` rows fewer.
    """
    old_X, old_Y, task, contexts = _history(problem, X)
    own = contexts[problem.history.task]
    if not context:
        old_X = old_X[:, : old_X.shape[1] - contexts.shape[1]]
        own = None

    def fit() -> MultiTaskABLR:
        rows = torch.cat([old_X, _with(_columns(problem, X), own)])
        number = torch.cat([task, task.new_full((len(X),), problem.history.task)])
        before = None
        features = RandomFourierFeatures(_NUM_FOURIER, seed=0) if fourier else None
        if len(X):
            n = len(X) - refit_every
            before = _learnt(problem, X[:n], Y[:n], refit_every, context, fourier)
            features = deepcopy(before.feature_map)
        model = MultiTaskABLR(
            torch.cat([rows, number.unsqueeze(-1)], -1),
            torch.cat([old_Y, Y]),
            task_feature=-1,
            all_tasks=list(range(problem.history.num_tasks)),
            feature_map=features,
        )
        if before is not None:
            # parameters only: the scale of the task's outcomes has changed
            model.load_state_dict(dict(before.named_parameters()), strict=False)
        # with many rows the starting values matter little: one start
        steps = _FIRST_STEPS if before is None else _FURTHER_STEPS
        return _in_steps(model, steps, num_starts=1)

    key = _digest(old_X, old_Y, _columns(problem, X), Y)
    name = ("warm", context, fourier, refit_every, problem.history.task)
    return _remember((*name, key), fit)


def _in_steps(model: MultiTaskABLR, steps: int, **options: Any) -> MultiTaskABLR:
    limit = {"options": {"maxiter": steps}}
    return fitted(model, optimizer_kwargs=limit, progress=False, **options)


def _history(problem: Any, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns with the context, values (larger is better), tasks, contexts."""
    history = problem.history
    task = history.X[:, -1].to(like)
    contexts = like.new_zeros(history.num_tasks, 0)
    if history.contexts is not None:
        contexts = history.contexts.to(like)
        width = contexts.amax(0) - contexts.amin(0)
        contexts = (contexts - contexts.amin(0)) / torch.where(width > 0, width, 1.0)
    rows = _columns(problem, history.X[:, :-1].to(like))
    joined = torch.cat([rows, contexts[task.long()]], -1)
    return joined, -history.Y.to(like), task, contexts


def _with(rows: Tensor, context: Tensor | None) -> Tensor:
    if context is None:
        return rows
    return torch.cat([rows, context.expand(*rows.shape[:-1], -1)], -1)


_memory: OrderedDict[Any, Any] = OrderedDict()


def _remember(key: Any, make: Callable[[], Any]) -> Any:
    """The value made for this key, cached for the latest keys."""
    if key not in _memory:
        _memory[key] = make()
        if len(_memory) > _REMEMBERED:
            _memory.popitem(last=False)
    _memory.move_to_end(key)
    return _memory[key]


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha1()
    for tensor in tensors:
        digest.update(repr(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


# -- monotone parts --------------------------------------------------------------------

# The paper's GPs have zero mean on the outcomes as they are, a variance and an
# isotropic squared exponential kernel. Errors are positive, so a zero-mean GP expects
# an improvement wherever there are no data, most of all in the corners; known signs
# rule out some of these places. What the paper leaves open is the same for all:
# BoTorch's prior for the lengthscale, a wide prior for the variance in units of the
# mean square, and this noise variance in the same units, as errors are repeatable. With
# signs the paper's GP has virtual points on the paper's grids and is fitted to data and
# signs.
_NOISE = 1e-4


class _Scale(Standardize):
    """Outcomes in units of their root mean square: zero stays zero."""

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if self.training:
            super().forward(Y, Yvar, X)  # for its checks
            self._stdvs_sq = Y.square().mean(dim=-2, keepdim=True).clamp_min(1e-16)
            self.stdvs = self._stdvs_sq.sqrt()
            self.means = Y.new_zeros(self.stdvs.shape)
        return Y / self.stdvs, None if Yvar is None else Yvar / self._stdvs_sq


def _papers_kernel(d: int) -> ScaleKernel:
    prior = LogNormalPrior(math.sqrt(2.0) + 0.5 * math.log(d), math.sqrt(3.0))
    limit = GreaterThan(2.5e-2, transform=None, initial_value=prior.mode)
    kernel = RBFKernel(lengthscale_prior=prior, lengthscale_constraint=limit)
    return ScaleKernel(kernel, outputscale_prior=LogNormalPrior(0.0, 1.0))


def _part(
    problem: Any, X: Tensor, Y: Tensor, signs: Mapping[int, int] | None, paper: bool
) -> SingleTaskGP:
    """A GP for ``n x 1`` outcomes, with known signs unless None."""
    bounds = problem.bounds.to(X)
    options: dict[str, Any] = {"input_transform": Normalize(X.shape[-1], bounds=bounds)}
    if paper:
        options["covar_module"] = _papers_kernel(X.shape[-1])
        options["mean_module"] = ZeroMean()
        options["outcome_transform"] = _Scale(1)
        options["train_Yvar"] = (_NOISE * Y.square().mean()).expand(Y.shape)
    if signs is None:
        return SingleTaskGP(X, Y, **options)
    if paper:
        options |= {"virtual_X": "grid", "signs_in_fit": True}
    return MonotoneGP(X, Y, signs, bounds=bounds, **options)


def monotone(
    problem: Any, X: Tensor, Y: Tensor, seed: int, kind: str, paper: bool = False
) -> Tensor:
    """LogEI of one GP, or of the sum of one for each part of the objective.

    Args:
        problem: With ``components(X)``, the parts of what it has evaluated.
        X: ``n x d`` evaluated points.
        Y: ``n x 1`` outcomes, larger is better.
        seed: Not used: the harness seeds torch's generator.
        kind: ``"standard"`` for the objective, ``"decomposed"`` for parts,
            ``"monotone"`` for parts with their signs.
        paper: Whether they are the paper's GPs, or BoTorch's and this package's.
    """
    if kind == "standard":
        model: Any = fitted(_part(problem, X, Y, None, paper))
    else:
        outcomes = (-problem.components(X)).split(1, dim=-1)
        signs: list[Any] = [None] * len(outcomes)
        if kind == "monotone":
            signs = [{c: -sign for c, sign in one.items()} for one in problem.monotone]
        both = zip(outcomes, signs, strict=True)
        model = DecomposedGP(*(_part(problem, X, y, one, paper) for y, one in both))
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    acqf = LogExpectedImprovement(model, best_f=Y.max())
    bounds = problem.bounds.to(X)
    return optimize_acqf(acqf, bounds, 1, num_restarts=4, raw_samples=256)[0]


MONOTONE: dict[str, Method] = {
    **{
        f"{kind}{end}": partial(monotone, kind=kind, paper=bool(end))
        for end in ("", "_paper")
        for kind in ("monotone", "decomposed", "standard")
    },
    "random": random,
}
