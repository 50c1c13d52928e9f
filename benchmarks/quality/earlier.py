"""A new data set, old studies of others: what they are worth, and whether they hurt.

    python -m benchmarks.quality.earlier --half develop --out results/earlier

The problems are those of ``benchmarks.suite.yahpo`` (boosters) and ``yahpo_learners``.
Of each data set of a half an old study is known: 30 to 60 trials of Optuna's
``TPESampler()``. Of the others of its kind, drawn anew for each data set and seed, a
method knows as many as the number in its name says. All evaluations of the new study
count, the first ones too; old ones do not.

``without``: ``suggest`` from the starts of a `Study`. ``earlier-K``: a `Study` with K
old studies. ``shuffled-K``, ``reversed-K``, ``unrelated-K``: their outcomes are
permuted, negated, or those of a quadratic function of other columns. Peers:
``portfolio-K`` evaluates `OldStudiesMean.starts`, ``rgpe-K`` is the ranking-weighted
ensemble [Feurer2018rgpe]_ as in BoTorch's tutorial, ``copula-K`` the quantile-based
Thompson sampling [Salinas2020quantile]_, ``ablr-K`` is a regression of the new study
alone on the features that `MultiTaskABLR` learns from the old studies, with LogEI.
``rgpe-K`` and ``ablr-K`` begin with three points that suit most old studies.
``warm-K`` is ``TPESampler()`` that was told all old trials, ``warmbest-K`` the best of
each study only.

.. [Feurer2018rgpe]
    M. Feurer, B. Letham, F. Hutter and E. Bakshy. Practical Transfer Learning for
    Bayesian Optimization. arXiv:1802.02219, 2018.
.. [Salinas2020quantile]
    D. Salinas, H. Shen and V. Perrone. A Quantile-based Approach for Hyperparameter
    Transfer Learning. ICML 2020.
"""

from __future__ import annotations

__all__ = ["main", "report"]

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import wilcoxon
from torch import Tensor

