"""README, tutorials and pages of the site: code runs, links lead somewhere.

That the site builds without a warning is a step of its own (``docs/conf.py``).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
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
NEEDS = {n: "ax" for n in ("differences.md", "start/ax.md", "start/coming_from.md")}
NEEDS |= dict.fromkeys(("start/optuna.md", "how_to/many_machines.md"), "optuna")
NEEDS |= dict.fromkeys(("start/study.md", "spaces.md"), "matplotlib")
NEEDS |= {"start/sklearn.md": "sklearn", "Optuna": "optuna", "scikit-learn": "sklearn"}


@pytest.mark.parametrize("page", CODE)
@pytest.mark.filterwarnings(
    "error",
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:Chains may not have converged",  # depends on rounding
)
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom: later blocks use what earlier ones made."""
    pytest.importorskip(NEEDS.get(page, "torch"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec(compile(CODE[page], page, "exec"), {"__name__": "__main__"})


def _sections(text: str) -> set[str]:
    """What GitHub and the site call the headings of a page."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [*PAGES.values(), ROOT / "benchmarks" / "NOTES.md"])
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        name, _, section = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        made = target.is_relative_to(DOCS) and target.relative_to(DOCS).as_posix()
        if not (made and made.startswith(MADE)):
            assert target.exists(), link
        if section:
            assert section in _sections(target.read_text(encoding="utf-8")), link


NOTES = (ROOT / "benchmarks" / "NOTES.md").read_text(encoding="utf-8")
WRITTEN = "".join(TEXT.values()) + NOTES
NAMED = set(re.findall(r"\b(?:benchmarks|tests|docs)/[\w./-]+\w", WRITTEN))


def test_results_name_files_that_exist() -> None:
    named = {n for n in NAMED if RESULTS.exists() or "benchmarks/results/" not in n}
    assert not [name for name in named if not (ROOT / name).exists()]
    modules = set(re.findall(r"python -m (benchmarks[\w.]+\w)", WRITTEN))
    for name in modules:
        file = ROOT / Path(*name.split("."))
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), name


def test_results_are_small_and_named_on_a_page() -> None:
    """Packed, and no run that no number is from; a copy from an sdist has none."""
    files = [file for file in RESULTS.rglob("*") if file.is_file()]
    papers = sum(f.stat().st_size for f in files if RESULTS / "papers" in f.parents)
    others = sum(f.stat().st_size for f in files) - papers
    assert len(files) <= 60 and others <= 8e6 and papers <= 4e6
    shown = {ROOT / name for name in NAMED}
    assert not [f for f in files if not shown & {f, *f.parents} - {RESULTS}]


_SPACE = re.search(r"^```python\n(.*?)^```", README, re.M | re.S)
# The bold first words of a paragraph, and the block below it.
_DOORS = dict(
    re.findall(r"^\*\*([\w -]+)\*\*.*?^```python\n(.*?)^```", README, re.M | re.S)
)
_ERROR: dict[str, Callable[[dict[str, Any]], float]] = {
    "Ask and tell": lambda names: names["study"].best[1],
    "BoTorch": lambda names: -float(names["Y"].max()),
    "Optuna": lambda names: names["study"].best_value,
    "scikit-learn": lambda names: 1 - names["search"].best_score_,
}
# As printed, twenty evaluations; the formula's optimum is 0, that of the data is not.
_REACHED = {"scikit-learn": 0.03}


@pytest.mark.parametrize("door", _ERROR)
@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning")
def test_each_door_leads_to_the_optimum(door: str) -> None:
    assert _SPACE is not None and set(_DOORS) == set(_ERROR)
    pytest.importorskip(NEEDS.get(door, "torch"))
    names: dict[str, Any] = {}
    for block in (_SPACE[1], _DOORS[door]):
        exec(block, names)
    assert _ERROR[door](names) < _REACHED.get(door, 1e-2)


def test_links_of_the_readme_lead_somewhere() -> None:
    """From the page of PyPI too, where a relative one leads nowhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source = project["urls"]["Source"]
    raw = source.replace("github.com", "raw.githubusercontent.com")
    kinds = set()
    for picture, link in re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", README):
        own = f"{raw}/main/" if picture else f"{source}/blob/main/"
        if link.startswith(own):
            file, _, section = link.removeprefix(own).partition("#")
            assert (ROOT / file).exists(), link
            assert not section or section in _sections(
                (ROOT / file).read_text(encoding="utf-8")
            ), link
            kinds.add(picture)
        else:
            assert link == "https://botorch.org"
    assert kinds == {"", "!"}
    assert "@@" not in README


_BOTORCH = {"ExpectedImprovement", "SingleTaskGP", "fit_gpytorch_mll", "optimize_acqf"}


@pytest.mark.parametrize("page", [README, TEXT["models.md"]], ids=["README", "models"])
def test_what_it_offers_exists(page: str) -> None:
    """Every name in the lists and tables of models."""
    public = {"cite"}
    parts = ["acquisition", "fit", "kernels", "models", "optim", "spaces", "suggest"]
    for part in [*parts, "transforms"]:
        public |= set(importlib.import_module(f"botorch_structured.{part}").__all__)
    table = "\n".join(t for t in page.splitlines() if t.startswith(("| ", "- ")))
    ours = set(re.findall(r"`(\w+)[`(]", table)) - _BOTORCH
    arguments = {name for name in ours if re.search(rf"`{name}=", table)}
    assert ours - arguments <= public


@pytest.mark.parametrize("notebook", sorted((ROOT / "tutorials").glob("*.ipynb")))
def test_tutorials_are_committed_with_outputs(notebook: Path) -> None:
    """That they run is tested by nbmake; here, that readers see what came of it."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown"
    outputs = [out for cell in cells for out in cell.get("outputs", [])]
    assert all(out["output_type"] != "error" for out in outputs)
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    assert pictures
    text = json.dumps(outputs)
    assert "/tmp/" not in text and "site-packages" not in text


_SPEC = importlib.util.spec_from_file_location("references", DOCS / "references.py")
# Of other packages, and the method of an instance.
_ELSEWHERE = ("botorch.", "gpytorch.", "space.")


@pytest.mark.parametrize("family", ["tree", "treed", "ablr", "monotone", "sampled"])
def test_equations_link_to_their_code(family: str) -> None:
    """The names in the table of a paper, which the site makes links of."""
    assert _SPEC is not None and _SPEC.loader is not None
    references = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(references)
    package = f"botorch_structured.models.{family}"
    text = importlib.import_module(package).__doc__ or ""
    names = set(re.findall(r"``(\w+(?:\.\w+)+)``", text))
    ours = {name for name in names if not name.startswith(_ELSEWHERE)}
    places = {name: references.line_of(name, package) for name in ours}
    assert len(ours) >= 3 and all(places.values()), places
    for name, (file, line) in places.items():
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        last = name.rsplit(".", 1)[1]
        assert line == 1 or last in "".join(lines[line - 1 : line + 12]), name
