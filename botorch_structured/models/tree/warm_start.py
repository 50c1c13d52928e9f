"""Hyperparameters of an earlier fit as the start of the next one.

Data and branches may have been added in between. Entries of a parameter are matched by
what they belong to: a column (by its name if a ``SearchSpace`` gives one), a value of a
decision, a path. New entries keep their start.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_structured.kernels.tree_structured_kernel import TreeStructuredKernel


def take_values(model: Any, earlier: Any) -> None:
    """Set the parameters of a model, and its choice of a kernel, to an earlier one's.

    Args:
        model: The model.
        earlier: A model of the same class and options.

    Raises:
        ValueError: For a model of another class or other options, and for other columns
            where values would be taken by position.
    """
    if type(earlier) is not type(model):
        raise ValueError(
            f"start_from: expected a {type(model).__name__} as is fitted, got "
            f"{type(earlier).__name__}."
        )
    for name, option, other in _options(model, earlier):
        if option != other:
            raise ValueError(
                "start_from: expected a model with the same options, got one with "
                f"another {name} ({other} for {option})."
            )
    values = dict(earlier.named_parameters())
    entries = _entries(model)
    earlier_entries = _entries(earlier)
    alike = _named_columns(model) == _named_columns(earlier)
    copies: list[tuple[Tensor, Tensor]] = []  # all is checked before any is written
    for name, parameter in model.named_parameters():
        if name not in values or not parameter.requires_grad:
            continue  # of branches that are new, or held
        value = values[name].detach()
        keys = entries.get(name)
        earlier_keys = earlier_entries.get(name)
        if (
            keys is not None
            and earlier_keys is not None
            and parameter.shape[-1:] == (len(keys),)
            and value.shape == (*parameter.shape[:-1], len(earlier_keys))
        ):
            place = {key: i for i, key in enumerate(earlier_keys)}
            shared = [i for i, key in enumerate(keys) if key in place]
            new = parameter.detach().clone()
            new[..., shared] = value[..., [place[keys[i]] for i in shared]]
            value = new
        # one value for all, or entries by position
        elif value.shape != parameter.shape:
            raise ValueError(
                "start_from: expected a model with the same options, got one with "
                f"{name} of shape {tuple(value.shape)} for {tuple(parameter.shape)}."
            )
        elif not alike and parameter.shape[len(model._aug_batch_shape) :].numel() > 1:
            raise ValueError(
                "start_from: expected a model with the same columns and decisions in "
                f"the same order, as {name} has entries whose columns are not known, "
                "got one with others."
            )
        copies.append((parameter, value))
    with torch.no_grad():
        for target, value in copies:
            target.copy_(value)
    kernel = model.covar_module
    if isinstance(kernel, TreeStructuredKernel):
        kernel.set_correlation(earlier.covar_module.correlation.name)


def _options(model: Any, earlier: Any) -> Iterator[tuple[str, object, object]]:
    """Options that may not differ: their names, and their values in both models."""
    for part in ("covar_module", "likelihood", "mean_module"):
        yield (
            part,
            _module_classes(getattr(model, part)),
            _module_classes(getattr(earlier, part)),
        )
    a = model.covar_module
    b = earlier.covar_module
    if isinstance(a, TreeStructuredKernel):
        yield "leaf_inputs", a.leaf_inputs, b.leaf_inputs
        yield "context_features", a.context_columns, b.context_columns
        sharing = a.leaf_hyperparameters.sharing
        yield "leaf_hyperparameters", sharing, b.leaf_hyperparameters.sharing
        yield "leaf_kernel", model._choose_kernel, earlier._choose_kernel


def _module_classes(module: torch.nn.Module) -> object:
    """The classes of a kernel and of what it is made of, of a likelihood or mean."""
    if isinstance(module, TreeStructuredKernel):
        # its other parts, and how many these are, depend on the branches
        kernels = module.leaf_kernels or torch.nn.ModuleDict()
        return {type(part) for part in [module, *kernels.values()]}
    return [type(part) for part in module.modules()]


def _named_columns(model: Any) -> tuple[object, object]:
    """Columns in their order, and decisions; of equal ones positions are the same."""
    tree = model.tree
    columns = list(range(tree.dim)) if tree.space is None else list(tree.space.names)
    return columns, tree.decision_values


def _entries(model: Any) -> dict[str, Sequence[Hashable]]:
    """For each parameter vector: the column, path or decision of each entry."""
    tree = model.tree
    kernel = model.covar_module
    column = int if tree.space is None else tree.space.names.__getitem__

    def paths() -> list[Hashable]:
        return [
            frozenset((column(c), v) for c, v in path.decisions.items())
            for path in tree.paths
        ]

    out: dict[str, Sequence[Hashable]] = {}
    if hasattr(model.mean_module, "raw_offset"):
        out["mean_module.raw_offset"] = paths()
    if isinstance(kernel, TreeStructuredKernel):
        edges = [(column(c), v) for c, vs in tree.decision_values.items() for v in vs]
        leaf = kernel.leaf_hyperparameters
        weights = kernel.weights
        names = "covar_module.leaf_hyperparameters.{}.raw_value".format
        if leaf.sharing == "independent":
            all_paths = paths()
            out[names("outputscale")] = all_paths
            if hasattr(leaf, "lengthscale"):
                used = leaf.pair < leaf.lengthscale.raw_value.shape[-1]
                out[names("lengthscale")] = [
                    (all_paths[p], column(kernel.columns[j]))
                    for p, j in used.nonzero().tolist()
                ]
        else:
            of_leaves = kernel.columns[: leaf.num_columns]
            out[names("relative_lengthscale")] = [column(c) for c in of_leaves]
            out[names("relative_outputscale")] = edges
        context = [column(c) for c in kernel.context_columns]
        out[names("context_lengthscale")] = context
        names = "covar_module.weights.{}.raw_value".format
        nodes = [([None, *edges])[i] for i in weights.node_columns.tolist()]
        out[names("node_variance")] = nodes[: weights.num_inner]
        out[names("offset_variance")] = nodes[weights.num_inner :]
        for kind, columns in (
            ("linear", weights.linear_columns),
            ("onehot", weights.onehot_columns),
            ("smooth", weights.smooth_columns),
        ):
            out[names(f"{kind}_variance")] = [column(c) for c in columns]
        out[names("smooth_lengthscale")] = out[names("smooth_variance")]
    else:
        for name, part in kernel.named_modules(prefix="covar_module"):
            count = getattr(part, "ard_num_dims", None)
            dims = getattr(part, "active_dims", None)
            of_kernel = range(tree.dim) if dims is None else dims.tolist()
            if len(of_kernel) == count:
                out[f"{name}.raw_lengthscale"] = [column(c) for c in of_kernel]
    return out
