"""Fits by L-BFGS-B with BoTorch's retries, of objectives in closed form, too."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from warnings import WarningMessage

import numpy as np
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import DEFAULT_WARNING_HANDLER
from botorch.optim.batched_lbfgs_b import (
    OptimState,
    status_messages,
    task_messages,
    uses_c_implementation,
)
from botorch.optim.core import OptimizationStatus
from botorch.optim.utils.model_utils import get_parameters_and_bounds, sample_all_priors
from botorch.optim.utils.numpy_utils import get_bounds_as_ndarray
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from linear_operator.utils.errors import NanError, NotPSDError
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor
from torch.autograd.graph import increment_version

from botorch_structured._botorch_names import fit_fallback, lbfgsb
from botorch_structured.linalg.blocks import Array, few_threads, unread_flags
from botorch_structured.linalg.parameters import (
    LogPriors,
    RawParameters,
    UnknownFormError,
)

_logger = logging.getLogger("botorch_structured")
_GPU = "cuda"
# A line search that ends where rounding does.
_ROUNDING = "ABNORMAL"
_LINE_STEPS = 20

#: Options of L-BFGS-B on the objective per data point. Ten times smaller tolerances
#: changed the evidence of 450 data sets by less than .005 nats. Twice as many
#: corrections as by default save a tenth of the evaluations.
FIT_OPTIONS = {"ftol": 1e-5, "gtol": 1e-4, "maxiter": 200, "maxcor": 20}
#: Of one leaf with a lengthscale for each of many columns: after a quarter to a half of
#: the evaluations with BoTorch's tolerances the evidence is within .06 nats of theirs
#: on average (60 columns, 150 points: .3). With ``FIT_OPTIONS`` it was up to 10 worse.
FLAT_FIT_OPTIONS = {"ftol": 1e-7, "gtol": 1e-5, "maxiter": 400, "maxcor": 20}


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global random state, which a fit's retries draw from, and restore it.

    Args:
        seed: The seed of the CPU's state and of the device's.
        device: A device on which random numbers may be drawn, too.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # not torch.manual_seed, which also seeds devices that are not restored
        torch.random.default_generator.manual_seed(seed)
        for other in devices:
            with torch.cuda.device(other):
                torch.cuda.manual_seed(seed)
        yield


class ArrayObjective(Protocol):
    """Minus an objective per data point, as a function of NumPy arrays.

    Attributes:
        bounds: Of the parameters, ``k x 2``.
        units: Changes of the parameters that matter about equally, ``k``. In them the
            solver starts from the unit matrix, with a step of length 1, and has its
            tolerance of gradients.
    """

    bounds: NDArray[np.float64]
    units: NDArray[np.float64]

    def __call__(self, theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Value and gradient at raw parameters ``k``; NaN where a covariance is.

        Raises:
            NotPSDError: If a covariance is not positive definite even with jitter. It
                ends an attempt of the fit, as in BoTorch.
        """

    def read(self) -> NDArray[np.float64]:
        """The raw parameters of the model, ``k``."""

    def write(self, theta: NDArray[np.float64]) -> None:
        """Set the raw parameters of the model."""


