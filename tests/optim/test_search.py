"""What the optimisers hand to the engine under all of them."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from botorch_structured import optim
from botorch_structured.optim.problem import make_problem
from botorch_structured.optim.search import Search

OPTIMISERS = [name for name in optim.__all__ if name.startswith("optimize")]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_no_argument_goes_unheard(name: str) -> None:
    """``Search(**locals())`` ignores names that it does not know."""
    optimiser = getattr(optim, name)
    known = {p for f in (Search, make_problem) for p in inspect.signature(f).parameters}
    body = ast.parse(textwrap.dedent(inspect.getsource(optimiser)))
    read = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
    assert set(inspect.signature(optimiser).parameters) <= known | read
