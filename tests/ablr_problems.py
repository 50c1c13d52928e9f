"""Small problems of Bayesian linear regression, and their evidence written out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from botorch_structured.models.ablr.processes import Processes
from botorch_structured.models.ablr.regressions import Regressions, TaskData


@dataclass
class Problem:
    """Tasks of several sizes on a shared network of two inputs."""

    features: nn.Module
    X: Tensor
    Y: Tensor
    task: Tensor
    log_alpha: Tensor | None
    log_beta: Tensor
    noise_variance: Tensor | None

    def regressions(
        self, chunk_rows: int | None = None, processes: Processes | None = None
    ) -> Regressions:
        """The package's; with ``chunk_rows``, no activations are kept."""
        data = TaskData(
            self.features,
            self.X,
            self.Y,
            self.task,
            len(self.log_beta),
            noise_variance=self.noise_variance,
            processes=processes,
            chunk_rows=chunk_rows,
        )
        data.keeps_activations = chunk_rows is None
        return Regressions(data, self.log_alpha, self.log_beta)

    @property
    def learnt(self) -> list[Tensor]:
        some = [self.log_alpha, self.log_beta, self.X, self.Y]
        some += list(self.features.parameters())
        return [t for t in some if t is not None and t.requires_grad]

    def part(self, rows: Tensor) -> Problem:
        """The same with some of the rows."""
        noise = self.noise_variance
        return Problem(
            self.features,
            self.X.detach()[rows],
            self.Y.detach()[rows],
            self.task[rows],
            self.log_alpha,
            self.log_beta,
            None if noise is None else noise[rows],
        )


def make_problem(
    counts: list[int],
    num_features: int = 6,
    *,
    seed: int = 0,
    fixed_noise: bool = False,
    ordered: bool = False,
    device: torch.device | str = "cpu",
) -> Problem:
    """``counts[t]`` rows of task t, shuffled unless ``ordered``."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    task = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    if not ordered:
        task = task[torch.randperm(len(task), generator=g)]
    n, T = len(task), len(counts)
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, num_features))
    net = net.double()
    for p in net.parameters():
        p.data = normal(*p.shape)
    X, Y = normal(n, 2), normal(n)
    log_alpha, log_beta = 1.0 + normal(T), normal(T)
    noise = normal(n).exp() if fixed_noise else None
    return Problem(
        net.to(device),
        X.to(device).requires_grad_(),
        Y.to(device).requires_grad_(),
        task.to(device),
        None if fixed_noise else log_alpha.to(device).requires_grad_(),
        log_beta.to(device).requires_grad_(),
        None if noise is None else noise.to(device),
    )


def dense_log_evidence(
    problem: Problem, phi: Tensor | None = None, Y: Tensor | None = None
) -> Tensor:
    """Sum of log N(y_t; 0, Phi_t Phi_t' / beta_t + I / alpha_t), as it is defined."""
    phi = problem.features(problem.X) if phi is None else phi
    Y = problem.Y if Y is None else Y
    total = Y.new_zeros(())
    for t in range(len(problem.log_beta)):
        rows = problem.task == t
        if not bool(rows.any()):
            continue
        if problem.noise_variance is not None:
            noise = problem.noise_variance[rows]
        else:
            assert problem.log_alpha is not None
            noise = (-problem.log_alpha[t]).exp().expand(int(rows.sum()))
        covariance = phi[rows] @ phi[rows].T / problem.log_beta[t].exp()
        normal = torch.distributions.MultivariateNormal(
            torch.zeros_like(Y[rows]), covariance + torch.diag(noise)
        )
        total = total + normal.log_prob(Y[rows])
    return total
