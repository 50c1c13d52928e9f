"""The objective of a treed GP and its fit: equation (2) of [Assael2014treed]_.

It is more than a prior and a likelihood determine, so ``fit_gpytorch_mll`` finds it
through BoTorch's hooks, and whoever evaluates the mll, as slice sampling does, through
the prior of the training data, see ``with_objective``.
"""

from __future__ import annotations

__all__ = ["TreeData", "TreedObjective", "with_objective"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from botorch.fit import _fit_fallback
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from torch import Tensor

from botorch_structured.inference.cart import Rows, TreeNode
from botorch_structured.inference.surroundings import few_threads
from botorch_structured.inference.treed_evidence import log_path_evidence
from botorch_structured.inference.treed_groups import (
    PathGroup,
    batch_elements,
    nested_groups,
    node_groups,
)
from botorch_structured.inference.treed_stationary import (
    StationaryTree,
    stationary_evidence,
)
from botorch_structured.models.gaussian_noise import check_own_objective, noise_at
from botorch_structured.models.treed_climb import climb_leaves
from botorch_structured.models.treed_kernel import TreedKernel, TreedStationary
from botorch_structured.models.treed_modules import LeafNoiseLikelihood

# The objective is per data point: finer steps than these change no prediction.
_FIT_OPTIONS = {"ftol": 1e-6, "gtol": 1e-4, "maxiter": 200}

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models import SingleTaskGP

    from botorch_structured.inference.treed_partition import TreePartition

    class _Base(SingleTaskGP):
        partition: TreePartition
        levels: Tensor
        train_inputs: Any
        train_targets: Any
        likelihood: Any
else:
    _Base = object


@dataclass(frozen=True)
class TreeData:
    """The data of one tree, and what equation (2) takes from them.

    Attributes:
        root: The tree, with the data in it.
        X: Transformed inputs, ``n x d``.
        y: Observations, ``n``.
        groups: The terms.
    """

    root: TreeNode
    X: Tensor
    y: Tensor
    groups: list[PathGroup]


def with_objective(
    prior: MultivariateNormal, objective: Callable[[], Tensor], targets: Tensor
) -> MultivariateNormal:
    """The prior in a fit: its log density of the data is the objective.

    ``ExactMarginalLogLikelihood`` adds noise and asks the result, which is of the same
    class, for the log density; then it adds the priors of hyperparameters.

    Args:
        prior: Of the training data.
        objective: What takes the place of their log density.
        targets: The training data, of which alone it is known.
    """

    class TrainingPrior(MultivariateNormal):
        def log_prob(self, value: Tensor) -> Tensor:
            if value is not targets and not torch.equal(value, targets):
                raise ValueError(
                    "mll: expected the training targets, which the tree was grown on, "
                    f"got other outcomes of shape {tuple(value.shape)}; construct the "
                    "model anew, or use set_train_data."
                )
            return objective()

    return TrainingPrior(prior.mean, prior.lazy_covariance_matrix)


class TreedObjective(_Base):
    """Objective and fit of a GP with a ``TreedKernel``.

    With any other kernel, that is, with one leaf, everything is as in the class it is
    mixed into.
    """

    _share_all: bool  # in equation (2)
    _lend: bool  # a leaf predicts from its own data and what is lent to it

    _plan_cache: tuple[Tensor, Tensor, list[TreeData]] | None = None

    @property
    def _is_treed(self) -> bool:
        return isinstance(self.covar_module, TreedKernel)

    def _elements(self, values: Tensor, own: int) -> Tensor:
        """``... x trees x own`` values as ``R x E x own``, E being the trees."""
        count, lead = self.partition.tree_shape.numel(), values.ndim - own
        times = values.shape[:lead].numel() // count
        return values.reshape(times, count, *values.shape[lead:])

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Minus the objective of ``mll`` per data point: BoTorch's hook for a fit.

        That is equation (2), summed over the leaves.

        Args:
            mll: An ``ExactMarginalLogLikelihood`` of this model.
            kwargs: Passed to ``mll`` where that is evaluated itself.

        Returns:
            A scalar, or ``batch_shape`` for a batched model.

        Raises:
            ValueError: If the likelihood of ``mll`` is not that of this model.
        """
        # A subclass, or leaving one out, is another objective.
        exact = type(mll) is ExactMarginalLogLikelihood
        if self._is_treed and exact:
            check_own_objective(self, mll, kwargs)
            objective = mll._add_other_terms(self._log_path_evidence(), ())
            return -objective / self.train_targets.shape[-1]
        output = self(*self.train_inputs)
        transformed = (self.transform_inputs(t) for t in self.train_inputs)
        return -mll(output, self.train_targets, *transformed, **kwargs)

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        r"""Fit by L-BFGS-B, retries included, from where each leaf has its maximum.

        ``fit_gpytorch_mll`` calls this; every argument of it is honoured. Not for
        direct use.
        """
        default = closure is None and "optimizer" not in kwargs
        rows = self.train_targets.shape[-1]
        if self._is_treed and default and not optimizer_kwargs:
            with few_threads(rows):
                climb_leaves(self)
        if self._is_treed and default and not self.partition.tree_shape:
            options = dict((optimizer_kwargs or {}).get("options") or {})
            optimizer_kwargs = {
                **(optimizer_kwargs or {}),
                "options": {**_FIT_OPTIONS, **options},
            }
        with few_threads(rows):
            return _fit_fallback(
                mll,
                closure=closure,
                closure_kwargs=closure_kwargs,
                optimizer_kwargs=optimizer_kwargs,
                **kwargs,
            )

    def _plan(self) -> list[TreeData]:
        """Data and terms of equation (2), tree by tree."""
        raw, y = self.train_inputs[0], self.train_targets
        cache = self._plan_cache
        if cache is None or cache[0] is not raw or cache[1] is not y:
            with torch.no_grad():
                X = self.transform_inputs(raw) if self.training else raw
            X = X.expand(*y.shape, X.shape[-1])
            group = nested_groups if self._share_all else node_groups
            plans = []
            for e, (x, t) in enumerate(
                zip(self._elements(X, 2)[0], self._elements(y, 1)[0], strict=True)
            ):
                tree = self.partition.element(e).tree(x.cpu().double().numpy())
                groups = group(tree, self._data_of, batch_elements(x.device))
                plans.append(TreeData(tree, x, t, [g.to(x) for g in groups]))
            self._plan_cache = cache = (raw, y, plans)
        return cache[2]

    def _data_of(self, node: TreeNode) -> Rows:
        return node.home if self._lend else node.rows

    def _log_path_evidence(self) -> Tensor:
        """The sum of equation (2) without the prior, ``batch_shape``."""
        evidence = (
            self._stationary_evidence
            if isinstance(self.covar_module, TreedStationary)
            else self._general_evidence
        )
        totals = [evidence(e, data) for e, data in enumerate(self._plan())]
        return torch.stack(totals).reshape(self.partition.tree_shape)

    def _stationary_evidence(self, element: int, data: TreeData) -> Tensor:
        """Of one tree."""
        kernel: Any = self.covar_module
        levels = self._levels_of(element)
        own = kernel.variance_of(element, self._leaves_of(data))
        tree = StationaryTree(
            data.groups, data.y, kernel.correlation(element).value_and_slope
        )
        return stationary_evidence(
            tree,
            kernel.coordinates(element, data.X),
            torch.cat([own, levels[:, 0]]),
            *self._mean_and_noise(element, data),
        )

    def _general_evidence(self, element: int, data: TreeData) -> Tensor:
        """The same for any kernel; what its amplitude is, is not known: it is kept."""
        mean, noise = self._mean_and_noise(element, data)
        total = data.y.new_zeros(())
        for group in data.groups:
            rows, values = group.rows, group.values.unsqueeze(-1)
            covariance = self.covar_module.leaf_covariance(
                element, group.leaves, data.X[rows]
            )
            residual = data.y[rows] - mean[values, rows]
            terms = log_path_evidence(group, covariance, noise[values, rows], residual)
            total = total + terms.sum()
        return total

    def _leaves_of(self, data: TreeData) -> Tensor:
        """Numbers of the leaves of one tree, ``L``."""
        return torch.arange(len(data.root.leaves()), device=data.y.device)

    def _levels_of(self, element: int) -> Tensor:
        """Amplitude, mean and noise of the nodes of one tree."""
        return self.levels.reshape(-1, *self.levels.shape[-2:])[element]

    def _mean_and_noise(self, element: int, data: TreeData) -> tuple[Tensor, Tensor]:
        """Of the data, in leaves and then in nodes: see ``PathGroup.values``."""
        leaves, levels = self._leaves_of(data), self._levels_of(element)
        inputs = data.X.expand(len(leaves), *data.X.shape)
        mean = self.mean_module.leaf_mean(element, leaves, inputs)
        mean = torch.cat([mean, levels[:, 1:2].expand(-1, len(data.y))])
        if isinstance(self.likelihood, LeafNoiseLikelihood):
            noise = self.likelihood.noise_covar.leaf_noise(element, leaves)
            noise = torch.cat([noise, levels[:, 2]]).unsqueeze(-1)
        else:  # the same in all leaves and nodes
            noise = self._elements(self._known_noise(), 1)[0, element]
        return mean, noise.expand(mean.shape)

    def _known_noise(self) -> Tensor:
        """Noise variances of the training data under a common likelihood."""
        X = self.train_inputs[0]
        X = self.transform_inputs(X) if self.training else X
        return noise_at(self.likelihood, X, self.train_targets.shape)
