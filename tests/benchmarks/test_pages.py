"""What pages say of results follows from them.

Decimal numbers in tables, and p values, are printed by the commands beside them: those
that read committed runs and need no data. Verdicts on the papers' figures are judged.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import runs as paper_runs
from benchmarks.papers.items import RESULTS, Claim, Item, main
from benchmarks.papers.runs import PLANS
from benchmarks.summary import load

ROOT = Path(__file__).parents[2]
READ = re.compile(r"benchmarks/results/|benchmarks\.papers\.")
SKIPPED = re.compile(r"--data|DIR")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d*\.\d+(?:e[-+]?\d+)?")

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="runs are not in an sdist")
DOCS = ROOT / "docs"
PICTURES = DOCS / "images" / "papers"
PAPERS = ("jenatton", "levesque", "assael", "perrone", "wang")
PAGES = {p: (DOCS / "papers" / f"{p}.md").read_text(encoding="utf-8") for p in PAPERS}
ITEMS = {
    (paper, item.name): item
    for paper in PAPERS
    for item in import_module(f"benchmarks.papers.{paper}").ITEMS
}
judged = cache(Item.judged)


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
    found += [((f"benchmarks.papers.{paper}",), rows(PAGES[paper])) for paper in PAPERS]
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
        print(*(judged(item)[1] for item in module.ITEMS), sep="\n")
    elif hasattr(module, "main"):
        module.main(arguments)
    else:
        import_module(f"{name}.__main__").main(arguments)


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


@pytest.mark.parametrize("key", ITEMS, ids="-".join)
def test_what_is_stated_follows_from_the_results(key: tuple[str, str]) -> None:
    if key[0] == "wang":
        pytest.importorskip("sklearn")
    assert judged(ITEMS[key])[0] == ITEMS[key].stated


def test_the_pages_have_each_item_and_its_verdict() -> None:
    """The overview, and the page of each paper."""
    stated: dict[tuple[str, str], str] = {}
    row = re.compile(
        r"\| (?:\[.*\]\(papers/(\w+)\.md\) )?\| ([^|]+) \|.*\*\*([\w ]+)\*\*"
    )
    paper = ""
    for line in (DOCS / "papers.md").read_text(encoding="utf-8").splitlines():
        if m := row.match(line):
            paper = m[1] or paper
            stated[paper, m[2]] = m[3]
    assert stated == {key: item.stated for key, item in ITEMS.items()}
    for paper in PAPERS:
        verdict = r"^## (.*)\n[^#]*?\*\*Verdict: ([\w ]+)\.\*\*"
        found = re.findall(verdict, PAGES[paper], re.M)
        assert {(paper, name): verdict for name, verdict in found} == {
            key: item.stated for key, item in ITEMS.items() if key[0] == paper
        }


def test_pages_and_pictures_are_small_and_belong_together() -> None:
    texts = PAGES.values()
    assert sum(len(text.split()) for text in texts) <= 6000
    drawn = {item.picture[0] for item in ITEMS.values() if item.picture}
    assert drawn == {p.name for p in PICTURES.iterdir()}
    assert drawn == set(re.findall(r"images/papers/([\w.]+)", "".join(texts)))
    assert all(p.stat().st_size <= 60_000 for p in PICTURES.iterdir())


def test_a_script_fails_where_its_page_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = Item("Figure 1", "reproduces", lambda: ("", [Claim("a", "b", True)]))
    wrong = Item("Figure 2", "partly", lambda: ("", [Claim("a", "b", True)]))
    main("Title.", [right, wrong], ["--items", "Figure 1"])
    with pytest.raises(SystemExit, match="1"):
        main("Title.", [right, wrong], [])
    shown = capsys.readouterr()
    assert "Figure 2: stated 'partly', found 'reproduces'" in shown.err


@pytest.mark.parametrize("plan", ["levesque", "networks", "figure-2", "section-4.3"])
def test_runs_can_be_made(plan: str, tmp_path: Path) -> None:
    """A suggestion of most methods, without an error, on a table of 200 rows."""
    pytest.importorskip("sklearn")
    X = np.random.default_rng(0).standard_normal((200, 3))
    file = tmp_path / "tables.npz"
    np.savez(file, **{"pima X": X, "pima y": (X[:, 0] > X[:, 1]).astype(int)})
    slow = {"SMAC", "smac", "GP-matern", "GP-matern-ls", "GP-laplace"}
    methods = sorted({m for p in PLANS[plan] for m in p.methods} - slow)
    problems = ["pima", "pima-shared", "pima-duplicated", "4", "4-shared"]
    problems += ["4-quadratic"]
    budget = {"levesque": 10, "networks": 6}.get(plan, 5)
    paper_runs.main(
        [plan, "--tables", str(file), "--seeds", "1", "--budget", str(budget)]
        + ["--out", str(tmp_path), "--processes", "0", "--problems", *problems]
        + ["--methods", *methods]
    )
    runs = load(tmp_path)
    assert {r.method for r in runs} == set(methods)
    assert all(r.errors == 0 and len(r.values) == budget for r in runs)
    for run in runs if plan == "levesque" else ():
        assert run.truths is not None
        new = run.values < np.minimum.accumulate(np.r_[np.inf, run.values[:-1]])
        assert (np.isfinite(run.truths) == new).all()  # where it is the best so far
