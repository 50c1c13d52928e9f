"""What BoTorch reads from a model, for a model that is several alike ones."""

from __future__ import annotations

__all__ = ["Ensemble"]

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from botorch.exceptions import UnsupportedError
from botorch.models.gpytorch import GPyTorchModel
from botorch.posteriors.fully_bayesian import MCMC_DIM
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from torch import Tensor, nn

from botorch_structured.models.module_stack import stack_modules


class Ensemble(GPyTorchModel):
    """``S`` GPs of one class on the same data: attributes, modes and state.

    Data, noise and batch shapes are those of BoTorch's own ensembles
    (``EnsembleMapSaasSingleTaskGP``): one more batch dimension, behind the others.

    Args:
        models: ``S`` GPs. They are held, not copied.

    Raises:
        ValueError: No models, models of different classes, or on data of different
            shapes.
        UnsupportedError: An outcome transform under which a Gaussian does not stay one.
    """

    _is_ensemble = True
    _is_fully_bayesian = True
    _supports_batched_models = False

    # one tensor of each kind (dtype and device) that the models have
    _probes: dict[tuple[torch.dtype, torch.device], Tensor] | None = None

    def __init__(self, models: Sequence[GPyTorchModel]) -> None:
        models = list(models)
        _check_models(models)
        super().__init__()
        # not called "models": ModelList.load_state_dict drops that from every key
        self.samples = nn.ModuleList(models)

    def _drop_caches(self) -> None:
        """Called wherever hyperparameters or data may have changed."""
        self._probes = None

    @property
    def models(self) -> Sequence[GPyTorchModel]:
        """The ``S`` GPs, a ``ModuleList``."""
        return cast("Sequence[GPyTorchModel]", self.samples)

    @property
    def num_samples(self) -> int:
        """The number S of samples of the hyperparameters."""
        return len(self.models)

    @property
    def num_outputs(self) -> int:
        """The number of outputs."""
        return self.models[0].num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """That of the models and ``S``, as BoTorch's fully Bayesian models have it."""
        return torch.Size([*self.models[0].batch_shape, self.num_samples])

    @property
    def train_inputs(self) -> tuple[Tensor, ...]:
        """Those of all samples, ``batch_shape x S x [m] x n x d``.

        Transformed in evaluation mode, as in BoTorch.
        """
        inputs = zip(*(model.train_inputs for model in self.models), strict=True)
        return tuple(self._stack_data(parts) for parts in inputs)

    @property
    def train_targets(self) -> Tensor:
        """On the transformed scale, ``batch_shape x S x [m] x n``."""
        return self._stack_data([model.train_targets for model in self.models])

    def _stack_data(self, parts: Sequence[Tensor]) -> Tensor:
        # BoTorch keeps data output by output, behind the batch dimensions
        return torch.stack(list(parts), dim=len(self.models[0].batch_shape))

    @property
    def likelihood(self) -> Likelihood:
        """The likelihoods of all samples as one with batch shape ``S``, a copy."""
        parts = [model.likelihood for model in self.models]
        stacked = stack_modules(parts)
        if stacked is None:
            raise UnsupportedError(
                "likelihood: those of the samples differ in more than their "
                "parameters; they are likelihoods of the models in `models`."
            )
        if isinstance(stacked, FixedNoiseGaussianLikelihood):
            noise = self._stack_data([part.noise_covar.noise for part in parts])
            stacked.noise_covar.noise = noise
        return stacked

    @property
    def outcome_transform(self) -> Any:
        """The outcome transform, if the models have one."""
        return self.models[0].outcome_transform

    @property
    def input_transform(self) -> Any:
        """The input transform of the first sample, if the models have one."""
        return self.models[0].input_transform

    @property
    def _has_transformed_inputs(self) -> bool:
        return self.models[0]._has_transformed_inputs

    @property
    def _original_train_inputs(self) -> Tensor | None:
        parts = [model._original_train_inputs for model in self.models]
        return None if parts[0] is None else torch.stack(parts, dim=MCMC_DIM)

    @property
    def _supports_cache_root(self) -> bool:
        return all(getattr(m, "_supports_cache_root", True) for m in self.models)

    def _set_transformed_inputs(self) -> None:
        """Nothing: each model sees to its own inputs."""

    def _revert_to_original_inputs(self) -> None:
        """Nothing: each model sees to its own inputs."""

    # -- caches and state ---------------------------------------------------------

    def train(self, mode: bool = True, reset: bool = False) -> Ensemble:
        """Training mode of all models: drops caches; there is nothing to be fitted.

        Args:
            mode: Whether to train or to evaluate.
            reset: BoTorch drops the samples of its fully Bayesian models on the way to
                another fit. These here were given: only False is possible.
        """
        if reset:
            raise UnsupportedError("reset: expected False, samples are not refitted.")
        if mode:
            self._drop_caches()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Ensemble:
        # BoTorch's analytic acquisitions call ``.to(X)`` on each evaluation. For S
        # models of some thirty tensors that costs more than the prediction, so a
        # conversion that leaves each kind of tensor alone is not carried out.
        probes = self._probes
        data = [t for m in self.models for t in (*m.train_inputs, m.train_targets)]
        if probes is None or any((t.dtype, t.device) not in probes for t in data):
            kinds = {(t.dtype, t.device) for t in (*data, *self.parameters())}
            kinds |= {(t.dtype, t.device) for t in self.buffers()}
            probes = {k: torch.empty(0, dtype=k[0], device=k[1]) for k in kinds}
            self._probes = probes
        # ``share_memory`` works in place
        if all(
            fn(p) is p and (p.is_cuda or not p.is_shared()) for p in probes.values()
        ):
            return self
        self._drop_caches()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._drop_caches()
        super()._load_from_state_dict(*args, **kwargs)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        keep_transforms: bool = True,
        assign: bool = False,
    ) -> None:
        """Load the hyperparameters of all samples, see ``GPyTorchModel``.

        Raises:
            ValueError: If ``strict`` and the state is one of another number of samples.
        """
        prefixes = [f"samples.{s}." for s in range(self.num_samples)]
        states: list[dict[str, Any]] = [{} for _ in prefixes]
        unknown = []
        for key, value in state_dict.items():
            head, _, name = key.removeprefix("samples.").partition(".")
            if (
                key.startswith("samples.")
                and head.isdigit()
                and int(head) < len(states)
            ):
                states[int(head)][name] = value
            else:
                unknown.append(key)
        if strict and (unknown or not all(states)):
            raise ValueError(
                f"state_dict: expected the state of {self.num_samples} samples, keys "
                f"{prefixes[0]}* to {prefixes[-1]}*, got "
                f"{sum(map(bool, states))} of them and other keys {unknown[:3]}."
            )
        self._drop_caches()
        for model, state in zip(self.models, states, strict=True):
            model.load_state_dict(
                state, strict=strict, keep_transforms=keep_transforms, assign=assign
            )


def _check_models(models: list[GPyTorchModel]) -> None:
    if not models or not all(isinstance(m, GPyTorchModel) for m in models):
        raise ValueError(
            "models: expected at least one GPyTorchModel, got "
            f"{[type(m).__name__ for m in models]}."
        )
    first = models[0]
    for model in models[1:]:
        if type(model) is not type(first):
            raise ValueError(
                "models: expected models of one class, got "
                f"{type(first).__name__} and {type(model).__name__}."
            )
    shapes = {
        (tuple(m.train_targets.shape), *(tuple(t.shape) for t in m.train_inputs))
        for m in models
    }
    if len(shapes) > 1:
        raise ValueError(
            f"models: expected the same data in all, got the shapes {sorted(shapes)}."
        )
    transform = getattr(first, "outcome_transform", None)
    if transform is not None and not transform._is_linear:
        raise UnsupportedError(
            "models: expected an outcome transform that keeps a Gaussian Gaussian, "
            f"got {type(transform).__name__}."
        )
