r"""The objective of a fit in closed form: log evidence plus log priors, with gradient.

An evaluation of the general objective (``FastInference.compute_custom_loss``) builds a
graph of about a thousand small tensors; with 60 points the arithmetic takes a hundredth
of that time. ``LeafObjective`` computes the same number and its gradient with NumPy.
All that does not depend on hyperparameters is computed once, when a fit starts.

The covariance is made of quantities q = exp(A u + c) of the logarithms u of
hyperparameters (``form``). With the distances D_j of column j, which are constants, the
covariance of a leaf is v k(sum_j W_j D_j), plus a constant on an undeclared path. The
derivative by log W_j is -W_j <D_j, G * v * slope>, where G is that of the evidence by
the covariance (``linalg.blocks``). Log-normal priors are quadratic in u.
"""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import torch
from botorch.exceptions.errors import ModelFittingError
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, Mean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from scipy import sparse
from torch import Tensor

from botorch_structured.kernels.leaf_kernels import LeafKernel
from botorch_structured.kernels.tree_structured_kernel import PathMean
from botorch_structured.linalg.blocks import (
    ROWS_PER_WEIGHT,
    Array,
    Block,
    BlockDerivatives,
    Bucket,
    Indices,
    log_evidence,
    weight_pairs,
)
from botorch_structured.linalg.correlations import ARRAY_SLOPES
from botorch_structured.linalg.parameters import (
    LogPriors,
    RawParameters,
    UnknownFormError,
)
from botorch_structured.models.fast_inference import noise_is_known
from botorch_structured.models.tree.form import Factor, Form
from botorch_structured.models.tree.moments import SMOOTH

# Up to so many distances of a bucket of leaves are kept. More of them take longer to
# read than to compute again: an evaluation with 60 columns and 250 points 1.8 times.
_MAX_KEPT = 2**17
# Distances of other columns, and of correlations that are rough at zero, are always
# kept, up to so many (32 MiB).
_MAX_DISTANCES = 2**22
# Up to so many weights that couple no leaves are treated like those that do.
_MANY_UNSHARED = 100


# -- distances ----------------------------------------------------------------------


class PairDistances:
    """Distances D of each column, ``B x E x N^2``."""

    def __init__(self, distances: Array) -> None:
        self._distances = distances

    def total(self, W: Array) -> Array:
        """sum_j W_j D_j, ``B x N^2``; ``W`` is ``B x E``."""
        total: Array = W[:, None, :] @ self._distances
        return total[:, 0]

    def totals(self, g: Array) -> Array:
        """<D_j, g> of each column, ``B x E``; ``g`` is ``B x N x N``."""
        totals: Array = self._distances @ g.reshape(len(g), -1, 1)
        return totals[:, :, 0]


class PointDistances:
    """Squared differences of each column, from the points alone, ``B x N x E``.

    sum_j W_j (x_j - y_j)^2 is |x|^2 + |y|^2 less twice a product, of x and y times the
    roots of W, and <D_j, g> is sum_i (g 1 + g'1)_i x_ij^2 - 2 x_j' g x_j.
    """

    def __init__(self, points: Array) -> None:
        self._points = points - points.mean(1, keepdims=True)  # fewer digits are lost
        self._squares = np.square(self._points)

    def total(self, W: Array) -> Array:
        """See ``PairDistances.total``."""
        scaled = self._points * np.sqrt(W)[:, None, :]
        total: Array = scaled @ (-2.0 * scaled.swapaxes(1, 2))
        norms = self._squares @ W[:, :, None]
        total += norms
        total += norms.swapaxes(1, 2)
        return np.maximum(total, 0.0, out=total).reshape(len(W), -1)

    def totals(self, g: Array) -> Array:
        """See ``PairDistances.totals``."""
        by_row = (np.add.reduce(g, -1) + np.add.reduce(g, -2))[:, None, :]
        across = np.einsum("bne,bne->be", self._points, g @ self._points)
        totals: Array = (by_row @ self._squares)[:, 0] - 2.0 * across
        return totals


# -- leaves -------------------------------------------------------------------------


