"""The training rows of Bayesian linear regressions, their prior and their evidence."""

from __future__ import annotations

__all__ = ["AblrRows", "RowData"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import MultitaskMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from torch import Tensor

from botorch_structured.inference.ablr_evidence import summed_log_evidence
from botorch_structured.inference.row_chunks import TaskRows
from botorch_structured.models.gaussian_noise import check_own_objective

if TYPE_CHECKING:  # what it is mixed into
    from botorch.models.gpytorch import MultiTaskGPyTorchModel

    from botorch_structured.models.ablr_group import ProcessGroup
    from botorch_structured.models.ablr_tasks import TaskColumn

    class _Base(MultiTaskGPyTorchModel):
        tasks: TaskColumn | None
        num_tasks: int
        train_inputs: Any
        train_targets: Any
        likelihood: Any
        mean_module: Any
        covar_module: Any
        _group: ProcessGroup
        _conditioned_batch: torch.Size
else:
    _Base = object


@dataclass(frozen=True)
class RowData:
    """What was observed where, as inference takes it.

    Attributes:
        inputs: Transformed training inputs, task column included, ``n x d``.
        X: Those columns that features see, of the rows with an observation in the case
            of tasks.
        Y: Observed outcomes, ``m``.
        task: Their tasks or signals, ``m``.
        row: The row of ``inputs`` of each, ``m``; None: one after the other.
        rows: How they are arranged in chunks.
        noise: Their noise variances, where these are given, ``m``.
        total: Number of outcomes, those missing included, on all processes.
    """

    inputs: Tensor
    X: Tensor
    Y: Tensor
    task: Tensor
    row: Tensor | None
    rows: TaskRows
    noise: Tensor | None
    total: int


class AblrRows(_Base):
    """Rows, prior and evidence of a ``MultiTaskABLR``."""

    _rows_cache: RowData | None = None

    # -- rows ---------------------------------------------------------------------

    @property
    def _learns_transform(self) -> bool:
        transform = getattr(self, "input_transform", None)
        return transform is not None and any(
            p.requires_grad for p in transform.parameters()
        )

    def _transformed_rows(self) -> Tensor:
        """The training inputs as features see them, with a graph if one is learnt."""
        X = self.train_inputs[0]
        if X.ndim > 2:
            raise UnsupportedError(
                "A batch of conditioned models has no evidence of its own, and cannot "
                "be fitted. Condition on one set of outcomes instead."
            )
        return X if self._has_transformed_inputs else self.transform_inputs(X)

    def _rows(self) -> RowData:
        """Everything that does not change with the hyperparameters, made once."""
        if self._rows_cache is None:
            with torch.no_grad():
                inputs, noise = self._transformed_rows(), self._given_noise()
                self._rows_cache = self._made_rows(inputs, self.train_targets, noise)
        return self._rows_cache

    def _rows_of_batch(self, place: tuple[int, ...]) -> RowData:
        """The same for one of the models that were conditioned on a batch of outcomes.

        Args:
            place: Its indices in the batch.
        """
        batch, own = self._conditioned_batch, 2 if self._has_signals else 1

        def of_one(values: Tensor, own: int) -> Tensor:
            each = values.expand(*batch, *values.shape[values.ndim - own :])
            return each[place]

        inputs = of_one(self.train_inputs[0], 2)
        if not self._has_transformed_inputs:
            inputs = self.transform_inputs(inputs)
        noise = self._given_noise()
        noise = None if noise is None else of_one(noise, own)
        return self._made_rows(inputs, of_one(self.train_targets, own), noise)

    def _given_noise(self) -> Tensor | None:
        given = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        return self.likelihood.noise if given else None

    def _made_rows(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None
    ) -> RowData:
        observed = ~targets.isnan()
        row: Tensor | None
        if targets.ndim > 1:  # signals, which share rows
            task, row = observed.nonzero(as_tuple=True)
            X = inputs
            rows = TaskRows(task, self.num_tasks, rows=row, num_rows=len(inputs))
        else:
            if self.tasks is None:
                X, task = inputs, torch.zeros_like(targets, dtype=torch.long)
            else:
                X, task = self.tasks.split(inputs)
            row = None
            if not observed.all():
                (row,) = observed.nonzero(as_tuple=True)
                X, task = X[row], task[row]
            rows = TaskRows(task, self.num_tasks)
        return RowData(
            inputs=inputs,
            X=X,
            Y=targets[observed],
            task=task,
            row=row,
            rows=rows,
            noise=None if noise is None else noise.expand_as(targets)[observed],
            total=self._group.sum_of_int(targets.shape[-1], targets.device),
        )

    # -- prior --------------------------------------------------------------------

    def _prior_means(self, X: Tensor) -> Tensor:
        """Prior means of all tasks at transformed rows, ``batch_shape x n x T``.

        A ``MultitaskMean`` has one mean per task; of any other, rows with their task
        column have one value.
        """
        if type(self.mean_module) is ZeroMean:
            return X.new_zeros(1).expand(*X.shape[:-1], self.num_tasks)
        if isinstance(self.mean_module, MultitaskMean):
            return self.mean_module(X if self.tasks is None else self.tasks.without(X))
        return self.mean_module(X).unsqueeze(-1).expand(*X.shape[:-1], self.num_tasks)

    def _check_mean(self, X: Tensor) -> None:
        """Raise a ``ValueError`` if the user's mean is of another shape."""
        some, expected = X[:1], (len(X[:1]), self.num_tasks)
        try:
            shape: object = tuple(self._prior_means(some).shape)
        except RuntimeError as error:
            shape = str(error)
        if shape != expected:
            raise ValueError(
                "mean_module: expected one value for each row, or a MultitaskMean with "
                f"{self.num_tasks} of them, got {type(self.mean_module).__name__}: "
                f"{shape}."
            )

    def forward(self, x: Tensor) -> MultivariateNormal:
        """The prior of function values at ``n x d`` rows; of signals, a batch of T."""
        if self.training:
            x = self.transform_inputs(x)
        means = self._prior_means(x)
        if self.tasks is not None:
            task = self.tasks.index(x[..., self.tasks.column])
            mean = means.gather(-1, task.unsqueeze(-1)).squeeze(-1)
        else:
            mean = means.mT if self.num_tasks > 1 else means.squeeze(-1)
        prior = MultivariateNormal(mean, self.covar_module(x))
        prior.rows = x  # which noise they have, for who passes a distribution only
        return prior

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Prior of the training rows in training mode, else the posterior."""
        if settings.prior_mode.on():
            return self.forward(*args)
        if not self.training:
            return self._latent_posterior(*args)
        X = self.train_inputs[0]
        if settings.debug.on() and not (args[0] is X or torch.equal(args[0], X)):
            raise RuntimeError("You must train on the training inputs!")
        return self._training_prior(self.forward(X))

    def _latent_posterior(self, X: Tensor) -> MultivariateNormal:
        raise NotImplementedError  # AblrPosterior has it

    def _training_prior(self, prior: MultivariateNormal) -> MultivariateNormal:
        """The prior in a fit: its log density of the outcomes is the evidence.

        ``ExactMarginalLogLikelihood`` adds noise, which changes nothing here: the
        density is that of outcomes, their noise included.
        """
        log_density = self._log_density

        class TrainingPrior(MultivariateNormal):
            def log_prob(self, value: Tensor) -> Tensor:
                return log_density(value)

            def with_noise(self) -> MultivariateNormal:
                return self

        return TrainingPrior(prior.mean, prior.lazy_covariance_matrix)

    # -- evidence -----------------------------------------------------------------

    def _log_density(self, value: Tensor) -> Tensor:
        if self._group.is_shared:
            raise ValueError(
                "mll(model(X), Y): one process has only some of the rows. Expected "
                "fit_gpytorch_mll, or model.compute_custom_loss(mll), which sum over "
                "all of them."
            )
        if value is self.train_targets:
            return self.log_evidence()
        if value.shape != self.train_targets.shape:
            raise ValueError(
                f"value: expected shape {tuple(self.train_targets.shape)}, got "
                f"{tuple(value.shape)}."
            )
        observed = ~value.isnan()
        if not torch.equal(observed, ~self.train_targets.isnan()):
            raise ValueError(
                "value: expected outcomes where training data have them, got others."
            )
        return self._evidence_of(value[observed])

    def log_evidence(self) -> Tensor:
        """Log evidence of the standardised outcomes, summed over tasks: minus (3).

        Natural logarithms, ``-N/2 log(2 pi)`` included, no priors of hyperparameters;
        over all processes that share the rows.

        Returns:
            A scalar, differentiable in all parameters.
        """
        return self._evidence_of(self._rows().Y)

    def _evidence_of(self, Y: Tensor) -> Tensor:
        data = self._rows()
        inputs, X = data.inputs, data.X
        if self._learns_transform and not self._has_transformed_inputs:
            inputs = self._transformed_rows()
            X = inputs if self.tasks is None else self.tasks.without(inputs)
            if data.row is not None and self.train_targets.ndim == 1:
                X = X[data.row]
        return summed_log_evidence(
            self.covar_module.feature_map,
            X,
            Y - self._prior_mean_of_outcomes(data, inputs),
            data.rows,
            None if data.noise is not None else self._log_alpha(),
            self.covar_module.weight_precision.raw_value,
            noise_variance=data.noise,
            **self._group.kwargs,
        )

    def _prior_mean_of_outcomes(self, data: RowData, inputs: Tensor) -> Tensor | float:
        if type(self.mean_module) is ZeroMean:
            return 0.0
        means = self._prior_means(inputs)
        if data.row is not None:
            return means[data.row, data.task]
        return means.gather(-1, data.task.unsqueeze(-1)).squeeze(-1)

    def _log_alpha(self) -> Tensor:
        return -self.likelihood.noise.log().expand(self.num_tasks)

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Minus the objective of ``mll`` per data point: BoTorch's hook for a fit.

        Args:
            mll: Of this model. What is not an ``ExactMarginalLogLikelihood`` is
                evaluated densely, as for any other model.
            kwargs: Passed to ``mll`` in that case.

        Raises:
            ValueError: If the likelihood of ``mll`` is not that of this model.
        """
        if type(mll) is ExactMarginalLogLikelihood:
            check_own_objective(self, mll, kwargs)
            evidence = mll._add_other_terms(self.log_evidence().clone(), ())
            return -evidence / max(1, self._rows().total)
        output = self(*self.train_inputs)
        transformed = (self.transform_inputs(t) for t in self.train_inputs)
        return -mll(output, self.train_targets, *transformed, **kwargs)

    # -- training data, as BoTorch reads and restores them --------------------------

    def _extract_targets_and_noise(self) -> tuple[Tensor, Tensor | None]:
        def columns(values: Tensor) -> Tensor:
            return values.mT if self._has_signals else values.unsqueeze(-1)

        given = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        noise = self.likelihood.noise if given else None
        Y = columns(self.train_targets)
        return Y, None if noise is None else columns(noise)

    def _restore_targets_and_noise(
        self, Y: Tensor, Yvar: Tensor | None, strict: bool
    ) -> None:
        def rows(values: Tensor) -> Tensor:
            return values.mT if self._has_signals else values.squeeze(-1)

        if Yvar is not None:
            self.likelihood.noise_covar.noise = rows(Yvar)
        self.set_train_data(targets=rows(Y), strict=strict)

    @property
    def _has_signals(self) -> bool:
        return self.tasks is None and self.num_tasks > 1
