"""The references of all docstrings, each once, on one page.

A module's docstring lists the papers that it cites (``.. [Key]`` and the reference),
for those who read the code. Sphinx wants a key defined once: here.
"""

from __future__ import annotations

__all__ = ["strip", "write"]

import re
from pathlib import Path

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
