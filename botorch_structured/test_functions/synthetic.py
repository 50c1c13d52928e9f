"""Problems whose optimum is known: synthetic functions, cheap to evaluate.

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez, M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. International Conference on Machine Learning, 2017.

.. [Perrone2017multiple]
    V. Perrone, R. Jenatton, M. Seeger, C. Archambeau. Multiple Adaptive Bayesian Linear
    Regression for Scalable Bayesian Optimization with Warm Start. arXiv:1712.02902,
    2017.

.. [Assael2014treed]
    J.-A. M. Assael, Z. Wang, B. Shahriari, N. de Freitas. Heteroscedastic Treed
    Bayesian Optimisation. arXiv:1410.7172, 2014.

.. [Wang2014rkhs]
    Z. Wang, J.-A. M. Assael, N. de Freitas. RKHS 1D Function for Bayesian Optimization
    tasks. https://github.com/iassael/function-rkhs, 2014.

.. [Gramacy2005treed]
    R. B. Gramacy. Bayesian Treed Gaussian Process Models. PhD thesis, University of
    California, Santa Cruz, 2005.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from botorch_structured.spaces import Equals, ParameterTree, SearchSpace
from botorch_structured.spaces.arguments import check_count
from botorch_structured.test_functions.base import (
    BoxTestFunction,
    ConditionalTestFunction,
)


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
            noise_std: Standard deviation of noise to add.
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
        self.quadratic_shared = quadratic_shared
        centres = np.zeros(P)
        if off_centre:
            centres = np.random.default_rng(12345).uniform(-0.8, 0.8, P)
        self.register_buffer("_centres", torch.from_numpy(centres), persistent=False)
        best = self.bounds.new_zeros(1, self.dim)
        best[0, P - 1] = centres[0]
        if quadratic_shared:
            best[0, -2:] = best.new_tensor([0.3, 0.7])
        self.register_buffer("optimizers", best)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        P = self.num_leaves
        a = self.tree.path_index(X.unsqueeze(-2))  # paths are leaves, left to right
        x = X.gather(-1, a + (P - 1)).squeeze(-1)
        a = a.squeeze(-1)
        value = (x - self._centres.to(X)[a]).square() + 0.1 * (a + 1).to(X)
        shared = slice(2 * P - 1, None)
        r = X[..., shared]
        if self.quadratic_shared:
            r = (r - self.optimizers[0, shared].to(X)).square()
        return value + torch.where(self._active(X)[..., shared], r, 0.0).sum(-1)


def _make_space(
    P: int,
    shared: bool,
    balanced: bool,
) -> SearchSpace:
    """The tree's nodes are ``1, ..., P - 1`` (decisions) and ``P, ..., 2P - 1``."""
    edges = {}  # node -> the decision above it and its value
    for k in range(1, P):
        last = k == P - 1
        edges[2 * k if balanced else P + k - 1] = (k, 0)
        edges[2 * k + 1 if balanced or last else k + 1] = (k, 1)
    node_of = {f"x{k}": k for k in range(1, 2 * P)}
    if shared and balanced:  # at the children of the root
        node_of[f"r{2 * P}"] = 2
        node_of[f"r{2 * P + 1}"] = 3
    elif shared:  # in a chain see the class
        node_of[f"r{2 * P}"] = 1
        node_of[f"r{2 * P + 1}"] = P // 2 + 1 if P > 2 else 3
    conditions = {}
    for column, node in enumerate(node_of.values()):
        if node in edges:  # the root is always active
            decision, value = edges[node]
            conditions[column] = Equals(decision - 1, value)
    d = len(node_of)
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).repeat(1, d)
    bounds[0, P - 1 : 2 * P - 1] = -1.0
    values = {k: [0.0, 1.0] for k in range(P - 1)}
    tree = ParameterTree(d, conditions=conditions, values=values)
    return SearchSpace(list(node_of), bounds, tree)


