"""From a Program to a tree of operators.

`program.lower` is the entry; `function` lowers one function, `control` its branches and loops,
`rules/` each ATen overload, `lists`, `list_slots` and `list_ops` lists. Tensors that need not be
stored stay expressions (`lazy`), which is how views and pointwise operators fuse.
"""
