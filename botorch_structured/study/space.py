"""What a `Study` takes as a space."""

from __future__ import annotations

__all__ = ["read_space"]

from collections.abc import Mapping, Sequence
from typing import Any

from botorch_structured.spaces import SearchSpace


def read_space(space: Any) -> SearchSpace:
    """A space, a ``ConfigurationSpace``, or dictionaries, as a `SearchSpace`.

    Args:
        space: See `Study`.

    Raises:
        ValueError: It is something else, or dictionaries that nothing tells apart.
    """
    if isinstance(space, SearchSpace):
        return space
    if any(kind.__name__ == "ConfigurationSpace" for kind in type(space).__mro__):
        return SearchSpace.from_configspace(space)
    if isinstance(space, Mapping):
        return SearchSpace.from_dictionaries(space)
    if isinstance(space, (list, tuple)):
        found = SearchSpace.from_dictionaries(space)
        if found.shown_names[0] is None:  # the first decision is one of our own
            _check_alternatives(space)
        return found
    raise ValueError(
        "space: expected a SearchSpace, a ConfigurationSpace, or dictionaries, got "
        f"{type(space).__name__}."
    )


def _check_alternatives(dictionaries: Sequence[Mapping[str, Any]]) -> None:
    """Raise where a misspelt name is why no parameter tells dictionaries apart.

    That is so where they have no name in common, or where each has one text or
    estimator under a name that not all have: it is there to tell them apart.
    """
    common = set.intersection(*map(set, dictionaries))
    single = [{k for k, v in d.items() if _is_label(v)} for d in dictionaries]
    if not common or all(names - common for names in single):
        names = " and ".join(str(list(d)) for d in dictionaries)
        raise ValueError(
            "space: expected a parameter that all dictionaries have, with other "
            "choices in each, such as 'learner': ['svm'] and 'learner': ['forest'], "
            f"got {names}. If the names are to tell them apart, give "
            "SearchSpace.from_dictionaries(space)."
        )


def _is_label(values: Any) -> bool:
    one = values[0] if isinstance(values, list) and len(values) == 1 else values
    return isinstance(one, str) or hasattr(one, "get_params")
