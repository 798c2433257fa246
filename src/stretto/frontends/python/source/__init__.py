"""The rewriting of the user's Python source, so that control flow and calls can be traced.

`rewrite` finds the definition of a function and compiles what the others make of it: `jumps`
turns `break`, `continue` and `return` into flags, `targets` splits assignments, `liveness` says
which variables are read later, and `control_flow` turns branches, loops and calls into calls of
`staging`. `bytecode` lists the names that compiled code reads.
"""
