"""Streams of calls whose sizes change with every call: what one program for all of them is worth.

`models` has the programs and how sizes are drawn, `systems` who runs them, `worker` runs one stream
on one system in a process of its own, and `suite` runs all of them in turns.
"""
