"""Interpretation of the user's Python over a heap of its own."""
