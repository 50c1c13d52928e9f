"""``python -m botorch_structured``: choose and tune a classifier, and show the result.

Nine scikit-learn learners, each with hyperparameters of its own, on a real data set:
one evaluation of each, then as many as the budget says, chosen by ``TreeStructuredGP``;
and random search from the same starts with the same budget beside it.
"""

from __future__ import annotations

__all__ = ["main"]

import argparse
import itertools
import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botorch_structured.demo.log import EvaluationLog
    from botorch_structured.demo.study import Study

_DATASETS = ("breast_cancer", "digits", "iris", "moons", "wine")
_FOLDER = Path("botorch_structured_runs")
_LOG = "evaluations.jsonl"


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m botorch_structured",
        description=(__doc__ or "").partition("\n\n")[2].strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="It takes about a minute on two cores. Stop it at any time: --resume "
        "goes on where it was.",
    )
    options.add_argument(
        "--dataset",
        choices=_DATASETS,
        help="the data, bundled with scikit-learn (default: breast_cancer)",
    )
    options.add_argument(
        "--budget",
        type=int,
        metavar="N",
        help="evaluations that each method chooses after the nine starts (default: 50)",
    )
    options.add_argument(
        "--seed",
        type=int,
        metavar="S",
        help="decides folds, starts and random choices (default: 0)",
    )
    options.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"the folder for the log, the code and the picture (default: a new one in "
        f"{_FOLDER})",
    )
    options.add_argument(
        "--resume",
        action="store_true",
        help="go on with the study in DIR, or with the latest one, without losing or "
        "repeating an evaluation; a larger --budget extends it",
    )
    options.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="an evaluation that takes longer is stopped and counts as failed "
        "(default: 30)",
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
    options = parser()
    chosen = options.parse_args(arguments)
    if chosen.budget is not None and chosen.budget < 1:
        options.error(f"--budget: expected a positive number, got {chosen.budget}")
    if chosen.seed is not None and chosen.seed < 0:
        options.error(
            f"--seed: expected a number that is not negative, got {chosen.seed}"
        )
    if not chosen.timeout > 0:
        options.error(f"--timeout: expected a positive number, got {chosen.timeout}")
    missing = [m for m in ("sklearn", "matplotlib") if find_spec(m) is None]
    if missing:
        options.exit(
            1,
            f"The demonstration needs {' and '.join(missing)}: "
            'python -m pip install "botorch-structured[demo]"\n',
        )
    try:
        from botorch_structured.demo.study import Study
        from botorch_structured.test_functions import ScikitLearnCASH

        log = _open_log(chosen)
        dataset, seed, budget = (log.settings[k] for k in ("dataset", "seed", "budget"))
        problem = ScikitLearnCASH(dataset, seed=seed, timeout=chosen.timeout)
        study = Study(problem, log, budget=budget, seed=seed)
    except (OSError, ValueError) as error:
        options.error(str(error))
    try:
        _run(study)
    except KeyboardInterrupt:
        print(
            "\nStopped. Nothing that finished is lost; to go on:\n"
            f"    python -m botorch_structured --resume --out {study.log.path.parent}",
            file=sys.stderr,
        )
        return 130
    print(f"\n{time.perf_counter() - started:.0f} seconds")
    return 0


def _open_log(chosen: argparse.Namespace) -> EvaluationLog:
    """The log to go on with, or a new one in a folder that has none."""
    from botorch_structured.demo.log import EvaluationLog

    asked = {k: getattr(chosen, k) for k in ("dataset", "seed", "budget")}
    asked = {k: v for k, v in asked.items() if v is not None}
    if not chosen.resume:
        settings = {"dataset": "breast_cancer", "seed": 0, "budget": 50, **asked}
        folder = chosen.out or _new_folder(settings)
        for above in (folder, *folder.parents):
            if above.exists() and not above.is_dir():
                raise ValueError(f"--out: expected a folder, got {above}, a file")
        if (folder / _LOG).exists():
            raise ValueError(
                f"{folder} holds a study already: add --resume to go on with it, or "
                "name another folder with --out"
            )
        return EvaluationLog.create(folder / _LOG, settings)
    logs = [chosen.out / _LOG] if chosen.out else [*_FOLDER.glob(f"*/{_LOG}")]
    path = max((p for p in logs if p.exists()), key=os.path.getmtime, default=None)
    if path is None:
        where = chosen.out or f"the folders of {_FOLDER}"
        raise ValueError(f"--resume: expected {_LOG} in {where}, got none")
    log = EvaluationLog.resume(path)
    for key in log.study:
        if asked.get(key, log.settings[key]) != log.settings[key]:
            raise ValueError(
                f"the study in {path.parent} has {key} {log.settings[key]}, not "
                f"{asked[key]}: leave out --{key}, or name another folder with --out"
            )
    log.settings.update(asked)
    return log


def _new_folder(settings: dict[str, object]) -> Path:
    name = f"{settings['dataset']}-seed{settings['seed']}"
    numbered = (_FOLDER / f"{name}-{k}" for k in itertools.count(2))
    folders = itertools.chain([_FOLDER / name], numbered)
    return next(folder for folder in folders if not folder.exists())


def _run(study: Study) -> None:
    import torch

    from botorch_structured.demo import report
    from botorch_structured.demo.study import MODEL, RANDOM

    torch.set_num_threads(1)  # many small matrices: threads would only wait
    log, dataset = study.log, study.log.settings["dataset"]
    folder = log.path.parent
    print(
        f"Which of nine classifiers, with which hyperparameters, for {dataset}? "
        f"Seed {study.seed},\n{len(study.starts)} starts and {study.budget} choices of "
        f"each method, error by 5-fold cross-validation.\nLog: {log.path}"
    )
    if log.records:
        print(f"Going on after {len(log.records)} evaluations.")
    try:
        for method in (MODEL, RANDOM):
            _advance(study, method)
        print(f"\n{report.learner_table(study)}\n\n{report.summary(study)}")
        if report.best_record(study.records(MODEL)).error is None:
            path, script = folder / "best_model.py", report.code(study, dataset)
            path.write_text(script, encoding="utf-8")
            print(f"\nThe best model, to paste ({path}):\n\n{script}")
        report.picture([study], folder / "result.png")
        print(f"The picture: {folder / 'result.png'}")
    finally:
        study.problem.close()


def _advance(study: Study, method: str) -> None:
    """Run a method to its end under a progress bar that shows the incumbent."""
    from tqdm import tqdm

    from botorch_structured.demo.report import best_record

    with tqdm(
        total=study.length,
        initial=len(study.records(method)),
        desc=f"{method:18}",
        unit="eval",
        bar_format="{desc}{percentage:3.0f}%|{bar:24}| {n_fmt}/{total_fmt} "
        "[{elapsed}<{remaining}{postfix}]",
    ) as bar:
        for _ in itertools.chain([None], study.run(method)):  # once before the first
            records = study.records(method)
            bar.update(len(records) - bar.n)
            if records:
                best = best_record(records)
                learner = best.config["learner"]
                bar.set_postfix_str(f"best error {best.value:.4f} ({learner})")


if __name__ == "__main__":
    sys.exit(main())
