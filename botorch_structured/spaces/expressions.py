"""Conditions of a tree as expressions over the states of its decisions.

A decision is in state 0 where it is inactive, and in state ``c + 1`` where it has
outcome ``c``. An `Expr` is ``True``, ``False``, ``("atom", k, mask)`` for "bit s of the
mask is set, where s is the state of decision k", or ``("and", parts)`` and
``("or", parts)`` with a frozenset of parts. Equal conditions are equal expressions, up
to the laws of absorption and distribution.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, reduce
from typing import Any

import numpy as np

# A bool, or a tuple as in the module docstring (recursive, hence Any).
Expr = Any


def atom(k: int, mask: int) -> Expr:
    """The state of decision ``k`` is in the bit set ``mask``."""
    return ("atom", k, mask) if mask else False


def all_of(parts: Iterable[Expr]) -> Expr:
    """The conjunction of ``parts``, simplified."""
    return _combine("and", parts)


def any_of(parts: Iterable[Expr]) -> Expr:
    """The disjunction of ``parts``, simplified."""
    return _combine("or", parts)


def _combine(kind: str, parts: Iterable[Expr]) -> Expr:
    neutral = kind == "and"
    masks: dict[int, int] = {}
    others: set[Expr] = set()
    stack = list(parts)
    while stack:
        part = stack.pop()
        if isinstance(part, bool):
            if part is not neutral:
                return part
        elif part[0] == kind:
            stack.extend(part[1])
        elif part[0] == "atom":
            _, k, mask = part
            if k in masks:
                mask = masks[k] & mask if neutral else masks[k] | mask
            masks[k] = mask
        else:
            others.add(part)
    if 0 in masks.values():
        return False
    others.update(atom(k, mask) for k, mask in masks.items())
    if len(others) <= 1:
        return others.pop() if others else neutral
    return (kind, frozenset(others))


def negated(expr: Expr) -> Expr:
    """The expression that holds exactly where ``expr`` does not."""
    if isinstance(expr, bool):
        return not expr
    if expr[0] == "atom":
        # ``~mask`` is negative and has all bits but those of the atom.
        return atom(expr[1], ~expr[2])
    return _combine("or" if expr[0] == "and" else "and", map(negated, expr[1]))


def replaced(expr: Expr, replace: Callable[[Expr], Expr]) -> Expr:
    """``expr`` with another expression in place of each atom."""
    if isinstance(expr, bool):
        return expr
    if expr[0] == "atom":
        return replace(expr)
    return _combine(expr[0], (replaced(part, replace) for part in expr[1]))


def atoms(expr: Expr) -> Iterator[Expr]:
    """The atoms of an expression."""
    if isinstance(expr, bool):
        return
    if expr[0] == "atom":
        yield expr
    else:
        for part in expr[1]:
            yield from atoms(part)


def refers_to(expr: Expr) -> set[int]:
    """The decisions of an expression."""
    return {k for _, k, _ in atoms(expr)}


@lru_cache(maxsize=65536)
def bits(mask: int, size: int) -> np.ndarray:
    """Whether each of ``size`` states is in a bit set; not to be written to."""
    octets = (mask & ((1 << size) - 1)).to_bytes(size // 8 + 1, "little")
    digits = np.frombuffer(octets, dtype=np.uint8)
    return np.unpackbits(digits, count=size, bitorder="little").astype(bool)


def holds(expr: Expr, truth: Callable[[Expr], Any]) -> Any:
    """Where an expression holds.

    Args:
        expr: The expression.
        truth: Where an atom, ``True`` or ``False`` holds: an array of booleans.
    """
    if isinstance(expr, bool) or expr[0] == "atom":
        return truth(expr)
    combine = operator.and_ if expr[0] == "and" else operator.or_
    return reduce(combine, (holds(part, truth) for part in expr[1]))
