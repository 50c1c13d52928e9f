r"""Which path a suggestion is to look at, whatever the models expect of it.

After a bad start on the best path, models learn about the one that began better, and
what they learn there, small improvements, is what they expect of all paths. So one
suggestion in five is for another path, the one with the largest

.. math:: \max_{i \in p} y_i / s + \sqrt{\log n / n_p},

an upper confidence bound ("UCB1" of [Auer2002]_): its best outcome in standard
deviations s of all outcomes under the models' transform, and a term for the number
:math:`n_p` of its points among all n.

References:

.. [Auer2002]
    P. Auer, N. Cesa-Bianchi and P. Fischer. Finite-time analysis of the multiarmed
    bandit problem. Machine Learning 47, 2002.
"""

from __future__ import annotations

__all__ = ["path_to_explore"]

import math
from collections.abc import Mapping

from torch import Tensor

from botorch_structured.spaces import SearchSpace

# One suggestion in so many is for another path,
_EVERY = 5
# from so many evaluations on, and so many for each path: with fewer, models choose
# between paths that they know next to nothing of.
_FIRST, _OF_EACH_PATH = 12, 3


def path_to_explore(
    space: SearchSpace,
    known: Tensor,
    targets: Tensor,
    feasible: Tensor,
    fixed_features: Mapping[int, float] | None = None,
) -> int | None:
    """The ``path_key`` of a path other than that of the best outcome, now and then.

    Args:
        space: The space.
        known: ``n x d`` points, those that were evaluated first.
        targets: Their outcomes under the models' transform, larger ones are better.
        feasible: ``n`` booleans: which points are.
        fixed_features: Column -> its value; paths on which a decision has another one
            are left out.

    Returns:
        None where the models are to choose.
    """
    n, tree = len(known), space.tree
    due = n % _EVERY == _EVERY - 1 and n >= _FIRST
    if not due or not tree.decision_columns or n < _OF_EACH_PATH * tree.num_paths:
        return None
    keys, active = tree.path_key(known), tree.active_mask(known)
    allowed = feasible.clone()
    for column, value in (fixed_features or {}).items():
        if column in tree.decision_columns:
            allowed &= ~active[:, column] | (known[:, column] == value)
    evaluated = allowed[: len(targets)]
    spread = float(targets.std())
    if not spread > 0.0 or not evaluated.any():
        return None
    best: dict[int, float] = {}
    paths = keys[: len(targets)][evaluated].tolist()
    for key, y in zip(paths, targets[evaluated].tolist(), strict=True):
        best[key] = max(y / spread, best.get(key, -math.inf))
    del best[max(best, key=best.__getitem__)]
    if not best:
        return None
    log_n = math.log(n)
    bounds = {
        key: y + math.sqrt(log_n / int((keys == key).sum())) for key, y in best.items()
    }
    return max(bounds, key=bounds.__getitem__)