class RKHS1D(BoxTestFunction):
    r"""Smooth on the left, ten times as wiggly on the right.

    The first problem of [Assael2014treed]_ (section 4 and Figure 3), defined in
    [Wang2014rkhs]_: on [0, 1], the negative of

        f(x) = sum_i a_i exp(-(x - s_i)^2 / (2 * 0.1^2))
             + sum_j b_j exp(-(x - t_j)^2 / (2 * 0.01^2))

    with five wide and fourteen narrow bumps. A stationary model learns one length-scale
    and searches either the smooth part, where a broad local optimum of 4.97 is found at
    once, or everything as finely as the other: f is at most 5.738 at 0.892, on a
    peak 0.02 wide.

    The authors maximise f. As every problem here it is to be minimised, and f is
    ``RKHS1D(negate=True)``. There is no noise unless ``noise_std`` is given.

    Example:
        >>> problem = RKHS1D(negate=True)
        >>> X = problem.starts(seed=0)  # 5 x 1
        >>> Y = problem(X).unsqueeze(-1)
    """

    _bounds = [(0.0, 1.0)]
    _optimal_value = -5.738393747098739
    _optimizers = [(0.8923597507741958,)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        wide = X.new_tensor([10, 15, 8, 30, 40]) / 100
        narrow = X.new_tensor(
            [80, 85, 90, 95, 92, 74, 91, 89, 79, 88, 86, 96, 99, 82]
        ).div(100)
        smooth = _bumps(X, wide, 0.1) @ X.new_tensor([4, -1, 2, -2, 1])
        rough = _bumps(X, narrow, 0.01) @ X.new_tensor(
            [3, 4, 2, 1, -1, 2, 2, 3, 3, 2, -1, -2, 4, -3]
        )
        return -(smooth + rough)


def _bumps(
    X: Tensor,
    centres: Tensor,
    width: float,
) -> Tensor:
    return ((X - centres) / width).square().mul(-0.5).exp()


class GramacyExponential2D(BoxTestFunction):
    r"""A dip and a bump in one corner of a plain: ``x1 exp(-x1^2 - x2^2)``.

    On [-2, 6]^2; nearly all that happens is in [-2, 2]^2. From [Gramacy2005treed]_,
    where observations have noise of standard deviation 0.001 (``noise_std=0.001``);
    "2-D Exp" in [Assael2014treed]_, section 4. To be minimised: the dip is at
    ``(-1/sqrt(2), 0)``. By symmetry maximising it (``negate``) is the same problem up
    to where the optimum lies.
    """

    _bounds = [(-2.0, 6.0), (-2.0, 6.0)]
    _optimal_value = -math.exp(-0.5) / math.sqrt(2.0)
    _optimizers = [(-1.0 / math.sqrt(2.0), 0.0)]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return X[..., 0] * X.square().sum(-1).neg().exp()


class QuadraticTasks(ConditionalTestFunction):
    r"""``T`` tasks ``f_t(x) = a_t / 2 |x|^2 + b_t 1'x + c_t`` on [-1, 1]^3.

    Section 3.1 of [Perrone2017multiple]_, to see whether a model learns from other
    tasks: all have bowls on the same diagonal, and their contexts ``(a_t, b_t, c_t)``,
    drawn uniformly from [0.1, 10]^3, say where. The box is not given in the paper; on
    [-1, 1]^3 the optimum of half of the tasks is a corner.

    As a function of four columns, ``x1, x2, x3`` and the task ``0, ..., T - 1``, it
    gives the rows of a multi-task model; its optimum is that of the best task. All
    coordinates of the optimum of a task are ``-b / a``, or -1 where that is outside.

    ``contexts`` is ``T x 3``.
    """

    contexts: Tensor

    def __init__(
        self,
        num_tasks: int = 30,
        seed: int = 0,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
    ) -> None:
        r"""
        Args:
            num_tasks: ``T``, at least 2.
            seed: Of the contexts; the first tasks are the same whatever ``T``.
            noise_std: Standard deviation of noise to add.
            negate: Whether to negate the function, for maximisation.
            dtype: The dtype of ``bounds``.

        Raises:
            ValueError: For fewer than two tasks, a seed that is no integer from 0 on,
                a negative ``noise_std``.
        """
        check_count("num_tasks", num_tasks, least=2)
        check_count("seed", seed, least=0)
        rng = np.random.default_rng(seed)
        contexts = rng.uniform(0.1, 10.0, (num_tasks, 3))
        a, b, c = contexts.T
        optima = np.maximum(-b / a, -1.0)
        values = 3.0 * (0.5 * a * optima**2 + b * optima) + c
        best = int(values.argmin())
        self._optimal_value = float(values[best])
        self._optimizers = [(*[float(optima[best])] * 3, float(best))]
        space = SearchSpace(
            ["x0", "x1", "x2", "task"],
            torch.tensor([[-1.0, -1.0, -1.0, 0.0], [1.0, 1.0, 1.0, num_tasks - 1.0]]),
            categorical_features={3: [float(task) for task in range(num_tasks)]},
        )
        super().__init__(space, noise_std=noise_std, negate=negate, dtype=dtype)
        self.num_tasks = num_tasks
        self.register_buffer("contexts", torch.from_numpy(contexts).to(self.bounds))

    def starts(
        self,
        seed: int,
        n: int = 10,
    ) -> Tensor:
        r"""Random points of every task, the same for a seed.

        Args:
            seed: Any integer that is not negative.
            n: How many of each task.

        Returns:
            A ``T n x 4``-dim tensor, task after task.
        """
        rng = np.random.default_rng(1000 + seed)
        X = torch.from_numpy(rng.uniform(-1.0, 1.0, (self.num_tasks, n, 3)))
        task = torch.arange(self.num_tasks, dtype=torch.double).reshape(-1, 1, 1)
        rows = torch.cat([X, task.expand(-1, n, 1)], -1).reshape(-1, self.dim)
        return rows.to(self.bounds)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        a, b, c = self.contexts.to(X)[X[..., -1].long()].unbind(-1)
        x = X[..., :-1]
        return 0.5 * a * x.square().sum(-1) + b * x.sum(-1) + c
