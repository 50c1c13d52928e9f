"""The gallery of the tutorials: their titles, first words and last pictures."""

from __future__ import annotations

__all__ = ["SOURCE", "write"]

import base64
import json
import re
from pathlib import Path
from typing import Any

SOURCE = "https://github.com/botorch-structured/botorch-structured"

_TOP = """# Tutorials

Notebooks with their outputs. Each takes less than three minutes on one core; the tests
run them. A notebook's file is in the [repository]({source}/tree/main/tutorials).

"""


def _describe_pictures(cells: list[dict[str, Any]]) -> None:
    """Give pictures an alternative text: the section whose code has drawn them."""
    section = ""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            found = re.findall(r"^#+ (.*)$", "".join(cell["source"]), re.M)
            section = found[-1] if found else section
        else:
            text = f"{section}: what the code above draws."
            cell["metadata"]["mystnb"] = {"image": {"alt": text}}


def _card(name: str, cells: list[dict[str, Any]], folder: Path) -> str:
    """One tutorial: its last picture, its title, the question that it answers."""
    title, question, *_ = "".join(cells[0]["source"]).split("\n\n")
    pictures = [
        output["data"]["image/png"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    (folder / f"{name}.png").write_bytes(base64.b64decode("".join(pictures[-1])))
    title = title.removeprefix("# ").strip()
    question = " ".join(question.split())
    return (
        f":::{{container}} card\n"
        f"[![A picture of the tutorial: {title}]({name}.png)]({name}.ipynb)\n\n"
        f"**[{title}]({name}.ipynb)**\n\n{question}\n:::\n\n"
    )


def write(notebooks: Path, folder: Path) -> None:
    """Copy the notebooks and write their index page.

    Args:
        notebooks: Where they are.
        folder: Where copies, pictures and ``index.md`` go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cards, names = [], []
    for notebook in sorted(notebooks.glob("*.ipynb")):
        content = json.loads(notebook.read_text(encoding="utf-8"))
        _describe_pictures(content["cells"])
        (folder / notebook.name).write_text(json.dumps(content), encoding="utf-8")
        cards.append(_card(notebook.stem, content["cells"], folder))
        names.append(notebook.stem)
    text = _TOP.format(source=SOURCE)
    text += ":::::{container} cards\n\n" + "".join(cards) + ":::::\n\n"
    text += "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"
    (folder / "index.md").write_text(text, encoding="utf-8")