class _Leaves:
    """A bucket of leaves: constants, and the covariance at some hyperparameters.

    Args:
        form: Of the leaves of the data set.
        bucket: The bucket.
        points: Transformed inputs, and a row and a column of zeros for padding,
            ``(n + 1) x (d + 1)``.
        noise: Noise variances that are known, and 1 for padding, ``n + 1``.
        still: Features without waves over their standard deviations, and a row and a
            column of zeros.

    Attributes:
        rows: ``B x N``; ``n`` where padded.
        real: 1.0 for rows and 0.0 for padding, ``B x N``.
        pair: The same of pairs of rows, ``B x N x N``.
        undeclared: Number of undeclared values on the path, ``B``; None if zero.
        weights: Weights of the still features, then of waves, ``B x (K + 2 F T)``.
        pairs: ``weight_pairs`` of these, where the evidence needs them.
        index: Quantities whose derivatives ``pull_back`` returns.

    Raises:
        UnknownFormError: If its distances are too many to be kept.
    """

    def __init__(
        self,
        form: Form,
        bucket: Bucket,
        points: Array,
        noise: Array,
        still: Array,
    ) -> None:
        which = bucket.leaves.numpy()
        self._form = form
        self.rows = rows = bucket.index.numpy()
        self.real = (rows < len(points) - 1).astype(np.float64)
        self.pair = self.real[:, :, None] * self.real[:, None, :]
        self._variance = form.variance[which]
        self._lengths: list[Indices] = []
        self._distances: list[PairDistances | PointDistances] = []
        for factor in form.factors:
            places, quantities = factor.part(which)
            self._lengths.append(quantities)
            self._distances.append(_distances(points, factor, places, rows))
        self._fixed_noise = noise[rows]
        self.undeclared = None
        if form.undeclared is not None:
            self.undeclared = form.undeclared[which]
        features, smooth, self.weights = form.weights(which)
        row_places = rows[:, :, None]
        self._still = still[row_places, features[:, None, :]]
        # inputs of smooth terms, and 1 / sqrt(F) where a term is active, else 0.0
        columns = form.smooth_columns[smooth]
        self._inputs = points[row_places, columns[:, None, :]][..., None]
        on = smooth < len(form.smooth_columns) - 1
        present = (self.real[:, :, None] * on[:, None, :])[..., None]
        self._present = present / math.sqrt(max(len(form.frequencies), 1))
        self._terms = form.terms[smooth]
        self._deviations = form.deviations[self.weights]
        self.pairs: Indices | None = None
        index = [*self._lengths, self._variance, self._deviations, self._terms]
        self.index = np.concatenate([*map(np.ravel, index)])
        self._unshared: Array | None = None

    def fold(self, number: Indices, count: int) -> None:
        """From now on count what only one leaf has to that leaf's covariance.

        Args:
            number: Each weight to its number among those of several leaves, or to
                ``count`` if it is none of them.
            count: Their count.
        """
        self.weights = number[self.weights]
        self._unshared = 1.0 * (self.weights == count)[:, None, :]

    def evaluate(
        self,
        q: Array,
        noise: Array,
    ) -> Block:
        """Covariances, noise included, and features.

        Args:
            q: All quantities.
            noise: The noise variance that is a parameter, ``1``.
        """
        form = self._form
        batch, size = self.rows.shape
        # v k, and v times minus the derivatives of k by the distance of each factor
        within = q[self._variance][:, None, None] * self.pair
        self._slopes: list[Array] = []
        for i, factor in enumerate(form.factors):
            distance = self._distances[i].total(q[self._lengths[i]])
            k, minus = ARRAY_SLOPES[factor.name](distance.reshape(batch, size, size))
            for other in self._slopes:
                other *= k
            minus *= within
            self._slopes.append(minus)
            within = within * k
        self._within = within
        noisy = within.copy()
        if self.undeclared is not None:
            shift = self.undeclared * q[form.offsets].mean()
            noisy += shift[:, None, None] * self.pair
        diagonal = noisy.reshape(batch, -1)[:, :: size + 1]
        diagonal += self._fixed_noise + noise * self.real
        features = self._still
        if self._terms.size:
            rate = q[self._terms][:, None, :, None] * form.frequencies
            self._phase = self._inputs * rate
            waves = np.concatenate([np.cos(self._phase), np.sin(self._phase)], axis=-1)
            waves = (waves * self._present).reshape(batch, size, -1)
            features = np.concatenate([features, waves], axis=-1)
        self._features = features = features * q[self._deviations][:, None, :]
        if self._unshared is not None:
            unshared = features * self._unshared
            noisy += unshared @ unshared.swapaxes(1, 2)
            features = features - unshared
        return Block(
            noisy,
            features,
            self.rows,
            self.weights,
            self.pairs,
        )

    def pull_back(
        self,
        d: BlockDerivatives,
        q: Array,
    ) -> list[Array]:
        """Derivatives by the logarithms of the quantities of ``index``.

        Args:
            d: Those by the last ``Block``.
            q: All quantities.
        """
        g = d.covariance
        features = self._features
        d_features = d.features
        if self._unshared is not None:
            both = g + g.swapaxes(1, 2)
            d_features = d_features + both @ (features * self._unshared)
        parts: list[Array] = []
        for i, slope in enumerate(self._slopes):
            slope *= g
            totals = self._distances[i].totals(slope)
            parts.append((totals * -q[self._lengths[i]]).ravel())
        parts.append(np.einsum("bij,bij->b", g, self._within))
        parts.append(np.add.reduce(d_features * features, 1).ravel())
        if self._terms.size:
            phase = self._phase
            shape = (*phase.shape[:-1], 2, phase.shape[-1])
            start = self._still.shape[-1]
            value = features[..., start:].reshape(shape)
            slope = d_features[..., start:].reshape(shape)
            turned = slope[..., 1, :] * value[..., 0, :]
            turned -= slope[..., 0, :] * value[..., 1, :]
            parts.append((turned * phase).sum((1, 3)).ravel())
        return parts


