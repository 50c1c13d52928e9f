"""Gains of a GPU: each row on it and on one thread of its host, in one run.

    python -m benchmarks.speed.gpu --out FILE [--device cuda] [--rows NAME ...]
    python -m benchmarks.speed.gpu --report FILE

Wall times of a process with one thread, in float64: medians of calls after one that
does not count. An evidence is the objective of a fit with its gradient at the first
hyperparameters, with the copies of parameters to the device and of the result back. It
is computed plainly, and as fits do, by the replay of one CUDA graph; the number of
kernels is the profiler's. Each row is a line of ``--out``, a row that fails has its
error there. ``--quick`` takes small data and other devices than a GPU.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.sampling import IIDNormalSampler
from torch import Tensor

from benchmarks.fits import fitted, objective
from benchmarks.speed import report
from benchmarks.speed.__main__ import duration
from benchmarks.speed.family_rows import task_data
from benchmarks.speed.problems import binary_tree, flat_tree, make_data, sizes
from benchmarks.speed.tree_rows import evaluation
from benchmarks.summary import markdown_table
from botorch_structured.fit import fit_slice_sampling
from botorch_structured.models import (
    ConditionalGP,
    MultiTaskABLR,
    TreeStructuredGP,
    map_fit,
)
from botorch_structured.spaces import ParameterTree

Data = tuple[Tensor, Tensor, Any]
Row = Iterator[tuple[str, Any]]

_SECONDS = 0.5  # for the calls of one time
_NOISE = 0.02


def seconds(call: Callable[[], object], device: str, calls: int = 30) -> float:
    """The median of some calls, after one that does not count."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    call()
    wait()
    times: list[float] = []
    while len(times) < calls and sum(times) < _SECONDS:
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def kernels(call: Callable[[], object], device: str) -> int | None:
    """How many kernels a call starts on a GPU."""
    if device != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    events = [e.name for e in seen.events() if e.device_type.name == "CUDA"]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in events)


def binary(
    paths: int,
    n: int,
    largest: int | None = None,
    make: Callable[[int], ParameterTree] = binary_tree,
) -> Data:
    """Data of a tree, by default one of binary decisions."""
    tree = make(paths)
    return *make_data(tree, sizes(paths, n, largest)), tree


def two_decisions(values: int, n: int) -> Data:
    """``values ** 2`` paths of two decisions; values of the first have 3 columns."""
    columns = {float(v): [2 + 3 * v + j for j in range(3)] for v in range(values)}
    either: dict[float, list[int]] = {float(v): [] for v in range(values)}
    tree = ParameterTree(2 + 3 * values, {0: columns, 1: either})
    g = torch.Generator().manual_seed(0)
    X = torch.full((n, tree.dim), 0.5, dtype=torch.float64)
    number = torch.arange(n) % values**2
    X[:, 0], X[:, 1] = number // values, number % values
    own = torch.rand(n, 3, generator=g, dtype=torch.float64)
    X.scatter_(1, (2 + 3 * X[:, :1].long()) + torch.arange(3), own)
    noise = torch.randn(n, 1, generator=g, dtype=torch.float64)
    Y = (X[:, :1] * 0.7).sin() + (6.0 * own).sin().sum(-1, keepdim=True) + 0.1 * noise
    return X, Y, tree


Make = Callable[[Data], Any]


def tree_gp(data: Data, kind: Any = TreeStructuredGP, **options: Any) -> Any:
    """A model before its fit, with some noise."""
    model = kind(*data, **options)
    model.likelihood.noise = _NOISE
    return model


def on(device: str, data: Data) -> Data:
    """The data there."""
    X, Y, tree = data
    return X.to(device), Y.to(device), tree


def no_graph(function: Callable[[], Tensor]) -> Any:
    """In the place of the recording of a graph."""
    raise RuntimeError("not wanted.")


def evidence(
    device: str, data: Callable[[], Data], make: Make = tree_gp, host: bool = True
) -> Row:
    """An evidence with its gradient."""
    on_host = data()
    mll = objective(make(on(device, on_host))).train()
    plain = map_fit.DeviceObjective(mll, no_graph)
    theta = plain.read()
    value, gradient = plain(theta)
    yield "plain", seconds(partial(plain, theta), device)
    yield "kernels", kernels(partial(plain, theta), device)
    if device == "cuda":
        graph = map_fit.DeviceObjective(mll, map_fit.cuda_graph)
        graph(theta)
        start = time.perf_counter()
        graph(theta)  # records it
        yield "record", time.perf_counter() - start
        yield "graph", seconds(partial(graph, theta), device, 100)
        yield "is a graph", graph._graph is not None
        yield "gap of gradients", float(abs(graph(theta)[1] - gradient).max())
        yield "MiB", torch.cuda.max_memory_allocated() / 2**20
    if not host:
        return
    other = objective(make(on_host)).train()
    here: Any
    if isinstance(other.model, MultiTaskABLR):
        here = partial(map_fit.DeviceObjective(other, no_graph), theta)
    else:
        here = evaluation(other)
    yield "gap of values", abs(here()[0] - value)
    yield "host", seconds(here, "cpu", 10)


