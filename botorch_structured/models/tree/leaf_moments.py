r"""Means and variances of points one by one, each from its own leaf alone.

On one path the covariance of a ``TreeStructuredKernel`` (or of a ``ConditionalKernel``
around a stationary kernel) is a function of a few columns,

    K_p(x, x') = v k(|S (x - x')|^2) + c,
    z_i(x) = a_i + b_i x_j + u_i sin(w_i x_j + f_i),    j = j(i),

so moments and their derivatives in x are a few products of small matrices. In terms of
``leaf_inference`` (L, e, H, mu, J), with k(x) the covariances with the leaf's data,

    w = L^-1 k,  y = J z - J H'w,
    mean = w'e + z'mu,          variance = v + c - w'w + y'y,
    d mean = dk' L^-T e + dz'mu,
    d variance = 2 dk' L^-T (H J'y - w) + 2 dz'J'y.

J is compressed to the weights of the leaf by a QR decomposition. A categorical column
enters as one more column for each of its values, which has no derivative.

Which path a row is on is looked up by the very numbers in its decision columns: what
was found for them once is kept, and rows with the same numbers next to each other, as
in a search, are looked up together. Elements of a batch with the same inputs have the
same leaves: rows are looked up once, and moments of all elements computed together.
"""

from __future__ import annotations

__all__ = ["LeafMoments", "differentiable_moments"]

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_structured.models.fast_inference import PointMoments
from botorch_structured.models.tree.leaf_inference import LeafKernel, LeafPredictor
from botorch_structured.models.tree.leaf_stack import LeafStack
from botorch_structured.models.tree.local_moments import LocalMoments
from botorch_structured.models.tree.path_tables import (
    PathTables,
    codes_of,
    has_tables,
    path_tables,
)
from botorch_structured.models.tree.tree_structured_kernel import one_hot_code

# Decision values, paths without data and sets of leaves that are kept.
_MAX_KEPT, _MAX_PRIOR, _MAX_STACKS = 1 << 14, 1 << 12, 128
# Numbers that a compression of J takes at once.
_MAX_NUMBERS = 1 << 22
# Numbers of the tables of all paths that a call looks at (512 MiB), which is divided
# where they are more; as many are kept.
_MAX_STACKED = 1 << 26
# Numbers of a table of rows by weights that values at points are computed from at a
# time, and the fewest rows. Larger tables get new memory each time, which takes longer
# than what is computed.
_MAX_VALUES, _MIN_ROWS = 1 << 18, 64
# Above so many, values at points are not computed from tables, which cost a
# factorisation for each path: a hundred times as long on a thousand paths of 14
# decisions.
_MAX_TABLED = 1 << 20
# Of more weights on a path, if these are a third of all weights, a factor of their
# covariance takes a third of the time of a QR decomposition of J.
_WIDE = 128
# Numbers of the factors that ``near`` puts side by side.
_MAX_LOCAL, _MAX_LOCAL_WEIGHTS = 1 << 18, 1 << 22
_NO_LENGTHS = np.zeros(0, dtype=np.int64)


