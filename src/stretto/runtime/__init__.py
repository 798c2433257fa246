"""Runtime that all machines share: builds and their cache, constants, results, library calls.

`compiler` builds C++ through `cache`, and loads the C++ sources of this package;
`memory_watch` and `probes` detect changes of the memory and of the Python containers that a
program was captured with; `check` compares a run with the interpreter's.
"""