def ablr_data(rows: int, tasks: int) -> Data:
    """The column of the task is the first one."""
    return *task_data(rows, tasks), 0


def ablr(data: Data) -> MultiTaskABLR:
    """Networks of equal weights."""
    torch.manual_seed(0)
    return MultiTaskABLR(data[0], data[1], task_feature=0)


def many_parameters(device: str, count: int, data: Callable[[], Data]) -> Row:
    """Evidences with gradients at many hyperparameters: chains, starts."""
    on_host = data()
    mll = objective(tree_gp(on(device, on_host))).train()
    plain = map_fit.DeviceObjective(mll, no_graph)
    theta = plain.read()
    many = torch.from_numpy(theta) + 1e-3 * torch.arange(count).unsqueeze(-1)
    at_once = plain.at_once(count)
    values = at_once(many)[:, 0]
    yield "plain", seconds(partial(at_once, many), device)
    yield "kernels", kernels(partial(at_once, many), device)
    if device == "cuda":
        graph = map_fit.DeviceObjective(mll, map_fit.cuda_graph).at_once(count)
        for _ in range(2):  # the second one records it
            graph(many)
        yield "graph", seconds(partial(graph, many), device, 100)
        yield "gap", float(abs(graph(many)[:, 0] - values).max())
    here = evaluation(objective(tree_gp(on_host)))
    yield "gap of values", abs(here()[0] - values[0])
    yield "host", count * seconds(here, "cpu", 10)


def many_starts(device: str, counts: tuple[int, ...], data: Callable[[], Data]) -> Row:
    """Fits with several starts; the last one on the host, too."""
    on_host = data()

    def fit(where: str, count: int) -> None:
        mll = objective(tree_gp(on(where, on_host)))
        fit_gpytorch_mll(mll, num_restarts=count)

    for count in counts:
        yield f"{count} starts", seconds(partial(fit, device, count), device, 3)
    yield "graph", seconds(partial(fit, device, counts[-1]), device, 1)
    yield "host", seconds(partial(fit, "cpu", counts[-1]), "cpu", 1)


def many_chains(device: str, counts: tuple[int, ...], data: Callable[[], Data]) -> Row:
    """Ten sweeps of slice sampling of several chains; the last one on the host, too."""
    on_host = data()

    def sample(where: str, count: int) -> None:
        model = tree_gp(on(where, on_host))
        model.mean_module.requires_grad_(False)
        options = {"warmup": 8, "thinning": 2, "seed": 0, "progress": False}
        fit_slice_sampling(model, num_samples=count, num_chains=count, **options)

    for count in counts:
        yield f"{count} chains", seconds(partial(sample, device, count), device, 1)
    yield "graph", seconds(partial(sample, device, counts[-1]), device, 1)
    yield "host", seconds(partial(sample, "cpu", counts[-1]), "cpu", 1)


def whole_fit(device: str, data: Callable[[], Data], make: Make = tree_gp) -> Row:
    """Construction and fit; plainly, too."""
    on_host = data()
    record = map_fit.cuda_graph
    for name, where, how in (
        ("graph", device, record),
        ("plain", device, no_graph),
        ("host", "cpu", record),
    ):
        map_fit.cuda_graph = how
        try:
            call = lambda where=where: fitted(make(on(where, on_host)))  # noqa: E731
            yield name, seconds(call, where, 3)
        finally:
            map_fit.cuda_graph = record


def both(device: str, data: Data, make: Callable[[Any, str], Callable]) -> Row:
    """A call of a model there, and on the host."""
    for name, where in (("plain", device), ("host", "cpu")):
        model = tree_gp(on(where, data)).eval()
        yield name, seconds(torch.no_grad()(make(model, where)), where, 3)


def posterior(device: str, data: Callable[[], Data], count: int, chunk: int) -> Row:
    """Means and variances of many candidates one by one, in chunks."""
    on_host = data()
    X, _, tree = on_host
    others = X[torch.arange(count) % len(X)].clone()
    g = torch.Generator().manual_seed(1)
    free = [c for c in range(tree.dim) if c not in tree.decision_columns]
    others[:, free] = torch.rand(count, len(free), generator=g, dtype=torch.float64)

    def make(model: Any, where: str) -> Callable[[], None]:
        points = others.unsqueeze(-2).to(where)

        def predict() -> None:
            for part in points.split(chunk):
                moments = model.posterior(part)
                _ = moments.mean, moments.variance

        return predict

    yield from both(device, on_host, make)


