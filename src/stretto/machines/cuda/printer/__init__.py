"""A DeviceProgram as one Triton kernel; `program` is the entry.

`function` makes statements of control flow and of what units do in leaves, `kernel` and the files
`stage*` the functions of kernels, `expr` and `scalar` terms of expressions. Then the statements of
a recursive program are cut into `states`, constants are loaded `early`, long sections become
functions (`outline`), and all is written down. `source` is what comes out; `parts/` has the
functions that every program contains.
"""
