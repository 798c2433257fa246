"""What all machines share at run time: builds and their cache, constants, results, library calls.

`compiler` builds C++, with the headers of `include/`, through `cache`; `support` loads the
runtime's own sources; `memory_watch` and `probes` tell whether what a program has seen was
changed since.
"""