from benchmarks.ablr_methods import on_features
from benchmarks.harness import run
from benchmarks.suite import yahpo, yahpo_learners
from benchmarks.suite.optima import improve
from benchmarks.suite.ours import METHODS
from benchmarks.suite.peers.common import walk
from benchmarks.summary import Run, load
from botorch_structured._botorch_names import log_ei_helper
from botorch_structured.models import MultiTaskABLR
from botorch_structured.models.tree.old_studies import OldStudiesMean, normal_scores
from botorch_structured.plots.style import (
    COLOURS,
    GREY,
    new_figure,
    step_curve,
    tidy,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.study import Study

_KINDS = {"yahpo": yahpo, "learners": yahpo_learners}
_SHOWN = (1, 3, 5, 10, 15, 20, 30, 40, 60)
_POOL, _PARENTS, _GENERATIONS, _CHILDREN = 1_000, 6, 14, 10
_SAMPLES = 256  # of ranks, for the weights of the ensemble

Studies = dict[str, tuple[Tensor, Tensor]]


class Transfer:
    """A method that knows old studies of other data sets of its kind.

    Args:
        kind: Before the ``-`` of its name.
        number: How many it knows.
        old: The file of old studies.
    """

    def __init__(self, kind: str, number: int, old: Path) -> None:
        self.kind, self.number, self.old = kind, number, old

    def _make(self, problem: Any, seed: int) -> Any:
        corrupt = self.kind if self.kind in _CORRUPT else ""
        kind = "earlier" if corrupt else self.kind
        name = f"{problem.kind}-{problem.name}"
        return _learnt(kind, name, self.number, seed, self.old, corrupt)(problem)

    def starts(self, problem: Any, seed: int) -> Tensor:
        """The first point, or those of a portfolio."""
        self._seed = seed
        return self._make(problem, seed).starts(problem.space, seed)

    def __call__(self, problem: Any, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        """The next point."""
        return self._make(problem, self._seed)(problem.space, X, Y, seed)


# -- methods ------------------------------------------------------------------------


class _Earlier:
    """A `Study` with ``earlier``."""

    def __init__(self, old: list[tuple[Tensor, Tensor]], space: SearchSpace) -> None:
        self.old = OldStudiesMean.from_studies(old, space)

    def starts(self, space: SearchSpace, seed: int) -> Tensor:
        return self.old.starts(1)

    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        study = Study(space, "maximize", seed=seed, earlier=self.old)
        study.tell_many(space.decode(X), Y.flatten().tolist())
        return space.encode(study.ask(1))


class _Portfolio(_Earlier):
    """The points that suit most old studies, then random ones."""

    def starts(self, space: SearchSpace, seed: int) -> Tensor:
        return self.old.starts(self.old.num_starts)

    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        return space.sample(1, seed=seed)


def _inputs(space: SearchSpace) -> Callable[[Tensor], Tensor]:
    """One value in inactive columns, categories one-hot, numbers in [0, 1]."""
    low, high = space.bounds
    unordered = {*space.categorical_features, *space.tree.decisions_by_value}
    codes = {c: torch.tensor(space.columns[c].codes) for c in sorted(unordered)}

    def read(X: Tensor) -> Tensor:
        X = space.impute(X)
        unit = (X - low) / (high - low).clamp_min(1e-12)
        parts = [
            (X[:, c, None] == codes[c]).double() if c in codes else unit[:, c, None]
            for c in range(space.dim)
        ]
        return torch.cat(parts, -1)

    return read


def _fitted(X: Tensor, y: Tensor) -> SingleTaskGP:
    model = SingleTaskGP(X, ((y - y.mean()) / y.std().clamp_min(1e-9))[:, None])
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def _maximise(space: SearchSpace, value: Any, X: Tensor, seed: int) -> Tensor:
    """The best of random points, of known ones, and of changes of these."""

    def negative(points: Tensor) -> Tensor:
        known = (points[:, None] - X).abs().amax(-1).amin(-1) < 1e-9
        return (-value(points)).masked_fill(known, torch.inf)

    pool = torch.cat([space.sample(_POOL, seed=seed), X])
    values = negative(pool)
    parents = values.topk(_PARENTS, largest=False).indices
    points, found = improve(
        space, negative, pool[parents], values[parents], _GENERATIONS, _CHILDREN, seed
    )
    return points[found.argmin()][None]


def _log_ei(moments: Any, incumbent: Tensor, points: Tensor) -> Tensor:
    mean, variance = moments(points)
    sigma = variance.clamp_min(1e-12).sqrt()
    return log_ei_helper((mean - incumbent) / sigma) + sigma.log()


class _RGPE:
    """An ensemble of GPs of old studies and of the new one, by how they rank."""

    def __init__(self, old: list[tuple[Tensor, Tensor]], space: SearchSpace) -> None:
        self.read = _inputs(space)
        self.models = [_fitted(self.read(X), Y[:, 0]) for X, Y in old]
        self.first = OldStudiesMean.from_studies(old, space).starts(3)

    def starts(self, space: SearchSpace, seed: int) -> Tensor:
        return self.first

    @torch.no_grad()
    def _losses(self, x: Tensor, y: Tensor, own: SingleTaskGP) -> Tensor:
        """Pairs that samples of each model rank wrongly, ``models x samples``."""
        higher = y[:, None] < y
        samples = [m.posterior(x).rsample(torch.Size([_SAMPLES])) for m in self.models]
        # of the new study's model each outcome is predicted from all others
        prior = own.likelihood(own.forward(x)).covariance_matrix
        inverse = torch.linalg.inv(prior)
        scale = inverse.diagonal().rsqrt()
        z = own.train_targets
        mean = z - (inverse @ (z - own.forward(x).mean)) / inverse.diagonal()
        samples.append((mean + scale * torch.randn(_SAMPLES, len(y)))[..., None])
        f = torch.cat(samples, -1).permute(2, 0, 1)
        ranked = f[..., :, None] < f[..., None, :]
        # of the own model, a prediction against the outcomes
        ranked[-1] = f[-1][..., :, None] < z
        return (ranked ^ higher).sum((-1, -2)).double()

    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        x, y = self.read(X), Y[:, 0]
        own = _fitted(x, y)
        losses = self._losses(x, y, own)
        best = losses == losses.amin(0)
        weights = (best / best.sum(0)).mean(-1)
        # old models that are worse than the 95th percentile of the own one do not count
        dropped = losses.median(-1).values > losses[-1].quantile(0.95)
        weights[:-1][dropped[:-1]] = 0.0
        weights = weights / weights.sum()
        used = [
            (w, m)
            for w, m in zip(weights.tolist(), [*self.models, own], strict=True)
            if w > 0.0
        ]

        @torch.no_grad()
        def moments(points: Tensor) -> tuple[Tensor, Tensor]:
            several = [(w, m.posterior(self.read(points)[:, None])) for w, m in used]
            mean = sum(w * p.mean.flatten() for w, p in several)
            return mean, sum(w * w * p.variance.flatten() for w, p in several)

        incumbent = moments(X)[0].max()
        return _maximise(space, partial(_log_ei, moments, incumbent), X, seed)


class _ABLR:
    """A regression of the new study on a network that was fitted to old ones."""

    def __init__(self, old: list[tuple[Tensor, Tensor]], space: SearchSpace) -> None:
        self.read = _inputs(space)
        rows = [
            torch.cat([self.read(X), torch.full_like(Y, t)], -1)
            for t, (X, Y) in enumerate(old)
        ]
        outcomes = torch.cat([Y for _, Y in old])
        torch.manual_seed(0)
        model = MultiTaskABLR(torch.cat(rows), outcomes, task_feature=-1)
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), progress=False
        )
        self.features = model.feature_map
        # one outcome, standardised, tells a regression that starts anew nothing
        self.first = OldStudiesMean.from_studies(old, space).starts(3)

    def starts(self, space: SearchSpace, seed: int) -> Tensor:
        return self.first

    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        model = on_features(self.features, self.read(X), Y)

        @torch.no_grad()
        def moments(points: Tensor) -> tuple[Tensor, Tensor]:
            posterior = model.posterior(self.read(points)[:, None])
            return posterior.mean.flatten(), posterior.variance.flatten()

        return _maximise(space, partial(_log_ei, moments, Y.max()), X, seed)


