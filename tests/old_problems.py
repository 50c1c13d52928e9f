"""Old studies of one space, for tests."""

from typing import Any

import torch
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace


def make_space() -> SearchSpace:
    """A decision between "a" (a logarithm, an integer) and "b"; a category."""
    tree = ParameterTree(5, {0: {0.0: [1, 2], 1.0: [3]}})
    bounds = [[0.0, -3.0, 1.0, 0.0, 0.0], [1.0, 3.0, 40.0, 1.0, 2.0]]
    return SearchSpace(
        ["learner", "rate", "layers", "width", "kind"],
        torch.tensor(bounds, dtype=torch.float64),
        tree,
        integer_features=[2],
        categorical_features={4: [0.0, 1.0, 2.0]},
        choices={0: ["a", "b"]},
        log_features=[1, 2],
    )


SPACE = make_space()


def outcome(X: Tensor, shift: float = 0.0) -> Tensor:
    """Best at learner "a", rate 1 + shift, 8 layers, kind 1."""
    a = -((X[:, 1] - 1.0 - shift) / 2.0).square() - (X[:, 2] / 8.0).log().square()
    b = -1.0 - (X[:, 3] - 0.3).square()
    return torch.where(X[:, 0] == 0.0, a, b) - 0.5 * (X[:, 4] != 1.0)


def make_studies(count: int, n: int = 40, scale: float = 1.0) -> list[Any]:
    g = torch.Generator().manual_seed(3)
    shifts = 0.3 * torch.randn(count, generator=g, dtype=torch.float64)
    out = []
    for t in range(count):
        X = SPACE.sample(n, seed=t)
        out.append((X, scale**t * (outcome(X, float(shifts[t])) + 3 * t).unsqueeze(-1)))
    return out


def points(n: int, seed: int = 100) -> tuple[Tensor, Tensor]:
    X = SPACE.sample(n, seed=seed)
    return X, outcome(X).unsqueeze(-1)


def transformed(X: Tensor) -> Tensor:
    transform = SPACE.input_transform()
    assert transform is not None
    return transform(X)
