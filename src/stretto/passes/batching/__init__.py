"""Computing values of a loop body for all iterations at once, for the pass `batch_loops`.

`twins` walks a body to find the values that can be computed before the loop; `rules` has the kinds
of batching, and `Batch`, which records the results so far. The families of operators (`operators`)
say of which kind an operator is, or register a rule of its own.
"""
