"""Conditioning and fantasies of a sum whose parts are what is observed."""

from __future__ import annotations

__all__ = ["ObservedComponents", "independent"]

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from botorch import settings
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import Model
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.posteriors import Posterior, PosteriorList
from botorch.sampling.base import MCSampler
from botorch.sampling.list_sampler import ListSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods.gaussian_likelihood import FixedNoiseGaussianLikelihood
from torch import Tensor
from torch.nn import ModuleList

from botorch_structured.models.checks import check_tensor

_Self = TypeVar("_Self", bound="ObservedComponents")


class ObservedComponents(ABC):
    """What is observed of each of ``models``, whatever their sum is used for.

    To be mixed into a ``ModelListGP``, before it.
    """

    models: ModuleList
    batch_shape: torch.Size

    @abstractmethod
    def _with_models(self: _Self, models: Sequence[Model]) -> _Self:
        """The same with other components that have data."""

    @abstractmethod
    def _as_posterior(self, mvn: MultivariateNormal) -> Posterior:
        """A posterior of the kind that the components have."""

    if TYPE_CHECKING:  # from ``ModelListGP``

        def _broadcast_mvns(
            self, mvns: list[MultivariateNormal]
        ) -> list[MultivariateNormal]: ...

    @property
    def _with_data(self) -> list[GPyTorchModel]:
        return list(self.models)

    def condition_on_observations(
        self: _Self,
        X: Tensor | Sequence[Tensor],
        Y: Tensor,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> _Self:
        r"""The model with more observations of the components.

        Args:
            X: ``batch_shape x n' x d``, where all components were observed, or a list
                of one such tensor for each component with data. As users have them:
                components apply their input transforms.
            Y: ``batch_shape' x n' x m``, a column for each component with data.
            noise: Variances, of the shape of ``Y``, of components with fixed noise, in
                the space of their transformed outcomes.
            kwargs: For the components' ``condition_on_observations``.

        Raises:
            ValueError: For another number of columns, or of tensors in ``X``.
        """
        m = len(self.models)
        X = [X] * m if isinstance(X, Tensor) else list(X)
        if len(X) != m:
            raise ValueError(
                f"X: expected one tensor for all or one for each of the {m} components "
                f"with data, got {len(X)}."
            )
        self._check_columns("Y", Y)
        if noise is not None:
            self._check_columns("noise", noise)
        conditioned = []
        for i, model in enumerate(self._with_data):
            own = {} if noise is None else {"noise": noise[..., i : i + 1]}
            one = model.condition_on_observations(
                X[i], Y[..., i : i + 1], **own, **kwargs
            )
            conditioned.append(one)
        return self._with_models(conditioned)

    def fantasize(
        self: _Self,
        X: Tensor,
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        evaluation_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> _Self:
        r"""Models conditioned on draws of the components from their joint posterior.

        Args:
            X: ``batch_shape x n' x d``.
            sampler: Its ``sample_shape`` leads the batch shape of the result. A
                ``ListSampler`` has one sampler for each component with data.
            observation_noise: ``model_batch_shape x 1 x m`` or ``x n' x m`` variances,
                each in the space of the component's transformed outcomes. If None,
                inferred noise, and the mean of fixed noise.
            evaluation_mask: ``n' x m``, which components are observed where.
            kwargs: For ``condition_on_observations``.

        Raises:
            ValueError: For noise or a mask of another shape.
        """
        m = len(self.models)
        if evaluation_mask is not None and evaluation_mask.shape != (X.shape[-2], m):
            raise ValueError(
                f"evaluation_mask: expected shape {(X.shape[-2], m)}, a column for "
                f"each component with data, got {tuple(evaluation_mask.shape)}."
            )
        if observation_noise is not None:
            self._check_columns("observation_noise", observation_noise)
        noises = [
            _fantasy_noise(model)
            if observation_noise is None
            else observation_noise[..., i : i + 1]
            for i, model in enumerate(self._with_data)
        ]
        propagate = kwargs.pop("propagate_grads", False)
        with fantasize_flag():
            with settings.propagate_grads(propagate):
                Y = self._draw(X, sampler, noises)
            pairs = zip(self._with_data, noises, strict=True)
            fantasies = []
            for i, (model, noise) in enumerate(pairs):
                Y_i, X_i = Y[..., i : i + 1], X
                own = {} if noise is None else {"noise": noise.expand(Y_i.shape[1:])}
                if evaluation_mask is not None:
                    rows = evaluation_mask[:, i]
                    Y_i, X_i = Y_i[..., rows, :], X[..., rows, :]
                    own = {key: value[..., rows, :] for key, value in own.items()}
                one = model.condition_on_observations(X_i, Y_i, **own, **kwargs)
                fantasies.append(one)
        return self._with_models(fantasies)

    def _draw(
        self, X: Tensor, sampler: MCSampler, noises: list[Tensor | None]
    ) -> Tensor:
        """``sample_shape x batch_shape x n' x m`` noisy observations of components."""
        if X.shape[-2] == 0:
            shape = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
            return X.new_empty(*sampler.sample_shape, *shape, 0, len(self.models))
        posteriors = [
            model.posterior(X, observation_noise=True if noise is None else noise)
            for model, noise in zip(self._with_data, noises, strict=True)
        ]
        if isinstance(sampler, ListSampler):
            return sampler(PosteriorList(*posteriors))
        mvns = self._broadcast_mvns([p.distribution for p in posteriors])
        return sampler(self._as_posterior(independent(mvns)))

    def _check_columns(self, name: str, value: Tensor) -> None:
        check_tensor(name, value)
        m = len(self.models)
        if value.dim() < 2 or value.shape[-1] != m:
            raise ValueError(
                f"{name}: expected {m} columns, one for each component with data "
                f"(known components have none), got shape {tuple(value.shape)}."
            )


def _fantasy_noise(model: Model) -> Tensor | None:
    """As in ``FantasizeMixin``: the mean of noise that was given, else None."""
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        return None
    return model.likelihood.noise.unsqueeze(-1).mean(dim=-2, keepdim=True)


def independent(mvns: list[MultivariateNormal]) -> MultivariateNormal:
    """Their joint distribution, one output each."""
    if len(mvns) == 1:
        return mvns[0]
    return MultitaskMultivariateNormal.from_independent_mvns(mvns)
