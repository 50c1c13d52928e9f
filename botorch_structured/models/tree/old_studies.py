r"""Lessons of old studies of the same space: functions, first points, a mean.

Choose ``OldStudiesMean`` where the same space was searched before for other data sets
(or other customers, other versions): ``suggest`` and ``Study`` take it as ``earlier``,
``TransferGP`` is the model that makes the most of it, and any model takes it as its
prior mean. The space may be flat, and old studies may have a million rows in all.

The outcomes of each old study are replaced by normal scores, so that scales, outliers
and failures of single studies do not count. A Gaussian process with a common and an own
part describes all studies t together,

.. math:: y_t(x) = o_t + \mu(x) + \delta_t(x) + \epsilon, \quad
    \mu \sim GP(0, \tau_\mu k), \quad \delta_t \sim GP(0, \tau_\delta k), \quad
    o_t \sim N(0, \omega), \quad \epsilon \sim N(0, \sigma^2)

with a Matern-5/2 kernel k of all columns of the space: inactive ones are set to one
value, those without an order count as equal or not. Lengthscales and variances are
MAP estimates from some of the rows. The prior mean of a new study is ``h(x) =
E[mu(x)]`` given all rows, up to the scale and the level of its outcomes.

With inducing points Z the functions are linear in M features, ``phi(x) = L^-1 k(Z, x)``
with ``L L' = k(Z, Z)``, and what these leave out of the variance is noise. With G the
features of a study's rows times the root of tau_delta, and a row of roots of omega, N
its noise and ``A = I + G N^-1 G'``, the covariance S of its outcomes has

.. math:: G S^{-1} G' = I - A^{-1}, \quad G S^{-1} y = A^{-1} G N^{-1} y,

so time is linear in the rows. h is a sum of M kernels.

What a new study may be besides h is what old ones were: ``f = h + sum_j z_j d_j`` and a
rest, with standard normal z_j, where d_j are the principal components of the functions
delta_t / sqrt(T), and the rest has the kernel k times what these leave of tau_delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from botorch.models.transforms.input import InputTransform
from gpytorch.means import Mean
from gpytorch.priors import NormalPrior
from torch import Tensor
from tqdm import tqdm

from botorch_structured.linalg.correlations import MATERN52, squared_distance
from botorch_structured.models.checks import check_training_data
from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import check_count

# Inactive columns hold the middle of the unit interval, in transformed inputs.
_INACTIVE = 0.5
# Hyperparameters are fitted to so many rows: all rows gain nothing, and take longer.
_FITTED_ROWS = 500
# Variance of the levels o_t: half a unit squared, which is far for the median of 30 to
# 500 rows, if their points were chosen in different ways.
_LEVEL_VARIANCE = 0.25
_FEW_STARTS = 8
# The best so many rows of each old study are in the pool of starts, too.
_BEST_ROWS = 20
# Rows of an old study that are looked at together, and from which on progress is shown.
_ROWS = 10_000
_MANY_ROWS = 50_000


def normal_scores(Y: Tensor) -> Tensor:
    """Quantiles of the standard normal distribution in the place of outcomes.

    The i-th smallest of n outcomes becomes the quantile (i - 1/2) / n. Equal outcomes
    get the score of their mean rank.

    Args:
        Y: ``n`` outcomes.

    Returns:
        ``n`` scores in double precision.
    """
    values = Y.detach().cpu().double()
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    counts = counts.double()
    rank = counts.cumsum(0) - 0.5 * (counts - 1.0)  # the mean of equal ones, from 1
    return torch.special.ndtri((rank[place] - 0.5) / len(values))


class OldStudiesMean(Mean):
    r"""Prior mean ``m(x) = c + s h(x)``, with h learnt from old studies.

    Make it with ``from_studies`` and give it to ``TreeStructuredGP`` or
    ``ConditionalGP`` as ``mean_module``. The fit of the model estimates the level c and
    the slope s, on the scale of its transformed outcomes. The slope has a normal prior:
    it tends to 0 where the old studies do not describe the new one. The value does not
    depend on inactive columns.

    Models that are given the same object share c and s, whose values are those of the
    last fit. Give ``copy.deepcopy(mean)`` to models that are used side by side.

    Attributes:
        raw_constant: c, ``batch_shape``.
        raw_slope: s, ``batch_shape``.
        deviations: Weights of the kernels at Z in the d_j, ``M x J``.
        variances: tau_mu, tau_delta and sigma^2. Old studies are alike, and help, where
            the first is large.

    Example:
        >>> old = OldStudiesMean.from_studies([(X_1, Y_1), (X_2, Y_2)], space)
        >>> X = old.starts(5)  # in the place of ``space.starts()``
        >>> model = TreeStructuredGP(X, evaluate(X), space, mean_module=old)
    """

    points: Tensor
    weights: Tensor
    deviations: Tensor
    inverse_lengthscale: Tensor
    _rest: Tensor
    _starts: Tensor
    _variances: Tensor

    def __init__(
        self,
        space: SearchSpace,
        learnt: _Functions,
        starts: Tensor,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
    ) -> None:
        """See ``from_studies``.

        Args:
            space: The space.
            learnt: The functions of the old studies.
            starts: ``k x d`` points of the space, best first.
            batch_shape: Batch shape of the model.
        """
        super().__init__()
        self.space = space
        self.batch_shape = batch_shape
        self.columns = learnt.columns
        self.register_buffer("points", learnt.points)
        self.register_buffer("weights", learnt.weights)
        self.register_buffer("deviations", learnt.components)
        self.register_buffer("inverse_lengthscale", learnt.inverse_lengthscale)
        self.register_buffer("_starts", starts)
        self.register_buffer("_rest", learnt.points.new_tensor(learnt.rest))
        self.register_buffer("_variances", learnt.points.new_tensor(learnt.variances))
        for name, value in (("raw_constant", 0.0), ("raw_slope", 1.0)):
            start = torch.full(batch_shape, value, dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(start))
        self.register_prior(
            "slope_prior",
            NormalPrior(1.0, 1.0),
            _read_slope,
            _set_slope,
        )

    @classmethod
    def from_studies(
        cls,
        studies: Sequence[tuple[Tensor, Tensor]],
        space: SearchSpace,
        input_transform: InputTransform | None = None,
        max_points: int = 400,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008 (immutable)
        seed: int = 0,
    ) -> Self:
        """Learn from old studies: some seconds, minutes for a million rows.

        Args:
            studies: ``(X, Y)`` of each: ``n_t x d`` points of ``space`` and ``n_t x
                1`` outcomes, larger ones are better, on any scale, ``-inf`` where an
                evaluation failed. Studies may have different numbers of rows, at least
                two; 30 to 500 are usual.
            space: The space that all studies are of.
            input_transform: That of the new model, if it is not
                ``space.input_transform()``, which a model gets that is given the
                space. It has to bring numeric columns to about the unit interval.
            max_points: M at most. With no more distinct rows than this, nothing is
                approximated.
            batch_shape: Batch shape of the new model; ``torch.Size([m])`` for m outputs
                with the same h.
            seed: Of the choices of rows.

        Raises:
            ValueError: Without a study, for data that no model accepts, for studies
                with fewer than two rows or several outcomes, and for points that are
                not in the space.
        """
        max_points = check_count("max_points", max_points, least=1)
        check_studies(studies, space)
        inputs = [X.detach().cpu().double() for X, _ in studies]
        scores = [normal_scores(Y.squeeze(-1)) for _, Y in studies]
        columns = _Columns(space)
        transform = space.input_transform() if input_transform is None else None
        transform = transform or input_transform

        def read(X: Tensor) -> Tensor:
            with torch.no_grad():
                return columns.read(X if transform is None else transform(X))

        generator = torch.Generator().manual_seed(seed)
        rows = [read(X) for X in inputs]
        learnt = _Functions(
            columns,
            rows,
            scores,
            max_points,
            generator,
        )
        best = [
            X[y.topk(min(_BEST_ROWS, len(y))).indices]
            for X, y in zip(inputs, scores, strict=True)
        ]
        pool = torch.cat([space.sample(2_000, seed=seed), *best]).unique(dim=0)
        pool = pool[space.feasible(pool)]
        return cls(
            space,
            learnt,
            pool[learnt.complementary(read(pool))],
            batch_shape,
        )

    @property
    def variances(self) -> tuple[float, float, float]:
        """tau_mu, tau_delta and sigma^2."""
        common, individual, noise = self._variances.tolist()
        return common, individual, noise

    @property
    def num_starts(self) -> int:
        """How many points `starts` has."""
        return len(self._starts)

    def starts(self, n: int | None = None) -> Tensor:
        """Points to begin the new study with, in the place of ``space.starts``.

        They are chosen one by one: each raises the sum over old studies of the best
        prediction among the chosen ones the most. The first suits most studies, those
        that follow suit those that it does not suit. They need not cover all paths.

        Args:
            n: How many: at most 32, or as many points of old studies as differ.
                Default: as many as there are paths, at most 8.

        Returns:
            ``n x d`` points of the space.

        Raises:
            ValueError: For another number.
        """
        most = len(self._starts)
        n = min(self.space.tree.num_paths, _FEW_STARTS, most) if n is None else n
        n = check_count("n", n, least=1)
        if n > most:
            raise ValueError(f"n: expected at most {most} starts, got {n}.")
        # single precision may be beyond the bounds
        return self._starts[:n].to(self.space.bounds).clamp(*self.space.bounds)

    def basis(self, x: Tensor) -> Tensor:
        """The function h, at transformed inputs.

        Args:
            x: ``batch_shape x n x d``.

        Returns:
            ``batch_shape x n``.
        """
        return self._at_points(self.columns.read(x)) @ self.weights

    def covariance(
        self,
        a: Tensor,
        b: Tensor,
    ) -> Tensor:
        """The prior covariance of f - h for a new study, at transformed inputs.

        Args:
            a: ``batch_shape x n x d``.
            b: ``batch_shape x m x d``.

        Returns:
            ``batch_shape x n x m``.
        """
        a = self.columns.read(a)
        b = self.columns.read(b)
        D, E = (self._at_points(x) @ self.deviations for x in (a, b))
        k = self.columns.covariance(a, b, self.inverse_lengthscale)
        return D @ E.mT + self._rest * k

    @property
    def rest(self) -> float:
        """The variance of what no old study explains."""
        return float(self._rest)

    def _at_points(self, read: Tensor) -> Tensor:
        return self.columns.covariance(
            read,
            self.points,
            self.inverse_lengthscale,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Means, ``batch_shape x n``.

        Args:
            x: ``batch_shape x n x d`` transformed inputs.
        """
        level = self.raw_constant.unsqueeze(-1)
        slope = self.raw_slope.unsqueeze(-1)
        return level + slope * self.basis(x)


