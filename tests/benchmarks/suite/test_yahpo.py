"""The surrogates, where they are."""

import pytest

from benchmarks.data import DATA
from benchmarks.suite import yahpo, yahpo_learners


@pytest.mark.parametrize("name", ["yahpo-3", "learners-3"])
def test_the_surrogate_itself(name: str) -> None:
    folder = "yahpo_rbv2_xgboost" if name == "yahpo-3" else "yahpo_rbv2_super"
    pytest.importorskip("onnxruntime")
    if not (DATA / folder / "model.onnx").exists():
        pytest.skip(f"needs {DATA / folder}")
    problem = (yahpo.DEVELOP | yahpo_learners.DEVELOP)[name](0)
    values = problem.truths(problem.space.sample(200, seed=0))
    assert values.min() >= problem.optimal_value
    assert (values < problem.middle_value).sum() in range(70, 130)
