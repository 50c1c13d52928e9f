"""Local maximisation from the best candidates: by gradient, and over neighbours."""

from __future__ import annotations

__all__ = [
    "Evaluator",
    "Neighbourhood",
    "best_of_each",
    "maximize_in_unit_box",
    "refine",
    "walk",
]

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import OptimizationGradientError
from botorch.generation import gen_candidates_scipy
from numpy.typing import NDArray
from torch import Tensor

from botorch_structured.optim.closed_form import closed_form
from botorch_structured.optim.closed_form import near as closed_form_near
from botorch_structured.optim.problem import is_known
from botorch_structured.optim.raw import Boxes, uniform
from botorch_structured.spaces.arguments import check_count

Array = NDArray[Any]

# Most numbers that one call may need at once: points times training points times Monte
# Carlo samples.
_MAX_NUMBERS = 1 << 25
_MAX_ROWS = 1 << 14
# Ordered discrete columns with more values than this are relaxed at first.
_RELAXED_FROM = 8
# Most other values of a categorical, in each direction, that one step of a walk tries.
_MAX_ALTERNATIVES = 64
# Most iterations of a walk in boxes.
_MAX_WALK = 16
# After so many iterations, by gradient and of a walk, a start ends if its distance to
# the best value exceeds `_OPTIMISM` times the gain that it expects, or its last gain.
_PATIENCE, _PATIENCE_WALK, _OPTIMISM = 4, 2, 10.0
# It ends where it expects less than this share of what counts as a gain.
_LEAST_SHARE = 1e-3
# It also ends where its next step leads to the best start: as near as this share of it.
_SAME_MAXIMUM = 0.5
# Multiples of the quasi-Newton step, and of the distance to the bounds where there is
# no curvature yet. Optima of expected improvement next to a noise-free point are as
# narrow as 1e-5 of the box.
_STEPS = (1.0, 0.5, 2.0, 0.2, 0.04, 5.0)
_FIRST_STEPS = (3e-1, 5e-2, 8e-3, 1e-3, 1e-4, 5e-6)
# Distances along single coordinates at which admissibility is tested.
_PROBE = 2e-4
# The number of starts under linear constraints.
_MAX_CONSTRAINED = 4


