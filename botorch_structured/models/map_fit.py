"""Fits by L-BFGS-B with BoTorch's retries, of objectives in closed form, too."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
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
from scipy import optimize
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.func import functional_call, grad_and_value, vmap

from botorch_structured._botorch_names import fit_fallback, lbfgsb
from botorch_structured.linalg.blocks import (
    Array,
    Steps,
    few_threads,
    finish,
    unread_flags,
)
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

    bounds: Array
    units: Array

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient at raw parameters ``k``; NaN where a covariance is.

        Raises:
            NotPSDError: If a covariance is not positive definite even with jitter. It
                ends an attempt of the fit, as in BoTorch.
        """

    def read(self) -> Array:
        """The raw parameters of the model, ``k``."""

    def write(self, theta: Array) -> None:
        """Set the raw parameters of the model."""


# Makes a CUDA graph: what replays a function, and its result, which each replay
# overwrites. It raises a ``RuntimeError`` if there is none.
Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


def _replays(
    function: Callable[[], Tensor],
    record: Record,
    name: str,
) -> Iterator[Array | None]:
    """Results of a function, replayed as one CUDA graph, which the second call records.

    A GPU takes ten times as long to be started for the operations of an evaluation, one
    by one, as for those of 2,000 points on 64 paths. The first call, which has to be
    plain, leaves caches of the data.

    Args:
        function: Reads and returns tensors that are the same in each call.
        record: Makes the graph.
        name: Of the model, for the logger.

    Yields:
        None where there is no graph: in the first call, and where the host has to wait
        for the device within a call.
    """
    yield None
    try:
        replay, result = record(function)
    except (RuntimeError, AssertionError, NotPSDError) as error:  # or another device
        _logger.info("No CUDA graph for a fit of %s: %s", name, error)
        while True:
            yield None
    while True:
        replay()
        yield result.cpu().numpy()


class _Loss(torch.nn.Module):
    """An objective and whether a factorisation failed, for ``functional_call``."""

    def __init__(self, mll: MarginalLogLikelihood) -> None:
        super().__init__()
        self.mll = mll

    def forward(self) -> tuple[Tensor, Tensor]:
        with unread_flags() as flags:
            loss = self.mll.model.compute_custom_loss(self.mll)
        return loss, torch.cat(flags).abs().amax()


