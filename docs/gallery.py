"""The gallery of the tutorials: their titles, first words and last pictures."""

from __future__ import annotations

__all__ = ["SOURCE", "write"]

import base64
import json
import shutil
from pathlib import Path

SOURCE = "https://github.com/botorch-structured/botorch-structured"

_TOP = """# Tutorials

Notebooks with their outputs. Each takes less than three minutes on one core; the tests
run them. A notebook's file is in the [repository]({source}/tree/main/tutorials).

"""


def _card(notebook: Path, folder: Path) -> str:
    """One tutorial: picture, title, the question that it answers."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    title, question, *_ = "".join(cells[0]["source"]).split("\n\n")
    pictures = [
        output["data"]["image/png"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    picture = folder / f"{notebook.stem}.png"
    picture.write_bytes(base64.b64decode("".join(pictures[-1])))
    title = title.removeprefix("# ").strip()
    question = " ".join(question.split())
    return (
        f":::{{container}} card\n"
        f"[![A picture of the tutorial: {title}]({picture.name})]({notebook.name})\n\n"
        f"**[{title}]({notebook.name})**\n\n{question}\n:::\n\n"
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
        shutil.copy(notebook, folder)
        cards.append(_card(notebook, folder))
        names.append(notebook.stem)
    text = _TOP.format(source=SOURCE)
    text += ":::::{container} cards\n\n" + "".join(cards) + ":::::\n\n"
    text += "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"
    (folder / "index.md").write_text(text, encoding="utf-8")
