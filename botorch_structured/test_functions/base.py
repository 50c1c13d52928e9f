"""Bases of the problems: of those on conditional spaces, and of those on a box."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from botorch.test_functions.base import validate_inputs
from botorch.test_functions.synthetic import SyntheticTestFunction
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_deviation


class ConditionalTestFunction(SyntheticTestFunction):
    r"""A ``SyntheticTestFunction`` over a ``SearchSpace``.

    Columns that are inactive at a row are ignored altogether: they may hold any
    number, NaN included, inside or outside of their bounds, and get no gradient.
    A subclass implements ``_evaluate_true``, which finds the lower bounds there.
    """

    _check_grad_at_opt: bool = False
    bounds: Tensor

    def __init__(
        self,
        space: SearchSpace,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
        bounds: list[tuple[float, float]] | None = None,
    ) -> None:
        r"""
        Args:
            space: The space; its ``d`` columns are those of the problem.
            noise_std: Standard deviation of the observation noise.
            negate: Whether to negate the function, for maximisation.
            dtype: The dtype of ``bounds``.
            bounds: Those of the space, if they are others than those of the paper:
                an optimum is looked for within them.

        Raises:
            ValueError: For a ``negate`` that is not a bool, a negative ``noise_std``.
        """
        if not isinstance(negate, bool):
            raise ValueError(f"negate: expected True or False, got {negate!r}.")
        check_deviation("noise_std", noise_std)
        self.dim = len(space.names)
        self._bounds = [(lower, upper) for lower, upper in space.bounds.T.tolist()]
        self.discrete_inds = list(space.integer_features)
        self.categorical_inds = list(space.categorical_features)
        other = {*self.discrete_inds, *self.categorical_inds}
        self.continuous_inds = [j for j in range(self.dim) if j not in other]
        super().__init__(
            noise_std,
            negate,
            bounds,
            dtype,
        )
        self.space = space

    @property
    def tree(self) -> ParameterTree:
        """Which columns are active at which values of the others."""
        return self.space.tree

    def evaluate_true(self, X: Tensor) -> Tensor:
        r"""The function without noise.

        Args:
            X: A ``batch_shape x d``-dim tensor; inactive columns are ignored.

        Returns:
            A ``batch_shape``-dim tensor.

        Raises:
            ValueError: When an active column is out of its bounds, or is an integer
                or a category by nature and holds something else.
        """
        if X.shape[-1] != self.dim:
            raise ValueError(
                f"X: expected shape `batch_shape x {self.dim}`, got {tuple(X.shape)}."
            )
        X = torch.where(self._active(X), X, self.bounds[0].to(X))
        validate_inputs(
            X=X,
            dim=self.dim,
            bounds=self.bounds.to(X),
            discrete_inds=self.discrete_inds,
            categorical_inds=self.categorical_inds,
        )
        return self._evaluate_true(X)

    def _active(self, X: Tensor) -> Tensor:
        """``batch_shape x d`` of bool, also for points that are not valid."""
        points = self.space._snap(X.detach()).unsqueeze(-2)
        return self.tree.active_mask(points, strict=False).squeeze(-2)

    def starts(self, seed: int) -> Tensor:
        r"""One random point on each path, in random order, the same for a seed.

        The starting design of Jenatton et al. (2017), section 4. Inactive columns
        hold the space's ``fill``.

        Args:
            seed: Any integer that is not negative.

        Returns:
            A ``num_paths x d``-dim tensor.
        """
        rng = np.random.default_rng(1000 + seed)
        X = self.space.fill.to(self.bounds).repeat(self.tree.num_paths, 1)
        bounds = self.bounds.tolist()
        for row, index in zip(X, rng.permutation(len(X)), strict=True):
            path = self.tree.paths[int(index)]
            for j in path.active.tolist():
                if j in path.fixed_features:
                    row[j] = path.fixed_features[j]
                    continue
                lower, upper = path.intervals.get(j, (bounds[0][j], bounds[1][j]))
                value = lower + (upper - lower) * rng.random()
                row[j] = round(value) if j in self.discrete_inds else value
        return X


class BoxTestFunction(ConditionalTestFunction):
    r"""A problem of real numbers, all of them active everywhere.

    A subclass has ``_bounds``, and may have ``_names`` for the columns other than
    ``x0, ..., x{d-1}``, and its own ``_num_starts``.
    """

    _check_grad_at_opt: bool = True
    _names: Sequence[str] = ()
    _num_starts: int | None = None

    def __init__(
        self,
        noise_std: float | None = None,
        negate: bool = False,
        bounds: list[tuple[float, float]] | None = None,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            noise_std: Standard deviation of the observation noise.
            negate: Whether to negate the function.
            bounds: Other bounds than those of the paper, around an optimum.
            dtype: The dtype of ``bounds``.

        Raises:
            ValueError: For a ``negate`` that is not a bool, a negative ``noise_std``.
        """
        limits = torch.tensor(bounds or self._bounds, dtype=torch.double).T
        names = list(self._names) or [f"x{j}" for j in range(limits.shape[-1])]
        space = SearchSpace(names, limits)
        super().__init__(
            space,
            noise_std,
            negate,
            dtype,
            bounds,
        )

    def starts(
        self,
        seed: int,
        n: int | None = None,
    ) -> Tensor:
        r"""The first points of a scrambled Sobol sequence, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many. Default: ``max(5, 2 d)``.

        Returns:
            An ``n x d``-dim tensor.
        """
        if n is None:
            # the published treed GPs have five points in a leaf
            n = self._num_starts or max(5, 2 * self.dim)
        return draw_sobol_samples(self.bounds, n, 1, seed=seed).squeeze(-2)
