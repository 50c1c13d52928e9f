r"""The data of each task of a Bayesian linear regression, reduced to a few rows.

Everything that Bayesian linear regression says depends on the features ``Phi``
(``N x D``) and outcomes ``y`` of a task through the products ``Phi' Phi``, ``Phi' y``
and ``y' y`` alone (Perrone et al. 2017, equations (1) to (3)). Products square the
condition number: with a ratio of noise to weight precision of 1e10, or collinear
features, half the digits are gone. So what is kept is a *factor*: at most D + 1 rows F
with the same products,

.. math:: F' F = [\Phi, y]' [\Phi, y].

Up to D observations these rows are the data. Beyond, they are the triangular factor of
a QR factorisation, which is taken chunk after chunk (the factor so far is stacked on
the next chunk): as accurate as the QR factorisation of all rows at once, at a few per
cent of the cost of a network's features.
"""

from __future__ import annotations

__all__ = [
    "AblrData",
    "FeatureMap",
    "TaskFactors",
    "cholesky_qr",
    "triangular_factor",
]

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from botorch_structured.models.ablr.processes import Processes
from botorch_structured.models.ablr.rows import Chunk, TaskRows

# ----------------------------------------------------------------------
# The triangular factor of tall matrices, by what the device is good at.

# Cholesky QR, taken twice, is as accurate as reflections while the condition number
# squared can be represented; this is far from where it cannot.
_MIN_PIVOT = 1e-5


def triangular_factor(data: Tensor) -> Tensor:
    """R of a QR factorisation, with ``R' R = data' data``.

    Reflections (LAPACK) on a CPU. On a GPU these are slow, a column after the other,
    and matrix products fast: Cholesky QR, unless the columns are nearly dependent.

    Args:
        data: ``m x n`` with m at least n.

    Returns:
        Upper triangular, ``n x n``; signs of rows are arbitrary.
    """
    factor = None if data.device.type == "cpu" else cholesky_qr(data)
    return torch.linalg.qr(data, mode="r").R if factor is None else factor


def cholesky_qr(data: Tensor) -> Tensor | None:
    """The triangular factor by two Cholesky factorisations.

    The first one alone would lose half the digits; what it makes of the data is nearly
    orthonormal, and the second corrects it (Yamamoto et al. 2015, CholeskyQR2).

    Args:
        data: ``m x n`` with m at least n.

    Returns:
        Upper triangular, ``n x n``; None where columns are so nearly dependent that
        this would be less accurate than reflections.
    """
    norms = torch.linalg.vector_norm(data, dim=0)
    unit = data / norms
    first, failed = torch.linalg.cholesky_ex(unit.mT @ unit)
    # also where a column is zero or not finite, which makes this not a number
    if not bool((failed == 0) & (first.diagonal().min() > _MIN_PIVOT)):
        return None
    basis = torch.linalg.solve_triangular(first.mT, unit, upper=True, left=False)
    second = torch.linalg.cholesky(basis.mT @ basis)
    return (first @ second).mT * norms


