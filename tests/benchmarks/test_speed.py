"""The command for figures of speed: its rows agree, its files can be continued."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed import __main__ as command
from benchmarks.speed import gpu
from benchmarks.speed.contest import Contest, Row, Seconds


@pytest.mark.parametrize("name", command.ROWS)
def test_both_sides_of_a_row_agree(name: str, capsys: Any) -> None:
    needs = {"real-optuna": "optuna", "decomposed": "sklearn"}
    pytest.importorskip(needs.get(name, "torch"))
    command.main(["--quick", "--rows", name])
    assert capsys.readouterr().out.startswith(f"{name}: ")


def contest(**changes: Any) -> Contest:
    """Ours takes 1 s, then 2, then 3; a peer takes 4, and one takes 10 times 1."""
    calls = {
        "ours": lambda number: Seconds(1.0 + number),
        "slow": lambda number: Seconds(4.0),
        "slower": lambda number: Seconds(1.0),
        "raw": lambda number: Seconds(0.5),
    }
    peers = [["slower", "slow"], ["raw"]]
    return Contest(calls, peers, times={"slower": 10.0}, **changes)


def test_a_file_is_continued_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = {"2 of them": {"n": 2}, "3": {"n": 3}}
    rows = {"toy": Row("toys", lambda n: contest(), cases, {})}
    ran: list[command.Case] = []

    def apart(case: command.Case, repeats: int) -> dict[str, Any]:
        ran.append(case)
        if case[1] == "3" and len(ran) < 3:
            raise subprocess.CalledProcessError(1, "python")
        return command.run_here(case, repeats)

    monkeypatch.setattr(command, "ROWS", rows)
    monkeypatch.setattr(command, "_run_apart", apart)
    out = tmp_path / "speed.jsonl"
    with pytest.raises(SystemExit, match="'toy', '3'"):
        command.main(["--out", str(out), "--repeats", "3"])
    with out.open("a") as file:
        file.write('{"row": "toy", "ca')  # killed while it wrote
    command.main(["--out", str(out), "--repeats", "3"])
    assert ran == [("toy", "2 of them"), ("toy", "3"), ("toy", "3")]
    capsys.readouterr()
    command.main(["--report", str(out)])
    lines = capsys.readouterr().out.splitlines()[2:]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    toys = [["slow", "2.0 (1.7 to 3.0)"], ["raw", "1/4.0 (1/4.8 to 1/2.7)"]]
    assert table[:2] == [["toys: 2 of them", "2.0 s", *toys[0]], ["", "", *toys[1]]]
    assert len(table) == 4


def test_the_pages_show_the_table() -> None:
    root = Path(command.__file__).parents[2]
    file = root / "benchmarks" / "results" / "speed" / "table.jsonl"
    if not file.exists():
        pytest.skip("no results in this copy")
    results = {(r["row"], r["case"]) for r in command.read_results(file)}
    assert results == {
        (name, c) for name, row in command.ROWS.items() for c in row.cases
    }
    table = command.report(file)
    assert table in (root / "benchmarks" / "NOTES.md").read_text(encoding="utf-8")
    page, _, on_a_gpu = (
        (root / "docs" / "speed.md")
        .read_text(encoding="utf-8")
        .partition("## On a GPU")
    )
    assert gpu.table(file.with_name("gpu.jsonl")) in on_a_gpu
    readme = (root / "README.md").read_text(encoding="utf-8")
    rows = _cells(table)
    assert len(_cells(page)) > 20
    assert _cells(page) <= rows
    assert _cells(readme) <= rows


def _cells(text: str) -> set[tuple[str, ...]]:
    """The rows of the table in a text, without its head."""
    lines = [line for line in text.splitlines() if re.match(r"\| ?[^-]", line)]
    rows = [tuple(c.strip() for c in line.split("|")[1:-1]) for line in lines]
    return {row for row in rows[1:] if "---" not in row[0]}


@pytest.mark.filterwarnings("ignore")  # few sweeps do not mix
@pytest.mark.parametrize("name", gpu.QUICK)
def test_rows_of_a_gpu(name: str) -> None:
    """They run where there is none, and both sides have the same values."""
    found = gpu.run(name, gpu.QUICK[name], "cpu")
    assert "error" not in found, found
    assert found["host"] > 0 and found.get("plain", 1.0) > 0
    assert found.get("gap of values", 0.0) < 1e-9
