"""``python -m botorch_structured``: choose and tune a classifier, and show the result.

Nine scikit-learn learners, each with hyperparameters of its own, on a real data set:
one evaluation of each, then as many as the budget says, chosen by a ``Study``; and
random search from the same starts with the same budget beside it.
"""

from __future__ import annotations

__all__ = ["main"]

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

from botorch_structured import demo
from botorch_structured.demo import DemoComparison, Settings
from botorch_structured.test_functions import ScikitLearnCASH

_DATASETS = ("breast_cancer", "digits", "iris", "moons", "wine")
_FOLDER = Path("botorch_structured_runs")
_SETTINGS = "settings.json"


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m botorch_structured",
        description=(__doc__ or "").partition("\n\n")[2].strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="It takes about a minute. Stop it at any time: --resume "
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
        help="the folder for the logs, the code and the picture (default: a new one in "
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
    for name, least in (("budget", 1), ("seed", 0), ("timeout", 1e-3)):
        value = getattr(chosen, name)
        if value is not None and not value >= least:
            options.error(f"--{name}: expected at least {least}, got {value}")
    missing = [m for m in ("sklearn", "matplotlib") if find_spec(m) is None]
    if missing:
        options.exit(
            1,
            f"The demonstration needs {' and '.join(missing)}: "
            'python -m pip install "botorch-structured[demo]"\n',
        )
    try:
        folder, settings = _open(chosen)
        problem = ScikitLearnCASH(
            settings.dataset, seed=settings.seed, timeout=chosen.timeout
        )
        comparison = DemoComparison(problem, settings.budget, settings.seed, folder)
    except (OSError, ValueError) as error:
        options.error(str(error))
    try:
        _run(comparison, settings, folder)
    except KeyboardInterrupt:
        print(
            "\nStopped. Nothing that finished is lost; to go on:\n"
            f"    python -m botorch_structured --resume --out {folder}",
            file=sys.stderr,
        )
        return 130
    print(f"\n{time.perf_counter() - started:.0f} seconds")
    return 0


def _open(chosen: argparse.Namespace) -> tuple[Path, Settings]:
    """The folder to go on with and its settings, or a new one."""
    asked = {k: getattr(chosen, k) for k in ("dataset", "seed", "budget")}
    asked = {k: v for k, v in asked.items() if v is not None}
    if not chosen.resume:
        settings = Settings(**asked)
        folder = chosen.out or _new_folder(settings)
        if (folder / _SETTINGS).exists():
            raise ValueError(
                f"{folder} holds a study already: add --resume to go on with it, or "
                "name another folder with --out"
            )
        settings.write(folder / _SETTINGS)
        return folder, settings
    found = [chosen.out / _SETTINGS] if chosen.out else _FOLDER.glob(f"*/{_SETTINGS}")
    path = max(
        (path for path in found if path.exists()),
        key=lambda path: max(p.stat().st_mtime for p in path.parent.iterdir()),
        default=None,
    )
    if path is None:
        where = chosen.out or f"the folders of {_FOLDER}"
        raise ValueError(f"--resume: expected {_SETTINGS} in {where}, got none")
    settings = Settings.read(path)
    for key in ("dataset", "seed"):
        if asked.get(key, stored := getattr(settings, key)) != stored:
            raise ValueError(
                f"the study in {path.parent} has {key} {stored}, not {asked[key]}: "
                f"leave out --{key}, or name another folder with --out"
            )
    return path.parent, replace(settings, **asked)


def _new_folder(settings: Settings) -> Path:
    name = f"{settings.dataset}-seed{settings.seed}"
    names = itertools.chain([name], (f"{name}-{k}" for k in itertools.count(2)))
    return next(_FOLDER / one for one in names if not (_FOLDER / one).exists())


def _run(comparison: DemoComparison, settings: Settings, folder: Path) -> None:
    torch.set_num_threads(1)  # many small matrices: threads would only wait
    print(
        f"Which of nine classifiers, with which hyperparameters, for "
        f"{settings.dataset}? Seed {settings.seed},\n{len(comparison.starts)} starts "
        f"and {settings.budget} choices of each method, error by 5-fold "
        f"cross-validation.\nLogs: {folder}"
    )
    if done := len(comparison.evaluated):
        print(f"Going on after {done} evaluations.")
    longest = max(len(comparison.trials(method)) for method in demo.METHODS)
    if longest > comparison.length:
        print(
            f"{longest - len(comparison.starts)} choices of one method are there, more "
            "than --budget: all are kept and shown."
        )
    try:
        for method in demo.METHODS:
            comparison.run(method)
        print(f"\n{demo.learner_table(comparison)}\n\n{demo.summary(comparison)}")
        if demo.best_trial(comparison.trials(demo.MODEL)) is not None:
            path = folder / "best_model.py"
            script = demo.code(comparison, settings.dataset)
            path.write_text(script, encoding="utf-8")
            print(f"\nThe best model, to paste ({path}):\n\n{script}")
        demo.picture([comparison], folder / "result.png")
        print(f"The picture: {folder / 'result.png'}")
        print("One seed says little about a method: the picture in README has twenty.")
    finally:
        comparison.problem.close()


if __name__ == "__main__":
    sys.exit(main())