class DeviceObjective:
    """An ``ArrayObjective`` on a GPU, which replays its evaluation as one CUDA graph.

    A GPU takes ten times as long to be started for the operations of an evaluation, one
    by one, as for those of 2,000 points on 64 paths. The first evaluation is plain, and
    leaves caches of the data. From the second on the graph is replayed, except where a
    matrix needs jitter. Where there is no graph, because the host has to wait for the
    device within an evaluation, all are plain, and the logger says so.

    Args:
        mll: The objective, of a model with ``compute_custom_loss``.
        record: Makes a graph: what replays a function, and its result, which each
            replay overwrites.
        units: See ``ArrayObjective``.

    Raises:
        RuntimeError: By ``record``, if there is none.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        record: Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]],
        units: NDArray[np.float64] | None = None,
    ) -> None:
        parameters, bounds = get_parameters_and_bounds(mll, requires_grad=True)
        self._mll = mll
        self._free = list(parameters.values())
        # parameters are parts of one tensor from now on
        self._theta = _in_one(self._free)
        parts = self._theta.split([p.numel() for p in self._free])
        for p, part in zip(self._free, parts, strict=True):
            p.data = part.view_as(p)
        self.units = np.ones(len(self._theta)) if units is None else units
        limits = get_bounds_as_ndarray(parameters, bounds)
        none = np.multiply.outer(np.ones(len(self._theta)), (-np.inf, np.inf))
        self.bounds = none if limits is None else limits
        self._record = record
        self._calls = 0
        self._graph: tuple[Callable[[], None], Tensor] | None = None

    def __call__(self, theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """See ``ArrayObjective``."""
        self.write(theta)
        self._calls += 1
        if self._calls == 2:
            try:
                self._graph = self._record(self._unread)
            except RuntimeError as error:
                name = type(self._mll.model).__name__
                _logger.info("No CUDA graph for a fit of %s: %s", name, error)
        k = 1 + len(theta)
        numbers = None
        if self._graph is not None:
            self._graph[0]()
            numbers = self._graph[1].cpu().numpy()
        if numbers is None or numbers[k:].any():
            try:
                numbers = self._evaluate().cpu().numpy()
            except NanError:
                numbers = np.full(k, np.nan)
        return float(numbers[0]), numbers[1:k]

    def _unread(self) -> Tensor:
        """Value, gradient and flags, without a look at any of them."""
        with unread_flags() as flags:
            numbers = self._evaluate()
        return _in_one([numbers, *flags])

    def _evaluate(self) -> Tensor:
        """Value and gradient."""
        loss = self._mll.model.compute_custom_loss(self._mll)
        slopes = torch.autograd.grad(loss, self._free, materialize_grads=True)
        return _in_one([loss, *slopes])

    def read(self) -> NDArray[np.float64]:
        """See ``ArrayObjective``."""
        return self._theta.cpu().numpy()

    def write(self, theta: NDArray[np.float64]) -> None:
        """See ``ArrayObjective``."""
        self._theta.copy_(torch.from_numpy(theta))
        for p in self._free:  # graphs from before have other values
            increment_version(p)


def _in_one(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts])


def _cuda_graph(function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A function as a CUDA graph, see ``DeviceObjective``."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    if any("synchronizing CUDA operation" in str(w.message) for w in caught):
        raise RuntimeError("the host waits for the device in an evaluation.")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            result = function()
    except RuntimeError:
        # a failure leaves its stream, and a random generator that waits for its end
        torch.cuda.set_stream(stream)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device=stream.device)
        raise
    return graph.replay, result


class ArrayPosterior:
    """Minus the evidence and the log priors per row, an ``ArrayObjective``.

    A subclass has the evidence of one GP as a function of u, in ``evidence``.

    Args:
        mll: The objective.

    Raises:
        UnknownFormError: If it is no evidence of one GP, if a class outside of this
            package has its own way to compute it, or if a prior has no closed form.
    """

    def __init__(self, mll: MarginalLogLikelihood) -> None:
        model: Any = mll.model
        defining = {"forward", "__call__", "compute_custom_loss", "_fast_evidence"}
        if (
            type(mll) is not ExactMarginalLogLikelihood
            or mll.likelihood is not model.likelihood
            or model.redefined & defining
            or model.train_targets.ndim > 1
        ):
            raise UnknownFormError
        self.parameters = parameters = RawParameters(mll)
        self.read = parameters.read
        self.write = parameters.write
        self.bounds = parameters.bounds
        self.units = np.ones(len(parameters.free))
        self._priors = LogPriors(parameters)
        self._rows = len(model.train_targets)

    def evidence(self, u: Array) -> tuple[float, Array]:
        """The log evidence and its derivative by u."""
        raise NotImplementedError

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient at raw parameters ``k``; NaN where the evidence is."""
        u, slope = self.parameters.logarithms(theta)
        prior, by_prior = self._priors(u)
        evidence, gradient = self.evidence(u)
        gradient = gradient + by_prior
        if slope is not None:
            gradient *= slope
        value = -(evidence + prior) / self._rows
        return value, gradient[self.parameters.free] / -self._rows


