r"""The covariance of a leaf kernel, path by path, as numbers in tables.

On one path the covariance of a kernel that has a ``form`` is a function of a few
columns,

    K_p(x, x') = v prod_f k_f(|S_f (x - x')|^2) + c,
    z_i(x) = a_i + b_i x_j + u_i sin(w_i x_j + t_i),    j = j(i).

A categorical column enters as one more column for each of its values, behind those of
the inputs: half the squared distance of two codes is 1 if the values differ.
"""

from __future__ import annotations

__all__ = ["PathTables"]

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_structured.linalg.block_low_rank import positions
from botorch_structured.models.tree.form import Form, PresentValues, UnknownFormError
from botorch_structured.models.tree.leaf_inference import LeafKernel
from botorch_structured.models.tree.tree_structured_kernel import TreeStructuredKernel

Array = NDArray[Any]

# Correlations of squared distances whose slope is finite at zero.
_SMOOTH = {"matern32", "matern52", "rbf"}


class PathTables:
    """The covariance on some paths, with the present hyperparameters.

    Args:
        kernel: Any kernel of leaves.
        places: What its ``locate`` says of a row of each path.
        X: Transformed training inputs, ``n x d``, in which values of categorical
            columns are known.

    Attributes:
        names: The correlations k_f, of ``ARRAY_SLOPES``.
        codes: Categorical columns and their known values.

    Raises:
        UnknownFormError: Where the covariance is another one.
    """

    def __init__(self, kernel: LeafKernel, places: Any, X: Tensor) -> None:
        values = PresentValues()
        self._form = form = Form(kernel, places, values)
        self._quantities = form.map(values.u)
        self.names = [factor.name for factor in form.factors]
        self.codes: dict[int, Tensor] = {}
        # weights without a wave: constants, then linear ones, then those of categories
        self._constants = form.still.shape[-1]
        self._linear: list[int] = []
        self._onehot: list[int] = []
        if isinstance(kernel, TreeStructuredKernel):
            weights = kernel.weights
            self._constants = weights.num_inner + weights.num_offsets
            self._linear = weights.linear_columns
            self._onehot = list(weights.onehot_columns)
            self.codes = {c: getattr(weights, f"known_{c}") for c in self._onehot}
        for factor in form.factors:
            unordered = factor.unordered[:-1]
            if factor.name not in _SMOOTH and not unordered.all():
                raise UnknownFormError
            for c in factor.columns[:-1][unordered].tolist():
                known = form.known.get(c)
                values_of = (
                    X[:, c].unique() if known is None else torch.from_numpy(known)
                )
                self.codes[c] = values_of
        start, self._behind = kernel.tree.dim, {}
        for c, values_of in self.codes.items():
            self._behind[c] = range(start, start + len(values_of) + 1)
            start += len(values_of) + 1

    def __call__(self, which: Any, weights: Array | None = None) -> dict[str, Array]:
        """Tables of some of the paths.

        Args:
            which: Index of these paths.
            weights: The weights of each path in the order wanted, ``m x D``.

        Returns:
            Arrays, ``m x 1 x E``; unused places have zero factors. "inputs0" are the
            columns that k_0 sees, "inverse0" the diagonal of S_0, and so on; "variance"
            is v, "constant" c. "weights" are those of the path (V where unused),
            "columns" their j, "level" a, "slope" b, "wave" u, "frequency" w, "phase" t.
        """
        form, q = self._form, self._quantities
        variance = q[form.variance[which]]
        constant = np.zeros_like(variance)
        if form.undeclared is not None:
            constant = form.undeclared[which] * q[form.offsets].mean()
        weights = form.weights(which) if weights is None else weights
        tables = {
            "variance": variance[:, None],
            "constant": constant[:, None],
            "weights": weights,
            **{name: table[weights] for name, table in self._features().items()},
        }
        for i, factor in enumerate(form.factors):
            columns: list[int] = []
            owner: list[int] = []
            share: list[float] = []
            for j, column in enumerate(factor.columns[:-1].tolist()):
                mine = self._behind[column] if factor.unordered[j] else [column]
                columns += mine
                owner += [j] * len(mine)
                share += [0.5 if factor.unordered[j] else 1.0] * len(mine)
            used = positions(factor.seen[which][:, owner]).numpy()
            of_column = np.array([*owner, -1])[used]
            W = np.take_along_axis(q[factor.lengths[which]], of_column, 1)
            tables[f"inputs{i}"] = np.array([*columns, 0])[used]
            tables[f"inverse{i}"] = np.sqrt(W * np.array([*share, 0.0])[used])
        return {name: table[:, None] for name, table in tables.items()}

    def _features(self) -> dict[str, Array]:
        """j, a, b, u, w and t of all weights and of none, ``V + 1``."""
        form, q = self._form, self._quantities
        still, waves = form.still.shape[-1], len(form.frequencies)
        columns = [0] * self._constants + self._linear
        columns += [place for c in self._onehot for place in self._behind[c]]
        terms = form.smooth_columns[:-1]
        scale = np.append(q[form.deviations[:-1]], 0.0)
        level, slope, wave, speed, phase = np.zeros((5, len(scale)))
        level[: self._constants] = scale[: self._constants]
        slope[self._constants : still] = scale[self._constants : still]
        if len(terms):
            wave[still:-1] = scale[still:-1] / math.sqrt(waves)
            rate = q[form.terms[:-1]][:, None, None] * form.frequencies
            speed[still:-1] = np.repeat(rate, 2, axis=1).ravel()
            # the cosines of a column come before its sines
            phase[still:-1].reshape(-1, 2, waves)[:, 0] = 0.5 * math.pi
        return {
            "columns": np.array([*columns, *np.repeat(terms, 2 * waves), 0]),
            "level": level,
            "slope": slope,
            "wave": wave,
            "frequency": speed,
            "phase": phase,
        }
