"""The synthetic tree-structured functions of Jenatton et al. (2017).

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez, M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. International Conference on Machine Learning, 2017.
"""

from __future__ import annotations

__all__ = ["JenattonTree"]

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces import Equals, ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count
from botorch_structured.test_functions.base import ConditionalTestFunction

_SHARED_OPTIMA = (0.3, 0.7)  # of the two shared variables where they enter squared


class JenattonTree(ConditionalTestFunction):
    r"""Univariate quadratics at the leaves of a binary tree of 0/1 decisions.

    Section 4.1 of [Jenatton2017tree]_. Leaf ``a = 1, ..., P`` has a variable of its own
    in [-1, 1] and a shift; its value is

        f_a(x, r) = (x - s_a)^2 + 0.1 a + h(r)

    with ``s_a = 0``; ``off_centre`` draws them from numpy's ``default_rng(12345)``,
    uniform in [-0.8, 0.8], as an optimum in the middle of the box flatters methods that
    start there. With ``shared`` there are two more variables in [0, 1], each for half
    of the leaves, which enter ``h`` linearly, or squared with ``quadratic_shared``, as
    linear terms flatter linear models: ``(r_1 - 0.3)^2`` and ``(r_2 - 0.7)^2``. To be
    minimised; the optimum is 0.1, in leaf 1. The balanced tree with four leaves, its
    variables named as in the paper's Figure 1::

                      x1
                  0 /    \ 1                   shared: r8 left, r9 right
                  x2      x3
                0/  \1  0/  \1
                x4  x5  x6  x7

    Unbalanced trees are chains: each decision leads to a leaf (0) or to the next
    decision (1), the last one to two leaves, so that leaf 1 has the shortest path. The
    first shared variable then sits at the root and enters every leaf; the second sits
    where the later half of the leaves begins, and enters those in addition::

                x1                              shared: r8 everywhere,
              0/  \1                                    r9 in x6 and x7
             x4    x2
                 0/  \1
                x5    x3
                    0/  \1
                    x6   x7

    Other packages have functions of this name that differ: Ax's ``Jenatton`` has x in
    [0, 1] and its optimum on the boundary.

    **Columns**, of ``space.names``: the decisions ``x1, ..., x{P-1}`` (0 or 1), then
    ``x{P}, ..., x{2P-1}`` of the leaves, then ``r{2P}`` and ``r{2P+1}`` if shared.

    Example:
        >>> problem = JenattonTree(num_leaves=8, shared=True, negate=True)
        >>> X = problem.starts(seed=0)  # one point in each leaf
        >>> Y = problem(X).unsqueeze(-1)
    """

    _optimal_value = 0.1
    optimizers: Tensor
    _centres: Tensor  # ``P``

    def __init__(
        self,
        num_leaves: int = 4,
        shared: bool = False,
        balanced: bool = True,
        off_centre: bool = False,
        quadratic_shared: bool = False,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            num_leaves: ``P``, at least 2; a power of 2 where the tree is balanced. The
                paper has 4 ("small") and 8 ("large").
            shared: Whether there are shared variables.
            balanced: Whether all paths are equally long; otherwise a chain.
            off_centre: Whether the leaves' optima are off the centre of [-1, 1].
            quadratic_shared: Shared variables that enter squared; implies ``shared``.
            noise_std: Standard deviation of the observation noise.
            negate: Whether to negate the function, for maximisation.
            dtype: The dtype of ``bounds``.

        Raises:
            ValueError: For a number of leaves that there is no such tree of.
        """
        P = check_count("num_leaves", num_leaves)
        if P < 2 or (balanced and P & (P - 1)):
            kind = "a power of 2, at least 2" if balanced else "at least 2"
            raise ValueError(f"num_leaves: expected {kind} with {balanced=}, got {P}.")
        shared = shared or quadratic_shared
        space = _make_space(P, shared, balanced)
        super().__init__(space, noise_std=noise_std, negate=negate, dtype=dtype)
        self.num_leaves = P
        centres = np.zeros(P)
        if off_centre:
            centres = np.random.default_rng(12345).uniform(-0.8, 0.8, P)
        optima = self.bounds.new_tensor(_SHARED_OPTIMA if quadratic_shared else (0, 0))
        self.quadratic_shared = quadratic_shared
        self.register_buffer("_centres", torch.from_numpy(centres), persistent=False)
        best = self.bounds.new_zeros(1, self.dim)
        best[0, P - 1] = centres[0]
        if shared:
            best[0, 2 * P - 1 :] = optima
        self.register_buffer("optimizers", best)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        P = self.num_leaves
        a = self.tree.path_index(X.unsqueeze(-2))  # paths are leaves, left to right
        x = X.gather(-1, a + (P - 1)).squeeze(-1)
        a = a.squeeze(-1)
        value = (x - self._centres.to(X)[a]).square() + 0.1 * (a + 1).to(X)
        r = X[..., 2 * P - 1 :]
        if self.quadratic_shared:
            r = (r - X.new_tensor(_SHARED_OPTIMA)).square()
        return value + torch.where(self._active(X)[..., 2 * P - 1 :], r, 0.0).sum(-1)


def _make_space(P: int, shared: bool, balanced: bool) -> SearchSpace:
    """The tree's nodes are ``1, ..., P - 1`` (decisions) and ``P, ..., 2P - 1``."""
    leads_to = {}  # (decision, value) -> node
    for k in range(1, P):
        last = k == P - 1
        leads_to[k, 0] = 2 * k if balanced else P + k - 1
        leads_to[k, 1] = 2 * k + 1 if balanced or last else k + 1
    edges = {node: edge for edge, node in leads_to.items()}
    sits_at = {f"x{k}": k for k in range(1, 2 * P)}
    if shared:  # at the children of the root; in a chain see the class
        later = P // 2 + 1 if P > 2 else 3
        left, right = (2, 3) if balanced else (1, later)
        sits_at |= {f"r{2 * P}": left, f"r{2 * P + 1}": right}
    conditions = {
        column: Equals(edges[node][0] - 1, edges[node][1])
        for column, node in enumerate(sits_at.values())
        if node != 1
    }
    d = len(sits_at)
    values = {k: [0.0, 1.0] for k in range(P - 1)}
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).repeat(1, d)
    bounds[0, P - 1 : 2 * P - 1] = -1.0
    tree = ParameterTree(d, conditions=conditions, values=values)
    return SearchSpace(list(sits_at), bounds, tree)
