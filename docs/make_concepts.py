"""Make the pictures of ``concepts.md``.

    python docs/make_concepts.py

``concept_tree.png``: a conditional space and its paths. ``concept_sharing.png``: what
observations of one path say about another, for three models of the same data.
``concept_mixture.png``: the two models behind ``suggest``, and their weights. Takes
seconds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import ChainedInputTransform
from ConfigSpace import (
    Categorical,
    ConfigurationSpace,
    EqualsCondition,
    Float,
    Integer,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_structured.models import ConditionalGP, TreeStructuredGP
from botorch_structured.plots import plot_covariance, plot_tree
from botorch_structured.plots.style import BLUE, INK, RED, new_panels, tidy
from botorch_structured.spaces import ParameterTree, SearchSpace
from botorch_structured.suggest import suggest
from botorch_structured.transforms import Impute

OUT = Path(__file__).parent / "images"


def learners() -> SearchSpace:
    """The space of the page: four paths, one column that all share."""
    space = ConfigurationSpace()
    learner = Categorical("learner", ["svm", "neighbours", "boosting"])
    kernel = Categorical("kernel", ["linear", "rbf"])
    C, gamma = Float("C", (1e-3, 1e3), log=True), Float("gamma", (1e-4, 1e1), log=True)
    k, rate = Integer("k", (1, 50)), Float("rate", (1e-3, 1.0), log=True)
    depth, features = Integer("depth", (1, 12)), Float("features", (0.1, 1.0))
    space.add(learner, kernel, C, gamma, k, rate, depth, features)
    space.add(
        EqualsCondition(kernel, learner, "svm"),
        EqualsCondition(C, learner, "svm"),
        EqualsCondition(gamma, kernel, "rbf"),
        EqualsCondition(k, learner, "neighbours"),
        EqualsCondition(rate, learner, "boosting"),
        EqualsCondition(depth, learner, "boosting"),
    )
    return SearchSpace.from_configspace(space)


def fitted(model: SingleTaskGP) -> SingleTaskGP:
    """The model, after a fit."""
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def sharing(space: SearchSpace) -> None:
    """Prior covariances under the fitted hyperparameters of three models."""
    X = space.sample(48, seed=0)
    scaled = (X - space.bounds[0]) / (space.bounds[1] - space.bounds[0])
    level = torch.tensor([0.0, 0.4, 1.0, 1.4], dtype=X.dtype)[space.tree.path_index(X)]
    own = space.tree.leaf_columns
    Y = level + 2.0 * scaled[:, space.names.index("features")]
    for path in range(space.tree.num_paths):
        rows = space.tree.path_index(X) == path
        columns = list(own(space.tree.paths[path]))
        Y[rows] += (3.0 * scaled[rows][:, columns]).sin().sum(-1)
    Y = Y.unsqueeze(-1)
    one_process = ChainedInputTransform(
        impute=Impute(space.tree, space.bounds), scale=Normalize(space.dim)
    )
    models = {
        "TreeStructuredGP": TreeStructuredGP(X, Y, space),
        "ConditionalGP": ConditionalGP(X, Y, space),
        "SingleTaskGP with Impute": SingleTaskGP(X, Y, input_transform=one_process),
    }
    panels = new_panels(len(models), 3.8, 3.4)
    for ax, (title, model) in zip(panels, models.items(), strict=True):
        fitted(model).eval()
        with torch.no_grad():
            K = model.covar_module(model.transform_inputs(X)).to_dense()
        deviations = K.diagonal().sqrt()
        last = ax is panels[-1]
        correlations = K / deviations.outer(deviations)
        plot_covariance(correlations, X, space, ax=ax, colorbar=last, limits=(0, 1))
        ax.set_xticks([])
        if ax is not panels[0]:
            ax.set_yticks([])
        ax.set_title(title, color=INK, fontsize="medium")
    panels[0].figure.savefig(OUT / "concept_sharing.png", dpi=110)


def mixture() -> None:
    """Five evaluations on one branch, three on the other."""
    tree = ParameterTree(3, {0: {0.0: [1], 1.0: [2]}})
    bounds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.double)
    names = {0: ["a", "b"]}
    space = SearchSpace(["branch", "x", "z"], bounds, tree, choices=names)

    def objective(X: Tensor) -> Tensor:
        a = (5 * X[:, 1]).sin() + 1.5
        b = (9 * X[:, 2] + 0.5).sin() + 2.5
        return torch.where(X[:, 0] == 0, a, b).unsqueeze(-1)

    rows = [[0.0, x, 0.5] for x in (0.05, 0.3, 0.5, 0.7, 0.95)]
    rows += [[1.0, 0.5, z] for z in (0.15, 0.5, 0.7)]
    X = torch.tensor(rows, dtype=torch.double)
    found = suggest(space, X, Y := objective(X), seed=0)
    grid = torch.linspace(0, 1, 200, dtype=torch.double)
    panels = new_panels(2, 4.6, 3.6)
    for branch, ax in enumerate(panels):
        points = torch.full((200, 3), 0.5, dtype=torch.double)
        points[:, 0], points[:, 1 + branch] = branch, grid
        for model, weight, colour in zip(
            found.models, found.weights, (BLUE, RED), strict=True
        ):
            with torch.no_grad():
                posterior = model.posterior(points)
            mean = posterior.mean.squeeze(-1).numpy()
            band = 2 * posterior.variance.squeeze(-1).sqrt().numpy()
            label = f"{type(model).__name__}, weight {float(weight):.2f}"
            ax.plot(grid, mean, color=colour, label=label, linewidth=2)
            ax.fill_between(grid, mean - band, mean + band, color=colour, alpha=0.15)
        ax.plot(grid, objective(points), color=INK, ls=":", label="objective")
        mine = X[:, 0] == branch
        ax.plot(X[mine, 1 + branch], Y[mine], "o", color=INK, label="evaluations")
        ax.set_xlabel(space.names[1 + branch])
        ax.set_title(f"branch {names[0][branch]}", color=INK, fontsize="medium")
        tidy(ax)
    low, high = zip(*(ax.get_ylim() for ax in panels), strict=True)
    for ax in panels:
        ax.set_ylim(np.min(low), np.max(high))
    handles, labels = panels[0].get_legend_handles_labels()
    panels[0].figure.legend(
        handles, labels, loc="outside lower center", ncols=2, frameon=False
    )
    panels[0].figure.savefig(OUT / "concept_mixture.png", dpi=110)


def main() -> None:
    """The command line."""
    space = learners()
    ax = plot_tree(space)
    ax.figure.savefig(OUT / "concept_tree.png", dpi=110)
    sharing(space)
    mixture()


if __name__ == "__main__":
    main()