class _Copula:
    """A network of mean and deviation of normal scores, then Thompson sampling."""

    def __init__(self, old: list[tuple[Tensor, Tensor]], space: SearchSpace) -> None:
        self.read = _inputs(space)
        x = torch.cat([self.read(X) for X, _ in old]).float()
        z = torch.cat([normal_scores(Y[:, 0]) for _, Y in old]).float()
        torch.manual_seed(0)
        layers: list[Any] = []
        for width, wide in ((x.shape[1], 50), (50, 50), (50, 50)):
            layers += [
                torch.nn.Linear(width, wide),
                torch.nn.ReLU(),
                torch.nn.Dropout(0.1),
            ]
        self.network = torch.nn.Sequential(*layers, torch.nn.Linear(50, 2))
        optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)
        for step in range(1_500):
            if step in (500, 1_000):
                for group in optimizer.param_groups:
                    group["lr"] *= 0.1
            rows = torch.randint(len(x), (64,))
            mean, raw = self.network(x[rows]).unbind(-1)
            sigma = torch.nn.functional.softplus(raw) + 1e-3
            loss = (0.5 * ((z[rows] - mean) / sigma).square() + sigma.log()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.network.eval()

    def starts(self, space: SearchSpace, seed: int) -> Tensor:
        return self(space, space.sample(1, seed=seed), torch.zeros(1, 1), seed)

    @torch.no_grad()
    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        points = space.sample(2_000, seed=seed)
        mean, raw = self.network(self.read(points).float()).unbind(-1)
        noise = torch.randn(len(points), generator=torch.Generator().manual_seed(seed))
        drawn = mean + (torch.nn.functional.softplus(raw) + 1e-3) * noise
        return points[drawn.argmax()][None]


class _WarmTPE:
    """Optuna's TPE that was told old trials as if they were new."""

    best_only = False

    def __init__(self, old: list[tuple[Tensor, Tensor]], space: SearchSpace) -> None:
        if self.best_only:
            old = [(X[Y.argmax()][None], Y.max().reshape(1, 1)) for X, Y in old]
        self.old = old

    def starts(self, space: SearchSpace, seed: int) -> Tensor:
        return self._next(space, self.old, seed)

    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        return self._next(space, [*self.old, (X, Y)], seed)

    def _next(self, space: SearchSpace, told: Any, seed: int) -> Tensor:
        from benchmarks.suite.peers.common import first_feasible
        from benchmarks.suite.peers.optuna_samplers import PlainTPE

        study = PlainTPE._study(space, seed)
        for X, Y in told:
            study.add(X, Y)
        return first_feasible(space, study.suggestions(), seed).reshape(1, -1)


class _WarmBest(_WarmTPE):
    best_only = True


_CORRUPT = ("shuffled", "reversed", "unrelated")
_MAKERS: dict[str, Any] = {
    "earlier": _Earlier,
    "portfolio": _Portfolio,
    "rgpe": _RGPE,
    "copula": _Copula,
    "ablr": _ABLR,
    "warm": _WarmTPE,
    "warmbest": _WarmBest,
}


# -- old studies --------------------------------------------------------------------


@lru_cache(maxsize=1)
def _learnt(
    kind: str, name: str, number: int, seed: int, old: Path, corrupt: str
) -> Callable[[Any], Any]:
    @lru_cache(maxsize=1)
    def make(problem: Any) -> Any:
        studies = _read(old)
        family = name.partition("-")[0]
        half = next(h for h in ("DEVELOP", "REPORT") if name in _names(family, h))
        others = [n for n in _names(family, half) if n != name]
        random.Random(f"{name} {seed}").shuffle(others)
        chosen = [studies[n] for n in others[:number]]
        chosen = _corrupted(chosen, corrupt, problem.space, seed)
        return _MAKERS[kind](chosen, problem.space)

    return make


def _names(kind: str, half: str) -> list[str]:
    return list(getattr(_KINDS[kind], half))


def _corrupted(
    studies: list[tuple[Tensor, Tensor]], how: str, space: SearchSpace, seed: int
) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    if how == "reversed":
        return [(X, -Y) for X, Y in studies]
    if how == "shuffled":
        return [(X, Y[torch.randperm(len(Y), generator=generator)]) for X, Y in studies]
    if how == "unrelated":
        low, high = space.bounds
        center, weight = torch.rand(2, space.dim, generator=generator).double()
        return [
            (
                X,
                -(
                    weight * ((X - low) / (high - low).clamp_min(1e-9) - center) ** 2
                ).sum(-1, keepdim=True),
            )
            for X, _ in studies
        ]
    return studies


@lru_cache(maxsize=1)
def _read(path: Path) -> Studies:
    return {
        name: (torch.tensor(X).double(), torch.tensor(Y).double())
        for name, (X, Y) in json.loads(path.read_text()).items()
    }


def make_old_studies(half: str, data: Path, path: Path) -> None:
    """30 to 60 trials of Optuna's TPE on each data set of a half; larger is better."""
    from benchmarks.suite.peers.optuna_samplers import PlainTPE

    found = {}
    for kind, module in _KINDS.items():
        for name in _names(kind, half.upper()):
            problem = getattr(module, half.upper())[name].func(
                0, **{**getattr(module, half.upper())[name].keywords, "data": data}
            )
            seed = crc32(name.encode()) % 10_000
            told = PlainTPE._study(problem.space, seed)
            X, Y = [], []
            while len(X) < 30 + seed % 31:
                trial = told.study.ask()
                x = walk(problem.space, partial(told._suggest, trial))
                Y.append([-problem.truth(x)])
                told.study.tell(trial, -Y[-1][0])
                X.append(x.tolist())
            found[name] = (X, Y)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))


