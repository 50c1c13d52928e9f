"""Run methods on problems, many seeds, several processes; runs can be resumed.

Every benchmark uses this. Each (method, problem, seed) is a *run* with a file of its
own, ``out/problem/method/seed.jsonl``: one line per evaluation, on disk before the
next one starts. A method is a function without memory,

    method(problem, X, Y, seed) -> next point (``d`` or ``1 x d``)

of all that was evaluated so far (``X`` is ``n x d``, ``Y`` is ``n x 1``, larger is
better: the negative of the problem's value) and of a seed that depends on the seed of
the run and the step only. A resumed run therefore gives the same points as one that was
not interrupted.
Problems are built in the process that needs them, by a function of the seed; all
methods start from the same ``problem.starts(seed)``, which count as evaluations, except
those that have ``starts(problem, seed)`` of their own (an attribute of the function).
Records have the outcome of the space's first decision, the ``branch``.
A problem with ``own_seeds`` (True) has other starts, and other random numbers in its
runs, than others with the same seed, so that problems are independent of each other.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

Method = Callable[[Any, Tensor, Tensor, int], Tensor]
ProblemFactory = Callable[[int], Any]


@dataclasses.dataclass(frozen=True)
class RunKey:
    """Names of a run: method, problem, seed."""

    problem: str
    method: str
    seed: int

    def path(self, out: Path) -> Path:
        return out / self.problem / self.method / f"{self.seed}.jsonl"


def run(
    methods: Mapping[str, Method],
    problems: Mapping[str, ProblemFactory],
    seeds: Sequence[int],
    budget: int,
    out: str | Path,
    processes: int = 2,
    progress: bool = True,
) -> dict[RunKey, str]:
    """Complete all runs; return those that could not be completed.

    An exception in a method is written into the record of that step, and a random
    point is evaluated in place of its suggestion. An exception in a problem, or a
    process that dies, ends that run; the others continue, and a later call tries again.

    Args:
        methods: Methods by name; picklable (module-level functions or
            ``functools.partial``).
        problems: Functions by name, picklable; each makes the problem of a seed. A
            problem is minimised, and has ``starts(seed)``, ``space`` and, if known,
            ``optimal_value``. If it has ``truth(x)`` (the value without noise) and
            ``middle_value`` (that of a middling point), the records have them too.
        seeds: Seeds of the runs.
        budget: Evaluations of each run, the starts included.
        out: A folder. Runs found there are continued, complete ones left alone.
        processes: How many run at once, each on one thread; 0 works in this process.
        progress: Whether to show a progress bar.

    Returns:
        The runs that ended with an exception, and the exceptions.
    """
    out = Path(out)
    # Seeds outermost: unfinished results have the same seeds of all methods.
    keys = [RunKey(p, m, s) for s in seeds for p in problems for m in methods]
    done = sum(min(budget, len(read_records(key.path(out)))) for key in keys)
    failures: dict[RunKey, str] = {}
    with tqdm(
        total=len(keys) * budget,
        initial=done,
        unit="eval",
        mininterval=1.0 if sys.stderr.isatty() else 30.0,  # a log is not a terminal
        disable=not progress,
    ) as bar:

        def tell(key: RunKey, event: str, text: str) -> None:
            if event == "evaluated":
                latest = f"{key.problem} {key.method} {key.seed}: {text}"
                bar.set_postfix_str(latest, refresh=False)
                bar.update()
            elif event == "failed":
                failures[key] = text
                last = text.strip().splitlines()[-1]
                bar.write(f"{key.problem} {key.method} {key.seed}: {last}", sys.stderr)

        todo = (
            (key, methods[key.method], problems[key.problem], budget, out)
            for key in keys
            if len(read_records(key.path(out))) < budget
        )
        if processes:
            _run_parallel(todo, processes, tell)
        for task in todo:
            _attempt(task, tell)
    return failures


_Task = tuple[RunKey, Method, ProblemFactory, int, Path]
_Tell = Callable[[RunKey, str, str], None]


def _run_parallel(todo: Iterator[_Task], processes: int, tell: _Tell) -> None:
    # A pipe for each process and no shared queue: a killed process blocks no other.
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, tuple[Any, RunKey]] = {}

    def start(task: _Task | None, idle: tuple[Connection, Any] | None = None) -> None:
        if task is None:
            if idle is not None:
                idle[0].close()  # the process ends at the end of its input
                idle[1].join()
            return
        if idle is None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=False)
            process.start()
            theirs.close()
            idle = (ours, process)
        idle[0].send(task)
        workers[idle[0]] = (idle[1], task[0])

    try:
        for _ in range(processes):
            start(next(todo, None))
        while workers:
            for connection in wait(list(workers)):
                assert isinstance(connection, Connection)
                process, key = workers[connection]
                try:
                    event, text = connection.recv()
                except (EOFError, OSError):
                    process.join()
                    del workers[connection]
                    tell(key, "failed", f"the process died: code {process.exitcode}")
                    start(next(todo, None))
                    continue
                tell(key, event, text)
                if event in ("finished", "failed"):
                    del workers[connection]
                    start(next(todo, None), idle=(connection, process))
    finally:  # also after Ctrl-C and errors: records on disk are complete
        for connection, (process, _) in workers.items():
            process.terminate()
            process.join()
            connection.close()


def _serve(connection: Connection) -> None:
    """A process that does runs until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    torch.set_num_threads(1)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        # Without the parent, sending fails, which ends this process.
        _attempt(task, lambda key, event, text: connection.send((event, text)))


