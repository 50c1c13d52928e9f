"""Each constant exists, and both of its ways give the same call something to do."""

import ast
import re
from pathlib import Path

import pytest

import botorch_structured
from benchmarks.speed import thresholds
from benchmarks.speed.thresholds import THRESHOLDS, WITHOUT_A_ROW, Threshold

SIZES = (
    "SMALL|MEDIUM|FEW|MANY|MOST$|DENSE|ROWS|CHUNK|BLOCK|KEPT|MAX_NEAR|NUMBERS|DISTANCE"
)


@pytest.mark.filterwarnings("ignore:Chains may not have converged")
@pytest.mark.parametrize("row", THRESHOLDS, ids=lambda row: row.constant)
def test_both_ways_of_a_constant_run(row: Threshold) -> None:
    name = row.constant.rpartition(".")[2]
    before = getattr(row.module, name)
    assert row.low < before < row.high
    assert min(thresholds.measure(row, min(row.sizes[0], 60), repeats=1)) > 0.0
    assert getattr(row.module, name) == before


def test_each_constant_of_a_size_has_a_row_or_a_reason() -> None:
    root = Path(botorch_structured.__file__).parent
    found = set()
    for file in [*root.glob("linalg/*.py"), *root.glob("models/**/*.py")]:
        module = ".".join(file.relative_to(root).with_suffix("").parts)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign):
                names = {
                    n.id for t in node.targets for n in ast.walk(t) if hasattr(n, "id")
                }
                found |= {f"{module}.{n}" for n in names if re.search(SIZES, n)}
    reasons = {name for names in WITHOUT_A_ROW.values() for name in names}
    assert {row.constant for row in THRESHOLDS} | reasons == found