# ----------------------------------------------------------------------
class TaskFactors:
    """Factors of the data of each task, grown chunk by chunk.

    Args:
        counts: Number of observations that each task will have, in all processes.
        num_features: D.
        like: A tensor of the device wanted.
        before: How many of these are in processes before this one, ``T``. Default:
            none.

    Attributes:
        rows: The factors in float64, ``T x C x (D + 1)``, zero where a task has fewer
            than C rows.
        filled: How many rows of the factor each task has, a list of T.
    """

    def __init__(
        self,
        counts: list[int],
        num_features: int,
        like: Tensor,
        before: Tensor | None = None,
    ) -> None:
        self.num_features = num_features
        self.counts = counts
        self.before = before
        height = max(1, min(num_features + 1, max(counts, default=0)))
        self.rows = torch.zeros(
            len(counts),
            height,
            num_features + 1,
            dtype=torch.float64,
            device=like.device,
        )
        self.filled = [0] * len(counts)

    def is_small(self, task: int) -> bool:
        """Whether the factor of a task is its data: no more than D observations."""
        return self.counts[task] <= self.num_features

    def add(self, chunk: Chunk, phi: Tensor, y: Tensor) -> None:
        """Take in one more chunk.

        Args:
            chunk: Which observations.
            phi: Their features in float64, ``m x D``.
            y: Outcomes, ``m``.
        """
        small = self.small_places(chunk, y)
        if small is not None:
            which, task, place = small
            self.rows[task, place, :-1] = phi[which]
            self.rows[task, place, -1] = y[which]
        for piece in chunk.pieces:
            if self.is_small(piece.task):
                self.filled[piece.task] += piece.stop - piece.start
            else:
                here = slice(piece.start, piece.stop)
                self._stack(piece.task, phi[here], y[here])

    def small_places(
        self, chunk: Chunk, like: Tensor
    ) -> tuple[Tensor | slice, Tensor, Tensor] | None:
        """Where observations of small tasks are.

        Returns:
            Which observations of the chunk are of small tasks, their tasks and their
            places in ``rows``; None if there are none.
        """
        num_small = sum(self.is_small(piece.task) for piece in chunk.pieces)
        if num_small == 0:
            return None
        task, place = chunk.places(like)
        if self.before is not None:
            place = place + self.before[task]
        if num_small == len(chunk.pieces):
            return slice(None), task, place
        small = torch.tensor([n <= self.num_features for n in self.counts])
        mask = small.to(like.device)[task]
        return mask, task[mask], place[mask]

    def _stack(self, task: int, phi: Tensor, y: Tensor) -> None:
        """Take in rows of a task that will have more than D."""
        D, filled = self.num_features, self.filled[task]
        # in the order of memory that LAPACK wants
        data = self.rows.new_empty(D + 1, filled + len(y)).mT
        data[:filled] = self.rows[task, :filled]
        data[filled:, :-1] = phi
        data[filled:, -1] = y
        self._replace(task, data)

    def _replace(self, task: int, data: Tensor) -> None:
        if len(data) > self.num_features:
            data = triangular_factor(data)
        self.rows[task, : len(data)] = data
        self.filled[task] = len(data)

    def merge(self, processes: Processes) -> None:
        """Take in what the other processes have; the same in each of them.

        Args:
            processes: All of which call this, with the same ``counts``.

        Raises:
            RuntimeError: If a process has ended or does not answer.
        """
        if processes.alone:
            return
        filled = torch.tensor(self.filled, device=self.rows.device)
        heights = torch.stack(processes.gather(filled)).T.tolist()
        everyone = processes.gather(self.rows)
        self.rows = torch.stack(everyone).sum(0)  # small tasks: each row is of one
        for task, height in enumerate(heights):
            if not self.is_small(task):
                parts = [
                    rows[task, :n] for rows, n in zip(everyone, height, strict=True)
                ]
                self._replace(task, torch.cat(parts))


# ----------------------------------------------------------------------
# Features of the rows of a Bayesian linear regression, evaluated chunk by chunk.

#: From ``n x d`` to ``n x D``, row by row.
FeatureMap = nn.Module | Callable[[Tensor], Tensor]


