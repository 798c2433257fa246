"""Operators of torch: what they give for types, and their statements."""
