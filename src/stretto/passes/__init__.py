"""Passes over Programs, one file each: a Program goes in, one with the same results comes out.

`pipeline` has their order, `manager` runs them and verifies what each leaves. What several passes
find out about a Program is in `analyses/`, the rules of `simplify` in `simplifications/`, and what
`batch_loops` does to the body of a loop in `batching/`.
"""
