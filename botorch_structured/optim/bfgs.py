"""Maximise many small problems at once: BFGS in the unit box, in lockstep.

`botorch.optim.optimize_acqf` hands each start to scipy. Here an evaluation costs the
same for 10 points as for 100, so what counts is how often the acquisition function is
called in a row. Each iteration is one call: all step lengths of all starts are
evaluated together, with their gradients, and every start moves to its best one.
"""

from __future__ import annotations

__all__ = ["maximize_in_unit_box"]

from collections.abc import Callable

import torch
from torch import Tensor

# Multiples of the quasi-Newton step, and of the distance to the bounds where there is
# no curvature yet. Optima of expected improvement next to a noise-free point are as
# narrow as 1e-5 of the box.
_STEPS = (1.0, 0.5, 2.0, 0.2, 0.04, 5.0)
_FIRST_STEPS = (3e-1, 5e-2, 8e-3, 1e-3, 1e-4, 5e-6)
# After so many iterations a start has to be able to win.
_PATIENCE, _OPTIMISM = 4, 10.0
# How far to look along single coordinates for what is not admissible.
_PROBE = 2e-4

ValueAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def maximize_in_unit_box(
    value_and_gradient: ValueAndGradient,
    U: Tensor,
    valid: Tensor,
    max_iter: int = 40,
    tolerance: float = 1e-10,
) -> tuple[Tensor, Tensor]:
    """Climb from every start to a local maximum in ``[0, 1]^k``.

    Args:
        value_and_gradient: Maps ``n x k`` points and the ``n`` numbers of the starts
            they came from to ``n`` values and ``n x k`` gradients; -inf where a
            point is not admissible.
        U: ``S x k`` starts.
        valid: ``S x k`` booleans; coordinates that are not valid do not move.
        max_iter: Iterations, that is calls.
        tolerance: A start is done when an iteration gains less than this, relative to
            the larger of its value and one.

    Returns:
        ``S x k`` points and ``S`` values, at least as good as the starts.
    """
    start = torch.arange(len(U), device=U.device)
    best_U = U.clone()
    best_f, g = value_and_gradient(U, start)
    best_f = best_f.clone()
    k = U.shape[-1]
    eye = torch.eye(k, dtype=U.dtype, device=U.device)
    # State of the starts still moving: number, point, value, gradient, Hessian of the
    # negated function, and whether that Hessian says anything.
    x, f, B = U, best_f.clone(), eye.expand(len(U), k, k).clone()
    informed = torch.zeros(len(U), dtype=torch.bool, device=U.device)
    # Coordinates held because moving along them leaves what is admissible.
    held = ~valid
    # Starts at a border that is not a bound: which columns lead across it?
    probing = torch.zeros_like(informed)
    ladder = U.new_tensor(_STEPS)
    first_ladder = U.new_tensor(_FIRST_STEPS)
    for sweep in range(max_iter):
        lag = tolerance * best_f.max().abs().clamp_min(1.0)
        blocked = ((x <= 0) & (g <= 0)) | ((x >= 1) & (g >= 0)) | held
        g_free = g.masked_fill(blocked, 0.0)
        steepness = g_free.abs().amax(-1)
        moving = (steepness > 1e-12) & f.isfinite()
        if not moving.all():
            start, x, f, g = start[moving], x[moving], f[moving], g[moving]
            B, informed = B[moving], informed[moving]
            held, probing = held[moving], probing[moving]
            blocked, g_free = blocked[moving], g_free[moving]
            steepness = steepness[moving]
        n = len(start)
        if n == 0:
            break
        both = ~blocked.unsqueeze(-1) & ~blocked.unsqueeze(-2)
        newton, _ = torch.linalg.solve_ex(torch.where(both, B, eye), g_free)
        informed &= (newton * g_free).sum(-1) > 0  # false for NaN, too
        steepest = g_free / steepness.unsqueeze(-1)
        direction = torch.where(informed.unsqueeze(-1), newton, steepest)
        steps = torch.where(informed.unsqueeze(-1), ladder, first_ladder)
        trial = x.unsqueeze(1) + steps.unsqueeze(-1) * direction.unsqueeze(1)
        trial = trial.clamp(0.0, 1.0)
        width = steps.shape[-1]
        if probing.any():
            axes = _steepest_axes(g_free, width)
            probe = (x.unsqueeze(1) + _PROBE * axes).clamp(0.0, 1.0)
            trial = torch.where(probing[:, None, None], probe, trial)
        f_new, g_new = value_and_gradient(
            trial.reshape(-1, k), start.repeat_interleave(width)
        )
        f_new = f_new.view(n, width)
        f_best, j = f_new.max(-1)
        row = torch.arange(n, device=U.device)
        gain = f_best - f
        better = gain > 0
        x_best = trial[row, j]
        g_best = g_new.view(n, width, k)[row, j]
        s = (x_best - x).masked_fill(~better.unsqueeze(-1), 0.0)
        y = (g - g_best).masked_fill(~better.unsqueeze(-1) | ~valid[start], 0.0)
        B, informed_now = _update(B, informed, s, y)
        # Without a gain, though one was expected: once more without curvature.
        expected = 0.5 * (newton * g_free).sum(-1)
        lost = ~better & informed & (expected > tolerance * f.abs().clamp_min(1.0))
        B = torch.where(lost[:, None, None], eye, B)
        # Nothing but inadmissible points ahead: find out why, go on along the rest.
        outside = f_new == -torch.inf
        fenced = ~better & outside.any(-1)
        if probing.any():
            outside &= probing.unsqueeze(-1)
            held |= (axes.abs() * outside.unsqueeze(-1)).amax(1) > 0
            fenced &= ~probing
            lost |= probing  # such a move says little about curvature
        probing = fenced
        lost |= fenced
        x = torch.where(better.unsqueeze(-1), x_best, x)
        g = torch.where(better.unsqueeze(-1), g_best, g)
        small = gain <= tolerance * f.abs().clamp_min(1.0)
        f = torch.where(better, f_best, f)
        best_U[start], best_f[start] = x, f
        stay = ~small | lost
        if sweep >= _PATIENCE:
            # What a start gains shrinks faster and faster: one that would need to gain
            # much more than it just did will not become the best.
            lead = best_f.max() - f
            stay &= lead <= _OPTIMISM * gain.clamp_min(0.0) + lag
            stay &= (gain > 1e3 * lag) | (lead <= 0) | lost
        informed = informed_now & ~lost
        if not stay.all():
            start, x, f, g = start[stay], x[stay], f[stay], g[stay]
            B, informed = B[stay], informed[stay]
            held, probing = held[stay], probing[stay]
    return best_U, best_f


