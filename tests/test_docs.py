"""The pages of the site: their code runs, their links lead somewhere.

That the site builds without a warning is a step of its own (``docs/conf.py``).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
MADE = ("_build", "api/generated", "tutorials", "jupyter_execute")
PAGES = {
    name: page
    for page in sorted(DOCS.rglob("*.md"))
    if not (name := page.relative_to(DOCS).as_posix()).startswith(MADE)
}
TEXT = {name: page.read_text(encoding="utf-8") for name, page in PAGES.items()}
CODE = {
    name: "\n".join(blocks)
    for name, text in TEXT.items()
    if (blocks := re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
}
# What a page needs besides the package.
NEEDS = {"differences.md": "ax", "start/ax.md": "ax"}


@pytest.mark.parametrize("page", CODE)
@pytest.mark.filterwarnings(
    "error",
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:Chains may not have converged",  # depends on rounding
)
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom: later blocks use what earlier ones made."""
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec(compile(CODE[page], page, "exec"), {"__name__": "__main__"})


def _sections(text: str) -> set[str]:
    """What GitHub and the site call the headings of a page."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXT[page]):
        if link.startswith("https://"):
            continue
        name, _, section = link.partition("#")
        target = (PAGES[page].parent / name).resolve() if name else PAGES[page]
        made = target.is_relative_to(DOCS) and target.relative_to(DOCS).as_posix()
        if not (made and made.startswith(MADE)):
            assert target.exists(), link
        if section:
            assert section in _sections(target.read_text(encoding="utf-8")), link


def test_every_page_is_in_the_menu() -> None:
    entries = set()
    for name, text in TEXT.items():
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.M | re.S):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    folder = PAGES[name].parent
                    found = folder.glob(f"{line}.md")
                    entries |= {p.relative_to(DOCS).as_posix() for p in found}
    assert set(PAGES) - entries == {"index.md"}


NAMED = set(
    re.findall(r"\b(?:benchmarks|tests|docs)/[\w./-]+\w", "".join(TEXT.values()))
)


def test_results_name_files_that_exist() -> None:
    named = {n for n in NAMED if RESULTS.exists() or "benchmarks/results/" not in n}
    assert not [name for name in named if not (ROOT / name).exists()]
    modules = set(re.findall(r"python -m (benchmarks[\w.]+\w)", "".join(TEXT.values())))
    files = {name: ROOT / Path(*name.split(".")) for name in modules}
    assert not [
        name
        for name, file in files.items()
        if not (file.with_suffix(".py").exists() or (file / "__main__.py").exists())
    ]


def test_results_are_small_and_named_on_a_page() -> None:
    """Packed, and no run that no number is from; a copy from an sdist has none."""
    files = [file for file in RESULTS.rglob("*") if file.is_file()]
    assert len(files) <= 60 and sum(file.stat().st_size for file in files) <= 8e6
    shown = {ROOT / name for name in NAMED}
    others = [file for file in files if not shown & {file, *file.parents} - {RESULTS}]
    assert not others


@pytest.mark.parametrize("peer", ["SMAC3", "imputed", "`GPSampler` (all"])
def test_comparisons_are_those_of_the_results(peer: str) -> None:
    """Two pages show them; both are copied from a report."""

    def cells(page: str) -> list[str]:
        rows = [
            line for line in TEXT[page].splitlines() if re.match(r"\| .*\d : \d", line)
        ]
        (row,) = (row for row in rows if peer in row)
        return re.findall(r"\d+ : \d+[^|]*", row)

    assert cells("versus.md") == cells("results.md")
