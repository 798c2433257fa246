"""Plans as captured graphs: many launches, library calls and their control, replayed by one call.

`builder` says what a graph is made of, and runs graphs that are emulated; `driver_graph` makes CUDA
graphs; `words` is what a graph does between its launches; `arrange` chooses order and streams;
`record` makes graphs of the stretches of a plan; `executable` keeps and replays them.
"""
