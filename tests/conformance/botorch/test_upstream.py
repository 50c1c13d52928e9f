"""BoTorch's own tests with our models in the place of ``SingleTaskGP``.

``BOTORCH_SOURCE`` names a checkout of BoTorch at the tag of the installed version.
``expected_failures.toml`` has a line for each test that a model is not meant to pass.
Of a checkout of another version, tests that cannot be loaded are reported only.
"""

import os
import tomllib
import unittest
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import botorch
import pytest
from botorch.models import SingleTaskGP
from stand_ins import STAND_INS
from upstream import NAME, UpstreamTest, is_installed, upstream_tests

SOURCE = os.environ.get("BOTORCH_SOURCE")
WITHOUT = (
    "BOTORCH_SOURCE is not set: git clone --depth 1 --branch "
    f"v{botorch.__version__} https://github.com/pytorch/botorch, set it to that "
    "folder, and install botorch[test]."
)
ALL_MODELS = "all"
EXPECTED: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("expected_failures.toml").read_text()
)
# What a reason begins with: an assertion about classes, priors or parameters; a refusal
# that is documented; anything else, of which a model may have ten.
KINDS = ("class", "refusal", "other")
# What follows the kind where random numbers, rounding or BoTorch's version decide.
VARIES = ", varies"


def _kind(reason: str) -> str:
    return reason.partition(": ")[0]


def _lines(model: str) -> dict[str, str]:
    return EXPECTED.get(ALL_MODELS, {}) | EXPECTED.get(model, {})


@cache
def _found() -> tuple[list[UpstreamTest], list[str]]:
    """BoTorch's tests, and why files of them could not be loaded."""
    if not SOURCE:
        return [], []
    tests, errors = [], []
    root = Path(SOURCE, "test")
    for file in sorted(root.rglob("test_*.py")):
        if NAME not in file.read_text():
            continue
        path = file.relative_to(root).as_posix()
        try:
            tests += upstream_tests(root, path)
        except ImportError as error:
            errors.append(f"{path}: {error}")
    return tests, errors


def _cases() -> list[Any]:
    """Each stand-in with each test, marked where it is expected to fail."""
    cases = []
    for test in _found()[0]:
        for model in STAND_INS:
            reason = _lines(model).get(test.id)
            marks = []
            if reason:
                strict = not _kind(reason).endswith(VARIES)
                marks = [pytest.mark.xfail(reason=reason, strict=strict)]
            name = f"{model}-{test.id}"
            cases.append(pytest.param(model, test, marks=marks, id=name))
    return cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "upstream" in metafunc.fixturenames:
        metafunc.parametrize(("model", "upstream"), _cases())


@pytest.mark.skipif(not SOURCE, reason=WITHOUT)
def test_all_are_found() -> None:
    """There are tests, all of which can be loaded, and each expectation is of one."""
    tests, problems = _found()
    assert tests, f"BOTORCH_SOURCE: expected a checkout of BoTorch, got {SOURCE!r}."
    listed = {test_id for lines in EXPECTED.values() for test_id in lines}
    missing = listed - {test.id for test in tests}
    problems = problems + [f"{test_id}: no such test" for test_id in sorted(missing)]
    if problems and not is_installed(Path(str(SOURCE))):
        pytest.skip(f"not BoTorch {botorch.__version__}: {'; '.join(problems)}")
    assert not problems


def test_single_task_gp(
    model: str, upstream: UpstreamTest, request: pytest.FixtureRequest
) -> None:
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
    # of a test with a line, this would hide that it needs none
    if other_classes and not request.node.get_closest_marker("xfail"):
        pytest.xfail(f"class: {', '.join(sorted(set(other_classes)))}")


@pytest.mark.parametrize("model", [ALL_MODELS, *STAND_INS])
def test_expected_failures(model: str) -> None:
    """Each has a reason of a kind that is known, and few are of the last kind."""
    kinds = Counter(
        _kind(reason).removesuffix(VARIES) for reason in _lines(model).values()
    )
    assert set(kinds) <= set(KINDS)
    assert kinds["other"] <= 10
    assert set(EXPECTED) <= {ALL_MODELS, *STAND_INS}
