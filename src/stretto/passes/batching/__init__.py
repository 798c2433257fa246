"""Computing values of a loop body for all iterations at once, for the pass `batch_loops`.

`twins` walks a body to find the values that can be computed before the loop, and has the
rules of contractions and of positions; `rules` has the batched forms of the other
operators, and `Batch`, which records the results so far.
"""
