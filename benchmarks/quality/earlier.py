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
``rgpe-K`` is the ranking-weighted ensemble [Feurer2018rgpe]_ as in BoTorch's tutorial,
begun with three points that suit most old studies, ``warm-K`` is ``TPESampler()`` that
was told all old trials. Of ``portfolio-K`` (`OldStudiesMean.starts`, then random
points), ``copula-K`` (quantile-based Thompson sampling [Salinas2020quantile]_),
``ablr-K`` (a regression on features of `MultiTaskABLR`) and ``warmbest-K`` (the best
trial of each study) the runs are kept, the code is not.

.. [Feurer2018rgpe]
    M. Feurer, B. Letham, F. Hutter and E. Bakshy. Practical Transfer Learning for
    Bayesian Optimization. arXiv:1802.02219, 2018.
.. [Salinas2020quantile]
    D. Salinas, H. Shen and V. Perrone. A Quantile-based Approach for Hyperparameter
    Transfer Learning. ICML 2020.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from botorch.models import SingleTaskGP
from scipy.stats import rankdata, wilcoxon
from torch import Tensor

from benchmarks.command import with_data
from benchmarks.fits import fitted
from benchmarks.harness import run
from benchmarks.suite import yahpo, yahpo_learners
from benchmarks.suite.optima import improve
from benchmarks.suite.ours import METHODS
from benchmarks.suite.peers.common import first_feasible, walk
from benchmarks.suite.peers.gaussian_processes import Encoding
from benchmarks.suite.peers.optuna_samplers import PlainTPE
from benchmarks.summary import Run, load, pair
from botorch_structured._botorch_names import log_ei_helper
from botorch_structured.models.tree.old_studies import OldStudiesMean
from botorch_structured.spaces import SearchSpace
from botorch_structured.study import Study

_KINDS = {"yahpo": yahpo, "learners": yahpo_learners}
_SHOWN = (1, 3, 5, 10, 15, 20, 30, 40, 60)
_SAMPLES = 256  # of ranks, for the weights of the ensemble

OldStudies = list[tuple[Tensor, Tensor]]


class Transfer:
    """A method that knows old studies of other data sets of its kind.

    Args:
        name: The kind of method and the number of old studies, ``"earlier-10"``.
        old: The file of old studies.
    """

    def __init__(self, name: str, old: Path) -> None:
        self.name = name
        self.old = old

    def _make(self, problem: Any, seed: int) -> Any:
        name = f"{problem.kind}-{problem.name}"
        return _learnt(self.name, name, seed, self.old, problem.space)

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

    num_starts = 1

    def __init__(self, old: OldStudies, space: SearchSpace) -> None:
        self.mean = OldStudiesMean.from_studies(old, space)
        self.read = Encoding(space)

    def starts(self, space: SearchSpace, seed: int) -> Tensor:
        return self.mean.starts(self.num_starts)

    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        study = Study(space, "maximize", seed=seed, earlier=self.mean)
        study.tell_many(space.decode(X), Y.flatten().tolist())
        return space.encode(study.ask(1))


def _standardised(X: Tensor, y: Tensor) -> SingleTaskGP:
    y = (y - y.mean()) / y.std().clamp_min(1e-9)
    return fitted(SingleTaskGP(X, y[:, None])).eval()


def _maximised(
    space: SearchSpace,
    moments: Callable[[Tensor], tuple[Tensor, Tensor]],
    incumbent: Tensor,
    X: Tensor,
    seed: int,
) -> Tensor:
    """The largest LogEI among random points, known ones, and changes of these."""

    def negative(points: Tensor) -> Tensor:
        mean, variance = moments(points)
        sigma = variance.clamp_min(1e-12).sqrt()
        value = log_ei_helper((mean - incumbent) / sigma) + sigma.log()
        is_known = (points[:, None] - X).abs().amax(-1).amin(-1) < 1e-9
        return (-value).masked_fill(is_known, torch.inf)

    pool = torch.cat([space.sample(1_000, seed=seed), X])
    values = negative(pool)
    parents = values.topk(6, largest=False).indices
    points, least = improve(
        space, negative, pool[parents], values[parents], 14, 10, seed
    )
    return points[least.argmin()][None]


