"""Lists whose length depends on the run, and positions that do.

`operations` are the list operations of a Program, `methods` what Python's lists do beyond that,
written in terms of these and traced like user code. `indexing` reads and writes tensors at traced
positions, `sources` are what a `for` loop runs over.
"""
