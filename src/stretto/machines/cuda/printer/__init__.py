"""Print a DeviceProgram as one Triton kernel; the entry is `program.print_program`.

`function` builds the statements of control flow and of leaves, `kernel` and the `stage*` files the
functions of kernels, `expr` and `scalar` the terms of expressions. The statements of a recursive
program are then cut into `states`, loads of constants are moved `early`, long sections become
functions (`outline`), and everything is written as text. `source` holds the result; `library/` has
the functions that every program contains.
"""
