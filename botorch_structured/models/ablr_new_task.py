"""One more task for Bayesian linear regressions that have learnt from many."""

from __future__ import annotations

__all__ = ["AblrNewTask"]

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ZeroMean
from torch import Tensor

from botorch_structured.inference.ablr_population import Population, population
from botorch_structured.inference.ablr_posterior import WeightPosterior
from botorch_structured.inference.ablr_scale import (
    UsualOutcomes,
    most_probable_scale,
    usual,
)
from botorch_structured.kernels.hyperparameter import LogInterval
from botorch_structured.models.ablr_hyperparameters import (
    ExchangeableLogNormalPrior,
    WeightPrecision,
)
from botorch_structured.models.ablr_learnt import (
    LearntFeatures,
    LearntInputs,
    LearntMean,
    UsualScale,
)
from botorch_structured.models.ablr_standardize import StandardizeTasks
from botorch_structured.models.checks import DataError, check_training_data

if TYPE_CHECKING:  # what it is mixed into
    from botorch_structured.models.ablr_weights import AblrWeights as _Base
else:
    _Base = object

# Standard deviations, where few tasks tell: of logarithms of scales and noise, and of
# levels in units of the usual scale.
_GUESSED_SPREAD = 1.0
_GUESSED_LEVELS = 3.0
_USUAL_NOISE = 1e-3  # of tasks whose noise was given
# How far weights are from mu is in Sigma: what a task's own precision adds to that.
_PRECISION_SPREAD = 0.5
# Bounds of a noise variance that is outside those of outcomes of variance one.
_NOISE_FACTOR = 100.0


