"""Rewriting of the user's Python source, so that control flow and calls can be traced.

`rewrite` finds the definition of a function and compiles its rewritten form. `desugar`
lowers comprehensions, split assignments, `match` and generators; `jumps` turns `break`,
`continue` and `return` into flags; `control_flow` turns branches, loops and calls into
calls of `staging`; `syntax` has the helpers for syntax trees, liveness, and the names that
compiled code reads. `pieces` splits functions that cannot be captured as a whole, and
`redirected` intercepts calls made by code that is not rewritten.
"""