def fantasies(device: str, data: Callable[[], Data], count: int) -> Row:
    """That many outcomes at 4 points, and posteriors of 64 points with each."""
    on_host = data()
    X = on_host[0]

    def make(model: Any, where: str) -> Callable[[], None]:
        new = (X[:4] + 1e-3).to(where)
        points = X[:64].to(where).unsqueeze(-2).unsqueeze(1)

        def condition() -> None:
            sampler = IIDNormalSampler(torch.Size([count]), seed=0)
            moments = model.fantasize(new, sampler).posterior(points)
            _ = moments.mean, moments.variance

        return condition

    yield from both(device, on_host, make)


_EIGHT = partial(binary, 8, 400)
_SIXTY_FOUR = partial(binary, 64, 2000)
_QUICK = partial(binary, 3, 12)
_CONDITIONAL = partial(tree_gp, kind=ConditionalGP)
_ALONE = partial(tree_gp, shared_features="none")
_CASES = {"8 paths, 400 points": _EIGHT, "64 paths, 2,000 points": _SIXTY_FOUR}
_UNEVEN = {
    "200 paths, 1,000 points": partial(binary, 200, 1000),
    "16 paths, 1,000 points, 600 on one": partial(binary, 16, 1000, 600),
}
_HUNDRED = partial(binary, 1000, 100_000, make=flat_tree)
_MILLION = partial(two_decisions, 100, 1_000_000)


def _each(title: str, row: Any, cases: Mapping[str, Any], **options: Any) -> Any:
    """A row for each case."""
    return {
        f"{title}: {name}": partial(row, data=data, **options)
        for name, data in cases.items()
    }


#: By name: what a row yields on a device.
ROWS: dict[str, Callable[[str], Row]] = {
    **_each("evidence", evidence, _CASES | _UNEVEN),
    **_each("ConditionalGP", evidence, _CASES, make=_CONDITIONAL),
    **_each("64 hyperparameters at once", many_parameters, _CASES, count=64),
    **_each("fit", whole_fit, _CASES),
    **_each("fit, 64 starts", many_starts, _CASES, counts=(1, 64)),
    **_each("10 sweeps, 64 chains", many_chains, _CASES, counts=(1, 64)),
    "fantasies: 512 at 4 points, 64 paths, 2,000 points": partial(
        fantasies, data=_SIXTY_FOUR, count=512
    ),
    "posterior: 1,000,000 candidates, 64 paths, 2,000 points": partial(
        posterior, data=_SIXTY_FOUR, count=1_000_000, chunk=20_000
    ),
    "evidence: 1,000 paths, 100,000 points": partial(evidence, data=_HUNDRED),
    **{
        f"MultiTaskABLR: {rows:,} rows, 30 tasks": partial(
            evidence, data=partial(ablr_data, rows, 30), make=ablr
        )
        for rows in (30_000, 750_000)
    },
    "evidence: 10,000 paths, 1,000,000 points": partial(
        evidence, data=_MILLION, make=_ALONE, host=False
    ),
}
#: Of small data.
QUICK: dict[str, Callable[[str], Row]] = {
    "evidence": partial(evidence, data=_QUICK),
    "conditional": partial(evidence, data=_QUICK, make=_CONDITIONAL),
    "hyperparameters": partial(many_parameters, count=3, data=_QUICK),
    "fit": partial(whole_fit, data=_QUICK),
    "starts": partial(many_starts, counts=(1, 2), data=_QUICK),
    "chains": partial(many_chains, counts=(1, 2), data=_QUICK),
    "posterior": partial(posterior, data=_QUICK, count=50, chunk=20),
    "fantasies": partial(fantasies, data=_QUICK, count=5),
    "ablr": partial(evidence, data=partial(ablr_data, 60, 3), make=ablr),
    "two decisions": partial(evidence, data=partial(two_decisions, 3, 40), make=_ALONE),
}


def run(name: str, row: Callable[[str], Row], device: str) -> dict[str, Any]:
    """The results of a row, with its error if it has one."""
    found: dict[str, Any] = {}
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    try:
        for what, value in row(device):
            found[what] = value
    except Exception:
        found["error"] = traceback.format_exc(limit=-6)[-1500:]
    where = torch.cuda.get_device_name() if device == "cuda" else device
    spent = time.perf_counter() - start
    return {"row": name, "device": where, **found, "spent": spent}


def table(path: Path) -> str:
    """The Markdown table of a file."""
    header = ["", "one thread", "GPU, one by one", "GPU, a graph", "kernels"]
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        found = json.loads(text)
        graph = found.get("graph") if found.get("is a graph", True) else None
        times = [found.get("host"), found.get("plain"), graph]
        kernels = found.get("kernels") or ""
        shown = ["" if t is None else duration(t) for t in times]
        lines.append([found["row"], *shown, str(kernels)])
    return markdown_table(header, lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", help="results are added to this JSONL file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", nargs="+", metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--report", type=Path, help="print the table of this file")
    options = parser.parse_args()
    if options.report:
        print(table(options.report))
        return
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("botorch_structured").setLevel(logging.INFO)
    rows = QUICK if options.quick else ROWS
    for name in options.rows or rows:
        report(run(name, rows[name], options.device), options.out)


if __name__ == "__main__":
    main()
