r"""Gaussian processes for spaces where parameters exist only on some paths of a tree.

Which model when: ``TreeStructuredGP`` is for spaces in which a few decisions (which
learner, how many layers, an option on or off) determine which other parameters exist.
The alternatives in BoTorch: ``SingleTaskGP`` on imputed inputs takes fill
values for settings; ``HierarchicalConditionalKernelGP`` is dense and refuses a child
under two values.

References:

.. [Jenatton2017tree]
    R. Jenatton, C. Archambeau, J. Gonzalez and M. Seeger. Bayesian Optimization with
    Tree-structured Dependencies. ICML 2017.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

import torch
from botorch.exceptions import BotorchWarning
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, Mean
from linear_operator import to_dense, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn

import botorch_structured.models.tree.leaf_features  # noqa: F401 (registers itself)
from botorch_structured._botorch_names import DefaultType
from botorch_structured.kernels.leaf_kernels import COVARIANCE, LeafKernel
from botorch_structured.kernels.tree_structured_kernel import (
    KernelOrFactory,
    PathMean,
    TreeStructuredKernel,
    check_choices,
    make_kernel,
)
from botorch_structured.linalg.correlations import CORRELATIONS, MATERN52, RBF
from botorch_structured.linalg.parameters import default_likelihood, set_noise_floor
from botorch_structured.models.checks import protect_decisions
from botorch_structured.models.fast_inference import (
    noise_is_known,
    with_gradient,
    with_variance_floor,
)
from botorch_structured.models.outcome_scale import least_variance, with_least_variance
from botorch_structured.models.tree.leaf_model import (
    Dependencies,
    LeafModel,
    column_scales,
    is_mean_of_paths,
    output_dimensions,
    read_arguments,
)
from botorch_structured.models.tree.solver import LeafSolver
from botorch_structured.spaces import ParameterTree
from botorch_structured.spaces.arguments import check_columns


class TreeStructuredGP(LeafModel):
    r"""A GP per leaf of a decision tree, coupled by Gaussian weights on its nodes.

    Choose it when some parameters exist only for some values of others: a point on path
    p has

    .. math:: y = m + g_p(x_p) + z_p(x)^\top c + \varepsilon

    with independent GPs g_p over the columns of the leaf, and weights :math:`c \sim
    N(0, \Sigma_c)` on root, inner nodes, leaf offsets and shared columns, see
    [Jenatton2017tree]_ (sections 2.1 to 2.4 and 4.3). Inference takes O(V^3 + sum_p
    n_p^3) for V weights and n_p points on path p, and a prediction computes with
    its own leaf only.

    In searches the default finds better points than the paper's configuration. Offsets
    are integrated out, leaf hyperparameters have a hierarchical prior, shared columns
    have linear and smooth terms, and Matern-5/2 or RBF is chosen by evidence. The
    paper's is ``TreeStructuredGP.as_published``; independent GPs are
    ``shared_features="none", leaf_inputs="active", node_weights=False,
    leaf_hyperparameters="independent", leaf_offset="fixed"``; the paper's baseline
    "marginal" is a ``SingleTaskGP`` with a ``TreeStructuredKernel``.

    A tree without decisions is one leaf: the model then *is* a ``SingleTaskGP``,
    whatever the options below, unless there are ``categorical_features``.

    Args:
        train_X: ``batch_shape x n x d``; columns in [0, 1] or an ``input_transform``.
            Inactive columns may hold any finite value: the posterior does not depend on
            it.
        train_Y: ``batch_shape x n x m``.
        hierarchical_dependencies: A ``SearchSpace``; or ``{parent column: {parent
            value: [child columns]}}`` as in BoTorch and Ax, or a ``ParameterTree``. Of
            a ``SearchSpace``, ``input_transform()`` and ``categorical_features`` are
            used, unless others are given (for none of them, give ``space.tree``).
        train_Yvar: ``batch_shape x n x m`` observed noise variances; inferred if None.
        likelihood: Default: homoskedastic noise with a floor of 1e-9; where more than
            a quarter of the outcomes repeat exactly (error counts, clipped values),
            with BoTorch's prior and floor.
        covar_module: Replaces the default kernel, which the arguments below configure.
            Inference is fast with a ``TreeStructuredKernel`` or ``ConditionalKernel``,
            else dense.
        mean_module: Default: a ``ConstantMean``, or one constant per path with
            ``leaf_offset="fixed"``.
        outcome_transform: Default: ``Standardize``, for outcomes of any scale. Under
            another one (or None) outcomes that are not all equal must have a standard
            deviation of at least 1e-5 (1e-3 in single precision): GPyTorch's smallest
            variance is larger.
        input_transform: Decision and categorical columns are left out of a
            ``Normalize``; any other transform must leave them unchanged and not learn
            from the data.
        categorical_features: Columns (or ``{column: values}``) without an order. Values
            default to those in ``train_X``; decision columns need not be named.
        shared_features: Terms of numeric columns that several paths have: "additive"
            (linear and smooth, default), "linear", "fourier" (smooth only) or "none".
        leaf_inputs: "own": K_p sees only columns that no other path has (the paper; all
            active ones if there are none); "active": all active ones.
        leaf_hyperparameters: "hierarchical", "independent" (the paper) or "tied".
        leaf_offset: "random": a weight with a prior; "fixed": a free constant per path,
            the paper's b_p.
        node_weights: False removes the weights of root and inner nodes.
        weight_variances: "tied" or "independent" prior variances of the weights.
        leaf_kernel: "evidence" (default: both are fitted, that with the larger
            evidence is kept), "matern" (5/2) or "rbf". Or a K_p of your own: a GPyTorch
            kernel kappa, which is copied, or a function that makes one for a list of
            columns, as ``lambda columns: RQKernel(ard_num_dims=len(columns))``. Then
            K_p = s_p kappa, with s_p as above (no ``ScaleKernel`` is needed) and the
            priors that kappa brings. With "independent" each leaf has a kappa of its
            own columns (a constant if there are none). Otherwise all leaves share one,
            of all columns that some K_p sees: those that a leaf does not see are 0. A
            column without an order stands in ``columns`` once for each value and once
            for others, 0 or 1/sqrt(2) each. Smooth terms and K_context are Matern-5/2.
            Fits are as fast as with "matern" where all leaves share products of
            Matern, RBF and Laplace kernels; others are by autograd. kappa has to be a
            covariance of the columns of a leaf; a ``CosineKernel`` is one of a column.
        context_features: Columns that describe the evaluation and not the candidate,
            such as the share of the training set (section 5). They have to be numeric
            and active on every path. Every K_p is multiplied by a kernel K_context over
            them, with a lengthscale that all leaves share; like other shared columns
            they have linear and smooth terms. Without them such a column would be
            seen by those terms only (by ``leaf_inputs="own"``). To search with them:
            ``acquisition.ContextLogExpectedImprovement``.

    Raises:
        ValueError: An unknown option, columns out of range, an undeclared value in a
            strictly declared decision, a transform that changes a decision column,
            options together with ``covar_module``, one that depends on inactive
            columns, or a ``leaf_kernel`` that does not fit its columns or is no
            covariance of them.

    Example:
        >>> # x0 chooses between x1 and x2
        >>> dependencies = {0: {0: [1], 1: [2]}}
        >>> model = TreeStructuredGP(train_X, train_Y, dependencies)
        >>> mll = ExactMarginalLogLikelihood(model.likelihood, model)
        >>> fit_gpytorch_mll(mll)
        >>> # a SearchSpace brings its input transform and its categorical columns
        >>> model = TreeStructuredGP(space.sample(20), train_Y, space)
    """

    #: What ``as_published`` gives to the constructor. ``batch_cross_validation`` wants
    #: a class, and takes these as ``model_init_kwargs``.
    published_arguments: ClassVar[dict[str, Any]] = {
        "shared_features": "linear",
        "leaf_inputs": "own",
        "leaf_hyperparameters": "independent",
        "leaf_offset": "fixed",
        "leaf_kernel": "matern",
    }

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        hierarchical_dependencies: Dependencies,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        categorical_features: (
            Sequence[int] | Mapping[int, Sequence[float]] | None
        ) = None,
        shared_features: Literal["additive", "linear", "fourier", "none"] = "additive",
        leaf_inputs: Literal["own", "active"] = "own",
        leaf_hyperparameters: Literal[
            "hierarchical", "independent", "tied"
        ] = "hierarchical",
        leaf_offset: Literal["random", "fixed"] = "random",
        node_weights: bool = True,
        weight_variances: Literal["tied", "independent"] = "tied",
        leaf_kernel: (
            Literal["evidence", "matern", "rbf"] | KernelOrFactory
        ) = "evidence",
        context_features: Sequence[int] | None = None,
    ) -> None:
        tree, input_transform, categorical_features = read_arguments(
            train_X,
            train_Y,
            train_Yvar,
            hierarchical_dependencies,
            categorical_features,
            input_transform=input_transform,
            covar_module=covar_module,
            likelihood=likelihood,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
        )
        # checked also for a tree without decisions, which ignores them
        check_choices(
            shared_features=shared_features,
            leaf_inputs=leaf_inputs,
            leaf_hyperparameters=leaf_hyperparameters,
            leaf_offset=leaf_offset,
            weight_variances=weight_variances,
            leaf_kernel="evidence" if callable(leaf_kernel) else leaf_kernel,
        )
        options = {
            "categorical_features": categorical_features is not None,
            "shared_features": shared_features != "additive",
            "leaf_inputs": leaf_inputs != "own",
            "leaf_hyperparameters": leaf_hyperparameters != "hierarchical",
            "node_weights": not node_weights,
            "weight_variances": weight_variances != "tied",
            "leaf_kernel": leaf_kernel != "evidence",
            "context_features": context_features is not None,
        }
        if covar_module is not None and any(options.values()):
            changed_options = [name for name, changed in options.items() if changed]
            raise ValueError(
                "covar_module: expected None beside arguments that configure the "
                f"covariance it replaces, got both it and {changed_options}."
            )
        known_values = _known_values(categorical_features, tree, train_X)
        input_transform = protect_decisions(
            input_transform,
            tree,
            train_X,
            known_values,
        )
        _, aug_batch_shape = self.get_batch_dimensions(train_X, train_Y)
        # one leaf: exactly a SingleTaskGP with its defaults
        has_structure = bool(tree.decision_columns or known_values)
        structured = covar_module is None and has_structure
        begins_fits = False
        if structured:
            self._warn_of_scales(
                train_X,
                tree,
                known_values,
                input_transform,
            )
            if context_features is not None:
                context_features = tuple(
                    check_columns(
                        "context_features",
                        context_features,
                        tree.dim,
                    )
                )
            arguments = (
                tree,
                tuple(known_values.items()),
                context_features,
                aug_batch_shape,
                train_X.dtype,
                train_X.device,
            )
            configuration: dict[str, Any] = {
                "shared_features": shared_features,
                "leaf_inputs": leaf_inputs,
                "leaf_hyperparameters": leaf_hyperparameters,
                "leaf_offset": leaf_offset == "random",
                "node_weights": bool(node_weights),
                "weight_variances": weight_variances,
            }
            if callable(leaf_kernel):
                configuration["leaf_kernel"] = leaf_kernel
                defaults = _modules(*arguments, **configuration)
            else:
                if leaf_kernel != "evidence":
                    configuration["correlation"] = leaf_kernel
                # new priors have the default dtype
                dtype = torch.get_default_dtype()
                template = _template(dtype, *arguments, **configuration)
                defaults = template.copy([tree, *CORRELATIONS])
            covar_module, default_noise, default_mean = defaults
            if likelihood is None and train_Yvar is None:
                likelihood = default_noise
                begins_fits = True
            if mean_module is None:
                mean_module = default_mean
        elif covar_module is None and callable(leaf_kernel):
            columns = list(range(tree.dim))
            covar_module = make_kernel(leaf_kernel, columns, aug_batch_shape)
        self._choose_kernel = structured and leaf_kernel == "evidence"
        gaussian = likelihood is None or noise_is_known(likelihood)
        if self._choose_kernel and not gaussian:
            warnings.warn(
                f"likelihood: a fit with {type(likelihood).__name__} is by autograd, "
                'once for each of two kernels. leaf_kernel="matern" fits one.',
                BotorchWarning,
                stacklevel=2,
            )
        super().__init__(
            train_X=train_X,
            train_Y=train_Y,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self.tree = tree
        if not structured:
            self._check_kernel()
        self._begins_fits = begins_fits
        if begins_fits:
            set_noise_floor(self.likelihood, self.train_targets)
        if structured:
            self._subset_batch_dict = output_dimensions(self)

    @classmethod
    def as_published(
        cls,
        train_X: Tensor,
        train_Y: Tensor,
        hierarchical_dependencies: Dependencies,
        train_Yvar: Tensor | None = None,
        leaf_kernel: Literal["matern", "rbf"] | KernelOrFactory = "matern",
        **kwargs: Any,
    ) -> Self:
        r"""The model as published; in searches the default finds better points.

        That is ``TreeStructuredGP`` with ``shared_features="linear"`` (section 2.4),
        ``leaf_inputs="own"``, ``leaf_hyperparameters="independent"`` (a K_p of its own
        on each leaf), ``leaf_offset="fixed"`` (a free b_p) and ``leaf_kernel="matern"``
        (section 4, the default), see [Jenatton2017tree]_. Its search is in two steps,
        path and shared columns first (section 3.2): ``optimize_acqf_two_step`` with
        ``fix_shared=True``.

        What the paper leaves open is as in the default: outcomes are standardised,
        hyperparameters have priors, noise has a floor of 1e-9, and the diagonal Sigma_c
        has two variances: one for nodes, one for linear terms (``weight_variances``).
        In section 2.3, which has no linear terms, it is a multiple of the identity.

        Args:
            train_X: ``batch_shape x n x d``, see the class.
            train_Y: ``batch_shape x n x m``.
            hierarchical_dependencies: The tree.
            train_Yvar: ``batch_shape x n x m`` observed noise variances.
            leaf_kernel: K_p, see the class.
            kwargs: Other arguments of the constructor.

        Raises:
            TypeError: If ``kwargs`` has an argument that is set here: to change one of
                these, call the constructor.

        Example:
            >>> model = TreeStructuredGP.as_published(train_X, train_Y, tree)
            >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            >>> candidate, value = optimize_acqf_two_step(
            ...     PathExpectedImprovement(model, best_f=train_Y.max()),
            ...     ExpectedImprovement(model, best_f=train_Y.max()),
            ...     bounds, tree, top_k=1, fix_shared=True,
            ... )
        """
        return cls(
            train_X,
            train_Y,
            hierarchical_dependencies,
            train_Yvar,
            **(cls.published_arguments | {"leaf_kernel": leaf_kernel}),
            **kwargs,
        )

    def _check_kernel(self) -> None:
        """Refuse a covariance that depends on inactive columns."""
        X = self.transform_inputs(self.train_inputs[0])
        kernel = self.covar_module
        if isinstance(kernel, LeafKernel) and kernel.tree == self.tree:
            return
        # other values in the range of each column
        other = 0.7 * X.mean(-2, keepdim=True) + 0.2
        moved = torch.where(self.tree.active_mask(X), X, other)
        with torch.no_grad():
            first, second = (to_dense(kernel(X, points)) for points in (X, moved))
        if not torch.allclose(first, second):
            raise ValueError(
                "covar_module: expected a kernel that does not depend on inactive "
                f"columns, got {type(kernel).__name__}. As leaf_kernel= it is that of "
                "each leaf over its columns; ConditionalKernel(kernel, tree) has zero "
                "covariance across paths."
            )

    def _kernels(self, chosen: bool = False) -> list[str | None]:
        """Both are fitted, and that with the larger evidence is kept.

        RBF comes first: where it wins, it is by more, and the other fit is given up.
        """
        if not self._choose_kernel:
            return [None]
        if chosen:
            return [self.covar_module.correlation.name]
        return [RBF.name, MATERN52.name]

    def path_posterior(self, X: Tensor) -> GPyTorchPosterior:
        r"""Posterior of b_p + z_p(x)'c: the outcome without the leaf's own g_p.

        Uses the decision and shared columns of ``X`` only ([Jenatton2017tree]_,
        equation (6) and section 3.2). On the scale of ``train_Y``.

        Args:
            X: ``batch_shape x q x d``.

        Raises:
            ValueError: If the model has several outputs, or a kernel that is no
                ``TreeStructuredKernel``.
        """
        if self._num_outputs > 1:
            raise ValueError(
                "path_posterior: expected a model with one output, got "
                f"{self._num_outputs}; use subset_output."
            )
        self._check_points(X)
        self.eval()
        X = self.transform_inputs(X)
        mean = with_gradient(self.mean_module(X), X)
        features = self._features(X)
        weight_mean, root = self._weight_moments()
        projected = features @ root.mT
        mvn = MultivariateNormal(
            mean + (features @ weight_mean.unsqueeze(-1)).squeeze(-1),
            to_linear_operator(with_variance_floor(projected @ projected.mT)),
        )
        posterior = GPyTorchPosterior(mvn)
        transform = getattr(self, "outcome_transform", None)
        if transform is not None:
            posterior = transform.untransform_posterior(posterior, X=X)
        return with_least_variance(posterior, least_variance(transform, X))

    @property
    def path_columns(self) -> list[int]:
        """The columns, besides decisions, that ``path_posterior`` may depend on."""
        tree = self.tree
        shared_only = (
            "path_posterior" not in self.redefined
            and isinstance(self.covar_module, TreeStructuredKernel)
            and self.covar_module.redefined.isdisjoint(COVARIANCE)
            and is_mean_of_paths(self.mean_module)
            and column_scales(getattr(self, "input_transform", None), tree.dim)
        )
        return sorted(tree.shared_columns) if shared_only else list(range(tree.dim))

    def weight_posterior(self) -> MultivariateNormal:
        r"""Posterior N(Lambda_c^-1 f_c, Lambda_c^-1) of the weights c (section 2.2).

        On the scale of the transformed outcomes. Order: root, inner nodes, leaf offsets
        (edges of the tree, ascending), linear terms, one-hot codes, smooth terms.

        Returns:
            A distribution over ``batch_shape x V``.
        """
        self.eval()
        mean, root = self._weight_moments()
        kernel = self.covar_module
        if not isinstance(kernel, TreeStructuredKernel):
            return MultivariateNormal(mean, to_linear_operator(root.mT @ root))
        scale = kernel.weights.prior_scale()
        root = root * scale.unsqueeze(-2)
        return MultivariateNormal(mean * scale, to_linear_operator(root.mT @ root))

    def _features(self, X: Tensor) -> Tensor:
        """Scaled weight features of transformed inputs, ``batch_shape x n x V``."""
        kernel = self.covar_module
        # a subclass with another covariance may have other weights
        if isinstance(kernel, TreeStructuredKernel) and kernel.is_by_leaf:
            return kernel.rows(X).features
        if self.tree.decision_columns:
            raise ValueError(
                "covar_module: expected a TreeStructuredKernel, whose paths and "
                f"weights these are, got {type(self.covar_module).__name__}."
            )
        return X.new_zeros(*X.shape[:-1], 0)

    def _weight_moments(self) -> tuple[Tensor, Tensor]:
        """Mean ``V`` and inverse root J (``M^-1 = J'J``) of the scaled weights."""
        solver = self.solver if self._is_single() else None
        single = solver.solvers[0] if solver is not None else None
        if isinstance(single, LeafSolver):
            factors = single.factors
            mean = factors.weight_mean
            root, explained = factors.weight_covariance.root()
            if explained is not None:
                root = torch.eye(len(mean)).to(mean) - root @ explained
            return mean, root.mT
        X = self.train_inputs[0]
        with torch.no_grad():
            prior = self.forward(X)
            covariance = self.likelihood(prior, X).covariance_matrix
            features = self._features(X)
            residual = (self.train_targets - prior.mean).unsqueeze(-1)
            chol = psd_safe_cholesky(covariance)
            mean = features.mT @ torch.cholesky_solve(residual, chol)
            half = torch.linalg.solve_triangular(chol, features, upper=False)
            eye = torch.eye(
                features.shape[-1],
                dtype=X.dtype,
                device=X.device,
            )
            root = psd_safe_cholesky(eye - half.mT @ half).mT
        return mean.squeeze(-1), root


class _Template:
    """New modules, of which copies are wanted; the copies have tensors of their own.

    A loop makes a model of the same tree in each iteration. To make its modules takes
    four times as long as to copy them.

    Args:
        modules: They can be pickled.
        shared: Objects that they hold and of which no copies are made.
    """

    def __init__(
        self,
        modules: nn.Module,
        shared: Sequence[object],
    ) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file, shared)
        pickler.dump(modules)
        self._bytes = file.getvalue()
        self._tensors: list[Tensor] = pickler.apart[len(shared) :]

    def copy(self, shared: Sequence[object]) -> Any:
        """A copy.

        Args:
            shared: Equal to those that the original holds.
        """
        tensors = []
        for tensor in self._tensors:
            new = tensor.detach().clone()
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, tensor.requires_grad)
            tensors.append(new)
        unpickler: Any = pickle.Unpickler(io.BytesIO(self._bytes))
        unpickler.persistent_load = [*shared, *tensors].__getitem__
        return unpickler.load()


