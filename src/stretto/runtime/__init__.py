"""What all machines share at run time: builds and their cache, constants, results, library calls.

`compiler` builds C++ through `cache`; `support` loads sources of the package; `memory_watch` and
`probes` tell whether what a program has seen was changed since; `check` compares a run with the
interpreter's.
"""
