"""Search spaces: which columns exist, which are active where, what their values mean.

`ParameterTree` is all that models and optimisers need: tensors in, booleans and path
numbers out. `SearchSpace` puts names, bounds and native values around it.
"""

from __future__ import annotations

__all__ = [
    "Between",
    "Equals",
    "In",
    "Inactive",
    "ParameterTree",
    "SearchSpace",
]

from botorch_structured.spaces.conditions import Between, Equals, In, Inactive
from botorch_structured.spaces.parameter_tree import ParameterTree
from botorch_structured.spaces.search_space import SearchSpace