class _RGPE(_Earlier):
    """An ensemble of GPs of old studies and of the new one, by how they rank."""

    num_starts = 3

    def __init__(self, old: OldStudies, space: SearchSpace) -> None:
        super().__init__(old, space)
        self.models = [_standardised(self.read(X), Y[:, 0]) for X, Y in old]

    @torch.no_grad()
    def _losses(self, x: Tensor, y: Tensor, new: SingleTaskGP) -> Tensor:
        """Pairs that samples of each model rank wrongly, ``models x samples``."""
        higher = y[:, None] < y
        samples = [m.posterior(x).rsample(torch.Size([_SAMPLES])) for m in self.models]
        # of the new study's model each outcome is predicted from all others
        prior = new.likelihood(new.forward(x)).covariance_matrix
        inverse = torch.linalg.inv(prior)
        scale = inverse.diagonal().rsqrt()
        z = new.train_targets
        mean = z - (inverse @ (z - new.forward(x).mean)) / inverse.diagonal()
        samples.append((mean + scale * torch.randn(_SAMPLES, len(y)))[..., None])
        f = torch.cat(samples, -1).permute(2, 0, 1)
        ranked = f[..., :, None] < f[..., None, :]
        # of the new model, a prediction against the outcomes
        ranked[-1] = f[-1][..., :, None] < z
        return (ranked ^ higher).sum((-1, -2)).double()

    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        x = self.read(X)
        y = Y[:, 0]
        new = _standardised(x, y)
        losses = self._losses(x, y, new)
        best = losses == losses.amin(0)
        weights = (best / best.sum(0)).mean(-1)
        # old models that are worse than the 95th percentile of the new one do not count
        dropped = losses.median(-1).values > losses[-1].quantile(0.95)
        weights[:-1][dropped[:-1]] = 0.0
        weights = (weights / weights.sum()).tolist()
        both = zip(weights, [*self.models, new], strict=True)
        used = [(w, model) for w, model in both if w > 0.0]

        @torch.no_grad()
        def moments(points: Tensor) -> tuple[Tensor, Tensor]:
            several = [(w, m.posterior(self.read(points)[:, None])) for w, m in used]
            mean = sum(w * p.mean.flatten() for w, p in several)
            return mean, sum(w * w * p.variance.flatten() for w, p in several)

        return _maximised(space, moments, moments(X)[0].max(), X, seed)


class _WarmTPE:
    """Optuna's TPE that was told old trials as if they were new."""

    def __init__(self, old: OldStudies, space: SearchSpace) -> None:
        self.old = old

    def starts(self, space: SearchSpace, seed: int) -> Tensor:
        return self._next(space, self.old, seed)

    def __call__(self, space: SearchSpace, X: Tensor, Y: Tensor, seed: int) -> Tensor:
        return self._next(space, [*self.old, (X, Y)], seed)

    def _next(self, space: SearchSpace, told: OldStudies, seed: int) -> Tensor:
        study = PlainTPE().study(space, seed)
        for X, Y in told:
            study.add(X, Y)
        return first_feasible(space, study.suggestions(), seed).reshape(1, -1)


_CORRUPT = ("shuffled", "reversed", "unrelated")
_MAKERS: dict[str, Any] = {
    "earlier": _Earlier,
    **dict.fromkeys(_CORRUPT, _Earlier),
    "rgpe": _RGPE,
    "warm": _WarmTPE,
}


# -- old studies --------------------------------------------------------------------


@lru_cache(maxsize=1)
def _learnt(method: str, name: str, seed: int, old: Path, space: SearchSpace) -> Any:
    """A method after it has read its old studies."""
    kind, _, number = method.partition("-")
    module = _KINDS[name.partition("-")[0]]
    half = module.DEVELOP if name in module.DEVELOP else module.REPORT
    others = [other for other in half if other != name]
    random.Random(f"{name} {seed}").shuffle(others)
    studies = _read(old)
    chosen = [studies[other] for other in others[: int(number)]]
    return _MAKERS[kind](_corrupted(chosen, kind, space, seed), space)


def _corrupted(
    studies: OldStudies, how: str, space: SearchSpace, seed: int
) -> OldStudies:
    generator = torch.Generator().manual_seed(seed)
    if how == "reversed":
        return [(X, -Y) for X, Y in studies]
    if how == "shuffled":
        return [(X, Y[torch.randperm(len(Y), generator=generator)]) for X, Y in studies]
    if how == "unrelated":
        low, high = space.bounds
        width = (high - low).clamp_min(1e-9)
        center, weight = torch.rand(2, space.dim, generator=generator).double()
        squares = [(weight * ((X - low) / width - center) ** 2) for X, _ in studies]
        both = zip(studies, squares, strict=True)
        return [(X, -square.sum(-1, keepdim=True)) for (X, _), square in both]
    return studies