class AblrData:
    """Data, feature map and hyperparameters, checked once and read chunk by chunk.

    With known noise, features and outcomes of an observation are divided by its
    standard deviation: the noise precision is then 1.

    Args:
        features: The feature map.
        X: Inputs, ``n x d``.
        Y: Outcomes, ``m``.
        task: Tasks of the observations, ``m``, or how these are arranged.
        log_alpha: Logarithms of the noise precisions, ``T``; None with known noise.
        log_beta: Logarithms of the weight precisions, ``T``.
        noise_variance: Known noise variances, ``m``.
        chunk_rows: See ``TaskRows``; only with a tensor as ``task``.
        process_group: The processes that have rows, see ``summed_log_evidence``.

    Raises:
        ValueError: If shapes, dtypes or devices do not fit together, a noise variance
            is not positive, the feature map is not a function of single rows, or
            processes differ in their hyperparameters.
        RuntimeError: If another process has ended or does not answer.
    """

    def __init__(
        self,
        features: FeatureMap,
        X: Tensor,
        Y: Tensor,
        task: Tensor | TaskRows,
        log_alpha: Tensor | None,
        log_beta: Tensor,
        *,
        noise_variance: Tensor | None = None,
        chunk_rows: int | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        log_alpha = _checked_precisions(log_alpha, log_beta, noise_variance)
        if isinstance(task, Tensor):
            task = TaskRows(task, len(log_beta), chunk_rows=chunk_rows)
        elif chunk_rows is not None:
            raise ValueError("chunk_rows: give it to TaskRows where task is one.")
        _check_data(X, Y, task, len(log_beta))
        self.features = features
        self.X = X
        self.Y = Y
        self.rows = task
        self.log_alpha = log_alpha
        self.log_beta = log_beta
        self.noise_variance = _checked_noise(noise_variance, Y)
        self.parameters = _parameters(features)
        with torch.no_grad():  # of one row: not every module takes none
            row = X[:1] if len(X) else X.new_zeros(1, X.shape[-1])
            self.num_features = self.evaluate(row).shape[-1]
        self.processes = Processes(process_group)
        self._check_processes()

    def _check_processes(self) -> None:
        """Processes with other hyperparameters would add up different things."""
        if self.processes.alone:
            return
        device = self.X.device
        self.processes.check_same(
            {
                "log_beta (number of tasks)": float(len(self.log_beta)),
                "features (number of them)": float(self.num_features),
            },
            device,
        )
        learnt = {
            "log_alpha": [self.log_alpha],
            "log_beta": [self.log_beta],
            "features (their parameters)": self.parameters,
        }
        self.processes.check_same(
            {name: _fingerprint(tensors) for name, tensors in learnt.items()}, device
        )

    def evaluate(self, x: Tensor) -> Tensor:
        """Features of inputs ``n x d``: ``n x D``.

        Raises:
            ValueError: If the feature map returns another shape, or has parameters that
                are not known here.
        """
        phi = self.features(x)
        if phi.dim() != 2 or len(phi) != len(x) or phi.shape[-1] == 0:
            raise ValueError(
                f"features: expected {len(x)} x D from inputs {len(x)} x {x.shape[-1]},"
                f" got {tuple(phi.shape)}."
            )
        if phi.requires_grad and not (self.parameters or x.requires_grad):
            raise ValueError(
                "features: has parameters that require gradients but is no nn.Module, "
                "nor a method of one, so that they are not known; wrap it in a Module."
            )
        return phi

    def observed(self, chunk: Chunk, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``m x D`` and outcomes ``m`` of each observation, in float64.

        Args:
            chunk: Which observations.
            phi: Features of the rows of the chunk, ``n x D``.
        """
        if chunk.local is not None:
            phi = phi[chunk.local]
        phi, y = phi.double(), self.Y.detach()[chunk.entries].double()
        scale = self.scale(chunk)
        return (phi, y) if scale is None else (phi * scale[:, None], y * scale)

    def scale(self, chunk: Chunk) -> Tensor | None:
        """What observations are multiplied by, ``m``; None with learnt noise."""
        if self.noise_variance is None:
            return None
        return self.noise_variance[chunk.entries].double().rsqrt()

    def log_scales(self) -> Tensor:
        """Sum of the logarithms of what observations are multiplied by."""
        if self.noise_variance is None:
            return torch.zeros((), dtype=torch.float64, device=self.X.device)
        return -0.5 * self.noise_variance.double().log().sum()

    @torch.no_grad()
    def factors(
        self,
        features: Callable[[Chunk], Tensor] | None = None,
        tasks: Collection[int] | None = None,
    ) -> TaskFactors:
        """Factors of all tasks, the same in each process.

        Args:
            features: Features of a chunk, where more is to be done with them.
            tasks: Those that count; chunks without them are passed over. Default: all.
        """
        mine = torch.tensor(self.rows.counts, device=self.X.device)
        counts = torch.stack(self.processes.gather(mine))
        before = counts[: self.processes.rank].sum(0) if len(counts) > 1 else None
        factors = TaskFactors(
            counts.sum(0).tolist(), self.num_features, self.X, before=before
        )
        for chunk in self.rows.chunks:
            if tasks is None or any(piece.task in tasks for piece in chunk.pieces):
                phi = (features or self.features_of)(chunk)
                factors.add(chunk, *self.observed(chunk, phi))
        factors.merge(self.processes)
        return factors

    def features_of(self, chunk: Chunk) -> Tensor:
        """Features of the rows of a chunk, ``n x D``."""
        return self.evaluate(self.X[chunk.rows])


def _checked_precisions(
    log_alpha: Tensor | None, log_beta: Tensor, noise_variance: Tensor | None
) -> Tensor:
    if (log_alpha is None) == (noise_variance is None):
        raise ValueError(
            "log_alpha, noise_variance: expected one of them, got "
            f"{'neither' if log_alpha is None else 'both'}."
        )
    if log_alpha is None:
        log_alpha = torch.zeros_like(log_beta, requires_grad=False)
    if log_beta.dim() != 1 or log_alpha.shape != log_beta.shape:
        raise ValueError(
            "log_alpha, log_beta: expected one number per task, got shapes "
            f"{tuple(log_alpha.shape)} and {tuple(log_beta.shape)}."
        )
    return log_alpha


def _check_data(X: Tensor, Y: Tensor, task: TaskRows, num_tasks: int) -> None:
    if X.dim() != 2 or not X.is_floating_point():
        raise ValueError(
            "X: expected a floating-point tensor n x d, got shape "
            f"{tuple(X.shape)} and {X.dtype}."
        )
    if task.num_tasks != num_tasks:
        raise ValueError(
            f"task: expected {num_tasks} tasks, one per hyperparameter, got "
            f"{task.num_tasks}."
        )
    if task.num_rows != len(X) or Y.shape != (task.num_entries,):
        raise ValueError(
            f"X, Y: expected {task.num_rows} rows and {task.num_entries} outcomes "
            f"as task says, got shapes {tuple(X.shape)} and {tuple(Y.shape)}."
        )
    if not X.device == Y.device == task.device:
        raise ValueError(
            "X, Y, task: expected one device, got "
            f"{X.device}, {Y.device} and {task.device}."
        )


def _fingerprint(tensors: Sequence[Tensor]) -> float:
    """A number that changes when one of them does, or two are swapped."""
    if not tensors:
        return 0.0
    flat = torch.cat([t.detach().double().reshape(-1).cpu() for t in tensors])
    return float(flat @ torch.arange(1.0, len(flat) + 1.0, dtype=flat.dtype).cos())


def _checked_noise(noise_variance: Tensor | None, Y: Tensor) -> Tensor | None:
    if noise_variance is None:
        return None
    if noise_variance.shape != Y.shape:
        raise ValueError(
            f"noise_variance: expected one per outcome, of shape {tuple(Y.shape)}, got "
            f"{tuple(noise_variance.shape)}."
        )
    if noise_variance.requires_grad:
        raise ValueError("noise_variance: expected constants, got requires_grad=True.")
    if not bool((noise_variance > 0.0).all()):
        raise ValueError(
            "noise_variance: expected positive numbers, got a minimum of "
            f"{float(noise_variance.min())}."
        )
    return noise_variance


def _parameters(features: FeatureMap) -> Sequence[Tensor]:
    """What of a feature map is learnt."""
    # a module, or a method of one
    is_module = isinstance(features, nn.Module)
    module = features if is_module else getattr(features, "__self__", None)
    if not isinstance(module, nn.Module):
        return []
    for name, part in module.named_modules():
        if part.training and isinstance(part, (_BatchNorm, _DropoutNd)):
            raise ValueError(
                "features: expected a function of single rows, the same whenever it is "
                f"called; got {type(part).__name__} ({name or 'itself'}) in training "
                "mode. Put it in eval mode or leave it out."
            )
    return [p for p in module.parameters() if p.requires_grad]
