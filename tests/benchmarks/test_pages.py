"""Decimal numbers in tables, and p values, are printed by the commands beside them.

Of the commands that read committed runs and need no data.
"""

from __future__ import annotations

import re
from decimal import Decimal
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.papers.items import RESULTS

ROOT = Path(__file__).parents[2]
READ = re.compile(r"benchmarks/results/|benchmarks\.papers\.")
SKIPPED = re.compile(r"--data|DIR")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d*\.\d+(?:e[-+]?\d+)?")


def rows(text: str) -> str:
    """The rows of tables, and p values."""
    return "\n".join(re.findall(r"^\|.*\|$|\bp = [\d.e-]*\d", text, re.M))


def tables() -> list[tuple[tuple[str, ...], str]]:
    """The rows before the commands of the results, and these; those of the papers.

    A command without a table of its own adds to the one before it.
    """
    found: list[tuple[tuple[str, ...], str]] = []
    notes = (ROOT / "benchmarks" / "NOTES.md").read_text(encoding="utf-8")
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for text in (results, notes[notes.index("## Further tables") :]):
        parts = re.split(r"`python -m (benchmarks\.[^`]+)`", text)
        for near, command in zip(parts[0:-1:2], parts[1::2], strict=True):
            if not rows(near) and found:
                found[-1] = (*found[-1][0], command), found[-1][1]
            else:
                found.append(((command,), rows(near)))
    for paper in ("jenatton", "levesque", "assael", "perrone", "wang"):
        text = (ROOT / "docs" / "papers" / f"{paper}.md").read_text(encoding="utf-8")
        found.append(((f"benchmarks.papers.{paper}",), rows(text)))
    return [
        (commands, numbers)
        for commands, numbers in found
        if any(map(READ.search, commands)) and not any(map(SKIPPED.search, commands))
    ]


TABLES = tables()


def run(command: str) -> None:
    """In this process, which keeps what was computed for others."""
    name, *arguments = command.split()
    module = import_module(name)
    if hasattr(module, "ITEMS"):
        print(*(item.judged()[1] for item in module.ITEMS), sep="\n")
    elif hasattr(module, "main"):
        module.main(arguments)
    else:
        import_module(f"{name}.__main__").main(arguments)


@pytest.mark.skipif(not RESULTS.exists(), reason="runs are not in an sdist")
@pytest.mark.parametrize(("commands", "stated"), TABLES, ids=[c[-1] for c, _ in TABLES])
def test_each_number_is_printed(
    commands: tuple[str, ...],
    stated: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("sklearn")
    if ".ax_problems" in commands[0]:
        pytest.importorskip("ax")
    monkeypatch.chdir(ROOT)
    for command in filter(READ.search, commands):
        run(command)
    printed = [abs(float(x)) for x in NUMBER.findall(capsys.readouterr().out)]
    missing = []
    for text in NUMBER.findall(re.sub(r"< 0?\.\d+", "", stated)):  # a bound, no number
        room = 0.51 * 10.0 ** int(Decimal(text).as_tuple().exponent)
        if not any(abs(x - abs(float(text))) <= room for x in printed):
            missing.append(text)
    assert stated and not missing
