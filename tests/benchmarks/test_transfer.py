"""Reading of tables, and one task solved with the tables of the others."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest
import torch

from benchmarks.problems.transfer import (
    TransferTables,
    random_forest_tables,
    table_from_csv,
)
from botorch_structured.spaces import SearchSpace
from botorch_structured.test_functions import TableProblem


class TestFiles:
    TEXT = "id,tau,s,y,t\nA,1,10,5,0\nB,100,20,3,0\nC,10,30,-99,\n"

    def test_reads_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "grid.csv"
        path.write_text(self.TEXT)
        with gzip.open(tmp_path / "grid.csv.gz", "wt") as file:
            file.write(self.TEXT)
        for name in (path, tmp_path / "grid.csv.gz", str(path)):
            problem = table_from_csv(
                name, ["s", "tau"], "y", log=["tau"], missing=[-99], maximize=True
            )
            assert problem.candidates.tolist() == [[10.0, 0.0], [20.0, 2.0]]
            assert problem.values.tolist() == [-5.0, -3.0]
            assert problem.space.names == ["s", "tau"]

    def test_says_what_is_wrong(self, tmp_path: Path) -> None:
        path = tmp_path / "grid.csv"
        with pytest.raises(FileNotFoundError, match=r"grid\.csv"):
            table_from_csv(path, ["s"], "y")
        path.write_text(self.TEXT)
        for inputs, value, more, message in (
            (["s", "u"], "y", {}, r"grid\.csv: expected columns \['u'"),
            (["id"], "y", {}, "row 1: expected a number, got 'A'"),
            (["s"], "t", {}, "row 3: expected a number, got ''"),
            (["s"], "y", {"log": ["tau"]}, r"log: expected names of \['s'\]"),
            (["s"], "y", {"missing": [5, 3, -99]}, "a row with a value"),
        ):
            with pytest.raises(ValueError, match=message):
                table_from_csv(path, inputs, value, **more)


ARFF = """% {"flow_id": 6969}
@RELATION openml-meta-flow-6969

@ATTRIBUTE randomforestclassifier__bootstrap {True, False}
@ATTRIBUTE randomforestclassifier__criterion {entropy, gini}
@ATTRIBUTE randomforestclassifier__max_depth {None}
@ATTRIBUTE randomforestclassifier__max_features NUMERIC
@ATTRIBUTE randomforestclassifier__min_samples_leaf {18, 20}
@ATTRIBUTE randomforestclassifier__min_samples_split {9, 19}
@ATTRIBUTE columntransformer__numeric__imputer__strategy {median, most_frequent}
@ATTRIBUTE predictive_accuracy NUMERIC
@ATTRIBUTE task_id NUMERIC