def _distances(
    points: Array,
    factor: Factor,
    places: Indices,
    rows: Indices,
) -> PairDistances | PointDistances:
    """Distances between the rows of each leaf, column by column.

    Args:
        points: Of the data set.
        factor: A factor of the covariance.
        places: Of its columns, ``B x E``.
        rows: ``B x N``.
    """
    size = places.size * rows.shape[1] ** 2
    x = points[rows[:, None, :], factor.columns[places][:, :, None]]
    squared = factor.name in SMOOTH and not factor.unordered.any()
    if squared and size > _MAX_KEPT:
        return PointDistances(x.swapaxes(1, 2))
    if size > _MAX_DISTANCES:
        raise UnknownFormError
    difference = x[:, :, :, None] - x[:, :, None, :]
    if factor.name == "laplace":
        distances = np.abs(difference, out=difference)
    else:
        distances = np.square(difference, out=difference)
    if factor.unordered.any():
        unordered = factor.unordered[places]
        distances[unordered] = distances[unordered] != 0.0
    return PairDistances(distances.reshape(*places.shape, rows.shape[1] ** 2))


# -- units ------------------------------------------------------------------------


def _units(
    mll: MarginalLogLikelihood,
    parameters: RawParameters,
    priors: LogPriors,
) -> Array:
    """See ``LeafObjective.units``."""
    # data determine a variance with a wide prior better than that; not that of the
    # noise, which may be anywhere below the signal
    units = np.minimum(priors.deviations, 1.0)
    if isinstance(mll.likelihood, GaussianLikelihood):
        noise = parameters.logarithm(mll.likelihood.noise_covar.raw_noise)
        units[noise] = priors.deviations[noise]
    _, slope = parameters.logarithms(parameters.read())
    if slope is not None:  # raw values that are no logarithms are used as they are
        units[slope != 1.0] = 1.0
    return 0.25 * units[parameters.free]


def device_units(mll: MarginalLogLikelihood) -> Array | None:
    """The units of a model on another device, in which its fit takes the same steps.

    Args:
        mll: Its objective.

    Returns:
        The units, ``k``; None where a prior or a constraint has no closed form.
    """
    model = mll.model
    data = model.train_inputs, model.train_targets
    twin = deepcopy(mll, {id(part): None for part in data}).to("cpu", torch.float64)
    try:
        parameters = RawParameters(twin)
        return _units(twin, parameters, LogPriors(parameters, by_torch=True))
    except UnknownFormError:
        return None


# -- the objective ----------------------------------------------------------------


