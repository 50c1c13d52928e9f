"""What a study found: tables, code to paste, a picture."""

from __future__ import annotations

__all__ = ["best_record", "code", "learner_table", "picture", "summary"]

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from botorch_structured.acquisition import PathExpectedImprovement
from botorch_structured.demo.log import Record
from botorch_structured.demo.study import MODEL, RANDOM, Study
from botorch_structured.suggest import fit_models

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def best_record(records: list[Record]) -> Record:
    """The first with the smallest error; a failure only where nothing worked."""
    return min(records, key=lambda record: (record.error is not None, record.value))


def learner_table(study: Study) -> str:
    """A row for each learner: how often it was tried, its best, its path EI."""
    rows = study.space.starts(kind="middle")  # one of each learner
    learners = [str(config["learner"]) for config in study.space.decode(rows)]
    X, errors = study.data(MODEL)
    tree = fit_models(study.space, X, -errors)[0]
    expected = PathExpectedImprovement(tree, best_f=-errors.min())(rows.unsqueeze(-2))
    improvement = dict(zip(learners, expected.tolist(), strict=True))
    best = best_record(study.records(MODEL))
    winner = None if best.error is not None else best.config["learner"]
    lines = [
        f"{'':10}{MODEL:^34}{RANDOM:^24}",
        f"{'learner':10}{'evaluations':>12}{'best error':>12}{'path EI':>10}"
        f"{'evaluations':>14}{'best error':>12}",
    ]
    lines.append("-" * len(lines[1]))
    for learner in learners:
        cells = f"{learner:10}"
        for method, width in ((MODEL, 12), (RANDOM, 14)):
            tried = [r for r in study.records(method) if r.config["learner"] == learner]
            cells += f"{len(tried):>{width}}{_best(tried):>12}"
            if method == MODEL:
                cells += f"{improvement[learner]:>10.1e}"
        lines.append(cells + ("   <- best" if learner == winner else ""))
    lines.append(
        "path EI: how much better than the best error the model expects a learner to be"
        "\nat its typical level, its own hyperparameters aside."
    )
    return "\n".join(lines)


def _best(records: list[Record]) -> str:
    good = [r.value for r in records if r.error is None]
    if good:
        return f"{min(good):.4f}"
    return "failed" if records else "-"


def summary(study: Study) -> str:
    """Both methods in two lines, and the failures."""
    lines = []
    for method in (MODEL, RANDOM):
        records = study.records(method)
        best = best_record(records)
        found = (
            f"error {best.value:.4f} with {best.config['learner']}, found at "
            f"evaluation {records.index(best) + 1} of {len(records)}"
        )
        lines.append(f"{method:18} {found if best.error is None else 'nothing worked'}")
    failed = [r for r in study.log.records if r.error is not None]
    if failed:
        lines.append(
            f"{len(failed)} of {len(study.log.records)} evaluations failed, the last "
            f"with: {failed[-1].error}"
        )
    return "\n".join(lines)


def code(study: Study, dataset: str) -> str:
    """The winner as a script that loads the data and prints its error."""
    best = best_record(study.records(MODEL))
    if dataset == "moons":
        load = (
            "import numpy as np\nfrom sklearn.datasets import make_moons\n\n"
            f"X, y = make_moons(500, noise=0.3, random_state={study.problem.seed})\n"
            f"noise = np.random.default_rng({study.problem.seed})"
            ".standard_normal((500, 4))\nX = np.hstack([X, noise])"
        )
    else:
        load = (
            f"from sklearn.datasets import load_{dataset}\n\n"
            f"X, y = load_{dataset}(return_X_y=True)"
        )
    body = study.problem.to_sklearn_code(best.config).rstrip()
    return f'{load}\n\n{body}\nprint(f"error {{error:.4f}}")\n'


def picture(studies: Sequence[Study], path: Path | None = None) -> Figure:
    """Traces of both methods, and where the evaluations of the model went.

    Args:
        studies: One study, or several of the same problem with different seeds. The
            traces are then medians, and the tree is that of the first one.
        path: Where to save it.

    Raises:
        ImportError: Without matplotlib.
    """
    from matplotlib.figure import Figure

    from botorch_structured.plots import plot_traces, plot_tree
    from botorch_structured.plots.traces import best_so_far

    first = studies[0]
    figure = Figure(figsize=(12.5, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.2])
    starts = len(first.starts)
    traces = {
        method: torch.stack([s.data(method)[1].reshape(-1) for s in studies])
        for method in (MODEL, RANDOM)
    }
    plot_traces(traces, left, num_starts=starts, ylabel="cross-validation error")
    # The best error among the first few starts depends on their order only.
    best = np.concatenate([best_so_far(runs) for runs in traces.values()])
    low, high = best.min(), np.median(best[:, starts - 1])
    room = max(0.15 * (high - low), 0.02 * high, 1e-4)
    left.set_ylim(max(low - room, 0.0), high + 3 * room)
    left.set_title("Best error so far", loc="left", fontsize="medium")
    X, errors = first.data(MODEL)
    failed = torch.tensor([[r.error is not None] for r in first.records(MODEL)])
    plot_tree(
        first.space,
        ax=right,
        X=X,
        Y=errors.masked_fill(failed, math.nan),
        value_format=".4f",
    )
    right.set_title(f"Where {MODEL} went", loc="left", fontsize="medium")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