class AblrNewTask(_Base):
    """Models of new tasks, from a ``MultiTaskABLR`` that was fitted to many."""

    _common: tuple[list[WeightPosterior], Population] | None = None

    def new_task(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        exclude_tasks: Sequence[int] = (),
    ) -> Any:
        r"""A regression for one more task whose prior is what the tasks have in common.

        Beside the features, which are held, it knows their usual *values*: with the
        weights of the T tasks a sample of ``N(mu, Sigma)`` (empirical Bayes, see
        ``inference.ablr_population``),

        .. math:: y = o + s \, (\phi_z(x)' w + \epsilon), \quad w \sim N(\mu, \Sigma),

        and level o, scale s and noise distributed as theirs (o = 0 and s = 1 without
        an outcome transform). Its mean without any row
        of the new task is the average task; two rows need not tell their own scale.
        Tasks of one row, which standardised is zero wherever it is, do not count.
        Costs O(T D^3) once and O(n D^2): make it anew for each evaluation of a search,
        and fit the features again (``fit_gpytorch_mll`` of the model of all tasks) now
        and then. Fitting the new model is for its noise and weight precision.

        This goes beyond Perrone et al. (2017), where tasks share features only.

        With a ``process_group`` all processes must call this, with the same rows; each
        has a model of its own.

        Args:
            train_X: ``n x d``, without a task column; n may be 0.
            train_Y: ``n x 1``, not standardised.
            train_Yvar: ``n x 1`` observed noise variances; inferred if None, or without
                an outcome.
            exclude_tasks: Task values that are not taken for a sample, such as that of
                earlier rows of the new task.

        Returns:
            A ``MultiTaskABLR`` of one task, ready to predict, to fit and to condition.
            It is a copy: it does not change with this model.

        Raises:
            ValueError: For signals, fantasies, a mean or an outcome transform of one's
                own, if no task is left that has two rows (one, without an outcome
                transform), or if data do not fit.
        """
        self._check_can_share()
        if isinstance(exclude_tasks, str) or not isinstance(exclude_tasks, Sequence):
            raise ValueError(
                "exclude_tasks: expected a list of task values, got "
                f"{type(exclude_tasks).__name__}: {exclude_tasks!r}."
            )
        check_training_data(train_X, train_Y, train_Yvar, missing=True, empty=True)
        if train_X.dtype != self.train_targets.dtype:
            raise DataError(
                "train_X: expected the dtype of the old tasks' rows, "
                f"{self.train_targets.dtype}, got {train_X.dtype}."
            )
        with torch.no_grad():
            some = self._tasks_with_rows(exclude_tasks)
            d = self._num_columns - 1
            if train_X.shape[1:] != (d,) or train_Y.shape[1:] != (1,):
                raise ValueError(
                    f"train_X, train_Y: expected ``n x {d}``, without the task column, "
                    f"and ``n x 1``, got {tuple(train_X.shape)} and "
                    f"{tuple(train_Y.shape)}."
                )
            common = self._population(some)
            outcomes = self._usual_outcomes(some)
            features = LearntFeatures(self, common.root)
            inputs = LearntInputs(self) if hasattr(self, "input_transform") else None
            known = ~train_Y.squeeze(-1).isnan()
            if not known.any():  # which would say nothing of the noise of later ones
                train_Yvar = None
            X = train_X[known]
            phi = features(X if inputs is None else inputs(X)).double()
            curve = common.root.inverse() @ common.mean
            own = most_probable_scale(
                phi[:, :-1],
                phi[:, :-1] @ curve,
                train_Y[known].squeeze(-1).double(),
                outcomes,
                None if train_Yvar is None else train_Yvar[known].squeeze(-1).double(),
            )
            features.level.fill_(outcomes.level[1] / own)
        new = type(self)(
            train_X,
            train_Y,
            task_feature=None,
            train_Yvar=train_Yvar,
            mean_module=LearntMean(features, curve),
            outcome_transform=UsualScale(outcomes.level[0], own),
            input_transform=inputs,
            feature_map=features,
            priors=self._has_priors,
        )
        new._set_usual(outcomes)
        new.to(train_X)
        return new.eval()

    def _check_can_share(self) -> None:
        if self.tasks is None:
            raise ValueError(
                "new_task: expected the model of the old tasks, with a task column, "
                "got one without: signals, or a single task, are no sample of tasks."
            )
        if self._conditioned_batch:
            raise ValueError(
                "new_task: expected a model without fantasies, got a batch of shape "
                f"{tuple(self._conditioned_batch)}."
            )
        if type(self.mean_module) is not ZeroMean:
            raise ValueError(
                "mean_module: expected none where tasks share their weights, got "
                f"{type(self.mean_module).__name__}."
            )
        transform = getattr(self, "outcome_transform", None)
        if transform is not None and type(transform) is not StandardizeTasks:
            raise ValueError(
                "outcome_transform: expected the default or None where tasks share "
                f"their scales, got {type(transform).__name__}."
            )
        self.eval()

    def _tasks_with_rows(self, exclude_tasks: Sequence[int]) -> list[int]:
        assert self.tasks is not None
        without = {self.tasks.index_of(value) for value in exclude_tasks}
        counts = torch.tensor(
            self._rows().rows.counts, device=self.train_targets.device
        )
        rows = self._group.sum(counts).tolist()
        # standardised, one outcome is zero, and its scale that of the others
        enough = 1 if getattr(self, "outcome_transform", None) is None else 2
        some = [t for t, n in enumerate(rows) if n >= enough and t not in without]
        if not some:
            raise ValueError(
                f"new_task: expected at least one task that has {enough} rows and is "
                f"not excluded, got none; exclude_tasks: {list(exclude_tasks)}."
            )
        return some

    def _population(self, some: list[int]) -> Population:
        """Computed once for a search: it is that of the same weights."""
        weights, known = self._weights_of(some), self._common
        if known is not None and len(known[0]) == len(weights):
            if all(a is b for a, b in zip(known[0], weights, strict=True)):
                return known[1]
        common = population(
            torch.stack([w.mean for w in weights]).double(),
            torch.stack([w.root for w in weights]).double(),
            self.covar_module.weight_precision.value[some].double(),
        )
        self._common = (weights, common)
        return common

    def _usual_outcomes(self, some: list[int]) -> UsualOutcomes:
        transform = getattr(self, "outcome_transform", None)
        like = self.covar_module.weight_precision.value
        if transform is None:  # the outcomes are on one scale, levels in the weights
            level = log_scale = (0.0, 0.0)
        else:
            log_scale = usual(transform.stdvs[some].log(), _GUESSED_SPREAD)
            guess = _GUESSED_LEVELS * math.exp(log_scale[0])
            level = usual(transform.means[some], guess)
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            noise = like.new_tensor([_USUAL_NOISE]).log()
        else:
            noise = self.likelihood.noise.expand(self.num_tasks)[some].log()
        return UsualOutcomes(level, log_scale, usual(noise, _GUESSED_SPREAD))

    def _set_usual(self, outcomes: UsualOutcomes) -> None:
        """Hyperparameters, and the priors of them, of a task that others tell about."""
        # not the bounds that the size of the features suggests: that of the constant
        # one says how far levels are apart
        precision = WeightPrecision(1, 1.0, prior=self._has_priors)
        self.covar_module.weight_precision = precision
        if self._has_priors:
            _center(precision.value_prior, 0.0, _PRECISION_SPREAD)
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return
        center, spread = outcomes.log_noise
        noise, noise_covar = math.exp(center), self.likelihood.noise_covar
        low, high = (float(bound) for bound in noise_covar.raw_noise_constraint)
        if not low <= noise <= high:  # of a likelihood of the user's
            bounds = LogInterval(noise / _NOISE_FACTOR, noise * _NOISE_FACTOR)
            noise_covar.register_constraint("raw_noise", bounds)
        self.likelihood.noise = noise
        if self._has_priors:
            _center(noise_covar.noise_prior, center, spread)


def _center(prior: ExchangeableLogNormalPrior, center: float, spread: float) -> None:
    """All of the spread is that of tasks: their level is known."""
    with torch.no_grad():
        prior.loc.fill_(center)
        prior.task_spread.fill_(spread)
        prior.spread.fill_(1e-3 * spread)