def fit_map(
    mll: MarginalLogLikelihood,
    options: Mapping[str, Any] | None = None,
    objective: ArrayObjective | None = None,
    evaluate: bool = True,
    units: Callable[[MarginalLogLikelihood], NDArray[np.float64] | None] | None = None,
    **kwargs: Any,
) -> MarginalLogLikelihood:
    """BoTorch's fit with its retries; a ``custom_fit`` calls it.

    Args:
        mll: The objective.
        options: Default options of L-BFGS-B; not used with a closure or an optimiser
            of the caller.
        objective: The same objective in closed form; a ``DeviceObjective`` of one GP
            on a GPU by default. It is handed to SciPy unless the caller has other
            arguments than SciPy's options and method, and of attempts their number and
            whether the best of all is picked.
        evaluate: Whether to put the model in evaluation mode after a fit in closed
            form. A caller that goes on to fit it need not.
        units: Computes those of a ``DeviceObjective``.
        kwargs: See ``fit_gpytorch_mll``.

    Raises:
        ModelFittingError: If all attempts fail.
    """
    for name in [*kwargs]:
        if kwargs[name] is None:
            del kwargs[name]
    if not kwargs.keys() & {"closure", "optimizer"}:
        arguments = dict(kwargs.pop("optimizer_kwargs", {}))
        arguments["options"] = {**(options or {}), **(arguments.get("options") or {})}
        of_attempts = {"max_attempts", "pick_best_of_all_attempts"}
        names = {"options", "method"}
        if kwargs.keys() <= of_attempts and arguments.keys() <= names:
            if objective is None and mll.model.train_targets.ndim == 1:
                kinds = {(p.device.type, p.dtype) for p in mll.parameters()}
                if kinds == {(_GPU, torch.float64)}:
                    steps = None if units is None else units(mll)
                    objective = DeviceObjective(mll, _cuda_graph, steps)
            if objective is not None:
                if not (mll.training and mll.model.training):
                    mll.train()
                _fit_objective(mll, objective, **arguments, **kwargs)
                return mll.eval() if evaluate else mll
        arguments["options"] = arguments["options"] or None
        kwargs["optimizer_kwargs"] = arguments
    kwargs.setdefault("warning_handler", accept_rounding)
    return fit_fallback(mll, **kwargs)


def _fit_objective(
    mll: MarginalLogLikelihood,
    objective: ArrayObjective,
    max_attempts: int = 5,
    pick_best_of_all_attempts: bool = False,
    **kwargs: Any,
) -> None:
    """BoTorch's ``_fit_fallback`` for an objective in closed form.

    That copies the whole state, and changes the mode of each module, more than once:
    together they take half as long as the evaluations of a fit.
    """
    start = objective.read()
    before: list[tuple[Tensor, Tensor]] = []  # what a random start changes
    best: tuple[float, NDArray[np.float64]] | None = None
    for attempt in range(max_attempts):
        if attempt > 0:  # from a random start
            objective.write(start)
            before = before or [(p, p.detach().clone()) for p in mll.parameters()]
            with seeded(attempt, before[0][0].device):
                sample_all_priors(mll.model)
            for p, value in before:
                if not p.requires_grad:
                    p.data.copy_(value)
        try:
            end = _minimise(objective, **kwargs)
            if end is not None and (best is None or end[0] < best[0]):
                best = end
        except NotPSDError as error:
            _logger.debug("Attempt %d of a fit failed: %s", attempt + 1, error)
        # also what the objective is not of, such as other outputs
        for p, value in before:
            p.data.copy_(value)
        if best is not None and not pick_best_of_all_attempts:
            break
    objective.write(start if best is None else best[1])
    if best is None:
        raise ModelFittingError("All attempts to fit the model have failed.")


