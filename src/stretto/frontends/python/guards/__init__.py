"""State that traced code may have read besides its arguments, to be compared at later calls.

`reach` walks from a function over closures, globals and attributes to everything that its code
may read, and collects it as `guards`. `reading` reads, at each call, the contents of the
objects that a program changes.
"""