# -- the table ----------------------------------------------------------------------


def _scaled(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], int]:
    """Scaled regret by method, where all methods have a run; the shortest length."""
    table: dict[tuple[str, int], dict[str, Any]] = {}
    for one in runs:
        trace = (one.trace() - one.optimum) / (one.middle - one.optimum)
        table.setdefault((one.problem, one.seed), {})[one.method] = trace
    count = len({method for found in table.values() for method in found})
    full = [found for found in table.values() if len(found) == count]
    return full, min((len(t) for f in full for t in f.values()), default=0)


def report(runs: Sequence[Run], reference: str) -> str:
    """Mean scaled regret, mean rank, and paired tests against one method.

    Args:
        runs: Of all methods; data sets and seeds that one method lacks are left out.
        reference: The method that others are compared with.
    """
    lines = []
    for kind in ("yahpo", "learners", ""):
        full, length = _scaled([one for one in runs if one.problem.startswith(kind)])
        if not full:
            continue
        methods = sorted(full[0])
        shown = [n for n in _SHOWN if n <= length]
        traces = {m: np.stack([f[m][:length] for f in full]) for m in methods}
        lines += [
            f"{kind or 'all'}: {len(full)} runs; mean scaled regret; mean rank; "
            f"better : worse than {reference}, Wilcoxon p",
            "| evaluations | " + " | ".join(map(str, shown)) + " |",
            "|---|" + "---|" * len(shown),
        ]
        every = np.stack([traces[m] for m in methods])
        below = (every[:, None] > every + 1e-12).sum(1)
        tied = (np.abs(every[:, None] - every) <= 1e-12).sum(1) - 1
        ranks = dict(zip(methods, (1 + below + 0.5 * tied).mean(1), strict=True))
        for method in methods:
            cells = []
            for n in shown:
                a, b = traces[method][:, n - 1], traces[reference][:, n - 1]
                cell = f"{a.mean():.3f}; {ranks[method][n - 1]:.2f}"
                if method != reference:
                    p = wilcoxon(a, b).pvalue if (a != b).any() else 1.0
                    cell += f"; {(a < b).sum()} : {(a > b).sum()}, {p:.2g}"
                cells.append(cell)
            lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip()


