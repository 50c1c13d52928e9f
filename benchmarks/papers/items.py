"""From claims to verdicts: what the scripts of the papers share.

An `Item` is a figure or a table of a paper. Its ``check`` reads the runs in
``benchmarks/results``, or computes in seconds what needs no runs, and returns numbers
and `Claim` s, each with a test. The verdict follows from them by one rule:
"reproduces" if all claims hold, "partly" if at least half of them do, otherwise "does
not". ``stated`` is what docs/papers.md says; a script fails if its results say
otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.pictures import save
from benchmarks.summary import holm, one_sided

RESULTS = Path(__file__).parents[1] / "results"
_LEVEL = 0.05


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the result, and whether the test is passed."""

    text: str
    found: str
    holds: bool


@dataclasses.dataclass(frozen=True)
class Item:
    """A figure or table.

    Attributes:
        name: In the paper.
        stated: The verdict on docs/papers.md.
        check: Numbers to print, and the claims.
        picture: A file in docs/images/papers, and a function that draws it.
    """

    name: str
    stated: str
    check: Callable[[], tuple[str, list[Claim]]]
    picture: tuple[str, Callable[[], Any]] | None = None

    def judged(self) -> tuple[str, str]:
        """The verdict by the results, and what to print."""
        text, claims = self.check()
        judged = verdict(claims)
        lines = [
            f"- {'yes' if c.holds else 'NO '}  {c.text}: {c.found}" for c in claims
        ]
        parts = [f"## {self.name}", text, "\n".join(lines), f"Verdict: {judged}"]
        return judged, "\n\n".join(part for part in parts if part)


def verdict(claims: Sequence[Claim]) -> str:
    """All hold: "reproduces"; at least half: "partly"; otherwise "does not"."""
    holding = sum(claim.holds for claim in claims)
    if holding == len(claims):
        return "reproduces"
    return "partly" if 2 * holding >= len(claims) else "does not"


def lower(pairs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[Claim]:
    """Claims that the first of two paired samples is lower.

    One-sided Wilcoxon signed-rank tests, with Holm's correction over all of ``pairs``.
    """
    corrected = holm([one_sided(mine, other) for mine, other in pairs.values()])
    return [
        Claim(
            text,
            f"{mine.mean():.4g} against {other.mean():.4g}, "
            f"{(mine < other).sum()} : {(mine > other).sum()}, Holm's p = {p:.2g}",
            p < _LEVEL,
        )
        for (text, (mine, other)), p in zip(pairs.items(), corrected, strict=True)
    ]


def main(
    title: str | None, items: Sequence[Item], arguments: Sequence[str] | None = None
) -> None:
    """The command line of a paper: exits with an error where a page is wrong."""
    parser = argparse.ArgumentParser(description=(title or "").split("\n")[0])
    names = [item.name for item in items]
    parser.add_argument("--items", nargs="+", default=names, choices=names)
    parser.add_argument("--pictures", type=Path, help="a folder to draw them in")
    options = parser.parse_args(arguments)
    wrong = []
    for item in items:
        if item.name in options.items:
            if options.pictures and item.picture:
                name, draw = item.picture
                save(draw(), options.pictures / name)
            found, text = item.judged()
            print(text + "\n", flush=True)
            if found != item.stated:
                wrong.append(f"{item.name}: stated {item.stated!r}, found {found!r}")
    if wrong:
        parser.exit(1, "\n".join(wrong) + "\n")
