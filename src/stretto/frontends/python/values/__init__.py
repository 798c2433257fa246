"""The representation of Python values in a Program, and the state of the user's Python code.

`scalars` has traced numbers and flags, `arithmetic` and `number_methods` the behaviour of Python
numbers, `either` values that are one of several kinds of things. `leaves` takes values apart into
IR values and rebuilds them. `sizes` has data-dependent sizes, `texts` and `spelling` texts that
show values of the run. `state` and `stores` copy and compare all local variables of active calls
and their contents. `raises` turns exceptions that depend on the run into checks.
"""