@lru_cache(maxsize=1)
def _read(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    return {
        name: (torch.tensor(X).double(), torch.tensor(Y).double())
        for name, (X, Y) in json.loads(path.read_text()).items()
    }


def make_old_studies(half: str, data: Path, path: Path) -> None:
    """30 to 60 trials of Optuna's TPE on each data set of a half; larger is better."""
    studies = {}
    for module in _KINDS.values():
        for name, factory in getattr(module, half.upper()).items():
            problem: Any = with_data(factory, data)(0)
            seed = crc32(name.encode()) % 10_000
            told = PlainTPE().study(problem.space, seed)
            X: list[list[float]] = []
            Y: list[list[float]] = []
            while len(X) < 30 + seed % 31:
                trial = told.study.ask()
                x = walk(problem.space, partial(told.suggest, trial))
                value = problem.truth(x)
                told.study.tell(trial, value)
                X.append(x.tolist())
                Y.append([-value])
            studies[name] = (X, Y)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(studies))


# -- the table ----------------------------------------------------------------------


def _scaled(runs: Sequence[Run]) -> dict[str, np.ndarray]:
    """Scaled regret by method, ``runs x evaluations``, where all methods have a run."""
    methods = sorted({one.method for one in runs})
    length = min((len(one.values) for one in runs), default=0)
    if not length:
        return {}
    paired = pair(runs, methods, length)
    middles = {one.problem: one.middle for one in runs}
    middle = np.array([middles[name] for name in paired.problems], dtype=float)
    room = (middle - paired.optima)[:, None, None]
    regret = (paired.traces - paired.optima[:, None, None]) / room
    return dict(zip(methods, regret.swapaxes(0, 1), strict=True))


def report(runs: Sequence[Run], reference: str) -> str:
    """Mean scaled regret, mean rank, and paired tests against one method.

    Args:
        runs: Of all methods; data sets and seeds that one method lacks are left out.
        reference: The method that others are compared with.
    """
    text = []
    for kind in ("yahpo", "learners", ""):
        traces = _scaled([one for one in runs if one.problem.startswith(kind)])
        if not traces or not traces[reference].size:
            continue
        count, length = traces[reference].shape
        shown = [n for n in _SHOWN if n <= length]
        text += [
            f"{kind or 'all'}: {count} runs; mean scaled regret; mean rank; "
            f"better : worse than {reference}, Wilcoxon p",
            "| evaluations | " + " | ".join(map(str, shown)) + " |",
            "|---|" + "---|" * len(shown),
        ]
        ranks = rankdata(np.stack([*traces.values()]).round(12), axis=0).mean(1)
        for k, (method, trace) in enumerate(traces.items()):
            cells = []
            for n in shown:
                a = trace[:, n - 1]
                b = traces[reference][:, n - 1]
                cell = f"{a.mean():.3f}; {ranks[k, n - 1]:.2f}"
                if method != reference:
                    p = wilcoxon(a, b).pvalue if (a != b).any() else 1.0
                    cell += f"; {(a < b).sum()} : {(a > b).sum()}, {p:.2g}"
                cells.append(cell)
            text.append(f"| `{method}` | " + " | ".join(cells) + " |")
        text.append("")
    return "\n".join(text).rstrip()


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
    parser.add_argument("--report", type=Path, help="only print these runs")
    parser.add_argument("--reference", default="earlier-10")
    options = parser.parse_args(arguments)
    if options.report:
        runs = load(options.report)
        if options.methods:
            runs = [one for one in runs if one.method in options.methods]
        print(report(runs, options.reference))
        return
    names = options.methods or ["without", "earlier-10"]
    if options.reference not in names:
        parser.error(f"--reference: expected one of {names}.")
    out = options.out / options.half
    old = (options.old or out / "old.json").resolve()
    if not old.exists():
        make_old_studies(options.half, options.data, old)
    problems: dict[str, Any] = {}
    for kind in options.kinds:
        half = getattr(_KINDS[kind], options.half.upper())
        for name in list(half)[: options.tasks]:
            problems[name] = with_data(half[name], options.data)
    methods = {
        name: METHODS["study"] if name == "without" else Transfer(name, old)
        for name in names
    }
    run(
        methods,
        problems,
        seeds=range(options.first_seed, options.first_seed + options.seeds),
        budget=options.budget,
        out=out / "runs",
        processes=options.processes,
    )
    runs = [one for one in load(out / "runs") if one.method in names]
    print(report(runs, options.reference))


if __name__ == "__main__":
    main()
