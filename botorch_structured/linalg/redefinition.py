"""Which methods a class outside of this package defines anew.

What is computed in a shorter way than through a method holds only while the method is
the one of this package.
"""

from __future__ import annotations


def redefined_names(kind: type) -> frozenset[str]:
    """Names that classes outside of this package define in front of its own.

    Args:
        kind: A class of this package, or a subclass of one.
    """
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("botorch_structured."):
            break
        names.update(vars(base))
    return frozenset(names)