def _read_slope(module: OldStudiesMean) -> Tensor:
    """The slope, which has the prior of an ``OldStudiesMean``."""
    return module.raw_slope


def _set_slope(module: OldStudiesMean, value: Tensor) -> None:
    module.initialize(raw_slope=value.to(module.raw_slope).expand_as(module.raw_slope))


def check_studies(studies: Any, space: Any) -> None:
    """Raise a ``ValueError`` unless ``OldStudiesMean.from_studies`` can learn."""
    if not isinstance(space, SearchSpace):
        raise ValueError(f"space: expected a SearchSpace, got {type(space).__name__}.")
    if not isinstance(studies, Sequence) or not studies:
        raise ValueError(
            "studies: expected a list of one or more pairs (X, Y), got "
            f"{studies if studies == [] else f'a {type(studies).__name__}'}."
        )
    for t, study in enumerate(studies):
        if not isinstance(study, Sequence) or len(study) != 2:
            raise ValueError(
                f"studies: expected pairs (X, Y), got a {type(study).__name__} as "
                f"study {t}."
            )
        X, Y = study
        failures = isinstance(Y, Tensor) and bool((Y == -math.inf).any())
        try:
            finite = Y.masked_fill(Y == -math.inf, 0.0) if failures else Y
            check_training_data(X, finite, tree=True)
        except ValueError as error:
            raise ValueError(f"studies: study {t}: {error}") from error
        if X.ndim != 2 or X.shape[-1] != space.dim or Y.shape[-1] != 1 or len(X) < 2:
            raise ValueError(
                f"studies: expected ``n x {space.dim}`` points and ``n x 1`` outcomes, "
                f"two rows or more, got {tuple(X.shape)} and {tuple(Y.shape)} as study "
                f"{t}."
            )
        bad = ~space.feasible(X.detach().cpu().double())
        if bad.any():
            row = int(bad.nonzero()[0])
            raise ValueError(
                f"studies: expected points of the space, got {X[row].tolist()}, row "
                f"{row} of study {t}."
            )


