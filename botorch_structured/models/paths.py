"""Whole functions drawn by BoTorch's pathwise sampling: models that have none."""

from __future__ import annotations

from typing import Any, NoReturn

from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.features.generators import GenKernelFeatures
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths


def refuse_paths(kind: type, got: str) -> None:
    """Have BoTorch refuse to draw whole functions; its own words name a dispatcher.

    Args:
        kind: A class of models, or of kernels.
        got: What it is, for the message.
    """

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(
            f"model: expected one to draw whole functions of, got {got}. Draw at a "
            "finite set of points: posterior(X).rsample(), or MaxPosteriorSampling."
        )

    for hook in (GenKernelFeatures, DrawKernelFeaturePaths, DrawMatheronPaths):
        hook.add((kind,), refuse)
