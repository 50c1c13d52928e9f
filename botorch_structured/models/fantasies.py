"""Gradients in the points of fantasies.

GPyTorch detaches what it keeps of the training data, unless it is told not to. BoTorch
tells it for a posterior within ``propagate_grads``, but not where fantasies are made,
and ``qMultiStepLookahead`` does not where the posterior of fantasies is taken: values
are right, and gradients in the points of the fantasies lack terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from botorch.settings import propagate_grads
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import prediction_strategy
from gpytorch.settings import detach_test_caches
from torch import Tensor
from torch.nn import Module


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
