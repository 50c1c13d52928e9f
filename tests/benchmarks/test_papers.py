"""Verdicts on the papers' figures follow from results, and are those of the page."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import runs as paper_runs
from benchmarks.papers.items import RESULTS, Claim, Item, main
from benchmarks.papers.runs import PLANS
from benchmarks.summary import load

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="runs are not in an sdist")
DOCS = Path(__file__).parents[2] / "docs"
PICTURES = DOCS / "images" / "papers"
PAPERS = ("jenatton", "levesque", "assael", "perrone", "wang")
ITEMS = {
    (paper, item.name): item
    for paper in PAPERS
    for item in import_module(f"benchmarks.papers.{paper}").ITEMS
}


@pytest.mark.parametrize("key", ITEMS, ids="-".join)
def test_what_is_stated_follows_from_the_results(key: tuple[str, str]) -> None:
    if key[0] == "wang":
        pytest.importorskip("sklearn")
    assert ITEMS[key].judged()[0] == ITEMS[key].stated


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
        text = (DOCS / "papers" / f"{paper}.md").read_text(encoding="utf-8")
        found = re.findall(r"^## (.*)\n[^#]*?\*\*Verdict: ([\w ]+)\.\*\*", text, re.M)
        assert {(paper, name): verdict for name, verdict in found} == {
            key: item.stated for key, item in ITEMS.items() if key[0] == paper
        }


def test_pages_and_pictures_are_small_and_belong_together() -> None:
    pages = [DOCS / "papers" / f"{paper}.md" for paper in PAPERS]
    texts = [page.read_text(encoding="utf-8") for page in pages]
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
