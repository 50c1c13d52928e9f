from __future__ import annotations

import gzip
import math
import pickle
from pathlib import Path

import pytest
import torch

from benchmarks.suite import svm_tables
from benchmarks.suite.svm_tables import DATA, DEVELOP, REPORT, SVMTable

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
    for number, name in enumerate(names):
        for i, c in enumerate(C):
            start = f"{math.log2(c) / 6}"
            value = accuracy(number, i, "linear", 0)
            lines.append(f"{name},{value},linear,{start},,")
            for j, degree in enumerate(range(2, 11)):
                value = accuracy(number, i, "poly", j)
                lines.append(f"{name},{value},poly,{start},,{math.log10(degree)}")
            for j, gamma in enumerate(GAMMA):
                value = accuracy(number, i, "rbf", j)
                lines.append(f"{name},{value},rbf,{start},{math.log10(gamma) / 4},")
    folder = tmp_path_factory.mktemp("data")
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def test_the_halves_alternate() -> None:
    assert len(DEVELOP) == len(REPORT) == 25
    names = sorted(name.removeprefix("svm-") for name in [*DEVELOP, *REPORT])
    assert names[::2] == [name.removeprefix("svm-") for name in DEVELOP]
    assert pickle.loads(pickle.dumps(DEVELOP["svm-A9A"])).keywords["data"] == DATA


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


def test_starts_are_on_all_kernels(folder: Path) -> None:
    problem = SVMTable("A9A", folder)
    starts = problem.space.decode(problem.starts(0))
    assert {config["kernel"] for config in starts} == {"linear", "poly", "rbf"}
    assert not torch.equal(problem.starts(0), problem.starts(1))


def test_arguments(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dataset: expected one of"):
        SVMTable("iris", folder)
    problem = SVMTable("A9A", folder)
    with pytest.raises(ValueError, match="n x 4"):
        problem.truths(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="points of the space"):
        problem.truths(torch.tensor([[0.0, 12.0, 0.0, 2.0]]))
    with pytest.raises(FileNotFoundError, match="wistuba/TST"):
        SVMTable("A9A", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("A9A,", "elsewhere,", "288 configurations of A9A, got 0"),
        (",rbf,", ",sigmoid,", "kernel in"),
        (",rbf,1.0,-1.0,", ",rbf,1.0,-0.9,", "gamma_scaled in"),
        (",linear,1.0,,", ",linear,0.5,,", "288 configurations of A9A, got 287"),
    ],
)
def test_another_table_is_refused(
    folder: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = gzip.decompress((folder / FILE).read_bytes()).decode()
    assert old in text
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_bytes(gzip.compress(text.replace(old, new).encode(), 1))
    with pytest.raises(ValueError, match=message):
        SVMTable("A9A", tmp_path)


@pytest.mark.skipif(not (DATA / FILE).exists(), reason=f"needs {DATA / FILE}")
def test_the_table_itself() -> None:
    problem = DEVELOP["svm-A9A"](0)
    config = {"kernel": "rbf", "C": 1 / 32, "gamma": 0.01}
    assert problem(problem.space.encode([config])[0]) == pytest.approx(1 - 0.834988)
    assert problem.optimal_value == pytest.approx(0.150783)
