"""Passes over Programs, one file each: every pass returns a Program with the same results.

`pipeline` lists their order; `manager` runs them and verifies the Program after each. Facts that
several passes derive about a Program are in `analyses/`, the rules of `simplify` in
`algebra`, and the transformation that `batch_loops` applies to a loop body in `batching/`.
"""