# -- functions of all studies -------------------------------------------------------


class _Columns:
    """How the kernel reads transformed inputs.

    Attributes:
        tree: Which columns are active where.
        unordered: Columns whose values are equal or not.
        ordered: The others.
        shift: Of columns that no input transform scales, else 0, ``d``.
        scale: Likewise, else 1.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.tree = tree = space.tree
        self.unordered = sorted({*tree.decisions_by_value, *space.categorical_features})
        self.ordered = [c for c in range(space.dim) if c not in self.unordered]
        low, high = space.bounds
        left_alone = torch.zeros(space.dim, dtype=torch.bool)
        left_alone[tree.numeric_decisions] = True
        left_alone &= high > low
        self.shift = torch.where(left_alone, low, 0.0)
        self.scale = torch.where(left_alone, high - low, 1.0)

    def read(self, x: Tensor) -> Tensor:
        """Transformed inputs with one value in all inactive columns."""
        scaled = (x - self.shift.to(x)) / self.scale.to(x)
        return torch.where(self.tree.active_mask(x), scaled, _INACTIVE)

    def covariance(
        self,
        a: Tensor,
        b: Tensor,
        inverse_lengthscale: Tensor,
    ) -> Tensor:
        """The kernel, ``b x n x m``, of ``b x n x d`` and ``b x m x d`` read points."""
        inverse = inverse_lengthscale[self.ordered]
        ordered = a[..., self.ordered] * inverse, b[..., self.ordered] * inverse
        squared = squared_distance(*ordered)
        for c in self.unordered:
            apart = (a[..., c, None] - b[..., None, :, c]).abs() > 1e-4
            squared = squared + inverse_lengthscale[c].square() * apart
        return MATERN52.value(squared)


class _Functions:
    """mu and the functions of all studies: the posterior means.

    Args:
        columns: How inputs are read.
        rows: ``n_t x d`` read points of each study.
        scores: ``n_t`` scores.
        max_points: M at most.
        generator: Of the choices of rows.

    Attributes:
        points: Z, ``M x d``.
        inverse_lengthscale: ``d``.
        weights: Of the kernels at Z in mu, ``M``.
        own_weights: The same in mu + delta_t, ``M x T``.
        components: The same in the d_j, ``M x J``.
        rest: What the d_j leave of tau_delta.
        variances: tau_mu, tau_delta and sigma^2.
    """

    def __init__(
        self,
        columns: _Columns,
        rows: list[Tensor],
        scores: list[Tensor],
        max_points: int,
        generator: torch.Generator,
    ) -> None:
        estimates = _fit(columns, rows, scores, generator)
        inverse = (-estimates[:-3]).exp()
        common, individual, noise = estimates[-3:].exp().tolist()
        points = torch.cat(rows).unique(dim=0)
        chosen = torch.randperm(len(points), generator=generator)[:max_points]
        points = points[chosen.sort().values]
        eye = torch.eye(len(points), dtype=points.dtype)
        root = columns.covariance(points, points, inverse) + 1e-6 * eye
        root = torch.linalg.cholesky(root)

        def moments(
            X: Tensor,
            y: Tensor,
            mean: Tensor | None,
        ) -> tuple[Tensor, Tensor]:
            """The root of A, and G N^-1 (y - F' mean)."""
            A = torch.eye(len(points) + 1, dtype=points.dtype)
            Gy = torch.zeros_like(A[0])
            for x, of_x in zip(X.split(_ROWS), y.split(_ROWS), strict=True):
                k = columns.covariance(points, x, inverse)
                F = torch.linalg.solve_triangular(root, k, upper=False)  # M x n
                noises = noise + (common + individual) * (
                    1.0 - F.square().sum(0)
                ).clamp_min(0)
                residual = of_x if mean is None else of_x - mean @ F
                level = torch.full_like(F[:1], math.sqrt(_LEVEL_VARIANCE))
                G = torch.cat([math.sqrt(individual) * F, level])
                A = A + (G / noises) @ G.mT
                Gy = Gy + G @ (residual / noises)
            return torch.linalg.cholesky(A), Gy

        pairs = list(zip(rows, scores, strict=True))
        few = sum(map(len, rows)) < _MANY_ROWS
        information = eye / common
        projected = torch.zeros_like(points[:, 0])
        for X, y in tqdm(pairs, "old studies", disable=few):
            A, Gy = moments(X, y, None)
            information = (
                information + (eye - torch.cholesky_inverse(A)[:-1, :-1]) / individual
            )
            solved = torch.cholesky_solve(Gy[:, None], A)[:-1, 0]
            projected = projected + solved / math.sqrt(individual)
        mean = torch.cholesky_solve(
            projected.unsqueeze(-1), torch.linalg.cholesky(information)
        ).squeeze(-1)
        deviations = []
        for X, y in tqdm(pairs, "their deviations", disable=few):
            A, Gy = moments(X, y, mean)
            solved = torch.cholesky_solve(Gy[:, None], A)[:-1, 0]
            deviations.append(math.sqrt(individual) * solved)
        delta = torch.stack(deviations, -1)  # M x T
        left, size, _ = torch.linalg.svd(
            delta / math.sqrt(len(rows)), full_matrices=False
        )
        components = (left * size)[:, :32]

        def weights(functions: Tensor) -> Tensor:
            return torch.linalg.solve_triangular(
                root.mT,
                functions,
                upper=True,
            )

        self.columns = columns
        self.points = points
        self.inverse_lengthscale = inverse
        self.weights = weights(mean.unsqueeze(-1)).squeeze(-1)
        self.own_weights = weights(mean.unsqueeze(-1) + delta)
        self.components = weights(components)
        self.variances = common, individual, noise
        # the mean of the squares of the d_j at old points
        at = columns.covariance(points, points, inverse) @ self.components
        explained = float(at.square().sum(-1).mean())
        self.rest = max(individual - explained, 0.15 * individual)

    def complementary(self, pool: Tensor) -> Tensor:
        """Which points to begin with, see ``OldStudiesMean.starts``.

        Args:
            pool: ``P x d`` read points.

        Returns:
            At most 32 row numbers.
        """
        columns = self.columns
        inverse = self.inverse_lengthscale
        k = columns.covariance(pool, self.points, inverse)
        predicted = k @ self.own_weights
        mean = k @ self.weights
        best = torch.full_like(predicted[0], -math.inf)
        open_ = torch.ones(len(pool), dtype=torch.bool)
        chosen: list[int] = []
        while len(chosen) < 32 and bool(open_.any()):
            value = torch.maximum(predicted, best).mean(-1)
            # where no study would gain, by what suits most
            value = (value + 1e-6 * mean).masked_fill(~open_, -math.inf)
            i = int(value.argmax())
            chosen.append(i)
            best = torch.maximum(best, predicted[i])
            alike = columns.covariance(pool, pool[i : i + 1], inverse).squeeze(-1)
            open_ &= alike < 0.9
        return torch.tensor(chosen, dtype=torch.long)


def _fit(
    columns: _Columns,
    rows: list[Tensor],
    scores: list[Tensor],
    generator: torch.Generator,
) -> Tensor:
    """MAP estimates of log lengthscales, then log tau_mu, tau_delta and sigma^2."""
    study = torch.cat([torch.full((len(y),), t) for t, y in enumerate(scores)])
    some = torch.randperm(len(study), generator=generator)[:_FITTED_ROWS]
    X = torch.cat(rows)[some]
    y = torch.cat(scores)[some]
    study = study[some]
    same = (study.unsqueeze(-1) == study).double()
    d = X.shape[-1]
    n = len(X)
    modes = [math.log(0.5 * math.sqrt(d))] * d
    modes += [math.log(0.5)] * 2 + [math.log(0.1)]
    center = torch.tensor(modes, dtype=torch.double)
    spread = [1.0] * d + [1.0] * 2 + [1.5]
    scale = torch.tensor(spread, dtype=torch.double)
    eye = torch.eye(n, dtype=torch.double)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        u = torch.from_numpy(theta).requires_grad_(True)
        common, individual, noise = u[-3:].exp()
        k = columns.covariance(X, X, (-u[:-3]).exp())
        covariance = (common + individual * same) * k + _LEVEL_VARIANCE * same
        root = torch.linalg.cholesky(covariance + noise * eye)
        half = torch.linalg.solve_triangular(
            root,
            y.unsqueeze(-1),
            upper=False,
        )
        value = 0.5 * half.square().sum() + root.diagonal().log().sum()
        value = value + 0.5 * ((u - center) / scale).square().sum()
        (gradient,) = torch.autograd.grad(value, u)
        return value.item(), gradient.numpy()

    most = 5.0 * scale
    from scipy.optimize import minimize  # see ``_botorch_names``

    result = minimize(
        objective,
        center.numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=torch.stack([center - most, center + most], -1).numpy(),
        options={"maxiter": 60},
    )
    return torch.from_numpy(result.x)