def _minimise(
    objective: ArrayObjective,
    options: Mapping[str, Any],
    method: str = "L-BFGS-B",
) -> tuple[float, NDArray[np.float64]] | None:
    """The least value by SciPy, from the present parameters; None where it failed."""
    units = objective.units
    bounds = objective.bounds

    def scaled(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = objective(x * units)
        return value, gradient * units

    minimize: Any = optimize.minimize
    is_default = method == "L-BFGS-B" and options.keys() == FIT_OPTIONS.keys()
    if is_default and uses_c_implementation:
        minimize = _quick_lbfgsb
    # SciPy's L-BFGS-B and small factorisations are slower on several threads
    with few_threads():
        result = minimize(
            scaled,
            objective.read() / units,
            method=method,
            jac=True,
            bounds=bounds / units[:, None],
            options=dict(options) or None,
        )
    stopped = "REACHED LIMIT", "EXCEEDS LIMIT", _ROUNDING
    if result.success or any(words in result.message for words in stopped):
        return float(result.fun), np.clip(result.x * units, *bounds.T)
    warnings.warn(
        "`scipy.optimize.minimize` terminated with status "
        f"{OptimizationStatus.FAILURE}, displaying its message: {result.message}",
        OptimizationWarning,
        stacklevel=2,
    )
    return None


def _quick_lbfgsb(
    function: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]],
    start: NDArray[np.float64],
    bounds: NDArray[np.float64],
    options: Mapping[str, Any],
    **ignore: Any,
) -> optimize.OptimizeResult:
    """The same steps to the last bit, called as BoTorch's batched L-BFGS-B calls them.

    SciPy's interface takes a third of the time of the evaluations of a small GP.
    """
    memory = options["maxcor"]
    tolerance = options["ftol"] / np.finfo(float).eps
    x = np.clip(start, *bounds.T)
    state = OptimState(None, _LINE_STEPS, x, len(x), memory)
    low, high = np.isfinite(bounds).T
    # 1 for a lower bound, 3 for an upper one, 2 for both
    state.nbd[:] = np.where(low & high, 2, low + 3 * high)
    state.low_bnd[low] = bounds[low, 0]
    state.upper_bnd[high] = bounds[high, 1]
    while True:
        lbfgsb.setulb(
            memory,
            state.x,
            state.low_bnd,
            state.upper_bnd,
            state.nbd,
            state.f,
            state.g,
            tolerance,
            options["gtol"],
            state.wa,
            state.iwa,
            state.task,
            state.lsave,
            state.isave,
            state.dsave,
            _LINE_STEPS,
            state.ln_task,
        )
        (task, reason) = state.task.tolist()
        if status_messages[task] == "FG":
            state.f, state.g = function(state.x)
        elif status_messages[task] != "NEW_X":
            break
        else:
            state.n_iterations += 1
            if state.n_iterations >= options["maxiter"]:
                state.task[:] = 5, 504
    return optimize.OptimizeResult(
        x=state.x,
        fun=state.f,
        success=status_messages[task] == "CONVERGENCE",
        message=f"{status_messages[task]}: {task_messages[reason]}",
    )


def accept_rounding(warning: WarningMessage) -> bool:
    """BoTorch's ``warning_handler``, but a line search may stop because of rounding.

    At a noise variance of 1e-9 the evidence has about eight correct digits. L-BFGS-B
    then ends with "ABNORMAL" where it cannot descend further, and a retry from random
    hyperparameters would discard the fit.

    Args:
        warning: A warning that an optimisation raised.
    """
    is_failure = issubclass(warning.category, OptimizationWarning)
    if is_failure and _ROUNDING in str(warning.message):
        return True
    return DEFAULT_WARNING_HANDLER(warning)
