"""Branches and loops on traced values.

Each arm or body is traced in a region of its own, with the Python state put back afterwards.
`join` merges the states that two arms leave behind, `carry` finds what a loop carries from round
to round (`carried_options` for slots that hold several kinds of things), `branches` and `loops`
emit the ops. `learned` keeps what tracing a loop has found out for the next time.
"""
