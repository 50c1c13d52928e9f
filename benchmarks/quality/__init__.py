"""How good the points are that a method finds."""
