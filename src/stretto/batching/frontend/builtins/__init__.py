"""Functions of Python and methods of its values."""
