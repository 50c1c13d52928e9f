"""What a `Study` is given: a space, and parameters to hold."""

from __future__ import annotations

__all__ = ["read_fixed", "read_space"]

from collections.abc import Mapping, Sequence
from typing import Any

from botorch_structured.spaces import SearchSpace
from botorch_structured.spaces.arguments import brief
from botorch_structured.spaces.columns import Column, Constant, takes


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


def read_fixed(space: SearchSpace, fixed: Any) -> dict[int, float]:
    """Columns and what they hold.

    Args:
        space: The space.
        fixed: ``{name: value}``, or None.

    Raises:
        ValueError: A name or a value is not that of a parameter, on a path that the
            other values leave; or no such path has the parameter.
    """
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping):
        raise ValueError(f"fixed: expected {{name: value}}, got {brief(fixed)}.")
    named = space._named()
    held: dict[int, float] = {}
    for name, value in fixed.items():
        if name not in named:
            raise ValueError(
                f"fixed: expected names among {list(named)}, got {name!r}."
            )
        for p in named[name]:
            if not isinstance(p, Constant) and takes(p, value):
                held[space._position[p.name]] = p.encode(value)

    def is_left(p: Column | Constant) -> bool:
        """Whether some configuration with the other values has the parameter."""
        if isinstance(p, Constant):
            return space.tree.can_hold(p.condition, held)
        return space.tree.can_be_active(space._position[p.name], held)

    for name, value in fixed.items():
        good = [p for p in named[name] if takes(p, value)]
        wrong = [p for p in named[name] if not takes(p, value)]
        left = list(filter(is_left, wrong))
        if good and not left:
            continue
        hint = ""
        if any(map(is_left, good)):
            hint = " Others take it: hold what tells them apart, too."
            if None in space.shown_names:
                hint = " Others take it, but no parameter tells them apart."
        expected = " or ".join(dict.fromkeys(p.expected() for p in left or wrong))
        raise ValueError(
            f"fixed: {name!r}: expected {expected}, got {brief(value)}.{hint}"
        )
    for name in fixed:
        if not any(map(is_left, named[name])):
            others = {k: v for k, v in fixed.items() if k != name}
            raise ValueError(
                f"fixed: expected parameters of one configuration, got {name!r}, which "
                f"none has with {others}."
            )
    return held
