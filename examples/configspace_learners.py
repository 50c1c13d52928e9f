"""A ConfigSpace of auto-sklearn's kind: a classifier and a step before it.

``--quick`` makes few evaluations.
"""

import sys

from ConfigSpace import (
    Categorical,
    ConfigurationSpace,
    EqualsCondition,
    Float,
    ForbiddenAndConjunction,
    ForbiddenEqualsClause,
    Integer,
)

from botorch_structured import Study

QUICK = "--quick" in sys.argv
space = ConfigurationSpace()
classifier = Categorical("classifier", ["svm", "forest", "bayes"])
step = Categorical("preprocessing", ["none", "pca", "select"])
C, depth = Float("svm:C", (1e-3, 1e3), log=True), Integer("forest:depth", (2, 20))
kept, k = Float("pca:kept", (0.5, 1.0)), Integer("select:k", (1, 30))
space.add(classifier, step, C, depth, kept, k)
for child, parent, value in (
    (C, classifier, "svm"),
    (depth, classifier, "forest"),
    (kept, step, "pca"),
    (k, step, "select"),
):
    space.add(EqualsCondition(child, parent, value))
no_pca = ForbiddenEqualsClause(classifier, "bayes"), ForbiddenEqualsClause(step, "pca")
space.add(ForbiddenAndConjunction(*no_pca))


def evaluate(config):
    """The error; here a formula. Put your cross-validation in its place."""
    own = {"svm": 0.1, "forest": 0.15, "bayes": 0.3}[config["classifier"]]
    own += abs(config.get("forest:depth", 12) - 12) / 100
    return own + abs(config.get("pca:kept", 0.7) - 0.9) + 0.05 * ("svm:C" in config)


study = Study(space, seed=0)
study.optimize(evaluate, 8 if QUICK else 60)
print(study.best)
for row in study.explain(study.ask()[0])["paths"]:
    print(row)
