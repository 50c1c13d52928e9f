"""The references of all docstrings, each once, on one page.

A module's docstring lists the papers that it cites (``.. [Key]`` and the reference),
for those who read the code. Sphinx wants a key defined once: here.
"""

from __future__ import annotations

__all__ = ["line_of", "strip", "write"]

import importlib
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_ENTRY = re.compile(r"^ *\.\. \[(\w+)\]\n((?: +\S.*\n?)+)", re.M)


def write(package: Path, page: Path) -> None:
    """Write the page.

    Args:
        package: The folder whose modules cite.
        page: The file to write.
    """
    entries: dict[str, str] = {}
    for module in sorted(package.rglob("*.py")):
        for key, text in _ENTRY.findall(module.read_text(encoding="utf-8")):
            entries.setdefault(key, " ".join(text.replace('"""', "").split()))
    # escaped, since initials begin a list otherwise
    lines = [f".. [{key}] \\{entries[key]}\n" for key in sorted(entries, key=str.lower)]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("References\n==========\n\n" + "\n".join(lines), encoding="utf-8")


def strip(app, what, name, obj, options, lines: list[str]) -> None:
    """Take the references out of a docstring (an event of autodoc)."""
    text = _ENTRY.sub("", "\n".join(lines) + "\n")
    text = re.sub(r"^References:\n\s*\Z", "", text, flags=re.M)
    lines[:] = text.splitlines()


def line_of(name: str, package: str) -> tuple[str, int] | None:
    """The file, from the root of the repository, and the line of a name in a table.

    None for what is no class, function or module of this package.

    Args:
        name: As ``solver.LeafSolver``, from the package or one above it.
        package: As ``botorch_structured.models.tree``.
    """
    parts = re.sub(r"\(.*\)$", "", name).split(".")
    if not all(map(str.isidentifier, parts)):
        return None
    # installed, the package may lie elsewhere than in this checkout
    whole = importlib.import_module(package.split(".")[0])
    package_root = Path(whole.__file__).parent
    above = [package.rsplit(".", i)[0] for i in range(1, package.count(".") + 1)]
    faces = [f"{above[-1]}.{face}" for face in ("kernels", "test_functions")]
    for start in ("", package, *above, *faces):
        path = [*filter(None, [start]), *parts]
        for cut in range(len(path), 0, -1):
            try:
                thing = importlib.import_module(".".join(path[:cut]))
                for attribute in path[cut:]:
                    thing = getattr(thing, attribute)
                thing = getattr(thing, "fget", inspect.unwrap(thing))
                file = Path(inspect.getsourcefile(thing) or "")
                line = inspect.getsourcelines(thing)[1]
            except (AttributeError, ImportError, OSError, TypeError):
                continue
            root = next((r for r in (package_root, ROOT) if r in file.parents), None)
            if root is not None:
                path_of_file = file.relative_to(root.parent if root != ROOT else ROOT)
                return path_of_file.as_posix(), max(line, 1)
    return None
