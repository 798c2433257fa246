"""Printing of a DeviceProgram as C++; `program` is the entry point.

`function` makes statements of control flow and of the items of each unit in leaves, `kernel` the
functions of kernels from stages (`nest`, `loops`, and the templates), and `expr` terms of
expressions.
"""
