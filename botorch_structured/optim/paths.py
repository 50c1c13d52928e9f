"""Optimise an acquisition function over all paths of a tree, in one batch."""

from __future__ import annotations

__all__ = ["optimize_acqf_paths"]

from collections.abc import Mapping, Sequence

from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from botorch_structured.optim.problem import MAX_PATHS, Feasible
from botorch_structured.optim.search import Search
from botorch_structured.spaces import ParameterTree, SearchSpace


def optimize_acqf_paths(
    acq_function: AcquisitionFunction,
    bounds: Tensor | None = None,
    tree: ParameterTree | None = None,
    q: int = 1,
    num_restarts: int = 16,
    raw_samples: int | None = None,
    integer_features: Sequence[int] | None = None,
    categorical_features: Mapping[int, Sequence[float]] | None = None,
    fixed_features: Mapping[int, float] | None = None,
    inequality_constraints: Sequence[tuple[Tensor, Tensor, float]] | None = None,
    feasible: Feasible | None = None,
    X_avoid: Tensor | None = None,
    fill: float | Tensor | None = None,
    X_start: Tensor | None = None,
    min_distance: float = 0.0,
    seed: int | None = None,
    max_paths: int = MAX_PATHS,
    batch_limit: int | None = None,
    space: SearchSpace | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Maximise an acquisition function over every path of a tree at once.

    The default choice for spaces with decisions. All paths are scored in one batch, and
    the best candidates of several paths climb in one batch, so that one more path adds
    rows to it; ``botorch.optim.optimize_acqf_mixed`` runs an optimisation for each
    path, and `optimize_acqf_two_step` climbs on few paths only.

        >>> acqf = LogExpectedImprovement(model, best_f=train_Y.max())
        >>> X, value = optimize_acqf_paths(acqf, bounds, tree, X_avoid=train_X)

    A space with names, integers or forbidden combinations is best given as a whole::

        X, value = optimize_acqf_paths(acqf, space=space, X_avoid=train_X)
        config = space.decode(X)[0]

    Args:
        acq_function: Any acquisition function of ``b x 1 x d`` points: analytic ones,
            Monte Carlo ones, or those of this package. One-shot ones raise an error.
        bounds: ``2 x d`` lower and upper bounds. Decision values outside of them are
            not proposed.
        tree: Which columns are active where. With the tree of a `SearchSpace`
            (``space.tree``, and ``model.tree`` of a model that was given it), that
            space's integers, categories and restrictions hold besides those given here,
            and its fill values if none are given. Outcomes that the tree does not
            declare are proposed if ``categorical_features``, ``fixed_features`` or a
            point of ``X_avoid`` names them.
        q: The number of candidates. They are chosen one after the other, each with the
            earlier ones pending (``acq_function.set_X_pending``).
        num_restarts: How many candidates to climb from.
        raw_samples: Sobol points over all paths together, by default 64 for each path
            and no more than 4096. Points around those known to be good, and points with
            shared columns on the bounds, are added to them.
        integer_features: Columns with integer values.
        categorical_features: Column -> its admissible values. For a decision column:
            the values that may be proposed.
        fixed_features: Column -> its value wherever the column is active. A fixed
            decision leaves the paths on which it has that value (or is inactive).
        inequality_constraints: ``(indices, coefficients, rhs)`` as in BoTorch:
            ``sum_i coefficients[i] x[indices[i]] >= rhs``. A constraint binds on the
            paths on which all its columns are active, and on no other.
        feasible: ``m x d`` -> ``m`` booleans, for any other restriction. Points that it
            rejects are dropped, and a climb follows its border along the axes only, so
            give linear restrictions as ``inequality_constraints``.
        X_avoid: ``m x d`` known points. None is proposed again, compared on the
            active columns (the others may hold anything, NaN included); finite paths
            that are used up are skipped.
        fill: What inactive columns hold in the candidates: a number or ``d`` of them,
            by default 0.5.
        X_start: ``k x d`` points near which to search, the best first. By default the
            best training point of the model on every path.
        min_distance: Nearer than this to a point of ``X_avoid``, in widths of the
            bounds and in all continuous columns, nothing is proposed. Leave it at 0 for
            smooth objectives. For step functions (error counts) 0.01 avoids evaluations
            on a step whose value is known.
        seed: By default drawn from torch's global generator, so ``torch.manual_seed``
            makes the answer repeatable, too.
        max_paths: If there are more paths, so many random ones are searched, and one or
            two decisions of the best candidates at a time are then changed.
        batch_limit: Most rows in one call of the acquisition function, by default as
            many as memory allows.
        space: A `SearchSpace` in place of ``bounds``, ``tree``, ``integer_features``,
            ``categorical_features`` and ``fill``. What it forbids is never proposed,
            nor is what ``feasible`` rejects.

    Returns:
        ``q x d`` candidates and their acquisition values, as BoTorch's
        ``optimize_acqf(sequential=True)`` gives them: a number for ``q=1``, else ``q``
        of them, each given the earlier candidates.

    Raises:
        ValueError: An argument is not what it should be; no path is left by
            ``fixed_features``, ``categorical_features`` and ``bounds``.
        CandidateGenerationError: Nothing is left to propose: every admissible point
            is known, or none was found that is feasible.
    """
    search = Search(**locals())  # all arguments, by name

    def propose(known: Tensor) -> tuple[Tensor, Tensor]:
        found = search.maximise(search.paths(known), known)
        return found.X, found.values

    return search.greedily(propose)
