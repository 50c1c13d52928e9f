"""Make the README's picture: the demonstration with several seeds.

    python docs/make_image.py

Takes less than a minute a seed, and goes on where it was when it is run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tqdm import tqdm

from botorch_structured.demo import EvaluationLog, Study
from botorch_structured.demo.report import best_record, picture
from botorch_structured.demo.study import MODEL, RANDOM
from botorch_structured.test_functions import ScikitLearnCASH

ROOT = Path(__file__).resolve().parent.parent


def finished_study(folder: Path, seed: int, budget: int) -> Study:
    """The study of a seed, run as far as it has not been."""
    path = folder / f"seed{seed}.jsonl"
    settings = {"dataset": "breast_cancer", "seed": seed, "budget": budget}
    log = (
        EvaluationLog.resume(path)
        if path.exists()
        else EvaluationLog.create(path, settings)
    )
    problem = ScikitLearnCASH(seed=seed, timeout=30.0)
    study = Study(problem, log, budget, seed)
    for method in (MODEL, RANDOM):
        for _ in study.run(method):
            pass
    problem.close()
    return study


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    # Seeds below 200 were used to choose the model's defaults.
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--budget", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=ROOT / "results" / "demo_image")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/demo.png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    studies = []
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for seed in tqdm(seeds, desc="seeds"):
        studies.append(finished_study(options.folder, seed, options.budget))
        found = [best_record(studies[-1].records(m)) for m in (MODEL, RANDOM)]
        tqdm.write(f"seed {seed}: " + ", ".join(f"{r.value:.4f}" for r in found))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    picture(studies, options.out)


if __name__ == "__main__":
    main()