class Evaluator:
    """An acquisition function on rows of a matrix, each a candidate of its own.

    Args:
        acq_function: Maps ``b x 1 x d`` to ``b``.
        batch_limit: Most rows in one call; by default as many as memory allows.
    """

    def __init__(
        self, acq_function: AcquisitionFunction, batch_limit: int | None = None
    ) -> None:
        self.acq_function = acq_function
        self.batch_limit = (
            self._default_limit()
            if batch_limit is None
            else check_count("batch_limit", batch_limit)
        )

    def _default_limit(self) -> int:
        every = (getattr(m, "train_inputs", None) or () for m in self._models())
        inputs = [t for some in every for t in some if isinstance(t, Tensor)]
        # training points of all members of an ensemble
        n = max((t.shape[:-1].numel() for t in inputs), default=1)
        shape = getattr(getattr(self.acq_function, "sampler", None), "sample_shape", ())
        # A Monte Carlo acquisition holds a joint sample with its baseline points.
        width = n + 16 * math.prod(shape) if shape else n
        return max(64, min(_MAX_ROWS, _MAX_NUMBERS // max(width, 1)))

    def _models(self) -> Iterator[Any]:
        """The models of an acquisition function, those inside of others, too."""
        parts: list[torch.nn.Module] = [self.acq_function]
        while parts:
            part = parts.pop()
            model = getattr(part, "model", None)
            if model is not None:
                yield model
            elif isinstance(part, (AcquisitionFunction, torch.nn.ModuleList)):
                parts += part.children()

    def values(self, X: Tensor) -> Tensor:
        """``n`` values of ``n x d`` points; -inf for NaN."""
        if not len(X):
            return X.new_zeros(0)
        values = []
        with torch.no_grad():
            for part in X.split(self.batch_limit):
                found = closed_form(self.acq_function, part, gradient=False)
                if found is None:
                    found = (self.acq_function(part.unsqueeze(-2)), None)
                values.append(found[0].reshape(-1))
        return _number(torch.cat(values)).to(X)

    def value_and_gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """``n`` values and ``n x d`` gradients."""
        values, gradients = [], []
        with torch.enable_grad():
            for part in X.split(self.batch_limit):
                found = closed_form(self.acq_function, part, gradient=True)
                if found is not None and found[1] is not None:
                    values.append(found[0])
                    gradients.append(found[1])
                    continue
                leaf = part.detach().unsqueeze(-2).requires_grad_(True)
                value = self.acq_function(leaf).reshape(-1)
                (gradient,) = (
                    torch.autograd.grad(value.sum(), leaf, allow_unused=True)
                    if value.requires_grad
                    else (None,)
                )
                values.append(value.detach())
                gradients.append(
                    torch.zeros_like(part) if gradient is None else gradient.squeeze(-2)
                )
        gradient = torch.cat(gradients) if len(gradients) > 1 else gradients[0]
        if not math.isfinite(gradient.sum()):
            gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        return _number(torch.cat(values)).to(X), gradient.to(X)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Switch off gradients of parameters; points keep theirs."""
        wanted, parts = [], [self.acq_function]
        while parts:  # ``Module.parameters`` takes several times as long
            part = parts.pop()
            wanted += [p for p in part._parameters.values() if p is not None]
            parts += [child for child in part._modules.values() if child is not None]
        wanted = [p for p in wanted if p.requires_grad]
        for p in wanted:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in wanted:
                p.requires_grad_(True)


def _number(values: Tensor) -> Tensor:
    return torch.where(values.isnan(), -math.inf, values)


ValueAndGradient = Callable[[Array, Array], tuple[Array, Array]]


# all trials of a start may be inadmissible, and outcomes as large as 1e300
@np.errstate(invalid="ignore", over="ignore")
def maximize_in_unit_box(
    value_and_gradient: ValueAndGradient,
    U: Tensor,
    valid: Tensor,
    apart: Array | None = None,
    max_iter: int = 40,
    tolerance: float = 1e-10,
    patience: float = _PATIENCE,
) -> tuple[Tensor, Tensor]:
    """Climb from every start to a local maximum in ``[0, 1]^k``: BFGS in lockstep.

    An evaluation takes nearly as long for 10 points as for 100, so the number of
    successive calls matters. Each iteration is one call: all step lengths of all starts
    are evaluated together, with their gradients, and every start moves to its best one.

    BoTorch's batched L-BFGS-B (``gen_candidates_scipy``, since 0.18) found the same
    maxima in 26 of 26 suggestions and took 0.1 s longer for each. It does not support
    inadmissible points, at whose border a climb has to continue along the other axes.

    Args:
        value_and_gradient: Maps arrays to arrays: ``n x w x k`` points and the ``n``
            numbers of the starts they came from to ``n x w`` values and ``n x w x k``
            gradients; -inf where a point is not admissible.
        U: ``S x k`` starts.
        valid: ``S x k`` booleans; coordinates that are not valid do not move.
        apart: ``S x a``; starts in different boxes have different rows. Default: all
            of them are.
        max_iter: Most iterations, each of one call.
        tolerance: A start is done when an iteration gains less than this, relative to
            the larger of its value and one.
        patience: After so many iterations starts end that will not become the best.

    Returns:
        ``S x k`` points and ``S`` values, at least as good as the starts.
    """
    # The state is kept in NumPy: at this size an operation of torch takes several times
    # as long.
    like = U
    best_U = U.detach().cpu().numpy().copy()
    start: Array = np.arange(len(best_U))
    k = best_U.shape[-1]
    apart = start[:, None] if apart is None else apart
    f, g = (part[:, 0] for part in value_and_gradient(best_U[:, None], start))
    best_f = f.copy()
    eye = np.eye(k, dtype=best_U.dtype)
    # State of the starts still moving: number, point, value, gradient, Hessian of the
    # negated function, and whether that has been updated yet.
    x, B = best_U.copy(), np.tile(eye, (len(best_U), 1, 1))
    informed: Array = np.zeros(len(x), dtype=bool)
    # Coordinates held because moving along them leads to inadmissible points.
    fixed = ~valid.cpu().numpy()
    held, any_fixed = fixed.copy(), bool(fixed.any())
    # Starts at a border that is not a bound: find the columns that lead across it.
    probing: Array = np.zeros_like(informed)
    ladders = np.array([_FIRST_STEPS, _STEPS], dtype=x.dtype)
    width = ladders.shape[-1]
    every = width * start  # where the steps of each start begin
    for sweep in range(max_iter):
        blocked = ((x <= 0) & (g <= 0)) | ((x >= 1) & (g >= 0)) | held
        g_free = np.where(blocked, 0.0, g)
        steepness = np.maximum.reduce(np.abs(g_free), -1)
        going = (steepness > 1e-12) & np.isfinite(f)
        if np.count_nonzero(blocked):  # ``any`` takes four times as long
            both = ~blocked[:, :, None] & ~blocked[:, None, :]
            newton = _solve(np.where(both, B, eye), g_free)
        else:
            newton = _solve(B, g_free)
        expected = 0.5 * np.add.reduce(newton * g_free, -1)
        informed = informed & (expected > 0)  # false for NaN, too
        scale = np.maximum(np.abs(f), 1.0)
        worth = expected > _LEAST_SHARE * tolerance * scale
        if sweep > patience:
            best = best_f.argmax()
            lead = best_f[best] - f
            rest = np.maximum.reduce(np.abs(x + newton - best_U[best]), -1)
            there = rest <= _SAME_MAXIMUM * np.maximum.reduce(np.abs(newton), -1)
            there &= (lead > 0) & (apart[start] == apart[best]).all(-1)
            worth &= (lead <= _OPTIMISM * expected) & ~there
        going &= worth | ~informed
        n = np.count_nonzero(going)
        if n == 0:
            break
        if n < len(going):
            rows = going.nonzero()[0]
            state = start, x, f, g, B, informed, held, probing
            start, x, f, g, B, informed, held, probing = _take(rows, *state)
            g_free, steepness, newton, expected, scale = _take(
                rows, g_free, steepness, newton, expected, scale
            )
        if np.count_nonzero(informed) == n:
            direction, steps = newton, ladders[1:]
        else:
            steepest = g_free / steepness[:, None]
            direction = np.where(informed[:, None], newton, steepest)
            steps = ladders[informed.astype(int)]
        trial = x[:, None] + steps[:, :, None] * direction[:, None]
        trial = np.minimum(np.maximum(trial, 0.0), 1.0)  # ``clip`` takes twice as long
        fences = np.count_nonzero(probing) > 0
        if fences:
            axes = _steepest_axes(g_free, width)
            probe = (x[:, None] + _PROBE * axes).clip(0.0, 1.0)
            trial = np.where(probing[:, None, None], probe, trial)
        f_new, g_new = value_and_gradient(trial, start)
        best_step = f_new.argmax(-1) + every[:n]
        x_new, g_next = _take(best_step, trial.reshape(-1, k), g_new.reshape(-1, k))
        f_next = f_new.take(best_step)
        gain = f_next - f
        better = gain > 0
        if np.count_nonzero(better) < n:
            x_new = np.where(better[:, None], x_new, x)
            g_next = np.where(better[:, None], g_next, g)
            f_next = np.where(better, f_next, f)
        y = g - g_next
        if any_fixed:
            y[fixed[start]] = 0.0
        B, informed_now = _update(B, informed, x_new - x, y)
        x, f, g = x_new, f_next, g_next
        best_U[start], best_f[start] = x, f
        # No gain though one was expected: try once more without curvature.
        lost = ~better & informed & (expected > tolerance * scale)
        if np.count_nonzero(lost):
            B = np.where(lost[:, None, None], eye, B)
        if fences or np.minimum.reduce(f_new, None) == -np.inf:
            # All steps are inadmissible: find the columns, go on along the others.
            outside = f_new == -np.inf
            fenced = ~better & outside.any(-1)
            if fences:
                outside &= probing[:, None]
                held = held | ((np.abs(axes) * outside[:, :, None]).max(1) > 0)
                fenced &= ~probing
                lost |= probing  # such a move has little information on curvature
            probing = fenced
            lost |= fenced
        stay = (gain > tolerance * scale) | lost
        informed = informed_now & ~lost
        if np.count_nonzero(stay) < n:
            rows = stay.nonzero()[0]
            state = start, x, f, g, B, informed, held, probing
            start, x, f, g, B, informed, held, probing = _take(rows, *state)
    return torch.from_numpy(best_U).to(like), torch.from_numpy(best_f).to(like)


def _take(rows: Array, *arrays: Array) -> Iterator[Array]:
    """These rows of arrays: in a third of the time of a mask as an index."""
    return (array.take(rows, 0) for array in arrays)


def _solve(B: Array, g: Array) -> Array:
    """B^-1 g, ``S x k``; NaN or infinite where B is singular."""
    try:
        return np.linalg.solve(B, g[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:  # of one of them; of all nothing is returned
        found, _ = torch.linalg.solve_ex(torch.from_numpy(B), torch.from_numpy(g))
        return found.numpy()


def _steepest_axes(g: Array, width: int) -> Array:
    """``S x width x k``: signed unit vectors of the largest gradients."""
    order = np.argsort(-np.abs(g), axis=-1, kind="stable")
    order = order[:, np.minimum(np.arange(width), g.shape[-1] - 1)]
    axes = np.zeros((*order.shape, g.shape[-1]), dtype=g.dtype)
    sign = np.sign(np.take_along_axis(g, order, -1))
    np.put_along_axis(axes, order[:, :, None], sign[:, :, None], -1)
    return axes


def _update(B: Array, informed: Array, s: Array, y: Array) -> tuple[Array, Array]:
    """The BFGS update of ``S x k x k`` Hessians, where curvature is positive."""
    sy, yy, ss = (np.add.reduce(a * b, -1) for a, b in ((s, y), (y, y), (s, s)))
    curved = sy > 1e-10 * np.sqrt(ss * yy)
    safe = np.where(curved, sy, 1.0)
    first = curved & ~informed
    if np.count_nonzero(first):  # the first step determines the scale of the Hessian
        B = B * np.where(first, yy / safe, 1.0)[:, None, None]
    Bs = (B @ s[:, :, None])[:, :, 0]
    sBs = np.where(curved, np.add.reduce(s * Bs, -1), 1.0)
    new = (
        B
        - Bs[:, :, None] * Bs[:, None, :] / sBs[:, None, None]
        + y[:, :, None] * y[:, None, :] / safe[:, None, None]
    )
    if np.count_nonzero(curved) < len(curved):
        new = np.where(curved[:, None, None], new, B)
    return new, informed | curved


class Neighbourhood:
    """The neighbours of points in boxes: one active column changed, the others kept.

    Every possible change is a *slot*, a column and a move; the slots are the same for
    all points. A move is a number of positions, in real columns a share of the width,
    cut at the bound. In the whole space (equation (7) of [Levesque2017conditional]_)
    decisions change, too: then the columns that a decision switches on are drawn at
    random (further decisions among them included), those that stay active keep their
    values, and those that it switches off hold the fill value.

    Args:
        boxes: A box for every point, or `whole_box` for all of them.
        moves: The slots: column, move, and the next smaller move in that direction (0
            for the smallest). Where the smaller one reaches the bound, this one is left
            out.
        generator: A CPU generator for columns that decisions switch on; None where the
            boxes are paths, in which no decision changes.
    """

    def __init__(
        self,
        boxes: Boxes,
        moves: Sequence[tuple[int, float, float]],
        generator: torch.Generator | None = None,
    ) -> None:
        self.boxes, self.generator = boxes, generator
        columns, move, inner = zip(*moves, strict=True) if moves else ((), (), ())
        like = boxes.lower
        self._columns = torch.tensor(columns, dtype=torch.long, device=like.device)
        self._values = boxes.problem.values.take(self._columns)
        self._lower, self._upper = (p[:, self._columns] for p in boxes.positions)
        width = torch.where(self._values.discrete, 1.0, self._upper - self._lower)
        self._move, self._inner = like.new_tensor(move), like.new_tensor(inner)
        self._move, self._inner = self._move * width, self._inner * width
        decides = boxes.problem.tree.decision_columns if generator else []
        self._decides = torch.isin(self._columns, self._columns.new_tensor(decides))

    def of(
        self, X: Tensor, active: Tensor, box: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All neighbours of some points, admissible or not.

        Args:
            X: ``S x d`` points, inactive columns at the fill value.
            active: ``S x d`` booleans.
            box: ``S`` numbers of the boxes they lie in.

        Returns:
            ``M x d`` neighbours, ``M x d`` booleans: their active columns, and the
            ``M`` rows of ``X`` they belong to, ascending.
        """
        problem, columns = self.boxes.problem, self._columns
        lower, upper = self._lower[box], self._upper[box]
        now = problem.values.position(X)[:, columns]
        inner = now + self._inner[box]
        to = torch.minimum(torch.maximum(now + self._move[box], lower), upper)
        values = self._values.value(to)
        inside = torch.where(self._move[box] < 0, inner > lower, inner < upper)
        changes = active[:, columns] & inside & (values != X[:, columns])
        owner, slot = changes.nonzero(as_tuple=True)
        near = X[owner].scatter(-1, columns[slot, None], values[owner, slot, None])
        on = active[owner]
        rows = self._decides[slot].nonzero().squeeze(-1)
        if self.generator is not None and len(rows):
            U = uniform((len(rows), X.shape[-1]), X, self.generator)
            drawn = self.boxes.draw(torch.zeros_like(rows), U)
            joined = torch.where(on[rows], near[rows], drawn)
            on[rows] = problem.tree.active_mask(joined)
            near[rows] = torch.where(on[rows], joined, problem.fill)
        return near, on, owner


def best_of_each(group: Tensor, values: Tensor) -> Tensor:
    """The first row with the largest value in each group, groups ascending.

    Args:
        group: ``n`` small numbers from 0 on, such as those of boxes.
        values: ``n``, without NaN.
    """
    of, worth = group.cpu().numpy(), values.cpu().numpy()
    top = np.full(of.max(initial=-1) + 1, -np.inf)
    np.maximum.at(top, of, worth)  # sorting takes several times as long
    rows = (worth == top[of]).nonzero()[0][::-1]
    best = np.full(len(top), -1)
    best[of[rows]] = rows  # of several the last, which is the first row
    return torch.from_numpy(best[best >= 0]).to(group.device)


def walk(
    hood: Neighbourhood,
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    active: Tensor,
    box: Tensor,
    known: Tensor,
    max_iter: int,
    patience: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """Move every start to its best neighbour, again and again, until none is better.

    Args:
        hood: The neighbours.
        evaluator: The acquisition function.
        X: ``S x d`` starts.
        values: Their ``S`` values; -inf where they may not be proposed.
        active: ``S x d`` booleans.
        box: ``S`` numbers of the boxes they lie in.
        known: ``m x d`` points that no walk steps on.
        max_iter: Iterations, that is calls of the acquisition function.
        patience: After so many iterations starts end that will not become the best.

    Returns:
        ``S x d`` points and their ``S`` values, never less than those of the starts.
    """
    problem = hood.boxes.problem
    X, values, active = X.clone(), values.clone(), active.clone()
    walking = torch.arange(len(X), device=X.device)
    for sweep in range(max_iter):
        near, on, owner = hood.of(X[walking], active[walking], box[walking])
        new = problem.is_new(near, on, known)
        near, on, owner = near[new], on[new], walking[owner[new]]
        value = evaluator.values(near)
        best = best_of_each(owner, value)
        best = best[value[best] > values[owner[best]]]
        if not len(best):
            break
        walking, gain = owner[best], value[best] - values[owner[best]]
        X[walking], active[walking], values[walking] = near[best], on[best], value[best]
        if sweep >= patience:
            # A start whose gain is small against its distance to the best ends.
            walking = walking[values.max() - values[walking] <= _OPTIMISM * gain]
    return X, values


def refine(
    evaluator: Evaluator, X: Tensor, values: Tensor, here: Boxes, known: Tensor
) -> tuple[Tensor, Tensor]:
    """Local maxima of the acquisition function near some starts.

    Args:
        evaluator: The acquisition function.
        X: ``S x d`` admissible starts, the best ones first.
        values: Their ``S`` values.
        here: ``S`` boxes, one for each start.
        known: ``m x d`` points that a discrete search steps over.

    Returns:
        ``S x d`` admissible points, and values at least as good as those of the starts.
    """
    problem, free, continuous = here.problem, here.free, here.continuous
    discrete = free & ~continuous
    relaxed = _relaxed(here)
    moving, snapped = continuous | relaxed, bool(relaxed.any())
    if moving.any():
        # of relaxed columns the best maximum need not be near the best whole numbers
        patience = math.inf if snapped else _PATIENCE
        X_new, new = _climb(evaluator, X, values, here, moving, known, patience)
        if snapped:
            X_new = problem.snap(X_new, free)
            new = evaluator.values(X_new)
        if snapped or problem.is_restricted:
            better = (new > values) & problem.admissible(X_new, here.active)
            X_new = torch.where(better[:, None], X_new, X)
            new = torch.where(better, new, values)
        X, values = X_new, new
    if not discrete.any():
        return X, values
    # A start at a known point gets -inf, so that any neighbour is better.
    worth = values.masked_fill(is_known(problem, X, known), -math.inf)
    box = torch.arange(len(X), device=X.device)
    hood = Neighbourhood(here, _moves(here))
    X_new, new = walk(
        hood, evaluator, X, worth, here.active, box, known, _MAX_WALK, _PATIENCE_WALK
    )
    rows = ((X_new != X).any(-1) & continuous.any(-1)).nonzero().squeeze(-1)
    if len(rows):
        X_new[rows], new[rows] = _climb(
            evaluator, X_new[rows], new[rows], here.take(rows), continuous[rows], known
        )
    return X_new, new


def _relaxed(here: Boxes) -> Tensor:
    """Booleans of discrete columns with so many values that a gradient helps."""
    if here.problem.is_restricted:  # ``feasible`` gets admissible values only
        return torch.zeros_like(here.active)
    steps = here.free & here.problem.values.ordered
    if not steps.any():
        return steps
    first, last = here.positions
    return steps & (last - first >= _RELAXED_FROM)


def _moves(here: Boxes) -> list[tuple[int, float, float]]:
    """The slots of discrete columns: all other values, or distances 1, 2, 4, ..."""
    first, last = here.positions
    span = torch.where(here.free, last - first, 0.0).amax(0).tolist()
    moves: list[tuple[int, float, float]] = []
    for col in here.problem.discrete:
        widest = int(span[col])
        sizes = list(range(1, min(widest, _MAX_ALTERNATIVES) + 1))
        if here.problem.values.ordered[col]:
            sizes = [1 << k for k in range(widest.bit_length())]
        moves += [(col, way * s, way * (s - 1)) for s in sizes for way in (-1, 1)]
    return moves


def _climb(
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    here: Boxes,
    moving: Tensor,
    known: Tensor,
    patience: float = _PATIENCE,
) -> tuple[Tensor, Tensor]:
    """By gradient: together in the unit box, or one by one under linear constraints.

    Returns:
        ``S x d`` points and their values, none worse than where its climb began.
    """
    together = moving.any(-1)
    if not here.problem.constraints and bool(together.all()):
        return _climb_together(evaluator, X, values, here, moving, known, patience)
    bound = torch.zeros_like(together)
    for c in here.problem.constraints:
        binds = here.active[:, c.columns].all(-1)
        bound |= binds & moving[:, c.columns].any(-1)
    X, values = X.clone(), values.clone()
    rows = (~bound & together).nonzero().squeeze(-1)
    if len(rows):
        X[rows], values[rows] = _climb_together(
            evaluator,
            X[rows],
            values[rows],
            here.take(rows),
            moving[rows],
            known,
            patience,
        )
    for i in bound.nonzero().squeeze(-1)[:_MAX_CONSTRAINED].tolist():
        X[i], values[i] = _climb_constrained(
            evaluator, X[i], values[i], here, i, moving[i]
        )
    return X, values


def _climb_together(
    evaluator: Evaluator,
    X: Tensor,
    values: Tensor,
    here: Boxes,
    moving: Tensor,
    known: Tensor,
    patience: float,
) -> tuple[Tensor, Tensor]:
    # of each start, as arrays; nothing else of it changes
    every = (X, moving, here.lower, here.upper, here.problem.values.logarithmic)
    old, moves, lower, upper, logarithmic = (t.cpu().numpy() for t in every)
    # Only columns that move, side by side: ``S x k``.
    place = (~moves).argsort(-1, kind="stable")[:, : int(moves.sum(-1).max())]
    row = np.arange(len(old))[:, None]
    valid, held = moves[row, place], old[row, place]
    least, most = lower[row, place], upper[row, place]
    first, last, logs = least, most, valid & logarithmic[place]
    any_logs = bool(logs.any())
    if any_logs:
        held, least, most = (
            np.log(part, out=part.copy(), where=logs) for part in (held, least, most)
        )
    unit = np.where(valid, most - least, 0.0)
    width = np.where(valid, unit, 1.0)
    U = np.where(valid, (held - least) / width, 0.5).clip(0.0, 1.0)
    checked = here.problem.feasible is not None
    distant = here.problem.min_distance > 0.0 and len(known) > 0
    local = None if checked else closed_form_near(evaluator.acq_function, X, place)

    mine: tuple[Array, ...] = (np.zeros(0, dtype=int),)
    plain = bool((least == 0.0).all() and (unit == 1.0).all())

    def changed(U: Array, start: Array) -> Array:
        nonlocal mine
        if plain:  # what is below has the very same numbers
            return U
        if start is not mine[0]:  # the same ones again and again
            every = (least, most, unit, held, logs, first, last)
            mine = start, *(part[start][:, None] for part in every)
        _, lower, upper, step, still, log, lowest, highest = mine
        # exact at both bounds
        new = np.where(U < 0.5, lower + U * step, upper - (1.0 - U) * step)
        new = np.minimum(np.maximum(new, lower), upper)
        new = np.where(step > 0.0, new, still)
        if any_logs:
            np.exp(new, out=new, where=log)
            new = np.where(log, new.clip(lowest, highest), new)
        return new

    def by_unit(slope: Array, x: Array, start: Array) -> Array:
        if not plain:
            slope *= unit[start][:, None]
        if any_logs:  # dx / d log x = x
            slope *= np.where(logs[start][:, None], x, 1.0)
        return slope

    def points(new: Array, start: Array) -> Tensor:
        at = old[start].repeat(new.shape[1], 0)
        columns = place[start].repeat(new.shape[1], 0)
        np.put_along_axis(at, columns, new.reshape(columns.shape), -1)
        return torch.from_numpy(at).to(X)

    def value_and_gradient(U: Array, start: Array) -> tuple[Array, Array]:
        x = changed(U, start)
        values, slope = at_any(x, start)
        if distant:
            near = is_known(here.problem, points(x, start), known).cpu().numpy()
            values = np.where(near.reshape(values.shape), -math.inf, values)
        return values, slope

    def at_any(x: Array, start: Array) -> tuple[Array, Array]:
        if local is not None:
            value, slope = local(x, start)
            slope = by_unit(slope, x, start)
            if not math.isfinite(np.add.reduce(slope, None)) or math.isnan(
                np.add.reduce(value, None)
            ):
                np.nan_to_num(slope, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
                value = np.where(np.isnan(value), -math.inf, value)
            return value, slope
        at = points(x, start)
        values, gradient = evaluator.value_and_gradient(at)
        if checked:
            rows = start.repeat(x.shape[1])
            active = here.active[torch.from_numpy(rows).to(at.device)]
            values = torch.where(here.problem.admissible(at, active), values, -math.inf)
        slope = gradient.cpu().numpy().reshape(*x.shape[:2], -1)
        slope = by_unit(np.take_along_axis(slope, place[start][:, None], -1), x, start)
        return values.cpu().numpy().reshape(x.shape[:2]), slope

    apart = old.copy()
    apart[row, place] = np.where(valid, 0.0, held)
    best, new = maximize_in_unit_box(
        value_and_gradient,
        torch.from_numpy(U).to(X),
        torch.from_numpy(valid),
        apart,
        patience=patience,
    )
    better = new > values
    every_start = np.arange(len(X))
    found = points(changed(best.cpu().numpy()[:, None], every_start), every_start)
    return torch.where(better[:, None], found, X), torch.where(better, new, values)


def _climb_constrained(
    evaluator: Evaluator,
    x: Tensor,
    value: Tensor,
    here: Boxes,
    i: int,
    moving: Tensor,
) -> tuple[Tensor, Tensor]:
    """SLSQP from one start, then back into the feasible set, left by rounding."""
    constraints = [
        (torch.tensor(c.columns, device=x.device), c.coefficients, c.rhs)
        for c in here.problem.constraints
        if here.active[i, c.columns].all() and moving[c.columns].any()
    ]
    held = {int(c): float(x[c]) for c in (~moving).nonzero().squeeze(-1)}
    try:
        # BoTorch's warnings of an early end pass all filters: record them instead
        with warnings.catch_warnings(record=True):
            found, _ = gen_candidates_scipy(
                x[None, None],
                evaluator.acq_function,
                lower_bounds=here.lower[i],
                upper_bounds=here.upper[i],
                inequality_constraints=constraints,
                fixed_features=held,
                options={"maxiter": 200, "ftol": 1e-12},
            )
    except OptimizationGradientError:
        return x, value
    back = x.new_tensor([0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2])
    trial = found.view(1, -1) + back[:, None] * (x - found.view(-1))
    trial = torch.where(moving, trial, x)
    trial = torch.minimum(torch.maximum(trial, here.lower[i]), here.upper[i])
    ok = here.problem.admissible(trial, here.active[i].expand_as(trial))
    if not ok.any():
        return x, value
    trial = trial[ok][:1]
    new = evaluator.values(trial)[0]
    return (trial[0], new) if new > value else (x, value)
