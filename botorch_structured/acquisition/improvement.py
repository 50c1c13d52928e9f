r"""Expected improvement of a path, and at the target context per expected cost.

Of the path part of a tree-structured GP, without its leaf: to maximise, choose
``PathLogExpectedImprovement``, since the plain form underflows far from the best value
and then has no gradient; ``PathExpectedImprovement`` to compare with the paper, or to
read values in the units of the objective.

A context column says how a candidate is evaluated: on which share of the training set,
for how many epochs. What counts is the outcome at the *target* context (all data), and
other contexts are cheaper. Choose ``ContextLogExpectedImprovement`` to choose
candidate and context in all paths at once (``optimize_acqf_paths``);
``PathContextLogExpectedImprovement`` for the first step of ``optimize_acqf_two_step``
in trees with too many leaves for that. ``best_at_context`` gives their ``best_f`` and
the candidate to recommend.

References:

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez and M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. ICML 2017.

.. [Ament2023logei]
    S. Ament, S. Daulton, D. Eriksson, M. Balandat and E. Bakshy. Unexpected
    Improvements to Expected Improvement for Bayesian Optimization. NeurIPS 2023.

.. [Klein2016fabolas]
    A. Klein, S. Falkner, S. Bartels, P. Hennig and F. Hutter. Fast Bayesian
    Optimization of Machine Learning Hyperparameters on Large Datasets. AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.acquisition.input_constructors import (
    acqf_input_constructor,
    construct_inputs_best_f,
)
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.utils.transforms import (
    average_over_ensemble_models,
    t_batch_mode_transform,
)
from torch import Tensor

from botorch_structured._botorch_names import (
    ei_helper,
    log_ei_helper,
    scaled_improvement,
)
from botorch_structured.acquisition.mixtures import check_cost_model, read_best_f
from botorch_structured.spaces.arguments import check_column, check_number

#: The smallest variance. BoTorch's 1e-12 is larger than the squared improvements at the
#: end of a noise-free run.
LEAST_VARIANCE = 1e-24


def _check_has_paths(name: str, model: Any) -> None:
    if not callable(getattr(model, "path_posterior", None)):
        raise ValueError(
            f"{name}: expected one with a path_posterior, such as TreeStructuredGP, "
            f"got {type(model).__name__}."
        )


class _PathImprovement(AnalyticAcquisitionFunction):
    """Improvement of a path; ``_log``: whether the logarithm is taken."""

    def __init__(
        self,
        model: Model,
        best_f: float | Tensor,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
    ) -> None:
        _check_has_paths("model", model)
        super().__init__(model=model, posterior_transform=posterior_transform)
        self.register_buffer("best_f", read_best_f(best_f))
        self.maximize = maximize

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models
    def forward(self, X: Tensor) -> Tensor:
        """(Log) expected improvement of the path of every point.

        Args:
            X: ``b x 1 x d`` points.

        Returns:
            ``b`` values.
        """
        self.to(X)
        posterior = self.model.path_posterior(X)
        if self.posterior_transform is not None:
            posterior = self.posterior_transform(posterior=posterior, X=X)
        mean = posterior.mean.squeeze(-2)
        try:
            best_f = self.best_f.expand(mean.shape[:-1]).unsqueeze(-1)
        except RuntimeError:
            raise ValueError(
                "best_f: expected a number, or as many as X has batches, "
                f"{tuple(mean.shape[:-1])}, got shape {tuple(self.best_f.shape)}."
            ) from None
        sigma = posterior.variance.clamp_min(LEAST_VARIANCE).sqrt().view(mean.shape)
        u = scaled_improvement(
            mean,
            sigma,
            best_f,
            self.maximize,
        )
        value = log_ei_helper(u) + sigma.log() if self._log else sigma * ei_helper(u)
        return value.squeeze(-1)


class PathExpectedImprovement(_PathImprovement):
    r"""Expected improvement of the path part ``b_p + z_p(x)'c`` of a tree model.

    Use it as the first argument of ``optimize_acqf_two_step`` to choose a path, and the
    shared columns on it, without looking at any leaf. With mean m and standard
    deviation s of b_p + z_p(x)'c and :math:`\xi = (y_{min} - m) / s` (for
    ``maximize=False``; the opposite sign for ``maximize=True``)

    .. math:: \mathrm{EI}(p) = s \, (\varphi(\xi) + \xi \, \Phi(\xi))

    which is equation (6) of [Jenatton2017tree]_. It does not depend on the leaf: it is
    constant in the columns of a single path, and a path whose first evaluation was bad
    may never be chosen again. Where all leaves can be scored, ``optimize_acqf_paths``
    with ``LogExpectedImprovement`` finds better points.

    Args:
        model: A single-output model with a ``path_posterior``, such as
            ``TreeStructuredGP``.
        best_f: The best value observed so far: a number, or ``b`` of them.
        posterior_transform: Applied to the path posterior.
        maximize: Whether larger outcomes are better.

    Raises:
        ValueError: The model has no ``path_posterior``, ``best_f`` is not finite, or,
            at the first call, not of the shape of ``X``.
    """


class PathLogExpectedImprovement(_PathImprovement):
    r"""Logarithm of ``PathExpectedImprovement``, accurate where that underflows.

    Choose it to maximise: its gradient does not vanish however small the improvement
    ([Ament2023logei]_, as implemented in BoTorch). Arguments and errors are those of
    ``PathExpectedImprovement``.
    """

    _log: bool = True


# BoTorch and Ax construct the arguments from a data set as for ExpectedImprovement.
acqf_input_constructor(PathExpectedImprovement, PathLogExpectedImprovement)(
    construct_inputs_best_f
)


class _ContextImprovement(AnalyticAcquisitionFunction):
    """At a target context; ``_path`` says whether the leaves are left out."""

    _log: bool = True
    _path: bool

    def __init__(
        self,
        model: Model,
        best_f: float | Tensor,
        target: Mapping[int, float],
        cost_model: Model | None = None,
        improvement: Literal["learned", "published"] = "learned",
        maximize: bool = True,
    ) -> None:
        if not isinstance(model, Model) or model.num_outputs != 1:
            raise ValueError(
                f"model: expected a BoTorch model with one output, got {model!r}."
            )
        if cost_model is not None:
            check_cost_model(cost_model)
        if self._path:
            _check_has_paths("model", model)
            if cost_model is not None:
                _check_has_paths("cost_model", cost_model)
        if improvement not in ("learned", "published"):
            raise ValueError(
                f'improvement: expected "learned" or "published", got {improvement!r}.'
            )
        columns, values = _read_target(model, target)
        super().__init__(model=model)
        best_f = read_best_f(best_f)
        if best_f.numel() != 1:
            raise ValueError(
                f"best_f: expected a finite number, got {best_f.tolist()}."
            )
        self.register_buffer("best_f", best_f.reshape(()))
        self.register_buffer("target_columns", columns)
        self.register_buffer("target_values", values)
        self.cost_model = cost_model
        self.improvement = improvement
        self.maximize = maximize

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models
    def forward(self, X: Tensor) -> Tensor:
        """Logarithm of the expected improvement per expected cost.

        Args:
            X: ``b x 1 x d`` points, context columns included.

        Returns:
            ``b`` values.
        """
        # not self.to(X), which would walk through two models in every call
        values = self.target_values.to(X)
        columns = self.target_columns.to(X.device)
        at_target = X.index_copy(-1, columns, values.expand(*X.shape[:-1], len(values)))
        if self.improvement == "published":
            posterior = self._posterior(self.model, at_target)
            mean = posterior.mean
            variance = posterior.variance.squeeze(-1)
        else:
            pair = torch.cat([at_target, X], dim=-2)
            if self._path:
                posterior = self.model.path_posterior(pair)
            else:  # the noise of an evaluation at X is part of what it does not tell
                posterior = self.model.posterior(pair, observation_noise=True)
            mean = posterior.mean[..., :1, :]
            covariance = posterior.distribution.covariance_matrix
            variance = covariance[..., 0, 1:].square()
            variance = variance / covariance[..., 1, 1:].clamp_min(LEAST_VARIANCE)
        sigma = variance.clamp_min(LEAST_VARIANCE).sqrt()
        best_f = self.best_f.to(X)
        u = scaled_improvement(
            mean.squeeze(-1),
            sigma,
            best_f,
            self.maximize,
        )
        value = (log_ei_helper(u) + sigma.log()).squeeze(-1)
        if self.cost_model is None:
            return value
        cost = self._posterior(self.cost_model, X)
        # the mean of a log-normal cost
        log_cost = (cost.mean + 0.5 * cost.variance).flatten(-2).squeeze(-1)
        if value.ndim > log_cost.ndim:  # of an ensemble
            log_cost = log_cost.unsqueeze(-1)
        return value - log_cost

    def _posterior(self, model: Model, X: Tensor) -> Any:
        return model.path_posterior(X) if self._path else model.posterior(X)


class ContextLogExpectedImprovement(_ContextImprovement):
    r"""Log EI at the target context that an evaluation at X brings, per expected cost.

    Choose it where a candidate can also be evaluated at cheaper contexts, or where
    costs differ between candidates (with ``target={}`` it is EI per second: the target
    is X itself). With a point x, a context beta and the target context 1,

    .. math:: \alpha(x, \beta) = \log E[(m' - f^*)_+] - \log E[\mathrm{cost}(x, \beta)]

    where m' is the posterior mean of the noiseless outcome f(x, 1) after an evaluation
    at (x, beta). Before it, m' is normal with the posterior mean m(x, 1) and the
    standard deviation

    .. math:: \tilde s = |\mathrm{cov}(f(x, 1), f(x, \beta))| \,/\,
        (\mathrm{var} f(x, \beta) + \mathrm{noise})^{1/2},

    that of f(x, 1) times the correlation of the two. At the target without noise it is
    ``LogExpectedImprovement`` minus the logarithm of the cost.

    ``improvement="published"`` is the criterion of [Jenatton2017tree]_, section 5 (and
    of [Klein2016fabolas]_, whose entropy it takes EI in place of): alpha(x, 1) /
    cost(x, beta'). Its numerator does not depend on beta', so that the cheapest
    context always maximises it, however little it says about the target.

    Args:
        model: Of the outcome, with the context among its columns; for a tree
            ``TreeStructuredGP(..., context_features=[...])``.
        best_f: The best outcome at the target context: with ``best_at_context``.
        target: Context column -> its value at the target, in the units of X
            (``space.encode`` gives them).
        cost_model: Of the *logarithm* of the cost, over the same columns. None: costs
            do not count.
        improvement: "learned" (the formula above) or "published".
        maximize: Whether larger outcomes are better.

    Raises:
        ValueError: For models with several outputs, an ensemble as ``cost_model``, a
            column out of range, or numbers that are not finite.

    Example:
        >>> space = SearchSpace.from_configspace(cs)  # with a column "trainsize"
        >>> c = space.names.index("trainsize")
        >>> model = TreeStructuredGP(X, Y, space, context_features=[c])
        >>> cost_model = TreeStructuredGP(X, seconds.log(), space)
        >>> # ... fit both
        >>> best_f, x_best = best_at_context(model, X, {c: 1.0})
        >>> acqf = ContextLogExpectedImprovement(model, best_f, {c: 1.0}, cost_model)
        >>> x, _ = optimize_acqf_paths(acqf, space=space, X_avoid=X)
    """

    _path = False


class PathContextLogExpectedImprovement(_ContextImprovement):
    r"""``ContextLogExpectedImprovement`` of paths: without their leaves.

    Choose it as the first argument of ``optimize_acqf_two_step``, to choose a path and
    a context without looking at any leaf; the second one is then
    ``ContextLogExpectedImprovement``. f(x, beta) is b_p + z_p(beta)'c here, and the
    logarithm of the cost is that of the cost model.

    ``improvement="published"`` is the joint criterion of [Jenatton2017tree]_,
    section 5,

    .. math:: \frac{E[(y_{min} - b_p - z_p(\beta = 1)^\top c)_+]}
        {E[z_p(\beta')^\top c_{cost}]},

    with the cost as the exponential of such a model, as a linear one can be negative.
    Its largest value is at the cheapest context.

    Arguments and errors are those of ``ContextLogExpectedImprovement``; both models
    need a ``path_posterior``.
    """

    _path = True


def best_at_context(
    model: Model, X: Tensor, target: Mapping[int, float], maximize: bool = True
) -> tuple[Tensor, Tensor]:
    r"""The best posterior mean at the target context among known candidates.

    It is the ``best_f`` of the criteria above, and its candidate is the one to
    recommend, also if it has been evaluated at cheaper contexts only.

    Args:
        model: Of the outcome, with one output.
        X: ``n x d`` points, evaluated at any context.
        target: Context column -> its value at the target.
        maximize: Whether larger outcomes are better.

    Returns:
        The mean, a tensor without dimensions, and the candidate at the target context,
        ``d``.

    Raises:
        ValueError: A column out of range or a value that is not finite; no points.
    """
    if X.ndim != 2 or not len(X):
        raise ValueError(f"X: expected n x d points, got shape {tuple(X.shape)}.")
    columns, values = _read_target(model, target)
    at_target = X.index_copy(
        -1, columns.to(X.device), values.to(X).expand(len(X), len(values))
    )
    with torch.no_grad():
        mean = model.posterior(at_target).mean.reshape(-1, len(X)).mean(0)
    i = mean.argmax() if maximize else mean.argmin()
    return mean[i], at_target[i]


def _read_target(model: Model, target: Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """Columns and values, ``k`` each."""
    if not isinstance(target, Mapping):
        raise ValueError(f"target: expected {{column: value}}, got {target!r}.")
    d = model.train_inputs[0].shape[-1]
    columns = [
        check_column(
            "target",
            c,
            d,
            negative=True,
        )
        for c in target
    ]
    values = [check_number(f"target[{c}]", v) for c, v in target.items()]
    return (
        torch.tensor(columns, dtype=torch.long),
        torch.tensor(values, dtype=torch.double),
    )
