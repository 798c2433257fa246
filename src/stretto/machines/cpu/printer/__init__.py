"""A DeviceProgram as C++; `program` is the entry.

`function` makes statements of control flow and of what each unit does in leaves, `kernel` and
`stage` the functions of kernels, by a file per kind of template (`loops`, `contract`, `sort`), and
`expr` terms of expressions.
"""
