"""Which columns and scales published tables have."""

import math
from pathlib import Path

from benchmarks.problems.tables import (
    clark_copper,
    online_lda,
    structured_svm,
    walker_lake,
)


def test_published_tables(tmp_path: Path) -> None:
    """Which columns and scales, which values are none, and what is wanted."""
    path = tmp_path / "table.csv"
    path.write_text("kappa,tau,s,perplexity,time_s\n1,4,16,2014,9\n.5,1,4,1300,9")
    lda = online_lda(path)
    assert lda.optimizers.tolist() == [[0.5, 0.0, math.log10(4.0)]]
    assert lda.optimal_value == 1300.0
    path.write_text("c,alpha,epsilon,error,time_s\n600,.1,.01,.3,9\n10,1,.1,.2,9")
    svm = structured_svm(path, negate=True)
    assert svm.optimizers.tolist() == [[1.0, 0.0, -1.0]]
    assert svm.optimal_value == -0.2
    path.write_text("a,x1,x2,x3,Z,C\nB,1,2,3,.5,5\nB,1,2,8,-99,5\nB,1,2,9,-995,\n")
    copper = clark_copper(path)
    assert copper.candidates.tolist() == [[1.0, 2.0, 3.0]]
    assert copper.optimal_value == -0.5
    path.write_text("Id,X,Y,V,U,T\n1,11,8,0,-999,2\n2,8,30,7.5,-999,2\n")
    lake = walker_lake(path)
    assert lake.optimizers.tolist() == [[8.0, 30.0]]
    assert lake.optimal_value == -7.5
