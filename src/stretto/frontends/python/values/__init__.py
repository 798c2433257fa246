"""What Python values become in a Program, and the state of the user's Python code.

`scalars` are traced numbers, `either` values that are one of several kinds of things. `leaves` and
`templates` take values apart into IR values and put them together again. `state` copies and
compares all local variables of active calls and what they contain. `flags` are conditions that may
be known while tracing, `raises` turns exceptions that depend on the run into checks.
"""
