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
from botorch_structured.test_functions.conditional import ConditionalTestFunction

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

    **Columns** are those of ``space.names``: the decisions ``x1, ..., x{P-1}`` (values
    0 and 1), then ``x{P}, ..., x{2P-1}`` of the leaves, then ``r{2P}`` and ``r{2P+1}``.
    Inactive ones are ignored.

    Example:
        >>> problem = JenattonTree(num_leaves=8, shared=True, negate=True)
        >>> X = problem.starts(seed=0)  # one point in each leaf
        >>> Y = problem(X).unsqueeze(-1)
    """

    _optimal_value = 0.1

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
        P = num_leaves
        if P < 2 or (balanced and P & (P - 1)):
            kind = "a power of 2, at least 2" if balanced else "at least 2"
            raise ValueError(f"Expected {kind} leaves with {balanced=}. Got {P}.")
        shared = shared or quadratic_shared
        # What an edge (decision, value) leads to: decisions are 1, ..., P - 1 and
        # leaves P, ..., 2P - 1, as in the paper's figure.
        if balanced:
            leads_to = {(k, v): 2 * k + v for k in range(1, P) for v in (0, 1)}
        else:
            leads_to = {(k, 0): P + k - 1 for k in range(1, P)}
            leads_to |= {(k, 1): k + 1 for k in range(1, P - 1)}
            leads_to[P - 1, 1] = 2 * P - 1
        # Where the two shared variables sit: at the root's children, or as above.
        if balanced:
            homes = (leads_to[1, 0], leads_to[1, 1])
        else:
            later = P // 2 + 1
            homes = (1, later if later < P else 2 * P - 1)
        edges = {child: edge for edge, child in leads_to.items()}
        names = [f"x{k}" for k in range(1, 2 * P)]
        if shared:
            names += [f"r{2 * P}", f"r{2 * P + 1}"]
        sits_under = dict(zip(names[2 * P - 1 :], homes, strict=False))
        sits_under |= {f"x{k}": k for k in range(1, 2 * P)}
        space = _make_space(
            names, P, {n: edges[k] for n, k in sits_under.items() if k != 1}
        )
        super().__init__(space, noise_std=noise_std, negate=negate, dtype=dtype)
        self.num_leaves = P
        self.quadratic_shared = quadratic_shared
        columns = {name: space.names.index(name) for name in names}

        # Tables: the column of a decision and of a leaf, where an edge leads, and what
        # is active at a leaf. Leaves lead to themselves.
        following = torch.arange(2 * P).repeat(2, 1)
        for (k, v), child in leads_to.items():
            following[v, k] = child
        active = torch.zeros(2 * P, self.dim, dtype=torch.bool)
        depth = 0
        for leaf in range(P, 2 * P):
            nodes = [leaf]
            while nodes[-1] != 1:
                nodes.append(edges[nodes[-1]][0])
            on_path = [n for n, k in sits_under.items() if k in nodes]
            active[leaf, [columns[name] for name in on_path]] = True
            depth = max(depth, len(nodes) - 1)
        self._depth = depth
        centres = np.zeros(P)
        if off_centre:
            centres = np.random.default_rng(12345).uniform(-0.8, 0.8, P)
        at_nodes = torch.tensor([0] + [columns[f"x{k}"] for k in range(1, 2 * P)])
        self.register_buffer("_column", at_nodes, persistent=False)
        self.register_buffer("_following", following, persistent=False)
        self.register_buffer("_active_at", active, persistent=False)
        self.register_buffer("_centres", torch.from_numpy(centres), persistent=False)
        self._shared_columns = [columns[name] for name in names[2 * P - 1 :]]

        best = self.bounds.new_zeros(1, self.dim)
        best[0, columns[f"x{P}"]] = centres[0]
        if quadratic_shared:
            best[0, self._shared_columns] = best.new_tensor(_SHARED_OPTIMA)
        self.register_buffer("optimizers", best)

    def _leaf(self, X: Tensor) -> Tensor:
        """The leaf, ``P, ..., 2P - 1``, of ``batch_shape x d`` points."""
        node = torch.ones(X.shape[:-1], dtype=torch.long, device=X.device)
        for _ in range(self._depth):
            value = X.gather(-1, self._column[node].unsqueeze(-1)).squeeze(-1)
            node = self._following[(value > 0.5).long(), node]
        return node

    def _active(self, X: Tensor) -> Tensor:
        return self._active_at[self._leaf(X)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        leaf = self._leaf(X)
        x = X.gather(-1, self._column[leaf].unsqueeze(-1)).squeeze(-1)
        a = leaf - self.num_leaves
        value = (x - self._centres.to(X)[a]).square() + 0.1 * (a + 1).to(X)
        r = X[..., self._shared_columns]
        if self.quadratic_shared:
            r = (r - X.new_tensor(_SHARED_OPTIMA)).square()
        enters = self._active_at[leaf][..., self._shared_columns]
        return value + torch.where(enters, r, 0.0).sum(-1)


def _make_space(
    names: list[str], P: int, under: dict[str, tuple[int, int]]
) -> SearchSpace:
    """The space of these variables, each active where its (decision, value) is."""
    tree = ParameterTree(
        len(names),
        conditions={
            names.index(name): Equals(k - 1, value)
            for name, (k, value) in under.items()
        },
        values={k: [0.0, 1.0] for k in range(P - 1)},
    )
    bounds = torch.zeros(2, len(names), dtype=torch.double)
    bounds[1] = 1.0
    bounds[0, P - 1 : 2 * P - 1] = -1.0
    return SearchSpace(names, bounds, tree)
