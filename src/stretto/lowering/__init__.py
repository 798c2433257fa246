"""From a Program to a tree of operators over buffers.

`program.lower` is the entry. `function` holds the state of lowering one function, `control` lowers
its branches and loops, `calls` its calls, `lists/` its lists, and `rules` its tensor ops, one rule
per operator. `targets` puts the values that a block yields in their places. Tensors that need not
be stored stay expressions (`lazy`), which is how views and pointwise operators fuse; `uses` counts
the reads that are still to come, so that a value may be changed in place after the last one.
"""
