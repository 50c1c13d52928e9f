import gzip
import math
from pathlib import Path

import pytest
import torch

from benchmarks.suite import svm_tables
from benchmarks.suite.svm_tables import DATA, DEVELOP, SVMTable

FILE = Path("hpo_conditional", "tst_svm_50datasets_288configs.csv.gz")
C = [2.0**k for k in range(-5, 7)]
GAMMA = [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000]


def accuracy(dataset: int, c: int, kernel: str, own: int) -> float:
    """A different one for each configuration."""
    place = {"linear": 0, "poly": 1, "rbf": 10}[kernel] + own
    return round(1 - (1 + 24 * c + place + 0.001 * dataset) / 1000, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table with other values, scaled as it is."""
    lines = ["dataset,accuracy,kernel,C_scaled,gamma_scaled,degree_scaled"]
    names = (*svm_tables.DEVELOP_DATASETS, *svm_tables.REPORT_DATASETS)
    own = {"linear": [","]}
    own["poly"] = [f",{math.log10(degree)}" for degree in range(2, 11)]
    own["rbf"] = [f"{math.log10(gamma) / 4}," for gamma in GAMMA]
    for number, name in enumerate(names):
        for i, c in enumerate(C):
            for kernel, ends in own.items():
                for j, end in enumerate(ends):
                    value = accuracy(number, i, kernel, j)
                    lines.append(f"{name},{value},{kernel},{math.log2(c) / 6},{end}")
    folder = tmp_path_factory.mktemp("data")
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


@pytest.mark.parametrize(
    ("config", "row"),
    [
        ({"kernel": "linear", "C": 1 / 32}, ("linear", 0, 0)),
        ({"kernel": "poly", "C": 64.0, "degree": 2}, ("poly", 11, 0)),
        ({"kernel": "poly", "C": 1.0, "degree": 10}, ("poly", 5, 8)),
        ({"kernel": "rbf", "C": 2.0, "gamma": 1e-4}, ("rbf", 6, 0)),
        ({"kernel": "rbf", "C": 2.0, "gamma": 1000.0}, ("rbf", 6, 13)),
    ],
)
def test_values_are_those_of_the_table(
    folder: Path, config: dict[str, object], row: tuple[str, int, int]
) -> None:
    problem = DEVELOP["svm-A9A"](0, data=folder)
    X = problem.space.encode([config])
    kernel, c, own = row
    expected = pytest.approx(1 - accuracy(0, c, kernel, own))
    assert problem(X[0]) == problem.truth(X[0]) == expected
    X[~problem.tree.active_mask(X)] = torch.nan  # what is inactive does not matter
    assert problem.truths(X).tolist() == [expected]


def test_the_optimum_is_exact(folder: Path) -> None:
    problem = SVMTable("A9A", folder)
    best = problem.space.encode([{"kernel": "linear", "C": 1 / 32}])
    assert problem.optimal_value == problem(best[0])
    X = problem.space.sample(1000, seed=0)
    values = problem.truths(X)
    assert len(values.unique()) > 200 and values.min() >= problem.optimal_value
    assert problem.middle_value == float(values.median())


@pytest.mark.skipif(not (DATA / FILE).exists(), reason=f"needs {DATA / FILE}")
def test_the_table_itself() -> None:
    problem = DEVELOP["svm-A9A"](0)
    config = {"kernel": "rbf", "C": 1 / 32, "gamma": 0.01}
    assert problem(problem.space.encode([config])[0]) == pytest.approx(1 - 0.834988)
    assert problem.optimal_value == pytest.approx(0.150783)
