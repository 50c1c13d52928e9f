from __future__ import annotations

import torch

from botorch_structured.optim.problem import Grid


def test_integers() -> None:
    grid = Grid()
    X = torch.tensor([0.4, 1.6, -2.2], dtype=torch.double)
    assert grid.snap(X).tolist() == [0.0, 2.0, -2.0]
    low, high = grid.inside(torch.tensor([0.3]), torch.tensor([4.9]))
    assert (low.item(), high.item()) == (1.0, 4.0)
    assert grid.steps(9) == [-1, 1, -2, 2, -4, 4, -8, 8]
    assert grid.steps(0) == []


def test_listed_values() -> None:
    grid = Grid((0.0, 1.0, 2.5, 7.0), ordered=False)
    X = torch.tensor([-3.0, 0.6, 2.0, 99.0], dtype=torch.double)
    assert grid.position(X).tolist() == [0, 1, 2, 3]
    assert grid.snap(X).tolist() == [0.0, 1.0, 2.5, 7.0]
    assert grid.steps(3) == [-1, 1, -2, 2, -3, 3]
    low, high = grid.inside(torch.tensor([0.5, 1.0, 3.0]), torch.tensor([2.5, 6.0, 4]))
    assert low.tolist() == [1.0, 1.0, 7.0]
    assert high.tolist() == [2.5, 2.5, 2.5]  # none in [3, 4]
    assert Grid((5.0,)).snap(X).tolist() == [5.0] * 4
