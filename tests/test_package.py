from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import botorch_structured
from botorch_structured import cite, models
from botorch_structured._citations import _PAPER_OF, BIBTEX

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE = ("botorch", "gpytorch", "linear-operator", "torch", "numpy", "scipy")


def test_versions_agree() -> None:
    version = botorch_structured.__version__
    assert PYPROJECT["project"]["version"] == version
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def _pins(name: str) -> dict[str, Version]:
    found = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / name).read_text(), re.M)
    return {canonicalize_name(package): Version(version) for package, version in found}


def _requirements(without: tuple[str, ...]) -> list[Requirement]:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    chosen = {*extras} - {*without}
    asked = project["dependencies"] + sum((extras[k] for k in chosen), [])
    return [one for one in map(Requirement, asked) if one.name != project["name"]]


def test_constraints_pin_what_is_asked_for() -> None:
    asked = {canonicalize_name(one.name) for one in _requirements(without=())}
    assert asked <= _pins("constraints.txt").keys()


def test_lower_bounds_are_those_that_ci_tests() -> None:
    bounds = {}
    # linters, the site and the suite of benchmarks have no lower bound to test
    for one in _requirements(without=("dev", "docs", "suite")):
        bound, *upper = sorted(one.specifier, key=lambda s: s.operator, reverse=True)
        assert bound.operator == ">=", one
        assert [u.operator for u in upper] == ["<"] * (one.name == "botorch"), one
        bounds[canonicalize_name(one.name)] = Version(bound.version)
    assert bounds == _pins("constraints-lowest.txt")
    workflow = ROOT / ".github" / "workflows" / "ci.yml"
    if workflow.exists():  # an sdist has none
        assert "pip install -c constraints-lowest.txt" in workflow.read_text()


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-lowest.txt"])
def test_the_core_is_installed_as_constrained(name: str) -> None:
    """Where all else that is installed has the file's versions, so has the core."""
    if os.environ.get("WITHOUT_CONSTRAINTS"):
        pytest.skip("made without constraints, as the environment says")
    pins = _pins(name)
    installed = {canonicalize_name(d.name): d.version for d in metadata.distributions()}
    found = {p: Version(Version(installed[p]).public) for p in pins if p in installed}
    other = {p: v for p, v in found.items() if p not in CORE and v != pins[p]}
    if other:
        pytest.skip(f"made without {name}: it has {other}")
    assert {p: found[p] for p in CORE} == {p: pins[p] for p in CORE}


def test_the_installed_package_is_this_one() -> None:
    """As a user gets it, with its mark of types; elsewhere there is none."""
    installed = {d.metadata["Name"] for d in metadata.distributions()}
    if PYPROJECT["project"]["name"] not in installed:
        pytest.skip("not installed")
    assert metadata.version("botorch-structured") == botorch_structured.__version__
    names = {str(file) for file in metadata.files("botorch-structured") or []}
    assert "botorch_structured/py.typed" in names or any("editable" in n for n in names)


OTHERS = {"matplotlib", "sklearn", "ConfigSpace", "pandas", "ax", "optuna"}


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("import botorch_structured", {"torch", "botorch", *OTHERS}),
        # ``scipy.stats`` alone would take a third of the time of importing BoTorch
        (
            f"from botorch_structured.models import {', '.join(models.__all__)}; "
            "import botorch_structured.fit",
            {"scipy.stats", *OTHERS},
        ),
        # fits are imported with the first one
        (
            "from botorch_structured.models import ConditionalGP, TreeStructuredGP",
            {"botorch.fit", "scipy.stats"},
        ),
    ],
    ids=["package", "models", "fits"],
)
def test_importing_is_light(line: str, absent: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {line}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(botorch_structured.__file__).parent.parent,
    )
    loaded = set(done.stdout.split())
    assert "botorch_structured" in loaded and not loaded & absent


def test_models_are_imported_when_they_are_asked_for() -> None:
    assert set(models.__all__) <= set(dir(models))
    for name in models.__all__:
        assert getattr(models, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'GP'"):
        _ = models.GP


def test_cite_knows_instances_classes_subclasses_and_functions() -> None:
    from botorch_structured.models import TreeStructuredGP
    from botorch_structured.optim import optimize_acqf_two_step
    from botorch_structured.test_functions import JenattonTree

    class Mine(TreeStructuredGP):
        pass

    entry = BIBTEX["Jenatton2017tree"]
    assert cite(TreeStructuredGP) == cite(Mine) == entry
    assert cite(optimize_acqf_two_step) == entry
    assert cite(JenattonTree()) == entry


@pytest.mark.parametrize("unknown", [3, "Nobody1999", dict, len, re.match])
def test_cite_says_what_it_knows(unknown: object) -> None:
    expected = r"obj: .*TreeStructuredGP.*Jenatton2017tree.*got"
    with pytest.raises(ValueError, match=expected):
        cite(unknown)


def test_every_cited_name_exists() -> None:
    public: set[str] = set()
    parts = ["acquisition", "fit", "kernels", "models", "optim", "test_functions"]
    for part in [*parts, "transforms"]:
        public |= set(importlib.import_module(f"botorch_structured.{part}").__all__)
    assert set(_PAPER_OF) <= public
    assert set(_PAPER_OF.values()) == set(BIBTEX)
    assert all(cite(key) == entry for key, entry in BIBTEX.items())


def test_no_warning_of_ours_passes_unnoticed() -> None:
    """Those that point at the caller do not count as this package's: see pyproject."""
    filters = PYPROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"]
    errors = [f.split(":")[1] for f in filters if f.startswith("error:")]
    found = 0
    for path in (ROOT / "botorch_structured").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "warn",
                "warnings.warn",
            ):
                if ast.unparse(node.args[0]) in ("str(error)", "message"):
                    continue  # another library's error, or a text that is passed on
                text = "".join(
                    part.value if isinstance(part, ast.Constant) else "..."
                    for part in getattr(node.args[0], "values", [node.args[0]])
                )
                assert any(e and re.match(e, text) for e in errors), (path, text)
                found += 1
    assert found
