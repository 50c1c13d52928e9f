"""Models of some of the rows against models of all: densities, and regrets of studies.

    python -m benchmarks.quality.some_rows density [--out FILE] [--first-seed S]
    python -m benchmarks.quality.some_rows regret [--out FILE] [--budget K] [--seeds K]
    python -m benchmarks.quality.some_rows report [--out FILE]

``density``: the mean log density (nats a point) of 400 further points under a
`TreeStructuredGP` of 1,800 rows, fitted to some rows of a path, as `suggest` does, and
to all. Rows are random, or as a search leaves them: two thirds lie
around the best of the others. ``regret``: whole studies, with ``max_rows`` and fits as
they are by default, with all rows for both, and with 200 rows. The functions are made
for this: six paths, smooth or rough, with and without noise. Results that the file has
are not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.space_rows import six_paths
from benchmarks.summary import markdown_table
from botorch_structured.study import Study
from botorch_structured.suggest import fit_models, surrogates

#: Whether a function is rough, and the deviation of its noise.
FUNCTIONS = {
    "smooth": (False, 0.0),
    "smooth, some noise": (False, 0.02),
    "smooth, much noise": (False, 0.4),
    "rough": (True, 0.0),
    "rough, some noise": (True, 0.05),
}
#: How many rows of a path models see; None: all, in the fits, too.
STUDIES = {"default": 1_000, "all": None, "200 rows": 200}
_STEPS = (100, 300, 600, 1200)


def error(config: dict[str, Any], rough: bool) -> float:
    """The function, without noise."""
    is_adam = config["optimizer"] == "Adam"
    layers = int(config["n_layers"])
    rate = math.log10(config["lr"])
    own = config["beta"] - 0.9 if is_adam else config["momentum"] - 0.8
    total = 0.3 / layers + (0.0 if is_adam else 0.02) + own**2
    total += (rate + (3.0 if is_adam else 1.5)) ** 2 / 5
    total += (math.log10(config["decay"]) + 3.0) ** 2 / 20
    for i in range(layers):
        total += (math.log2(config[f"units_{i}"]) - 5 - i) ** 2 / 20
    if rough:
        total += 0.3 * math.sin(6.0 * rate) + 0.5 * (own > 0.05)
    return total


def optimum(rough: bool) -> float:
    """The smallest value: all but the rate has its best value of its own."""
    config = {"n_layers": "3", "decay": 1e-3, "beta": 0.9, "momentum": 0.8}
    config |= {f"units_{i}": 32 << i for i in range(3)}
    return min(
        error({**config, "optimizer": name, "lr": 10.0**rate}, rough)
        for name in ("Adam", "SGD")
        for rate in torch.linspace(-5, -1, 4_001).tolist()
    )


@contextmanager
def fits_to_all(really: bool) -> Iterator[None]:
    """Fits to all rows within it."""
    most = surrogates._ROWS_OF_PATH
    surrogates._ROWS_OF_PATH = 1 << 40 if really else most
    try:
        yield
    finally:
        surrogates._ROWS_OF_PATH = most


def _data(function: str, searched: bool, seed: int) -> tuple[Tensor, Tensor]:
    """2,200 points, and minus their errors."""
    space = six_paths()
    rough, noise = FUNCTIONS[function]
    g = torch.Generator().manual_seed(seed)

    def values(X: Tensor) -> Tensor:
        errors = [[-error(config, rough)] for config in space.decode(X)]
        told = torch.tensor(errors, dtype=torch.double)
        return told + noise * torch.randn(told.shape, generator=g, dtype=torch.double)

    X = space.sample(600 if searched else 2_200, seed)
    Y = values(X)
    if searched:
        best = X[Y[:, 0].topk(20).indices]
        near = best[torch.randint(20, (1_600,), generator=g)]
        low, high = space.bounds
        width = 0.15 * torch.rand(1_600, 1, generator=g).double() ** 3 * (high - low)
        step = width * torch.randn(near.shape, generator=g, dtype=torch.double)
        step[:, list(space.tree.decision_columns)] = 0.0
        near = (near + step).clamp(low, high)
        near = space.encode(space.decode(space.impute(near)))
        X, Y = torch.cat([X, near]), torch.cat([Y, values(near)])
    return X, Y


def density(function: str, rows: str, fit: str, seed: int) -> dict[str, float]:
    """The mean log density of a model, and CPU seconds of its fit."""
    space = six_paths()
    X, Y = _data(function, rows == "searched", seed)
    begun = time.process_time()
    with fits_to_all(fit == "all"), torch.random.fork_rng():
        torch.manual_seed(seed)
        (model,) = fit_models(space, X[:1_800], Y[:1_800], averaged=False)
    seconds = time.process_time() - begun
    test, outcome = X[1_800:], Y[1_800:]
    with torch.no_grad():
        posterior = model.posterior(test.unsqueeze(-2), observation_noise=True)
        transform = model.outcome_transform["clip"]
        density = torch.distributions.Normal(
            posterior.mean.flatten(), posterior.variance.flatten().sqrt()
        )
        told, _ = transform(outcome)
    return {"density": density.log_prob(told.flatten()).mean().item(), "s": seconds}


def regret(function: str, arm: str, seed: int, budget: int) -> dict[str, Any]:
    """Regrets of the point with the best value so far, and CPU seconds of a study."""
    rough, noise = FUNCTIONS[function]
    study = Study(six_paths(), seed=seed, max_rows=STUDIES[arm])
    g = torch.Generator().manual_seed(seed)
    best = regret = math.inf
    regrets = {}
    least = optimum(rough)
    begun = time.process_time()
    with fits_to_all(STUDIES[arm] is None):
        for k in range(1, budget + 1):
            (config,) = study.ask()
            truth = error(config, rough)
            value = truth + noise * torch.randn((), generator=g).item()
            study.tell(config, value)
            if value < best:
                best, regret = value, truth - least
            if k in _STEPS:
                regrets[str(k)] = regret
    return {"regrets": regrets, "s": time.process_time() - begun}


def report(results: list[dict[str, Any]]) -> None:
    """Print the tables."""
    rows = []
    for function, kind in product(FUNCTIONS, ("random", "searched")):
        fits = {
            fit: [
                r for r in results if r["key"][:4] == ["density", function, kind, fit]
            ]
            for fit in ("some", "all")
        }
        if all(fits.values()):
            numbers = [mean(r["density"] for r in some) for some in fits.values()]
            seconds = [mean(r["s"] for r in some) for some in fits.values()]
            cells = [f"{x:.3f}" for x in (*numbers, numbers[0] - numbers[1])]
            rows.append([function, kind, *cells, *(f"{s:.1f}" for s in seconds)])
    header = ["function", "rows", "some", "all", "difference", "CPU s", "all"]
    print(markdown_table(header, rows))
    rows = []
    for function, arm in product(FUNCTIONS, STUDIES):
        some = [r for r in results if r["key"][:3] == ["regret", function, arm]]
        if some:
            steps = [
                mean(r["regrets"].get(str(k), math.nan) for r in some) for k in _STEPS
            ]
            cells = [f"{x:.2g}" for x in steps]
            rows.append([function, arm, str(len(some)), *cells])
            rows[-1].append(f"{mean(r['s'] for r in some):.0f}")
    header = ["function", "models see", "studies", *map(str, _STEPS), "CPU s"]
    print(markdown_table(header, rows))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["density", "regret", "report"])
    parser.add_argument("--out", type=Path, default=Path("results/some_rows.jsonl"))
    parser.add_argument("--budget", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    results = [json.loads(line) for line in lines]
    if options.what == "density":
        kinds = product(("random", "searched"), ("some", "all"))
        cases = [
            ("density", function, *kind, seed)
            for seed, kind, function in product(seeds, [*kinds], FUNCTIONS)
        ]
        make: Any = density
    else:
        cases = [
            ("regret", function, arm, seed, options.budget)
            for seed, arm, function in product(seeds, STUDIES, FUNCTIONS)
        ]
        make = regret
    if options.what != "report":
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for case in cases:
            if [*case] not in [r["key"] for r in results]:
                results.append({"key": [*case], **make(*case[1:])})
                with options.out.open("a") as file:
                    print(json.dumps(results[-1]), file=file)
    report(results)


if __name__ == "__main__":
    main()
