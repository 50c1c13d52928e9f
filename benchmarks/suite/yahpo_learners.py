"""Choosing and tuning one of six learners on OpenML: YAHPO Gym's ``rbv2_super``.

A surrogate of the error of approximate nearest neighbours, elastic nets, random
forests, trees, support vector machines and xgboost: 38 columns and 11 paths, as three
of the learners have a decision of their own. It is asked as in
`benchmarks.suite.yahpo`; its files are expected in ``DIR/yahpo_rbv2_super``. 28 data
sets are for development, 28 for the report. On data set 334 the surrogate is far from
a later one of the same authors: it is left out.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor

from benchmarks.suite.yahpo import DATA, YahpoProblem

_DEVELOP_TASKS = tuple(
    "3 11 14 16 23 31 42 54 182 334 469 1040 1050 1068 1464 1476 1485 1489 1497 1515 "
    "4154 40496 40499 40900 40981 40983 41142 41146".split()
)
_REPORT_TASKS = tuple(
    "15 29 44 46 60 181 188 312 1049 1067 1461 1462 1468 1478 1494 1501 1510 4534 "
    "23381 40670 40966 40978 40979 40984 41138 41143 41156 41212".split()
)


class YahpoLearners(YahpoProblem):
    """The error rate of a learner on one data set, by a surrogate; to be minimised.

    The surrogate has no noise. The training data are used whole.
    """

    of_suite = "learners"
    scenario = "rbv2_super"
    choices = (
        "task_id",
        "learner",
        "svm.kernel",
        "ranger.respect.unordered.factors",
        "ranger.splitrule",
        "aknn.distance",
        "xgboost.booster",
        "num.impute.selected.cpo",
    )
    numbers = (
        *("svm.cost", "svm.gamma", "svm.tolerance", "svm.degree"),
        *("glmnet.alpha", "glmnet.s"),
        *("rpart.cp", "rpart.maxdepth", "rpart.minbucket", "rpart.minsplit"),
        *("ranger.num.trees", "ranger.sample.fraction", "ranger.mtry.power"),
        *("ranger.min.node.size", "ranger.num.random.splits"),
        *("aknn.k", "aknn.M", "aknn.ef", "aknn.ef_construction"),
        *("xgboost.nrounds", "xgboost.eta", "xgboost.gamma", "xgboost.lambda"),
        *("xgboost.alpha", "xgboost.subsample", "xgboost.max_depth"),
        *("xgboost.min_child_weight", "xgboost.colsample_bytree"),
        *("xgboost.colsample_bylevel", "xgboost.rate_drop", "xgboost.skip_drop"),
        *("trainsize", "repl"),
    )
    other_names = {"learner": "learner_id"}
    one_by_one = True
    effort = (6_000, 20, 60, 20)
    tasks = _DEVELOP_TASKS + _REPORT_TASKS

    def truths(self, X: Tensor) -> Tensor:
        """The error rates of ``n x d`` points: ``n``."""
        return self.answers(X)[:, 0]


def make(seed: int, task_id: str, data: str | Path = DATA) -> YahpoLearners:
    """The problem of a data set; it is the same for all seeds."""
    return YahpoLearners(task_id, data)


DEVELOP = {
    f"learners-{task}": partial(make, task_id=task, data=DATA)
    for task in _DEVELOP_TASKS
    if task != "334"
}
REPORT = {
    f"learners-{task}": partial(make, task_id=task, data=DATA) for task in _REPORT_TASKS
}