def _attempt(task: _Task, tell: _Tell) -> None:
    key = task[0]
    try:
        _complete(*task, tell=tell)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception:  # from the problem: the other runs continue
        tell(key, "failed", traceback.format_exc())
    else:
        tell(key, "finished", "")


def _complete(
    key: RunKey,
    method: Method,
    factory: ProblemFactory,
    budget: int,
    out: Path,
    tell: _Tell,
) -> None:
    """Take one run from where its file ends to the budget."""
    path = key.path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as file:
        records = _repair(file)
        problem = factory(key.seed)
        seed = key.seed
        if getattr(problem, "own_seeds", False):
            seed = step_seed(seed, crc32(key.problem.encode()))
        own = getattr(method, "starts", None)
        starts = problem.starts(seed) if own is None else own(problem, seed)
        known = [record["x"] for record in records[: len(starts)]]
        if known != starts[: len(known)].tolist():
            raise ValueError(
                f"{path} holds another experiment: expected its first points to be the "
                f"starts of {key.problem} with seed {key.seed}."
            )
        optimum = _known(problem, "optimal_value")
        middle = _known(problem, "middle_value")
        truth = getattr(problem, "truth", None)
        while (step := len(records)) < budget:
            record: dict[str, Any] = {**dataclasses.asdict(key), "step": step}
            began = time.perf_counter()
            if step < len(starts):
                x, record["start"] = starts[step], True
            else:
                x, error = _suggest(problem, method, records, starts, seed, step)
                if error is not None:
                    record["error"] = error
            suggested = time.perf_counter()
            torch.manual_seed(step_seed(seed, step, 1))  # noise of the problem
            value = float(problem(x))
            record |= {
                "x": x.tolist(),
                "value": value,
                "optimum": optimum,
                "suggest_s": round(suggested - began, 6),
                "evaluate_s": round(time.perf_counter() - suggested, 6),
            }
            if middle is not None:
                record["middle"] = middle
            if (branch := _branch(problem, x)) is not None:
                record["branch"] = branch
            if truth is not None:
                record["truth"] = float(truth(x))
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            records.append(record)
            tell(key, "evaluated", f"{min(r['value'] for r in records):.4g}")


def _branch(problem: Any, x: Tensor) -> int | None:
    """The outcome of the first decision at a point (``d``), if there is one."""
    tree = getattr(problem.space, "tree", None)
    if tree is None or not tree.decision_columns:
        return None
    return int(tree.locate(x[None], strict=False)[0][0, 0])


def _known(problem: Any, name: str) -> float | None:
    """A number that a problem may have."""
    with suppress(AttributeError, NotImplementedError):
        return float(getattr(problem, name))
    return None


def _suggest(
    problem: Any,
    method: Method,
    records: list[dict[str, Any]],
    starts: Tensor,
    seed: int,
    step: int,
) -> tuple[Tensor, str | None]:
    """The ``d`` next point, and what went wrong if it is random."""
    X = starts.new_tensor([record["x"] for record in records])
    Y = -starts.new_tensor([[record["value"]] for record in records])
    derived = step_seed(seed, step)
    torch.manual_seed(derived)
    np.random.seed(derived)
    random.seed(derived)
    try:
        x = method(problem, X, Y, derived).detach().to(starts).reshape(-1)
        if x.shape != starts.shape[1:] or not x.isfinite().all():
            raise ValueError(f"x: expected {starts.shape[1]} finite numbers, got {x}.")
        return x, None
    except Exception:  # from the method: counted in the tables, the run continues
        error = traceback.format_exc()
        return problem.space.sample(1, seed=derived).to(starts)[0], error


def step_seed(*numbers: int) -> int:
    """A seed below 2^31 that depends on all the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The complete records of a run, without a line that was cut off by a kill."""
    try:
        return _parse(path.read_bytes())[0]
    except FileNotFoundError:
        return []


def _parse(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The records, and how many bytes they take from the start of the file."""
    records: list[dict[str, Any]] = []
    size = 0
    for line in content.splitlines(keepends=True):
        try:
            record = json.loads(line)
            if not line.endswith(b"\n") or record["step"] != len(records):
                break
        except (ValueError, KeyError, TypeError):
            break
        records.append(record)
        size += len(line)
    return records, size


def _repair(file: IO[bytes]) -> list[dict[str, Any]]:
    """Cut off an incomplete last record, and move to the end of the file."""
    file.seek(0)
    content = file.read()
    records, size = _parse(content)
    if content[size:].count(b"\n") > 1:
        raise ValueError(
            f"{file.name}: expected at most one torn line, the last one, got line "
            f"{len(records) + 1} torn and others after it."
        )
    file.truncate(size)
    file.seek(size)
    return records


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """Lock a file: a process whose parent was killed may still write to it."""
    with open(path, "a+b") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield file  # closing releases