def _steepest_axes(g: Tensor, width: int) -> Tensor:
    """``S x width x k``: signed unit vectors of the largest gradients."""
    order = g.abs().argsort(-1, descending=True)
    order = order[:, torch.arange(width, device=g.device).clamp_max(g.shape[-1] - 1)]
    axes = torch.zeros(*order.shape, g.shape[-1], dtype=g.dtype, device=g.device)
    sign = g.gather(-1, order).sign()
    return axes.scatter(-1, order.unsqueeze(-1), sign.unsqueeze(-1))


def _update(B: Tensor, informed: Tensor, s: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The BFGS update of ``S x k x k`` Hessians, where curvature is positive."""
    sy = (s * y).sum(-1)
    yy = (y * y).sum(-1)
    ss = (s * s).sum(-1)
    curved = sy > 1e-10 * (ss * yy).sqrt()
    curved &= sy > 0
    safe = torch.where(curved, sy, torch.ones_like(sy))
    # The first pair sets the scale.
    scale = torch.where(informed | ~curved, torch.ones_like(sy), yy / safe)
    B = B * scale[:, None, None]
    Bs = (B @ s.unsqueeze(-1)).squeeze(-1)
    sBs = (s * Bs).sum(-1)
    sBs = torch.where(curved, sBs, torch.ones_like(sBs))
    new = (
        B
        - Bs.unsqueeze(-1) * Bs.unsqueeze(-2) / sBs[:, None, None]
        + y.unsqueeze(-1) * y.unsqueeze(-2) / safe[:, None, None]
    )
    return torch.where(curved[:, None, None], new, B), informed | curved
