from typing import Any

import numpy as np
import torch
from search_problems import make_problem
from torch import Tensor

from botorch_structured.optim.boxes import (
    Boxes,
    Sample,
    path_boxes,
    raw_candidates,
)
from botorch_structured.spaces import ParameterTree


def candidates(boxes: Boxes, per_box: int, good: Tensor, rng: Any) -> Any:
    """As tensors."""
    keys = boxes.problem.keys(good.numpy())
    sample = raw_candidates(boxes, per_box, good.numpy(), keys, rng)
    parts = (sample.X, sample.box, sample.source)
    return Sample(*map(torch.from_numpy, parts))


def test_candidates_around_a_good_point_are_near_and_far() -> None:
    """By source, in shares of the width, whatever the bounds are."""
    bounds = torch.tensor([[0.0, 2.0, 10.0, 0.0], [1.0, 12.0, 110.0, 4.0]]).double()
    names = {4: [float(v) for v in range(5)]}
    problem = make_problem(bounds, ParameterTree(4), [2], {3: names[4]})
    rng = np.random.default_rng(0)
    boxes = path_boxes(problem, problem.X_avoid, rng)
    good = bounds.new_tensor([[0.4, 7.0, 60.0, 1.0]])
    sample = candidates(boxes, 1024, good, rng)
    # no column is shared: none are carried over from the good point
    assert sample.source.unique().tolist() == [0, 2, 3, 4]
    assert sample.source.bincount()[0] == 1024
    far = ((sample.X - good).abs() / (bounds[1] - bounds[0]))[:, :2]
    for source, (least, most) in {
        0: (0.1, 0.5),
        2: (10**-5, 10**-3.5),
        3: (10**-3.5, 10**-2),
        4: (10**-2, 10**-0.5),
    }.items():
        for column in (0, 1):
            moved = far[sample.source == source, column]
            moved = moved[moved > 0.0]
            assert least < float(moved.median()) < most
    around = sample.X[sample.source >= 2]
    stays = (around[:, 0] == 0.4).double().mean()
    assert 0.15 < float(stays) < 0.4  # three of four columns change at a time
    steps = (around[:, 2] - 60.0).abs()
    assert 0.1 < float((steps > 0.0).double().mean()) < 0.3
    assert 4.0 < float(steps[steps > 0.0].median()) < 20.0
    others = around[:, 3] != 1.0
    assert 0.05 < float(others.double().mean()) < 0.3
    assert set(around[:, 3].tolist()) == set(names[4])
