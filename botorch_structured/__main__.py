"""``python -m botorch_structured``: choose and tune a classifier, and show the result.

Nine scikit-learn learners, each with hyperparameters of its own, on a real data set:
one evaluation of each, then as many as the budget says, chosen by a ``Study``.
"""

from __future__ import annotations

__all__ = ["main"]

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from botorch_structured.study import Study
from botorch_structured.test_functions import ScikitLearnCASH


class FailedEvaluation(Exception):
    """A learner raised an exception, or took too long."""


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m botorch_structured",
        description=(__doc__ or "").partition("\n\n")[2].strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="It takes about a minute. Stop it at any time: the same command goes on "
        "where it was, and with a larger --budget it goes on from its end.",
    )
    options.add_argument(
        "--dataset",
        choices=("breast_cancer", "digits", "iris", "wine"),
        default="breast_cancer",
        help="the data, bundled with scikit-learn (default: breast_cancer)",
    )
    options.add_argument(
        "--budget",
        type=int,
        default=50,
        metavar="N",
        help="evaluations that are chosen after the nine starts (default: 50)",
    )
    options.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="decides folds, starts and random choices (default: 0)",
    )
    options.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the folder for the log, the code and the picture, of a study to go on "
        "with if there is one (default: botorch_structured_runs/DATASET-seedS)",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration.

    Args:
        arguments: The command line; that of the process by default.

    Returns:
        The exit status.
    """
    started = time.perf_counter()
    torch.set_num_threads(1)  # many small matrices: threads would only wait
    options = parser()
    chosen = options.parse_args(arguments)
    missing = [m for m in ("sklearn", "matplotlib") if find_spec(m) is None]
    if missing:
        options.exit(
            1,
            f"The demonstration needs {' and '.join(missing)}: "
            'python -m pip install "botorch-structured[demo]"\n',
        )
    if chosen.budget < 1:
        options.error(f"--budget: expected at least 1, got {chosen.budget}")
    name = f"{chosen.dataset}-seed{chosen.seed}"
    folder = chosen.out or Path("botorch_structured_runs") / name
    log = folder / "evaluations.jsonl"
    try:
        problem = ScikitLearnCASH(chosen.dataset, seed=chosen.seed)
        folder.mkdir(parents=True, exist_ok=True)
        study = Study(
            problem.space,
            # a log of another data set is refused by this name
            {f"{chosen.dataset} error": "minimize"},
            log=log,
            seed=10_000 * chosen.seed,
            starts=problem.space.decode(problem.starts(chosen.seed)),
        )
    except (OSError, ValueError) as error:
        options.error(str(error))
    print(
        "Which of nine classifiers, with which hyperparameters, for "
        f"{chosen.dataset}? Seed {chosen.seed},\nnine starts and {chosen.budget} "
        f"choices, error by 5-fold cross-validation.\nThe log: {log}"
    )
    try:
        run(study, problem, len(problem.starts(chosen.seed)) + chosen.budget)
        report(study, problem, chosen.dataset, folder)
    except KeyboardInterrupt:
        print(
            "\nStopped. Nothing that finished is lost; to go on:\n"
            f"    python -m botorch_structured --out {folder} "
            f"--dataset {chosen.dataset} --seed {chosen.seed}",
            file=sys.stderr,
        )
        return 130
    print(f"\n{time.perf_counter() - started:.0f} seconds")
    return 0


def run(study: Study, problem: ScikitLearnCASH, length: int) -> None:
    """Make the missing evaluations, under a progress bar."""

    def evaluate(config: Mapping[str, Any]) -> float:
        result = problem.evaluate(config)
        if result.error is not None:
            raise FailedEvaluation(result.error)
        # two errors that differ by the order of a sum are the same
        return round(result.value, 12)

    done = len(study.trials)
    if done:
        print(f"Going on after {done} evaluations.")
    study.optimize(evaluate, max(0, length - done), catch=FailedEvaluation)


def report(study: Study, problem: ScikitLearnCASH, dataset: str, folder: Path) -> None:
    """Print the table and the best model as code, and draw the study."""
    failed = [trial for trial in study.trials if trial.value is None]
    if failed:
        print(
            f"\n{len(failed)} of {len(study.trials)} evaluations failed, the last "
            f"with: {failed[-1].error}"
        )
    if len(failed) < len(study.trials):
        config, best = study.best
        print(f"\n{learner_table(study, config)}\n")
        code = script(problem, dataset, config)
        path = folder / "best_model.py"
        path.write_text(code, encoding="utf-8")
        print(f"The best model, of error {best:.4f}, to paste ({path}):\n\n{code}")
    study.plot().savefig(folder / "result.png", dpi=150)
    print(f"The picture: {folder / 'result.png'}")


def learner_table(study: Study, best: Mapping[str, Any]) -> str:
    """A row for each learner: its evaluations, and what the model expects of it."""
    lines = ["learner    evaluations  best error   predicted    next"]
    lines.append("-" * len(lines[0]))
    for row in study.explain(best)["paths"]:
        learner = row["path"].removeprefix("learner=")
        error = "failed" if row["best"] is None else f"{row['best']:.4f}"
        lines.append(
            f"{learner:10}{row['trials']:>12}{error:>12}{row['mean']:>12.4f}"
            f"{row['share']:>8.0%}"
            + ("   <- best" if learner == best["learner"] else "")
        )
    lines.append(
        "predicted: the least error that the model expects of the learner; next: its "
        "share of the\ncriterion by which the next evaluation would be chosen."
    )
    return "\n".join(lines)


def script(problem: ScikitLearnCASH, dataset: str, config: Mapping[str, Any]) -> str:
    """A configuration as code that loads the data and prints its error."""
    return f"""\
from sklearn.datasets import load_{dataset}

X, y = load_{dataset}(return_X_y=True)

{problem.to_sklearn_code(config)}print(f"error {{error:.4f}}")
"""


if __name__ == "__main__":
    sys.exit(main())