class _Pickler(pickle.Pickler):
    """Leaves out tensors and shared objects."""

    def __init__(
        self,
        file: Any,
        shared: Sequence[object],
    ) -> None:
        super().__init__(file)
        self.apart: list[Any] = list(shared)
        self._place = {id(thing): i for i, thing in enumerate(shared)}

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, Tensor) and id(obj) not in self._place:
            self._place[id(obj)] = len(self.apart)
            self.apart.append(obj)
        return self._place.get(id(obj))


def _modules(
    tree: ParameterTree,
    categorical: tuple[tuple[int, tuple[float, ...]], ...],
    context_features: Sequence[int] | None,
    batch_shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    *,
    leaf_offset: bool,
    **options: Any,
) -> nn.ModuleList:
    """Kernel, likelihood and mean of a model."""
    kernel = TreeStructuredKernel(
        tree,
        leaf_offset=leaf_offset,
        categorical_features=dict(categorical),
        batch_shape=batch_shape,
        context_features=context_features,
        **options,
    )
    mean = ConstantMean(batch_shape=batch_shape)
    if not leaf_offset:
        mean = PathMean(tree, batch_shape=batch_shape)
    modules = nn.ModuleList([kernel, default_likelihood(batch_shape), mean])
    return modules.to(dtype=dtype, device=device)


@lru_cache(maxsize=8)  # for one model after the other of the same tree
def _template(
    default_dtype: torch.dtype,
    tree: ParameterTree,
    *args: Any,
    **options: Any,
) -> _Template:
    return _Template(_modules(tree, *args, **options), [tree, *CORRELATIONS])


def _known_values(
    features: Sequence[int] | Mapping[int, Sequence[float]] | None,
    tree: ParameterTree,
    train_X: Tensor,
) -> dict[int, tuple[float, ...]]:
    """Values of the categorical columns; if not given, those of active entries."""
    if features is None:
        return {}
    check_columns("categorical_features", features, tree.dim)
    active = tree.active_mask(train_X)
    known_values = {}
    for c in features:
        seen = torch.unique(train_X[..., c][active[..., c]]).tolist()
        values = seen
        if isinstance(features, Mapping):
            values = [*map(float, features[c])]
        # undeclared values would all be the same value; the tree has those of decisions
        odd = sorted({*seen} - {*values})
        if odd and c not in tree.decision_columns:
            raise ValueError(
                f"categorical_features: expected all values of column {c} of train_X, "
                f"got {values}, and train_X has {odd[:10]}."
            )
        known_values[c] = tuple(values)
    return known_values