class LeafObjective:
    """Minus the objective of a fit per data point, and its gradient.

    Choose it through ``LeafObjective.of`` wherever ``compute_custom_loss`` would be
    evaluated many times for one data set::

        objective = LeafObjective.of(mll)
        if objective is not None:
            value, gradient = objective(objective.read())

    Attributes:
        read: The present raw parameters of the model, ``k``.
        write: Sets these.
        bounds: Bounds of the parameters, ``k x 2``.
        units: A quarter of a standard deviation of each parameter's prior, ``k``. In
            these units a fit takes half as many evaluations as without. A whole
            deviation would be as fast, but a first step of that length often ends near
            another optimum: with 60 points on two leaves the best evidence was lower by
            2 on average (without units, by 11).
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        index: tuple[int, ...],
    ) -> None:
        model = mll.model
        likelihood = mll.likelihood
        kernel = model.kernel_by_leaf()
        if not isinstance(kernel, LeafKernel):
            raise UnknownFormError
        self._parameters = parameters = RawParameters(mll, index)
        self._priors = LogPriors(parameters, by_torch=True)
        with torch.no_grad():
            X = model.transform_inputs(model.train_inputs[0])[index]
        structure = kernel.structure(X) if index else model.structure(kernel)
        self.form = form = Form(kernel, structure.leaf_places, parameters)
        n = len(X)
        self._num_data = n
        self._targets = model.train_targets[index].detach().numpy().copy()
        noise = np.append(np.zeros(n), 1.0)
        if isinstance(likelihood, GaussianLikelihood):
            self._noise = form.add(1)
            place = parameters.logarithm(likelihood.noise_covar.raw_noise)
            form.depend(self._noise, place, 1.0)
        else:
            self._noise = form.add(1, -math.inf)
            noise[:n] = likelihood.noise[index].detach().numpy()
        points = np.zeros((n + 1, X.shape[-1] + 1))
        points[:n, :-1] = X.detach().numpy()
        for c, values in form.listed_codes.items():
            # all unknown values are the same one
            matches = points[:n, c, None] == values
            points[:n, c] = (matches * np.arange(1, len(values) + 1)).sum(-1)
        width = form.still.shape[-1]
        still = np.zeros((n + 1, width + 1))
        if width:
            at = structure.places
            features = kernel.weights.still(X, at.active, at.nodes)
            still[:n, :width] = features.detach().numpy()
        self._level = self._levels(model.mean_module, X)
        # padded rows have a level of their own, behind all parameters
        levels = np.append(self._level, len(parameters.values))
        self._leaves: list[_Leaves] = []
        index_parts: list[Indices] = []
        level_parts: list[Indices] = []
        weight_parts: list[Indices] = []
        for bucket in structure.layout.buckets:
            leaves = _Leaves(form, bucket, points, noise, still)
            self._leaves.append(leaves)
            weight_parts.append(leaves.weights.ravel())
            index_parts.append(leaves.index)
            level_parts.append(levels[leaves.rows].ravel())
        self._num_weights = form.num_weights
        weights = np.concatenate(weight_parts)
        shared = np.bincount(weights, None, form.num_weights + 1) > 1
        shared[-1] = False
        count = int(shared.sum())
        if form.num_weights - count > _MANY_UNSHARED:
            self._num_weights = count
            number = np.where(shared, shared.cumsum() - 1, count)
            for leaves in self._leaves:
                leaves.fold(number, count)
        if n > ROWS_PER_WEIGHT * self._num_weights:
            for leaves in self._leaves:
                leaves.pairs = weight_pairs(leaves.weights, self._num_weights)
        self._index = np.concatenate([*index_parts, self._noise, form.offsets])
        self._padded_level = np.concatenate(level_parts)
        self._map, self._constants = form.matrices(len(parameters.values))
        self._back = self._map.T
        if sparse.issparse(self._map):
            self._back = self._back.tocsr()
        self.read = parameters.read
        self.write = parameters.write
        self.bounds = parameters.bounds
        self.units = _units(mll, parameters, self._priors)
        self._last_theta = np.zeros(0)
        self._last_value = math.nan
        self.compete(math.inf)
        if kernel is not model.covar_module:  # of a SingleTaskGP: natural values
            self.units = np.full_like(self.units, 0.5)

    def _levels(
        self,
        mean: Mean,
        X: Tensor,
    ) -> Indices:
        """The place of the mean of each row, ``n``, which is constant on a path."""
        if type(mean) is ConstantMean:
            return np.repeat(self._parameters.unbounded(mean.raw_constant), len(X))
        if type(mean) is not PathMean:
            raise UnknownFormError
        path = mean.tree.path_index(X).numpy()
        place = self._parameters.unbounded(mean.raw_offset)
        if path.max() >= len(place):
            raise UnknownFormError  # the mean raises an error that says why
        return place[path]

    @classmethod
    def of(
        cls,
        mll: MarginalLogLikelihood,
        index: tuple[int, ...] = (),
    ) -> LeafObjective | None:
        """The objective of a tree model, or None where there is no closed form.

        There is one for a ``TreeStructuredKernel``, and for a ``ConditionalKernel`` of
        a Matern, RBF or Laplace kernel, scaled or not, perhaps times a
        ``CategoricalKernel``; on a CPU in double precision. A subclass that has another
        way to compute something has none.

        Args:
            mll: The objective, in training mode.
            index: The element of a batch of data sets or outputs; its objective is
                independent of the others.
        """
        model = mll.model
        transform = getattr(model, "input_transform", None)
        methods = {"compute_custom_loss", "_fast_evidence", "__call__", "forward"}
        if (
            type(mll) is not ExactMarginalLogLikelihood
            or mll.likelihood is not model.likelihood
            or not noise_is_known(mll.likelihood)
            or getattr(mll.likelihood, "second_noise_covar", None) is not None
            or not model.redefined.isdisjoint(methods)
            or (transform is not None and [*transform.parameters()])
        ):
            return None
        try:
            return cls(mll, index)
        except UnknownFormError:
            return None

    def read_correlation(self) -> None:
        """Use the correlation that a tree kernel has now."""
        self.form.read_correlation()
        self._last_theta = np.zeros(0)

    def compete(self, rival: float) -> None:
        """Give up fits that another one is ahead of.

        From now on an evaluation raises a ``ModelFittingError`` where the least value
        is above the other one by .5 nats, and by five times what the last three
        evaluations gained. Of 560 data sets the better of two fits was always finished.
        Fits of 20, 60 and 100 points on 8 paths take 1.0, 1.1 and 1.3 times as long
        without it.

        Args:
            rival: The value at the end of the other fit.
        """
        self._rival = rival
        self._least = [math.inf] * 4

    def loss(self) -> float:
        """The value at the model's parameters."""
        theta = self.read()
        if not np.array_equal(theta, self._last_theta):
            self(theta)
        return self._last_value

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient, ``k``; both are NaN where a covariance is.

        Args:
            theta: Raw parameters, ``k``.

        Raises:
            NotPSDError: If a covariance is not positive definite even with jitter.
            ModelFittingError: See ``compete``.
        """
        u, slope = self._parameters.logarithms(theta)
        q = np.exp(self._map @ u + self._constants)
        form = self.form
        noise = q[self._noise]
        blocks: list[Block] = []
        for leaves in self._leaves:
            blocks.append(leaves.evaluate(q, noise))
        self._last_theta = theta.copy()
        self._last_value = math.nan
        value, derivatives = log_evidence(
            blocks,
            self._targets - u[self._level],
            self._num_weights,
        )
        if math.isnan(value):
            return math.nan, np.full(len(theta), math.nan)
        slopes: list[Array] = []
        by_row: list[Array] = []
        d_noise = 0.0
        d_offset = 0.0
        for leaves, d in zip(self._leaves, derivatives, strict=True):
            g = d.covariance
            slopes += leaves.pull_back(d, q)
            by_row.append(d.residual.ravel())
            diagonal = g.reshape(len(g), -1)[:, :: g.shape[-1] + 1]
            d_noise += float(np.vdot(diagonal, leaves.real))
            if leaves.undeclared is not None:
                d_offset += float(leaves.undeclared @ (g * leaves.pair).sum((1, 2)))
        slopes.append(d_noise * noise)
        if form.offsets.size:
            slopes.append(d_offset / form.offsets.size * q[form.offsets])
        d_q = np.bincount(self._index, np.concatenate(slopes), len(q))
        prior, gradient = self._priors(u)
        gradient += self._back @ d_q
        by_level = np.concatenate(by_row)
        gradient -= np.bincount(self._padded_level, by_level, len(u) + 1)[:-1]
        if slope is not None:
            gradient *= slope
        gradient = gradient[self._parameters.free]
        if self._priors.others:
            other, slopes_of_others = self._priors.of_others(theta)
            prior += other
            gradient += slopes_of_others
        scale = -1.0 / self._num_data
        self._last_value = scale * (value + prior)
        self._least = [*self._least[1:], min(self._least[-1], self._last_value)]
        gained = self._least[0] - self._least[-1]
        if self._least[-1] - self._rival > max(0.5 / self._num_data, 5.0 * gained):
            raise ModelFittingError("Another fit is ahead of this one.")
        return self._last_value, scale * gradient