def draw(runs: Sequence[Run], path: Path) -> None:
    """A picture of mean scaled regret, of runs that all methods have.

    Args:
        runs: Of all methods.
        path: Of the picture.
    """
    full, length = _scaled(runs)
    methods = sorted(full[0], key=lambda name: int(name.partition("-")[2] or 0))
    figure = new_figure(6.4, 3.8)
    ax = figure.subplots()
    for colour, method in zip((GREY, *COLOURS[1:]), methods, strict=False):
        mean = np.mean([found[method][:length] for found in full], axis=0)
        label = method.partition("-")[2] or "none"
        step_curve(ax, np.arange(1, length + 1), mean, color=colour, label=label)
    ax.set_yscale("log")
    ticks = [0.05, 0.1, 0.2, 0.5, 1.0]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("evaluations of the new data set")
    ax.set_ylabel(f"mean scaled regret, {len(full)} data sets")
    tidy(ax)
    ax.legend(title="old studies", frameon=False)
    figure.savefig(path, dpi=120)


def _methods(names: Sequence[str], old: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        kind, _, number = name.partition("-")
        found[name] = (
            METHODS["study"] if name == "without" else Transfer(kind, int(number), old)
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--half", choices=["develop", "report"], default="develop")
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=list(_KINDS))
    parser.add_argument("--data", type=Path, default=yahpo.DATA)
    parser.add_argument("--methods", nargs="+", help="default: without, earlier-10")
    parser.add_argument("--tasks", type=int, help="only the first so many of each kind")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=60, help="starts included")
    parser.add_argument("--old", type=Path, help="default: old.json in --out")
    parser.add_argument("--out", type=Path, default=Path("results/earlier"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--report", type=Path, nargs="+", help="only print these runs")
    parser.add_argument("--reference", default="earlier-10")
    parser.add_argument("--figure", type=Path, help="a picture of reported runs")
    options = parser.parse_args(arguments)
    if options.report:
        runs = [one for path in options.report for one in load(path)]
        if options.methods:
            runs = [one for one in runs if one.method in options.methods]
        print(report(runs, options.reference))
        if options.figure:
            draw(runs, options.figure)
        return
    methods = options.methods or ["without", "earlier-10"]
    out = options.out / options.half
    reported = {*methods, *(path.name for path in out.glob("runs/*/*"))}
    if options.reference not in reported:
        parser.error(f"--reference: expected one of {sorted(reported)}.")
    old = (options.old or out / "old.json").resolve()
    if not old.exists():
        make_old_studies(options.half, options.data, old)
    problems: dict[str, Any] = {}
    for kind in options.kinds:
        named: Mapping[str, Any] = getattr(_KINDS[kind], options.half.upper())
        for name in [*named][: options.tasks]:
            problems[name] = partial(named[name], data=options.data)
    run(
        _methods(methods, old),
        problems,
        seeds=range(options.first_seed, options.first_seed + options.seeds),
        budget=options.budget,
        out=out / "runs",
        processes=options.processes,
    )
    print(report(load(out / "runs"), options.reference))


if __name__ == "__main__":
    main()
