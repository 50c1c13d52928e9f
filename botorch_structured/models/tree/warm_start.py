"""Hyperparameters of an earlier fit as the start of the next one.

Data and branches may have been added in between. Entries of a parameter are matched by
what they belong to: a column (by its name if a ``SearchSpace`` gives one), a value of a
decision, a path. New entries keep their start.
"""

from __future__ import annotations

__all__ = ["FitRecord", "take_values"]

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from botorch_structured.models.tree.tree_structured_kernel import TreeStructuredKernel


class FitRecord(NamedTuple):
    """What a model remembers of its fits.

    Attributes:
        short: Fits since the last full one.
        loss: Minus the objective per data point after the last full one.
    """

    short: int
    loss: float


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
    for name, mine, other in _options(model, earlier):
        if mine != other:
            raise ValueError(
                "start_from: expected a model with the same options, got one with "
                f"another {name} ({other} for {mine})."
            )
    values = dict(earlier.named_parameters())
    to, of = _entries(model), _entries(earlier)
    alike = _columns(model) == _columns(earlier)
    taken: list[tuple[Tensor, Tensor]] = []  # nothing is written before all is checked
    for name, parameter in model.named_parameters():
        if name not in values or not parameter.requires_grad:
            continue  # of branches that are new, or held
        value = values[name].detach()
        here, there = to.get(name), of.get(name)
        if (
            here is not None
            and there is not None
            and value.shape[:-1] == parameter.shape[:-1]
            and parameter.shape[-1:].numel() == len(here)
            and value.shape[-1:].numel() == len(there)
        ):
            if here == there:
                taken.append((parameter, value))
                continue
            place = {key: i for i, key in enumerate(there)}
            known = [i for i, key in enumerate(here) if key in place]
            new = parameter.detach().clone()
            new[..., known] = value[..., [place[here[i]] for i in known]]
            taken.append((parameter, new))
            continue
        # one value for all, or entries by position
        if value.shape != parameter.shape:
            raise ValueError(
                "start_from: expected a model with the same options, got one with "
                f"{name} of shape {tuple(value.shape)} for {tuple(parameter.shape)}."
            )
        if not alike and parameter.shape[len(model._aug_batch_shape) :].numel() > 1:
            raise ValueError(
                "start_from: expected a model with the same columns and decisions in "
                f"the same order, as {name} has entries whose columns are not known, "
                "got one with others."
            )
        taken.append((parameter, value))
    with torch.no_grad():
        for target, value in taken:
            target.copy_(value)
    kernel = model.covar_module
    if isinstance(kernel, TreeStructuredKernel):
        kernel.set_correlation(earlier.covar_module.correlation.name)


def _options(model: Any, earlier: Any) -> Iterator[tuple[str, object, object]]:
    """Name, and value of both models, of what may not differ."""
    for part in ("covar_module", "likelihood", "mean_module"):
        yield part, _classes(getattr(model, part)), _classes(getattr(earlier, part))
    a, b = model.covar_module, earlier.covar_module
    if isinstance(a, TreeStructuredKernel):
        yield "leaf_inputs", a.leaf_inputs, b.leaf_inputs
        yield "context_features", a.context_columns, b.context_columns
        sharing = a.leaf_hyperparameters.sharing, b.leaf_hyperparameters.sharing
        yield "leaf_hyperparameters", *sharing
        yield "leaf_kernel", model._choose_kernel, earlier._choose_kernel


def _classes(module: torch.nn.Module) -> list[type]:
    """The classes of a kernel and of what it is made of, of a likelihood or mean."""
    if isinstance(module, TreeStructuredKernel):
        return [type(module)]  # its parts depend on the branches
    return [type(part) for part in module.modules()]


def _columns(model: Any) -> tuple[object, object]:
    """Columns in their order, and decisions; of equal ones positions are the same."""
    tree = model.tree
    columns = list(range(tree.dim)) if tree.space is None else list(tree.space.names)
    return columns, tree.decision_values


# -- what the entries of a parameter belong to ------------------------------------


def _entries(model: Any) -> dict[str, Sequence[Hashable]]:
    """Names of parameters with an entry for each of something, and what these are."""
    tree, kernel = model.tree, model.covar_module
    column = int if tree.space is None else tree.space.names.__getitem__

    def paths() -> list[Hashable]:
        every = (path.decisions.items() for path in tree.paths)
        return [frozenset((column(c), v) for c, v in items) for items in every]

    out: dict[str, Sequence[Hashable]] = {}
    if hasattr(model.mean_module, "raw_offset"):
        out["mean_module.raw_offset"] = paths()
    if isinstance(kernel, TreeStructuredKernel):
        edges = [(column(c), v) for c, vs in tree.decision_values.items() for v in vs]
        leaf, weights = kernel.leaf_hyperparameters, kernel.weights
        names = "covar_module.leaf_hyperparameters.{}.raw_value".format
        if leaf.sharing == "independent":
            out[names("outputscale")] = every = paths()
            if hasattr(leaf, "lengthscale"):
                used = leaf.pair < leaf.lengthscale.raw_value.shape[-1]
                out[names("lengthscale")] = [
                    (every[p], column(kernel.columns[j]))
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
