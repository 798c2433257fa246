"""From a Program to a tree of operators over buffers.

`program.lower` is the entry. `function` holds the state of lowering one function, `control` lowers
its branches and loops, `calls` its calls, `lists/` its lists, and `rules/` its tensor ops, one rule
per operator. `targets` says where the values go that a block yields. Tensors that need not be
stored stay expressions (`lazy`), which is how views and pointwise operators fuse; `uses` counts who
still reads a value, so that it may be changed in place.
"""
