"""Computing values of a loop body for all iterations at once: the means of the pass `batch_loops`.

`twins` goes through a body and finds what can be computed before the loop. It asks `rules` (and
`contractions`) for the batched form of each operator; `batch` keeps what has been made so far.
"""
