"""A suite of conditional problems, split by problem into two halves.

    python -m benchmarks.suite run --half develop --kinds synthetic --methods default
    python -m benchmarks.suite report results/suite --reference default

Defaults are chosen on the half ``develop``; the half ``report`` is for the tables, and
is run once. Kinds of problems: ``synthetic`` (random draws), ``jenatton`` (the
functions of Jenatton et al.), ``yahpo`` (surrogates of booster tuning), ``svm`` (tables
of support vector machines), ``learners`` (surrogates of choosing and tuning a learner).
"""
