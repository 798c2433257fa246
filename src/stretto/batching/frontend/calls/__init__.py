"""Calls: of the user's functions, of modules, of what others wrote."""
