"""Weights in and out of other code bases: one table of names serves both directions."""