class DeviceObjective:
    """An ``ArrayObjective`` on a GPU, which replays its evaluation as one CUDA graph.

    It is plain where a matrix needs jitter. A GPU has 64 evidences of 400 points in
    twice the time of one: starts of fits and chains of slice sampling go on together.

    Args:
        mll: The objective, of a model with ``compute_custom_loss``.
        record: See ``_replays``.
        units: See ``ArrayObjective``.

    Attributes:
        free: Its parameters.
    """

    def __init__(
        self,
        mll: MarginalLogLikelihood,
        record: Record,
        units: Array | None = None,
    ) -> None:
        parameters, bounds = get_parameters_and_bounds(mll, requires_grad=True)
        self._mll = mll
        self.free = list(parameters.values())
        self._sizes = [p.numel() for p in self.free]
        # parameters are parts of one tensor from now on
        self._theta = _in_one(self.free)
        parts = self._theta.split(self._sizes)
        for p, part in zip(self.free, parts, strict=True):
            p.data = part.view_as(p)
        self.units = np.ones(len(self._theta)) if units is None else units
        limits = get_bounds_as_ndarray(parameters, bounds)
        none = np.multiply.outer(np.ones(len(self._theta)), (-np.inf, np.inf))
        self.bounds = none if limits is None else limits
        self._loss = _Loss(mll)
        self._names: dict[int, list[str]] = {}  # of a parameter, in different modules
        for path, module in self._loss.named_modules():
            for name, p in module.named_parameters(path, recurse=False):
                self._names.setdefault(id(p), []).append(name)
        self._replays = partial(_replays, record=record, name=type(mll.model).__name__)
        self._alone = self._replays(self._unread)

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """See ``ArrayObjective``."""
        self.write(theta)
        k = 1 + len(theta)
        numbers = next(self._alone)
        if numbers is None or numbers[k:].any():
            try:
                numbers = self._evaluate().cpu().numpy()
            except NanError:
                numbers = np.full(k, np.nan)
        return float(numbers[0]), numbers[1:k]

    def at_once(self, count: int) -> Callable[[Tensor], Array]:
        """A function of raw parameters ``count x k``, in one evaluation.

        It returns values and gradients, ``count x (1 + k)``, NaN where a covariance is
        not positive definite even with jitter, and raises a ``RuntimeError`` if the
        objective has a step that takes no batch.
        """
        inputs = self._theta.repeat(count, 1)
        replays = self._replays(partial(self._batch, inputs))

        def evaluate(thetas: Tensor) -> Array:
            inputs.copy_(thetas)
            numbers = next(replays)
            if numbers is None:
                numbers = self._batch(inputs).cpu().numpy()
            for i in np.flatnonzero(numbers[:, -1]):
                numbers[i] = np.nan
                with suppress(NotPSDError):
                    numbers[i, 0], numbers[i, 1:-1] = self(inputs[i].cpu().numpy())
            return numbers[:, :-1]

        return evaluate

    @torch.no_grad()
    def _batch(self, thetas: Tensor) -> Tensor:
        """Values, gradients and flags, ``S x (2 + k)``."""

        def one(theta: Tensor) -> tuple[Tensor, Tensor]:
            values = {}
            for p, part in zip(self.free, theta.split(self._sizes), strict=True):
                values.update(dict.fromkeys(self._names[id(p)], part.view_as(p)))
            # tied weights of a module with two names would be swapped, but not back
            return functional_call(self._loss, values, (), tie_weights=False)

        slopes, (value, flag) = vmap(grad_and_value(one, has_aux=True))(thetas)
        return torch.column_stack([value, slopes, flag])

    def climb_at_once(self, count: int, options: Mapping[str, Any]) -> Array:
        """The best end of climbs from here and from the best of many draws, ``k``.

        Args:
            count: How many climb, in one batch.
            options: Of L-BFGS-B.

        Raises:
            RuntimeError: See ``at_once``.
        """
        data = self._mll.model.train_inputs, self._mll.model.train_targets
        # the host draws the same numbers for each device
        twin: Any = deepcopy(self._mll, {id(part): None for part in data}).to("cpu")
        free = [p for p in twin.parameters() if p.requires_grad]
        # sixteen for each that climbs
        rows = _starts(
            twin,
            lambda: _in_one(free),
            16 * count,
        )
        starts = torch.stack([*rows])
        values = self.at_once(len(starts))(starts)[:, 0]
        values[0] = -np.inf  # climbs, whatever its value is
        evaluate = self.at_once(count)
        units = self.units

        def scaled(xs: list[Array]) -> list[tuple[float, Array]]:
            numbers = evaluate(torch.from_numpy(np.stack(xs) * units))
            return [(row[0], row[1:] * units) for row in numbers]

        bounds = self.bounds / units[:, None]
        climbs = []
        for i in np.argsort(values)[:count]:
            steps = _lbfgsb_steps(
                starts[i].numpy() / units,
                bounds,
                options,
            )
            climbs.append(steps)
        ends = finish(climbs, scaled)
        best = np.nanargmin([end.fun for end in ends])
        return np.clip(ends[best].x * units, *self.bounds.T)

    def _unread(self) -> Tensor:
        """Value, gradient and flags, without a look at any of them."""
        with unread_flags() as flags:
            numbers = self._evaluate()
        return _in_one([numbers, *flags])

    def _evaluate(self) -> Tensor:
        """Value and gradient."""
        loss = self._mll.model.compute_custom_loss(self._mll)
        slopes = torch.autograd.grad(loss, self.free, materialize_grads=True)
        return _in_one([loss, *slopes])

    def read(self) -> Array:
        """See ``ArrayObjective``."""
        return self._theta.cpu().numpy()

    def write(self, theta: Array) -> None:
        """See ``ArrayObjective``."""
        self._theta.copy_(torch.from_numpy(theta))
        for p in self.free:  # graphs from before have other values
            increment_version(p)


