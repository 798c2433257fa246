"""Expressions, statements and patterns of the user's source."""
