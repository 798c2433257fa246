"""The CPU machine: native threads, one per execution unit.

`machine` is its record. `select` chooses among `templates/`, `printer/` prints C++ that uses the
headers of `include/`, `executable` has it built and gives it memory, `native` makes the one call of
a run, which the threads of `pool` execute.
"""
