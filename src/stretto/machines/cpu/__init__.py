"""The CPU machine: native threads, a unit each.

`machine` is its record. `select` chooses among `templates/`, `printer/` prints C++ that uses the
headers of `include/`, `executable` has it built and gives it memory, `native` makes the one call of
a run, in which the threads of `pool` take part.
"""
