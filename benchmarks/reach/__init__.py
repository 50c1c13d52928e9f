"""Comparisons of methods by the best values that they find."""
