"""Operators of Python on numbers, strings, containers and tensors."""
