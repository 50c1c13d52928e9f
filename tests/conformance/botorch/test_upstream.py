"""BoTorch's own tests with our models in the place of ``SingleTaskGP``.

``BOTORCH_SOURCE`` names a checkout of BoTorch at the tag of the installed version.
``expected_failures.toml`` has a line for each test that a model is not meant to pass.
"""

from __future__ import annotations

import os
import tomllib
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import botorch
import pytest
from botorch.models import SingleTaskGP
from stand_ins import STAND_INS
from upstream import NAME, UpstreamTest, upstream_tests

SOURCE = os.environ.get("BOTORCH_SOURCE")
WITHOUT = (
    "BOTORCH_SOURCE is not set: git clone --depth 1 --branch "
    f"v{botorch.__version__} https://github.com/pytorch/botorch, and set it to that "
    "folder."
)
ALL_MODELS = "all"
EXPECTED: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("expected_failures.toml").read_text()
)
# What a reason begins with: an assertion about classes, priors or parameters; a refusal
# that is documented; anything else, of which a model may have ten.
KINDS = ("class", "refusal", "other")


def _cases() -> list[Any]:
    """Each stand-in with each test, marked where it is expected to fail."""
    if not SOURCE:
        return [pytest.param(None, None, marks=pytest.mark.skip(WITHOUT), id="none")]
    root = Path(SOURCE, "test")
    cases, found = [], set()
    for file in sorted(root.rglob("test_*.py")):
        if NAME not in file.read_text():
            continue
        path = file.relative_to(root).as_posix()
        try:
            tests = upstream_tests(root, path)
        except ImportError as error:
            mark = pytest.mark.skip(f"not of BoTorch {botorch.__version__}: {error}")
            cases.append(pytest.param(None, None, marks=mark, id=path))
            continue
        for model in STAND_INS:
            lines = EXPECTED.get(ALL_MODELS, {}) | EXPECTED.get(model, {})
            for test in tests:
                found.add(test.id)
                marks = []
                if test.id in lines:
                    marks = [pytest.mark.xfail(reason=lines[test.id], strict=False)]
                name = f"{model}-{test.id}"
                cases.append(pytest.param(model, test, marks=marks, id=name))
    for test_id in sorted({t for lines in EXPECTED.values() for t in lines} - found):
        mark = pytest.mark.skip("expected to fail, but BoTorch has no such test")
        cases.append(pytest.param(None, None, marks=mark, id=test_id))
    return cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "upstream" in metafunc.fixturenames:
        metafunc.parametrize(("model", "upstream"), _cases())


def test_single_task_gp(model: str, upstream: UpstreamTest) -> None:
    """What ``SingleTaskGP`` passes, passes."""
    try:
        other_classes = upstream.run(STAND_INS[model])
    except unittest.SkipTest as skipped:
        pytest.skip(str(skipped))
    except Exception as failure:
        try:
            upstream.run(SingleTaskGP)
        except Exception:
            pytest.skip(f"fails with {NAME} too")
        raise failure
    if other_classes:
        pytest.xfail(f"class: {', '.join(sorted(set(other_classes)))}")


@pytest.mark.parametrize("model", [ALL_MODELS, *STAND_INS])
def test_expected_failures(model: str) -> None:
    """Each has a reason of a kind that is known, and few are of the last kind."""
    lines = EXPECTED.get(ALL_MODELS, {}) | EXPECTED.get(model, {})
    kinds = Counter(reason.partition(": ")[0] for reason in lines.values())
    assert set(kinds) <= set(KINDS)
    assert kinds["other"] <= 10
    assert set(EXPECTED) <= {ALL_MODELS, *STAND_INS}
