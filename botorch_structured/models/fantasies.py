"""Fantasies of models of one noise variance, and gradients in their points.

A Gaussian likelihood with one noise variance cannot hold another one for each row, and
GPyTorch's forgets what it is given. BoTorch gives some: ``fantasize`` with
``observation_noise``, and ``qJointEntropySearch``, which conditions on almost noiseless
optima. A model keeps them for its last rows, with NaN for the likelihood's own noise.

GPyTorch detaches what it keeps of the training data, unless it is told not to. BoTorch
tells it for a posterior within ``propagate_grads``, but not where fantasies are made,
and ``qMultiStepLookahead`` does not where the posterior of fantasies is taken: values
are right, and gradients in the points of the fantasies lack terms.
"""

from __future__ import annotations

__all__ = ["gradients_in_data", "joined_noise", "likelihood_of_rows", "noise_of_rows"]

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from botorch.settings import propagate_grads
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import prediction_strategy
from gpytorch.settings import detach_test_caches
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad


def joined_noise(
    before: Tensor | None, noise: Tensor | None, new_rows: Tensor
) -> Tensor | None:
    """What is given for the last rows of a model that gets more of them.

    Args:
        before: ``batch_shape x f``, for the last rows so far; None for nothing.
        noise: ``batch_shape x n'``, for the new rows; None for the likelihood's own.
            Batch shapes broadcast, from the right, as those of outcomes do.
        new_rows: Outcomes of the new rows, ``batch_shape x n'``.

    Returns:
        ``batch_shape x (f + n')``, or None for nothing.
    """
    n = new_rows.shape[-1]
    if noise is None:
        if before is None:
            return None
        noise = new_rows.new_full((n,), torch.nan)
    noise = noise.expand(*noise.shape[:-1], n)
    if before is None:
        return noise
    shape = torch.broadcast_shapes(before.shape[:-1], noise.shape[:-1])
    both = [part.expand(*shape, part.shape[-1]) for part in (before, noise)]
    return torch.cat(both, dim=-1)


def noise_of_rows(own: Tensor, given: Tensor | None) -> Tensor:
    """The noise variances of rows, the last of which may have been given some.

    Args:
        own: Those of the likelihood, ``batch_shape x n``.
        given: From ``joined_noise``, for at most ``n`` rows.
    """
    if given is None:
        return own
    missing = own.shape[-1] - given.shape[-1]
    given = pad(given, (missing, 0), value=torch.nan)
    return torch.where(given.isnan(), own, given)


def likelihood_of_rows(noise: Tensor) -> FixedNoiseGaussianLikelihood:
    """A likelihood that adds these variances, ``batch_shape x n``, as they are."""
    likelihood = FixedNoiseGaussianLikelihood(torch.ones_like(noise))
    # GPyTorch's constructor would round small ones up
    likelihood.noise_covar.noise = noise
    return likelihood


@contextmanager
def gradients_in_data(*models: Module, new: Tensor | None = None) -> Iterator[None]:
    """Keep the graphs of caches where training data are functions of something.

    Training data that a user gives have no history; points of fantasies have one where
    an acquisition function is differentiated.

    Args:
        models: Each ``ExactGP`` among them and in them is looked at.
        new: Points that they are about to be conditioned on.
    """
    processes = [process for model in models for process in _processes(model)]
    moves = any(X.grad_fn is not None for p in processes for X in p.train_inputs)
    conditions = new is not None and new.requires_grad
    if not (torch.is_grad_enabled() and (moves or conditions)):
        yield
        return
    before = [process.prediction_strategy for process in processes]
    if conditions and not moves and detach_test_caches.on():
        for process in processes:
            _keep_constants(process)
    try:
        with propagate_grads(True), detach_test_caches(False):
            yield
    finally:
        for process, strategy in zip(processes, before, strict=True):
            if conditions:
                process.prediction_strategy = strategy


def _processes(model: Module) -> Iterator[ExactGP]:
    if isinstance(model, ExactGP):
        if model.train_inputs is not None:
            yield model
    else:
        for child in model.children():
            yield from _processes(child)


@torch.no_grad()
def _keep_constants(process: ExactGP) -> None:
    """Factorise the covariance of the data without a graph of hyperparameters.

    One that is kept has been used up after the first ``backward``.
    """
    if process.training:
        return
    inputs = list(process.train_inputs)
    strategy = prediction_strategy(
        train_inputs=inputs,
        train_prior_dist=process.forward(*inputs),
        train_labels=process.train_targets,
        likelihood=process.likelihood,
    )
    strategy.lik_train_train_covar.root_decomposition()
    strategy.lik_train_train_covar.root_inv_decomposition()
    strategy.mean_cache  # noqa: B018 (GPyTorch keeps it)
    process.prediction_strategy = strategy
