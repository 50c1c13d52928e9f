"""Calls in a process of their own that can be stopped at any time."""

from __future__ import annotations

__all__ = ["CallTimeout", "KillableWorker", "WorkerDied"]

import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

_START_LIMIT = 120.0  # seconds for imports on a slow, busy machine


class CallTimeout(Exception):
    """The call ran past its limit; its process has been killed."""


class WorkerDied(Exception):
    """The process ended during the call (out of memory, a crash in C code)."""


class KillableWorker:
    """A stand-alone script that answers pickles, killed when it takes too long.

    A fit holds the interpreter inside C code, where neither a signal nor a thread
    can stop it; only ending its process does. The process is started at the first
    call, kept for the next ones, and started anew after a kill. It is a plain child
    with two pipes, not a ``multiprocessing`` one: nothing imports the caller's
    ``__main__``, so it works from notebooks and scripts without a guard, and where
    forking is unsafe (macOS, threads).

    Copies and pickles of a worker have no process until their first call.
    """

    def __init__(self, script: Path, first_message: Any) -> None:
        """
        Args:
            script: A file that reads ``first_message`` from its standard input,
                answers, and from then on answers every message; it ends when its
                input does.
            first_message: What the script needs before any call; picklable.
        """
        self.script = script
        self.first_message = first_message
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._finalizer: weakref.finalize | None = None

    def call(self, message: Any, timeout: float) -> Any:
        """The script's answer.

        Args:
            message: Picklable.
            timeout: Seconds from when the script is ready; starting does not count.

        Raises:
            CallTimeout: When there is no answer in time.
            WorkerDied: When the process ended without an answer.
            RuntimeError: When the process does not start.
        """
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            process = self._start()
        return self._exchange(process, message, timeout)

    def close(self) -> None:
        """End the process, if there is one; the next call starts another."""
        if self._finalizer is not None and self._owner == os.getpid():
            self._finalizer()
        self._process = self._finalizer = None

    def _start(self) -> subprocess.Popen[bytes]:
        self.close()
        # -P: the script's folder must not stand on the path, before the real modules.
        process = subprocess.Popen(
            [sys.executable, "-P", str(self.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._process, self._owner = process, os.getpid()
        self._finalizer = weakref.finalize(self, _stop, process)
        try:
            self._exchange(process, self.first_message, _START_LIMIT)
        except (CallTimeout, WorkerDied) as error:
            raise RuntimeError(f"{self.script.name} did not start: {error}.") from error
        return process

    def _exchange(
        self, process: subprocess.Popen[bytes], message: Any, timeout: float
    ) -> Any:
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout, kill)
        timer.daemon = True
        timer.start()
        try:
            pickle.dump(message, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            self.close()
            if late.is_set():
                raise CallTimeout(f"no answer within {timeout:g} s") from error
            raise WorkerDied(
                f"the process ended with code {process.returncode}"
            ) from error
        except BaseException:  # Ctrl-C: an answer may still come; nobody waits for it
            self.close()
            raise
        finally:
            timer.cancel()
            timer.join()
            if late.is_set():  # an answer at the last moment counts, all the same
                self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_finalizer": None}


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # what was not flushed cannot be any more
                pass
