"""Lists whose length depends on the run, and traced positions.

`operations` has the list operations of a Program; `methods` the other behaviour of Python's
lists, written in terms of these and traced like user code. `indexing` reads and writes
tensors at traced positions, `sources` has the sequences that a `for` loop runs over, and
`iterators` Python's iterators as objects with state.
"""
