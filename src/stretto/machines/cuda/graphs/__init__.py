"""Plans as captured graphs: many launches, library calls and their control, replayed by one call.

`builder` defines the nodes of a graph, emulates graphs, and arranges a plan's sequences in order
and streams; `driver_graph` makes CUDA graphs; `words` are the operations of a graph between its
launches; `record` makes graphs of the stretches of a plan; `executable` stores and replays them.
"""
