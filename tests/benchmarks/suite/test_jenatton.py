import pickle

import torch

from benchmarks.suite.jenatton import DEVELOP, REPORT
from benchmarks.suite.problem import kind_of
from botorch_structured.test_functions import JenattonTree


def test_the_halves() -> None:
    assert len(DEVELOP) == 8 and len(REPORT) == 10
    assert not DEVELOP.keys() & REPORT.keys()
    for name, factory in {**DEVELOP, **REPORT}.items():
        problem = pickle.loads(pickle.dumps(factory))(0)
        assert kind_of(name) == "jenatton"
        assert problem.optimal_value == 0.1 < problem.middle_value < 3.0
        assert problem.noise_std == (0.05 if "noisy" in name else 0.0)
        assert len(problem.starts(1)) == problem.space.tree.num_paths


def test_names_are_the_trees() -> None:
    tree = JenattonTree(8, shared=True, balanced=False)
    problem = DEVELOP["jenatton-8-chain-shared"](0)
    assert problem.space.names == tree.space.names
    X = problem.space.sample(20, seed=0)
    assert problem.truths(X).equal(tree.evaluate_true(X))
    assert problem(X[0]) == problem.truth(X[0]) == float(tree(X[0]))
    assert problem.starts(5).equal(tree.starts(5))
    off = JenattonTree(4, off_centre=True, quadratic_shared=True)
    noisy = DEVELOP["jenatton-noisy-4-quad-off"](0)
    x = noisy.starts(0)[0]
    assert noisy.truth(x) == float(off.evaluate_true(x))
    torch.manual_seed(0)
    assert 0 < abs(noisy(x) - noisy.truth(x)) < 0.3