def _starts(
    mll: MarginalLogLikelihood,
    read: Callable[[], Any],
    count: int,
) -> Iterator[Any]:
    """The present parameters, and draws from the priors, which are always the same.

    Args:
        mll: The objective, which is as at first whenever a start is asked for.
        read: Reads parameters from it.
        count: How many starts.
    """
    yield read()
    before = [(p, p.detach().clone()) for p in mll.parameters()]
    for seed in range(1, count):
        with seeded(seed, before[0][0].device):
            sample_all_priors(mll.model)
        theta = read()
        # also what the parameters are not of, such as other outputs
        for p, value in before:
            p.data.copy_(value)
        yield theta


def _in_one(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts])


def cuda_graph(function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A function as a CUDA graph, see ``_replays``."""
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
    units: Callable[[MarginalLogLikelihood], Array | None] | None = None,
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
                    objective = DeviceObjective(mll, cuda_graph, steps)
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
    options: Mapping[str, Any],
    method: str = "L-BFGS-B",
    max_attempts: int = 5,
    pick_best_of_all_attempts: bool = False,
) -> None:
    """BoTorch's ``_fit_fallback`` for an objective in closed form.

    That copies the whole state, and changes the mode of each module, more than once:
    together they take half as long as the evaluations of a fit.
    """
    # L-BFGS-B with the options of this module, of any values
    quick = uses_c_implementation and options.keys() == FIT_OPTIONS.keys()
    quick = quick and method == "L-BFGS-B"
    several = quick and pick_best_of_all_attempts and max_attempts > 1
    if several and isinstance(objective, DeviceObjective):
        try:
            objective.write(objective.climb_at_once(max_attempts, options))
            return
        except (RuntimeError, ValueError) as error:  # no batch, or no finite value
            _logger.info("Starts of a fit one after the other: %s", error)
    start = objective.read()
    best: tuple[float, Array] | None = None
    for theta in _starts(mll, objective.read, max_attempts):
        objective.write(theta)
        try:
            end = _minimise(objective, options, method, quick)
            if end is not None and (best is None or end[0] < best[0]):
                best = end
        except NotPSDError as error:
            _logger.debug("An attempt of a fit failed: %s", error)
        if best is not None and not pick_best_of_all_attempts:
            break
        objective.write(start)
    objective.write(start if best is None else best[1])
    if best is None:
        raise ModelFittingError("All attempts to fit the model have failed.")


def _minimise(
    objective: ArrayObjective,
    options: Mapping[str, Any],
    method: str,
    quick: bool,
) -> tuple[float, Array] | None:
    """The least value by SciPy, from the present parameters; None where it failed."""
    units = objective.units
    bounds = objective.bounds

    def scaled(x: Array) -> tuple[float, Array]:
        value, gradient = objective(x * units)
        return value, gradient * units

    start = objective.read() / units
    limits = bounds / units[:, None]
    # SciPy's L-BFGS-B and small factorisations are slower on several threads
    with few_threads():
        if quick:
            steps = _lbfgsb_steps(start, limits, options)
            (result,) = finish([steps], partial(map, scaled))
        else:
            result = optimize.minimize(
                scaled,
                start,
                method=method,
                jac=True,
                bounds=limits,
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


def _lbfgsb_steps(
    start: Array,
    bounds: Array,
    options: Mapping[str, Any],
) -> Steps:
    """L-BFGS-B as BoTorch's batched one calls it, for ``finish``.

    SciPy's interface, with the same steps to the last bit, takes a third of the time of
    the evaluations of a small GP.
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
            state.f, state.g = yield state.x
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