class LeafMoments:
    """Posterior moments of points one by one; cached by the path that they are on.

    On the CPU only: which rows are on which path is read from their values. Several
    threads may call it.

    Args:
        elements: A kernel for which ``path_tables`` are known, with the factors of the
            data; or those of ``m`` elements of a batch. Kernels differ in their
            hyperparameters only, and factors have one layout.
        X: Transformed training inputs, ``n x d``.
        places: What the kernel's ``locate`` says of a row of each leaf, if known.
    """

    def __init__(
        self,
        elements: Sequence[tuple[LeafKernel, LeafPredictor]],
        X: Tensor,
        places: Any = None,
    ) -> None:
        self._places = places
        # a graph may be built after another correlation was chosen for the model's
        self._elements = [(copy(kernel), predictor) for kernel, predictor in elements]
        self.kernel, self.predictor = kernel, predictor = self._elements[0]
        self._codes: dict[int, Tensor] = codes_of(kernel, X.detach())
        self._data = self.extend(X.detach())
        self._rows = X.detach()[predictor.layout.representative]
        tree = kernel.tree
        self._decisions = np.array(tree.decision_columns, dtype=np.int64)
        # views of columns side by side need no copy
        self._runs: list[slice] = []
        for column in tree.decision_columns:
            if self._runs and self._runs[-1].stop == column:
                self._runs[-1] = slice(self._runs[-1].start, column + 1)
            else:
                self._runs.append(slice(column, column + 1))
        # whose values move within an interval: looked up by path
        self._by_value = not tree.numeric_decisions
        keys = predictor.layout.keys.tolist()
        self._leaf_of_key = {key: leaf for leaf, key in enumerate(keys)}
        bucket, place = predictor.bucket_of_leaf, predictor.place_of_leaf
        self._place_of_leaf = list(zip(bucket.tolist(), place.tolist(), strict=True))
        # D, the most weights on a path of the data, for the size of tables
        self._widest = max(
            (block.weights.shape[-1] for block in predictor.blocks), default=0
        )
        self._lock = Lock()  # of what is below
        self._found: dict[bytes, tuple[int, int]] = {}
        if self._by_value and len(keys) < _MAX_KEPT:  # those of the data
            heads = self._rows.numpy()[:, self._decisions]
            self._found = {
                head.tobytes(): self._place_of_leaf[leaf]
                for leaf, head in enumerate(heads)
            }
        self._tables: dict[int, list[PathTables]] = {}
        self._prior_rows = X[:0]
        self._prior_keys: dict[int, int] = {}
        self._stacks: dict[tuple[int, tuple[int, ...], bool], LeafStack] = {}

    @cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Those of the kernels."""
        return [p for kernel, _ in self._elements for p in kernel.parameters()]

    @classmethod
    def of(
        cls,
        elements: Sequence[tuple[LeafKernel, LeafPredictor]],
        X: Tensor,
        places: Any = None,
    ) -> LeafMoments | None:
        """An instance, or None where a kernel has another form or layouts differ."""
        layout = elements[0][1].layout
        known = all(
            # masked: on a device, where no values are looked at
            not predictor.masked and predictor.layout is layout and has_tables(kernel)
            for kernel, predictor in elements
        )
        return cls(elements, X, places) if known else None

    def extend(self, X: Tensor) -> Tensor:
        """``n x d`` with more columns, the one-hot codes of categorical ones."""
        if not self._codes:
            return X
        codes = [one_hot_code(X[:, c], known) for c, known in self._codes.items()]
        return torch.cat([X, *codes], dim=-1)

    def __call__(
        self, X: Tensor, gradient: bool = False, path: bool = False
    ) -> PointMoments:
        """Moments at points.

        Args:
            X: Transformed inputs, ``t x d``, not empty.
            gradient: Whether gradients are wanted.
            path: Whether the part of the weights alone is wanted.

        Returns:
            Of ``t`` points; of ``m x t`` if there are several elements.
        """
        X, m = X.detach(), len(self._elements)
        with self._lock:  # a place may be another path's after the next look-up
            places, lengths = self._locate(X)
            size = self._size(len({*places})) if len(places) > 1 else 0
            whole = len(places) == 1 or size <= _MAX_STACKED
            tabled = gradient or path or size <= _MAX_TABLED
            if tabled and whole:
                groups = list(_groups(places, lengths)) if len(places) > 1 else []
                where = [g[:2] for g in groups] or [(places[0][0], (places[0][1],))]
                stacks = [self._stack(*leaves, path) for leaves in where]
        if not tabled:
            return self._values(X)
        if not whole:
            middle = int(lengths[: len(places) // 2].sum())
            halves = (self(part, gradient, path) for part in X.tensor_split([middle]))
            return _joined(*halves)
        extended = self.extend(X)
        n, d = extended.shape
        out: tuple[Tensor, ...] = X.new_empty(m, n), X.new_empty(m, n)
        if gradient:
            slopes = X.new_zeros(2, m, n, d)
            out += (*slopes[..., : X.shape[-1]].unbind(0),)
        if not groups:
            out[0][:], out[1][:], g = stacks[0](extended, None, gradient)
            if g is not None:
                both = g.view(m, 2, n, -1).transpose(0, 1)
                slopes.index_add_(-1, stacks[0].moving.view(-1), both)
            return PointMoments(*(part[0] if m == 1 else part for part in out))
        # NumPy picks rows of small arrays faster than torch
        for stack, (_, leaves, index, rows, at) in zip(stacks, groups, strict=True):
            mean, variance, g = stack(extended, torch.from_numpy(index), gradient)
            for here, values in zip(out, (mean, variance), strict=False):
                here.numpy()[:, rows] = values.numpy().reshape(m, -1)[:, at]
            if g is None:
                continue
            parts = g.numpy().reshape(m, len(leaves), 2, index.shape[1], -1)
            parts = parts.transpose(2, 0, 1, 3, 4).reshape(2 * m, index.size, -1)
            place = stack.moving.numpy()[at // index.shape[1]] + d * rows[:, None]
            place = place + n * d * np.arange(2 * m)[:, None, None]
            found = torch.from_numpy(parts[:, at].ravel())
            slopes.view(-1).scatter_add_(0, torch.from_numpy(place.ravel()), found)
        return PointMoments(*(part[0] if m == 1 else part for part in out))

    @torch.no_grad()
    def _values(self, X: Tensor) -> PointMoments:
        """Moments without tables, and without gradients."""
        predictor = self.predictor
        width = predictor.num_weights + predictor.layout.max_size
        some = max(_MIN_ROWS, _MAX_VALUES // max(width, 1))
        parts = (self.graph(part) for part in X.split(some))
        means, variances = zip(*parts, strict=True)
        return PointMoments(torch.cat(means, -1), torch.cat(variances, -1))

    def graph(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of ``t x d`` inputs by operations that autograd knows."""
        means, variances = [], []
        for kernel, predictor in self._elements:
            rows = kernel.rows(X)
            prediction = predictor(rows.key, rows.points, rows.features)
            reduction = prediction.weight.square().sum(-1)
            reduction = reduction - prediction.explained.square().sum(-1)
            means.append(prediction.mean)
            variances.append(rows.prior.expand(len(X)) + reduction)
        if len(means) == 1:
            return means[0], variances[0]
        return torch.stack(means), torch.stack(variances)

    def near(self, X: Tensor, columns: np.ndarray, path: bool) -> LocalMoments | None:
        """Moments of rows by some of their columns, which change within their paths.

        Args:
            X: Transformed inputs, ``S x d``.
            columns: ``S x k``; none of them a decision.
            path: Whether the part of the weights alone is wanted.

        Returns:
            None where a path is not fixed by the values of decisions, a column is
            categorical, or tables for each row would be large.
        """
        several = len(self._elements) > 1 or not self._by_value
        if several or (self._codes and np.isin(columns, [*self._codes]).any()):
            return None
        X = X.detach()
        with self._lock:
            found, lengths = self._locate(X)
            places = found * len(X) if len(found) == 1 else found
            if len(lengths):
                places = [
                    p for p, n in zip(found, lengths, strict=True) for _ in range(n)
                ]
            buckets = sorted({bucket for bucket, _ in places})
            leaves = [sorted({u for b, u in places if b == k}) for k in buckets]
            found_in = [
                self._kept_with(b, tuple(us), path)
                for b, us in zip(buckets, leaves, strict=True)
            ]
        stacks = [stack for _, stack in found_in]
        of_data, of_weights = (
            max(len(X) * getattr(stack, name)[0].numel() for stack in stacks)
            for name in ("inverse_chol", "of_features")
        )
        if of_data > _MAX_LOCAL or of_weights > _MAX_LOCAL_WEIGHTS:
            return None
        place = {
            (b, u): (k, i)
            for k, (b, (us, _)) in enumerate(zip(buckets, found_in, strict=True))
            for i, u in enumerate(us)
        }
        at = [place[leaf] for leaf in places]
        tables = [stack.tables() for stack in stacks]
        correlation = stacks[0].correlation
        return LocalMoments(correlation, tables, at, self.extend(X).numpy(), columns)

    # -- where rows are -----------------------------------------------------------

    def _locate(self, X: Tensor) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Runs of rows on one path: bucket and place, and lengths if there are more."""
        if len(self._found) > _MAX_KEPT or len(self._prior_keys) > _MAX_PRIOR:
            self._found.clear()
            self._prior_keys, self._prior_rows = {}, X[:0]
            self._drop_tables(len(self.predictor.blocks))
        every, decisions, runs = X.numpy(), self._decisions, self._runs
        if not self._by_value:
            every = self.kernel.locate(X).key.unsqueeze(-1).numpy()
            decisions, runs = np.zeros(1, dtype=np.int64), [slice(0, 1)]
        ends = every[[0, -1]][:, decisions]  # which differ if rows are on several paths
        if (ends[0] == ends[1]).all() and all(
            (every[1:, run] == every[:-1, run]).all() for run in runs
        ):
            # one path only, as in a climb from one start
            place = self._found.get(every[0, decisions].tobytes())
            if place is not None:
                return [place], _NO_LENGTHS
        values = every[:, decisions]
        change = (values[1:] != values[:-1]).any(-1)
        start = np.concatenate([[0], change.nonzero()[0] + 1])
        bits = [head.tobytes() for head in values[start]]
        new = [i for i, b in enumerate(bits) if b not in self._found]
        if new:
            found = self._look_up(X[torch.from_numpy(start[new])])
            self._found.update(zip([bits[i] for i in new], found, strict=True))
        lengths = np.append(start[1:], len(X)) - start
        return [self._found[b] for b in bits], lengths

    @torch.no_grad()
    def _look_up(self, rows: Tensor) -> list[tuple[int, int]]:
        """Bucket and place of the path of each row; one more bucket has no data."""
        keys = self.kernel.locate(rows).key.tolist()
        none = len(self.predictor.blocks)
        new = {
            key: i
            for i, key in enumerate(keys)
            if key not in self._leaf_of_key and key not in self._prior_keys
        }
        if new:
            for key in new:
                self._prior_keys[key] = len(self._prior_keys)
            self._prior_rows = torch.cat([self._prior_rows, rows[list(new.values())]])
            self._drop_tables(none)
        return [
            self._place_of_leaf[self._leaf_of_key[key]]
            if key in self._leaf_of_key
            else (none, self._prior_keys[key])
            for key in keys
        ]

    def _drop_tables(self, bucket: int) -> None:
        self._tables.pop(bucket, None)
        for stack in [s for s in self._stacks if s[0] == bucket]:
            del self._stacks[stack]

    def _size(self, leaves: int) -> int:
        """Numbers of the tables of so many leaves: those of J', the largest."""
        width = min(self._widest, self.predictor.num_weights)
        return leaves * len(self._elements) * self._widest * width

    # -- tables -------------------------------------------------------------------

    def _root(self, predictor: LeafPredictor, weights: Tensor) -> Tensor:
        """J' of the weights of each leaf, ``U x D x R``: R is D where V is more."""
        root = pad(predictor.weight_root.mT, (0, 0, 0, 1))
        (_, size), total = weights.shape, root.shape[-1]
        if total <= size:
            return root[weights]
        some = max(1, _MAX_NUMBERS // (total * max(size, 1)))
        parts = weights.split(some)
        if size > _WIDE:
            covariance = predictor.weight_covariance
            found = (_factor(covariance, part) for part in parts)
            factors = [factor for factor in found if factor is not None]
            if len(factors) == len(parts):
                return torch.cat(factors)
        return torch.cat([torch.linalg.qr(root[w].mT, mode="r").R.mT for w in parts])

    def _stack(self, bucket: int, places: tuple[int, ...], path: bool) -> LeafStack:
        key = (bucket, places, path)
        stack = self._stacks.get(key)
        if stack is None:
            larger = self._larger(bucket, places, path)
            kept = sum(len(leaves) for _, leaves, _ in self._stacks)
            large = self._size(kept) > _MAX_STACKED
            if large or len(self._stacks) >= _MAX_STACKS:
                self._stacks.clear()
            if larger is not None:
                self._stacks[key] = larger
                return larger
            stack = self._stacks[key] = self._make_stack(bucket, places)
            if path:  # no K_p, and no data of the leaf
                stack = self._stacks[key] = replace(
                    stack,
                    inputs=stack.inputs[..., :0],
                    inverse=stack.inverse[..., :0],
                    data=stack.data[:, :0, :0],
                    squares=stack.squares[..., :0],
                    labels=stack.labels[..., :0],
                    rates=stack.rates[..., :0],
                    codes=stack.codes[:, :0, :0],
                    variance=torch.zeros_like(stack.variance),
                    constant=torch.zeros_like(stack.constant),
                    inverse_chol=stack.inverse_chol[:, :0, :0],
                    alpha=stack.alpha[..., :0],
                    of_data=stack.of_data[:, :0],
                )
        return stack

    def _larger(
        self, bucket: int, places: tuple[int, ...], path: bool
    ) -> LeafStack | None:
        """Leaves out of a stack that has more, as when some climbs have ended."""
        if len(self._elements) > 1:
            return None
        found = self._containing(bucket, places, path)
        if found is None:
            return None
        kept, stack = found
        return stack.part([kept.index(place) for place in places])

    def _containing(
        self, bucket: int, places: tuple[int, ...], path: bool
    ) -> tuple[tuple[int, ...], LeafStack] | None:
        """The last stack that has some leaves, and which ones it has."""
        for (other, kept, its), stack in reversed(self._stacks.items()):
            if (other, its) == (bucket, path) and set(places) <= set(kept):
                return kept, stack
        return None

    def _kept_with(
        self, bucket: int, places: tuple[int, ...], path: bool
    ) -> tuple[tuple[int, ...], LeafStack]:
        """A stack that has some leaves, and which ones it has."""
        found = self._containing(bucket, places, path)
        return found or (places, self._stack(bucket, places, path))

    @torch.no_grad()
    def _make_stack(self, bucket: int, places: tuple[int, ...]) -> LeafStack:
        if bucket not in self._tables:
            self._tables[bucket] = [
                self._make_tables(*element, bucket) for element in self._elements
            ]
        tables = self._tables[bucket]
        every = places == tuple(range(len(tables[0].variance)))
        at = None if every else torch.tensor(places)
        return LeafStack.joined(
            [
                self._stack_of(predictor, table, bucket, at)
                for (_, predictor), table in zip(self._elements, tables, strict=True)
            ]
        )

    def _make_tables(
        self, kernel: LeafKernel, predictor: LeafPredictor, bucket: int
    ) -> PathTables:
        if bucket == len(predictor.blocks):
            return path_tables(kernel, self._prior_rows, self._codes)
        block = predictor.blocks[bucket]
        leaves, places = block.bucket.leaves, self._places
        if places is not None:
            parts = (part if part is None else part[leaves] for part in places)
            places = type(places)(*parts)
        rows = self._rows[leaves]
        return path_tables(kernel, rows, self._codes, block.weights, places)

    def _stack_of(
        self,
        predictor: LeafPredictor,
        tables: PathTables,
        bucket: int,
        at: Tensor | None,
    ) -> LeafStack:
        blocks = predictor.blocks
        prior = bucket == len(blocks)

        def mine(table: Tensor) -> Tensor:
            return table if at is None else table[at]

        correlation, *every = tables
        (
            inputs,
            inverse,
            labels,
            rates,
            variance,
            constant,
            weights,
            columns,
            *factors,
        ) = map(mine, every)
        if prior:
            data = inverse.new_zeros(len(inverse), 0, inverse.shape[-1])
            codes = inverse.new_zeros(len(inverse), 0, rates.shape[-1])
            inverse_chol = inverse.new_zeros(len(inverse), 0, 0)
            half = inverse.new_zeros(len(inverse), 0, 1 + weights.shape[-1])
        else:
            # padding repeats the last row: L^-1 and H are zero there, except for the
            # identity in L^-1, whose part of the covariance is to be zero
            index = mine(blocks[bucket].bucket.index).clamp_max(len(self._data) - 1)
            data = self._data[index.unsqueeze(-1), inputs.unsqueeze(1)]
            data = data * inverse.unsqueeze(1)
            codes = self._data[index.unsqueeze(-1), labels.unsqueeze(1)]
            codes = codes * rates.unsqueeze(1)
            inverse_chol = mine(predictor.inverse_chol[bucket])
            half = mine(predictor.half[bucket])
            real = blocks[bucket].bucket.real
            if real is not None:
                inverse_chol = inverse_chol * mine(real).unsqueeze(-1)
        root = self._root(predictor, weights)
        mu = pad(predictor.weight_mean, (0, 1))[weights].unsqueeze(-1)
        of_data = torch.cat([half[..., :1], -half[..., 1:] @ root], dim=-1)
        of_features = torch.cat([mu, root], dim=-1)
        # those of nodes, which come first, are constant on a path
        level, slope, wave, *_ = factors
        moving = ((slope.numpy() != 0.0) | (wave.numpy() != 0.0)).any(0)
        first = int(moving.argmax()) if moving.any() else len(moving)
        still = level[:, None, :first] @ of_features[:, :first]
        return LeafStack(
            correlation,
            1,
            inputs.unsqueeze(1),
            inverse.unsqueeze(1),
            data,
            data.square().sum(-1).unsqueeze(1),
            labels.unsqueeze(1),
            rates.unsqueeze(1),
            codes,
            variance[:, None, None],
            constant[:, None, None],
            inverse_chol,
            of_data[..., :1].mT @ inverse_chol,
            of_data,
            still,
            of_features[:, first:],
            columns[:, None, first:],
            tuple(factor[:, None, first:] for factor in factors),
        )


def _joined(first: PointMoments, last: PointMoments) -> PointMoments:
    """Moments of points, then those of others."""
    mean, variance = (
        torch.cat([a, b], -1) for a, b in zip(first[:2], last[:2], strict=True)
    )
    slopes = (
        None if a is None or b is None else torch.cat([a, b], -2)
        for a, b in zip(first[2:], last[2:], strict=True)
    )
    return PointMoments(mean, variance, *slopes)


def _factor(covariance: Tensor, weights: Tensor) -> Tensor | None:
    """Cholesky factors of parts of a covariance; None if rounding made one singular.

    Args:
        covariance: ``(V + 1) x (V + 1)``, zero in the last row and column.
        weights: ``U x D`` rows of it.
    """
    part = covariance[weights.unsqueeze(-1), weights.unsqueeze(1)]
    none = weights == len(covariance) - 1
    chol, failed = torch.linalg.cholesky_ex(part + torch.diag_embed(none.to(part)))
    return None if failed.any() else chol.masked_fill(none.unsqueeze(-1), 0.0)


def _groups(
    places: Sequence[tuple[int, int]], lengths: np.ndarray
) -> Iterator[tuple[int, tuple[int, ...], np.ndarray, np.ndarray, np.ndarray]]:
    """Runs of rows side by side, leaf by leaf, with little padding.

    Returns:
        A bucket, ``U`` places in it, their rows padded to ``U x t``, these rows one
        after the other, and where each of them is among the ``U t``.
    """
    of_row, place_of_row = np.repeat(np.array(places), lengths, axis=0).T
    for bucket in dict.fromkeys(bucket for bucket, _ in places):
        mine = (of_row == bucket).nonzero()[0]
        rows = mine[place_of_row[mine].argsort(kind="stable")]
        count = np.bincount(place_of_row[rows])
        leaves = count.nonzero()[0]
        parts = [slice(None)]
        if len(leaves) * count.max() > 3 * len(rows) + 64:
            parts = [slice(u, u + 1) for u in range(len(leaves))]
        ends = count[leaves].cumsum()
        for part in parts:
            some, last = leaves[part], ends[part]
            sizes = count[some]
            width = sizes.max()
            flat = rows[last[0] - sizes[0] : last[-1]]
            at = np.arange(len(flat))
            at += np.repeat(
                np.arange(len(some)) * width - sizes.cumsum() + sizes, sizes
            )
            index = np.zeros(len(some) * width, dtype=np.int64)
            index[at] = flat
            yield bucket, tuple(some.tolist()), index.reshape(-1, width), flat, at


class _PointMoments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, moments: LeafMoments) -> tuple[Tensor, Tensor]:
        found = moments(X, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(X)
        ctx.found, ctx.moments = found, moments
        return found.mean, found.variance

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # derivatives of the gradient are wanted, too
            (X,) = ctx.saved_tensors
            (grad_X,) = _gradients(ctx.moments.graph(X), (X,), grad_outputs, True)
            if grad_X is None:  # as on paths without data
                grad_X = X.masked_fill(torch.ones_like(X, dtype=torch.bool), 0.0)
            return grad_X, None
        of_mean, of_variance = (g.unsqueeze(-1) for g in grad_outputs)
        grad_X = of_mean * ctx.found.mean_gradient
        grad_X = grad_X.addcmul_(of_variance, ctx.found.variance_gradient)
        if grad_X.ndim > 2:  # of several elements
            grad_X = grad_X.sum(0)
        return grad_X, None


class _OfHyperparameters(torch.autograd.Function):
    """Values that are known; the graph is built where their gradients are asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        values: tuple[Tensor, ...],
        X: Tensor,
        moments: LeafMoments,
        *of: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.X, ctx.moments = X, moments
        ctx.save_for_backward(*of)
        return values

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            found = ctx.moments.graph(ctx.X)
        of = ctx.saved_tensors
        return None, None, None, *_gradients(found, of, grad_outputs, again)


def _gradients(
    values: Sequence[Tensor],
    of: Sequence[Tensor],
    grad_outputs: Sequence[Tensor],
    again: bool,
) -> Sequence[Tensor | None]:
    """Gradients of values, some of which may be constant."""
    both = zip(values, grad_outputs, strict=True)
    pairs = [(value, grad) for value, grad in both if value.requires_grad]
    if not pairs:
        return [None] * len(of)
    return torch.autograd.grad(
        [value for value, _ in pairs],
        of,
        [grad for _, grad in pairs],
        create_graph=again,
        allow_unused=True,
    )


def differentiable_moments(X: Tensor, moments: LeafMoments) -> tuple[Tensor, Tensor]:
    """Means and variances of points one by one, with their graph.

    They are differentiable in ``X`` and, as all posteriors of GPyTorch, in the
    hyperparameters as far as the covariances of the points themselves depend on these.

    Args:
        X: Transformed inputs, ``t x d``, not empty.
        moments: Computes them and their first derivatives, and the graph where others
            are wanted, of the state that the model has now.
    """
    if not torch.is_grad_enabled():
        found = moments(X)
        return found.mean, found.variance
    free = [p for p in moments.parameters if p.requires_grad]
    if not X.requires_grad:
        found = moments(X)
        mean, variance = found.mean, found.variance
        if free:
            pair = (mean, variance)
            mean, variance = _OfHyperparameters.apply(pair, X, moments, *free)
        return mean, variance
    mean, variance = _PointMoments.apply(X, moments)
    if free:  # a node of its own: it is not run for gradients in X alone
        zeros = (torch.zeros_like(mean), torch.zeros_like(mean))
        of_mean, of_variance = _OfHyperparameters.apply(
            zeros, X.detach(), moments, *free
        )
        mean, variance = mean + of_mean, variance + of_variance
    return mean, variance