@DATA
True,entropy,None,0.8,18,9,median,0.5,3
False,gini,None,0.1,20,19,most_frequent,0.75,3
True,gini,None,0.5,1,2,mean,0.25,12
"""


def tables(contexts: bool = False) -> TransferTables:
    """Three tasks with 6, 6 and 4 rows; the last is constant."""
    generator = torch.Generator().manual_seed(0)
    task = torch.tensor([0, 1] * 6 + [2] * 4)
    X = torch.rand(16, 2, generator=generator, dtype=torch.double)
    y = torch.randn(16, generator=generator, dtype=torch.double)
    y[task == 2] = 3.0
    space = SearchSpace(["u", "v"], torch.tensor([[0.0, 0], [1, 1]]))
    c = torch.arange(6.0).reshape(3, 2) if contexts else None
    return TransferTables(X, y, task, ["p", "q", "r"], space, c)


@pytest.mark.parametrize("negate", [False, True])
def test_one_table_is_left_out(negate: bool) -> None:
    all_of_them = tables(contexts=True)
    problem = all_of_them.leave_out("q", negate=negate)
    assert isinstance(problem, TableProblem)
    sign = -1.0 if negate else 1.0
    own = all_of_them.task == 1
    assert torch.equal(problem(all_of_them.X[own]), sign * all_of_them.y[own])
    history = problem.history
    assert history.task == 1 and history.num_tasks == 3
    assert torch.equal(history.X[:, :-1], all_of_them.X[~own])
    assert history.X[:, -1].tolist() == all_of_them.task[~own].tolist()
    assert torch.equal(history.Y.squeeze(-1), sign * all_of_them.y[~own])
    assert torch.equal(history.contexts, all_of_them.contexts)
    starts = problem.starts(0)
    assert starts.shape == (2, 2) and problem.space.feasible(starts).all()
    assert torch.equal(problem.starts(0, 5)[:2], starts)
    same = pickle.loads(pickle.dumps(problem))
    assert torch.equal(same.history.X, history.X)
    assert torch.equal(same(starts), problem(starts))
    by_number = all_of_them.leave_out(1)
    assert torch.equal(by_number.candidates, problem.candidates)


def test_subset() -> None:
    known = tables(contexts=True)
    some = known.subset(["r", "p"])
    assert some.names == ["r", "p"] and some.num_tasks == 2
    assert torch.equal(some.X, torch.cat([known.X[known.task == t] for t in (2, 0)]))
    assert torch.equal(some.y, torch.cat([known.y[known.task == t] for t in (2, 0)]))
    assert some.task.tolist() == [0] * 4 + [1] * 6
    assert some.contexts.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    problem = some.leave_out("p")
    assert problem.history.task == 1 and len(problem.history.X) == 4
    for names in ([], ["p", "p"], ["p", "nobody"]):
        with pytest.raises(ValueError, match=": expected"):
            known.subset(names)


def test_random_forests(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "rf.arff", tmp_path / "rf.arff.gz"
    plain.write_text(ARFF)
    with gzip.open(zipped, "wt") as file:
        file.write(ARFF)
    for path in (plain, str(zipped)):
        forests = random_forest_tables(path)
        assert forests.names == ["3", "12"]
        problem = forests.leave_out("3")
        assert problem.optimal_value == -0.75
        (best,) = problem.space.decode(problem.optimizers)
        assert best == {
            "bootstrap": False,
            "criterion": "gini",
            "max_features": 0.1,
            "min_samples_leaf": 20,
            "min_samples_split": 19,
            "strategy": "most_frequent",
        }
        assert problem.history.X.tolist() == [[1, 1, 0.5, 1, 2, 0, 1]]
        assert problem.history.Y.tolist() == [[-0.25]]
    for text, message in (
        (ARFF.replace("gini,None", "log,None", 1), "row 2: 'criterion': expected"),
        (ARFF.replace(",0.5,3", ",?,3"), r"row 1: expected a number, got '\?'"),
        (ARFF.replace("NUMERIC\n@ATTRIBUTE task_id", "X\n@OTHER task_id"), "task_id"),
        (ARFF.split("True,entropy")[0], "a row of data"),
    ):
        plain.write_text(text)
        with pytest.raises(ValueError, match=message):
            random_forest_tables(plain)
    with pytest.raises(FileNotFoundError):
        random_forest_tables(tmp_path / "nothing.arff")


def test_wrong_arguments_of_transfer_tables() -> None:
    good = tables()
    with pytest.raises(ValueError, match=r"one of \['p', 'q', 'r'\], got 's'"):
        good.leave_out("s")
    with pytest.raises(ValueError, match="0 to 2, or .*got -1"):
        good.leave_out(-1)
    for changed, message in (
        (dict(X=good.X[:, :1]), "N x 2"),
        (dict(y=good.y[:3]), "`N` values and tasks"),
        (dict(names=["p", "q"]), "each of 2 tasks"),
        (dict(contexts=torch.zeros(2, 1)), "3 rows, got 2"),
    ):
        arguments = dict(
            X=good.X, y=good.y, task=good.task, names=good.names, space=good.space
        )
        with pytest.raises(ValueError, match=message):
            TransferTables(**{**arguments, **changed})
